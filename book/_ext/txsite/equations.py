"""Equations are numbered within their chapter: the second of chapter 3 is (3.2)."""

import re

from docutils import nodes


def number_by_chapter(app, doctree):
    chapter = re.match(r"(\d\d)-", app.env.docname)
    if chapter is None:
        return
    equations = app.env.get_domain("math").equations
    for block in doctree.findall(nodes.math_block):
        if block.get("number") is not None:
            block["number"] = f"{int(chapter[1])}.{block['number']}"
            if block.get("label") in equations:
                equations[block["label"]] = (app.env.docname, block["number"])


def setup(app):
    app.connect("doctree-read", number_by_chapter)
