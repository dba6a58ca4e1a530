"""Whatever is given to what the API page lists: a result, or an error that says what is wrong with it.

Every public function and class is called with strange values in place of each of its arguments, one at a
time; so is every method that a user calls. A new public name stands on the page, and so is called, too:
`GOOD` or `CALLS` has what else it needs.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from stepnet import InputPort, LoDTensor, Memory, OutputPort, Scope, TensorArray, cells, layers
from stepnet.data.arguments import brief
from stepnet.errors import StepnetError
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.layers.accumulators import ClassificationError
from stepnet.tape import Tape
from test_docstrings import CLASSES, FUNCTIONS, methods

X = LoDTensor.from_lengths(torch.randn(6, 3), [[3, 1, 2]])
CELL = cells.GRU(3, 4)
RNN = stepnet.Recurrent(CELL)
STEADY = cells.GRU(3, 4, dtype=torch.float64)
STRANGE = [
    None, True, 0, -1, 7, 10**30, -(10**30), 2.5, math.nan, math.inf, np.int64(-3), np.float32("nan"),
    "x", "", b"x", [], {}, (), [[1], [2, 3]], ["x"], [None], {"x": torch.zeros(2)},
    object(), ..., int, len, torch.float32, torch.int64, nn.Identity(), TensorArray(),
    np.zeros((2, 0)), np.array("x"), torch.zeros(()), torch.zeros(0), torch.zeros(2, 0, 3),
    torch.full((3,), math.nan), torch.tensor([True]), torch.zeros(3, dtype=torch.int64),
    torch.zeros(2, 3, dtype=torch.complex64), LoDTensor.from_lengths(torch.zeros(0, 3), [[]]),
    LoDTensor.from_lengths(torch.zeros(2), [[1], [2]]),
]  # fmt: skip


class Anew:
    """A value that is made for each call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


NUMBERS = itertools.count()
ROWS = Anew(lambda: layers.data(f"x{next(NUMBERS)}", layers.Sequence(layers.Dense(3))))
DENSE = Anew(lambda: layers.data(f"x{next(NUMBERS)}", layers.Dense(3)))
IDS = Anew(lambda: layers.data(f"x{next(NUMBERS)}", layers.Sequence(layers.Integer(3))))

MARKS = Anew(lambda: layers.data(f"x{next(NUMBERS)}", layers.Sequence(layers.Integer(2))))


def scores(word, state):
    return torch.zeros(len(word), 5), state


def halves(scope):
    scope["h"] = scope["before"] * 0.5 + scope["x"]


def scope() -> Scope:
    return Scope({"x": torch.ones(3, 2, 4), "boot": torch.zeros(2, 4)})


def array() -> TensorArray:
    found = TensorArray()
    found.write(0, torch.zeros(3))
    return found


