"""Wrong and right answers to the exercises of chapter 2."""

import torch
from torch import nn

import tx
from tests.mutants import right, right_source, wrong, wrong_source

# ── one_head_floor ───────────────────────────────────────────────────────────────────────────────


@wrong("one_head_floor", "the larger of the two sides")
def _(wanted):
    return torch.maximum(wanted.relu().square().sum(-1), (-wanted).relu().square().sum(-1))


@wrong("one_head_floor", "a gain that is never negative")
def _(wanted):
    return (-wanted).relu().square().sum(-1)


@wrong("one_head_floor", "a gain that is never positive")
def _(wanted):
    return wanted.relu().square().sum(-1)


@wrong("one_head_floor", "the loss of whoever always answers 0")
def _(wanted):
    return wanted.square().sum(-1)


@wrong("one_head_floor", "the floor of a difference, whatever was asked")
def _(wanted):
    return torch.ones(wanted.shape[:-1])


@wrong("one_head_floor", "absolute values in place of squares")
def _(wanted):
    return torch.minimum(wanted.relu().sum(-1), (-wanted).relu().sum(-1))


@wrong("one_head_floor", "the mean over the jars")
def _(wanted):
    return torch.minimum(wanted.relu().square().mean(-1), (-wanted).relu().square().mean(-1))


@wrong("one_head_floor", "summed first, squared after")
def _(wanted):
    return torch.minimum(wanted.relu().sum(-1), (-wanted).relu().sum(-1)).square()


@wrong("one_head_floor", "one head is thought to name one jar only: all but the largest is lost")
def _(wanted):
    squares = wanted.square()
    return squares.sum(-1) - squares.amax(-1)


@wrong("one_head_floor", "only the smallest coefficient is given up")
def _(wanted):
    return wanted.square().amin(-1)


@wrong("one_head_floor", "counts the coefficients of the rarer sign, as if all were ±1")
def _(wanted):
    return torch.minimum((wanted > 0).sum(-1), (wanted < 0).sum(-1)).float()


@wrong("one_head_floor", "the cheaper sign is chosen jar by jar, so nothing is ever lost")
def _(wanted):
    return torch.minimum(wanted.relu(), (-wanted).relu()).square().sum(-1)


@wrong("one_head_floor", "summed over everything: one number for all questions")
def _(wanted):
    return torch.minimum(wanted.relu().square().sum(), (-wanted).relu().square().sum())


@wrong("one_head_floor", "summed over the first axis, not the last")
def _(wanted):
    return torch.minimum(wanted.relu().square().sum(0), (-wanted).relu().square().sum(0))


@wrong("one_head_floor", "one sign for all questions of the batch")
def _(wanted):
    plus, minus = wanted.relu().square().sum(-1), (-wanted).relu().square().sum(-1)
    return plus if plus.sum() < minus.sum() else minus


@wrong("one_head_floor", "the root of the squared error")
def _(wanted):
    return torch.minimum(wanted.relu().norm(dim=-1), (-wanted).relu().norm(dim=-1))


@wrong("one_head_floor", "the gain is fixed at ±1, and only the sum of the coefficients can be wrong")
def _(wanted):
    return (1 - wanted.sum(-1).abs()).square() / wanted.shape[-1]


@wrong("one_head_floor", "min over the dimension gives values and indices")
def _(wanted):
    both = torch.stack([wanted.relu().square().sum(-1), (-wanted).relu().square().sum(-1)])
    return both.min(0)


@wrong("one_head_floor", "sets the negative coefficients of the caller to 0")
def _(wanted):
    minus = (-wanted).relu().square().sum(-1)
    return torch.minimum(wanted.relu_().square().sum(-1), minus)


@right("one_head_floor", "the whole square minus the better half")
def _(wanted):
    squares = wanted**2
    up = (squares * (wanted > 0)).sum(-1)
    total = squares.sum(-1)
    return total - torch.maximum(up, total - up)


@right("one_head_floor", "question by question in a loop")
def _(wanted):
    floors = []
    for row in wanted.reshape(-1, wanted.shape[-1]):
        floors.append(min((row[row < 0] ** 2).sum(), (row[row > 0] ** 2).sum()))
    return torch.stack(floors).reshape(wanted.shape[:-1])


@right("one_head_floor", "through a·|a|, whose sum and absolute sum give both sides")
def _(wanted):
    signed = wanted * wanted.abs()
    return (signed.abs().sum(-1) - signed.sum(-1).abs()) / 2


wrong_source("one_head_floor", "a search for the gain that never ends", '''
def one_head_floor(wanted):
    gain, best = 0.0, wanted.square().sum(-1)
    while (best > 0).any():
        gain += 0.1
        best = torch.minimum(best, (wanted - gain * wanted.softmax(-1)).square().sum(-1))
    return best
''', expect="timeout")

# ── split_heads ──────────────────────────────────────────────────────────────────────────────────


def _cuts(D, H):
    if D % H:
        raise ValueError(f"D = {D}, n_heads = {H}")
    return D // H


@wrong("split_heads", "the tempting view, without a swap")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, n_heads, T, _cuts(D, n_heads))


