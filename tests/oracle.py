"""Tiny random checkpoints of every family, made by the reference, for tests to compare with.

Every parameter is redrawn: default biases of 0 and norm weights of 1 would hide a mistake.
"""

import contextlib
import functools
import os
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

os.environ["HF_HUB_OFFLINE"] = "1"

LLAMA = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64)  # fmt: skip
PLAIN = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
FOLDERS = tempfile.TemporaryDirectory(prefix="tx-oracle-")  # gone when the tests end
GPT = dict(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64)
DEBERTA = dict(PLAIN, relative_attention=True, position_biased_input=False, type_vocab_size=0)
BART = dict(vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
            decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=48, pad_token_id=60, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=3, forced_eos_token_id=None, max_position_embeddings=64)  # fmt: skip
T5 = dict(vocab_size=61, d_model=32, d_kv=6, num_heads=4, num_layers=2, num_decoder_layers=2, d_ff=48,
          relative_attention_num_buckets=8, relative_attention_max_distance=16)  # fmt: skip
THETA = dict(rope_theta=500.0)


def _scaled(**parameters):
    return dict(LLAMA, rope_parameters=THETA | parameters)


# name: (class prefix, model class, settings)
DECODERS = {
    "openai-gpt": ("OpenAIGPT", "OpenAIGPTLMHeadModel", GPT),
    "openai-gpt-relu": ("OpenAIGPT", "OpenAIGPTLMHeadModel", dict(GPT, afn="relu", n_head=8)),
    "gpt2": ("GPT2", "GPT2LMHeadModel", GPT),
    "gpt2-switches": ("GPT2", "GPT2LMHeadModel", dict(
        GPT, n_inner=40, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False,
        activation_function="relu")),
    "gpt2-no-scale": ("GPT2", "GPT2LMHeadModel", dict(GPT, scale_attn_weights=False)),
    "neox": ("GPTNeoX", "GPTNeoXForCausalLM", PLAIN),
    "neox-sequential": ("GPTNeoX", "GPTNeoXForCausalLM", dict(
        PLAIN, use_parallel_residual=False, attention_bias=False,
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5))),
    "bloom": ("Bloom", "BloomForCausalLM", dict(vocab_size=61, hidden_size=32, n_layer=3, n_head=4)),
    "bloom-6-heads": ("Bloom", "BloomForCausalLM", dict(
        vocab_size=61, hidden_size=36, n_layer=3, n_head=6, apply_residual_connection_post_layernorm=True)),
    "mpt": ("Mpt", "MptForCausalLM", dict(vocab_size=61, d_model=32, n_layers=3, n_heads=4, max_seq_len=64)),
    "mpt-6-heads": ("Mpt", "MptForCausalLM", dict(
        vocab_size=61, d_model=36, n_layers=3, n_heads=6, max_seq_len=64,
        attn_config=dict(clip_qkv=0.7, softmax_scale=0.3))),
    "llama-1": ("Llama", "LlamaForCausalLM", PLAIN),
    "llama-3": ("Llama", "LlamaForCausalLM", _scaled(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)),
    "llama-biases": ("Llama", "LlamaForCausalLM", dict(
        PLAIN, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=12)),
    "llama-linear": ("Llama", "LlamaForCausalLM", _scaled(rope_type="linear", factor=2.0)),
    "llama-dynamic": ("Llama", "LlamaForCausalLM", _scaled(rope_type="dynamic", factor=4.0)
                      | dict(max_position_embeddings=8)),
    "llama-yarn": ("Llama", "LlamaForCausalLM", _scaled(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama-yarn-shorter": ("Llama", "LlamaForCausalLM", _scaled(
        rope_type="yarn", factor=0.5, original_max_position_embeddings=16)),
    "llama-longrope": ("Llama", "LlamaForCausalLM", _scaled(
        rope_type="longrope", factor=4.0, original_max_position_embeddings=16,
        short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 3.0, 4.0])),
    "mistral": ("Mistral", "MistralForCausalLM", dict(LLAMA, sliding_window=5)),
    "mistral-full": ("Mistral", "MistralForCausalLM", dict(LLAMA, sliding_window=None)),
    "mixtral": ("Mixtral", "MixtralForCausalLM", dict(LLAMA, num_local_experts=4, num_experts_per_tok=2)),
    "gemma": ("Gemma", "GemmaForCausalLM", dict(LLAMA, head_dim=12)),
    "gemma-mqa": ("Gemma", "GemmaForCausalLM", dict(LLAMA, head_dim=8, num_key_value_heads=1)),
    "gemma-relu": ("Gemma", "GemmaForCausalLM", dict(LLAMA, head_dim=8, hidden_act="relu")),
    "gemma-2": ("Gemma2", "Gemma2ForCausalLM", dict(
        LLAMA, head_dim=12, sliding_window=4, query_pre_attn_scalar=10, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0)),
    "gemma-2-no-caps": ("Gemma2", "Gemma2ForCausalLM", dict(
        LLAMA, head_dim=8, sliding_window=4, attn_logit_softcapping=None, final_logit_softcapping=None)),
    "gemma-3": ("Gemma3Text", "Gemma3ForCausalLM", dict(
        LLAMA, head_dim=12, sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "gemma-3-linear": ("Gemma3Text", "Gemma3ForCausalLM", dict(
        LLAMA, head_dim=8, sliding_window=4, layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                         "sliding_attention": dict(rope_type="default", rope_theta=1e4)})),
    "qwen-2": ("Qwen2", "Qwen2ForCausalLM", LLAMA),
    "qwen-2-window": ("Qwen2", "Qwen2ForCausalLM", dict(
        LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=1, tie_word_embeddings=True)),
    "qwen-3": ("Qwen3", "Qwen3ForCausalLM", dict(LLAMA, head_dim=12)),
    "olmo-2": ("Olmo2", "Olmo2ForCausalLM", dict(LLAMA, pad_token_id=0)),
    "olmo-2-mha": ("Olmo2", "Olmo2ForCausalLM", dict(PLAIN, pad_token_id=0, attention_bias=True)),
    "phi-3": ("Phi3", "Phi3ForCausalLM", dict(LLAMA, pad_token_id=0, sliding_window=5)),
    "phi-3-partial": ("Phi3", "Phi3ForCausalLM", dict(
        LLAMA, pad_token_id=0, rope_parameters=THETA | dict(rope_type="default", partial_rotary_factor=0.5))),
    "qwen-3-bias": ("Qwen3", "Qwen3ForCausalLM", dict(LLAMA, head_dim=8, attention_bias=True)),
    "qwen-3-moe": ("Qwen3Moe", "Qwen3MoeForCausalLM", dict(
        LLAMA, head_dim=12, moe_intermediate_size=20, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True)),
    "qwen-3-moe-window": ("Qwen3Moe", "Qwen3MoeForCausalLM", dict(
        LLAMA, head_dim=8, moe_intermediate_size=20, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
        use_sliding_window=True, sliding_window=5, max_window_layers=2, attention_bias=True)),
}  # fmt: skip
ENCODERS = {
    "bert": ("Bert", "BertForMaskedLM", PLAIN),
    "bert-relu": ("Bert", "BertForMaskedLM", dict(PLAIN, hidden_act="relu", type_vocab_size=3)),
    "bert-untied": ("Bert", "BertForMaskedLM", dict(PLAIN, tie_word_embeddings=False)),
    "roberta": ("Roberta", "RobertaForMaskedLM", PLAIN),
    "roberta-untied": ("Roberta", "RobertaForMaskedLM", dict(PLAIN, tie_word_embeddings=False)),
    "roberta-pad-0": ("Roberta", "RobertaForMaskedLM", dict(PLAIN, pad_token_id=0, type_vocab_size=1)),
    "albert": ("Albert", "AlbertForMaskedLM", dict(PLAIN, embedding_size=16)),
    "albert-gelu": ("Albert", "AlbertForMaskedLM", dict(PLAIN, embedding_size=24, hidden_act="gelu")),
    "albert-untied-equal-widths": ("Albert", "AlbertForMaskedLM", dict(
        PLAIN, embedding_size=32, tie_word_embeddings=False)),
    "deberta": ("Deberta", "DebertaForMaskedLM", dict(DEBERTA, pos_att_type=["c2p", "p2c"])),
    "deberta-c2p": ("Deberta", "DebertaForMaskedLM", dict(
        DEBERTA, pos_att_type=["c2p"], max_relative_positions=5)),
    "deberta-v2": ("DebertaV2", "DebertaV2ForMaskedLM", dict(
        DEBERTA, pos_att_type=["c2p", "p2c"], legacy=False)),
    "deberta-v3": ("DebertaV2", "DebertaV2ForMaskedLM", dict(
        DEBERTA, pos_att_type="p2c|c2p", legacy=False, position_buckets=4, norm_rel_ebd="layer_norm",
        share_att_key=True, max_position_embeddings=32)),
    "modernbert": ("ModernBert", "ModernBertForMaskedLM", dict(
        PLAIN, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=6,
        num_hidden_layers=4)),
    "modernbert-biases": ("ModernBert", "ModernBertForMaskedLM", dict(
        PLAIN, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=4,
        norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)),
}  # fmt: skip
ENCODER_DECODERS = {
    "t5": ("T5", "T5ForConditionalGeneration", T5),
    "t5-v1.1": ("T5", "T5ForConditionalGeneration", dict(
        T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "t5-gated-silu": ("T5", "T5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-silu")),
    "mt5": ("MT5", "MT5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-gelu", d_kv=8)),
    "mt5-odd-layers": ("MT5", "MT5ForConditionalGeneration", dict(T5, num_decoder_layers=1)),
    "bart": ("Bart", "BartForConditionalGeneration", dict(BART, scale_embedding=True)),
    "bart-relu": ("Bart", "BartForConditionalGeneration", dict(BART, activation_function="relu")),
    "marian": ("Marian", "MarianMTModel", dict(BART, scale_embedding=True, activation_function="swish")),
    "marian-plain": ("Marian", "MarianMTModel", BART),
    "whisper": ("Whisper", "WhisperForConditionalGeneration", {
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
        "max_source_positions": 20, "max_target_positions": 20}),
    "whisper-128-mels": ("Whisper", "WhisperForConditionalGeneration", {
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
        "max_source_positions": 20, "max_target_positions": 20, "num_mel_bins": 128, "scale_embedding": True}),
}  # fmt: skip
ALL = DECODERS | ENCODERS | ENCODER_DECODERS


