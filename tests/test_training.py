"""What training lowers and evaluation reports, against sums by hand and the reference."""

import math

import pytest
import torch
from test_block import V, close, config, made, vectors

from tests import oracle
from tx.checkpoints import load
from tx.decoder import Decoder
from tx.training import loss, shift_right, surprise

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


class Bytes:
    """A tokenizer whose tokens are the bytes of the text, up to the size of a small vocabulary."""

    def __init__(self, n=61):
        self.n = n

    def encode(self, text):
        return [byte % self.n for byte in text.encode()]

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_the_loss_is_the_next_tokens_nats():
    close(loss(torch.zeros(2, 5, V), TOKENS), torch.tensor(math.log(V)))
    logits = vectors(2, 5, V)
    nats = [-logits[b, t].log_softmax(-1)[TOKENS[b, t + 1]] for b in range(2) for t in range(4)]
    close(loss(logits, TOKENS), torch.stack(nats).mean())
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    close(loss(logits, TOKENS, real), torch.stack(nats[:6]).mean())


def test_targets_shifted_right():
    targets = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100], [8, 9, 3, 2]])
    assert shift_right(targets, 1, 0).tolist() == [[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 9, 3]]


@torch.no_grad()
def test_surprise_is_the_mean_of_every_token_with_the_context_it_had():
    theirs, folder = oracle.checkpoint("llama-1")
    ours = load(folder)
    text = "abcdefghij klmnopqrst uvwxyz!"
    ids = torch.tensor([Bytes().encode(text)])
    whole = surprise(ours, Bytes(), text)
    expected = theirs(ids, labels=ids).loss.item()
    assert whole.nats_per_token == pytest.approx(expected, abs=1e-5)
    assert whole.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert whole.bits_per_byte == pytest.approx(expected / math.log(2), rel=1e-5), "a token is a byte here"
    assert (whole.n_tokens, whole.n_bytes) == (28, 28)
    for context, stride in ((8, 3), (8, 7), (5, 1), (28, 14), (29, 1)):
        total, low = 0.0, 0
        for at in range(1, 29):  # every token by itself
            stop = context if at < context else context + -(-(at + 1 - context) // stride) * stride
            low = max(0, min(stop, 29) - context)
            total -= ours(ids[:, low:at])[0, -1].log_softmax(-1)[ids[0, at]].item()
        found = surprise(ours, Bytes(), text, context=context, stride=stride)
        assert found.nats == pytest.approx(total, abs=1e-3), (context, stride)
        assert found.n_tokens == 28


def test_surprise_drops_nothing_and_leaves_the_mode_as_it_was():
    model = made(Decoder, config(dropout=0.5)).train()
    assert surprise(model, Bytes(V), "0123") == surprise(model, Bytes(V), "0123")
    assert model.training


def test_half_a_character_at_the_start_is_no_byte_yet():
    class Halves(Bytes):
        def decode(self, ids):
            return "\ufffd"

    assert surprise(made(Decoder, config()), Halves(V), "0123").n_bytes == 4


@pytest.mark.parametrize("text, windows, message", [
    ("a", {}, "a text of 1 tokens"),
    ("abc", dict(context=8, stride=8), "stride = 8 with context = 8"),
])  # fmt: skip
def test_texts_that_have_no_surprise(text, windows, message):
    with pytest.raises(ValueError, match=message):
        surprise(made(Decoder, config()), Bytes(V), text, **windows)
