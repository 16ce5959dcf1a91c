"""Predict, then run: under a cell `reveal("id")` the page shows the reply to every option, folded.

The replies stand in book/questions/*.toml, the same that `tx.course.predictions` prints. What the
two cells printed when nobody had guessed is left out: a page cannot be run.
"""

import re
import tomllib
from functools import lru_cache
from html import escape
from pathlib import Path

from docutils import nodes
from markdown_it import MarkdownIt
from sphinx.util import logging

logger = logging.getLogger(__name__)
CALL = re.compile(r"""^(?P<name>commit|reveal)\(\s*["'](?P<id>[^"']+)["']""")
inline = MarkdownIt("commonmark").renderInline


@lru_cache(1)
def questions(folder):
    """Every question by its id, from all files of the folder."""
    found = {}
    for path in sorted(Path(folder).glob("*.toml")):
        found.update(tomllib.loads(path.read_text(encoding="utf-8")))
    return found


def fold(summary, text, kind):
    return (
        f'<details class="tx-reply tx-reply-{kind}"><summary>{escape(summary)}</summary>'
        f"<p>{inline(text)}</p></details>"
    )


def replies(question):
    """HTML: one fold for each option, then one for the explanation."""
    folds = [
        fold(f"If you said {letter} …", text, "option")
        for letter, text in sorted(question["replies"].items())
    ]
    folds.append(fold("What the page shows", question["explain"], "explanation"))
    return f'<div class="tx-replies">{"".join(folds)}</div>'


def show(app, doctree):
    folder = Path(app.srcdir) / "questions"
    known = questions(str(folder))
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        source = next(iter(cell.findall(nodes.literal_block)), None)
        match = CALL.match(source.astext().strip()) if source is not None else None
        if match is None:
            continue
        for output in list(cell.findall(nodes.container)):
            if output.get("nb_element") == "cell_code_output":
                cell.remove(output)
        cell.attributes.pop("hide_mode", None)
        if match["name"] == "commit":
            continue
        for path in folder.glob("*.toml"):
            app.env.note_dependency(str(path))  # a changed reply rebuilds the chapter
        if match["id"] not in known:
            logger.warning("reveal(%r): no such question in book/questions", match["id"],
                           location=app.env.docname, type="txsite", subtype="question")
            continue
        cell["classes"].append("tx-reveal")
        after = cell.parent.index(cell) + 1
        cell.parent.insert(after, nodes.raw("", replies(known[match["id"]]), format="html"))


def setup(app):
    app.connect("doctree-read", show)