def _fixed(name, parameter_name):
    """Marian's sinusoids: computed, not learned, and not saved."""
    return name.startswith("marian") and "embed_positions" in parameter_name


@functools.cache
def checkpoint(name, seed=1):
    """(the reference's model in eval mode, the folder it was saved to)."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prefix, kind, settings = ALL[name]
    config = getattr(transformers, prefix + "Config")(**settings)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    g = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        if not _fixed(name, parameter_name):
            parameter.data.normal_(std=0.3, generator=g)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name == "final_logits_bias":
            buffer.normal_(generator=g)
    folder = Path(tempfile.mkdtemp(dir=FOLDERS.name))
    model.save_pretrained(folder)
    return model, folder


def reload(name, folder):
    """The reference's model from a folder that we wrote."""
    import transformers

    return getattr(transformers, ALL[name][1]).from_pretrained(folder, attn_implementation="eager").eval()


class Float64Inside(TorchFunctionMode):
    """The reference's casts to fp32, in norms, softmax, routers and rotary tables, go to float64 instead."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        double = lambda x: torch.float64 if x is torch.float32 else x
        return func(*map(double, args), **{key: double(value) for key, value in (kwargs or {}).items()})


@contextlib.contextmanager
def float64(name):
    """The reference's model with the same weights, made and run in float64 throughout."""
    theirs, _ = checkpoint(name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Inside(), mock.patch.object(torch, "FloatTensor", torch.DoubleTensor):  # Marian's sinusoids
            model = type(theirs)(theirs.config).eval()
            weights = {key: value for key, value in theirs.state_dict().items() if not _fixed(name, key)}
            model.load_state_dict(weights, strict=False)
            yield model
    finally:
        torch.set_default_dtype(before)
