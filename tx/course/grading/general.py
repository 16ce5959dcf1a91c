"""Mistakes of no exercise in particular: the right result, transposed, negated, in another shape …

A mistake matches if it explains every recorded result. The exercise's own mistakes come first.
"""

import torch

from tx.course.grading.comparing import compare


def diagnose(pairs, tolerance):
    """The first general mistake that explains all pairs of an expected and a given value.

    Returns (name, why), or (None, "").
    """
    equal = lambda e, g: compare(e, g, tolerance) is None
    if all(equal(e, g) for e, g in pairs):
        return None, ""
    if any(g is None for _, g in pairs):
        if all(g is None for _, g in pairs):
            return "nothing returned", "without a `return` a function gives None."
        return None, ""
    pairs = [item for e, g in pairs for item in _items(e, g, equal)]
    for name, why, change in _CHANGES:
        if _explains(change, pairs, equal):
            return name, why
    return _constant(pairs, equal)


def _items(e, g, equal):
    """Of two tuples or lists the items that differ, in pairs; of anything else, the pair itself."""
    if isinstance(e, (list, tuple)) and isinstance(g, (list, tuple)) and len(e) == len(g):
        differ = [pair for pair in zip(e, g, strict=True) if not equal(*pair)]
        if differ:
            return [item for pair in differ for item in _items(*pair, equal=equal)]
    return [(e, g)]


def _explains(change, pairs, equal):
    """Whether one way of the change makes the two sides equal in every pair."""
    ways = []
    for e, g in pairs:
        try:
            ways.append([equal(*sides) for sides in change(e, g)])
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
            return False
    return any(map(all, zip(*ways, strict=True)))


def _of(function):
    """given = function(expected)."""
    return lambda e, g: [(function(e), g)]


def _each(*functions):
    """given = one of these functions of expected, the same everywhere."""
    return lambda e, g: [(f(e), g) for f in functions]


def _item(g, place):
    """An item of a tuple."""
    if not isinstance(g, tuple):
        raise TypeError
    return g[place]


def _stacked(g):
    """A list as a tensor."""
    if not isinstance(g, list):
        raise TypeError
    return torch.stack(g) if isinstance(g[0], torch.Tensor) else torch.tensor(g)


def _finite(e, g):
    """Right wherever it is a number, and a number somewhere."""
    if e.shape != g.shape:
        raise ValueError
    good = g.isfinite() | ~e.isfinite()
    return [(torch.where(good, e, 0), torch.where(good, g, 0))]


_CHANGES = [
    ("another kind of number", "the values are right, their dtype is not.",
     lambda e, g: [(e.double(), g.double())]),
    ("a list in place of a tensor",
     "the numbers are right: torch.tensor makes a tensor of numbers, torch.stack one of tensors.",
     lambda e, g: [(e, _stacked(g).to(e.dtype))]),
    ("the result in a tuple", "the right result is in it: return it alone, with no comma behind it.",
     lambda e, g: [(e, _item(g, place)) for place in (0, -1)]),
    ("a Python number in place of a tensor", "the number is right: leave it in its tensor.",
     lambda e, g: [(e.item(), float(g))] if isinstance(g, (int, float)) else [(0, 1)]),
    ("a tensor in place of a Python number", "the number is right: .item() takes it out.",
     lambda e, g: [(e, g)] if isinstance(e, torch.Tensor) or not isinstance(g, torch.Tensor)
     else [(float(e), g.item())]),
    ("the last two axes swapped", "the numbers are right and their places are transposed.",
     _of(lambda e: e.transpose(-1, -2))),
    ("the other sign", "every number is right but for its sign.", _of(lambda e: -e)),
    ("True and False swapped", "every entry is the opposite of the right one.", _of(lambda e: ~e)),
    ("turned around", "the numbers are right and run backwards along an axis.",
     _each(lambda e: e.flip(-1), lambda e: e.flip(-2))),
    ("a logarithm too many", "this is the logarithm of the right result.", _of(lambda e: e.log())),
    ("a power of e too many", "this is e to the right result.", _of(lambda e: e.exp())),
    ("a root too many", "this is the root of the right result.", _of(lambda e: e.sqrt())),
    ("a square too many", "this is the square of the right result.", _of(lambda e: e.square())),
    ("one over it", "this is one divided by the right result.", _of(lambda e: e.reciprocal())),
    ("a sum too many", "this is the right result, summed over an axis as well.",
     _each(lambda e: e.sum(-1), lambda e: e.sum(-2), lambda e: e.sum())),
    ("a mean too many", "this is the mean of the right result over an axis.",
     _each(lambda e: e.mean(-1), lambda e: e.mean(-2), lambda e: e.mean())),
    ("the right numbers in another shape", "every number is right and in the right order.",
     lambda e, g: [(e.reshape(-1), g.reshape(-1))]),
    ("NaN or infinity among right numbers",
     "wherever the result is finite it is right: look for 0 / 0, ∞ − ∞, ln 0 or an overflow.",
     _finite),
]  # fmt: skip


def _constant(pairs, equal):
    """A factor or a summand that is the same everywhere."""
    try:
        expected = torch.cat([torch.as_tensor(e).double().flatten() for e, _ in pairs])
        got = torch.cat([torch.as_tensor(g).double().flatten() for _, g in pairs])
    except (RuntimeError, TypeError, ValueError):
        return None, ""
    if expected.shape != got.shape or len(expected) < 4 or not expected.isfinite().all():
        return None, ""
    large = expected.abs() > 1e-3
    if not large.any():
        return None, ""
    factor = (got[large] / expected[large]).median().item()
    summand = (got - expected).median().item()
    if abs(factor) > 1e-3 and abs(factor - 1) > 1e-3 and equal(expected * factor, got):
        return f"a factor of {factor:.4g} too much", "the result is right but for a constant factor."
    if abs(summand) > 1e-3 and equal(expected + summand, got):
        return f"{summand:+.4g} everywhere", "the result is right but for a constant that is added."
    return None, ""
