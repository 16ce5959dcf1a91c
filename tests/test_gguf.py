"""GGUF files: damaged, split and hostile headers, and the frequencies of Llama 3.1."""

import struct

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tx import load, save
from tx.files.errors import CheckpointError
from tx.files.gguf import Gguf
from tx.positions import deinterleave
from tx.tokenization import load_tokenizer

gguf = pytest.importorskip("gguf")

D, HEADS, FF, VOCAB, LONGEST = 64, 2, 48, 40, 4096
HEAD = D // HEADS
SHAPES = {
    "token_embd": (VOCAB, D), "output_norm": (D,), "blk.0.attn_norm": (D,), "blk.0.ffn_norm": (D,),
    **{f"blk.0.attn_{name}": (D, D) for name in ("q", "k", "v", "output")},
    "blk.0.ffn_gate": (FF, D), "blk.0.ffn_up": (FF, D), "blk.0.ffn_down": (D, FF),
}  # fmt: skip


def write_model(path, factors=None, shapes=SHAPES, **metadata):
    """A llama of one layer. factors: what the frequency of every pair is divided by."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(D)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(VOCAB)
    for name, value in metadata.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(name.replace("__", "."), value)
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32) / 3)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ── Llama 3.1 ────────────────────────────────────────────────────────────────────────────────────


def llama3_factors(scaling, base):
    """What a converter writes: how much slower every pair turns than without scaling."""
    steps = np.arange(0, HEAD, 2, dtype=np.float32) / HEAD
    waves = 2 * np.pi * base**steps
    original = scaling["original_max_position_embeddings"]
    slow, fast = scaling["low_freq_factor"], scaling["high_freq_factor"]
    ramp = (original / waves - slow) / (fast - slow)
    between = 1 / ((1 - ramp) / scaling["factor"] + ramp)
    slower = np.where(waves > original / slow, scaling["factor"], between)
    return np.where(waves < original / fast, 1, slower).astype(np.float32)


@torch.no_grad()
def test_llama_3_1_turns_its_pairs_as_the_reference_does(tmp_path):
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512, "rope_theta": 500000.0,
    }  # fmt: skip
    factors = llama3_factors(scaling, 500000.0)
    assert {1.0, 8.0} < {float(x) for x in factors}, "fast pairs stay, slow ones turn slower, some lie between"
    model = load(write_model(tmp_path / "m.gguf", factors))
    assert model.config.max_positions == LONGEST
    settings = dict(vocab_size=VOCAB, hidden_size=D, intermediate_size=FF, num_hidden_layers=1,
                    num_attention_heads=HEADS, rms_norm_eps=1e-5, max_position_embeddings=LONGEST,
                    tie_word_embeddings=True)  # fmt: skip
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings, rope_parameters=scaling)).eval()
    save(model, tmp_path / "saved")
    theirs.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"), strict=False)
    tokens = torch.randint(VOCAB, (1, 900), generator=torch.Generator().manual_seed(0))  # (1, T)
    ours, expected = model(tokens), theirs(tokens).logits  # (1, T, V)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)  # measured: 7e-6
    saved = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")(tokens).logits  # (1, T, V)
    torch.testing.assert_close(saved, expected, atol=1e-4, rtol=0)
    without = load(write_model(tmp_path / "n.gguf"))(tokens)  # (1, T, V)
    assert (without - expected).abs().max() > 1e-2


@pytest.mark.parametrize(("factors", "words"), [
    (np.ones(HEAD // 2 - 1), r"shape      rope_freqs.weight is \(15,\), expected \(16,\)"),
    (np.ones((1, HEAD // 2)), r"shape      rope_freqs.weight is \(1, 16\)"),
    (np.full(HEAD // 2, np.nan), "damaged    rope_freqs.weight = .*expected numbers above 0"),
    (np.zeros(HEAD // 2), "damaged    rope_freqs.weight = "),
], ids=["few", "two axes", "NaN", "zeros"])  # fmt: skip
def test_odd_factors_are_refused(tmp_path, factors, words):
    with pytest.raises(CheckpointError, match=words):
        load(write_model(tmp_path / "m.gguf", factors))


# ── what a file says ─────────────────────────────────────────────────────────────────────────────


def test_settings_that_are_not_known_are_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="unknown    llama.attention.clamp_kqv = 3"):
        load(write_model(tmp_path / "m.gguf", llama__attention__clamp_kqv=3))
    with pytest.raises(CheckpointError, match="switch     llama.expert_used_count = 2   only 0"):
        load(write_model(tmp_path / "m.gguf", llama__expert_used_count=2))
    load(write_model(tmp_path / "m.gguf", llama__rope__scaling__original_context_length=512))


def test_tokens_and_scores_that_are_no_lists_are_refused(tmp_path):
    path = write_model(tmp_path / "m.gguf", tokenizer__ggml__tokens=5)
    path.write_bytes(path.read_bytes().replace(b"llama.vocab_size", b"other.vocab_size"))
    with pytest.raises(CheckpointError, match="vocab_size = 0"):
        load(path)


@pytest.mark.parametrize("read", [load, load_tokenizer])
def test_a_part_of_a_split_model_is_named_as_such(tmp_path, read):
    path = tmp_path / "m-00002-of-00003.gguf"
    path.write_bytes(b"anything")
    with pytest.raises(CheckpointError, match="not a whole model (.|\n)*part 2 of 3; merge them first"):
        read(path)
    with pytest.raises(CheckpointError, match="part 1 of 2; merge them first"):
        read(write_model(tmp_path / "m.gguf", split__no=0, split__count=2))
    write_model(tmp_path / "whole-00001-of-00001.gguf", split__no=0, split__count=1)
    assert load(tmp_path / "whole-00001-of-00001.gguf").config.n_layers == 1


def test_a_head_of_its_own_and_fewer_heads_of_keys(tmp_path):
    shapes = SHAPES | {"output": (VOCAB, D), "blk.0.attn_k": (HEAD, D), "blk.0.attn_v": (HEAD, D)}
    path = write_model(tmp_path / "m.gguf", shapes=shapes, llama__attention__head_count_kv=1)
    model, file = load(path), Gguf(path)
    assert model.config.n_kv_heads == 1 and not model.config.tied
    assert torch.equal(model.head.linear.weight, file.tensor("output.weight"))
    for layer, name, heads in (("key", "k", 1), ("query", "q", HEADS)):
        stored = file.tensor(f"blk.0.attn_{name}.weight")
        ours = getattr(model.stack.blocks[0].attention, layer).weight
        assert torch.equal(ours, deinterleave(stored, heads))


def test_settings_that_are_missing_are_all_named(tmp_path):
    kind = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    (tmp_path / "m.gguf").write_bytes(header([tensor("a", 0)], [kind]))
    with pytest.raises(CheckpointError, match="missing    llama.block_count") as found:
        load(tmp_path / "m.gguf")
    assert len(found.value.problems) == 5


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


def text(name):
    return struct.pack("<Q", len(name)) + name.encode()


def whole(name, value):
    return text(name) + struct.pack("<II", 4, value)


def tensor(name, offset, size=8, kind=0):
    return text(name) + struct.pack("<IQIQ", 1, size, kind, offset)  # F32 unless given


def header(tensors=(), metadata=(), data=256, version=3):
    """A file of these entries, with so many bytes of data, aligned to 32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + b"".join([*metadata, *tensors])
    return head + bytes(-len(head) % 32) + bytes(data)


