"""The cache: however a text is cut into passes, every kind gives the logits of one pass."""

import pytest
import torch
from test_block import close, config, made, vectors

from tx.cache import KV, Cache
from tx.config import Rope
from tx.decoder import Decoder
from tx.encoder_decoder import EncoderDecoder
from tx.masks import causal, documents, everything, padding, prefix

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
        kv.update(k[:, :, :2], v[:, :, :2], torch.arange(2))
        all_k, all_v = kv.update(k[:, :, 2:], v[:, :, 2:], torch.arange(2, 5))
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
    static.begin(2)
    with pytest.raises(ValueError, match="the cache has room for 8 tokens, 9 are to go in"):
        static.begin(3)


@pytest.mark.parametrize("options", [{}, {"room": 12}])
@torch.no_grad()
def test_cutting_forgets_the_end(options):
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4, 1, 5, 9]])
    _, cache = passes(model, tokens, [6], **options)
    cache.cut(2)
    model(tokens[:, 2:4], cache=cache)
    assert (cache.length, cache.longest) == (4, 6)  # RoPE may have turned the keys for a text of 6
    cache.cut(2)
    close(model(tokens[:, 2:], cache=cache), model(tokens)[:, 2:])
    cache.cut(0)
    assert cache.bytes() == cache.longest == 0
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


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_an_interrupted_pass_left_behind_is_forgotten(kind, n):
    """Some layers have seen the new tokens then, others have not."""
    model, tokens = made(Decoder, config(window=4, layer_types=("window", "full"))), torch.arange(7)[None]
    _, cache = passes(model, tokens, [5], **KINDS[kind])

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.stack.blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(tokens[:, 5 : 5 + n], cache=cache)
    hook.remove()
    if kind == "rolling":
        with pytest.raises(ValueError, match="a rolling cache has forgotten what stood before"):
            model(tokens[:, 5:], cache=cache)
    else:
        close(model(tokens[:, 5:], cache=cache), model(tokens)[:, 5:])


@torch.no_grad()
def test_a_cache_that_starts_again_reads_the_memory_again():
    model = made(EncoderDecoder, config(encoder=config(causal=False)))
    tokens, cache = torch.tensor([[3, 1, 4]]), Cache(model.config)
    for source in (torch.tensor([[5, 9, 2]]), torch.tensor([[6, 5, 3, 5]])):
        cache.cut(0)
        memory = model.encode(source)
        close(model.decode(tokens, memory, cache=cache), model.decode(tokens, memory))


@pytest.mark.parametrize(("other", "words"), [
    (dict(n_kv_heads=1), "the cache was made for another model, of n_kv_heads = 2; this one has 1"),
    (dict(window=5), "of window = 4; this one has 5"),
    (dict(n_layers=3), "of layer_types"),
])  # fmt: skip
def test_a_cache_belongs_to_its_model(other, words):
    switches = dict(n_kv_heads=2, window=4)
    cache = Cache(config(**switches))
    with pytest.raises(ValueError, match=words):
        made(Decoder, config(**switches | other))(torch.tensor([[3]]), cache=cache)


@pytest.mark.parametrize("room", [None, 8])
def test_a_cache_belongs_to_its_dtype(room):
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1]])
    cache = Cache(model.config, room=room)
    with torch.no_grad():
        model(tokens, cache=cache)
    with pytest.raises(ValueError, match="the cache holds torch.float32, the model computes in torch.float64"):
        model.double()(tokens, cache=cache)


def test_what_a_cache_cannot_be():
    for room in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"room = {room}: expected a number of tokens"):
            Cache(config(), room=room)
    with pytest.raises(ValueError, match="room = 5 and rolling"):
        Cache(config(window=4), room=5, rolling=True)
    for length in (-1, 3):
        with pytest.raises(ValueError, match=rf"cut\({length}\): the cache holds 0 tokens"):
            Cache(config()).cut(length)


IDS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]])
REAL = torch.arange(T) >= torch.tensor([[0], [2]])  # padding on the left
OBJECTS = {
    "both sides": everything(), "packed": causal() & documents(IDS), "packed, both sides": documents(IDS),
    "prefix": causal() | prefix(3), "padded": causal() & padding(REAL),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OBJECTS)
@torch.no_grad()
def test_mask_objects_and_every_cache(name, kind):
    """Nobody sees the empty slots of a static cache, whatever the mask."""
    model, mask = made(Decoder, config(window=4, layer_types=("window", "full"))), OBJECTS[name]
    tokens = torch.randint(11, (2, T), generator=torch.Generator().manual_seed(0))
    cuts = [T] if "both" in name else [5, 1, 5]
    cache = Cache(model.config, **KINDS[kind])
    got = torch.cat([model(part, mask, cache=cache) for part in tokens.split(cuts, dim=1)], dim=1)  # (B, T, V)
    seen = REAL if name == "padded" else torch.ones(2, T, dtype=torch.bool)
    close(got[seen], model(tokens, mask)[seen])


def test_what_is_no_cache_and_what_makes_none():
    model = made(Decoder, config())
    with pytest.raises(ValueError, match="cache = True: expected a tx.Cache"):
        model(torch.tensor([[3, 1, 4]]), cache=True)
    with pytest.raises(ValueError, match="from model.config, not from a Decoder"):
        Cache(model)


def test_a_static_cache_is_no_place_for_gradients():
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4]])
    with pytest.raises(ValueError, match="a static cache is written in place, which gradients cannot follow"):
        model(tokens, cache=Cache(model.config, room=8))
    cache = Cache(model.config)  # one that grows is: the same gradient as in one pass
    model.zero_grad()
    (model(tokens[:, :2], cache=cache).sum() + model(tokens[:, 2:], cache=cache).sum()).backward()
    cached = model.stack.embedding.weight.grad.clone()
    model.zero_grad()
    model(tokens).sum().backward()
    close(cached, model.stack.embedding.weight.grad, 1e-4)


def test_a_static_cache_filled_under_inference_mode_stays_there():
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4]])
    cache = Cache(model.config, room=8)
    with torch.inference_mode():
        model(tokens, cache=cache)
    with torch.no_grad(), pytest.raises(ValueError, match="filled under torch.inference_mode"):
        model(tokens, cache=cache)
    with torch.inference_mode():  # the refused pass left nothing behind
        both = torch.cat([tokens, tokens], dim=1)
        close(model(tokens, cache=cache), model(both)[:, 3:])
