"""The processes that a learner's code starts, and their end, whatever session they went into."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 5.0  # seconds for all of them to be gone


def adopt():
    """From now on a process whose parent ends becomes a child of this one, where there is such a thing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_below(root):
    """End every process that a process has started, and that those have."""
    until = time.monotonic() + PATIENCE
    while (doomed := _below(root)) and time.monotonic() < until:
        for pid in doomed:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        if root == os.getpid():  # else a parent of theirs collects them
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _below(root):
    children: dict[int, list[int]] = {}
    for pid, parent in _running().items():
        children.setdefault(parent, []).append(pid)
    found, open_ends = [], [root]
    while open_ends:
        more = children.get(open_ends.pop(), [])
        found += more
        open_ends += more
    return found


def _running():
    """Every process that has not ended: its id -> that of its parent."""
    lines: list[list[str]] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we were looking
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            lines.append([file.parent.name, parent, state])
    if not lines and os.name == "posix":  # macOS
        with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
            found = [line.split() for line in ps.communicate()[0].splitlines()]
        lines = [line[:3] for line in found if line[0] != str(ps.pid)]
    return {int(pid): int(parent) for pid, parent, state in lines if state[0] not in "ZX"}
