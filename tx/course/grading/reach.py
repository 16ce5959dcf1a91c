"""What is out of reach while an exercise is graded: calling it is borrowing the answer.

A trap lets its original through until it is armed, so that a learner's own cells may compare with
`torch.softmax`, and only the call that is judged may not.

A name stands for what it does and not for one way to it. A function of torch is out of reach as a
method and in every namespace of torch, and so are the private functions that do its work, such as
`torch._softmax` and `torch.ops.aten._softmax`. Where one way to differentiate is out of reach, all are.
"""

import contextlib
import re
import sys
import threading
import types
from functools import cache
from importlib import import_module

import torch

# where the public functions of torch stand, and where their private twins do
PUBLIC = ("torch", "torch.Tensor", "torch.nn.functional", "torch.special", "torch.linalg")
PRIVATE = (
    "torch.ops.aten", "torch._VF", "torch._C._VariableFunctions", "torch._C._nn", "torch._C._special",
    "torch._C._linalg", "torch._C._sparse", "torch.sparse", "torch._refs", "torch._refs.nn.functional",
    "torch._refs.special", "torch._decomp.decompositions",
)  # fmt: skip
OTHERWISE_CALLED = {"cdist": ("_euclidean_dist",)}  # private twins that share no word with the public name

DIFFERENTIATES = ("torch.autograd.", "torch.func.", "torch.Tensor.backward")
ENGINES = (  # all differentiation goes through these: backward and forward
    "torch.autograd.Variable._execution_engine", "torch._functorch.predispatch._make_dual_impl",
    *(f"{home}._make_dual" for home in ("torch", *PRIVATE[:3])),
)  # fmt: skip


class Borrowed(BaseException):
    """The judged code called what is out of reach. Not an Exception: `except:` cannot hide it."""


class Traps:
    """Traps for dotted names such as `tx.softmax` or `torch.Tensor.softmax`, and for their twins.

    A name is trapped wherever the same object stands: in every module of `tx`, and in
    `namespace`, the learner's own globals.
    """

    def __init__(self, names, namespace=None):
        self.sprung = None  # the first name that was called
        self._armed, self._bystanders = False, set()
        self._set = []  # place, attribute, original, trap
        self._traps = {}  # id of an original -> its trap
        self._facade = None
        self._namespace = namespace if namespace is not None else {}
        self._waiting = _with_twins(names)  # dotted name -> what it is called when it is sprung

    def guarded(self, function):
        """`function`, with the traps armed while it runs: calling a trapped name there raises.

        A thread that ran before is another cell's: what it calls, the judged code did not.
        """

        def run(*args, **kwargs):
            self.install()  # what the learner's code has imported by now
            before = self._armed, self._bystanders
            others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
            self._armed, self._bystanders = True, others
            try:
                return function(*args, **kwargs)
            finally:
                self._armed, self._bystanders = before

        return run

    @contextlib.contextmanager
    def set(self):
        """Set the traps, and take them away at the end."""
        for place, attribute, _, trap in self._set:
            _put(place, attribute, trap)
        self.install()
        try:
            yield self
        finally:
            for place, attribute, original, _ in reversed(self._set):
                _put(place, attribute, original)

    def install(self):
        """Set the traps that are not set yet and whose module is loaded."""
        found = [name for name in self._waiting if find(name) is not None]
        for name in found:
            shown, home = self._waiting.pop(name), name.rpartition(".")[0]
            for place, attribute in _places(self._settable(home), name):
                self._install(place, attribute, shown)
        if found:
            for space in [*_modules_of_tx(), self._namespace]:
                for attribute, value in list(space.items()):
                    if id(value) in self._traps:
                        self._install(space, attribute)

    def _install(self, place, attribute, shown=""):
        original = _get(place, attribute)
        if any(original is trap for trap in self._traps.values()):
            return
        trap = self._traps.get(id(original)) or _trap(original, shown, self.spring)
        self._traps[id(original)] = trap
        self._set.append((place, attribute, original, trap))
        _put(place, attribute, trap)

    def _settable(self, home):
        """The namespace of that name, or what stands in for it if its attributes cannot be set."""
        if home != "torch._C._VariableFunctions":
            return find(home)
        if self._facade is None:
            original = find(home)
            self._facade = _Facade(original)
            for place, attribute in ((torch._C, "_VariableFunctions"), (torch._VF, "vf")):
                self._set.append((place, attribute, original, self._facade))
                _put(place, attribute, self._facade)
        return self._facade

    def spring(self, name):
        """Called by a trap."""
        if self._armed and threading.get_ident() not in self._bystanders:
            self.sprung = self.sprung or name
            raise Borrowed(name)


