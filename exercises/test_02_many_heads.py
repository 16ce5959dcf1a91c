"""Graders of chapter 2: one head's floor, split and merge, the layer, its cost, and pruning."""

import torch
from torch import nn

import tx
from tx.course import contracts
from tx.course.grading import Exercise, exercises_of, raises, randn

CHAPTER = "02_many_heads"
LAYERS = (
    "tx.MultiHeadAttention",
    "torch.nn.MultiheadAttention",
    "torch.nn.functional.multi_head_attention_forward",
)


def numbered(*shape):
    """0, 1, 2 … in the order of memory, so that every number says where it comes from."""
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def fixed(*shape):
    """The same normal numbers in every call."""
    return randn(torch.Generator().manual_seed(1), *shape)


def wide(*shape):
    """Numbers that float64 holds and float32 does not."""
    return numbered(*shape).double() * 1e39  # one more than float32's largest is infinite


# ── one_head_floor ───────────────────────────────────────────────────────────────────────────────

one_head_floor = Exercise(
    "one_head_floor", chapter=CHAPTER, kind="derive", level=2, minutes=10, points=3,
    page="02-many-heads.html#the-floor-of-one-head",
    checks="the floor of one head for any weighted sum, for one question and for several",
    question="with a gain of 0 or more, which entries of `wanted` can gain times weights copy exactly?",
    hints=(
        "Gain times weights is one vector u, and the loss is the sum of (u - wanted)². What do all entries of u "
        "have in common? Which u is the closest?",
        "1. a gain of 0 or more: u has no negative entry, so the closest u copies the positive entries of "
        "`wanted` and has 0 elsewhere: what is left over?  2. a gain of 0 or less: the same with the signs "
        "swapped;  3. the head takes the cheaper of the two. Sum over the last axis, S.",
        "plus = (wanted.clamp(min=0) ** 2).sum(dim=-1)  # (…)\nminus = …  # (…)\n"
        "return torch.minimum(plus, minus)",
    ),
)  # fmt: skip


@one_head_floor.cases
def _(g):
    yield (torch.tensor([1.0, -1.0]),)
    yield (torch.tensor([0.5, 0.5]),)
    yield (torch.tensor([-2.0]),)
    yield (torch.tensor([2.0, -1.0, 3.0]),)
    yield (torch.tensor([1.0, 1.0, -1.0, -1.0]),)
    yield (torch.tensor([[1.0, -3.0], [4.0, -1.0]]),)
    yield (torch.tensor([[3.0, -2.0, -2.0], [2.0, -1.5, -1.5], [3.0, -1.0, -1.0]]),)
    yield (torch.tensor([0.0, -0.0]),)
    yield (1e4 * torch.tensor([2.0, -1.0, 3.0]),)
    yield (torch.linspace(-2, 1, 4096),)
    yield (randn(g, 5, 3).T,)
    yield (randn(g, 3, 1, 2, 5),)


def sides(wanted):
    """The squares of the positive entries, summed, and those of the negative ones: (…) and (…)."""
    return (wanted.clamp(min=0) ** 2).sum(-1), (wanted.clamp(max=0) ** 2).sum(-1)  # (...), (...)


def by(decides):
    """The floor where decides(wanted) >= 0 has to choose the sign of the gain."""
    return lambda wanted: torch.where(decides(wanted) >= 0, *sides(wanted)[::-1])


def evenly(wanted):
    """The loss of weights that are equal over the positive entries, with the best gain for them."""
    on = (wanted > 0).sum(-1).clamp(min=1)  # (...)
    return (wanted**2).sum(-1) - wanted.clamp(min=0).sum(-1) ** 2 / on  # (...)


@one_head_floor.reference
def _(wanted):
    return torch.minimum(*sides(wanted))  # (...)


one_head_floor.mistakes_are(
    ("the gain is never negative", "a gain below 0 turns all weights around: what would it cost?",
     lambda wanted: sides(wanted)[1]),
    ("the positive entries are what is lost", "with a gain above 0 the head says these and loses the rest.",
     lambda wanted: sides(wanted)[0]),
    ("the more expensive of the two signs", "a floor is the lowest loss: the minimum of the two.",
     lambda wanted: torch.maximum(*sides(wanted))),
    ("a floor of 0 for every question", "one gain serves all jars. What does the other sign cost?",
     lambda wanted: 0 * sides(wanted)[0]),
    ("a hard look-up", "weights may be shared: one head can say all entries of one sign at once.",
     lambda wanted: (wanted**2).sum(-1) - (wanted**2).amax(-1)),
    ("equal weights for the jars of one sign", "which weights and gain copy them exactly?",
     lambda wanted: torch.minimum(evenly(wanted), evenly(-wanted))),
    ("only the smallest entry is lost", "every entry of the other sign is lost, and none of this sign.",
     lambda wanted: (wanted**2).amin(-1)),
    ("not squared", "an entry c that is left out costs the expected squared error c², times the variance 1.",
     lambda wanted: torch.minimum(wanted.clamp(min=0).sum(-1), -wanted.clamp(max=0).sum(-1))),
    ("the square of the sum", "values are independent, so errors add as variances: square, then sum.",
     lambda wanted: torch.minimum(wanted.clamp(min=0).sum(-1) ** 2, wanted.clamp(max=0).sum(-1) ** 2)),
    ("the mean over the jars", "the error of an answer sums over all jars that enter it.",
     lambda wanted: torch.minimum(*sides(wanted)) / wanted.shape[-1]),
    ("how many entries, not how large", "an entry that is left out costs its square, not 1.",
     lambda wanted: torch.minimum((wanted > 0).sum(-1), (wanted < 0).sum(-1)).to(wanted)),
    ("one for every question with two signs", "1 is the floor of a difference: what do 2 and -3 cost?",
     lambda wanted: ((wanted > 0).any(-1) & (wanted < 0).any(-1)).to(wanted)),
    ("one floor for all questions", "each question, a row along the last axis, has a floor of its own.",
     lambda wanted: torch.minimum(*(side.sum() for side in sides(wanted)))),
    ("summed over the first axis", "a question runs along the last axis, S.",
     lambda wanted: torch.minimum(*((x**2).sum(0) for x in (wanted.clamp(min=0), wanted.clamp(max=0))))),
    ("one sign for all questions", "each question has a gain of its own: compare row by row.",
     lambda wanted: min(sides(wanted), key=torch.sum)),
    ("the sign of the sum decides", "the loss is made of squares: which side's are smaller?",
     by(lambda wanted: wanted.sum(-1))),
    ("the sign of the largest entry decides", "several small entries can cost more: compare sums.",
     by(lambda wanted: wanted.amax(-1) + wanted.amin(-1))),
    ("the sign of most entries decides", "it is not how many they are: compare the sums of squares.",
     by(lambda wanted: wanted.sign().sum(-1))),
    ("the loss of a gain of 0", "who answers 0 loses everything; with another gain one sign can be copied.",
     lambda wanted: (wanted**2).sum(-1)),
)  # fmt: skip


@one_head_floor.contract("a difference has the floor 1")
def _(f):
    for wanted in ([1.0, -1.0], [0.0, 1.0, -1.0]):
        contracts.same("a difference has the floor 1", f(torch.tensor(wanted)), torch.tensor(1.0))


@one_head_floor.contract("one sign costs nothing")
def _(f):
    for wanted in ([0.5, 0.5], [-2.0], [0.2, 0.0, 3.0]):
        contracts.same("one sign costs nothing", f(torch.tensor(wanted)), torch.tensor(0.0))


@one_head_floor.contract("the question turned around has the same floor")
def _(f):
    for wanted in ([1.0, -1.0], [0.5, 0.5], [-2.0], [2.0, -1.0, 3.0]):
        wanted = torch.tensor(wanted)  # (S,)
        contracts.same("turned around, the same floor", f(-wanted), f(wanted))


