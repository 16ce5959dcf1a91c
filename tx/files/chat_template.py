"""Chat templates: programs from model files, rendered with bounded work and output (chapter 10).

A checkpoint says in a Jinja template how a conversation becomes one text. A template is a program from a
stranger, so it runs in Jinja's immutable sandbox, which keeps it from Python, and here its work is counted,
which keeps it from hanging or filling the memory: before it runs, every place where work or text could
grow is rewritten to pass through one of the counting filters below.
"""

import json
import re
from collections.abc import ItemsView, KeysView, ValuesView
from datetime import datetime
from itertools import islice

from jinja2 import Template, TemplateError, nodes, pass_context, pass_environment
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_round, make_attrgetter
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from .errors import shown, told

LONGEST = 2**17  # characters of a template
STEPS = 2**20  # parts of a template evaluated, items looked at
CHARS = 2**24  # characters made, intermediate results included
PADS = ("center", "ljust", "rjust", "zfill", "expandtabs")
METHODS = {  # of built-in types, what a template may use; `translate` and `encode` are not counted, so not there
    str: {
        "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition", "startswith",
        "endswith", "upper", "lower", "title", "capitalize", "swapcase", "casefold", "replace", "find", "rfind",
        "index", "rindex", "count", "join", "removeprefix", "removesuffix", "isdigit", "isalpha", "isalnum",
        "isnumeric", "isdecimal", "isascii", "isidentifier", "isprintable", "istitle", "isupper", "islower",
        "isspace", "format", "format_map", *PADS,
    },
    dict: {"get", "items", "keys", "values", "copy"},
    list: {"index", "count", "copy"},
    tuple: {"index", "count"},
    range: {"index", "count", "start", "stop", "step"},
    int: {"bit_length", "real", "imag", "numerator", "denominator", "is_integer"},
    float: {"real", "imag", "is_integer", "hex"},
}  # fmt: skip
EACH = {  # filters that look at every character of a text, as at the items of a list
    "list", "sort", "unique", "batch", "slice", "map", "select", "reject", "selectattr", "rejectattr", "groupby",
    "sum", "min", "max", "join", "reverse", "title",
}  # fmt: skip
UNBOUNDED = ("urlize", "wordwrap")  # filters that are not there
# Filters that make more than they get: how often their arguments may occur in it, a number n as n characters.
OFTEN = {
    "indent": lambda text: str(text).count("\n") + 1, "center": lambda text: 1, "batch": lambda items: 1,
    "slice": lambda items: 1, "truncate": lambda text: 1,
}  # fmt: skip
# In a format, a width or precision of four digits or more, or one that is a value itself.
WIDE = {
    "%": re.compile(r"%(\([^)]*\))?[-#0 +]*(\*|\d{4}|\d*\.(\*|\d{4}))"),
    "{": re.compile(r"\{[^{}]*(\d{4}|\{)"),
}


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
        raise ValueError(f"the chat template refuses these messages: {told(str(error))}") from None
    except RecursionError:
        raise ValueError("the chat template is nested too deeply.") from None
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
            SyntaxError, MemoryError, RuntimeError, NameError) as error:  # fmt: skip
        raise ValueError(f"the chat template cannot be rendered: {told(str(error))}") from error


class _Refused(Exception):
    """Raised by a template itself."""