@wrong("split_heads", "cut right, and T and H are never swapped")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, _cuts(D, n_heads))


@wrong("split_heads", "cut as (d_k, H): every H-th feature")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, _cuts(D, n_heads), n_heads).permute(0, 3, 1, 2)


@wrong("split_heads", "the other two axes are swapped: (B, H, d_k, T)")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, _cuts(D, n_heads)).permute(0, 2, 3, 1)


@wrong("split_heads", "the tokens are cut, not the features")
def _(x, n_heads):
    B, T, D = x.shape
    _cuts(D, n_heads)
    if T % n_heads:
        return x[:, None].repeat(1, n_heads, 1, 1)
    return x.reshape(B, n_heads, T // n_heads, D)


@wrong("split_heads", "every head gets the whole width")
def _(x, n_heads):
    _cuts(x.shape[-1], n_heads)
    return x[:, None].expand(-1, n_heads, -1, -1)


@wrong("split_heads", "the heads come first: (H, B, T, d_k)")
def _(x, n_heads):
    _cuts(x.shape[-1], n_heads)
    return torch.stack(x.chunk(n_heads, dim=-1))


@wrong("split_heads", "slices in the opposite order")
def _(x, n_heads):
    _cuts(x.shape[-1], n_heads)
    return torch.stack(x.chunk(n_heads, dim=-1)[::-1], 1)


@wrong("split_heads", "the error is left to reshape: a RuntimeError")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "an assertion in place of the ValueError")
def _(x, n_heads):
    B, T, D = x.shape
    assert D % n_heads == 0
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "features that are left over are dropped in silence")
def _(x, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    return x[..., : n_heads * d_k].reshape(B, T, n_heads, d_k).transpose(1, 2)


@wrong("split_heads", "the check asks for n_heads % D")
def _(x, n_heads):
    B, T, D = x.shape
    if n_heads % D:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "the check asks the tokens, not the features")
def _(x, n_heads):
    B, T, D = x.shape
    if T % n_heads:
        raise ValueError(f"T = {T}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)


@wrong("split_heads", "a tuple of heads")
def _(x, n_heads):
    _cuts(x.shape[-1], n_heads)
    return x.chunk(n_heads, dim=-1)


@wrong("split_heads", "n_heads is taken for the width of a head")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, _cuts(D, n_heads), n_heads).transpose(1, 2)


@wrong("split_heads", "the features of each head are scaled with 1/√d_k on the way")
def _(x, n_heads):
    B, T, D = x.shape
    d_k = _cuts(D, n_heads)
    return x.reshape(B, T, n_heads, d_k).transpose(1, 2) / d_k**0.5


@wrong("split_heads", "three heads and no more, as in the page's check")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, 3, _cuts(D, 3)).transpose(1, 2)


@wrong("split_heads", "batch and tokens trade places")
def _(x, n_heads):
    B, T, D = x.shape
    return x.reshape(T, B, n_heads, _cuts(D, n_heads)).permute(1, 2, 0, 3)


@right("split_heads", "chunks, stacked on a new axis")
def _(x, n_heads):
    if x.shape[-1] % n_heads != 0:
        raise ValueError("unequal slices")
    return torch.stack(x.chunk(n_heads, dim=-1), dim=1)


@right("split_heads", "unflatten and movedim")
def _(x, n_heads):
    d_k, rest = divmod(x.shape[2], n_heads)
    if rest:
        raise ValueError(f"{rest} features are left over")
    return x.unflatten(-1, (n_heads, d_k)).movedim(2, 1)


@right("split_heads", "slice by slice into an empty tensor")
def _(x, n_heads):
    B, T, D = x.shape
    d_k = _cuts(D, n_heads)
    out = x.new_empty(B, n_heads, T, d_k)
    for h in range(n_heads):
        out[:, h] = x[:, :, h * d_k : (h + 1) * d_k]
    return out


wrong_source("split_heads", "calls the function of the package", '''
import tx
def split_heads(x, n_heads):
    return tx.split_heads(x, n_heads)
''', expect="borrowed")

wrong_source("split_heads", "d_k is never computed", '''
def split_heads(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError("no")
    return x.reshape(B, T, n_heads, d_k).transpose(1, 2)
''', expect="error")

# ── merge_heads ──────────────────────────────────────────────────────────────────────────────────


@wrong("merge_heads", "a reshape without the swap")
def _(x):
    B, H, T, d_k = x.shape
    return x.reshape(B, T, H * d_k)


@wrong("merge_heads", "swapped, but not joined")
def _(x):
    return x.transpose(1, 2)


@wrong("merge_heads", "the features of the heads take turns")
def _(x):
    B, H, T, d_k = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, T, H * d_k)


@wrong("merge_heads", "the heads are stacked behind each other along the tokens")
def _(x):
    return torch.cat(x.unbind(1), dim=1)


@wrong("merge_heads", "the sum of the heads")
def _(x):
    return x.sum(1)


@wrong("merge_heads", "the mean of the heads")
def _(x):
    return x.mean(1)


@wrong("merge_heads", "the last two axes are swapped in place of the middle two")
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose(2, 3).reshape(B, T, H * d_k)


