"""The cache: however a text is cut into passes, every kind gives the logits of one pass."""

import pytest
import torch
from test_block import close, config, made, vectors

from tx.cache import KV, Cache
from tx.config import Rope
from tx.decoder import Decoder

T = 11
CUTS = {"one pass": [11], "token by token": [1] * 11, "a long prompt": [7, 1, 1, 1, 1], "chunks": [3, 5, 3],
        "last": [10, 1]}  # fmt: skip
KINDS = {"dynamic": {}, "static": {"room": 13}, "rolling": {"rolling": True}}
MODELS = {
    "learned": {}, "alibi": {"positions": "alibi"},
    "rope, grouped, windowed": {"positions": "rope", "rope": Rope(100.0, 2), "n_kv_heads": 2, "window": 4,
                                "layer_types": ("window", "full")},
    "windowed": {"window": 4},
}  # fmt: skip


def passes(model, tokens, cuts, mask=None, **options):
    cache, start, rows = Cache(model.config, **options), 0, []
    for n in cuts:
        real = None if mask is None else mask[:, : start + n]
        rows.append(model(tokens[:, start : start + n], real, cache=cache))
        start += n
    assert cache.length == start
    return torch.cat(rows, 1), cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_passes_give_the_rows_of_one(name, kind):
    model = made(Decoder, config(**MODELS[name]))
    tokens = torch.randint(11, (2, T), generator=torch.Generator().manual_seed(0))
    real = torch.arange(T) >= torch.tensor([[0], [2]])  # padding on the left
    whole, padded = model(tokens), model(tokens, real)
    for cuts in CUTS.values():
        close(passes(model, tokens, cuts, **KINDS[kind])[0], whole)
        close(passes(model, tokens, cuts, real, **KINDS[kind])[0][real], padded[real])


def test_a_kv_grows_keeps_or_writes():
    k, v = vectors(2, 3, 5, 4), vectors(2, 3, 5, 6, seed=2)
    grows, keeps, writes = KV(), KV(keep=2), KV(room=7)
    for kv in (grows, keeps, writes):
        kv.update(k[:, :, :2], v[:, :, :2])
        all_k, all_v = kv.update(k[:, :, 2:], v[:, :, 2:])
        close(all_k[:, :, :5], k, 0)
        close(all_v[:, :, :5], v, 0)
    assert [kv.keys.shape[2] for kv in (grows, keeps, writes)] == [5, 2, 7]
    close(keeps.values, v[:, :, 3:], 0)
    assert not writes.keys[:, :, 5:].any()
    assert keeps.update(k[:, :, :1], v[:, :, :1])[0].shape[2] == 3  # W - 1 kept tokens and the new one


def test_slots_are_the_numbers_of_the_tokens_seen():
    c = config(window=4, layer_types=("window", "full"))
    rolling, static = Cache(c, rolling=True), Cache(c, room=8)
    rolling.length = static.length = 6
    assert rolling.slots("window", 2).tolist() == [3, 4, 5, 6, 7]
    assert rolling.slots("full", 2).tolist() == list(range(8))
    assert static.slots("full", 2).tolist() == list(range(8))
    with pytest.raises(ValueError, match="the cache has room for 8 tokens, 9 are to go in"):
        static.slots("full", 3)


@pytest.mark.parametrize("options", [{}, {"room": 12}])
@torch.no_grad()
def test_cutting_forgets_the_end(options):
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4, 1, 5, 9]])
    _, cache = passes(model, tokens, [6], **options)
    cache.cut(2)
    close(model(tokens[:, 2:], cache=cache), model(tokens)[:, 2:])
    cache.cut(0)
    assert cache.bytes() == 0
    close(model(tokens[:, 1:], cache=cache), model(tokens[:, 1:]))


def test_a_rolling_cache_cannot_be_cut():
    with pytest.raises(ValueError, match="a rolling cache has forgotten"):
        Cache(config(window=4), rolling=True).cut(1)


@torch.no_grad()
def test_rows_can_be_chosen():
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    _, cache = passes(model, tokens, [3])
    cache.select(torch.tensor([1, 1, 0]))
    got = model(tokens[[1, 1, 0], 3:], cache=cache)
    close(got, model(tokens[[1, 1, 0]])[:, 3:])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_cache_belongs_to_its_texts(kind):
    model, tokens = made(Decoder, config(window=4)), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    _, cache = passes(model, tokens, [3], **KINDS[kind])
    with pytest.raises(ValueError, match="the cache holds 2 texts, tokens have 1"):
        model(tokens[:1, 3:], cache=cache)
    close(model(tokens[:, 3:], cache=cache), model(tokens)[:, 3:])


@torch.no_grad()
def test_bytes_are_counted():
    model, tokens = made(Decoder, config(n_kv_heads=2)), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    _, cache = passes(model, tokens, [4])
    assert cache.bytes() == 2 * 2 * 2 * 2 * 4 * 3 * 4  # layers, k and v, texts, heads, tokens, d_k, bytes
