"""The graders' proof: every wrong answer is caught, every right one passes.

`python -m tx.course.authoring.proof` judges the stubs, the solutions, the known mistakes and the
answers of tests/mutants, and writes the kill matrix, book/graders-proof.md.
"""

import re
import sys
from functools import cache
from itertools import groupby

from tx.course.grading import live, reach
from tx.course.grading.impl import InProcess
from tx.course.grading.notebook import Cell, Notebook
from tx.course.grading.sandbox import Sandbox
from tx.course.grading.submission import Submission, judge_notebook

SEEDS = range(30)  # an answer that only some of them catch is not caught
PAGE = live.ROOT / "book" / "graders-proof.md"
MUTANTS = live.ROOT / "tests" / "mutants"
CAUGHT = {
    "error": "it raises an error", "nothing": "it returns nothing", "type": "the type of the result",
    "shape": "the shape", "dtype": "the kind of number", "value": "the numbers",
    "raises": "bad input is accepted or badly refused", "changed": "its arguments change",
    "gradient": "the gradients",
}  # fmt: skip


def mutants():
    """The package tests.mutants, wherever Python was started."""
    return live.module_at(MUTANTS / "__init__.py", "tests.mutants")


@cache
def answers():
    """All answers of tests/mutants, by exercise."""
    package = mutants()
    for path in sorted(MUTANTS.glob("[0-9]*.py")):
        live.module_at(path, f"tests.mutants.{path.stem}")
    found: dict[str, list] = {}
    for answer in package.ANSWERS:
        found.setdefault(answer.exercise, []).append(answer)
    return found


def judge(exercise, answer, sandbox, seed):
    """The Report of one answer of tests/mutants."""
    if answer.target is not None:
        return exercise.judge(answer.target, seed)
    cells = [Cell(1, "import torch", None), Cell(2, answer.source, exercise.name)]
    return judge_notebook(Notebook("mutant.ipynb", cells), exercise, sandbox, seed)


