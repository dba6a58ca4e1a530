"""Tapes of thousands of layers: no deep recursion, and work that grows as the tape does."""

from __future__ import annotations

import copy
import inspect
import sys

import pytest
import torch

from covering import few
from stepnet import LoDTensor
from stepnet.layers import Dense, Sequence, data, fc, memory, recurrent_group
from stepnet.tape import Tape


@pytest.fixture
def shallow():
    """A stack with room for calls of modules and for what torch imports, not for a frame for each layer."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 250)
    yield
    sys.setrecursionlimit(limit)


def long_chain(n, kind):
    x = data("x", kind)
    for i in range(n // 2):
        x = fc(x, 2) if i % 10 == 0 else torch.tanh(x)
        x = x + 0.5
    return x


ROWS = torch.tensor([[0.5, 1.0], [0.0, -1.0], [2.0, 0.0]])
KINDS = {
    "rows": (Dense(2), ROWS),
    "sequences": (Sequence(Dense(2)), LoDTensor(ROWS, [[0, 2, 2, 3]])),
}


@pytest.mark.parametrize("name", few(KINDS, ["sequences"]))
def test_a_thousand_layers_are_built_printed_and_played_without_deep_recursion(name, shallow):
    kind, value = KINDS[name]
    with Tape() as tape:
        x = long_chain(1000, kind)
    assert len(tape) == 1001
    assert str(tape).count("\n") == 1001
    net, pruned = tape.topology(x), tape.topology(x, prune=True)
    out, _ = net(x=value)
    h = ROWS
    for creation in list(tape)[1:]:
        h = creation.function(h) if creation.kind == "fc" else h + 0.5 if creation.kind == "add" else h.tanh()
    rows = out if isinstance(out, torch.Tensor) else out.values
    torch.testing.assert_close(rows, h)
    rows.sum().backward()
    assert next(net.parameters()).grad is not None
    assert list(pruned.state_dict()) == list(net.state_dict())
    assert list(copy.copy(net).state_dict()) == list(net.state_dict())


def chain_of_groups(n, kind):
    x = data("x", Sequence(kind))
    for i in range(n // 4):

        def step(row, i=i):
            return fc([row, memory(f"h{i}", 2)], 2, name=f"h{i}")

        x = recurrent_group(step, x)
    return x


def calls(make, n):
    """How many Python functions are called to build, print and take topologies of a tape of n layers."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        with Tape() as tape:
            x = make(n, Dense(2))
        str(tape)
        tape.topology(x)
        tape.topology(x, prune=True)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", few([long_chain, chain_of_groups], [chain_of_groups]))
def test_work_grows_as_the_tape_does(make):
    calls(make, 40)  # what is done once, and kept
    assert calls(make, 400) < 4.4 * calls(make, 100)
