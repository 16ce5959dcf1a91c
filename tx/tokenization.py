"""Tokenizers: from text to ids and back, for models that others have trained (chapter 7).

The `tokenizers` package does the work; `tx.files.tokenizers` and `tx.files.gguf_tokenizer` read what a
checkpoint says of its tokenizer. `tx.bpe` trains one.
"""

import json
import operator
import re
from functools import cached_property
from pathlib import Path

import torch

# U+FFFD at the end of a text that may yet become characters: a byte-fallback decoder writes one for every
# byte of a broken run, so up to four bytes of the last character, less one known, and three of the next.
HOLD = 6
MARKER = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)


class Tokenizer:
    """Text to ids and back, by the rules of one checkpoint.

    Attributes:
        special: ids by what they are for, as far as the files say: {"bos": 1, "eos": 2, …}.
        template: the chat template, or None.
        silent: ids of special tokens, which `decode` leaves out.
        names: of these tokens, and of others that look like them: files forget to say it of <|user|>.
    """

    def __init__(self, backend, special=None, template=None):
        self.backend, self.special, self.template = backend, dict(special or {}), template
        self.backend.no_truncation()  # some files cut a text silently
        self.backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.silent = {id for id, token in added.items() if token.special}
        named = (x.content for x in added.values() if x.special or MARKER.fullmatch(x.content))
        self.names = {name for name in named if len(name) > 1}  # one character could be written in no other way
        self._literal = None

    def __len__(self):
        return self.backend.get_vocab_size()

    def encode(self, text, *, add_special=True, parse_special=True):
        """Text to a list of ids.

        Args:
            text: the names of special tokens in it become those tokens, except where they stand in the
                messages of a text that `chat` made.
            add_special: whether to add what the checkpoint adds to every text, such as [CLS] and [SEP];
                not to a text that `chat` made, which has it all.
            parse_special: False makes every name of a special token text, as is right for what a user wrote.

        Raises:
            ValueError: no text, or one with half characters, as bytes that are no UTF-8 leave them; one that
                the tokenizer has no tokens for.
        """
        from .files.literal import ChatText, unused
        from .files.tokenizer_json import built

        _check_text(text)
        _check_flags(add_special=add_special, parse_special=parse_special)
        try:
            if not parse_special and any(name in text for name in self.names):
                mark = unused(text)
                inside = "".join(c + mark for c in text)
                return built(self._with(mark).encode, inside, add_special)
            if isinstance(text, ChatText):
                return built(self._with(text.mark).encode, text.marked, add_special)
            return built(self.backend.encode, text, add_special_tokens=add_special).ids
        except ValueError as error:
            raise ValueError(f"text = {text!r:.80} cannot be encoded: {error}") from error

    def _with(self, mark):
        """A `Literal` of this tokenizer, kept for the next text."""
        from .files.literal import Literal

        if self._literal is None or self._literal.mark != mark:
            self._literal = Literal(self.backend, self.names, mark)
        return self._literal

    def decode(self, ids, *, special=False):
        """Ids of one text to that text; special tokens are left out unless asked for.

        Raises:
            ValueError: no row of whole numbers from 0, or the tokenizer fails on them.
        """
        from .files.tokenizer_json import built

        _check_flags(special=special)
        try:
            row = [operator.index(id) for id in (ids.tolist() if isinstance(ids, torch.Tensor) else list(ids))]
            if not all(0 <= id < 2**32 for id in row):
                raise OverflowError
        except (TypeError, OverflowError) as error:
            raise ValueError(f"ids = {ids!r:.80}: expected the ids of one text, whole numbers from 0; "
                             "decode a batch row by row.") from error  # fmt: skip
        try:
            return built(self.backend.decode, row, skip_special_tokens=not special)
        except ValueError as error:
            raise ValueError(f"ids = {ids!r:.80} cannot be decoded: {error}") from error

    def id(self, token):
        """The id of a token by its name, such as "<|im_end|>"."""
        found = self.backend.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise ValueError(f"{token!r} is no token of this vocabulary of {len(self)}.")
        return found

    def chat(self, messages, *, reply=True, literal=True, **variables):
        """A conversation as one text, as the checkpoint's chat template writes it.

        The names of special tokens that stand in the messages stay text when `encode` gets what this returns,
        unless it is cut or joined with another text. So no message can end its turn and write the next one.

        Args:
            messages: [{"role": "user", "content": "…"}, …].
            reply: end where the model's answer begins.
            literal: False lets such names be tokens.
            variables: what else the template asks for.

        Raises:
            ValueError: there is no template, it refuses these messages, it breaks its bounds, or it looks for
                the name of a special token in a message.
        """
        from .files.chat_template import render
        from .files.literal import ChatText, marked, unused

        if self.template is None:
            raise ValueError("this checkpoint has no chat template: write the prompt as plain text.")
        _check_messages(messages)
        _check_variables(variables)
        _check_flags(reply=reply, literal=literal)
        named = {f"{role}_token": self.backend.id_to_token(id) for role, id in self.special.items()}
        given = {"add_generation_prompt": reply, "tools": None, "documents": None, **named, **variables}
        text = render(self.template, messages, **given)
        written = {"messages": messages, "tools": given["tools"], "documents": given["documents"]}
        mark = unused(text)
        changed = {key: marked(value, self.names, mark) for key, value in written.items()}
        changed["messages"] = [marked(message, self.names, mark) for message in messages]
        if not literal or changed == written:
            return text
        with_marks = render(self.template, **given | changed)
        if with_marks.replace(mark, "") != text:
            raise ValueError(
                "messages: they have names of special tokens that the chat template looks for or changes: "
                f"{sorted(name for name in self.names if name in str(written))}. Leave these out, or let them "
                "be tokens with literal=False."
            )
        return ChatText(with_marks, mark)

    def save(self, folder):
        """Write `tokenizer.json` and `tokenizer_config.json` next to what `tx.save` writes.

        `load_tokenizer` reads them, and the reference does.

        Raises:
            ValueError: the folder does not exist.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: expected the one that tx.save wrote the model into.")
        settings = {f"{role}_token": self.backend.id_to_token(id) for role, id in self.special.items()}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        settings |= {} if self.template is None else {"chat_template": self.template}
        self.backend.save(str(folder / "tokenizer.json"))
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    def stream(self, stop=(), *, begins=False):
        """Text of ids that come one by one, see `Stream`.

        Args:
            stop: a text or several that end it.
            begins: whether the ids begin a text, as an answer does; else they go on with one, and the space
                in front of the first word is part of what is new.
        """
        _check_flags(begins=begins)
        return Stream(self, (stop,) if isinstance(stop, str) else stop, begins)

    @cached_property
    def _before(self):
        """Ids of a text to go on with, none where the vocabulary has no letter and no digit of its own."""
        return next(([id] for id in range(len(self)) if self.decode([id]).isalnum()), [])


class Stream:
    """Ids in, complete characters out.

    A character may be spread over several tokens, and a stop string too: what could still become one
    is held back. `stopped` says that a stop string has come; nothing follows it.
    """

    def __init__(self, tokenizer, stop=(), begins=False):
        _check_stop(stop)
        self.tokenizer, self.stop, self.stopped = tokenizer, tuple(stop), False
        self.before = [] if begins else tokenizer._before  # the last tokens that are done with
        self.ids, self.shown = [], 0  # new ones, and how much of their text was given out
        self.held = ""  # may be the beginning of a stop string

    def push(self, id):
        """The text that one more id completes, often "".

        Raises:
            ValueError: no whole number from 0.
        """
        id = _whole(id)
        if id in self.tokenizer.silent:
            return ""  # the text is as if it were not there
        self.ids.append(id)
        text = self._pending()
        broken = len(text) - len(text.rstrip("\ufffd"))  # what is incomplete decodes to U+FFFD
        if len(self.ids) > 256:
            broken = 0  # bytes that are no text at all are let go in the end
        stop = len(text) - min(broken, HOLD)
        new, self.shown = text[self.shown : stop], max(self.shown, stop)
        if not broken:
            self.before, self.ids, self.shown = self.ids, [], 0
        return self._show(new)

    def finish(self):
        """What was held back, now that no more ids come."""
        rest = self._show(self._pending()[self.shown :]) + self.held
        self.before, self.ids, self.shown, self.held = [], [], 0, ""
        return rest

    def _pending(self):
        """Text of the new tokens; some decoders look at the one before, so it is decoded with them."""
        known = self.tokenizer.decode(self.before)
        return self.tokenizer.decode(self.before + self.ids)[len(known) :]

    def _show(self, text):
        if self.stopped:
            return ""
        text = self.held + text
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        if ends:
            self.stopped, self.held = True, ""
            return text[: min(ends)]
        keep = max((n for stop in self.stop for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        shown, self.held = text[: len(text) - keep], text[len(text) - keep :]
        return shown


def batch(rows, pad=0, left=False):
    """Lists of ids of different lengths as tokens (B, T) and a mask (B, T), True = a real token.

    left: padding stands in front, as `generate` needs it.

    Raises:
        ValueError: no list of lists of ids, or none with an id in it; pad is no id.
    """
    _check_rows(rows, pad)
    _check_flags(left=left)
    length = max(map(len, rows))
    fill = [(length - len(row)) * [pad] for row in rows]
    tokens = torch.tensor([f + row if left else row + f for row, f in zip(rows, fill, strict=True)])  # (B, T)
    place = torch.arange(length).expand(len(rows), -1)  # (B, T)
    sizes = torch.tensor([[len(row)] for row in rows])  # (B, 1)
    return tokens, place >= length - sizes if left else place < sizes


def load_tokenizer(source):
    """The `Tokenizer` of a checkpoint.

    Args:
        source: as for `load`: a folder, a `.gguf` file, the name of a packaged model, or "hub:…".

    Raises:
        CheckpointError: a `ValueError` that lists what is missing or not supported.
    """
    from .files.gguf import Gguf
    from .files.gguf_tokenizer import from_gguf
    from .files.packaged import locate
    from .files.tokenizers import from_folder

    path = locate(source)
    parts = from_gguf(Gguf(path).metadata) if path.suffix == ".gguf" else from_folder(path)
    return Tokenizer(*parts)


def _check_stop(stop):
    if not isinstance(stop, (list, tuple)) or not all(isinstance(text, str) for text in stop):
        raise ValueError(f"stop = {stop!r:.80}: expected a text, or a list of texts.")
    if "" in stop:
        raise ValueError("a stop string is empty: it would stop before the first character.")


def _check_rows(rows, pad):
    if not isinstance(rows, (list, tuple)) or not rows or not all(isinstance(row, list) for row in rows):
        raise ValueError(f"rows = {rows!r:.80}: expected a list with at least one list of ids.")
    wrong = [id for row in [*rows, [pad]] for id in row if type(id) is not int or not 0 <= id < 2**63]
    if wrong:
        raise ValueError(f"{wrong[0]!r:.80} among rows and pad: expected ids, whole numbers from 0.")
    if not any(rows):
        raise ValueError(f"rows: all {len(rows)} are empty, expected an id in one of them.")


def _check_text(text):
    try:
        text.encode("utf-8")
    except (AttributeError, UnicodeEncodeError) as error:
        raise ValueError(f"text = {text!r:.80}: expected one text, of characters that UTF-8 has.") from error


def _check_flags(**flags):
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r:.80}: expected True or False.")


def _whole(id):
    try:
        if operator.index(id) >= 0:
            return operator.index(id)
    except TypeError:
        pass
    raise ValueError(f"id = {id!r:.80}: expected a whole number from 0.")


def _check_variables(variables):
    taken = {"messages", "template", "add_generation_prompt"} & variables.keys()
    if taken:
        raise ValueError(f"{sorted(taken)} cannot be given to a template by that name; reply says where it ends.")


def _check_messages(messages):
    right = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    )
    if not right:
        raise ValueError('messages: expected a list of {"role": "user", "content": "…"}.')
