# ruff: noqa
"""Blind answers for 02_many_heads and 03_masks, written without a look at any grader.

Every wrong answer carries an input, as an expression, on which it differs from a right one
(randn, rand, tensor, arange, ones, nan, inf, nn are torch's or float's).
"""

import fractions
import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

import tx
from tests.mutants import right, right_source, wrong, wrong_source

# ---------------------------------------------------------------- one_head_floor


@wrong("one_head_floor", "only gains that are not negative")
# differs on: (tensor([1.0, -2.0, -2.0]),)
def _(wanted):
    return wanted.clamp(max=0).square().sum(-1)


@wrong("one_head_floor", "the worse sign of the gain instead of the better")
# differs on: (tensor([1.0, -2.0]),)
def _(wanted):
    plus = wanted.clamp(max=0).square().sum(-1)
    minus = wanted.clamp(min=0).square().sum(-1)
    return torch.maximum(plus, minus)


@wrong("one_head_floor", "the smaller of the two before the sum: always zero")
# differs on: (tensor([1.0, -2.0]),)
def _(wanted):
    plus = wanted.clamp(max=0).square()
    minus = wanted.clamp(min=0).square()
    return torch.minimum(plus, minus).sum(-1)


@wrong("one_head_floor", "counts the signs: right for coefficients of size one only")
# differs on: (tensor([2.0, -3.0, 3.0]),) ; right on ±1
def _(wanted):
    return torch.minimum((wanted > 0).sum(-1), (wanted < 0).sum(-1)).to(wanted.dtype)


@wrong("one_head_floor", "absolute values without the square")
# differs on: (tensor([3.0, -0.5, 1.0]),)
def _(wanted):
    return torch.minimum(wanted.clamp(min=0).sum(-1), (-wanted).clamp(min=0).sum(-1))


@wrong("one_head_floor", "the square of the sum instead of the sum of squares")
# differs on: (tensor([3.0, -1.0, 4.0, -1.0]),) ; right with one negative number
def _(wanted):
    plus = wanted.clamp(max=0).sum(-1).square()
    minus = wanted.clamp(min=0).sum(-1).square()
    return torch.minimum(plus, minus)


@wrong("one_head_floor", "the gain takes the sign of the sum of the coefficients")
# differs on: (tensor([3.0, -2.0, -2.0]),)
def _(wanted):
    plus = wanted.clamp(max=0).square().sum(-1)
    minus = wanted.clamp(min=0).square().sum(-1)
    return torch.where(wanted.sum(-1) >= 0, plus, minus)


@wrong("one_head_floor", "the gain takes the sign of the largest coefficient")
# differs on: (tensor([2.0, -1.5, -1.5]),)
def _(wanted):
    plus = wanted.clamp(max=0).square().sum(-1)
    minus = wanted.clamp(min=0).square().sum(-1)
    return torch.where(wanted.amax(-1) >= -wanted.amin(-1), plus, minus)


@wrong("one_head_floor", "one sign of the gain for the whole batch")
# differs on: (tensor([[1.0, 2.0, -1.0], [-3.0, -2.0, 1.0]]),)
def _(wanted):
    plus = wanted.clamp(max=0).square().sum(-1)
    minus = wanted.clamp(min=0).square().sum(-1)
    return plus if plus.sum() <= minus.sum() else minus


@wrong("one_head_floor", "the weights are spread evenly over the keys of the right sign")
# differs on: (tensor([2.0, 1.0]),)
def _(wanted):
    def loss(a):
        on = (a > 0).to(a.dtype)
        best = (a * on).sum(-1) ** 2 / on.sum(-1).clamp(min=1)
        return (a * a).sum(-1) - best

    return torch.minimum(loss(wanted), loss(-wanted))


@wrong("one_head_floor", "the head can read a single key only")
# differs on: (tensor([2.0, 1.0, -1.0]),)
def _(wanted):
    return wanted.square().sum(-1) - wanted.square().amax(-1)


@wrong("one_head_floor", "mean over the keys instead of sum")
# differs on: (tensor([2.0, -1.0]),)
def _(wanted):
    return torch.minimum(
        wanted.clamp(max=0).square().mean(-1), wanted.clamp(min=0).square().mean(-1)
    )


@wrong("one_head_floor", "only leading axes up to one: a deeper batch is flattened")
# differs on: (randn(2, 3, 4),)
def _(wanted):
    rows = wanted.reshape(-1, wanted.shape[-1])
    floor = torch.minimum(
        rows.clamp(max=0).square().sum(-1), rows.clamp(min=0).square().sum(-1)
    )
    return floor if wanted.dim() > 1 else floor[0]


@wrong("one_head_floor", "a gain of one: the distance to the simplex and its mirror image")
# differs on: (tensor([2.0, 3.0, -1.0]),)
def _(wanted):
    def distance(a):
        u = a.sort(-1, descending=True).values
        n = torch.arange(1, a.shape[-1] + 1).to(a.dtype)
        c = (u.cumsum(-1) - 1) / n
        k = (u > c).sum(-1, keepdim=True)
        w = (a - c.gather(-1, k - 1)).clamp(min=0)
        return (a - w).square().sum(-1)

    return torch.minimum(distance(wanted), distance(-wanted))


@right("one_head_floor", "half of the sum and the signed squares")
def _(wanted):
    signed = wanted * wanted.abs()
    return (signed.abs().sum(-1) - signed.sum(-1).abs()) / 2


@right("one_head_floor", "optimal weights and gain written out, then the expected loss")
def _(wanted):
    losses = []
    for sign in (1, -1):
        best = torch.where(sign * wanted > 0, wanted, torch.zeros_like(wanted))
        losses.append(torch.einsum("...s,...s->...", wanted - best, wanted - best))
    return torch.stack(losses, 0).min(0).values


# ---------------------------------------------------------------- split_heads


@wrong("split_heads", "one view straight to (B, H, T, d_k)")
# differs on: (randn(1, 3, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, n_heads, T, D // n_heads)


@wrong("split_heads", "features dealt out in turn: head h has h, h + H, …")
# differs on: (randn(1, 2, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, D // n_heads, n_heads).permute(0, 3, 1, 2)


@wrong("split_heads", "forgets the swap of the axes")
# differs on: (randn(1, 3, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads)


@wrong("split_heads", "n_heads taken for the width of a head")
# differs on: (randn(1, 2, 6), 2) ; right when n_heads squared is D
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, D // n_heads, n_heads).transpose(1, 2)


@wrong("split_heads", "drops the features that are left over, without an error")
# differs on: (randn(1, 2, 7), 3)
def _(x, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    return x[..., : d_k * n_heads].reshape(B, T, n_heads, d_k).transpose(1, 2)


@wrong("split_heads", "refuses too many heads only, and cuts slices of unequal use")
# differs on: (randn(1, 2, 6), 4)
def _(x, n_heads):
    B, T, D = x.shape
    if n_heads > D:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    d_k = D // n_heads
    return torch.stack([x[..., h * d_k : (h + 1) * d_k] for h in range(n_heads)], 1)


@wrong("split_heads", "leaves the error to reshape: RuntimeError")
# differs on: (randn(1, 2, 7), 3)
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, -1).transpose(1, 2)


@wrong("split_heads", "reshape(-1) steals tokens instead of refusing: D = 6, H = 4, T = 2")
# differs on: (randn(1, 2, 6), 4) ; still refuses D = 7, H = 3, T = 2
def _(x, n_heads):
    B, T, D = x.shape
    if (T * D) % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    if D % n_heads:
        return x.reshape(B, n_heads, -1, 1)
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "asserts instead of raising ValueError")
# differs on: (randn(1, 2, 7), 3)
def _(x, n_heads):
    B, T, D = x.shape
    assert D % n_heads == 0
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "refuses an odd width, even where odd heads fit")
# differs on: (randn(1, 2, 9), 3)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads or D % 2:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "as_strided that believes that x is contiguous")
# differs on: (randn(3, 2, 4).transpose(0, 1), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    d_k = D // n_heads
    return x.as_strided((B, n_heads, T, d_k), (T * D, d_k, D, 1))


@wrong("split_heads", "squeezes axes of length one")
# differs on: (randn(1, 2, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2).squeeze()


@wrong("split_heads", "cut off from the graph")
# differs on: (randn(2, 3, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.detach().reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "the heads in the opposite order")
# differs on: (randn(2, 3, 4), 2)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2).flip(1)


