"""Wrong and right answers to the exercises of chapter 4."""

import math

import torch
import torch.nn.functional as F

from tests.mutants import right, right_source, wrong, wrong_source
from tx.positions import Positions

# ── set_floor ────────────────────────────────────────────────────────────────────────────────────


@wrong("set_floor", "every position guesses among all tokens, mask or not")
def _(T, back, causal):
    return math.log(T - 1)


@wrong("set_floor", "position t guesses among t + 1 tokens, its own one included")
def _(T, back, causal):
    return sum(math.log(t + 1) for t in range(back, T)) / (T - back) if causal else math.log(T)


@wrong("set_floor", "the mean over all T positions")
def _(T, back, causal):
    n = [math.log(t) if causal else math.log(T - 1) for t in range(back, T)]
    return sum(n) / T


@wrong("set_floor", "one step back, whatever is asked")
def _(T, back, causal):
    return sum(math.log(t) for t in range(1, T)) / (T - 1) if causal else math.log(T - 1)


@wrong("set_floor", "the set shrinks by what lies between: ln(t - back + 1)")
def _(T, back, causal):
    return sum(math.log(t - back + 1) for t in range(back, T)) / (T - back) if causal else math.log(T - 1)


@wrong("set_floor", "without a mask ln(T - back)")
def _(T, back, causal):
    return sum(math.log(t) for t in range(back, T)) / (T - back) if causal else math.log(T - back)


@right("set_floor", "through log-gamma")
def _(T, back, causal):
    return (math.lgamma(T) - math.lgamma(back)) / (T - back) if causal else math.log(T - 1)


@right("set_floor", "through torch")
def _(T, back, causal):
    n = torch.arange(back, T, dtype=torch.float64) if causal else torch.tensor([T - 1.0])
    return n.log().mean().item()


# ── sinusoids ────────────────────────────────────────────────────────────────────────────────────


def _sines(positions, d_model, base=10000.0, power=1.0, order=(0, 1), wide=torch.float64):
    if d_model % 2:
        raise ValueError("odd")
    i = torch.arange(0, d_model, 2, dtype=wide) / d_model * power
    a = positions[..., None].to(wide) * base**-i
    both = [a.sin(), a.cos()]
    return torch.cat([both[j] for j in order], -1).float()


@wrong("sinusoids", "cosines before sines")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model, base, order=(1, 0))


@wrong("sinusoids", "the columns of the paper, sine and cosine by turns")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model, base).unflatten(-1, (2, -1)).mT.flatten(-2)


@wrong("sinusoids", "half the exponent")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model, base, power=0.5)


@wrong("sinusoids", "everything in float32")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model, base, wide=torch.float32)


@wrong("sinusoids", "sines twice")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model, base, order=(0, 0))


@wrong("sinusoids", "rows of numbers 0, 1, 2 …, whatever the positions say")
def _(positions, d_model, base=10000.0):
    return _sines(torch.arange(positions.shape[1]).expand(positions.shape), d_model, base)


@wrong("sinusoids", "an odd width is cut")
def _(positions, d_model, base=10000.0):
    return _sines(positions, d_model - d_model % 2, base)


