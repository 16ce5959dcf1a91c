"""Widgets that need no kernel: plain SVG and a little JavaScript in one HTML string.

A widget is what a cell returns. It works on the built site, in JupyterLab and on a phone, by mouse,
touch and keyboard, in light and dark theme. Where scripts are not allowed (an untrusted notebook, a
viewer that strips them) its table with the starting numbers stays and reads well.

    retrieval       keys and values on a plane, a query to drag, a temperature       chapters 0, 1
    heads           the attention maps of several heads, one query row at a time     chapter 2
    mask_editor     masks from blocks, and by hand                                   chapter 3
    rope_dial       a query and a key that turn with their positions                 chapter 4
    bucket_ruler    distances and the T5 bucket of each                              chapter 4
    attention_map   one attention map, as a picture                                  any chapter
    stepper         drawings of `tx.course.drawing` with captions, one at a time     any chapter

All drawing is done by the script, so that stripping it leaves the table and no stray labels; a stepper
holds its drawings itself, and stacks them where scripts do not run. The same arguments give the same
characters; two widgets on one page share nothing.

The scripts and the style are files of this folder: `widget.css` and `common.js` go into every widget
with a table, and one more script into each kind.
"""

from tx.course.widgets.editor import mask_editor
from tx.course.widgets.frame import Widget
from tx.course.widgets.maps import attention_map, heads
from tx.course.widgets.plane import retrieval
from tx.course.widgets.rope import bucket_ruler, rope_dial
from tx.course.widgets.steps import stepper

__all__ = [
    "Widget", "attention_map", "bucket_ruler", "heads", "mask_editor", "retrieval", "rope_dial", "stepper",
]  # fmt: skip
