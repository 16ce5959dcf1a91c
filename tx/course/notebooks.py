"""Run the notebooks again and keep them in one normal form, so that a diff shows what changed.

    python -m tx.course.notebooks                       book and solutions are executed, exercises normalised
    python -m tx.course.notebooks book/03-masks.ipynb   one notebook
    python -m tx.course.notebooks --check               nothing is run or written: list what is not normal

Each notebook runs in a fresh kernel, in its own folder, with one torch thread. An unexpected error or a
line on stderr keeps the file as it was. Time and peak memory are reported against the book's budget.
"""

import argparse
import os
import re
import sys
import time
from functools import partial
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
SECONDS, MEAN_SECONDS, GIBIBYTES = 90, 60, 3.0
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_METADATA = {"tags", "tx", "mystnb", "jupyter", "editable", "deletable"}
PEAK = "import resource as _r; print(_r.getrusage(_r.RUSAGE_SELF).ru_maxrss)"
SVG_DATE = re.compile(r"\s*<dc:date>.*?</dc:date>", re.DOTALL)


def all_notebooks():
    """Every notebook of the course, book first, in chapter order."""
    return [p for folder in ("book", "exercises", "solutions")
            for p in sorted((ROOT / folder).glob("*.ipynb"))]


def read(path):
    return nbformat.read(path, as_version=4)


def write(path, notebook):
    Path(path).write_text(dumps(notebook), encoding="utf-8", newline="\n")


def dumps(notebook):
    return nbformat.writes(notebook) + "\n"


def keeps_outputs(path):
    """Exercises are committed without outputs: they are the learner's to produce."""
    return Path(path).resolve().parent.name != "exercises"


def normalise(notebook, outputs=True):
    """Bring `notebook` into normal form, in place: nothing in it says when, where or by whom it was run.

    Cell ids, tags and sources stay. `outputs=False` removes what was printed. Returns the notebook.
    """
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict({
        "kernelspec": KERNEL, "language_info": {"name": "python"},
        **{key: notebook.metadata[key] for key in ("tx",) if key in notebook.metadata}})
    count = 0
    for cell in notebook.cells:
        cell.id = cell.metadata.get("id", cell.id)       # where a converter keeps the author's id
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in CELL_METADATA and v not in ([], {})})
        cell.source = cell.source.rstrip()
        if cell.cell_type != "code":
            continue
        if not outputs:
            cell.outputs, cell.execution_count = [], None
        elif cell.execution_count is not None:
            count += 1                       # numbered as in one run from top to bottom
            cell.execution_count = count
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            if output.output_type == "error":            # a traceback names files of this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]
            if "image/svg+xml" in output.get("data", {}):
                output.data["image/svg+xml"] = SVG_DATE.sub("", output.data["image/svg+xml"])
    return notebook


def _joined(outputs):
    """The outputs with neighbouring pieces of one stream as one piece: where a pipe cuts is chance."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def execute(path, progress=lambda text: None):
    """Run the notebook at `path` in a fresh kernel. Returns (notebook, problems, seconds, GiB at the peak)."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook, problems, peak = read(path), [], 0.0
    code = [c for c in notebook.cells if c.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    client = NotebookClient(notebook, timeout=4 * SECONDS, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"],
                            resources={"metadata": {"path": str(Path(path).resolve().parent)}})
    start = time.perf_counter()
    with client.setup_kernel(env=environment):
        for number, cell in enumerate(code, 1):
            progress(f"cell {number} of {len(code)}")
            try:
                client.execute_cell(cell, notebook.cells.index(cell))
            except CellExecutionError as error:
                problems.append(f"{cell.id}: {error.ename}: {error.evalue}")
                break
            except (CellTimeoutError, DeadKernelError) as error:
                problems.append(f"{cell.id}: {type(error).__name__}: {str(error).splitlines()[0]}")
                break
            problems += [f"{cell.id}: stderr: {o.text.strip()}" for o in cell.outputs
                         if o.output_type == "stream" and o.name == "stderr"]
        seconds = time.perf_counter() - start
        if not problems:
            probe = nbformat.v4.new_code_cell(PEAK)
            notebook.cells.append(probe)
            client.execute_cell(probe, len(notebook.cells) - 1)
            notebook.cells.pop()
            unit = 1 if sys.platform == "darwin" else 1024
            peak = int(probe.outputs[0].text) * unit / 2**30
    return notebook, problems, seconds, peak


def check(path):
    """What keeps the notebook at `path` from normal form: a list of sentences, empty if nothing does."""
    text, problems = Path(path).read_text(encoding="utf-8"), []
    notebook = read(path)
    ids = [cell.get("id") for cell in notebook.cells]
    problems += [f"cell id {i!r} occurs {ids.count(i)} times" for i in sorted(set(ids)) if ids.count(i) > 1]
    for cell in notebook.cells:
        if cell.cell_type == "code" and keeps_outputs(path) and cell.execution_count is None and cell.source:
            problems.append(f"cell {cell.id} was never run")
    if dumps(normalise(notebook, keeps_outputs(path))) != text:
        problems.append("is not in normal form: run `python -m tx.course.notebooks` on it")
    return problems


def _progress(name, text):
    if sys.stdout.isatty():
        print(f"\r{name}  {text} ", end="", flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tx.course.notebooks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; all of the course if none is named")
    parser.add_argument("--check", action="store_true", help="list what is not in normal form; run nothing")
    parser.add_argument("--normalise", action="store_true", help="bring into normal form; run nothing")
    options = parser.parse_args(argv)
    bad, times = 0, []
    for path in options.files or all_notebooks():
        name = os.path.relpath(path)
        if options.check:
            problems = check(path)
        elif options.normalise or not keeps_outputs(path):
            write(path, normalise(read(path), keeps_outputs(path)))
            problems = []
        else:
            notebook, problems, seconds, peak = execute(path, partial(_progress, name))
            if not problems:
                write(path, normalise(notebook))
                times.append(seconds)
                over = " and ".join(w for w, o in (("time", seconds > SECONDS), ("memory", peak > GIBIBYTES)) if o)
                print(f"\r{name:<40}{seconds:6.1f} s of {SECONDS} {peak:6.2f} GiB of {GIBIBYTES:.0f}"
                      + (f"   over budget: {over}" if over else ""), flush=True)
        if problems:
            bad += 1
            print(f"\r{name}: " + "\n    ".join(["", *problems]), flush=True)
    if times:
        print(f"mean {sum(times) / len(times):.1f} s of {MEAN_SECONDS}")
    if bad:
        print(f"{bad} with problems" + ("" if options.check else "; those files were left as they were"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
