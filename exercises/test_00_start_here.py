"""Graders of chapter 0: shapes, cross-entropy, floors."""

import torch
import torch.nn.functional as F

from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "00_start_here"


def _integers(g, high, *shape):
    return torch.randint(high, shape, generator=g)


# ── soft_choice ──────────────────────────────────────────────────────────────────────────────────

soft_choice = Exercise(
    "soft_choice", chapter=CHAPTER, kind="debug", level=1, minutes=3, points=1,
    page="00-start-here.html#your-first-repair",
    checks="every person's weights, for T people and S places, also for large scores, and their gradients",
    question="add up one row, then one column: which of them should give one?",
    hints=(
        "dim= names the axis along which the softmax sums to one. Which axis of (T, S) holds the "
        "places among which one person chooses?",
        "scores (T, S): axis 0 counts people, axis 1 counts places. One row has to sum to one, and a "
        "row runs along the places.",
        "return scores.softmax(dim=…)   # the axis of the places",
    ),
    gradients=True,
)  # fmt: skip

_SCORES = (
    torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 2.0, 3.0, 0.0]]),
    torch.tensor([[2.0, 1.0, -1.0]]),
    torch.tensor([[0.0, 1.0], [2.0, -1.0], [-3.0, 0.0]]),  # more people than places
    torch.tensor([[0.0, 2.0], [-1.0, 1.0], [1.0, 0.0]]).T,
    torch.tensor([[1e4, 9999.0, -1e4], [-1e4, -10001.0, -9999.0]]),  # exp would overflow
    torch.linspace(0, 1, 4096)[None],
    torch.linspace(-9, 9, 600).view(300, 2),
    torch.tensor([[1e8 + 1, 1e8]], dtype=torch.float64),  # one and the same number in float32
)


@soft_choice.cases
def _(g):
    yield from zip(_SCORES, strict=True)
    yield (randn(g, 4, 4),)
    yield (3 * randn(g, 5, 2),)


@soft_choice.reference
def _(scores):
    return scores.softmax(dim=1)  # (T, S)


def _shifted(scores):
    """exp, without overflow: (T, S)."""
    return (scores - scores.amax(1, keepdim=True)).exp()


soft_choice.mistakes_are(
    ("softmax over the people",
     "dim=0 makes every column sum to one: the people share each place, instead of each person sharing out their "
     "own attention.", lambda s: s.softmax(0)),
    ("one softmax over everything",
     "all T · S weights together sum to one, so a second person takes attention from the first.",
     lambda s: s.flatten().softmax(0).view(s.shape)),
    ("a hard choice", "only the best place counts, the others get exactly zero: the look-up at temperature 0.",
     lambda s: F.one_hot(s.argmax(1), s.shape[1]).float()),
    ("divided by the sum, without exp",
     "scores may be negative or sum to zero; exp makes every share positive first.",
     lambda s: s / s.sum(1, keepdim=True)),
    ("absolute scores", "a score of −3 is the opposite of 3; exp makes it positive and keeps it smaller.",
     lambda s: s.abs().softmax(1)),
    ("logarithms of the weights", "log_softmax gives ln p, which is negative: its exp are the weights.",
     lambda s: s.log_softmax(1)),
    ("exp of the raw scores",
     "exp(1e4) is infinite, and inf / inf is nan: softmax takes the row's largest score out first.",
     lambda s: s.exp() / s.exp().sum(1, keepdim=True)),
    ("one maximum for all rows",
     "a row far below the largest score of all becomes 0 / 0: take out each row's own largest.",
     lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(1, keepdim=True)),
    ("scores cut off at a limit",
     "beyond the limit all scores are equal; take the row's largest out, that keeps the differences.",
     lambda s: s.clamp(-80, 80).softmax(1)),
    ("each score by itself", "a sigmoid does not know the other places, so the row does not sum to one.",
     lambda s: s.sigmoid()),
    ("not divided", "exp makes every share positive; their sum still divides them.", _shifted),
    ("softmax twice", "weights are not scores: a second softmax makes every row nearly even.",
     lambda s: s.softmax(1).softmax(1)),
    ("shared out along both axes",
     "the rows sum to one, but of numbers that the people had already shared out among them.",
     lambda s: s.softmax(0).softmax(1)),
    ("the sums of the rows lie on the columns",
     "without keepdim=True a sum (T,) is lined up with the places: person t needs the sum of row t.",
     lambda s: _shifted(s) / _shifted(s).sum(1)),
    ("the sum is cut from its gradient",
     "a score raises its own share and lowers the others', by way of the sum: do not detach it.",
     lambda s: _shifted(s) / _shifted(s).sum(1, keepdim=True).detach()),
)  # fmt: skip


@soft_choice.contract("every row of weights sums to one")
def _(f):
    for scores in _SCORES:
        contracts.rows_sum_to_one(f, scores)


@soft_choice.contract("people do not influence each other")
def _(f):
    for scores in _SCORES[:5]:
        contracts.batch_independence(f, scores)


@soft_choice.contract("a level added to a row changes nothing")
def _(f):
    for scores in _SCORES[:5]:
        contracts.same("a level added to a row changes nothing", f(scores + 4.0), f(scores))


# ── squared_distances ────────────────────────────────────────────────────────────────────────────

