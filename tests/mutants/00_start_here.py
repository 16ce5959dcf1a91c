"""Wrong and right answers to the exercises of chapter 0. What a grader's own mistakes prove is not here again."""

import math

import torch
import torch.nn.functional as F

from tests.mutants import right, right_source, wrong, wrong_source

# ── soft_choice ──────────────────────────────────────────────────────────────────────────────────


def _weights(scores):
    return scores.softmax(dim=1)


_name = "soft_choice"
wrong(_name, "the scores are transposed before the softmax and never turned back")(lambda x: x.T.softmax(dim=1))
wrong(_name, "the one character changed is a 2, and there is no axis 2")(lambda x: x.softmax(dim=2))
wrong(_name, "absolute scores divided by their sum")(lambda x: x.abs() / x.abs().sum(dim=1, keepdim=True))
wrong(_name, "shares by rank, not by score")(lambda x: _weights(x.argsort(1).argsort(1).to(x.dtype)))
wrong(_name, "the longer axis sums to one")(lambda x: x.softmax(dim=0 if len(x) > x.shape[1] else 1))
wrong(_name, "powers of 2 in place of powers of e")(lambda x: _weights(x * math.log(2)))
wrong(_name, "the weights are written over the scores")(lambda x: x.copy_(_weights(x)))
wrong(_name, "a list of lists in place of a tensor")(lambda x: _weights(x).tolist())
wrong(_name, "the weights are rounded to two digits for display")(lambda x: _weights(x).round(decimals=2))
wrong(_name, "the weights are rounded to four digits, which cuts the gradient")(
    lambda x: _weights(x).round(decimals=4)
)
wrong(_name, "weights below a thousandth become 0")(lambda x: _weights(x) * (_weights(x) > 1e-3))
wrong(_name, "only the 1000 best places share")(
    lambda x: _weights(torch.where(x < x.sort(1, True)[0][:, :1000].amin(1, True), -math.inf, x))
)
wrong(_name, "the weights are detached")(lambda x: _weights(x).detach())


@wrong(_name, "the sum has lost its axis (no keepdim)")
def _(scores):
    e = (scores - scores.max()).exp()
    return e / e.sum(dim=1)


right(_name, "the last axis, counted from the end")(lambda x: torch.softmax(x, -1))
right(_name, "a loop over the people")(lambda x: torch.stack([row.softmax(0) for row in x]))
right(_name, "transposed before and after")(lambda x: x.T.softmax(0).T)


@right(_name, "exp of the shifted scores")
def _(scores):
    e = (scores - scores.max(dim=1, keepdim=True).values).exp()
    return e / e.sum(dim=1, keepdim=True)


wrong_source(_name, "the bracket was deleted with the character", '''
def soft_choice(scores):
    return scores.softmax(dim=1
''', expect="error")

wrong_source(_name, "the result is computed and not returned", '''
def soft_choice(scores):
    scores.softmax(dim=1)
''', expect="wrong")

# ── squared_distances ────────────────────────────────────────────────────────────────────────────

_name = "squared_distances"


def _checked(answer):
    """The same, for equal widths."""

    def with_check(x, y):
        if x.shape[1] != y.shape[1]:
            raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
        return answer(x, y)

    return with_check


def _all_pairs(x, y):
    return (x[:, None] - y[None]).square().sum(-1)


wrong(_name, "keeps the feature axis with size 1")(_checked(lambda x, y: _all_pairs(x, y)[..., None]))
wrong(_name, "clipped to 1000 against overflow")(_checked(lambda x, y: _all_pairs(x, y).clamp(max=1000)))
wrong(_name, "no gradient reaches y")(_checked(lambda x, y: _all_pairs(x, y.detach())))
wrong(_name, "the first 1000 features only")(_checked(lambda x, y: _all_pairs(x[:, :1000], y[:, :1000])))
wrong(_name, "numbers taken out of their tensors")(_checked(lambda x, y: torch.tensor(_all_pairs(x, y).tolist())))


@wrong(_name, "the error compares whole shapes, and so refuses T and S that differ")
def _(x, y):
    if x.shape != y.shape:
        raise ValueError(f"{x.shape} and {y.shape}")
    return _all_pairs(x, y)


@wrong(_name, "an assertion in place of a ValueError")
def _(x, y):
    assert x.shape[1] == y.shape[1]
    return _all_pairs(x, y)