# ── split_heads ──────────────────────────────────────────────────────────────────────────────────

split_heads = Exercise(
    "split_heads", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="02-many-heads.html#split-and-merge",
    checks="every token's features in its head and at its position, gradients, an error for unequal slices",
    question="follow one number: where does x[0, 1, 0] end up? In which axis did it travel?",
    hints=(
        "The features of a token are neighbours in memory. Which axis can be cut in two without moving a single "
        "number? Which two axes then have to change places?",
        "1. ValueError if D % n_heads is not 0;  2. (B, T, D) to (B, T, H, d_k): the last axis is cut, head "
        "first, d_k second;  3. (B, T, H, d_k) to (B, H, T, d_k): two axes swap.",
        'if D % n_heads:\n    raise ValueError(f"D = {D}, n_heads = {n_heads}")\n'
        "rows = x.reshape(B, T, …)  # (B, T, H, d_k)\nreturn rows.transpose(…)  # (B, H, T, d_k)",
    ),
    out_of_reach=("tx.split_heads",), gradients=True,
)  # fmt: skip


@split_heads.cases
def _(g):
    yield numbered(1, 2, 4), 2
    yield numbered(2, 5, 12), 3
    yield numbered(1, 2, 9), 3
    yield randn(g, 2, 4, 6), 1
    yield randn(g, 2, 3, 5), 5
    yield randn(g, 3, 1, 8), 4
    yield numbered(2, 3, 4).transpose(0, 1), 2
    yield numbered(2, 6, 3).mT, 2
    yield numbered(1, 2, 4096), 32
    yield wide(1, 2, 4), 2
    yield raises(ValueError, randn(g, 1, 2, 10), 3)
    yield raises(ValueError, randn(g, 1, 2, 6), 4)  # of all T·D numbers it could make 4 parts
    yield raises(ValueError, randn(g, 1, 4, 3), 4)


@split_heads.reference
def split(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D} is not divisible by n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)  # (B, H, T, d_k)


FLOAT32 = ("cut down to float32", "numbers keep their dtype: x.new_empty makes a buffer of the same.")
AS_IF = "memory read as if x were contiguous"

split_heads.edits_are(
    ("reshape without a swap of axes", "a head gets whole tokens in place of a slice of each.",
     "(B, T, n_heads, D // n_heads).transpose(1, 2)", "(B, n_heads, T, D // n_heads)"),
    ("the width cut as (d_k, H)", "head h owns every H-th feature: no checkpoint would fit.",
     "n_heads, D // n_heads).transpose(1, 2)", "D // n_heads, n_heads).permute(0, 3, 1, 2)"),
    ("cut, and not swapped", "the heads still stand behind the time axis: attention would mix heads, not tokens.",
     ".transpose(1, 2)", ""),
    ("the heads in front of the batch", "the order of the axes is (B, H, T, d_k), the batch first.",
     "transpose(1, 2)", "permute(2, 0, 1, 3)"),
    ("features and time swapped", "transposed once too often: within a head a row is a token, (T, d_k).",
     "transpose(1, 2)", "permute(0, 2, 3, 1)"),
    ("n_heads taken for the width of a head", "n_heads slices of width D / n_heads, not the other way round.",
     "n_heads, D // n_heads)", "D // n_heads, n_heads)"),
    ("the heads in reverse", "head 0 owns the first features.", "transpose(1, 2)", "transpose(1, 2).flip(1)"),
    ("every head gets the whole width", "d_k is D / H: what is cut here is the last axis.",
     "x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)", "x[:, None].repeat(1, n_heads, 1, 1)"),
    ("scaled on the way", "splitting computes nothing: the scale 1/√d_k belongs to the scores.", "return x",
     "return (D // n_heads) ** -0.5 * x"),
    (AS_IF, "strides say where a number lies: reshape reads them, as_strided takes the ones that it is given.",
     "x.reshape", "x.as_strided(x.shape, (T * D, D, 1)).reshape"),
    (*FLOAT32, "return x", "return x.float()"),
)  # fmt: skip


@split_heads.contract("batch rows are independent")
def _(f):
    contracts.batch_independence(lambda x: f(x, 3), numbered(2, 5, 12))


@split_heads.contract("positions stay put")
def _(f):
    for x, n_heads in ((numbered(1, 2, 4), 2), (numbered(2, 5, 12), 3)):
        contracts.positions_stay_put(lambda x, n_heads=n_heads: f(x, n_heads), x)


