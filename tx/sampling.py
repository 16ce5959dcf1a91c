"""From a model to text: how the next token is chosen, over and over (chapter 7).

    generate            the loop: read, choose, append, until a row says it has finished
    penalise            before the choice: what was said already becomes less likely
    keep_top_k, keep_top_p, keep_min_p      before the choice: which tokens may be drawn at all
    sample              the choice: the likeliest token, or one drawn at a temperature
    beam_search         several texts at once, the most likely one as a whole is kept

A program waits for its accelerator wherever it reads a number out of a tensor, and meanwhile gives it nothing to
do. So the loops read one truth value a token: whether to go on.
"""

import math
from numbers import Integral, Real

import torch
import torch.nn.functional as F

from .cache import Cache
from .masks import as_mask
from .stack import check_real, check_tokens

# ── choosing one token ───────────────────────────────────────────────────────────────────────────


def penalise(logits, tokens, penalty, real=None):
    """Make tokens that stand in the text less likely: logits (B, V) -> (B, V).

    Positive logits are divided by the penalty, negative ones multiplied, once a token however often
    it occurred (Keskar et al. 2019, CTRL). tokens (B, T); real (B, T), True = a real token: padding
    was never said.
    """
    _check_logits(logits)
    _check_setting("repetition_penalty", penalty)
    _check_said(tokens, real, len(logits))
    counts = (torch.ones_like(tokens) if real is None else real).long()  # (B, T)  padding counts for nothing
    try:
        seen = torch.zeros_like(logits, dtype=torch.long).scatter_add(1, tokens.long(), counts) > 0  # (B, V)
    except RuntimeError as error:  # the CPU notices an id beyond the end by itself
        low, high = int(tokens.min()), int(tokens.max())
        raise ValueError(f"tokens {low} … {high}: expected ids, 0 … {logits.shape[1] - 1}.") from error
    weaker = torch.where(logits > 0, logits / penalty, logits * penalty)  # (B, V)
    return torch.where(seen, weaker, logits)  # (B, V)


def keep_top_k(logits, k):
    """Hide all but the k likeliest tokens; those that tie with the last one stay. (B, V) -> (B, V)."""
    _check_logits(logits)
    _check_setting("top_k", k)
    last = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < last, -math.inf)  # (B, V)


def keep_top_p(logits, p):
    """Keep the likeliest tokens that together just reach probability p. (B, V) -> (B, V).

    The token that crosses p stays, so at least one does (Holtzman et al. 2019, nucleus sampling).
    """
    _check_logits(logits)
    _check_setting("top_p", p)
    rising, order = logits.sort()  # (B, V), (B, V)
    hidden = rising.softmax(-1).cumsum(-1) <= 1 - p  # (B, V)
    hidden[:, -1] = False
    return logits.masked_fill(hidden.scatter(1, order, hidden), -math.inf)  # (B, V)


