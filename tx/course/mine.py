"""The learner's own parts inside a real model: `python -m tx chat --mine`.

`PARTS` is the table: which exercises give which part, which name of `tx` it replaces, and how a function
written for an exercise is called by a model. A part is put in if its exercise has passed and the model
gives the same logits with it; where it does not, a sentence says why and the part of `tx` stays.
"""

import ast
import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from ..cache import Cache
from ..masks import Mask
from ..scaled_dot_product import share_heads

FOLDER = Path(__file__).resolve().parents[2] / "exercises"
TOLERANCE = 1e-4  # of the logits; a right attention moves them by about 2e-5 in 30 layers
IDS = [504, 3575, 282, 4649, 314, 7042, 30, 198, 504, 2988, 314, 42]  # any text will do


@dataclass(frozen=True)
class Part:
    """One row of the table.

    name: what it is called in a sentence. exercises: one of these is enough, the first is preferred.
    replaces: module and attribute of `tx`. adapt: from the learner's function to what stands there.
    """

    name: str
    exercises: tuple[str, ...]
    replaces: str
    adapt: Callable = lambda function, exercise: function


class DoesNotFit(Exception):
    """A call that the learner's function has no argument for."""


# ── how a model calls what was written for an exercise ───────────────────────────────────────────


def _attention(function, exercise):
    """`attend(q, k, v)` knows no mask: every query gets the keys that it may see, and no others."""

    def attend(q, k, v):
        if exercise == "attend":
            return function(q, k, v)  # (B, H, T, d_v)
        rows = (x.flatten(0, 1) for x in (q, k, v))  # batched_attention knows no heads
        return function(*rows).unflatten(0, q.shape[:2])  # (B, H, T, d_v)

    def attention(q, k, v, mask=None, *, bias=None, scale=None, softcap=None, sinks=None, dropout=0.0,
                  return_weights=False):  # fmt: skip
        unknown = {"a bias": bias, "a soft cap": softcap, "sinks": sinks, "dropout": dropout or None,
                   "its weights shown": return_weights or None}  # fmt: skip
        asked = [what for what, value in unknown.items() if value is not None]
        if scale is not None and abs(scale * q.shape[-1] ** 0.5 - 1) > 1e-6:
            asked.append("another scale")
        if asked:
            raise DoesNotFit(f"this model's attention has {' and '.join(asked)}")
        (B, H, T, _), S = q.shape, k.shape[2]
        k, v = share_heads(k, H), share_heads(v, H)  # (B, H, S, d_k), (B, H, S, d_v)
        if mask is None:
            return attend(q, k, v)  # (B, H, T, d_v)
        keep = mask if isinstance(mask, torch.Tensor) else mask.dense((B, H, T, S))  # (B or 1, H or 1, T, S)
        if keep.all():
            return attend(q, k, v)  # (B, H, T, d_v)
        if keep.shape[1] > 1:
            raise DoesNotFit("this model masks every head in its own way")
        keep = keep[:, 0].expand(B, T, S)  # (B, T, S)
        out = v.new_zeros(B, H, T, v.shape[-1])  # (B, H, T, d_v)
        for b in range(B):
            for t in range(T):
                seen = keep[b, t]  # (S,)
                if seen.any():
                    own = attend(q[b : b + 1, :, t : t + 1], k[b : b + 1, :, seen], v[b : b + 1, :, seen])
                    out[b, :, t] = own[0, :, 0]
        return out

    return attention


def _causal(function, exercise):
    """`causal_mask(T, S)` gives the table that a model looks up with the positions of its tokens."""

    def keep(b, h, q_pos, k_pos):
        first, last = int(q_pos.min()), int(max(q_pos.max(), k_pos.max()))
        table = function(last - first + 1, last + 1)  # (T, S)
        return table[q_pos - first, k_pos]

    return lambda: Mask(keep, "causal_mask(T, S)", (("causal_mask", None),))


PARTS = (
    Part("attention", ("attend", "batched_attention"), "block.attention", _attention),
    Part("splitting heads", ("split_heads",), "block.split_heads"),
    Part("merging heads", ("merge_heads",), "block.merge_heads"),
    Part("the causal mask", ("causal_mask",), "stack.causal", _causal),
    Part("turning queries and keys", ("turn_pairs",), "positions.rotate"),
)


