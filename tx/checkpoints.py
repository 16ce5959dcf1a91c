"""Checkpoints: from files to models and back (chapter 10).

A checkpoint is a `config.json` with one or more `.safetensors` files, or a GGUF file. Either way it
gives a dictionary of settings and tensors by name; everything is checked before any weight is used,
and every problem is listed at once. No pickle is ever opened.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch

from .families import FAMILIES, Reader
from .families.writing import own_words, written
from .files.errors import CheckpointError, shown
from .files.packaged import locate
from .files.safetensors import SafeTensors
from .files.settings import read_config, read_settings

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MOST_EXPERTS = 40_000  # layers times experts: each is an object, even without memory for its weights
MOST_ROWS = 2**16  # of a table that is computed, to be compared
FEW = 100  # of these, which cost nothing


def load(source, *, dtype=torch.float32, device="cpu"):
    """A model in eval mode, with `.config`, from a checkpoint.

    Args:
        source: a folder with `config.json` and `.safetensors` files, sharded or not; a `.gguf` file;
            the name of a packaged model, such as "smollm2-135m-instruct"; or
            "hub:owner/name@revision", the only one that uses the network.
        dtype: of the weights in memory, float64, float32, float16 or bfloat16. device: where they go.

    Raises:
        CheckpointError: a `ValueError` that lists everything that is wrong with the checkpoint.
        ValueError: another dtype, or a device that this machine does not have.
    """
    _check_dtype(dtype)
    _check_device(device)
    path = locate(source)
    tensors = open_tensors(path)
    model = build(tensors.config, path, len(tensors.names))
    _fill(model, tensors, path, dtype, device)
    model.source_generation = read_settings(path / "generation_config.json")  # ends of a text, say
    return model.eval()


def outline(source):
    """The model of a checkpoint on the meta device, no weight read; and what to know of it, in sentences.

    Pooler and head for masked tokens are left out where the files lack them. A folder with a `config.json`
    and no `.safetensors` gives all that the `config.json` describes.
    """
    path = locate(source)
    if (path / "config.json").is_file() and not [*path.glob("*.safetensors"), *path.glob("model.bin")]:
        model = build(read_config(path), path)
        parts = " and the ".join(_optional(model.config))
        also = f"; the {parts} may be missing in files" if parts else ""
        return model, [f"{source} has no weights to look at: counted is what its config.json describes{also}."]
    tensors = open_tensors(path)
    model = build(tensors.config, path, len(tensors.names))
    all_parts = _optional(model.config)
    entries, _, found = _match(model, tensors)
    parts = " and no ".join(part for part in all_parts if part not in _optional(model.config))
    notes = [f"{source} has no {parts}: not counted."] if parts else []
    missing = [theirs for theirs, ours, _ in entries if theirs not in found
               and not (model.config.tied and ours[0].endswith("head.linear.weight"))]  # fmt: skip
    if missing:
        notes.append(f"{source} lacks {len(missing)} of the weights that are counted, the first is {missing[0]}.")
    return model, notes


def _optional(config):
    """Parts of a model that its files may lack."""
    parts = {"pooler": config.pooler, "head for masked tokens": config.masked_head}
    return [part for part, there in parts.items() if there]


def open_tensors(path):
    """The files of a checkpoint: an object with `.config`, `.names`, `.shape(name)`, `.get(name)`."""
    if path.suffix == ".gguf":
        from .files.gguf import GgufTensors

        return GgufTensors(path)
    if (path / "model.bin").is_file() and (path / "vocabulary.txt").is_file():
        from .files.ctranslate2 import Ctranslate2Tensors

        return Ctranslate2Tensors(path)
    return SafeTensors(path)


def build(values, where="this config", n_tensors=MOST_EXPERTS):
    """The model that a `config.json` (as a dictionary) describes, on the meta device: no memory.

    n_tensors: in its files, where they are known; layers and experts have one each at least.
    """
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        problem = f"unknown    model_type = {shown(kind)}   known: {', '.join(sorted(FAMILIES))}"
        raise CheckpointError(f"{where} cannot be loaded", [problem])
    family, reader = FAMILIES[kind], Reader(values)
    try:
        config = family.config(reader)
        if config.causal:
            reader.refuse("is_causal", True)  # the reference asks in every family
        most = MOST_EXPERTS if config.share_layers else min(MOST_EXPERTS, max(FEW, n_tensors))
        parts = sum(side.n_layers * max(1, side.n_experts) for side in (config, config.encoder) if side)
        if parts > most:
            reader.problem("config", "layers times experts", parts, f"expected at most {most}"
                           + (f", as there are {n_tensors} tensors" if most < MOST_EXPERTS else ""))  # fmt: skip
        if not reader.problems:
            with torch.device("meta"):
                model = family.model(config)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        problems = [*reader.problems, f"config     {error}"]
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}", problems) from error
    if reader.problems:
        raise CheckpointError(f"{where} cannot be loaded as {kind!r}", reader.problems)
    model.source_config = dict(values)
    return model


def save(model, folder):
    """Write `config.json` and `model.safetensors`, from which `load` makes the same model.

    `transformers` loads them, too, where the model came from a file, and where it was made from a `Config` that
    a family can express; other models are written in our own words, `"model_type": "tx_decoder"` and the like.

    Other files of the folder stay as they are. The tokenizer is another object, with a `save` of its own:
    `load_tokenizer(source).save(folder)`, after which the folder has all that `python -m tx chat` needs.

    Raises:
        ValueError: the model is none of `Decoder`, `Encoder` and `EncoderDecoder`, has no values, or has
            parameters that its family has no name for, as after `tx.fuse`; the folder is none, is a file, or
            holds weights of other names, which would be loaded with these.
    """
    from safetensors.torch import save_file

    _check_place(folder)
    folder, values = Path(folder), describe(model)
    tensors = named_as_in_files(model)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps({**values, "dtype": dtype}, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    if generation := getattr(model, "source_generation", None):
        text = json.dumps(generation, indent=2) + "\n"
        (folder / "generation_config.json").write_text(text, encoding="utf-8")


def describe(model):
    """The `config.json` of a model: the one it came from, a family's that reads back as its `Config`, or our own.

    Raises:
        ValueError: the model is none that `load` could make.
    """
    if hasattr(model, "source_config"):
        return model.source_config
    kinds = {kind: family for kind, family in FAMILIES.items() if family.model is type(model)}
    for kind, family in kinds.items():
        write = own_words if family.weights is None else written
        values = write(kind, family, model.config)
        if values is not None:
            return values
    raise ValueError(f"a {type(model).__name__} cannot be saved: expected a Decoder, Encoder or EncoderDecoder.")


def named_as_in_files(model):
    """The weights of a model under its family's names, {name: tensor}.

    Where the `config.json` ties the head to the embedding, their matrix stands there once.

    Raises:
        ValueError: parameters that the family has no name for, as after `tx.fuse`, or that have no values.
    """
    values, state = describe(model), model.state_dict()
    if any(tensor.is_meta for tensor in state.values()):
        raise ValueError("this model has no values, as after tx.checkpoints.build: give it some with to_empty.")
    family = FAMILIES[values["model_type"]]
    like = build(values) if family.weights is None else model  # our own names are those that `load` will make
    tensors, saved = {}, set()
    for theirs, ours, pair in family.names(values, like):
        if not all(name in state for name in ours):
            continue  # a part that this model does not have
        again = any(state[name].data_ptr() in saved for name in ours)
        if again and model.config.tied:
            continue
        saved |= {state[name].data_ptr() for name in ours}
        tensor = pair.join([state[name] for name in ours], model.config.n_heads).contiguous()
        tensors[theirs] = tensor.clone() if again else tensor
    left = [name for name, tensor in state.items() if tensor.data_ptr() not in saved]
    if left:
        raise ValueError(
            f"{len(left)} parameters have no name in a file of {values['model_type']!r}, the first is {left[0]}. "
            "After tx.fuse a model cannot be saved: save it before."
        )
    return tensors


def _check_place(folder):
    """Refuse what cannot become a folder with this model's weights alone."""
    if not isinstance(folder, (str, Path)) or not str(folder):
        raise ValueError(f"folder = {folder!r}: expected the path of a folder.")
    folder = Path(folder)
    parts = [folder, *folder.parents]
    if any(part.exists() and not part.is_dir() for part in parts):
        raise ValueError(f"{folder}: there is a file where a folder was expected.")
    others = [path.name for path in sorted(folder.glob("*.safetensors*")) if path.name != "model.safetensors"]
    if others:
        raise ValueError(
            f"{folder} holds other weights, which would be loaded with these: {', '.join(others[:5])}"
            f"{' …' if len(others) > 5 else ''}. Save into another folder, or take them away."
        )


