"""The key/value cache: what earlier tokens left behind for later ones (chapter 12).

A layer gets a `KV` of its own and calls `update`; the `Cache` holds them all and knows how many tokens
have gone by. Three kinds give the same tokens:

    dynamic   grows with the text (the default)
    static    as long as it was made, so that shapes never change and a compiler is content
    rolling   layers with a window keep the last W - 1 tokens and forget the rest
"""

from typing import Any

import torch

from .checks import check_cache_kind


class KV:
    """Keys and values of one layer, (B, G, S, d_k) and (B, G, S, d_v)."""

    def __init__(self, keep=None, room=None):
        self.keys: Any = None  # tensors after the first update
        self.values: Any = None
        self.keep, self.room, self.length = keep, room, 0  # length: tokens that have gone by

    def update(self, k, v):
        """Add k (B, G, T, d_k) and v (B, G, T, d_v) of new tokens; returns all keys and values to attend to."""
        if self.keys is not None and self.keys.dtype != k.dtype:
            raise ValueError(f"the cache holds {self.keys.dtype}, the model computes in {k.dtype}.")
        start, self.length = self.length, self.length + k.shape[2]
        if self.room is not None:
            return self._write(k, v, start)
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=2)  # (B, G, S, d_k)
            v = torch.cat([self.values, v], dim=2)  # (B, G, S, d_v)
        low = 0 if self.keep is None else max(0, k.shape[2] - self.keep)
        self.keys, self.values = k[:, :, low:], v[:, :, low:]  # (B, G, N, d_k), (B, G, N, d_v)  N are kept
        return k, v

    def _write(self, k, v, start):
        """Static: the same buffers every time, the empty slots behind hidden by their number, -1."""
        if self.keys is None:
            self.keys = k.new_zeros(*k.shape[:2], self.room, k.shape[3])  # (B, G, N, d_k)
            self.values = v.new_zeros(*v.shape[:2], self.room, v.shape[3])  # (B, G, N, d_v)
        self.keys[:, :, start : self.length], self.values[:, :, start : self.length] = k, v
        return self.keys, self.values


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
        check_cache_kind(config, room, rolling)
        self.config, self.length, self.room = config, 0, room
        self.keep = {"full": None, "window": config.window - 1 if rolling and config.window else None}
        self.layers = [KV(self.keep[kind], room) for kind in config.layer_types]
        self.cross = [KV() for _ in config.layer_types]
        self._uncut = 0

    @property
    def longest(self):
        return max(self.length, self._uncut)

    def slots(self, kind, n_new, device=None):
        """Numbers of the tokens whose keys a layer of this kind will see, (S,); -1 for an empty slot."""
        stop = self.length + n_new
        if self.room is not None:
            if stop > self.room:
                raise ValueError(f"the cache has room for {self.room} tokens, {stop} are to go in.")
            slots = torch.arange(self.room, device=device)  # (S,)
            return slots.masked_fill(slots >= stop, -1)  # (S,)
        keep = self.keep[kind]
        low = 0 if keep is None else max(0, self.length - keep)
        return torch.arange(low, stop, device=device)  # (S,)

    def begin(self):
        """Before a pass: forget what one that was interrupted left behind, and the memory of another text."""
        if not self.length:
            self.cross = [KV() for _ in self.layers]
        if any(kv.length != self.length for kv in self.layers):
            self.cut(self.length)

    def cut(self, length):
        """Forget the tokens from number `length` on.

        Raises:
            ValueError: more tokens than there are; a rolling cache.
        """
        if length and any(self.keep.values()):
            raise ValueError("a rolling cache has forgotten what stood before: start a new one.")
        if not 0 <= length <= self.length:
            raise ValueError(f"cut({length}): the cache holds {self.length} tokens, expected 0 … {self.length}.")
        for kv in self.layers:
            kv.length = length
            if not length:
                kv.keys = kv.values = None
            elif self.room is None and kv.keys is not None:
                kv.keys, kv.values = kv.keys[:, :, :length], kv.values[:, :, :length]
        self._uncut, self.length = length and self.longest, length

    def select(self, rows):
        """Keep these rows of the batch, in this order (beam search). rows (R,) integers."""
        for kv in self.layers + self.cross:
            if kv.keys is not None:
                kv.keys, kv.values = kv.keys[rows], kv.values[rows]

    def bytes(self):
        """Bytes that the keys and values take now."""
        kept = [x for kv in self.layers + self.cross for x in (kv.keys, kv.values) if x is not None]
        return sum(x.numel() * x.element_size() for x in kept)
