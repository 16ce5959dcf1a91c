"""The stack: every kind of it against the contracts, what goes in, what is made once a pass."""

import collections
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_block import B, D, T, V, close, config, flow, made, vectors

import tx
from tests import oracle
from tx.cache import Cache
from tx.checkpoints import build
from tx.config import Config, Rope
from tx.course import contracts
from tx.decoder import Decoder
from tx.masks import causal, everything, prefix
from tx.stack import Stack

KINDS = {
    "learned": {}, "none": {"positions": "none"}, "alibi": {"positions": "alibi"},
    "rope": {"positions": "rope", "rope": Rope(100.0, 2), "norm": "rms_plus_one", "gated": True, "n_kv_heads": 2},
    "t5": {"positions": "t5", "buckets": 8, "bucket_distance": 16, "norm": "rms"},
    "deberta": {"positions": "deberta", "buckets": 4, "bucket_distance": 8, "content_position": True,
                "position_content": True, "norm_positions": True},
    "deberta shared": {"positions": "deberta", "buckets": 4, "bucket_distance": 8, "content_position": True,
                       "share_position_projection": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_causal_stack_sees_all_of_the_past_and_nothing_else(kind):
    stack, x = made(Stack, config(**KINDS[kind])), vectors(B, T, D)
    contracts.causality(stack, x)
    contracts.uses_every_past_key(stack, x)
    contracts.batch_independence(stack, x)
    if kind != "none":
        assert (stack(x.roll(1, 1)) - stack(x).roll(1, 1))[:, 2:].abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_stack_of_both_sides_sees_them_and_no_padding(kind):
    stack, x = made(Stack, config(causal=False, **KINDS[kind])), vectors(B, T, D)
    contracts.sees_both_sides(stack, x)
    real = torch.arange(T) < torch.tensor([[T], [3]])
    contracts.padding_content_is_invisible(lambda x, real: stack(x, real), x, real)
    close(stack(x, real)[1, :3], stack(x[1:, :3])[0])
    if kind == "none":
        contracts.permutation_equivariance(stack, x)


@pytest.mark.parametrize("kind", ["learned", "rope", "alibi", "t5", "deberta"])
@torch.no_grad()
def test_padding_on_the_left_moves_nothing(kind):
    stack = made(Stack, config(**KINDS[kind]))
    tokens = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 9, 2, 6]])
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    close(stack(tokens, real)[1, 2:], stack(tokens[1:, 2:])[0])
    close(stack(tokens, torch.ones_like(real)), stack(tokens))


@pytest.mark.parametrize("kind", ["learned", "rope", "alibi"])
@torch.no_grad()
def test_tokens_after_a_cache_stand_behind_it(kind):
    """Their positions are the last ones that the mask counts, and empty slots are seen by nobody."""
    stack = made(Stack, config(**KINDS[kind]))
    tokens = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 9, 2, 6]])
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    caches = Cache(stack.config), Cache(stack.config, room=9)
    for cache in caches:
        stack(tokens[:, :3], real[:, :3], cache=cache)
        close(stack(tokens[:, 3:], real, cache=cache), stack(tokens, real)[:, 3:])
        cache.cut(0)
        stack(tokens[:, :3], cache=cache)
        close(stack(tokens[:, 3:], cache=cache), stack(tokens)[:, 3:])
        cache.cut(3)
    close(*(stack(tokens[:, 3:], everything(), cache=cache) for cache in caches))
    rolling = made(Stack, config(window=3, **KINDS[kind]))  # which has dropped the first of three tokens
    cache = Cache(rolling.config, rolling=True)
    rolling(tokens[:, :3], real[:, :3], cache=cache)
    close(rolling(tokens[:, 3:], real, cache=cache), rolling(tokens, real)[:, 3:])


@torch.no_grad()
def test_a_mask_that_hides_nothing_is_none():
    """A dense one would cost the fast path."""
    stack, tokens = made(Stack, config()), torch.tensor([[3, 1, 4]])
    real = torch.ones(1, 3, dtype=torch.bool)
    assert stack._mask(real, 0).structure(3, 3) == "causal"
    assert stack._mask(real & (tokens > 1), 0).structure(3, 3) == "dense"


