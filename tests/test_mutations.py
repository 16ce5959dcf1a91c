"""Break `tx` one line at a time: its own tests must turn red every time.

Each mutant is one edit of one module, "masks" or "files.gguf". The tests of that module, or those of its
folder where it has none of its own, run against it, in a child of a process that has imported what they
need, and have to fail. An edit that no longer applies is a failure too, so that the list follows the code.

    python tests/test_mutations.py [WORDS]      run those of module WORDS, or whose edit contains WORDS, and watch
"""

import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MUTANTS = [
    ("scaled_dot_product", "q.shape[-1] ** -0.5", "q.shape[-1] ** -1.0"),
    ("scaled_dot_product", "q.shape[-1] ** -0.5", "1.0"),
    ("scaled_dot_product", "(q * scale) @ k.transpose(-2, -1)", "(q @ k.transpose(-2, -1)) * scale"),  # fp16
    ("scaled_dot_product", "wide.detach().amax(-1", "wide.detach().amax(-2"),
    ("scaled_dot_product", "top = top.masked_fill(top == -torch.inf, 0)", "pass"),
    ("scaled_dot_product", "e.sum(-1, keepdim=True)", "e.sum(-2, keepdim=True)"),
    ("scaled_dot_product", "total + (total == 0)", "total"),
    ("scaled_dot_product", "softcap * torch.tanh(scores / softcap)", "torch.tanh(scores / softcap)"),
    ("scaled_dot_product", "masked_fill(~keep", "masked_fill(keep"),
    ("scaled_dot_product", "masked_fill(~keep, -torch.inf)", "masked_fill(~keep, -1e9)"),
    ("scaled_dot_product", "x.repeat_interleave(n_heads // x.shape[1], dim=1)",
     "x.repeat(1, n_heads // x.shape[1], 1, 1)"),
    ("scaled_dot_product", "[..., :-1]  # (B, H, T, S)", "[..., 1:]  # (B, H, T, S)"),
    ("scaled_dot_product", "scores = scores + bias", "scores = scores"),
    ("scaled_dot_product", "F.dropout(weights, dropout)", "weights"),
    ("scaled_dot_product", "F.dropout(weights, dropout)", "F.dropout(weights, dropout) * (1 - dropout)"),
    ("scaled_dot_product", "scale=scale, dropout_p=dropout", "dropout_p=dropout"),
    ("scaled_dot_product", "structure == \"causal\"}", "False}"),
    ("scaled_dot_product", "sinks is not None or return_weights\n", "return_weights\n"),
    ("masks", "k_pos <= q_pos", "k_pos < q_pos"),
    ("masks", "torch.arange(S - T, S", "torch.arange(0, T"),
    ("masks", ".abs() < W", ".abs() <= W"),
    ("masks", "lambda b, h, q_pos, k_pos: k_pos < n,", "lambda b, h, q_pos, k_pos: k_pos <= n,"),
    ("masks", "& (k_pos >= 0)\n", "\n"),
    ("masks", "self.parts + other.parts", "self.parts"),
    ("masks", "value < S]", "value <= S]"),
    ("masks", "T > S or set(wide)", "set(wide)"),
    ("masks", "if T == 1 or not wide", "if not wide"),
    ("masks", "\"causal\" if T == S else \"dense\"", "\"causal\""),
    ("masks", "(q_pos >= 0) & (ids", "(ids"),
    ("masks", "b if table.shape[0] > 1 else b * 0", "b * 0"),
    ("masks", "hidden = ~as_mask", "hidden = as_mask"),
    ("masks", "first = table.shape[3] - table.shape[2]", "first = 0"),
    ("masks", "known = one if one.q_pos is not None else other", "known = one"),
    ("multihead", "return rows.transpose(1, 2)", "return rows.reshape(B, H, T, d_k)"),
    ("multihead", "rows = x.reshape(B, T, H, d_k)", "rows = x.reshape(B, T, d_k, H).transpose(2, 3)"),
    ("multihead", "rows = x.transpose(1, 2)", "rows = x"),
    ("multihead", "self.value(source)", "self.key(source)"),
    ("multihead", "self.key(source)", "self.key(x)"),
    ("multihead", "return self.out(merge_heads(out))", "return merge_heads(out)"),
    ("multihead", "out = self.out(merge_heads(out))", "out = merge_heads(out)"),
    ("positions", "rope.base**-steps", "rope.base**steps"),
    ("positions", "b * cos + a * sin", "b * cos - a * sin"),
    ("positions", "x[..., half : 2 * half]", "x[..., :half]"),
    ("positions", "max_distance / exact", "max_distance"),
    ("positions", "(distance > 0) * n_buckets", "(distance >= 0) * n_buckets"),
    ("positions", "*range(1, 2 * power, 2)", "*range(2, 2 * power, 2)"),
    ("positions", "row.mT)", "row.flip(-1).mT)"),
    ("positions", "c.n_heads, not c.causal)", "c.n_heads, True)"),
    ("block", "norm(x + self.dropout(part(x, *arguments)))", "x + self.dropout(norm(part(x, *arguments)))"),
    ("block", "self.scale / (layer + 1)", "self.scale / max(layer, 1)"),
    ("block", "weights / weights.sum(dim=-1, keepdim=True)", "weights"),
    ("block", "self.value(memory)", "self.key(memory)"),
    ("block", "1.0 + self.weight", "self.weight"),
    ("block", "* count - 1", "- 1"),
    ("block", "c.attention_dropout if self.training else 0.0", "c.attention_dropout"),
    ("cache", "max(0, k.shape[2] - self.keep)", "max(0, k.shape[2] - self.keep + 1)"),
    ("cache", "max(0, self.length - keep)", "max(0, stop - keep)"),
    ("cache", "kv.length = length", "pass"),
    ("cache", "kv.keys[rows], kv.values[rows]", "kv.keys[rows], kv.values"),
    ("sampling", "tokens.masked_fill(~real, V)", "tokens"),
    ("sampling", "torch.where(logits > 0, logits / penalty, logits * penalty)", "logits / penalty"),
    ("sampling", "logits.masked_fill(logits < last", "logits.masked_fill(logits <= last"),
    ("sampling", "<= 1 - p  # (B, V)", "< p  # (B, V)"),
    ("sampling", "hidden.scatter(1, order, hidden)", "hidden"),
    ("sampling", "floor = p * probabilities.amax(-1, keepdim=True)", "floor = p"),
    ("sampling", "token = token.masked_fill(ended, pad)", "pass"),
    ("sampling", "ended = ended | (token", "ended = (token"),
    ("sampling", "new = tokens[:, known:]", "new = tokens[:, known - 1 if known else 0 :]"),
    ("sampling", "rows = _pick(rows, on).flatten()", "rows = (first + torch.arange(K)).flatten()"),
    ("sampling", "score[:, :K] / (step + 1)", "score[:, :K]"),
    ("sampling", "quality.index_fill(1, tokens.new_zeros(1), 0.0)", "torch.zeros_like(quality)"),
    ("sampling", "self.cache.select(rows)", "pass"),
    ("speed", "row = row if self.bias is None else row + self.bias", "pass"),
    ("speed", "Joined(module.query, module.key, module.value)", "Joined(module.query, module.value, module.key)"),
    ("speed", "Joined(module.gate, module.up)", "Joined(module.up, module.gate)"),
    ("speed", "(compiled if x.shape[1] == 1 else Block.forward)", "compiled"),
    ("inspecting", "kept.clear()", "pass"),
    ("inspecting", "stack.record = None", "pass"),
]  # fmt: skip