@right("split_heads", "slices, stacked")
def _(x, n_heads):
    if n_heads < 1 or x.shape[-1] % n_heads:
        raise ValueError(f"{x.shape[-1]} features for {n_heads} heads")
    return torch.stack(x.split(x.shape[-1] // n_heads, dim=-1), dim=1)


@right("split_heads", "an index of features for each head")
def _(x, n_heads):
    if n_heads < 1 or x.size(2) / n_heads != x.size(2) // n_heads:
        raise ValueError("unequal slices")
    index = torch.arange(x.size(2)).view(n_heads, -1)
    return x[:, :, index].movedim(2, 1)


# ---------------------------------------------------------------- merge_heads


@wrong("merge_heads", "joins without swapping: tokens and heads mixed")
# differs on: (randn(1, 2, 3, 2),)
def _(x):
    B, H, T, d_k = x.shape
    return x.reshape(B, T, H * d_k)


@wrong("merge_heads", "features of the heads in turn")
# differs on: (randn(1, 2, 3, 2),)
def _(x):
    B, H, T, d_k = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, T, d_k * H)


@wrong("merge_heads", "view after the swap: an error as soon as T and H exceed one")
# differs on: (randn(1, 2, 3, 2),)
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose(1, 2).view(B, T, H * d_k)


@wrong("merge_heads", "stops after the swap")
# differs on: (randn(1, 2, 3, 2),)
def _(x):
    return x.transpose(1, 2)


@wrong("merge_heads", "heads added up")
# differs on: (randn(1, 2, 3, 2),)
def _(x):
    return x.sum(1)


@wrong("merge_heads", "as_strided: right for fresh tensors, wrong for what split_heads returns")
# differs on: (randn(1, 3, 2, 2).transpose(1, 2),)
def _(x):
    B, H, T, d_k = x.shape
    y = x.as_strided((B, T, H, d_k), (H * T * d_k, d_k, T * d_k, 1))
    return y.reshape(B, T, H * d_k)


@wrong("merge_heads", "a square of T and H is transposed the wrong way round")
# differs on: (randn(2, 3, 3, 2),) ; right when T and H differ
def _(x):
    B, H, T, d_k = x.shape
    if H == T:
        return x.reshape(B, T, H * d_k)
    return x.transpose(1, 2).reshape(B, T, H * d_k)


@wrong("merge_heads", "shares the first example with the whole batch")
# differs on: (randn(2, 2, 3, 2),) ; right for B = 1
def _(x):
    B, H, T, d_k = x.shape
    return torch.cat(list(x[0]), -1).expand(B, T, H * d_k)


@wrong("merge_heads", "two heads only")
# differs on: (randn(1, 3, 2, 2),)
def _(x):
    return torch.cat([x[:, 0], x[:, -1]], -1)


@wrong("merge_heads", "written into a buffer of float32, losing the dtype")
# differs on: (randn(2, 2, 3, 2).double(),)
def _(x):
    B, H, T, d_k = x.shape
    out = torch.zeros(B, T, H * d_k, dtype=torch.float32)
    for h in range(H):
        out[..., h * d_k : (h + 1) * d_k] = x[:, h]
    return out


@wrong("merge_heads", "cut off from the graph by .data")
# differs on: (randn(2, 2, 3, 2),)
def _(x):
    B, H, T, d_k = x.shape
    return x.data.transpose(1, 2).reshape(B, T, H * d_k)


@wrong("merge_heads", "the first head carries no gradient")
# differs on: (randn(2, 2, 3, 2),)
def _(x):
    heads = list(x.unbind(1))
    heads[0] = heads[0].detach()
    return torch.cat(heads, -1)


@right("merge_heads", "concatenates the heads")
def _(x):
    return torch.cat(x.unbind(1), dim=-1)


@right("merge_heads", "in place into its own copy, by index")
def _(x):
    B, H, T, d_k = x.shape
    out = x.new_empty(B, T, H * d_k)
    for h, k in itertools.product(range(H), range(d_k)):
        out[:, :, h * d_k + k] = x[:, h, :, k]
    return out


# ---------------------------------------------------------------- MultiHead


@wrong("MultiHead", "scale of the whole width")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) * x.shape[-1] ** -0.5).softmax(-1)
        return self.out(tx.merge_heads(weights @ v))


@wrong("MultiHead", "scaled twice: by hand and by tx.attention")
# differs on: (4, 2, randn(1, 3, 4)) ; right for d_k = 1
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q / q.shape[-1] ** 0.5, k, v)))


@wrong("MultiHead", "biases left on")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "only the output keeps its bias, which starts at zero")
# differs on: (4, 2, randn(1, 3, 4)) ; its outputs agree until it is trained: a fifth weight
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "the output projection is made and not used")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return tx.merge_heads(tx.attention(q, k, v))


@wrong("MultiHead", "heads are the interleaved features, merged back the same way")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (
            f(x).reshape(B, T, -1, self.n_heads).permute(0, 3, 1, 2)
            for f in (self.query, self.key, self.value)
        )
        return self.out(tx.attention(q, k, v).permute(0, 2, 3, 1).reshape(B, T, D))


@wrong("MultiHead", "a plain reshape on the way back")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.attention(q, k, v).reshape(x.shape))


@wrong("MultiHead", "one view there and one view back: shapes fit, heads are slices of tokens")
# differs on: (4, 2, randn(1, 4, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (
            f(x).view(B, self.n_heads, T, D // self.n_heads)
            for f in (self.query, self.key, self.value)
        )
        return self.out(tx.attention(q, k, v).reshape(B, T, D))


@wrong("MultiHead", "the error comes with the first forward, not when it is made")
# differs on: (6, 4, randn(1, 3, 6))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        if x.shape[-1] % self.n_heads:
            raise ValueError("unequal heads")
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "makes the layer narrower instead of refusing")
# differs on: (7, 2, randn(1, 3, 7))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        width = d_model // n_heads * n_heads
        self.query = nn.Linear(d_model, width, bias=False)
        self.key = nn.Linear(d_model, width, bias=False)
        self.value = nn.Linear(d_model, width, bias=False)
        self.out = nn.Linear(width, d_model, bias=False)

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "query and key are one and the same layer")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = self.query
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "queries and keys change places")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(k, q, v)))


@wrong("MultiHead", "a causal mask that nobody asked for")
# differs on: (4, 2, randn(1, 3, 4)) ; right for T = 1
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        T = x.shape[1]
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.out(tx.merge_heads(scores.softmax(-1) @ v))


@wrong("MultiHead", "exponentials without the maximum: NaN for large inputs")
# differs on: (4, 2, 60 * randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        e = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).exp()
        return self.out(tx.merge_heads(e / e.sum(-1, keepdim=True) @ v))


@wrong("MultiHead", "no gradient for queries and keys")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).detach()
        return self.out(tx.merge_heads(weights @ v))


@wrong("MultiHead", "all heads attend with the mean of the heads' weights")
# differs on: (4, 2, randn(1, 3, 4)) ; right for one head
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out(tx.merge_heads(weights.mean(1, keepdim=True) @ v))


@wrong("MultiHead", "tokens may look at 16 keys at most")
# differs on: (4, 2, randn(1, 20, 4)) ; right for short rows
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return self.out(tx.merge_heads(tx.attention(q, k[:, :, :16], v[:, :, :16])))


@wrong("MultiHead", "adds the input: a residual stream inside the layer")
# differs on: (4, 2, randn(1, 3, 4))
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        return x + self.out(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "dropout on the weights while training, and it starts in training")
# differs on: (8, 2, randn(2, 9, 8)) ; right after .eval()
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            tx.split_heads(f(x), self.n_heads) for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        weights = F.dropout(weights, 0.1, self.training)
        return self.out(tx.merge_heads(weights @ v))


@right("MultiHead", "head by head on slices of the weights, the shares added up")
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        if n_heads < 1 or d_model % n_heads != 0:
            raise ValueError(f"{n_heads} heads do not divide {d_model}")
        super().__init__()
        for name in ("query", "key", "value", "out"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=False))
        self.slices = [
            slice(i, i + d_model // n_heads) for i in range(0, d_model, d_model // n_heads)
        ]

    def forward(self, x):
        total = 0
        for s in self.slices:
            q = x @ self.query.weight[s].T
            k = x @ self.key.weight[s].T
            v = x @ self.value.weight[s].T
            scores = torch.einsum("bti,bsi->bts", q, k) / math.sqrt(q.shape[-1])
            scores = scores - scores.detach().amax(-1, keepdim=True)
            weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
            total = total + weights @ v @ self.out.weight[:, s].T
        return total


@right("MultiHead", "one einsum from scores to reading, names set with setattr")
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        d_k, rest = divmod(d_model, n_heads)
        if rest:
            raise ValueError("unequal heads")
        self.shape = (n_heads, d_k)
        make = functools.partial(nn.Linear, d_model, d_model, bias=False)
        for name in ["query", "key", "value", "out"]:
            setattr(self, name, make())

    def forward(self, x):
        q, k, v = (
            self.get_submodule(n)(x).unflatten(-1, self.shape) for n in ("query", "key", "value")
        )
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.shape[1] ** -0.5
        read = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        return self.out(read.flatten(2))


# ---------------------------------------------------------------- head_contributions


@wrong("head_contributions", "cuts the rows of w_out instead of the columns")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, d_k, -1)


@wrong("head_contributions", "blocks of the output: every head fills its slice of D only")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    whole = tx.merge_heads(read) @ w_out.T
    out = whole.new_zeros(B, H, T, w_out.shape[0])
    cut = w_out.shape[0] // H
    for h in range(H):
        out[:, h, :, h * cut : (h + 1) * cut] = whole[..., h * cut : (h + 1) * cut]
    return out


@wrong("head_contributions", "the output shared evenly: the sum is right, the shares are not")
# differs on: (randn(1, 2, 3, 2), randn(4, 4)) ; right for H = 1
def _(read, w_out):
    B, H, T, d_k = read.shape
    whole = tx.merge_heads(read) @ w_out.T
    return (whole / H)[:, None].expand(B, H, T, w_out.shape[0])


@wrong("head_contributions", "columns in turn: h, h + H, …")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(d_k, H, -1).transpose(0, 1)


@wrong("head_contributions", "the last head gets what the others leave, the others are interleaved")
# differs on: (randn(2, 3, 3, 2), randn(5, 6)) ; the sum over the heads is right
def _(read, w_out):
    B, H, T, d_k = read.shape
    shares = read @ w_out.T.reshape(d_k, H, -1).transpose(0, 1)
    whole = tx.merge_heads(read) @ w_out.T
    last = whole - shares[:, :-1].sum(1)
    return torch.cat([shares[:, :-1], last[:, None]], 1)


@wrong("head_contributions", "w_out not transposed: fits because D = H·d_k")
# differs on: (randn(1, 2, 3, 2), randn(4, 4)) ; right for a symmetric w_out
def _(read, w_out):
    B, H, T, d_k = read.shape
    blocks = w_out[: H * d_k].reshape(H, d_k, w_out.shape[1])
    return torch.einsum("bhtk,hkd->bhtd", read, blocks)


@wrong("head_contributions", "takes D for H·d_k: wrong once heads were pruned")
# differs on: (randn(1, 2, 3, 2), randn(6, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    D = H * d_k
    return read @ w_out[:D].T.reshape(H, d_k, D)


@wrong("head_contributions", "the sum over the heads, without the shares")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    return tx.merge_heads(read) @ w_out.T


@wrong("head_contributions", "heads in the opposite order")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    return (read @ w_out.T.reshape(H, d_k, -1)).flip(1)


@wrong("head_contributions", "shares (B, T, H, D) where (B, H, T, D) is asked")
# differs on: (randn(1, 2, 3, 2), randn(4, 4)) ; shape fits if T = H
def _(read, w_out):
    B, H, T, d_k = read.shape
    return torch.einsum("bhtk,dhk->bthd", read, w_out.reshape(-1, H, d_k))


