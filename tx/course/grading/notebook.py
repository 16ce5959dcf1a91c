"""Reading a learner's notebook: its code cells, their tags, and how to tell two attempts apart."""

import ast
import dataclasses
import hashlib
import json
import re
from pathlib import Path

PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture")
NOT_PYTHON = re.compile(r"^\s*(?:[\w, ]+=\s*)?[%!]|^\s*\?|\?\??\s*$")


class Unreadable(Exception):
    """A notebook that is missing or is no notebook; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One code cell: its number in the notebook, its source, and the exercise it is tagged with."""

    number: int
    source: str
    exercise: str | None


class Notebook:
    """The code cells of a notebook. Reading never changes the file."""

    def __init__(self, path, cells, texts=None):
        self.path, self.cells = Path(path), cells
        self.texts = texts or {}  # exercise -> the number of its cell, which is no code any more
        self.key = hashlib.sha1(repr(cells).encode("utf-8", "replace")).hexdigest()

    @classmethod
    def read(cls, path):
        """The notebook in a file. Raises Unreadable."""
        path = Path(path)
        number = path.stem[:2]
        back = f"`make reset EX={number}` brings a fresh one back" if number.isdigit() else ""
        try:
            text = path.read_bytes().decode("utf-8-sig")
            found = json.loads(text)["cells"]
            cells = [_cell(i, cell) for i, cell in enumerate(found, 1) if cell["cell_type"] == "code"]
            texts = {_tagged(cell): i for i, cell in enumerate(found, 1) if cell["cell_type"] != "code"}
        except OSError:
            raise Unreadable(f"{path.name} is not in {path.parent.name}: {back}") from None
        except (ValueError, RecursionError) as error:
            raise Unreadable(
                f"{path.name} is no valid notebook ({error}): {back}, yours is kept"
            ) from None
        except (KeyError, TypeError, AttributeError):
            raise Unreadable(f"{path.name} is JSON, but no notebook: {back}, yours is kept") from None
        return cls(path, cells, texts)

    def cell_of(self, exercise):
        """The cell tagged with an exercise, or None. Of several, the last that is Python."""
        cells = [cell for cell in self.cells if cell.exercise == exercise]
        good = [cell for cell in cells if parsed(cell.source) is not None]
        return (good or cells or [None])[-1]

    def definitions(self, cells=None):
        """The names of the top-level functions and classes in some cells."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names: dict[str, None] = {}  # in order
        for cell in self.cells if cells is None else cells:
            tree = parsed(cell.source)
            names |= {n.name: None for n in (tree.body if tree else ()) if isinstance(n, kinds)}
        return list(names)


def _cell(number, cell):
    source = cell["source"]
    source = source if isinstance(source, str) else "".join(source)
    return Cell(number, without_magics(source), _tagged(cell))


def _tagged(cell):
    """The exercise that a cell is tagged with, or None."""
    tagged = cell.get("metadata", {}).get("tx", {})
    exercise = tagged.get("exercise") if isinstance(tagged, dict) else None
    return exercise if isinstance(exercise, str) else None


def without_magics(source):
    """Source as plain Python: `%` and `!` lines become empty statements on the same line."""
    if parsed(source) is not None:  # a line that starts with % may continue an expression
        return source
    lines = source.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in PYTHON_MAGICS:
        return ""
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass" if NOT_PYTHON.search(line) else line
        for line in lines
    )


def parsed(source):
    """The syntax tree of some source, or None."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def begun(source):
    """Whether there is work in a stub's cell: more than imports, shapes read off, and a `raise`."""
    tree = parsed(without_magics(source))
    if tree is None:
        return True
    frame = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Raise, ast.Expr)
    lines = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not isinstance(n, frame)]
    return any("shape" not in ast.dump(getattr(line, "value", line)) for line in lines)


def fingerprint(source):
    """A short hash that is the same for two attempts that differ in layout or comments alone."""
    tree = parsed(without_magics(source))
    if tree is None:
        text = " ".join(source.split())
    else:
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and len(body) > 1 and _is_text(body[0]):
                del body[0]
        text = ast.dump(tree)
    return hashlib.sha1(text.encode("utf-8", "replace")).hexdigest()[:12]


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