def keep_min_p(logits, p):
    """Keep tokens at least p times as likely as the likeliest. (B, V) -> (B, V).

    Source: min-p sampling (arXiv:2407.01082): where the model is sure, few are kept.
    """
    _check_logits(logits)
    _check_setting("min_p", p)
    probabilities = logits.softmax(-1)  # (B, V)
    floor = p * probabilities.amax(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(probabilities < floor, -math.inf)  # (B, V)


def sample(logits, temperature=0.0, top_k=None, top_p=None, min_p=None, generator=None):
    """One token for each row: logits (B, V) -> ids (B,). Temperature 0 takes the likeliest.

    Raises ValueError: a setting out of its range, logits that are NaN or infinite.
    """
    _check_logits(logits)
    _check_choice(temperature, top_k, top_p, min_p)
    _check_finite(logits, _broken(logits))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (B, V)
    return _choose(logits, temperature, top_k, top_p, min_p, generator)  # (B,)


def _choose(logits, temperature, top_k, top_p, min_p, generator):
    """`sample` of logits that nobody has looked at yet; of broken ones it gives some id. (B, V) -> (B,)."""
    if temperature == 0:
        return logits.argmax(-1)  # (B,)
    # the largest becomes 0: a small temperature makes others -inf, and nothing infinite
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # (B, V)
    logits = logits if top_k is None else keep_top_k(logits, top_k)  # (B, V)
    logits = logits if top_p is None else keep_top_p(logits, top_p)  # (B, V)
    logits = logits if min_p is None else keep_min_p(logits, min_p)  # (B, V)
    # a race: a token arrives after a random time divided by its probability, and is first that often. It
    # is the draw of `torch.multinomial`, which waits for the device twice
    times = torch.empty_like(logits).exponential_(generator=generator)  # (B, V)
    return (logits.softmax(-1) / times).argmax(-1)  # (B,)


def _broken(logits):
    """Whether a row has no likeliest token: one is NaN or +inf, or all are -inf. logits (B, V) -> ()."""
    return ~logits.amax(-1).isfinite().all()  # ()


# ── a whole text ─────────────────────────────────────────────────────────────────────────────────


class Reading:
    """A model in the middle of a text: give it the text so far, it says what may come next.

    With a cache it reads what is new only, and everything again when the position tables change with the
    length of the text. An encoder–decoder reads the source once, at the start. `mask` is the prompt's (B, S),
    or a `tx.Mask`; `source_mask` the source's.
    """

    def __init__(self, model, cache, mask=None, source=None, source_mask=None):
        self.model, self.cache, self.source_mask = model, cache, source_mask
        self.past = cache.length if cache is not None else 0
        self.memory = None if source is None else model.encode(source, source_mask)  # (B, S, D)
        whole = isinstance(mask, torch.Tensor) and bool(mask.all())
        self.mask = None if whole else mask
        self.padding = _padding(self.mask)
        # rows of the prompt that are read now; masks are selected from the first ones, or they would nest
        self.rows, self.first = None, (self.mask, source_mask)

    def real(self, tokens):
        """Which of these tokens (B, T) are real: (B, T) booleans, or None where all are."""
        if not isinstance(self.mask, torch.Tensor):
            return None
        wanted = self.past + tokens.shape[1]
        return F.pad(self.mask, (0, wanted - self.mask.shape[1]), value=True)[:, self.past :]  # (B, T)

    def __call__(self, tokens):
        """The text so far, but what the cache held before it: tokens (B, T) -> logits (B, V)."""
        known = self.cache.length - self.past if self.cache is not None else 0
        before, after = (self.past + n - self.padding for n in (known, tokens.shape[1]))
        if known and not same_tables(self.model, before, after):
            self.cache.cut(0)  # `generate` has refused this for a cache that held tokens before
            known = 0
        new = tokens[:, known:]  # (B, n)
        if self.memory is not None:
            logits = self.model.decode(new, self.memory, self.source_mask, cache=self.cache, last=1)
        else:
            mask = self.mask
            if isinstance(mask, torch.Tensor):
                mask = torch.cat([mask[:, : self.past], self.real(tokens)], dim=1)  # (B, S)
            logits = self.model(new, mask, cache=self.cache, last=1)  # (B, 1, V)
        return logits[:, -1].float()  # (B, V)

    def select(self, rows):
        """Go on with these rows of the batch, in this order. rows (R,) integers."""
        if self.cache is not None:
            self.cache.select(rows)
        self.rows = rows if self.rows is None else self.rows[rows]  # (R,)
        self.memory = None if self.memory is None else self.memory[rows]  # (R, S, D)
        self.mask, self.source_mask = (_select(mask, self.rows) for mask in self.first)


def same_tables(model, before, after):
    """Whether keys of a text of `before` tokens serve one of `after`; see `Positions.same_tables`."""
    stack = model.stack if model.config.encoder is None else model.decoder
    return all(scheme.same_tables(before, after) for scheme in stack.schemes.values())


def _padding(mask, stop=None):
    """Of the first `stop` places of a mask (B, S), how many are padding in the longest text; else 0."""
    return int((~mask[:, :stop]).sum(1).min()) if isinstance(mask, torch.Tensor) else 0


def _select(mask, rows):
    """These rows of a mask of any kind."""
    if mask is None:
        return None
    return mask[rows] if isinstance(mask, torch.Tensor) else as_mask(mask).select(rows)


@torch.no_grad()
def generate(
    model, source, max_new_tokens, *, mask=None, start=None, temperature=0.0, top_k=None, top_p=None,
    min_p=None, repetition_penalty=1.0, eos=(), pad=None, beams=1, on_token=None, cache=True,
    generator=None,
):  # fmt: skip
    """Continue a text, token by token.

    Args:
        model: a `Decoder`, or an `EncoderDecoder`, which reads `source` and writes after `start`.
        source: ids, a row for each text; for an encoder–decoder ids or what its encoder hears.
        max_new_tokens: at most so many.
        mask: (B, S) with True = a real token (tokens in the cache included); padding of a `Decoder`
            stands on the left.
        start: encoder–decoder: first ids of the answer: one number, a row, or a row for each text.
        temperature: 0 takes the likeliest token, 1 draws as the model says, more is bolder.
        top_k, top_p, min_p: leave out unlikely tokens, in this order; see `keep_top_k` …
        repetition_penalty: see `penalise`. What only the cache knows is not penalised.
        eos: id or ids that end a row; a row that has ended gets `pad` (the first of them unless given).
        beams: 1 draws or takes token by token; more is `beam_search`, of temperature 0.
        on_token: called as `on_token(tokens (B,), step)` after every token; True stops.
        cache: True, False (the same tokens, slower), or a `Cache` that may hold earlier tokens:
            `source` is then what follows them. Afterwards it holds all but the last token, in a row for
            each beam. Where frequencies of RoPE change with the length of the text, all of it is read
            again: once for LongRoPE, for every token beyond the original length for dynamic NTK.
        generator: a `torch.Generator`, for draws that can be repeated.

    Returns:
        (B, T + new): source (or start) and what follows; fewer than `max_new_tokens` if all rows ended.

    Raises:
        ValueError: a setting out of its range, an empty prompt, a prompt padded on the right, a text
            that learned positions or the cache have no room for, a cache whose tokens would have to be
            read again, logits that are NaN or infinite.
    """
    check_settings(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, beams, on_token)
    two = _check_writer(model, start)
    _check_ends(source, eos, pad, cache, model.config.vocab_size)
    eos = torch.as_tensor(eos, dtype=torch.long, device=source.device).reshape(-1)  # (E,)
    pad = pad if pad is not None else int(eos[0]) if len(eos) else 0
    cache = (Cache(model.config) if cache else None) if isinstance(cache, bool) else cache
    tokens = _first_tokens(start, source) if two else source
    own_mask = None if two else mask  # of the text that grows
    _check_prompt(tokens, own_mask, cache, model.config)
    _check_room(model, cache, tokens, own_mask, max_new_tokens)
    if max_new_tokens == 0:
        return tokens
    was_training = model.training
    model.eval()
    try:
        read = Reading(model, cache, own_mask, *((source, mask) if two else ()))
        if beams > 1:
            return beam_search(read, tokens, max_new_tokens, beams, eos, pad, repetition_penalty)
        ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)  # (B,)
        for step in range(max_new_tokens):
            logits = read(tokens)  # (B, V)
            broken = _broken(logits)  # ()
            if repetition_penalty != 1:
                logits = penalise(logits, tokens, repetition_penalty, read.real(tokens))  # (B, V)
            token = _choose(logits, temperature, top_k, top_p, min_p, generator)  # (B,)
            token = token.masked_fill(ended, pad)  # (B,)
            tokens = torch.cat([tokens, token[:, None]], dim=1)  # (B, t)  t grows
            ended = ended | (token[:, None] == eos).any(-1)  # (B,)
            done = bool(broken | ended.all())  # the wait for the device
            if done:
                _check_finite(logits, broken, step)
            if (on_token is not None and on_token(token, step)) or done:
                break
        return tokens
    finally:
        model.train(was_training)


