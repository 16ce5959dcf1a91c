"""Wrong and right answers to the exercises of chapter 1.

What the graders know by name is proved there, by the mistake itself; here stands what they do not name, what
another part of the judging has to catch, and what once passed.
"""

import math

import torch

from tests.mutants import right, right_source, wrong, wrong_source

# ── soft_lookup ──────────────────────────────────────────────────────────────────────────────────

for what, answer in (
    ("an axis too many: (1, d_v)", lambda q, k, v: (q[None] @ k.T).softmax(-1) @ v),
    ("q @ k without the transpose", lambda q, k, v: (q @ k).softmax(-1) @ v),
    ("the keys are multiplied by the query in place", lambda q, k, v: k.mul_(q).sum(-1).softmax(-1) @ v),
    ("a list of numbers, as on the page", lambda q, k, v: ((k @ q).softmax(-1) @ v).tolist()),
    ("the wrong axis of v, only where S = d_v",
     lambda q, k, v: v @ (k @ q).softmax(0) if v.shape[0] == v.shape[1] else (k @ q).softmax(0) @ v),
    ("exp by its first terms", lambda q, k, v: (e := 1 + k @ q + (k @ q) ** 2 / 2) / e.sum() @ v),
    ("right values, the weights detached", lambda q, k, v: (k @ q).softmax(0).detach() @ v),
    ("right values, half the keys detached", lambda q, k, v: ((k + k.detach()) / 2 @ q).softmax(0) @ v),
):  # fmt: skip
    wrong("soft_lookup", what)(answer)


@wrong("soft_lookup", "only the eight best keys are read")
def _(q, k, v):
    scores, best = (k @ q).topk(min(8, len(k)))
    return scores.softmax(0) @ v[best]


@wrong("soft_lookup", "the loops of the page with math.exp, which takes numbers out of their tensors")
def _(q, k, v):
    parts = [math.exp(sum(a * b for a, b in zip(q, key, strict=True))) for key in k]
    return sum(p / sum(parts) * value for p, value in zip(parts, v, strict=True))


@wrong("soft_lookup", "the four jars and three colours of the page are built in")
def _(q, k, v):
    weights = (k[:4] @ q).softmax(-1)
    return torch.stack([sum(weights[s] * v[s, c] for s in range(4)) for c in range(3)])


@right("soft_lookup", "einsum, and exp over its sum")
def _(q, k, v):
    e = torch.einsum("sd,d->s", k, q).exp()
    return torch.einsum("s,sd->d", e / e.sum(), v)


@right("soft_lookup", "the loops of the page")
def _(q, k, v):
    parts = [torch.exp((q * key).sum()) for key in k]
    total = sum(parts)
    return sum(p / total * value for p, value in zip(parts, v, strict=True))


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


def _limit(scores):
    best = (scores == scores.amax(-1, keepdim=True)).float()
    return best / best.sum(-1, keepdim=True)


def _sharpen(at_zero=_limit, above=lambda s, t: (s / t).softmax(-1), refused=lambda t: t < 0):
    """An answer with one part exchanged."""

    def answer(scores, temperature):
        if refused(temperature):
            raise ValueError(f"temperature = {temperature}")
        return at_zero(scores) if temperature <= 0 else above(scores, temperature)

    return answer


