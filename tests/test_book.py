"""The book is what CONTRIBUTING.md says a book of this course is.

Every rule is a function from a notebook to a list of complaints, and `test_every_rule_can_fail` breaks
each of them once.
"""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

import tx
from tx.course.authoring import notebooks, quoting

ROOT = Path(__file__).resolve().parents[1]
BOOK = sorted((ROOT / "book").glob("*.ipynb"))
ALL = notebooks.all_notebooks()
CHAPTERS = tomllib.loads((ROOT / "book/chapters.toml").read_text(encoding="utf-8"))["chapter"]
CHAPTER_OF = {module: c["number"] for c in CHAPTERS for module in c["modules"]}

CELLS, WORDS, LINES, COLUMNS = 45, 3500, 25, 64
FORBIDDEN = re.compile(r"\b(simply|just|obviously|magic|magical|magically)\b|in this chapter we will", re.I)
OPTION = re.compile(r"^[-*] \**([a-f])\**[.:)]?\**\s|(?:^|· )\**([a-f])\**[.:)]\**\s", re.M)

# An import of a later chapter's module, and why it has to be.
LATER = {
    ("scaled_dot_product", "masks"): "a bare predicate becomes a Mask when one is passed, not before",
    ("sampling", "cache"): "generation keeps keys and values from the start; chapter 12 shows how",
}


# What a page calls before the chapter that opens it, and why.
BLACK_BOXES = {
    ("04-positions", "checkpoints"): "tx.load brings the learned table of a real model",
    ("04-positions", "files"): "the error of tx.load without weights, for a cell that then skips itself",
}


# ── reading a notebook ───────────────────────────────────────────────────────────────────────────


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def core(notebook):
    """The cells without the starred sections, a cell that holds the start of one cut there."""
    kept, starred = [], 0  # the level of the starred heading we are under, 0 for none
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept += [] if starred else [cell]
            continue
        lines, fenced = [], False
        for line in cell.source.splitlines():
            fenced ^= line.startswith("```")
            heading = re.match(r"(#+) ", line)
            if heading and not fenced:
                level = len(heading[1])
                if "★" in line:
                    starred = min(level, starred or level)
                elif starred and level <= starred:
                    starred = 0
            lines += [] if starred else [line]
        if any(line and not re.fullmatch(r"\([\w-]+\)=", line) for line in lines):  # a label is no text
            kept.append(nbformat.from_dict({**cell, "source": "\n".join(lines)}))
    return kept


def prose(text):
    """Markdown without code, formulas, addresses and what only the builder reads."""
    text = re.sub(r"(?s)```.*?```|\$\$.*?\$\$(?: *\([\w-]+\))?|<[^>]*>", " ", text)
    text = re.sub(r"\{(?:cite|eq|ref|numref|doc)[:\w]*\}`[^`]*`", " ", text)
    text = re.sub(r"\{\w+\}`([^`<]*)(?:<[^>]*>)?`", r"\1", text)
    text = re.sub(r"`[^`]*`|\$[^$]*\$|^\([\w-]+\)=$|^:::.*$|^:\w+:.*$", " ", text, flags=re.M)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def words(notebook):
    return sum(len(re.findall(r"\S*\w\S*", prose(cell.source)))
               for cell in core(notebook) if cell.cell_type == "markdown")


def texts(output):
    """Everything readable in one output."""
    data = [v for k, v in output.get("data", {}).items() if not k.startswith("image/")]
    return "\n".join(map(str, [*data, output.get("text", ""), output.get("evalue", "")]))


# ── the rules ────────────────────────────────────────────────────────────────────────────────────


def length(notebook):
    """At most 45 cells and 3,500 words outside the starred sections."""
    if len(core(notebook)) > CELLS:
        yield f"{len(core(notebook))} core cells, at most {CELLS}"
    if words(notebook) > WORDS:
        yield f"{words(notebook)} core words, at most {WORDS}"


