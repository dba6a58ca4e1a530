"""What flows: ragged tables of rows and arrays of steps; and what batches of them are made by."""

from __future__ import annotations

from .collate import collate as collate
from .sampler import RowBudgetSampler as RowBudgetSampler
