"""A query among keys on a plane: `retrieval.js` drags it."""

import math

from tx.course.widgets.frame import assembled, point, rounded


def retrieval(
    query, keys, values, labels, *, temperature=1.0, axes=("first", "second"), title=None
):
    """A query on a plane of keys: drag it, change the temperature, watch weights and read-out.

    The weights are softmax(q·k / temperature); a button sets the temperature to √d_k = √2.

    Args:
        query: (2,) where the query starts.
        keys: (S, 2).
        values: (S,) numbers, or (S, d_v) rows of numbers.
        labels: S strings, the names of the keys.
        temperature: where the slider starts, 0.03 … 10.
        axes: what the two features mean, in a word or two each.
        title: the line above the widget.

    Raises:
        ValueError: shapes do not fit, or the temperature is outside the slider.

    Example:
        >>> widgets.retrieval(
        ...     query=[1.0, 0.4], keys=[[1.4, 0.2], [0.3, 1.5], [-1.2, -0.6]],
        ...     values=[20.0, 60.0, 90.0], labels=["cat", "cow", "eel"],
        ...     axes=("purrs", "gives milk"))
    """
    query, keys, values = rounded(query), rounded(keys), rounded(values)
    values = [v if isinstance(v, list) else [v] for v in values]
    _check_plane(query, keys, values, labels)
    if not 0.03 <= temperature <= 10:
        raise ValueError(f"temperature is {temperature}: the slider goes from 0.03 to 10")
    scores = [query[0] * k[0] + query[1] * k[1] for k in keys]
    raw = [math.exp((s - max(scores)) / temperature) for s in scores]
    weights = [e / sum(raw) for e in raw]
    read_out = [
        sum(w * v[j] for w, v in zip(weights, values, strict=True)) for j in range(len(values[0]))
    ]
    rows = [
        [name, point(k, 2), f"{s:.2f}", f"{w:.3f}", point(v, 2)]
        for name, k, s, w, v in zip(labels, keys, scores, weights, values, strict=True)
    ]
    caption = (
        f"The query is {point(query, 2)}, the temperature {temperature:.2f}. "
        f"The read-out, the values weighted, is {point(read_out, 2)}."
    )
    reach = max(abs(x) for place in [query, *keys] for x in place)
    data = {
        "query": query,
        "keys": keys,
        "values": values,
        "labels": list(labels),
        "temperature": temperature,
        "axes": list(axes),
        "lim": math.ceil(1.2 * reach * 2) / 2,
    }
    how = "Drag the query, or move it with the arrow keys; the slider changes the temperature."
    head = ["key", "position", "score q·k", "weight", "value"]
    return assembled("retrieval", title or "Which key answers the query?", how, data, caption, head, rows)


def _check_plane(query, keys, values, labels):
    if len(query) != 2 or any(not isinstance(k, list) or len(k) != 2 for k in keys):
        raise ValueError("the plane has two axes: query is (2,), keys are (S, 2)")
    if not len(keys) == len(values) == len(labels):
        raise ValueError(f"{len(keys)} keys, {len(values)} values and {len(labels)} labels")