def _check_dtype(dtype):
    if dtype not in FLOATS:
        raise ValueError(f"dtype = {dtype!r}: expected one of {', '.join(map(str, FLOATS))}.")


def _check_device(device):
    try:
        torch.empty(0, device=device)  # (0,)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device = {device!r}: expected one that this machine has, such as 'cpu'.") from error


def _fill(model, tensors, where, dtype, device):
    """Give the model on the meta device its weights, after all of them have been checked."""
    values = tensors.config
    family = FAMILIES[values["model_type"]]
    entries, copies, found = _match(model, tensors)
    state, config = model.state_dict(), model.config
    head = next((ours[0] for _, ours, _ in entries if ours[0].endswith("head.linear.weight")), None)
    wanted = {theirs for theirs, _, _ in entries} | copies.keys()
    extra = sorted(name for theirs, name in found.items() if theirs not in wanted)
    problems = [f"extra      {name}" for name in extra if not name.endswith(family.ignored)]
    same = sorted(set(tensors.names) - set(found.values()))
    problems += [f"twice      {name}   also without, or with, a prefix of {family.prefixes}" for name in same]
    named = {id(model.get_parameter(name)) for _, ours, _ in entries for name in ours}
    problems += [f"unnamed    {name}   this family's files have no name for it"
                 for name, parameter in model.named_parameters() if id(parameter) not in named]  # fmt: skip
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
    refused = f"{where} cannot be loaded as {values['model_type']!r}"
    if problems:
        raise CheckpointError(refused, problems)  # before anything large is read
    for theirs, ours, pair in entries:
        if theirs not in found:
            continue  # the head, which is tied
        tensor = tensors.get(found[theirs])
        problems += _odd_numbers(found[theirs], tensor, dtype)
        if not problems:
            parts = pair.split(tensor, [state[name].shape[0] for name in ours], config.n_heads)
            loaded |= {name: part.to(device, dtype).contiguous() for name, part in zip(ours, parts, strict=True)}
    for copy, of in copies.items():
        if not _is_copy(tensors, found, copy, of, config.d_model):
            source = found[of] if isinstance(of, str) else f"the {of.__name__}"
            problems.append(f"differs    {found[copy]}   expected a copy of {source}, which the model reads")
    if problems:
        raise CheckpointError(refused, problems)
    embedding = next(name for name in loaded if name.endswith("embedding.weight"))
    tied = config.tied and (head not in loaded or torch.equal(loaded[head], loaded[embedding]))
    model.load_state_dict(loaded, strict=False, assign=True)
    if tied:
        model.tie()


