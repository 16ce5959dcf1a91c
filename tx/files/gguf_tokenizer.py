"""The tokenizer in the metadata of a GGUF file (chapter 10)."""

from tokenizers import AddedToken

from .errors import CheckpointError, shown
from .vocabularies import (
    BERT_NAMES,
    CONTROL,
    CUTS,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Pieces,
    byte_level,
    sentence_pieces,
    surround,
    word_pieces,
)

GGML = "tokenizer.ggml."
SAME = {
    "phi-2": "gpt-2", "mpt": "gpt-2", "olmo": "gpt-2", "starcoder": "smollm", "refact": "smollm",
    "codeshell": "smollm", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "stablelm2": "qwen2",
}  # fmt: skip
GGUF_ROLES = {
    "bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding", "cls": "cls",
    "sep": "seperator", "mask": "mask",
}  # fmt: skip
LISTS: dict[str, dict[str, type]] = {  # what a kind cannot do without
    "gpt2": {"tokens": str, "merges": str},
    "llama": {"tokens": str, "scores": float},
    "t5": {"tokens": str, "scores": float},
    "bert": {"tokens": str},
}
# What a file may say besides, and what is read of it. Ids of other names (`fim_pre_token_id`) name tokens only.
OPTIONAL: dict[str, type] = {"token_type": int, "precompiled_charsmap": int}
FLAGS = ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces")
MEANINGLESS = ("token_type_count", "scores", "merges")  # segments of BERT; lists that a kind does not use


def from_gguf(metadata):
    """What the metadata of a GGUF file describe: the package's tokenizer, ids of special tokens by role, and the
    chat template or None.

    metadata: {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": […], …}, see `tx.files.gguf`.

    Raises:
        CheckpointError: what is missing, damaged, or says what is not supported.
    """
    values = {key.removeprefix(GGML): value for key, value in metadata.items() if key.startswith(GGML)}
    _check_gguf(values)
    model, tokens, kinds = values["model"], values["tokens"], values.get("token_type", [])
    special = {role: values.get(f"{theirs}_token_id") for role, theirs in GGUF_ROLES.items()}
    special = {role: id for role, id in special.items() if id is not None}
    if model == "bert":  # newer files call [CLS] the first token, and name [SEP] only
        named = {role: tokens.index(name) for role, name in BERT_NAMES.items() if name in tokens}
        special = named | special
    try:
        backend = {"gpt2": _gguf_bytes, "bert": _gguf_words}.get(model, _gguf_pieces)(values, special)
    except CheckpointError:
        raise
    except Exception as error:  # the package raises nothing narrower
        part = "merges" if model == "gpt2" else "tokens"
        raise CheckpointError(_NO_GGUF, [f"damaged    tokenizer.ggml.{part}: {error}"]) from error
    added = [pair for pair in zip(tokens, kinds, strict=False) if pair[1] in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(x, special=kind == CONTROL, normalized=False) for x, kind in sorted(
        added, key=lambda pair: pair[1])])  # fmt: skip
    if model == "bert":
        surround(backend, [special["cls"]], [special["sep"]])
    else:
        adds = {"bos": model == "llama" or model == "gpt2" and _cut(values) == "llama-bpe", "eos": model == "t5"}
        adds = {role: role in special and values.get(f"add_{role}_token", add) for role, add in adds.items()}
        surround(backend, *([special[role]] if add else [] for role, add in adds.items()))
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        problem = f"config     tokenizer.chat_template = {shown(template)}   expected a text"
        raise CheckpointError(_NO_GGUF, [problem])
    return backend, special, template


def _gguf_bytes(values, special):
    vocabulary = {token: number for number, token in enumerate(values["tokens"])}
    return byte_level(vocabulary, [tuple(merge.split(" ", 1)) for merge in values["merges"]], _cut(values))


def _gguf_words(values, special):
    """Word pieces of a GGUF file: ▁ begins a word, ## is left out, [names] stay as they are."""
    absent = [f"missing    {BERT_NAMES[role]} in tokenizer.ggml.tokens" for role in ("unk", "cls", "sep")
              if role not in special]  # fmt: skip
    if absent:
        raise CheckpointError(_NO_GGUF, absent)
    names = {values["tokens"][id] for id in special.values()}
    vocabulary = {}
    for number, token in enumerate(values["tokens"]):
        name = token in names or token.startswith("[") and token.endswith("]")
        vocabulary[token if name else token[1:] if token.startswith("▁") else f"##{token}"] = number
    if len(vocabulary) != len(values["tokens"]):
        raise ValueError("pieces occur twice")
    cased = any(token != token.lower() for token in vocabulary if not token.startswith("["))
    return word_pieces(vocabulary, values["tokens"][special["unk"]], lowercase=not cased)


