"""Decoder-only models: GPT and everything after it (chapter 7)."""

import torch
from torch import nn

from .stack import Stack, check_config, initialise


class Head(nn.Module):
    """Hidden states to logits: scale, the embedding's matrix or one of its own, bias, soft cap."""

    def __init__(self, config, embedding):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config.d_embedding, config.vocab_size, bias=config.head_bias)
        if config.tied:
            self.linear.weight = embedding.weight

    def forward(self, x):
        """x (B, T, D) -> logits (B, T, V)."""
        c = self.config
        x = x if c.head_scale is None else x * c.head_scale  # (B, T, D)
        logits = self.linear(x)  # (B, T, V)
        if c.logit_softcap is not None:
            logits = c.logit_softcap * torch.tanh(logits / c.logit_softcap)  # (B, T, V)
        return logits


class Decoder(nn.Module):
    """A stack whose tokens see the past only, and a head that predicts the next one.

    Args:
        config: all switches, see `Config`.
    """

    def __init__(self, config):
        super().__init__()
        check_config(config, causal=True)
        self.config = config
        self.stack = Stack(config)
        self.head = Head(config, self.stack.embedding)
        initialise(self)

    def tie(self):
        """One matrix for embedding and head, as in a file that holds it once.

        Call it after `to_empty` and `load_state_dict(assign=True)`, which make two of it.
        """
        self.head.linear.weight = self.stack.embedding.weight

    def forward(self, tokens, mask=None, *, positions=None, cache=None, last=None):
        """tokens (B, T) -> logits (B, T, V) of the token that follows each.

        Args:
            tokens: ids (B, T).
            mask: (B, S) with True = a real token, or a `tx.Mask` that replaces the causal one.
            positions: (B, T); counted from the mask unless given.
            cache: a `Cache` that holds the tokens before these; it is brought up to date.
            last: logits of the last so many tokens only.

        Raises:
            ValueError: ids outside the vocabulary, a text longer than learned positions or a static
                cache, a mask that does not fit, a cache of another model.
        """
        _check_last(last)
        x = self.stack(tokens, mask, positions=positions, cache=cache)  # (B, T, D)
        return self.head(x if last is None else x[:, -last:])  # (B, N, V)


def _check_last(last):
    """Refuse what a slice would take for something else: the last 0 would be all."""
    if last is not None and (not isinstance(last, int) or last < 1):
        raise ValueError(f"last = {last!r}: expected a number of tokens, at least 1, or None for all of them.")
