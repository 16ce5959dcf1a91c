"""What a grader calls: `impl(*args)` runs the learner's code, wherever it lives."""

import builtins
import ctypes
import sys
import threading

import torch

from tx.course.grading import wire
from tx.course.grading.learner import Learner
from tx.course.grading.reach import Borrowed, Traps


class Raised(Exception):
    """The learner's code raised. Its subclasses are also the built-in that was raised, so that
    `except ValueError` works. Attributes: kind, message, where (file, line and source)."""

    kind, message, where = "", "", ""


class TimedOut(BaseException):
    """The learner's code did not finish in time."""


class Gone(BaseException):
    """The learner's code ended its process."""


class Impl:
    """The learner's function, class or object.

    `impl(*args)` calls it; `impl.gradients(*args)` gives its output and the gradients of a weighted sum
    of it, those of its floating tensor arguments by position ("0", …) and those of a module's parameters
    by name; any other attribute is looked up on the object itself. What cannot cross by value comes back
    as another `Impl`.
    """

    def __init__(self, session, handle, kind="function"):
        self._session, self._handle, self._kind = session, handle, kind

    def __call__(self, *args, **kwargs):
        floats = any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in args)
        if self._session.slopes is None or not floats:
            return self._session.ask("call", self, args, kwargs)
        output, self._session.slopes = self.gradients(*args, **kwargs)
        return output

    def gradients(self, *args, **kwargs):
        return self._session.ask("gradients", self, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._session.ask("get", self, (name,), {})

    def __repr__(self):
        return f"<{self._kind}>"


class Session:
    """A conversation with a learner's object. Subclasses carry bytes there and back."""

    def __init__(self, seconds=None):
        self.seconds = seconds  # how long one request may take
        self.printed = ""  # what the learner's code printed
        self.changed = []  # the arguments that it changed, by name
        self.slopes = None  # the gradients of the last call, where they are asked for: a dict
        self.impl = Impl(self, 0)

    def ask(self, do, on, args, kwargs):
        """One request. Raises Raised, Borrowed, TimedOut or Gone."""
        request = {"do": do, "on": on, "args": args, "kwargs": kwargs}
        sent = wire.pack(request, lambda value: [_handle_of(value), ""])
        received = self.carry(sent)
        try:
            reply = wire.unpack(received, lambda handle: Impl(self, handle[0], str(handle[1])))
            if "borrowed" in reply:
                raise Borrowed(str(reply["borrowed"]))
            self.printed = (self.printed + reply["printed"])[:2_000]
            if "raised" not in reply:
                new = [str(name)[:40] for name in reply["changed"][:9]]
                self.changed += [name for name in new if name not in self.changed]
                return reply["result"]
            error = rebuilt(reply["raised"])
        except (ValueError, TypeError, LookupError):  # bytes that our side of it did not write
            raise Gone from None
        raise error

    def carry(self, data):
        raise NotImplementedError

    def close(self):
        pass


class InProcess(Session):
    """A session with an object of this process: a live notebook, a reference, a wrong answer."""

    def __init__(self, target, out_of_reach=(), seconds=None):
        super().__init__(seconds)
        module = sys.modules.get(getattr(target, "__module__", None) or "")
        namespace = getattr(target, "__globals__", None) or (vars(module) if module else {})
        self._traps = Traps(out_of_reach, namespace)
        self._learner = Learner(target, self._traps, let_through=(TimedOut, KeyboardInterrupt))

    def carry(self, data):
        with self._traps.set(), time_limit(self.seconds):
            return self._learner.answer(data)


def _handle_of(value):
    if not isinstance(value, Impl):
        raise TypeError(f"a {type(value).__name__} cannot cross to the learner's code")
    return value._handle


def rebuilt(raised):
    """The exception that a reply describes; also an instance of the built-in it descends from."""
    builtin = getattr(builtins, str(raised["builtin"]), Exception)
    bases: tuple[type, ...] = (Raised,)
    if isinstance(builtin, type) and issubclass(builtin, Exception) and builtin is not Exception:
        bases = (Raised, builtin)
    try:
        error = type("Raised", bases, {})(str(raised["message"]))
    except TypeError:  # UnicodeDecodeError and its like want more than a message
        error = Raised(str(raised["message"]))
    error.kind, error.message = str(raised["kind"]), str(raised["message"])
    error.where = str(raised["where"])
    return error


class time_limit:
    """A context that interrupts the code in it after some seconds, by raising TimedOut there.

    Works in any thread and on every system, but only between two steps of Python: one very long
    torch operation is interrupted when it ends.
    """

    def __init__(self, seconds):
        self._seconds = seconds
        self._lock, self._over = threading.Lock(), False

    def __enter__(self):
        if self._seconds is not None:
            self._thread = threading.get_ident()
            self._timer = threading.Timer(self._seconds, self._interrupt)
            self._timer.daemon = True
            self._timer.start()

    def _interrupt(self):
        with self._lock:
            if not self._over:
                _raise_in(self._thread, TimedOut)

    def __exit__(self, *_):
        if self._seconds is not None:
            with self._lock:
                self._over = True
            self._timer.cancel()


def _raise_in(thread, exception):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
