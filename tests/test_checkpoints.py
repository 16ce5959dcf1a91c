"""Files: what is refused and how, and that damage never crashes, hangs or eats memory."""

import contextlib
import json
import os
import resource
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests import oracle
from tx.checkpoints import build, load, save
from tx.families import FAMILIES
from tx.files.errors import CheckpointError
from tx.files.gguf import TYPES, Gguf

gguf = pytest.importorskip("gguf")


@pytest.fixture
def folder(tmp_path):
    """A copy of a tiny Qwen 2 checkpoint, to be damaged."""
    _, source = oracle.checkpoint("qwen-2")
    shutil.copytree(source, tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = dict(load_file(path))
    change(weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, path)


LAYER = "model.layers.1.self_attn"


def add(name, value):
    return lambda weights: weights.update({name: value})


WEIGHTS = {
    "missing": (lambda w: w.pop(f"{LAYER}.k_proj.bias"), [f"missing    {LAYER}.k_proj.bias   expected (16,)"]),
    "extra": (add("model.layers.3.mlp.up_proj.weight", torch.zeros(2, 2)),
              ["extra      model.layers.3.mlp.up_proj.weight"]),
    "shape": (add(f"{LAYER}.k_proj.weight", torch.zeros(32, 32)),
              [f"shape      {LAYER}.k_proj.weight   expected (16, 32), found (32, 32)"]),
    "dtype": (add(f"{LAYER}.q_proj.bias", torch.zeros(32, dtype=torch.int64)),
              [f"dtype      {LAYER}.q_proj.bias   expected floating point of 16 bits or more, found torch.int64"]),
    "NaN": (add(f"{LAYER}.q_proj.bias", torch.full((32,), torch.nan)), [f"NaN        {LAYER}.q_proj.bias"]),
    "two at once": (lambda w: (w.pop("model.norm.weight"), add("odd", torch.zeros(1))(w)),
                    ["missing    model.norm.weight", "extra      odd", "(2 problems)"]),
    "untied head": (lambda w: w.pop("lm_head.weight"), ["missing    lm_head.weight   expected (61, 32)"]),
    "8 bits": (add("model.norm.weight", torch.ones(32).to(torch.float8_e4m3fn)),
               ["dtype      model.norm.weight   expected floating point of 16 bits or more", "float8_e4m3fn"]),
    "several odd numbers": (lambda w: w.update({
        "model.norm.weight": torch.full((32,), torch.inf), f"{LAYER}.q_proj.bias": torch.ones(32).long(),
        f"{LAYER}.k_proj.bias": torch.full((16,), torch.nan)}),
        ["NaN        model.norm.weight", f"dtype      {LAYER}.q_proj.bias", f"NaN        {LAYER}.k_proj.bias",
         "(3 problems)"]),
    "shapes, before numbers are read": (lambda w: w.update({
        "model.norm.weight": torch.full((32,), torch.nan), "odd": torch.zeros(1)}),
        ["(1 problem)", "extra      odd"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_weights_that_do_not_fit(folder, name):
    change, words = WEIGHTS[name]
    edit_weights(folder, change)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert isinstance(refused.value, ValueError)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart"])
def test_a_weight_that_occurs_with_and_without_its_prefix(name, tmp_path):
    shutil.copytree(oracle.checkpoint(name)[1], tmp_path / "model")
    prefix = FAMILIES[name].prefixes[0]
    first = min(key for key in load_file(tmp_path / "model/model.safetensors") if key.startswith(prefix))
    edit_weights(tmp_path / "model", lambda w: w.update({first.removeprefix(prefix): torch.zeros_like(w[first])}))
    with pytest.raises(CheckpointError, match=r"\(1 problem\):\n  twice .* with, a prefix of"):
        load(tmp_path / "model")


@pytest.fixture
def copy_of(tmp_path):
    """A copy of a tiny checkpoint by its name."""
    return lambda name: shutil.copytree(oracle.checkpoint(name)[1], tmp_path / name)


def test_a_copy_of_a_weight_is_proven_and_may_stand_in_for_it(copy_of):
    folder, copy = copy_of("t5"), "encoder.embed_tokens.weight"
    plain = load(folder).encoder.embedding.weight
    edit_weights(folder, lambda weights: weights.update({copy: weights["shared.weight"].clone()}))
    assert torch.equal(load(folder).encoder.embedding.weight, plain)
    edit_weights(folder, lambda weights: weights.pop("shared.weight"))
    assert torch.equal(load(folder).encoder.embedding.weight, plain)
    edit_weights(folder, lambda weights: weights.update({"shared.weight": weights[copy] + 1}))
    with pytest.raises(CheckpointError, match=f"differs    {copy}   expected a copy of shared.weight"):
        load(folder)


def test_a_table_that_we_compute_is_proven(copy_of):
    folder, name = copy_of("marian"), "model.encoder.embed_positions.weight"
    table = load(folder).encoder.schemes["full"].embed(torch.arange(64)[None], torch.float32)[0]  # (T, D)
    edit_weights(folder, lambda weights: weights.update({name: table}))
    load(folder)
    for other in (table + 1e-3, table.long()):
        edit_weights(folder, lambda weights, other=other: weights.update({name: other}))
        with pytest.raises(CheckpointError, match=f"differs    {name}   expected a copy of the sinusoids"):
            load(folder)


def test_a_family_that_forgot_a_name_is_told_so(folder, monkeypatch):
    family = FAMILIES["qwen2"]
    weights = [pair for pair in family.weights if "attention.out" not in pair.ours[0]]
    monkeypatch.setitem(FAMILIES, "qwen2", replace(family, weights=weights))
    with pytest.raises(CheckpointError, match="unnamed    stack.blocks.0.attention.out.weight   this family"):
        load(folder)


def test_buffers_of_old_versions_are_passed_over(copy_of):
    folder = copy_of("gpt2")
    edit_weights(folder, lambda weights: weights.update({"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64)}))
    load(folder)
    edit_weights(folder, lambda weights: weights.update({"transformer.h.0.attn.odd": torch.ones(2)}))
    with pytest.raises(CheckpointError, match="extra      transformer.h.0.attn.odd"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_have_the_dtype_that_is_asked_for(folder, dtype):
    assert {parameter.dtype for parameter in load(folder, dtype=dtype).parameters()} == {dtype}


def test_what_the_files_lack_is_no_part_of_the_model(copy_of):
    folder = copy_of("bert")
    edit_weights(folder, lambda weights: [weights.pop(name) for name in list(weights) if "pooler" in name])
    model = load(folder)
    assert model.pooler is None and not model.config.pooler and model.config.masked_head


def test_what_belongs_to_writing_is_saved(folder, tmp_path):
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    save(load(folder), tmp_path / "saved")
    assert json.loads((tmp_path / "saved/generation_config.json").read_text()) == {"eos_token_id": [3, 5]}


def test_a_weight_too_large_for_the_dtype_is_refused_and_one_that_fits_is_not(folder):
    for large in (-1e5, 1e5):
        edit_weights(folder, lambda w, large=large: w["model.norm.weight"].fill_(large))
        with pytest.raises(CheckpointError, match=r"overflow   model.norm.weight .* too large for torch.float16"):
            load(folder, dtype=torch.float16)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert load(folder, dtype=dtype).stack.norm.weight.isfinite().all()
    edit_weights(folder, lambda w: w.update({name: x.half().fill_(65504) for name, x in w.items()}))
    assert load(folder, dtype=torch.float16).stack.norm.weight.max() == 65504


CONFIGS = {
    "unknown family": ({"model_type": "spiral"}, "model_type = 'spiral'"),
    "no family": ({"model_type": None}, "model_type = None"),
    "unknown activation": ({"hidden_act": "snake"}, "hidden_act = 'snake'"),
    "unknown rope": ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type = 'spiral'"),
    "heads": ({"num_key_value_heads": 3}, "n_kv_heads = 3 does not divide n_heads = 4"),
    "negative": ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
    "layers without end": ({"num_hidden_layers": 2**30}, "num_hidden_layers = 1073741824   expected"),
    "text": ({"hidden_size": "32"}, "hidden_size = '32'"),
    "huge": ({"intermediate_size": 2**40}, "intermediate_size = 1099511627776"),
    "contradiction": ({"num_attention_heads": 8}, "k_proj.weight   expected (8, 32), found (16, 32)"),
    "more layers": ({"num_hidden_layers": 4, "layer_types": None}, "missing    model.layers.3."),
    "layer types": ({"layer_types": ["full_attention"]}, "layer_types = ['full_attention']   expected 3 times"),
    "a family that is a list": ({"model_type": ["qwen2"]}, "model_type = ['qwen2']   known:"),
    "a family without end": ({"model_type": "x" * 10**6}, "… (1000002 characters)   known:"),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_settings_that_contradict(folder, name):
    values, words = CONFIGS[name]
    edit_config(folder, **values)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert words in str(refused.value)


@pytest.mark.parametrize("family,values,words", [
    ("deberta-v2", {"conv_kernel_size": 3, "relative_attention": True, "position_biased_input": False},
     "conv_kernel_size = 3"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups = 2"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
    ("qwen3_moe", {"mlp_only_layers": [0, 3]}, r"mlp_only_layers = \[0, 3\]"),
    ("qwen3_moe", {"num_experts": 4}, "experts_per_token = 8: expected 1 … n_experts = 4"),
    ("t5", {"feed_forward_proj": "gated-snake"}, "feed_forward_proj = 'gated-snake'"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi = False   only True is supported"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln = True   only False is supported"),
    ("mpt", {"attn_config": {"prefix_lm": True}}, "prefix_lm = True   only False is supported"),
    ("mpt", {"attn_config": {"alibi_bias_max": 16}}, "alibi_bias_max = 16   only 8 is supported"),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type = 'multiquery_attention'"),
    ("mpt", {"logit_scale": 0.5}, "logit_scale = 0.5   only None is supported"),
    ("mpt", {"no_bias": False}, "no_bias = False   only True is supported"),
    ("mpt", {"expansion_ratio": 8}, "expansion_ratio = 8   only 4 is supported"),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 4}, "slow_but_exact = True   only False is supported"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0   only None is supported"),
    ("llama", {"is_causal": False}, "is_causal = False   only True is supported"),
    ("modernbert", {"head_dim": 32}, "head_dim = 32   only 64 is supported"),
    ("modernbert", {"sliding_window": 32}, "sliding_window = 32   expected local_attention to say it"),
    ("gpt_neox", {"head_dim": 32}, "head_dim = 32   only 96 is supported"),
])  # fmt: skip
def test_a_switch_that_we_do_not_have_is_refused(family, values, words):
    with pytest.raises(CheckpointError, match=words):
        build({"model_type": family, **values})


DEBERTA = {"relative_attention": True, "position_biased_input": False}
FULL, SLIDING = "full_attention", "sliding_attention"
ROPES = [  # inside rope_parameters of a llama, with one line of what is wrong
    ({"rope_theta": "1e4"}, "rope_theta = '1e4'   expected a number"),
    ({"rope_theta": -1.0}, "rope: base = -1.0: expected a number above 0, at most 1e15"),
    ({"rope_type": "linear", "factor": 0}, "rope: factor = 0: expected a number above 0, 1e-6 … 1e6"),
    ({"rope_type": "linear", "factor": True}, "factor = True   expected a number"),
    ({"rope_type": ["yarn"]}, "rope_type = ['yarn']   expected a text"),
    ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0},
     "original_max_position_embeddings = 0   expected a positive whole number"),
    ({"rope_type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate = 'no'   expected true or false"),
    ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, "'yarn' divides by zero"),
    ({"rope_type": "yarn", "factor": 2.0, "attention_factor": -1.0}, "rope: magnitude = -1.0"),
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
     "rope: low_freq_factor = 4.0: expected less than the high 4.0"),
    ({"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": [1.0] * 64},
     "rope: 1 short and 64 long factors: expected 64 of each"),
    ({"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 64, "long_factor": "x"},
     "long_factor = 'x'   expected a list"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5   only 1.0 is supported"),
    ({"rope_type": "yarn"}, "factor = None   expected a number, which rope_type = 'yarn' needs"),
    ({FULL: {"rope_theta": 7.0}}, "expected the same for all layers"),
]
REFUSED = [
    *(("llama", {"rope_parameters": rope}, words) for rope, words in ROPES),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5   only 1.0 is supported"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 2.0}}, "rope: width = 192 features are to turn"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.01}}, "rope: width = 0: expected an even number"),
    ("phi3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type = 'yarn'   known: default,"),
    # types: text, true and numbers are not each other
    ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'   expected true or false"),
    ("llama", {"attention_bias": 1}, "attention_bias = 1   expected true or false"),
    ("llama", {"rms_norm_eps": "x"}, "rms_norm_eps = 'x'   expected a number"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps = nan   expected a number"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters = [1]   expected a dictionary"),
    ("llama", {"hidden_act": ["silu"]}, "hidden_act = ['silu']   expected a text"),
    ("gpt2", {"n_inner": "x"}, "n_inner = 'x'   expected a positive whole number"),
    ("gpt2", {"n_inner": 2.5}, "n_inner = 2.5   expected a positive whole number"),
    ("gpt2", {"n_inner": -5}, "n_inner = -5   expected a positive whole number"),
    ("gpt2", {"n_layer": True}, "n_layer = True   expected a positive whole number"),
    ("gpt2", {"scale_attn_weights": "false"}, "scale_attn_weights = 'false'   expected true or false"),
    ("bert", {"type_vocab_size": "x"}, "type_vocab_size = 'x'   expected a whole number"),
    ("t5", {"feed_forward_proj": 3}, "feed_forward_proj = 3   expected a text"),
    ("deberta-v2", {**DEBERTA, "norm_rel_ebd": 3}, "norm_rel_ebd = 3   expected a text"),
    ("deberta-v2", {**DEBERTA, "position_buckets": "x"}, "position_buckets = 'x'   expected a whole number"),
    ("qwen2", {"max_window_layers": "x"}, "max_window_layers = 'x'   expected a whole number"),
    # sizes, shares and numbers out of range
    ("gpt2", {"resid_pdrop": 2.0}, "dropout = 2.0: expected a probability"),
    ("llama", {"rms_norm_eps": -1.0}, "norm_eps = -1.0: expected a number, 0 … 1"),
    ("bert", {"type_vocab_size": -2}, "n_segments = -2: expected a whole number, at least 0"),
    ("roberta", {"pad_token_id": -5}, "position_offset = -4: expected a whole number, at least 0"),
    ("roberta", {"pad_token_id": 10**9}, "max_positions = -999999489: expected a whole number, at least 1"),
    ("mpt", {"attn_config": {"softmax_scale": "x"}}, "scale = 'x': expected a number above 0"),
    ("mpt", {"attn_config": {"clip_qkv": -1}}, "clip_qkv = -1: expected a number above 0"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "softcap = 0.0: expected a number above 0"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0"),
    ("mistral", {"sliding_window": 0}, "sliding_window = 0   expected a positive whole number"),
    ("mistral", {"sliding_window": "4"}, "sliding_window = '4'   expected a positive whole number"),
    ("modernbert", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers = 0   expected a positive"),
    ("t5", {"relative_attention_num_buckets": 1}, "0 buckets to each side for distances up to 128"),
    ("marian", {"d_model": 31, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
     "d_model = 31: sines and cosines need an even number of features"),
    ("qwen3_moe", {"num_hidden_layers": 201, "num_experts": 200},
     "layers times experts = 40200   expected at most 40000"),
    # names that are not known
    ("gemma2", {"layer_types": ["chunked_attention"] * 26}, "layer_types = ['chunked_attention', "),
    ("gemma2", {"layer_types": [["full_attention"]] * 26}, "expected 26 times sliding_attention or full_"),
    ("gemma2", {"layer_types": "full_attention"}, "layer_types = 'full_attention'   expected a list"),
    ("qwen2", {"layer_types": [SLIDING] * 32}, "sliding_window = None   expected how wide"),
    ("deberta", {**DEBERTA, "pos_att_type": ["c2p", "x"]}, "pos_att_type = ['c2p', 'x']   known: c2p, p2c"),
    # ropes by kind of layer; flat ones the reference refuses (ModernBERT) or does not apply (Gemma 3)
    ("gemma3_text", {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "each with its own"),
    ("modernbert", {"rope_parameters": {"rope_theta": 5.0}}, "each with its own"),
    ("gemma3_text", {"rope_parameters": {FULL: {}, "chunked_attention": {}}}, "each with its own"),
    ("gemma3_text", {"rope_parameters": {FULL: {"rope_type": "spiral"}}}, "rope_type = 'spiral'   known:"),
]  # fmt: skip


@pytest.mark.parametrize("family,values,words", REFUSED)
def test_a_setting_of_another_type_out_of_range_or_unknown_is_refused_by_name(family, values, words):
    with pytest.raises(CheckpointError) as refused:
        build({"model_type": family, **values})
    assert words in str(refused.value) and len(refused.value.problems) == 1


def test_everything_wrong_with_the_settings_is_listed_once():
    values = {"n_layer": 0, "n_head": "x", "activation_function": "snake", "tie_word_embeddings": 0}
    with pytest.raises(CheckpointError, match=r"\(4 problems\)"):
        build({"model_type": "gpt2", **values})
    with pytest.raises(CheckpointError, match=r"\(1 problem\)"):  # read for both ropes, said once
        build({"model_type": "gemma3_text", "rope_scaling": 3})


SIZES = dict(vocab_size=9, d_model=8, n_layers=2, n_heads=2, d_ff=8, max_positions=8)


@pytest.mark.parametrize("values,words", [
    ({"n_layers": 10**9}, "n_layers = 1000000000   expected a positive whole number, at most 1000"),
    ({"vocab_size": None}, "vocab_size = None   expected a positive whole number"),
    ({"activation": "snake"}, "activation = 'snake': expected one of 'gelu', "),
    ({"spiral": True}, "unexpected keyword argument 'spiral'"),
    ({"positions": "rope", "rope": 3}, "rope = 3   expected a dictionary"),
    ({"positions": "rope", "rope": {"base": 1e4, "width": 3}}, "rope: width = 3: expected an even number"),
    ({"encoder": [1]}, "encoder = [1]   expected a dictionary"),
    ({"encoder": {**SIZES, "d_model": 4}}, "d_model = 8: expected that of the encoder, too"),
    ({"n_experts": 30000, "experts_per_token": 1}, "layers times experts = 60000   expected at most 40000"),
])  # fmt: skip
def test_our_own_settings_are_checked_like_a_familys(values, words):
    with pytest.raises(CheckpointError) as refused:
        build({"model_type": "tx_decoder", **SIZES, **values})
    assert words in str(refused.value)


def test_more_layers_than_there_are_tensors_are_refused_before_any_is_made(folder):
    edit_config(folder, num_hidden_layers=1000, layer_types=None)
    with pytest.raises(CheckpointError, match="layers times experts = 1000   expected at most .* tensors"):
        load(folder)


def test_a_message_is_of_bounded_length_and_steers_no_terminal():
    error = CheckpointError("x", ["\x1b[2J" + "x" * 10**6])
    assert len(str(error)) < 1200 and "\x1b" not in str(error) and "(1000004 characters)" in str(error)


def test_a_name_that_counts_once_counts_once_when_it_stands_twice():
    values = dict(model_type="deberta-v2", relative_attention=True, position_biased_input=False)
    once, twice = (build(values | {"pos_att_type": kinds}).config for kinds in ("c2p", "c2p|c2p"))
    assert once == twice


def test_a_message_has_twenty_problems_and_a_count(folder):
    edit_config(folder, num_hidden_layers=100, layer_types=None)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    lines = str(refused.value).splitlines()
    assert len(lines) == 22 and len(refused.value.problems) == 97 * 12
    assert lines[-1] == f"  … and {97 * 12 - 20} more" and "(1164 problems)" in lines[0]


@pytest.mark.parametrize("family", [
    pytest.param(family, marks=[pytest.mark.slow] * (family == "qwen3_moe"))  # 128 experts a layer
    for family in FAMILIES if not family.startswith("tx_")
])
def test_a_family_builds_from_its_defaults_without_memory(family):
    model = build({"model_type": family, **(DEBERTA if "deberta" in family else {})})
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_loaded_model_is_in_eval_mode(folder):
    assert not any(module.training for module in load(folder).modules())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, "float16"])
def test_a_dtype_that_models_do_not_compute_in_is_refused(folder, dtype):
    with pytest.raises(ValueError, match=r"dtype = .*: expected one of torch.float64, torch.float32"):
        load(folder, dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", 3.5, "cuda:99"])
def test_a_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(ValueError, match=f"device = {device!r}: expected one that this machine has"):
        load(folder, device=device)


@pytest.mark.parametrize("place", [None, 3, ""])
def test_a_place_that_is_no_path_is_refused(folder, place):
    with pytest.raises(ValueError, match=f"folder = {place!r}: expected the path of a folder"):
        save(load(folder), place)


def test_pickles_and_empty_folders(tmp_path):
    with pytest.raises(CheckpointError, match="config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match=r"missing    \*.safetensors"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="pickle     pytorch_model.bin"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="config.json"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist.*smollm2"):
        load(tmp_path / "nowhere")


def test_a_missing_shard_is_named(folder):
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="missing    model-00002-of-00002.safetensors"):
        load(folder)


@pytest.fixture
def pipe():
    """Make a named pipe; one that is open at both ends, so that who reads it does not wait forever."""
    opened = []

    def make(path):
        os.mkfifo(path)
        opened.append(os.open(path, os.O_RDWR))

    yield make
    for file in opened:
        os.close(file)


def test_a_pipe_a_folder_or_a_link_to_nothing_in_the_place_of_a_file(folder, tmp_path, pipe):
    weights = folder / "model.safetensors"
    for make, undo in (
        (weights.mkdir, weights.rmdir), (lambda: weights.symlink_to("nowhere"), weights.unlink),
        (lambda: weights.symlink_to(weights.name), weights.unlink), (lambda: pipe(weights), weights.unlink),
    ):  # fmt: skip
        weights.unlink(missing_ok=True)
        make()
        with pytest.raises(CheckpointError, match="damaged    model.safetensors: no file"):
            load(folder)
        undo()
    (tmp_path / "x.gguf").mkdir()
    pipe(tmp_path / "y.gguf")
    for name in ("x.gguf", "y.gguf"):
        with pytest.raises(CheckpointError, match="is a file of another kind"):
            load(tmp_path / name)
    for source in (3, None, "", "a\0b", "a" * 5000):
        with pytest.raises(CheckpointError, match="source     "):
            load(source)


@pytest.mark.parametrize("text,words", [
    (b'{"model_type": ' + b"[" * 10**5, "nested too deeply"),
    (b"\xff\xfe{}", "config.json: "),
    (b"[]", "config.json: expected a dict, found a list"),
    (b'{"model_type": "' + b"x" * 2**26 + b'"}', "expected 67108864 at most"),
])  # fmt: skip
def test_settings_that_are_no_dictionary_in_json(folder, text, words):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert words in str(refused.value) and len(str(refused.value)) < 1000


@pytest.mark.parametrize("index,words", [
    ("[]", "damaged    model.safetensors.index.json: expected a dict, found a list"),
    ('{"weight_map": []}', "damaged    model.safetensors.index.json"),
    ('{"weight_map": {"a": ["x"]}}', "damaged    model.safetensors.index.json"),
    ('{"weight_map": {"a": 1, "b": "x"}}', "missing    1   the index names it"),
    ('{"weight_map": {"a": "../model.safetensors"}}', "missing    ../model.safetensors"),
    ('{"weight_map": ' + "[" * 10**5, "damaged    model.safetensors.index.json: nested too deeply"),
])  # fmt: skip
def test_an_index_that_is_none(folder, index, words):
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert words in str(refused.value)


# ── saving ───────────────────────────────────────────────────────────────────────────────────────


def test_save_refuses_a_place_that_is_not_its_own_and_a_model_without_values(folder, tmp_path):
    model = load(folder)
    stale = folder / "model-00002-of-00002.safetensors"
    for other in (stale, folder / "model.safetensors.index.json"):
        other.write_bytes(b"{}")
        with pytest.raises(ValueError, match=f"holds other weights, .*{other.name}"):
            save(model, folder)
        other.unlink()
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="there is a file where a folder was expected"):
            save(model, place)
    with pytest.raises(ValueError, match="this model has no values"):
        save(build({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}), tmp_path / "new")
    assert not (tmp_path / "new").exists() and (tmp_path / "file").read_text() == "x"


def test_save_over_its_own_folder_and_with_a_head_tied_by_hand(folder, tmp_path):
    model = load(folder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    said = json.loads((folder / "config.json").read_text())
    save(model, folder)
    assert json.loads((folder / "config.json").read_text()) == said  # also what we do not ask for
    for state in (model.state_dict(), load(folder).state_dict()):
        assert all(torch.equal(state[name], value) for name, value in before.items())
    model.tie()  # its config.json says that there are two matrices
    save(model, tmp_path / "tied")
    again = load(tmp_path / "tied")
    assert torch.equal(again.head.linear.weight, before["stack.embedding.weight"])


def test_a_head_beside_a_tied_embedding_counts_where_it_is_another(folder):
    edit_config(folder, tie_word_embeddings=True)
    model = load(folder)
    assert not torch.equal(model.head.linear.weight, model.stack.embedding.weight)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def damaged(data, original):
    """The bytes of a file after one of four kinds of damage, mostly in its header."""
    kind = data.draw(st.sampled_from(["cut", "flip", "number", "insert"]))
    reach = data.draw(st.sampled_from([64, 2048, len(original)]))
    at = data.draw(st.integers(0, min(reach, len(original)) - 9))
    if kind == "cut":
        return original[:at]
    if kind == "insert":
        return original[:at] + data.draw(st.binary(min_size=1, max_size=9)) + original[at:]
    if kind == "flip":
        return original[:at] + bytes([original[at] ^ data.draw(st.integers(1, 255))]) + original[at + 1 :]
    huge = data.draw(st.sampled_from([2**63 - 1, 2**40, 2**32, 2**31, 0, 1, 255]))
    return original[:at] + struct.pack("<Q", huge) + original[at + 8 :]


@pytest.mark.slow
@settings(max_examples=300, deadline=10_000, derandomize=True)
@given(data=st.data())
def test_damaged_safetensors_load_or_are_refused(data, tmp_path_factory):
    _, source = oracle.checkpoint("qwen-2")
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copy(source / "config.json", folder)
    (folder / "model.safetensors").write_bytes(damaged(data, (source / "model.safetensors").read_bytes()))
    before = peak_kib()
    with contextlib.suppress(CheckpointError):
        load(folder)
    assert peak_kib() - before < 64 * 1024
    shutil.rmtree(folder)


HEAD, FF, WIDTH = 8, 64, 32


def write_gguf(path, kind=None, **settings):
    """A tiny llama as GGUF by the reference's writer; returns the tensors that should come out.

    settings: more of `llama.…`, with "__" for a dot.
    """
    g = torch.Generator().manual_seed(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in (("context_length", 64), ("embedding_length", WIDTH), ("block_count", 1),
                        ("feed_forward_length", FF), ("head_count", 4), ("head_count_kv", 2)):  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    kinds = {str: "string", bool: "bool", int: "uint32", float: "float32"}
    for name, value in settings.items():
        getattr(writer, f"add_{kinds[type(value)]}")(f"llama.{name.replace('__', '.')}", value)
    writer.add_token_list([f"t{n}" for n in range(48)])
    shapes = {
        "token_embd": (48, WIDTH), "output_norm": (WIDTH,), "output": (48, WIDTH), "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (WIDTH // 2, WIDTH), "blk.0.attn_v": (WIDTH // 2, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_norm": (WIDTH,), "blk.0.ffn_gate": (FF, WIDTH),
        "blk.0.ffn_up": (FF, WIDTH), "blk.0.ffn_down": (WIDTH, FF),
    }  # fmt: skip
    expected = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=g).numpy()
        if kind is None or len(shape) == 1:
            writer.add_tensor(f"{name}.weight", value)
        else:
            type_ = gguf.GGMLQuantizationType[kind]
            packed = gguf.quants.quantize(value, type_)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=type_)
            value = gguf.quants.dequantize(packed, type_)
        expected[f"{name}.weight"] = value.astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("kind", [None, "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_tensors_equal_the_reference_reader(tmp_path, kind):
    expected = write_gguf(tmp_path / "m.gguf", kind)
    file = Gguf(tmp_path / "m.gguf")
    assert set(file.tensors) == set(expected)
    for name, value in expected.items():
        assert torch.equal(file.tensor(name), torch.from_numpy(value)), name
    model = load(tmp_path / "m.gguf")
    assert model.config.n_kv_heads == 2 and model.config.rope.base == 500.0
    assert model(torch.tensor([[1, 2, 3]])).isfinite().all()


@pytest.mark.parametrize("name,value", [
    ("rope__scaling__type", "linear"), ("rope__scaling__type", "yarn"), ("rope__scaling__factor", 4.0),
    ("rope__scale_linear", 4.0), ("rope__scaling__attn_factor", 1.5), ("rope__dimension_count", 4),
    ("attention__value_length", 4), ("attention__sliding_window", 4), ("attention__scale", 0.5),
    ("attention__causal", False), ("expert_count", 2), ("embedding_scale", 2.0), ("residual_scale", 0.5),
    ("logit_scale", 2.0), ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0),
])  # fmt: skip
def test_a_gguf_that_asks_for_more_than_a_llama_is_refused(tmp_path, name, value):
    write_gguf(tmp_path / "m.gguf", **{name: value})
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path / "m.gguf")
    assert f"switch     llama.{name.replace('__', '.')} = {value!r}   only " in str(refused.value)


def test_a_gguf_that_says_what_is_usual_loads_as_one_that_does_not(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "n.gguf", rope__dimension_count=HEAD, attention__key_length=HEAD,
               attention__value_length=HEAD, rope__scaling__type="none", rope__scaling__factor=1.0,
               expert_count=0, attention__causal=True, rope__scaling__finetuned=False)  # fmt: skip
    tokens = torch.tensor([[1, 2, 3]])  # (B, T)
    assert torch.equal(load(tmp_path / "m.gguf")(tokens), load(tmp_path / "n.gguf")(tokens))


def test_a_gguf_without_its_eps_is_refused(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    name = b"llama.attention.layer_norm_rms_epsilon"
    data = (tmp_path / "m.gguf").read_bytes().replace(name, name[:-1] + b"m")
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=f"missing    {name.decode()}"):
        load(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.endswith("_K")])
def test_gguf_k_quants(tmp_path, kind):
    """The reference cannot write these; blocks of random bytes must unpack to what it makes of them."""
    type_ = gguf.GGMLQuantizationType[kind]
    n, size = gguf.GGML_QUANT_SIZES[type_]
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 64, (3, 2 * size), dtype=np.uint8)  # small bytes: finite half floats
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_tensor("x", packed, raw_dtype=type_)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    got = Gguf(tmp_path / "m.gguf").tensor("x")
    assert got.shape == (3, 2 * n)
    assert np.array_equal(got.numpy(), gguf.quants.dequantize(packed, type_), equal_nan=True)


@pytest.mark.slow
@settings(max_examples=400, deadline=10_000, derandomize=True)
@given(data=st.data())
def test_damaged_gguf_loads_or_is_refused(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "good.gguf")
    (folder / "bad.gguf").write_bytes(damaged(data, (folder / "good.gguf").read_bytes()))
    before = peak_kib()
    with contextlib.suppress(CheckpointError):
        load(folder / "bad.gguf")
    assert peak_kib() - before < 64 * 1024
    shutil.rmtree(folder)


def test_a_gguf_that_claims_an_endless_array_is_refused_at_once(tmp_path):
    """1.3 KB that claim 2⁴⁰ entries; readers that believe it hang."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x"
    array = struct.pack("<IIQ", 9, 4, 2**40) + bytes(1300)
    (tmp_path / "m.gguf").write_bytes(head + array)
    with pytest.raises(CheckpointError, match="1099511627776 array items claimed"):
        load(tmp_path / "m.gguf")