def narrow_code(notebook):
    """A code cell has at most 25 lines of at most 64 columns."""
    for cell in code(notebook):
        lines = cell.source.removeprefix(notebooks.WITHOUT_TX).strip().splitlines()
        if len(lines) > LINES:
            yield f"{cell.id}: {len(lines)} lines, at most {LINES}"
        yield from (f"{cell.id}:{n}: {len(line)} columns, at most {COLUMNS}: {line}"
                    for n, line in enumerate(lines, 1) if len(line) > COLUMNS)


def rhythm(notebook):
    """Code is surrounded by words: three code cells in a row are one too many (questions not counted)."""
    row = []
    for cell in notebook.cells:
        quiet = re.match(r"(commit|reveal|grade)\(", cell.source) or "quote" in tags(cell)
        row = [] if cell.cell_type != "code" else row + [cell.id] * (not quiet)
        if len(row) == 3:
            yield f"three code cells in a row: {', '.join(row)}"


def failures(notebook):
    """Cells end in an error where the tag says so, and only there."""
    for cell in code(notebook):
        failed = [o for o in cell.outputs if o.output_type == "error"]
        if failed and "raises-exception" not in tags(cell):
            yield f"{cell.id}: ends in {failed[0].ename}"
        if not failed and "raises-exception" in tags(cell):
            yield f"{cell.id}: is tagged raises-exception and raises nothing"
        if any(o.output_type == "stream" and o.name == "stderr" for o in cell.outputs):
            yield f"{cell.id}: writes to stderr"


def bands(notebook):
    """A cell whose output is not compared asserts what it shows."""
    for cell in code(notebook):
        if "nbval-ignore-output" in tags(cell) and not _has(cell.source, ast.Assert) and _prints(cell):
            yield f"{cell.id}: prints trained or timed values and asserts nothing about them"
        if "nbval-skip" in tags(cell):
            yield f"{cell.id}: is not run by the tests"


def _prints(cell):
    """Whether a cell shows more than a picture."""
    return any(re.sub(r"<Figure size [^>]*>", "", texts(o)).strip() for o in cell.outputs)


def _has(source, kind):
    return any(isinstance(node, kind) for node in ast.walk(ast.parse(source)))


def no_traces(notebook):
    """Outputs name no place of a machine and no address in its memory."""
    for cell in code(notebook):
        for output in cell.outputs:
            for found in re.findall(r"\bat 0x[0-9a-f]{6,}|" + MACHINE, texts(output)):
                yield f"{cell.id}: the output holds {found!r}"


def set_up(notebook):
    """The first code cell sets up: imports and the seed."""
    first = code(notebook)[0]
    if "setup" not in tags(first) or "torch.manual_seed(0)" not in first.source:
        yield f"{first.id}: expected the tag setup and torch.manual_seed(0)"


def without_tx(notebook):
    """The first code cell says what to do where there is no tx: whoever opens it on Colab has the page alone."""
    first = code(notebook)[0]
    if not first.source.startswith(notebooks.WITHOUT_TX):
        yield f"{first.id}: expected to begin with tx.course.authoring.notebooks.WITHOUT_TX"


def readable_ids(notebook):
    """A cell's id is a name, not what a converter has drawn."""
    yield from (f"id {cell.id!r} is no name" for cell in notebook.cells
                if re.fullmatch(r"[0-9a-f]{8}", cell.id) and re.search(r"\d", cell.id))


