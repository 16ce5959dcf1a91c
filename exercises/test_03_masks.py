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


def some(g, *shape):
    """Booleans, about half of them True."""
    return randint(g, 0, 2, *shape).bool()


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
    yield 3, 3
    yield 2, 5
    yield 1, 4
    yield 4, 2
    yield int(randint(g, 3, 6, 1)), int(randint(g, 6, 9, 1))


def _causal(T, S, shift=0):
    q_pos = torch.arange(T)[:, None] + (S - T) + shift  # (T, 1)
    return torch.arange(S)[None] <= q_pos  # (T, S)


@causal_mask.reference
def _(T, S):
    return _causal(T, S)


@causal_mask.mistake(
    "aligned top-left",
    "row i ends at key i, as if the first query were the first token. With S > T the queries are the "
    "last T tokens, and query i stands at i + S - T.",
)
def _(T, S):
    return torch.ones(T, S).tril().bool()  # (T, S)


@causal_mask.mistake("hides self", "a token may see itself: the comparison is <=, the diagonal is included.")
def _(T, S):
    return _causal(T, S, shift=-1)  # (T, S)


@causal_mask.mistake(
    "sees one key ahead", "every query sees the key after its own: in training, that is the answer."
)
def _(T, S):
    return _causal(T, S, shift=1)  # (T, S)


@causal_mask.mistake("True means hidden", "in this book True says *may look*; these say *may not*.")
def _(T, S):
    return ~_causal(T, S)  # (T, S)


@causal_mask.mistake(
    "looks at the future", "each query sees its own key and the later ones: a triangle upside down."
)
def _(T, S):
    return torch.ones(T, S).triu(S - T).bool()  # (T, S)


@causal_mask.mistake(
    "numbers in place of booleans", "the ones are in the right place; a mask holds True and False."
)
def _(T, S):
    return _causal(T, S).float()  # (T, S)


@causal_mask.mistake(
    "numbers to add to scores", "0 and -inf are an additive mask, another convention; here True = may look."
)
def _(T, S):
    return torch.zeros(T, S).masked_fill(~_causal(T, S), -torch.inf)  # (T, S)


@causal_mask.mistake("shifted the wrong way", "query i stands at i + S - T, not at i - (S - T).")
def _(T, S):
    return torch.arange(S)[None] <= torch.arange(T)[:, None] - (S - T)  # (T, S)


@causal_mask.mistake("transposed", "rows belong to queries and columns to keys: (T, S).")
def _(T, S):
    return _causal(T, S).T  # (S, T)


@causal_mask.mistake(
    "never moved to the left",
    "S - T may be negative: for T > S the first T - S queries stand before all keys and see nothing.",
)
def _(T, S):
    return torch.ones(T, S).tril(max(S - T, 0)).bool()  # (T, S)


@causal_mask.mistake(
    "key 0 for every query",
    "for T > S the first T - S queries see nothing: a key opened for them is a key from their future.",
)
def _(T, S):
    return _causal(T, S) | (torch.arange(S) == 0)  # (T, S)


@causal_mask.mistake(
    "the last T rows of a square",
    "right for T <= S; a square of S rows has too few for T > S, whose first T - S queries see nothing.",
)
def _(T, S):
    return _causal(S, S)[-T:]  # (min(T, S), S)


@causal_mask.contract("no look into the future")
def _(f):
    x = torch.linspace(-1.0, 1.0, 12).view(1, 4, 3).sin()  # (B, T, D)
    contracts.causality(lambda x: attention(*[x[:, None]] * 3, f(4, 4))[:, 0], x)


@causal_mask.contract("every past key is used")
def _(f):
    x = torch.linspace(-1.0, 1.0, 12).view(1, 4, 3).sin()  # (B, T, D)
    contracts.uses_every_past_key(lambda x: attention(*[x[:, None]] * 3, f(4, 4))[:, 0], x)


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
    checks="the number of ones in causal() & window(W) for T queries and S keys, at any size",
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


def _pairs(N, W):
    ramp = min(N, W)
    return ramp * (ramp + 1) // 2 + (N - ramp) * W


@visible_pairs.cases
def _(g):
    yield 4, 4, 3
    yield 2, 6, 3
    yield 1, 5, 9
    yield 5, 5, 5
    yield 3, 4, 1
    yield int(randint(g, 3, 9, 1)), int(randint(g, 9, 20, 1)), int(randint(g, 2, 12, 1))
    yield 200_000, 1_000_000, 4096
    yield 300_000, 300_001, 1024


@visible_pairs.reference
def _(T, S, W):
    return _pairs(S, W) - _pairs(S - T, W)


@visible_pairs.mistake(
    "a full window for every query",
    "T · W counts keys before the start of the text: the first W - 1 tokens have fewer than W to see.",
)
def _(T, S, W):
    return T * W


@visible_pairs.mistake(
    "the window does not count the query itself",
    "these are W + 1 keys a row, the query and W before it; a window of W counts the query.",
)
def _(T, S, W):
    return _pairs(S, W + 1) - _pairs(S - T, W + 1)


@visible_pairs.mistake("the window is ignored", "this is the causal triangle alone, without the window.")
def _(T, S, W):
    return _pairs(S, S) - _pairs(S - T, S)


