"""Encoder–decoder families: from `config.json` to two `Config`s, and the names of their weights."""

import math
from dataclasses import replace

import torch

from ..config import Config
from ..positions import Sinusoidal
from .reading import ACTIVATION_NAMES
from .weights import pairs


def t5(r, scaled=None):
    """T5, v1.1 and FLAN: they differ in the feed-forward and in the scale before the head."""
    r.alias(hidden_size="d_model", num_attention_heads="num_heads", num_hidden_layers="num_layers",
            head_dim="d_kv")  # fmt: skip
    d, kind = r.number("d_model", 512), r("feed_forward_proj", "relu")
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    if name not in ACTIVATION_NAMES:
        r.problem("unknown", "feed_forward_proj", kind, f"known: {', '.join(ACTIVATION_NAMES)}, gated- or not")
        name = "relu"
    # the reference writes what it made of that word, and reads it again
    activation, gated = r.activation("dense_act_fn", name), r("is_gated_act", t5_gated(r.values))
    if scaled is None:  # new files say it in a word of its own, old ones by their tie
        scaled = r("scale_decoder_outputs", r("tie_word_embeddings", True))
    n_layers = r.number("num_layers", 6)
    decoder = Config(
        vocab_size=r.number("vocab_size", 32128), d_model=d, d_head=r.number("d_kv", 64),
        n_layers=r.number("num_decoder_layers", n_layers), n_heads=r.number("num_heads", 8),
        d_ff=r.number("d_ff", 2048), max_positions=2**31 - 1,
        norm="rms", norm_eps=r("layer_norm_epsilon", 1e-6), attention_bias="", ffn_bias=False,
        scale=1.0, positions="t5", buckets=r.number("relative_attention_num_buckets", 32),
        bucket_distance=r.number("relative_attention_max_distance", 128),
        activation=activation, gated=gated, tied=True, head_scale=d**-0.5 if scaled else None,
        **dict.fromkeys(("dropout", "attention_dropout", "ffn_dropout"), r("dropout_rate", 0.1)),
    )  # fmt: skip
    return replace(decoder, encoder=replace(decoder, causal=False, n_layers=n_layers))


def t5_gated(values):
    said = values.get("is_gated_act")
    return str(values.get("feed_forward_proj")).startswith("gated-") if said is None else said


def mt5(r):
    r.assume(vocab_size=250112, num_layers=8, num_heads=6, d_ff=1024, feed_forward_proj=MT5_FEED_FORWARD)
    return t5(r, scaled=False)


MT5_FEED_FORWARD = "gated-gelu"


def t5_stack(side, last):
    return pairs(f"{side}.block.{{}}.layer", f"""
    {side}.block.0.layer.0.SelfAttention.relative_attention_bias = {side}.schemes.full.table
    .0.layer_norm = .attention_norm
    .0.SelfAttention.q = .attention.query
    .0.SelfAttention.k = .attention.key
    .0.SelfAttention.v = .attention.value
    .0.SelfAttention.o = .attention.out
    .1.layer_norm = .cross_attention_norm
    .1.EncDecAttention.q = .cross_attention.query
    .1.EncDecAttention.k = .cross_attention.key
    .1.EncDecAttention.v = .cross_attention.value
    .1.EncDecAttention.o = .cross_attention.out
    .{last}.layer_norm = .feed_forward_norm
    .{last}.DenseReluDense.wi = .feed_forward.up
    .{last}.DenseReluDense.wi_0 = .feed_forward.gate
    .{last}.DenseReluDense.wi_1 = .feed_forward.up
    .{last}.DenseReluDense.wo = .feed_forward.down
    {side}.final_layer_norm = {side}.norm
""", ours=f"{side}.blocks.{{}}")  # fmt: skip


def t5_names(values):
    """`wi` is the only matrix up, or `wi_1` the one beside the gate."""
    wrong = ".DenseReluDense.wi" if t5_gated(values) else ".DenseReluDense.wi_1"
    shared = pairs("", "shared = decoder.embedding\nlm_head = head.linear")
    return shared + [pair for pair in t5_stack("encoder", 1) + t5_stack("decoder", 2)
                     if not pair.theirs.endswith(wrong)]  # fmt: skip


