"""Fused and compiled models give the numbers of the plain ones, and refuse what they cannot do any more."""

import copy
import functools
import shutil

import pytest
import torch
from test_block import close, config, made
from torch import nn

from tx.block import Attention
from tx.cache import Cache
from tx.checkpoints import build, save
from tx.decoder import Decoder
from tx.encoder_decoder import EncoderDecoder
from tx.sampling import generate
from tx.speed import Joined, Linear, compile_blocks, fuse

LLAMA = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, max_position_embeddings=64)  # fmt: skip
CONFIGS = {
    "gpt2": dict(model_type="gpt2", vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "qwen2": dict(LLAMA, model_type="qwen2"),  # biases of q, k and v, none of the output
    "gemma3": dict(LLAMA, model_type="gemma3_text", head_dim=12, sliding_window=4),
    "mixtral": dict(LLAMA, model_type="mixtral", num_local_experts=3, num_experts_per_tok=2),
    "olmo2": dict(LLAMA, model_type="olmo2"),  # a norm over the whole of q
    "deberta-v1": dict(LLAMA, model_type="deberta", relative_attention=True, position_biased_input=False,
                       pos_att_type=["c2p", "p2c"], type_vocab_size=0),
    "deberta-shared": dict(LLAMA, model_type="deberta-v2", relative_attention=True, position_biased_input=False,
                           pos_att_type=["c2p", "p2c"], type_vocab_size=0, share_att_key=True),
    "t5": dict(model_type="t5", vocab_size=61, d_model=32, d_kv=6, num_heads=4, num_layers=2, d_ff=48,
               feed_forward_proj="gated-gelu"),
    "whisper": dict(model_type="whisper", vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=2,
                    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40,
                    num_mel_bins=8, max_source_positions=10, max_target_positions=20),
}  # fmt: skip


def make(name, dtype=torch.float32):
    torch.manual_seed(0)
    model = build(CONFIGS[name]).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if name in ("gpt2", "gemma3", "t5"):
        model.tie()
    return model.to(dtype).eval()


def run(model, T):
    tokens = torch.arange(2 * T).view(2, T) % 61  # (B, T)
    if isinstance(model, EncoderDecoder):
        source = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(1)) if model.front else tokens
        return model(source, tokens)
    return model(tokens)


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("T", [1, 7])
def test_fused_gives_the_same_numbers(name, T):
    model = make(name)
    expected = run(model, T)
    got = run(fuse(model), T)
    assert (got - expected).abs().max().item() <= 1e-5 * max(1.0, expected.std().item())


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3", "mixtral"])
def test_fused_generates_the_same_tokens(name):
    model = make(name)
    for prompt in (torch.tensor([[3, 1, 4]]), torch.tensor([[3, 1, 4], [1, 5, 9]])):
        plain = generate(model, prompt, 12)
        assert torch.equal(generate(fuse(copy.deepcopy(model)), prompt, 12), plain)


def test_what_is_joined():
    """One product for query, key and value and one for gate and up; a shared position projection needs its own."""
    model = fuse(make("qwen2"))
    block = model.stack.blocks[0]
    assert block.attention.joined.weight.shape == ((4 + 2 + 2) * 8, 32)
    assert block.feed_forward.joined.weight.shape == (2 * 48, 32)
    assert not hasattr(block.attention, "query") and not hasattr(block.feed_forward, "gate")
    assert isinstance(block.attention.out, Linear)
    assert not hasattr(fuse(make("deberta-shared")).stack.blocks[0].attention, "joined")
    assert hasattr(fuse(make("deberta-v1")).stack.blocks[0].attention, "joined")
    whisper = fuse(make("whisper")).decoder.blocks[0]
    assert not hasattr(whisper.cross_attention, "joined") and whisper.attention.joined.bias is not None


def test_fusing_adds_no_parameters_and_keeps_tied_weights():
    model = make("gpt2")
    before = sum(p.numel() for p in model.parameters())
    fuse(fuse(model))  # twice is as good as once
    assert sum(p.numel() for p in model.parameters()) == before
    assert model.head.linear.weight is model.stack.embedding.weight