class _Trap:
    """Stands for something that is no class: calling it springs, or using it if it cannot be called."""

    def __init__(self, original, name, spring):
        self._original, self._name, self._spring = original, name, spring

    def __call__(self, *args, **kwargs):
        self._spring(self._name)
        return self._original(*args, **kwargs)

    def __getattr__(self, attribute):
        if not callable(self._original):
            self._spring(self._name)
        return getattr(self._original, attribute)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __hash__(self):  # torch keeps its operators in tables
        return hash(self._original)


class _Facade:
    """Stands for an object whose attributes cannot be set."""

    def __init__(self, original):
        self._original = original

    def __getattr__(self, attribute):
        return getattr(self._original, attribute)


def _trap(original, name, spring):
    if not isinstance(original, type):
        return _Trap(original, name, spring)

    def __init__(self, *args, **kwargs):
        spring(name)
        original.__init__(self, *args, **kwargs)  # type: ignore[misc]  # it is a class

    return type(original.__name__, (original,), {"__init__": __init__})


def find(name, load=False):
    """The object behind a dotted name, or None. Modules outside `tx` are loaded if asked for:
    some take seconds, and what is not loaded is not called."""
    parts = name.split(".")
    try:
        found = import_module(parts[0])
        for i, part in enumerate(parts[1:], 1):
            if not hasattr(found, part) and (load or parts[0] == "tx"):
                import_module(".".join(parts[: i + 1]))
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        return None


# ── twins ────────────────────────────────────────────────────────────────────────────────────────


def _with_twins(names):
    """Names, and all that does the same under other names of torch: dotted name -> what to call it."""
    found = {name: name for name in names}
    if any(name.startswith(DIFFERENTIATES) for name in names):
        found |= dict.fromkeys(ENGINES, "automatic differentiation")
    for name in names:
        home, _, leaf = name.rpartition(".")
        if home in PUBLIC:
            for other in (*PUBLIC, *PRIVATE):
                loaded = find(other) is not None
                for twin in _twins(leaf) & _names(other) if loaded else _twins(leaf):
                    found.setdefault(f"{other}.{twin}", name if twin == leaf else f"{other}.{twin}")
    return found


@cache
def _twins(leaf):
    """A name in torch, and the private names of what does its work.

    A private name has the words of the public one and maybe more, as `_log_softmax_backward_data` has
    those of `log_softmax`; it belongs to the public name that explains most of its words.
    """
    public = {name for home in PUBLIC for name in _names(home) if not name.startswith("_")}
    if leaf not in public or leaf == "backward":  # every function has a private one that goes backward
        return frozenset([leaf])
    found = {name for name in _names("torch.ops.aten") - public if _within(leaf, name)
             and not any(len(_words(p)) > len(_words(leaf)) and _within(p, name) for p in public)}  # fmt: skip
    return frozenset({leaf, *found, *OTHERWISE_CALLED.get(leaf, ())})


@cache
def _names(home):
    """What a loaded namespace holds. That of the operators fills as they are used, so torch is asked."""
    if home != "torch.ops.aten":
        return frozenset(dir(find(home)))
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(name[6:].partition(".")[0] for name in names if name.startswith("aten::"))


@cache
def _words(name):
    """`_nll_loss2d_forward` -> ("nll", "loss")."""
    words = (re.sub(r"\d+d$", "", word) for word in name.strip("_").split("_"))
    return tuple(word for word in words if word not in ("", "forward"))


def _within(name, other):
    """Whether the words of a name are in another one, in the same order."""
    rest = iter(_words(other))
    return all(word in rest for word in _words(name))


# ── places ───────────────────────────────────────────────────────────────────────────────────────


def _places(home, name):
    """Where calls of a name's object pass: pairs of a namespace or object and an attribute."""
    leaf = name.rpartition(".")[2]
    found = getattr(home, leaf)
    if isinstance(found, torch._ops.OpOverloadPacket):  # also for those who hold it, or a part of it
        return [(found, "_op"), *((getattr(found, part), "_op") for part in found.overloads())]
    return [(home, leaf)]


def _modules_of_tx():
    return [vars(module) for name, module in list(sys.modules.items())
            if name.split(".")[0] == "tx" and not name.startswith("tx.course.grading")]  # fmt: skip


def _get(place, name):
    return place[name] if isinstance(place, dict) else getattr(place, name)


def _put(place, name, value):
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)