def beam_search(read, tokens, n_new, beams, eos, pad, penalty=1.0):
    """The most likely text, looked for with several at once: tokens (B, T) -> (B, T + n).

    Every step goes on from the likeliest so many of all continuations of all running texts. A text
    that ends is kept with its log-probability per new token; a row is done when the best running text,
    as it stands, is no better than the worst of those kept.

    Args:
        read: `Reading`, or any function from a text so far (B, T) to logits (B, V) with a method
            `select(rows)`, which moves what it remembers along with the texts, and for a penalty `real`.
        tokens: (B, T).   n_new: at most so many.   beams: K.   eos: ids that end a text, (E,).

    Raises ValueError: sizes out of their range, logits that are NaN or infinite.
    """
    _check_search(tokens, n_new, beams, eos, pad, penalty)
    (B, T), K = tokens.shape, beams
    tokens = tokens.long()  # (B, T)
    first = torch.arange(B, device=tokens.device)[:, None] * K  # (B, 1)  row of a text's first beam
    finished = tokens.new_full((B, K, T + n_new), pad)  # (B, K, T+n_new)
    quality = torch.full((B, K), -math.inf, device=tokens.device)  # (B, K)  of what has finished
    length = torch.zeros_like(quality, dtype=torch.long)  # (B, K)
    running = quality.index_fill(1, tokens.new_zeros(1), 0.0)  # (B, K)  log-probabilities; one text so far
    is_open = torch.ones_like(first, dtype=torch.bool)  # (B, 1)
    logits = read(tokens)  # (B, V)
    copies = torch.arange(B, device=tokens.device).repeat_interleave(K)  # (B*K,)
    read.select(copies)
    texts, logits = tokens[copies], logits[copies]  # (B*K, T), (B*K, V)
    for step in range(n_new):
        V, broken = logits.shape[-1], _broken(logits)  # ()
        gain = logits.log_softmax(-1)  # (B*K, V)
        if penalty != 1:
            gain = penalise(gain, texts, penalty, read.real(texts))  # (B*K, V)
        total = (running[..., None] + gain.view(B, K, V)).flatten(1)  # (B, K*V)
        # enough candidates that K of them go on even if every beam's best ones end
        score, place = total.topk(min(K * max(2, 1 + len(eos)), K * V))  # (B, C), (B, C)  C candidates
        rows, token = first + place // V, place % V  # (B, C), (B, C)
        candidates = torch.cat([texts[rows], token[..., None]], dim=-1)  # (B, C, t)  t grows
        ends = (token[..., None] == eos).any(-1) | (step == n_new - 1)  # (B, C)

        counts = ends[:, :K] & is_open  # (B, K)
        new_quality = (score[:, :K] / (step + 1)).masked_fill(~counts, -math.inf)  # (B, K)
        quality, best = torch.cat([quality, new_quality], dim=1).topk(K)  # (B, K), (B, K)
        new_texts = F.pad(candidates[:, :K], (0, n_new - step - 1), value=pad)  # (B, K, T+n_new)
        finished = _pick(torch.cat([finished, new_texts], dim=1), best)  # (B, K, T+n_new)
        length = _pick(torch.cat([length, torch.full_like(length, step + 1)], dim=1), best)  # (B, K)

        running, on = score.masked_fill(ends, -math.inf).topk(K)  # (B, K), (B, K)
        is_open = is_open & (running[:, :1] / (step + 1) > quality[:, -1:])  # (B, 1)
        done = bool(broken | ~is_open.any())  # the wait for the device
        if done:
            _check_finite(logits, broken, step)
        if done or step == n_new - 1:
            break
        rows = _pick(rows, on).flatten()  # (B*K,)
        texts = _pick(candidates, on).flatten(0, 1)  # (B*K, t)
        read.select(rows)
        logits = read(texts)  # (B*K, V)
    return finished[:, 0, : T + int(length[:, 0].max())]  # (B, n_longest)


