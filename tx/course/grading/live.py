"""`grade("name")` and `hint("name")` in a notebook cell."""

import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path

from tx.course.grading import report as words
from tx.course.grading.exercise import in_module

FOLDER = Path(__file__).resolve().parents[3] / "exercises"


def catalogue(folder=FOLDER):
    """Every exercise of the course by name, in order, from the grader modules in a folder."""
    found = {}
    for path in sorted(Path(folder).glob("test_*.py")):
        name = f"tx_graders.{path.stem}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        for exercise in in_module(sys.modules[name]):
            found[exercise.name] = exercise
    return found


def find(name):
    """The exercise of that name. Raises KeyError with the nearest names."""
    known = catalogue()
    if name not in known:
        near = get_close_matches(name, known, n=3) or list(known)
        raise KeyError(f"there is no exercise {name!r}; there is {', '.join(near)}")
    return known[name]


def grade(name, answer=None):
    """Grade an exercise on the live object of that name, or on `answer`, and print the result."""
    if answer is None:
        answer = sys._getframe(1).f_globals.get(name)
    if answer is None:
        print(f"I see no `{name}` here yet: run the cell that defines it, then this one again.")
        return
    report = find(name).judge(answer)
    print("\n".join([words.headline(report), *words.details(report)]))


def hint(name):
    """Print the next hint for an exercise."""
    print(find(name).hints[0])