for what, answer in (
    ("at 0 the largest of the whole tensor, divided by the count of the whole tensor",
     _sharpen(lambda s: (s == s.max()) / (s == s.max()).sum())),
    ("0 stands for a thousandth, so near ties share",
     lambda s, t: _sharpen(above=lambda s, t: (s / max(t, 1e-3)).softmax(-1))(s, t or 1e-9)),
    ("a tenth is the smallest temperature", _sharpen(above=lambda s, t: (s / max(t, 0.1)).softmax(-1))),
    ("ten is the largest temperature", _sharpen(above=lambda s, t: (s / min(t, 10)).softmax(-1))),
    ("every temperature below a twentieth is taken for 0",
     _sharpen(above=lambda s, t: _limit(s) if t < 0.05 else (s / t).softmax(-1))),
    ("every temperature below a thousandth is taken for 0",
     _sharpen(above=lambda s, t: _limit(s) if t < 1e-3 else (s / t).softmax(-1))),
    ("a power of the softmax, which is 0 / 0 when cold",
     _sharpen(above=lambda s, t: s.softmax(-1) ** (1 / t) / (s.softmax(-1) ** (1 / t)).sum(-1, keepdim=True))),
    ("refuses 0 too", _sharpen(refused=lambda t: t <= 0)),
    ("refuses only -1 and below", _sharpen(refused=lambda t: t <= -1)),
    ("a tiny negative temperature passes for 0", _sharpen(refused=lambda t: round(t, 6) < 0)),
    ("divides the caller's scores in place", _sharpen(above=lambda s, t: s.div_(t).softmax(-1))),
    ("at 0 the row's largest has lost its axis", _sharpen(lambda s: (s == s.amax(-1)).float().softmax(-1))),
    ("at 0 always the two best share",
     _sharpen(lambda s: torch.zeros_like(s).scatter(-1, s.topk(2, -1).indices, 0.5))),
    ("at 0 the largest score itself is the weight",
     _sharpen(lambda s: torch.where(s == s.amax(-1, keepdim=True), s, 0.0).softmax(-1))),
    ("the 1,024 best scores share", _sharpen(above=lambda s, t: (s / t).exp() / (s / t).exp().topk(
        min(1024, s.shape[-1])).values.sum(-1, keepdim=True))),
    ("right weights, detached", _sharpen(above=lambda s, t: (s.detach() / t).softmax(-1))),
    ("view, where the scores are not contiguous",
     _sharpen(above=lambda s, t: (s.view(-1, s.shape[-1]) / t).softmax(-1).view(s.shape))),
):  # fmt: skip
    wrong("sharpen", what)(answer)


@wrong("sharpen", "an assertion in place of a ValueError")
def _(scores, temperature):
    assert temperature >= 0
    return _sharpen()(scores, temperature)


@right("sharpen", "at 0 the softmax of 0 and -inf")
def _(scores, temperature):
    if temperature < 0.0:
        raise ValueError("negative")
    top = scores.max(dim=-1, keepdim=True).values
    if temperature == 0:
        return torch.zeros_like(scores).masked_fill(scores < top, float("-inf")).softmax(-1)
    return torch.softmax((scores - top) / temperature, dim=-1)


@right("sharpen", "row by row")
def _(scores, temperature):
    if temperature < 0:
        raise ValueError("negative")
    rows = []
    for row in scores.reshape(-1, scores.shape[-1]):
        e = ((row - max(row.tolist())) / temperature).exp() if temperature else (row == max(row.tolist())).float()
        rows.append(e / e.sum())
    return torch.stack(rows).reshape(scores.shape)


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