def _is_copy(tensors, found, copy, of, d_model):
    """Whether a tensor of the file is another one of it, or near what a function of its shape computes."""
    shape = tensors.shape(found[copy])  # looked at before anything large is read
    computed = shape[1:] == (d_model,) and shape[0] <= MOST_ROWS
    if not (shape == tensors.shape(found[of]) if isinstance(of, str) else computed):
        return False
    tensor = tensors.get(found[copy])
    if tensor.dtype not in FLOATS:
        return False
    if isinstance(of, str):
        return torch.equal(tensor, tensors.get(found[of]))
    return torch.allclose(tensor.float(), of(tensor.shape), atol=4 * torch.finfo(tensor.dtype).eps)


def _odd_numbers(name, tensor, dtype):
    """A line where the numbers of a tensor are none that a model of this dtype can compute with."""
    if tensor.dtype not in FLOATS:
        return [f"dtype      {name}   expected floating point of 16 bits or more, found {tensor.dtype}"]
    if not bool(tensor.isfinite().all()):
        return [f"NaN        {name}   has entries that are not finite"]
    most = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max > most and bool((tensor.abs() > most).any()):
        return [f"overflow   {name}   has entries too large for {dtype}"]
    return []


def _match(model, tensors):
    """Entries of the family for this model, what is a copy of what, and {name: the file's name of it}."""
    family = FAMILIES[tensors.config["model_type"]]
    entries = family.names(tensors.config, model)
    wanted = {theirs for theirs, _, _ in entries}
    found = {_as_wanted(name, wanted | family.copies.keys(), family.prefixes): name for name in tensors.names}
    copies = {copy: of for copy, of in family.copies.items()
              if copy in found and copy not in wanted and (of in wanted or callable(of))}  # fmt: skip
    for copy, of in list(copies.items()):
        if of in wanted and of not in found:  # the copy is all there is
            found[of] = found.pop(copy)
            del copies[copy]
    return _keep_parts(model, entries, found), copies, found


def _keep_parts(model, entries, found):
    """Drop the pooler, the masked-LM head or BART's bias of the head where the file has none of it."""
    for part in ("pooler", "masked_head"):
        own = [theirs for theirs, ours, _ in entries if ours[0].startswith(part)]
        if own and not any(theirs in found for theirs in own):
            setattr(model, part, None)
            model.config = replace(model.config, **{part: False})
            entries = [entry for entry in entries if entry[0] not in own]
    for entry in [entry for entry in entries if entry[2].layout == "row" and entry[0] not in found]:
        model.head.linear.bias = None  # files of the bare model lack it, which means zeros
        model.config = replace(model.config, head_bias=False)
        entries.remove(entry)
    return entries


def _as_wanted(name, wanted, prefixes):
    """The family's name for a tensor whose prefix the file leaves out or adds."""
    for prefix in prefixes:
        for other in (prefix + name, name.removeprefix(prefix)):
            if name not in wanted and other in wanted:
                return other
    return name
