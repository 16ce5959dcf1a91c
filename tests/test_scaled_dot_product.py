"""`attention` against PyTorch's own, against float64, and against its contracts, on every path."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tx
from tx import attention, causal, everything, padding, similarity, softmax, window
from tx.course import contracts

PATHS = ("explicit", "sdpa", "auto")
# Measured over 2,000 random calls: the paths differ by up to 1.4e-6 (fp32), 1.7e-2 (bf16), 2e-3 (fp16).
NOISE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def qkv(B=2, H=4, G=2, T=5, S=7, d=8, d_v=6, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = (B, H, T, d), (B, G, S, d), (B, G, S, d_v)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def by_hand(q, k, v, keep=None, bias=None, scale=None, softcap=None, sinks=None):
    """Attention one number at a time, in plain Python: the oracle that shares no code with tx."""
    B, H, T, d = q.shape
    G, S, d_v = k.shape[1], k.shape[2], v.shape[3]
    out = torch.zeros(B, H, T, d_v, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            g = h * G // H
            for t in range(T):
                scores = []
                for s in range(S):
                    if keep is not None and not bool(keep.expand(B, H, T, S)[b, h, t, s]):
                        continue
                    score = sum(float(q[b, h, t, i]) * float(k[b, g, s, i]) for i in range(d))
                    score *= d**-0.5 if scale is None else scale
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    if bias is not None:
                        score += float(bias.expand(B, H, T, S)[b, h, t, s])
                    scores.append((s, score))
                if not scores:
                    continue
                top = max(score for _, score in scores)
                total = sum(math.exp(score - top) for _, score in scores)
                total += 0 if sinks is None else math.exp(float(sinks[h]) - top)
                for s, score in scores:
                    out[b, h, t] += math.exp(score - top) / total * v[b, g, s]
    return out


@pytest.mark.parametrize("options", [
    {}, {"scale": 0.3}, {"softcap": 2.0}, {"bias": True}, {"sinks": True},
    {"keep": True}, {"keep": True, "bias": True, "softcap": 1.5, "sinks": True, "scale": 0.7},
])  # fmt: skip
def test_equals_the_sum_written_out(options):
    q, k, v = qkv(dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    options = dict(options)
    keep = (torch.rand(2, 1, 5, 7, generator=g) > 0.5) if options.pop("keep", False) else None
    if options.get("bias"):
        options["bias"] = torch.randn(1, 4, 5, 7, generator=g, dtype=torch.float64)
    if options.get("sinks"):
        options["sinks"] = torch.randn(4, generator=g, dtype=torch.float64)
    expected = by_hand(q, k, v, keep, **options)
    torch.testing.assert_close(attention(q, k, v, keep, **options), expected, atol=1e-12, rtol=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.tuples(*[st.integers(1, n) for n in (3, 3, 3, 6, 6, 9, 5)]),
    dtype=st.sampled_from(list(NOISE)), seed=st.integers(0, 9), density=st.floats(0.0, 1.0),
    biased=st.booleans(),
)  # fmt: skip
def test_all_paths_agree_forward_and_backward(shape, dtype, seed, density, biased):
    B, G, share, T, S, d, d_v = shape
    q, k, v = (x.requires_grad_() for x in qkv(B, G * share, G, T, S, d, d_v, dtype, seed))
    g = torch.Generator().manual_seed(seed)
    keep = torch.rand(B, 1, T, S, generator=g) < density  # sparse ones have empty rows
    bias = torch.randn(1, G * share, T, S, generator=g).to(dtype) if biased else None
    results = []
    for how in PATHS:
        out = attention(q, k, v, keep, bias=bias, how=how)
        grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
        assert all(bool(x.isfinite().all()) for x in (out, *grads))
        results.append((out, *grads))
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            scale = max(1.0, expected.detach().abs().max().item())
            torch.testing.assert_close(got, expected, atol=NOISE[dtype] * scale, rtol=0)


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("T,S", [(1, 1), (1, 7), (5, 7), (7, 7), (7, 4)])
@pytest.mark.parametrize("mask", [
    None, causal(), causal() & window(3), window(2), window(99), causal() & window(99), everything(),
], ids=str)  # fmt: skip
def test_structure_never_changes_the_result(how, T, S, mask):
    """A mask that the fused path turns into a flag gives what its dense form gives."""
    q, k, v = qkv(T=T, S=S)
    dense = None if mask is None else mask.dense((2, 4, T, S))
    expected = attention(q, k, v, dense, how="explicit")
    torch.testing.assert_close(attention(q, k, v, mask, how=how), expected, atol=1e-5, rtol=0)


def test_a_bias_of_another_dtype_and_masks_of_few_axes_go_every_path():
    q = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    for dtype, other, bound in ((torch.bfloat16, torch.float32, 0.05), (torch.float32, torch.float64, 1e-6)):
        x, bias = q.to(dtype), q[..., :3].to(other)
        explicit, fused = (attention(x, x, x, bias=bias, how=how) for how in ("explicit", "sdpa"))
        assert explicit.dtype == dtype
        torch.testing.assert_close(explicit, fused, atol=bound, rtol=0)
    for mask in (torch.tensor([True, False, True]), torch.tensor(True)):
        explicit, fused = (attention(q, q, q, mask, how=how) for how in ("explicit", "sdpa"))
        torch.testing.assert_close(explicit, fused, atol=1e-6, rtol=0)


def test_the_fused_path_gets_the_structure_and_not_a_dense_mask(monkeypatch):
    seen = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **o: (seen.append(o), real(*a, **o))[1])
    for mask, T, S in [(causal(), 7, 7), (causal(), 1, 7), (None, 5, 7), (causal() & window(7), 7, 7)]:
        attention(*qkv(T=T, S=S), mask)
    assert all(o.get("attn_mask") is None for o in seen)
    assert [bool(o.get("is_causal")) for o in seen] == [True, False, False, True]
    attention(*qkv(T=5, S=7), causal())
    assert seen[-1]["attn_mask"].dtype == torch.bool


def test_gradients_in_float64():
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 1, 3, 4, 3, 2, torch.float64))
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def f(q, k, v, bias, sinks):
        return attention(q, k, v, keep, bias=bias, sinks=sinks, softcap=3.0)

    assert torch.autograd.gradcheck(f, (q, k, v, bias, sinks))


@pytest.mark.parametrize("dtype", list(NOISE))
@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_query_that_sees_nothing_reads_zeros_and_sends_no_gradient(dtype, how, biased):
    keep = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    q, k, v = (x.requires_grad_() for x in qkv(T=4, S=4, dtype=dtype))
    bias = torch.randn(4, 4, 4).to(dtype) if biased else None
    out = attention(q, k, v, keep, bias=bias, how=how)
    out.float().square().sum().backward()
    assert bool((out[:, :, 2] == 0).all()) and bool((q.grad[:, :, 2] == 0).all())
    assert all(bool(x.grad.isfinite().all()) for x in (q, k, v))
    with torch.autograd.detect_anomaly(check_nan=True):  # nor a NaN on the way
        attention(q, k, v, keep, bias=bias, how="explicit").float().sum().backward()


def test_a_learned_bias_gets_its_gradient_and_a_hidden_entry_none():
    q, k, v = qkv(T=3, S=3)
    bias = torch.zeros(1, 4, 3, 3, requires_grad=True)
    attention(q, k, v, causal(), bias=bias).square().sum().backward()
    assert bool((bias.grad[:, :, 0, 1:] == 0).all()) and bool((bias.grad[:, :, 2] != 0).any())


def test_scores_that_overflow_fp16_before_scaling():
    """Reference case: q·k is 102,400 before the scale, beyond the 65,504 of fp16."""
    q = torch.full((1, 1, 1, 64), 40.0).half()
    k = torch.stack([torch.full((64,), 40.0), torch.full((64,), 39.875)])[None, None].half()
    v = torch.stack([torch.arange(64.0), -torch.arange(64.0)])[None, None].half()
    for how in PATHS:
        out = attention(q, k, v, how=how).float()
        torch.testing.assert_close(out, v[:, :, :1].float(), atol=1e-2, rtol=1e-2)
    assert softmax(torch.tensor([[1e4, 9990.0, -1e4]])).isfinite().all()


def test_softmax_is_torchs_where_a_row_is_not_empty():
    for dtype in NOISE:
        scores = (50 * torch.randn(3, 4, 9)).to(dtype)
        torch.testing.assert_close(softmax(scores), torch.softmax(scores, -1))
    assert softmax(torch.full((2, 3), -torch.inf)).tolist() == [[0.0] * 3] * 2
    assert softmax(torch.zeros(0, 3)).shape == (0, 3)


def test_similarity_scales_by_the_width_of_a_head():
    q, k, _ = qkv()
    torch.testing.assert_close(similarity(q[:, :2], k), q[:, :2] @ k.mT / math.sqrt(8))
    torch.testing.assert_close(similarity(q[0, 0], k[0, 0], 1.0), q[0, 0] @ k[0, 0].T)


def test_query_heads_share_in_neighbouring_groups():
    """Reference case: constant values by key head show which one each query head reads."""
    q, k, _ = qkv(1, 6, 2)
    v = torch.stack([torch.full((7, 4), 1.0), torch.full((7, 4), 2.0)])[None]
    for how in PATHS:
        read = attention(q, k, v, how=how).mean((0, 2, 3))
        torch.testing.assert_close(read, torch.tensor([1.0, 1, 1, 2, 2, 2]))


@pytest.mark.parametrize("how", PATHS)
def test_contracts(how):
    q, k, v = qkv()

    def attend(q, k, v, mask=None):
        return attention(q, k, v, mask, how=how)

    contracts.convexity(attend, q, k, v)
    contracts.keys_are_a_set(attend, q, k, v)
    contracts.one_token_is_its_value(attend, v[:, :, :1])
    contracts.grouped_equals_multihead(attend, q, k, v)
    contracts.batch_independence(lambda x: attend(x, x, x), torch.randn(3, 2, 5, 8))
    q, k, v = qkv(T=7)
    for cuts in ([7], [1] * 7, [3, 4], [2, 1, 4]):
        contracts.chunks_equal_the_whole(lambda *a: attend(*a, causal()), q, k, v, cuts)
        contracts.chunks_equal_the_whole(lambda *a: attend(*a, causal() & window(3)), q, k, v, cuts)


def test_weights():
    q, k, v = qkv()
    out, weights = attention(q, k, v, causal(), return_weights=True)
    contracts.rows_sum_to_one(lambda: weights)
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, 1))
    assert bool((weights[:, :, 0, 3:] == 0).all()), "query 0 of 5 stands at key 2 of 7"
    out, weights = attention(q, k, v, sinks=torch.zeros(4), return_weights=True)
    assert bool((weights.sum(-1) < 1).all())


@pytest.mark.slow
@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("mask", [causal(), causal() & window(3), everything()], ids=repr)
def test_sinks_equal_the_reference(G, mask):
    """Values and every gradient against gpt-oss's own attention, in float64."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    H, T, S = 4, 5, 7
    q, k, v = (x.requires_grad_() for x in qkv(2, H, G, T, S, dtype=torch.float64))
    g = torch.Generator().manual_seed(1)
    sinks = torch.randn(H, dtype=torch.float64, generator=g).requires_grad_()
    module = torch.nn.Module().eval()
    module.sinks, module.num_key_value_groups = sinks, H // G
    hidden = torch.zeros(T, S, dtype=torch.float64).masked_fill(~mask.dense((1, 1, T, S))[0, 0], -torch.inf)
    expected = eager_attention_forward(module, q, k, v, hidden, scaling=0.3)[0].transpose(1, 2)
    out = attention(q, k, v, mask, scale=0.3, sinks=sinks)
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=g)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    for got, wanted in zip(
        torch.autograd.grad(out, (q, k, v, sinks), upstream),
        torch.autograd.grad(expected, (q, k, v, sinks), upstream), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)
    assert (attention(q, k, v, mask, scale=0.3) - out).abs().max() > 0.1


