"""Wrong and right answers to the exercises of chapter 3."""

import math

import torch
import torch.nn.functional as F

from tests.mutants import right, wrong, wrong_source


def _each_is(register, exercise, *table):
    """Register answers that are one expression each: (what, function)."""
    for what, answer in table:
        register(exercise, what)(answer)


# ── causal_mask ──────────────────────────────────────────────────────────────────────────────────


def _compared(T, S, dtype):
    return torch.arange(S).to(dtype) <= torch.arange(S - T, S).to(dtype)[:, None]


_each_is(wrong, "causal_mask",
    ("axes for batch and heads are added", lambda T, S: torch.ones(1, 1, T, S, dtype=torch.bool).tril(S - T)),
    ("a single query gets a row without the T axis", lambda T, S: _compared(T, S, torch.long).squeeze(0)),
    ("a list of lists as the page's loop would make it",
     lambda T, S: [[j <= i + S - T for j in range(S)] for i in range(T)]),
    ("positions in 8 bits", lambda T, S: _compared(T, S, torch.int8)),
    ("positions in half precision: 2049 is 2048", lambda T, S: _compared(T, S, torch.half)),
)  # fmt: skip


@wrong("causal_mask", "the distance on both sides: abs of the positions' difference")
def _(T, S):
    q = torch.arange(S - T, S)[:, None]
    return (q - torch.arange(S)).abs() <= q


_each_is(right, "causal_mask",
    ("the lower triangle, moved by S - T", lambda T, S: torch.ones(T, S, dtype=torch.bool).tril(S - T)),
    ("not the upper triangle", lambda T, S: torch.ones(T, S).triu(1 + S - T) == 0),
    ("both ends counted backwards from the last token",
     lambda T, S: torch.arange(T - 1, -1, -1).view(T, 1).le(torch.arange(S - 1, -1, -1).view(1, S))),
)  # fmt: skip

wrong_source("causal_mask", "calls the mask of the package", '''
from tx import causal
def causal_mask(T, S):
    return causal().dense((1, 1, T, S))[0, 0]
''', expect="borrowed")

wrong_source("causal_mask", "a loop over the rows that forgets to count", '''
def causal_mask(T, S):
    keep = torch.zeros(T, S, dtype=torch.bool)
    i = 0
    while i < T:
        keep[i, : max(0, i + S - T + 1)] = True
    return keep
''', expect="timeout")

# ── visible_pairs ────────────────────────────────────────────────────────────────────────────────


_each_is(wrong, "visible_pairs",
    ("a window that looks to both sides and ends with the text",
     lambda T, S, W: sum(min(p, W - 1) + 1 + min(S - 1 - p, W - 1) for p in range(S - T, S))),
    ("summed in fp32, which has no more than 24 bits",
     lambda T, S, W: int(torch.arange(S - T + 1, S + 1).clamp(max=W).float().cumsum(0)[-1])),
    ("a float, which is not a whole number's type",
     lambda T, S, W: float(sum(min(W, p + 1) for p in range(S - T, S)))),
    ("full windows as soon as there is a past of any length",
     lambda T, S, W: T * min(W, S) if S > T else sum(min(W, p + 1) for p in range(T))),
    ("in the middle of the ramp it takes the first query for all",
     lambda T, S, W: T * min(W, S - T + 1) if S > T else sum(min(W, p + 1) for p in range(T))),
)  # fmt: skip
_each_is(right, "visible_pairs",
    ("a sum over the queries, one number each", lambda T, S, W: sum(min(W, p + 1) for p in range(S - T, S))),
    ("a vector of counts instead of a mask",
     lambda T, S, W: int(torch.arange(S - T + 1, S + 1).clamp(max=W).sum())),
)  # fmt: skip


@right("visible_pairs", "the plateau minus what the first queries lack")
def _(T, S, W):
    lacks = W - (S - T + 1)  # so many keys fewer than W the first query sees
    short = max(0, min(lacks, T))  # so many queries see fewer than W
    return T * W - short * (lacks + lacks - short + 1) // 2


@right("visible_pairs", "causal pairs minus those that lie behind the window")
def _(T, S, W):
    triangle = lambda n: max(n, 0) * (max(n, 0) + 1) // 2
    return triangle(S) - triangle(S - T) - triangle(S - W) + triangle(S - T - W)


