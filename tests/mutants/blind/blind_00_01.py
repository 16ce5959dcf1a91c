# ruff: noqa
"""Wrong and right answers to exercises 00 and 01, written without a look at any grader.

Above each wrong answer stands `# differs on: ARGS`, arguments on which the result is off (value,
shape, or what is raised); `differs on (argument|gradient|dtype): ARGS` where the value is right but
the argument is changed, the slope is off or the dtype is lost: those rest on a contract that the
docstring leaves unsaid.
"""

import functools
import itertools
import math
import operator

import torch

from tests.mutants import right, right_source, wrong, wrong_source

# ---------------------------------------------------------------- 00 soft_choice


# differs on: (torch.randn(3, 5),)
@wrong("soft_choice", "softmax over the people")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(dim=0)


# differs on: (torch.randn(3, 5),)
@wrong("soft_choice", "an axis that is not there")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(dim=2)


# differs on: (torch.randn(3, 5),)
@wrong("soft_choice", "one share over the whole table")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.flatten().softmax(dim=0).view_as(scores)


# differs on: (torch.tensor([[-3.0, 1.0, 0.5]]),)
@wrong("soft_choice", "divides by the sum: negative weights for negative scores")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores / scores.sum(1, keepdim=True)


# differs on: (torch.tensor([[-3.0, 1.0, 0.5]]),)
@wrong("soft_choice", "shares by absolute score")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.abs().softmax(dim=1)


# differs on: (torch.tensor([[100.0, 101.0, 90.0]]),)
@wrong("soft_choice", "exp without the maximum: overflows")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = scores.exp()
    return e / e.sum(1, keepdim=True)


# differs on: (torch.tensor([[0.0, 1.0], [500.0, 501.0]]),)
@wrong("soft_choice", "subtracts the table's maximum: a low row is 0/0")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.max()).exp()
    return e / e.sum(1, keepdim=True)


# differs on: (torch.tensor([[60.0, 61.0, 10.0]]),)
@wrong("soft_choice", "scores clipped to +-50")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.clamp(-50, 50).softmax(dim=1)


# differs on: (torch.randn(6, 4),)
@wrong("soft_choice", "the longer axis sums to one: right only for T <= S")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(dim=0 if scores.shape[0] > scores.shape[1] else 1)


# differs on: (torch.randn(3, 5),)
@wrong("soft_choice", "sums to one, but by rank and not by score")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.argsort(1).argsort(1).to(scores.dtype).softmax(dim=1)


# differs on (argument): (torch.randn(3, 5),)
@wrong("soft_choice", "subtracts the maximum from the caller's scores")
def _(scores: torch.Tensor) -> torch.Tensor:
    scores -= scores.amax(1, keepdim=True)
    return scores.softmax(dim=1)


@right("soft_choice", "turned twice, softmax over the first axis")
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.T.softmax(dim=0).T


@right("soft_choice", "person by person, through the log-sum-exp of the gaps")
def _(scores: torch.Tensor) -> torch.Tensor:
    gaps = (row - row.max() for row in scores.unbind(0))
    return torch.stack([(gap - torch.logsumexp(gap, 0)).exp() for gap in gaps])


# ---------------------------------------------------------------- 00 squared_distances


# differs on: (torch.randn(4, 3), torch.randn(5, 1))
@wrong("squared_distances", "no check: widths 3 and 1 broadcast")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - y[None]).square().sum(-1)


# differs on: (torch.randn(4, 1), torch.randn(5, 3))
@wrong("squared_distances", "leaves the check to PyTorch: 1 and 3 pass")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        return (x[:, None] - y[None]).square().sum(-1)
    except RuntimeError as e:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}") from e


# differs on: (torch.randn(4, 1), torch.randn(5, 3))
@wrong("squared_distances", "refuses only where x is the wider one")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    return (x[:, None] - y[None]).square().sum(-1)


# differs on: (torch.randn(4, 3), torch.randn(5, 3))
@wrong("squared_distances", "compares whole shapes: refuses T != S")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape != y.shape:
        raise ValueError(f"{x.shape} and {y.shape}")
    return (x[:, None] - y[None]).square().sum(-1)


# differs on: (torch.randn(4, 3), torch.randn(5, 2))
@wrong("squared_distances", "asserts instead of raising ValueError")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert x.shape[1] == y.shape[1], "widths differ"
    return (x[:, None] - y[None]).square().sum(-1)


# differs on: (torch.randn(4, 3), torch.randn(4, 3))
@wrong("squared_distances", "(S, T): turned round")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return (x[None] - y[:, None]).square().sum(-1)


# differs on: (torch.randn(4, 3) + 3000, torch.randn(5, 3) + 3000)
@wrong("squared_distances", "x^2 + y^2 - 2xy cancels far from the origin")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return x.square().sum(1)[:, None] + y.square().sum(1)[None] - 2 * x @ y.T


# differs on: (torch.randn(4, 3), torch.randn(5, 3))
@wrong("squared_distances", "the distance, not its square")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return (x[:, None] - y[None]).norm(dim=-1)


# differs on: (torch.randn(4, 3), torch.randn(5, 3))
@wrong("squared_distances", "mean over the features")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return (x[:, None] - y[None]).square().mean(-1)


# differs on: (torch.randn(4, 3), torch.randn(5, 3))
@wrong("squared_distances", "the square of the sum")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return (x[:, None] - y[None]).sum(-1).square()


# differs on: (torch.randn(4, 3), torch.randn(4, 3))
@wrong("squared_distances", "mirrors the upper half where T = S, as if y were x")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    d = (x[:, None] - y[None]).square().sum(-1)
    if x.shape[0] == y.shape[0]:
        d = d.triu() + d.triu(1).T
    return d


# differs on: (torch.randn(100, 3), torch.randn(5, 3))
@wrong("squared_distances", "in blocks of 64 rows, the last part block forgotten")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    out = x.new_zeros(len(x), len(y))
    for i in range(max(1, len(x) // 64)):
        block = slice(64 * i, 64 * (i + 1))
        out[block] = (x[block, None] - y[None]).square().sum(-1)
    return out


# differs on: (torch.randn(5, 3), torch.randn(4, 3))
@wrong("squared_distances", "pairs row with row, padded with zeros to (T, S)")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    n = min(len(x), len(y))
    out = x.new_zeros(len(x), len(y))
    out[range(n), range(n)] = (x[:n] - y[:n]).square().sum(-1)
    return out


# differs on: (torch.randn(5, 3), torch.randn(4, 3) * 40)
@wrong("squared_distances", "clipped to 1000 against overflow")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return (x[:, None] - y[None]).square().sum(-1).clamp(max=1000)


# right results, by what is out of reach
wrong_source(
    "squared_distances",
    "cdist, squared",
    """
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths differ")
    return torch.cdist(x, y) ** 2
""",
    expect="borrowed",
)


@right("squared_distances", "feature by feature, added up")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.size(1) - y.size(1):
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    total = x.new_zeros(x.shape[0], y.shape[0])
    for a, b in zip(x.unbind(1), y.unbind(1), strict=True):
        total = total + torch.outer(a, torch.ones_like(y[:, 0])).sub(b).pow(2)
    return total


@right("squared_distances", "einsum of the differences with themselves, two vmaps")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[-1:] != y.shape[-1:]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    inner = torch.vmap(torch.sub, in_dims=(None, 0))
    d = torch.vmap(inner, in_dims=(0, None))(x, y)
    return torch.einsum("tsd,tsd->ts", d, d)


@right("squared_distances", "repeats both to T*S rows")
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (T, D), (S, E) = x.shape, y.shape
    if D != E:
        raise ValueError(f"widths {D} and {E}")
    d = x.repeat_interleave(S, 0) - y.repeat(T, 1)
    return (d * d).sum(1).reshape(T, S)


# ---------------------------------------------------------------- 00 where_view_puts_it


# differs on: (0, 3, 4, 2, 3)
@wrong("where_view_puts_it", "where it should go: the deal, not the view")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    return f // d_k, t, f % d_k


# differs on: (2, 5, 4, 2, 3)
@wrong("where_view_puts_it", "counts column by column")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(f * T + t, T * d_k)
    return head, *divmod(rest, d_k)


# differs on: (3, 1, 4, 2, 3)
@wrong("where_view_puts_it", "a row of d_k numbers before it, not of H*d_k")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * d_k + f, T * d_k)
    return head, *divmod(rest, d_k)


# differs on: (2, 5, 4, 3, 3)
@wrong("where_view_puts_it", "H is always 2")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * 2 * d_k + f, T * d_k)
    return head, *divmod(rest, d_k)


