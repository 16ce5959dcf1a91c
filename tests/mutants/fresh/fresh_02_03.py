# ruff: noqa
"""Wrong and right answers for chapters 2 and 3, written without a look at the graders."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants import right, right_source, wrong, wrong_source  # noqa: F401

INF = float("inf")


# --------------------------------------------------------------------------- one_head_floor


@wrong("one_head_floor", "adds the sizes, not their squares")
def _(wanted):
    # differs on: wanted = [2., -3.] -> 2 instead of 4
    plus = wanted.clamp(min=0).sum(-1)
    minus = (-wanted).clamp(min=0).sum(-1)
    return torch.minimum(plus, minus)


@wrong("one_head_floor", "forgets that the gain may be negative")
def _(wanted):
    # differs on: wanted = [1., -2.] -> 4 instead of 1
    return wanted.clamp(max=0).square().sum(-1)


@wrong("one_head_floor", "one sign of the gain for all questions of the batch")
def _(wanted):
    # differs on: wanted = [[3., -1.], [1., -2.]] -> [1, 4] instead of [1, 1]
    plus = wanted.clamp(min=0).square().sum(-1)
    minus = wanted.clamp(max=0).square().sum(-1)
    return plus if plus.sum() < minus.sum() else minus


@right("one_head_floor", "both signs stacked, a dot product, the smaller")
def _(wanted):
    parts = torch.stack([torch.relu(wanted), torch.relu(-wanted)])
    return torch.einsum("...s,...s->...", parts, parts).amin(0)


# --------------------------------------------------------------------------- split_heads


@wrong("split_heads", "one view, no swap of axes")
def _(x, n_heads):
    # differs on: B = 1, T = 2, D = 4, H = 2
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, n_heads, T, D // n_heads)


@wrong("split_heads", "head h takes every H-th feature")
def _(x, n_heads):
    # differs on: B = 1, T = 1, D = 4, H = 2
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, D // n_heads, n_heads).permute(0, 3, 1, 2)


@wrong("split_heads", "an error only if D and n_heads share no divisor, else drops features")
def _(x, n_heads):
    # differs on: D = 6, n_heads = 4: no ValueError
    B, T, D = x.shape
    if n_heads > D or (n_heads > 1 and math.gcd(D, n_heads) == 1):
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    d_k = D // n_heads
    return x[..., : n_heads * d_k].reshape(B, T, n_heads, d_k).transpose(1, 2)


@right("split_heads", "slices of the width, stacked")
def _(x, n_heads):
    D = x.shape[-1]
    if n_heads < 1 or D % n_heads != 0:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return torch.stack(x.split(D // n_heads, dim=-1), dim=1)


# --------------------------------------------------------------------------- merge_heads


@wrong("merge_heads", "joins without swapping back")
def _(x):
    # differs on: B = 1, H = 2, T = 2, d_k = 1
    B, H, T, d_k = x.shape
    return x.reshape(B, T, H * d_k)


@wrong("merge_heads", "feature 0 of all heads first, then feature 1")
def _(x):
    # differs on: B = 1, H = 2, T = 1, d_k = 2
    B, H, T, d_k = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, T, d_k * H)


@wrong("merge_heads", "writes into a buffer of the default dtype")
def _(x):
    # differs on: any float64 x: comes back as float32
    B, H, T, d_k = x.shape
    out = torch.zeros(B, T, H * d_k)
    for h in range(H):
        out[:, :, h * d_k : (h + 1) * d_k] = x[:, h]
    return out


@right("merge_heads", "heads unbound and concatenated")
def _(x):
    return torch.cat(x.unbind(1), dim=-1)


# --------------------------------------------------------------------------- MultiHead


@wrong("MultiHead", "the scale is 1/√d_model")
class _(nn.Module):
    # differs on: d_model = 4, n_heads = 2, random x
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (
            f(x).reshape(B, T, self.n_heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, D))


@wrong("MultiHead", "clamps the scores against NaN")
class _(nn.Module):
    # differs on: x = 100 * randn(1, 4, 4), weights randn: large scores become ties
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (
            f(x).reshape(B, T, self.n_heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // self.n_heads)
        e = scores.clamp(-60, 60).exp()
        weights = e / e.sum(-1, keepdim=True)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, D))


@wrong("MultiHead", "the ValueError comes with the first input, not when it is made")
class _(nn.Module):
    # differs on: MultiHead(6, 4): no error
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        if D % self.n_heads:
            raise ValueError(f"{D}, {self.n_heads}")
        q, k, v = (
            f(x).reshape(B, T, self.n_heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // self.n_heads)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))


@right("MultiHead", "a loop over the heads that adds up their shares, nothing split or merged")
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        d_k, rest = divmod(d_model, n_heads)
        if rest:
            raise ValueError(f"{d_model}, {n_heads}")
        self.slices = [slice(h * d_k, (h + 1) * d_k) for h in range(n_heads)]
        for name in ("query", "key", "value", "out"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=False))

    def forward(self, x):
        total = torch.zeros_like(x)
        for s in self.slices:
            q = x @ self.query.weight[s].T
            k = x @ self.key.weight[s].T
            v = x @ self.value.weight[s].T
            scores = torch.einsum("btk,bsk->bts", q, k) * (s.stop - s.start) ** -0.5
            scores = scores - scores.detach().amax(-1, keepdim=True)
            weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
            total = total + weights @ v @ self.out.weight[:, s].T
        return total


# --------------------------------------------------------------------------- head_contributions


@wrong("head_contributions", "takes the rows of w_out, untransposed, for the blocks")
def _(read, w_out):
    # differs on: B = 1, H = 2, T = 1, d_k = 2, D = 4, random
    B, H, T, d_k = read.shape
    blocks = w_out.reshape(H, d_k, -1)
    return read @ blocks


@wrong("head_contributions", "every head gets an equal share of the output")
def _(read, w_out):
    # differs on: H = 2, random (the sum over the heads is right)
    B, H, T, d_k = read.shape
    out = read.transpose(1, 2).reshape(B, T, H * d_k) @ w_out.T
    return (out / H)[:, None].expand(B, H, T, -1)


@wrong("head_contributions", "copies the weight into a fresh layer: no gradient to w_out")
def _(read, w_out):
    # differs on: w_out.requires_grad: w_out.grad stays None
    B, H, T, d_k = read.shape
    shares = []
    for h in range(H):
        out = nn.Linear(d_k, w_out.shape[0], bias=False)
        out.weight = nn.Parameter(w_out[:, h * d_k : (h + 1) * d_k])
        shares.append(out(read[:, h]))
    return torch.stack(shares, 1)


@right("head_contributions", "each head alone in a row of zeros, through the whole matrix")
def _(read, w_out):
    H = read.shape[1]
    only = torch.eye(H, dtype=read.dtype, device=read.device)
    alone = torch.einsum("bhtk,hg->bhtgk", read, only)
    return F.linear(alone.flatten(-2), w_out)


# --------------------------------------------------------------------------- mha_flops


@wrong("mha_flops", "all four projections over the T tokens")
def _(B, T, S, D, H):
    # differs on: B = 1, T = 2, S = 3, D = 4, H = 2
    return 4 * 2 * B * T * D * D + 2 * 2 * B * T * S * D


@wrong("mha_flops", "every head pays for the whole width")
def _(B, T, S, D, H):
    # differs on: B = 1, T = 2, S = 3, D = 4, H = 2
    return 4 * B * (T + S) * D * D + 2 * 2 * B * H * T * S * D


@wrong("mha_flops", "the width of a head as a float")
def _(B, T, S, D, H):
    # differs on: B = 3, T = 10**8 + 1, S = 10**8 + 3, D = 12, H = 4 (above 2**53)
    projections = 4 * B * (T + S) * D * D
    heads = 4 * B * H * T * S * (D / H)
    return projections + int(heads)


@right("mha_flops", "one matrix product after the other")
def _(B, T, S, D, H):
    def product(rows, inner, columns):
        return 2 * rows * inner * columns

    d_k = D // H
    a_head = (
        product(T, D, d_k)  # query
        + product(S, D, d_k)  # key
        + product(S, D, d_k)  # value
        + product(T, d_k, S)  # scores
        + product(T, S, d_k)  # read-out
        + product(T, d_k, D)  # its share of the output
    )
    return sum(a_head for _ in range(H)) * B


# --------------------------------------------------------------------------- fused_qkv


@wrong("fused_qkv", "three thirds, then heads by a view without a swap")
def _(x, weight, n_heads):
    # differs on: B = 1, T = 2, D = 4, n_heads = 2
    B, T, D = x.shape
    q, k, v = (
        part.reshape(B, n_heads, T, D // n_heads) for part in (x @ weight.T).chunk(3, dim=-1)
    )
    return q, k, v


@wrong("fused_qkv", "the heads' features interleaved")
def _(x, weight, n_heads):
    # differs on: B = 1, T = 1, D = 4, n_heads = 2
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, D // n_heads, n_heads)
    q, k, v = qkv.permute(2, 0, 4, 1, 3)
    return q, k, v


@wrong("fused_qkv", "wraps the weight in a Parameter of its own: no gradient to weight")
def _(x, weight, n_heads):
    # differs on: weight.requires_grad: weight.grad stays None, x.grad is right
    B, T, D = x.shape
    layer = nn.Linear(D, 3 * D, bias=False)
    layer.weight = nn.Parameter(weight)
    q, k, v = layer(x).reshape(B, T, 3, n_heads, D // n_heads).permute(2, 0, 3, 1, 4)
    return q, k, v


@right("fused_qkv", "the weight is cut, not the product")
def _(x, weight, n_heads):
    cut = weight.unflatten(0, (3, n_heads, weight.shape[1] // n_heads))
    return tuple(torch.einsum("btd,hkd->bhtk", x, w) for w in cut.unbind(0))


# --------------------------------------------------------------------------- prune_heads


@wrong("prune_heads", "heads in the order of the old layer")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    # differs on: n_heads = 3, keep = [2, 0]
    if len(set(keep)) < len(keep) or not all(0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep} of {n_heads} heads")
    d_k = w_q.shape[0] // n_heads
    stays = torch.tensor([h in keep for h in range(n_heads)]).repeat_interleave(d_k)
    return w_q[stays], w_k[stays], w_v[stays], w_o[:, stays]


@wrong("prune_heads", "counts -1 as the last head")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    # differs on: n_heads = 3, keep = [0, -1]: no ValueError
    if len(set(keep)) < len(keep) or not all(h < n_heads for h in keep):
        raise ValueError(f"keep = {keep} of {n_heads} heads")
    d_k = w_q.shape[0] // n_heads
    rows = [h % n_heads * d_k + i for h in keep for i in range(d_k)]
    rows = torch.tensor(rows, dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "sees a head named twice only if the two are neighbours")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    # differs on: n_heads = 3, keep = [0, 1, 0]: no ValueError
    twice = any(a == b for a, b in zip(keep, keep[1:]))
    if twice or not all(0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep} of {n_heads} heads")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "takes d_k from the width D")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    # differs on: D = 4, n_heads = 2, d_k = 3 (w_q (6, 4), as after an earlier pruning), keep = [1]
    if len(set(keep)) < len(keep) or not all(0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep} of {n_heads} heads")
    d_k = w_q.shape[1] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@right("prune_heads", "an axis for the heads, picked by the list, and joined again")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    free = list(range(n_heads))
    for h in keep:
        if h not in free:
            raise ValueError(f"keep = {keep} of {n_heads} heads")
        free.remove(h)
    order = torch.tensor(keep, dtype=torch.long, device=w_q.device)
    d_k = w_q.shape[0] // n_heads

    def pick(w):
        return w.unflatten(0, (n_heads, d_k)).index_select(0, order).flatten(0, 1)

    return pick(w_q), pick(w_k), pick(w_v), pick(w_o.T).T


# --------------------------------------------------------------------------- head_importance


def _shares(x, w_q, w_k, w_v, w_o, n_heads):
    B, T, D = x.shape
    q, k, v = ((x @ w.T).reshape(B, T, n_heads, -1).transpose(1, 2) for w in (w_q, w_k, w_v))
    read = (q @ k.transpose(-1, -2) / math.sqrt(D // n_heads)).softmax(-1) @ v
    return read @ w_o.T.reshape(n_heads, D // n_heads, D)  # (B, H, T, D)


@wrong("head_importance", "the absolute value of the mean")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    # differs on: B = 4, T = 3, D = 4, n_heads = 2, random: slopes of both signs
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads).detach()
    gates = torch.ones(n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
    with torch.enable_grad():
        loss = ((gates * shares).sum(1) - target).square().mean()
    return torch.autograd.grad(loss, gates)[0].flatten().abs()


@wrong("head_importance", "takes each head out and compares the losses")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    # differs on: B = 1, T = 3, D = 4, n_heads = 2, random: the loss is not linear in the gate
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    miss = shares.sum(1) - target
    without = (miss[:, None] - shares).square().mean((-2, -1))  # (B, H)
    return (without - miss.square().mean((-2, -1))[:, None]).abs().mean(0)


@wrong("head_importance", "the mean over the batch is taken in the loss and once more at the end")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    # differs on: B = 2, random: half of the answer (right for B = 1)
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads).detach()
    gates = torch.ones(x.shape[0], n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
    with torch.enable_grad():
        loss = ((gates * shares).sum(1) - target).square().mean()
    slope = torch.autograd.grad(loss, gates)[0].flatten(1)
    return slope.abs().mean(0)


@right("head_importance", "the derivative by hand, no autograd")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    shares = []
    for s in torch.arange(D).split(d_k):
        scores = (x @ w_q[s].T) @ (x @ w_k[s].T).transpose(1, 2) / d_k**0.5
        scores = scores - scores.amax(-1, keepdim=True)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        shares.append(weights @ (x @ w_v[s].T) @ w_o[:, s].T)
    miss = sum(shares) - target
    slope = [2 * (miss * share).flatten(1).mean(1) for share in shares]
    return torch.stack(slope).abs().mean(1)


# --------------------------------------------------------------------------- causal_mask


@wrong("causal_mask", "aligned at the first key, not at the last")
def _(T, S):
    # differs on: T = 2, S = 3
    return torch.ones(T, S, dtype=torch.bool).tril()


@wrong("causal_mask", "a query does not see its own position")
def _(T, S):
    # differs on: T = 2, S = 2
    query = torch.arange(T)[:, None] + S - T
    return torch.arange(S)[None] < query


@wrong("causal_mask", "with more queries than keys the first query starts at key 0")
def _(T, S):
    # differs on: T = 3, S = 2
    return torch.ones(T, S, dtype=torch.bool).tril(max(S - T, 0))


@right("causal_mask", "the upper triangle turned by 180 degrees")
def _(T, S):
    return torch.ones(T, S).triu().flip(0, 1) > 0


# --------------------------------------------------------------------------- visible_pairs


@wrong("visible_pairs", "every query sees W keys")
def _(T, S, W):
    # differs on: T = S = 4, W = 3 -> 12 instead of 9
    return T * min(W, S)


@wrong("visible_pairs", "the ramp goes up to W, even where there are fewer tokens")
def _(T, S, W):
    # differs on: T = S = 4, W = 3 -> 12 instead of 9 (N = 0: -3)
    def total(N):
        return W * (W + 1) // 2 + (N - W) * W

    return total(S) - total(S - T)


@wrong("visible_pairs", "halves by a float division")
def _(T, S, W):
    # differs on: T = S = W = 10**9 + 1 (above 2**53)
    def total(N):
        ramp = min(N, W)
        return int(ramp * (ramp + 1) / 2) + (N - ramp) * W

    return total(S) - total(S - T)


@right("visible_pairs", "the causal pairs without those that the window cuts off")
def _(T, S, W):
    def causal(N):
        return math.comb(max(N, 0) + 1, 2)

    seen = causal(S) - causal(S - T)
    too_far = causal(S - W) - causal(S - T - W)
    return seen - too_far


# --------------------------------------------------------------------------- masked_softmax


@wrong("masked_softmax", "hidden scores become -10,000")
def _(scores, keep):
    # differs on: scores = [[-10000., 0.]], keep = [[True, False]]: weights 1/2, 0
    s = scores.masked_fill(~keep, -1e4)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) * keep.any(-1, keepdim=True)


@wrong("masked_softmax", "subtracts the largest score of all keys, hidden ones too")
def _(scores, keep):
    # differs on: scores = [[0., 10000.]], keep = [[True, False]]: weights 0, 0
    e = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, torch.ones_like(total), total)


@wrong("masked_softmax", "NaN made 0 afterwards: the gradients of an empty row are NaN")
def _(scores, keep):
    # differs on: scores = [[0., 1.]] with gradient, keep = [[False, False]]
    s = scores + torch.zeros(keep.shape, dtype=scores.dtype).masked_fill(~keep, -INF)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).nan_to_num(0.0)


@wrong("masked_softmax", "writes -inf into the scores, behind autograd's back")
def _(scores, keep):
    # differs on: scores = [[0., 1.]], keep = [[True, False]]: scores is [[0, -inf]] afterwards
    scores.data.masked_fill_(~keep, -INF)
    top = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / (total + (total == 0))


@right("masked_softmax", "an extra key that only empty rows look at, cut off at the end")
def _(scores, keep):
    keep = keep.expand(scores.shape)
    hidden = scores.new_full((), -INF)
    sink = torch.where(keep.any(-1, keepdim=True), hidden, torch.zeros_like(hidden))
    s = torch.cat([torch.where(keep, scores, hidden), sink], -1)
    e = (s - s.detach().amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True))[..., :-1]


# --------------------------------------------------------------------------- next_token_loss


@wrong("next_token_loss", "counts a pair when its target is real")
def _(logits, tokens, real):
    # differs on: real = [[False, True, True]] (padded left): counts the pair (0, 1)
    V = logits.shape[-1]
    counts = real[:, 1:].flatten()
    if not (real[:, :-1] & real[:, 1:]).any():
        raise ValueError("no pair")
    return F.cross_entropy(
        logits[:, :-1].reshape(-1, V)[counts], tokens[:, 1:].reshape(-1)[counts]
    )


@wrong("next_token_loss", "the mean of the rows' means")
def _(logits, tokens, real):
    # differs on: B = 2, real = [[1, 1, 1, 1], [1, 1, 0, 0]]: 3 pairs and 1 pair
    both = real[:, :-1] & real[:, 1:]
    if not both.any():
        raise ValueError("no pair")
    rows = [
        F.cross_entropy(row[:-1][pair], token[1:][pair])
        for row, token, pair in zip(logits, tokens, both)
        if pair.any()
    ]
    return torch.stack(rows).mean()


@wrong("next_token_loss", "an error only if no token is real")
def _(logits, tokens, real):
    # differs on: real = [[True, False, True]]: tokens, but no pair: NaN instead of ValueError
    if not real.any():
        raise ValueError("no pair")
    both = real[:, :-1] & real[:, 1:]
    return F.cross_entropy(logits[:, :-1][both], tokens[:, 1:][both])


@wrong("next_token_loss", "takes the padding out after the loss: NaN there reaches the gradients")
def _(logits, tokens, real):
    # differs on: real = [[True, True, False, False]], logits = raw + bias, raw[0, 2] = NaN:
    # bias.grad is NaN, and so is the gradient at logits[0, 2], which should be 0
    both = real[:, :-1] & real[:, 1:]
    if not both.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    return torch.where(both, loss, torch.zeros_like(loss)).sum() / both.sum()


@right("next_token_loss", "a loop over the pairs that count")
def _(logits, tokens, real):
    pairs = [
        (b, t)
        for b, row in enumerate(real.tolist())
        for t, (one, other) in enumerate(zip(row, row[1:]))
        if one and other
    ]
    if not pairs:
        raise ValueError("no pair")
    total = 0
    for b, t in pairs:
        row = logits[b, t]
        total = total + (row - row[tokens[b, t + 1]]).logsumexp(0)
    return total / len(pairs)


# --------------------------------------------------------------------------- leak_floor


@wrong("leak_floor", "forgets the last, shorter block")
def _(V, T, block):
    # differs on: V = 2, T = 5, block = 2 -> 2/5 log 2 instead of 3/5 log 2
    return T // block / T * math.log(V)


@wrong("leak_floor", "cuts all T + 1 tokens into blocks")
def _(V, T, block):
    # differs on: V = 2, T = 4, block = 2 -> 3/4 log 2 instead of 2/4 log 2
    return math.ceil((T + 1) / block) / T * math.log(V)


@wrong("leak_floor", "rounds the number of blocks")
def _(V, T, block):
    # differs on: V = 2, T = 9, block = 4 -> 2/9 log 2 instead of 3/9 log 2 (T = 7: right)
    return max(1, round(T / block)) / T * math.log(V)


@right("leak_floor", "as many blind positions as blocks start")
def _(V, T, block):
    return len(range(0, T, block)) * math.log(V) / T


# --------------------------------------------------------------------------- first_leaking_row


@wrong("first_leaking_row", "the mean move of a row, not the largest")
def _(before, after, token, tolerance=5e-5):
    # differs on: zeros (1, 3, 4), after[0, 1, 0] = 1e-4, token = 2: mean 2.5e-5
    moved = (after - before)[:, :token].abs().mean((0, 2))
    rows = (~(moved <= tolerance)).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@wrong("first_leaking_row", "a tolerance that grows with the numbers")
def _(before, after, token, tolerance=5e-5):
    # differs on: before = 1000, after[0, 1, 0] = 1000.005, token = 2: within rtol = 1e-5
    same = torch.isclose(before[:, :token], after[:, :token], atol=tolerance)
    rows = (~same).any(0).any(-1).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@wrong("first_leaking_row", "NaN before and after counts as unchanged")
def _(before, after, token, tolerance=5e-5):
    # differs on: zeros (1, 3, 2), NaN at [0, 1, 0] in both, token = 2
    a, b = before[:, :token], after[:, :token]
    changed = ((a - b).abs() > tolerance) | (a.isnan() != b.isnan())
    rows = changed.any(0).any(-1).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@right("first_leaking_row", "row by row, and the first that is not all small")
def _(before, after, token, tolerance=5e-5):
    for row in range(token):
        move = torch.sub(before[:, row], after[:, row]).abs()
        if not bool(move.le(tolerance).all()):
            return row
    return -1


# --------------------------------------------------------------------------- upside_down_mask


@wrong("upside_down_mask", "tril for triu, the diagonal left as it was: one key too many")
def _(q, k, v):
    # differs on: T = S = 3, random
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).tril(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "is_causal, which counts from the first key")
def _(q, k, v):
    # differs on: T = 2, S = 4, random
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("upside_down_mask", "lowers the hidden scores by 10,000 only")
def _(q, k, v):
    # differs on: T = S = 2, d_k = 1, q = 200, k = [0, 200] (hidden score 40,000)
    T, S = q.shape[2], k.shape[2]
    bias = -1e4 * torch.ones(T, S, dtype=q.dtype).triu(1 + S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@right("upside_down_mask", "minus infinity, added")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    bias = q.new_full((T, S), -INF).triu(1 + S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# --------------------------------------------------------------------------- tree_mask


def _check(parents):
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("a parent stands before its child")


@wrong("tree_mask", "a guess sees itself and its parent, no older ancestors")
def _(parents, n_past):
    # differs on: parents = [-1, 0, 1]
    _check(parents)
    T = len(parents)
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            tree[i, p] = True
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "parent -1 is read as the last guess")
def _(parents, n_past):
    # differs on: parents = [-1, -1]: guess 0 sees guess 1
    _check(parents)
    T = len(parents)
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "any negative parent stands for the text")
def _(parents, n_past):
    # differs on: parents = [-1, -2]: no ValueError
    T = len(parents)
    if (parents >= torch.arange(T)).any():
        raise ValueError("a parent stands before its child")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "squares the steps twice: only four generations up")
def _(parents, n_past):
    # differs on: parents = [-1, 0, 1, 2, 3, 4]: guess 5 does not see guess 0
    _check(parents)
    T = len(parents)
    reach = torch.eye(T)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            reach[i, p] = 1
    for _ in range(2):
        reach = (reach @ reach).clamp(max=1)
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), reach > 0], 1)


@right("tree_mask", "the inverse of identity minus steps")
def _(parents, n_past):
    T = len(parents)
    places = torch.arange(T)
    if not ((parents >= -1) & (parents < places)).all():
        raise ValueError("a parent stands before its child")
    one = torch.eye(T, dtype=torch.float64)
    step = (parents[:, None] == places[None]).double()
    tree = torch.linalg.solve_triangular(one - step, one, upper=False, unitriangular=True)
    return F.pad(tree, (n_past, 0), value=1.0) > 0.5
