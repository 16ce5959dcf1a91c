"""The key/value cache: what earlier tokens left behind for later ones (chapter 12).

A layer gets a `KV` of its own and calls `update`; the `Cache` holds them all and knows how many tokens
have gone by. Three kinds give the same tokens:

    dynamic   grows with the text (the default)
    static    as long as it was made, so that shapes never change and a compiler is content
    rolling   layers with a window keep the last W - 1 tokens and forget the rest
"""

from typing import Any

import torch


class KV:
    """Keys and values of one layer, (B, G, S, d_k) and (B, G, S, d_v).

    keep: how many tokens stay, None for all. room: number of slots that are made at once, None to grow.
    """

    def __init__(self, keep=None, room=None):
        self.keys: Any = None  # tensors after the first update
        self.values: Any = None
        self.keep, self.room = keep, room

    def update(self, k, v, slots=None):
        """Add k (B, G, T, d_k) and v (B, G, T, d_v) of new tokens; returns all keys and values to attend to.

        slots: (T,) numbers of these tokens in their text, which is where a static cache writes them.
        """
        _check_update(self, k)
        if self.room is not None:
            return self._write(k, v, slots)
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=2)  # (B, G, S, d_k)
            v = torch.cat([self.values, v], dim=2)  # (B, G, S, d_v)
        low = 0 if self.keep is None else max(0, k.shape[2] - self.keep)
        self.keys, self.values = k[:, :, low:], v[:, :, low:]  # (B, G, N, d_k), (B, G, N, d_v)  N are kept
        return k, v

    def _write(self, k, v, slots):
        """Static: the same buffers every time, the empty slots behind hidden by their number, -1."""
        if self.keys is None:
            self.keys = k.new_zeros(*k.shape[:2], self.room, k.shape[3])  # (B, G, N, d_k)
            self.values = v.new_zeros(*v.shape[:2], self.room, v.shape[3])  # (B, G, N, d_v)
        self.keys.index_copy_(2, slots, k)
        self.values.index_copy_(2, slots, v)
        return self.keys, self.values

    def cut(self, length):
        """Forget what was added after the first `length` tokens; slots are written over instead."""
        if self.room is None and self.keys is not None:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]  # (B, G, N, d_k or d_v)


class Cache:
    """What a decoder remembers of the tokens so far.

    Args:
        config: of the model.
        room: number of tokens of a static cache; None grows.
        rolling: layers with a window keep W - 1 tokens only.

    Attributes:
        length: how many tokens have gone by; advanced by the model, once a pass.
        longest: how many had, before some were cut off: RoPE may have turned the keys for a text so long.

    Raises:
        ValueError: a room of no tokens, or one for a rolling cache.
    """

    def __init__(self, config, room=None, rolling=False):
        _check_kind(config, room, rolling)
        self.config, self.room = config, room
        self.keep = {"full": None, "window": config.window - 1 if rolling and config.window else None}
        self._start()

    def _start(self):
        self.length, self.longest, self.unfinished = 0, 0, False
        self.layers = [KV(self.keep[kind], self.room) for kind in self.config.layer_types]
        self.cross = [KV() for _ in self.config.layer_types]

    def slots(self, kind, n_new, device=None):
        """Numbers of the tokens whose keys a layer of this kind will see, (S,); -1 for an empty slot."""
        stop = self.length + n_new
        if self.room is not None:
            slots = torch.arange(self.room, device=device)  # (S,)
            return slots.masked_fill(slots >= stop, -1)  # (S,)
        keep = self.keep[kind]
        low = 0 if keep is None else max(0, self.length - keep)
        return torch.arange(low, stop, device=device)  # (S,)

    def begin(self, n_new):
        """Before a pass of n_new tokens: what one that was interrupted left behind is forgotten.

        Raises:
            ValueError: there is no room for so many; a rolling cache after an interrupted pass.
        """
        if self.room is not None and self.length + n_new > self.room:
            raise ValueError(
                f"the cache has room for {self.room} tokens, {self.length + n_new} are to go in."
            )
        if self.unfinished:
            self.cut(self.length)
        self.unfinished = True

    def end(self, n_new):
        """After a pass."""
        self.length, self.unfinished = self.length + n_new, False
        self.longest = max(self.longest, self.length)

    def cut(self, length):
        """Forget the tokens from number `length` on.

        Raises:
            ValueError: more tokens than there are; a rolling cache.
        """
        if length and any(self.keep.values()):
            raise ValueError("a rolling cache has forgotten what stood before: start a new one.")
        if not 0 <= length <= self.length:
            raise ValueError(f"cut({length}): the cache holds {self.length} tokens, expected 0 … {self.length}.")
        if not length:
            return self._start()  # the memory of cross-attention goes, too
        for kv in self.layers:
            kv.cut(length)
        self.length, self.unfinished = length, False

    def select(self, rows):
        """Keep these rows of the batch, in this order (beam search). rows (R,) integers."""
        for kv in self.layers + self.cross:
            if kv.keys is not None:
                kv.keys, kv.values = kv.keys[rows], kv.values[rows]

    def bytes(self):
        """Bytes that the keys and values take now."""
        kept = [x for kv in self.layers + self.cross for x in (kv.keys, kv.values) if x is not None]
        return sum(x.numel() * x.element_size() for x in kept)


def _check_kind(config, room, rolling):
    if not hasattr(config, "layer_types"):
        raise ValueError(f"a cache is made from model.config, not from a {type(config).__name__}.")
    if room is not None and (not isinstance(room, int) or room < 1):
        raise ValueError(f"room = {room!r}: expected a number of tokens, at least 1, or None to grow.")
    if room is not None and rolling:
        raise ValueError(f"room = {room} and rolling: a cache is static or rolling, not both.")


def _check_update(kv, k):
    if kv.keys is not None and kv.keys.dtype != k.dtype:
        raise ValueError(f"the cache holds {kv.keys.dtype}, the model computes in {k.dtype}.")
    if kv.room is None or torch.compiler.is_compiling():
        return
    if k.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "a static cache is written in place, which gradients cannot follow: read under torch.no_grad(), or "
            "take a cache that grows (room=None)."
        )
    if kv.keys is not None and kv.keys.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "this static cache was filled under torch.inference_mode(), and nothing else may write into it: go "
            "on under inference_mode, or start a new one."
        )
