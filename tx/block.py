"""The block: norm, attention, feed-forward, and the residual stream that joins them (chapters 5, 6).

One switchable block serves every family. What is the same for all layers of a pass, masks and
position tables, is computed once by the model and comes down in a `Flow`; a layer gets its own
keys and values of the past and nothing else.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .checks import check_cache, check_kept, check_numbers, check_real, check_segments, check_tokens
from .masks import as_mask, causal, everything, padding, window
from .multihead import merge_heads, split_heads
from .positions import build as build_positions
from .scaled_dot_product import attention


@dataclass
class Flow:
    """What flows down through the layers of one pass.

    by_type: for each layer type, "full" or "window": who may look where, the position scheme, its tables.
    memory, memory_mask: what a decoder's cross-attention reads, (B, S, D).
    record: where layers leave what `tx.record` shows.
    """

    by_type: dict
    memory: torch.Tensor | None = None
    memory_mask: object = None
    record: object = None


# ── norms ────────────────────────────────────────────────────────────────────────────────────────


class RMSNorm(nn.Module):
    """x / √mean(x²), times a weight (Zhang and Sennrich 2019): no mean, no bias.

    plus_one: the weight is 1 + w, and is applied before the cast back (Gemma).
    """

    def __init__(self, width, eps, plus_one=False):
        super().__init__()
        self.eps, self.plus_one = eps, plus_one
        self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()  # (..., D)
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)  # (..., D)
        if self.plus_one:
            return (wide * (1.0 + self.weight.to(wide.dtype))).to(x.dtype)  # (..., D)
        return self.weight * wide.to(x.dtype)  # (..., D)


def make_norm(config, width=None):
    """The norm that the config asks for, over `width` features (d_model unless given)."""
    width = width or config.d_model
    if config.norm == "layer":
        return nn.LayerNorm(width, config.norm_eps, bias=config.norm_bias)
    return RMSNorm(width, config.norm_eps, plus_one=config.norm == "rms_plus_one")


# ── attention ────────────────────────────────────────────────────────────────────────────────────


class Attention(nn.Module):
    """Multi-head attention with every family's switches: grouped heads, QK-norm, caps, positions.

    config: see its attention group. layer: number of the layer from 0, for `scale_by_layer` alone.
    cross: keys and values come from a memory; no positions take part (T5, BART, Whisper).
    """

    def __init__(self, config, layer=0, cross=False):
        super().__init__()
        c = config
        self.config, self.cross, self.kind = c, cross, "full" if cross else c.layer_types[layer]
        bias = c.attention_bias
        self.query = nn.Linear(c.d_model, c.n_heads * c.d_head, bias="q" in bias)
        self.key = nn.Linear(c.d_model, c.n_kv_heads * c.d_head, bias="k" in bias)
        self.value = nn.Linear(c.d_model, c.n_kv_heads * c.d_head, bias="v" in bias)
        self.out = nn.Linear(c.n_heads * c.d_head, c.d_model, bias="o" in bias)
        self.joined = None  # what `tx.fuse` puts there
        if c.qk_norm:
            whole = c.qk_norm == "full"
            self.query_norm = make_norm(c, c.n_heads * c.d_head if whole else c.d_head)
            self.key_norm = make_norm(c, c.n_kv_heads * c.d_head if whole else c.d_head)
        self.sinks = nn.Parameter(torch.zeros(c.n_heads)) if c.sinks else None
        if c.positions == "deberta" and not c.share_position_projection:
            if c.content_position:
                self.position_key = nn.Linear(c.d_model, c.d_model, bias=c.position_key_bias)
            if c.position_content:
                self.position_query = nn.Linear(c.d_model, c.d_model)
        self.scale = c.d_head**-0.5 if c.scale is None else c.scale
        if c.scale_by_layer:
            self.scale = self.scale / (layer + 1)

    def forward(self, x, flow, kv=None):
        """x (B, T, D) -> (B, T, D). `kv` remembers keys and values between passes."""
        c = self.config
        if self.cross:
            q = self._heads(self.query(x), c.n_heads, "query_norm")  # (B, H, T, d_k)
            k, v = self._memory(flow.memory, kv)  # (B, G, S, d_k), (B, G, S, d_k)
            mask, bias = flow.memory_mask, None
        else:
            mask, scheme, tables = flow.by_type[self.kind]
            if self.joined is None:
                q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, H*d_k), (B, T, G*d_k), (B, T, G*d_k)
            else:
                q, k, v = self.joined(x)  # (B, T, H*d_k), (B, T, G*d_k), (B, T, G*d_k)
            q = self._heads(q, c.n_heads, "query_norm")  # (B, H, T, d_k)
            k = self._heads(k, c.n_kv_heads, "key_norm")  # (B, G, T, d_k)
            v = self._heads(v, c.n_kv_heads)  # (B, G, T, d_k)
            q, k = scheme.turn(q, k, tables)  # (B, H, T, d_k), (B, G, T, d_k)
            if kv is not None:
                k, v = kv.update(k, v)  # (B, G, S, d_k), (B, G, S, d_k)  the past first
            bias = scheme.bias(q, k, tables, self._project_positions)  # (B or 1, H, T, S)  or None
        out = attention(
            q, k, v, mask, bias=bias, scale=self.scale, softcap=c.softcap, sinks=self.sinks,
            dropout=c.attention_dropout if self.training else 0.0, return_weights=flow.record is not None,
        )  # and the weights beside it, where they are recorded
        if flow.record is not None:
            out, weights = out  # (B, H, T, d_k), (B, H, T, S)
            (flow.record.cross_attention if self.cross else flow.record.attention).append(weights)
        return self.out(merge_heads(out))  # (B, T, D)

    def _memory(self, memory, kv):
        """Keys and values of the memory (B, S, D), computed once where there is a cache."""
        if kv is not None and kv.keys is not None:
            return kv.keys, kv.values  # (B, G, S, d_k), (B, G, S, d_k)
        k = self._heads(self.key(memory), self.config.n_kv_heads, "key_norm")  # (B, G, S, d_k)
        v = self._heads(self.value(memory), self.config.n_kv_heads)  # (B, G, S, d_k)
        return (k, v) if kv is None else kv.update(k, v)  # (B, G, S, d_k), (B, G, S, d_k)

    def _heads(self, x, n_heads, norm=""):
        """Clip, norm and split one projection: (B, T, n_heads·d_k) -> (B, n_heads, T, d_k)."""
        c = self.config
        if c.clip_qkv is not None:
            x = x.clamp(-c.clip_qkv, c.clip_qkv)
        if norm and c.qk_norm == "full":
            x = getattr(self, norm)(x)
        x = split_heads(x, n_heads)  # (B, n_heads, T, d_k)
        return getattr(self, norm)(x) if norm and c.qk_norm == "head" else x

    def _project_positions(self, rows):
        """DeBERTa's relative positions as keys and queries: (R, D) -> two of (1, H, R, d_k), scaled."""
        c = self.config
        key, query = ("key", "query") if c.share_position_projection else ("position_key", "position_query")
        return tuple(
            self._heads(getattr(self, name)(rows[None]), c.n_heads) * self.scale if wanted else None
            for name, wanted in ((key, c.content_position), (query, c.position_content))
        )