@visible_pairs.mistake(
    "queries counted from the start",
    "these are the first T tokens; the queries are the *last* T of the S tokens.",
)
def _(T, S, W):
    return _pairs(T, W)


@visible_pairs.mistake("every pair", "T · S is the whole rectangle, what attention without a mask computes.")
def _(T, S, W):
    return T * S


@visible_pairs.mistake(
    "the window cut off at S only", "a window can be longer than the past of a query, too: min(W, p + 1)."
)
def _(T, S, W):
    return T * min(W, S)


@visible_pairs.mistake("all queries of the text", "this counts S queries; only the last T of them ask.")
def _(T, S, W):
    return _pairs(S, W)


@visible_pairs.mistake("the hidden pairs", "these are the pairs that may *not* look.")
def _(T, S, W):
    return T * S - (_pairs(S, W) - _pairs(S - T, W))


@visible_pairs.mistake(
    "the queries start one position too late", "they stand at S - T … S - 1: the first one is missing."
)
def _(T, S, W):
    return _pairs(S, W) - _pairs(S - T + 1, W)


@visible_pairs.mistake(
    "the queries start one position too early", "they stand at S - T … S - 1: these are T + 1 of them."
)
def _(T, S, W):
    return _pairs(S, W) - _pairs(max(S - T - 1, 0), W)


@visible_pairs.mistake(
    "the query itself is left out", "a window of W holds the query and the W - 1 keys before it."
)
def _(T, S, W):
    return _pairs(S, W) - _pairs(S - T, W) - T


@visible_pairs.mistake("a window of W - 1", "the window counts the query itself: W keys far from the start.")
def _(T, S, W):
    return _pairs(S, W - 1) - _pairs(S - T, W - 1)


@visible_pairs.mistake(
    "counted in fp32",
    "fp32 has 24 bits, so above 2²⁴ = 16,777,216 it skips every other number: count with whole numbers.",
)
def _(T, S, W):
    return int(torch.tensor(float(_pairs(S, W) - _pairs(S - T, W))))


@visible_pairs.mistake(
    "floats in place of whole numbers",
    "/ makes a float, which holds whole numbers up to 2⁵³ only: // divides whole numbers.",
)
def _(T, S, W):
    return float(_pairs(S, W) - _pairs(S - T, W))


@visible_pairs.contract("one query sees a window or the whole text")
def _(f):
    for S, W in ((5, 3), (3, 5)):
        name = "one query sees a window or the whole text"
        got = torch.tensor(float(f(1, S, W)))  # ()
        contracts.same(name, got, torch.tensor(float(min(S, W))), f"T = 1, S = {S}, W = {W}")


@visible_pairs.contract("the pairs of two chunks add up")
def _(f):
    name = "the pairs of two chunks add up"
    parts = torch.tensor(float(f(3, 3, 2) + f(4, 7, 2)))  # ()
    contracts.same(name, parts, torch.tensor(float(f(7, 7, 2))), "3 + 4 tokens, W = 2")


# ── masked_softmax ───────────────────────────────────────────────────────────────────────────────

masked_softmax = Exercise(
    "masked_softmax", chapter=CHAPTER, kind="write", level=2, minutes=15, points=4,
    page="03-masks.html#empty-rows",
    checks="weights and gradients with hidden keys, scores of ±1000, and rows that see nothing",
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


@masked_softmax.cases
def _(g):
    keep = torch.tensor([[True, True, False], [False, False, False]])  # (T, S)
    yield torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), keep
    yield torch.tensor([[1000.0, 999.0, -1000.0]]), torch.tensor([[True, True, True]])
    yield torch.tensor([[1000.0, 999.0], [0.0, 1.0]]), torch.ones(2, 2).bool()
    yield torch.tensor([[0.0, 1.0, 1000.0]]), torch.tensor([[True, True, False]])
    yield torch.tensor([[-1000.0, -999.0, 0.0]]), torch.tensor([[True, True, False]])
    keep = some(g, 2, 1, 4, 5)  # (B, 1, T, S)
    keep[0, 0, 1] = False
    keep[1, 0, 2] = True
    yield 3 * randn(g, 2, 3, 4, 5), keep


def _by_hand(scores, keep):
    scores = scores.masked_fill(~keep, -torch.inf)  # (..., T, S)
    top = scores.detach().amax(-1, keepdim=True)  # (..., T, 1)
    e = (scores - top.masked_fill(top == -torch.inf, 0)).exp()  # (..., T, S)
    total = e.sum(-1, keepdim=True)  # (..., T, 1)
    return e / (total + (total == 0))  # (..., T, S)


@masked_softmax.reference
def _(scores, keep):
    return _by_hand(scores, keep)


@masked_softmax.mistake(
    "-inf and a plain softmax",
    "a row of nothing but -inf is NaN: its largest score is -inf, and -inf minus -inf has no value.",
)
def _(scores, keep):
    return scores.masked_fill(~keep, -torch.inf).softmax(-1)  # (..., T, S)


@masked_softmax.mistake(
    "a large negative number in place of -inf",
    "a row that sees nothing has equal scores, and softmax makes a uniform average of *all* keys.",
)
def _(scores, keep):
    return scores.masked_fill(~keep, -1e9).softmax(-1)  # (..., T, S)


