"""What is downloaded when the hub is asked: weights and text, never what could hold a program."""

from fnmatch import fnmatch

import huggingface_hub
import pytest
from huggingface_hub import errors

from tx.files.errors import CheckpointError
from tx.files.packaged import locate


def test_the_hub_is_asked_for_weights_and_text_only(monkeypatch, tmp_path):
    asked = []
    download = lambda *args, **named: asked.append((args, named)) or str(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("hub:owner/name@v1") == tmp_path and locate("hub:owner/name") == tmp_path
    ((repo,), first), (_, second) = asked
    assert repo == "owner/name" and first["revision"] == "v1" and second["revision"] is None
    comes = lambda name: any(fnmatch(name, pattern) for pattern in first["allow_patterns"])
    for name in ("model.safetensors", "model-00001-of-00002.safetensors", "config.json", "tokenizer.json",
                 "merges.txt", "vocab.txt", "chat_template.jinja", "tokenizer.model", "spiece.model", "spm.model"):
        assert comes(name), name  # fmt: skip
    for name in ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "weights.pkl", "modeling_x.py",
                 "other.model", "model.h5", "setup.sh", "tokenizer.model.bin"):
        assert not comes(name), name  # fmt: skip


def test_what_the_hub_says_is_passed_on(monkeypatch):
    def fail(*args, **named):
        raise OSError("no such repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match="hub:owner/none cannot be loaded(.|\n)*no such repository"):
        locate("hub:owner/none")


@pytest.mark.parametrize("error,said", [
    (errors.LocalEntryNotFoundError("Got: ConnectError\nAn error happened"), "cannot be reached, and no earlier"),
    (errors.HFValidationError("Repo id must use alphanumeric chars"), "expected a name like owner/name@revision"),
    (OSError("two\nlines"), "two lines"),
])  # fmt: skip
def test_what_the_hub_says_is_one_sentence(monkeypatch, error, said):
    def fail(*args, **named):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as refused:
        locate("hub:owner/none")
    assert refused.value.problems[0].startswith(f"hub        {said}") and "\n" not in refused.value.problems[0]


@pytest.mark.parametrize("source,problem", [
    (None, "is neither a name nor a path"), ("", "is neither a name nor a path"),
    ("nothing-here", "does not exist; known: a folder"),
    ("notes.txt", "is a file of another kind; known: a folder"),
    ("config.json", "is a file; expected the folder that it lies in, "),
])  # fmt: skip
def test_what_is_no_checkpoint(tmp_path, monkeypatch, source, problem):
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "config.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError) as refused:
        locate(source)
    assert refused.value.problems[0].startswith(f"source     {problem}")
