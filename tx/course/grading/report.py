"""The words of the grader: what a learner reads."""

import dataclasses
import textwrap

import torch

from tx.course.grading.advice import advise
from tx.course.grading.comparing import name_of, number, shape, telling

STATES = ("passed", "wrong", "todo", "error", "timeout", "borrowed")
ROWS, COLUMNS = 5, 8  # how much of a tensor is shown
INDENT = " " * 12
LABEL, WIDTH = 11, 100  # of the words in front, of a line
STILL_A_STUB = "the stub's `raise NotImplementedError` is still reached: your answer takes its place"


@dataclasses.dataclass
class Report:
    """What judging one exercise gave. Only plain values: it is written to JSON."""

    name: str
    chapter: str
    kind: str
    of: int
    minutes: int
    page: str
    checked: str
    question: str
    state: str = "error"
    points: int = 0
    reason: str = ""  # one line
    mistake: str | None = None  # the known wrong answer that gives the same results
    why: str = ""
    general: bool = False  # whether the mistake is none of this exercise's own
    stage: str = ""  # in what the result differs: error, nothing, type, shape, dtype, value, …
    called: str = ""
    remark: str = ""  # what expected and got do not say by themselves
    expected: list = dataclasses.field(default_factory=list)  # lines
    got: list = dataclasses.field(default_factory=list)
    cases: int = 0
    agree: int = 0  # of the cases
    holds: list = dataclasses.field(default_factory=list)  # contracts
    breaks: list = dataclasses.field(default_factory=list)
    contract: str = ""  # how the first one breaks
    printed: str = ""
    notes: list = dataclasses.field(default_factory=list)
    untouched: bool = False  # whether the cell is as it was handed out
    left_out: list = dataclasses.field(default_factory=list)  # cells of the notebook
    tree: str = ""  # a hash of the answer's syntax tree, tells attempts apart

    @classmethod
    def blank(cls, exercise):
        """An empty report of an exercise."""
        e = exercise
        return cls(e.name, e.chapter, e.kind, e.points, e.minutes, e.page, e.checks, e.question)

    @property
    def shown(self):
        """The state, where what is as it was handed out, and may be wrong so, counts as to do."""
        return "todo" if self.untouched and self.state != "passed" else self.state


# ── small numbers ────────────────────────────────────────────────────────────────────────────────


def error_line(error):
    """An exception, the place in the learner's code, and what it means: a line each."""
    kind = getattr(error, "kind", "") or type(error).__name__
    message = getattr(error, "message", "") or " ".join(str(error).split())
    place = getattr(error, "where", "")
    line = f"{kind}: {message}" if message else kind
    return "\n".join(filter(None, [line, place, advise(line, place)]))


def contract_line(name, broken):
    """How a contract breaks, on one line."""
    where = f"at {broken.where}: " if broken.where else ""
    return f'"{name}" breaks {where}expected {broken.expected}, got {broken.got}'