# ── putting them in ──────────────────────────────────────────────────────────────────────────────


def put_in(model, folder=None):
    """Put every part whose exercise has passed into `tx`, for this process; returns what to tell, as lines.

    Args:
        model: a `Decoder` in float32, in which each part is tried.
        folder: of the exercise notebooks and their progress.
    """
    from .grading.progress import Progress

    folder = FOLDER if folder is None else Path(folder)
    progress = Progress(folder / ".progress.json").load()
    expected, good, missing, complaints = _logits(model), [], [], []
    for part in PARTS:
        passed = [name for name in part.exercises if progress.entry(name).get("state") == "passed"]
        if not passed:
            missing.append(f"{part.name} ({' or '.join(part.exercises)})")
            continue
        problem = _try(model, part, passed[0], folder, expected)
        if problem:
            complaints.append(f"  {passed[0]} stays out: {problem}. tx's own part is used.")
        else:
            good.append(f"{part.name} ({passed[0]})")
    verb = "is" if len(good) == 1 else "are"
    lines = [f"{len(good)} of {len(PARTS)} parts {verb} yours" + (f": {', '.join(good)}." if good else ".")]
    if missing:
        lines.append(f"  not passed yet: {', '.join(missing)}. See the notebooks in {folder.name}/.")
    return lines + complaints


def _try(model, part, exercise, folder, expected):
    """Put one part in; if the model's logits do not stay the same, take it out again and say why."""
    function = _function(exercise, folder)
    if function is None:
        return f"no notebook in {folder.name}/ defines it"
    calls = []

    def counted(*args, **kwargs):
        calls.append(True)
        with contextlib.redirect_stdout(io.StringIO()):  # a forgotten print is not part of the answer
            return function(*args, **kwargs)

    module, attribute = part.replaces.rsplit(".", 1)
    module = import_module(f"tx.{module}")
    before = getattr(module, attribute)
    setattr(module, attribute, part.adapt(counted, exercise))
    problem = _compare(model, expected)
    if not problem and not calls:
        problem = "this model has no use for it"
    if problem:
        setattr(module, attribute, before)
    return problem


def _compare(model, expected):
    """What is wrong with the model's logits now, "" if nothing is."""
    try:
        found = _logits(model)  # (T, V)
    except DoesNotFit as error:
        return str(error)
    except Exception as error:  # it is the learner's code: anything may come
        return f"inside the model it raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE:  # NaN is not, either
        return f"with it the logits of the model move by {difference:.2g}"
    return ""


@torch.no_grad()
def _logits(model):
    """Logits (T, V) of a fixed text, read in every way a chat reads: the start, more, token by token."""
    ids = torch.tensor([IDS]) % model.config.vocab_size  # (1, T)
    cache = Cache(model.config)
    pieces = ids.split([6, 4, 1, 1], dim=1)
    return torch.cat([model(piece, cache=cache)[0] for piece in pieces])  # (T, V)


def _function(name, folder):
    """What the learner's notebooks define under this name, or None.

    Of the notebook that holds the exercise only imports, definitions and assignments are run: nothing
    is graded, printed or trained again. The cell tagged with the exercise has the last word.
    """
    from .grading.notebook import Notebook, Unreadable, parsed

    for path in sorted(folder.glob("*.ipynb")):
        try:
            notebook = Notebook.read(path)
        except Unreadable:
            continue
        cell = notebook.cell_of(name)
        if cell is None:
            continue
        space = {"__name__": "__main__"}
        for source in [*(c.source for c in notebook.cells), cell.source]:
            tree = parsed(source)
            for statement in tree.body if tree else ():
                _run(statement, path.name, space)
        found = space.get(name)
        return found if callable(found) else None
    return None


WANTED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def _run(statement, where, space):
    """Run one statement of a notebook if it defines something; what fails is missing later."""
    if isinstance(statement, WANTED):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(ast.Module([statement], []), where, "exec"), space)
