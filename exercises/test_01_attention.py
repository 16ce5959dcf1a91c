"""Graders of chapter 1: soft look-up, temperature, the stable softmax, the whole formula, its cost."""

import math

import torch

from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "01_attention"
FORMULA = ("tx.attention", "torch.nn.functional.scaled_dot_product_attention")
STEPS = ("tx.similarity", "tx.read_out")


def away_from_zero(shape_k, shape_v):
    """Keys, and values near 10: a blend of them has to be near 10 too."""
    g = torch.Generator().manual_seed(1)
    return randn(g, *shape_k), 10 + randn(g, *shape_v)


def within_range(name, read, v):
    """What was read, (..., T, d_v) or (d_v,), lies between the values v (S, d_v), feature by feature."""
    low, high = v.amin(0), v.amax(0)  # (d_v,), (d_v,)
    if read.shape[-1:] != v.shape[-1:]:
        width, got = f"as wide as a value, {v.shape[-1]}", f"shape {tuple(read.shape)}"
        raise contracts.ContractBroken(name, "the last axis", width, got)
    outside = (~((read >= low - 1e-4) & (read <= high + 1e-4))).nonzero()  # (N, axes)
    if len(outside):
        at = tuple(outside[0].tolist())
        between = f"between {low[at[-1]]:.4g} and {high[at[-1]]:.4g}"
        raise contracts.ContractBroken(name, f"index {at}", between, f"{read[at]:.4g}")


# ── soft_lookup ──────────────────────────────────────────────────────────────────────────────────

soft_lookup = Exercise(
    "soft_lookup", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="01-attention.html#query-key-and-value",
    checks="the blend that one query reads, for several numbers of keys and widths",
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


@soft_lookup.cases
def _(g):
    yield torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0], [3.0]])
    yield randn(g, 2), randn(g, 4, 2), randn(g, 4, 3)
    yield randn(g, 3), randn(g, 5, 3), randn(g, 5, 3)
    yield randn(g, 4), randn(g, 1, 4), randn(g, 1, 2)


@soft_lookup.reference
def _(q, k, v):
    return (k @ q).softmax(dim=0) @ v  # (d_v,)


@soft_lookup.mistake(
    "no softmax",
    "the scores themselves weigh the values: they may be negative and do not sum to one.",
)
def _(q, k, v):
    return (k @ q) @ v  # (d_v,)


@soft_lookup.mistake(
    "a hard look-up",
    "only the best key's value is returned; a soft look-up lets the runners-up have their share.",
)
def _(q, k, v):
    return v[(k @ q).argmax()]  # (d_v,)


@soft_lookup.mistake(
    "divided by the sum, without exp",
    "scores can be negative or sum to zero; exp makes each share positive first.",
)
def _(q, k, v):
    scores = k @ q  # (S,)
    return (scores / scores.sum()) @ v  # (d_v,)


@soft_lookup.mistake(
    "the keys are read, not the values",
    "the weights come from the keys, and what they blend is v: the key is the label, not the content.",
)
def _(q, k, v):
    return (k @ q).softmax(dim=0) @ k  # (d_k,)


@soft_lookup.mistake(
    "every value counts the same",
    "the plain average of the values does not look at the query at all.",
)
def _(q, k, v):
    return v.mean(dim=0)  # (d_v,)


@soft_lookup.mistake(
    "already scaled by √d_k",
    "the loop of this section does not scale yet: that is the formula of a later section.",
)
def _(q, k, v):
    return (k @ q / len(q) ** 0.5).softmax(dim=0) @ v  # (d_v,)


@soft_lookup.mistake("without a sum over the keys", "the weighted values are still to be added up.")
def _(q, k, v):
    return (k @ q).softmax(dim=0)[:, None] * v  # (S, d_v)


@soft_lookup.mistake("the weights themselves", "the weights are right; the blend of the values is to come.")
def _(q, k, v):
    return (k @ q).softmax(dim=0)  # (S,)


@soft_lookup.mistake("the scores themselves", "scores are step one; weights and the blend follow.")
def _(q, k, v):
    return k @ q  # (S,)


@soft_lookup.mistake(
    "the mean of the weighted values",
    "the weights sum to one already, so adding up is the average: a mean divides by S once more.",
)
def _(q, k, v):
    return ((k @ q).softmax(dim=0)[:, None] * v).mean(dim=0)  # (d_v,)


@soft_lookup.mistake(
    "not divided by the sum", "exp makes every share positive; divided by their sum they add up to one."
)
def _(q, k, v):
    return (k @ q).exp() @ v  # (d_v,)


@soft_lookup.mistake(
    "every weight is one",
    "the softmax ran along an axis of length one, where nothing competes: it belongs on the keys.",
)
def _(q, k, v):
    return v.sum(dim=0)  # (d_v,)


@soft_lookup.mistake(
    "each key by itself", "a sigmoid does not know the other keys, so the weights do not sum to one."
)
def _(q, k, v):
    return (k @ q).sigmoid() @ v  # (d_v,)


@soft_lookup.mistake("softmax twice", "weights are not scores: a second softmax makes them nearly even.")
def _(q, k, v):
    return (k @ q).softmax(dim=0).softmax(dim=0) @ v  # (d_v,)


@soft_lookup.mistake(
    "summed over the features",
    "the blend adds up over the S keys and keeps the d_v features of a value.",
)
def _(q, k, v):
    return ((k @ q).softmax(dim=0)[:, None] * v).sum(dim=1)  # (S,)


@soft_lookup.contract("a single key gives its own value")
def _(f):
    v = torch.tensor([[1.0, 3.0, -2.0]])  # (S, d_v)
    got = f(torch.tensor([-1.0, 2.0]), torch.tensor([[0.5, 1.0]]), v)  # (d_v,)
    contracts.same("a single key gives its own value", got, v[0])


@soft_lookup.contract("the blend stays within the range of the values")
def _(f):
    k, v = away_from_zero((4, 3), (4, 2))  # (S, d_k), (S, d_v)
    within_range("the blend stays within the range of the values", f(k[0], k, v), v)