@wrong("merge_heads", "the first two axes are swapped, too: (T, B, …)")
def _(x):
    B, H, T, d_k = x.shape
    return x.permute(2, 0, 1, 3).reshape(T, B, H * d_k)


@wrong("merge_heads", "view after the swap, which PyTorch refuses")
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose(1, 2).view(B, T, H * d_k)


@wrong("merge_heads", "the heads in the opposite order")
def _(x):
    return torch.cat(x.flip(1).unbind(1), -1)


@wrong("merge_heads", "joined in one row: (B, T·H·d_k)")
def _(x):
    return x.transpose(1, 2).flatten(1)


@wrong("merge_heads", "only the first head, repeated")
def _(x):
    return x[:, 0].repeat(1, 1, x.shape[1])


@wrong("merge_heads", "swaps the axes of the caller's tensor")
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose_(1, 2).reshape(B, T, H * d_k)


@right("merge_heads", "concatenates the heads along the features")
def _(x):
    return torch.cat(list(x.unbind(1)), dim=-1)


@right("merge_heads", "a copy in the new order, then view")
def _(x):
    B, H, T, d_k = x.shape
    return x.permute(0, 2, 1, 3).contiguous().view(B, T, -1)


@right("merge_heads", "swap and flatten")
def _(x):
    return x.swapaxes(1, 2).flatten(-2)


wrong_source("merge_heads", "calls the function of the package", '''
from tx import merge_heads as joined
def merge_heads(x):
    return joined(x)
''', expect="borrowed")

wrong_source("merge_heads", "the last line has no return", '''
def merge_heads(x):
    B, H, T, d_k = x.shape
    x.transpose(1, 2).reshape(B, T, H * d_k)
''', expect="wrong")

# ── MultiHead ────────────────────────────────────────────────────────────────────────────────────


class _Layer(nn.Module):
    """What the answers below change one thing of."""

    bias = False

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.check(d_model, n_heads)
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=self.bias)
        self.key = nn.Linear(d_model, d_model, bias=self.bias)
        self.value = nn.Linear(d_model, d_model, bias=self.bias)
        self.out = nn.Linear(d_model, d_model, bias=self.bias)

    def check(self, d_model, n_heads):
        if d_model % n_heads:
            raise ValueError(f"{d_model}, {n_heads}")

    def heads(self, x):
        return [tx.split_heads(p(x), self.n_heads) for p in (self.query, self.key, self.value)]

    def forward(self, x):
        return self.out(tx.merge_heads(self.attend(*self.heads(x))))

    def attend(self, q, k, v):
        return tx.attention(q, k, v)


@wrong("MultiHead", "scaled with the width of the layer, 1/√d_model")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, k, v, scale=(q.shape[-1] * self.n_heads) ** -0.5)


@wrong("MultiHead", "no scale")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, k, v, scale=1.0)


@wrong("MultiHead", "scaled with 1/d_k")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, k, v, scale=1 / q.shape[-1])


@wrong("MultiHead", "the output projection is made and not used")
class _(_Layer):
    def forward(self, x):
        return tx.merge_heads(self.attend(*self.heads(x)))


@wrong("MultiHead", "the four projections have biases")
class _(_Layer):
    bias = True


@wrong("MultiHead", "merged with a reshape, without the swap")
class _(_Layer):
    def forward(self, x):
        return self.out(self.attend(*self.heads(x)).reshape(x.shape))


@wrong("MultiHead", "split with a view, without the swap")
class _(_Layer):
    def heads(self, x):
        B, T, D = x.shape
        H = self.n_heads
        return [p(x).view(B, H, T, D // H) for p in (self.query, self.key, self.value)]


@wrong("MultiHead", "split as (d_k, H) and merged the right way")
class _(_Layer):
    def heads(self, x):
        B, T, D = x.shape
        H = self.n_heads
        linears = self.query, self.key, self.value
        return [p(x).view(B, T, D // H, H).permute(0, 3, 1, 2) for p in linears]


@wrong("MultiHead", "the heads are attended over as if they were tokens")
class _(_Layer):
    def forward(self, x):
        q, k, v = (h.transpose(1, 2) for h in self.heads(x))
        return self.out(self.attend(q, k, v).reshape(x.shape))


@wrong("MultiHead", "one head of the whole width")
class _(_Layer):
    def forward(self, x):
        q, k, v = (p(x)[:, None] for p in (self.query, self.key, self.value))
        return self.out(tx.attention(q, k, v)[:, 0])


@wrong("MultiHead", "the keys come from the query's matrix")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, q, v)


@wrong("MultiHead", "the values are the keys")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, k, k)


@wrong("MultiHead", "queries and keys are exchanged")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(k, q, v)


@wrong("MultiHead", "softmax over the queries")
class _(_Layer):
    def attend(self, q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v


@wrong("MultiHead", "a causal mask")
class _(_Layer):
    def attend(self, q, k, v):
        return tx.attention(q, k, v, tx.causal())


@wrong("MultiHead", "adds its input, like a block with a residual")
class _(_Layer):
    def forward(self, x):
        return x + super().forward(x)


@wrong("MultiHead", "no ValueError when it is made")
class _(_Layer):
    def check(self, d_model, n_heads):
        pass


@wrong("MultiHead", "refused with an assertion")
class _(_Layer):
    def check(self, d_model, n_heads):
        assert d_model % n_heads == 0


@wrong("MultiHead", "returns the weights, too")
class _(_Layer):
    def forward(self, x):
        out, weights = tx.attention(*self.heads(x), return_weights=True)
        return self.out(tx.merge_heads(out)), weights


@wrong("MultiHead", "the names of the paper, W_q and so on")
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError
        self.n_heads = n_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (tx.split_heads(p(x), self.n_heads) for p in (self.W_q, self.W_k, self.W_v))
        return self.W_o(tx.merge_heads(tx.attention(q, k, v)))


@wrong("MultiHead", "matrices of one head's width, shared by all heads")
class _(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError
        self.n_heads = n_heads
        self.query, self.key, self.value = (
            nn.Linear(d_model, d_model // n_heads, bias=False) for _ in range(3)
        )
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = (p(x)[:, None] for p in (self.query, self.key, self.value))
        return self.out(tx.attention(q, k, v)[:, 0].repeat(1, 1, self.n_heads))


@wrong("MultiHead", "dropout on the weights, never switched off")
class _(_Layer):
    def attend(self, q, k, v):
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return nn.functional.dropout(weights, 0.1) @ v


@right("MultiHead", "einsum and unflatten, with its own softmax")
class _(_Layer):
    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.n_heads, -1)) for p in (self.query, self.key, self.value))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        read = torch.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdim=True), v)
        return self.out(read.flatten(2))