def language(notebook):
    """No exclamation marks, and none of the words that make a reader feel slow."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"{cell.id}: {what}" for what in unwelcome(cell.source))


def unwelcome(text):
    text = prose(text)
    yield from (f"{m.group()!r}" for m in FORBIDDEN.finditer(text))
    yield from (f"an exclamation mark: {m.group()!r}" for m in re.finditer(r".{0,20}!(?!=)", text))


def links(notebook):
    """No link that warns, no directive that plain Jupyter shows as code."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for found in re.findall(r"\]\([\w./-]+\.ipynb#[^)]*\)|^```\{.*$", cell.source, re.M):
                yield f"{cell.id}: {found}"


def alt_texts(notebook):
    """A picture has a text that a person wrote."""
    for cell in code(notebook):
        if any(k.startswith("image/") for o in cell.outputs for k in o.get("data", {})):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            if len(alt.split()) < 5:
                yield f"{cell.id}: its picture has the alt text {alt!r}"


def quotes(notebook):
    """Quotes are word for word what tx says."""
    for cell, what in quoting.drift(nbformat.from_dict(notebook)):
        yield f"{cell}: {what} (refresh: python -m tx.course.authoring.quoting)"


def terms(notebook):
    """Every term that a page links to is in the glossary."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"{cell.id}: {term!r} is not in the glossary"
                        for term in _targets("term", cell.source) if term.lower() not in GLOSSARY)


def citations(notebook):
    """Every source that a page cites is in the bibliography."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            keys = [k.strip() for keys in _targets("cite[:a-z]*", cell.source) for k in keys.split(",")]
            yield from (f"{cell.id}: {key!r} is not in references.bib" for key in keys if key not in SOURCES)


def _targets(role, text):
    found = re.findall(rf"\{{{role}\}}`([^`]*)`", text)
    return [" ".join(re.sub(r"^.*<([^>]*)>$", r"\1", f, flags=re.S).split()) for f in found]


def exercises(notebook):
    """Every exercise that a page names has a grader."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            named = re.findall(r"(?:pytest|`) ?(?:exercises )?-k (\w+)", cell.source)
            for title in re.findall(r"^:::+\s*\{admonition\} .*[Ee]xercises? · (.*)$", cell.source, re.M):
                named += re.findall(r"\w*_\w+|^\w+$", title)
            yield from (f"{cell.id}: there is no exercise {name!r}" for name in named if name not in GRADED)


def questions(notebook):
    """A question is committed, then revealed, once each, and has a reply to every option it names."""
    calls = {"commit": [], "reveal": []}
    before = ""
    for cell in notebook.cells:
        found = re.match(r"(commit|reveal)\(\"([\w-]+)\"(?:, \"(\w*)\")?\)", cell.source)
        if cell.cell_type == "markdown":
            before = cell.source
        if not found or cell.cell_type != "code":
            continue
        what, name, guess = found.groups()
        calls[what].append(name)
        replies = QUESTIONS.get(name, {}).get("replies", {})
        if not replies:
            yield f"{cell.id}: {name} is in no file of book/questions"
        elif what == "commit":
            options = OPTION.finditer(before)
            offered = {option[1] or option[2] for option in options}
            if offered != set(replies):
                yield f"{cell.id}: offers {sorted(offered)}, replies are to {sorted(replies)}"
            if guess:
                yield f"{cell.id}: the guess {guess!r} is the reader's to make"
        elif "hide-output" not in tags(cell) or not cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            yield f"{cell.id}: a reply is hidden: tag hide-output and jupyter.outputs_hidden"
    for name in sorted({*calls["commit"], *calls["reveal"]}):
        times = [calls[what].count(name) for what in ("commit", "reveal")]
        if times != [1, 1]:
            yield f"{name}: committed {times[0]}, revealed {times[1]} times"


def _read_questions():
    return {name: entry for path in sorted((ROOT / "book/questions").glob("*.toml"))
            for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def _read_glossary():
    """The terms of the glossary, in small letters: lines that an indented one follows."""
    lines = (ROOT / "book/glossary.md").read_text(encoding="utf-8").splitlines()
    return {line.strip().lower() for line, below in zip(lines, lines[1:], strict=False)
            if re.match(r"\S", line) and (below.startswith("  ") or re.match(r"[\w(]", below))}


def _read_graded():
    """The names of all exercises, from the sources of the graders."""
    names = set()
    for path in sorted((ROOT / "exercises").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Exercise" and node.args:
                names.add(node.args[0].value)
    return names


MACHINE = "|".join(re.escape(p) + r"[\w.-]+" for p in ("/home" + "/", "/Users" + "/", "/root" + "/",
                                                    "/work" + "/", "/tmp" + "/", "C:" + "\\"))
QUESTIONS, GLOSSARY, GRADED = _read_questions(), _read_glossary(), _read_graded()
BIBLIOGRAPHY = (ROOT / "book/references.bib").read_text(encoding="utf-8")
SOURCES = set(re.findall(r"^@\w+\{([^,]+),", BIBLIOGRAPHY, re.M))
PAGE_RULES = [length, narrow_code, rhythm, failures, bands, no_traces, set_up, without_tx, readable_ids, language,
              links,
              alt_texts, quotes, terms, citations, exercises, questions]


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("rule", PAGE_RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", BOOK, ids=name)
def test_page(path, rule):
    complaints = list(rule(notebooks.read(path)))
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


@pytest.mark.parametrize("path", ALL, ids=name)
def test_notebook_is_in_normal_form(path):
    assert not notebooks.check(path)


@pytest.mark.parametrize("path", [p for p in ALL if p not in BOOK], ids=name)
def test_exercise_or_solution(path):
    notebook = notebooks.read(path)
    rules = (language, links, no_traces, failures, without_tx, readable_ids)
    complaints = [c for rule in rules for c in rule(notebook)]
    assert not complaints, "\n".join(complaints)


def test_where_there_is_no_tx_a_notebook_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "tx", None)
    with pytest.raises(ImportError, match="(?s)tx is missing.*git clone.*pip install -e"):
        exec(notebooks.WITHOUT_TX, {})


def first_page(letter, pages):
    """The number of the first page that uses a letter in a shape, a formula or a bit of code; None for none."""
    for number, notebook in enumerate(pages):
        for cell in notebook.cells:
            shapes = r"#\s*(\(.*)" if cell.cell_type == "code" else r"(\$[^$]+\$|`[^`\n]+`|\([^()\n]*,[^()\n]*\))"
            if re.search(rf"(?<![\w\\]){letter}(?!\w)", "\n".join(re.findall(shapes, cell.source))):
                return number
    return None


def test_the_notation_page_says_where_a_letter_comes_first():
    table = (ROOT / "book/notation.md").read_text(encoding="utf-8").split("## Letters")[1].split("\n\n")[1]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    pages = [notebooks.read(path) for path in BOOK]
    said = {re.findall(r"\w+", row[0])[-1]: re.findall(r"chapter (\d+)", row[-1]) for row in rows}
    found = {letter: [str(n)] if (n := first_page(letter, pages)) is not None else [] for letter in said}
    assert len(said) > 12 and found == said


def test_an_entropy_and_the_matrices_are_written_in_one_way():
    for path in BOOK:
        text = "\n".join(cell.source for cell in notebooks.read(path).cells)
        assert not re.findall(r"\bW_[qkvo]\b|\bH\([pP\\]", text), path.name


# ── a rule that cannot fail is no rule ───────────────────────────────────────────────────────────


def page(*cells):
    """A notebook from (kind, source, metadata, outputs) tuples, with names for ids."""
    made = nbformat.v4.new_notebook()
    for n, (kind, source, metadata, outputs) in enumerate(cells):
        cell = getattr(nbformat.v4, f"new_{kind}_cell")(source, id=f"cell-{n}", metadata=metadata)
        if kind == "code":
            cell.outputs = [nbformat.from_dict(o) for o in outputs]
        made.cells.append(cell)
    return made


def md(source):
    return ("markdown", source, {}, [])


def py(source, *outputs, **metadata):
    return ("code", source, metadata, outputs)


PRINTED = {"output_type": "stream", "name": "stdout", "text": "0.1234\n"}
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
PICTURE = {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}, "metadata": {}}
UNNAMED = page(md("text"))
UNNAMED.cells[0].id = "3f2504e0"

BROKEN = {
    length: [page(*[md("word")] * 46), page(md("word " * 3501))],
    narrow_code: [page(py("\n".join("x" * 26))), page(py("x = " + "1" * 61))],
    rhythm: [page(py("a"), py("b"), py("c"))],
    failures: [page(py("f()", ERROR)), page(py("f()", tags=["raises-exception"])),
               page(py("f()", {**PRINTED, "name": "stderr"}))],
    bands: [page(py("print(loss)", PRINTED, tags=["nbval-ignore-output"])),
            page(py("f()", tags=["nbval-skip"]))],
    no_traces: [page(py("f", {**PRINTED, "text": "<object at 0x7f763b329410>"})),
                page(py("f", {**PRINTED, "text": "/home" + "/someone/tx"}))],
    set_up: [page(py("import torch"))],
    without_tx: [page(py("import torch\nimport tx"))],
    readable_ids: [UNNAMED],
    language: [page(md("It is simply a sum.")), page(md("Look at that!")),
               page(md("In this chapter we will see."))],
    links: [page(md("[x](01-attention.ipynb#scale)")), page(md("```{admonition} Note\n```"))],
    alt_texts: [page(py("plot()", PICTURE)),
                page(py("plot()", PICTURE, mystnb={"image": {"alt": "figure.svg"}}))],
    quotes: [page(py("def causal(): pass", tags=["quote"], tx={"quote": "masks.causal"})),
             page(py("x", tags=["quote"], tx={"quote": "masks.nothing"})), page(py("x", tags=["quote"]))],
    terms: [page(md("A {term}`perpetual motion`.")), page(md("A {term}`machine <perpetual motion>`."))],
    citations: [page(md("See {cite:p}`vaswani2017,nobody1900`."))],
    exercises: [page(md(":::{admonition} Exercise · no_such_exercise\n:::")),
                page(md("`pytest exercises -k no_such_exercise`"))],
    questions: [page(py('commit("99-none", "")')), page(py('commit("00-reshape", "b")')),
                page(md("- a: one\n- b: two\n- c: three"), py('commit("00-reshape", "")')),
                page(md("- a: one\n- b: two"), py('commit("00-reshape", "")'), py('reveal("00-reshape")'))],
}


@pytest.mark.parametrize("rule", PAGE_RULES, ids=lambda rule: rule.__name__)
def test_every_rule_can_fail(rule):
    for notebook in BROKEN[rule]:
        assert list(rule(notebook)), f"{rule.__name__} does not see {notebook.cells}"


def test_starred_sections_are_not_core():
    notebook = page(md("# One\ntwo"), md("three\n## ★ Four\nfive"), py("six"), md("### Seven"),
                    md("## Eight\nnine"))
    assert [c.source for c in core(notebook)] == ["# One\ntwo", "three", "## Eight\nnine"]
    assert words(notebook) == 5


# ── the house ────────────────────────────────────────────────────────────────────────────────────


def test_every_question_is_complete_and_asked_once():
    asked = [n for path in BOOK for c in code(notebooks.read(path))
             for n in re.findall(r'^commit\("([\w-]+)"', c.source, re.M)]
    assert sorted(asked) == sorted(QUESTIONS)
    for question, entry in QUESTIONS.items():
        assert set(entry) == {"question", "answer", "explain", "replies"}, question
        assert entry["answer"] in entry["replies"] and len(entry["replies"]) >= 2, question
        written = [entry["question"], entry["explain"], *entry["replies"].values()]
        assert all(text.strip() for text in written), question
        assert not [w for text in written for w in unwelcome(text)], question


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("*.md")), ids=name)
def test_pages_without_code_keep_the_tone(path):
    assert not list(unwelcome(path.read_text(encoding="utf-8")))


def test_one_floor_a_chapter():
    for path in BOOK:
        stem = path.stem.replace("-", "_")
        assert (ROOT / f"exercises/{stem}.ipynb").is_file(), f"exercises/{stem}.ipynb"
        assert (ROOT / f"solutions/{stem}.ipynb").is_file(), f"solutions/{stem}.ipynb"
        assert (ROOT / f"exercises/test_{stem}.py").is_file(), f"exercises/test_{stem}.py"
        assert path.stem in [c["page"] for c in CHAPTERS], f"{path.name} in book/chapters.toml"


# ── chapter order is import order ────────────────────────────────────────────────────────────────


def imported(source, names):
    """The modules of tx that `source` imports, inside functions too. names: name -> its module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            parts = [a.name.split(".") for a in node.names]
            found |= {p[1] for p in parts if p[0] == "tx" and len(p) > 1}
        if isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".")
            if node.level:
                path = ["tx", *filter(None, path)]
            if path[0] == "tx" and len(path) > 1:
                found.add(path[1])
            elif path == ["tx"]:
                found |= {names.get(a.name, a.name) for a in node.names}
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "tx" and node.attr in names:
            found.add(names[node.attr])
    return found


