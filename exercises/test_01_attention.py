"""Graders of chapter 1: soft look-up, temperature, the stable softmax, the whole formula, its cost."""

import math

import torch
from torch import tensor

from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "01_attention"
FORMULA = ("tx.attention", "torch.nn.functional.scaled_dot_product_attention")
STEPS = ("tx.similarity", "tx.read_out")
AXIS_1 = "axis 1 are the keys of a matrix only: counted from the right they are always the last."


def qkv(g, T, S, d_k, d_v, *lead):
    """Queries (…, T, d_k), keys (…, S, d_k) and values (…, S, d_v) with any leading axes."""
    return [randn(g, *lead, *axes) for axes in ((T, d_k), (S, d_k), (S, d_v))]


def small(*lead):
    """One query and two keys, width 4: the scaled scores are 1 and 0."""
    q, k = tensor([[2.0, 0, 0, 0]]), tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]])  # (T, d_k), (S, d_k)
    return [x.repeat(*lead, 1, 1) for x in (q, k, tensor([[1.0], [3.0]]))]


def large(*lead):
    """Scaled scores of ±10,000 to ±30,000: one row lies far below the other."""
    q = tensor([[200.0, 0, 0, 0], [-200, 0, 0, 0]])  # (T, d_k)
    k = tensor([[100.0, 0, 0, 0], [200, 0, 0, 0], [300, 0, 0, 0]])  # (S, d_k)
    return [x.repeat(*lead, 1, 1) for x in (q, k, tensor([[1.0, 2], [3, 5], [7, 9]]))]


def turned(x):
    """The same tensor, stored with its last axis first, so that it cannot be viewed in another shape."""
    axes = tuple(reversed(range(x.ndim)))
    return x.permute(axes).contiguous().permute(axes)


def away_from_zero(*lead):
    """Keys, and values near 10: a blend of them has to be near 10 too."""
    g = torch.Generator().manual_seed(1)
    return randn(g, *lead, 4, 3), 10 + randn(g, *lead, 4, 2)  # (…, S, d_k), (…, S, d_v)


def within_range(name, read, v):
    """What was read, (…, T, d_v) or (d_v,), lies between the values v (…, S, d_v), feature by feature."""
    low, high = v.amin(-2, keepdim=read.ndim > 1), v.amax(-2, keepdim=read.ndim > 1)  # (…, 1, d_v) or (d_v,)
    if read.shape[-1:] != v.shape[-1:]:
        width, got = f"as wide as a value, {v.shape[-1]}", f"shape {tuple(read.shape)}"
        raise contracts.ContractBroken(name, "the last axis", width, got)
    outside = (~((read >= low - 1e-4) & (read <= high + 1e-4))).nonzero()  # (N, axes)
    if len(outside):
        at = tuple(outside[0].tolist())
        low, high = (x.expand_as(read)[at] for x in (low, high))  # (), ()
        raise contracts.ContractBroken(name, f"index {at}", f"between {low:.4g} and {high:.4g}", f"{read[at]:.4g}")


def _normal(e):
    return e / e.sum(dim=-1, keepdim=True)  # (..., S)


# ── soft_lookup ──────────────────────────────────────────────────────────────────────────────────

soft_lookup = Exercise(
    "soft_lookup", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2, gradients=True,
    page="01-attention.html#query-key-and-value",
    checks="the blend that one query reads, for several numbers of keys and widths, and its gradients",
    question="which three steps does the loop of the page have, and what is the shape after each?",
    hints=(
        "The loop makes scores, then weights, then the blend. Which axis of k does each score sum over? "
        "Which axis of v does the blend sum over?",
        "1. scores (S,): every key times q, summed over d_k;  2. weights (S,): positive, sum one;  "
        "3. the blend (d_v,): every value times its weight, summed over S. Steps 1 and 3 are products "
        "with @.",
        "scores = k @ q  # (S,)\nweights = …  # (S,)\nreturn weights @ v  # (d_v,)",
    ),
    out_of_reach=(*FORMULA, *STEPS),
)  # fmt: skip
JARS = tensor([1.0, 0.0]), tensor([[2.0, 0.0], [0.0, 1.0]]), tensor([[1.0], [3.0]])  # (d_k,), (S, d_k), (S, d_v)


@soft_lookup.cases
def _(g):
    yield JARS
    yield randn(g, 2), randn(g, 4, 2), randn(g, 4, 3)
    yield randn(g, 3), turned(randn(g, 5, 3)), turned(randn(g, 5, 3))
    yield randn(g, 4), randn(g, 1, 4), randn(g, 1, 2)
    yield randn(g, 4), randn(g, 3, 4), randn(g, 3, 3)
    yield randn(g, 2), randn(g, 300, 2), randn(g, 300, 3)


@soft_lookup.reference
def _(q, k, v):
    scores = k @ q  # (S,)
    weights = scores.softmax(dim=0)  # (S,)
    return weights @ v  # (d_v,)


SOFTMAX = "scores.softmax(dim=0)"
soft_lookup.edits_are(
    ("no softmax", "the scores themselves weigh the values: they may be negative and do not sum to one.",
     SOFTMAX, "scores"),
    ("a hard look-up",
     "only the best key's value is returned; a soft look-up lets the runners-up have their share.",
     "weights @ v", "v[scores.argmax()]"),
    ("divided by the sum, without exp",
     "scores can be negative or sum to zero; exp makes each share positive first.",
     SOFTMAX, "scores / scores.sum()"),
    ("the keys are read, not the values",
     "the weights come from the keys, and what they blend is v: the key is the label, not the content.",
     "weights @ v", "weights @ k"),
    ("every value counts the same", "the plain average of the values does not look at the query at all.",
     "weights @ v", "v.mean(dim=0)"),
    ("already scaled by √d_k",
     "the loop of this section does not scale yet: that is the formula of a later section.",
     "k @ q", "k @ q / len(q) ** 0.5"),
    ("without a sum over the keys", "the weighted values are still to be added up.", "weights @ v",
     "weights[:, None] * v"),
    ("the weights themselves",
     "the weights are right; the blend of the values is to come.", "weights @ v", "weights"),
    ("the scores themselves", "scores are step one; weights and the blend follow.", "weights @ v", "scores"),
    ("the mean of the weighted values",
     "the weights sum to one already, so adding up is the average: a mean divides by S once more.",
     "weights @ v", "(weights[:, None] * v).mean(dim=0)"),
    ("not divided by the sum", "exp makes every share positive; divided by their sum they add up to one.",
     SOFTMAX, "scores.exp()"),
    ("every weight is one",
     "the softmax ran along an axis of length one, where nothing competes: it belongs on the keys.",
     "weights @ v", "v.sum(dim=0)"),
    ("each key by itself", "a sigmoid does not know the other keys, so the weights do not sum to one.",
     SOFTMAX, "scores.sigmoid()"),
    ("softmax twice", "weights are not scores: a second softmax makes them nearly even.",
     SOFTMAX, SOFTMAX + ".softmax(dim=0)"),
    ("summed over the features", "the blend adds up over the S keys and keeps the d_v features of a value.",
     "weights @ v", "(weights[:, None] * v).sum(dim=1)"),
    ("the nearest key by distance",
     "a score is the product of query and key: a long key may win from far away. What does the loop multiply?",
     "k @ q", "-(k - q).square().sum(dim=1)"),
    ("keys of length one", "the product is taken with the keys as they are: their length counts too.",
     "k @ q", "k @ q / k.norm(dim=1)"),
    ("query and keys of length one", "a cosine is −1 to 1; the product is taken with q and k as they are.",
     "k @ q", "k @ q / k.norm(dim=1) / q.norm()"),
    ("softmax before the sum over the features",
     "a score is one number for each key: the products of its features are added first, and then share out.",
     "weights = scores.softmax(dim=0)", "weights = (k * q).softmax(dim=0).sum(dim=1)"),
)  # fmt: skip