@masked_softmax.mistake(
    "zeroed after the softmax",
    "the hidden scores still sit in the denominator: the visible weights do not sum to one.",
)
def _(scores, keep):
    return scores.softmax(-1) * keep  # (..., T, S)


@masked_softmax.mistake(
    "zeroed, then divided by the sum",
    "right on paper; with a hidden score of 1000 all visible weights have underflowed to 0 before.",
)
def _(scores, keep):
    weights = scores.softmax(-1) * keep  # (..., T, S)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)  # (..., T, S)


@masked_softmax.mistake(
    "NaN replaced after it was computed",
    "the weights are right and the gradients are NaN: a repair at the end mends the forward pass only.",
)
def _(scores, keep):
    bias = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)  # (..., T, S)
    return (scores + bias).softmax(-1).nan_to_num(0.0)  # (..., T, S)


@masked_softmax.mistake("True means hidden", "keep says who *may* look; here it hides the others' keys.")
def _(scores, keep):
    return _by_hand(scores, ~keep)  # (..., T, S)


@masked_softmax.mistake("hidden scores set to 0", "exp(0) is 1: a hidden key has a weight like any other.")
def _(scores, keep):
    return (scores * keep).softmax(-1)  # (..., T, S)


@masked_softmax.mistake("a softmax over the queries", "the columns sum to one; each *row* has to.")
def _(scores, keep):
    return _by_hand(scores.mT, keep.mT).mT  # (..., T, S)


@masked_softmax.mistake(
    "no maximum subtracted", "exp(1000) is infinite, and infinity divided by infinity is NaN."
)
def _(scores, keep):
    e = scores.masked_fill(~keep, -torch.inf).exp()  # (..., T, S)
    total = e.sum(-1, keepdim=True)  # (..., T, 1)
    return e / (total + (total == 0))  # (..., T, S)


@masked_softmax.mistake(
    "one added to every sum", "the 1 in the denominator is for empty rows alone; here every row pays it."
)
def _(scores, keep):
    scores = scores.masked_fill(~keep, -torch.inf)  # (..., T, S)
    top = scores.detach().amax(-1, keepdim=True)  # (..., T, 1)
    e = (scores - top.masked_fill(top == -torch.inf, 0)).exp()  # (..., T, S)
    return e / (e.sum(-1, keepdim=True) + 1)  # (..., T, S)


@masked_softmax.mistake(
    "a small negative number in place of -inf",
    "-100 is low beside scores near 0 and high beside scores near -1000: only -inf is below all of them.",
)
def _(scores, keep):
    weights = scores.masked_fill(~keep, -100.0).softmax(-1)  # (..., T, S)
    return weights * keep.any(-1, keepdim=True)  # (..., T, S)


@masked_softmax.mistake(
    "one maximum for all rows",
    "a row far below the largest score of the tensor underflows to 0: each row has its own maximum.",
)
def _(scores, keep):
    hidden = scores.masked_fill(~keep, -torch.inf)  # (..., T, S)
    e = (hidden - scores.detach().amax()).exp()  # (..., T, S)
    total = e.sum(-1, keepdim=True)  # (..., T, 1)
    return e / (total + (total == 0))  # (..., T, S)


@masked_softmax.mistake(
    "scores detached",
    "the weights are right, but no gradient reaches scores: a model that attends so learns no scores.",
)
def _(scores, keep):
    return _by_hand(scores.detach(), keep)  # (..., T, S)


@masked_softmax.mistake(
    "the sum detached",
    "the weights are right, the gradient differs: the maximum cancels and may be detached, the sum may not.",
)
def _(scores, keep):
    scores = scores.masked_fill(~keep, -torch.inf)  # (..., T, S)
    top = scores.detach().amax(-1, keepdim=True)  # (..., T, 1)
    e = (scores - top.masked_fill(top == -torch.inf, 0)).exp()  # (..., T, S)
    total = e.detach().sum(-1, keepdim=True)  # (..., T, 1)
    return e / (total + (total == 0))  # (..., T, S)


@masked_softmax.mistake(
    "scores filled in place",
    "scores is not to be changed in place: masked_fill makes a new tensor, masked_fill_ overwrites.",
)
def _(scores, keep):
    return _by_hand(scores.masked_fill_(~keep, -torch.inf), keep)  # (..., T, S)


SCORES = torch.tensor([[1.0, 2.0, 3.0], [2.0, 0.0, 1.0]])  # (T, S)
KEEP = torch.tensor([[True, True, False], [False, False, False]])  # (T, S)


@masked_softmax.contract("every row of weights that sees a key sums to one")
def _(f):
    contracts.rows_sum_to_one(lambda scores: f(scores, KEEP)[:1], SCORES)


@masked_softmax.contract("a hidden score changes nothing")
def _(f):
    other = SCORES.masked_fill(~KEEP, 7.0)  # (T, S)
    name = "a hidden score changes nothing"
    contracts.same(name, f(other, KEEP)[:1], f(SCORES, KEEP)[:1], "row 0")


@masked_softmax.contract("a query that sees nothing has weights of zero")
def _(f):
    name = "a query that sees nothing has weights of zero"
    contracts.same(name, f(SCORES, KEEP)[1], torch.zeros(3), "row 1")


