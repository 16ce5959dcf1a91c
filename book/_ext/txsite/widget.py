"""A widget of `tx.course.widgets` on a page that is not a notebook; the body holds its arguments:

    :::{widget} retrieval
    query: [1.0, 0.4]
    keys: [[1.4, 0.2], [0.3, 1.5]]
    :::
"""

from pathlib import Path

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive


class Widget(Directive):
    required_arguments = 1
    has_content = True

    def run(self):
        from tx.course import widgets

        make = getattr(widgets, self.arguments[0], None)
        if make is None:
            raise self.error(f"tx.course.widgets has no widget {self.arguments[0]!r}")
        arguments = yaml.safe_load("\n".join(self.content)) or {}
        for path in Path(widgets.__file__).parent.glob("*.*"):  # scripts and the style too
            self.state.document.settings.env.note_dependency(str(path))
        return [nodes.raw("", make(**arguments)._repr_html_(), format="html")]


def setup(app):
    app.add_directive("widget", Widget)