def too_late(module, source):
    """What a module of chapter k imports of later chapters, or of what serves the book."""
    allowed = {m for m, chapter in CHAPTER_OF.items() if chapter <= CHAPTER_OF[module]} | {"files"}
    return sorted(imported(source, tx._HOME) - allowed)


MODULES = sorted(p for p in (ROOT / "tx").glob("*.py") if not p.stem.startswith("__"))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_chapter_order_is_import_order(path):
    late = too_late(path.stem, path.read_text(encoding="utf-8"))
    excused = sorted(later for module, later in LATER if module == path.stem)
    assert late == excused, "an import of a later chapter, or an exception that is none any more"


@pytest.mark.slow
def test_readers_of_files_load_no_model_code():
    names = [f"tx.files.{path.stem}" for path in sorted((ROOT / "tx/files").glob("*.py"))]
    script = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\n"
    script += "print(*sorted(name for name in sys.modules if name.startswith('tx.')))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(found.stdout.split()) == {"tx.files", *names}


def test_the_reference_is_imported_by_the_benchmarks_alone():
    found = [p.name for p in sorted((ROOT / "tx").rglob("*.py")) if re.search(r"^\s*(import|from) transformers\b",
             p.read_text(encoding="utf-8"), re.M)]  # fmt: skip
    assert found == ["bench.py"]