wrong_source("visible_pairs", "a window that is counted down and never reached", '''
def visible_pairs(T, S, W):
    total, p = 0, S - T
    while p != S:
        total += min(W, p + 1)
        p -= 1
    return total
''', expect="timeout")

# ── masked_softmax ───────────────────────────────────────────────────────────────────────────────


def _parts(scores, keep):
    """Exponentials of the visible scores less the largest of a row, and their sums."""
    fenced = scores.masked_fill(~keep, -math.inf)
    top = fenced.amax(-1, keepdim=True)
    e = (fenced - torch.where(top == -math.inf, 0.0, top)).exp()
    return e, e.sum(-1, keepdim=True)


def _stable(scores, keep):
    e, total = _parts(scores, keep)
    return e / torch.where(total == 0, 1.0, total)


def _opened(scores, keep):
    """`keep` with key 0 opened for rows that see nothing."""
    keep = keep.expand(scores.shape)
    return keep | (~keep.any(-1, keepdim=True) & (torch.arange(keep.shape[-1]) == 0))


@wrong("masked_softmax", "0/0 is computed and chosen away with where, so its gradient is NaN")
def _(scores, keep):
    fenced = scores + torch.zeros(keep.shape).masked_fill(~keep, -1e30)
    e = (fenced - fenced.amax(-1, keepdim=True)).exp() * keep
    total = e.sum(-1, keepdim=True)
    return torch.where(total > 0, e / total, 0.0)


@wrong("masked_softmax", "hidden exponentials overflow, are hidden by where, and come back as a gradient")
def _(scores, keep):
    e = torch.where(keep, (scores - scores.masked_fill(~keep, -1e30).amax(-1, keepdim=True)).exp(), 0.0)
    return e / e.sum(-1, keepdim=True).clamp_min(1e-20)


@wrong("masked_softmax", "hidden exponentials overflow to inf and are multiplied by 0")
def _(scores, keep):
    e = (scores - scores.masked_fill(~keep, -1e30).amax(-1, keepdim=True)).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(1e-20)


@wrong("masked_softmax", "indexing with the mask, which does not broadcast")
def _(scores, keep):
    fenced = scores.clone()
    fenced[~keep] = -math.inf
    return _stable(fenced, keep)


@wrong("masked_softmax", "emptiness judged over the batch: any example that sees is enough")
def _(scores, keep):
    seen = keep.expand_as(scores).any(-1, keepdim=True)
    weights = scores.masked_fill(~keep, -1e9).softmax(-1)
    return weights * (seen.flatten(0, -3).any(0) if seen.dim() > 2 else seen)


_each_is(wrong, "masked_softmax",
    ("an empty row gives weight 1 to key 0", lambda scores, keep: _stable(scores, _opened(scores, keep))),
    ("1e-4 in the denominator: a row sums to a little less than one",
     lambda scores, keep: _parts(scores, keep)[0] / (_parts(scores, keep)[1] + 1e-4)),
    ("no gradient reaches the scores", lambda scores, keep: _stable(scores.detach(), keep)),
)  # fmt: skip


@right("masked_softmax", "the largest made finite by a clamp, the denominator at least a small number")
def _(scores, keep):
    fenced = torch.where(keep, scores, -torch.inf)
    top = fenced.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    e = torch.exp(fenced - top.detach())
    return e / e.sum(-1, keepdim=True).clamp_min(1e-9)


@right("masked_softmax", "a fill that is finite, and empty rows erased by multiplication")
def _(scores, keep):
    fenced = scores.masked_fill(~keep, -1e9)
    e = (fenced - fenced.max(dim=-1, keepdim=True).values).exp() * keep
    return e / (e.sum(-1, keepdim=True) + 1e-12)


@right("masked_softmax", "through logsumexp, with rows that see nothing opened first and closed after")
def _(scores, keep):
    fenced = scores.masked_fill(~_opened(scores, keep), -math.inf)
    return (fenced - fenced.logsumexp(-1, keepdim=True)).exp() * keep


@right("masked_softmax", "row by row, only over the visible keys")
def _(scores, keep):
    keep, S, rows = keep.expand(scores.shape), scores.shape[-1], []
    for row, sees in zip(scores.reshape(-1, S), keep.reshape(-1, S), strict=True):
        rows.append(0 * row)
        if sees.any():
            e = (row[sees] - row[sees].max()).exp()
            rows[-1] = rows[-1].masked_scatter(sees, e / e.sum())
    return torch.stack(rows).reshape(scores.shape)


