"""A training loop in ten lines, used until chapter 7 writes the real one."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR


def cross_entropy(logits, targets):
    """Mean cross-entropy in nats: logits (…, V), targets (…) integers -> ()."""
    logits = logits.flatten(0, -2)  # (N, V)
    return F.cross_entropy(logits, targets.flatten())  # ()


def fit(model, batch, steps=300, lr=1e-2, loss=cross_entropy):
    """Train `model` on fresh batches with Adam; the learning rate rises and falls once.

    Args:
        model: an `nn.Module`; `model(x)` is compared with `y`.
        batch: a function without arguments that returns a fresh `(x, y)`.
        steps: number of updates.
        lr: the highest learning rate.
        loss: `loss(model(x), y)` -> ().

    Returns:
        The loss of every step, a list of `steps` floats.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = OneCycleLR(optimizer, lr, total_steps=steps + 1)
    losses = []
    for _ in range(steps):
        x, y = batch()
        value = loss(model(x), y)  # ()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses
