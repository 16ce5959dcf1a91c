"""Shape comments are checked while the code runs.

A comment at the end of a line that starts with a parenthesis is a shape, `# (B, H, T, d_k)`, and is a claim
about the tensor that the line makes, returns, receives or loops over:

    k, v = share(k), share(v)           # (B, H, S, d_k), (B, H, S, d_v)     one shape each
    q, k, v = qkv.chunk(3, dim=-1)      # (B, T, D)                          one shape for all
    hidden = mask.dense(shape)          # (B or 1, H or 1, T, S)             an axis that may be 1
    out = weights @ v                   # (..., T, d_k)  words follow after two spaces

An axis is a letter or name, a number, or a sum or product of them: `H*d_k`, `T+1`. Letters bind per cell or
per call of a function: one letter, one size, wherever it stands there. Also bound are: integer variables of
that name which the cell or function uses, the arguments whose docstring says `x (B, T, D)`, and tensors
that an earlier cell of the notebook gave a shape and this one reads. Each turn of a loop binds afresh.

Letters that are always equal cannot be told apart, so two letters of one function, or of the cells of one
notebook, have different sizes at least once. Where that cannot be, a comment says why: `# T = S: …`.

The first 200 calls of a function are checked, and more while two of its letters were always equal or one of its
lines has hardly run; then every fiftieth, for others would see what has been seen.

    python -m tx.course.authoring.shapes     the book, the solutions, and all of tx while its quick tests run
                                             (`make weights` first: some need a model)
    … book/03-masks.ipynb                    one notebook
"""

import argparse
import ast
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import io
import itertools
import linecache
import os
import re
import sys
import time
import tokenize
import weakref
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tx.course.authoring import notebooks, quoting

ROOT = notebooks.ROOT
LETTERS = {"B", "T", "S", "H", "G", "D", "E", "V", "L", "W", "N", "d_k", "d_v", "d_ff", "d_half"}
# Comments in tx.commands and tx.course.mine are reached by tests under another name, which start whole models: of
# those, a few that reach every comment.
ELSEWHERE = [f"test_commands.py::test_{name}" for name in (
    "beams_are_those_of_the_library", "embed_gives_a_pipe_one_line_of_json_a_text",
    "attend_with_padding_and_queries_that_see_nothing", "attend_without_a_mask_reads_every_key",
)]  # fmt: skip
APART = (  # the compiler stops at our checks, and lines are counted that would be ours
    "test_stack.py::test_a_token_meets_few_lines",
    "test_speed.py::test_blocks_are_compiled_once_for_one_token",
    "test_positions.py::test_beyond_a_learned_table_a_compiled_lookup_fails_too",
)
ENOUGH, THEN = 200, 50  # so many calls of a function are checked, then one of so many
EQUAL = re.compile(r"#\s*([A-Za-z_]\w*) = ([A-Za-z_]\w*): \S")


# ── the grammar ──────────────────────────────────────────────────────────────────────────────────


class Unreadable(ValueError):
    """A comment that looks like a shape and is none."""


@dataclass(frozen=True)
class Axis:
    text: str
    letters: tuple
    optional: bool = False  # "B or 1"

    def size(self, known):
        """The size, or None while a letter of it is unknown."""
        if self.text in known:
            return known[self.text]
        if not all(letter in known for letter in self.letters):
            return None
        return eval(_compiled(self.text), {"__builtins__": {}}, known)  # + - * // only: see _axis


@cache
def _compiled(text):
    return compile(text, "<shape>", "eval")


def parse(comment):
    """The shapes that a comment claims: a tuple of shapes, each a tuple of alternatives, each of axes.

    Returns None for a comment that claims nothing. An axis `...` stands first for any number of axes.
    Raises Unreadable.
    """
    text = comment.lstrip("#").strip()
    if not text.startswith("("):
        for inside in re.findall(r"\([^()]*\)", text):
            names = re.findall(r"[A-Za-z_]\w*", inside)
            if names and set(names) <= LETTERS and "," in inside:
                raise Unreadable(f"{comment}: a shape stands first in its comment, words follow")
        return None
    text = re.split(r"\s{2,}", text, maxsplit=1)[0]
    try:
        claims = _expression(f"[{text}]").elts
    except SyntaxError:
        raise Unreadable(f"{comment}: not a shape; words follow after two spaces") from None
    return tuple(tuple(_shape(s, comment) for s in _either(claim)) for claim in claims)