@right("sinusoids", "with exp of a logarithm")
def _(positions, d_model, base=10000.0):
    if d_model % 2:
        raise ValueError("odd")
    speeds = torch.exp(-math.log(base) * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = torch.einsum("bt,i->bti", positions.double(), speeds)
    return torch.cat([torch.sin(angles), torch.cos(angles)], 2).float()


@right("sinusoids", "the cosine as a shifted sine")
def _(positions, d_model, base=10000.0):
    if d_model % 2:
        raise ValueError("odd")
    i = torch.arange(d_model // 2, dtype=torch.float64)
    angles = positions.unsqueeze(-1) / base ** (2 * i / d_model)
    return torch.sin(torch.cat([angles, angles + math.pi / 2], -1)).float()


# ── position_similarity ──────────────────────────────────────────────────────────────────────────


@wrong("position_similarity", "the mean of dot products")
def _(table):
    return torch.stack([(table @ table.mT).diagonal(s).mean() for s in range(len(table))])


@wrong("position_similarity", "around the end")
def _(table):
    return torch.stack([F.cosine_similarity(table, table.roll(s, 0), dim=-1).mean() for s in range(len(table))])


@wrong("position_similarity", "the first row against all")
def _(table):
    return F.cosine_similarity(table[:1], table, dim=-1)


@wrong("position_similarity", "entry 0 is always 1")
def _(table):
    unit = F.normalize(table, dim=-1)
    found = torch.stack([(unit @ unit.mT).diagonal(s).mean() for s in range(len(table))])
    return torch.cat([torch.ones(1), found[1:]])


@wrong("position_similarity", "the mean dot product, divided once by the mean squared length")
def _(table):
    found = torch.stack([(table @ table.mT).diagonal(s).mean() for s in range(len(table))])
    return found / found[0]


@wrong("position_similarity", "both sides of the diagonal summed")
def _(table):
    unit = F.normalize(table, dim=-1)
    c = unit @ unit.mT
    return torch.stack([(c.diagonal(s).sum() + c.diagonal(-s).sum()) / len(table) for s in range(len(table))])


@right("position_similarity", "two slices for each shift")
def _(table):
    n = len(table)
    return torch.stack([F.cosine_similarity(table[: n - s], table[s:], dim=-1).mean() for s in range(n)])


@right("position_similarity", "a loop over pairs")
def _(table):
    lengths = table.norm(dim=-1).clamp(min=1e-12)
    out = torch.zeros(len(table))
    for s in range(len(table)):
        pairs = [(table[i] @ table[i + s]) / (lengths[i] * lengths[i + s]) for i in range(len(table) - s)]
        out[s] = torch.stack(pairs).mean()
    return out


# ── turn_pairs ───────────────────────────────────────────────────────────────────────────────────


@wrong("turn_pairs", "neighbours turned together")
def _(x, cos, sin):
    half = cos.shape[-1]
    a, b = x[..., : 2 * half].unflatten(-1, (half, 2)).unbind(-1)
    out = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([out, x[..., 2 * half :]], -1)


@wrong("turn_pairs", "backwards")
def _(x, cos, sin):
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos + b * sin, b * cos - a * sin, x[..., 2 * half :]], -1)


@wrong("turn_pairs", "the whole head turned, halves of d_k")
def _(x, cos, sin):
    a, b = x.chunk(2, -1)
    pad = (0, a.shape[-1] - cos.shape[-1])
    cos, sin = F.pad(cos, pad, value=1.0), F.pad(sin, pad)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@wrong("turn_pairs", "the tables meet the heads and not the positions")
def _(x, cos, sin):
    half = cos.shape[-1]
    if cos.dim() == 2 and x.shape[1] == cos.shape[0]:
        cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


@wrong("turn_pairs", "overwrites x on the way")
def _(x, cos, sin):
    half = cos.shape[-1]
    a = x[..., :half].clone()
    x[..., :half] = a * cos - x[..., half : 2 * half] * sin
    x[..., half : 2 * half] = x[..., half : 2 * half] * cos + a * sin
    return x


