"""Byte-pair encoding, trained and used: a vocabulary from nothing but a text (chapter 7).

Training starts from the 256 bytes and merges, again and again, the pair of neighbours that is most
frequent in the text, never across words (Sennrich et al. 2016; on bytes: GPT-2, Radford et al. 2019).
Encoding repeats the merges in the order in which they were learned. Every text can be encoded, and every
sequence of bytes comes back as it was.
"""

import re
from collections import Counter, defaultdict
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

# GPT-2's cut into words, for Python's `re`: letters, digits or signs with the space before them.
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
# Between pairs that are equally frequent the lower one wins, bytes that can be seen before the others: the
# order of GPT-2's vocabulary, so that the `tokenizers` package learns the same merges.
_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_ORDER = {byte: place for place, byte in enumerate(_SEEN + sorted(set(range(256)) - set(_SEEN)))}


def train(text, vocab_size):
    """The merges of a vocabulary of so many tokens: a list of pairs of ids, token 256 + i from pair i.

    Fewer where the text has no more pairs to merge.
    """
    found = Counter(map(_as_bytes, WORDS.findall(_as_text(text))))
    words, times = [list(word) for word in found], list(found.values())
    count: Counter[tuple[int, int]] = Counter()
    where = defaultdict(set)
    for number, (word, n) in enumerate(zip(words, times, strict=True)):
        for pair in pairwise(word):
            count[pair] += n
            where[pair].add(number)
    queue = [_entry(pair, n) for pair, n in count.items()]
    heapify(queue)
    merges: list[tuple[int, int]] = []
    while queue and len(merges) < vocab_size - 256:
        n, _, pair = heappop(queue)
        if -n != count[pair]:  # it has become rarer since
            if count[pair]:
                heappush(queue, _entry(pair, count[pair]))
            continue
        new = 256 + len(merges)
        merges.append(pair)
        changed = set()
        for number in where.pop(pair):
            word, n = words[number], times[number]
            words[number] = merged = _merge(word, pair, new)
            for old in pairwise(word):
                count[old] -= n
            for now in pairwise(merged):
                count[now] += n
                if new in now:
                    where[now].add(number)
                    changed.add(now)
        for now in changed:
            heappush(queue, _entry(now, count[now]))
    return merges


def _entry(pair, n):
    """In a queue: the most frequent first, then the lowest."""
    return -n, tuple(_ORDER.get(id, id) for id in pair), pair


class BPE:
    """Text to ids and back with the merges that `train` found.

    Attributes:
        tokens: the bytes of every token.
    """

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: number for number, pair in enumerate(self.merges)}
        self.tokens = [bytes([byte]) for byte in range(256)]
        for a, b in self.merges:
            self.tokens.append(self.tokens[a] + self.tokens[b])
        self._word = lru_cache(maxsize=2**16)(self._merge_word)

    def __len__(self):
        return len(self.tokens)

    def encode(self, text):
        """Text, or bytes of any kind, to a list of ids."""
        return [id for word in WORDS.findall(_as_text(text)) for id in self._word(_as_bytes(word))]

    def decode_bytes(self, ids):
        """Ids to bytes."""
        return b"".join(self.tokens[id] for id in ids)

    def decode(self, ids):
        """Ids to text; bytes that are none become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def _merge_word(self, word):
        word = list(word)
        while len(word) > 1:
            pair = min(pairwise(word), key=lambda pair: self.rank.get(pair, len(self.rank)))
            if pair not in self.rank:
                break
            word = _merge(word, pair, 256 + self.rank[pair])
        return word


def _merge(word, pair, new):
    """Replace the pair by one id, from left to right."""
    out, at = [], 0
    while at < len(word):
        found = tuple(word[at : at + 2]) == pair
        out.append(new if found else word[at])
        at += 2 if found else 1
    return out


def _as_text(text):
    """Text; bytes that are none are carried along in Python's reserved characters."""
    return text.decode(errors="surrogateescape") if isinstance(text, bytes) else text


def _as_bytes(word):
    return word.encode(errors="surrogateescape")
