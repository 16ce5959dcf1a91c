"""Is a result the expected one, and if not, in what?"""

import dataclasses
import numbers

import torch

TOLERANCE = 5e-5  # above the float32 noise of small models, below the weakest real bug seen
RELATIVE = 1e-5  # float32 keeps about seven digits


@dataclasses.dataclass
class Mismatch:
    """How a result differs. `kind` is one of nothing, type, shape, dtype, value, in this order."""

    kind: str
    words: str  # one line
    expected: object
    got: object
    path: str = ""  # where in a tuple, list or dict
    wrong: torch.Tensor | None = None  # which entries differ
    remark: str = ""  # what `expected` and `got` do not say by themselves


def compare(expected, got, tolerance=TOLERANCE, path=""):
    """The first mismatch of two results, or None. NaN equals NaN alone."""
    if isinstance(expected, torch.Tensor):
        return _tensors(expected, got, tolerance, path)
    if isinstance(expected, (list, tuple)):
        return _sequences(expected, got, tolerance, path)
    if isinstance(expected, dict):
        return _dicts(expected, got, tolerance, path)
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        if type(got) is not type(expected):
            return _kind(expected, got, path)
        if got != expected:
            return Mismatch("value", f"{expected!r} expected, got {got!r}", expected, got, path)
        return None
    return _numbers(expected, got, tolerance, path)


def name_of(value, digits=6):
    """What a value is, in words."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, torch.Tensor):
        return f"{_a(kind_of(value.dtype))} tensor of shape {shape(value)}"
    if isinstance(value, bool):
        return f"the boolean {value}"
    if isinstance(value, numbers.Number):
        text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
        return f"the number {text}{'.0' * (isinstance(value, float) and text.lstrip('-').isdigit())}"
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, (list, tuple, dict)):
        plural = "s" if len(value) != 1 else ""
        kind = next(k.__name__ for k in (list, tuple, dict) if isinstance(value, k))
        return f"a {kind} of {len(value)} item{plural}"
    return _a(_kind_of_object(value))


def _a(noun):
    return f"{'an' if noun[0] in 'AEIOaeiou' else 'a'} {noun}"


def _kind_of_object(value):
    """The kind of what is no plain value: itself here, or a handle of it."""
    kind = str(getattr(value, "_kind", None) or type(value).__name__)
    return _OBJECTS.get(kind, kind)


_OBJECTS = {
    "ndarray": "NumPy array", "builtin_function_or_method": "function", "method": "function",
    "type": "class",
}  # fmt: skip
_REMARKS = {
    "NumPy array": "torch.from_numpy makes a tensor of it",
    "function": "it was not called: are its () missing?",
    "class": "it was not called: are its () missing?",
    "generator": "tuple(…) and list(…) take the items out of a generator",
}


def kind_of(dtype):
    """float, integer, boolean or complex."""
    if dtype.is_floating_point:
        return "float"
    if dtype.is_complex:
        return "complex"
    return "boolean" if dtype == torch.bool else "integer"


def shape(x):
    """(2, 3) as text."""
    return str(tuple(x.shape))


def _kind(expected, got, path):
    if got is None and path:
        words, remark = f"result{path} is None", "this part of the result is None"
        return Mismatch("type", words, expected, got, path, remark=remark)
    if got is None:
        words = "it returns nothing: did you forget `return`?"
        return Mismatch("nothing", words, expected, got, path, remark="did you forget `return`?")
    words = f"{name_of(expected)} expected, got {name_of(got)}"
    remark = _REMARKS.get(_kind_of_object(got), "")
    if isinstance(expected, numbers.Number) and isinstance(got, torch.Tensor) and got.numel() == 1:
        remark = ".item() gives the number of a tensor"
    if isinstance(expected, torch.Tensor) and isinstance(got, numbers.Number):
        remark = "did .item() or float() take it out of its tensor?"
    if isinstance(expected, torch.Tensor) and isinstance(got, list):
        remark = "torch.tensor makes a tensor of numbers, torch.stack one of tensors"
    if isinstance(expected, torch.Tensor) and isinstance(got, tuple):
        remark = "a comma behind a value makes a tuple" if len(got) == 1 else "one tensor is asked for"
    return Mismatch("type", words, expected, got, path, remark=remark)


def _tensors(expected, got, tolerance, path):
    if not isinstance(got, torch.Tensor):
        return _kind(expected, got, path)
    if got.shape != expected.shape:
        words = f"shape {shape(expected)} expected, got {shape(got)}"
        return Mismatch("shape", words, expected, got, path)
    if kind_of(got.dtype) != kind_of(expected.dtype):
        words = f"a {kind_of(expected.dtype)} tensor expected, got {kind_of(got.dtype)} ({got.dtype})"
        return Mismatch("dtype", words, expected, got, path)
    if not expected.is_floating_point():
        wrong = expected != got
    else:
        e, g = expected.double(), got.double()
        near = (e - g).abs() <= tolerance + RELATIVE * e.abs().nan_to_num(0, 0, 0)
        wrong = ~(near | (e == g) | (e.isnan() & g.isnan()))
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    words, count = _unlike(expected[at].item(), got[at].item()), ""
    if wrong.numel() > 1:
        count = f"{int(wrong.sum())} of {wrong.numel()} numbers differ (*)"
        words = f"{count[:-4]}, first at {list(at)}: {words}"
    return Mismatch("value", words, expected, got, path, wrong, count)


def _numbers(expected, got, tolerance, path):
    if isinstance(got, bool) or not isinstance(got, numbers.Number):
        return _kind(expected, got, path)
    if isinstance(expected, int) and isinstance(got, float):
        words, remark = f"a whole number expected, got {got!r}", "`//` gives whole numbers"
        return Mismatch("type", words, expected, got, path, remark=remark)
    near = expected == got if isinstance(expected, int) else (
        abs(expected - got) <= tolerance + RELATIVE * abs(expected)
        or expected == got or (expected != expected and got != got)
    )  # fmt: skip
    if near:
        return None
    return Mismatch("value", _unlike(expected, got), expected, got, path)


def _sequences(expected, got, tolerance, path):
    if not isinstance(got, (list, tuple)):
        return _kind(expected, got, path)
    if len(got) != len(expected):
        words = f"{len(expected)} items expected, got {len(got)}"
        return Mismatch("shape", words, expected, got, path)
    found = (
        compare(e, g, tolerance, f"{path}[{i}]")
        for i, (e, g) in enumerate(zip(expected, got, strict=True))
    )
    return next((mismatch for mismatch in found if mismatch), None)


def _dicts(expected, got, tolerance, path):
    if not isinstance(got, dict):
        return _kind(expected, got, path)
    if set(got) != set(expected):
        words = f"keys {sorted(map(str, expected))} expected, got {sorted(map(str, got))}"
        return Mismatch("shape", words, expected, got, path)
    found = (compare(e, got[k], tolerance, f"{path}[{k!r}]") for k, e in expected.items())
    return next((mismatch for mismatch in found if mismatch), None)


def _unlike(expected, got):
    digits = telling([(expected, got)])
    return f"{number(expected, digits)} expected, got {number(got, digits)}"


def telling(pairs, digits=4):
    """How many digits tell the two numbers of every pair apart."""
    enough = (n for n in range(digits, 17) if all(number(e, n) != number(g, n) for e, g in pairs))
    return next(enough, digits)


def number(x, digits=4):
    """A number in few digits."""
    if isinstance(x, bool):
        return str(int(x))
    if isinstance(x, int):
        return str(x)
    if isinstance(x, complex):
        return f"{x:.{digits}g}"
    return "0" if x == 0 else f"{x:.{digits}g}"
