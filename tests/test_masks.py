"""Masks: every building block against a definition written out, every convention against its owner."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_mask

from tx import (
    Mask,
    as_mask,
    attention,
    causal,
    documents,
    everything,
    padding,
    prefix,
    to_additive,
    to_flex,
    to_mha,
    to_sdpa,
    window,
)
from tx.course import contracts


def grid(mask, T, S, B=1, H=1):
    return mask.dense((B, H, T, S)).expand(B, H, T, S)


def show(mask, T, S):
    return ["".join("x" if seen else "." for seen in row) for row in grid(mask, T, S)[0, 0].tolist()]


def test_the_last_query_stands_at_the_last_key():
    assert show(causal(), 3, 3) == ["x..", "xx.", "xxx"]
    assert show(causal(), 2, 5) == ["xxxx.", "xxxxx"]
    assert show(causal(), 5, 2) == ["..", "..", "..", "x.", "xx"]  # three queries see nothing
    assert show(causal(), 1, 4) == ["xxxx"]
    assert torch.equal(grid(causal(), 3, 7)[0, 0], causal_lower_right(3, 7)._materialize())


def test_a_window_counts_the_query_itself():
    assert show(causal() & window(1), 3, 3) == ["x..", ".x.", "..x"]
    assert show(causal() & window(2), 2, 4) == [".xx.", "..xx"]
    assert show(window(2), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]


def test_prefix_documents_padding_everything():
    assert show(causal() | prefix(2), 4, 4) == ["xx..", "xx..", "xxx.", "xxxx"]
    ids = torch.tensor([0, 0, 1, 1])
    assert show(causal() & documents(ids), 4, 4) == ["x...", "xx..", "..x.", "..xx"]
    assert show(causal() & documents(ids), 1, 4) == ["..xx"]
    real = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    assert grid(padding(real), 2, 3, B=2)[:, 0, 0].tolist() == real.tolist()
    assert show(everything(), 2, 3) == ["xxx", "xxx"]
    assert grid(prefix(torch.tensor([1, 2])), 1, 3, B=2)[:, 0, 0].tolist() == [[1, 0, 0], [1, 1, 0]]


BLOCKS = {
    "causal()": (causal, lambda b, q, k: k <= q),
    "window(3)": (lambda: window(3), lambda b, q, k: abs(q - k) < 3),
    "prefix(2)": (lambda: prefix(2), lambda b, q, k: k < 2),
    "documents": (lambda: documents(torch.arange(9) // 2), lambda b, q, k: q >= 0 and q // 2 == k // 2),
    "padding": (lambda: padding(torch.arange(9) < torch.tensor([[4], [9]])), lambda b, q, k: k < (4, 9)[b]),
    "predicate": (lambda: lambda b, h, q, k: (q + k) % 2 == 0, lambda b, q, k: (q + k) % 2 == 0),
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    names=st.lists(st.sampled_from(list(BLOCKS)), min_size=1, max_size=4),
    joins=st.lists(st.sampled_from("&|"), min_size=3, max_size=3),
    T=st.integers(1, 8), S=st.integers(1, 8), data=st.data(),
)  # fmt: skip
def test_any_expression_means_what_it_says(names, joins, T, S, data):
    """Built from blocks, as booleans, for FlexAttention, as structure, and at given positions."""
    mask, truth = as_mask(BLOCKS[names[0]][0]()), BLOCKS[names[0]][1]
    for join, name in zip(joins, names[1:], strict=False):
        other, more = BLOCKS[name][0](), BLOCKS[name][1]
        mask = mask & other if join == "&" else mask | other
        truth = (lambda f, g: lambda *a: f(*a) and g(*a))(truth, more) if join == "&" else (
            lambda f, g: lambda *a: f(*a) or g(*a))(truth, more)  # fmt: skip
    expected = torch.tensor(
        [[[truth(b, q, k) for k in range(S)] for q in range(S - T, S)] for b in range(2)]
    )[:, None]
    assert torch.equal(mask.dense((2, 3, T, S)).expand(2, 1, T, S), expected)
    structure = mask.structure(T, S)
    if structure == "nothing":
        assert bool(expected.all())
    if structure == "causal":
        assert T == S and torch.equal(expected[0, 0], torch.ones(T, S).tril().bool())
    flex = to_flex(mask, T, S)
    b, q, k = data.draw(st.tuples(st.integers(0, 1), st.integers(0, T - 1), st.integers(0, S - 1)))
    assert bool(flex(torch.tensor(b), torch.tensor(0), torch.tensor(q), torch.tensor(k))) == bool(
        expected[b, 0, q, k]
    )
    # the same keys stored in another order, with an empty slot in front
    order = torch.tensor(data.draw(st.permutations(range(S))))
    slots = torch.cat([torch.tensor([-1]), order])
    moved = mask.at(torch.arange(S - T, S), slots).dense((2, 3, T, S + 1)).expand(2, -1, T, S + 1)
    assert not moved[..., 0].any()
    assert torch.equal(moved[..., 1:], expected[..., order].expand_as(moved[..., 1:]))


def test_positions_of_each_row():
    q_pos, k_pos = torch.tensor([[2], [4]]), torch.tensor([[0, 1, 2, -1, -1], [4, 0, 1, 2, 3]])
    got = (causal() & window(3)).at(q_pos, k_pos).dense((2, 1, 1, 5))[:, 0, 0]
    assert got.tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 1, 1]]


def test_combining_with_a_tensor_or_a_predicate_from_either_side():
    table = torch.tensor([[1, 0, 1], [1, 1, 1]]).bool()
    for mask in (causal() & table, table & causal(), as_mask(table) & causal()):
        assert show(mask, 2, 3) == ["x..", "xxx"]
    assert show(table | causal(), 2, 3) == ["xxx", "xxx"]
    assert show(as_mask(table), 1, 3) == ["xxx"]  # one query: the last row
    per_head = as_mask(torch.eye(2).bool()[:, None, :])  # (H, 1, S)
    assert per_head.dense((1, 2, 4, 2)).expand(1, 2, 4, 2)[0, :, 0].tolist() == [[1, 0], [0, 1]]


def test_repr_is_the_expression():
    mask = (causal() | prefix(3)) & window(4)
    assert repr(mask) == "(causal() | prefix(3)) & window(4)"
    assert repr(eval(repr(mask))) == repr(mask)
    assert "at(q_pos, k_pos)" in repr(causal().at(torch.arange(2), torch.arange(2)))


CASES = [everything(), causal(), causal() & window(2), (causal() | prefix(2)), window(2),
         causal() & padding(torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool())]  # fmt: skip


@pytest.mark.parametrize("mask", CASES, ids=repr)
@pytest.mark.parametrize("T", [1, 3, 4])
def test_every_convention_gives_the_same_attention(mask, T):
    torch.manual_seed(0)
    shape, (q, k, v) = (2, 3, T, 4), (torch.randn(2, 3, n, 5) for n in (T, 4, 4))
    expected = attention(q, k, v, mask, how="explicit")
    sdpa = F.scaled_dot_product_attention
    for options in (to_sdpa(mask, shape), {"attn_mask": to_additive(mask, shape)}):
        torch.testing.assert_close(sdpa(q, k, v, **options), expected, atol=1e-6, rtol=0)
    lowest = to_additive(mask, shape, hidden=torch.finfo(torch.float32).min)
    torch.testing.assert_close(sdpa(q, k, v, attn_mask=lowest), expected, atol=1e-6, rtol=0)
    flex = create_mask(to_flex(mask, T, 4), 2, 3, T, 4, device="cpu")
    assert torch.equal(flex, mask.dense(shape).expand(shape))
    layer = nn.MultiheadAttention(15, 3, bias=False, batch_first=True)
    x, source = torch.randn(2, T, 15), torch.randn(2, 4, 15)
    hidden = to_mha(mask, shape)
    assert torch.equal(hidden.view(-1, T, 4)[-1], ~mask.dense(shape).expand(shape)[-1, -1])
    out, weights = layer(x, source, source, attn_mask=hidden, average_attn_weights=False)
    assert bool((weights[~mask.dense(shape).expand(shape)] == 0).all()) and bool(out.isfinite().all())


def test_is_causal_of_sdpa_is_top_left_and_ours_is_not():
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 5, 4)
    first = F.scaled_dot_product_attention(q, k, k, is_causal=True)
    assert torch.equal(first, k[:, :, :1])  # the single query sees key 0 alone
    assert to_sdpa(causal(), (1, 1, 1, 5)) == {}
    assert not torch.allclose(attention(q, k, k, causal()), first)


def test_a_rolling_window_equals_the_full_pass_for_every_split():
    """Reference case: keep W - 1 past keys and the chunk; a prompt may be longer than W."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 11, 8) for _ in range(3))
    mask = causal() & window(4)
    whole = attention(q, k, v, mask)
    for cuts in ([11], [1] * 11, [7, 1, 1, 1, 1], [3, 5, 3], [10, 1]):
        contracts.chunks_equal_the_whole(lambda q, k, v: attention(q, k, v, mask), q, k, v, cuts)
        start = 0
        for n in cuts:
            low = max(0, start - 3)
            at = mask.at(torch.arange(start, start + n), torch.arange(low, start + n))
            past = k[:, :, low : start + n], v[:, :, low : start + n]
            part = attention(q[:, :, start : start + n], *past, at)
            torch.testing.assert_close(part, whole[:, :, start : start + n], atol=1e-6, rtol=0)
            start += n


