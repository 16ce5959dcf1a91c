"""Encoder-only families: from `config.json` to `Config`, and the names of their weights."""

from dataclasses import replace

from ..config import Config
from .decoders import windows
from .weights import pairs


def bert(r, **other):
    """BERT; RoBERTa, ALBERT and DeBERTa say in `other` where they differ."""
    switches = dict(
        vocab_size=r.number("vocab_size", 30522), d_model=r.number("hidden_size", 768),
        n_layers=r.number("num_hidden_layers", 12), n_heads=r.number("num_attention_heads", 12),
        d_ff=r.number("intermediate_size", 3072), max_positions=r.number("max_position_embeddings", 512),
        n_segments=r("type_vocab_size", 2), causal=False, norm_place="post", final_norm=False,
        embedding_norm=True, norm_eps=r("layer_norm_eps", 1e-12),
        activation=r.activation("hidden_act", "gelu"),
        tied=r("tie_word_embeddings", True), head_bias=True, masked_head=True, pooler=True,
        dropout=r("hidden_dropout_prob", 0.1), attention_dropout=r("attention_probs_dropout_prob", 0.1),
    )  # fmt: skip
    r.refuse("is_decoder", False)
    r.refuse("add_cross_attention", False)
    return Config(**(switches | other))


BLOCK = """
    .attention.self.query = .attention.query
    .attention.self.key = .attention.key
    .attention.self.value = .attention.value
    .attention.output.dense = .attention.out
    .attention.output.LayerNorm = .attention_norm
    .intermediate.dense = .feed_forward.up
    .output.dense = .feed_forward.down
    .output.LayerNorm = .feed_forward_norm
""".strip()
BERT_HEAD = """
    cls.predictions.transform.dense = masked_head.dense
    cls.predictions.transform.LayerNorm = masked_head.norm
    cls.predictions.decoder.weight = masked_head.head.linear.weight
    cls.predictions.bias = masked_head.head.linear.bias
""".strip()


def bert_body(name):
    return pairs(f"{name}.encoder.layer.{{}}", f"""
    {name}.embeddings.word_embeddings = stack.embedding
    {name}.embeddings.position_embeddings = stack.schemes.full.table
    {name}.embeddings.token_type_embeddings = stack.segments
    {name}.embeddings.LayerNorm = stack.embedding_norm
    {name}.pooler.dense = pooler
    {BLOCK}""")  # fmt: skip


def head_bias(entries, values):
    """Tied, the head's bias stands beside `decoder`, and a copy inside; untied, the one inside is used."""
    if values.get("tie_word_embeddings") is not False:
        return entries
    at = lambda name: name.removesuffix("bias") + "decoder.bias"
    return [replace(pair, theirs=at(pair.theirs)) if pair.ours[0].endswith("linear.bias") else pair
            for pair in entries]  # fmt: skip


def bert_names(values):
    return bert_body("bert") + head_bias(pairs("", BERT_HEAD), values)


def roberta(r):
    r.assume(vocab_size=50265, max_position_embeddings=512)
    pad = r("pad_token_id", 1)
    return bert(
        r, position_offset=pad + 1, positions_skip_pad=pad, masked_activation="gelu",
        max_positions=r.number("max_position_embeddings") - pad - 1,
    )  # fmt: skip


def roberta_names(values):
    return bert_body("roberta") + head_bias(pairs("", """
    lm_head.dense = masked_head.dense
    lm_head.layer_norm = masked_head.norm
    lm_head.decoder.weight = masked_head.head.linear.weight
    lm_head.bias = masked_head.head.linear.bias
    """), values)  # fmt: skip


