"""Families: what a `config.json` means, and what its weights are called (chapter 10).

One entry a family: a function from the file to `Config`, the names of the weights, the model that is
built. No model code knows a family's name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..decoder import Decoder
from ..encoder import Encoder
from ..encoder_decoder import EncoderDecoder
from . import decoders, encoder_decoders, encoders
from .reading import Reader

__all__ = ["FAMILIES", "Family", "Reader"]


@dataclass(frozen=True)
class Family:
    """One entry.

    config: `Reader` -> `Config`. weights: pairs of names, or a function of the file that gives them.
    model: the class that is built.
    prefixes: what some files put before, or leave out of, their names. ignored: names in files that
    are no weights (buffers of old versions), as endings.
    """

    config: Callable
    weights: list | Callable
    model: type = Decoder
    prefixes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def names(self, values):
        """The pairs of names for a checkpoint with this `config.json`."""
        return self.weights(values) if callable(self.weights) else self.weights


OLD_BERT = (".position_ids", "predictions.decoder.bias", "lm_head.decoder.bias", "seq_relationship.weight",
            "seq_relationship.bias", "sop_classifier.classifier.weight", "sop_classifier.classifier.bias",
            "mask_predictions.dense.weight", "mask_predictions.dense.bias")  # fmt: skip
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
FAMILIES = {
    "openai-gpt": Family(decoders.openai_gpt, decoders.OPENAI_GPT, prefixes=("transformer.",)),
    "gpt2": Family(decoders.gpt2, decoders.GPT2, prefixes=("transformer.",), ignored=(
        ".attn.bias", ".attn.masked_bias")),
    "gpt_neox": Family(decoders.gpt_neox, decoders.GPT_NEOX, ignored=(
        ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")),
    "bloom": Family(decoders.bloom, decoders.BLOOM, prefixes=("transformer.",)),
    "mpt": Family(decoders.mpt, decoders.MPT, prefixes=("transformer.",)),
    "llama": Family(decoders.llama, decoders.LLAMA, ignored=(".rotary_emb.inv_freq",)),
    "mistral": Family(decoders.mistral, decoders.LLAMA),
    "mixtral": Family(decoders.mixtral, decoders.MIXTRAL),
    "gemma": Family(decoders.gemma, decoders.LLAMA),
    "gemma2": Family(decoders.gemma2, decoders.GEMMA2),
    "gemma3_text": Family(decoders.gemma3, decoders.GEMMA2),
    "qwen2": Family(decoders.qwen2, decoders.LLAMA),
    "olmo2": Family(decoders.olmo2, decoders.OLMO2),
    "phi3": Family(decoders.phi3, decoders.PHI3),
    "qwen3": Family(decoders.qwen3, decoders.LLAMA),
    "qwen3_moe": Family(decoders.qwen3_moe, decoders.QWEN3_MOE),
    "bert": Family(encoders.bert, encoders.BERT, Encoder, ("bert.",), OLD_BERT),
    "roberta": Family(encoders.roberta, encoders.ROBERTA, Encoder, ("roberta.",), OLD_BERT),
    "albert": Family(encoders.albert, encoders.ALBERT, Encoder, ("albert.",), OLD_BERT),
    "deberta": Family(encoders.deberta_v1, encoders.deberta_v1_names, Encoder, ("deberta.",), OLD_BERT),
    "deberta-v2": Family(encoders.deberta_v2, encoders.deberta_v2_names, Encoder, ("deberta.",), OLD_BERT),
    "modernbert": Family(encoders.modernbert, encoders.MODERNBERT, Encoder, ("model.",)),
    "t5": Family(encoder_decoders.t5, encoder_decoders.t5_names, EncoderDecoder, ignored=COPIES),
    "mt5": Family(encoder_decoders.mt5, encoder_decoders.t5_names, EncoderDecoder, ignored=COPIES),
    "bart": Family(encoder_decoders.bart, encoder_decoders.BART, EncoderDecoder, ("model.",), COPIES),
    "marian": Family(encoder_decoders.marian, encoder_decoders.BART, EncoderDecoder, ("model.",),
                     (*COPIES, "embed_positions.weight")),
    "whisper": Family(encoder_decoders.whisper, encoder_decoders.WHISPER, EncoderDecoder, ("model.",)),
}  # fmt: skip
