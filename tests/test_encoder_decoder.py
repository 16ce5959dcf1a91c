"""Encoder–decoders: who sees what, with and without a cache."""

import pytest
import torch
from test_block import V, close, config, made, vectors

from tx.cache import Cache
from tx.encoder_decoder import AudioFront, EncoderDecoder

SOURCE = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
TARGET = torch.tensor([[2, 7, 1, 8, 2], [0, 1, 4, 1, 5]])
REAL = torch.arange(7) < torch.tensor([[7], [4]])


def model(**switches):
    return made(EncoderDecoder, config(**switches, encoder=config(causal=False)))


@torch.no_grad()
def test_the_target_sees_its_past_and_all_of_the_source():
    both = model()
    before = both(SOURCE, TARGET)
    assert before.shape == (2, 5, V)
    for t in range(5):
        changed = TARGET.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        rows = (both(SOURCE, changed) - before).abs().amax((0, 2)) > 1e-5
        assert rows.tolist() == [s >= t for s in range(5)]
    for s in range(7):
        changed = SOURCE.clone()
        changed[:, s] = (changed[:, s] + 1) % V
        assert ((both(changed, TARGET) - before).abs().amax(-1) > 1e-5).all()


@torch.no_grad()
def test_cross_attention_takes_the_mask_of_the_source():
    both = model()
    got = both(SOURCE, TARGET, REAL)
    close(both(torch.where(REAL, SOURCE, 0), TARGET, REAL), got)
    close(both(SOURCE[1:, :4], TARGET[1:]), got[1:])
    assert (both(SOURCE, TARGET) - got)[1].abs().max() > 1e-3
    target_real = torch.arange(5) < torch.tensor([[5], [3]])
    close(both(SOURCE, TARGET, REAL, target_real)[target_real], got[target_real])
    left = both(SOURCE, TARGET, REAL, target_real.flip(1))  # padding in front, which moves what follows
    close(left[1, 2:], both(SOURCE[1:], TARGET[1:, 2:], REAL[1:])[0])
    close(both(SOURCE, TARGET, torch.ones_like(REAL)), both(SOURCE, TARGET))
    memory = both.encode(SOURCE)
    for mask in (torch.ones(2, 9) > 0, REAL.long(), REAL[:, :2]):
        with pytest.raises(ValueError, match=r"source_mask \(2, \d\) of .*: expected booleans"):
            both.decode(TARGET, memory, mask)


@pytest.mark.parametrize("cuts", [[5], [1] * 5, [2, 3]])
@pytest.mark.parametrize("options", [{}, {"room": 9}])
@pytest.mark.parametrize("positions", [{}, {"positions": "t5", "buckets": 8, "bucket_distance": 16}])
@torch.no_grad()
def test_passes_give_the_rows_of_one(cuts, options, positions):
    both = model(**positions)
    memory, whole = both.encode(SOURCE, REAL), both(SOURCE, TARGET, REAL)
    cache, start = Cache(both.config, **options), 0
    for n in cuts:
        new = TARGET[:, start : start + n]
        got = both.decode(new, memory, REAL, cache=cache, last=1)
        start += n
        close(got, whole[:, start - 1 : start])


@torch.no_grad()
def test_a_model_that_hears():
    hears = config(causal=False, n_mels=6, positions="sinusoidal")
    both = made(EncoderDecoder, config(encoder=hears))
    mel = vectors(2, 6, 20)
    memory = both.encode(mel)
    assert memory.shape == (2, 10, 12) and both.encoder.embedding is None
    close(both(mel, TARGET), both.decode(TARGET, memory))
    later = mel.clone()
    later[:, :, 17:] += 1  # a frame reaches three frames to each side, then every second is kept
    changed = (both.front(later) - both.front(mel)).abs().amax((0, 2)) > 1e-6
    assert changed.tolist() == [False] * 8 + [True] * 2
    close(both.encode(mel.double()), memory)
    for bad in (mel[0], mel[:, :5], mel[:, :, :0]):
        with pytest.raises(ValueError, match=r"mel \(.*\): expected \(B, 6, frames\)"):
            both.encode(bad)


@torch.no_grad()
def test_the_audio_front_is_two_convolutions():
    front, mel = made(AudioFront, 3, 4), vectors(2, 3, 8)
    x = mel.double()
    for conv, stride in ((front.first, 1), (front.second, 2)):
        wide = torch.nn.functional.pad(x, (1, 1)).unfold(2, 3, stride)  # (B, C, S, 3)
        x = torch.einsum("bcsk,dck->bds", wide, conv.weight.double()) + conv.bias.double()[:, None]
        x = torch.nn.functional.gelu(x)
    close(front(mel).double(), x.mT)


@torch.no_grad()
def test_a_new_model_expects_every_token_alike():
    both = EncoderDecoder(config(encoder=config(causal=False)))
    assert both(SOURCE, TARGET).std() < 0.2  # measured: 0.08


def test_tied_weights_are_one():
    both = EncoderDecoder(config(encoder=config(causal=False)))
    both.head.linear.weight = torch.nn.Parameter(torch.zeros(V, 12))
    both.tie()
    assert both.head.linear.weight is both.decoder.embedding.weight is both.encoder.embedding.weight
