"""Decoders: logits of the next token, the head's switches."""

import math

import pytest
import torch
from test_block import V, close, config, made, vectors

from tx.decoder import Decoder, Head
from tx.masks import everything
from tx.training import loss

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@torch.no_grad()
def test_a_token_changes_later_logits_only():
    model = made(Decoder, config())
    assert model(TOKENS).shape == (2, 5, V)
    for t in range(5):
        changed = TOKENS.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        rows = (model(changed) - model(TOKENS)).abs().amax((0, 2)) > 1e-5
        assert rows.tolist() == [s >= t for s in range(5)]
    assert (model(TOKENS, everything()) - model(TOKENS))[:, 0].abs().max() > 1e-3  # a mask object says all


@torch.no_grad()
def test_the_head_is_its_formula():
    c = config(d_embedding=6, tied=False, head_bias=True, head_scale=0.5, logit_softcap=3.0)
    head, x = made(Head, c, None), 10 * vectors(2, 5, 6)
    close(head(x), 3 * torch.tanh((0.5 * x @ head.linear.weight.T + head.linear.bias) / 3))


@torch.no_grad()
def test_positions_may_be_given():
    model, later = made(Decoder, config()), torch.arange(3, 8)[None]
    real = torch.ones(2, 8, dtype=torch.bool)
    real[:, :3] = False
    counted = model(torch.cat([TOKENS[:, :3], TOKENS], 1), real)[:, 3:]
    close(model(TOKENS, positions=torch.arange(5)[None]), counted)
    assert (model(TOKENS, positions=later) - counted).abs().max() > 1e-3


@torch.no_grad()
def test_last_gives_the_last_logits():
    model = made(Decoder, config())
    close(model(TOKENS, last=2), model(TOKENS)[:, -2:])
    for last in (0, -2, 1.5):
        with pytest.raises(ValueError, match=f"last = {last}: expected a number of tokens, at least 1"):
            model(TOKENS, last=last)


def test_tied_weights_are_one():
    model = Decoder(config())
    assert model.head.linear.weight is model.stack.embedding.weight
    model.head.linear.weight = torch.nn.Parameter(torch.zeros(V, 12))
    model.tie()
    assert model.head.linear.weight is model.stack.embedding.weight
    two = Decoder(config(tied=False))
    assert two.head.linear.weight is not two.stack.embedding.weight
    before = model.stack.embedding.weight.detach().clone()
    loss(model(TOKENS), TOKENS).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert model.head.linear.weight is model.stack.embedding.weight
    assert not torch.equal(model.head.linear.weight, before)


@torch.no_grad()
def test_the_number_of_threads_is_no_part_of_the_result():
    model, before = made(Decoder, config()), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = model(TOKENS)
        torch.set_num_threads(2)
        close(model(TOKENS), one)
    finally:
        torch.set_num_threads(before)


def test_a_tiny_decoder_learns_a_text_by_heart():
    torch.manual_seed(0)
    model, tokens = Decoder(config(n_layers=1, d_model=16)), torch.arange(9)[None]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        now = loss(model(tokens), tokens)
        now.backward()
        optimiser.step()
        losses.append(now.item())
    assert losses[0] == pytest.approx(math.log(V), rel=0.03)
    assert losses[-1] < 0.1


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="position 16 is outside the learned table: expected 0 … 15"):
        Decoder(config())(torch.zeros(1, 17, dtype=torch.long))