@torch.no_grad()
def test_numbers_round_where_their_families_do():
    stack = made(Stack, config(embedding_scale=D**0.5, positions="rope", rope=Rope(100.0, 2))).bfloat16()
    tokens = torch.tensor([[3, 1, 4]])
    scaled = stack.embedding(tokens) * torch.tensor(D**0.5).bfloat16()  # as Gemma does
    x = stack._embed(tokens, None, None)
    assert torch.equal(x, scaled) and not torch.equal(scaled, stack.embedding(tokens) * D**0.5)
    slots = torch.arange(3)
    tables = stack._view("full", x, causal(), slots[None], slots, None).tables
    assert [table.dtype for table in tables] == 2 * [torch.float32]  # tables of positions stay wide


@torch.no_grad()
def test_what_goes_into_the_first_block_is_dropped():
    stack, tokens = made(Stack, config(dropout=1 - 1e-9, embedding_norm=True)), torch.tensor([[3, 1, 4]])
    positions = torch.arange(3)[None]
    assert stack._embed(tokens, positions, None).any() and not stack.train()._embed(tokens, positions, None).any()


@torch.no_grad()
def test_padding_counts_for_no_length_of_rope():
    rope = Rope(100.0, 2, "longrope", 4.0, 4, short_factor=(1.0,), long_factor=(3.0,))
    stack, tokens = made(Stack, config(positions="rope", rope=rope)), torch.tensor([[0, 0, 3, 1, 4, 1, 5]])
    real, short = torch.arange(7)[None] > 1, Cache(stack.config)
    stack(tokens[:, :5], real[:, :5], cache=short)  # 3 tokens
    close(stack(tokens[:, 5:6], real[:, :6], cache=short), stack(tokens[:, 2:6])[:, 3:])  # 4: none too long
    with pytest.raises(ValueError, match="RoPE frequencies of a text of 4 tokens, and one of 5 has others"):
        stack(tokens[:, 6:], real, cache=short)
    long = Cache(stack.config)
    stack(tokens[:, :6], real[:, :6], cache=long)
    with pytest.raises(ValueError, match="RoPE frequencies of a text of 4 tokens, and one of 5 has others"):
        stack(tokens[:, 6:], real, cache=long)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "ffn_dropout"])
@torch.no_grad()
def test_nothing_is_dropped_in_evaluation(kind):
    stack, x = made(Stack, config(**{kind: 0.9})), vectors(B, T, D)
    plain = made(Stack, config())
    for _ in range(2):
        assert torch.equal(stack(x), plain(x))
    stack.train()
    assert (stack(x) - plain(x)).abs().max() > 0.1


@torch.no_grad()
def test_windowed_layers_forget():
    stack, x = made(Stack, config(n_layers=1, window=2, positions="none")), vectors(1, T, D)
    moved = x.clone()
    moved[:, 0] += 3 * vectors(D, seed=3)
    changed = (stack(moved) - stack(x)).abs().amax(-1)[0] > 1e-5
    assert changed.tolist() == [True, True, False, False, False]
    mixed = made(Stack, config(window=2, layer_types=("window", "full")))
    contracts.uses_every_past_key(mixed, vectors(B, T, D))
    contracts.causality(mixed, vectors(B, T, D))
    two = made(Stack, config(window=2, positions="none", layer_types=("full", "window")))
    alone = two(x, causal())  # a mask object says all, the window stays
    close(alone, two(x))


@torch.no_grad()
def test_a_mask_object_takes_the_place_of_the_causal_one_in_windowed_layers_too():
    stack = made(Stack, config(window=3, n_layers=1, positions="none"))
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    before = stack(tokens, causal() | prefix(4))
    tokens[0, 2] = 7  # seen within the window, from both sides
    changed = (stack(tokens, causal() | prefix(4)) - before).abs().amax(-1) > 1e-6
    assert changed[0].tolist() == [True] * 5 + [False]


