"""The drawing kit, the ready drawings, and the stepper: what is written, and what a browser makes of it."""

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_widgets
import torch

from tx.course import drawing, figures, pictures, widgets
from tx.course.drawing import COLOURS, KINDS, Drawing
from tx.course.overview import NEXT, PARTS, whole

JARS = ["sugar", "honey", "ginger", "chilli"]
QUERY = torch.tensor([1.0, 0.0])  # (d_k,)
KEYS = torch.tensor([[4.0, 0.0], [3.0, 1.0], [2.0, 3.0], [0.0, 4.0]])  # (S, d_k)
VALUES = torch.tensor([[1.0, 1.0, 1.0], [0.9, 0.6, 0.1], [0.8, 0.7, 0.5], [0.8, 0.1, 0.1]])  # (S, d_v)


def _kit():
    """One drawing with everything in it."""
    d = Drawing("Everything that the kit can draw, once.")
    for i, kind in enumerate(KINDS):
        d.grid([0.25, 1.0], kind, at=(0, 60 * i), head=kind, names=["a & b"])
        d.mark(kind, (130, 60 * i))
    g = d.grid(torch.eye(3), at=(180, 0), rows="T", cols="S", mask=torch.ones(3, 3).tril().bool())
    d.grid(torch.zeros(2, 2, 3), "query", at=(180, 150), rows="T", cols="d_k")
    d.brace(g, "d_v"), d.brace(g, "T", side="right")
    with d.group("lit"):
        box = d.box("norm <x>", (520, 150), (80, 30))  # too far for a phone: the kit's drawing scrolls there
    with d.group("dim"):
        d.arrow(g, box, kind="gradient")
    d.node((330, 250)), d.node((350, 250), plus=True)
    d.swatch((1, 0.5, 0), (380, 250))
    return d


def _steps():
    return pictures.query_meets_keys(QUERY, KEYS, VALUES, JARS, what="jar", swatches=True)


def _turning():
    return pictures.turning_pair((1.0, 0.5), (0.3, 1.2), 0.6, [(3, 1), (5, 3), (5, 4)])


def _still():
    ready = {f"{family} {lit}": whole(lit, family) for family, parts in PARTS.items() for lit in [None, *parts]}
    triangle = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]  # (T, S)
    doors = {
        "doors": pictures.three_doors(), "count": pictures.causal_count(triangle, [1, 0, 0, 0, 0]),
        "layouts": pictures.two_layouts([0, 2, 4, 6, 1, 3, 5, 7]),
    }
    return {"kit": _kit(), "legend": pictures.legend(), **ready, **doors}


def _all():
    return {**_still(), "steps": _steps(), "turning": _turning()}


NAMES = ["kit", "legend", "decoder None", "encoder outputs", "encoder-decoder cross-attention", "steps"]


