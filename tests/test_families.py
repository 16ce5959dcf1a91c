"""Every family against the reference: logits, padding, caches, greedy tokens, round trips, switches."""

import copy
import dataclasses
import importlib
import json
import random
import shutil

import pytest
import torch

from tests import oracle
from tx.cache import Cache
from tx.checkpoints import build, load, save
from tx.config import Config, Rope
from tx.decoder import Decoder
from tx.encoder import Encoder
from tx.encoder_decoder import EncoderDecoder
from tx.families import FAMILIES
from tx.families.weights import Pair
from tx.files.errors import CheckpointError
from tx.positions import rope_frequencies

pytestmark = pytest.mark.slow
T = 13


def tokens(seed=0, length=T):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(4, 60, (2, length), generator=g)


def real(side, length=T, n=4):
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, :n] = side != "left"
    mask[0, length - n :] = side != "right"
    return mask


def source(name, dtype=torch.float32, length=T):
    """What a model reads: ids, or sounds for one that hears."""
    n_mels = oracle.ALL[name][2].get("num_mel_bins", 80)
    g = torch.Generator().manual_seed(3)
    return (
        torch.randn(2, n_mels, 40, dtype=dtype, generator=g) if name.startswith("whisper") else tokens(0, length)
    )


def logits(model, x):
    """Of any of our models; one with two stacks has also written something."""
    if hasattr(model, "encode"):
        return model(x, tokens(1, 9))
    return model.logits(x) if hasattr(model, "logits") else model(x)


def near(got, expected, where=None, factor=5e-5):
    """Within 5e-5 times the spread of the logits, where they count."""
    if where is not None:
        got, expected = got[where], expected[where]
    bound = factor * max(1.0, expected.std().item())
    assert (got - expected).abs().max().item() <= bound


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.DECODERS))
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_decoder_logits(name, padding):
    theirs, folder = oracle.checkpoint(name)
    ours, x = load(folder), tokens()
    if padding == "none":
        near(ours(x), theirs(x).logits)
        return
    mask = real(padding)
    counted = {} if name.startswith(("bloom", "mpt")) else {
        "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}  # fmt: skip
    near(ours(x, mask), theirs(x, attention_mask=mask.long(), **counted).logits, mask)


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ENCODERS))
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_encoder_logits_and_hidden_states(name, padding):
    theirs, folder = oracle.checkpoint(name)
    ours, mask = load(folder), real(padding)
    x = tokens().masked_fill(~mask, theirs.config.pad_token_id or 0)
    options = {"attention_mask": mask.long()} if padding != "none" else {}
    if padding == "left" and name.startswith(("bert", "albert")):  # RoBERTa counts by itself
        options["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    mask = mask if padding != "none" else None
    expected = theirs(x, output_hidden_states=True, **options)
    near(ours.logits(x, mask), expected.logits, mask)
    near(ours(x, mask), expected.hidden_states[-1], mask)
    segments = torch.arange(T).expand(2, T) % 2
    if theirs.config.to_dict().get("type_vocab_size", 0) > 1:
        expected = theirs(x, token_type_ids=segments, **options).logits
        near(ours.logits(x, mask, segments=segments), expected, mask)
        assert (ours.logits(x, mask, segments=segments) - ours.logits(x, mask)).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ENCODER_DECODERS))
@pytest.mark.parametrize("padded", [False, True])
def test_encoder_decoder_logits(name, padded):
    theirs, folder = oracle.checkpoint(name)
    ours, y = load(folder), tokens(1, 9)
    if name.startswith("whisper"):
        mel = source(name)
        near(ours(mel, y), theirs(input_features=mel, decoder_input_ids=y).logits)
        return
    mask = real("right") if padded else None
    options = {"attention_mask": mask.long()} if padded else {}
    near(ours(tokens(), y, mask), theirs(input_ids=tokens(), decoder_input_ids=y, **options).logits)


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ALL))
def test_float64(name):
    """Without the roundings to fp32 nothing but the order of sums is left: measured 2e-14 and less.

    BLOOM's activation has a constant of eight digits, √(2/π) ≈ 0.79788456: measured 6e-10.
    """
    _, folder = oracle.checkpoint(name)
    x = source(name, torch.float64, length=40)  # beyond every original length, window and bucket
    written = {"decoder_input_ids": tokens(1, 9)} if name in oracle.ENCODER_DECODERS else {}
    with oracle.float64(name) as theirs:
        expected = theirs(x, **written).logits
    got = logits(load(folder, dtype=torch.float64), x)
    assert got.dtype == expected.dtype == torch.float64
    assert (got - expected).abs().max().item() <= (1e-9 if name.startswith("bloom") else 1e-12)


