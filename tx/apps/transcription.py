"""From a recording to its text: Whisper, window by window (chapter 10).

Source: Radford et al. 2022 (arXiv:2212.04356). The model hears 30 s at a time. A longer recording is cut
where it is quietest, so that no word is cut, and the texts of the windows are put side by side.
"""

import math
import warnings
import zlib
from typing import NamedTuple

import torch

from ..cache import Cache
from ..checkpoints import load
from ..files.packaged import locate
from ..files.settings import read_settings
from ..sampling import sample
from ..tokenization import load_tokenizer
from .audio import CHUNK, RATE, check_rates, check_samples, log_mel, read_wav, resample

EARLIEST = 20  # seconds of a window after which it may be cut
PAUSE = 0.4  # seconds over which loudness is measured
MARKS = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
ENGLISH = 50256  # id of the end in a vocabulary for English; with more languages it is 50257
# The paper's heuristics (section 4.5). A text that goes round in a loop compresses too well, and a text that
# the model is unsure of is written again too, each time with bolder draws.
TEMPERATURES, LOOP, UNSURE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 2.4, -1.0
LOOK = 50  # tokens after which a text is looked at for a loop, and again after as many
# Nothing was said where the model thinks so and its words are unsure or next to none: into silence it writes
# "you", and is sure of it.
NO_SPEECH, FEW = 0.6, 3


def windows(samples, rate):
    """Where a recording (N,) is cut: [(start, stop), …], none longer than 30 s.

    A cut lies in the middle of the quietest 0.4 s of the last ten seconds of a window.

    Raises:
        ValueError: a rate that is none, or samples that `check_samples` refuses.
    """
    check_rates(rate)
    check_samples(samples)
    starts, pause = [0], int(PAUSE * rate)
    while len(samples) - starts[-1] > CHUNK * rate:
        low, high = starts[-1] + EARLIEST * rate, starts[-1] + CHUNK * rate
        loudness = samples[low:high].square().unfold(0, pause, max(1, pause // 4)).mean(-1)  # (n,)
        starts.append(low + int(loudness.argmin()) * max(1, pause // 4) + pause // 2)
    return list(zip(starts, [*starts[1:], len(samples)], strict=True))


class Attempt(NamedTuple):
    """What the model wrote for a window.

    certainty: mean log-probability of the ids and their end. nothing_said: how probable the model finds that.
    whole: whether the text came to its end, and did not go round in a loop.
    """

    ids: list
    certainty: float
    nothing_said: float
    whole: bool


class Transcriber:
    """Writes down what it hears.

    Args:
        source: the checkpoint of a Whisper for English, as for `load`.

    Raises:
        ValueError: the model does not hear, or knows several languages.
    """

    def __init__(self, source="whisper-tiny.en"):
        self.model, self.tokenizer = load(source), load_tokenizer(source)
        if getattr(self.model, "front", None) is None:
            raise ValueError(f"{source} does not hear: recordings need a Whisper.")
        self.eos, start, self.no_times = map(self.tokenizer.id, MARKS)
        if self.eos != ENGLISH:
            raise ValueError(f"{source} knows several languages: only the English models (.en) are supported.")
        self.start = torch.tensor([[start, self.no_times]])  # (1, 2)
        self.never, self.not_first = _suppressed(locate(source), self.model.config.vocab_size)

    def __call__(self, path, *, on_text=None):
        """The text of a wav file of any rate, mono or stereo, of any length; for the rest see `hear`.

        Raises:
            ValueError: the file is no wav that `read_wav` reads; the message says how to convert it.
        """
        return self.hear(*read_wav(path), on_text=on_text)

    def hear(self, samples, rate=RATE, *, on_text=None):
        """The text of samples (N,) in [-1, 1] at `rate` Hz, of any length; "" where nothing is said.

        A window in which the model goes round in a loop however it draws gives no text, and a warning. The
        draws are the same each time.

        on_text: called as `on_text(text, stop, length)` after every window, times in seconds.

        Raises:
            ValueError: a rate that is none; integers, no samples, NaN, or samples far beyond [-1, 1].
        """
        texts = []
        for begin, end in windows(samples, rate):
            text = self._window(resample(samples[begin:end], rate))
            if text is None:
                warnings.warn(f"from {begin / rate:.0f} s to {end / rate:.0f} s the model repeats itself without "
                              "end: nothing is written there.", stacklevel=2)  # fmt: skip
            texts.append(text or "")
            if on_text is not None:
                on_text(texts[-1], end / rate, len(samples) / rate)
        return " ".join(text for text in texts if text)

    @torch.no_grad()
    def _window(self, samples):
        """The text of up to 30 s of samples (N,) at 16 kHz, or None where every attempt went round in a loop.

        Of attempts that are all unsure the least unsure one counts.
        """
        memory = self.model.encode(log_mel(samples, self.model.config.encoder.n_mels))  # (1, S, D)
        generator = torch.Generator().manual_seed(0)
        found: list[Attempt] = []
        for temperature in TEMPERATURES:
            attempt = self._write(memory, temperature, generator)
            sure = attempt.certainty >= UNSURE
            if attempt.nothing_said > NO_SPEECH and (not sure or len(attempt.ids) <= FEW):
                return ""
            found += [attempt] if attempt.whole else []
            if attempt.whole and sure:
                break
        best = max(found, key=lambda attempt: attempt.certainty, default=None)
        return None if best is None else self.tokenizer.decode(best.ids).strip()

    def _write(self, memory, temperature, generator):
        """One attempt at the text of a window: an `Attempt`. memory (1, S, D)."""
        config, ids = self.model.config, list[int]()
        cache, tokens, certainty, ended = Cache(config), self.start, 0.0, False
        for step in range(config.max_positions - 1):
            logits = self.model.decode(tokens, memory, cache=cache)[0]  # (T, V)
            if step == 0:
                nothing_said = float(logits[0].softmax(-1)[self.no_times - 1])
            scores = logits[-1].index_fill(0, self.never, -math.inf)  # (V,)
            scores = scores if step else scores.index_fill(0, self.not_first, -math.inf)  # (V,)
            tokens = sample(scores[None], temperature, generator=generator)[None]  # (1, 1)
            certainty += float(scores.log_softmax(-1)[tokens[0, 0]])
            ended = int(tokens) == self.eos
            if ended or step % LOOK == LOOK - 1 and self._loops(ids):
                break
            ids.append(int(tokens))
        return Attempt(ids, certainty / (step + 1), nothing_said, ended and not self._loops(ids))

    def _loops(self, ids):
        """Whether the text of these ids compresses as only a repetition does."""
        text = self.tokenizer.decode(ids).encode()
        return len(text) > LOOP * len(zlib.compress(text))


def _suppressed(folder, vocab_size):
    """Ids that are never written, and ids that do not come first: noises and signs, as the files say."""
    values: dict = {}
    for name in ("generation_config.json", "config.json"):
        values = read_settings(folder / name) | values
    never = values.get("suppress_ids") or values.get("suppress_tokens") or []
    not_first = values.get("suppress_ids_begin") or values.get("begin_suppress_tokens") or []
    for ids in (never, not_first):
        if not isinstance(ids, list) or not all(isinstance(id, int) and 0 <= id < vocab_size for id in ids):
            raise ValueError(f"{folder} suppresses {ids!r:.80}: expected ids, 0 … {vocab_size - 1}.")
    never = {*never, *range(ENGLISH + 1, vocab_size)}  # of the special tokens only the end is written
    return torch.tensor(sorted(never)), torch.tensor(not_first, dtype=torch.long)  # (n,), (m,)
