"""The widgets: one HTML string each, and what it does in a browser by mouse, touch and keyboard.

At the end the look of matplotlib's figures, which share their colours.
"""

import io
import itertools
import json
import math
import re
from html.parser import HTMLParser

import pytest
import torch

from tx import masks
from tx.course import figures, widgets

TOKENS = ["the", "cat", "sat", "on", "the", "mat"]
REAL = [False, True, True, True, True, False]
IDS = [0, 0, 0, 1, 1, 2]
KEYS = torch.tensor([[1.4, 0.2], [0.3, 1.5], [-1.2, -0.6]])  # (S, 2)
VALUES = torch.tensor([20.0, 60.0, 90.0])  # (S,)


def _retrieval(**more):
    return widgets.retrieval(torch.tensor([1.0, 0.4]), KEYS, VALUES, ["cat", "cow", "eel"], **more)


def _maps(H=3, T=4, S=6, seed=0):
    scores = torch.randn(H, T, S, generator=torch.Generator().manual_seed(seed))  # (H, T, S)
    return torch.softmax(2 * scores, dim=-1)  # (H, T, S)


def _all():
    return {
        "retrieval": _retrieval(),
        "vectors": widgets.retrieval([1, 0], KEYS, torch.eye(3), ["a", "b", "c"]),
        "heads": widgets.heads(TOKENS[2:], _maps(), keys=TOKENS),
        "map": widgets.attention_map(_maps()[0], TOKENS[2:], TOKENS),
        "mask": widgets.mask_editor(
            4, 6, tokens=TOKENS, start="causal() & window(3)", real=REAL, ids=IDS
        ),
        "mask of numbers": widgets.mask_editor(3, 5),
        "dial": widgets.rope_dial([1.0, 0.5], [0.3, 1.2], 0.6),
        "ruler": widgets.bucket_ruler(8, 32),
    }


# ── the string ───────────────────────────────────────────────────────────────────────────────────


