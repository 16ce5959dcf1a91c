"""GGUF: one file with the weights, the configuration and the tokenizer of a model (chapter 10).

The header is parsed here, and every length in it is checked against the size of the file before
anything is allocated: a file of a kilobyte may claim an array of 2⁴⁰ entries. The blocks of the
quantised formats are unpacked by the `gguf` package. Format: the specification in ggml's docs, version 3.

    bytes     magic "GGUF", u32 version, u64 number of tensors, u64 number of metadata entries
    metadata  name, u32 type, value;   a string is u64 length and bytes, an array u32 type, u64 length, items
    tensors   name, u32 axes, u64 sizes (fastest first), u32 type, u64 offset
    data      aligned to `general.alignment`, 32 unless given
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from .errors import CheckpointError, shown

SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
MOST_BYTES, MOST_VALUES = 2**26, 2**22  # of a header: a hole in a file claims much and takes no room
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies in the file: sizes in torch's order, type, first byte, number of bytes."""

    shape: tuple[int, ...]
    kind: str
    start: int
    n_bytes: int


class Gguf:
    """An open GGUF file.

    Attributes:
        metadata: {name: value}. tensors: {name: Stored}.

    Raises:
        CheckpointError: the file is no GGUF, is truncated, claims more than it holds, or is a part of a
            model that was split over several files.
    """

    def __init__(self, path):
        self.path = Path(path)
        part = re.search(r"-(\d{5})-of-(\d{5})\.gguf\Z", self.path.name)
        if part and int(part[2]) > 1:
            self._refuse_part(int(part[1]), int(part[2]))
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                problem = f"damaged    it has {size} bytes"
                raise CheckpointError(f"{self.path.name} is no GGUF file", [problem])
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at, self.n_values = 0, 0
        try:
            self._header()
        except (_Damaged, struct.error, UnicodeDecodeError, OverflowError, RecursionError) as error:
            problem = f"damaged    byte {self.at}: {error}"
            raise CheckpointError(f"{self.path.name} cannot be read as GGUF", [problem]) from error
        count = self.metadata.get("split.count", 1)
        if count not in (0, 1):
            number = self.metadata.get("split.no")
            self._refuse_part(number + 1 if isinstance(number, int) else shown(number), shown(count))

    def _refuse_part(self, number, count):
        problem = f"split      part {number} of {count}; merge them first: llama-gguf-split --merge PART-1 WHOLE"
        raise CheckpointError(f"{self.path.name} is not a whole model", [problem])

    def tensor(self, name):
        """The tensor as numbers: F32 stays, everything else is unpacked to fp32."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        stored = self.tensors[name]
        raw = np.frombuffer(self.bytes, np.uint8, stored.n_bytes, stored.start)
        kind = GGMLQuantizationType[stored.kind]
        if stored.kind in ("F32", "F16"):
            numbers = raw.view(np.float32 if stored.kind == "F32" else np.float16).reshape(stored.shape)
            return torch.from_numpy(numbers.astype(np.float32))
        rows = raw.reshape(*stored.shape[:-1], -1)
        return torch.from_numpy(dequantize(rows, kind).reshape(stored.shape))

    # ── the header ──

    def _header(self):
        if self._take(4) != b"GGUF":
            raise _Damaged("it does not begin with GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            raise _Damaged(f"version {version}, known are 2 and 3")
        n_tensors, n_entries = self._number("<Q"), self._number("<Q")
        self._room(n_tensors, 24, "tensors")
        self._room(n_entries, 13, "metadata entries")
        self.metadata: dict = {}
        for _ in range(n_entries):
            name = self._string()
            if name in self.metadata:
                raise _Damaged(f"the metadata have {shown(name)} twice")
            self.metadata[name] = self._value(self._number("<I"))
        found = [self._tensor_entry() for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 2**16 or alignment & (alignment - 1):
            raise _Damaged(f"general.alignment = {shown(alignment)}, expected a power of two, 8 to {2**16}")
        self.tensors = self._placed(found, alignment)

    def _placed(self, found, alignment):
        """{name: Stored}. Tensors lie one after the other, each aligned, as writers of the format put them."""
        data = place = -(-self.at // alignment) * alignment
        tensors: dict[str, Stored] = {}
        for offset, name, shape, kind, n_bytes in sorted(found):
            start, end = data + offset, data + offset + n_bytes
            if start != place:
                raise _Damaged(f"{shown(name)} begins at byte {start}, expected {place}, where free space begins")
            if end > len(self.bytes):
                raise _Damaged(
                    f"{shown(name)} ends at byte {end}, the file has {len(self.bytes)}: is it truncated?"
                )
            if name in tensors:
                raise _Damaged(f"{shown(name)} occurs twice")
            tensors[name] = Stored(shape, kind, start, n_bytes)
            place = -(-end // alignment) * alignment
        return tensors

    def _tensor_entry(self):
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, n_axes = self._string(), self._number("<I")
        if not 1 <= n_axes <= 4:
            raise _Damaged(f"{name} has {n_axes} axes")
        shape = tuple(self._number("<Q") for _ in range(n_axes))[::-1]
        number, offset = self._number("<I"), self._number("<Q")
        kinds = {kind.value: kind for kind in GGMLQuantizationType}
        if number not in kinds or kinds[number].name not in TYPES:
            named = kinds[number].name if number in kinds else number
            raise _Damaged(f"{name} is stored as {named}, known are {', '.join(TYPES)}")
        in_block, block_bytes = GGML_QUANT_SIZES[kinds[number]]
        if math.prod(shape) == 0 or shape[-1] % in_block:
            raise _Damaged(f"{name} has shape {shape}, not whole blocks of {in_block}")
        return offset, name, shape, kinds[number].name, math.prod(shape) // in_block * block_bytes

    def _value(self, kind, depth=0):
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind == ARRAY and depth < 4:
            inner, length = self._number("<I"), self._number("<Q")
            smallest = struct.calcsize(SCALARS[inner]) if inner in SCALARS else 8
            self._room(length, smallest, "array items")
            return [self._value(inner, depth + 1) for _ in range(length)]
        raise _Damaged(f"metadata type {kind}, known are 0 to 12")

    def _string(self):
        length = self._number("<Q")
        self._room(length, 1, "bytes of a string")
        return self._take(length).decode("utf-8")

    def _number(self, form):
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _room(self, count, each, what):
        """Refuse a count of things that the rest of the file cannot hold, or that no header has."""
        if count * each > len(self.bytes) - self.at:
            raise _Damaged(f"{count} {what} claimed, {len(self.bytes) - self.at} bytes left")
        self.n_values += 1 if what == "bytes of a string" else count
        if self.n_values > MOST_VALUES:
            raise _Damaged(f"{self.n_values} values in a header, expected {MOST_VALUES} at most")

    def _take(self, n):
        if self.at + n > MOST_BYTES:
            raise _Damaged(f"a header of {self.at + n} bytes, expected {MOST_BYTES} at most")
        if self.at + n > len(self.bytes):
            raise _Damaged(f"{n} bytes expected, {len(self.bytes) - self.at} left: is the file truncated?")
        self.at += n
        return self.bytes[self.at - n : self.at]


class _Damaged(Exception):
    """What is wrong, at the byte where reading stands."""


class GgufTensors:
    """A GGUF file of the llama architecture, in the words of a `config.json` and its weights."""

    def __init__(self, path):
        self.file = Gguf(path)
        kind = self.file.metadata.get("general.architecture")
        if kind != "llama":
            raise CheckpointError(f"{path} cannot be loaded", [
                f"unknown    general.architecture = {kind!r}   known: 'llama'"])  # fmt: skip
        self.config = {"model_type": "llama", "tie_word_embeddings": "output.weight" not in self.file.tensors}
        for ours, theirs in SETTINGS.items():
            if theirs in self.file.metadata:
                self.config[ours] = self.file.metadata[theirs]
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "rms_norm_eps")
        problems = [f"missing    {SETTINGS[key]}" for key in needed if key not in self.config]
        problems += _switches(self.file.metadata)
        self.config.setdefault("max_position_embeddings", 2048)
        if FACTORS in self.file.tensors:
            problems += self._factors_of_pairs()
        if problems:
            raise CheckpointError(f"{path} cannot be loaded", problems)
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        self.config.setdefault("vocab_size", len(tokens) if isinstance(tokens, list) else 0)
        self.names = {_hugging_face_name(name): name for name in self.file.tensors if name != FACTORS}

    def _factors_of_pairs(self):
        """Read what the frequency of every pair is divided by. LongRoPE says the same, at every length here."""
        stored, half = self.file.tensors[FACTORS], (_head_width(self.file.metadata) or 0) // 2
        if stored.shape != (half,) or half > MOST_PAIRS:
            return [f"shape      {FACTORS} is {stored.shape}, expected ({half},), a number a pair of a head"]
        factors = self.file.tensor(FACTORS).tolist()
        if not all(0 < factor < math.inf for factor in factors):
            return [f"damaged    {FACTORS} = {shown(factors)}   expected numbers above 0"]
        self.config["rope_scaling"] = {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": self.config["max_position_embeddings"],
        }  # fmt: skip
        return []

    def shape(self, name):
        return self.file.tensors[self.names[name]].shape

    def get(self, name):
        tensor = self.file.tensor(self.names[name])
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, key in heads.items():
            if f".{part}." in name:  # stored with neighbours paired
                from ..positions import deinterleave  # here, so that reading a header loads no model code

                return deinterleave(tensor, self.config.get(key, self.config["num_attention_heads"]))
        return tensor


SETTINGS = {
    "hidden_size": "llama.embedding_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.attention.key_length",
    "intermediate_size": "llama.feed_forward_length",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "vocab_size": "llama.vocab_size",
}
WORDS = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


FACTORS, MOST_PAIRS = "rope_freqs.weight", 2**12  # of a head, which real ones have 64 of


def _head_width(metadata):
    """Features of a head, or None where the file does not say."""
    heads, width = metadata.get("llama.attention.head_count"), metadata.get("llama.embedding_length")
    whole = isinstance(heads, int) and isinstance(width, int) and heads > 0
    given = metadata.get("llama.attention.key_length", width // heads if whole else None)
    return given if isinstance(given, int) else None


def _switches(metadata):
    """A line for every setting that asks for more than a plain llama does, or that is not known."""
    d_head = _head_width(metadata)
    only = {
        "rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scale_linear": 1.0,
        "rope.scaling.attn_factor": 1.0, "attention.causal": True,
        "rope.dimension_count": d_head, "attention.value_length": d_head, "expert_count": 0,
        "expert_used_count": 0, "attention.sliding_window": 0, "attention.scale": 0.0, "embedding_scale": 1.0,
        "residual_scale": 1.0, "logit_scale": 1.0, "attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0,
    }  # fmt: skip
    known = {*SETTINGS.values(), *(f"llama.{name}" for name in (*only, *ONLY_WITH_SCALING))}
    for name, allowed in only.items():
        found = metadata.get(f"llama.{name}", allowed)
        if found != allowed:
            yield f"switch     llama.{name} = {shown(found)}   only {allowed!r} is supported"
    for name in sorted(key for key in metadata if key.startswith("llama.") and key not in known):
        yield f"unknown    {name[:80]} = {shown(metadata[name])}"


# What these say counts only where `rope.scaling.type` asks for a scaling.
ONLY_WITH_SCALING = ("rope.scaling.original_context_length", "rope.scaling.finetuned")


def _hugging_face_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; unknown names stay."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in WORDS:
        return f"model.layers.{parts[1]}.{WORDS[parts[2]]}.{parts[3]}"
    return f"{WORDS[parts[0]]}.{parts[1]}" if parts[0] in WORDS and len(parts) == 2 else name
