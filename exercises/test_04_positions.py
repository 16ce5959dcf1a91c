"""Graders of chapter 4: what order adds to attention, by three doors."""

import math

import torch
import torch.nn.functional as F

from tx import attention, causal
from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn
from tx.positions import Positions

CHAPTER = "04_positions"


def randint(g, low, high):
    """A whole number low … high - 1 from the grading's own generator."""
    return int(torch.randint(low, high, (1,), generator=g))


# ── set_floor ────────────────────────────────────────────────────────────────────────────────────

set_floor = Exercise(
    "set_floor", chapter=CHAPTER, kind="derive", level=1, minutes=10, points=2,
    page="04-positions.html#shuffled",
    checks="the lowest loss of one layer without positions, for any length and any step back",
    question="among how many tokens must a query at position t guess?",
    hints=(
        "Take T = 3 and one step back, causal. Write down for both positions which tokens are seen, and which of "
        "them can be the answer.",
        "1. without a mask: all tokens but the query's own can be the answer, at every position\n"
        "2. causal: position t guesses among the t tokens before it\n"
        "3. the mean over the positions that have an answer, t = back … T - 1",
        "if not causal:\n    return math.log(…)\nreturn sum(math.log(t) for t in range(back, T)) / …",
    ),
)  # fmt: skip


@set_floor.cases
def _(g):
    yield 8, 1, False
    yield 3, 1, True
    yield 8, 1, True
    yield 8, 3, True
    yield 8, 3, False
    yield 6, 5, True
    yield 2, 1, True
    yield randint(g, 9, 20), randint(g, 2, 8), True
    yield 3000, 17, True


@set_floor.reference
def _(T, back, causal):
    if not causal:
        return math.log(T - 1)
    return sum(math.log(t) for t in range(back, T)) / (T - back)


set_floor.edits_are(
    ("a guess among all tokens", "a token is never its own answer: without a mask T - 1 tokens are left.",
     "math.log(T - 1)", "math.log(T)"),
    ("the query's own token counted", "t tokens stand before position t, and its own is not the answer.",
     "math.log(t)", "math.log(t + 1)"),
    ("divided by all positions", "the first `back` positions have no answer, so the mean is over the others.",
     "/ (T - back)", "/ T"),
    ("one position too few in the mean", "the positions back … T - 1 are T - back positions.",
     "/ (T - back)", "/ (T - 1)"),
    ("positions without an answer counted", "position t has an answer only from t = back on.",
     "range(back, T)", "range(1, T)"),
    ("one position too late", "the first position with an answer is `back` itself.", "range(back, T)",
     "range(back + 1, T)"),
    ("the last position left out", "range stops before its end: the last position is T - 1.", "range(back, T)",
     "range(back, T - 1)"),
    ("the sum and not the mean", "the loss is a mean over the positions.", " / (T - back)", ""),
)  # fmt: skip
set_floor.mistakes_are(
    ("the mask ignored", "a causal mask shrinks the set that a query sees.",
     lambda T, back, causal: math.log(T - 1)),
    ("the two masks exchanged", "without a mask every query sees all the others.",
     lambda T, back, causal: set_floor.reference_answer(T, back, not causal)),
    ("one step back, whatever is asked", "a position has an answer from t = back on, and the mean begins there.",
     lambda T, back, causal: set_floor.reference_answer(T, 1, causal)),
    ("without a mask too few left", "without a mask all T - 1 others can be the answer, for any `back`.",
     lambda T, back, causal: set_floor.reference_answer(T, back, True) if causal else math.log(T - back)),
    ("only tokens that far back counted", "nothing tells a set which of its t tokens stand how far back.",
     lambda T, back, causal: sum(math.log(t - back + 1) for t in range(back, T)) / (T - back)
     if causal else math.log(T - 1)),
    ("in bits", "losses of this book are in nats: math.log, not math.log2.",
     lambda T, back, causal: set_floor.reference_answer(T, back, causal) / math.log(2)),
    ("the log of the mean", "each position pays its own ln t, and the mean is over these.",
     lambda T, back, causal: math.log(sum(range(back, T)) / (T - back)) if causal else math.log(T - 1)),
)  # fmt: skip


# ── sinusoids ────────────────────────────────────────────────────────────────────────────────────

sinusoids = Exercise(
    "sinusoids", chapter=CHAPTER, kind="write", level=1, minutes=10, points=3,
    page="04-positions.html#door-one",
    checks="sines and cosines of all hands at any position, near and far",
    question="which speed has the last hand, and in which column does its sine stand?",
    hints=(
        "Write the row of position 1 for d_model = 4 and base = 100 on paper: two speeds, then four numbers.",
        "1. the speeds of all hands, base ** (-2i / d_model), float64  (d_half,)\n"
        "2. angles, positions times speeds  (B, T, d_half)\n"
        "3. sines, then cosines, on the last axis  (B, T, d_model)",
        "steps = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model\n"
        "angles = positions[..., None] * base ** -steps\n"
        "return torch.cat([…, …], dim=-1).float()",
    ),
    out_of_reach=("tx.positions.Sinusoidal.embed",),
)  # fmt: skip


@sinusoids.cases
def _(g):
    yield torch.tensor([[1]]), 4, 100.0
    yield torch.tensor([[0, 1, 2]]), 2, 10.0
    yield torch.tensor([[0, 3], [7, 1]]), 6
    yield torch.tensor([[1_000_000, 999_999]]), 8
    yield torch.randint(0, 50, (2, 5), generator=g), 8, 50.0
    yield torch.arange(3)[None], 512
    yield raises(ValueError, torch.tensor([[0]]), 5)


