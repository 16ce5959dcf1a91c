"""Drawings of tensors: inline SVG in the page's own ink, from the numbers of a page.

    d = Drawing("A query of two numbers stands above two keys of two numbers.")  # for those who do not see it
    query = d.grid([1, 0], "query", head="query")
    keys = d.grid([[4, 0], [3, 1]], "key", at=query.below(60), head="keys", rows="S", cols="d_k")
    d.arrow(query, (query.bottom[0], keys.y - 26))
    d                                                   # a cell that ends in a drawing shows it

**One colour, one meaning** in every drawing, widget and plot of the book, and a shape repeats it. A tensor has its
first axis downwards and its last to the right. Things are placed in units of about a pixel; the picture is as
large as what is on it, and shrinks on a phone until letters are 11 px high; up to 455 units wide it fits.
The same calls give the same characters. `widgets.stepper` shows drawings one by one, `pictures` has some ready.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources

# Each has a contrast of at least 3 : 1 on white and on the dark theme's #14181e.
COLOURS = {"query": "#d06a00", "key": "#2b7bc0", "value": "#009a73", "out": "#8a4bf0", "gradient": "#d9304f",
           "hidden": "#7a7a7a"}  # fmt: skip
KINDS = (*COLOURS, "weight")  # a weight is the depth of its key's blue
LETTER, SMALLEST, LARGEST = 14, 11, 16  # the height of letters: in units; in pixels on a phone and on a desk
STRIPPED = "To see this drawing, run the cell or trust the notebook. It shows: "
_SHAPES = {"query": '<path d="M0-7 7 0 0 7-7 0z"/>', "key": '<circle r="5.5"/>', "out": '<circle r="4.6"/>',
           "value": '<path d="M-5-5h10v10h-10z"/>', "gradient": '<path d="M-7 0h14"/>'}  # fmt: skip
_DEEPEST = 0.6  # how much of the blue a weight of 1 has: ink stays readable on it in both themes


@dataclass(frozen=True)
class Box:
    """A rectangle on a drawing: what `grid` and `box` give back, to place other things by."""

    x: float
    y: float
    w: float
    h: float
    cells: tuple = ()  # of a grid: the Box of every cell, row by row; sheets follow one another

    left = property(lambda self: (self.x, self.y + self.h / 2))
    right = property(lambda self: (self.x + self.w, self.y + self.h / 2))
    top = property(lambda self: (self.x + self.w / 2, self.y))
    bottom = property(lambda self: (self.x + self.w / 2, self.y + self.h))
    middle = property(lambda self: (self.x + self.w / 2, self.y + self.h / 2))

    beside = lambda self, gap: (self.x + self.w + gap, self.y)  # where something to the right of it begins
    below = lambda self, gap: (self.x, self.y + self.h + gap)  # … and something under it

    def row(self, i):  # the Box round one row of a grid
        first, last = self.cells[i][0], self.cells[i][-1]
        return Box(first.x, first.y, last.x + last.w - first.x, first.h)


class Drawing:
    """Pieces of SVG, and how far they reach; `alt` says in a sentence what one should see."""

    def __init__(self, alt):
        if not isinstance(alt, str) or len(alt.split()) < 5:
            raise ValueError(f"alt is {alt!r}: say in a sentence what one should see in this drawing")
        self.alt = alt
        self.pieces: list[str] = []
        self.reach = (math.inf, math.inf, -math.inf, -math.inf)  # left, top, right, bottom

    def copy(self):
        """The drawing as it is now: a step of a stepper, when this one goes on."""
        other = Drawing(self.alt)
        other.pieces, other.reach = list(self.pieces), self.reach
        return other

    def grid(self, numbers, kind=None, *, at=(0, 0), head=None, rows=None, cols=None, names=None, mask=None,
             digits=None, size=None, gap=(3, 3)):  # fmt: skip
        """Cells with numbers: a vector is one row, a matrix goes down and right, sheets stand below one another.

        Args:
            numbers: (cols,), (rows, cols) or (sheets, rows, cols); a text stays as it is, None is an empty cell.
            kind: what they are, one of `KINDS`. Weights, from 0 to 1, are drawn as depth.
            at: the corner, left and above.
            head: a word above, with the shape of its kind.
            rows, cols: the letters of the last two axes, at the left and the lower edge.
            names: a word for every row, on its left.
            mask: of the same shape, True = may be seen; the other cells are hatched.
            digits: behind the point; as many as these numbers need, at most two, unless given.
            size: width and height of a cell; one that is lower than a line of text shows no number.
            gap: between columns, and between rows.
        """
        sheets = _sheets(numbers)
        table = [row for sheet in sheets for row in sheet]
        seen = [r for s in _sheets(mask) for r in s] if mask is not None else [[True] * len(r) for r in table]
        _check_grid(table, seen, kind, names)
        texts = _texts(table, digits)
        wide, high = size or (max(32, 12 + 8.5 * max(len(t) for row in texts for t in row)), 30)
        across, down, sheet = wide + gap[0], high + gap[1], len(sheets[0])
        place = lambda i, j: Box(at[0] + j * across, at[1] + i * down + i // sheet * 10, wide, high)
        cells = tuple(tuple(place(i, j) for j in range(len(row))) for i, row in enumerate(table))
        last = cells[-1][-1]
        box = Box(at[0], at[1], last.x + wide - at[0], last.y + high - at[1], cells)
        for i, row in enumerate(cells):
            for j, cell in enumerate(row):
                depth = table[i][j] if kind == "weight" else None
                self._cell(cell, texts[i][j], kind if seen[i][j] else "hidden", depth)
            if names is not None:
                self.label(str(names[i]), (at[0] - 8, row[0].left[1]), anchor="end")
        if head:
            self.label(head, (box.top[0], at[1] - 14), bold=True, kind=None if kind == "weight" else kind)
        if rows:
            words = 8 * max(len(str(n)) for n in names) if names is not None else 0
            self._axis(rows, (at[0] - 18 - words, box.left[1]), 0, box.h / 2, 11)
        if cols:
            self._axis(cols, (box.bottom[0], box.bottom[1] + 12), box.w / 2, 0, 4 * len(cols) + 3)
        return box

    def box(self, text, at, size, kind=None, corner=6):
        """A part of a model, with its name inside."""
        place = Box(*at, *size)
        self._cell(place, "", kind, None, corner)
        if text:
            self.label(text, place.middle)
        return place

    def label(self, text, at, *, anchor="middle", bold=False, kind=None, soft=False):
        """Words whose middle, "start" or "end" is at a point; the shape of a kind stands before them."""
        width, shape = (9.0 if bold else 7.8) * len(text), 18 if kind else 0
        left = at[0] - {"start": 0, "middle": (width + shape) / 2, "end": width + shape}[anchor]
        if kind:
            self.mark(kind, (left + 7, at[1]))
        x = {"start": left + shape, "middle": left + shape + width / 2, "end": at[0]}[anchor]
        names = " ".join(["l", *["b"] * bold, *["m"] * soft, *[anchor] * (anchor != "middle")])
        self._piece(f'<text class="{names}" x="{_n(x)}" y="{_n(at[1] + 5)}">{escape(text)}</text>',
                    left, at[1] - 9, left + shape + width, at[1] + 9)  # fmt: skip

    def mark(self, kind, at):
        """The shape of a kind, its middle at a point."""
        _check_kind(kind)
        if kind in ("weight", "hidden"):
            return self._cell(Box(at[0] - 6.5, at[1] - 6.5, 13, 13), "", kind, 0.7)
        moved = f'class="{kind} mark" transform="translate({_n(at[0])} {_n(at[1])})"'
        self._piece(f"<g {moved}>{_SHAPES[kind]}</g>", at[0] - 7, at[1] - 7, at[0] + 7, at[1] + 7)

    def swatch(self, rgb, at):
        """A disc in a colour that is itself a datum: red, green and blue from 0 to 1."""
        colour = ",".join(str(round(255 * min(1.0, max(0.0, float(c))))) for c in rgb)
        disc = f'<circle class="swatch" cx="{_n(at[0])}" cy="{_n(at[1])}" r="9" fill="rgb({colour})"/>'
        self._piece(disc, at[0] - 10, at[1] - 10, at[0] + 10, at[1] + 10)

    def arrow(self, *points, kind=None, tip=True):
        """A line through points with a tip at its end; a Box at either end is met at the edge that faces it."""
        _check_kind(kind)
        if len(points) < 2 or any(isinstance(p, Box) for p in points[1:-1]):
            raise ValueError(f"an arrow through {points!r}: give two or more points; a Box may be first or last")
        centres = [p.middle if isinstance(p, Box) else p for p in points]
        line = [_facing(points[0], centres[1]), *centres[1:-1], _facing(points[-1], centres[-2])]
        (x1, y1), (x2, y2) = line[-2:]
        long = math.hypot(x2 - x1, y2 - y1) or 1.0
        u, v = (x2 - x1) / long, (y2 - y1) / long
        shaft = [*line[:-1], (x2 - 6 * u * tip, y2 - 6 * v * tip)]
        wings = [(x2, y2), (x2 - 8 * u - 4 * v, y2 - 8 * v + 4 * u), (x2 - 8 * u + 4 * v, y2 - 8 * v - 4 * u)]
        path = lambda points: "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        head = f'<path class="tip" d="{path(wings)}z"/>' if tip else ""
        (xs, ys), name = zip(*line, strict=True), kind or "ink"
        self._piece(f'<g class="{name}"><path d="{path(shaft)}"/>{head}</g>', min(xs), min(ys), max(xs), max(ys))

    def brace(self, box, text=None, side="bottom"):
        """A curly brace along the "bottom" or the "right" edge of a Box."""
        if side not in ("bottom", "right"):
            raise ValueError(f"side is {side!r}: a brace stands at the bottom or on the right")
        flat, (right, low), (cx, cy) = side == "bottom", (box.x + box.w, box.y + box.h), box.middle
        x, y, turn, long = (box.x, low + 6, 0, box.w) if flat else (right + 6, low, -90, box.h)
        path = f"M0 0q0 6 6 6H{_n(long / 2 - 6)}q6 0 6 6q0-6 6-6H{_n(long - 6)}q6 0 6-6"
        svg = f'<path class="soft" transform="translate({_n(x)} {_n(y)}) rotate({turn})" d="{path}"/>'
        self._piece(svg, box.x, box.y, right + 18 * (not flat), low + 18 * flat)
        if text:
            self.label(text, (cx, low + 30) if flat else (right + 24, cy), anchor="middle" if flat else "start")

    def node(self, at, plus=False):
        """A dot where something is read; with `plus`, a circle where something is added."""
        (x, y), r = at, 6 if plus else 2.6
        cross = f'<path d="M{_n(x - r)} {_n(y)}h{2 * r}M{_n(x)} {_n(y - r)}v{2 * r}"/>' if plus else ""
        disc = f'<circle class="{"ring" if plus else "tip"}" cx="{_n(x)}" cy="{_n(y)}" r="{r}"/>'
        self._piece(f"<g>{disc}{cross}</g>", x - r, y - r, x + r, y + r)

    @contextmanager
    def group(self, look):
        """What is drawn inside stands back ("dim") or out ("lit")."""
        if look not in ("dim", "lit"):
            raise ValueError(f"look is {look!r}: a group is dim or lit")
        outside, self.pieces = self.pieces, []
        yield
        self.pieces = [*outside, f'<g class="{look}">{"".join(self.pieces)}</g>']

    def svg(self, reach=None, pieces=None):
        """The picture alone; `reach` and `pieces` are given by who shows several in one frame."""
        if not self.pieces:
            raise ValueError(f"nothing is drawn yet on {self.alt!r}")
        left, top, right, bottom = reach or self.reach
        x, y = math.floor(left) - 4, math.floor(top) - 4
        w, h = math.ceil(right) + 4 - x, math.ceil(bottom) + 4 - y
        style = f"max-width:{round(w * LARGEST / LETTER)}px;min-width:{math.ceil(w * SMALLEST / LETTER)}px"
        return (f'<svg viewBox="{x} {y} {w} {h}" style="{style}" role="img" aria-label="{escape(self.alt)}">'
                f"{''.join(pieces or self.pieces)}</svg>")  # fmt: skip

    def _repr_html_(self):
        note = f'<p class="f">{STRIPPED}{escape(self.alt)}</p>'
        return f'<div class="txd">{style()}{note}<div class="s">{self.svg()}</div></div>'

    def __repr__(self):
        return f"Drawing: {self.alt}"

    def _piece(self, svg, left, top, right, bottom):
        a, b, c, d = self.reach
        self.reach = (min(a, left), min(b, top), max(c, right), max(d, bottom))
        self.pieces.append(svg)

    def _axis(self, letter, at, across, down, room):
        """A letter in the middle of a thin line, with some room around it."""
        (x, y), cut = at, min(1.0, room / max(across, down))
        ends = [(x + k * across, y + k * down) for k in (-1, -cut, cut, 1)]
        path = "M{} {}L{} {}M{} {}L{} {}".format(*(_n(c) for end in ends for c in end))
        self._piece(f'<path class="soft" d="{path}"/>', x, y, x, y)
        self.label(letter, at)

    def _cell(self, place, text, kind, depth, corner=3):
        _check_kind(kind)
        fill = f' fill-opacity="{_n(_DEEPEST * float(depth), 2)}"' if kind == "weight" else ""
        inside = (f'<rect x="{_n(place.x)}" y="{_n(place.y)}" width="{_n(place.w)}" height="{_n(place.h)}" '
                  f'rx="{min(corner, round(place.h / 8))}"{fill}/>')  # fmt: skip
        if kind == "hidden":
            inside += f'<path d="{_hatching(place)}"/>'
        elif text and place.h > LETTER + 3:
            inside += f'<text x="{_n(place.middle[0])}" y="{_n(place.middle[1] + 5)}">{escape(text)}</text>'
        names = f' class="{kind}"' if kind else ""
        self._piece(f"<g{names}>{inside}</g>", place.x, place.y, place.x + place.w, place.y + place.h)


@cache
def style():
    """The style that every output carries: the colours, and `drawing.css`."""
    names = "".join(f"--{kind}:{colour};" for kind, colour in COLOURS.items())
    rules = resources.files(__package__).joinpath("drawing.css").read_text(encoding="utf-8")
    return f"<style>.txd{{{names}}}\n{rules}</style>"


def _n(x, digits=1):  # a number without the digits that nobody sees
    return f"{round(float(x), digits) + 0:g}"


def _sheets(numbers):
    """(sheets, rows, cols) of a vector, a matrix or sheets, as lists."""
    numbers = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    inner, axes = numbers, 0
    while isinstance(inner, list | tuple) and len(inner):
        inner, axes = inner[0], axes + 1
    if axes not in (1, 2, 3) or isinstance(inner, list | tuple):
        raise ValueError(f"{axes} axes and {inner!r} inside: a grid has one, two or three, none empty")
    return [[numbers]] if axes == 1 else [numbers] if axes == 2 else numbers


def _texts(table, digits):
    """What the cells say: as many digits in each, and a minus as wide as a plus."""
    numbers = [float(x) for row in table for x in row if x is not None and not isinstance(x, str)]
    if digits is None:
        digits = next((n for n in (0, 1) if all(abs(round(x, n) - x) < 1e-6 for x in numbers)), 2)
    show = lambda x: f"{round(float(x), digits) + 0:.{digits}f}".replace("-", "−")
    return [["" if x is None else x if isinstance(x, str) else show(x) for x in row] for row in table]


def _hatching(place, step=7):
    """Diagonals through a rectangle."""
    path = ""
    for k in range(step, math.ceil(place.w + place.h), step):
        x1, y1, x2, y2 = max(0, k - place.h), min(k, place.h), min(k, place.w), max(0, k - place.w)
        path += f"M{_n(place.x + x1)} {_n(place.y + y1)}L{_n(place.x + x2)} {_n(place.y + y2)}"
    return path


def _facing(end, other, gap=5):
    """A point as it is; of a Box, the middle of the edge that faces the other point, and a little off."""
    if not isinstance(end, Box):
        return end
    (x, y), (cx, cy) = other, end.middle
    if abs(x - cx) * end.h >= abs(y - cy) * end.w:
        return (end.right[0] + gap, cy) if x > cx else (end.x - gap, cy)
    return (cx, end.bottom[1] + gap) if y > cy else (cx, end.y - gap)


def _check_kind(kind):
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: a colour has one meaning, and the meanings are {', '.join(KINDS)}")


def _check_grid(table, seen, kind, names):
    wide = sorted({len(row) for row in table})
    if len(wide) > 1:
        raise ValueError(f"rows of {wide} cells: all rows of a grid have the same number")
    if [len(row) for row in seen] != [len(row) for row in table]:
        raise ValueError(f"mask is ({len(seen)}, {len(seen[0])}), the grid is ({len(table)}, {wide[0]})")
    if names is not None and len(names) != len(table):
        raise ValueError(f"{len(names)} names for {len(table)} rows")
    wrong = [x for row in table for x in row if not isinstance(x, int | float) or not 0 <= x <= 1]
    if kind == "weight" and wrong:
        raise ValueError(f"a weight is {wrong[0]!r}: weights are drawn as depth, from 0 to 1")