@pytest.mark.parametrize("path", BOOK, ids=name)
def test_a_page_imports_what_was_built(path):
    number = next(c["number"] for c in CHAPTERS if c["page"] == path.stem)
    excused = {module for page, module in BLACK_BOXES if page == path.stem}
    met = set()
    for cell in code(notebooks.read(path)):
        used = imported(cell.source, tx._HOME) - {"course"}
        late = {m for m in used if CHAPTER_OF.get(m, 99) > number}
        met |= late
        assert number == 0 or late <= excused, f"{cell.id} imports {late}"  # chapter 0 shows what is to come
    assert number == 0 or met == excused, "a black box that is none any more"


def test_the_order_of_imports_can_be_broken():
    assert too_late("scaled_dot_product", "def f():\n    from .masks import causal") == ["masks"]
    assert too_late("multihead", "from tx import causal") == ["masks"]
    assert too_late("multihead", "import tx.masks") == ["masks"]
    assert too_late("multihead", "import tx\ntx.causal()") == ["masks"]
    assert too_late("masks", "from tx.course import contracts") == ["course"]
    assert too_late("masks", "from .scaled_dot_product import attention") == []


# ── names and places ─────────────────────────────────────────────────────────────────────────────


def test_modules_and_functions_never_share_a_name():
    modules, defined = set(), {}
    for found in pkgutil.walk_packages(tx.__path__, "tx."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        if not found.name.startswith("tx.commands."):  # named for what one types; nobody imports them
            modules.add(found.name.split(".")[-1])
        for key, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "").split(".")[0] == "tx":
                defined[key] = found.name
    shared = {key: defined[key] for key in modules & set(defined)}
    assert not shared
    assert not modules & set(tx.__all__)
    for public in tx.__all__:
        assert getattr(tx, public).__name__ == public


def test_no_file_names_a_place_of_a_machine():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: the list of files is git's")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for file in filter(None, listed.decode().split("\0")):
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        assert not re.search(MACHINE, text), file
