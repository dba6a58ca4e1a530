"""Words of memory tell that a walk would find what it found: after each change that a walk sees, one of them
is another."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import ways_to_read
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.unchanged import words
from stepnet.executors.c.memory import unchanged
from torch_since import TOLD
from ways_to_read import UNDO, WAYS

pytestmark = TOLD


@pytest.fixture(autouse=True)
def _as_before():
    before = ways_to_read.GLOBAL
    yield
    ways_to_read.set_global(before)
    while UNDO:
        UNDO.pop()()


def holding(step):
    """What the step reads, and a function that tells whether it still does; None if no words tell."""
    reach(step)
    found = reach(step)
    told = words(found)
    ask = None if told is None else unchanged(told.checks, told.tensors)

    def holds():
        tensors = ask()
        return tensors is not None and [*map(id, tensors)] == [*told.tensors]

    return found, told, None if ask is None else holds


def same(one, other):
    tensors = len(one.tensors) == len(other.tensors) and all(
        map(lambda a, b: a is b, one.tensors, other.tensors)
    )
    return tensors and other.open is None and other.refused is None and one.key == other.key


def test_no_change_goes_unseen():
    seen = 0
    for name, way in WAYS.items():
        step, changes = way()
        for change in changes:
            found, told, holds = holding(step)
            if holds is None:
                continue
            assert holds()
            assert same(found, reach(step))
            assert holds(), f"{name}: a walk changes what it looks at"
            change()
            assert not holds() or same(found, reach(step)), name
            seen += not holds()
            del told
    assert seen >= 25


def number(value):
    def step(x, h):
        return x * value, h

    def change(new):
        nonlocal value
        value = new

    return step, change


def test_a_number_that_takes_the_place_of_another_in_memory():
    step, change = number(0.1)
    _, told, holds = holding(step)
    for n in range(1, 2000):
        change(n / 7)
        assert not holds()
    del told


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.back = lambda: self  # a cycle

    def forward(self, x, h):
        h = self.cell(x, h)
        return h, h


def test_nothing_is_kept_alive():
    alive = []
    gone = looked_at(alive)
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert len(alive) == 3


def looked_at(alive):
    model = Model()

    def step(x, h):
        return model(x, h)

    for root in (model, step, model.forward):
        _, told, holds = holding(root)
        assert holds()
        alive.append(told)
    return [weakref.ref(model), weakref.ref(model.cell.weight_hh), weakref.ref(step)]


CHANGES = {
    "another weight": lambda m: setattr(m.cell, "weight_hh", nn.Parameter(torch.ones(12, 4))),
    "another module": lambda m: setattr(m, "cell", nn.GRUCell(3, 4)),
    "a flag": lambda m: m.eval(),
    "a hook": lambda m: m.cell.register_forward_hook(lambda *_: None),
    "a hook of all modules": lambda m: UNDO.append(
        nn.modules.module.register_module_forward_hook(lambda *_: None).remove
    ),
    "a class": lambda m: setattr(m, "__class__", type("Other", (Model,), {})),
    "a method": lambda m: setattr(m, "forward", lambda x, h: (x, h)),
    "its attributes": lambda m: setattr(m, "__dict__", dict(m.__dict__)),
    "an attribute of a weight": lambda m: setattr(m.cell.weight_ih, "note", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_modules(change):
    model = Model()
    _, told, holds = holding(model)
    assert holds()
    for p in model.parameters():
        p.grad = torch.ones_like(p)  # nothing that a step reads
    assert holds()
    CHANGES[change](model)
    assert not holds()
    del told


def test_what_others_put_beside_a_global_is_no_change():
    space = {"torch": torch, "k": 2.0}
    exec("def step(x, h):\n    return x * k, torch.tanh(h)", space)
    _, told, holds = holding(space["step"])
    space["unread"] = 1
    assert holds()
    space["k"] = 2.0 + len(space)
    assert not holds()
    space["k"] = 2.0
    _, again, holds = holding(space["step"])
    del space["k"]
    assert not holds()
    del told, again


def test_other_bases_whose_order_stands_where_an_earlier_one_did():
    kinds = [type(f"Base{n}", (), {"k": float(n)}) for n in range(3)]
    root = type("Root", (), {})
    made = type("Made", (root,), {"k": 1.0})
    read = type("Read", (made,), {})()

    def step(x, h):
        return x * read.k, h

    del made.k
    made.__bases__ = (kinds[0],)
    _, told, holds = holding(step)
    for n in range(1, 200):
        made.__bases__ = (kinds[n % 3],)
        assert not holds() or read.k == 0.0
    del told
