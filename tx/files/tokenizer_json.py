"""A `tokenizer.json`: read, its work bounded before the `tokenizers` package builds it (chapter 10).

The file is a program: patterns, replacements, tables and what stands around a text. The package cannot be
interrupted and believes what it reads, so what could grow or crash is looked for in the file first. A text may
grow to `GROWTH` times its length, and real tokenizers stay below: SentencePiece's tables grow by 18 at most, a
space in front of a word doubles it. A pattern is bounded in its length. The engine gives up after ten million
steps at one place, which is a panic, and panics are caught; a pattern that goes back and forth less than that, but
at every place of a long text, can still take seconds.
"""

import base64
import json
import math
import re
import unicodedata

from tokenizers import Tokenizer as Backend

from .errors import CheckpointError, shown
from .settings import read_json
from .vocabularies import check_charsmap, longest_replacement

GROWTH = 128  # times the length of a text, after all replacements
STEPS = 256  # parts of a tokenizer, texts around a text
LONGEST_PATTERN = 2**13  # characters; compiled, each may take kilobytes
LONGEST_TOKEN = 2**10  # characters of a token that is looked for in every text
LONGEST_WORD = 2**10  # characters that are cut into word pieces, in cubic time
MOST_ADDED = 2**17  # tokens that are looked for in every text
MAY_BE_EMPTY = re.compile(r"[*?|^$]|\\[bBAzZG]|\{0?,")  # a pattern without these matches a character or more
WHAT = "has no tokenizer that can be read"


def read_tokenizer_json(path, change=None):
    """The package's tokenizer of a file.

    change: called with the values of the file before they are built.

    Raises:
        CheckpointError: the file is damaged, or would take unbounded work.
    """
    try:
        values = read_json(path)
        problems = list(_problems(values))
        if not problems:
            if change is not None:
                change(values)
            backend = built(Backend.from_str, json.dumps(values))
            problems = _ids_of_added(values.get("added_tokens") or [], backend)
            backend.no_truncation()  # some files cut a text silently, or pad it
            backend.no_padding()
            problems += _of_a_text(backend)
    except KeyError as error:
        problems = [f"a part has no {error}"]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        problems = [str(error)]
    if problems:
        raise CheckpointError(f"{path.parent} {WHAT}", [f"damaged    {path.name}: {text}" for text in problems])
    return backend


def built(call, *args, **kwargs):
    """What the package makes.

    Raises:
        ValueError: it refuses, or panics. A panic is no `Exception`, so that it would end a program.
    """
    try:
        return call(*args, **kwargs)
    except CheckpointError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(str(error)) from error
        raise


def parts(values):
    """Every step of a part of the file, in whatever sequences they stand."""
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value


def _problems(values):
    """What is wrong or without bounds, a sentence each."""
    model = values.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"model = {shown(model)}, expected an object")
    if model.get("dropout"):
        yield f"dropout = {model['dropout']}: a text would have other ids every time"
    if model.get("type") in ("WordPiece", "WordLevel") and model.get("unk_token") not in model.get("vocab", {}):
        yield f"unk_token = {shown(model.get('unk_token'))} is no token of the vocabulary"
    if (word := model.get("max_input_chars_per_word") or 0) > LONGEST_WORD:
        yield f"max_input_chars_per_word = {shown(word)}, expected at most {LONGEST_WORD}"
    if isinstance(model.get("vocab"), dict) and len(set(model["vocab"].values())) < len(model["vocab"]):
        yield "two tokens of the vocabulary have one id"
    if model.get("type") == "Unigram":
        pieces = [piece for piece, _ in model["vocab"]]
        if len(set(pieces)) < len(pieces) or not all(0 < len(piece) <= LONGEST_TOKEN for piece in pieces):
            yield f"a piece occurs twice, is empty or has more than {LONGEST_TOKEN} characters"
    yield from _problems_of_added(values.get("added_tokens") or [])
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        found = list(parts(values.get(name)))
        if len(found) > STEPS:
            yield f"the {name} has {len(found)} parts, {STEPS} are the limit"
            continue
        damaged = [line for part in found for line in _problems_of_a_part(part)]
        yield from damaged
        growth = 1 if damaged else math.prod(map(_growth, found))
        if growth > GROWTH:
            yield f"the {name} may make a text {growth:.3g} times as long, {GROWTH} times are the limit"


def _problems_of_added(tokens):
    """What is wrong with the tokens beside the vocabulary."""
    if len(tokens) > MOST_ADDED:
        yield f"{len(tokens)} added tokens, {MOST_ADDED} are the limit"
    longest = max((token["content"] for token in tokens), key=len, default="")
    if len(longest) > LONGEST_TOKEN:
        yield f"an added token has {len(longest)} characters, {LONGEST_TOKEN} are the limit"


def _problems_of_a_part(part):
    pattern = part.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if regex is not None and len(regex) > LONGEST_PATTERN:
        yield f"a pattern has {len(regex)} characters, {LONGEST_PATTERN} are the limit"
    if len(part.get("ids") or []) > STEPS:
        yield f"{shown(part.get('id'))} stands for {len(part['ids'])} ids, {STEPS} are the limit"
    if part.get("type") == "Precompiled":
        yield from check_charsmap(base64.b64decode(part["precompiled_charsmap"], validate=True))
    if part.get("type") == "TemplateProcessing" and not any("Sequence" in step for step in part["single"]):
        yield "what stands around a text leaves the text out"
    if part.get("type") == "FixedLength" and not part.get("length"):
        yield "a FixedLength has no length"


def _growth(part):
    """How many times as long a part of the file may make a text."""
    kind, added = part.get("type"), _longest(str(part.get("content", "")))
    if kind == "Replace":
        given = part["pattern"]
        text, pattern = (given.get("String"), given.get("Regex")) if isinstance(given, dict) else (given, None)
        if text:
            return max(1, added / len(text))
        return 1 + added if pattern is None or MAY_BE_EMPTY.search(pattern) else max(1, added)
    if kind == "Prepend":
        return 1 + _longest(part["prepend"])
    if kind == "Precompiled":
        return longest_replacement(base64.b64decode(part["precompiled_charsmap"]))
    if kind == "TemplateProcessing":
        return max(1, sum("Sequence" in step for step in part["single"]))
    return {"ByteLevel": 4, "BertNormalizer": 3}.get(kind, 1)  # bytes of a character; spaces around an ideograph


def _ids_of_added(tokens, backend):
    """The package takes other ids than a file's, silently, where they do not follow its vocabulary."""
    found = ((token["content"], token["id"], backend.token_to_id(token["content"])) for token in tokens)
    return [f"{shown(name)} has id {shown(id)}, but the vocabulary gives it {own}" for name, id, own in found
            if own != id]  # fmt: skip


def _longest(text):
    """Characters of a text in Unicode's longest form, which a later step may make."""
    return len(unicodedata.normalize("NFKD", text))


def _of_a_text(backend):
    """What is wrong with the ids of a short text: a word that no vocabulary has."""
    try:
        ids = built(backend.encode, "a \U000f1234").ids
        built(backend.decode, ids)
    except ValueError as error:
        return [f"a text cannot be encoded: {error}"]
    unknown = [id for id in ids if backend.id_to_token(id) is None]
    return [f"it puts id {unknown[0]} around a text, which is no token"] if unknown else []
