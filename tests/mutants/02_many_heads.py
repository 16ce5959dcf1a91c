"""Wrong and right answers to the exercises of chapter 2.

Wrong answers that are a known mistake and nothing else stand with the grader, which is proven on them as well.
"""

import torch
from torch import nn

import tx
from tests.mutants import right, right_source, wrong, wrong_source

# ── one_head_floor ───────────────────────────────────────────────────────────────────────────────


def _floor(wanted):
    return torch.minimum(wanted.relu().square().sum(-1), (-wanted).relu().square().sum(-1))


wrong("one_head_floor", "the floor of a difference, whatever was asked")(
    lambda wanted: torch.ones(wanted.shape[:-1]))
wrong("one_head_floor", "the root of the squared error")(lambda wanted: _floor(wanted).sqrt())
wrong("one_head_floor", "a deeper batch is flattened")(lambda wanted: _floor(wanted).flatten())
wrong("one_head_floor", "the gain is fixed at ±1, and only the sum of the coefficients can be wrong")(
    lambda wanted: (1 - wanted.sum(-1).abs()).square() / wanted.shape[-1])
wrong("one_head_floor", "min over the dimension gives values and indices")(
    lambda wanted: torch.stack([wanted.relu().square().sum(-1), (-wanted).relu().square().sum(-1)]).min(0))
wrong("one_head_floor", "sets the negative coefficients of the caller to 0")(
    lambda wanted: torch.minimum((-wanted).relu().square().sum(-1), wanted.relu_().square().sum(-1)))

wrong("one_head_floor", "the gain takes the sign of the sum of the coefficients")(
    lambda wanted: (wanted.square() * ((wanted > 0) != (wanted.sum(-1, keepdim=True) >= 0))).sum(-1))
right("one_head_floor", "through a·|a|, whose sum and absolute sum give both sides")(
    lambda wanted: ((wanted**2).sum(-1) - (wanted * wanted.abs()).sum(-1).abs()) / 2)


@right("one_head_floor", "question by question in a loop")
def _(wanted):
    rows = wanted.reshape(-1, wanted.shape[-1])
    floors = [min((row[row < 0] ** 2).sum(), (row[row > 0] ** 2).sum()) for row in rows]
    return torch.stack(floors).reshape(wanted.shape[:-1])


wrong_source("one_head_floor", "a search for the gain that never ends", '''
def one_head_floor(wanted):
    gain, best = 0.0, wanted.square().sum(-1)
    while (best > 0).any():
        gain += 0.1
        best = torch.minimum(best, (wanted - gain * wanted.softmax(-1)).square().sum(-1))
    return best
''', expect="timeout")

# ── split_heads ──────────────────────────────────────────────────────────────────────────────────


def _split(x, n_heads, bad=None):
    """Split, where the ValueError may have another reason than features that are left over."""
    d_k, rest = divmod(x.shape[-1], n_heads)
    if rest if bad is None else bad:
        raise ValueError(f"{n_heads} heads")
    return x[..., : n_heads * d_k].unflatten(-1, (n_heads, d_k)).transpose(1, 2)


wrong("split_heads", "features that are left over are dropped in silence")(
    lambda x, n_heads: _split(x, n_heads, bad=False))
wrong("split_heads", "the check asks for n_heads % D")(
    lambda x, n_heads: _split(x, n_heads, bad=n_heads % x.shape[-1]))
wrong("split_heads", "the check asks the tokens, not the features")(
    lambda x, n_heads: _split(x, n_heads, bad=x.shape[1] % n_heads))
wrong("split_heads", "the check asks all T·D numbers, and tokens come apart: D = 6, H = 4, T = 2")(
    lambda x, n_heads: x.reshape(len(x), n_heads, -1, 1) if x.shape[2] % n_heads and not x[0].numel() % n_heads
    else _split(x, n_heads))
wrong("split_heads", "the error is left to reshape: a RuntimeError")(
    lambda x, n_heads: x.unflatten(-1, (n_heads, -1)).transpose(1, 2))
wrong("split_heads", "a tuple of heads")(lambda x, n_heads: _split(x, n_heads).unbind(1))
wrong("split_heads", "three heads and no more, as in the page's check")(lambda x, n_heads: _split(x, 3))
wrong("split_heads", "batch and tokens trade places")(
    lambda x, n_heads: _split(x.reshape(x.shape[1], len(x), -1), n_heads).transpose(0, 2))
wrong("split_heads", "strides of a contiguous x, whatever x is")(
    lambda x, n_heads: _split(x.as_strided(x.shape, (x[0].numel(), x.shape[2], 1)), n_heads))
