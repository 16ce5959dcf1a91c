"""Chat templates: programs from model files, rendered with bounded work and output (chapter 10).

A checkpoint says in a Jinja template how a conversation becomes one text. A template is a program from a
stranger, so it runs in Jinja's immutable sandbox, which keeps it from Python, and here its work is counted,
which keeps it from hanging or filling the memory: before it runs, every place where work or text could
grow is rewritten to pass through one of the counting filters below.
"""

import json
import re
from datetime import datetime
from itertools import islice

from jinja2 import Template, TemplateError, nodes, pass_context, pass_environment
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LONGEST = 2**17  # characters of a template
STEPS = 2**20  # parts of a template evaluated, items looked at
CHARS = 2**24  # characters made, intermediate results included
METHODS = {
    str: {
        "strip", "lstrip", "rstrip", "split", "splitlines", "startswith", "endswith", "upper", "lower",
        "title", "capitalize", "replace", "find", "count", "join", "removeprefix", "removesuffix",
        "isdigit", "isalpha", "isnumeric", "isupper", "islower", "isspace",
    },
    dict: {"get", "items", "keys", "values"},
    list: {"index", "count"},
    tuple: {"index", "count"},
}  # fmt: skip
FILTERS = (
    "length", "count", "default", "d", "upper", "lower", "title", "capitalize", "list", "string", "int",
    "float", "first", "last", "map", "select", "reject", "selectattr", "rejectattr", "items", "dictsort",
    "sort", "unique", "reverse", "abs", "min", "max", "safe", "e", "escape",
)  # fmt: skip


class TooMuch(TemplateError):
    """A template that works or writes without end."""


def render(template, messages, **variables):
    """The conversation as one text.

    Args:
        template: source in Jinja, as checkpoints carry it.
        messages: dictionaries with "role" and "content".
        variables: what else the template may ask for, such as `add_generation_prompt`.

    Raises:
        ValueError: the template is damaged, refuses these messages, uses what the sandbox forbids, or
            takes more than the bounds above.
    """
    if len(template) > LONGEST:
        raise ValueError(f"the chat template has {len(template):,} characters; {LONGEST:,} are the limit.")
    try:
        environment = Bounded()
        tree = _Counted(environment).visit(environment.parse(template))
        program = Template.from_code(environment, environment.compile(tree), environment.globals)
        return program.render(messages=messages, **variables)
    except _Refused as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from None
    except RecursionError:
        raise ValueError("the chat template is nested too deeply.") from None
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
            SyntaxError, MemoryError) as error:  # fmt: skip
        raise ValueError(f"the chat template cannot be rendered: {error}") from error


class _Refused(Exception):
    """Raised by a template itself."""


