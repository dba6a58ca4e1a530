"""Errors when a layer is made name the user's own line, however deep in layer functions it is found."""

from __future__ import annotations

import inspect

import pytest
import torch

from stepnet.errors import TapeError
from stepnet.layers import Dense, Integer, Sequence, addto, data, fc, lstm, memory, recurrent_group
from stepnet.tape import Tape


def unknown_input():
    fc(torch.zeros(2, 3), 2)  # here


def unknown_input_in_a_list():
    fc([data("x", Dense(3)), "y"], 2)  # here


def wrong_size():
    x, y = data("x", Dense(3)), data("y", Dense(4))
    addto([x, y])  # here


def wrong_size_in_a_torch_function():
    x, y = data("x", Dense(3)), data("y", Dense(4))
    torch.relu(x - y)  # here


def wrong_kind():
    lstm(data("x", Dense(3)), 4)  # here


def item_of_another_tape():
    with Tape():
        x = data("x", Dense(3))
    fc(x, 2)  # here


def layer_of_another_tape():
    with Tape():
        x = data("x", Sequence(Dense(3)))
    recurrent_group(lambda row: row, x)  # here


def duplicate_name():
    x = data("x", Dense(3))
    fc(x, 2, name="h")
    fc(x, 2, name="h")  # here


def duplicate_name_of_data():
    data("x", Dense(3))
    data("x", Integer(3))  # here


def memory_outside_a_group():
    memory("h", 3)  # here


def memory_whose_layer_never_comes():
    def step(row):
        return row + memory("h", 3)  # here

    recurrent_group(step, data("x", Sequence(Dense(3))))


def memory_of_another_size():
    def step(row):
        memory("h", 4)
        return fc(row, 3, name="h")  # here

    recurrent_group(step, data("x", Sequence(Dense(3))))


def input_from_outside_the_group():
    x, y = data("x", Sequence(Dense(3))), data("y", Dense(3))
    recurrent_group(lambda row: row + y, x)  # here


CASES = {
    unknown_input: "no item of a tape",
    unknown_input_in_a_list: "no item of a tape",
    wrong_size: "must have one size",
    wrong_size_in_a_torch_function: "does not fit its inputs",
    wrong_kind: "must be sequences",
    item_of_another_tape: "an item of another tape",
    layer_of_another_tape: "an item of another tape",
    duplicate_name: "the name 'h' is taken",
    duplicate_name_of_data: "the name 'x' is taken",
    memory_outside_a_group: "outside a recurrent group",
    memory_whose_layer_never_comes: "the memory of 'h' has no layer",
    memory_of_another_size: "the memory of 'h' has another size",
    input_from_outside_the_group: "is outside the recurrent group",
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_an_error_names_the_line_that_is_wrong(make):
    lines, first = inspect.getsourcelines(make)
    at = next(i for i, line in enumerate(lines) if "# here" in line)
    with Tape(), pytest.raises(TapeError) as caught:
        make()
    text = str(caught.value)
    assert CASES[make] in text
    assert f"test_errors.py, line {first + at}: {lines[at].strip()}" in text