@torch.no_grad()
def test_what_is_added_before_the_first_block():
    c = config(d_embedding=6, n_segments=2, embedding_norm=True, embedding_scale=2.0, share_layers=True,
               first_attention_norm=False, final_norm=False)  # fmt: skip
    stack, tokens = made(Stack, c), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    assert len(stack.blocks) == 1 and isinstance(stack.blocks[0].attention_norm, torch.nn.Identity)
    x = 2 * stack.embedding(tokens) + stack.segments(segments) + stack.schemes["full"].table.weight[:5]
    x = stack.projection(stack.embedding_norm(x))
    for _ in range(2):
        x = stack.blocks[0](x, flow(c, T))
    close(stack(tokens, segments=segments), x)
    close(stack(tokens), stack(tokens, segments=torch.zeros_like(tokens)))


@torch.no_grad()
def test_positions_can_skip_the_pad():
    stack = made(Stack, config(positions_skip_pad=1, position_offset=2, causal=False))
    tokens = torch.tensor([[3, 4, 5, 1, 1], [1, 9, 2, 6, 5]])
    real = tokens != 1
    close(stack(tokens, real)[0, :3], stack(tokens[:1, :3])[0])
    close(stack(tokens, real)[1, 1:], stack(tokens[1:, 1:])[0])


@pytest.mark.parametrize(("tokens", "mask", "words"), [
    (torch.tensor([1, 2]), None, r"tokens \(2,\): expected \(B, T\)"),
    (torch.tensor([[1, V]]), None, f"token id {V} is outside the vocabulary: expected 0 … {V - 1}"),
    (torch.tensor([[1, -1]]), None, "token id -1 is outside"),
    (torch.tensor([[1, 2]]), torch.ones(1, 3, dtype=torch.bool), r"expected booleans \(B, S\) = \(1, 2\)"),
    (torch.tensor([[1, 2]]), torch.ones(1, 2), "of torch.float32: expected booleans"),
    (torch.zeros(1, 17, dtype=torch.long), None, "position 16 is outside the learned table: expected 0 … 15"),
    ([[1, 2]], None, "tokens are a list: expected a tensor of ids"),
    (torch.tensor([[1, 2]]).byte(), None, "tokens of torch.uint8: expected ids of torch.int64 or torch.int32"),
    (torch.zeros(0, 2, dtype=torch.long), None, r"tokens \(0, 2\): expected one text and one token at least"),
    (torch.tensor([[1.0, 2.0]]), None, rf"\(1, 2\) of torch.float32: expected ids \(B, T\), or \(B, T, {D}\)"),
    (torch.zeros(1, 2, D + 1), None, rf"tokens \(1, 2, {D + 1}\) of torch.float32: expected ids"),
    (torch.zeros(2, 0, dtype=torch.long), None, r"tokens \(2, 0\): expected one text and one token at least"),
])  # fmt: skip
def test_bad_input_is_named(tokens, mask, words):
    with pytest.raises(ValueError, match=words):
        made(Stack, config())(tokens, mask)


@pytest.mark.parametrize(("options", "words"), [
    ({"positions": torch.arange(3)}, r"positions \(3,\) of torch.int64: expected .* \(1, 3\) or \(2, 3\)"),
    ({"positions": torch.arange(2)[None]}, r"positions \(1, 2\)"),
    ({"positions": torch.zeros(2, 3)}, r"positions \(2, 3\) of torch.float32"),
    ({"positions": torch.full((1, 3), -1)}, "position -1 is outside the learned table: expected 0 … 15"),
    ({"segments": torch.zeros(2, 2, dtype=torch.long)}, r"segments \(2, 2\) of torch.int64: expected .* \(2, 3\)"),
    ({"segments": torch.full((2, 3), 2)}, "segment 2 is outside the table: expected 0 … 1"),
    ({"memory": torch.zeros(1, 4, D)}, rf"memory \(1, 4, {D}\): expected \(B, N, D\) with B = 2, D = {D}"),
    ({"memory": torch.zeros(2, 4, D + 1)}, "memory"),
    ({"memory": None}, "memory is None: these layers read one"),
])  # fmt: skip
def test_what_comes_with_the_tokens_must_fit(options, words):
    stack, tokens = made(Stack, config(n_segments=2), cross=True), torch.tensor([[3, 1, 4], [1, 5, 9]])
    options = {"memory": torch.zeros(2, 4, D)} | options
    with pytest.raises(ValueError, match=words):
        stack(tokens, **options)


