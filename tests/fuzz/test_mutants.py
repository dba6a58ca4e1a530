"""A few changed files; `python -m fuzz.mutants` makes many."""

from __future__ import annotations

import pytest

import stepnet
from covering import few

from . import mutants


@pytest.mark.parametrize("form", ["onnx", "ir"])
@pytest.mark.parametrize("first", few(range(0, 400, 40), (0,)))
def test_changed_files_give_a_model_or_an_error(form, first, tmp_path):
    before = stepnet.get_backend()
    stepnet.set_backend("naive")
    try:
        counts = mutants.run(first, 10, form, tmp_path)
    finally:
        stepnet.set_backend(before)
    assert not any(name.startswith("ODD") for name in counts), counts
    assert 0 < counts["refused"] < 10


def test_a_seed_is_a_file(tmp_path):
    for form in ("onnx", "ir"):
        made = [mutants.make(tmp_path, seed, form)[0].read_bytes() for seed in (3, 3, 4)]
        assert made[0] == made[1] != made[2]
