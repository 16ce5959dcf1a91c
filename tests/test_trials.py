"""What a page says about more seeds than it trains is what the trial's file holds."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from tx.course.authoring import notebooks

ROOT = Path(__file__).resolve().parents[1]
TRIALS = ROOT / "book/trials"
NAMES = sorted(path.stem for path in TRIALS.glob("[0-9]*.py"))


@pytest.fixture(autouse=True)
def beside_the_trials(monkeypatch):
    monkeypatch.syspath_prepend(str(TRIALS))
    yield
    for name in (*NAMES, "trial"):
        sys.modules.pop(name, None)


def stored(name):
    return json.loads((TRIALS / f"{name}.json").read_text(encoding="utf-8"))


def sentences(text, link):
    """The paragraph that links to a trial, without its links."""
    [paragraph] = [p for p in text.split("\n\n") if link in p]
    return re.sub(r"\]\([^)]*\)", "]", paragraph)


def missing(says, paragraph):
    """What the file says and the page does not."""
    return [words for words in says if words not in paragraph]


def test_there_are_trials_and_each_has_its_file():
    assert NAMES and sorted(path.stem for path in TRIALS.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_its_script_makes_of_its_runs(name):
    trial, file = importlib.import_module(name), stored(name)
    assert (file["page"], file["seeds"]) == (trial.PAGE, trial.SEEDS)
    assert list(file["runs"]) == list(trial.CASES)
    for runs in file["runs"].values():
        assert [run["seed"] for run in runs] == list(range(trial.SEEDS))
    assert file["says"] == trial.says(file["runs"]) != []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_quotes_the_file(name):
    file, link = stored(name), f"(trials/{name}.json)"
    notebook = notebooks.read(ROOT / "book" / f"{file['page']}.ipynb")
    [cell] = [c for c in notebook.cells if c.cell_type == "markdown" and link in c.source]
    assert missing(file["says"], sentences(cell.source, link)) == []


def test_another_number_on_the_page_or_in_the_file_is_found():
    page = "From 24 seeds, [measured](trials/x.json): 0.0004 to 0.0009."
    assert missing(["24 seeds", "0.0004 to 0.0009"], sentences(page, "(trials/x.json)")) == []
    assert missing(["0.0004 to 0.0010"], sentences(page, "(trials/x.json)")) == ["0.0004 to 0.0010"]
    assert missing(["x.json"], sentences(page, "(trials/x.json)")) == ["x.json"]  # an address is no text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_run_again_gives_what_the_file_says(name):
    trial = importlib.import_module(name)
    case = next(iter(trial.CASES))
    assert trial.run(case, 0)["loss"] == pytest.approx(stored(name)["runs"][case][0]["loss"], abs=0.02)