def call_line(name, parameters, args):
    """A call with its arguments: in numbers where all are small, or else by their shapes."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    line = f"{name}({', '.join(map(_short, args))})"
    if len(line) <= 76 and all(_is_small(x) for x in tensors):
        return line
    shown = [
        f"{parameters[i] if i < len(parameters) else ''} {shape(arg)}".strip()
        if isinstance(arg, torch.Tensor)
        else _short(arg)
        for i, arg in enumerate(args)
    ]
    return f"{name}({', '.join(shown)})"


def _is_small(x):
    return 0 < x.numel() <= 9 and x.ndim <= 2


def _short(value):
    if isinstance(value, torch.Tensor):
        if _is_small(value):
            return _nested(value.tolist())
        return shape(value)
    if isinstance(value, (list, tuple)) and len(value) <= 6:
        inner = ", ".join(map(_short, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_short(v)}" for k, v in list(value.items())[:6]) + "}"
    if isinstance(value, float):
        return number(value)
    return repr(value) if value is None or isinstance(value, (int, str)) else name_of(value)


def _nested(value):
    if isinstance(value, list):
        return "[" + ", ".join(map(_nested, value)) + "]"
    return number(value)


def side_by_side(mismatch):
    """The expected and the got side of a mismatch, each as lines of aligned numbers."""
    expected, got, wrong = mismatch.expected, mismatch.got, mismatch.wrong
    head = [f"result{mismatch.path}:"] if mismatch.path else []
    if wrong is None:
        tell = mismatch.kind in ("type", "dtype")
        number_differs = mismatch.kind == "value" and isinstance(expected, float)
        digits = telling([(expected, got)], 6) if number_differs else 6
        return [*head, _side(expected, tell, digits)], [*head, _side(got, tell, digits)]
    for columns in range(COLUMNS, 1, -1):  # as many as a line holds
        spot, *parts = _slice_around(expected, got, wrong, columns)
        e, g, w = parts
        digits = telling(list(zip(e[w].tolist(), g[w].tolist(), strict=True)))
        width = max(_width(e, digits), _width(g, digits))
        if (width + 3) * w.shape[1] <= WIDTH - len(INDENT) - LABEL:
            break
    if spot:
        head = [f"result{mismatch.path}, {spot}" if mismatch.path else spot]
    return (head + _rows(e, torch.zeros_like(w), width, digits), head + _rows(g, w, width, digits))


def _side(value, tell, digits):
    """A whole value on one line; `tell` says what it is before its numbers."""
    if isinstance(value, torch.Tensor) and _is_small(value):
        if tell:
            line = f"{name_of(value)}: {_short(value)}"
            return line if len(line) <= WIDTH - len(INDENT) - LABEL else name_of(value)
        return f"{_short(value)}   of shape {shape(value)}"
    if isinstance(value, BaseException):
        return error_line(value)
    if isinstance(value, str):
        return value
    return name_of(value, digits)


def _slice_around(expected, got, wrong, columns):
    """The two-dimensional part around the first difference, cut to a readable size."""
    at = wrong.nonzero()[0].tolist()
    lead, head = tuple(at[:-2]), []
    if lead:
        head.append(f"at [{', '.join(map(str, lead))}]")
    parts = [torch.atleast_2d(x[lead]) for x in (expected, got, wrong)]
    row, column = (at[-2:] if len(at) >= 2 else [0, *at])[-2:] if at else (0, 0)
    top, left = max(0, row - ROWS + 2), max(0, column - columns + 2)
    if top or left:
        head.append(f"from row {top}, column {left}")
    spot = ", ".join(head) + ":" if head else ""
    return spot, *(x[top : top + ROWS, left : left + columns] for x in parts)


def _width(x, digits):
    return max(len(number(n, digits)) for n in x.flatten().tolist())


def _rows(x, marks, width, digits):
    return [
        "".join(f"{number(n, digits):>{width + 2}}{'*' if m else ' '}"
                for n, m in zip(row, mark, strict=True)).rstrip()
        for row, mark in zip(x.tolist(), marks.tolist(), strict=True)
    ]  # fmt: skip


# ── a report as a learner reads it ───────────────────────────────────────────────────────────────

NAMES = {"todo": "to do", "timeout": "too slow"}


def headline(report, remark=""):
    """One line: state, name, points, and a remark."""
    line = f"  {NAMES.get(report.shown, report.shown):<10}{report.name:<25}{report.points}/{report.of}"
    return f"{line:<44}{remark}".rstrip()


def details(report, named=False, offer_help=False):
    """The lines under the headline of an answer.

    Args:
        named: whether the mistake is called by its name.
        offer_help: whether hints are offered.
    """
    if report.state in ("passed", "todo"):
        return [*_lines([("", [report.reason] if report.reason else [])]), *notes(report)]
    rows = [("checked", [report.checked]), ("called", [report.called] if report.called else [])]
    if report.expected and report.stage not in ("error", "raises", "changed"):
        rows += [("expected", report.expected), ("got", report.got)]
    else:
        rows.append(("got", report.reason.splitlines()))
    rows.append(("", [report.remark] if report.remark else []))
    if report.holds and not report.breaks:
        names = ", ".join(f'"{name}"' for name in report.holds)
        rows.append(("contract", [f"{names} hold{'s' * (len(report.holds) == 1)}; none breaks"]))
    if report.contract:
        names = ", ".join(f'"{name}"' for name in report.holds)
        held = [f"{names} hold{'s' * (len(report.holds) == 1)};"] if names else []
        rows.append(("contract", [*held, report.contract]))
    if report.cases:  # it ran
        rows.append(("question", [report.question]))
    if named and report.mistake and report.general:
        rows.append(("mistake", [f"{report.mistake}: {report.why}"]))
    elif named and report.mistake:
        rows.append(("mistake", [f'this is exactly what "{report.mistake}" gives', report.why]))
    elif named and report.state == "wrong":
        rows.append(("mistake", ["it matches no mistake we know"]))
    if report.printed.strip():
        rows.append(("printed", report.printed.strip().splitlines()[:4]))
    lines = [*_lines(rows), *notes(report)]
    if offer_help:
        text = f'hint("{report.name}") in a cell, or pytest exercises --hint {report.name}'
        lines += _lines([("help", [text])])
    return lines


def notes(report):
    """What is to be said about the notebook, whatever the verdict."""
    return _lines([("note", report.notes)])


def _lines(rows):
    lines = []
    for label, texts in rows:
        for i, text in enumerate(texts):
            first = f"{INDENT}{label if i == 0 else '':<{LABEL}}"
            if len(first) + len(text) <= WIDTH:
                lines.append(first + text)
            else:
                space = " " * len(first)
                lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=space)
    return lines


def present(report, progress, explain=False):
    """A report in full, noted in the learner's progress: headline and lines."""
    bug = progress.entry(report.name).get("mistake")
    again = progress.is_last(report)
    remark = progress.record(report)
    attempts = progress.attempts(report)
    if report.state == "passed":
        remark = f'the bug was "{bug}"' if report.kind == "debug" and bug else ""
    named = report.kind != "debug" and (explain or attempts > 1)
    lines = details(report, named, offer_help=attempts > 1 or again)
    if len(headline(report, remark)) > WIDTH:
        label, _, changed = remark.rpartition("attempt: ")
        lines[:0] = _lines([("since then", [changed])])
        remark = f"{label}attempt" if label else ""
    return [headline(report, remark), *lines]
