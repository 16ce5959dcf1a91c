"""The way back: a `config.json` for a `Config`, in a family's words or in our own (chapter 10)."""

from dataclasses import asdict, fields, replace
from typing import Any

from ..config import Config, Rope
from .reading import SCALINGS, Reader

NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
# What a key says, whichever family asks for it. Where a family means something else by it, the file is not
# read back as the same config, and the family is passed over: this table cannot make a wrong file.
WORDS = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), lambda c: c.d_model),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "decoder_layers", "num_decoder_layers"),
                    lambda c: c.n_layers),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
                    lambda c: c.n_heads),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "decoder_ffn_dim", "moe_intermediate_size"),
                    lambda c: c.d_ff),
    **dict.fromkeys(("n_positions", "max_seq_len", "max_target_positions"), lambda c: c.max_positions),
    "max_position_embeddings": lambda c: c.max_positions + (
        0 if c.positions_skip_pad is None else c.position_offset),
    "vocab_size": lambda c: c.vocab_size, "num_key_value_heads": lambda c: c.n_kv_heads,
    "head_dim": lambda c: c.d_head, "d_kv": lambda c: c.d_head, "embedding_size": lambda c: c.d_embedding,
    "type_vocab_size": lambda c: c.n_segments,
    # the encoder's
    **dict.fromkeys(("encoder_layers", "num_layers"), lambda c: c.encoder.n_layers),
    "encoder_attention_heads": lambda c: c.encoder.n_heads, "encoder_ffn_dim": lambda c: c.encoder.d_ff,
    "num_mel_bins": lambda c: c.encoder.n_mels, "max_source_positions": lambda c: c.encoder.max_positions,
    # norms and activations
    **dict.fromkeys(("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps"), lambda c: c.norm_eps),
    "norm_bias": lambda c: c.norm_bias,
    **dict.fromkeys(("hidden_act", "activation_function", "hidden_activation"), lambda c: NAMES[c.activation]),
    "dense_act_fn": lambda c: NAMES[c.activation], "is_gated_act": lambda c: c.gated,
    "feed_forward_proj": lambda c: "gated-gelu" if c.gated else "relu",  # the two keys above count
    "afn": lambda c: {"gelu_tanh": "gelu"}.get(c.activation, c.activation),
    "classifier_activation": lambda c: NAMES[c.masked_activation or c.activation],
    # attention
    "attention_bias": lambda c: "o" in c.attention_bias, "mlp_bias": lambda c: c.ffn_bias,
    "scale_attn_weights": lambda c: c.scale is None, "scale_attn_by_inverse_layer_idx": lambda c: c.scale_by_layer,
    "query_pre_attn_scalar": lambda c: round(c.scale**-2) if c.scale else c.d_head,
    "attn_logit_softcapping": lambda c: c.softcap, "final_logit_softcapping": lambda c: c.logit_softcap,
    "attn_config": lambda c: dict(  # the reference minds the types here: a limit of 8.0, a dropout of 0
        softmax_scale=c.scale and float(c.scale), clip_qkv=c.clip_qkv and float(c.clip_qkv),
        attn_pdrop=c.attention_dropout or 0),
    "use_sliding_window": lambda c: c.window is not None, "sliding_window": lambda c: c.window,
    "local_attention": lambda c: 2 * (c.window or 65) - 2,
    "layer_types": lambda c: [f"{'sliding' if kind == 'window' else 'full'}_attention" for kind in c.layer_types],
    "use_parallel_residual": lambda c: c.parallel,
    "apply_residual_connection_post_layernorm": lambda c: c.residual_after_norm,
    # positions
    "rotary_pct": lambda c: c.rope.width / c.d_head,
    "rope_parameters": lambda c: _rope(c.rope, c) if c.rope_window is None else {
        "full_attention": _rope(c.rope, c), "sliding_attention": _rope(c.rope_window, c)},
    "relative_attention_num_buckets": lambda c: c.buckets,
    "relative_attention_max_distance": lambda c: c.bucket_distance,
    "relative_attention": lambda c: True, "position_biased_input": lambda c: False,
    "pos_att_type": lambda c: ["c2p"] * c.content_position + ["p2c"] * c.position_content,
    "max_relative_positions": lambda c: c.bucket_distance, "position_buckets": lambda c: c.buckets or -1,
    "norm_rel_ebd": lambda c: "layer_norm" if c.norm_positions else "none",
    "share_att_key": lambda c: c.share_position_projection,
    # experts, embedding, head
    **dict.fromkeys(("num_experts", "num_local_experts"), lambda c: c.n_experts),
    "num_experts_per_tok": lambda c: c.experts_per_token, "norm_topk_prob": lambda c: c.norm_expert_weights,
    "scale_embedding": lambda c: c.embedding_scale is not None, "tie_word_embeddings": lambda c: c.tied,
    "scale_decoder_outputs": lambda c: c.head_scale is not None,
    "classifier_bias": lambda c: c.masked_head_bias, "decoder_bias": lambda c: c.head_bias,
    # training
    **dict.fromkeys(("dropout", "resid_pdrop", "hidden_dropout", "hidden_dropout_prob", "dropout_rate"),
                    lambda c: c.dropout),
    **dict.fromkeys(("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"),
                    lambda c: c.attention_dropout),
    "activation_dropout": lambda c: c.ffn_dropout,
}  # fmt: skip


