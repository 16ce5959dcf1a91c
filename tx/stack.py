"""The stack: what happens once per pass, and the loop over the layers (chapter 5).

Embedding, positions, masks and tables are made here and flow down; every model is made of stacks.
`initialise` says with which numbers a model begins.
"""

import math

import torch
from torch import nn

from .block import Block, Flow, View, make_norm
from .config import Config
from .masks import as_mask, causal, everything, padding, window
from .positions import build, look_up, readable

IDS = "token id {} is outside the vocabulary"


class Stack(nn.Module):
    """Embedding, positions, blocks, final norm: what every model is made of.

    config: all switches. embedding: shared between the two stacks of an encoder–decoder.
    cross: whether the blocks read a memory.
    """

    def __init__(self, config, embedding=None, cross=False):
        super().__init__()
        c = config
        self.config, self.cross = c, cross
        if embedding is None and not c.n_mels:  # who hears has nothing to look up
            embedding = nn.Embedding(c.vocab_size, c.d_embedding)
        self.embedding = embedding
        self.segments = nn.Embedding(c.n_segments, c.d_embedding) if c.n_segments else None
        self.schemes = build(c)
        self.embedding_norm = make_norm(c, c.d_embedding) if c.embedding_norm else nn.Identity()
        self.projection = nn.Linear(c.d_embedding, c.d_model) if c.given("d_embedding") else nn.Identity()
        self.kinds = sorted(set(c.layer_types))
        n_own = 1 if c.share_layers else c.n_layers
        self.blocks = nn.ModuleList(Block(c, layer, cross) for layer in range(n_own))
        self.norm = make_norm(c) if c.final_norm else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, tokens, mask=None, *, positions=None, segments=None, cache=None,
                memory=None, memory_mask=None):
        """tokens (B, T) or (B, T, D) -> hidden states (B, T, D).

        Args:
            tokens: ids, or vectors that are embedded already (Whisper's encoder).
            mask: (B, S) with True = a real token (S counts the cache's past), or a `tx.Mask`.
            positions: (B or 1, T); counted from the mask unless given. Schemes that add to the scores
                go by the place in the row, so with them nobody may give any.
            segments: (B, T) token types, zeros unless given.
            cache: what earlier passes left behind.
            memory: what cross-attention reads, (B, N, D).
            memory_mask: who may read it, as in `attention`.
        """
        _check_pass(self, tokens, mask, positions, segments, cache, memory)
        past, T = 0 if cache is None else cache.length, tokens.shape[1]
        slots = torch.arange(past, past + T, device=tokens.device)  # (T,)
        if positions is None:
            positions = self._count(tokens, mask, slots)  # (B or 1, T)
        x = self._embed(tokens, positions, segments)  # (B, T, D)
        mask = self._mask(mask, past)
        views = {kind: self._view(kind, x, mask, positions, slots, cache) for kind in self.kinds}
        flow = Flow(views, slots, memory, self._over_memory(x, memory, memory_mask))
        if cache is not None:
            cache.begin(T)
        for layer in range(self.config.n_layers):
            own = (None, None) if cache is None else (cache.layers[layer], cache.cross[layer])
            x = self.blocks[layer % len(self.blocks)](x, flow, *own)  # (B, T, D)
        if cache is not None:
            cache.end(T)
        return self.norm(x)  # (B, T, D)

    def _count(self, tokens, mask, slots):
        """Where tokens (B, T) or (B, T, D) stand: counted from the mask if there is one, else in the row."""
        pad = self.config.positions_skip_pad
        if pad is not None:  # RoBERTa counts the tokens that are not padding
            count = (tokens != pad).long()  # (B, T)
            return count.cumsum(1) * count - 1  # (B, T)  padding stands at -1
        if not isinstance(mask, torch.Tensor):
            return slots[None]  # (1, T)
        return (mask.long().cumsum(1) - 1).clamp(min=0)[:, -slots.shape[0] :]  # (B, T)

    def _embed(self, tokens, positions, segments):
        """Everything that is added up before the first block: (B, T) -> (B, T, D)."""
        c = self.config
        x = tokens if tokens.is_floating_point() else look_up(self.embedding, tokens, IDS)  # (B, T, E)
        if c.embedding_scale is not None:
            x = x * torch.tensor(c.embedding_scale, dtype=x.dtype)  # (B, T, E)  rounded as x is
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments  # (B, T)
            x = x + look_up(self.segments, segments, "segment {} is outside the table")  # (B, T, E)
        placed = self.schemes["full"].embed(positions, x.dtype)  # (B or 1, T, E)  or None
        x = x if placed is None else x + placed  # (B, T, E)
        return self.projection(self.dropout(self.embedding_norm(x)))  # (B, T, D)

    def _mask(self, mask, past):
        """Who may look where, windows aside: what is no real token is hidden, a mask object says all."""
        own = causal() if self.config.causal else everything()
        if mask is None:
            return own
        if not isinstance(mask, torch.Tensor):
            return as_mask(mask)
        if not past and _hides_nothing(mask):
            return own  # a dense mask would cost the fast path
        return own & padding(mask)

    def _view(self, kind, x, mask, positions, slots, cache):
        """The `View` of one layer type for x (B, T, D); booleans where a known structure does not say all."""
        c, B, T = self.config, x.shape[0], x.shape[1]
        k_slots = slots if cache is None else cache.slots(kind, T, x.device)  # (S,)
        S, stop = k_slots.shape[0], T if cache is None else cache.length + T
        mask = mask & window(c.window) if kind == "window" else mask
        if stop != S:  # keys were dropped, or slots are empty still
            mask = mask.at(slots, k_slots, (stop - T, stop))
        if mask.structure(T, S) == "dense":
            mask = mask.dense((B, c.n_heads, T, S), x.device)  # (B or 1, H or 1, T or 1, S)
        scheme, wide = self.schemes[kind], torch.promote_types(x.dtype, torch.float32)
        return View(mask, scheme, scheme.tables(positions, slots[None], k_slots[None], wide))

    def _over_memory(self, x, memory, mask):
        """Who of x (B, T, D) may read memory (B, N, D), as booleans where it is a `Mask`, once for all layers."""
        if memory is None or mask is None or isinstance(mask, torch.Tensor):
            return mask
        shape = (x.shape[0], self.config.n_heads, x.shape[1], memory.shape[1])
        return as_mask(mask).dense(shape, x.device)  # (B or 1, H or 1, T or 1, N)


