"""Wrong and right answers to the exercises of chapter 3."""

import math

import torch
import torch.nn.functional as F

from tests.mutants import right, right_source, wrong, wrong_source

# ── causal_mask ──────────────────────────────────────────────────────────────────────────────────


@wrong("causal_mask", "the triangle of T = S, aligned to the upper left corner")
def _(T, S):
    return torch.ones(T, S).tril().bool()


@wrong("causal_mask", "a query does not see its own position")
def _(T, S):
    return torch.arange(S) < torch.arange(T)[:, None] + S - T


@wrong("causal_mask", "a query also sees the key after its own position")
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T + 1)


@wrong("causal_mask", "True = hidden, as in nn.MultiheadAttention")
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)


@wrong("causal_mask", "the future and itself in place of the past")
def _(T, S):
    return torch.arange(S) >= torch.arange(T)[:, None] + S - T


@wrong("causal_mask", "the offset has the wrong sign, T - S")
def _(T, S):
    return torch.arange(S) <= torch.arange(T)[:, None] + T - S


@wrong("causal_mask", "numbers 0 and 1 in place of booleans")
def _(T, S):
    return torch.ones(T, S).tril(S - T)


@wrong("causal_mask", "an additive mask, 0 and -inf")
def _(T, S):
    return torch.full((T, S), -math.inf).triu(S - T + 1)


@wrong("causal_mask", "axes for batch and heads are added")
def _(T, S):
    return torch.ones(1, 1, T, S, dtype=torch.bool).tril(S - T)


@wrong("causal_mask", "keys in the rows and queries in the columns")
def _(T, S):
    return torch.arange(S)[:, None] <= torch.arange(S - T, S)


@wrong("causal_mask", "the whole square of S by S")
def _(T, S):
    return torch.ones(S, S, dtype=torch.bool).tril()


@wrong("causal_mask", "the last T rows of the square, which are too few for T > S")
def _(T, S):
    return torch.ones(S, S, dtype=torch.bool).tril()[-T:]


@wrong("causal_mask", "an offset is never negative, so T > S starts at the upper left")
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(max(S - T, 0))


@wrong("causal_mask", "a query that would see nothing is given key 0")
def _(T, S):
    keep = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    keep[:, 0] = True
    return keep


@wrong("causal_mask", "the distance on both sides: abs of the positions' difference")
def _(T, S):
    q = torch.arange(S - T, S)[:, None]
    return (q - torch.arange(S)).abs() <= q


@wrong("causal_mask", "positions counted from 1 for the queries and from 0 for the keys")
def _(T, S):
    return torch.arange(S) <= torch.arange(1, T + 1)[:, None] + (S - T)


@wrong("causal_mask", "a list of lists as the page's loop would make it")
def _(T, S):
    return [[j <= i + S - T for j in range(S)] for i in range(T)]


@right("causal_mask", "the lower triangle, moved by S - T")
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


@right("causal_mask", "not the upper triangle")
def _(T, S):
    return torch.ones(T, S).triu(1 + S - T) == 0


@right("causal_mask", "both ends counted backwards from the last token")
def _(T, S):
    back_q = torch.arange(T - 1, -1, -1).view(T, 1)
    back_k = torch.arange(S - 1, -1, -1).view(1, S)
    return back_q.le(back_k)


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


@wrong("visible_pairs", "every query sees W keys, the ramp is forgotten")
def _(T, S, W):
    return T * W


@wrong("visible_pairs", "a ramp that is never full: as if T = S and the window never wider than the text")
def _(T, S, W):
    return T * W - W * (W - 1) // 2


@wrong("visible_pairs", "the window does not count the query itself, so W + 1 keys are seen")
def _(T, S, W):
    def upto(N):
        m = min(N, W + 1)
        return m * (m + 1) // 2 + (N - m) * (W + 1)

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "the query itself is left out: W - 1 keys are seen")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m * (m - 1) // 2 + (N - m) * (W - 1)

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "the queries stand at 0 … T - 1")
def _(T, S, W):
    m = min(T, W)
    return m * (m + 1) // 2 + (T - m) * W


@wrong("visible_pairs", "all S tokens ask")
def _(T, S, W):
    m = min(S, W)
    return m * (m + 1) // 2 + (S - m) * W


@wrong("visible_pairs", "the queries start one position too late")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m * (m + 1) // 2 + (N - m) * W

    return upto(S) - upto(S - T + 1)


@wrong("visible_pairs", "the window is forgotten: causal pairs only")
def _(T, S, W):
    return S * (S + 1) // 2 - (S - T) * (S - T + 1) // 2


@wrong("visible_pairs", "the ramp has W - 1 steps, but W of them are cut from the plateau")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m * (m - 1) // 2 + (N - m) * W

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "a window wider than the text makes the plateau negative")
def _(T, S, W):
    def upto(N):
        return W * (W + 1) // 2 + (N - W) * W if N else 0

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "a window that looks to both sides")
def _(T, S, W):
    return sum(min(p, W - 1) + 1 + min(S - 1 - p, W - 1) for p in range(S - T, S))


