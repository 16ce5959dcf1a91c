"""Many heads: splitting, merging, and equality with `nn.MultiheadAttention`."""

import pytest
import torch
from torch import nn

from tx import MultiHeadAttention, attention, causal, merge_heads, padding, split_heads, to_mha, window
from tx.course import contracts


def test_a_head_owns_neighbouring_features():
    x = torch.arange(2 * 5 * 12.0).view(2, 5, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 4)
    for h in range(3):
        assert torch.equal(heads[:, h], x[..., 4 * h : 4 * h + 4])


def test_contracts_of_split_and_merge():
    x = torch.randn(2, 5, 12)
    contracts.round_trip(lambda x: split_heads(x, 3), merge_heads, x)
    contracts.positions_stay_put(lambda x: split_heads(x, 3), x)
    with pytest.raises(contracts.ContractBroken, match="positions stay put"):
        contracts.positions_stay_put(lambda x: x.reshape(2, 3, 5, 4), x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [None, causal(), causal() & window(2), "padding"], ids=str)
@pytest.mark.parametrize("cross", [False, True])
def test_equals_torch(bias, mask, cross):
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(12, 3, bias), nn.MultiheadAttention(12, 3, bias=bias, batch_first=True)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)  # the default biases are 0 and would hide a mistake
    projections = ours.query, ours.key, ours.value
    for parts in ("weight", "bias") if bias else ("weight",):
        fused = getattr(theirs, f"in_proj_{parts}")
        for linear, rows in zip(projections, fused.chunk(3), strict=True):
            getattr(linear, parts).data = rows.data.clone()
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    x, source = torch.randn(2, 5, 12), torch.randn(2, 7, 12) if cross else None
    S = 7 if cross else 5
    if mask == "padding":
        mask = padding(torch.arange(S) < torch.tensor([[3], [S]]))
    memory = x if source is None else source
    hidden = None if mask is None else to_mha(mask, (2, 3, 5, S))
    expected, weights = theirs(x, memory, memory, attn_mask=hidden, average_attn_weights=False)
    got = ours(x, mask, source=source)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    got, ours_weights = ours(x, mask, source=source, return_weights=True)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours_weights, weights, atol=1e-5, rtol=0)


def test_contracts_of_the_layer():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    contracts.permutation_equivariance(layer, x)
    contracts.sees_both_sides(layer, x)
    contracts.batch_independence(layer, x)
    contracts.causality(lambda x: layer(x, causal()), x)
    contracts.uses_every_past_key(lambda x: layer(x, causal()), x)
    real = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]).bool()
    contracts.padding_content_is_invisible(lambda x, real: layer(x, padding(real)), x, real)


def test_the_output_projection_is_a_sum_over_heads():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    heads = attention(*(split_heads(f(x), 3) for f in (layer.query, layer.key, layer.value)))
    total = sum(heads[:, h] @ layer.out.weight[:, 4 * h : 4 * h + 4].T for h in range(3))
    torch.testing.assert_close(layer(x), total, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bad", [lambda: split_heads(torch.zeros(1, 2, 10), 3),
                                 lambda: MultiHeadAttention(10, 3), lambda: MultiHeadAttention(10, 0)])
def test_a_width_that_does_not_divide_is_named(bad):
    with pytest.raises(ValueError, match=r"d_model = 10 is not divisible by n_heads = [03]"):
        bad()
