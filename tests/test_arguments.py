"""Arguments of simple kinds: what is of another kind is told by its name, whatever it is."""

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from stepnet import LoDTensor, TensorArray, cells, decode, layers, onnx, openvino
from stepnet.data import RowBudgetSampler
from stepnet.errors import StepnetError
from stepnet.tape import Tape

STRANGE = [b"x", {}, {1}, [[1]], (), object(), ..., slice(2), np.zeros(3), np.array("x"), torch.eye(3)]
STRANGE += [torch.zeros(2, device="meta"), torch.eye(3).to_sparse(), nn.Linear(2, 3), int]
BAD = {
    "whole": [*STRANGE, None, "x", 2.5, float("nan"), True],
    "whole or none": [*STRANGE, "x", 2.5, -1],
    "truth": [*STRANGE, None, "x", 2.5, 3],
    "number": [*STRANGE, None, "x", True],
    "function": [value for value in STRANGE if not callable(value)] + [None, "x", 3],
    "path": [value for value in STRANGE if not isinstance(value, bytes)] + [None, 3, 2.5],
    "choice": [*STRANGE, None, 3, "x"],
    "name": [*STRANGE, None, 3],
    "list": [value for value in STRANGE if not isinstance(value, tuple)] + [None, "x", 3],
}
for kind in ("name", "choice"):
    BAD[f"{kind} or none"] = [value for value in BAD[kind] if value is not None]

X = LoDTensor.from_lengths(torch.randn(6, 3), [[3, 1, 2]])
CELL = cells.GRU(3, 4)
RNN = stepnet.Recurrent(CELL)
RECURRENT = {
    "reverse": "truth",
    "level": "whole",
    "axis": "whole",
    "scopes": "truth",
    "backend": "choice or none",
}


ITEM, PORT = object(), dict.fromkeys(("start", "end", "stride", "part_size"), "whole")
PORTS = [stepnet.InputPort("x", "x", axis=0), stepnet.OutputPort("y", 0, axis=0)]


def on_a_tape(function):
    """A layer of an input of sequences, which stands where ITEM is given."""

    def call(**given):
        with Tape():
            item = layers.data("rows", layers.Sequence(layers.Dense(3)))
            return function(**{name: item if value is ITEM else value for name, value in given.items()})

    return call


def with_port(kind):
    """A loop with a port in place of that of its kind."""

    def call(**given):
        ports = [kind(**given) if isinstance(port, kind) else port for port in PORTS]
        return stepnet.TensorIterator(lambda x: x, ports)

    return call


def scores(word, state):
    return torch.zeros(len(word), 5), state


WORDS = {"bos": 0, "eos": 1, "max_length": 2}