def _pictures(html):
    """The pictures in a piece of HTML, read as XML."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"(?s)<svg.*?</svg>", html)]


# ── the string ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_the_same_characters_every_time_and_nothing_from_elsewhere(name):
    html = _all()[name]._repr_html_()
    assert html == _all()[name]._repr_html_()
    assert len(html.encode()) < (32_000 if name == "steps" else 20_000)
    assert not re.search(r"https?:|@import|\burl\(|\bsrc=|\bhref=|fetch\(", html)
    test_widgets._read(html)  # tags are nested
    assert len(re.findall(r"\bid=", html)) == (name == "steps")


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_xml_and_says_what_one_sees(name):
    drawn = _pictures(_all()[name]._repr_html_())
    assert drawn
    for svg in drawn:
        assert svg.get("role") == "img" and len(svg.get("aria-label").split()) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_letters_are_11_px_high_on_a_phone(name):
    """From the numbers of the picture: what it gets on a page of 390 px, and what it insists on."""
    for svg in _pictures(_all()[name]._repr_html_()):
        wide = float(svg.get("viewBox").split()[2])
        least, most = (float(re.search(rf"{side}-width:(\d+)px", svg.get("style"))[1]) for side in ("min", "max"))
        room = 390 - 2 * 16
        shown = max(least, min(most, room))
        assert drawing.LETTER * shown / wide >= 11
        assert drawing.LETTER * most / wide <= 16.1
        assert name == "kit" or least <= room, "a ready drawing fits a phone without scrolling"
    sizes = re.findall(r"font(?:-size)?:(?:\d+ )?(\d+)px", drawing.style() + widgets.steps._source("steps.css"))
    assert sizes and all(int(size) >= drawing.LETTER for size in sizes)


def test_everything_is_inside_the_picture():
    for svg in _pictures("".join(shown._repr_html_() for shown in _all().values())):
        x, y, w, h = map(float, svg.get("viewBox").split())
        for e in svg.iter():
            if e.tag in ("rect", "text"):
                assert x <= float(e.get("x")) <= x + w and y <= float(e.get("y")) <= y + h
            if e.tag == "rect":
                assert float(e.get("x")) + float(e.get("width")) <= x + w
                assert float(e.get("y")) + float(e.get("height")) <= y + h


def test_colours_come_from_the_table_and_from_data_alone():
    for name, shown in _all().items():
        html = shown._repr_html_()
        assert set(re.findall(r"#[0-9a-f]{3,8}\b", html)) == set(COLOURS.values()), name
        data = re.findall(r'<circle class="swatch"[^>]*fill="rgb\(', html)
        assert len(data) == len(re.findall(r"rgba?\(|hsl\(", html))
        assert set(re.findall(r"var\(--(\w+)", html)) <= {*COLOURS, "c"}


def test_plots_have_the_colours_of_drawings():
    named = {"key": figures.BLUE, "query": figures.ORANGE, "value": figures.GREEN, "out": figures.VIOLET}
    assert named == {kind: COLOURS[kind] for kind in named}


@pytest.mark.parametrize("ground", ["#ffffff", "#14181e"])
def test_colours_are_seen_on_both_grounds(ground):
    assert all(test_widgets._contrast(colour, ground) >= 3 for colour in COLOURS.values())


@pytest.mark.parametrize("ground, ink", [("#ffffff", "#222832"), ("#14181e", "#ced6dd")])
def test_numbers_stand_out_on_the_deepest_blue(ground, ink):
    mixed = zip(*([int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in (COLOURS["key"], ground)), strict=True)
    deepest = "#" + "".join(f"{round(0.6 * a + 0.4 * b):02x}" for a, b in mixed)
    d = Drawing("A weight of one, the largest there is.")
    d.grid([1.0], "weight")
    assert 'fill-opacity="0.6"' in d.svg()
    assert test_widgets._contrast(ink, deepest) >= 4.5


def test_a_shape_repeats_every_colour():
    d = {kind: Drawing("The shape of a kind, drawn alone.") for kind in KINDS}
    for kind, one in d.items():
        one.mark(kind, (0, 0))
    shapes = {kind: re.sub(r'class="[^"]*"', "", one.svg()) for kind, one in d.items()}
    assert all(re.sub(r"aria.*?>", "", a) != re.sub(r"aria.*?>", "", b)
               for a, b in itertools.combinations(shapes.values(), 2))  # fmt: skip


# ── where things stand ───────────────────────────────────────────────────────────────────────────


def test_a_first_axis_goes_down_and_a_last_one_right():
    d = Drawing("Two sheets of three rows and four columns.")
    box = d.grid(torch.arange(24).view(2, 3, 4))
    rows = [row[0] for row in box.cells]
    assert len(box.cells) == 6 and {len(row) for row in box.cells} == {4}
    assert [c.y for c in rows] == sorted({c.y for c in rows}) and len({c.x for c in rows}) == 1
    assert rows[3].y - rows[2].y > rows[1].y - rows[0].y  # a gap between the sheets
    first = box.cells[0]
    assert [c.x for c in first] == sorted({c.x for c in first}) and len({c.y for c in first}) == 1
    assert re.findall(r"<text[^>]*>(\d+)<", d.svg()) == [str(n) for n in range(24)]


@pytest.mark.parametrize(
    "numbers, said",
    [([1, 2], ["1", "2"]), ([1, 0.5], ["1.0", "0.5"]), ([1 / 3, -2], ["0.33", "−2.00"]),
     ([-0.001, 1.25], ["0.00", "1.25"])],
)
def test_cells_of_a_grid_have_the_same_digits(numbers, said):
    d = Drawing("Two numbers in a row, no more.")
    d.grid(torch.tensor(numbers))
    assert re.findall(r"<text[^>]*>([^<]*)<", d.svg()) == said


def test_hidden_cells_show_no_number_and_depth_is_the_weight():
    d = Drawing("Three weights, and one of them is hidden.")
    d.grid([0.5, 0.25, 0.25], "weight", mask=[True, True, False])
    assert re.findall(r'fill-opacity="([^"]*)"', d.svg()) == ["0.3", "0.15"]
    assert re.findall(r"<text[^>]*>([^<]*)<", d.svg()) == ["0.50", "0.25"]
    assert d.svg().count('class="hidden"') == 1


def test_an_arrow_meets_a_box_at_the_edge_that_faces():
    d = Drawing("An arrow from one box to another.")
    d.arrow(d.box("", (0, 0), (40, 20)), d.box("", (100, 0), (40, 20)))
    assert 'd="M45 10L89 10"' in d.pieces[-1] and 'd="M95 10L' in d.pieces[-1]
    d.arrow(d.box("", (0, 0), (40, 20)), d.box("", (0, 100), (40, 20)), tip=False)
    assert 'd="M20 25L20 95"' in d.pieces[-1] and "tip" not in d.pieces[-1]


def test_the_numbers_of_the_look_up_are_right():
    weights = torch.softmax(KEYS @ QUERY, dim=-1)  # (S,)
    last = _pictures(_steps().html)[-1]
    said = [e.text for e in last.iter("text")]
    assert {f"{x:.2f}" for x in [*weights.tolist(), *(weights @ VALUES).tolist()]} <= set(said)
    half = pictures.query_meets_keys(QUERY, KEYS, VALUES, JARS, scale=0.5)
    halved = torch.softmax(KEYS @ QUERY / 2, dim=-1)  # (S,)
    assert {f"{w:.2f}" for w in halved.tolist()} <= {e.text for e in _pictures(half.html)[-1].iter("text")}


def test_a_lit_part_is_lit_alone():
    for family, parts in PARTS.items():
        assert 'class="lit"' not in whole(None, family).svg() and 'class="dim"' not in whole(None, family).svg()
        drawn = {lit: whole(lit, family).svg() for lit in parts}
        assert len(set(drawn.values())) == len(parts)
        for lit, svg in drawn.items():
            assert 'class="lit"' in svg and 'class="dim"' in svg and svg.count("here") == 2, lit
            assert f"You are here: {lit}." in svg


def test_every_chapter_opens_with_the_whole():
    """Under its title, with one part lit; and the landing page, where nothing is."""
    from tx.course.authoring import notebooks

    book = Path(__file__).resolve().parents[1] / "book"
    lit = []
    for path in sorted(book.glob("*.ipynb")):
        first = next(cell for cell in notebooks.read(path).cells if cell.cell_type == "code")
        html = "".join(output.get("data", {}).get("text/html", "") for output in first.outputs)
        lit += re.findall(r"You are here: ([\w -]+)\.\"", html)
        assert whole(lit[-1])._repr_html_() == html, f"{path.name}: run it again"
    assert len(lit) == len(set(lit)) == len(list(book.glob("*.ipynb")))
    assert ":::{drawing} whole" in (book / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_next_token_of_the_drawing_is_a_models():
    import tx

    model, tokenizer = tx.load("smollm2-135m-instruct"), tx.load_tokenizer("smollm2-135m-instruct")
    ids = torch.tensor([tokenizer.encode("The animal didn't cross")])  # (1, T)
    with torch.no_grad():
        chances = model(ids)[0, -1].softmax(-1)  # (V,)
    best, where = chances.topk(len(NEXT))  # (N,), (N,)
    assert [tokenizer.decode([int(i)]).strip() for i in where] == list(NEXT)
    assert best.tolist() == pytest.approx(list(NEXT.values()), abs=0.006)


# ── wrong input ──────────────────────────────────────────────────────────────────────────────────

D = Drawing("A drawing that nothing is drawn on.")
ONE = (D, "A caption.")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: Drawing(""), "alt is '': say in a sentence what one should see"),
        (lambda: Drawing("figure.svg"), "say in a sentence"),
        (lambda: Drawing(None), "alt is None"),
        (lambda: D.grid([1], "blue"), "kind is 'blue': a colour has one meaning, and the meanings are query, key"),
        (lambda: D.grid([[1, 2], [3]]), r"rows of \[1, 2\] cells"),
        (lambda: D.grid(torch.zeros(2, 2, 2, 2)), "4 axes"),
        (lambda: D.grid(3.0), "0 axes and 3.0"),
        (lambda: D.grid([]), r"0 axes and \[\]"),
        (lambda: D.grid([0.5, 1.5], "weight"), "a weight is 1.5"),
        (lambda: D.grid([0.5, float("nan")], "weight"), "a weight is nan"),
        (lambda: D.grid([[1, 2]], mask=[[True]]), r"mask is \(1, 1\), the grid is \(1, 2\)"),
        (lambda: D.grid([[1], [2]], names=["a"]), "1 names for 2 rows"),
        (lambda: D.arrow((0, 0)), "two or more points"),
        (lambda: D.arrow((0, 0), drawing.Box(0, 0, 1, 1), (2, 2)), "may be first or last"),
        (lambda: D.mark("keys", (0, 0)), "kind is 'keys'"),
        (lambda: D.brace(drawing.Box(0, 0, 9, 9), side="under"), "side is 'under'"),
        (lambda: D.group("bright").__enter__(), "look is 'bright'"),
        (lambda: Drawing("Nothing at all is drawn here.").svg(), "nothing is drawn yet on 'Nothing at all"),
        (lambda: whole("atention"), "lit is 'atention': the parts of this drawing are tokens"),
        (lambda: whole("mask", "encoder"), "lit is 'mask'"),
        (lambda: whole(family="gpt"), "family is 'gpt': expected one of decoder, encoder"),
        (lambda: widgets.stepper([ONE, ONE], " "), "title is ' '"),
        (lambda: widgets.stepper([ONE], "One step"), "1 frames: a stepper needs two"),
        (lambda: widgets.stepper([ONE, "text"], "A step"), r"frame 2 is 'text': expected \(Drawing, caption\)"),
        (lambda: widgets.stepper([ONE, (D, "")], "A step"), "frame 2 has the caption ''"),
    ],
)
def test_wrong_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_text_is_escaped():
    d = Drawing('A "quoted" alt with <b> and & in it.')
    d.grid([["</svg><b>"]], names=["&"], head="<")
    (svg,) = _pictures(d._repr_html_())
    assert svg.get("aria-label") == d.alt and "<b>" not in d._repr_html_()
    html = widgets.stepper([(d, "<script>"), (d, "</script>")], "<i>").html
    assert html.count("<script>") == html.count("</script>") == 1 and "<i>" not in html


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────


def _step(page):
    """Which step is seen, by its number, its caption and its picture."""
    seen = [i for i, li in enumerate(page.locator(".txd li").all()) if li.is_visible()]
    assert len(seen) == 1
    assert page.locator(".txd .n").inner_text() == f"{seen[0] + 1} / {page.locator('.txd li').count()}"
    return seen[0]


@pytest.mark.browser
@pytest.mark.parametrize("theme, width", [("light", 900), ("dark", 900), ("light", 390), ("dark", 390)])
def test_a_stepper_by_keyboard(show, theme, width):
    page = show(_steps(), theme=theme, width=width)
    last = page.locator(".txd li").count() - 1
    assert _step(page) == 0
    page.keyboard.press("Tab")
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("ArrowRight", last),
                      ("Home", 0), ("ArrowLeft", 0), ("Alt+ArrowRight", 0)]:  # fmt: skip
        page.keyboard.press(key)
        assert _step(page) == step, key
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "next step"
    for step in [*range(1, last + 1), last]:
        page.keyboard.press("Enter")
        assert _step(page) == step
    page.keyboard.press("ArrowLeft")  # the button at its end keeps the focus, and the keys work
    assert _step(page) == last - 1
    test_widgets._live(page, f"Step {last}: ")
    page.wait_for_timeout(600)
    assert _step(page) == last - 1  # nothing moves by itself


@pytest.mark.browser
def test_a_stepper_by_mouse_and_touch(show):
    page = show(_steps(), _steps())
    places = []
    for move in ("next", "next", "previous"):
        button = page.locator(f"[aria-label='{move} step']").first
        button.tap() if move == "next" else button.click()
        places.append(button.bounding_box()["y"])
    first, second = (page.locator(".txd").nth(i).locator(".n").inner_text() for i in (0, 1))
    assert (first, second) == ("2 / 7", "1 / 7")  # two on a page do not meet
    assert len(set(places)) == 1  # the buttons stay where they are


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["kit", "legend", "decoder mask", "encoder-decoder cross-attention", "steps"])
def test_drawings_on_a_phone_in_both_themes(show, name, theme):
    shown = _all()[name]
    page = show(widgets.Widget(shown._repr_html_(), ""), theme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate(
        """[...document.querySelectorAll('.txd svg text')].map(e => [e.textContent, parseFloat(
        getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a]).filter(([t, px]) => px < 11)"""
    )
    assert small == []
    ink, ground = page.evaluate(
        "[getComputedStyle(document.querySelector('.txd text')).fill,"
        "getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(float, re.findall(r"[\d.]+", c)[:3])) for c in (ink, ground)]
    assert (light[0] < light[1]) == (theme == "light")


OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('.txd svg')) {
    const texts = [...svg.querySelectorAll('text')], frame = svg.getBoundingClientRect();
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push('cut off: ' + texts[i].textContent);
      boxes.slice(i + 1).forEach((b, j) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 5) found.push(texts[i].textContent + ' / ' + texts[i + 1 + j].textContent);
      });
    });
  }
  return found;
}"""


@pytest.mark.browser
def test_no_label_covers_another(show):
    ready = [widgets.Widget(shown._repr_html_(), "") for name, shown in _all().items() if name != "kit"]
    page = show(*ready, width=900)
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.browser
def test_all_steps_are_stacked_without_scripts(show):
    page = show(_steps(), stripped=True)
    items = page.locator(".txd li").all()
    tops = [item.bounding_box()["y"] for item in items]
    assert all(item.is_visible() and item.locator("svg").is_visible() for item in items)
    assert tops == sorted(set(tops)) and page.locator("button").count() == 0


@pytest.mark.browser
def test_focus_on_a_stepper_can_be_seen(show):
    page = show(_steps())
    for _ in range(3):
        page.keyboard.press("Tab")
        style = page.evaluate("(s => [s.outlineStyle, s.outlineWidth])(getComputedStyle(document.activeElement))")
        assert style == ["solid", "3px"]


@pytest.mark.browser
@pytest.mark.parametrize("motion, moves", [("reduce", 0), ("no-preference", 1)])
def test_reduced_motion_is_respected(show, motion, moves):
    page = show(_steps())
    page.emulate_media(reduced_motion=motion)
    page.locator("[aria-label='next step']").click()
    assert page.evaluate("document.querySelectorAll('.now .new').length") == 1
    assert page.evaluate("document.getAnimations().length") == moves


@pytest.mark.browser
def test_what_is_left_where_style_and_scripts_are_stripped(show):
    html = re.sub(r"(?s)<(style|script)>.*?</\1>", "", _steps().html)
    page = show(widgets.Widget(html, ""))
    assert page.get_by_text("run the cell or trust the notebook").is_visible()
    assert not show(_steps()).get_by_text("run the cell or trust the notebook").is_visible()


def test_a_turned_pair_keeps_its_score_while_the_shift_stays():
    scores = [re.search(r"the score (-?\d+\.\d+)", svg.get("aria-label"))[1] for svg in _pictures(_turning().html)]
    assert scores[0] == scores[1] == "1.30" != scores[2]


def test_what_the_queries_read_counts_their_tokens():
    triangle = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]  # (T, S)
    (svg,) = _pictures(pictures.causal_count(triangle, [1, 0, 0, 0])._repr_html_())
    assert [e.text for e in svg.iter("text")][-5:-1] == ["1.00", "0.50", "0.33", "0.25"]
