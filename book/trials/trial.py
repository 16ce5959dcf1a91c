"""What every trial of this folder does: run many seeds with the code of a page, and write what came out.

A page trains a few seeds while it is read. What it says about more of them was measured by a script here, with
the page's own cells, and stands in the file of the same name that ends in `.json`:

    python book/trials/01_recall.py           run all seeds again, and write 01_recall.json

The file holds every run, and under "says" the words that the page quotes; `tests/test_trials.py` compares them
with the page.
"""

import ast
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: with more, sums round otherwise

HERE = Path(__file__).resolve().parent


def cells(page, *names, definitions=()):
    """What these cells of a page define; of the cells in `definitions` only functions and classes."""
    notebook = json.loads((HERE.parent / f"{page}.ipynb").read_text(encoding="utf-8"))
    source = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    space: dict = {}
    for name in (*names, *definitions):
        tree = ast.parse(source[name])
        if name in definitions:
            tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
        exec(compile(tree, f"{page}#{name}", "exec"), space)
    return space


def main():
    """Run the script as a trial: its `CASES` with `SEEDS` seeds each, by `run(case, seed)`; write its file."""
    import torch

    trial = sys.modules["__main__"]
    runs = {case: [trial.run(case, seed) for seed in range(trial.SEEDS)] for case in trial.CASES}
    stored = {"page": trial.PAGE, "seeds": trial.SEEDS, "torch": torch.__version__.split("+")[0],
              "says": trial.says(runs)}
    path = Path(trial.__file__).with_suffix(".json")
    path.write_text(dumps(stored, runs), encoding="utf-8", newline="\n")
    print(path.name, *stored["says"], sep="\n  ")


def dumps(stored, runs):
    """One run a line, so that a diff shows which runs changed."""
    lines = ",\n".join(f'  {json.dumps(case)}: [\n   ' + ",\n   ".join(map(json.dumps, several)) + "\n  ]"
                       for case, several in runs.items())
    return json.dumps(stored, indent=1, ensure_ascii=False)[:-2] + f',\n "runs": {{\n{lines}\n }}\n}}\n'


def band(runs, key="loss", digits=4):
    """The smallest and the largest, as a page writes them."""
    low, high = (f"{f(run[key] for run in runs):.{digits}f}" for f in (min, max))
    return f"{low} in all" if low == high else f"{low} to {high}"