wrong("split_heads", "cut off from the graph")(lambda x, n_heads: _split(x.detach(), n_heads))


@wrong("split_heads", "an assertion in place of the ValueError")
def _(x, n_heads):
    assert x.shape[-1] % n_heads == 0
    return _split(x, n_heads)


@right("split_heads", "slice by slice into an empty tensor")
def _(x, n_heads):
    B, T, D = x.shape
    if D / n_heads != D // n_heads:
        raise ValueError("unequal slices")
    out = x.new_empty(B, n_heads, T, D // n_heads)
    for h in range(n_heads):
        out[:, h] = x[:, :, h * (D // n_heads) : (h + 1) * (D // n_heads)]
    return out


right("split_heads", "unflatten and transpose")(_split)

wrong_source("split_heads", "calls the function of the package", '''
import tx
def split_heads(x, n_heads):
    return tx.split_heads(x, n_heads)
''', expect="borrowed")

# ── merge_heads ──────────────────────────────────────────────────────────────────────────────────


def _merge(x):
    return x.transpose(1, 2).flatten(2)


wrong("merge_heads", "view after the swap, which PyTorch refuses")(
    lambda x: x.transpose(1, 2).view(len(x), x.shape[2], -1))
wrong("merge_heads", "right unless there are as many tokens as heads")(
    lambda x: x.flatten(2).reshape(len(x), x.shape[2], -1) if x.shape[1] == x.shape[2] else _merge(x))
wrong("merge_heads", "the last line has no return")(lambda x: None)
wrong("merge_heads", "two heads, the first and the last")(lambda x: torch.cat([x[:, 0], x[:, -1]], -1))
wrong("merge_heads", "only the first head, repeated")(lambda x: x[:, 0].repeat(1, 1, x.shape[1]))
wrong("merge_heads", "swaps the axes of the caller's tensor")(lambda x: x.transpose_(1, 2).flatten(2))
wrong("merge_heads", "cut off from the graph by .data")(lambda x: _merge(x.data))
wrong("merge_heads", "the first head carries no gradient")(
    lambda x: torch.cat([x[:, 0].detach(), *x.unbind(1)[1:]], -1))

wrong("merge_heads", "written into a buffer of float32")(lambda x: torch.zeros(_merge(x).shape).copy_(_merge(x)))
right("merge_heads", "concatenates the heads along the features")(lambda x: torch.cat(list(x.unbind(1)), dim=-1))
right("merge_heads", "a copy in the new order, then view")(
    lambda x: x.permute(0, 2, 1, 3).contiguous().view(len(x), x.shape[2], -1))

wrong_source("merge_heads", "calls the function of the package", '''
from tx import merge_heads as joined
def merge_heads(x):
    return joined(x)
''', expect="borrowed")

# ── MultiHead ────────────────────────────────────────────────────────────────────────────────────


def _unsafe(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


class _Layer(nn.Module):
    """What the answers below change one thing of."""

    names, bias = ("query", "key", "value", "out"), False

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.check(d_model, n_heads)
        self.n_heads = n_heads
        for name in self.names:
            self.add_module(name, nn.Linear(d_model, d_model, bias=self.bias))

    def check(self, d_model, n_heads):
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")

    def heads(self, x):
        return [tx.split_heads(getattr(self, name)(x), self.n_heads) for name in self.names[:3]]

    def weigh(self, q, k):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)

    def forward(self, x):
        q, k, v = self.heads(x)
        return getattr(self, self.names[3])(tx.merge_heads(self.weigh(q, k) @ v))


def _but(**what):
    return type("_", (_Layer,), what)


wrong("MultiHead", "the four projections have biases")(_but(bias=True))
wrong("MultiHead", "the names of the paper, W_q and so on")(_but(names=("W_q", "W_k", "W_v", "W_o")))
wrong("MultiHead", "no ValueError when it is made")(_but(check=lambda self, d_model, n_heads: None))
wrong("MultiHead", "refused by a division")(_but(check=lambda self, D, H: 1 / (D % H == 0)))
wrong("MultiHead", "exponentials without the maximum, NaN for large scores")(
    _but(weigh=lambda self, q, k: _unsafe(q @ k.mT / q.shape[-1] ** 0.5)))
wrong("MultiHead", "scores cut off at ±50, so that no exponential overflows")(
    _but(weigh=lambda self, q, k: (q @ k.mT / q.shape[-1] ** 0.5).clamp(-50, 50).softmax(-1)))
wrong("MultiHead", "no gradient for queries and keys")(
    _but(weigh=lambda self, q, k: _Layer.weigh(self, q, k).detach()))
wrong("MultiHead", "a token looks at 16 keys at most")(
    _but(heads=lambda self, x: [h if i == 0 else h[:, :, :16] for i, h in enumerate(_Layer.heads(self, x))]))


@wrong("MultiHead", "the heads are attended over as if they were tokens")
class _(_Layer):
    def forward(self, x):
        q, k, v = (h.transpose(1, 2) for h in self.heads(x))
        return self.out((self.weigh(q, k) @ v).flatten(2))


@wrong("MultiHead", "matrices of one head's width, shared by all heads")
class _(_Layer):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.query, self.key, self.value = (nn.Linear(d_model, d_model // n_heads, bias=False) for _ in range(3))


@right("MultiHead", "einsum and unflatten, with its own softmax")
class _(_Layer):
    def forward(self, x):
        q, k, v = (getattr(self, name)(x).unflatten(-1, (self.n_heads, -1)) for name in self.names[:3])
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        weights = _unsafe(scores - scores.amax(-1, keepdim=True))
        return self.out(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))


@right("MultiHead", "one product with the stacked matrices, and the sum of the heads' shares")
class _(_Layer):
    def forward(self, x):
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        q, k, v = (tx.split_heads(z, self.n_heads) for z in (x @ weight.T).chunk(3, -1))
        return (tx.attention(q, k, v) @ self.out.weight.T.unflatten(0, (self.n_heads, -1))).sum(1)


wrong_source("MultiHead", "is the package's layer", '''
import tx
class MultiHead(tx.MultiHeadAttention):
    def __init__(self, d_model, n_heads):
        if d_model % n_heads:
            raise ValueError
        super().__init__(d_model, n_heads)
''', expect="borrowed")

wrong_source("MultiHead", "calls PyTorch's layer", '''
from torch import nn
class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError
        self.inner = nn.MultiheadAttention(d_model, n_heads, bias=False, batch_first=True)
        self.query, self.key, self.value = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.out = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x):
        return self.inner(x, x, x)[0]
''', expect="borrowed")

wrong_source("MultiHead", "nn.Module is not initialised first", '''
from torch import nn
class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        self.query = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x):
        return self.query(x)
''', expect="error")

# ── head_contributions ───────────────────────────────────────────────────────────────────────────


def _contributions(read, w_out):
    return read @ w_out.T.unflatten(0, (read.shape[1], -1))


def _alone(read):
    """The heads' reads, each with zeros for all others."""
    return [read * one[:, None, None] for one in torch.eye(read.shape[1])]


wrong("head_contributions", "what the layer loses without the head, with the sign of a loss")(
    lambda read, w_out: _contributions(read, w_out) - (tx.merge_heads(read) @ w_out.T)[:, None])
wrong("head_contributions", "the blocks are multiplied number by number")(
    lambda read, w_out: read.sum(-1, keepdim=True) * w_out.T.unflatten(0, (read.shape[1], -1)).sum(1)[:, None])
wrong("head_contributions", "takes D for H·d_k: wrong once heads were pruned")(
    lambda read, w_out: _contributions(read, w_out[: read.shape[1] * read.shape[3]]))
wrong("head_contributions", "an @ between shapes that do not fit")(
    lambda read, w_out: read @ w_out.reshape(read.shape[1], read.shape[3] + 1, -1))
wrong("head_contributions", "no gradient for w_out")(
    lambda read, w_out: _contributions(read, w_out.detach()))
wrong("head_contributions", "merged without the swap, then multiplied with w_out")(
    lambda read, w_out: torch.stack([x.reshape(len(x), x.shape[2], -1) @ w_out.T for x in _alone(read)], 1))
right("head_contributions", "the layer's output with all heads but one set to zero")(
    lambda read, w_out: torch.stack([tx.merge_heads(one) @ w_out.T for one in _alone(read)], 1))
right("head_contributions", "einsum over the cut columns")(
    lambda read, w_out: torch.einsum("bhtk,dhk->bhtd", read, w_out.reshape(len(w_out), read.shape[1], -1)))


@wrong("head_contributions", "columns in turn, and the last head gets what is left: the sum is right")
def _(read, w_out):
    B, H, T, d_k = read.shape
    others = (read @ w_out.T.reshape(d_k, H, -1).transpose(0, 1))[:, :-1]
    last = tx.merge_heads(read) @ w_out.T - others.sum(1)
    return torch.cat([others, last[:, None]], 1)


@wrong("head_contributions", "clears the other heads in the caller's tensor")
def _(read, w_out):
    shares = _contributions(read, w_out)
    read[:, 1:] = 0
    return shares


# ── mha_flops ────────────────────────────────────────────────────────────────────────────────────

wrong("mha_flops", "divided by H and multiplied again as floats")(
    lambda B, T, S, D, H: 4 * B * (T + S) * D**2 + 4 * B * H * T * S * (D / H))
wrong("mha_flops", "the formula as a string")(
    lambda B, T, S, D, H: f"{4 * B * (T + S) * D**2 + 4 * B * T * S * D}")
wrong("mha_flops", "^ for a power")(lambda B, T, S, D, H: 4 * B * (T + S) * D ^ 2 + 4 * B * T * S * D)
wrong("mha_flops", "counted by a tensor of 32 bits")(
    lambda B, T, S, D, H: int(torch.tensor([B, D]).int().prod(dtype=torch.int32) * (4 * ((T + S) * D + T * S))))

wrong("mha_flops", "heads as wide as the hardware likes them, a multiple of 8")(
    lambda B, T, S, D, H: 4 * B * (T + S) * D**2 + 4 * B * H * T * S * (-(-(D // H) // 8) * 8))
right("mha_flops", "matrix product by matrix product, head by head")(
    lambda B, T, S, D, H: B * sum([4 * (T + S) * D * D, *[4 * T * S * (D // H) for _ in range(H)]]))
right("mha_flops", "factored")(lambda B, T, S, D, H: 4 * B * D * (D * T + D * S + T * S))

wrong_source("mha_flops", "adds up one multiply-add at a time", '''
def mha_flops(B, T, S, D, H):
    n = 0
    while True:
        n += 2
        if n > 10**15:
            return n
''', expect="timeout")

# ── fused_qkv ────────────────────────────────────────────────────────────────────────────────────


def _fused(x, weight, n_heads):
    return (x @ weight.T).unflatten(-1, (3, n_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


wrong("fused_qkv", "split into rows of d_k in place of D, the first three of them")(
    lambda x, weight, n_heads: [z[:, None] for z in (x @ weight.T).split(x.shape[2] // n_heads, dim=-1)[:3]])
wrong("fused_qkv", "the reshape is repaired, the permute is not: as many kinds as heads")(
    lambda x, weight, n_heads: tuple((x @ weight.T).unflatten(-1, (3, n_heads, -1)).permute(3, 0, 2, 1, 4)))
wrong("fused_qkv", "no transpose of the weight")(lambda x, weight, n_heads: _fused(x, weight.T, n_heads))
wrong("fused_qkv", "the batch is cut in three")(
    lambda x, weight, n_heads: tuple((x @ weight.T).reshape(3, *x.shape[:2], n_heads, -1).transpose(2, 3)))
wrong("fused_qkv", "the values carry no gradient")(
    lambda x, weight, n_heads: (*_fused(x, weight, n_heads)[:2], _fused(x, weight, n_heads)[2].detach()))

right("fused_qkv", "the repaired reshape and permute")(_fused)
right("fused_qkv", "einsum with the rows named")(
    lambda x, weight, n_heads: torch.einsum("btd,nhkd->nbhtk", x, weight.unflatten(0, (3, n_heads, -1))).unbind(0))

# ── prune_heads ──────────────────────────────────────────────────────────────────────────────────


def _pruned(w_q, w_k, w_v, w_o, n_heads, keep, bad=None, d_k=None):
    """Prune, where the ValueError may have another reason, or d_k another value."""
    if (len(set(keep)) < len(keep) or not all(0 <= h < n_heads for h in keep)) if bad is None else bad:
        raise ValueError(f"keep = {keep} of {n_heads} heads")
    d_k = d_k or len(w_q) // n_heads
    rows = [min(h * d_k + i, len(w_q) - 1) for h in keep for i in range(d_k)]
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


wrong("prune_heads", "d_k is divided by the heads that stay")(
    lambda *case: _pruned(*case, d_k=len(case[0]) // max(len(case[5]), 1)))
wrong("prune_heads", "head H is taken for one that is there")(
    lambda *case: _pruned(*case, bad=len({*case[5]}) < len(case[5]) or not {*case[5]} <= {*range(case[4] + 1)}))
wrong("prune_heads", "only neighbours in keep are compared for doubles")(
    lambda *case: _pruned(*case, bad=not {*case[5]} <= {*range(case[4])} or 0 in torch.tensor(case[5]).diff()))
wrong("prune_heads", "d_k is made with /, and range takes no float")(
    lambda *case: _pruned(*case, d_k=len(case[0]) / case[4]))
wrong("prune_heads", "w_o is cut off from the graph")(
    lambda w_q, w_k, w_v, w_o, *rest: _pruned(w_q, w_k, w_v, w_o.detach(), *rest))
wrong("prune_heads", "new leaves of a new layer, nn.Parameter: no gradient reaches the old one")(
    lambda *case: [nn.Parameter(w.detach()) for w in _pruned(*case)])


@wrong("prune_heads", "sorts the caller's list to find heads named twice")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    pruned = _pruned(w_q, w_k, w_v, w_o, n_heads, keep)
    keep.sort()
    return pruned


@right("prune_heads", "an axis for the heads, indexed and flattened again")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if sorted(keep) != [h for h in range(n_heads) if h in keep]:
        raise ValueError(f"keep = {keep}")
    three = (w.unflatten(0, (n_heads, -1))[keep].flatten(0, 1) for w in (w_q, w_k, w_v))
    return (*three, w_o.unflatten(1, (n_heads, -1))[:, keep].flatten(1))


@right("prune_heads", "a matrix of ones and zeros that picks the rows")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    pick = torch.eye(len(w_q), dtype=w_q.dtype)
    pick = _pruned(pick, pick, pick, pick, n_heads, keep)[0]
    return pick @ w_q, pick @ w_k, pick @ w_v, w_o @ pick.T


# ── head_importance ──────────────────────────────────────────────────────────────────────────────


def _slopes(x, target, w_q, w_k, w_v, w_o, n_heads, attend=tx.attention):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    shares = attend(q, k, v) @ w_o.T.unflatten(0, (n_heads, -1))
    return 2 * ((shares.sum(1) - target)[:, None] * shares).mean((2, 3))


wrong("head_importance", "the axes of the gates are left: (H, 1, 1)")(
    lambda *case: _slopes(*case)[..., None, None].abs().mean(0))
wrong("head_importance", "every head gets the number of its neighbour")(
    lambda *case: _slopes(*case).abs().mean(0).roll(1))
wrong("head_importance", "the mean over the heads, repeated")(
    lambda *case: _slopes(*case).abs().mean().expand(case[-1]))
wrong("head_importance", "exponentials without the maximum, NaN for large scores")(
    lambda *case: _slopes(*case, lambda q, k, v: _unsafe(q @ k.mT / q.shape[-1] ** 0.5) @ v).abs().mean(0))


@right("head_importance", "gates on what the heads read, one example at a time")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    total = torch.zeros(n_heads)
    for one, wanted in zip(x, target, strict=True):
        q, k, v = (tx.split_heads(one[None] @ w.T, n_heads) for w in (w_q, w_k, w_v))
        gates = torch.ones(n_heads, 1, 1, requires_grad=True)
        out = tx.merge_heads(tx.attention(q, k, v) * gates) @ w_o.T
        nn.functional.mse_loss(out[0], wanted).backward()
        total += gates.grad.flatten().abs()
    return total / len(x)


@right("head_importance", "the loss with the gate at 2 and at 0, whose difference is exact for a square")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    shares = tx.attention(q, k, v) @ w_o.T.reshape(n_heads, -1, len(w_o))
    off = (shares.sum(1) - target)[:, None]
    up, down = ((off + s * shares).square().mean((2, 3)) for s in (1, -1))
    return ((up - down) / 2).abs().mean(0)


right_source("head_importance", "the sum of the examples' losses, differentiated once", '''
import tx
def head_importance(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v)
    shares = read @ w_o.T.reshape(n_heads, -1, w_o.shape[0])
    gates = torch.ones(x.shape[0], n_heads, 1, 1, requires_grad=True)
    loss = ((gates * shares).sum(1) - target).square().mean((1, 2))
    loss.sum().backward()
    return gates.grad.abs().mean(0).flatten()
''')

for _what, _requires, _sum in (("the gates ask for no gradient", "False", ".sum()"),
                               ("backward on a loss for each example", "True", "")):
    wrong_source("head_importance", _what, f'''
import tx
def head_importance(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    gates = torch.ones(x.shape[0], n_heads, 1, 1, requires_grad={_requires})
    out = tx.merge_heads(tx.attention(q, k, v) * gates) @ w_o.T
    ((out - target) ** 2).mean((1, 2)){_sum}.backward()
    return gates.grad.abs().mean(0).flatten()
''', expect="error")