squared_distances = Exercise(
    "squared_distances", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="00-start-here.html#shapes-and-broadcasting",
    checks="the squared distance of every x to every y, its gradients, float64, an error for widths that differ",
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
    gradients=True,
)  # fmt: skip

_POINTS = (
    (torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])),
    (torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [3.0, 0.0]])),
    (torch.tensor([[1.0]]), torch.tensor([[-1.0], [3.0]])),
    (torch.tensor([[1e4, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, -1e4]])),
)


@squared_distances.cases
def _(g):
    yield from _POINTS
    yield randn(g, 3, 2), randn(g, 3, 2)
    yield randn(g, 3, 4).T, randn(g, 3, 2).T
    yield torch.linspace(0, 1, 4096)[None], torch.zeros(2, 4096)
    many = torch.linspace(-3, 3, 300)[:, None]  # (T, D)
    yield many, torch.ones(1, 1)
    yield torch.ones(1, 1), many
    far = torch.tensor([[1e5]], dtype=torch.float64)  # (T, D)
    yield far, far + 0.503  # float32 has only 0.5
    for one, other in (((2, 3), (4, 1)), ((2, 1), (4, 3)), ((2, 3), (4, 4)), ((2, 4), (2, 3))):
        yield raises(ValueError, randn(g, *one), randn(g, *other))


@squared_distances.reference
def _(x, y):
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} differ in width")
    return (x[:, None] - y[None]).square().sum(dim=-1)  # (T, S)


def _expanded(x, y, cross):
    """|x|² + cross · x·y + |y|², for all pairs: (T, S)."""
    return x.square().sum(-1)[:, None] + y.square().sum(-1) + cross * x @ y.T


squared_distances.edits_are(
    ("no error for widths that differ",
     "widths 3 and 1 broadcast: the one feature of y was compared with all three of x, in silence.",
     "if x.shape[1] != y.shape[1]", "if False"),
    ("refused only where x is wider", "3 against 1 and 1 against 3 both broadcast: compare the widths with !=.",
     "x.shape[1] != y.shape[1]", "x.shape[1] > y.shape[1]"),
    ("refused only where y is wider", "3 against 1 and 1 against 3 both broadcast: compare the widths with !=.",
     "x.shape[1] != y.shape[1]", "x.shape[1] < y.shape[1]"),
    ("a width of 1 let through", "PyTorch refuses 3 against 4 by itself and repeats a width of 1: that is yours.",
     "x.shape[1] != y.shape[1]", "1 not in (x.shape[1], y.shape[1]) and x.shape[1] != y.shape[1]"),
    ("pairs, not all against all",
     "x - y compares row 0 with row 0, row 1 with row 1; the distances of all pairs need a new axis.",
     "(x[:, None] - y[None])", "(x - y)"),
    ("transposed", "the result is (S, T): rows have to belong to x. Whose axis of size 1 sits on the wrong side?",
     "(x[:, None] - y[None])", "(y[:, None] - x[None])"),
    ("not squared", "a root was taken: the distance itself, not its square.",
     ".sum(dim=-1)", ".sum(dim=-1).sqrt()"),
    ("the square of a root", "at 0 the slope of a root is infinite, and ∞ · 0 is nan: without the root it is 0.",
     ".sum(dim=-1)", ".sum(dim=-1).sqrt().square()"),
    ("the mean over the features", "mean divides by D; a squared distance adds up the squares.",
     ".sum(dim=-1)", ".mean(dim=-1)"),
    ("the features are still there", "the squares are right, (T, S, D), and not yet summed over D.",
     ".sum(dim=-1)", ""),
    ("summed before squaring", "differences of opposite sign cancel when they are added first.",
     ".square().sum(dim=-1)", ".sum(dim=-1).square()"),
    ("absolute differences", "that walks along the axes, 3 + 4 = 7; squares are summed here, 9 + 16 = 25.",
     ".square()", ".abs()"),
    ("neither squared nor absolute", "the plain differences are added up, and those of opposite sign cancel.",
     ".square()", ""),
    ("summed over the points of x",
     "axis 0 of (T, S, D) counts the points of x: which axis counts the features?", "dim=-1", "dim=0"),
    ("summed over the points of y",
     "axis 1 of (T, S, D) counts the points of y: which axis counts the features?", "dim=-1", "dim=1"),
)  # fmt: skip
squared_distances.mistakes_are(
    ("expanded without the 2", "(a − b)² = a² − 2ab + b²: the product in the middle counts twice.",
     lambda x, y: _expanded(x, y, -1)),
    ("expanded with a plus", "(a − b)² = a² − 2ab + b²: the product in the middle is subtracted.",
     lambda x, y: _expanded(x, y, 2)),
    ("the products are forgotten", "(a − b)² = a² − 2ab + b²: a² + b² alone leaves out the middle.",
     lambda x, y: _expanded(x, y, 0)),
    ("dot products", "a dot product says how alike two vectors point, not how far apart they lie.",
     lambda x, y: x @ y.T),
    ("counted in float32", "float32 keeps seven digits, and far from 0 the difference lies behind them.",
     lambda x, y: squared_distances.reference_answer(x.float(), y.float())),
)  # fmt: skip


