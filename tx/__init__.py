"""Attention and transformers, from scratch: the package that the book builds.

One module an idea, in chapter order. Names are imported on first use, so `import tx` stays light.

What stands above the models is imported from its module:

    from tx.apps.embedding import Embedder, search      texts as vectors, search by meaning
    from tx.apps.transcription import Transcriber       recordings as text
    from tx.apps.conversation import Conversation       a chat whose cache is kept
    from tx.apps.counting import count, published       parameters and cache bytes
    from tx.checkpoints import build, outline      a model without its weights

`python -m tx` does the same at the command line.
"""

from importlib import import_module

_WHERE = {
    "scaled_dot_product": ("attention", "similarity", "softmax", "read_out"),
    "multihead": ("split_heads", "merge_heads", "MultiHeadAttention"),
    "masks": (
        "Mask", "as_mask", "causal", "documents", "everything", "padding", "prefix", "window",
        "to_additive", "to_flex", "to_mha", "to_sdpa",
    ),
    "config": ("Config", "Rope"),
    "decoder": ("Decoder",),
    "tokenization": ("load_tokenizer",),
    "sampling": ("generate",),
    "encoder": ("Encoder",),
    "encoder_decoder": ("EncoderDecoder",),
    "checkpoints": ("load", "save"),
    "cache": ("Cache",),
    "inspecting": ("record",),
    "speed": ("compile_blocks", "fuse"),
}  # fmt: skip
_HOME = {name: module for module, names in _WHERE.items() for name in names}
__all__ = [name for names in _WHERE.values() for name in names]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'tx' has no attribute {name!r}: known are {', '.join(__all__)}")
    return getattr(import_module(f"tx.{_HOME[name]}"), name)


def __dir__():
    return __all__
