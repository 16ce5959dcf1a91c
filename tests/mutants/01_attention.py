"""Wrong and right answers to the exercises of chapter 1."""

import math

import torch

from tests.mutants import right, right_source, wrong, wrong_source

# ── soft_lookup ──────────────────────────────────────────────────────────────────────────────────


@wrong("soft_lookup", "scaled by 1/√d_k, which was not asked for yet")
def _(q, k, v):
    return (k @ q / len(q) ** 0.5).softmax(-1) @ v


@wrong("soft_lookup", "exp without dividing by the sum")
def _(q, k, v):
    return (k @ q).exp() @ v


@wrong("soft_lookup", "the scores themselves are the weights")
def _(q, k, v):
    return (k @ q) @ v


@wrong("soft_lookup", "the scores divided by their sum, without exp")
def _(q, k, v):
    scores = k @ q
    return (scores / scores.sum()) @ v


@wrong("soft_lookup", "the value of the best key alone")
def _(q, k, v):
    return v[(k @ q).argmax()]


@wrong("soft_lookup", "the plain average of the values")
def _(q, k, v):
    return v.mean(0)


@wrong("soft_lookup", "the weighted values are averaged in place of summed")
def _(q, k, v):
    return ((k @ q).softmax(-1)[:, None] * v).mean(0)


@wrong("soft_lookup", "the weighted values are not summed: (S, d_v)")
def _(q, k, v):
    return (k @ q).softmax(-1)[:, None] * v


@wrong("soft_lookup", "the weighted values are summed over the features")
def _(q, k, v):
    return ((k @ q).softmax(-1)[:, None] * v).sum(-1)


@wrong("soft_lookup", "the weights and not what they read")
def _(q, k, v):
    return (k @ q).softmax(-1)


@wrong("soft_lookup", "an axis too many: (1, d_v)")
def _(q, k, v):
    return (q[None] @ k.T).softmax(-1) @ v


@wrong("soft_lookup", "softmax over the single query: every weight is 1")
def _(q, k, v):
    return ((q[None] @ k.T).softmax(0) @ v)[0]


@wrong("soft_lookup", "reads the keys in place of the values")
def _(q, k, v):
    return (k @ q).softmax(-1) @ k


@wrong("soft_lookup", "q @ k without the transpose")
def _(q, k, v):
    return (q @ k).softmax(-1) @ v


@wrong("soft_lookup", "a sigmoid for each key by itself")
def _(q, k, v):
    return (k @ q).sigmoid() @ v


@wrong("soft_lookup", "the nearest key wins, by distance, in place of the dot product")
def _(q, k, v):
    return (-(k - q).square().sum(-1)).softmax(-1) @ v


@wrong("soft_lookup", "the softmax is taken twice")
def _(q, k, v):
    return (k @ q).softmax(-1).softmax(-1) @ v


@wrong("soft_lookup", "the keys are multiplied by the query in place")
def _(q, k, v):
    return k.mul_(q).sum(-1).softmax(-1) @ v


@wrong("soft_lookup", "the four jars and three colours of the page are built in")
def _(q, k, v):
    out = torch.zeros(3)
    weights = (k[:4] @ q).softmax(-1)
    for s in range(4):
        out += weights[s] * v[s, :3]
    return out


@wrong("soft_lookup", "a list of numbers, as on the page, in place of a tensor")
def _(q, k, v):
    return ((k @ q).softmax(-1) @ v).tolist()


@wrong("soft_lookup", "softmax of the single products, before they are summed")
def _(q, k, v):
    return (k * q).softmax(0).sum(-1) @ v


@right("soft_lookup", "einsum, and exp over its sum")
def _(q, k, v):
    e = torch.einsum("sd,d->s", k, q).exp()
    return torch.einsum("s,sd->d", e / e.sum(), v)


@right("soft_lookup", "the loops of the page")
def _(q, k, v):
    scores = [sum(a * b for a, b in zip(q, key, strict=True)) for key in k]
    parts = [math.exp(s) for s in scores]
    return sum(p / sum(parts) * value for p, value in zip(parts, v, strict=True))


@right("soft_lookup", "the weighted sum divided last")
def _(q, k, v):
    scores = (q * k).sum(1)
    e = torch.exp(scores - scores.max())
    return (e[:, None] * v).sum(0) / e.sum()


wrong_source("soft_lookup", "calls the package's attention", '''
from tx import attention
def soft_lookup(q, k, v):
    return attention(q[None, None, None], k[None, None], v[None, None], scale=1.0)[0, 0, 0]
''', expect="borrowed")

wrong_source("soft_lookup", "calls PyTorch's attention", '''
import torch.nn.functional as F
def soft_lookup(q, k, v):
    return F.scaled_dot_product_attention(q[None], k, v, scale=1.0)[0]
''', expect="borrowed")

wrong_source("soft_lookup", "forgets the return", '''
def soft_lookup(q, k, v):
    scores = k @ q
    weights = scores.softmax(-1)
    weights @ v
''', expect="wrong")

# ── sharpen ──────────────────────────────────────────────────────────────────────────────────────