# What arguments are, by their names.
GOOD: dict[str, Any] = {
    "step": CELL, "cell": CELL, "module": RNN, "x": X, "values": X.values, "label": IDS, "fn": torch.tanh,
    "input_size": 3, "hidden_size": 4, "size": 4, "name": "n", "external": "x", "internal": "x", "index": 0,
    "stepnet": halves, "inputs": ["x"], "outputs": ["h"], "memories": [Memory("h", "before", "boot")],
    "bos": 0, "eos": 1, "beam_size": 2, "max_length": 2, "lengths": [3, 1, 2], "rows": 4,
    "ta": Anew(array), "tensor": torch.zeros(2, 3), "scope": Anew(scope), "path": "none.onnx",
    "example_inputs": X,
}  # fmt: skip
OF_TAPES: dict[str, Any] = {"x": ROWS}
# What they are besides, by the name of what is called.
CALLS: dict[str, dict[str, Any]] = {
    "data.collate": {"samples": [X.values, X.values]},
    "distributed.row_mean": {"loss_sum": torch.ones(()), "rows": 3},
    "sequence_pool": {"pooling": "sum"},
    "sequence_expand": {"x": torch.zeros(3, 1), "y": X},
    "sequence_concat": {"xs": [X, X]},
    "sequence_slice": {"offset": [0, 0, 0], "length": [1, 1, 1]},
    "while_loop": {"cond": lambda i: i < 3, "body": lambda i: (i + 1,), "loop_vars": (torch.tensor(0),)},
    "map_fn": {"elems": X},
    "create_whileloop": {"loop_vars": [torch.tensor(0)]},
    "dynamic_recurrent": {
        "memories": [Memory("h", "before", "boot")],
        "scope": Anew(lambda: Scope({"x": X, "boot": torch.zeros(3, 3)})),
    },
    "decode.greedy": {"step": scores, "state": torch.zeros(2, 1)},
    "decode.beam_search": {"step": scores, "state": torch.zeros(2, 1)},
    "ops.tensor_array_write": {"index": 1, "tensor": torch.zeros(3)},
    "ops.tensor_array_read": {"tensor": None},
    "ops.tensor_array_size": {"tensor": None},
    "ops.tensor_array_stack": {"tensor": None},
    "openvino.save": {"path": "m.xml", "example_inputs": X},
    "recurrent": {"x": X},
    "explain": {"x": X},
    "layers.auc": {"x": Anew(lambda: layers.fc(ROWS.make(), 2)), "label": MARKS},
    "openvino.load": {"xml": "none.xml"},
    "openvino.convert": {"model": "none.xml", "output": "other.xml"},
    "layers.data": {"type": layers.Dense(3)},
    "layers.Sequence": {"of": layers.Dense(3)},
    "layers.apply": {"function": torch.tanh, "args": (ROWS,)},
    "layers.concat": {"xs": [ROWS, ROWS]},
    "layers.addto": {"xs": [ROWS, ROWS]},
    "layers.embedding": {"x": IDS},
    "layers.activation": {"act": "relu"},
    "layers.expand": {"x": DENSE, "like": ROWS},
    "layers.recurrent_group": {"step": lambda x: layers.fc(x, 3), "inputs": ROWS},
    "layers.beam_search": {"scores": ROWS},
    "layers.regression_cost": {"target": ROWS},
    "layers.chunk": {"x": IDS, "types": 1},
    "layers.edit_distance": {"x": IDS},
    "layers.evaluator": {"function": ClassificationError(), "xs": (ROWS, IDS), "kind": "wrong"},
    "layers.Integer": {"classes": 3},
    "layers.StaticInput": {"item": ROWS},
    "layers.GeneratedInput": {"item": IDS},
    "testing.assert_close": {
        "what": "y",
        "got": torch.zeros(2),
        "expected": torch.zeros(2),
        "tolerance": 1e-3,
    },
    "executors.register": {"executor": TORCH_OPS},
    "set_backend": {"backend": "naive"},
    "testing.oracle": {"x": X.to(torch.float64), "step": STEADY},
    "testing.check_step": {"x": X.to(torch.float64), "step": STEADY},
    "errors.describe": {"where": "here"},
    "LoDTensor.from_arrow": {"column": [1]},
    "LoDTensor.from_awkward": {"array": [1]},
    "LoDTensor.from_pandas": {"frame": [1], "by": "a", "columns": "a"},
    "LoDTensor.to_pandas": {"columns": ["a", "b", "c"]},
    "LoDTensor.from_nested": {"nested": torch.nested.nested_tensor([torch.zeros(2, 3)], layout=torch.jagged)},
    "LoDTensor.from_packed": {"packed": X.to_packed()},
    "TensorArray.pack": {"level": 0, "indices_map": torch.tensor([0, 1])},
    "Resets": {"is_init": torch.zeros(6) > 0},
    "LoDTensor.from_lengths": {"lengths": [[3, 1, 2]]},
    "TensorIterator.feeds": {"args": (torch.zeros(3, 2),)},
    "TensorIterator.forward": {"args": (torch.zeros(3, 2),)},
    "TensorIterator.infer_shape": {"args": (torch.zeros(3, 2),)},
    "Recurrent.forward": {"x": X},
    "Topology.forward": {"feeds": {"x": torch.zeros(2, 3)}},
    "RecurrentOp.init_memories": {"step_scopes": []},
    "LSTM.forward": {"input": torch.zeros(5, 2, 3)},
    "Stack.forward": {"input": torch.zeros(5, 2, 3)},
    "LoDTensor": {"lod": [[0, 3, 4, 6]]},
    "LoDTensor.from_padded": {"padded": torch.zeros(3, 4, 2)},
    "LoDTensor.from_sequences": {"sequences": [torch.zeros(2, 3)]},
    "LoDTensor.cat": {"batches": [X, X]},
    "LoDTensor.select_sequences": {"indices": [0, 2]},
    "LoDTensor.split_at": {"marks": torch.zeros(6) > 0},
    "Memory": {"pre_name": "before", "init": "boot"},
    "TensorIterator": {
        "body": lambda x: x,
        "port_map": [InputPort("x", "x", axis=0), OutputPort("y", 0, axis=0)],
    },
    "OutputPort": {"internal": 0},
    "BackEdge": {"from_result": 0, "to_parameter": "h"},
    "cells.Zoneout": {"p": 0.1},
    "nn.Stack": {"cells": [CELL]},
    "TensorArray": {"size": 0},
    "TensorArray.write": {"index": 1, "value": torch.zeros(3)},
    "Stream.open": {"id": "other"},
    "Stream.close": {"id": "one"},
    "Stream.reset": {"id": "one"},
    "Stream.push": {"chunks": {"one": torch.zeros(2, 3)}},
    "Stream.load_state_dict": {"state": {}},
    "RowBudgetSampler.set_epoch": {"epoch": 1},
    "RowBudgetSampler.load_state_dict": {"state": {"epoch": 0, "batches": 0}},
    "Tape.topology": {"outputs": -1},
}