@wrong("turn_pairs", "without a gradient for x")
def _(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x.detach()[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


wrong_source("turn_pairs", "calls the answer", """
    from tx.positions import rotate
    def turn_pairs(x, cos, sin):
        return rotate(x, cos, sin)
    """, expect="borrowed")  # fmt: skip


@right("turn_pairs", "complex numbers")
def _(x, cos, sin):
    half = cos.shape[-1]
    z = torch.complex(x[..., :half].contiguous(), x[..., half : 2 * half].contiguous())
    z = z * torch.complex(cos, sin)
    return torch.cat([z.real, z.imag, x[..., 2 * half :]], -1)


@right("turn_pairs", "rotate-half with doubled tables")
def _(x, cos, sin):
    half = cos.shape[-1]
    y, rest = x.split([2 * half, x.shape[-1] - 2 * half], -1)
    a, b = y.chunk(2, -1)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    return torch.cat([y * cos + torch.cat([-b, a], -1) * sin, rest], -1)


# ── halves_from_pairs ────────────────────────────────────────────────────────────────────────────


def _even(weight, n):
    if len(weight) % (2 * n):
        raise ValueError("no heads of an even width")


@wrong("halves_from_pairs", "from halves to pairs")
def _(weight, n):
    _even(weight, n)
    return weight.unflatten(0, (n, 2, -1)).transpose(1, 2).flatten(0, 2)


@wrong("halves_from_pairs", "even rows of the whole weight first")
def _(weight, n):
    _even(weight, n)
    return torch.cat([weight[0::2], weight[1::2]])


@wrong("halves_from_pairs", "nothing moves")
def _(weight, n):
    _even(weight, n)
    return weight.unflatten(0, (n, -1, 2)).reshape(weight.shape)


@wrong("halves_from_pairs", "columns in place of rows")
def _(weight, n):
    _even(weight, n)
    if weight.dim() == 1 or weight.shape[1] % 2:
        return weight.unflatten(0, (n, -1, 2)).transpose(1, 2).flatten(0, 2)
    return torch.cat([weight[:, 0::2], weight[:, 1::2]], 1)


@wrong("halves_from_pairs", "odd rows first")
def _(weight, n):
    _even(weight, n)
    heads = weight.unflatten(0, (n, -1))
    return torch.cat([heads[:, 1::2], heads[:, 0::2]], 1).flatten(0, 1)


@wrong("halves_from_pairs", "no refusal")
def _(weight, n):
    d_k = len(weight) // n
    rows = [h * d_k + i for h in range(n) for i in [*range(0, d_k, 2), *range(1, d_k, 2)]]
    return weight[rows]


@right("halves_from_pairs", "a list of rows")
def _(weight, n):
    _even(weight, n)
    d_k = len(weight) // n
    rows = [h * d_k + i for h in range(n) for i in [*range(0, d_k, 2), *range(1, d_k, 2)]]
    return weight[rows]


@right("halves_from_pairs", "slices of every head")
def _(weight, n):
    _even(weight, n)
    return torch.cat([torch.cat([head[0::2], head[1::2]]) for head in weight.chunk(n)])


# ── mixed_layouts ────────────────────────────────────────────────────────────────────────────────


def _turned(x, positions, base=10000.0, double=lambda z: torch.cat([z, z], -1), swap=None, power=2):
    d_k = x.shape[-1]
    angles = positions[:, None] * base ** (-power * torch.arange(d_k // 2) / d_k)
    a, b = x.chunk(2, -1)
    swapped = torch.cat([-b, a], -1) if swap is None else swap(a, b)
    return x * double(angles).cos() + swapped * double(angles).sin()


@wrong("mixed_layouts", "as it was given")
def _(x, positions, base=10000.0):
    return _turned(x, positions, base, lambda z: z.repeat_interleave(2, -1))


@wrong("mixed_layouts", "the tables are right now, and the turn goes backwards")
def _(x, positions, base=10000.0):
    return _turned(x, positions, base, swap=lambda a, b: torch.cat([b, -a], -1))


@wrong("mixed_layouts", "neighbours throughout")
def _(x, positions, base=10000.0):
    def pairs(a, b):
        y = torch.cat([a, b], -1).unflatten(-1, (-1, 2))
        return torch.stack([-y[..., 1], y[..., 0]], -1).flatten(-2)

    return _turned(x, positions, base, lambda z: z.repeat_interleave(2, -1), pairs)


@wrong("mixed_layouts", "half the exponent")
def _(x, positions, base=10000.0):
    return _turned(x, positions, base, power=1)


@wrong("mixed_layouts", "positions counted from 1")
def _(x, positions, base=10000.0):
    return _turned(x, positions + 1, base)


@wrong("mixed_layouts", "row numbers in place of positions")
def _(x, positions, base=10000.0):
    return _turned(x, torch.arange(len(positions)), base)


@right("mixed_layouts", "repeat in place of cat")
def _(x, positions, base=10000.0):
    return _turned(x, positions, base, lambda z: z.repeat(1, 2))


@right("mixed_layouts", "the two halves by themselves")
def _(x, positions, base=10000.0):
    d_k = x.shape[-1]
    angles = torch.outer(positions.float(), base ** (-torch.arange(0, d_k, 2) / d_k))
    a, b, c, s = *x.chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * c - b * s, a * s + b * c], -1)


# ── rounded_tables ───────────────────────────────────────────────────────────────────────────────


def _tables(x, positions, base, first=lambda z: z, second=lambda z: z, third=lambda z: z):
    speeds = first(base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1]))
    angles = third(second(positions.float())[:, None] * speeds)
    return angles.cos().to(x), angles.sin().to(x)


@wrong("rounded_tables", "as it was given")
def _(x, positions, base=10000.0):
    speeds = (base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])).to(x)
    angles = positions.to(x)[:, None] * speeds
    return angles.cos().to(x), angles.sin().to(x)


@wrong("rounded_tables", "positions in fp32, speeds of a converted model")
def _(x, positions, base=10000.0):
    return _tables(x, positions, base, first=lambda z: z.to(x).float())


@wrong("rounded_tables", "speeds in fp32, positions of a converted model")
def _(x, positions, base=10000.0):
    return _tables(x, positions, base, second=lambda z: z.to(x).float())


@wrong("rounded_tables", "angles rounded before the cosine")
def _(x, positions, base=10000.0):
    return _tables(x, positions, base, third=lambda z: z.to(x).float())


