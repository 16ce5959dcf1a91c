"""Generation: the same tokens as the reference, with every cache, and every refusal."""

import copy
import math

import pytest
import torch
import transformers as hf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tx.cache import Cache
from tx.checkpoints import load
from tx.config import Config, Rope
from tx.decoder import Decoder
from tx.masks import as_mask, causal, padding, prefix
from tx.positions import Positions
from tx.sampling import (
    beam_search,
    generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise,
    sample,
)

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

V = 61
SMALL = dict(
    vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64,
)  # fmt: skip
GQA = dict(SMALL, num_key_value_heads=2)
TWO = dict(
    vocab_size=V, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=48, pad_token_id=60, bos_token_id=1,
    eos_token_id=2, decoder_start_token_id=3, forced_eos_token_id=None,
)  # fmt: skip
T5 = dict(
    vocab_size=V, d_model=32, d_kv=6, num_heads=4, num_layers=2, d_ff=48, relative_attention_num_buckets=8,
    relative_attention_max_distance=16, decoder_start_token_id=0,
)  # fmt: skip
DECODERS = {
    "gpt2": ("GPT2LMHeadModel", hf.GPT2Config, dict(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "llama": ("LlamaForCausalLM", hf.LlamaConfig, GQA),
    "mistral": ("MistralForCausalLM", hf.MistralConfig, dict(GQA, sliding_window=5)),
    "gemma3": ("Gemma3ForCausalLM", hf.Gemma3TextConfig, dict(
        GQA, head_dim=12, sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
    "bloom": ("BloomForCausalLM", hf.BloomConfig, dict(vocab_size=V, hidden_size=32, n_layer=2, n_head=4)),
}  # fmt: skip
# frequencies of RoPE that change with the length of the text, beyond 10 tokens
STRETCHED = {
    "longrope": ("Phi3ForCausalLM", hf.Phi3Config, dict(
        SMALL, pad_token_id=0, original_max_position_embeddings=10, rope_parameters=dict(
            rope_type="longrope", rope_theta=50.0, original_max_position_embeddings=10,
            short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 3.0, 4.0]))),
    "dynamic": ("LlamaForCausalLM", hf.LlamaConfig, dict(SMALL, max_position_embeddings=10, rope_parameters=dict(
        rope_type="dynamic", rope_theta=50.0, factor=8.0))),
}  # fmt: skip
PAIRS = {
    "bart": ("BartForConditionalGeneration", hf.BartConfig, dict(TWO, max_position_embeddings=64)),
    "t5": ("T5ForConditionalGeneration", hf.T5Config, T5),
    "whisper": ("WhisperForConditionalGeneration", hf.WhisperConfig, dict(
        TWO, max_source_positions=20, max_target_positions=40)),
}  # fmt: skip
CACHES = {"dynamic": {}, "static": {"room": 40}, "rolling": {"rolling": True}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Reference and ours of the same random weights, by name; made once."""
    made = {}

    def get(name):
        if name not in made:
            kind, config, values = {**DECODERS, **PAIRS, **STRETCHED}[name]
            torch.manual_seed(0)
            config = config(**values)
            config._attn_implementation = "eager"
            theirs = getattr(hf, kind)(config).eval()
            draw = torch.Generator().manual_seed(1)
            for key, p in sorted(theirs.named_parameters()):
                _redraw(key, p, draw)
            # what the configs say of ends and starts is no part of these tests
            theirs.generation_config = hf.GenerationConfig()
            folder = tmp_path_factory.mktemp(name)
            theirs.save_pretrained(folder)
            made[name] = theirs, load(folder)
        return made[name]

    return get


def _redraw(name, p, draw):
    """Random, but so that a text goes on without saying one thing over and over."""
    parts = {"pos": 1.0, "encoder_attn": 0.3, "EncDec": 0.3}
    parts |= {"emb": 0.1, "wte": 0.1, "shared": 0.1, "head": 0.1}
    if p.dim() == 1:
        p.data.add_(torch.randn(p.shape, generator=draw) * (0.2 if name.endswith("weight") else 0.05))
    else:
        std = next((std for part, std in parts.items() if part in name), 1.0)
        p.data.normal_(std=std, generator=draw)


def prompt(B=2, T=7, seed=2):
    return torch.randint(4, 60, (B, T), generator=torch.Generator().manual_seed(seed))


def reference(model, tokens, n_new, mask=None, eos=None, pad=0, **options):
    """Tokens of the reference's generate, (B, T + new)."""
    options = {"do_sample": False, "top_k": 0, "top_p": 1.0, **options}
    two = model.config.is_encoder_decoder
    settings = hf.GenerationConfig(
        max_new_tokens=n_new, eos_token_id=eos, pad_token_id=pad, bos_token_id=None,
        decoder_start_token_id=model.config.decoder_start_token_id if two else None,
        **options,
    )  # fmt: skip
    mask = torch.ones_like(tokens) if mask is None else mask.long()
    return model.generate(tokens, attention_mask=mask, generation_config=settings)


# ── the same tokens as the reference ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_equals_the_reference(models, name):
    theirs, ours = models(name)
    tokens, real = prompt(), torch.ones(2, 7, dtype=torch.bool)
    expected = reference(theirs, tokens, 12)
    assert torch.equal(generate(ours, tokens, 12), expected)
    expected = reference(theirs, tokens, 12, repetition_penalty=4.0)
    assert torch.equal(generate(ours, tokens, 12, repetition_penalty=4.0), expected)
    assert len(set(expected[0, 7:].tolist())) > 4, "a text that says one thing tests little"
    real[1, :3] = False
    expected = reference(theirs, tokens, 12, real)
    for cache in (True, False):
        assert torch.equal(generate(ours, tokens, 12, mask=real, cache=cache), expected), cache


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_every_cache_gives_the_same_tokens_also_when_the_text_comes_in_parts(models, name):
    ours = models(name)[1]
    tokens, real = prompt(), torch.ones(2, 7, dtype=torch.bool)
    real[0, :2] = False
    whole = generate(ours, tokens, 14, mask=real, cache=False)
    for label, kind in CACHES.items():
        cache = Cache(ours.config, **kind)
        begun = generate(ours, tokens[:, :4], 0, mask=real[:, :4], cache=cache)
        assert torch.equal(begun, tokens[:, :4])
        ours(tokens[:, :4], real[:, :4], cache=cache)
        rest = generate(ours, tokens[:, 4:], 5, mask=real, cache=cache)
        assert torch.equal(rest, whole[:, 4:12]), label
        assert cache.length == 11, "all but the last token"
        longer = torch.cat([real, torch.ones(2, 5, dtype=torch.bool)], dim=1)
        rest = generate(ours, whole[:, cache.length : 12], 9, mask=longer, cache=cache)
        assert torch.equal(rest, whole[:, 11:]), label


@pytest.mark.parametrize("T", [4, 9, 10, 11])  # up to the original length, and one beyond
@pytest.mark.parametrize("name", STRETCHED)
@torch.no_grad()
def test_frequencies_that_change_give_the_tokens_of_reading_it_all(models, name, T):
    """Beyond the original length deeper layers' keys depend on the old frequencies too."""
    theirs, ours = models(name)
    tokens = prompt(T=T)
    for real in (None, torch.tensor([[False] * 2 + [True] * (T - 2)] * 2)):  # the longest text counts, unpadded
        whole = generate(ours, tokens, 12, mask=real, cache=False)
        for label, kind in CACHES.items():
            found = generate(ours, tokens, 12, mask=real, cache=Cache(ours.config, **kind))
            assert torch.equal(found, whole), label
        beams = generate(ours, tokens, 12, mask=real, beams=3, cache=False)
        assert torch.equal(generate(ours, tokens, 12, mask=real, beams=3), beams)
    assert len(set(whole[0, T:].tolist())) > 4
    if name == "longrope":  # the reference reads it again as well; for dynamic NTK it does not
        assert torch.equal(generate(ours, tokens, 12), reference(theirs, tokens, 12))
        one, real = tokens.clone(), torch.ones(2, T, dtype=torch.bool)
        real[1, :2] = False  # the row beside it is as long as before
        assert torch.equal(generate(ours, one, 12, mask=real), reference(theirs, one, 12, real))
    theirs(tokens[:, :2])  # dynamic NTK of the reference remembers a longer text until it meets a short one
    by_hand = tokens
    for _ in range(12):
        last = theirs(by_hand, use_cache=False).logits[:, -1]
        by_hand = torch.cat([by_hand, last.argmax(-1)[:, None]], dim=1)
    assert torch.equal(generate(ours, tokens, 12), by_hand)


@pytest.mark.parametrize("name", STRETCHED)
@torch.no_grad()
def test_tokens_of_other_frequencies_in_a_cache_are_refused(models, name):
    ours, tokens = models(name)[1], prompt(T=14)
    whole = generate(ours, tokens[:, :4], 6, cache=False)
    cache = Cache(ours.config)
    ours(tokens[:, :3], cache=cache)
    with pytest.raises(ValueError, match="RoPE frequencies of a text of 3; one of 11, the 8 to come included"):
        generate(ours, tokens[:, 3:4], 8, cache=cache)
    assert torch.equal(generate(ours, tokens[:, 3:4], 6, cache=cache), whole[:, 3:]), "10 tokens are read: no more"
    cache = Cache(ours.config)
    ours(tokens, cache=cache)
    cache.cut(3)  # its keys are still those of 14
    with pytest.raises(ValueError, match="RoPE frequencies of a text of 14; one of 4,"):
        generate(ours, tokens[:, 3:4], 1, cache=cache)
    cache.cut(0)
    assert torch.equal(generate(ours, tokens[:, :4], 6, cache=cache), whole)
    padded = torch.tensor([[False] * 3 + [True] * 11] * 2)
    cache = Cache(ours.config)
    ours(tokens[:, :11], padded[:, :11], cache=cache)  # 8 tokens, without padding
    with pytest.raises(ValueError, match="RoPE frequencies of a text of 8; one of 11"):
        generate(ours, tokens[:, 11:], 1, mask=padded, cache=cache)


@pytest.mark.parametrize("name", PAIRS)
def test_encoder_decoders_equal_the_reference(models, name):
    theirs, ours = models(name)
    start = theirs.config.decoder_start_token_id
    if name == "whisper":
        source, real = torch.randn(2, 80, 40, generator=torch.Generator().manual_seed(3)), None
        expected = _whisper(theirs, source, start, 12)
        assert len(set(expected[0].tolist())) > 3
    else:
        source, real = prompt(T=9), torch.ones(2, 9, dtype=torch.bool)
        real[0, -3:] = False
        expected = reference(theirs, source, 12, real, repetition_penalty=3.0)
        found = generate(ours, source, 12, mask=real, start=start, repetition_penalty=3.0)
        assert torch.equal(found, expected) and len(set(expected[0].tolist())) > 6
        expected = reference(theirs, source, 12, real)
    for cache in (True, False, Cache(ours.config, room=13)):
        assert torch.equal(generate(ours, source, 12, mask=real, start=start, cache=cache), expected)
    both = torch.tensor([[start, 5], [start, 9]])
    assert torch.equal(generate(ours, source, 3, mask=real, start=both)[:, :2], both)
    assert torch.equal(generate(ours, source, 3, mask=real, start=[start, 5])[0],
                       generate(ours, source, 3, mask=real, start=both)[0])  # fmt: skip


def _whisper(model, mel, start, n_new):
    """Greedy by the bare model: Whisper's own generate wants thirty seconds of sound."""
    tokens = torch.full((len(mel), 1), start)
    for _ in range(n_new):
        logits = model(input_features=mel, decoder_input_ids=tokens).logits[:, -1]
        tokens = torch.cat([tokens, logits.argmax(-1)[:, None]], dim=1)
    return tokens


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("name", ["llama", "mistral", "bart", "t5"])
def test_beams_equal_the_reference(models, name, beams):
    theirs, ours = models(name)
    two = name in PAIRS
    start = {"start": theirs.config.decoder_start_token_id} if two else {}
    tokens, real = prompt(B=3, seed=beams), torch.ones(3, 7, dtype=torch.bool)
    real[1, slice(-3, None) if two else slice(0, 3)] = False
    many = list(range(2, 50))  # so many that every likely continuation ends
    cases = (None, 1.0, True), ([7], 2.0, True), ([3, 9, 20, 33], 1.0, False), (many, 1.0, True)
    for eos, penalty, cache in cases:
        mask = real if penalty == 1 else None  # the reference penalises padding
        expected = reference(theirs, tokens, 10, mask, eos, pad=1, num_beams=beams, repetition_penalty=penalty)
        found = generate(ours, tokens, 10, mask=mask, eos=eos or (), pad=1, beams=beams,
                         repetition_penalty=penalty, cache=cache, **start)  # fmt: skip
        assert torch.equal(found, expected), (eos, penalty, cache)


@pytest.mark.parametrize("kind", CACHES)
def test_beams_move_every_kind_of_cache(models, kind):
    ours = models("gemma3")[1]
    tokens, real = prompt(), torch.ones(2, 7, dtype=torch.bool)
    real[1, :2] = False
    expected = generate(ours, tokens, 9, mask=real, beams=4, cache=False)
    cache = Cache(ours.config, **CACHES[kind])
    assert torch.equal(generate(ours, tokens, 9, mask=real, beams=4, cache=cache), expected)
    assert not torch.equal(expected, generate(ours, tokens, 9, mask=real))


@pytest.mark.parametrize(
    "options",
    [dict(), dict(temperature=0.7), dict(top_k=5), dict(top_p=0.8), dict(min_p=0.1),
     dict(temperature=1.5, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.4)],
    ids=lambda options: " ".join(options) or "plain",
)  # fmt: skip
def test_draws_equal_the_reference(models, options):
    theirs, ours = models("llama")
    tokens = prompt(B=4)
    torch.manual_seed(5)
    expected = reference(theirs, tokens, 12, do_sample=True, **options)
    draw = torch.Generator().manual_seed(5)
    found = generate(ours, tokens, 12, generator=draw, **{"temperature": 1.0, **options})
    assert torch.equal(found, expected)


def test_repetition_penalty_equals_the_reference_and_spares_padding(models):
    theirs, ours = models("llama")
    tokens = prompt()
    expected = reference(theirs, tokens, 12, repetition_penalty=1.5)
    assert torch.equal(generate(ours, tokens, 12, repetition_penalty=1.5), expected)
    assert not torch.equal(expected, generate(ours, tokens, 12))
    for pad in range(0, 60, 7):  # a row alone and beside a longer one, whatever stands in the padding
        padded = torch.cat([torch.full((1, 3), pad), tokens[:1]], dim=1)
        batch = torch.cat([prompt(B=1, T=10, seed=9), padded])
        real = torch.ones(2, 10, dtype=torch.bool)
        real[1, :3] = False
        found = generate(ours, batch, 12, mask=real, repetition_penalty=1.5)
        assert torch.equal(found[1, 3:], expected[0]), pad


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_rows_end_one_by_one_and_are_padded(models):
    theirs, ours = models("llama")
    tokens = prompt(B=3)
    free = generate(ours, tokens, 12)
    eos = [int(free[0, 9]), int(free[2, 12])]
    expected = reference(theirs, tokens, 12, eos=eos, pad=1)
    found = generate(ours, tokens, 12, eos=eos, pad=1)
    assert torch.equal(found, expected)
    assert found[0, 9] in eos and set(found[0, 10:].tolist()) == {1}
    assert torch.equal(generate(ours, tokens[:1], 12, eos=eos), found[:1, :10]), "stops when all have ended"
    assert torch.equal(generate(ours, tokens[:1], 12, eos=eos[0]), found[:1, :10])


def test_streaming_sees_every_token_and_may_stop(models):
    ours = models("llama")[1]
    seen = []
    found = generate(ours, prompt(), 6, on_token=lambda tokens, step: seen.append((tokens, step)))
    assert torch.equal(torch.stack([tokens for tokens, _ in seen], dim=1), found[:, 7:])
    assert [step for _, step in seen] == list(range(6))
    stopped = generate(ours, prompt(), 6, on_token=lambda tokens, step: step == 2)
    assert torch.equal(stopped, found[:, :10])


def test_a_model_in_training_generates_without_dropout_and_stays_in_training():
    torch.manual_seed(0)
    model = Decoder(Config(V, 32, 2, 4, 64, 32, dropout=0.5)).train()
    found = generate(model, prompt(), 8)
    assert torch.equal(found, generate(model, prompt(), 8)) and model.training
    assert not model.eval().training and torch.equal(generate(model, prompt(), 8), found)
    assert not model.training


def test_a_prefix_mask_goes_along():
    torch.manual_seed(0)
    model = Decoder(Config(V, 32, 2, 4, 64, 32, positions="rope", rope=Rope(1e4, 8))).eval()
    for name, p in model.named_parameters():
        _redraw(name, p, None)
    mask = causal() | prefix(5)
    found = generate(model, prompt(), 8, mask=mask)
    assert torch.equal(found, generate(model, prompt(), 8, mask=mask, cache=False))
    assert not torch.equal(found, generate(model, prompt(), 8))


# ── waiting for the device ───────────────────────────────────────────────────────────────────────

UNSEEN = ("multinomial", "nonzero", "unique", "masked_select", "bincount", "equal")  # wait inside, on a GPU


class Waits(TorchDispatchMode):
    """Counts the numbers that are read out of tensors: each waits for an accelerator."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket.__name__.strip("_0123456789") not in UNSEEN, function
        self.n += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


class Quiet(nn.Module):
    """A model that itself waits for nothing: a matrix of logits, looked up with the last token."""

    def __init__(self):
        super().__init__()
        self.config = Config(V, 32, 2, 4, 64, 512, positions="none")
        self.table = nn.Embedding(V, V)
        self.stack = nn.ModuleDict({"schemes": nn.ModuleDict({"full": Positions()})})
        self.stack.schemes = self.stack["schemes"]

    def forward(self, tokens, mask=None, *, cache=None, last=None):
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.table(tokens[:, -1:])


@pytest.mark.parametrize("options", [
    dict(), dict(temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.3), dict(beams=3),
    dict(eos=list(range(40, V)), beams=2, repetition_penalty=1.3), dict(eos=list(range(40, V)), cache=False),
])  # fmt: skip
@pytest.mark.parametrize("padded", [False, True])
def test_a_new_token_waits_for_the_device_once(options, padded):
    torch.manual_seed(0)
    model, real, waits = Quiet(), torch.ones(2, 7, dtype=torch.bool), []
    model.table.weight.data[:, 40:] -= 100  # nothing ends
    real[1, :2] = not padded
    for n_new in (5, 25):
        with Waits() as counted:
            generate(model, prompt(), n_new, mask=real, **options)
        waits.append(counted.n)
    assert waits[1] - waits[0] == 20, waits
    assert waits[0] <= 5 + 10, "before the first token and after the last"


# ── choosing one token ───────────────────────────────────────────────────────────────────────────

P = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
MIXED = P[:, [3, 0, 2, 1]]


def kept(logits):
    return (~logits.isinf()).int().tolist()[0]


@pytest.mark.parametrize(
    ("p", "n"), [(1e-9, 1), (0.45, 1), (0.6, 2), (0.85, 3), (0.99, 4), (1.0, 4)]
)
def test_top_p_keeps_the_token_that_crosses(p, n):
    assert kept(keep_top_p(P.log(), p)) == [1] * n + [0] * (4 - n)
    order = [3, 0, 2, 1]
    assert kept(keep_top_p(MIXED.log(), p)) == [int(rank < n) for rank in order]


def test_filters_by_hand():
    for k, n in ((1, 1), (2, 2), (4, 4), (100, 4)):
        assert kept(keep_top_k(P.log(), k)) == [1] * n + [0] * (4 - n)
    assert kept(keep_top_k(torch.tensor([[2.0, 1.0, 2.0, 0.0]]), 1)) == [1, 0, 1, 0], "ties stay"
    assert kept(keep_min_p(P.log(), 0.2)) == [1, 1, 1, 0]
    assert kept(keep_min_p(P.log(), 0.0)) == [1, 1, 1, 1]
    assert kept(keep_min_p(P.log(), 1.0)) == [1, 0, 0, 0]


def test_filters_equal_the_reference_ties_included():
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(50, 40, generator=draw) * 3).round() / 2  # many ties
    for ours, theirs, values in (
        (keep_top_k, hf.TopKLogitsWarper, (1, 3, 17, 40, 99)),
        (keep_top_p, hf.TopPLogitsWarper, (1e-6, 0.1, 0.5, 0.9, 0.999, 1.0)),
        (keep_min_p, hf.MinPLogitsWarper, (0.0, 0.01, 0.3, 1.0)),
    ):
        for value in values:
            assert torch.equal(ours(logits, value), theirs(value)(None, logits.clone())), (ours, value)


def test_the_penalty_divides_what_is_positive_once():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    assert penalise(logits, torch.tensor([[0, 1, 1]]), 2.0).tolist() == [[1.0, -4.0, 1.0, 0.0]]
    real = torch.tensor([[False, True, True]])
    assert penalise(logits, torch.tensor([[0, 1, 1]]), 2.0, real).tolist() == [[2.0, -4.0, 1.0, 0.0]]


def test_draws_are_as_likely_as_the_model_says():
    draw = torch.Generator().manual_seed(0)
    for temperature in (0.5, 1.0, 2.0):
        tokens = sample(P.log().repeat(40_000, 1), temperature, generator=draw)
        share = torch.bincount(tokens, minlength=4) / 40_000
        expected = (P ** (1 / temperature))[0]
        # 40,000 draws: standard error at most 0.0025
        torch.testing.assert_close(share, expected / expected.sum(), atol=0.01, rtol=0)
    assert sample(P.log(), 0.0).tolist() == [0]
    after = sample(P.log().repeat(5_000, 1), 0.5, top_p=0.85, generator=draw)
    assert set(after.tolist()) == {0, 1}, "top-p comes after the temperature: 0.68 and 0.25 cross 0.85"


def test_half_precision_draws_as_fp32_does():
    logits = (P.log() * 2).half().repeat(1000, 1)
    found = [sample(x, 1.0, generator=torch.Generator().manual_seed(0)) for x in (logits, logits.float())]
    assert torch.equal(*found)


TEXT = torch.zeros(1, 3, dtype=torch.long)
NO_END = torch.tensor([], dtype=torch.long)
FLAT = torch.zeros(1, 4)


@pytest.mark.parametrize("call, message", [
    (lambda: keep_top_k(FLAT, 0), "top_k = 0: expected 1 or more"),
    (lambda: keep_top_k(FLAT, None), "top_k = None: expected a whole number"),
    (lambda: keep_top_p(FLAT, 0.0), r"top_p = 0.0: expected a probability in \(0, 1\]"),
    (lambda: keep_top_p(FLAT, 1.01), "top_p = 1.01"),
    (lambda: keep_top_p(FLAT, math.nan), "top_p = nan"),
    (lambda: keep_min_p(FLAT, -0.1), r"min_p = -0.1: expected a share in \[0, 1\]"),
    (lambda: penalise(FLAT, TEXT, 0), "repetition_penalty = 0: expected more than 0"),
    (lambda: penalise(FLAT, TEXT[0], 2.0), r"tokens \(3,\) of torch.int64: expected ids \(B, T\), B = 1"),
    (lambda: penalise(FLAT, TEXT.float(), 2.0), "of torch.float32: expected ids"),
    (lambda: penalise(FLAT, TEXT, 2.0, torch.ones(1, 2).bool()), r"mask \(1, 2\) of torch.bool: expected"),
    (lambda: sample(FLAT[0]), r"logits \(4,\) of torch.float32: expected floating-point numbers \(B, V\)"),
    (lambda: sample(FLAT[None]), r"logits \(1, 1, 4\)"),
    (lambda: sample(FLAT.long()), "logits .* of torch.int64"),
    (lambda: sample([1.0, 2.0]), "logits are a list"),
    (lambda: keep_top_k(FLAT[0], 2), r"logits \(4,\)"),
    (lambda: keep_top_p(FLAT[0], 0.5), r"logits \(4,\)"),
    (lambda: keep_min_p(FLAT[0], 0.5), r"logits \(4,\)"),
    (lambda: penalise(FLAT[0], TEXT, 0.5), r"logits \(4,\)"),
    (lambda: sample(FLAT, -1.0), "temperature = -1.0: expected 0"),
    (lambda: sample(FLAT, 1.0, top_k=0), "top_k = 0"),
    (lambda: sample(FLAT, 0.0, top_p=2.0), "top_p = 2.0"),
    (lambda: sample(FLAT * math.nan), "logits are NaN: its weights"),
    (lambda: sample(FLAT * math.nan, 1.0), "logits are NaN: its weights"),
    (lambda: sample(torch.tensor([[0.0, 1.0], [math.nan, 0.0]])), "logits are NaN"),
    (lambda: sample(torch.tensor([[0.0, math.inf]])), "logits are infinite"),
    (lambda: sample(FLAT - math.inf, 1.0), "logits are infinite"),
    (lambda: beam_search(Table(4, 0), TEXT, 0, 2, NO_END, 0), "n_new = 0: a search writes 1 token or more"),
    (lambda: beam_search(Table(4, 0), TEXT, 3, 0, NO_END, 0), "beams = 0: expected 1 or more"),
    (lambda: beam_search(Table(4, 0), TEXT[0], 3, 2, NO_END, 0), r"tokens \(3,\) of torch.int64"),
    (lambda: beam_search(Table(4, 0), TEXT, 3, 2, [], 0), r"eos = \[\]: expected a tensor of ids"),
    (lambda: beam_search(Table(4, 0), TEXT, 3, 2, NO_END, None), "pad = None: expected an id"),
    (lambda: beam_search(Table(4, 0), TEXT, 3, 2, NO_END, 0, -1), "repetition_penalty = -1"),
    (lambda: beam_search(Script({(): [math.nan] * 8}), TEXT[:, :1], 1, 2, NO_END, 0), "NaN at new token 1"),
])  # fmt: skip
def test_what_the_functions_cannot_do_is_refused_on_their_own(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ids_of_32_bits_are_ids(models):
    ours, tokens = models("llama")[1], prompt()
    for options in (dict(repetition_penalty=1.5), dict(beams=2, repetition_penalty=1.5)):
        assert generate(ours, tokens.int(), 6, **options).tolist() == generate(ours, tokens, 6, **options).tolist()


# ── beams against every text there is ────────────────────────────────────────────────────────────


class Table:
    """A made-up model: logits of the next token for every text, kept in rows like a cache."""

    def __init__(self, n_words, seed):
        self.n_words, self.seed, self.rows = n_words, seed, [()]

    def logits(self, text):
        draw = torch.Generator().manual_seed(self.seed + sum((x + 1) * 7**i for i, x in enumerate(text)))
        return torch.randn(self.n_words, generator=draw) * 2

    def __call__(self, tokens):
        if tokens.shape[1] > 1:  # only the last token is looked at: the rest is remembered
            self.rows = [row + (int(last),) for row, last in zip(self.rows, tokens[:, -1], strict=True)]
        return torch.stack([self.logits(row) for row in self.rows])

    def select(self, rows):
        self.rows = [self.rows[int(row)] for row in rows]


@pytest.mark.parametrize("seed", range(6))
def test_as_many_beams_as_texts_find_the_best_of_all(seed):
    table, n_words, n_new = Table(4, 1000 * seed), 4, 4
    best = {(): 0.0}
    for _ in range(n_new):
        best = {text + (w,): s + float(table.logits(text).log_softmax(-1)[w])
                for text, s in best.items() for w in range(n_words)}  # fmt: skip
    winner = max(best, key=best.get)
    none = torch.tensor([], dtype=torch.long)
    for beams in (64, 256):
        found = beam_search(Table(4, 1000 * seed), torch.tensor([[0]]), n_new, beams, none, 0)
        assert tuple(found[0, 1:].tolist()) == winner
    texts = [((), 0.0)]
    for _ in range(n_new):
        longer = {t + (w,): s + float(table.logits(t).log_softmax(-1)[w]) for t, s in texts for w in range(4)}
        texts = sorted(longer.items(), key=lambda pair: -pair[1])[:3]
    found = beam_search(Table(4, 1000 * seed), torch.tensor([[0]]), n_new, 3, none, 0)
    assert tuple(found[0, 1:].tolist()) == texts[0][0]


class Script(Table):
    """A model with the probabilities of the next word written down."""

    def __init__(self, words):
        self.words, self.rows = words, [()]

    def logits(self, text):
        return torch.tensor(self.words.get(text, [1 / 8] * 8)).log()


def test_texts_go_on_however_many_likely_ones_end():
    """Two beams; the first, third and fourth likeliest words end. The best text begins with the fifth."""
    sure = [1e-6] * 7
    words = {
        (): [0.01, 0.30, 0.20, 0.15, 0.01, 0.25, 0.08, 1e-6],
        (6,): [*sure, 1.0],
        (6, 7): [1e-6, 1.0, *sure[:6]],
    }
    found = beam_search(Script(words), torch.tensor([[0]]), 4, 2, torch.tensor([1, 2, 3]), pad=4)
    # log 0.08 over three words beats log 0.30 over one
    assert found.tolist() == [[0, 6, 7, 1]]
    found = beam_search(Script(words), torch.tensor([[0]]), 1, 2, torch.tensor([1, 2, 3]), pad=4)
    assert found.tolist() == [[0, 1]]


def test_logits_that_are_nan_are_not_taken_for_a_text(models):
    broken = copy.deepcopy(models("llama")[1])
    broken.head.linear.weight.data[3, 5] = math.nan
    for options in ({}, {"beams": 2}, {"temperature": 1.0}):
        with pytest.raises(ValueError, match="logits are NaN at new token 1"):
            generate(broken, prompt(), 3, **options)


def test_the_smallest_temperature_takes_the_likeliest():
    logits = torch.tensor([[80.0, 80.5, -90.0], [0.0, -1.0, -2.0]])
    assert sample(logits, temperature=1e-45).tolist() == [1, 0]


@pytest.mark.parametrize("cache", [True, False])
def test_mask_objects_of_each_row_go_along_with_beams(models, cache):
    """As a table (B, S) does, whose rows move with the texts."""
    ours = models("mistral")[1]
    real = torch.ones(2, 17, dtype=torch.bool)
    real[1, :3] = False
    expected = generate(ours, prompt(), 10, mask=real[:, :7], beams=3, eos=5, cache=cache)
    first = torch.tensor([0, 3])
    bare = lambda b, h, q_pos, k_pos: (k_pos <= q_pos) & (k_pos >= first[b])
    for mask in (causal() & padding(real), as_mask(bare)):
        got = generate(ours, prompt(), 10, mask=mask, beams=3, eos=5, cache=cache)
        assert torch.equal(got, expected), mask


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(temperature=-0.1), "temperature = -0.1: expected 0"),
        (dict(temperature=math.nan), "temperature = nan"),
        (dict(top_p=0), r"top_p = 0: expected a probability in \(0, 1\]"),
        (dict(top_p=1.5), "top_p = 1.5"),
        (dict(top_k=0), "top_k = 0: expected 1 or more"),
        (dict(min_p=1.1), "min_p = 1.1"),
        (dict(repetition_penalty=0), "repetition_penalty = 0"),
        (dict(beams=0), "beams = 0"),
        (dict(beams=2, temperature=1.0), "beam search does not draw"),
        (dict(beams=2, on_token=print), "beams = 2 with on_token"),
        (dict(top_k=2.5), "top_k = 2.5: expected a whole number"),
        (dict(temperature="1"), "temperature = '1': expected a number"),
        (dict(eos="</s>"), "eos = '</s>': expected an id"),
        (dict(eos=None), "eos = None: expected an id"),
        (dict(pad=-1), "pad = -1: expected an id, 0 … "),
        (dict(cache="static"), "cache = 'static': expected True, False or a tx.Cache"),
        (dict(start=3), "start is for encoder–decoders"),
        (dict(mask=torch.tensor([[1, 1, 1, 1, 1, 1, 0]]).bool()), "row 0 of mask ends in padding"),
        (dict(mask=torch.ones(1, 8).bool()), r"mask \(1, 8\) of torch.bool: expected .* \(B, S\) = \(1, 7\)"),
        (dict(mask=torch.ones(1, 7)), "of torch.float32: expected booleans"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_settings_out_of_range_are_refused(models, options, message):
    ours = models("llama")[1]
    with pytest.raises(ValueError, match=message):
        generate(ours, prompt(B=1), 3, **options)


def test_texts_that_do_not_fit_are_refused_before_any_work(models):
    llama, gpt2, bart = (models(name)[1] for name in ("llama", "gpt2", "bart"))
    with pytest.raises(ValueError, match="max_new_tokens = -1"):
        generate(llama, prompt(), -1)
    with pytest.raises(ValueError, match=r"empty prompt \(2, 0\)"):
        generate(llama, prompt()[:, :0], 3)
    with pytest.raises(ValueError, match=r"tokens \(7,\): expected \(B, T\)"):
        generate(llama, prompt()[0], 3)
    with pytest.raises(ValueError, match="64 learned positions: 7 tokens and 59 to come need 65"):
        generate(gpt2, prompt(), 59)
    assert generate(gpt2, prompt(), 58).shape == (2, 65), "the last token is never read"
    real = torch.ones(2, 7, dtype=torch.bool)
    real[:, :2] = False
    assert generate(gpt2, prompt(), 60, mask=real).shape == (2, 67), "padding takes no position"
    with pytest.raises(ValueError, match="room for 10 tokens: 0 in it, 7 in the prompt and 5 to come"):
        generate(llama, prompt(), 5, cache=Cache(llama.config, room=10))
    assert generate(llama, prompt(), 4, cache=Cache(llama.config, room=10)).shape == (2, 11)
    with pytest.raises(ValueError, match="encoder–decoder needs start"):
        generate(bart, prompt(), 3)
    for start in (0.5, "a", [[1], [2], [3]], [[[1]]]):
        with pytest.raises(ValueError, match="expected an id, a row of ids, or a row for each"):
            generate(bart, prompt(), 3, start=start)
    with pytest.raises(ValueError, match="this model is an encoder"):
        generate(type("E", (), {"config": Config(V, 32, 2, 4, 64, 32, causal=False)})(), prompt(), 3)


def test_what_was_said_is_ids_of_the_vocabulary():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    assert penalise(logits, torch.tensor([[0, 1, 1]]), 2.0).tolist() == [[1.0, -4.0, 1.0]]
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="expected ids, 0 … 2"):
            penalise(logits, torch.tensor([[0, wrong]]), 2.0)
    with pytest.raises(ValueError, match="tokens are a list"):
        penalise(logits, [[0]], 2.0)


def test_settings_of_another_kind():
    logits = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="top_k = True: expected a whole number"):
        sample(logits, 1.0, top_k=True)
    with pytest.raises(ValueError, match="temperature = True: expected a number"):
        sample(logits, True)
    with pytest.raises(ValueError, match="on_token = 'a': expected a function"):
        generate(None, logits, 1, on_token="a")
