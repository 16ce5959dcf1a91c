"""What a PyTorch user does to a model: compile, export, count on the meta device, split over devices, copy.

The compiler's front end is what is tested, with machine code made in tests/test_speed.py alone.
"""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_block import config, made
from test_stack import KINDS as SCHEMES
from torch.utils._python_dispatch import TorchDispatchMode

from tx.cache import Cache
from tx.config import Rope
from tx.decoder import Decoder
from tx.encoder import Encoder
from tx.encoder_decoder import EncoderDecoder
from tx.masks import causal

ROOT = Path(__file__).resolve().parents[1]
V = 11
HALVES = {"factor": 2.0, "original": 5}
KINDS = SCHEMES | {
    "sinusoidal": {"positions": "sinusoidal"},
    "windowed": {"positions": "rope", "rope": Rope(100.0, 2), "window": 3, "layer_types": ("window", "full")},
    "capped": {"softcap": 5.0, "sinks": True, "qk_norm": "head", "n_kv_heads": 2},
    "linear": {"positions": "rope", "rope": Rope(100.0, 2, scaling="linear", factor=2.0)},
    "yarn": {"positions": "rope", "rope": Rope(100.0, 2, scaling="yarn", **HALVES)},
    "longrope": {"positions": "rope", "rope": Rope(
        100.0, 2, scaling="longrope", short_factor=(1.0,), long_factor=(2.0,), **HALVES)},
}  # fmt: skip
TOKENS = torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(0))
REAL = torch.arange(9) >= torch.tensor([[0], [2]])
CACHES = {"dynamic": {}, "static": {"room": 30}, "rolling": {"rolling": True}}


class Waits(TorchDispatchMode):
    """Counts how often a number is read out of a tensor, for which a GPU would have to be waited for."""

    n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.n += function.name().startswith(("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def graphs():
    """A compiler that keeps each graph it is given, and runs it as it stands."""
    kept = []

    def keep(graph, inputs):
        kept.append(graph)
        return graph.forward

    torch._dynamo.reset()
    yield kept, lambda model: torch.compile(model, backend=keep, fullgraph=True)
    torch._dynamo.reset()


def close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("real", [None, REAL], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_model_is_one_graph(kind, real, graphs):
    model = made(Decoder, config(**KINDS[kind]))
    kept, compiled = graphs
    close(compiled(model)(TOKENS, real), model(TOKENS, real))
    assert len(kept) == 1


@pytest.mark.slow
@torch.no_grad()
def test_the_other_models_are_one_graph(graphs):
    kept, compiled = graphs
    encoder = made(Encoder, config(causal=False, masked_head=True, pooler=True, n_segments=2))
    close(compiled(encoder)(TOKENS, REAL), encoder(TOKENS, REAL))
    both = made(EncoderDecoder, config(encoder=config(causal=False)))
    source_real = torch.arange(9) < torch.tensor([[9], [6]])
    close(compiled(both)(TOKENS, TOKENS, source_real), both(TOKENS, TOKENS, source_real))
    assert len(kept) == 2


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("real", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", ["learned", "rope", "alibi", "windowed"])
def test_twenty_cached_steps_are_at_most_three_graphs(kind, cache, real, graphs):
    model = made(Decoder, config(max_positions=32, **KINDS[kind]))
    kept, compiled = graphs
    step, memory = compiled(model), Cache(model.config, **CACHES[cache])
    tokens = torch.randint(V, (2, 25), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(25) >= torch.tensor([[0], [2]]) if real else None
    upto = lambda stop: None if mask is None else mask[:, :stop]
    rows = [model(tokens[:, :5], upto(5), cache=memory)]
    rows += [step(tokens[:, t : t + 1], upto(t + 1), cache=memory) for t in range(5, 25)]
    seen = slice(None) if mask is None else mask
    close(torch.cat(rows, dim=1)[seen], model(tokens, mask)[seen])
    assert len(kept) <= 3


@torch.no_grad()
@pytest.mark.parametrize("real", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_step_waits_for_no_number(kind, cache, real):
    model = made(Decoder, config(**KINDS[kind]))
    memory = Cache(model.config, **CACHES[cache])
    model(TOKENS[:, :4], REAL[:, :4] if real else None, cache=memory)
    with Waits() as waits:
        model(TOKENS[:, 4:5], REAL[:, :5] if real else None, cache=memory)
    assert waits.n == 0
    with Waits() as waits:
        model(TOKENS, REAL if real else None)
    assert waits.n <= 1  # whether the mask hides anything


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("real", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_reads_other_sizes(kind, real):
    model = made(Decoder, config(**KINDS[kind]))
    B, T = torch.export.Dim("B", min=1, max=8), torch.export.Dim("T", min=2, max=16)
    given = (TOKENS, REAL) if real else (TOKENS,)
    exported = torch.export.export(model, given, dynamic_shapes=tuple({0: B, 1: T} for _ in given)).module()
    tokens = torch.randint(V, (3, 14), generator=torch.Generator().manual_seed(2))
    given = (tokens, torch.arange(14) >= torch.tensor([[0], [3], [1]])) if real else (tokens,)
    close(exported(*given), model(*given))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_on_the_meta_device(kind):
    with torch.device("meta"):
        model = Decoder(config(**KINDS[kind]))
    for mask in (None, REAL.to("meta")):
        logits = model(TOKENS.to("meta"), mask)
        assert logits.is_meta and logits.shape == (2, 9, V)


# ── a layer that holds a part of the heads ───────────────────────────────────────────────────────


RANK = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tx import Cache, Config, Decoder, Rope

def run(rank, file, switches):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Decoder(Config(11, 12, 2, 4, 20, 16, **switches)).eval()
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    tokens = torch.arange(10).view(2, 5)
    with torch.no_grad():
        expected = model(tokens)
        plan = {}
        for i in range(2):
            for name in ("attention.query", "attention.key", "attention.value", "feed_forward.up"):
                plan[f"stack.blocks.{i}.{name}"] = ColwiseParallel()
            for name in ("attention.out", "feed_forward.down"):
                plan[f"stack.blocks.{i}.{name}"] = RowwiseParallel()
        parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        cache = Cache(model.config)
        got = torch.cat([model(tokens[:, :3], cache=cache), model(tokens[:, 3:], cache=cache)], dim=1)
        for logits in (model(tokens), got):
            assert (logits - expected).abs().max() < 1e-5, (logits - expected).abs().max()
    dist.destroy_process_group()

if __name__ == "__main__":
    grouped = {"positions": "rope", "rope": Rope(100.0, 2), "n_kv_heads": 2}
    for n, switches in enumerate(({"positions": "none"}, grouped)):
        torch.multiprocessing.spawn(run, (sys.argv[1] + str(n), switches), 2)
    print("equal")
"""


@pytest.mark.slow
def test_tensor_parallelism_of_two_processes_gives_the_logits_of_one(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, tmp_path / "rank.py", tmp_path / "meet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "equal\n", done.stderr[-3000:]


# ── copies ───────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def test_a_copy_and_a_pickled_config_are_as_good():
    model = made(Decoder, config())
    close(copy.deepcopy(model)(TOKENS, causal()), model(TOKENS, causal()))
    assert pickle.loads(pickle.dumps(model.config)) == model.config