@wrong("visible_pairs", "the halves are divided as floats: not a whole number's type")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m * (m + 1) / 2 + (N - m) * W

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "summed in fp32, which has no more than 24 bits")
def _(T, S, W):
    n = torch.arange(S - T + 1, S + 1).clamp(max=W).float()
    return int(n.cumsum(0)[-1])


@wrong("visible_pairs", "the pairs that are hidden")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m * (m + 1) // 2 + (N - m) * W

    return T * S - (upto(S) - upto(S - T))


@wrong("visible_pairs", "the division comes first: half of W, rounded down, times W + 1")
def _(T, S, W):
    def upto(N):
        m = min(N, W)
        return m // 2 * (m + 1) + (N - m) * W

    return upto(S) - upto(S - T)


@right("visible_pairs", "a sum over the queries, one number each")
def _(T, S, W):
    return sum(min(W, p + 1) for p in range(S - T, S))


@right("visible_pairs", "the plateau minus what the first queries lack")
def _(T, S, W):
    first = S - T + 1  # keys that the first query could see
    short = max(0, min(W - first, T))  # so many queries see less than W
    lacks = W - first
    return T * W - short * (lacks + lacks - short + 1) // 2


@right("visible_pairs", "a vector of counts instead of a mask")
def _(T, S, W):
    return int(torch.arange(S - T + 1, S + 1).clamp(max=W).sum())


@right("visible_pairs", "causal pairs minus those that lie behind the window")
def _(T, S, W):
    def triangle(n):
        n = max(n, 0)
        return n * (n + 1) // 2

    return triangle(S) - triangle(S - T) - triangle(S - W) + triangle(S - T - W)


wrong_source("visible_pairs", "a window that is counted down and never reached", '''
def visible_pairs(T, S, W):
    total, p = 0, S - T
    while p != S:
        total += min(W, p + 1)
        p -= 1
    return total
''', expect="timeout")

wrong_source("visible_pairs", "a name from another cell", '''
def visible_pairs(T, S, W):
    return ramp(S, W) - ramp(S - T, W)
''', expect="error")

# ── masked_softmax ───────────────────────────────────────────────────────────────────────────────


def _stable(scores, keep):
    fenced = scores.masked_fill(~keep, -math.inf)
    top = fenced.amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    e = (fenced - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


@wrong("masked_softmax", "rows that see nothing are NaN")
def _(scores, keep):
    e = scores.masked_fill(~keep, -math.inf)
    e = (e - e.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "hidden scores become -1e9, so an empty row is uniform")
def _(scores, keep):
    e = scores.masked_fill(~keep, -1e9)
    e = (e - e.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "hidden scores become -100, which is not low beside scores of -1000")
def _(scores, keep):
    e = scores.masked_fill(~keep, -100.0)
    e = (e - e.amax(-1, keepdim=True)).exp() * keep.any(-1, keepdim=True)
    return e / e.sum(-1, keepdim=True).clamp_min(1e-30)


@wrong("masked_softmax", "the typo -1e-9 fills the hidden scores")
def _(scores, keep):
    e = scores.masked_fill(~keep, -1e-9)
    e = (e - e.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "the weights of hidden keys are set to 0 after the softmax")
def _(scores, keep):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) * keep


@wrong("masked_softmax", "zeroed after the softmax and divided by the sum again")
def _(scores, keep):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(1e-20)


@wrong("masked_softmax", "an additive mask of -inf, then nan_to_num: NaN comes back as gradient")
def _(scores, keep):
    bias = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    fenced = scores + bias
    e = (fenced - fenced.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).nan_to_num(0.0)


@wrong("masked_softmax", "0/0 is computed and chosen away with where, so its gradient is NaN")
def _(scores, keep):
    fenced = scores + torch.zeros(keep.shape).masked_fill(~keep, -1e30)
    e = (fenced - fenced.amax(-1, keepdim=True)).exp() * keep
    total = e.sum(-1, keepdim=True)
    return torch.where(total > 0, e / total, 0.0)


@wrong("masked_softmax", "hidden exponentials overflow to inf and are multiplied by 0")
def _(scores, keep):
    fenced = scores.masked_fill(~keep, -1e30)
    e = (scores - fenced.amax(-1, keepdim=True)).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(1e-20)


@wrong("masked_softmax", "exponentials without subtracting the largest")
def _(scores, keep):
    e = scores.masked_fill(~keep, -math.inf).exp()
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


@wrong("masked_softmax", "the largest score of the whole tensor is subtracted, not that of the row")
def _(scores, keep):
    e = scores.masked_fill(~keep, -math.inf)
    e = (e - scores.amax()).exp()
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