def _pick(x, index):
    """Entries of every row: x (B, C, …), index (B, K) -> (B, K, …)."""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def _first_tokens(start, source):
    """What an encoder–decoder's answer begins with: (B, P)."""
    _check_start(start, len(source))
    start = torch.as_tensor(start, dtype=torch.long, device=source.device)  # () or (P,) or (B, P)
    start = start.reshape(1, -1) if start.dim() < 2 else start  # (1, P) or (B, P)
    return start.expand(len(source), -1)  # (B, P)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────

_SETTINGS = {  # name: (type, in words, which values, in words)
    "max_new_tokens": (Integral, "a whole number", lambda n: n >= 0, "0 or more"),
    "temperature": (Real, "a number", lambda t: 0 <= t < math.inf, "0 (the likeliest token) or more"),
    "top_k": (Integral, "a whole number", lambda k: k >= 1, "1 or more; without it all tokens stay"),
    "top_p": (Real, "a number", lambda p: 0 < p <= 1, "a probability in (0, 1]"),
    "min_p": (Real, "a number", lambda p: 0 <= p <= 1, "a share in [0, 1]"),
    "repetition_penalty": (Real, "a number", lambda x: 0 < x < math.inf, "more than 0; 1 is none"),
    "beams": (Integral, "a whole number", lambda n: n >= 1, "1 or more"),
}


