"""Wrong and right answers to the exercises of chapter 0."""

import math

import torch
import torch.nn.functional as F

from tests.mutants import right, right_source, wrong, wrong_source

# ── soft_choice ──────────────────────────────────────────────────────────────────────────────────


@wrong("soft_choice", "the softmax runs over the people, written as dim=-2")
def _(scores):
    return scores.softmax(dim=-2)


@wrong("soft_choice", "the scores are transposed before the softmax and never turned back")
def _(scores):
    return scores.T.softmax(dim=1)


@wrong("soft_choice", "one softmax over the whole table")
def _(scores):
    return scores.flatten().softmax(0).view_as(scores)


@wrong("soft_choice", "divides the scores by their sum, without exp")
def _(scores):
    return scores / scores.sum(dim=1, keepdim=True)


@wrong("soft_choice", "absolute scores divided by their sum")
def _(scores):
    return scores.abs() / scores.abs().sum(dim=1, keepdim=True)


@wrong("soft_choice", "the logarithm of the weights")
def _(scores):
    return scores.log_softmax(dim=1)


@wrong("soft_choice", "the best place takes everything")
def _(scores):
    return F.one_hot(scores.argmax(dim=1), scores.shape[1]).float()


@wrong("soft_choice", "a sigmoid for each score by itself")
def _(scores):
    return scores.sigmoid()


@wrong("soft_choice", "softmax along both axes, one after the other")
def _(scores):
    return scores.softmax(dim=0).softmax(dim=1)


@wrong("soft_choice", "powers of 2 in place of powers of e")
def _(scores):
    return (scores * math.log(2)).softmax(dim=1)


@wrong("soft_choice", "exp without the shift overflows for large scores")
def _(scores):
    e = scores.exp()
    return e / e.sum(dim=1, keepdim=True)


@wrong("soft_choice", "scores are clamped to ±30 against the overflow")
def _(scores):
    e = scores.clamp(-30, 30).exp()
    return e / e.sum(dim=1, keepdim=True)


@wrong("soft_choice", "the sum has lost its axis (no keepdim)")
def _(scores):
    e = (scores - scores.max()).exp()
    return e / e.sum(dim=1)


@wrong("soft_choice", "the weights are written over the scores")
def _(scores):
    return scores.copy_(scores.softmax(dim=1))


@wrong("soft_choice", "the one character changed is a 2, and there is no axis 2")
def _(scores):
    return scores.softmax(dim=2)


@wrong("soft_choice", "a list of lists in place of a tensor")
def _(scores):
    return scores.softmax(dim=1).tolist()


@wrong("soft_choice", "the weights are rounded to two digits for display")
def _(scores):
    return scores.softmax(dim=1).round(decimals=2)


@right("soft_choice", "the last axis, counted from the end")
def _(scores):
    return torch.softmax(scores, -1)


@right("soft_choice", "exp of the shifted scores")
def _(scores):
    e = (scores - scores.max(dim=1, keepdim=True).values).exp()
    return e / e.sum(dim=1, keepdim=True)


@right("soft_choice", "a loop over the people")
def _(scores):
    return torch.stack([row.softmax(0) for row in scores])


@right("soft_choice", "transposed before and after")
def _(scores):
    return scores.T.softmax(0).T


wrong_source("soft_choice", "the bracket was deleted with the character", '''
def soft_choice(scores):
    return scores.softmax(dim=1
''', expect="error")

wrong_source("soft_choice", "the result is computed and not returned", '''
def soft_choice(scores):
    scores.softmax(dim=1)
''', expect="wrong")

# ── squared_distances ────────────────────────────────────────────────────────────────────────────


def _check(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")


@wrong("squared_distances", "the mean over the features in place of the sum")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).square().mean(-1)


@wrong("squared_distances", "the distance and not its square")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).norm(dim=-1)


@wrong("squared_distances", "absolute differences in place of squares")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).abs().sum(-1)


@wrong("squared_distances", "the axes swapped: every y with every x, (S, T)")
def _(x, y):
    _check(x, y)
    return (x[None] - y[:, None]).square().sum(-1)


@wrong("squared_distances", "no error for widths that differ")
def _(x, y):
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "the error compares whole shapes, and so refuses T and S that differ")
def _(x, y):
    if x.shape != y.shape:
        raise ValueError(f"{x.shape} and {y.shape}")
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "the error compares the lengths in place of the widths")
def _(x, y):
    if x.shape[0] != y.shape[0]:
        raise ValueError(f"{len(x)} and {len(y)}")
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "row by row, without the new axes")
def _(x, y):
    _check(x, y)
    return (x - y).square().sum(-1)


