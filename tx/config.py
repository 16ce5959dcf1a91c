"""An architecture is data: every switch of every family in one frozen dataclass (chapters 5 and 6).

A model is built from a `Config` and from nothing else; a family (chapter 10) is a function from its
`config.json` to a `Config`. The groups below are taught one by one. Defaults are those of GPT-2.
"""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Rope:
    """How rotary positions turn queries and keys (chapter 4).

    base: θ; wavelengths grow from 2π to 2π·θ.
    width: number of features of a head that turn (the first ones), d_k unless positions are partial.
    scaling: "default", "linear", "dynamic", "yarn", "llama3" or "longrope", for longer texts than
        `original` positions, the length of training.
    factor: how many times longer.
    The rest belongs to single scalings and is named as in their papers.
    """

    base: float
    width: int
    scaling: str = "default"
    factor: float = 1.0
    original: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    magnitude: float | None = None  # of cos and sin; None = what the scaling's paper says

    def __post_init__(self):
        _check_rope(self)


@dataclass(frozen=True)
class Config:
    """The switches of a transformer, in groups; the comment beside a switch says what it does.

    What is left at 0 or () is filled in at once, so `dataclasses.replace` keeps it: who changes n_layers
    names layer_types=() again, who changes n_heads or d_model also n_kv_heads=0, d_head=0, d_embedding=0.
    """

    # ── size ──
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    max_positions: int
    n_kv_heads: int = 0  # 0 = n_heads: multi-head attention
    d_head: int = 0  # 0 = d_model / n_heads
    d_embedding: int = 0  # 0 = d_model; ALBERT embeds in fewer and projects
    share_layers: bool = False  # ALBERT: one layer's weights, used n_layers times

    # ── norm ──
    norm: str = "layer"  # "layer", "rms", "rms_plus_one" (Gemma: the weight is 1 + w)
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_place: str = "pre"  # "pre", "post", "sandwich" (Gemma 2), "output" (OLMo 2)
    final_norm: bool = True
    embedding_norm: bool = False
    first_attention_norm: bool = True  # ModernBERT: layer 0 has none
    residual_after_norm: bool = False  # BLOOM's switch: the residual is the normed input
    parallel: bool = False  # NeoX: attention and feed-forward read the same x

    # ── attention ──
    attention_bias: str = "qkvo"  # which projections have a bias
    scale: float | None = None  # of the scores; None = 1/√d_head
    scale_by_layer: bool = False  # GPT-2's switch: divide by the number of the layer, too
    qk_norm: str = ""  # "", "head" (Qwen 3, Gemma 3), "full" (OLMo 2: over the whole width)
    clip_qkv: float | None = None  # MPT: limit of the projections
    softcap: float | None = None  # Gemma 2
    sinks: bool = False  # gpt-oss
    window: int | None = None  # keys seen, the query counted
    layer_types: tuple[str, ...] = ()  # "full" or "window" for each layer; () = all alike
    causal: bool = True

    # ── positions ──
    positions: str = "learned"  # learned, sinusoidal, rope, alibi, t5, deberta, none
    position_offset: int = 0  # BART 2; RoBERTa's is pad + 1
    positions_skip_pad: int | None = None  # RoBERTa: id of the pad that is not counted
    rope: Rope | None = None
    rope_window: Rope | None = None  # of the layers with a window, where it differs
    buckets: int = 0  # T5 and DeBERTa v2
    bucket_distance: int = 0
    content_position: bool = False  # DeBERTa's c2p
    position_content: bool = False  # DeBERTa's p2c
    share_position_projection: bool = False
    position_key_bias: bool = False  # DeBERTa v2 has one where it does not share, v1 has none
    norm_positions: bool = False

    # ── feed-forward ──
    activation: str = "gelu_tanh"
    gated: bool = False
    ffn_bias: bool = True
    n_experts: int = 0  # mixture of experts
    experts_per_token: int = 0
    norm_expert_weights: bool = True

    # ── embedding and head ──
    embedding_scale: float | None = None  # √d_model for Gemma
    n_segments: int = 0  # BERT's token types
    tied: bool = True
    head_bias: bool = False
    head_scale: float | None = None  # T5: d_model ** -0.5, before the head
    logit_softcap: float | None = None
    masked_head: bool = False  # BERT's head for masked tokens, and its bias and activation
    masked_head_bias: bool = True
    masked_activation: str = ""  # "" = as in the feed-forward
    pooler: bool = False

    # ── two stacks ──
    encoder: "Config | None" = None
    n_mels: int = 0  # Whisper's encoder hears instead of reading

    # ── training ──
    dropout: float = 0.0
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0

    def __post_init__(self):
        _check_sizes(self)
        fill = object.__setattr__
        fill(self, "n_kv_heads", self.n_kv_heads or self.n_heads)
        if not self.d_head and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by n_heads = {self.n_heads}; d_head is not given."
            )
        fill(self, "d_head", self.d_head or self.d_model // self.n_heads)
        fill(self, "d_embedding", self.d_embedding or self.d_model)
        default = "window" if self.window else "full"
        fill(self, "layer_types", self.layer_types or (default,) * self.n_layers)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads = {self.n_kv_heads} does not divide n_heads = {self.n_heads}.")
        if self.n_experts and not 0 < self.experts_per_token <= self.n_experts:
            raise ValueError(
                f"experts_per_token = {self.experts_per_token}: expected 1 … n_experts = {self.n_experts}."
            )
        if len(self.layer_types) != self.n_layers:
            raise ValueError(f"{len(self.layer_types)} layer_types for n_layers = {self.n_layers}.")
        if set(self.layer_types) - {"full", "window"}:
            raise ValueError(f"layer_types = {self.layer_types}: known are 'full' and 'window'.")
        if "window" in self.layer_types and self.window is None:
            raise ValueError("window = None: layer_types has layers with a window, how wide is it?")
        for name, known in _KNOWN.items():
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} = {value!r}: known are {', '.join(map(repr, known))}.")


