"""Texts as vectors: mean pooling, unit length, and search by cosine (chapter 10).

Source: Reimers and Gurevych 2019, Sentence-BERT (arXiv:1908.10084): the mean of the hidden states of all
real tokens, here of unit length, so that a dot product is a cosine.
"""

import torch
import torch.nn.functional as F

from ..checkpoints import load
from ..encoder import Encoder
from ..files.packaged import locate
from ..files.sentence_transformers import read_recipe
from ..tokenization import batch, load_tokenizer


def pool(hidden, real):
    """The mean over real tokens: hidden (B, T, D), real (B, T) booleans -> (B, D).

    Raises:
        ValueError: another shape, or a mask that is not boolean.
    """
    if hidden.dim() != 3 or real.shape != hidden.shape[:2] or real.dtype != torch.bool:
        found = f"hidden {tuple(hidden.shape)}, real {tuple(real.shape)} of {real.dtype}"
        raise ValueError(f"{found}: expected (B, T, D) and (B, T) of booleans, True = a real token.")
    weights = real[..., None].to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)  # (B, D)


class Embedder:
    """Turns texts into vectors of unit length.

    Args:
        source: an encoder's checkpoint, as for `load`. What a folder of sentence-transformers says of the
            steps, the longest text and the prompt is heeded or refused, see `tx.files.sentence_transformers`.

    Attributes:
        longest: tokens of a text that are read, prompt, [CLS] and [SEP] counted.
        prompt: text in front of every text, "" where the folder names no default.

    Raises:
        ValueError: the model is no encoder, or its vectors are more than the mean.
    """

    def __init__(self, source="all-minilm-l6-v2"):
        folder = locate(source)
        self.prompt, longest = read_recipe(folder)
        self.model = load(source)
        if not isinstance(self.model, Encoder):
            raise ValueError(f"{source} is no encoder: texts become vectors with a BERT or its kind.")
        self.tokenizer = load_tokenizer(source)
        most = self.model.config.max_positions
        self.longest = most if longest is None else min(longest, most)

    def encode(self, text):
        """The ids of prompt and text; of one that is too long the beginning, and the last special token."""
        ids = self.tokenizer.encode(self.prompt + text)
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

    Raises:
        ValueError: k below 1, or vectors of other shapes, of numbers that are no floating point, or not of
            unit length.
    """
    _check_search(query, passages, k)
    cosines = passages @ query  # (N,)
    best = cosines.topk(min(k, len(passages)))
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def _check_texts(texts, batch_size):
    right = isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts)
    if not right:
        raise ValueError(f"texts = {texts!r:.80}: expected a list with at least one text.")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size = {batch_size!r}: expected a whole number from 1.")


def _check_search(query, passages, k):
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k = {k!r}: expected a whole number from 1.")
    for name, x in (("query", query), ("passages", passages)):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            found = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{name}: found {found}, expected a tensor of floating-point numbers.")
    if query.dim() != 1 or passages.dim() != 2 or passages.shape[1] != len(query):
        shapes = f"query {tuple(query.shape)}, passages {tuple(passages.shape)}"
        raise ValueError(f"{shapes}: expected (D,) and (N, D).")
    if query.dtype != passages.dtype:
        raise ValueError(f"query is {query.dtype}, passages are {passages.dtype}: expected one type.")
    for name, x in (("query", query[None]), ("passages", passages)):
        lengths = x.float().norm(dim=-1)  # (N,)  1 for the query
        odd = lengths[~((lengths - 1).abs() <= 0.01)]  # (n,)  also where it is NaN
        if len(odd):
            raise ValueError(f"{name}: a vector has length {float(odd[0]):.4g}, expected 1.")