@wrong("squared_distances", "sums over T in place of the features")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).square().sum(0)


@wrong("squared_distances", "sums over S in place of the features")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).square().sum(1)


@wrong("squared_distances", "sums first and squares afterwards")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).sum(-1).square()


@wrong("squared_distances", "the binomial formula without its factor 2")
def _(x, y):
    _check(x, y)
    return x.square().sum(1)[:, None] + y.square().sum(1) - x @ y.T


@wrong("squared_distances", "the binomial formula with a plus")
def _(x, y):
    _check(x, y)
    return x.square().sum(1)[:, None] + y.square().sum(1) + 2 * x @ y.T


@wrong("squared_distances", "an assertion in place of a ValueError")
def _(x, y):
    assert x.shape[1] == y.shape[1]
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "the check comes after the subtraction, which has complained by then")
def _(x, y):
    differences = x[:, None] - y[None]
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths")
    return differences.square().sum(-1)


@wrong("squared_distances", "refuses only what PyTorch would refuse: width 1 slips through")
def _(x, y):
    if x.shape[1] != y.shape[1] and 1 not in (x.shape[1], y.shape[1]):
        raise ValueError("widths")
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "only a y of width 1 is refused, an x of width 1 is not")
def _(x, y):
    if x.shape[1] > y.shape[1]:
        raise ValueError("widths")
    return (x[:, None] - y).square().sum(-1)


@wrong("squared_distances", "keeps the feature axis with size 1")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).square().sum(-1, keepdim=True)


@wrong("squared_distances", "the error is returned and not raised")
def _(x, y):
    if x.shape[1] != y.shape[1]:
        return ValueError("widths")
    return (x[:, None] - y[None]).square().sum(-1)


@wrong("squared_distances", "the difference is not squared, and sums to a signed number")
def _(x, y):
    _check(x, y)
    return (x[:, None] - y[None]).sum(-1)


@wrong("squared_distances", "squares x in place while expanding the binomial")
def _(x, y):
    _check(x, y)
    cross = x @ y.T
    return x.pow_(2).sum(1)[:, None] + y.square().sum(1) - 2 * cross


@right("squared_distances", "the binomial formula")
def _(x, y):
    _check(x, y)
    return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T


@right("squared_distances", "two loops")
def _(x, y):
    _check(x, y)
    out = torch.zeros(len(x), len(y))
    for t in range(len(x)):
        for s in range(len(y)):
            out[t, s] = ((x[t] - y[s]) ** 2).sum()
    return out


@right("squared_distances", "einsum of the differences with themselves, axes by unsqueeze")
def _(x, y):
    _check(x, y)
    d = x.unsqueeze(1) - y.unsqueeze(0)
    return torch.einsum("tsd,tsd->ts", d, d)


@right("squared_distances", "row against row by expand, without indexing tricks")
def _(x, y):
    if x.size(-1) != y.size(-1):
        raise ValueError("not the same width")
    T, S = x.size(0), y.size(0)
    left = x.view(T, 1, -1).expand(T, S, -1)
    right_side = y.view(1, S, -1).expand(T, S, -1)
    return F.mse_loss(left, right_side, reduction="none").sum(2)


wrong_source("squared_distances", "calls cdist and squares it", '''
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths")
    return torch.cdist(x, y) ** 2
''', expect="borrowed")

wrong_source("squared_distances", "the dots of the stub are still there", '''
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"widths {x.shape[1]} and {y.shape[1]}")
    differences = x[…] - y[…]  # (T, S, D)
    return differences.square().sum(-1)
''', expect="error")

wrong_source("squared_distances", "a while loop that forgets to count", '''
def squared_distances(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError("widths")
    out = torch.zeros(len(x), len(y))
    t = 0
    while t < len(x):
        out[t] = (x[t] - y).square().sum(-1)
    return out
''', expect="timeout")

# ── where_view_puts_it ───────────────────────────────────────────────────────────────────────────


@wrong("where_view_puts_it", "where the right split would put it")
def _(t, f, T, H, d_k):
    return f // d_k, t, f % d_k


@wrong("where_view_puts_it", "position before head in the result")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    position, feature = divmod(rest, d_k)
    return position, head, feature