def _not_negative(temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")


def _limit(scores):
    best = (scores == scores.amax(-1, keepdim=True)).float()
    return best / best.sum(-1, keepdim=True)


@wrong("sharpen", "multiplies by the temperature")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else (scores * temperature).softmax(-1)


@wrong("sharpen", "at 0 the first of the largest takes everything")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).float()
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 each of the largest gets the weight 1")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return (scores == scores.amax(-1, keepdim=True)).float()
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 True and False in place of weights")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return scores == scores.amax(-1, keepdim=True)
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 all share equally, the limit of the other end")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return torch.full_like(scores, 1 / scores.shape[-1])
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 the largest of the whole tensor, not of each row")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        best = (scores == scores.max()).float()
        return best / best.sum()
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 divided by the count of the whole tensor")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        best = (scores == scores.amax(-1, keepdim=True)).float()
        return best / best.sum()
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 divides by 0")
def _(scores, temperature):
    _not_negative(temperature)
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "0 stands for a thousandth, so near ties share")
def _(scores, temperature):
    _not_negative(temperature)
    return (scores / max(temperature, 1e-3)).softmax(-1)


@wrong("sharpen", "a tenth is the smallest temperature")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else (scores / max(temperature, 0.1)).softmax(-1)


@wrong("sharpen", "every temperature below a twentieth is taken for 0")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature < 0.05 else (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 the plain softmax")
def _(scores, temperature):
    _not_negative(temperature)
    return (scores / (temperature or 1)).softmax(-1)


@wrong("sharpen", "no error for negative temperatures")
def _(scores, temperature):
    return _limit(scores) if temperature == 0 else (scores / temperature).softmax(-1)


@wrong("sharpen", "refuses 0 too")
def _(scores, temperature):
    if temperature <= 0:
        raise ValueError(f"temperature = {temperature}")
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "an assertion in place of a ValueError")
def _(scores, temperature):
    assert temperature >= 0
    return _limit(scores) if temperature == 0 else (scores / temperature).softmax(-1)


@wrong("sharpen", "refuses only -1 and below")
def _(scores, temperature):
    if temperature <= -1:
        raise ValueError(f"temperature = {temperature}")
    return _limit(scores) if temperature == 0 else (scores / temperature).softmax(-1)


@wrong("sharpen", "softmax along the first axis")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else (scores / temperature).softmax(0)


@wrong("sharpen", "divides the weights by the temperature, not the scores")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else scores.softmax(-1) / temperature


@wrong("sharpen", "powers of the weights that are not normalised again")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else scores.softmax(-1) ** (1 / temperature)


@wrong("sharpen", "divides by the root of the temperature")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else (scores / temperature**0.5).softmax(-1)