@soft_lookup.contract("a single key gives its own value")
def _(f):
    v = tensor([[1.0, 3.0, -2.0]])  # (S, d_v)
    got = f(tensor([-1.0, 2.0]), tensor([[0.5, 1.0]]), v)  # (d_v,)
    contracts.same("a single key gives its own value", got, v[0])


@soft_lookup.contract("the blend stays within the range of the values")
def _(f):
    keys, values = away_from_zero()  # (S, d_k), (S, d_v)
    for q, k, v in (JARS, (keys[0], keys, values)):
        within_range("the blend stays within the range of the values", f(q, k, v), v)


@soft_lookup.contract("the order of the keys does not matter")
def _(f):
    keys, values = away_from_zero()  # (S, d_k), (S, d_v)
    for q, k, v in (JARS, (keys[0], keys, values)):
        contracts.same("the order of the keys does not matter", f(q, k.roll(1, 0), v.roll(1, 0)), f(q, k, v))


# ── sharpen ──────────────────────────────────────────────────────────────────────────────────────

sharpen = Exercise(
    "sharpen", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3, gradients=True,
    page="01-attention.html#temperature-from-best-to-average",
    checks="weights at temperatures above 0 with their gradients, at 0 with ties, and an error below 0",
    question="what do the weights come to when the temperature falls towards 0, and two scores are equal?",
    hints=(
        "Look at the table of the page: which weights do τ = 0.1 and τ = 100 give? With scores 2, 2, 1, "
        "what would τ = 0.1 give to the two equal ones?",
        "1. refuse a negative temperature;  2. at 0: which entries equal the largest of their row, "
        "(…, S) booleans? They share one equally;  3. otherwise softmax of the divided scores, last axis.",
        "if temperature < 0:\n    raise ValueError(…)\nif temperature == 0:\n"
        "    best = scores == …  # (…, S)\n    return best / best.sum(dim=-1, keepdim=True)\n"
        "return (scores / temperature).softmax(dim=-1)",
    ),
)  # fmt: skip
LONG = torch.cat([torch.zeros(4095), tensor([math.log(4096)])])  # (S,)  half the weight is the last one's
WARM = tensor([2.0, 1.0, 0.0])  # (S,)
TIES = tensor([[2.0, 2.0, 1.0], [0.0, -1.0, -1.0]])  # (T, S)


@sharpen.cases
def _(g):
    yield WARM, 0.5
    yield TIES, 0.0
    yield TIES, 2
    yield tensor([[1.0, 1.0, 1.0, 0.0], [-1.0, -2.0, -3.0, -2.0]]), 0
    yield tensor([1e-20, 0.0, -1.0]), 0.0  # the larger one takes all, however little larger
    yield tensor([1e6, 1e6 + 1, 0.0]), 0.0
    yield torch.linspace(-2, 2, 4096).expand(2, 4096).round(), 0.0  # 512 share
    yield tensor([2e-4, 1e-4, 0.0]), 1e-4
    yield tensor([[1.0, 1 - 1 / 128], [-1.0, -1 - 1 / 128]]), 1 / 128
    yield tensor([300.0, 0.0, -100.0]), 100.0
    yield LONG, 1.0
    yield randn(g, 3, 4), 2.0
    yield randn(g, 2, 3, 5), 0.1
    yield turned(randn(g, 2, 1, 4, 3)), 0.7
    for temperature in (-1.0, -0.1, -1e-9):
        yield raises(ValueError, tensor([1.0, 0.0]), temperature)


@sharpen.reference
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}: expected 0 or more")
    if temperature == 0:
        best = scores == scores.amax(dim=-1, keepdim=True)  # (..., S)
        return best / best.sum(dim=-1, keepdim=True)  # (..., S)
    return (scores / temperature).softmax(dim=-1)  # (..., S)


BEST, SHARES = "scores == scores.amax(dim=-1, keepdim=True)", "best / best.sum(dim=-1, keepdim=True)"
ABOVE = "(scores / temperature).softmax(dim=-1)"
ONE_HOT = "torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])"
sharpen.edits_are(
    ("multiplied instead of divided",
     "a large temperature must make the weights flat: does multiplying by 100 do that?",
     "scores / temperature", "scores * temperature"),
    ("divided after the softmax",
     "dividing weights by τ leaves their proportions as they were, and they no longer sum to one.",
     ABOVE, "scores.softmax(dim=-1) / temperature"),
    ("one winner at temperature 0", "argmax names a single winner; the limit gives equal scores equal weights.",
     SHARES, ONE_HOT + ".to(scores.dtype)"),
    ("ties are not shared out", "each of two winners gets the weight 1, so the row sums to 2.",
     SHARES, "best.to(scores.dtype)"),
    ("division by zero",
     "scores / 0 are infinities, and softmax makes NaN of them: the limit needs a line of its own.",
     "temperature == 0", "False"),
    ("a small number instead of 0",
     "at any τ above 0, scores that differ by less than τ share; the limit gives all to the larger.",
     SHARES, "(scores / 1e-6).softmax(dim=-1)"),
    ("nearly equal scores share at temperature 0",
     "the limit gives all to the larger, however little larger it is: compare with ==.",
     BEST, "torch.isclose(scores, scores.amax(dim=-1, keepdim=True))"),
    ("temperature 0 gives the average",
     "that is the limit at the other end: very large temperatures give equal weights.",
     SHARES, "torch.full_like(scores, 1 / scores.shape[-1])"),
    ("the plain softmax at temperature 0",
     "that is τ = 1; the limit towards 0 leaves nothing to any but the largest.",
     SHARES, "scores.softmax(dim=-1)"),
    ("the largest of the whole tensor at temperature 0",
     "every row has its own largest score: amax over the last axis, with keepdim=True.",
     "scores.amax(dim=-1, keepdim=True)", "scores.max()"),
    ("the largest absolute score at temperature 0",
     "−2 is less than −1: the largest score counts, sign included. What is the largest of −1, −2, −3?",
     BEST, "scores.abs() == scores.abs().amax(dim=-1, keepdim=True)"),
    ("shared among the winners of all rows",
     "the winners are right; each row is divided by its own number of them, along the last axis.",
     "best.sum(dim=-1, keepdim=True)", "best.sum()"),
    ("two winners at most", "three equal scores share too: divide by how many there are.",
     SHARES, "torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, _normal("
             "(scores.topk(2).values == scores.topk(2).values[..., :1]).to(scores.dtype)))"),
    ("True and False at temperature 0",
     "which entries win is right; as weights they are numbers, and the winners of a row share one.",
     SHARES, "best"),
    ("zeros and ones as whole numbers",
     "one_hot gives integers and names a single winner; weights are floats, and equal scores share.",
     SHARES, ONE_HOT),
    ("the temperature is ignored", "every τ above 0 gives the same weights: divide the scores by it.",
     "(scores / temperature)", "scores"),
    ("divided by the root of the temperature", "the scores are divided by τ itself.",
     "scores / temperature", "scores / temperature**0.5"),
    ("divided without the rest",
     "// rounds down to whole numbers, and the scores need their fractions: divide with /.",
     "scores / temperature", "(scores / temperature).floor()"),
    ("small temperatures count as 0", "only 0 is the limit: at τ = 0.0001, scores 0.0001 apart still share.",
     "temperature == 0", "temperature < 1e-3"),
    ("powers of the weights, not divided by their sum",
     "p to the power 1/τ has the right proportions; each row still has to sum to one.",
     ABOVE, "scores.softmax(dim=-1) ** (1 / temperature)"),
    ("powers of the weights",
     "p to the power 1/τ is 0 for every key when τ is small: divide the scores, before exp.",
     ABOVE, "_normal(scores.softmax(dim=-1) ** (1 / temperature))"),
    ("exp overflows", "scores / τ may be large: softmax takes each row's largest out before its exp.",
     ABOVE, "_normal((scores / temperature).exp())"),
    ("a negative temperature is let through",
     "below 0 the worst match would get the largest weight; that needs an error, not a result.",
     "temperature < 0", "False"),
    ("softmax over the first axis", "each query shares out among its keys, and the keys are the last axis.",
     ABOVE, "(scores / temperature).softmax(dim=0)"),
    ("softmax over axis 1", AXIS_1, ABOVE, "(scores / temperature).softmax(dim=1)"),
    ("softmax over axis 1, where there is one",
     AXIS_1, ABOVE, "(scores / temperature).softmax(dim=min(1, scores.ndim - 1))"),
)  # fmt: skip


