"""The block: each switch against its formula."""

import copy
from dataclasses import replace

import pytest
import torch

from tx.block import Attention, Block, CrossAttention, Experts, FeedForward, Flow, RMSNorm, View
from tx.config import Config, Rope
from tx.masks import causal, padding
from tx.positions import build

V, D, H, D_K, B, T = 11, 12, 4, 3, 2, 5


def config(**switches):
    base = {"vocab_size": V, "d_model": D, "n_layers": 2, "n_heads": H, "d_ff": 20, "max_positions": 16}
    return Config(**{**base, **switches})


def made(kind, *arguments, dtype=torch.float32, **options):
    """A module with weights that are neither zero nor one, the same every time."""
    torch.manual_seed(0)
    module = kind(*arguments, **options).to(dtype).eval()
    with torch.no_grad():
        for p in module.parameters():
            p += 0.3 * torch.randn_like(p)
    return module


def vectors(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flow(c, T, memory=None, memory_mask=None, mask="causal"):
    schemes, slots = build(c), torch.arange(T)
    kinds = set(c.layer_types) | {"full"}
    mask = causal() if mask == "causal" else mask
    views = {kind: View(mask, schemes[kind], schemes[kind].tables(*3 * [slots[None]])) for kind in kinds}
    return Flow(views, slots, memory, memory_mask)


def close(got, expected, tolerance=1e-5):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


# ── norms ────────────────────────────────────────────────────────────────────────────────────────


def test_rms_norm_is_its_formula():
    x, norm = vectors(3, 4, 8), made(RMSNorm, 8, 1e-6)
    close(norm(x), norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    small = RMSNorm(8, 1e-5)(torch.full((8,), 1e-3))
    close(small, torch.full((8,), 1e-3 / (1e-6 + 1e-5) ** 0.5))
    precise = RMSNorm(8, 1e-5).double()(x[0, 0].double())
    close(precise, x[0, 0].double() / (x[0, 0].double().square().mean() + 1e-5).sqrt(), 1e-14)
    big = torch.tensor([300.0, -300, 300, 300]).half()  # its squares are infinite in fp16
    close(RMSNorm(4, 1e-5).half()(big), big / 300, 1e-3)


def test_rms_norms_round_where_their_families_do():
    x, w = (3 * vectors(4, 64)).bfloat16(), (0.3 * vectors(64, seed=2)).bfloat16()
    unit = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    for plus_one, expected in ((False, w * unit.bfloat16()), (True, (unit * (1 + w.float())).bfloat16())):
        norm = RMSNorm(64, 1e-6, plus_one).bfloat16()
        norm.weight.data = w
        assert torch.equal(norm(x), expected)


# ── attention ────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def test_grouped_heads_equal_copied_heads():
    c = config(n_kv_heads=2)
    few, x = made(Attention, c), vectors(B, T, D)
    many = Attention(replace(c, n_kv_heads=H))
    state = {k: v.unflatten(0, (2, D_K)).repeat_interleave(2, 0).flatten(0, 1) if k[:2] in ("ke", "va") else v
             for k, v in few.state_dict().items()}  # fmt: skip
    many.load_state_dict(state)
    close(many(x, flow(c, T)), few(x, flow(c, T)))


@torch.no_grad()
def test_attention_is_its_formula():
    a, x = made(Attention, config(scale_by_layer=True), 1), vectors(B, T, D)
    q, k, v = (f(x).view(B, T, H, D_K).transpose(1, 2) for f in (a.query, a.key, a.value))
    scores = (q @ k.mT / D_K**0.5 / 2).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    close(a(x, flow(a.config, T)), a.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


@torch.no_grad()
def test_switches_of_attention():
    x, plain = vectors(B, T, D), made(Attention, config())

    def out(x=x, **switches):
        a = Attention(config(**switches)).eval()
        a.load_state_dict(plain.state_dict(), strict=False)
        return a(x, flow(a.config, T)), a

    close(out(scale=3**-0.5)[0], plain(x, flow(config(), T)))
    close(out(softcap=1e4)[0], out()[0])
    assert (out(softcap=0.1)[0] - out()[0]).abs().max() > 1e-3
    close(out(clip_qkv=1e4)[0], out()[0])
    limit = 0.01 * plain.out.weight.abs().sum(1) + plain.out.bias.abs()
    assert (out(clip_qkv=0.01)[0].abs() <= limit + 1e-6).all()
    got, a = out(sinks=True)
    a.sinks.fill_(-1e4)
    close(a(x, flow(a.config, T)), out()[0])
    a.sinks.fill_(1e4)  # the sink takes all the weight
    close(a(x, flow(a.config, T)), plain.out.bias.expand(B, T, D))
    for norm in ("head", "full"):  # a longer query is no longer query after its norm
        a = made(Attention, config(qk_norm=norm, norm="rms", attention_bias=""))
        before = a(x, flow(a.config, T))
        a.query.weight.mul_(7)
        close(a(x, flow(a.config, T)), before, 1e-4)


@torch.no_grad()
def test_cross_attention_is_the_formula_with_keys_and_values_of_the_memory():
    a, x, memory = made(CrossAttention, config()), vectors(B, T, D), vectors(B, 7, D, seed=2)
    q, k, v = (
        f(y).unflatten(-1, (H, D_K)).transpose(1, 2)
        for f, y in ((a.query, x), (a.key, memory), (a.value, memory))
    )
    expected = a.out(((q @ k.mT / D_K**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
    close(a(x, flow(a.config, T, memory)), expected)


@torch.no_grad()
def test_cross_attention_sees_what_is_real_in_the_memory():
    c = config(n_kv_heads=2)
    a, x, memory = made(CrossAttention, c), vectors(B, T, D), vectors(B, 7, D, seed=2)
    real = torch.arange(7) < torch.tensor([[7], [4]])
    got = a(x, flow(c, T, memory, padding(real)))
    junk = torch.where(real[..., None], memory, 100.0)
    close(a(x, flow(c, T, junk, padding(real))), got)
    close(a(x[1:], flow(c, T, memory[1:, :4])), got[1:])
    assert (a(x, flow(c, T, memory)) - got)[1].abs().max() > 1e-3


@torch.no_grad()
def test_turned_queries_make_attention_relative():
    c = config(positions="rope", rope=Rope(100.0, 2), window=3)
    a, x = made(Attention, c), vectors(B, T, D)
    here, there = flow(c, T), flow(c, T)
    view = there.views["window"]
    view.tables = view.scheme.tables(torch.arange(T)[None] + 9, None, None)
    close(a(x, there), a(x, here))
    one = a(x.flip(1), flow(c, T, mask=None))
    assert (one - a(x, flow(c, T, mask=None)).flip(1)).abs().max() > 1e-3


# ── feed-forward ─────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def test_feed_forwards_are_their_formulas():
    x = vectors(B, T, D)
    f = made(FeedForward, config(activation="relu"))
    close(f(x), f.down(f.up(x).clamp(min=0)))
    g = made(FeedForward, config(activation="silu", gated=True, ffn_bias=False))
    gate = x @ g.gate.weight.T
    close(g(x), (gate * gate.sigmoid() * (x @ g.up.weight.T)) @ g.down.weight.T)


@pytest.mark.parametrize("renormalise", [True, False])
@torch.no_grad()
def test_experts_equal_a_loop_over_tokens(renormalise):
    c = config(n_experts=4, experts_per_token=2, gated=True, norm_expert_weights=renormalise)
    moe, x = made(Experts, c), vectors(B, T, D)
    got = moe(x)
    for b in range(B):
        for t in range(T):
            weights = moe.router(x[b, t]).softmax(-1)
            best = weights.argsort(descending=True)[:2]
            total = weights[best].sum() if renormalise else 1.0
            expected = sum(weights[e] / total * moe.experts[e](x[b, t]) for e in best)
            close(got[b, t], expected)


@torch.no_grad()
def test_the_router_weighs_in_fp32():
    moe = made(Experts, config(n_experts=4, experts_per_token=2, gated=True))
    moe, x = moe.bfloat16(), vectors(B, T, D).bfloat16()
    for expert in moe.experts:
        expert.down.weight.zero_()  # so that its bias is all it says
    weights, best = moe.router(x).float().softmax(-1).topk(2)
    weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()[..., None]
    biases = torch.stack([expert.down.bias for expert in moe.experts])
    assert torch.equal(moe(x), (biases[best] * weights).sum(2))


# ── the block ────────────────────────────────────────────────────────────────────────────────────

PLACES = {
    "pre": lambda b, x, f: (y := x + b.attention(b.attention_norm(x), f))
    + b.feed_forward(b.feed_forward_norm(y)),
    "post": lambda b, x, f: b.feed_forward_norm(
        (y := b.attention_norm(x + b.attention(x, f))) + b.feed_forward(y)),
    "output": lambda b, x, f: (y := x + b.attention_output_norm(b.attention(x, f)))
    + b.feed_forward_output_norm(b.feed_forward(y)),
    "sandwich": lambda b, x, f: (y := x + b.attention_output_norm(b.attention(b.attention_norm(x), f)))
    + b.feed_forward_output_norm(b.feed_forward(b.feed_forward_norm(y))),
    "parallel": lambda b, x, f: x + b.attention(b.attention_norm(x), f)
    + b.feed_forward(b.feed_forward_norm(x)),
    "residual_after_norm": lambda b, x, f:
    b.feed_forward_norm(y := (n := b.attention_norm(x)) + b.attention(n, f))
    + b.feed_forward(b.feed_forward_norm(y)),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_norms_stand_where_the_family_has_them(place):
    switch = {place: True} if place in ("parallel", "residual_after_norm") else {"norm_place": place}
    b, x = made(Block, config(**switch)), vectors(B, T, D)
    close(b(x, flow(b.config, T)), PLACES[place](b, x, flow(b.config, T)))


@torch.no_grad()
def test_a_block_of_two_stacks_reads_its_memory():
    b, x, memory = made(Block, config(), cross=True), vectors(B, T, D), vectors(B, 7, D, seed=2)
    f = flow(b.config, T, memory)
    y = x + b.attention(b.attention_norm(x), f)
    y = y + b.cross_attention(b.cross_attention_norm(y), f)
    close(b(x, f), y + b.feed_forward(b.feed_forward_norm(y)))


def test_gradients_of_a_block():
    c = config(d_model=4, n_heads=2, n_kv_heads=1, d_ff=5, norm="rms", gated=True, positions="rope",
               rope=Rope(100.0, 2), qk_norm="head", softcap=5.0, n_experts=2, experts_per_token=2)  # fmt: skip
    b = made(Block, c, dtype=torch.float64)
    x = vectors(1, 3, 4).double().requires_grad_()
    f = flow(c, 3)
    assert torch.autograd.gradcheck(lambda x, *_: b(x, f), (x, *b.parameters()), fast_mode=True)


@torch.no_grad()
def test_deberta_with_heads_of_another_width():
    c = config(positions="deberta", bucket_distance=8, content_position=True, position_content=True, d_head=5)
    layer, x = made(Attention, c), vectors(B, T, D)
    assert layer.position_key.out_features == 20 and layer(x, flow(c, T)).shape == (B, T, D)


@pytest.mark.parametrize("switches", [{}, {"parallel": True}, {"norm_place": "sandwich"}])
@torch.no_grad()
def test_everything_that_a_block_adds_is_dropped(switches):
    b = made(Block, config(dropout=1 - 1e-9, **switches), cross=True).train()
    x, memory = vectors(B, T, D), None if "parallel" in switches else vectors(B, 7, D)
    assert torch.equal(b(x, flow(b.config, T, memory)), x)


@torch.no_grad()
def test_attention_weights_and_inner_features_are_dropped_in_training_alone():
    x, none = vectors(B, T, D), 1 - 1e-9
    for kind, switch, out, given in ((Attention, "attention_dropout", "out", (flow(config(), T),)),
                                     (FeedForward, "ffn_dropout", "down", ())):  # fmt: skip
        layer = made(kind, config(**{switch: none}))
        close(layer(x, *given), made(kind, config())(x, *given))
        assert torch.equal(layer.train()(x, *given), getattr(layer, out).bias.expand(B, T, D))


def test_only_the_first_layer_may_lack_the_norm_before_attention():
    c = config(first_attention_norm=False)
    assert isinstance(Block(c, 0).attention_norm, torch.nn.Identity)
    assert isinstance(Block(c, 1).attention_norm, torch.nn.LayerNorm)


# ── a layer that holds a part of the heads ───────────────────────────────────────────────────────


def half(layer, rank, names=("query", "key", "value", "up", "out", "down")):
    """A copy that holds what one of two ranks holds: its share of the heads or of the inner features."""
    part = copy.deepcopy(layer)
    for name, linear in part.named_children():
        if name in names and name in ("out", "down"):
            linear.weight.data, linear.bias.data = linear.weight.chunk(2, dim=1)[rank], linear.bias / 2
        elif name in names:
            linear.weight.data, linear.bias.data = linear.weight.chunk(2)[rank], linear.bias.chunk(2)[rank]
    return part


@torch.no_grad()
@pytest.mark.parametrize("switches", [{}, {"positions": "rope", "rope": Rope(100.0, 2)}, {"n_kv_heads": 2}])
def test_shards_of_a_layer_add_up_to_it(switches):
    c, x = config(**switches), vectors(B, T, D)
    for layer, arguments in ((made(Attention, c), (x, flow(c, T))), (made(FeedForward, c), (x,))):
        close(half(layer, 0)(*arguments) + half(layer, 1)(*arguments), layer(*arguments))


@torch.no_grad()
def test_shards_may_share_the_only_key_and_value_head():
    c, x = config(n_kv_heads=1), vectors(B, T, D)
    layer = made(Attention, c)
    parts = (half(layer, rank, ("query", "out"))(x, flow(c, T)) for rank in range(2))
    close(sum(parts), layer(x, flow(c, T)))


@torch.no_grad()
@pytest.mark.parametrize(("switches", "names", "words"), [
    ({"positions": "alibi"}, (), "2 query and 2 key heads of 4 and 4: 'alibi' adds numbers for 4 heads"),
    ({"positions": "t5", "buckets": 8, "bucket_distance": 16}, (), "'t5' adds numbers for 4 heads"),
    ({"sinks": True}, (), "there are 4 sinks, expected one a head"),
    ({"qk_norm": "full"}, (), "makes 2 of 4 heads: qk_norm = 'full' norms over all of them"),
    ({"n_kv_heads": 2}, ("query", "out"), "2 query and 2 key heads of 4 and 2: queries would read the wrong keys"),
])  # fmt: skip
def test_what_a_shard_cannot_do_is_refused(switches, names, words):
    layer = made(Attention, config(**switches))
    part = half(layer, 0, *([names] if names else []))
    with pytest.raises(ValueError, match=words):
        part(vectors(B, T, D), flow(layer.config, T))


@torch.no_grad()
def test_a_mask_of_single_heads_is_refused_by_a_shard():
    part = half(made(Attention, config()), 1)
    with pytest.raises(ValueError, match=r"mask \(1, 4, 5, 5\) does not broadcast"):
        part(vectors(B, T, D), flow(config(), T, mask=torch.ones(1, H, T, T, dtype=torch.bool)))
