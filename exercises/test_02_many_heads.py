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
    """The same normal numbers in every call, for contracts."""
    return randn(torch.Generator().manual_seed(1), *shape)


# ── one_head_floor ───────────────────────────────────────────────────────────────────────────────

one_head_floor = Exercise(
    "one_head_floor", chapter=CHAPTER, kind="derive", level=2, minutes=10, points=3,
    page="02-many-heads.html#the-floor-of-one-head",
    checks="the floor of one head for any weighted sum, for one question and for several",
    question="with a gain of 0 or more, which entries of `wanted` can gain times weights copy exactly?",
    hints=(
        "Gain times weights is one vector u, and the loss is the sum of (u - wanted)². What do all "
        "entries of u have in common? Which u is the closest?",
        "1. a gain of 0 or more: u has no negative entry, so the closest u copies the positive entries of "
        "`wanted` and has 0 elsewhere: what is left over?  2. a gain of 0 or less: the same with the signs "
        "swapped;  3. the head takes the cheaper of the two. Sum over the last axis, S.",
        "plus = (wanted.clamp(min=0) ** 2).sum(dim=-1)  # (…)\nminus = …  # (…)\n"
        "return torch.minimum(plus, minus)",
    ),
)  # fmt: skip


@one_head_floor.cases
def _(g):
    yield (torch.tensor([1.0, -1.0, 0.0]),)
    yield (torch.tensor([2.0, -1.0, 3.0]),)
    yield (torch.tensor([0.5, 0.5]),)
    yield (torch.tensor([-1.0, -2.0]),)
    yield (torch.tensor([[1.0, -3.0], [3.0, -1.0]]),)
    yield (randn(g, 7),)
    yield (randn(g, 3, 5),)


@one_head_floor.reference
def _(wanted):
    plus = (wanted.clamp(min=0) ** 2).sum(-1)  # (...)
    minus = (wanted.clamp(max=0) ** 2).sum(-1)  # (...)
    return torch.minimum(plus, minus)  # (...)


@one_head_floor.mistake(
    "the gain is never negative",
    "a gain below 0 turns all weights around; where most of the question is negative, this is cheaper.",
)
def _(wanted):
    return (wanted.clamp(max=0) ** 2).sum(-1)  # (...)


@one_head_floor.mistake(
    "the positive entries are what is lost",
    "with a positive gain these are the ones that the head can say; it loses the others.",
)
def _(wanted):
    return (wanted.clamp(min=0) ** 2).sum(-1)  # (...)


@one_head_floor.mistake("the dearer of the two signs", "a floor is the lowest loss: the minimum of the two.")
def _(wanted):
    plus = (wanted.clamp(min=0) ** 2).sum(-1)  # (...)
    return torch.maximum(plus, (wanted.clamp(max=0) ** 2).sum(-1))  # (...)


@one_head_floor.mistake(
    "a hard look-up",
    "one jar only; but the weights may be shared, so one head can say all entries of one sign at once.",
)
def _(wanted):
    return (wanted**2).sum(-1) - (wanted**2).amax(-1)  # (...)


@one_head_floor.mistake(
    "not squared",
    "the loss is the expected squared error, and an entry c that is left out costs c² times the variance 1.",
)
def _(wanted):
    return torch.minimum(wanted.clamp(min=0).sum(-1), -wanted.clamp(max=0).sum(-1))  # (...)


@one_head_floor.mistake(
    "the square of the sum",
    "values are independent, so their errors add as variances: square each entry first, then sum.",
)
def _(wanted):
    plus, minus = wanted.clamp(min=0).sum(-1), wanted.clamp(max=0).sum(-1)  # (...), (...)
    return torch.minimum(plus**2, minus**2)  # (...)


@one_head_floor.mistake(
    "the mean over the jars",
    "the squared error of one answer is the sum over all jars that enter it, not their mean.",
)
def _(wanted):
    plus = (wanted.clamp(min=0) ** 2).mean(-1)  # (...)
    return torch.minimum(plus, (wanted.clamp(max=0) ** 2).mean(-1))  # (...)


@one_head_floor.mistake(
    "one for every question with two signs",
    "1 is the floor of a difference; the entries of the cheaper sign, squared and summed, in general.",
)
def _(wanted):
    both = (wanted > 0).any(-1) & (wanted < 0).any(-1)  # (...)
    return both.to(wanted.dtype)  # (...)


@one_head_floor.mistake(
    "one floor for all questions", "each question, a row along the last axis, has a floor of its own."
)
def _(wanted):
    plus = (wanted.clamp(min=0) ** 2).sum()  # ()
    return torch.minimum(plus, (wanted.clamp(max=0) ** 2).sum())  # ()


@one_head_floor.mistake(
    "one sign for all questions",
    "the sign of the gain is chosen for each question by itself: compare row by row, with torch.minimum.",
)
def _(wanted):
    plus = (wanted.clamp(min=0) ** 2).sum(-1)  # (...)
    minus = (wanted.clamp(max=0) ** 2).sum(-1)  # (...)
    return plus if plus.sum() < minus.sum() else minus  # (...)


@one_head_floor.mistake(
    "the loss of a gain of 0", "who answers 0 loses everything; with another gain one sign can be copied."
)
def _(wanted):
    return (wanted**2).sum(-1)  # (...)


@one_head_floor.contract("a difference has the floor 1")
def _(f):
    contracts.same("a difference has the floor 1", f(torch.tensor([0.0, 1.0, -1.0])), torch.tensor(1.0))


@one_head_floor.contract("one sign costs nothing")
def _(f):
    contracts.same("one sign costs nothing", f(torch.tensor([0.2, 0.0, 3.0])), torch.tensor(0.0))


@one_head_floor.contract("the question turned around has the same floor")
def _(f):
    wanted = torch.tensor([2.0, -1.0, 0.5])
    contracts.same("turned around, the same floor", f(-wanted), f(wanted))


