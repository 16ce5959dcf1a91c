"""The grader's side of a learner's process: starts it, talks to it, ends it.

Limits are not a sandbox against an attacker: strangers' work is graded in a container.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Client
from typing import Any

from tx.course.grading import live, processes, wire
from tx.course.grading.impl import Gone, Session, TimedOut, rebuilt

START = 60.0  # seconds for a process to come up
KEPT = ("PATH", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "LD_LIBRARY_PATH", "LANG")


class Sandbox:
    """A server of learners' processes, one at a time.

    Args:
        way: "fork" or "spawn"; by default fork where the system has it.
        cell_seconds: how long one cell may run while a notebook is loaded.
        call_seconds: how long one call may take at most; an exercise may set less.
        memory: how many bytes a learner's process may take, where the system can limit it.
    """

    def __init__(self, way=None, cell_seconds=15.0, call_seconds=60.0, memory=3 << 30):
        self.way = way or ("fork" if hasattr(os, "fork") else "spawn")
        self.cell_seconds, self.call_seconds = cell_seconds, call_seconds
        self.memory = memory
        self.bad_cells = {}  # notebook -> {cell number: "timeout" or "error"}
        self._folder = tempfile.mkdtemp(prefix="tx-grading-")
        self._process: Any = None  # Popen, once it is launched
        self._address = self._key = None

    def launch(self):
        """Start the server without waiting for it."""
        if self._process is None or self._process.poll() is not None:
            self._key, self._address = secrets.token_bytes(16), None
            self._process = subprocess.Popen(
                [sys.executable, "-X", "utf8", "-m", "tx.course.grading.server"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                encoding="utf-8", cwd=self._folder, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip
            address = os.path.join(self._folder, secrets.token_hex(4)) if os.name == "posix" else ""
            self._say(f"{address}\t{self._key.hex()}\t{self.way}")

    def load(self, notebook, exercise):
        """A process in which the notebook has run: a Worker with what happened.

        A cell that does not end, or that ends the process, is left out of a second try.
        """
        bad = self.bad_cells.setdefault(notebook.key, {})
        while True:
            worker = self._start(min(exercise.seconds, self.call_seconds))
            try:
                worker.load(notebook, exercise, bad, self.cell_seconds, self.memory)
                return worker
            except (TimedOut, Gone) as error:
                worker.close()
                if worker.at is not None and worker.at not in bad:
                    bad[worker.at] = "timeout" if isinstance(error, TimedOut) else "error"
                elif self.way == "fork":  # a system whose libraries do not survive a fork
                    self._end()
                    self.way = "spawn"
                else:
                    raise

    def close(self):
        """End everything and clean up."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self):
        """End the learner's process."""
        if self.way == "spawn":
            self._end()
        else:
            self._say("stop")

    def _end(self):
        if self._process.poll() is None:
            processes.end_below(self._process.pid)
        self._process.kill()
        self._process.wait()

    def _start(self, seconds):
        for trial in range(3):
            self.launch()
            try:
                self._say("start")
                self._address = self._address or self._process.stdout.readline().rstrip("\n")
                return Worker(self, Client(self._address, authkey=self._key), seconds)
            except (OSError, EOFError, ValueError):  # the last learner ended the server
                self._end()
                if trial == 2:
                    raise

    def _say(self, line):
        with contextlib.suppress(OSError):  # it is gone; the next start makes a new one
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _environment(self):
        kept = {k: v for k, v in os.environ.items() if k.upper() in KEPT}
        return kept | {
            "PYTHONPATH": os.pathsep.join([str(live.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": self._folder, "TMPDIR": self._folder, "TEMP": self._folder, "TMP": self._folder,
        }  # fmt: skip


class Worker(Session):
    """A session with the object of one exercise in a learner's process."""

    def __init__(self, sandbox, connection, seconds):
        super().__init__(seconds)
        self._sandbox, self._connection = sandbox, connection
        self.at = None  # the cell that is running
        self.found = self.again = False
        self.errors = {}  # cell number -> the error it raised
        self.borrowed = None

    def load(self, notebook, exercise, skip, cell_seconds, memory):
        """Execute the notebook there. Raises TimedOut or Gone while `self.at` runs."""
        own = notebook.cell_of(exercise.name)
        self._send(wire.pack({
            "notebook": notebook.path.name, "name": exercise.name,
            "own": own.number if own else None,
            "cells": [(c.number, c.source) for c in notebook.cells if c.exercise != exercise.name
                      or c is own],
            "skip": list(skip), "out_of_reach": list(exercise.out_of_reach),
            "forbidden": [str(live.FOLDER.parent / "solutions") + os.sep,
                          str(live.FOLDER / "test_"),
                          str(live.FOLDER / "__pycache__") + os.sep],
            "memory": memory,
        }))  # fmt: skip
        while True:
            reply = _read(self._receive(START if self.at is None else cell_seconds))
            if "at" in reply:
                self.at = reply["at"]
            elif "borrowed" in reply:
                self.borrowed = str(reply["borrowed"])
                return
            else:
                self.found, self.again = bool(reply["loaded"]), bool(reply["again"])
                self.errors = {int(n): rebuilt(error) for n, error in reply["errors"]}
                return

    def carry(self, data):
        self._send(data)
        return self._receive(self.seconds)

    def close(self):
        self._connection.close()
        self._sandbox.stop()

    def _send(self, data):
        try:
            self._connection.send_bytes(data)
        except OSError:
            raise Gone from None

    def _receive(self, seconds):
        try:
            if not self._connection.poll(seconds):
                raise TimedOut
            return self._connection.recv_bytes(wire.LARGEST)
        except (EOFError, OSError):
            raise Gone from None


def _read(data):
    try:
        return dict(wire.unpack(data))
    except (ValueError, TypeError):
        raise Gone from None
