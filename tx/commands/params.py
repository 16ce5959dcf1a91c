"""`python -m tx params`: parameters, memory and cache of a model, without its weights."""

from difflib import get_close_matches

from .terminal import note, waiting

HELP = "count a model's parameters, memory and cache bytes"
EXAMPLES = """
Nothing but shapes is made, so a model of 405 billion parameters is counted in seconds, in no memory.
A folder needs no weights: a config.json is enough.
A key/value cache takes 2 · layers · key/value heads · head width · bytes for each token.

examples:
  python -m tx params llama-3-8b
  python -m tx params smollm2-135m-instruct
  python -m tx params ./my-model                a folder with a config.json, or a .gguf file
  python -m tx params --list                    the published shapes that are known by name
"""
TOKENS = 8192  # of the example


def add_arguments(parser):
    parser.add_argument("name", nargs="?", metavar="NAME|FOLDER", help="a published shape or a checkpoint")
    parser.add_argument("--list", action="store_true", help="all published shapes with their totals")


def run(args):
    if args.list and args.name is not None:
        raise ValueError(f"--list takes no name, {args.name!r} is given: leave out one of them.")
    if not args.list and args.name is None:
        raise ValueError("expected a name or --list: python -m tx params llama-3-8b")
    with waiting("counting"):
        from ..apps import counting

        if args.list:
            totals = {name: counting.count(counting.published(name)) for name in counting.PUBLISHED}
        else:
            model, notes = _outline(args.name)
    if args.list:
        for name, total in totals.items():
            print(f"{name:<18}{total:>19,}")
    else:
        _show(args.name, model)
        for sentence in notes:
            note(f"({sentence})")


def _outline(name):
    """A published shape, or a checkpoint, on the meta device; and what to know of it."""
    from ..apps.counting import PUBLISHED, published
    from ..checkpoints import outline
    from ..files.errors import CheckpointError
    from ..files.packaged import PACKAGED

    if name in PUBLISHED:
        return published(name), []
    try:
        return outline(name)
    except CheckpointError as error:
        if "does not exist" not in error.problems[0]:
            raise
        known = [*PUBLISHED, *PACKAGED]
        near = [other for other in known if other.startswith(name.lower())]
        near = near or get_close_matches(name.lower(), known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "--list shows the shapes."
        raise ValueError(
            f"{name!r} is no published shape, packaged model, folder or .gguf file: {hint}"
        ) from None


def _show(name, model):
    import torch

    from ..apps.counting import by_part, cache_bytes_per_token, count

    total, config = count(model), model.config
    print(f"{name}: {total:,} parameters\n")
    for part, number in by_part(model).items():
        print(f"  {part:<14}{number:>19,}  {number / total:7.1%}")
    print("\nmemory of the weights")
    for kind, n_bytes in (("float32", 4), ("bfloat16", 2), ("int8", 1), ("4 bits", 0.5)):
        print(f"  {kind:<14}{size(total * n_bytes):>19}")
    if not config.causal:
        print("\nno cache: an encoder reads everything at once")
        return
    each = cache_bytes_per_token(config, torch.bfloat16)
    print(f"\ncache in bfloat16: 2 · {config.n_layers} layers · {config.n_kv_heads} key/value heads · "
          f"{config.d_head} · 2 bytes")  # fmt: skip
    print(f"  {'a token':<14}{size(each):>19}")
    table = config.positions in ("learned", "sinusoidal")  # which ends, so that there is no further token
    tokens = min(TOKENS, config.max_positions) if table else TOKENS
    print(f"  {f'{tokens:,} tokens':<14}{size(each * tokens):>19}")
    if config.encoder is not None:
        print("  and as much for every token of the source, for cross-attention")
    windows = config.layer_types.count("window")
    if windows:
        print(f"  {windows} of {config.n_layers} layers see {config.window:,} tokens and need keep no more")


def size(n_bytes):
    """Bytes as a person reads them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            return f"{n_bytes:,.0f} {unit}" if n_bytes % 1 == 0 and n_bytes < 1024 else f"{n_bytes:,.2f} {unit}"
        n_bytes /= 1024
