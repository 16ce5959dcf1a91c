"""What `pip install` gives: the wheel, what it needs, and that it runs where only that is there."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.torch import save_file

import tx

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_CORE = ("pytest", "IPython", "ipykernel", "jupyterlab", "nbformat", "matplotlib", "sphinx", "transformers")
CUDA = ("nvidia-", "cuda-", "triton")  # what torch's other builds bring; they pin it themselves


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def tracked(*paths):
    """The files that git tracks under some paths of the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository here: nobody knows which files belong to the package")
    return run("git", "ls-files", "-z", "--", *paths, cwd=ROOT).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the tracked files, built by the backend that pyproject.toml names."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked("tx", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, output, cwd=source)
    (path,) = output.glob("*.whl")
    return path


def needed(requirements, extras=("",)):
    """The installed distributions that some requirements need, theirs included, by name."""
    found, todo = {}, [(Requirement(text), extras) for text in requirements]
    seen = set()
    while todo:
        requirement, asked = todo.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in asked):
            continue
        key = (name, frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            found[name] = metadata.distribution(name)
            inner = ("", *requirement.extras)
            todo += [(Requirement(text), inner) for text in found[name].requires or ()]
    return found


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The Python of a new environment that has the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    for distribution in needed(PROJECT["dependencies"]).values():
        for part in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (site / part).exists():  # two may share a folder
                (site / part).symlink_to(Path(distribution.locate_file(part)).resolve())
    return python


@pytest.fixture
def alone(bare, tmp_path):
    """alone(*arguments) -> what the bare Python prints, in an empty folder, without our settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    return lambda *arguments: run(bare, *arguments, cwd=tmp_path, env=kept | {"OMP_NUM_THREADS": "1"})


# ── what it holds and names ──────────────────────────────────────────────────────────────────────


def test_the_wheel_holds_what_git_tracks_in_tx_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        held = [name for name in file.namelist() if ".dist-info/" not in name]
    assert sorted(held) == sorted(tracked("tx"))
    assert {Path(name).suffix for name in held} >= {".py", ".js", ".css", ".txt"}


def test_the_wheel_says_what_the_models_need_and_what_the_rest_needs(wheel):
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        said = file.read(name).decode()
    core = re.findall(r"^Requires-Dist: ([\w-]+)$", said, re.M)
    assert sorted(core) == ["gguf", "jinja2", "numpy", "safetensors", "tokenizers", "torch"]
    assert re.findall(r"^Provides-Extra: (\w+)$", said, re.M) == ["course", "book", "dev", "gpu"]
    assert f"Version: {PROJECT['version']}\n" in said


@pytest.mark.skipif(sys.version_info[:2] != (3, 11) or sys.platform != "linux",
                    reason="another Python or system needs other packages")
def test_every_version_is_pinned_and_every_pin_is_needed():
    """requirements.txt and the extras say the same, down to what they need in turn."""
    pinned = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            pinned[canonicalize_name(requirement.name)] = requirement
    extras = PROJECT["optional-dependencies"]
    own = canonicalize_name(PROJECT["name"])
    listed = [*PROJECT["dependencies"], *extras["course"], *extras["book"], *extras["dev"]]
    found = needed([text for text in listed if canonicalize_name(Requirement(text).name) != own])
    found = {name: d for name, d in found.items() if not name.startswith(CUDA)}
    assert sorted(set(found) - set(pinned)) == []  # needed, and without a version in requirements.txt
    assert sorted(set(pinned) - set(found)) == []  # with a version, and needed by nothing
    for name, distribution in found.items():
        version = distribution.version.partition("+")[0]  # "2.13.0+cpu" is a build of 2.13.0
        assert pinned[name].specifier.contains(version), f"{name} {version} is installed"


# ── where only the core is there ─────────────────────────────────────────────────────────────────


def checkpoint(folder, V=11, D=8, T=16):
    """A tiny GPT-2 in its published layout, its weights drawn from a seed."""
    sizes = {"wte.weight": (V, D), "wpe.weight": (T, D), "ln_f.weight": (D,), "ln_f.bias": (D,)}
    layer = {"ln_1": (D,), "ln_2": (D,), "attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D),
             "mlp.c_fc": (D, 4 * D), "mlp.c_proj": (4 * D, D)}  # fmt: skip
    for name, size in layer.items():
        sizes |= {f"h.0.{name}.weight": size, f"h.0.{name}.bias": size[-1:]}
    g = torch.Generator().manual_seed(0)
    weights = {f"transformer.{name}": torch.randn(size, generator=g) for name, size in sizes.items()}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": V, "n_embd": D,
              "n_layer": 1, "n_head": 2, "n_positions": T, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_bare_environment_is_bare(alone):
    ask = f"from importlib.util import find_spec; print([n for n in {NOT_CORE!r} if find_spec(n)])"
    assert alone("-c", ask) == "[]\n"


@pytest.mark.slow
def test_a_checkpoint_is_loaded_and_goes_on_with_a_text(alone, tmp_path):
    folder = checkpoint(tmp_path / "tiny")
    script = """
import sys, torch, tx
model = tx.load("tiny")
print(tx.generate(model, torch.tensor([[3, 1, 4]]), 8).tolist())
print(tx.__file__)
"""
    tokens, where = alone("-c", script).splitlines()
    expected = tx.generate(tx.load(folder), torch.tensor([[3, 1, 4]]), 8)  # (1, 11)
    assert tokens == str(expected.tolist()) and expected.shape == (1, 11)
    assert str(ROOT) not in where


@pytest.mark.slow
def test_every_module_of_the_models_is_imported(alone):
    """No module outside tx.course needs what the core does not name."""
    files = [name for name in tracked("tx") if name.endswith(".py") and not name.startswith("tx/course/")]
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files]
    alone("-c", f"from importlib import import_module\nfor name in {names!r}: import_module(name)")


@pytest.mark.slow
def test_commands_run(alone):
    assert "124,439,808" in alone("-m", "tx", "params", "gpt-2")
    assert "usage: python -m tx chat" in alone("-m", "tx", "chat", "--help")


def test_widgets_find_their_scripts(alone):
    script = """
from tx.course import widgets
print(widgets.retrieval([1, 0], [[1, 0], [0, 1]], [1, 2], ["a", "b"])._repr_html_())
"""
    assert "addEventListener" in alone("-c", script)
