"""A small run of the fuzzer; `fuzz.py` makes long ones."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from stepnet.executors.setting import set_backend

FUZZ = runpy.run_path(str(Path(__file__).with_name("fuzz.py")))


@pytest.mark.exhaustive
def test_only_models_and_errors_come_out(tmp_path):
    set_backend("naive")
    outcomes = FUZZ["fuzz"](150, seed=1, folder=tmp_path)
    assert outcomes["IRError"] > 50
    assert sum(n for name, n in outcomes.items() if name.startswith("model")) > 25


def test_mutations_change_the_files():
    import random

    rng = random.Random(0)
    text, weights = FUZZ["seeds"]()[0]
    changed = [FUZZ["mutate"](text, weights, rng) != (text.encode(), weights) for _ in range(50)]
    assert sum(changed) > 40