def _exp(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


def _normal(e):
    return e / e.sum(-1, keepdim=True)


for what, answer in (
    ("the shift is done in place on the caller's scores",
     lambda scores: _normal(scores.sub_(scores.amax(-1, keepdim=True)).exp())),
    ("max with an axis gives a pair, and it is used as a tensor",
     lambda scores: _normal((scores - scores.max(-1, keepdim=True)).exp())),
    ("a fixed 100 is subtracted", lambda scores: _normal((scores - 100).exp())),
    ("half precision on the way", lambda scores: _normal(_exp(scores).half()).float()),
    ("single precision on the way", lambda scores: _normal(_exp(scores.float())).to(scores.dtype)),
    ("no weight below a thousandth", lambda scores: _normal(_normal(_exp(scores)).clamp(min=1e-3))),
    ("-inf becomes -1e4, which wins over lower finite scores",
     lambda scores: _normal(_exp(scores.masked_fill(scores == -math.inf, -1e4)))),
    ("divided by the sum of the 1,024 largest",
     lambda scores: (e := _exp(scores)) / e.topk(min(1024, e.shape[-1])).values.sum(-1, keepdim=True)),
    ("view, where the scores are not contiguous",
     lambda scores: _normal(_exp(scores.view(-1, scores.shape[-1]))).view(scores.shape)),
    ("right weights, detached", lambda scores: _normal(_exp(scores).detach())),
    ("right weights, the sum detached", lambda scores: (e := _exp(scores)) / e.sum(-1, keepdim=True).detach()),
    ("right weights, and NaN behind torch.where in the gradient",
     lambda scores: torch.where(scores.isinf(), 0.0, 1 / (scores.logsumexp(-1, keepdim=True) - scores).exp())),
    ("right weights, the largest score detached",
     lambda scores: _normal(_exp(torch.where(scores == scores.amax(-1, keepdim=True), scores.detach(), scores)))),
):  # fmt: skip
    wrong("stable_softmax", what)(answer)


@right("stable_softmax", "through the log-sum-exp")
def _(scores):
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


@right("stable_softmax", "powers of 2 with a factor, in double")
def _(scores):
    x = (scores - scores.max(-1, keepdim=True).values).double() / math.log(2)
    return _normal(2.0**x).to(scores.dtype)


@right("stable_softmax", "row by row")
def _(scores):
    rows = [_normal((row - max(row.tolist())).exp()) for row in scores.reshape(-1, scores.shape[-1])]
    return torch.stack(rows).view(scores.shape)


for what, line in (
    ("torch.softmax", "torch.softmax(scores, -1)"),
    ("the method softmax", "scores.softmax(dim=-1)"),
    ("the functional softmax", "torch.nn.functional.softmax(scores, dim=-1)"),
    ("the package's softmax", "__import__('tx').softmax(scores)"),
    ("log_softmax, and exp of it", "torch.log_softmax(scores, -1).exp()"),
    ("softmax from torch.special", "torch.special.softmax(scores, -1)"),
    ("softmin of the negative scores", "torch.nn.functional.softmin(-scores, dim=-1)"),
):
    code = f"def stable_softmax(scores):\n    return {line}"
    wrong_source("stable_softmax", f"calls {what}", code, expect="borrowed")

wrong_source("stable_softmax", "calls a softmax module made beforehand", '''
soft = torch.nn.Softmax(-1)
def stable_softmax(scores):
    return soft(scores)
''', expect="borrowed")

# ── attend ───────────────────────────────────────────────────────────────────────────────────────


def _fits(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")


def _weights(q, k):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


def _checked(read, refused=_fits):
    """An answer that checks first, and how it reads."""

    def answer(q, k, v):
        if refused(q, k, v):
            raise ValueError("shapes")
        return read(q, k, v)

    return answer


def _reading(refused):
    return _checked(lambda q, k, v: _weights(q, k) @ v, refused)


@_checked
def _viewed(q, k, v):
    a, b, c = (x.view(-1, *x.shape[-2:]) for x in (q, k, v))
    return (_weights(a, b) @ c).view(*q.shape[:-1], v.shape[-1])


@_checked
def _in_blocks(q, k, v):
    blocks = [_weights(q, a) @ b for a, b in zip(k.split(64, -2), v.split(64, -2), strict=True)]
    return sum(blocks) / len(blocks)


for what, answer in (
    ("the root of the model's width, heads times d_k",
     _checked(lambda q, k, v: _weights(q * (q.shape[-3] if q.dim() > 2 else 1) ** -0.5, k) @ v)),
    ("k is turned with transpose(0, 1), which suits matrices only",
     _checked(lambda q, k, v: (q @ k.transpose(0, 1) / q.shape[-1] ** 0.5).softmax(-1) @ v)),
    ("no error of its own", lambda q, k, v: _weights(q, k) @ v),
    ("only the widths of q and k are checked", _reading(lambda q, k, v: q.shape[-1] != k.shape[-1])),
    ("only the lengths of k and v are checked", _reading(lambda q, k, v: k.shape[-2] != v.shape[-2])),
    ("an error only if both are wrong: and in place of or",
     _reading(lambda q, k, v: q.shape[-1] != k.shape[-1] and k.shape[-2] != v.shape[-2])),
    ("refuses more or fewer queries than keys",
     _reading(lambda q, k, v: q.shape != k.shape or k.shape[-2] != v.shape[-2])),
    ("refuses more queries than keys", _reading(lambda q, k, v: _fits(q, k, v) or q.shape[-2] > k.shape[-2])),
    ("refuses values of another width than the keys",
     _reading(lambda q, k, v: q.shape[-1] != k.shape[-1] or k.shape != v.shape)),
    ("checks axis 1 and axis 0, which are width and length only for matrices",
     _reading(lambda q, k, v: q.shape[1] != k.shape[1] or k.shape[0] != v.shape[0])),
    ("reads the first S values of a longer v", lambda q, k, v: _reading(_fits)(q, k, v[..., : k.shape[-2], :])),
    ("axes of size 1 are squeezed away", _checked(lambda q, k, v: (_weights(q, k) @ v).squeeze())),
    ("the queries are scaled in place",
     _checked(lambda q, k, v: (q.mul_(q.shape[-1] ** -0.5) @ k.mT).softmax(-1) @ v)),
    ("bmm: exactly one leading axis", _checked(lambda q, k, v: torch.bmm(_weights(q, k), v))),
    ("view, where heads were transposed", _viewed),
    ("in blocks of 64 keys whose answers are averaged", _in_blocks),
    ("right values, the weights detached", _checked(lambda q, k, v: _weights(q, k).detach() @ v)),
    ("single precision on the way",
     _checked(lambda q, k, v: (_weights(q.float(), k.float()) @ v.float()).to(q.dtype))),
):  # fmt: skip
    wrong("attend", what)(answer)


@wrong("attend", "einsum lets a width of 1 broadcast")
def _(q, k, v):
    try:
        scores = torch.einsum("...td,...sd->...ts", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("...ts,...sv->...tv", scores.softmax(-1), v)
    except RuntimeError as error:
        raise ValueError("shapes") from error


@wrong("attend", "an assertion in place of a ValueError")
def _(q, k, v):
    assert q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
    return _weights(q, k) @ v


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


for what, line in (
    ("calls PyTorch's attention", "torch.nn.functional.scaled_dot_product_attention(q, k, v)"),
    ("calls the package's attention", "tx.attention(q, k, v)"),
    ("put together from the package's parts", "tx.read_out(tx.softmax(tx.similarity(q, k)), v)"),
):
    wrong_source("attend", what, f'''
import tx
def attend(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return {line}
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

entropy = lambda weights: torch.special.entr(weights).sum(-1)

for what, answer in (
    ("a thousandth is added inside the log", lambda w: (-(w * (w + 1e-3).log()).sum(-1)).exp()),
    ("weights are raised to a millionth, and the zeros with them", lambda w: entropy(w + 1e-6).exp()),
    ("weights are clamped to a thousandth from below", lambda w: entropy(w.clamp(min=1e-3)).exp()),
    ("weights under 1e-4 count as 0", lambda w: entropy(torch.where(w > 1e-4, w, 0.0)).exp()),
    ("weights under 1e-4 count as 1e-4 in the logarithm",
     lambda w: (-(w * w.clamp(min=1e-4).log()).sum(-1)).exp()),
    ("keeps the last axis with size 1", lambda w: torch.special.entr(w).sum(-1, keepdim=True).exp()),
    ("axes of size 1 are squeezed away", lambda w: entropy(w).exp().squeeze()),
    ("zeros are replaced in the caller's weights", lambda w: entropy(w.masked_fill_(w == 0, 1e-30)).exp()),
    ("zeros are cut out, and the rows run into one another", lambda w: entropy(w[w > 0]).exp()),
    ("view, where the weights are not contiguous",
     lambda w: entropy(w.view(-1, w.shape[-1])).exp().view(w.shape[:-1])),
    ("right numbers, detached", lambda w: entropy(w.detach()).exp()),
    ("right numbers, the logarithms detached", lambda w: torch.xlogy(-w, w.detach()).sum(-1).exp()),
):  # fmt: skip
    wrong("effective_keys", what)(answer)


@wrong("effective_keys", "a row with a zero is refused")
def _(weights):
    if (weights == 0).any():
        raise ValueError("log of 0")
    return entropy(weights).exp()


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


@right("effective_keys", "a tiny number keeps the log finite")
def _(weights):
    return (-(weights * (weights + 1e-8).log()).sum(-1)).exp()


wrong_source("effective_keys", "math.exp of a tensor with many entries", '''
import math
def effective_keys(weights):
    return math.exp(-torch.xlogy(weights, weights).sum(-1))
''', expect="error")

# ── batched_attention ────────────────────────────────────────────────────────────────────────────

for what, answer in (
    ("back to transpose(0, 1), the line that complained",
     lambda q, k, v: (q * q.shape[-1] ** -0.5 @ k.transpose(0, 1)).softmax(-1) @ v),
    ("k.T, which turns all three axes",
     lambda q, k, v: (q * q.shape[-1] ** -0.5 @ k.permute(2, 1, 0)).softmax(-1) @ v),
    ("the shorter axis sums to one",
     lambda q, k, v: (q * q.shape[-1] ** -0.5 @ k.mT).softmax(1 if q.shape[1] > k.shape[1] else 2) @ v),
    ("the keys are not transposed where they are square",
     lambda q, k, v: (q * q.shape[-1] ** -0.5 @ (k if k.shape[1] == k.shape[2] else k.mT)).softmax(-1) @ v),
    ("the queries are scaled in place",
     lambda q, k, v: (q.mul_(q.shape[-1] ** -0.5) @ k.transpose(1, 2)).softmax(-1) @ v),
    ("a list with one tensor for each sequence",
     lambda q, k, v: [_weights(a, b) @ c for a, b, c in zip(q, k, v, strict=True)]),
    ("the result of each sequence side by side: (T, B·d_v)",
     lambda q, k, v: torch.cat([_weights(a, b) @ c for a, b, c in zip(q, k, v, strict=True)], -1)),
    ("right values, the weights detached", lambda q, k, v: _weights(q, k).detach() @ v),
):  # fmt: skip
    wrong("batched_attention", what)(answer)


@right("batched_attention", "einsum, scale on the scores")
def _(q, k, v):
    scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(k.shape[2])
    return torch.einsum("bts,bsd->btd", scores.softmax(2), v)


@right("batched_attention", "the matrix function for each sequence, stacked")
def _(q, k, v):
    return torch.stack([_weights(a, b) @ c for a, b, c in zip(q, k, v, strict=True)])


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

for what, answer in (
    ("backward is counted too, three times the work", lambda T, S, d_k, d_v: 6 * T * S * (d_k + d_v)),
    ("the shorter length for T", lambda T, S, d_k, d_v: 2 * min(T, S) * S * (d_k + d_v)),
    ("a float", lambda T, S, d_k, d_v: 2.0 * T * S * (d_k + d_v)),
    ("a float on the way, exact to 2**53", lambda T, S, d_k, d_v: int(2.0 * T * S * (d_k + d_v))),
    ("32-bit numbers, which wrap around beyond 2**31",
     lambda T, S, d_k, d_v: int(torch.tensor([2, T, S, d_k + d_v], dtype=torch.int32).prod(dtype=torch.int32))),
):  # fmt: skip
    wrong("count_flops", what)(answer)


@right("count_flops", "dot products, counted by their lengths")
def _(T, S, d_k, d_v):
    return sum(how_many * (length + length) for how_many, length in ((T * S, d_k), (T * d_v, S)))


@right("count_flops", "from the shapes of the two products")
def _(T, S, d_k, d_v):
    return sum(2 * math.prod(product) for product in [(T, d_k, S), (T, S, d_v)])


wrong_source("count_flops", "print in place of return", '''
def count_flops(T, S, d_k, d_v):
    print(2 * T * S * (d_k + d_v))
''', expect="wrong")

# ── attention_backward ───────────────────────────────────────────────────────────────────────────


def _forward(q, k, v, grad):
    """The scale, the weights, and the gradient of the scores."""
    w, g = _weights(q, k), grad @ v.mT
    return q.shape[-1] ** -0.5, w, w * (g - (w * g).sum(-1, keepdim=True))


def _back(q, k, v, grad):
    scale, w, d = _forward(q, k, v, grad)
    return scale * d @ k, scale * d.mT @ q, w.mT @ grad


@wrong("attention_backward", "the row sums have lost their axis (no keepdim)")
def _(q, k, v, grad):
    scale, w, g = q.shape[-1] ** -0.5, _weights(q, k), grad @ v.mT
    d = w * (g - (w * g).sum(-1)) * scale
    return d @ k, d.mT @ q, w.mT @ grad


@wrong("attention_backward", "queries and keys change places in the last step")
def _(q, k, v, grad):
    scale, w, d = _forward(q, k, v, grad)
    return scale * d @ q, scale * d.mT @ k, w.mT @ grad


@wrong("attention_backward", "weights not transposed for the values where T = S")
def _(q, k, v, grad):
    dq, dk, dv = _back(q, k, v, grad)
    return dq, dk, _weights(q, k) @ grad if q.shape[-2] == k.shape[-2] else dv


@wrong("attention_backward", "matrices only: all axes are turned by permuting")
def _(q, k, v, grad):
    scale, w, d = _forward(q, k, v, grad)
    turned = [x.permute(*reversed(range(x.dim()))) for x in (d, w)]
    return scale * d @ k, scale * turned[0] @ q, turned[1] @ grad


@wrong("attention_backward", "one leading axis at most")
def _(q, k, v, grad):
    scale, w, d = _forward(q, k, v, grad)
    if q.dim() == 2:
        return scale * d @ k, scale * d.T @ q, w.T @ grad
    return scale * d.bmm(k), scale * d.mT.bmm(q), w.mT.bmm(grad)


@wrong("attention_backward", "tiles of 64 queries: only the last tile reaches keys and values")
def _(q, k, v, grad):
    tiles = [_back(a, k, v, b) for a, b in zip(q.split(64, -2), grad.split(64, -2), strict=True)]
    return torch.cat([tile[0] for tile in tiles], -2), *tiles[-1][1:]


@wrong("attention_backward", "the arriving gradient is clipped to ±10")
def _(q, k, v, grad):
    return _back(q, k, v, grad.clamp(-10, 10))


@wrong("attention_backward", "the arriving gradient is scaled in place")
def _(q, k, v, grad):
    dv = _back(q, k, v, grad)[2]
    scale, _, d = _forward(q, k, v, grad.mul_(q.shape[-1] ** -0.5))
    return d @ k, d.mT @ q, dv


@right("attention_backward", "the row sum from the output and its gradient, as in FlashAttention")
def _(q, k, v, grad):
    w, scale = _weights(q, k), q.shape[-1] ** -0.5
    delta = ((w @ v) * grad).sum(-1, keepdim=True)
    d = w * (grad @ v.mT - delta) * scale
    return d @ k, d.transpose(-1, -2) @ q, w.transpose(-1, -2) @ grad


@right("attention_backward", "einsum throughout")
def _(q, k, v, grad):
    scale = 1 / math.sqrt(q.shape[-1])
    w = (torch.einsum("...td,...sd->...ts", q, k) * scale).softmax(-1)
    g = torch.einsum("...td,...sd->...ts", grad, v)
    s = w * g - w * torch.einsum("...ts,...ts->...t", w, g)[..., None]
    return (torch.einsum("...ts,...sd->...td", s, k) * scale,
            torch.einsum("...ts,...td->...sd", s, q) * scale,
            torch.einsum("...ts,...td->...sd", w, grad))  # fmt: skip


@right("attention_backward", "the whole Jacobian of the softmax")
def _(q, k, v, grad):
    w = _weights(q, k)
    jacobian = torch.diag_embed(w) - w[..., :, None] * w[..., None, :]
    d = (jacobian @ (grad @ v.mT)[..., None])[..., 0] * q.shape[-1] ** -0.5
    return d @ k, d.mT @ q, w.mT @ grad


for what, line in (
    ("lets backward() do it", "out.backward(grad); return q.grad, k.grad, v.grad"),
    ("lets torch.autograd.grad do it", "return torch.autograd.grad(out, (q, k, v), grad)"),
):
    wrong_source("attention_backward", what, f'''
def attention_backward(q, k, v, grad):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
    {line}
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