@wrong("where_view_puts_it", "a head is taken to hold H·d_k numbers")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, H * d_k)
    return head, rest // d_k, rest % d_k


@wrong("where_view_puts_it", "a row of x is taken to hold T numbers")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * T + f, T * d_k)
    return head, rest // d_k, rest % d_k


@wrong("where_view_puts_it", "a row of x is taken to hold d_k numbers")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * d_k + f, T * d_k)
    return head, rest // d_k, rest % d_k


@wrong("where_view_puts_it", "counts the number itself too: off by one")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f + 1, T * d_k)
    return head, rest // d_k, rest % d_k


@wrong("where_view_puts_it", "reads x column by column")
def _(t, f, T, H, d_k):
    head, rest = divmod(f * T + t, T * d_k)
    return head, rest // d_k, rest % d_k


@wrong("where_view_puts_it", "the sizes of the page's example are built in")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * 6 + f, 12)
    return head, rest // 3, rest % 3


@wrong("where_view_puts_it", "the answer to the page's example, whatever is asked")
def _(t, f, T, H, d_k):
    return 0, 1, 0


@wrong("where_view_puts_it", "divides with / and returns fractions")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before / (T * d_k), before % (T * d_k) / d_k, before % d_k


@wrong("where_view_puts_it", "a position is taken to hold H numbers")
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, rest // H, rest % H


@wrong("where_view_puts_it", "positions are counted through all heads, never starting again at 0")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before // (T * d_k), before // d_k, before % d_k


@wrong("where_view_puts_it", "the feature keeps its old number")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before // (T * d_k), before // d_k % T, f


@wrong("where_view_puts_it", "counts heads and positions from one")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before // (T * d_k) + 1, before // d_k % T + 1, before % d_k


@wrong("where_view_puts_it", "how many numbers stand before, and nothing more")
def _(t, f, T, H, d_k):
    return t * H * d_k + f


@wrong("where_view_puts_it", "position and feature only")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before // d_k % T, before % d_k


@wrong("where_view_puts_it", "views as (T, H, d_k) and reads the axes in that order")
def _(t, f, T, H, d_k):
    return t, f // d_k, f % d_k


@wrong("where_view_puts_it", "text in place of numbers")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return f"head {before // (T * d_k)}, position {before // d_k % T}, feature {before % d_k}"


@right("where_view_puts_it", "three divisions, no divmod")
def _(t, f, T, H, d_k):
    before = t * H * d_k + f
    return before // (T * d_k), before // d_k % T, before % d_k


@right("where_view_puts_it", "marks the number in a tensor and looks where it is after the view")
def _(t, f, T, H, d_k):
    x = torch.zeros(T, H * d_k)
    x[t, f] = 1
    return tuple(x.view(H, T, d_k).nonzero()[0].tolist())


@right("where_view_puts_it", "counts along the view in three loops")
def _(t, f, T, H, d_k):
    left = t * H * d_k + f
    for head in range(H):
        for position in range(T):
            for feature in range(d_k):
                if left == 0:
                    return head, position, feature
                left -= 1


@right("where_view_puts_it", "rows of d_k first: the row's number, then its head")
def _(t, f, T, H, d_k):
    row = t * H + f // d_k
    return row // T, row % T, f % d_k


wrong_source("where_view_puts_it", "uses a name that is nowhere set", '''
def where_view_puts_it(t, f, T, H, d_k):
    before = t * D + f
    head, rest = divmod(before, T * d_k)
    return head, rest // d_k, rest % d_k
''', expect="error")

wrong_source("where_view_puts_it", "the stub with only its first line filled in", '''
def where_view_puts_it(t, f, T, H, d_k):
    before = t * H * d_k + f
    raise NotImplementedError
''', expect="todo")

# ── nats ─────────────────────────────────────────────────────────────────────────────────────────


def _in_range(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError(f"targets lie in 0 … {logits.shape[-1] - 1}")


def _surprise(logits, targets):
    return logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]


@wrong("nats", "the sum over the targets in place of the mean")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).sum()


@wrong("nats", "in bits")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).mean() / math.log(2)


@wrong("nats", "the sign is turned: ln p in place of -ln p")
def _(logits, targets):
    _in_range(logits, targets)
    return -_surprise(logits, targets).mean()


@wrong("nats", "log of the softmax underflows for large logits")
def _(logits, targets):
    _in_range(logits, targets)
    p = logits.softmax(-1).gather(-1, targets[..., None])
    return -p.log().mean()