def test_segments_for_a_model_without_any_are_refused():
    with pytest.raises(ValueError, match="no segments"):
        made(Stack, config())(torch.tensor([[1, 2]]), segments=torch.zeros(1, 2, dtype=torch.long))


def test_roberta_counts_only_what_is_no_padding_and_gives_padding_the_row_before_the_first():
    config = Config(9, 8, 1, 2, 16, 12, causal=False, position_offset=2, positions_skip_pad=1)
    stack = Stack(config)
    tokens = torch.tensor([[1, 5, 6, 1, 7], [5, 1, 1, 1, 1]])
    assert stack._count(tokens, None, torch.arange(5)).tolist() == [[-1, 0, 1, -1, 2], [0, -1, -1, -1, -1]]
    assert torch.equal(stack.schemes["full"].embed(torch.tensor([[-1]]))[0, 0],
                       stack.schemes["full"].table.weight[1])  # fmt: skip


# ── how a model begins, and how much of tx a token meets ─────────────────────────────────────────


def first_loss(model, V):
    """Cross-entropy of a new model with random targets, in nats."""
    tokens = torch.randint(4, min(V, 60), (8, 13), generator=torch.Generator().manual_seed(0))
    targets = torch.randint(V, (8 * 13,), generator=torch.Generator().manual_seed(1))
    if hasattr(model, "encode"):
        hears = model.config.encoder.n_mels
        logits = model(torch.randn(8, hears, 40) if hears else tokens, tokens)
    else:
        logits = model.logits(tokens) if hasattr(model, "logits") else model(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets).item()


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", oracle.ALL)
def test_every_family_begins_with_the_loss_of_a_guess(name, tied):
    """Within 3 % of ln V; measured 1.1 % at most."""
    shape = build(oracle.checkpoint(name)[0].config.to_dict())
    torch.manual_seed(0)
    model = type(shape)(replace(shape.config, tied=tied)).eval()
    assert first_loss(model, model.config.vocab_size) == pytest.approx(math.log(model.config.vocab_size), rel=0.03)


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("V", "width"), [(256, 64), (256, 256), (5000, 768)])
def test_a_wide_model_begins_with_the_loss_of_a_guess(V, width, tied):
    torch.manual_seed(0)
    model = Decoder(Config(V, width, 2, 4, 4 * width, 16, tied=tied)).eval()
    assert first_loss(model, V) == pytest.approx(math.log(V), rel=0.03)


def test_what_layers_add_to_the_stream_begins_smaller():
    torch.manual_seed(0)
    model = Decoder(config(n_layers=8, d_model=64, d_ff=256))
    block = model.stack.blocks[3]
    for layer, std in ((block.attention.query, 0.02), (block.feed_forward.up, 0.02), (model.head.linear, 0.02),
                       (block.attention.out, 0.02 / 4), (block.feed_forward.down, 0.02 / 4)):  # fmt: skip
        assert layer.weight.std().item() == pytest.approx(std, rel=0.08)
        assert layer.bias is None or not layer.bias.any()


def lines_met(call):
    """Lines of `tx` that a call executes: {file: number of different lines}."""
    folder, met = str(Path(tx.__file__).parent), set()

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            met.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return collections.Counter(file for file, _ in met)


@torch.no_grad()
def test_a_token_meets_few_lines():
    """A reader who follows one token through a LLaMA of two layers reads so much of tx, checks included."""
    llama = dict(norm="rms", attention_bias="", ffn_bias=False, gated=True, activation="silu", tied=False,
                 positions="rope", rope=Rope(1e4, 2), n_kv_heads=2)  # fmt: skip
    model, tokens = made(Decoder, config(**llama)), torch.tensor([[3, 1, 4, 1, 5]])
    model(tokens)
    met = lines_met(lambda: model(tokens))
    assert sum(met.values()) <= 161 and len(met) <= 7, met


