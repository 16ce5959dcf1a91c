"""The block: each switch against its formula, the stack against the contracts."""

from dataclasses import replace

import pytest
import torch

from tx.block import Attention, Block, Experts, FeedForward, Flow, RMSNorm, Stack
from tx.config import Config, Rope
from tx.course import contracts
from tx.masks import causal, padding, prefix
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
    schemes, slots = build(c), torch.arange(T)[None]
    kinds = set(c.layer_types) | {"full"}
    mask = causal() if mask == "causal" else mask
    by_type = {kind: (mask, schemes[kind], schemes[kind].tables(slots, slots, slots)) for kind in kinds}
    return Flow(by_type, memory, memory_mask)


def close(got, expected, tolerance=1e-5):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


# ── norms ────────────────────────────────────────────────────────────────────────────────────────


def test_rms_norm_is_its_formula():
    x, norm = vectors(3, 4, 8), made(RMSNorm, 8, 1e-6)
    close(norm(x), norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    small = RMSNorm(8, 1e-5)(torch.full((8,), 1e-3))
    close(small, torch.full((8,), 1e-3 / (1e-6 + 1e-5) ** 0.5))
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
    c = config(kv_heads=2)
    few, x = made(Attention, c), vectors(B, T, D)
    many = Attention(replace(c, kv_heads=H))
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
    a, x, memory = made(Attention, config(), cross=True), vectors(B, T, D), vectors(B, 7, D, seed=2)
    q, k, v = (
        f(y).unflatten(-1, (H, D_K)).transpose(1, 2)
        for f, y in ((a.query, x), (a.key, memory), (a.value, memory))
    )
    expected = a.out(((q @ k.mT / D_K**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
    close(a(x, flow(a.config, T, memory)), expected)


@torch.no_grad()
def test_cross_attention_sees_what_is_real_in_the_memory():
    c = config(kv_heads=2)
    a, x, memory = made(Attention, c, cross=True), vectors(B, T, D), vectors(B, 7, D, seed=2)
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
    mask, scheme, _ = here.by_type["window"]
    there.by_type = {"window": (mask, scheme, scheme.tables(torch.arange(T)[None] + 9, None, None))}
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
    c = config(d_model=4, n_heads=2, kv_heads=1, d_ff=5, norm="rms", gated=True, positions="rope",
               rope=Rope(100.0, 2), qk_norm="head", softcap=5.0, n_experts=2, experts_per_token=2)  # fmt: skip
    b = made(Block, c, dtype=torch.float64)
    x = vectors(1, 3, 4).double().requires_grad_()
    f = flow(c, 3)
    assert torch.autograd.gradcheck(lambda x, *_: b(x, f), (x, *b.parameters()), fast_mode=True)


# ── the stack ────────────────────────────────────────────────────────────────────────────────────

KINDS = {
    "learned": {}, "none": {"positions": "none"}, "alibi": {"positions": "alibi"},
    "rope": {"positions": "rope", "rope": Rope(100.0, 2), "norm": "rms_plus_one", "gated": True, "kv_heads": 2},
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


@pytest.mark.parametrize("kind", ["learned", "rope", "alibi"])
@torch.no_grad()
def test_padding_on_the_left_moves_nothing(kind):
    stack = made(Stack, config(**KINDS[kind]))
    tokens = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 9, 2, 6]])
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    close(stack(tokens, real)[1, 2:], stack(tokens[1:, 2:])[0])
    close(stack(tokens, torch.ones_like(real)), stack(tokens))


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
    mixed = made(Stack, config(window=2, layer_kinds=("window", "full")))
    contracts.uses_every_past_key(mixed, vectors(B, T, D))
    contracts.causality(mixed, vectors(B, T, D))
    two = made(Stack, config(window=2, positions="none", layer_kinds=("full", "window")))
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
    c = config(embedding_width=6, n_segments=2, embedding_norm=True, embedding_scale=2.0, share_layers=True,
               first_attention_norm=False, final_norm=False)  # fmt: skip
    stack, tokens = made(Stack, c), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    assert len(stack.blocks) == 1 and isinstance(stack.blocks[0].attention_norm, torch.nn.Identity)
    x = 2 * stack.embedding(tokens) + stack.segments(segments) + stack.positions["full"].table.weight[:5]
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
    (torch.tensor([[1, V]]), None, f"token id {V} is outside the vocabulary of {V}"),
    (torch.tensor([[1, -1]]), None, "token id -1 is outside"),
    (torch.tensor([[1, 2]]), torch.ones(1, 3, dtype=torch.bool), r"expected booleans \(B, S\) = \(1, 2\)"),
    (torch.tensor([[1, 2]]), torch.ones(1, 2), "of torch.float32: expected booleans"),
    (torch.zeros(1, 17, dtype=torch.long), None, "position 16 is beyond the learned table of 16"),
    ([[1, 2]], None, "tokens are a list: expected a tensor of ids"),
    (torch.tensor([[1, 2]]).byte(), None, "tokens of torch.uint8: expected ids of torch.int64 or torch.int32"),
    (torch.tensor([[1.0, 2.0]]), None, rf"\(1, 2\) of torch.float32: expected ids \(B, T\), or \(B, T, {D}\)"),
    (torch.zeros(1, 2, D + 1), None, rf"tokens \(1, 2, {D + 1}\) of torch.float32: expected ids"),
    (torch.zeros(2, 0, dtype=torch.long), None, r"tokens \(2, 0\): expected one token at least"),
])  # fmt: skip
def test_bad_input_is_named(tokens, mask, words):
    with pytest.raises(ValueError, match=words):
        made(Stack, config())(tokens, mask)


