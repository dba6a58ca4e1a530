"""The operators that are read: each of these fills the table."""

from __future__ import annotations

from . import (
    attention,
    branches,
    cells,
    control,
    distinct,
    elementwise,
    fourier,
    microsoft,
    optimised,
    regions,
    resizing,
    sequences,
    shapes,
    sizes,
    spaces,
    sums,
    whole_numbers,
)

OPERATORS = (
    elementwise,
    sizes,
    shapes,
    spaces,
    resizing,
    regions,
    sums,
    whole_numbers,
    microsoft,
    optimised,
    fourier,
    distinct,
    attention,
    cells,
    sequences,
    branches,
    control,
)