def albert(r):
    r.assume(
        vocab_size=30000, hidden_size=4096, num_attention_heads=64, intermediate_size=16384,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    r.refuse("num_hidden_groups", 1)
    r.refuse("inner_group_num", 1)
    return bert(r, d_embedding=r.number("embedding_size", 128), share_layers=True,
                activation=r.activation("hidden_act", "gelu_new"))  # fmt: skip


def albert_names(values):
    return head_bias(pairs("albert.encoder.albert_layer_groups.0.albert_layers.0", """
    albert.embeddings.word_embeddings = stack.embedding
    albert.embeddings.position_embeddings = stack.schemes.full.table
    albert.embeddings.token_type_embeddings = stack.segments
    albert.embeddings.LayerNorm = stack.embedding_norm
    albert.encoder.embedding_hidden_mapping_in = stack.projection
    .attention.query = .attention.query
    .attention.key = .attention.key
    .attention.value = .attention.value
    .attention.dense = .attention.out
    .attention.LayerNorm = .attention_norm
    .ffn = .feed_forward.up
    .ffn_output = .feed_forward.down
    .full_layer_layer_norm = .feed_forward_norm
    albert.pooler = pooler
    predictions.dense = masked_head.dense
    predictions.LayerNorm = masked_head.norm
    predictions.decoder.weight = masked_head.head.linear.weight
    predictions.bias = masked_head.head.linear.bias
    """, ours="stack.blocks.0"), values)  # fmt: skip


def deberta(r, **other):
    kinds = r("pos_att_type")
    kinds = kinds.split("|") if isinstance(kinds, str) else [] if kinds is None else kinds
    if not isinstance(kinds, list) or any(kind not in ("c2p", "p2c") for kind in kinds):
        r.problem("unknown", "pos_att_type", kinds, "known: c2p, p2c")
        kinds = []
    kinds = set(kinds)  # one named twice counts once
    longest = r.number("max_position_embeddings", 512)
    span = r("max_relative_positions", -1)
    d, h = r.number("hidden_size", 768), r.number("num_attention_heads", 12)
    r.refuse("talking_head", False)
    if not r("relative_attention", False):
        r.problems.append("switch     relative_attention = False   only True is supported")
    if r("position_biased_input", True):
        r.problems.append("switch     position_biased_input = True   only False is supported")
    switches = dict(
        positions="deberta", bucket_distance=span if span > 0 else longest,
        scale=(d // h * (1 + len(kinds))) ** -0.5,
        content_position="c2p" in kinds, position_content="p2c" in kinds, n_segments=r("type_vocab_size", 0),
        norm_eps=r("layer_norm_eps", 1e-7), pooler=False,
        tied=r("tie_word_embeddings", True) if r("legacy", True) else True,  # the new head has no matrix
    )  # fmt: skip
    return bert(r, **(switches | other))


def deberta_v1(r):
    r.assume(vocab_size=50265)
    return deberta(r, attention_bias="qvo")


def deberta_v2(r):
    r.assume(vocab_size=128100, hidden_size=1536, num_hidden_layers=24, num_attention_heads=24,
             intermediate_size=6144)  # fmt: skip
    shared = r("share_att_key", False)
    r.refuse("conv_kernel_size", 0)
    return deberta(
        r, share_position_projection=shared, position_key_bias=True,
        buckets=max(r("position_buckets", -1), 0), norm_positions="layer_norm" in r("norm_rel_ebd", "none"),
    )  # fmt: skip


DEBERTA_NAMES = [
    pair for pair in bert_body("deberta") if ".self." not in pair.theirs and "position_" not in pair.theirs
] + pairs("", """
    deberta.encoder.rel_embeddings = stack.schemes.full.table
    deberta.encoder.LayerNorm = stack.schemes.full.norm
""")  # fmt: skip
NEW_HEAD = pairs("", """
    lm_predictions.lm_head.dense = masked_head.dense
    lm_predictions.lm_head.LayerNorm = masked_head.norm
    lm_predictions.lm_head.bias = masked_head.head.linear.bias
""")  # fmt: skip


def deberta_head(values):
    return head_bias(pairs("", BERT_HEAD), values) if values.get("legacy", True) else NEW_HEAD


def deberta_v1_names(values):
    return DEBERTA_NAMES + deberta_head(values) + pairs("deberta.encoder.layer.{}", """
    .attention.self.in_proj = .attention.(query key value) : per head
    .attention.self.q_bias = .attention.query.bias
    .attention.self.v_bias = .attention.value.bias
    .attention.self.pos_proj = .attention.position_key
    .attention.self.pos_q_proj = .attention.position_query
""")  # fmt: skip


def deberta_v2_names(values):
    return DEBERTA_NAMES + deberta_head(values) + pairs("deberta.encoder.layer.{}", """
    .attention.self.query_proj = .attention.query
    .attention.self.key_proj = .attention.key
    .attention.self.value_proj = .attention.value
    .attention.self.pos_key_proj = .attention.position_key
    .attention.self.pos_query_proj = .attention.position_query
""")  # fmt: skip


def modernbert(r):
    r.assume(max_position_embeddings=8192)
    d, h = r.number("hidden_size", 768), r.number("num_attention_heads", 12)
    d_head, every = d // h, r.number("global_attn_every_n_layers", 3)
    r.refuse("head_dim", d_head)
    if r.values.get("sliding_window") is not None:
        r.problem("switch", "sliding_window", r.values["sliding_window"], "expected local_attention to say it")
    return Config(
        vocab_size=r.number("vocab_size", 50368), d_model=d, n_layers=r.number("num_hidden_layers", 22),
        n_heads=h, d_ff=r.number("intermediate_size", 1152),
        max_positions=r.number("max_position_embeddings"),
        causal=False, norm_eps=r("norm_eps", 1e-5), norm_bias=r("norm_bias", False), embedding_norm=True,
        first_attention_norm=False, attention_bias="qkvo" if r("attention_bias", False) else "",
        positions="rope", rope=r.rope(d_head, 160000.0, "full_attention", base_key="global_rope_theta"),
        rope_window=r.rope(d_head, 10000.0, "sliding_attention", base_key="local_rope_theta"),
        **windows(r, r.number("local_attention", 128) // 2 + 1, lambda i: i % every, 22),
        activation=r.activation("hidden_activation", "gelu"), gated=True, ffn_bias=r("mlp_bias", False),
        tied=r("tie_word_embeddings", True), masked_head=True, masked_head_bias=r("classifier_bias", False),
        masked_activation=r.activation("classifier_activation", "gelu"), head_bias=r("decoder_bias", True),
    )  # fmt: skip


MODERNBERT = pairs("model.layers.{}", """
    model.embeddings.tok_embeddings = stack.embedding
    model.embeddings.norm = stack.embedding_norm
    .attn_norm = .attention_norm
    .attn.Wqkv = .attention.(query key value) : rows
    .attn.Wo = .attention.out
    .mlp_norm = .feed_forward_norm
    .mlp.Wi = .feed_forward.(gate up) : rows
    .mlp.Wo = .feed_forward.down
    model.final_norm = stack.norm
    head.dense = masked_head.dense
    head.norm = masked_head.norm
    decoder = masked_head.head.linear
""")  # fmt: skip
