"""An architecture is data: every switch of every family in one frozen dataclass (chapters 5 and 6).

A model is built from a `Config` and from nothing else; a family (chapter 10) is a function from its
`config.json` to a `Config`. The groups below are taught one by one. Defaults are those of GPT-2.
"""

import math
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

# A number's annotation says between which two it lies, both allowed, and what an error calls it.
Size = Annotated[int, 1, math.inf, "a whole number, at least 1"]
Count = Annotated[int, 0, math.inf, "a whole number, at least 0"]
Above = Annotated[float, 1e-9, 1e9, "a number above 0, 1e-9 … 1e9"]
Share = Annotated[float, 0, math.nextafter(1, 0), "a probability, at least 0 and below 1"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class Follows:
    """Marks a value that was not given: it follows from others, again after every `replace`."""


class _Number(int, Follows):
    pass


class _Kinds(tuple, Follows):
    pass


FOLLOWS = {  # what is not given: how it follows
    "n_kv_heads": lambda c: _Number(c.n_heads),
    "d_head": lambda c: _Number(c.d_model // c.n_heads),
    "d_embedding": lambda c: _Number(c.d_model),
    "layer_types": lambda c: _Kinds(("window" if c.window else "full",) * c.n_layers),
}


@dataclass(frozen=True)
class Rope:
    """How rotary positions turn queries and keys (chapter 4).

    base: θ; wavelengths grow from 2π to 2π·θ.
    width: number of features of a head that turn (the first ones), d_head unless positions are partial.
    scaling: for texts longer than `original` positions, the length of training.
    factor: how many times longer.
    The rest belongs to single scalings and is named as in their papers.

    Raises:
        ValueError: a value that would make a frequency infinite, NaN or missing.
    """

    base: Annotated[float, 1e-9, 1e15, "a number above 0, at most 1e15"]
    width: Annotated[int, 2, math.inf, "an even number of features to turn, at least 2"]
    scaling: Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"] = "default"
    factor: Annotated[float, 1e-6, 1e6, "a number above 0, 1e-6 … 1e6"] = 1.0
    original: Count = 0
    beta_fast: Above = 32.0
    beta_slow: Above = 1.0
    truncate: bool = True
    low_freq_factor: Above = 1.0
    high_freq_factor: Above = 4.0
    short_factor: tuple[Above, ...] = ()
    long_factor: tuple[Above, ...] = ()
    magnitude: Above | None = None  # of cos and sin; None = what the scaling's paper says

    def __post_init__(self):
        _check_values(self, "rope: ")
        _check_rope(self)


@dataclass(frozen=True)
class Config:
    """The switches of a transformer, in groups; the comment beside a switch says what it does.

    Four switches follow from others unless they are given, and go on following them: with
    `dataclasses.replace(config, n_heads=8)` a multi-head model stays multi-head.

    Raises:
        ValueError: a value that its annotation does not allow, or values that contradict each other.
    """

    # ── size ──
    vocab_size: Size
    d_model: Size
    n_layers: Size
    n_heads: Size
    d_ff: Size
    max_positions: Size
    n_kv_heads: Size = _Number()  # of keys and values; unless given n_heads: multi-head attention
    d_head: Size = _Number()  # unless given d_model / n_heads
    d_embedding: Size = _Number()  # unless given d_model; ALBERT gives one, and projects
    share_layers: bool = False  # ALBERT: one layer's weights, used n_layers times

    # ── norm ──
    norm: Literal["layer", "rms", "rms_plus_one"] = "layer"  # rms_plus_one: Gemma's weight is 1 + w
    norm_eps: Annotated[float, 0, 1, "a number, 0 … 1"] = 1e-5
    norm_bias: bool = True
    norm_place: Literal["pre", "post", "sandwich", "output"] = "pre"  # sandwich: Gemma 2, output: OLMo 2
    final_norm: bool = True
    embedding_norm: bool = False
    first_attention_norm: bool = True  # ModernBERT: layer 0 has none
    residual_after_norm: bool = False  # BLOOM's switch: the residual is the normed input
    parallel: bool = False  # NeoX: attention and feed-forward read the same x

    # ── attention ──
    attention_bias: Literal["qkvo", "qkv", "qvo", ""] = "qkvo"  # which projections have a bias
    scale: Above | None = None  # of the scores; None = 1/√d_head
    scale_by_layer: bool = False  # GPT-2's switch: divide by the number of the layer, too
    qk_norm: Literal["", "head", "full"] = ""  # head: Qwen 3, Gemma 3; full: OLMo 2, over the whole width
    clip_qkv: Above | None = None  # MPT: limit of the projections
    softcap: Above | None = None  # Gemma 2
    sinks: bool = False  # gpt-oss
    window: Size | None = None  # keys seen, the query counted
    layer_types: tuple[Literal["full", "window"], ...] = _Kinds()  # unless given all alike
    causal: bool = True

    # ── positions ──
    positions: Literal["learned", "sinusoidal", "rope", "alibi", "t5", "deberta", "none"] = "learned"
    position_offset: Count = 0  # rows of the learned table; BART 2; RoBERTa's is pad + 1
    positions_skip_pad: Count | None = None  # RoBERTa: id of the pad that is not counted
    rope: Rope | None = None
    rope_window: Rope | None = None  # of the layers with a window, where it differs
    buckets: Count = 0  # T5 and DeBERTa v2
    bucket_distance: Count = 0
    content_position: bool = False  # DeBERTa's c2p
    position_content: bool = False  # DeBERTa's p2c
    share_position_projection: bool = False
    position_key_bias: bool = False  # DeBERTa v2 has one where it does not share, v1 has none
    norm_positions: bool = False

    # ── feed-forward ──
    activation: Activation = "gelu_tanh"
    gated: bool = False
    ffn_bias: bool = True
    n_experts: Count = 0  # mixture of experts
    experts_per_token: Count = 0
    norm_expert_weights: bool = True

    # ── embedding and head ──
    embedding_scale: Above | None = None  # √d_model for Gemma
    n_segments: Count = 0  # BERT's token types
    tied: bool = True
    head_bias: bool = False
    head_scale: Above | None = None  # T5: d_model ** -0.5, before the head
    logit_softcap: Above | None = None
    masked_head: bool = False  # BERT's head for masked tokens, and its bias and activation
    masked_head_bias: bool = True
    masked_activation: Activation | None = None  # None = as in the feed-forward
    pooler: bool = False

    # ── two stacks ──
    encoder: "Config | None" = None
    n_mels: Count = 0  # Whisper's encoder hears instead of reading

    # ── training ──
    dropout: Share = 0.0
    attention_dropout: Share = 0.0
    ffn_dropout: Share = 0.0

    def __post_init__(self):
        _check_values(self)
        for name, follow in FOLLOWS.items():
            if not self.given(name):
                object.__setattr__(self, name, follow(self))
        _check_config(self)

    def given(self, name):
        """Whether a switch was given, and does not follow from others."""
        value = getattr(self, name)
        return value is not None and not isinstance(value, Follows)


DEFAULTS = {field.name: field.default for field in fields(Config)}


def _check_config(c):
    """What an annotation cannot say: values that contradict each other."""
    ropes = [rope.width for rope in (c.rope, c.rope_window) if rope]
    _refuse({
        f"d_model = {c.d_model} is not divisible by n_heads = {c.n_heads}; d_head is not given.":
            not c.given("d_head") and c.d_model % c.n_heads,
        f"n_kv_heads = {c.n_kv_heads} does not divide n_heads = {c.n_heads}.": c.n_heads % c.n_kv_heads,
        f"experts_per_token = {c.experts_per_token}: expected 1 … n_experts = {c.n_experts}.":
            c.n_experts and not 0 < c.experts_per_token <= c.n_experts,
        f"layer_types = {c.layer_types}: expected as many as n_layers = {c.n_layers}.":
            len(c.layer_types) != c.n_layers,
        "window = None: there are layers with a window, how wide is it?":
            "window" in c.layer_types and not c.window,
        "rope = None: positions = 'rope' needs a Rope.": c.positions == "rope" and not c.rope,
        f"rope: width = {max(ropes, default=0)} features are to turn, a head has {c.d_head}.":
            max(ropes, default=0) > c.d_head,
        "bucket_distance = 0: positions = 'deberta' tell no two distances apart.":
            c.positions == "deberta" and not c.bucket_distance,
        f"n_kv_heads = {c.n_kv_heads}: positions = 'deberta' need as many as n_heads = {c.n_heads}.":
            c.positions == "deberta" and c.n_kv_heads != c.n_heads,
        f"position_offset = {c.position_offset}: positions = {c.positions!r} have no rows to skip.":
            c.position_offset and c.positions != "learned",
        "positions_skip_pad: it counts the tokens of one pass, so causal = True, which reads on from a cache, "
        "cannot have it.": c.positions_skip_pad is not None and c.causal,
        "share_layers = True: all layers are one, so layer_types and scale_by_layer cannot tell them apart.":
            c.share_layers and (len(set(c.layer_types)) > 1 or c.scale_by_layer),
        f"parallel = True: expected norm_place = 'pre', not {c.norm_place!r}.":
            c.parallel and c.norm_place != "pre",
        "parallel = True: a layer that reads a memory, too, has no such form; encoder is given.":
            c.parallel and c.encoder,
        "residual_after_norm = True: expected norm_place = 'pre' or 'sandwich', and not parallel.":
            c.residual_after_norm and (c.parallel or c.norm_place not in ("pre", "sandwich")),
        f"d_model = {c.d_model}: expected that of the encoder, too.": (c.encoder or c).d_model != c.d_model,
        f"vocab_size = {c.vocab_size}: expected that of the encoder, too, which has the same embedding.":
            c.encoder and not c.encoder.n_mels and c.encoder.vocab_size != c.vocab_size,
        "encoder: it has an encoder of its own.": c.encoder and c.encoder.encoder,
    })  # fmt: skip
    for names, used, without in (
        ("rope rope_window", c.positions == "rope", "positions = 'rope'"),
        ("window", "window" in c.layer_types, "a layer with a window"),
        ("buckets bucket_distance", c.positions in ("t5", "deberta"), "positions = 't5' or 'deberta'"),
        ("content_position position_content share_position_projection position_key_bias norm_positions",
         c.positions == "deberta", "positions = 'deberta'"),
        ("experts_per_token norm_expert_weights", c.n_experts, "n_experts"),
        ("masked_head_bias masked_activation", c.masked_head, "masked_head = True"),
    ):  # fmt: skip
        _refuse({f"{name} = {getattr(c, name)!r}: nothing reads it without {without}.":
                 not used and getattr(c, name) != DEFAULTS[name] for name in names.split()})  # fmt: skip


def _check_rope(r):
    """What an annotation cannot say: which values a scaling needs."""
    least = {"dynamic": 1, "yarn": 1, "llama3": 1, "longrope": 2}.get(r.scaling, 0)
    pairs = r.width // 2
    _refuse({
        f"rope: width = {r.width}: expected an even number of features to turn.": r.width % 2,
        f"rope: original = {r.original}: expected the length of training, at least {least}.": r.original < least,
        f"rope: low_freq_factor = {r.low_freq_factor}: expected less than the high {r.high_freq_factor}.":
            r.scaling == "llama3" and r.low_freq_factor >= r.high_freq_factor,
        f"rope: base = {r.base}, width = {r.width}: {r.scaling!r} divides by zero.":
            r.scaling == "yarn" and r.base == 1 or r.scaling == "dynamic" and pairs == 1,
        f"rope: {len(r.short_factor)} short and {len(r.long_factor)} long factors: expected {pairs} of each.":
            r.scaling == "longrope" and not len(r.short_factor) == len(r.long_factor) == pairs,
    })  # fmt: skip


def _refuse(problems):
    """problems: {message: whether it holds}."""
    for message, holds in problems.items():
        if holds:
            raise ValueError(message)


# ── the annotations are the check ──


def _check_values(given, prefix=""):
    """Every field of a dataclass is what its annotation says."""
    for name, hint in get_type_hints(type(given), include_extras=True).items():
        value = getattr(given, name)
        if isinstance(value, Follows) or value is None and name in FOLLOWS:
            continue
        if expected := _expected(value, hint):
            raise ValueError(f"{prefix}{name} = {value!r}: expected {expected}.")


def _expected(value, hint):
    """What a type (Literal, Annotated, `|`, tuple[…, ...] or a class) is in words; "" where the value is one."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        fits, words = value in parts, "one of " + ", ".join(map(repr, parts))
    elif origin is Annotated:
        kind, least, most, words = parts
        fits = isinstance(value, (int, kind)) and not isinstance(value, bool) and least <= value <= most
    elif origin is tuple:
        wrong = [_expected(part, parts[0]) for part in (value if isinstance(value, tuple) else [None])]
        fits, words = not any(wrong), "a tuple, each " + max(wrong, default="")
    elif parts:
        wrong = [_expected(value, part) for part in parts]
        fits, words = not all(wrong), ", or ".join(wrong)
    else:
        fits, words = isinstance(value, hint), _PLAIN.get(hint, f"a {hint.__name__}")
    return "" if fits else words


_PLAIN = {bool: "True or False", type(None): "None"}