@wrong("head_contributions", "no gradient for w_out")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.detach().T.reshape(H, d_k, -1)


@wrong("head_contributions", "zeroes the other heads of read in place")
# differs on: (randn(1, 2, 3, 2), randn(4, 4))
def _(read, w_out):
    B, H, T, d_k = read.shape
    out = []
    for h in reversed(range(H)):
        kept = read.detach()[:, h].clone()
        out.insert(0, kept @ w_out[:, h * d_k : (h + 1) * d_k].T)
        read.data[:, h] = 0
    return torch.stack(out, 1)


@right("head_contributions", "the layer with all heads but one set to zero")
def _(read, w_out):
    heads = read.shape[1]
    shares = []
    for h in range(heads):
        alone = torch.zeros_like(read).index_copy(1, torch.tensor([h]), read[:, h : h + 1])
        shares.append(alone.transpose(1, 2).flatten(2) @ w_out.T)
    return torch.stack(shares, 1)


@right("head_contributions", "one einsum over unflattened columns")
def _(read, w_out):
    return torch.einsum("bhtk,dhk->bhtd", read, w_out.unflatten(1, (read.shape[1], -1)))


# ---------------------------------------------------------------- mha_flops


@wrong("mha_flops", "keys and values projected for T tokens")
# differs on: (2, 3, 5, 8, 2) ; right for T = S
def _(B, T, S, D, H):
    return 8 * B * T * D * D + 4 * B * T * S * D


@wrong("mha_flops", "a multiply-add counts as one")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + S) + 2 * B * T * S * D


@wrong("mha_flops", "only scores, no read-out")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 2 * B * T * S * D


@wrong("mha_flops", "every head as wide as the layer")
# differs on: (2, 3, 5, 8, 2) ; right for H = 1
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * H * T * S * D


@wrong("mha_flops", "the number of heads forgotten: one head of width D / H")
# differs on: (2, 3, 5, 8, 2) ; right for H = 1
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * T * S * (D // H)


@wrong("mha_flops", "three projections: the output is forgotten")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + 2 * S) + 4 * B * T * S * D


@wrong("mha_flops", "the output projection runs over the S tokens")
# differs on: (2, 3, 5, 8, 2) ; right for T = S
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + 3 * S) + 4 * B * T * S * D


@wrong("mha_flops", "softmax and scale counted as well")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * T * S * D + 4 * B * H * T * S


@wrong("mha_flops", "n multiplications and n - 1 additions a dot product")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    d_k = D // H
    projections = 2 * B * (T + S) * D * (2 * D - 1)
    return projections + B * H * T * S * (2 * d_k - 1) + B * T * D * (2 * S - 1)


@wrong("mha_flops", "the batch multiplies the projections only")
# differs on: (2, 3, 5, 8, 2) ; right for B = 1
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * T * S * D


@wrong("mha_flops", "biases of the projections counted")
# differs on: (2, 3, 5, 8, 2)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 2 * B * D * (T + S) + 4 * B * T * S * D


@wrong("mha_flops", "counted in 32 bits")
# differs on: (8, 2048, 1024, 4096, 32)
def _(B, T, S, D, H):
    n = torch.tensor([4 * B * D, 4 * B * T], dtype=torch.int32)
    m = torch.tensor([D * (T + S), S * D], dtype=torch.int32)
    return int((n * m).sum(dtype=torch.int32))


@wrong("mha_flops", "projections of the larger length for all four")
# differs on: (2, 3, 5, 8, 2) ; right for T = S
def _(B, T, S, D, H):
    return 8 * B * max(T, S) * D * D + 4 * B * T * S * D


@right("mha_flops", "a list of matrix products, multiplied out")
def _(B, T, S, D, H):
    d_k = D // H
    products = [(1, T, D, D), (1, S, D, D), (1, S, D, D), (1, T, D, D)]
    products += [(1, T, d_k, S), (1, T, S, d_k)] * H
    return 2 * B * sum(map(math.prod, products))


@right("mha_flops", "one product: (T + S) D + T S, times 4 B D")
def _(B, T, S, D, H):
    del H
    return (B * D << 2) * ((T + D) * (S + D) - D * D - T * D - S * D + (T + S) * D)


# ---------------------------------------------------------------- fused_qkv


@wrong("fused_qkv", "as it stands: the rows of BLOOM, q, k, v of each head in turn")
# differs on: (randn(1, 3, 4), randn(12, 4), 2) ; right for one head
def _(x, weight, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    qkv = x @ weight.T
    qkv = qkv.reshape(B, T, n_heads, 3, d_k)
    q, k, v = qkv.permute(3, 0, 2, 1, 4)
    return q, k, v


@wrong("fused_qkv", "the reshape repaired, the permutation not: tokens and heads swapped")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads)
    q, k, v = qkv.permute(2, 0, 1, 3, 4)
    return q, k, v


@wrong("fused_qkv", "the reshape repaired, the permutation not: 3 and H swapped")
# differs on: (randn(1, 2, 6), randn(18, 6), 3) ; same shapes because H = 3
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads)
    q, k, v = qkv.permute(3, 0, 2, 1, 4)
    return q, k, v


@wrong("fused_qkv", "keys and values swapped")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads)
    q, v, k = qkv.permute(2, 0, 3, 1, 4)
    return q, k, v