@sharpen.contract("every row of weights sums to one")
def _(f):
    for scores, temperature in ((WARM, 0.5), (TIES, 0.0), (TIES, 2), (TIES, 3.0)):
        contracts.rows_sum_to_one(f, scores, temperature)


@sharpen.contract("equal scores get equal weights")
def _(f):
    for temperature in (0.0, 1.0):
        name, row = f"equal shares at τ = {temperature:g}", f(TIES, temperature)[0]  # (S,)
        contracts.same(name, f(torch.ones(4), temperature), torch.full((4,), 0.25))
        contracts.same(name, row[0], row[1])


# ── stable_softmax ───────────────────────────────────────────────────────────────────────────────

stable_softmax = Exercise(
    "stable_softmax", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2, gradients=True,
    page="01-attention.html#softmax-without-overflow",
    checks="softmax over the last axis, also for scores of ±1000, for −inf and for long rows, and its gradients",
    question="what is the largest number that exp gets to see, in each row?",
    hints=(
        "exp overflows above 88.7. Which number may you subtract from a row without changing its "
        "softmax, and which choice makes the largest exponent 0?",
        "1. the largest score of each row, (…, 1): keep the axis, so that it broadcasts;  2. exp of the "
        "difference, (…, S);  3. divide by its sum over the last axis, (…, 1).",
        "top = scores.amax(dim=-1, keepdim=True)  # (…, 1)\ne = …  # (…, S)\n"
        "return e / e.sum(dim=-1, keepdim=True)",
    ),
    out_of_reach=(
        "tx.softmax", "torch.softmax", "torch.log_softmax", "torch.nn.functional.softmin",
        "torch.nn.Softmax", "torch.nn.LogSoftmax", "torch.nn.functional.gumbel_softmax",
        "torch._softmax", "torch._log_softmax",
    ),
)  # fmt: skip
SCORES = (
    tensor([[1.0, 2.0, 3.0]]), tensor([[1000.0, 999.0], [-1000.0, -1001.0]]), tensor([-1000.0, -1001.0]),
    tensor([2.0, 1.0, -1000.0]), tensor([[300.0, 0.0, -300.0]]), tensor([0.0, -math.inf, 1.0]),
    tensor([-1e30, -math.inf]), LONG,
    tensor([1e9, 1e9 - 1], dtype=torch.float64),
)  # fmt: skip


@stable_softmax.cases
def _(g):
    yield (SCORES[0],)
    yield (randn(g, 2, 3),)
    yield (randn(g, 3, 3),)
    yield from ((scores,) for scores in SCORES[1:])
    yield (3 * randn(g, 2, 4, 5),)
    yield (turned(randn(g, 3, 1, 2, 4)),)


@stable_softmax.reference
def _(scores):
    top = scores.amax(dim=-1, keepdim=True)  # (..., 1)
    e = (scores - top).exp()  # (..., S)
    return e / e.sum(dim=-1, keepdim=True)  # (..., S)


TOP, SUM = "scores.amax(dim=-1, keepdim=True)", "e.sum(dim=-1, keepdim=True)"
stable_softmax.edits_are(
    ("no maximum subtracted", "exp(1000) is infinite, and ∞ / ∞ is NaN.", "(scores - top)", "scores"),
    ("one maximum for all rows",
     "a row far below the largest score of the whole tensor becomes 0 / 0: each row needs its own.",
     TOP, "scores.max()"),
    ("the mean subtracted",
     "the largest exponent is not 0, so a wide row overflows still. And what is the mean with a −inf in it?",
     "scores.amax", "scores.mean"),
    ("the mean of the finite scores subtracted",
     "the largest exponent is not 0, so a wide row overflows still: which number makes it 0?",
     TOP, "(scores.nan_to_num(neginf=0).sum(-1, True) / scores.isfinite().sum(-1, True))"),
    ("the minimum subtracted",
     "now the largest exponent is as large as the row is wide. And what is the minimum with a −inf in it?",
     "scores.amax", "scores.amin"),
    ("scores clipped",
     "cutting scores off at a limit makes all large ones equal; subtracting keeps their differences.",
     "(scores - top)", "scores.clamp(-80, 80)"),
    ("large scores clipped",
     "above the limit all scores become equal, and a row far below 0 is still 0 / 0: subtract, do not cut.",
     "(scores - top)", "scores.clamp(max=80)"),
    ("divided by the sum of everything",
     "all rows together sum to one; each row has to on its own.", SUM, "e.sum()"),
    ("not divided", "the exponentials are positive, and do not sum to one yet.", " / " + SUM, ""),
    ("the largest of each column subtracted",
     "what is subtracted has to be the same along a row: the row's own largest, (…, 1).",
     "amax(dim=-1", "amax(dim=0"),
    ("summed over the first axis",
     "the largest is each row's own; the sum has to run along the same axis, the last.",
     "e.sum(dim=-1", "e.sum(dim=0"),
    ("divided by the largest score",
     "division changes the differences, and softmax depends on nothing else: subtract.",
     "scores - top", "scores / top"),
    ("the largest absolute score subtracted",
     "in a row of −1000 and −1001 that leaves exp(−2000) = 0, and 0 / 0: take the largest, sign included.",
     "scores.amax", "scores.abs().amax"),
    ("the largest absolute score subtracted, but for −inf",
     "in a row of −1000 and −1001 that leaves exp(−2000) = 0, and 0 / 0: take the largest, sign included.",
     "scores.amax", "scores.nan_to_num(neginf=0).abs().amax"),
    ("never less than 0 subtracted",
     "a row of −1000 and −1001 stays as it is, exp gives 0 twice, and 0 / 0 is NaN: subtract a negative top too.",
     TOP, TOP + ".clamp(min=0)"),
    ("the largest added", "what is subtracted in every exponent cancels; here the exponents have doubled.",
     "scores - top", "scores + top"),
    ("the scores themselves divided",
     "the largest is subtracted, exp is missing: shares must be positive.", ".exp()", ""),
    ("powers of 2", "exp takes powers of e = 2.718…; powers of 2 give flatter weights.", ".exp()", ".exp2()"),
    ("one added to the sum", "the row then sums to less than one: only its own exponentials divide.",
     SUM, f"(1 + {SUM})"),
    ("the sums of the rows lie on the columns",
     "without keepdim=True a sum (…,) is lined up with the keys: row t needs the sum of row t.",
     SUM, "e.sum(dim=-1)"),
    ("the maxima of the rows lie on the columns",
     "without keepdim=True a maximum (…,) is lined up with the keys: row t needs the largest of row t.",
     TOP, "scores.amax(dim=-1)"),
    ("the sum is detached",
     "the weights are right; a score moves the sum of its row too, and detach leaves that out of the gradient.",
     SUM, SUM + ".detach()"),
)  # fmt: skip
stable_softmax.mistakes_are(
    ("NaN and infinity replaced afterwards",
     "nan_to_num hides the overflow: the answer is a number, and the wrong one.",
     lambda scores: _normal(scores.exp()).nan_to_num(0.0)),
    ("softmax over the first axis", "the keys are the last axis: each row has to sum to one.",
     lambda scores: scores.softmax(0)),
    ("softmax over axis 1", AXIS_1, lambda scores: scores.softmax(1)),
    ("softmax over axis 1, where there is one", AXIS_1, lambda scores: scores.softmax(min(1, scores.ndim - 1))),
    ("the maxima and the sums of the rows lie on the columns",
     "without keepdim=True they are lined up with the keys: row t needs the largest and the sum of row t.",
     lambda scores: (e := (scores - scores.amax(dim=-1)).exp()) / e.sum(dim=-1)),
    ("−inf replaced by 0", "−inf means weight 0; a score of 0 is a score like any other, and gets a share.",
     lambda scores: scores.nan_to_num(neginf=0.0).softmax(-1)),
    ("−inf replaced by a large negative number",
     "a finite score may lie below any number that you choose; exp(−inf) is 0 as it is.",
     lambda scores: scores.nan_to_num(neginf=-1e9).softmax(-1)),
    ("the logarithm of the weights",
     "log-softmax: its exp are the weights.", lambda scores: scores.log_softmax(-1)),
)  # fmt: skip