def initialise(model):
    """The numbers a model begins with, small ones: it expects every token alike, and its first loss is ln V.

    Matrices and tables are normal with 0.02 (GPT-2, BERT, LLaMA); biases are 0 and norms do nothing. What
    a layer adds to the residual stream is smaller still, by √(2L), because 2L such terms add up (Radford et
    al. 2019, section 2.3). Families that began otherwise (T5 with 1.0 for its embedding, tied to the head)
    start far above ln V, so this is the rule for all of them.
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for name, weight in stack.blocks.named_parameters():
            if name.endswith(("attention.out.weight", ".down.weight")):
                with torch.no_grad():
                    weight.div_(math.sqrt(2 * stack.config.n_layers))


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def _hides_nothing(mask):
    """Whether a mask of real tokens is all True, as far as that can be known: inside `vmap` nobody may look."""
    try:
        return readable(mask) and bool(mask.all())
    except RuntimeError:
        return False


def _check_pass(stack, tokens, mask, positions, segments, cache, memory):
    """What goes in fits together, by its shape and kind."""
    c = stack.config
    check_tokens(tokens, c)
    B, T = tokens.shape[:2]
    past = 0 if cache is None else _check_cache(cache, c, B)
    if isinstance(mask, torch.Tensor):
        check_real(mask, B, past + T)
    if past:
        _check_turned(stack.schemes.values(), cache, mask, T)
    if positions is not None:
        if not stack.schemes["full"].numbered:
            raise ValueError(f"positions were given: this model's ({c.positions!r}) go by the place in the row.")
        _check_numbers("positions", positions, (B, T), (1, T))
    if segments is not None:
        if stack.segments is None:
            raise ValueError("this model has no segments: it was given some.")
        _check_numbers("segments", segments, (B, T))
    if stack.cross or memory is not None:
        _check_memory(memory, B, c.d_model)


def check_config(config, causal, two=False):
    """ValueError unless config is that of a model whose tokens are causal or not, with one stack or two."""
    if not isinstance(config, Config):
        raise ValueError(f"config is a {type(config).__name__}: expected a tx.Config.")
    if (config.encoder is not None) != two:
        expected = "the Config of the other stack" if two else "None in a model of one stack"
        raise ValueError(f"encoder = {config.encoder}: expected {expected}.")
    if config.n_mels:
        raise ValueError(f"n_mels = {config.n_mels}: only the encoder of an EncoderDecoder hears.")
    if causal and config.d_embedding != config.d_model:
        raise ValueError(
            f"d_embedding = {config.d_embedding}: expected d_model = {config.d_model}, which the head reads; "
            "the head of an Encoder alone leads back."
        )
    for name in ("masked_head", "pooler"):
        if causal and getattr(config, name):
            raise ValueError(f"{name} = True: expected False, only an Encoder has one.")
    if config.causal != causal:
        seen = "the past" if causal else "both sides"
        raise ValueError(f"causal = {config.causal}: expected {causal}, these tokens see {seen}.")
    other = config.encoder
    if other is not None and other.causal:
        raise ValueError("encoder.causal = True: expected False, its tokens see both sides.")
    if other is not None and not other.n_mels and other.d_embedding != config.d_embedding:
        raise ValueError(f"encoder.d_embedding = {other.d_embedding}: expected {config.d_embedding}, as here.")


def check_tokens(tokens, config):
    """ValueError unless tokens are ids (B, T), or vectors (B, T, D) that are embedded already."""
    if not isinstance(tokens, torch.Tensor):
        raise ValueError(f"tokens are a {type(tokens).__name__}: expected a tensor of ids (B, T).")
    if tokens.is_floating_point():
        if tokens.dim() != 3 or tokens.shape[-1] != config.d_embedding:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} of {tokens.dtype}: expected ids (B, T), or (B, T, "
                f"{config.d_embedding}) that are embedded already."
            )
    elif tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens of {tokens.dtype}: expected ids of torch.int64 or torch.int32.")
    elif tokens.dim() != 2:
        raise ValueError(f"tokens {tuple(tokens.shape)}: expected (B, T); add the batch with tokens[None].")
    if tokens.shape[0] == 0 or tokens.shape[1] == 0:
        raise ValueError(f"tokens {tuple(tokens.shape)}: expected one text and one token at least.")


def check_real(real, B, S):
    """ValueError unless real is None, or says of every token, those of the cache included, whether it is one."""
    if real is not None and (real.dtype != torch.bool or real.shape != (B, S)):
        raise ValueError(
            f"mask {tuple(real.shape)} of {real.dtype}: expected booleans (B, S) = {(B, S)}, True = a real "
            "token, the tokens of the cache included."
        )


def _check_numbers(name, x, *shapes):
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name} are a {type(x).__name__}: expected a tensor {tuple(shapes[-1])}.")
    if x.dtype not in (torch.int64, torch.int32) or x.shape not in shapes:
        expected = " or ".join(str(tuple(shape)) for shape in reversed(shapes))
        raise ValueError(f"{name} {tuple(x.shape)} of {x.dtype}: expected int64 or int32, {expected}.")


def _check_cache(cache, config, B):
    """What earlier passes left belongs to the same model and the same texts; -> how many tokens have gone by."""
    if not hasattr(cache, "layers"):
        raise ValueError(f"cache = {cache!r}: expected a tx.Cache, or None.")
    for name in ("layer_types", "window", "n_kv_heads", "d_head"):
        other, own = getattr(cache.config, name), getattr(config, name)
        if other != own:
            raise ValueError(f"the cache was made for another model, of {name} = {other}; this one has {own}.")
    kept = cache.layers[0].keys
    if kept is not None and kept.shape[0] != B:
        raise ValueError(f"the cache holds {kept.shape[0]} texts, tokens have {B}: start a new one, or `select`.")
    return cache.length


def _check_turned(schemes, cache, mask, T):
    """Keys in the cache and new queries have the same tables; padding counts for no length."""

    def same(before, after):
        return all(scheme.same_tables(before, after) for scheme in schemes)

    before, after = cache.longest, cache.length + T
    if torch.compiler.is_compiling() or same(0, after):  # no text up to so long has other tables, padded or not
        return
    if isinstance(mask, torch.Tensor):  # looked at last: it waits for the device
        before -= int((~mask[:, :before]).sum(1).min())
        after -= int((~mask).sum(1).min())
    if not same(before, after):
        raise ValueError(
            f"the cache was filled with the RoPE frequencies of a text of {before} tokens, and one of {after} has "
            "others: read the whole text again, with an empty cache."
        )


def _check_memory(memory, B, d_model):
    expected = f"expected (B, N, D) with B = {B}, D = {d_model}"
    if not isinstance(memory, torch.Tensor):
        found = "None" if memory is None else f"a {type(memory).__name__}"
        raise ValueError(f"memory is {found}: these layers read one, {expected}.")
    if memory.dim() != 3 or len(memory) != B or memory.shape[-1] != d_model:
        raise ValueError(f"memory {tuple(memory.shape)}: {expected}.")
