"""What an exercise is, and how an answer to it is judged.

The verdict is a comparison with a reference on fresh seeds; the diagnosis is a match with a known
mistake, plus the first contract that breaks. The learner's code never decides anything: it gives
results, and this side compares them.
"""

import inspect
import os
import sys
import textwrap
from typing import Any

import torch

from tx.course.grading import general, wire
from tx.course.grading import report as words
from tx.course.grading.advice import refuses
from tx.course.grading.comparing import TOLERANCE, Mismatch, compare, name_of
from tx.course.grading.impl import Gone, Impl, InProcess, Raised, Session, TimedOut
from tx.course.grading.learner import as_torch_comes
from tx.course.grading.reach import Borrowed
from tx.course.grading.report import Report

CUT = (
    "no gradient",
    "a model is trained through this answer, and something cuts it off: detach, no_grad, .data, .item(), or a new "
    "tensor made of numbers.",
)
KINDS = ("write", "debug", "predict", "measure", "derive")


def randn(g, *shape):
    """Normal numbers from the grader's own generator."""
    return torch.randn(*shape, generator=g)


class raises:
    """A case whose right answer is an error: `yield raises(ValueError, *args)`."""

    def __init__(self, kinds, *args):
        self.kinds, self.args = kinds, args

    @property
    def names(self):
        kinds = self.kinds if isinstance(self.kinds, tuple) else (self.kinds,)
        return " or ".join(kind.__name__ for kind in kinds)


class Outcome:
    """What one case gave: a value, or the error that was raised."""

    def __init__(self, value=None, raised=None, changed=()):
        self.value, self.raised = value, raised
        self.changed = changed  # the names of the arguments that it changed

    def equals(self, other, tolerance):
        """The same result, or the same kind of error."""
        if self.raised or other.raised:
            return bool(self.raised and other.raised) and self.raised.kind == other.raised.kind
        return not compare(other.value, self.value, tolerance)