@wrong("masked_softmax", "scores are clamped to ±50 in place of subtracting the largest")
def _(scores, keep):
    e = scores.clamp(-50, 50).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(1e-30)


@wrong("masked_softmax", "True = hidden")
def _(scores, keep):
    return _stable(scores, ~keep)


@wrong("masked_softmax", "softmax over the queries")
def _(scores, keep):
    return _stable(scores.mT, keep.expand(scores.shape).mT).mT


@wrong("masked_softmax", "hidden scores are multiplied by 0, and e^0 is 1")
def _(scores, keep):
    e = scores * keep
    e = (e - e.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "fills the caller's scores in place")
def _(scores, keep):
    scores.masked_fill_(~keep, -math.inf)
    return _stable(scores, keep)


@wrong("masked_softmax", "indexing with the mask, which does not broadcast")
def _(scores, keep):
    fenced = scores.clone()
    fenced[~keep] = -math.inf
    return _stable(fenced, keep)


@wrong("masked_softmax", "no gradient reaches the scores")
def _(scores, keep):
    return _stable(scores.detach(), keep)


@wrong("masked_softmax", "the exponentials are not divided by their sum")
def _(scores, keep):
    top = scores.masked_fill(~keep, -1e30).amax(-1, keepdim=True)
    return (scores.masked_fill(~keep, -math.inf) - top).exp()


@wrong("masked_softmax", "an empty row gives weight 1 to key 0")
def _(scores, keep):
    keep = keep.expand(scores.shape).clone()
    keep[..., 0] |= ~keep.any(-1)
    return _stable(scores, keep)


@wrong("masked_softmax", "the whole denominator is detached")
def _(scores, keep):
    fenced = scores.masked_fill(~keep, -math.inf)
    top = fenced.amax(-1, keepdim=True).clamp_min(-1e30).detach()
    e = (fenced - top).exp()
    total = e.sum(-1, keepdim=True).detach()
    return e / (total + (total == 0))


@wrong("masked_softmax", "a 1 in every denominator, the softmax that may attend to nothing")
def _(scores, keep):
    fenced = scores.masked_fill(~keep, -math.inf)
    top = fenced.amax(-1, keepdim=True).clamp_min(-1e30)
    e = (fenced - top).exp()
    return e / (1 + e.sum(-1, keepdim=True))


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
    sees = keep.any(-1, keepdim=True)
    fenced = scores.masked_fill(~(keep | ~sees), -math.inf)
    weights = (fenced - fenced.logsumexp(-1, keepdim=True)).exp()
    return weights.masked_fill(~sees, 0.0)


@right("masked_softmax", "0/0 is chosen away after the division, and its gradient before the exponential")
def _(scores, keep):
    top = scores.masked_fill(~keep, -1e30).amax(-1, keepdim=True).detach()
    e = torch.where(keep, (scores - top).clamp(max=0).exp(), 0.0)
    total = e.sum(-1, keepdim=True)
    return torch.where(total > 0, e / total, 0.0)


@right("masked_softmax", "row by row, only over the visible keys")
def _(scores, keep):
    keep = keep.expand(scores.shape)
    S = scores.shape[-1]
    rows = []
    for row, sees in zip(scores.reshape(-1, S), keep.reshape(-1, S), strict=True):
        out = torch.zeros_like(row)
        if sees.any():
            some = row[sees]
            e = (some - some.max()).exp()
            out = out.masked_scatter(sees, e / e.sum())
        rows.append(out + 0 * row)
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


def _pairs(real):
    if not (real[:, :-1] & real[:, 1:]).any():
        raise ValueError("no pair")
    return real[:, :-1] & real[:, 1:]


@wrong("next_token_loss", "no shift: the logits at t are for token t")
def _(logits, tokens, real):
    _pairs(real)
    return F.cross_entropy(logits.mT, tokens, reduction="none")[real].mean()


@wrong("next_token_loss", "shifted the other way: the logits at t + 1 are for token t")
def _(logits, tokens, real):
    each = F.cross_entropy(logits[:, 1:].mT, tokens[:, :-1], reduction="none")
    return each[_pairs(real)].mean()


@wrong("next_token_loss", "padding counts like everything else")
def _(logits, tokens, real):
    _pairs(real)
    return _each(logits, tokens).mean()


@wrong("next_token_loss", "only the target has to be real, so left padding asks once")
def _(logits, tokens, real):
    _pairs(real)
    return _each(logits, tokens)[real[:, 1:]].mean()


@wrong("next_token_loss", "only the asking token has to be real, so right padding is asked for once")
def _(logits, tokens, real):
    _pairs(real)
    return _each(logits, tokens)[real[:, :-1]].mean()


@wrong("next_token_loss", "one real token of the two is enough")
def _(logits, tokens, real):
    _pairs(real)
    return _each(logits, tokens)[real[:, :-1] | real[:, 1:]].mean()


