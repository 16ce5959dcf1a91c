"""The site, built from the sources as they are now: links, and what a reader's browser makes of it.

The browser tests need a Chromium. Where there is none they are skipped with a sentence; in CI
(environment CI=true) they fail instead.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import nbformat
import pytest
from bs4 import BeautifulSoup
from filelock import FileLock

import tx

ROOT = Path(__file__).resolve().parents[1]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


# ── the built site, served ───────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """A folder that all workers of a run see: the site is built once, and surveyed once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    folder.mkdir(exist_ok=True)
    return folder


def build(root, output):
    """Build the book in `root` as `make book` does -> exit status, what was said."""
    command = [Path(sys.executable).with_name("jupyter-book"), "build", "book", "--config", "_config.yml",
               "--path-output", output, "-W", "-n", "--keep-going"]  # fmt: skip
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    return done.returncode, re.sub(r"\x1b\[[\d;]*m", "", done.stderr + done.stdout)


@pytest.fixture(scope="session")
def site(shared):
    """The folder of the site, built afresh from the sources."""
    with FileLock(f"{shared}/build.lock"):
        if not (shared / "built").exists():
            code, said = build(ROOT, shared)
            (shared / "built").write_text(said if code else "")
    failed = (shared / "built").read_text()
    if failed:
        wrong = [line for line in failed.splitlines() if "WARNING" in line or "ERROR" in line]
        said = "\n".join(wrong) or failed[-4000:]
        pytest.fail(f"the book does not build without warnings:\n{said}", pytrace=False)
    return shared / "_build" / "html"


@pytest.fixture(scope="session")
def pages(site):
    """Every page, as a path relative to the site."""
    return sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if not {"_static", "_sources"} & set(path.relative_to(site).parts)
    )


@pytest.fixture(scope="session")
def soups(site, pages):
    return {page: BeautifulSoup((site / page).read_text("utf-8"), "html.parser") for page in pages}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="session")
def visit(browser, address):
    """visit(page, theme=) -> the open page, with what went wrong in `page.wrong`; the last is closed."""
    contexts = []

    def go(name, theme="light"):
        while contexts:
            contexts.pop().close()
        context = browser.new_context(viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce")
        contexts.append(context)
        page, wrong = context.new_page(), []
        page.wrong = wrong
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda r: None if r.failure == "net::ERR_ABORTED"  # one went on to another page
                else wrong.append(f"failed: {r.url}"))  # fmt: skip
        page.on("response", lambda r: wrong.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:"))
                else wrong.append(f"foreign: {r.url}"))  # fmt: skip
        page.goto(address + name, wait_until="load")
        page.evaluate("window.MathJax?.startup?.promise")
        return page

    yield go
    while contexts:
        contexts.pop().close()


def none(problems):
    problems = list(problems)
    assert not problems, "\n" + "\n".join(map(str, problems))


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_every_page_of_the_contents_is_there(pages):
    expected = {"index.html", "search.html", "genindex.html", "notation.html", "glossary.html",
                "teaching.html", "source/masks.html", "03-masks.html"}  # fmt: skip
    assert expected <= set(pages)


def test_no_broken_link_and_no_broken_anchor(site, soups):
    ids = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in soups.items()}
    problems = []
    for page, soup in soups.items():
        for link in soup.find_all("a", href=True):
            url, anchor = urldefrag(link["href"])
            if urlparse(url).scheme or url.startswith("//"):
                continue
            target = (site / page).parent / unquote(url) if url else site / page
            if not target.is_file():
                problems.append(f"{page}: {link['href']} does not exist")
                continue
            name = target.resolve().relative_to(site.resolve()).as_posix()
            if anchor and name in ids and unquote(anchor) not in ids[name]:
                problems.append(f"{page}: {link['href']} has no such place")
    none(problems)


def test_nothing_is_loaded_from_another_host(soups):
    """Links may lead elsewhere; scripts, styles, pictures and fonts may not come from there."""
    problems = []
    for page, soup in soups.items():
        for tag in soup.find_all(["script", "link", "img", "iframe"]):
            url = tag.get("src") or tag.get("href") or ""
            if urlparse(url).netloc:
                problems.append(f"{page}: {url}")
    none(problems)


