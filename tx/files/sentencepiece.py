"""SentencePiece's own file: `tokenizer.model`, `spiece.model` or `spm.model` (chapter 10).

It is a protobuf message: fields one after the other, each a number `field << 3 | type` and a value. A
number is a varint, seven bits a byte and the last byte below 128. Types: 0 a varint, 1 eight bytes, 2 a
length and so many bytes (text, or a message inside), 5 four bytes. Of SentencePiece's messages
(`sentencepiece_model.proto`) these fields count:

    model       1 a piece, once each   2 trainer   3 normalizer
    piece       1 text   2 score, a float   3 kind, see `tx.files.vocabularies`
    trainer     3 unigram (1) or BPE (2)   24 spaces stand at the end of words   35 unknown characters as bytes
    normalizer  2 charsmap   3 add a space in front   4 remove extra spaces   5 write spaces as ▁

Every length is checked against what is left of the file.
"""

import struct

from .errors import CheckpointError
from .vocabularies import NORMAL, Pieces

MOST_BYTES = 2**25  # of a file; the largest have five million
MODELS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}


def read_sentencepiece(path):
    """The `Pieces` of a file.

    Raises:
        CheckpointError: it is no such file, is truncated, or needs what is not supported.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _Damaged(f"it has {path.stat().st_size} bytes, expected {MOST_BYTES} at most")
        return _model(memoryview(path.read_bytes()))
    except (_Damaged, struct.error, UnicodeDecodeError, OSError) as error:
        problem = f"damaged    {path.name} as a SentencePiece model: {error}"
        raise CheckpointError(f"{path.parent} has no tokenizer that can be read", [problem]) from error


def _model(data):
    texts, scores, kinds = [], [], []
    trainer: dict = {}
    normalizer: dict = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(value))
            texts.append(bytes(_expect(piece.get(1, b""), memoryview, bytes)).decode("utf-8"))
            scores.append(struct.unpack("<f", _expect(piece.get(2, bytes(4)), memoryview, bytes))[0])
            kinds.append(_expect(piece.get(3, NORMAL), int))
        elif field in (2, 3):
            (trainer if field == 2 else normalizer).update(_fields(value))
    kind = MODELS.get(trainer.get(3, 1), trainer.get(3))
    if kind not in ("unigram", "BPE"):
        raise _Damaged(f"its model type is {kind!r}, known are 'unigram' and 'BPE'")
    if trainer.get(24) or not normalizer.get(5, 1):
        raise _Damaged("it does not write spaces as ▁ in front of words, which is not supported")
    return Pieces(
        texts, scores, kinds, unigram=kind == "unigram", by_bytes=bool(trainer.get(35)),
        charsmap=bytes(_expect(normalizer.get(2, b""), memoryview, bytes)),
        prefix=bool(normalizer.get(3, 1)), tidy=bool(normalizer.get(4, 1)),
    )  # fmt: skip


def _fields(data):
    """(number, value) of every field of a message; a value is a number, or a view of its bytes."""
    at, data = 0, _expect(data, memoryview)
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if key & 7 == 2:
                size, at = _varint(data, at)
            if size is None:
                raise _Damaged(f"type {key & 7} of a field, known are 0, 1, 2 and 5")
            if size > len(data) - at:
                raise _Damaged(f"{size} bytes claimed, {len(data) - at} left: is the file truncated?")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _varint(data, at):
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * n
        if byte < 128:
            return value, at + n + 1
    raise _Damaged("a number without an end: is the file truncated?")


def _expect(value, *types):
    if not isinstance(value, types):
        raise _Damaged("a field is of another type than in SentencePiece's files")
    return value


class _Damaged(Exception):
    """What is wrong."""
