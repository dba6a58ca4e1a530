"""Steps over x [2, 3], each with its first state, whose plans are printed and kept in files."""

from __future__ import annotations

from typing import Any

import torch

from stepnet import cells

DTYPE = torch.float64


def cell(name: str) -> tuple[Any, Any]:
    """A cell as a function, and its first state."""
    made = getattr(cells, name)(3, 4, dtype=DTYPE)
    return lambda x, s: made(x, s), made.initial_state(2)


def _kalman(x, state):
    mean, cov = state
    gain = torch.linalg.solve(cov + torch.eye(3, dtype=DTYPE), cov)
    mean = mean + (gain @ (x - mean)[:, :, None])[:, :, 0]
    return mean, (mean, cov - gain @ cov + 0.1 * torch.eye(3, dtype=DTYPE))


KALMAN = (_kalman, (torch.zeros(2, 3, dtype=DTYPE), torch.eye(3, dtype=DTYPE).repeat(2, 1, 1)))