# ── split_heads ──────────────────────────────────────────────────────────────────────────────────

split_heads = Exercise(
    "split_heads", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="02-many-heads.html#split-and-merge",
    checks="every token's features in its head and at its position, and an error for unequal slices",
    question="follow one number: where does x[0, 1, 0] end up? In which axis did it travel?",
    hints=(
        "The features of a token are neighbours in memory. Which axis can be cut in two without moving a "
        "single number? Which two axes then have to change places?",
        "1. ValueError if D % n_heads is not 0;  2. (B, T, D) to (B, T, H, d_k): the last axis is cut, head "
        "first, d_k second;  3. (B, T, H, d_k) to (B, H, T, d_k): two axes swap.",
        'if D % n_heads:\n    raise ValueError(f"D = {D}, n_heads = {n_heads}")\n'
        "rows = x.reshape(B, T, …)  # (B, T, H, d_k)\nreturn rows.transpose(…)  # (B, H, T, d_k)",
    ),
    out_of_reach=("tx.split_heads",),
)  # fmt: skip


@split_heads.cases
def _(g):
    yield numbered(1, 3, 4), 2
    yield numbered(2, 5, 12), 3
    yield randn(g, 2, 4, 6), 1
    yield randn(g, 2, 3, 5), 5
    yield randn(g, 3, 1, 8), 4
    yield raises(ValueError, randn(g, 1, 2, 10), 3)


@split_heads.reference
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D} is not divisible by n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).transpose(1, 2)  # (B, H, T, d_k)