def test_joined_with_and_without_biases():
    g = torch.Generator().manual_seed(0)
    layers = [torch.nn.Linear(6, n, bias=n != 3) for n in (4, 3, 5)]
    for x in (torch.randn(2, 3, 6, generator=g), torch.randn(1, 1, 6, generator=g), torch.randn(6, generator=g),
              torch.randn(3, 6, generator=g).mT.contiguous().mT[:1]):  # fmt: skip
        for got, layer in zip(Joined(*layers)(x), layers, strict=True):
            assert got.shape == (*x.shape[:-1], layer.out_features)
            torch.testing.assert_close(got, layer(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_single_row_is_as_exact_as_a_matrix(dtype):
    """`torch.mv` sums in fp32 too: half a unit in the last place of the result, as `F.linear`."""
    g = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 777, generator=g).to(dtype) for n in (50, 1))
    exact = x.double() @ weight.double().mT
    error = (Linear(weight)(x).double() - exact).abs().max().item()
    assert error <= torch.finfo(dtype).eps * exact.abs().max().item()


def test_a_fused_model_cannot_be_saved_or_trained(tmp_path):
    model = fuse(make("qwen2"))
    model.source_config = CONFIGS["qwen2"]
    with pytest.raises(ValueError, match="attention.joined.*tx.fuse"):
        save(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(model, 3).sum().backward()


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma3"])
def test_blocks_are_compiled_once_for_one_token(name, monkeypatch):
    """With the compiler's front end, and without its machine code: the tokens are those of the plain model,
    prompts run as they are, and a second text compiles nothing more."""
    made = []

    def backend(graph, inputs):
        made.append([x.shape for x in inputs if isinstance(x, torch.Tensor)])
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend, fullgraph=True))
    model = make(name)
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    plain = generate(model, prompt, 10, cache=Cache(model.config, room=40))
    compile_blocks(fuse(model))
    assert torch.equal(generate(model, prompt, 10, cache=Cache(model.config, room=40)), plain)
    once = len(made)
    assert 1 <= once <= 2 * len(set(model.config.layer_types))
    assert all((1, 5, 32) not in shapes for shapes in made)  # the prompt
    assert torch.equal(generate(model, prompt, 10, cache=Cache(model.config, room=40)), plain)
    assert len(made) == once
    torch._dynamo.reset()


@torch.no_grad()
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    model = compile_blocks(make("qwen2"))
    twin = copy.deepcopy(model)
    for parameter in twin.stack.blocks.parameters():
        parameter.zero_()
    plain = make("qwen2")
    plain.stack.blocks = torch.nn.ModuleList()
    tokens = torch.tensor([[3]])
    expected = plain.head(plain.stack.norm(plain.stack.embedding(tokens)))  # what blocks of zeros leave
    assert torch.equal(twin(tokens), expected) and not torch.equal(model(tokens), expected)


def test_what_cannot_be_compiled():
    with pytest.raises(ValueError, match="Linear has no blocks to compile"):
        compile_blocks(torch.nn.Linear(2, 2))


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_compiled_blocks_give_the_same_tokens():
    torch._dynamo.reset()
    model = make("qwen2")
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    plain = generate(model, prompt, 10)
    got = generate(compile_blocks(fuse(model)), prompt, 10, cache=Cache(model.config, room=16))
    assert torch.equal(got, plain)
    torch._dynamo.reset()


class Doubled(nn.Linear):
    """A layer that is more than its weight and bias, as one of LoRA is."""

    def forward(self, x):
        return 2 * super().forward(x)


@torch.no_grad()
def test_what_is_more_than_a_linear_layer_stays():
    model, seen = made(Decoder, config(gated=True)), []
    first, second = model.stack.blocks
    first.attention.query.__class__ = Doubled
    second.feed_forward.down.__class__ = Doubled
    second.attention.key = nn.Sequential(second.attention.key)
    first.feed_forward.gate.register_forward_hook(lambda *_: seen.append(1))
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    expected = model(tokens)
    close(fuse(model)(tokens), expected)
    assert len(seen) == 2 and type(first.attention) is Attention


@torch.no_grad()
def test_fused_layers_serve_autocast():
    model, tokens = made(Decoder, config()), torch.tensor([[3, 1, 4]])
    with torch.autocast("cpu", torch.bfloat16):
        cache = Cache(model.config)
        expected = torch.cat([model(tokens[:, t : t + 1], cache=cache) for t in range(3)], dim=1)
        fuse(model)
        cache = Cache(model.config)
        found = torch.cat([model(tokens[:, :2], cache=cache), model(tokens[:, 2:], cache=cache)], dim=1)
    assert found.dtype == expected.dtype == torch.bfloat16
    close(found.float(), expected.float(), 0.05 * expected.abs().max().item())
