"""LoDTensor: structure, validation, access."""

from __future__ import annotations

import pytest
import torch

from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError


def test_access() -> None:
    x = LoDTensor(torch.arange(9), [[0, 2, 3], [0, 3, 5, 9]])
    assert len(x) == 2
    assert x.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]
    assert x[0][1].tolist() == [3, 4]
    assert x[1].recursive_sequence_lengths() == [[4]]
    assert x[::-1].values.tolist() == [5, 6, 7, 8, 0, 1, 2, 3, 4]


def test_rows_must_match() -> None:
    with pytest.raises(LoDError, match="number of rows"):
        LoDTensor(torch.zeros(4), [[0, 3]])