@wrong("sharpen", "rounds down: whole-number division")
def _(scores, temperature):
    _not_negative(temperature)
    return _limit(scores) if temperature == 0 else (scores // temperature).softmax(-1)


@wrong("sharpen", "divides the caller's scores in place")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return _limit(scores)
    scores /= temperature
    return scores.softmax(-1)


@wrong("sharpen", "exp without the shift overflows at low temperatures")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return _limit(scores)
    e = (scores / temperature).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("sharpen", "at 0 the row's largest has lost its axis")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        best = (scores == scores.amax(-1)).float()
        return best / best.sum(-1, keepdim=True)
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 always the two best share")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return torch.zeros_like(scores).scatter(-1, scores.topk(2, -1).indices, 0.5)
    return (scores / temperature).softmax(-1)


@wrong("sharpen", "at 0 the largest score itself is the weight")
def _(scores, temperature):
    _not_negative(temperature)
    if temperature == 0:
        return torch.where(scores == scores.amax(-1, keepdim=True), scores, 0.0).softmax(-1)
    return (scores / temperature).softmax(-1)


@right("sharpen", "at 0 the softmax of 0 and -inf")
def _(scores, temperature):
    if temperature < 0.0:
        raise ValueError("negative")
    top = scores.max(dim=-1, keepdim=True).values
    if temperature == 0:
        return torch.zeros_like(scores).masked_fill(scores < top, float("-inf")).softmax(-1)
    return torch.softmax((scores - top) / temperature, dim=-1)


@right("sharpen", "row by row in loops")
def _(scores, temperature):
    _not_negative(temperature)
    rows = []
    for row in scores.reshape(-1, scores.shape[-1]).tolist():
        top = max(row)
        e = [(math.exp((s - top) / temperature) if temperature else float(s == top)) for s in row]
        rows.append([x / sum(e) for x in e])
    return torch.tensor(rows).reshape(scores.shape)


@right("sharpen", "through the log-sum-exp; at 0 a mean over where it is largest")
def _(scores, temperature):
    if not temperature >= 0:
        raise ValueError("temperature")
    if not temperature:
        best = scores.eq(scores.max(-1, keepdim=True)[0])
        return best / best.sum(-1, keepdim=True)
    x = scores / temperature
    return (x - torch.logsumexp(x, -1, keepdim=True)).exp()


wrong_source("sharpen", "calls itself without end at 0", '''
def sharpen(scores, temperature):
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return sharpen(scores, temperature / 2)
    return torch.softmax(scores / temperature, -1)
''', expect="error")

wrong_source("sharpen", "cools down in a loop until it is certain, which a tie never is", '''
def sharpen(scores, temperature):
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        temperature = 1.0
        w = torch.softmax(scores, -1)
        while w.amax(-1).min() < 0.999:
            temperature = max(temperature / 2, 1e-6)
            w = torch.softmax(scores / temperature, -1)
        return w
    return torch.softmax(scores / temperature, -1)
''', expect="timeout")

# ── stable_softmax ───────────────────────────────────────────────────────────────────────────────


@wrong("stable_softmax", "nothing is subtracted")
def _(scores):
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the largest of the whole tensor: rows far below it underflow")
def _(scores):
    e = (scores - scores.max()).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the largest of each column is subtracted")
def _(scores):
    e = (scores - scores.amax(0, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the smallest score is subtracted")
def _(scores):
    e = (scores - scores.amin(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the mean is subtracted")
def _(scores):
    e = (scores - scores.mean(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "scores are clamped to ±80")
def _(scores):
    e = scores.clamp(-80, 80).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "divides by the largest score in place of subtracting it")
def _(scores):
    e = (scores / scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the largest absolute score is subtracted, and that is inf for -inf")
def _(scores):
    e = (scores - scores.abs().amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "-inf is turned to 0 before it starts")
def _(scores):
    s = torch.where(scores.isinf(), 0.0, scores)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "nan is replaced by 0 at the end, and the overflow stays")
def _(scores):
    e = scores.exp()
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


@wrong("stable_softmax", "normalised along the first axis")
def _(scores):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(0, keepdim=True)


@wrong("stable_softmax", "axis 1 in place of the last")
def _(scores):
    e = (scores - scores.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


@wrong("stable_softmax", "the sum over the whole tensor")
def _(scores):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum()


@wrong("stable_softmax", "the shift is done in place on the caller's scores")
def _(scores):
    scores -= scores.amax(-1, keepdim=True)
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "top and sum have lost their axis")
def _(scores):
    e = (scores - scores.amax(-1)).exp()
    return e / e.sum(-1)


@wrong("stable_softmax", "max with an axis gives a pair, and it is used as a tensor")
def _(scores):
    e = (scores - scores.max(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "the logarithm of the weights")
def _(scores):
    return scores - scores.logsumexp(-1, keepdim=True)


@wrong("stable_softmax", "not normalised")
def _(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


@wrong("stable_softmax", "powers of 2 in place of powers of e")
def _(scores):
    e = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "one is added to the denominator, the softmax that may attend to nothing")
def _(scores):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (1 + e.sum(-1, keepdim=True))


@wrong("stable_softmax", "a fixed 100 is subtracted")
def _(scores):
    e = (scores - 100).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("stable_softmax", "half precision on the way")
def _(scores):
    e = (scores - scores.amax(-1, keepdim=True)).half().exp()
    return (e / e.sum(-1, keepdim=True)).float()


@right("stable_softmax", "through the log-sum-exp")
def _(scores):
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


@right("stable_softmax", "powers of 2 with a factor, in double")
def _(scores):
    x = (scores - scores.max(-1, keepdim=True).values).double() / math.log(2)
    e = 2.0**x
    return (e / e.sum(-1, keepdim=True)).to(scores.dtype)


@right("stable_softmax", "row by row, the finite scores only")
def _(scores):
    flat = scores.reshape(-1, scores.shape[-1])
    out = torch.zeros_like(flat)
    for i, row in enumerate(flat):
        top = max(row.tolist())
        parts = [math.exp(s - top) for s in row.tolist()]
        out[i] = torch.tensor([p / sum(parts) for p in parts])
    return out.view(scores.shape)


@right("stable_softmax", "one over the sum of exp of all differences")
def _(scores):
    gaps = scores[..., None, :] - scores.masked_fill(scores.isinf(), -1e30)[..., None]
    return torch.where(scores.isinf(), 0.0, 1 / gaps.exp().sum(-1))


wrong_source("stable_softmax", "calls torch.softmax", '''
def stable_softmax(scores):
    return torch.softmax(scores, -1)
''', expect="borrowed")

wrong_source("stable_softmax", "calls the method softmax", '''
def stable_softmax(scores):
    return scores.softmax(dim=-1)
''', expect="borrowed")

wrong_source("stable_softmax", "calls the functional softmax", '''
import torch.nn.functional as F
def stable_softmax(scores):
    return F.softmax(scores, dim=-1)
''', expect="borrowed")

wrong_source("stable_softmax", "calls the package's softmax", '''
from tx import softmax
def stable_softmax(scores):
    return softmax(scores)
''', expect="borrowed")

wrong_source("stable_softmax", "calls a softmax module made beforehand", '''
soft = torch.nn.Softmax(-1)
def stable_softmax(scores):
    return soft(scores)
''', expect="borrowed")

wrong_source("stable_softmax", "exp of log_softmax", '''
def stable_softmax(scores):
    return torch.log_softmax(scores, -1).exp()
''', expect="borrowed")

wrong_source("stable_softmax", "softmax from torch.special", '''
def stable_softmax(scores):
    return torch.special.softmax(scores, -1)
''', expect="borrowed")

wrong_source("stable_softmax", "softmin of the negative scores", '''
import torch.nn.functional as F
def stable_softmax(scores):
    return F.softmin(-scores, dim=-1)
''', expect="borrowed")

wrong_source("stable_softmax", "a body of dots", '''
def stable_softmax(scores):
    ...
''', expect="wrong")

# ── attend ───────────────────────────────────────────────────────────────────────────────────────


def _fits(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")


def _weights(q, k):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


@wrong("attend", "no scale")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT).softmax(-1) @ v


@wrong("attend", "divides by d_k without the root")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


@wrong("attend", "multiplies by the root")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "the root of d_v")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "the root of the number of queries")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / q.shape[-2] ** 0.5).softmax(-1) @ v


@wrong("attend", "the root of the number of keys")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / k.shape[-2] ** 0.5).softmax(-1) @ v


@wrong("attend", "the root of the model's width, heads times d_k")
def _(q, k, v):
    _fits(q, k, v)
    heads = q.shape[-3] if q.dim() > 2 else 1
    return (q @ k.mT / (heads * q.shape[-1]) ** 0.5).softmax(-1) @ v


@wrong("attend", "softmax over the queries")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v


@wrong("attend", "axis 1, which is the last only for matrices")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(1) @ v


@wrong("attend", "the scale after the softmax")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5 @ v


@wrong("attend", "scaled twice, the queries and the scores")
def _(q, k, v):
    _fits(q, k, v)
    scale = q.shape[-1] ** -0.5
    return ((q * scale) @ k.mT * scale).softmax(-1) @ v


@wrong("attend", "k is turned with transpose(0, 1), which suits matrices only")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.transpose(0, 1) / q.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "k is reshaped in place of transposed: the right shape, other numbers")
def _(q, k, v):
    _fits(q, k, v)
    kt = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])
    return (q @ kt / q.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "no transpose at all, so it needs S equal to d_k")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k / q.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "no error of its own")