def _expression(text):
    return ast.parse(text, mode="eval").body


def _either(node):
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) else [node]


def _shape(node, comment):
    if getattr(node, "value", None) is ...:
        return (Axis("...", ()),)
    if not isinstance(node, ast.Tuple):
        raise Unreadable(f"{comment}: expected shapes like (T, D), (T,) or ()")
    return tuple(_axis(axis, comment, n) for n, axis in enumerate(node.elts))


def _axis(node, comment, n):
    if isinstance(node, ast.Constant) and node.value is ... and n == 0:
        return Axis("...", ())
    choices = _either(node)
    optional = len(choices) == 2 and getattr(choices[1], "value", None) == 1
    node = choices[0]
    allowed = (ast.Name, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Load)
    for part in ast.walk(node):
        if not isinstance(part, allowed) and not (
            isinstance(part, ast.Constant) and isinstance(part.value, int)
        ):
            raise Unreadable(f"{comment}: {ast.unparse(node)} is no axis")
    if len(choices) > 1 and not optional:
        raise Unreadable(f"{comment}: an axis may be `B or 1`, nothing else")
    letters = tuple(sorted({p.id for p in ast.walk(node) if isinstance(p, ast.Name)}))
    return Axis(ast.unparse(node), letters, optional)


# ── what a run is checked against ────────────────────────────────────────────────────────────────


@dataclass
class Comment:
    """One shape comment and what became of it."""

    where: str
    text: str
    shapes: tuple
    runs: int = 0
    checked: int = 0
    logged: set = field(default_factory=set)  # the sizes of which the log has an example
    failure: str = ""


class Letters(dict):
    """The letters of one cell or one call, with their sizes."""

    def __init__(self, recorder, number):
        super().__init__()
        self.recorder, self.number = recorder, number
        self.known: list = []  # what earlier cells said of the tensors that are read here
        self.events, self.kept = [], False
        self.remembers = False  # whether later cells are bound by the tensors seen here
        self.open = []  # (axis, size, comment) whose letters are not all known yet
        self.saved = {}

    def save(self, loop):
        self.log("save", loop)
        self.saved[loop] = (dict(self), list(self.open))

    def back(self, loop):
        """Forget what a turn of the loop has bound."""
        self.log("back", loop)
        known, self.open = self.saved[loop][0], list(self.saved[loop][1])
        self.clear()
        self.update(known)

    def log(self, *event):
        if self.recorder.log is not None:
            self.events.append(event)

    def bind(self, letter, size):
        if letter in self:
            return
        owner = self.recorder.owners[self.number][0]
        for other, value in self.items():
            if letter.isidentifier() and other.isidentifier():
                self.recorder.compared((owner, *sorted((letter, other))), size != value)
        self[letter] = size


class Unwatched:
    """Stands for the letters of a call that is one too many: nothing is bound."""

    def save(self, loop):
        pass

    back = save