@split_heads.contract("head 0 owns the first features")
def _(f):
    for x, n_heads in ((numbered(1, 2, 4), 2), (numbered(2, 5, 12), 3)):
        first = x[..., : x.shape[-1] // n_heads]  # (B, T, d_k)
        contracts.same("head 0 owns the first features", f(x, n_heads)[:, 0], first, "head 0")


# ── merge_heads ──────────────────────────────────────────────────────────────────────────────────

merge_heads = Exercise(
    "merge_heads", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="02-many-heads.html#split-and-merge",
    checks="the heads side by side again, for several numbers of heads, and their gradients",
    question="which two axes have to be neighbours, and in which order, before they can become one?",
    hints=(
        "The features of one token are spread over the heads. Which axis stands between H and d_k, and has to "
        "get out of the way first?",
        "1. (B, H, T, d_k) to (B, T, H, d_k): two axes swap;  2. (B, T, H, d_k) to (B, T, H·d_k): the last two "
        "become one. `view` refuses here, since the numbers have to be copied; `reshape` copies.",
        "rows = x.transpose(…)  # (B, T, H, d_k)\nreturn rows.reshape(B, T, …)  # (B, T, H·d_k)",
    ),
    out_of_reach=("tx.merge_heads",), gradients=True,
)  # fmt: skip


@merge_heads.cases
def _(g):
    yield (numbered(1, 2, 2, 2),)
    yield (numbered(1, 2, 3, 2),)
    yield (numbered(2, 3, 5, 4),)
    yield (randn(g, 2, 1, 3, 4),)
    yield (randn(g, 2, 4, 1, 3),)
    yield (randn(g, 3, 2, 4, 1),)
    yield (randn(g, 2, 3, 3, 3),)
    yield (numbered(2, 3, 4, 2).transpose(1, 2),)  # as split_heads gives it
    yield (numbered(1, 2, 4096, 1),)
    yield (wide(1, 2, 3, 2),)


@merge_heads.reference
def merge(x):
    B, H, T, d_k = x.shape
    return x.transpose(1, 2).reshape(B, T, H * d_k)  # (B, T, D)


merge_heads.edits_are(
    ("reshape without transposing back",
     "memory is read head by head, so a row is made of several tokens of one head.", ".transpose(1, 2)", ""),
    ("joined as (d_k, H)", "feature 0 of all heads, then feature 1: each head's slice has to stay in one piece.",
     "transpose(1, 2)", "permute(0, 2, 3, 1)"),
    ("the heads are added", "they are put side by side here; what adds them is the output projection.",
     "x.transpose(1, 2).reshape(B, T, H * d_k)", "x.sum(1)"),
    ("the heads are averaged", "an average keeps d_k features and forgets who said what.",
     "x.transpose(1, 2).reshape(B, T, H * d_k)", "x.mean(1)"),
    ("swapped, and not joined", "H and d_k still are two axes: the layer goes on with (B, T, D).",
     ".reshape(B, T, H * d_k)", ""),
    ("joined with the time axis, too", "the layer goes on with (B, T, D): only H and d_k become one.",
     "(B, T, H * d_k)", "(B, -1)"),
    ("the last two axes swapped", "time has to change places with the heads; d_k is where it should be.",
     "transpose(1, 2)", "transpose(2, 3)"),
    ("the heads in reverse", "head 0 owns the first features, as in split_heads.", "x.transpose",
     "x.flip(1).transpose"),
    ("joined along the time axis", "the heads stand one after the other in time, not side by side.",
     "x.transpose(1, 2).reshape(B, T, H * d_k)", "x.flatten(1, 2)"),
    ("time in front of the batch", "the batch stays first: (B, T, D).", "H * d_k)", "H * d_k).transpose(0, 1)"),
    ("the first example for the whole batch", "each example has features of its own: x[0] is only one of them.",
     "x.transpose", "x[:1].expand_as(x).transpose"),
    (AS_IF, "what split_heads gives is not: reshape reads the strides, as_strided takes those that it is given.",
     "x.transpose", "x.as_strided(x.shape, (H * T * d_k, T * d_k, d_k, 1)).transpose"),
    (*FLOAT32, "return x", "return x.float()"),
)  # fmt: skip


@merge_heads.contract("batch rows are independent")
def _(f):
    for x in (numbered(1, 2, 2, 2), numbered(2, 3, 5, 4)):
        contracts.batch_independence(f, x)


@merge_heads.contract("merging undoes splitting")
def _(f):
    for x, n_heads in ((numbered(1, 2, 4), 2), (numbered(2, 5, 12), 3)):
        contracts.round_trip(lambda x, n_heads=n_heads: tx.split_heads(x, n_heads), f, x)


# ── MultiHead ────────────────────────────────────────────────────────────────────────────────────

MultiHead = Exercise(
    "MultiHead", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="02-many-heads.html#the-layer",
    checks="the output with given weights, for several widths and heads, gradients, an error for unequal heads",
    question="which five steps does x go through, and what is the shape after each?",
    hints=(
        "Project, split, attend, merge, project. Which of the four matrices does each step use, and over which "
        "width does the dot product inside a head sum?",
        "1. in __init__: an error, n_heads, four nn.Linear(d_model, d_model, bias=False);  2. q, k, v: project "
        "x, then split_heads, (B, H, T, d_k);  3. attention(q, k, v), which scales by 1/√d_k;  4. merge_heads, "
        "(B, T, D);  5. self.out.",
        "q = tx.split_heads(self.query(x), self.n_heads)  # (B, H, T, d_k)\nk = …\nv = …\n"
        "read = tx.attention(q, k, v)  # (B, H, T, d_k)\nreturn self.out(…)  # (B, T, D)",
    ),
    out_of_reach=LAYERS, gradients=True,
)  # fmt: skip


@MultiHead.call
def _(impl, d_model, n_heads, x=None, weights=None):
    layer = impl(d_model, n_heads)
    if x is None:  # bad sizes are refused when the layer is made, not when it is used
        return layer
    load(layer, weights)
    return layer(x)


def load(layer, weights):
    """Load weights by name, and say in the exercise's words what does not fit."""
    try:
        layer.load_state_dict(weights)
    except RuntimeError as error:
        text = str(error)
        if ".bias" in text:
            raise RuntimeError("the four nn.Linear have no biases: bias=False is missing") from None
        if "size mismatch" in text:
            raise RuntimeError("every nn.Linear is d_model -> d_model: all heads share one matrix") from None
        raise RuntimeError("the names of the four nn.Linear are query, key, value and out") from None


def how_to_call(case):
    """The steps that a learner can repeat."""
    if isinstance(case, raises):
        return f"MultiHead{case.args}"
    d_model, n_heads, x, _ = case
    return f"layer = MultiHead({d_model}, {n_heads}), weights loaded by name; layer(x), x {tuple(x.shape)}"


MultiHead.called = how_to_call
ROLES = ("query", "key", "value", "out")


def four_weights(g, D):
    """Weights of a layer of width D, of the size that keeps outputs near 1."""
    return {f"{name}.weight": randn(g, D, D) * D**-0.5 for name in ROLES}


def large():
    """Tokens whose scores are ±5,000 and ±10,000, and weights: no softmax without a maximum survives."""
    x = torch.zeros(2, 2, 4)  # (B, T, D)
    x[0, :, 0] = x[1, :, 1] = torch.tensor([100.0, 200.0])
    return x, dict.fromkeys([f"{name}.weight" for name in ROLES], torch.eye(4)) | {
        "key.weight": torch.tensor([1.0, -1.0, 1.0, -1.0]).diag()  # scores of the second example: below 0
    }


@MultiHead.cases
def _(g):
    yield 4, 2, fixed(1, 2, 4), four_weights(torch.Generator().manual_seed(1), 4)
    yield 12, 3, randn(g, 2, 5, 12), four_weights(g, 12)
    yield 6, 1, randn(g, 6, 3, 2).permute(2, 1, 0), four_weights(g, 6)
    yield 8, 8, randn(g, 1, 4, 8), four_weights(g, 8)
    yield 6, 2, randn(g, 3, 1, 6), four_weights(g, 6)
    yield 4, 1, *large()
    yield 2, 2, randn(g, 1, 300, 2) / 4, four_weights(g, 2)  # long; small, for rounding errors of gradients add up
    yield raises(ValueError, 10, 3)
    yield raises(ValueError, 2, 4)


@MultiHead.reference
class Layer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model = {d_model} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in ROLES)

    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, self.n_heads, -1).transpose(1, 2)  # (B, H, T, d_k)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)  # (B, T, D)

    def scores(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5  # (B, H, T, S)

    def weigh(self, q, k):
        return self.scores(q, k).softmax(-1)  # (B, H, T, S)

    def heads(self, x, roles=("query", "key", "value")):
        return (self.split(getattr(self, role)(x)) for role in roles)

    def read(self, x):
        q, k, v = self.heads(x)  # (B, H, T, d_k)
        return self.merge(self.weigh(q, k) @ v)  # (B, T, D)

    def forward(self, x):
        return self.out(self.read(x))  # (B, T, D)


def but(**methods):
    """The layer with other methods."""
    return type("Layer", (Layer,), methods)


by_memory = lambda self, x: x.reshape(len(x), self.n_heads, x.shape[1], -1)  # (B, H, T, d_k)
interleaved = lambda self, x: x.unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2)  # (B, H, T, d_k)
row_by_row = lambda self, x: x.reshape(len(x), x.shape[2], -1)  # (B, T, D)