@wrong("next_token_loss", "the pairs are zeroed, but the mean is over all of them")
def _(logits, tokens, real):
    return (_each(logits, tokens) * _pairs(real)).mean()


@wrong("next_token_loss", "divided by the number of real tokens, not of pairs")
def _(logits, tokens, real):
    return (_each(logits, tokens) * _pairs(real)).sum() / real.sum()


@wrong("next_token_loss", "the mean of the rows' means, so short rows weigh more")
def _(logits, tokens, real):
    pairs = _pairs(real)
    each = _each(logits, tokens) * pairs
    rows = pairs.any(-1)
    return (each.sum(-1)[rows] / pairs.sum(-1)[rows]).mean()


@wrong("next_token_loss", "the sum")
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs(real)].sum()


@wrong("next_token_loss", "in bits")
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs(real)].mean() / math.log(2)


@wrong("next_token_loss", "NaN where there is no pair, in place of the error")
def _(logits, tokens, real):
    return _each(logits, tokens)[real[:, :-1] & real[:, 1:]].mean()


@wrong("next_token_loss", "0 where there is no pair, in place of the error")
def _(logits, tokens, real):
    pairs = real[:, :-1] & real[:, 1:]
    return (_each(logits, tokens) * pairs).sum() / pairs.sum().clamp_min(1)


@wrong("next_token_loss", "an assertion in place of the ValueError")
def _(logits, tokens, real):
    pairs = real[:, :-1] & real[:, 1:]
    assert pairs.any(), "no pair"
    return _each(logits, tokens)[pairs].mean()


@wrong("next_token_loss", "an error only where no token is real, not where no pair is")
def _(logits, tokens, real):
    if not real.any():
        raise ValueError("no token")
    return _each(logits, tokens)[real[:, :-1] & real[:, 1:]].mean()


@wrong("next_token_loss", "an error as soon as one row has no pair")
def _(logits, tokens, real):
    pairs = real[:, :-1] & real[:, 1:]
    if not pairs.any(-1).all():
        raise ValueError("no pair")
    return _each(logits, tokens)[pairs].mean()


@wrong("next_token_loss", "token 0 is taken for padding")
def _(logits, tokens, real):
    _pairs(real)
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], ignore_index=0)


@wrong("next_token_loss", "the classes are left in the last axis")
def _(logits, tokens, real):
    return F.cross_entropy(logits[:, :-1], tokens[:, 1:], reduction="none")[_pairs(real)].mean()


@wrong("next_token_loss", "flattened first and shifted after, so pairs reach across the rows")
def _(logits, tokens, real):
    flat, names, here = logits.flatten(0, 1)[:-1], tokens.flatten(), real.flatten()
    pairs = here[:-1] & here[1:]
    if not pairs.any():
        raise ValueError("no pair")
    return F.cross_entropy(flat, names[1:], reduction="none")[pairs].mean()


@wrong("next_token_loss", "probabilities are handed to cross_entropy, which takes the softmax again")
def _(logits, tokens, real):
    return _each(logits.softmax(-1), tokens)[_pairs(real)].mean()


@wrong("next_token_loss", "writes -100 into the caller's tokens")
def _(logits, tokens, real):
    pairs = _pairs(real)
    tokens[:, 1:][~pairs] = -100
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:])


@wrong("next_token_loss", "a Python number, which has no gradient")
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs(real)].mean().item()


@wrong("next_token_loss", "no gradient reaches the logits")
def _(logits, tokens, real):
    return _each(logits.detach(), tokens)[_pairs(real)].mean()


@wrong("next_token_loss", "the mean log-likelihood, without the minus")
def _(logits, tokens, real):
    return -_each(logits, tokens)[_pairs(real)].mean()


@wrong("next_token_loss", "hidden logits become 0 and still count as a guess of 1/V")
def _(logits, tokens, real):
    _pairs(real)
    return _each(logits * real[..., None], tokens).mean()


@right("next_token_loss", "ignore_index, in a copy of the targets")
def _(logits, tokens, real):
    pairs = real[:, :-1].logical_and(real[:, 1:])
    if pairs.sum() == 0:
        raise ValueError("nobody asks")
    names = tokens[:, 1:].masked_fill(~pairs, -100)
    V = logits.shape[-1]
    return F.cross_entropy(logits[:, :-1].reshape(-1, V), names.reshape(-1))


@right("next_token_loss", "log-sum-exp minus the score of the right token")
def _(logits, tokens, real):
    pairs = _pairs(real)
    logits = logits[:, :-1]
    right_one = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    each = logits.logsumexp(-1) - right_one
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


wrong_source("next_token_loss", "a wrong name for the argument of cross_entropy", '''
import torch.nn.functional as F
def next_token_loss(logits, tokens, real):
    each = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduce="none", weights=real)
    return each.mean()
''', expect="error")

