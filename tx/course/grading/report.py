"""The words of the grader: what a learner reads."""

import dataclasses
import textwrap

import torch

from tx.course.grading.compare import name_of, number, shape

STATES = ("passed", "wrong", "todo", "error", "timeout", "borrowed")
ROWS, COLUMNS = 5, 8  # how much of a tensor is shown
INDENT = " " * 12


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
    stage: str = ""  # in what the result differs: error, nothing, type, shape, dtype, value, …
    called: str = ""
    path: str = ""
    expected: list = dataclasses.field(default_factory=list)  # lines
    got: list = dataclasses.field(default_factory=list)
    cases: int = 0
    agree: int = 0  # of the cases
    holds: list = dataclasses.field(default_factory=list)  # contracts
    breaks: list = dataclasses.field(default_factory=list)
    contract: str = ""  # how the first one breaks
    printed: str = ""
    notes: list = dataclasses.field(default_factory=list)
    tree: str = ""  # a hash of the answer's syntax tree, tells attempts apart

    @classmethod
    def blank(cls, exercise):
        """An empty report of an exercise."""
        e = exercise
        return cls(e.name, e.chapter, e.kind, e.points, e.minutes, e.page, e.checks, e.question)


# ── small numbers ────────────────────────────────────────────────────────────────────────────────


def error_line(error):
    """An exception on one line, with the place in the learner's code."""
    kind = getattr(error, "kind", "") or type(error).__name__
    message = getattr(error, "message", "") or " ".join(str(error).split())
    place = getattr(error, "where", "")
    line = f"{kind}: {message}" if message else kind
    return f"{line}\n{place}" if place else line


def contract_line(name, broken):
    """How a contract breaks, on one line."""
    where = f"at {broken.where}: " if broken.where else ""
    return f'"{name}" breaks {where}expected {broken.expected}, got {broken.got}'


def call_line(name, parameters, args):
    """A call with its arguments, small ones in numbers and large ones by shape."""
    shown = []
    for i, arg in enumerate(args):
        short = _short(arg)
        named = i < len(parameters) and not isinstance(arg, (list, dict))
        shown.append(f"{parameters[i]} {short}" if named and short.startswith("(") else short)
    return f"{name}({', '.join(shown)})"


def _short(value):
    if isinstance(value, torch.Tensor):
        if 0 < value.numel() <= 6 and value.ndim <= 2:
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
    expected, got, wrong = _at(mismatch.expected, mismatch)
    if wrong is None:
        return [_side(expected)], [_side(got)]
    head, expected, got, wrong = _slice_around(expected, got, wrong)
    marks = torch.zeros_like(wrong)
    width = max(_width(expected), _width(got))
    return head + _rows(expected, marks, width), head + _rows(got, wrong, width)


def _at(expected, mismatch):
    return mismatch.expected, mismatch.got, mismatch.wrong


def _side(value):
    if isinstance(value, torch.Tensor) and 0 < value.numel() <= 6 and value.ndim <= 2:
        return f"{_short(value)}   of shape {shape(value)}"
    if isinstance(value, BaseException):
        return error_line(value)
    if isinstance(value, str):
        return value
    return name_of(value)


def _slice_around(expected, got, wrong):
    """The two-dimensional part around the first difference, cut to a readable size."""
    at = wrong.nonzero()[0].tolist()
    lead, head = tuple(at[:-2]), []
    if lead:
        head = [f"at [{', '.join(map(str, lead))}]:"]
    parts = [torch.atleast_2d(x[lead]) for x in (expected, got, wrong)]
    row, column = (at[-2:] if len(at) >= 2 else [0, *at])[-2:] if at else (0, 0)
    top, left = max(0, row - ROWS + 2), max(0, column - COLUMNS + 2)
    if top or left:
        head.append(f"from row {top}, column {left}:")
    return head, *(x[top : top + ROWS, left : left + COLUMNS] for x in parts)


def _width(x):
    return max(len(number(n)) for n in x.flatten().tolist())


def _rows(x, marks, width):
    return [
        "".join(f"{number(n):>{width + 2}}{'*' if m else ' '}"
                for n, m in zip(row, mark, strict=True)).rstrip()
        for row, mark in zip(x.tolist(), marks.tolist(), strict=True)
    ]  # fmt: skip


# ── a report as a learner reads it ───────────────────────────────────────────────────────────────

NAMES = {"todo": "to do"}


def headline(report, remark=""):
    """One line: state, name, points, and a remark."""
    state = NAMES.get(report.state, report.state)
    line = f"  {state:<8}{report.name:<28}{report.points}/{report.of}"
    return f"{line:<44}{remark}".rstrip()


def details(report, explain=False):
    """The lines under the headline of an answer that did not pass."""
    if report.state in ("passed", "todo"):
        return [f"{INDENT}{report.reason}"] if report.reason else []
    rows = [("checked", [report.checked])]
    if report.called:
        rows.append(("called", [report.called]))
    if report.state in ("error", "timeout", "borrowed") or report.stage in ("raises", "changed"):
        rows.append(("got", report.reason.splitlines()))
    elif report.expected:
        where = [f"in item {report.path} of the result"] if report.path else []
        rows += [("expected", report.expected), ("got", report.got), ("that is", where)]
        rows.append(("", [report.reason]))
    else:
        rows.append(("got", [report.reason]))
    if report.contract:
        holds = [f"{', '.join(quoted(report.holds))} hold{'s' * (len(report.holds) == 1)}"]
        rows.append(("contract", holds * bool(report.holds) + [report.contract]))
    rows.append(("question", [report.question]))
    if explain:
        rows.append(("mistake", mistake(report)))
    if report.printed.strip():
        rows.append(("printed", report.printed.strip().splitlines()[:4]))
    rows += [("note", [note]) for note in report.notes]
    lines = []
    for label, texts in rows:
        for i, text in enumerate(texts):
            lines += _wrapped(label if i == 0 else "", text)
    return lines


def mistake(report):
    """The name of a mistake and why it is one."""
    if report.mistake is None:
        return ["matches no mistake we know"]
    return [f'this is exactly what "{report.mistake}" gives', report.why]


def quoted(names):
    return [f'"{name}"' for name in names]


def _wrapped(label, text):
    first = f"{INDENT}{label:<11}"
    if len(first) + len(text) <= 100:
        return [first + text]
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=" " * len(first))