@squared_distances.contract("every point is at distance 0 from itself")
def _(f):
    name = "every point is at distance 0 from itself"
    for x in (points for pair in _POINTS for points in pair):
        contracts.same(name, f(x, x).diagonal(), torch.zeros(len(x)), "the diagonal")


@squared_distances.contract("3 to the side and 4 up are 25")
def _(f):
    got = f(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))  # (T, S)
    contracts.same("3 to the side and 4 up are 25", got, torch.tensor([[25.0]]))


@squared_distances.contract("each row belongs to one x")
def _(f):
    for x, y in _POINTS:
        contracts.batch_independence(lambda rows, y=y: f(rows, y), x)


@squared_distances.contract("there and back is the same distance")
def _(f):
    for x, y in _POINTS:
        contracts.same("there and back is the same distance", f(y, x).transpose(0, 1), f(x, y))


@squared_distances.contract("float64 stays float64")
def _(f):
    contracts.dtype_is(f(*(points.double() for points in _POINTS[0])), torch.float64)


# ── where_view_puts_it ───────────────────────────────────────────────────────────────────────────

where_view_puts_it = Exercise(
    "where_view_puts_it", chapter=CHAPTER, kind="predict", level=2, minutes=10, points=3,
    page="00-start-here.html#reshape-or-transpose",
    checks="head, position and feature of one number after x.view(H, T, d_k), at unseen and at huge sizes",
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
    yield from ((0, 0, 4, 2, 3), (1, 0, 4, 2, 3), (0, 3, 4, 2, 3), (3, 4, 4, 2, 3))
    yield from ((2, 1, 3, 1, 2), (0, 5, 1, 3, 2), (2, 4, 3, 6, 1))
    for T, H, d_k in ((5, 3, 2), (2, 4, 5), (7, 2, 4)):
        yield int(_integers(g, T - 1)) + 1, int(_integers(g, H * d_k)), T, H, d_k
        yield T - 1, H * d_k - 1 - int(_integers(g, 2)), T, H, d_k
    yield 9 * 10**13 + 1, 4095, 10**14, 32, 128  # more than 2⁵³ numbers, and than any machine has bytes
    yield 12 * 10**15 + 1, 5, 10**17, 2, 3


@where_view_puts_it.reference
def _(t, f, T, H, d_k):
    n = t * H * d_k + f
    head, rest = divmod(n, T * d_k)
    position, feature = divmod(rest, d_k)
    return head, position, feature


_END, _COUNT = "return head, position, feature", "t * H * d_k + f"
_DIVISIONS = "head, rest = divmod(n, T * d_k)\n    position, feature = divmod(rest, d_k)"

where_view_puts_it.edits_are(
    ("where the right split puts it",
     "that is reshape to (T, H, d_k) and transpose; the shortcut never asks which token it is cutting.",
     _END, "return f // d_k, t, f % d_k"),
    ("heads of T numbers", "one head holds T positions of d_k numbers each: T·d_k, not T.", "T * d_k)", "T)"),
    ("heads as wide as a token",
     "H·d_k is the width of a token in x. In (H, T, d_k) one head takes T·d_k numbers; a first axis of H·d_k "
     "numbers each belongs to the shape (T, H, d_k).", "T * d_k)", "H * d_k)"),
    ("the old width forgotten", "a row of x has H·d_k numbers, so token t starts at t·H·d_k and not at t·d_k.",
     _COUNT, "t * d_k + f"),
    ("rows of T numbers", "T counts the rows of x; one row has H·d_k numbers, so token t starts at t·H·d_k.",
     _COUNT, "t * T + f"),
    ("counted column by column", "x is stored row by row: the whole of token 0 comes first, then token 1.",
     _COUNT, "f * T + t"),
    ("one too many", "the numbers *before* x[t, f] are counted: how many stand before x[0, 0]?",
     _COUNT, "t * H * d_k + f + 1"),
    ("position before head", "right numbers in another order: head first, then position, then feature.",
     _END, "return position, head, feature"),
    ("feature before position", "right numbers in another order: head first, then position, then feature.",
     _END, "return head, feature, position"),
    ("positions run fastest",
     "the last axis of a shape is the one whose neighbours are neighbours in memory: d_k, not T.",
     _END, "return head, rest % T, rest // T"),
    ("head, position and feature counted from one", "an axis is counted from 0: the first head is head 0.",
     _END, "return head + 1, position + 1, feature + 1"),
    ("head and position counted from one", "an axis is counted from 0: the first head is head 0.",
     _END, "return head + 1, position + 1, feature"),
    ("the position runs on through the heads",
     "every head counts its positions from 0: take off what the heads before it hold.",
     _END, "return head, n // d_k, feature"),
    ("the feature keeps its old number",
     "a position has d_k features, so the new number is a remainder, smaller than d_k.",
     _END, "return head, position, f"),
    ("the position keeps its old number",
     "that a number stays at its token is what this view gets wrong: count in memory.",
     _END, "return head, t, feature"),
    ("positions of H numbers",
     "the last axis of (H, T, d_k) is d_k long: so many numbers does a position take, not H.",
     "divmod(rest, d_k)", "divmod(rest, H)"),
    ("positions of T numbers",
     "the last axis of (H, T, d_k) is d_k long: so many numbers does a position take, not T.",
     "divmod(rest, d_k)", "divmod(rest, T)"),
    ("H and d_k have changed places",
     "that is x.view(d_k, T, H): the number of heads is the first axis, their width the last.",
     _DIVISIONS, "head, rest = divmod(n, T * H)\n    position, feature = divmod(rest, H)"),
    ("fractions", "the rest of a division is the next axis' business: // leaves it out, / does not.",
     _END, "return n / (T * d_k), rest / d_k, feature"),
    ("divided with / and then cut off",
     "/ gives a float of 53 bits, about 16 digits: // and divmod keep all of them.",
     _END, "return int(n / (T * d_k)), int(n % (T * d_k) / d_k), feature"),
    ("counted in floats", "a place is a whole number: // and divmod of whole numbers keep all its digits.",
     _COUNT, "float(t * H * d_k + f)"),
)  # fmt: skip


def _place(name, where, expected, got):
    if got != expected:
        raise contracts.ContractBroken(name, where, expected, got)


def _everywhere(f):
    """What `f` says for every number of x, at some sizes: the sizes, and a list in reading order."""
    for T, H, d_k in ((4, 2, 3), (3, 1, 2), (1, 3, 2)):
        places = [tuple(f(t, j, T, H, d_k)) for t in range(T) for j in range(H * d_k)]
        yield f"T = {T}, H = {H}, d_k = {d_k}", places


@where_view_puts_it.contract("the first number stays first")
def _(f):
    for sizes in ((4, 2, 3), (3, 1, 2), (1, 3, 2)):
        _place("the first number stays first", "t = 0, f = 0", (0, 0, 0), tuple(f(0, 0, *sizes)))


@where_view_puts_it.contract("the page's example: 10 lands in head 0, position 2, feature 0")
def _(f):
    _place("the page's example", "token 1, feature 0", (0, 2, 0), tuple(f(1, 0, 4, 2, 3)))


@where_view_puts_it.contract("no two numbers share a place")
def _(f):
    for sizes, places in _everywhere(f):
        _place("no two numbers share a place", sizes, f"{len(places)} places", f"{len(set(places))} places")


@where_view_puts_it.contract("the reading order stays")
def _(f):
    for sizes, places in _everywhere(f):
        for i in range(1, len(places)):
            _place("the reading order stays", f"number {i}, {sizes}", max(places[i - 1 : i + 1]), places[i])


# ── nats ─────────────────────────────────────────────────────────────────────────────────────────

nats = Exercise(
    "nats", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="00-start-here.html#cross-entropy",
    checks="mean cross-entropy for any leading axes or none, logits of ±1000, large V; gradients, float64, "
    "an error for unknown targets",
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
    gradients=True,
)  # fmt: skip

_BETS = (
    (torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([0, 1])),
    (torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])),
    (torch.tensor([2.0, 0.0, 1.0]), torch.tensor(1)),
    (torch.tensor([[1000.0, 999.0, 0.0], [-1000.0, -1001.0, -999.0]]), torch.tensor([1, 0])),
    (torch.tensor([[1000.0, 0.0, -1000.0]]), torch.tensor([2])),  # p is 0 in float32
)