wrong_source("next_token_loss", "prints the loss and forgets to return it", '''
import torch.nn.functional as F
def next_token_loss(logits, tokens, real):
    pairs = real[:, 1:] & real[:, :-1]
    if not pairs.any():
        raise ValueError
    print(F.cross_entropy(logits[:, :-1][pairs], tokens[:, 1:][pairs]))
''', expect="wrong")

# ── leak_floor ───────────────────────────────────────────────────────────────────────────────────


@wrong("leak_floor", "ln V, as if nothing leaked")
def _(V, T, block):
    return math.log(V)


@wrong("leak_floor", "the page's one block, whatever the blocks are")
def _(V, T, block):
    return math.log(V) / T


@wrong("leak_floor", "one position in each block, as if all blocks were full")
def _(V, T, block):
    return math.log(V) / block


@wrong("leak_floor", "the last, shorter block is forgotten")
def _(V, T, block):
    return T // block * math.log(V) / T


@wrong("leak_floor", "one block too many where T divides evenly")
def _(V, T, block):
    return (T // block + 1) * math.log(V) / T


@wrong("leak_floor", "the last block is thought to see its target")
def _(V, T, block):
    return (math.ceil(T / block) - 1) * math.log(V) / T


@wrong("leak_floor", "rounded to the nearest number of blocks")
def _(V, T, block):
    return round(T / block) * math.log(V) / T


@wrong("leak_floor", "the positions that do see their target pay")
def _(V, T, block):
    return (T - math.ceil(T / block)) * math.log(V) / T


@wrong("leak_floor", "the mean over T + 1 tokens")
def _(V, T, block):
    return math.ceil(T / block) * math.log(V) / (T + 1)


@wrong("leak_floor", "blocks of T + 1 tokens, the target's counted with the input's")
def _(V, T, block):
    return math.ceil((T + 1) / block) * math.log(V) / T


@wrong("leak_floor", "in bits")
def _(V, T, block):
    return math.ceil(T / block) * math.log2(V) / T


@wrong("leak_floor", "the sum over the positions")
def _(V, T, block):
    return math.ceil(T / block) * math.log(V)


@wrong("leak_floor", "the perplexity")
def _(V, T, block):
    return math.exp(math.ceil(T / block) * math.log(V) / T)


@wrong("leak_floor", "the text's 12 positions are built in")
def _(V, T, block):
    return math.ceil(T / block) * math.log(V) / 12


@wrong("leak_floor", "the size of the text's vocabulary is built in")
def _(V, T, block):
    return math.ceil(T / block) * math.log(8) / T


@wrong("leak_floor", "whoever has to guess is given 1 - 1/V, the share of wrong guesses")
def _(V, T, block):
    return math.ceil(T / block) / T * (1 - 1 / V)


@wrong("leak_floor", "blind positions get ln V and the others ln 1 of a block, 1/V")
def _(V, T, block):
    blind = math.ceil(T / block)
    return (blind * math.log(V) + (T - blind) / V) / T


@wrong("leak_floor", "a position sees its block only up to itself, so all pay but those after a block")
def _(V, T, block):
    return sum(math.log(V) for t in range(T) if t % block) / T


@wrong("leak_floor", "the last position sees its target, which is not in the input, if its block is cut")
def _(V, T, block):
    return sum((t + 1) % block == 0 for t in range(T)) * math.log(V) / T


@right("leak_floor", "counts the positions that stand at the end of a block or of the text")
def _(V, T, block):
    blind = sum((t + 1) % block == 0 or t == T - 1 for t in range(T))
    return blind / T * math.log(V)


@right("leak_floor", "whole-number division, rounded up")
def _(V, T, block):
    return -(-T // block) * math.log(V) / T


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

wrong_source("leak_floor", "math.ln does not exist", '''
import math
def leak_floor(V, T, block):
    return math.ceil(T / block) * math.ln(V) / T
''', expect="error")

# ── first_leaking_row ────────────────────────────────────────────────────────────────────────────


@wrong("first_leaking_row", "compares with >, which is False for NaN")
def _(before, after, token, tolerance=5e-5):
    moved = (after - before)[:, :token].abs() > tolerance
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "rows from `token` on count, too")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the row of the token itself counts, too")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, : token + 1].abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the row right before the token is not looked at")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, : max(token - 1, 0)].abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the last leaking row")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[-1].item() if len(rows) else -1


@wrong("first_leaking_row", "how many rows leak")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    return moved.any(0).any(-1).sum().item() or -1


@wrong("first_leaking_row", "argmax alone, which is 0 where nothing leaks")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    return moved.any(0).any(-1).int().argmax().item() if token else -1


