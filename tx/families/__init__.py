"""Families: what a `config.json` means, and what its weights are called (chapter 10).

One entry a family: a function from the file to `Config`, the names of the weights, the model that is
built. No model code knows a family's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..decoder import Decoder
from ..encoder import Encoder
from ..encoder_decoder import EncoderDecoder
from . import decoders, encoder_decoders, encoders
from .reading import Reader
from .weights import Pair, expand
from .writing import own_config

__all__ = ["FAMILIES", "Family", "Reader"]


@dataclass(frozen=True)
class Family:
    """One entry.

    config: `Reader` -> `Config`. weights: pairs of names, or a function of the file that gives them; None
    where the file has ours. model: the class that is built.
    prefixes: what some files put before, or leave out of, their names.
    copies: names of what the reference ties to another, or computes: {name: the other's name, or a function
    of the shape}. A file's tensor of such a name must be equal, and may stand in for the other.
    ignored: endings of names that move no number here: buffers of old versions, heads for other tasks.
    """

    config: Callable
    weights: list | Callable | None
    model: type = Decoder
    prefixes: tuple[str, ...] = ()
    copies: Mapping = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def names(self, values, model):
        """[(file name, [our names], pair)] of a model's parameters in a file with this `config.json`."""
        if self.weights is None:  # what two modules share has one name
            return [(name, [name], Pair(name, (name,))) for name, _ in model.named_parameters()]
        entries = self.weights(values) if callable(self.weights) else self.weights
        return expand(entries, model.state_dict(), model.config)


# Heads for other tasks; and beside an untied head a bias that the reference has and does not use.
OTHER_HEADS = (".position_ids", "predictions.bias", "lm_head.bias", "seq_relationship.weight",
               "seq_relationship.bias", "sop_classifier.classifier.weight", "sop_classifier.classifier.bias",
               "mask_predictions.dense.weight", "mask_predictions.dense.bias")  # fmt: skip
BERT_COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
SIDES = ("encoder", "decoder")
T5_COPIES = {f"{side}.embed_tokens.weight": "shared.weight" for side in SIDES}
BART_COPIES = {f"model.{side}.embed_tokens.weight": "model.shared.weight" for side in SIDES}
SINUSOIDS = {f"model.{side}.embed_positions.weight": encoder_decoders.sinusoids for side in SIDES}
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
    "bert": Family(encoders.bert, encoders.bert_names, Encoder, ("bert.",), BERT_COPIES, OTHER_HEADS),
    "roberta": Family(encoders.roberta, encoders.roberta_names, Encoder, ("roberta.",),
                      {"lm_head.decoder.bias": "lm_head.bias"}, OTHER_HEADS),
    "albert": Family(encoders.albert, encoders.albert_names, Encoder, ("albert.",),
                     {"predictions.decoder.bias": "predictions.bias"}, OTHER_HEADS),
    "deberta": Family(encoders.deberta_v1, encoders.deberta_v1_names, Encoder, ("deberta.",), BERT_COPIES,
                      OTHER_HEADS),
    "deberta-v2": Family(encoders.deberta_v2, encoders.deberta_v2_names, Encoder, ("deberta.",), BERT_COPIES,
                         OTHER_HEADS),
    "modernbert": Family(encoders.modernbert, encoders.MODERNBERT, Encoder, ("model.",)),
    "t5": Family(encoder_decoders.t5, encoder_decoders.t5_names, EncoderDecoder, copies=T5_COPIES),
    "mt5": Family(encoder_decoders.mt5, encoder_decoders.mt5_names, EncoderDecoder, copies=T5_COPIES),
    "bart": Family(encoder_decoders.bart, encoder_decoders.BART, EncoderDecoder, ("model.",), BART_COPIES),
    "marian": Family(encoder_decoders.marian, encoder_decoders.BART, EncoderDecoder, ("model.",),
                     {**BART_COPIES, **SINUSOIDS}),
    "whisper": Family(encoder_decoders.whisper, encoder_decoders.WHISPER, EncoderDecoder, ("model.",)),
    # models that are of no family, made from a `Config`
    "tx_decoder": Family(own_config, None, Decoder),
    "tx_encoder": Family(own_config, None, Encoder),
    "tx_encoder_decoder": Family(own_config, None, EncoderDecoder),
}  # fmt: skip
