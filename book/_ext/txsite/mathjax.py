"""MathJax from a pinned package instead of from a content delivery network.

The file has every TeX extension inside, so that no macro asks for another one while reading.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from sphinx.errors import ExtensionError

FILE = "tex-svg-full.js"


def source():
    """The folder of MathJax in the installed package `django-static-mathjax`."""
    spec = find_spec("mathjax")
    if spec is None:
        raise ExtensionError("MathJax is missing: pip install django-static-mathjax==3.2.2.1")
    return Path(spec.origin).parent / "static" / "mathjax"


def vendor(app, exception):
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir) / "_static" / "vendor"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source() / "es5" / FILE, folder / FILE)
        shutil.copyfile(source() / "LICENSE", folder / "MathJax-LICENSE.txt")


def only_where_needed(app, pagename, templatename, context, doctree):
    """Sphinx loads MathJax on a page whose children have formulas; 2 MB are for its own only."""
    own = app.env.get_domain("math").data["has_equations"].get(pagename, False)
    if not own:
        context["script_files"] = [
            script for script in context["script_files"]
            if FILE not in str(getattr(script, "filename", script))
            and "MathJax" not in str(getattr(script, "attributes", {}).get("body", ""))
        ]


def setup(app):
    app.connect("build-finished", vendor)
    app.connect("html-page-context", only_where_needed, priority=900)
