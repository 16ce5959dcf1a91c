"""The graders are proven: every wrong answer is caught, every right one passes.

The answers are in tests/mutants, the page they make in book/graders-proof.md.
"""

import pytest

from tx.course.authoring import proof
from tx.course.grading import live
from tx.course.grading.sandbox import Sandbox

pytestmark = pytest.mark.slow
EXERCISES = live.catalogue()


@pytest.fixture(scope="module")
def sandbox():
    opened = Sandbox(cell_seconds=5, call_seconds=5)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page():
    return proof.sections_of(proof.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXERCISES)
def test_the_grader_holds(name, sandbox, page):
    found = proof.Proof(EXERCISES[name], sandbox)
    assert not found.problems, "\n".join(found.problems)
    assert page.get(name) == found.section(), "python -m tx.course.authoring.proof writes the page"


def test_the_page_has_every_exercise_and_the_right_totals(page):
    assert list(page) == list(EXERCISES)
    assert proof.PAGE.read_text(encoding="utf-8") == proof.page(page)


def test_no_answer_is_for_an_exercise_that_does_not_exist():
    assert set(proof.answers()) <= set(EXERCISES)