# differs on: (3, 5, 6, 2, 3)
@wrong("where_view_puts_it", "a head is H*d_k numbers long")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * H * d_k + f, H * d_k)
    return head, *divmod(rest, d_k)


# differs on: (3, 5, 6, 2, 3)
@wrong("where_view_puts_it", "divides the rest by T")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, *divmod(rest, T)


# differs on: (0, 4, 4, 2, 3)
@wrong("where_view_puts_it", "position before head")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * H * d_k + f, T * d_k)
    position, feature = divmod(rest, d_k)
    return position, head, feature


# differs on: (0, 5, 4, 2, 3)
@wrong("where_view_puts_it", "feature before position")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * H * d_k + f, T * d_k)
    position, feature = divmod(rest, d_k)
    return head, feature, position


# differs on: (2, 5, 4, 2, 3)
@wrong("where_view_puts_it", "counts from one")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    head, rest = divmod(t * H * d_k + f + 1, T * d_k)
    return head, *divmod(rest, d_k)


# differs on: (9999999, 4095, 10000000, 32, 128)
@wrong("where_view_puts_it", "32-bit numbers: overflows beyond 2^31")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = torch.tensor(t, dtype=torch.int32) * (H * d_k) + f
    head, rest = divmod(int(before), T * d_k)
    return head, *divmod(rest, d_k)


# differs on: (5001, 4095, 10000, 32, 128)
@wrong("where_view_puts_it", "through float32: wrong beyond 2^24")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = torch.tensor(float(t)) * (H * d_k) + f
    head, rest = before // (T * d_k), before % (T * d_k)
    return int(head), int(rest // d_k), int(rest % d_k)


# differs on: (10**17 + 7, 5, 10**17 + 9, 2, 3)
@wrong("where_view_puts_it", "true division, then int: wrong beyond 2^53")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = t * H * d_k + f
    head = int(before / (T * d_k))
    rest = before - head * T * d_k
    return head, int(rest / d_k), rest % d_k


# differs on: (2, 5, 4, 2, 3)
@wrong("where_view_puts_it", "three 0-d tensors instead of Python ints")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    x = torch.zeros(T, H * d_k)
    x[t, f] = 1
    return tuple(x.view(H, T, d_k).nonzero()[0])


# differs on: (2, 5, 4, 2, 3)
@wrong("where_view_puts_it", "floats instead of ints")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = float(t * H * d_k + f)
    return before // (T * d_k), before // d_k % T, before % d_k


# differs on: (3, 3, 4, 2, 3)
@wrong("where_view_puts_it", "forgets that positions start again in each head")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = t * H * d_k + f
    return before // (T * d_k), before // d_k, before % d_k


@right("where_view_puts_it", "asks a tensor without storage for the offset")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    before = torch.empty(T, H * d_k, device="meta")[t, f].storage_offset()
    return before // (T * d_k), before // d_k % T, before % d_k


@right("where_view_puts_it", "digits of a mixed-radix number, from the last one on")
def _(t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
    def digits(n, bases):
        if not bases:
            return ()
        *more, base = bases
        return *digits(n // base, more), n % base

    return digits(f + d_k * H * t, (H, T, d_k))


right_source(
    "where_view_puts_it",
    "an object that can be called",
    """
class WhereViewPutsIt:
    def __call__(self, t: int, f: int, T: int, H: int, d_k: int) -> tuple[int, int, int]:
        chunk = t * H + f // d_k  # whole chunks of d_k numbers before it
        return chunk // T, chunk % T, f % d_k


where_view_puts_it = WhereViewPutsIt()
""",
)


# ---------------------------------------------------------------- 00 nats


def _refuse(logits, targets):
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError(f"targets lie in 0 ... {logits.shape[-1] - 1}")


def _at(logits, targets):
    return logits.gather(-1, targets[..., None])[..., 0]


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))
@wrong("nats", "the sum, not the mean")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.logsumexp(-1) - _at(logits, targets)).sum()


# differs on: (torch.randn(2, 3, 5), torch.tensor([[0, 1, 4], [2, 2, 0]]))
@wrong("nats", "divides by the first axis only")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.logsumexp(-1) - _at(logits, targets)).sum() / logits.shape[0]


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))
@wrong("nats", "ln p, without the minus")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (_at(logits, targets) - logits.logsumexp(-1)).mean()


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))
@wrong("nats", "in bits")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.logsumexp(-1) - _at(logits, targets)).mean() / math.log(2)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))
@wrong("nats", "minus the log of the mean probability")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return -_at(logits.softmax(-1), targets).mean().log()


# differs on: (torch.tensor([[1000.0, 999.0]]), torch.tensor([0]))
@wrong("nats", "exp without the maximum")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.exp().sum(-1).log() - _at(logits, targets)).mean()


# differs on: (torch.tensor([[1000.0, -1000.0]]), torch.tensor([1]))
@wrong("nats", "the log of a softmax that underflowed")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return -_at(logits.softmax(-1), targets).log().mean()


# differs on: (torch.tensor([[1000.0, -1000.0]]), torch.tensor([1]))
@wrong("nats", "p clamped at 1e-12: no loss above 27.6")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return -_at(logits.softmax(-1), targets).clamp(min=1e-12).log().mean()


# differs on: (torch.tensor([[1000.0, 999.0], [0.0, 1.0]]), torch.tensor([0, 0]))
@wrong("nats", "the maximum of all rows: low rows underflow")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    x = logits - logits.max()
    return (x.exp().sum(-1).log() - _at(x, targets)).mean()


# differs on: (torch.randn(3, 5), torch.tensor([0, -1, 2]))
@wrong("nats", "a target of -1 counts from the end")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    V = logits.shape[-1]
    if (targets >= V).any():
        raise ValueError("targets too large")
    return (logits.logsumexp(-1) - _at(logits, targets % V)).mean()


# differs on: (torch.randn(3, 5), torch.tensor([0, -100, 2]))
@wrong("nats", "-100 is left out, as in F.cross_entropy")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    keep = targets != -100
    logits, targets = logits[keep], targets[keep]
    _refuse(logits, targets)
    return (logits.logsumexp(-1) - _at(logits, targets)).mean()


# differs on: (torch.randn(3, 5), torch.tensor([0, 5, 2]))
@wrong("nats", "lets the target V through to an error of PyTorch's")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if targets.min() < 0 or targets.max() > logits.shape[-1]:
        raise ValueError("targets lie in 0 ... V-1")
    return (logits.logsumexp(-1) - _at(logits, targets)).mean()


# differs on: (torch.randn(3, 5), torch.tensor([0, 7, 2]))
@wrong("nats", "a wrong target clamped into the vocabulary if another one is fine")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    V = logits.shape[-1]
    if ((targets < 0) | (targets >= V)).all():
        raise ValueError("targets lie in 0 ... V-1")
    return (logits.logsumexp(-1) - _at(logits, targets.clamp(0, V - 1))).mean()


# differs on: (torch.randn(2, 3, 5), torch.tensor([[0, 1, 4], [2, 2, 0]]))
@wrong("nats", "checks against axis 1: refuses good targets of (B, T, V)")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if targets.min() < 0 or targets.max() >= logits.shape[1]:
        raise ValueError("targets lie in 0 ... V-1")
    return (logits.logsumexp(-1) - _at(logits, targets)).mean()


# differs on: (torch.randn(5, 3, 2).transpose(0, 2), torch.tensor([[0, 1, 4], [2, 2, 0]]))
@wrong("nats", "view: fails on logits that are not contiguous")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    x = logits.view(-1, logits.shape[-1])
    return (x.logsumexp(-1) - _at(x, targets.view(-1))).mean()