def _check_setting(name, value):
    kind, in_words, right, expected = _SETTINGS[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: expected {in_words}.")
    if not right(value):
        raise ValueError(f"{name} = {value}: expected {expected}.")


def _check_choice(temperature, top_k, top_p, min_p):
    _check_setting("temperature", temperature)
    for name, value in (("top_k", top_k), ("top_p", top_p), ("min_p", min_p)):
        if value is not None:
            _check_setting(name, value)


def check_settings(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, beams, on_token):
    """Refuse settings of `generate` before a model is there. Raises ValueError."""
    _check_setting("max_new_tokens", max_new_tokens)
    _check_choice(temperature, top_k, top_p, min_p)
    _check_setting("repetition_penalty", repetition_penalty)
    _check_setting("beams", beams)
    if on_token is not None and not callable(on_token):
        raise ValueError(f"on_token = {on_token!r}: expected a function of tokens and step, or None.")
    if beams > 1 and temperature > 0:
        raise ValueError(f"beams = {beams} with temperature = {temperature}: beam search does not draw.")
    if beams > 1 and on_token is not None:
        raise ValueError(f"beams = {beams} with on_token: which text wins is known at the end only.")


def _check_logits(logits):
    if not isinstance(logits, torch.Tensor):
        raise ValueError(f"logits are a {type(logits).__name__}: expected a tensor (B, V).")
    if logits.dim() != 2 or not logits.is_floating_point() or not logits.shape[1]:
        raise ValueError(
            f"logits {tuple(logits.shape)} of {logits.dtype}: expected floating-point numbers (B, V), those of "
            "one place in every text."
        )


def _check_finite(logits, broken, step=None):
    if bool(broken):
        kind = "NaN" if bool(logits.isnan().any()) else "infinite"
        place = "" if step is None else f" at new token {step + 1}"
        raise ValueError(
            f"the model's logits are {kind}{place}: its weights are broken, or their dtype overflows (load it "
            "with another dtype)."
        )


def _check_said(tokens, real, B):
    if not isinstance(tokens, torch.Tensor):
        raise ValueError(f"tokens are a {type(tokens).__name__}: expected a tensor of ids (B, T).")
    if tokens.dim() != 2 or len(tokens) != B or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"tokens {tuple(tokens.shape)} of {tokens.dtype}: expected ids (B, T), B = {B} as of the logits."
        )
    if real is not None:
        check_real(real, B, tokens.shape[1])


def _check_search(tokens, n_new, beams, eos, pad, penalty):
    for name, value in (("max_new_tokens", n_new), ("beams", beams), ("repetition_penalty", penalty)):
        _check_setting(name, value)
    if n_new == 0:
        raise ValueError("n_new = 0: a search writes 1 token or more.")
    if tokens.dim() != 2 or not tokens.numel() or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens {tuple(tokens.shape)} of {tokens.dtype}: expected ids (B, T).")
    if not isinstance(eos, torch.Tensor) or eos.dim() != 1 or eos.is_floating_point():
        raise ValueError(f"eos = {eos!r}: expected a tensor of ids (E,), of none for no end.")
    if not isinstance(pad, int):
        raise ValueError(f"pad = {pad!r}: expected an id.")


def _check_writer(model, start):
    """Whether the model has two stacks."""
    two = model.config.encoder is not None
    if not two and not model.config.causal:
        raise ValueError("this model is an encoder: its tokens see both sides, it predicts no next one.")
    if two and start is None:
        raise ValueError("an encoder–decoder needs start: the ids that every answer begins with.")
    if not two and start is not None:
        raise ValueError("start is for encoder–decoders: put these ids at the end of source.")
    return two


def _check_ends(source, eos, pad, cache, vocab_size):
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


def _check_start(start, B):
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


def _check_prompt(tokens, mask, cache, config):
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


def _check_room(model, cache, tokens, mask, n_new):
    config, padding = model.config, _padding(mask)
    past = cache.length if cache is not None else 0
    stop = past + tokens.shape[1] + max(0, n_new - 1)  # the last token is never read
    if cache is not None and cache.room is not None and stop > cache.room:
        raise ValueError(
            f"the cache has room for {cache.room} tokens: {past} in it, {tokens.shape[1]} in the prompt and "
            f"{n_new} to come need {stop}."
        )
    if config.positions == "learned" and stop - padding > config.max_positions:
        raise ValueError(
            f"the model has {config.max_positions} learned positions: {past + tokens.shape[1] - padding} "
            f"tokens and {n_new} to come need {stop - padding}. Shorten the prompt or max_new_tokens."
        )
    read = cache.longest - _padding(mask, past) if past else 0
    if past and not same_tables(model, read, stop - padding):
        raise ValueError(
            f"the tokens in the cache were read with the RoPE frequencies of a text of {read}; one of "
            f"{stop - padding}, the {n_new} to come included, has others. Give the whole text and an empty cache."
        )