def opened() -> stepnet.Stream:
    found = stepnet.stream(RNN)
    found.open("one")
    return found


def taped() -> stepnet.Topology:
    with Tape() as tape:
        layers.fc(layers.data("x", layers.Dense(3)), 2)
    return tape.topology(-1)


# Classes whose methods users call, and how one is made.
OBJECTS: dict[str, Callable[[], Any]] = {
    "LoDTensor": lambda: X.split_at(torch.tensor([True, False, True, True, True, False])),
    "TensorArray": array,
    "Scope": scope,
    "Stream": opened,
    "data.RowBudgetSampler": lambda: stepnet.data.RowBudgetSampler([3, 1, 2], 4),
    "RecurrentOp": lambda: stepnet.RecurrentOp(halves, ["x"], ["h"], GOOD["memories"]),
    "TensorIterator": lambda: stepnet.TensorIterator(lambda x: x, CALLS["TensorIterator"]["port_map"]),
    "Recurrent": lambda: RNN,
    "nn.LSTM": lambda: stepnet.nn.LSTM(3, 4),
    "nn.Stack": lambda: stepnet.nn.Stack([CELL]),
    "Explanation": lambda: stepnet.explain(CELL, X),
    "tape.Topology": taped,
}
# Made by stepnet itself, or to be derived from.
NOT_BY_USERS = {
    "Explanation", "ModelExplanation", "onnx.ONNXModel", "openvino.OpenVINOModel", "openvino.Outputs",
    "openvino.Socket", "openvino.LoopReport", "tape.TapeItem", "tape.Topology", "tape.Metrics",
    "tape.Evaluator", "saving.SavedTopology", "saving.IR", "datasets.JapaneseVowels", "datasets.Split",
    "executors.Executor", "front.frame.WhileLoop", "streams.truncated.Piece", "nn.RNNBase", "cells.Cell",
}  # fmt: skip
# Methods that are for stepnet's own files, or take what torch's of the same name take.
PLUMBING = {
    "LoDTensor.of", "LoDTensor.check_level", "LoDTensor.to", "LoDTensor.pin_memory", "LoDTensor.is_pinned",
    "LoDTensor.numpy", "LSTM.weights", "Scope.share", "Scope.var",
}  # fmt: skip
OF_USERS = "an error of the user's own function"
BY_ORACLE = "the oracle runs the step as it is"
# Where another error is right.
RIGHT = {
    "explain step": OF_USERS,
    "while_loop cond": OF_USERS,
    "while_loop body": OF_USERS,
    "while_loop loop_vars": OF_USERS,
    "map_fn fn": OF_USERS,
    "decode.greedy step": OF_USERS,
    "decode.beam_search step": OF_USERS,
    "LoDTensor.map fn": OF_USERS,
    "testing.check_step run": OF_USERS,
    "testing.check_step x": BY_ORACLE,
    "testing.check_step state": BY_ORACLE,
    "testing.oracle x": BY_ORACLE,
    "testing.oracle state": BY_ORACLE,
    "errors.describe where": "it lays out the text of errors",
    "Scope.find name": "a name that does not hash, as of a dict",
    "Explanation.to_svg path": "the system's own, of a folder",
}


# What there are no good arguments of here: files, layers inside of a group, tables of other packages, states.
NOT_THERE = {
    "onnx.load", "openvino.load", "openvino.convert", "saving.load", "layers.memory", "layers.beam_search",
    "executors.register", "executors.unregister", "LoDTensor.from_arrow", "LoDTensor.from_awkward",
    "LoDTensor.from_pandas", "LoDTensor.to_arrow", "LoDTensor.to_awkward", "LoDTensor.to_pandas",
    "LoDTensor.to_nested", "LoDTensor.to_packed", "LoDTensor.to_padded", "TensorArray.pack",
    "Stream.load_state_dict", "RowBudgetSampler.load_state_dict",
}  # fmt: skip