_SIZES = {
    **dict.fromkeys(("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "max_positions"), 1),
    **dict.fromkeys(("n_kv_heads", "d_head", "d_embedding", "position_offset", "buckets", "bucket_distance",
                     "n_experts", "experts_per_token", "n_segments", "n_mels"), 0),
}  # fmt: skip
_ABOVE_ZERO = ("scale", "clip_qkv", "softcap", "embedding_scale", "head_scale", "logit_softcap")
_SHARES = ("dropout", "attention_dropout", "ffn_dropout")


def _is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def _check_sizes(config):
    """Whole numbers, positive numbers, shares and switches are what they should be."""
    for name, least in {**_SIZES, "window": 1}.items():
        value = getattr(config, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and value >= least or name == "window" and value is None):
            raise ValueError(f"{name} = {value!r}: expected a whole number, at least {least}.")
    for name in _ABOVE_ZERO:
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and 1e-9 <= value <= 1e9):
            raise ValueError(f"{name} = {value!r}: expected a number above 0, 1e-9 … 1e9, or None.")
    if not (_is_number(config.norm_eps) and 0 <= config.norm_eps <= 1):
        raise ValueError(f"norm_eps = {config.norm_eps!r}: expected a number, 0 … 1.")
    for name in _SHARES:
        if not (_is_number(getattr(config, name)) and 0 <= getattr(config, name) < 1):
            raise ValueError(f"{name} = {getattr(config, name)!r}: expected a probability, 0 <= {name} < 1.")
    for field in fields(config):
        if isinstance(field.default, bool) and not isinstance(getattr(config, field.name), bool):
            raise ValueError(f"{field.name} = {getattr(config, field.name)!r}: expected True or False.")
    if config.positions == "rope" and config.rope is None:
        raise ValueError("rope = None: positions = 'rope' needs a Rope.")
    d_head = config.d_head or config.d_model // config.n_heads
    for name in ("rope", "rope_window"):
        rope = getattr(config, name)
        if rope is not None and rope.width > d_head:
            raise ValueError(f"{name}: width = {rope.width} features are to turn, a head has d_head = {d_head}.")


def _check_rope(rope):
    """What would make a frequency infinite, NaN or missing is refused."""
    limits = {"base": 1e15, "factor": 1e6, "beta_fast": 1e6, "beta_slow": 1e6}
    for name, most in limits.items():
        value = getattr(rope, name)
        if not (_is_number(value) and 0 < value <= most):
            raise ValueError(f"rope: {name} = {value!r}, expected a number above 0, at most {most:g}.")
    if not isinstance(rope.width, int) or rope.width < 2 or rope.width % 2:
        raise ValueError(f"rope: width = {rope.width!r}, expected an even number of features to turn, at least 2.")
    least = {"dynamic": 1, "yarn": 1, "llama3": 1, "longrope": 2}.get(rope.scaling, 0)
    if not isinstance(rope.original, int) or rope.original < least:
        raise ValueError(f"rope: original = {rope.original!r}, expected the length of training, at least {least}.")
    if rope.magnitude is not None and not (_is_number(rope.magnitude) and rope.magnitude > 0):
        raise ValueError(f"rope: magnitude = {rope.magnitude!r}, expected a number above 0, or None.")
    if rope.scaling == "llama3" and not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise ValueError(
            f"rope: low_freq_factor = {rope.low_freq_factor!r} and high_freq_factor = {rope.high_freq_factor!r}, "
            "expected two numbers above 0, the low one below the high one."
        )
    if rope.scaling == "yarn" and rope.base == 1 or rope.scaling == "dynamic" and rope.width == 2:
        raise ValueError(f"rope: base = {rope.base}, width = {rope.width}: {rope.scaling!r} divides by zero.")
    for name in ("short_factor", "long_factor") if rope.scaling == "longrope" else ():
        factors = getattr(rope, name)
        if len(factors) != rope.width // 2 or not all(_is_number(x) and x > 0 for x in factors):
            raise ValueError(f"rope: {name} = {factors}, expected {rope.width // 2} numbers above 0.")


_KNOWN = {
    "activation": ("gelu", "gelu_tanh", "relu", "silu"),
    "masked_activation": ("", "gelu", "gelu_tanh", "relu", "silu"),
    "norm": ("layer", "rms", "rms_plus_one"),
    "norm_place": ("pre", "post", "sandwich", "output"),
    "positions": ("learned", "sinusoidal", "rope", "alibi", "t5", "deberta", "none"),
    "qk_norm": ("", "head", "full"),
}