class Bounded(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget of steps and characters, and only what chat templates need."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation],
                         optimized=False)  # fmt: skip
        self.steps, self.chars = STEPS, CHARS
        self.size, self.sizes = 0, {}  # parts of the template, and of every macro by name
        ours = {
            "tojson": _to_json, "replace": _replace, "join": _join, "trim": _trim, "sum": _sum, "format": _format,
            "round": _round, "concat": "".join, "show": str,
        }  # fmt: skip
        known = {name: f for name, f in self.filters.items() if name not in UNBOUNDED} | ours
        counting = {"weigh": _weigh, "look": _look, "take": _take}
        self.filters = {name: self._counted(f, OFTEN.get(name), name in EACH) for name, f in known.items()}
        self.filters |= counting
        self.tests = {name: self._counted(f) for name, f in self.tests.items()}
        self.globals = {  # functions, as the methods of a class would take any object
            "range": self.globals["range"], "dict": _Dict(), "raise_exception": _refuse, "strftime_now": _now,
            "namespace": lambda *args, **kwargs: Namespace(*args, **kwargs),
            "cycler": lambda *items: Cycler(*items), "joiner": lambda between=", ": Joiner(between),
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
            if isinstance(value, (range, KeysView, ValuesView, ItemsView)):
                self.charge(len(value))
            elif isinstance(value, dict):
                stack += [*value.keys(), *value.values()]
            elif isinstance(value, (list, tuple)):
                stack += value

    def expect(self, times, *values):
        """Charge for something that may hold all these values so many times, before it is made."""
        chars, stack = 0, list(values)
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                stack += [*value.keys(), *value.values()]
            elif isinstance(value, (list, tuple)):
                stack += value
            else:
                chars += abs(value) if isinstance(value, int) else len(str(value))
        self.charge(chars=times * chars)

    def concat(self, pieces):
        """What blocks and macros wrote."""
        pieces = list(pieces)
        self.charge(len(pieces), sum(map(len, pieces)))
        return "".join(pieces)

    def is_safe_attribute(self, obj, attr, value):
        """As the sandbox says, and of Python's own types only methods of bounded cost."""
        for kind, names in METHODS.items():
            if isinstance(obj, kind) and hasattr(kind, attr):
                return attr in names
        return type(obj).__module__ != "builtins" and super().is_safe_attribute(obj, attr, value)

    def call(self, context, f, *args, **kwargs):
        """Call what a template calls, after charging for it."""
        owner, name = getattr(f, "__self__", None), getattr(f, "__name__", "")
        self.charge(self.size if isinstance(f, (LoopContext, BlockReference)) else 1)
        if isinstance(f, Macro):
            self.charge(self.sizes.get(f.name, self.size))
        self.look(owner, args, kwargs)
        if isinstance(f, LoopContext) and args:  # a loop that calls itself
            args = (_take(context, args[0], self.size), *args[1:])
        if isinstance(owner, str):
            if name == "replace":
                f = lambda *rest: _replace(self, owner, *rest)
            elif name == "join":
                f = lambda items: _join(self, items, owner)
            elif name in ("strip", "lstrip", "rstrip") and args:
                self.charge(len(owner) * len(args[0]) // 250)
            elif name in PADS:
                self.expect(owner.count("\t") + 1, args, kwargs)
        return super().call(context, f, *args, **kwargs)

    def getitem(self, obj, argument):
        """An item, after charging for its key: a tuple is hashed anew every time."""
        self.look(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context, operator, left, right):
        """Arithmetic, with the size of the result known before there is one."""
        if operator == "%" and isinstance(left, str):
            self.expect_format("%", left, right)
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
        """`format` and `format_map` of a text, in the sandbox, after charging for what they may make."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args, **kwargs):
            self.expect_format("{", value.__self__, args, kwargs)
            return wrapped(*args, **kwargs)

        return bounded

    def expect_format(self, sign, text, *values):
        """Charge for a text in whose fields, which begin with a sign, every value may stand, escaped."""
        if WIDE[sign].search(text.replace(2 * sign, "")):
            raise TooMuch(f"it formats text with {text[:40]!r}, whose width has no bound")
        self.expect(10 * text.count(sign), values, 1000)

    def _counted(self, f, often=None, each=False):
        """A filter or a test that charges for what it gets and for what it makes."""
        wants = getattr(f, "jinja_pass_arg", None)  # what Jinja hands to the filter before the value

        @pass_context
        def counted(context, value, *args, **kwargs):
            given = {"context": context, "eval_context": context.eval_ctx, "environment": self}
            self.look(value, args, kwargs)
            if each and isinstance(value, str):
                self.charge(len(value))
            if often is not None:
                self.expect(often(value), args, kwargs)
            result = f(*([given[wants.name]] if wants else []), value, *args, **kwargs)
            self.look(result, made=True)
            return result

        return counted


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what a model writes, which counts in training only."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """`dict` for templates: the class itself would give them methods that change any dictionary."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, keys, value=None):
        return dict.fromkeys(keys, value)


class _Counted(NodeTransformer):
    """Rewrites a template so that everything that could grow is counted."""

    def __init__(self, environment):
        self.environment = environment

    def visit_Template(self, node):
        size = lambda part: sum(1 for _ in part.find_all(nodes.Node))
        self.environment.size = size(node)
        for macro in node.find_all(nodes.Macro):
            self.environment.sizes[macro.name] = max(size(macro), self.environment.sizes.get(macro.name, 0))
        return self.generic_visit(node)

    def visit_For(self, node):
        tested = [] if node.test is None else [node.test]
        size = 1 + sum(1 for part in (*node.body, *tested) for _ in part.find_all(nodes.Node))
        node = self.generic_visit(node)
        node.iter = _through("take", node.iter, nodes.Const(size))
        return node

    def visit_Output(self, node):
        node = self.generic_visit(node)
        node.nodes = [x if isinstance(x, nodes.TemplateData) else _through("show", x) for x in node.nodes]
        return node

    def visit_CallBlock(self, node):
        node = self.generic_visit(node)
        node.call = node.call.node  # stays a call, whose text is counted where its pieces are joined
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
        items = list(map(make_attrgetter(environment, attribute), items))
    environment.look(items)
    texts = list(map(str, items))
    environment.charge(len(texts), sum(map(len, texts)) + len(separator) * len(texts))
    return str(separator).join(texts)


@pass_environment
def _sum(environment, items, attribute=None, start=0):
    items = list(items)
    if attribute is not None:
        items = list(map(make_attrgetter(environment, attribute), items))
    if isinstance(start, (list, tuple)):  # every sum of lists is a new one
        size = len(start) + sum(len(item) for item in items)
        environment.charge(len(items) * size // 100)
    environment.look(items)
    return sum(items, start)


def _round(value, precision=0, method="common"):
    if not isinstance(precision, int) or abs(precision) > 300:  # a power of ten, which a float holds
        raise TooMuch(f"it rounds to {shown(precision)} digits")
    return do_round(value, precision, method)


@pass_environment
def _format(environment, text, *args, **kwargs):
    environment.expect_format("%", str(text), args, kwargs)
    return str(text) % (kwargs or args)


@pass_environment
def _to_json(environment, value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """JSON as the reference writes it; Jinja's own escapes what would be special in HTML."""
    items, depth, stack = 0, 0, [(value, 1)]
    while stack:
        inner, level = stack.pop()
        items, depth = items + 1, max(depth, level)
        inner = [*inner.keys(), *inner.values()] if isinstance(inner, dict) else inner
        stack += [(item, level + 1) for item in inner] if isinstance(inner, (list, tuple)) else []
    environment.expect(items * depth, 0 if indent is None else indent)
    environment.expect(items, separators or ())
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message):
    raise _Refused(message)


def _now(form):
    if not re.fullmatch(r"(%[A-Za-z%]|[^%]){0,64}", form):
        raise TooMuch(f"it asks for a date as {form[:40]!r}")
    return datetime.now().strftime(form)
