"""Folders of safetensors: which of their files are read."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tx.files.errors import CheckpointError
from tx.files.safetensors import SafeTensors
from tx.files.settings import read_json

SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture
def folder(tmp_path):
    """Two shards and their index."""
    (tmp_path / "config.json").write_text("{}")
    for number, name in enumerate(SHARDS):
        save_file({f"w{number}": torch.full((2,), float(number))}, tmp_path / name)
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(SHARDS)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def values(folder):
    file = SafeTensors(folder)
    return {name: file.get(name).tolist() for name in file.names}


@pytest.mark.parametrize("stray", ["consolidated.safetensors", "adapter_model.safetensors", "a.safetensors"])
def test_what_the_index_does_not_name_is_not_read(folder, stray):
    save_file({"other": torch.zeros(1)}, folder / stray)
    assert values(folder) == {"w0": [0, 0], "w1": [1, 1]}
    (folder / stray).write_bytes(b"damaged, and yet of no account")
    assert values(folder) == {"w0": [0, 0], "w1": [1, 1]}


def test_one_file_of_the_whole_model_comes_first_as_in_the_reference(folder):
    save_file({"w0": torch.full((2,), 7.0)}, folder / "model.safetensors")
    assert values(folder) == {"w0": [7, 7]}
    (folder / "model.safetensors.index.json").unlink()
    assert values(folder) == {"w0": [7, 7]}


def test_without_an_index_every_file_is_read(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert values(folder) == {"w0": [0, 0], "w1": [1, 1]}
    save_file({"w1": torch.zeros(2)}, folder / "more.safetensors")
    with pytest.raises(CheckpointError, match="twice      w1: also in more.safetensors"):
        SafeTensors(folder)


def test_a_folder_without_any_names_its_pickles(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"missing    \*.safetensors"):
        SafeTensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickle     pytorch_model.bin: a pickle can run any program"):
        SafeTensors(tmp_path)


def test_a_shard_that_is_missing_or_damaged_is_named(folder):
    (folder / SHARDS[0]).write_bytes(b"\xff" * 20)
    with pytest.raises(CheckpointError, match=f"damaged    {SHARDS[0]}"):
        SafeTensors(folder)
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[0]).symlink_to(folder / "nowhere")
    with pytest.raises(CheckpointError, match=f"damaged    {SHARDS[0]}: no file, or a link to nothing"):
        SafeTensors(folder)
    (folder / SHARDS[0]).unlink()
    with pytest.raises(CheckpointError, match=f"missing    {SHARDS[0]}   the index names it"):
        SafeTensors(folder)


def test_json_of_too_many_values_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"a": [' + "[]," * 2**21 + "[]]}")
    with pytest.raises(ValueError, match="4194307 values, expected 4194304 at most"):
        read_json(tmp_path / "config.json")