@split_heads.mistake(
    "reshape without a swap of axes",
    "the numbers stay in the order of memory, so a head gets whole tokens in place of a slice of each.",
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, n_heads, T, D // n_heads)  # (B, H, T, d_k)


@split_heads.mistake(
    "the width cut as (d_k, H)",
    "head h then owns every H-th feature and not a slice of neighbours: a checkpoint would not fit.",
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, D // n_heads, n_heads).permute(0, 3, 1, 2)  # (B, H, T, d_k)


@split_heads.mistake(
    "cut, and not swapped",
    "the heads still stand behind the time axis: attention would mix heads, not tokens.",
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads)  # (B, T, H, d_k)


@split_heads.mistake(
    "the heads in front of the batch", "the order of the axes is (B, H, T, d_k), the batch first."
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).permute(2, 0, 1, 3)  # (H, B, T, d_k)


@split_heads.mistake(
    "features and time swapped", "transposed once too often: within a head a row is a token, (T, d_k)."
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, n_heads, D // n_heads).permute(0, 2, 3, 1)  # (B, H, d_k, T)


@split_heads.mistake(
    "n_heads taken for the width of a head", "n_heads slices of width D / n_heads, not the other way round."
)
def _(x, n_heads):
    B, T, D = x.shape
    if D % n_heads:
        raise ValueError(f"D = {D}, n_heads = {n_heads}")
    return x.reshape(B, T, D // n_heads, n_heads).transpose(1, 2)  # (B, d_k, T, H)


@split_heads.contract("batch rows are independent")
def _(f):
    contracts.batch_independence(lambda x: f(x, 3), numbered(2, 5, 12))


@split_heads.contract("positions stay put")
def _(f):
    contracts.positions_stay_put(lambda x: f(x, 3), numbered(2, 5, 12))


@split_heads.contract("head 0 owns the first features")
def _(f):
    x = numbered(1, 2, 6)
    contracts.same("head 0 owns the first features", f(x, 3)[:, 0], x[..., :2], "head 0")


# ── merge_heads ──────────────────────────────────────────────────────────────────────────────────

merge_heads = Exercise(
    "merge_heads", chapter=CHAPTER, kind="write", level=1, minutes=5, points=2,
    page="02-many-heads.html#split-and-merge",
    checks="the heads side by side again, for several numbers of heads",
    question="which two axes have to be neighbours, and in which order, before they can become one?",
    hints=(
        "The features of one token are spread over the heads. Which axis stands between H and d_k, and has "
        "to get out of the way first?",
        "1. (B, H, T, d_k) to (B, T, H, d_k): two axes swap;  2. (B, T, H, d_k) to (B, T, H·d_k): the last "
        "two become one. `view` refuses here, since the numbers have to be copied; `reshape` copies.",
        "rows = x.transpose(…)  # (B, T, H, d_k)\nreturn rows.reshape(B, T, …)  # (B, T, H·d_k)",
    ),
    out_of_reach=("tx.merge_heads",),
)  # fmt: skip


@merge_heads.cases
def _(g):
    yield (numbered(1, 2, 3, 2),)
    yield (numbered(2, 3, 5, 4),)
    yield (randn(g, 2, 1, 3, 4),)
    yield (randn(g, 2, 4, 1, 3),)
    yield (randn(g, 3, 2, 4, 1),)


@merge_heads.reference
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose(1, 2).reshape(B, T, H * d_k)  # (B, T, D)


@merge_heads.mistake(
    "reshape without transposing back",
    "memory is read head by head, so a row is made of several tokens of one head.",
)
def _(x):
    B, H, T, d_k = x.shape
    return x.reshape(B, T, H * d_k)  # (B, T, D)


@merge_heads.mistake(
    "joined as (d_k, H)",
    "feature 0 of all heads, then feature 1: each head's slice has to stay in one piece.",
)
def _(x):
    return x.permute(0, 2, 3, 1).flatten(2)  # (B, T, D)


@merge_heads.mistake(
    "the heads are added", "they are put side by side here; what adds them is the output projection."
)
def _(x):
    return x.sum(1)  # (B, T, d_k)


@merge_heads.mistake("the heads are averaged", "an average keeps d_k features and forgets who said what.")
def _(x):
    return x.mean(1)  # (B, T, d_k)


@merge_heads.mistake(
    "swapped, and not joined", "H and d_k still are two axes: the layer goes on with (B, T, D)."
)
def _(x):
    return x.transpose(1, 2)  # (B, T, H, d_k)


@merge_heads.mistake(
    "the last two axes swapped", "time has to change places with the heads; d_k is where it should be."
)
def _(x):
    B, H, T, d_k = x.shape
    return x.transpose(2, 3).reshape(B, T, H * d_k)  # (B, T, D)


@merge_heads.mistake("the heads in reverse", "head 0 owns the first features, as in split_heads.")
def _(x):
    return x.flip(1).transpose(1, 2).flatten(2)  # (B, T, D)


@merge_heads.mistake(
    "joined along the time axis", "the heads stand one after the other in time, not side by side."
)
def _(x):
    return torch.cat(list(x.unbind(1)), dim=1)  # (B, H*T, d_k)


@merge_heads.contract("batch rows are independent")
def _(f):
    contracts.batch_independence(f, numbered(2, 3, 5, 4))


@merge_heads.contract("merging undoes splitting")
def _(f):
    contracts.round_trip(lambda x: tx.split_heads(x, 3), f, numbered(2, 5, 12))


# ── MultiHead ────────────────────────────────────────────────────────────────────────────────────

MultiHead = Exercise(
    "MultiHead", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="02-many-heads.html#the-layer",
    checks="the output with given weights, for several widths and heads, and an error for unequal heads",
    question="which five steps does x go through, and what is the shape after each?",
    hints=(
        "Project, split, attend, merge, project. Which of the four matrices does each step use, and over "
        "which width does the dot product inside a head sum?",
        "1. in __init__: an error, n_heads, four nn.Linear(d_model, d_model, bias=False);  2. q, k, v: "
        "project x, then split_heads, (B, H, T, d_k);  3. attention(q, k, v), which scales by 1/√d_k;  "
        "4. merge_heads, (B, T, D);  5. self.out.",
        "q = tx.split_heads(self.query(x), self.n_heads)  # (B, H, T, d_k)\nk = …\nv = …\n"
        "read = tx.attention(q, k, v)  # (B, H, T, d_k)\nreturn self.out(…)  # (B, T, D)",
    ),
    out_of_reach=LAYERS,
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


def four_weights(g, D):
    """Weights of a layer of width D, of the size that keeps outputs near 1."""
    return {f"{name}.weight": randn(g, D, D) * D**-0.5 for name in ("query", "key", "value", "out")}


@MultiHead.cases
def _(g):
    yield 4, 2, randn(g, 1, 2, 4), four_weights(g, 4)
    yield 12, 3, randn(g, 2, 5, 12), four_weights(g, 12)
    yield 6, 1, 2 * randn(g, 2, 3, 6), four_weights(g, 6)
    yield 8, 8, 2 * randn(g, 1, 4, 8), four_weights(g, 8)
    yield 6, 2, randn(g, 3, 1, 6), four_weights(g, 6)
    yield raises(ValueError, 10, 3)


@MultiHead.reference
class Layer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model = {d_model} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, self.n_heads, -1).transpose(1, 2)  # (B, H, T, d_k)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)  # (B, T, D)

    def weigh(self, q, k):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (B, H, T, S)

    def heads(self, x):
        return (self.split(project(x)) for project in (self.query, self.key, self.value))

    def forward(self, x):
        q, k, v = self.heads(x)  # (B, H, T, d_k)
        return self.out(self.merge(self.weigh(q, k) @ v))  # (B, T, D)


@MultiHead.mistake(
    "scaled by the width of the model",
    "the dot product sums over d_k features, so the scale is 1/√d_k; with 1/√D every head is too even.",
)
class _(Layer):
    def weigh(self, q, k):
        D = self.query.weight.shape[0]
        return (q @ k.mT * D**-0.5).softmax(-1)  # (B, H, T, S)


@MultiHead.mistake("no scale", "the scores are √d_k times too large, and the softmax too decided.")
class _(Layer):
    def weigh(self, q, k):
        return (q @ k.mT).softmax(-1)  # (B, H, T, S)


@MultiHead.mistake(
    "divided by d_k without the root", "the spread of a score grows with the root of the width."
)
class _(Layer):
    def weigh(self, q, k):
        return (q @ k.mT / q.shape[-1]).softmax(-1)  # (B, H, T, S)


@MultiHead.mistake("softmax over the queries", "each query shares out its own weights: the rows sum to one.")
class _(Layer):
    def weigh(self, q, k):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-2)  # (B, H, T, S)


@MultiHead.mistake("no output projection", "the heads were put side by side and never met: `out` is missing.")
class _(Layer):
    def forward(self, x):
        q, k, v = self.heads(x)  # (B, H, T, d_k)
        return self.merge(self.weigh(q, k) @ v)  # (B, T, D)


@MultiHead.mistake(
    "heads split without the swap", "`reshape` to (B, H, T, d_k) gives each head whole tokens."
)
class _(Layer):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, self.n_heads, T, -1)  # (B, H, T, d_k)


@MultiHead.mistake(
    "merged without transposing back", "a row of the output is made of several tokens of one head."
)
class _(Layer):
    def merge(self, x):
        B, H, T, d_k = x.shape
        return x.reshape(B, T, H * d_k)  # (B, T, D)


@MultiHead.mistake(
    "the width cut as (d_k, H)", "head h owns every H-th feature and not a slice of neighbours."
)
class _(Layer):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, -1, self.n_heads).permute(0, 3, 1, 2)  # (B, H, T, d_k)

    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)  # (B, T, D)


@MultiHead.mistake("one head", "the width was never cut: n_heads has no effect.")
class _(Layer):
    def split(self, x):
        return x[:, None]  # (B, 1, T, D)


@MultiHead.mistake("keys made by the query's matrix", "three roles, three matrices: keys need `self.key`.")
class _(Layer):
    def heads(self, x):
        return (self.split(project(x)) for project in (self.query, self.query, self.value))