def _(q, k, v):
    return _weights(q, k) @ v


@wrong("attend", "only the widths of q and k are checked")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1]:
        raise ValueError("width")
    return _weights(q, k) @ v


@wrong("attend", "only the lengths of k and v are checked")
def _(q, k, v):
    if k.shape[-2] != v.shape[-2]:
        raise ValueError("length")
    return _weights(q, k) @ v


@wrong("attend", "an error only if both are wrong: and in place of or")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] and k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return _weights(q, k) @ v


@wrong("attend", "refuses more or fewer queries than keys")
def _(q, k, v):
    if q.shape != k.shape or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return _weights(q, k) @ v


@wrong("attend", "refuses values of another width than the keys")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape != v.shape:
        raise ValueError("shapes")
    return _weights(q, k) @ v


@wrong("attend", "checks axis 1 and axis 0, which are width and length only for matrices")
def _(q, k, v):
    if q.shape[1] != k.shape[1] or k.shape[0] != v.shape[0]:
        raise ValueError("shapes")
    return _weights(q, k) @ v


@wrong("attend", "an assertion in place of a ValueError")
def _(q, k, v):
    assert q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
    return _weights(q, k) @ v


@wrong("attend", "a causal mask, which nobody asked for")
def _(q, k, v):
    _fits(q, k, v)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


@wrong("attend", "weights and output as a pair")
def _(q, k, v):
    _fits(q, k, v)
    weights = _weights(q, k)
    return weights @ v, weights


@wrong("attend", "the weights and not what they read")
def _(q, k, v):
    _fits(q, k, v)
    return _weights(q, k)


@wrong("attend", "axes of size 1 are squeezed away")
def _(q, k, v):
    _fits(q, k, v)
    return (_weights(q, k) @ v).squeeze()


@wrong("attend", "the queries are scaled in place")
def _(q, k, v):
    _fits(q, k, v)
    q *= q.shape[-1] ** -0.5
    return (q @ k.mT).softmax(-1) @ v


@wrong("attend", "the naive softmax overflows for large scores")
def _(q, k, v):
    _fits(q, k, v)
    e = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return e / e.sum(-1, keepdim=True) @ v


@wrong("attend", "bmm: exactly one leading axis")
def _(q, k, v):
    _fits(q, k, v)
    return torch.bmm((torch.bmm(q, k.mT) * q.shape[-1] ** -0.5).softmax(-1), v)


@wrong("attend", "the keys of all sequences in one heap: the leading axes are flattened away")
def _(q, k, v):
    _fits(q, k, v)
    keys, values = k.reshape(-1, k.shape[-1]), v.reshape(-1, v.shape[-1])
    return _weights(q, keys) @ values


@wrong("attend", "the values are averaged once more over the keys")
def _(q, k, v):
    _fits(q, k, v)
    return _weights(q, k) @ v / k.shape[-2]


@wrong("attend", "queries and keys change places")
def _(q, k, v):
    _fits(q, k, v)
    return (k @ q.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@wrong("attend", "the whole-number root of d_k")
def _(q, k, v):
    _fits(q, k, v)
    return (q @ k.mT / math.isqrt(q.shape[-1])).softmax(-1) @ v


@right("attend", "einsum with an ellipsis")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1]:
        raise ValueError("q and k differ in width")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError("k and v differ in length")
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("...ts,...sd->...td", scores.softmax(-1), v)


@right("attend", "flattened to one leading axis, then bmm")
def _(q, k, v):
    _fits(q, k, v)
    lead = q.shape[:-2]
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    w = torch.softmax(torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)), -1)
    return torch.bmm(w, v).reshape(*lead, q.shape[-2], v.shape[-1])


@right("attend", "one key after the other with a running sum, never all weights at once")
def _(q, k, v):
    _fits(q, k, v)
    top = torch.full(q.shape[:-1] + (1,), float("-inf"))
    total, out = torch.zeros_like(top), torch.zeros(*q.shape[:-1], v.shape[-1])
    for s in range(k.shape[-2]):
        score = (q * k[..., s : s + 1, :]).sum(-1, keepdim=True) / q.shape[-1] ** 0.5
        new = torch.maximum(top, score)
        keep, e = (top - new).exp(), (score - new).exp()
        out, total, top = out * keep + e * v[..., s : s + 1, :], total * keep + e, new
    return out / total


@right("attend", "transposed throughout: keys by queries")
def _(q, k, v):
    _fits(q, k, v)
    scores = k @ q.transpose(-2, -1) / q.size(-1) ** 0.5
    return (v.transpose(-2, -1) @ scores.softmax(-2)).transpose(-2, -1)


