"""`:::{api}`: every public name of `tx` with its signature and docstring, grouped by chapter.

The docstrings of `tx` are Markdown in Google's layout, tables included. Sphinx's autodoc reads
reStructuredText, so they become MyST here: sections turn into definition lists, and Sphinx's own
directives for Python make signatures, anchors and entries of the index.
"""

import ast
import dataclasses
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from .chapters import listed

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):$")
ITEM = re.compile(r"(\w+(?:, \w+)*):(?: (.*))?$")
INLINE = re.compile(r"(?<=[.\]})]) (?=[a-z_]\w*: )")  # "config: of the model. room: number of tokens"
FOLDERS = {"tx.apps": "What is made of models", "tx.files": "Readers of other people's files"}


# ── docstrings ──────────────────────────────────────────────────────────────────────────────────


def headed(docstring, names):
    """The docstring with "Args:" above a paragraph that begins with one of `names` and a colon."""
    own = re.compile(rf"(?:{'|'.join(names) or '$'})(?:, \w+)*: ")
    made = []
    for paragraph in docstring.split("\n\n"):
        if own.match(paragraph):
            lines = [line if own.match(line) else f"    {line.strip()}" for line in paragraph.splitlines()]
            paragraph = "Args:\n" + indent("\n".join(lines), "    ")
        made.append(paragraph)
    return "\n\n".join(made)


def sections(docstring):
    """A docstring in Google's layout as [(title, text)]; the title "" is plain text."""
    found = [("", [])]
    for line in docstring.splitlines():
        title = SECTION.match(line)
        if title:
            found.append((title[1], []))
        elif line and not line.startswith(" ") and found[-1][0]:
            found.append(("", [line]))
        else:
            found[-1][1].append(line)
    return [(title, dedent("\n".join(lines)).strip("\n")) for title, lines in found if any(lines)]


def items(text):
    """The text of a section as [(name, text)]."""
    found = []
    for line in text.splitlines():
        pieces = INLINE.split(line) if ITEM.match(line) else [line]
        for piece in pieces:
            item = ITEM.match(piece)
            if item:
                found.append((item[1], [item[2] or ""]))
            elif found:
                found[-1][1].append(piece)
    return [(name, (first + "\n" + dedent("\n".join(rest))).strip()) for name, (first, *rest) in found]


def as_myst(docstring, names=()):
    """A docstring as MyST; `names` are the parameters that it may explain."""
    made = []
    for title, text in sections(headed(docstring, names)):
        if title:
            made.append(f"**{'Arguments' if title == 'Args' else title}**")
        if title in ("Args", "Attributes", "Raises"):
            for name, what in items(text):
                shown = ", ".join(f"`{part}`" for part in name.split(", "))
                made.append(f"{shown}\n: {indent(what, '  ').lstrip()}")
        else:
            made.append(text)
    return "\n\n".join(made)


# ── what is documented ──────────────────────────────────────────────────────────────────────────


def signature(thing):
    """The parameters of a function or class, without annotations: shapes stand in the docstring."""
    found = inspect.signature(thing)
    made = []
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        default = parameter.default
        if default is not parameter.empty and " at 0x" in repr(default):
            parameter = parameter.replace(default=...)
        made.append(parameter.replace(annotation=parameter.empty))
    return found.replace(parameters=made, return_annotation=found.empty)


def fields(cls):
    """The fields of a dataclass as its source has them, comments included."""
    source = dedent(inspect.getsource(cls))
    own = [node for node in ast.parse(source).body[0].body if isinstance(node, ast.AnnAssign)]
    return dedent("\n".join(source.splitlines()[own[0].lineno - 1 : own[-1].end_lineno]))


def members(cls):
    """The public methods and properties of a class that have docstrings of ours: (kind, name, function)."""
    for name, value in inspect.getmembers(cls):
        function = value.fget if isinstance(value, property) else inspect.unwrap(value)
        ours = (getattr(function, "__module__", None) or "").split(".")[0] == "tx"
        if ours and not name.startswith("_") and inspect.isroutine(function) and function.__doc__:
            yield "property" if isinstance(value, property) else "method", name, value


def described(kind, name, thing, module=None, fence="::::::"):
    """A function, class, method or property as MyST."""
    text = inspect.getdoc(thing) or ""
    call = None if kind == "property" else signature(thing)
    names = list(call.parameters) if call else []
    body = [as_myst(text, names)]
    if dataclasses.is_dataclass(thing) and not all(re.search(rf"\b{n}\b(, \w+)*: ", text) for n in names):
        body.append(f"```python\n{fields(thing)}\n```")
        call = None
    if kind == "class":
        body += [described(*member, fence=fence[1:]) for member in members(thing)]
    head = f"{fence}{{py:{kind}}} {name}{call or ''}" + (f"\n:module: {module}" if module else "")
    return "\n\n".join([head, *body, fence])


def public(module):
    """The names of the functions and classes that a module defines and explains."""
    return [name for name, value in vars(module).items()
            if callable(value) and not name.startswith("_") and value.__doc__
            and getattr(value, "__module__", None) == module.__name__]  # fmt: skip


def page(srcdir):
    """Every public name as MyST: those of `tx` by chapter, then those of its folders by module."""
    import tx

    made = []

    def add(home, module, names):
        for name in names:
            thing = getattr(module, name)
            made.append(described("class" if inspect.isclass(thing) else "function", name, thing, home))

    for chapter in listed(srcdir):
        names = [name for module in chapter["modules"] for name in tx._WHERE.get(module, ())]
        if names:
            made.append(f"## Chapter {chapter['number']} · {chapter['title']}")
            add("tx", tx, names)
    for folder, title in FOLDERS.items():
        made.append(f"## {title}")
        for found in pkgutil.iter_modules(import_module(folder).__path__, f"{folder}."):
            module = import_module(found.name)
            made += [f"### `{module.__name__}`", inspect.cleandoc(module.__doc__)]
            add(module.__name__, module, public(module))
    return "\n\n".join(made)


class Api(Directive):
    def run(self):
        import tx

        env = self.state.document.settings.env
        for path in [Path(env.srcdir, "chapters.toml"), *Path(tx.__file__).parent.rglob("*.py")]:
            env.note_dependency(str(path))
        self.state.document["support_smartquotes"] = False  # "auto" in a docstring is what one types
        place = nodes.container()  # stays empty: headings open sections of the page itself
        lines = StringList(page(env.srcdir).splitlines(), "tx")
        self.state.nested_parse(lines, 0, place, match_titles=True)
        return []


def setup(app):
    app.add_directive("api", Api)
