"""Benchmarks compare what they say they compare; no test looks at a wall clock."""

import json
import shutil
import time

import pytest
import torch

from tests import oracle
from tx.__main__ import main
from tx.apps import bench
from tx.checkpoints import load


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when it is told to: clock(seconds)."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def tick(seconds):
        now[0] += seconds

    return tick


@pytest.fixture
def folder(tmp_path):
    """A tiny LLaMA with a tokenizer of one token a byte."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = tmp_path / "tiny"
    shutil.copytree(oracle.checkpoint("llama-3")[1], made)
    values = json.loads((made / "config.json").read_text()) | {"max_position_embeddings": 128}
    (made / "config.json").write_text(json.dumps(values))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:61]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(made / "tokenizer.json"))
    return made


def test_ratios_are_those_of_the_first_thing_within_a_turn(clock):
    """The machine gets slower all the time; the ratios do not notice."""
    slow = [1.0]

    def takes(seconds):
        def run():
            slow[0] *= 1.0001
            clock(seconds * slow[0])

        return run

    rows = bench.compare({"a": takes(1), "b": takes(3), "c": takes(0.5)}, turns=5)
    assert [row.name for row in rows] == ["a", "b", "c", bench.AGAIN]
    assert [row.ratio for row in rows] == pytest.approx([1, 3, 0.5, 1], rel=1e-3)
    assert [row.seconds for row in rows] == pytest.approx([1, 3, 0.5, 1], rel=1e-2)


def test_turns_go_forwards_and_backwards_and_the_first_is_not_measured(clock):
    order, rows = [], None
    times = iter([100.0, 1.0, 2.0, 4.0])

    def first():
        order.append("a")
        clock(next(times, 4.0))

    rows = bench.compare({"a": first, "b": lambda: (order.append("b"), clock(2.0))}, turns=2)
    assert "".join(order) == "aba" * 3
    assert rows[1].seconds == 2.0 and max(row.seconds for row in rows) < 100


def test_the_candidates_of_attention_compute_the_same(monkeypatch):
    kept = {}

    def compare(things, turns, progress):
        kept.update({name: thing() for name, thing in things.items()})
        return []

    monkeypatch.setattr(bench, "compare", compare)
    bench.bench_attention(33)
    flash, *others = kept.values()
    assert len(others) == 2
    for other in others:
        torch.testing.assert_close(other, flash, atol=2e-6, rtol=0)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3", "gpt2", "qwen-2"])
def test_the_reference_gets_the_same_weights(name):
    model = load(oracle.checkpoint(name)[1])
    theirs = bench.as_transformers(model)
    tokens = torch.arange(20)[None]  # (1, T)
    torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=5e-5, rtol=0)
    assert not any(x.is_meta for x in (*theirs.parameters(), *theirs.buffers()))


def test_decode_of_a_folder(folder, capsys):
    threads = torch.get_num_threads()
    try:
        code = main(["bench", "decode", "--model", str(folder), "--tokens", "6", "--turns", "1", "--no-compile",
                     "--dtype", "float32", "--threads", "1"])  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "of 6" in line]
    assert code == 0
    assert [row.split("  ")[1] for row in rows] == ["transformers", "tx", "tx, fused"]
    assert all("6 of 6" in row and row.split()[-2] == "100%" for row in rows)
    values = json.loads((folder / "config.json").read_text())
    each = 3 * (32 * 8 * (4 + 2 + 2 + 4) + 3 * 32 * values["intermediate_size"]) + 61 * 32
    assert f"float32: a token reads {each * 4 / 1e6:.0f} MB of weights" in out


def test_attention_prints_a_table(capsys):
    threads = torch.get_num_threads()
    try:
        assert main(["bench", "attention", "--lengths", "16", "--turns", "1", "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "T = 16" in out and out.count("SDPA flash by hand") == 1 and bench.AGAIN in out


def test_train_measures_models_of_the_same_shape(monkeypatch):
    """Every candidate has as many parameters as ours, up to PyTorch's bias of the head that nobody has."""
    counts = {}

    class Spy(torch.optim.AdamW):
        def __init__(self, parameters, **options):
            parameters = list(parameters)
            counts[len(counts)] = sum(p.numel() for p in parameters)
            super().__init__(parameters, **options)

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    rows, n = bench.bench_train(n_layers=2, d_model=24, n_heads=2, T=9, B=2, turns=1)
    assert set(counts.values()) == {n}
    assert [row.name for row in rows] == ["nn.TransformerEncoderLayer", "transformers", "tx", bench.AGAIN]


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", None])
def test_counts_that_are_none_are_refused_before_any_work(monkeypatch, n):
    monkeypatch.setattr(bench, "load", None)
    for measure, name in (
        (lambda: bench.compare({"a": None}, n), "turns"), (lambda: bench.bench_attention(n), "T"),
        (lambda: bench.bench_attention(8, turns=n), "turns"), (lambda: bench.bench_train(B=n), "B"),
        (lambda: bench.bench_decode("x", dtype=torch.float32, n_new=n), "n_new"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} = {n!r}: expected a whole number from 1"):
            measure()


def test_without_a_compiler_the_option_is_named(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["bench", "decode", "--threads", str(torch.get_num_threads())]) == 2
    assert "no C++ compiler" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["sleep"], ["attention", "--turns", "0"], ["decode", "--dtype", "int8"]])
def test_what_the_parser_refuses(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    assert "usage: python -m tx bench" in capsys.readouterr().err


@pytest.mark.slow
def test_more_tokens_than_positions_are_refused(folder, capsys):
    options = ["--tokens", "64", "--no-compile", "--threads", str(torch.get_num_threads())]
    assert main(["bench", "decode", "--model", str(folder), *options]) == 2
    assert "64 to come are more than the 128 positions of" in capsys.readouterr().err
