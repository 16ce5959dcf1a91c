"""Masks: who may look where (chapter 3).

One convention everywhere: a mask says who may look, True = may attend. A `Mask` is a predicate
`keep(b, h, q_pos, k_pos)` on absolute positions together with what is known of its structure, and
masks combine with `&` and `|`:

    causal() & window(4) & padding(real)        (causal() | prefix(3)) & documents(ids)

Positions count tokens of the row, padding included. Unless they are given with `Mask.at`, the keys
stand at 0 … S-1 and the *last* query stands at the last key (bottom-right alignment), which is
what makes two chunks of a sequence give the same rows as one. A key at a negative position is an
empty slot (of a cache, say) and is seen by nobody.

The functions `to_…` speak other people's conventions, one function each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Mask:
    """Who may look where: a predicate on positions that knows its structure.

    Attributes:
        keep: `keep(b, h, q_pos, k_pos)` -> booleans; integer tensors that broadcast against each
            other go in (batch row, query head, absolute positions of query and key).
        label: the expression that made the mask, for `repr`.
        parts: the conjunction of known parts, as (kind, value) pairs: (("causal", None),
            ("window", 4)); a disjunction or a bare predicate is a part of its own. Unless given,
            nothing is known but the predicate.
        q_pos: positions of the queries (T,) or (B, T); None = bottom-right aligned.
        k_pos: positions of the keys (S,) or (B, S); None = 0 … S-1.
        span: first position and the one after the last, where they are known without asking a device.
    """

    keep: Callable
    label: str
    parts: Any = None
    q_pos: torch.Tensor | None = None
    k_pos: torch.Tensor | None = None
    span: tuple[int, int] | None = None

    def __post_init__(self):
        if self.parts is None:
            object.__setattr__(self, "parts", (("predicate", self.keep),))

    def __repr__(self):
        return self.label if self.q_pos is None else f"({self.label}).at(q_pos, k_pos)"

    def __and__(self, other):
        """Both must allow it."""
        other = as_mask(other)

        def both(b, h, q_pos, k_pos):
            return self.keep(b, h, q_pos, k_pos) & other.keep(b, h, q_pos, k_pos)

        label = f"{_in_and(self)} & {_in_and(other)}"
        return Mask(both, label, self.parts + other.parts, *_same_positions(self, other))

    def __or__(self, other):
        """One of the two suffices."""
        other = as_mask(other)

        def either(b, h, q_pos, k_pos):
            return self.keep(b, h, q_pos, k_pos) | other.keep(b, h, q_pos, k_pos)

        parts = (("either", (self.parts, other.parts)),)
        return Mask(either, f"{self} | {other}", parts, *_same_positions(self, other))

    def __rand__(self, other):
        return as_mask(other) & self

    def __ror__(self, other):
        return as_mask(other) | self

    def __reduce__(self):
        """How a mask is pickled: its parts say all, and the predicate is made of them again."""
        return _made_of, (self.parts, self.q_pos, self.k_pos, self.span)

    def at(self, q_pos, k_pos, span=None):
        """The same mask for queries and keys that stand at given positions.

        q_pos (T,) or (B, T), k_pos (S,) or (B, S), integers; -1 marks an empty slot. span: the first
        query's position and the one after the last, to be read from the tensors unless given.
        """
        return replace(self, q_pos=q_pos, k_pos=k_pos, span=span)

    def select(self, rows):
        """The same mask for a batch made of these rows of it, in this order. rows (R,) integers."""
        keep = partial(_of_rows, self.keep, rows)
        q_pos, k_pos = (x if x is None or x.dim() == 1 else _rows(x, rows) for x in (self.q_pos, self.k_pos))
        return Mask(keep, self.label, _select_parts(self.parts, rows), q_pos, k_pos, self.span)

    def positions(self, T, S, device=None):
        """Absolute positions of T queries and S keys: (…, T), (…, S)."""
        if self.q_pos is not None:
            _check_positions(self, T, S)
            return self.q_pos, self.k_pos
        # the last query stands at the last key
        k_pos = torch.arange(S, device=device)  # (S,)
        q_pos = torch.arange(S - T, S, device=device)  # (T,)
        return q_pos, k_pos

    def dense(self, shape, device=None):
        """The mask as booleans that broadcast to `shape` = (B, H, T, S); an axis it ignores is 1.

        Raises:
            ValueError: the mask was made for another number of rows, queries or keys.
        """
        B, H, T, S = shape
        q_pos, k_pos = self.positions(T, S, device)  # (T,) or (B, T), (S,) or (B, S)
        if not (torch.compiler.is_compiling() or k_pos.is_meta):
            _check_tables(self, shape, q_pos, k_pos)
        b = torch.arange(B, device=q_pos.device).view(-1, 1, 1, 1)  # (B, 1, 1, 1)
        h = torch.arange(H, device=q_pos.device).view(1, -1, 1, 1)  # (1, H, 1, 1)
        q_pos = torch.atleast_2d(q_pos)[:, None, :, None]  # (B or 1, 1, T, 1)
        k_pos = torch.atleast_2d(k_pos)[:, None, None, :]  # (B or 1, 1, 1, S)
        return self.keep(b, h, q_pos, k_pos) & (k_pos >= 0)

    def structure(self, T, S):
        """What is left to compute for T queries and S keys: "nothing" hidden, "causal", "dense"."""
        narrow = torch.compiler.is_compiling()  # a graph holds for every S, so a window may hide something
        wide = [kind for kind, value in self.parts if kind != "window" or narrow or value < S]
        if self.q_pos is not None or self.parts and T > S or set(wide) - {"causal"}:
            return "dense"
        if T == 1 or not wide:
            return "nothing"
        return "causal" if T == S else "dense"


def everything():
    """Bidirectional: every query sees every key, as in BERT."""
    return Mask(lambda b, h, q_pos, k_pos: k_pos >= 0, "everything()", ())


def causal():
    """A query sees the keys at its own position and before, as in GPT."""

    def keep(b, h, q_pos, k_pos):
        return k_pos <= q_pos

    return Mask(keep, "causal()", (("causal", None),))


def window(W):
    """A query sees keys less than W positions away, itself counted: |q_pos - k_pos| < W.

    `causal() & window(W)` is the sliding window of Mistral: at most W keys, the query's own among them.
    """
    _check_window(W)

    def keep(b, h, q_pos, k_pos):
        return (q_pos - k_pos).abs() < W

    return Mask(keep, f"window({W})", (("window", W),))


def prefix(n):
    """Every query sees the first n keys. `causal() | prefix(n)` is the mask of a prefix-LM.

    n: a number, or one a row, (B,).
    """
    _check_prefix(n)
    if isinstance(n, torch.Tensor) and n.dim():
        return Mask(
            lambda b, h, q_pos, k_pos: k_pos < n[b], "prefix(n)", (("prefix", n.view(-1, 1)),)
        )
    return Mask(lambda b, h, q_pos, k_pos: k_pos < n, f"prefix({n})", (("prefix", int(n)),))


def padding(real):
    """Keys that are padding are seen by nobody.

    real (B, S), True = a real token. In cross-attention it is the padding of the *source*.
    """
    _check_table("padding", "real", real)
    if real.dtype != torch.bool:
        raise ValueError(f"padding(real): real is {real.dtype}, expected booleans, True = real token.")
    return Mask(
        lambda b, h, q_pos, k_pos: real[_row(real, b), k_pos], "padding(real)", (("padding", real),)
    )


def documents(ids):
    """Packed documents: a query sees the keys of its own document. ids (B, S) or (S,), integers."""
    ids = torch.atleast_2d(ids) if isinstance(ids, torch.Tensor) else ids  # (B, S)
    _check_table("documents", "ids", ids)

    def keep(b, h, q_pos, k_pos):
        row = _row(ids, b)
        return (q_pos >= 0) & (ids[row, q_pos] == ids[row, k_pos])

    return Mask(keep, "documents(ids)", (("documents", ids),))


def as_mask(mask):
    """A `Mask` from mask: a `Mask`, booleans (…, T, S), or a predicate `keep(b, h, q_pos, k_pos)`.

    The last row of a tensor belongs to the query that stands at the last column's key.
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, torch.Tensor):
        if mask.dtype != torch.bool or not 2 <= mask.dim() <= 4:
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} and dtype {mask.dtype}: expected booleans "
                "(T, S), (H, T, S) or (B, H, T, S), True = may attend."
            )
        table = mask[(None,) * (4 - mask.dim())]  # (B, H, T, S)
        first = table.shape[3] - table.shape[2]  # position of the first query

        def look_up(b, h, q_pos, k_pos):
            spot = (b, h, q_pos - first, k_pos)
            return table[tuple(x if n > 1 else x * 0 for x, n in zip(spot, table.shape, strict=True))]

        return Mask(look_up, "table", (("table", table),))
    if callable(mask):
        return Mask(mask, getattr(mask, "__name__", "predicate"), (("predicate", mask),))
    raise ValueError(f"{mask!r} is no mask: expected a tx.Mask, a boolean tensor or a predicate.")