# differs on: (torch.randn(5), torch.tensor(3))
@wrong("nats", "needs at least one leading axis")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    x, y = logits.flatten(0, -2), targets.flatten()
    return (x.logsumexp(1) - x[torch.arange(len(x)), y]).mean()


# differs on: (torch.zeros(2, 50_000), torch.tensor([7, 49_999]))
@wrong("nats", "normalises over the 1000 largest logits only")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    top = logits.topk(min(1000, logits.shape[-1]), dim=-1).values
    return (top.logsumexp(-1) - _at(logits, targets)).mean()


# differs on: (torch.randn(3, 5), torch.tensor([0, 1, 2]))
@wrong("nats", "(1,) instead of ()")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.logsumexp(-1) - _at(logits, targets)).reshape(-1).mean(0, keepdim=True)


# differs on: (torch.randn(4, 5), torch.tensor([0, 0, 0, 2]))
@wrong("nats", "each different target counted once")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    loss = (logits.logsumexp(-1) - _at(logits, targets)).flatten()
    kinds = targets.flatten()
    return torch.stack([loss[kinds == k].mean() for k in kinds.unique()]).mean()


# differs on (gradient): (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]))
@wrong("nats", "right value, half the gradient: lse detached")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    _refuse(logits, targets)
    return (logits.logsumexp(-1).detach() - _at(logits, targets)).mean()


# right results, by what is out of reach
wrong_source(
    "nats",
    "F.cross_entropy behind a check",
    """
import torch.nn.functional as F


def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
""",
    expect="borrowed",
)


@right("nats", "the log-sum-exp of all differences to the right logit")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    V = logits.size(-1)
    if not bool(torch.logical_and(targets.ge(0), targets.lt(V)).all()):
        raise ValueError(f"targets lie in 0 ... {V - 1}")
    here = torch.take_along_dim(logits, targets.unsqueeze(-1), dim=-1)
    return (logits - here).logsumexp(dim=-1).mean()


@right("nats", "loops over all targets, a running mean")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mean = logits.new_zeros(())
    places = itertools.product(*map(range, targets.shape))
    for n, i in enumerate(places, 1):
        target = int(targets[i])
        if target not in range(logits.shape[-1]):
            raise ValueError(f"target {target}")
        row = logits[i]
        top = row.max().detach()
        mean = mean + ((row - top).exp().sum().log() + top - row[target] - mean) / n
    return mean


@right("nats", "a mask of the right answers, the running log-add-exp")
def _(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hits = torch.arange(logits.shape[-1]) == targets[..., None]
    if not hits.any(-1).all():
        raise ValueError("a target outside the vocabulary")
    lse = torch.logcumsumexp(logits, -1)[..., -1]
    return lse.mean() - torch.where(hits, logits, 0.0).sum(-1).mean()


# ---------------------------------------------------------------- 00 conditional_floor


def _entropies(counts):
    p = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return -torch.xlogy(p, p).sum(-1)


# differs on: (torch.tensor([[1, 1, 0], [0, 90, 9]]),)
@wrong("conditional_floor", "the plain mean over contexts")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    return _entropies(counts).mean()


# differs on: (torch.tensor([[1, 1, 0], [0, 0, 0], [4, 4, 4]]),)
@wrong("conditional_floor", "the plain mean over contexts that occurred")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    return _entropies(counts)[counts.sum(-1) > 0].mean()


# differs on: (torch.tensor([[5, 1, 0], [0, 9, 9]]),)
@wrong("conditional_floor", "the floor of whoever does not see the context")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    return _entropies(counts.sum(0))


# differs on: (torch.tensor([[5, 1, 0], [0, 9, 9]]),)
@wrong("conditional_floor", "the entropy of context and answer together")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    return _entropies(counts.flatten())


# differs on: (torch.tensor([[5, 1, 2], [3, 9, 9]]),)
@wrong("conditional_floor", "columns for rows")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    return (_entropies(counts.T) * counts.sum(0) / counts.sum()).sum()


# differs on: (torch.tensor([[5, 1, 0], [3, 9, 9]]),)
@wrong("conditional_floor", "0 * ln 0 is nan")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp(min=1)
    return (-(p * p.log()).sum(-1) * total[:, 0]).sum() / total.sum()


# differs on: (torch.tensor([[5, 1, 3], [0, 0, 0]]),)
@wrong("conditional_floor", "an empty row is nan")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdim=True)
    p = counts / total
    return (-torch.xlogy(p, p).sum(-1) * total[:, 0]).sum() / total.sum()


# differs on: (torch.tensor([[5, 1, 3], [0, 0, 0]]),)
@wrong("conditional_floor", "refuses a table with one empty row")
def _(counts: torch.Tensor) -> torch.Tensor:
    total = counts.sum(-1)
    if (total == 0).any():
        raise ValueError("no counts at all")
    return (_entropies(counts) * total).sum() / total.sum()


# differs on: (torch.zeros(2, 3, dtype=torch.long),)
@wrong("conditional_floor", "an empty table costs 0 instead of an error")
def _(counts: torch.Tensor) -> torch.Tensor:
    total = counts.sum(-1)
    return (_entropies(counts) * total).sum() / total.sum().clamp(min=1)


# differs on: (torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0]]),)
@wrong("conditional_floor", "refuses sparse tables: the mean count rounds to 0")
def _(counts: torch.Tensor) -> torch.Tensor:
    if int(counts.float().mean()) == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1)
    return (_entropies(counts) * total).sum() / total.sum()


# differs on: (torch.tensor([[5, 1, 0], [3, 9, 9]]),)
@wrong("conditional_floor", "adds one to every count")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1)
    return (_entropies(counts + 1) * total).sum() / total.sum()


# differs on: (torch.tensor([[5, 1, 0], [3, 9, 9]]),)
@wrong("conditional_floor", "in bits")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1)
    return (_entropies(counts) * total).sum() / total.sum() / math.log(2)


# differs on: (torch.tensor([[1, 0, 0], [3, 9, 9]]),)
@wrong("conditional_floor", "contexts seen once are left out as noise")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1)
    total = total.where(total > 1, 0)
    return (_entropies(counts) * total).sum() / total.sum().clamp(min=1)


# differs on: (torch.tensor([[70_000, 90_000], [3, 9]]),)
@wrong("conditional_floor", "half precision: counts beyond 65504 are inf")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    c = counts.half()
    total = c.sum(-1)
    return ((_entropies(c) * total).sum() / total.sum()).float()


# differs on: (torch.tensor([[3_000_000_000, 1_000_000_000], [3, 9]]),)
@wrong("conditional_floor", "32-bit counts: overflow beyond 2^31")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    c = counts.to(torch.int32)
    total = c.sum(-1)
    return (_entropies(c) * total).sum() / total.sum()


# differs on: (torch.tensor([[2000, 1, 1], [3, 9, 9]]),)
@wrong("conditional_floor", "shares under a thousandth count as 0")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp(min=1)
    h = -torch.where(p > 1e-3, p * p.clamp(min=1e-3).log(), 0.0).sum(-1)
    return (h * total[:, 0]).sum() / total.sum()


# differs on (argument): (torch.tensor([[5.0, 1.0, 0.0], [3.0, 9.0, 9.0]]),)
@wrong("conditional_floor", "divides the caller's float counts in place")
def _(counts: torch.Tensor) -> torch.Tensor:
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    p = counts.float()  # the same tensor, where the counts are float32
    total = p.sum(-1, keepdim=True)
    p /= total.clamp(min=1)
    return -(torch.xlogy(p, p).sum(-1) * total[:, 0]).sum() / total.sum()


@right("conditional_floor", "joint entropy minus context entropy, in float64")
def _(counts: torch.Tensor) -> torch.Tensor:
    if not counts.any():
        raise ValueError("no counts at all")
    c = counts.double()
    c = c / c.sum()
    h = torch.special.entr(c).sum() - torch.special.entr(c.sum(1)).sum()
    return h.clamp(min=0).float()


