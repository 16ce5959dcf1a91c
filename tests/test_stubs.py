"""The exercises are those that the solutions make."""

import nbformat
import pytest

from tx.course.authoring import notebooks, stubs

SOLUTION = '''class Sum(nn.Module):
    """A sum."""
    def __init__(self, n: int):
        super().__init__()
        self.n = n

    def forward(self, x):
        """x (T, D) -> (T,)."""
        return x.sum(-1)  # (T,)

    def kept(self):
        return self.n'''


def made(stub, **more):
    """The cells of the exercises that one solution makes."""
    new = nbformat.v4
    cells = [
        new.new_markdown_cell("# Solutions 3 · Masks\n\nHow.", id="intro", metadata=more),
        new.new_code_cell("from tx.course import grade", id="setup"),
        new.new_markdown_cell("## Sum\n\nAdd.", id="sum-task"),
        new.new_code_cell(SOLUTION, id="sum-solution", metadata={
            "tags": ["exercise"], "tx": {"exercise": "Sum", **({"stub": stub} if stub else {})}}),
        new.new_markdown_cell("Because.", id="sum-why"),
        new.new_code_cell("1 + 1", id="sum-second"),
        new.new_code_cell('grade("Sum")', id="sum-grade"),
    ]  # fmt: skip
    return stubs.exercises(new.new_notebook(cells=cells), "03_masks").cells


@pytest.mark.parametrize("path", sorted((stubs.ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem)
def test_exercises_are_those_of_the_solutions(path):
    exercises = notebooks.dumps(stubs.exercises(notebooks.read(path), path.stem))
    assert (stubs.ROOT / "exercises" / path.name).read_text("utf-8") == exercises, "make notebooks writes them"


def test_bodies_go_and_the_rest_of_a_cell_stays():
    source = stubs.stub(SOLUTION, {"__init__": "super().__init__()\n# self.n = …", "forward": "return x  # (T,)"})
    assert source == SOLUTION.replace("self.n = n", "# self.n = …\n        raise NotImplementedError").replace(
        "x.sum(-1)", "x")
    assert "\n        raise NotImplementedError\n" in stubs.stub(SOLUTION, {"forward": ""})
    with pytest.raises(LookupError, match="backward"):
        stubs.stub(SOLUTION, {"backward": ""})


def test_whys_are_left_out_and_gaps_are_explained():
    intro, setup, task, asked, graded = made({"__init__": ["# …"], "forward": ["# 1. add"]}, tx={"note": "Look."})
    assert intro.source.startswith("# Exercises 3 · Masks\n\nEach exercise is one function or class. Fill it in")
    assert "Look. The page" in intro.source and "book/03-masks.ipynb" in intro.source and not intro.metadata
    assert setup.source == "from tx.course import grade, hint" and graded.source == 'grade("Sum")'
    assert task.source.endswith("and delete the two lines with `NotImplementedError`.")
    assert asked.id == "sum-stub" and asked.metadata.tx.exercise == "Sum" and len(asked.metadata.tx.came) == 12
    assert made({"forward": ["# 1. add"]})[2].source.endswith("Add.")


def test_a_solution_without_a_stub_is_named():
    with pytest.raises(LookupError, match="sum-solution"):
        made(None)


def test_drift_is_found_and_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "solutions").mkdir(), (tmp_path / "exercises").mkdir(), (tmp_path / "book").mkdir()
    (tmp_path / "book" / "03-masks.ipynb").write_text("")
    real = stubs.ROOT / "solutions" / "03_masks.ipynb"
    (tmp_path / "solutions" / real.name).write_bytes(real.read_bytes())
    monkeypatch.setattr(stubs, "ROOT", tmp_path)
    assert stubs.main(["--check"]) == 1 and "differs" in capsys.readouterr().out
    assert stubs.main([]) == 0 == stubs.main(["--check"])
    path = tmp_path / "exercises" / real.name
    path.write_text(path.read_text().replace("causal_mask", "causal"))
    assert stubs.main(["--check"]) == 1
