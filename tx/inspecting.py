"""Looking inside a model while it runs: attention maps and hidden states by layer (chapter 7).

    with record(model) as seen:
        model(tokens)
    seen.attention[3][0, 5]  # layer 3, text 0, head 5: who looked at whom
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from .block import Stack


@dataclass
class Record:
    """What one stack did in its latest pass. Nothing is copied or detached: under `torch.no_grad()`
    these are plain numbers, otherwise gradients flow through them.

    hidden: (B, T, D) before the first layer and after each, the final norm not applied: L + 1 of them.
    attention: weights (B, H, T, S) of each layer.
    cross_attention: weights (B, H, T, N) of each layer onto the memory of N tokens.
    """

    hidden: list = field(default_factory=list)
    attention: list = field(default_factory=list)
    cross_attention: list = field(default_factory=list)

    def begin(self, x):
        """Forget the last pass; x (B, T, D) goes into the first layer."""
        for kept in (self.hidden, self.attention, self.cross_attention):
            kept.clear()
        self.hidden.append(x)

    def __repr__(self):
        kept = {name: [tuple(x.shape) for x in getattr(self, name)] for name in self.__dataclass_fields__}
        parts = (f"{name}: {len(shapes)} × {shapes[-1]}" for name, shapes in kept.items() if shapes)
        return f"Record({', '.join(parts) or 'nothing yet'})"


@dataclass
class Records:
    """Both stacks of an encoder–decoder."""

    encoder: Record
    decoder: Record


@contextmanager
def record(model):
    """Within the `with`, a model leaves attention maps and hidden states behind, pass by pass.

    Weights must be seen to be kept, so attention takes the path of the formula: same numbers within
    rounding, more memory. With a cache, a pass shows the new tokens' queries on all keys.

    Yields:
        `Record`, or `Records` for an encoder–decoder. They stay readable after the `with`.

    Raises:
        ValueError: the model is none of `Decoder`, `Encoder`, `EncoderDecoder`, or is recorded already.
    """
    parts = model.named_children() if isinstance(model, nn.Module) else ()
    stacks = {name: part for name, part in parts if isinstance(part, Stack)}
    if not stacks:
        raise ValueError(f"{type(model).__name__} has no stack of layers to record: expected a tx model.")
    if any(stack.record is not None for stack in stacks.values()):
        raise ValueError("this model is being recorded already: leave the first `with record(...)` before.")
    records = {name: Record() for name in stacks}
    for name, stack in stacks.items():
        stack.record = records[name]
    try:
        yield records["stack"] if "stack" in records else Records(**records)
    finally:
        for stack in stacks.values():
            stack.record = None