def coarse(got, expected, dtype, where=...):
    """Rounded at every step: on average within 8 units in the last place of the spread; measured 4."""
    error = (got.float() - expected.float())[where].abs().mean().item()
    assert got.dtype == dtype and bool(got.isfinite().all())
    assert error <= 8 * torch.finfo(dtype).eps / 2 * expected.float().std().item()


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ALL))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    _, folder = oracle.checkpoint(name)
    wide, ours, x = load(folder), load(folder, dtype=dtype), source(name)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    coarse(logits(ours, x), logits(wide, x), dtype)
    if name in oracle.ENCODER_DECODERS:
        return
    mask = real("left")
    run = (lambda model: model.logits(x, mask)) if name in oracle.ENCODERS else (lambda model: model(x, mask))
    coarse(run(ours), run(wide), dtype, mask)
    if name in oracle.DECODERS and name not in STATEFUL:
        for options in ({}, {"room": T + 3}, {"rolling": True}):
            cache = Cache(ours.config, **options)
            parts = [ours(x[:, low:high], mask[:, :high], cache=cache) for low, high in ((0, 5), (5, 6), (6, T))]
            coarse(torch.cat(parts, 1), run(wide), dtype, mask)
            assert cache.layers[0].keys.dtype == dtype


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ALL))
def test_batches_of_any_size_and_layout(name):
    _, folder = oracle.checkpoint(name)
    model, x = load(folder), source(name)
    expected = logits(model, x)
    strided = x.repeat_interleave(2, -1)[..., ::2]
    for same in (x.mT.contiguous().mT, strided, x.double() if x.is_floating_point() else x.int()):
        near(logits(model, same), expected)
    with torch.inference_mode():
        near(logits(model, x), expected)
    with pytest.raises(ValueError, match=r"tokens \(0, .*: expected one text"):
        logits(model, x[:0])
    if name not in oracle.ENCODER_DECODERS:
        alone = logits(model, x[:, :1])
        assert alone.shape == (2, 1, 61) and bool(alone.isfinite().all())
        if name in oracle.DECODERS and name not in STATEFUL:
            near(alone, expected[:, :1])


STATEFUL = ("llama-dynamic", "llama-longrope")  # their frequencies follow the length of the text


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in oracle.DECODERS if name not in STATEFUL])
@pytest.mark.parametrize("kind", ["dynamic", "static", "rolling"])
def test_cached_equals_the_full_pass_for_every_chunking(name, kind):
    _, folder = oracle.checkpoint(name)
    model, x = load(folder), tokens()
    options = {"dynamic": {}, "static": {"room": T + 3}, "rolling": {"rolling": True}}[kind]
    for mask in (None, real("left")):
        full = model(x, mask)
        for cuts in ([T], [1] * T, [5, 1, 7], [12, 1]):
            cache, start, rows = Cache(model.config, **options), 0, []
            for n in cuts:
                seen = None if mask is None else mask[:, : start + n]
                rows.append(model(x[:, start : start + n], seen, cache=cache))
                start += n
            near(torch.cat(rows, 1), full, mask)


@torch.no_grad()
@pytest.mark.parametrize("name", STATEFUL)
def test_a_cache_filled_for_a_shorter_text_is_refused_where_scalings_follow_the_length(name):
    """Keys of deeper layers know the old frequencies; the reference reads on, with numbers of neither text."""
    ours, x = load(oracle.checkpoint(name)[1]), tokens(length=24)
    cache = Cache(ours.config)
    near(torch.cat([ours(x[:, :6], cache=cache), ours(x[:, 6:7], cache=cache)], dim=1), ours(x[:, :7]))
    with pytest.raises(ValueError, match="filled with the RoPE frequencies of a text of 7 tokens, and one of 20"):
        ours(x[:, 7:20], cache=cache)
    cache.cut(0)
    near(ours(x[:, :20], cache=cache), oracle.checkpoint(name)[0](x[:, :20]).logits)


