"""Costs of padded sequences: what is padding costs nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.layers.costs import cross_entropy_of_sequences, mean_cross_entropy, mean_square

from .padded import PaddedLoD


def _losses(x: PaddedLoD, label: PaddedLoD, ignore: int | None) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row of the grid, and which rows count."""
    labels, counted = label.rows().to(torch.int64), _inside(x)
    if ignore is not None:
        counted = counted & (labels != ignore)
    losses = F.cross_entropy(x.rows(), torch.where(counted, labels, 0), reduction="none")
    return torch.where(counted, losses, 0), counted


def _mean_cross_entropy(x: PaddedLoD, label: PaddedLoD, ignore: int | None) -> Tensor:
    losses, counted = _losses(x, label, ignore)
    return losses.sum() / counted.sum().clamp(min=1)


def _cross_entropy_of_sequences(x: PaddedLoD, label: PaddedLoD, ignore: int | None) -> Tensor:
    sequences = torch.ones_like(x.lengths[0]).sum() if x.level == 1 else x.lengths[-2].sum()
    return _losses(x, label, ignore)[0].sum() / sequences.clamp(min=1)


def _mean_square(x: PaddedLoD, target: PaddedLoD) -> Tensor:
    inside = _inside(x).unsqueeze(-1)
    squares = torch.where(inside, (x.rows() - target.rows()).square(), 0)
    return squares.sum() / (inside.sum() * x.grid.shape[-1]).clamp(min=1)


def _inside(x: PaddedLoD) -> Tensor:
    """[n], true for the rows of the grid that are no padding."""
    return x.mask().flatten()


COSTS = {
    mean_cross_entropy: _mean_cross_entropy,
    cross_entropy_of_sequences: _cross_entropy_of_sequences,
    mean_square: _mean_square,
}