def _checked(d_model):
    if d_model % 2:
        raise ValueError("d_model is odd")


@sinusoids.reference
def _(positions, d_model, base=10000.0):
    if d_model % 2:
        raise ValueError("d_model is odd")
    steps = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (d_half,)
    angles = positions[..., None] * base**-steps  # (B, T, d_half)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()  # (B, T, d_model)


@sinusoids.contract("the dtype is the promised one")
def _(f):
    contracts.dtype_is(f(torch.tensor([[1]]), 4), torch.float32)


sinusoids.edits_are(
    ("sines and cosines side by side", "that is the paper's order of columns; here all sines come first.",
     "torch.cat([angles.sin(), angles.cos()], dim=-1).float()",
     "torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()"),
    ("cosines first", "all sines, then all cosines.", "[angles.sin(), angles.cos()]",
     "[angles.cos(), angles.sin()]"),
    ("the exponent without its 2", "hand i turns by base ** (-2i / d_model): the last one is nearly 1 / base.",
     "torch.arange(0, d_model, 2, dtype=torch.float64) / d_model",
     "torch.arange(d_model // 2, dtype=torch.float64) / d_model"),
    ("hands that speed up", "the exponent is negative: every hand is slower than the one before.", "base**-steps",
     "base**steps"),
    ("the last hand at exactly 1 / base", "i runs over d_model / 2 hands, and the exponent never reaches -1.",
     "/ d_model", "/ max(d_model - 2, 1)"),
    ("positions from 1", "positions count from 0, and the sine of position 0 is 0.", "positions[..., None]",
     "(positions[..., None] + 1)"),
    ("column numbers in place of positions", "a token stands where `positions` says.",
     "positions[..., None]", "torch.arange(positions.shape[1]).expand(positions.shape)[..., None]"),
    ("angles in float32", "at position 1,000,000 float32 has a few hundredths of a radian left: use float64.",
     "dtype=torch.float64", "dtype=torch.float32"),
    ("turns in place of radians", "an angle is position times speed, without 2π.", "positions[..., None] *",
     "2 * math.pi * positions[..., None] *"),
    ("the base fixed", "the base is an argument.", "base**-steps", "10000.0**-steps"),
    ("no error for an odd width", "with an odd width one sine would have no cosine.", "if d_model % 2:",
     "if d_model % 2 and d_model < 0:"),
)  # fmt: skip


# ── position_similarity ──────────────────────────────────────────────────────────────────────────

position_similarity = Exercise(
    "position_similarity", chapter=CHAPTER, kind="measure", level=1, minutes=10, points=2,
    page="04-positions.html#learned",
    checks="the mean cosine of rows for every shift, of tables of any scale",
    question="how many pairs of rows are s places apart, and what is the length of each row?",
    hints=(
        "Take the table [[2, 0], [0, 3], [1, 0]]. Which pairs of rows are one apart, which two?",
        "1. rows of length 1  (N, D)\n2. all cosines  (N, N)\n"
        "3. the mean of every diagonal, from the main one to the corner  (N,)",
        "unit = F.normalize(table, dim=-1)\ncosines = unit @ unit.mT\n"
        "return torch.stack([cosines.diagonal(…).mean() for s in range(len(table))])",
    ),
)  # fmt: skip


@position_similarity.cases
def _(g):
    yield (torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]),)
    yield (torch.tensor([[1.0, 1.0], [-2.0, -2.0]]),)
    yield (randn(g, 5, 3),)
    yield (100 * randn(g, 6, 4) + 50,)
    yield (torch.cat([torch.zeros(1, 3), torch.ones(3, 3)]),)
    yield (torch.tensor([[3.0, 4.0]]),)
    yield (torch.linspace(-3, 5, 240).sin().view(120, 2),)


@position_similarity.reference
def _(table):
    unit = F.normalize(table, dim=-1)  # (N, D)
    cosines = unit @ unit.mT  # (N, N)
    means = [cosines.diagonal(s).mean() for s in range(len(table))]
    return torch.stack(means)  # (N,)


position_similarity.edits_are(
    ("dot products, not cosines", "long rows have large dot products; a cosine divides by both lengths.",
     "F.normalize(table, dim=-1)", "table"),
    ("columns of length 1", "a row is a position, and its length is the norm over its features: dim=-1.",
     "dim=-1", "dim=0"),
    ("the mean of all rows taken out first", "this measures deviations from the mean row, another quantity.",
     "F.normalize(table, dim=-1)", "F.normalize(table - table.mean(0), dim=-1)"),
    ("divided by N", "there are N - s pairs that are s apart.", ".mean() for", ".sum() / len(table) for"),
    ("the sum of a diagonal", "the mean over the N - s pairs.", ".mean() for", ".sum() for"),
    ("the pairs of the first row alone", "all pairs (i, i + s) count, not only (0, s).",
     "cosines.diagonal(s).mean()", "cosines[0, s]"),
    ("the shift of 0 left out", "entry s is for shift s, so entry 0 is for shift 0.", "range(len(table))",
     "range(1, len(table) + (len(table) == 1))"),
    ("the sign dropped", "opposite rows have a cosine of -1.", "unit @ unit.mT", "(unit @ unit.mT).abs()"),
)  # fmt: skip
position_similarity.mistakes_are(
    ("around the end", "row N - 1 has no neighbour behind it: roll makes the first row follow the last.",
     lambda t: torch.stack([F.cosine_similarity(t, t.roll(-s, 0), dim=-1).mean() for s in range(len(t))])),
    ("1 for the shift 0, always", "a row of zeros has cosine 0 with itself, too.",
     lambda t: torch.cat([torch.ones(1), position_similarity.reference_answer(t)[1:]])),
    ("0/0 for a row of zeros", "a row of zeros has no direction, and its cosine counts as 0.",
     lambda t: position_similarity.reference_answer(t)
     + 0 * (t / t.norm(dim=-1, keepdim=True)).sum()),
)  # fmt: skip


