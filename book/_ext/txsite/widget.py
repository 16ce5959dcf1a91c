"""`:::{widget} name`: the widget `tx.course.widgets.name()` on a page that is not a notebook."""

from docutils import nodes
from docutils.parsers.rst import Directive


class Widget(Directive):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        from tx.course import widgets

        make = getattr(widgets, self.arguments[0], None)
        if make is None:
            raise self.error(f"tx.course.widgets has no widget {self.arguments[0]!r}")
        return [nodes.raw("", make()._repr_html_(), format="html")]


def setup(app):
    app.add_directive("widget", Widget)
