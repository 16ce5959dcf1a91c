"""What training lowers and evaluation reports: how unexpected a text is to a model (chapter 7).

    loss           nats per token of a batch, the number that an optimiser lowers
    shift_right    what the decoder of two stacks reads while it learns to write
    surprise       of one text of any length: nats, perplexity, bits per byte
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


def loss(logits, tokens, mask=None):
    """Cross-entropy of the next token in nats: logits (B, T, V), tokens (B, T) -> ().

    mask (B, T), True = a real token; padding is neither asked nor counted.
    """
    targets = tokens[:, 1:]  # (B, T-1)
    if mask is not None:
        targets = targets.masked_fill(~mask[:, 1:], -100)  # (B, T-1)  -100 is what F ignores
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())  # ()


def shift_right(targets, start, pad):
    """What the decoder reads when it should write `targets` (B, T): start, then all but the last.

    -100, the mark of places that the loss ignores, becomes `pad`.
    """
    first = torch.full_like(targets[:, :1], start)  # (B, 1)
    return torch.cat([first, targets[:, :-1].masked_fill(targets[:, :-1] == -100, pad)], dim=1)  # (B, T)


@dataclass(frozen=True)
class Surprise:
    """How unexpected a text is to a model: its negative log-probability, and what it is spread over."""

    nats: float
    n_tokens: int
    n_bytes: int

    @property
    def nats_per_token(self):
        return self.nats / self.n_tokens

    @property
    def perplexity(self):
        """As unsure as between so many equally likely tokens."""
        return math.exp(self.nats_per_token)

    @property
    def bits_per_byte(self):
        """The size of the text if the model compressed it; the same scale for every vocabulary."""
        return self.nats / math.log(2) / self.n_bytes


@torch.no_grad()
def surprise(model, tokenizer, text, *, context=None, stride=None):
    """How unexpected `text` is to a model: a `Surprise`.

    A text longer than `context` tokens (1,024 unless given, or what the model was made for) is read
    in windows that move on by `stride` (half of it), so that every token but the first of the text is
    asked once, with at least context - stride tokens before it. The bytes of the first token, which
    nothing predicts, do not count.

    Raises:
        ValueError: a text of fewer than two tokens; a stride that leaves gaps.
    """
    ids = tokenizer.encode(text)
    context = min(1024, model.config.max_positions) if context is None else context
    stride = context // 2 if stride is None else stride
    _check_windows(len(ids), context, stride)
    tokens = torch.tensor([ids], device=next(model.parameters()).device)  # (1, T)
    nats, counted, was_training = 0.0, 1, model.training
    model.eval()
    while counted < len(ids):
        stop = min(len(ids), max(context, counted + stride))
        targets = tokens[0, counted:stop]  # (n,)
        logits = model(tokens[:, max(0, stop - context) : stop], last=len(targets) + 1)  # (1, m, V)
        nats += F.cross_entropy(logits[0, :-1].double(), targets, reduction="sum").item()
        counted = stop
    model.train(was_training)
    first = tokenizer.decode(ids[:1]).rstrip("\ufffd")  # half a character is no byte yet
    n_bytes = len(text.encode()) - len(first.encode())
    return Surprise(nats, len(ids) - 1, n_bytes)


def _check_windows(n_tokens, context, stride):
    if n_tokens < 2:
        raise ValueError(f"a text of {n_tokens} tokens: there must be one to predict, and one before it.")
    if not 1 <= stride < context:
        raise ValueError(f"stride = {stride} with context = {context}: expected 1 … context - 1.")
