# ruff: noqa
"""Fresh wrong and right answers for chapters 0 and 1, written blind (no sight of the graders)."""

import torch
import torch.nn.functional as F

from tests.mutants import right, wrong

# ---------------------------------------------------------------- soft_choice


# differs on: any scores (2, 2), such as zeros: all weights 1/4, rows sum to 1/2
@wrong("soft_choice", "one softmax over the whole table")
def _(scores):
    return scores.flatten().softmax(0).view_as(scores)


# differs on: [[1000., 0.]] -> nan
@wrong("soft_choice", "exp over its sum, overflows for large scores")
def _(scores):
    e = scores.exp()
    return e / e.sum(1, keepdim=True)


# differs on: [[1000., 1000.], [0., 0.]] -> second row nan
@wrong("soft_choice", "subtracts the largest score of the table, so a far lower row becomes 0/0")
def _(scores):
    e = (scores - scores.max()).exp()
    return e / e.sum(1, keepdim=True)


@right("soft_choice", "softmax down the columns of the transpose")
def _(scores):
    return scores.T.softmax(0).T


# ---------------------------------------------------------- squared_distances


# differs on: x (4, 3), y (2, 1): no ValueError
@wrong("squared_distances", "tests the widths only by whether they broadcast")
def _(x, y):
    try:
        differences = x[:, None, :] - y[None, :, :]
    except RuntimeError:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}") from None
    return (differences**2).sum(-1)