@stable_softmax.contract("every row of weights sums to one")
def _(f):
    for scores in SCORES:
        contracts.rows_sum_to_one(f, scores)


@stable_softmax.contract("adding 1000 to a row changes nothing")
def _(f):
    for scores in (SCORES[0], SCORES[1], tensor([[2.0, 1.0, 0.0]])):  # (T, S)
        contracts.same("adding 1000 to a row changes nothing", f(scores + 1000), f(scores))


@stable_softmax.contract("rows do not influence each other")
def _(f):
    for scores in (SCORES[1], tensor([[1.0, 0.0], [500.0, 499.0]])):  # (T, S)
        contracts.batch_independence(f, scores)


# ── attend ───────────────────────────────────────────────────────────────────────────────────────

attend = Exercise(
    "attend", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3, gradients=True,
    page="01-attention.html#softmax-without-overflow",
    checks="softmax(QKᵀ/√d_k)V and its gradients, for matrices and with leading axes, with scores of ±10,000 and "
    "in float64, and an error where shapes do not fit",
    question="which axis is summed over in QKᵀ, which one does the softmax share out, which one does V lose?",
    hints=(
        "With T = 2 queries, S = 3 keys and d_k = 4: write down the shape after each step. Count the "
        "axes from the right, then leading axes take care of themselves.",
        "1. compare the widths of q and k, and the lengths of k and v;  2. scores (…, T, S) = q @ "
        "k.transpose(-2, -1), times 1/√d_k;  3. weights (…, T, S): stable softmax over the last axis;  "
        "4. weights @ v, (…, T, d_v).",
        "if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:\n    raise ValueError(…)\n"
        "scores = …  # (…, T, S)\nreturn scores.softmax(dim=-1) @ v  # (…, T, d_v)",
    ),
    out_of_reach=(*FORMULA, *STEPS),
)  # fmt: skip


@attend.cases
def _(g):
    yield small()
    yield qkv(g, 2, 3, 4, 2)
    yield qkv(g, 5, 3, 4, 2)
    yield qkv(g, 4, 4, 4, 4)
    yield qkv(g, 3, 4, 5, 6, 2)
    yield qkv(g, 1, 5, 8, 4, 2, 3)
    yield [turned(x) for x in qkv(g, 3, 2, 5, 4, 2, 1, 3)]
    yield qkv(g, 2, 300, 4, 3)
    yield large()
    yield [tensor(x, dtype=torch.float64) for x in ([[1.0]], [[1e8], [1e8 + 1]], [[0.0], [1.0]])]
    for width, length in ((5, 3), (1, 3), (4, 2), (4, 6), (4, 1)):  # one too narrow or wide, too short or long
        yield raises(ValueError, randn(g, 2, 4), randn(g, 3, width), randn(g, length, 2))
    yield raises(ValueError, randn(g, 2, 1), randn(g, 3, 4), randn(g, 3, 2))
    yield raises(ValueError, randn(g, 2, 4), randn(g, 1, 4), randn(g, 3, 2))
    yield raises(ValueError, randn(g, 2, 3, 4), randn(g, 2, 3, 5), randn(g, 2, 3, 4))
    yield raises(ValueError, randn(g, 2, 3, 4), randn(g, 2, 3, 4), randn(g, 2, 4, 4))


@attend.reference
def _(q, k, v):
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit")
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (..., T, S)
    weights = scores.softmax(dim=-1)  # (..., T, S)
    return weights @ v  # (..., T, d_v)


SCALE, WEIGHTS = "* q.shape[-1] ** -0.5", "scores.softmax(dim=-1)"
attend.edits_are(
    ("no scale",
     "without 1/√d_k the scores grow with the width and the weights harden. Which width does a score sum over?",
     SCALE, ""),
    ("divided by d_k",
     "it is the standard deviation of a score that is √d_k, not d_k. (Or were both q and the scores "
     "divided by √d_k? Once is enough.)", SCALE, "/ q.shape[-1]"),
    ("multiplied by √d_k", "the scale makes scores smaller: divide by √d_k.", SCALE, "* q.shape[-1] ** 0.5"),
    ("divided by the root of the number of keys",
     "a score sums over the width d_k, the last axis of q; the number of keys has no part in it.",
     SCALE, "* k.shape[-2] ** -0.5"),
    ("divided by the root of the value width",
     "a score sums over d_k, the width that q and k share; v has a width of its own.",
     SCALE, "* v.shape[-1] ** -0.5"),
    ("divided by the root of the number of queries",
     "a score sums over the width d_k, the last axis of q; the number of queries has no part in it.",
     SCALE, "* q.shape[-2] ** -0.5"),
    ("the width read from axis 1",
     "axis 1 is the width only for two axes: counted from the right it is always the last.",
     SCALE, "* q.shape[1] ** -0.5"),
    ("the whole-number root", "isqrt and // round down: √5 is 2.236, not 2.", SCALE, "/ math.isqrt(q.shape[-1])"),
    ("softmax over the queries",
     "dim=-2 makes the queries compete for each key; every query shares out among the keys, dim=-1.",
     WEIGHTS, "scores.softmax(dim=-2)"),
    ("softmax over axis 1", "axis 1 is the keys' only for two axes: counted from the right it is always the last.",
     WEIGHTS, "scores.softmax(dim=1)"),
    ("softmax over axis 1, and the width read from there",
     "axis 1 is the last only for two axes: counted from the right it is always the last.",
     WEIGHTS, "(scores * q.shape[-1] ** 0.5 * q.shape[1] ** -0.5).softmax(dim=1)"),
    ("softmax over axis 0", "axis 0 are the queries, or the batch: every query shares out among its keys.",
     WEIGHTS, "scores.softmax(dim=0)"),
    ("softmax over everything", "every query has its own row of weights. What does each row sum to now?",
     WEIGHTS, "scores.flatten().softmax(0).view(scores.shape)"),
    ("scaled after the softmax", "the weights no longer sum to one: scale the scores, before the softmax.",
     WEIGHTS, "(scores * q.shape[-1] ** 0.5).softmax(dim=-1) / q.shape[-1] ** 0.5"),
    ("softmax without the maximum subtracted", "large scores overflow exp, and ∞ / ∞ is NaN.",
     WEIGHTS, "_normal(scores.exp())"),
    ("one maximum for all scores",
     "a query whose scores lie far below the others' becomes 0 / 0: each row subtracts its own largest.",
     WEIGHTS, "_normal((scores - scores.max()).exp())"),
    ("no softmax", "the scores weigh the values directly: they may be negative and sum to anything.",
     WEIGHTS, "scores"),
    ("softmax twice", "weights are not scores: a second softmax makes them nearly even.",
     WEIGHTS, WEIGHTS + ".softmax(dim=-1)"),
    ("a causal mask",
     "no query was to be kept from later keys: masks come in chapter 3, and not every attention has one.",
     WEIGHTS, "scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf).softmax(dim=-1)"),
    ("a causal mask where there are as many keys as queries",
     "no query was to be kept from later keys: masks come in chapter 3, and not every attention has one.",
     WEIGHTS, "(scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf)"
              " if q.shape[-2] == k.shape[-2] else scores).softmax(dim=-1)"),
    ("the keys reshaped, not transposed",
     "reshape gives the right shape with the numbers in reading order; transpose turns rows into columns.",
     "k.transpose(-2, -1)", "k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])"),
    ("the keys not transposed", "q @ k multiplies features with keys, which fits only where S = d_k: turn k.",
     "k.transpose(-2, -1)", "k"),
    ("keys ask, queries answer", "q stands first: (…, T, d_k) times (…, d_k, S) gives a row for each query.",
     "q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)"),
    ("the keys of all sequences in one heap",
     "leading axes keep sequences apart: each query has the keys of its own sequence only.",
     "scores = q @", "k, v = k.flatten(0, -2), v.flatten(0, -2)\n    scores = q @"),
    ("output and weights as a pair", "the output is right; the weights are not asked for: return one tensor.",
     "weights @ v", "weights @ v, weights"),
    ("the weights themselves", "the weights are right; @ v is what each query reads.", "weights @ v", "weights"),
    ("the keys are read, not the values", "the weights come from the keys, and what they blend is v.",
     "weights @ v", "weights @ k"),
    ("the mean of the weighted values",
     "the weights sum to one already, so adding up is the average: a mean divides by S once more.",
     "weights @ v", "weights @ v / k.shape[-2]"),
)  # fmt: skip


