"""Tokenizers: from text to ids and back, for models that others have trained (chapter 7).

The `tokenizers` package does the work. What a checkpoint says of its tokenizer comes in three forms: a
`tokenizer.json`, a `vocab.txt` of word pieces, or the metadata of a GGUF file. `tx.bpe` trains one.
"""

import json

import torch

from .families.reading import CheckpointError

# U+FFFD at the end of a text that may yet become characters: a byte-fallback decoder writes one for every
# byte of a broken run, so up to four bytes of the last character, less one known, and three of the next.
HOLD = 6
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


class Tokenizer:
    """Text to ids and back, by the rules of one checkpoint.

    Attributes:
        special: ids by what they are for, as far as the files say: {"bos": 1, "eos": 2, …}.
        template: the chat template, or None.
    """

    def __init__(self, backend, special=None, template=None):
        self.backend, self.special, self.template = backend, dict(special or {}), template
        self.backend.no_truncation()  # some files cut a text silently
        self.backend.no_padding()

    def __len__(self):
        return self.backend.get_vocab_size()

    def encode(self, text, *, add_special=True):
        """Text to a list of ids. The names of special tokens in it become those tokens.

        add_special: whether to add what the checkpoint adds to every text, such as [CLS] and [SEP];
            not to a text that `chat` made, which has it all.
        """
        return self.backend.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids, *, special=False):
        """Ids to text; special tokens are left out unless asked for."""
        ids = ids.tolist() if isinstance(ids, torch.Tensor) else list(ids)
        return self.backend.decode(ids, skip_special_tokens=not special)

    def id(self, token):
        """The id of a token by its name, such as "<|im_end|>"."""
        found = self.backend.token_to_id(token)
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
        from .chat_template import render

        if self.template is None:
            raise ValueError("this checkpoint has no chat template: write the prompt as plain text.")
        _check_messages(messages)
        named = {f"{role}_token": self.backend.id_to_token(id) for role, id in self.special.items()}
        given = {"add_generation_prompt": reply, "tools": None, "documents": None, **named, **variables}
        return render(self.template, messages, **given)

    def stream(self, stop=()):
        """Text of ids that come one by one, see `Stream`. stop: a text or several that end it."""
        return Stream(self, (stop,) if isinstance(stop, str) else tuple(stop))


class Stream:
    """Ids in, complete characters out.

    A character may be spread over several tokens, and a stop string too: what could still become one
    is held back. `stopped` says that a stop string has come; nothing follows it.
    """

    def __init__(self, tokenizer, stop=()):
        if "" in stop:
            raise ValueError("a stop string is empty: it would stop before the first character.")
        self.tokenizer, self.stop, self.stopped = tokenizer, stop, False
        self.before, self.ids, self.shown = [], [], 0  # last tokens done with, new ones, how much of these
        self.held = ""  # may be the beginning of a stop string

    def push(self, id):
        """The text that one more id completes, often ""."""
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
    length = max(map(len, rows))
    fill = [(length - len(row)) * [pad] for row in rows]
    tokens = torch.tensor([f + row if left else row + f for row, f in zip(rows, fill, strict=True)])  # (B, T)
    place = torch.arange(length).expand(len(rows), -1)  # (B, T)
    sizes = torch.tensor([[len(row)] for row in rows])  # (B, 1)
    return tokens, place >= length - sizes if left else place < sizes


# ── from files ───────────────────────────────────────────────────────────────────────────────────


def load_tokenizer(source):
    """The `Tokenizer` of a checkpoint.

    Args:
        source: as for `load`: a folder, a `.gguf` file, the name of a packaged model, or "hub:…".

    Raises:
        CheckpointError: a `ValueError` that lists what is missing or not supported.
    """
    from .packaged import locate

    path = locate(source)
    if path.suffix == ".gguf":
        from .gguf_file import Gguf

        return from_gguf(Gguf(path).metadata)
    return _from_folder(path)


def _from_folder(folder):
    settings = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
    if (folder / "tokenizer.json").is_file():
        backend = _parse(folder / "tokenizer.json")
    elif (folder / "vocab.txt").is_file():
        backend = _word_pieces(folder / "vocab.txt", bool(settings.get("do_lower_case", True)))
    else:
        problem = "missing    tokenizer.json, or vocab.txt with word pieces"
        raise CheckpointError(f"{folder} has no tokenizer that can be read", [problem])
    special = {}
    for role in ROLES:
        name = settings.get(f"{role}_token")
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str) and backend.token_to_id(name) is not None:
            special[role] = backend.token_to_id(name)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return Tokenizer(backend, special, template)


def _parse(path):
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        problem = f"damaged    {path.name}: {error}"
        raise CheckpointError(f"{path.parent} has no tokenizer that can be read", [problem]) from error


def _json(path):
    """The dictionary in a file, or an empty one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        problem = f"damaged    {path.name} is no JSON: {error}"
        raise CheckpointError(f"{path.parent} has no tokenizer that can be read", [problem]) from error
    return values if isinstance(values, dict) else {}


def _word_pieces(path, lowercase):
    """BERT's tokenizer from its vocabulary, one piece a line."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    pieces = path.read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    marks = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    problems = [f"missing    {mark} in {path.name}" for mark in marks[:3] if mark not in vocabulary]
    if problems:
        raise CheckpointError(f"{path.parent} has no tokenizer that can be read", problems)
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([mark for mark in marks if mark in vocabulary])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return backend