@masked_softmax.contract("gradients are finite")
def _(f):
    grad = f.gradients(SCORES, KEEP)[1]["0"]
    if grad is not None:
        finite = grad.isfinite().all(-1).float()  # (T,)
        contracts.same("gradients are finite", finite, torch.ones(2), "rows with a finite gradient")


# ── next_token_loss ──────────────────────────────────────────────────────────────────────────────

next_token_loss = Exercise(
    "next_token_loss", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="03-masks.html#loss-mask",
    checks="the mean loss of the next token over pairs of real tokens, padded left and right",
    question="which logits belong to which target, and for how many pairs is somebody paid?",
    hints=(
        "Write a row of five tokens, the last two blanks. Which token does position 2 have to name? Does "
        "that pair count?",
        "1. drop the last logits, (B, T-1, V), and the first token, (B, T-1)\n"
        "2. the loss of each pair, (B, T-1), with reduction='none'\n"
        "3. which pairs count, (B, T-1): both tokens real\n"
        "4. no pair: ValueError; else the mean over those that count",
        "each = F.cross_entropy(logits[:, …].transpose(1, 2), tokens[:, …], reduction='none')\n"
        "counts = real[:, :-1] & real[:, 1:]     # (B, T-1)\n"
        "return each[…].mean()                   # ()",
    ),
)  # fmt: skip


@next_token_loss.cases
def _(g):
    real = torch.tensor([[True, True, True, False]])  # (B, T)
    yield randn(g, 1, 4, 3), torch.tensor([[1, 2, 0, 0]]), real
    yield randn(g, 1, 4, 3), torch.tensor([[0, 1, 2, 2]]), real.flip(1)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()  # (B, T)
    yield 2 * randn(g, 3, 5, 7), randint(g, 0, 7, 3, 5), real
    real = torch.tensor([[True, True, False], [False, True, False]])  # (B, T)  row 1 has no pair
    yield randn(g, 2, 3, 3), torch.tensor([[1, 2, 0], [0, 1, 0]]), real
    real = torch.tensor([[True, False], [False, True]])  # (B, T)
    yield raises(ValueError, randn(g, 2, 2, 3), torch.zeros(2, 2, dtype=torch.long), real)


def _each(logits, tokens):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")  # (B, T-1)


def _pairs_that_count(real):
    counts = real[:, :-1] & real[:, 1:]  # (B, T-1)
    if not counts.any():
        raise ValueError("no pair of real tokens: there is nothing to average")
    return counts


@next_token_loss.reference
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs_that_count(real)].mean()  # ()


@next_token_loss.mistake(
    "not shifted", "position t is asked to name token t, which it has read: the *next* token is t + 1."
)
def _(logits, tokens, real):
    _pairs_that_count(real)
    each = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")  # (B, T)
    return each[real].mean()  # ()


@next_token_loss.mistake("shifted backwards", "position t is asked for token t - 1, the one before.")
def _(logits, tokens, real):
    counts = _pairs_that_count(real)
    each = F.cross_entropy(logits[:, 1:].transpose(1, 2), tokens[:, :-1], reduction="none")  # (B, T-1)
    return each[counts].mean()  # ()


@next_token_loss.mistake(
    "padding counts, too",
    "the mean runs over all pairs: a model looks better the more blanks it learns to predict.",
)
def _(logits, tokens, real):
    _pairs_that_count(real)
    return _each(logits, tokens).mean()  # ()


@next_token_loss.mistake(
    "divided by all pairs",
    "blanks add nothing to the sum but still to the number it is divided by: the loss looks too low.",
)
def _(logits, tokens, real):
    counts = _pairs_that_count(real)
    return (_each(logits, tokens) * counts).mean()  # ()


@next_token_loss.mistake(
    "only the target has to be real",
    "with left padding this pays for the first word, guessed from a blank.",
)
def _(logits, tokens, real):
    _pairs_that_count(real)
    return _each(logits, tokens)[real[:, 1:]].mean()  # ()


@next_token_loss.mistake(
    "only the query has to be real",
    "with right padding the last word is asked to name a blank.",
)
def _(logits, tokens, real):
    _pairs_that_count(real)
    return _each(logits, tokens)[real[:, :-1]].mean()  # ()


@next_token_loss.mistake(
    "a mean of the rows' means", "every row weighs the same, so a token of a short row weighs more."
)
def _(logits, tokens, real):
    counts = _pairs_that_count(real)
    each = _each(logits, tokens)  # (B, T-1)
    rows = zip(each, counts, strict=True)
    return torch.stack([row[c].mean() for row, c in rows if c.any()]).mean()  # ()


@next_token_loss.mistake("the sum", "a sum grows with the batch; the mean over the pairs was asked for.")
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs_that_count(real)].sum()  # ()


@next_token_loss.mistake(
    "no error when nothing counts",
    "the mean of nothing is NaN, which travels far, and a 0 looks like a perfect model: refuse it.",
)
def _(logits, tokens, real):
    return _each(logits, tokens)[real[:, :-1] & real[:, 1:]].mean()  # ()