@attend.contract("a single key gives its own value")
def _(f):
    contracts.one_token_is_its_value(f, tensor([[1.0, 3.0, -2.0]]))


@attend.contract("a read-out stays within the range of the values")
def _(f):
    keys, values = away_from_zero()  # (S, d_k), (S, d_v)
    for q, k, v in (small(), (keys[:3], keys, values), large()):
        within_range("a read-out stays within the range of the values", f(q, k, v), v)


@attend.contract("the order of the keys does not matter")
def _(f):
    keys, values = away_from_zero()  # (S, d_k), (S, d_v)
    for q, k, v in (small(), (keys[:3], keys, values), large()):
        contracts.same("the order of the keys does not matter", f(q, k.roll(1, 0), v.roll(1, 0)), f(q, k, v))


@attend.contract("batch rows are independent")
def _(f):
    x = randn(torch.Generator().manual_seed(2), 2, 3, 4)  # (B, T, d_k)
    contracts.batch_independence(lambda x: f(x, x, x), x)


# ── effective_keys ───────────────────────────────────────────────────────────────────────────────

effective_keys = Exercise(
    "effective_keys", chapter=CHAPTER, kind="measure", level=2, minutes=10, points=3, gradients=True,
    page="01-attention.html#where-the-square-root-comes-from",
    checks="e to the entropy of every row, from one-hot rows (1) to uniform ones (S), and its gradients",
    question="what is 0 · ln 0 in the limit, and what does torch make of it?",
    hints=(
        "Two rows you know the answer of: (1, 0, 0) and (1/3, 1/3, 1/3). What does your function give "
        "for them, and which of the two is harder for ln?",
        "1. the terms −w ln w, (…, S), with 0 where w = 0;  2. the entropy in nats, (…): their sum over "
        "the last axis;  3. e to that power. torch.special.entr gives the terms, zeros included.",
        "terms = torch.special.entr(weights)  # (…, S)\nreturn …  # (…)",
    ),
    out_of_reach=("torch.distributions.Categorical", "torch.distributions.categorical.Categorical"),
)  # fmt: skip


@effective_keys.cases
def _(g):
    yield (tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]),)
    yield (torch.full((5,), 0.2),)
    yield (tensor([[0.9, 0.1, 0.0, 0.0]]),)
    yield (torch.cat([tensor([0.95]), torch.linspace(2e-5, 8e-5, 1000), torch.zeros(3095)]),)  # many small ones
    yield (torch.eye(4096)[:2],)
    yield (randn(g, 3, 4).softmax(-1),)
    yield ((3 * randn(g, 2, 3, 6)).softmax(-1),)
    yield (turned(randn(g, 3, 1, 2, 4).softmax(-1)),)


@effective_keys.reference
def _(weights):
    terms = torch.special.entr(weights)  # (..., S)
    return terms.sum(dim=-1).exp()  # (...)


KEYS = "terms.sum(dim=-1).exp()"
effective_keys.edits_are(
    ("0 · ln 0 is NaN", "ln 0 is −∞ and 0 · −∞ is NaN; in the limit the term is 0, so a zero adds nothing.",
     "torch.special.entr(weights)", "-weights * weights.log()"),
    ("the entropy itself", "nats are a logarithm; e to that power is a number of keys.", ".exp()", ""),
    ("e to an entropy in bits", "with log2 the base is 2: take 2 to that power, or natural logarithms.",
     KEYS, "(terms.sum(dim=-1) / math.log(2)).exp()"),
    ("2 to an entropy in nats", "with natural logarithms the base is e: exp takes it back.", ".exp()", ".exp2()"),
    ("the sign is lost", "Σ w ln w is negative, so this is one divided by the number of keys.",
     KEYS, "(-terms.sum(dim=-1)).exp()"),
    ("one over the sum of squares",
     "the participation ratio agrees for one-hot and uniform rows and differs in between.",
     KEYS, "1 / weights.square().sum(dim=-1)"),
    ("keys with any weight", "a key with a weight of 0.001 counts as a whole one here.",
     KEYS, "(weights > 0).sum(dim=-1).to(weights.dtype)"),
    ("keys with any weight, counted", "a key with a weight of 0.001 counts as a whole one here.",
     KEYS, "(weights > 0).sum(dim=-1)"),
    ("one over the largest weight",
     "that looks at the winner alone; the entropy also sees how the rest is spread.",
     KEYS, "1 / weights.amax(dim=-1)"),
    ("NaN replaced after the sum",
     "one zero weight makes the sum of its row NaN: the terms have to be repaired, before they are added.",
     KEYS, "(-weights * weights.log()).sum(dim=-1).nan_to_num(0.0).exp()"),
    ("small weights left out", "a thousand weights of 0.00005 are a twentieth of the row: each has its term.",
     KEYS, "terms.where(weights > 1e-4, 0).sum(dim=-1).exp()"),
    ("small weights raised inside the logarithm",
     "a floor under the logarithm has to lie far below every weight that matters: 1e-30 does.",
     KEYS, "(-weights * weights.clamp(min=1e-4).log()).sum(dim=-1).exp()"),
    ("exp of every term", "the terms are added first: e to their sum.", KEYS, "terms.exp().sum(dim=-1)"),
    ("the entropy of all rows together", "each query has its own number: sum over the last axis alone.",
     KEYS, "terms.sum().exp()"),
    ("e to the average entropy", "each query has its own number: no mean over the rows.",
     KEYS, "terms.sum(dim=-1).mean().exp()"),
    ("summed over the queries", "a row belongs to one query: the sum runs over its keys, the last axis.",
     "dim=-1", "dim=0"),
    ("summed over axis 1", AXIS_1, "dim=-1", "dim=1"),
    ("summed over axis 1, where there is one", AXIS_1, "dim=-1", "dim=min(1, weights.ndim - 1)"),
    ("a softmax of the weights", "the rows sum to one already: they are weights, not scores.",
     "entr(weights)", "entr(weights.softmax(dim=-1))"),
    ("a share of the largest entropy", "divided by ln S, the entropy is between 0 and 1 and no longer in nats.",
     KEYS, "(terms.sum(dim=-1) / math.log(weights.shape[-1])).exp()"),
    ("one number for all rows", "each query has its own number: sum over the last axis.",
     KEYS, "terms.sum(dim=-1).exp().mean()"),
    ("the mean of the terms", "an entropy is the sum over the keys; the mean divides it by S.",
     ".sum(dim=-1)", ".mean(dim=-1)"),
    ("whole keys", "1.4 keys are a measurement, too: do not round.", KEYS, KEYS + ".round()"),
)  # fmt: skip


@effective_keys.contract("one key that takes everything counts as one")
def _(f):
    contracts.same("a one-hot row counts one key", f(tensor([[0.0, 1.0, 0.0]])), tensor([1.0]))


@effective_keys.contract("S equal weights count as S keys")
def _(f):
    for S in (2, 5, 8):
        contracts.same("equal weights count every key", f(torch.full((1, S), 1 / S)), tensor([float(S)]))


@effective_keys.contract("rows do not influence each other")
def _(f):
    for weights in (tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])):
        contracts.batch_independence(f, weights)