def test_dropout_is_the_callers_and_keeps_the_mean():
    q, k, v = qkv(1, 4, 4, 6, 7)
    torch.manual_seed(0)
    for how in PATHS:
        assert torch.equal(attention(q, k, v, dropout=0.0, how=how), attention(q, k, v, how=how))
        many = torch.stack([attention(q, k, v, dropout=0.5, how=how) for _ in range(2000)])
        error = (many.mean(0) - attention(q, k, v)).abs().max()
        assert error < 5 * many.std(0).max() / 2000**0.5


def test_inputs_may_be_strided_and_stay_as_they_are():
    x = torch.randn(2, 5, 4, 8)
    q = x.transpose(1, 2)
    before = x.clone()
    for how in PATHS:
        torch.testing.assert_close(
            attention(q, q, q, causal(), how=how), attention(*[q.contiguous()] * 3, causal(), how=how)
        )
        shared = q[:, :1].expand(2, 4, 5, 8)
        torch.testing.assert_close(attention(q, shared, shared, how=how), attention(q, q[:, :1], q[:, :1]))
    assert torch.equal(x, before)


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("B,T", [(0, 3), (2, 0)])
def test_empty_axes(how, B, T):
    assert attention(*qkv(B=B, T=T), causal(), how=how).shape == (B, 4, T, 6)


