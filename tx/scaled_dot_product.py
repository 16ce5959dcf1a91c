"""Attention as retrieval (chapter 1): softmax(Q Kᵀ / √d_k) V, and the paths that compute it.

`attention` is the formula, put together from small steps that the book introduces one by one:

    similarity   how well does each query match each key?          chapter 1
    softmax      matches become weights that sum to one            chapter 1
    read_out     the weighted sum of the values                    chapter 1
    hide         what a mask forbids is -inf before the softmax    chapter 3
    share_heads  several query heads read one key/value head       chapter 6

Sources: Vaswani et al. 2017 (arXiv:1706.03762, equation 1); grouped heads: Ainslie et al. 2023
(arXiv:2305.13245); the soft cap: Gemma 2 (arXiv:2408.00118); sinks: gpt-oss (arXiv:2508.10925).
"""

import torch
import torch.nn.functional as F


def similarity(q, k, scale=None):
    """Scaled dot product of every query with every key.

    q (…, T, d_k), k (…, S, d_k) -> scores (…, T, S). `scale` defaults to 1/√d_k. The queries are
    scaled before the product, so that fp16 does not overflow where the scaled scores would fit.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (q * scale) @ k.transpose(-2, -1)  # (..., T, S)


def softmax(scores):
    """Softmax over the last axis: (…, T, S) -> weights (…, T, S), same dtype.

    Computed in fp32 at least. The largest score of a row is subtracted first, which changes
    nothing but keeps `exp` finite. A row of nothing but -inf gives zeros, with zero gradients.
    """
    exact = scores.dtype == torch.float64
    wide = scores if exact else scores.float()  # (..., T, S)
    top = wide.detach().amax(-1, keepdim=True)  # (..., T, 1)
    top = top.masked_fill(top == -torch.inf, 0)  # (..., T, 1)
    e = (wide - top).exp()  # (..., T, S)
    total = e.sum(-1, keepdim=True)  # (..., T, 1)
    weights = e / (total + (total == 0))  # (..., T, S)
    return weights.to(scores.dtype)  # (..., T, S)


def read_out(weights, v):
    """The weighted sum of the values: weights (…, T, S), v (…, S, d_v) -> (…, T, d_v)."""
    return weights @ v  # (..., T, d_v)


def cap(scores, softcap):
    """Soft cap of Gemma 2: keeps scores (…, T, S) within ±softcap by a tanh."""
    return softcap * torch.tanh(scores / softcap)  # (..., T, S)


def hide(scores, keep):
    """-inf where `keep` is False, so that softmax gives those keys a weight of exactly 0.

    scores (B, H, T, S), keep boolean, broadcastable to it -> (B, H, T, S).
    """
    return scores.masked_fill(~keep, -torch.inf)  # (B, H, T, S)


def share_heads(x, n_heads):
    """Give every query head its key/value head: x (B, G, S, d) -> (B, H, S, d).

    Query head h reads key/value head h // (H / G), so neighbours share.
    """
    return x.repeat_interleave(n_heads // x.shape[1], dim=1)  # (B, H, S, d)


def with_sinks(scores, sinks):
    """One more column of scores that has no value: it takes weight and gives nothing.

    scores (B, H, T, S), sinks (H,) -> weights (B, H, T, S) whose rows sum to less than one.
    """
    extra = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)  # (B, H, T, 1)
    return softmax(torch.cat([scores, extra], dim=-1))[..., :-1]  # (B, H, T, S)


def attention(q, k, v, mask=None, *, bias=None, scale=None, softcap=None, sinks=None,
              dropout=0.0, how="auto", return_weights=False):
    """Scaled dot-product attention: every query reads a weighted average of the values.

    Args:
        q: queries (B, H, T, d_k).
        k: keys (B, G, S, d_k); G divides H (G = H: multi-head, G = 1: multi-query).
        v: values (B, G, S, d_v).
        mask: who may look where, True = may attend: a `tx.Mask`, a boolean tensor broadcastable
            to (B, H, T, S), or a predicate `keep(b, h, q_pos, k_pos)`. The last query stands at
            the position of the last key unless the mask carries its own positions.
        bias: added to the scaled scores, broadcastable to (B, H, T, S).
        scale: factor of the scores, 1/√d_k unless given.
        softcap: limit of the scores, `softcap * tanh(scores / softcap)`, before bias and mask.
        sinks: (H,) scores of an extra key without a value.
        dropout: probability of dropping a weight. Pass 0.0 in evaluation: a function has no mode.
        how: "explicit" is the formula, "sdpa" PyTorch's fused kernel, "auto" the faster that serves:

            | the call has                                         | path                      |
            |------------------------------------------------------|---------------------------|
            | soft cap, sinks, or weights wanted                   | the formula               |
            | no mask, causal() with T = S or T = 1                | SDPA, nothing dense       |
            | any other mask, a bias                               | SDPA with a dense mask    |
        return_weights: also return the weights (after dropout).

    Returns:
        (B, H, T, d_v), or that and the weights (B, H, T, S). A query that may see nothing
        reads zeros and sends no gradient.

    Raises:
        ValueError: shapes that do not fit, a mask or bias that does not broadcast, an unknown
            `how`, or `how="sdpa"` with something that SDPA cannot do.
    """
    _check_shapes(q, k, v)
    if how != "auto" or dropout or any(x is not None for x in (bias, softcap, sinks)):
        _check_switches(q, k, bias, softcap, sinks, dropout, how, return_weights)
    mask = _known(mask, q, k)
    if how == "auto":
        special = softcap is not None or sinks is not None or return_weights
        how = "explicit" if special else "sdpa"
    if how == "sdpa":
        return _fused(q, k, v, mask, bias, scale, dropout)
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])  # (B, H, S, d_k), (B, H, S, d_v)
    scores = similarity(q, k, scale)  # (B, H, T, S)
    if softcap is not None:
        scores = cap(scores, softcap)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)  # (B, H, T, S)
    if mask is not None:
        scores = hide(scores, _dense(mask, scores.shape, q.device))  # (B, H, T, S)
    weights = softmax(scores) if sinks is None else with_sinks(scores, sinks)  # (B, H, T, S)
    weights = F.dropout(weights, dropout) if dropout else weights  # (B, H, T, S)
    out = read_out(weights, v)  # (B, H, T, d_v)
    return (out, weights) if return_weights else out


def _fused(q, k, v, mask, bias, scale, dropout):
    """PyTorch's kernel, told the structure of the mask where it has one: a dense mask is slower."""
    shape = (*q.shape[:3], k.shape[2])
    if bias is not None:
        bias = bias.to(q.dtype).expand(shape)  # (B, H, T, S)
        bias = bias if mask is None else hide(bias, _dense(mask, shape, q.device))  # (B, H, T, S)
        seen = {"attn_mask": bias}
    elif mask is None or isinstance(mask, torch.Tensor):
        seen = {"attn_mask": mask}
    else:
        structure = mask.structure(*shape[2:])
        dense = _dense(mask, shape, q.device) if structure == "dense" else None  # (B or 1, H or 1, T or 1, S)
        seen = {"attn_mask": dense, "is_causal": structure == "causal"}
    seen |= {"scale": scale, "dropout_p": dropout, "enable_gqa": q.shape[1] != k.shape[1]}
    return F.scaled_dot_product_attention(q, k, v, **seen)  # (B, H, T, d_v)


