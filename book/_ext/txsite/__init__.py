"""What this book adds to Sphinx: one module per idea, each with its own `setup(app)`.

    mathjax       formulas without a request to another host
    equations     equations numbered within their chapter: (3.1)
    chapters      the list of chapters, the box under a chapter's title, its exercises
    predictions   predict, then run: the replies, folded, under the cell that reveals them
    figures       a figure without a written alternative text stops the build
    widget        an interactive figure, or a drawing, on a page that is not a notebook
    api           every public name of `tx`, from the docstrings
    launching     buttons that open a chapter elsewhere, where the site knows its repository
    lighter       the theme without what no page uses
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `tx` of this repository, installed or not


def setup(app):
    from . import api, chapters, equations, figures, launching, lighter, mathjax, predictions, widget

    for module in (mathjax, equations, chapters, predictions, figures, widget, api, launching, lighter):
        module.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
