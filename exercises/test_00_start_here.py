"""Graders of chapter 0: shapes, cross-entropy, floors."""

import torch
import torch.nn.functional as F

from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "00_start_here"

# ── soft_choice ──────────────────────────────────────────────────────────────────────────────────

soft_choice = Exercise(
    "soft_choice", chapter=CHAPTER, kind="debug", level=1, minutes=3, points=1,
    page="00-start-here.html#your-first-repair",
    checks="every person's weights, for T people and S places",
    question="add up one row, then one column: which of them should give one?",
    hints=(
        "dim= names the axis along which the softmax sums to one. Which axis of (T, S) holds the "
        "places among which one person chooses?",
        "scores (T, S): axis 0 counts people, axis 1 counts places. One row has to sum to one, and a "
        "row runs along the places.",
        "return scores.softmax(dim=…)   # the axis of the places",
    ),
)  # fmt: skip


@soft_choice.cases
def _(g):
    yield (torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 2.0, 3.0, 0.0]]),)
    yield (randn(g, 1, 3),)
    yield (randn(g, 4, 4),)
    yield (3 * randn(g, 5, 2),)
    yield (torch.tensor([[200.0, 199.0, -200.0], [-200.0, -201.0, -199.0]]),)  # exp would overflow


@soft_choice.reference
def _(scores):
    return scores.softmax(dim=1)  # (T, S)


@soft_choice.mistake(
    "softmax over the people",
    "dim=0 makes every column sum to one: the people share each place, instead of each person "
    "sharing out their own attention.",
)
def _(scores):
    return scores.softmax(dim=0)  # (T, S)


@soft_choice.mistake(
    "one softmax over everything",
    "all T · S weights together sum to one, so a second person takes attention from the first.",
)
def _(scores):
    return scores.flatten().softmax(dim=0).view(scores.shape)  # (T, S)


@soft_choice.mistake(
    "a hard choice",
    "only the best place counts, the others get exactly zero: that is the look-up at temperature 0.",
)
def _(scores):
    return F.one_hot(scores.argmax(dim=1), scores.shape[1]).float()  # (T, S)


@soft_choice.mistake(
    "divided by the sum, without exp",
    "scores may be negative or sum to zero; exp makes every share positive first.",
)
def _(scores):
    return scores / scores.sum(dim=1, keepdim=True)  # (T, S)


@soft_choice.mistake(
    "logarithms of the weights",
    "log_softmax gives ln p, which is negative: its exp are the weights.",
)
def _(scores):
    return scores.log_softmax(dim=1)  # (T, S)


@soft_choice.mistake(
    "exp of the raw scores",
    "exp(200) is infinite, and inf / inf is nan: softmax takes the row's largest score out first.",
)
def _(scores):
    return scores.exp() / scores.exp().sum(dim=1, keepdim=True)  # (T, S)


@soft_choice.mistake(
    "scores cut off at a limit",
    "beyond the limit all scores are equal; take the row's largest out, that keeps the differences.",
)
def _(scores):
    return scores.clamp(-80, 80).softmax(dim=1)  # (T, S)


@soft_choice.mistake(
    "each score by itself",
    "a sigmoid does not know the other places, so the row does not sum to one.",
)
def _(scores):
    return scores.sigmoid()  # (T, S)


@soft_choice.mistake("not divided", "exp makes every share positive; their sum still divides them.")
def _(scores):
    return (scores - scores.amax(dim=1, keepdim=True)).exp()  # (T, S)


@soft_choice.mistake(
    "softmax twice",
    "weights are not scores: a second softmax makes every row nearly even.",
)
def _(scores):
    return scores.softmax(dim=1).softmax(dim=1)  # (T, S)


@soft_choice.mistake(
    "shared out along both axes",
    "the rows sum to one, but of numbers that the people had already shared out among them.",
)
def _(scores):
    return scores.softmax(dim=0).softmax(dim=1)  # (T, S)


@soft_choice.mistake(
    "the sums of the rows lie on the columns",
    "without keepdim=True a sum (T,) is lined up with the places: person t needs the sum of row t.",
)
def _(scores):
    e = (scores - scores.amax(dim=1, keepdim=True)).exp()  # (T, S)
    return e / e.sum(dim=1)


@soft_choice.contract("every row of weights sums to one")
def _(f):
    contracts.rows_sum_to_one(f, torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 2.0, 3.0, 0.0]]))


@soft_choice.contract("people do not influence each other")
def _(f):
    contracts.batch_independence(f, torch.tensor([[4.0, 1.0, 0.0], [0.0, 2.0, 3.0]]))


@soft_choice.contract("a level added to a row changes nothing")
def _(f):
    scores = torch.tensor([[2.0, 1.0, 0.0]])  # (T, S)
    contracts.same("a level added to a row changes nothing", f(scores + 5.0), f(scores))


# ── squared_distances ────────────────────────────────────────────────────────────────────────────

