"""`pytest exercises`: the options, the isolation, and what is printed at the end."""

import json
import re
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tx.course.grading import live
from tx.course.grading import report as words
from tx.course.grading.progress import Progress
from tx.course.grading.report import Report
from tx.course.grading.sandbox import Sandbox
from tx.course.grading.submission import Submission, students
from tx.course.grading.tables import class_table, own_table, printable

MARKS = {"passed": ".", "wrong": "W", "todo": "t", "error": "E", "timeout": "T", "borrowed": "B"}
COLOURS = {"passed": "green", "todo": "blue"}
ID = re.compile(r"::test_exercise\[(?:(?P<student>\d+)\..*-)?(?P<exercise>\w+)\]$")


def pytest_addoption(parser):
    group = parser.getgroup("exercises", "grading exercises")
    add = group.addoption
    add("--hint", metavar="NAME", help="print the next hint for an exercise")
    add("--explain", action="store_true", help="name the mistakes right away")
    add("--impl", metavar="FOLDER", help="grade the notebooks of another folder, as `solutions`")
    add("--class", metavar="FOLDER", help="grade a class: a subfolder or a notebook a student")
    add("--grade-json", metavar="FILE", help="write points, states and mistakes as JSON")


def pytest_cmdline_main(config):
    """--hint prints and is done."""
    name = config.getoption("--hint")
    if not name:
        return None
    known = live.catalogue()
    if name not in known:
        raise pytest.UsageError("\n".join(live.unknown([name], f"There is no exercise {name!r}")))
    live.hint(name)
    return pytest.ExitCode.OK


def pytest_configure(config):
    config.pluginmanager.register(Desk(config), "tx-grading-desk")


@pytest.fixture
def student(request):
    """student(exercise) judges that exercise of whoever is graded, and raises if it fails."""
    desk = request.config.pluginmanager.get_plugin("tx-grading-desk")
    submission = desk.who[getattr(request, "param", 0)]

    def must_pass(exercise):
        report = submission.judge(exercise, desk.sandbox)
        request.node.tx_report = [desk.who.index(submission), vars(report)]
        if report.state != "passed":
            raise NotPassed

    return must_pass


class NotPassed(Exception):
    """An exercise that did not pass; the report says how."""


