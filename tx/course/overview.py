"""The whole transformer in one drawing, with the part lit where a chapter is.

Tokens are rows, as a first axis always is, and the model runs from left to right. The stream of every token
passes straight through all blocks: a part reads it where the dots are, and adds to it at every ⊕.
"""

import math
from contextlib import nullcontext

from tx.course.drawing import Box, Drawing

# Chances that SmolLM2-135M-Instruct gives after "The animal didn't cross": tests/test_drawing.py asks it again.
NEXT = {"the": 0.66, "a": 0.05, "any": 0.02, "over": 0.02}

_EVERY = ["tokens", "embeddings", "positions", "block", "stream", "attention", "heads", "feed-forward"]
PARTS = {
    "decoder": [*_EVERY, "mask", "logits", "next token"],
    "encoder": [*_EVERY, "outputs"],
    "encoder-decoder": [*_EVERY, "outputs", "mask", "cross-attention", "logits", "next token"],
}
_BLOCKS = "Tokens become vectors, one row each, and positions are added. The rows run through N blocks. "
_LAST = "The last row gives the logits, and these give the next token."
_SAID = {
    "decoder": f"A decoder. {_BLOCKS}In each block, attention that only looks back and feed-forward read from "
    f"the residual stream and add to it. {_LAST}",
    "encoder": f"An encoder. {_BLOCKS}In each block, attention that looks both ways and feed-forward read from "
    "the residual stream and add to it. One vector a token comes out.",
    "encoder-decoder": f"An encoder above a decoder. {_BLOCKS}The encoder turns the source into one vector a "
    "token. The decoder's blocks attend to what is written, then by cross-attention to the encoder's vectors, and "
    f"feed-forward follows. {_LAST}",
}
_PITCH, _FRAME, _WIDE = 26, 118, 230  # from row to row; where the frame of the blocks begins, and its width


def whole(lit=None, family="decoder"):
    """Tokens in, embeddings and positions, N blocks on the residual stream, logits, the next token.

    Args:
        lit: the part where we are, one of `PARTS[family]`; None lights nothing.
        family: "decoder", "encoder" or "encoder-decoder".

    Returns:
        Drawing

    Raises:
        ValueError: there is no such family, or no such part in it.
    """
    if family not in PARTS:
        raise ValueError(f"family is {family!r}: expected one of {', '.join(PARTS)}")
    if lit is not None and lit not in PARTS[family]:
        raise ValueError(f"lit is {lit!r}: the parts of this drawing are {', '.join(PARTS[family])}")
    d = Drawing(_SAID[family] + (f" You are here: {lit}." if lit else ""))
    if family == "encoder-decoder":
        _Strip(d, 0, ["Sie", "rennen"], lit, *_EVERY, "outputs").draw("attention", "feed-forward")
        decoder = _Strip(d, 240, ["[start]", "They"], lit, "mask", "cross-attention", "logits", "next token")
        decoder.draw("attention", "cross-attention", "feed-forward", word="run")
        x, y = decoder.entry
        with decoder.look("cross-attention"):
            d.arrow((392, 182), (392, 214), (x, 214), (x, y))
            d.label("keys and values", (384, 204), anchor="end", soft=True)
    elif family == "encoder":
        _Strip(d, 0, ["The", "animal", "was", "tired"], lit, *PARTS[family]).draw("attention", "feed-forward")
    else:
        decoder = _Strip(d, 0, ["The", "animal", "didn't", "cross"], lit, *PARTS[family])
        decoder.draw("attention", "feed-forward", word="the")
    return d


