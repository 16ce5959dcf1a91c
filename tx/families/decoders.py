"""Decoder-only families: from `config.json` to `Config`, and the names of their weights."""

import math

from ..config import Config
from .reading import Reader
from .weights import pairs

# ── learned positions, LayerNorm ─────────────────────────────────────────────────────────────────


GPT_NAMES = dict(hidden_size="n_embd", max_position_embeddings="n_positions", num_attention_heads="n_head",
                 num_hidden_layers="n_layer")  # fmt: skip


def openai_gpt(r):
    r.alias(**GPT_NAMES)
    d = r.number("n_embd", 768)
    return Config(
        vocab_size=r.number("vocab_size", 40478), d_model=d, n_layers=r.number("n_layer", 12),
        n_heads=r.number("n_head", 12), d_ff=4 * d, max_positions=r.number("n_positions", 512),
        norm_place="post", final_norm=False, norm_eps=r("layer_norm_epsilon", 1e-5),
        # its "gelu" is the tanh form
        activation="gelu_tanh" if r("afn", "gelu") == "gelu" else r.activation("afn", "gelu"),
        tied=r("tie_word_embeddings", True),
        dropout=r("resid_pdrop", 0.1), attention_dropout=r("attn_pdrop", 0.1),
    )  # fmt: skip


GPT_BLOCK = """
    .ln_1 = .attention_norm
    .attn.c_attn = .attention.(query key value) : turned rows
    .attn.c_proj = .attention.out : turned
    .ln_2 = .feed_forward_norm
    .mlp.c_fc = .feed_forward.up : turned
    .mlp.c_proj = .feed_forward.down : turned
    lm_head = head.linear
"""
OPENAI_GPT = pairs("transformer.h.{}", """
    transformer.tokens_embed = stack.embedding
    transformer.positions_embed = stack.schemes.full.table
""" + GPT_BLOCK.strip())  # fmt: skip


def gpt2(r):
    r.alias(**GPT_NAMES)
    d = r.number("n_embd", 768)
    r.refuse("add_cross_attention", False)
    return Config(
        vocab_size=r.number("vocab_size", 50257), d_model=d, n_layers=r.number("n_layer", 12),
        n_heads=r.number("n_head", 12), d_ff=r.number("n_inner", 4 * d),
        max_positions=r.number("n_positions", 1024),
        norm_eps=r("layer_norm_epsilon", 1e-5), activation=r.activation("activation_function", "gelu_new"),
        scale=None if r("scale_attn_weights", True) else 1.0,
        scale_by_layer=r("scale_attn_by_inverse_layer_idx", False), tied=r("tie_word_embeddings", True),
        dropout=r("resid_pdrop", 0.1), attention_dropout=r("attn_pdrop", 0.1),
    )  # fmt: skip


GPT2 = pairs("transformer.h.{}", """
    transformer.wte = stack.embedding
    transformer.wpe = stack.schemes.full.table
    transformer.ln_f = stack.norm
""" + GPT_BLOCK.strip())  # fmt: skip


