"""What `record` shows: hidden states and attention maps by layer, as the reference has them."""

from functools import partial

import pytest
import torch
from test_block import config, made

from tests import oracle
from tx.cache import Cache
from tx.checkpoints import load
from tx.decoder import Decoder
from tx.inspecting import record

TOKENS = torch.tensor([[5, 9, 33, 12, 7], [8, 8, 41, 50, 6]])


def near(got, expected):
    assert (got - expected).abs().max().item() <= 2e-5 * max(1.0, expected.std().item())


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        near(a, b)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama-3", "gemma-2", "bloom"])
def test_a_decoder_as_the_reference_shows_it(name):
    theirs, folder = oracle.checkpoint(name)
    model = load(folder)
    expected = theirs(TOKENS, output_attentions=True, output_hidden_states=True)
    with record(model) as seen:
        logits = model(TOKENS)
    near(logits, expected.logits)
    same(seen.attention, expected.attentions)
    same(seen.hidden[:-1], expected.hidden_states[:-1])
    near(model.stack.norm(seen.hidden[-1]), expected.hidden_states[-1])  # theirs has the final norm applied


@torch.no_grad()
def test_both_stacks_of_an_encoder_decoder():
    theirs, folder = oracle.checkpoint("bart")
    model, target = load(folder), TOKENS[:, :3]
    expected = theirs(TOKENS, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    with record(model) as seen:
        model(TOKENS, target)
    same(seen.encoder.attention, expected.encoder_attentions)
    same(seen.encoder.hidden, expected.encoder_hidden_states)
    same(seen.decoder.attention, expected.decoder_attentions)
    same(seen.decoder.cross_attention, expected.cross_attentions)
    assert seen.encoder.cross_attention == []


@torch.no_grad()
def test_the_latest_pass_counts_and_a_cache_shows_all_keys():
    model = load(oracle.checkpoint("llama-3")[1])
    cache = Cache(model.config)
    with record(model) as seen:
        model(TOKENS[:, :3], cache=cache)
        model(TOKENS[:, 3:], cache=cache)
    assert [w.shape for w in seen.attention] == [(2, 4, 2, 5)] * 3
    assert [x.shape for x in seen.hidden] == [(2, 2, 32)] * 4


def test_gradients_flow_through_what_was_recorded():
    model = load(oracle.checkpoint("gpt2")[1])
    with record(model) as seen:
        model(TOKENS)
    seen.attention[0][:, 0].square().sum().backward()
    assert model.stack.embedding.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_afterwards_a_model_is_as_before():
    model = load(oracle.checkpoint("gpt2")[1])
    before = model(TOKENS)
    with pytest.raises(RuntimeError, match="within"), record(model):
        raise RuntimeError("within")
    assert torch.equal(model(TOKENS), before)
    with record(model) as first:
        model(TOKENS)
    kept = [w.clone() for w in first.attention]
    model(TOKENS.flip(1))  # not recorded any more
    assert all(torch.equal(a, b) for a, b in zip(kept, first.attention, strict=True))


def test_what_cannot_be_recorded():
    with pytest.raises(ValueError, match="Linear has no stack"), record(torch.nn.Linear(2, 2)):
        pass
    with pytest.raises(ValueError, match="str has no stack"), record("gpt2"):
        pass
    model = load(oracle.checkpoint("gpt2")[1])
    with record(model), pytest.raises(ValueError, match="recorded already"), record(model):
        pass


def test_a_record_shows_its_shapes():
    model = load(oracle.checkpoint("gpt2")[1])
    with record(model) as seen:
        assert repr(seen) == "Record(nothing yet)"
        model(TOKENS)
    n, heads, width = model.config.n_layers, model.config.n_heads, model.config.d_model
    assert repr(seen) == f"Record(hidden: {n + 1} × (2, 5, {width}), attention: {n} × (2, {heads}, 5, 5))"


def test_a_layer_that_is_computed_again_is_recorded_once():
    from torch.utils.checkpoint import checkpoint

    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4, 1, 5]])
    for block in model.stack.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    with record(model) as seen:
        model(tokens).sum().backward()
    assert len(seen.attention) == 2 and len(seen.hidden) == 3
