"""Contracts: the properties that make attention what it is, each with a name, written once.

Chapters prove them, graders diagnose with them, tests assert them. A contract takes the function
under test and its inputs, returns None when it holds, and raises `ContractBroken` when it does
not, saying where, what was expected and what came, in small numbers.

Two kinds of function are tested:

- `attend(q, k, v)` or `attend(q, k, v, mask)`: (B, H, T, d), (B, G, S, d), (B, G, S, d_v)
  -> (B, H, T, d_v), like `tx.attention`;
- `f(x)`: a sequence in, a sequence out, (B, T, D) -> (B, T, E), like a layer or a model.

Everything is compared with an absolute tolerance of 5e-5, above the float32 noise of small models
(2.5e-5 was measured) and below the smallest effect of a real bug that we met (1.8e-4).
"""

import torch

TOLERANCE = 5e-5
NUDGE = 3.0  # how far a perturbed entry moves: large enough to be seen through a layer norm


class ContractBroken(AssertionError):
    """A named property does not hold.

    Attributes:
        name: the contract, in words.
        where: the first place where it breaks.
        expected, got: what was expected and found there, as short text.
    """

    def __init__(self, name, where, expected, got):
        self.name, self.where, self.expected, self.got = name, where, expected, got
        super().__init__(f"{name}: breaks at {where}\n  expected {expected}\n  got      {got}")


def _short(x, digits=4):
    """A tensor or number in a few digits."""
    if not isinstance(x, torch.Tensor):
        return str(x)
    numbers = [f"{n:.{digits}g}" for n in x.detach().flatten()[:8].tolist()]
    dots = " …" if x.numel() > 8 else ""
    return " ".join(numbers) + dots


def same(name, got, expected, where="", tolerance=TOLERANCE):
    """`got` equals `expected` in shape and value; NaN equals nothing."""
    if tuple(got.shape) != tuple(expected.shape):
        spot = f"{where}, the shape" if where else "the shape"
        raise ContractBroken(name, spot, tuple(expected.shape), tuple(got.shape))
    wrong = ~((got - expected).abs() <= tolerance)  # same shape; ~(<=) so that NaN counts as wrong
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        spot = f"index {at}" if at else "its value"
        row = at[:-1]  # the row around the first wrong number says more than the number
        digits = next((n for n in range(4, 10) if _short(expected[at], n) != _short(got[at], n)), 4)
        raise ContractBroken(
            name, f"{where}, {spot}" if where else spot,
            _short(expected[row], digits), _short(got[row], digits),
        )  # fmt: skip


def _nudged(x, t):
    """x (B, T, D) with every feature of token t moved."""
    moved = x.clone()  # (B, T, D)
    moved[:, t] += NUDGE * torch.linspace(1.0, -2.0, x.shape[-1], dtype=x.dtype)  # (B, D)
    return moved


def _moves(f, x, t):
    """Which rows of f(x) change when token t changes: (T,) booleans."""
    before, after = f(x), f(_nudged(x, t))  # (B, T, E), (B, T, E)
    return ~((after - before).abs() <= TOLERANCE).flatten(2).all(-1).all(0)  # (T,)


# ── who may look where ───────────────────────────────────────────────────────────────────────────


def causality(f, x):
    """No output depends on a later token: perturb token t, rows before t stay. x (B, T, D)."""
    for t in range(1, x.shape[1]):
        moved = _moves(f, x, t)[:t].nonzero().flatten().tolist()
        if moved:
            raise ContractBroken(
                "no look into the future", f"row {moved[0]}", f"row {moved[0]} ignores token {t}",
                f"row {moved[0]} changes when token {t} changes",
            )  # fmt: skip


def uses_every_past_key(f, x):
    """Every output depends on every token up to its own. x (B, T, D)."""
    for t in range(x.shape[1]):
        still = (~_moves(f, x, t))[t:].nonzero().flatten().tolist()
        if still:
            row = t + still[0]
            raise ContractBroken(
                "every past key is used", f"row {row}", f"row {row} uses token {t}",
                f"row {row} stays the same when token {t} changes",
            )  # fmt: skip


def sees_both_sides(f, x):
    """Every output depends on every token, as in an encoder. x (B, T, D)."""
    for t in range(x.shape[1]):
        still = (~_moves(f, x, t)).nonzero().flatten().tolist()
        if still:
            raise ContractBroken(
                "every token is seen from both sides", f"row {still[0]}",
                f"row {still[0]} uses token {t}",
                f"row {still[0]} stays the same when token {t} changes",
            )  # fmt: skip


def padding_content_is_invisible(f, x, real):
    """What stands at padding never changes a real row. f(x, real), x (B, T, D), real (B, T)."""
    junk = torch.where(real[..., None], x, x + 100.0)  # (B, T, D)
    kept, changed = f(x, real)[real], f(junk, real)[real]  # (N, E), (N, E)  N real tokens
    same("padding content is invisible", changed, kept, "real rows")


def empty_rows_are_zero(attend, q, k, v, mask, row):
    """A query that may see nothing reads zeros. `row` is the index of that query.

    q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v).
    """
    got = attend(q, k, v, mask)[:, :, row]  # (B, H, d_v)
    same("a query that sees nothing reads zeros", got, torch.zeros_like(got), f"row {row}")


# ── what an average can and cannot do ────────────────────────────────────────────────────────────


