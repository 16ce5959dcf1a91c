"""The process in which a learner's notebook runs.

It executes the notebook cell by cell, keeps errors for later, and then answers requests about the
one object that is graded. It holds no reference, no expected value and no grader.
"""

import ast
import asyncio
import inspect
import linecache
import os
import sys
import tempfile
import threading
import time
import types

import torch

from tx.course.grading import processes, wire
from tx.course.grading.learner import OUTPUT, Learner, captured, describe
from tx.course.grading.reach import Borrowed, Traps

FILE_SIZE = 1 << 26  # the largest file that may be written
CPU_SECONDS = 600  # far more than any time limit: the end of a process that nobody ended


def serve(connection):
    """Load one notebook and answer until the other side hangs up."""
    _end_with_the_grader()
    _leave_the_house()
    request = wire.unpack(connection.recv_bytes())
    _limit_memory(request["memory"])
    torch.set_num_threads(1)
    torch.ones(2, 2) @ torch.ones(2, 2)  # where a fork breaks torch, it breaks here
    say = lambda value: connection.send_bytes(wire.pack(value))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    traps = Traps(request["out_of_reach"], vars(module))
    traps.install()
    _watch_files(request["forbidden"], traps)
    target, loaded = _load(request, vars(module), say)
    if traps.sprung:
        loaded = {"borrowed": traps.sprung}
    say(loaded)
    learner = Learner(target, traps)
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(learner.answer(data))


def _end_with_the_grader():
    """No orphans: a loop without end is over when the process that asked for it is."""
    grader = os.getppid()

    def watch():
        while os.getppid() == grader:
            time.sleep(1)
        processes.end_below(os.getpid())
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _leave_the_house():
    """An empty working folder, no terminal, nothing to read from."""
    os.chdir(tempfile.mkdtemp(prefix="learner-"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.stdout = sys.stderr = OUTPUT


def _limit_memory(size):
    """At most `size` bytes more than now, where the system can do that."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    except (ImportError, OSError, ValueError):
        pass


def _watch_files(forbidden, traps):
    """Opening a solution or a grader is borrowing. An audit hook cannot be taken away."""

    def hook(event, args):
        if event == "open" and isinstance(args[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(args[0]))
            if path.startswith(forbidden):
                traps.sprung = f"the file {os.path.basename(path)}"
                raise Borrowed(traps.sprung)

    forbidden = tuple(forbidden)
    sys.addaudithook(hook)


def _load(request, space, say):
    """Execute the cells. Returns the graded object and what happened."""
    _silence_the_course()
    space |= {"display": lambda *_, **__: None, "get_ipython": lambda: None}
    name, own, found, errors = request["name"], request["own"], None, []
    has_own = False
    for number, source in request["cells"]:
        if number in request["skip"]:
            continue
        say({"at": number})
        try:
            _execute(request["notebook"], number, source, space)
        except BaseException as error:
            errors.append((number, describe(error)))
        if number == own and name in space:
            found, has_own = space[name], True
    again = has_own and space.get(name) is not found
    if has_own:
        space[name] = found  # the tagged cell wins, also for those who call it
    return space.get(name), {"loaded": name in space, "errors": errors, "again": again}


def _execute(notebook, number, source, space):
    place = f"{notebook}[cell {number}]"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    with captured():
        code = compile(source, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:  # a live notebook awaits at the top level, too
            asyncio.run(eval(code, space))
        else:
            exec(code, space)


def _silence_the_course():
    """`grade` and its like in a cell do nothing while the notebook is graded."""
    import tx.course
    from tx.course import grading

    silent = lambda *_, **__: None
    for name in ("grade", "hint", "commit", "reveal"):
        setattr(tx.course, name, silent)
    grading.grade = grading.hint = silent