class _Strip:
    """One stack of blocks, from its tokens to what it gives; it points at the lit part if that is among `says`."""

    def __init__(self, d, top, tokens, lit, *says):
        self.d, self.top, self.tokens, self.lit = d, top, tokens, lit
        self.says = lit if lit in says else None
        self.rows = [top + 116 + _PITCH * i for i in range(len(tokens))]
        self.under = self.rows[-1] + 27
        self.entry = (0.0, 0.0)  # where cross-attention takes in what the encoder gives

    def look(self, *names):
        """A group for a part: lit, standing back, or as it is where nothing is lit."""
        return nullcontext() if self.lit is None else self.d.group("lit" if self.lit in names else "dim")

    def draw(self, *parts, word=None):
        d, rows = self.d, self.rows
        with self.look("tokens"):
            for token, y in zip(self.tokens, rows, strict=True):
                d.box(token, (0, y - 11), (58, 22))
            d.label("tokens", (29, rows[0] - 24))
        with self.look("embeddings"):
            for y in rows:
                d.grid([None] * 3, at=(64, y - 7), size=(9, 14), gap=(0, 0))
            d.label("embeddings", (76, self.under + 19))
        with self.look("positions"):
            for i, y in enumerate(rows):
                d.label(f"+{i}", (103, y))
            d.label("positions", (114, self.under), anchor="end")
        self.point("tokens", (32, rows[0] - 34))
        self.point("embeddings", (77, rows[0] - 14))
        self.point("positions", (84, rows[0] - 14))
        self.blocks(parts, causal=word is not None)
        if word is None:
            with self.look("outputs"):
                for y in rows:
                    d.grid([None] * 3, "out", at=(370, y - 8), size=(12, 16), gap=(0, 0))
                d.label("outputs", (392, self.under))
            self.point("outputs", (394, rows[0] - 14))
            return
        end = rows[-1]
        with self.look("logits"):
            d.arrow((_FRAME + _WIDE + 10, end), (366, end), tip=False)
            for i, chance in enumerate(NEXT.values()):
                high = 4 + 6 * math.log(chance / 0.02)
                d.box("", (368 + 7 * i, end + 10 - high), (6, high), corner=1)
            d.label("logits", (384, self.under))
        with self.look("next token"):
            d.arrow((398, end), (408, end))
            d.box(word, (410, end - 11), (36, 22), "out")
            d.label("next token", (408, self.under + 19))
        self.point("logits", (388, end - 32))
        self.point("next token", (414, end - 32))

    def blocks(self, parts, causal):
        d, rows = self.d, self.rows
        frame = Box(_FRAME, self.top + 8, _WIDE, rows[-1] + 32 - self.top)
        with self.look("block"):
            _behind(d, frame, 2)
            d.box("", (frame.x, frame.y), (frame.w, frame.h))
            d.label("N blocks", (frame.bottom[0], self.under + 23), soft=True)
        with self.look("block", "stream"):
            for y in rows:
                d.arrow((114, y), (frame.x + frame.w + 10, y), tip=False)
            d.label("residual stream", (frame.bottom[0], self.under))
        self.point("block", (frame.top[0], frame.y - 10))
        self.point("stream", (frame.top[0], frame.y - 10))
        edge, gap = (7, 8) if len(parts) < 3 else (5, 4)
        wide = (_WIDE - 2 * edge - gap * (len(parts) - 1)) / len(parts)
        for i, part in enumerate(parts):
            place = Box(frame.x + edge + i * (wide + gap), self.top + 16, wide, 76)
            looks = ("attention", "heads", "mask") if part == "attention" else (part,)
            with self.look("block", "stream"):
                self.taps(place)
            with self.look("block", *looks):
                d.box("", (place.x, place.y), (place.w, place.h))
                for line, word in enumerate([part] if len(parts) < 3 else part.replace("-", "- ").split()):
                    d.label(word, (place.top[0], place.y + 12 + 15 * line))
            for name in looks:
                self.point(name, (place.top[0] - 14 * (part == "cross-attention"), frame.y - 10))
            self.inside(part, Box(place.x, place.y + (24 if len(parts) < 3 else 31), place.w, 48), causal)
            if part == "cross-attention":
                self.entry = (place.top[0] + 18, place.y - 2)

    def taps(self, place):
        """A part reads the stream of every token, and adds to it."""
        d, low, reads, adds = self.d, place.y + place.h, place.x + 14, place.x + place.w - 14
        d.arrow((reads, self.rows[-1]), (reads, low))
        d.arrow((adds, low), (adds, self.rows[-1]), tip=False)
        for y in self.rows:
            d.node((reads, y))
            d.node((adds, y), plus=True)

    def inside(self, part, place, causal):
        """A small picture of a part: who looks where, in several heads, or one token after the other."""
        d, n = self.d, len(self.tokens)
        cell = 10 if n > 2 else 15
        x, y = place.middle[0] - n * cell / 2, place.y + (50 - n * cell) / 2
        if part == "feed-forward":
            with self.look("block", part):
                for i in range(n):
                    d.box("", (place.middle[0] - 18, y + i * cell + 1.5), (36, cell - 3), corner=2)
            return
        back = part == "attention" and causal
        seen = [[not back or j <= i for j in range(n)] for i in range(n)]
        weights = [[s / sum(row) for s in row] for row in seen]
        with self.look("block", part, *["mask"] * back):
            d.grid(weights, "weight", at=(x, y), size=(cell, cell), gap=(0, 0), mask=seen)
        if back and self.lit == "mask":
            steps = [(x + cell * ((i + 1) // 2 + 1), y + cell * (i // 2)) for i in range(2 * n - 1)]
            with self.look("mask"):
                d.arrow(*steps, (x + n * cell, y), steps[0], tip=False)
        with self.look("block", part, *["heads"] * (part == "attention")):
            _behind(d, Box(x, y, n * cell, n * cell), 2, 3)

    def point(self, part, at):
        """You are here, above a part."""
        if part == self.says:
            x, y = at
            if y < self.top:
                if part == "cross-attention":  # the encoder's vectors arrive on the right of it
                    self.d.label("you are here", (x + 14, y - 22), anchor="end", bold=True)
                else:
                    self.d.label(f"you are here: {part}", (x, y - 22), bold=True)
            else:
                self.d.label("you are", (x, y - 36), bold=True)
                self.d.label("here", (x, y - 20), bold=True)
            self.d.arrow((x, y - 12), (x, y))


def _behind(d, box, n, step=4):
    """The edges of n more sheets behind a box, up and to the right."""
    for i in range(1, n + 1):
        x, y = box.x + step * i, box.y - step * i
        right, low = x + box.w, y + box.h
        d.arrow((x, y + step), (x, y), (right, y), (right, low), (right - step, low), tip=False)
