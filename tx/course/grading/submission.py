"""A folder of notebooks that somebody filled in, and how one exercise in it is judged."""

import re
from difflib import get_close_matches
from pathlib import Path

from tx.course.grading.impl import Gone, TimedOut
from tx.course.grading.notebook import TEXT_NOW, Missing, Notebook, Unreadable, begun, fingerprint
from tx.course.grading.report import STILL_A_STUB, Report, error_line


class Submission:
    """One person's notebooks.

    Args:
        name: whose they are; "" for the learner's own.
        folder: where the notebooks are.
        files: the notebooks, by default all in the folder.
    """

    def __init__(self, name, folder, files=None):
        self.name, self.folder = name, Path(folder)
        self.files = sorted(self.folder.glob("*.ipynb")) if files is None else files
        self._read = {}

    def judge(self, exercise, sandbox, seed=None):
        """The Report of one exercise. Its stage is "notebook" if it is about a file that cannot be read."""
        try:
            report = judge_notebook(self._notebook(exercise), exercise, sandbox, seed)
        except Missing as error:
            report = Report.blank(exercise)
            report.reason, report.stage = str(error), "notebook"
            if self.name:
                report.state, report.reason = "todo", "not handed in"
        except Unreadable as error:
            report = Report.blank(exercise)
            report.reason, report.stage = error.fault if self.name else str(error), "notebook"
        return report

    def _notebook(self, exercise):
        """The notebook that holds an exercise: by its name, or by its tags."""
        fault = None
        for file in sorted(self.files, key=lambda f: (f.stem != exercise.chapter, exercise.chapter not in f.stem)):
            if file not in self._read:
                try:
                    self._read[file] = Notebook.read(file)
                except Unreadable as error:
                    self._read[file] = error
            notebook = self._read[file]
            if isinstance(notebook, Notebook) and (
                file.stem == exercise.chapter or notebook.cell_of(exercise.name)
            ):
                return notebook
            if isinstance(notebook, Unreadable) and exercise.chapter in file.stem:
                fault = fault or notebook
                if file.stem == exercise.chapter:
                    break
        if fault:
            raise fault
        return Notebook.read(self.folder / f"{exercise.chapter}.ipynb")


def judge_notebook(notebook, exercise, sandbox, seed=None):
    """The Report of an exercise in a Notebook, run in a process of its own."""
    report = Report.blank(exercise)
    cell = notebook.cell_of(exercise.name)
    try:
        worker = sandbox.load(notebook, exercise)
    except (TimedOut, Gone):
        report.reason = "the notebook could not be run at all: restart the kernel and run all cells"
        report.stage = "notebook"
        return report
    skipped = sandbox.bad_cells[notebook.key]
    try:
        if worker.borrowed:
            report.state, report.reason = "borrowed", f"your notebook opens {worker.borrowed}"
        elif worker.found:
            report = exercise.judge(worker, seed)
            report.notes += _notes(report, notebook, cell, worker)
            if report.state == "todo" and cell and begun(cell.source):
                report.reason = STILL_A_STUB
        elif cell and cell.number in skipped:
            report.state = skipped[cell.number]
            report.reason = _skipped(cell.number, skipped[cell.number], sandbox)
        elif cell and cell.number in worker.errors:
            report.reason = error_line(worker.errors[cell.number])
        else:
            report.reason = _not_found(exercise, notebook, cell)
    finally:
        worker.close()
    report.reason = _whole(report.reason, notebook)
    report.notes[:0] = _several(exercise, notebook, cell)
    report.untouched = cell is not None and cell.untouched
    report.left_out = [_skipped(n, why, sandbox) for n, why in skipped.items()]
    report.tree = fingerprint(cell.source if cell else repr(notebook.cells))
    return report


def students(folder):
    """The submissions in a teacher's folder: a subfolder each, empty or not, or a notebook each.

    Notebooks that lie flat are told apart by what their names have beside the chapter's:
    `01_attention_ada.ipynb` and `ada-02_many_heads.ipynb` are both Ada's.
    """
    folder = Path(folder)
    found = [
        Submission(sub.name, sub, [file for file in sorted(sub.rglob("*.ipynb")) if _is_work(file, sub)])
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and _is_work(sub, folder)
    ]
    flat: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.ipynb")):
        whose = re.sub(r"\d\d_[a-z]+(_(heads|here))?", "", file.stem).strip(" _-.") or file.stem
        flat.setdefault(whose, []).append(file)
    return found + [Submission(name, folder, files) for name, files in flat.items()]


def _is_work(path, folder):
    """Whether somebody made it, and not Jupyter (.ipynb_checkpoints), Python or an archive (__MACOSX)."""
    return not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)


def _skipped(number, why, sandbox):
    if why == "timeout":
        return f"cell {number} was not done after {sandbox.cell_seconds:g} s, so it was left out"
    return f"cell {number} ends the whole program, so it was left out"


def _whole(reason, notebook):
    """A reason; where a name is missing because the notebook is not whole, it says that instead."""
    found = re.match(r"NameError: name '(\w+)' is not defined\n(.*)", reason)
    why = notebook.lacks(found[1]) if found else ""
    return f"`{found[1]}` is not defined: {why}\n{found[2]}" if found and why else reason


def _several(exercise, notebook, own):
    """What to say where more than one cell is tagged with the exercise."""
    *numbers, last = [str(cell.number) for cell in notebook.cells_of(exercise.name)] or [""]
    text = f"cells {', '.join(numbers)} and {last} are tagged for {exercise.name}, and cell {own and own.number}"
    return [f"{text} counts, the last that is Python: delete the others"] if numbers else []


def _notes(report, notebook, cell, worker):
    name, notes = report.name, []
    if cell is None and name in notebook.texts:
        notes.append(f"cell {notebook.texts[name]} {TEXT_NOW}; {name} was found by its name")
    elif cell is None:
        notes.append(
            f"no cell is tagged for {name} any more; it was found by its name. Give its cell the"
            f' tag "exercise" and the metadata "tx": {{"exercise": "{name}"}} again'
        )
    if worker.again:
        notes.append(f"{name} is defined again in another cell; cell {cell.number} was graded")
    if report.state == "error":  # what it needs may be missing
        notes += [
            f"cell {number} raises {error_line(error).splitlines()[0]}"
            for number, error in worker.errors.items()
            if cell is None or number <= cell.number
        ]
    return notes


def _not_found(exercise, notebook, cell):
    name = exercise.name
    if cell is None and name in notebook.texts:
        return f"cell {notebook.texts[name]} {TEXT_NOW}"
    seen = notebook.definitions([cell]) if cell else []
    seen = seen or get_close_matches(name, notebook.definitions(), n=2, cutoff=0.5)
    text = f"I found no function or class `{name}`"
    if seen:
        return f"{text}, did you rename it? I see {' and '.join(f'`{s}`' for s in seen)}"
    place = f"cell {cell.number}" if cell else notebook.path.name
    return f"{text} in {place}: the stub that belongs there starts with its name"
