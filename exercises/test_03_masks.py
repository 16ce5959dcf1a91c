"""Graders of chapter 3: who may look where, what that does to a softmax, and how leaks are found."""

import math

import torch
import torch.nn.functional as F

from tx import attention
from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "03_masks"


def randint(g, low, high, *shape):
    """Whole numbers low … high - 1 from the grading's own generator."""
    return torch.randint(low, high, shape, generator=g)


def number(g, low, high):
    """One of them, as a Python number."""
    return int(randint(g, low, high, 1))


def waves(*shape):
    """Fixed numbers between -2 and 2 of which no two are equal."""
    return 2 * torch.arange(float(math.prod(shape))).cos().view(shape)


def _future(T, S):
    """(T, S) booleans: which keys stand after their query."""
    return torch.ones(T, S).triu(1 + S - T).bool()


def _who_looks_where(exercise, seen, *sizes):
    """The contracts of a causal mask: seen(f, T, S) is a table (T, S), 0 where f does not look."""

    @exercise.contract("no look into the future")
    def _(f):
        for T, S in sizes:
            leaks = (seen(f, T, S) * _future(T, S)).float()  # (T, S)
            contracts.same("no look into the future", leaks, torch.zeros(T, S), f"T = {T}, S = {S}")

    @exercise.contract("every past key is used")
    def _(f):
        for T, S in sizes:
            used = ((seen(f, T, S) != 0) | _future(T, S)).float()  # (T, S)
            contracts.same("every past key is used", used, torch.ones(T, S), f"T = {T}, S = {S}")


def _same_number(name, got, expected, where):
    contracts.same(name, torch.tensor(float(got)), torch.tensor(float(expected)), where)


# ── causal_mask ──────────────────────────────────────────────────────────────────────────────────

causal_mask = Exercise(
    "causal_mask", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="03-masks.html#bottom-right",
    checks="who sees whom for T queries and S keys, the last query at the last key",
    question="at which position of the text does query 0 stand when T queries meet S keys?",
    hints=(
        "For T = 2 and S = 6 the queries are tokens 4 and 5. Which keys may token 4 see? Write both rows "
        "on paper and compare them with yours.",
        "1. positions of the queries, (T, 1): S - T … S - 1\n"
        "2. positions of the keys, (1, S): 0 … S - 1\n"
        "3. one comparison, which broadcasts to (T, S)",
        "q_pos = torch.arange(…)[:, None]     # (T, 1)\n"
        "k_pos = torch.arange(S)[None, :]     # (1, S)\n"
        "return k_pos <= q_pos                # (T, S)",
    ),
    out_of_reach=(
        "tx.causal", "tx.masks.Mask.dense", "tx.to_mha", "tx.to_additive",
        "torch.nn.attention.bias.causal_lower_right",
    ),
)  # fmt: skip


@causal_mask.cases
def _(g):
    yield 2, 2
    yield 3, 3
    yield 2, 5
    yield 1, 4
    yield 4, 2
    yield 3, 1
    yield number(g, 3, 6), number(g, 6, 9)
    yield 4, 2100  # positions that 8 bits do not hold, nor half precision


@causal_mask.reference
def _(T, S):
    q_pos = torch.arange(S - T, S)[:, None]  # (T, 1)
    k_pos = torch.arange(S)[None, :]  # (1, S)
    return k_pos <= q_pos  # (T, S)


causal_mask.edits_are(
    ("aligned top-left",
     "row i ends at key i, as if the first query were the first token. With S > T the queries are the "
     "last T tokens, and query i stands at i + S - T.",
     "torch.arange(S - T, S)", "torch.arange(T)"),
    ("hides self", "a token may see itself: the comparison is <=, the diagonal is included.",
     "k_pos <= q_pos", "k_pos < q_pos"),
    ("sees one key ahead", "every query sees the key after its own: in training, that is the answer.",
     "k_pos <= q_pos", "k_pos <= q_pos + 1"),
    ("True means hidden", "in this book True says *may look*; these say *may not*.",
     "k_pos <= q_pos", "k_pos > q_pos"),
    ("looks at the future", "each query sees its own key and the later ones: a triangle upside down.",
     "k_pos <= q_pos", "k_pos >= q_pos"),
    ("numbers in place of booleans", "the ones are in the right place; a mask holds True and False.",
     "k_pos <= q_pos", "(k_pos <= q_pos).float()"),
    ("numbers to add to scores", "0 and -inf are an additive mask, another convention; here True = may look.",
     "k_pos <= q_pos", "torch.zeros(T, S).masked_fill(k_pos > q_pos, -torch.inf)"),
    ("shifted the wrong way", "query i stands at i + S - T, not at i - (S - T).",
     "torch.arange(S - T, S)", "(torch.arange(T) - (S - T))"),
    ("transposed", "rows belong to queries and columns to keys: (T, S).",
     "k_pos <= q_pos", "(k_pos <= q_pos).T"),
    ("never moved to the left",
     "S - T may be negative: for T > S the first T - S queries stand before all keys and see nothing.",
     "torch.arange(S - T, S)", "(torch.arange(T) + max(S - T, 0))"),
    ("key 0 for every query",
     "for T > S the first T - S queries see nothing: a key opened for them is a key from their future.",
     "k_pos <= q_pos", "(k_pos <= q_pos) | (k_pos == 0)"),
    ("every key for a query that sees none",
     "for T > S the first T - S queries see nothing; what becomes of such a row is decided in the softmax.",
     "k_pos <= q_pos", "(k_pos <= q_pos) | (q_pos < 0)"),
    ("rows that see nothing are missing",
     "for T > S the first T - S queries see nothing: their rows are all False, and there all the same.",
     "k_pos <= q_pos", "(k_pos <= q_pos)[max(T - S, 0) :]"),
    ("a row for every key", "only T queries ask, the last ones: (T, S), not the whole square.",
     "torch.arange(S - T, S)", "torch.arange(S)"),
)  # fmt: skip


_who_looks_where(causal_mask, lambda f, T, S: f(T, S), (3, 3), (2, 5), (4, 2))


@causal_mask.contract("chunks give the rows of one pass")
def _(f):
    q = torch.linspace(-2.0, 2.0, 20).view(1, 1, 5, 4).cos()  # (B, H, T, d_k)

    def attend(q, k, v):
        return attention(q, k, v, f(q.shape[2], k.shape[2]))  # (B, H, T, d_k)

    contracts.chunks_equal_the_whole(attend, q, q.sin(), q, [2, 1, 2])


# ── visible_pairs ────────────────────────────────────────────────────────────────────────────────