squared_distances = Exercise(
    "squared_distances", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="00-start-here.html#shapes-and-broadcasting",
    checks="the squared distance of every x to every y, and a clear error for widths that differ",
    question="which axis of x has to be repeated for y, and which axis of y for x?",
    hints=(
        "Write (T, D) and (S, D) under each other, with (T, S, D) below: where does a size of 1 have to "
        "go in? (Widths 3 and 1 broadcast without an error: look at the shapes first.)",
        "1. compare the widths, raise ValueError if they differ\n"
        "2. differences (T, S, D) of x with an axis in its middle and y with one in front\n"
        "3. square, and sum over D",
        "differences = x[:, None, :] - …          # (T, S, D)\n"
        "return (differences ** 2).sum(dim=-1)    # (T, S)",
    ),
    out_of_reach=("torch.cdist",),
)  # fmt: skip


@squared_distances.cases
def _(g):
    yield torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    yield randn(g, 3, 2), randn(g, 3, 2)
    yield randn(g, 1, 4), randn(g, 5, 4)
    yield randn(g, 4, 1), randn(g, 2, 1)
    yield raises(ValueError, randn(g, 2, 3), randn(g, 4, 1))
    yield raises(ValueError, randn(g, 2, 1), randn(g, 4, 3))
    yield raises(ValueError, randn(g, 2, 3), randn(g, 4, 4))


def _check_widths(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} differ in width")


@squared_distances.reference
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square().sum(dim=-1)  # (T, S)


@squared_distances.mistake(
    "no error for widths that differ",
    "widths 3 and 1 broadcast: the one feature of y was compared with all three of x, in silence.",
)
def _(x, y):
    return (x[:, None] - y[None]).square().sum(dim=-1)  # (T, S)


@squared_distances.mistake(
    "refused on one side only",
    "3 against 1 and 1 against 3 both broadcast: compare the widths with !=.",
)
def _(x, y):
    if x.shape[1] > y.shape[1]:
        raise ValueError("x is wider")
    return (x[:, None] - y[None]).square().sum(dim=-1)  # (T, S)


@squared_distances.mistake(
    "pairs, not all against all",
    "x - y compares row 0 with row 0, row 1 with row 1; the distances of all pairs need a new axis.",
)
def _(x, y):
    _check_widths(x, y)
    return (x - y).square().sum(dim=-1)  # (T,)


@squared_distances.mistake(
    "transposed",
    "the result is (S, T): rows have to belong to x. The axis of size 1 sits on the wrong side.",
)
def _(x, y):
    _check_widths(x, y)
    return (y[:, None] - x[None]).square().sum(dim=-1)  # (S, T)


@squared_distances.mistake("not squared", "a root was taken: the distance itself, not its square.")
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square().sum(dim=-1).sqrt()  # (T, S)