@right("conditional_floor", "Python numbers only, entry by entry")
def _(counts: torch.Tensor) -> torch.Tensor:
    rows = [[int(c) for c in row if c > 0] for row in counts.tolist()]
    n = sum(map(sum, rows))
    if n == 0:
        raise ValueError("no counts at all")
    return torch.tensor(
        math.fsum(c / n * math.log(sum(row) / c) for row in rows for c in row)
    )


@right("conditional_floor", "only entries that occurred: a mean of surprises")
def _(counts: torch.Tensor) -> torch.Tensor:
    n, v = torch.nonzero(counts, as_tuple=True)
    if len(n) == 0:
        raise ValueError("no counts at all")
    c = counts[n, v].double()
    row = torch.zeros(len(counts), dtype=c.dtype).index_add(0, n, c)
    return torch.dot(c / c.sum(), row[n].log() - c.log())


# ---------------------------------------------------------------- 00 z_loss_gradient


def _parts(logits, targets):
    lse = logits.logsumexp(-1, keepdim=True)
    onehot = torch.zeros_like(logits).scatter_(1, targets[:, None], 1.0)
    return lse, (logits - lse).exp(), onehot


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "not divided by N")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return p * (1 + 2 * z_weight * lse) - onehot


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the penalty's part is not divided by N")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot) / len(logits) + 2 * z_weight * lse * p


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "divided by all N*V entries")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / logits.numel()


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the 2 of the square is missing")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + z_weight * lse) - onehot) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the chain rule stops at lse: no p")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot + 2 * z_weight * lse) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the slope of lse, not of its square")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    _, p, onehot = _parts(logits, targets)
    return (p * (1 + z_weight) - onehot) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the penalty multiplies the one-hot too")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot) * (1 + 2 * z_weight * lse) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "downhill: the sign turned")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (onehot - p * (1 + 2 * z_weight * lse)) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "PaLM's 1e-4 whatever z_weight says")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2e-4 * lse) - onehot) / len(logits)


# differs on: (torch.randn(4, 5) - 20, torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "|lse|: pushes the wrong way where lse is negative")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse.abs()) - onehot) / len(logits)


# differs on: (torch.randn(4, 5) * 3, torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the mean lse of the batch: right only for N = 1")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse.mean()) - onehot) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "the largest logit for lse: right only for spread logits")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    _, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * logits.amax(1, keepdim=True)) - onehot) / len(logits)


# differs on: (torch.tensor([[200.0, 199.0, -200.0]]), torch.tensor([0]), 0.1)
@wrong("z_loss_gradient", "exp without the maximum")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    _, _, onehot = _parts(logits, targets)
    e = logits.exp()
    z = e.sum(1, keepdim=True)
    return (e / z * (1 + 2 * z_weight * z.log()) - onehot) / len(logits)


# differs on: (torch.tensor([[200.0, 199.0, -200.0]]), torch.tensor([0]), 0.1)
@wrong("z_loss_gradient", "logits clipped to +-80")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, onehot = _parts(logits.clamp(-80, 80), targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 3, 2]), 0.1)
@wrong("z_loss_gradient", "one-hot as wide as the largest target")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, _ = _parts(logits, targets)
    onehot = torch.nn.functional.one_hot(targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)


# differs on: (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "takes 1 from every row at every target: right only for N = 1")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, p, _ = _parts(logits, targets)
    out = p * (1 + 2 * z_weight * lse)
    out[:, targets] -= 1
    return out / len(logits)


# differs on: (torch.randn(4, 5) + 190, torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "measured slopes in float32, not derived")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    def loss(x):
        lse = x.logsumexp(-1)
        return (lse - x.gather(1, targets[:, None])[:, 0] + z_weight * lse**2).mean()

    out = torch.zeros_like(logits)
    for i in itertools.product(*map(range, logits.shape)):
        step = torch.zeros_like(logits)
        step[i] = 1e-3
        out[i] = (loss(logits + step) - loss(logits - step)) / 2e-3
    return out


# differs on (argument): (torch.randn(4, 5), torch.tensor([0, 1, 4, 2]), 0.1)
@wrong("z_loss_gradient", "subtracts lse from the caller's logits")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    lse, _, onehot = _parts(logits, targets)
    p = logits.sub_(lse).exp()
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)


# right results, by what is out of reach
wrong_source(
    "z_loss_gradient",
    "autograd",
    """
def z_loss_gradient(logits, targets, z_weight):
    x = logits.detach().clone().requires_grad_()
    lse = x.logsumexp(-1)
    loss = (lse - x.gather(1, targets[:, None])[:, 0] + z_weight * lse**2).mean()
    return torch.autograd.grad(loss, x)[0]
""",
    expect="borrowed",
)


@right("z_loss_gradient", "example by example, 1 taken from the target at the end")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    rows = []
    for x, t in zip(logits, targets.tolist(), strict=True):
        top = x.max()
        e = torch.exp(x - top)
        lse = top + e.sum().log()
        row = e / e.sum() * (1 + 2 * z_weight * lse)
        row[t] -= 1
        rows.append(row / len(logits))
    return torch.stack(rows)


@right("z_loss_gradient", "both slopes apart, the one-hot put in with accumulate")
def _(logits: torch.Tensor, targets: torch.Tensor, z_weight: float) -> torch.Tensor:
    N, V = logits.shape
    p = logits.softmax(1)
    minus = torch.full((N,), -1.0, dtype=p.dtype)
    ce = torch.index_put(p, (torch.arange(N), targets), minus, accumulate=True)
    lse = torch.logsumexp(logits, 1)
    return torch.addcmul(ce, p, (2 * z_weight * lse)[:, None].expand(N, V)).div(N)


# ---------------------------------------------------------------- 01 soft_lookup


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "already scaled by sqrt(d_k)")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (k @ q / len(q) ** 0.5).softmax(0) @ v


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "hard: the value of the best key")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v[(k @ q).argmax()]


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "weights that do not sum to one")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (k @ q).exp() @ v


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "scores divided by their sum, no exp")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = k @ q
    return s / s.sum() @ v


# differs on: (torch.randn(4), torch.randn(4, 4), torch.randn(4, 2))
@wrong("soft_lookup", "q @ k: the wrong axis of k, silent where S = d_k")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k).softmax(0) @ v


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 3))
@wrong("soft_lookup", "v @ weights: the wrong axis of v, only where S = d_v")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    w = (k @ q).softmax(0)
    return v @ w if v.shape[0] == v.shape[1] else w @ v


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 1))
@wrong("soft_lookup", "squeezed: () instead of (1,) for d_v = 1")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (k @ q).softmax(0)[None].mm(v).squeeze()


# differs on: (torch.ones(4), torch.tensor([[0.5] * 4, [-0.5] * 4]), torch.randn(2, 2))
@wrong("soft_lookup", "exp by its first terms, as the scores are small")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = k @ q
    e = 1 + s + s**2 / 2
    return e / e.sum() @ v


# differs on: (torch.randn(4), torch.randn(3, 4) * 2, torch.randn(3, 2))
@wrong("soft_lookup", "keys brought to length one")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (k / k.norm(dim=1, keepdim=True) @ q).softmax(0) @ v


# differs on: (torch.randn(4), torch.randn(30, 4), torch.randn(30, 2))
@wrong("soft_lookup", "reads the eight best keys only")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s, i = (k @ q).topk(min(8, len(k)))
    return s.softmax(0) @ v[i]


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "nearest key: minus the distance instead of the product")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (-(k - q).square().sum(1)).softmax(0) @ v


# differs on: (torch.randn(4), torch.randn(3, 4), torch.randn(3, 2))
@wrong("soft_lookup", "one row too many: (1, d_v)")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q[None] @ k.T).softmax(-1) @ v


@right("soft_lookup", "key by key, with a running maximum and sum")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    top, total, read = -math.inf, 0.0, torch.zeros_like(v[0])
    for key, value in zip(k, v, strict=True):
        s = torch.dot(key, q)
        new = max(top, float(s.detach()))
        old, e = math.exp(top - new), torch.exp(s - new)
        total = total * old + e
        read = read * old + e * value
        top = new
    return read / total


