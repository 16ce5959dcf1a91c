"""SentencePiece's files: written here field by field, the ids of the algorithm and of the reference."""

import json
import random
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import AlbertTokenizer, GemmaTokenizer, LlamaTokenizer, T5Tokenizer
from transformers.convert_slow_tokenizer import AlbertConverter, SpmConverter

from tx.files.errors import CheckpointError
from tx.files.sentencepiece import read_sentencepiece
from tx.files.vocabularies import BYTE, CONTROL, LONGEST, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Pieces
from tx.files.vocabularies import sentence_pieces as build
from tx.tokenization import Tokenizer, load_tokenizer

SNIPPETS = [
    "Hello", "world", " ", "  ", "    ", "\n", "\r\n", "\t", "naïve", "e\u0301", "漢字", "かな", "🙂", "🙂🏽",
    "1234.5", "x+=1", "don't", "ﬁ", "①", "Ⅷ", "١٢", "ἀρχή", "Привет", "\u00a0", "\u3000", "\u200b", "ß", "İ",
    "``q''", "9,", "...", "def f(x):\n    return x", "(a)", "ÅÖ", "\u2028", "\U0010ffff", "<0x4", "▁",
    "<tag>", "<<tag>>",
]  # fmt: skip
CHARSMAP = {"ﬁ": "fi", "①": "1", "Ⅷ": "VIII", "\u3000": " ", "\u00a0": " ", "\n": " ", "\t": " ", "\u200b": "",
            "e\u0301": "é"}  # fmt: skip


@cache
def texts():
    """A few hundred, of all kinds."""
    chance = random.Random(0)
    mixed = ["".join(chance.choices(SNIPPETS, k=chance.randint(1, 8))) for _ in range(300)]
    return ["", *SNIPPETS, *mixed, *(f" {text} " for text in mixed[:50])]


