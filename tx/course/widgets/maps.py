"""Attention maps: `heads.js` lets a reader choose among several, `map.js` draws one."""

from tx.course.widgets.frame import assembled, plain


def heads(tokens, maps, *, keys=None, names=None, title=None):
    """The attention maps of several heads: choose a head and a query, read the weights.

    Args:
        tokens: T strings, the queries; also the keys unless `keys` is given.
        maps: (H, T, S) attention weights; shown to three digits.
        keys: S strings, for T ≠ S or when queries and keys come from different texts.
        names: H strings; "head 0", "head 1" … by default.
        title: the line above the widget.

    Raises:
        ValueError: shapes do not fit, or the maps are too large for a page (H·T·S over about 4000).

    Example:
        >>> out, weights = attention(q, k, v, return_weights=True)      # weights (B, H, T, S)
        >>> widgets.heads(tokens, weights[0], names=["looks back", "looks at itself"])
    """
    maps, tokens, keys = _thousandths(maps), list(tokens), list(tokens if keys is None else keys)
    names = [f"head {h}" for h in range(len(maps))] if names is None else list(names)
    _check_maps(maps, tokens, keys)
    if len(names) != len(maps):
        raise ValueError(f"{len(names)} names for {len(maps)} heads")
    rows = [[token, *(_strongest(m[i], keys) for m in maps)] for i, token in enumerate(tokens)]
    caption = "For each query (row) and head (column): the key with the largest weight."
    how = "Choose a head, then a query row (mouse, touch or arrow keys). A row's weights sum to 1."
    data = {"queries": tokens, "keys": keys, "maps": maps, "names": names}
    return assembled("heads", title or "Where does each head look?", how, data, caption, ["query", *names], rows)


def attention_map(weights, queries, keys=None, *, title=None):
    """One attention map as a picture: rows are queries, columns keys, numbers where they fit.

    Args:
        weights: (T, S), non-negative, at most 1.
        queries: T strings.
        keys: S strings; the queries again by default.
        title: the line above the picture.

    Raises:
        ValueError: shapes do not fit, or the map is too large for a page.

    Example:
        >>> widgets.attention_map(weights[0, 0], tokens, title="Head 0 copies the previous token")
    """
    queries, keys = list(queries), list(queries if keys is None else keys)
    maps = _thousandths([plain(weights)])
    _check_maps(maps, queries, keys)
    rows = [[q, *(f"{w / 1000:.2f}" for w in row)] for q, row in zip(queries, maps[0], strict=True)]
    pairs = zip(queries, maps[0], strict=True)
    strongest = "; ".join(f"{q}: {_strongest(row, keys)}" for q, row in pairs)
    data = {
        "queries": queries,
        "keys": keys,
        "maps": maps,
        "alt": f"Attention map. The key with the largest weight for each query: {strongest}.",
    }
    caption = "Weights: each row is a query, each column a key."
    how, head = caption[9:].capitalize(), ["query", *keys]
    return assembled("map", title or "Attention weights", how, data, caption, head, rows)


def _thousandths(maps):
    """(H, T, S) weights as integers 0 … 1000, which take half the room of decimals."""
    return [[[round(1000 * float(w)) for w in row] for row in m] for m in plain(maps)]


def _strongest(row, keys):
    best = max(range(len(row)), key=row.__getitem__)
    return f"{keys[best]} {row[best] / 1000:.2f}"


def _check_maps(maps, queries, keys):
    for h, m in enumerate(maps):
        if len(m) != len(queries) or any(len(row) != len(keys) for row in m):
            raise ValueError(
                f"map {h} is ({len(m)}, {len(m[0])}), the tokens say "
                f"({len(queries)}, {len(keys)}) = (queries, keys)"
            )
    if not all(0 <= w <= 1000 for m in maps for row in m for w in row):
        raise ValueError("attention weights lie between 0 and 1")