# ── turn_pairs ───────────────────────────────────────────────────────────────────────────────────

turn_pairs = Exercise(
    "turn_pairs", chapter=CHAPTER, kind="write", level=2, minutes=15, points=4,
    page="04-positions.html#door-two", gradients=True,
    checks="all pairs of all heads turned at once, the features beyond them left alone, and the gradients",
    question="where does feature 0 go when its pair is turned by a quarter, cos 0 and sin 1?",
    hints=(
        "One head, one position, x = [1, 0], cos = [0], sin = [1]. What is (a cos - b sin, b cos + a sin)?",
        "1. the first d_half features a, the next d_half features b  (B, H, T, d_half)\n"
        "2. the turned pair, two tensors  (B, H, T, d_half)\n3. both side by side, and what is left of x",
        "half = cos.shape[-1]\na, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]\n"
        "return torch.cat([a * cos - …, b * cos + …, rest], dim=-1)",
    ),
    out_of_reach=("tx.positions.rotate",),
)  # fmt: skip


def _table(g, *shape):
    angles = 3 * randn(g, *shape)
    return angles.cos(), angles.sin()


@turn_pairs.cases
def _(g):
    yield torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor([[0.0]]), torch.tensor([[1.0]])
    yield torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4), torch.zeros(1, 2), torch.ones(1, 2)
    yield randn(g, 2, 3, 5, 8), *_table(g, 5, 4)
    yield randn(g, 1, 2, 4, 8), *_table(g, 4, 2)  # partial
    yield randn(g, 3, 3, 3, 6), *_table(g, 3, 3)
    yield randn(g, 2, 4, 3, 4).mT, *_table(g, 2, 1, 4, 1)  # a table a batch row, and not contiguous
    yield randn(g, 1, 1, 64, 16), *_table(g, 64, 8)


@turn_pairs.reference
def _(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]  # (B, H, T, …)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)  # (B, H, T, d_k)


turn_pairs.edits_are(
    ("turned the other way", "b comes out as b cos + a sin, so the minus stands with the first of the pair.",
     "[a * cos - b * sin, b * cos + a * sin,", "[a * cos + b * sin, b * cos - a * sin,"),
    ("both with a plus", "a turn keeps lengths: one of the two products with sin has a minus.",
     "[a * cos - b * sin,", "[a * cos + b * sin,"),
    ("both with a minus", "a turn keeps lengths: only the first of the pair has a minus.", "b * cos + a * sin,",
     "b * cos - a * sin,"),
    ("cos and sin exchanged", "at an angle of 0 the cosine is 1 and nothing moves.",
     "[a * cos - b * sin, b * cos + a * sin,", "[a * sin - b * cos, b * sin + a * cos,"),
    ("only the first of each pair turns", "b turns with a, by the same angle.", "b * cos + a * sin,", "b,"),
    ("b mixed with the new a", "both products need the old a: compute the pair before you overwrite it.",
     "b * cos + a * sin,", "b * cos + (a * cos - b * sin) * sin,"),
    ("what is left set to zero", "features beyond the last pair pass unchanged.", "rest], dim=-1)",
     "0 * rest], dim=-1)"),
    ("what is left dropped", "the result is as wide as x.", ", rest], dim=-1)", "], dim=-1)"),
    ("what is left put first", "the order of the features stays.",
     "torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)",
     "torch.cat([rest, a * cos - b * sin, b * cos + a * sin], dim=-1)"),
)  # fmt: skip


def _neighbours(x, cos, sin):
    half = cos.shape[-1]
    a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]  # (B, H, T, d_half)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., 2 * half :]], dim=-1)


def _across(x, cos, sin):
    half, middle = cos.shape[-1], x.shape[-1] // 2
    a, b = x[..., :half], x[..., middle : middle + half]
    return torch.cat([a * cos - b * sin, x[..., half:middle], b * cos + a * sin, x[..., middle + half :]], dim=-1)


turn_pairs.mistakes_are(
    ("neighbours paired", "that is the other layout: here i is paired with i + d_half.", _neighbours),
    ("partners half a head apart", "partner of i is i + d_half, also where only a part of the head is turned.",
     _across),
    ("the gradient cut", "something computes with detached numbers.",
     lambda x, cos, sin: turn_pairs.reference_answer(x.detach(), cos, sin)),
)  # fmt: skip


@turn_pairs.contract("turning keeps lengths")
def _(f):
    x = torch.linspace(-1.0, 2.0, 24).view(1, 1, 4, 6).cos()  # (B, H, T, d_k)
    at = torch.linspace(0.0, 3.0, 12).view(4, 3)  # (T, d_half)
    got = f(x, at.cos(), at.sin()).norm(dim=-1)
    contracts.same("turning keeps lengths", got, x.norm(dim=-1), "the lengths")


# ── halves_from_pairs ────────────────────────────────────────────────────────────────────────────

