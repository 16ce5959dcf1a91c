"""Texts as vectors: mean pooling, unit length, and search by cosine (chapter 10).

Source: Reimers and Gurevych 2019, Sentence-BERT (arXiv:1908.10084): the mean of the hidden states of all
real tokens, here of unit length, so that a dot product is a cosine.
"""

import torch
import torch.nn.functional as F

from ..checkpoints import load
from ..encoder import Encoder
from ..files.packaged import locate
from ..files.settings import read_settings
from ..tokenization import batch, load_tokenizer


def pool(hidden, real):
    """The mean over real tokens: hidden (B, T, D), real (B, T) booleans -> (B, D)."""
    weights = real[..., None].to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)  # (B, D)


class Embedder:
    """Turns texts into vectors of unit length.

    Args:
        source: an encoder's checkpoint, as for `load`. What the folder says of pooling and of the longest
            text (`1_Pooling/config.json`, `sentence_bert_config.json`) is heeded, other steps
            (`modules.json`) are refused.

    Attributes:
        longest: tokens of a text that are read, [CLS] and [SEP] counted.

    Raises:
        ValueError: the model is no encoder, or its vectors are more than the mean.
    """

    def __init__(self, source="all-minilm-l6-v2"):
        folder = locate(source)
        _check_modules(folder)
        _check_pooling(folder)
        self.model = load(source)
        if not isinstance(self.model, Encoder):
            raise ValueError(f"{source} is no encoder: texts become vectors with a BERT or its kind.")
        self.tokenizer = load_tokenizer(source)
        self.longest = _longest(folder, self.model.config.max_positions)

    def encode(self, text):
        """The ids of a text; of one that is too long the beginning, and the last special token."""
        ids = self.tokenizer.encode(text)
        if len(ids) > self.longest:
            ids = ids[: self.longest - 1] + ids[-1:]
        return ids

    @torch.no_grad()
    def __call__(self, texts, *, batch_size=32, on_batch=None):
        """Vectors of unit length, (N, D), in the order of the texts.

        Texts of similar length are read together, `batch_size` at a time, so that little padding is read.
        on_batch is called as `on_batch(texts done, texts)`.
        """
        _check_texts(texts, batch_size)
        rows = [self.encode(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = []
        for start in range(0, len(rows), batch_size):
            chosen = [rows[i] for i in order[start : start + batch_size]]
            tokens, real = batch(chosen, self.tokenizer.special.get("pad", 0))  # (B, T), (B, T)
            found.append(F.normalize(pool(self.model(tokens, real), real)))  # (B, D)
            if on_batch is not None:
                on_batch(start + len(chosen), len(rows))
        vectors = torch.cat(found)  # (N, D)
        return vectors[torch.tensor(order).argsort()]  # (N, D)


def search(query, passages, k=5):
    """The k passages nearest to a query, best first: [(cosine, number of the passage), …].

    query (D,), passages (N, D), of unit length.
    """
    _check_search(query, passages, k)
    cosines = passages @ query  # (N,)
    best = cosines.topk(min(k, len(passages)))
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def _longest(folder, most):
    settings = read_settings(folder / "sentence_bert_config.json")
    longest = settings.get("max_seq_length") or most
    if not isinstance(longest, int) or longest < 3:
        raise ValueError(f"{folder}: sentence_bert_config.json, max_seq_length = {longest!r}, expected 3 or more.")
    if settings.get("do_lower_case"):
        raise ValueError(f"{folder}: do_lower_case in sentence_bert_config.json is not supported.")
    return min(longest, most)


def _check_texts(texts, batch_size):
    right = isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts)
    if not right:
        raise ValueError(f"texts = {texts!r:.80}: expected a list with at least one text.")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size = {batch_size!r}: expected a whole number from 1.")


def _check_search(query, passages, k):
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k = {k!r}: expected a whole number from 1.")
    if query.dim() != 1 or passages.dim() != 2 or passages.shape[1] != len(query):
        shapes = f"query {tuple(query.shape)}, passages {tuple(passages.shape)}"
        raise ValueError(f"{shapes}: expected (D,) and (N, D).")


def _check_modules(folder):
    """A step between the model and the vector that is not taken here is refused, such as a Dense layer."""
    for module in read_settings(folder / "modules.json", list):
        kind = module.get("type") if isinstance(module, dict) else module
        if str(kind).rpartition(".")[2] not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"{folder}: modules.json has {kind!r:.80}, expected a transformer and its mean only.")


def _check_pooling(folder):
    given = read_settings(folder / "1_Pooling" / "config.json")
    modes = [name for name, on in given.items() if name.startswith("pooling_mode") and on is True]
    modes = [given["pooling_mode"]] if "pooling_mode" in given else modes  # the new spelling
    if modes and modes not in (["pooling_mode_mean_tokens"], ["mean"]):
        asked = ", ".join(map(str, modes))
        raise ValueError(f"{folder} asks for {asked}: only the mean over tokens is supported.")
