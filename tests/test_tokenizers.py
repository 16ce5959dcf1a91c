"""Folders without a tokenizer.json: the ids of the reference, special tokens, damaged files."""

import base64
import json
import random
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from tests import test_sentencepiece as sentencepiece
from tx.files.errors import CheckpointError
from tx.tokenization import load_tokenizer

SNIPPETS = [
    "Hello", "world", " ", "  ", "   ", "\n", "\r\n", "\t", "naïve", "e\u0301", "漢字", "かな", "🙂",
    "🙂🏽", "👨‍👩‍👧", "1234.5", "x+=1", "don't", "I'M", "<s>", "</s>", "<mask>", " <mask> ",
    "[MASK]", "[CLS]", "<|endoftext|>", "ﬁ", "①", "Ⅷ", "١٢", "ἀρχή", "Привет", "\u00a0",
    "\u3000", "\u200b", "\x00", "\ufffd", "ß", "İ", "▁", "...", "def f(x):\n    return x", "\u2028",
    "\x85", "(a)", "ÅÖ", "\U0010ffff",
]  # fmt: skip
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"]
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False,
        "normalized": False}  # fmt: skip


@cache
def texts():
    chance = random.Random(0)
    return ["", *SNIPPETS, *("".join(chance.choices(SNIPPETS, k=chance.randint(1, 8))) for _ in range(300))]


@cache
def corpus():
    words = "naïve café 漢字 かな Привет ἀρχή 1234 don't I'M"
    return [Path(json.__file__).read_text(encoding="utf-8"), *20 * [words, words.lower()]]


@cache
def bytes_files():
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=SPECIAL,
        show_progress=False))  # fmt: skip
    model = json.loads(backend.to_str())["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    return {"vocab.json": json.dumps(model["vocab"]), "merges.txt": f"#version: 0.2\n{merges}\n"}


@cache
def words_files():
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=special, show_progress=False))  # fmt: skip
    return {"vocab.txt": "\n".join(sorted(backend.get_vocab(), key=backend.get_vocab().get)) + "\n"}