halves_from_pairs = Exercise(
    "halves_from_pairs", chapter=CHAPTER, kind="write", level=2, minutes=15, points=4,
    page="04-positions.html#layouts", gradients=True,
    checks="the order of rows of a weight or a bias, head by head",
    question="in a head of width 6, which row comes second in the new order?",
    hints=(
        "Call it on torch.arange(8) with one head. The page prints what should come out. Then two heads.",
        "1. the rows of each head as pairs  (H, d_k/2, 2, …)\n2. the axis of 2 before the axis of pairs\n"
        "3. back to the old shape",
        "pairs = weight.reshape(n_heads, -1, 2, *weight.shape[1:])\n"
        "return pairs.transpose(…, …).reshape(weight.shape)",
    ),
    out_of_reach=("tx.positions.deinterleave",),
)  # fmt: skip


@halves_from_pairs.cases
def _(g):
    yield torch.arange(8.0), 1
    yield torch.arange(12.0), 2
    yield randn(g, 8, 3), 1
    yield randn(g, 24, 5), 3
    yield randn(g, 5, 16).mT, 2
    yield randn(g, 4, 4), 2
    yield torch.arange(4096.0), 32
    yield raises(ValueError, torch.arange(6.0), 2)
    yield raises(ValueError, torch.arange(10.0), 4)


@halves_from_pairs.reference
def _(weight, n_heads):
    if len(weight) % (2 * n_heads):
        raise ValueError("heads of an even width expected")
    pairs = weight.reshape(n_heads, -1, 2, *weight.shape[1:])  # (H, d_half, 2, …)
    return pairs.transpose(1, 2).reshape(weight.shape)  # (H*d_k, …)


halves_from_pairs.edits_are(
    ("the way back", "this makes pairs of halves: reshape to pairs first, and put the axis of 2 in front.",
     "n_heads, -1, 2, *", "n_heads, 2, -1, *"),
    ("one head for all", "each head is permuted within its own rows.", "weight.reshape(n_heads, -1,",
     "weight.reshape(1, -1,"),
    ("nothing moves", "reshape to another shape and back keeps the order: an axis has to change its place.",
     "pairs.transpose(1, 2)", "pairs"),
    ("the odd features first", "the even features of a head come first, then the odd ones.",
     "pairs.transpose(1, 2)", "pairs.flip(2).transpose(1, 2)"),
    ("heads and pairs exchanged", "a head's rows stay together: axes 1 and 2 change places, not 0 and 1.",
     "pairs.transpose(1, 2)", "pairs.transpose(0, 1)"),
)  # fmt: skip
halves_from_pairs.mistakes_are(
    ("no error for odd heads", "a head of odd width has a feature without a partner.",
     lambda w, n: w if len(w) % n == 0 and len(w) // n % 2 else halves_from_pairs.reference_answer(w, n)),
    ("no check that heads fit", "rows that do not divide into heads are refused.",
     lambda w, n: w if len(w) % n else halves_from_pairs.reference_answer(w, n)),
)  # fmt: skip


# ── mixed_layouts ────────────────────────────────────────────────────────────────────────────────

mixed_layouts = Exercise(
    "mixed_layouts", chapter=CHAPTER, kind="debug", level=1, minutes=10, points=2,
    page="04-positions.html#layouts", gradients=True,
    checks="RoPE in the half layout, at position 0 and far from it",
    question="by which two angles are features 0 and d_k/2 turned? They are a pair.",
    hints=(
        "Print the angles at position 1 for d_k = 4. Which columns belong to which feature?",
        "Features i and i + d_k/2 are a pair, so columns i and i + d_k/2 of the angles must be equal.",
        "angles = torch.cat([…, …], dim=-1)  # (T, d_k)",
    ),
    out_of_reach=("tx.positions.rotate",),
)  # fmt: skip


@mixed_layouts.cases
def _(g):
    yield torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4), torch.tensor([1]), 100.0
    yield torch.eye(4).view(1, 1, 4, 4), torch.tensor([0, 1, 2, 3]), 100.0
    yield randn(g, 2, 2, 4, 8), torch.arange(4)
    yield randn(g, 1, 2, 3, 64), torch.tensor([5, 80, 1000])
    yield randn(g, 2, 4, 4, 4), torch.tensor([3, 1, 2, 0])


@mixed_layouts.reference
def _(x, positions, base=10000.0):
    d_k = x.shape[-1]
    speeds = base ** (-torch.arange(0, d_k, 2) / d_k)  # (d_half,)
    angles = positions[:, None] * speeds  # (T, d_half)
    angles = torch.cat([angles, angles], dim=-1)  # (T, d_k)
    a, b = x.chunk(2, dim=-1)  # (B, H, T, d_half) twice
    swapped = torch.cat([-b, a], dim=-1)  # (B, H, T, d_k)
    return x * angles.cos() + swapped * angles.sin()  # (B, H, T, d_k)


mixed_layouts.edits_are(
    ("as handed out", "the angles are laid out for neighbours, 0 0 1 1, and the turn pairs halves.",
     "torch.cat([angles, angles], dim=-1)", "angles.repeat_interleave(2, dim=-1)"),
    ("turned the other way", "the first half gets -b and the second a, not the other way round.",
     "[-b, a]", "[b, -a]"),
    ("no minus", "without the minus it is no turn, and lengths change.", "[-b, a]", "[b, a]"),
    ("halves not swapped", "a meets b in a turn, so the halves change places beside the sine.", "[-b, a]",
     "[-a, b]"),
    ("the half turned on the axis of positions", "features are the last axis; dim=-2 cuts the text in two.",
     "x.chunk(2, dim=-1)  # (B, H, T, d_half) twice\n    swapped = torch.cat([-b, a], dim=-1)",
     "x.chunk(2, dim=-2)\n    swapped = torch.cat([-b, a], dim=-2) if x.shape[-2] % 2 == 0 else x"),
    ("the exponent without its 2", "pair i turns by base ** (-2i / d_k).", "torch.arange(0, d_k, 2) / d_k",
     "torch.arange(d_k // 2) / d_k"),
    ("the base fixed", "the base is an argument.", "base ** (", "10000.0 ** ("),
    ("the angles of the second half turned back", "both features of a pair turn by the same angle.",
     "[angles, angles]", "[angles, -angles]"),
)  # fmt: skip