@pytest.mark.parametrize(("options", "words"), [
    ({"positions": torch.arange(3)}, r"positions \(3,\) of torch.int64: expected .* \(1, 3\) or \(2, 3\)"),
    ({"positions": torch.arange(2)[None]}, r"positions \(1, 2\)"),
    ({"positions": torch.zeros(2, 3)}, r"positions \(2, 3\) of torch.float32"),
    ({"positions": torch.full((1, 3), -1)}, "position -1: learned positions begin at 0"),
    ({"segments": torch.zeros(2, 2, dtype=torch.long)}, r"segments \(2, 2\) of torch.int64: expected .* \(2, 3\)"),
    ({"segments": torch.full((2, 3), 2)}, "segments 2 … 2: expected 0 … 1"),
    ({"memory": torch.zeros(1, 4, D)}, rf"memory \(1, 4, {D}\): expected \(B, S, D\) with B = 2, D = {D}"),
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


@pytest.mark.parametrize(("switches", "words"), [
    ({"d_model": 13}, "d_model = 13 is not divisible by n_heads = 4"),
    ({"kv_heads": 3}, "kv_heads = 3 does not divide n_heads = 4"),
    ({"layer_kinds": ("full",)}, "expected as many as n_layers = 2"),
    ({"norm": "rmsnorm"}, "norm = 'rmsnorm': expected one of 'layer'"),
    ({"positions": "rotary"}, "positions = 'rotary': expected one of"),
    ({"n_experts": 2, "experts_per_token": 3}, "experts_per_token = 3: expected 1 … n_experts = 2"),
    ({"n_experts": 2}, "experts_per_token = 0: expected 1"),
])  # fmt: skip
def test_bad_configs_are_named(switches, words):
    with pytest.raises(ValueError, match=words):
        config(**switches)


def test_roberta_counts_only_what_is_no_padding_and_gives_padding_the_row_before_the_first():
    config = Config(9, 8, 1, 2, 16, 12, causal=False, position_offset=2, positions_skip_pad=1)
    stack = Stack(config)
    tokens = torch.tensor([[1, 5, 6, 1, 7], [5, 1, 1, 1, 1]])
    assert stack._positions_of(tokens, None, 0).tolist() == [[-1, 0, 1, -1, 2], [0, -1, -1, -1, -1]]
    assert torch.equal(stack.positions["full"].embed(torch.tensor([[-1]]))[0, 0],
                       stack.positions["full"].table.weight[1])  # fmt: skip
