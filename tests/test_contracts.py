"""Contracts hold for the right thing and break, at the right place, for the wrong one."""

import inspect

import pytest
import torch

from tx import attention, causal, merge_heads, padding, softmax, split_heads
from tx.course import contracts
from tx.positions import rotate

torch.manual_seed(0)
X = torch.randn(2, 5, 12)
Q, K, V = torch.randn(3, 4, 7, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 6)
REAL = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
NOTHING = torch.ones(7, 7).bool().tril()
NOTHING[3] = False


def look(x, mask=None):
    return attention(x[:, None], x[:, None], x[:, None], mask)[:, 0]


def uniform_when_empty(q, k, v, mask):
    scores = (q @ k.repeat_interleave(2, 1).mT).masked_fill(~mask, -1e9)
    return torch.softmax(scores, -1) @ v.repeat_interleave(2, 1)


def turn(x, at):
    angles = (at[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001]))[None, None]  # (1, 1, T, d_half)
    return rotate(x[None, None], angles.cos(), angles.sin())[0, 0]  # (T, d_k)


def added(x, at):
    return x + at[:, None].cos()


# contract, arguments for which it holds, arguments for which it breaks, and a word of the message
TABLE = [
    ("causality", (lambda x: look(x, causal()), X), (look, X), "row 0 changes when token 1"),
    ("causality", (lambda x: look(x, causal()), X),
     (lambda x: look(x, torch.ones(5, 5).tril(1).bool()), X), "row 0 changes when token 1"),
    ("uses_every_past_key", (lambda x: look(x, causal()), X),
     (lambda x: look(x, torch.eye(5).bool()), X), "row 1 stays the same when token 0"),
    ("sees_both_sides", (look, X), (lambda x: look(x, causal()), X), "row 0 uses token 1"),
    ("padding_content_is_invisible", (lambda x, real: look(x, padding(real))[..., :9], X, REAL),
     (lambda x, real: look(x), X, REAL), "real rows"),
    ("empty_rows_are_zero", (attention, Q, K, V, NOTHING, 3),
     (uniform_when_empty, Q, K, V, NOTHING, 3), "row 3"),
    ("rows_sum_to_one", (softmax, X), (lambda x: softmax(x.mT).mT, X), "sums to one"),
    ("rows_sum_to_one", (softmax, X), (lambda x: x - x.mean(-1, keepdim=True) + 1 / 12, X), "not negative"),
    ("one_token_is_its_value", (attention, V[:, :, :1]), (lambda q, k, v: v * 0.5, V[:, :, :1]), "own value"),
    ("convexity", (attention, Q, K, V), (lambda q, k, v: 2 * attention(q, k, v), Q, K, V), "range"),
    ("permutation_equivariance", (look, X), (lambda x: look(x, causal()), X), "permutes the outputs"),
    ("permutation_invariance", (lambda x: look(x).mean(1), X),
     (lambda x: look(x)[:, 0], X), "changes nothing"),
    ("keys_are_a_set", (attention, Q, K, V),
     (lambda q, k, v: attention(q, k, v, causal()), Q, K, V), "order"),
    ("batch_independence", (look, X), (lambda x: x - x.mean(0), X), "batch row 0"),
    ("positions_stay_put", (lambda x: split_heads(x, 3), X),
     (lambda x: x.reshape(2, 3, 5, 4), X), "positions"),
    ("round_trip", (lambda x: split_heads(x, 3), merge_heads, X),
     (lambda x: split_heads(x, 3), lambda y: y.reshape(2, 5, 12), X), "undoes"),
    ("chunks_equal_the_whole", (lambda q, k, v: attention(q, k, v, causal()), Q, K, V, [3, 1, 3]),
     (lambda q, k, v: attention(q, k, v, torch.ones(q.shape[2], k.shape[2]).tril().bool()), Q, K, V, [3, 4]),
     "queries 3…6 with 7 keys"),
    ("only_the_distance_counts", (turn, Q[0, 0], K[0, 0]), (added, Q[0, 0], K[0, 0]), "3 positions on"),
    ("dtype_is", (Q.double(), torch.float64), (Q, torch.float64), "the dtype"),
    ("turning_keeps_lengths", (turn, Q[0, 0]), (added, Q[0, 0]), "the lengths"),
    ("grouped_equals_multihead", (attention, Q, K, V),
     (lambda q, k, v: attention(q, k.repeat(1, q.shape[1] // k.shape[1], 1, 1),
                                v.repeat(1, q.shape[1] // v.shape[1], 1, 1)), Q, K, V), "copies"),
]  # fmt: skip


@pytest.mark.parametrize("name,right,wrong,words", TABLE, ids=[row[0] for row in TABLE])
def test_holds_and_breaks(name, right, wrong, words):
    contract = getattr(contracts, name)
    assert contract(*right) is None
    with pytest.raises(contracts.ContractBroken, match=words) as broken:
        contract(*wrong)
    assert broken.value.name and broken.value.where and broken.value.expected != broken.value.got


def test_every_contract_is_tested_here():
    public = {
        name for name, f in inspect.getmembers(contracts, inspect.isfunction)
        if not name.startswith("_") and f.__module__ == contracts.__name__
    }  # fmt: skip
    assert public - {"same"} == {row[0] for row in TABLE}


@pytest.mark.parametrize("got", [torch.tensor([1.0, torch.nan]), torch.tensor([1.0, -5.0]), torch.ones(2, 1)])
def test_same_is_not_fooled_by_nan_sign_or_broadcasting(got):
    with pytest.raises(contracts.ContractBroken):
        contracts.same("x", got, torch.ones(2))