@wrong("first_leaking_row", "the row that moves most")
def _(before, after, token, tolerance=5e-5):
    if not token:
        return -1
    most = (after - before)[:, :token].abs().amax((0, 2))
    return -1 if (most <= tolerance).all() else most.argmax().item()


@wrong("first_leaking_row", "the signed change, so that a number that falls is not seen")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token] <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the first row of the batch alone")
def _(before, after, token, tolerance=5e-5):
    rows = (~((after - before)[0, :token].abs() <= tolerance)).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "a row counts only if it moves in every row of the batch")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    rows = moved.any(-1).all(0).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the mean change of a row, in which one number drowns")
def _(before, after, token, tolerance=5e-5):
    rows = (~((after - before)[:, :token].abs().mean((0, 2)) <= tolerance)).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the sum of a row's changes, so that noise adds up to a leak")
def _(before, after, token, tolerance=5e-5):
    rows = (~((after - before)[:, :token].abs().sum((0, 2)) <= tolerance)).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "any change at all, without the tolerance")
def _(before, after, token, tolerance=5e-5):
    rows = (before != after)[:, :token].any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the default tolerance is built in")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= 5e-5)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "isclose with its relative tolerance, so large numbers may move more")
def _(before, after, token, tolerance=5e-5):
    moved = ~torch.isclose(before, after, rtol=1e-3, atol=tolerance)[:, :token]
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "NaN is turned into 0 first")
def _(before, after, token, tolerance=5e-5):
    moved = (after - before).nan_to_num(0)[:, :token].abs() > tolerance
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "nothing is returned where nothing leaks")
def _(before, after, token, tolerance=5e-5):
    for t in range(token):
        if not ((after - before)[:, t].abs() <= tolerance).all():
            return t


@wrong("first_leaking_row", "the token's own number where nothing leaks")
def _(before, after, token, tolerance=5e-5):
    for t in range(token):
        if not ((after - before)[:, t].abs() <= tolerance).all():
            return t
    return token


@wrong("first_leaking_row", "the index is returned as a tensor of one element, (1,)")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0] if len(rows) else torch.tensor([-1])


@wrong("first_leaking_row", "no care for nothing found: the first of an empty list")
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    return moved.any(0).any(-1).nonzero()[0].item()


@wrong("first_leaking_row", "the first row that did not change")
def _(before, after, token, tolerance=5e-5):
    small = ((after - before)[:, :token].abs() <= tolerance).all(0).all(-1)
    rows = small.nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the batch row in place of the token: the axes are mixed up")
def _(before, after, token, tolerance=5e-5):
    rows = (~((after - before)[:, :token].abs() <= tolerance)).any(-1).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1


@wrong("first_leaking_row", "the difference is written into `after`")
def _(before, after, token, tolerance=5e-5):
    rows = (~(after.sub_(before)[:, :token].abs() <= tolerance)).any(0).any(-1).nonzero()
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
    most = (before[:, :token] - after[:, :token]).abs().amax((0, 2))
    calm = most.le(tolerance)
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
    moved = ~((after - before)[:, :token].abs() <= tolerance)
    rows = moved.any(0).any(-1).nonzero()
    return rows[0].item() if len(rows) else -1
