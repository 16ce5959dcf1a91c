"""`python -m tx bench`: what is how fast on this machine, in ratios."""

import os
import sys

from .terminal import positive, status, waiting

HELP = "measure attention, decoding and training on this machine"
EXAMPLES = """
Things that are compared take turns in one run, and a ratio is the median over the turns. The line
"again (A/A)" is the first thing measured against itself: smaller differences than that are chance.
`transformers` is compared where it is installed. Close other programs: two of them on two cores are slow.

examples:
  python -m tx bench attention                  the paths of attention(), T = 512 to 4096 (a minute)
  python -m tx bench decode                     SmolLM2, 128 tokens, fp32 and bf16 (six minutes)
  python -m tx bench decode --dtype bfloat16 --tokens 64
  python -m tx bench train                      a step of a GPT of 10.7 million parameters (a minute)
"""
DTYPES = ("float32", "bfloat16")
OWN: dict[str, dict] = {  # options of one measurement, with their defaults
    "attention": {"lengths": [512, 1024, 2048, 4096]},
    "decode": {"model": "smollm2-135m-instruct", "tokens": 128, "no_compile": False},
}


def add_arguments(parser):
    add = parser.add_argument
    add("what", choices=("attention", "decode", "train"), help="what to measure")
    add("--turns", type=positive, metavar="N", help="turns to take the median of (default: 9, 3 and 7)")
    add("--threads", type=positive, default=2, metavar="N", help="threads of PyTorch (default: %(default)s)")
    add("--dtype", choices=DTYPES, help="numbers (default: float32; decode: both in turn)")
    add("--lengths", type=positive, nargs="+", metavar="T",
        help="attention: numbers of tokens (default: 512 1024 2048 4096)")  # fmt: skip
    add("--model", metavar="SOURCE",
        help=f"decode: a decoder, packaged, a folder or a .gguf file (default: {OWN['decode']['model']})")
    add("--tokens", type=positive, metavar="N", help="decode: new tokens (default: 128)")
    add("--no-compile", action="store_true", default=None, help="decode: leave out the compiled blocks")


def run(args):
    for what, options in OWN.items():
        for name, default in options.items():
            if what == args.what and getattr(args, name) is None:
                setattr(args, name, default)
            elif what != args.what and getattr(args, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} does nothing here: it belongs to python -m tx bench {what}.")
    with waiting("loading PyTorch"):
        import torch

    most = max(2, os.cpu_count() or 1)
    if args.threads > most:
        raise ValueError(f"--threads {args.threads}: expected at most {most}, the processors of this machine.")
    torch.set_num_threads(args.threads)
    {"attention": _attention, "decode": _decode, "train": _train}[args.what](args)


def _attention(args):
    import torch

    from ..apps.bench import bench_attention

    dtype = args.dtype or "float32"
    print(f"causal attention, batch 1, 8 heads of 64, {dtype}, no gradients, {args.threads} threads")
    for T in args.lengths:
        with torch.no_grad():
            rows = bench_attention(T, dtype=getattr(torch, dtype), turns=args.turns or 9, progress=_progress)
        _table(f"T = {T}", ("ms", "time / flash"), [
            (row.name, f"{row.seconds * 1e3:.2f}", f"{row.ratio:.2f}") for row in rows])  # fmt: skip


def _decode(args):
    import torch

    from ..apps.bench import bench_decode, has_transformers

    print(f"greedy decoding of {args.model}, batch 1, {args.tokens} new tokens, {args.threads} threads")
    if not has_transformers():
        print("transformers is not installed, so it is not compared")
    for dtype in [args.dtype] if args.dtype else DTYPES:
        found = bench_decode(
            args.model, dtype=getattr(torch, dtype), n_new=args.tokens, turns=args.turns or 3,
            compiled=not args.no_compile, progress=_progress,
        )  # fmt: skip
        most = found.bandwidth / found.bytes
        title = (f"{dtype}: a token reads {found.bytes / 1e6:.0f} MB of weights; memory was read at "
                 f"{found.bandwidth / 1e9:.1f} GB/s, so the limit is {most:.0f} tokens/s")  # fmt: skip
        head = ("tokens/s", f"speed / {found.rows[0].name}", "same tokens", "as in fp32", "of the limit")
        _table(title, head, [
            (row.name, f"{args.tokens / row.seconds:.1f}", f"{1 / row.ratio:.2f}",
             f"{found.same[row.name]} of {args.tokens}" if row.name in found.same else "",
             f"{found.exact[row.name]:.0%}" if row.name in found.exact else "",
             f"{args.tokens / row.seconds / most:.0%}")
            for row in found.rows])  # fmt: skip
    print("\nsame tokens: before the first that differs from the first line's. as in fp32: share of the tokens\n"
          "that the same weights choose in float32 after the same text; in bfloat16 rounding decides the rest.")


def _train(args):
    from ..apps.bench import bench_train

    if args.dtype not in (None, "float32"):
        raise ValueError("train is measured in float32 only.")
    rows, n = bench_train(turns=args.turns or 7, progress=_progress)
    print(f"one step (forward, backward, AdamW) of a GPT of {n:,} parameters, 6 layers, d_model 384, T 256, "
          f"batch 4, float32, {args.threads} threads")  # fmt: skip
    _table("", ("ms", "time / PyTorch's"), [
        (row.name, f"{row.seconds * 1e3:.0f}", f"{row.ratio:.2f}") for row in rows])  # fmt: skip


def _progress(text):
    status(f"{text} …")


def _table(title, head, rows):
    """Names on the left, numbers on the right."""
    status("")
    widths = [max(len(cell) for cell in column) for column in zip(("", *head), *rows, strict=True)]
    print(f"\n{title}" if title else "")
    for name, *cells in [("", *head), *rows]:
        numbers = "   ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print(f"  {name.ljust(widths[0])}   {numbers}".rstrip())
    sys.stdout.flush()
