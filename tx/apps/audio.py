"""From a recording to what Whisper hears: wav files, resampling, log-mel spectrograms (chapter 9).

Source: Radford et al. 2022 (arXiv:2212.04356, section 2.2): 80 mel channels, windows of 25 ms every
10 ms, at 16 kHz; Slaney's mel scale.
"""

import math
import warnings
import wave
from functools import cache

import torch
import torch.nn.functional as F

RATE, WINDOW, HOP, CHUNK = 16000, 400, 160, 30  # Hz, samples, samples, seconds
RATES = range(100, 400_001)  # Hz of a recording; beyond, the filter of `resample` would take gigabytes
PIECE = 2**24  # bytes read at a time: an hour at once would take gigabytes

UNKNOWN = 0x7FFFF000  # bytes, from which on a header says nothing: programs that write to a pipe put such a number


def read_wav(path):
    """A PCM wav file as mono float samples in [-1, 1], and its rate: (N,), Hz.

    A file that ends before its header says is read as far as it goes, with a warning.

    Raises:
        ValueError: the file is no PCM wav (the message says how to convert it), or has no samples.
    """
    advice = "convert it to PCM wav, e.g. with: ffmpeg -i IN -ac 1 -ar 16000 OUT.wav"
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            if width not in (1, 2, 3, 4) or rate not in RATES:
                raise ValueError(
                    f"{path} has samples of {8 * width} bits at {rate} Hz, expected up to 32 bits at {RATES[0]} … "
                    f"{RATES[-1]} Hz: {advice}"
                )
            said, pieces = file.getnframes(), []
            while raw := file.readframes(max(1, PIECE // (width * channels))):
                pieces.append(_to_mono(raw, width, channels))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (wave.Error, EOFError) as error:
        why = str(error) or "it ends within its header"
        raise ValueError(f"{path} is no PCM wav file ({why}): {advice}") from error
    found = sum(map(len, pieces))
    if not found:
        raise ValueError(f"{path} has no samples: there is nothing to hear.")
    if found < said and said * width * channels < UNKNOWN:
        warnings.warn(f"{path} is cut off: its header says {said / rate:.1f} s, it has {found / rate:.1f} s.",
                      stacklevel=1)  # fmt: skip
    return torch.cat(pieces), rate  # (N,)


def _to_mono(raw, width, channels):
    """Bytes of samples of so many bytes, the channels interleaved, as one channel in [-1, 1]: (N,)."""
    raw = raw[: len(raw) // (width * channels) * width * channels]
    samples = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, width)  # (N, width)
    if width == 1:
        wide = samples[:, 0].float() - 128  # (N,)  8 bits are unsigned
    else:
        scale = 256.0 ** torch.arange(width - 1)  # (width - 1,)
        low = (samples[:, :-1].float() * scale).sum(-1)  # (N,)
        wide = low + samples[:, -1].view(torch.int8).float() * 256.0 ** (width - 1)  # (N,)
    return (wide / 2 ** (8 * width - 1)).view(-1, channels).mean(-1)  # (N // channels,)


def resample(samples, rate, new=RATE):
    """Samples (N,) at `rate` Hz at another rate, by a windowed sinc filter: (n_new,)."""
    _check_rates(rate, new)
    if rate == new:
        return samples
    common = math.gcd(rate, new)
    up, down = new // common, rate // common
    cutoff = 0.99 * min(up, down) / down  # of the old rate's band, so that nothing folds back
    reach = math.ceil(6 / cutoff)  # old samples on each side
    phase = torch.arange(up).float()[:, None] * down / up  # (up, 1)  where the new samples fall
    start = phase.floor().long()  # (up, 1)
    taps = torch.arange(-reach, reach + 1)[None]  # (1, taps)
    x = (taps - (phase - start)).double()  # (up, taps)
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


def _check_rates(*rates):
    if not all(isinstance(rate, int) and rate in RATES for rate in rates):
        raise ValueError(f"rate, new = {rates}: expected whole numbers of Hz, {RATES[0]} … {RATES[-1]}.")


@cache
def mel_filters(n_mels=80):
    """Triangles on Slaney's mel scale, each of area one: (n_mels, WINDOW / 2 + 1)."""

    def to_mel(hz):
        above = 15 + torch.log(hz.clamp(min=1) / 1000) * 27 / math.log(6.4)
        return torch.where(hz < 1000, hz * 3 / 200, above)

    def to_hz(mel):
        return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))

    top = to_mel(torch.tensor(RATE / 2, dtype=torch.float64))
    edges = to_hz(torch.linspace(0, float(top), n_mels + 2, dtype=torch.float64))  # (n_mels + 2,)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)  # (n_bins,)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]  # (n_mels, n_bins)
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]  # (n_mels, n_bins)
    triangles = torch.minimum(rise, fall).clamp(min=0)  # (n_mels, n_bins)
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float()  # (n_mels, n_bins)


def log_mel(samples, n_mels=80):
    """Whisper's input: up to 30 s of samples (N,) at 16 kHz -> (1, n_mels, 3000), padded with silence."""
    samples = F.pad(samples[: CHUNK * RATE], (0, max(0, CHUNK * RATE - len(samples))))  # (480000,)
    window = torch.hann_window(WINDOW)  # (400,)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)  # (n_bins, 3001)
    power = spectrum[:, :-1].abs().square()  # (n_bins, 3000)
    mel = (mel_filters(n_mels) @ power).clamp(min=1e-10).log10()  # (n_mels, 3000)
    mel = mel.clamp(min=float(mel.max()) - 8)  # (n_mels, 3000)
    return ((mel + 4) / 4)[None]  # (1, n_mels, 3000)