def gpt_neox(r):
    d, h = r.number("hidden_size", 6144), r.number("num_attention_heads", 64)
    r.refuse("head_dim", d // h)
    return Config(
        vocab_size=r.number("vocab_size", 50432), d_model=d, n_layers=r.number("num_hidden_layers", 44),
        n_heads=h, d_ff=r.number("intermediate_size", 24576),
        max_positions=r.number("max_position_embeddings", 2048),
        norm_eps=r("layer_norm_eps", 1e-5), parallel=r("use_parallel_residual", True),
        attention_bias="qkvo" if r("attention_bias", True) else "",
        positions="rope", rope=r.rope(d // h, base_key="rotary_emb_base", share=("rotary_pct", 0.25)),
        activation=r.activation("hidden_act", "gelu"), tied=r("tie_word_embeddings", False),
        dropout=r("hidden_dropout", 0.0), attention_dropout=r("attention_dropout", 0.0),
    )  # fmt: skip


GPT_NEOX = pairs("gpt_neox.layers.{}", """
    gpt_neox.embed_in = stack.embedding
    .input_layernorm = .attention_norm
    .attention.query_key_value = .attention.(query key value) : per head
    .attention.dense = .attention.out
    .post_attention_layernorm = .feed_forward_norm
    .mlp.dense_h_to_4h = .feed_forward.up
    .mlp.dense_4h_to_h = .feed_forward.down
    gpt_neox.final_layer_norm = stack.norm
    embed_out = head.linear
""")  # fmt: skip


def bloom(r):
    r.alias(num_attention_heads="n_head", num_hidden_layers="n_layer")
    d = r.number("hidden_size", r("n_embed", 64))
    if r("pretraining_tp", 1) > 1:
        r.refuse("slow_but_exact", False)  # the reference then leaves biases out
    return Config(
        vocab_size=r.number("vocab_size", 250880), d_model=d,
        n_layers=r.number("n_layer", 2), n_heads=r.number("n_head", 8), d_ff=4 * d, max_positions=2**31 - 1,
        norm_eps=r("layer_norm_epsilon", 1e-5), embedding_norm=True,
        residual_after_norm=r("apply_residual_connection_post_layernorm", False),
        positions="alibi", activation="gelu_tanh", tied=r("tie_word_embeddings", True),
        dropout=r("hidden_dropout", 0.0), attention_dropout=r("attention_dropout", 0.0),
    )  # fmt: skip


BLOOM = pairs("transformer.h.{}", """
    transformer.word_embeddings = stack.embedding
    transformer.word_embeddings_layernorm = stack.embedding_norm
    .input_layernorm = .attention_norm
    .self_attention.query_key_value = .attention.(query key value) : per head
    .self_attention.dense = .attention.out
    .post_attention_layernorm = .feed_forward_norm
    .mlp.dense_h_to_4h = .feed_forward.up
    .mlp.dense_4h_to_h = .feed_forward.down
    transformer.ln_f = stack.norm
    lm_head = head.linear
""")  # fmt: skip


def mpt(r):
    r.alias(hidden_size="d_model", num_attention_heads="n_heads", num_hidden_layers="n_layers")
    d, attention = r.number("d_model", 2048), Reader(r("attn_config", {}))
    # what MPT's own code honours, and the reference passes over
    for reader, only in (r, dict(no_bias=True, logit_scale=None, expansion_ratio=4)), (attention, dict(
            alibi=True, alibi_bias_max=8, qk_ln=False, prefix_lm=False, attn_uses_sequence_id=False,
            attn_type="multihead_attention")):  # fmt: skip
        for key, value in only.items():
            reader.refuse(key, value)
    r.problems += attention.problems
    return Config(
        vocab_size=r.number("vocab_size", 50368), d_model=d, n_layers=r.number("n_layers", 24),
        n_heads=r.number("n_heads", 16), d_ff=4 * d, max_positions=r.number("max_seq_len", 2048),
        norm_eps=r("layer_norm_epsilon", 1e-5), norm_bias=False, attention_bias="", ffn_bias=False,
        positions="alibi", scale=attention("softmax_scale"), clip_qkv=attention("clip_qkv"),
        activation="gelu", tied=r("tie_word_embeddings", True),
        **dict.fromkeys(("dropout", "attention_dropout"), attention("attn_pdrop", 0.0)),
    )  # fmt: skip


MPT = pairs("transformer.blocks.{}", """
    transformer.wte = stack.embedding
    .norm_1 = .attention_norm
    .attn.Wqkv = .attention.(query key value) : rows
    .attn.out_proj = .attention.out
    .norm_2 = .feed_forward_norm
    .ffn.up_proj = .feed_forward.up
    .ffn.down_proj = .feed_forward.down
    transformer.norm_f = stack.norm
    lm_head = head.linear
""")  # fmt: skip

# ── LLaMA and what grew from it ──────────────────────────────────────────────────────────────────


def llama(r, **other):
    """LLaMA 1, 2 and 3; the families below say in `other` where they differ."""
    d, h = r.number("hidden_size", 4096), r.number("num_attention_heads", 32)
    kv_heads, d_head = r.number("num_key_value_heads", h), r.number("head_dim", d // h)
    attention_bias = r("attention_bias", False)
    switches = dict(
        vocab_size=r.number("vocab_size", 32000), d_model=d, n_layers=r.number("num_hidden_layers", 32),
        n_heads=h, n_kv_heads=kv_heads if kv_heads != h else None, d_head=d_head if d_head * h != d else None,
        d_ff=r.number("intermediate_size", 11008), max_positions=r.number("max_position_embeddings", 2048),
        norm="rms", norm_eps=r("rms_norm_eps", 1e-6), attention_bias="qkvo" if attention_bias else "",
        gated=True, ffn_bias=r("mlp_bias", False), tied=r("tie_word_embeddings", False),
        attention_dropout=r("attention_dropout", 0.0), positions="rope",
        rope=other.pop("rope", None) or r.rope(d_head),
        activation=other.pop("activation", None) or r.activation("hidden_act", "silu"),
    )  # fmt: skip
    return Config(**(switches | other))


LLAMA = pairs("model.layers.{}", """
    model.embed_tokens = stack.embedding
    .input_layernorm = .attention_norm
    .self_attn.q_proj = .attention.query
    .self_attn.k_proj = .attention.key
    .self_attn.v_proj = .attention.value
    .self_attn.o_proj = .attention.out
    .self_attn.q_norm = .attention.query_norm
    .self_attn.k_norm = .attention.key_norm
    .self_attn.sinks = .attention.sinks
    .post_attention_layernorm = .feed_forward_norm
    .mlp.gate_proj = .feed_forward.gate
    .mlp.up_proj = .feed_forward.up
    .mlp.down_proj = .feed_forward.down
    model.norm = stack.norm
    lm_head = head.linear
""")  # fmt: skip


def mistral(r, **other):
    r.assume(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096)
    return llama(r, attention_bias="", ffn_bias=False, window=r.window(), **other)


def windows(r, window, slides, n_layers=32):
    """Switches of a model some of whose layers have a window: the file's `layer_types`, or slides(layer).

    A window that no layer has is none, and kinds that are all alike need no list.
    """
    default = [SLIDING if slides(i) else FULL for i in range(r.number("num_hidden_layers", n_layers))]
    kinds = r("layer_types", []) or default
    if any(kind not in (SLIDING, FULL) for kind in kinds) or len(kinds) != len(default):
        r.problem("config", "layer_types", kinds, f"expected {len(default)} times {SLIDING} or {FULL}")
        kinds = default
    if window is None and SLIDING in kinds:
        r.problem("config", "sliding_window", None, f"expected how wide a layer of {SLIDING} sees")
    ours = tuple("window" if kind == SLIDING else "full" for kind in kinds)
    return dict(window=window if "window" in ours else None, layer_types=ours if len(set(ours)) > 1 else None)


SLIDING, FULL = "sliding_attention", "full_attention"


def gemma(r, **other):
    """Gemma 1 means the tanh form by "gelu"; the others say it in another key, `hidden_activation`."""
    r.refuse("use_bidirectional_attention", False)
    r.assume(
        vocab_size=256000, hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16,
        head_dim=256, intermediate_size=24576, max_position_embeddings=8192,
    )  # fmt: skip
    d = r.number("hidden_size", 3072)
    if "activation" not in other:
        named = r.activation("hidden_act", "gelu_pytorch_tanh")
        other["activation"] = "gelu_tanh" if named == "gelu" else named
    switches = dict(norm="rms_plus_one", tied=r("tie_word_embeddings", True), embedding_scale=math.sqrt(d))
    return llama(r, **(switches | other))


def gemma2(r, **other):
    r.assume(
        hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=9216, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    )  # fmt: skip
    scalar = r("query_pre_attn_scalar", 256.0)
    if scalar <= 0:
        r.problem("config", "query_pre_attn_scalar", scalar, "expected a number above 0")
        scalar = 1.0
    switches = dict(
        norm_place="sandwich", scale=scalar**-0.5,
        softcap=r("attn_logit_softcapping"), logit_softcap=r("final_logit_softcapping"),
        activation=r.activation("hidden_activation", "gelu_pytorch_tanh"),
        **windows(r, r.window(4096), lambda i: i % 2 == 0),
    )  # fmt: skip
    return gemma(r, **(switches | other))


GEMMA2 = [pair for pair in LLAMA if "layernorm" not in pair.theirs] + pairs("model.layers.{}", """
    .input_layernorm = .attention_norm
    .post_attention_layernorm = .attention_output_norm
    .pre_feedforward_layernorm = .feed_forward_norm
    .post_feedforward_layernorm = .feed_forward_output_norm
""")  # fmt: skip


def gemma3(r):
    r.assume(
        vocab_size=262208, num_hidden_layers=26, max_position_embeddings=131072, head_dim=256,
        attn_logit_softcapping=None, final_logit_softcapping=None,
    )  # fmt: skip
    every = r.number("sliding_window_pattern", 6)
    r.refuse("attn_logit_softcapping", None)  # the reference reads it and does not use it
    d_head = r.number("head_dim")
    return gemma2(
        r, qk_norm="head", **windows(r, r.window(4096), lambda i: (i + 1) % every),
        rope=r.rope(d_head, 1e6, "full_attention"),
        rope_window=r.rope(d_head, 1e4, "sliding_attention", base_key="rope_local_base_freq"),
    )  # fmt: skip


def qwen2(r, **other):
    r.assume(vocab_size=151936, intermediate_size=22016, max_position_embeddings=32768)
    window, first = qwen_window(r), r("max_window_layers", 28)
    slides = lambda i: window is not None and i >= first
    return llama(r, **(dict(attention_bias="qkv", ffn_bias=False) | windows(r, window, slides) | other))


def qwen_window(r):
    return r.window(4096) if r("use_sliding_window", False) else None


def qwen3_attention(r, **other):
    bias = "qkvo" if r("attention_bias", False) else ""
    return qwen2(r, attention_bias=bias, qk_norm="head", **other)


def qwen3(r):
    r.assume(head_dim=128)
    return qwen3_attention(r)


def mixtral(r):
    r.alias(num_experts="num_local_experts")
    r.assume(
        intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=1e6,
    )  # fmt: skip
    return llama(
        r, attention_bias="", ffn_bias=False, window=r.window(),
        n_experts=r.number("num_local_experts", 8), experts_per_token=r.number("num_experts_per_tok", 2),
    )  # fmt: skip


MIXTRAL = LLAMA + pairs("model.layers.{}", """
    .block_sparse_moe.gate = .feed_forward.router
    .block_sparse_moe.experts.{e}.w1 = .feed_forward.experts.{e}.gate
    .block_sparse_moe.experts.{e}.w3 = .feed_forward.experts.{e}.up
    .block_sparse_moe.experts.{e}.w2 = .feed_forward.experts.{e}.down
""")  # fmt: skip


def qwen3_moe(r):
    """Every layer has experts; a window, where one is used, holds for every layer."""
    r.assume(hidden_size=2048, num_hidden_layers=24, num_key_value_heads=4)
    r.refuse("decoder_sparse_step", 1)
    r.refuse("mlp_only_layers", [])
    return qwen3_attention(
        r, d_ff=r.number("moe_intermediate_size", 768), window=qwen_window(r), layer_types=None,
        n_experts=r.number("num_experts", r.number("num_local_experts", 128)),
        experts_per_token=r.number("num_experts_per_tok", 8),
        norm_expert_weights=r("norm_topk_prob", False),
    )  # fmt: skip


QWEN3_MOE = LLAMA + pairs("model.layers.{}", """
    .mlp.gate = .feed_forward.router
    .mlp.experts.{e}.gate_proj = .feed_forward.experts.{e}.gate
    .mlp.experts.{e}.up_proj = .feed_forward.experts.{e}.up
    .mlp.experts.{e}.down_proj = .feed_forward.experts.{e}.down
""")  # fmt: skip


def olmo2(r):
    r.assume(vocab_size=50304, rms_norm_eps=1e-5)
    return llama(r, norm_place="output", qk_norm="full")


OLMO2 = [pair for pair in LLAMA if "layernorm" not in pair.theirs] + pairs("model.layers.{}", """
    .post_attention_layernorm = .attention_output_norm
    .post_feedforward_layernorm = .feed_forward_output_norm
""")  # fmt: skip


FUSED = ("query", "key", "value", "gate", "up")


def phi3(r):
    r.assume(vocab_size=32064, hidden_size=3072, intermediate_size=8192, max_position_embeddings=4096,
             rms_norm_eps=1e-5, original_max_position_embeddings=4096)  # fmt: skip
    d_head = r.number("head_dim", r.number("hidden_size") // r.number("num_attention_heads", 32))
    rope = r.rope(d_head, share=("partial_rotary_factor", 1.0))
    if rope.scaling not in ("default", "longrope"):
        r.problem("unknown", "rope_type", rope.scaling, "known: default, longrope")
    return llama(r, attention_bias="", ffn_bias=False, window=r.window(), rope=rope)


PHI3 = [pair for pair in LLAMA if pair.ours[0].rpartition(".")[2] not in FUSED] + pairs("model.layers.{}", """
    .self_attn.qkv_proj = .attention.(query key value) : rows
    .mlp.gate_up_proj = .feed_forward.(gate up) : rows
""")  # fmt: skip
