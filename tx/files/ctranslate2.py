"""CTranslate2's `model.bin` of a Whisper, in the words of its `config.json` (chapter 10).

The packaged Whisper comes in this format: little-endian, u32 version, a string, u32 revision, u32 number
of variables; for each a string name, u8 axes, u32 sizes, u8 type, u32 bytes, data; at the end u32 number of
aliases, for each a string alias and a string name. A string is u16 length, its closing NUL counted, and bytes.
Every length is checked against the size of the file.
"""

import mmap
import struct

import torch

from .errors import CheckpointError, shown

DTYPES = {0: torch.float32, 4: torch.float16}
# Single numbers: what they must be, where that counts. Activation 3 is the exact GELU.
SWITCHES = {
    "pre_norm": 1, "activation": 3, "scale_embeddings": 0, "alibi": 0, "start_from_zero_embedding": 0,
    "num_heads": None, "alignment_heads": None, "alignment_layer": None,
}  # fmt: skip
NORM = {"gamma": "weight", "beta": "bias"}


class Ctranslate2Tensors:
    """The weights of a Whisper in a folder with `model.bin`."""

    def __init__(self, folder):
        path = folder / "model.bin"
        self.at = 0
        try:
            with open(path, "rb") as file:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.stored = self._variables()
            self._check_end()
            self.names = dict(self._translated())
            self.config = self._settings()
        except (struct.error, UnicodeDecodeError, KeyError, IndexError, ValueError) as error:
            problem = f"damaged    byte {self.at} of {path.name}: {error!r}"
            raise CheckpointError(f"{folder} cannot be loaded as a CTranslate2 Whisper", [problem]) from error

    def shape(self, name):
        variable, rows = self.names[name]
        sizes = self.stored[variable][0]
        return (rows.stop - rows.start, *sizes[1:]) if rows else sizes

    def get(self, name):
        variable, rows = self.names[name]
        tensor = self._tensor(variable)
        return tensor[rows] if rows else tensor

    def _tensor(self, variable):
        sizes, dtype, start, n_bytes = self.stored[variable]
        count = n_bytes // dtype.itemsize
        tensor = torch.frombuffer(bytearray(self.bytes[start : start + n_bytes]), dtype=dtype, count=count)
        return tensor.view(sizes)

    def _variables(self):
        """{name: (sizes, dtype, first byte, bytes)} of every variable with numbers in it."""
        version, spec, _ = self._number("I"), self._string(), self._number("I")
        if version != 6 or spec != "WhisperSpec":
            raise ValueError(f"version {version} of {spec!r}, expected 6 of 'WhisperSpec'")
        found, switches = {}, {}
        for _ in range(self._number("I")):
            name, n_axes = self._string(), self._number("B")
            sizes = tuple(self._number("I") for _ in range(n_axes))
            kind, n_bytes = self._number("B"), self._number("I")
            if self.at + n_bytes > len(self.bytes):
                raise ValueError(f"{name} has {n_bytes} bytes, {len(self.bytes) - self.at} are left")
            if name in found or name in switches:
                raise ValueError(f"{name} occurs twice")
            if n_axes:
                if kind not in DTYPES:
                    raise ValueError(f"{name} is stored as type {kind}, expected 0 (float32) or 4 (float16)")
                dtype = DTYPES[kind]
                if n_bytes != torch.Size(sizes).numel() * dtype.itemsize:
                    raise ValueError(f"{name} has {n_bytes} bytes and shape {sizes}")
                found[name] = sizes, dtype, self.at, n_bytes
            else:
                value = int.from_bytes(self.bytes[self.at : self.at + n_bytes], "little")
                switch = name.rpartition("/")[2]
                if switch not in SWITCHES or value != (value if SWITCHES[switch] is None else SWITCHES[switch]):
                    raise ValueError(f"{shown(name)} = {value}, known are {SWITCHES}, None = any")
                switches[name] = value
            self.at += n_bytes
        return found | {name: value for name, value in switches.items() if name.endswith("num_heads")}

    def _check_end(self):
        """The head is the embedding, by one alias, and nothing follows."""
        aliases = {self._string(): self._string() for _ in range(self._number("I"))}
        if aliases != {"decoder/projection/weight": "decoder/embeddings/weight"}:
            raise ValueError(f"aliases {shown(aliases)}: expected the embedding's for the head, and no other")
        if self.at != len(self.bytes):
            raise ValueError(f"{len(self.bytes) - self.at} bytes follow the last alias")

    def _translated(self):
        """(our family's name, (variable, rows or None)); fused projections are cut into rows."""
        for name in (name for name, stored in self.stored.items() if isinstance(stored, tuple)):
            stem, _, end = name.rpartition("/")
            side, _, rest = stem.partition("/")
            if name == "decoder/embeddings/weight":
                yield "model.decoder.embed_tokens.weight", (name, None)
            elif end == "encodings":
                yield f"model.{side}.embed_positions.weight", (name, None)
            elif rest in ("conv1", "conv2"):
                yield f"model.encoder.{rest}.{end}", (name, None)
            elif rest == "layer_norm":
                yield f"model.{side}.layer_norm.{NORM[end]}", (name, None)
            elif rest.startswith("layer_"):
                layer, _, part = rest.removeprefix("layer_").partition("/")
                yield from self._layer(name, f"model.{side}.layers.{layer}", part, end)
            else:
                raise ValueError(f"{shown(name)} is no part of a Whisper")

    def _layer(self, name, layer, part, end):
        part, _, inner = part.partition("/")
        if part == "ffn":
            new = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}[inner]
            yield f"{layer}.{new}.{NORM.get(end, end)}", (name, None)
            return
        attention = "self_attn" if part == "self_attention" else "encoder_attn"
        if inner == "layer_norm":
            yield f"{layer}.{attention}_layer_norm.{NORM[end]}", (name, None)
            return
        fused = {
            ("self_attn", "linear_0"): "qkv", ("self_attn", "linear_1"): "o",
            ("encoder_attn", "linear_0"): "q", ("encoder_attn", "linear_1"): "kv",
            ("encoder_attn", "linear_2"): "o",
        }[attention, inner]  # fmt: skip
        each, left = divmod(self.stored[name][0][0], len(fused))
        if left:
            raise ValueError(f"{name} has {self.stored[name][0][0]} rows, expected a multiple of {len(fused)}")
        for number, letter in enumerate(fused):
            if letter == "k" and end == "bias":
                if self._tensor(name)[number * each : (number + 1) * each].any():
                    raise ValueError(f"{name} has a bias of the keys; Whisper's have none, so expected are zeros")
                continue
            projection = "out_proj" if letter == "o" else f"{letter}_proj"
            rows = slice(number * each, (number + 1) * each)
            yield f"{layer}.{attention}.{projection}.{end}", (name, rows)

    def _settings(self):
        sizes = {name: stored[0] for name, stored in self.stored.items() if isinstance(stored, tuple)}
        config = {
            "model_type": "whisper", "vocab_size": sizes["decoder/embeddings/weight"][0],
            "d_model": sizes["decoder/embeddings/weight"][1], "num_mel_bins": sizes["encoder/conv1/weight"][1],
            "max_source_positions": sizes["encoder/position_encodings/encodings"][0],
            "max_target_positions": sizes["decoder/position_encodings/encodings"][0],
        }  # fmt: skip
        for side in ("encoder", "decoder"):
            numbered = (name.split("/")[1] for name in sizes if name.startswith(f"{side}/layer_"))
            config[f"{side}_layers"] = len({part for part in numbered if part != "layer_norm"})
            config[f"{side}_attention_heads"] = self.stored[f"{side}/num_heads"]
            config[f"{side}_ffn_dim"] = sizes[f"{side}/layer_0/ffn/linear_0/weight"][0]
        return config

    def _number(self, form):
        value = struct.unpack_from("<" + form, self.bytes, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def _string(self):
        length = self._number("H")
        text = self.bytes[self.at : self.at + length].rstrip(b"\0").decode("utf-8")
        self.at += length
        return text