# ── from the metadata of a GGUF file ─────────────────────────────────────────────────────────────

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a text is cut before its bytes are merged, one pattern after the other.
PRE_TOKENIZERS = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),  # digits one by one
    "llama-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
SAME = {
    "phi-2": "gpt-2", "mpt": "gpt-2", "olmo": "gpt-2", "starcoder": "smollm", "refact": "smollm",
    "codeshell": "smollm", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "stablelm2": "qwen2",
}  # fmt: skip
CONTROL, USER_DEFINED = 3, 4  # kinds of tokens, in `tokenizer.ggml.token_type`
GGUF_ROLES = {
    "bos": "bos", "eos": "eos", "eot": "eot", "unk": "unknown", "pad": "padding", "cls": "cls",
    "sep": "seperator", "mask": "mask",
}  # fmt: skip


def from_gguf(metadata):
    """The `Tokenizer` that the metadata of a GGUF file describes.

    metadata: {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": […], …}, see `tx.gguf_file`.
    """
    from tokenizers import AddedToken, processors

    values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    _check_gguf(values)
    tokens, kinds = values["tokens"], values.get("token_type", [])
    by_bytes = values["model"] == "gpt2"
    try:
        backend = (_byte_level if by_bytes else _sentence_pieces)(values)
    except Exception as error:  # the package raises nothing narrower
        raise CheckpointError(_NO_GGUF, [f"damaged    tokenizer.ggml.merges: {error}"]) from error
    for kind in (CONTROL, USER_DEFINED):
        named = [token for token, found in zip(tokens, kinds, strict=False) if found == kind]
        backend.add_tokens([AddedToken(x, special=kind == CONTROL, normalized=False) for x in named])
    special = {role: values.get(f"{theirs}_token_id") for role, theirs in GGUF_ROLES.items()}
    special = {role: id for role, id in special.items() if id is not None}
    adds = {"bos": not by_bytes or _pre(values) == "llama-bpe", "eos": False}
    adds = {role: role in special and values.get(f"add_{role}_token", add) for role, add in adds.items()}
    if any(adds.values()):
        ends = {role: f"<{role}>" for role, add in adds.items() if add}
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join([ends.get("bos", ""), "$A", ends.get("eos", "")]).strip(),
            special_tokens=[(mark, special[role]) for role, mark in ends.items()],
        )
    return Tokenizer(backend, special, metadata.get("tokenizer.chat_template"))


def _byte_level(values):
    """Byte-pair encoding of bytes (GPT-2), every byte written as one visible character."""
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary = {token: number for number, token in enumerate(values["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in values["merges"]]
    pre = _pre(values)
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentence_pieces(values):
    """SentencePiece's byte-pair encoding (LLaMA 1 and 2): pieces with scores, spaces written as ▁.

    It merges the neighbours whose piece has the best score: a list of merges in the order of scores.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    tokens, scores = values["tokens"], values["scores"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            pair = token[:cut], token[cut:]
            if pair[0] in vocabulary and pair[1] in vocabulary:
                merges.append((-score, vocabulary[pair[0]], vocabulary[pair[1]], pair))
    merges = [pair for *_, pair in sorted(merges)]
    unknown = tokens[values["unknown_token_id"]] if "unknown_token_id" in values else None
    backend = Backend(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Replace(" ", "▁")]
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if values.get("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        ends.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(ends)
    return backend


def _pre(values):
    """Our name of the pre-tokenizer that the file names."""
    name = values.get("pre", "default")
    return SAME.get(name, name)


_NO_GGUF = "the GGUF file has no tokenizer that can be read"


def _check_gguf(values):
    problems = []
    model, tokens, pre = values.get("model"), values.get("tokens"), _pre(values)
    if model not in ("gpt2", "llama"):
        problems.append(f"unknown    tokenizer.ggml.model = {model!r}   known: 'gpt2', 'llama'")
    if model == "gpt2" and pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted([*PRE_TOKENIZERS, *SAME]))
        problems.append(f"unknown    tokenizer.ggml.pre = {pre!r}   known: {known}")
    lists = {"tokens": str, "merges" if model == "gpt2" else "scores": str if model == "gpt2" else float}
    for name, kind in lists.items():
        found = values.get(name)
        if not isinstance(found, list) or not found or not all(isinstance(x, kind) for x in found):
            problems.append(f"missing    tokenizer.ggml.{name}   expected a list of {kind.__name__}")
    if problems:
        raise CheckpointError(_NO_GGUF, problems)
    if model == "gpt2" and not all(" " in merge for merge in values["merges"]):
        problems.append("damaged    tokenizer.ggml.merges   expected two pieces with a space between")
    if len(set(tokens)) != len(tokens):
        problems.append(f"damaged    tokenizer.ggml.tokens   {len(tokens) - len(set(tokens))} occur twice")
    for name in ("token_type", *(["scores"] if model == "llama" else [])):
        if name in values and len(values[name]) != len(tokens):
            found, expected = len(values[name]), len(tokens)
            problems.append(f"damaged    tokenizer.ggml.{name}   {found} entries for {expected} tokens")
    for name in (f"{theirs}_token_id" for theirs in GGUF_ROLES.values()):
        id = values.get(name)
        if id is not None and (not isinstance(id, int) or not 0 <= id < len(tokens)):
            problems.append(f"damaged    tokenizer.ggml.{name} = {id!r}   expected 0 … {len(tokens) - 1}")
    if problems:
        raise CheckpointError(_NO_GGUF, problems)


def _check_messages(messages):
    right = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    )
    if not right:
        raise ValueError('messages: expected a list of {"role": "user", "content": "…"}.')