def test_left_and_right_padding_give_the_rows_of_the_text_alone():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 8) for _ in range(3))
    alone = attention(q, k, v, causal())
    for left in (True, False):
        pad = (0, 0, 2, 0) if left else (0, 0, 0, 2)
        real = F.pad(torch.ones(1, 3, dtype=torch.bool), pad[2:])
        wide = attention(*(F.pad(x, pad, value=9.0) for x in (q, k, v)), causal() & padding(real))
        torch.testing.assert_close(wide[:, :, real[0]], alone, atol=1e-6, rtol=0)


BAD = {
    "at least 1": lambda: window(0),
    "expected booleans, True = real": lambda: padding(torch.ones(2, 3)),
    r"expected a tensor \(B, S\)": lambda: padding(torch.ones(3, dtype=torch.bool)),
    "made for 2 rows, the batch has 3": lambda: grid(padding(torch.ones(2, 4).bool()), 4, 4, B=3),
    "made for 4 keys, there are 6": lambda: grid(causal() | padding(torch.ones(1, 4).bool()), 4, 6),
    "padding: made for 1 keys, there are 6": lambda: grid(padding(torch.ones(1, 1).bool()), 4, 6),
    "documents: made for 4 keys, there are 5": lambda: grid(
        documents(torch.zeros(4).long()).at(torch.arange(5), torch.arange(5)), 5, 5),
    "queries at positions 2 … 3; its rows are 4 … 5": lambda: grid(as_mask(torch.ones(2, 6).bool()), 2, 4),
    "does not cover": lambda: grid(causal() & torch.ones(2, 3).bool(), 3, 3),
    "is no mask": lambda: as_mask(3),
    "expected booleans": lambda: as_mask(torch.ones(3, 3)),
    "stand at different positions": lambda: (
        causal().at(torch.arange(2), torch.arange(2)) & causal().at(torch.arange(3), torch.arange(3))
    ),
    "stands at 2 queries and 3 keys, but there are 4 and 3": lambda: grid(
        causal().at(torch.arange(2), torch.arange(3)), 4, 3
    ),
}


