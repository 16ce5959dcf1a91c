"""`grade("name")` and `hint("name")` in a notebook cell, and the list of all exercises."""

import importlib.util
import linecache
import sys
import textwrap
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path

from tx.course.grading import report as words
from tx.course.grading.comparing import name_of
from tx.course.grading.exercise import in_module
from tx.course.grading.notebook import Notebook, Unreadable, begun, fingerprint
from tx.course.grading.progress import Progress

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "exercises"


def catalogue(folder=None):
    """Every exercise of the course by name, in order, from the grader modules in a folder."""
    found = {}
    for path in sorted((folder or FOLDER).glob("test_*.py")):
        for exercise in in_module(module_at(path, f"tx_graders.{path.stem}@{path.parent}")):
            found[exercise.name] = exercise
    return found


def module_at(path, name):
    """The module or package in a file, imported once, under that name."""
    if name not in sys.modules:
        places = [str(path.parent)] if path.name == "__init__.py" else None
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
        assert spec is not None and spec.loader is not None  # every .py file has them
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def grade(name=None):
    """Grade the exercise of that name on the function or class that is defined here.

    The code runs in this process, so an endless loop is interrupted, but not a single very long
    operation. `pytest exercises` runs the notebook afresh, in a process of its own.

    Args:
        name: the exercise, such as "stable_softmax".
    """
    exercise = _find(name)
    if exercise is None:
        return
    answer = sys._getframe(1).f_globals.get(name)
    if answer is None:
        print(f"There is no `{name}` here yet: run the cell that defines it, then this one again.")
        return
    if not callable(answer):
        print(f"`{name}` is {name_of(answer)} here, not a function: run the cell that defines it.")
        return
    report = exercise.judge(answer)
    source = _source(answer)
    report.tree = fingerprint(source)
    if report.state == "todo" and begun(source):
        report.reason = words.STILL_A_STUB
    progress = _progress().load()
    lines = words.present(report, progress)
    progress.save()
    print("\n".join([*lines, *filter(None, [progress.warning])]))


def hint(name=None):
    """Print the next hint for an exercise: a question, then subgoals, then code, then the solution.

    Args:
        name: the exercise, such as "stable_softmax".
    """
    exercise = _find(name)
    if exercise is None:
        return
    progress = _progress().load()
    number = progress.ask(name)
    progress.save()
    print("\n".join(hint_lines(exercise, number)))


def hint_lines(exercise, number):
    """The hint of that number, counted from 1; the fourth and later are the solution."""
    count = len(exercise.hints) + 1
    number = min(number, count)
    lines = [f"{exercise.name}: hint {number} of {count}"]
    text = exercise.hints[number - 1] if number < count else solution(exercise)
    for line in text.strip("\n").splitlines():
        lines += textwrap.wrap(line, 98, initial_indent="  ", subsequent_indent="  ",
                               replace_whitespace=False) or [""]  # fmt: skip
    if number < count:
        last = number == count - 1
        lines.append(f"  (ask again for {'the solution' if last else 'the next one'})")
    return lines


def solution(exercise):
    """The solved cell, from the solutions' notebook."""
    path = FOLDER.parent / "solutions" / f"{exercise.chapter}.ipynb"
    try:
        cell = Notebook.read(path).cell_of(exercise.name)
    except Unreadable:
        cell = None
    where = f"solutions/{path.name} says why"
    return f"{cell.source}\n\n{where}" if cell else f"the solution stands in solutions/{path.name}"


def _find(name):
    known = catalogue()
    if isinstance(name, str) and name in known:
        return known[name]
    asked = getattr(name, "__name__", name)  # the function in place of its name
    fault = "Which exercise?" if name is None else f"There is no exercise {asked!r}"
    if asked in known:
        fault = f"Its name is asked for, in quotes: {asked!r}"
    print("\n".join(unknown([] if asked in known else [asked], fault)))
    return None


def unknown(names, fault):
    """What to say where exercises are not known by some names: the nearest ones, and all there are."""
    known = catalogue()
    near = dict.fromkeys(match for name in names for match in get_close_matches(str(name), known, n=3))
    lines = [f"{fault}: did you mean {', '.join(near)}?" if near else fault]
    for chapter, same in groupby(known.values(), key=lambda exercise: exercise.chapter):
        lines += textwrap.wrap(", ".join(e.name for e in same), 98, initial_indent=f"  {chapter}: ",
                               subsequent_indent="    ")  # fmt: skip
    return lines


def _progress():
    """The learner's file; none while a solution is run."""
    return Progress(None if Path.cwd().name == "solutions" else FOLDER / ".progress.json")


def _source(answer):
    """The source of the cell that defines a function or class."""
    for part in (answer, *(vars(answer).values() if isinstance(answer, type) else ())):
        code = getattr(part, "__code__", None)
        if code is not None:
            return "".join(linecache.getlines(code.co_filename)) or repr(code.co_code)
    return repr(answer)