@wrong(_name, "the error is returned and not raised")
def _(x, y):
    if x.shape[1] != y.shape[1]:
        return ValueError("widths")
    return _all_pairs(x, y)


@wrong(_name, "squares x in place while expanding the binomial")
@_checked
def _(x, y):
    cross = x @ y.T
    return x.pow_(2).sum(1)[:, None] + y.square().sum(1) - 2 * cross


@wrong(_name, "in blocks of 64 rows, the last part block forgotten")
@_checked
def _(x, y):
    blocks = [_all_pairs(x[i : i + 64], y) for i in range(0, len(x) - 63, 64)] or [_all_pairs(x, y)]
    return F.pad(torch.cat(blocks), (0, 0, 0, len(x) - sum(map(len, blocks))))


@wrong(_name, "the upper half mirrored where T = S, as if y were x")
@_checked
def _(x, y):
    d = _all_pairs(x, y)
    return d.triu() + d.triu(1).T if len(x) == len(y) else d


@wrong(_name, "two loops into a new tensor, which is float32 whatever x is")
@_checked
def _(x, y):
    out = torch.zeros(len(x), len(y))
    for t, s in torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(y))).tolist():
        out[t, s] = ((x[t] - y[s]) ** 2).sum()
    return out


right(_name, "the binomial formula, as torch.cdist has it")(
    _checked(lambda x, y: x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T)
)


@right(_name, "two loops")
@_checked
def _(x, y):
    out = x.new_zeros(len(x), len(y))
    for t in range(len(x)):
        for s in range(len(y)):
            out[t, s] = ((x[t] - y[s]) ** 2).sum()
    return out


@right(_name, "einsum of the differences with themselves, axes by unsqueeze")
@_checked
def _(x, y):
    d = x.unsqueeze(1) - y.unsqueeze(0)
    return torch.einsum("tsd,tsd->ts", d, d)


@right(_name, "row against row by expand, without indexing tricks")
@_checked
def _(x, y):
    T, S = x.size(0), y.size(0)
    left = x.unsqueeze(1).expand(T, S, -1)
    return F.mse_loss(left, y.expand(T, S, -1), reduction="none").sum(2)


wrong_source(_name, "calls cdist and squares it", '''
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths")
    return torch.cdist(x, y) ** 2
''', expect="borrowed")

wrong_source(_name, "the dots of the stub are still there", '''
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    differences = x[…] - y[…]  # (T, S, D)
    return differences.square().sum(-1)
''', expect="error")

wrong_source(_name, "a while loop that forgets to count", '''
def squared_distances(x, y):
    out, t = torch.zeros(len(x), len(y)), 0
    while t < len(x):
        out[t] = (x[t] - y).square().sum(-1)
    return out
''', expect="timeout")

# ── where_view_puts_it ───────────────────────────────────────────────────────────────────────────

_name = "where_view_puts_it"


def _places(n, T, d_k):
    return n // (T * d_k), n // d_k % T, n % d_k


wrong(_name, "the sizes of the page's example are built in")(lambda t, f, T, H, d_k: _places(t * 6 + f, 4, 3))
wrong(_name, "the answer to the page's example, whatever is asked")(lambda t, f, T, H, d_k: (0, 1, 0))
wrong(_name, "how many numbers stand before, and nothing more")(lambda t, f, T, H, d_k: t * H * d_k + f)
wrong(_name, "position and feature only")(lambda t, f, T, H, d_k: _places(t * H * d_k + f, T, d_k)[1:])
wrong(_name, "text in place of numbers")(lambda t, f, T, H, d_k: str(_places(t * H * d_k + f, T, d_k)))
wrong(_name, "counted in 32 bits, which run over")(
    lambda t, f, T, H, d_k: _places((t * H * d_k + f + 2**31) % 2**32 - 2**31, T, d_k)
)
wrong(_name, "counted in float32")(
    lambda t, f, T, H, d_k: _places(int(torch.tensor(float(t)) * (H * d_k) + f), T, d_k)
)


@wrong(_name, "marks the number in a tensor and looks where it is after the view: too large to make")
def _(t, f, T, H, d_k):
    x = torch.zeros(T, H * d_k)
    x[t, f] = 1
    return tuple(x.view(H, T, d_k).nonzero()[0].tolist())


right(_name, "three divisions, no divmod")(lambda t, f, T, H, d_k: _places(t * H * d_k + f, T, d_k))


@right(_name, "rows of d_k first: the row's number, then its head")
def _(t, f, T, H, d_k):
    row = t * H + f // d_k
    return row // T, row % T, f % d_k


@right(_name, "asks a tensor without storage for the offset")
def _(t, f, T, H, d_k):
    return _places(torch.empty(T, H * d_k, device="meta")[t, f].storage_offset(), T, d_k)


wrong_source(_name, "uses a name that is nowhere set", '''
def where_view_puts_it(t, f, T, H, d_k):
    before = t * D + f
    head, rest = divmod(before, T * d_k)
    return head, rest // d_k, rest % d_k
''', expect="error")

wrong_source(_name, "the stub with only its first line filled in", '''
def where_view_puts_it(t, f, T, H, d_k):
    before = t * H * d_k + f
    raise NotImplementedError
''', expect="todo")

# ── nats ─────────────────────────────────────────────────────────────────────────────────────────

_name = "nats"


def _in_range(answer):
    """The same, for targets that exist."""

    def with_check(logits, targets):
        if targets.min() < 0 or targets.max() >= logits.shape[-1]:
            raise ValueError(f"targets lie in 0 … {logits.shape[-1] - 1}")
        return answer(logits, targets)

    return with_check


def _mean(logits, targets):
    return (logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]).mean()


def _by_index(logits, targets):
    flat = logits.reshape(-1, logits.shape[-1])
    return (flat.logsumexp(-1) - flat[torch.arange(len(flat)), targets.flatten()]).mean()


wrong(_name, "perplexity in place of its logarithm")(_in_range(lambda x, t: _mean(x, t).exp()))
wrong(_name, "a Python float in place of a tensor")(_in_range(lambda x, t: _mean(x, t).item()))
wrong(_name, "the mean has shape (1,)")(_in_range(lambda x, t: _mean(x, t)[None]))
wrong(_name, "float32, whatever the logits are")(_in_range(lambda x, t: _mean(x, t).float()))
wrong(_name, "a new tensor, which cuts the gradient")(_in_range(lambda x, t: torch.tensor(_mean(x, t).item())))
wrong(_name, "no check: gather complains in its own way")(_mean)
wrong(_name, "no check, and indexing takes -1 for the last answer")(_by_index)
wrong(_name, "the 1000 largest logits only")(
    _in_range(lambda x, t: (x.topk(min(1000, x.shape[-1])).values.logsumexp(-1) - _right(x, t)).mean())
)
wrong(_name, "view: fails on logits that are not contiguous")(
    _in_range(lambda x, t: _mean(x.view(-1, x.shape[-1]), t.view(-1)))
)
wrong(_name, "needs a leading axis")(_in_range(lambda x, t: _mean(x.flatten(0, -2), t.flatten())))
wrong(_name, "the first 256 examples only")(
    _in_range(lambda x, t: _mean(*(a[:256] if t.ndim else a for a in (x, t))))
)
wrong(_name, "works for (N, V) only: the axis is written as 1")(
    _in_range(lambda x, t: (x.logsumexp(1) - x.gather(1, t[:, None])[:, 0]).mean())
)
wrong(_name, "the log-sum-exp runs over the examples")(
    _in_range(lambda x, t: x.reshape(-1, x.shape[-1]).logsumexp(0).mean() - _right(x, t).mean())
)


def _right(logits, targets):
    return logits.gather(-1, targets[..., None])[..., 0]


@wrong(_name, "the upper bound is off by one: V-1 is refused")
def _(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1] - 1:
        raise ValueError("targets")
    return _mean(logits, targets)


@wrong(_name, "0 is refused as a target")
def _(logits, targets):
    if targets.min() <= 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return _mean(logits, targets)


@wrong(_name, "targets of -100 are left out, as in F.cross_entropy")
def _(logits, targets):
    return _in_range(_mean)(logits[targets != -100], targets[targets != -100])


@wrong(_name, "the largest logit is subtracted from the caller's tensor")
@_in_range
def _(logits, targets):
    logits -= logits.amax(-1, keepdim=True)
    return _mean(logits, targets)


@right(_name, "a one-hot mask in place of gather")
@_in_range
def _(logits, targets):
    return (logits.logsumexp(-1) - (logits * F.one_hot(targets, logits.shape[-1])).sum(-1)).mean()