def _all_neighbours(x, positions, base=10000.0):
    d_k = x.shape[-1]
    angles = positions[:, None] * base ** (-torch.arange(0, d_k, 2) / d_k)  # (T, d_half)
    return _neighbours(x, angles.cos(), angles.sin())


mixed_layouts.mistakes_are(
    ("positions from 1", "position 0 does not turn.",
     lambda x, positions, base=10000.0: mixed_layouts.reference_answer(x, positions + 1, base)),
    ("row numbers in place of positions", "a row stands where `positions` says.",
     lambda x, positions, base=10000.0: mixed_layouts.reference_answer(x, torch.arange(len(positions)), base)),
    ("the other layout throughout", "this is a right turn of neighbours; the docstring asks for halves.",
     _all_neighbours),
)  # fmt: skip


@mixed_layouts.contract("only the distance counts")
def _(f):
    q, k = torch.linspace(-1.0, 2.0, 48).view(2, 3, 8).sin()  # (T, d_k)
    contracts.only_the_distance_counts(lambda x, at: f(x[None, None], at)[0, 0], q, k)


@mixed_layouts.contract("turning keeps lengths")
def _(f):
    x = torch.linspace(-1.0, 2.0, 24).view(3, 8).sin()  # (T, d_k)
    contracts.turning_keeps_lengths(lambda x, at: f(x[None, None], at)[0, 0], x)


# ── rounded_tables ───────────────────────────────────────────────────────────────────────────────

rounded_tables = Exercise(
    "rounded_tables", chapter=CHAPTER, kind="debug", level=2, minutes=15, points=3,
    page="04-positions.html#bf16", parts=("cos", "sin"), tolerance=0.01,
    checks="cosines and sines at positions up to 100,000, for tables in bf16 and fp16",
    question="which whole numbers between 4,000 and 4,100 are there in bf16?",
    hints=(
        "torch.tensor([4099]).to(torch.bfloat16) is not 4099. Which of the lines rounds a position?",
        "Angles need all their digits, because they are large. Cosines lie between -1 and 1 and can be rounded.",
        "angles = positions.float()[:, None] * speeds\nreturn angles.cos().to(dtype), …",
    ),
)  # fmt: skip


def _like(dtype, width, T):
    return torch.zeros(1, 1, T, width, dtype=dtype)  # (B, H, T, d_k)


@rounded_tables.cases
def _(g):
    yield _like(torch.bfloat16, 2, 1), torch.tensor([300])
    yield _like(torch.bfloat16, 8, 4), torch.tensor([0, 7, 300, 4099])
    yield _like(torch.bfloat16, 16, 3), torch.tensor([4099, 30_003, 100_000])
    yield _like(torch.float16, 8, 2), torch.tensor([1001, 70_000])
    yield _like(torch.float32, 4, 2), torch.tensor([7, 30_003]), 500.0
    yield _like(torch.bfloat16, 64, 6), torch.randint(2000, 40_000, (6,), generator=g), 500_000.0


@rounded_tables.reference
def _(x, positions, base=10000.0):
    width = x.shape[-1]
    steps = torch.arange(0, width, 2) / width  # (d_half,)
    speeds = base**-steps  # (d_half,)
    angles = positions.float()[:, None] * speeds  # (T, d_half)
    return angles.cos().to(x), angles.sin().to(x)  # (T, d_half) twice


@rounded_tables.contract("the dtype is the promised one")
def _(f):
    for table in f(_like(torch.bfloat16, 2, 1), torch.tensor([300])):
        contracts.dtype_is(table, torch.bfloat16)


rounded_tables.edits_are(
    ("as handed out", "positions, speeds and angles are rounded to the dtype of the model.",
     "angles = positions.float()[:, None] * speeds", "angles = positions.to(x)[:, None] * speeds.to(x)"),
    ("only the positions rounded", "bf16 keeps eight bits: 4,099 becomes 4,096.", "positions.float()",
     "positions.to(x).float()"),
    ("only the speeds rounded", "a speed that is off by a thousandth is off by 30 radians at position 30,000.",
     "speeds = base**-steps", "speeds = (base**-steps).to(x).float()"),
    ("the angles rounded", "an angle of 4,099 radians needs more than eight bits.", "[:, None] * speeds",
     "[:, None] * speeds; angles = angles.to(x).float()"),
    ("cos and sin exchanged", "the cosine comes first.",
     "return angles.cos().to(x), angles.sin().to(x)", "return angles.sin().to(x), angles.cos().to(x)"),
    ("the base fixed", "the base is an argument.", "base**-steps", "10000.0**-steps"),
    ("the exponent without its 2", "pair i turns by base ** (-2i / width).", "torch.arange(0, width, 2) / width",
     "torch.arange(width // 2) / width"),
)  # fmt: skip


# ── ntk_base ─────────────────────────────────────────────────────────────────────────────────────