def resolved(value: Any) -> Any:
    if isinstance(value, Anew):
        return value.make()
    if type(value) in (list, tuple):
        return type(value)(map(resolved, value))
    return value


def called(function: Callable[..., Any], parameters: Any, given: dict[str, Any]) -> None:
    """Call a function with arguments by their names; those before others that have none by their places."""
    own: list[Any] = []
    named: dict[str, Any] = {}
    places = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if parameter.name not in given:
            continue
        value = resolved(given[parameter.name])
        if parameter.kind is parameter.VAR_POSITIONAL:
            own += value if isinstance(value, (list, tuple)) else [value]
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= (
                value if isinstance(value, dict) and all(type(k) is str for k in value) else {"one": value}
            )
        elif places and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            own.append(value)
        else:
            named[parameter.name] = value
    function(*own, **named)


def wrong_answers(name: str, get: Callable[[], Callable[..., Any]]) -> list[str]:
    """Errors of others that a function gives for one strange argument beside good ones."""
    parameters = list(inspect.signature(get()).parameters.values())
    known = GOOD | (OF_TAPES if name.startswith("layers.") else {}) | CALLS.get(name, {})
    good: dict[str, Any] = {}
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind not in (2, 4)
        if needed or parameter.name in CALLS.get(name, {}):
            assert parameter.name in known, f"GOOD or CALLS must have '{parameter.name}' of {name}"
            good[parameter.name] = known[parameter.name]
    found = []
    with Tape():
        try:
            called(get(), parameters, good)
        except StepnetError as error:
            if name not in NOT_THERE:
                found.append(f"{name}, with good arguments: {error}")
    for parameter in parameters:
        if f"{name} {parameter.name}" in RIGHT:
            continue
        for strange in STRANGE:
            if parameter.name == "device" and isinstance(strange, int) and torch.version.cuda:
                continue  # the number of a GPU, which a machine has or has not
            with Tape():
                try:
                    called(get(), parameters, {**good, parameter.name: strange})
                except StepnetError as error:
                    if not (error.got or error.expected or error.remedy or "must" in error.where):
                        found.append(f"{name}({parameter.name}={brief(strange)}) says: {error}")
                except Exception as error:
                    if not (isinstance(error, AssertionError) and name.startswith("testing.")):  # its answer
                        found.append(f"{name}({parameter.name}={brief(strange)}): {error!r}"[:300])
    return found


def names() -> list[str]:
    every = [name.removeprefix("stepnet.") for name in (FUNCTIONS | CLASSES)]
    return [name for name in every if name not in NOT_BY_USERS]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Files go to a folder of the test's own; no step is compiled; what is set or registered is put back."""
    monkeypatch.chdir(tmp_path)
    before = stepnet.get_backend()
    stepnet.set_backend("naive")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    stepnet.set_backend(before)


def at(name: str) -> Any:
    return (FUNCTIONS | CLASSES)[f"stepnet.{name}"]


@pytest.mark.parametrize("name", names())
def test_functions_and_classes(name):
    assert not wrong_answers(name, lambda: at(name))


@pytest.mark.parametrize("name", OBJECTS)
def test_methods(name):
    kind = at(name)
    found = []
    for method in sorted(methods(kind)):
        short = f"{name.rpartition('.')[2]}.{method}"
        if isinstance(inspect.getattr_static(kind, method), property) or short in PLUMBING:
            continue
        found += wrong_answers(short, lambda method=method: getattr(OBJECTS[name](), method))
    assert not found


def test_exceptions_stand_for_something():
    parameters = {f"{name} {own}" for name in names() for own in inspect.signature(at(name)).parameters}
    for name in OBJECTS:
        for method in methods(at(name)).keys() - {"metrics", "scopes"}:
            own = inspect.getattr_static(at(name), method)
            if not isinstance(own, property):
                of = inspect.signature(getattr(at(name), method)).parameters
                parameters |= {f"{name.rpartition('.')[2]}.{method} {parameter}" for parameter in of}
    assert not {*RIGHT} - parameters
    assert not NOT_BY_USERS - {name.removeprefix("stepnet.") for name in CLASSES}


def test_what_is_answered_otherwise_is_seen():
    def planted(x, size=0):
        return [x][size]

    (found,) = {text.partition("(")[0] for text in wrong_answers("planted", lambda: planted)}
    assert found == "planted"
    assert any("IndexError" in text for text in wrong_answers("planted", lambda: planted))
