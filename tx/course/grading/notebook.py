"""Reading a learner's notebook: its code cells, their tags, and how to tell two attempts apart."""

import ast
import dataclasses
import hashlib
import json
import re
from pathlib import Path

PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture")
NOT_PYTHON = re.compile(r"^\s*(?:[\w, ]+=\s*)?[%!]|^\s*\?|\?\??\s*$")


TEXT_NOW = "is text now: make it code again (key Y)"  # key M in Jupyter's command mode


class Unreadable(Exception):
    """A notebook that is none. The message says what to do, `fault` what is wrong."""

    def __init__(self, fault, advice=""):
        super().__init__(f"{fault}: {advice}" if advice else fault)
        self.fault = fault


class Missing(Unreadable):
    """There is no such file."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One code cell: its number in the notebook, its source, and the exercise it is tagged with.

    `came` is what `as_it_came` gives for the cell of a debug exercise in the notebook that is handed out.
    """

    number: int
    source: str
    exercise: str | None
    setup: bool = False
    came: str | None = None

    @property
    def untouched(self):
        """Whether it is as it was handed out: a stub, or something to debug."""
        if self.came:
            return as_it_came(self.source) == self.came
        return "NotImplementedError" in self.source and not begun(self.source)


class Notebook:
    """The code cells of a notebook. Reading never changes the file."""

    def __init__(self, path, cells, texts=None):
        self.path, self.cells = Path(path), cells
        self.texts = texts or {}  # exercise, or "setup" -> the number of its cell, which is no code any more
        self.key = hashlib.sha1(repr(cells).encode("utf-8", "replace")).hexdigest()

    @classmethod
    def read(cls, path):
        """The notebook in a file. Raises Unreadable."""
        path = Path(path)
        number = path.stem[:2]
        back = f"`make reset EX={number}` brings a fresh one back" if number.isdigit() else ""
        kept = f"{back}, yours is kept" if back else ""
        try:
            text = path.read_bytes().decode("utf-8-sig")
            found = json.loads(text)["cells"]
            cells = [_cell(i, cell) for i, cell in enumerate(found, 1) if cell["cell_type"] == "code"]
            others = [(i, cell) for i, cell in enumerate(found, 1) if cell["cell_type"] != "code"]
            texts = {_exercise(cell) or ("setup" if _is_setup(cell) else None): i for i, cell in others}
        except FileNotFoundError:
            raise Missing(f"{path.name} is not in {path.parent.name}", back) from None
        except OSError as error:
            raise Unreadable(f"{path.name} cannot be read ({error.strerror})", kept) from None
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{path.name} is no valid notebook ({error})", kept) from None
        except (KeyError, TypeError, AttributeError):
            raise Unreadable(f"{path.name} is JSON, but no notebook", kept) from None
        return cls(path, cells, texts)

    def cell_of(self, exercise):
        """The cell tagged with an exercise, or None. Of several, the last that is Python."""
        cells = self.cells_of(exercise)
        good = [cell for cell in cells if parsed(cell.source) is not None]
        return (good or cells or [None])[-1]

    def cells_of(self, exercise):
        """All cells tagged with an exercise."""
        return [cell for cell in self.cells if cell.exercise == exercise]

    def lacks(self, name):
        """Why a name that a cell uses may be undefined, where it is the notebook that is not whole, or ""."""
        if name in self.texts:
            return f"cell {self.texts[name]}, which defines it, {TEXT_NOW}"
        if any(cell.setup for cell in self.cells):
            return ""
        if "setup" in self.texts:
            return f"cell {self.texts['setup']}, the setup, {TEXT_NOW}"
        return "the setup cell, the first one of the notebook, is missing: its imports define such names"

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
    return Cell(number, without_magics(source), _exercise(cell), _is_setup(cell), _tagged(cell, "came"))


def _exercise(cell):
    """The exercise that a cell is tagged with, or None."""
    return _tagged(cell, "exercise")


def _tagged(cell, key):
    tagged = cell.get("metadata", {}).get("tx", {})
    value = tagged.get(key) if isinstance(tagged, dict) else None
    return value if isinstance(value, str) else None


def _is_setup(cell):
    tags = cell.get("metadata", {}).get("tags")
    return isinstance(tags, list) and "setup" in tags


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


def as_it_came(source):
    """A short hash of a source, but for its spaces and line breaks; the same in every version of Python."""
    return hashlib.sha1(" ".join(source.split()).encode("utf-8", "replace")).hexdigest()[:12]


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
