"""A few of the random programs that change what a step reads between its calls; `make fuzz` runs the rest."""

from __future__ import annotations

import pytest

from covering import few
from fuzz.changes import check
from stepnet.engine import walked_steps


@pytest.mark.parametrize("seed", few(range(10), range(1)))
def test_run_change_run(seed, monkeypatch):
    monkeypatch.setattr(walked_steps, "_SURE", seed % 2)  # some by words of memory from the second call on
    assert check(seed) is None