def write(path, files, model_type=None, settings=None, **others):
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name).write_bytes(data)
    (path / "config.json").write_text(json.dumps({"model_type": model_type} if model_type else {}))
    (path / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    for name, values in others.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


LATER = {"<|startoftranscript|>": 600, "<|notimestamps|>": 601, "<|0.00|>": 602}
MORE = {"additional_special_tokens": ["<|startoftranscript|>", "<|notimestamps|>"]}
FOLDERS = {
    "GPT-2": (bytes_files, "gpt2", {}, {}),
    "a space in front": (bytes_files, "gpt2", {"add_prefix_space": True}, {}),
    "begin and a new token": (bytes_files, "gpt2", {"add_bos_token": True, "pad_token": "[NEW]"}, {}),
    "RoBERTa": (bytes_files, "roberta", {"tokenizer_class": "RobertaTokenizer", "mask_token": MASK}, {}),
    "RoBERTa, a map": (bytes_files, "roberta", {}, {"special_tokens_map": {"mask_token": MASK}}),
    "BART": (bytes_files, "bart", {"mask_token": MASK}, {}),
    "DeBERTa": (bytes_files, "deberta", {}, {}),
    "Qwen2": (bytes_files, "qwen2", {}, {}),
    "Whisper": (bytes_files, None, {"tokenizer_class": "WhisperTokenizer", **MORE}, {"added_tokens": LATER}),
    "BERT": (words_files, "bert", {}, {}),
    "cased": (words_files, "bert", {"do_lower_case": False}, {}),
    "accents stay": (words_files, "bert", {"do_lower_case": True, "strip_accents": False}, {}),
    "accents go": (words_files, "bert", {"do_lower_case": False, "strip_accents": True}, {}),
    "ideographs": (words_files, "bert", {"tokenize_chinese_chars": False}, {}),
    "DistilBERT": (words_files, None, {"tokenizer_class": "DistilBertTokenizerFast", "pad_token": "[P]"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_the_reference(tmp_path, name):
    files, model_type, settings, others = FOLDERS[name]
    ours = load_tokenizer(write(tmp_path, files(), model_type, settings, **others))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert len(ours) == len(theirs)
    roles = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
    wanted = {role: getattr(theirs, f"{role}_token_id") for role in roles}
    assert ours.special == {role: id for role, id in wanted.items() if id is not None}
    lossless = files is bytes_files and name not in ("a space in front", "Qwen2")
    for text in texts():
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special=False) == ids, text
        if lossless and not ("<mask>" in text and "mask" in ours.special):  # it takes the space in front of it
            assert ours.decode(ids, special=True) == text, "no character is lost"


def test_a_mask_that_no_file_names_takes_the_space_in_front_of_it(tmp_path):
    ours = load_tokenizer(write(tmp_path, bytes_files(), "roberta"))  # so say the files of RoBERTa
    assert ours.encode("a <mask>") == ours.encode("a<mask>")


def test_the_template_in_a_file_of_its_own_is_the_one_that_counts(tmp_path):
    write(tmp_path, bytes_files(), "gpt2", {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}", encoding="utf-8")
    ours = load_tokenizer(tmp_path)
    assert ours.chat([{"role": "user", "content": "é"}]) == "<|endoftext|>é"


VOCAB = {"<s>": 0, "</s>": 1, "h": 2, "e": 3, "he": 4}
GOOD = {"vocab.json": json.dumps(VOCAB), "merges.txt": "#version: 0.2\nh e\n"}
WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n"
BERT = {"tokenizer_class": "BertTokenizer"}
HOSTILE = {
    "truncated vocabulary": (GOOD | {"vocab.json": GOOD["vocab.json"][:30]}, {}, "vocab.json: no JSON"),
    "0 bytes": (GOOD | {"vocab.json": ""}, {}, "vocab.json: no JSON"),
    "a list": (GOOD | {"vocab.json": "[1]"}, {}, "vocab.json: expected a dict, found a list"),
    "deep": (GOOD | {"vocab.json": '{"a":' * 100_000}, {}, "vocab.json: nested too deeply"),
    "not UTF-8": (GOOD | {"vocab.json": b'{"\xff": 0}'}, {}, "vocab.json: not UTF-8"),
    "an id beyond": (GOOD | {"vocab.json": json.dumps(VOCAB | {"he": 9})}, {}, "'he' has id 9; expected 0 … 4"),
    "an id twice": (GOOD | {"vocab.json": json.dumps(VOCAB | {"he": 3})}, {}, "'he' has id 3; .* once each"),
    "no id": (GOOD | {"vocab.json": json.dumps(VOCAB | {"he": "4"})}, {}, "'he' has id '4'"),
    "true": (GOOD | {"vocab.json": json.dumps(VOCAB | {"</s>": True})}, {}, "'</s>' has id True"),
    "no pair": (GOOD | {"merges.txt": "h e\nhe\n"}, {}, "merges.txt, line 2: 'he' is no pair"),
    "three": (GOOD | {"merges.txt": "h e h\n"}, {}, "merges.txt, line 1: 'h e h' is no pair"),
    "merges twice": (GOOD | {"merges.txt": "h e\n\nh e\n"}, {}, "merges.txt, line 3: 'h e' occurs twice"),
    "unknown tokens": (GOOD | {"merges.txt": "h q\n"}, {}, "vocab.json and merges.txt: .*`q`"),
    "bad bytes": (GOOD | {"merges.txt": b"h \xff\n"}, {}, "merges.txt: not UTF-8"),
    "no merges": ({"vocab.json": GOOD["vocab.json"]}, {}, "tokenizer.json, or vocab.json and merges.txt"),
    "no begin": (GOOD, {"cls_token": None}, "missing    cls in vocab.json: it stands around every text"),
    "added beyond": (GOOD, {"added_tokens_decoder": {"99": {"content": "<x>"}}}, "'<x>' at 99, .* has it at 5"),
    "added no token": (GOOD, {"added_tokens_decoder": {"5": {"content": 7}}}, "damaged "),
    "added twice": (GOOD, {"added_tokens_decoder": {"5": {"content": "<x>"}, "05": {"content": "<y>"}}}, "once"),
    "added at one place": (GOOD | {"added_tokens.json": '{"<x>": 5, "<y>": 5}'}, {}, "once each"),
    "added at a half": (GOOD | {"added_tokens.json": '{"<x>": 5.5}'}, {}, "whole numbers as ids"),
    "added with a word": (GOOD, {"added_tokens_decoder": {"5": {"content": "x", "lstrip": 1}}}, "lstrip = 1"),
    "special letters": (GOOD, {"additional_special_tokens": "abc"}, "= 'abc'   expected a list of names"),
    "added nothing": (GOOD, {"added_tokens_decoder": {"x": 1}}, "damaged    added tokens"),
    "a word for a switch": (GOOD, {"add_prefix_space": "no"}, "add_prefix_space = 'no' .* expected true or false"),
    "another class": (GOOD, {"tokenizer_class": "CLIPTokenizer"}, "unknown    'CLIPTokenizer' .* known: gpt2"),
    "pieces twice": ({"vocab.txt": WORDS + "a\n"}, BERT, "1 pieces occur twice"),
    "truncated": ({"vocab.txt": WORDS[:20]}, BERT, r"missing    \[SEP\] in vocab.txt"),
    "no words": ({"vocab.txt": ""}, BERT, r"missing    \[UNK\] in vocab.txt"),
    "words of bytes": ({"vocab.txt": b"\xfe\n"}, BERT, "vocab.txt: not UTF-8"),
    "no class": ({}, {"tokenizer_class": "T5Tokenizer"}, "or tokenizer.model or spiece.model or spm.model"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files_are_refused(tmp_path, name):
    files, settings, message = HOSTILE[name]
    write(tmp_path, files, "roberta", settings)
    with pytest.raises(CheckpointError, match=rf"(that can be read|cannot be loaded) (.|\n)*{message}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_folder_of_that_name_is_no_file(tmp_path, name):
    write(tmp_path, {key: value for key, value in GOOD.items() if key != name}, "gpt2")
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="missing    tokenizer.json, or vocab.json and merges.txt, files"):
        load_tokenizer(tmp_path)


# ── tokenizer.json ───────────────────────────────────────────────────────────────────────────────


def replacing(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps):
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def around(*single, **special):
    pieces = [{"SpecialToken": {"id": x, "type_id": 0}} if x[0] == "[" else {"Sequence": {"id": x, "type_id": 0}}
              for x in single]  # fmt: skip
    known = {name: {"id": name, "ids": ids, "tokens": ["a"] * len(ids)} for name, ids in special.items()}
    pair = [{"Sequence": {"id": x, "type_id": 0}} for x in "AB"]
    return {"post_processor": {
        "type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": known}}  # fmt: skip


def table(text):
    return base64.b64encode(sentencepiece.charsmap({"x": text})).decode()


ADDED = {"id": 3, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}  # fmt: skip
PLAIN = {"type": "BPE", "vocab": {"a": 0, "b": 1, "x": 2}, "merges": []}
DAMAGED = {
    "five replacements": (sequence(*5 * [replacing({"String": "a"}, 100 * "a")]), r"1e\+10 times as long, 128"),
    "of a pattern": (sequence(*3 * [replacing({"Regex": "a"}, 9 * "a")]), "729 times as long"),
    "of nothing": (sequence(*8 * [replacing({"Regex": "b*"}, "a")]), "256 times as long"),
    "of an empty text": (sequence(*8 * [replacing({"String": ""}, "a")]), "256 times as long"),
    "in front": (sequence(*8 * [{"type": "Prepend", "prepend": "a"}]), "256 times as long"),
    "in the decoder": ({"decoder": {"type": "Sequence", "decoders": 4 * [replacing({"String": "a"}, "aaaa")]}},
                       "the decoder may make a text 256 times as long"),
    "a text many times": (around(*200 * "A"), "the post_processor .* parts|200 times as long"),
    "many steps": (sequence(*999 * [{"type": "NFC"}]), "the normalizer has 1000 parts, 256 are the limit"),
    "a table that grows": (sequence({"type": "Precompiled", "precompiled_charsmap": table(99 * "a")}),
                           "the charsmap makes 99 characters of one"),
    "no table": (sequence({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "charsmap of 3 bytes has no"),
    "a table of no bytes": (sequence({"type": "Precompiled", "precompiled_charsmap": "???"}), "base64|padding"),
    "a table of another type": (sequence({"type": "Precompiled", "precompiled_charsmap": 3}), "not 'int'"),
    "half a table": (sequence({"type": "Precompiled"}), "a part has no 'precompiled_charsmap'"),
    "damaged table": (sequence({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
        b"\0\4\0\0" + b"\xff" * 1024 + b"a").decode()}), "a unit points beyond the table"),
    "a name that is unknown": (around("[X]", "A"), "a text cannot be encoded: "),
    "an id that is unknown": (around("[X]", "A", **{"[X]": [99]}), "it puts id 99 around a text"),
    "the second text": (around("B"), "a text cannot be encoded: "),
    "BERT's ends": ({"post_processor": {"type": "BertProcessing", "sep": ["a", 77], "cls": ["a", 0]}}, "id 77"),
    "no piece for the unknown": (dict(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}),
                                 "unk_token = '[?]' is no token of the vocabulary"),
    "no word for it": (dict(model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "?",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}), "unk_token = "),
    "no token for it": (dict(model={**PLAIN, "unk_token": "<unk>"}), "Unk token `<unk>` not found"),
    "no score for it": (dict(model={"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}), "unk_id. is miss"),
    "chance": (dict(model={**PLAIN, "dropout": 0.1}), "dropout = 0.1: a text would have other ids every time"),
    "no model": (dict(model=[]), r"model = \[\], expected an object"),
    "no vocabulary": (dict(model={"type": "BPE"}), "Missing vocab"),
    "a vocabulary of lists": (dict(model={**PLAIN, "vocab": [1]}), "expected a map"),
    "no pattern": (sequence({"type": "Replace", "content": "a"}), "a part has no 'pattern'"),
    "half a pattern": (sequence(replacing({"Regex": "("}, "a")), "unmatched parenthesis"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "FixedLength has no length"),
    "a text that a form makes longer": (sequence(*2 * [replacing({"Regex": "."}, "\ufdfa"), {"type": "NFKD"}]),
                                        "324 times as long"),
    "bytes of bytes": (sequence(*4 * [{"type": "ByteLevel"}]), "256 times as long"),
    "ideographs": (sequence(*5 * [{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
        "strip_accents": None, "lowercase": False}]), "243 times as long"),
    "a long pattern": (sequence(replacing({"Regex": 9000 * "a"}, "a")), "9000 characters, 8192 are the limit"),
    "an id of another token": (dict(added_tokens=[dict(ADDED, id=9)]), "'<x>' has id 9, but the vocabulary .* 3"),
    "one id for two": (dict(model={**PLAIN, "vocab": {"a": 0, "b": 0}}), "two tokens .* one id"),
    "a long token": (dict(added_tokens=[dict(ADDED, content=2000 * "x")]), "2000 characters, 1024 are the limit"),
    "many ids": (around("[X]", "A", **{"[X]": 300 * [0]}), "stands for 300 ids, 256 are the limit"),
    "no text": (around("[X]", **{"[X]": [0]}), "leaves the text out"),
    "long words": (dict(model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}),
        "1000000000, expected at most 1024"),
    "a piece twice": (dict(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["a", 1.0]]}), "twice"),
    "half a character": (dict(model={**PLAIN, "vocab": {"\ud800": 0}}), "surrogates not allowed"),
    "deep": (sequence(json.loads('{"type":"Sequence","normalizers":[' * 200 + "]}" * 200)), "recursion limit"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_tokenizer_json_without_bounds_is_refused(tmp_path, name):
    change, message = DAMAGED[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": PLAIN, **change}))
    with pytest.raises(CheckpointError, match=rf"damaged    tokenizer.json: (.|\n)*({message})"):
        load_tokenizer(tmp_path)


def test_what_real_files_say_is_within_bounds(tmp_path):
    steps = sequence(
        {"type": "Precompiled", "precompiled_charsmap": table(18 * "a")}, replacing({"Regex": " {2,}"}, "▁"),
        replacing({"String": "``"}, '"'), {"type": "NFKD"}, {"type": "Prepend", "prepend": "▁"},
    )  # fmt: skip
    values = {"version": "1.0", "model": PLAIN, **steps, **around("[X]", "A", **{"[X]": [1]})}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert load_tokenizer(tmp_path).encode("x  b") == [1, *18 * [0], 1]


def test_a_panic_of_the_package_is_an_error_of_ours(tmp_path):
    cut = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": PLAIN, "pre_tokenizer": cut}))
    ours = load_tokenizer(tmp_path)
    assert ours.encode("xb") == [2, 1]
    with pytest.raises(ValueError, match="^text = 'xxx.* cannot be encoded: .*retry-limit"):
        ours.encode("x" * 3000)


@pytest.mark.parametrize(("settings", "message"), [
    ({"chat_template": 3}, "config     chat_template = 3 in tokenizer_config.json   expected a text"),
    ({"chat_template": ["x"]}, "chat_template = "), ({"chat_template": [{"name": "a"}]}, "chat_template"),
    ({"chat_template": [{"name": ["a"], "template": "x"}]}, "chat_template"),
    ({"chat_template": [{"name": "a", "template": 3}]}, "chat_template"),
    ({"chat_template": {"a": "b"}}, "chat_template"), ({"bos_token": 3}, "config     bos_token = 3   expected"),
    ({"eos_token": ["</s>"]}, "eos_token = "), ({"pad_token": {"name": "a"}}, "config     pad_token = "),
], ids=str)  # fmt: skip
def test_settings_of_another_type_are_refused(tmp_path, settings, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": PLAIN}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("form", ["Prepend", "Metaspace"])
@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"])
def test_llama_without_a_space_in_front_is_as_in_the_reference(tmp_path, form, name):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    backend = Backend(models.BPE({p: n for n, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True,
                                 byte_fallback=True))  # fmt: skip
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece in pieces[:3]])
    if form == "Prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": name, "add_prefix_space": False, "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("ab ab", " ab", "ab<s> ab", "ab<s>ab", "", "é"):
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, special=True) == theirs.decode(ids)
    spaced = name == "PreTrainedTokenizerFast"  # it takes the file as it is
    assert (ours.encode("ab") == [pieces.index("▁ab")]) == spaced
