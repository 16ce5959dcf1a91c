"""`python -m tx params`: parameters, memory and cache of a model, without its weights."""

from .terminal import waiting

HELP = "count a model's parameters, memory and cache bytes"
EXAMPLES = """
Nothing but shapes is made, so a model of 405 billion parameters is counted in seconds, in no memory.
A key/value cache takes 2 · layers · key/value heads · head width · bytes for each token.

examples:
  python -m tx params llama-3-8b
  python -m tx params smollm2-135m-instruct
  python -m tx params ./my-model                a folder with config.json and .safetensors, or a .gguf file
  python -m tx params --list                    the published shapes that are known by name
"""
TOKENS = 8192  # of the example


def add_arguments(parser):
    parser.add_argument("name", nargs="?", metavar="NAME|FOLDER", help="a published shape or a checkpoint")
    parser.add_argument("--list", action="store_true", help="all published shapes with their totals")


def run(args):
    if args.list == (args.name is not None):
        raise ValueError("expected a name or --list: python -m tx params llama-3-8b")
    with waiting("counting"):
        from .. import counting

        if args.list:
            totals = {name: counting.count(counting.published(name)) for name in counting.PUBLISHED}
        else:
            model = _outline(args.name)
    if args.list:
        for name, total in totals.items():
            print(f"{name:<18}{total:>19,}")
    else:
        _show(args.name, model)


def _outline(name):
    """A published shape, or a checkpoint, on the meta device."""
    from ..checkpoints import outline
    from ..counting import PUBLISHED, published
    from ..families import CheckpointError

    if name in PUBLISHED:
        return published(name)
    try:
        return outline(name)
    except CheckpointError as error:
        if any(problem.startswith("source ") for problem in error.problems):
            raise ValueError(
                f"{name!r} is no published shape (see --list), no packaged model, folder or .gguf file."
            ) from None
        raise


def _show(name, model):
    import torch

    from ..counting import by_part, cache_bytes_per_token, count

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
    print(f"  {f'{TOKENS:,} tokens':<14}{size(each * TOKENS):>19}")
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
