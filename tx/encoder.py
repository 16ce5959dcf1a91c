"""Encoder-only models: BERT and what followed (chapter 8)."""

from torch import nn

from .block import ACTIVATIONS, make_norm
from .decoder import Head
from .stack import Stack, check_config, initialise


class MaskedHead(nn.Module):
    """Predicts masked tokens: a layer, activation and norm, then the embedding's matrix."""

    def __init__(self, config, embedding):
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_embedding, bias=config.masked_head_bias)
        self.activation = ACTIVATIONS[config.masked_activation or config.activation]
        self.norm = make_norm(config, config.d_embedding)
        self.head = Head(config, embedding)

    def forward(self, x):
        """x (B, T, D) -> logits (B, T, V)."""
        return self.head(self.norm(self.activation(self.dense(x))))  # (B, T, V)


class Encoder(nn.Module):
    """A stack whose tokens see both sides.

    Args:
        config: all switches, with `causal=False`; `masked_head` and `pooler` say which heads there are.
    """

    def __init__(self, config):
        super().__init__()
        check_config(config, causal=False)
        self.config = config
        self.stack = Stack(config)
        self.masked_head = MaskedHead(config, self.stack.embedding) if config.masked_head else None
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        initialise(self)

    def tie(self):
        """One matrix for embedding and head, as in a file that holds it once.

        Call it after `to_empty` and `load_state_dict(assign=True)`, which make two of it.
        """
        if self.masked_head is not None:
            self.masked_head.head.linear.weight = self.stack.embedding.weight

    def forward(self, tokens, mask=None, *, segments=None, positions=None):
        """tokens (B, T) -> hidden states (B, T, D).

        Args:
            tokens: ids (B, T).
            mask: (B, T) with True = a real token, or a `tx.Mask`.
            segments: (B, T) token types (BERT's sentence A and B), zeros unless given.
            positions: (B, T); counted from the mask unless given.

        Raises:
            ValueError: ids outside the vocabulary, a text longer than learned positions, a mask
                that does not fit.
        """
        return self.stack(tokens, mask, positions=positions, segments=segments)  # (B, T, D)

    def logits(self, tokens, mask=None, **options):
        """What stands at each place: tokens (B, T) -> (B, T, V). Needs the masked-LM head."""
        if self.masked_head is None:
            raise ValueError("this checkpoint has no head for masked tokens: it gives hidden states only.")
        return self.masked_head(self(tokens, mask, **options))  # (B, T, V)

    def pooled(self, tokens, mask=None, **options):
        """BERT's summary of a text, tanh of a layer over its first token: tokens (B, T) -> (B, D)."""
        if self.pooler is None:
            raise ValueError("this checkpoint has no pooler: average its hidden states instead.")
        return self.pooler(self(tokens, mask, **options)[:, 0]).tanh()  # (B, D)