def test_every_figure_has_a_written_alternative_text(soups):
    problems = []
    for page, soup in soups.items():
        for image in soup.select("article img"):
            alt = image.get("alt", "").strip()
            if len(alt) < 12 or alt.endswith((".png", ".svg")):
                problems.append(f"{page}: {image['src']} says {alt!r}")
    none(problems)


def test_pages_are_light(site, soups):
    """At most 1.5 MB a page beside what all pages share."""
    problems = []
    for page, soup in soups.items():
        pictures = {(site / page).parent / unquote(i["src"]) for i in soup.select("article img")}
        weight = (site / page).stat().st_size + sum(p.stat().st_size for p in pictures)
        if weight > 1_500_000:
            problems.append(f"{page}: {weight:,} bytes")
    none(problems)


def test_a_chapter_links_its_exercises_and_its_source(site, soups):
    chapters = tomllib.loads((ROOT / "book/chapters.toml").read_text("utf-8"))["chapter"]
    here = [chapter for chapter in chapters if f"{chapter['page']}.html" in soups]
    assert [chapter["number"] for chapter in here] == list(range(len(here)))
    for chapter in here:
        box = soups[f"{chapter['page']}.html"].select_one(".tx-chapter-box")
        assert f"Chapter {chapter['number']}" in box.text and "to read" in box.text
        notebook = box.select_one("a.download")
        assert notebook, f"{chapter['page']} links no exercises"
        cells = json.loads((site / notebook["href"]).read_text("utf-8"))["cells"]
        assert any("exercise" in cell["metadata"].get("tags", []) for cell in cells)
        for module in chapter["modules"]:
            assert box.select_one(f"a[href='source/{module}.html']")


def test_every_public_name_is_on_the_page_of_the_api(soups):
    """With its signature, and every section of its docstring taken apart."""
    page = soups["source/api.html"]
    found = {dt["id"] for dt in page.select("dl.py > dt[id]")}
    assert {f"tx.{name}" for name in tx.__all__} <= found
    assert {"tx.Decoder.forward", "tx.Mask.dense", "tx.apps.counting.count", "tx.files.gguf.Gguf",
            "tx.files.packaged.locate"} <= found  # fmt: skip
    text = "\n".join(block.text for block in page.select("article :is(p, dt)"))
    assert "`" not in text and " at 0x" not in text and "“" not in text
    assert not re.search(r"^\s*(Args|Attributes|Returns|Yields|Raises):", text, re.M)
    attention = page.find(id="tx.attention").parent
    names = [dt.text for dt in attention.select("dd > dl:not(.py) > dt")]
    assert names == [*inspect.signature(tx.attention).parameters, "ValueError"]
    assert attention.select_one("dd table"), "the paths of `how` are a table"
    assert "# " in page.find(id="tx.Config").parent.select_one("pre").text  # the comments beside the switches