@MultiHead.mistake("the keys are read as values", "what is handed over is made by `self.value`.")
class _(Layer):
    def heads(self, x):
        return (self.split(project(x)) for project in (self.query, self.key, self.key))


@MultiHead.mistake(
    "split as (d_k, H), merged as (H, d_k)",
    "a head owns neighbouring features: the last axis is cut as (H, d_k), the head first.",
)
class _(Layer):
    def split(self, x):
        B, T, D = x.shape
        return x.reshape(B, T, -1, self.n_heads).permute(0, 3, 1, 2)  # (B, H, T, d_k)


@MultiHead.mistake(
    "queries and keys exchanged", "row t of the weights belongs to query t: the scores are q @ k.mT."
)
class _(Layer):
    def weigh(self, q, k):
        return super().weigh(k, q)  # (B, H, T, S)


@MultiHead.mistake(
    "a causal mask", "nothing is hidden in this layer: every token sees all tokens. Masks are chapter 3."
)
class _(Layer):
    def weigh(self, q, k):
        hidden = torch.ones(q.shape[2], k.shape[2]).triu(1).bool()  # (T, S)
        scores = q @ k.mT * q.shape[-1] ** -0.5  # (B, H, T, S)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)  # (B, H, T, S)


@MultiHead.mistake("the weights come along", "forward returns one tensor, the output, and no tuple.")
class _(Layer):
    def forward(self, x):
        q, k, v = self.heads(x)  # (B, H, T, d_k)
        weights = self.weigh(q, k)  # (B, H, T, S)
        return self.out(self.merge(weights @ v)), weights  # (B, T, D), (B, H, T, S)


def made(cls, D=6, n_heads=2):
    """A layer of the learner's, with fixed weights."""
    layer = cls(D, n_heads)
    load(layer, four_weights(torch.Generator().manual_seed(1), D))
    return layer


@MultiHead.contract("batch rows are independent")
def _(cls):
    contracts.batch_independence(made(cls), fixed(2, 3, 6))


@MultiHead.contract("one token passes value and out")
def _(cls):
    x, weights = fixed(2, 1, 6), four_weights(torch.Generator().manual_seed(1), 6)
    right = x @ weights["value.weight"].T @ weights["out.weight"].T  # (B, 1, D)
    contracts.same("one token passes value and out", made(cls)(x), right)


@MultiHead.contract("permuting the tokens permutes the outputs")
def _(cls):
    contracts.permutation_equivariance(made(cls), fixed(2, 3, 6))


# ── head_contributions ───────────────────────────────────────────────────────────────────────────

head_contributions = Exercise(
    "head_contributions", chapter=CHAPTER, kind="derive", level=2, minutes=15, points=3,
    page="02-many-heads.html#where-the-heads-meet",
    checks="the share of every head, which add up to the output, also when D is not H·d_k",
    question="which d_k columns of w_out does the slice of head h meet?",
    hints=(
        "Write out one number of merge_heads(read) @ w_out.T as a sum over H·d_k terms. Which of the terms "
        "belong to head h, and which axis of w_out do they run along?",
        "1. w_out.T is (H·d_k, D): its rows are the features of the heads, head after head;  2. cut these "
        "rows: (H, d_k, D);  3. read (B, H, T, d_k) times (H, d_k, D) pairs head with head: (B, H, T, D).",
        "blocks = w_out.T.reshape(…)  # (H, d_k, D)\nreturn read @ blocks  # (B, H, T, D)",
    ),
)  # fmt: skip


@head_contributions.cases
def _(g):
    eye = torch.eye(4)
    yield numbered(1, 2, 1, 2), eye
    yield randn(g, 2, 3, 5, 4), randn(g, 12, 12)
    yield randn(g, 2, 2, 3, 4), randn(g, 5, 8)
    yield randn(g, 1, 4, 2, 1), randn(g, 4, 4)
    yield randn(g, 2, 1, 3, 3), randn(g, 7, 3)


@head_contributions.reference
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(H, d_k, -1)  # (B, H, T, D)


@head_contributions.mistake(
    "the rows of w_out are cut",
    "nn.Linear stores (out, in): a head's slice is an input, so the *columns* of w_out belong to heads.",
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, d_k, -1)  # (B, H, T, D)


