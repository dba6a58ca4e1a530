"""What feeds a topology, how it is taken, and what its metrics say of evaluators that are not in."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    classification_cost,
    classification_error,
    data,
    embedding,
    fc,
    pooling,
)
from stepnet.tape import Tape

NESTED = [[[[1.0, 2.0], [3.0, 4.0]], []], [], [[[5.0, 6.0]]]]
FEEDS = {
    "rows, lists": (Dense(2), [[1, 2], [3.5, 4]]),
    "rows, tuples": (Dense(2), ((1, 2), (3.5, 4))),
    "rows, float64": (Dense(2), np.array([[1, 2], [3.5, 4]])),
    "rows, float32": (Dense(2), np.array([[1, 2], [3.5, 4]], np.float32)),
    "rows, float16": (Dense(2), np.array([[1, 2], [3.5, 4]], np.float16)),
    "rows, another order of bytes": (Dense(2), np.array([[1, 2], [3.5, 4]], ">f8")),
    "rows, backwards": (Dense(2), np.array([[4, 3.5], [2, 1]])[::-1, ::-1]),
    "rows, a list of arrays": (Dense(2), [np.array([1.0, 2]), np.array([3.5, 4])]),
    "rows, a list of tensors": (Dense(2), [torch.tensor([1.0, 2]), torch.tensor([3.5, 4])]),
    "ids, a list": (Integer(9), [4, 0, 8]),
    "ids, int32": (Integer(9), np.array([4, 0, 8], np.int32)),
    "ids, uint8": (Integer(9), np.array([4, 0, 8], np.uint8)),
    "ids, a list of tensors": (Integer(9), [torch.tensor(4), torch.tensor(0), torch.tensor(8)]),
    "sequences, lists": (Sequence(Dense(2)), NESTED[0]),
    "sequences, arrays": (Sequence(Dense(2)), [np.array(NESTED[0][0]), np.zeros((0, 2))]),
    "sequences, tensors": (Sequence(Dense(2)), [torch.tensor(NESTED[0][0]), torch.zeros(0, 2)]),
    "words, lists": (Sequence(Integer(9)), [[4, 2], [], [7]]),
    "words, an array": (Sequence(Integer(9)), np.array([[4, 2], [7, 7]])),
    "words, packed": (Sequence(Integer(9)), pack_sequence([torch.tensor([4]), torch.tensor([7, 1])], False)),
    "ids, a column": (Integer(9), pandas.Series([4, 0, 8], index=[7, 8, 9])),
    "sequences, a column": (Sequence(Dense(2)), pandas.Series([np.eye(2), np.ones((1, 2))])),
    "words, a column": (Sequence(Integer(9)), pandas.Series([[4, 2], [], [7]])),
    "nested, lists": (Sequence(Sequence(Dense(2))), NESTED),
    "nothing": (Dense(2), []),
    "no sequences": (Sequence(Dense(2)), []),
    "no nested sequences": (Sequence(Sequence(Integer(9))), [[], []]),
}


def wanted(kind, value):
    """The same by hand: lists of tensors, level by level."""

    def tensors(part, level):
        if level:
            return [tensors(inner, level - 1) for inner in part]
        dtype = torch.int64 if isinstance(kind, Integer) else torch.float32
        rows = [
            row if isinstance(row, torch.Tensor) else torch.tensor(np.array(row).tolist()) for row in part
        ]
        rows = [row.to(dtype) for row in rows]
        shape = (0,) if isinstance(kind, Integer) else (0, kind.size)
        return torch.stack(rows) if rows else torch.zeros(shape, dtype=dtype)

    return tensors(value, kind.level)


@pytest.mark.parametrize(("kind", "value"), FEEDS.values(), ids=FEEDS)
@pytest.mark.parametrize("play", ["topology", "call"])
def test_what_is_fed_is_the_tensor_one_would_make(kind, value, play):
    with Tape() as tape:
        x = data("x", kind)
    got = tape.topology(x)(x=value)[0] if play == "topology" else tape.call(feeds={"x": value})[0]
    if isinstance(value, PackedSequence):
        value = list(LoDTensor.from_packed(value))
    if not kind.level:
        assert torch.equal(got, wanted(kind, value))
        assert got.dtype == wanted(kind, value).dtype
        return
    flat = wanted(kind, value)
    lengths = []
    for _ in range(kind.level):
        lengths.append([len(part) for part in flat])
        flat = [inner for part in flat for inner in part]
    assert got.recursive_sequence_lengths() == lengths
    assert got.shape[1:] == ((kind.size,) if isinstance(kind, Dense) else ())
    if flat:
        assert torch.equal(got.values, torch.stack(list(flat)))


@pytest.mark.parametrize(
    "value", [[[1, 2.5]], np.array([[1, 2.5]]), np.array([[1, 2.5]], np.float32)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_numbers_take_the_dtype_of_the_parameters(value, dtype):
    with Tape() as tape:
        out = fc(data("x", Dense(2)), 3)
    net = tape.topology(out).to(dtype)
    assert torch.equal(net(x=value)[0], net(x=torch.tensor([[1, 2.5]], dtype=dtype))[0])


def test_nested_tensors_feed_sequences():
    with Tape() as tape:
        x = data("x", Sequence(Dense(2)))
    nested = torch.nested.nested_tensor([torch.ones(1, 2), torch.zeros(3, 2)], layout=torch.jagged)
    assert tape.topology(x)(x=nested)[0].recursive_sequence_lengths() == [[1, 3]]


def test_what_is_fed_is_not_held():
    array = np.ones((2, 2), np.float32)
    with Tape() as tape:
        out = tape.topology(data("x", Dense(2)))(x=array)[0]
    array[:] = 7
    assert torch.equal(out, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Dense(2), [[1, 2], [3]], "lists of different lengths"),
        (Dense(2), [[1, 2, 3]], r"float32 \[1, 3\](?s:.)*rows \[n, 2\]"),
        (Dense(2), [["a", "b"]], "an array of <U1"),
        (Dense(2), [[True, False]], "an array of bool"),
        (Dense(2), [[1j, 2]], "complex"),
        (Dense(2), None, "NoneType: an array of object"),
        (Dense(2), pack_sequence([torch.ones(1, 2)]), "PackedSequence"),
        (Dense(2), [torch.ones(2), 3], "int among tensors"),
        (Dense(2), [torch.ones(2), torch.ones(3)], r"rows of shapes \[\(2,\), \(3,\)\]"),
        (Integer(9), [1.5], "an array of float64"),
        (Integer(9), [9], "out of range"),
        (Integer(9), [-1], "out of range"),
        (Sequence(Integer(9)), [1, 2], "a number in the place of a sequence"),
        (Sequence(Integer(9)), 3, "int in the place of a list of sequences"),
        (Sequence(Integer(9)), torch.ones(2, 2).long(), "a LoDTensor of 1 levels"),
        (Sequence(Dense(2)), [[[1, 2]], [[1, 2, 3]]], "rows of shapes"),
        (Sequence(Sequence(Integer(9))), [[1]], "a number in the place of a sequence"),
        (Sequence(Sequence(Integer(9))), pack_sequence([torch.tensor([1])]), "PackedSequence"),
    ],
)
def test_what_does_not_fit_is_told(kind, value, message):
    with Tape() as tape:
        x = data("x", kind)
    with pytest.raises(TapeError, match=f"data 'x'(?s:.)*{message}"):
        tape.topology(x)(x=value)


# -------------------------------------------------------------------------- ends, and what is not there


def network():
    with Tape() as tape:
        scores = fc(data("x", Dense(2)), 3, name="scores")
        label = data("label", Integer(3))
        classification_error(scores, label, name="error")
        cost = classification_cost(scores, label, name="cost")
        late = classification_error(scores, label, name="late")
    return tape, cost, late


@pytest.mark.parametrize(
    "end",
    [lambda c: c, lambda c: "cost", lambda c: c.index, lambda c: c.index - 6, lambda c: np.int64(c.index)],
)
def test_a_topology_ends_at_an_item_a_name_or_an_integer(end):
    tape, cost, _ = network()
    feeds = {"x": [[1, 2]], "label": [1]}
    wanted = tape.topology(cost)(**feeds)[0]
    assert torch.equal(tape.topology(end(cost))(**feeds)[0], wanted)
    assert torch.equal(tape.topology({"a": [end(cost), 0]})(**feeds)[0]["a"][0], wanted)
    assert torch.equal(tape.call(end(cost), feeds=feeds)[cost.index], wanted)


def test_sizes_may_be_numbers_of_numpy():
    with Tape() as tape:
        words = data("words", Sequence(Integer(np.array([4, 8]).max() + 1)))
        out = fc(pooling(embedding(words, np.int32(3)), "sum"), np.int64(2))
    assert tape.topology(out)(words=[[8, 2], []])[0].shape == (2, 2)
    assert type(Dense(np.int64(3)).size) is int
    with pytest.raises(TapeError, match="Sequence is of a type"):
        Sequence(3)


@pytest.mark.parametrize("end", [6, -7, True, 1.0, None], ids=repr)
def test_what_is_no_end_is_told(end):
    tape, _, _ = network()
    with pytest.raises(TapeError, match=r"names no layer of this tape|holds no item"):
        tape.topology(end)


def test_metrics_say_which_evaluators_there_are():
    tape, cost, late = network()
    feeds = {"x": [[1, 2]], "label": [1]}
    _, metrics = tape.topology(cost)(**feeds)
    for key in ("late", late, "scores", 3, None):
        with pytest.raises(
            TapeError, match=r"has no evaluator(?s:.)*\['error'\](?s:.)*topology\(\[cost, error\]\)"
        ):
            metrics[key]
    with pytest.raises(KeyError):
        metrics["late"]
    assert "late" not in metrics
    assert metrics.get("late") is None
    assert metrics["error"] == metrics[tape["error"]]
    _, metrics = tape.topology([cost, late])(**feeds)
    assert metrics[late] == metrics["error"]
    _, none = tape.topology("scores")(x=[[1, 2]])
    with pytest.raises(TapeError, match="it has none"):
        none["error"]