@wrong("rounded_tables", "positions beyond 4,096 are cut")
def _(x, positions, base=10000.0):
    return _tables(x, positions.clamp(max=4096), base)


@wrong("rounded_tables", "one table, cosines and sines side by side")
def _(x, positions, base=10000.0):
    return torch.cat(_tables(x, positions, base), -1)


@right("rounded_tables", "in float64")
def _(x, positions, base=10000.0):
    i = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
    angles = torch.outer(positions.double(), base ** (-i / x.shape[-1]))
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


@right("rounded_tables", "whole turns taken out first, in float64")
def _(x, positions, base=10000.0):
    i = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
    angles = torch.outer(positions.double(), base ** (-i / x.shape[-1])) % (2 * math.pi)
    return angles.float().cos().to(x.dtype), angles.float().sin().to(x.dtype)


# ── ntk_base ─────────────────────────────────────────────────────────────────────────────────────


def _base(exponent):
    def answer(base, width, factor, pair):
        if not pair:
            raise ValueError("pair 0")
        return base * factor ** exponent(width, pair)

    return answer


wrong("ntk_base", "times the factor")(_base(lambda w, i: 1))
wrong("ntk_base", "the slowest pair, whatever is asked")(_base(lambda w, i: w / (w - 2)))
wrong("ntk_base", "the exponent upside down")(_base(lambda w, i: 2 * i / w))
wrong("ntk_base", "the exponent without its 2")(_base(lambda w, i: w / i))
wrong("ntk_base", "a base that speeds up")(_base(lambda w, i: -w / (2 * i)))
wrong("ntk_base", "the pair after it")(_base(lambda w, i: w / (2 * i + 2)))


@wrong("ntk_base", "infinite for pair 0")
def _(base, width, factor, pair):
    return base * factor ** (width / (2 * pair)) if pair else math.inf


@right("ntk_base", "through logarithms")
def _(base, width, factor, pair):
    if pair == 0:
        raise ValueError("pair 0")
    return math.exp(math.log(base) + math.log(factor) * width / 2 / pair)


@right("ntk_base", "from the new speed")
def _(base, width, factor, pair):
    if pair < 1:
        raise ValueError("pair 0")
    return (base ** (-2 * pair / width) / factor) ** (-width / (2 * pair))


# ── slopes ───────────────────────────────────────────────────────────────────────────────────────


def _heads(n):
    if n < 1:
        raise ValueError("heads")
    return 2 ** int(math.log2(n) + 1e-9)


@wrong("slopes", "one formula for all")
def _(n):
    _heads(n)
    return torch.tensor([2 ** (-8 * h / n) for h in range(1, n + 1)])


@wrong("slopes", "from h = 0")
def _(n):
    P = _heads(n)
    first, more = [2 ** (-8 * h / P) for h in range(P)], [2 ** (-4 * h / P) for h in range(1, 2 * P, 2)]
    return torch.tensor(first + more[: n - P])


@wrong("slopes", "sorted from steep to flat")
def _(n):
    P = _heads(n)
    all_of = [2 ** (-8 * h / P) for h in range(1, P + 1)] + [2 ** (-4 * h / P) for h in range(1, 2 * P, 2)]
    return torch.tensor(all_of[:n]).sort(descending=True).values


@wrong("slopes", "the first of twice as many, without leaving any out")
def _(n):
    P = _heads(n)
    first, more = [2 ** (-8 * h / P) for h in range(1, P + 1)], [2 ** (-4 * h / P) for h in range(1, 2 * P)]
    return torch.tensor(first + more[: n - P])


@wrong("slopes", "only powers of two")
def _(n):
    P = _heads(n)
    if n != P:
        raise ValueError("a power of two")
    return torch.tensor([2 ** (-8 * h / n) for h in range(1, n + 1)])


@wrong("slopes", "negative, ready to be added")
def _(n):
    P = _heads(n)
    all_of = [2 ** (-8 * h / P) for h in range(1, P + 1)] + [2 ** (-4 * h / P) for h in range(1, 2 * P, 2)]
    return -torch.tensor(all_of[:n])


@right("slopes", "recursive, as it was published")
def _(n):
    def get(n):
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        P = 2 ** math.floor(math.log2(n))
        return get(P) + get(2 * P)[0::2][: n - P]

    if n < 1:
        raise ValueError("heads")
    return torch.tensor(get(n))