@next_token_loss.mistake(
    "one real token of the two is enough", "a pair counts when both are real: & and not |."
)
def _(logits, tokens, real):
    _pairs_that_count(real)
    return _each(logits, tokens)[real[:, :-1] | real[:, 1:]].mean()  # ()


@next_token_loss.mistake(
    "divided by the real tokens", "n tokens in a row make n - 1 pairs: divide by the pairs that count."
)
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs_that_count(real)].sum() / real.sum()  # ()


@next_token_loss.mistake("bits", "cross-entropy comes in nats; divided by ln 2 it is in bits.")
def _(logits, tokens, real):
    return _each(logits, tokens)[_pairs_that_count(real)].mean() / math.log(2)  # ()


@next_token_loss.contract("knowing nothing costs ln V")
def _(f):
    real = torch.tensor([[True, True, True, False]])  # (B, T)
    got = f(torch.zeros(1, 4, 3), torch.tensor([[2, 0, 1, 0]]), real)  # ()
    contracts.same("knowing nothing costs ln V", got, torch.tensor(math.log(3)))


@next_token_loss.contract("what stands at padding changes nothing")
def _(f):
    real = torch.tensor([[True, True, True, False], [False, True, True, True]])  # (B, T)
    logits = torch.linspace(-2.0, 2.0, 24).view(2, 4, 3).sin()  # (B, T, V)
    tokens = torch.tensor([[1, 2, 0, 0], [0, 2, 1, 1]])  # (B, T)
    junk = torch.where(real[..., None], logits, 9 * logits)  # (B, T, V)
    name = "what stands at padding changes nothing"
    contracts.same(name, f(junk, torch.where(real, tokens, 2), real), f(logits, tokens, real))


@next_token_loss.contract("each logit gets its gradient")
def _(f):
    real = torch.tensor([[True, True, True, False]])  # (B, T)
    logits, tokens = torch.zeros(1, 4, 3), torch.tensor([[1, 2, 0, 0]])  # (B, T, V), (B, T)
    right = torch.zeros(1, 4, 3)  # (B, T, V)
    right[0, :2] = (torch.full((2, 3), 1 / 3) - torch.eye(3)[[2, 0]]) / 2
    grad = f.gradients(logits, tokens, real)[1]["0"]
    grad = torch.zeros(1, 4, 3) if grad is None else grad  # (B, T, V)
    contracts.same("each logit gets its gradient", grad, right, "probability minus one-hot, over 2 pairs")


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
    for _ in range(3):
        yield int(randint(g, 2, 50, 1)), int(randint(g, 10, 40, 1)), int(randint(g, 2, 9, 1))


@leak_floor.reference
def _(V, T, block):
    return math.ceil(T / block) * math.log(V) / T


@leak_floor.mistake(
    "one target in every block's length", "right when the blocks divide T; a shorter last block pays as well."
)
def _(V, T, block):
    return math.log(V) / min(block, T)


