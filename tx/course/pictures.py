"""Ready-made drawings: what the colours mean, and one look-up step by step.

    legend             the colours, the shapes, the axes                             notation page
    query_meets_keys   scores, weights, values and read-out of one query, in steps   chapter 1

The whole transformer is in `overview`.
"""

import math

from tx.course.drawing import Box, Drawing
from tx.course.overview import whole
from tx.course.widgets import stepper

__all__ = ["legend", "query_meets_keys", "whole"]


def legend():
    """What a colour and its shape mean, and how the axes of a tensor lie."""
    d = Drawing(
        "The colours of the book. Queries are orange with a diamond, keys blue with a disc, values green with a "
        "square, outputs and read-outs violet with a ring. A weight is the depth of its key's blue. Hidden cells "
        "are hatched in grey. Gradients are red and dashed. A tensor has its first axis downwards and its last to "
        "the right."
    )
    left = [("query", "query"), ("key", "key"), ("value", "value"), ("out", "output, read-out")]
    for i, (kind, name) in enumerate(left):
        d.grid([None, None], kind, at=(0, 42 * i), size=(26, 28))
        d.label(name, (68, 42 * i + 14), anchor="start", kind=kind)
    d.grid([0.05, 0.25, 0.7], "weight", at=(232, 0), size=(40, 28))
    d.label("weight", (370, 14), anchor="start")
    d.grid([None, None], at=(232, 42), size=(26, 28), mask=[False, False])
    d.label("hidden", (370, 56), anchor="start")
    d.grid([None, None], "gradient", at=(232, 84), size=(26, 28))
    d.arrow((296, 98), (358, 98), kind="gradient")
    d.label("gradient", (370, 98), anchor="start")
    d.grid([[None] * 4] * 2, at=(262, 132), size=(20, 20), rows="T", cols="D")
    d.label("(T, D)", (370, 153), anchor="start")
    return d


def query_meets_keys(query, keys, values, names, *, what="thing", scale=1.0, swatches=False):
    """One query, S keys and S values, in steps: how scores become weights, and weights a read-out.

    Args:
        query: (d_k,).
        keys: (S, d_k).
        values: (S, d_v).
        names: S words.
        what: what the names are names of, in the singular.
        scale: what a dot product is multiplied by to be a score.
        swatches: whether the values are colours, red, green and blue from 0 to 1, to be shown.

    Returns:
        Widget
    """
    query, keys, values = (x.tolist() if hasattr(x, "tolist") else x for x in (query, keys, values))
    scores = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    parts = [math.exp(s - max(scores)) for s in scores]
    weights = [p / sum(parts) for p in parts]
    out = [sum(w * v[j] for w, v in zip(weights, values, strict=True)) for j in range(len(values[0]))]
    best = scores.index(max(scores))
    S, apart = len(keys), {"gap": (3, 10)}

    d = Drawing(
        f"{S} rows, one for each {what}: its key, its score, its weight and its value. The query stands above the "
        "keys, the read-out below the values."
    )
    k = d.grid(keys, "key", head="keys", names=names, rows="S", cols="d_k", **apart)
    frames = []
    step = lambda caption: frames.append((d.copy(), caption))
    step(f"Each row is one {what}. Its key says what it can be found by.")
    q = d.grid(query, "query", at=(0, -100), head="query")
    d.arrow(q, (q.bottom[0], -26))
    step("The query says what we look for, in the same features as the keys.")
    s = Box(k.beside(28)[0], 0, 36, k.h)

    def meet(i):
        d.arrow(k.row(i), d.grid([scores[i]], at=(s.x, k.row(i).y), size=(36, 30)))

    d.label("scores", (s.top[0], -14), bold=True)
    d.label("q · k" if scale == 1 else "q · k · scale", (s.bottom[0], k.h + 12), soft=True)
    meet(0)
    terms = " + ".join(f"{a:g}·{b:g}" for a, b in zip(query, keys[0], strict=True))
    terms += f", times {scale:g}" if scale != 1 else ""
    step(f"The query meets the first key. We multiply feature by feature and add up: {terms} makes {scores[0]:g}.")
    for i in range(1, S):
        meet(i)
    step(f"It meets every other key in the same way. The best match is {names[best]}.")
    w = d.grid([[x] for x in weights], "weight", at=s.beside(28), head="weights", size=(44, 30), digits=2, **apart)
    for i in range(S):
        d.arrow((s.x + s.w + 5, k.row(i).left[1]), w.row(i))
    d.label("softmax", (w.bottom[0], k.h + 12), soft=True)
    step("The softmax turns the scores into weights, which sum to one. The larger a weight, the deeper its blue: "
         f"{names[best]} has {weights[best]:.2f}.")  # fmt: skip
    v = d.grid(values, "value", at=w.beside(22), head="values", cols="d_v", size=(40, 30), **apart)
    for i in range(S):
        d.label("×", (v.x - 11, v.row(i).left[1]))
        if swatches:
            d.swatch(values[i], (v.x + v.w + 16, v.row(i).left[1]))
    step(f"Each {what} also has a value, which is what it hands over. The weight says how much of it we take.")
    o = d.grid(out, "out", at=v.below(56), size=(40, 30), digits=2)
    d.label("read-out", (o.x - 14, o.left[1]), anchor="end", bold=True, kind="out")
    d.arrow((v.bottom[0], v.h + 26), o)
    d.label("+", (v.bottom[0] + 14, v.h + 38))
    if swatches:
        d.swatch(out, (o.x + o.w + 16, o.left[1]))
    step("We add up, row by row, what we have taken. The sum is the read-out, a blend of all the values.")
    return stepper(frames, "A query meets the keys")
