"""A checkpoint's tokenizer from its files (chapter 10).

A `tokenizer.json` says everything. Older folders hold a vocabulary in one of three forms, and the name of
the tokenizer's class, which stands for the rest: what is added around a text, and the names of special
tokens that no file names.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from tokenizers import AddedToken, normalizers

from .errors import CheckpointError, shown
from .sentencepiece import read_sentencepiece
from .settings import read_settings, read_text
from .tokenizer_json import WHAT, built, parts, read_tokenizer_json
from .vocabularies import BERT_NAMES, CONTROL, byte_level, sentence_pieces, surround, word_pieces

ROLES = ("bos", "eos", "eot", "eom", "unk", "sep", "pad", "cls", "mask")

# ── folders ──────────────────────────────────────────────────────────────────────────────────────

FORMS = {
    "bytes": ("vocab.json", "merges.txt"),
    "words": ("vocab.txt",),
    "pieces": ("tokenizer.model", "spiece.model", "spm.model"),  # one of these
}


class Kind(NamedTuple):
    """What the name of a tokenizer's class stands for.

    form: of the vocabulary. names: of special tokens that the files do not name, by role. before, after:
    what is put around a text, roles or names. cut: how bytes are cut, see `vocabularies.CUTS`.
    """

    form: str
    names: dict
    before: tuple = ()
    after: tuple = ()
    cut: str = "gpt-2"


def _same(*roles, name):
    return dict.fromkeys(roles, name)


MASK = {"content": "<mask>", "lstrip": True}  # takes the space in front of it
END = _same("bos", "eos", "unk", name="<|endoftext|>")
ROBERTA_NAMES = {
    **_same("bos", "cls", name="<s>"), **_same("eos", "sep", name="</s>"), "unk": "<unk>", "pad": "<pad>",
    "mask": MASK,
}  # fmt: skip
ENDS = _same("bos", "cls", name="[CLS]") | _same("eos", "sep", name="[SEP]")
BERT = Kind("words", BERT_NAMES, ("cls",), ("sep",))
ROBERTA = Kind("bytes", ROBERTA_NAMES, ("cls",), ("sep",))
LLAMA = Kind("pieces", {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, ("bos",))
GEMMA = Kind("pieces", {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"}, ("bos",))
T5 = Kind("pieces", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, (), ("eos",))
ALBERT = Kind("pieces", {**BERT_NAMES, **ENDS, "unk": "<unk>", "pad": "<pad>"}, ("cls",), ("sep",))
KINDS = {
    "gpt2": Kind("bytes", END), "roberta": ROBERTA, "bart": ROBERTA,
    "deberta": Kind("bytes", {**BERT_NAMES, **ENDS}, ("cls",), ("sep",)),
    "whisper": Kind("bytes", END, ("<|startoftranscript|>", "<|notimestamps|>"), ("eos",)),
    "qwen2": Kind("bytes", _same("eos", "unk", "pad", name="<|endoftext|>"), cut="qwen2"),
    "bert": BERT, "distilbert": BERT, "electra": BERT,
    "llama": LLAMA, "mistral": LLAMA, "mixtral": LLAMA, "phi3": LLAMA,
    "gemma": GEMMA, "gemma2": GEMMA, "gemma3text": GEMMA, "t5": T5, "mt5": T5,
    "albert": ALBERT,
    "debertav2": Kind("pieces", {**BERT_NAMES, **ENDS}, ("cls",), ("sep",)),
}  # fmt: skip


def from_folder(folder):
    """Of a folder's tokenizer: the package's object, ids of special tokens by role, the chat template or None.

    Raises:
        CheckpointError: files are missing, damaged, or of a kind that is not known.
    """
    settings = {
        **read_settings(folder / "special_tokens_map.json"), **read_settings(folder / "tokenizer_config.json"),
    }  # fmt: skip
    _check_names(folder, settings)
    if (folder / "tokenizer.json").is_file():
        change = _without_space if _asks_for_no_space(folder, settings) else None
        backend, names = read_tokenizer_json(folder / "tokenizer.json", change), {}
    else:
        kind = _kind(folder, settings)
        backend, names = _from_vocabulary(folder, kind, settings), kind.names
    special = {}
    for role in ROLES:
        name = _name(settings.get(f"{role}_token", names.get(role)))
        if name is not None and backend.token_to_id(name) is not None:
            special[role] = backend.token_to_id(name)
    return backend, special, _template(folder, settings)


def _template(folder, settings):
    """The chat template of a folder: one text, or of several by name the default one."""
    if (folder / "chat_template.jinja").is_file():
        return _text(folder / "chat_template.jinja")
    given = settings.get("chat_template")
    named = given if isinstance(given, list) else [{"name": "default", "template": given}]
    if not all(isinstance(x, dict) and isinstance(x.get("name"), str) for x in named) or not all(
        isinstance(x.get("template"), str) for x in named if given is not None
    ):
        expected = "expected a text, or a list of names and templates"
        _refuse(folder, f"config     chat_template = {shown(given)} in tokenizer_config.json   {expected}")
    return {entry["name"]: entry["template"] for entry in named}.get("default")


def _refuse(folder, *problems):
    raise CheckpointError(f"{folder} {WHAT}", problems)


def _check_names(folder, settings):
    """Refuse names of special tokens that are no names."""
    for role in ROLES:
        given = settings.get(f"{role}_token")
        if given is not None and not isinstance(given.get("content") if isinstance(given, dict) else given, str):
            _refuse(folder, f"config     {role}_token = {shown(given)}   expected the name of a token")


def _asks_for_no_space(folder, settings):
    """Whether a class of LLaMA's is told to put no space in front of a text, which its file does not know of."""
    return _flag(folder, settings, "add_prefix_space") is False and KINDS.get(_class(settings)) is LLAMA