@soft_lookup.contract("the order of the keys does not matter")
def _(f):
    k, v = away_from_zero((4, 3), (4, 2))  # (S, d_k), (S, d_v)
    turned = f(k[0], k.roll(1, 0), v.roll(1, 0))  # (d_v,)
    contracts.same("the order of the keys does not matter", turned, f(k[0], k, v))


# ── sharpen ──────────────────────────────────────────────────────────────────────────────────────

sharpen = Exercise(
    "sharpen", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="01-attention.html#temperature-from-best-to-average",
    checks="weights at temperatures above 0, at 0 with ties, and an error below 0",
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


@sharpen.cases
def _(g):
    yield torch.tensor([2.0, 1.0, 0.0]), 0.5
    yield torch.tensor([[2.0, 2.0, 1.0], [0.0, -1.0, -1.0]]), 0.0
    yield randn(g, 3, 4), 2.0
    yield randn(g, 2, 3, 5), 0.1
    yield torch.tensor([1e-20, 0.0, -1.0]), 0  # the larger one takes all, however little larger
    yield 1000 * randn(g, 2, 4), 0.01
    yield 0.05 * randn(g, 2, 5), 0.03
    yield raises(ValueError, torch.tensor([1.0, 0.0]), -1.0)
    yield raises(ValueError, torch.tensor([1.0, 0.0]), -0.1)


@sharpen.reference
def _(scores, temperature):
    if temperature < 0:
        raise ValueError(f"temperature = {temperature}: expected 0 or more")
    if temperature == 0:
        best = (scores == scores.amax(dim=-1, keepdim=True)).to(scores.dtype)  # (..., S)
        return best / best.sum(dim=-1, keepdim=True)  # (..., S)
    return (scores / temperature).softmax(dim=-1)  # (..., S)


def _variant(at_zero, above, refuse=True):
    """A version of `sharpen` with one part exchanged."""

    def answer(scores, temperature):
        if refuse and temperature < 0:
            raise ValueError("below zero")
        return at_zero(scores) if temperature == 0 else above(scores, temperature)

    return answer


def _equal_shares(best):
    return best / best.sum(dim=-1, keepdim=True)  # (..., S)


def _shared(scores):
    return _equal_shares(scores == scores.amax(dim=-1, keepdim=True))  # (..., S)


def _divided(scores, temperature):
    return (scores / temperature).softmax(dim=-1)  # (..., S)


sharpen.mistake(
    "multiplied instead of divided",
    "a large temperature must make the weights flat: divide the scores by it.",
)(_variant(_shared, lambda s, t: (s * t).softmax(dim=-1)))

sharpen.mistake(
    "divided after the softmax",
    "dividing weights by τ leaves their proportions as they were, and they no longer sum to one.",
)(_variant(_shared, lambda s, t: s.softmax(dim=-1) / t))

sharpen.mistake(
    "one winner at temperature 0",
    "argmax names a single winner; the limit gives equal scores equal weights.",
)(_variant(lambda s: torch.nn.functional.one_hot(s.argmax(-1), s.shape[-1]).to(s.dtype), _divided))

sharpen.mistake(
    "ties are not shared out",
    "each of two winners gets the weight 1, so the row sums to 2.",
)(_variant(lambda s: (s == s.amax(dim=-1, keepdim=True)).to(s.dtype), _divided))

sharpen.mistake(
    "division by zero",
    "scores / 0 are infinities, and softmax makes NaN of them: the limit needs a line of its own.",
)(_variant(lambda s: (s / 0.0).softmax(dim=-1), _divided))

sharpen.mistake(
    "a small number instead of 0",
    "at any τ above 0, scores that differ by less than τ share; the limit gives all to the larger.",
)(_variant(lambda s: (s / 1e-6).softmax(dim=-1), _divided))

sharpen.mistake(
    "temperature 0 gives the average",
    "that is the limit at the other end: very large temperatures give equal weights.",
)(_variant(lambda s: torch.full_like(s, 1 / s.shape[-1]), _divided))

sharpen.mistake(
    "the plain softmax at temperature 0",
    "that is τ = 1; the limit towards 0 leaves nothing to any but the largest.",
)(_variant(lambda s: s.softmax(dim=-1), _divided))

sharpen.mistake(
    "the largest of the whole tensor at temperature 0",
    "every row has its own largest score: amax over the last axis, with keepdim=True.",
)(_variant(lambda s: _equal_shares(s == s.max()), _divided))

sharpen.mistake(
    "shared among the winners of all rows",
    "the winners are right; each row is divided by its own number of them, along the last axis.",
)(_variant(lambda s: (s == s.amax(-1, keepdim=True)) / (s == s.amax(-1, keepdim=True)).sum(), _divided))

sharpen.mistake(
    "True and False at temperature 0",
    "which entries win is right; as weights they are numbers, and the winners of a row share one.",
)(_variant(lambda s: s == s.amax(dim=-1, keepdim=True), _divided))

sharpen.mistake(
    "zeros and ones as whole numbers",
    "one_hot gives integers and names a single winner; weights are floats, and equal scores share.",
)(_variant(lambda s: torch.nn.functional.one_hot(s.argmax(-1), s.shape[-1]), _divided))

sharpen.mistake(
    "the temperature is ignored", "every τ above 0 gives the same weights: divide the scores by it."
)(_variant(_shared, lambda s, t: s.softmax(dim=-1)))

sharpen.mistake("divided by the root of the temperature", "the scores are divided by τ itself.")(
    _variant(_shared, lambda s, t: (s / t**0.5).softmax(dim=-1))
)

sharpen.mistake(
    "powers of the weights, not divided by their sum",
    "p to the power 1/τ has the right proportions; each row still has to sum to one.",
)(_variant(_shared, lambda s, t: s.softmax(dim=-1) ** (1 / t)))

sharpen.mistake(
    "exp overflows",
    "scores / 0.01 are large: softmax takes each row's largest out before its exp.",
)(_variant(_shared, lambda s, t: _normal((s / t).exp())))

sharpen.mistake(
    "a negative temperature is let through",
    "below 0 the worst match would get the largest weight; that needs an error, not a result.",
)(_variant(_shared, _divided, refuse=False))

sharpen.mistake(
    "softmax over the first axis",
    "each query shares out among its keys, and the keys are the last axis.",
)(_variant(_shared, lambda s, t: (s / t).softmax(dim=0)))


@sharpen.contract("every row of weights sums to one")
def _(f):
    scores = torch.tensor([[2.0, 2.0, 1.0], [0.0, 1.0, -1.0]])  # (T, S)
    for temperature in (0.0, 0.5, 3.0):
        contracts.rows_sum_to_one(f, scores, temperature)


@sharpen.contract("equal scores get equal weights")
def _(f):
    for temperature in (0.0, 1.0):
        got = f(torch.tensor([1.0, 1.0, 1.0, 1.0]), temperature)  # (S,)
        contracts.same(f"equal shares at τ = {temperature:g}", got, torch.full((4,), 0.25))


# ── stable_softmax ───────────────────────────────────────────────────────────────────────────────

stable_softmax = Exercise(
    "stable_softmax", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="01-attention.html#softmax-without-overflow",
    checks="softmax over the last axis, also for scores of ±1000",
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


@stable_softmax.cases
def _(g):
    yield (torch.tensor([[1.0, 2.0, 3.0]]),)
    yield (randn(g, 2, 3),)
    yield (randn(g, 3, 3),)
    yield (torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]]),)
    yield (torch.tensor([[300.0, 0.0, -300.0]]),)
    yield (torch.tensor([0.0, -math.inf, 1.0]),)
    yield (3 * randn(g, 2, 4, 5),)


