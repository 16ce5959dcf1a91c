"""From a recording to what Whisper hears: wav files, resampling, log-mel spectrograms (chapter 9).

Source: Radford et al. 2022 (arXiv:2212.04356, section 2.2): 80 mel channels, windows of 25 ms every
10 ms, at 16 kHz; Slaney's mel scale. Wav files: Microsoft and IBM 1991, Multimedia Programming Interface
and Data Specifications 1.0, and Microsoft's page on WAVEFORMATEXTENSIBLE.
"""

import math
import struct
import warnings
from functools import cache

import torch
import torch.nn.functional as F

RATE, WINDOW, HOP, CHUNK = 16000, 400, 160, 30  # Hz, samples, samples, seconds
RATES = range(100, 400_001)  # Hz of a recording; beyond, the filter of `resample` would take gigabytes
PIECE = 2**24  # bytes read at a time: an hour at once would take gigabytes
LOUDEST = 8.0  # a mix may go beyond 1 by some decibels; samples that nobody scaled go far beyond

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # format tags; the last one says that the tag stands in a GUID
TAIL = bytes.fromhex("000000001000800000aa00389b71")  # of a GUID that begins with a format tag
WIDTHS = {PCM: (1, 2, 3, 4), FLOAT: (4, 8)}  # bytes of a sample
UNKNOWN = 0x7FFFF000  # bytes, from which on a header says nothing: programs that write to a pipe put such a number
MOST_PARTS = 1000  # parts of a file in front of its samples


