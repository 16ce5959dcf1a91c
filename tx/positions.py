"""Positions by three doors (chapter 4).

Attention sees a set; a position scheme tells it an order. There are three doors, and a scheme uses one:

    embed(positions)            added to the embeddings      Learned, Sinusoidal
    turn(q, k, table)           turns queries and keys       Rotary
    bias(q, k, table, project)  added to the scores          Alibi, T5Bias, Disentangled

`tables(positions, q_slots, k_slots)` computes once per forward pass what every layer then shares. `Positions`
itself is NoPE: no door at all. Tables are computed in fp32 at least, in float64 for a float64 model. No scheme
reads a number out of a tensor on an accelerator: reading waits for the device, and a compiler cannot follow it.
"""

import math

import torch
from torch import nn


class Positions(nn.Module):
    """No explicit positions (NoPE), and the interface of every scheme.

    numbered: whether it reads the number of a place, which a caller may give, and not distances in the row.
    """

    numbered = False

    def embed(self, positions, dtype=None):
        """Vectors to add to the embeddings: positions (B or 1, T) -> (B or 1, T, D), or None."""
        return None

    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        """What all layers share in one pass.

        positions (B or 1, T): where the new tokens stand in their texts. q_slots (1, T), k_slots
        (1, S): numbers of the tokens in the row, padding counted; schemes that add to the scores
        need only their differences. dtype: of what is computed here; learned tables keep theirs.
        """
        return None

    def turn(self, q, k, table):
        """Queries and keys with their positions in them: (B, H, T, d_k), (B, G, T, d_k) -> same."""
        return q, k

    def bias(self, q, k, table, project):
        """Numbers to add to the scores, broadcastable to (B, H, T, S), or None."""
        return None

    def same_tables(self, before, after):
        """Whether a place has the same tables in texts whose longest has `before` and `after` tokens.

        The numbers count no padding. Where the answer is no, keys that a cache holds of the shorter text
        belong to other tables than the longer text's queries.
        """
        return True


# ── first door: added to the embeddings ──────────────────────────────────────────────────────────


class Learned(Positions):
    """One learned vector a position (GPT-2, BERT); it ends where the table ends.

    offset: rows that are skipped, 2 for BART and pad + 1 for RoBERTa.
    """

    numbered = True

    def __init__(self, n_positions, d_model, offset=0):
        super().__init__()
        self.offset = offset
        self.table = nn.Embedding(n_positions + offset, d_model)

    def embed(self, positions, dtype=None):
        """positions (B or 1, T) -> (B or 1, T, D)."""
        what = "position {} is outside the learned table"
        return look_up(self.table, positions, what, -self.offset)  # (B or 1, T, D)


class Sinusoidal(Positions):
    """Fixed sines and cosines (Vaswani et al. 2017, section 3.5): nothing to learn, no end.

    The sines fill the first half of the features, the cosines the second, as in Marian; the paper
    alternates them, which is a permutation of the features.
    """

    numbered = True

    def __init__(self, d_model, base=10000.0):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"d_model = {d_model}: sines and cosines need an even number of features.")
        self.d_model, self.base = d_model, base

    def embed(self, positions, dtype=None):
        """positions (B or 1, T) -> (B or 1, T, D)."""
        half = self.d_model // 2
        steps = torch.arange(
            half, dtype=torch.float64, device=positions.device
        )  # (d_half,)
        speeds = self.base ** (-steps / half)  # (d_half,)
        at = positions[..., None]  # (B or 1, T, 1)
        angles = at * speeds  # (B or 1, T, d_half)
        both = [angles.sin(), angles.cos()]
        return torch.cat(both, dim=-1).to(dtype)  # (B or 1, T, D)


# ── second door: queries and keys are turned ─────────────────────────────────────────────────────