@pytest.mark.parametrize("words", list(BAD))
def test_bad_input_is_named(words):
    with pytest.raises(ValueError, match=words):
        BAD[words]()


def test_positions_carry_over_when_only_one_side_has_them():
    at = causal().at(torch.tensor([5]), torch.tensor([4, 5, 6]))
    for mask in (at & window(2), window(2) & at):
        assert isinstance(mask, Mask) and mask.dense((1, 1, 1, 3))[0, 0, 0].tolist() == [True, True, False]


def test_the_rows_of_a_batch_may_stand_at_different_positions():
    q_pos = torch.tensor([[2, 3, 4], [0, 1, 2]])
    k_pos = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    mask = causal().at(q_pos, k_pos)
    keep, mod = mask.dense((2, 4, 3, 5)).expand(2, 4, 3, 5), to_flex(mask, 3, 5)
    for b, t, s in itertools.product(range(2), range(3), range(5)):
        expected = 0 <= int(k_pos[b, s]) <= int(q_pos[b, t])
        assert (keep[b, :, t, s] == expected).all() and bool(mod(b, 0, t, s)) == expected


def test_structure_is_known_where_it_saves_a_dense_mask():
    assert window(3).structure(3, 3) == "nothing" and (causal() & window(3)).structure(3, 3) == "causal"
    assert window(2).structure(3, 3) == "dense" and causal().structure(1, 9) == "nothing"
    assert causal().structure(3, 5) == "dense"  # bottom-right: no flag says it
    assert window(9).structure(5, 3) == "dense" and causal().structure(5, 3) == "dense"  # rows see nothing