def place(module):
    """The file of a module, and of the tests that have to notice what is wrong with it."""
    *folders, name = module.split(".")
    own = ROOT / "tests" / f"test_{name}.py"
    tests = own if own.exists() or not folders else ROOT / "tests" / f"test_{folders[-1]}.py"
    return ROOT.joinpath("tx", *folders, f"{name}.py"), tests


class Mutant(SourceFileLoader):
    """Finds one module, and imports it from another source than its file's."""

    def __init__(self, module, path, source):
        super().__init__(f"tx.{module}", str(path))
        self.source = source

    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name):
        return compile(self.source, f"{self.path} (mutant)", "exec")


def survives(module, old, new):
    """Why the mutant was not killed, or None. Runs in a child process that is spent afterwards."""
    path, tests = place(module)
    source = path.read_text(encoding="utf-8")
    if old not in source:
        return "the edit does not apply any more"
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        sys.meta_path.insert(0, Mutant(module, path, source.replace(old, new, 1)))  # before anything imports it
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
        os._exit(int(pytest.main([*quiet, str(tests)])))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 1 else f"survived (pytest ended with {code})"


def main(words=""):
    sys.path.insert(0, str(ROOT))  # tests import tests.oracle
    import hypothesis  # noqa: F401  imported once, here, and not in every child
    import torch  # noqa: F401
    from torch.nn.attention import flex_attention  # noqa: F401

    chosen = [mutant for mutant in MUTANTS if words in (mutant[0], "") or words in " ".join(mutant[1:])]
    alive = 0
    for number, (module, old, new) in enumerate(chosen, 1):
        why = survives(module, old, new)
        alive += why is not None
        print(f"{number}/{len(chosen)} tx.{module}  - {old!r}  + {new!r}  {why or 'killed'}", flush=True)
    return alive


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forked children; this system has no fork")
@pytest.mark.parametrize("module", sorted({mutant[0] for mutant in MUTANTS}))
def test_every_mutant_is_killed(module):
    import subprocess

    done = subprocess.run([sys.executable, __file__, module], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if not line.endswith("killed")]
    assert done.returncode == 0 and not lines, "\n".join(lines) + done.stderr[-2000:]
    assert len(done.stdout.splitlines()) >= sum(mutant[0] == module for mutant in MUTANTS)


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 100))
