"""What training lowers and evaluation reports: how unexpected a text is to a model (chapter 7).

    loss               nats per token of a batch, the number that an optimiser lowers
    parameter_groups   which parameters an optimiser lets decay
    shift_right        what the decoder of two stacks reads while it learns to write
    surprise           of one text of any length: nats, perplexity, bits per byte
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


def loss(logits, tokens, mask=None, *, label_smoothing=0.0, reduction="mean"):
    """Cross-entropy of the next token in nats: logits (B, T, V), tokens (B, T) -> ().

    A pair of neighbours counts when both are real: logits at padding say nothing, and padding is nothing
    to be said. The sum is taken in fp32 at least, whatever the dtype of the logits.

    Args:
        mask: (B, T), True = a real token; None: all are.
        label_smoothing: share of every target that is spread over all V tokens, as in `F.cross_entropy`.
        reduction: "mean", or "sum": the sum over all pairs and their number, both (). With parts of a
            batch, one after the other, the gradient of the whole is that of all sums divided by all numbers.

    Returns:
        (), or two of them for "sum". Where no pair counts, 0 with gradients of 0.

    Raises:
        ValueError: shapes or dtypes that do not fit, a text of one token, a setting out of its range.
    """
    _check_loss(logits, tokens, mask, label_smoothing, reduction)
    targets = tokens[:, 1:].long()  # (B, T-1)
    if mask is not None:
        targets = targets.masked_fill(~(mask[:, :-1] & mask[:, 1:]), -100)  # (B, T-1)  -100 is what F ignores
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))  # (B, T-1, V)
    wide, targets = wide.flatten(0, 1), targets.flatten()  # (N, V), (N,)
    try:
        total = F.cross_entropy(wide, targets, reduction="sum", label_smoothing=label_smoothing)  # ()
    except IndexError:
        _check_targets(targets, wide.shape[1])
        raise
    count = (targets != -100).sum()  # ()
    if reduction == "sum":
        return total, count  # (), ()
    return total / count.clamp(min=1)  # ()


def parameter_groups(model, weight_decay):
    """What an optimiser such as `torch.optim.AdamW` is given: two groups of parameters.

    Matrices and convolutions decay. Norms, biases and other vectors do not, nor do embeddings, whose rows
    would shrink in every step that does not use them; a head that is tied to one is that embedding.

    Returns:
        [{"params": […], "weight_decay": weight_decay}, {"params": […], "weight_decay": 0.0}], every
        parameter that requires a gradient in one of them, once.
    """
    if not isinstance(weight_decay, int | float) or not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay = {weight_decay!r}: expected a number, 0 or more.")
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decays = lambda p: p.dim() > 1 and id(p) not in embeddings
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in trained if not decays(p)], "weight_decay": 0.0},
    ]


def shift_right(targets, start, pad):
    """What the decoder reads when it should write `targets` (B, T): start, then all but the last.

    -100, the mark of places that the loss ignores, becomes `pad`. Raises ValueError for other than ids.
    """
    _check_shift(targets, start, pad)
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
        ValueError: a text of fewer than two tokens; a stride that leaves gaps; a model that predicts no
            next token, or whose logits are NaN.
    """
    _check_question(model.config, text, context, stride)
    ids = tokenizer.encode(text)
    context = min(1024, model.config.max_positions) if context is None else context
    stride = context // 2 if stride is None else stride
    _check_windows(len(ids), context, stride)
    tokens = torch.tensor([ids], device=next(model.parameters()).device)  # (1, T)
    nats, counted, was_training = 0.0, 1, model.training
    model.eval()
    try:
        while counted < len(ids):
            stop = min(len(ids), max(context, counted + stride))
            targets = tokens[0, counted:stop]  # (n,)
            logits = model(tokens[:, max(0, stop - context) : stop], last=len(targets) + 1)  # (1, m, V)
            nats += F.cross_entropy(logits[0, :-1].double(), targets, reduction="sum").item()
            counted = stop
    finally:
        model.train(was_training)
    _check_nats(nats, logits.dtype)
    first = tokenizer.decode(ids[:1]).rstrip("\ufffd")  # half a character is no byte yet
    n_bytes = len(text.encode()) - len(first.encode())
    return Surprise(nats, len(ids) - 1, n_bytes)


def _check_targets(targets, V):
    counted = targets[targets != -100]  # (n,)
    low, high = int(counted.min()), int(counted.max())
    if not 0 <= low <= high < V:
        wrong = high if high >= V else low
        raise ValueError(f"token id {wrong} is outside the vocabulary: expected 0 … {V - 1}, or -100 for none.")


def _check_loss(logits, tokens, mask, label_smoothing, reduction):
    for name, x in (("logits", logits), ("tokens", tokens)):
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} are a {type(x).__name__}: expected a tensor.")
    shapes = f"  logits {tuple(logits.shape)}   tokens {tuple(tokens.shape)}"
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(f"logits of {logits.dtype}: expected floating-point numbers (B, T, V).\n{shapes}")
    if tokens.shape != logits.shape[:2] or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens of {tokens.dtype}: expected int64 or int32, (B, T) as of the logits.\n{shapes}")
    if tokens.shape[1] < 2:
        raise ValueError(f"a text of one token has no next one to ask for: expected T = 2 or more.\n{shapes}")
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise ValueError(f"mask is a {type(mask).__name__}: expected booleans (B, T), True = a real token.")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape):
        raise ValueError(
            f"mask {tuple(mask.shape)} of {mask.dtype}: expected booleans (B, T), True = a real token.\n{shapes}"
        )
    if not isinstance(label_smoothing, int | float) or not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing = {label_smoothing!r}: expected a share in [0, 1].")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction = {reduction!r}: expected 'mean' or 'sum'.")


def _check_shift(targets, start, pad):
    if targets.dim() != 2 or targets.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"targets {tuple(targets.shape)} of {targets.dtype}: expected ids (B, T).")
    for name, id in (("start", start), ("pad", pad)):
        if not isinstance(id, int) or id < 0:
            raise ValueError(f"{name} = {id!r}: expected an id, 0 or more.")


def _check_question(config, text, context, stride):
    if config.encoder is not None or not config.causal:
        raise ValueError("this model does not predict the next token of a text from those before: a decoder does.")
    if not isinstance(text, str):
        raise ValueError(f"text = {text!r:.80}: expected a text.")
    for name, n in (("context", context), ("stride", stride)):
        if not isinstance(n, int | None):
            raise ValueError(f"{name} = {n!r}: expected a whole number of tokens, or None.")


def _check_windows(n_tokens, context, stride):
    if n_tokens < 2:
        raise ValueError(f"a text of {n_tokens} tokens: there must be one to predict, and one before it.")
    if not 1 <= stride < context:
        raise ValueError(f"stride = {stride} with context = {context}: expected 1 … context - 1.")


def _check_nats(nats, dtype):
    if math.isnan(nats):
        raise ValueError(
            f"the model's logits are NaN: its weights are broken, or {dtype} overflows (load it with another "
            "dtype)."
        )
