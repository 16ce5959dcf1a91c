"""Counting parameters and cache bytes of published models, on the meta device, in no memory (chapter 10)."""

import torch

from ..checkpoints import build


def _gpt(n_layer, n_embd, n_head, n_positions=1024):
    return {"model_type": "gpt2", "n_layer": n_layer, "n_embd": n_embd, "n_head": n_head,
            "n_positions": n_positions}  # fmt: skip


def _bert(layers, d, heads):
    return {"model_type": "bert", "num_hidden_layers": layers, "hidden_size": d, "num_attention_heads": heads,
            "intermediate_size": 4 * d}  # fmt: skip


def _t5(layers, d, d_ff, heads, d_kv=64, **other):
    return {"model_type": "t5", "num_layers": layers, "d_model": d, "d_ff": d_ff, "num_heads": heads,
            "d_kv": d_kv, **other}  # fmt: skip


def _llama(layers, d, d_ff, heads, kv=None, vocab=32000, kind="llama", **other):
    return {"model_type": kind, "num_hidden_layers": layers, "hidden_size": d, "intermediate_size": d_ff,
            "num_attention_heads": heads, "num_key_value_heads": kv or heads, "vocab_size": vocab,
            **other}  # fmt: skip


# Shapes as published, in the words of each family's config.json.
PUBLISHED = {
    "gpt-2": _gpt(12, 768, 12), "gpt-2-medium": _gpt(24, 1024, 16), "gpt-2-large": _gpt(36, 1280, 20),
    "gpt-2-xl": _gpt(48, 1600, 25),
    "gpt-3-125m": _gpt(12, 768, 12, 2048),
    "gpt-3-13b": _gpt(40, 5120, 40, 2048),  # the paper's table says 5140, which 40 heads of 128 are not
    "gpt-3-175b": _gpt(96, 12288, 96, 2048),
    "bert-base": _bert(12, 768, 12), "bert-large": _bert(24, 1024, 16),
    "t5-small": _t5(6, 512, 2048, 8), "t5-base": _t5(12, 768, 3072, 12), "t5-large": _t5(24, 1024, 4096, 16),
    "t5-3b": _t5(24, 1024, 16384, 32, 128), "t5-11b": _t5(24, 1024, 65536, 128, 128),
    "llama-7b": _llama(32, 4096, 11008, 32), "llama-13b": _llama(40, 5120, 13824, 40),
    "llama-33b": _llama(60, 6656, 17920, 52), "llama-65b": _llama(80, 8192, 22016, 64),
    "llama-2-7b": _llama(32, 4096, 11008, 32), "llama-2-13b": _llama(40, 5120, 13824, 40),
    "llama-2-70b": _llama(80, 8192, 28672, 64, 8),
    "llama-3-8b": _llama(32, 4096, 14336, 32, 8, 128256), "llama-3-70b": _llama(80, 8192, 28672, 64, 8, 128256),
    "llama-3.1-405b": _llama(126, 16384, 53248, 128, 8, 128256),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True),
    "mistral-7b": _llama(32, 4096, 14336, 32, 8, kind="mistral"),
    "mixtral-8x7b": _llama(32, 4096, 14336, 32, 8, kind="mixtral"),
    "gemma-2b": _llama(18, 2048, 16384, 8, 1, 256000, "gemma", head_dim=256),
    "gemma-7b": _llama(28, 3072, 24576, 16, 16, 256000, "gemma", head_dim=256),
    "gemma-2-2b": _llama(26, 2304, 9216, 8, 4, 256000, "gemma2", head_dim=256, tie_word_embeddings=True),
    "gemma-2-9b": _llama(42, 3584, 14336, 16, 8, 256000, "gemma2", head_dim=256, tie_word_embeddings=True),
    "qwen2-0.5b": _llama(24, 896, 4864, 14, 2, 151936, "qwen2", tie_word_embeddings=True),
    "qwen2-1.5b": _llama(28, 1536, 8960, 12, 2, 151936, "qwen2", tie_word_embeddings=True),
    "qwen2-7b": _llama(28, 3584, 18944, 28, 4, 152064, "qwen2"),
    "qwen3-0.6b": _llama(28, 1024, 3072, 16, 8, 151936, "qwen3", head_dim=128, tie_word_embeddings=True),
    "qwen3-8b": _llama(36, 4096, 12288, 32, 8, 151936, "qwen3", head_dim=128),
    "qwen3-30b-a3b": _llama(48, 2048, 6144, 32, 4, 151936, "qwen3_moe", head_dim=128, moe_intermediate_size=768,
                            num_experts=128, num_experts_per_tok=8, norm_topk_prob=True),
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, 49152, tie_word_embeddings=True),
}  # fmt: skip


def count(model):
    """Number of parameters; a matrix that is used twice counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def by_part(model):
    """{part: parameters}: the embedding, attention, feed-forward, norms, positions, head and the rest."""
    parts = dict.fromkeys(("embedding", "positions", "attention", "feed-forward", "norms", "head", "other"), 0)
    for name, parameter in model.named_parameters():
        words = name.split(".")
        inside = [word for word in words if word.endswith(("attention", "feed_forward"))]
        if any(word.endswith("norm") for word in words):
            part = "norms"
        elif inside:
            part = "attention" if "attention" in inside[0] else "feed-forward"
        elif "positions" in words:
            part = "positions"
        elif "embedding" in words or "segments" in words:
            part = "embedding"
        else:
            part = "head" if "head" in name else "other"
        parts[part] += parameter.numel()
    return {part: n for part, n in parts.items() if n}


def cache_bytes_per_token(config, dtype=torch.float16):
    """Bytes that one more token leaves in the cache: 2 · L · G · d_k · bytes of a number."""
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * dtype.itemsize


def published(name):
    """A published model on the meta device.

    Raises:
        ValueError: nothing of that name is known; the message lists what is.
    """
    if name not in PUBLISHED:
        raise ValueError(f"{name!r} is no published shape that we know. Known: {', '.join(PUBLISHED)}.")
    return build(PUBLISHED[name], name)