# differs on: x [[0., 0.]], y [[1., 1.]]: 1 instead of 2
@wrong("squared_distances", "mean over the features instead of the sum")
def _(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    return (x[:, None] - y[None]).square().mean(-1)


# differs on: float64 x and y: comes out float32
@wrong("squared_distances", "fills a buffer of the default dtype")
def _(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    out = torch.zeros(len(x), len(y))
    for s in range(len(y)):
        out[:, s] = (x - y[s]).pow(2).sum(1)
    return out


# differs on: x = y = [[1., 2.]] requiring grad: gradient nan instead of 0
@wrong("squared_distances", "square of the square root: nan gradient where x equals y")
def _(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    distance = (x[:, None] - y[None]).pow(2).sum(-1).sqrt()
    return distance * distance


@right("squared_distances", "vmap over the rows of x, a dot product of each difference with itself")
def _(x, y):
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")

    def row(a):
        d = a.expand_as(y) - y
        return torch.einsum("sd,sd->s", d, d)

    return torch.vmap(row)(x)


# --------------------------------------------------------- where_view_puts_it


# differs on: t=0, f=3, T=4, H=2, d_k=3: (1, 0, 0) instead of (0, 1, 0)
@wrong("where_view_puts_it", "where the right split (view, then transpose) puts it")
def _(t, f, T, H, d_k):
    head, feature = divmod(f, d_k)
    return head, t, feature


# differs on: t=1, f=0, T=4, H=2, d_k=3: (0, 1, 0) instead of (0, 2, 0)
@wrong("where_view_puts_it", "takes a row of x to be d_k wide")
def _(t, f, T, H, d_k):
    before = t * d_k + f
    head, rest = divmod(before, T * d_k)
    position, feature = divmod(rest, d_k)
    return head, position, feature


# differs on: t=1, f=2, T=4, H=2, d_k=3: tensors instead of Python ints
@wrong("where_view_puts_it", "returns tensors of int64 instead of Python ints")
def _(t, f, T, H, d_k):
    before = torch.tensor(t * H * d_k + f)
    return before // (T * d_k), before // d_k % T, before % d_k


# differs on: t=10**18 - 1, f=2, T=10**18, H=2, d_k=3
@wrong("where_view_puts_it", "divides floats, inexact beyond 2**53")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    head = int(before / (T * d_k))
    rest = before - head * T * d_k
    position = int(rest / d_k)
    return head, position, rest - position * d_k


@right("where_view_puts_it", "from the last axis to the first, remainders only")
def _(t, f, T, H, d_k):
    n = (t * H + f // d_k) * d_k + f % d_k
    place = []
    for size in (d_k, T, H):
        place.append(n % size)
        n = (n - n % size) // size
    feature, position, head = place
    return head, position, feature


# ----------------------------------------------------------------------- nats


# differs on: logits zeros (2, 3, 4): three times ln 4; also zeros (4,): ln 4 / 4
@wrong("nats", "divides the sum by the first axis only")
def _(logits, targets):
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError("target out of range")
    lse = logits.logsumexp(-1)
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return (lse - picked).sum() / logits.shape[0]


# differs on: logits [1000., -1000.], target 1: 27.6 instead of 2000
@wrong("nats", "-ln of a probability kept above 1e-12")
def _(logits, targets):
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError("target out of range")
    e = (logits - logits.amax(-1, keepdim=True)).exp()
    p = e / e.sum(-1, keepdim=True)
    return -p.gather(-1, targets[..., None]).clamp_min(1e-12).log().mean()


# differs on: logits zeros (2, 3), targets [0, -1]: no ValueError
@wrong("nats", "only the upper end is tested, and indexing takes -1 for the last answer")
def _(logits, targets):
    V = logits.shape[-1]
    if (targets >= V).any():
        raise ValueError(f"targets lie in 0 … {V - 1}")
    flat, t = logits.reshape(-1, V), targets.reshape(-1)
    return (flat.logsumexp(-1) - flat[torch.arange(len(flat)), t]).mean()


# differs on: logits zeros (2, 3), targets [0, -100]: no ValueError
@wrong("nats", "leaves out targets of -100, as PyTorch's loss does")
def _(logits, targets):
    keep = targets != -100
    if ((targets[keep] < 0) | (targets[keep] >= logits.shape[-1])).any():
        raise ValueError("target out of range")
    picked = logits.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    return (logits.logsumexp(-1) - picked)[keep].mean()


# differs on: logits [[1000., 0.], [-1000., -1000.]], targets [0, 0]: -inf instead of ln 2 / 2
@wrong("nats", "one maximum for all rows in the log-sum-exp")
def _(logits, targets):
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError("target out of range")
    top = logits.max().detach()
    lse = top + (logits - top).exp().sum(-1).log()
    return (lse - logits.gather(-1, targets[..., None])[..., 0]).mean()


@right("nats", "log-sum-exp of every logit minus the right one")
def _(logits, targets):
    V = logits.shape[-1]
    if bool(((targets < 0) + (targets > V - 1)).any()):
        raise ValueError(f"targets lie in 0 … {V - 1}")
    lead = torch.take_along_dim(logits, targets.long().unsqueeze(-1), -1)
    return torch.logsumexp(logits - lead, dim=-1).mean()


@right("nats", "a comparison with arange picks the right logit; a sum over a count")
def _(logits, targets):
    answers = torch.arange(logits.shape[-1], device=logits.device)
    hit = targets.unsqueeze(-1) == answers
    if not hit.any(-1).all():
        raise ValueError("a target is no answer")
    top = logits.amax(-1, keepdim=True).detach()
    shifted = logits - top
    losses = shifted.exp().sum(-1).log() - shifted.masked_fill(~hit, 0).sum(-1)
    return losses.sum() / losses.numel()


# ---------------------------------------------------------- conditional_floor


# differs on: [[9, 0], [1, 1]]: ln 2 / 2 instead of 2/11 ln 2
@wrong("conditional_floor", "plain mean of the rows' entropies")
def _(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp_min(1)
    return -torch.xlogy(p, p).sum(-1).mean()


# differs on: [[1, 1], [0, 0]]: ValueError instead of ln 2
@wrong("conditional_floor", "refuses a single empty row")
def _(counts):
    total = counts.sum(-1, keepdim=True)
    if (total == 0).any():
        raise ValueError("no counts at all")
    p = counts / total
    return (-torch.xlogy(p, p).sum(-1) * total[:, 0]).sum() / total.sum()


# differs on: [[1, 0], [0, 1]]: ln 2 instead of 0
@wrong("conditional_floor", "the floor of whoever does not see the context")
def _(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    p = counts.sum(0) / counts.sum()
    return -torch.xlogy(p, p).sum()


# differs on: zeros (2, 3): 0 instead of a ValueError
@wrong("conditional_floor", "no counts at all give 0")
def _(counts):
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp_min(1)
    entropy = -torch.xlogy(p, p).sum(-1)
    return (entropy * total[:, 0]).sum() / total.sum().clamp_min(1)


# differs on: float32 [[2., 1.]]: the answer is right, the caller's table holds shares afterwards
@wrong("conditional_floor", "float() makes no copy of float32, and /= changes the caller's counts")
def _(counts):
    p = counts.float()
    total = p.sum(-1, keepdim=True)
    if total.sum() == 0:
        raise ValueError("no counts at all")
    p /= total.clamp_min(1)
    return (-torch.xlogy(p, p) * total).sum() / total.sum()


@right("conditional_floor", "(sum of n ln n over rows - over entries) / all, in double")
def _(counts):
    dtype = counts.dtype if counts.is_floating_point() else torch.get_default_dtype()
    c = counts.double()
    rows, everything = c.sum(1), c.sum()
    if not everything > 0:
        raise ValueError("no counts at all")
    return ((torch.xlogy(rows, rows).sum() - torch.xlogy(c, c).sum()) / everything).to(dtype)


@right("conditional_floor", "empty rows thrown out, then the weights as a dot product with entr")
def _(counts):
    if not counts.any():
        raise ValueError("no counts at all")
    full = counts[counts.any(dim=1)]
    full = full if full.is_floating_point() else full.to(torch.get_default_dtype())
    total = full.sum(1)
    entropy = torch.special.entr(full / total[:, None]).sum(1)
    return (total / total.sum()) @ entropy


# ------------------------------------------------------------ z_loss_gradient


# differs on: logits [[0., 0.]], target 0, z_weight 0.1
@wrong("z_loss_gradient", "the z-term multiplies p - onehot instead of p alone")
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1, keepdim=True)
    p = (logits - lse).exp()
    onehot = F.one_hot(targets, logits.shape[-1])
    return (1 + 2 * z_weight * lse) * (p - onehot) / len(logits)


# differs on: logits zeros (3, 2), targets 0: three times too large
@wrong("z_loss_gradient", "gradient of the sum, not of the mean over the examples")
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1, keepdim=True)
    p = (logits - lse).exp()
    return p * (1 + 2 * z_weight * lse) - F.one_hot(targets, logits.shape[-1])


# differs on: logits [[0., 0.]], target 0, z_weight 0.1
@wrong("z_loss_gradient", "the 2 of the square is lost")
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1, keepdim=True)
    p = (logits - lse).exp()
    onehot = F.one_hot(targets, logits.shape[-1])
    return (p * (1 + z_weight * lse) - onehot) / len(logits)


# differs on: logits [[-5., -6.]], target 0, z_weight 0.1 (lse below 0)
@wrong("z_loss_gradient", "the penalty always pushes down, also where lse is negative")
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1, keepdim=True)
    p = (logits - lse).exp()
    onehot = F.one_hot(targets, logits.shape[-1])
    return (p + 2 * z_weight * lse.abs() * p - onehot) / len(logits)


@right("z_loss_gradient", "one minus at the target's place, the weight of p in one factor")
def _(logits, targets, z_weight):
    N = logits.shape[0]
    top = logits.max(-1, keepdim=True).values
    e = torch.exp(logits - top)
    z = e.sum(-1, keepdim=True)
    slope = e * ((1 + 2 * z_weight * (top + z.log())) / (N * z))
    minus = torch.full_like(slope[:, :1], -1 / N)
    return slope.scatter_add(1, targets[:, None], minus)


# ---------------------------------------------------------------- soft_lookup


# differs on: q [1., 0.], k [[1., 0.], [0., 1.]], v [[1.], [0.]]
@wrong("soft_lookup", "scales by the root of d_k")
def _(q, k, v):
    return torch.softmax(k @ q / q.shape[0] ** 0.5, 0) @ v


# differs on: q [0.], k [[0.], [0.]], v [[1.], [1.]]: 1/2 instead of 1
@wrong("soft_lookup", "mean of the weighted values instead of their sum")
def _(q, k, v):
    weights = torch.softmax(k @ q, 0)
    return (weights[:, None] * v).mean(0)


# differs on: any q and k that require grad: their gradient is cut
@wrong("soft_lookup", "weights without a gradient, only v gets one")
def _(q, k, v):
    scores = (k * q).sum(-1)
    weights = scores.softmax(-1).detach()
    return weights @ v


@right("soft_lookup", "numerator and denominator in one product, a column of ones beside v")
def _(q, k, v):
    scores = torch.einsum("sd,d->s", k, q)
    e = torch.exp(scores - scores.max().detach())
    read = e @ torch.cat([v, torch.ones_like(v[:, :1])], 1)
    return read[:-1] / read[-1]


# -------------------------------------------------------------------- sharpen


# differs on: [2., 2., 1.] at 0: (1, 0, 0) instead of (1/2, 1/2, 0)
@wrong("sharpen", "at 0 the first of the largest takes everything")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")
    if temperature == 0:
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
    return torch.softmax(scores / temperature, -1)


# differs on: [1., 0.] at 2
@wrong("sharpen", "multiplies by the temperature")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")
    if temperature == 0:
        best = scores == scores.amax(-1, keepdim=True)
        return best / best.sum(-1, keepdim=True)
    return torch.softmax(scores * temperature, -1)


# differs on: [[2., 1.], [1., 0.]] at 0: second row nan
@wrong("sharpen", "at 0 compares with the largest score of all rows")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")
    if temperature == 0:
        best = (scores == scores.max()).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)
    return torch.softmax(scores / temperature, -1)


# differs on: [1., 0.999] at 0: (0.73, 0.27) instead of (1, 0); the same at 0.0001
@wrong("sharpen", "temperatures below 0.001 are raised to it, 0 too")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")
    return torch.softmax(scores / max(temperature, 1e-3), -1)


# differs on: [1., 1.000005] at 0: (1/2, 1/2) instead of (0, 1)
@wrong("sharpen", "at 0 nearly equal scores share too")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")
    if temperature == 0:
        best = torch.isclose(scores, scores.amax(-1, keepdim=True)).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)
    return torch.softmax(scores / temperature, -1)


