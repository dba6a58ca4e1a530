"""What flows: ragged tables of rows and arrays of steps; and what batches of them are made by."""

from __future__ import annotations

from .collate import collate as collate
from .lod import LoDTensor
from .sampler import RowBudgetSampler as RowBudgetSampler

from_arrow, to_arrow = LoDTensor.from_arrow, LoDTensor.to_arrow
from_awkward, to_awkward = LoDTensor.from_awkward, LoDTensor.to_awkward
from_pandas, to_pandas = LoDTensor.from_pandas, LoDTensor.to_pandas
