"""The list of chapters (book/chapters.toml), and what the site shows from it.

    the box under a chapter's title   minutes, its exercises, the source of its module
    `:::{chapters}`                   the chapters that are here; the planned ones, dim
    `:::{chapter-facts} 1`            minutes to read, exercises, points
    `:::{homework} 1`                 the exercises of a chapter, in a table

Nothing is typed twice: minutes to read are counted from the notebook, and exercises are read
from the graders, without importing them.
"""

import ast
import json
import math
import re
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes

from . import ROOT

WORDS_A_MINUTE = 200
SECONDS_A_CODE_CELL = 40  # to read a dozen lines and compare them with their output


def listed(srcdir):
    """The chapters of book/chapters.toml, each with `here` = its page exists."""
    text = (Path(srcdir) / "chapters.toml").read_text(encoding="utf-8")
    chapters = tomllib.loads(text)["chapter"]
    for chapter in chapters:
        chapter["file"] = Path(srcdir) / f"{chapter['page']}.ipynb"
        chapter["here"] = chapter["file"].exists()
    return chapters


def minutes_to_read(notebook):
    """Minutes for the page itself, rounded up to five."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    prose = " ".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    code = sum(c["cell_type"] == "code" for c in cells)
    minutes = len(prose.split()) / WORDS_A_MINUTE + code * SECONDS_A_CODE_CELL / 60
    return max(5, 5 * math.ceil(minutes / 5))


def graders(number):
    """The grader modules of a chapter."""
    return sorted((ROOT / "exercises").glob(f"test_{number:02d}_*.py"))


def exercises(number):
    """The exercises of a chapter, as dicts of what their graders say literally, in their order."""
    found = []
    for path in graders(number):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Exercise":
                facts = {
                    keyword.arg: keyword.value.value
                    for keyword in node.keywords
                    if isinstance(keyword.value, ast.Constant)
                }
                found.append({"line": node.lineno, "name": node.args[0].value, **facts})
    return sorted(found, key=lambda exercise: exercise["line"])


def duration(minutes):
    """90 -> '1 h 30 min'."""
    hours, rest = divmod(minutes, 60)
    return " ".join([f"{hours} h"] * (hours > 0) + [f"{rest} min"] * (rest > 0 or hours == 0))


def facts(chapter):
    """'about 40 min to read · 7 exercises, 1 h 25 min, 24 points'."""
    parts = [f"about {duration(minutes_to_read(chapter['file']))} to read"]
    tasks = exercises(chapter["number"])
    if tasks:
        minutes = duration(sum(task["minutes"] for task in tasks))
        points = sum(task["points"] for task in tasks)
        parts.append(f"{len(tasks)} exercises, {minutes}, {points} points")
    return " · ".join(parts)


def reference(text, docname, **attributes):
    """A link to another page, resolved by Sphinx, so that a missing page is a warning."""
    link = addnodes.pending_xref(
        "", nodes.inline("", text, **attributes), refdomain="std", reftype="doc",
        reftarget=f"/{docname}", refexplicit=True, refwarn=True,
    )
    return link


def box(env, chapter):
    """Under the title: how long it takes, where to practise, what the chapter built."""
    parent = nodes.container(classes=["tx-chapter-box"])
    parent += nodes.paragraph("", f"Chapter {chapter['number']} · {facts(chapter)}")
    links = nodes.paragraph("")
    notebooks = sorted((ROOT / "exercises").glob(f"{chapter['number']:02d}_*.ipynb"))
    for notebook in notebooks:
        download = addnodes.download_reference(
            "", "", nodes.literal("", f"exercises/{notebook.name}"), classes=["tx-download"],
            refdoc=env.docname, reftarget=f"/../exercises/{notebook.name}",
            refdomain="", reftype="download", refexplicit=True, refwarn=False,
        )
        links += [nodes.Text("Exercises: "), download, nodes.Text("   ")]
    for module in chapter["modules"]:
        links += [nodes.Text("Source: ")]
        links += reference(f"tx.{module}", f"source/{module}", classes=["tx-code"])
        links += nodes.Text("   ")
    if links.children:
        parent += links
    return parent


def add_box(app, doctree):
    match = re.match(r"(\d\d)-", app.env.docname)
    if match is None:
        return
    known = [c for c in listed(app.srcdir) if c["page"] == app.env.docname]
    title = next(iter(doctree.findall(nodes.title)), None)
    if known and title is not None:
        title.parent.insert(title.parent.index(title) + 1, box(app.env, known[0]))
        depends_on(app.env, known[0]["number"])


def depends_on(env, number):
    """A change of the list or of a grader rebuilds the page that shows it."""
    for path in [Path(env.srcdir) / "chapters.toml", *graders(number)]:
        env.note_dependency(str(path))


class Chapters(Directive):
    """The chapters that are here, each with its question; after them, dim, the planned ones."""

    def run(self):
        env = self.state.document.settings.env
        env.note_reread()  # a chapter that has arrived is a link from now on
        here = nodes.bullet_list(classes=["tx-chapters"])
        later = nodes.bullet_list(classes=["tx-later"])
        for chapter in listed(env.srcdir):
            name = f"{chapter['number']} · {chapter['title']}"
            if chapter["here"]:
                link = nodes.paragraph("", "", reference(name, chapter["page"]))
                here += nodes.list_item("", link, nodes.paragraph("", chapter["asks"]))
            else:
                later += nodes.list_item("", nodes.paragraph("", name))
        planned = nodes.paragraph("", "Planned:", classes=["tx-facts"])
        return [here, planned, later] if later.children else [here]


class OfChapter(Directive):
    """A directive whose argument is the number of a chapter that is here."""

    required_arguments = 1

    def run(self):
        env = self.state.document.settings.env
        env.note_reread()
        number = int(self.arguments[0])
        chapter = next(c for c in listed(env.srcdir) if c["number"] == number)
        return self.show(chapter) if chapter["here"] else []


class ChapterFacts(OfChapter):
    def show(self, chapter):
        return [nodes.paragraph("", facts(chapter), classes=["tx-facts"])]


class Homework(OfChapter):
    """The exercises of a chapter: name, what kind, level, minutes, points."""

    heads = ("exercise", "kind", "level", "minutes", "points")

    def show(self, chapter):
        tasks = exercises(chapter["number"])
        if not tasks:
            return []
        group = nodes.tgroup(cols=len(self.heads))
        group += [nodes.colspec(colwidth=1) for _ in self.heads]
        head, body = nodes.thead(), nodes.tbody()
        head += row([nodes.Text(text) for text in self.heads])
        for task in tasks:
            texts = [str(task.get(key, "")) for key in self.heads[1:]]
            body += row([nodes.literal("", task["name"]), *map(nodes.Text, texts)])
        group += [head, body]
        heading = nodes.paragraph("", "", nodes.strong("", "Homework"))
        return [heading, nodes.table("", group, classes=["tx-homework"])]


def row(cells):
    return nodes.row("", *[nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells])


def setup(app):
    app.connect("doctree-read", add_box, priority=100)  # before downloads are collected
    app.add_directive("chapters", Chapters)
    app.add_directive("chapter-facts", ChapterFacts)
    app.add_directive("homework", Homework)