@wrong("nats", "a small number inside the log caps the loss")
def _(logits, targets):
    _in_range(logits, targets)
    p = logits.softmax(-1).gather(-1, targets[..., None])
    return -(p + 1e-9).log().mean()


@wrong("nats", "exp without the shift overflows")
def _(logits, targets):
    _in_range(logits, targets)
    lse = logits.exp().sum(-1).log()
    return (lse - logits.gather(-1, targets[..., None])[..., 0]).mean()


@wrong("nats", "one shift for all rows: rows far below the largest logit underflow")
def _(logits, targets):
    _in_range(logits, targets)
    x = logits - logits.max()
    lse = x.exp().sum(-1).log()
    return (lse - x.gather(-1, targets[..., None])[..., 0]).mean()


@wrong("nats", "logits clamped to ±80")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits.clamp(-80, 80), targets).mean()


@wrong("nats", "the largest logit is taken out and never put back")
def _(logits, targets):
    _in_range(logits, targets)
    lse = (logits - logits.amax(-1, keepdim=True)).exp().sum(-1).log()
    return (lse - logits.gather(-1, targets[..., None])[..., 0]).mean()


@wrong("nats", "the mean runs over the vocabulary too")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).sum() / logits.numel()


@wrong("nats", "perplexity in place of its logarithm")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).mean().exp()


@wrong("nats", "one minus p in place of -ln p")
def _(logits, targets):
    _in_range(logits, targets)
    return 1 - logits.softmax(-1).gather(-1, targets[..., None]).mean()


@wrong("nats", "no check: gather complains in its own way")
def _(logits, targets):
    return _surprise(logits, targets).mean()


@wrong("nats", "no check, and indexing takes -1 for the last answer")
def _(logits, targets):
    flat = logits.flatten(0, -2)
    x = flat[torch.arange(len(flat)), targets.flatten()]
    return (flat.logsumexp(-1) - x).mean()


@wrong("nats", "only targets that are too large are refused")
def _(logits, targets):
    if targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    flat = logits.flatten(0, -2)
    x = flat[torch.arange(len(flat)), targets.flatten()]
    return (flat.logsumexp(-1) - x).mean()


@wrong("nats", "the upper bound is off by one: V itself goes on to gather")
def _(logits, targets):
    if targets.min() < 0 or targets.max() > logits.shape[-1]:
        raise ValueError("targets")
    return _surprise(logits, targets).mean()


@wrong("nats", "the upper bound is off by one: V-1 is refused")
def _(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1] - 1:
        raise ValueError("targets")
    return _surprise(logits, targets).mean()


@wrong("nats", "0 is refused as a target")
def _(logits, targets):
    if targets.min() <= 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return _surprise(logits, targets).mean()


@wrong("nats", "negative targets are padding and left out, as in many a library")
def _(logits, targets):
    if targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    keep = targets >= 0
    return _surprise(logits[keep], targets[keep]).mean()


@wrong("nats", "targets are clamped into range in place of an error")
def _(logits, targets):
    return _surprise(logits, targets.clamp(0, logits.shape[-1] - 1)).mean()


@wrong("nats", "an error only if all targets are out of range")
def _(logits, targets):
    if ((targets < 0) | (targets >= logits.shape[-1])).all():
        raise ValueError("targets")
    return _surprise(logits, targets.clamp(0, logits.shape[-1] - 1)).mean()


@wrong("nats", "works for (N, V) only: the axis is written as 1")
def _(logits, targets):
    _in_range(logits, targets)
    right_one = logits.gather(1, targets[:, None])[:, 0]
    return (logits.logsumexp(1) - right_one).mean()


@wrong("nats", "one loss a target: the mean is missing")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets)


@wrong("nats", "a Python float in place of a tensor")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).mean().item()


@wrong("nats", "the log-sum-exp runs over the examples")
def _(logits, targets):
    _in_range(logits, targets)
    lse = logits.flatten(0, -2).logsumexp(0).mean()
    return lse - logits.gather(-1, targets[..., None]).mean()


@wrong("nats", "the mean has shape (1,)")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits, targets).flatten().mean(0, keepdim=True)


@wrong("nats", "the largest logit is subtracted from the caller's tensor")
def _(logits, targets):
    _in_range(logits, targets)
    logits -= logits.amax(-1, keepdim=True)
    lse = logits.exp().sum(-1).log()
    return (lse - logits.gather(-1, targets[..., None])[..., 0]).mean()


