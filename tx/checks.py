"""What the model code refuses: every error names the value, what was expected and where to look.

The modules call these first, so that a wrong shape never becomes a wrong number; the book's quotes leave the
calls out. Each raises ValueError, or returns None.
"""

import torch

# ── attention ─────────────────────────────────────────────────────────────────────────────────────


def check_attention(q, k, v, bias, softcap, sinks, dropout, how, return_weights):
    shapes = f"  q {tuple(q.shape)}   k {tuple(k.shape)}   v {tuple(v.shape)}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} has {x.dim()} axes, expected 4: (B, heads, time, width).\n{shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(
            f"q is {q.dtype}, k is {k.dtype}, v is {v.dtype}: expected one floating-point type."
        )
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"the batch sizes differ.\n{shapes}")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise ValueError(f"every key needs its value: heads and length of k and v differ.\n{shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries have width {q.shape[-1]}, keys {k.shape[-1]}.\n{shapes}")
    if k.shape[2] == 0:
        raise ValueError(f"there is no key to attend to: k has length 0.\n{shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"k has {k.shape[1]} heads and q has {q.shape[1]}: the number of query heads must be a "
            f"multiple of the number of key heads.\n{shapes}\n"
            "  If these are (batch, time, heads, width), transpose axes 1 and 2 first."
        )
    if bias is not None:
        check_broadcast("bias", bias, (*q.shape[:3], k.shape[2]))
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


def check_mask_tensor(mask, shape):
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask has dtype {mask.dtype}: a mask is boolean, True = may attend.\n"
            "  0/1 integers: pass mask.bool(). Additive floats (0 and -inf): pass bias=mask."
        )
    check_broadcast("mask", mask, shape)


def check_broadcast(name, x, shape):
    fits = x.dim() <= 4 and all(
        n in (1, size) for n, size in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} {tuple(x.shape)} does not broadcast to (B, H, T, S) = {tuple(shape)}.\n"
            "  A (B, S) table of real keys is padding(real); as a tensor it is real[:, None, None]."
        )


# ── a pass through a stack ────────────────────────────────────────────────────────────────────────


def check_tokens(tokens, config):
    if not isinstance(tokens, torch.Tensor):
        raise ValueError(f"tokens are a {type(tokens).__name__}: expected a tensor of ids (B, T).")
    shape, width = tuple(tokens.shape), config.d_embedding
    if tokens.is_floating_point() and (len(shape) != 3 or shape[-1] != width):
        raise ValueError(
            f"tokens {shape} of {tokens.dtype}: expected ids (B, T), or (B, T, {width}) that are embedded already."
        )
    if not tokens.is_floating_point() and len(shape) != 2:
        raise ValueError(f"tokens {shape}: expected (B, T); add the batch with tokens[None].")
    if shape[1] == 0:
        raise ValueError(f"tokens {shape}: expected one token at least.")
    if tokens.is_floating_point():
        return
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens of {tokens.dtype}: expected ids of torch.int64 or torch.int32.")
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocab_size:
        worst = int(tokens.max()) if int(tokens.max()) >= config.vocab_size else int(tokens.min())
        raise ValueError(f"token id {worst} is outside the vocabulary of {config.vocab_size}.")


def check_numbers(name, x, shapes):
    if x is None:
        return
    if x.dtype not in (torch.int64, torch.int32) or tuple(x.shape) not in shapes:
        expected = " or ".join(map(str, sorted(shapes)))
        raise ValueError(f"{name} {tuple(x.shape)} of {x.dtype}: expected int64 or int32, {expected}.")


def check_segments(segments, shape, n_segments):
    if segments is None:
        return
    if not n_segments:
        raise ValueError("this model has no segments: it was given some.")
    check_numbers("segments", segments, {shape})
    if segments.numel() and not 0 <= int(segments.min()) <= int(segments.max()) < n_segments:
        raise ValueError(
            f"segments {int(segments.min())} … {int(segments.max())}: expected 0 … {n_segments - 1}."
        )


def check_kept(cache, memory, B, config, cross):
    """What comes from earlier passes belongs to the same model and the same texts."""
    width = config.d_model
    if cross and memory is None:
        raise ValueError(f"memory is None: these layers read one, expected (B, S, D) with B = {B}, D = {width}.")
    for name in ("layer_types", "window", "n_kv_heads", "d_head") if cache is not None else ():
        other, own = getattr(cache.config, name), getattr(config, name)
        if other != own:
            raise ValueError(f"the cache was made for another model, of {name} = {other}; this one has {own}.")
    kept = [kv.keys for kv in cache.layers if kv.keys is not None] if cache is not None else []
    if kept and len(kept[0]) != B:
        raise ValueError(f"the cache holds {len(kept[0])} texts, tokens have {B}: start a new one, or `select`.")
    if memory is not None and (memory.dim() != 3 or len(memory) != B or memory.shape[-1] != width):
        raise ValueError(f"memory {tuple(memory.shape)}: expected (B, S, D) with B = {B}, D = {width}.")


def check_real(real, B, S):
    if real is None:
        return
    if real.dtype != torch.bool or tuple(real.shape) != (B, S):
        raise ValueError(
            f"mask {tuple(real.shape)} of {real.dtype}: expected booleans (B, S) = {(B, S)}, True = a real "
            "token, the tokens of the cache included."
        )


def check_last(last):
    """Refuse what a slice would take for something else: the last 0 would be all."""
    if last is not None and (not isinstance(last, int) or last < 1):
        raise ValueError(f"last = {last!r}: expected a number of tokens, at least 1, or None for all of them.")


def check_source_mask(mask, memory):
    if mask.dtype != torch.bool or mask.shape != memory.shape[:2]:
        raise ValueError(
            f"source_mask {tuple(mask.shape)} of {mask.dtype}: expected booleans (B, S) = "
            f"{tuple(memory.shape[:2])}, True = a real token of the source."
        )


def check_mel(mel, n_mels):
    if mel.dim() != 3 or mel.shape[1] != n_mels or mel.shape[2] == 0:
        raise ValueError(f"mel {tuple(mel.shape)}: expected (B, {n_mels}, frames).")


# ── caches ────────────────────────────────────────────────────────────────────────────────────────


def check_cache_kind(config, room, rolling):
    if not hasattr(config, "layer_types"):
        raise ValueError(f"a cache is made from model.config, not from a {type(config).__name__}.")
    if room is not None and (not isinstance(room, int) or room < 1):
        raise ValueError(f"room = {room!r}: expected a number of tokens, at least 1, or None to grow.")
    if room is not None and rolling:
        raise ValueError(f"room = {room} and rolling: a cache is static or rolling, not both.")


def check_cache(cache):
    if cache is not None and not hasattr(cache, "layers"):
        raise ValueError(f"cache = {cache!r}: expected a tx.Cache, or None.")