@right("MultiHead", "head by head in a loop")
class _(_Layer):
    def forward(self, x):
        slices = (p(x).chunk(self.n_heads, dim=-1) for p in (self.query, self.key, self.value))
        read = [tx.attention(*(s[:, None] for s in qkv))[:, 0] for qkv in zip(*slices, strict=True)]
        return self.out(torch.cat(read, -1))


@right("MultiHead", "one product with the stacked matrices, and the sum of the heads' shares")
class _(_Layer):
    def forward(self, x):
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        q, k, v = (tx.split_heads(z, self.n_heads) for z in (x @ weight.T).chunk(3, -1))
        blocks = self.out.weight.T.unflatten(0, (self.n_heads, -1))
        return (tx.attention(q, k, v) @ blocks).sum(1)


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


@wrong("head_contributions", "the rows of w_out are cut, without the transpose")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, d_k, -1)


@wrong("head_contributions", "w_out is reshaped to (H, D, d_k) and then turned")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, -1, d_k).mT


@wrong("head_contributions", "the columns of w_out are dealt out in turns")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(d_k, H, -1).transpose(0, 1)


@wrong("head_contributions", "every head gets an equal part of the output")
def _(read, w_out):
    H = read.shape[1]
    return (tx.merge_heads(read) @ w_out.T)[:, None].expand(-1, H, -1, -1) / H


@wrong("head_contributions", "what the layer loses without the head, with the sign of a loss")
def _(read, w_out):
    B, H, T, d_k = read.shape
    whole = tx.merge_heads(read) @ w_out.T
    return read @ w_out.T.reshape(H, d_k, -1) - whole[:, None]


@wrong("head_contributions", "the block of the first head for all of them")
def _(read, w_out):
    return read @ w_out[:, : read.shape[-1]].T


@wrong("head_contributions", "the shares summed: the output of the layer")
def _(read, w_out):
    return tx.merge_heads(read) @ w_out.T


@wrong("head_contributions", "axes in the order (B, T, H, D)")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return (read @ w_out.T.reshape(H, d_k, -1)).transpose(1, 2)


@wrong("head_contributions", "merged without the swap, then multiplied with all of w_out")
def _(read, w_out):
    B, H, T, d_k = read.shape
    out = torch.zeros(B, H, T, w_out.shape[0])
    for h in range(H):
        alone = torch.zeros_like(read)
        alone[:, h] = read[:, h]
        out[:, h] = alone.reshape(B, T, -1) @ w_out.T
    return out


@wrong("head_contributions", "a head reads the block of its neighbour")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(H, d_k, -1).roll(1, 0)


@wrong("head_contributions", "a head writes only into its own slice of the output")
def _(read, w_out):
    B, H, T, d_k = read.shape
    shares = read @ w_out.T.reshape(H, d_k, -1)
    own = torch.arange(w_out.shape[0]) // d_k == torch.arange(H)[:, None]
    return shares * own[:, None]


@wrong("head_contributions", "how large each share is, not the share")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return (read @ w_out.T.reshape(H, d_k, -1)).norm(dim=-1)


@wrong("head_contributions", "the blocks are multiplied number by number")
def _(read, w_out):
    B, H, T, d_k = read.shape
    blocks = w_out.T.reshape(H, d_k, -1)
    return read.sum(-1, keepdim=True) * blocks.sum(1)[:, None]


@wrong("head_contributions", "the weight is used as it is stored: read @ w_out for every head")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return torch.stack([read[:, h] @ w_out[h * d_k : (h + 1) * d_k] for h in range(H)], 1)


