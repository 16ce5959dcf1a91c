"""Many heads (chapter 2): several attentions side by side, each in its own slice of the width.

Source: Vaswani et al. 2017 (arXiv:1706.03762, section 3.2.2).
"""

from torch import nn

from .scaled_dot_product import attention


def split_heads(x, n_heads):
    """(B, T, D) -> (B, H, T, d_k), d_k = D / H: head h owns features h·d_k … (h+1)·d_k - 1.

    Raises:
        ValueError: D is not divisible by n_heads.
    """
    B, T, D = x.shape
    _check_divisible(D, n_heads)
    H, d_k = n_heads, D // n_heads
    rows = x.reshape(B, T, H, d_k)  # (B, T, H, d_k)
    return rows.transpose(1, 2)  # (B, H, T, d_k)


def merge_heads(x):
    """The way back: (B, H, T, d_k) -> (B, T, D). The heads are put side by side again."""
    B, H, T, d_k = x.shape
    rows = x.transpose(1, 2)  # (B, T, H, d_k)
    return rows.reshape(B, T, H * d_k)  # (B, T, D)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: project, split, attend in every head, merge, project.

    Args:
        d_model: width D of the tokens.
        n_heads: number of heads H; each has width d_k = D / H and the scale 1/√d_k.
        bias: whether the four projections have a bias.

    Raises:
        ValueError: d_model is not divisible by n_heads.
    """

    def __init__(self, d_model, n_heads, bias=False):
        super().__init__()
        _check_divisible(d_model, n_heads)
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias)
        self.key = nn.Linear(d_model, d_model, bias)
        self.value = nn.Linear(d_model, d_model, bias)
        self.out = nn.Linear(d_model, d_model, bias)

    def forward(self, x, mask=None, *, source=None,
                return_weights=False):
        """x (B, T, D) -> (B, T, D), or that and the weights (B, H, T, S).

        Args:
            x: the tokens that ask, (B, T, D).
            mask: who may look where, as in `attention`.
            source: the tokens that answer, (B, S, D); x itself unless given (self-attention).
            return_weights: also return the attention weights.
        """
        source = x if source is None else source  # (B, S, D)
        H = self.n_heads
        q = split_heads(self.query(x), H)  # (B, H, T, d_k)
        k = split_heads(self.key(source), H)  # (B, H, S, d_k)
        v = split_heads(self.value(source), H)  # (B, H, S, d_k)
        if not return_weights:
            out = attention(q, k, v, mask)  # (B, H, T, d_k)
            return self.out(merge_heads(out))  # (B, T, D)
        out, weights = attention(
            q, k, v, mask, return_weights=True
        )  # (B, H, T, d_k), (B, H, T, S)
        out = self.out(merge_heads(out))  # (B, T, D)
        return out, weights


def _check_divisible(d_model, n_heads):
    if n_heads < 1 or d_model % n_heads:
        raise ValueError(
            f"d_model = {d_model} is not divisible by n_heads = {n_heads}: "
            "every head gets a slice of the same width."
        )