@leak_floor.mistake("the last block forgotten", "the remainder of T // block is a block, too.")
def _(V, T, block):
    return (T // block) * math.log(V) / T


@leak_floor.mistake(
    "the last target counted as seen",
    "the target of the last position is token T, which is in no input: its block's end pays as well.",
)
def _(V, T, block):
    return (math.ceil(T / block) - 1) * math.log(V) / T


@leak_floor.mistake("the floor of a model without a mask", "here the blocks hide later blocks.")
def _(V, T, block):
    return math.log(V) / T


@leak_floor.mistake("the floor of an honest model", "within a block the next token is in plain sight.")
def _(V, T, block):
    return math.log(V)


@leak_floor.mistake("bits", "log2 gives bits; a nat is counted with the natural logarithm.")
def _(V, T, block):
    return math.ceil(T / block) * math.log2(V) / T


@leak_floor.mistake("the targets in sight pay", "it is the other way round: what is seen costs nothing.")
def _(V, T, block):
    return (T - math.ceil(T / block)) * math.log(V) / T


@leak_floor.mistake("a mean over T + 1 tokens", "there are T targets: the first of the T + 1 tokens is none.")
def _(V, T, block):
    return math.ceil(T / block) * math.log(V) / (T + 1)


@leak_floor.mistake(
    "T / block, not rounded up",
    "the last block may be shorter, and its end is blind like any other: ⌈T / block⌉.",
)
def _(V, T, block):
    return T / block * math.log(V) / T


@leak_floor.mistake("the sum over the positions", "the loss is a mean: divide by the T positions.")
def _(V, T, block):
    return math.ceil(T / block) * math.log(V)


@leak_floor.mistake("the perplexity", "this is e to the loss; the loss itself was asked for, in nats.")
def _(V, T, block):
    return math.exp(math.ceil(T / block) * math.log(V) / T)


def _number(name, got, expected, where):
    contracts.same(name, torch.tensor(float(got)), torch.tensor(float(expected)), where)


@leak_floor.contract("blocks of one leak nothing")
def _(f):
    _number("blocks of one leak nothing", f(8, 12, 1), math.log(8), "V = 8, T = 12, block = 1")


@leak_floor.contract("one block for all is no mask")
def _(f):
    _number("one block for all is no mask", f(8, 12, 12), math.log(8) / 12, "V = 8, T = 12, block = 12")


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


@first_leaking_row.cases
def _(g):
    before = torch.zeros(1, 3, 2)  # (B, T, D)
    after = before.clone()  # (B, T, D)
    after[0, 2] = 1.0
    yield before, after, 2, 0.1
    yield before, after, 1, 0.1
    after = after.clone()  # (B, T, D)
    after[0, 1] = torch.tensor([1.0, -1.0])
    yield before, after, 2, 0.1
    after = after.clone()  # (B, T, D)
    after[0, 1] = torch.tensor([0.06, 0.0])
    yield before, after, 2, 0.1
    after = after.clone()  # (B, T, D)
    after[0, 1] = 0.06  # less than the tolerance, but not their sum
    yield before, after, 2, 0.1
    after = after.clone()  # (B, T, D)
    after[0, 1] = 2e-5
    yield before, after, 2, 1e-5
    before = torch.zeros(2, 3, 2)  # (B, T, D)
    after = before.clone()  # (B, T, D)
    after[0, 1] = 1.0
    yield before, after, 2, 0.1
    before = 10_000 + randn(g, 1, 4, 2)  # (B, T, D)
    after = before.clone()  # (B, T, D)
    after[0, 1, 0] += 0.05
    yield before, after, 3, 0.01
    before = randn(g, 2, 6, 3)  # (B, T, D)
    after = before.clone()  # (B, T, D)
    after[:, 4:] += 1.0
    yield before, after.clone(), 4, 0.01
    after[1, 3, 2] -= 0.5
    yield before, after.clone(), 4, 0.01
    after[1, 1, 1] += 0.02
    yield before, after.clone(), 4, 0.01
    after[1, 0, 2] = torch.nan
    yield before, after.clone(), 4, 0.01
    before = randn(g, 1, 5, 40)  # (B, T, D)
    after = before.clone()  # (B, T, D)
    after[:, 1, 7] += 0.05
    yield before, after, 3, 0.01
    yield before, before.clone(), 0, 0.01


def _rows(before, after, token, tolerance):
    change = (after - before)[:, :token].abs()  # (B, T, D)
    return (~(change <= tolerance)).any(-1).any(0).nonzero().flatten().tolist()


@first_leaking_row.reference
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, token, tolerance)
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "changes with a sign",
    "an output that falls has a negative difference: it is never larger than the tolerance.",
)
def _(before, after, token, tolerance=5e-5):
    moved = (~((after - before)[:, :token] <= tolerance)).any(-1).any(0)  # (T,)
    rows = moved.nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "summed before the size is taken", "+1 and -1 cancel: take the size of each difference first."
)
def _(before, after, token, tolerance=5e-5):
    change = (after - before)[:, :token].sum(-1).abs()  # (B, T)
    rows = (~(change <= tolerance)).any(0).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "an average over the features", "one changed feature of forty is lost in the mean: look for *any*."
)
def _(before, after, token, tolerance=5e-5):
    change = (after - before)[:, :token].abs().mean(-1)  # (B, T)
    rows = (~(change <= tolerance)).any(0).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "NaN goes unnoticed",
    "nan > 0.1 is False, and nan_to_num makes a 0 of it. Ask what is *not* small: ~(change <= tolerance).",
)
def _(before, after, token, tolerance=5e-5):
    change = (after - before)[:, :token].abs()  # (B, T, D)
    rows = (change > tolerance).any(-1).any(0).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "the token's own row counts", "the row of the changed token may change: only rows *before* it leak."
)
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, token + 1, tolerance)
    return rows[0] if rows else -1


@first_leaking_row.mistake("any row counts", "later rows may see the changed token: only earlier ones leak.")
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, before.shape[1], tolerance)
    return rows[0] if rows else -1


@first_leaking_row.mistake("the last leaking row", "the *first* row that moved was asked for.")
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, token, tolerance)
    return rows[-1] if rows else -1


@first_leaking_row.mistake("only the first of the batch", "a leak in another row of the batch is one, too.")
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before[:1], after[:1], token, tolerance)
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "all of the batch has to move", "a leak in any row of the batch is one, not only in all of them."
)
def _(before, after, token, tolerance=5e-5):
    moved = (~((after - before)[:, :token].abs() <= tolerance)).any(-1).all(0)  # (T,)
    rows = moved.nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "the row that moves most", "the *first* row was asked for: a small leak is one, too."
)
def _(before, after, token, tolerance=5e-5):
    if not _rows(before, after, token, tolerance):
        return -1
    return (after - before)[:, :token].abs().amax((0, 2)).argmax().item()


@first_leaking_row.mistake(
    "no tolerance", "two runs may differ by rounding alone: only what is above the tolerance has moved."
)
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, token, 0.0)
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "the default tolerance built in", "the caller chooses it: 5e-5 is only what `tolerance` starts as."
)
def _(before, after, token, tolerance=5e-5):
    rows = _rows(before, after, token, 5e-5)
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "the changes summed up", "many small roundings add up to a leak: each number is compared by itself."
)
def _(before, after, token, tolerance=5e-5):
    change = (after - before)[:, :token].abs().sum((0, 2))  # (T,)
    rows = (~(change <= tolerance)).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "a relative tolerance",
    "allclose and isclose forgive more where numbers are large, by rtol: with rtol=0 they do not.",
)
def _(before, after, token, tolerance=5e-5):
    moved = ~torch.isclose(before, after, atol=tolerance)[:, :token]  # (B, T, D)
    rows = moved.any(-1).any(0).nonzero().flatten().tolist()
    return rows[0] if rows else -1