# ── writing a file ───────────────────────────────────────────────────────────────────────────────


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """A field with a number, a float, or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write(pieces, unescaped=False):
    """The file of `Pieces`, with fields in it that nobody reads."""
    rows = zip(pieces.texts, pieces.scores, pieces.kinds, strict=True)
    kind = lambda k: b"" if k == NORMAL else field(3, k)  # as files leave out what is the default
    out = [field(1, field(1, text.encode()) + field(2, score) + kind(k)) for text, score, k in rows]
    trainer = field(3, 1 if pieces.unigram else 2) + field(4, len(pieces.texts)) + field(35, int(pieces.by_bytes))
    trainer += field(40, pieces.kinds.index(UNKNOWN)) + field(10, 0.9995) + varint(44 << 3 | 1) + bytes(8)
    normalizer = field(1, b"nmt_nfkc") + field(2, pieces.charsmap) + field(3, int(pieces.prefix))
    normalizer += field(4, int(pieces.tidy)) + field(5, int(not unescaped))
    return b"".join(out) + field(2, trainer) + field(3, normalizer) + field(4, field(1, b"self test"))


def charsmap(table=CHARSMAP):
    """A table of replacements as Darts-clone compiles it, every node in a block of its own."""
    units, values, texts = [0] * 256, {}, b"\0"
    for key, value in table.items():
        values[key.encode()] = len(texts)
        texts += value.encode() + b"\0"

    def place(at, prefix):
        below = {key[len(prefix)] for key in values if key.startswith(prefix) and len(key) > len(prefix)}
        if below or prefix in values:
            base = len(units)
            units.extend([0] * 256)
            units[at] |= (at ^ base) << 10 | (prefix in values) << 8
            if prefix in values:
                units[base] = 1 << 31 | values[prefix]
            for label in below:
                units[base ^ label] = label
                place(base ^ label, prefix + bytes([label]))

    place(0, b"")
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


@cache
def corpus():
    code = Path(json.__file__).read_text(encoding="utf-8")
    return [code, *20 * [" ".join(SNIPPETS) + " (a) é fi 1 VIII 9, 19,"]]


@cache
def unigram(**changes):
    """A trained unigram vocabulary as T5's: control pieces, one that a user defined, and an unused one."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
        show_progress=False))  # fmt: skip
    rows = json.loads(backend.to_str())["model"]["vocab"][3:]
    rows = [(t, s, NORMAL) for t, s in rows if t not in ("<tag>", "(")]
    rows = [("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), ("<tag>", 0.0, USER_DEFINED),
            ("(", 0.0, USER_DEFINED), *rows]  # fmt: skip
    names, scores, kinds = map(list, zip(*rows, strict=True))
    scores = [struct.unpack("<f", struct.pack("<f", score))[0] for score in scores]
    return replace(Pieces(names, scores, kinds, True, charsmap=charsmap()), **changes)


@cache
def merging(user=(), **changes):
    """A trained byte-pair vocabulary as LLaMA's: bytes for what is unknown, no table, no tidying."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=350, show_progress=False))
    learnt = json.loads(backend.to_str())["model"]
    merged = ["".join(pair) for pair in learnt["merges"]]
    characters = [text for text in learnt["vocab"] if text not in merged]
    rows = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)] + [(x, 0.0, USER_DEFINED) for x in user]
    learnt = [x for x in dict.fromkeys(merged + characters) if x not in user and not set(x) & set("漢字")]
    rows += [(text, -float(n), NORMAL) for n, text in enumerate(learnt)]
    names, scores, kinds = map(list, zip(*rows, strict=True))
    return replace(Pieces(names, scores, kinds, False, by_bytes=True, tidy=False), **changes)


def folder(path, pieces, name="tokenizer.model", **settings):
    (path / name).write_bytes(write(pieces))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(path)


# ── SentencePiece's algorithms, slowly ───────────────────────────────────────────────────────────


def reference(text, pieces, table=()):
    """Ids as SentencePiece defines them, in plain Python."""
    for key, value in sorted(dict(table).items(), key=lambda item: -len(item[0])):
        text = text.replace(key, value)
    if pieces.tidy:
        text = " ".join(part for part in text.split(" ") if part)
    text = (" " * (pieces.prefix and text != "") + text).replace(" ", "▁")
    rows = list(zip(pieces.texts, pieces.scores, pieces.kinds, strict=True))
    normal = {t: s for t, s, kind in rows if kind == NORMAL}
    user = [t for t, _, kind in rows if kind == USER_DEFINED]
    symbols, at = [], 0  # characters, and what a user defined
    while at < len(text):
        symbol = max((u for u in user if text.startswith(u, at)), key=len, default=text[at])
        symbols.append(symbol)
        at += len(symbol)
    out = (best_path if pieces.unigram else merge)(symbols, normal, user)
    number, unknown = {t: n for n, (t, *_) in enumerate(rows)}, pieces.kinds.index(UNKNOWN)
    ids = []
    for piece in out:
        if piece in normal or piece in user:
            ids.append(number[piece])
        elif pieces.by_bytes:
            ids += [number[f"<0x{byte:02X}>"] for byte in piece.encode()]
        elif ids[-1:] != [unknown]:
            ids.append(unknown)
    return ids


def best_path(symbols, normal, user):
    """Viterbi: the pieces with the best sum of scores; an unknown character costs 10 more than the worst."""
    unknown = min(normal.values()) - 10
    best = [(0.0, [])] + [(-1e30, [])] * len(symbols)
    for end in range(1, len(symbols) + 1):
        for start in range(max(0, end - 20), end):
            part = symbols[start:end]
            piece = "".join(part)
            if len(part) > 1 and any(x in user for x in part):
                continue
            score = normal.get(piece, unknown if len(part) == 1 else None)
            score = 0.0 if len(part) == 1 and piece in user else score
            if score is not None and best[start][0] + score > best[end][0]:
                best[end] = (best[start][0] + score, best[start][1] + [piece])
    return best[-1][1]


def merge(symbols, normal, user):
    """The two neighbours whose piece has the best score become one, as long as there are any."""
    symbols = list(symbols)
    while True:
        pairs = [(normal[a + b], -at) for at, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))
                 if a + b in normal and a not in user and b not in user]  # fmt: skip
        if not pairs:
            return symbols
        at = -max(pairs)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


# ── the ids ──────────────────────────────────────────────────────────────────────────────────────

USER = ("\n", "▁▁", "▁▁▁", "<tag>")
VOCABULARIES = {
    "as T5": (unigram, {}, CHARSMAP),
    "unigram, no table, not tidied": (unigram, dict(charsmap=b"", tidy=False), {}),
    "unigram, no space in front": (unigram, dict(prefix=False), CHARSMAP),
    "as LLaMA": (merging, {}, {}),
    "BPE, tidied": (merging, dict(tidy=True), {}),
    "BPE, unknown": (merging, dict(by_bytes=False), {}),
    "as Gemma": (merging, dict(user=USER, prefix=False), {}),
    "BPE, tokens of a user": (merging, dict(user=("<tag>", "(")), {}),
}


def in_the_reference(pieces):
    """The tokenizer that the reference builds of a file, which it reads with packages we do without."""
    rows = zip(pieces.texts, pieces.scores, pieces.kinds, strict=True)
    proto = SimpleNamespace(
        trainer_spec=SimpleNamespace(
            byte_fallback=pieces.by_bytes, unk_piece="<unk>", unk_id=pieces.kinds.index(UNKNOWN)),
        normalizer_spec=SimpleNamespace(
            precompiled_charsmap=pieces.charsmap, remove_extra_whitespaces=pieces.tidy,
            add_dummy_prefix=pieces.prefix, escape_whitespaces=True),
        pieces=[SimpleNamespace(piece=t, score=s, type=k) for t, s, k in rows],
    )  # fmt: skip
    vocabulary = {text: number for number, text in enumerate(pieces.texts)}
    listed = list(zip(pieces.texts, pieces.scores, strict=True))
    return SpmConverter.build_tokenizer_from_spm_proto(proto, listed if pieces.unigram else vocabulary)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_those_of_the_algorithm_and_of_the_reference(tmp_path, name):
    make, changes, table = VOCABULARIES[name]
    pieces = make(**changes)
    kind = "T5Tokenizer" if pieces.unigram else "LlamaTokenizer"
    ours = folder(tmp_path, pieces, tokenizer_class=kind, extra_ids=0)
    assert read_sentencepiece(tmp_path / "tokenizer.model") == pieces and len(ours) == len(pieces.texts)
    theirs = in_the_reference(pieces)
    for text in texts():
        ids = ours.encode(text, add_special=False)
        assert ids == reference(text, pieces, table), text
        assert ids == theirs.encode(text).ids, text
        if not pieces.tidy and pieces.by_bytes and "▁" not in text:
            assert ours.decode(ids) == text, "nothing is lost"


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab ▁<tag>(é漢\n ") | st.characters(exclude_categories=["Cs"]), max_size=25))
def test_any_text_gets_the_ids_of_the_algorithm(text):
    for pieces in (unigram(charsmap=b""), merging(user=USER, prefix=False), merging()):
        assert build(pieces).encode(text).ids == reference(text, pieces)


def test_only_normal_pieces_are_merged():
    pieces = Pieces(["<unk>", "a", "b", "ab", "c", "bc"], [0.0, -1.0, -2.0, 0.0, -3.0, -4.0],
                    [UNKNOWN, NORMAL, NORMAL, CONTROL, NORMAL, NORMAL], False, prefix=False)  # fmt: skip
    assert build(pieces).encode("ab").ids == [1, 2] and build(pieces).encode("abc").ids == [1, 5]


def pairs(pieces):
    """The merges of the reference."""
    return [tuple(pair) for pair in json.loads(in_the_reference(pieces).to_str())["model"]["merges"]]


NAMES = ["", "</s>", "<s> a", "a </s> b</s>", " </s>  <s> ", "<unk>", "漢</s>", "x <extra_id_7> y"]


def test_t5_ends_a_text_and_has_gaps_after_its_pieces(tmp_path):
    table = charsmap({**CHARSMAP, "\r": " ", "\u2028": " ", "\x0b": " ", "\x0c": " "})
    pieces = unigram(charsmap=table)
    pieces = replace(pieces, kinds=[NORMAL if kind == USER_DEFINED else kind for kind in pieces.kinds])
    ours = folder(tmp_path, pieces, "spiece.model", tokenizer_class="T5TokenizerFast")
    listed = list(zip(pieces.texts, pieces.scores, strict=True))
    listed += [(f"<extra_id_{n}>", 0.0) for n in reversed(range(100))]
    theirs = T5Tokenizer(vocab=listed, _spm_precompiled_charsmap=table)
    assert len(ours) == len(theirs) == len(pieces.texts) + 100
    assert ours.special == {"eos": 1, "unk": 2, "pad": 0} and ours.id("<extra_id_0>") == len(ours) - 1
    for text in [*texts(), *NAMES]:
        if "▁" not in text:  # which its class takes for the space in front
            ids = theirs(text)["input_ids"]
            assert ours.encode(text) == ids, text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True).removeprefix(" "), text
    ours = folder(tmp_path, pieces, "spiece.model", tokenizer_class="MT5Tokenizer", extra_ids=3)
    assert len(ours) == len(pieces.texts) + 3 and ours.encode("")[-1] == 1


@pytest.mark.parametrize("legacy", [True, False])
def test_llama_begins_a_text(tmp_path, legacy):
    pieces = merging()
    ours = folder(tmp_path, pieces, tokenizer_class="LlamaTokenizer", legacy=legacy, add_bos_token=True)
    vocabulary = {text: number for number, text in enumerate(pieces.texts)}
    theirs = LlamaTokenizer(vocab=vocabulary, merges=pairs(pieces), legacy=legacy)
    assert ours.special == {"bos": 1, "eos": 2, "unk": 0}
    for text in [*texts(), *NAMES]:
        if legacy and text[:1] in (" ", "▁") or "> " in text or ">▁" in text:
            continue  # there the reference leaves out the space in front, and SentencePiece does not
        assert ours.encode(text) == [1, *theirs(text, add_special_tokens=False)["input_ids"]], text
    both = folder(tmp_path, pieces, tokenizer_class="LlamaTokenizer", add_bos_token=False, add_eos_token=True)
    assert both.encode("a") == [*ours.encode("a", add_special=False), 2]
    assert ours.encode("a</s>b")[2:] == [2, *ours.encode("b" if legacy else "</s>b")[1 if legacy else 2 :]]


def test_gemma_and_what_a_model_got_later(tmp_path):
    pieces = merging(user=USER, prefix=False)
    pieces = replace(pieces, texts=["<unk>", "<bos>", "<eos>", *pieces.texts[3:]])
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    n = len(pieces.texts)
    later = {str(n): {"content": "<turn>", "special": True}, str(n + 1): {"content": "<pad>", "special": True}}
    ours = folder(tmp_path, pieces, added_tokens_decoder=later)
    vocabulary = {text: number for number, text in enumerate(pieces.texts)}
    theirs = GemmaTokenizer(vocab=vocabulary, merges=pairs(pieces))
    assert ours.special == {"bos": 1, "eos": 2, "unk": 0, "pad": n + 1} and ours.id("<turn>") == n
    for text in texts():
        if not any(user in text for user in ("\n", "<tag>", "  ", "▁")):  # of these its class knows nothing
            assert ours.encode(text) == [1, *theirs(text, add_special_tokens=False)["input_ids"]], text
    assert ours.encode("a<turn>\n")[2:] == [n, ours.id("\n")]
    later[str(n + 7)] = later.pop(str(n + 1))
    message = f"added tokens: '<pad>' at {n + 7}, but the vocabulary has it at {n + 1}"
    with pytest.raises(CheckpointError, match=message):
        folder(tmp_path, pieces, added_tokens_decoder=later)


@pytest.mark.parametrize("switches", [{}, {"do_lower_case": False}, {"keep_accents": True}], ids=str)
def test_albert(tmp_path, switches):
    pieces = unigram()
    names = ["<pad>", "<unk>", "[CLS]", *pieces.texts[3:], "[SEP]", "[MASK]", "9,"]
    n = len(names)
    kinds = [CONTROL, UNKNOWN, CONTROL, *(n - 6) * [NORMAL], CONTROL, CONTROL, NORMAL]
    pieces = Pieces(names, [*pieces.scores, 0.0, 0.0, -1.0], kinds, True, charsmap=charsmap())
    ours = folder(tmp_path, pieces, "spiece.model", tokenizer_class="AlbertTokenizer", **switches)
    proto = SimpleNamespace(pieces=[SimpleNamespace(piece=t, score=s) for t, s in zip(
        pieces.texts, pieces.scores, strict=True)])  # fmt: skip
    listed = AlbertConverter.vocab(None, proto)
    theirs = AlbertTokenizer(vocab=listed, _spm_precompiled_charsmap=charsmap(), **switches)
    assert ours.special["cls"] == 2 and ours.special["sep"] == n - 3 and ours.special["mask"] == n - 2
    assert n - 1 not in ours.encode("19, 9,"), "a comma after a digit stands alone"
    for text in texts():
        if not set(text) & set("\r\u2028▁\U0010ffff"):  # white space and unknown characters: see above
            wanted = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.encode(text) == [2, *wanted, n - 3], text


def test_deberta_adds_its_mask_after_the_pieces(tmp_path):
    pieces = unigram()
    pieces = replace(pieces, texts=["[PAD]", "[CLS]", "[UNK]", *pieces.texts[3:], "[SEP]"],
                     scores=[*pieces.scores, 0.0], kinds=[*pieces.kinds, CONTROL])  # fmt: skip
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    ours = folder(tmp_path, pieces, "spm.model", do_lower_case=False, vocab_type="spm")
    n = len(pieces.texts)
    assert ours.special == {"bos": 1, "eos": n - 1, "unk": 2, "sep": n - 1, "pad": 0, "cls": 1, "mask": n}
    for text in texts():
        assert ours.encode(text) == [1, *reference(text, pieces, CHARSMAP), n - 1], text
    lower = folder(tmp_path, pieces, "spm.model", do_lower_case=True)
    assert lower.encode("HELLO") == ours.encode("hello")
    with pytest.raises(CheckpointError, match="split_by_punct"):
        folder(tmp_path, pieces, "spm.model", split_by_punct=True)


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 349) | st.integers(0, 5), max_size=40), st.integers(0, 40), st.booleans())
def test_streams_of_any_pieces_join_to_what_decode_says(ids, n, fallback):
    ours = streaming()[fallback]
    ids = [id % len(ours) for id in ids if not fallback or not 3 <= id < 259]  # bytes follow below
    stream = ours.stream(begins=True)
    assert "".join(map(stream.push, ids)) + stream.finish() == ours.decode(ids)
    first, rest = ours.encode("word") + ids[:n], ids[n:]
    stream = ours.stream()  # goes on with any text
    assert ours.decode(first) + "".join(map(stream.push, rest)) + stream.finish() == ours.decode(first + rest)


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_characters="\ufffd▁", exclude_categories=["Cs"]), max_size=30),
       st.lists(st.integers(0, 60), max_size=4))  # fmt: skip
def test_streams_of_bytes_never_split_a_character(text, places):
    ours = streaming()[True]
    ids = ours.encode(text)
    for place in places:
        ids.insert(place, 2)  # a special token anywhere, even between the bytes of a character
    stream = ours.stream(begins=True)
    parts = [stream.push(id) for id in ids]
    assert "".join(parts) == text == ours.decode(ids) and stream.finish() == ""
    assert not any("\ufffd" in part for part in parts)


@cache
def streaming():
    """A unigram tokenizer and one with byte fallback."""
    made = []
    for pieces in (unigram(), merging()):
        backend = build(pieces)
        control = [t for t, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == CONTROL]
        backend.add_special_tokens([AddedToken(name, normalized=False) for name in control])
        made.append(Tokenizer(backend))
    return made


# ── files that are no such files ─────────────────────────────────────────────────────────────────

SMALL = Pieces(["<unk>", "</s>", "▁", "a", "▁a", "fi"], [0.0, 0.0, -1.0, -2.0, -2.5, -3.0],
               [UNKNOWN, CONTROL, NORMAL, NORMAL, NORMAL, UNUSED], True,
               charsmap=charsmap({"ﬁ": "fi"}))  # fmt: skip
def changed(**changes):
    return write(replace(SMALL, **changes))


def table(unit):
    return struct.pack("<I256I", 1024, *256 * [unit])


NAN = float("nan")
HOSTILE = {
    "0 bytes": (b"", "it has no pieces"),
    "a pickle": (b"\x80\x04\x95\x0a", "it has no pieces"),
    "text": (b"IQ== 0\nIg== 1\n", "it has no pieces"),
    "a length of 2^62": (b"\x0a" + varint(2**62), "4611686018427387904 bytes claimed, 0 left"),
    "a number without end": (b"\x0a" + b"\xff" * 40, "a number without an end"),
    "a group": (b"\x0b", "type 3 of a field, known are 0, 1, 2 and 5"),
    "a number for a piece": (field(1, 7), "a field is of another type"),
    "a text for a score": (field(1, field(1, b"a") + field(2, b"abc")), "requires a buffer of 4 bytes"),
    "a number for a score": (field(1, field(1, b"a") + field(2, 3)), "a field is of another type"),
    "a score of 8 bytes": (field(1, field(1, b"a") + b"\x11" + bytes(8)), "requires a buffer of 4 bytes"),
    "a text for a kind": (field(1, field(1, b"a") + field(3, b"abc")), "a field is of another type"),
    "not UTF-8": (field(1, field(1, b"\xff")), "utf-8"),
    "words": (write(SMALL) + field(2, field(3, 3)), "type is 'word', known are 'unigram' and 'BPE'"),
    "model type 9": (write(SMALL) + field(2, field(3, 9)), "model type is 9"),
    "model type of bytes": (write(SMALL) + field(2, field(3, b"abc")), "model type is"),
    "spaces behind": (write(SMALL) + field(2, field(24, 1)), "spaces as ▁ in front"),
    "spaces as they are": (write(SMALL, unescaped=True), "spaces as ▁ in front"),
    "twice": (changed(texts=["<unk>", "</s>", "▁", "a", "▁a", "a"]), "1 pieces occur twice"),
    "empty": (changed(texts=["<unk>", "</s>", "", "a", "▁a", "b"]), "piece 2 is empty"),
    "no number": (changed(scores=[0.0, 0.0, NAN, 0.0, 0.0, 0.0]), "piece 2 has .* score nan"),
    "kind 7": (changed(kinds=[2, 3, 7, 1, 1, 1]), "piece 2 has .* kind 7"),
    "two unknown": (changed(kinds=[2, 2, 1, 1, 1, 1]), "2 pieces for what is unknown, expected 1"),
    "long": (changed(texts=["<unk>", "</s>", "▁", "a" * (LONGEST + 1), "b", "c"]), "1001 characters"),
    "no table": (changed(charsmap=b"\0\0\0\0ab"), "charsmap of 6 bytes has no table"),
    "a table of 2^32": (changed(charsmap=b"\xff\xff\xff\xff" + bytes(2048)), "has no table"),
    "a table with no end": (changed(charsmap=table(1 << 30) + b"a\0"), "beyond the table"),
    "a table of nothing": (changed(charsmap=table(256)), "points at no text"),
    "a table of parts": (changed(charsmap=table(256) + "é".encode()[1:]), "points at no text"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path, name):
    data, message = HOSTILE[name]
    (tmp_path / "spiece.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    with pytest.raises(CheckpointError, match=rf"has no tokenizer[^$]*damaged    spiece\.model.*({message})"):
        load_tokenizer(tmp_path)


def test_no_damage_gets_further_than_an_error(tmp_path):
    """Every truncation, and a few hundred files with some bytes changed: an error, or a tokenizer that works."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    data, chance = write(SMALL), random.Random(0)
    head = data.index(SMALL.charsmap)
    damaged = [data[:n] for n in [*range(head + 40), *range(head + 40, len(data), 97)]]
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            near = chance.choice([head, len(data)])
            changed[chance.randrange(near)] = chance.randrange(256)
        damaged.append(bytes(changed))
    refused = 0
    for file in damaged:
        (tmp_path / "spiece.model").write_bytes(file)
        try:
            ours = load_tokenizer(tmp_path)
        except CheckpointError:
            refused += 1
        else:
            ours.decode(ours.encode("a ﬁ\ufb02 漢 aa"))
    assert len(damaged) / 3 < refused < len(damaged), refused


def test_llama_puts_no_space_in_front_where_its_settings_say_so(tmp_path):
    pieces = merging()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    usual = folder(tmp_path, pieces, tokenizer_class="LlamaTokenizer", add_bos_token=False)
    plain = folder(tmp_path, pieces, tokenizer_class="LlamaTokenizer", add_bos_token=False, add_prefix_space=False)
    for text in ("the word", " the", "a  b", ""):
        assert usual.encode(text) == reference(text, pieces)
        assert plain.encode(text) == reference(text, replace(pieces, prefix=False)), text
        assert plain.decode(plain.encode(text)) == text
    gemma = dict(tokenizer_class="GemmaTokenizer", add_bos_token=False)
    with pytest.raises(CheckpointError, match="switch     add_prefix_space = False .* only True is supported"):
        folder(tmp_path, pieces, **gemma, add_prefix_space=False)


def test_a_charsmap_whose_texts_are_long_or_whose_first_unit_is_wild_is_refused():
    assert not changed_problems(charsmap({"x": 64 * "a"}))
    assert changed_problems(charsmap({"x": 65 * "a"})) == ["the charsmap makes 65 characters of one"]
    wild = struct.pack("<I", 1024) + b"\xff\xff\xff\xff" + bytes(1020) + b"a"
    assert changed_problems(wild) == ["the charsmap is damaged: a unit points beyond the table"]


def changed_problems(data):
    return replace(SMALL, charsmap=data).problems()