def to_additive(mask, shape, dtype=torch.float32, hidden=float("-inf"), device=None):
    """Numbers to add to the scores: 0 where the mask allows, `hidden` where not.

    -> broadcastable to `shape` = (B, H, T, S). `transformers` hides with `torch.finfo(dtype).min`.
    """
    keep = as_mask(mask).dense(shape, device)  # (B or 1, H or 1, T or 1, S)
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, hidden)


def to_sdpa(mask, shape, device=None):
    """Keyword arguments for `F.scaled_dot_product_attention`, where True = may attend, as here.

    Its `is_causal` is aligned top-left, so it serves only for T = S.
    """
    mask = as_mask(mask)
    structure = mask.structure(*shape[2:])
    if structure == "dense":
        return {"attn_mask": mask.dense(shape, device)}
    return {"is_causal": True} if structure == "causal" else {}


def to_mha(mask, shape, device=None):
    """`attn_mask` for `nn.MultiheadAttention`, where True = may NOT attend: (T, S) or (B·H, T, S)."""
    B, H, T, S = shape
    hidden = ~as_mask(mask).dense(shape, device)  # (B or 1, H or 1, T or 1, S)
    if hidden.shape[:2] == (1, 1):
        return hidden[0, 0].expand(T, S)
    return hidden.expand(shape).reshape(B * H, T, S)


