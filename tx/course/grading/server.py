"""The server of learners' processes: it imports torch once and forks a child for each exercise.

Run by `sandbox.py` as `python -m tx.course.grading.server`. It runs no torch operation and has one
thread: a fork of a process whose torch has started its threads hangs. Where there is no fork, it
becomes the child itself and a new one is started for the next exercise.

Protocol on stdin: a line with the address ("" for any), the key and the way ("fork" or "spawn");
then "start" for a new child, which the other side connects to, and "stop" to end it.
"""

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Listener

from tx.course.grading import child, processes


def main():
    """Serve until stdin ends."""
    processes.adopt()
    address, key, way = sys.stdin.readline().rstrip("\n").split("\t")
    listener = Listener(address or None, authkey=bytes.fromhex(key))
    print(listener.address, flush=True)
    running = None
    children = 0
    for line in sys.stdin:
        if running:
            _end(running)
            running = None
        if line.strip() == "start":
            children += 1
            if children == 2:  # there will be more: load what torch.testing.assert_close loads
                with contextlib.suppress(ImportError):
                    import torch.distributed.tensor  # noqa: F401
            connection = listener.accept()
            if way == "spawn":
                try:
                    child.serve(connection)
                finally:
                    processes.end_below(os.getpid())
                return
            running = os.fork()
            if not running:
                os.setpgid(0, 0)
                with contextlib.suppress(BaseException):
                    child.serve(connection)
                os._exit(0)
            connection.close()
    if running:
        _end(running)


def _end(pid):
    """End a child and whatever it started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGSTOP)  # nothing starts anything new meanwhile
    processes.end_below(os.getpid())


if __name__ == "__main__":
    main()