def rows_sum_to_one(weigh, *inputs):
    """Weights are not negative and every row sums to one: weigh(*inputs) -> (…, S)."""
    weights = weigh(*inputs)  # (..., S)
    if not bool((weights >= 0).all()):
        raise ContractBroken(
            "weights are not negative", "the smallest weight", "0 or more", _short(weights.min())
        )
    total = weights.sum(-1)  # (...)
    same("every row of weights sums to one", total, torch.ones_like(total), "the row sums")


def one_token_is_its_value(attend, v):
    """With a single key there is nothing to choose: the output is the value. v (…, 1, d)."""
    q = torch.linspace(-1.0, 2.0, v.numel(), dtype=v.dtype).view(v.shape)  # (..., 1, d)
    same("one token reads its own value", attend(q, q.flip(-1), v), v)


def convexity(attend, q, k, v):
    """Every output lies between the smallest and the largest value of its feature.

    q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v).
    """
    out = attend(q, k, v)  # (B, H, T, d_v)
    low, high = v.amin(2, keepdim=True), v.amax(2, keepdim=True)  # (B, G, 1, d_v), (B, G, 1, d_v)
    groups = out.shape[1] // v.shape[1]
    low, high = (x.repeat_interleave(groups, 1) for x in (low, high))
    same("an output lies within the range of the values", out, out.clamp(low, high))


def permutation_equivariance(f, x, order=None):
    """Permuting the tokens permutes the outputs. x (B, T, D), order (T,)."""
    order = torch.arange(x.shape[1]).roll(1) if order is None else order  # (T,)
    same("permuting the tokens permutes the outputs", f(x[:, order]), f(x)[:, order])


def permutation_invariance(f, x, order=None):
    """Permuting the tokens changes nothing, as after pooling. f: (B, T, D) -> (B, E)."""
    order = torch.arange(x.shape[1]).roll(1) if order is None else order  # (T,)
    same("permuting the tokens changes nothing", f(x[:, order]), f(x))


def keys_are_a_set(attend, q, k, v):
    """The order in which keys and values are stored does not matter to any query."""
    order = torch.arange(k.shape[2]).roll(1)  # (S,)
    same("the order of the keys does not matter", attend(q, k[:, :, order], v[:, :, order]),
         attend(q, k, v))  # fmt: skip


# ── rows, heads and chunks keep to themselves ────────────────────────────────────────────────────


def batch_independence(f, x):
    """Every row of the batch gives what it gives alone. x (B, …)."""
    whole = f(x)
    for b in range(x.shape[0]):
        try:
            same("batch rows are independent", whole[b], f(x[b : b + 1])[0], f"batch row {b}")
        except ContractBroken as broken:
            expected, got = f"{broken.expected} as it gives alone", f"{broken.got} in the batch"
            raise ContractBroken(broken.name, broken.where, expected, got) from None


def positions_stay_put(split, x):
    """A token's features stay at its position. split: (B, T, D) -> (B, H, T, d_k)."""
    T = x.shape[1]
    for t in range(T):
        changed = (split(_nudged(x, t)) != split(x)).transpose(1, 2).flatten(2)  # (B, T, D)
        rows = changed.any(-1).any(0)  # (T,)
        wrong = (rows != (torch.arange(T) == t)).nonzero().flatten().tolist()
        if wrong:
            raise ContractBroken(
                "positions stay put", f"token {t}", f"only position {t} changes with token {t}",
                f"positions {rows.nonzero().flatten().tolist()} change",
            )  # fmt: skip


def round_trip(split, merge, x):
    """Merging undoes splitting: merge(split(x)) = x."""
    same("merging undoes splitting", merge(split(x)), x)


def chunks_equal_the_whole(attend, q, k, v, cuts):
    """Queries that arrive in chunks, each seeing the keys so far, give the rows of one pass.

    attend(q, k, v) is causal; cuts are the lengths of the chunks and sum to T.
    """
    whole, start = attend(q, k, v), 0  # (B, H, T, d_v)
    for n in cuts:
        stop = start + n
        part = attend(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop])  # (B, H, n, d_v)
        same("chunks give the rows of one pass", part, whole[:, :, start:stop],
             f"queries {start}…{stop - 1} with {stop} keys")  # fmt: skip
        start = stop


def dtype_is(got, expected):
    """The numbers of a tensor have the dtype that was promised."""
    if got.dtype != expected:
        raise ContractBroken("the dtype is the promised one", "the dtype", expected, got.dtype)


def only_the_distance_counts(turn, q, k, step=3):
    """Moving all positions by one step changes no score: turn(x, positions) turns x (T, d_k). q, k (T, d_k)."""
    at = torch.arange(len(q))  # (T,)
    before = turn(q, at) @ turn(k, at).mT  # (T, T)
    after = turn(q, at + step) @ turn(k, at + step).mT  # (T, T)
    same("only the distance counts", after, before, f"the scores, {step} positions on")


def turning_keeps_lengths(turn, x):
    """A turn changes no vector's length: turn(x, positions) -> (T, d_k). x (T, d_k)."""
    turned = turn(x, torch.arange(len(x)))  # (T, d_k)
    same("turning keeps lengths", turned.norm(dim=-1), x.norm(dim=-1), "the lengths")


def grouped_equals_multihead(attend, q, k, v):
    """Grouped heads equal multi-head attention whose keys and values were copied to the group."""
    groups = q.shape[1] // k.shape[1]
    copied = attend(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
    same("grouped heads equal their copies", attend(q, k, v), copied)