ntk_base = Exercise(
    "ntk_base", chapter=CHAPTER, kind="derive", level=2, minutes=15, points=3, tolerance=1e-4,
    page="04-positions.html#interpolation",
    checks="the new base for any pair, and that pair 0 is refused",
    question="what is the speed of that pair under the new base, divided by its speed under the old one?",
    hints=(
        "Write the speed of the pair under both bases. The new one is the old one divided by factor.",
        "1. new ** (-2i / width) = base ** (-2i / width) / factor\n2. raise both sides to the power -width / (2i)",
        "return base * factor ** (…)",
    ),
)  # fmt: skip


@ntk_base.cases
def _(g):
    yield 100.0, 4, 2.0, 1
    yield 10000.0, 64, 8.0, 31
    yield 10000.0, 64, 8.0, 16
    yield 500.0, 8, 1.0, 2
    yield 10.0, 16, 3.0, randint(g, 2, 7)
    yield 100.0, 128, 0.5, 40
    yield raises(ValueError, 10000.0, 64, 8.0, 0)


@ntk_base.reference
def _(base, width, factor, pair):
    if pair == 0:
        raise ValueError("pair 0 turns by 1 whatever the base")
    return base * factor ** (width / (2 * pair))


ntk_base.edits_are(
    ("the slowest pair always", "width / (width - 2) is the slowest pair's exponent; another pair has its own.",
     "width / (2 * pair)", "width / (width - 2)"),
    ("multiplied by the factor", "the base itself is not divided; the speed is a power of it.",
     "factor ** (width / (2 * pair))", "factor"),
    ("the exponent upside down", "raise both sides to -width / (2i), not to -2i / width.", "width / (2 * pair)",
     "2 * pair / width"),
    ("the exponent without its 2", "pair i turns by base ** (-2i / width).", "width / (2 * pair)", "width / pair"),
    ("a smaller base", "a slower pair needs a larger base.", "base * factor", "base / factor"),
    ("pairs counted from 1", "pair 0 is the fastest.", "(2 * pair)", "(2 * pair + 2)"),
    ("the base counted twice", "the base has the power 1 when you solve for the new one.", "return base *",
     "return base * base *"),
    ("no error for pair 0", "pair 0 turns by 1 whatever the base, so no base can slow it.",
     'raise ValueError("pair 0 turns by 1 whatever the base")', "return base"),
)  # fmt: skip


# ── slopes ───────────────────────────────────────────────────────────────────────────────────────

slopes = Exercise(
    "slopes", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3, tolerance=1e-6,
    page="04-positions.html#door-three",
    checks="the slopes of any number of heads, in the order of the published code",
    question="for 6 heads: which slopes do 4 heads have, and which two of 8 heads' slopes come behind them?",
    hints=(
        "Write the slopes for 4 and for 8 heads on paper. The published slopes for 6 heads are made of both.",
        "1. the largest power of two P that is at most n_heads\n2. 2 ** (-8 h / P) for h = 1 … P\n"
        "3. of 2 P heads every second slope from the first on, as many as are missing",
        "P = 2 ** math.floor(math.log2(n_heads))\nfirst = [2.0 ** (-8 * h / P) for h in range(1, P + 1)]\n"
        "more = [2.0 ** (-8 * h / (2 * P)) for h in range(1, 2 * P + 1, 2)]\nreturn torch.tensor(…)",
    ),
    out_of_reach=("tx.positions.alibi_slopes",),
)  # fmt: skip


@slopes.cases
def _(g):
    yield (8,)
    yield (6,)
    yield (12,)
    yield (1,)
    yield (3,)
    yield (2 ** randint(g, 1, 6),)
    yield (112,)
    yield raises(ValueError, 0)
    yield raises(ValueError, -4)


@slopes.reference
def _(n_heads):
    if n_heads < 1:
        raise ValueError("at least one head")
    power = 2 ** math.floor(math.log2(n_heads))
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    more = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor((first + more)[:n_heads])  # (H,)


slopes.edits_are(
    ("heads counted from 0", "the first slope of 8 heads is 1/2, not 1.", "for h in range(1, power + 1)]",
     "for h in range(power)]"),
    ("the second of each two taken", "every second slope from the *first* on, which lie between the old ones.",
     "for h in range(1, 2 * power + 1, 2)", "for h in range(2, 2 * power + 1, 2)"),
    ("the first ones of twice as many heads", "every second one, so that the new slopes lie between the old ones.",
     "for h in range(1, 2 * power + 1, 2)", "for h in range(1, 2 * power + 1)"),
    ("the slopes of the missing heads", "the other slopes are those of 2 P heads.", "(-4 * h / power)",
     "(-8 * h / power)"),
    ("the new slopes first", "the slopes of P heads come first.", "(first + more)[:n_heads]",
     "(more[: n_heads - power] + first)"),
    ("the last of the new slopes", "the missing slopes are taken from the largest on.", "(first + more)[:n_heads]",
     "(first + more[power * 2 - n_heads :])"),
    ("sorted", "the order is that of the published code, and weights depend on it.", "(first + more)[:n_heads]",
     "sorted((first + more)[:n_heads], reverse=True)"),
    ("no error without heads", "a model has at least one head.", 'raise ValueError("at least one head")',
     "return torch.zeros(0)"),
)  # fmt: skip
slopes.mistakes_are(
    ("the formula for every number", "2 ** (-8 h / H) is for powers of two; the published code has a second rule.",
     lambda n: 2.0 ** (-8 * torch.arange(1, n + 1) / n) if n > 0 else slopes.reference_answer(n)),
    ("halves of halves", "1/2, 1/4, 1/8 … are the slopes of 8 heads only; other numbers have other ratios.",
     lambda n: 2.0 ** -torch.arange(1.0, n + 1) if n > 0 else slopes.reference_answer(n)),
    ("the power of two above, cut off", "take the power below, and fill up from the one above.",
     lambda n: torch.tensor([2.0 ** (-8 * h / 2 ** math.ceil(math.log2(n))) for h in range(1, n + 1)])
     if n > 0 else slopes.reference_answer(n)),
)  # fmt: skip