@stable_softmax.reference
def _(scores):
    return torch.softmax(scores, dim=-1)  # (..., S)


def _normal(e):
    return e / e.sum(dim=-1, keepdim=True)  # (..., S)


@stable_softmax.mistake("no maximum subtracted", "exp(1000) is infinite, and ∞ / ∞ is NaN.")
def _(scores):
    return _normal(scores.exp())  # (..., S)


@stable_softmax.mistake(
    "one maximum for all rows",
    "a row far below the largest score of the whole tensor becomes 0 / 0: each row needs its own.",
)
def _(scores):
    return _normal((scores - scores.max()).exp())  # (..., S)


@stable_softmax.mistake(
    "the mean subtracted",
    "the largest exponent is not 0, so a wide row overflows still; and with a −inf in it, so is the mean.",
)
def _(scores):
    return _normal((scores - scores.mean(dim=-1, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "the minimum subtracted",
    "now the largest exponent is as large as the row is wide, and with a −inf in it the minimum is −inf.",
)
def _(scores):
    return _normal((scores - scores.amin(dim=-1, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "scores clipped",
    "cutting scores off at a limit makes all large ones equal; subtracting keeps their differences.",
)
def _(scores):
    return _normal(scores.clamp(-80, 80).exp())  # (..., S)


@stable_softmax.mistake(
    "NaN and infinity replaced afterwards",
    "nan_to_num hides the overflow: the answer is a number, and the wrong one.",
)
def _(scores):
    return _normal(scores.exp()).nan_to_num(0.0)  # (..., S)


@stable_softmax.mistake(
    "softmax over the first axis", "the keys are the last axis: each row has to sum to one."
)
def _(scores):
    e = (scores - scores.amax(dim=0)).exp()  # (..., S)
    return e / e.sum(dim=0)  # (..., S)


@stable_softmax.mistake(
    "divided by the sum of everything", "all rows together sum to one; each row has to on its own."
)
def _(scores):
    e = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (..., S)
    return e / e.sum()  # (..., S)


@stable_softmax.mistake("not divided", "the exponentials are positive, and do not sum to one yet.")
def _(scores):
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (..., S)


@stable_softmax.mistake(
    "the largest of each column subtracted",
    "what is subtracted has to be the same along a row: the row's own largest, (…, 1).",
)
def _(scores):
    return _normal((scores - scores.amax(dim=0, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "summed over the first axis",
    "the largest is each row's own; the sum has to run along the same axis, the last.",
)
def _(scores):
    e = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (..., S)
    return e / e.sum(dim=0, keepdim=True)  # (..., S)


@stable_softmax.mistake(
    "divided by the largest score",
    "division changes the differences, and softmax depends on nothing else: subtract.",
)
def _(scores):
    return _normal((scores / scores.amax(dim=-1, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "the largest absolute score subtracted",
    "in a row of −1000 and −1001 that leaves exp(−2000) = 0, and 0 / 0: take the largest, sign included.",
)
def _(scores):
    return _normal((scores - scores.abs().amax(dim=-1, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "the largest added", "what is subtracted in every exponent cancels; here the exponents have doubled."
)
def _(scores):
    return _normal((scores + scores.amax(dim=-1, keepdim=True)).exp())  # (..., S)


@stable_softmax.mistake(
    "the scores themselves divided", "the largest is subtracted, exp is missing: shares must be positive."
)
def _(scores):
    return _normal(scores - scores.amax(dim=-1, keepdim=True))  # (..., S)


@stable_softmax.mistake(
    "−inf replaced by 0", "−inf means weight 0; a score of 0 is a score like any other, and gets a share."
)
def _(scores):
    return torch.softmax(scores.masked_fill(scores.isinf(), 0.0), dim=-1)  # (..., S)


@stable_softmax.mistake("the logarithm of the weights", "log-softmax: its exp are the weights.")
def _(scores):
    return torch.log_softmax(scores, dim=-1)  # (..., S)


@stable_softmax.mistake(
    "one added to the sum", "the row then sums to less than one: only its own exponentials divide."
)
def _(scores):
    e = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (..., S)
    return e / (1 + e.sum(dim=-1, keepdim=True))  # (..., S)


@stable_softmax.mistake(
    "the sums of the rows lie on the columns",
    "without keepdim=True a sum (…,) is lined up with the keys: row t needs the sum of row t.",
)
def _(scores):
    e = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (..., S)
    return e / e.sum(dim=-1)


@stable_softmax.contract("every row of weights sums to one")
def _(f):
    contracts.rows_sum_to_one(f, torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]]))


@stable_softmax.contract("adding 1000 to a row changes nothing")
def _(f):
    scores = torch.tensor([[2.0, 1.0, 0.0]])  # (T, S)
    contracts.same("adding 1000 to a row changes nothing", f(scores + 1000), f(scores))


@stable_softmax.contract("rows do not influence each other")
def _(f):
    contracts.batch_independence(f, torch.tensor([[1.0, 0.0], [500.0, 499.0]]))


# ── attend ───────────────────────────────────────────────────────────────────────────────────────

attend = Exercise(
    "attend", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="01-attention.html#softmax-without-overflow",
    checks="softmax(QKᵀ/√d_k)V for matrices and with leading axes, and an error where shapes do not fit",
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


def _formula(q, k, v, scale=None, dim=-1, weigh=torch.softmax):
    """The formula with one part that can be exchanged."""
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return weigh(q @ k.transpose(-2, -1) * scale, dim) @ v  # (..., T, d_v)


@attend.cases
def _(g):
    yield randn(g, 2, 4), randn(g, 3, 4), randn(g, 3, 2)
    yield randn(g, 4, 4), randn(g, 4, 4), randn(g, 4, 4)
    yield randn(g, 2, 3, 5), randn(g, 2, 4, 5), randn(g, 2, 4, 6)
    yield randn(g, 2, 3, 1, 8), randn(g, 2, 3, 5, 8), randn(g, 2, 3, 5, 4)
    yield 40 * randn(g, 2, 16), 40 * randn(g, 3, 16), randn(g, 3, 2)
    yield raises(ValueError, randn(g, 2, 4), randn(g, 3, 5), randn(g, 3, 2))
    yield raises(ValueError, randn(g, 2, 4), randn(g, 3, 4), randn(g, 2, 2))


@attend.reference
def _(q, k, v):
    return _formula(q, k, v)  # (..., T, d_v)


@attend.mistake("no scale", "without 1/√d_k the scores grow with the width and the weights harden.")
def _(q, k, v):
    return _formula(q, k, v, scale=1.0)  # (..., T, d_v)


@attend.mistake(
    "divided by d_k",
    "it is the standard deviation of a score that is √d_k, not d_k. (Or were both q and the scores "
    "divided by √d_k? Once is enough.)",
)
def _(q, k, v):
    return _formula(q, k, v, scale=1 / q.shape[-1])  # (..., T, d_v)


@attend.mistake("multiplied by √d_k", "the scale makes scores smaller: divide by √d_k.")
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[-1] ** 0.5)  # (..., T, d_v)


@attend.mistake(
    "divided by the root of the number of keys",
    "a score sums over the width d_k, the last axis of q; the number of keys has no part in it.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=k.shape[-2] ** -0.5)  # (..., T, d_v)


@attend.mistake(
    "divided by the root of the value width",
    "a score sums over d_k, the width that q and k share; v has a width of its own.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=v.shape[-1] ** -0.5)  # (..., T, d_v)


@attend.mistake(
    "softmax over the queries",
    "dim=-2 makes the queries compete for each key; every query shares out among the keys, dim=-1.",
)
def _(q, k, v):
    return _formula(q, k, v, dim=-2)  # (..., T, d_v)


@attend.mistake(
    "softmax over axis 1",
    "axis 1 is the keys' only for two axes: counted from the right it is always the last.",
)
def _(q, k, v):
    return _formula(q, k, v, dim=1)  # (..., T, d_v)


@attend.mistake(
    "scaled after the softmax",
    "the weights no longer sum to one: scale the scores, before the softmax.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=1.0) / q.shape[-1] ** 0.5  # (..., T, d_v)


@attend.mistake(
    "softmax without the maximum subtracted",
    "large scores overflow exp, and ∞ / ∞ is NaN.",
)
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: _normal(s.exp()))  # (..., T, d_v)


@attend.mistake(
    "no softmax", "the scores weigh the values directly: they may be negative and sum to anything."
)
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: s)  # (..., T, d_v)


@attend.mistake(
    "the keys reshaped, not transposed",
    "reshape gives the right shape with the numbers in reading order; transpose turns rows into columns.",
)
def _(q, k, v):
    _formula(q, k, v)  # refuses what has to be refused
    turned = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])  # (..., d_k, S)
    return (q @ turned * q.shape[-1] ** -0.5).softmax(-1) @ v  # (..., T, d_v)


@attend.mistake(
    "divided by the root of the number of queries",
    "a score sums over the width d_k, the last axis of q; the number of queries has no part in it.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[-2] ** -0.5)  # (..., T, d_v)


@attend.mistake(
    "the width read from axis 1",
    "axis 1 is the width only for two axes: counted from the right it is always the last.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[1] ** -0.5)  # (..., T, d_v)


@attend.mistake(
    "softmax over axis 0", "axis 0 are the queries, or the batch: every query shares out among its keys."
)
def _(q, k, v):
    return _formula(q, k, v, dim=0)  # (..., T, d_v)


@attend.mistake(
    "softmax over everything", "every query has its own row of weights: all rows are not one softmax."
)
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: s.flatten().softmax(0).view(s.shape))  # (..., T, d_v)


@attend.mistake(
    "a causal mask",
    "no query was to be kept from later keys: masks come in chapter 3, and not every attention has one.",
)
def _(q, k, v):
    def weigh(s, dim):
        return s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -math.inf).softmax(dim)

    return _formula(q, k, v, weigh=weigh)  # (..., T, d_v)


@attend.mistake(
    "output and weights as a pair", "the output is right; the weights are not asked for: return one tensor."
)
def _(q, k, v):
    out = _formula(q, k, v)  # (..., T, d_v)
    return out, (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # …, (..., T, S)


@attend.mistake("the weights themselves", "the weights are right; @ v is what each query reads.")
def _(q, k, v):
    _formula(q, k, v)  # refuses what has to be refused
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # (..., T, S)


@attend.mistake(
    "the keys are read, not the values", "the weights come from the keys, and what they blend is v."
)
def _(q, k, v):
    _formula(q, k, v)  # refuses what has to be refused
    return _formula(q, k, k)  # (..., T, d_k)


@attend.mistake("softmax twice", "weights are not scores: a second softmax makes them nearly even.")
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: s.softmax(dim).softmax(dim))  # (..., T, d_v)


@attend.contract("a single key gives its own value")
def _(f):
    contracts.one_token_is_its_value(f, torch.tensor([[1.0, 3.0, -2.0]]))


@attend.contract("a read-out stays within the range of the values")
def _(f):
    k, v = away_from_zero((4, 3), (4, 2))  # (S, d_k), (S, d_v)
    within_range("a read-out stays within the range of the values", f(k[:3], k, v), v)


@attend.contract("the order of the keys does not matter")
def _(f):
    k, v = away_from_zero((4, 3), (4, 2))  # (S, d_k), (S, d_v)
    turned = f(k[:3], k.roll(1, 0), v.roll(1, 0))  # (T, d_v)
    contracts.same("the order of the keys does not matter", turned, f(k[:3], k, v))


@attend.contract("batch rows are independent")
def _(f):
    x = randn(torch.Generator().manual_seed(2), 2, 3, 4)  # (B, T, d_k)
    contracts.batch_independence(lambda x: f(x, x, x), x)


# ── effective_keys ───────────────────────────────────────────────────────────────────────────────

effective_keys = Exercise(
    "effective_keys", chapter=CHAPTER, kind="measure", level=2, minutes=10, points=3,
    page="01-attention.html#where-the-square-root-comes-from",
    checks="e to the entropy of every row, from one-hot rows (1) to uniform ones (S)",
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
    yield (torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]),)
    yield (torch.full((5,), 0.2),)
    yield (randn(g, 3, 4).softmax(-1),)
    yield ((3 * randn(g, 2, 3, 6)).softmax(-1),)
    yield (torch.tensor([[0.9, 0.1, 0.0, 0.0]]),)


@effective_keys.reference
def _(weights):
    return torch.special.entr(weights).sum(dim=-1).exp()  # (...)


@effective_keys.mistake(
    "0 · ln 0 is NaN", "ln 0 is −∞ and 0 · −∞ is NaN; in the limit the term is 0, so a zero adds nothing."
)
def _(weights):
    return (-(weights * weights.log()).sum(dim=-1)).exp()  # (...)


@effective_keys.mistake("the entropy itself", "nats are a logarithm; e to that power is a number of keys.")
def _(weights):
    return torch.special.entr(weights).sum(dim=-1)  # (...)


@effective_keys.mistake(
    "e to an entropy in bits", "with log2 the base is 2: take 2 to that power, or natural logarithms."
)
def _(weights):
    return (torch.special.entr(weights).sum(dim=-1) / math.log(2)).exp()  # (...)


@effective_keys.mistake(
    "2 to an entropy in nats", "with natural logarithms the base is e: exp takes it back."
)
def _(weights):
    return 2 ** torch.special.entr(weights).sum(dim=-1)  # (...)


@effective_keys.mistake(
    "the sign is lost", "Σ w ln w is negative, so this is one divided by the number of keys."
)
def _(weights):
    return (-torch.special.entr(weights).sum(dim=-1)).exp()  # (...)


@effective_keys.mistake(
    "one over the sum of squares",
    "the participation ratio agrees for one-hot and uniform rows and differs in between.",
)
def _(weights):
    return 1 / weights.square().sum(dim=-1)  # (...)


@effective_keys.mistake("keys with any weight", "a key with a weight of 0.001 counts as a whole one here.")
def _(weights):
    return (weights > 0).sum(dim=-1).to(weights.dtype)  # (...)


@effective_keys.mistake(
    "keys with any weight, counted", "a key with a weight of 0.001 counts as a whole one here."
)
def _(weights):
    return (weights > 0).sum(dim=-1)  # (...)


@effective_keys.mistake(
    "one over the largest weight",
    "that looks at the winner alone; the entropy also sees how the rest is spread.",
)
def _(weights):
    return 1 / weights.amax(dim=-1)  # (...)


@effective_keys.mistake(
    "NaN replaced after the sum",
    "one zero weight makes the sum of its row NaN: the terms have to be repaired, before they are added.",
)
def _(weights):
    return (-(weights * weights.log()).sum(dim=-1)).nan_to_num(0.0).exp()  # (...)


@effective_keys.mistake("exp of every term", "the terms are added first: e to their sum.")
def _(weights):
    return torch.special.entr(weights).exp().sum(dim=-1)  # (...)


@effective_keys.mistake(
    "the entropy of all rows together", "each query has its own number: sum over the last axis alone."
)
def _(weights):
    return torch.special.entr(weights).sum().exp()  # ()


@effective_keys.mistake("e to the average entropy", "each query has its own number: no mean over the rows.")
def _(weights):
    return torch.special.entr(weights).sum(dim=-1).mean().exp()  # ()


@effective_keys.mistake(
    "summed over the queries", "a row belongs to one query: the sum runs over its keys, the last axis."
)
def _(weights):
    return torch.special.entr(weights).sum(dim=0).exp()


@effective_keys.mistake(
    "a softmax of the weights", "the rows sum to one already: they are weights, not scores."
)
def _(weights):
    return torch.special.entr(weights.softmax(dim=-1)).sum(dim=-1).exp()  # (...)


@effective_keys.mistake(
    "a share of the largest entropy", "divided by ln S, the entropy is between 0 and 1 and no longer in nats."
)
def _(weights):
    return (torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])).exp()  # (...)


@effective_keys.mistake("one number for all rows", "each query has its own number: sum over the last axis.")
def _(weights):
    return torch.special.entr(weights).sum(dim=-1).exp().mean()  # ()


@effective_keys.mistake(
    "the mean of the terms", "an entropy is the sum over the keys; the mean divides it by S."
)
def _(weights):
    return torch.special.entr(weights).mean(dim=-1).exp()  # (...)


@effective_keys.contract("one key that takes everything counts as one")
def _(f):
    got = f(torch.tensor([[0.0, 1.0, 0.0]]))  # (T,)
    contracts.same("a one-hot row counts one key", got, torch.tensor([1.0]))


@effective_keys.contract("S equal weights count as S keys")
def _(f):
    contracts.same("equal weights count every key", f(torch.full((1, 8), 0.125)), torch.tensor([8.0]))


@effective_keys.contract("rows do not influence each other")
def _(f):
    contracts.batch_independence(f, torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))


# ── batched_attention ────────────────────────────────────────────────────────────────────────────

batched_attention = Exercise(
    "batched_attention", chapter=CHAPTER, kind="debug", level=2, minutes=10, points=3,
    page="01-attention.html#one-wrong-character",
    checks="attention for a batch, q (B, T, d_k), k (B, S, d_k), v (B, S, d_v), all sizes different",
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
    yield randn(g, 1, 2, 5), randn(g, 1, 3, 5), randn(g, 1, 3, 4)
    yield randn(g, 2, 4, 4), randn(g, 2, 4, 4), randn(g, 2, 4, 4)
    yield randn(g, 3, 5, 2), randn(g, 3, 4, 2), randn(g, 3, 4, 6)
    yield 2 * randn(g, 4, 1, 9), randn(g, 4, 6, 9), randn(g, 4, 6, 3)


@batched_attention.reference
def _(q, k, v):
    return _formula(q, k, v)  # (B, T, d_v)


@batched_attention.mistake(
    "both axes still count from the left",
    "q.shape[1] and dim=1 meant the width and the keys for matrices; with a batch both are the queries.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[1] ** -0.5, dim=1)  # (B, T, d_v)


@batched_attention.mistake(
    "the softmax is repaired, the scale is not",
    "q.shape[1] is the number of queries now; the width d_k is q.shape[-1].",
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[1] ** -0.5)  # (B, T, d_v)


@batched_attention.mistake(
    "the scale is repaired, the softmax is not",
    "dim=1 is the axis of the queries now; the keys are the last axis.",
)
def _(q, k, v):
    return _formula(q, k, v, dim=1)  # (B, T, d_v)


@batched_attention.mistake(
    "softmax over the batch", "dim=0 makes the texts of a batch compete with each other."
)
def _(q, k, v):
    return _formula(q, k, v, dim=0)  # (B, T, d_v)


@batched_attention.mistake(
    "the scale is taken from the number of keys",
    "the sum in a score runs over d_k, the last axis of q and k, not over the S keys.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=k.shape[1] ** -0.5)  # (B, T, d_v)


@batched_attention.mistake(
    "the scale is taken from the batch", "q.shape[0] is the number of texts; a score sums over d_k."
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[0] ** -0.5)  # (B, T, d_v)


@batched_attention.mistake("the scale is gone", "the axis was wrong, the scale itself is needed: 1/√d_k.")
def _(q, k, v):
    return _formula(q, k, v, scale=1.0)  # (B, T, d_v)


@batched_attention.mistake(
    "the scale is taken from the values", "a score sums over d_k, the width of q and k; v has its own, d_v."
)
def _(q, k, v):
    return _formula(q, k, v, scale=v.shape[-1] ** -0.5)  # (B, T, d_v)


@batched_attention.mistake(
    "the root is gone", "the right width, and the power was −0.5: divide by √d_k, not by d_k."
)
def _(q, k, v):
    return _formula(q, k, v, scale=1 / q.shape[-1])  # (B, T, d_v)


@batched_attention.mistake("multiplied by √d_k", "the power was −0.5: the scale makes the scores smaller.")
def _(q, k, v):
    return _formula(q, k, v, scale=q.shape[-1] ** 0.5)  # (B, T, d_v)


@batched_attention.mistake(
    "the keys viewed, not transposed",
    "view gives the right shape with the numbers in reading order; the transpose was right already.",
)
def _(q, k, v):
    turned = k.reshape(k.shape[0], k.shape[2], k.shape[1])  # (B, d_k, S)
    return (q @ turned * q.shape[-1] ** -0.5).softmax(-1) @ v  # (B, T, d_v)


@batched_attention.mistake(
    "the softmax is right, the scale is taken from the whole of q",
    "numel counts batch and queries too; a score sums over d_k, the last axis.",
)
def _(q, k, v):
    return _formula(q, k, v, scale=q.numel() ** -0.5)  # (B, T, d_v)


@batched_attention.mistake("softmax over everything", "every query of every text has its own row of weights.")
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: s.flatten().softmax(0).view(s.shape))  # (B, T, d_v)


@batched_attention.mistake(
    "shared out along both axes", "one softmax, over the keys: the one over the queries goes."
)
def _(q, k, v):
    return _formula(q, k, v, weigh=lambda s, dim: s.softmax(1).softmax(2))  # (B, T, d_v)


@batched_attention.mistake(
    "the texts see each other",
    "the batch was flattened into one long text; every text has its own keys.",
)
def _(q, k, v):
    flat = _formula(*(x.reshape(-1, x.shape[-1]) for x in (q, k, v)))  # (B*T, d_v)
    return flat.reshape(*q.shape[:-1], v.shape[-1])  # (B, T, d_v)


@batched_attention.contract("a single key gives its own value")
def _(f):
    contracts.one_token_is_its_value(f, torch.tensor([[[1.0, 3.0, -2.0]]]))


@batched_attention.contract("a read-out stays within the range of the values")
def _(f):
    k, v = away_from_zero((1, 5, 3), (1, 5, 4))  # (B, S, d_k), (B, S, d_v)
    within_range("a read-out stays within the range of the values", f(k[:, :2], k, v), v[0])


@batched_attention.contract("a query reads the same whoever else asks")
def _(f):
    k, v = away_from_zero((1, 5, 3), (1, 5, 4))  # (B, S, d_k), (B, S, d_v)
    whole = f(k[:, :4], k, v)  # (B, T, d_v)
    alone = f(k[:, :1], k, v)  # (B, 1, d_v)
    contracts.same("a query reads the same whoever else asks", whole[:, :1], alone)


# ── count_flops ──────────────────────────────────────────────────────────────────────────────────

count_flops = Exercise(
    "count_flops", chapter=CHAPTER, kind="predict", level=1, minutes=5, points=2,
    page="01-attention.html#what-it-costs",
    checks="the operations of the two matrix products, at sizes that the page does not show",
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
    yield 128, 128, 64, 64
    yield 1, 4096, 64, 64
    for _ in range(3):
        yield tuple(torch.randint(2, 300, (4,), generator=g).tolist())


@count_flops.reference
def _(T, S, d_k, d_v):
    return 2 * T * S * (d_k + d_v)


@count_flops.mistake("multiply-adds counted once", "a multiplication and an addition are two operations.")
def _(T, S, d_k, d_v):
    return T * S * (d_k + d_v)


@count_flops.mistake("only the scores", "reading the values is a second product, weights times V.")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k


@count_flops.mistake("only the read-out", "comparing every query with every key is a product too.")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_v


@count_flops.mistake(
    "values as wide as keys", "the second product has the width of the values, d_v, which may differ."
)
def _(T, S, d_k, d_v):
    return 4 * T * S * d_k


@count_flops.mistake(
    "as many keys as queries", "T queries meet S keys: T · S pairs, T² only in self-attention."
)
def _(T, S, d_k, d_v):
    return 2 * T * T * (d_k + d_v)


@count_flops.mistake("sizes added instead of multiplied", "every query meets every key, so T and S multiply.")
def _(T, S, d_k, d_v):
    return 2 * (T + S) * (d_k + d_v)


@count_flops.mistake("widths multiplied", "the two products happen one after the other: their costs add.")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k * d_v


@count_flops.mistake(
    "n − 1 additions",
    "exact for the sums, but the convention here, and in PyTorch's counter, is n of each.",
)
def _(T, S, d_k, d_v):
    return T * S * (2 * d_k - 1) + T * d_v * (2 * S - 1)


@count_flops.mistake(
    "keys as wide as values", "the first product has the width of the keys, d_k, which may differ."
)
def _(T, S, d_k, d_v):
    return 4 * T * S * d_v


@count_flops.mistake(
    "as many queries as keys", "T queries meet S keys: T · S pairs, S² only in self-attention."
)
def _(T, S, d_k, d_v):
    return 2 * S * S * (d_k + d_v)


@count_flops.mistake("the larger product alone", "the two products are two costs: they add.")
def _(T, S, d_k, d_v):
    return 2 * T * S * max(d_k, d_v)


for extra in range(1, 7):
    count_flops.mistake(
        f"{extra} more for every weight",
        "softmax or scale was counted as well: the count here, like PyTorch's, is of the two products.",
    )(lambda T, S, d_k, d_v, extra=extra: 2 * T * S * (d_k + d_v) + extra * T * S)


@count_flops.mistake("twice the scores only", "the read-out's multiply-adds are two operations each, too.")
def _(T, S, d_k, d_v):
    return T * S * (2 * d_k + d_v)


@count_flops.mistake("twice the read-out only", "the scores' multiply-adds are two operations each, too.")
def _(T, S, d_k, d_v):
    return T * S * (d_k + 2 * d_v)


@count_flops.mistake(
    "every product counted as its result",
    "T · S and T · d_v numbers come out; each of them is a sum of d_k or S products.",
)
def _(T, S, d_k, d_v):
    return T * S + T * d_v


@count_flops.mistake(
    "the read-out sums over d_k",
    "weights (T, S) times V (S, d_v): each number that is read sums over the S keys.",
)
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k + 2 * T * d_k * d_v


@count_flops.mistake(
    "four for every pair and width",
    "the factor 2 stands for a multiply-add once: not for each product again.",
)
def _(T, S, d_k, d_v):
    return 4 * T * S * (d_k + d_v)


@count_flops.mistake("two numbers", "one number is asked for: the costs of the two products, added.")
def _(T, S, d_k, d_v):
    return 2 * T * S * d_k, 2 * T * S * d_v


@count_flops.contract("twice the queries and keys, four times the work")
def _(f):
    ratio = f(64, 64, 8, 8) / max(f(32, 32, 8, 8), 1)
    contracts.same("four times the work", torch.tensor(float(ratio)), torch.tensor(4.0))


@count_flops.contract("one query costs a T-th of all")
def _(f):
    ratio = f(10, 32, 8, 4) / max(f(1, 32, 8, 4), 1)
    contracts.same("one query costs a T-th of all", torch.tensor(float(ratio)), torch.tensor(10.0))


# ── attention_backward ───────────────────────────────────────────────────────────────────────────

attention_backward = Exercise(
    "attention_backward", chapter=CHAPTER, kind="derive", level=3, minutes=40, points=5,
    page="01-attention.html#further-softmax-backward",
    checks="the gradients of q, k and v, for matrices and with leading axes, against autograd",
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


@attention_backward.cases
def _(g):
    yield randn(g, 1, 2), randn(g, 2, 2), randn(g, 2, 1), torch.ones(1, 1)
    yield randn(g, 2, 3), randn(g, 4, 3), randn(g, 4, 5), randn(g, 2, 5)
    yield randn(g, 4, 4), randn(g, 4, 4), randn(g, 4, 4), randn(g, 4, 4)
    yield randn(g, 2, 3, 8), randn(g, 2, 5, 8), randn(g, 2, 5, 4), randn(g, 2, 3, 4)
    yield 16 * randn(g, 3, 8), 16 * randn(g, 4, 8), randn(g, 4, 2), randn(g, 3, 2)  # exp would overflow


def _through(w, g):
    """The softmax's rule: the gradient of the scores from that of the weights."""
    return w * (g - (w * g).sum(-1, keepdim=True))  # (..., T, S)


def _backward(q, k, v, grad, q_scale=None, k_scale=None, through=_through, forward=None, dim=-1):
    """All gradients by hand; the scales, the softmax's axis and its rule can be exchanged."""
    scale = q.shape[-1] ** -0.5
    w = (q @ k.transpose(-2, -1) * (scale if forward is None else forward)).softmax(dim)  # (..., T, S)
    g = grad @ v.transpose(-2, -1)  # (..., T, S)
    d = through(w, g)  # (..., T, S)
    dq = d @ k * (scale if q_scale is None else q_scale)  # (..., T, d_k)
    dk = d.transpose(-2, -1) @ q * (scale if k_scale is None else k_scale)  # (..., S, d_k)
    return dq, dk, w.transpose(-2, -1) @ grad  # (..., T, d_k), (..., S, d_k), (..., S, d_v)


@attention_backward.reference
def _(q, k, v, grad):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        (_formula(q, k, v) * grad).sum().backward()
    return q.grad, k.grad, v.grad  # (..., T, d_k), (..., S, d_k), (..., S, d_v)


@attention_backward.mistake(
    "the scale is forgotten on the way back",
    "the scores are scaled products, so 1/√d_k multiplies the gradients of q and of k as well.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, q_scale=1.0, k_scale=1.0)


@attention_backward.mistake(
    "the scale is missing for the keys", "q and k stand in the same product: both gradients have the scale."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, k_scale=1.0)


@attention_backward.mistake(
    "the scale is missing for the queries",
    "q and k stand in the same product: both gradients have the scale.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, q_scale=1.0)


@attention_backward.mistake(
    "the average is not subtracted",
    "raising one score lowers all other weights; that is the term Σ w g, and w · g alone leaves it out.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * g)


@attention_backward.mistake(
    "only the diagonal of the softmax's derivative",
    "w (1 − w) is how a weight follows its own score; every other score of the row moves it too.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * (1 - w) * g)


@attention_backward.mistake(
    "the plain mean instead of the weighted one",
    "the gradient is compared with Σ w g, the average with the weights, not with the mean over the keys.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * (g - g.mean(-1, keepdim=True)))


@attention_backward.mistake(
    "the sum runs over the queries",
    "each query has its own softmax: Σ w g goes along the keys of one row.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * (g - (w * g).sum(-2, keepdim=True)))


@attention_backward.mistake(
    "the softmax is passed over",
    "the gradient of the weights is used as that of the scores: the softmax stands between them.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: g)


@attention_backward.mistake(
    "queries and keys are swapped", "the order of the answer is the order of the arguments: q, k, v."
)
def _(q, k, v, grad):
    dq, dk, dv = _backward(q, k, v, grad)
    return dk, dq, dv


@attention_backward.mistake(
    "the scale twice on the way back",
    "the scale stands once in the scores, so it comes back once: 1/√d_k, not 1/d_k.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, q_scale=1 / q.shape[-1], k_scale=1 / q.shape[-1])


@attention_backward.mistake(
    "the scale twice for the keys", "if q was scaled before, its scale is in dk already: once is enough."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, k_scale=1 / q.shape[-1])


@attention_backward.mistake(
    "no scale on the way forward",
    "the weights are those of the scaled scores: they have to be the ones that attention used.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, forward=1.0)


@attention_backward.mistake(
    "no scale at all", "softmax(q kᵀ / √d_k): the scale makes the weights, and it comes back with dq and dk."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, forward=1.0, q_scale=1.0, k_scale=1.0)


@attention_backward.mistake(
    "the scale from the width of the values", "a score sums over d_k; v has a width of its own."
)
def _(q, k, v, grad):
    scale = v.shape[-1] ** -0.5
    return _backward(q, k, v, grad, forward=scale, q_scale=scale, k_scale=scale)


@attention_backward.mistake(
    "the sum without the weights",
    "what is subtracted is Σ w g, the average under the weights; Σ g counts every key the same.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * (g - g.sum(-1, keepdim=True)))


@attention_backward.mistake(
    "the average is added", "raising one score lowers the other weights: Σ w g is subtracted."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: w * (g + (w * g).sum(-1, keepdim=True)))


@attention_backward.mistake(
    "the weight in front is missing",
    "w (g − Σ w g): a key that is hardly read hardly moves anything, so its weight stands in front.",
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: g - (w * g).sum(-1, keepdim=True))


@attention_backward.mistake(
    "the rule of log_softmax", "g − w Σ g belongs to log-softmax; the softmax's rule is w (g − Σ w g)."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, through=lambda w, g: g - w * g.sum(-1, keepdim=True))


@attention_backward.mistake(
    "softmax over the queries", "the weights of a query sum to one along the keys, the last axis."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad, dim=-2)


@attention_backward.mistake(
    "the arriving gradient is left out", "these are the gradients of the plain sum: grad weighs every output."
)
def _(q, k, v, grad):
    return _backward(q, k, v, torch.ones_like(grad))


@attention_backward.mistake(
    "the order v, q, k", "the gradients are right; the order of the answer is that of the arguments: q, k, v."
)
def _(q, k, v, grad):
    dq, dk, dv = _backward(q, k, v, grad)
    return dv, dq, dk


@attention_backward.mistake(
    "the order v, k, q", "the gradients are right; the order of the answer is that of the arguments: q, k, v."
)
def _(q, k, v, grad):
    return _backward(q, k, v, grad)[::-1]


@attention_backward.mistake("all signs turned", "that is the step downhill; a gradient points uphill.")
def _(q, k, v, grad):
    return tuple(-x for x in _backward(q, k, v, grad))


@attention_backward.mistake(
    "exp overflows", "the scores may be large on the way back, too: use a softmax that takes the largest out."
)
def _(q, k, v, grad):
    scale = q.shape[-1] ** -0.5
    w = _normal((q @ k.transpose(-2, -1) * scale).exp())  # (..., T, S)
    d = _through(w, grad @ v.transpose(-2, -1))  # (..., T, S)
    return d @ k * scale, d.transpose(-2, -1) @ q * scale, w.transpose(-2, -1) @ grad


@attention_backward.contract("the gradients of the keys sum to zero")
def _(f):
    g = torch.Generator().manual_seed(3)
    dk = f(randn(g, 2, 3), randn(g, 4, 3), randn(g, 4, 5), randn(g, 2, 5))[1]  # (S, d_k)
    contracts.same("the same step for every key changes nothing", dk.sum(0), torch.zeros(3))


@attention_backward.contract("the gradients of the values sum to that of the output")
def _(f):
    g = torch.Generator().manual_seed(4)
    grad = randn(g, 2, 5)  # (T, d_v)
    dv = f(randn(g, 2, 3), randn(g, 4, 3), randn(g, 4, 5), grad)[2]  # (S, d_v)
    contracts.same("all values up by one, every output up by one", dv.sum(0), grad.sum(0))


@attention_backward.contract("a small step of a query changes the output as predicted")
def _(f):
    g = torch.Generator().manual_seed(5)
    q, k, v, grad = (randn(g, *n).double() for n in ((2, 3), (4, 3), (4, 5), (2, 5)))
    step = 1e-4 * randn(g, 2, 3).double()  # (T, d_k)
    value = lambda q: (_formula(q, k, v) * grad).sum()
    slope = (value(q + step) - value(q - step)) / 2e-4  # ()
    by_hand = (f(q, k, v, grad)[0] * step).sum() / 1e-4  # ()
    contracts.same("a small step changes the output as predicted", by_hand, slope)


test_exercise = exercises_of(__name__)