wrong_source("attend", "calls PyTorch's attention", '''
import torch.nn.functional as F
def attend(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return F.scaled_dot_product_attention(q, k, v)
''', expect="borrowed")

wrong_source("attend", "calls the package's attention", '''
import tx
def attend(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return tx.attention(q, k, v)
''', expect="borrowed")

wrong_source("attend", "put together from the package's parts", '''
import tx
def attend(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return tx.read_out(tx.softmax(tx.similarity(q, k)), v)
''', expect="borrowed")

wrong_source("attend", "loops over the queries and leaves out the end", '''
def attend(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    rows, t = [], 0
    while True:
        w = torch.softmax(k @ q[..., t % q.shape[-2], :, None] / q.shape[-1] ** 0.5, -2)
        rows.append((w * v).sum(-2))
        t += 1
    return torch.stack(rows, -2)
''', expect="timeout")

# ── effective_keys ───────────────────────────────────────────────────────────────────────────────


@wrong("effective_keys", "0 · ln 0 becomes nan")
def _(weights):
    return (-(weights * weights.log()).sum(-1)).exp()


@wrong("effective_keys", "the entropy itself")
def _(weights):
    return torch.special.entr(weights).sum(-1)


@wrong("effective_keys", "e to the entropy in bits")
def _(weights):
    return (torch.special.entr(weights).sum(-1) / math.log(2)).exp()


@wrong("effective_keys", "2 to the entropy in nats")
def _(weights):
    return 2 ** torch.special.entr(weights).sum(-1)


@wrong("effective_keys", "the minus is missing, so it is one over the number")
def _(weights):
    return torch.xlogy(weights, weights).sum(-1).exp()


@wrong("effective_keys", "one over the sum of squares, another count")
def _(weights):
    return 1 / weights.square().sum(-1)


@wrong("effective_keys", "the number of weights that are not 0")
def _(weights):
    return (weights > 0).sum(-1)


@wrong("effective_keys", "one over the largest weight")
def _(weights):
    return 1 / weights.amax(-1)


@wrong("effective_keys", "a thousandth is added inside the log")
def _(weights):
    return (-(weights * (weights + 1e-3).log()).sum(-1)).exp()


@wrong("effective_keys", "weights are clamped to a thousandth from below")
def _(weights):
    w = weights.clamp(min=1e-3)
    return (-(w * w.log()).sum(-1)).exp()


@wrong("effective_keys", "the mean over the keys in place of the sum")
def _(weights):
    return torch.special.entr(weights).mean(-1).exp()


@wrong("effective_keys", "sums over the queries")
def _(weights):
    return torch.special.entr(weights).sum(0).exp()


@wrong("effective_keys", "axis 1 in place of the last")
def _(weights):
    return torch.special.entr(weights).sum(1).exp()


@wrong("effective_keys", "one number for the whole tensor")
def _(weights):
    return torch.special.entr(weights).sum().exp()


@wrong("effective_keys", "the average over all queries")
def _(weights):
    return torch.special.entr(weights).sum(-1).exp().mean()


@wrong("effective_keys", "e to the power of the average entropy")
def _(weights):
    return torch.special.entr(weights).sum(-1).mean().exp()


@wrong("effective_keys", "keeps the last axis with size 1")
def _(weights):
    return torch.special.entr(weights).sum(-1, keepdim=True).exp()


@wrong("effective_keys", "exp of each term before the sum")
def _(weights):
    return torch.special.entr(weights).exp().sum(-1)


@wrong("effective_keys", "zeros are replaced in the caller's weights")
def _(weights):
    weights[weights == 0] = 1e-30
    return (-(weights * weights.log()).sum(-1)).exp()


@wrong("effective_keys", "zeros are cut out, and the rows run into one another")
def _(weights):
    w = weights[weights > 0]
    return (-(w * w.log()).sum(-1)).exp()


@wrong("effective_keys", "the entropy as a share of its largest value")
def _(weights):
    return (torch.special.entr(weights).sum(-1) / math.log(weights.shape[-1])).exp()


@wrong("effective_keys", "takes the weights for scores and makes a softmax of them")
def _(weights):
    return torch.special.entr(weights.softmax(-1)).sum(-1).exp()


@wrong("effective_keys", "rounded to whole keys")
def _(weights):
    return torch.special.entr(weights).sum(-1).exp().round()


@wrong("effective_keys", "nan turned to 0 after the sum: a row with a zero counts as one key")
def _(weights):
    return torch.nan_to_num(-(weights * weights.log()).sum(-1)).exp()


@wrong("effective_keys", "a row with a zero is refused")
def _(weights):
    if (weights == 0).any():
        raise ValueError("log of 0")
    return (-(weights * weights.log()).sum(-1)).exp()


@right("effective_keys", "the product of w to the power of -w")
def _(weights):
    return (weights**-weights).prod(-1)


@right("effective_keys", "2 to the entropy in bits")
def _(weights):
    bits = -(weights * torch.where(weights > 0, weights, 1.0).log2()).sum(-1)
    return torch.exp2(bits)


@right("effective_keys", "nan cleared term by term")
def _(weights):
    return torch.exp(-(weights * weights.log()).nan_to_num(0.0).sum(dim=-1))


@right("effective_keys", "in a loop over the rows, with math")
def _(weights):
    rows = weights.reshape(-1, weights.shape[-1]).tolist()
    out = [math.exp(-sum(w * math.log(w) for w in row if w > 0)) for row in rows]
    return torch.tensor(out).reshape(weights.shape[:-1])