def _dense(mask, shape, device):
    """A mask as booleans that broadcast to `shape` = (B, H, T, S)."""
    return mask if isinstance(mask, torch.Tensor) else mask.dense(shape, device)


def _known(mask, q, k):
    """The mask as None, a boolean tensor or a `Mask`; ValueError if it is none of these."""
    if isinstance(mask, torch.Tensor):
        _check_mask_tensor(mask, (*q.shape[:3], k.shape[2]))
        return torch.atleast_2d(mask)  # SDPA wants two axes
    if mask is None or hasattr(mask, "dense"):
        return mask
    from .masks import as_mask  # chapter 3's module: only a bare predicate needs it here

    return as_mask(mask)

# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def _check_shapes(q, k, v):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            _refuse(q, k, v, f"{name} has {x.dim()} axes, expected 4: (B, heads, time, width).")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(
            f"q is {q.dtype}, k is {k.dtype}, v is {v.dtype}: expected one floating-point type."
        )
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        _refuse(q, k, v, "the batch sizes differ.")
    if k.shape[1:3] != v.shape[1:3]:
        _refuse(q, k, v, "every key needs its value: heads and length of k and v differ.")
    if q.shape[-1] != k.shape[-1]:
        _refuse(q, k, v, f"queries have width {q.shape[-1]}, keys {k.shape[-1]}.")
    if k.shape[2] == 0:
        _refuse(q, k, v, "there is no key to attend to: k has length 0.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        _refuse(
            q, k, v, f"k has {k.shape[1]} heads and q has {q.shape[1]}: the number of query heads must be a "
            "multiple of the number of key heads.",
            "\n  If these are (batch, time, heads, width), transpose axes 1 and 2 first.",
        )  # fmt: skip


def _refuse(q, k, v, why, advice=""):
    raise ValueError(f"{why}\n  q {tuple(q.shape)}   k {tuple(k.shape)}   v {tuple(v.shape)}{advice}")


def _check_switches(q, k, bias, softcap, sinks, dropout, how, return_weights):
    if bias is not None:
        _check_broadcast("bias", bias, (*q.shape[:3], k.shape[2]))
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ValueError(f"sinks {tuple(sinks.shape)}: expected one score a head, ({q.shape[1]},).")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap = {softcap}: expected a number above 0, or None.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout = {dropout}: expected a probability, 0 <= dropout < 1.")
    if how not in ("auto", "explicit", "sdpa"):
        raise ValueError(f"how = {how!r}: known are 'auto', 'explicit' and 'sdpa'.")
    if how == "sdpa" and (softcap is not None or sinks is not None or return_weights):
        raise ValueError(
            "how='sdpa' has no soft cap, no sinks and no weights to return: use how='explicit'."
        )


def _check_mask_tensor(mask, shape):
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask has dtype {mask.dtype}: a mask is boolean, True = may attend.\n"
            "  0/1 integers: pass mask.bool(). Additive floats (0 and -inf): pass bias=mask."
        )
    _check_broadcast("mask", mask, shape)


def _check_broadcast(name, x, shape):
    fits = x.dim() <= 4 and all(
        n in (1, size) for n, size in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} {tuple(x.shape)} does not broadcast to (B, H, T, S) = {tuple(shape)}.\n"
            "  A (B, S) table of real keys is padding(real); as a tensor it is real[:, None, None]."
        )
