"""From a recording to its text: Whisper, window by window (chapter 10).

Source: Radford et al. 2022 (arXiv:2212.04356). The model hears 30 s at a time. A longer recording is cut
where it is quietest, so that no word is cut, and the texts of the windows are put side by side.
"""

import math

import torch

from ..cache import Cache
from ..checkpoints import load
from ..files.packaged import locate
from ..files.settings import read_settings
from ..tokenization import load_tokenizer
from .audio import CHUNK, log_mel, read_wav, resample

EARLIEST = 20  # seconds of a window after which it may be cut
PAUSE = 0.4  # seconds over which loudness is measured
MARKS = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
ENGLISH = 50256  # id of the end in a vocabulary for English; with more languages it is 50257
# Nothing was said where the model thinks so and its words are unsure (thresholds of the paper, section
# 4.5) or next to none: into silence it writes "you", and is sure of it.
NO_SPEECH, UNSURE, FEW = 0.6, -1.0, 3


def windows(samples, rate):
    """Where a recording (N,) is cut: [(start, stop), …], none longer than 30 s.

    A cut lies in the middle of the quietest 0.4 s of the last ten seconds of a window.
    """
    starts, pause = [0], int(PAUSE * rate)
    while len(samples) - starts[-1] > CHUNK * rate:
        low, high = starts[-1] + EARLIEST * rate, starts[-1] + CHUNK * rate
        loudness = samples[low:high].square().unfold(0, pause, max(1, pause // 4)).mean(-1)  # (n,)
        starts.append(low + int(loudness.argmin()) * max(1, pause // 4) + pause // 2)
    return list(zip(starts, [*starts[1:], len(samples)], strict=True))


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
        """The text of a PCM wav file of any rate, mono or stereo, of any length.

        on_text: called as `on_text(text, stop, length)` after every window, times in seconds.

        Raises:
            ValueError: the file is no PCM wav; the message says how to convert it.
        """
        samples, rate = read_wav(path)  # (N,)
        texts = []
        for begin, end in windows(samples, rate):
            texts.append(self.hear(resample(samples[begin:end], rate)))
            if on_text is not None:
                on_text(texts[-1], end / rate, len(samples) / rate)
        return " ".join(text for text in texts if text)

    @torch.no_grad()
    def hear(self, samples):
        """The text of up to 30 s of samples (N,) at 16 kHz; "" where nothing is said."""
        config = self.model.config
        memory = self.model.encode(log_mel(samples, config.encoder.n_mels))  # (1, S, D)
        cache, tokens, certainty, written = Cache(config), self.start, 0.0, []
        for step in range(config.max_positions // 2):  # as many as the paper allows
            logits = self.model.decode(tokens, memory, cache=cache)[0]  # (T, V)
            if step == 0:
                nothing_said = float(logits[0].softmax(-1)[self.no_times - 1])
            scores = logits[-1].index_fill(0, self.never, -math.inf)  # (V,)
            scores = scores if step else scores.index_fill(0, self.not_first, -math.inf)  # (V,)
            token = scores.argmax()  # ()
            certainty += float(scores.log_softmax(-1)[token])
            if token == self.eos:
                break
            written.append(int(token))
            tokens = token.view(1, 1)  # (1, 1)
        if nothing_said > NO_SPEECH and (certainty / (step + 1) < UNSURE or len(written) <= FEW):
            return ""
        return self.tokenizer.decode(written).strip()


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