@first_leaking_row.mistake(
    "0 where nothing leaks", "argmax of nothing but False is 0, and 0 is a row: -1 says that there is none."
)
def _(before, after, token, tolerance=5e-5):
    moved = (~((after - before)[:, :token].abs() <= tolerance)).any(-1).any(0)  # (T,)
    return moved.int().argmax().item()


@first_leaking_row.contract("nothing moved, nothing leaks")
def _(f):
    x = torch.ones(1, 3, 2)  # (B, T, D)
    _number("nothing moved, nothing leaks", f(x, x, 2, 0.1), -1, "before = after")


@first_leaking_row.contract("the changed token and what follows may move")
def _(f):
    x = torch.zeros(1, 4, 2)  # (B, T, D)
    moved = x.clone()  # (B, T, D)
    moved[:, 2:] = 5.0
    _number("the changed token and what follows may move", f(x, moved, 2, 0.1), -1, "token 2")


@first_leaking_row.contract("a planted leak is found")
def _(f):
    x = torch.zeros(2, 4, 2)  # (B, T, D)
    for row in (0, 1):
        moved = x.clone()  # (B, T, D)
        moved[1, row, 1] = -1.0
        _number("a planted leak is found", f(x, moved, 3, 0.1), row, f"row {row} moved")


# ── upside_down_mask ─────────────────────────────────────────────────────────────────────────────

upside_down_mask = Exercise(
    "upside_down_mask", chapter=CHAPTER, kind="debug", level=1, minutes=10, points=2,
    page="03-masks.html#the-bug-that-the-loss-misses",
    checks="causal attention of the last T tokens over S keys",
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
)  # fmt: skip


@upside_down_mask.cases
def _(g):
    yield randn(g, 1, 1, 3, 2), randn(g, 1, 1, 3, 2), randn(g, 1, 1, 3, 2)
    yield randn(g, 1, 1, 2, 4), randn(g, 1, 1, 5, 4), randn(g, 1, 1, 5, 4)
    yield randn(g, 2, 3, 1, 4), randn(g, 2, 3, 6, 4), randn(g, 2, 3, 6, 4)
    yield randn(g, 2, 3, 6, 4), randn(g, 2, 3, 6, 4), randn(g, 2, 3, 6, 4)


def _sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, T, d_k)


def _sizes(q, k):
    return q.shape[2], k.shape[2]


@upside_down_mask.reference
def _(q, k, v):
    return _sdpa(q, k, v, _causal(*_sizes(q, k)))  # (B, H, T, d_k)


@upside_down_mask.mistake(
    "True means hidden", "SDPA reads True as *may attend*: every query sees the future and nothing else."
)
def _(q, k, v):
    return _sdpa(q, k, v, ~_causal(*_sizes(q, k)))  # (B, H, T, d_k)


@upside_down_mask.mistake(
    "aligned top-left",
    "right for T = S. With more keys than queries, the first query is taken for the first token.",
)
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, d_k)


@upside_down_mask.mistake("hides self", "the diagonal went with the future: a token may see itself.")
def _(q, k, v):
    return _sdpa(q, k, v, _causal(*_sizes(q, k), shift=-1))  # (B, H, T, d_k)


@upside_down_mask.mistake("sees one key ahead", "the triangle starts one diagonal too high: that is a leak.")
def _(q, k, v):
    return _sdpa(q, k, v, _causal(*_sizes(q, k), shift=1))  # (B, H, T, d_k)


@upside_down_mask.mistake("no mask", "nothing is hidden: every row sees the future.")
def _(q, k, v):
    return _sdpa(q, k, v, None)  # (B, H, T, d_k)


@upside_down_mask.mistake(
    "the mask is added", "0 and 1 as floats are added to scores: nothing is hidden, the future is favoured."
)
def _(q, k, v):
    return _sdpa(q, k, v, (~_causal(*_sizes(q, k))).float())  # (B, H, T, d_k)


@upside_down_mask.mistake(
    "the future and itself", "a triangle on the other side of the diagonal: the past is hidden."
)
def _(q, k, v):
    T, S = _sizes(q, k)
    return _sdpa(q, k, v, torch.ones(T, S).triu(S - T).bool())  # (B, H, T, d_k)


def _on_tokens(f):
    return lambda x: f(*[x[:, None]] * 3)[:, 0]


@upside_down_mask.contract("no look into the future")
def _(f):
    x = torch.linspace(-1.0, 1.0, 12).view(1, 4, 3).sin()  # (B, T, D)
    contracts.causality(_on_tokens(f), x)


@upside_down_mask.contract("every past key is used")
def _(f):
    x = torch.linspace(-1.0, 1.0, 12).view(1, 4, 3).sin()  # (B, T, D)
    contracts.uses_every_past_key(_on_tokens(f), x)


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


def _check_parents(parents):
    if any(not -1 <= p < i for i, p in enumerate(parents.tolist())):
        raise ValueError("a parent stands before its child, or is -1")


