"""Checkpoints: from files to models and back (chapter 10).

A checkpoint is a `config.json` with one or more `.safetensors` files, or a GGUF file. Either way it
gives a dictionary of settings and tensors by name; everything is checked before any weight is used,
and every problem is listed at once. No pickle is ever opened.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch

from .families import FAMILIES, CheckpointError, Reader
from .families.weights import expand
from .packaged import locate

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load(source, *, dtype=torch.float32, device="cpu"):
    """A model in eval mode, with `.config`, from a checkpoint.

    Args:
        source: a folder with `config.json` and `.safetensors` files, sharded or not; a `.gguf` file;
            the name of a packaged model, such as "smollm2-135m-instruct"; or
            "hub:owner/name@revision", the only one that uses the network.
        dtype: of the weights in memory, float64, float32, float16 or bfloat16. device: where they go.

    Raises:
        CheckpointError: a `ValueError` that lists everything that is wrong with the checkpoint.
        ValueError: another dtype.
    """
    _check_dtype(dtype)
    path = locate(source)
    tensors = open_tensors(path)
    model = build(tensors.config, path)
    _fill(model, tensors, path, dtype, device)
    return model.eval()


def outline(source):
    """The model of a checkpoint on the meta device, without the heads that its files lack: no weight is read."""
    path = locate(source)
    tensors = open_tensors(path)
    model = build(tensors.config, path)
    _match(model, tensors)
    return model


def open_tensors(path):
    """The files of a checkpoint: an object with `.config`, `.names`, `.shape(name)`, `.get(name)`."""
    if path.suffix == ".gguf":
        from .gguf_file import GgufTensors

        return GgufTensors(path)
    if (path / "model.bin").is_file() and (path / "vocabulary.txt").is_file():
        from .ctranslate2_file import Ctranslate2Tensors

        return Ctranslate2Tensors(path)
    return SafeTensors(path)


def build(values, where="this config"):
    """The model that a `config.json` (as a dictionary) describes, on the meta device: no memory."""
    kind = values.get("model_type")
    if kind not in FAMILIES:
        problem = f"unknown    model_type = {kind!r}   known: {', '.join(sorted(FAMILIES))}"
        raise CheckpointError(f"{where} cannot be loaded", [problem])
    family, reader = FAMILIES[kind], Reader(values)
    try:
        config = family.config(reader)
    except (ValueError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        problems = [*reader.problems, f"config     {error}"]
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}", problems) from error
    if reader.problems:
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}", reader.problems)
    with torch.device("meta"):
        model = family.model(config)
    model.source_config = dict(values)
    return model


def save(model, folder):
    """Write `config.json` and `model.safetensors`, which the reference loads too.

    Raises:
        ValueError: the model was not made from a `config.json` (`load` or `build`), or has parameters
            that its family has no name for, as after `tx.fuse`.
    """
    from safetensors.torch import save_file

    values = getattr(model, "source_config", None)
    if values is None:
        raise ValueError("this model has no config.json: make it with tx.load or tx.checkpoints.build.")
    tensors = named_as_in_files(model)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps({**values, "dtype": dtype}, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def named_as_in_files(model):
    """The weights of a model under its family's names, {name: tensor}; a tied head stands there once.

    Raises:
        ValueError: parameters that the family has no name for, as after `tx.fuse`.
    """
    values, state = model.source_config, model.state_dict()
    tensors, written = {}, set()
    for theirs, ours, pair in expand(FAMILIES[values["model_type"]].names(values), state, model.config):
        if any(state[name].data_ptr() in written for name in ours):
            continue
        written |= {state[name].data_ptr() for name in ours}
        tensors[theirs] = pair.join([state[name] for name in ours], model.config.n_heads).contiguous()
    left = [name for name, tensor in state.items() if tensor.data_ptr() not in written]
    if left:
        raise ValueError(
            f"{len(left)} parameters have no name in a file of {values['model_type']!r}, the first is {left[0]}. "
            "After tx.fuse a model cannot be saved: save it before."
        )
    return tensors


class SafeTensors:
    """A folder with `config.json` and `.safetensors` files; an index of shards is not needed."""

    def __init__(self, folder):
        from safetensors import SafetensorError, safe_open

        self.config = _read_config(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in PICKLES]
            advice = "a pickle can run any program; convert it to safetensors"
            found = [f"pickle     {name}: {advice}" for name in pickles]
            raise CheckpointError(f"{folder} cannot be loaded", found or ["missing    *.safetensors"])
        self.files: dict = {}  # name of a weight -> the open file with it
        problems = []
        for path in files:
            try:
                file = safe_open(path, "pt")
                twice = self.files.keys() & set(file.keys())
                problems += [f"twice      {name}: also in {path.name}" for name in sorted(twice)]
                self.files |= dict.fromkeys(file.keys(), file)
            except (SafetensorError, OSError, ValueError) as error:
                problems.append(f"damaged    {path.name}: {error}")
        problems += self._missing_shards(folder, files)
        if problems:
            raise CheckpointError(f"{folder} cannot be loaded", problems)
        self.names = list(self.files)

    def _missing_shards(self, folder, files):
        index = folder / "model.safetensors.index.json"
        if not index.is_file():
            return []
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return [f"damaged    {index.name}: {error!r}"]
        present = {path.name for path in files}
        return [f"missing    {name}   the index names it" for name in sorted(wanted - present)]

    def shape(self, name):
        return tuple(self.files[name].get_slice(name).get_shape())

    def get(self, name):
        return self.files[name].get_tensor(name)


def _read_config(folder):
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint", ["missing    config.json"])
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"config     config.json is no JSON: {error}"
        raise CheckpointError(f"{folder} cannot be loaded", [problem]) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder} cannot be loaded", ["config     config.json holds no dictionary"])
    return values


def _check_dtype(dtype):
    known = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    if dtype not in known:
        raise ValueError(f"dtype = {dtype!r}: expected one of {', '.join(map(str, known))}.")


def _fill(model, tensors, where, dtype, device):
    """Give the model on the meta device its weights, after all of them have been checked."""
    values = tensors.config
    family = FAMILIES[values["model_type"]]
    entries, wanted, found = _match(model, tensors)
    state, config = model.state_dict(), model.config
    head = next((ours[0] for _, ours, _ in entries if ours[0].endswith("head.linear.weight")), None)
    extra = sorted(name for theirs, name in found.items() if theirs not in wanted)
    problems = [f"extra      {name}" for name in extra if not name.endswith(family.ignored)]
    loaded: dict[str, torch.Tensor] = {}
    for theirs, ours, pair in entries:
        expected = tuple(pair.join([state[name] for name in ours], config.n_heads).shape)
        if theirs not in found:
            if not (config.tied and ours[0] == head):
                problems.append(f"missing    {theirs}   expected {expected}")
            continue
        shape = tensors.shape(found[theirs])
        if shape != expected:
            problems.append(f"shape      {found[theirs]}   expected {expected}, found {shape}")
        if problems:
            continue  # the rest is listed too, and nothing more is read
        tensor = tensors.get(found[theirs])
        if not tensor.is_floating_point():
            problems.append(f"dtype      {found[theirs]}   expected floating point, found {tensor.dtype}")
        elif not bool(tensor.isfinite().all()):
            problems.append(f"NaN        {found[theirs]}   has entries that are not finite")
        parts = pair.split(tensor, [state[name].shape[0] for name in ours], config.n_heads)
        loaded |= {name: part.to(device, dtype).contiguous() for name, part in zip(ours, parts, strict=True)}
    if problems:
        raise CheckpointError(f"{where} cannot be loaded as {values['model_type']!r}", problems)
    embedding = next(name for name in loaded if name.endswith("embedding.weight"))
    tied = config.tied and (head not in loaded or torch.equal(loaded[head], loaded[embedding]))
    model.load_state_dict(loaded, strict=False, assign=True)
    if tied:
        model.tie()


def _match(model, tensors):
    """Entries of the family for this model, all their names, and {name: the file's name of it}."""
    family = FAMILIES[tensors.config["model_type"]]
    entries = expand(family.names(tensors.config), model.state_dict(), model.config)
    wanted = {theirs for theirs, _, _ in entries}
    found = {_as_wanted(name, wanted, family.prefixes): name for name in tensors.names}
    return _keep_parts(model, entries, found), wanted, found


def _keep_parts(model, entries, found):
    """Drop the pooler or the masked-LM head where the file has none of it."""
    for part in ("pooler", "masked_head"):
        own = [theirs for theirs, ours, _ in entries if ours[0].startswith(part)]
        if own and not any(theirs in found for theirs in own):
            setattr(model, part, None)
            model.config = replace(model.config, **{part: False})
            entries = [entry for entry in entries if entry[0] not in own]
    return entries


def _as_wanted(name, wanted, prefixes):
    """The family's name for a tensor whose prefix the file leaves out or adds."""
    for prefix in prefixes:
        for other in (prefix + name, name.removeprefix(prefix)):
            if name not in wanted and other in wanted:
                return other
    return name
