"""What a general error of Python or PyTorch means for somebody who writes an exercise."""

import re

ELLIPSIS = "a … of the stub is still there: something has to stand in its place"
ARGUMENTS = "it is called with the arguments of its stub: keep them (and `self` first in a method)"

# a pattern in "kind: message", and a sentence; the first that fits is said
_ADVICE = [(re.compile(pattern), text) for pattern, text in (
    ("invalid character '…'|ellipsis", ELLIPSIS),
    (r"\(\) takes .*positional argument|\(\) missing .*argument|\(\) got an unexpected keyword", ARGUMENTS),
    ("^NameError: name .* is not defined$",
     "there are the arguments, and what a cell of this notebook defines: is it misspelt, or from elsewhere?"),
    ("^RecursionError", "it calls itself without end: which case needs no further call?"),
    ("^BdbQuit", "a breakpoint() is still there, and nobody can answer it here"),
    ("^EOFError: EOF when reading a line", "an input() is still there, and nobody can answer it here"),
    ("exceptions must derive from BaseException", 'an error is raised with its kind: raise ValueError("…")'),
    ("size of tensor a .* must match the size of tensor b",
     "axes line up from the right, and these differ: does a sum or max lack keepdim=True, or one side an axis?"),
    ("shapes cannot be multiplied|inconsistent tensor size|size for first two dimensions of batch2"
     "|batch1 and batch2|must match the size of mat2|size mismatch, got input",
     "@ sums over the last axis of its left and the last but one of its right side: these sizes differ"),
    ("is invalid for input of size",
     "view and reshape keep every number: the new sizes, multiplied, have to give that many"),
    ("view size is not compatible",
     "the numbers do not lie in memory in that order: after a transpose, reshape copies where view cannot"),
    ("to have the same dtype|expected scalar type|should be the same: |Index put requires the source",
     "two kinds of numbers meet: which line changes the dtype, and should it?"),
    ("not implemented for '(Long|Int|Bool)'|could not infer output dtype|only be of floating point",
     "this needs floats, and the numbers here are whole or booleans: .float() converts"),
    ("element 0 of tensors does not require grad",
     "nothing was recorded on the way: requires_grad_() on what the slope is for, before it is used"),
    ("appears to not have been used in the graph",
     "the loss does not depend on it: is it used on the way, and not detached?"),
    ("CUDA|NVIDIA|same device", "the arguments are on the CPU, and so is the grader: leave them there"),
)]  # fmt: skip


def advise(line, where=""):
    """One sentence about an error, "kind: message", or an empty string.

    Args:
        where: the learner's line that raised. The arguments of a call inside it are not the stub's.
    """
    text = next((text for pattern, text in _ADVICE if pattern.search(line)), "")
    return "" if text == ARGUMENTS and where else text


def refuses(error):
    """Whether it is the learner's own check that raised."""
    statement = "raise|assert" if error.kind == "AssertionError" else "raise"
    return re.search(rf"line \d+: ({statement})\b", error.where) is not None