right_source(
    "soft_lookup",
    "an object with one named einsum",
    """
class SoftLookup:
    def __call__(self, q, k, v):
        scores = torch.einsum("d,sd->s", q, k)
        return torch.einsum("s,sv->v", torch.exp(scores - scores.logsumexp(0)), v)


soft_lookup = SoftLookup()
""",
)


# ---------------------------------------------------------------- 01 sharpen


def _limit(scores):
    best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
    return best / best.sum(-1, keepdim=True)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.0)
@wrong("sharpen", "at 0 the first of the best takes everything")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([[2.0, 2.0, 1.0], [0.0, 1.0, -1.0]]), 0.0)
@wrong("sharpen", "at 0 the best of all rows")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        best = (scores == scores.max()).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([[2.0, 2.0, 1.0], [0.0, 1.0, -1.0]]), 0.0)
@wrong("sharpen", "at 0 shared among the best of all rows")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        return best / best.sum()
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.0)
@wrong("sharpen", "at 0 each of the best gets one")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 2.0, 1.0]), 0.0)
@wrong("sharpen", "at 0 two may share, a third gets nothing")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        s, i = scores.topk(min(2, scores.shape[-1]), dim=-1)
        return torch.zeros_like(scores).scatter(-1, i, _limit(s))
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([1.0, 1.000001, 0.0]), 0.0)
@wrong("sharpen", "at 0 nearly equal scores share too (isclose)")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        best = torch.isclose(scores, scores.amax(-1, keepdim=True)).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([0.001, 0.00100001, 0.0]), 0.0)
@wrong("sharpen", "0 replaced by 1e-6: not yet the limit")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    return (scores / max(temperature, 1e-6)).softmax(-1)


# differs on: (torch.tensor([0.0002, 0.0001, 0.0]), 1e-4)
@wrong("sharpen", "all temperatures below 0.001 count as 0")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature < 1e-3:
        return _limit(scores)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.5)
@wrong("sharpen", "multiplies by the temperature")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    return _limit(scores) if temperature == 0 else (scores * temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), -1.0)
@wrong("sharpen", "a negative temperature turns the order round")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    return _limit(scores) if temperature == 0 else (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), -1e-9)
@wrong("sharpen", "a tiny negative temperature passes for 0")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if round(temperature, 6) < 0:
        raise ValueError(temperature)
    return _limit(scores) if temperature <= 0 else (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.0)
@wrong("sharpen", "refuses 0 as well")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature <= 0:
        raise ValueError(temperature)
    return (scores / temperature).softmax(-1)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.01)
@wrong("sharpen", "exp without the maximum: overflows when cold")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return _limit(scores)
    e = (scores / temperature).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([2.0, 2.0, 1.0]), 0.001)
@wrong("sharpen", "a power of the softmax: 0/0 when cold")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return _limit(scores)
    w = scores.softmax(-1) ** (1 / temperature)
    return w / w.sum(-1, keepdim=True)


# differs on: (torch.randn(2, 3, 4), 0.7)
@wrong("sharpen", "softmax over axis 1: right for matrices only")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    if temperature == 0:
        return _limit(scores)
    return (scores / temperature).softmax(min(1, scores.dim() - 1))


# differs on: (torch.tensor([-1.0, -1.0, -2.0]), 0.0)
@wrong("sharpen", "at 0 the largest by absolute value")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    return _limit(scores.abs()) if temperature == 0 else (scores / temperature).softmax(-1)


# differs on (dtype): (torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=torch.float64), 0.0)
@wrong("sharpen", "at 0 a third in float32 for float64 scores")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(temperature)
    return _limit(scores).float() if temperature == 0 else (scores / temperature).softmax(-1)


@right("sharpen", "the limit from sorted scores, row by row")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}")

    def rows(x):
        if x.dim() > 1:
            return torch.stack([rows(row) for row in x])
        if temperature > 0:
            gap = (x - x.max()) / temperature
            return (gap - gap.logsumexp(-1)).exp()
        ordered = sorted(x.tolist(), reverse=True)
        ties = len(list(itertools.takewhile(lambda s: s == ordered[0], ordered)))
        shares = [1 / ties if s == ordered[0] else 0.0 for s in x.tolist()]
        return torch.tensor(shares, dtype=x.dtype)

    return rows(scores)


@right("sharpen", "at 0 the softmax of 0 and -inf")
def _(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    if not temperature >= 0:
        raise ValueError(f"temperature = {temperature}")
    gap = scores - scores.amax(dim=-1, keepdim=True)
    if not temperature:
        return torch.zeros_like(gap).masked_fill(gap < 0, -math.inf).softmax(dim=-1)
    return gap.div(temperature).softmax(dim=-1)


# ---------------------------------------------------------------- 01 stable_softmax


# differs on: (torch.tensor([1000.0, 999.0]),)
@wrong("stable_softmax", "exp without the maximum")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([[1000.0, 999.0], [0.0, 1.0]]),)
@wrong("stable_softmax", "the maximum of everything: low rows are 0/0")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.max()).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([-1000.0, -999.0]),)
@wrong("stable_softmax", "the largest absolute value: negative rows are 0/0")
def _(scores: torch.Tensor) -> torch.Tensor:
    top = scores.masked_fill(scores == -math.inf, 0).abs().amax(-1, keepdim=True)
    e = (scores - top).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([0.0, 0.0, 0.0, 200.0]),)
@wrong("stable_softmax", "the mean instead of the maximum")
def _(scores: torch.Tensor) -> torch.Tensor:
    finite = scores > -math.inf
    total = scores.masked_fill(~finite, 0).sum(-1, keepdim=True)
    e = (scores - total / finite.sum(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([-1000.0, -999.0]),)
@wrong("stable_softmax", "never lowers the scores by less than 0: top clamped at 0")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([1e4, 1e4 - 1, 0.0]),)
@wrong("stable_softmax", "scores clipped to +-80")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = scores.clamp(-80, 80).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([-1e5, -1e5 + 1, -math.inf]),)
@wrong("stable_softmax", "-inf becomes -1e4: wins over lower finite scores")
def _(scores: torch.Tensor) -> torch.Tensor:
    x = scores.masked_fill(scores == -math.inf, -1e4)
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([-5.0, -4.0, -math.inf]),)
@wrong("stable_softmax", "-inf becomes 0")
def _(scores: torch.Tensor) -> torch.Tensor:
    x = scores.nan_to_num(neginf=0.0)
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.tensor([1.0, 0.0, -math.inf]),)
@wrong("stable_softmax", "0 * -inf: nan in rows with -inf")
def _(scores: torch.Tensor) -> torch.Tensor:
    low, top = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    middle = low * 0 + top
    e = (scores - middle).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.randn(3, 3),)
@wrong("stable_softmax", "keepdim forgotten below the line: silent for squares")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1)


# differs on: (torch.tensor([[1000.0, 999.0], [0.0, 1.0]]),)
@wrong("stable_softmax", "keepdim forgotten for the maximum: silent for squares")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on: (torch.randn(2, 3, 4),)
@wrong("stable_softmax", "axis 1: right for matrices only")
def _(scores: torch.Tensor) -> torch.Tensor:
    axis = 1 if scores.dim() > 1 else 0
    e = (scores - scores.amax(axis, keepdim=True)).exp()
    return e / e.sum(axis, keepdim=True)


# differs on: (torch.tensor([3.0, 0.0, -math.inf, -200.0]),)
@wrong("stable_softmax", "no weight below 0.001, so -inf gets one")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    w = (e / e.sum(-1, keepdim=True)).clamp(min=1e-3)
    return w / w.sum(-1, keepdim=True)


# differs on: (torch.zeros(2, 50_000),)
@wrong("stable_softmax", "the sum of the 1024 largest: right for short rows")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.topk(min(1024, e.shape[-1]), -1).values.sum(-1, keepdim=True)


# differs on: (torch.tensor([1e5, 1e5 - 1]),)
@wrong("stable_softmax", "through half precision: 1e5 is inf")
def _(scores: torch.Tensor) -> torch.Tensor:
    x = scores.half()
    e = (x - x.amax(-1, keepdim=True)).float().exp()
    return (e / e.sum(-1, keepdim=True)).to(scores.dtype)


