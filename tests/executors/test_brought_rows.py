"""Rows of the next step are brought to the cache while one is computed: those of large tables."""

import re

import pytest
import torch

from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, cells
from stepnet.executors.c import scan

FEATURES = 64
LENGTHS = {  # so many rows that those of a share take more than 4 MB
    "dense": [250] * 24,
    "ragged": [1500, 1, 0, 750, 1500, 450, 0, 7, 1000, 1],
    "one": [3000],
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_numbers_are_those_of_the_plain_loop(kind):
    torch.manual_seed(0)
    cell, lengths = cells.LSTM(5, FEATURES, dtype=torch.float64), LENGTHS[kind]
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), 5, dtype=torch.float64), [lengths])
    boot = tuple(torch.randn(len(lengths), FEATURES, dtype=torch.float64) for _ in range(2))
    as_the_plain_loop(cell, wanting(x), wanting(boot), rtol=1e-9)


@pytest.mark.parametrize("kind", [cells.LSTM, cells.GRU, cells.RNN])
def test_each_table_is_brought_by_the_loop_that_reads_or_writes_it(monkeypatch, kind):
    texts, write = [], scan.write

    def noted(*given):
        texts.append(write(*given).text)
        return write(*given)

    monkeypatch.setattr(scan, "write", noted)
    cell = kind(9, 9, dtype=torch.float64)
    x = LoDTensor.from_lengths(torch.randn(4, 9, dtype=torch.float64), [[3, 1]])
    as_the_plain_loop(cell, wanting(x), wanting(cell.initial_state(2)))
    assert texts
    for text in texts:
        used = re.findall(r"(const )?\w+ \*restrict \w+ = a->(\w+) \+ row\[i\] \* (\d+);", text)
        brought = re.findall(r"sn_bring(_to_write)?\(a->(\w+), row\[i\] \+ of\.stride, (\d+)\);", text)
        assert used
        assert [(not to, name, int(n) // 8) for to, name, n in brought] == [
            (bool(const), name, int(n)) for const, name, n in used
        ]
