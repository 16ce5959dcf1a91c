"""Audio: wav files, resampling, and the log-mel spectrogram that Whisper hears."""

import math
import struct
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


def riff(path, *parts):
    """A wav file of parts (name, bytes), or (name, bytes, size that it claims)."""
    body = b"WAVE"
    for name, content, *claimed in parts:
        body += name + struct.pack("<I", *claimed or [len(content)]) + content + bytes(len(content) % 2)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def form(kind, bits, channels=1, rate=16000, frame=None):
    frame = channels * bits // 8 if frame is None else frame
    return struct.pack("<HHIIHH", kind, channels, rate, rate * frame % 2**32, frame, bits)


def extensible(kind, bits, channels=1, tail="000000001000800000aa00389b71"):
    """The long header that ffmpeg writes for 24 bits, and Windows for floating point."""
    guid = kind.to_bytes(2, "little") + bytes.fromhex(tail)
    return form(0xFFFE, bits, channels) + struct.pack("<HHI", 22, bits, 4) + guid


VALUES = [0.5, -1.0, 0.25, 0.0, 1.0, -0.75, 1.5]  # the last one is beyond full scale


@pytest.mark.parametrize("make", [form, extensible])
@pytest.mark.parametrize("bits", [32, 64])
def test_floating_point_samples(tmp_path, make, bits):
    data = struct.pack(f"<7{'f' if bits == 32 else 'd'}", *VALUES)
    path = riff(tmp_path / "a.wav", (b"fmt ", make(3, bits)), (b"fact", bytes(4)), (b"data", data))
    samples, rate = audio.read_wav(path)
    assert rate == 16000 and samples.dtype == torch.float32 and samples.tolist() == VALUES


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_extensible_headers_and_other_parts(tmp_path, bits):
    top = 2 ** (bits - 1)
    whole = [top // 2, -top, -top // 4, 0]
    data = b"".join((v + 128 * (bits == 8)).to_bytes(bits // 8, "little", signed=bits > 8) for v in whole)
    path = riff(tmp_path / "a.wav", (b"JUNK", b"odd"), (b"fmt ", extensible(1, bits, channels=2)),
                (b"LIST", b"INFO"), (b"data", data), (b"id3 ", b"a song"))  # fmt: skip
    with warnings.catch_warnings(action="error"):
        assert audio.read_wav(path)[0].tolist() == [-0.25, -0.125]


ONE = b"data", struct.pack("<4h", 1, 2, 3, 4)


@pytest.mark.parametrize("parts,words", [
    ([(b"fmt ", form(1, 12, frame=2)), ONE], "samples of 12 bits at 16000 Hz in format 1, expected integers of 8"),
    ([(b"fmt ", form(1, 64)), ONE], "samples of 64 bits at 16000 Hz in format 1"),
    ([(b"fmt ", form(3, 16)), ONE], "samples of 16 bits at 16000 Hz in format 3"),
    ([(b"fmt ", form(7, 8)), ONE], "samples of 8 bits at 16000 Hz in format 7"),
    ([(b"fmt ", extensible(1, 16, tail="00" * 14)), ONE], "in format 65534"),
    ([(b"fmt ", extensible(1, 16)[:24]), ONE], "in format 65534"),
    ([(b"fmt ", form(1, 16, channels=0)), ONE], "0 channels of 16 bits in 0 bytes"),
    ([(b"fmt ", form(1, 16, frame=4)), ONE], "1 channels of 16 bits in 4 bytes"),
    ([(b"fmt ", form(1, 16)[:14]), ONE], "it does not say how its samples are stored"),
    ([ONE, (b"fmt ", form(1, 16))], "it does not say how its samples are stored"),
    ([(b"fmt ", form(1, 16), 2**32 - 1), ONE], "it ends within its header"),
    ([(b"JUNK", b"", 2**31), (b"fmt ", form(1, 16)), ONE], "it ends within its header"),
    ([(b"fmt ", form(1, 16))], "it ends within its header"),
    ([(b"fmt ", form(1, 16)), *1000 * [(b"JUNK", b"")], ONE], "its first 1000 parts have no samples"),
    *(([(b"fmt ", form(1, 16, rate=rate)), ONE], f"16 bits at {rate} Hz in format 1, .* at 100 … 400000 Hz")
      for rate in (0, 99, 400_001, 2**31)),
])  # fmt: skip
def test_headers_that_are_refused(tmp_path, parts, words):
    path = riff(tmp_path / "a.wav", *parts)
    with pytest.raises(ValueError, match=rf"a.wav is no wav file that can be read \(.*{words}.*\): convert it to"):
        audio.read_wav(path)


def test_files_that_are_no_wav_are_refused(tmp_path):
    for name, content, words in (
        ("empty.wav", b"", r"is no wav file that can be read \(it begins with b''\): convert it to PCM wav"),
        ("header.wav", b"RIFF\x32\0\0\0WAVEfmt \x12\0\0\0\1\0", r"\(it ends within its header\)"),
        ("song.mp3", b"ID3\x04" + bytes(200), r"\(it begins with b'ID3"),
        ("big.wav", b"RF64\xff\xff\xff\xffWAVEds64", r"\(it begins with b'RF64"),
        ("film.avi", b"RIFF\x32\0\0\0AVI LIST", r"\(it begins with b'RIFF"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=words):
            audio.read_wav(tmp_path / name)
    for rate in (100, 400_000):
        write(tmp_path / "odd.wav", [0] * 9, rate=rate)
        assert audio.read_wav(tmp_path / "odd.wav")[1] == rate
    write(tmp_path / "silent.wav", [])
    with pytest.raises(ValueError, match="has no samples: there is nothing to hear"):
        audio.read_wav(tmp_path / "silent.wav")
    for path, why in (("nothing.wav", "No such file"), (".", "Is a directory")):
        with pytest.raises(ValueError, match=f"cannot be read: {why}"):
            audio.read_wav(tmp_path / path)


@pytest.mark.parametrize("bits,odd", [(32, math.nan), (32, math.inf), (64, -math.inf), (64, 1e300), (32, 32767.0)])
def test_floating_point_files_of_odd_numbers_are_refused(tmp_path, bits, odd):
    data = struct.pack(f"<3{'f' if bits == 32 else 'd'}", 0.5, odd, 0)
    path = riff(tmp_path / "a.wav", (b"fmt ", form(3, bits)), (b"data", data))
    with pytest.raises(ValueError, match=r"a.wav: the loudest is .*, expected finite numbers in \[-1, 1\]"):
        audio.read_wav(path)


def test_what_follows_the_samples_is_not_dropped_silently(tmp_path):
    path = riff(tmp_path / "a.wav", (b"fmt ", form(1, 16)), (b"data", struct.pack("<8000h", *range(8000)), 8000))
    with pytest.warns(UserWarning, match="goes on behind its samples, which end after 0.2 s by its header"):
        assert len(audio.read_wav(path)[0]) == 4000


ODD = [  # what is no recording, whoever is asked to hear it
    ((torch.ones(9) * 32767).to(torch.int16), r"found torch.int16 \(9,\), expected a tensor of floating-point"),
    (torch.zeros(9, dtype=torch.bool), "found torch.bool"),
    (torch.zeros(2, 9), r"found torch.float32 \(2, 9\)"),
    ([0.0, 0.5], r"found \[0.0, 0.5\], expected a tensor"),
    (None, "found None, expected a tensor"),
    (torch.zeros(0), "there are none, so there is nothing to hear"),
    (torch.tensor([0, math.nan, 0]), "the loudest is nan, expected finite numbers"),
    (torch.tensor([0, -math.inf, 0]), "the loudest is inf"),
    (torch.tensor([0, -32768.0]), r"the loudest is 32768, expected finite numbers in \[-1, 1\]"),
]  # fmt: skip


@pytest.mark.parametrize("samples,words", ODD)
def test_what_is_no_recording_is_refused(samples, words):
    for use in (audio.log_mel, lambda x: audio.resample(x, 8000), lambda x: audio.resample(x, 16000)):
        with pytest.raises(ValueError, match=words):
            use(samples)


def test_other_floating_points_are_heard_as_fp32():
    samples = sine(440, 16000) / 2
    for dtype, error in ((torch.float64, 1e-6), (torch.float16, 0.02)):  # measured: 0 and 0.01
        torch.testing.assert_close(audio.log_mel(samples.to(dtype)), audio.log_mel(samples), atol=error, rtol=0)
        assert audio.log_mel(samples.to(dtype)).dtype == torch.float32
    assert audio.log_mel(samples * 12).isfinite().all()  # a mix beyond full scale


def test_more_than_30_seconds_are_refused():
    assert audio.log_mel(torch.zeros(30 * 16000)).shape == (1, 80, 3000)
    with pytest.raises(ValueError, match="31.5 s at 16000 Hz, expected at most 30 s: cut them with `windows`"):
        audio.log_mel(torch.zeros(int(31.5 * 16000)))


@pytest.mark.parametrize("n_mels", [0, 129, -1, 80.5, "80"])
def test_numbers_of_mels_that_are_none(n_mels):
    with pytest.raises(ValueError, match="n_mels = .*: expected a whole number, 1 … 128"):
        audio.log_mel(torch.zeros(9), n_mels)


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


def test_resampling_keeps_a_constant():
    got = audio.resample(torch.full((9000,), 0.5), 44100)[200:-200]
    torch.testing.assert_close(got, torch.full_like(got, 0.5), atol=1e-6, rtol=0)


def test_a_click_is_heard_when_it_sounds():
    click = torch.zeros(16000)
    click[4800] = 1  # the middle of frame 30
    assert audio.log_mel(click)[0].sum(0).argmax() == 30


def test_mel_filters_are_triangles_of_area_one():
    for n_mels in (80, 128):
        filters = audio.mel_filters(n_mels)
        assert filters.shape == (n_mels, 201) and (filters >= 0).all() and (filters.sum(-1) > 0).all()
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