@torch.no_grad()
@pytest.mark.parametrize("W", [3, 5])
def test_a_rolling_cache_around_the_length_of_the_window(W):
    theirs, folder = oracle.checkpoint("mistral")
    model = load(folder)
    for block in model.stack.blocks:
        assert block.attention.kind == "window"
    config = dataclasses.replace(model.config, window=W)
    model.config = model.stack.config = config
    for n in (W - 1, W, W + 1, 2 * W):
        x, cache = tokens(length=n + 2), Cache(config, rolling=True)
        rows = torch.cat([model(x[:, :n], cache=cache), model(x[:, n : n + 1], cache=cache),
                          model(x[:, n + 1 :], cache=cache)], 1)  # fmt: skip
        near(rows, model(x))
        assert cache.layers[0].keys.shape[2] == min(W - 1, n + 2)


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ALL))
def test_round_trip(name, tmp_path):
    """load → save → the reference loads it and agrees; what we load again agrees to the bit."""
    theirs, folder = oracle.checkpoint(name)
    ours = load(folder)
    save(ours, tmp_path)
    again, back = load(tmp_path), oracle.reload(name, tmp_path)
    for (key, value), other in zip(ours.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(value, other), key
    theirs_state, back_state = theirs.state_dict(), back.state_dict()
    assert theirs_state.keys() == back_state.keys()
    # beside an untied head the reference keeps a bias that it never adds: we do not write it
    unused = ("predictions.bias", "lm_head.bias") if "untied" in name else ()
    for key, value in theirs_state.items():
        assert torch.equal(value, back_state[key]) or key.endswith(unused), key


@torch.no_grad()
@pytest.mark.parametrize("name", list(oracle.ALL))
def test_a_model_made_from_a_config_is_saved_in_the_words_of_a_family(name, tmp_path):
    """The reference loads the folder and agrees; what we load again agrees to the bit."""
    import transformers

    given = load(oracle.checkpoint(name)[1])
    torch.manual_seed(0)
    ours = type(given)(given.config).eval()
    for parameter in ours.parameters():
        parameter.normal_(std=0.3)
    save(ours, tmp_path)
    again = load(tmp_path)
    assert again.config == ours.config
    for (key, value), other in zip(ours.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(value, other[1]), key
    kind = json.loads((tmp_path / "config.json").read_text())["model_type"]
    classes = {json.loads((oracle.checkpoint(other)[1] / "config.json").read_text())["model_type"]: other
               for other in oracle.ALL}  # fmt: skip
    theirs = oracle.reload(classes[kind], tmp_path)
    assert isinstance(theirs, transformers.PreTrainedModel)
    x = source(name)
    written = {"decoder_input_ids": tokens(1, 9)} if name in oracle.ENCODER_DECODERS else {}
    near(logits(ours, x), theirs(x, **written).logits)


@torch.no_grad()
@pytest.mark.parametrize("name,switches", [
    ("gemma-2", {"window": None, "layer_types": None}),  # the reference wants a width that no layer has
    ("gemma-3", {"window": None, "layer_types": None}),
    ("neox", {"rope": Rope(1e4, 8)}),  # the whole head turns
    ("mpt", {"attention_dropout": 0.0}), ("mpt", {"clip_qkv": 1}),
])  # fmt: skip
def test_the_reference_loads_a_changed_config_that_its_family_can_express(name, switches, tmp_path):
    torch.manual_seed(0)
    ours = Decoder(dataclasses.replace(load(oracle.checkpoint(name)[1]).config, **switches)).eval()
    for parameter in ours.parameters():
        parameter.normal_(std=0.3)
    save(ours, tmp_path)
    near(logits(ours, tokens()), oracle.reload(name, tmp_path)(tokens()).logits)


CONFIG = Config(31, 16, 2, 4, 20, 32)
ROPE = dict(positions="rope", rope=Rope(1e4, 2, "longrope", 4.0, 8, short_factor=(1.0,), long_factor=(2.0,)))
OWN = {
    "sinks": (Decoder, dict(norm="rms", positions="none", softcap=3.0, sinks=True)),
    "window": (Decoder, dict(n_kv_heads=2, window=3, layer_types=("full", "window"), **ROPE)),
    "alibi": (Decoder, dict(positions="alibi")),
    "experts": (Decoder, dict(n_experts=3, experts_per_token=2, gated=True)),
    "encoder": (Encoder, dict(causal=False, d_embedding=8, masked_head=True, pooler=True, n_segments=2)),
    "sinusoids": (EncoderDecoder, dict(positions="sinusoidal")),
    "buckets": (EncoderDecoder, dict(norm="rms", positions="t5", buckets=8, bucket_distance=20)),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", list(OWN))
def test_a_model_of_no_family_is_saved_in_our_own_words(name, tied, tmp_path):
    kind, switches = OWN[name]
    config = dataclasses.replace(CONFIG, tied=tied, **switches)
    if kind is EncoderDecoder:
        encoder = dataclasses.replace(config, causal=False, n_layers=1)
        config = dataclasses.replace(config, encoder=encoder)
    model = kind(config).eval()
    save(model, tmp_path)
    again = load(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"].startswith("tx_")
    assert type(again) is kind and again.config == config
    x = tokens() % 31
    run = (lambda m: m(x, x)) if kind is EncoderDecoder else (lambda m: m(x))
    assert torch.equal(run(again), run(model))
    for (key, value), other in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert key == other[0] and torch.equal(value, other[1])
    count = lambda m: sum(parameter.numel() for parameter in m.parameters())
    assert count(again) == count(model)


@pytest.mark.parametrize("switches", [{}, {"positions": "alibi"}])
def test_a_parameter_that_no_model_would_have_is_not_lost(switches, tmp_path):
    model = Decoder(dataclasses.replace(CONFIG, **switches))
    model.stack.odd = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="2 parameters have no name in a file of .*, the first is stack.odd"):
        save(model, tmp_path)


def test_a_module_that_is_no_model_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="a Linear cannot be saved: expected a Decoder, Encoder or"):
        save(torch.nn.Linear(2, 2), tmp_path)


# ── what a file has and we do not read ──


def changed(name, folder, change=None, **values):
    """A copy of a checkpoint with other weights and settings; the reference's model of it."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(oracle.checkpoint(name)[1], folder)
    weights = dict(load_file(folder / "model.safetensors"))
    if change:
        change(weights)
    weights = {key: value.clone() for key, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder, **values)
    return oracle.reload(name, folder)


def another(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


HEADS = {"bert": "cls.predictions", "roberta": "lm_head", "albert": "predictions"}


@torch.no_grad()
@pytest.mark.parametrize("name", list(HEADS))
def test_the_bias_inside_and_beside_the_head_for_masked_tokens(name, tmp_path):
    inside, beside = f"{HEADS[name]}.decoder.bias", f"{HEADS[name]}.bias"
    equal = changed(name, tmp_path / "equal", lambda w: w.update({inside: w[beside]}))
    near(load(tmp_path / "equal").logits(tokens()), equal(tokens()).logits)
    alone = changed(name, tmp_path / "alone", lambda w: w.update({inside: w.pop(beside) + 1}))
    near(load(tmp_path / "alone").logits(tokens()), alone(tokens()).logits)
    changed(name, tmp_path / "other", lambda w: w.update({inside: another(61)}))
    with pytest.raises(CheckpointError, match=f"differs    {inside}   expected a copy of {beside}"):
        load(tmp_path / "other")


@torch.no_grad()
@pytest.mark.parametrize("name", ["bart", "marian", "t5", "mt5"])
def test_the_embeddings_of_two_stacks_are_one(name, tmp_path):
    prefix = "" if name.endswith("t5") else "model."
    shared = f"{prefix}shared.weight"
    copies = [f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    expected = logits(load(oracle.checkpoint(name)[1]), tokens())
    for title, change in (("equal", lambda w: w.update(dict.fromkeys(copies, w[shared]))),
                          ("alone", lambda w: w.update(dict.fromkeys(copies, w.pop(shared))))):  # fmt: skip
        theirs = changed(name, tmp_path / title, change)
        near(theirs(tokens(), decoder_input_ids=tokens(1, 9)).logits, expected)
        assert torch.equal(logits(load(tmp_path / title), tokens()), expected)
    for copy_ in copies:
        changed(name, tmp_path / copy_, lambda w, copy_=copy_: w.update({copy_: another(61, 32)}))
        with pytest.raises(CheckpointError, match=f"differs    {copy_}   expected a copy of {shared}"):
            load(tmp_path / copy_)


def test_the_sinusoids_in_a_file_are_sinusoids(tmp_path):
    from tx.families.encoder_decoders import sinusoids

    name = "model.encoder.embed_positions.weight"
    table = sinusoids((64, 32))
    for dtype in (torch.float32, torch.float16):
        changed("marian", tmp_path / str(dtype), lambda w, dtype=dtype: w.update({name: table.to(dtype)}))
        assert load(tmp_path / str(dtype)).config.positions == "sinusoidal"
    changed("marian", tmp_path / "other", lambda w: w.update({name: table + 1e-4}))
    with pytest.raises(CheckpointError, match=f"differs    {name}   expected a copy of the sinusoids"):
        load(tmp_path / "other")


@torch.no_grad()
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_file_without_the_bias_beside_the_head_has_none(name, tmp_path):
    """So are files of the bare model; it is no parameter, and the reference then adds zeros."""
    theirs = changed(name, tmp_path / "bare", lambda w: w.pop("final_logits_bias"))
    ours = load(tmp_path / "bare")
    expected = theirs(tokens(), decoder_input_ids=tokens(1, 9)).logits
    near(logits(ours, tokens()), expected)
    save(ours, tmp_path / "again")
    near(logits(load(tmp_path / "again"), tokens()), expected)
    near(oracle.reload(name, tmp_path / "again")(tokens(), decoder_input_ids=tokens(1, 9)).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("name,values", [
    ("gemma", {"hidden_act": "silu"}), ("gemma", {"hidden_act": "gelu"}),
    ("gemma-2", {"hidden_activation": "relu", "hidden_act": "silu"}),
    ("t5", {"dense_act_fn": "silu"}), ("t5-v1.1", {"dense_act_fn": "relu"}), ("mt5", {"dense_act_fn": "gelu"}),
    ("qwen-2-window", {"sliding_window": None, "layer_types": None}),
    ("qwen-2-window", {"layer_types": None, "max_window_layers": 3}),
    ("qwen-2", {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"] * 3}),
    ("deberta-v3", {"tie_word_embeddings": False}),
    # other names of a key, which win
    ("openai-gpt", {"num_attention_heads": 8}), ("gpt2", {"num_attention_heads": 2}),
    ("bloom", {"num_attention_heads": 8}), ("mpt", {"num_attention_heads": 8}),
    ("bart", {"num_attention_heads": 2}), ("marian", {"num_attention_heads": 8}),
    ("t5", {"head_dim": 6, "d_kv": 3, "num_attention_heads": 4}),
    # the older spelling of a rope counts where a file has both, and is the whole of it
    ("llama-3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("llama-3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 70.0}),
    ("llama-yarn", {"rope_scaling": {}}),
    # what stands outside is a whole number, what stands inside, and counts, is none
    ("llama-3", {"rope_theta": 10000, "rope_parameters": {"rope_type": "default", "rope_theta": 300.5}}),
    ("neox", {"rotary_emb_base": 10000, "rotary_pct": 1, "rope_parameters": {
        "rope_type": "default", "rope_theta": 300.5, "partial_rotary_factor": 0.5}}),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 1}), ("bloom", {"pretraining_tp": 4}),
    ("gemma-3-linear", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
])  # fmt: skip
def test_settings_that_are_honoured_as_the_reference_does(name, values, tmp_path):
    theirs = changed(name, tmp_path / "changed", **values)
    written = {"decoder_input_ids": tokens(1, 9)} if name in oracle.ENCODER_DECODERS else {}
    near(logits(load(tmp_path / "changed"), tokens()), theirs(tokens(), **written).logits)


def random_rope(rng, pairs):
    """Parameters of one rope, any of which may be missing."""
    kind = rng.choice(["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
    maybe = {
        "rope_type": (0.8, kind), "type": (0.2, kind), "factor": (0.85, rng.choice([0.5, 1.0, 2.0, 8])),
        "rope_theta": (0.4, rng.choice([10.0, 500.0, 1e6])), "truncate": (0.2, rng.random() < 0.5),
        "original_max_position_embeddings": (0.5, rng.choice([8, 16, 200, 4096])),
        "attention_factor": (0.3, 1.3), "mscale": (0.3, rng.choice([0.7, 0.0])), "mscale_all_dim": (0.3, 1.3),
        "beta_fast": (0.2, 16), "low_freq_factor": (0.5, 1.0), "high_freq_factor": (0.5, 2.0),
        "short_factor": (0.5, [1 + i / 10 for i in range(pairs)]),
        "long_factor": (0.5, [2 + i / 10 for i in range(pairs)]), "partial_rotary_factor": (0.03, 0.5),
    }  # fmt: skip
    return {key: value for key, (chance, value) in maybe.items() if rng.random() < chance}


ROTARY = {"llama": ("llama", "Llama"), "phi3": ("phi3", "Phi3"), "gpt_neox": ("gpt_neox", "GPTNeoX"),
          "gemma3_text": ("gemma3", "Gemma3"), "modernbert": ("modernbert", "ModernBert")}  # fmt: skip


@pytest.mark.parametrize("family", list(ROTARY))
def test_random_ropes_in_every_spelling_mean_what_they_mean_to_the_reference(family):
    """Frequencies and magnitudes agree to fp32; what the reference cannot read, we refuse as well."""
    import transformers

    folder, prefix = ROTARY[family]
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    rng, read = random.Random(family), 0
    nested, pairs = family in ("gemma3_text", "modernbert"), 2 if family == "gpt_neox" else 8
    for _ in range(80):
        values = {"model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
                  "num_hidden_layers": 6, "vocab_size": 61, **dict.fromkeys((f"{x}_token_id" for x in (
                      "pad", "bos", "eos", "cls", "sep")), 0)}  # fmt: skip
        values |= {"head_dim": 16} if family == "gemma3_text" else {}
        values["max_position_embeddings"] = rng.choice([64, 512, 4096])
        for key, value in (("rope_theta", 100.0), ("rotary_emb_base", 700.0), ("rotary_pct", 0.5),
                           ("rope_local_base_freq", 77.0), ("global_rope_theta", 78.0), ("local_rope_theta", 79.0),
                           ("original_max_position_embeddings", 300)):  # fmt: skip
            values |= {key: value} if rng.random() < 0.2 else {}
        new = random_rope(rng, pairs)
        if nested:
            new = {"full_attention": new, "sliding_attention": random_rope(rng, pairs)}
        values["rope_parameters"] = rng.choice([None, new])
        values["rope_scaling"] = rng.choice([None, {}, random_rope(rng, pairs)])
        try:
            config = build(values).config
        except CheckpointError:
            continue
        theirs = getattr(module, f"{prefix}RotaryEmbedding")(
            transformers.AutoConfig.for_model(**copy.deepcopy(values)))  # fmt: skip
        kinds = (("full_attention_", config.rope), ("sliding_attention_", config.rope_window))
        for kind, rope in kinds if nested else (("", config.rope),):
            got, magnitude = rope_frequencies(rope, torch.tensor([[0, 3]]))  # (d_half,)
            torch.testing.assert_close(got, getattr(theirs, f"{kind}inv_freq"), rtol=2e-5, atol=0)
            assert magnitude == pytest.approx(getattr(theirs, f"{kind}attention_scaling"), rel=1e-6)
        read += 1
    assert read > 25


# (checkpoint, a switch, another value): flipping it must move the logits by far more than the noise
SWITCHES = [
    ("gpt2", "norm_place", "post"), ("gpt2", "activation", "relu"), ("gpt2", "scale", 1.0),
    ("gpt2-switches", "scale_by_layer", False), ("gpt2", "norm_eps", 0.3),
    ("neox", "parallel", False), ("bloom", "embedding_norm", False), ("bloom", "positions", "none"),
    ("bloom-6-heads", "residual_after_norm", False),
    ("mpt-6-heads", "clip_qkv", None), ("mpt-6-heads", "positions", "none"), ("llama-1", "norm", "layer"),
    ("llama-1", "rope", "base"), ("llama-3", "rope", "scaling"), ("llama-linear", "rope", "factor"),
    ("llama-yarn", "rope", "magnitude"), ("mistral", "layer_types", ("full", "window", "full")),
    ("mistral", "window", 6), ("gemma", "embedding_scale", None), ("gemma", "norm", "rms"),
    ("gemma-2", "softcap", None), ("gemma-2", "logit_softcap", None), ("gemma-2", "norm_place", "pre"),
    ("gemma-2", "layer_types", ("full", "window", "full")), ("gemma-3", "qk_norm", ""),
    ("gemma-3", "rope_window", None), ("qwen-2", "attention_bias", ""), ("llama-biases", "ffn_bias", False),
    ("olmo-2", "norm_place", "pre"), ("olmo-2", "qk_norm", ""),
    ("mixtral", "experts_per_token", 1), ("mixtral", "norm_expert_weights", False),
    ("qwen-3-moe", "norm_expert_weights", False), ("qwen-3-moe-window", "norm_expert_weights", True),
    ("qwen-3-moe-window", "layer_types", ("full", "full", "window")), ("llama-1", "gated", False),
    ("albert", "activation", "relu"), ("deberta", "content_position", False),
    ("deberta", "position_content", False), ("deberta-v3", "norm_positions", False),
    ("deberta-v3", "buckets", 8), ("modernbert", "first_attention_norm", True), ("modernbert", "window", 3),
    ("t5", "head_scale", None), ("t5", "scale", None), ("t5", "bucket_distance", 5),
    ("bart", "embedding_scale", None), ("bart", "head_bias", False), ("bart", "final_norm", True),
]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name,switch,value", SWITCHES)
def test_each_switch_bears_load(name, switch, value):
    _, folder = oracle.checkpoint(name)
    model = load(folder)
    config = model.config
    if switch in ("rope", "rope_window") and isinstance(value, str):
        changed = {"base": 7.0, "scaling": "default", "factor": 5.0, "magnitude": 2.0}[value]
        value = dataclasses.replace(config.rope, **{value: changed})
    other = dataclasses.replace(config, **{switch: value})
    if other.encoder is not None and switch not in ("head_scale", "head_bias"):
        other = dataclasses.replace(other, encoder=dataclasses.replace(config.encoder, **{switch: value}))
    flipped = type(model)(other).eval()
    room = {key: value.shape for key, value in flipped.state_dict().items()}
    fits = {key: value for key, value in model.state_dict().items() if room.get(key) == value.shape}
    flipped.load_state_dict(fits, strict=False)
    before = logits(model, tokens())
    moved = (logits(flipped, tokens()) - before).abs().max().item()
    assert moved > 10 * 5e-5 * max(1.0, before.std().item())


@pytest.mark.parametrize("layout,rows", [
    ("rows", [0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121, 200, 201, 210, 211, 220, 221]),
    ("per head", [0, 1, 100, 101, 200, 201, 10, 11, 110, 111, 210, 211, 20, 21, 120, 121, 220, 221]),
])  # fmt: skip
def test_rows_of_a_fused_matrix(layout, rows):
    """Three heads of two features; 100 · (0 query, 1 key, 2 value) + 10 · head + feature."""
    fused = torch.tensor(rows)[:, None] + torch.tensor([0.0, 0.5])  # (18, 2)
    ours = [100 * kind + torch.tensor([0, 1, 10, 11, 20, 21])[:, None] + torch.tensor([0.0, 0.5])
            for kind in range(3)]  # fmt: skip
    for turned in ("", "turned "):
        pair = Pair("theirs", ("query", "key", "value"), turned + layout)
        stored = fused.T if turned else fused
        assert torch.equal(torch.stack(pair.split(stored, [6, 6, 6], 3)), torch.stack(ours))
        assert torch.equal(pair.join(ours, 3), stored)
        bias = pair.split(fused[:, 0], [6, 6, 6], 3)
        assert torch.equal(torch.stack(bias), torch.stack(ours)[..., 0])
        assert torch.equal(pair.join(bias, 3), fused[:, 0])


def edit(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | values))


@pytest.mark.parametrize("narrower", [False, True])
@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.startswith("tx_")])
def test_what_a_file_leaves_out_means_what_the_reference_means(family, narrower):
    """A file without a norm's epsilon or a soft cap loads, so the defaults must be right."""
    from transformers import AutoConfig

    given = {"relative_attention": True, "position_biased_input": False} if "deberta" in family else {}
    whole = AutoConfig.for_model(family, **given)
    if narrower:  # half as wide: does the head's width follow?
        key = next(key for key in ("n_embd", "d_model", "hidden_size") if key in whole.to_dict())
        given[key] = whole.to_dict()[key] // 2
        whole = AutoConfig.for_model(family, **given)
    written = json.loads(whole.to_json_string(use_diff=False))
    assert build({"model_type": family, **given}).config == build(written).config


def test_a_file_of_mt5_that_leaves_its_gate_out(tmp_path):
    shutil.copytree(oracle.checkpoint("mt5")[1], tmp_path / "mt5")
    path = tmp_path / "mt5" / "config.json"
    config = json.loads(path.read_text())
    left = {key: config[key] for key in config.keys() - {"feed_forward_proj", "is_gated_act", "dense_act_fn"}}
    path.write_text(json.dumps(left))
    assert load(tmp_path / "mt5").config == load(oracle.checkpoint("mt5")[1]).config


@torch.no_grad()
@pytest.mark.parametrize("name,old", [
    ("llama-3", {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {
        "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    ("neox-sequential", {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 500.0}),
    ("gemma-3-linear", {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("modernbert", {"rope_parameters": None, "layer_types": None, "global_rope_theta": 160000.0,
                    "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}),
    ("qwen-3-moe", {"num_local_experts": None, "num_experts": 5}),
    ("t5-v1.1", {"scale_decoder_outputs": None, "tie_word_embeddings": False}),
])  # fmt: skip
def test_old_spellings_of_the_settings(name, old, tmp_path):
    _, folder = oracle.checkpoint(name)
    shutil.copytree(folder, tmp_path / "old")
    edit(tmp_path / "old", **old)
    assert load(tmp_path / "old").config == load(folder).config


# Settings as they were published, with fewer layers and experts where that changes nothing.
PUBLISHED = {
    "GPT": dict(model_type="openai-gpt", afn="gelu", n_ctx=512, n_special=0, predict_special_tokens=True),
    "GPT-2": dict(model_type="gpt2", activation_function="gelu_new", n_ctx=1024, n_positions=1024,
                  resid_pdrop=0.1, task_specific_params={"text-generation": {"do_sample": True}}),
    "Pythia": dict(model_type="gpt_neox", hidden_act="gelu", hidden_size=512, intermediate_size=2048,
                   num_attention_heads=8, num_hidden_layers=6, rotary_emb_base=10000, rotary_pct=0.25,
                   vocab_size=50304, use_parallel_residual=True),
    "BLOOM": dict(model_type="bloom", n_embed=1024, n_layer=3, num_attention_heads=16, n_inner=None,
                  masked_softmax_fusion=True, offset_alibi=100, seq_length=2048, hidden_dropout=0.0),
    "MPT": dict(model_type="mpt", d_model=4096, n_heads=32, n_layers=2, expansion_ratio=4, no_bias=True,
                attn_config={"alibi": True, "clip_qkv": 6.0, "softmax_scale": None, "qk_ln": False}),
    "Code Llama": dict(model_type="llama", rope_theta=1000000, rope_scaling=None, num_hidden_layers=2,
                       max_position_embeddings=16384, rms_norm_eps=1e-5, pretraining_tp=1),
    "LLaMA 3.1": dict(model_type="llama", num_key_value_heads=8, num_hidden_layers=2, rope_theta=500000.0,
                      max_position_embeddings=131072, rope_scaling={
                          "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    "LLaMA, linear": dict(model_type="llama", num_hidden_layers=2, rope_scaling={"type": "linear", "factor": 4}),
    "Mistral 0.1": dict(model_type="mistral", num_hidden_layers=2, rope_theta=10000.0, sliding_window=4096),
    "Mistral 0.3": dict(model_type="mistral", num_hidden_layers=2, rope_theta=1000000.0, sliding_window=None),
    "Mixtral": dict(model_type="mixtral", num_hidden_layers=2, rope_theta=1000000.0, sliding_window=None),
    "Gemma": dict(model_type="gemma", hidden_act="gelu", hidden_activation=None, num_hidden_layers=2,
                  num_attention_heads=8, num_key_value_heads=1, rope_scaling=None, rope_theta=10000.0),
    "Gemma 2": dict(model_type="gemma2", hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid",
                    query_pre_attn_scalar=224, sliding_window_size=4096, rope_theta=10000.0),
    "Gemma 3": dict(model_type="gemma3_text", rope_theta=1000000, rope_local_base_freq=10000, sliding_window=512,
                    sliding_window_pattern=6, query_pre_attn_scalar=256, rope_scaling=None),
    "Gemma 3 4B": dict(model_type="gemma3_text", rope_scaling={"factor": 8.0, "rope_type": "linear"}),
    "Qwen 2.5": dict(model_type="qwen2", max_window_layers=21, sliding_window=32768, use_sliding_window=False,
                     rope_theta=1000000.0, num_hidden_layers=2),
    "Qwen 2.5, YaRN": dict(model_type="qwen2", num_hidden_layers=2, use_sliding_window=False, rope_scaling={
        "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
    "Qwen 3": dict(model_type="qwen3", head_dim=128, rope_scaling=None, rope_theta=1000000, sliding_window=None,
                   num_hidden_layers=2, max_window_layers=28),
    "Qwen 3 MoE": dict(model_type="qwen3_moe", num_experts=16, num_hidden_layers=2, mlp_only_layers=[],
                       decoder_sparse_step=1, rope_theta=1000000.0, head_dim=128),
    "OLMo 2": dict(model_type="olmo2", num_hidden_layers=2, rope_theta=500000, rope_scaling=None),
    "Phi-3, 128k": dict(model_type="phi3", num_hidden_layers=2, max_position_embeddings=131072,
                        original_max_position_embeddings=4096, sliding_window=262144, rope_scaling={
                            "type": "longrope", "short_factor": [1.05] * 48, "long_factor": [1.5] * 48}),
    "Phi-4-mini": dict(model_type="phi3", num_hidden_layers=2, partial_rotary_factor=0.75, rope_theta=10000.0,
                       num_attention_heads=24, num_key_value_heads=8, original_max_position_embeddings=4096,
                       max_position_embeddings=131072, rope_scaling={
                           "type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48}),
    "BERT": dict(model_type="bert", gradient_checkpointing=False, hidden_act="gelu", type_vocab_size=2,
                 position_embedding_type="absolute"),
    "RoBERTa": dict(model_type="roberta", max_position_embeddings=514, pad_token_id=1, type_vocab_size=1),
    "ALBERT": dict(model_type="albert", net_structure_type=0, gap_size=0, num_memory_blocks=0, hidden_size=768,
                   num_hidden_groups=1, inner_group_num=1, down_scale_factor=1, hidden_dropout_prob=0,
                   num_attention_heads=12, hidden_act="gelu_new"),
    "DeBERTa": dict(model_type="deberta", pos_att_type="c2p|p2c", max_relative_positions=-1, type_vocab_size=0,
                    relative_attention=True, position_biased_input=False, padding_idx=0),
    "DeBERTa 3": dict(model_type="deberta-v2", pos_att_type="p2c|c2p", norm_rel_ebd="layer_norm",
                      share_att_key=True, position_buckets=256, relative_attention=True,
                      position_biased_input=False, num_hidden_layers=2),
    "ModernBERT": dict(model_type="modernbert", global_rope_theta=160000.0, local_rope_theta=10000.0,
                       global_attn_every_n_layers=3, local_attention=128, layer_norm_eps=1e-5),
    "T5": dict(model_type="t5", d_ff=2048, d_kv=64, n_positions=512, output_past=True, num_layers=6),
    "FLAN-T5": dict(model_type="t5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=8),
    "mT5": dict(model_type="mt5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.1),
    "BART": dict(model_type="bart", scale_embedding=False, normalize_before=False, normalize_embedding=True,
                 num_hidden_layers=2, encoder_layers=2, decoder_layers=2, extra_pos_embeddings=2),
    "Marian": dict(model_type="marian", d_model=512, static_position_embeddings=True, scale_embedding=True,
                   activation_function="swish", encoder_layers=2, decoder_layers=2, encoder_attention_heads=8,
                   decoder_attention_heads=8, add_bias_logits=False, num_hidden_layers=2),
    "Whisper": dict(model_type="whisper", d_model=384, num_hidden_layers=4, scale_embedding=False,
                    begin_suppress_tokens=[220, 50256], forced_decoder_ids=[[1, 50362]], vocab_size=51864),
}  # fmt: skip


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_settings_mean_the_same_in_the_references_own_spelling(name):
    import transformers

    values = dict(PUBLISHED[name])
    theirs = transformers.AutoConfig.for_model(**copy.deepcopy(values)).to_dict()
    assert build(values).config == build(json.loads(json.dumps(theirs))).config


def test_what_the_reference_makes_of_a_flat_rope_for_two_kinds_of_layers_loads():
    """It keeps what it does not apply; a flat rope alone is refused, see test_checkpoints."""
    import transformers

    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0}
    theirs = transformers.Gemma3TextConfig(rope_parameters=dict(flat)).to_dict()
    assert theirs["rope_parameters"]["factor"] == 8.0
    assert build(theirs).config == build({"model_type": "gemma3_text"}).config


@torch.no_grad()
def test_prefixes_and_shards_and_an_untied_copy_of_the_head(tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = oracle.checkpoint("gpt2")
    expected = load(folder)(tokens())
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in weights.items()}
    names = sorted(bare)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        save_file({n: bare[n].contiguous() for n in part}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    shutil.copy(folder / "config.json", tmp_path)
    index = {"weight_map": {n: f"model-0000{1 + names.index(n) % 2}-of-00002.safetensors" for n in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = load(tmp_path)
    assert torch.equal(model(tokens()), expected)
    assert model.head.linear.weight is model.stack.embedding.weight
    head = torch.randn(61, 32)
    save_file({"lm_head.weight": head}, tmp_path / "model-head.safetensors")
    assert torch.equal(load(tmp_path)(tokens()), expected), "what the index does not name is not read"
    (tmp_path / "model.safetensors.index.json").unlink()
    untied = load(tmp_path)
    assert torch.equal(untied.head.linear.weight, head)
    assert not torch.equal(untied.stack.embedding.weight, head)
