"""Every figure says in words what one should see; the build warns, and so fails, where none does.

In a notebook the words stand in the cell's metadata: "mystnb": {"image": {"alt": "…"}}.
"""

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)


def problem(uri, alt):
    """What is wrong with the alternative text of an image, or None."""
    if not (alt or "").strip():
        return "has no alternative text"
    looks_like_file = re.fullmatch(r"\S+\.(png|svg|jpe?g|gif|webp)", alt.strip(), re.IGNORECASE)
    if looks_like_file or alt.strip() in (uri, PurePosixPath(uri).name, PurePosixPath(uri).stem):
        return f"has a file name as alternative text ({alt})"
    return None


def check(app, doctree):
    for image in doctree.findall(nodes.image):
        wrong = problem(image["uri"], image.get("alt"))
        if wrong:
            cell = image.parent
            while cell is not None and cell.get("nb_element") != "cell_code":
                cell = cell.parent
            where = f"the figure of cell {cell['cell_index'] + 1}" if cell else image["uri"]
            logger.warning(
                "%s %s: say what one should see, in the cell's metadata "
                '("mystnb": {"image": {"alt": "…"}}) or in the brackets of ![…](…)',
                where, wrong, location=app.env.docname, type="txsite", subtype="alt",
            )


def setup(app):
    app.connect("doctree-read", check)
