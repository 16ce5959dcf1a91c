"""Audio: wav files, resampling, and the log-mel spectrogram that Whisper hears."""

import math
import warnings
import wave

import pytest
import torch

from tx.apps import audio


def sine(hz, rate, seconds=0.5):
    return torch.sin(2 * math.pi * hz * torch.arange(int(rate * seconds)) / rate)


def write(path, samples, width=2, channels=1, rate=16000):
    """Integers as a PCM wav file."""
    if width == 1:
        raw = bytes(s + 128 for s in samples)
    else:
        raw = b"".join(s.to_bytes(width, "little", signed=True) for s in samples)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width(tmp_path, width):
    top = 2 ** (8 * width - 1)
    values = [0, top // 2, -top, top - 1, -1]
    write(tmp_path / "a.wav", values, width)
    samples, rate = audio.read_wav(tmp_path / "a.wav")
    assert rate == 16000
    torch.testing.assert_close(samples, torch.tensor([v / top for v in values]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_channels_are_averaged(tmp_path, width):
    top = 2 ** (8 * width - 1)
    write(tmp_path / "a.wav", [top // 2, top // 4, -top // 2, top // 2, 0, top // 2], width, channels=2, rate=8000)
    samples, rate = audio.read_wav(tmp_path / "a.wav")
    assert rate == 8000 and samples.tolist() == [0.375, 0.0, 0.25]


def test_files_that_are_no_pcm_wav_are_refused(tmp_path):
    for name, content, words in (
        ("empty.wav", b"", r"no PCM wav file \(it ends within its header\): convert it to PCM wav"),
        ("header.wav", b"RIFF\x32\0\0\0WAVEfmt \x12\0\0\0\1\0", r"\(it ends within its header\)"),
        ("text.wav", b"hello, I am a text and no recording", r"no PCM wav file \(.+\): convert it to PCM wav"),
        ("float.wav", b"RIFF\x32\0\0\0WAVEfmt \x12\0\0\0\3\0\1\0\x80>\0\0\0\xfa\0\0\4\0\x20\0\0\0data\0\0\0\0",
         "no PCM wav file"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=words):
            audio.read_wav(tmp_path / name)
    for rate in (1, 99, 400_001, 2**31 - 1):
        write(tmp_path / "odd.wav", [0] * 9, rate=rate)
        with pytest.raises(ValueError, match=f"16 bits at {rate} Hz, expected up to 32 bits at 100 … 400000 Hz"):
            audio.read_wav(tmp_path / "odd.wav")
    for rate in (100, 400_000):
        write(tmp_path / "odd.wav", [0] * 9, rate=rate)
        assert audio.read_wav(tmp_path / "odd.wav")[1] == rate
    write(tmp_path / "silent.wav", [])
    with pytest.raises(ValueError, match="has no samples: there is nothing to hear"):
        audio.read_wav(tmp_path / "silent.wav")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        audio.read_wav(tmp_path / "nothing.wav")


def test_pieces_of_a_recording_join(tmp_path, monkeypatch):
    monkeypatch.setattr(audio, "PIECE", 12)  # bytes: not a whole number of frames
    values = list(range(-500, 500))
    write(tmp_path / "a.wav", [value for value in values for _ in range(5)], channels=5)
    assert torch.equal(audio.read_wav(tmp_path / "a.wav")[0] * 2**15, torch.tensor(values).float())


def test_a_file_that_is_cut_off_is_read_with_a_warning(tmp_path):
    path = tmp_path / "a.wav"
    write(path, [100] * 32000)
    data = path.read_bytes()
    path.write_bytes(data[: 44 + 2 * 8000])
    with pytest.warns(UserWarning, match=r"a.wav is cut off: its header says 2.0 s, it has 0.5 s"):
        samples, _ = audio.read_wav(path)
    assert len(samples) == 8000
    path.write_bytes(data[:40] + b"\xff\xff\xff\xff" + data[44:])  # as programs leave it that write to a pipe
    with warnings.catch_warnings(action="error"):
        assert len(audio.read_wav(path)[0]) == 32000


@pytest.mark.parametrize("rate,new", [(0, 16000), (44100.0, 16000), (16000, -1)])
def test_rates_that_are_none(rate, new):
    with pytest.raises(ValueError, match="expected whole numbers of Hz"):
        audio.resample(torch.zeros(10), rate, new)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_a_resampled_sine_is_the_sine(rate):
    got = audio.resample(sine(440, rate), rate)
    assert len(got) == 8000
    inside = slice(200, -200)  # the ends lack neighbours
    torch.testing.assert_close(got[inside], sine(440, 16000)[inside], atol=5e-3, rtol=0)


def test_resampling_lets_nothing_fold_back():
    got = audio.resample(sine(11000, 44100), 44100)  # above the new band: would return as 5 kHz
    assert got[200:-200].abs().max() < 0.05
    same = sine(440, 16000)
    assert audio.resample(same, 16000) is same


def test_mel_filters_are_triangles_of_area_one():
    for n_mels in (80, 128):
        filters = audio.mel_filters(n_mels)
        assert filters.shape == (n_mels, 201) and (filters >= 0).all()
        wide = filters[-20:]  # narrow ones fall between the bins
        torch.testing.assert_close(wide.sum(-1) * 40, torch.ones(len(wide)), atol=0.08, rtol=0)
    peaks = audio.mel_filters(80).argmax(-1) * 40
    assert peaks[-1] > 7500 and (peaks.diff() >= 0).all()


def test_log_mel_of_silence_and_of_a_sine():
    silence = audio.log_mel(torch.zeros(1000))
    assert silence.shape == (1, 80, 3000)
    torch.testing.assert_close(silence, torch.full_like(silence, -1.5))  # (log10(1e-10) + 4) / 4
    mel = audio.log_mel(sine(1000, 16000, 1.0))[0]
    assert mel.shape == (80, 3000)
    loudest = mel[:, 50].argmax()
    assert audio.mel_filters(80)[loudest].argmax() * 40 == 1000
    torch.testing.assert_close(mel.max() - mel.min(), torch.tensor(2.0))  # 80 dB are kept
    assert (mel[:, 200:] == mel.min()).all()  # silence after the first second
