"""States that are loaded are those of the module that a stream runs, where that is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import stepnet
from stepnet import Recurrent, cells, stream
from stepnet.errors import StreamError

F = 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("begun", [False, True])
def test_the_state_of_another_module_changes_nothing(begun):
    """Known of what is made of recurrences alone, or else of what this stream ran."""
    of: Any = {
        "lstm": nn.Sequential(nn.Linear(F, 3), stepnet.nn.LSTM(3, 4)),
        "gru": nn.Sequential(stepnet.nn.GRU(F, 4)),
        "two": stepnet.nn.LSTM(F, 4, num_layers=2), "wide": nn.Sequential(stepnet.nn.LSTM(F, 5)),
        "cell": Recurrent(cells.LSTM(F, 4)), "wide cell": Recurrent(cells.LSTM(F, 5)),
    }  # fmt: skip
    x, states = torch.randn(3, F), {}
    of["function"] = lambda x: of["wide cell"](x)[0]
    for name, net in of.items():
        live = stream(net)
        live.push({live.open(name): x})
        states[name] = live.state_dict()
    pairs = [
        (a, b) for a in of for b in of if {a, b} != {"wide cell", "function"} and (begun or a != "function")
    ]
    for a, b in pairs:
        live = stream(of[a])
        live.open("first")
        if begun:
            live.push({"first": x})
        if a == b:
            live.load_state_dict(states[b])
            live.push({b: x})
        else:
            with pytest.raises(StreamError, match="of another module"):
                live.load_state_dict(states[b])
            live.push({"first": x})
    stream(of["gru"]).load_state_dict(stream(of["cell"]).state_dict())  # of no push


def test_a_gru_does_not_go_on_from_an_lstm() -> None:
    kept = stream(nn.Sequential(stepnet.nn.LSTM(F, 3))).state_dict()
    kept = {
        **kept,
        "ids": [0],
        "begun": [True],
        "recurrences": [("LSTM l0", (torch.ones(1, 3), torch.ones(1, 3)))],
    }
    live = stream(nn.Sequential(stepnet.nn.GRU(F, 3)))
    live.open("first")
    with pytest.raises(StreamError, match=r"(?s)of another module.*step 'LSTM l0'.*expected: step 'GRU l0'"):
        live.load_state_dict(kept)
    assert live.ids == ["first"]