# ── batched_attention ────────────────────────────────────────────────────────────────────────────

batched_attention = Exercise(
    "batched_attention", chapter=CHAPTER, kind="debug", level=2, minutes=10, points=3, gradients=True,
    page="01-attention.html#one-wrong-character",
    checks="attention for a batch, q (B, T, d_k), k (B, S, d_k), v (B, S, d_v), of any sizes, and its gradients",
    question="for each axis counted from the left: what was it before the batch, what is it now?",
    hints=(
        "Without a batch, q was (T, d_k) and the scores (T, S). Which lines name an axis by a number, "
        "and what does that number mean for three axes?",
        "Two numbers are out of date. One belongs to the width that the scale needs, the other to the "
        "axis of the keys in the scores (B, T, S). The product is right.",
        "scale = q.shape[…] ** -0.5\nscores = (q * scale) @ k.transpose(1, 2)  # (B, T, S)\n"
        "weights = torch.softmax(scores, dim=…)  # (B, T, S)\nreturn weights @ v",
    ),
    out_of_reach=(*FORMULA, *STEPS),
)  # fmt: skip


@batched_attention.cases
def _(g):
    yield small(2)
    yield qkv(g, 2, 3, 5, 4, 1)
    yield qkv(g, 4, 4, 4, 4, 2)
    yield qkv(g, 5, 4, 2, 6, 3)
    yield [turned(x) for x in qkv(g, 1, 6, 9, 3, 4)]
    yield qkv(g, 2, 300, 4, 3, 2)
    yield large(2)


@batched_attention.reference
def _(q, k, v):
    scale = q.shape[-1] ** -0.5
    scores = (q * scale) @ k.transpose(1, 2)  # (B, T, S)
    weights = torch.softmax(scores, dim=-1)  # (B, T, S)
    return weights @ v  # (B, T, d_v)


BATCHED = "torch.softmax(scores, dim=-1)"
batched_attention.edits_are(
    ("both axes still count from the left",
     "q.shape[1] and dim=1 meant the width and the keys for matrices; with a batch both are the queries.",
     BATCHED, "torch.softmax(scores / scale * q.shape[1] ** -0.5, dim=1)"),
    ("the softmax is repaired, the scale is not",
     "q.shape[1] is the number of queries now; the width d_k is q.shape[-1].", "q.shape[-1]", "q.shape[1]"),
    ("the scale is repaired, the softmax is not",
     "dim=1 is the axis of the queries now; the keys are the last axis.", "dim=-1", "dim=1"),
    ("softmax over the batch", "dim=0 makes the texts of a batch compete with each other.", "dim=-1", "dim=0"),
    ("the scale is taken from the number of keys",
     "the sum in a score runs over d_k, the last axis of q and k, not over the S keys.",
     "q.shape[-1]", "k.shape[1]"),
    ("the scale is taken from the batch", "q.shape[0] is the number of texts; a score sums over d_k.",
     "q.shape[-1]", "q.shape[0]"),
    ("the scale is gone", "the axis was wrong, the scale itself is needed: 1/√d_k.", "(q * scale)", "q"),
    ("the scale is taken from the values", "a score sums over d_k, the width of q and k; v has its own, d_v.",
     "q.shape[-1]", "v.shape[-1]"),
    ("the root is gone",
     "the power was −0.5: divide by √d_k, not by d_k. (Or are both q and k scaled? Once is enough.)",
     "** -0.5", "** -1.0"),
    ("multiplied by √d_k", "the power was −0.5: the scale makes the scores smaller.", "** -0.5", "** 0.5"),
    ("multiplied by −0.5",
     "** is a power and * a product: the scale is d_k to the power −0.5.", "** -0.5", "* -0.5"),
    ("the keys viewed, not transposed",
     "view gives the right shape with the numbers in reading order; the transpose was right already.",
     "k.transpose(1, 2)", "k.reshape(k.shape[0], k.shape[2], k.shape[1])"),
    ("the softmax is right, the scale is taken from the whole of q",
     "numel counts batch and queries too; a score sums over d_k, the last axis.", "q.shape[-1]", "q.numel()"),
    ("softmax over everything", "every query of every text has its own row of weights.",
     BATCHED, "scores.flatten().softmax(0).view(scores.shape)"),
    ("shared out along both axes", "one softmax, over the keys: the one over the queries goes.",
     BATCHED, "scores.softmax(1).softmax(2)"),
    ("shared out along the queries, then divided along the keys",
     "the rows sum to one, and the shares are still those of a softmax over the queries: dim=-1 does both.",
     BATCHED, "_normal(torch.softmax(scores, dim=1))"),
    ("softmax without the maximum subtracted",
     "large scores overflow exp, and ∞ / ∞ is NaN: torch.softmax was right.", BATCHED, "_normal(scores.exp())"),
    ("every text asks the first one's keys", "k[0] are the keys of one text; every text has its own.",
     "k.transpose(1, 2)", "k[0].T"),
    ("every text reads the first one's values", "v[0] are the values of one text; every text has its own.",
     "weights @ v", "weights @ v[0]"),
    ("only the first text", "there is an output for every text: (B, T, d_v).", "weights @ v", "(weights @ v)[0]"),
    ("the average over the batch", "there is an output for every text: (B, T, d_v).",
     "weights @ v", "(weights @ v).mean(0)"),
    ("the texts see each other", "the batch was flattened into one long text; every text has its own keys.",
     "scores = (q * scale) @ k.transpose(1, 2)", "v, scores = v.flatten(0, 1), (q * scale) @ k.flatten(0, 1).T"),
)  # fmt: skip


@batched_attention.contract("a single key gives its own value")
def _(f):
    contracts.one_token_is_its_value(f, tensor([[[1.0, 3.0, -2.0]]]))


@batched_attention.contract("a read-out stays within the range of the values")
def _(f):
    keys, values = away_from_zero(1)  # (B, S, d_k), (B, S, d_v)
    for q, k, v in (small(2), (keys[:, :2], keys, values), large(2)):
        within_range("a read-out stays within the range of the values", f(q, k, v), v)


@batched_attention.contract("a query reads the same whoever else asks")
def _(f):
    keys, values = away_from_zero(1)  # (B, S, d_k), (B, S, d_v)
    for q, k, v in ((keys[:, :3], keys, values), large(2)):
        contracts.same("a query reads the same whoever else asks", f(q, k, v)[:, :1], f(q[:, :1], k, v))


# ── count_flops ──────────────────────────────────────────────────────────────────────────────────

count_flops = Exercise(
    "count_flops", chapter=CHAPTER, kind="predict", level=1, minutes=5, points=2,
    page="01-attention.html#what-it-costs",
    checks="the operations of the two matrix products, at sizes that the page does not show, small and very large",
    question="how many numbers does each product make, and how many multiply-adds stand in each of them?",
    hints=(
        "QKᵀ makes T · S numbers. How many multiply-adds does each of them take? And which sizes does "
        "the second product have?",
        "1. an (m, n) times (n, p) product makes m · p numbers of n multiply-adds each;  2. QKᵀ is "
        "(T, d_k) times (d_k, S);  3. weights times V is (T, S) times (S, d_v);  4. each multiply-add "
        "is two operations.",
        "scores = 2 * T * S * d_k\nread_out = …\nreturn scores + read_out",
    ),
)  # fmt: skip


@count_flops.cases
def _(g):
    yield 1, 1, 1, 1
    yield 2, 3, 4, 5
    yield 3, 2, 7, 5
    yield 1, 4096, 64, 64
    yield 4096, 4096, 128, 128  # more than 2**31
    yield 10**7 + 1, 10**7 + 3, 129, 64  # more than 2**53, where floats are no longer exact
    for _ in range(3):
        yield tuple(torch.randint(2, 300, (4,), generator=g).tolist())


@count_flops.reference
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v)


