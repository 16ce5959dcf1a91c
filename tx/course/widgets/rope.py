"""A query and a key that turn with their positions: `rope.js` moves them."""

import math

from tx.course.widgets.frame import assembled, point, rounded


def rope_dial(query, key, speed, *, m=3, n=1, last=24, title=None):
    """One pair of features of a query and a key, turned by their positions: the score is the shift's alone.

    Args:
        query, key: (2,) as they are before they are turned.
        speed: radians per position.
        m, n: positions of the query and of the key at the start.
        last: the last position of the sliders.
        title: the line above the widget.

    Raises:
        ValueError: a vector has not two features, or a position is not on its slider.

    Example:
        >>> widgets.rope_dial([1.0, 0.5], [0.3, 1.2], 0.6, m=3, n=1)
    """
    query, key = rounded(query), rounded(key)
    if len(query) != 2 or len(key) != 2:
        raise ValueError(f"query {query} and key {key}: a dial turns one pair of features each")
    if not 0 <= m <= last or not 0 <= n <= last:
        raise ValueError(f"m = {m} and n = {n}: the sliders go from 0 to {last}")

    def score(m, n):
        (a, b), (c, d) = turned(query, m * speed), turned(key, n * speed)
        return a * c + b * d

    rows = [
        [f"m = {i}, n = {j}", f"{i - j}", point(turned(query, i * speed), 2), point(turned(key, j * speed), 2),
         f"{score(i, j):.3f}"]
        for i, j in ((m, n), (m + 5, n + 5), (m + 1, n))
    ]  # fmt: skip
    caption = f"Each position turns a vector by {speed:g} radians. The score depends on the shift alone."
    return assembled(
        "rope",
        title or "Turn a query and a key",
        "Move the sliders, or use the arrow keys on them. The third one moves both positions together.",
        {"q": query, "k": key, "w": speed, "m": m, "n": n, "last": last},
        caption,
        ["positions", "shift", "query", "key", "score"],
        rows,
    )


def bucket_ruler(n_buckets, max_distance, *, start=9, title=None):
    """T5's buckets on a ruler of distances: of a decoder, which looks back, and of an encoder.

    Args:
        n_buckets: of all of them together.
        max_distance: from here on every distance is in the last bucket.
        start: the distance that is shown first.
        title: the line above the widget.

    Raises:
        ValueError: the distance is not on the ruler.
    """
    import torch

    from tx.positions import t5_bucket

    far = max_distance + max_distance // 4
    if not 0 <= start <= far:
        raise ValueError(f"start is {start}: the ruler goes from 0 to {far}")
    back, ahead = -torch.arange(far + 1), torch.arange(far + 1)
    one, past, future = (
        t5_bucket(distance, n_buckets, max_distance, both).tolist()
        for distance, both in ((back, False), (back, True), (ahead, True))
    )
    rows = [[f"bucket {b}", _stretch(one, b), _stretch(past, b), _stretch(future, b)] for b in range(n_buckets)]
    return assembled(
        "ruler",
        title or f"{n_buckets} buckets for distances up to {max_distance}",
        "Move the slider to another distance and read its bucket in all three cases.",
        {"one": one, "past": past, "future": future, "start": start},
        "The distances of each bucket. A decoder looks back; an encoder looks both ways.",
        ["", "decoder, back", "encoder, back", "encoder, ahead"],
        rows,
    )


def _stretch(buckets, wanted):
    """The distances of a bucket, like "4–6"."""
    found = [i for i, bucket in enumerate(buckets) if bucket == wanted]
    if not found:
        return "–"
    if found[-1] == len(buckets) - 1:
        return f"{found[0]} and more"
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def turned(pair, angle):
    """A pair of features (2,) turned by an angle in radians -> (2,)."""
    (a, b), c, s = pair, math.cos(angle), math.sin(angle)
    return a * c - b * s, b * c + a * s
