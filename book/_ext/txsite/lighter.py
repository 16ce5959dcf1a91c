"""Leaves out what the theme ships and this site never uses, above all 1.5 MB of icon script.

The icons are drawn by a font; the theme loads the same icons a second time as a script that holds
up every page, and preloads fonts of brands' logos.
"""

import re
from pathlib import Path

UNUSED_TAGS = re.compile(
    r"\s*<script src=\"[^\"]*fontawesome[^\"]*\"></script>"
    r"|\s*<link rel=\"preload\"[^>]*fa-(?:brands|regular)-400[^>]*>"
)
UNUSED_FILES = ("*.map", "fontawesome/*/js/*", "fontawesome/*/webfonts/*.ttf", "fa-brands-400.*")


def strip(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        lighter = UNUSED_TAGS.sub("", text)
        if lighter != text:
            page.write_text(lighter, encoding="utf-8")
    for pattern in UNUSED_FILES:
        for path in Path(app.outdir, "_static").rglob(pattern):
            path.unlink()


def setup(app):
    app.connect("build-finished", strip)