@dataclass
class Recorder:
    """The shape comments of some sources, and what was seen when they ran."""

    comments: list = field(default_factory=list)
    owners: list = field(default_factory=list)  # (owner, names that its code uses, comments) of each scope
    unequal: dict = field(default_factory=dict)  # (owner, letter, letter) -> ever of different size
    alike: dict = field(default_factory=dict)  # owner -> the pairs of its letters that never were
    excused: set = field(default_factory=set)
    problems: list = field(default_factory=list)
    log: list | None = None  # of `Letters` with their events, for `replay`
    calls: Counter = field(default_factory=Counter)  # of each scope
    seen: dict = field(default_factory=dict)  # id of a tensor -> (reference, comment, shape, size)

    def install(self):
        """Make this the recorder that instrumented code reports to."""
        vars(builtins).update(__tx_scope__=self.scope, __tx_shape__=self.check)
        return self

    def scope(self, number, reads=None):
        """A new cell or call. `reads`: what a cell reads of earlier cells, whose letters hold here too."""
        self.calls[number] += 1
        if reads is None and self.calls[number] > ENOUGH and self.calls[number] % THEN and self.is_known(number):
            return Unwatched()
        letters = Letters(self, number)
        letters.remembers = reads is not None
        letters.known = [self.seen[id(x)][1:] for x in reads or ()
                         if self.seen.get(id(x), (object,))[0]() is x]
        self.carry_over(letters)
        return letters

    def is_known(self, number):
        """Whether all that stands in a scope has been seen, its letters with different sizes."""
        owner, _, comments = self.owners[number]
        return (self.log is None and all(self.comments[n].checked >= THEN for n in comments)
                and self.alike.get(owner, set()) <= self.excused)

    def compared(self, pair, differ):
        """Two letters have sizes now, and they differ or not."""
        differ = self.unequal[pair] = self.unequal.get(pair, False) or differ
        alike = self.alike.setdefault(pair[0], set())
        alike.discard(pair) if differ else alike.add(pair)

    def carry_over(self, letters):
        sizes: dict[str, set[int]] = {}
        for number, claim, size in letters.known:
            shapes = self.comments[number].shapes
            for shape in shapes[claim if len(shapes) > 1 else 0][:1]:
                if len(shape) == len(size):
                    for axis, n in zip(shape, size, strict=True):
                        if axis.text.isidentifier() and not axis.optional:
                            sizes.setdefault(axis.text, set()).add(n)
        for letter, found in sizes.items():
            if len(found) == 1:
                letters.bind(letter, *found)

    def check(self, letters, number, value):
        """Compare `value` with comment `number`. Returns `value`."""
        comment = self.comments[number]
        comment.runs += 1
        if isinstance(letters, Unwatched):
            return value
        tensors = list(_tensors(value))
        sizes = [tuple(getattr(t, "shape", t)) for t in tensors]
        if tensors and all(type(n) is int for size in sizes for n in size):  # others are symbols of a graph
            comment.checked += 1
            variables = self.variables(letters, comment, sys._getframe(1))
            letters.log("check", number, sizes, variables)
            if self.log is not None and tuple(sizes) not in comment.logged:
                comment.logged.add(tuple(sizes))
                self.log += [] if letters.kept else [letters]
                letters.kept = True
            self.compare(letters, comment, sizes, variables)
            for claim, tensor in enumerate(tensors if letters.remembers else ()):
                if not isinstance(tensor, tuple):
                    self.seen[id(tensor)] = (weakref.ref(tensor), number, claim, sizes[claim])
        return value

    def variables(self, letters, comment, frame):
        """Integer variables that are named like a letter of the comment and used by its cell or function."""
        used = self.owners[letters.number][1]
        names = {n for shape in itertools.chain(*comment.shapes) for axis in shape for n in axis.letters}
        found = {n: frame.f_locals.get(n, frame.f_globals.get(n)) for n in names & used}
        return {n: v for n, v in found.items() if type(v) is int}

    def compare(self, letters, comment, sizes, variables):
        for name, value in variables.items():
            if letters.get(name, value) != value:
                self.fail(comment, f"the variable {name} is {value}, the letter was {letters[name]}")
            letters.bind(name, value)
        shapes = comment.shapes if len(comment.shapes) > 1 else comment.shapes * len(sizes)
        if len(shapes) != len(sizes):
            return self.fail(comment, f"{len(shapes)} shapes for {len(sizes)} tensors: {_text(sizes)}")
        for alternatives, size in zip(shapes, sizes, strict=True):
            if not any(self.fits(letters, shape, size, comment) for shape in alternatives):
                known = {k: v for k, v in letters.items() if any(
                    k == axis.text or k in axis.letters for shape in alternatives for axis in shape)}
                with_known = " with " + ", ".join(f"{k} = {v}" for k, v in known.items()) if known else ""
                return self.fail(comment, f"the tensor is {size}{with_known}")
        for axis, size, claimed in list(letters.open):
            wanted = axis.size({k: v for k, v in letters.items() if k != axis.text})
            if wanted is not None:
                letters.open.remove((axis, size, claimed))
                if wanted != size:
                    self.fail(claimed, f"{axis.text} is {wanted}, the axis has {size}")

    def fits(self, letters, shape, size, comment):
        if shape and shape[0].text == "...":
            lead = len(size) - len(shape) + 1
            if lead < 0 or letters.get("...", size[:lead]) != size[:lead]:
                return False
            pairs = list(zip(shape[1:], size[lead:], strict=True))
            new = {"...": size[:lead]}
        elif len(shape) == len(size):
            pairs, new = list(zip(shape, size, strict=True)), {}
        else:
            return False
        open_ = []
        for axis, n in pairs:
            if axis.optional and n == 1:
                continue
            wanted = axis.size({**letters, **new})
            if wanted is None:
                new[axis.text] = n  # "H*d_k" is a name of its own until H and d_k are known
                if axis.text not in axis.letters:
                    open_.append((axis, n, comment))
            elif wanted != n:
                return False
        for letter, n in new.items():
            letters.bind(letter, n)
        letters.open += open_
        return True

    def fail(self, comment, message):
        comment.failure = comment.failure or message

    def replay(self, number, shapes):
        """Check the log again as if comment `number` claimed `shapes`: the comments that fail then."""
        other = Recorder([Comment(c.where, c.text, c.shapes) for c in self.comments], self.owners)
        other.comments[number].shapes = shapes
        for past in self.log or ():
            checked = any(event[:2] == ("check", number) for event in past.events)
            if not checked and not any(known[0] == number for known in past.known):
                continue
            letters = Letters(other, past.number)
            letters.known = past.known
            other.carry_over(letters)
            for what, *event in past.events:
                if what == "check":
                    other.compare(letters, other.comments[event[0]], *event[1:])
                else:
                    getattr(letters, what)(*event)
        return [c for c in other.comments if c.failure]

    def always_equal(self):
        """(owner, letter, letter) of the pairs that no execution told apart."""
        return sorted(p for p, ever in self.unequal.items() if not ever and p not in self.excused)


