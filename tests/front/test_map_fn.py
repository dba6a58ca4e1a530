"""`map_fn` against a loop in Python, over all that it takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet import LoDTensor, Tape, TensorArray, layers, map_fn
from stepnet.errors import ArrayError, StepError
from stepnet.layers import Dense, Sequence


@pytest.fixture
def linear():
    return nn.Linear(3, 4).double()


FUNCTIONS = {
    "rows": lambda linear: lambda v: torch.tanh(linear(v)),
    "module": lambda linear: linear,
    "features go": lambda linear: lambda v: linear(v).sum(-1),
    "several": lambda linear: lambda v: {"a": linear(v), "b": (v * 2,)},
}


def same(got, wanted):
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for key in wanted:
            same(got[key], wanted[key])
    elif isinstance(wanted, tuple):
        for a, b in zip(got, wanted, strict=True):
            same(a, b)
    else:
        torch.testing.assert_close(got, wanted)


def joined(values, join):
    """What a list of results is, joined leaf by leaf."""
    if isinstance(values[0], dict):
        return {key: joined([v[key] for v in values], join) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(joined(list(parts), join) for parts in zip(*values, strict=True))
    return join(values)


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 2, 3), (5, 3), (4, 2, 2, 3)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_over_a_tensor(make, shape, linear, backend):
    fn, x = make(linear), torch.randn(shape, dtype=torch.float64)
    same(map_fn(fn, x, backend=backend), joined([fn(v) for v in x], torch.stack))


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("lengths", [[2, 0, 4, 1], [3], [], [0, 0]], ids=str)
def test_over_sequences(make, lengths, linear):
    fn = make(linear)
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), 3, dtype=torch.float64), [lengths])
    found = map_fn(fn, x)
    parts = {"a": found["a"], "b": found["b"][0]} if isinstance(found, dict) else {"": found}
    wanted = fn(x.values)
    for key, part in parts.items():
        rows = wanted if not key else wanted["a"] if key == "a" else wanted["b"][0]
        assert part.recursive_sequence_lengths() == [lengths]
        torch.testing.assert_close(part.values, rows)


def test_over_whole_inner_sequences():
    x = LoDTensor.from_lengths(torch.randn(9, 3), [[2, 0, 1], [4, 0, 5]])
    got = map_fn(lambda s: stepnet.sequence_pool(s, "sum"), x, level=0)
    wanted = stepnet.sequence_pool(x, "sum")
    assert got.recursive_sequence_lengths() == [[2, 0, 1]]
    torch.testing.assert_close(got.values, wanted.values)


def test_over_another_axis_and_packed_sequences(linear):
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(map_fn(linear, x, axis=1), linear(x))
    packed = nn.utils.rnn.pack_sequence([x[0], x[1, :2]])
    torch.testing.assert_close(map_fn(linear, packed).data, linear(packed.data))


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_over_an_array_each_value_by_itself(make, linear):
    fn = make(linear)
    x = LoDTensor.from_lengths(torch.randn(7, 3, dtype=torch.float64), [[2, 0, 4, 1]])
    array, _ = TensorArray.unpack(x)
    found = map_fn(fn, array)
    parts = (found["a"], found["b"][0]) if isinstance(found, dict) else (found,)
    for part, values in zip(parts, zip(*(flat(fn(v)) for v in array), strict=True), strict=True):
        assert isinstance(part, TensorArray)
        for got, wanted in zip(part, values, strict=True):
            torch.testing.assert_close(got, wanted)


def flat(result):
    return (result["a"], result["b"][0]) if isinstance(result, dict) else (result,)


def test_over_an_array_of_no_steps_the_shape_is_known():
    for x in (torch.zeros(0, 3), torch.zeros(2, 0)):
        axis = 0 if not len(x) else 1
        assert map_fn(lambda v: torch.stack([v, v]), TensorArray.unstack(x, axis)).stack().shape == (
            0, 2, *(x.shape[1:] if not axis else x.shape[:1])
        )  # fmt: skip
    assert map_fn(torch.sum, TensorArray()).size() == 0


def test_it_sees_weights_as_they_are_now_and_gives_them_gradients(linear):
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    for _ in range(2):
        linear.zero_grad()
        map_fn(linear, x).sum().backward()
        assert torch.equal(linear.bias.grad, torch.full((4,), 6.0, dtype=torch.float64))
        torch.testing.assert_close(map_fn(linear, x), linear(x))
        with torch.no_grad():
            linear.weight.mul_(2)


@pytest.mark.parametrize("kind", ["rows", "sequences", "array"])
def test_on_a_tape_it_is_a_layer(kind):
    net = nn.Linear(3, 4)
    with Tape() as tape:
        x = layers.data("x", Sequence(Dense(3)) if kind == "sequences" else Dense(3))
        if kind == "array":
            out = map_fn(net, TensorArray.unstack(x)).stack()
        else:
            out = map_fn(net, x)
    topology = tape.topology(out)
    assert [p.shape for p in topology.parameters()] == [(4, 3), (4,)]
    rows = torch.randn(5, 3)
    found, _ = topology(x=LoDTensor.from_lengths(rows, [[2, 0, 3]]) if kind == "sequences" else rows)
    torch.testing.assert_close(getattr(found, "values", found) if kind == "sequences" else found, net(rows))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: map_fn(torch.sum, (TensorArray(size=1), torch.ones(1))),
            StepError,
            r"beside TensorArrays.*",
        ),
        (lambda: map_fn(len, (TensorArray(size=1), TensorArray(size=2))), StepError, r"sizes \[1, 2\]"),
        (lambda: map_fn(torch.sum, TensorArray(size=1)), ArrayError, "nothing was written at index 0"),
        (lambda: map_fn(lambda v: 3, TensorArray.unstack(torch.ones(2))), ArrayError, "is no tensor"),
        (
            lambda: map_fn(lambda v: v if v else (v,), TensorArray.unstack(torch.arange(2))),
            StepError,
            "another structure at step 1",
        ),
        (lambda: map_fn(torch.sum, "x"), StepError, "x must be tensors"),
    ],
    ids=["mixed", "sizes", "hole", "number", "structure", "text"],
)
def test_what_does_not_fit(call, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_compiled_by_any_number_of_threads(threads):
    torch.set_num_threads(threads)  # warnings are errors: the plain loop would be told
    x = torch.randn(5, threads)
    same(map_fn(lambda v: v * 3.5 - threads, x), x * 3.5 - threads)