@nats.cases
def _(g):
    yield from _BETS
    yield randn(g, 2, 3, 5), _integers(g, 5, 2, 3)
    yield randn(g, 4, 3, 2, 3).transpose(0, 2), _integers(g, 3, 4, 3, 2).transpose(0, 2)
    yield torch.zeros(1, 50_000), torch.tensor([49_999])
    late = torch.arange(300)[:, None] > 290  # (N, 1): the last examples cost 900 nats, the others ln 2
    yield late * torch.tensor([900.0, 0.0]), torch.ones(300, dtype=torch.long)
    yield torch.tensor([[1e6 + 0.01, 1e6]], dtype=torch.float64), torch.tensor([0])  # two equal logits in float32
    for targets in ([0, 3], [0, -1], [3, 4], [-100, 2], [[0, 1], [2, 9]]):
        yield raises(ValueError, torch.zeros(*torch.tensor(targets).shape, 3), torch.tensor(targets))


@nats.reference
def _(logits, targets):
    if targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError(f"targets lie in 0 … {logits.shape[-1] - 1}, got {targets.tolist()}")
    lse = logits.logsumexp(-1)  # (...)
    right = logits.gather(-1, targets[..., None])[..., 0]  # (...)
    return (lse - right).mean()  # ()


def _chosen(x, targets):
    """The number of every row that its target names: (...)."""
    return x.gather(-1, targets[..., None])[..., 0]


def _refusing(some):
    """Targets are refused where some(targets, V), and otherwise brought into 0 … V−1."""

    def answer(logits, targets):
        if some(targets, logits.shape[-1]):
            raise ValueError("targets")
        return nats.reference_answer(logits, targets % logits.shape[-1])  # ()

    return answer