wrong_source("masked_softmax", "calls the softmax of the package, which has the policy", '''
import tx
def masked_softmax(scores, keep):
    return tx.softmax(scores.masked_fill(~keep, -torch.inf))
''', expect="borrowed")

wrong_source("masked_softmax", "a method that tensors do not have", '''
def masked_softmax(scores, keep):
    return scores.masked_fill(~keep, -torch.inf).masked_softmax(-1)
''', expect="error")

# ── next_token_loss ──────────────────────────────────────────────────────────────────────────────


def _each(logits, tokens):
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")


def _refuse(error=ValueError):
    raise error("no")


def _pairs(real, error=ValueError, enough=torch.Tensor.any):
    pairs = real[:, :-1] & real[:, 1:]
    return pairs if enough(pairs) else _refuse(error)


def _row_by_row(pairs):
    return pairs.any(-1).all()


@wrong("next_token_loss", "writes -100 into the caller's tokens")
def _(logits, tokens, real):
    tokens[:, 1:][~_pairs(real)] = -100
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:])


@wrong("next_token_loss", "the log of a probability plus 1e-9: a surprise costs 20.7 at most")
def _(logits, tokens, real):
    p = logits[:, :-1].softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return -(p + 1e-9).log()[_pairs(real)].mean()


@wrong("next_token_loss", "exponentials without the maximum: overflow for large logits")
def _(logits, tokens, real):
    each = logits.exp().sum(-1).log()[:, :-1] - logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    return each[_pairs(real)].mean()


_each_is(wrong, "next_token_loss",
    ("an assertion in place of the ValueError",
     lambda logits, tokens, real: _each(logits, tokens)[_pairs(real, AssertionError)].mean()),
    ("an error as soon as one row has no pair",
     lambda logits, tokens, real: _each(logits, tokens)[_pairs(real, enough=_row_by_row)].mean()),
    ("token 0 stands for padding, whatever `real` says",
     lambda logits, tokens, real: F.cross_entropy(
         logits[:, :-1].mT, tokens[:, 1:] + 0 * _pairs(real), ignore_index=0)),
    ("the classes are left in the last axis",
     lambda logits, tokens, real: F.cross_entropy(logits[:, :-1], tokens[:, 1:])),
    ("hidden logits become 0 and still count as a guess of 1/V",
     lambda logits, tokens, real: (_each(logits * real[..., None], tokens) + 0 * _pairs(real)).mean()),
    ("the number of pairs in 8 bits",
     lambda logits, tokens, real: _each(logits, tokens)[_pairs(real)].sum() / _pairs(real).sum(dtype=torch.uint8)),
    ("padding multiplied by 0, which makes NaN of NaN",
     lambda logits, tokens, real: (_each(logits, tokens) * _pairs(real)).sum() / _pairs(real).sum()),
    ("half precision inside: the third digit is wrong",
     lambda logits, tokens, real: _each(logits.half(), tokens)[_pairs(real)].to(logits.dtype).mean()),
    ("tokens in 16 bits",
     lambda logits, tokens, real: _each(logits, tokens.short().long() % logits.shape[-1])[_pairs(real)].mean()),
    ("a Python number, which has no gradient",
     lambda logits, tokens, real: _each(logits, tokens)[_pairs(real)].mean().item()),
    ("no gradient reaches the logits",
     lambda logits, tokens, real: _each(logits.detach(), tokens)[_pairs(real)].mean()),
    ("the mean log-likelihood, without the minus",
     lambda logits, tokens, real: -_each(logits, tokens)[_pairs(real)].mean()),
)  # fmt: skip


@right("next_token_loss", "ignore_index, in a copy of the targets")
def _(logits, tokens, real):
    names = tokens[:, 1:].masked_fill(~_pairs(real), -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), names.flatten())


@right("next_token_loss", "log-sum-exp minus the score of the right token")
def _(logits, tokens, real):
    pairs, logits = _pairs(real), logits[:, :-1]
    each = logits.logsumexp(-1) - logits.gather(-1, tokens[:, 1:, None])[..., 0]
    return each.where(pairs, 0).sum() / pairs.sum()


