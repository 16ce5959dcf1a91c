"""GGUF metadata of BERT's and T5's kinds: the ids of the same vocabularies in files of their own."""

import math

import pytest
from tokenizers import pre_tokenizers

from tests import test_sentencepiece as sentencepiece
from tests import test_tokenizers as files
from tx.files import gguf_tokenizer
from tx.files.errors import CheckpointError
from tx.files.vocabularies import CONTROL
from tx.tokenization import Tokenizer, load_tokenizer


def from_gguf(metadata):
    return Tokenizer(*gguf_tokenizer.from_gguf(metadata))


def bert(cased):
    """Metadata as converters write them: ▁ begins a word, ## is left out, [names] stay."""
    tokens = files.words_files()["vocab.txt"].split("\n")[:-1]
    tokens = [*tokens, "[unused0]"]
    if not cased:
        tokens = [token for token in tokens if token == token.lower() or token[0] == "["]
    spelled = [t if t[0] == "[" and t[-1] == "]" else t[2:] if t[:2] == "##" else "▁" + t for t in tokens]
    return tokens, {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "jina-v2-de", "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.token_type": [CONTROL if n < 5 else 1 for n in range(len(tokens))],
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.mask_token_id": 4,
    }  # fmt: skip


@pytest.mark.parametrize("cased", [True, False])
def test_word_pieces(tmp_path, cased):
    tokens, metadata = bert(cased)
    content = {"vocab.txt": "\n".join(tokens) + "\n"}
    theirs = load_tokenizer(files.write(tmp_path, content, "bert", {"do_lower_case": not cased}))
    ours = from_gguf(metadata)
    assert ours.special == theirs.special == {"unk": 1, "sep": 3, "pad": 0, "cls": 2, "mask": 4}
    for text in [*files.texts(), "[unused0]", "a [SEP] b"]:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert from_gguf({**metadata, "tokenizer.ggml.cls_token_id": 5}).encode("") == [5, 3]


def t5():
    pieces = sentencepiece.unigram()
    return pieces, {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": pieces.texts,
        "tokenizer.ggml.scores": pieces.scores, "tokenizer.ggml.token_type": pieces.kinds,
        "tokenizer.ggml.precompiled_charsmap": list(pieces.charsmap), "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.remove_extra_whitespaces": True,
    }  # fmt: skip


def test_unigram(tmp_path):
    pieces, metadata = t5()
    ours = from_gguf(metadata)
    assert ours.special == {"eos": 1, "unk": 2, "pad": 0}
    for text in sentencepiece.texts():
        if "<tag>" not in text and "(" not in text:
            assert ours.encode(text) == [*sentencepiece.reference(text, pieces, sentencepiece.CHARSMAP), 1], text
    assert ours.encode("a<tag>")[-2:] == [ours.id("<tag>"), 1]
    assert ours.encode("a</s>")[-2:] == [1, 1]
    signed = [byte - 256 if byte > 127 else byte for byte in pieces.charsmap]  # some files have signed bytes
    assert from_gguf({**metadata, "tokenizer.ggml.precompiled_charsmap": signed}).encode("ﬁ") == ours.encode("fi")
    wide = from_gguf({**metadata, "tokenizer.ggml.remove_extra_whitespaces": False})
    assert len(wide.encode("a  a")) > len(ours.encode("a  a")) == len(ours.encode("a a"))
    bare = from_gguf({**metadata, "tokenizer.ggml.add_eos_token": False})
    assert bare.encode("a") == ours.encode("a", add_special=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(scores=None), "missing    tokenizer.ggml.scores   expected a list of float"),
        (dict(scores=[0.0]), "tokenizer.ggml.scores   1 entries for"),
        (dict(token_type=3), "missing    tokenizer.ggml.token_type   expected a list of int"),
        (dict(precompiled_charsmap=[1, 2]), "the charsmap of 2 bytes has no table"),
        (dict(precompiled_charsmap=b"abc"), "missing    tokenizer.ggml.precompiled_charsmap"),
        (dict(nan=True), "score nan"),
        (dict(unknown=True), "0 pieces for what is unknown, expected 1"),
    ],
    ids=str,
)
def test_bad_metadata_is_refused(change, message):
    pieces, metadata = t5()
    if change.pop("nan", False):
        change = {"scores": [math.nan, *pieces.scores[1:]]}
    if change.pop("unknown", False):
        del metadata["tokenizer.ggml.unknown_token_id"], metadata["tokenizer.ggml.token_type"]
    with pytest.raises(CheckpointError, match=message):
        from_gguf({**metadata, **{f"tokenizer.ggml.{key}": value for key, value in change.items()}})


