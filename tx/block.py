"""The block: norm, attention, feed-forward, and the residual stream that joins them (chapters 5, 6).

One switchable block serves every family. What is the same for all layers of a pass, masks and position
tables, is made once by `tx.stack` and flows down in a `Flow`; a layer gets its own keys and values of the
past and nothing else. Heads are counted from the width of a projection, so that a layer which holds a part
of the heads (tensor parallelism) computes that part.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .multihead import merge_heads, split_heads
from .scaled_dot_product import attention


@dataclass
class View:
    """What all layers of one type share in a pass: who may look where, and how positions take part.

    mask: as in `attention`. scheme: see `tx.positions`. tables: what the scheme made for this pass.
    """

    mask: Any
    scheme: nn.Module
    tables: Any


@dataclass
class Flow:
    """What flows down through the layers of one pass.

    views: a `View` for each layer type, "full" or "window".
    slots: (T,) numbers of the new tokens in their texts, which is where a static cache writes them.
    memory, memory_mask: what a decoder's cross-attention reads, (B, N, D), and which of it.
    """

    views: dict
    slots: torch.Tensor
    memory: torch.Tensor | None = None
    memory_mask: Any = None


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

    config: see its attention group. layer: number of the layer from 0.
    """

    def __init__(self, config, layer=0):
        super().__init__()
        c, bias = config, config.attention_bias
        self.config, self.kind, self.d_head = c, c.layer_types[layer], int(c.d_head)
        self.query = nn.Linear(c.d_model, c.n_heads * c.d_head, bias="q" in bias)
        self.key = nn.Linear(c.d_model, c.n_kv_heads * c.d_head, bias="k" in bias)
        self.value = nn.Linear(c.d_model, c.n_kv_heads * c.d_head, bias="v" in bias)
        self.out = nn.Linear(c.n_heads * c.d_head, c.d_model, bias="o" in bias)
        whole = c.qk_norm == "full"  # else over the width of a head
        self.query_norm = make_norm(c, c.n_heads * c.d_head if whole else c.d_head) if c.qk_norm else None
        self.key_norm = make_norm(c, c.n_kv_heads * c.d_head if whole else c.d_head) if c.qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(c.n_heads)) if c.sinks else None
        if c.positions == "deberta" and not c.share_position_projection:
            if c.content_position:
                self.position_key = nn.Linear(c.d_model, c.n_heads * c.d_head, bias=c.position_key_bias)
            if c.position_content:
                self.position_query = nn.Linear(c.d_model, c.n_heads * c.d_head)
        self.scale = c.d_head**-0.5 if c.scale is None else c.scale
        if c.scale_by_layer:
            self.scale = self.scale / (layer + 1)

    def forward(self, x, flow, kv=None):
        """x (B, T, D) -> (B, T, D). `kv` remembers keys and values between passes."""
        view = flow.views[self.kind]
        q, k, v = self.project(x)  # (B, T, H*d_k), (B, T, G*d_k), (B, T, G*d_k)
        q, k = self.heads(q, self.query_norm), self.heads(k, self.key_norm)  # (B, H, T, d_k), (B, G, T, d_k)
        q, k = view.scheme.turn(q, k, view.tables)  # (B, H, T, d_k), (B, G, T, d_k)
        v = self.heads(v)  # (B, G, T, d_k)
        if kv is not None:
            k, v = kv.update(k, v, flow.slots)  # (B, G, S, d_k), (B, G, S, d_k)  the past first
        bias = view.scheme.bias(q, k, view.tables, self.project_positions)  # (B or 1, n, T, S)  n = H, or None
        return self.out(merge_heads(self.attend(q, k, v, view.mask, bias)))  # (B, T, D)

    def project(self, x):
        """x (B, T, D) -> queries (B, T, H*d_k), keys and values (B, T, G*d_k)."""
        return self.query(x), self.key(x), self.value(x)

    def heads(self, x, norm=None):
        """Clip, norm and split one projection: x (B, T, n*d_k) -> (B, n, T, d_k).

        The dtype stays, where autocast would norm in fp32: queries, keys and values have one.
        """
        c = self.config
        if c.clip_qkv is not None:
            x = x.clamp(-c.clip_qkv, c.clip_qkv)
        if norm is not None and c.qk_norm == "full":
            _check_whole(x, self.d_head, c.n_heads if norm is self.query_norm else c.n_kv_heads)
            return split_heads(norm(x).to(x.dtype), x.shape[-1] // self.d_head)  # (B, n, T, d_k)
        x = split_heads(x, x.shape[-1] // self.d_head)  # (B, n, T, d_k)
        return x if norm is None else norm(x).to(x.dtype)  # (B, n, T, d_k)

    def attend(self, q, k, v, mask, bias=None, return_weights=False):
        """`attention` with this layer's scale, cap, sinks and dropout; `tx.record` asks for the weights, too."""
        c = self.config
        if q.shape[1] != c.n_heads:
            _check_shard(self, q, k, bias)
        dropout = c.attention_dropout if self.training else 0.0
        switches = {"scale": self.scale, "softcap": c.softcap, "sinks": self.sinks, "dropout": dropout}
        return attention(q, k, v, mask, bias=bias, return_weights=return_weights, **switches)

    def project_positions(self, rows):
        """DeBERTa's relative positions as keys and queries: (R, D) -> two of (1, H, R, d_k), scaled."""
        c, rows = self.config, rows[None]  # (1, R, D)
        share = c.share_position_projection
        key = (self.key if share else self.position_key) if c.content_position else None
        query = (self.query if share else self.position_query) if c.position_content else None
        return tuple(p if p is None else self.heads(p(rows)) * self.scale for p in (key, query))


class CrossAttention(Attention):
    """Queries from one stack, keys and values from the memory of another; no positions take part (T5, BART)."""

    def forward(self, x, flow, kv=None):
        """x (B, T, D) -> (B, T, D). `kv` keeps keys and values of the memory, which are computed once."""
        q = self.heads(self.query(x), self.query_norm)  # (B, H, T, d_k)
        if kv is None or kv.keys is None:
            k, v = self.key(flow.memory), self.value(flow.memory)  # (B, N, G*d_k), (B, N, G*d_k)
            k, v = self.heads(k, self.key_norm), self.heads(v)  # (B, G, N, d_k), (B, G, N, d_k)
            k, v = (k, v) if kv is None else kv.update(k, v)  # (B, G, N, d_k), (B, G, N, d_k)
        else:
            k, v = kv.keys, kv.values  # (B, G, N, d_k), (B, G, N, d_k)
        return self.out(merge_heads(self.attend(q, k, v, flow.memory_mask)))  # (B, T, D)


def _check_whole(x, d_head, n_heads):
    if x.shape[-1] != d_head * n_heads:
        raise ValueError(
            f"this projection makes {x.shape[-1] // d_head} of {n_heads} heads: qk_norm = 'full' norms over "
            "all of them, so none can be elsewhere."
        )


def _check_shard(layer, q, k, bias):
    """A layer that holds a part of the heads does what can be done with a part, or says what cannot."""
    c, H, G = layer.config, q.shape[1], k.shape[1]
    where = f"this layer's projections make {H} query and {G} key heads of {c.n_heads} and {c.n_kv_heads}"
    if c.n_kv_heads > 1 and H * c.n_kv_heads != G * c.n_heads:
        raise ValueError(f"{where}: queries would read the wrong keys. Split both, or neither.")
    if bias is not None and bias.shape[1] not in (1, H):
        raise ValueError(f"{where}: {c.positions!r} adds numbers for {bias.shape[1]} heads to the scores.")
    if layer.sinks is not None and len(layer.sinks) != H:
        raise ValueError(f"{where}: there are {len(layer.sinks)} sinks, expected one a head.")


# ── feed-forward ─────────────────────────────────────────────────────────────────────────────────



def gelu_tanh(x):
    """GELU with the tanh of GPT-2 in place of the error function."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {  # functions that have a name, so that a model can be pickled
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
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
        self.dropout = nn.Dropout(c.ffn_dropout)

    def forward(self, x):
        """x (..., D) -> (..., D)."""
        if self.gated:
            gate, up = self.project(x)  # (..., d_ff), (..., d_ff)
            inner = self.activation(gate) * up  # (..., d_ff)
        else:
            inner = self.activation(self.up(x))  # (..., d_ff)
        return self.down(self.dropout(inner))  # (..., D)

    def project(self, x):
        """x (..., D) -> what is activated and what it multiplies, (..., d_ff) each."""
        return self.gate(x), self.up(x)


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

        x ──┬─▶ norm ─▶ attention ─▶ output norm ─▶ + ──┬─▶ norm ─▶ feed-forward ─▶ output norm ─▶ + ──▶
            └───────────────────────────────────────┘   └─────────────────────────────────────────┘

    Each of the norms is there or not: "pre" has the first, "sandwich" both, "output" the second; "post" has
    one behind the sum. With `parallel` both parts read the same x and are added to it together.
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
            self.cross_attention = CrossAttention(c, layer)
            self.cross_attention_norm, self.cross_attention_output_norm = norm_if(before), norm_if(after)
        self.feed_forward = Experts(c) if c.n_experts else FeedForward(c)
        self.feed_forward_norm, self.feed_forward_output_norm = norm_if(before), norm_if(after)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x, flow, kv=None, cross_kv=None):
        """x (B, T, D) -> (B, T, D)."""
        if self.config.parallel:
            attended = self.attention(self.attention_norm(x), flow, kv)  # (B, T, D)
            return x + self.dropout(attended) + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self._add(x, self.attention_norm, self.attention, self.attention_output_norm, flow, kv)  # (B, T, D)
        if flow.memory is not None:
            norm, output_norm = self.cross_attention_norm, self.cross_attention_output_norm
            x = self._add(x, norm, self.cross_attention, output_norm, flow, cross_kv)  # (B, T, D)
        return self._add(x, self.feed_forward_norm, self.feed_forward, self.feed_forward_output_norm)

    def _add(self, x, norm, part, output_norm, *arguments):
        """x (B, T, D) plus part(x), with the norms where the family has them -> (B, T, D)."""
        if self.config.norm_place == "post":
            return norm(x + self.dropout(part(x, *arguments)))  # (B, T, D)
        normed = norm(x)  # (B, T, D)
        out = output_norm(part(normed, *arguments))  # (B, T, D)
        return (normed if self.config.residual_after_norm else x) + self.dropout(out)  # (B, T, D)
