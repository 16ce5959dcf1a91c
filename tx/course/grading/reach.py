"""What is out of reach while an exercise is graded: calling it is borrowing the answer.

A trap lets its original through until it is armed, so that a learner's own cells may compare with
`torch.softmax`, and only the call that is judged may not.
"""

import contextlib
import sys
from importlib import import_module

# the same operation under another roof
ROOFS = ("torch", "torch.Tensor", "torch.nn.functional", "torch.special", "torch.ops.aten")


class Borrowed(BaseException):
    """The judged code called what is out of reach. Not an Exception: `except:` cannot hide it."""


class Traps:
    """Traps for dotted names such as `tx.softmax` or `torch.Tensor.softmax`.

    A name is trapped wherever the same object stands: in every module of `tx`, and in
    `namespace`, the learner's own globals; a function of torch also as a method and in
    `torch.nn.functional`.
    """

    def __init__(self, names, namespace=None):
        self.sprung = None  # the first name that was called
        self._armed = False
        self._set = []  # place, attribute, original, trap
        self._namespace = namespace if namespace is not None else {}
        self._waiting = list(names)

    def guarded(self, function):
        """`function`, with the traps armed while it runs: calling a trapped name there raises."""

        def run(*args, **kwargs):
            self.install()  # what the learner's code has imported by now
            before, self._armed = self._armed, True
            try:
                return function(*args, **kwargs)
            finally:
                self._armed = before

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
        for name in list(self._waiting):
            original = find(name)
            if original is not None:
                self._waiting.remove(name)
                trap = self._trap(original, name)
                for place, attribute in _places(name, original, self._namespace):
                    self._set.append((place, attribute, _get(place, attribute), trap))
                    _put(place, attribute, trap)

    def spring(self, name):
        """Called by a trap."""
        if self._armed:
            self.sprung = self.sprung or name
            raise Borrowed(name)

    def _trap(self, original, name):
        spring = self.spring
        if isinstance(original, type):

            def __init__(self, *args, **kwargs):
                spring(name)
                original.__init__(self, *args, **kwargs)  # type: ignore[misc]  # it is a class

            return type(original.__name__, (original,), {"__init__": __init__})

        def trap(*args, **kwargs):
            spring(name)
            return original(*args, **kwargs)

        trap.__name__ = name.rpartition(".")[2]
        return trap


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


def _places(name, original, namespace):
    """Where a name's object can be reached: pairs of a namespace and an attribute."""
    home, _, leaf = name.rpartition(".")
    places = [(find(home), leaf)]
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "tx" and not module_name.startswith("tx.course.grading"):
            places += [(module, k) for k, v in list(vars(module).items()) if v is original]
    places += [(namespace, k) for k, v in list(namespace.items()) if v is original]
    if home in ROOFS:
        for roof in ROOFS:
            if getattr(find(roof), leaf, None) is not None:
                places.append((find(roof), leaf))
    unique = {(id(place), attribute): (place, attribute) for place, attribute in places}
    return unique.values()


def _get(place, name):
    return place[name] if isinstance(place, dict) else getattr(place, name)


def _put(place, name, value):
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)