def test_a_model_is_made_of_its_own_kind_of_config():
    from tx.encoder import Encoder
    from tx.encoder_decoder import EncoderDecoder

    both_sides = config(causal=False)
    for kind, c, message in (
        (Decoder, "x", "config is a str: expected a tx.Config"),
        (Decoder, both_sides, "causal = False: expected True, these tokens see the past"),
        (Encoder, config(), "causal = True: expected False, these tokens see both sides"),
        (Decoder, config(encoder=both_sides), "None in a model of one stack"),
        (EncoderDecoder, config(), "encoder = None: expected the Config of the other stack"),
        (EncoderDecoder, config(encoder=config()), "encoder.causal = True: expected False"),
        (EncoderDecoder, config(encoder=config(causal=False, d_embedding=6)), "encoder.d_embedding = 6"),
        (Decoder, config(n_mels=3), "only the encoder of an EncoderDecoder hears"),
        (Decoder, config(d_embedding=6), "d_embedding = 6: expected d_model = 12"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(c)


def test_what_is_no_tensor_is_said_to_be_none():
    model = made(Stack, config(n_segments=2), cross=True)
    tokens, memory = torch.tensor([[3, 1]]), torch.zeros(1, 2, 12)
    for given, message in (
        (dict(positions=[0, 1], memory=memory), r"positions are a list: expected a tensor \(1, 2\)"),
        (dict(segments=[[0, 1]], memory=memory), "segments are a list"),
        (dict(memory=[1]), "memory is a list: these layers read one"),
    ):
        with pytest.raises(ValueError, match=message):
            model(tokens, **given)


def test_a_sinusoidal_position_is_as_wide_as_the_embedding():
    stack = made(Stack, config(positions="sinusoidal", d_embedding=6))
    assert stack(torch.tensor([[3, 1, 4]])).shape == (1, 3, 12)


@pytest.mark.parametrize("qk_norm", ["head", "full"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_autocast_serves_every_norm_of_queries_and_keys(qk_norm, norm):
    model, tokens = made(Decoder, config(qk_norm=qk_norm, norm=norm)), torch.tensor([[3, 1, 4, 1, 5]])
    expected = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        found, cache = model(tokens), Cache(model.config)
        model(tokens, cache=cache)
    found.float().sum().backward()
    close(found.float(), expected, 0.05 * expected.abs().max().item())
    assert cache.layers[0].keys.dtype == cache.layers[0].values.dtype == torch.bfloat16


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_a_model_can_be_pickled(activation):
    model, tokens = made(Decoder, config(activation=activation)), torch.tensor([[3, 1, 4]])
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), model(tokens))


@pytest.mark.parametrize("switches", [{}, {"positions": "alibi"}, {"window": 2}])
def test_gradients_of_each_text_of_a_padded_batch(switches):
    """As in private training: `vmap` over texts and their masks."""
    model = made(Decoder, config(**switches))
    tokens, real = torch.tensor([[3, 1, 4, 1], [0, 5, 9, 2]]), torch.tensor([[True] * 4, [False] + [True] * 3])
    parameters = dict(model.named_parameters())

    def total(parameters, tokens, real):
        return torch.func.functional_call(model, parameters, (tokens[None], real[None]))[0, 1:].square().sum()

    found = torch.vmap(torch.func.grad(total), (None, 0, 0))(parameters, tokens, real)
    for row in range(2):
        expected = torch.func.grad(total)(parameters, tokens[row], real[row])
        for name, gradient in expected.items():
            close(found[name][row], gradient, 1e-3)


@pytest.mark.parametrize("scheme", [
    dict(positions="none"), dict(positions="alibi"), dict(positions="t5", buckets=4, bucket_distance=8)])
def test_positions_that_nothing_would_read_are_refused(scheme):
    with pytest.raises(ValueError, match="positions were given: this model's .* go by the place in the row"):
        Decoder(config(**scheme))(torch.arange(5)[None], positions=torch.arange(5)[None])


@pytest.mark.parametrize("name", ["masked_head", "pooler"])
def test_a_head_of_encoders_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} = True: expected False, only an Encoder has one"):
        Decoder(config(**{name: True}))