def _family(parents):
    """(T, T) booleans: column j is row i itself or an ancestor of it."""
    tree = torch.eye(len(parents), dtype=torch.bool)  # (T, T)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            tree[i] |= tree[parent]
    return tree


def _beside(n_past, tree, text=True):
    seen = torch.full((len(tree), n_past), text)  # (T, n_past)
    return torch.cat([seen, tree], dim=1)  # (T, n_past+T)


@tree_mask.cases
def _(g):
    yield torch.tensor([-1, 0, 0, 1]), 2
    yield torch.tensor([-1, 0, 1]), 1
    yield torch.tensor([-1, -1, 1, 0, 3]), 0
    yield torch.tensor([int(randint(g, -1, i, 1)) if i else -1 for i in range(9)]), 3
    yield torch.tensor([-1, 0, 1, 2, 1, 4]), 2
    yield raises(ValueError, torch.tensor([-1, 2, 0]), 1)
    yield raises(ValueError, torch.tensor([-1, 1]), 0)
    yield raises(ValueError, torch.tensor([-1, -2]), 1)


@tree_mask.reference
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, _family(parents))  # (T, n_past+T)


@tree_mask.mistake(
    "causal",
    "each guess sees all earlier guesses, also those of other branches, which never happened for it.",
)
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, torch.ones(len(parents), len(parents)).tril().bool())  # (T, n_past+T)


@tree_mask.mistake("the parent alone", "a parent's parents are ancestors, too: go on up to the text.")
def _(parents, n_past):
    _check_parents(parents)
    tree = torch.eye(len(parents), dtype=torch.bool)  # (T, T)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            tree[i, parent] = True
    return _beside(n_past, tree)  # (T, n_past+T)


@tree_mask.mistake("hides self", "a token sees itself as well as its ancestors.")
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, _family(parents) & ~torch.eye(len(parents), dtype=torch.bool))  # (T, n_past+T)


@tree_mask.mistake("transposed", "rows are the tokens that look: here every token sees its *descendants*.")
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, _family(parents).T)  # (T, n_past+T)


@tree_mask.mistake("the text is hidden", "every guess continues the text and may see all of it.")
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, _family(parents), text=False)  # (T, n_past+T)


@tree_mask.mistake("the text is missing", "its n_past columns come first: (T, n_past + T).")
def _(parents, n_past):
    _check_parents(parents)
    return _family(parents)  # (T, T)


@tree_mask.mistake("the text on the right", "keys stand in the order of the text: the past, then the tree.")
def _(parents, n_past):
    _check_parents(parents)
    return _beside(n_past, _family(parents)).roll(-n_past, 1)  # (T, n_past+T)


@tree_mask.mistake(
    "two generations", "parent and grandparent are seen, older ancestors are not: the walk stops too early."
)
def _(parents, n_past):
    _check_parents(parents)
    step = torch.zeros(len(parents), len(parents))  # (T, T)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            step[i, parent] = 1.0
    near = torch.eye(len(parents)) + step + step @ step  # (T, T)
    return _beside(n_past, near > 0)  # (T, n_past+T)


@tree_mask.mistake(
    "parent -1 taken for the last token",
    "tree[-1] is the last row: Python counts from the end. -1 means: the text is the parent.",
)
def _(parents, n_past):
    _check_parents(parents)
    tree = torch.eye(len(parents), dtype=torch.bool)  # (T, T)
    for i, parent in enumerate(parents.tolist()):
        tree[i] |= tree[parent]
    return _beside(n_past, tree)  # (T, n_past+T)


@tree_mask.mistake("no error for a parent that comes later", "a token cannot continue what comes after it.")
def _(parents, n_past):
    return _beside(n_past, _family(parents))  # (T, n_past+T)


@tree_mask.mistake(
    "parents below -1 let through", "-1 alone means the text; -2 is a slip that nobody would notice later."
)
def _(parents, n_past):
    _check_parents(parents.clamp(min=-1))
    return _beside(n_past, _family(parents))  # (T, n_past+T)


@tree_mask.contract("a tree without branches is causal")
def _(f):
    chain = torch.tensor([-1, 0, 1, 2])  # (T,)
    name = "a tree without branches is causal"
    contracts.same(name, f(chain, 2).float(), _causal(4, 6).float(), "parents -1 0 1 2, n_past = 2")


@tree_mask.contract("every branch gives the rows it gives alone")
def _(f):
    parents = torch.tensor([-1, 0, 0, 1])  # (T,)
    x = torch.linspace(-2.0, 2.0, 18).view(1, 1, 6, 3).sin()  # (B, H, S, d_k)  two of the text, then the tree
    rows = attention(x[:, :, 2:], x, x, f(parents, 2))  # (B, H, T, d_k)
    for branch in ([0, 2], [0, 1, 3]):
        alone = x[:, :, [0, 1, *(2 + i for i in branch)]]  # (B, H, N, d_k)
        expected = attention(alone, alone, alone, _causal(alone.shape[2], alone.shape[2]))
        name = "every branch gives the rows it gives alone"
        contracts.same(name, rows[:, :, branch], expected[:, :, 2:], f"branch {branch}")


test_exercise = exercises_of(__name__)
