"""The book quotes `tx`: fill the cells tagged `quote` with the definitions they name.

A quoting cell carries the tag `quote` and the metadata `{"tx": {"quote": "masks.Mask"}}`; a list quotes
several definitions, "multihead.MultiHeadAttention.forward" one method. The cell says first where they are from,
`# tx/masks.py · causal, window`. A quote is the text of `tx` word for word, comments and annotations included,
without docstrings and without argument checks: calls of `_check_…` functions, and an `if` that holds nothing else.

    python -m tx.course.authoring.quoting            refresh every quoting cell of the book
    python -m tx.course.authoring.quoting --check    write nothing; list the cells that differ from tx
"""

import argparse
import ast
import itertools
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from tx.course.authoring import notebooks

ROOT = notebooks.ROOT
COLUMNS = 64


def quote(name):
    """The text of the definition `name`, like "masks.causal", as a page shows it.

    Raises LookupError if tx has no such module or definition.
    """
    file, path = _file(name)
    text = file.read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in path:
        found = [n for n in getattr(node, "body", []) if part in _names(n)]
        if not found:
            raise LookupError(f"{name!r}: {file.relative_to(ROOT).as_posix()} defines no {part!r} there")
        node = found[-1]
    lines = text.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    dropped = _left_out(node, lines)
    kept = [lines[n - 1] for n in range(first, node.end_lineno + 1) if n not in dropped]
    return textwrap.dedent("\n".join(kept))


def _file(name):
    """The module that a quoted name is of, as a path, and the parts of the name in it."""
    module, *path = name.split(".")
    while path and (ROOT / "tx" / module).is_dir():  # "course.fitting.fit"
        module = f"{module}/{path.pop(0)}"
    file = ROOT / "tx" / f"{module}.py"
    if not path or not file.is_file():
        raise LookupError(f"{name!r}: expected 'module.name' with a module tx/{module}.py")
    return file, path


def _names(node):
    """The names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return []


def _left_out(definition, lines):
    """Numbers of the lines of docstrings and argument checks in a definition, with blank ones after."""
    dropped: set[int] = set()
    for node in ast.walk(definition):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            docstring = statement is body[0] and isinstance(getattr(value, "value", None), str)
            if docstring or is_check(statement):
                end = statement.end_lineno
                while end < len(lines) and not lines[end].strip():
                    end += 1
                dropped.update(range(statement.lineno, end + 1))
    return dropped


def is_check(statement):
    """Whether a statement calls a `_check_…` function, or is an `if` with nothing but such calls."""
    if isinstance(statement, ast.If):  # `if not torch.compiler.is_compiling():`
        return not statement.orelse and all(map(is_check, statement.body))
    function = getattr(getattr(statement, "value", None), "func", None)
    called = getattr(function, "id", getattr(function, "attr", ""))
    return isinstance(statement, ast.Expr) and called.lstrip("_").startswith("check_")


def quoted(cell):
    """The names a cell quotes: a list, empty for a cell that quotes nothing."""
    if "quote" not in cell.metadata.get("tags", []):
        return []
    names = cell.metadata.get("tx", {}).get("quote", [])
    return [names] if isinstance(names, str) else list(names)


def source(names):
    """The source of a cell that quotes `names`: a line that says whose they are, then the definitions.

    Definitions of one module that follow each other share the line, `# tx/masks.py · causal, window`.
    """
    parts = []
    for file, same in itertools.groupby(names, key=lambda name: _file(name)[0]):
        group = list(same)
        heading = f"# {file.relative_to(ROOT).as_posix()} · {', '.join('.'.join(_file(n)[1]) for n in group)}"
        parts.append(heading + "\n" + "\n\n".join(map(quote, group)))
    return "\n\n".join(parts)


def too_long(names):
    """Lines of the quotes of `names` that are wider than a page shows: a list of (name, line)."""
    return [(n, line) for n in names for line in quote(n).splitlines() if len(line) > COLUMNS]


def drift(notebook):
    """Refresh the quoting cells of `notebook` in place. Returns (cell id, what was wrong) pairs."""
    changed = []
    for cell in notebook.cells:
        names = quoted(cell)
        if "quote" in cell.metadata.get("tags", []) and not names:
            changed.append((cell.id, 'is tagged quote without metadata "tx": {"quote": "module.name"}'))
            continue
        try:
            wanted = source(names)
        except LookupError as error:
            changed.append((cell.id, str(error)))
            continue
        if names and cell.source != wanted:
            cell.source = wanted
            changed.append((cell.id, f"differs from tx: {', '.join(names)}"))
    return changed


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tx.course.authoring.quoting", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; all of the course if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing; list the cells that differ")
    options = parser.parse_args(argv)
    bad = 0
    for path in options.files or notebooks.all_notebooks():
        notebook = notebooks.read(path)
        quotes = [name for cell in notebook.cells for name in quoted(cell)]
        changed = drift(notebook)
        if changed and not options.check:
            notebooks.write(path, notebook)
        for cell, what in changed:
            refreshed = what.startswith("differs") and not options.check
            bad += not refreshed
            print(f"{os.path.relpath(path)}  {cell}: {'refreshed: ' if refreshed else ''}{what}")
        if not changed and quotes:
            print(f"{os.path.relpath(path)}: {len(quotes)} quotes are as in tx")
        for name, line in [] if bad else too_long(quotes):
            print(f"    {name}: {len(line)} columns, a page shows {COLUMNS}: {line.strip()}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
