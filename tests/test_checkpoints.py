"""Files: what is refused and how, and that damage never crashes, hangs or eats memory."""

import contextlib
import json
import resource
import shutil
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests import oracle
from tx.checkpoints import build, load, save
from tx.families import FAMILIES, CheckpointError
from tx.gguf_file import TYPES, Gguf

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
    "layer types": ({"layer_types": ["full_attention"]}, "1 layer_types for n_layers = 3"),
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
])  # fmt: skip
def test_a_switch_that_we_do_not_have_is_refused(family, values, words):
    with pytest.raises(CheckpointError, match=words):
        build({"model_type": family, **values})


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_family_builds_from_its_defaults_without_memory(family):
    needs = {"relative_attention": True, "position_biased_input": False} if "deberta" in family else {}
    model = build({"model_type": family, **needs})
    assert all(parameter.is_meta for parameter in model.parameters())


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


def write_gguf(path, kind=None):
    """A tiny llama as GGUF by the reference's writer; returns the tensors that should come out."""
    g = torch.Generator().manual_seed(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in (("context_length", 64), ("embedding_length", WIDTH), ("block_count", 1),
                        ("feed_forward_length", FF), ("head_count", 4), ("head_count_kv", 2)):  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
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