@right(_name, "the loop of the page over flattened rows")
def _(logits, targets):
    total, count = 0.0, 0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), strict=True):
        if not 0 <= target < len(row):
            raise ValueError(f"{target} is not a target")
        total, count = total - (row[target] - row.logsumexp(0)), count + 1
    return total / count


@right(_name, "shifted by hand, with indexing")
@_in_range
def _(logits, targets):
    x = logits.reshape(-1, logits.size(-1))
    x = x - x.max(1, keepdim=True)[0].detach()
    log_p = x - x.exp().sum(1, keepdim=True).log()
    return -log_p[torch.arange(len(x)), targets.reshape(-1)].mean()


@right(_name, "the gaps to the right logit: log of the sum of their exp, in double")
@_in_range
def _(logits, targets):
    gaps = logits.double() - logits.double().take_along_dim(targets[..., None], -1)
    return gaps.logsumexp(-1).mean().to(logits.dtype)


for _what, _loss in {
    "calls F.cross_entropy":
        "torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.flatten())",
    "calls log_softmax as a method": "-logits.log_softmax(-1).gather(-1, targets[..., None]).mean()",
    "the module LogSoftmax in place of the function":
        "-torch.nn.LogSoftmax(-1)(logits).gather(-1, targets[..., None]).mean()",
    "has a module made for the loss before it is graded":
        "loss(logits.flatten(0, -2), targets.flatten())\nloss = torch.nn.CrossEntropyLoss()",
    "imports the name cross_entropy by itself":
        "cross_entropy(logits.flatten(0, -2), targets.flatten())\nfrom torch.nn.functional import cross_entropy",
}.items():  # fmt: skip
    wrong_source(_name, _what, f"def nats(logits, targets):\n    return {_loss}", expect="borrowed")

wrong_source(_name, "catches its own error and answers None", '''
def nats(logits, targets):
    try:
        if targets.min() < 0 or targets.max() >= logits.shape[-1]:
            raise ValueError("targets")
        right = logits.gather(-1, targets[..., None])[..., 0]
        return (logits.logsumexp(-1) - right).mean()
    except ValueError:
        return None
''', expect="wrong")

# ── conditional_floor ────────────────────────────────────────────────────────────────────────────

_name = "conditional_floor"


def _some(answer):
    """The same, for a table that is not empty."""

    def with_check(counts):
        if counts.sum() == 0:
            raise ValueError("no counts at all")
        return answer(counts)

    return with_check


def _floor(counts):
    total = counts.sum(-1)
    p = counts / total.clamp(min=1)[:, None]
    return (total / total.sum() * torch.special.entr(p).sum(-1)).sum()