def to_flex(mask, T, S, device=None):
    """A `mask_mod(b, h, q_idx, kv_idx)` for FlexAttention, which counts slots, not positions."""
    mask = as_mask(mask)
    q_pos, k_pos = mask.positions(T, S, device)  # (T,) or (B, T), (S,) or (B, S)

    def mask_mod(b, h, q_idx, kv_idx):
        q = q_pos[q_idx] if q_pos.dim() == 1 else q_pos[b, q_idx]
        k = k_pos[kv_idx] if k_pos.dim() == 1 else k_pos[b, kv_idx]
        return mask.keep(b, h, q, k) & (k >= 0)

    return mask_mod


def _made_of(parts, q_pos=None, k_pos=None, span=None):
    """The mask of these parts, see `Mask.parts`: what a pickle holds."""
    makers = {"causal": lambda _: causal(), "window": window, "padding": padding, "documents": documents,
              "prefix": lambda n: prefix(n.flatten() if isinstance(n, torch.Tensor) else n),
              "table": as_mask, "predicate": as_mask}  # fmt: skip
    mask = everything()
    for number, (kind, value) in enumerate(parts):
        part = _made_of(value[0]) | _made_of(value[1]) if kind == "either" else makers[kind](value)
        mask = mask & part if number else part
    return mask if q_pos is None else mask.at(q_pos, k_pos, span)