@right("sharpen", "the gap to the row's largest, and at 0 a mean over gaps of 0, graph kept")
def _(scores, temperature):
    if not temperature >= 0:
        raise ValueError(f"temperature = {temperature}")
    gap = scores - scores.max(-1, keepdim=True).values.detach()
    if temperature > 0:
        return torch.softmax(gap / temperature, dim=-1)
    lose = gap < 0
    e = gap.masked_fill(lose, 0) * 0 + (~lose).to(scores.dtype)
    return torch.nn.functional.normalize(e.detach(), p=1, dim=-1) + (e - e.detach())


# ------------------------------------------------------------- stable_softmax


# differs on: float64 [0., 1.]: float32 comes out
@wrong("stable_softmax", "computes in float32 whatever came")
def _(scores):
    s = scores.float()
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: zeros (2, 3, 4): 1/3 instead of 1/4
@wrong("stable_softmax", "axis 1 instead of the last")
def _(scores):
    e = (scores - scores.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


# differs on: [[1000., 1000.], [0., 0.]]: second row nan
@wrong("stable_softmax", "one largest score for all rows")
def _(scores):
    e = (scores - scores.max()).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: [-1e5, -inf]: (0, 1) instead of (1, 0)
@wrong("stable_softmax", "puts -10000 where -inf stands")
def _(scores):
    s = scores.masked_fill(scores == float("-inf"), -1e4)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@right("stable_softmax", "powers of two")
def _(scores):
    top, _where = scores.max(dim=-1, keepdim=True)
    e = torch.exp2((scores - top.detach()) * 1.4426950408889634)
    return e * e.sum(dim=-1, keepdim=True).reciprocal()


@right("stable_softmax", "the last axis brought to the front and back again")
def _(scores):
    s = scores.movedim(-1, 0)
    e = s.sub(s.amax(0)).exp()
    return e.div(e.sum(0)).movedim(0, -1)


# --------------------------------------------------------------------- attend


# differs on: d_k = 4, d_v = 1
@wrong("attend", "scale from the width of the values")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")
    scores = q @ k.transpose(-2, -1) * v.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v


# differs on: q (2, 4), k (3, 4), v (3, 5): ValueError for allowed sizes
@wrong("attend", "demands that keys and values have one width")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape != v.shape:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v


# differs on: q [[100.]], k [[100.], [0.]], v [[1.], [0.]]: nan
@wrong("attend", "own softmax that overflows")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")
    e = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp()
    return e / e.sum(-1, keepdim=True) @ v


# differs on: float64 q, k, v: off by 1e-8, the dtype looks right
@wrong("attend", "the weights of float64 go through float32")
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    return weights.to(v.dtype) @ v


@right("attend", "einsum, and the division by the sum last of all")
def _(q, k, v):
    *_lead, T, d_k = q.shape
    *_lead, S, width = k.shape
    if (S, d_k) != (v.shape[-2], width):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    scores = torch.einsum("...td,...sd->...st", q, k) / d_k**0.5
    e = (scores - scores.amax(-2, keepdim=True).detach()).exp()
    return torch.einsum("...st,...sv->...tv", e, v) / e.sum(-2).unsqueeze(-1)


# ------------------------------------------------------------- effective_keys


# differs on: [0.75, 0.25]: 1.6 instead of 1.755 (same for hard look-ups and averages)
@wrong("effective_keys", "one over the sum of squares")
def _(weights):
    return 1 / weights.square().sum(-1)


# differs on: [[1., 0.], [0.5, 0.5]]: one number instead of (1, 2)
@wrong("effective_keys", "one number for all queries, from the mean entropy")
def _(weights):
    return torch.special.entr(weights).sum(-1).mean().exp()


# differs on: 1000 equal weights: 100 instead of 1000
@wrong("effective_keys", "logarithm of weights kept above 0.01")
def _(weights):
    return (-(weights * weights.clamp_min(1e-2).log()).sum(-1)).exp()


# differs on: [0.75, 0.25] requiring grad: each slope too large by the number itself
@wrong("effective_keys", "no gradient through the logarithm")
def _(weights):
    ln = weights.detach().clamp_min(1e-30).log()
    return torch.exp(-(weights * ln).sum(-1))


@right("effective_keys", "product of w to the power of -w")
def _(weights):
    return torch.pow(weights, -weights).prod(dim=-1)


# ---------------------------------------------------------- batched_attention


# differs on: T = 2, d_k = 4
@wrong("batched_attention", "softmax repaired, scale still from the number of queries")
def _(q, k, v):
    scale = q.shape[1] ** -0.5
    scores = (q * scale) @ k.transpose(1, 2)
    return torch.softmax(scores, dim=2) @ v


# differs on: T = 1, S = 2: weights of one each
@wrong("batched_attention", "scale repaired, softmax still over the queries")
def _(q, k, v):
    scale = q.shape[2] ** -0.5
    scores = (q * scale) @ k.transpose(1, 2)
    return torch.softmax(scores, dim=1) @ v


# differs on: d_k = 4, d_v = 3
@wrong("batched_attention", "both repaired, but the width comes from the values")
def _(q, k, v):
    scale = v.shape[2] ** -0.5
    scores = (q * scale) @ k.transpose(1, 2)
    return torch.softmax(scores, dim=2) @ v


@right("batched_attention", "vmap of the function for matrices, keys by queries")
def _(q, k, v):
    def one(q, k, v):
        return v.T @ torch.softmax(k @ q.T * k.shape[1] ** -0.5, dim=0)

    return torch.vmap(one)(q, k, v).mT


# ---------------------------------------------------------------- count_flops


# differs on: T=1, S=1, d_k=1, d_v=1: 2 instead of 4
@wrong("count_flops", "n products and n - 1 sums")
def _(T, S, d_k, d_v):
    return T * S * (2 * d_k - 1) + T * d_v * (2 * S - 1)


# differs on: T=1, S=2, d_k=1, d_v=1: 6 instead of 8
@wrong("count_flops", "the read-out counted as if there were T keys")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k + 2 * T * T * d_v


# differs on: T = S = 10**9 + 7, d_k = 65, d_v = 64
@wrong("count_flops", "counts in floats, not exact beyond 2**53")
def _(T, S, d_k, d_v):
    return int(2e0 * T * S * (d_k + d_v))


@right("count_flops", "both widths at once, doubled by a shift")
def _(T, S, d_k, d_v):
    return T * (S * (d_k + d_v) << 1)


# --------------------------------------------------------- attention_backward


# differs on: d_k = 4, random inputs
@wrong("attention_backward", "no scale in the gradient of k")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(q @ k.mT * scale, -1)
    grad_w = grad @ v.mT
    grad_s = w * (grad_w - (w * grad_w).sum(-1, keepdim=True))
    return grad_s @ k * scale, grad_s.mT @ q, w.mT @ grad


# differs on: any row of unequal weights, random inputs
@wrong("attention_backward", "subtracts the plain mean of the row, not the weighted one")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(q @ k.mT * scale, -1)
    grad_w = grad @ v.mT
    grad_s = w * (grad_w - grad_w.mean(-1, keepdim=True)) * scale
    return grad_s @ k, grad_s.mT @ q, w.mT @ grad


# differs on: T = 3, S = 4, random inputs
@wrong("attention_backward", "softmax backward down the queries")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(q @ k.mT * scale, -1)
    grad_w = grad @ v.mT
    grad_s = w * (grad_w - (w * grad_w).sum(-2, keepdim=True)) * scale
    return grad_s @ k, grad_s.mT @ q, w.mT @ grad


# differs on: any grad with d_k > 1: the values are right, the caller's grad is scaled afterwards
@wrong("attention_backward", "scales the arriving gradient in place")
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(q @ k.mT * scale, -1)
    grad_v = w.mT @ grad
    grad *= scale
    grad_w = grad @ v.mT
    grad_s = w * (grad_w - (w * grad_w).sum(-1, keepdim=True))
    return grad_s @ k, grad_s.mT @ q, grad_v


@right("attention_backward", "the row sum from the output, all else by einsum")
def _(q, k, v, grad):
    root = q.shape[-1] ** 0.5
    scores = torch.einsum("...td,...sd->...ts", q, k) / root
    w = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    out = torch.einsum("...ts,...sv->...tv", w, v)
    delta = torch.einsum("...tv,...tv->...t", grad, out)
    grad_s = torch.einsum("...tv,...sv->...ts", grad, v).sub(delta[..., None]).mul(w)
    grad_q = torch.einsum("...ts,...sd->...td", grad_s, k) / root
    grad_k = torch.einsum("...ts,...td->...sd", grad_s, q) / root
    return grad_q, grad_k, torch.einsum("...ts,...tv->...sv", w, grad)
