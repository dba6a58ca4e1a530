"""What is told of failures that nothing expected: whose they are."""

import itertools

import pytest
import torch

import stepnet
from stepnet import recurrent
from stepnet.engine import executor_choice, make
from stepnet.errors import Unsupported

SIZES = itertools.count(3)


def compiled_anew():
    """A run of a step that has no plan for rows of this size."""

    def step(x, h):
        return h, torch.tanh(x + h)

    size = next(SIZES)
    return recurrent(step, torch.randn(5, 3, size), torch.zeros(3, size), backend="eager")


def of_ours(source):
    """A function that fails as if it stood in a file of stepnet."""
    found = {}
    exec(compile(f"def fails(*_, **__):\n    {source}", stepnet.__file__, "exec"), found)
    return found["fails"]


DEFECTS = {
    "{}['v11']": r"a defect of stepnet: KeyError: 'v11' \(stepnet/__init__.py:2\)",
    "assert False": r"a defect of stepnet: AssertionError \(stepnet/__init__.py:2\)",
    "[][3]": "a defect of stepnet: IndexError: list index out of range",
}


@pytest.mark.parametrize("source", DEFECTS)
@pytest.mark.parametrize(
    ("module", "name", "where"),
    [
        (executor_choice, "self_check", "it failed on sample rows"),
        (make, "compile_loop", "compiling it fails"),
    ],
)
def test_a_defect_of_ours_is_told_as_one(source, module, name, where, monkeypatch):
    monkeypatch.setattr(module, name, of_ours(source))
    with pytest.raises(Unsupported, match=f"{where}, {DEFECTS[source]}(.|\n)*please report this line"):
        compiled_anew()


def test_what_is_told_of_the_step_is_none(monkeypatch):
    fails = of_ours("from stepnet.errors import StepIndexError; raise StepIndexError('no such row')")
    monkeypatch.setattr(executor_choice, "self_check", fails)
    with pytest.raises(Unsupported, match="it failed on sample rows: StepIndexError: no such row"):
        compiled_anew()


def test_a_full_memory_is_none(monkeypatch):
    monkeypatch.setattr(executor_choice, "self_check", of_ours("raise MemoryError('full')"))
    with pytest.raises(Unsupported, match=r"it failed on sample rows: MemoryError: full\n"):
        compiled_anew()


def test_a_lookup_of_the_step_says_what_it_is():
    known = {}

    def looks_up(x, h):
        if len(x) < 64:
            known["word"]
        return h, torch.tanh(x + h)

    refusals = stepnet.explain(looks_up, torch.randn(2, 64, 2), torch.zeros(64, 2)).refusals
    assert "fails on sample rows: KeyError: 'word'" in str(refusals[0])


def test_what_overflows_float16_in_torch_only():
    def scaled(x, h):
        return (x * x) * 1e-4, h + x

    x = torch.full((3, 2, 3), 400.0).half()
    with pytest.raises(Unsupported, match=r"y0 overflows float16 in the plain loop(.|\n)*bfloat16"):
        recurrent(scaled, x, x[0], backend="c")
    y, _ = recurrent(scaled, x, x[0])
    assert y.isinf().all()