wrong(_name, "the minus is missing")(_some(lambda n: -_floor(n)))
wrong(_name, "a Python float in place of a tensor")(_some(lambda n: _floor(n).item()))
wrong(_name, "the number that it is like to choose from, e to the floor")(_some(lambda n: _floor(n).exp()))
wrong(_name, "counted in half precision")(_some(lambda n: _floor(n.half()).float()))
wrong(_name, "32-bit counts: they run over beyond 2³¹")(_some(lambda n: _floor(n.to(torch.int32))))
wrong(_name, "answers below a thousandth of their row are left out")(
    _some(lambda n: _floor(torch.where(n > n.sum(-1, keepdim=True) / 1000, n, 0)))
)
wrong(_name, "the first 256 rows only")(_some(lambda n: _floor(n[:256])))
wrong(_name, "whole-number division leaves only zeros and ones")(
    _some(lambda n: _floor(n // n.sum(-1, keepdim=True).clamp(min=1)))
)


@wrong(_name, "an error as soon as one row is empty")
def _(counts):
    if not counts.sum(-1).all():
        raise ValueError("an empty row")
    return _floor(counts)


@wrong(_name, "an error as soon as one entry is zero")
def _(counts):
    if not counts.all():
        raise ValueError("a zero")
    return _floor(counts)


@wrong(_name, "sparse tables are refused: the mean count rounds to 0")
def _(counts):
    if int(counts.float().mean()) == 0:
        raise ValueError("no counts at all")
    return _floor(counts)


@wrong(_name, "a ZeroDivisionError in place of a ValueError")
def _(counts):
    return _floor(counts) if 1 / counts.sum().item() else None


@wrong(_name, "divides the caller's float counts in place")
@_some
def _(counts):
    p = counts.float()  # the same tensor, where the counts are float32
    total = p.sum(-1, keepdim=True)
    p /= total.clamp(min=1)
    return (torch.special.entr(p).sum(-1) * total[:, 0]).sum() / total.sum()


@right(_name, "the entropy of the pairs minus that of the contexts")
@_some
def _(counts):
    pairs, contexts = counts.double() / counts.sum(), counts.sum(1).double() / counts.sum()
    return (torch.special.entr(pairs).sum() - torch.special.entr(contexts).sum()).float()


@right(_name, "-ln p of every single occurrence, averaged")
@_some
def _(counts):
    i = counts.nonzero()
    found = counts[i[:, 0], i[:, 1]]
    p = found / counts.sum(1)[i[:, 0]]
    return -(found * p.log()).sum() / counts.sum()


@right(_name, "loops over rows and entries, with math.log")
@_some
def _(counts):
    total, floor = counts.sum().item(), 0.0
    for row in counts.tolist():
        for c in row:
            if c > 0:
                floor -= c / total * math.log(c / sum(row))
    return torch.tensor(floor)


@right(_name, "nan is cleared where a row is empty")
@_some
def _(counts):
    p = torch.nan_to_num(counts.float() / counts.sum(1, keepdim=True))
    weights = counts.sum(1) / counts.sum()
    return weights @ torch.where(p > 0, -p * p.clamp(min=1e-30).log(), 0.0).sum(1)


wrong_source(_name, "a typing error in a method's name", '''
def conditional_floor(counts):
    p = counts / counts.sum(-1, keepdim=True).clmap(min=1)
''', expect="error")

# ── z_loss_gradient ──────────────────────────────────────────────────────────────────────────────

_name = "z_loss_gradient"


def _slopes(logits, targets, z_weight):
    lse, p = logits.logsumexp(-1, keepdim=True), logits.softmax(-1)
    return (p * (1 + 2 * z_weight * lse) - F.one_hot(targets, logits.shape[-1])) / len(logits)


wrong(_name, "the mean over the examples is taken of the gradient too")(lambda *args: _slopes(*args).sum(0))
wrong(_name, "the logits are overwritten by the gradient")(lambda x, *rest: x.copy_(_slopes(x, *rest)))
wrong(_name, "float32, whatever the logits are")(lambda *args: _slopes(*args).float())
wrong(_name, "a list of lists in place of a tensor")(lambda *args: _slopes(*args).tolist())
wrong(_name, "slopes below a thousandth become 0")(lambda *args: F.hardshrink(_slopes(*args), 1e-3))


@wrong(_name, "lse has lost its axis (no keepdim)")
def _(logits, targets, z_weight):
    p = logits.softmax(-1) * (1 + 2 * z_weight * logits.logsumexp(-1))
    return (p - F.one_hot(targets, logits.shape[-1])) / len(logits)


@right(_name, "p collected into one factor, one subtracted by index")
def _(logits, targets, z_weight):
    lse = torch.logsumexp(logits, 1)
    g = (logits - lse[:, None]).exp() * (1 + 2 * z_weight * lse)[:, None]
    g[torch.arange(len(g)), targets] -= 1
    return g / len(g)


@right(_name, "scatter_add, in double")
def _(logits, targets, z_weight):
    x = logits.double()
    lse = x.logsumexp(-1, keepdim=True)
    g = torch.softmax(x, -1).mul(2 * z_weight * lse + 1)
    g = g.scatter_add(1, targets[:, None], -torch.ones_like(lse))
    return (g / x.shape[0]).to(logits.dtype)


for _how in ("torch.autograd.grad(loss(x), x)[0]", "torch.func.grad(loss)(x)", "[loss(x).backward(), x.grad][1]"):
    wrong_source(_name, f"autograd does it: {_how}", f'''
def z_loss_gradient(logits, targets, z_weight):
    def loss(x):
        lse = x.logsumexp(-1)
        right = x.gather(-1, targets[:, None])[:, 0]
        return (lse - right + z_weight * lse ** 2).mean()
    x = logits.clone().requires_grad_()
    return {_how}
''', expect="borrowed")

right_source(_name, "an identity matrix for the one-hot rows", '''
def z_loss_gradient(logits, targets, z_weight):
    N, V = logits.shape
    p = torch.softmax(logits, dim=1)
    pull = p - torch.eye(V)[targets]
    push = 2 * z_weight * torch.einsum("n,nv->nv", logits.logsumexp(1), p)
    return (pull + push) / N
''')
