"""Notebooks have one normal form, and running them finds what is wrong."""

import nbformat
import pytest

from tx.course.authoring import notebooks


def stored(tmp_path, *sources, folder="book", **metadata):
    (tmp_path / folder).mkdir(exist_ok=True)
    cells = [nbformat.v4.new_code_cell(s, id=f"cell-{n}", metadata=metadata) for n, s in enumerate(sources)]
    path = tmp_path / folder / "page.ipynb"
    notebooks.write(path, nbformat.v4.new_notebook(cells=cells))
    return path


def test_normal_form_forgets_when_where_and_by_whom(tmp_path):
    when = {"iopub.execute_input": "2026-01-01"}
    path = stored(tmp_path, "x = 1\n\n", execution=when, tags=["a"], collapsed=True)
    notebook = notebooks.read(path)
    notebook.metadata = {"kernelspec": {"name": "my-env", "display_name": "Mine"}, "widgets": {}}
    cell = notebook.cells[0]
    cell.execution_count = 17
    cell.outputs = [nbformat.from_dict(o) for o in (
        {"output_type": "stream", "name": "stdout", "text": "a"},
        {"output_type": "stream", "name": "stdout", "text": "b"},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["File elsewhere.py"]},
        {"output_type": "display_data", "metadata": {},
         "data": {"image/svg+xml": "<svg>\n  <dc:date>2026-01-01</dc:date></svg>"}})]
    notebooks.normalise(notebook)
    assert cell.metadata == {"tags": ["a"]} and cell.source == "x = 1" and cell.execution_count == 1
    assert notebook.metadata.kernelspec.name == "python3" and "widgets" not in notebook.metadata
    assert [o.get("text") for o in cell.outputs] == ["ab", None, None]
    assert cell.outputs[1].traceback == ["E: v"]
    assert cell.outputs[2].data["image/svg+xml"] == "<svg></svg>"
    assert notebooks.dumps(notebooks.normalise(notebook)) == notebooks.dumps(notebook)


def test_check_names_what_is_not_normal(tmp_path):
    path = stored(tmp_path, "x = 1", "y = 2", collapsed=True)
    text = path.read_text().replace("cell-1", "cell-0")
    path.write_text(text)
    with pytest.warns(nbformat.validator.DuplicateCellId):
        problems = "\n".join(notebooks.check(path))
    assert "never run" in problems and "normal form" in problems


def test_exercises_are_stored_without_outputs(tmp_path):
    path = stored(tmp_path, "print(1)", folder="exercises")
    assert notebooks.main(["--normalise", str(path)]) == 0 and notebooks.check(path) == []
    notebook = notebooks.read(path)
    notebook.cells[0].execution_count = 1
    notebooks.write(path, notebook)
    assert notebooks.check(path)


@pytest.mark.slow
def test_a_run_is_stored_and_a_second_one_changes_nothing(tmp_path, capsys):
    path = stored(tmp_path, "print(6 * 7)", "import matplotlib.pyplot as plt\nfrom tx.course import figures\n"
                  "figures.use()\nplt.plot([1, 2]);")
    assert notebooks.main([str(path)]) == 0 and "GiB" in capsys.readouterr().out
    first = path.read_text()
    assert "42" in first and "svg" in first and notebooks.check(path) == []
    assert notebooks.main([str(path)]) == 0
    assert path.read_text() == first


@pytest.mark.slow
@pytest.mark.parametrize("source", ["1 / 0", "import sys\nprint('careful', file=sys.stderr)"])
def test_an_error_or_a_warning_leaves_the_file_alone(tmp_path, source, capsys):
    path = stored(tmp_path, "x = 1", source)
    before = path.read_text()
    assert notebooks.main([str(path)]) == 1
    assert path.read_text() == before and "cell-1" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_stored_output_is_found(tmp_path):
    path = stored(tmp_path, "print(6 * 7)")
    notebooks.main([str(path)])
    assert notebooks.main(["--nbval", str(path)]) == 0
    path.write_text(path.read_text().replace("42", "43"))
    assert notebooks.main(["--nbval", str(path)]) == 1