class _Reader(HTMLParser):
    """Checks the nesting of tags and keeps what a sanitiser without scripts would leave."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def _read(html):
    reader = _Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", _all())
def test_one_string_the_same_every_time_without_other_hosts(name):
    html = _all()[name]._repr_html_()
    assert html == _all()[name]._repr_html_()
    assert len(html.encode()) <= 30_000
    foreign = set(re.findall(r"(?:https?:)?//[\w.]+", html)) - {"http://www.w3.org"}
    assert foreign == set()  # the one left is the name of SVG's namespace and is not requested
    assert "data-lm-suppress-shortcuts" in html  # else JupyterLab takes the arrow keys
    assert not re.search(r"@import|\burl\(|\bsrc=|\bhref=|fetch\(|import\(|XMLHttp", html)


@pytest.mark.parametrize("name", _all())
def test_what_stays_without_scripts_is_a_table_that_reads_well(name):
    widget = _all()[name]
    reader = _read(widget.html)
    assert "table" in reader.tags and "svg" not in reader.tags
    text = " ".join(reader.text)
    assert "function" not in text and "txw" not in text
    for line in repr(widget).splitlines()[2:]:  # the text form has the same rows
        assert all(cell in text for cell in re.split(r"  +", line.strip()))


def test_ids_are_unique_and_depend_on_content():
    ids = [i for w in _all().values() for i in _read(w.html).ids]
    assert len(ids) == len(set(ids)) == len(_all())


def test_numbers_in_the_fallback_are_right():
    text = repr(_retrieval(temperature=2.0))
    weights = torch.softmax(KEYS @ torch.tensor([1.0, 0.4]) / 2.0, dim=-1)  # (S,)
    assert f"{float(weights @ VALUES):.2f}" in text
    assert all(f"{float(w):.3f}" in text for w in weights)
    text = repr(widgets.mask_editor(4, 6, start="(causal() | prefix(5)) & documents(ids)", ids=IDS))
    keep = ((masks.causal() | masks.prefix(5)) & masks.documents(torch.tensor([IDS]))).dense(
        (1, 1, 4, 6)
    )  # (1, 1, T, S)
    shown = [[c == "●" for c in re.findall("[●·]", line)] for line in text.splitlines()[3:]]
    assert shown == keep[0, 0].tolist()


def test_text_is_escaped():
    bad = "</script><b>&"
    for widget in (
        widgets.heads([bad, "b"], _maps(1, 2, 2), title=bad, names=[bad]),
        widgets.mask_editor(1, 2, tokens=[bad, "b"]),
    ):
        assert widget.html.count("</script>") == 1 and "<b>" not in widget.html
        _read(widget.html)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: widgets.retrieval([1, 0, 0], KEYS, VALUES, list("abc")), "two axes"),
        (lambda: widgets.retrieval([1, 0], KEYS, VALUES, list("ab")), "3 keys, 3 values and 2"),
        (lambda: _retrieval(temperature=0.0), "temperature is 0.0"),
        (lambda: widgets.rope_dial([1, 0, 0], [1, 0], 0.6), "one pair"),
        (lambda: widgets.rope_dial([1, 0], [1, 0], 0.6, m=25), "from 0 to 24"),
        (lambda: widgets.bucket_ruler(8, 32, start=41), "from 0 to 40"),
        (lambda: widgets.heads(TOKENS, _maps()), r"map 0 is \(4, 6\), the tokens say \(6, 6\)"),
        (lambda: widgets.heads(TOKENS[2:], _maps(), keys=TOKENS, names=["a"]), "1 names for 3"),
        (lambda: widgets.heads(TOKENS, torch.randn(1, 6, 6)), "between 0 and 1"),
        (lambda: widgets.heads(["x"] * 40, _maps(12, 40, 40)), "fewer tokens or fewer heads"),
        (lambda: widgets.mask_editor(7, 6), "T is 7 and S is 6"),
        (lambda: widgets.mask_editor(2, 3, tokens=TOKENS), "tokens has 6 entries for S = 3"),
        (lambda: widgets.mask_editor(2, 3, start="causal() & (window(2) | prefix(1))"), "left to"),
        (lambda: widgets.mask_editor(2, 3, start="causal() & padding(real)"), "needs real="),
    ],
)
def test_bad_input_says_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────


def _out(page):
    return page.locator("[data-out]").first.inner_text().replace("−", "-")


def _live(page, words):
    """The live region says `words` once things have come to rest."""
    page.wait_for_function("w=>document.querySelector('[aria-live]').textContent.includes(w)", arg=words)


def _expected(query, temperature):
    weights = torch.softmax(KEYS @ torch.tensor(query) / temperature, dim=-1)  # (S,)
    return f"{float(weights @ VALUES):.2f}"


def test_retrieval_by_keyboard(show):
    page = show(_retrieval())
    assert _out(page) == _expected([1.0, 0.4], 1.0)
    page.keyboard.press("Tab")  # the query comes first
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    assert _out(page) == _expected([0.4, 0.5], 1.0)
    handle = page.locator("g[role=slider]")
    assert handle.get_attribute("aria-valuetext") == "query at (0.40, 0.50)"
    _live(page, f"Read-out {_out(page)}")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert _out(page) == _expected([0.4, 0.5], 10**0.05)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert _out(page) == _expected([0.4, 0.5], math.sqrt(2))
    for _ in range(60):
        handle.press("ArrowLeft")  # it stops at the edge of the plane
    assert float(handle.get_attribute("aria-valuenow")) == float(
        handle.get_attribute("aria-valuemin")
    )


def test_retrieval_by_mouse(show):
    page = show(_retrieval(), width=900)
    box = page.locator("g[role=slider] path").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y - 30, steps=4)
    page.mouse.up()
    text = page.locator("g[role=slider]").get_attribute("aria-valuetext")
    query = [float(n) for n in re.findall(r"-?[\d.]+", text.replace("−", "-"))]
    assert query[0] < 0.8 and query[1] > 0.5
    assert _out(page) == _expected(query, 1.0)
    page.mouse.move(x, y)  # released: it stays
    assert _out(page) == _expected(query, 1.0)


def test_retrieval_by_touch(show):
    """Dragging moves the query and does not scroll the page under it."""
    page = show(_retrieval(), _retrieval())
    box = page.locator("g[role=slider] path").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)
    for dy in (0, -20, -40, -60, -80, None):
        kind = "touchEnd" if dy is None else "touchMove" if dy else "touchStart"
        points = [] if dy is None else [{"x": x, "y": y + dy}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    now = page.locator("g[role=slider] path").first.bounding_box()
    assert y - 80 == pytest.approx(now["y"] + now["height"] / 2, abs=4)
    assert page.evaluate("scrollY") == 0
    plane = page.locator("svg[role=group]").first.bounding_box()
    page.touchscreen.tap(plane["x"] + plane["width"] / 2, plane["y"] + plane["height"] / 2)
    assert _out(page) == _expected([0.0, 0.0], 1.0)


def test_the_dial_shows_the_score_that_depends_on_the_shift(show):
    page = show(widgets.rope_dial([1.0, 0.5], [0.3, 1.2], 0.6, m=3, n=1))
    q, k = torch.tensor([1.0, 0.5]), torch.tensor([0.3, 1.2])  # (2,)

    def score(shift):
        c, s = math.cos(0.6 * shift), math.sin(0.6 * shift)
        return f"{float(q @ torch.tensor([[c, s], [-s, c]]) @ k):.3f}"

    assert _out(page) == score(2)
    sliders = page.locator("input[type=range]")
    sliders.nth(2).press("ArrowRight")  # both move
    assert _out(page) == score(2)
    sliders.nth(1).press("ArrowRight")  # the key alone
    assert _out(page) == score(1)
    _live(page, "shift 1, score")
    for _ in range(30):
        sliders.nth(2).press("ArrowRight")  # at the end both stay
    assert _out(page) == score(1)


def test_the_ruler_tells_the_bucket_of_a_distance(show):
    page = show(widgets.bucket_ruler(8, 32, start=2))
    assert _out(page) == "bucket 2 of a decoder, 2 or 6 of an encoder"
    page.locator("input[type=range]").press("End")
    assert _out(page) == "bucket 7 of a decoder, 3 or 7 of an encoder"


def test_heads_by_keyboard_and_mouse(show):
    maps = _maps()
    page = show(widgets.heads(TOKENS[2:], maps, keys=TOKENS), width=900)

    def check(head, query):
        shown = page.locator(".b .r:not(.m)").all_inner_texts()
        assert shown == [f"{round(1000 * float(w)) / 1000:.3f}" for w in maps[head, query]]
        assert page.locator("[role=radio][aria-checked=true]").inner_text() == f"head {head}"

    check(0, 3)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    check(2, 3)
    page.keyboard.press("Tab")  # one stop for all heads, one for all rows
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    check(2, 0)
    page.keyboard.press("ArrowLeft")
    check(1, 0)
    _live(page, "head 1, query sat: largest weight")
    page.locator("[role=radio]").nth(0).click()
    page.locator("g[role=button]").nth(2).hover()
    check(0, 2)
    titles = page.locator("g[role=button] rect title").all_text_contents()
    assert f"head 0, query sat, key the: {float(maps[0, 0, 0]):.3f}" in titles


def _grid(page):
    """The mask that the page shows, as booleans."""
    rows = page.locator("[role=row]").all()
    return [
        [c.get_attribute("aria-selected") == "true" for c in row.locator("[role=gridcell]").all()]
        for row in rows
    ]


def _defined(page):
    """The tensors that the widget spells out for its expression."""
    lines = [code.inner_text() for code in page.locator("code.y").all()]
    return {name: eval(what, {"torch": torch}) for name, what in (li.split(" = ") for li in lines)}


def _by_tx(expression, T, S=6):
    names = {name: getattr(masks, name) for name in dir(masks)}
    names |= {"real": torch.tensor([REAL]), "ids": torch.tensor([IDS])}  # (1, S), (1, S)
    mask = eval(expression, names)  # the very text that the widget shows
    return mask.dense((1, 1, T, S)).expand(1, 1, T, S)[0, 0].tolist()


@pytest.mark.parametrize("T", [1, 4, 6])
def test_mask_editor_agrees_with_tx(show, T):
    """Every ordered pick of up to three blocks, every & and |: the shown expression is the grid."""
    page = show(widgets.mask_editor(T, 6, tokens=TOKENS, real=REAL, ids=IDS, start="everything()"))
    kinds = ["causal", "window", "prefix", "padding", "documents"]
    picks = [p for n in range(3) for p in itertools.permutations(kinds, n)]
    picks += list(itertools.permutations(kinds, 3))[:: 4 if T == 4 else 12]
    seen = set()
    for pick in picks:
        for ops in itertools.product("&|", repeat=max(0, len(pick) - 1)):
            expression, grid = page.evaluate(
                """([pick, ops]) => {
                let x; while ((x = document.querySelector('[aria-label^=remove]'))) x.click();
                pick.forEach(k => document.querySelector(`[data-add=${k}]`).click());
                ops.forEach((o, i) => { const b = document.querySelectorAll('[aria-label^=combine]')[i];
                    if (b.textContent != o) b.click(); });
                return [document.querySelector('[data-out]').textContent,
                    [...document.querySelectorAll('[role=row]')].map(r => [...r.querySelectorAll(
                        '[role=gridcell]')].map(c => c.getAttribute('aria-selected') == 'true'))]}""",
                [list(pick), list(ops)],
            )
            assert grid == _by_tx(expression, T), expression
            seen.add(expression)
    assert len(seen) == sum(2 ** max(0, len(p) - 1) for p in picks)
    assert T != 4 or any(e.startswith("(") for e in seen)


def test_mask_editor_spells_out_what_its_expression_names(show):
    start = "causal() & padding(real) & documents(ids)"
    defined = _defined(show(widgets.mask_editor(4, 6, start=start, real=REAL, ids=IDS)))
    assert defined["real"].tolist() == [REAL] and defined["ids"].tolist() == [IDS]
    assert defined["real"].dtype == torch.bool


@pytest.mark.parametrize("W", [1, 2, 6])
def test_mask_editor_takes_other_windows_and_lengths(show, W):
    page = show(widgets.mask_editor(4, 6, start=f"window({W}) | prefix(0)"))
    assert _grid(page) == _by_tx(f"window({W}) | prefix(0)", 4)
    page.locator("input[type=number]").nth(1).fill("5")
    assert _out(page) == f"window({W}) | prefix(5)"
    assert _grid(page) == _by_tx(_out(page), 4)
    page.locator("input[type=number]").first.fill("9")  # wider than the row: refused
    assert _out(page) == f"window({W}) | prefix(5)"


def test_mask_editor_by_keyboard(show):
    page = show(widgets.mask_editor(4, 6, tokens=TOKENS, real=REAL, ids=IDS))
    add = page.locator("[data-add=window]")
    add.focus()
    page.keyboard.press("Enter")
    assert _out(page) == "causal() & window(3)"
    _live(page, "causal() & window(3): 12 of 24 cells are visible")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "remove window"
    page.locator("[aria-label^=combine]").press("Enter")
    assert _out(page) == "causal() | window(3)"
    assert page.evaluate("document.activeElement.textContent") == "|"
    page.locator("input[type=range]").press("ArrowLeft")
    assert len(_grid(page)) == 3
    cell = page.locator("[role=gridcell][tabindex='0']")
    assert cell.count() == 1  # the grid is one stop
    cell.focus()
    before = _grid(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    after = _grid(page)
    changed = [(i, j) for i in range(3) for j in range(6) if before[i][j] != after[i][j]]
    assert changed == [(1, 1)]
    assert _out(page) == "as_mask(keep)"
    assert _defined(page)["keep"].tolist() == after
    page.get_by_text("undo changes by hand").press("Enter")
    assert _grid(page) == before and _out(page) == "causal() | window(3)"


def test_mask_editor_marks_empty_rows_and_toggles_by_touch(show):
    page = show(widgets.mask_editor(6, 6, tokens=TOKENS, real=REAL, start="causal() & padding(real)"))
    counts = [row.locator("text").last.inner_html() for row in page.locator("[role=row]").all()]
    assert [sum(r) for r in _grid(page)] == [0, 1, 2, 3, 4, 4]
    assert "0 empty" in page.locator("[role=row]").first.text_content(), counts
    note = page.locator(".o").inner_text()
    assert "Sees nothing, so its output is zeros: query at position 0." in note
    page.locator("[role=row]").first.locator("[role=gridcell]").first.tap()
    assert _grid(page)[0][0]
    assert "Every query sees at least one key" in page.locator(".o").inner_text()


def test_several_widgets_on_a_page_do_not_meet(show):
    """The same widget twice: using one leaves the other alone."""
    page = show(_retrieval(), _retrieval(), *_all().values())
    first, second = (page.locator(".txw").nth(k) for k in (0, 1))
    before = second.locator("[data-out]").inner_text()
    first.locator("g[role=slider]").press("Shift+ArrowLeft")
    assert first.locator("[data-out]").inner_text() != before
    assert second.locator("[data-out]").inner_text() == before
    assert page.locator("svg").count() > 8


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", _all())
def test_on_a_phone_in_both_themes(show, name, theme):
    page = show(_all()[name], theme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate(
        "[...document.querySelectorAll('svg text,button,.b span')].filter(e=>e.textContent&&"
        "e.getBoundingClientRect().height<10).map(e=>e.textContent)"
    )
    assert small == []
    ink, ground = page.evaluate(
        "[getComputedStyle(document.querySelector('.txw svg text')||document.body).fill,"
        "getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(float, re.findall(r"[\d.]+", c)[:3])) for c in (ink, ground)]
    assert (light[0] < light[1]) == (theme == "light")
    names = page.evaluate(
        "[...document.querySelectorAll('button,input,[tabindex]')].filter(e=>"
        "!(e.getAttribute('aria-label')||e.textContent||e.labels?.length)).length"
    )
    assert names == 0


@pytest.mark.parametrize("name", _all())
def test_focus_can_be_seen(show, name):
    page = show(_all()[name])
    page.keyboard.press("Tab")
    outline = page.evaluate(
        "(s=>[s.outlineStyle,s.outlineWidth])(getComputedStyle(document.activeElement))"
    )
    assert name == "map" or outline == ["solid", "3px"]


def test_table_stays_open_where_scripts_do_not_run(show):
    page = show(*_all().values(), stripped=True)
    assert page.locator("table").count() == len(_all())
    assert all(table.is_visible() for table in page.locator("table").all())
    assert page.locator("svg").count() == 0


def test_data_in_the_script_is_json():
    for widget in _all().values():
        packed = re.search(r"document\.getElementById\('[\w-]+'\),(.*)\);</script>", widget.html)
        assert isinstance(json.loads(packed[1]), dict)


# ── figures ──────────────────────────────────────────────────────────────────────────────────────

COLOURS = [figures.BLUE, figures.ORANGE, figures.GREEN, figures.VIOLET]
# Linear RGB as someone without the long- or middle-wave cone sees it (Machado et al. 2009, severity 1).
BLINDNESS = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


def _linear(colour):
    """Linear RGB of "#rrggbb"."""
    rgb = torch.tensor([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])  # (3,)
    return torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)  # (3,)


def _contrast(one, other):
    """Contrast ratio by WCAG 2."""
    low, high = sorted(
        float(_linear(c) @ torch.tensor([0.2126, 0.7152, 0.0722])) for c in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#14181e"])
@pytest.mark.parametrize("colour", [*COLOURS, figures.INK])
def test_colours_are_seen_on_both_grounds(colour, ground):
    assert _contrast(colour, ground) >= 3


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_differ_for_the_colour_blind(kind):
    """Any two are at least 25 of CIELAB's units apart (the dashes differ as well)."""
    seen = [_lab(torch.tensor(BLINDNESS[kind]) @ _linear(c)) for c in COLOURS]  # (3,)  each of four
    assert all((one - other).norm() >= 25 for one, other in itertools.combinations(seen, 2))


def _lab(linear):
    """CIELAB of linear RGB (D65)."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = torch.tensor(to_xyz) @ linear.clamp(0, 1) / torch.tensor([0.9505, 1.0, 1.089])  # (3,)
    f = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 16 / 116)  # (3,)
    return torch.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])  # (3,)


def test_widgets_use_the_same_colours():
    html = _retrieval().html
    assert f"--a:{figures.BLUE}" in html and f"--b:{figures.ORANGE}" in html


def test_a_figure_is_the_same_file_every_time_and_has_no_ground():
    import matplotlib.pyplot as plt

    files = []
    with plt.rc_context():
        figures.use()
        assert plt.rcParams["figure.figsize"][0] <= 6.2
        assert min(plt.rcParams[k] for k in ("font.size", "xtick.labelsize", "legend.fontsize")) >= 10
        for _ in range(2):
            figure, axes = plt.subplots()
            axes.imshow([[0.2, 0.8]])
            axes.plot([0, 1], [0, 0.4], label="a line")
            axes.legend()
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            plt.close(figure)
            files.append(file.getvalue())
    assert files[0] == files[1]
    assert "#ffffff" not in files[0]