nats.edits_are(
    ("the sum, not the mean", "divide by the number of examples, all leading axes counted.", ".mean()", ".sum()"),
    ("one loss an example", "the losses of the examples are right, and not averaged yet.", ".mean()", ""),
    ("the sign", "ln p is never positive; the loss is −ln p.", "lse - right", "right - lse"),
    ("bits", "log2 gives bits; nats take the natural logarithm.", ".mean()", ".mean() / torch.tensor(2.0).log()"),
    ("the logit alone", "a logit counts against the others of its row: lse is still to be added.",
     "lse - right", "-right"),
    ("the largest logit not added back", "lse(x) = m + ln Σ exp(x − m): the m in front is missing.",
     "lse - right", "lse - logits.amax(-1) - right"),
    ("softmax over the examples",
     "every example has its own distribution over V answers: which axis counts the answers?",
     "lse = logits.logsumexp(-1)", "lse = _chosen(logits.logsumexp(0, keepdim=True).expand_as(logits), targets)"),
    ("every target for every example",
     "logits[..., targets] takes all targets in every row; gather takes each row's own.",
     "(lse - right)", "(logits.logsumexp(-1, keepdim=True) - logits)[..., targets]"),
    ("divided by V as well", "only the target's term counts in a row: divide by the number of targets.",
     ".mean()", ".mean() / logits.shape[-1]"),
    ("divided by the length of the first axis",
     "with more leading axes there are more targets: divide by how many there are, targets.numel().",
     ".mean()", ".sum() / logits.shape[0]"),
    ("the likeliest answer in place of the target",
     "the loss asks how likely the answer was that came, right or not.", "- right)", "- logits.amax(-1))"),
    ("1 − p instead of −ln p", "that is an error rate; the surprise of p is −ln p.",
     "(lse - right)", "(1 - (right - lse).exp())"),
    ("p itself", "that is the average probability of the targets; the surprise of p is −ln p.",
     "lse - right", "(right - lse).exp()"),
    ("the logarithm of the average p", "average the surprises: −ln first, then the mean.",
     "(lse - right).mean()", "-(right - lse).exp().mean().log()"),
    ("every answer that came counted once",
     "an answer that came three times counts three times: average over the examples, not over the answers.",
     "(lse - right).mean()",
     "torch.stack([(lse - right)[targets == v].mean() for v in targets.unique()]).mean()"),
    ("lse is cut from its gradient",
     "the loss falls as the right logit rises and as the others fall, by way of lse: do not detach it.",
     "lse - right", "lse.detach() - right"),
)  # fmt: skip
nats.mistakes_are(
    ("no error for unknown targets",
     "a target of −1 or V is a bug in the data; found here, it costs a minute, found later, a week.",
     _refusing(lambda t, V: False)),
    ("negative targets let through", "−1 is none of 0 … V−1: an index would count it from the end.",
     _refusing(lambda t, V: (t >= V).any())),
    ("targets of V and more let through", "the last answer of V is V−1.", _refusing(lambda t, V: (t < 0).any())),
    ("an error only if all targets are unknown", "one bad target among good ones is a bug, too: any, not all.",
     _refusing(lambda t, V: ((t < 0) | (t >= V)).all())),
    ("−100 let through", "F.cross_entropy leaves targets of −100 out; here −100 is none of 0 … V−1, and refused.",
     _refusing(lambda t, V: ((t < 0) & (t != -100) | (t >= V)).any())),
    ("exp of the raw logits", "exp(1000) is infinite, and inf − inf is nan: take the largest logit out first.",
     lambda x, t: (x.exp().sum(-1).log() - _chosen(x, t)).mean()),
    ("the logarithm of a p that has become 0",
     "softmax gives exactly 0 for a logit 2000 below, and ln 0 is −∞: stay with logits and lse.",
     lambda x, t: -_chosen(x.softmax(-1), t).log().mean()),
    *((f"{tiny:g} under the logarithm",
       "no loss can exceed its logarithm then, so the worst answers look all alike: stay with lse.",
       lambda x, t, tiny=tiny: -(_chosen(x.softmax(-1), t) + tiny).log().mean())
      for tiny in (1e-12, 1e-10, 1e-9, 1e-8, 1e-7)),
    *((f"logits cut off at {limit}",
       "beyond the limit all logits are equal; taking the largest out keeps their differences.",
       lambda x, t, limit=limit: nats.reference_answer(x.clamp(-limit, limit), t))
      for limit in (50, 80, 100)),
    ("one shift for all examples",
     "a row far below the largest logit of all becomes ln 0: take out each row's own largest.",
     lambda x, t: ((x - x.max()).exp().sum(-1).log() - _chosen(x - x.max(), t)).mean()),
    ("softmax twice", "lse already makes probabilities of logits: give it the logits, not probabilities.",
     lambda x, t: nats.reference_answer(x.softmax(-1), t)),
    ("counted in float32", "float32 keeps seven digits, and in large logits the differences lie behind them.",
     lambda x, t: nats.reference_answer(x.float(), t)),
)  # fmt: skip


@nats.contract("even bets cost ln V")
def _(f):
    for V in (2, 3, 5):
        expected = torch.tensor(float(V)).log()  # ()
        contracts.same("even bets cost ln V", f(torch.zeros(2, V), torch.tensor([0, V - 1])), expected)


@nats.contract("a level added to all logits changes nothing")
def _(f):
    for logits, targets in _BETS:
        name = "a level added to all logits changes nothing"
        contracts.same(name, f(logits + 5.0, targets), f(logits, targets), tolerance=2e-4)


@nats.contract("finite for logits of ±1000")
def _(f):
    got = f(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), torch.tensor([0, 1]))
    contracts.same("finite for logits of ±1000", got, torch.tensor(0.0))


