"""The way back: what `written` and `own_words` say is read back as the same config."""

from dataclasses import fields, replace

import pytest

from tx.config import Config, Rope
from tx.families import FAMILIES, Reader
from tx.families.writing import own_config, own_words, written

DEBERTA = dict(relative_attention=True, position_biased_input=False, type_vocab_size=0)
FILES = {
    "roberta": dict(pad_token_id=3), "gemma2": dict(query_pre_attn_scalar=144),
    "modernbert": dict(local_attention=8),
    "gpt_neox": dict(rotary_pct=0.5), "deberta": DEBERTA, "deberta-v2": DEBERTA | dict(pos_att_type=["p2c"]),
    "llama": dict(rope_scaling={"rope_type": "linear", "factor": 3.0}), "qwen3": {}, "bert": {}, "whisper": {},
}  # fmt: skip
SMALL = Config(31, 16, 2, 4, 20, 32)
LLAMA = replace(SMALL, norm="rms", norm_eps=1e-6, attention_bias="", ffn_bias=False, gated=True, activation="silu",
                tied=False, positions="rope", rope=Rope(1e4, 4))  # fmt: skip


def read(kind, values):
    """The config of a family's file, and what is wrong with it."""
    reader = Reader(values)
    return FAMILIES[kind].config(reader), reader.problems


def as_written(kind, config):
    return written(kind, FAMILIES[kind], config)


@pytest.mark.parametrize("kind", FILES)
def test_a_config_is_read_back_from_the_words_of_its_family(kind):
    config, _ = read(kind, {"model_type": kind, **FILES[kind]})
    back, problems = read(kind, as_written(kind, config))
    same = [(field.name, getattr(config, field.name), getattr(back, field.name)) for field in fields(Config)]
    assert not problems and [x for x in same if x[1] != x[2]] == []


def test_values_that_mean_the_same_and_heads_that_a_file_may_lack_are_no_hindrance():
    gemma, bert = (read(kind, {"model_type": kind})[0] for kind in ("gemma2", "bert"))
    assert as_written("gemma2", replace(gemma, scale=None))["query_pre_attn_scalar"] == gemma.d_head
    assert as_written("bert", replace(bert, pooler=False, masked_head=False))
    assert as_written("bert", replace(bert, masked_activation=bert.activation))


def test_what_a_family_has_no_words_for():
    assert as_written("llama", LLAMA)
    for other in ({"sinks": True}, {"softcap": 3.0}, {"positions": "alibi", "rope": None}, {"rope": Rope(1e4, 2)}):
        assert as_written("llama", replace(LLAMA, **other)) is None, other


def test_our_own_words_are_what_was_given_and_is_not_so_by_default():
    config = replace(LLAMA, window=3, encoder=replace(SMALL, causal=False, n_kv_heads=2))
    values = own_words("tx_decoder", None, config)
    assert values.keys() == {
        "model_type", "vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "max_positions", "norm", "norm_eps",
        "attention_bias", "ffn_bias", "gated", "activation", "tied", "positions", "rope", "window", "encoder",
    }  # fmt: skip
    back = own_config(Reader(values))
    assert back == config and own_words("tx_decoder", None, back) == values
    assert replace(back, n_heads=8, rope=None, positions="none").n_kv_heads == 8  # it follows as before
    assert replace(back.encoder, n_heads=8).n_kv_heads == 2


def test_what_is_wrong_with_the_encoder_is_wrong_with_the_file():
    values = own_words("tx_encoder_decoder", None, replace(SMALL, encoder=replace(SMALL, causal=False)))
    values["encoder"]["n_layers"] = 1001
    reader = Reader(values)
    own_config(reader)
    assert reader.problems == ["config     n_layers = 1001   expected a positive whole number, at most 1000"]