MultiHead.mistakes_are(
    ("scaled by the width of the model", "a dot product sums over d_k features: the scale is 1/√d_k.",
     but(scores=lambda self, q, k: q @ k.mT * (q.shape[-1] * self.n_heads) ** -0.5)),
    ("no scale", "the scores are √d_k times too large, and the softmax too decided.",
     but(scores=lambda self, q, k: q @ k.mT)),
    ("divided by d_k without the root", "the spread grows with the root. Is it scaled twice?",
     but(scores=lambda self, q, k: q @ k.mT / q.shape[-1])),
    ("softmax over the queries", "each query shares out its own weights: the rows sum to one.",
     but(weigh=lambda self, q, k: self.scores(q, k).softmax(-2))),
    ("softmax over the heads", "heads do not compete: in each of them the weights of a query sum to one.",
     but(weigh=lambda self, q, k: self.scores(q, k).softmax(1))),
    ("one pattern for all heads", "each head weighs by scores of its own; with one pattern, one head would do.",
     but(weigh=lambda self, q, k: Layer.weigh(self, q, k).mean(1, keepdim=True))),
    ("a causal mask", "nothing is hidden in this layer: every token sees all tokens. Masks are chapter 3.",
     but(scores=lambda self, q, k: Layer.scores(self, q, k) + torch.full((q.shape[2],) * 2, -torch.inf).triu(1))),
    ("dropout on the weights", "nothing is dropped in this layer, and a new nn.Module is in training mode.",
     but(weigh=lambda self, q, k: nn.functional.dropout(Layer.weigh(self, q, k), 0.1))),
    ("weights without gradients", "queries and keys learn through the weights: detached, they learn nothing.",
     but(weigh=lambda self, q, k: Layer.weigh(self, q, k).detach())),
    ("no output projection", "the heads were put side by side and never met: `out` is missing.",
     but(forward=Layer.read)),
    ("the input is added", "a residual goes around the layer, in the block of chapter 5, and not through it.",
     but(forward=lambda self, x: x + Layer.forward(self, x))),
    ("the weights come along", "forward returns one tensor, the output, and no tuple.",
     but(forward=lambda self, x: (Layer.forward(self, x), self.weigh(*[*self.heads(x)][:2])))),
    ("heads split without the swap", "`reshape` to (B, H, T, d_k) gives each head whole tokens.",
     but(split=by_memory)),
    ("merged without transposing back", "a row of the output is made of several tokens of one head.",
     but(merge=row_by_row)),
    ("split and merged without the swap", "a head holds whole tokens: which axes have to swap?",
     but(split=by_memory, merge=row_by_row)),
    ("the width cut as (d_k, H)", "head h owns every H-th feature and not a slice of neighbours.",
     but(split=interleaved, merge=lambda self, x: x.permute(0, 2, 3, 1).flatten(2))),
    ("split as (d_k, H), merged as (H, d_k)", "the last axis is cut as (H, d_k), the head first.",
     but(split=interleaved)),
    ("one head", "the width was never cut: n_heads has no effect.", but(split=lambda self, x: x[:, None])),
    ("queries and keys exchanged", "row t of the weights belongs to query t: the scores are q @ k.mT.",
     but(heads=lambda self, x: Layer.heads(self, x, ("key", "query", "value")))),
    ("keys made by the query's matrix", "three roles, three matrices: keys need `self.key`.",
     but(heads=lambda self, x: Layer.heads(self, x, ("query", "query", "value")))),
    ("queries made by the key's matrix", "three roles, three matrices: do two names share one?",
     but(heads=lambda self, x: Layer.heads(self, x, ("key", "key", "value")))),
    ("the keys are read as values", "what is handed over is made by `self.value`.",
     but(heads=lambda self, x: Layer.heads(self, x, ("query", "key", "key")))),
)  # fmt: skip


def made(cls, D):
    """A layer of the learner's with two heads and fixed weights, and tokens for it: (1, 2, D) or (2, 3, D)."""
    layer = cls(D, 2)
    load(layer, four_weights(torch.Generator().manual_seed(1), D))
    return layer


TOKENS = (fixed(1, 2, 4), fixed(2, 3, 6))


@MultiHead.contract("batch rows are independent")
def _(cls):
    for x in TOKENS:
        contracts.batch_independence(made(cls, x.shape[-1]), x)


@MultiHead.contract("one token passes value and out")
def _(cls):
    x, weights = fixed(2, 1, 6), four_weights(torch.Generator().manual_seed(1), 6)
    right = x @ weights["value.weight"].T @ weights["out.weight"].T  # (B, 1, D)
    contracts.same("one token passes value and out", made(cls, 6)(x), right)


@MultiHead.contract("permuting the tokens permutes the outputs")
def _(cls):
    for x in TOKENS:
        contracts.permutation_equivariance(made(cls, x.shape[-1]), x)


# ── head_contributions ───────────────────────────────────────────────────────────────────────────

head_contributions = Exercise(
    "head_contributions", chapter=CHAPTER, kind="derive", level=2, minutes=15, points=3,
    page="02-many-heads.html#where-the-heads-meet",
    checks="the share of every head, which add up to the output, also when D is not H·d_k, and its gradients",
    question="which d_k columns of w_out does the slice of head h meet?",
    hints=(
        "Write out one number of merge_heads(read) @ w_out.T as a sum over H·d_k terms. Which of the terms "
        "belong to head h, and which axis of w_out do they run along?",
        "1. w_out.T is (H·d_k, D): its rows are the features of the heads, head after head;  2. cut these rows: "
        "(H, d_k, D);  3. read (B, H, T, d_k) times (H, d_k, D) pairs head with head: (B, H, T, D).",
        "blocks = w_out.T.reshape(…)  # (H, d_k, D)\nreturn read @ blocks  # (B, H, T, D)",
    ),
    gradients=True,
)  # fmt: skip

READ = ((numbered(1, 2, 1, 2), torch.eye(4)), (numbered(1, 2, 2, 1), numbered(3, 2)))


@head_contributions.cases
def _(g):
    yield from READ
    yield randn(g, 2, 3, 5, 4), randn(g, 12, 12)
    yield randn(g, 2, 2, 3, 4), randn(g, 5, 8)
    yield randn(g, 1, 4, 2, 1), randn(g, 4, 4)
    yield randn(g, 2, 1, 3, 3), randn(g, 7, 3)
    yield randn(g, 2, 3, 3, 2).transpose(1, 2), randn(g, 6, 5).T
    yield randn(g, 1, 2, 1000, 1) / 10, randn(g, 2, 2)


