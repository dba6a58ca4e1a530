"""What flows: ragged tables of rows and arrays of steps; and what batches of them are made by."""

from __future__ import annotations

from .collate import collate as collate
from .sampler import RowBudgetSampler as RowBudgetSampler
from .tables import from_arrow as from_arrow
from .tables import from_awkward as from_awkward
from .tables import from_pandas as from_pandas
from .tables import to_arrow as to_arrow
from .tables import to_awkward as to_awkward
from .tables import to_pandas as to_pandas