@squared_distances.mistake(
    "the mean over the features",
    "mean divides by D; a squared distance adds up the squares.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square().mean(dim=-1)  # (T, S)


@squared_distances.mistake(
    "the features are still there",
    "the squares are right, (T, S, D), and not yet summed over D.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square()  # (T, S, D)


@squared_distances.mistake(
    "summed before squaring",
    "differences of opposite sign cancel when they are added first.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).sum(dim=-1).square()  # (T, S)


@squared_distances.mistake(
    "absolute differences",
    "that walks along the axes, 3 + 4 = 7; squares are summed here, 9 + 16 = 25.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).abs().sum(dim=-1)  # (T, S)


@squared_distances.mistake(
    "neither squared nor absolute",
    "the plain differences are added up, and those of opposite sign cancel.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).sum(dim=-1)  # (T, S)


def _expanded(x, y, cross):
    """|x|² + cross · x·y + |y|², for all pairs."""
    _check_widths(x, y)
    squares = x.square().sum(-1)[:, None] + y.square().sum(-1)  # (T, S)
    return squares + cross * x @ y.T  # (T, S)


@squared_distances.mistake(
    "expanded without the 2", "(a − b)² = a² − 2ab + b²: the product in the middle counts twice."
)
def _(x, y):
    return _expanded(x, y, -1)  # (T, S)


@squared_distances.mistake(
    "expanded with a plus", "(a − b)² = a² − 2ab + b²: the product in the middle is subtracted."
)
def _(x, y):
    return _expanded(x, y, 2)  # (T, S)


@squared_distances.mistake(
    "the products are forgotten", "(a − b)² = a² − 2ab + b²: a² + b² alone leaves out the middle."
)
def _(x, y):
    return _expanded(x, y, 0)  # (T, S)


@squared_distances.mistake(
    "dot products", "a dot product says how alike two vectors point, not how far apart they lie."
)
def _(x, y):
    _check_widths(x, y)
    return x @ y.T  # (T, S)


@squared_distances.mistake(
    "summed over the points of x",
    "axis 0 of (T, S, D) counts the points of x; the features are the last axis.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square().sum(dim=0)  # (S, D)


@squared_distances.mistake(
    "summed over the points of y",
    "axis 1 of (T, S, D) counts the points of y; the features are the last axis.",
)
def _(x, y):
    _check_widths(x, y)
    return (x[:, None] - y[None]).square().sum(dim=1)  # (T, D)


@squared_distances.contract("every point is at distance 0 from itself")
def _(f):
    x = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [3.0, 0.0]])  # (T, D)
    name = "every point is at distance 0 from itself"
    contracts.same(name, f(x, x).diagonal(), torch.zeros(3), "the diagonal")


@squared_distances.contract("3 to the side and 4 up are 25")
def _(f):
    got = f(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))  # (T, S)
    contracts.same("3 to the side and 4 up are 25", got, torch.tensor([[25.0]]))


@squared_distances.contract("each row belongs to one x")
def _(f):
    x, y = torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), torch.tensor([[3.0, 1.0], [0.0, 0.0]])  # (T, D), (S, D)
    contracts.batch_independence(lambda rows: f(rows, y), x)


@squared_distances.contract("there and back is the same distance")
def _(f):
    x, y = torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), torch.tensor([[3.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    contracts.same("there and back is the same distance", f(y, x).transpose(0, 1), f(x, y))


# ── where_view_puts_it ───────────────────────────────────────────────────────────────────────────

where_view_puts_it = Exercise(
    "where_view_puts_it", chapter=CHAPTER, kind="predict", level=2, minutes=10, points=3,
    page="00-start-here.html#reshape-or-transpose",
    checks="head, position and feature of one number after x.view(H, T, d_k), at unseen sizes",
    question="how many numbers stand before this one in memory? How many does one head take?",
    hints=(
        "view moves nothing in memory. So count: how many numbers stand before x[t, f] when x of shape "
        "(T, H·d_k) is read row by row?",
        "1. that count, from t, f and the width H·d_k\n"
        "2. a head takes T·d_k numbers, so the head is the count divided by that, rounded down\n"
        "3. the remainder, again: one position takes d_k",
        "n = t * H * d_k + f\n"
        "head, rest = divmod(n, …)\n"
        "position, feature = divmod(rest, d_k)",
    ),
    parts=("head", "position", "feature"),
)  # fmt: skip


@where_view_puts_it.cases
def _(g):
    def pick(n):
        return int(torch.randint(n, (), generator=g))

    yield 0, 0, 4, 2, 3
    yield 1, 0, 4, 2, 3
    yield 0, 3, 4, 2, 3
    yield 3, 4, 4, 2, 3
    for T, H, d_k in ((5, 3, 2), (2, 4, 5), (7, 2, 4), (3, 6, 1)):
        yield pick(T - 1) + 1, pick(H * d_k), T, H, d_k
        yield T - 1, H * d_k - 1 - pick(2), T, H, d_k


@where_view_puts_it.reference
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "where the right split puts it",
    "that is reshape to (T, H, d_k) and transpose; the shortcut never asks which token it is cutting.",
)
def _(t, f, T, H, d_k):
    return f // d_k, t, f % d_k


@where_view_puts_it.mistake(
    "heads of T numbers",
    "one head holds T positions of d_k numbers each: T·d_k, not T.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "heads as wide as a token",
    "H·d_k is the width of a token in x. In (H, T, d_k) one head takes T·d_k numbers; a first axis of "
    "H·d_k numbers each belongs to the shape (T, H, d_k).",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, H * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "the old width forgotten",
    "a row of x has H·d_k numbers, so token t starts at t·H·d_k and not at t·d_k.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * d_k + f, T * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "position before head",
    "right numbers in another order: head first, then position, then feature.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return rest // d_k, head, rest % d_k


@where_view_puts_it.mistake(
    "positions run fastest",
    "the last axis of a shape is the one whose neighbours are neighbours in memory: d_k, not T.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, rest % T, rest // T


@where_view_puts_it.mistake(
    "rows of T numbers",
    "T counts the rows of x; one row has H·d_k numbers, so token t starts at t·H·d_k.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * T + f, T * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "counted column by column",
    "x is stored row by row: the whole of token 0 comes first, then token 1.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(f * T + t, T * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "one too many",
    "the numbers *before* x[t, f] are counted: none stands before x[0, 0].",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f + 1, T * d_k)
    return head, rest // d_k, rest % d_k


@where_view_puts_it.mistake(
    "head, position and feature counted from one", "an axis is counted from 0: the first head is head 0."
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head + 1, rest // d_k + 1, rest % d_k + 1


@where_view_puts_it.mistake(
    "head and position counted from one", "an axis is counted from 0: the first head is head 0."
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head + 1, rest // d_k + 1, rest % d_k


@where_view_puts_it.mistake(
    "the position runs on through the heads",
    "every head counts its positions from 0: take off what the heads before it hold.",
)
def _(t, f, T, H, d_k):
    n = t * H * d_k + f
    return n // (T * d_k), n // d_k, n % d_k


@where_view_puts_it.mistake(
    "the feature keeps its old number",
    "a position has d_k features, so the new number is a remainder, smaller than d_k.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, rest // d_k, f


@where_view_puts_it.mistake(
    "the position keeps its old number",
    "that a number stays at its token is what this view gets wrong: count in memory.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, t, rest % d_k


@where_view_puts_it.mistake(
    "positions of H numbers",
    "the last axis of (H, T, d_k) is d_k long: so many numbers does a position take, not H.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * d_k)
    return head, rest // H, rest % H


@where_view_puts_it.mistake(
    "H and d_k have changed places",
    "that is x.view(d_k, T, H): the number of heads is the first axis, their width the last.",
)
def _(t, f, T, H, d_k):
    head, rest = divmod(t * H * d_k + f, T * H)
    return head, rest // H, rest % H


def _everywhere(f, T, H, d_k):
    """What `f` says for every number of x: a list in reading order."""
    return [tuple(f(t, j, T, H, d_k)) for t in range(T) for j in range(H * d_k)]


@where_view_puts_it.contract("the first number stays first")
def _(f):
    got = tuple(f(0, 0, 3, 2, 2))
    if got != (0, 0, 0):
        raise contracts.ContractBroken("the first number stays first", "t = 0, f = 0", (0, 0, 0), got)


@where_view_puts_it.contract("the page's example: 10 lands in head 0, position 2, feature 0")
def _(f):
    got = tuple(f(1, 0, 4, 2, 3))
    if got != (0, 2, 0):
        raise contracts.ContractBroken("the page's example", "token 1, feature 0", (0, 2, 0), got)


@where_view_puts_it.contract("no two numbers share a place")
def _(f):
    places = _everywhere(f, 3, 2, 2)
    if len(set(places)) != 12:
        raise contracts.ContractBroken(
            "no two numbers share a place", "T = 3, H = 2, d_k = 2", "12 places", len(set(places))
        )


@where_view_puts_it.contract("the reading order stays")
def _(f):
    places = _everywhere(f, 3, 2, 2)
    if places != sorted(places):
        at = next(i for i in range(1, 12) if places[i - 1] > places[i])
        raise contracts.ContractBroken(
            "the reading order stays", f"number {at} of 12", f"a place after {places[at - 1]}", places[at]
        )


# ── nats ─────────────────────────────────────────────────────────────────────────────────────────

nats = Exercise(
    "nats", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="00-start-here.html#cross-entropy",
    checks="mean cross-entropy for any leading axes and logits of ±1000; an error for unknown targets",
    question="for one example: which two numbers does the loss need, and how is the first kept finite?",
    hints=(
        "The loss of one example is lse(logits) − logits[target]. What does the page do to keep lse finite?",
        "1. refuse targets outside 0 … V−1 (a negative index would count from the end)\n"
        "2. lse over the last axis (…), by equation 0.1 or torch.logsumexp\n"
        "3. the logit of each target (…), by gather on targets[..., None]\n"
        "4. the mean of the difference ()",
        "right = logits.gather(-1, targets[..., None])[..., 0]   # (…)\n"
        "return (… - right).mean()                               # ()",
    ),
    out_of_reach=(
        "torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss",
        "torch.nn.functional.log_softmax", "torch.log_softmax", "torch.Tensor.log_softmax",
        "torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss", "torch.nn.LogSoftmax", "torch._log_softmax",
        "torch.nn.functional.kl_div", "torch.nn.KLDivLoss", "torch.distributions.Categorical",
        "torch.distributions.categorical.Categorical",
        "tx.course.fitting.cross_entropy",
    ),
)  # fmt: skip


def _integers(g, high, *shape):
    return torch.randint(high, shape, generator=g)


@nats.cases
def _(g):
    yield torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([0, 1])
    yield randn(g, 4, 3), _integers(g, 3, 4)
    yield randn(g, 2, 3, 5), _integers(g, 5, 2, 3)
    yield torch.tensor([[1000.0, 999.0, 0.0], [-1000.0, -1001.0, -999.0]]), torch.tensor([1, 0])
    yield torch.tensor([[1000.0, 0.0, -1000.0]]), torch.tensor([2])  # p is 0 in float32
    yield raises(ValueError, randn(g, 2, 3), torch.tensor([0, 3]))
    yield raises(ValueError, randn(g, 2, 3), torch.tensor([0, -1]))


def _check_targets(logits, targets):
    if bool((targets < 0).any()) or bool((targets >= logits.shape[-1]).any()):
        raise ValueError(f"targets lie in 0 … {logits.shape[-1] - 1}, got {targets.tolist()}")


def _surprise(logits, targets, axis=-1):
    """−ln p of each target: (…)."""
    log_p = logits - logits.logsumexp(axis, keepdim=True)  # (..., V)
    return -log_p.gather(-1, targets[..., None])[..., 0]  # (...)


@nats.reference
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets).mean()  # ()


@nats.mistake(
    "no error for unknown targets",
    "a target of −1 or V is a bug in the data; found here, it costs a minute, found later, a week.",
)
def _(logits, targets):
    return _surprise(logits, targets % logits.shape[-1]).mean()  # ()


@nats.mistake(
    "exp of the raw logits",
    "exp(1000) is infinite, and inf / inf is nan: take the largest logit out first.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)  # (..., V)
    return -p.gather(-1, targets[..., None]).log().mean()  # ()


@nats.mistake(
    "the largest logit not added back",
    "lse(x) = m + ln Σ exp(x − m): the m in front is missing.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    top = logits.amax(-1)  # (...)
    return (_surprise(logits, targets) - top).mean()  # ()


@nats.mistake("the sum, not the mean", "divide by the number of examples, all leading axes counted.")
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets).sum()  # ()


@nats.mistake("one loss an example", "the losses of the examples are right, and not averaged yet.")
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets)  # (...)


@nats.mistake("the sign", "ln p is never positive; the loss is −ln p.")
def _(logits, targets):
    _check_targets(logits, targets)
    return -_surprise(logits, targets).mean()  # ()


@nats.mistake("bits", "log2 gives bits; nats take the natural logarithm.")
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets).mean() / torch.tensor(2.0).log()  # ()


@nats.mistake(
    "softmax over the examples",
    "every example has its own distribution over V answers: normalise along the last axis.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets, axis=0).mean()  # ()


@nats.mistake(
    "every target for every example",
    "log_p[..., targets] takes all targets in every row; gather takes each row's own.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    log_p = logits - logits.logsumexp(-1, keepdim=True)  # (..., V)
    return -log_p[..., targets].mean()  # ()


@nats.mistake("1 − p instead of −ln p", "that is an error rate; the surprise of p is −ln p.")
def _(logits, targets):
    _check_targets(logits, targets)
    return (1 - (-_surprise(logits, targets)).exp()).mean()  # ()


@nats.mistake(
    "the logarithm of a p that has become 0",
    "softmax gives exactly 0 for a logit 2000 below, and ln 0 is −∞: stay with logits and lse.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    p = logits.softmax(-1).gather(-1, targets[..., None])[..., 0]  # (...)
    return -p.log().mean()  # ()


def _with_floor(tiny):
    def answer(logits, targets):
        _check_targets(logits, targets)
        p = logits.softmax(-1).gather(-1, targets[..., None])[..., 0]  # (...)
        return -(p + tiny).log().mean()  # ()

    return answer


for tiny in (1e-12, 1e-10, 1e-9, 1e-8, 1e-7):
    nats.mistake(
        f"{tiny:g} under the logarithm",
        "no loss can exceed its logarithm then, so the worst answers look all alike: stay with lse.",
    )(_with_floor(tiny))


@nats.mistake(
    "logits cut off at a limit",
    "beyond the limit all logits are equal; taking the largest out keeps their differences.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits.clamp(-80, 80), targets).mean()  # ()


@nats.mistake(
    "one shift for all examples",
    "a row far below the largest logit of all becomes ln 0: take out each row's own largest.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    top = logits.max()  # ()
    lse = top + (logits - top).exp().sum(-1).log()  # (...)
    return (lse - logits.gather(-1, targets[..., None])[..., 0]).mean()  # ()


@nats.mistake(
    "divided by V as well", "only the target's term counts in a row: divide by the number of targets."
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets).mean() / logits.shape[-1]  # ()


@nats.mistake(
    "divided by the length of the first axis",
    "with more leading axes there are more targets: divide by how many there are, targets.numel().",
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, targets).sum() / len(targets)  # ()


@nats.mistake("the logit alone", "a logit counts against the others of its row: lse is still to be added.")
def _(logits, targets):
    _check_targets(logits, targets)
    return -logits.gather(-1, targets[..., None]).mean()  # ()


@nats.mistake(
    "softmax twice", "lse already makes probabilities of logits: give it the logits, not probabilities."
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits.softmax(-1), targets).mean()  # ()


@nats.mistake(
    "the likeliest answer in place of the target",
    "the loss asks how likely the answer was that came, right or not.",
)
def _(logits, targets):
    _check_targets(logits, targets)
    return _surprise(logits, logits.argmax(-1)).mean()  # ()


@nats.mistake("p itself", "that is the average probability of the targets; the surprise of p is −ln p.")
def _(logits, targets):
    _check_targets(logits, targets)
    return (-_surprise(logits, targets)).exp().mean()  # ()


@nats.mistake("the logarithm of the average p", "average the surprises: −ln first, then the mean.")
def _(logits, targets):
    _check_targets(logits, targets)
    return -(-_surprise(logits, targets)).exp().mean().log()  # ()


@nats.contract("even bets cost ln V")
def _(f):
    expected = torch.tensor(5.0).log()  # ()
    contracts.same("even bets cost ln V", f(torch.zeros(2, 5), torch.tensor([0, 3])), expected)


@nats.contract("a level added to all logits changes nothing")
def _(f):
    logits, targets = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]]), torch.tensor([0, 1])
    name = "a level added to all logits changes nothing"
    contracts.same(name, f(logits + 5.0, targets), f(logits, targets))


@nats.contract("finite for logits of ±1000")
def _(f):
    got = f(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), torch.tensor([0, 1]))
    contracts.same("finite for logits of ±1000", got, torch.tensor(0.0))


# ── conditional_floor ────────────────────────────────────────────────────────────────────────────

conditional_floor = Exercise(
    "conditional_floor", chapter=CHAPTER, kind="measure", level=2, minutes=15, points=3,
    page="00-start-here.html#the-entropy-floor",
    checks="the floor in nats of whoever sees the row, from counts, zeros included",
    question="how often does each row occur, and what is the entropy within it?",
    hints=(
        "Equation 0.2 needs π and the rows of P. Both are in the counts. And what is 0 · ln 0 here, and "
        "what does torch make of it?",
        "1. refuse a table without any count\n"
        "2. total of each row (N, 1)\n"
        "3. rows as probabilities (N, V), careful with an empty row\n"
        "4. −p ln p with 0 where p is 0 (torch.xlogy, or a clamp inside the logarithm)\n"
        "5. rows weighted by their share of all counts ()",
        "total = counts.sum(-1, keepdim=True)             # (N, 1)\n"
        "p = counts / total.clamp(min=1)                  # (N, V)\n"
        "entropy = -torch.xlogy(p, p).sum(-1)             # (N,)\n"
        "return (… * entropy).sum()                       # ()",
    ),
    out_of_reach=("torch.distributions.Categorical", "torch.distributions.categorical.Categorical"),
)  # fmt: skip


@conditional_floor.cases
def _(g):
    yield (torch.tensor([[3, 1], [2, 2]]),)
    yield (torch.tensor([[4, 0, 0], [1, 1, 2]]),)
    yield (torch.tensor([[5, 1, 2], [0, 0, 0], [1, 1, 1]]),)
    yield (_integers(g, 9, 3, 4) + 1,)
    yield (_integers(g, 3, 5, 2) + torch.tensor([[1, 0]]),)
    yield raises(ValueError, torch.zeros(2, 3, dtype=torch.long))


def _check_counts(counts):
    if not counts.sum() > 0:
        raise ValueError("no counts at all: a floor needs at least one observation")


def _entropy(p):
    return -torch.xlogy(p, p).sum(-1)  # (...)


def _rows(counts):
    """The rows as probabilities (N, V), zeros for an empty one."""
    return counts / counts.sum(-1, keepdim=True).clamp(min=1)  # (N, V)


@conditional_floor.reference
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(_rows(counts))).sum()  # ()


@conditional_floor.mistake(
    "the plain mean of the rows",
    "a row that comes often counts often: weight each entropy by the share of its row.",
)
def _(counts):
    _check_counts(counts)
    return _entropy(_rows(counts)).mean()  # ()


@conditional_floor.mistake(
    "the sum of the rows",
    "the floor is an average: weight each entropy by the share of its row. (It is weighted? Then (N, 1) "
    "met (N,): every weight was multiplied with every entropy.)",
)
def _(counts):
    _check_counts(counts)
    return _entropy(_rows(counts)).sum()  # ()


@conditional_floor.mistake(
    "0 · ln 0 is nan",
    "an answer that never came costs nothing, but torch says 0 · (−inf) = nan.",
)
def _(counts):
    _check_counts(counts)
    p = counts / counts.sum(-1, keepdim=True)  # (N, V)
    return (counts.sum(-1) / counts.sum() * -(p * p.log()).sum(-1)).sum()  # ()


@conditional_floor.mistake(
    "the row is not used",
    "that is the entropy of the answers' frequencies, the floor of whoever does not see the row.",
)
def _(counts):
    _check_counts(counts)
    return _entropy(counts.sum(0) / counts.sum())  # ()


@conditional_floor.mistake(
    "the entropy of the whole table",
    "that includes not knowing the row; the row is seen, so its entropy is not paid.",
)
def _(counts):
    _check_counts(counts)
    return _entropy((counts / counts.sum()).flatten())  # ()


@conditional_floor.mistake(
    "columns as contexts",
    "the answer was taken as what is seen: a row is a context, its columns are the answers.",
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(0) / counts.sum()  # (V,)
    return (share * _entropy(_rows(counts.T))).sum()  # ()


@conditional_floor.mistake("bits", "log2 gives bits; nats take the natural logarithm.")
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(_rows(counts))).sum() / torch.tensor(2.0).log()  # ()


@conditional_floor.mistake(
    "no error for an empty table",
    "0 / 0 is nan, and nobody will know where it came from.",
)
def _(counts):
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(_rows(counts))).sum()  # ()


@conditional_floor.mistake(
    "an empty row is 0 / 0",
    "a row without counts has no probabilities: divide by at least 1, its share is 0 anyway.",
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(counts / counts.sum(-1, keepdim=True))).sum()  # ()


@conditional_floor.mistake(
    "the plain mean of the rows that occurred",
    "leaving out empty rows is right; among the others, a row that comes often counts often.",
)
def _(counts):
    _check_counts(counts)
    return _entropy(_rows(counts[counts.sum(-1) > 0])).mean()  # ()


@conditional_floor.mistake(
    "weighted by counts, not by shares", "weights of an average sum to one: divide by all counts."
)
def _(counts):
    _check_counts(counts)
    return (counts.sum(-1) * _entropy(_rows(counts))).sum()  # ()


@conditional_floor.mistake(
    "divided by the number of rows",
    "each entropy is weighted by a count: the sum of all counts divides, not the number of rows.",
)
def _(counts):
    _check_counts(counts)
    return (counts.sum(-1) * _entropy(_rows(counts))).mean()  # ()


@conditional_floor.mistake(
    "weighted and averaged", "the shares sum to one already: add up, without dividing by N again."
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(_rows(counts))).mean()  # ()


@conditional_floor.mistake("one entropy a row", "the entropies of the rows are right, and not averaged yet.")
def _(counts):
    _check_counts(counts)
    return _entropy(_rows(counts))  # (N,)


@conditional_floor.mistake(
    "the entropy of the contexts",
    "that is how surprising the row is; asked for is how surprising the answer is, given the row.",
)
def _(counts):
    _check_counts(counts)
    return _entropy(counts.sum(-1) / counts.sum())  # ()


@conditional_floor.mistake(
    "what the context saves", "that is how many nats the row is worth; the floor is what remains."
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return _entropy(counts.sum(0) / counts.sum()) - (share * _entropy(_rows(counts))).sum()  # ()


@conditional_floor.mistake(
    "one added to every count",
    "smoothing invents answers that never came; 0 · ln 0 is 0 without it.",
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * _entropy(_rows(counts + 1))).sum()  # ()


@conditional_floor.mistake(
    "the share of wrong guesses", "how often the best guess fails is an error rate; nats come from −ln p."
)
def _(counts):
    _check_counts(counts)
    share = counts.sum(-1) / counts.sum()  # (N,)
    return (share * (1 - _rows(counts).amax(-1))).sum()  # ()


@conditional_floor.contract("a row that decides the answer costs nothing")
def _(f):
    got = f(torch.tensor([[4, 0, 0], [0, 0, 2]]))
    contracts.same("a row that decides the answer costs nothing", got, torch.tensor(0.0))


@conditional_floor.contract("equal counts cost ln V")
def _(f):
    got = f(torch.tensor([[2, 2, 2], [5, 5, 5]]))
    contracts.same("equal counts cost ln V", got, torch.tensor(3.0).log())


@conditional_floor.contract("ten times the counts, the same floor")
def _(f):
    counts = torch.tensor([[3, 1], [2, 4]])  # (N, V)
    contracts.same("ten times the counts, the same floor", f(10 * counts), f(counts))


@conditional_floor.contract("an empty row changes nothing")
def _(f):
    counts = torch.tensor([[3, 1], [0, 0], [2, 4]])  # (N, V)
    contracts.same("an empty row changes nothing", f(counts), f(counts[[0, 2]]))


# ── z_loss_gradient ──────────────────────────────────────────────────────────────────────────────

z_loss_gradient = Exercise(
    "z_loss_gradient", chapter=CHAPTER, kind="derive", level=3, minutes=40, points=5,
    page="00-start-here.html#gradient-by-hand",
    checks="the gradient of cross-entropy plus z_weight · lse², for weights from 0 to 1",
    question="by the chain rule, what is the slope of lse² if the slope of lse is p?",
    hints=(
        "One example first: loss = lse − x_y + z · lse². You know the slope of lse and of x_y. What is "
        "the slope of a square?",
        "1. lse (N, 1) and p = softmax (N, V), both safe for large logits\n"
        "2. slope of lse² is 2 · lse · p\n"
        "3. collect what multiplies p\n"
        "4. subtract 1 at the targets\n"
        "5. the loss is a mean over N examples",
        "lse = logits.logsumexp(-1, keepdim=True)         # (N, 1)\n"
        "p = (logits - lse).exp()                         # (N, V)\n"
        "onehot = F.one_hot(targets, logits.shape[-1])    # (N, V)\n"
        "return (p * (…) - onehot) / len(logits)          # (N, V)",
    ),
    out_of_reach=(
        "torch.autograd.grad", "torch.autograd.backward", "torch.Tensor.backward", "torch.func.grad",
        "torch.func.vjp", "torch.func.jacrev", "torch.func.jacfwd", "torch.autograd.functional.jacobian",
    ),
)  # fmt: skip


@z_loss_gradient.cases
def _(g):
    yield torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([0]), 0.5
    yield torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 2]), 0.0
    yield randn(g, 3, 4), _integers(g, 4, 3), 0.1
    yield 2 * randn(g, 5, 2) + 3, _integers(g, 2, 5), 1.0
    yield torch.tensor([[200.0, 199.0, 190.0], [-200.0, -201.0, -200.0]]), torch.tensor([1, 0]), 1e-3


def _parts(logits, targets):
    lse = logits.logsumexp(-1, keepdim=True)  # (N, 1)
    p = (logits - lse).exp()  # (N, V)
    return lse, p, F.one_hot(targets, logits.shape[-1]).to(logits.dtype)


@z_loss_gradient.reference
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "cross-entropy alone", "p − onehot is the first half; the slope of z_weight · lse² comes on top."
)
def _(logits, targets, z_weight):
    _, p, onehot = _parts(logits, targets)
    return (p - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake("the 2 of the square is missing", "the slope of u² is 2u.")
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + z_weight * lse) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the inner slope is missing",
    "by the chain rule the slope of lse² is 2 · lse times the slope of lse, which is p.",
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot + 2 * z_weight * lse) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the square is missing", "that is the gradient with z_weight · lse; the penalty is its square."
)
def _(logits, targets, z_weight):
    _, p, onehot = _parts(logits, targets)
    return (p * (1 + z_weight) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the outer slope without lse", "the slope of u² is 2u, and u is lse: 2 · z_weight · lse · p."
)
def _(logits, targets, z_weight):
    _, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the penalty reaches the right answer twice",
    "lse² does not contain x_y by itself: only p is multiplied by 2 · z_weight · lse, not onehot.",
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot) * (1 + 2 * z_weight * lse) / len(logits)  # (N, V)


@z_loss_gradient.mistake("not divided by N", "the loss is a mean over the N examples.")
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return p * (1 + 2 * z_weight * lse) - onehot  # (N, V)


@z_loss_gradient.mistake("divided by N · V", "the mean runs over the N examples, not over the V logits.")
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / logits.numel()  # (N, V)


@z_loss_gradient.mistake("the sign", "this is the direction down; the gradient points up.")
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (onehot - p * (1 + 2 * z_weight * lse)) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "exp of the raw logits", "exp(200) is infinite in fp32: subtract lse before the exp."
)
def _(logits, targets, z_weight):
    e = logits.exp()  # (N, V)
    lse, p = e.sum(-1, keepdim=True).log(), e / e.sum(-1, keepdim=True)  # (N, 1), (N, V)
    onehot = F.one_hot(targets, logits.shape[-1])  # (N, V)
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the penalty is not divided by N", "the penalty stands inside the mean: 1/N multiplies it as well."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot) / len(logits) + 2 * z_weight * lse * p  # (N, V)


@z_loss_gradient.mistake(
    "only the penalty is divided by N", "cross-entropy stands inside the mean: 1/N multiplies it as well."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return p - onehot + 2 * z_weight * lse * p / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the penalty is subtracted", "a penalty is added to the loss, so its slope is added, too."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 - 2 * z_weight * lse) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake("the penalty alone", "the slope of lse − x_y is still to be added: p − onehot.")
def _(logits, targets, z_weight):
    lse, p, _ = _parts(logits, targets)
    return 2 * z_weight * lse * p / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "nothing subtracted at the targets", "the loss contains −x_y: its slope is −1 at the target."
)
def _(logits, targets, z_weight):
    lse, p, _ = _parts(logits, targets)
    return p * (1 + 2 * z_weight * lse) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "one added at the targets", "the loss contains −x_y: its slope at the target is −1, not +1."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) + onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the square is still there", "the slope of u² is 2u: after the derivative lse stands alone."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse**2) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake("divided by V", "the mean runs over the N examples: V is the number of answers.")
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) - onehot) / logits.shape[-1]  # (N, V)