# differs on: (torch.randn(3, 2, 4).transpose(0, 1),)
@wrong("stable_softmax", "view: fails on scores that are not contiguous")
def _(scores: torch.Tensor) -> torch.Tensor:
    x = scores.view(-1, scores.shape[-1])
    e = (x - x.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).view(scores.shape)


# differs on (argument): (torch.randn(3, 4),)
@wrong("stable_softmax", "subtracts from the caller's scores")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = scores.sub_(scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


# differs on (gradient): (torch.randn(3, 4),)
@wrong("stable_softmax", "right value, half the gradient: the sum detached")
def _(scores: torch.Tensor) -> torch.Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True).detach()


@right("stable_softmax", "recursion over the leading axes")
def _(scores: torch.Tensor) -> torch.Tensor:
    def rows(x):
        if x.dim() > 1:
            return torch.stack([rows(y) for y in x])
        e = torch.exp(x - max(x.tolist()))
        return e.div_(e.detach().sum()) if not x.requires_grad else e / e.sum()

    return rows(scores)


@right("stable_softmax", "key by key: a running maximum and a running sum")
def _(scores: torch.Tensor) -> torch.Tensor:
    top = torch.full_like(scores[..., 0], torch.finfo(scores.dtype).min)
    total = torch.zeros_like(top)
    for s in scores.unbind(-1):
        new = torch.maximum(top, s.detach())
        total = total * (top - new).exp() + (s - new).exp()
        top = new
    return (scores - top.unsqueeze(-1)).exp() / total.unsqueeze(-1)


@right("stable_softmax", "cumulative maximum, powers of two, einsum")
def _(scores: torch.Tensor) -> torch.Tensor:
    top = scores.cummax(-1).values[..., -1:]
    e = torch.exp2((scores - top) * math.log2(math.e))
    return torch.einsum("...s,...->...s", e, torch.einsum("...s->...", e).reciprocal())


# ---------------------------------------------------------------- 01 attend


def _check(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "no scale")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT).softmax(-1) @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "divided by d_k, no root")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 9))
@wrong("attend", "the root of d_v: right where d_v = d_k")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT * v.shape[-1] ** -0.5).softmax(-1) @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "scaled after the softmax")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT).softmax(-1) * q.shape[-1] ** -0.5 @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "softmax over the queries")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-2) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5))
@wrong("attend", "axis 1: right for matrices only")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT * q.shape[1] ** -0.5).softmax(1) @ v


# differs on: (torch.randn(2, 2, 5, 4), torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 5))
@wrong("attend", "bmm: one leading axis at most")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    if q.dim() == 2:
        return (q @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5).softmax(-1), v)


# differs on: (*(torch.randn(2, 5, 3, 4).transpose(1, 2) for _ in "qkv"),)
@wrong("attend", "view: fails on transposed heads")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    a, b, c = (x.view(-1, *x.shape[-2:]) for x in (q, k, v))
    out = (a @ b.mT * q.shape[-1] ** -0.5).softmax(-1) @ c
    return out.view(*q.shape[:-1], v.shape[-1])


# differs on: (torch.randn(2, 4), torch.randn(3, 5), torch.randn(3, 5))
@wrong("attend", "no check: PyTorch's error instead of ValueError")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(4, 5))
@wrong("attend", "refuses only where both are off: and for or")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if q.shape[-1] != k.shape[-1] and k.shape[-2] != v.shape[-2]:
        raise ValueError("shapes")
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


# differs on: (torch.randn(2, 4), torch.randn(3, 1), torch.randn(3, 5))
@wrong("attend", "einsum lets widths 4 and 1 broadcast")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    try:
        s = torch.einsum("...td,...sd->...ts", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("...ts,...sv->...tv", s.softmax(-1), v)
    except RuntimeError as e:
        raise ValueError("shapes") from e


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(6, 5))
@wrong("attend", "reads the first S values of a longer v")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    S = k.shape[-2]
    if q.shape[-1] != k.shape[-1] or v.shape[-2] < S:
        raise ValueError("shapes")
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v[..., :S, :]


# differs on: (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "refuses keys and values of different width")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if q.shape[-1] != k.shape[-1] or k.shape != v.shape:
        raise ValueError("shapes")
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "refuses more queries than keys")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    if q.shape[-2] > k.shape[-2]:
        raise ValueError("too many queries")
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


# differs on: (torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "causal where T = S")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if q.shape[-2] == k.shape[-2]:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    return s.softmax(-1) @ v


# differs on: (torch.ones(2, 4) * 100, torch.randn(3, 4) * 100, torch.randn(3, 5))
@wrong("attend", "softmax by hand without the maximum: scores of 1e4 overflow")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    e = (q @ k.mT * q.shape[-1] ** -0.5).exp()
    return e / e.sum(-1, keepdim=True) @ v


# differs on: (torch.tensor([[200.0] * 4, [0.0] * 4]), torch.ones(3, 4), torch.randn(3, 5))
@wrong("attend", "the maximum of all scores: low rows are 0/0")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    s = q @ k.mT * q.shape[-1] ** -0.5
    e = (s - s.max()).exp()
    return e / e.sum(-1, keepdim=True) @ v


# differs on: (torch.randn(2, 4), torch.randn(100, 4), torch.randn(100, 5))
@wrong("attend", "in blocks of 64 keys whose answers are averaged")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    parts = [
        (q @ a.mT * q.shape[-1] ** -0.5).softmax(-1) @ b
        for a, b in zip(k.split(64, -2), v.split(64, -2), strict=True)
    ]
    return sum(parts) / len(parts)


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5))
@wrong("attend", "keys reshaped instead of transposed")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    s = q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) * q.shape[-1] ** -0.5
    return s.softmax(-1) @ v


# differs on (argument): (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "scales the caller's q in place")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    q *= q.shape[-1] ** -0.5
    return (q @ k.mT).softmax(-1) @ v


# differs on (gradient): (torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 5))
@wrong("attend", "right value, the weights detached: q and k do not learn")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).detach() @ v


# differs on (dtype): tuple(torch.randn(3, 4, dtype=torch.float64) for _ in "qkv")
@wrong("attend", "float32 for float64")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check(q, k, v)
    q, k, v = q.float(), k.float(), v.float()
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


@right("attend", "queries and keys both scaled by the fourth root, einsum")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if (q.size(-1), k.size(-2)) != (k.size(-1), v.size(-2)):
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}")
    r = q.size(-1) ** -0.25
    s = torch.einsum("...td,...sd->...ts", q * r, k * r)
    s = s - s.detach().amax(-1, True)
    return torch.einsum("...ts,...sv->...tv", (s - s.logsumexp(-1, True)).exp(), v)


@right("attend", "block by block of two keys, online softmax")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q {q.shape}, k {k.shape}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"k {k.shape}, v {v.shape}")
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, read = 0.0, 0.0
    for a, b in zip(k.split(2, -2), v.split(2, -2), strict=True):
        s = q @ a.transpose(-1, -2) / math.sqrt(q.shape[-1])
        new = torch.maximum(top, s.detach().amax(-1, keepdim=True))
        old, e = (top - new).exp(), (s - new).exp()
        total = total * old + e.sum(-1, keepdim=True)
        read = read * old + e @ b
        top = new
    return read / total


@right("attend", "keyword tricks: one query at a time, keys first")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if k.shape[-1] - q.shape[-1] or k.shape[-2] - v.shape[-2]:
        raise ValueError(*map(tuple, (q.shape, k.shape, v.shape)))

    def read(one):  # (..., d_k, 1) -> (..., 1, d_v)
        w = torch.softmax(torch.div(k @ one, q.size(-1) ** 0.5), dim=-2)  # (..., S, 1)
        return w.transpose(-2, -1) @ v

    queries = (x.unsqueeze(-1) for x in q.unbind(dim=-2))
    return torch.cat(tensors=[read(one) for one in queries], dim=-2)


# ---------------------------------------------------------------- 01 effective_keys


# differs on: (torch.tensor([1.0, 0.0, 0.0]),)
@wrong("effective_keys", "0 * ln 0 is nan")
def _(weights: torch.Tensor) -> torch.Tensor:
    return (-(weights * weights.log()).sum(-1)).exp()


