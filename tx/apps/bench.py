"""How fast, measured: ratios of things that take turns in one run (the figures of chapters 11 and 12).

A machine is never as fast twice. So what is compared runs in turns, forwards and backwards, a ratio is the
median of the ratios within a turn, and the first thing runs twice in every turn: the ratio of its two times,
called A/A, says what chance does on this machine at this moment. Differences smaller than that are none.
"""

import copy
import importlib.util
import shutil
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..cache import Cache
from ..checkpoints import build, load, named_as_in_files
from ..decoder import Decoder
from ..masks import causal
from ..sampling import generate
from ..scaled_dot_product import attention
from ..speed import compile_blocks, fuse
from ..tokenization import load_tokenizer
from ..training import loss

AGAIN = "again (A/A)"
LONGEST = 8192  # tokens of attention: the formula holds scores of 2 GB there, a few times over
PROMPT = "The history of the bicycle begins with a wooden machine that had no pedals."


@dataclass(frozen=True)
class Row:
    """One thing that was measured.

    seconds: median of its times. ratio: its time over that of the first thing, median over the turns.
    """

    name: str
    seconds: float
    ratio: float


def compare(things, turns, progress=lambda text: None):
    """Time functions in turns: {name: function} -> [Row], the first thing again at the end.

    Everything runs once before, unmeasured. turns: at least 1.
    """
    _check_counts(turns=turns)
    things = dict(things) | {AGAIN: next(iter(things.values()))}
    times: dict[str, list[float]] = {name: [] for name in things}
    for turn in range(-1, turns):  # turn -1 warms up
        for name in list(things) if turn % 2 else reversed(things):
            progress(f"{name}, turn {max(turn, 0) + 1} of {turns}")
            start = time.perf_counter()
            things[name]()
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    first = next(iter(times.values()))
    return [
        Row(name, statistics.median(own), statistics.median(a / b for a, b in zip(own, first, strict=True)))
        for name, own in times.items()
    ]


def _check_counts(**counts):
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}: expected a whole number from 1.")


# ── attention ────────────────────────────────────────────────────────────────────────────────────


def bench_attention(T, *, n_heads=8, d_head=64, dtype=torch.float32, turns=9, progress=lambda text: None):
    """Causal attention (1, n_heads, T, d_head): [Row] of the flash kernel called by hand, `attention` and
    the formula. T: at most `LONGEST`."""
    _check_counts(T=T, n_heads=n_heads, d_head=d_head, turns=turns)
    if T > LONGEST:
        raise ValueError(f"T = {T}: expected at most {LONGEST}, where the formula's scores take gigabytes.")
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n_heads, T, d_head, generator=g).to(dtype) for _ in range(3))  # (1, H, T, d_k)

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (1, H, T, d_k)

    return compare({
        "SDPA flash by hand": flash,
        "attention(…, causal())": lambda: attention(q, k, v, causal()),
        "attention(…, how='explicit')": lambda: attention(q, k, v, causal(), how="explicit"),
    }, turns, progress)  # fmt: skip


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Decoding:
    """What `bench_decode` found for one dtype.

    same: {name: number of tokens before the first that differs from the first row's}.
    exact: {name: share of the tokens that the same weights choose in float32, given the text so far}.
    bytes: of the weights that every token reads. bandwidth: bytes a second at which this machine read a large
    tensor in the same turns: bandwidth / bytes tokens a second are the most that decoding can reach.
    """

    rows: list
    same: dict
    exact: dict
    bytes: int
    bandwidth: float