@wrong("nats", "broadcasts (N,) against (N, 1), every loss with every target")
def _(logits, targets):
    _in_range(logits, targets)
    flat = logits.flatten(0, -2)
    x = flat.gather(-1, targets.flatten()[:, None])
    surprise = flat.logsumexp(-1) - x
    return surprise.clamp(min=0).mean()


@wrong("nats", "the softmax is taken a second time, of probabilities")
def _(logits, targets):
    _in_range(logits, targets)
    return _surprise(logits.softmax(-1), targets).mean()


@right("nats", "a one-hot mask in place of gather")
def _(logits, targets):
    if not ((targets >= 0) & (targets < logits.shape[-1])).all():
        raise ValueError("a target is out of range")
    hot = F.one_hot(targets, logits.shape[-1])
    return (logits.logsumexp(-1) - (logits * hot).sum(-1)).mean()


@right("nats", "the loop of the page over flattened rows")
def _(logits, targets):
    total, count = 0.0, 0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), strict=True):
        if not 0 <= target < len(row):
            raise ValueError(f"{target} is not a target")
        total, count = total - (row[target] - row.logsumexp(0)), count + 1
    return total / count


@right("nats", "shifted by hand, with indexing")
def _(logits, targets):
    V = logits.size(-1)
    if (targets < 0).any() or (targets > V - 1).any():
        raise ValueError("target")
    x = logits.reshape(-1, V)
    x = x - x.max(1, keepdim=True)[0]
    log_p = x - x.exp().sum(1, keepdim=True).log()
    return -log_p[torch.arange(len(x)), targets.reshape(-1)].mean()


@right("nats", "the gaps to the right logit: log of the sum of their exp, in double")
def _(logits, targets):
    _in_range(logits, targets)
    gaps = logits.double() - logits.double().take_along_dim(targets[..., None], -1)
    return gaps.logsumexp(-1).mean().float()


wrong_source("nats", "calls F.cross_entropy", '''
import torch.nn.functional as F
def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
''', expect="borrowed")

wrong_source("nats", "calls log_softmax as a method", '''
def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
''', expect="borrowed")

wrong_source("nats", "has a module made for the loss before it is graded", '''
loss = torch.nn.CrossEntropyLoss()
def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return loss(logits.flatten(0, -2), targets.flatten())
''', expect="borrowed")

wrong_source("nats", "imports the name cross_entropy by itself", '''
from torch.nn.functional import cross_entropy
def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    return cross_entropy(logits.flatten(0, -2), targets.flatten())
''', expect="borrowed")

wrong_source("nats", "the module LogSoftmax in place of the function", '''
def nats(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("targets")
    log_p = torch.nn.LogSoftmax(-1)(logits)
    return -log_p.gather(-1, targets[..., None]).mean()
''', expect="borrowed")