@right("effective_keys", "a tiny number keeps the log finite")
def _(weights):
    return (-(weights * (weights + 1e-12).log()).sum(-1)).exp()


wrong_source("effective_keys", "math.exp of a tensor with many entries", '''
import math
def effective_keys(weights):
    return math.exp(-torch.xlogy(weights, weights).sum(-1))
''', expect="error")

# ── batched_attention ────────────────────────────────────────────────────────────────────────────


@wrong("batched_attention", "only the scale is repaired")
def _(q, k, v):
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(1) @ v


@wrong("batched_attention", "only the softmax is repaired")
def _(q, k, v):
    scores = q * q.shape[1] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "the softmax runs over the batch")
def _(q, k, v):
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(0) @ v


@wrong("batched_attention", "the scale takes the batch's size")
def _(q, k, v):
    scores = q * q.shape[0] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "the scale takes the number of keys")
def _(q, k, v):
    scores = q * k.shape[1] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "the scale takes the width of the values")
def _(q, k, v):
    scores = q * v.shape[-1] ** -0.5 @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "the scale has lost its root")
def _(q, k, v):
    scores = q / q.shape[-1] @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "the scale has gone")
def _(q, k, v):
    return (q @ k.transpose(1, 2)).softmax(-1) @ v


@wrong("batched_attention", "the scale is now a product: -0.5 times d_k")
def _(q, k, v):
    scores = q * (q.shape[-1] * -0.5) @ k.transpose(1, 2)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "back to transpose(0, 1), the line that complained")
def _(q, k, v):
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(0, 1)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "k.T, which turns all three axes")
def _(q, k, v):
    scores = q * q.shape[-1] ** -0.5 @ k.permute(2, 1, 0)
    return scores.softmax(-1) @ v


@wrong("batched_attention", "k viewed as (B, d_k, S) in place of transposed")
def _(q, k, v):
    scores = q * q.shape[-1] ** -0.5 @ k.reshape(len(k), k.shape[2], k.shape[1])
    return scores.softmax(-1) @ v


@wrong("batched_attention", "all sequences are laid end to end and see each other")
def _(q, k, v):
    keys, values = k.flatten(0, 1), v.flatten(0, 1)
    return (q * q.shape[-1] ** -0.5 @ keys.T).softmax(-1) @ values


@wrong("batched_attention", "every sequence reads the first one's values")
def _(q, k, v):
    return (q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).softmax(-1) @ v[0]


@wrong("batched_attention", "only the first sequence is computed")
def _(q, k, v):
    return (q[0] * q.shape[-1] ** -0.5 @ k[0].T).softmax(-1) @ v[0]


@wrong("batched_attention", "the batch axis is averaged away")
def _(q, k, v):
    return ((q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).softmax(-1) @ v).mean(0)


@wrong("batched_attention", "softmax over queries and over keys")
def _(q, k, v):
    return (q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).softmax(1).softmax(-1) @ v


@wrong("batched_attention", "the weights are normalised again over the queries' sums")
def _(q, k, v):
    w = (q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).softmax(1)
    return w / w.sum(-1, keepdim=True) @ v


@wrong("batched_attention", "the queries are scaled in place")
def _(q, k, v):
    q *= q.shape[-1] ** -0.5
    return (q @ k.transpose(1, 2)).softmax(-1) @ v


@wrong("batched_attention", "a list with one tensor for each sequence")
def _(q, k, v):
    return [(a * a.shape[-1] ** -0.5 @ b.T).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]


@wrong("batched_attention", "the result of each sequence side by side: (T, B·d_v)")
def _(q, k, v):
    each = [(a * a.shape[-1] ** -0.5 @ b.T).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]
    return torch.cat(each, -1)


@right("batched_attention", "einsum, scale on the scores")
def _(q, k, v):
    scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(k.shape[2])
    return torch.einsum("bts,bsd->btd", scores.softmax(2), v)


@right("batched_attention", "the matrix function for each sequence, stacked")
def _(q, k, v):
    each = [(a @ b.T / a.shape[1] ** 0.5).softmax(1) @ c for a, b, c in zip(q, k, v, strict=True)]
    return torch.stack(each)


@right("batched_attention", "baddbmm and a shifted exp")
def _(q, k, v):
    zero = torch.zeros(q.shape[0], q.shape[1], k.shape[1])
    scores = torch.baddbmm(zero, q, k.mT, alpha=q.size(-1) ** -0.5)
    e = (scores - scores.amax(2, keepdim=True)).exp()
    return torch.bmm(e, v) / e.sum(2, keepdim=True)


wrong_source("batched_attention", "thrown away and PyTorch's attention called", '''
import torch.nn.functional as F
def batched_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)
''', expect="borrowed")

wrong_source("batched_attention", "the line that complained is deleted, its name is still used", '''
def batched_attention(q, k, v):
    scale = q.shape[-1] ** -0.5
    weights = torch.softmax(scores, dim=-1)
    return weights @ v
''', expect="error")

# ── count_flops ──────────────────────────────────────────────────────────────────────────────────


@wrong("count_flops", "a multiply-add counts once")
def _(T, S, d_k, d_v):
    return T * S * d_k + T * S * d_v


@wrong("count_flops", "only the scores")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k


@wrong("count_flops", "only the read-out")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_v


@wrong("count_flops", "the values are taken to be as wide as the keys")
def _(T, S, d_k, d_v):
    return 4 * T * S * d_k


