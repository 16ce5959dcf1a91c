"""The switches: what follows from what was given, and what their annotations refuse."""

import pickle
from dataclasses import fields, replace

import pytest

from tx.config import Config, Rope

SMALL = Config(vocab_size=9, d_model=8, n_layers=2, n_heads=2, d_ff=8, max_positions=8)
DERIVED = ("n_kv_heads", "d_head", "d_embedding", "layer_types")


def derived(config):
    return tuple(getattr(config, name) for name in DERIVED)


def test_what_is_not_given_follows_from_the_rest():
    assert derived(SMALL) == (2, 4, 8, ("full", "full"))
    assert derived(replace(SMALL, n_heads=4)) == (4, 2, 8, ("full", "full"))  # still multi-head
    assert derived(replace(SMALL, d_model=12)) == (2, 6, 12, ("full", "full"))
    assert derived(replace(SMALL, n_kv_heads=1)) == (1, 4, 8, ("full", "full"))
    assert derived(replace(SMALL, n_layers=3)) == (2, 4, 8, ("full",) * 3)
    assert derived(replace(SMALL, window=5)) == (2, 4, 8, ("window", "window"))
    assert derived(replace(replace(SMALL, n_heads=8), n_heads=2)) == derived(SMALL)
    none = replace(SMALL, **dict.fromkeys(DERIVED))  # None is not given either
    assert derived(none) == derived(SMALL) and derived(replace(none, n_heads=4)) == (4, 2, 8, ("full", "full"))
    assert [SMALL.given(name) for name in (*DERIVED, "scale", "norm")] == [False] * 5 + [True]


def test_what_is_given_stays():
    given = replace(SMALL, n_heads=4, n_kv_heads=2, d_head=6, d_embedding=3, window=5,
                    layer_types=("full", "window"))  # fmt: skip
    assert derived(given) == (2, 6, 3, ("full", "window"))
    assert derived(replace(given, n_heads=8, d_model=20)) == (2, 6, 3, ("full", "window"))
    with pytest.raises(ValueError, match="layer_types = .*: expected as many as n_layers = 5"):
        replace(given, n_layers=5)


def test_equality_hash_pickle_and_repr():
    given = replace(SMALL, positions="rope", rope=Rope(1e4, 2), encoder=SMALL)
    assert given == replace(given) != SMALL and hash(given) == hash(replace(given))
    assert pickle.loads(pickle.dumps(given)) == given
    assert eval(repr(given)) == given
    assert derived(replace(pickle.loads(pickle.dumps(SMALL)), n_heads=4)) == (4, 2, 8, ("full", "full"))


@pytest.mark.parametrize("values,words", [
    ({"activation": "gelu_new"}, "activation = 'gelu_new': expected one of 'gelu', 'gelu_tanh', 'relu', 'silu'"),
    ({"masked_activation": "tanh"}, "masked_activation = 'tanh': expected one of 'gelu', .*, or None"),
    ({"attention_bias": "ov"}, "attention_bias = 'ov': expected one of 'qkvo', 'qkv', 'qvo', ''"),
    ({"layer_types": ("sliding", "full")}, "layer_types = .*: expected a tuple, each one of 'full', 'win"),
    ({"layer_types": ["full", "full"]}, "layer_types = .*: expected a tuple, each one of 'full', 'win"),
    ({"window": 0}, "window = 0: expected a whole number, at least 1, or None"),
    ({"n_kv_heads": 0}, "n_kv_heads = 0: expected a whole number, at least 1"),
    ({"d_ff": 8.0}, "d_ff = 8.0: expected a whole number, at least 1"),
    ({"n_layers": True}, "n_layers = True: expected a whole number, at least 1"),
    ({"n_segments": -1}, "n_segments = -1: expected a whole number, at least 0"),
    ({"scale": 0}, "scale = 0: expected a number above 0"),
    ({"scale": float("nan")}, "scale = nan: expected a number above 0"),
    ({"softcap": float("inf")}, "softcap = inf: expected a number above 0"),
    ({"causal": 1}, "causal = 1: expected True or False"),
    ({"ffn_dropout": 1}, "ffn_dropout = 1: expected a probability"),
    ({"norm_eps": 2}, "norm_eps = 2: expected a number, 0 … 1"),
    ({"rope": 1e4}, "rope = 10000.0: expected a Rope, or None"),
    # values that contradict each other
    ({"d_model": 9}, "d_model = 9 is not divisible by n_heads = 2; d_head is not given"),
    ({"n_kv_heads": 3}, "n_kv_heads = 3 does not divide n_heads = 2"),
    ({"n_experts": 4, "experts_per_token": 5}, "experts_per_token = 5: expected 1 … n_experts = 4"),
    ({"n_experts": 4}, "experts_per_token = 0: expected 1 … n_experts = 4"),
    ({"layer_types": ("full",)}, "expected as many as n_layers = 2"),
    ({"layer_types": ("window", "full")}, "window = None: there are layers with a window"),
    ({"positions": "rope"}, "rope = None: positions = 'rope' needs a Rope"),
    ({"positions": "rope", "rope": Rope(1e4, 6)}, "rope: width = 6 features are to turn, a head has 4"),
    ({"rope_window": Rope(1e4, 6)}, "rope: width = 6 features are to turn, a head has 4"),
    ({"positions": "deberta"}, "bucket_distance = 0: positions = 'deberta' tell no two distances apart"),
    ({"encoder": replace(SMALL, d_model=4)}, "d_model = 8: expected that of the encoder, too"),
    ({"encoder": replace(SMALL, encoder=SMALL)}, "encoder: it has an encoder of its own"),
])  # fmt: skip
def test_a_config_that_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        replace(SMALL, **values)


