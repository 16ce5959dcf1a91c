"""Bring the course up to date, or start a chapter's exercises again, without losing your work.

    python -m tx.course.updating update        get the newest course; your edited notebooks are kept
    python -m tx.course.updating reset 03      the exercises of chapter 3 as they came

Both copy the notebooks they touch to `exercises/.kept/` first. `update` refuses to touch anything
else that you changed: it names the files and stops.

How an edited exercise notebook survives a new version: the new notebook comes first, then every
cell that you changed takes its place in it again (cells know each other by their id), and the cells
that you added follow the cell they stood behind. An exercise that no longer exists stays in the copy.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class CannotUpdate(Exception):
    """The course cannot be brought up to date as things stand; the message says what to do."""


def git(*arguments, root=ROOT):
    """Output of a git command, or CannotUpdate with what git said."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise CannotUpdate(f"git {arguments[0]} failed:\n  {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def update(root=ROOT):
    """Pull the newest version and put the learner's cells back. Returns sentences to print."""
    changed = [line[3:] for line in git("status", "--porcelain", root=root).splitlines() if line[:2] != "??"]
    mine = [name for name in changed if name.startswith("exercises/") and name.endswith(".ipynb")]
    others = sorted(set(changed) - set(mine))
    if others:
        raise CannotUpdate(
            "you changed files that are not exercise notebooks:\n  " + "\n  ".join(others)
            + "\nCommit them to a branch of your own, or undo them with: git checkout -- FILE"
        )
    before = git("rev-parse", "HEAD", root=root).strip()
    stubs = {name: json.loads(git("show", f"HEAD:{name}", root=root)) for name in mine}
    yours = {name: read(root / name) for name in mine}
    said = [f"your {name} is copied to {keep(root / name, root)}" for name in mine]
    if mine:
        git("checkout", "--", *mine, root=root)
    try:
        git("pull", "--ff-only", root=root)
    finally:  # also when the pull fails: the learner's work goes back where it was
        for name in mine:
            said += put_back(root / name, stubs[name], yours[name])
    after = git("rev-parse", "HEAD", root=root).strip()
    news = git("log", "--format=  %s", f"{before}..{after}", root=root)
    return said + (["new in the course:", news.rstrip()] if news else ["the course was up to date"])


def put_back(path, stub, yours):
    """Merge the learner's notebook into the one at `path`. Returns sentences to print."""
    if not path.exists():
        return [f"{path.name} is no longer part of the course; your version stays in the copy"]
    merged, homeless = merge(stub, yours, read(path))
    path.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [f"{path.name}: your cell {cell} has no place in the new version; it stays in the copy"
            for cell in homeless]  # fmt: skip


def merge(stub, yours, new):
    """The new notebook with the learner's changes. Returns (notebook, ids that found no place).

    stub: the notebook the learner started from; yours: what it became; new: the new version.
    """
    old = {cell["id"]: cell for cell in stub["cells"]}
    place = {cell["id"]: number for number, cell in enumerate(new["cells"])}
    cells = [[cell] for cell in new["cells"]]
    homeless, behind = [], None
    for cell in yours["cells"]:
        name = cell.get("id")
        if name in old:
            behind = name if name in place else behind
            if "".join(cell["source"]) == "".join(old[name]["source"]):
                continue
            if name in place:
                fresh = cells[place[name]][0]
                cells[place[name]][0] = {**fresh, "source": cell["source"]}
            else:
                homeless.append(name)
        else:
            cells[place.get(behind, 0)].append(cell)
    return {**new, "cells": [cell for group in cells for cell in group]}, homeless


def reset(chapter, root=ROOT):
    """Give the exercises of a chapter back as they came. Returns sentences to print."""
    known = sorted((root / "exercises").glob("[0-9][0-9]_*.ipynb"))
    found = [path for path in known if path.name.startswith(f"{chapter}".zfill(2) + "_")]
    if not found:
        numbers = " ".join(path.name[:2] for path in known)
        raise CannotUpdate(f"there is no chapter {chapter!r} to reset: make reset EX=NN, NN one of {numbers}")
    name = found[0].relative_to(root).as_posix()
    if not git("status", "--porcelain", "--", name, root=root).strip():
        return [f"{name} is as it came; nothing to reset"]
    kept = keep(found[0], root)
    git("checkout", "HEAD", "--", name, root=root)
    return [f"{name} is as it came. Your version is kept in {kept}"]


def keep(path, root=ROOT):
    """Copy a notebook to exercises/.kept/; returns where, relative to the course."""
    folder = root / "exercises" / ".kept"
    folder.mkdir(exist_ok=True)
    stamp = time.strftime("%Y-%m-%d_%H%M%S")
    copy, number = folder / f"{path.stem}_{stamp}.ipynb", 2
    while copy.exists():
        copy, number = folder / f"{path.stem}_{stamp}_{number}.ipynb", number + 1
    copy.write_bytes(path.read_bytes())
    return copy.relative_to(root).as_posix()


def read(path):
    """A notebook as plain data; CannotUpdate if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CannotUpdate(
            f"{path.name} is not a notebook any more ({error}): make reset EX={path.name[:2]} keeps a copy"
        ) from error


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tx.course.updating", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("update", help="get the newest course; your edited notebooks are kept")
    commands.add_parser("reset", help="a chapter's exercises as they came").add_argument(
        "chapter", nargs="?", default="", help="two digits, such as 03"
    )
    options = parser.parse_args(argv)
    try:
        print("\n".join(update() if options.command == "update" else reset(options.chapter)))
    except CannotUpdate as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
