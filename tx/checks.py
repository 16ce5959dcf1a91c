"""What the model code refuses: every error names the value, what was expected and where to look.

The modules call these first, so that a wrong shape never becomes a wrong number; the book's quotes leave the
calls out. Each raises ValueError, or returns None.
"""

import math
from numbers import Integral, Real

import torch

from .stack import check_real, check_tokens


def check_settings(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, beams, on_token):
    whole = {"max_new_tokens": max_new_tokens, "top_k": top_k, "beams": beams}
    real = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
    for name, value in (whole | real).items():
        kind, words = (Integral, "a whole number") if name in whole else (Real, "a number")
        if not (isinstance(value, kind) or value is None and name in ("top_k", "top_p", "min_p")):
            raise ValueError(f"{name} = {value!r}: expected {words}.")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens = {max_new_tokens}: expected 0 or more.")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature = {temperature}: expected 0 (the likeliest token) or more.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k = {top_k}: expected 1 or more, or None for all tokens.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p = {top_p}: expected a probability in (0, 1].")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p = {min_p}: expected a share in [0, 1].")
    if not 0 < repetition_penalty < math.inf:
        raise ValueError(f"repetition_penalty = {repetition_penalty}: expected more than 0; 1 is none.")
    if beams < 1:
        raise ValueError(f"beams = {beams}: expected 1 or more.")
    if beams > 1 and temperature > 0:
        raise ValueError(f"beams = {beams} with temperature = {temperature}: beam search does not draw.")
    if beams > 1 and on_token is not None:
        raise ValueError(f"beams = {beams} with on_token: which text wins is known at the end only.")


def check_writer(model, start):
    """Whether the model has two stacks."""
    two = model.config.encoder is not None
    if not two and not model.config.causal:
        raise ValueError("this model is an encoder: its tokens see both sides, it predicts no next one.")
    if two and start is None:
        raise ValueError("an encoder–decoder needs start: the ids that every answer begins with.")
    if not two and start is not None:
        raise ValueError("start is for encoder–decoders: put these ids at the end of source.")
    return two


def check_ends(source, eos, pad, cache, vocab_size):
    if not isinstance(source, torch.Tensor):
        raise ValueError(f"source is a {type(source).__name__}: expected a tensor with a row for each text.")
    ends = eos.reshape(-1).tolist() if isinstance(eos, torch.Tensor) else eos
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    if not all(isinstance(end, int) for end in ends):
        raise ValueError(f"eos = {eos!r}: expected an id, or several; () for none.")
    if pad is not None and not (isinstance(pad, int) and 0 <= pad < vocab_size):
        raise ValueError(f"pad = {pad!r}: expected an id, 0 … {vocab_size - 1}.")
    if cache is not None and not isinstance(cache, bool) and not hasattr(cache, "layers"):
        raise ValueError(f"cache = {cache!r}: expected True, False or a tx.Cache.")


def check_start(start, B):
    try:
        found = torch.as_tensor(start)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"start = {start!r}: expected an id, a row of ids, or a row for each text.") from error
    right = found.dim() < 2 or found.dim() == 2 and len(found) in (1, B)
    if not right or found.numel() and (found.is_floating_point() or found.dtype == torch.bool):
        raise ValueError(
            f"start {tuple(found.shape)} of {found.dtype}: expected an id, a row of ids, or a row for each of {B} "
            "texts."
        )


def check_prompt(tokens, mask, cache, config):
    if tokens.numel() == 0:
        raise ValueError(f"empty prompt {tuple(tokens.shape)}: there must be a token to go on from.")
    check_tokens(tokens, config)
    if not isinstance(mask, torch.Tensor):
        return
    check_real(mask, len(tokens), tokens.shape[1] + (cache.length if cache is not None else 0))
    if not bool(mask[:, -1].all()):
        row = int((~mask[:, -1]).nonzero()[0])
        raise ValueError(
            f"row {row} of mask ends in padding: new tokens follow the last place, so a decoder's prompts "
            "are padded on the left."
        )


def check_room(config, cache, tokens, mask, n_new):
    past = cache.length if cache is not None else 0
    stop = past + tokens.shape[1] + max(0, n_new - 1)  # the last token is never read
    if cache is not None and cache.room is not None and stop > cache.room:
        raise ValueError(
            f"the cache has room for {cache.room} tokens: {past} in it, {tokens.shape[1]} in the prompt and "
            f"{n_new} to come need {stop}."
        )
    padding = int((~mask).sum(1).min()) if isinstance(mask, torch.Tensor) else 0
    if config.positions == "learned" and stop - padding > config.max_positions:
        raise ValueError(
            f"the model has {config.max_positions} learned positions: {past + tokens.shape[1] - padding} "
            f"tokens and {n_new} to come need {stop - padding}. Shorten the prompt or max_new_tokens."
        )