@wrong("fused_qkv", "weight taken for (D, 3·D), as GPT-2's Conv1D stores it")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.reshape(D, 3 * D)).reshape(B, T, 3, n_heads, D // n_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return q, k, v


@wrong("fused_qkv", "features within a head in turn")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, D // n_heads, n_heads)
    q, k, v = qkv.permute(2, 0, 4, 1, 3)
    return q, k, v


@wrong("fused_qkv", "queries repaired, keys and values left as they were")
# differs on: (randn(1, 2, 4), randn(12, 4), 2) ; the queries are right
def _(x, weight, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    q = tx.split_heads(x @ weight[:D].T, n_heads)
    old = (x @ weight.T).reshape(B, T, n_heads, 3, d_k)
    _, k, v = old.permute(3, 0, 2, 1, 4)
    return q, k, v


@wrong("fused_qkv", "one view to (3, B, H, T, d_k)")
# differs on: (randn(1, 2, 4), randn(12, 4), 2) ; right for B = T = 1
def _(x, weight, n_heads):
    B, T, D = x.shape
    q, k, v = (x @ weight.T).reshape(3, B, n_heads, T, D // n_heads)
    return q, k, v


@wrong("fused_qkv", "split, but with a view straight to (B, H, T, d_k)")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    parts = (x @ weight.T).chunk(3, -1)
    return tuple(p.reshape(B, n_heads, T, D // n_heads) for p in parts)


@wrong("fused_qkv", "queries scaled already")
# differs on: (randn(1, 2, 4), randn(12, 4), 2) ; right for d_k = 1
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return q * q.shape[-1] ** -0.5, k, v


@wrong("fused_qkv", "the values carry no gradient")
# differs on: (randn(1, 2, 4), randn(12, 4), 2)
def _(x, weight, n_heads):
    B, T, D = x.shape
    q, k, v = (x @ weight.T).reshape(B, T, 3, n_heads, -1).permute(2, 0, 3, 1, 4)
    return q, k, v.detach()


@right("fused_qkv", "three products with three blocks of the weight")
def _(x, weight, n_heads):
    return tuple(
        torch.einsum("btd,hkd->bhtk", x, w.unflatten(0, (n_heads, -1))) for w in weight.chunk(3)
    )


@right("fused_qkv", "the product stays whole; a strided copy sorts it")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = F.linear(x, weight).contiguous()
    d_k = D // n_heads
    all3 = qkv.as_strided((3, B, n_heads, T, d_k), (D, T * 3 * D, d_k, 3 * D, 1))
    return tuple(part.clone() for part in all3)


# ---------------------------------------------------------------- prune_heads


@wrong("prune_heads", "cuts the rows of w_o instead of the columns")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[rows]


@wrong("prune_heads", "d_k from the width D, not from the rows")
# differs on: (randn(4, 8), randn(4, 8), randn(4, 8), randn(8, 4), 2, [1]) ; right for H·d_k = D
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[1] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "heads sorted, not in the order of keep")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [2, 0])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    on = torch.zeros(n_heads, dtype=torch.bool)
    on[list(keep)] = True
    rows = on.repeat_interleave(w_q.shape[0] // n_heads)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "w_o keeps the sorted order, the other three that of keep")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [2, 0])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows.sort().values]


@wrong("prune_heads", "removes the heads in keep")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [0])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    stay = [h for h in range(n_heads) if h not in keep]
    rows = torch.tensor([h * d_k + i for h in stay for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "interleaved rows h, h + H, …")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h + i * n_heads for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "multiplies by zero instead of cutting")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    gate = torch.zeros(n_heads, dtype=w_q.dtype)
    gate[list(keep)] = 1
    gate = gate.repeat_interleave(w_q.shape[0] // n_heads)
    return w_q * gate[:, None], w_k * gate[:, None], w_v * gate[:, None], w_o * gate


@wrong("prune_heads", "-1 is taken for the last head")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [-1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len({h % n_heads for h in keep}) < len(keep) or any(h >= n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    cut = [w.unflatten(0, (n_heads, -1))[list(keep)].flatten(0, 1) for w in (w_q, w_k, w_v)]
    return *cut, w_o.unflatten(1, (n_heads, -1))[:, list(keep)].flatten(1)


@wrong("prune_heads", "a head named twice is taken twice")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [1, 1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "only neighbours in keep are compared for doubles")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [1, 0, 1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if any(a == b for a, b in itertools.pairwise(keep)) or any(
        not 0 <= h < n_heads for h in keep
    ):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@wrong("prune_heads", "head H is allowed: an IndexError, or nothing at all")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [0, 2])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h <= n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    three = [torch.cat([w[h * d_k : (h + 1) * d_k] for h in keep]) for w in (w_q, w_k, w_v)]
    return *three, torch.cat([w_o[:, h * d_k : (h + 1) * d_k] for h in keep], 1)


@wrong("prune_heads", "rescales what is left by H / n, as dropout would")
# differs on: (randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2, [1])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows] * n_heads / max(1, len(keep))


@wrong("prune_heads", "the heads from the first to the last in keep, with those between")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [0, 2])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    a, b = min(keep) * d_k, (max(keep) + 1) * d_k
    return w_q[a:b], w_k[a:b], w_v[a:b], w_o[:, a:b]


@wrong("prune_heads", "values are not pruned by keep but by position")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [0, 2]) ; right for a prefix
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[: len(rows)], w_o[:, rows]


@wrong("prune_heads", "sorts the caller's list")
# differs on: (randn(6, 6), randn(6, 6), randn(6, 6), randn(6, 6), 3, [2, 0])
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    order = list(keep)
    keep.sort()
    if len(set(keep)) < len(keep) or any(not 0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    d_k = w_q.shape[0] // n_heads
    rows = torch.tensor([h * d_k + i for h in order for i in range(d_k)], dtype=torch.long)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


@right("prune_heads", "cut into heads, picked, joined")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if sorted(keep) != [h for h in range(n_heads) if h in keep]:
        raise ValueError(f"keep = {keep}")
    pick = torch.tensor(keep, dtype=torch.long)
    d_k = w_q.shape[0] // n_heads
    three = [w.unflatten(0, (n_heads, d_k))[pick].flatten(0, 1) for w in (w_q, w_k, w_v)]
    out = w_o.T.unflatten(0, (n_heads, d_k))[pick].flatten(0, 1).T
    return three[0], three[1], three[2], out


@right("prune_heads", "products with a selection matrix")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    seen = set()
    for h in keep:
        if h in seen or h < 0 or h >= n_heads:
            raise ValueError(h)
        seen.add(h)
    wide = w_q.shape[0]
    d_k = wide // n_heads
    pick = torch.zeros(len(keep) * d_k, wide, dtype=w_q.dtype)
    for j, h in enumerate(keep):
        for i in range(d_k):
            pick[j * d_k + i, h * d_k + i] = 1
    return pick @ w_q, pick @ w_k, pick @ w_v, w_o @ pick.T


# ---------------------------------------------------------------- head_importance


@wrong("head_importance", "the mean before the absolute value")
# differs on: (randn(4, 3, 4), 20 * randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()
    return slope.mean(0).abs()


@wrong("head_importance", "one gate for the whole batch")
# differs on: (randn(4, 3, 4), 20 * randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    gates = torch.ones(n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
    loss = ((shares * gates).sum(1) - target).square().mean()
    (slope,) = torch.autograd.grad(loss, gates)
    return slope.flatten().abs()


@wrong("head_importance", "the mean over the batch twice: in the loss and in the slopes")
# differs on: (randn(4, 3, 4), randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    gates = torch.ones(len(x), n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
    loss = F.mse_loss((shares * gates).sum(1), target)
    (slope,) = torch.autograd.grad(loss, gates)
    return slope.flatten(1).abs().mean(0)


@wrong("head_importance", "the sum over the batch instead of the mean")
# differs on: (randn(4, 3, 4), randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()
    return slope.abs().sum(0)


@wrong("head_importance", "the squared error summed over (T, D)")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    return (2 * torch.einsum("btd,bhtd->bh", error, shares)).abs().mean(0)


@wrong("head_importance", "the 2 of the square is lost")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    return (torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()).abs().mean(0)


@wrong("head_importance", "the absolute value of every token before the sum over the tokens")
# differs on: (randn(4, 3, 4), 20 * randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bht", error, shares) / error[0].numel()
    return slope.abs().sum(-1).mean(0)


@wrong("head_importance", "normalized to length one over the heads, as Michel et al. do by layer")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()
    importance = slope.abs().mean(0)
    return importance / importance.norm()


@wrong("head_importance", "removes each head and measures: ξ = 0, not the slope at 1")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    base = error.square().mean((1, 2))
    without = (error[:, None] - shares).square().mean((2, 3))
    return (without - base[:, None]).abs().mean(0)


@wrong("head_importance", "the slope at ξ = 0")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    slope = 2 * torch.einsum("btd,bhtd->bh", -target, shares) / target[0].numel()
    return slope.abs().mean(0)


@wrong("head_importance", "every head alone against the target: the error without the others")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares - target[:, None]
    return (2 * (error * shares).mean((2, 3))).abs().mean(0)


@wrong("head_importance", "w_o cut along its rows")
# differs on: (randn(1, 3, 4), randn(1, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = read @ w_o.reshape(n_heads, -1, x.shape[-1])
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()
    return slope.abs().mean(0)


@wrong("head_importance", "root mean square over the batch instead of mean absolute value")
# differs on: (randn(4, 3, 4), randn(4, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    error = shares.sum(1) - target
    slope = 2 * torch.einsum("btd,bhtd->bh", error, shares) / error[0].numel()
    return slope.square().mean(0).sqrt()


@wrong("head_importance", "the gates sit on the scores, before the softmax")
# differs on: (randn(2, 3, 4), randn(2, 3, 4), randn(4, 4), randn(4, 4), randn(4, 4), randn(4, 4), 2)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    with torch.enable_grad():
        gates = torch.ones(len(x), n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
        read = tx.attention(q * gates, k, v)
        out = tx.merge_heads(read) @ w_o.T
        loss = (out - target).square().mean((1, 2))
        (slope,) = torch.autograd.grad(loss.sum(), gates)
    return slope.flatten(1).abs().mean(0)


@wrong("head_importance", "backward() leaves gradients behind in the weights")
# differs on: (randn(2, 3, 4), randn(2, 3, 4), randn(4, 4), randn(4, 4), nn.Parameter(randn(4, 4)), nn.Parameter(randn(4, 4)), 2) ; the .grad of the weights
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = torch.einsum("bhtk,dhk->bhtd", read, w_o.unflatten(1, (n_heads, -1)))
    gates = torch.ones(len(x), n_heads, 1, 1, dtype=x.dtype, requires_grad=True)
    loss = ((shares * gates).sum(1) - target).square().mean((1, 2))
    loss.sum().backward()
    return gates.grad.flatten(1).abs().mean(0)


@right("head_importance", "by hand: the error times the share")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.merge_heads(tx.attention(q, k, v))
    out_grad = 2 * (read @ w_o.T - target) / (x.shape[1] * x.shape[2])
    at_read = tx.split_heads((out_grad @ w_o) * read, n_heads)
    return at_read.sum((2, 3)).abs().mean(0)


@right("head_importance", "the loss is a parabola in each gate: two evaluations give the slope")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    dtype = x.dtype
    x, target, w_q, w_k, w_v, w_o = (a.detach().double() for a in (x, target, w_q, w_k, w_v, w_o))
    total = [0.0] * n_heads
    d_k = x.shape[-1] // n_heads
    for tokens, wanted in zip(x, target, strict=True):
        shares = []
        for h in range(n_heads):
            s = slice(h * d_k, (h + 1) * d_k)
            scores = (tokens @ w_q[s].T) @ (tokens @ w_k[s].T).T / math.sqrt(d_k)
            shares.append(scores.softmax(-1) @ (tokens @ w_v[s].T) @ w_o[:, s].T)
        out = sum(shares)
        for h in range(n_heads):
            more = ((out + shares[h] - wanted) ** 2).mean()
            less = ((out - shares[h] - wanted) ** 2).mean()
            total[h] += abs(float(more - less)) / 2
    return torch.tensor([t / len(x) for t in total], dtype=dtype)


# ---------------------------------------------------------------- causal_mask


@wrong("causal_mask", "counted from the start: query i stands at position i")
# differs on: (2, 4) ; right for T = S
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril()


@wrong("causal_mask", "True = hidden")
# differs on: (3, 3)
def _(T, S):
    return torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)


@wrong("causal_mask", "a query does not see itself")
# differs on: (3, 3)
def _(T, S):
    return torch.arange(S)[None] < torch.arange(T)[:, None] + S - T


@wrong("causal_mask", "the offset cannot be negative: T > S counted from the start")
# differs on: (4, 2) ; right for T <= S
def _(T, S):
    return torch.arange(S)[None] <= torch.arange(T)[:, None] + max(S - T, 0)


@wrong("causal_mask", "the offset has the wrong sign")
# differs on: (2, 4) ; right for T = S
def _(T, S):
    return torch.arange(S)[None] <= torch.arange(T)[:, None] + T - S


@wrong("causal_mask", "anti-causal: the future instead of the past")
# differs on: (3, 3)
def _(T, S):
    return torch.arange(S)[None] >= torch.arange(T)[:, None] + S - T


@wrong("causal_mask", "rows that see nothing may look at everything, so that softmax is safe")
# differs on: (4, 2)
def _(T, S):
    m = torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T
    return m | ~m.any(-1, keepdim=True)


@wrong("causal_mask", "rows that see nothing see the first key")
# differs on: (4, 2)
def _(T, S):
    m = torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T
    m[:, 0] = True
    return m


@wrong("causal_mask", "drops the rows that see nothing")
# differs on: (4, 2)
def _(T, S):
    m = torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T
    return m[m.any(-1)]


@wrong("causal_mask", "ones and zeros as floats, not booleans")
# differs on: (3, 3)
def _(T, S):
    return torch.ones(T, S).tril(S - T)


@wrong("causal_mask", "0 and -inf, to be added")
# differs on: (3, 3)
def _(T, S):
    return torch.full((T, S), -torch.inf).triu(1 + S - T)


@wrong("causal_mask", "(S, T) instead of (T, S)")
# differs on: (2, 4) ; right shape for T = S
def _(T, S):
    return (torch.arange(S)[:, None] <= torch.arange(T)[None] + S - T)


@wrong("causal_mask", "positions in 8 bits")
# differs on: (2, 300) ; right up to 128 keys
def _(T, S):
    keys = torch.arange(S).to(torch.int8)[None]
    queries = (torch.arange(T) + S - T).to(torch.int8)[:, None]
    return keys <= queries


@wrong("causal_mask", "positions in half precision: 2049 is 2048")
# differs on: (3, 5000)
def _(T, S):
    return torch.arange(S).half()[None] <= (torch.arange(T) + S - T).half()[:, None]


@wrong("causal_mask", "a single query gets a row without the T axis")
# differs on: (1, 4)
def _(T, S):
    return (torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T).squeeze(0)


@wrong("causal_mask", "square of the larger length, cut at the wrong corner")
# differs on: (4, 2) ; right for T <= S
def _(T, S):
    n = max(T, S)
    return torch.ones(n, n, dtype=torch.bool).tril()[n - T :, :S]


@right("causal_mask", "how many keys a query sees, against a running count of the keys")
def _(T, S):
    sees = torch.arange(S - T + 1, S + 1).clamp(min=0)
    return torch.ones(T, S, dtype=torch.int64).cumsum(1).le(sees.view(-1, 1))


@right("causal_mask", "distances to the last key and the last query")
def _(T, S):
    steps = torch.arange(T - 1, -1, -1).unsqueeze(1) + torch.arange(-S + 1, 1).unsqueeze(0)
    return torch.logical_not(steps.gt(0))


# ---------------------------------------------------------------- visible_pairs


@wrong("visible_pairs", "a window alone: W keys for every query")
# differs on: (4, 4, 3)
def _(T, S, W):
    return T * W


@wrong("visible_pairs", "causal only")
# differs on: (4, 4, 3)
def _(T, S, W):
    return T * S - T * (T - 1) // 2


@wrong("visible_pairs", "as if T were S: the ramp is counted from the first token")
# differs on: (2, 6, 3) ; right for T = S
def _(T, S, W):
    m = min(T, W)
    return m * (m + 1) // 2 + (T - m) * W


@wrong("visible_pairs", "W does not count the query itself")
# differs on: (4, 4, 3)
def _(T, S, W):
    def upto(n, w):
        m = min(n, w)
        return m * (m + 1) // 2 + (n - m) * w

    return upto(S, W + 1) - upto(S - T, W + 1)


@wrong("visible_pairs", "the ramp as W²/2")
# differs on: (5, 5, 2)
def _(T, S, W):
    def upto(n):
        m = min(n, W)
        return m * m // 2 + (n - m) * W

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "no look at W > S: the ramp goes on to W")
# differs on: (4, 4, 7) ; right for W <= S - T
def _(T, S, W):
    def upto(n):
        return W * (W + 1) // 2 + (n - W) * W

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "W cut at T instead of S")
# differs on: (2, 6, 4)
def _(T, S, W):
    W = min(W, T)

    def upto(n):
        m = min(n, W)
        return m * (m + 1) // 2 + (n - m) * W

    return upto(S) - upto(S - T)


@wrong("visible_pairs", "full windows as soon as there is a past of any length")
# differs on: (3, 4, 3) ; right for T = S and for S - T >= W
def _(T, S, W):
    if S > T:
        return T * min(W, S)
    m = min(T, W)
    return m * (m + 1) // 2 + (T - m) * W


@wrong("visible_pairs", "in the middle of the ramp it takes the first query for all")
# differs on: (3, 5, 4) ; right where the ramp is not cut
def _(T, S, W):
    if S - T >= W:
        return T * W
    if T == S:
        m = min(T, W)
        return m * (m + 1) // 2 + (T - m) * W
    return T * min(W, S - T + 1)


@wrong("visible_pairs", "one query too many at the lower end")
# differs on: (2, 6, 3)
def _(T, S, W):
    def upto(n):
        m = min(n, W)
        return m * (m + 1) // 2 + (n - m) * W

    return upto(S) - upto(max(S - T - 1, 0))


@wrong("visible_pairs", "in 32 bits: negative for long texts")
# differs on: (1000000, 1000000, 4096)
def _(T, S, W):
    def upto(n):
        m = torch.tensor(min(n, W), dtype=torch.int32)
        return m * (m + 1) // 2 + (n - m) * W

    return int(upto(S) - upto(S - T))


@wrong("visible_pairs", "in float32: a few pairs lost")
# differs on: (200001, 1000000, 4095)
def _(T, S, W):
    def upto(n):
        m = torch.tensor(float(min(n, W)))
        return m * (m + 1) / 2 + (n - m) * W

    return int(upto(S) - upto(S - T))


@wrong("visible_pairs", "in float64: too coarse for a text of 10^10 tokens")
# differs on: (10**10 - 1, 10**10, 10**9 + 7)
def _(T, S, W):
    def upto(n):
        m = min(n, W)
        return m * (m + 1) / 2 + (n - m) * W

    return int(upto(S) - upto(S - T))


@wrong("visible_pairs", "the share of the pairs, not their number")
# differs on: (4, 4, 3)
def _(T, S, W):
    def upto(n):
        m = min(n, W)
        return m * (m + 1) // 2 + (n - m) * W

    return (upto(S) - upto(S - T)) / (T * S)


@wrong("visible_pairs", "window to both sides")
# differs on: (4, 4, 3)
def _(T, S, W):
    def upto(n):
        m = min(n, W)
        return m * (m + 1) // 2 + (n - m) * W

    return 2 * (upto(S) - upto(S - T)) - T


@right("visible_pairs", "all T·W pairs less those before the first token")
def _(T, S, W):
    first = S - T + 1
    short = max(0, W - first)  # what the first query lacks
    rows = min(T, short)
    return T * W - rows * (2 * short - rows + 1) // 2


@right("visible_pairs", "exact fractions, and the mean of an arithmetic row")
def _(T, S, W):
    growing = range(S - T + 1, min(S, W) + 1)
    total = fractions.Fraction(0)
    if len(growing):
        total += fractions.Fraction(growing[0] + growing[-1], 2) * len(growing)
    return int(total + (T - len(growing)) * W)


# ---------------------------------------------------------------- masked_softmax


@wrong("masked_softmax", "softmax of -inf: NaN in empty rows")
# differs on: (randn(2, 3), tensor([[True, False, True], [False, False, False]]))
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "-inf added, NaN repaired with nan_to_num: the gradients stay NaN")
# differs on: (randn(2, 3), tensor([[True, False, True], [False, False, False]]))
def _(scores, keep):
    s = scores + torch.zeros(keep.shape, dtype=scores.dtype).masked_fill(~keep, -torch.inf)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).nan_to_num(0.0)


@wrong("masked_softmax", "NaN repaired with where after the division: the gradients stay NaN")
# differs on: (randn(2, 3), tensor([[True, False, True], [False, False, False]]))
def _(scores, keep):
    e = (scores - scores.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)).exp() * keep
    w = e / e.sum(-1, keepdim=True)
    return torch.where(keep.any(-1, keepdim=True), w, torch.zeros_like(w))