class Bounded(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget of steps and characters, and only what chat templates need."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"],
                         optimized=False)  # fmt: skip
        self.steps, self.chars, self.size = STEPS, CHARS, 0
        known = {name: self._counted(self.filters[name]) for name in FILTERS}
        ours = {
            "tojson": _to_json, "replace": _replace, "join": _join, "trim": _trim, "concat": "".join,
            "show": str,
        }  # fmt: skip
        counting = {"weigh": _weigh, "look": _look, "take": _take}
        self.filters = known | {name: self._counted(f) for name, f in ours.items()} | counting
        names = ("range", "namespace", "dict")
        self.globals = {name: self.globals[name] for name in names} | {
            "raise_exception": _refuse, "strftime_now": _now,
        }  # fmt: skip

    def charge(self, steps=0, chars=0):
        """Take from the budget."""
        self.steps -= steps
        self.chars -= chars
        if self.steps < 0 or self.chars < 0:
            what = f"{STEPS:,} steps" if self.steps < 0 else f"{CHARS:,} characters"
            raise TooMuch(f"it takes more than {what}")

    def look(self, *values, made=False):
        """Charge for values, down to the last item; for their characters where they have just been made."""
        stack = list(values)
        while stack:
            value = stack.pop()
            n = len(value) if isinstance(value, str) else 0
            n = value.bit_length() if isinstance(value, int) else n
            self.charge(1 + n // 250, n if made else 0)
            if isinstance(value, dict):
                stack += [*value.keys(), *value.values()]
            elif isinstance(value, (list, tuple)):
                stack += value

    def concat(self, pieces):
        """What blocks and macros wrote."""
        pieces = list(pieces)
        self.charge(len(pieces), sum(map(len, pieces)))
        return "".join(pieces)

    def is_safe_attribute(self, obj, attr, value):
        """As the sandbox says, and of text, lists and dictionaries only methods of bounded cost."""
        for kind, names in METHODS.items():
            if isinstance(obj, kind) and hasattr(kind, attr):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context, f, *args, **kwargs):
        """Call what a template calls, after charging for it."""
        owner, name = getattr(f, "__self__", None), getattr(f, "__name__", "")
        self.charge(self.size if isinstance(f, Macro) else 1)
        self.look(owner, args, kwargs)
        if isinstance(owner, str):
            if name == "replace":
                f = lambda *rest: _replace(self, owner, *rest)
            elif name == "join":
                f = lambda items: _join(self, items, owner)
            elif name in ("strip", "lstrip", "rstrip") and args:
                self.charge(len(owner) * len(args[0]) // 250)
        return super().call(context, f, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
        """Arithmetic, with the size of the result known before there is one."""
        if operator == "%" and isinstance(left, str):
            raise TooMuch("it formats text with %, which is not supported")
        if operator == "**" and not (abs(left) <= 2**32 and abs(right) <= 64):
            raise TooMuch(f"it raises {left} to the power of {right}")
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int):
                    self.charge(len(text) * max(times, 0) // 250, len(text) * max(times, 0))
        self.look(left, right)
        result = super().call_binop(context, operator, left, right)
        self.look(result, made=True)
        return result

    def wrap_str_format(self, value):
        """None: `str.format` is a method like any other here, and not among those allowed."""
        return None

    def _counted(self, f):
        """A filter that charges for what it gets and for what it makes."""
        wants = getattr(f, "jinja_pass_arg", None)  # what Jinja hands to the filter before the value

        @pass_context
        def counted(context, value, *args, **kwargs):
            given = {"context": context, "eval_context": context.eval_ctx, "environment": self}
            self.look(value, args, kwargs)
            result = f(*([given[wants.name]] if wants else []), value, *args, **kwargs)
            self.look(result, made=True)
            return result

        return counted


class _Counted(NodeTransformer):
    """Rewrites a template so that everything that could grow is counted."""

    def __init__(self, environment):
        self.environment = environment

    def visit_Template(self, node):
        self.environment.size = sum(1 for _ in node.find_all(nodes.Node))
        return self.generic_visit(node)

    def visit_For(self, node):
        if node.recursive:
            raise TooMuch("it has a recursive loop, which is not supported")
        size = 1 + sum(1 for part in node.body for _ in part.find_all(nodes.Node))
        node = self.generic_visit(node)
        node.iter = _through("take", node.iter, nodes.Const(size))
        return node

    def visit_Output(self, node):
        node = self.generic_visit(node)
        node.nodes = [x if isinstance(x, nodes.TemplateData) else _through("show", x) for x in node.nodes]
        return node

    def visit_Concat(self, node):
        node = self.generic_visit(node)
        texts = [_through("show", x) for x in node.nodes]
        return _through("concat", nodes.List(texts, lineno=node.lineno))

    def visit_Compare(self, node):
        node = self.generic_visit(node)
        node.expr = _through("look", node.expr)
        for operand in node.ops:
            operand.expr = _through("look", operand.expr)
        return node

    def visit_Test(self, node):
        node = self.generic_visit(node)
        if node.name not in ("defined", "undefined"):
            node.node = _through("look", node.node)
        return node

    def visit_Getitem(self, node):
        node = self.generic_visit(node)
        return _through("weigh", node) if isinstance(node.arg, nodes.Slice) else node

    def _made(self, node):
        node = self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _through("weigh", node)

    visit_Call = visit_List = visit_Tuple = visit_Dict = _made


def _through(name, node, *args):
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


# ── filters and functions ────────────────────────────────────────────────────────────────────────


@pass_context
def _weigh(context, value):
    context.environment.look(value, made=True)
    return value


@pass_context
def _look(context, value):
    context.environment.look(value)
    return value


@pass_context
def _take(context, items, size):
    """The items of a loop whose body has so many parts, all paid for."""
    environment = context.environment
    items = list(islice(iter(items), environment.steps // size + 1))
    environment.charge(len(items) * size)
    return items


@pass_environment
def _trim(environment, text, chars=None):
    text = str(text)
    environment.charge(len(text) * len(chars or "") // 250)
    return text.strip(chars)


@pass_environment
def _replace(environment, text, old, new, count=-1):
    text, old, new = str(text), str(old), str(new)
    times = text.count(old)
    times = times if count is None or count < 0 else min(times, count)
    environment.charge(times // 100, len(text) + times * max(0, len(new) - len(old)))
    return text.replace(old, new, times)


@pass_environment
def _join(environment, items, separator="", attribute=None):
    items = list(items)
    if attribute is not None:
        items = [environment.getitem(item, attribute) for item in items]
    environment.look(items)
    texts = list(map(str, items))
    environment.charge(len(texts), sum(map(len, texts)) + len(separator) * len(texts))
    return str(separator).join(texts)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """JSON as the reference writes it; Jinja's own escapes what would be special in HTML."""
    if indent is not None and not 0 <= indent <= 8:
        raise TooMuch(f"it indents JSON by {indent}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message):
    raise _Refused(message)


def _now(form):
    if not re.fullmatch(r"(%[A-Za-z%]|[^%]){0,64}", form):
        raise TooMuch(f"it asks for a date as {form[:40]!r}")
    return datetime.now().strftime(form)
