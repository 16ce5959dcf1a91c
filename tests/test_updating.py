"""A learner's edited notebooks survive a new version of the course."""

import json
import subprocess

import pytest

from tx.course import updating


def notebook(**cells):
    cells = [{"id": name, "cell_type": "code", "metadata": {}, "outputs": [], "source": [text]}
             for name, text in cells.items()]  # fmt: skip
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def sources(book):
    return {cell["id"]: "".join(cell["source"]) for cell in book["cells"]}


def write(path, book):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(book), encoding="utf-8")


def run(*command, cwd):
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def course(tmp_path):
    """An upstream repository and a learner's clone of it."""
    upstream, learner = tmp_path / "upstream", tmp_path / "learner"
    write(upstream / "exercises" / "03_masks.ipynb", notebook(a="stub a", b="stub b", c="stub c"))
    (upstream / "README.md").write_text("one")
    run("git", "init", "-q", "-b", "main", str(upstream), cwd=tmp_path)
    commit(upstream, "first")
    run("git", "clone", "-q", str(upstream), str(learner), cwd=tmp_path)
    return upstream, learner


def commit(folder, message):
    run("git", "add", ".", cwd=folder)
    run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", message, cwd=folder)


def test_solved_and_added_cells_survive_a_new_version(course):
    upstream, learner = course
    mine = notebook(a="my a", notes="my notes", b="stub b", c="my c")
    write(learner / "exercises" / "03_masks.ipynb", mine)
    better = notebook(new="new", a="better stub a", b="better stub b")
    write(upstream / "exercises" / "03_masks.ipynb", better)
    commit(upstream, "better stubs")
    said = "\n".join(updating.update(learner))
    got = sources(json.loads((learner / "exercises" / "03_masks.ipynb").read_text()))
    assert list(got.items()) == [("new", "new"), ("a", "my a"), ("notes", "my notes"), ("b", "better stub b")]
    assert "your cell c has no place" in said and "better stubs" in said
    (kept,) = (learner / "exercises" / ".kept").iterdir()
    assert sources(json.loads(kept.read_text())) == sources(mine)


def test_a_failing_pull_leaves_the_work_in_place(course):
    upstream, learner = course
    write(learner / "exercises" / "03_masks.ipynb", notebook(a="my a", b="stub b", c="stub c"))
    upstream.rename(upstream.with_name("gone"))
    with pytest.raises(updating.CannotUpdate, match="git pull failed"):
        updating.update(learner)
    assert sources(json.loads((learner / "exercises" / "03_masks.ipynb").read_text()))["a"] == "my a"


def test_other_changed_files_stop_the_update_by_name(course):
    _, learner = course
    (learner / "README.md").write_text("mine")
    with pytest.raises(updating.CannotUpdate, match="README.md"):
        updating.update(learner)
    assert (learner / "README.md").read_text() == "mine"


def test_reset_keeps_a_copy(course):
    _, learner = course
    path = learner / "exercises" / "03_masks.ipynb"
    came = path.read_text()
    path.write_text("{ broken")
    assert "kept in exercises/.kept/" in updating.reset("3", learner)[0]
    assert path.read_text() == came
    assert "nothing to reset" in updating.reset("03", learner)[0]
    with pytest.raises(updating.CannotUpdate, match="one of 03"):
        updating.reset("7", learner)


def test_a_broken_notebook_is_named_and_left_alone(course):
    _, learner = course
    path = learner / "exercises" / "03_masks.ipynb"
    path.write_text("{ broken")
    with pytest.raises(updating.CannotUpdate, match="make reset EX=03"):
        updating.update(learner)
    assert path.read_text() == "{ broken"