@right("slopes", "half steps")
def _(n):
    P = _heads(n)
    steps = torch.tensor([*range(2, 2 * P + 1, 2), *range(1, 2 * P, 2)][:n])
    return 2.0 ** (-4 * steps.double() / P)


# ── yarn_speeds ──────────────────────────────────────────────────────────────────────────────────


def _yarn(base, width, factor, original, fast=32.0, slow=1.0, ends=(math.floor, math.ceil), mix=torch.lerp):
    i = torch.arange(width // 2, dtype=torch.float64)
    speeds = base ** (-2 * i / width)
    low, high = (width * math.log(original / (2 * math.pi * t)) / (2 * math.log(base)) for t in (fast, slow))
    low, high = max(ends[0](low), 0), min(ends[1](high), width - 1)
    return mix(speeds, speeds / factor, ((i - low) / (high - low or 0.001)).clamp(0, 1))


@wrong("yarn_speeds", "every speed divided")
def _(base, width, factor, original, fast=32.0, slow=1.0):
    return base ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width) / factor


@wrong("yarn_speeds", "ends that are no whole numbers")
def _(*args):
    return _yarn(*args, ends=(float, float))


@wrong("yarn_speeds", "wavelengths mixed")
def _(*args):
    return _yarn(*args, mix=lambda a, b, w: 1 / torch.lerp(1 / a, 1 / b, w))


@wrong("yarn_speeds", "the wrong way round")
def _(*args):
    return _yarn(*args, mix=lambda a, b, w: torch.lerp(b, a, w))


@wrong("yarn_speeds", "a step in place of the ramp")
def _(*args):
    return _yarn(*args, mix=lambda a, b, w: torch.where(w > 0.5, b, a))


@wrong("yarn_speeds", "the ramp of the paper, over the number of turns")
def _(base, width, factor, original, fast=32.0, slow=1.0):
    speeds = base ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    keep = ((original * speeds / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)
    return speeds * keep + speeds / factor * (1 - keep)


@right("yarn_speeds", "with lerp")
def _(*args):
    return _yarn(*args)


@right("yarn_speeds", "the kept share first")
def _(*args):
    return _yarn(*args, mix=lambda a, b, w: (1 - w) * a + w * b)


# ── PositionScheme ───────────────────────────────────────────────────────────────────────────────


class _Mine(Positions):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.d_model, self.n_heads = d_model, n_heads


@wrong("PositionScheme", "a bias that grows with the length of the text")
class _(_Mine):
    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        return (k_slots[:, None, None] - q_slots[:, None, :, None]).float() / q_slots.shape[-1]

    def bias(self, q, k, table, project):
        return table


@wrong("PositionScheme", "positions counted from the end of the text")
class _(_Mine):
    def embed(self, positions, dtype=None):
        return (positions.max() - positions)[..., None].sin().expand(-1, -1, self.d_model)


@wrong("PositionScheme", "a door that stays shut: tables without anything that uses them")
class _(_Mine):
    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        return (k_slots[:, None, None] - q_slots[:, None, :, None]).float()


@wrong("PositionScheme", "one vector for all positions")
class _(_Mine):
    def embed(self, positions, dtype=None):
        return torch.ones(1, positions.shape[-1], self.d_model)


@wrong("PositionScheme", "the query's own position only")
class _(_Mine):
    def bias(self, q, k, table, project):
        return torch.arange(q.shape[-2]).float()[:, None]


@wrong("PositionScheme", "the logarithm of a distance of 0")
class _(_Mine):
    def bias(self, q, k, table, project):
        away = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
        return away.abs().float().log() * 0


@wrong("PositionScheme", "a table that ends at 100")
class _(_Mine):
    def embed(self, positions, dtype=None):
        return torch.linspace(-1, 1, 100 * self.d_model).mul(99).sin().view(100, -1)[positions]


@right("PositionScheme", "through door two: the first pair of features is turned")
class _(_Mine):
    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        return positions[:, None, :, None].float() * 0.7

    def turn(self, q, k, table):
        def turned(x):
            a, b, rest = x[..., :1], x[..., 1:2], x[..., 2:]
            return torch.cat([a * table.cos() - b * table.sin(), b * table.cos() + a * table.sin(), rest], -1)

        return turned(q), turned(k)


right_source("PositionScheme", "through door one, a learned table", """
    from tx.positions import Positions
    class PositionScheme(Positions):
        def __init__(self, d_model, n_heads):
            super().__init__()
            self.table = torch.nn.Embedding(512, d_model)
        def embed(self, positions, dtype=None):
            return self.table(positions)
    """)  # fmt: skip