def _without_space(values):
    """Take the space in front of a text out of a `tokenizer.json`, and what takes it off again."""
    for step in parts([values.get("normalizer"), values.get("pre_tokenizer"), values.get("decoder")]):
        if step.get("type") == "Metaspace":
            step["prepend_scheme"] = "never"
        if step.get("type") == "Prepend":
            step["prepend"] = ""
        if step.get("type") == "Strip" and "start" in step:
            step["start"] = 0


def _kind(folder, settings):
    """The `Kind` of a folder without tokenizer.json: of its tokenizer's class, else of its model."""
    named = settings.get("tokenizer_class")
    if named in (None, "PreTrainedTokenizerFast", "TokenizersBackend"):
        named = read_settings(folder / "config.json").get("model_type")
    if named is None and (folder / "vocab.txt").is_file():
        return BERT
    if named is None:
        either = "a tokenizer_class in tokenizer_config.json, or a model_type in config.json"
        _refuse(folder, f"missing    tokenizer.json, or {either}")
    found = KINDS.get(_class({"tokenizer_class": named}))
    if found is None:
        _refuse(folder, f"unknown    {shown(named)} without a tokenizer.json   known: {', '.join(KINDS)}")
    return found


def _class(settings):
    """Our name of a tokenizer's class: LlamaTokenizerFast is llama."""
    return re.sub(r"tokenizer(fast)?$|[-_]", "", str(settings.get("tokenizer_class")).lower())