@wrong("masked_softmax", "-1e9 for hidden scores: an empty row looks everywhere")
# differs on: (randn(2, 3), tensor([[True, False, True], [False, False, False]]))
def _(scores, keep):
    s = scores.masked_fill(~keep, -1e9)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@wrong("masked_softmax", "-100 for hidden scores: scores of -1000 are lower still")
# differs on: (tensor([[-1000.0, -1001.0, 3.0]]), tensor([[True, True, False]]))
def _(scores, keep):
    s = scores.masked_fill(~keep, -100.0)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) * keep.any(-1, keepdim=True)


@wrong("masked_softmax", "the largest of all scores, hidden ones too: visible ones vanish")
# differs on: (tensor([[1000.0, 0.0, 1.0]]), tensor([[False, True, True]]))
def _(scores, keep):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "one maximum for the whole tensor: quiet rows vanish")
# differs on: (tensor([[1000.0, 999.0], [0.0, 1.0]]), ones(2, 2).bool())
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    top = s.max()
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "no maximum: overflow at 1000")
# differs on: (tensor([[1000.0, 999.0]]), ones(1, 2).bool())
def _(scores, keep):
    e = scores.masked_fill(~keep, -torch.inf).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "scores cut at ±50 so that nothing overflows")
# differs on: (tensor([[60.0, 58.0, 0.0]]), ones(1, 3).bool())
def _(scores, keep):
    e = scores.clamp(-50, 50).exp() * keep
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "masks after the softmax, without a new sum")
# differs on: (randn(2, 3), tensor([[True, False, True], [True, True, False]]))
def _(scores, keep):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) * keep


@wrong("masked_softmax", "masks after the softmax and divides again: 0/0 beside a hidden 1000")
# differs on: (tensor([[1000.0, 0.0, 1.0]]), tensor([[False, True, True]]))
def _(scores, keep):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    w = e / e.sum(-1, keepdim=True) * keep
    return w / w.sum(-1, keepdim=True).clamp(min=1e-30)


@wrong("masked_softmax", "hidden scores are multiplied by zero before the exponential")
# differs on: (randn(1, 3), tensor([[True, False, True]]))
def _(scores, keep):
    s = scores * keep
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) * keep.any(-1, keepdim=True)


@wrong("masked_softmax", "an exponential that overflows, hidden by where: inf · 0 in the gradient")
# differs on: (tensor([[1000.0, 0.0, 1.0]]), tensor([[False, True, True]]))
def _(scores, keep):
    top = scores.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    e = torch.where(keep, (scores - top).exp(), torch.zeros_like(scores))
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "fills the caller's scores in place")
# differs on: (randn(2, 3), tensor([[True, False, True], [False, False, False]]))
def _(scores, keep):
    s = scores.data.masked_fill_(~keep, -torch.inf) + (scores - scores.detach()).nan_to_num(0.0)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "the sum carries no gradient: half of the Jacobian")
# differs on: (randn(2, 3), ones(2, 3).bool())
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True).detach()
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "a softmax over the queries")
# differs on: (randn(3, 3), ones(3, 3).bool())
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    top = s.amax(-2, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-2, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "True = hidden")
# differs on: (randn(1, 3), tensor([[True, False, False]]))
def _(scores, keep):
    s = scores.masked_fill(keep, -torch.inf)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "indexes with the mask: a mask that broadcasts does not fit")
# differs on: (randn(2, 3, 4), ones(3, 4).bool())
def _(scores, keep):
    s = torch.full_like(scores, -torch.inf)
    s[keep] = scores[keep]
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "1e-4 in the denominator: a row sums to a little less than one")
# differs on: (randn(2, 3), ones(2, 3).bool())
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-4)