def test_junk_behind_a_mask_has_no_effect():
    q, k, v = qkv()
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1]]).bool()
    hidden = ~real[:, None, :, None]
    for how in PATHS:
        clean = attention(q, k, v, padding(real), how=how)
        junk = attention(q, k.masked_fill(hidden, 1e4), v.masked_fill(hidden, -1e4), padding(real), how=how)
        torch.testing.assert_close(junk, clean, atol=1e-5, rtol=0)


BAD = {
    "multiple": (dict(H=8, G=3), {}),
    "transpose axes 1 and 2": (dict(H=8, G=3), {}),
    "queries have width": (dict(), dict(k=torch.zeros(2, 2, 7, 5))),
    "every key needs its value": (dict(), dict(v=torch.zeros(2, 2, 6, 6))),
    "batch sizes differ": (dict(), dict(q=torch.zeros(3, 4, 5, 8))),
    "expected 4": (dict(), dict(q=torch.zeros(4, 5, 8))),
    "one floating-point type": (dict(), dict(q=torch.zeros(2, 4, 5, 8, dtype=torch.float64))),
    "a mask is boolean": (dict(), dict(mask=torch.ones(5, 7))),
    "does not broadcast": (dict(), dict(mask=torch.ones(2, 7).bool())),
    "bias": (dict(), dict(bias=torch.ones(5, 6))),
    "one score a head": (dict(), dict(sinks=torch.zeros(3))),
    "softcap = 0": (dict(), dict(softcap=0.0)),
    "dropout = 1.5": (dict(), dict(dropout=1.5)),
    "'flash'": (dict(), dict(how="flash")),
    "no soft cap": (dict(), dict(how="sdpa", softcap=5.0)),
    "length 0": (dict(S=0), dict()),
    "is no mask": (dict(), dict(mask="causal")),
}


@pytest.mark.parametrize("words", list(BAD))
def test_bad_input_is_named(words):
    shapes, options = BAD[words]
    q, k, v = qkv(**shapes)
    arguments = {"q": q, "k": k, "v": v, **options}
    with pytest.raises(ValueError, match=words):
        attention(**arguments)


def test_names_are_exported_lazily():
    assert set(dir(tx)) == set(tx.__all__)
    for name in tx.__all__:
        assert callable(getattr(tx, name))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = tx.atention
