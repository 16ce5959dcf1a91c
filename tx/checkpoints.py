"""Checkpoints: from files to models and back (chapter 10).

A checkpoint is a folder with `config.json` and one or more `.safetensors` files. Everything is checked
before any weight is used, and every problem is listed at once. No pickle is ever opened.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch

from .families import FAMILIES, CheckpointError, Reader
from .families.weights import expand

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load(source, *, dtype=torch.float32, device="cpu"):
    """A model in eval mode, with `.config`, from a checkpoint.

    Args:
        source: a folder with `config.json` and `.safetensors` files, sharded or not.
        dtype: of the weights in memory. device: where they go.

    Raises:
        CheckpointError: a `ValueError` that lists everything that is wrong with the checkpoint.
    """
    folder = Path(source)
    values = _read_config(folder)
    model = build(values, folder)
    names = _tensor_names(folder)
    _fill(model, values, names, folder, dtype, device)
    return model.eval()


def build(values, where="this config"):
    """The model that a `config.json` (as a dictionary) describes, on the meta device: no memory."""
    kind = values.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"{where} cannot be loaded", [
            f"unknown    model_type = {kind!r}   known: {', '.join(sorted(FAMILIES))}"])  # fmt: skip
    family, reader = FAMILIES[kind], Reader(values)
    try:
        config = family.config(reader)
    except (ValueError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}",
                              [*reader.problems, f"config     {error}"]) from error  # fmt: skip
    if reader.problems:
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}", reader.problems)
    with torch.device("meta"):
        model = family.model(config)
    model.source_config = dict(values)
    return model


def save(model, folder):
    """Write `config.json` and `model.safetensors`, which the reference loads too.

    Raises:
        ValueError: the model was not made from a `config.json` (`load` or `build`).
    """
    from safetensors.torch import save_file

    values = getattr(model, "source_config", None)
    if values is None:
        raise ValueError("this model has no config.json: make it with tx.load or tx.checkpoints.build.")
    state = model.state_dict()
    entries = expand(FAMILIES[values["model_type"]].names(values), state, model.config)
    tensors, written = {}, set()
    for theirs, ours, pair in entries:
        if any(state[name].data_ptr() in written for name in ours):
            continue  # a tied head stands in the file once
        written |= {state[name].data_ptr() for name in ours}
        tensors[theirs] = pair.join([state[name] for name in ours], model.config.n_heads).contiguous()
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps({**values, "dtype": dtype}, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _read_config(folder):
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint", [f"missing    {path.name}"])
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"config     {path.name} is no JSON: {error}"
        raise CheckpointError(f"{folder} cannot be loaded", [problem]) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder} cannot be loaded", ["config     config.json holds no dictionary"])
    return values


def _tensor_names(folder):
    """{name in the file: path of its file}; CheckpointError for a file that cannot be read."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in PICKLES]
        found = [f"pickle     {name}: a pickle can run any program; convert it to safetensors" for name in pickles]
        raise CheckpointError(f"{folder} cannot be loaded", found or ["missing    *.safetensors"])
    names, problems = {}, []
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                names |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError, ValueError) as error:
            problems.append(f"damaged    {path.name}: {error}")
    if problems:
        raise CheckpointError(f"{folder} cannot be loaded", problems)
    return names


def _fill(model, values, names, folder, dtype, device):
    """Give the model on the meta device its weights, after all of them have been checked."""
    from safetensors import safe_open

    kind = values["model_type"]
    family, config = FAMILIES[kind], model.config
    entries = expand(family.names(values), model.state_dict(), config)
    wanted = {theirs for theirs, _, _ in entries}
    found = {_as_wanted(name, wanted, family.prefixes): name for name in names}
    entries = _keep_parts(model, entries, found)
    state = model.state_dict()
    head = {ours[0] for _, ours, _ in entries if ours[0].endswith("head.linear.weight")}
    problems, tensors, open_files = [], {}, {}
    for theirs, ours, pair in entries:
        if theirs not in found:
            if not (config.tied and ours[0] in head):
                problems.append(f"missing    {theirs}   expected {_file_shape(state, ours, pair, config)}")
            continue
        path = names[found[theirs]]
        file = open_files.setdefault(path, safe_open(path, "pt"))
        shape = tuple(file.get_slice(found[theirs]).get_shape())
        expected = _file_shape(state, ours, pair, config)
        if shape != expected:
            problems.append(f"shape      {found[theirs]}   expected {expected}, found {shape}")
            continue
        tensor = file.get_tensor(found[theirs])
        if not tensor.is_floating_point():
            problems.append(f"dtype      {found[theirs]}   expected floating point, found {tensor.dtype}")
        elif not bool(tensor.isfinite().all()):
            problems.append(f"NaN        {found[theirs]}   has entries that are not finite")
        else:
            tensors[theirs] = tensor
    extra = sorted(name for ours, name in found.items() if ours not in wanted)
    problems += [f"extra      {name}" for name in extra if not name.endswith(family.ignored)]
    if problems:
        raise CheckpointError(f"{folder} cannot be loaded as {kind!r}", problems)
    loaded = {}
    for theirs, ours, pair in entries:
        if theirs in tensors:
            sizes = [state[name].shape[0] for name in ours]
            parts = pair.split(tensors.pop(theirs), sizes, config.n_heads)
            for name, part in zip(ours, parts, strict=True):
                loaded[name] = part.to(device, dtype).contiguous()
    embedding = next((name for name in loaded if name.endswith("embedding.weight")), None)
    tied = config.tied and all(
        name not in loaded or torch.equal(loaded[name], loaded[embedding]) for name in head
    )
    model.load_state_dict(loaded, strict=False, assign=True)
    if tied:
        model.tie()


def _keep_parts(model, entries, found):
    """Drop the pooler or the masked-LM head where the file has none of it."""
    for part in ("pooler", "masked_head"):
        own = [theirs for theirs, ours, _ in entries if ours[0].startswith(part)]
        if own and not any(theirs in found for theirs in own):
            setattr(model, part, None)
            model.config = replace(model.config, **{part: False})
            entries = [entry for entry in entries if entry[0] not in own]
    return entries


def _file_shape(state, ours, pair, config):
    return tuple(pair.join([state[name] for name in ours], config.n_heads).shape)


def _as_wanted(name, wanted, prefixes):
    """The family's name for a tensor whose prefix the file leaves out or adds."""
    for prefix in prefixes:
        for other in (prefix + name, name.removeprefix(prefix)):
            if name not in wanted and other in wanted:
                return other
    return name