class Proof:
    """What was found about one exercise. `problems` is empty if its grader holds."""

    def __init__(self, exercise, sandbox):
        self.exercise, self.problems, self.rows = exercise, [], []
        self._handed_out(sandbox)
        self._known()
        self._written(sandbox)
        self._every_seed()

    def _handed_out(self, sandbox):
        start = "wrong" if self.exercise.kind == "debug" else "todo"
        for folder, state in (("exercises", start), ("solutions", "passed")):
            submission = Submission("", live.FOLDER.parent / folder)
            report = submission.judge(self.exercise, sandbox, SEEDS[0])
            if report.state != state:
                self._problem(f"in {folder} it is {report.state}, not {state}: {report.reason}")
        for name in self.exercise.out_of_reach:
            if reach.find(name, load=True) is None:
                self._problem(f"out of reach is {name}, and there is no such thing")

    def _known(self):
        names = [name for name, _, _ in self.exercise.mistakes]
        if len(names) < 4:
            self._problem(f"it knows {len(names)} mistakes; four are the least")
        for name, _, function in self.exercise.mistakes:
            report = self.exercise.judge(InProcess(function), SEEDS[0])
            if report.mistake != name:
                self._problem(f'its mistake "{name}" is {report.state}, named {report.mistake!r}')
        right = self.exercise.judge(InProcess(self.exercise.reference_answer), SEEDS[0])
        if right.state != "passed":
            self._problem(f"its own reference is {right.state}: {right.reason}")

    def _written(self, sandbox):
        mine = answers().get(self.exercise.name, [])
        good = sum(answer.expect == "passed" for answer in mine)
        if good < 2 or len(mine) - good < 5:
            self._problem(f"{len(mine) - good} wrong and {good} right answers; 5 and 2 are the least")
        for answer in sorted(mine, key=lambda a: a.expect != "passed"):
            allowed = (answer.expect,) if answer.expect else ("wrong", "error")
            report = judge(self.exercise, answer, sandbox, SEEDS[0])
            if report.state not in allowed:
                self._problem(f"{answer.what!r} is {report.state}, not {' or '.join(allowed)}: {report.reason}")
            if report.state == "wrong" and not (report.called or report.contract):
                self._problem(f"{answer.what!r} fails, and nothing says where")
            self.rows.append((answer, report))

    def _every_seed(self):
        """What is wrong is caught on the cases of every seed, and what is right never."""
        out, told = self.exercise.out_of_reach, " ".join(self.problems)
        answers = [(name, InProcess(function, out), True) for name, _, function in self.exercise.mistakes]
        answers += [(a.what, InProcess(a.target, out), a.expect != "passed") for a, report in self.rows
                    if a.target is not None and (report.stage or not report.breaks)]  # contracts have no seed
        fixed, drawn = self.exercise.fixed_and_drawn(SEEDS[0])
        for what, session, is_wrong in answers:
            if repr(what) in told:
                continue
            first = self.exercise.catches(session, SEEDS[0], fixed + drawn) if is_wrong else None
            if first in fixed:  # caught, whatever the seed
                continue
            numbers = [i for i in drawn if i == first] + [i for i in drawn if i != first]  # what caught it, first
            for seed in SEEDS[1:] if is_wrong else SEEDS[1:5]:
                if (self.exercise.catches(session, seed, numbers) is not None) != is_wrong:
                    self._problem(f"{what!r} {'passes' if is_wrong else 'is caught'} with seed {seed}")
                    break

    def _problem(self, text):
        self.problems.append(f"{self.exercise.name}: {text}")

    def section(self):
        """The exercise's part of the page."""
        lines = ["| answer | verdict | caught by | named as |", "|---|---|---|---|"]
        for answer, report in self.rows:
            mark = "right" if answer.expect == "passed" else "wrong"
            name = f"{'general: ' * report.general}{report.mistake}" if report.mistake else "–"
            cells = (f"{mark}: {answer.what}", report.state, _caught(report), name)
            lines.append(f"| {' | '.join(map(_escaped, cells))} |")
        counts = _counts(lines)
        summary = f"{counts['killed']} of {counts['wrong']} wrong answers caught"
        if counts["told"]:
            summary += f", {counts['named']} of {counts['told']} named"
        checks = self.exercise.checks[:1].upper() + self.exercise.checks[1:] + "."
        head = [f"### {self.exercise.name}", "", checks, "", f":::{{dropdown}} {summary}"]
        return "\n".join([*head, *lines, ":::"]) + "\n"


def _escaped(text):
    """Text for a cell of a Markdown table."""
    for mark in "\\*_$<`[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split()).replace("|", "&#124;")


def _caught(report):
    if report.state == "passed":
        return "–"
    if report.state in ("timeout", "borrowed") or not report.stage:
        return {"timeout": "the time limit", "borrowed": "what is out of reach"}.get(
            report.state, "the process" if report.state == "error" else "a contract"
        )
    broken = "".join(f"; “{name}” breaks" for name in report.breaks[:1])
    return CAUGHT[report.stage] + broken


HEAD = """\
# The graders' proof

Who grades the grader? For every exercise we wrote wrong answers, without a look at the mistakes its
grader knows, and right answers that look different from the solution. Each is judged as a learner's
answer is. This page is generated; a test holds it current.

{totals}

A wrong answer that gives a result can be *named*: the grader finds a known mistake that gives the
same results on the same inputs, one of the exercise or a general one (the last two axes swapped, a
constant factor, arguments changed in place …). One that raises an error, does not end, or calls the
answer gets that as its reason instead. A right answer must pass with every seed that we try. The
answers to an exercise unfold under its line.

Answers that a grader's own mistakes already prove are not kept here, so the share above says little. What a
grader knows of answers that it has never met was measured with answers written from the notebooks
alone. The first ones (chapters 0 to 3) found holes, which were closed before others wrote the second ones. What a
later chapter's own answers found was closed after they were counted.

{blind}

"""