@wrong("head_contributions", "clears the other heads in the caller's tensor")
def _(read, w_out):
    B, H, T, d_k = read.shape
    shares = read @ w_out.T.reshape(H, d_k, -1)
    read[:, 1:] = 0
    return shares


@right("head_contributions", "einsum over the cut columns")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return torch.einsum("bhtk,dhk->bhtd", read, w_out.reshape(-1, H, d_k))


@right("head_contributions", "the layer's output with all heads but one set to zero")
def _(read, w_out):
    shares = []
    for h in range(read.shape[1]):
        alone = torch.zeros_like(read)
        alone[:, h] = read[:, h]
        shares.append(tx.merge_heads(alone) @ w_out.T)
    return torch.stack(shares, dim=1)


@right("head_contributions", "slices of columns, head by head")
def _(read, w_out):
    columns = w_out.split(read.shape[-1], dim=1)
    pairs = zip(read.unbind(1), columns, strict=True)
    return torch.stack([nn.functional.linear(r, c) for r, c in pairs], 1)


wrong_source("head_contributions", "an @ between shapes that do not fit", '''
def head_contributions(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, d_k + 1, -1)
''', expect="error")

# ── mha_flops ────────────────────────────────────────────────────────────────────────────────────


@wrong("mha_flops", "the page's formula, in which S is T")
def _(B, T, S, D, H):
    return 8 * B * T * D**2 + 4 * B * T**2 * D


@wrong("mha_flops", "all four projections are made for the T tokens")
def _(B, T, S, D, H):
    return 8 * B * T * D**2 + 4 * B * T * S * D


@wrong("mha_flops", "all four projections are made for the S tokens")
def _(B, T, S, D, H):
    return 8 * B * S * D**2 + 4 * B * T * S * D


@wrong("mha_flops", "the output projection is forgotten")
def _(B, T, S, D, H):
    return 2 * B * (T + 2 * S) * D**2 + 4 * B * T * S * D


@wrong("mha_flops", "the output projection is made for the S tokens")
def _(B, T, S, D, H):
    return 2 * B * (T + 3 * S) * D**2 + 4 * B * T * S * D


@wrong("mha_flops", "a multiply-add counts as one")
def _(B, T, S, D, H):
    return 2 * B * (T + S) * D**2 + 2 * B * T * S * D


@wrong("mha_flops", "every head is as wide as the layer")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * H * T * S * D