@nats.contract("float64 stays float64")
def _(f):
    contracts.dtype_is(f(_BETS[0][0].double(), _BETS[0][1]), torch.float64)


# ── conditional_floor ────────────────────────────────────────────────────────────────────────────

conditional_floor = Exercise(
    "conditional_floor", chapter=CHAPTER, kind="measure", level=2, minutes=15, points=3,
    page="00-start-here.html#the-entropy-floor",
    checks="the floor in nats of whoever sees the row, from counts: zeros, rare answers, billions, floats",
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

_COUNTS = (
    torch.tensor([[3, 1], [2, 2]]),
    torch.tensor([[4, 0, 0], [1, 1, 2]]),
    torch.tensor([[5, 1, 2], [0, 0, 0], [1, 1, 1]]),
    torch.tensor([[1, 0], [1, 1]]),
    torch.eye(5, dtype=torch.long),
    torch.tensor([[20_000, 1, 1], [3, 9, 9]]),
    torch.tensor([[3_000_000_000, 1_000_000_000], [3, 9]]),
)


@conditional_floor.cases
def _(g):
    yield from zip(_COUNTS, strict=True)
    yield (_integers(g, 9, 3, 4) + 1,)
    yield (_integers(g, 3, 5, 2) + torch.tensor([[1, 0]]),)
    yield (torch.tensor([[5, 0, 1], [1, 2, 1]]).T,)
    yield (torch.tensor([[5.0, 1.0, 0.0], [3.0, 9.0, 9.0]]),)
    yield (torch.tensor([[200, 100], [3, 9]], dtype=torch.uint8),)
    yield (torch.ones(1, 4096, dtype=torch.long),)
    yield (torch.stack([torch.ones(300), torch.arange(300) > 290], dim=1).long(),)  # the last rows alone cost ln 2
    for nothing in (torch.zeros(2, 3, dtype=torch.long), torch.tensor([[0]]), torch.zeros(3, 2)):
        yield raises(ValueError, nothing)


@conditional_floor.reference
def _(counts):
    if counts.sum() == 0:
        raise ValueError("no counts at all: a floor needs at least one observation")
    total = counts.sum(-1, keepdim=True)  # (N, 1)
    p = counts / total.clamp(min=1)  # (N, V)
    entropy = -torch.xlogy(p, p).sum(-1)  # (N,)
    return (total[:, 0] / counts.sum() * entropy).sum()  # ()


def _entropy(p):
    return -torch.xlogy(p, p).sum(-1)  # (...)


_AVERAGE = "(total[:, 0] / counts.sum() * entropy).sum()"

conditional_floor.edits_are(
    ("the plain mean of the rows",
     "a row that comes often counts often: weight each entropy by the share of its row.",
     _AVERAGE, "entropy.mean()"),
    ("the plain mean of the rows that occurred",
     "leaving out empty rows is right; among the others, a row that comes often counts often.",
     _AVERAGE, "entropy[total[:, 0] > 0].mean()"),
    ("the sum of the rows",
     "the floor is an average: weight each entropy by the share of its row. (It is weighted? Then (N, 1) met "
     "(N,): every weight was multiplied with every entropy.)", _AVERAGE, "entropy.sum()"),
    ("one entropy a row", "the entropies of the rows are right, and not averaged yet.", _AVERAGE, "entropy"),
    ("weighted by counts, not by shares", "weights of an average sum to one: divide by all counts.",
     _AVERAGE, "(total[:, 0] * entropy).sum()"),
    ("divided by the number of rows",
     "each entropy is weighted by a count: the sum of all counts divides, not the number of rows.",
     _AVERAGE, "(total[:, 0] * entropy).mean()"),
    ("weighted and averaged", "the shares sum to one already: add up, without dividing by N again.",
     "* entropy).sum()", "* entropy).mean()"),
    ("the entropy of the contexts",
     "that is how surprising the row is; asked for is how surprising the answer is, given the row.",
     _AVERAGE, "_entropy(total[:, 0] / counts.sum())"),
    ("the row is not used",
     "that is the entropy of the answers' frequencies, the floor of whoever does not see the row.",
     _AVERAGE, "_entropy(counts.sum(0) / counts.sum())"),
    ("what the context saves", "that is how many nats the row is worth; the floor is what remains.",
     _AVERAGE, f"_entropy(counts.sum(0) / counts.sum()) - {_AVERAGE}"),
    ("the entropy of the whole table",
     "that includes not knowing the row; the row is seen, so its entropy is not paid.",
     _AVERAGE, "_entropy((counts / counts.sum()).flatten())"),
    ("columns as contexts",
     "the answer was taken as what is seen: a row is a context, its columns are the answers.",
     "total = counts", "counts = counts.T\n    total = counts"),
    ("bits", "log2 gives bits; nats take the natural logarithm.",
     "* entropy)", "* entropy / torch.tensor(2.0).log())"),
    ("the share of wrong guesses", "how often the best guess fails is an error rate; nats come from −ln p.",
     "-torch.xlogy(p, p).sum(-1)", "1 - p.amax(-1)"),
    ("0 · ln 0 is nan", "an answer that never came costs nothing, but torch says 0 · (−inf) = nan.",
     "torch.xlogy(p, p)", "(p * p.log())"),
    ("an empty row is 0 / 0",
     "a row without counts has no probabilities: divide by at least 1, its share is 0 anyway.",
     "total.clamp(min=1)", "total"),
    ("one added to every count", "smoothing invents answers that never came; 0 · ln 0 is 0 without it.",
     "p = counts / total.clamp(min=1)", "p = (counts + 1) / (counts + 1).sum(-1, keepdim=True)"),
    ("one added to the whole table", "smoothing invents answers and rows that never came; 0 · ln 0 is 0.",
     "total = counts", "counts = counts + 1\n    total = counts"),
    ("rows seen once are left out", "a row that came once is part of the average: its share is small, and not 0.",
     "total[:, 0] / counts.sum()", "total[:, 0] * (total[:, 0] > 1) / (total * (total > 1)).sum().clamp(min=1)"),
    ("no error for an empty table", "without a count there is no floor, neither 0 nor nan: what is to be raised?",
     "if counts.sum() == 0", "if False"),
)  # fmt: skip


@conditional_floor.contract("a row that decides the answer costs nothing")
def _(f):
    for counts in (torch.tensor([[4, 0, 0], [0, 0, 2]]), torch.eye(5, dtype=torch.long)):
        contracts.same("a row that decides the answer costs nothing", f(counts), torch.tensor(0.0))


@conditional_floor.contract("equal counts cost ln V")
def _(f):
    got = f(torch.tensor([[2, 2, 2], [5, 5, 5]]))
    contracts.same("equal counts cost ln V", got, torch.tensor(3.0).log())


@conditional_floor.contract("ten times the counts, the same floor")
def _(f):
    for counts in _COUNTS:
        contracts.same("ten times the counts, the same floor", f(10 * counts), f(counts))


@conditional_floor.contract("an empty row changes nothing")
def _(f):
    for counts in _COUNTS:
        contracts.same("an empty row changes nothing", f(F.pad(counts, (0, 0, 1, 1))), f(counts))


# ── z_loss_gradient ──────────────────────────────────────────────────────────────────────────────

z_loss_gradient = Exercise(
    "z_loss_gradient", chapter=CHAPTER, kind="derive", level=3, minutes=40, points=5,
    page="00-start-here.html#gradient-by-hand",
    checks="the gradient of cross-entropy plus z_weight · lse²: weights from 0 to 1, logits of ±200, float64",
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

_LOSSES = (
    (torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([0]), 0.5),
    (torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 2]), 0.0),
    (torch.tensor([[-3.0, -2.0], [-1.0, -4.0], [0.0, 1.0]]), torch.tensor([1, 1, 0]), 0.25),  # lse below 0, too
    (torch.tensor([[200.0, 199.0, 190.0], [-200.0, -201.0, -200.0]]), torch.tensor([1, 0]), 1e-3),
)