def _tensors(value):
    """The tensors, arrays and sizes in a value, looked for in lists, tuples and dicts."""
    import torch

    is_size = isinstance(value, tuple) and value and all(type(n) is int for n in value)
    if is_size or isinstance(value, torch.Size) or isinstance(getattr(value, "shape", None), tuple):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _text(sizes):
    return ", ".join(map(str, sizes))


# ── putting the checks into the source ───────────────────────────────────────────────────────────


def instrument(source, recorder, where, owner=None):
    """The syntax tree of `source` with a check at every shape comment.

    where: names a line, `where(12)`. owner: the notebook a cell belongs to; None for a module,
    whose functions answer each for themselves. Comments that cannot be read or that describe
    nothing are added to `recorder.problems`.
    """
    tree = ast.parse(source)
    comments = {}
    for line, text, alone in _comments(source):
        try:
            shapes = parse(text)
        except Unreadable as error:
            if not alone:
                recorder.problems.append(f"{where(line)}: {error}")
            continue
        if shapes and alone:
            recorder.problems.append(f"{where(line)}: {text}: a shape stands at the end of a line of code")
        elif shapes:
            comments[line] = Comment(where(line), text, shapes)
    return _Instrument(tree, source, comments, recorder, where, owner).run()


def _comments(source):
    """(line, text, whether it stands alone) of every comment."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            yield line, token.string, not lines[line - 1][:column].strip()


class _Instrument:
    def __init__(self, tree, source, comments, recorder, where, owner):
        self.tree, self.nodes, self.recorder = tree, list(ast.walk(tree)), recorder
        self.equal = [(line, found) for line, text, _ in _comments(source) if (found := EQUAL.match(text))]
        self.where, self.owner = where, owner
        self.anchors = {}  # id(node) -> comment number
        self.loops = 0
        for line, comment in comments.items():
            nodes = self.anchor(line)
            if nodes == "field":
                continue
            if not nodes:
                recorder.problems.append(f"{where(line)}: {comment.text}: describes no expression")
                continue
            recorder.comments.append(comment)
            self.anchors[id(nodes[-1])] = (len(recorder.comments) - 1, nodes)

    def anchor(self, line):
        """The nodes that a comment at the end of `line` describes."""
        ends = [n for n in self.nodes if getattr(n, "end_lineno", None) == line]
        simple: list[Any] = [n for n in ends if isinstance(n, ast.stmt) and not hasattr(n, "body")]
        if simple:
            last = max(simple, key=lambda n: n.end_col_offset)
            if isinstance(last, ast.AnnAssign) and last.value is None:
                return "field"
            called = last.value if isinstance(last, ast.Expr) else None
            if isinstance(called, ast.Call) and getattr(called.func, "attr", "") == "append":
                return called.args
            if isinstance(last, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
                return [last]
        for node in self.nodes:
            if isinstance(node, (ast.For, ast.With)):
                head = node.iter if isinstance(node, ast.For) else node.items[-1].context_expr
                if _bound(node) and head.end_lineno == line and node.body[0].lineno > line:
                    return [node]
        arguments = [n for n in ends if isinstance(n, ast.arg) and n.arg != "self"]
        if arguments:
            return arguments
        loads: list[Any] = [n for n in ends if isinstance(n, ast.expr)
                            and isinstance(getattr(n, "ctx", ast.Load()), ast.Load)]
        return loads and [min(loads, key=lambda n: (-n.end_col_offset, n.lineno, n.col_offset))]

    def run(self):
        self.tree.body = self.block(self.tree, "")
        return ast.fix_missing_locations(self.tree)

    # every statement that is put in
    def check(self, number, node, at):
        call = _expression(f"__tx_shape__(__tx_letters__, {number}, 0)")
        call.args[2] = node
        return ast.copy_location(call, at)

    def scope(self, node, name):
        """The statement that opens a scope for a module, cell or function."""
        inner = [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.arg))]
        names = {n.id if isinstance(n, ast.Name) else n.arg for n in inner}
        owner = self.owner or f"{self.where(0)} {name}".strip()
        inside = [self.anchors[id(n)][0] for n in ast.walk(node) if id(n) in self.anchors]
        self.recorder.owners.append((owner, names, inside))
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 10**9)
        for line, found in self.equal:
            if first <= line <= last:
                self.recorder.excused.add((owner, *sorted(found.groups())))
        reads = ""
        if self.owner and isinstance(node, ast.Module):
            own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            read = {n.id for n in _outside_functions(node) if isinstance(n, ast.Name)} - own
            reads = f", [globals().get(n) for n in {sorted(read)!r}]"
        return ast.parse(f"__tx_letters__ = __tx_scope__({len(self.recorder.owners) - 1}{reads})").body[0]

    def commented(self, node):
        return any(id(n) in self.anchors for n in ast.walk(node))

    def block(self, node, name):
        """The body of a module, cell or function, with its scope opened first."""
        arguments = [] if isinstance(node, ast.Module) else self.arguments(node)
        if not arguments and not isinstance(node, ast.Module) and not self.commented(node):
            return node.body
        first = sum(_is_docstring(s) or getattr(s, "module", "") == "__future__" for s in node.body[:2])
        guards = [n for n, s in enumerate(node.body) if _is_guard(s)]
        body = []
        for n, statement in enumerate([*node.body, None]):
            if n == first:
                body.append(ast.copy_location(self.scope(node, name), statement or node))
            if n == max([first, *(g + 1 for g in guards)]):
                body += arguments
            if statement:
                body += self.statement(statement, name)
        return body

    def arguments(self, function):
        """Checks of the arguments: those with a comment, and those whose shape the docstring says."""
        a, found = function.args, []
        args = a.posonlyargs + a.args + a.kwonlyargs
        for arg in args:
            if id(arg) in self.anchors:
                number, nodes = self.anchors[id(arg)]
                values = ast.Tuple([ast.Name(n.arg, ast.Load()) for n in nodes], ast.Load())
                found.append(ast.copy_location(ast.Expr(self.check(number, values, arg)), arg))
        text = ast.get_docstring(function) or ""
        for arg in args:
            claim = r"`?(?: =|:[^()\n]*)? (\([^()]*\)(?: or \([^()]*\))*)"  # `shape` = (B, T), x: ids (B, T)
            said = re.search(rf"(?<![\w.(]){arg.arg}{claim}", text)
            if not said or "broadcast" in said.group():
                continue
            try:
                shapes = parse("# " + said.group(1).replace("…", "..."))
            except Unreadable:
                continue
            where = f"{self.where(function.lineno)}, docstring"
            self.recorder.comments.append(Comment(where, f"{arg.arg} {said.group(1)}", shapes))
            number = len(self.recorder.comments) - 1
            value = self.check(number, ast.Name(arg.arg, ast.Load()), function.body[0])
            found.append(ast.copy_location(ast.Expr(value), function.body[0]))
        return found

    def statement(self, node, name):
        """The statements that take the place of one."""
        after, in_loop = [], isinstance(node, (ast.For, ast.While)) and self.commented(node)
        number, _ = self.anchors.get(id(node), (None, None))
        if number is not None and isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            after = [ast.copy_location(ast.Expr(self.check(number, _loaded(target), node)), node)]
        self.expressions(node)
        if number is not None and isinstance(node, (ast.Expr, ast.Return)):
            node.value = self.check(number, node.value, node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = self.block(node, f"{name}.{node.name}".lstrip("."))
            return [node]
        inner = f"{name}.{node.name}".lstrip(".") if isinstance(node, ast.ClassDef) else name
        for part in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, part, None), list):
                setattr(node, part, [s for x in getattr(node, part) for s in self.statement(x, inner)])
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            handler.body = [s for x in handler.body for s in self.statement(x, inner)]
        if number is not None and isinstance(node, (ast.For, ast.With)):
            value = self.check(number, _loaded(_bound(node)), node)
            node.body.insert(0, ast.copy_location(ast.Expr(value), node))
        if in_loop:
            self.loops += 1
            save, back = (ast.copy_location(ast.parse(f"__tx_letters__.{do}({self.loops})").body[0], node)
                          for do in ("save", "back"))
            node.body.insert(0, back)
            return [save, node, back]
        return [node, *after]

    def expressions(self, statement):
        """Wrap the commented expressions inside one statement, not those of statements inside it."""
        for parent in _expressions(statement):
            for key, value in ast.iter_fields(parent):
                if id(value) in self.anchors and isinstance(value, ast.expr):
                    setattr(parent, key, self.check(self.anchors[id(value)][0], value, value))
                elif isinstance(value, list):
                    value[:] = [self.check(self.anchors[id(v)][0], v, v)
                                if isinstance(v, ast.expr) and id(v) in self.anchors else v for v in value]


def _expressions(node):
    """A statement and the expressions in it, children first."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _expressions(child)
    yield node


