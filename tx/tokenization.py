"""Tokenizers: from text to ids and back, for models that others have trained (chapter 7).

The `tokenizers` package does the work; `tx.files.tokenizers` and `tx.files.gguf_tokenizer` read what a
checkpoint says of its tokenizer. `tx.bpe` trains one.
"""

import json
from pathlib import Path

import torch

# U+FFFD at the end of a text that may yet become characters: a byte-fallback decoder writes one for every
# byte of a broken run, so up to four bytes of the last character, less one known, and three of the next.
HOLD = 6


class Tokenizer:
    """Text to ids and back, by the rules of one checkpoint.

    Attributes:
        special: ids by what they are for, as far as the files say: {"bos": 1, "eos": 2, …}.
        template: the chat template, or None.
        silent: ids of special tokens, which `decode` leaves out.
    """

    def __init__(self, backend, special=None, template=None):
        self.backend, self.special, self.template = backend, dict(special or {}), template
        self.backend.no_truncation()  # some files cut a text silently
        self.backend.no_padding()
        self.silent = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}

    def __len__(self):
        return self.backend.get_vocab_size()

    def encode(self, text, *, add_special=True):
        """Text to a list of ids. The names of special tokens in it become those tokens.

        add_special: whether to add what the checkpoint adds to every text, such as [CLS] and [SEP];
            not to a text that `chat` made, which has it all.

        Raises:
            ValueError: no text, or one with half characters, as bytes that are no UTF-8 leave them.
        """
        try:
            return self.backend.encode(text, add_special_tokens=add_special).ids
        except TypeError as error:
            raise ValueError(f"text = {text!r:.80}: expected one text, of characters that UTF-8 has.") from error

    def decode(self, ids, *, special=False):
        """Ids of one text to that text; special tokens are left out unless asked for.

        Raises:
            ValueError: no row of whole numbers from 0.
        """
        try:
            row = ids.tolist() if isinstance(ids, torch.Tensor) else list(ids)
            return self.backend.decode(row, skip_special_tokens=not special)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"ids = {ids!r:.80}: expected the ids of one text, whole numbers from 0; "
                             "decode a batch row by row.") from error  # fmt: skip

    def id(self, token):
        """The id of a token by its name, such as "<|im_end|>"."""
        found = self.backend.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise ValueError(f"{token!r} is no token of this vocabulary of {len(self)}.")
        return found

    def chat(self, messages, *, reply=True, **variables):
        """A conversation as one text, as the checkpoint's chat template writes it.

        Args:
            messages: [{"role": "user", "content": "…"}, …].
            reply: end where the model's answer begins.
            variables: what else the template asks for.

        Raises:
            ValueError: there is no template, it refuses these messages, or it breaks its bounds.
        """
        from .files.chat_template import render

        if self.template is None:
            raise ValueError("this checkpoint has no chat template: write the prompt as plain text.")
        _check_messages(messages)
        named = {f"{role}_token": self.backend.id_to_token(id) for role, id in self.special.items()}
        given = {"add_generation_prompt": reply, "tools": None, "documents": None, **named, **variables}
        return render(self.template, messages, **given)

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

    def stream(self, stop=()):
        """Text of ids that come one by one, see `Stream`. stop: a text or several that end it."""
        return Stream(self, (stop,) if isinstance(stop, str) else stop)


class Stream:
    """Ids in, complete characters out.

    A character may be spread over several tokens, and a stop string too: what could still become one
    is held back. `stopped` says that a stop string has come; nothing follows it.
    """

    def __init__(self, tokenizer, stop=()):
        _check_stop(stop)
        self.tokenizer, self.stop, self.stopped = tokenizer, tuple(stop), False
        self.before, self.ids, self.shown = [], [], 0  # last tokens done with, new ones, how much of these
        self.held = ""  # may be the beginning of a stop string

    def push(self, id):
        """The text that one more id completes, often ""."""
        if int(id) in self.tokenizer.silent:
            return ""  # the text is as if it were not there
        self.ids.append(int(id))
        text = self._pending()
        broken = len(text) - len(text.rstrip("\ufffd"))  # what is incomplete decodes to U+FFFD
        stop = len(text) - min(broken, HOLD)
        new, self.shown = text[self.shown : stop], max(self.shown, stop)
        if not broken or len(self.ids) > 256:  # bytes that are no text at all are let go in the end
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
    """
    _check_rows(rows)
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


def _check_rows(rows):
    if not isinstance(rows, (list, tuple)) or not rows or not all(isinstance(row, list) for row in rows):
        raise ValueError(f"rows = {rows!r:.80}: expected a list with at least one list of ids.")


def _check_messages(messages):
    right = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    )
    if not right:
        raise ValueError('messages: expected a list of {"role": "user", "content": "…"}.')