def _from_vocabulary(folder, kind, settings):
    """A tokenizer of the package from a folder's vocabulary and what its class stands for."""
    there = [folder / name for name in FORMS[kind.form] if (folder / name).is_file()]
    if not there or kind.form == "bytes" and len(there) < 2:
        either = " or ".join(FORMS[kind.form]) if kind.form == "pieces" else " and ".join(FORMS[kind.form])
        _refuse(folder, f"missing    tokenizer.json, or {either}, files of that name")
    build = {"bytes": _byte_level, "words": _word_pieces, "pieces": _sentence_pieces}[kind.form]
    try:
        backend = built(build, there, kind, settings)
        built(_add_tokens, backend, folder, kind, settings)
    except CheckpointError:
        raise
    except ValueError as error:
        _refuse(folder, f"damaged    {' and '.join(path.name for path in there)}: {error}")
    around = []
    for end, tokens in (("bos", kind.before), ("eos", kind.after)):
        if tokens in ((), (end,)) and _flag(folder, settings, f"add_{end}_token") is not None:
            tokens = (end,) if settings[f"add_{end}_token"] else ()
        names = [_name(settings.get(f"{x}_token", kind.names.get(x, x))) if x in ROLES else x for x in tokens]
        for role, name in zip(tokens, names, strict=True):
            if name is None or backend.token_to_id(name) is None:
                _refuse(folder, f"missing    {name or role} in {there[0].name}: it stands around every text")
        around.append([backend.token_to_id(name) for name in names])
    surround(backend, *around)
    return backend


def _byte_level(paths, kind, settings):
    vocabulary = read_settings(paths[0])
    _check_ids(paths[0], vocabulary)
    merges: dict[tuple[str, ...], None] = {}  # in order
    for number, line in enumerate(_lines(paths[1])):
        pair = tuple(line.split(" "))
        if number == 0 and line.startswith("#version") or not line:
            continue
        if len(pair) != 2 or not all(pair) or pair in merges:
            what = "occurs twice" if pair in merges else "is no pair of tokens with one space between"
            _refuse(paths[1].parent, f"damaged    merges.txt, line {number + 1}: {line[:80]!r} {what}")
        merges[pair] = None
    space = _flag(paths[0].parent, settings, "add_prefix_space", False)
    return byte_level(vocabulary, list(merges), kind.cut, space and kind.cut == "gpt-2")


def _word_pieces(paths, kind, settings):
    (path,) = paths
    pieces = _lines(path)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        _refuse(path.parent, f"damaged    vocab.txt: {len(pieces) - len(vocabulary)} pieces occur twice")
    names = [_name(settings.get(f"{role}_token", kind.names[role])) for role in ("unk", "cls", "sep")]
    problems = [f"missing    {name} in vocab.txt" for name in names if name not in vocabulary]
    if problems:
        _refuse(path.parent, *problems)
    flag = lambda name, default: _flag(path.parent, settings, name, default)
    return word_pieces(
        vocabulary, names[0], lowercase=flag("do_lower_case", True),
        strip_accents=flag("strip_accents", None), chinese=flag("tokenize_chinese_chars", True),
    )  # fmt: skip


def _sentence_pieces(paths, kind, settings):
    folder, pieces = paths[0].parent, read_sentencepiece(paths[0])
    problems = [f"damaged    {paths[0].name}: {problem}" for problem in pieces.problems()]
    if settings.get("split_by_punct"):
        problems.append("switch     split_by_punct in tokenizer_config.json is not supported")
    extra = settings.get("extra_ids", 100) if kind is T5 else 0
    if not isinstance(extra, int) or not 0 <= extra <= 1000:
        problems.append(f"config     extra_ids = {extra!r} in tokenizer_config.json   expected 0 … 1000")
    if problems:
        _refuse(folder, *problems)
    lowercase = _flag(folder, settings, "do_lower_case", kind is ALBERT)
    first: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    if kind is ALBERT:
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
        keep = _flag(folder, settings, "keep_accents", False)
        first = [*quotes, *([] if keep else [normalizers.NFKD(), normalizers.StripAccents()]), *first]
        comma = [100 * bool(re.search(r"\d,\Z", text)) for text in pieces.texts]  # it stands alone after a digit
        pieces = replace(pieces, scores=[score - c for score, c in zip(pieces.scores, comma, strict=True)])
    prefix = _flag(folder, settings, "add_prefix_space", pieces.prefix)
    if prefix != pieces.prefix and kind not in (LLAMA, ALBERT):
        _refuse(folder, f"switch     add_prefix_space = {prefix} in tokenizer_config.json   only {not prefix} is "
                        "supported, as the model of pieces says")  # fmt: skip
    pieces = replace(pieces, prefix=prefix)
    once = kind is LLAMA and not _flag(folder, settings, "legacy", True)
    backend = sentence_pieces(pieces, first, once)
    control = [text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == CONTROL]
    gaps = [f"<extra_id_{n}>" for n in reversed(range(extra))]  # after the pieces, the last one first
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in [*control, *gaps] if name])
    return backend