''', expect="error")

# ── upside_down_mask ─────────────────────────────────────────────────────────────────────────────


def _explicit(q, k, v, keep, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~keep, -math.inf).softmax(-1) @ v


@wrong("upside_down_mask", "unchanged: True where SDPA should not look")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "triu becomes tril, and the 1 stays: the next token is seen")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).tril(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "triu becomes tril without an offset: right for T = S alone")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).tril().bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "is_causal, which is aligned to the upper left")
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("upside_down_mask", "the 1 is taken out: every query sees itself and the future")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the negated mask hides the query itself, too")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "no mask at all")
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@wrong("upside_down_mask", "without .bool() the ones are added to the scores of the future")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the triangle as numbers is subtracted: the future only loses 1")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = -torch.ones(T, S).triu(1 + S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the offset's sign is turned: T - S")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(1 + T - S).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the mask is transposed, which fits for T = S alone")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool().T
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the right mask, and no scale")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    return _explicit(q, k, v, torch.ones(T, S).bool().tril(S - T), scale=1.0)


@wrong("upside_down_mask", "scaled with the width of all heads")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    scale = (q.shape[1] * q.shape[3]) ** -0.5
    return _explicit(q, k, v, torch.ones(T, S).bool().tril(S - T), scale=scale)


@wrong("upside_down_mask", "the mask is put on after the softmax")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return weights.tril(S - T) @ v


@wrong("upside_down_mask", "the output is merged: (B, T, H·d_k)")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


@wrong("upside_down_mask", "dropout is left on")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)


@right("upside_down_mask", "the tilde")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@right("upside_down_mask", "the repaired mask as an additive one, -inf above the diagonal")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    bias = torch.full((T, S), -math.inf).triu(1 + S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@right("upside_down_mask", "the softmax by hand, without the fused kernel")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    return _explicit(q, k, v, torch.arange(S) <= torch.arange(S - T, S)[:, None])


@right("upside_down_mask", "query by query, each with the keys that it may see")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    rows = []
    for i in range(T):
        n = i + S - T + 1
        rows.append(F.scaled_dot_product_attention(q[:, :, i : i + 1], k[:, :, :n], v[:, :, :n]))
    return torch.cat(rows, 2)


wrong_source("upside_down_mask", "minus a boolean tensor, which PyTorch refuses", '''
import torch.nn.functional as F
def upside_down_mask(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = -torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
''', expect="error")

wrong_source("upside_down_mask", "the right mask, and is_causal beside it", '''
import torch.nn.functional as F
def upside_down_mask(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = ~torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)
''', expect="wrong")

# ── tree_mask ────────────────────────────────────────────────────────────────────────────────────


def _checked(parents):
    for i, p in enumerate(parents.tolist()):
        if not -1 <= p < i:
            raise ValueError(f"parent {p} of {i}")
    return parents.tolist()


def _grown(parents):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(_checked(parents)):
        if p >= 0:
            tree[i] |= tree[p]
    return tree


def _with_text(tree, n_past):
    return torch.cat([torch.ones(len(tree), n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "a causal mask: every guess sees all guesses before it")
def _(parents, n_past):
    return _with_text(torch.ones(len(parents), len(parents)).bool().tril(), n_past)


@wrong("tree_mask", "causal, and with the parents checked")
def _(parents, n_past):
    _checked(parents)
    return _with_text(torch.ones(len(parents), len(parents)).bool().tril(), n_past)


@wrong("tree_mask", "a guess sees itself and its parent, but no older ancestor")
def _(parents, n_past):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(_checked(parents)):
        if p >= 0:
            tree[i, p] = True
    return _with_text(tree, n_past)


@wrong("tree_mask", "two generations up and no further")
def _(parents, n_past):
    links = torch.eye(len(parents)).bool()
    for i, p in enumerate(_checked(parents)):
        if p >= 0:
            links[i, p] = True
    return _with_text((links.float() @ links.float()) > 0, n_past)


@wrong("tree_mask", "a guess does not see itself")
def _(parents, n_past):
    tree = _grown(parents)
    return _with_text(tree & ~torch.eye(len(parents)).bool(), n_past)


@wrong("tree_mask", "a guess sees its descendants in place of its ancestors")
def _(parents, n_past):
    return _with_text(_grown(parents).T, n_past)


@wrong("tree_mask", "ancestors and descendants alike")
def _(parents, n_past):
    tree = _grown(parents)
    return _with_text(tree | tree.T, n_past)


@wrong("tree_mask", "siblings see each other")
def _(parents, n_past):
    return _with_text(_grown(parents) | (parents[:, None] == parents), n_past)


@wrong("tree_mask", "the guesses stand before the text")
def _(parents, n_past):
    return torch.cat([_grown(parents), torch.ones(len(parents), n_past).bool()], 1)


@wrong("tree_mask", "the text is left out: (T, T)")
def _(parents, n_past):
    return _grown(parents)


@wrong("tree_mask", "nobody sees the text")
def _(parents, n_past):
    tree = _grown(parents)
    return torch.cat([torch.zeros(len(parents), n_past).bool(), tree], 1)


@wrong("tree_mask", "only the guesses that continue the text see it")
def _(parents, n_past):
    tree = _grown(parents)
    return torch.cat([(parents == -1)[:, None].expand(-1, n_past), tree], 1)


@wrong("tree_mask", "-1 is used as an index, so roots see the last guess")
def _(parents, n_past):
    _checked(parents)
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(parents):
        tree[i] |= tree[p]
    return _with_text(tree, n_past)


@wrong("tree_mask", "parent 0 is taken for no parent")
def _(parents, n_past):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(_checked(parents)):
        if p > 0:
            tree[i] |= tree[p]
    return _with_text(tree, n_past)


@wrong("tree_mask", "grows from the last guess to the first, before the parents are complete")
def _(parents, n_past):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in reversed(list(enumerate(_checked(parents)))):
        if p >= 0:
            tree[i] |= tree[p]
    return _with_text(tree, n_past)


@wrong("tree_mask", "True = hidden")
def _(parents, n_past):
    return ~_with_text(_grown(parents), n_past)


@wrong("tree_mask", "numbers in place of booleans")
def _(parents, n_past):
    return _with_text(_grown(parents), n_past).float()


@wrong("tree_mask", "no parent is refused")
def _(parents, n_past):
    tree = torch.eye(len(parents), dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        if 0 <= p < len(parents):
            tree[i] |= tree[p]
    return _with_text(tree, n_past)


@wrong("tree_mask", "parents below -1 are let through")
def _(parents, n_past):
    if (parents >= torch.arange(len(parents))).any():
        raise ValueError("a parent has to stand before its child")
    return _with_text(_grown(parents.clamp_min(-1)), n_past)


@wrong("tree_mask", "a guess may be its own parent")
def _(parents, n_past):
    places = torch.arange(len(parents))
    if (parents > places).any() or (parents < -1).any():
        raise ValueError("a parent has to stand before its child")
    return _with_text(_grown(parents.where(parents < places, -1)), n_past)


@wrong("tree_mask", "a tree has one root: a second -1 is refused")
def _(parents, n_past):
    if (parents[1:] < 0).any():
        raise ValueError("a second root")
    return _with_text(_grown(parents), n_past)


@wrong("tree_mask", "refused with an assertion")
def _(parents, n_past):
    assert (parents < torch.arange(len(parents))).all() and (parents >= -1).all()
    return _with_text(_grown(parents), n_past)


@wrong("tree_mask", "the parents are counted as keys, behind the text")
def _(parents, n_past):
    _checked(parents)
    keep = torch.zeros(len(parents), n_past + len(parents)).bool()
    keep[:, :n_past] = True
    for i, p in enumerate(parents.tolist()):
        keep[i, i + n_past] = True
        if p >= 0:
            keep[i, p] = True
            keep[i] |= keep[p]
    return keep


@wrong("tree_mask", "the parents are moved up by one in place")
def _(parents, n_past):
    _checked(parents)
    parents += 1
    tree = torch.eye(len(parents) + 1, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        tree[i + 1] |= tree[p]
    return _with_text(tree[1:, 1:], n_past)


@wrong("tree_mask", "same branch means same depth or less: a level sees all levels above")
def _(parents, n_past):
    depth = []
    for p in _checked(parents):
        depth.append(depth[p] + 1 if p >= 0 else 0)
    depth = torch.tensor(depth)
    above = (depth < depth[:, None]) | torch.eye(len(depth)).bool()
    return _with_text(above, n_past)


@wrong("tree_mask", "axes for batch and heads are added")
def _(parents, n_past):
    return _with_text(_grown(parents), n_past)[None, None]


@right("tree_mask", "walks up from every guess")
def _(parents, n_past):
    up = _checked(parents)
    keep = torch.zeros(len(up), n_past + len(up), dtype=torch.bool)
    keep[:, :n_past] = True
    for i in range(len(up)):
        j = i
        while j >= 0:
            keep[i, n_past + j] = True
            j = up[j]
    return keep


@right("tree_mask", "the inverse of 1 minus the matrix of parents")
def _(parents, n_past):
    T = len(parents)
    if ((parents < -1) | (parents >= torch.arange(T))).any():
        raise ValueError("not a tree")
    links = (parents[:, None] == torch.arange(T)).double()
    tree = torch.linalg.inv(torch.eye(T).double() - links) > 0.5
    return torch.cat((torch.ones(T, n_past) > 0, tree), dim=1)


@right("tree_mask", "a set of ancestors for every guess")
def _(parents, n_past):
    seen = []
    for i, p in enumerate(parents.tolist()):
        if p < -1 or p >= i:
            raise ValueError(f"{p} does not stand before {i}")
        seen.append({i} | (seen[p] if p >= 0 else set()))
    T = len(seen)
    rows = [[True] * n_past + [j in ours for j in range(T)] for ours in seen]
    return torch.tensor(rows, dtype=torch.bool).reshape(T, n_past + T)


right_source("tree_mask", "a row of zeros below the guesses, which index -1 finds", '''
def tree_mask(parents, n_past):
    T = len(parents)
    keep = torch.zeros(T + 1, n_past + T, dtype=torch.bool)
    keep[:, :n_past] = True
    for i in range(T):
        p = int(parents[i])
        if not (-1 <= p and p < i):
            raise ValueError("a parent stands before its child")
        keep[i] = keep[p]
        keep[i, n_past + i] = True
    return keep[:T]
''')

wrong_source("tree_mask", "walks up to the root and never leaves it", '''
def tree_mask(parents, n_past):
    T = len(parents)
    keep = torch.zeros(T, n_past + T, dtype=torch.bool)
    keep[:, :n_past] = True
    for i in range(T):
        j = i
        while True:
            keep[i, n_past + j] = True
            j = max(int(parents[j]), 0)
    return keep
''', expect="timeout")

wrong_source("tree_mask", "walks up past the root: index -1 leads on to the last guess", '''
def tree_mask(parents, n_past):
    T = len(parents)
    keep = torch.zeros(T, n_past + T, dtype=torch.bool)
    keep[:, :n_past] = True
    def up(i, j):
        keep[i, n_past + j] = True
        up(i, int(parents[j]))
    for i in range(T):
        up(i, i)
    return keep
''', expect="error")
