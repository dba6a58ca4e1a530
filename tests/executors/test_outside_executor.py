"""An executor that the package does not know: registered, asked for, explained, forgotten."""

from __future__ import annotations

import pytest
import torch

import stepnet
from numpy_executor import Numpy
from plans import entry_of
from stepnet import cells
from stepnet.errors import StepError, Unsupported
from stepnet.executors.naive import PLAIN
from stepnet.executors.registry import AUTO, backend_names, register, tried, unregister
from stepnet.executors.setting import check_backend

OPTIMISED = False


@pytest.fixture
def numpy():
    """The executor, known by its name."""
    executor = Numpy()
    register(executor)
    yield executor
    if executor.name in backend_names():
        unregister(executor.name)


@pytest.fixture
def cell():
    return cells.GRU(3, 4)


X = torch.randn(5, 2, 3)


def test_it_is_chosen_by_its_name_alone(numpy, cell):
    entry = entry_of(cell, X, backend="numpy")
    assert entry.ready is not None, entry.refusals
    assert entry.ready.executor is numpy
    y, _ = stepnet.recurrent(cell, X, backend="numpy")
    torch.testing.assert_close(y, stepnet.recurrent(cell, X, backend=PLAIN.name)[0])
    assert entry_of(cell, X, backend=AUTO).ready.executor is not numpy


def test_auto_tries_it_before_the_one_that_is_named(cell):
    before = tried(AUTO)
    entry_of(cell, X, backend=AUTO)  # the plan that another executor takes is not taken again
    register(Numpy(), before=before[0].name)
    try:
        assert tried(AUTO)[1:] == before
        assert entry_of(cell, X, backend=AUTO).ready.executor is tried(AUTO)[0]
    finally:
        unregister("numpy")
    assert tried(AUTO) == before
    assert entry_of(cell, X, backend=AUTO).ready.executor in before


def test_explain_tells_of_it_in_its_own_words(numpy, cell):
    told = stepnet.explain(cell, X, backend="numpy")
    assert (told.executor, told.label, told.compiled) == ("numpy", "numpy, row by row", True)
    by = {region.kind: (region.executor, region.label) for region in told.regions}
    assert by["scan"] == ("numpy", "numpy, row by row")
    assert by["map"] == ("torch", "torch")
    assert "Runs by numpy, row by row. " in str(told)
    assert "(scan, numpy, row by row)" in str(told)
    assert "numpy, row by row: " in told.to_svg()


def test_what_it_declines_is_told_with_the_line(numpy):
    def step(x, state):
        return state, torch.atan2(state, x)

    x, state = torch.randn(4, 2, 3), torch.randn(2, 3)
    with pytest.raises(Unsupported, match="numpy has no 'atan2' here"):
        stepnet.recurrent(step, x, state, backend="numpy")
    told = stepnet.explain(step, x, state, backend="numpy")
    assert told.executor == "refused"
    (refused,) = told.refusals
    assert (refused.executor, refused.label) == ("numpy", "numpy, row by row")
    assert "test_outside_executor.py" in refused.line
    assert "numpy, row by row: numpy has no 'atan2' here" in str(told)


def test_types_that_are_not_its_own_are_declined_by_what_it_says_of_itself(numpy, cell):
    with pytest.raises(Unsupported, match="computes in bfloat16; numpy, row by row does float32, float64"):
        stepnet.recurrent(cell.bfloat16(), X.bfloat16(), backend="numpy")


def test_rows_on_a_device_that_is_not_its_own_are_declined(numpy):
    with pytest.raises(Unsupported, match="the rows are on cuda; numpy, row by row runs on the CPU"):
        numpy.check_device("cuda")
    numpy.check_device("cpu")


class Halves(Numpy):
    """The same name, other numbers."""

    def scan(self, loop, region):
        run = super().scan(loop, region)

        def halved(*arguments):
            finals = run(*arguments)
            return {name: final / 2 for name, final in finals.items()}

        return halved


def test_one_that_is_wrong_is_found_out_by_the_check_against_the_plain_loop(cell):
    register(Halves())
    try:
        with pytest.raises(Unsupported, match="differs from the plain loop"):
            stepnet.recurrent(cell, X, backend="numpy")
    finally:
        unregister("numpy")
    register(Numpy())  # plans of another executor of the same name are not met again
    try:
        stepnet.recurrent(cell, X, backend="numpy")
    finally:
        unregister("numpy")


def test_it_is_gone_when_it_is_forgotten(numpy, cell):
    stepnet.recurrent(cell, X, backend="numpy")
    unregister("numpy")
    assert backend_names() == (AUTO, *(executor.name for executor in tried(AUTO)), PLAIN.name)
    with pytest.raises(StepError, match="no such backend") as error:
        stepnet.recurrent(cell, X, backend="numpy")
    assert ", ".join(backend_names()) in str(error.value)


def test_a_setting_for_the_process_that_is_forgotten_is_told(numpy, cell):
    stepnet.set_backend("numpy")
    unregister("numpy")
    with pytest.raises(StepError, match="no such backend"):
        check_backend(None)


@pytest.mark.parametrize("name", [AUTO, PLAIN.name, "numpy"])
def test_what_is_not_there_cannot_be_forgotten(name):
    with pytest.raises(ValueError, match=f"no executor '{name}'"):
        unregister(name)


def test_a_name_is_taken_once(numpy):
    with pytest.raises(ValueError, match="the name 'numpy' is taken"):
        register(Numpy())


def test_the_next_one_must_be_among_those_that_are_tried():
    with pytest.raises(ValueError, match="does not try 'naive'"):
        register(Numpy(), before=PLAIN.name)
    assert "numpy" not in backend_names()