# ── flags ────────────────────────────────────────────────────────────────────────────────────────


def by_bytes(**changes):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "he"]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["h e"], "bos_token_id": 256}
    return {f"tokenizer.ggml.{name}": value for name, value in {**values, **changes}.items() if value is not None}


def of(kind, **changes):
    metadata = {"gpt2": by_bytes, "t5": lambda: t5()[1], "bert": lambda: bert(True)[1]}[kind]()
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


FLAGS = {
    "no flag": (of("gpt2", add_bos_token="yes"), "config     tokenizer.ggml.add_bos_token = 'yes'   expected"),
    "a number": (of("t5", add_eos_token=1), "config     tokenizer.ggml.add_eos_token = 1   expected true"),
    "a space before bytes": (of("gpt2", add_space_prefix=True), "add_space_prefix = True   only False is supp"),
    "tidy bytes": (of("gpt2", remove_extra_whitespaces=True), "remove_extra_whitespaces = True   only False"),
    "no [CLS]": (of("bert", add_bos_token=False), "add_bos_token = False   only True is supported for 'bert'"),
    "no id to add": (by_bytes(bos_token_id=None, add_bos_token=True), "missing    tokenizer.ggml.bos_token_id"),
    "an unknown flag": (of("t5", escape_whitespaces=False), "unknown    tokenizer.ggml.escape_whitespaces"),
    "another id beyond": (of("gpt2", fim_pre_token_id=999), "tokenizer.ggml.fim_pre_token_id = 999   expected 0"),
    "true for an id": (of("gpt2", bos_token_id=True), "tokenizer.ggml.bos_token_id = True   expected 0"),
    "a list for a name": (of("gpt2", model=["gpt2"]), "unknown    tokenizer.ggml.model = "),
    "a list for a cut": (of("gpt2", pre=["gpt-2"]), "unknown    tokenizer.ggml.pre = "),
    "a template of bytes": ({**by_bytes(), "tokenizer.chat_template": 3}, "tokenizer.chat_template = 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_are_none_or_not_followed_are_refused(name):
    metadata, words = FLAGS[name]
    with pytest.raises(CheckpointError) as refused:
        from_gguf(metadata)
    assert words in str(refused.value)


def test_flags_that_are_followed():
    usual = dict(add_space_prefix=False, add_sep_token=False, token_type_count=2, fim_pre_token_id=3)
    assert from_gguf(of("gpt2", add_bos_token=True, **usual)).encode("he") == [256, 257]
    assert from_gguf(of("gpt2", add_bos_token=False, **usual)).encode("he") == [257]
    plain, spaced = (from_gguf(of("t5", add_space_prefix=flag)) for flag in (False, True))
    assert plain.encode("word") != spaced.encode("word") == from_gguf(of("t5")).encode("word")
    loose = from_gguf(of("t5", remove_extra_whitespaces=False))
    assert len(loose.encode("a   b")) > len(spaced.encode("a   b"))
    assert from_gguf(of("t5", add_eos_token=False)).encode("word") == spaced.encode("word")[:-1]
    assert from_gguf(of("bert", add_bos_token=True, add_eos_token=True)).encode("") == [2, 3]
