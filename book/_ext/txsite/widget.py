"""A widget of `tx.course.widgets`, or a ready drawing, on a page that is not a notebook.

The body holds the arguments:

    :::{widget} retrieval
    query: [1.0, 0.4]
    keys: [[1.4, 0.2], [0.3, 1.5]]
    :::

    :::{drawing} whole
    lit: attention
    :::
"""

from importlib import import_module
from pathlib import Path

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive


class Widget(Directive):
    required_arguments = 1
    has_content = True
    home = "widgets"

    def run(self):
        module = import_module(f"tx.course.{self.home}")
        make = getattr(module, self.arguments[0], None)
        if make is None:
            raise self.error(f"tx.course.{self.home} has no {self.arguments[0]!r}")
        arguments = yaml.safe_load("\n".join(self.content)) or {}
        for path in Path(module.__file__).parent.glob("*.*"):  # scripts and the style too
            self.state.document.settings.env.note_dependency(str(path))
        return [nodes.raw("", make(**arguments)._repr_html_(), format="html")]


class Ready(Widget):
    home = "pictures"


def setup(app):
    app.add_directive("widget", Widget)
    app.add_directive("drawing", Ready)