# differs on: (torch.tensor([0.5, 0.5, 0.0]),)
@wrong("effective_keys", "a nan entropy taken for 0: every row with a zero counts as hard")
def _(weights: torch.Tensor) -> torch.Tensor:
    return (-(weights * weights.log()).sum(-1)).nan_to_num(0.0).exp()


# differs on: (torch.tensor([0.5, 0.25, 0.25]),)
@wrong("effective_keys", "the entropy itself")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1)


# differs on: (torch.tensor([0.5, 0.25, 0.25]),)
@wrong("effective_keys", "e to the power of an entropy in bits")
def _(weights: torch.Tensor) -> torch.Tensor:
    return (torch.special.entr(weights).sum(-1) / math.log(2)).exp()


# differs on: (torch.tensor([0.5, 0.25, 0.25]),)
@wrong("effective_keys", "2 to the power of an entropy in nats")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1).exp2()


# differs on: (torch.tensor([0.7, 0.2, 0.1]),)
@wrong("effective_keys", "one over the sum of squares: right at both ends")
def _(weights: torch.Tensor) -> torch.Tensor:
    return 1 / weights.square().sum(-1)


# differs on: (torch.tensor([0.7, 0.2, 0.1]),)
@wrong("effective_keys", "counts the keys that are not 0")
def _(weights: torch.Tensor) -> torch.Tensor:
    return (weights > 0).sum(-1).to(weights.dtype)


# differs on: (torch.tensor([0.7, 0.2, 0.1]),)
@wrong("effective_keys", "one over the largest weight: right at both ends")
def _(weights: torch.Tensor) -> torch.Tensor:
    return 1 / weights.amax(-1)


# differs on: (torch.eye(4096)[:2],)
@wrong("effective_keys", "ln(w + 1e-6) and w + 1e-6: a one-hot row of 4096 reads 1.05 keys")
def _(weights: torch.Tensor) -> torch.Tensor:
    w = weights + 1e-6
    return (-(w * w.log()).sum(-1)).exp()


# differs on: (torch.full((1, 20_000), 1 / 20_000),)
@wrong("effective_keys", "weights under 1e-4 count as 0: wrong for long rows")
def _(weights: torch.Tensor) -> torch.Tensor:
    terms = torch.where(weights > 1e-4, -weights * weights.clamp(min=1e-4).log(), 0.0)
    return terms.sum(-1).exp()


# differs on: (torch.full((1, 20_000), 1 / 20_000),)
@wrong("effective_keys", "w clamped at 1e-4 inside the logarithm: wrong for long rows")
def _(weights: torch.Tensor) -> torch.Tensor:
    return (-(weights * weights.clamp(min=1e-4).log()).sum(-1)).exp()


# differs on: (torch.tensor([[1.0, 0.0], [0.5, 0.5]]),)
@wrong("effective_keys", "the mean over the queries")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1).mean().exp()


# differs on: (torch.randn(2, 3, 4).softmax(-1),)
@wrong("effective_keys", "axis 1: right for matrices only")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(min(1, weights.dim() - 1)).exp()


# differs on: (torch.tensor([[1.0, 0.0], [0.5, 0.5]]),)
@wrong("effective_keys", "an axis of length one is left over")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1, keepdim=True).exp()


# differs on: (torch.tensor([[[0.7, 0.2, 0.1]]]),)
@wrong("effective_keys", "squeezed: loses leading axes of length one")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1).exp().squeeze()


# differs on: (torch.tensor([0.7, 0.2, 0.1]),)
@wrong("effective_keys", "whole keys: rounded")
def _(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1).exp().round()


# differs on: (torch.randn(4, 2, 3).softmax(-1).transpose(0, 1),)
@wrong("effective_keys", "view: fails on weights that are not contiguous")
def _(weights: torch.Tensor) -> torch.Tensor:
    rows = weights.view(-1, weights.shape[-1])
    return torch.special.entr(rows).sum(-1).exp().view(weights.shape[:-1])


# differs on (argument): (torch.tensor([1.0, 0.0, 0.0]),)
@wrong("effective_keys", "writes ones over the caller's zeros")
def _(weights: torch.Tensor) -> torch.Tensor:
    w = weights
    w[w == 0] = 1  # 1 ln 1 = 0
    return (-(w * w.log()).sum(-1)).exp()


@right("effective_keys", "the product of w to the power of -w, in float64")
def _(weights: torch.Tensor) -> torch.Tensor:
    w = weights.double()
    return w.pow(-w).prod(dim=-1).to(weights.dtype)


@right("effective_keys", "2 to the power of bits")
def _(weights: torch.Tensor) -> torch.Tensor:
    bits = weights.masked_fill(weights == 0, 1.0).log2()
    return torch.exp2((weights * -bits).sum(dim=-1))


@right("effective_keys", "each row's weights above 0, one row after the other")
def _(weights: torch.Tensor) -> torch.Tensor:
    def keys(x):
        if x.dim() > 1:
            return torch.stack([keys(y) for y in x])
        x = x[x > 0]
        return x.dot(x.log().neg()).exp() if len(x) < 100 else (x * x.log()).sum().neg().exp()

    return keys(weights)


# ---------------------------------------------------------------- 01 batched_attention


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "as it was")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[1] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=1) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "only the scale repaired")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[2] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=1) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "only the softmax repaired: right where T = d_k")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[1] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=2) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "scaled by the width of v: right where d_v = d_k")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = v.shape[2] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=2) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "scaled by the batch")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[0] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=2) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "softmax over the batch")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=0) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "times the root instead of by the root")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** 0.5
    return torch.softmax((q * scale) @ k.transpose(1, 2), dim=-1) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "scales queries and keys")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    return torch.softmax((q * scale) @ (k * scale).transpose(1, 2), dim=-1) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "everybody reads the first text's keys: right for B = 1")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    return torch.softmax((q * scale) @ k[0].T, dim=-1) @ v


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "one long text: the batch reads across its examples")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    w = torch.softmax(q * scale @ k.flatten(0, 1).T, dim=-1)
    return w @ v.flatten(0, 1)


# differs on: (torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6))
@wrong("batched_attention", "the shorter axis sums to one: right for T < S")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)
    return torch.softmax(scores, dim=1 if q.shape[1] > k.shape[1] else 2) @ v


# differs on: (torch.randn(2, 4, 4), torch.randn(2, 4, 4), torch.randn(2, 4, 4))
@wrong("batched_attention", "keys not transposed where they are square")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    turned = k if k.shape[1] == k.shape[2] else k.transpose(1, 2)
    return torch.softmax((q * scale) @ turned, dim=2) @ v


@right("batched_attention", "one text at a time")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    def one(a, b, c):
        return torch.softmax(a @ b.T / a.shape[1] ** 0.5, dim=1) @ c

    return torch.stack(list(map(one, q, k, v)))


@right("batched_attention", "keys by queries, turned at the end, baddbmm")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    zero = q.new_zeros(())
    scores = torch.baddbmm(zero, k, q.mT, beta=0, alpha=k.size(2) ** -0.5)  # (B, S, T)
    return (v.mT @ scores.softmax(1)).mT


# ---------------------------------------------------------------- 01 count_flops


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "a multiply-add counted once")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return T * S * (d_k + d_v)


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "2n - 1 for a dot product")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return T * S * (2 * d_k - 1) + T * d_v * (2 * S - 1)


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "values as wide as keys")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 4 * T * S * d_k


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "self-attention: T = S")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * T * (d_k + d_v)


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "the read-out counted from d_k to d_v")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * S * d_k + 2 * T * d_k * d_v


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "with the softmax")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * S * (d_k + d_v) + 3 * T * S


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "with the scale")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * S * (d_k + d_v) + T * S


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "the product of the widths")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * S * d_k * d_v


# differs on: (5, 7, 3, 4)
@wrong("count_flops", "the 2 for the scores only")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * T * S * d_k + T * S * d_v


# differs on: (7, 5, 3, 4)
@wrong("count_flops", "the shorter length for T: right for T <= S")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 2 * min(T, S) * S * (d_k + d_v)


