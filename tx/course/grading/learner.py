"""The learner's side: it holds the object under test, runs it, and answers in bytes.

The same class serves a live notebook, a wrong answer of the mutation suite, and the child process
in which a notebook is graded.
"""

import builtins
import contextlib
import inspect
import threading
import traceback
import warnings
from difflib import get_close_matches

import torch
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from tx.course.grading import wire
from tx.course.grading.reach import Traps

PRINTED = 2_000  # characters of output that are kept


class Capped:
    """A text stream that keeps the first characters that one thread writes and lets the rest go."""

    encoding, errors = "utf-8", "replace"

    def __init__(self):
        self.text, self.thread = "", None

    def write(self, text):
        if len(self.text) < PRINTED and threading.get_ident() == self.thread:
            self.text += str(text)[: PRINTED - len(self.text)]
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return False


# the only one there is, because it must not go while it is printed to: a print that is under way in
# another thread does not keep the stream alive that it found in sys.stdout, and Python crashes
OUTPUT = Capped()


@contextlib.contextmanager
def captured():
    """What this thread prints in the block, as OUTPUT.text."""
    before = OUTPUT.text, OUTPUT.thread
    OUTPUT.text, OUTPUT.thread = "", threading.get_ident()
    try:
        with contextlib.redirect_stdout(OUTPUT), contextlib.redirect_stderr(OUTPUT):
            yield
    finally:
        OUTPUT.text, OUTPUT.thread = before


class Learner:
    """Answers requests about one object: call it, take its gradients, look up its attributes."""

    def __init__(self, target, traps=None, let_through=()):
        """`let_through`: exceptions that are not the learner's, such as a time-out."""
        self.objects = [target]
        self.traps = traps or Traps(())
        self.let_through = let_through

    def answer(self, data):
        """Bytes of a request -> bytes of a reply."""
        self.traps.sprung = None
        with captured():
            try:
                with as_torch_comes():  # also while tensors are made of the bytes
                    reply = self._reply(wire.unpack(data, lambda handle: self.objects[handle[0]]))
                    sent = wire.pack(reply | {"printed": OUTPUT.text}, self._as_handle)
            except self.let_through:
                raise
            except BaseException as error:  # sys.exit and pytest.skip are no Exception
                sent = wire.pack({"raised": describe(error), "printed": OUTPUT.text})
        if self.traps.sprung:  # even where the learner's code caught it
            sent = wire.pack({"borrowed": self.traps.sprung})
        return sent

    def _reply(self, request):
        target, args, kwargs = request["on"], request["args"], request["kwargs"]
        before = self._packed(args, kwargs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # two sides that draw numbers draw the same ones
            if request["do"] == "gradients":
                own = dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}
                leaves, args = tracked(args)
                result = gradients(self.traps.guarded(target), {**leaves, **own}, args, kwargs)
            elif request["do"] == "get":
                return {"result": self.traps.guarded(getattr)(target, *args), "changed": []}
            else:
                result = self.traps.guarded(target)(*args, **kwargs)
        after = self._packed(args, kwargs)
        changed = [key for key in before if before[key] != after[key]]
        return {"result": result, "changed": _names(target, changed) if changed else []}

    def _packed(self, args, kwargs):
        """Bytes of every argument, by position or name."""
        pairs = [*enumerate(args), *kwargs.items()]
        return {key: wire.pack(value, self._as_handle) for key, value in pairs}

    def _as_handle(self, value):
        for i, known in enumerate(self.objects):
            if known is value:
                return [i, type(value).__name__]
        self.objects.append(value)
        return [len(self.objects) - 1, type(value).__name__]


def _names(target, keys):
    """What the arguments at some positions are called, as far as it can be found out."""
    try:
        names = [p.name for p in inspect.signature(getattr(target, "forward", target)).parameters.values()
                 if p.kind != p.VAR_POSITIONAL]  # fmt: skip
    except BaseException:  # a learner's object may do anything
        names = []
    return [names[key] if isinstance(key, int) and key < len(names)
            else f"number {key + 1}" if isinstance(key, int) else key for key in keys]  # fmt: skip


@contextlib.contextmanager
def as_torch_comes():
    """Gradients on, float32, the CPU, no modes: what a notebook has set for itself changes no verdict."""
    dtype, matmul = torch.get_default_dtype(), torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    precision = matmul.fp32_precision
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]  # a default device is one of them
    try:
        torch.set_default_dtype(torch.float32)
        matmul.fp32_precision = "ieee"
        with (
            _disable_current_modes(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autograd.set_detect_anomaly(False),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")  # none is an error
            yield
    finally:
        torch.set_default_dtype(dtype)
        matmul.fp32_precision = precision
        for mode in reversed(modes):
            _push_mode(mode)


def tracked(args):
    """Leaves for the gradients of the floating tensors in args, by position, and args with copies of the leaves.

    Code that fills its argument in place can do so with a copy, not with a leaf.
    """
    leaves = {str(i): x.clone().requires_grad_() for i, x in enumerate(args)
              if isinstance(x, torch.Tensor) and x.is_floating_point()}  # fmt: skip
    return leaves, tuple(leaves[str(i)].clone() if str(i) in leaves else x for i, x in enumerate(args))


def gradients(f, leaves, args, kwargs):
    """f's output, and by name the gradients of a weighted sum of its numbers with respect to every leaf.

    The weights all differ, so that no gradient cancels (the sum of a softmax has none); the first is 1. A leaf
    that does not reach the output gets None.
    """
    output = f(*args, **kwargs)
    several = isinstance(output, (list, tuple))
    parts = [x for x in (output if several else [output]) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not parts:
        return output, dict.fromkeys(leaves)
    weights = [torch.arange(float(x.numel())).cos().view_as(x).to(x) for x in parts]  # each as its part
    found = torch.autograd.grad(parts, list(leaves.values()), weights, allow_unused=True)  # each as its leaf
    return output, dict(zip(leaves, found, strict=True))


def describe(error):
    """An exception in plain values: its kind, its built-in ancestor, its message, and where."""
    kinds = [k.__name__ for k in type(error).__mro__ if getattr(builtins, k.__name__, None) is k]
    try:
        message = error.msg if isinstance(error, SyntaxError) else str(error) + _similar(error)
    except BaseException:
        message = "(its message cannot be read)"
    if isinstance(error, MemoryError) or "allocate memory" in message:
        message = f"it asks for more memory than one exercise gets. {message}"
    return {
        "kind": type(error).__name__,
        "builtin": kinds[0] if kinds else "Exception",
        "message": " ".join(message.split())[:400],
        "where": where(error),
    }


def _similar(error):
    """The name that was probably meant, where one was not found."""
    names: list[str] = []
    if isinstance(error, NameError):
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        names = [*frame.f_locals, *frame.f_globals]
    elif isinstance(error, AttributeError) and error.name:
        names = dir(error.obj)
    near = get_close_matches(str(getattr(error, "name", "")), names, n=1, cutoff=0.75)
    return f". Did you mean {near[0]!r}?" if near else ""


def where(error):
    """The last line of the learner's own code in a traceback, or an empty string."""
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        return f"{_place(str(error.filename))}line {error.lineno}" + (f": {line}" if line else "")
    spots = [s for s in traceback.extract_tb(error.__traceback__) if _is_cell(s.filename)]
    if not spots:
        return ""
    return f"{_place(spots[-1].filename)}line {spots[-1].lineno}: {spots[-1].line}"


def _is_cell(filename):
    return ".ipynb[cell " in filename or "ipykernel" in filename or filename.startswith("<ipython")


def _place(filename):
    return f"{filename}, " if ".ipynb[cell " in filename else ""