count_flops.mistakes_are(
    ("multiply-adds counted once", "a multiplication and an addition are two operations.",
     lambda T, S, d_k, d_v: T * S * (d_k + d_v)),
    ("only the scores", "reading the values is a second product, weights times V.",
     lambda T, S, d_k, d_v: 2 * T * S * d_k),
    ("only the read-out", "comparing every query with every key is a product too.",
     lambda T, S, d_k, d_v: 2 * T * S * d_v),
    ("values as wide as keys", "the second product has the width of the values, d_v, which may differ.",
     lambda T, S, d_k, d_v: 4 * T * S * d_k),
    ("keys as wide as values", "the first product has the width of the keys, d_k, which may differ.",
     lambda T, S, d_k, d_v: 4 * T * S * d_v),
    ("the widths of the page", "64 is the page's example: the width of the keys is d_k, that of the values d_v.",
     lambda T, S, d_k, d_v: 4 * T * S * 64),
    ("the mean of the widths, rounded down",
     "// drops a half where d_k + d_v is odd: add the widths, then multiply.",
     lambda T, S, d_k, d_v: 4 * T * S * ((d_k + d_v) // 2)),
    ("as many keys as queries", "T queries meet S keys: T · S pairs, T² only in self-attention.",
     lambda T, S, d_k, d_v: 2 * T * T * (d_k + d_v)),
    ("as many queries as keys", "T queries meet S keys: T · S pairs, S² only in self-attention.",
     lambda T, S, d_k, d_v: 2 * S * S * (d_k + d_v)),
    ("sizes added instead of multiplied", "every query meets every key, so T and S multiply.",
     lambda T, S, d_k, d_v: 2 * (T + S) * (d_k + d_v)),
    ("widths multiplied", "the two products happen one after the other: their costs add.",
     lambda T, S, d_k, d_v: 2 * T * S * d_k * d_v),
    ("n − 1 additions", "exact for the sums, but the convention here, and in PyTorch's counter, is n of each.",
     lambda T, S, d_k, d_v: T * S * (2 * d_k - 1) + T * d_v * (2 * S - 1)),
    ("the larger product alone", "the two products are two costs: they add.",
     lambda T, S, d_k, d_v: 2 * T * S * max(d_k, d_v)),
    ("twice the scores only", "the read-out's multiply-adds are two operations each, too.",
     lambda T, S, d_k, d_v: T * S * (2 * d_k + d_v)),
    ("twice the read-out only", "the scores' multiply-adds are two operations each, too.",
     lambda T, S, d_k, d_v: T * S * (d_k + 2 * d_v)),
    ("every product counted as its result",
     "T · S and T · d_v numbers come out; each of them is a sum of d_k or S products.",
     lambda T, S, d_k, d_v: T * S + T * d_v),
    ("twice the results", "T · S and T · d_v numbers come out; each of them is a sum of d_k or S products.",
     lambda T, S, d_k, d_v: 2 * (T * S + T * d_v)),
    ("the read-out sums over d_k",
     "weights (T, S) times V (S, d_v): each number that is read sums over the S keys.",
     lambda T, S, d_k, d_v: 2 * T * S * d_k + 2 * T * d_k * d_v),
    ("four for every pair and width", "the factor 2 stands for a multiply-add once: not for each product again.",
     lambda T, S, d_k, d_v: 4 * T * S * (d_k + d_v)),
    ("two numbers", "one number is asked for: the costs of the two products, added.",
     lambda T, S, d_k, d_v: (2 * T * S * d_k, 2 * T * S * d_v)),
    ("in millions", "the page prints millions; the operations themselves are asked for.",
     lambda T, S, d_k, d_v: 2 * T * S * (d_k + d_v) / 1e6),
    ("through a float", "a float is exact up to 2 to the power 53 only: Python's ints have no limit.",
     lambda T, S, d_k, d_v: int(2.0 * T * S * (d_k + d_v))),
    ("32 bits", "above 2 to the power 31 an int32 wraps around: Python's ints have no limit.",
     lambda T, S, d_k, d_v: (2 * T * S * (d_k + d_v) + 2**31) % 2**32 - 2**31),
    *((f"{extra} more for every weight",
       "softmax or scale was counted as well: the count here, like PyTorch's, is of the two products.",
       lambda T, S, d_k, d_v, extra=extra: 2 * T * S * (d_k + d_v) + extra * T * S) for extra in range(1, 7)),
)  # fmt: skip


@count_flops.contract("twice the queries and keys, four times the work")
def _(f):
    for n, d_k, d_v in ((1, 1, 1), (32, 8, 8), (32, 4, 5)):
        ratio = f(2 * n, 2 * n, d_k, d_v) / max(f(n, n, d_k, d_v), 1)
        contracts.same("four times the work", tensor(float(ratio)), tensor(4.0), f"{n} and {2 * n} tokens")


@count_flops.contract("one query costs a T-th of all")
def _(f):
    for T, S, d_k, d_v in ((2, 3, 4, 5), (10, 32, 8, 4)):
        ratio = f(T, S, d_k, d_v) / max(f(1, S, d_k, d_v), 1)
        contracts.same("one query costs a T-th of all", tensor(float(ratio)), tensor(float(T)), f"{T} queries")


# ── attention_backward ───────────────────────────────────────────────────────────────────────────

attention_backward = Exercise(
    "attention_backward", chapter=CHAPTER, kind="derive", level=3, minutes=40, points=5,
    page="01-attention.html#further-softmax-backward",
    checks="the gradients of q, k and v, for matrices and with leading axes, for long texts and large scores",
    question="backwards through read-out, softmax and scores: which gradient arrives where, in which shape?",
    hints=(
        "For a product C = A @ B the gradients are dA = dC @ Bᵀ and dB = Aᵀ @ dC. Attention has two "
        "products with a softmax between them, and you have the softmax's rule from the page.",
        "1. weights again, (…, T, S);  2. dv = weightsᵀ @ grad, (…, S, d_v);  3. gradient of the weights, "
        "(…, T, S) = grad @ vᵀ;  4. through the softmax, row by row;  5. dq and dk from the scores, both "
        "with the scale.",
        "w = (q @ k.transpose(-2, -1) * scale).softmax(-1)  # (…, T, S)\n"
        "g = grad @ v.transpose(-2, -1)  # (…, T, S)\nd = …  # (…, T, S)  the gradient of the scores\n"
        "return d @ k * scale, d.transpose(-2, -1) @ q * scale, w.transpose(-2, -1) @ grad",
    ),
    out_of_reach=(
        "torch.autograd.grad", "torch.autograd.backward", "torch.Tensor.backward",
        "torch.func.vjp", "torch.func.grad", "torch.func.jacrev", "torch.func.jacfwd",
        "torch.autograd.functional.vjp", "torch.autograd.functional.jacobian",
        "torch._softmax_backward_data",
    ),
    parts=("gradient of q", "gradient of k", "gradient of v"),
)  # fmt: skip


def with_grad(g, T, S, d_k, d_v, *lead):
    """q, k and v, and a gradient that arrives at the output, (…, T, d_v)."""
    return *qkv(g, T, S, d_k, d_v, *lead), randn(g, *lead, T, d_v)


@attention_backward.cases
def _(g):
    yield *small(), torch.ones(1, 1)
    yield with_grad(g, 2, 4, 3, 5)
    yield with_grad(g, 5, 3, 4, 2)
    yield with_grad(g, 4, 4, 4, 4)
    yield with_grad(g, 3, 5, 8, 4, 2)
    yield [turned(x) for x in with_grad(g, 2, 3, 4, 5, 3, 1, 2)]
    yield with_grad(g, 300, 3, 4, 2)
    yield with_grad(g, 2, 300, 4, 3)
    yield *qkv(g, 2, 3, 4, 1), tensor([[200.0], [-100.0]])
    yield *large(), tensor([[1.0, -2.0], [3.0, 1.0]])  # exp would overflow


@attention_backward.reference
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = (q @ k.transpose(-2, -1) * scale).softmax(-1)  # (..., T, S)
    dv = w.transpose(-2, -1) @ grad  # (..., S, d_v)
    g = grad @ v.transpose(-2, -1)  # (..., T, S)
    d = w * (g - (w * g).sum(-1, keepdim=True))  # (..., T, S)
    dq = d @ k * scale  # (..., T, d_k)
    dk = d.transpose(-2, -1) @ q * scale  # (..., S, d_k)
    return dq, dk, dv


DQ, DK, DV = "d @ k * scale", "d.transpose(-2, -1) @ q * scale", "w.transpose(-2, -1) @ grad"
RULE, RETURN = "w * (g - (w * g).sum(-1, keepdim=True))", "return dq, dk, dv"
FORWARD = "(q @ k.transpose(-2, -1) * scale).softmax(-1)"
attention_backward.edits_are(
    ("the scale is forgotten on the way back",
     "the scores are scaled products, so 1/√d_k multiplies the gradients of q and of k as well.",
     RULE, RULE + " / scale"),
    ("the scale is missing for the keys", "q and k stand in the same product: both gradients have the scale.",
     DK, "d.transpose(-2, -1) @ q"),
    ("the scale is missing for the queries", "q and k stand in the same product: both gradients have the scale.",
     DQ, "d @ k"),
    ("the scale twice on the way back",
     "the scale stands once in the scores, so it comes back once: 1/√d_k, not 1/d_k.", RULE, RULE + " * scale"),
    ("the scale twice for the keys", "if q was scaled before, its scale is in dk already: once is enough.",
     DK, DK + " * scale"),
    ("no scale on the way forward",
     "the weights are those of the scaled scores: they have to be the ones that attention used.",
     FORWARD, "(q @ k.transpose(-2, -1)).softmax(-1)"),
    ("no scale at all", "softmax(q kᵀ / √d_k): the scale makes the weights, and it comes back with dq and dk.",
     "q.shape[-1] ** -0.5", "1.0"),
    ("the scale from the width of the values", "a score sums over d_k; v has a width of its own.",
     "q.shape[-1] ** -0.5", "v.shape[-1] ** -0.5"),
    ("the scale from the width of the values on the way back",
     "on the way forward it was 1/√d_k, and the same comes back: v has a width of its own.",
     RULE, RULE + " / scale * v.shape[-1] ** -0.5"),
    ("the average is not subtracted",
     "raising one score lowers all other weights; that is the term Σ w g, and w · g alone leaves it out.",
     RULE, "w * g"),
    ("only the diagonal of the softmax's derivative",
     "w (1 − w) is how a weight follows its own score; every other score of the row moves it too.",
     RULE, "w * (1 - w) * g"),
    ("the plain mean instead of the weighted one",
     "the gradient is compared with Σ w g, the average with the weights, not with the mean over the keys.",
     RULE, "w * (g - g.mean(-1, keepdim=True))"),
    ("the sum runs over the queries", "each query has its own softmax: Σ w g goes along the keys of one row.",
     RULE, "w * (g - (w * g).sum(-2, keepdim=True))"),
    ("the sum without the weights",
     "what is subtracted is Σ w g, the average under the weights; Σ g counts every key the same.",
     RULE, "w * (g - g.sum(-1, keepdim=True))"),
    ("the average is added", "raising one score lowers the other weights: Σ w g is subtracted.",
     RULE, "w * (g + (w * g).sum(-1, keepdim=True))"),
    ("the weight in front is missing",
     "w (g − Σ w g): a key that is hardly read hardly moves anything, so its weight stands in front.",
     RULE, "g - (w * g).sum(-1, keepdim=True)"),
    ("the rule of log_softmax", "g − w Σ g belongs to log-softmax; the softmax's rule is w (g − Σ w g).",
     RULE, "g - w * g.sum(-1, keepdim=True)"),
    ("the softmax is passed over",
     "the gradient of the weights is used as that of the scores: the softmax stands between them.", RULE, "g"),
    ("softmax over the queries", "the weights of a query sum to one along the keys, the last axis.",
     "softmax(-1)", "softmax(-2)"),
    ("queries and keys are swapped", "the order of the answer is the order of the arguments: q, k, v.",
     RETURN, "return dk, dq, dv"),
    ("the order v, q, k", "the gradients are right; the order of the answer is that of the arguments: q, k, v.",
     RETURN, "return dv, dq, dk"),
    ("the order v, k, q", "the gradients are right; the order of the answer is that of the arguments: q, k, v.",
     RETURN, "return dv, dk, dq"),
    ("all signs turned", "that is the step downhill; a gradient points uphill.", RETURN, "return -dq, -dk, -dv"),
    ("the arriving gradient is left out", "these are the gradients of the plain sum: grad weighs every output.",
     "scale = q", "grad = torch.ones_like(grad)\n    scale = q"),
    ("the arriving gradient is left out for the values",
     "weightsᵀ @ grad: a value gets what arrives at its readers, not ones.",
     DV, "w.transpose(-2, -1) @ torch.ones_like(grad)"),
    ("the arriving gradient is cut off", "a large gradient is a gradient, too: nothing was to be clipped.",
     "scale = q", "grad = grad.clamp(-10, 10)\n    scale = q"),
    ("the scores in place of the weights", "a value gets what arrives, times how much it was read: the weights.",
     DV, "(q @ k.transpose(-2, -1) * scale).transpose(-2, -1) @ grad"),
    ("every value gets the same", "a value gets what arrives, times how much it was read: the weights.",
     DV, "grad.mean(-2, keepdim=True).expand_as(v) * grad.shape[-2] / v.shape[-2]"),
    ("the weights are not transposed for the values",
     "each value gathers from all its readers: (…, S, T) times (…, T, d_v).", DV, "w @ grad"),
    ("the scores' gradient is not transposed for the keys",
     "each key gathers from all queries: (…, S, T) times (…, T, d_k).", DK, "d @ q * scale"),
    ("keys and values share over the batch",
     "leading axes keep texts apart: the gradients of k and v have them too, and are not summed over them.",
     RETURN, "return dq, *((x.sum(0, True).expand_as(x) if q.ndim > 2 else x) for x in (dk, dv))"),
    ("summed over the batch",
     "leading axes keep texts apart: the gradients of k and v have them too, and are not summed over them.",
     RETURN, "lead = (*range(q.ndim - 2),)\n    return dq, *((x.sum(lead) if lead else x) for x in (dk, dv))"),
    ("exp overflows", "the scores may be large on the way back, too: use a softmax that takes the largest out.",
     FORWARD, "_normal((q @ k.transpose(-2, -1) * scale).exp())"),
)  # fmt: skip


@attention_backward.contract("the gradients of the keys sum to zero")
def _(f):
    for q, k, v, grad in ((*small(), torch.ones(1, 1)), with_grad(torch.Generator().manual_seed(3), 2, 4, 3, 5)):
        dk = f(q, k, v, grad)[1]  # (S, d_k)
        contracts.same("the same step for every key changes nothing", dk.sum(0), torch.zeros(k.shape[-1]))


@attention_backward.contract("the gradients of the values sum to that of the output")
def _(f):
    for q, k, v, grad in ((*small(), torch.ones(1, 1)), with_grad(torch.Generator().manual_seed(4), 2, 4, 3, 5)):
        dv = f(q, k, v, grad)[2]  # (S, d_v)
        contracts.same("all values up by one, every output up by one", dv.sum(0), grad.sum(0))


@attention_backward.contract("a small step changes the output as predicted")
def _(f):
    g = torch.Generator().manual_seed(5)
    q, k, v, grad = (x.double() for x in with_grad(g, 2, 4, 3, 5))
    steps = [1e-4 * randn(g, *x.shape).double() for x in (q, k, v)]  # each of its own shape
    ahead, behind = ([x + sign * step for x, step in zip((q, k, v), steps, strict=True)] for sign in (1, -1))
    change = (attend.reference_answer(*ahead) - attend.reference_answer(*behind)) * grad  # (T, d_v)
    by_hand = sum((x * step).sum() for x, step in zip(f(q, k, v, grad), steps, strict=True)) / 1e-4  # ()
    contracts.same("a small step changes the output as predicted", by_hand, change.sum() / 2e-4)


test_exercise = exercises_of(__name__)
