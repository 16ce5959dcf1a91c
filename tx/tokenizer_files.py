"""A checkpoint's tokenizer from its files (chapter 10).

What a checkpoint says of its tokenizer comes in three forms: a `tokenizer.json`, a `vocab.txt` of word
pieces, or the metadata of a GGUF file.
"""

import json

from .families.reading import CheckpointError
from .tokenization import Tokenizer

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def from_folder(folder):
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
