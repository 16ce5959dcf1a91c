"""The learner's progress: attempts, states and asked-for help, in `exercises/.progress.json`.

The file is shared with `tx.course.predictions`; keys that are not ours are kept as they are.
"""

import json
import os
import tempfile
from pathlib import Path

STAGES = ("error", "nothing", "type", "shape", "dtype", "value")
NOW = {
    "shape": "now it is a tensor, its shape is not right yet",
    "dtype": "now the shape is right, the kind of number is not",
    "value": "now the shape is right, the numbers are not",
}
NOW_STATE = {
    "timeout": "now it does not end", "borrowed": "now it calls the answer",
    "error": "now it raises an error",
}  # fmt: skip
ORDINALS = ("", "first", "second", "third", "fourth", "fifth", "sixth")


class Progress:
    """What is known about a learner's exercises. With `path=None` nothing is read or written."""

    def __init__(self, path=None):
        self.path = path and Path(path)
        self.warning = ""  # a sentence for the learner, where the file made trouble
        self._data = {}

    def load(self):
        """Read the file anew; one that cannot be read is set aside, never lost."""
        if self.path is None:
            return self
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ValueError("no table")
            self._data = data
        except FileNotFoundError:
            self._data = {}
        except (OSError, ValueError):
            self._data = {}
            self._set_aside()
        return self

    def _set_aside(self):
        aside = self.path.with_name(self.path.name + ".unreadable")
        number = 2
        while aside.exists():
            aside = self.path.with_name(f"{self.path.name}.unreadable-{number}")
            number += 1
        try:
            os.replace(self.path, aside)
            self.warning = (
                f"{self.path.name} could not be read. It is kept as {aside.name}, and counting"
                " starts anew."
            )
        except OSError as error:
            self.path = None
            self.warning = f"the progress file can be neither read nor moved ({error.strerror})"

    def entry(self, name):
        """What is known about one exercise; a dict that may be empty."""
        found = self._exercises().get(name)
        return found if isinstance(found, dict) else {}

    def attempts(self, report):
        """How many distinct answers were tried. A debug exercise's first one is not the
        learner's."""
        trees = _list(self.entry(report.name).get("trees"))
        return max(len(trees) - (report.kind == "debug"), int(report.state == "passed"))

    def is_last(self, report):
        """Whether it is the last answer again."""
        return bool(report.tree) and _list(self.entry(report.name).get("trees"))[-1:] == [report.tree]

    def record(self, report):
        """Note a report. Returns what changed since the last one, in words."""
        if not report.tree:  # nothing was graded
            return ""
        before = self.entry(report.name)
        trees, same = _list(before.get("trees")), self.is_last(report)
        if report.state != "todo" and report.tree not in trees:
            trees = [*trees, report.tree]
        now = {
            "state": report.state, "trees": trees, "stage": report.stage, "holds": report.holds,
            "breaks": report.breaks, "agree": report.agree, "cases": report.cases,
            "help": self.help(report.name),
            "mistake": report.mistake or before.get("mistake"),
        }  # fmt: skip
        self._exercises()[report.name] = now
        if report.state == "todo":
            return ""
        count = self.attempts(report)
        label = ORDINALS[count] if count < len(ORDINALS) else f"{count}th"
        changed = "the same answer as before" if same else _changed(before, now)
        return f"{label} attempt{': ' if changed else ''}{changed}" if count > 1 else changed

    def help(self, name):
        """How many hints were asked for."""
        number = self.entry(name).get("help", 0)
        return number if isinstance(number, int) else 0

    def ask(self, name):
        """Count a hint; returns its number, from 1."""
        number = self.help(name) + 1
        self._exercises()[name] = self.entry(name) | {"help": number}
        return number

    def save(self):
        """Write the file in one step, so that a reader never sees half of it."""
        if self.path is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._data, file, indent=1, ensure_ascii=False)
                file.write("\n")
            os.replace(name, self.path)
        except OSError as error:
            self.warning = f"progress could not be written ({error.strerror})"

    def _exercises(self):
        known = self._data.get("exercises")
        if not isinstance(known, dict):
            known = self._data["exercises"] = {}
        return known


def _list(value):
    return value if isinstance(value, list) else []


def _changed(before, now):
    """What differs between two entries of one exercise, in words."""
    if before.get("state") in (None, "todo") or now["state"] == "passed":
        return ""
    if before["state"] != now["state"] and now["state"] in NOW_STATE:
        return NOW_STATE[now["state"]]
    if before["state"] in ("timeout", "borrowed"):
        return "now it ends" if before["state"] == "timeout" else "now it is your own"
    broken = _list(before.get("breaks"))
    repaired = [name for name in broken if name in now["holds"]]
    still = [name for name in broken if name in now["breaks"]]
    lost = [name for name in _list(before.get("holds")) if name in now["breaks"]]
    parts = []
    if repaired:
        parts.append(f"now {_names(repaired)} hold{'s' * (len(repaired) == 1)}")
    if lost:
        parts.append(f"{_names(lost)} no longer hold{'s' * (len(lost) == 1)}")
    if still and parts:
        parts.append(f"{_names(still)} still break{'s' * (len(still) == 1)}")
    stage, last = (e.get("stage") for e in (now, before))
    if stage in STAGES and last in STAGES and STAGES.index(stage) > STAGES.index(last):
        parts.insert(0, NOW.get(stage, "now it runs to the end"))
    elif not parts and isinstance(before.get("agree"), int) and before["agree"] != now["agree"]:
        parts.append(
            f"now {now['agree']} of {now['cases']} cases agree, {before['agree']} did before"
        )
    return "; ".join(parts) or "the same difference as before"


def _names(names):
    return " and ".join(f'"{name}"' for name in names)
