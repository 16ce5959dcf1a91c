"""What all commands need at a terminal: a sign of life, notes, options for writing text."""

import argparse
import sys
import threading
import time
from contextlib import contextmanager


@contextmanager
def waiting(what):
    """Shows, on a terminal, what takes its time and for how long. Nothing of it goes to a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def show():
        while not done.wait(0.5):
            status(f"{what} … {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        status("")


def status(text):
    """One line on a terminal that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def note(text):
    """A sentence for a person; what a command makes goes to stdout, and this does not."""
    print(text, file=sys.stderr, flush=True)


def write(text):
    """A piece of an answer, at once."""
    print(text, end="", flush=True)


def readable(file):
    """The text of a file, of standard input for "-"."""
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8: byte {error.start} cannot be read.") from error


# ── options of the commands that write ───────────────────────────────────────────────────────────


def positive(text):
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return number


def add_writing(parser, *, model, max_tokens, temperature, top_p):
    """Options of `chat` and `generate`, with the defaults of each."""
    add = parser.add_argument
    add("--model", default=model, metavar="SOURCE",
        help="a packaged model, a folder with config.json and .safetensors, a .gguf file, or "
             "hub:owner/name@revision (default: %(default)s)")  # fmt: skip
    add("--max-tokens", type=positive, default=max_tokens, metavar="N",
        help="write at most so many tokens (default: %(default)s)")  # fmt: skip
    choice = parser.add_argument_group("how the next token is chosen")
    add = choice.add_argument
    add("--temperature", type=float, default=temperature, metavar="X",
        help="0 takes the likeliest token, 1 draws as the model says, more is bolder (default: %(default)s)")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens only")
    add("--top-p", type=float, default=top_p, metavar="P",
        help="draw among the likeliest tokens that together reach probability P (default: %(default)s)")
    add("--min-p", type=float, metavar="P", help="leave out tokens less than P times as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="X",
        help="make tokens that have been said less likely; 1 is none, 1.1 is common")
    add("--seed", type=int, help="draw the same again with the same seed")
    how = parser.add_argument_group("how it is computed")
    how.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
                     help="numbers of the weights; bfloat16 takes half the memory and, where the processor "
                          "knows it, half the time (default: %(default)s)")  # fmt: skip
    how.add_argument("--mine", action="store_true",
                     help="put every part whose exercise you have passed into the model")  # fmt: skip


def check_writing(args, beams=1):
    """Refuse settings before anything is loaded. Raises ValueError."""
    from ..checks import check_settings

    check_settings(args.max_tokens, args.temperature, args.top_k, args.top_p, args.min_p,
                   args.repetition_penalty, beams, None)  # fmt: skip
    if args.mine and args.dtype != "float32":
        raise ValueError("--mine compares numbers within 1e-4, so it needs --dtype float32.")


def choices(args):
    """The settings of `tx.generate` that say how a token is chosen."""
    import torch

    generator = None if args.seed is None else torch.Generator().manual_seed(args.seed)
    return dict(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p,
        repetition_penalty=args.repetition_penalty, generator=generator,
    )  # fmt: skip


def load_writer(args):
    """The model and the tokenizer of `--model`, with the learner's parts if asked for."""
    with waiting(f"loading {args.model}"):
        import torch

        from ..checkpoints import load
        from ..speed import fuse
        from ..tokenization import load_tokenizer

        tokenizer = load_tokenizer(args.model)
        model = load(args.model, dtype=getattr(torch, args.dtype))
    if not args.mine:
        return fuse(model), tokenizer
    from ..course import mine

    with waiting("trying your parts inside the model"):
        lines = mine.put_in(model)  # which are called as their exercises call them, so nothing is fused
    note("\n".join(lines))
    return model, tokenizer
