"""Quotes are word for word, without docstrings and argument checks."""

import nbformat
import pytest

from tx.course.authoring import notebooks, quoting

SOURCE = '''import torch


@torch.no_grad()
def first(x: torch.Tensor, n_heads: int = 2) -> torch.Tensor:
    """A docstring

    of several lines.
    """
    _check_heads(
        n_heads,
    )

    # why we do this
    return x.sum(-1)  # (B, T)  a word


class Second:
    """A docstring."""

    width: int = 3

    def method(self, x):
        """Another."""
        text = """kept: no docstring"""
        _check_heads(x)
        return text

    def guarded(self, x):
        if not torch.compiler.is_compiling():  # the check waits for the device
            masks.check_mask(x)
            _check_heads(x)
        if x is None:
            _check_heads(x)
            x = 0
        return x


CONSTANT = 3.0
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "tx").mkdir()
    (tmp_path / "tx" / "sample.py").write_text(SOURCE)
    monkeypatch.setattr(quoting, "ROOT", tmp_path)
    return tmp_path


def test_a_function_keeps_decorators_annotations_and_comments(package):
    assert quoting.quote("sample.first") == (
        "@torch.no_grad()\n"
        "def first(x: torch.Tensor, n_heads: int = 2) -> torch.Tensor:\n"
        "    # why we do this\n"
        "    return x.sum(-1)  # (B, T)  a word"
    )


def test_a_class_loses_every_docstring_and_check(package):
    assert quoting.quote("sample.Second") == (
        "class Second:\n"
        "    width: int = 3\n"
        "\n"
        "    def method(self, x):\n"
        '        text = """kept: no docstring"""\n'
        "        return text\n"
        "\n"
        "    def guarded(self, x):\n"
        "        if x is None:\n"
        "            x = 0\n"
        "        return x"
    )


def test_a_guard_of_nothing_but_checks_goes_with_them(package):
    assert quoting.quote("sample.Second.guarded") == (
        "def guarded(self, x):\n"
        "    if x is None:\n"
        "        x = 0\n"
        "    return x"
    )


def test_a_method_and_a_constant(package):
    assert quoting.quote("sample.Second.method").startswith("def method(self, x):\n    text = ")
    assert quoting.quote("sample.CONSTANT") == "CONSTANT = 3.0"


@pytest.mark.parametrize("name", ["sample", "nothing.first", "sample.third", "sample.Second.third"])
def test_what_does_not_exist_is_named(package, name):
    with pytest.raises(LookupError, match="expected|defines no"):
        quoting.quote(name)


def test_every_module_that_a_cell_quotes_is_named(package):
    (package / "tx" / "course").mkdir()
    (package / "tx" / "course" / "other.py").write_text("OTHER = 1\n")
    assert quoting.source(["sample.Second.guarded", "course.other.OTHER", "sample.CONSTANT"]) == (
        "# tx/sample.py · Second.guarded\n" + quoting.quote("sample.Second.guarded")
        + "\n\n# tx/course/other.py · OTHER\nOTHER = 1\n\n# tx/sample.py · CONSTANT\nCONSTANT = 3.0")


def test_drift_is_found_and_refreshed(package, tmp_path, capsys):
    cell = nbformat.v4.new_code_cell("def first(x): pass", id="first", metadata={
        "tags": ["quote"], "tx": {"quote": ["sample.first", "sample.CONSTANT"]}})
    path = tmp_path / "page.ipynb"
    notebooks.write(path, nbformat.v4.new_notebook(cells=[cell]))
    assert quoting.main(["--check", str(path)]) == 1 and "first" in capsys.readouterr().out
    assert quoting.main([str(path)]) == 0
    assert notebooks.read(path).cells[0].source == (
        "# tx/sample.py · first, CONSTANT\n" + quoting.quote("sample.first") + "\n\n"
        + quoting.quote("sample.CONSTANT"))
    assert quoting.main(["--check", str(path)]) == 0


def test_a_quote_of_nothing_stays_an_error(package, tmp_path):
    cell = nbformat.v4.new_code_cell("x", id="lost", metadata={"tags": ["quote"]})
    path = tmp_path / "page.ipynb"
    notebooks.write(path, nbformat.v4.new_notebook(cells=[cell]))
    assert quoting.main([str(path)]) == 1