def mt5_names(values):
    return t5_names({"feed_forward_proj": MT5_FEED_FORWARD, **values})


def bart(r, **other):
    """BART; Marian and Whisper say in `other` where they differ."""
    r.alias(hidden_size="d_model", num_attention_heads="encoder_attention_heads",
            num_hidden_layers="encoder_layers")  # fmt: skip
    d = r.number("d_model", 1024)
    shared = dict(
        vocab_size=r.number("vocab_size", 50265), d_model=d,
        max_positions=r.number("max_position_embeddings", 1024), position_offset=2,
        norm_place="post", final_norm=False, embedding_norm=True,
        activation=r.activation("activation_function", "gelu"), tied=r("tie_word_embeddings", True),
        head_bias=True,
        embedding_scale=math.sqrt(d) if r("scale_embedding", False) else None,
        dropout=r("dropout", 0.1), attention_dropout=r("attention_dropout", 0.0),
        ffn_dropout=r("activation_dropout", 0.0),
    ) | other  # fmt: skip
    sides = {
        side: Config(
            n_layers=r.number(f"{side}_layers", 12), n_heads=r.number(f"{side}_attention_heads", 16),
            d_ff=r.number(f"{side}_ffn_dim", 4096), causal=side == "decoder", **shared,
        ) for side in ("encoder", "decoder")
    }  # fmt: skip
    return replace(sides["decoder"], encoder=sides["encoder"])


def marian(r):
    r.assume(vocab_size=58101)
    r.refuse("share_encoder_decoder_embeddings", True)
    return bart(r, positions="sinusoidal", position_offset=0, embedding_norm=False)


def sinusoids(shape):
    """The table (n, D) that old files of Marian hold, and that the reference computes."""
    return Sinusoidal(shape[1]).embed(torch.arange(shape[0]), torch.float32)  # (n, D)


def whisper(r):
    sides = ("encoder", "decoder")
    r.alias(num_key_value_heads="encoder_attention_heads")
    r.assume(
        vocab_size=51865, d_model=384, dropout=0.0, **{f"{side}_layers": 4 for side in sides},
        **{f"{side}_attention_heads": 6 for side in sides}, **{f"{side}_ffn_dim": 1536 for side in sides},
    )  # fmt: skip
    config = bart(
        r, norm_place="pre", final_norm=True, embedding_norm=False, attention_bias="qvo", head_bias=False,
        position_offset=0, max_positions=r.number("max_target_positions", 448),
        embedding_scale=None,  # the reference reads scale_embedding and does not use it
    )  # fmt: skip
    mels, longest = r.number("num_mel_bins", 80), r.number("max_source_positions", 1500)
    encoder = replace(config.encoder, n_mels=mels, max_positions=longest)
    return replace(config, encoder=encoder)


def bart_stack(side):
    return pairs(f"model.{side}.layers.{{}}", f"""
    model.{side}.embed_positions = {side}.schemes.full.table
    model.{side}.layernorm_embedding = {side}.embedding_norm
    model.{side}.layer_norm = {side}.norm
    .self_attn.q_proj = .attention.query
    .self_attn.k_proj = .attention.key
    .self_attn.v_proj = .attention.value
    .self_attn.out_proj = .attention.out
    .self_attn_layer_norm = .attention_norm
    .encoder_attn.q_proj = .cross_attention.query
    .encoder_attn.k_proj = .cross_attention.key
    .encoder_attn.v_proj = .cross_attention.value
    .encoder_attn.out_proj = .cross_attention.out
    .encoder_attn_layer_norm = .cross_attention_norm
    .fc1 = .feed_forward.up
    .fc2 = .feed_forward.down
    .final_layer_norm = .feed_forward_norm
""", ours=f"{side}.blocks.{{}}")  # fmt: skip


BART = bart_stack("encoder") + bart_stack("decoder") + pairs("", """
    model.shared = decoder.embedding
    lm_head.weight = head.linear.weight
    final_logits_bias = head.linear.bias : row
""")  # fmt: skip
WHISPER = bart_stack("encoder") + bart_stack("decoder") + pairs("", """
    model.encoder.conv1 = front.first
    model.encoder.conv2 = front.second
    model.decoder.embed_tokens = decoder.embedding
    proj_out = head.linear
""")  # fmt: skip