# ── feed-forward ─────────────────────────────────────────────────────────────────────────────────

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Two matrices with an activation between, or three with a gate (Shazeer 2020, GLU variants)."""

    def __init__(self, config):
        super().__init__()
        c = config
        self.activation, self.gated = ACTIVATIONS[c.activation], c.gated
        self.up = nn.Linear(c.d_model, c.d_ff, bias=c.ffn_bias)
        if c.gated:
            self.gate = nn.Linear(c.d_model, c.d_ff, bias=c.ffn_bias)
        self.down = nn.Linear(c.d_ff, c.d_model, bias=c.ffn_bias)
        self.joined = None  # what `tx.fuse` puts there
        self.dropout = nn.Dropout(c.ffn_dropout)

    def forward(self, x):
        """x (..., D) -> (..., D)."""
        if not self.gated:
            return self.down(self.dropout(self.activation(self.up(x))))  # (..., D)
        gate, up = (self.gate(x), self.up(x)) if self.joined is None else self.joined(x)  # (..., d_ff)
        inner = self.activation(gate) * up  # (..., d_ff)
        return self.down(self.dropout(inner))  # (..., D)


class Experts(nn.Module):
    """Mixture of experts: a router sends every token to few of many gated feed-forwards.

    Sources: Mixtral (arXiv:2401.04088): softmax over all experts in fp32, the best k, renormalised; Qwen 3
    (arXiv:2505.09388) has a switch for that.
    """

    def __init__(self, config):
        super().__init__()
        self.k, self.renormalise = config.experts_per_token, config.norm_expert_weights
        self.router = nn.Linear(config.d_model, config.n_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.n_experts))

    def forward(self, x):
        """x (B, T, D) -> (B, T, D)."""
        tokens = x.flatten(0, 1)  # (N, D)  N tokens, B*T
        scores = self.router(tokens)  # (N, n_experts)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = torch.softmax(scores, dim=-1, dtype=wide)  # (N, n_experts)
        weights, chosen = weights.topk(self.k, dim=-1)  # (N, k), (N, k)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)  # (N, k)
        out = torch.zeros_like(tokens)  # (N, D)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                share = weights[token, place, None].to(x.dtype)  # (n, 1)  n tokens of this expert
                out.index_add_(0, token, expert(tokens[token]) * share)
        return out.view_as(x)  # (B, T, D)


# ── the block ────────────────────────────────────────────────────────────────────────────────────


class Block(nn.Module):
    """One layer: attention, in a decoder of two stacks cross-attention, and a feed-forward.

    A part's norm stands before it, or, "post", after the sum; its output norm before the sum.
    """

    def __init__(self, config, layer=0, cross=False):
        super().__init__()
        c = config
        self.config = c
        before, after = c.norm_place != "output", c.norm_place in ("sandwich", "output")
        norm_if = lambda wanted: make_norm(c) if wanted else nn.Identity()
        self.attention = Attention(c, layer)
        self.attention_norm = norm_if(before and (layer or c.first_attention_norm))
        self.attention_output_norm = norm_if(after)
        if cross:
            self.cross_attention = Attention(c, layer, cross=True)
            self.cross_attention_norm, self.cross_attention_output_norm = norm_if(before), norm_if(after)
        self.feed_forward = Experts(c) if c.n_experts else FeedForward(c)
        self.feed_forward_norm, self.feed_forward_output_norm = norm_if(before), norm_if(after)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x, flow, kv=None, cross_kv=None):
        """x (B, T, D) -> (B, T, D)."""
        if self.config.parallel:
            attended = self.attention(self.attention_norm(x), flow, kv)  # (B, T, D)
            return x + self.dropout(attended) + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self._residual(x, "attention", flow, kv)  # (B, T, D)
        if flow.memory is not None:
            x = self._residual(x, "cross_attention", flow, cross_kv)  # (B, T, D)
        return self._residual(x, "feed_forward")  # (B, T, D)

    def _residual(self, x, name, *arguments):
        """x (B, T, D) plus part(x), with the norms where the family has them -> (B, T, D)."""
        part, norm, output_norm = (getattr(self, name + end) for end in ("", "_norm", "_output_norm"))
        if self.config.norm_place == "post":
            return norm(x + self.dropout(part(x, *arguments)))  # (B, T, D)
        normed = norm(x)  # (B, T, D)
        out = output_norm(part(normed, *arguments))  # (B, T, D)
        return (normed if self.config.residual_after_norm else x) + self.dropout(out)  # (B, T, D)


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
        self.positions = build_positions(c)
        self.embedding_norm = make_norm(c, c.d_embedding) if c.embedding_norm else nn.Identity()
        self.projection = nn.Linear(c.d_embedding, c.d_model) if c.embedding_width else nn.Identity()
        n_own = 1 if c.share_layers else c.n_layers
        self.blocks = nn.ModuleList(Block(c, layer, cross) for layer in range(n_own))
        self.norm = make_norm(c) if c.final_norm else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)
        self.record = None  # what `tx.record` puts there

    def forward(self, tokens, mask=None, *, positions=None, segments=None, cache=None,
                memory=None, memory_mask=None):
        """tokens (B, T) or (B, T, D) -> hidden states (B, T, D).

        Args:
            tokens: ids, or vectors that are embedded already (Whisper's encoder).
            mask: (B, S) with True = a real token (S counts the cache's past), or a `tx.Mask`.
            positions: (B or 1, T); counted from the mask unless given.
            segments: (B, T) token types, zeros unless given.
            cache: what earlier passes left behind.
            memory: what cross-attention reads, (B, N, D).
            memory_mask: who may read it.
        """
        check_tokens(tokens, self.config)
        check_cache(cache)
        B, T = tokens.shape[:2]
        if cache is not None:
            cache.begin()
        past = cache.length if cache is not None else 0
        real = mask if isinstance(mask, torch.Tensor) else None
        check_real(real, B, past + T)
        check_numbers("positions", positions, {(B, T), (1, T)})
        check_segments(segments, (B, T), self.config.n_segments)
        check_kept(cache, memory, B, self.config, self.cross)
        if positions is None:
            positions = self._positions_of(tokens, real, past)  # (B or 1, T)
        x = self._embed(tokens, positions, segments)  # (B, T, D)
        kinds = sorted(set(self.config.layer_types))
        by_type = {kind: self._by_type(kind, x, mask, positions, cache, past) for kind in kinds}
        flow = Flow(by_type, memory, memory_mask, self.record)
        if self.record is not None:
            self.record.begin(x)
        for layer in range(self.config.n_layers):
            block = self.blocks[0 if self.config.share_layers else layer]
            kv, cross_kv = (cache.layers[layer], cache.cross[layer]) if cache is not None else (None, None)
            x = block(x, flow, kv, cross_kv)  # (B, T, D)
            if self.record is not None:
                self.record.hidden.append(x)
        if cache is not None:
            cache.length += T
        return self.norm(x)  # (B, T, D)

    def _positions_of(self, tokens, real, past):
        """Where the tokens stand: from the mask if there is one, else counted on from the past."""
        c, T = self.config, tokens.shape[1]
        if c.positions_skip_pad is not None:  # RoBERTa counts the tokens that are not padding
            count = (tokens != c.positions_skip_pad).long()  # (B, T)
            return count.cumsum(1) * count - 1  # (B, T)  padding stands at -1
        if real is None:
            return torch.arange(past, past + T, device=tokens.device)[None]  # (1, T)
        return (real.long().cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)

    def _embed(self, tokens, positions, segments):
        """Everything that is added up before the first block: (B, T) -> (B, T, D)."""
        c = self.config
        x = tokens if tokens.is_floating_point() else self.embedding(tokens)  # (B, T, E)  E = d_embedding
        if c.embedding_scale is not None:
            x = x * torch.tensor(c.embedding_scale, dtype=x.dtype)  # (B, T, E)  rounded as x is
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments  # (B, T)
            x = x + self.segments(segments)  # (B, T, E)
        placed = self.positions["full"].embed(positions, x.dtype)  # (B or 1, T, E)  or None
        x = x if placed is None else x + placed  # (B, T, E)
        return self.projection(self.dropout(self.embedding_norm(x)))  # (B, T, D)

    def _by_type(self, kind, x, mask, positions, cache, past):
        """What all layers of one type share: mask (booleans where structure is not enough), scheme, tables."""
        c, (B, T), device = self.config, x.shape[:2], x.device
        q_slots = torch.arange(past, past + T, device=device)  # (T,)
        k_slots = cache.slots(kind, T, device) if cache is not None else q_slots  # (S,)
        real = mask if isinstance(mask, torch.Tensor) else None
        who = as_mask(mask) if real is None and mask is not None else causal() if c.causal else everything()
        if kind == "window":
            who = who & window(c.window)
        if real is not None and not bool(real.all()):
            who = who & padding(real)
        if len(k_slots) != past + T:  # keys were dropped, or slots are empty still
            who = who.at(q_slots, k_slots)
        if who.structure(T, len(k_slots)) == "dense":
            who = who.dense((B, c.n_heads, T, len(k_slots)), device)  # (B or 1, H or 1, T or 1, S)
        scheme, wide = self.positions[kind], torch.promote_types(x.dtype, torch.float32)
        return who, scheme, scheme.tables(positions, q_slots[None], k_slots[None], wide)