@head_contributions.reference
def shares(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(H, d_k, -1)  # (B, H, T, D)


def slices(read, w_out):
    """Which head is number d of the output in, were the output cut like the input: (H, 1, D)."""
    H, D = read.shape[1], len(w_out)
    return (torch.arange(D) // (D // H) == torch.arange(H)[:, None])[:, None]  # (H, 1, D)


head_contributions.edits_are(
    ("the rows of w_out are cut", "nn.Linear stores (out, in), and a head's slice is an input: columns.",
     "w_out.T.reshape", "w_out.reshape"),
    ("the columns taken as (d_k, H)", "head h owns neighbouring features h·d_k …, not every H-th one.",
     "(H, d_k, -1)", "(d_k, H, -1).transpose(0, 1)"),
    ("each block transposed once more", "the block of a head is (d_k, D): from its slice into all features.",
     "(H, d_k, -1)", "(H, -1, d_k).mT"),
    ("every head meets the block of head 0", "each head has d_k columns of its own.", ".reshape(H, d_k, -1)",
     "[:d_k]"),
    ("every head meets the block of its neighbour", "the first d_k columns belong to head 0, the next to head 1.",
     "(H, d_k, -1)", "(H, d_k, -1).roll(1, 0)"),
    ("rows of w_out, head by head", "rows are what the layer puts out; a head's slice is what it takes in.",
     "w_out.T.reshape(H, d_k, -1)", "w_out[: H * d_k].unflatten(0, (H, d_k))"),
    ("reshaped before it is transposed", "transpose first, so that the heads are cut from columns.",
     "w_out.T.reshape(H, d_k, -1)", "w_out.reshape(H, -1, d_k).mT"),
)  # fmt: skip
head_contributions.mistakes_are(
    ("an equal share for every head", "the output divided by H adds up, but says nothing about who said what.",
     lambda read, w_out: shares(read, w_out).mean(1, keepdim=True).expand(-1, read.shape[1], -1, -1)),
    ("the sum over the heads", "this is the layer's output; the shares are wanted before the sum.",
     lambda read, w_out: shares(read, w_out).sum(1)),
    ("the output without a head", "this is what the *others* add; its share is the rest.",
     lambda read, w_out: shares(read, w_out).sum(1, keepdim=True) - shares(read, w_out)),
    ("the output cut into slices", "a head writes into all D features: what is cut is what w_out reads.",
     lambda read, w_out: shares(read, w_out).sum(1, keepdim=True) * slices(read, w_out)),
    ("every share cut to its own slice", "a head writes into all D features of the output, not into a slice.",
     lambda read, w_out: shares(read, w_out) * slices(read, w_out)),
    ("heads behind time", "the shares are right; the order asked for is (B, H, T, D).",
     lambda read, w_out: shares(read, w_out).transpose(1, 2)),
    ("the heads in reverse", "the shares are right; head 0 is the first of them.",
     lambda read, w_out: shares(read, w_out).flip(1)),
    ("how large each share is", "the shares themselves are asked for: vectors of D numbers, not their lengths.",
     lambda read, w_out: shares(read, w_out).norm(dim=-1)),
)  # fmt: skip


@head_contributions.contract("the shares add up to the output")
def _(f):
    for read, w_out in (*READ, (fixed(2, 3, 4, 2), fixed(5, 6))):
        whole = read.transpose(1, 2).flatten(2) @ w_out.T  # (B, T, D)
        contracts.same("the shares add up to the output", f(read, w_out).sum(1), whole)


@head_contributions.contract("a head that reads zeros adds zeros")
def _(f):
    for read, w_out in (*READ, (fixed(2, 3, 4, 2), fixed(5, 6))):
        read = read.index_fill(1, torch.tensor([1]), 0)  # (B, H, T, d_k)
        none = torch.zeros(len(read), read.shape[2], len(w_out))  # (B, T, D)
        contracts.same("a head that reads zeros adds zeros", f(read, w_out)[:, 1], none, "head 1")


# ── mha_flops ────────────────────────────────────────────────────────────────────────────────────

mha_flops = Exercise(
    "mha_flops", chapter=CHAPTER, kind="predict", level=1, minutes=5, points=2,
    page="02-many-heads.html#what-heads-cost",
    checks="the operations of a layer whose queries and keys come from two sequences, at unseen and large sizes",
    question="which of the four projections are made for T tokens, and which for S?",
    hints=(
        "Four projections and two products in the heads. Who makes queries and who makes keys? And what do H "
        "products of width D / H cost together?",
        "1. a projection of n tokens: 2 · n · D · D;  2. queries and outputs: T tokens each; keys and values: S "
        "tokens each;  3. scores and read-out of all heads: 2 · T · S · D each;  4. all of it B times.",
        "projections = 2 * B * D * D * (…)\nheads = 4 * B * T * S * D\nreturn projections + heads",
    ),
)  # fmt: skip


@mha_flops.cases
def _(g):
    yield 1, 1, 1, 1, 1
    yield 1, 2, 3, 4, 2
    yield 2, 64, 64, 96, 4
    yield 1, 1, 512, 64, 8
    yield 1, 512, 1, 64, 64
    for _ in range(3):
        B, T, S, d_k, H = torch.randint(2, 60, (5,), generator=g).tolist()
        yield B, T, S, d_k * H, H
    yield 8, 2048, 1024, 4096, 32
    yield 7, 1_000_003, 2_000_003, 111 * 111, 111  # four times an odd number: no float holds it


def flops(B, T, S, D, projections=None, heads=None):
    """Operations of the layer, the factors of 2·B·D·D and of 2·B·T·S·D replaced where they are given."""
    projections = 2 * T + 2 * S if projections is None else projections
    return 2 * B * D * D * projections + 2 * B * T * S * D * (2 if heads is None else heads)


@mha_flops.reference
def _(B, T, S, D, H):
    return flops(B, T, S, D)


mha_flops.mistakes_are(
    ("keys and values counted for the queries", "they are made from the S tokens of the other sequence.",
     lambda B, T, S, D, H: flops(B, T, S, D, 4 * T)),
    ("everything projected for S tokens", "queries and outputs are T tokens each, not S.",
     lambda B, T, S, D, H: flops(B, T, S, D, 4 * S)),
    ("everything projected for the longer sequence", "queries and outputs are T tokens, keys and values S.",
     lambda B, T, S, D, H: flops(B, T, S, D, 4 * max(T, S))),
    ("the output projected for S tokens", "there is one output for each query: W_O meets T tokens.",
     lambda B, T, S, D, H: flops(B, T, S, D, T + 3 * S)),
    ("no output projection", "the merged heads are projected once more, by W_O, for T tokens.",
     lambda B, T, S, D, H: flops(B, T, S, D, T + 2 * S)),
    ("every projection one head wide", "the H heads of a projection are D wide together.",
     lambda B, T, S, D, H: flops(B, T, S, D, 0) + 4 * B * D * (D // H) * (T + S)),
    ("no projections", "the heads alone; queries, keys, values and outputs have to be made.",
     lambda B, T, S, D, H: flops(B, T, S, D, 0)),
    ("only the projections", "scores and read-out are two more products of T · S · D each.",
     lambda B, T, S, D, H: flops(B, T, S, D, heads=0)),
    ("the scores without the read-out", "weights times values is a second product of the same size.",
     lambda B, T, S, D, H: flops(B, T, S, D, heads=1)),
    ("H times the heads", "each head is only D / H wide: H of them cost as much as one of width D.",
     lambda B, T, S, D, H: flops(B, T, S, D, heads=2 * H)),
    ("one head only", "d_k is the width of one head, and there are H of them.",
     lambda B, T, S, D, H: flops(B, T, S, D, heads=0) + 4 * B * T * S * (D // H)),
    ("scores of T by T", "the projections are right; each of the T queries meets S keys, not T.",
     lambda B, T, S, D, H: flops(B, T, T, D, 2 * T + 2 * S)),
    ("as many keys as queries", "T queries meet S keys; T · T only in self-attention.",
     lambda B, T, S, D, H: flops(B, T, T, D)),
    ("multiply-adds counted once", "a multiplication and an addition are two operations.",
     lambda B, T, S, D, H: flops(B, T, S, D) // 2),
    ("dot products of n counted as 2n - 1", "the docstring counts n multiply-adds, two operations each: 2n.",
     lambda B, T, S, D, H: flops(B, T, S, D) - B * (2 * D * (T + S) + H * T * S + T * D)),
    ("biases counted", "the four projections have no bias: what is left is a matrix product each.",
     lambda B, T, S, D, H: flops(B, T, S, D) + 2 * B * D * (T + S)),
    ("one sequence of the batch", "every sequence of the batch costs the same: times B.",
     lambda B, T, S, D, H: flops(1, T, S, D)),
    ("one sequence's heads", "the projections are right; scores and read-out are made B times as well.",
     lambda B, T, S, D, H: flops(B, T, S, D, heads=0) + flops(1, T, S, D, 0)),
    ("one sequence's projections", "the heads are right; the projections are made B times as well.",
     lambda B, T, S, D, H: flops(B, T, S, D, 0) + flops(1, T, S, D, heads=0)),
    ("cut down to 32 bits", "the count needs more: Python's own integers have no largest one.",
     lambda B, T, S, D, H: (flops(B, T, S, D) + 2**31) % 2**32 - 2**31),
    ("rounded to a float", "beyond 2⁵³ floats leave whole numbers out: stay with integers, // in place of /.",
     lambda B, T, S, D, H: int(float(flops(B, T, S, D)))),
    *((f"softmax and scale counted as {n} for each score", "the docstring counts softmax and scale as none.",
       lambda B, T, S, D, H, n=n: flops(B, T, S, D) + n * B * H * T * S) for n in range(1, 7)),
)  # fmt: skip


@mha_flops.contract("more heads of the same total width cost the same")
def _(f):
    for B, T, S, D in ((1, 2, 3, 4), (2, 5, 7, 16)):
        one, two = (torch.tensor(float(f(B, T, S, D, H))) for H in (1, 2))
        contracts.same("two heads cost what one costs", two, one)


@mha_flops.contract("twice the batch, twice the work")
def _(f):
    for T, S, D, H in ((1, 1, 1, 1), (2, 3, 4, 2), (5, 7, 16, 2)):
        ratio = f(4, T, S, D, H) / max(f(2, T, S, D, H), 1)
        contracts.same("twice the batch, twice the work", torch.tensor(float(ratio)), torch.tensor(2.0))


# ── fused_qkv ────────────────────────────────────────────────────────────────────────────────────

fused_qkv = Exercise(
    "fused_qkv", chapter=CHAPTER, kind="debug", level=2, minutes=10, points=3,
    page="02-many-heads.html#the-same-layer-in-pytorch",
    checks="queries, keys and values of every head, from weights in the order of GPT-2, and their gradients",
    question="row r of the weight: is it a query, a key or a value, of which head, which channel?",
    hints=(
        "Give every row its number as its output: with x = 1 and weight rows 0, 1, 2 …, which numbers should the "
        "queries of head 0 be, and which are they?",
        "1. the 3·D outputs are in the order: kind (query, key, value), then head, then channel;  2. the reshape "
        "has to name the axes in this order, slow to fast;  3. then the axis of the kind goes to the front, and "
        "the head in front of time.",
        "qkv = qkv.reshape(B, T, …)  # (B, T, 3, H, d_k)\nq, k, v = qkv.permute(…)  # each (B, H, T, d_k)",
    ),
    parts=("q", "k", "v"), gradients=True,
)  # fmt: skip

ROWS = torch.full((1, 1, 4), 0.25), numbered(12, 1).repeat(1, 4), 2  # output r is r


@fused_qkv.cases
def _(g):
    yield ROWS
    yield fixed(1, 2, 4), fixed(12, 4), 2
    yield randn(g, 2, 5, 12), randn(g, 36, 12), 3
    yield randn(g, 1, 3, 4), randn(g, 12, 4), 1
    yield randn(g, 2, 2, 6), randn(g, 18, 6), 6
    yield randn(g, 6, 3, 2).permute(2, 1, 0), randn(g, 6, 18).T, 2
    yield randn(g, 1, 1000, 2) / 10, randn(g, 6, 2), 2


@fused_qkv.reference
def qkv(x, weight, n_heads):
    q, k, v = (tx.split_heads(x @ part.T, n_heads) for part in weight.chunk(3))
    return q, k, v  # (B, H, T, d_k)


def qkv_as(x, weight, n_heads, shape, order):
    """The fused product, read as `shape` ("k" kind, "h" head, "c" channel) and permuted to `order`."""
    sizes = {"k": 3, "h": n_heads, "c": x.shape[-1] // n_heads}
    out = (x @ weight.T).reshape(*x.shape[:2], *(sizes[axis] for axis in shape))
    q, k, v = out.permute(order)  # (B, H, T, d_k)
    return q, k, v


head_by_head = lambda *case: qkv_as(*case, "hkc", (3, 0, 2, 1, 4))  # as the stub has it

fused_qkv.mistakes_are(
    ("head by head",
     "so do GPT-NeoX and BLOOM: q, k and v of head 0, then of head 1. GPT-2 has all queries first.", head_by_head),
    ("only the queries are repaired", "keys and values still come head by head, as GPT-NeoX stores them.",
     lambda *case: (qkv(*case)[0], *head_by_head(*case)[1:])),
    ("channels before heads", "within the queries, head 0 has the first d_k rows, not every H-th.",
     lambda *case: qkv_as(*case, "kch", (2, 0, 4, 1, 3))),
    ("the kind as the fastest axis", "q, k and v do not take turns row by row: D rows of queries come first.",
     lambda *case: qkv_as(*case, "hck", (4, 0, 2, 1, 3))),
    ("the heads not brought to the front", "attention wants (B, H, T, d_k): the head in front of time.",
     lambda *case: qkv_as(*case, "khc", (2, 0, 1, 3, 4))),
    ("the third apart, the heads by reshape alone", "splitting each needs a swap of axes, too.",
     lambda *case: tuple(part.transpose(1, 2).reshape(part.shape) for part in qkv(*case))),
    ("all axes by reshape alone", "memory has the batch first, then time: what moves an axis is permute.",
     lambda x, weight, n_heads: tuple((x @ weight.T).reshape(3, len(x), n_heads, x.shape[1], -1))),
    ("the third apart, and no heads", "each of the three is to be split: (B, H, T, d_k).",
     lambda x, weight, n_heads: (x @ weight.T).chunk(3, -1)),
    ("keys and values swapped", "the order is queries, keys, values.",
     lambda *case: tuple(qkv(*case)[i] for i in (0, 2, 1))),
    ("keys first", "the first D rows make the queries, the next D rows the keys.",
     lambda *case: tuple(qkv(*case)[i] for i in (1, 0, 2))),
    ("the queries three times", "D rows for the queries, then D rows for the keys: chunk(3) gives three parts.",
     lambda *case: (qkv(*case)[0],) * 3),
    ("the weight read as (D, 3·D)", "this is how GPT-2 stores it; here it comes as nn.Linear has it, (3·D, D).",
     lambda x, weight, n_heads: qkv(x, weight.reshape(x.shape[-1], -1).T, n_heads)),
    ("the queries scaled already", "the weight alone makes the queries; the scale comes with the scores.",
     lambda *case: (qkv(*case)[0] * (case[0].shape[-1] // case[2]) ** -0.5, *qkv(*case)[1:])),
)  # fmt: skip


@fused_qkv.contract("positions stay put")
def _(f):
    for x, weight, n_heads in ((fixed(1, 2, 4), fixed(12, 4), 2), (fixed(2, 4, 6), fixed(18, 6), 3)):
        contracts.positions_stay_put(lambda x, case=(weight, n_heads): f(x, *case)[0], x)


@fused_qkv.contract("the first D rows are the queries")
def _(f):
    for x, weight, n_heads in (ROWS, (fixed(1, 2, 4), fixed(12, 4), 2)):
        D = x.shape[-1]
        weight = weight.index_fill(0, torch.arange(D, 3 * D), 0)  # (3*D, D)
        right = tx.split_heads(x @ weight[:D].T, n_heads)  # (B, H, T, d_k)
        contracts.same("the first D rows are the queries", f(x, weight, n_heads)[0], right)


# ── prune_heads ──────────────────────────────────────────────────────────────────────────────────

prune_heads = Exercise(
    "prune_heads", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="02-many-heads.html#pruning-heads",
    checks="smaller weights for the heads that stay, in the order of keep, gradients, an error for unknown heads",
    question="which rows of w_q belong to head h, and which part of w_o reads what they made?",
    hints=(
        "nn.Linear stores (out, in). A head's slice is what w_q, w_k and w_v put *out*, and what w_o takes *in*. "
        "Which axis is that, each time?",
        "1. ValueError if a head of keep is not in 0 … H - 1 or comes twice;  2. d_k = rows of w_q / n_heads;  "
        "3. the row numbers 0 … H·d_k - 1 as (H, d_k), of these the rows of keep, flat: (n·d_k,);  4. take these "
        "rows of three matrices, and these columns of w_o.",
        "rows = torch.arange(n_heads * d_k).view(n_heads, d_k)[…].flatten()  # (n·d_k,)\n"
        "return w_q[rows], w_k[rows], w_v[rows], …",
    ),
    parts=("w_q", "w_k", "w_v", "w_o"), gradients=True,
)  # fmt: skip


def heads_of(g, H, d_k, D):
    """w_q, w_k, w_v (H·d_k, D) and w_o (D, H·d_k)."""
    return (*(randn(g, H * d_k, D) for _ in range(3)), randn(g, D, H * d_k))


def told(make):
    """Weights of two heads that say where they are from; D is large enough for rows of the wrong axis."""
    return make(4, 4), make(4, 4) + 20, make(4, 4) + 40, make(4, 4) + 60


@prune_heads.cases
def _(g):
    yield *told(numbered), 2, [0]
    yield *told(wide), 2, [1]
    yield *heads_of(g, 3, 2, 6), 3, [0, 2]
    yield *heads_of(g, 4, 2, 8), 4, [3, 1]
    yield *heads_of(g, 3, 2, 7), 3, [2, 0, 1]
    yield *heads_of(g, 2, 3, 4), 2, [0]
    yield *(w.T for w in heads_of(g, 3, 2, 6)), 3, [1, 2]
    yield *heads_of(g, 32, 2, 64), 32, [31, 0, 17]
    for keep in ([0, 3], [-1], [1, 1], [1, 0, 1]):
        yield raises(ValueError, *heads_of(g, 3, 2, 6), 3, keep)


@prune_heads.reference
def prune(w_q, w_k, w_v, w_o, n_heads, keep):
    if not set(keep) <= set(range(n_heads)) or len(set(keep)) < len(keep):
        raise ValueError(f"keep = {keep}: expected different heads of 0 … {n_heads - 1}")
    rows = torch.arange(len(w_q)).view(n_heads, -1)[keep].flatten()  # (n*d_k,)
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


prune_heads.edits_are(
    ("the heads of keep are taken out", "keep names those that stay.", "[keep]",
     "[[h for h in range(n_heads) if h not in keep]]"),
    ("every H-th row", "head h has d_k neighbouring rows, h·d_k …, not the rows h, h + H, h + 2H …",
     "(n_heads, -1)[keep]", "(-1, n_heads).T[keep]"),
    ("the rows keep, not its heads", "keep has numbers of heads, and each head has d_k rows.",
     "torch.arange(len(w_q)).view(n_heads, -1)[keep].flatten()", "torch.tensor(keep)"),
    ("d_k from the width of the tokens", "w_q has H·d_k rows and D columns: d_k is rows / H, whatever D is.",
     "torch.arange(len(w_q)).view(n_heads, -1)[keep]",
     "torch.stack([h * (w_q.shape[1] // n_heads) + torch.arange(w_q.shape[1] // n_heads) for h in keep])"),
    ("as many heads from the front", "the right number of heads, but not those that keep names.", "[keep]",
     "[: len(keep)]"),
    ("from the first to the last head of keep", "only the heads of keep stay, and none between them.", "[keep]",
     "[min(keep) : max(keep) + 1]"),
    ("sorted", "the heads come in the order of keep.", "[keep]", "[sorted(keep)]"),
    ("heads counted from 1", "heads are 0 … H - 1, as Python counts.", "[keep]", "[[h - 1 for h in keep]]"),
    ("columns of all four", "w_q, w_k and w_v store (out, in), and a head's slice is their *output*: rows.",
     "w_q[rows], w_k[rows], w_v[rows]", "w_q[:, rows], w_k[:, rows], w_v[:, rows]"),
    ("rows of w_o as well", "w_o stores (out, in), and a head's slice is its *input*: columns, not rows.",
     "w_o[:, rows]", "w_o[rows]"),
    ("w_o as it was", "its columns for the heads that left have nobody to read from.", "w_o[:, rows]", "w_o"),
    ("w_o sorted", "its columns come in the order of keep as well, or they read another head.", "w_o[:, rows]",
     "w_o[:, rows.sort()[0]]"),
    ("w_o transposed", "the right numbers, but w_o stays as nn.Linear stores it, (out, in): (D, n·d_k).",
     "w_o[:, rows]", "w_o[:, rows].T"),
    ("w_v as it was", "a head that leaves takes its values along: rows of all three.", "w_v[rows]", "w_v"),
    ("w_v cut from the front", "the values of the heads of keep are wanted, as their queries are.", "w_v[rows]",
     "w_v[: len(rows)]"),
    ("set to zero, not taken out", "the output is right, and the layer as large and as slow as before.",
     "return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]",
     "on = torch.zeros(len(w_q)).index_fill(0, rows, 1)\n"
     "    return w_q * on[:, None], w_k * on[:, None], w_v * on[:, None], w_o * on"),
    ("the rest made larger", "no factor H / n: the layer is to give the sum of the kept shares as they are.",
     "w_o[:, rows]", "w_o[:, rows] * n_heads / len(keep)"),
    ("unknown heads are not refused", "a head that is not there, or twice there, gives a ValueError.",
     "not set(keep) <= set(range(n_heads)) or len(set(keep)) < len(keep)", "False"),
    ("heads counted from the end", "heads are 0 … H - 1: -1 is more likely a slip of the caller.",
     "set(range(n_heads))", "set(range(-n_heads, n_heads))"),
    ("a head may come twice", "its share would be added twice: the smaller layer is none of the kept heads.",
     " or len(set(keep)) < len(keep)", ""),
    ("only neighbours in keep are compared", "a head may come again later: [1, 0, 1] names head 1 twice.",
     "len(set(keep)) < len(keep)", "any(a == b for a, b in zip(keep, keep[1:], strict=False))"),
    (*FLOAT32, "return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]",
     "return [w.float() for w in (w_q[rows], w_k[rows], w_v[rows], w_o[:, rows])]"),
)  # fmt: skip


def shares_of(x, w_q, w_k, w_v, w_o, n_heads):
    """What each head adds to the layer's output: (B, H, T, D)."""
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return shares(tx.attention(q, k, v), w_o)  # (B, H, T, D)


@prune_heads.contract("keeping all changes nothing")
def _(f):
    weights = heads_of(torch.Generator().manual_seed(1), 3, 2, 6)
    for name, before, after in zip(prune_heads.parts, weights, f(*weights, 3, [0, 1, 2]), strict=True):
        contracts.same("keeping all changes nothing", after, before, name)


@prune_heads.contract("the smaller layer gives the sum of the kept shares")
def _(f):
    for weights, n_heads, keep in (
        ([w / 100 for w in told(numbered)], 2, [0]),
        (heads_of(torch.Generator().manual_seed(1), 3, 2, 6), 3, [0, 2]),
    ):
        x = fixed(2, 4, weights[0].shape[1])  # (B, T, D)
        right = shares_of(x, *weights, n_heads)[:, keep].sum(1)  # (B, T, D)
        got = shares_of(x, *f(*weights, n_heads, keep), len(keep)).sum(1)  # (B, T, D)
        contracts.same("the sum of the kept shares", got, right)


# ── head_importance ──────────────────────────────────────────────────────────────────────────────

head_importance = Exercise(
    "head_importance", chapter=CHAPTER, kind="measure", level=3, minutes=40, points=5,
    page="02-many-heads.html#pruning-heads",
    checks="the slope of the loss by each head's gate: absolute for each example, then the mean",
    question="a head helps one example and harms another to the same degree: is it unimportant?",
    hints=(
        "How does the loss of one example change when one head's share grows by a hundredth? Which order do "
        "absolute value and mean over examples have in the docstring?",
        "1. shares (B, H, T, D), whose sum over heads is the output;  2. gates of ones, (B, H, 1, 1): one for "
        "each example, so that slopes of different examples stay apart;  3. loss (B,): mean over T and D of "
        "((gates · shares).sum(1) - target)²;  4. slopes of loss.sum() by the gates;  5. absolute value, then "
        "mean over B: (H,).",
        "gates = torch.ones(B, n_heads, 1, 1, requires_grad=True)\n"
        "error = (gates * shares).sum(1) - target  # (B, T, D)\nloss = …  # (B,)\n"
        "slope, = torch.autograd.grad(loss.sum(), gates)  # (B, H, 1, 1)\nreturn …  # (H,)",
    ),
)  # fmt: skip


def alone(target):
    """Examples of tokens (1, 2), of which head 0 sees the 1 and head 1 the 2, every weight the identity."""
    target = torch.tensor(target)  # (B, T, D)
    return torch.tensor([1.0, 2.0]).expand(target.shape), target, *[torch.eye(2)] * 4


def measured(g, B, T, D, scale=1.0):
    """x, target and four weights of width D."""
    weights = (randn(g, D, D) * D**-0.5 for _ in range(4))
    return randn(g, B, T, D), scale * randn(g, B, T, D), *weights


@head_importance.cases
def _(g):
    yield *alone([[[0.0, 0.0]]]), 2  # by hand: the slopes are 1² and 2²
    yield *alone([[[2.0, 4.0]]]), 2  # … -1² and -2²
    yield *alone([[[0.0, 0.0]], [[2.0, 4.0]]]), 2  # two examples of opposite slopes
    yield *alone([[[0.0, 0.0], [2.0, 4.0]]]), 2  # two tokens of opposite slopes
    yield *measured(g, 2, 5, 12), 3
    yield *measured(g, 4, 3, 6, scale=2.0), 6
    yield *measured(g, 3, 2, 6), 1
    yield *(x.mT for x in measured(g, 2, 4, 4)), 2
    yield *measured(g, 1, 512, 2), 2
    x, weights = large()
    yield x, x.flip(1), *weights.values(), 1


def slopes(x, target, w_q, w_k, w_v, w_o, n_heads):
    """Shares (B, H, T, D), error (B, T, D) and the slope of each example, by head: (B, H)."""
    shares = shares_of(x, w_q, w_k, w_v, w_o, n_heads)  # (B, H, T, D)
    error = shares.sum(1) - target  # (B, T, D)
    return shares, error, 2 * (error[:, None] * shares).mean((2, 3))


@head_importance.reference
def importance(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].abs().mean(0)  # (H,)


def removed(x, target, w_q, w_k, w_v, w_o, n_heads):
    """How the loss of an example changes without a head: (B, H)."""
    shares, error, _ = slopes(x, target, w_q, w_k, w_v, w_o, n_heads)
    return ((error[:, None] - shares) ** 2).mean((2, 3)) - (error**2).mean((1, 2))[:, None]  # (B, H)


def on_scores(x, target, w_q, w_k, w_v, w_o, n_heads):
    """The slopes by gates that multiply the scores: (B, H)."""
    q, k, v = (tx.split_heads(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    gates = torch.ones(len(x), n_heads, 1, 1, requires_grad=True)  # (B, H, 1, 1)
    error = shares(tx.attention(gates * q, k, v), w_o).sum(1) - target  # (B, T, D)
    return torch.autograd.grad((error**2).mean((1, 2)).sum(), gates)[0].flatten(1)  # (B, H)


head_importance.mistakes_are(
    ("the mean before the absolute value", "slopes of opposite sign cancel: is such a head unimportant?",
     lambda *case: slopes(*case)[2].mean(0).abs()),
    ("no absolute value", "importance has no sign: a head that the loss wants less of matters too.",
     lambda *case: slopes(*case)[2].mean(0)),
    ("the absolute value of every token", "a gate has one slope for all tokens and features: sum, then | |.",
     lambda *case: 2 * (slopes(*case)[1][:, None] * slopes(*case)[0]).mean(3).abs().mean((0, 2))),
    ("the absolute value of every number", "a gate has one slope for all tokens and features: sum, then | |.",
     lambda *case: 2 * (slopes(*case)[1][:, None] * slopes(*case)[0]).abs().mean((0, 2, 3))),
    ("the squared error summed", "the loss of an example is the *mean* over its T · D numbers.",
     lambda *case: importance(*case) * case[1][0].numel()),
    ("the squared error summed over the features", "the loss of an example is the *mean* over its T · D numbers.",
     lambda *case: importance(*case) * case[1].shape[2]),
    ("without the factor 2", "the derivative of a square brings a 2 down.", lambda *case: importance(*case) / 2),
    ("summed over the batch", "the mean over the examples, so that a larger batch changes nothing.",
     lambda *case: importance(*case) * len(case[0])),
    ("one importance an example", "the mean over the batch is missing: (H,) is wanted.",
     lambda *case: slopes(*case)[2].abs()),
    ("divided by B twice", "the slopes of the batch's mean loss have a 1 / B already: sum the losses first.",
     lambda *case: importance(*case) / len(case[0])),
    ("the slope squared", "asked for is its absolute value: squares favour the extremes.",
     lambda *case: slopes(*case)[2].square().mean(0)),
    ("the root of the mean square", "asked for is the mean absolute value: squares favour the extremes.",
     lambda *case: slopes(*case)[2].square().mean(0).sqrt()),
    ("the head really removed", "the exact damage takes a pass for each head; here it is the slope at ξ = 1.",
     lambda *case: removed(*case).abs().mean(0)),
    ("the slope at ξ = 0", "there the heads are gone already, and their shares are missing in the error.",
     lambda *case: 2 * (case[1][:, None] * slopes(*case)[0]).mean((2, 3)).abs().mean(0)),
    ("every head alone against the target", "the error is that of the whole output: the others answer, too.",
     lambda *case: 2 * ((slopes(*case)[0] - case[1][:, None]) * slopes(*case)[0]).mean((2, 3)).abs().mean(0)),
    ("gates on the scores", "the gate multiplies what a head adds to the output, and not how decided it is.",
     lambda *case: on_scores(*case).abs().mean(0)),
    ("the size of the share", "a large share may be one that the loss does not feel; the target has to enter.",
     lambda *case: slopes(*case)[0].square().mean((0, 2, 3))),
    ("divided by their length", "the slopes themselves are asked for, and not the direction they make.",
     lambda *case: importance(*case) / importance(*case).norm()),
    ("divided by their sum", "the slopes themselves are asked for, and not the part that each has in them.",
     lambda *case: importance(*case) / importance(*case).sum()),
    ("scaled by the width of the model", "a head sums over d_k features: the scale is 1/√d_k, not 1/√D.",
     lambda x, target, w_q, *rest: importance(x, target, w_q * rest[-1] ** -0.5, *rest)),
    ("the rows of w_o are cut", "nn.Linear stores (out, in): a head's slice is an input of w_o, its columns.",
     lambda *case: importance(*case[:5], case[5].T, case[6])),
    ("x @ w without the transpose", "nn.Linear stores (out, in): queries are x @ w_q.T, as keys and values are.",
     lambda x, target, w_q, w_k, w_v, *rest: importance(x, target, w_q.T, w_k.T, w_v.T, *rest)),
)  # fmt: skip


def layer_and_target():
    return list(measured(torch.Generator().manual_seed(1), 2, 4, 6))


@head_importance.contract("a head that writes nothing has importance 0")
def _(f):
    args = layer_and_target()
    args[4][2:4] = 0  # the value rows of head 1 of 3
    contracts.same("a head that writes nothing", f(*args, 3)[1], torch.tensor(0.0), "head 1")


@head_importance.contract("with no error left, every slope is 0")
def _(f):
    x, _, *weights = layer_and_target()
    target = shares_of(x, *weights, 3).sum(1)  # (B, T, D)
    contracts.same("with no error left, every slope is 0", f(x, target, *weights, 3), torch.zeros(3))


@head_importance.contract("the importance of a batch is the mean of its examples'")
def _(f):
    for *case, n_heads in ((*alone([[[0.0, 0.0]], [[2.0, 4.0]]]), 2), (*layer_and_target(), 3)):
        x, target, *weights = case
        one = [f(x[b : b + 1], target[b : b + 1], *weights, n_heads) for b in range(2)]
        contracts.same("the mean of the examples", f(*case, n_heads), sum(one) / 2)


test_exercise = exercises_of(__name__)