@wrong("mha_flops", "the heads are counted once, although each is D / H wide")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * T * S * (D // H)


@wrong("mha_flops", "the scores are counted, the read-out is not")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 2 * B * T * S * D


@wrong("mha_flops", "one sequence")
def _(B, T, S, D, H):
    return 4 * (T + S) * D**2 + 4 * T * S * D


@wrong("mha_flops", "the scores are counted as T × T")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * T * T * D


@wrong("mha_flops", "only the heads")
def _(B, T, S, D, H):
    return 4 * B * T * S * D


@wrong("mha_flops", "only the projections")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2


@wrong("mha_flops", "the softmax counts, too")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * T * S * D + 3 * B * H * T * S


@wrong("mha_flops", "the biases count, too")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * T * S * D + 2 * B * (T + S) * D


@wrong("mha_flops", "divided by H and multiplied again as floats")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D**2 + 4 * B * H * T * S * (D / H)


@wrong("mha_flops", "a product of n numbers takes 2n - 1 operations")
def _(B, T, S, D, H):
    d_k = D // H
    heads = B * H * T * (S * (2 * d_k - 1) + d_k * (2 * S - 1))
    return 2 * B * (T + S) * D * (2 * D - 1) + heads


@wrong("mha_flops", "every projection is one head wide")
def _(B, T, S, D, H):
    return 4 * B * (T + S) * D * (D // H) + 4 * B * T * S * D


@right("mha_flops", "matrix product by matrix product, head by head")
def _(B, T, S, D, H):
    def product(n, m, p):
        return 2 * n * m * p

    d_k = D // H
    each = 2 * product(T, D, D) + 2 * product(S, D, D)
    for _ in range(H):
        each += product(T, d_k, S) + product(T, S, d_k)
    return B * each


@right("mha_flops", "factored")
def _(B, T, S, D, H):
    return 4 * B * D * (D * T + D * S + T * S)


wrong_source("mha_flops", "the formula as a string", '''
def mha_flops(B, T, S, D, H):
    return f"{4 * B * (T + S) * D**2 + 4 * B * T * S * D}"
''', expect="wrong")

wrong_source("mha_flops", "^ for a power", '''
def mha_flops(B, T, S, D, H):
    return 4 * B * (T + S) * D^2 + 4 * B * T * S * D
''', expect="wrong")

wrong_source("mha_flops", "adds up one multiply-add at a time", '''
def mha_flops(B, T, S, D, H):
    n = 0
    while True:
        n += 2
        if n > 10**15:
            return n
''', expect="timeout")

# ── fused_qkv ────────────────────────────────────────────────────────────────────────────────────


@wrong("fused_qkv", "unchanged: query, key and value of head 0, then of head 1")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, n_heads, 3, D // n_heads)
    return tuple(qkv.permute(3, 0, 2, 1, 4))


@wrong("fused_qkv", "the reshape is repaired, the permute is not")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads)
    q, k, v = qkv.permute(3, 0, 2, 1, 4)
    return q, k, v


@wrong("fused_qkv", "only the permute is changed, and three axes come from the heads")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, n_heads, 3, D // n_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return q, k, v


@wrong("fused_qkv", "key, query, value")
def _(x, weight, n_heads):
    k, q, v = (tx.split_heads(z, n_heads) for z in (x @ weight.T).chunk(3, -1))
    return q, k, v


@wrong("fused_qkv", "keys and values are exchanged")
def _(x, weight, n_heads):
    q, v, k = (tx.split_heads(z, n_heads) for z in (x @ weight.T).chunk(3, -1))
    return q, k, v


@wrong("fused_qkv", "three in turns: the rows are read as (D, 3)")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, n_heads, D // n_heads, 3)
    return tuple(qkv.permute(4, 0, 2, 1, 3))


@wrong("fused_qkv", "the heads take turns inside each third")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(B, T, 3, D // n_heads, n_heads)
    return tuple(qkv.permute(2, 0, 4, 1, 3))


@wrong("fused_qkv", "the thirds are right, the heads are cut with a view")
def _(x, weight, n_heads):
    B, T, D = x.shape
    return tuple(z.reshape(B, n_heads, T, D // n_heads) for z in (x @ weight.T).chunk(3, -1))


@wrong("fused_qkv", "the thirds, not split into heads")
def _(x, weight, n_heads):
    return (x @ weight.T).chunk(3, -1)


@wrong("fused_qkv", "split, and T and H are not swapped")
def _(x, weight, n_heads):
    B, T, D = x.shape
    return tuple((x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads).unbind(2))


@wrong("fused_qkv", "the weight is read as (D, 3·D), like GPT-2's Conv1D")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.reshape(D, 3 * D)).reshape(B, T, 3, n_heads, D // n_heads)
    return tuple(qkv.permute(2, 0, 3, 1, 4))


@wrong("fused_qkv", "the queries three times")
def _(x, weight, n_heads):
    q = tx.split_heads((x @ weight.T).chunk(3, -1)[0], n_heads)
    return q, q, q


@wrong("fused_qkv", "split into rows of d_k in place of D, the first three of them")
def _(x, weight, n_heads):
    B, T, D = x.shape
    d_k = D // n_heads
    q, k, v = (x @ weight.T).split(d_k, dim=-1)[:3]
    return q[:, None], k[:, None], v[:, None]


@wrong("fused_qkv", "no transpose of the weight")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight).reshape(B, T, 3, n_heads, D // n_heads)
    return tuple(qkv.permute(2, 0, 3, 1, 4))


@wrong("fused_qkv", "the queries are scaled already")
def _(x, weight, n_heads):
    q, k, v = (tx.split_heads(z, n_heads) for z in (x @ weight.T).chunk(3, -1))
    return q / q.shape[-1] ** 0.5, k, v


@wrong("fused_qkv", "the batch is cut in three")
def _(x, weight, n_heads):
    B, T, D = x.shape
    qkv = (x @ weight.T).reshape(3, B, T, n_heads, D // n_heads)
    return tuple(qkv.transpose(2, 3))


@right("fused_qkv", "the weight is cut first, then three products")
def _(x, weight, n_heads):
    B, T, D = x.shape
    return tuple(tx.split_heads(x @ w.T, n_heads) for w in weight.split(D))


@right("fused_qkv", "the repaired reshape and permute")
def _(x, weight, n_heads):
    B, T, D = x.shape
    q, k, v = (x @ weight.T).reshape(B, T, 3, n_heads, D // n_heads).permute(2, 0, 3, 1, 4)
    return q, k, v


@right("fused_qkv", "einsum with the rows named")
def _(x, weight, n_heads):
    rows = weight.unflatten(0, (3, n_heads, -1))
    return torch.einsum("btd,nhkd->nbhtk", x, rows).unbind(0)


wrong_source("fused_qkv", "unpacks six heads into three names", '''
def fused_qkv(x, weight, n_heads):
    B, T, D = x.shape
    q, k, v = (x @ weight.T).split(D // n_heads, dim=-1)
    return q, k, v
''', expect="error")

# ── prune_heads ──────────────────────────────────────────────────────────────────────────────────


def _refuse(keep, n_heads):
    if len(set(keep)) < len(keep) or not all(0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep} of {n_heads} heads")


def _rows(keep, d_k):
    return torch.tensor([h * d_k + i for h in keep for i in range(d_k)], dtype=torch.long)


def _cut(ws, w_o, rows):
    return (*(w[rows] for w in ws), w_o[:, rows])


@wrong("prune_heads", "the rows of w_o are taken, like those of the others")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    return w_q[rows], w_k[rows], w_v[rows], w_o[rows[rows < len(w_o)]]


@wrong("prune_heads", "the columns of all four are taken")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    rows = rows[rows < w_q.shape[1]]
    return w_q[:, rows], w_k[:, rows], w_v[:, rows], w_o[:, rows]


@wrong("prune_heads", "w_o stays as it is")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    return w_q[rows], w_k[rows], w_v[rows], w_o


@wrong("prune_heads", "the heads in keep are taken out")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rest = [h for h in range(n_heads) if h not in keep]
    return _cut((w_q, w_k, w_v), w_o, _rows(rest, len(w_q) // n_heads))


@wrong("prune_heads", "the kept heads are sorted")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    return _cut((w_q, w_k, w_v), w_o, _rows(sorted(keep), len(w_q) // n_heads))


@wrong("prune_heads", "a boolean mask over the heads, which forgets their order")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    stays = torch.zeros(n_heads, dtype=torch.bool)
    stays[keep] = True
    stays = stays.repeat_interleave(len(w_q) // n_heads)
    return w_q[stays], w_k[stays], w_v[stays], w_o[:, stays]


@wrong("prune_heads", "a head owns every H-th row")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    d_k = len(w_q) // n_heads
    rows = torch.tensor([i * n_heads + h for h in keep for i in range(d_k)], dtype=torch.long)
    return _cut((w_q, w_k, w_v), w_o, rows)


@wrong("prune_heads", "one row a head: the numbers of the heads are the rows")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    return w_q[keep], w_k[keep], w_v[keep], w_o[:, keep]


@wrong("prune_heads", "the first heads, as many as keep has")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    n = len(keep) * (len(w_q) // n_heads)
    return w_q[:n], w_k[:n], w_v[:n], w_o[:, :n]


@wrong("prune_heads", "the other heads become zeros and stay")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    stays = torch.zeros(len(w_q))
    stays[_rows(keep, len(w_q) // n_heads)] = 1
    return w_q * stays[:, None], w_k * stays[:, None], w_v * stays[:, None], w_o * stays


@wrong("prune_heads", "d_k is taken from the width of the tokens")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, w_q.shape[1] // n_heads)
    return _cut((w_q, w_k, w_v), w_o, rows)


@wrong("prune_heads", "d_k is divided by the heads that stay")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // max(len(keep), 1))
    return _cut((w_q, w_k, w_v), w_o, rows.clamp(max=len(w_q) - 1))


@wrong("prune_heads", "heads are counted from 1")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = (_rows(keep, len(w_q) // n_heads) - len(w_q) // n_heads) % len(w_q)
    return _cut((w_q, w_k, w_v), w_o, rows)


@wrong("prune_heads", "the values keep all their heads")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    return w_q[rows], w_k[rows], w_v, w_o[:, rows]


@wrong("prune_heads", "w_o is made louder, as if the kept heads had to stand in for the others")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows] * n_heads / max(len(keep), 1)


@wrong("prune_heads", "w_o comes back transposed")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    rows = _rows(keep, len(w_q) // n_heads)
    return w_q[rows], w_k[rows], w_v[rows], w_o.T[rows]


@wrong("prune_heads", "nothing is refused: a head that is not there is an IndexError")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    return _cut((w_q, w_k, w_v), w_o, _rows(keep, len(w_q) // n_heads))


@wrong("prune_heads", "a head may be named twice")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if not all(0 <= h < n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    return _cut((w_q, w_k, w_v), w_o, _rows(keep, len(w_q) // n_heads))


@wrong("prune_heads", "negative heads are counted from the end")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or any(h >= n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    return _cut((w_q, w_k, w_v), w_o, _rows([h % n_heads for h in keep], len(w_q) // n_heads))


@wrong("prune_heads", "head H is taken for one that is there")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or not all(0 <= h <= n_heads for h in keep):
        raise ValueError(f"keep = {keep}")
    rows = _rows(keep, len(w_q) // n_heads).clamp(max=len(w_q) - 1)
    return _cut((w_q, w_k, w_v), w_o, rows)


@wrong("prune_heads", "sorts the caller's list to find heads named twice")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    rows = _rows(keep, len(w_q) // n_heads)
    _refuse(keep, n_heads)
    keep.sort()
    return _cut((w_q, w_k, w_v), w_o, rows)


@right("prune_heads", "an axis for the heads, indexed and flattened again")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    three = (w.unflatten(0, (n_heads, -1))[keep].flatten(0, 1) for w in (w_q, w_k, w_v))
    return (*three, w_o.unflatten(1, (n_heads, -1))[:, keep].flatten(1))


@right("prune_heads", "slices, concatenated")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    if sorted(set(keep)) != sorted(keep) or any(h not in range(n_heads) for h in keep):
        raise ValueError("keep")
    three = [torch.cat([w.chunk(n_heads)[h] for h in keep]) for w in (w_q, w_k, w_v)]
    return *three, torch.cat([w_o.chunk(n_heads, dim=1)[h] for h in keep], dim=1)


@right("prune_heads", "a matrix of ones and zeros that picks the rows")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    _refuse(keep, n_heads)
    pick = torch.eye(len(w_q))[_rows(keep, len(w_q) // n_heads)]
    return pick @ w_q, pick @ w_k, pick @ w_v, w_o @ pick.T


wrong_source("prune_heads", "d_k is made with /, and range takes no float", '''
def prune_heads(w_q, w_k, w_v, w_o, n_heads, keep):
    if len(set(keep)) < len(keep) or not all(0 <= h < n_heads for h in keep):
        raise ValueError
    d_k = w_q.shape[0] / n_heads
    rows = [h * d_k + i for h in keep for i in range(d_k)]
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
''', expect="error")

# ── head_importance ──────────────────────────────────────────────────────────────────────────────


def _shares(x, w_q, w_k, w_v, w_o, H, scale=None):
    q, k, v = (tx.split_heads(x @ w.T, H) for w in (w_q, w_k, w_v))
    read = tx.attention(q, k, v, scale=scale)
    return read @ w_o.T.reshape(H, -1, len(w_o))


def _slopes(shares, target):
    off = shares.sum(1) - target
    return 2 * (off[:, None] * shares).mean((2, 3))


@wrong("head_importance", "the mean comes first, the absolute value after")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).mean(0).abs()


@wrong("head_importance", "no absolute value")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).mean(0)


@wrong("head_importance", "the sum over the examples")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).abs().sum(0)


@wrong("head_importance", "the mean loss of the batch is differentiated: divided by B twice")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads).detach()
    gates = torch.ones(len(x), n_heads, 1, 1, requires_grad=True)
    loss = ((gates * shares).sum(1) - target).square().mean()
    return torch.autograd.grad(loss, gates)[0].abs().mean(0).flatten()


@wrong("head_importance", "one gate a head for the whole batch, so examples cancel out")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads).detach()
    gates = torch.ones(n_heads, 1, 1, requires_grad=True)
    loss = ((gates * shares).sum(1) - target).square().mean()
    return torch.autograd.grad(loss, gates)[0].abs().flatten()


@wrong("head_importance", "the sum of the squared errors of an example")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    return _slopes(shares, target).abs().mean(0) * target[0].numel()


@wrong("head_importance", "squared errors summed over the features, averaged over the tokens")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    return _slopes(shares, target).abs().mean(0) * target.shape[-1]


@wrong("head_importance", "the 2 of the square's slope is forgotten")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).abs().mean(0) / 2


@wrong("head_importance", "how much the loss rises when the head is taken out")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    off = shares.sum(1) - target
    without = (off[:, None] - shares).square().mean((2, 3))
    return (without - off.square().mean((1, 2))[:, None]).abs().mean(0)


@wrong("head_importance", "absolute values token by token, before the sum over an example")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    off = shares.sum(1) - target
    return 2 * (off[:, None] * shares).mean(-1).abs().mean((0, 2))


@wrong("head_importance", "the slope at gate 0, without any head")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    return 2 * (-target[:, None] * shares).mean((2, 3)).abs().mean(0)


@wrong("head_importance", "each head is compared with the target by itself")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    return 2 * ((shares - target[:, None]) * shares).mean((2, 3)).abs().mean(0)


@wrong("head_importance", "the blocks of w_o are cut from its rows")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o.T, n_heads), target).abs().mean(0)


@wrong("head_importance", "x @ w in place of x @ w.T")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q.T, w_k.T, w_v.T, w_o, n_heads), target).abs().mean(0)


@wrong("head_importance", "scaled with the width of the layer")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads, scale=len(w_q) ** -0.5)
    return _slopes(shares, target).abs().mean(0)


@wrong("head_importance", "the squared slope")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).square().mean(0)


@wrong("head_importance", "how large the shares are, whatever the target")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _shares(x, w_q, w_k, w_v, w_o, n_heads).square().mean((0, 2, 3))


@wrong("head_importance", "scaled so that the heads sum to one")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    slopes = _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).abs().mean(0)
    return slopes / slopes.sum()


@wrong("head_importance", "one number for each example and head")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).abs()


@wrong("head_importance", "the axes of the gates are left: (H, 1, 1)")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    slopes = _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target)
    return slopes[..., None, None].abs().mean(0)


@wrong("head_importance", "every head gets the number of its neighbour")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    return _slopes(shares, target).abs().mean(0).roll(1)


@wrong("head_importance", "the mean over the heads, repeated")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    slopes = _slopes(_shares(x, w_q, w_k, w_v, w_o, n_heads), target).abs().mean(0)
    return slopes.mean().expand(n_heads)


@right("head_importance", "the derivative on paper: twice the mean of error times share")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
    off = shares.sum(1) - target
    slope = torch.einsum("btd,bhtd->bh", off, shares) * 2 / target[0].numel()
    return slope.abs().mean(0)


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
    shares = _shares(x, w_q, w_k, w_v, w_o, n_heads)
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

wrong_source("head_importance", "the gates ask for no gradient", '''
import tx
def head_importance(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    gates = torch.ones(x.shape[0], n_heads, 1, 1)
    out = tx.merge_heads(tx.attention(q, k, v) * gates) @ w_o.T
    ((out - target) ** 2).mean((1, 2)).sum().backward()
    return gates.grad.abs().mean(0).flatten()
''', expect="error")

wrong_source("head_importance", "backward on a loss for each example", '''
import tx
def head_importance(x, target, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    gates = torch.ones(x.shape[0], n_heads, 1, 1, requires_grad=True)
    out = tx.merge_heads(tx.attention(q, k, v) * gates) @ w_o.T
    ((out - target) ** 2).mean((1, 2)).backward()
    return gates.grad.abs().mean(0).flatten()
''', expect="error")