CALLS = {
    "recurrent": (stepnet.recurrent, {"step": CELL, "x": X}, RECURRENT),
    "recurrent of tensors": (stepnet.recurrent, {"step": CELL, "x": torch.randn(5, 2, 3)}, RECURRENT),
    "windows": (stepnet.recurrent, {"step": CELL, "x": X, "detach_every": 2}, RECURRENT),
    "resets": (stepnet.recurrent, {"step": CELL, "x": X, "resets": torch.zeros(6) > 0}, RECURRENT),
    "Recurrent": (stepnet.Recurrent, {"step": CELL}, {k: v for k, v in RECURRENT.items() if k != "backend"}),
    "map_fn": (
        stepnet.map_fn,
        {"fn": torch.tanh, "elems": X},
        {"fn": "function", "axis": "whole", "level": "whole", "backend": "choice or none"},
    ),
    "while_loop": (
        stepnet.while_loop,
        {"cond": lambda i: i < 3, "body": lambda i: (i + 1,), "loop_vars": (torch.tensor(0),)},
        {"cond": "function", "body": "function", "max_steps": "whole or none"},
    ),
    "truncated": (stepnet.truncated, {"x": X, "rows": 2}, {"rows": "whole", "at_once": "whole or none"}),
    "stream": (stepnet.stream, {"module": RNN}, {"max_streams": "whole or none"}),
    "set_backend": (stepnet.set_backend, {}, {"backend": "choice or none"}),
    "greedy": (
        decode.greedy,
        {"step": scores, "state": torch.zeros(2, 1), **WORDS},
        {"step": "function", "bos": "whole", "eos": "whole", "max_length": "whole"},
    ),
    "beam_search": (
        decode.beam_search,
        {"step": scores, "state": torch.zeros(2, 1), **WORDS, "beam_size": 2},
        {
            "step": "function", "bos": "whole", "eos": "whole", "max_length": "whole", "beam_size": "whole",
            "n_best": "whole", "length_penalty": "number",
        },
    ),
    "sampler": (
        RowBudgetSampler,
        {"lengths": [3, 2], "rows": 4},
        {"rows": "whole", "seed": "whole", "shuffle": "truth", "drop_last": "truth"},
    ),
    "to_padded": (X.to_padded, {}, {"padding_value": "number", "batch_first": "truth"}),
    "from_padded": (
        LoDTensor.from_padded,
        {"padded": torch.zeros(2, 3), "lengths": [3, 1]},
        {"batch_first": "truth"},
    ),
    "lengths": (X.lengths, {}, {"level": "whole"}),
    "map": (X.map, {"fn": torch.tanh}, {"fn": "function"}),
    "split_at": (X.split_at, {"marks": torch.zeros(6) > 0}, {"after": "truth"}),
    "sequence_pool": (
        stepnet.sequence_pool,
        {"x": X, "pooling": "sum"},
        {"pooling": "choice", "pad_value": "number"},
    ),
    "sequence_expand": (stepnet.sequence_expand, {"x": torch.zeros(3, 1), "y": X}, {"ref_level": "whole"}),
    "sequence_mask": (stepnet.sequence_mask, {"lengths": torch.tensor([1])}, {"maxlen": "whole or none"}),
    "unstack": (TensorArray.unstack, {"tensor": torch.zeros(2, 3)}, {"axis": "whole"}),
    "unpack": (TensorArray.unpack, {"x": X}, {"level": "whole", "sort_by_length": "truth"}),
    "write": (
        TensorArray().write,
        {"index": 0, "value": torch.zeros(3)},
        {"index": "whole", "data_shared": "truth"},
    ),
    "data": (on_a_tape(layers.data), {"name": "x", "type": layers.Dense(3)}, {"name": "name"}),
    "fc": (
        on_a_tape(layers.fc),
        {"x": ITEM, "size": 4},
        {"size": "whole", "bias": "truth", "name": "name or none"},
    ),
    "recurrent_group": (
        on_a_tape(layers.recurrent_group),
        {"step": lambda x: layers.fc(x, 3), "inputs": ITEM},
        {"step": "function", "name": "name or none"},
    ),
    "InputPort": (with_port(stepnet.InputPort), {"external": "x", "internal": "x", "axis": 0}, PORT),
    "OutputPort": (with_port(stepnet.OutputPort), {"external": "y", "internal": 0, "axis": 0}, PORT),
    "Memory": (
        stepnet.Memory,
        {"name": "h", "pre_name": "b", "init": "c"},
        {"name": "name", "pre_name": "name"},
    ),
    "RecurrentOp": (
        stepnet.RecurrentOp,
        {"stepnet": lambda scope: None, "inputs": ["x"], "outputs": ["y"]},
        {"stepnet": "function", "inputs": "list", "outputs": "list", "memories": "list"},
    ),
    "TensorIterator": (
        stepnet.TensorIterator,
        {"body": lambda x: x, "port_map": PORTS},
        {"port_map": "list", "back_edges": "list"},
    ),
    "LSTM": (
        stepnet.nn.LSTM,
        {"input_size": 2, "hidden_size": 3},
        {
            "input_size": "whole", "hidden_size": "whole", "num_layers": "whole", "bias": "truth",
            "batch_first": "truth", "dropout": "number", "bidirectional": "truth", "proj_size": "whole",
        },
    ),
    "Stack": (
        stepnet.nn.Stack,
        {"cells": [CELL]},
        {"dropout": "number", "bidirectional": "truth", "batch_first": "truth"},
    ),
    "save as ONNX": (onnx.save, {"module": RNN, "path": "a.onnx", "example_inputs": X}, {"path": "path"}),
    "read ONNX": (onnx.load, {"path": "none.onnx"}, {"path": "path"}),
    "save as IR": (openvino.save, {"module": RNN, "path": "a.xml", "example_inputs": X}, {"path": "path"}),
    "read IR": (openvino.load, {"xml": "none.xml"}, {"xml": "path"}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_what_is_of_another_kind_is_told_by_its_name(call):
    function, good, kinds = CALLS[call]
    wrong = []
    for name, kind in kinds.items():
        for bad in BAD[kind]:
            if isinstance(bad, bool) and name in ("padding_value", "pad_value"):
                continue  # torch fills with them
            try:
                function(**{**good, name: bad})
            except StepnetError as error:
                if name.removesuffix("_penalty") not in str(error) and name != "ref_level":
                    wrong.append((name, bad, str(error)))
            except Exception as error:  # which says nothing of the argument
                wrong.append((name, bad, repr(error)))
            else:
                wrong.append((name, bad, "was taken"))
    assert not wrong


def test_sizes_that_are_not_there():
    def step(x, h):
        return h, h

    h = torch.zeros(2, 3)
    for run in (stepnet.recurrent, stepnet.explain):
        for x, axis in ((torch.zeros(()), 0), (torch.zeros(2, 2), 4)):
            with pytest.raises(StepnetError, match=f"x has no dimension {axis} to step along"):
                run(step, x, h, axis=axis)
    for steps in ([[1, 2], [3]], ["a", None]):
        with pytest.raises(StepnetError, match="steps must be a number, or one for each sequence"):
            stepnet.recurrent(step, None, h, steps=steps)


def test_numbers_of_numpy_are_numbers():
    y, h = stepnet.recurrent(CELL, X, level=np.int64(-1), axis=np.int32(0), reverse=np.bool_(True))
    ours, last = stepnet.recurrent(CELL, X, reverse=True)
    assert torch.equal(y.values, ours.values)
    assert torch.equal(h, last)
    assert stepnet.recurrent(lambda _, s: (s, s + 1), None, h, steps=np.int64(3))[0].shape == (3, 3, 4)
    assert [list(batch) for batch in RowBudgetSampler([3, 2], rows=np.int64(5), shuffle=False)] == [[0, 1]]
    assert stepnet.nn.LSTM(np.int64(2), np.int64(3)).hidden_size == 3


def test_no_table_is_made_of_the_most_words():
    def step(word, state):
        return 9 * torch.eye(5)[word.clamp(max=3) + 1], state

    options = {"bos": 0, "eos": 3, "max_length": 10**12}
    words, _ = decode.greedy(step, torch.zeros(2, 1), **options)
    assert [one.tolist() for one in words] == [[1, 2], [1, 2]]
    found, _ = decode.beam_search(step, torch.zeros(1, 1), **options, beam_size=2)
    assert found[0][0].tolist() == [1, 2]