def read_wav(path):
    """A wav file as mono float samples in [-1, 1], and its rate: (N,), Hz.

    Samples are integers of 8, 16, 24 or 32 bits or floating-point numbers of 32 or 64, with a plain or an
    extensible header. The channels are averaged. A file that ends before its header says is read as far as
    it goes, with a warning.

    Raises:
        ValueError: the file is no such wav (the message says how to convert it), has no samples, or its
            floating-point samples are not finite or go far beyond [-1, 1].
    """
    try:
        with open(path, "rb") as file:
            kind, width, channels, rate, said = _read_header(file)
            frame, left, pieces = width * channels, said, []
            while len(raw := file.read(min(left, max(1, PIECE // frame) * frame))) >= frame:
                pieces.append(_to_mono(raw[: len(raw) // frame * frame], kind, width, channels))
                left -= len(raw)
            behind = file.read(4 + said % 2)[said % 2 :]  # the name of a part, where there is one
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except _NoWav as error:
        advice = "convert it to PCM wav, e.g. with: ffmpeg -i IN -ac 1 -ar 16000 OUT.wav"
        raise ValueError(f"{path} is no wav file that can be read ({error}): {advice}") from error
    if not pieces:
        raise ValueError(f"{path} has no samples: there is nothing to hear.")
    samples = torch.cat(pieces)  # (N,)
    check_samples(samples, path)
    if len(samples) < said // frame and said < UNKNOWN:
        warnings.warn(f"{path} is cut off: its header says {said / frame / rate:.1f} s, it has "
                      f"{len(samples) / rate:.1f} s.", stacklevel=1)  # fmt: skip
    if behind and not behind[:3].isalnum():
        warnings.warn(f"{path} goes on behind its samples, which end after {len(samples) / rate:.1f} s by its "
                      "header: the rest is not read.", stacklevel=1)  # fmt: skip
    return samples, rate


class _NoWav(Exception):
    """Why a file is no wav file that can be read."""


def _read_header(file):
    """Of a wav file: format tag, bytes of a sample, channels, rate in Hz, and how many bytes of samples it claims.

    Afterwards the file stands at its first sample.
    """
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] not in (b"WAVE", b""):
        raise _NoWav(f"it begins with {start!r}")
    form = None
    for _ in range(MOST_PARTS):
        head = file.read(8)
        if len(head) < 8:
            raise _NoWav("it ends within its header")
        name, size = struct.unpack("<4sI", head)
        if name == b"data":
            break
        after = file.tell() + size + size % 2
        if name == b"fmt ":
            form = file.read(min(size, 40))
        file.seek(after)
    else:
        raise _NoWav(f"its first {MOST_PARTS} parts have no samples")
    if form is None or len(form) < 16:
        raise _NoWav("it does not say how its samples are stored")
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == EXTENSIBLE and form[26:] == TAIL:
        kind = int.from_bytes(form[24:26], "little")
    if bits % 8 or bits // 8 not in WIDTHS.get(kind, ()) or rate not in RATES:
        raise _NoWav(
            f"samples of {bits} bits at {rate} Hz in format {kind}, expected integers of 8, 16, 24 or 32 "
            f"bits (format {PCM}) or floats of 32 or 64 ({FLOAT}) at {RATES[0]} … {RATES[-1]} Hz"
        )
    if channels == 0 or frame != channels * bits // 8:
        raise _NoWav(f"{channels} channels of {bits} bits in {frame} bytes")
    return kind, bits // 8, channels, rate, size


def _to_mono(raw, kind, width, channels):
    """Bytes of samples of so many bytes, the channels interleaved, as one channel in [-1, 1]: (N,)."""
    samples = torch.frombuffer(bytearray(raw), dtype=torch.uint8)  # (bytes,)
    if kind == FLOAT:
        wide = samples.view(torch.float32 if width == 4 else torch.float64)  # (N * channels,)
        return wide.view(-1, channels).mean(-1).float()  # (N,)
    samples = samples.view(-1, width)  # (N * channels, width)
    if width == 1:
        wide = samples[:, 0].float() - 128  # (N * channels,)  8 bits are unsigned
    else:
        scale = 256.0 ** torch.arange(width - 1)  # (width - 1,)
        low = (samples[:, :-1].float() * scale).sum(-1)  # (N * channels,)
        wide = low + samples[:, -1].view(torch.int8).float() * 256.0 ** (width - 1)  # (N * channels,)
    return (wide / 2 ** (8 * width - 1)).view(-1, channels).mean(-1)  # (N,)


def check_samples(samples, name="samples"):
    """Refuse what is no recording: expected are floating-point samples (N,), at least one, in [-1, 1].

    Raises:
        ValueError: integers, another shape, no samples, NaN, or samples that go far beyond [-1, 1].
    """
    if not isinstance(samples, torch.Tensor) or samples.dim() != 1 or not samples.is_floating_point():
        shown = samples
        if isinstance(samples, torch.Tensor):
            shown = f"{samples.dtype} {tuple(samples.shape)}"
        raise ValueError(f"{name}: found {shown!s:.80}, expected a tensor of floating-point samples (N,) in "
                         "[-1, 1]; integers of 16 bits become such by x.float() / 2**15.")  # fmt: skip
    if not len(samples):
        raise ValueError(f"{name}: there are none, so there is nothing to hear.")
    loudest = float(samples.abs().max())
    if not loudest <= LOUDEST:  # also where it is NaN
        raise ValueError(f"{name}: the loudest is {loudest:g}, expected finite numbers in [-1, 1] (a recording "
                         f"that goes beyond may reach {LOUDEST:g}).")  # fmt: skip


def resample(samples, rate, new=RATE):
    """Samples (N,) at `rate` Hz at another rate, by a windowed sinc filter: (n_new,).

    Raises:
        ValueError: rates that are none, or samples that `check_samples` refuses.
    """
    check_rates(rate, new)
    check_samples(samples)
    if rate == new:
        return samples
    common = math.gcd(rate, new)
    up, down = new // common, rate // common
    cutoff = 0.99 * min(up, down) / down  # of the old rate's band, so that nothing folds back
    reach = math.ceil(6 / cutoff)  # old samples on each side
    phase = torch.arange(up).double()[:, None] * down / up  # (up, 1)  where the new samples fall
    start = phase.floor().long()  # (up, 1)
    taps = torch.arange(-reach, reach + 1)[None]  # (1, taps)
    x = taps - (phase - start)  # (up, taps)
    shape = torch.cos(x.clamp(-reach, reach) * math.pi / (2 * (reach + 1))) ** 2  # (up, taps)
    kernel = (cutoff * torch.sinc(cutoff * x) * shape).float()  # (up, taps)
    kernel = kernel / kernel.sum(-1, keepdim=True)  # (up, taps)
    n_new = math.ceil(len(samples) * up / down)
    blocks = math.ceil(n_new / up)
    longest = (blocks - 1) * down + int(start.max()) + 2 * reach + 1
    padded = F.pad(samples, (reach, max(0, longest - reach - len(samples))))  # (n_padded,)  silence on both sides
    at = torch.arange(blocks)[:, None] * down + start.T  # (blocks, up)
    out = sum(padded[at + i] * kernel[:, i] for i in range(2 * reach + 1))  # (blocks, up)
    return out.flatten()[:n_new]  # (n_new,)


def check_rates(*rates):
    if not all(isinstance(rate, int) and rate in RATES for rate in rates):
        raise ValueError(f"rate, new = {rates}: expected whole numbers of Hz, {RATES[0]} … {RATES[-1]}.")


@cache
def mel_filters(n_mels=80):
    """Triangles on Slaney's mel scale, each of area one: (n_mels, WINDOW / 2 + 1).

    n_mels: at most 128; of more, some would fall between the frequencies of the spectrum.
    """
    if not isinstance(n_mels, int) or not 1 <= n_mels <= 128:
        raise ValueError(f"n_mels = {n_mels!r}: expected a whole number, 1 … 128.")

    def to_hz(mel):
        return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))

    top = 15 + math.log(RATE / 2 / 1000) * 27 / math.log(6.4)  # mel of the highest frequency
    edges = to_hz(torch.linspace(0, top, n_mels + 2, dtype=torch.float64))  # (n_mels + 2,)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)  # (n_bins,)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]  # (n_mels, n_bins)
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]  # (n_mels, n_bins)
    triangles = torch.minimum(rise, fall).clamp(min=0)  # (n_mels, n_bins)
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float()  # (n_mels, n_bins)


def log_mel(samples, n_mels=80):
    """Whisper's input: up to 30 s of samples (N,) at 16 kHz -> (1, n_mels, 3000), padded with silence.

    Raises:
        ValueError: more than 30 s, or samples that `check_samples` refuses.
    """
    check_samples(samples)
    if len(samples) > CHUNK * RATE:
        raise ValueError(f"samples: {len(samples) / RATE:.1f} s at {RATE} Hz, expected at most {CHUNK} s: "
                         "cut them with `windows`, or use `Transcriber.hear`, which does.")  # fmt: skip
    samples = F.pad(samples.float(), (0, CHUNK * RATE - len(samples)))  # (480000,)
    window = torch.hann_window(WINDOW)  # (400,)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)  # (n_bins, 3001)
    power = spectrum[:, :-1].abs().square()  # (n_bins, 3000)
    mel = (mel_filters(n_mels) @ power).clamp(min=1e-10).log10()  # (n_mels, 3000)
    mel = mel.clamp(min=float(mel.max()) - 8)  # (n_mels, 3000)
    return ((mel + 4) / 4)[None]  # (1, n_mels, 3000)