def page(sections):
    """The whole page from the sections of the exercises, in order."""
    parts = [HEAD.format(totals=totals(sections), blind=blind())]
    known = live.catalogue()
    for chapter, names in groupby(sections, key=lambda name: known[name].chapter):
        number, _, title = chapter.partition("_")
        parts.append(f"## {number} · {title.replace('_', ' ').capitalize()}\n")
        parts += [sections[name] for name in names]
    return "\n".join(parts)


def totals(sections):
    """The totals, as a table, read from the rows of the sections."""
    n = _counts([line for section in sections.values() for line in section.splitlines()])
    share = f" ({100 * n['named'] / n['told']:.0f} %)" if n["told"] else ""
    return "\n".join([
        "| what | how many |", "|---|---|",
        f"| exercises | {len(sections)} |",
        f"| wrong answers, caught | {n['killed']} of {n['wrong']} |",
        f"| right answers, passed | {n['passed']} of {n['right']} |",
        f"| wrong answers that give a result, named | {n['named']} of {n['told']}{share} |",
        f"| … by a mistake of the exercise, by a general one | {n['own']}, {n['named'] - n['own']} |",
    ])  # fmt: skip


def blind():
    """What was measured with answers that no grader had met, as a table, from tests/mutants/blind-*.tsv."""
    lines = ["| written without sight | wrong ones, passed | given a result, named | right ones, refused |",
             "|---|---|---|---|"]  # fmt: skip
    for name in ("first", "second", "chapter-4"):
        text = (MUTANTS / f"blind-{name}.tsv").read_text(encoding="utf-8")
        rows = [line.split("\t") for line in text.splitlines()[1:]]
        wrong, right = ([row for row in rows if row[2] == kind] for kind in ("wrong", "right"))
        told = [row for row in wrong if row[3] == "wrong"]
        named = sum(row[4] not in ("–", "general: –") for row in told)
        lines.append(f"| {name.replace('-', ' ')} | {sum(row[3] == 'passed' for row in wrong)} of {len(wrong)} "
                     f"| {named} of {len(told)} ({100 * named / len(told):.0f} %) "
                     f"| {sum(row[3] != 'passed' for row in right)} of {len(right)} |")  # fmt: skip
    return "\n".join(lines)


def _counts(lines):
    """How many of the answers in a table's lines are wrong, caught, give a result, are named …"""
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith(("| wrong: ", "| right: "))]
    wrong = [row for row in rows if row[0].startswith("wrong: ")]
    right = [row for row in rows if row[0].startswith("right: ")]
    told = [row for row in wrong if row[1] == "wrong"]
    named = [row for row in told if row[3] != "–"]
    return {
        "wrong": len(wrong), "killed": sum(row[1] != "passed" for row in wrong),
        "right": len(right), "passed": sum(row[1] == "passed" for row in right),
        "told": len(told), "named": len(named),
        "own": sum(not row[3].startswith("general: ") for row in named),
    }  # fmt: skip


def sections_of(text):
    """The sections of a page, by exercise."""
    parts = re.split(r"(?m)^(?=### )", text)[1:]
    return {part.split("\n", 1)[0][4:]: part.split("\n## ")[0].rstrip("\n") + "\n" for part in parts}


def main():
    """Write the page and say what does not hold. Returns the exit status."""
    sandbox = Sandbox(cell_seconds=5, call_seconds=5)
    try:
        proofs = []
        for exercise in live.catalogue().values():
            proofs.append(Proof(exercise, sandbox))
            print(f"{exercise.name}: {len(proofs[-1].rows)} answers", flush=True)
    finally:
        sandbox.close()
    PAGE.write_text(page({p.exercise.name: p.section() for p in proofs}), encoding="utf-8")
    problems = [problem for proof in proofs for problem in proof.problems]
    print("\n".join([*problems, f"written: {PAGE.relative_to(live.ROOT)}"]))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