def test_docstrings_are_read_in_every_layout_that_we_write(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    from txsite import api

    text = "Sum.\n\nn: a number. other: one\n    more.\nGoes on: here.\n\nArgs:\n    a, b: two.\n\n        | x |\n"
    first = ["`n`", ": a number.", "", "`other`", ": one", "  more.", "  Goes on: here."]
    second = ["`a`, `b`", ": two.", "", "  | x |"]
    assert api.as_myst(text, ["n", "other"]).splitlines() == [
        "Sum.", "", "**Arguments**", "", *first, "", "**Arguments**", "", *second]  # fmt: skip
    assert api.as_myst("Yields:\n    `Row`: {n: x}.") == "**Yields**\n\n`Row`: {n: x}."


def test_replies_to_predictions_are_all_there_and_folded(soups):
    known = {}
    for path in (ROOT / "book/questions").glob("*.toml"):
        known.update(tomllib.loads(path.read_text("utf-8")))
    shown = [block for soup in soups.values() for block in soup.select(".tx-replies")]
    assert len(shown) == len(known) > 0
    options = sorted(len(block.select(".tx-reply-option")) for block in shown)
    assert options == sorted(len(question["replies"]) for question in known.values())
    assert not [fold for block in shown for fold in block.select("details[open]")]
    for soup in soups.values():  # what `reveal` printed when nobody had guessed is not shown
        assert not soup.select(".tx-reveal .cell_output")


@pytest.mark.slow
def test_the_build_refuses_a_silent_figure_and_an_unknown_question(tmp_path):
    """A small book with planted mistakes: the rules of book/_ext are seen to fail."""
    book = tmp_path / "book"
    shutil.copytree(ROOT / "book/_ext", book / "_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "book/_static", book / "_static")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    (book / "references.bib").write_text("")
    (book / "_toc.yml").write_text("format: jb-book\nroot: page\n")
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    figure = nbformat.v4.new_output("display_data", {"image/png": png})
    silent, named, good = (nbformat.v4.new_code_cell("plot()", outputs=[figure]) for _ in range(3))
    named.metadata["mystnb"] = {"image": {"alt": "figure.png"}}
    good.metadata["mystnb"] = {"image": {"alt": "A single blue point."}}
    asks = nbformat.v4.new_code_cell('reveal("00-nobody-asked")')
    cells = [nbformat.v4.new_markdown_cell("# Page"), silent, named, good, asks]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"},
                         "language_info": {"name": "python"}}  # fmt: skip
    nbformat.write(notebook, book / "page.ipynb")
    code, said = build(tmp_path, tmp_path)
    assert code != 0
    assert "the figure of cell 2 has no alternative text" in said
    assert "the figure of cell 3 has a file name as alternative text" in said
    assert "cell 4" not in said
    assert "reveal('00-nobody-asked'): no such question" in said


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────

SIDEWAYS = """() => {
  const wide = [];
  if (document.documentElement.scrollWidth > innerWidth)
    wide.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  for (const figure of document.querySelectorAll("article img, .txw > div, .txw svg, .txd > div"))
    if (figure.getBoundingClientRect().right > innerWidth + 1) wide.push("a figure or widget is cut off");
  for (const code of document.querySelectorAll(".cell_input pre"))
    if (code.scrollWidth > code.clientWidth + 1)
      wide.push("code of more than 64 columns: " + code.innerText.split("\\n")
        .sort((a, b) => b.length - a.length)[0]);
  return wide;
}"""

# The contrast of every piece of text against what is painted behind it, by the formula of WCAG 2.
FAINT = """() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return [...n.slice(0, 3), n[3] ?? 1] };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const faint = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, e = node.parentElement;
    const skip = "script, style, noscript, mjx-container, .headerlink, :disabled";
    if (!node.data.trim() || e.closest(skip)) continue;
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (box.width < 2 || box.height < 2 || style.visibility == "hidden" || !e.checkVisibility()) continue;
    const ground = behind(e), svg = e instanceof SVGElement;
    let ink = rgba(svg ? style.fill : style.color);
    for (let a = e; a; a = a.parentElement) ink[3] *= Number(getComputedStyle(a).opacity);
    if (ink[3] == 0) continue;
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const needs = large ? 3 : 4.5;
    if (ratio < needs - .02) {
      const place = (e.closest("[class]")?.getAttribute("class") ?? "") + " " + e.tagName.toLowerCase();
      faint[place] ??= `${place}: ${ratio.toFixed(2)} for "${node.data.trim().slice(0, 30)}"`;
    }
  }
  return Object.values(faint);
}"""

FORMULAS = """() => ({
  written: document.querySelectorAll("article .math").length,
  rendered: document.querySelectorAll("article .math > mjx-container > svg").length,
  spoken: document.querySelectorAll("article .math mjx-assistive-mml").length,
  errors: [...document.querySelectorAll("[data-mml-node=merror], mjx-merror")].map(e => e.textContent),
})"""


@pytest.fixture(scope="session")
def survey(visit, pages, shared):
    """What a browser finds on every page, visited once: {page: {"wrong", "formulas", …}}."""
    with FileLock(f"{shared}/survey.lock"):
        notes = shared / "survey.json"
        if not notes.exists():
            notes.write_text(json.dumps({name: look_at(visit, name) for name in pages}))
    return json.loads(notes.read_text())


def look_at(visit, name):
    page = visit(name)
    found = {"formulas": page.evaluate(FORMULAS)}
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        page.wait_for_timeout(150)
        found[theme] = page.evaluate(FAINT)
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(150)
    found["sideways"] = page.evaluate(SIDEWAYS)
    found["wrong"] = page.wrong
    return found


def test_no_page_has_an_error_or_asks_another_host(survey):
    none(f"{name}: {what}" for name, found in survey.items() for what in found["wrong"])


def test_formulas_are_rendered_and_spoken(survey):
    formulas = {name: found["formulas"] for name, found in survey.items()}
    none(f"{name}: {error}" for name, math in formulas.items() for error in math["errors"])
    none(f"{name}: {math}" for name, math in formulas.items()
         if not math["written"] == math["rendered"] == math["spoken"])  # fmt: skip
    assert sum(math["written"] for math in formulas.values()) > 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_in_both_themes(survey, theme):
    none(f"{name}: {faint}" for name, found in survey.items() for faint in found[theme])


def test_nothing_is_wider_than_a_phone(survey):
    none(f"{name}: {wide}" for name, found in survey.items() for wide in found["sideways"])


def test_the_theme_is_switched_by_its_button(visit):
    page = visit("index.html")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(3):  # the button goes round: as the system, light, dark
        page.click(".article-header-buttons .theme-switch-button")
        if page.get_attribute("html", "data-theme") == "dark":
            break
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"


def test_search_finds_a_word_by_keyboard(visit):
    page = visit("index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("bottom-right")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.href)")
    assert any("glossary.html" in link for link in found)
    assert not page.wrong


def test_the_keyboard_reaches_the_text_and_the_next_page(visit):
    page = visit("notation.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to main content"
    page.focus("a.right-next")
    page.keyboard.press("Enter")
    page.wait_for_url("**/glossary.html")
    page.focus("a.left-prev")
    page.keyboard.press("Enter")
    page.wait_for_url("**/notation.html")


def test_replies_open_by_mouse_and_keyboard(visit, soups):
    name = next(page for page, soup in soups.items() if soup.select(".tx-replies"))
    page = visit(name)
    first, second = (page.locator("details.tx-reply").nth(i) for i in (0, 1))
    first.locator("summary").click()
    assert first.locator("p").is_visible() and not second.locator("p").is_visible()
    second.locator("summary").focus()
    page.keyboard.press("Enter")
    assert second.locator("p").is_visible()


def test_folds_carry_their_own_words(visit, soups):
    """A cell whose source is hidden opens by a line that says what is inside."""
    for name, soup in soups.items():
        for summary in soup.select("details.hide.above-input > summary"):
            assert summary.text.strip(), name
    name = next(page for page, soup in soups.items() if soup.select("details.hide.above-input"))
    page = visit(name)
    fold = page.locator("details.hide.above-input").first
    assert not fold.locator("pre").first.is_visible()
    fold.locator("summary").click()
    assert fold.locator("pre").first.is_visible()


def test_code_is_copied_by_its_button(visit, soups):
    name = next(page for page, soup in soups.items() if soup.select(".cell_input"))
    page = visit(name)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = page.locator(".cell_input pre:visible").first
    code.hover()
    page.locator(".cell_input .highlight:visible button.copybtn").first.click()
    page.wait_for_timeout(200)
    assert page.evaluate("navigator.clipboard.readText()").strip() == code.inner_text().strip()


def state(widget):
    """All that a widget shows: its words, and the shapes of its picture."""
    return widget.inner_text() + widget.locator("svg").first.inner_html()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_widget_answers_to_mouse_and_keyboard(visit, soups, theme):
    names = [page for page, soup in soups.items() if soup.select(".txw")]
    assert "index.html" in names
    for name in names:
        page = visit(name, theme=theme)
        for i in range(page.locator(".txw").count()):
            widget = page.locator(".txw").nth(i)
            kind = widget.get_attribute("id").split("-")[1]
            if kind == "map":
                continue  # a picture
            second_head, slider = "[role=radio] >> nth=1", "[type=range]"
            touch, handle = {
                "retrieval": ("svg circle", "[role=slider]"), "heads": (second_head, second_head),
                "mask": ("[role=gridcell]", slider), "rope": (slider, slider), "ruler": (slider, slider),
            }[kind]  # fmt: skip
            before = state(widget)
            widget.locator(touch).first.click(force=True)
            after_mouse = state(widget)
            assert after_mouse != before, f"{name}: {kind} does not answer to the mouse"
            widget.locator(handle).first.focus()
            page.keyboard.press("ArrowLeft")
            assert state(widget) != after_mouse, f"{name}: {kind} does not answer to the keyboard"
        assert not page.wrong
