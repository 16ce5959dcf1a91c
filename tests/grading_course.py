"""A synthetic course for the tests of the grader: three small exercises and their notebooks."""

import json

import torch

from tx.course import contracts
from tx.course.grading import Exercise, raises, randn
from tx.course.grading.notebook import as_it_came

CHAPTER = "90_synthetic"


def exercise(name, kind="write", **settings):
    """An exercise that wants `function(x, n=2)`: x, (T, D), times n."""
    made = Exercise(
        name, chapter=CHAPTER, kind=kind, level=1, minutes=5, points=2,
        page="90-synthetic.html#times", checks="x times n, for any n",
        question="what is 2 times 3?",
        hints=("which operator multiplies?", "x (T, D), n: an int", "return x * …"),
        out_of_reach=("torch.mul", "tx.softmax"), **settings,
    )  # fmt: skip

    @made.cases
    def _(g):
        yield randn(g, 2, 3), 2
        yield torch.tensor([[1000.0]]), 3
        yield raises(ValueError, torch.zeros(2, 2), -1)

    @made.reference
    def _(x, n):
        if n < 0:
            raise ValueError(f"n is {n}, and it has to be 0 or more")
        return x * n

    @made.mistake("added instead of multiplied", "x + n moves every number by the same amount.")
    def _(x, n):
        if n < 0:
            raise ValueError("n")
        return x + n

    @made.mistake("negative n accepted", "a negative n has to be refused.")
    def _(x, n):
        return x * n

    @made.contract("zero stays zero")
    def _(f):
        contracts.same("zero stays zero", f(torch.zeros(1, 2), 3), torch.zeros(1, 2))

    @made.contract("once changes nothing")
    def _(f):
        x = torch.tensor([[1.0, 2.0]])
        contracts.same("once changes nothing", f(x, 1), x)

    return made


times = exercise("times")
broken = exercise("broken", kind="debug")
again = exercise("again")

RIGHT = """\
def {name}(x, n):
    if n < 0:
        raise ValueError("n has to be 0 or more")
    return x * n
"""
STUB = "def {name}(x, n):\n    raise NotImplementedError\n"
ADDED = RIGHT.replace("x * n", "x + n")


def cell(source, exercise=None, **tx):
    """A code cell, tagged or not; `tx` is more of what its tag says."""
    metadata = {"tags": ["exercise"], "tx": {"exercise": exercise, **tx}} if exercise else {}
    return {
        "cell_type": "code", "id": "c", "source": source, "metadata": metadata,
        "outputs": [], "execution_count": None,
    }  # fmt: skip


def write(path, *cells):
    """A notebook of cells, (source, exercise) pairs or plain sources, after a cell of imports."""
    cells = [c if isinstance(c, dict) else cell(*c) if isinstance(c, tuple) else cell(c) for c in cells]
    setup = cell("import torch\nfrom tx.course import grade") | {"metadata": {"tags": ["setup"]}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [setup, *cells]}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def handed_out(path):
    """The notebook as a learner gets it: two stubs and something broken."""
    wrong = ADDED.format(name="broken")
    return write(
        path,
        (STUB.format(name="times"), "times"),
        'grade("times")',
        cell(wrong, "broken", came=as_it_came(wrong)),
        (STUB.format(name="again"), "again"),
    )
