"""What serves the book and not the models: contracts, grading, predictions, widgets, a training loop.

Names are imported on first use, so that `from tx.course import fit` does not load the grader.
"""

from importlib import import_module

_HOME = {
    "fit": "fitting",
    "commit": "predictions",
    "reveal": "predictions",
    "grade": "grading",
    "hint": "grading",
}


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"tx.course.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tx.course' has no attribute {name!r}")