@z_loss_gradient.mistake(
    "p (1 − p) as the slope of lse",
    "p (1 − p) is how a probability follows its own logit; the slope of lse is p itself.",
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p - onehot + 2 * z_weight * lse * p * (1 - p)) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "one lse for all rows", "each example is penalised for its own lse, (N, 1): no mean before the square."
)
def _(logits, targets, z_weight):
    lse, p, onehot = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse.mean()) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "softmax over the examples", "p sums to one along the V answers of a row, the last axis."
)
def _(logits, targets, z_weight):
    lse, _, onehot = _parts(logits, targets)
    return (logits.softmax(0) * (1 + 2 * z_weight * lse) - onehot) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "one_hot guesses V",
    "without its second argument, F.one_hot takes the largest target for the last answer.",
)
def _(logits, targets, z_weight):
    lse, p, _ = _parts(logits, targets)
    return (p * (1 + 2 * z_weight * lse) - F.one_hot(targets)) / len(logits)  # (N, V)


@z_loss_gradient.mistake(
    "the loss itself", "asked for is how the loss changes with every logit: (N, V) slopes."
)
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1)  # (N,)
    right = logits.gather(-1, targets[:, None])[:, 0]  # (N,)
    return (lse - right + z_weight * lse.square()).mean()  # ()


_LOGITS = torch.tensor([[1.0, 0.0, -1.0, 0.5], [0.0, 2.0, 1.0, -0.5]], dtype=torch.float64)  # (N, V)
_TARGETS = torch.tensor([0, 2])  # (N,)