def bench_decode(source, *, dtype, n_new=128, turns=3, compiled=True, progress=lambda text: None):
    """Greedy decoding, batch 1, of a llama-like checkpoint: a `Decoding`; `transformers` first if installed."""
    _check_counts(n_new=n_new, turns=turns)
    if compiled:
        _check_compiler()
    progress("loading")
    model = load(source, dtype=dtype)
    if not isinstance(model, Decoder):
        raise ValueError(f"{source} does not go on with a text, so there is nothing to time: a decoder does.")
    prompt = torch.tensor([load_tokenizer(source).encode(PROMPT)])  # (1, T)
    room = prompt.shape[1] + n_new
    if room > model.config.max_positions:
        raise ValueError(f"{prompt.shape[1]} tokens of the prompt and {n_new} to come are more than the "
                         f"{model.config.max_positions} positions of {source}.")  # fmt: skip
    things = {}
    if has_transformers():
        theirs = as_transformers(model)
        things["transformers"] = lambda: theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new, min_new_tokens=n_new,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
    things["tx"] = lambda: generate(model, prompt, n_new)
    fused = fuse(copy.deepcopy(model))
    things["tx, fused"] = lambda: generate(fused, prompt, n_new)
    if compiled:
        fast = compile_blocks(copy.deepcopy(fused))
        things["tx, fused, compiled"] = lambda: generate(fast, prompt, n_new, cache=Cache(fast.config, room))
    float32 = copy.deepcopy(model).float()
    same, exact, first = {}, {}, None
    for name, thing in things.items():
        progress(f"{name}: first run" + (", with the compiler" if "compiled" in name else ""))
        text = thing()  # (1, T+n_new)
        tokens = text[0, -n_new:]  # (n_new,)
        first = tokens if first is None else first  # (n_new,)
        differ = (tokens != first).nonzero()  # (m, 1)
        same[name] = int(differ[0]) if len(differ) else n_new
        with torch.no_grad():
            best = float32(text[:, :-1], last=n_new)[0].argmax(-1)  # (n_new,)
        exact[name] = (best == tokens).float().mean().item()
    del float32
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    memory = torch.ones(2**26)  # 256 MB, more than the caches of a processor hold
    *rows, reading, again = compare(things | {"reading memory": memory.sum}, turns, progress)
    bandwidth = memory.nbytes / reading.seconds
    return Decoding([*rows, again], same, exact, sum(m.weight.nbytes for m in layers), bandwidth)


def _check_compiler():
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        raise ValueError("no C++ compiler found (c++, g++, clang++, cl), and blocks are compiled with one.\n"
                         "  Leave them out: --no-compile.")  # fmt: skip


def has_transformers():
    """Whether the reference is here to be compared with; it is not needed for anything else."""
    return importlib.util.find_spec("transformers") is not None


def as_transformers(model):
    """The same weights in the reference's model of this family, sharing memory where the layout does."""
    import transformers

    values = dict(model.source_config)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    theirs.load_state_dict(named_as_in_files(model), strict=False, assign=True)
    theirs.tie_weights()
    for name, buffer in list(theirs.named_buffers()):
        if buffer.is_meta:  # tables of positions, which no file holds
            owner = theirs.get_submodule(name.rpartition(".")[0])
            fresh = type(owner)(config)
            setattr(owner, name.rpartition(".")[2], getattr(fresh, name.rpartition(".")[2]))
    return theirs.eval()


# ── training ─────────────────────────────────────────────────────────────────────────────────────


class PyTorchGpt(nn.Module):
    """The same shape as our GPT, built from `nn.TransformerEncoderLayer`."""

    def __init__(self, config):
        super().__init__()
        c = config
        self.tokens, self.places = nn.Embedding(c.vocab_size, c.d_model), nn.Embedding(c.max_positions, c.d_model)
        layer = nn.TransformerEncoderLayer(
            c.d_model, c.n_heads, c.d_ff, dropout=0.0, batch_first=True, norm_first=True,
            activation=lambda x: F.gelu(x, approximate="tanh"),
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, c.n_layers, nn.LayerNorm(c.d_model), enable_nested_tensor=False)
        self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        T = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:T]  # (B, T, D)
        hidden = nn.Transformer.generate_square_subsequent_mask(T)  # (T, T)
        return self.head(self.layers(x, mask=hidden, is_causal=True))  # (B, T, V)


def bench_train(*, n_layers=6, d_model=384, n_heads=6, T=256, B=4, turns=7, progress=lambda text: None):
    """One step of training a small GPT, forward, backward and AdamW, in fp32: ([Row], number of parameters)."""
    _check_counts(n_layers=n_layers, d_model=d_model, n_heads=n_heads, T=T, B=B, turns=turns)
    values = dict(model_type="gpt2", vocab_size=65, n_embd=d_model, n_layer=n_layers, n_head=n_heads,
                  n_positions=T, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0,
                  bos_token_id=0, eos_token_id=0)  # fmt: skip
    ours = build(values).to_empty(device="cpu")
    ours.tie()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.02)
    models = {"nn.TransformerEncoderLayer": PyTorchGpt(ours.config)}
    if has_transformers():
        import transformers

        models["transformers"] = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**values)
        )
    models["tx"] = ours
    tokens = torch.randint(65, (B, T), generator=torch.Generator().manual_seed(0))  # (B, T)

    def step(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def run():
            optimizer.zero_grad()
            out = model(tokens)  # (B, T, V)  or the reference's object that holds it
            loss(getattr(out, "logits", out), tokens).backward()
            optimizer.step()

        return run

    rows = compare({name: step(model) for name, model in models.items()}, turns, progress)
    return rows, sum(p.numel() for p in ours.parameters())
