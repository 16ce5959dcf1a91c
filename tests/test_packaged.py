"""What is downloaded when the hub is asked: weights and text, never what could hold a program."""

from fnmatch import fnmatch

import huggingface_hub
import pytest

from tx.families.reading import CheckpointError
from tx.packaged import locate


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
