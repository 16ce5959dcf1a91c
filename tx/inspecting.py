"""Looking inside a model while it runs: attention maps and hidden states by layer (chapter 7).

    with record(model) as seen:
        model(tokens)
    seen.attention[3][0, 5]  # layer 3, text 0, head 5: who looked at whom
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from .block import Attention, CrossAttention
from .stack import Stack


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

    def begin(self):
        """Forget the last pass."""
        for kept in (self.hidden, self.attention, self.cross_attention):
            kept.clear()

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
    if any("attend" in vars(layer) for stack in stacks.values() for layer in _attentions(stack)):
        raise ValueError("this model is being recorded already: leave the first `with record(...)` before.")
    records = {name: Record() for name in stacks}
    with ExitStack() as undo:
        for name, stack in stacks.items():
            _watch(stack, records[name], undo)
        yield records["stack"] if "stack" in records else Records(**records)


def _attentions(stack):
    return [module for module in stack.modules() if isinstance(module, Attention)]


def _watch(stack, seen, undo):
    """Let a stack's layers leave in `seen` what they do, until `undo` is closed."""

    in_pass = False  # a checkpointed layer computes again in the backward pass, which is none of the stack's

    def begin(stack, given):
        nonlocal in_pass
        in_pass = True
        seen.begin()

    def end(stack, given, x):
        nonlocal in_pass
        in_pass = False

    def keep(kept, x):
        if in_pass:
            kept.append(x)

    def before(block, given):
        if not seen.hidden:
            keep(seen.hidden, given[0])  # (B, T, D)

    def after(block, given, x):
        keep(seen.hidden, x)  # (B, T, D)

    hooks = [stack.register_forward_pre_hook(begin), stack.register_forward_hook(end, always_call=True)]
    for block in stack.blocks:
        hooks += [block.register_forward_pre_hook(before), block.register_forward_hook(after)]
    for hook in hooks:
        undo.callback(hook.remove)
    for layer in _attentions(stack):
        kept = seen.cross_attention if isinstance(layer, CrossAttention) else seen.attention
        layer.attend = _keeping(partial(keep, kept), layer.attend)  # on this object, before its class
        undo.callback(delattr, layer, "attend")


def _keeping(keep, attend):
    def keeping(q, k, v, mask, bias=None):
        out, weights = attend(q, k, v, mask, bias, return_weights=True)  # (B, H, T, d_v), (B, H, T, S)
        keep(weights)
        return out

    return keeping
