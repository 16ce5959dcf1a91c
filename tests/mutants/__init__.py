"""Wrong and right answers that prove the graders.

One file a chapter, `tests/mutants/01_attention.py`, named like the exercise notebook. It is written
without a look at the graders' own `mistake`s, so that the share of wrong answers that get named is
a measurement. At least five wrong and two right answers for each exercise:

    import torch
    from tests.mutants import right, right_source, wrong, wrong_source

    @wrong("stable_softmax", "softmax over the queries instead of the keys")
    def _(scores):
        e = (scores - scores.amax(-2, keepdim=True)).exp()
        return e / e.sum(-2, keepdim=True)

    @right("stable_softmax", "through the log-sum-exp")
    def _(scores):
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()

Functions run in this process, with the exercise's traps set; a wrong one must come out as "wrong"
or "error", or as what `@wrong(…, expect="borrowed")` says. An answer that crashes, ends the
process, loops or cheats is source text, runs in a child process like a learner's notebook, and
says which state is expected ("wrong", "error", "timeout", "borrowed", "todo"):

    wrong_source("stable_softmax", "calls the answer", '''
    def stable_softmax(scores):
        return torch.softmax(scores, -1)
    ''', expect="borrowed")

`torch` is imported before the source text runs. `right_source` is its counterpart for a right
answer that only makes sense as text. Every answer keeps the exercise's signature; a class exercise
registers classes. Toy sizes, no training: one answer takes milliseconds.
"""

import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer to an exercise, and what its grader must say to it."""

    exercise: str
    what: str
    target: object  # a function or class; None where there is source text
    source: str = ""
    expect: str = ""  # a state; "" for a wrong answer in process: wrong or error


ANSWERS = []  # of every mutant file that was imported


def wrong(exercise, what, expect=""):
    """Register a wrong answer; `what` says in one sentence what is wrong."""
    return _register(exercise, what, expect)


def right(exercise, what):
    """Register a right answer that differs from the solution; `what` says in what."""
    return _register(exercise, what, "passed")


def wrong_source(exercise, what, code, expect):
    """Register a wrong answer as source text, and the state that it must get."""
    ANSWERS.append(Answer(exercise, what, None, textwrap.dedent(code).strip(), expect))


def right_source(exercise, what, code):
    """Register a right answer as source text."""
    ANSWERS.append(Answer(exercise, what, None, textwrap.dedent(code).strip(), "passed"))


def _register(exercise, what, expect):
    def keep(target):
        ANSWERS.append(Answer(exercise, what, target, expect=expect))
        return target

    return keep
