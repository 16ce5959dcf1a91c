"""Masks out of blocks and by hand: `mask.js` edits them and spells them in the words of `tx`."""

import re

from tx.course.widgets.frame import assembled, plain


def mask_editor(
    T, S, *, tokens=None, start="causal()", real=None, ids=None, window=3, prefix=2, title=None
):
    """Masks out of blocks, combined with & and |, or cell by cell; shows the `tx` expression.

    The T queries are the last of the S tokens (bottom-right alignment); a slider changes T. Blocks
    are combined from left to right, and parentheses are shown where Python needs them.

    Args:
        T: number of queries at the start, 1 … S.
        S: number of keys.
        tokens: S strings; "0", "1" … by default.
        start: the expression at the start, in tx's words: "causal() & window(3)",
            "(causal() | prefix(2)) & padding(real)", "everything()".
        real: (S,) booleans, True = a real token; offers the block padding(real).
        ids: (S,) integers, the document of each token; offers the block documents(ids).
        window: W when the block window is added.
        prefix: length when the block prefix is added.
        title: the line above the widget.

    Raises:
        ValueError: sizes do not fit, or `start` is not an expression the editor can show.

    Example:
        >>> widgets.mask_editor(4, 6, tokens="the cat sat on the mat".split(),
        ...                     start="causal() & window(3)", ids=[0, 0, 0, 1, 1, 1])
    """
    numbered = tokens is None
    tokens = [str(k) for k in range(S)] if numbered else list(tokens)
    real = None if real is None else [bool(x) for x in plain(real)]
    ids = None if ids is None else [int(x) for x in plain(ids)]
    if not 1 <= T <= S:
        raise ValueError(f"T is {T} and S is {S}: the queries are the last T of the S tokens")
    for name, given in (("tokens", tokens), ("real", real), ("ids", ids)):
        if given is not None and len(given) != S:
            raise ValueError(f"{name} has {len(given)} entries for S = {S} keys")
    terms = _terms(start, real, ids)
    grid = _grid(terms, T, S, real, ids)
    rows = [
        [f"{S - T + i} {tokens[S - T + i]}", *("●" if x else "·" for x in row), str(sum(row))]
        for i, row in enumerate(grid)
    ]
    given = f", real = {[int(x) for x in real]}" if "real" in start else ""
    given += f", ids = {ids}" if "ids" in start else ""
    caption = f"{start}, T = {T}, S = {S}{given}: a row is a query, ● means it sees that key."
    how = "Add blocks, press & or | to change how they combine, press a cell to change it by hand."
    data = {
        "T": T,
        "tokens": tokens,
        "numbered": numbered,
        "terms": terms,
        "real": real,
        "ids": ids,
        "window": window,
        "prefix": prefix,
    }
    return assembled("mask", title or "Who may look where?", how, data, caption, ["query", *tokens, "sees"], rows)


_BLOCK = re.compile(r"([&|]?)\s*(causal|window|padding|prefix|documents)\((\w*)\)")


def _terms(start, real, ids):
    """The blocks of an expression, left to right: [{"kind", "op", "n"}]."""
    if start == "everything()":
        return []
    terms = [
        {"kind": kind, "op": op or "&", "n": int(n) if n.isdigit() else None}
        for op, kind, n in _BLOCK.findall(start)
    ]
    if _named(terms) != start:
        raise ValueError(
            f"start is {start!r}: write blocks combined from left to right, as in "
            "'(causal() | prefix(2)) & padding(real)'; names are real and ids"
        )
    kinds = {t["kind"] for t in terms}
    if "padding" in kinds and real is None or "documents" in kinds and ids is None:
        raise ValueError(f"{start} needs real= (for padding) or ids= (for documents)")
    return terms


def _named(terms):
    """The tx expression of blocks combined from left to right; the script says the same."""
    text, either = "", False
    for i, t in enumerate(terms):
        inside = {"causal": "", "padding": "real", "documents": "ids"}.get(t["kind"], t["n"])
        me = f"{t['kind']}({inside})"
        if i == 0:
            text = me
            continue
        if t["op"] == "&" and either:
            text = f"({text})"
        either = t["op"] == "|"
        text = f"{text} {t['op']} {me}"
    return text


def _grid(terms, T, S, real, ids):
    """The blocks' mask as tx computes it: T lists of S booleans."""
    import torch  # here, so that widgets without a mask need no torch

    from tx import masks

    given = {
        "causal": (),
        "padding": (real and torch.tensor([real]),),  # (1, S)
        "documents": (ids and torch.tensor([ids]),),  # (1, S)
    }
    mask = masks.everything()
    for i, t in enumerate(terms):
        block = getattr(masks, t["kind"])(*given.get(t["kind"], (t["n"],)))
        mask = block if i == 0 else mask | block if t["op"] == "|" else mask & block
    return mask.dense((1, 1, T, S)).expand(1, 1, T, S)[0, 0].tolist()
