"""Encoders: both sides, heads, pooling."""

import pytest
import torch
from test_block import V, close, config, made

from tx.encoder import Encoder

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
BERT = {"causal": False, "norm_place": "post", "embedding_norm": True, "final_norm": False, "n_segments": 2}


@torch.no_grad()
def test_every_state_depends_on_every_token():
    model = made(Encoder, config(**BERT))
    for t in range(5):
        changed = TOKENS.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        assert ((model(changed) - model(TOKENS)).abs().amax(-1) > 1e-5).all()


@torch.no_grad()
def test_padding_is_invisible():
    model = made(Encoder, config(**BERT, masked_head=True, head_bias=True, pooler=True))
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    junk = torch.where(real, TOKENS, 7)
    for f in (model, model.logits):
        close(f(junk, real)[real], f(TOKENS, real)[real])
        close(f(TOKENS, real)[1, :3], f(TOKENS[1:, :3])[0])
    close(model.pooled(junk, real), model.pooled(TOKENS, real))


@torch.no_grad()
def test_heads_are_their_formulas():
    model = made(Encoder, config(**BERT, d_embedding=6, masked_head=True, masked_activation="relu",
                                 head_bias=True, pooler=True))  # fmt: skip
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    x, head = model(TOKENS, segments=segments), model.masked_head
    assert (x - model(TOKENS)).abs().max() > 1e-3
    expected = head.norm(head.dense(x).relu()) @ model.stack.embedding.weight.T + head.head.linear.bias
    close(model.logits(TOKENS, segments=segments), expected)
    assert expected.shape == (2, 5, V)
    close(model.pooled(TOKENS, segments=segments), model.pooler(x[:, 0]).tanh())


def test_tied_weights_are_one():
    model = Encoder(config(**BERT, masked_head=True))
    model.masked_head.head.linear.weight = torch.nn.Parameter(torch.zeros(V, 12))
    model.tie()
    assert model.masked_head.head.linear.weight is model.stack.embedding.weight
    Encoder(config(**BERT)).tie()  # nothing to tie


@torch.no_grad()
def test_positions_may_be_given():
    model = made(Encoder, config(**BERT, masked_head=True, masked_head_bias=False))
    close(model(TOKENS, positions=torch.arange(5).flip(0)[None]), model(TOKENS.flip(1)).flip(1))
    assert (model(TOKENS) - model(TOKENS.flip(1)).flip(1)).abs().max() > 1e-3
    assert model.masked_head.dense.bias is None


@torch.no_grad()
def test_a_new_model_expects_every_token_alike():
    assert Encoder(config(**BERT, masked_head=True)).logits(TOKENS).std() < 0.2  # measured: 0.07


def test_heads_that_are_absent_say_so():
    model = Encoder(config(**BERT))
    with pytest.raises(ValueError, match="no head for masked tokens"):
        model.logits(TOKENS)
    with pytest.raises(ValueError, match="no pooler: average"):
        model.pooled(TOKENS)