@wrong("count_flops", "the keys are taken to be as wide as the values")
def _(T, S, d_k, d_v):
    return 4 * T * S * d_v


@wrong("count_flops", "as many keys as queries: T²")
def _(T, S, d_k, d_v):
    return 2 * T * T * (d_k + d_v)


@wrong("count_flops", "S² in place of T·S")
def _(T, S, d_k, d_v):
    return 2 * S * S * (d_k + d_v)


@wrong("count_flops", "n products and n-1 additions")
def _(T, S, d_k, d_v):
    return T * S * (2 * d_k - 1) + T * d_v * (2 * S - 1)


@wrong("count_flops", "the softmax is counted too, five operations a weight")
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v) + 5 * T * S


@wrong("count_flops", "the scale is counted too")
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v) + T * S


@wrong("count_flops", "widths multiplied in place of added")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k * d_v


@wrong("count_flops", "the read-out is taken for (T, d_k) times (d_k, d_v)")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k + 2 * T * d_k * d_v


@wrong("count_flops", "in millions, as the page prints it")
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v) / 1e6


@wrong("count_flops", "the page's width 64 is built in")
def _(T, S, d_k, d_v):
    return 4 * T * S * 64


@wrong("count_flops", "the sizes of the results, T·S and T·d_v, without the sums inside")
def _(T, S, d_k, d_v):
    return 2 * (T * S + T * d_v)


@wrong("count_flops", "factor 2 on the scores alone")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k + T * S * d_v


@wrong("count_flops", "scores and read-out as a pair")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k, 2 * T * S * d_v


@wrong("count_flops", "backward is counted too, three times the work")
def _(T, S, d_k, d_v):
    return 6 * T * S * (d_k + d_v)


@wrong("count_flops", "the larger of the two products")
def _(T, S, d_k, d_v):
    return 2 * T * S * max(d_k, d_v)


@wrong("count_flops", "lengths added in place of multiplied")
def _(T, S, d_k, d_v):
    return 2 * (T + S) * (d_k + d_v)


@right("count_flops", "one formula")
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v)


@right("count_flops", "dot products, counted by their lengths")
def _(T, S, d_k, d_v):
    ops = 0
    for how_many, length in ((T * S, d_k), (T * d_v, S)):
        ops += how_many * (length + length)
    return ops


@right("count_flops", "from the shapes of the two products")
def _(T, S, d_k, d_v):
    products = [(T, d_k, S), (T, S, d_v)]
    return sum(2 * math.prod(product) for product in products)


wrong_source("count_flops", "T is not a tensor and has no shape", '''
def count_flops(T, S, d_k, d_v):
    return 2 * T.shape[0] * S * (d_k + d_v)
''', expect="error")

wrong_source("count_flops", "print in place of return", '''
def count_flops(T, S, d_k, d_v):
    print(2 * T * S * (d_k + d_v))
''', expect="wrong")

# ── attention_backward ───────────────────────────────────────────────────────────────────────────


def _forward(q, k, v, grad):
    """The scale, the weights, and what arrives at them."""
    scale = q.shape[-1] ** -0.5
    w = (q @ k.mT * scale).softmax(-1)
    return scale, w, grad @ v.mT


def _back(w, g):
    return w * (g - (w * g).sum(-1, keepdim=True))


@wrong("attention_backward", "the scale is forgotten on the way back")
def _(q, k, v, grad):
    _, w, g = _forward(q, k, v, grad)
    s = _back(w, g)
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "only the queries' gradient is scaled")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g)
    return scale * s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the scale is applied twice on the way back")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return scale * s @ k, scale * s.mT @ q, w.mT @ grad


@wrong("attention_backward", "no scale, neither way")
def _(q, k, v, grad):
    w = (q @ k.mT).softmax(-1)
    s = _back(w, grad @ v.mT)
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "no scale on the way forward")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = (q @ k.mT).softmax(-1)
    s = _back(w, grad @ v.mT) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the softmax is skipped: its derivative is left out")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    return scale * g @ k, scale * g.mT @ q, w.mT @ grad


@wrong("attention_backward", "w times g: the sum over the row is missing")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * g * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "w(1 - w)g, the diagonal of the Jacobian alone")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (1 - w) * g * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the sum in the softmax runs over the queries")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (g - (w * g).sum(-2, keepdim=True)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the mean of g is subtracted, not its weighted mean")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (g - g.mean(-1, keepdim=True)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the unweighted sum of g is subtracted")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (g - g.sum(-1, keepdim=True)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the derivative of log_softmax in place of softmax")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = (g - w * g.sum(-1, keepdim=True)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the row sums have lost their axis (no keepdim)")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (g - (w * g).sum(-1)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "plus where the softmax's derivative has a minus")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = w * (g + (w * g).sum(-1, keepdim=True)) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the values' gradient without the transpose")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ k, s.mT @ q, w @ grad


@wrong("attention_backward", "the keys' gradient without the transpose")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ k, s @ q, w.mT @ grad


@wrong("attention_backward", "queries and keys change places in the last step")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ q, s.mT @ k, w.mT @ grad


@wrong("attention_backward", "the order of the result is k, q, v")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s.mT @ q, s @ k, w.mT @ grad


@wrong("attention_backward", "the values' gradient comes first")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return w.mT @ grad, s @ k, s.mT @ q


@wrong("attention_backward", "all signs turned, as for a step downhill")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return -(s @ k), -(s.mT @ q), -(w.mT @ grad)


@wrong("attention_backward", "ones in place of the gradient that arrives")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, torch.ones_like(grad))
    s = _back(w, g) * scale
    return s @ k, s.mT @ q, w.mT @ torch.ones_like(grad)