def _outside_functions(node):
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _outside_functions(child)


def _is_guard(node):
    """An argument check, or an `if` that raises: what it refuses need not have the shape of an argument."""
    refuses = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)
    return refuses or quoting.is_check(node)


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def _bound(node):
    """What a `for` or the last item of a `with` binds, or None."""
    return node.target if isinstance(node, ast.For) else node.items[-1].optional_vars


def _loaded(target):
    """An assignment's target as an expression that reads it."""
    return _expression(ast.unparse(target))


# ── running ──────────────────────────────────────────────────────────────────────────────────────


class _Finder(importlib.abc.MetaPathFinder):
    """Imports the modules of `tx` with their checks, whose results go to one recorder."""

    def __init__(self, recorder, change=lambda name, source: source):
        self.recorder, self.change = recorder, change

    def find_spec(self, fullname, path, target=None):
        if fullname.split(".")[0] != "tx" or fullname == __name__:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, finder):
        super().__init__(name, path)
        self.finder = finder

    def get_code(self, name):                # no byte-code cache: it would keep the checks
        source = self.finder.change(name, Path(self.path).read_text(encoding="utf-8"))
        place = Path(self.path).relative_to(ROOT).as_posix()
        tree = instrument(source, self.finder.recorder, lambda line: f"{place}:{line}" if line else place)
        return compile(tree, self.path, "exec", dont_inherit=True)