@z_loss_gradient.cases
def _(g):
    yield from _LOSSES
    yield randn(g, 4, 3).T, _integers(g, 4, 3), 0.1
    yield 2 * randn(g, 5, 2) + 3, _integers(g, 2, 5), 1.0
    yield torch.zeros(1, 4096), torch.tensor([4095]), 1.0
    yield torch.linspace(-3, 3, 600).view(300, 2), torch.arange(300) % 2, 1.0
    yield torch.tensor([[1e6 + 0.01, 1e6]], dtype=torch.float64), torch.tensor([0]), 0.0


@z_loss_gradient.reference
def _(logits, targets, z_weight):
    lse = logits.logsumexp(-1, keepdim=True)  # (N, 1)
    p = (logits - lse).exp()  # (N, V)
    onehot = F.one_hot(targets, logits.shape[-1])  # (N, V)
    return (p * (1 + 2 * z_weight * lse) - onehot) / len(logits)  # (N, V)


_SUM, _FACTOR = "(p * (1 + 2 * z_weight * lse) - onehot)", "(1 + 2 * z_weight * lse)"

z_loss_gradient.edits_are(
    ("cross-entropy alone", "p − onehot is the first half; the slope of z_weight · lse² comes on top.",
     _FACTOR, "1"),
    ("the 2 of the square is missing", "the slope of u² is 2u.", "2 * z_weight", "z_weight"),
    ("the inner slope is missing",
     "by the chain rule the slope of lse² is 2 · lse times the slope of lse: what is that?", _SUM,
     "(p - onehot + 2 * z_weight * lse)"),
    ("the square is missing", "that is the gradient with z_weight · lse; the penalty is its square.",
     "2 * z_weight * lse", "z_weight"),
    ("the outer slope without lse", "the slope of u² is 2u, and u is lse: 2 · z_weight · lse · p.",
     "z_weight * lse", "z_weight"),
    ("the penalty reaches the right answer twice",
     "lse² does not contain x_y by itself: only p is multiplied by 2 · z_weight · lse, not onehot.",
     _SUM, f"(p - onehot) * {_FACTOR}"),
    ("not divided by N", "the loss is a mean over the N examples.", " / len(logits)", ""),
    ("divided by N · V", "the mean runs over the N examples, not over the V logits.",
     "len(logits)", "logits.numel()"),
    ("divided by V", "the mean runs over the N examples: V is the number of answers.",
     "len(logits)", "logits.shape[-1]"),
    ("the sign", "this is the direction down; the gradient points up.", _SUM, f"-{_SUM}"),
    ("exp of the raw logits", "exp(200) is infinite in float32: subtract lse before the exp.",
     "(logits - lse).exp()", "logits.exp() / logits.exp().sum(-1, keepdim=True)"),
    ("lse of the raw exp",
     "exp(200) is infinite in float32, and so is lse: torch.logsumexp takes the largest logit out first.",
     "2 * z_weight * lse", "2 * z_weight * logits.exp().sum(-1, keepdim=True).log()"),
    ("the penalty is not divided by N", "the penalty stands inside the mean: 1/N multiplies it as well.",
     f"{_SUM} / len(logits)", "(p - onehot) / len(logits) + 2 * z_weight * lse * p"),
    ("only the penalty is divided by N", "cross-entropy stands inside the mean: 1/N multiplies it as well.",
     f"{_SUM} / len(logits)", "p - onehot + 2 * z_weight * lse * p / len(logits)"),
    ("the penalty is subtracted", "a penalty is added to the loss, so its slope is added, too.", "1 + 2", "1 - 2"),
    ("the penalty alone", "the slope of lse − x_y is still to be added: p − onehot.",
     _SUM, "(p * 2 * z_weight * lse)"),
    ("nothing subtracted at the targets", "the loss contains −x_y: what is its slope at the target?",
     " - onehot", ""),
    ("one added at the targets", "the loss contains −x_y: its slope at the target is −1, not +1.",
     "- onehot", "+ onehot"),
    ("every target subtracted in every row", "out[:, targets] takes every row; each row has its own target.",
     "- onehot", "- onehot.sum(0).clamp(max=1)"),
    ("the square is still there", "the slope of u² is 2u: after the derivative lse stands alone.",
     "z_weight * lse", "z_weight * lse**2"),
    ("the size of lse, without its sign", "where lse is below 0 the penalty pushes it up: its sign counts.",
     "z_weight * lse", "z_weight * lse.abs()"),
    ("the largest logit in place of lse", "lse is above the largest logit, by up to ln V.",
     "z_weight * lse", "z_weight * logits.amax(-1, keepdim=True)"),
    ("p (1 − p) as the slope of lse",
     "p (1 − p) is how a probability follows its own logit; the slope of lse is p itself.",
     _SUM, "(p - onehot + 2 * z_weight * lse * p * (1 - p))"),
    ("one lse for all rows", "each example is penalised for its own lse, (N, 1): no mean before the square.",
     "z_weight * lse", "z_weight * lse.mean()"),
    ("z_weight is not used", "PaLM's weight is 1e-4; here it is an argument.", "2 * z_weight", "2e-4"),
    ("softmax over the examples", "p sums to one along the V answers of a row: which axis is that?",
     "(logits - lse).exp()", "logits.softmax(0)"),
    ("one_hot guesses V", "without its second argument, F.one_hot takes the largest target for the last answer.",
     "(targets, logits.shape[-1])", "(targets)"),
    ("the loss itself", "asked for is how the loss changes with every logit: (N, V) slopes.",
     f"{_SUM} / len(logits)", "(lse - (logits * onehot).sum(-1, keepdim=True) + z_weight * lse**2).mean()"),
)  # fmt: skip
z_loss_gradient.mistakes_are(
    *((f"logits cut off at {limit}",
       "beyond the limit all logits are equal; subtracting lse before the exp keeps their differences.",
       lambda x, t, z, limit=limit: z_loss_gradient.reference_answer(x.clamp(-limit, limit), t, z))
      for limit in (50, 80, 100)),
    ("counted in float32", "float32 keeps seven digits, and in large logits the differences lie behind them.",
     lambda x, t, z: z_loss_gradient.reference_answer(x.float(), t, z)),
)  # fmt: skip