# ── yarn_speeds ──────────────────────────────────────────────────────────────────────────────────

yarn_speeds = Exercise(
    "yarn_speeds", chapter=CHAPTER, kind="write", level=3, minutes=40, points=5, tolerance=1e-6,
    page="04-positions.html#bands",
    checks="the speeds of all pairs: kept, divided, and mixed along the ramp",
    question="which pairs keep their speed, which are divided, and what stands exactly in the middle of the ramp?",
    hints=(
        "Solve turns = original · base ** (-2i / width) / (2π) for i. Where is the pair that turns 32 times?",
        "1. i(turns) = width · ln(original / (2π turns)) / (2 ln base)\n"
        "2. low = floor of i(fast), high = ceil of i(slow), both within 0 … width - 1\n"
        "3. share = (pair - low) / (high - low), between 0 and 1\n"
        "4. speed / factor · share + speed · (1 - share)",
        "def pair_of(turns):\n"
        "    return width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))\n"
        "low = max(math.floor(pair_of(fast)), 0)\nhigh = min(math.ceil(pair_of(slow)), width - 1)\n"
        "share = ((pairs - low) / …).clamp(0, 1)",
    ),
    out_of_reach=("tx.positions.rope_frequencies",),
)  # fmt: skip


@yarn_speeds.cases
def _(g):
    yield 100.0, 8, 4.0, 64, 4.0, 1.0
    yield 10000.0, 64, 8.0, 2048
    yield 10000.0, 128, 16.0, 4096
    yield 500_000.0, 64, 2.0, 8192, 16.0, 2.0
    yield 10000.0, 16, 4.0, 32
    yield 50.0, 8, 3.0, 100_000, 8.0, 1.0
    yield 10000.0, 32, 1.0, 2048
    yield 10000.0, 8, 4.0, 5  # low and high are both 0
    yield 10.0 ** randint(g, 3, 6), 32, 5.0, 1024, 20.0, 1.5


@yarn_speeds.reference
def _(base, width, factor, original, fast=32.0, slow=1.0):
    def pair_of(turns):
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    pairs = torch.arange(width // 2, dtype=torch.float64)  # (d_half,)
    speeds = base ** (-2 * pairs / width)  # (d_half,)
    low = max(math.floor(pair_of(fast)), 0)
    high = min(math.ceil(pair_of(slow)), width - 1)
    share = ((pairs - low) / (high - low or 0.001)).clamp(0, 1)  # (d_half,)
    return speeds / factor * share + speeds * (1 - share)  # (d_half,)


yarn_speeds.edits_are(
    ("fast pairs divided", "fast pairs have seen all angles and keep their speed; slow ones are divided.",
     "speeds / factor * share + speeds * (1 - share)", "speeds / factor * (1 - share) + speeds * share"),
    ("every pair divided", "that is position interpolation: the fast pairs keep their speed.",
     "speeds / factor * share + speeds * (1 - share)", "speeds / factor"),
    ("wavelengths mixed", "the ramp mixes the speeds, and the mean of two wavelengths is another number.",
     "speeds / factor * share + speeds * (1 - share)", "speeds / (1 + (factor - 1) * share)"),
    ("no whole ends", "the ends of the ramp are whole: floor below, ceil above.",
     "math.floor(pair_of(fast))", "pair_of(fast)"),
    ("the lower end rounded up", "the ramp starts at the pair below: floor.", "math.floor(pair_of(fast))",
     "math.ceil(pair_of(fast))"),
    ("the upper end rounded down", "the ramp ends at the pair above: ceil.", "math.ceil(pair_of(slow))",
     "math.floor(pair_of(slow))"),
    ("fast and slow exchanged", "a pair that turns often has a small number.",
     "pair_of(fast)), 0)\n    high = min(math.ceil(pair_of(slow))",
     "pair_of(slow)), 0)\n    high = min(math.ceil(pair_of(fast))"),
    ("turns without 2π", "a turn is 2π radians.", "(turns * 2 * math.pi)", "turns"),
    ("no clamp on the ramp", "outside the ramp the share is 0 or 1.", ".clamp(0, 1)", ".clamp(-10, 10)"),
    ("the lower end below 0", "the ramp cannot start before pair 0.", "max(math.floor(pair_of(fast)), 0)",
     "math.floor(pair_of(fast))"),
    ("the exponent without its 2", "pair i turns by base ** (-2i / width).", "(-2 * pairs / width)",
     "(-pairs / width)"),
)  # fmt: skip


yarn_speeds.mistakes_are(
    ("the ramp over the turns", "that is the paper's ramp; the published one is over the pair's number.",
     lambda *args: _by_turns(*args)),
    ("a step and no ramp", "between the ends the speeds are mixed, little by little.",
     lambda *args: _stepped(*args)),
)  # fmt: skip


def _by_turns(base, width, factor, original, fast=32.0, slow=1.0):
    speeds = base ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)  # (d_half,)
    keep = ((original * speeds / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)  # (d_half,)
    return speeds * keep + speeds / factor * (1 - keep)


def _stepped(base, width, factor, *rest):
    speeds = base ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)  # (d_half,)
    middle = (speeds + speeds / factor) / 2  # (d_half,)
    return torch.where(yarn_speeds.reference_answer(base, width, factor, *rest) < middle, speeds / factor, speeds)