@contextlib.contextmanager
def watched(recorder, change=lambda name, source: source):
    """Within this block `tx` is imported anew, with checks that report to `recorder`.

    `change(module, source)` may plant a mistake before a module is compiled.
    """
    def ours():
        return [m for m in sys.modules if m.split(".")[0] == "tx" and m != __name__]

    kept, finder = {name: sys.modules.pop(name) for name in ours()}, _Finder(recorder, change)
    recorder.install()
    sys.meta_path.insert(0, finder)
    try:
        yield recorder
    finally:
        sys.meta_path.remove(finder)
        for name in ours():
            del sys.modules[name]
        sys.modules.update(kept)


def run_notebook(path, recorder, progress=lambda text: None):
    """Run the code cells of a notebook in order, in this process. Returns the errors of its cells."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    name = Path(path).name
    cells = [c for c in notebooks.read(path).cells if c.cell_type == "code"]
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    shell = InteractiveShell.instance()
    shell.user_ns["__name__"] = "__main__"
    here, errors = os.getcwd(), []
    os.chdir(Path(path).resolve().parent)
    try:
        for number, cell in enumerate(cells, 1):
            progress(f"cell {number} of {len(cells)}")
            tags, file = cell.metadata.get("tags", []), f"{name}[{cell.id}]"
            source = shell.transform_cell(cell.source)
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            try:
                tree = instrument(source, recorder, lambda line, c=cell: f"{name} {c.id}:{line}", name)
                with capture_output():
                    exec(compile(tree, file, "exec"), shell.user_ns)
            except Exception as error:
                if "raises-exception" not in tags:
                    errors.append(f"{name} {cell.id}: {type(error).__name__}: {error}")
                    break
    finally:
        os.chdir(here)
        os.environ.pop("MPLBACKEND")
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return errors


def run_tests(recorder):
    """Run the quick tests of every module of `tx` that has shape comments. Returns the errors."""
    import pytest

    here = Path(__file__).resolve()
    modules = [m for m in sorted((ROOT / "tx").rglob("*.py")) if m != here and "  # (" in m.read_text("utf-8")]
    for module in modules:  # also those that no test imports: their comments never run
        importlib.import_module(".".join(module.relative_to(ROOT).with_suffix("").parts))
    files = [str(ROOT / "tests" / f"test_{m.stem}.py") for m in modules]
    files = [f for f in files if Path(f).exists()] + [str(ROOT / "tests" / test) for test in ELSEWHERE]
    options = ["-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "not slow and not browser",
               *(f"--deselect=tests/{test}" for test in APART)]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = pytest.main([*options, *files])
    return [] if code == 0 else ["the tests of tx fail: " + out.getvalue()[-2000:]]


def job(path):
    """Check one notebook, or the tests of tx for path None, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    recorder, start = Recorder(), time.perf_counter()
    with watched(recorder):
        errors = run_notebook(path, recorder) if path else run_tests(recorder)
    recorder.seen.clear()
    return recorder, errors, time.perf_counter() - start