@wrong("masked_softmax", "float32 inside: a double comes back as float")
# differs on: (randn(2, 3).double(), ones(2, 3).bool())
def _(scores, keep):
    s = scores.float().masked_fill(~keep, -torch.inf)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


@wrong("masked_softmax", "rows with one visible key are taken for empty ones")
# differs on: (randn(2, 3), tensor([[True, False, False], [True, True, False]]))
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    top = s.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0) * (keep.sum(-1, keepdim=True) > 1)


@wrong("masked_softmax", "emptiness judged over the batch: any example that sees is enough")
# differs on: (randn(2, 1, 3), tensor([[[True, True, False]], [[False, False, False]]]))
def _(scores, keep):
    keep = keep.expand_as(scores)
    s = scores.masked_fill(~keep, -1e9)
    e = (s - s.amax(-1, keepdim=True)).exp()
    seen = keep.any(-1, keepdim=True)
    if seen.dim() > 2:
        seen = seen.flatten(0, -3).any(0)
    return e / e.sum(-1, keepdim=True) * seen


@right("masked_softmax", "a double where, log-sum-exp by logaddexp over the keys")
def _(scores, keep):
    keep = keep.expand(scores.shape)
    seen = keep.any(-1, keepdim=True)
    # in an empty row every key is let in, and the row is set to zero at the end
    inside = torch.where(keep | ~seen, scores, scores.new_tensor(-1e30))
    inside = inside - inside.detach().amax(-1, keepdim=True)
    lse = inside[..., :1]
    for i in range(1, inside.shape[-1]):
        lse = torch.logaddexp(lse, inside[..., i : i + 1])
    weights = (inside - lse).exp()
    return torch.where(keep, weights, torch.zeros_like(weights))


@right("masked_softmax", "row by row on the visible keys only, put back by index")
def _(scores, keep):
    keep = keep.expand(scores.shape).reshape(-1, scores.shape[-1])
    rows = []
    for row, on in zip(scores.reshape(keep.shape), keep, strict=True):
        where = on.nonzero()[:, 0]
        weights = row * 0
        if len(where):
            part = row[where]
            e = torch.exp(part - part.detach().max())
            weights = weights.index_put((where,), e / e.sum())
        rows.append(weights)
    return torch.stack(rows).reshape(scores.shape)


@right("masked_softmax", "NaN repaired at the end; masked_fill stops its gradient, unlike adding -inf")
def _(scores, keep):
    s = scores.masked_fill(~keep, -torch.inf)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).nan_to_num(0.0)


# ---------------------------------------------------------------- next_token_loss


@wrong("next_token_loss", "no shift: every token predicts itself")
# differs on: (randn(2, 4, 5), torch.randint(5, (2, 4)), ones(2, 4).bool())
def _(logits, tokens, real):
    if not (real[:, 1:] & real[:, :-1]).any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[real], tokens[real])


@wrong("next_token_loss", "shifted the wrong way: the previous token")
# differs on: (randn(2, 4, 5), torch.randint(5, (2, 4)), ones(2, 4).bool())
def _(logits, tokens, real):
    on = real[:, 1:] & real[:, :-1]
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, 1:][on], tokens[:, :-1][on])


@wrong("next_token_loss", "only the token asked for has to be real: wrong for padding on the left")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[False, False, True, True]]))
def _(logits, tokens, real):
    on = real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "only the token that asks has to be real: wrong for padding on the right")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, True, False, False]]))
def _(logits, tokens, real):
    on = real[:, :-1]
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "one of the two real is enough")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[False, True, True, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] | real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "the mean of the rows' means: short rows count too much")
# differs on: (randn(2, 4, 5), torch.randint(5, (2, 4)), tensor([[True, True, True, True], [True, True, False, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    n = on.sum(1)
    return ((loss * on).sum(1)[n > 0] / n[n > 0]).mean()


@wrong("next_token_loss", "padding is zeroed but still counted in the mean")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, True, True, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).mean()


@wrong("next_token_loss", "divided by the number of real tokens, not of pairs")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), ones(1, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).sum() / real.sum()


@wrong("next_token_loss", "NaN instead of an error if there is no pair")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, False, True, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "zero instead of an error if there is no pair")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, False, False, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).sum() / on.sum().clamp(min=1)


@wrong("next_token_loss", "refuses only if no token is real")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, False, True, False]]))
def _(logits, tokens, real):
    if not real.any():
        raise ValueError("no pair")
    on = real[:, :-1] & real[:, 1:]
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "refuses a batch in which a single row has no pair")
# differs on: (randn(2, 3, 5), torch.randint(5, (2, 3)), tensor([[True, True, True], [True, False, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any(1).all():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "flattens before the shift: the end of a row predicts the next row")
# differs on: (randn(2, 3, 5), torch.randint(5, (2, 3)), ones(2, 3).bool()) ; right for B = 1
def _(logits, tokens, real):
    flat, asked, on = logits.flatten(0, 1), tokens.flatten(), real.flatten()
    on = on[:-1] & on[1:]
    if not (real[:, 1:] & real[:, :-1]).any():
        raise ValueError("no pair")
    return F.cross_entropy(flat[:-1][on], asked[1:][on])


@wrong("next_token_loss", "token 0 is taken for padding")
# differs on: (randn(1, 4, 5), tensor([[1, 0, 2, 3]]), ones(1, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    asked = tokens[:, 1:].masked_fill(~on, 0)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), asked.flatten(), ignore_index=0)


@wrong("next_token_loss", "in bits")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), ones(1, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on]) / math.log(2)


@wrong("next_token_loss", "lengths counted as if padding always stood on the right")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[False, True, True, True]]))
def _(logits, tokens, real):
    n = real.sum(1, keepdim=True)
    on = torch.arange(tokens.shape[1] - 1)[None] < n - 1
    if not on.any():
        raise ValueError("no pair")
    return F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on])


@wrong("next_token_loss", "log of the softmax plus 1e-9: a surprise costs 20.7 at most")
# differs on: (tensor([[[0.0, 100.0], [0.0, 0.0]]]), tensor([[0, 0]]), ones(1, 2).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    p = logits[:, :-1].softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return -(p + 1e-9).log()[on].mean()


@wrong("next_token_loss", "exponentials without the maximum: overflow for large logits")
# differs on: (tensor([[[0.0, 200.0], [0.0, 0.0]]]), tensor([[0, 0]]), ones(1, 2).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    lse = logits[:, :-1].exp().sum(-1).log()
    return (lse - logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0])[on].mean()


@wrong("next_token_loss", "the number of pairs in 8 bits")
# differs on: (randn(2, 200, 5), torch.randint(5, (2, 200)), ones(2, 200).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).sum() / on.sum(dtype=torch.uint8)


@wrong("next_token_loss", "padding multiplied by zero: NaN logits there spread")
# differs on: (torch.cat([full((1, 1, 5), nan), randn(1, 3, 5)], 1), torch.randint(5, (1, 4)), tensor([[False, True, True, True]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).sum() / on.sum()


@wrong("next_token_loss", "writes -100 into the caller's tokens")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), tensor([[True, True, True, False]]))
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    tokens[:, 1:][~on] = -100
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@wrong("next_token_loss", "a Python number: nothing to train with")
# differs on: (randn(1, 4, 5), torch.randint(5, (1, 4)), ones(1, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    return torch.tensor(F.cross_entropy(logits[:, :-1][on], tokens[:, 1:][on]).item())


@wrong("next_token_loss", "mean over the batch of sums: one number too large for long rows")
# differs on: (randn(2, 4, 5), torch.randint(5, (2, 4)), ones(2, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return (loss * on).sum(1).mean()


@wrong("next_token_loss", "half precision inside: the third digit is wrong")
# differs on: (10 * randn(1, 4, 50000), torch.randint(50000, (1, 4)), ones(1, 4).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    loss = F.cross_entropy(logits[:, :-1][on].half(), tokens[:, 1:][on], reduction="none")
    return loss.to(logits.dtype).mean()


@wrong("next_token_loss", "the tokens are wrapped into an alphabet of 32,768")
# differs on: (randn(1, 3, 50000), tensor([[1, 40000, 49999]]), ones(1, 3).bool())
def _(logits, tokens, real):
    on = real[:, :-1] & real[:, 1:]
    if not on.any():
        raise ValueError("no pair")
    ids = tokens[:, 1:].to(torch.int16).long() % logits.shape[-1]
    return F.cross_entropy(logits[:, :-1][on], ids[on])


@right("next_token_loss", "a loop over the pairs, with logsumexp")
def _(logits, tokens, real):
    terms = []
    for row, ids, on in zip(logits, tokens.tolist(), real.tolist(), strict=True):
        for t in range(len(ids) - 1):
            if on[t] and on[t + 1]:
                terms.append(torch.logsumexp(row[t], 0) - row[t, ids[t + 1]])
    if not terms:
        raise ValueError("no pair of real tokens")
    return torch.stack(terms).mean()


@right("next_token_loss", "the targets rolled into a copy, ignore_index for the rest")
def _(logits, tokens, real):
    asked = tokens.long().roll(-1, 1)
    both = real.logical_and(real.roll(-1, 1))
    both[:, -1] = False
    if both.sum() == 0:
        raise ValueError("nothing to predict")
    asked = torch.where(both, asked, -1)
    return F.cross_entropy(logits.permute(0, 2, 1), asked, ignore_index=-1)


# ---------------------------------------------------------------- leak_floor


