"""What a step comes by in more than one way, or by code of Python's, is read and put back as the plain loop
has it."""

from __future__ import annotations

import types
import warnings

import pytest
import torch

from stepnet import recurrent
from stepnet.errors import SlowPathWarning
from ways_to_read import DTYPE, UNDO, D

PACKAGE = types.ModuleType("package_of_the_test")
PACKAGE.settings = types.ModuleType("package_of_the_test.settings")
PACKAGE.settings.more = types.ModuleType("package_of_the_test.settings.more")
for _module in (PACKAGE.settings, PACKAGE.settings.more):
    _module.__dict__.update(gain=2.0, bias=3.0)


@pytest.fixture(autouse=True)
def _undone():
    yield
    while UNDO:
        UNDO.pop()()


def results(step, backend):
    x = torch.linspace(-1, 1, 4 * D, dtype=DTYPE).view(4, 1, D)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        return recurrent(step, x, torch.ones(1, D, dtype=DTYPE), backend=backend)


class Changes:
    """Each gives a step, and changes of what it reads."""

    def module_in_a_module_asked_by_three():
        def first(x):
            return x * PACKAGE.settings.more.gain

        def second(x):
            return x * PACKAGE.settings.bias

        def third(x):
            return x * PACKAGE.settings.more.bias

        return lambda x, h: (first(x) + second(x) + third(h), torch.tanh(h)), [
            lambda: setattr(PACKAGE.settings.more, "bias", 9.0), lambda: setattr(PACKAGE.settings, "bias", 7.0)
        ]  # fmt: skip


CHANGES = {k: v for k, v in vars(Changes).items() if isinstance(v, types.FunctionType)}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name):
    step, changes = CHANGES[name]()
    before = None
    for change in (lambda: None, *changes):
        change()
        expected = results(step, "naive")
        for _ in range(2):
            torch.testing.assert_close(results(step, "auto"), expected, rtol=0, atol=1e-12)
        assert before is None or not torch.equal(before[0], expected[0])
        before = expected