@right("next_token_loss", "two loops over rows and pairs")
def _(logits, tokens, real):
    losses = []
    for scores, names, here in zip(logits, tokens, real, strict=True):
        for t in range(len(names) - 1):
            if here[t] and here[t + 1]:
                losses.append(-scores[t].log_softmax(0)[names[t + 1]])
    if not losses:
        raise ValueError("no pair of real tokens")
    return sum(losses) / len(losses)


wrong_source("next_token_loss", "prints the loss and forgets to return it", '''
def next_token_loss(logits, tokens, real):
    print(torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:]))
''', expect="wrong")

# ── leak_floor ───────────────────────────────────────────────────────────────────────────────────

_each_is(wrong, "leak_floor",
    ("the text's 12 positions are built in", lambda V, T, block: math.ceil(T / block) * math.log(V) / 12),
    ("the size of the text's vocabulary is built in", lambda V, T, block: math.ceil(T / block) * math.log(8) / T),
    ("blind positions pay ln V, and the others 1/V",
     lambda V, T, block: (math.ceil(T / block) * math.log(V) + (T - math.ceil(T / block)) / V) / T),
    ("blind is the last but one of a block, and the very last",
     lambda V, T, block: sum((t + 2) % block == 0 or t == T - 1 for t in range(T)) * math.log(V) / T),
    ("an entropy summed over at most 1,000 tokens",
     lambda V, T, block: min(V, 1000) / V * math.log(V) * math.ceil(T / block) / T),
)  # fmt: skip
_each_is(right, "leak_floor",
    ("counts the positions that stand at the end of a block or of the text",
     lambda V, T, block: sum((t + 1) % block == 0 or t == T - 1 for t in range(T)) / T * math.log(V)),
    ("whole-number division, rounded up", lambda V, T, block: -(-T // block) * math.log(V) / T),
)  # fmt: skip


@right("leak_floor", "the mask is built and asked for each target")
def _(V, T, block):
    t = torch.arange(T)
    sees = t // block <= (t // block)[:, None]
    blind = [not (i + 1 < T and sees[i, i + 1]) for i in range(T)]
    return torch.tensor(blind).double().mean().item() * math.log(V)


wrong_source("leak_floor", "steps through the blocks and never gets on", '''
import math
def leak_floor(V, T, block):
    blind, start = 0, 0
    while start < T:
        blind += 1
        start + block
    return blind * math.log(V) / T
''', expect="timeout")

# ── first_leaking_row ────────────────────────────────────────────────────────────────────────────


def _moving(before, after, token, tolerance=5e-5):
    """The rows before the token that moved, (N, 1)."""
    return (~((after - before)[:, :token].abs() <= tolerance)).any(0).any(-1).nonzero()


_each_is(wrong, "first_leaking_row",
    ("nothing is returned where nothing leaks", lambda *args: next((t.item() for t in _moving(*args)), None)),
    ("the index is returned as a tensor of one element, (1,)",
     lambda *args: next(iter(_moving(*args)), torch.tensor([-1]))),
    ("no care for nothing found: the first of an empty list", lambda *args: _moving(*args)[0].item()),
)  # fmt: skip


@wrong("first_leaking_row", "rows after the token count, but not its own")
def _(before, after, token, tolerance=5e-5):
    rows = _moving(before, after, before.shape[1], tolerance)
    return rows[0].item() if len(rows) and rows[0] != token else -1


@wrong("first_leaking_row", "the largest change of no rows: an error for token 0")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs().amax(0).amax(-1) <= tolerance)
    return moved.int().argmax().item() if moved.max() else -1


@wrong("first_leaking_row", "the difference is written into `after`")
def _(before, after, token, tolerance=5e-5):
    rows = _moving(torch.zeros_like(before), after.sub_(before), token, tolerance)
    return rows[0].item() if len(rows) else -1


@right("first_leaking_row", "a loop that stops at the first row")
def _(before, after, token, tolerance=5e-5):
    for t in range(token):
        if not torch.allclose(before[:, t], after[:, t], rtol=0, atol=tolerance):
            return t
    return -1


@right("first_leaking_row", "NaN asked for by name, the smallest index by min")
def _(before, after, token, tolerance=5e-5):
    d = (after - before).abs()
    leaks = {t for _, t, _ in ((d > tolerance) | d.isnan()).nonzero().tolist() if t < token}
    return min(leaks, default=-1)


@right("first_leaking_row", "the largest change of each row, which keeps NaN, and argmax behind a check")
def _(before, after, token, tolerance=5e-5):
    calm = (before[:, :token] - after[:, :token]).abs().amax((0, 2)).le(tolerance)
    return -1 if calm.all() else calm.int().argmin().item()


wrong_source("first_leaking_row", "a loop over the rows that does not count on", '''
def first_leaking_row(before, after, token, tolerance=5e-5):
    t = 0
    while t < token:
        if not ((after - before)[:, t].abs() <= tolerance).all():
            return t
    return -1
''', expect="timeout")

wrong_source("first_leaking_row", "the tolerance is left out of the arguments and not known inside", '''
def first_leaking_row(before, after, token, tol=5e-5):
    return ((after - before)[:, :token].abs() <= tolerance).all(0).all(-1).int().argmin().item()
''', expect="error")

# ── upside_down_mask ─────────────────────────────────────────────────────────────────────────────


def _sees(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def _sdpa(q, k, v, keep=None, **options):
    keep = _sees(q.shape[2], k.shape[2]) if keep is None else keep
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, **options)


_each_is(wrong, "upside_down_mask",
    ("the mask is transposed, which fits for T = S alone",
     lambda q, k, v: _sdpa(q, k, v, ~_sees(q.shape[2], k.shape[2]).T)),
    ("scaled with the width of all heads",
     lambda q, k, v: _sdpa(q, k, v, scale=(q.shape[1] * q.shape[3]) ** -0.5)),
    ("the output is merged: (B, T, H·d_k)", lambda q, k, v: _sdpa(q, k, v).transpose(1, 2).flatten(2)),
    ("dropout is left on", lambda q, k, v: _sdpa(q, k, v, dropout_p=0.1)),
    ("keys and values carry no gradient", lambda q, k, v: _sdpa(q, k.detach(), v.detach())),
    ("the offset from the wrong axes: d_k - S, not S - T",
     lambda q, k, v: _sdpa(q, k, v, torch.ones(q.shape[2], k.shape[2]).tril(q.shape[3] - k.shape[2]).bool())),
    ("a single query, as in generation, sees the first key only",
     lambda q, k, v: _sdpa(q, k, v) if q.shape[2] > 1 else v[:, :, :1]),
)  # fmt: skip
_each_is(right, "upside_down_mask",
    ("the repaired mask as an additive one, -inf above the diagonal",
     lambda q, k, v: _sdpa(q, k, v, torch.zeros(()).masked_fill(~_sees(q.shape[2], k.shape[2]), -math.inf))),
)  # fmt: skip


@right("upside_down_mask", "the softmax by hand, without the fused kernel")
def _(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(~_sees(*scores.shape[2:]), -math.inf).softmax(-1) @ v


@right("upside_down_mask", "query by query, each with the keys that it may see")
def _(q, k, v):
    T, S, rows = q.shape[2], k.shape[2], []
    for i in range(T):
        n = i + S - T + 1
        rows.append(F.scaled_dot_product_attention(q[:, :, i : i + 1], k[:, :, :n], v[:, :, :n]))
    return torch.cat(rows, 2)


wrong_source("upside_down_mask", "minus a boolean tensor, which PyTorch refuses", '''
def upside_down_mask(q, k, v):
    mask = -torch.ones(q.shape[2], k.shape[2]).triu(1 + k.shape[2] - q.shape[2]).bool()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
''', expect="error")

wrong_source("upside_down_mask", "the right mask, and is_causal beside it", '''
def upside_down_mask(q, k, v):
    mask = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)
''', expect="wrong")

# ── tree_mask ────────────────────────────────────────────────────────────────────────────────────


def _checked(parents):
    for i, p in enumerate(parents.tolist()):
        if not -1 <= p < i:
            raise ValueError(f"parent {p} of {i}")
    return parents.tolist()


def _grown(parents, check=_checked):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(check(parents)):
        if 0 <= p < len(parents):
            tree[i] |= tree[p]
    return tree


def _links(parents):
    """Numbers (T, T): 1 for each guess and itself, 1 for each guess and its parent."""
    return (parents[:, None] == torch.arange(len(parents))).float() + torch.eye(len(parents))


def _with_text(tree, n_past):
    return torch.cat([torch.ones(len(tree), n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "the parents are counted as keys, behind the text")
def _(parents, n_past):
    keep = _with_text(torch.eye(len(parents), dtype=torch.bool), n_past)
    for i, p in enumerate(_checked(parents)):
        if p >= 0:
            keep[i, p] = True
            keep[i] |= keep[p]
    return keep


@wrong("tree_mask", "a level sees all levels above")
def _(parents, n_past):
    depth = _grown(parents).sum(1)
    return _with_text((depth < depth[:, None]) | torch.eye(len(depth)).bool(), n_past)


@wrong("tree_mask", "siblings see the older ones, and so do their descendants")
def _(parents, n_past):
    tree = _grown(parents).float()
    older = (parents[:, None] == parents) & (parents >= 0)
    return _with_text(tree @ (torch.eye(len(tree)) + older.tril(-1)) @ tree > 0, n_past)


@wrong("tree_mask", "squared as often as log2 T says, rounded down")
def _(parents, n_past):
    tree = _links(torch.tensor(_checked(parents)))
    for _ in range(int(math.log2(len(parents)))):
        tree = ((tree @ tree) > 0).float()
    return _with_text(tree.bool(), n_past)


@wrong("tree_mask", "the parents are moved up by one in place")
def _(parents, n_past):
    tree = _grown(parents)
    parents += 1
    return _with_text(tree, n_past)


_each_is(wrong, "tree_mask",
    ("no parent is refused", lambda parents, n_past: _with_text(_grown(parents, torch.Tensor.tolist), n_past)),
    ("a tree has one root: a second -1 is refused",
     lambda parents, n_past: _with_text(_grown(parents), n_past) if (parents[1:] >= 0).all() else _refuse()),
    ("the parents have to ascend: a depth-first order is refused",
     lambda parents, n_past: _with_text(_grown(parents), n_past) if (parents.diff() >= 0).all() else _refuse()),
    ("refused with an assertion",
     lambda parents, n_past: _with_text(_grown(parents), n_past)
     if ((parents >= -1) & (parents < torch.arange(len(parents)))).all() else _refuse(AssertionError)),
    ("eight generations",
     lambda parents, n_past: _with_text(_links(torch.tensor(_checked(parents))).matrix_power(8) > 0, n_past)),
    ("the number of paths in float32, which is infinite in a long branch",
     lambda parents, n_past: _with_text(_links(torch.tensor(_checked(parents))).matrix_power(400).bool(), n_past)),
    ("True = hidden", lambda parents, n_past: ~_with_text(_grown(parents), n_past)),
    ("numbers in place of booleans", lambda parents, n_past: _with_text(_grown(parents), n_past).float()),
)  # fmt: skip


@right("tree_mask", "walks up from every guess")
def _(parents, n_past):
    up, keep = _checked(parents), _with_text(torch.eye(len(parents), dtype=torch.bool), n_past)
    for i in range(len(up)):
        j = i
        while j >= 0:
            keep[i, n_past + j] = True
            j = up[j]
    return keep


@right("tree_mask", "the inverse of 1 minus the matrix of parents")
def _(parents, n_past):
    links = _links(torch.tensor(_checked(parents))).double()
    return _with_text(torch.linalg.inv(2 * torch.eye(len(links)).double() - links) > 0.5, n_past)


@right("tree_mask", "a set of ancestors for every guess")
def _(parents, n_past):
    seen = []
    for i, p in enumerate(_checked(parents)):
        seen.append({i} | (seen[p] if p >= 0 else set()))
    return _with_text(torch.tensor([[j in ours for j in range(len(seen))] for ours in seen]), n_past)


wrong_source("tree_mask", "walks up to the root and never leaves it", '''
def tree_mask(parents, n_past):
    keep = torch.zeros(len(parents), n_past + len(parents), dtype=torch.bool)
    j = len(parents) - 1
    while j >= 0:
        keep[-1, n_past + j] = True
        j = max(int(parents[j]), 0)
    return keep
''', expect="timeout")

wrong_source("tree_mask", "walks up past the root: index -1 leads on to the last guess", '''
def tree_mask(parents, n_past):
    def up(j):
        return {j} | up(int(parents[j]))
    return up(len(parents) - 1)
''', expect="error")