def _gguf_pieces(values, special):
    tokens, unigram = values["tokens"], values["model"] == "t5"
    kinds = list(values.get("token_type", len(tokens) * [NORMAL]))
    # what a user defined is text as it stands there, found before anything else is done
    kinds = [CONTROL if kind == USER_DEFINED else kind for kind in kinds]
    if "unk" in special:
        kinds = [NORMAL if kind == UNKNOWN else kind for kind in kinds]
        kinds[special["unk"]] = UNKNOWN
    pieces = Pieces(
        tokens, values["scores"], kinds, unigram, by_bytes="<0x00>" in tokens,
        charsmap=bytes(byte & 255 for byte in values.get("precompiled_charsmap", [])),
        prefix=values.get("add_space_prefix", True), tidy=values.get("remove_extra_whitespaces", unigram),
    )  # fmt: skip
    problems = [f"damaged    tokenizer.ggml.tokens: {problem}" for problem in pieces.problems()]
    if problems:
        raise CheckpointError(_NO_GGUF, problems)
    return sentence_pieces(pieces)


def _cut(values):
    """Our name of the pre-tokenizer that the file names."""
    name = values.get("pre", "default")
    return SAME.get(name, name) if isinstance(name, str) else shown(name)


_NO_GGUF = "the GGUF file has no tokenizer that can be read"


def _check_gguf(values):
    problems = []
    model, tokens, cut = values.get("model"), values.get("tokens"), _cut(values)
    if not isinstance(model, str) or model not in LISTS:
        known = ", ".join(map(repr, LISTS))
        raise CheckpointError(_NO_GGUF, [f"unknown    tokenizer.ggml.model = {shown(model)}   known: {known}"])
    if model == "gpt2" and cut not in CUTS:
        known = ", ".join(sorted([*CUTS, *SAME]))
        problems.append(f"unknown    tokenizer.ggml.pre = {shown(cut)}   known: {known}")
    lists = LISTS[model] | {name: kind for name, kind in OPTIONAL.items() if name in values}
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
    for name in ("token_type", "scores"):
        if isinstance(values.get(name), list) and len(values[name]) != len(tokens):
            found, expected = len(values[name]), len(tokens)
            problems.append(f"damaged    tokenizer.ggml.{name}   {found} entries for {expected} tokens")
    for name in (name for name in values if name.endswith("_token_id")):
        id = values[name]
        if type(id) is not int or not 0 <= id < len(tokens):
            problems.append(f"damaged    tokenizer.ggml.{name} = {shown(id)}   expected 0 … {len(tokens) - 1}")
    problems += _flag_problems(values)
    if problems:
        raise CheckpointError(_NO_GGUF, problems)


def _flag_problems(values):
    """A line for every flag that says nothing, that this kind of tokenizer cannot follow, or that is not known."""
    model = values["model"]
    for name in (name for name in FLAGS if name in values):
        if not isinstance(values[name], bool):
            yield f"config     tokenizer.ggml.{name} = {shown(values[name])}   expected true or false"
    only: dict[str, bool] = {}  # of these kinds a reader of such files follows no other value
    if model == "bert":  # [CLS] and [SEP] always stand around a text
        only = {"add_bos_token": True, "add_eos_token": True, "add_space_prefix": True}
    if model == "gpt2":
        only = {"add_space_prefix": False, "remove_extra_whitespaces": False}
    if model in ("gpt2", "llama"):
        only["add_sep_token"] = False
    for name, allowed in only.items():
        if values.get(name, allowed) != allowed:
            found = f"tokenizer.ggml.{name} = {shown(values[name])}"
            yield f"switch     {found}   only {allowed} is supported for {model!r}"
    for role in ("bos", "eos"):
        if values.get(f"add_{role}_token") is True and f"{role}_token_id" not in values and model != "bert":
            yield f"missing    tokenizer.ggml.{role}_token_id   add_{role}_token asks for it"
    known = {"model", "pre", *LISTS[model], *OPTIONAL, *FLAGS, *MEANINGLESS}
    for name in sorted(name for name in values if name not in known and not name.endswith("_token_id")):
        yield f"unknown    tokenizer.ggml.{name[:80]} = {shown(values[name])}"
