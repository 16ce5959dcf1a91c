"""Faster inference with the same weights (chapter 12): for models that will not be trained or saved any more.

    fuse              projections of the same x in one product, a single token by a matrix–vector product
    compile_blocks    each block compiled, for the pass that decoding repeats: one new token

Measured by `python -m tx bench decode`.
"""

from types import MethodType

import torch
import torch.nn.functional as F
from torch import nn

from .block import Attention, Block, FeedForward
from .stack import Stack


class Linear(nn.Module):
    """x (..., D) -> (..., N), as `nn.Linear`; a single row goes through `torch.mv`.

    A product with one row reads every weight once and does little else. In bf16 PyTorch's matrix–vector
    kernel gets more out of the memory then than its matrix–matrix kernel; in fp32 the two are close.
    """

    def __init__(self, weight, bias=None):
        super().__init__()
        self.weight = weight  # (N, D)
        self.bias = bias  # (N,)

    def forward(self, x):
        if x.numel() != self.weight.shape[1] or torch.is_autocast_enabled(x.device.type):  # which leaves mv alone
            return F.linear(x, self.weight, self.bias)  # (..., N)
        row = torch.mv(self.weight, x.reshape(-1))  # (N,)
        row = row if self.bias is None else row + self.bias  # (N,)
        return row.view(*x.shape[:-1], -1)  # (..., N)


class Joined(Linear):
    """Several linear layers of the same x in one product: x (..., D) -> (..., n) of each."""

    def __init__(self, *layers):
        weight = torch.cat([layer.weight.detach() for layer in layers])  # (N, D)
        bias = None
        if any(layer.bias is not None for layer in layers):
            none = weight.new_zeros(len(weight)).split([layer.out_features for layer in layers])  # each (n,)
            bias = nn.Parameter(torch.cat([
                zeros if layer.bias is None else layer.bias.detach()
                for layer, zeros in zip(layers, none, strict=True)
            ]))  # (N,)  # fmt: skip
        super().__init__(nn.Parameter(weight), bias)
        self.sizes = [layer.out_features for layer in layers]

    def forward(self, x):
        return super().forward(x).split(self.sizes, dim=-1)  # of each layer (..., n)


class FusedAttention(Attention):
    """Attention whose queries, keys and values come from one product."""

    joined: Joined

    def project(self, x):
        return self.joined(x)  # (B, T, H*d_k), (B, T, G*d_k), (B, T, G*d_k)


class FusedFeedForward(FeedForward):
    """A gated feed-forward whose gate and up come from one product."""

    joined: Joined

    def project(self, x):
        return self.joined(x)  # (..., d_ff), (..., d_ff)


def fuse(model):
    """Prepare a model for inference, in place: the same numbers from fewer and faster products.

    Query, key and value become one matrix, gate and up another. The parameters have other names then and
    want no gradient: train and save before. What is more than an `nn.Linear`, a layer of LoRA, a quantised one
    or one with hooks, stays as it is. Returns the model.
    """
    for module in model.modules():
        # a shared projection turns positions into keys and queries, too; cross-attention has two sources
        if type(module) is Attention and not module.config.share_position_projection:
            _join(module, FusedAttention, "query", "key", "value")
        if type(module) is FeedForward and module.gated:
            _join(module, FusedFeedForward, "gate", "up")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if _is_plain(child):
                setattr(module, name, Linear(child.weight, child.bias))
    return model.requires_grad_(False)


def _is_plain(layer):
    """Whether a layer is its weight and bias and nothing else, such as a subclass or somebody's hooks."""
    return type(layer) is nn.Linear and not layer._forward_pre_hooks and not layer._forward_hooks


def _join(module, kind, *names):
    """Make a module one of this kind: its layers of these names become one, `joined`, where all are plain."""
    layers = [getattr(module, name) for name in names]
    if not all(map(_is_plain, layers)):
        return
    module.joined = Joined(*layers)
    for name in names:
        delattr(module, name)
    module.__class__ = kind


def compile_blocks(model):
    """Compile every block of a decoder for passes of one token, in place; longer passes stay as they are.

    The first tokens wait for the compiler, 10 to 40 seconds. All blocks share what it makes. Give
    `generate` a static cache (`Cache(config, room=...)`): then no shape changes and nothing is compiled
    again. Returns the model.

    Raises:
        ValueError: the model has no blocks of ours.
    """
    stack = getattr(model, "stack", getattr(model, "decoder", None))
    if not isinstance(stack, Stack):
        raise ValueError(f"{type(model).__name__} has no blocks to compile: expected a tx model.")
    compiled = torch.compile(Block.forward)

    def forward(block, x, *rest):
        return (compiled if x.shape[1] == 1 else Block.forward)(block, x, *rest)

    for block in stack.blocks:
        block.forward = MethodType(forward, block)  # a method, so that a copy of the model has its own
    return model
