"""Ready-made drawings: what the colours mean, and one look-up step by step.

    legend             the colours, the shapes, the axes                             notation page
    query_meets_keys   scores, weights, values and read-out of one query, in steps   chapter 1
    three_doors        where order can enter a layer of attention                    chapter 4
    causal_count       what each query reads of a mark on the first token            chapter 4
    turning_pair       a query and a key turn with their positions, in steps         chapter 4
    two_layouts        which features make a pair of RoPE                            chapter 4

The whole transformer is in `overview`.
"""

import math

from tx.course.drawing import Box, Drawing
from tx.course.overview import whole
from tx.course.widgets import stepper
from tx.course.widgets.rope import turned

__all__ = ["causal_count", "legend", "query_meets_keys", "three_doors", "turning_pair", "two_layouts", "whole"]


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


def three_doors():
    """Where order can enter a layer: at the embedding, at queries and keys, at the scores."""
    d = Drawing(
        "A layer of attention from left to right: x becomes queries and keys, these make scores, and the scores "
        "make weights. Three arrows come from above. Door one adds to x, door two turns queries and keys, door "
        "three adds to the scores."
    )
    x = d.grid([[None] * 2] * 3, at=(0, 60), size=(18, 18), rows="T", cols="D")
    q = d.grid([[None] * 2] * 3, "query", at=(104, 18), size=(18, 18))
    k = d.grid([[None] * 2] * 3, "key", at=(104, 104), size=(18, 18))
    s = d.grid([[None] * 3] * 3, at=(222, 60), size=(18, 18), cols="S")
    w = d.grid([[1.0, 0, 0], [0.3, 0.7, 0], [0.1, 0.2, 0.7]], "weight", at=(340, 60), size=(18, 16), gap=(3, 5))
    for box, name in ((x, "x"), (s, "scores"), (w, "weights")):
        d.label(name, (box.top[0], box.y + box.h + 30))
    d.label("queries", (q.left[0] + 20, q.y - 14), kind="query")
    d.label("keys", (k.left[0] + 20, k.y + k.h + 14), kind="key")
    for start, end in ((x, q), (x, k), (q, s), (k, s), (s, w)):
        d.arrow(start, end)
    for number, to, word in ((1, x, "adds"), (2, q, "turns"), (3, s, "adds")):
        at = (to.top[0], -42)
        d.label(f"{number}  {word}", (at[0], at[1] - 12), bold=True)
        d.arrow(at, (to.top[0], to.y - (26 if number == 2 else 6)))
    d.arrow((150, -42), (172, -42), (172, k.middle[1]), (k.x + k.w + 4, k.middle[1]))
    return d


def causal_count(weights, marks):
    """Equal weights under a causal mask, a value that marks the first token, and what every query reads.

    Args:
        weights: (T, S).
        marks: (S,) the values.

    Returns:
        Drawing
    """
    # T = S: every token asks and answers
    weights, marks = (x.tolist() if hasattr(x, "tolist") else x for x in (weights, marks))
    T = len(weights)
    read = [sum(a * b for a, b in zip(row, marks, strict=True)) for row in weights]
    d = Drawing(
        f"A triangle of weights for {T} queries, each row with equal weights. The values are a column with 1 for "
        f"the first token and 0 below. What the queries read falls from 1 for the first to 1/{T} for the last."
    )
    seen = [[j <= i for j in range(T)] for i in range(T)]
    w = d.grid(weights, "weight", head="weights", mask=seen, rows="T", cols="S", digits=2, size=(40, 30))
    v = d.grid([[m] for m in marks], "value", at=w.beside(30), head="values", digits=0)
    d.grid([[r] for r in read], "out", at=v.beside(44), head="read", digits=2)
    return d


def turning_pair(query, key, speed, places):
    """One pair of features of a query and a key, turned by where they stand, and their score, in steps.

    Args:
        query, key: (2,) before they are turned.
        speed: radians a position.
        places: pairs of positions (m of the query, n of the key), a step for each.

    Returns:
        Widget
    """
    long = max(math.hypot(*query), math.hypot(*key))

    def draw(m, n):
        q, k = turned(query, m * speed), turned(key, n * speed)
        score = q[0] * k[0] + q[1] * k[1]
        d = Drawing(
            f"A plane with a query at position {m} and a key at position {n}, both as arrows from the middle. "
            f"Beside it their numbers and the score {score:.2f}."
        )
        d.box("", (0, 0), (200, 200))
        for pair, kind in ((q, "query"), (k, "key")):
            tip = (100 + 84 * pair[0] / long, 100 - 84 * pair[1] / long)
            d.arrow((100, 100), tip, kind=kind)
            d.mark(kind, tip)
        d.grid(list(q), "query", at=(250, 26), head=f"query at {m}", digits=2, size=(54, 30))
        d.grid(list(k), "key", at=(250, 98), head=f"key at {n}", digits=2, size=(54, 30))
        d.label(f"score {score:.2f}", (306, 156), bold=True)
        d.label(f"shift {m - n}", (306, 180), soft=True)
        return d, score

    frames, last = [], None
    for m, n in places:
        d, score = draw(m, n)
        if last is None:
            words = (f"The query stands at position {m}, the key at {n}. Each is turned by {speed:g} radians a "
                     "position.")  # fmt: skip
        elif m - n == last[0] - last[1]:
            words = f"Both stand {m - last[0]:+d} positions on. Both have turned by one angle, so the score stays."
        else:
            words = f"The shift is {m - n} now. The angle between the two has changed, and so has the score."
        frames.append((d, words))
        last = (m, n)
    return stepper(frames, "A query and a key turn with their positions")


def two_layouts(order):
    """Features of one head in the layout of pairs, and in the order of the layout of halves.

    Args:
        order: (d_k,) where each feature of the new order stood.

    Returns:
        Drawing
    """
    order = [int(i) for i in order]
    half = len(order) // 2
    d = Drawing(
        f"Two rows of {len(order)} features. Above, neighbours are pairs: 0 with 1, 2 with 3. Below, the even "
        "features come first and then the odd ones, so that the first half is paired with the second. Arrows lead "
        "from each feature to its new place."
    )
    above = d.grid(list(range(len(order))), head="pairs: 0 with 1, 2 with 3 …")
    below = d.grid(order, at=above.below(80))
    d.label(f"halves: 0 with {half}, 1 with {half + 1} …", (below.bottom[0], below.y + below.h + 18), bold=True)
    for j, i in enumerate(order):
        d.arrow(above.cells[0][i].bottom, (below.cells[0][j].top[0], below.y - 4))
    return d
