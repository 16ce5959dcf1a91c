"""Drawings with captions, one step at a time: `steps.js` turns the pages."""

import hashlib
from html import escape

from tx.course.drawing import STRIPPED, Drawing, style
from tx.course.widgets.frame import Widget, _source


def stepper(frames, title):
    """Drawings with captions, one at a time: two buttons, the arrow keys, Home and End.

    What a step adds to the one before it fades in and has a stronger outline. Without scripts all steps are
    stacked. All steps have one size, so nothing jumps.

    Args:
        frames: two or more (drawing, caption), mostly made by `copy()` on the way.
        title: what happens, in a few words.

    Returns:
        Widget

    Example:
        >>> d = Drawing("A query, and the two keys that it meets.")
        >>> query = d.grid([1, 0], "query", head="query")
        >>> frames = [(d.copy(), "This is the query.")]
        >>> d.grid([[4, 0], [3, 1]], "key", at=query.below(40), head="keys")
        >>> stepper([*frames, (d, "These are the keys.")], "A query meets two keys")
    """
    frames = list(frames)
    _check_frames(frames, title)
    left, top, right, bottom = zip(*(drawing.reach for drawing, _ in frames), strict=True)
    reach = min(left), min(top), max(right), max(bottom)
    items, before = [], set(frames[0][0].pieces)
    for drawing, caption in frames:
        old = [p for p in drawing.pieces if p in before]
        new = [p for p in drawing.pieces if p not in before]
        pieces = [*old, '<g class="new">', *new, "</g>"] if new else old
        items.append(f'<li><div class="s">{drawing.svg(reach, pieces)}</div><p>{escape(caption)}</p></li>')
        before = set(drawing.pieces)
    name = "txd-" + hashlib.sha256((title + "".join(items)).encode()).hexdigest()[:10]
    captions = [f"{i}. {caption}" for i, (_, caption) in enumerate(frames, 1)]
    html = (
        f'<div class="txd" id="{name}" role="group" aria-label="{escape(title)}: {len(frames)} steps, the arrow '
        f'keys move" data-lm-suppress-shortcuts>{style()}<style>{_source("steps.css")}</style>'
        f'<div class="t">{escape(title)}</div>'
        f'<p class="f">{STRIPPED}{escape(frames[-1][0].alt)}</p><ol>{"".join(items)}</ol>'
        f"<script>(function(root){{{_source('steps.js')}}})((document.currentScript||{{}}).parentNode||"
        f"document.getElementById('{name}'));</script></div>"
    )
    return Widget(html, "\n".join([title, *captions]))


def _check_frames(frames, title):
    if not isinstance(title, str) or not title.strip():
        raise ValueError(f"title is {title!r}: say in a few words what happens")
    if len(frames) < 2:
        raise ValueError(f"{len(frames)} frames: a stepper needs two at least, show a single drawing as it is")
    for number, frame in enumerate(frames, 1):
        if not isinstance(frame, tuple) or len(frame) != 2 or not isinstance(frame[0], Drawing):
            raise ValueError(f"frame {number} is {frame!r}: expected (Drawing, caption)")
        if not isinstance(frame[1], str) or not frame[1].strip():
            raise ValueError(f"frame {number} has the caption {frame[1]!r}: say what happens in it")