def _add_tokens(backend, folder, kind, settings):
    """Special tokens, and what a model got later on, at the ids that the files say."""
    roles = [settings.get(f"{role}_token", kind.names.get(role)) for role in ROLES]
    more = settings.get("additional_special_tokens") or []
    if not isinstance(more, list) or not all(map(_name, more)):
        _refuse(folder, f"config     additional_special_tokens = {shown(more)}   expected a list of names")
    named = [*roles, *more]
    special = {_name(given): given for given in reversed(named) if _name(given)}
    added = read_settings(folder / "added_tokens.json")
    later = settings.get("added_tokens_decoder") or {
        str(number): {"content": name, "special": name in special, "normalized": False}
        for name, number in added.items()
    }
    try:
        ids = list(settings.get("added_tokens_decoder") or map(str, added.values()))
        if not all(map(str.isdecimal, ids)) or len(set(map(int, ids))) < len(ids):
            raise ValueError(f"expected whole numbers as ids, once each, found {shown(ids)}")
        later = {int(number): {"special": False, "normalized": True} | given for number, given in later.items()}
        tokens = {later[number]["content"]: later[number] for number in sorted(later)}
    except (TypeError, ValueError, KeyError) as error:
        _refuse(folder, f"damaged    added tokens: {error!r}")
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    for name, given in tokens.items():
        if wrong := [key for key in flags if not isinstance(given.get(key, False), bool)]:
            _refuse(folder, f"damaged    added tokens: {shown(name)} has {wrong[0]} = {shown(given[wrong[0]])}")
    for name, given in reversed(special.items()):
        given = given if isinstance(given, dict) else {"content": given}
        tokens.setdefault(name, given | {"special": True})
    switches = ("lstrip", "rstrip", "single_word")
    backend.add_tokens([
        AddedToken(
            name, special=given["special"], **{key: bool(given.get(key)) for key in switches},
            normalized=kind.form != "pieces" and not given["special"] and given["normalized"])
        for name, given in tokens.items()])  # fmt: skip
    for number, given in later.items():
        found = backend.token_to_id(given["content"])
        if found != number:
            what = f"{given['content']!r} at {number}, but the vocabulary has it at {found}"
            _refuse(folder, f"damaged    added tokens: {what}")


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def _text(path):
    try:
        return read_text(path)
    except ValueError as error:
        _refuse(path.parent, f"damaged    {path.name}: {error}")


def _lines(path):
    """The lines of a file; only a newline ends one, as vocabularies hold other separators."""
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _flag(folder, settings, name, default=None):
    value = settings.get(name)
    if value not in (None, True, False):
        _refuse(folder, f"config     {name} = {value!r} in tokenizer_config.json   expected true or false")
    return default if value is None else value


def _name(given):
    """The name of a token that is given as text, or as a dictionary with switches; else None."""
    name = given.get("content") if isinstance(given, dict) else given
    return name if isinstance(name, str) and name else None


def _check_ids(path, vocabulary):
    """Refuse ids that are not 0 … n-1, once each: others would collide with tokens added later."""
    n, seen = len(vocabulary), set()
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < n or number in seen:
            what = f"{token!r} has id {number!r}; expected 0 … {n - 1}, once each"
            _refuse(path.parent, f"damaged    {path.name}: {what}")
        seen.add(number)
