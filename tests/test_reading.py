"""A family's `config.json`: keys, defaults, other names, and rotary positions in every spelling."""

import math

import pytest

from tx.families.reading import Reader

SIZE = 64  # max_position_embeddings


def rope(share=None, kind=None, base_key="rope_theta", **values):
    """(the `Rope` of these values for heads of 8 features, what is wrong with them)."""
    reader = Reader({"max_position_embeddings": SIZE, **values})
    return reader.rope(8, kind=kind, base_key=base_key, share=share), reader.problems


def test_keys_and_their_defaults():
    r = Reader({"a": 3, "b": None, "flag": True, "text": "x"})
    assert (r("a", 1), r("b", 1), r("c", 1), r("c")) == (3, 1, 1, None) and r.asked == {"a", "b", "c"}
    r.assume(a=5, b=6, d=7)  # null stays null
    assert (r("a"), r("b"), r("d")) == (3, None, 7)
    r.alias(a="flag", b="text", missing="d")  # another name counts more, where it is given
    assert (r("flag"), r("text"), r("d")) == (3, "x", 7) and not r.problems


@pytest.mark.parametrize(("value", "default", "words"), [
    (1, True, "true or false"), (True, 1, "a whole number"), (1.5, 1, "a whole number"), ("1", 1.0, "a number"),
    (True, 1.0, "a number"), (math.nan, 1.0, "a number"), (math.inf, 1.0, "a number"), (3, "a", "a text"),
    ({}, [1], "a list"), ([1], {"a": 1}, "a dictionary"),
])  # fmt: skip
def test_a_value_of_another_type_is_a_problem_once(value, default, words):
    r = Reader({"x": value})
    assert r("x", default) == default == r("x", default)
    assert r.problems == [f"config     x = {value!r}   expected {words}"]


def test_numbers_that_are_positive_and_not_too_large():
    bad = {"a": 0, "b": -1, "c": True, "d": 2.0, "n_layer": 1001, "num_experts": 1001}
    r = Reader(bad | {"e": 2**31 - 1})
    assert [r.number(name) for name in bad] == [1] * 6 and r.number("e") == 2**31 - 1
    assert [line.split()[1] for line in r.problems] == list(bad)
    assert all("at most 1000" in line for line in r.problems[4:]) and Reader({}).number("a", 5) == 5


def test_a_window_may_be_null():
    assert Reader({}).window() is None and Reader({}).window(5) == 5
    assert Reader({"sliding_window": None}).window(5) is None and Reader({"sliding_window": 3}).window(5) == 3


def test_a_switch_has_one_value_and_activations_have_names():
    r = Reader({"a": False, "b": True, "x": "gelu_fast", "y": "swish", "z": "snake"})
    r.refuse("a", False)
    r.refuse("missing", True)
    assert not r.problems
    r.refuse("b", False)
    assert [r.activation(name, "relu") for name in ("x", "y", "w")] == ["gelu_tanh", "silu", "relu"]
    assert len(r.problems) == 1 and "switch     b = True   only False is supported" in r.problems
    r.refuse("a", True)
    r.activation("z", "relu")
    assert ["a = False" in r.problems[1], "z = 'snake'" in r.problems[2]] == [True, True]


# ── rotary positions ─────────────────────────────────────────────────────────────────────────────

YARN = {"rope_type": "yarn", "original_max_position_embeddings": 16}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_the_old_spelling_counts_where_there_are_two():
    old, new = {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    found, problems = rope(rope_scaling=old, rope_parameters=new, rope_theta=300.0)
    assert not problems and (found.scaling, found.factor, found.base) == ("linear", 2.0, 300.0)
    assert rope(rope_parameters=new, rope_theta=300.0)[0].base == 500.0
    assert rope()[0].base == 10000.0 and rope(rope_theta=7)[0].base == 7


def test_lengths_of_training():
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
    assert rope(rope_scaling=dynamic)[0].original == SIZE  # whatever the file says of it
    assert rope(rope_scaling=YARN | {"factor": 2.0})[0].original == 16
    assert rope(rope_scaling=YARN | {"factor": 2.0}, original_max_position_embeddings=8)[0].original == 8
    both = {FULL: YARN | {"factor": 2.0}, SLIDING: {"rope_type": "default"}}
    found = rope(rope_parameters=both, original_max_position_embeddings=8, kind=FULL)[0]
    assert (found.scaling, found.original) == ("yarn", 16)  # of this kind of layer
    long = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    assert rope(rope_scaling=long, original_max_position_embeddings=16)[0].factor == 4.0  # 64 / 16


@pytest.mark.parametrize(("values", "magnitude"), [
    ({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
    ({"factor": 4.0, "mscale": 1.0}, None),
    ({"factor": 0.5, "mscale": 1.0, "mscale_all_dim": 0.5}, None),
    ({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.5}, 1.5),
])  # fmt: skip
def test_magnitudes(values, magnitude):
    found, problems = rope(rope_scaling=YARN | values)
    assert not problems and found.magnitude == (magnitude and pytest.approx(magnitude))


def test_a_share_of_the_features_turns():
    share = "rotary_pct", 0.5
    assert rope()[0].width == 8 and rope(share)[0].width == 4 and rope(share, rotary_pct=0.25)[0].width == 2
    assert rope(share, rope_parameters={"partial_rotary_factor": 0.75})[0].width == 6
    for values in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        assert "only 1.0 is supported" in rope(**values)[1][0]


def test_kinds_of_layers_have_tables_of_their_own():
    both = {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}
    assert rope(rope_parameters=both, kind=FULL)[0].factor == 8.0
    found = rope(rope_parameters=both, kind=SLIDING)[0]
    assert (found.scaling, found.base) == ("default", 1e4)
    old = {"rope_type": "linear", "factor": 4.0}  # of the layers that see all; the others keep theirs
    assert rope(rope_scaling=old, kind=FULL)[0].factor == 4.0
    found = rope(rope_scaling=old, kind=SLIDING, base_key="rope_local_base_freq", rope_local_base_freq=5.0)[0]
    assert (found.scaling, found.base) == ("default", 5.0)
    assert "expected the same for all layers" in rope(rope_parameters=both)[1][0]
    assert "each with its own" in rope(rope_parameters=both[FULL], kind=FULL)[1][0]