@head_contributions.mistake(
    "the columns taken as (d_k, H)", "head h owns neighbouring features h·d_k …, not every H-th one."
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.T.reshape(d_k, H, -1).transpose(0, 1)  # (B, H, T, D)


@head_contributions.mistake(
    "each block transposed once more", "the block of a head is (d_k, D): from its slice into all features."
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    blocks = w_out.T.reshape(H, -1, d_k).transpose(1, 2)  # (H, d_k, D)
    return read @ blocks  # (B, H, T, D)


@head_contributions.mistake(
    "an equal share for every head", "the output divided by H adds up, but says nothing about who said what."
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    out = read.transpose(1, 2).flatten(2) @ w_out.T  # (B, T, D)
    return (out / H)[:, None].repeat(1, H, 1, 1)  # (B, H, T, D)


@head_contributions.mistake("every head meets the block of head 0", "each head has d_k columns of its own.")
def _(read, w_out):
    return read @ w_out.T[: read.shape[-1]]  # (B, H, T, D)


@head_contributions.mistake(
    "the sum over the heads", "this is the layer's output; the shares are wanted before the sum."
)
def _(read, w_out):
    return read.transpose(1, 2).flatten(2) @ w_out.T  # (B, T, D)


@head_contributions.mistake(
    "the output without a head",
    "taking a head out shows what the *others* add; its share is the difference to the whole.",
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    shares = read @ w_out.T.reshape(H, d_k, -1)  # (B, H, T, D)
    return shares.sum(1, keepdim=True) - shares  # (B, H, T, D)


@head_contributions.mistake(
    "rows of w_out, head by head",
    "w_out[h·d_k : (h + 1)·d_k] are rows, what the layer puts out; what head h is read by are columns.",
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    rows = [w_out[h * d_k : (h + 1) * d_k] for h in range(H)]  # (d_k, H*d_k)
    return torch.stack([read[:, h] @ rows[h] for h in range(H)], dim=1)  # (B, H, T, H*d_k)


@head_contributions.mistake(
    "reshaped before it is transposed",
    "reshape follows memory, row by row of w_out: first transpose, so that the heads are cut from columns.",
)
def _(read, w_out):
    B, H, T, d_k = read.shape
    return read @ w_out.reshape(H, -1, d_k).mT  # (B, H, T, D)


@head_contributions.mistake("heads behind time", "the shares are right; the order asked for is (B, H, T, D).")
def _(read, w_out):
    B, H, T, d_k = read.shape
    return (read @ w_out.T.reshape(H, d_k, -1)).transpose(1, 2)  # (B, T, H, D)


@head_contributions.contract("the shares add up to the output")
def _(f):
    read, w_out = fixed(2, 3, 4, 2), fixed(5, 6)
    whole = read.transpose(1, 2).flatten(2) @ w_out.T  # (B, T, D)
    contracts.same("the shares add up to the output", f(read, w_out).sum(1), whole)


@head_contributions.contract("a head that reads zeros adds zeros")
def _(f):
    read, w_out = fixed(1, 3, 4, 2), fixed(6, 6)
    read[:, 1] = 0
    contracts.same("a head that reads zeros adds zeros", f(read, w_out)[:, 1], torch.zeros(1, 4, 6), "head 1")


# ── mha_flops ────────────────────────────────────────────────────────────────────────────────────

mha_flops = Exercise(
    "mha_flops", chapter=CHAPTER, kind="predict", level=1, minutes=5, points=2,
    page="02-many-heads.html#what-heads-cost",
    checks="the operations of a layer whose queries and keys come from two sequences, at unseen sizes",
    question="which of the four projections are made for T tokens, and which for S?",
    hints=(
        "Four projections and two products in the heads. Who makes queries and who makes keys? And what do "
        "H products of width D / H cost together?",
        "1. a projection of n tokens: 2 · n · D · D;  2. queries and outputs: T tokens each; keys and "
        "values: S tokens each;  3. scores and read-out of all heads: 2 · T · S · D each;  "
        "4. all of it B times.",
        "projections = 2 * B * D * D * (…)\nheads = 4 * B * T * S * D\nreturn projections + heads",
    ),
)  # fmt: skip


@mha_flops.cases
def _(g):
    yield 1, 1, 1, 1, 1
    yield 1, 2, 3, 4, 2
    yield 2, 64, 64, 96, 4
    yield 1, 1, 512, 64, 8
    for _ in range(3):
        B, T, S, d_k, H = torch.randint(2, 60, (5,), generator=g).tolist()
        yield B, T, S, d_k * H, H


@mha_flops.reference
def _(B, T, S, D, H):
    return 2 * B * D * D * (2 * T + 2 * S) + 4 * B * T * S * D


@mha_flops.mistake(
    "keys and values counted for the queries", "they are made from the S tokens of the other sequence."
)
def _(B, T, S, D, H):
    return 8 * B * T * D * D + 4 * B * T * S * D


@mha_flops.mistake(
    "H times the heads", "each head is only D / H wide: H of them cost as much as one of width D."
)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * T * S * D * H


@mha_flops.mistake("one head only", "d_k is the width of one head, and there are H of them.")
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * T * S * (D // H)


@mha_flops.mistake("multiply-adds counted once", "a multiplication and an addition are two operations.")
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + S) + 2 * B * T * S * D


@mha_flops.mistake("no output projection", "the merged heads are projected once more, by W_O, for T tokens.")
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + 2 * S) + 4 * B * T * S * D


@mha_flops.mistake("no projections", "the heads alone; queries, keys, values and outputs have to be made.")
def _(B, T, S, D, H):
    return 4 * B * T * S * D


@mha_flops.mistake(
    "the scores without the read-out", "weights times values is a second product of the same size."
)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 2 * B * T * S * D


@mha_flops.mistake("one sequence of the batch", "every sequence of the batch costs the same: times B.")
def _(B, T, S, D, H):
    return 4 * D * D * (T + S) + 4 * T * S * D


@mha_flops.mistake("as many keys as queries", "T queries meet S keys; T · T only in self-attention.")
def _(B, T, S, D, H):
    return 8 * B * T * D * D + 4 * B * T * T * D


@mha_flops.mistake("everything projected for S tokens", "queries and outputs are T tokens each, not S.")
def _(B, T, S, D, H):
    return 8 * B * S * D * D + 4 * B * T * S * D


@mha_flops.mistake(
    "the output projected for S tokens", "there is one output for each query: W_O meets T tokens."
)
def _(B, T, S, D, H):
    return 2 * B * D * D * (T + 3 * S) + 4 * B * T * S * D


@mha_flops.mistake(
    "scores of T by T", "the projections are right; each of the T queries meets S keys, not T."
)
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S) + 4 * B * T * T * D


@mha_flops.mistake("only the projections", "scores and read-out are two more products of T · S · D each.")
def _(B, T, S, D, H):
    return 4 * B * D * D * (T + S)


@mha_flops.contract("more heads of the same total width cost the same")
def _(f):
    one, four = (torch.tensor(float(f(2, 5, 7, 16, H))) for H in (1, 4))
    contracts.same("four heads cost what one costs", four, one)


@mha_flops.contract("twice the batch, twice the work")
def _(f):
    ratio = f(4, 5, 7, 16, 2) / max(f(2, 5, 7, 16, 2), 1)
    contracts.same("twice the batch, twice the work", torch.tensor(float(ratio)), torch.tensor(2.0))


# ── fused_qkv ────────────────────────────────────────────────────────────────────────────────────

fused_qkv = Exercise(
    "fused_qkv", chapter=CHAPTER, kind="debug", level=2, minutes=10, points=3,
    page="02-many-heads.html#the-same-layer-in-pytorch",
    checks="queries, keys and values of every head, from weights in the order of GPT-2",
    question="row r of the weight: is it a query, a key or a value, of which head, which channel?",
    hints=(
        "Give every row its number as its output: with x = 1 and weight rows 0, 1, 2 …, which numbers should "
        "the queries of head 0 be, and which are they?",
        "1. the 3·D outputs are in the order: kind (query, key, value), then head, then channel;  2. the "
        "reshape has to name the axes in this order, slow to fast;  3. then the axis of the kind goes to the "
        "front, and the head in front of time.",
        "qkv = qkv.reshape(B, T, …)  # (B, T, 3, H, d_k)\nq, k, v = qkv.permute(…)  # each (B, H, T, d_k)",
    ),
    parts=("q", "k", "v"),
)  # fmt: skip


@fused_qkv.cases
def _(g):
    yield torch.ones(1, 1, 1).expand(1, 1, 4) / 4, numbered(12, 1).repeat(1, 4), 2
    yield randn(g, 2, 5, 12), randn(g, 36, 12), 3
    yield randn(g, 1, 3, 4), randn(g, 12, 4), 1
    yield randn(g, 2, 2, 6), randn(g, 18, 6), 6


@fused_qkv.reference
def _(x, weight, n_heads):
    q, k, v = (tx.split_heads(x @ part.T, n_heads) for part in weight.chunk(3))
    return q, k, v


def qkv_as(x, weight, n_heads, shape, order):
    """The fused product, read as `shape` ("k" kind, "h" head, "c" channel) and permuted to `order`."""
    sizes = {"k": 3, "h": n_heads, "c": x.shape[-1] // n_heads}
    out = (x @ weight.T).reshape(*x.shape[:2], *(sizes[axis] for axis in shape))
    q, k, v = out.permute(order)  # (B, H, T, d_k)
    return q, k, v


@fused_qkv.mistake(
    "head by head",
    "the order of GPT-NeoX and BLOOM: q, k and v of head 0, then of head 1. GPT-2 has all queries first.",
)
def _(x, weight, n_heads):
    return qkv_as(x, weight, n_heads, "hkc", (3, 0, 2, 1, 4))


@fused_qkv.mistake(
    "channels before heads", "within the queries, head 0 has the first d_k rows, not every H-th."
)
def _(x, weight, n_heads):
    return qkv_as(x, weight, n_heads, "kch", (2, 0, 4, 1, 3))


@fused_qkv.mistake(
    "the kind as the fastest axis", "q, k and v do not take turns row by row: D rows of queries come first."
)
def _(x, weight, n_heads):
    return qkv_as(x, weight, n_heads, "hck", (4, 0, 2, 1, 3))


@fused_qkv.mistake("keys and values swapped", "the order is queries, keys, values.")
def _(x, weight, n_heads):
    q, k, v = (tx.split_heads(x @ part.T, n_heads) for part in weight.chunk(3))
    return q, v, k


@fused_qkv.mistake(
    "the heads not brought to the front", "attention wants (B, H, T, d_k): the head in front of time."
)
def _(x, weight, n_heads):
    return qkv_as(x, weight, n_heads, "khc", (2, 0, 1, 3, 4))


@fused_qkv.mistake(
    "the third apart, the heads by reshape alone",
    "queries, keys and values are right; splitting each needs a swap of axes, not only a new shape.",
)
def _(x, weight, n_heads):
    B, T, D = x.shape
    q, k, v = ((x @ part.T).reshape(B, n_heads, T, -1) for part in weight.chunk(3))
    return q, k, v


@fused_qkv.mistake("keys first", "the first D rows make the queries, the next D rows the keys.")
def _(x, weight, n_heads):
    k, q, v = (tx.split_heads(x @ part.T, n_heads) for part in weight.chunk(3))
    return q, k, v


@fused_qkv.contract("positions stay put")
def _(f):
    weight = fixed(18, 6)
    contracts.positions_stay_put(lambda x: f(x, weight, 3)[0], fixed(2, 4, 6))


@fused_qkv.contract("the first D rows are the queries")
def _(f):
    x, weight = fixed(1, 3, 6), fixed(18, 6)
    weight[6:] = 0
    q = f(x, weight, 3)[0]
    right = tx.split_heads(x @ weight[:6].T, 3)  # (B, H, T, d_k)
    contracts.same("the first D rows are the queries", q, right)


# ── prune_heads ──────────────────────────────────────────────────────────────────────────────────

prune_heads = Exercise(
    "prune_heads", chapter=CHAPTER, kind="write", level=2, minutes=15, points=3,
    page="02-many-heads.html#pruning-heads",
    checks="smaller weights for the heads that stay, in the order of keep, and an error for unknown heads",
    question="which rows of w_q belong to head h, and which part of w_o reads what they made?",
    hints=(
        "nn.Linear stores (out, in). A head's slice is what w_q, w_k and w_v put *out*, and what w_o takes "
        "*in*. Which axis is that, each time?",
        "1. ValueError if a head of keep is not in 0 … H - 1 or comes twice;  "
        "2. d_k = rows of w_q / n_heads;  3. the row numbers 0 … H·d_k - 1 as (H, d_k), "
        "of these the rows of keep, flat: (n·d_k,);  4. take these rows of "
        "three matrices, and these columns of w_o.",
        "rows = torch.arange(n_heads * d_k).view(n_heads, d_k)[…].flatten()  # (n·d_k,)\n"
        "return w_q[rows], w_k[rows], w_v[rows], …",
    ),
    parts=("w_q", "w_k", "w_v", "w_o"),
)  # fmt: skip


def heads_of(g, H, d_k, D):
    """w_q, w_k, w_v (H·d_k, D) and w_o (D, H·d_k)."""
    return (*(randn(g, H * d_k, D) for _ in range(3)), randn(g, D, H * d_k))


@prune_heads.cases
def _(g):
    small = numbered(4, 2)  # D is large enough for every row of the wrong axis to be there
    yield small, small + 10, small + 20, numbered(2, 4) + 30, 2, [0]
    yield *heads_of(g, 3, 2, 6), 3, [0, 2]
    yield *heads_of(g, 4, 2, 8), 4, [3, 1]
    yield *heads_of(g, 3, 2, 7), 3, [0, 1, 2]
    yield *heads_of(g, 2, 3, 4), 2, [0]
    yield raises(ValueError, *heads_of(g, 3, 2, 6), 3, [0, 3])
    yield raises(ValueError, *heads_of(g, 3, 2, 6), 3, [1, 1])
    yield raises(ValueError, *heads_of(g, 3, 2, 6), 3, [-1])


def taken(w_q, w_k, w_v, w_o, n_heads, keep, rows):
    """Prune by `rows(number of the rows as (H, d_k))`, after the check of keep."""
    if not set(keep) <= set(range(n_heads)) or len(set(keep)) < len(keep):
        raise ValueError(f"keep = {keep}: expected different heads of 0 … {n_heads - 1}")
    numbers = rows(torch.arange(w_q.shape[0]).view(n_heads, -1))
    return w_q[numbers], w_k[numbers], w_v[numbers], w_o[:, numbers]


@prune_heads.reference
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    return taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())


@prune_heads.mistake("the heads of keep are taken out", "keep names those that stay.")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    others = [h for h in range(n_heads) if h not in keep]
    return taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[others].flatten())


@prune_heads.mistake(
    "every H-th row", "head h has d_k neighbouring rows, h·d_k …, not the rows h, h + H, h + 2H …"
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    def rows(of):
        return of.flatten().view(-1, n_heads)[:, keep].T.flatten()

    return taken(w_q, w_k, w_v, w_o, n_heads, keep, rows)


@prune_heads.mistake("the rows keep, not its heads", "keep has numbers of heads, and each head has d_k rows.")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    return taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: torch.tensor(keep))


@prune_heads.mistake(
    "as many heads from the front", "the right number of heads, but not those that keep names."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    return taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[: len(keep)].flatten())


@prune_heads.mistake("sorted", "the heads come in the order of keep.")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    return taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[sorted(keep)].flatten())


@prune_heads.mistake(
    "rows of w_o as well", "w_o stores (out, in), and a head's slice is its *input*: columns, not rows."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    q, k, v, _ = taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())
    d_k = w_q.shape[0] // n_heads
    rows = torch.cat([torch.arange(h * d_k, (h + 1) * d_k) for h in keep])  # (n*d_k,)
    return q, k, v, w_o[rows]


@prune_heads.mistake("w_o as it was", "its columns for the heads that left have nobody to read from.")
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    q, k, v, _ = taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())
    return q, k, v, w_o