def _row(table, b):
    """Row b of a table that has one row for all or one each."""
    return b if table.shape[0] > 1 else b * 0


def _rows(table, rows):
    """Rows of a table that has one row for all or one each."""
    return table[rows] if len(table) > 1 else table


def _of_rows(keep, rows, b, h, q_pos, k_pos):
    """The predicate of a batch made of these rows; a function of this module, so that it can be pickled."""
    return keep(rows[b], h, q_pos, k_pos)


def _select_parts(parts, rows):
    return tuple(
        (kind, tuple(_select_parts(side, rows) for side in value)) if kind == "either"
        else (kind, partial(_of_rows, value, rows)) if kind == "predicate"
        else (kind, _rows(value, rows) if isinstance(value, torch.Tensor) else value)
        for kind, value in parts
    )  # fmt: skip


def _in_and(mask):
    return f"({mask.label})" if " | " in mask.label else mask.label


def _same_positions(one, other):
    if one.q_pos is None or other.q_pos is None or one.q_pos is other.q_pos:
        known = one if one.q_pos is not None else other
        return known.q_pos, known.k_pos, known.span
    raise ValueError(f"{one!r} and {other!r} stand at different positions: combine first, then .at().")


def _check_window(W):
    if not isinstance(W, Integral) or W < 1:
        raise ValueError(f"window({W!r}): a window counts the query itself, so W is a whole number, at least 1.")


def _check_prefix(n):
    table = isinstance(n, torch.Tensor) and n.dim() < 2 and not n.is_floating_point()
    if not (table or isinstance(n, Integral)):
        raise ValueError(f"prefix({n!r}): expected a whole number of keys, or a tensor of them, one a row (B,).")


def _check_table(name, argument, table):
    if not isinstance(table, torch.Tensor) or table.dim() != 2:
        shape = tuple(table.shape) if isinstance(table, torch.Tensor) else table
        raise ValueError(f"{name}({argument}): {argument} is {shape}, expected a tensor (B, S).")


def _tables(parts):
    """Every (kind, table) among the parts, also inside a disjunction."""
    for kind, value in parts:
        if kind == "either":
            yield from (pair for side in value for pair in _tables(side))
        elif isinstance(value, torch.Tensor):
            yield kind, value


def _check_tables(mask, shape, q_pos, k_pos):
    """Every table covers the rows, heads and positions that are looked up in it."""
    B, H, T, S = shape
    tables = list(_tables(mask.parts))
    first, stop = mask.span or (S - T, S)  # positions of queries
    n_keys = stop
    if tables and mask.q_pos is not None and mask.span is None:  # ask the device
        first, stop, n_keys = int(q_pos.min()), 1 + int(q_pos.max()), 1 + int(k_pos.max())
    for kind, table in tables:
        if table.shape[0] not in (1, B):
            raise ValueError(f"{kind}: made for {table.shape[0]} rows, the batch has {B}.")
        if kind == "prefix":
            continue
        wanted = max(n_keys, stop) if kind == "documents" else n_keys
        if table.shape[-1] < wanted and not (kind == "table" and table.shape[-1] == 1):
            raise ValueError(f"{kind}: made for {table.shape[-1]} keys, there are {wanted}.")
        if kind != "table":
            continue
        n_rows, begin = table.shape[2], table.shape[3] - table.shape[2]
        outside = n_rows > 1 and not begin <= first <= stop <= begin + n_rows
        if table.shape[1] not in (1, H) or outside:
            raise ValueError(
                f"table {tuple(table.shape)}: does not cover (B, H, T, S) = {tuple(shape)} with queries at "
                f"positions {first} … {stop - 1}; its rows are {begin} … {begin + n_rows - 1}."
            )


def _check_positions(mask, T, S):
    if mask.q_pos.shape[-1] != T or mask.k_pos.shape[-1] != S:
        raise ValueError(
            f"{mask!r} stands at {mask.q_pos.shape[-1]} queries and {mask.k_pos.shape[-1]} keys, "
            f"but there are {T} and {S}."
        )