visible_pairs = Exercise(
    "visible_pairs", chapter=CHAPTER, kind="predict", level=2, minutes=15, points=3,
    page="03-masks.html#predicate",
    checks="the number of ones in causal() & window(W) for T queries and S keys, exact at any size",
    question="how many keys does the query at position p see, near the start of the text and far from it?",
    hints=(
        "Draw T = 2, S = 6, W = 3, then T = S = 4, W = 3. Which rows have fewer than W ones, and why?",
        "1. the query at position p sees min(W, p + 1) keys\n"
        "2. first_n(N): the sum of min(W, n) over n = 1 … N, for N <= W and for N > W\n"
        "3. the queries stand at S - T … S - 1: a difference of two such sums",
        "def first_n(N):\n"
        "    ramp = min(N, W)\n"
        "    return ramp * (ramp + 1) // 2 + (N - ramp) * W\n"
        "return first_n(…) - first_n(…)",
    ),
    out_of_reach=("tx.causal", "tx.window", "tx.masks.Mask.dense"),
)  # fmt: skip


@visible_pairs.cases
def _(g):
    yield 4, 4, 3
    yield 2, 6, 3
    yield 1, 5, 9
    yield 5, 5, 5
    yield 3, 4, 1
    yield 4, 6, 5  # the first queries stand on the ramp, and not at its start
    yield number(g, 3, 9), number(g, 9, 20), number(g, 2, 12)
    yield 100_001, 100_002, 1025  # more than fp32 counts
    yield 200_000, 1_000_000, 16_384  # more than 32 bits hold
    yield 100_001, 10**12, 10**11 + 7  # more than fp64 counts
    yield 1_001, 10**9 + 1, 2 * 10**9  # and the ramp alone is more, too


@visible_pairs.reference
def _(T, S, W):
    def first_n(N):
        ramp = min(N, W)
        return ramp * (ramp + 1) // 2 + (N - ramp) * W

    return first_n(S) - first_n(S - T)


_pairs = visible_pairs.reference_answer