wrong_source("nats", "catches its own error and answers None", '''
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


def _rows(counts):
    """Row totals (N, 1), probabilities (N, V), entropies (N,)."""
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp(min=1)
    return total, p, -torch.xlogy(p, p).sum(-1)


def _not_empty(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all")


@wrong("conditional_floor", "every context counts the same, however often it occurred")
def _(counts):
    _not_empty(counts)
    return _rows(counts)[2].mean()


@wrong("conditional_floor", "the plain mean over the contexts that occurred")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return entropy[total[:, 0] > 0].mean()


@wrong("conditional_floor", "the entropy of the answers without their context")
def _(counts):
    _not_empty(counts)
    p = counts.sum(0) / counts.sum()
    return -torch.xlogy(p, p).sum()


@wrong("conditional_floor", "the entropy of context and answer together")
def _(counts):
    _not_empty(counts)
    p = counts / counts.sum()
    return -torch.xlogy(p, p).sum()


@wrong("conditional_floor", "the entropy of the contexts")
def _(counts):
    _not_empty(counts)
    p = counts.sum(1) / counts.sum()
    return -torch.xlogy(p, p).sum()


@wrong("conditional_floor", "what the context tells about the answer, in place of what remains")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    p = counts.sum(0) / counts.sum()
    return -torch.xlogy(p, p).sum() - (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "in bits")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total[:, 0] / total.sum() * entropy).sum() / math.log(2)


@wrong("conditional_floor", "0 · ln 0 becomes nan")
def _(counts):
    _not_empty(counts)
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp(min=1)
    entropy = -(p * p.log()).sum(-1)
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "an empty row is divided by 0 and becomes nan")
def _(counts):
    _not_empty(counts)
    total = counts.sum(-1, keepdim=True)
    p = counts / total
    return (total[:, 0] / total.sum() * -torch.xlogy(p, p).sum(-1)).sum()


@wrong("conditional_floor", "normalises the columns, and so sees the answer and asks for the context")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts.T)
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "the minus is missing")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return -(total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "weighted by the counts, and not divided by their sum")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total[:, 0] * entropy).sum()


@wrong("conditional_floor", "the weighted sum divided by the number of contexts")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total[:, 0] * entropy).mean()


@wrong("conditional_floor", "the entropies are added without weights")
def _(counts):
    _not_empty(counts)
    return _rows(counts)[2].sum()


@wrong("conditional_floor", "one is added to each count against the zeros")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts + 1)
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "no error for a table without counts")
def _(counts):
    total, _, entropy = _rows(counts)
    return (total[:, 0] * entropy).sum() / total.sum().clamp(min=1)


@wrong("conditional_floor", "an error as soon as one row is empty")
def _(counts):
    total, _, entropy = _rows(counts)
    if (total == 0).any():
        raise ValueError("an empty row")
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "an error as soon as one entry is zero")
def _(counts):
    if not counts.all():
        raise ValueError("a zero")
    total, _, entropy = _rows(counts)
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "whole-number division leaves only zeros and ones")
def _(counts):
    _not_empty(counts)
    total = counts.sum(-1, keepdim=True)
    p = counts // total.clamp(min=1)
    entropy = -torch.xlogy(p, p).sum(-1)
    return (total[:, 0] / total.sum() * entropy).sum()


@wrong("conditional_floor", "zeros in the table are replaced in place")
def _(counts):
    _not_empty(counts)
    total = counts.sum(-1)
    n = total.clamp(min=1)[:, None]
    counts[counts == 0] = 1
    p = counts / n
    entropy = -(p * p.log()).sum(-1)
    return (total / total.sum() * entropy).sum()


@wrong("conditional_floor", "one entropy a row: the average is missing")
def _(counts):
    _not_empty(counts)
    return _rows(counts)[2]


@wrong("conditional_floor", "a Python float in place of a tensor")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total[:, 0] / total.sum() * entropy).sum().item()


@wrong("conditional_floor", "how often the likeliest answer is wrong, in place of nats")
def _(counts):
    _not_empty(counts)
    return 1 - counts.amax(-1).sum() / counts.sum()


@wrong("conditional_floor", "(N, 1) times (N,): every weight meets every entropy")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total / total.sum() * entropy).sum()


@wrong("conditional_floor", "the number that it is like to choose from, e to the floor")
def _(counts):
    _not_empty(counts)
    total, _, entropy = _rows(counts)
    return (total[:, 0] / total.sum() * entropy).sum().exp()


@wrong("conditional_floor", "a ZeroDivisionError in place of a ValueError")
def _(counts):
    total, _, entropy = _rows(counts)
    share = [n / sum(total[:, 0].tolist()) for n in total[:, 0].tolist()]
    return (torch.tensor(share) * entropy).sum()


@right("conditional_floor", "the entropy of the pairs minus that of the contexts")
def _(counts):
    n = counts.sum()
    if n == 0:
        raise ValueError("nothing was counted")
    pairs, contexts = counts.double() / n, counts.sum(1).double() / n
    return (torch.special.entr(pairs).sum() - torch.special.entr(contexts).sum()).float()


@right("conditional_floor", "-ln p of every single occurrence, averaged")
def _(counts):
    if not counts.any():
        raise ValueError("nothing was counted")
    n, i = counts.flatten(), counts.nonzero()
    found = counts[i[:, 0], i[:, 1]]
    p = found / counts.sum(1)[i[:, 0]]
    return -(found * p.log()).sum() / n.sum()


@right("conditional_floor", "loops over rows and entries, with math.log")
def _(counts):
    total = counts.sum().item()
    if total == 0:
        raise ValueError("empty")
    floor = 0.0
    for row in counts.tolist():
        for c in row:
            if c > 0:
                floor -= c / total * math.log(c / sum(row))
    return torch.tensor(floor)


@right("conditional_floor", "nan is cleared where a row is empty")
def _(counts):
    _not_empty(counts)
    p = torch.nan_to_num(counts.float() / counts.sum(1, keepdim=True))
    weights = counts.sum(1) / counts.sum()
    return weights @ torch.where(p > 0, -p * p.clamp(min=1e-30).log(), 0.0).sum(1)


wrong_source("conditional_floor", "a typing error in a method's name", '''
def conditional_floor(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdims=True)
    p = counts / total.clmap(min=1)
    return (total[:, 0] / total.sum() * -torch.xlogy(p, p).sum(-1)).sum()
''', expect="error")

wrong_source("conditional_floor", "prints the floor and returns nothing", '''
def conditional_floor(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all")
    total = counts.sum(-1, keepdim=True)
    p = counts / total.clamp(min=1)
    print((total[:, 0] / total.sum() * -torch.xlogy(p, p).sum(-1)).sum())
''', expect="wrong")

# ── z_loss_gradient ──────────────────────────────────────────────────────────────────────────────


def _parts(logits, targets):
    """lse (N, 1), probabilities (N, V), one-hot (N, V), N."""
    return (logits.logsumexp(-1, keepdim=True), logits.softmax(-1),
            F.one_hot(targets, logits.shape[-1]), len(logits))  # fmt: skip


@wrong("z_loss_gradient", "not divided by N")
def _(logits, targets, z_weight):
    lse, p, hot, _ = _parts(logits, targets)
    return p - hot + 2 * z_weight * lse * p


@wrong("z_loss_gradient", "the penalty is forgotten")
def _(logits, targets, z_weight):
    _, p, hot, n = _parts(logits, targets)
    return (p - hot) / n


@wrong("z_loss_gradient", "the 2 of the square is missing")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + z_weight * lse * p) / n


@wrong("z_loss_gradient", "the inner derivative of the penalty is missing")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse) / n


@wrong("z_loss_gradient", "the penalty is not divided by N")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot) / n + 2 * z_weight * lse * p


@wrong("z_loss_gradient", "only the penalty is divided by N")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return p - hot + 2 * z_weight * lse * p / n


@wrong("z_loss_gradient", "the sign is turned")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (hot - p - 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "the penalty is subtracted")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot - 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "divided by V in place of N")
def _(logits, targets, z_weight):
    lse, p, hot, _ = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse * p) / logits.shape[-1]


@wrong("z_loss_gradient", "divided by N and by V")
def _(logits, targets, z_weight):
    lse, p, hot, _ = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse * p) / logits.numel()


@wrong("z_loss_gradient", "the softmax runs over the examples")
def _(logits, targets, z_weight):
    lse, _, hot, n = _parts(logits, targets)
    p = logits.softmax(0)
    return (p - hot + 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "lse from plain exp overflows")
def _(logits, targets, z_weight):
    _, p, hot, n = _parts(logits, targets)
    lse = logits.exp().sum(-1, keepdim=True).log()
    return (p - hot + 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "probabilities from plain exp overflow")
def _(logits, targets, z_weight):
    lse, _, hot, n = _parts(logits, targets)
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return (p - hot + 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "lse is left squared")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse**2 * p) / n


@wrong("z_loss_gradient", "PaLM's weight 1e-4 is built in")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + 2e-4 * lse * p) / n


@wrong("z_loss_gradient", "the penalty pulls at the target too: both terms take p minus one-hot")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot) * (1 + 2 * z_weight * lse) / n


@wrong("z_loss_gradient", "the derivative of the softmax, p(1 - p), in place of that of lse")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse * p * (1 - p)) / n


@wrong("z_loss_gradient", "lse has lost its axis (no keepdim)")
def _(logits, targets, z_weight):
    _, p, hot, n = _parts(logits, targets)
    return (p - hot + 2 * z_weight * logits.logsumexp(-1) * p) / n


@wrong("z_loss_gradient", "the loss and not its gradient")
def _(logits, targets, z_weight):
    lse, _, hot, _ = _parts(logits, targets)
    return (lse[:, 0] - (logits * hot).sum(-1) + z_weight * lse[:, 0] ** 2).mean()


@wrong("z_loss_gradient", "one_hot guesses the number of answers from the targets")
def _(logits, targets, z_weight):
    lse, p, _, n = _parts(logits, targets)
    return (p - F.one_hot(targets) + 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "one is subtracted at the target from all rows at once")
def _(logits, targets, z_weight):
    lse, p, _, n = _parts(logits, targets)
    g = p + 2 * z_weight * lse * p
    g[:, targets] -= 1
    return g / n


@wrong("z_loss_gradient", "one is subtracted at the target before the penalty's factor is taken")
def _(logits, targets, z_weight):
    lse, p, _, n = _parts(logits, targets)
    p[torch.arange(n), targets] -= 1
    return (p + 2 * z_weight * lse * p) / n


@wrong("z_loss_gradient", "the penalty is taken of the mean lse, and not row by row")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse.mean() * p) / n


@wrong("z_loss_gradient", "the logits are overwritten by the gradient")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits, targets)
    return logits.copy_((p - hot + 2 * z_weight * lse * p) / n)


@wrong("z_loss_gradient", "the mean over the examples is taken of the gradient too")
def _(logits, targets, z_weight):
    lse, p, hot, _ = _parts(logits, targets)
    return (p - hot + 2 * z_weight * lse * p).mean(0)


@wrong("z_loss_gradient", "logits clamped to ±50 against the overflow")
def _(logits, targets, z_weight):
    lse, p, hot, n = _parts(logits.clamp(-50, 50), targets)
    return (p - hot + 2 * z_weight * lse * p) / n


@right("z_loss_gradient", "p collected into one factor, one subtracted by index")
def _(logits, targets, z_weight):
    lse = torch.logsumexp(logits, 1)
    g = (logits - lse[:, None]).exp() * (1 + 2 * z_weight * lse)[:, None]
    g[torch.arange(len(g)), targets] -= 1
    return g / len(g)


@right("z_loss_gradient", "entry by entry in loops")
def _(logits, targets, z_weight):
    N, V = logits.shape
    out = torch.zeros(N, V)
    for n in range(N):
        top = logits[n].max()
        lse = top + (logits[n] - top).exp().sum().log()
        for v in range(V):
            p = (logits[n, v] - lse).exp()
            out[n, v] = (p - (v == targets[n]).float() + 2 * z_weight * lse * p) / N
    return out


@right("z_loss_gradient", "scatter_add, in double")
def _(logits, targets, z_weight):
    x = logits.double()
    lse = x.logsumexp(-1, keepdim=True)
    g = torch.softmax(x, -1).mul(2 * z_weight * lse + 1)
    g = g.scatter_add(1, targets[:, None], -torch.ones_like(lse))
    return (g / x.shape[0]).to(logits.dtype)


wrong_source("z_loss_gradient", "lets backward() do it", '''
def z_loss_gradient(logits, targets, z_weight):
    x = logits.clone().requires_grad_()
    lse = x.logsumexp(-1)
    right = x.gather(-1, targets[:, None])[:, 0]
    (lse - right + z_weight * lse ** 2).mean().backward()
    return x.grad
''', expect="borrowed")

wrong_source("z_loss_gradient", "lets torch.autograd.grad do it", '''
def z_loss_gradient(logits, targets, z_weight):
    x = logits.clone().requires_grad_()
    lse = x.logsumexp(-1)
    right = x.gather(-1, targets[:, None])[:, 0]
    loss = (lse - right + z_weight * lse ** 2).mean()
    return torch.autograd.grad(loss, x)[0]
''', expect="borrowed")

wrong_source("z_loss_gradient", "lets torch.func.grad do it", '''
def z_loss_gradient(logits, targets, z_weight):
    def loss(x):
        lse = x.logsumexp(-1)
        right = x.gather(-1, targets[:, None])[:, 0]
        return (lse - right + z_weight * lse ** 2).mean()
    return torch.func.grad(loss)(logits)
''', expect="borrowed")

wrong_source("z_loss_gradient", "an alias that was never imported", '''
def z_loss_gradient(logits, targets, z_weight):
    p = logits.softmax(-1)
    onehot = Fn.one_hot(targets, logits.shape[-1])
    lse = logits.logsumexp(-1, keepdim=True)
    return (p - onehot + 2 * z_weight * lse * p) / len(p)
''', expect="error")

right_source("z_loss_gradient", "an identity matrix for the one-hot rows", '''
def z_loss_gradient(logits, targets, z_weight):
    N, V = logits.shape
    p = torch.softmax(logits, dim=1)
    pull = p - torch.eye(V)[targets]
    push = 2 * z_weight * torch.einsum("n,nv->nv", logits.logsumexp(1), p)
    return (pull + push) / N
''')