def merge(recorders):
    """One recorder that knows what all of them saw: `tx` runs in the tests and in every notebook."""
    merged = Recorder()
    comments: dict[tuple[str, str], Comment] = {}
    for recorder in recorders:
        for c in recorder.comments:
            same = comments.setdefault((c.where, c.text), Comment(c.where, c.text, c.shapes))
            same.runs, same.checked = same.runs + c.runs, same.checked + c.checked
            same.failure = same.failure or c.failure
        for pair, ever in recorder.unequal.items():
            merged.unequal[pair] = merged.unequal.get(pair, False) or ever
        merged.excused |= recorder.excused
        merged.problems += [p for p in recorder.problems if p not in merged.problems]
    merged.comments = list(comments.values())
    return merged


def findings(recorder, complete=True):
    """What is wrong, as sentences. `complete`: tx has been tested, so that what never ran is wrong too."""
    found = list(recorder.problems)
    for c in recorder.comments:
        ours = complete or not c.where.startswith("tx/")
        ours = ours and not c.where.endswith("docstring")
        if c.failure:
            found.append(f"{c.where}: {c.text}: {c.failure}")
        elif ours and not c.runs:
            found.append(f"{c.where}: {c.text}: never ran")
        elif ours and not c.checked:
            found.append(f"{c.where}: {c.text}: the line makes no tensor")
    for owner, a, b in recorder.always_equal():
        if complete or not owner.startswith("tx/"):
            found.append(f"{owner}: {a} and {b} have the same size in every execution: a swap goes unseen")
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tx.course.authoring.shapes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; everything if none is named")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes at a time (2)")
    options = parser.parse_args(argv)
    jobs = options.files or [None, *filter(notebooks.keeps_outputs, notebooks.all_notebooks())]
    recorders, errors = [], []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(job, path): path for path in jobs}
        for done in as_completed(running):
            recorder, wrong, seconds = done.result()
            recorders.append(recorder)
            errors += wrong
            name = os.path.relpath(running[done]) if running[done] else "the tests of tx"
            here = [c for c in recorder.comments if running[done] is None or not c.where.startswith("tx/")]
            print(f"{name:<40}{seconds:6.1f} s  {sum(c.checked > 0 for c in here):4} of {len(here)} "
                  f"shapes checked, {sum(c.checked for c in recorder.comments)} times", flush=True)
    merged = merge(recorders)
    wrong = errors + findings(merged, complete=None in jobs)
    print("\n".join(wrong))
    print(f"{len(merged.comments)} shape comments, {sum(c.checked > 0 for c in merged.comments)} checked, "
          f"{len(wrong)} to look at")
    return 1 if wrong else 0


if __name__ == "__main__":
    from tx.course.authoring import shapes  # the module that the checks report to, not this copy of it

    sys.exit(shapes.main())
