"""Encoder–decoder models: T5, BART, Whisper (chapter 9)."""

import torch
import torch.nn.functional as F
from torch import nn

from .decoder import Head, _check_last
from .masks import padding
from .stack import Stack, check_config, initialise


class AudioFront(nn.Module):
    """Whisper's ears: two convolutions, the second of which halves the number of frames."""

    def __init__(self, n_mels, d_model):
        super().__init__()
        self.first = nn.Conv1d(n_mels, d_model, kernel_size=3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, kernel_size=3, stride=2, padding=1)

    def forward(self, mel):
        """mel (B, n_mels, frames) of any dtype -> (B, S, D), S = frames / 2 rounded up."""
        _check_mel(mel, self.first.in_channels)
        mel = mel.to(self.first.weight.dtype)  # (B, n_mels, frames)
        return F.gelu(self.second(F.gelu(self.first(mel)))).mT  # (B, S, D)


class EncoderDecoder(nn.Module):
    """One stack reads the source from both sides, the other writes, and looks at what was read.

    Args:
        config: of the decoder; `config.encoder` is the encoder's, with `causal=False`.
    """

    def __init__(self, config):
        super().__init__()
        check_config(config, causal=True, two=True)
        self.config = config
        hears = config.encoder.n_mels
        self.front = AudioFront(hears, config.encoder.d_model) if hears else None
        embedding = nn.Embedding(config.vocab_size, config.d_embedding)
        self.encoder = Stack(config.encoder, None if hears else embedding)
        self.decoder = Stack(config, embedding, cross=True)
        self.head = Head(config, embedding)
        initialise(self)

    def tie(self):
        """One matrix for embedding and head, as in a file that holds it once.

        Call it after `to_empty` and `load_state_dict(assign=True)`, which make two of it.
        """
        self.head.linear.weight = self.decoder.embedding.weight

    def forward(self, source, target, source_mask=None, target_mask=None):
        """source ids (B, S) or mel (B, n_mels, frames); target: ids (B, T) -> logits (B, T, V).

        Masks are (B, S) and (B, T) with True = a real token.
        """
        memory = self.encode(source, source_mask)  # (B, S, D)
        return self.decode(target, memory, source_mask, target_mask=target_mask)  # (B, T, V)

    def encode(self, source, mask=None):
        """source ids (B, S) or mel (B, n_mels, frames) -> memory (B, S, D)."""
        x = source if self.front is None else self.front(source)  # (B, S) or (B, S, D)
        return self.encoder(x, mask)  # (B, S, D)

    def decode(self, target, memory, source_mask=None, *, target_mask=None, cache=None, last=None):
        """target ids (B, T), memory (B, S, D) -> logits (B, T, V); see `Decoder.forward`.

        The cross-attention sees what is real in the *source*.
        """
        _check_last(last)
        if isinstance(source_mask, torch.Tensor):
            _check_source_mask(source_mask, memory)
            source_mask = padding(source_mask)
        x = self.decoder(target, target_mask, cache=cache, memory=memory, memory_mask=source_mask)
        x = x if last is None else x[:, -last:]  # (B, N, D)
        return self.head(x)  # (B, N, V)


def _check_mel(mel, n_mels):
    if mel.dim() != 3 or mel.shape[1] != n_mels or mel.shape[2] == 0:
        raise ValueError(f"mel {tuple(mel.shape)}: expected (B, {n_mels}, frames).")


def _check_source_mask(mask, memory):
    if mask.dtype != torch.bool or mask.shape != memory.shape[:2]:
        raise ValueError(
            f"source_mask {tuple(mask.shape)} of {mask.dtype}: expected booleans (B, S) = "
            f"{tuple(memory.shape[:2])}, True = a real token of the source."
        )