class Rotary(Positions):
    """RoPE: pairs of features turn by an angle proportional to position (Su et al. 2021).

    The score of a query and a key then depends on how far apart they stand, not on where. Feature i
    is paired with feature i + width/2 ("half" layout, the one of checkpoint files); the paper pairs
    neighbours, see `deinterleave`.
    """

    numbered = True

    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def tables(
        self, positions, q_slots, k_slots, dtype=torch.float32
    ):
        """cos and sin (B or 1, 1, T, d_half) for the queries and the new keys beside them."""
        speeds, size = rope_frequencies(self.rope, positions, dtype)  # (d_half,)  and a number
        angles = positions[:, None, :, None].to(dtype) * speeds  # (B or 1, 1, T, d_half)
        return size * angles.cos(), size * angles.sin()  # (B or 1, 1, T, d_half)

    def turn(self, q, k, table):
        return rotate(q, *table), rotate(k, *table)

    def same_tables(self, before, after):
        """LongRoPE changes its frequencies once, beyond the original length; dynamic NTK with every token."""
        original = self.rope.original
        if self.rope.scaling == "longrope":
            return (before > original) == (after > original)
        return self.rope.scaling != "dynamic" or max(before, original) == max(after, original)


def rotate(x, cos, sin):
    """Turn the first features of x (B, H, T, d_k) pair by pair; cos and sin (B or 1, 1, T, d_half).

    cos and sin are fp32 at least, so the products are, whatever the dtype of x.
    """
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    pair = a * cos - b * sin, b * cos + a * sin
    out = torch.cat(pair, -1).to(x.dtype)  # (B, H, T, 2*d_half)
    return out if x.shape[-1] == 2 * half else torch.cat(
        [out, x[..., 2 * half :]], -1
    )  # (B, H, T, d_k)


