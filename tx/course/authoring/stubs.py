"""The exercises are made from their solutions, so that no text stands twice.

A cell tagged `exercise` in `solutions/` says in its metadata what the learner gets in place of a body, by the name
of the function or method, as lines:

    {"tx": {"exercise": "soft_choice", "stub": {"soft_choice": ["# return …  # (T, S)"]}}}

`raise NotImplementedError` is put behind it, unless it returns something: the wrong body of a Debug exercise does.
A task whose stub has gaps (…) says what to do with them. The set-up imports `hint`, too, the introduction is
written here, `"note"` in the metadata of the solutions' introduction adds to it, and what has no place in an
exercise, the whys and second ways, is left out.

    python -m tx.course.authoring.stubs              write exercises/*.ipynb
    python -m tx.course.authoring.stubs --check      write nothing; list the notebooks that differ
"""

import argparse
import ast
import copy
import os
import re
import sys
from pathlib import Path

import nbformat

from tx.course.authoring import notebooks
from tx.course.grading.notebook import Cell, as_it_came

ROOT = notebooks.ROOT
KEPT = re.compile(r"intro|setup|.*-(task|solution|grade)")
GAPS = " Replace each `…`, remove the `#` in front, and delete {}."
INTRODUCTION = """\
# Exercises {number} · {title}

Each exercise is one {kinds}. Fill it in, run its cell, then run the cell with `grade(…)` below it: it says what
was checked, what was expected and what came. There is no limit on attempts. `hint("name")` gives a hint, and
asking again gives the next; hints cost nothing. In a shell, `pytest exercises` grades every chapter, `pytest
exercises -k {first}` one exercise.

{note}The page that goes with this notebook is chapter {number} of the book, `book/{page}`, which says at each
exercise when to do it. `make reset EX={chapter}` brings a fresh copy of this notebook back and keeps yours
beside it.
"""  # a paragraph is one line of a cell


def exercises(solutions, stem):
    """The notebook to fill in that belongs to a notebook of solutions, `stem` = "03_masks"."""
    made = copy.deepcopy(solutions)
    made.cells = [cell for cell in made.cells if KEPT.fullmatch(cell.id)]
    asked = [cell for cell in made.cells if "exercise" in cell.metadata.get("tags", [])]
    for cell in asked:
        texts = cell.metadata.tx.pop("stub", None)
        if texts is None:
            raise LookupError(f'{cell.id}: expected "tx": {{"stub": …}} in the metadata of the solution')
        cell.source = stub(cell.source, {name: "\n".join(lines) for name, lines in texts.items()})
        task = made.cells[made.cells.index(cell) - 1]
        if "…" in "".join(line for lines in texts.values() for line in lines):
            many = cell.source.count("raise NotImplementedError") > 1
            task.source += GAPS.format("the two lines with `NotImplementedError`" if many else "the last line")
        if not Cell(0, cell.source, cell.metadata.tx.exercise).untouched:  # something of it already returns
            cell.metadata.tx["came"] = as_it_came(cell.source)  # tells whether somebody has worked in it
        cell.id = cell.id.replace("-solution", "-stub")
    intro, setup = made.cells[:2]
    number, title = intro.source.splitlines()[0].removeprefix("# Solutions ").split(" · ")
    note = intro.metadata.pop("tx", {}).get("note", "")
    intro.source = re.sub(r"(?<!\n)\n(?!\n)", " ", INTRODUCTION.strip()).format(
        number=number, title=title, chapter=stem[:2], first=asked[0].metadata.tx.exercise,
        page=next((ROOT / "book").glob(f"{stem[:2]}-*.ipynb")).name, note=note and note + " ",
        kinds="function or class" if any(c.source.startswith("class") for c in asked) else "function")
    setup.source = re.sub(r"^from tx.course import grade$", r"\g<0>, hint", setup.source, flags=re.M)
    return notebooks.normalise(made, outputs=False)


def stub(source, texts):
    """The `source` of a solution with other bodies, `texts` by the names of functions; docstrings stay."""
    lines, tree = source.splitlines(), ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in texts]
    if lost := texts.keys() - {f.name for f in functions}:
        raise LookupError(f"the solution defines no {', '.join(lost)}")
    for function in sorted(functions, key=lambda f: -f.lineno):
        first = function.body[0]
        start = first.end_lineno if ast.get_docstring(function) is not None else first.lineno - 1
        text = texts[function.name]
        if not re.search("^return", text, re.M):
            text = f"{text}\nraise NotImplementedError".lstrip("\n")
        indent = " " * (function.col_offset + 4)
        lines[start:function.end_lineno] = [indent + line for line in text.splitlines()]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tx.course.authoring.stubs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; list the notebooks that differ")
    options = parser.parse_args(argv)
    bad = 0
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        target: Path = ROOT / "exercises" / path.name
        made = notebooks.dumps(exercises(notebooks.read(path), path.stem))
        if target.exists() and target.read_text(encoding="utf-8") == made:
            continue
        bad += options.check
        print(f"{os.path.relpath(target)} differs from its solutions" + ("" if options.check else ": written"))
        if not options.check:
            notebooks.write(target, nbformat.reads(made, as_version=4))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
