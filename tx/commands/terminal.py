"""What all commands need at a terminal: a sign of life, notes, options for writing text."""

import argparse
import os
import sys
import threading
import time
from contextlib import contextmanager

MOST_TEXT = 2**24  # characters that are read at once; a device or a pipe may have no end


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
        tell(f"\r\x1b[K{text}")


def note(text):
    """A sentence for a person; what a command makes goes to stdout, and this does not."""
    status("")
    tell(text + "\n")


def tell(text):
    """A piece of text to stderr, at once. Where nobody can read it, the work goes on."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        to_nowhere(sys.stderr)


def to_nowhere(stream):
    """What was written to a stream that takes nothing, and what will be, is dropped, also when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(text):
    """A piece of an answer, at once."""
    print(text, end="", flush=True)


def readable(file):
    """The text of a file, of standard input for "-"."""
    try:
        if file == "-":
            return listen("read")
        with open(file, encoding="utf-8") as opened:
            return characters(opened.read, file)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from error


def check_listens():
    """Refuse a standard input that is closed."""
    if sys.stdin is None:
        raise ValueError("standard input is closed: there is nothing to read.")


def listen(method):
    """What a method of standard input gives, "read" or "readline"."""
    check_listens()
    try:
        return characters(getattr(sys.stdin, method), "standard input")
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror or error}.") from error


def characters(read, name):
    """The text that `read(at most so many characters)` gives, without a byte order mark in front.

    Bytes that are no UTF-8 fail to decode in a file; from a pipe or the command line they may come as half
    characters, which no tokenizer takes.
    """
    try:
        text = read(MOST_TEXT + 1)
        text.encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else len(text[: error.start].encode())
        raise ValueError(f"{name} is no text in UTF-8: byte {start} cannot be read.") from error
    if len(text) > MOST_TEXT:
        raise ValueError(f"{name} has more than {MOST_TEXT:,} characters, which are the limit.")
    return text.removeprefix("\ufeff")


def check_text(text, name):
    """Refuse a text of the command line that has bytes which are no UTF-8."""
    characters(lambda most: text, name)


# ── options of the commands that write ───────────────────────────────────────────────────────────


def positive(text):
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return int(text)


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
    add("--top-p", type=float, metavar="P",
        help="draw among the likeliest tokens that together reach probability P"
             + (f" (default: {top_p})" if top_p else ""))  # fmt: skip
    parser.set_defaults(usual_top_p=top_p)  # apart, so that what was asked for is known
    add("--min-p", type=float, metavar="P", help="leave out tokens less than P times as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="X",
        help="make tokens that have been said less likely; 1 is none, 1.1 is common")
    add("--seed", type=int, metavar="N", help="draw the same again with the same seed")
    how = parser.add_argument_group("how it is computed")
    how.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
                     help="numbers of the weights; bfloat16 takes half the memory and, where the processor "
                          "knows it, half the time (default: %(default)s)")  # fmt: skip
    how.add_argument("--mine", action="store_true",
                     help="put every part whose exercise you have passed into the model")  # fmt: skip


def check_writing(args, beams=1):
    """Refuse settings before anything is loaded. Raises ValueError."""
    from ..sampling import check_settings

    check_settings(args.max_tokens, args.temperature, args.top_k, args.top_p, args.min_p,
                   args.repetition_penalty, beams, None)  # fmt: skip
    if args.seed is not None and not 0 <= args.seed < 2**64:
        raise ValueError(f"--seed {args.seed}: expected a whole number from 0 to {2**64 - 1}.")
    for name in ("top_k", "top_p", "min_p"):
        if args.temperature == 0 and (value := getattr(args, name)) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {value} does nothing at --temperature 0, which takes "
                             "the likeliest token: draw with --temperature 0.8, for instance.")  # fmt: skip
    if args.mine and args.dtype != "float32":
        raise ValueError("--mine compares numbers within 1e-4, so it needs --dtype float32.")


def choices(args):
    """The settings of `tx.generate` that say how a token is chosen."""
    import torch

    generator = None if args.seed is None else torch.Generator().manual_seed(args.seed)
    top_p = args.usual_top_p if args.top_p is None else args.top_p
    return dict(
        temperature=args.temperature, top_k=args.top_k, top_p=top_p, min_p=args.min_p,
        repetition_penalty=args.repetition_penalty, generator=generator,
    )  # fmt: skip


def load_writer(args):
    """The model and the tokenizer of `--model`, with the learner's parts if asked for."""
    with waiting(f"loading {args.model}"):
        import torch

        from ..checkpoints import load
        from ..speed import fuse
        from ..tokenization import load_tokenizer

        model = load(args.model, dtype=getattr(torch, args.dtype))
        _check_writes(model, args.model)
        tokenizer = load_tokenizer(args.model)
    if not args.mine:
        return fuse(model), tokenizer
    from ..course import mine

    with waiting("trying your parts inside the model"):
        lines = mine.put_in(model)  # which are called as their exercises call them, so nothing is fused
    note("\n".join(lines))
    return model, tokenizer


def _check_writes(model, source):
    if getattr(model, "front", None) is not None:
        raise ValueError(f"{source} hears recordings, it reads no text: python -m tx transcribe FILE.wav")
    if model.config.encoder is None and not model.config.causal:
        raise ValueError(f"{source} is an encoder, it writes no text: python -m tx embed TEXT")