@wrong("attention_backward", "the values' gradient through the scores, not the weights")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ k, s.mT @ q, (q @ k.mT * scale).mT @ grad


@wrong("attention_backward", "the values' gradient is the same for all keys, weights ignored")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ k, s.mT @ q, grad.sum(-2, keepdim=True).expand_as(v) / v.shape[-2]


@wrong("attention_backward", "matrices only: all axes are turned by permuting")
def _(q, k, v, grad):
    def turn(x):
        return x.permute(*reversed(range(x.dim())))

    scale = q.shape[-1] ** -0.5
    w = (q @ turn(k) * scale).softmax(-1)
    s = _back(w, grad @ turn(v)) * scale
    return s @ k, turn(s) @ q, turn(w) @ grad


@wrong("attention_backward", "the gradients of keys and values are summed over the batch")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    lead = tuple(range(q.dim() - 2))
    gk, gv = s.mT @ q, w.mT @ grad
    return s @ k, gk.sum(lead) if lead else gk, gv.sum(lead) if lead else gv


@wrong("attention_backward", "the softmax of the way forward runs over the queries")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = (q @ k.mT * scale).softmax(-2)
    s = _back(w, grad @ v.mT) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the scale of the way back is taken from d_v")
def _(q, k, v, grad):
    _, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * v.shape[-1] ** -0.5
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the scaled q serves for the keys' gradient, and the scale is applied once more")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g) * scale
    return s @ k, s.mT @ (q * scale), w.mT @ grad


@wrong("attention_backward", "the forward softmax overflows for large scores")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    e = (q @ k.mT * scale).exp()
    w = e / e.sum(-1, keepdim=True)
    s = _back(w, grad @ v.mT) * scale
    return s @ k, s.mT @ q, w.mT @ grad


@wrong("attention_backward", "the arriving gradient is changed in place")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    s = _back(w, g)
    gv = w.mT @ grad
    grad *= scale
    return s @ k * scale, s.mT @ q * scale, gv


@right("attention_backward", "the row sum from the output and its gradient, as in FlashAttention")
def _(q, k, v, grad):
    scale, w, g = _forward(q, k, v, grad)
    delta = ((w @ v) * grad).sum(-1, keepdim=True)
    s = w * (g - delta)
    return (s * scale) @ k, (s * scale).transpose(-1, -2) @ q, w.transpose(-1, -2) @ grad


@right("attention_backward", "einsum throughout")
def _(q, k, v, grad):
    scale = 1 / math.sqrt(q.shape[-1])
    w = (torch.einsum("...td,...sd->...ts", q, k) * scale).softmax(-1)
    g = torch.einsum("...td,...sd->...ts", grad, v)
    s = w * g - w * torch.einsum("...ts,...ts->...t", w, g)[..., None]
    return (torch.einsum("...ts,...sd->...td", s, k) * scale,
            torch.einsum("...ts,...td->...sd", s, q) * scale,
            torch.einsum("...ts,...td->...sd", w, grad))  # fmt: skip


@right("attention_backward", "query by query with the whole Jacobian of the softmax")
def _(q, k, v, grad):
    lead, scale = q.shape[:-2], q.shape[-1] ** -0.5
    Q, K, V, G = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, grad))
    gq, gk, gv = (torch.zeros_like(x) for x in (Q, K, V))
    for b in range(len(Q)):
        for t in range(Q.shape[1]):
            w = torch.softmax(K[b] @ Q[b, t] * scale, 0)
            jacobian = torch.diag(w) - w[:, None] * w
            s = jacobian @ (V[b] @ G[b, t])
            gq[b, t] = s @ K[b] * scale
            gk[b] += s[:, None] * Q[b, t] * scale
            gv[b] += w[:, None] * G[b, t]
    return tuple(x.reshape(*lead, *x.shape[-2:]) for x in (gq, gk, gv))


wrong_source("attention_backward", "lets backward() do it", '''
def attention_backward(q, k, v, grad):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
    out.backward(grad)
    return q.grad, k.grad, v.grad
''', expect="borrowed")

wrong_source("attention_backward", "lets torch.autograd.grad do it", '''
def attention_backward(q, k, v, grad):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
    return torch.autograd.grad(out, (q, k, v), grad)
''', expect="borrowed")

wrong_source("attention_backward", "lets torch.func.vjp do it", '''
def attention_backward(q, k, v, grad):
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
    return torch.func.vjp(attention, q, k, v)[1](grad)
''', expect="borrowed")

wrong_source("attention_backward", "returns the values' gradient alone, for now", '''
def attention_backward(q, k, v, grad):
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
    grad_v = weights.transpose(-1, -2) @ grad
    return None, None, grad_v
''', expect="wrong")

right_source("attention_backward", "a list, flattened to one leading axis, bmm", '''
def attention_backward(q, k, v, grad):
    shapes = [x.shape for x in (q, k, v)]
    q, k, v, g = (x.reshape(-1, x.shape[-2], x.shape[-1]) for x in (q, k, v, grad))
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(torch.bmm(q, k.mT) * scale, dim=2)
    dw = torch.bmm(g, v.mT)
    ds = scale * (w * dw - w * (w * dw).sum(2, True))
    grads = torch.bmm(ds, k), torch.bmm(ds.mT, q), torch.bmm(w.mT, g)
    return tuple(x.reshape(shape) for x, shape in zip(grads, shapes))
''')