def deinterleave(w, n_heads):
    """Rows of a query or key weight from the neighbours' layout, which GGUF files have, to the half layout:
    (H·d_k, D) -> (H·d_k, D)."""
    return w.reshape(n_heads, -1, 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def rope_frequencies(rope, positions, dtype=torch.float32):
    """Angle per position of every pair (d_half,), and the magnitude of cos and sin.

    Sources: position interpolation (arXiv:2306.15595) is "linear"; NTK-aware scaling raises the
    base, "dynamic" as the text grows; YaRN (arXiv:2309.00071) treats fast and slow pairs apart;
    "llama3" as in the Llama 3.1 release; LongRoPE (arXiv:2402.13753) has one factor a pair. The length
    that "dynamic" and LongRoPE look at is the longest of the batch.
    """
    steps = torch.arange(0, rope.width, 2, dtype=dtype, device=positions.device) / rope.width  # (d_half,)
    frequencies = rope.base**-steps  # (d_half,)
    if rope.scaling == "default":
        return frequencies, 1.0
    if rope.scaling == "linear":
        return frequencies / rope.factor, 1.0
    if rope.scaling == "dynamic":
        beyond = (positions.max() + 1 - rope.original).clamp(min=0).to(dtype)  # ()
        grow = 1 + rope.factor * beyond / rope.original  # ()
        return (rope.base * grow ** (rope.width / (rope.width - 2))) ** -steps, 1.0
    if rope.scaling == "yarn":
        return _yarn(rope, frequencies)
    if rope.scaling == "llama3":
        return _llama3(rope, frequencies), 1.0
    both = torch.tensor([rope.short_factor, rope.long_factor], dtype=dtype)  # (2, d_half)
    short, long = both.to(positions.device, non_blocking=True)  # (d_half,), (d_half,)
    stretch = torch.where(positions.max() + 1 > rope.original, long, short)  # (d_half,)
    paper = math.sqrt(1 + math.log(rope.factor) / math.log(rope.original)) if rope.factor > 1 else 1.0
    return frequencies / stretch, rope.magnitude or paper


def _yarn(rope, frequencies):
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp in between."""

    def pair_that_turns(times):  # within the original length
        return rope.width * math.log(rope.original / (times * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.width - 1)
    pairs = torch.arange(len(frequencies), dtype=frequencies.dtype, device=frequencies.device)  # (d_half,)
    slow = ((pairs - low) / (high - low or 0.001)).clamp(0, 1)  # (d_half,)
    mixed = frequencies / rope.factor * slow + frequencies * (1 - slow)  # (d_half,)
    paper = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return mixed, rope.magnitude or paper


def _llama3(rope, frequencies):
    """Wavelengths that fit often into the original length stay, long ones are interpolated."""
    turns = rope.original * frequencies / (2 * math.pi)  # (d_half,)  within the original length
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)  # (d_half,)
    keep = keep.clamp(0, 1)  # (d_half,)
    return keep * frequencies + (1 - keep) * frequencies / rope.factor  # (d_half,)


# ── third door: added to the scores ──────────────────────────────────────────────────────────────


class Alibi(Positions):
    """ALiBi: a penalty that grows linearly with distance (Press et al. 2021), a slope a head.

    BLOOM and MPT write the slopes for a number of heads that is no power of two in two ways, which
    give the same slopes in the same order.
    """

    def __init__(self, n_heads):
        super().__init__()
        self.n_heads = n_heads

    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        """q_slots (1, T), k_slots (1, S) -> what is added to the scores, (1, H, T, S)."""
        distance = (k_slots[:, None, None, :] - q_slots[:, None, :, None]).to(dtype)  # (1, 1, T, S)
        slopes = alibi_slopes(self.n_heads).to(distance, non_blocking=True)  # (H,)
        return slopes.view(1, -1, 1, 1) * distance  # (1, H, T, S)

    def bias(self, q, k, table, project):
        return table


def alibi_slopes(n_heads):
    """Slopes (H,) in float64: 2^(-8/H), 2^(-16/H) … for H a power of two.

    For other H: those of the power below, then every second one of the power above.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    steps = [*range(2, 2 * power + 1, 2), *range(1, 2 * power, 2)]  # of half the usual size
    return torch.tensor([2.0 ** (-4 * s / power) for s in steps[:n_heads]], dtype=torch.float64)  # (H,)


class T5Bias(Positions):
    """T5: a learned number for each head and bucket of distances, shared by all layers of a stack.

    Half of the buckets are exact, the rest grow logarithmically up to `max_distance`; a
    bidirectional stack has its own half for keys to the right. Raffel et al. 2020, section 2.1.
    """

    def __init__(self, n_buckets, max_distance, n_heads, bidirectional):
        super().__init__()
        _check_buckets(n_buckets // 2 if bidirectional else n_buckets, max_distance)
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.table = nn.Embedding(n_buckets, n_heads)

    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        """q_slots (1, T), k_slots (1, S) -> what is added to the scores, (1, H, T, S)."""
        distance = k_slots[:, None, :] - q_slots[:, :, None]  # (1, T, S)  above 0: the key is to the right
        bucket = t5_bucket(distance, self.table.num_embeddings, self.max_distance, self.bidirectional)
        return self.table(bucket).permute(0, 3, 1, 2)  # (1, H, T, S)

    def bias(self, q, k, table, project):
        return table


def t5_bucket(distance, n_buckets, max_distance, bidirectional):
    """Number of the bucket of every distance k_pos - q_pos, same shape, integers."""
    first = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        first, distance = (distance > 0) * n_buckets, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = n_buckets // 2
    share = torch.log(distance.float() / exact) / math.log(max_distance / exact)
    far = exact + (share * (n_buckets - exact)).long()
    far = far.clamp(max=n_buckets - 1)
    return first + torch.where(distance < exact, distance, far)


class Disentangled(Positions):
    """DeBERTa: content looks at relative positions, and positions look at content (He et al. 2020).

    The scores get q·K_r(distance) and k·Q_r(-distance), where K_r and Q_r are projections of a table
    of relative positions. `project` maps that table (R, D) to a layer's (K_r, Q_r), each
    (1, H, R, d_k) or None where the family leaves a term out.

    span: distances beyond it share the last row; log buckets beyond span/2 for DeBERTa v2.
    """

    def __init__(self, span, d_model, n_buckets=0, max_distance=0, norm=None):
        super().__init__()
        if n_buckets:
            _check_buckets(n_buckets, max_distance - 1)
        self.span, self.n_buckets, self.max_distance = span, n_buckets, max_distance
        self.table = nn.Embedding(2 * span, d_model)
        self.norm = norm if norm is not None else nn.Identity()

    def tables(self, positions, q_slots, k_slots, dtype=torch.float32):
        """q_slots (1, T), k_slots (1, S) -> a table (R, D), and the row of it for each pair."""
        distance = q_slots[:, :, None] - k_slots[:, None, :]  # (1, T, S)
        if self.n_buckets:
            distance = log_bucket(distance, self.n_buckets, self.max_distance)  # (1, T, S)
        row = (distance + self.span).clamp(0, 2 * self.span - 1)[:, None]  # (1, 1, T, S)
        return self.norm(self.table.weight), row  # (R, D), (1, 1, T, S)  R = 2 * span

    def bias(self, q, k, table, project):
        """q (B, H, T, d_k), k (B, H, S, d_k) -> (B, H, T, S), or None if there is neither term."""
        rows, row = table
        key_rows, query_rows = project(rows)  # (1, H, R, d_k)  each, or None
        row = row.expand(q.shape[0], q.shape[1], -1, -1)  # (B, H, T, S)
        terms = []
        if key_rows is not None:
            terms.append(torch.gather(q @ key_rows.mT, -1, row))  # (B, H, T, S)
        if query_rows is not None:
            seen = torch.gather(k @ query_rows.mT, -1, row.mT)  # (B, H, S, T)
            terms.append(seen.mT)  # (B, H, T, S)
        return sum(terms) if terms else None


def log_bucket(distance, n_buckets, max_distance):
    """DeBERTa v2: distances up to n_buckets/2 as they are, farther ones on a log scale, with sign.

    Both logarithms are fp32, as in the reference: where they should give a whole number, `ceil` would
    make one more of what another rounding leaves above it.
    """
    middle = n_buckets // 2
    far = distance.abs().clamp(min=middle).float()
    longest = far.new_full((), (max_distance - 1) / middle)  # ()
    steps = torch.log(far / middle) / torch.log(longest) * (middle - 1)
    far = (steps.ceil().long() + middle) * distance.sign()
    return torch.where(distance.abs() <= middle, distance, far)


def build(config):
    """The scheme that a `Config` asks for, and that of its windowed layers: {"full": …, "window": …}."""
    c = config
    if c.positions == "rope":
        full = Rotary(c.rope)
        return nn.ModuleDict({"full": full, "window": Rotary(c.rope_window) if c.rope_window else full})
    scheme = {
        "none": lambda: Positions(),
        "learned": lambda: Learned(c.max_positions, c.d_embedding, c.position_offset),
        "sinusoidal": lambda: Sinusoidal(c.d_embedding),
        "alibi": lambda: Alibi(c.n_heads),
        "t5": lambda: T5Bias(c.buckets, c.bucket_distance, c.n_heads, not c.causal),
        "deberta": lambda: Disentangled(
            c.buckets or c.bucket_distance, c.d_model, c.buckets, c.bucket_distance,
            nn.LayerNorm(c.d_model, c.norm_eps) if c.norm_positions else None,
        ),
    }[c.positions]()  # fmt: skip
    return nn.ModuleDict({"full": scheme, "window": scheme})


def _check_buckets(n_buckets, max_distance):
    if n_buckets < 2 or max_distance <= n_buckets // 2:
        raise ValueError(
            f"{n_buckets} buckets to each side for distances up to {max_distance}: expected 2 at least, and a "
            "distance beyond the half of them, which stand for a distance each."
        )


def look_up(table, ids, what, first=0):
    """Rows of an embedding (n, D) for ids (B, T) that count from `first` -> (B, T, D).

    The CPU notices by itself an id that the table has not. Another device would break, so there the ids are
    looked at before, which waits for it; a single token, mostly the model's own choice, is not worth the wait.

    what: of an id outside the table, with {} for it, such as "token id {} is outside the vocabulary".

    Raises:
        ValueError: an id outside the table.
    """
    if not ids.is_cpu and ids.shape[-1] > 1 and readable(ids):
        _check_ids(table, ids, what, first)
    try:
        return table(ids - first if first else ids)  # (B, T, D)
    except IndexError:
        _check_ids(table, ids, what, first)
        raise


def readable(x):
    """Whether numbers of x may be looked at: not while a graph is made, and not where there are none."""
    return not (torch.compiler.is_compiling() or x.is_meta)


def _check_ids(table, ids, what, first):
    low, high, last = int(ids.min()), int(ids.max()), first + table.num_embeddings - 1
    if not first <= low <= high <= last:
        raise ValueError(f"{what.format(high if high > last else low)}: expected {first} … {last}.")