class Desk:
    """What one pytest session knows: who is graded, what is expected, what came in."""

    def __init__(self, config):
        self.config, option = config, config.getoption
        self.is_worker = hasattr(config, "workerinput")
        if option("--class") and option("--impl"):
            raise pytest.UsageError("--class and --impl both say whose notebooks are graded: give one of them")
        self.folder, impl = _folder(config, "--class"), _folder(config, "--impl")
        self.sheet = None if self.is_worker else _file(config, "--grade-json")
        self.own = self.folder is None and impl is None
        self.who = students(self.folder) if self.folder else [Submission("", impl or live.FOLDER)]
        if not self.own and not any(submission.files for submission in self.who):
            raise pytest.UsageError(f"there is no notebook in {self.folder or impl}")
        self.progress = Progress(live.FOLDER / ".progress.json" if self.own else None)
        self.explain = option("--explain") or not self.own
        self.expected = []  # pairs of student and exercise name, in order
        self.reports = {}  # the same -> Report
        self.sandbox = Sandbox()
        if self.is_worker or not option("numprocesses", None):
            self.sandbox.launch()  # torch loads there while it loads here

    def pytest_unconfigure(self):
        self.sandbox.close()

    def pytest_generate_tests(self, metafunc):
        if self.folder and "student" in metafunc.fixturenames:
            ids = [f"{i}.{submission.name}" for i, submission in enumerate(self.who)]
            metafunc.parametrize("student", range(len(ids)), ids=ids, indirect=True)

    # ── what runs ────────────────────────────────────────────────────────────────────────────

    def pytest_collection_finish(self, session):
        if session.items:
            self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self._expect(ids)

    def _expect(self, ids):
        found = [match for match in map(ID.search, ids) if match]
        self.expected = [(int(m["student"] or 0), m["exercise"]) for m in found]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        result = (yield).get_result()
        graded = getattr(item, "tx_report", None)
        if call.when != "call" or graded is None:
            return
        result.tx_report = graded
        report = Report(**graded[1])
        if report.shown == "todo":
            result.outcome = "skipped"
            result.longrepr = (str(item.path), 0, f"to do: {report.name}")
        elif report.state != "passed":
            lines = [words.headline(report), *words.details(report, named=True)]
            result.longrepr = "\n".join(lines)

    # ── what came in ─────────────────────────────────────────────────────────────────────────

    def pytest_report_teststatus(self, report):
        graded = getattr(report, "tx_report", None)
        if graded is None or report.when != "call":
            return None
        state = Report(**graded[1]).shown
        name = {"error": "with an error"}.get(state, words.NAMES.get(state, state))
        return name, MARKS[state], (name.upper(), {COLOURS.get(state, "red"): True})

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "tx_report"):
            index, fields = report.tx_report
            self.reports[index, fields["name"]] = Report(**fields)

    def pytest_sessionfinish(self, session, exitstatus):
        """0 only if all that was asked for has passed; what is still to do has not."""
        if exitstatus == pytest.ExitCode.OK and not self.is_worker and not self.config.option.collectonly:
            reports = map(self.reports.get, self.expected)
            if not all(report and report.state == "passed" for report in reports):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter, exitstatus):
        if self.is_worker or self.config.option.collectonly:
            return
        if not self.expected:
            asked = self.config.option.keyword
            if asked and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                for line in live.unknown(re.findall(r"\w+", asked), f"No exercise matches -k {asked!r}"):
                    terminalreporter.write_line(line)
            return
        known = live.catalogue()
        graded = [(i, self.reports.get((i, name)) or _missing(known[name]))
                  for i, name in self.expected]  # fmt: skip
        people = {
            self.who[i].name: [report for _, report in group]
            for i, group in groupby(sorted(graded, key=lambda x: x[0]), key=lambda x: x[0])
        }
        terminalreporter.ensure_newline()
        if self.folder:
            lines = class_table(people)
        else:
            lines = own_table(people[""], known.values(), self.progress, self.explain)
        encoding = getattr(sys.stdout, "encoding", None)
        for line, colour in lines:
            markup = {colour: True} if colour else {}
            terminalreporter.write_line(printable(line, encoding), **markup)
        if self.sheet:
            self.sheet.write_text(json.dumps(self._as_json(people), indent=1) + "\n", encoding="utf-8")
            terminalreporter.write_line(f"written: {self.sheet}")

    def _as_json(self, people):
        if self.folder:
            return {"students": {name: self._sheet(reports) for name, reports in people.items()}}
        return self._sheet(people[""])

    def _sheet(self, reports):
        return {
            "points": sum(r.points for r in reports),
            "of": sum(r.of for r in reports),
            "exercises": [
                {
                    "name": r.name, "chapter": r.chapter, "points": r.points, "of": r.of,
                    "state": r.shown, "reason": r.reason, "mistake": r.mistake,
                    "attempts": self.progress.attempts(r), "help": self.progress.help(r.name),
                }
                for r in reports
            ],
        }  # fmt: skip


def _folder(config, option):
    """The folder that an option names, as seen from where pytest was started or from the repo."""
    name = config.getoption(option)
    if name is None:
        return None
    for base in (config.invocation_params.dir, live.ROOT):
        if (Path(base) / name).is_dir():
            return Path(base) / name
    raise pytest.UsageError(f"{option}: there is no folder {name}")


def _file(config, option):
    """The file that an option names, as seen from where pytest was started, if it can be written."""
    name = config.getoption(option)
    if name is None:
        return None
    path = config.invocation_params.dir / name
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{option}: there is no folder {path.parent}")
    if path.is_dir():
        raise pytest.UsageError(f"{option}: {path} is a folder; a file is asked for")
    return path


def _missing(exercise):
    report = Report.blank(exercise)
    report.reason = "no result came in: its test did not run to the end"
    return report
