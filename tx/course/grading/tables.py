"""What `pytest exercises` prints at the end: one learner's table, or a class's."""

from itertools import groupby

from tx.course.grading import live
from tx.course.grading import report as words

FEW = 3  # exercises that are shown in full, as they come
BROKEN = "; arrives broken: find the bug, repair it"
LETTERS = {"passed": "✓", "wrong": "✗", "todo": "·", "error": "E", "timeout": "T", "borrowed": "B"}
Line = tuple[str, str | None]  # with its colour


PLAIN = str.maketrans({
    "█": "#", "░": ".", "·": "-", "“": '"', "”": '"', "’": "'", "–": "-", "−": "-", "…": "...",
    "✓": "v", "✗": "x", "×": "x", "√": "sqrt ", "±": "+-", "→": "->",
})  # fmt: skip


def printable(text, encoding):
    """The text as a terminal of that encoding can show it."""
    try:
        text.encode(encoding or "ascii")
        return text
    except (UnicodeEncodeError, LookupError):
        return text.translate(PLAIN).encode("ascii", "replace").decode()


def own_table(reports, exercises, progress, explain):
    """One learner's reports by chapter, and what is next: lines with a colour or None.

    Args:
        reports: of the exercises that ran.
        exercises: all there are, in order.
        progress: the learner's Progress; the reports are noted in it.
        explain: whether mistakes are named at once.
    """
    progress.load()
    lines: list[Line] = []
    many = len(reports) > FEW
    for chapter, same in groupby(reports, key=lambda r: r.chapter):
        group = list(same)
        lines += [("", None), (_chapter_line(chapter, group), "bold")]
        left_out = dict.fromkeys(line for report in group for line in (
            report.left_out if report.stage != "notebook" else [report.reason]))  # fmt: skip
        lines += [(f"  {line}", "yellow") for line in left_out]
        for report in group:
            head, *rest = words.present(report, progress, explain)
            if report.shown == "todo":
                broken = report.kind == "debug"
                head = words.headline(report, f"{report.minutes} minutes{BROKEN * broken}")
                rest = words.notes(report) if many and report.untouched and report.state != "todo" else rest
            if report.stage == "notebook":
                rest = []
            lines.append((head, {"passed": "green", "todo": None}.get(report.shown, "red")))
            lines += [(line, None) for line in rest]
    progress.save()
    states = {report.name: report.state for report in reports}
    if progress.path is not None:
        known = {exercise.name: progress.entry(exercise.name).get("state") for exercise in exercises}
        states = known | states
    if all(report.shown == "todo" for report in reports) and many:
        lines += [("", None), ("Nothing is wrong: all of it is still to do. Each takes minutes.", None)]
    lines += [("", None), *_ending(states, {e.name: e for e in exercises})]
    return lines + [(progress.warning, "yellow")] * bool(progress.warning)


def _chapter_line(chapter, reports):
    number, _, words_ = chapter.partition("_")
    title = f"{number} · {words_.replace('_', ' ').capitalize()}"
    passed = sum(r.state == "passed" for r in reports)
    points, of = sum(r.points for r in reports), sum(r.of for r in reports)
    return f"{title:<44}{passed} of {len(reports)} passed · {points} of {of} points"


def _ending(states, exercises):
    """The progress line and the exercise to take next."""
    passed = [exercises[name] for name, state in states.items() if state == "passed"]
    points, of = sum(e.points for e in passed), sum(exercises[name].points for name in states)
    share = round(20 * points / of) if of else 0
    bar = "█" * share + "░" * (20 - share)
    lines: list[Line] = [(f"{bar} {len(passed)} of {len(states)} exercises · {points} of {of} points", None)]
    left = [exercises[name] for name, state in states.items() if state != "passed"]
    if not left:
        return [*lines, ("all passed", "green")]
    following = left[0]
    lines.append((f"next: {following.name}, {following.minutes} minutes ({_page(following)})", "bold"))
    lines.append((f"      in exercises/{following.chapter}.ipynb", None))
    return lines


def _page(exercise):
    """Where the page of an exercise is: in the built site, or else its notebook."""
    page, _, anchor = exercise.page.partition("#")
    if (live.FOLDER.parent / "_build" / "html" / page).is_file():
        return f"_build/html/{exercise.page}"
    return f"book/{page.removesuffix('.html')}.ipynb, section {anchor.replace('-', ' ')}"


def class_table(people):
    """Students by exercises, and the commonest mistakes: lines with a colour or None."""
    names = list(dict.fromkeys(r.name for reports in people.values() for r in reports))
    wide = max(len(name) for name in [*people, "student"]) + 2
    lines: list[Line] = [(f"{len(people)} students, {len(names)} exercises", "bold")]
    lines += _mistakes(people)
    lines.append(("", None))
    for i, name in enumerate(names, 1):
        lines.append((f"  {i:>2}  {name}", None))
    head = "".join(f"{i:>4}" for i in range(1, len(names) + 1))
    lines += [("", None), (f"{'student':<{wide}}{head}   points", "bold")]
    for person, reports in people.items():
        states = {r.name: r.shown for r in reports}
        cells = "".join(f"{LETTERS.get(states.get(name, ''), ' '):>4}" for name in names)
        points = f"{sum(r.points for r in reports)}/{sum(r.of for r in reports)}"
        lines.append((f"{person:<{wide}}{cells}   {points}", None))
    passed = [sum(r.name == n and r.state == "passed" for rs in people.values() for r in rs)
              for n in names]  # fmt: skip
    lines.append((f"{'passed':<{wide}}{''.join(f'{n:>4}' for n in passed)}", None))
    legend = ", ".join(f"{LETTERS[s]} {words.NAMES.get(s, s)}" for s in words.STATES)
    return [*lines, ("", None), (legend, None)]


def _mistakes(people):
    """The mistakes of a class, the commonest first."""
    who: dict[tuple[str, str], list[str]] = {}
    for person, reports in people.items():
        for r in reports:
            if r.shown not in ("passed", "todo"):
                what = r.mistake and f'"{r.mistake}"' or r.reason.splitlines()[0]
                what = what if r.mistake or r.state != "wrong" else f"no known mistake ({r.stage})"
                persons = who.setdefault((r.chapter if r.stage == "notebook" else r.name, what), [])
                if person not in persons:  # a notebook that cannot be read is one mistake
                    persons.append(person)
    lines: list[Line] = [("", None), ("the commonest mistakes", "bold")] if who else []
    for (name, what), persons in sorted(who.items(), key=lambda item: -len(item[1]))[:10]:
        some = ", ".join(persons[:4]) + (" …" if len(persons) > 4 else "")
        lines.append((f"  {len(persons):>3} × {name}: {what}   ({some})", None))
    return lines
