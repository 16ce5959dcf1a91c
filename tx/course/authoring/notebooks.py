"""Run the notebooks again and keep them in one normal form, so that a diff shows what changed.

    python -m tx.course.authoring.notebooks             book and solutions are executed, exercises normalised
    … book/03-masks.ipynb                               one notebook
    … --check                                           nothing is run or written: list what is not normal
    … --nbval                                           run all, compare every output with the stored one

Each notebook runs in a fresh kernel, in its own folder, with one torch thread. An unexpected error or a
line on stderr keeps the file as it was. Time and peak memory are reported against the book's budget.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[3]
SECONDS, MEAN_SECONDS, GIBIBYTES = 90, 60, 3.0
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_METADATA = {"tags", "tx", "mystnb", "jupyter", "editable", "deletable"}
PEAK = "import resource as _r; print(_r.getrusage(_r.RUSAGE_SELF).ru_maxrss)"
WITHOUT_TX = '''\
try:
    import tx
except ImportError as lost:
    lost.msg = (
        "tx is missing here. Run `!git clone ADDRESS course`, "
        "with the address of the course's repository, and "
        "`%pip install -e 'course[course]'`. Then restart.")
    raise
'''  # how the first cell of every notebook begins, for whoever opens it on Colab
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
    joined: list = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def execute(path, progress=lambda text: None):
    """Run the notebook at `path` in a fresh kernel. Returns (notebook, problems, seconds, peak in GiB)."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook, problems, peak = read(path), [], 0.0
    code = [c for c in notebook.cells if c.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=4 * SECONDS, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"],
                            resources={"metadata": {"path": str(Path(path).resolve().parent)}})
    start = time.perf_counter()
    with client.setup_kernel(env=_environment()):
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


def verify(files):
    """Run notebooks and compare what they print, strictly, with what they have stored. Returns an exit code.

    Two notebooks run at a time. The comparing is nbval's; exercises have no outputs: they run, nothing more.
    """
    stored = [str(f) for f in files if keeps_outputs(f)]
    nbval = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q",
             f"--nbval-cell-timeout={2 * SECONDS}", "-p", "tx.course.authoring.notebooks", "-n2",
             "--dist=loadfile", "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(ROOT)]
    bad = bool(stored) and subprocess.run([*nbval, *stored], cwd=ROOT, env=_environment()).returncode != 0
    bare = [path for path in files if not keeps_outputs(path)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for path, (_, problems, seconds, peak) in zip(bare, pool.map(execute, bare), strict=True):
            print(_line(path, seconds, peak), *problems, sep="\n    ", flush=True)
            bad = bad or bool(problems)
    return int(bad)


def pytest_configure(config):
    """nbval runs cells outside IPython's history, where a `;` at the end of a line does not silence it."""
    from nbval.kernel import RunningKernel

    RunningKernel.execute_cell_input = lambda self, source, allow_stdin=None: self.kc.execute(
        source, allow_stdin=allow_stdin, stop_on_error=False)


def pytest_collectstart(collector):
    """nbval compares the source of an SVG; a picture is looked at, not compared."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("image/svg+xml",)


def pytest_runtest_teardown(item, nextitem):
    """After the last cell of a notebook, note the peak memory of its kernel (where /proc tells it)."""
    if hasattr(item, "cell_num") and (nextitem is None or nextitem.parent is not item.parent):
        with contextlib.suppress(OSError, AttributeError):
            status = Path(f"/proc/{item.parent.kernel.km.provisioner.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s*(\d+)", status):
                item.user_properties.append(("peak", int(found[1]) / 2**20))


def pytest_terminal_summary(terminalreporter):
    """Time and memory of each notebook."""
    seconds: Counter[str] = Counter()
    peaks: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            path = getattr(report, "nodeid", "").split("::")[0]
            if path.endswith(".ipynb") and hasattr(report, "duration"):
                seconds[path] += report.duration
                peaks.update((path, value) for _, value in report.user_properties)
    for path in sorted(seconds):
        terminalreporter.write_line(_line(path, seconds[path], peaks.get(path, 0.0)))


def _environment():
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(path))


def _line(path, seconds, peak):
    over = [what for what, is_over in (("time", seconds > SECONDS), ("memory", peak > GIBIBYTES)) if is_over]
    return (f"{os.path.relpath(path):<36}{seconds:6.1f} s of {SECONDS}{peak:7.2f} GiB of {GIBIBYTES:.0f}"
            + (f"   over budget: {' and '.join(over)}" if over else ""))


def check(path):
    """What keeps the notebook at `path` from normal form: a list of sentences, empty if nothing does."""
    text, problems = Path(path).read_text(encoding="utf-8"), []
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code" and keeps_outputs(path) and cell.execution_count is None and cell.source:
            problems.append(f"cell {cell.id} was never run")
    if dumps(normalise(notebook, keeps_outputs(path))) != text:
        problems.append("is not in normal form: run `python -m tx.course.authoring.notebooks` on it")
    return problems


def _progress(name, text):
    if sys.stdout.isatty():
        print(f"\r{name}  {text} ", end="", flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tx.course.authoring.notebooks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; all of the course if none is named")
    parser.add_argument("--check", action="store_true", help="list what is not in normal form; run nothing")
    parser.add_argument("--nbval", action="store_true", help="run; compare the outputs with the stored ones")
    parser.add_argument("--normalise", action="store_true", help="bring into normal form; run nothing")
    options = parser.parse_args(argv)
    files, bad, times = options.files or all_notebooks(), 0, []
    if options.nbval:
        return verify(files)
    for path in files:
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
                print("\r" + _line(path, seconds, peak), flush=True)
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