@pytest.mark.parametrize("values,words", [
    ({"base": 0}, "rope: base = 0: expected a number above 0, at most 1e15"),
    ({"width": 3}, "rope: width = 3: expected an even number of features to turn"),
    ({"scaling": "spiral"}, "rope: scaling = 'spiral': expected one of 'default', "),
    ({"scaling": "yarn"}, "rope: original = 0: expected the length of training, at least 1"),
    ({"scaling": "yarn", "original": 8, "base": 1}, "rope: base = 1, width = 4: 'yarn' divides by zero"),
    ({"scaling": "dynamic", "original": 8, "width": 2}, "width = 2: 'dynamic' divides by zero"),
    ({"scaling": "llama3", "original": 8, "low_freq_factor": 4.0}, "low_freq_factor = 4.0: expected less than"),
    ({"scaling": "longrope", "original": 8, "short_factor": (1.0,)}, "1 short and 0 long factors: expected 2"),
    ({"scaling": "longrope", "original": 8, "short_factor": (1.0,), "long_factor": (1.0,)}, "1 short and 1 long"),
    ({"scaling": "longrope", "original": 1}, "rope: original = 1: expected the length of training, at least 2"),
    ({"short_factor": (0.0,)}, "rope: short_factor = .*: expected a tuple, each a number above 0"),
    ({"magnitude": -1.0}, "rope: magnitude = -1.0: expected a number above 0, .*, or None"),
])  # fmt: skip
def test_a_rope_that_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        replace(Rope(1e4, 4), **values)


@pytest.mark.parametrize("given", [SMALL, Rope(1e4, 4)])
def test_no_switch_takes_a_value_of_another_kind(given):
    for field in fields(given):
        for value in (object(), [1], "snake", float("nan"), -1):
            with pytest.raises(ValueError, match=f"{field.name} = .*: expected "):
                replace(given, **{field.name: value})


ROPE = dict(positions="rope", rope=Rope(1e4, 4))


@pytest.mark.parametrize("switches, message", [
    (dict(parallel=True, norm_place="post"), "expected norm_place = 'pre', not 'post'"),
    (dict(parallel=True, encoder=replace(SMALL, causal=False)), "a layer that reads a memory"),
    (dict(parallel=True, residual_after_norm=True), "residual_after_norm = True: expected"),
    (dict(norm_place="post", residual_after_norm=True), "residual_after_norm = True: expected"),
    (dict(share_layers=True, layer_types=("full", "window"), window=2), "all layers are one"),
    (dict(share_layers=True, scale_by_layer=True), "all layers are one"),
    (dict(position_offset=2, positions="sinusoidal"), "positions = 'sinusoidal' have no rows to skip"),
    (dict(positions_skip_pad=0), "reads on from a cache"),
    (dict(positions="deberta", bucket_distance=8, n_kv_heads=1), "need as many as n_heads"),
    (dict(encoder=replace(SMALL, causal=False, vocab_size=99)), "expected that of the encoder, too"),
    (dict(rope=Rope(1e4, 4)), "rope = .*: nothing reads it without positions = 'rope'"),
    (dict(rope_window=Rope(1e4, 4)), "rope_window = .*: nothing reads it without positions = 'rope'"),
    (dict(window=4, layer_types=("full", "full")), "window = 4: nothing reads it without a layer with a window"),
    (dict(buckets=4), "buckets = 4: nothing reads it without positions = 't5' or 'deberta'"),
    (dict(positions="t5", buckets=4, bucket_distance=8, norm_positions=True), "norm_positions = True: nothing"),
    (dict(experts_per_token=2), "experts_per_token = 2: nothing reads it without n_experts"),
    (dict(norm_expert_weights=False), "norm_expert_weights = False: nothing reads it without n_experts"),
    (dict(masked_activation="relu"), "masked_activation = 'relu': nothing reads it without masked_head = True"),
])  # fmt: skip
def test_switches_that_another_one_would_leave_without_effect(switches, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **switches)