ODD = {
    "overlap": (header([tensor("a", 0, 16), tensor("b", 32)]), "'b' begins at byte .*, expected"),
    "the same place": (header([tensor("a", 0), tensor("b", 0)]), "'b' begins at byte"),
    "not aligned": (header([tensor("a", 0), tensor("b", 33)]), "'b' begins at byte"),
    "a gap": (header([tensor("a", 0), tensor("b", 64)]), "'b' begins at byte .*, where free space begins"),
    "a gap in front": (header([tensor("a", 32)]), "'a' begins at byte"),
    "an endless offset": (header([tensor("a", 2**64 - 32)]), "'a' begins at byte"),
    "a name twice": (header([tensor("a", 0), tensor("a", 32)]), "'a' occurs twice"),
    "a key twice": (header(metadata=[whole("x", 1), whole("x", 2)]), "the metadata have 'x' twice"),
    "an endless array": (header(metadata=[text("x") + struct.pack("<IIQ", 9, 0, 2**40)]),
                         "1099511627776 array items claimed, 2.. bytes left"),
    "an old version": (header(version=1), "version 1, known are 2 and 3"),
    "half a block": (header([tensor("a", 0, 48, 8)]), r"a has shape \(48,\), not whole blocks of 32"),
    "beyond the end": (header([tensor("a", 0), tensor("b", 32)], data=60), "'b' ends at byte .*: is it truncated"),
    "a long list": (header(metadata=[text("x") + struct.pack("<IIQ", 9, 0, 2**23)], data=2**23),
                    "8388610 values in a header, expected 4194304"),
    "a long text": (header(metadata=[text("x") + struct.pack("<IQ", 8, 2**27)], data=2**27), "expected 67108864"),
    "aligned to 0": (header(metadata=[whole("general.alignment", 0)]), "general.alignment = 0, expected a power"),
    "aligned to 48": (header(metadata=[whole("general.alignment", 48)]), "general.alignment = 48, expected"),
    "aligned to 4": (header(metadata=[whole("general.alignment", 4)]), "general.alignment = 4, expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_headers_are_refused(tmp_path, name):
    data, words = ODD[name]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        Gguf(tmp_path / "m.gguf")


def test_tensors_may_be_listed_in_any_order(tmp_path):
    (tmp_path / "m.gguf").write_bytes(header([tensor("b", 64), tensor("a", 0, 12)], data=64) + b"\0\0\x80?" * 8)
    file = Gguf(tmp_path / "m.gguf")
    assert file.tensor("a").tolist() == [0] * 12 and file.tensor("b").tolist() == [1] * 8