def _rope(rope, c):
    words = {"original": "original_max_position_embeddings", "magnitude": "attention_factor"}
    values = {words.get(name, name): getattr(rope, name) for name in SCALINGS[rope.scaling]}
    if rope.width != c.d_head:
        values["partial_rotary_factor"] = rope.width / c.d_head
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
             if value is not None}  # fmt: skip
    return {"rope_type": rope.scaling, "rope_theta": rope.base, **given}


def written(kind, family, config):
    """The `config.json` of this family that means `config`, or None where it has no words for it."""
    values = {"model_type": kind, "pad_token_id": config.positions_skip_pad}  # a default may lie outside the ids
    # no window: null, said beside layer_types, is none that the reference takes
    words = WORDS.keys() - ({"sliding_window"} if config.window is None else set())
    try:
        while True:  # what is asked for may depend on what is there
            reader = Reader(values)
            back = family.config(reader)
            new = {key: WORDS[key](config) for key in (reader.asked & words) - values.keys()}
            if not new:
                break
            values |= new
    except (ValueError, TypeError, AttributeError, ArithmeticError):  # no rope, no encoder, …
        return None
    return values if not reader.problems and _resolved(back, config) == _resolved(config, config) else None


def _resolved(c, like):
    """A config with what follows written out, and the heads of `like`, which a file may lack."""
    masked = c and c.masked_head and like.masked_head
    return c and replace(
        c, scale=c.scale or c.d_head**-0.5, pooler=c.pooler and like.pooler, masked_head=masked,
        masked_head_bias=not masked or c.masked_head_bias,
        masked_activation=(c.masked_activation or c.activation) if masked else None,
        encoder=_resolved(c.encoder, like.encoder or like),
    )  # fmt: skip


# ── our own words ──


def own_words(kind, family, config):
    """The `config.json` of a model of no family: the switches that are not what they are by default."""
    given = {field.name: getattr(config, field.name) for field in fields(config)
             if config.given(field.name) and getattr(config, field.name) != field.default}  # fmt: skip
    for name in given.keys() & {"rope", "rope_window"}:
        given[name] = asdict(given[name])
    if config.encoder:
        given["encoder"] = own_words(kind, family, config.encoder)
    return {"model_type": kind, **given}


def own_config(r):
    """`Config` from such a file."""
    given: dict[str, Any] = _tuples(r.values)
    for name in ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "max_positions"):
        given[name] = r.number(name)
    for name in given.keys() & {"rope", "rope_window"}:
        given[name] = Rope(**_tuples(r(name, {})))
    if "encoder" in given:
        side = Reader(r("encoder", {}))
        given["encoder"] = own_config(side)
        r.problems += side.problems
    return Config(**given)


def _tuples(values):
    """A dictionary from JSON with tuples for lists, and without the words that are no switches."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
            if name not in ("model_type", "dtype")}  # fmt: skip
