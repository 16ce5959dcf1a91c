"""From a model to text: how the next token is chosen, over and over (chapter 7).

    generate            the loop: read, choose, append, until a row says it has finished
    penalise            before the choice: what was said already becomes less likely
    keep_top_k, keep_top_p, keep_min_p      before the choice: which tokens may be drawn at all
    sample              the choice: the likeliest token, or one drawn at a temperature
    beam_search         several texts at once, the most likely one as a whole is kept
"""

import math

import torch
import torch.nn.functional as F

from .cache import Cache
from .checks import check_ends, check_prompt, check_room, check_settings, check_start, check_writer
from .masks import as_mask

# ── choosing one token ───────────────────────────────────────────────────────────────────────────


def penalise(logits, tokens, penalty, real=None):
    """Make tokens that stand in the text less likely: logits (B, V) -> (B, V).

    Positive logits are divided by the penalty, negative ones multiplied, once a token however often
    it occurred (Keskar et al. 2019, CTRL). tokens (B, T); real (B, T), True = a real token: padding
    was never said.
    """
    B, V = logits.shape
    said = tokens if real is None else tokens.masked_fill(~real, V)  # (B, T)
    seen = torch.zeros(B, V + 1, dtype=torch.bool, device=logits.device)  # (B, V+1)  padding is V
    seen = seen.scatter(1, said, True)[:, :V]  # (B, V)
    weaker = torch.where(logits > 0, logits / penalty, logits * penalty)  # (B, V)
    return torch.where(seen, weaker, logits)  # (B, V)


def keep_top_k(logits, k):
    """Hide all but the k likeliest tokens; those that tie with the last one stay. (B, V) -> (B, V)."""
    last = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < last, -math.inf)  # (B, V)


def keep_top_p(logits, p):
    """Keep the likeliest tokens that together just reach probability p. (B, V) -> (B, V).

    The token that crosses p stays, so at least one does (Holtzman et al. 2019, nucleus sampling).
    """
    rising, order = logits.sort()  # (B, V), (B, V)
    hidden = rising.softmax(-1).cumsum(-1) <= 1 - p  # (B, V)
    hidden[:, -1] = False
    return logits.masked_fill(hidden.scatter(1, order, hidden), -math.inf)  # (B, V)