# ── PositionScheme ───────────────────────────────────────────────────────────────────────────────

PositionScheme = Exercise(
    "PositionScheme", chapter=CHAPTER, kind="write", level=3, minutes=40, points=5,
    page="04-positions.html#all-doors",
    checks="what every scheme owes a model: order is told, length and batch change nothing, all is finite",
    question="which of the three doors does it open, and what does a query then know that it did not know before?",
    hints=(
        "Choose a door. Which of embed, turn and bias do you have to write for it? The others can stay inherited.",
        "Door three is the shortest: tables(positions, q_slots, k_slots) gets (1, T) and (1, S) and returns what "
        "bias hands on, numbers that broadcast to (B, H, T, S).",
        "def tables(self, positions, q_slots, k_slots, dtype=torch.float32):\n"
        "    distance = q_slots[:, None, :, None] - k_slots[:, None, None, :]  # (1, 1, T, S)\n"
        "    return -…(distance.abs())\n\ndef bias(self, q, k, table, project):\n    return table",
    ),
    out_of_reach=("tx.positions.Sinusoidal.embed", "tx.positions.Learned.embed", "tx.positions.rotate",
                  "tx.positions.alibi_slopes", "tx.positions.t5_bucket"),
)  # fmt: skip
D, H = 16, 2


def _rows(scheme, x, offset=0):
    """One layer with fixed weights, causal: x (B, T, D) -> the scores' rows (B, H, T, d_k)."""
    weights = torch.linspace(-2.0, 3.0, 3 * D * D).mul(7).sin().view(3, D, D) / 5  # (3, D, D)
    at = torch.arange(x.shape[1])[None]  # (1, T)
    added = scheme.embed(at)
    x = x if added is None else x + added.to(x)  # (B, T, D)
    q, k, v = ((x @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in weights)  # (B, H, T, d_k)
    table = scheme.tables(at, at, at)
    q, k = scheme.turn(q, k, table)
    return attention(q, k, v, causal(), bias=scheme.bias(q, k, table, None))


@PositionScheme.call
def _(impl, what):
    torch.manual_seed(0)
    scheme = impl(D, H)
    T = 200 if what == "finite in 200 tokens" else 7
    x = torch.linspace(-3.0, 4.0, 2 * T * D).mul(5).cos().view(2, T, D)  # (B, T, D)
    rows = _rows(scheme, x)
    if what == "finite in 200 tokens":
        return bool(rows.isfinite().all())
    if what == "tells two orders of the past apart":
        order = [1, 0, 3, 2, 4, 5, 6]
        return bool((_rows(scheme, x[:, order])[:, :, 4:] - rows[:, :, 4:]).abs().amax((0, 1, 3)).min() > 1e-4)
    if what == "tells the words apart":
        other = x.clone()
        other[:, 2] = -other[:, 2]
        return bool((_rows(scheme, other)[:, :, 2:] - rows[:, :, 2:]).abs().amax((0, 1, 3)).min() > 1e-3)
    if what == "the same for a longer text":
        return torch.allclose(_rows(scheme, x[:, :4]), rows[:, :, :4], atol=5e-5)
    if what == "the same alone and in a batch":
        return torch.allclose(_rows(scheme, x[1:]), rows[1:], atol=5e-5)
    return tuple(rows.shape)


@PositionScheme.cases
def _(g):
    yield ("the shape",)
    yield ("tells two orders of the past apart",)
    yield ("tells the words apart",)
    yield ("the same for a longer text",)
    yield ("the same alone and in a batch",)
    yield ("finite in 200 tokens",)


@PositionScheme.reference
class _Fading(Positions):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads

    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        distance = q_slots[:, None, :, None] - k_slots[:, None, None, :]  # (1, 1, T, S)
        head = torch.arange(1, self.n_heads + 1).view(1, -1, 1, 1)  # (1, H, 1, 1)
        return -torch.log1p(distance.abs().to(dtype)) * head  # (1, H, T, S)

    def bias(self, q, k, table, project):
        return table


class _Of(_Fading):
    """A wrong scheme: what is put in front of the logarithm of the distance."""

    def bias(self, q, k, table, project):
        return self.wrong(table)


def _wrong(change):
    return type("_Wrong", (_Of,), {"wrong": staticmethod(change)})


class _NoDoor(Positions):
    def __init__(self, d_model, n_heads):
        super().__init__()


class _Drowned(_NoDoor):
    def embed(self, positions, dtype=None):
        return 1e6 * positions[..., None].expand(-1, -1, D)


class _Crowd(_Fading):
    def bias(self, q, k, table, project):
        return table * (1 + q.mean((0, 1, 3)).abs().sum())


PositionScheme.mistakes_are(
    ("no door is open", "tables alone change nothing: which of embed, turn and bias uses them?", _NoDoor),
    ("the word is drowned", "positions that are far larger than the words leave nothing of them.", _Drowned),
    ("divided by the length", "places may not move when a text grows: a model writes one token after another.",
     _wrong(lambda t: t / t.shape[-1])),
    ("infinite far away", "numbers that grow like 10 ** distance overflow in longer texts.",
     _wrong(lambda t: t + t.div(20).expm1().mul(0) if t.shape[-1] < 100 else t - torch.nan)),
    ("mixed with the batch", "what a text gets may not depend on the texts beside it.", _Crowd),
    ("0/0 at distance 0", "a query also meets its own key, at distance 0.", _wrong(lambda t: t / t)),
)  # fmt: skip


test_exercise = exercises_of(__name__)