@wrong("leak_floor", "the last position counts as leaking")
# differs on: (10, 7, 3)
def _(V, T, block):
    return math.log(V) * (T // block) / T


@wrong("leak_floor", "the last position is counted once more when the blocks fit")
# differs on: (10, 6, 3) ; right when the last block is shorter
def _(V, T, block):
    return math.log(V) * (T // block + 1) / T


@wrong("leak_floor", "a share of 1 / block")
# differs on: (10, 7, 3) ; right when the blocks fit
def _(V, T, block):
    return math.log(V) / block


@wrong("leak_floor", "never below one block, otherwise whole blocks only")
# differs on: (10, 7, 3) ; right for one block and when the blocks fit
def _(V, T, block):
    return math.log(V) * max(1, T // block) / T


@wrong("leak_floor", "no leak at all")
# differs on: (10, 6, 3) ; right for block = 1
def _(V, T, block):
    return math.log(V)


@wrong("leak_floor", "the mean over T + 1 tokens")
# differs on: (10, 6, 3)
def _(V, T, block):
    return math.log(V) * -(-T // block) / (T + 1)


@wrong("leak_floor", "blocks of the T + 1 tokens, not of the input")
# differs on: (10, 6, 3) ; right when T + 1 starts no block
def _(V, T, block):
    return math.log(V) * -(-(T + 1) // block) / T


@wrong("leak_floor", "in bits")
# differs on: (10, 6, 3)
def _(V, T, block):
    return math.log2(V) * -(-T // block) / T


@wrong("leak_floor", "the positions that leak instead of those that do not")
# differs on: (10, 6, 3)
def _(V, T, block):
    return math.log(V) * (T - -(-T // block)) / T


@wrong("leak_floor", "zero if one block holds everything")
# differs on: (10, 4, 8)
def _(V, T, block):
    if block >= T:
        return 0.0
    return math.log(V) * -(-T // block) / T


@wrong("leak_floor", "rounds the number of blocks to the nearest")
# differs on: (10, 5, 4) ; right for T = 7, block = 4
def _(V, T, block):
    return math.log(V) * max(1, round(T / block)) / T


@wrong("leak_floor", "log of V - 1: the tokens that are not the right one")
# differs on: (10, 6, 3)
def _(V, T, block):
    return math.log(max(V - 1, 1)) * -(-T // block) / T


@wrong("leak_floor", "the blind position is the last but one of a block, and the very last")
# differs on: (10, 6, 3) ; right for T = 7
def _(V, T, block):
    blind = sum(1 for t in range(T) if (t + 2) % block == 0 or t == T - 1)
    return math.log(V) * blind / T


@wrong("leak_floor", "the first position of a block is blind, the last block is forgotten if short")
# differs on: (10, 7, 3) ; right when the blocks fit
def _(V, T, block):
    blind = sum(1 for t in range(0, T - T % block, block))
    return math.log(V) * blind / T


@wrong("leak_floor", "entropy summed over at most 1,000 tokens")
# differs on: (50000, 6, 3) ; right for a small alphabet
def _(V, T, block):
    entropy = sum(1 / V * math.log(V) for _ in range(min(V, 1000)))
    return entropy * -(-T // block) / T


@right("leak_floor", "position by position")
def _(V, T, block):
    cost = 0.0
    for t in range(T):
        end = min((t // block + 1) * block, T)  # the inputs before end are seen
        if t + 1 >= end:
            cost += math.log(V)
    return cost / T


@right("leak_floor", "the number of starts, and the entropy of a uniform choice")
def _(V, T, block):
    return len(range(0, T, block)) * -math.log(1 / V) / T


# ---------------------------------------------------------------- first_leaking_row


@wrong("first_leaking_row", "NaN is not larger than the tolerance")
# differs on: (zeros(1, 3, 2), tensor([[[0.0, nan], [0.0, 0.0], [0.0, 0.0]]]), 2)
def _(before, after, token, tolerance=5e-5):
    moved = (after - before)[:, :token].abs() > tolerance
    rows = moved.any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the largest move swallows NaN: a NaN beside a small number")
# differs on: (zeros(1, 3, 2), tensor([[[0.0, nan], [0.0, 0.0], [0.0, 0.0]]]), 2)
def _(before, after, token, tolerance=5e-5):
    moved = (after - before)[:, :token].abs().nan_to_num(0.0)
    rows = (moved.amax((0, 2)) > tolerance).nonzero() if token else []
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "NaN on both sides counts as unchanged")
# differs on: (tensor([[[nan], [0.0]]]), tensor([[[nan], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    same = torch.isclose(before, after, rtol=0, atol=tolerance, equal_nan=True)
    rows = (~same[:, :token]).any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "only NaN in the second output is noticed")
# differs on: (tensor([[[nan], [0.0]]]), tensor([[[0.0], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ((after - before).abs() > tolerance) | after.isnan()
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "signed: numbers that fell are not noticed")
# differs on: (zeros(1, 2, 1), tensor([[[-1.0], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~(after - before <= tolerance)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the changed token itself is judged too")
# differs on: (zeros(1, 3, 1), tensor([[[0.0], [1.0], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, : token + 1].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "one row too few: the row just before the token is not judged")
# differs on: (zeros(1, 3, 1), tensor([[[0.0], [1.0], [0.0]]]), 2)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, : max(token - 1, 0)].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "rows after the token count too")
# differs on: (zeros(1, 3, 1), tensor([[[0.0], [0.0], [1.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved.any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) and int(rows[0]) != token else -1


@wrong("first_leaking_row", "row 0 if nothing leaked: argmax of nothing")
# differs on: (zeros(1, 3, 1), zeros(1, 3, 1), 2)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    return int(moved[:, :token].any(-1).any(0).int().argmax()) if token else -1


@wrong("first_leaking_row", "the last row that changed")
# differs on: (zeros(1, 3, 1), ones(1, 3, 1), 2)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[-1]) if len(rows) else -1


@wrong("first_leaking_row", "the row that changed most")
# differs on: (zeros(1, 3, 1), tensor([[[1.0], [2.0], [0.0]]]), 2)
def _(before, after, token, tolerance=5e-5):
    if token == 0:
        return -1
    moved = (after - before)[:, :token].abs().amax((0, 2))
    row = int(moved.argmax())
    return row if not moved[row] <= tolerance else -1


@wrong("first_leaking_row", "only the first batch row is judged")
# differs on: (zeros(2, 2, 1), tensor([[[0.0], [0.0]], [[1.0], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before)[0].abs() <= tolerance)
    rows = moved[:token].any(-1).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the first hit in memory order: batch row 0's row 2 before row 1's row 0")
# differs on: (zeros(2, 4, 1), tensor([[[0.0], [0.0], [1.0], [0.0]], [[1.0], [0.0], [0.0], [0.0]]]), 3)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    hits = moved[:, :token].nonzero()
    return int(hits[0, 1]) if len(hits) else -1


@wrong("first_leaking_row", "every batch row has to change")
# differs on: (zeros(2, 2, 1), tensor([[[0.0], [0.0]], [[1.0], [0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, :token].any(-1).all(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "every feature has to change")
# differs on: (zeros(1, 2, 2), tensor([[[1.0, 0.0], [0.0, 0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, :token].all(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the mean over features: one small leak drowns")
# differs on: (zeros(1, 2, 4), tensor([[[1e-4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs().mean(-1) <= tolerance)
    rows = moved[:, :token].any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the sum over the features: moves that cancel, moves that add up")
# differs on: (zeros(1, 2, 2), tensor([[[1.0, -1.0], [0.0, 0.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after.sum(-1) - before.sum(-1)).abs() <= tolerance)
    rows = moved[:, :token].any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the length of the move: many tiny moves add up")
# differs on: (zeros(1, 2, 16), full((1, 2, 16), 3e-5), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).norm(dim=-1) <= tolerance)
    rows = moved[:, :token].any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "a relative tolerance: large outputs hide a leak")
# differs on: (full((1, 2, 1), 100.0), tensor([[[100.01], [100.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    same = torch.isclose(before, after, rtol=1e-3, atol=tolerance)
    rows = (~same[:, :token]).any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "5e-5 whatever tolerance says")
# differs on: (zeros(1, 2, 1), tensor([[[0.01], [0.0]]]), 1, 0.1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= 5e-5)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "a tolerance of zero is taken for none: the default is used")
# differs on: (zeros(1, 2, 1), tensor([[[1e-6], [0.0]]]), 1, 0.0)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= (tolerance or 5e-5))
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "a move of exactly the tolerance counts")
# differs on: (zeros(1, 2, 1), tensor([[[0.5], [0.0]]]), 1, 0.5)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() < tolerance)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "the largest row of an empty tensor: an error for token 0")
# differs on: (zeros(1, 2, 1), ones(1, 2, 1), 0)
def _(before, after, token, tolerance=5e-5):
    moved = (after - before)[:, :token].abs().amax(0).amax(-1)
    changed = ~(moved <= tolerance)
    return int(changed.int().argmax()) if changed.max() else -1


@wrong("first_leaking_row", "counted from the token: how far back it leaked")
# differs on: (zeros(1, 4, 1), tensor([[[0.0], [1.0], [0.0], [0.0]]]), 3)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after - before).abs() <= tolerance)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return token - int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "compared in half precision")
# differs on: (ones(1, 2, 1), tensor([[[1.0001], [1.0]]]), 1)
def _(before, after, token, tolerance=5e-5):
    moved = ~((after.half() - before.half()).abs() <= tolerance)
    rows = moved[:, :token].any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@wrong("first_leaking_row", "overwrites before with the difference")
# differs on: (zeros(1, 3, 1), ones(1, 3, 1), 2)
def _(before, after, token, tolerance=5e-5):
    gap = before.detach().sub_(after.detach()).abs_()
    rows = (~(gap[:, :token] <= tolerance)).any(-1).any(0).nonzero()
    return int(rows[0]) if len(rows) else -1


@right("first_leaking_row", "a generator over the rows")
def _(before, after, token, tolerance=5e-5):
    def leaks(row):
        pairs = zip(before[:, row].flatten().tolist(), after[:, row].flatten().tolist(), strict=True)
        return any(a != a or b != b or abs(float(a) - b) > tolerance for a, b in pairs)

    return next((row for row in range(token) if leaks(row)), -1)


@right("first_leaking_row", "sorted row numbers of whatever is not small")
def _(before, after, token, tolerance=5e-5):
    small = torch.le(torch.sub(after, before).abs(), tolerance)
    _, rows, _ = torch.where(small.logical_not())
    return min([r for r in rows.tolist() if r < token], default=-1)


# ---------------------------------------------------------------- upside_down_mask


@wrong("upside_down_mask", "as it stands: True = hidden, in a kernel where True = may look")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "is_causal: counted from the start")
# differs on: (randn(1, 1, 2, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2)) ; right for T = S
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("upside_down_mask", "tril without the offset")
# differs on: (randn(1, 1, 2, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2)) ; right for T = S
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).tril().bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "tril with the old offset: one key of the future")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).tril(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "triu from the diagonal, turned round: a query does not see itself")
# differs on: (randn(1, 1, 2, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


@wrong("upside_down_mask", "a mask of floats: ones are added to the scores")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S, dtype=q.dtype).tril(S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "no mask")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2)) ; right for T = 1
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@wrong("upside_down_mask", "the sign of the offset turned")
# differs on: (randn(1, 1, 2, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2)) ; right for T = S
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + T - S).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


