"""Positions: what every scheme promises, against formulas and known values."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.t5.modeling_t5 import T5Attention

from tx import positions
from tx.config import Config, Rope
from tx.positions import Alibi, Disentangled, Learned, Rotary, Sinusoidal, T5Bias

B, H, G, T, D_K = 2, 3, 1, 5, 8


def close(got, expected, tolerance=1e-5):
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), atol=tolerance, rtol=0)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turned(rope, x, at):
    """x (B, H, T, d_k) turned to positions `at` (B or 1, T)."""
    scheme = Rotary(rope)
    return scheme.turn(x, x[:, :1], scheme.tables(at, None, None))


# ── the second door ──────────────────────────────────────────────────────────────────────────────


def test_rope_scores_depend_on_distance_alone_and_norms_stay():
    q, k = randn(B, H, T, D_K), randn(B, H, T, D_K, seed=1)
    rope, at = Rope(10000.0, D_K), torch.arange(T)[None]
    rows = at + torch.tensor([[0], [3]])  # the texts of a batch need not start together
    scores = [turned(rope, q, n + rows)[0] @ turned(rope, k, n + rows)[0].mT for n in (0, 7, 100)]
    close(scores[0], turned(rope, q, at)[0] @ turned(rope, k, at)[0].mT)
    close(scores[1], scores[0])
    close(scores[2], scores[0], 5e-5)
    close(turned(rope, q, at + 9)[0].norm(dim=-1), q.norm(dim=-1))
    close(turned(rope, q, at)[0][:, :, 0], q[:, :, 0], 0)
    assert (turned(rope, q, at)[0] - q)[:, :, 1:].abs().max() > 0.1


def test_rope_turns_pairs_like_complex_numbers():
    x = torch.arange(1.0, 9.0)
    expected = torch.complex(x[:4].double(), x[4:].double()) * torch.exp(
        3j * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8))  # fmt: skip
    got = turned(Rope(10000.0, 8), x.view(1, 1, 1, 8), torch.tensor([[3]]))[0].flatten()
    close(got, torch.cat([expected.real, expected.imag]))
    close(got[:2], [-1.695592, 0.137552])


def test_partial_rope_turns_the_first_features_by_their_own_width():
    x = torch.arange(1.0, 17.0)
    got = turned(Rope(10000.0, 4), x.expand(B, H, 1, 16), torch.full((B, 1), 5))[0]
    a, b = 5.0, 0.05  # angles: the frequencies are 1 and 1/100
    sin, cos = math.sin, math.cos
    head = [cos(a) - 3 * sin(a), 2 * cos(b) - 4 * sin(b), 3 * cos(a) + sin(a), 4 * cos(b) + 2 * sin(b)]
    close(got, torch.cat([torch.tensor(head), x[4:]]).expand(B, H, 1, 16))


def test_rope_layouts_give_the_same_scores():
    D, d_k = 16, 8
    h, wq, wk = randn(1, T, D), randn(2 * d_k, D, seed=1), randn(2 * d_k, D, seed=2)
    angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d_k, 2) / d_k)

    def neighbours(w):
        z = torch.view_as_complex((h @ w.T).view(T, 2, d_k // 2, 2)) * torch.exp(1j * angle)[:, None]
        return torch.view_as_real(z).flatten(2).transpose(0, 1)

    def half(w):
        x = (h @ positions.deinterleave(w, 2).T).view(1, T, 2, d_k).transpose(1, 2)
        return turned(Rope(10000.0, d_k), x, torch.arange(T)[None])[0][0]

    close(half(wq) @ half(wk).mT, neighbours(wq) @ neighbours(wk).mT, 2e-4)
    rows = torch.arange(16.0)[:, None]
    close(positions.deinterleave(rows, 2)[:8, 0], [0, 2, 4, 6, 1, 3, 5, 7], 0)


def frequencies(length=1, width=16, base=10000.0, **scaling):
    return positions.rope_frequencies(Rope(base, width, **scaling), torch.arange(length)[None])


DYNAMIC = dict(scaling="dynamic", factor=3.0, original=16)
LONG = dict(scaling="longrope", factor=4.0, original=16, short_factor=(1.0, 1.1, 1.2, 1.3),
            long_factor=(1.5, 2.0, 3.0, 4.0))  # fmt: skip
PLAIN = 10000.0 ** (-torch.arange(0, 16, 2) / 16)


def test_linear_scaling_squeezes_positions():
    got, magnitude = frequencies(scaling="linear", factor=4.0)
    close(got, PLAIN / 4)
    assert magnitude == 1


def test_ntk_scaling_starts_beyond_the_original_length():
    options = {"scaling": "dynamic", "factor": 2.0, "original": 32}
    close(frequencies(32, **options)[0], PLAIN)
    grown = frequencies(64, **options)[0]  # by 2 · 64/32 - 1 = 3
    close(grown[0], 1.0)
    close(grown[-1] * 3, PLAIN[-1], 1e-7)
    assert (grown[1:] < PLAIN[1:]).all()


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    options = {"scaling": "yarn", "factor": 8.0, "original": 1000}
    got, magnitude = frequencies(**options)
    turns = 1000 * PLAIN / (2 * math.pi)
    share = got / PLAIN
    close(share[turns > 32], torch.ones(int((turns > 32).sum())))
    close(share[-2:], [1 / 8, 1 / 8])
    assert (share.diff() <= 1e-6).all() and ((share > 0.13) & (share < 0.99)).any()
    assert magnitude == pytest.approx(0.1 * math.log(8) + 1)
    assert frequencies(**options, magnitude=1.5)[1] == 1.5
    assert not torch.equal(frequencies(**options, truncate=False)[0], got)


@pytest.mark.parametrize("original", [4, 30, 1000, 10**7])  # no pair turns once … all turn 32 times
@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_yarn_equals_the_reference(factor, original):
    parameters = dict(rope_type="yarn", rope_theta=100.0, factor=factor, original_max_position_embeddings=original)
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, rope_parameters=parameters)
    expected, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    found = frequencies(base=100.0, scaling="yarn", factor=factor, original=original)
    close(found[0], expected, 1e-6)
    assert found[1] == magnitude and (magnitude == 1.0) == (factor <= 1)


def test_llama3_scaling_by_wavelength():
    got, magnitude = frequencies(width=128, base=500000.0, scaling="llama3", factor=8.0, original=8192)
    plain = 500000.0 ** (-torch.arange(0, 128, 2) / 128)
    wave, share = 2 * math.pi / plain, got / plain
    close(share[wave < 8192 / 4], torch.ones(int((wave < 8192 / 4).sum())))
    close(share[wave > 8192], torch.full((int((wave > 8192).sum()),), 1 / 8))
    between = (wave > 8192 / 4) & (wave < 8192)
    smooth = (8192 / wave[between] - 1) / 3
    close(share[between], smooth + (1 - smooth) / 8)
    assert magnitude == 1 and between.any()


def test_longrope_has_a_factor_for_each_pair():
    short, long = tuple(1.0 + i for i in range(8)), tuple(2.0 + i for i in range(8))
    options = {"scaling": "longrope", "factor": 4.0, "original": 16, "short_factor": short,
               "long_factor": long}  # fmt: skip
    close(frequencies(16, **options)[0], PLAIN / torch.tensor(short))
    close(frequencies(17, **options)[0], PLAIN / torch.tensor(long))
    assert frequencies(**options)[1] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


def test_frequencies_follow_the_longest_text_of_the_batch():
    for options in DYNAMIC, LONG:
        rope = Rope(10000.0, 8, **options)
        short, far = torch.arange(3)[None], torch.arange(18, 21)[None]
        both, _ = positions.rope_frequencies(rope, torch.cat([short, far]))
        assert torch.equal(both, positions.rope_frequencies(rope, far)[0])
        assert not torch.equal(both, positions.rope_frequencies(rope, short)[0])


def test_a_scheme_says_when_its_tables_change():
    """Against the tables themselves: those of the first places, in texts of all lengths."""
    scalings = DYNAMIC, LONG, {}, dict(scaling="linear", factor=2.0)
    schemes = [Rotary(Rope(10000.0, 8, **options)) for options in scalings]
    changes = 0
    for scheme in schemes:
        first = {n: scheme.tables(torch.arange(n)[None], None, None)[0][:, :, :2] for n in range(2, 24)}
        for before in first:
            for after in first:
                same = torch.equal(first[before], first[after])
                assert scheme.same_tables(before, after) == same, (scheme.rope, before, after)
                changes += not same
    assert changes > 100 and positions.Positions().same_tables(1, 10**6) and Alibi(H).same_tables(1, 10**6)


# ── the third door ───────────────────────────────────────────────────────────────────────────────


def slots(first=0, new=T):
    """Queries and keys of `new` tokens after `first` others: (1, T), (1, S)."""
    return torch.arange(first, first + new)[None], torch.arange(first + new)[None]


def test_alibi_slopes():
    close(positions.alibi_slopes(8), [2.0**-i for i in range(1, 9)], 0)
    close(positions.alibi_slopes(6), [2.0**-i for i in (2, 4, 6, 8, 1, 3)], 0)
    close(positions.alibi_slopes(1), [2.0**-8], 0)


def test_alibi_falls_with_distance():
    scheme = Alibi(H)  # slopes 1/16, 1/256, 1/4
    got = scheme.bias(None, None, scheme.tables(None, *slots(first=2)), None)
    assert got.shape == (1, H, T, T + 2)
    distance = torch.tensor([[k - q for k in range(7)] for q in range(2, 7)])
    close(got[0], torch.tensor([1 / 16, 1 / 256, 1 / 4])[:, None, None] * distance)


FAR = [-1000, -500, -128, -127, -64, -20, -16, -15, -8, -7, -1, 0, 1, 7, 8, 15, 16, 20, 64, 127, 128, 500, 1000]
BOTH = [15, 15, 15, 15, 14, 10, 10, 9, 8, 7, 1, 0, 17, 23, 24, 25, 26, 26, 30, 31, 31, 31, 31]
PAST = [31, 31, 31, 31, 26, 17, 16, 15, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("bidirectional", "expected"), [(True, BOTH), (False, PAST)])
def test_t5_buckets(bidirectional, expected):
    assert positions.t5_bucket(torch.tensor(FAR), 32, 128, bidirectional).tolist() == expected


SIZES = [*range(2, 40), 64, 128, 255, 256, 512]
LENGTHS = [*range(3, 34), 64, 100, 128, 129, 300, 512, 1000, 1024, 2048]


def test_buckets_equal_the_reference_at_every_edge():
    """Logarithms that should be whole numbers are rounded as the reference does it."""
    distance, n_settings = torch.arange(-2050, 2051), 0
    for n in SIZES:
        for longest in LENGTHS:
            if longest - 1 > n // 2:
                expected = make_log_bucket_position(distance, n, longest)
                assert torch.equal(positions.log_bucket(distance, n, longest), expected.long()), (n, longest)
                n_settings += 1
            for both_sides in (False, True) if n >= 4 and longest > n // 2 else ():
                expected = T5Attention._relative_position_bucket(distance, both_sides, n, longest)
                assert torch.equal(positions.t5_bucket(distance, n, longest, both_sides), expected), (n, longest)
                n_settings += 1
    assert n_settings > 3000
    assert positions.log_bucket(torch.tensor(-8), 6, 9) == -5


def test_t5_looks_its_bias_up():
    scheme = T5Bias(32, 128, H, bidirectional=True)
    got = scheme.bias(None, None, scheme.tables(None, *slots(first=2)), None)
    assert got.shape == (1, H, T, T + 2)
    close(got[0, :, 0, 3], scheme.table.weight[17], 0)  # the key one to the right
    close(got[0, :, 4, 5], scheme.table.weight[1], 0)  # the key one to the left
    close(got[0, :, 1:, 1:], got[0, :, :-1, :-1], 0)  # distance is all that counts


@pytest.mark.parametrize("n_buckets", [0, 3])
@torch.no_grad()
def test_disentangled_reads_both_ways(n_buckets):
    span = n_buckets or 4
    scheme = Disentangled(span, 7, n_buckets, 6 if n_buckets else 0)
    q, k = randn(B, H, 3, D_K), randn(B, H, T, D_K, seed=1)
    key_rows, query_rows = randn(1, H, 2 * span, D_K, seed=2), randn(1, H, 2 * span, D_K, seed=3)
    table = scheme.tables(None, *slots(first=2, new=3))
    got = scheme.bias(q, k, table, lambda rows: (key_rows, query_rows))
    for t in range(3):
        for s in range(T):
            distance = torch.tensor(t + 2 - s)
            far = positions.log_bucket(distance, n_buckets, 6) if n_buckets else distance
            row = min(max(int(far) + span, 0), 2 * span - 1)
            expected = (q[:, :, t] * key_rows[:, :, row] + k[:, :, s] * query_rows[:, :, row]).sum(-1)
            close(got[:, :, t, s], expected)
    one = scheme.bias(q, k, table, lambda rows: (None, query_rows))
    close(one + scheme.bias(q, k, table, lambda rows: (key_rows, None)), got)
    assert scheme.bias(q, k, table, lambda rows: (None, None)) is None


def test_log_buckets():
    got = positions.log_bucket(torch.tensor([0, 1, 4, 5, 6, 9, 31, -5, -31]), 8, 32)
    assert got.tolist() == [0, 1, 4, 5, 5, 6, 7, -5, -7]


# ── the first door ───────────────────────────────────────────────────────────────────────────────


def test_learned_positions_skip_their_offset_and_end():
    scheme = Learned(6, D_K, offset=2)
    close(scheme.embed(torch.arange(T)[None])[0], scheme.table.weight[2:7], 0)
    assert scheme.embed(torch.tensor([[0, 1, 2], [5, 4, 3]])).shape == (2, 3, D_K)
    with pytest.raises(ValueError, match="position 6 is outside the learned table: expected -2 … 5"):
        scheme.embed(torch.tensor([[6]]))


def test_sinusoids():
    scheme = Sinusoidal(D_K)
    got = scheme.embed(torch.arange(30)[None], torch.float32)[0]
    close(got[0], [0.0] * 4 + [1.0] * 4, 0)
    close(got[3, :2], [math.sin(3), math.sin(0.3)])
    close(got[3, 4:6], [math.cos(3), math.cos(0.3)])
    dots = got @ got.T
    close(dots[1:, 1:], dots[:-1, :-1])  # a dot product depends on distance alone
    far = 1_000_003  # where fp32 knows an angle to 0.03 only
    wanted = [math.sin(far * 10000.0 ** (-i / 4)) for i in range(4)]
    close(scheme.embed(torch.tensor([[far]]), torch.float32)[0, 0, :4], wanted, 1e-6)


# ── every door, for compilers and accelerators ───────────────────────────────────────────────────


class Doors(torch.nn.Module):
    """All that a pass asks of a scheme, from positions (B or 1, T) alone."""

    def __init__(self, scheme):
        super().__init__()
        self.scheme = scheme

    def forward(self, at):
        slots = torch.arange(at.shape[1], device=at.device)[None]  # (1, T)
        x = torch.ones(at.shape[0], H, at.shape[1], D_K, device=at.device)  # (B, H, T, d_k)
        embedded, tables = self.scheme.embed(at, torch.float32), self.scheme.tables(at, slots, slots)
        q, k = self.scheme.turn(x, x, tables)
        bias = self.scheme.bias(q, k, tables, lambda rows: (x[:1].repeat(1, 1, 9, 1)[:, :, :8],) * 2)
        return tuple(y for y in (embedded, q, bias) if y is not None)


SCALED = {
    "default": {}, "linear": dict(scaling="linear", factor=2.0), "dynamic": DYNAMIC, "longrope": LONG,
    "yarn": dict(scaling="yarn", factor=2.0, original=16),
    "llama3": dict(scaling="llama3", factor=8.0, original=16),
}  # fmt: skip
ROPES = {name: Rope(10000.0, D_K, **options) for name, options in SCALED.items()}
SCHEMES = {name: lambda rope=rope: Rotary(rope) for name, rope in ROPES.items()} | {
    "none": positions.Positions, "learned": lambda: Learned(30, D_K), "sinusoidal": lambda: Sinusoidal(D_K),
    "alibi": lambda: Alibi(H), "t5": lambda: T5Bias(8, 16, H, True), "deberta": lambda: Disentangled(4, D_K, 4, 8),
}  # fmt: skip


class Waits(TorchDispatchMode):
    """Counts the numbers that are read out of tensors: each waits for an accelerator."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.n += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_no_scheme_reads_a_number_out_of_a_tensor(name):
    torch.manual_seed(0)
    doors, at = Doors(SCHEMES[name]()), torch.arange(7)[None].repeat(2, 1)
    texts = at, torch.arange(20)[None].repeat(3, 1)  # the second beyond the original length
    free = {"at": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    exported = torch.export.export(doors, (at,), dynamic_shapes=free).module()
    for text in texts:
        with Waits() as waits:
            expected = doors(text)
        assert not waits.n or name == "learned", "a learned table looks on a CPU, where it costs nothing"
        for found, wanted in zip(exported(text), expected, strict=True):
            close(found, wanted, 1e-6)
    shapes = [y.shape for y in Doors(SCHEMES[name]().to("meta"))(at.to("meta"))]
    assert shapes == [y.shape for y in doors(at)]


@pytest.mark.slow
def test_beyond_a_learned_table_a_compiled_lookup_fails_too():
    compiled = torch.compile(Learned(6, D_K).embed, fullgraph=True, backend="aot_eager")
    assert compiled(torch.tensor([[0, 5]])).shape == (1, 2, D_K)
    for outside in (6, -1):
        with pytest.raises((IndexError, RuntimeError)):
            compiled(torch.tensor([[outside, 0]]))
    nowhere = Learned(6, D_K).to("meta")  # there is nothing to look at
    assert nowhere.embed(torch.arange(9, device="meta")[None]).shape == (1, 9, D_K)


# ── choosing one ─────────────────────────────────────────────────────────────────────────────────


BUCKETS = dict(buckets=4, bucket_distance=8)


@pytest.mark.parametrize(("name", "scheme", "switches"), [
    ("none", "Positions", {}), ("learned", "Learned", {}), ("sinusoidal", "Sinusoidal", {}),
    ("rope", "Rotary", dict(rope=Rope(100.0, 4))), ("alibi", "Alibi", {}), ("t5", "T5Bias", BUCKETS),
    ("deberta", "Disentangled", dict(BUCKETS, norm_positions=True)),
])  # fmt: skip
def test_a_config_chooses(name, scheme, switches):
    config = Config(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8, max_positions=16, positions=name,
                    **switches)  # fmt: skip
    built = positions.build(config)
    assert type(built["full"]).__name__ == scheme and built["window"] is built["full"]


def test_a_stack_that_sees_both_sides_has_buckets_for_both():
    for is_causal in (True, False):
        config = Config(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8, max_positions=16, positions="t5",
                        buckets=4, bucket_distance=8, causal=is_causal)  # fmt: skip
        bias = positions.build(config)["full"].tables(None, *slots())[0]  # (H, T, S)
        assert torch.equal(bias[:, 0, 1], bias[:, 0, 0]) == is_causal  # the key to the right has one of its own


def test_no_positions_open_no_door():
    none, q, k = positions.Positions(), randn(B, H, T, D_K), randn(B, G, T, D_K)
    assert none.embed(torch.arange(T)[None]) is None and none.tables(None, *slots()) is None
    assert none.turn(q, k, None) == (q, k) and none.bias(q, k, None, None) is None


def test_sizes_that_a_scheme_cannot_compute_with_are_refused():
    with pytest.raises(ValueError, match="d_model = 7: sines and cosines need an even number"):
        positions.Sinusoidal(7)
    for n_buckets, distance in ((3, 128), (8, 2)):  # one bucket to each side; none left for far keys
        with pytest.raises(ValueError, match="buckets to each side for distances up to"):
            positions.T5Bias(n_buckets, distance, 2, bidirectional=True)
    with pytest.raises(ValueError, match="1 buckets to each side for distances up to 7"):
        positions.Disentangled(1, 8, n_buckets=1, max_distance=8)


def test_windowed_layers_may_turn_otherwise():
    config = Config(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8, max_positions=16, positions="rope",
                    rope=Rope(100.0, 4), rope_window=Rope(10.0, 4), window=4)  # fmt: skip
    built = positions.build(config)
    assert (built["full"].rope.base, built["window"].rope.base) == (100.0, 10.0)