class Exercise:
    """One thing to do, and everything that judges it.

    Args:
        name: the function or class that the learner writes; unique in the course.
        chapter: the stem of the exercise notebook, such as "01_attention".
        kind: write, debug, predict, measure or derive.
        level: 1, 2 or 3.
        minutes, points: what it takes and what it is worth.
        page: where the book explains it, such as "01-attention.html#softmax-without-overflow".
        checks: one line, what the grader checks.
        question: what to ask oneself when it fails.
        hints: three texts; the fourth hint is the solution.
        out_of_reach: dotted names that the answer must not call.
        parts: what the items of a tuple are called, where the answer is one.
        gradients: whether a model is trained through the answer: then what it gives is also differentiated, with
            respect to every floating tensor that it gets and to its own parameters.
        tolerance: how far a number may be off.
        seconds: how long one call may take.

    The decorators `cases`, `reference`, `mistake`, `contract` and `call` fill in the rest, and the tables
    `mistakes_are` and `edits_are`.
    """

    def __init__(
        self, name, *, chapter, kind, level, minutes, points, page, checks, question, hints,
        out_of_reach=(), parts=(), gradients=False, tolerance=TOLERANCE, seconds=10.0,
    ):  # fmt: skip
        if kind not in KINDS:
            raise ValueError(f"{name}: kind is {kind!r}, known are {', '.join(KINDS)}")
        if len(hints) != 3:
            raise ValueError(f"{name}: three hints are expected, got {len(hints)}")
        self.name, self.chapter, self.kind, self.level = name, chapter, kind, level
        self.minutes, self.points, self.page = minutes, points, page
        self.checks, self.question, self.hints = checks, question, tuple(hints)
        self.out_of_reach, self.parts, self.gradients = tuple(out_of_reach), tuple(parts), gradients
        self.tolerance, self.seconds = tolerance, seconds
        self.mistakes = []  # name, why, function
        self.contracts = []  # name, function
        self._call = lambda impl, *args: impl(*args)
        self._cases: Any = None  # functions, once the decorators have run
        self.reference_answer: Any = None
        self._known = {}  # seed -> its cases, the right outcomes, those of the mistakes, the right gradients

    def __repr__(self):
        return f"<Exercise {self.name}>"

    # ── the decorators ───────────────────────────────────────────────────────────────────────

    def cases(self, make):
        """make(g) yields tuples of arguments, the smallest first; g is a seeded generator."""
        self._cases = make
        return make

    def reference(self, function):
        """The right answer."""
        self.reference_answer = function
        return function

    def mistake(self, name, why):
        """A known wrong answer: what it is called, and one sentence that explains it."""

        def register(function):
            self.mistakes.append((name, why, function))
            return function

        return register

    def mistakes_are(self, *table):
        """Known wrong answers that are one expression each: (name, why, function)."""
        self.mistakes += table

    def edits_are(self, *table):
        """Known wrong answers that are the reference with one edit each: (name, why, old, new)."""
        lines = textwrap.dedent(inspect.getsource(self.reference_answer)).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith(("def ", "class ")))
        source = "\n".join(lines[start:])
        for name, why, old, new in table:
            if source.count(old) != 1:
                raise ValueError(f"{self.name}, {name!r}: {old!r} occurs {source.count(old)} times, expected once")
            space: dict[str, Any] = {}
            code = compile(source.replace(old, new), f"<{self.name}: {name}>", "exec")
            exec(code, sys.modules[self.reference_answer.__module__].__dict__, space)
            self.mistakes.append((name, why, space[self.reference_answer.__name__]))

    def contract(self, name):
        """A property that every right answer has: check(impl) raises ContractBroken."""

        def register(check):
            self.contracts.append((name, check))
            return check

        return register

    def call(self, function):
        """How an answer is run on a case, where `impl(*args)` is not enough."""
        self._call = function
        return function

    # ── judging ──────────────────────────────────────────────────────────────────────────────

    def judge(self, answer, seed=None):
        """Judge a function or class of this process, or a `Session` with one elsewhere."""
        session = answer
        if not isinstance(answer, Session):
            session = InProcess(answer, self.out_of_reach, self.seconds)
        report = Report.blank(self)
        try:
            with as_torch_comes():  # a live notebook may have set it otherwise
                self._judge(report, session, _fresh() if seed is None else seed)
        except Borrowed as name:
            report.state = "borrowed"
            report.reason = f"it calls {name}, and that is the answer: write it yourself"
        except TimedOut:
            report.state = "timeout"
            report.reason = f"not done after {session.seconds:g} s: does a loop never end, or take too many steps?"
        except Gone:
            report.state = "error"
            report.reason = "it ended the whole program (exit, a crash, or too much memory)"
        report.printed = session.printed
        if report.state == "passed":
            report.points = self.points
        return report

    def _judge(self, report, session, seed):
        cases, expected = self._expected(seed)
        got = []
        for case in cases:
            report.called = self.called(case)
            try:
                got.append(self._run(session, case))
            except TimedOut:
                self._note_first_wrong(report, cases, expected, got)
                raise
            error = got[-1].raised
            if error and error.kind == "NotImplementedError" and not error.message:  # torch says why
                report.state, report.called = "todo", ""
                return
        mismatches = [
            self._mismatch(*triple) for triple in zip(cases, expected, got, strict=True)
        ]
        report.cases, report.agree = len(cases), sum(m is None for m in mismatches)
        first = next((i for i, m in enumerate(mismatches) if m), None)
        report.called = ""
        if first is not None:
            self._show(report, cases[first], mismatches[first])
            report.mistake, report.why = self._fingerprint(seed, got)
            report.general = report.mistake not in [name for name, _, _ in self.mistakes]
        elif self.gradients:
            self._check_gradients(report, session, seed)
        if first is None or not _is_another_thing(mismatches[first]):
            self._check_contracts(report, session)
        if first is None and not report.stage:
            report.state = "wrong" if report.breaks else "passed"
            if report.breaks:
                report.reason = f"a contract breaks: {report.breaks[0]}"

    def _check_gradients(self, report, session, seed):
        """The numbers are right: so must be the gradients, wherever the right ones are finite."""
        found = self._wrong_slope(session, seed)
        if found is None:
            return
        case, outcome, asked, got, mismatch = found
        self._show(report, case, mismatch)
        report.mistake, report.why = CUT if mismatch.got is None else (None, "")
        for name, why, function in () if isinstance(got, Raised) else self.mistakes:
            mistaken = InProcess(function, seconds=self.seconds)
            if self._run(mistaken, case).equals(outcome, self.tolerance):
                try:
                    slopes = self._slopes(mistaken, case)
                except Raised:  # right numbers, and no way to differentiate them
                    continue
                if not compare({k: slopes[k] for k in asked}, {k: got[k] for k in asked}, self.tolerance):
                    report.mistake, report.why = name, why
                    break
        report.general = report.mistake == CUT[0]

    def _wrong_slope(self, session, seed, numbers=None):
        """The first case with wrong gradients, or None: (case, its outcome, right ones, these, Mismatch)."""
        self._expected(seed)
        cases, outcomes, _, right = self._known[seed]
        for i in range(len(cases)) if numbers is None else numbers:
            case, outcome = cases[i], outcomes[i]
            if i not in right:
                session_of_right = InProcess(self.reference_answer, seconds=self.seconds)
                right[i] = {} if isinstance(case, raises) else self._slopes(session_of_right, case)
            asked = {k: x for k, x in right[i].items() if x is not None and x.isfinite().all() and x.any()}
            if not asked:
                continue
            try:
                got = self._slopes(session, case)
            except Raised as error:
                got = error
            mismatch = self._slope_mismatch(asked, got)
            if mismatch:
                return case, outcome, asked, got, mismatch
        return None

    def _slopes(self, session, case):
        """The gradients of an answer on a case, by the name of what they belong to."""
        session.slopes = {}
        try:
            self._call(session.impl, *case)
            return session.slopes
        finally:
            session.slopes = None

    def _slope_mismatch(self, expected, got):
        """How gradients differ from the expected ones, or None."""
        if isinstance(got, Raised):
            line = f"the result is right, but it has no gradient: {words.error_line(got)}"
            return Mismatch("gradient", line, "a gradient", got)
        layer = getattr(self.reference_answer, "forward", None)
        names = list(inspect.signature(layer or self.reference_answer).parameters)[bool(layer) :]
        for key, slope in expected.items():
            name = names[int(key)] if key.isdecimal() else key
            if got.get(key) is None:
                line = f"the result is right, but no gradient reaches {name}"
                return Mismatch("gradient", line, slope, None, f", gradient of {name}")
            mismatch = compare(slope, got[key], self.tolerance)
            if mismatch:
                mismatch.words = f"the result is right, but the gradient of {name} is not: {mismatch.words}"
                mismatch.kind, mismatch.path = "gradient", f", gradient of {name}"
                return mismatch
        return None

    def fixed_and_drawn(self, seed):
        """Numbers of the cases that are the same whatever the seed, and of those that are drawn from it."""
        packed = lambda case: wire.pack(case.args if isinstance(case, raises) else case)
        here, there = (list(map(packed, self._expected(s)[0])) for s in (seed, seed + 1))
        same = [i < len(there) and case == there[i] for i, case in enumerate(here)]
        return [i for i, fixed in enumerate(same) if fixed], [i for i, fixed in enumerate(same) if not fixed]

    def catches(self, session, seed, numbers):
        """The number of the first of these cases of a seed that finds an answer wrong, or None; no contracts."""
        cases, expected = self._expected(seed)
        for i in numbers:
            try:
                with as_torch_comes():
                    wrong = self._mismatch(cases[i], expected[i], self._run(session, cases[i]))
                    if wrong or self.gradients and self._wrong_slope(session, seed, [i]):
                        return i
            except (Borrowed, TimedOut):
                return i
        return None

    def _note_first_wrong(self, report, cases, expected, got):
        """Of an answer that is too slow, say what was wrong before."""
        for case, *outcomes in zip(cases, expected, got, strict=False):
            mismatch = self._mismatch(case, *outcomes)
            if mismatch:
                line = mismatch.words.splitlines()[0]
                report.notes.append(f"{self.called(case)} came to its end, and is wrong: {line}")
                return

    def _expected(self, seed):
        """The cases of a seed and what the reference gives on them."""
        if seed not in self._known:
            cases = list(self._cases(torch.Generator().manual_seed(seed)))
            expected = self._outcomes(self.reference_answer, cases)
            for case, outcome in zip(cases, expected, strict=True):
                if outcome.raised and not isinstance(case, raises):
                    raise outcome.raised  # the reference of this exercise has a bug
            if len(self._known) > 30:  # as many as the proof asks for
                self._known.clear()
            self._known[seed] = cases, expected, {}, {}
        return self._known[seed][:2]

    def _mistaken(self, seed, name, function):
        """A function of i: what a known mistake gives on case i of a seed, computed when it is asked for."""
        cases, _, known, _ = self._known[seed]
        session, have = known.setdefault(name, (InProcess(function, seconds=self.seconds), {}))

        def outcome(i):
            if i not in have:
                have[i] = self._run(session, cases[i])
            return have[i]

        return outcome

    def _outcomes(self, function, cases):
        session = InProcess(function, seconds=self.seconds)
        return [self._run(session, case) for case in cases]

    def _run(self, session, case):
        session.changed = []
        try:
            value = self._call(session.impl, *(case.args if isinstance(case, raises) else case))
            return Outcome(value, changed=session.changed)
        except Raised as error:
            return Outcome(raised=error)
        except Exception as error:  # the adaptor could not use what the learner's code gave
            raised = Raised(str(error))
            raised.kind, raised.message = type(error).__name__, str(error)
            return Outcome(raised=raised)

    def _mismatch(self, case, expected, got):
        if isinstance(case, raises):
            if got.raised is None:
                text = f"these arguments have to be refused with a {case.names}; it returned"
                text += f" {name_of(got.value)}"
                returned = str(getattr(got.value, "_kind", "")).endswith(("Error", "Exception"))
                remark = "an error is raised, not returned: `raise` in place of `return`" if returned else ""
                return Mismatch("raises", text, case.names, got.value, remark=remark)
            if not isinstance(got.raised, case.kinds):
                text = f"these arguments have to be refused with a {case.names}; it raised"
                text += f" {words.error_line(got.raised)}"
                return Mismatch("raises", text, case.names, got.raised)
            return None
        if got.raised:
            own = "these arguments are allowed: it is your own check that refuses them"
            line, remark = words.error_line(got.raised), own if refuses(got.raised) else ""
            return Mismatch("error", line, expected.value, got.raised, remark=remark)
        mismatch = compare(expected.value, got.value, self.tolerance)
        if not got.changed:
            return mismatch
        plural, names = "s" * (len(got.changed) > 1), " and ".join(got.changed)
        place = f"your code changes its argument{plural} {names} in place"
        if mismatch is None:
            return Mismatch("changed", f"the result is right, but {place}", expected.value, got.value)
        mismatch.remark = "; ".join(filter(None, [mismatch.remark, place]))
        return mismatch

    def _show(self, report, case, mismatch):
        report.state = "error" if mismatch.kind == "error" else "wrong"
        report.reason, report.stage = mismatch.words, mismatch.kind
        report.called = self.called(case)
        for i, part in enumerate(self.parts):
            if mismatch.path == f"[{i}]":
                mismatch.path = f", {part}"
        report.expected, report.got = words.side_by_side(mismatch)
        report.remark = mismatch.remark

    def called(self, case):
        """The call of a case as text."""
        args = case.args if isinstance(case, raises) else case
        try:
            names = list(inspect.signature(self.reference_answer).parameters)
        except (TypeError, ValueError):
            names = []
        return words.call_line(self.name, names, args)

    def _fingerprint(self, seed, got):
        """The first known mistake that gives the same results, as (name, why)."""
        cases, expected = self._expected(seed)
        triples = list(zip(cases, expected, got, strict=True))
        plain = [i for i, case in enumerate(cases) if not isinstance(case, raises)]
        right = all(self._mismatch(*triples[i]) is None for i in plain)  # but for bad input
        asked = range(len(cases)) if right else plain
        if not any(not got[i].raised and self._mismatch(*triples[i]) for i in asked):
            return self._refusal(triples)
        changed = [bool(got[i].changed) for i in plain]
        values_right = all(got[i].equals(expected[i], self.tolerance) for i in plain)
        telling = sorted(asked, key=lambda i: self._mismatch(*triples[i]) is None)  # the wrong ones first
        for name, why, function in self.mistakes:
            mistaken = self._mistaken(seed, name, function)
            if not all(self._same(cases[i], got[i], mistaken(i)) for i in telling):
                continue
            if not values_right or changed == [bool(mistaken(i).changed) for i in plain]:
                return name, why
        found: tuple[str | None, str] = None, ""
        if right or any(got[i].raised for i in plain):
            found = self._refusal(triples)
        elif not values_right:
            pairs = [(expected[i].value, got[i].value) for i in plain]
            found = general.diagnose(pairs, self.tolerance)
        if found[0] is None and any(changed):
            return "arguments changed in place", "whoever calls it still needs them: work on a copy."
        return found

    def _same(self, case, got, mistaken):
        """Whether two answers agree on a case; where an error is due, any value is the same."""
        if isinstance(case, raises) and not got.raised and not mistaken.raised:
            return True
        return got.equals(mistaken, self.tolerance)

    def _refusal(self, triples):
        """What is wrong where all is right but for the arguments that have to be refused."""
        failed = [(case, got) for case, e, got in triples if self._mismatch(case, e, got)]
        if not all(isinstance(case, raises) for case, _ in failed):
            return None, ""
        if any(got.raised for _, got in failed):
            return "refused by another error", "the kind of an error tells the caller what to repair."
        return "bad input let through", "a wrong number goes on where an error would have stopped."

    def _check_contracts(self, report, session):
        from tx.course.contracts import ContractBroken

        for name, check in self.contracts:
            try:
                check(session.impl)
                report.holds.append(name)
            except ContractBroken as broken:
                report.breaks.append(name)
                report.contract = report.contract or words.contract_line(name, broken)
            except (TimedOut, Gone):
                if report.state in ("wrong", "error"):
                    return
                raise
            except Exception as error:  # what came back is not even of the right kind
                report.breaks.append(name)
                if not report.stage:  # the results were right until here
                    report.contract = f'"{name}" cannot be checked: {words.error_line(error)}'


def _is_another_thing(mismatch):
    """Whether the result is no number or tensor: it has none of the properties of a contract."""
    numeric = (torch.Tensor, int, float)
    whole = mismatch.kind in ("nothing", "type") and not mismatch.path
    return whole and not isinstance(mismatch.got, numeric)


def _fresh():
    return int.from_bytes(os.urandom(4), "big")


def in_module(module):
    """The exercises that a grader module defines, in order."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def exercises_of(module_name):
    """The pytest test of a grader module: one parametrised case an exercise."""
    import pytest  # not needed to grade in a notebook

    exercises = in_module(sys.modules[module_name])

    @pytest.mark.parametrize("exercise", exercises, ids=[e.name for e in exercises])
    def test_exercise(exercise, student):
        student(exercise)

    return test_exercise


__all__ = ["Exercise", "Impl", "exercises_of", "in_module", "raises", "randn"]