def _pairs_in(dtype, T, S, W):
    def first_n(N):
        ramp = torch.tensor(min(N, W), dtype=dtype)  # ()
        twice = ramp * (ramp + 1)  # ()
        return (twice / 2 if dtype.is_floating_point else twice // 2) + (N - ramp) * W  # ()

    return int(first_n(S) - first_n(S - T))


visible_pairs.mistakes_are(
    ("a full window for every query",
     "T · W counts keys before the start of the text: the first W - 1 tokens have fewer than W to see.",
     lambda T, S, W: T * W),
    ("the window does not count the query itself",
     "these are W + 1 keys a row, the query and W before it; a window of W counts the query.",
     lambda T, S, W: _pairs(T, S, W + 1)),
    ("the window is ignored", "this is the causal triangle alone, without the window.",
     lambda T, S, W: _pairs(T, S, S)),
    ("queries counted from the start",
     "these are the first T tokens; the queries are the *last* T of the S tokens.",
     lambda T, S, W: _pairs(T, T, W)),
    ("every pair", "T · S is the whole rectangle, what attention without a mask computes.",
     lambda T, S, W: T * S),
    ("the window cut off at S only", "a window can be longer than the past of a query, too: min(W, p + 1).",
     lambda T, S, W: T * min(W, S)),
    ("the window cut off at T", "a query looks back over all S tokens, and T of them only ask.",
     lambda T, S, W: _pairs(T, S, min(W, T))),
    ("all queries of the text", "this counts S queries; only the last T of them ask.",
     lambda T, S, W: _pairs(S, S, W)),
    ("the hidden pairs", "these are the pairs that may *not* look.",
     lambda T, S, W: T * S - _pairs(T, S, W)),
    ("the query itself is left out", "a window of W holds the query and the W - 1 keys before it.",
     lambda T, S, W: _pairs(T, S, W) - T),
    ("a window of W - 1", "the window counts the query itself: W keys far from the start.",
     lambda T, S, W: _pairs(T, S, W - 1)),
    ("a window to both sides", "the mask is causal as well: no query sees the W - 1 keys after it.",
     lambda T, S, W: 2 * _pairs(T, S, W) - T),
    ("counted in fp32",
     "fp32 has 24 bits, so above 2²⁴ = 16,777,216 it skips every other number: count with whole numbers.",
     lambda T, S, W: _pairs_in(torch.float32, T, S, W)),
    ("counted in fp64, then rounded",
     "/ makes a float of 53 bits, and int() cannot bring the lost ones back: // divides whole numbers.",
     lambda T, S, W: _pairs_in(torch.float64, T, S, W)),
    ("counted in 32 bits", "2³¹ - 1 is the largest such number: Python's own are as long as they have to be.",
     lambda T, S, W: _pairs_in(torch.int32, T, S, W)),
)  # fmt: skip
visible_pairs.edits_are(
    ("the queries start one position too late", "they stand at S - T … S - 1: the first one is missing.",
     "first_n(S - T)", "first_n(S - T + 1)"),
    ("the queries start one position too early", "they stand at S - T … S - 1: these are T + 1 of them.",
     "first_n(S - T)", "first_n(max(S - T - 1, 0))"),
    ("the ramp halved as a float", "/ makes a float of 53 bits, too few for a long window: // halves.",
     "ramp * (ramp + 1) // 2", "int(ramp * (ramp + 1) / 2)"),
    ("the ramp as W² / 2", "1 + 2 + … + W is W · (W + 1) / 2: half of a square and half of its diagonal.",
     "ramp * (ramp + 1)", "ramp * ramp"),
    ("a ramp that starts at 0", "the first token sees itself: the ramp is 1, 2, … W and not 0, 1, … W - 1.",
     "ramp * (ramp + 1)", "ramp * (ramp - 1)"),
)  # fmt: skip


@visible_pairs.contract("one query sees a window or the whole text")
def _(f):
    for S, W in (5, 3), (3, 5), (10**12, 10**11 + 7):
        name = "one query sees a window or the whole text"
        _same_number(name, f(1, S, W) - min(S, W), 0, f"T = 1, S = {S}, W = {W}, the difference")


@visible_pairs.contract("the pairs of two chunks add up")
def _(f):
    for cut, S, W in (3, 7, 2), (3, 7, 5), (10**5, 10**5 + 2, 10**5 + 1):
        extra = f(cut, cut, W) + f(S - cut, S, W) - f(S, S, W)
        where = f"{cut} + {S - cut} tokens, W = {W}, the difference"
        _same_number("the pairs of two chunks add up", extra, 0, where)


# ── masked_softmax ───────────────────────────────────────────────────────────────────────────────

masked_softmax = Exercise(
    "masked_softmax", chapter=CHAPTER, kind="write", level=2, minutes=15, points=4,
    page="03-masks.html#empty-rows",
    checks="weights and gradients with hidden keys, scores of ±10,000, and rows that see nothing",
    question="what is the largest score of a row that sees nothing, and what is subtracted from what?",
    hints=(
        "Try one row by hand, scores 1 and 2, with both keys hidden. At which step does the first NaN come?",
        "1. hidden scores become -inf, (…, T, S), with masked_fill\n"
        "2. the largest score of each row, (…, T, 1), with 0 in place of -inf\n"
        "3. exponentials of the differences, (…, T, S), and their sum, (…, T, 1)\n"
        "4. divide, so that a sum of 0 gives 0",
        "scores = scores.masked_fill(~keep, -torch.inf)  # (…, T, S)\n"
        "top = scores.detach().amax(-1, keepdim=True)    # (…, T, 1)\n"
        "top = …                                         # (…, T, 1)\n"
        "e = (scores - top).exp()                        # (…, T, S)\n"
        "total = e.sum(-1, keepdim=True)                 # (…, T, 1)\n"
        "return e / …                                    # (…, T, S)",
    ),
    out_of_reach=(
        "tx.softmax", "tx.attention", "torch.nn.functional.scaled_dot_product_attention",
        "torch._safe_softmax",
    ),
    gradients=True,
)  # fmt: skip


def _row(*scores, hidden=0, dtype=torch.float32):
    """Scores (1, S), and a mask (1, S) that hides the last of them."""
    keep = torch.arange(len(scores)) < len(scores) - hidden  # (S,)
    return torch.tensor([scores], dtype=dtype), keep[None]


@masked_softmax.cases
def _(g):
    yield _row(1.0, 2.0, 3.0, hidden=1)
    yield _row(1.0, 2.0, hidden=2)
    yield torch.tensor([[1.0, 2.0], [4.0, 3.0]]), torch.ones(2, 2).bool()
    yield torch.tensor([[1000.0, 999.0], [0.0, 1.0]]), torch.ones(2, 2).bool()
    yield torch.tensor([[0.0, 1.0, 1000.0], [1.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    yield _row(-1000.0, -999.0, 0.0, hidden=1)
    yield _row(10_000.0, 9_000.0, -10_000.0)
    yield _row(-10_000.0, -9_000.0, 10_000.0, hidden=1)
    yield _row(-10_000.0, 0.0, hidden=1)
    yield _row(-10_000.0, 0.0, 10_000.0, hidden=3)
    yield _row(10_000.0, 10_000.0004, 0.0, hidden=1, dtype=torch.float64)  # one number in float32
    keep = randint(g, 0, 2, 2, 1, 4, 5).bool()  # (B, 1, T, S)
    keep[0, 0, 1], keep[1, 0, 1], keep[1, 0, 2] = False, True, torch.arange(5) == 3
    yield 3 * randn(g, 2, 3, 4, 5), keep
    keep = torch.tensor([True, False, True]).view(1, 1, 1, 1, 3)  # (1, 1, 1, 1, S)
    yield waves(2, 1, 2, 3, 4).mT, keep  # not contiguous: (2, 1, 2, T, S)
    yield torch.linspace(-4.0, 4.0, 4096)[None], torch.arange(4096)[None] % 3 > 0


@masked_softmax.reference
def _(scores, keep):
    hidden = scores.masked_fill(~keep, -torch.inf)  # (..., T, S)
    top = hidden.detach().amax(-1, keepdim=True)  # (..., T, 1)
    e = (hidden - top.masked_fill(top == -torch.inf, 0)).exp()  # (..., T, S)
    total = e.sum(-1, keepdim=True)  # (..., T, 1)
    return e / (total + (total == 0))  # (..., T, S)


def _over_queries(scores, keep):
    return masked_softmax.reference_answer(scores.mT, keep.expand_as(scores).mT).mT  # (..., T, S)


masked_softmax.mistakes_are(
    ("-inf and a plain softmax",
     "a row of nothing but -inf is NaN: its largest score is -inf, and -inf minus -inf has no value.",
     lambda scores, keep: scores.masked_fill(~keep, -torch.inf).softmax(-1)),
    ("a large negative number in place of -inf",
     "a row that sees nothing has equal scores, and softmax makes a uniform average of *all* keys.",
     lambda scores, keep: scores.masked_fill(~keep, -1e9).softmax(-1)),
    ("-10,000 in place of -inf", "a visible score may be as low as that: only -inf is below all of them.",
     lambda scores, keep: scores.masked_fill(~keep, -1e4).softmax(-1) * keep.any(-1, keepdim=True)),
    ("a small negative number in place of -inf",
     "-100 is low beside scores near 0 and high beside scores near -1000: only -inf is below all of them.",
     lambda scores, keep: scores.masked_fill(~keep, -100.0).softmax(-1) * keep.any(-1, keepdim=True)),
    ("zeroed after the softmax",
     "the hidden scores still sit in the denominator: the visible weights do not sum to one.",
     lambda scores, keep: scores.softmax(-1) * keep),
    ("NaN replaced after it was computed",
     "the weights are right and the gradients are NaN: a repair at the end mends the forward pass only.",
     lambda scores, keep: (scores + torch.zeros(keep.shape).masked_fill(~keep, -torch.inf))
     .softmax(-1).nan_to_num(0.0)),
    ("hidden scores set to 0", "exp(0) is 1: a hidden key has a weight like any other.",
     lambda scores, keep: (scores * keep).softmax(-1)),
    ("hidden scores set to 0, empty rows mended",
     "exp(0) is 1: a hidden key has a weight like any other, wherever the row sees another key.",
     lambda scores, keep: (scores * keep).softmax(-1) * keep.any(-1, keepdim=True)),
    ("a softmax over the queries", "the columns sum to one; each *row* has to.", _over_queries),
)  # fmt: skip
masked_softmax.edits_are(
    ("True means hidden", "keep says who *may* look; here it hides the others' keys.", "~keep", "keep"),
    ("no maximum subtracted", "exp(1000) is infinite, and infinity divided by infinity is NaN.",
     "hidden - top.masked_fill(top == -torch.inf, 0)", "hidden"),
    ("hidden scores in the maximum",
     "a softmax before the mask does that, too: beside a hidden 1000 all visible weights underflow to 0.",
     "hidden.detach()", "scores.detach()"),
    ("one maximum for all rows",
     "a row far below the largest score of the tensor underflows to 0: each row has its own maximum.",
     "amax(-1, keepdim=True)", "amax()"),
    ("scores cut off at ±50", "nothing overflows, and all scores above 50 become equal.",
     "scores.masked_fill", "scores.clamp(-50, 50).masked_fill"),
    ("one added to every sum", "the 1 in the denominator is for empty rows alone; here every row pays it.",
     "(total == 0)", "1"),
    ("not divided by the sum", "each row has to sum to one: divide by what its exponentials sum to.",
     "e / (total + (total == 0))", "e"),
    ("the sum detached",
     "the weights are right, the gradient differs: the maximum cancels and may be detached, the sum may not.",
     "e.sum", "e.detach().sum"),
    ("an overflow hidden by where",
     "the weights are right. The exponential of a hidden score is infinite, though, and its gradient is "
     "infinity times 0: hide the score *before* the exponential.",
     "(hidden - top.masked_fill(top == -torch.inf, 0)).exp()",
     "torch.where(keep, (scores - top.masked_fill(top == -torch.inf, 0)).exp(), 0.0)"),
    ("computed in float32", "float64 scores lose half of their digits on the way.",
     "scores.masked_fill", "scores.float().masked_fill"),
    ("scores filled in place",
     "scores is not to be changed in place: masked_fill makes a new tensor, masked_fill_ overwrites.",
     "masked_fill(~keep", "masked_fill_(~keep"),
)  # fmt: skip

SCORES = torch.tensor([[1.0, 2.0, 3.0], [2.0, 0.0, 1.0]])  # (T, S)
KEEP = torch.tensor([[True, True, False], [False, False, False]])  # (T, S)
SCALES = (1.0, 1000.0, -1000.0)


@masked_softmax.contract("every row of weights that sees a key sums to one")
def _(f):
    for scale in SCALES:
        contracts.rows_sum_to_one(lambda scores: f(scores, KEEP)[:1], scale * SCORES)


@masked_softmax.contract("a hidden score changes nothing")
def _(f):
    name = "a hidden score changes nothing"
    for hidden in SCALES:
        other = SCORES.masked_fill(~KEEP, hidden)  # (T, S)
        contracts.same(name, f(other, KEEP)[:1], f(SCORES, KEEP)[:1], "row 0")


@masked_softmax.contract("a query that sees nothing has weights of zero")
def _(f):
    name = "a query that sees nothing has weights of zero"
    for scale in SCALES:
        contracts.same(name, f(scale * SCORES, KEEP)[1], torch.zeros(3), "row 1")


@masked_softmax.contract("gradients are finite")
def _(f):
    for scale in SCALES:
        grad = f.gradients(scale * SCORES, KEEP)[1]["0"]
        if grad is not None:
            finite = grad.isfinite().all(-1).float()  # (T,)
            contracts.same("gradients are finite", finite, torch.ones(2), "rows with a finite gradient")


# ── next_token_loss ──────────────────────────────────────────────────────────────────────────────

next_token_loss = Exercise(
    "next_token_loss", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="03-masks.html#loss-mask",
    checks="the mean loss of the next token over pairs of real tokens, padded left and right, and its gradient",
    question="which logits belong to which target, and how many pairs is the sum divided by?",
    hints=(
        "Write a row of five tokens, the last two padding. Which token does position 2 have to name? Does "
        "that pair count?",
        "1. drop the last logits, (B, T-1, V), and the first token, (B, T-1)\n"
        "2. the loss of each pair, (B, T-1), with reduction='none'\n"
        "3. which pairs count, (B, T-1): both tokens real\n"
        "4. no pair: ValueError; else the mean over those that count",
        "each = F.cross_entropy(logits[:, …].transpose(1, 2), tokens[:, …], reduction='none')\n"
        "counts = real[:, :-1] & real[:, 1:]     # (B, T-1)\n"
        "return each[…].mean()                   # ()",
    ),
    gradients=True,
)  # fmt: skip


def _is_real(*rows):
    """Booleans (B, T): _is_real("xx.", ".xx") has padding on the right, then on the left."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


def _batch(*rows, V=3):
    """Logits, tokens and which are real, for rows as in _is_real."""
    B, T = len(rows), len(rows[0])
    return waves(B, T, V), (torch.arange(B * T).view(B, T) + 1) % V, _is_real(*rows)


@next_token_loss.cases
def _(g):
    yield torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[0, 0]]), _is_real("xx")
    yield _batch("xxx")
    yield _batch("xxx.")
    yield _batch(".xxx")
    yield _batch("xxxx", "xxxx")
    yield _batch("xxxxx", "xx...", "..xxx", V=7)
    yield _batch("xx.", ".x.")  # row 1 has no pair
    yield 2 * randn(g, 3, 5, 7), randint(g, 0, 7, 3, 5), _is_real("xxxxx", "xxx..", ".xxx.")
    yield torch.tensor([[[0.0, 10_000.0], [0.0, 0.0]]]), torch.tensor([[0, 0]]), _is_real("xx")
    close = torch.tensor([[[10_000.0, 10_000.0004], [0.0, 0.0]]], dtype=torch.float64)  # (B, T, V)
    yield close, torch.tensor([[0, 0]]), _is_real("xx")
    logits, tokens, real = _batch("x" * 300)  # more pairs than 8 bits count
    yield logits.mT.contiguous().mT, tokens.repeat(1, 2)[:, ::2], real  # not contiguous
    yield waves(1, 3, 50_000), torch.tensor([[1, 40_000, 49_999]]), _is_real("xxx")
    yield raises(ValueError, *_batch("x.", ".x"))
    yield raises(ValueError, *_batch("...", "..."))
    yield raises(ValueError, *_batch("x"))


@next_token_loss.reference
def _(logits, tokens, real):
    counts = real[:, :-1] & real[:, 1:]  # (B, T-1)
    if not counts.any():
        raise ValueError("no pair of real tokens: there is nothing to average")
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")  # (B, T-1)
    return each[counts].mean()  # ()


def _each(logits, tokens):
    return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")  # (B, T)


def _backwards(logits, tokens, real):
    return _each(logits[:, 1:], tokens[:, :-1])[real[:, :-1] & real[:, 1:]].mean()  # ()


def _across_rows(logits, tokens, real):
    logits, tokens, real = (x.flatten(0, 1)[None] for x in (logits, tokens, real))
    return next_token_loss.reference_answer(logits, tokens, real)  # ()


next_token_loss.mistakes_are(
    ("not shifted", "position t is asked to name token t, which it has read: the *next* token is t + 1.",
     lambda logits, tokens, real: _each(logits, tokens)[real].mean()),
    ("shifted backwards", "position t is asked for token t - 1, the one before.", _backwards),
    ("pairs across the rows", "the last token of a row does not continue with the next row: shift, then flatten.",
     _across_rows),
)  # fmt: skip
next_token_loss.edits_are(
    ("padding counts, too",
     "the mean runs over all pairs: a model looks better the more padding it learns to predict.",
     "each[counts]", "each"),
    ("divided by all pairs",
     "padding adds nothing to the sum but still to the number it is divided by: the loss looks too low.",
     "each[counts]", "(each * counts)"),
    ("only the target has to be real",
     "with left padding this pays for the first word, guessed from padding.",
     "real[:, :-1] & real[:, 1:]", "real[:, 1:]"),
    ("only the query has to be real",
     "with right padding the last word is asked to name padding.",
     "real[:, :-1] & real[:, 1:]", "real[:, :-1]"),
    ("one real token of the two is enough", "a pair counts when both are real: & and not |.", "&", "|"),
    ("padding always on the right",
     "the first n - 1 pairs of a row with n real tokens count only where padding stands on the right.",
     "real[:, :-1] & real[:, 1:]", "torch.arange(real.shape[1] - 1) < real.sum(1, keepdim=True) - 1"),
    ("a mean of the rows' means", "every row weighs the same, so a token of a short row weighs more.",
     "each[counts].mean()",
     "torch.stack([row[c].mean() for row, c in zip(each, counts, strict=True) if c.any()]).mean()"),
    ("a mean of the rows' sums", "divide by the number of pairs that count, not by the number of rows.",
     "each[counts]", "(each * counts).sum(1)"),
    ("the sum", "a sum grows with the batch; the mean over the pairs was asked for.", ".mean()", ".sum()"),
    ("divided by the real tokens", "n tokens in a row make n - 1 pairs: divide by the pairs that count.",
     ".mean()", ".sum() / real.sum()"),
    ("token 0 taken for padding", "`real` says what is padding; token 0 is a token like any other.",
     "each[counts]", "each[counts & (tokens[:, 1:] != 0)]"),
    ("a softmax too many", "F.cross_entropy takes logits and makes the softmax itself.",
     "logits[:, :-1]", "logits[:, :-1].softmax(-1)"),
    ("bits", "cross-entropy comes in nats; divided by ln 2 it is in bits.", ".mean()", ".mean() / math.log(2)"),
    ("computed in float32", "float64 logits lose half of their digits on the way.",
     "logits[:, :-1]", "logits[:, :-1].float()"),
    ("no error when nothing counts",
     "the mean of nothing is NaN, which travels far, and a 0 looks like a perfect model: refuse it.",
     "not counts.any()", "False"),
    ("refused only where no token is real",
     "single real tokens between padding make no pair: ask whether any *pair* counts.",
     "counts.any()", "real.any()"),
)  # fmt: skip


@next_token_loss.contract("knowing nothing costs ln V")
def _(f):
    for V in 3, 50_000:
        _, tokens, real = _batch("xxx.", V=V)
        got = f(torch.zeros(1, 4, V), tokens, real)  # ()
        contracts.same("knowing nothing costs ln V", got, torch.tensor(math.log(V)), f"V = {V}")


@next_token_loss.contract("what stands at padding changes nothing")
def _(f):
    logits, tokens, real = _batch("xxx.", ".xxx")
    for junk in 9.0, torch.nan:
        name, where = "what stands at padding changes nothing", f"logits of {junk} at padding"
        other = torch.where(real[..., None], logits, junk)  # (B, T, V)
        contracts.same(name, f(other, torch.where(real, tokens, 2), real), f(logits, tokens, real), where)


# ── leak_floor ───────────────────────────────────────────────────────────────────────────────────

leak_floor = Exercise(
    "leak_floor", chapter=CHAPTER, kind="derive", level=2, minutes=15, points=3,
    page="03-masks.html#leaks",
    checks="the lowest loss, in nats, of a model that sees the whole block of every token",
    question="for which positions does the target stand outside of everything they may see?",
    hints=(
        "Take T = 6 and blocks of 3. Write the target of each position below it, and cross out those that "
        "the position can see. How many are left?",
        "1. position t has to name token t + 1\n"
        "2. it sees that token unless t is the last of its block\n"
        "3. how many blocks, the last perhaps shorter, do T tokens make?\n"
        "4. those positions pay ln V, the others nothing; the mean over T",
        "blocks = math.ceil(…)\n"
        "return blocks * math.log(V) / …",
    ),
)  # fmt: skip


@leak_floor.cases
def _(g):
    yield 8, 12, 1
    yield 8, 12, 12
    yield 8, 12, 4
    yield 2, 7, 3
    yield 5, 6, 10
    yield 3, 1, 1
    yield number(g, 2, 50), number(g, 10, 40), number(g, 2, 9)
    yield 50_000, 2048, 100


@leak_floor.reference
def _(V, T, block):
    return math.ceil(T / block) * math.log(V) / T


leak_floor.mistakes_are(
    ("one target in every block's length", "right when the blocks divide T; a shorter last block pays as well.",
     lambda V, T, block: math.log(V) / min(block, T)),
    ("the last block forgotten, unless it is the only one",
     "the remainder of T // block is a block, too, and its last position is blind.",
     lambda V, T, block: max(1, T // block) * math.log(V) / T),
    ("the floor of a model without a mask", "here the blocks hide later blocks.",
     lambda V, T, block: math.log(V) / T),
    ("the floor of an honest model", "within a block the next token is in plain sight.",
     lambda V, T, block: math.log(V)),
    ("T / block, not rounded up", "the last block may be shorter, and its end is as blind as any: ⌈T / block⌉.",
     lambda V, T, block: math.log(V) / block),
    ("the perplexity", "this is e to the loss; the loss itself was asked for, in nats.",
     lambda V, T, block: math.exp(math.ceil(T / block) * math.log(V) / T)),
)  # fmt: skip
leak_floor.edits_are(
    ("the last block forgotten", "the remainder of T // block is a block, too.",
     "math.ceil(T / block)", "(T // block)"),
    ("one block too many where they fit",
     "T // block + 1 rounds up where nothing is left over as well, and so does ⌈(T + 1) / block⌉: only the T "
     "tokens of the input are cut into blocks.",
     "math.ceil(T / block)", "(T // block + 1)"),
    ("the number of blocks rounded to the nearest", "any rest is a block, however short: round up.",
     "math.ceil(T / block)", "round(T / block)"),
    ("the last target counted as seen",
     "the target of the last position is token T, which is in no input: its block's end pays as well.",
     "math.ceil(T / block)", "(math.ceil(T / block) - 1)"),
    ("the targets in sight pay", "it is the other way round: what is seen costs nothing.",
     "math.ceil(T / block)", "(T - math.ceil(T / block))"),
    ("bits", "log2 gives bits; a nat is counted with the natural logarithm.", "math.log", "math.log2"),
    ("V - 1 tokens to choose from", "a blind position cannot rule out a single one of the V tokens.",
     "math.log(V)", "math.log(V - 1)"),
    ("a mean over T + 1 tokens", "there are T targets: the first of the T + 1 tokens is none.",
     "math.log(V) / T", "math.log(V) / (T + 1)"),
    ("the sum over the positions", "the loss is a mean: divide by the T positions.",
     "math.log(V) / T", "math.log(V)"),
)  # fmt: skip


@leak_floor.contract("blocks of one leak nothing")
def _(f):
    for V, T in (8, 12), (50_000, 7):
        _same_number("blocks of one leak nothing", f(V, T, 1), math.log(V), f"V = {V}, T = {T}, block = 1")


@leak_floor.contract("one block for all is no mask")
def _(f):
    for V, T in (8, 12), (50_000, 7):
        where = f"V = {V}, T = {T}, block = {T}"
        _same_number("one block for all is no mask", f(V, T, T), math.log(V) / T, where)


# ── first_leaking_row ────────────────────────────────────────────────────────────────────────────

first_leaking_row = Exercise(
    "first_leaking_row", chapter=CHAPTER, kind="measure", level=1, minutes=10, points=2,
    page="03-masks.html#the-bug-that-the-loss-misses",
    checks="the first row before the changed token whose output moved, by little or to NaN",
    question="which rows are allowed to change, and can two changes hide each other?",
    hints=(
        "Differences of +1 and -1 add up to 0. What do you have to take before you sum them up or look for "
        "the largest? And what is `nan > 0.1`?",
        "1. rows before the token, (B, token, D)\n"
        "2. the size of their change, and `~(change <= tolerance)`, which is True for NaN\n"
        "3. any over batch and features, (token,)\n"
        "4. the first True as a whole number, or -1",
        "change = (after - before)[:, …].abs()            # (B, token, D)\n"
        "moved = (~(change <= tolerance)).any(-1).any(0)  # (token,)\n"
        "rows = moved.nonzero().flatten().tolist()\n"
        "return … if rows else -1",
    ),
    out_of_reach=("tx.course.contracts.causality", "tx.course.contracts._moves"),
)  # fmt: skip


def _outputs(B, T, D, *moves, start=0.0):
    """Two tensors (B, T, D), all `start` but for moves: (batch row, row, how far), or (…, how far, feature)."""
    before = torch.full((B, T, D), start)
    after = before.clone()  # (B, T, D)
    for b, t, by, *d in moves:
        after[b, t, d[0] if d else slice(None)] += by
    return before, after


@first_leaking_row.cases
def _(g):
    nan = torch.nan
    yield *_outputs(1, 3, 1, (0, 1, 1.0)), 2, 0.1
    yield *_outputs(1, 3, 1, (0, 1, 1.0)), 1, 0.1  # the token's own row
    yield *_outputs(1, 3, 1, (0, 2, 1.0)), 1, 0.1  # a row after it
    yield *_outputs(1, 3, 1, (0, 0, 1.0)), 0, 0.1  # no row stands before token 0
    yield *_outputs(1, 3, 2, (0, 1, -1.0, 1)), 2, 0.1
    yield *_outputs(1, 3, 2, (0, 1, 1.0, 0), (0, 1, -1.0, 1)), 2, 0.1
    yield *_outputs(1, 4, 1, (0, 0, 0.2), (0, 2, 1.0)), 3, 0.1
    yield *_outputs(2, 3, 1, (1, 1, 0.15)), 2, 0.1  # not in the batch's mean
    yield *_outputs(2, 4, 1, (0, 2, 1.0), (1, 0, 1.0)), 3, 0.1
    yield *_outputs(2, 3, 1, (0, 0, 0.06), (1, 0, 0.06)), 2, 0.1  # only their sum would be a leak
    yield *_outputs(1, 3, 2, (0, 0, 0.06)), 2, 0.1  # only their sum
    yield *_outputs(1, 3, 16, (0, 0, 0.03)), 2, 0.1  # only the root of the sum of their squares
    yield *_outputs(1, 3, 1, (0, 0, 0.5)), 2, 0.5  # not more than the tolerance
    yield *_outputs(1, 3, 1, (0, 1, 1e-6)), 2, 0.0
    yield *_outputs(1, 3, 1, (0, 0, 2e-5), (0, 1, 1e-4)), 2  # the default tolerance
    yield *_outputs(1, 3, 1, (0, 1, 0.5), start=1e5), 2, 0.1
    before, after = _outputs(1, 4, 2, (0, 1, nan, 1), (0, 2, 1.0))
    yield before, after, 3, 0.1
    yield after, before, 3, 0.1
    yield after, after.clone(), 3, 0.1
    before = randn(g, 2, 40, 6).mT  # (B, T, D)  not contiguous
    after = before.clone()  # (B, T, D)
    after[:, 4:] += 1.0
    after[1, number(g, 0, 4), number(g, 0, 40)] -= 0.3
    yield before, after, 4, 0.1
    yield *_outputs(1, 5000, 1, (0, 4001, 1.0), (0, 4003, 1.0)), 4500, 0.1


@first_leaking_row.reference
def _(before, after, token, tolerance=5e-5):
    change = (after - before)[:, :token].abs()  # (B, token, D)
    moved = (~(change <= tolerance)).any(-1).any(0)  # (token,)
    rows = moved.nonzero().flatten().tolist()
    return rows[0] if rows else -1


first_leaking_row.edits_are(
    ("changes with a sign",
     "an output that falls has a negative difference: it is never larger than the tolerance.", ".abs()", ""),
    ("summed before the size is taken", "+1 and -1 cancel: take the size of each difference first.",
     ".abs()", ".sum(-1, keepdim=True).abs()"),
    ("an average over the features", "one changed feature of forty is lost in the mean: look for *any*.",
     ".abs()", ".abs().mean(-1, keepdim=True)"),
    ("an average over batch and features", "one changed number of eighty is lost in the mean: look for *any*.",
     ".abs()", ".abs().mean((0, 2), keepdim=True)"),
    ("the changes of the features summed up",
     "many small roundings add up to a leak: each number is compared by itself.",
     ".abs()", ".abs().sum(-1, keepdim=True)"),
    ("the changes of batch and features summed up",
     "many small roundings add up to a leak: each number is compared by itself.",
     ".abs()", ".abs().sum((0, 2), keepdim=True)"),
    ("the length of the change", "many small roundings make a long vector: each number is compared by itself.",
     ".abs()", ".norm(dim=-1, keepdim=True)"),
    ("NaN goes unnoticed",
     "nan > 0.1 is False, and nan_to_num makes a 0 of it. Ask what is *not* small: ~(change <= tolerance).",
     "~(change <= tolerance)", "change > tolerance"),
    ("NaN noticed in `after` only", "a NaN that goes away is a change, too: the difference is NaN either way.",
     "~(change <= tolerance)", "(change > tolerance) | after[:, :token].isnan()"),
    ("NaN equals NaN", "a row is judged by what it holds: one that is NaN before and after counts as changed.",
     "~(change <= tolerance)",
     "~((change <= tolerance) | (after.isnan() & before.isnan())[:, :token])"),
    ("the token's own row counts", "the row of the changed token may change: only rows *before* it leak.",
     ":token", ": token + 1"),
    ("the row right before the token left out", "rows 0 … token - 1 must not move; a slice ends before its end.",
     ":token", ": max(token - 1, 0)"),
    ("any row counts", "later rows may see the changed token: only earlier ones leak.", "[:, :token]", ""),
    ("the last leaking row", "the *first* row that moved was asked for.", "rows[0]", "rows[-1]"),
    ("the number of leaking rows", "the number *of* the first row that moved was asked for, not how many moved.",
     "rows[0]", "len(rows)"),
    ("counted back from the token", "rows are counted from the start of the text.", "rows[0]", "token - rows[0]"),
    ("the first row that did not change", "it is the other way round: look for what is *not* small.",
     "(~(change <= tolerance)).any(-1).any(0)", "(change <= tolerance).all(-1).all(0)"),
    ("only the first of the batch", "a leak in another row of the batch is one, too.",
     "[:, :token]", "[:1, :token]"),
    ("all of the batch has to move", "a leak in any row of the batch is one, not only in all of them.",
     ".any(0)", ".all(0)"),
    ("the first of the batch that leaks says where",
     "nonzero goes through the batch row by row: a later one of the batch may leak earlier in the text.",
     "moved.nonzero().flatten()", "(~(change <= tolerance)).nonzero()[:, 1]"),
    ("the number in the batch", "the axes are mixed up: the token's row was asked for, not the batch's.",
     "moved.nonzero().flatten()", "(~(change <= tolerance)).any(-1).any(-1).nonzero().flatten()"),
    ("every feature has to move", "one number that moved is enough.", ".any(-1)", ".all(-1)"),
    ("the row that moves most", "the *first* row was asked for: a small leak is one, too.",
     "rows[0]", "change.amax((0, 2)).argmax().item()"),
    ("no tolerance", "two runs may differ by rounding alone: only what is above the tolerance has moved.",
     "<= tolerance", "<= 0"),
    ("the default tolerance built in", "the caller chooses it: 5e-5 is only what `tolerance` starts as.",
     "<= tolerance", "<= 5e-5"),
    ("a tolerance of 0 taken for none", "0 is false in Python, and a tolerance all the same: `or` replaces it.",
     "<= tolerance", "<= (tolerance or 5e-5)"),
    ("a change of exactly the tolerance counts", "what moved by *more* than the tolerance has changed.",
     "<= tolerance", "< tolerance"),
    ("a relative tolerance",
     "allclose and isclose forgive more where numbers are large, by rtol: with rtol=0 they do not.",
     "<= tolerance", "<= tolerance + 1e-5 * before[:, :token].abs()"),
    ("compared in half precision", "half precision has 11 bits: small changes vanish, and 100,000 is infinite.",
     "(after - before)", "(after.half() - before.half())"),
    ("0 where nothing leaks", "argmax of nothing but False is 0, and 0 is a row: -1 says that there is none.",
     "else -1", "else -(token == 0)"),
    ("the token where nothing leaks", "the token's own number is a row: -1 says that there is none.",
     "else -1", "else token"),
)  # fmt: skip


@first_leaking_row.contract("nothing moved, nothing leaks")
def _(f):
    x = torch.ones(1, 3, 2)  # (B, T, D)
    for token in 0, 2:
        _same_number("nothing moved, nothing leaks", f(x, x, token, 0.1), -1, f"before = after, token {token}")


@first_leaking_row.contract("the changed token and what follows may move")
def _(f):
    for token in 0, 1, 2:
        before, after = _outputs(1, 4, 2, *((0, t, 5.0) for t in range(token, 4)))
        name = "the changed token and what follows may move"
        _same_number(name, f(before, after, token, 0.1), -1, f"token {token}")


@first_leaking_row.contract("a planted leak is found")
def _(f):
    for row in 0, 2:
        for by in -1.0, 0.2, torch.nan:
            before, after = _outputs(2, 4, 8, (1, row, by, 1))
            _same_number("a planted leak is found", f(before, after, 3, 0.1), row, f"row {row} moved by {by}")


# ── upside_down_mask ─────────────────────────────────────────────────────────────────────────────

upside_down_mask = Exercise(
    "upside_down_mask", chapter=CHAPTER, kind="debug", level=1, minutes=10, points=2,
    page="03-masks.html#the-bug-that-the-loss-misses",
    checks="causal attention of the last T tokens over S keys, and its gradients",
    question="change the last token: which rows move? And what does True mean to SDPA?",
    hints=(
        "Give it tokens whose values are 0, 1, 2, 3 and print the output: from which side does row 0 read?",
        "1. print the mask for T = S = 3: where are its ones?\n"
        "2. F.scaled_dot_product_attention reads True as *may attend*\n"
        "3. one character turns one meaning into the other",
        "mask = torch.ones(T, S).triu(1 + S - T).bool()  # (T, S)  True = the future\n"
        "return F.scaled_dot_product_attention(q, k, v, attn_mask=…)",
    ),
    out_of_reach=("tx.attention", "tx.to_sdpa"),
    gradients=True,
)  # fmt: skip


def _qkv(B, H, T, S, d_k):
    """Fixed q (B, H, T, d_k), k and v (B, H, S, d_k)."""
    return waves(B, H, T, d_k), waves(B, H, S, d_k).sin(), waves(B, H, S, d_k).flip(2)


@upside_down_mask.cases
def _(g):
    yield _qkv(1, 1, 3, 3, 2)
    yield _qkv(1, 1, 2, 5, 4)
    yield _qkv(2, 3, 1, 6, 4)
    yield [randn(g, 2, 3, 6, 4) for _ in "qkv"]
    yield [x.transpose(1, 2) for x in _qkv(2, 4, 3, 3, 2)]  # not contiguous, 3 heads
    k = torch.tensor([0.0, 200.0]).view(1, 1, 2, 1)  # (B, H, S, d_k)
    yield torch.full_like(k, 200.0), k, waves(1, 1, 2, 1)  # scores of 40,000
    yield _qkv(1, 1, 2, 4096, 2)


@upside_down_mask.reference
def _(q, k, v):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S).triu(1 + S - T).bool()  # (T, S)  True = the future
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)  # (B, H, T, d_k)


def _masked_late(q, k, v):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # (B, H, T, S)
    return weights.tril(k.shape[2] - q.shape[2]) @ v  # (B, H, T, d_k)


upside_down_mask.mistakes_are(
    ("masked after the softmax", "the hidden keys still sit in the sum: the weights that are left add up to less.",
     _masked_late),
)  # fmt: skip
upside_down_mask.edits_are(
    ("True means hidden", "SDPA reads True as *may attend*: every query sees the future and nothing else.",
     "~mask", "mask"),
    ("aligned top-left",
     "right for T = S. With more keys than queries, the first query is taken for the first token.",
     "1 + S - T", "1"),
    ("the offset's sign turned", "query i stands at i + S - T: the triangle moves to the right, not to the left.",
     "1 + S - T", "1 + T - S"),
    ("hides self", "the diagonal went with the future: a token may see itself.", "1 + S - T", "S - T"),
    ("sees one key ahead", "the triangle starts one diagonal too high: that is a leak.", "1 + S - T", "2 + S - T"),
    ("no mask", "nothing is hidden: every row sees the future.", ", attn_mask=~mask", ""),
    ("ones added to scores of the future",
     "0 and 1 as floats are added to scores: nothing is hidden, the future is favoured.", "~mask", "mask.float()"),
    ("ones added to scores of the past",
     "0 and 1 as floats are added to scores: the past is favoured, and nothing is hidden. Subtracting 1 from "
     "the future's scores comes to the same.",
     "~mask", "(~mask).float()"),
    ("-10 in place of -inf", "a score that is larger by 10 is seen in spite of it: only -inf hides any score.",
     "~mask", "-10 * mask.float()"),
    ("-10,000 in place of -inf",
     "a score that is larger by 10,000 is seen in spite of it: only -inf hides any score.",
     "~mask", "-1e4 * mask.float()"),
    ("the future and itself", "a triangle on the other side of the diagonal: the past is hidden.",
     "~mask", "torch.ones(T, S).triu(S - T).bool()"),
    ("the mask turned around", "both ends swapped: query 0 gets the mask of the last one, and keys from behind.",
     "~mask", "mask.flip(0, 1)"),
    ("not scaled", "the mask is right; the scores are divided by √d_k, too.", "~mask", "~mask, scale=1.0"),
)  # fmt: skip


def _weights(f, T, S):
    """The weights (T, S) of an answer: what it reads from values of which each is 1 in a place of its own."""
    q, k, _ = _qkv(1, 1, T, S, S)
    return f(q, k, torch.eye(S)[None, None])[0, 0]


_who_looks_where(upside_down_mask, _weights, (4, 4), (2, 5))


@upside_down_mask.contract("chunks give the rows of one pass")
def _(f):
    q = torch.linspace(-2.0, 2.0, 20).view(1, 1, 5, 4).cos()  # (B, H, T, d_k)
    contracts.chunks_equal_the_whole(f, q, q.sin(), q, [3, 2])


# ── tree_mask ────────────────────────────────────────────────────────────────────────────────────

tree_mask = Exercise(
    "tree_mask", chapter=CHAPTER, kind="write", level=3, minutes=40, points=5,
    page="03-masks.html#what-you-now-have",
    checks="which of the text and of the guessed tokens each guessed token may see",
    question="follow the parents of one token up to the text: whom do you meet, and whom not?",
    hints=(
        "Draw parents = [-1, 0, 0, 1]: two guesses follow token 0, one follows token 1. Whom may token 3 "
        "see? Is token 2 among them?",
        "1. every parent comes before its child, or ValueError\n"
        "2. text: (T, n_past), all True\n"
        "3. tree: (T, T), starts as the identity: each token sees itself\n"
        "4. going down the rows, a token sees what its parent sees\n"
        "5. side by side: (T, n_past + T)",
        "tree = torch.eye(T, dtype=torch.bool)       # (T, T)\n"
        "for i, parent in enumerate(parents.tolist()):\n"
        "    if parent >= 0:\n"
        "        tree[i] |= …                        # (T,)\n"
        "text = torch.ones(T, n_past).bool()         # (T, n_past)\n"
        "return torch.cat([text, tree], dim=1)       # (T, n_past + T)",
    ),
)  # fmt: skip


@tree_mask.cases
def _(g):
    def tree(*parents):
        return torch.tensor(parents)  # (T,)

    yield tree(-1), 1
    yield tree(-1, -1), 1
    yield tree(-1, 0, 0, 1), 2
    yield tree(-1, 0, 1), 1
    yield tree(-1, -1, 1, 0, 3), 0
    yield tree(*(number(g, -1, i) if i else -1 for i in range(9))), 3
    yield tree(-1, 0, 1, 2, 1, 4), 2
    yield tree(-1, 9, 0, 9, 0, 9, 1, 9)[::2], 1  # not contiguous
    yield tree(-1, 0), 4096
    yield torch.arange(300) - 1, 1  # one long branch
    for wrong in (0,), (-2,), (-1, 1), (-1, -2), (-1, 2, 0), (-1, 0, 7):
        yield raises(ValueError, tree(*wrong), 1)


@tree_mask.reference
def _(parents, n_past):
    T = len(parents)
    tree = torch.eye(T, dtype=torch.bool)  # (T, T)
    for i, parent in enumerate(parents.tolist()):
        if not -1 <= parent < i:
            raise ValueError("a parent stands before its child, or is -1")
        if parent >= 0:
            tree[i] |= tree[parent]  # (T,)
    text = torch.ones(T, n_past).bool()  # (T, n_past)
    return torch.cat([text, tree], dim=1)  # (T, n_past+T)


tree_mask.edits_are(
    ("causal", "each guess sees all earlier guesses, also those of other branches, which never happened for it.",
     "[text, tree]", "[text, torch.ones(T, T).tril().bool()]"),
    ("the parent alone", "a parent's parents are ancestors, too: go on up to the text.",
     "tree[i] |= tree[parent]", "tree[i, parent] = True"),
    ("two generations", "parent and grandparent are seen, older ancestors are not: the walk stops too early.",
     "tree[i] |= tree[parent]", "tree[i, [j for j in (parent, parents[parent]) if j >= 0]] = True"),
    ("hides self", "a token sees itself as well as its ancestors.",
     "[text, tree]", "[text, tree ^ torch.eye(T).bool()]"),
    ("transposed", "rows are the tokens that look: here every token sees its *descendants*.",
     "[text, tree]", "[text, tree.T]"),
    ("ancestors and descendants", "a token stands before its descendants: they are its future.",
     "[text, tree]", "[text, tree | tree.T]"),
    ("siblings see each other", "two guesses for the same place: for each of them the other never happened.",
     "[text, tree]", "[text, tree | (parents[:, None] == parents)]"),
    ("parent -1 taken for the last token",
     "tree[-1] is the last row: Python counts from the end. -1 means: the text is the parent.",
     "if parent >= 0", "if True"),
    ("parent -1 taken for the token before", "-1 means: the text is the parent, and not the guess one row up.",
     "if parent >= 0:", "parent = i - 1 if parent < 0 else parent\n        if i > 0:"),
    ("parent 0 taken for none", "0 is a token; -1 alone means the text.", "parent >= 0", "parent > 0"),
    ("the text is hidden", "every guess continues the text and may see all of it.", "torch.ones", "torch.zeros"),
    ("only its children see the text", "an ancestor's text is seen as well: every guess continues it.",
     "[text, tree]", "[text & (parents[:, None] < 0), tree]"),
    ("the text is missing", "its n_past columns come first: (T, n_past + T).", "[text, tree]", "[tree]"),
    ("the text on the right", "keys stand in the order of the text: the past, then the tree.",
     "[text, tree]", "[tree, text]"),
    ("no error for a parent that comes later", "a token cannot continue what comes after it.",
     "not -1 <= parent < i", "False"),
    ("parents below -1 let through", "-1 alone means the text; -2 is a slip that nobody would notice later.",
     "-1 <= parent < i", "parent < i"),
    ("its own parent let through", "a token cannot continue itself: < and not <=.", "parent < i", "parent <= i"),
    ("a later parent let through where there is one", "a token cannot continue what comes after it: parent < i.",
     "not -1 <= parent < i", "not -1 <= parent < T or parent == i"),
    ("the first guess not checked", "guess 0 has no guess before it: it can continue the text alone.",
     "if not", "if i and not"),
)  # fmt: skip


@tree_mask.contract("a tree without branches is causal")
def _(f):
    for T in 4, 40:
        name, where = "a tree without branches is causal", f"parents -1 … {T - 2}, n_past = 2"
        contracts.same(name, f(torch.arange(T) - 1, 2).float(), (~_future(T, T + 2)).float(), where)


@tree_mask.contract("every branch gives the rows it gives alone")
def _(f):
    parents = torch.tensor([-1, 0, 0, 1])  # (T,)
    x = torch.linspace(-2.0, 2.0, 18).view(1, 1, 6, 3).sin()  # (B, H, S, d_k)  two of the text, then the tree
    rows = attention(x[:, :, 2:], x, x, f(parents, 2))  # (B, H, T, d_k)
    for branch in ([0, 2], [0, 1, 3]):
        alone = x[:, :, [0, 1, *(2 + i for i in branch)]]  # (B, H, N, d_k)
        expected = attention(alone, alone, alone, ~_future(alone.shape[2], alone.shape[2]))
        name = "every branch gives the rows it gives alone"
        contracts.same(name, rows[:, :, branch], expected[:, :, 2:], f"branch {branch}")


test_exercise = exercises_of(__name__)