@z_loss_gradient.contract("without the penalty every row sums to zero")
def _(f):
    rows = f(_LOGITS, _TARGETS, 0.0).sum(-1)  # (N,)
    contracts.same("without the penalty every row sums to zero", rows, torch.zeros_like(rows))


@z_loss_gradient.contract("examples share the mean")
def _(f):
    alone, both = f(_LOGITS[:1], _TARGETS[:1], 0.1), f(_LOGITS, _TARGETS, 0.1)  # (1, V), (N, V)
    contracts.same("examples share the mean", both[:1], alone / 2, "row 0 of two, half of row 0 alone")


@z_loss_gradient.contract("it is the measured slope")
def _(f):
    def loss(x, z_weight):
        lse = x.logsumexp(-1)  # (N,)
        right = x.gather(-1, _TARGETS[:, None])[:, 0]  # (N,)
        return (lse - right + z_weight * lse**2).mean()  # ()

    for z_weight in (0.0, 0.3):
        slope = torch.zeros_like(_LOGITS)  # (N, V)
        for n, v in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
            step = torch.zeros_like(_LOGITS)  # (N, V)
            step[n, v] = 1e-5
            up, down = loss(_LOGITS + step, z_weight), loss(_LOGITS - step, z_weight)  # (), ()
            slope[n, v] = (up - down) / 2e-5  # ()
        got = f(_LOGITS, _TARGETS, z_weight)  # (N, V)
        contracts.same("it is the measured slope", got, slope, f"z_weight = {z_weight}")


test_exercise = exercises_of(__name__)