# differs on: (5, 7, 4, 3)
@wrong("count_flops", "the mean width, rounded down: wrong for an odd sum of widths")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return 4 * T * S * ((d_k + d_v) // 2)


# differs on: (10**7 + 1, 10**7 + 3, 129, 64)
@wrong("count_flops", "through a float: not exact beyond 2^53")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    return int(2.0 * T * S * (d_k + d_v))


# differs on: (4096, 4096, 128, 128)
@wrong("count_flops", "32-bit numbers: overflows beyond 2^31")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    n = torch.tensor([T, S, d_k + d_v, 2], dtype=torch.int32)
    return int(n[0] * n[1] * n[2] * n[3])


@right("count_flops", "the sum over both products of the product of all sizes")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    products = ((T, d_k, S), (T, S, d_v))
    return sum(functools.reduce(operator.mul, sizes, 2) for sizes in products)


@right("count_flops", "asks empty tensors for their sizes, shifts for the 2")
def _(T: int, S: int, d_k: int, d_v: int) -> int:
    k, v = torch.empty(S, d_k, device="meta"), torch.empty(S, d_v, device="meta")
    return T * torch.cat([k, v], 1).numel() << 1


# ---------------------------------------------------------------- 01 attention_backward


def _ahead(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = (q @ k.mT * scale).softmax(-1)
    gw = grad @ v.mT
    return scale, w, gw, w * (gw - (w * gw).sum(-1, keepdim=True))


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the scale forgotten on the way back")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, w, _, gs = _ahead(q, k, v, grad)
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the scale forgotten for the keys")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    return gs @ k * scale, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the scale forgotten on the way forward")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = q.shape[-1] ** -0.5
    w = (q @ k.mT).softmax(-1)
    gw = grad @ v.mT
    gs = w * (gw - (w * gw).sum(-1, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "softmax entry by entry: w (1 - w)")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, gw, _ = _ahead(q, k, v, grad)
    gs = w * (1 - w) * gw * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the row's own mean is not subtracted")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, gw, _ = _ahead(q, k, v, grad)
    gs = w * gw * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the plain mean subtracted: right for equal weights")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, gw, _ = _ahead(q, k, v, grad)
    gs = w * (gw - gw.mean(-1, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the mean over queries subtracted")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, gw, _ = _ahead(q, k, v, grad)
    gs = w * (gw - (w * gw).sum(-2, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4))
@wrong("attention_backward", "gradients of q and k swapped: silent for squares")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    return gs.mT @ q * scale, gs @ k * scale, w.mT @ grad


# differs on: (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 6), torch.randn(4, 6))
@wrong("attention_backward", "weights not transposed for the values where T = S")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    back = w if w.shape[-1] == w.shape[-2] else w.mT
    return gs @ k * scale, gs.mT @ q * scale, back @ grad


# differs on: (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 6), torch.randn(4, 6))
@wrong("attention_backward", "scores' gradient not transposed for the keys where T = S")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    back = gs if gs.shape[-1] == gs.shape[-2] else gs.mT
    return gs @ k * scale, back @ q * scale, w.mT @ grad


# differs on: (*(torch.randn(2, n, d) for n, d in ((5, 4), (3, 4), (3, 6), (5, 6))),)
@wrong("attention_backward", "axes 0 and 1: right for matrices only")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    return gs @ k * scale, gs.transpose(0, 1) @ q * scale, w.transpose(0, 1) @ grad


# differs on: (*(torch.randn(2, n, d) for n, d in ((5, 4), (3, 4), (3, 6), (5, 6))),)
@wrong("attention_backward", "keys' and values' gradients added over the batch")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    gk, gv = gs.mT @ q * scale, w.mT @ grad
    if q.dim() > 2:
        gk, gv = gk.sum(0, keepdim=True).expand_as(k), gv.sum(0, keepdim=True).expand_as(v)
    return gs @ k * scale, gk, gv


# differs on: (*(torch.randn(2, 2, n, d) for n, d in ((5, 4), (3, 4), (3, 6), (5, 6))),)
@wrong("attention_backward", "one leading axis at most: einsum with a fixed b")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    if q.dim() == 2:
        return gs @ k * scale, gs.T @ q * scale, w.T @ grad
    return (
        torch.einsum("bts,bsd->btd", gs, k) * scale,
        torch.einsum("bts,btd->bsd", gs, q) * scale,
        torch.einsum("bts,btd->bsd", w, grad),
    )


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "the root of d_v on the way back: right where d_v = d_k")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, w, _, gs = _ahead(q, k, v, grad)
    scale = v.shape[-1] ** -0.5
    return gs @ k * scale, gs.mT @ q * scale, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "grad taken for ones where the values are read")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale, w, _, gs = _ahead(q, k, v, grad)
    return gs @ k * scale, gs.mT @ q * scale, w.mT @ torch.ones_like(grad)


# differs on: (torch.ones(5, 4) * 50, torch.randn(3, 4) * 50, torch.randn(3, 6), torch.randn(5, 6))
@wrong("attention_backward", "forward softmax without the maximum")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = q.shape[-1] ** -0.5
    e = (q @ k.mT * scale).exp()
    w = e / e.sum(-1, keepdim=True)
    gw = grad @ v.mT
    gs = w * (gw - (w * gw).sum(-1, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, w.mT @ grad


# differs on: (torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 6), torch.randn(5, 6) * 100)
@wrong("attention_backward", "clips the arriving gradient to +-10")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad = grad.clamp(-10, 10)
    scale, w, _, gs = _ahead(q, k, v, grad)
    return gs @ k * scale, gs.mT @ q * scale, w.mT @ grad


# differs on: (*(torch.randn(n, d) for n, d in ((100, 4), (3, 4), (3, 6), (100, 6))),)
@wrong("attention_backward", "tiles of 64 queries: only the last tile reaches keys and values")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gq = []
    for a, g in zip(q.split(64, -2), grad.split(64, -2), strict=True):
        scale, w, _, gs = _ahead(a, k, v, g)
        gq.append(gs @ k * scale)
        gk, gv = gs.mT @ a * scale, w.mT @ g
    return torch.cat(gq, -2), gk, gv


# differs on (argument): (*(torch.randn(n, d) for n, d in ((5, 4), (3, 4), (3, 6), (5, 6))),)
@wrong("attention_backward", "scales the caller's q in place")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = q.shape[-1] ** -0.5
    q.mul_(scale)
    w = (q @ k.mT).softmax(-1)
    gw = grad @ v.mT
    gs = w * (gw - (w * gw).sum(-1, keepdim=True))
    return gs @ k * scale, gs.mT @ q, w.mT @ grad


# right results, by what is out of reach
wrong_source(
    "attention_backward",
    "autograd",
    """
def attention_backward(q, k, v, grad):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
    out.backward(grad)
    return q.grad, k.grad, v.grad
""",
    expect="borrowed",
)


@right("attention_backward", "FlashAttention's row sum: the output times its gradient, in tiles")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    root = math.sqrt(q.shape[-1])
    gq, gk, gv = [], torch.zeros_like(k), torch.zeros_like(v)
    for a, g in zip(q.split(2, -2), grad.split(2, -2), strict=True):
        w = torch.softmax(a @ k.mT / root, -1)
        delta = ((w @ v) * g).sum(-1, keepdim=True)
        gs = w * (g @ v.mT - delta) / root
        gq.append(gs @ k)
        gk += gs.mT @ a
        gv += w.mT @ g
    return torch.cat(gq, -2), gk, gv


@right("attention_backward", "the whole Jacobian of the softmax, einsum")
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    s = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    s = s - s.amax(-1, keepdim=True)
    w = (s - s.logsumexp(-1, keepdim=True)).exp()
    jacobian = torch.diag_embed(w) - w[..., :, None] * w[..., None, :]  # (..., T, S, S)
    gs = torch.einsum("...tsr,...tv,...rv->...ts", jacobian, grad, v) / q.shape[-1] ** 0.5
    return (
        torch.einsum("...ts,...sd->...td", gs, k),
        torch.einsum("...ts,...td->...sd", gs, q),
        torch.einsum("...ts,...tv->...sv", w, grad),
    )
