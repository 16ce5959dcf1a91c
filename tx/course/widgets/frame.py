"""What every widget is made of: one HTML string with the style, the table and the script inside."""

import hashlib
import json
from functools import cache
from html import escape
from importlib import resources

_MAX_BYTES = 30_000  # a page may hold several widgets, and every output is stored in the notebook

# Where the script runs, it puts the instructions in this sentence's place.
_STRIPPED = "To use this, run the cell or trust the notebook. It starts with these numbers:"


class Widget:
    """What a cell shows: `_repr_html_` for the page, the same facts as text for `repr`."""

    def __init__(self, html, text):
        self.html = html
        self.text = text

    def _repr_html_(self):
        return self.html

    def __repr__(self):
        return self.text


def assembled(kind, title, how, data, caption, head, rows):
    """A Widget out of its parts; the table is what survives stripping.

    Args:
        kind: the name of the widget's own script in this folder, without `.js`.
        title: the line above the widget.
        how: what a reader can do; the script shows it.
        data: what the script draws, as plain values.
        caption, head, rows: the table of the starting numbers, all of them text.

    Raises:
        ValueError: it takes more bytes than a page allows.
    """
    packed = json.dumps(data | {"how": how}, ensure_ascii=False, separators=(",", ":"))
    packed = packed.replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")
    digest = hashlib.sha256((title + packed).encode()).hexdigest()[:10]
    name = f"txw-{kind}-{digest}"
    cells = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    html = (
        f'<div class="txw" id="{name}" role="group" aria-label="{escape(title)}" '
        "data-lm-suppress-shortcuts>"  # JupyterLab would take the arrow keys
        f'<style>{_source("widget.css")}</style><div class="t">{escape(title)}</div>'
        f'<div class="n">{_STRIPPED}</div>'
        f"<details open><summary>The starting numbers as a table</summary>"
        f'<div class="w"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div></details>"
        f"<script>(function(root,d){{{_source('common.js')}{_source(f'{kind}.js')}}})"
        f"((document.currentScript||{{}}).parentNode||document.getElementById('{name}'),{packed});"
        f"</script></div>"
    )
    size = len(html.encode())
    if size > _MAX_BYTES:
        raise ValueError(
            f"this widget takes {size:,} bytes and a page allows {_MAX_BYTES:,}: "
            "show fewer tokens or fewer heads"
        )
    return Widget(html, _as_text(title, caption, head, rows))


@cache
def _source(name):
    """A script or the style of this folder; what a page does not need, lines of `//`, stays behind."""
    lines = resources.files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()
    return "\n" + "".join(f"{line}\n" for line in lines if not line.startswith("//"))


def _as_text(title, caption, head, rows):
    """Title, caption and an aligned table, for a terminal."""
    wide = [max(len(row[j]) for row in [head, *rows]) for j in range(len(head))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, wide, strict=True)) for row in [head, *rows]]
    return "\n".join([title, caption, *lines])


def plain(x):
    """Nested lists of numbers, whether x is a tensor, an array or nested lists already."""
    return x.tolist() if hasattr(x, "tolist") else [plain(y) for y in x] if _nested(x) else list(x)


def _nested(x):
    return any(hasattr(y, "__len__") or hasattr(y, "tolist") and y.shape for y in x)


def rounded(x):
    """As nested lists with three digits, so that the last bits of a float do not show."""
    x = plain(x)
    return [rounded(y) if isinstance(y, list) else round(float(y), 3) for y in x]


def point(v, digits):
    """The numbers of a vector as text: "1.40", or "(1.40, 0.20)"."""
    numbers = [f"{x:.{digits}f}" for x in v]
    return numbers[0] if len(v) == 1 else f"({', '.join(numbers)})"
