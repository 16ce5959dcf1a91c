"""`python -m tx embed`: texts as vectors, and search by meaning."""

import json
import re
import shutil
import sys

from .terminal import check_text, note, positive, readable, status, waiting

HELP = "turn texts into vectors, or search a file by meaning"
EXAMPLES = """
At a terminal you see the cosines between the texts; a pipe gets one line of JSON for each text.
Passages of a file are its paragraphs, or its lines if no line is empty.

examples:
  python -m tx embed "A cat sleeps." "A kitten naps." "Stocks fell."
  python -m tx embed "A cat sleeps." | python -c "import json; print(json.loads(input())['embedding'][:3])"
  python -m tx embed --search "how do masks work" README.md
  ls | python -m tx embed --search "tests" - --top 3
"""


def add_arguments(parser):
    parser.add_argument("texts", nargs="*", metavar="TEXT", help='texts, or with --search one file ("-": stdin)')
    parser.add_argument("--search", metavar="QUERY", help="find the passages of a file nearest to this text")
    parser.add_argument("--top", type=positive, metavar="N", help="with --search so many passages (default: 5)")
    parser.add_argument("--model", default="all-minilm-l6-v2", metavar="SOURCE",
                        help="an encoder whose vectors are pooled by the mean (default: %(default)s)")  # fmt: skip


def run(args):
    if args.search is not None and len(args.texts) != 1:
        raise ValueError(f"--search reads one FILE (or -), {len(args.texts)} are given.")
    if args.search is None and args.top is not None:
        raise ValueError(f"--top {args.top} does nothing without --search QUERY.")
    if not args.texts:
        raise ValueError('there is no text: python -m tx embed "A cat sleeps." "A kitten naps."')
    named = {f"TEXT {number}": text for number, text in enumerate(args.texts, 1)}
    for name, text in (named if args.search is None else {"--search": args.search}).items():
        check_text(text, name)
        if not text.strip():
            raise ValueError(f"{name} is empty: there is no meaning in it.")
    found = [] if args.search is None else passages(readable(args.texts[0]))
    if args.search is not None and not found:
        raise ValueError(f"{args.texts[0]} has no text to search.")
    with waiting(f"loading {args.model}"):
        from ..apps.embedding import Embedder

        embed = Embedder(args.model)
    texts = args.texts if args.search is None else [args.search, *(text for _, text in found)]
    long = sum(len(embed.tokenizer.encode(embed.prompt + text)) > embed.longest for text in texts)
    if long:
        note(f"({long} of {len(texts)} texts are longer than {embed.longest} tokens; their rest is not read.)")
    vectors = embed(texts, on_batch=lambda done, all: status(f"reading … {done} of {all} texts"))  # (N, D)
    status("")
    if args.search is not None:
        _show_search(vectors, found, args.top or 5)
    elif sys.stdout.isatty():
        _show_cosines(texts, vectors)
    else:
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            print(json.dumps({"text": text, "embedding": [round(x, 7) for x in vector]}, ensure_ascii=False))


def passages(text):
    """[(number of its first line, passage), …]: paragraphs, or lines if no line is empty."""
    lines = text.splitlines()
    whole = any(not line.strip() for line in lines[:-1])
    found: list[tuple[int, str] | None] = []  # None where a paragraph ends
    for number, line in enumerate(lines, 1):
        if not line.strip():
            found.append(None)
        elif whole and found and found[-1]:
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
        else:
            found.append((number, line.strip()))
    return [passage for passage in found if passage]


def _show_search(vectors, found, top):
    from ..apps.embedding import search

    width = shutil.get_terminal_size().columns - 20 if sys.stdout.isatty() else None
    for cosine, number in search(vectors[0], vectors[1:], top):
        line, text = found[number]
        print(f"{cosine:6.3f}  line {line:<4}  {_short(text, width)}")


def _show_cosines(texts, vectors):
    print(f"{len(texts)} vectors of {vectors.shape[1]} numbers, of unit length; their cosines:\n")
    width = max(16, shutil.get_terminal_size().columns - 8 * len(texts) - 6)
    for number, (text, row) in enumerate(zip(texts, (vectors @ vectors.T).tolist(), strict=True), 1):
        print(f"{number:3}  " + "".join(f"{cosine:7.3f} " for cosine in row) + f" {_short(text, width)}")


def _short(text, width):
    text = re.sub(r"\s+", " ", text)
    return text if width is None or len(text) <= width else text[: max(1, width - 1)] + "…"
