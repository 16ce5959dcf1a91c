"""The kinds of vocabulary, as tokenizers of the `tokenizers` package (chapter 10).

Three families of tokenizers are in use: byte-pair encoding of bytes (GPT-2), word pieces (BERT), and
SentencePiece's unigram model or byte-pair encoding (T5, LLaMA). `tx.files.tokenizers` reads their files.
"""

import math
import re
import struct
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

# ── byte-pair encoding of bytes ──────────────────────────────────────────────────────────────────

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a text is cut before its bytes are merged, one pattern after the other.
CUTS = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),  # digits one by one
    "llama-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


def byte_level(vocabulary, merges, cut, space=False):
    """Byte-pair encoding of bytes (GPT-2), every byte written as one visible character.

    Args:
        vocabulary: {token: id}. merges: pairs of tokens, the first to merge first.
        cut: how a text is cut, one of `CUTS`.
        space: whether a text gets a space in front, as its other words have one.
    """
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CUTS[cut]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    if space:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # cuts as GPT-2 does
    backend.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


# ── word pieces ──────────────────────────────────────────────────────────────────────────────────


BERT_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def word_pieces(vocabulary, unknown, *, lowercase=True, strip_accents=None, chinese=True):
    """Words in the longest pieces there are (BERT); pieces inside a word begin with ##.

    Args:
        vocabulary: {piece: id}. unknown: what stands for a word that has no pieces.
        strip_accents: None says as `lowercase` does. chinese: every ideograph is a word.
    """
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(True, chinese, strip_accents, lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


# ── SentencePiece ────────────────────────────────────────────────────────────────────────────────

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
LONGEST = 1000  # characters of a piece
MOST_CUTS = 2**22  # characters of all pieces; every way to cut one in two is looked at
MOST_WHOLE = 2**14  # pieces that a user defined: all are looked for at every place of a text
LONGEST_REPLACEMENT = 64  # characters that a charsmap makes of one; Unicode's longest has 18


@dataclass(frozen=True)
class Pieces:
    """What SentencePiece knows of its vocabulary, in its own file or in a GGUF file.

    texts, scores, kinds: of every piece; spaces are written as ▁.
    unigram: choose the pieces with the best sum of scores; else merge neighbours, best score first.
    by_bytes: a character without a piece becomes its bytes, <0x00> to <0xFF>.
    charsmap: a compiled table of replacements, see `check_charsmap`.
    prefix: a text gets a space in front. tidy: others at its ends go, and runs of them become one.
    """

    texts: list
    scores: list
    kinds: list
    unigram: bool
    by_bytes: bool = False
    charsmap: bytes = b""
    prefix: bool = True
    tidy: bool = True

    def problems(self):
        """What is wrong, a sentence each."""
        if not self.texts:
            return ["it has no pieces"]
        found = []
        twice = len(self.texts) - len(set(self.texts))
        if twice:
            found.append(f"{twice} pieces occur twice")
        if self.unigram and self.kinds.count(UNKNOWN) != 1:
            found.append(f"{self.kinds.count(UNKNOWN)} pieces for what is unknown, expected 1")
        if self.unigram and "" in self.texts:
            found.append(f"piece {self.texts.index('')} is empty")
        for number, (text, score, kind) in enumerate(zip(self.texts, self.scores, self.kinds, strict=True)):
            if len(text) > LONGEST or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
                what = f"{len(text)} characters, score {score} and kind {kind}"
                found.append(f"piece {number} has {what}; expected at most {LONGEST}, a number and 1 to 6")
                break
        cuts, whole = sum(map(len, self.texts)), self.kinds.count(USER_DEFINED)
        if cuts > MOST_CUTS or whole > MOST_WHOLE:
            what = f"{cuts} characters and {whole} pieces that a user defined"
            found.append(f"its pieces have {what}; expected at most {MOST_CUTS} and {MOST_WHOLE}")
        return found + (check_charsmap(self.charsmap) if self.charsmap else [])


def sentence_pieces(pieces, first=(), once=False):
    """A tokenizer of SentencePiece's two kinds.

    Args:
        pieces: `Pieces` without `problems`.
        first: what is done to a text before anything else, normalizers of the package.
        once: a space in front of the whole text only, not after special tokens too.
    """
    vocabulary = {text: number for number, text in enumerate(pieces.texts)}
    whole = [text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == USER_DEFINED]
    unknown = pieces.kinds.index(UNKNOWN) if UNKNOWN in pieces.kinds else None
    if pieces.unigram:
        scored = list(zip(pieces.texts, pieces.scores, strict=True))
        model: models.Model = models.Unigram(scored, unknown, pieces.by_bytes)
    else:
        name = None if unknown is None else pieces.texts[unknown]
        model = models.BPE(
            vocabulary, _merges(pieces, vocabulary), unk_token=name, fuse_unk=True,
            byte_fallback=pieces.by_bytes, ignore_merges=bool(whole),
        )  # fmt: skip
    backend = Tokenizer(model)
    steps = [*first, *([normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else [])]
    if pieces.tidy:  # spaces only: other white space is text
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.prefix and not once:
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if pieces.prefix and once:
        cuts.append(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    if whole:  # these are never merged or cut; the longest one counts
        pattern = "|".join(re.escape(text) for text in sorted(whole, key=len, reverse=True))
        cuts.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    ends = [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if pieces.by_bytes else []), decoders.Fuse()]
    backend.decoder = decoders.Sequence(ends + ([decoders.Strip(" ", 1, 0)] if pieces.prefix else []))
    return backend


def _merges(pieces, vocabulary):
    """SentencePiece merges the neighbours whose piece has the best score: pairs in that order.

    Only normal pieces are merged. Of equal scores the lower id comes first.
    """
    normal = {text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == NORMAL}
    merges = []
    for text in normal:
        score, number = pieces.scores[vocabulary[text]], vocabulary[text]
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                merges.append((-score, number, vocabulary[left], vocabulary[right], (left, right)))
    return [pair for *_, pair in sorted(merges)]


def check_charsmap(data):
    """What is wrong with a compiled table of replacements; the package crashes on a damaged one.

    It is a u32 size, a trie of u32 units (Darts-clone's double array) and texts that end with a NUL. A unit
    has flags, a label and an offset: its children lie at (its place XOR offset) XOR label, in a block of
    256 units; if bit 8 is set, the first of these is a leaf, with the place of a text in its lower 31 bits.
    """
    size = struct.unpack("<I", data[:4])[0] if len(data) >= 4 else 0
    if not size or size % 1024 or size > len(data) - 4:
        return [f"the charsmap of {len(data)} bytes has no table"]
    units, texts = np.frombuffer(data, "<u4", size // 4, 4), np.frombuffer(data[4 + size :], np.uint8)
    inner = units >> 31 == 0
    inner[0] = True  # where every search begins, whatever its flags
    children = np.arange(len(units)) ^ ((units >> 10).astype(np.int64) << ((units & 512) >> 6))
    if (children[inner] >= len(units)).any():
        return ["the charsmap is damaged: a unit points beyond the table"]
    leaves = units[children[inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    if (leaves >= len(texts)).any() or (texts[leaves] & 0xC0 == 0x80).any():
        return ["the charsmap is damaged: a leaf points at no text"]
    longest = longest_replacement(data)
    return [f"the charsmap makes {longest} characters of one"] if longest > LONGEST_REPLACEMENT else []


def longest_replacement(data):
    """Characters of the longest text in a compiled table of replacements."""
    (size,) = struct.unpack("<I", data[:4])
    return max(len(text.decode("utf-8", "replace")) for text in data[4 + size :].split(b"\0"))


# ── around a text ────────────────────────────────────────────────────────────────────────────────


def surround(backend, before, after):
    """Put tokens around every text. before, after: their ids."""
    marks = [f"<{n}>" for n in range(len(before) + len(after))]
    if marks:
        backend.post_processor = processors.TemplateProcessing(
            single=[*marks[: len(before)], "$A", *marks[len(before) :]],
            special_tokens=list(zip(marks, [*before, *after], strict=True)),
        )
