"""Random steps against the plain loop: values, which results carry a gradient, and every gradient.

`make fuzz` runs ten thousand, these among them. A seed that fails is printed as plain torch source.
"""

from __future__ import annotations

import pytest
import torch

from covering import few
from stepnet import recurrent
from stepnet.engine import jvp_on_saved_rows

from . import calls, frame_files, frames, heaps, models, nested, orders, sequences, sizes
from .compare import Declined, check
from .seeds import held
from .steps import make_case

SMALL = [range(at, at + 5) for at in range(0, 40, 5)]


def told(seeds, backend, most):
    out, ran = [], 0
    for seed in seeds:
        case = make_case(seed, most)
        try:
            found = check(case, backend)
        except Declined:
            continue
        ran += 1
        if found:
            out.append("\n".join([f"seed {seed}", *found, case.source]))
    assert ran > len(seeds) // 2, "most steps are declined: nothing is tested"
    return "\n\n".join(out)


@pytest.mark.parametrize("seeds", few(SMALL, SMALL[:1]), ids=lambda seeds: str(seeds[0]))
def test_torch_ops(seeds):
    assert not told(seeds, "eager", 3)


@pytest.mark.parametrize("seeds", [range(100_000, 100_004)], ids=lambda seeds: str(seeds[0]))
def test_generated_c(seeds):
    assert not told(seeds, "auto", 6)


@pytest.fixture(autouse=True)
def _plans_are_held():
    """Each plan that a test makes keeps the rules of plans, and is the same after it was written and read."""
    broken = []
    with held(broken):
        yield
    assert not broken


def test_a_seed_is_a_step():
    assert make_case(7).source == make_case(7).source != make_case(8).source


@pytest.mark.parametrize("seed", few(range(40), (0,)))
def test_models(seed):
    assert models.difference(seed) is None


@pytest.mark.parametrize("seed", few(range(40), (11,)))
def test_frame_files(seed):
    assert frame_files.difference(seed) is None


def test_a_file_of_a_frame_that_differs_is_told(monkeypatch):
    monkeypatch.setattr(frames, "by_hand", lambda body, given: [v + 1 for v in frames.as_frame(body, given)])
    assert "onnx, 1 steps: [0" in str(frame_files.difference(11))


FILLED = 975138  # on a tape, an array is filled inside of values whose shape is not known


@pytest.mark.parametrize("seed", few([*range(40), FILLED], (2, 6, FILLED)))
def test_frames(seed):
    assert frames.difference(seed) is None


@pytest.mark.parametrize("seed", few((*range(40), 1003838), (39,)))
def test_orders(seed):
    assert orders.difference(seed, "eager") is None


@pytest.mark.parametrize("seed", few(range(40), (8,)))
def test_calls(seed):
    assert calls.check(seed) is None


@pytest.mark.parametrize("seed", few(range(40), ()))
def test_sequences(seed):
    assert sequences.check(seed) is None


@pytest.mark.parametrize("seed", few([*range(40), 68, 128, 131, 160], (26,)))
def test_onnx_files(seed):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    from . import onnx_files

    assert onnx_files.difference(seed, "naive") is None


@pytest.mark.parametrize("seed", few(range(1158000, 1158040), (1158014,)))
def test_ir_files(seed):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    from . import onnx_files

    assert onnx_files.difference(seed, "naive", "ir") is None


TWO = [range(at, at + 2) for at in range(0, 40, 2)]


@pytest.mark.parametrize("seeds", few(TWO, ()), ids=lambda seeds: str(seeds[0]))
def test_heaps(seeds):
    assert not [found for found in map(heaps.difference, seeds) if found]


def test_a_heap_that_differs_is_told(monkeypatch):
    def other(step, x, state, *, backend, **how):
        return recurrent(step, x, state if backend == "naive" else state * 2, backend="naive", **how)

    monkeypatch.setattr(heaps, "recurrent", other)
    assert "tensors differ" in str(heaps.difference(0))


def test_a_stage_that_differs_is_told(monkeypatch):
    monkeypatch.setattr(sequences, "way_of", lambda seed: "trained")
    monkeypatch.setattr(sequences.World, "by_hand", lambda w: [torch.zeros(()) for _ in w.ours()])
    assert "result 0" in str(sequences.check(30))


def test_a_call_that_differs_is_told(monkeypatch):
    monkeypatch.setattr(calls.Call, "options", lambda call: {})  # none of them is heard of
    assert "result 0" in str(calls.check(8))


def test_a_frame_that_differs_is_told(monkeypatch):
    monkeypatch.setattr(frames, "by_hand", lambda body, given: [v + 1 for v in frames.as_frame(body, given)])
    assert "values [0" in str(frames.difference(2))


def test_a_model_that_differs_is_told(monkeypatch):
    monkeypatch.setitem(models.WAYS, "twice", lambda w: [torch.rand(()) for _ in range(2)])
    monkeypatch.setattr(models, "WAYS", {"twice": models.WAYS["twice"]})
    assert "twice: [0, 1] of 2 differ" in str(models.difference(0))


@pytest.mark.parametrize("seed", few(range(40), (3,)))
def test_nested(seed):
    assert nested.difference(seed) is None


SIZES = (2, 10, 11, 17)  # among them second derivatives of values given twice


@pytest.mark.parametrize("seed", few(range(40), SIZES))
def test_sizes(seed):
    assert sizes.difference(seed, "eager") is None


def test_rows_that_differ_are_told(monkeypatch):
    """Of what comes in for a value that is given twice all but the last is lost."""
    monkeypatch.setattr(jvp_on_saved_rows, "distinct", lambda out, inputs: list(out))
    assert "differ" in str(sizes.difference(11, "eager"))