@prune_heads.mistake(
    "set to zero, not taken out", "the output is right, and the layer as large and as slow as before."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())
    stays = torch.zeros(n_heads, w_q.shape[0] // n_heads)  # (H, d_k)
    stays[keep] = 1
    stays = stays.flatten()  # (H*d_k,)
    return w_q * stays[:, None], w_k * stays[:, None], w_v * stays[:, None], w_o * stays


@prune_heads.mistake(
    "the rest made larger", "no factor H / n: the layer is to give the sum of the kept shares as they are."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    q, k, v, o = taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())
    return q, k, v, o * n_heads / len(keep)


@prune_heads.mistake(
    "unknown heads are not refused",
    "the right heads stay, but a head that is not there, or twice there, has to give a ValueError.",
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    numbers = torch.arange(w_q.shape[0]).view(n_heads, -1)[keep].flatten()  # (n*d_k,)
    return w_q[numbers], w_k[numbers], w_v[numbers], w_o[:, numbers]


@prune_heads.mistake(
    "w_o transposed", "the right numbers, but w_o stays as nn.Linear stores it, (out, in): (D, n·d_k)."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    q, k, v, o = taken(w_q, w_k, w_v, w_o, n_heads, keep, lambda of: of[keep].flatten())
    return q, k, v, o.T


@prune_heads.mistake(
    "heads counted from the end",
    "Python takes -1 for the last one; heads are 0 … H - 1, and -1 is more likely a slip of the caller.",
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    known = [h % n_heads if -n_heads <= h < 0 else h for h in keep]
    return taken(w_q, w_k, w_v, w_o, n_heads, known, lambda of: of[known].flatten())


@prune_heads.mistake(
    "a head may come twice", "its share would be added twice: the smaller layer is none of the kept heads."
)
def _(w_q, w_k, w_v, w_o, n_heads, keep):
    taken(w_q, w_k, w_v, w_o, n_heads, list(set(keep)), lambda of: of.flatten())
    numbers = torch.arange(w_q.shape[0]).view(n_heads, -1)[keep].flatten()  # (n*d_k,)
    return w_q[numbers], w_k[numbers], w_v[numbers], w_o[:, numbers]


def shares_of(x, w_q, w_k, w_v, w_o, n_heads):
    """What each head adds to the layer's output: (B, H, T, D)."""

    def split(w):
        return (x @ w.T).unflatten(-1, (n_heads, -1)).transpose(1, 2)  # (B, H, T, d_k)

    q, k, v = split(w_q), split(w_k), split(w_v)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (B, H, T, S)
    return weights @ v @ w_o.T.unflatten(0, (n_heads, -1))  # (B, H, T, D)


@prune_heads.contract("keeping all changes nothing")
def _(f):
    weights = heads_of(torch.Generator().manual_seed(1), 3, 2, 6)
    for name, before, after in zip(
        ("w_q", "w_k", "w_v", "w_o"), weights, f(*weights, 3, [0, 1, 2]), strict=True
    ):
        contracts.same("keeping all changes nothing", after, before, name)


@prune_heads.contract("the smaller layer gives the sum of the kept shares")
def _(f):
    x, weights = fixed(2, 4, 6), heads_of(torch.Generator().manual_seed(1), 3, 2, 6)
    right = shares_of(x, *weights, 3)[:, [0, 2]].sum(1)  # (B, T, D)
    contracts.same("the sum of the kept shares", shares_of(x, *f(*weights, 3, [0, 2]), 2).sum(1), right)


# ── head_importance ──────────────────────────────────────────────────────────────────────────────

head_importance = Exercise(
    "head_importance", chapter=CHAPTER, kind="measure", level=3, minutes=40, points=5,
    page="02-many-heads.html#pruning-heads",
    checks="the slope of the loss by each head's gate: absolute for each example, then the mean",
    question="a head helps one example and harms another to the same degree: is it unimportant?",
    hints=(
        "How does the loss of one example change when one head's share grows by a hundredth? Which order do "
        "absolute value and mean over examples have in the docstring?",
        "1. shares (B, H, T, D), whose sum over heads is the output;  2. gates of ones, (B, H, 1, 1): one "
        "for each example, so that slopes of different examples stay apart;  3. loss (B,): mean over T "
        "and D of ((gates · shares).sum(1) - target)²;  4. slopes of loss.sum() by the gates;  "
        "5. absolute value, then mean over B: (H,).",
        "gates = torch.ones(B, n_heads, 1, 1, requires_grad=True)\n"
        "error = (gates * shares).sum(1) - target  # (B, T, D)\nloss = …  # (B,)\n"
        "slope, = torch.autograd.grad(loss.sum(), gates)  # (B, H, 1, 1)\nreturn …  # (H,)",
    ),
)  # fmt: skip


def measured(g, B, T, D, scale=1.0):
    """x, target and four weights of width D."""
    weights = (randn(g, D, D) * D**-0.5 for _ in range(4))
    return randn(g, B, T, D), scale * randn(g, B, T, D), *weights


@head_importance.cases
def _(g):
    yield *measured(g, 1, 2, 4), 2
    yield *measured(g, 2, 5, 12), 3
    yield *measured(g, 4, 3, 6, scale=2.0), 6
    yield *measured(g, 3, 2, 6), 1


def slopes(x, target, w_q, w_k, w_v, w_o, n_heads):
    """Shares (B, H, T, D), error (B, T, D) and the terms of the slopes (B, H, T, D)."""
    shares = shares_of(x, w_q, w_k, w_v, w_o, n_heads)  # (B, H, T, D)
    error = shares.sum(1) - target  # (B, T, D)
    return shares, error, 2 * error[:, None] * shares


@head_importance.reference
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    terms = slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2]  # (B, H, T, D)
    return terms.mean((2, 3)).abs().mean(0)  # (H,)


@head_importance.mistake(
    "the mean before the absolute value",
    "slopes of opposite sign cancel: a head that helps one example and harms another looks unimportant.",
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean((0, 2, 3)).abs()  # (H,)


@head_importance.mistake(
    "no absolute value", "importance has no sign: a head that the loss wants less of matters too."
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean((0, 2, 3))  # (H,)


@head_importance.mistake(
    "the absolute value of every token",
    "the gate is one number for the whole example: its slope sums over tokens and features, then comes | |.",
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean(3).abs().mean((0, 2))  # (H,)


@head_importance.mistake(
    "the squared error summed", "the loss of an example is the *mean* over its T · D numbers."
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].sum((2, 3)).abs().mean(0)  # (H,)


@head_importance.mistake("without the factor 2", "the derivative of a square brings a 2 down.")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean((2, 3)).abs().mean(0) / 2  # (H,)


@head_importance.mistake(
    "summed over the batch", "the mean over the examples, so that a larger batch changes nothing."
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean((2, 3)).abs().sum(0)  # (H,)


@head_importance.mistake(
    "the head really removed",
    "this is the exact damage, and takes a pass for each head; asked for is the slope at ξ = 1.",
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    shares, error, _ = slopes(x, target, w_q, w_k, w_v, w_o, n_heads)
    without = ((error[:, None] - shares) ** 2).mean((2, 3))  # (B, H)
    return (without - (error**2).mean((1, 2))[:, None]).abs().mean(0)  # (H,)


@head_importance.mistake(
    "the size of the share", "a large share may be one that the loss does not feel; the target has to enter."
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[0].square().mean((0, 2, 3))  # (H,)


@head_importance.mistake("one importance an example", "the mean over the batch is missing: (H,) is wanted.")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    return slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2].mean((2, 3)).abs()  # (B, H)


@head_importance.mistake(
    "divided by B twice",
    "the slopes of the batch's mean loss have a 1 / B already: sum the losses before you take the slopes.",
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    terms = slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2]  # (B, H, T, D)
    return terms.mean((2, 3)).abs().mean(0) / len(x)  # (H,)


@head_importance.mistake("the slope squared", "asked for is its absolute value: squares favour the extremes.")
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    terms = slopes(x, target, w_q, w_k, w_v, w_o, n_heads)[2]  # (B, H, T, D)
    return terms.mean((2, 3)).square().mean(0)  # (H,)


@head_importance.mistake(
    "scaled by the width of the model", "a head sums over d_k features: the scale is 1/√d_k, not 1/√D."
)
def _(x, target, w_q, w_k, w_v, w_o, n_heads):
    terms = slopes(x, target, w_q * n_heads**-0.5, w_k, w_v, w_o, n_heads)[2]  # (B, H, T, D)
    return terms.mean((2, 3)).abs().mean(0)  # (H,)


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
    x, target, *weights = layer_and_target()
    alone = [f(x[b : b + 1], target[b : b + 1], *weights, 3) for b in range(2)]
    contracts.same("the mean of the examples", f(x, target, *weights, 3), sum(alone) / 2)


test_exercise = exercises_of(__name__)