def test_a_query_before_the_text_has_no_document():
    assert show(documents(torch.tensor([0, 1, 0])), 4, 3) == ["...", "x.x", ".x.", "x.x"]


@pytest.mark.parametrize("mask", [
    everything(), causal(), causal() & window(3), causal() | prefix(2), documents(torch.tensor([[0, 0, 1, 1, 1]])),
    causal() & padding(torch.tensor([[True, True, False, True, True]])), (causal() | prefix(1)) & window(2),
    causal() | prefix(torch.tensor([2])), as_mask(torch.tensor([[True, False], [True, True]])) | causal(),
    causal().at(torch.tensor([3, 4]), torch.tensor([-1, 1, 2, 3, 4])),
], ids=repr)  # fmt: skip
def test_a_mask_can_be_pickled_and_copied(mask):
    T, S = (2, 5) if mask.q_pos is not None else (2, 2) if "table" in repr(mask) else (5, 5)
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert repr(again) == repr(mask)
        assert torch.equal(again.dense((1, 1, T, S)), mask.dense((1, 1, T, S)))
        assert again.structure(T, S) == mask.structure(T, S)


def test_a_selected_mask_can_be_pickled():
    real = torch.tensor([[True, True, True], [False, True, True]])
    chosen = (causal() & padding(real)).select(torch.tensor([1, 1, 0]))
    again = pickle.loads(pickle.dumps(chosen))
    assert torch.equal(again.dense((3, 1, 3, 3)), chosen.dense((3, 1, 3, 3)))


def test_a_table_must_cover_what_a_span_says():
    """The span stands for the positions, which are not read then."""
    mask = (causal() & padding(torch.ones(1, 3, dtype=torch.bool))).at(torch.tensor([3]), torch.arange(4), (3, 4))
    with pytest.raises(ValueError, match="padding: made for 3 keys, there are 4"):
        mask.dense((1, 1, 1, 4))


def only_the_first(b, h, q_pos, k_pos):
    return (k_pos == 0) | (b == 0) & (k_pos == q_pos)


def test_a_mask_made_of_a_predicate_alone_hides_and_can_be_copied():
    x, shape = torch.randn(2, 2, 4, 3), (2, 2, 4, 4)
    mask = Mask(only_the_first, "mine")
    expected = as_mask(only_the_first).dense(shape)
    torch.testing.assert_close(attention(x, x, x, mask), attention(x, x, x, expected))
    assert torch.equal(copy.deepcopy(mask & causal()).dense(shape), expected & causal().dense(shape))
    swapped = mask.select(torch.tensor([1, 0]))
    for again in (swapped, copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
        assert torch.equal(again.dense(shape), expected.flip(0))


@pytest.mark.parametrize("make, message", [
    (lambda: window(None), r"window\(None\): .* a whole number, at least 1"),
    (lambda: window(2.5), r"window\(2.5\)"),
    (lambda: prefix(2.5), r"prefix\(2.5\): expected a whole number"),
    (lambda: prefix("a"), r"prefix\('a'\)"),
    (lambda: prefix(torch.tensor([1.5, 2.0])), "expected a whole number of keys"),
    (lambda: documents([[0, 0]]), r"ids is \[\[0, 0\]\], expected a tensor"),
])  # fmt: skip
def test_what_no_mask_is_made_of(make, message):
    with pytest.raises(ValueError, match=message):
        make()