@z_loss_gradient.contract("without the penalty every row sums to zero")
def _(f):
    for logits, targets, _ in _LOSSES:
        rows = f(logits, targets, 0.0).sum(-1)  # (N,)
        contracts.same("without the penalty every row sums to zero", rows, torch.zeros_like(rows))


@z_loss_gradient.contract("examples share the mean")
def _(f):
    for logits, targets, z_weight in _LOSSES:
        first = f(logits, targets, z_weight)[:1]  # (1, V)
        alone = f(logits[:1], targets[:1], z_weight) / len(logits)  # (1, V)
        contracts.same("examples share the mean", first, alone, f"row 0 of {len(logits)}, against row 0 alone")


@z_loss_gradient.contract("it is the measured slope")
def _(f):
    def loss(x, targets, z_weight):
        lse = x.logsumexp(-1)  # (K, N)
        right = _chosen(x, targets.expand(lse.shape))  # (K, N)
        return (lse - right + z_weight * lse**2).mean(-1)  # (K,)

    for logits, *rest in _LOSSES:
        x = logits.double()  # (N, V)
        steps = 1e-5 * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)  # (K, N, V): every logit by itself
        slope = ((loss(x + steps, *rest) - loss(x - steps, *rest)) / 2e-5).view(x.shape)  # (N, V)
        contracts.same("it is the measured slope", f(x, *rest), slope, f"z_weight = {rest[1]}")


@z_loss_gradient.contract("float64 stays float64")
def _(f):
    contracts.dtype_is(f(_LOSSES[0][0].double(), *_LOSSES[0][1:]), torch.float64)


test_exercise = exercises_of(__name__)