@wrong("upside_down_mask", "hidden scores at -10: large scores shine through")
# differs on: (30 * randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    hidden = torch.ones(T, S).triu(1 + S - T).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=-10 * hidden)


@wrong("upside_down_mask", "hidden scores at -1e4: scores of 1e4 shine through")
# differs on: (tensor([[[[200.0], [200.0]]]]), tensor([[[[0.0], [200.0]]]]), randn(1, 1, 2, 1))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    hidden = torch.ones(T, S).triu(1 + S - T).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=-1e4 * hidden)


@wrong("upside_down_mask", "queries turned round with the mask: rows in the opposite order")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool().flip(0, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("upside_down_mask", "the mask is turned for a square, not for T < S")
# differs on: (randn(1, 1, 2, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2)) ; right for T = S
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask if T == S else mask)


@wrong("upside_down_mask", "keys and values carry no gradient")
# differs on: (randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool()
    return F.scaled_dot_product_attention(q, k.detach(), v.detach(), attn_mask=~mask)


@wrong("upside_down_mask", "the offset from the wrong axes: d_k - S, not S - T")
# differs on: (randn(1, 1, 2, 4), randn(1, 1, 4, 4), randn(1, 1, 4, 4))
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + q.shape[3] - S).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


@wrong("upside_down_mask", "a single query, as in generation, sees the first key only")
# differs on: (randn(1, 1, 1, 2), randn(1, 1, 4, 2), randn(1, 1, 4, 2)) ; right for T > 1
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    shift = S - T if T > 1 else 0
    mask = torch.ones(T, S).triu(1 + shift).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


@right("upside_down_mask", "zeros and -inf, to be added")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    add = torch.full((T, S), float("-inf"), dtype=q.dtype).triu(S - T + 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=add)


@right("upside_down_mask", "one query at a time, over the keys that it may see")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    rows = []
    for i in range(T):
        n = S - T + i + 1
        rows.append(F.scaled_dot_product_attention(q[:, :, i : i + 1], k[:, :, :n], v[:, :, :n]))
    return torch.cat(rows, 2)


@right("upside_down_mask", "the fused kernel is causal already: earlier queries made up and cut off")
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    filled = F.pad(q, (0, 0, S - T, 0))
    return F.scaled_dot_product_attention(filled, k, v, is_causal=True)[:, :, S - T :]


# ---------------------------------------------------------------- tree_mask


@wrong("tree_mask", "an ordinary causal mask: branches see each other")
# differs on: (tensor([-1, -1, 0]), 2) ; right for a chain
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    return torch.ones(T, n_past + T, dtype=torch.bool).tril(n_past)


@wrong("tree_mask", "only the parent, no further ancestors")
# differs on: (tensor([-1, 0, 1]), 2) ; right for a depth of two
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            tree[i, p] = True
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "up to the grandparent")
# differs on: (tensor([-1, 0, 1, 2]), 2) ; right for a depth of three
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.long)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            tree[i, p] = 1
    tree = (tree @ tree) > 0
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "eight generations")
# differs on: (arange(12) - 1, 1) ; right for shallow trees
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i in range(T):
        p = ids[i]
        for _ in range(8):
            if p < 0:
                break
            tree[i, p] = True
            p = ids[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "counts of paths in float32: overflow and NaN in a chain of 300")
# differs on: (arange(300) - 1, 1) ; right for a chain of 200
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    step = torch.eye(T)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            step[i, p] = 1
    tree = torch.linalg.matrix_power(step, T).bool()
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "doubling, one step short: a chain of six loses one pair")
# differs on: (arange(6) - 1, 1) ; right for depths up to 2**floor(log2 T)
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    tree = torch.eye(T)
    for i, p in enumerate(parents.tolist()):
        if p >= 0:
            tree[i, p] = 1
    for _ in range(int(math.log2(T)) if T else 0):
        tree = ((tree @ tree) > 0).float()
    tree = tree.bool()
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "a guess does not see itself")
# differs on: (tensor([-1, 0, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.zeros(T, T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] = tree[p]
            tree[i, p] = True
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "descendants instead of ancestors")
# differs on: (tensor([-1, 0, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree.T], 1)


@wrong("tree_mask", "-1 as an index: the last guess is everyone's ancestor")
# differs on: (tensor([-1, -1]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "siblings see each other")
# differs on: (tensor([-1, 0, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
        for j in range(i):
            if p >= 0 and ids[j] == p:
                tree[i, j] = True
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "-1 continues the guess before it")
# differs on: (tensor([-1, -1, 1]), 2) ; right with a single root
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if i:
            tree[i] |= tree[p if p >= 0 else i - 1]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "text after the guesses")
# differs on: (tensor([-1, 0, 0]), 2) ; right for n_past = 0
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([tree, torch.ones(T, n_past, dtype=torch.bool)], 1)


@wrong("tree_mask", "the tree only, without the text")
# differs on: (tensor([-1, 0, 0]), 2) ; right for n_past = 0
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return tree


@wrong("tree_mask", "only guesses that continue the text see it")
# differs on: (tensor([-1, 0, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([(parents == -1)[:, None].expand(T, n_past), tree], 1)


@wrong("tree_mask", "a guess may be its own parent")
# differs on: (tensor([-1, 1, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p <= i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "-2 is accepted as a parent")
# differs on: (tensor([-1, 0, -2]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(p >= i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "a parent after its child is accepted, if it exists")
# differs on: (tensor([-1, 2, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < T or p == i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "the first guess is not checked")
# differs on: (tensor([0, 0, 1]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= ids[i] < i for i in range(1, T)):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "asserts instead of raising ValueError")
# differs on: (tensor([0, 0, 1]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    assert all(-1 <= p < i for i, p in enumerate(ids))
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "the parents have to ascend: a depth-first order is refused")
# differs on: (tensor([-1, 0, 1, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)) or ids != sorted(ids):
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "numbers instead of booleans")
# differs on: (tensor([-1, 0, 0]), 2)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")
    tree = torch.eye(T)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] = torch.maximum(tree[i], tree[p])
    return torch.cat([torch.ones(T, n_past), tree], 1)


@wrong("tree_mask", "a text of length 0 is refused")
# differs on: (tensor([-1, 0, 0]), 0)
def _(parents, n_past):
    T = len(parents)
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)) or n_past < 1:
        raise ValueError("parents")
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(ids):
        if p >= 0:
            tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@wrong("tree_mask", "turns -1 into its own number in the caller's tensor")
# differs on: (tensor([-1, 0, -1]), 2)
def _(parents, n_past):
    T = len(parents)
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("parents")
    for i in range(T):
        if parents[i] < 0:
            parents[i] = i
    tree = torch.eye(T, dtype=torch.bool)
    for i, p in enumerate(parents.tolist()):
        tree[i] |= tree[p]
    return torch.cat([torch.ones(T, n_past, dtype=torch.bool), tree], 1)


@right("tree_mask", "recursion over the paths to the root, without deep calls")
def _(parents, n_past):
    ids = [int(p) for p in parents]
    if not all(-1 <= p < i for i, p in enumerate(ids)):
        raise ValueError(f"parents = {ids}")

    def path(i):
        while i != -1:
            yield n_past + i
            i = ids[i]

    mask = torch.zeros(len(ids), n_past + len(ids), dtype=torch.bool)
    for i in range(len(ids)):
        mask[i, [*range(n_past), *path(i)]] = True
    return mask


@right("tree_mask", "the inverse of identity minus parents, in doubles")
def _(parents, n_past):
    T = parents.shape[0]
    number = torch.arange(T)
    p = parents.long()
    if ((p >= number) | (p < -1)).any():
        raise ValueError("a parent stands before its child")
    step = (p[:, None] == number[None]).double()
    eye = torch.eye(T, dtype=torch.double)
    tree = torch.linalg.solve_triangular(eye - step, eye, upper=False, unitriangular=True)
    return F.pad(tree > 0.5, (n_past, 0), value=True)


# ---------------------------------------------------------------- as source text

wrong_source(
    "visible_pairs",
    "adds up query by query, with a list of all keys: never ready at a million tokens",
    """
def visible_pairs(T, S, W):
    n = 0
    for p in range(S - T, S):
        for key in range(S):
            n += p - W < key <= p
    return n
""",
    # differs on: (200000, 1000000, 4096): does not come back
    expect="timeout",
)

wrong_source(
    "tree_mask",
    "recursion for each ancestor: a chain of 3,000 guesses is too deep",
    """
def tree_mask(parents, n_past):
    ids = parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(ids)):
        raise ValueError("parents")

    def path(i):
        return [] if i < 0 else [*path(ids[i]), i]

    T = len(ids)
    mask = torch.zeros(T, n_past + T, dtype=torch.bool)
    mask[:, :n_past] = True
    for i in range(T):
        mask[i, [n_past + j for j in path(i)]] = True
    return mask
""",
    # differs on: (arange(3000) - 1, 1): RecursionError
    expect="error",
)

right_source(
    "causal_mask",
    "a lambda with a walrus",
    """
causal_mask = lambda T, S: ~(torch.ones(T, n := S).bool().triu(n - T + 1))
""",
)

right_source(
    "MultiHead",
    "a ModuleDict-free subclass with its products fused at run time",
    """
from torch import nn


class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = [
            nn.Linear(d_model, d_model, bias=False) for _ in "qkvo"
        ]

    def forward(self, x):
        weight = torch.cat([m.weight for m in (self.query, self.key, self.value)])
        qkv = (x @ weight.T).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        read = torch.softmax(scores, dim=-1) @ v
        return self.out(read.transpose(1, 2).flatten(2))
""",
)