def keep_min_p(logits, p):
    """Keep tokens at least p times as likely as the likeliest. (B, V) -> (B, V).

    Source: min-p sampling (arXiv:2407.01082): where the model is sure, few are kept.
    """
    probabilities = logits.softmax(-1)  # (B, V)
    floor = p * probabilities.amax(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(probabilities < floor, -math.inf)  # (B, V)


def sample(logits, temperature=0.0, top_k=None, top_p=None, min_p=None, generator=None):
    """One token for each row: logits (B, V) -> ids (B,). Temperature 0 takes the likeliest."""
    if temperature == 0:
        return logits.argmax(-1)  # (B,)
    # the largest becomes 0: a small temperature makes others -inf, and nothing infinite
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # (B, V)
    logits = logits if top_k is None else keep_top_k(logits, top_k)  # (B, V)
    logits = logits if top_p is None else keep_top_p(logits, top_p)  # (B, V)
    logits = logits if min_p is None else keep_min_p(logits, min_p)  # (B, V)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]  # (B,)


# ── a whole text ─────────────────────────────────────────────────────────────────────────────────


class Reading:
    """A model in the middle of a text: give it the text so far, it says what may come next.

    With a cache it reads what is new only. An encoder–decoder reads the source once, at the start.
    `mask` is the prompt's (B, S), or a `tx.Mask`; `source_mask` the source's.
    """

    def __init__(self, model, cache, mask=None, source=None, source_mask=None):
        self.model, self.cache, self.source_mask = model, cache, source_mask
        self.past = cache.length if cache is not None else 0
        self.memory = None if source is None else model.encode(source, source_mask)  # (B, S, D)
        whole = isinstance(mask, torch.Tensor) and bool(mask.all())
        self.mask = None if whole else mask
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
        new = tokens[:, known:]  # (B, n)
        if self.memory is not None:
            logits = self.model.decode(new, self.memory, self.source_mask, cache=self.cache, last=1)
        else:
            mask = self.mask
            if isinstance(mask, torch.Tensor):
                mask = torch.cat([mask[:, : self.past], self.real(tokens)], dim=1)  # (B, S)
            logits = self.model(new, mask, cache=self.cache, last=1)  # (B, 1, V)
        if bool(logits.isnan().any()):
            raise ValueError(
                f"the model's logits are NaN after {self.past + tokens.shape[1]} tokens: its weights are broken, "
                f"or {logits.dtype} overflows (load it with another dtype)."
            )
        return logits[:, -1].float()  # (B, V)

    def select(self, rows):
        """Go on with these rows of the batch, in this order. rows (R,) integers."""
        if self.cache is not None:
            self.cache.select(rows)
        self.rows = rows if self.rows is None else self.rows[rows]  # (R,)
        self.memory = None if self.memory is None else self.memory[rows]  # (R, S, D)
        self.mask, self.source_mask = (_select(mask, self.rows) for mask in self.first)


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
            each beam.
        generator: a `torch.Generator`, for draws that can be repeated.

    Returns:
        (B, T + new): source (or start) and what follows; fewer than `max_new_tokens` if all rows ended.

    Raises:
        ValueError: a setting out of its range, an empty prompt, a prompt padded on the right, a text
            that learned positions or the cache have no room for, logits that are NaN.
    """
    check_settings(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, beams, on_token)
    two = check_writer(model, start)
    check_ends(source, eos, pad, cache, model.config.vocab_size)
    eos = torch.as_tensor(eos, dtype=torch.long, device=source.device).reshape(-1)  # (E,)
    pad = pad if pad is not None else int(eos[0]) if len(eos) else 0
    cache = (Cache(model.config) if cache else None) if isinstance(cache, bool) else cache
    tokens = _first_tokens(start, source) if two else source
    own_mask = None if two else mask  # of the text that grows
    check_prompt(tokens, own_mask, cache, model.config)
    check_room(model.config, cache, tokens, own_mask, max_new_tokens)
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
            if repetition_penalty != 1:
                logits = penalise(logits, tokens, repetition_penalty, read.real(tokens))  # (B, V)
            token = sample(logits, temperature, top_k, top_p, min_p, generator)  # (B,)
            token = token.masked_fill(ended, pad)  # (B,)
            tokens = torch.cat([tokens, token[:, None]], dim=1)  # (B, t)  t grows
            ended = ended | torch.isin(token, eos)  # (B,)
            if (on_token is not None and on_token(token, step)) or bool(ended.all()):
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
        tokens: (B, T).   n_new: at most so many.   beams: K.   eos: ids that end a text.
    """
    (B, T), K = tokens.shape, beams
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
        V = logits.shape[-1]
        gain = logits.log_softmax(-1)  # (B*K, V)
        if penalty != 1:
            gain = penalise(gain, texts, penalty, read.real(texts))  # (B*K, V)
        total = (running[..., None] + gain.view(B, K, V)).flatten(1)  # (B, K*V)
        # enough candidates that K of them go on even if every beam's best ones end
        score, place = total.topk(min(K * max(2, 1 + len(eos)), K * V))  # (B, C), (B, C)  C candidates
        rows, token = first + place // V, place % V  # (B, C), (B, C)
        candidates = torch.cat([texts[rows], token[..., None]], dim=-1)  # (B, C, t)  t grows
        ends = torch.isin(token, eos) | (step == n_new - 1)  # (B, C)

        counts = ends[:, :K] & is_open  # (B, K)
        new_quality = (score[:, :K] / (step + 1)).masked_fill(~counts, -math.inf)  # (B, K)
        quality, best = torch.cat([quality, new_quality], dim=1).topk(K)  # (B, K), (B, K)
        new_texts = F.pad(candidates[:, :K], (0, n_new - step - 1), value=pad)  # (B, K, T+n_new)
        finished = _pick(torch.cat([finished, new_texts], dim=1), best)  # (B, K, T+n_new)
        length = _pick(torch.cat([length, torch.full_like(length, step + 1)], dim=1), best)  # (B, K)

        running, on = score.masked_fill(ends, -math.inf).topk(K)  # (B, K), (B, K)
        is_open = is_open & (running[:, :1] / (step + 1) > quality[:, -1:])  # (B, 1)
        if not bool(is_open.any()) or step == n_new - 1:
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
    check_start(start, len(source))
    start = torch.as_tensor(start, dtype=torch.long, device=source.device)  # () or (P,) or (B, P)
    start = start.reshape(1, -1) if start.dim() < 2 else start  # (1, P) or (B, P)
    return start.expand(len(source), -1)  # (B, P)
