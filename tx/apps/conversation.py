"""A chat of several turns whose cache is kept (chapter 12).

The cache holds what the model has read. At every turn the whole conversation is written anew as one text
of ids; what agrees with the ids in the cache is not read again. So a turn reads its own tokens only, and
the answers are those of a model that had read everything from the start.
"""

import torch

from ..cache import Cache
from ..files.errors import shown
from ..sampling import generate, same_tables

PIECE = 256  # tokens read at a time, so that reading can be watched and interrupted


class Conversation:
    """A model in a chat.

    Args:
        model: a `Decoder`.
        tokenizer: its `Tokenizer`; it must have a chat template.
        system: what the model is told before the first turn.
        context: number of tokens that it may look back on, what the model was made for unless given.

    Attributes:
        messages: [{"role": "user", "content": "…"}, …], the turns that are remembered.
        n_read: tokens that the last turn had to read.
        n_forgotten: messages that the last turn had to forget, because the context was full.
        cut_short: whether the last answer ended because it might have no more tokens.

    Raises:
        ValueError: the model writes no text, there is no chat template, a context out of range, a system text
            that is none.
    """

    def __init__(self, model, tokenizer, *, system=None, context=None):
        self.model, self.tokenizer = model, tokenizer
        self.system = [{"role": "system", "content": system}] if system else []
        self.context = model.config.max_positions if context is None else context
        _check_model(model.config, self.context)
        _check_text("system", system or "")
        self.eos = ends(model, tokenizer)
        self.messages, self.ids, self.cache = [], [], Cache(model.config)
        self.n_read, self.n_forgotten, self.cut_short = 0, 0, False
        shortest = self._encode([{"role": "user", "content": "?"}])  # what its template refuses is refused now
        _check_system(system, len(shortest), self.context)

    def ask(self, text, max_new_tokens=512, *, on_text=None, on_read=None, **sampling):
        """One turn: the answer to `text`.

        When the context is full, the oldest turns are forgotten, down to half of it, because the rest must
        be read again. An interruption (Ctrl-C) leaves the conversation as it stands: what was answered so
        far is remembered, a question without an answer is not.

        Args:
            max_new_tokens: at most so many, and as many as the context has room for.
            on_text: called with every piece of the answer, complete characters only.
            on_read: called as `on_read(tokens read, tokens to read)`.
            sampling: temperature and the like, for `generate`.

        Raises:
            ValueError: the question is no text, or alone too long for the context; no token may be written; what
                `generate` refuses.
        """
        _check_text("text", text)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise ValueError(f"max_new_tokens = {max_new_tokens!r}: an answer has 1 or more.")
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._fit(messages, max_new_tokens)
        room = min(max_new_tokens, self.context - len(ids))
        known, piece = min(_agree(ids, self.ids[: self.cache.length]), len(ids) - 1), PIECE
        if not same_tables(self.model, self.cache.longest, len(ids) + room - 1):
            known, piece = 0, len(ids)  # frequencies of RoPE that follow the length: all in one go
        self.cache.cut(known)
        self.ids, self.n_read, self.n_forgotten = ids, len(ids) - known, len(self.messages) + 1 - len(messages)
        answer, stream = [], self.tokenizer.stream(begins=True)

        def on_token(token, step):
            answer.append(int(token))
            if on_text is not None:
                on_text(stream.push(answer[-1]))

        try:
            tokens = self._read(ids, known, piece, on_read)  # (1, n)
            generate(self.model, tokens, room, eos=sorted(self.eos), cache=self.cache, on_token=on_token,
                     **sampling)  # fmt: skip
            if on_text is not None:
                on_text(stream.finish())
        finally:
            self.ids = ids + answer
            said = self.tokenizer.decode(answer)
            if answer:
                self.messages = [*messages, {"role": "assistant", "content": said}]
        self.cut_short = answer[-1] not in self.eos
        return said

    def _fit(self, messages, n_new):
        """The ids of a conversation, whose oldest turns are taken out until there is room for an answer."""
        ids, wanted = self._encode(messages), min(n_new, self.context // 2)
        if len(ids) + wanted > self.context:
            while len(messages) > 1 and len(ids) + wanted > self.context // 2:
                del messages[:2]
                ids = self._encode(messages)
        if len(ids) + 1 > self.context:
            also = " with the system text" if self.system else ""
            raise ValueError(
                f"this question takes {len(ids)} tokens{also}, the context has {self.context}: ask a shorter one."
            )
        return ids

    def _encode(self, messages):
        return self.tokenizer.encode(self.tokenizer.chat(self.system + messages), add_special=False)

    @torch.no_grad()
    def _read(self, ids, known, piece, on_read):
        """Read all but the last piece of what is new, so many tokens at a time; returns that one, (1, n)."""
        tokens = torch.tensor([ids], device=next(self.model.parameters()).device)  # (1, T)
        start = known
        while len(ids) - start > piece:
            self.model(tokens[:, start : start + piece], cache=self.cache, last=1)
            start += piece
            if on_read is not None:
                on_read(start - known, len(ids) - known)
        return tokens[:, start:]  # (1, n)


def ends(model, tokenizer):
    """Ids that end a text: all that `config.json`, `generation_config.json` and the tokenizer's files name.

    Raises:
        ValueError: what the files name is no id.
    """
    found = {id for role in ("eos", "eot", "eom") if (id := tokenizer.special.get(role)) is not None}
    size = model.config.vocab_size
    for name in ("source_config", "source_generation"):
        given = getattr(model, name, {}).get("eos_token_id")
        for id in given if isinstance(given, list) else [] if given is None else [given]:
            if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < size:
                raise ValueError(f"eos_token_id = {shown(given)} in the model's files: expected an id, or more, "
                                 f"0 … {size - 1}.")  # fmt: skip
            found.add(id)
    return found


def _agree(ids, others):
    """How many ids two lists have in common from the start."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ids), len(others)))


def _check_model(config, context):
    if config.encoder is not None or not config.causal:
        raise ValueError("this model does not go on with a text, so it cannot chat: a decoder can.")
    if not isinstance(context, int) or not 32 <= context <= config.max_positions:
        most = config.max_positions
        raise ValueError(f"context = {context!r}: expected 32 … {most}, as the model was made for.")


def _check_text(name, text):
    if not isinstance(text, str):
        raise ValueError(f"{name} = {text!r:.80}: expected a text.")


def _check_system(system, n, context):
    """n: tokens of the shortest question with the system text."""
    if system and n + 1 > context:
        raise ValueError(
            f"the system text takes {n} tokens with the shortest question, the context has {context}: "
            "expected a shorter text or a larger context."
        )
