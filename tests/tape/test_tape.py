"""The tape itself: recording, the current tape, printing, playing, and what is refused."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch
from torch import nn

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import Dense, Sequence, apply, data, fc, pooling
from stepnet.tape import Tape, TapeItem
from threads import at_once


def test_creations_are_called_in_order_up_to_the_end_and_not_where_skipped():
    tape, seen = Tape(), []
    indices = [tape.append(lambda k=k: seen.append(k)) for k in range(4)]
    assert indices == [0, 1, 2, 3]
    assert len(tape) == 4
    tape.call()
    tape.call(end=1)
    tape.call(skip=[1, 2])
    assert seen == [0, 1, 2, 3, 0, 1, 0, 3]


def test_an_empty_tape():
    tape = Tape()
    assert (len(tape), tape.call(), list(tape), str(tape)) == (0, {}, [], "an empty tape")


def test_layers_go_to_the_innermost_tape():
    before = len(Tape.current())
    with Tape() as outer:
        data("a", Dense(2))
        with Tape() as inner:
            data("b", Dense(2))
        data("c", Dense(2))
    assert [c.name for c in outer] == ["a", "c"]
    assert [c.name for c in inner] == ["b"]
    assert len(Tape.current()) == before


def test_the_global_tape_is_there_without_with_and_can_be_cleared():
    tape = Tape.current()
    assert len(tape) == 0
    try:
        item = data("x", Dense(2))
        assert item.tape is tape
    finally:
        tape.clear()
    with pytest.raises(TapeError, match="no longer on the tape"):
        fc(item, 2)


def test_threads_have_tapes_of_their_own():
    def build(k):
        with Tape() as tape:
            x = data("x", Dense(2))
            for _ in range(30):
                x = x + k
            time.sleep(0.001)
        return tape

    with Tape() as here:
        found = at_once(build)
    assert len(here) == 0
    for k, tape in enumerate(found):
        out, _ = tape.topology(tape[30])(x=torch.zeros(1, 2))
        assert out[0, 0] == 30 * k


def test_tasks_have_tapes_of_their_own():
    async def build(k):
        with Tape() as tape:
            for i in range(5):
                data(f"x{k}_{i}", Dense(2))
                await asyncio.sleep(0)
        return [c.name for c in tape]

    async def both():
        return await asyncio.gather(build(0), build(1))

    with Tape() as here:
        found = asyncio.run(both())
    assert len(here) == 0
    assert found == [[f"x{k}_{i}" for i in range(5)] for k in range(2)]


def test_threads_can_fill_one_tape():
    tape = Tape()

    def build(_):
        with tape:
            for _ in range(50):
                apply(torch.relu, x)

    with tape:
        x = data("x", Dense(2))
    at_once(build)
    assert len(tape) == 201
    assert len({c.name for c in tape}) == 201
    assert [tape[c.name].index for c in tape] == list(range(201))


X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])
WEIGHT = torch.arange(6.0).view(3, 2)
FUNCTIONS = {
    "add": lambda x: x + 1,
    "radd": lambda x: 1 + x,
    "rsub": lambda x: 2 - x,
    "tensor on the left": lambda x: torch.ones(3) - x,
    "div": lambda x: x / 4,
    "rtruediv": lambda x: 4 / (x + 10),
    "pow": lambda x: x**2,
    "neg": lambda x: -x,
    "abs": lambda x: abs(x),
    "matmul": lambda x: x @ WEIGHT,
    "compare": lambda x: x > 0,
    "equal": lambda x: x == 0.5,
    "both": lambda x: (x > 0) & ~(x > 2),
    "torch function": lambda x: torch.relu(x),
    "functional": lambda x: nn.functional.layer_norm(x, (3,)),
    "several items": lambda x: torch.cat([x, x * 2], dim=-1),
    "keyword": lambda x: torch.add(input=x, other=x, alpha=3),
    "method": lambda x: x.clamp(min=0),
    "index": lambda x: x[:, 1:],
    "tuple result": lambda x: torch.max(x, dim=1)[0],
    "unpacked": lambda x: sum(torch.chunk(x, 3, dim=1)),
    "transposed": lambda x: x.T,
    "einsum": lambda x: torch.einsum("bi,ij->bj", x, WEIGHT),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_recorded_functions_mean_what_they_mean(function):
    with Tape() as tape:
        y = function(data("x", Dense(3)))
    assert isinstance(y, TapeItem)
    out, _ = tape.topology(y)(x=X)
    torch.testing.assert_close(out, function(X))


def test_recorded_functions_run_on_sequences_too():
    with Tape() as tape:
        x = data("x", Sequence(Dense(3)))
        y = torch.relu(x - 0.5).sum(-1)
        rows = x.values.mean()
    ragged = LoDTensor(X, [[0, 2, 2]])
    (out, mean), _ = tape.topology([y, rows])(x=ragged)
    assert out.recursive_sequence_lengths() == [[2, 0]]
    torch.testing.assert_close(out.values, torch.relu(X - 0.5).sum(-1))
    torch.testing.assert_close(mean, X.mean())


def test_a_parameter_in_a_recorded_function_trains_and_is_saved():
    weight = nn.Parameter(WEIGHT.clone())
    with Tape() as tape:
        y = data("x", Dense(3)) @ weight
    net = tape.topology(y)
    assert [p is weight for p in net.parameters()] == [True]
    assert list(net.state_dict()) == ["matmul_0.tensor_0"]
    net(x=X)[0].sum().backward()
    torch.testing.assert_close(weight.grad, X.sum(0).unsqueeze(1).expand(3, 2))


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "level"),
    [
        (lambda x: x, (None, 3), torch.float32, 0),
        (lambda x: x.sum(-1), (None,), torch.float32, 0),
        (lambda x: x.mean(), (), torch.float32, 0),
        (lambda x: x > 0, (None, 3), torch.bool, 0),
        (lambda x: fc(x, 7), (None, 7), torch.float32, 0),
        (lambda x: x[:, 0].long(), (None,), torch.int64, 0),
    ],
    ids=["data", "sum", "mean", "compare", "fc", "cast"],
)
def test_an_item_knows_its_shape(make, shape, dtype, level):
    with Tape():
        item = make(data("x", Dense(3)))
    assert (item.shape, item.dtype, item.lod_level) == (shape, dtype, level)


def test_an_item_of_sequences_knows_its_levels():
    with Tape():
        x = data("x", Sequence(Sequence(Dense(3))))
        levels = [x.lod_level, pooling(x).lod_level, pooling(pooling(x)).lod_level]
    assert levels == [2, 1, 0]


def test_making_a_layer_draws_no_random_numbers():
    with Tape():
        x = data("x", Dense(3))
        before = torch.get_rng_state()
        nn.functional.dropout(x, 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def other_tape():
    with Tape():
        x = data("x", Dense(3))
    with Tape():
        fc(x, 2)


def duplicate():
    with Tape():
        x = data("x", Dense(3))
        fc(x, 2, name="h")
        fc(x, 2, name="h")


def wrong_size():
    with Tape():
        fc(data("x", Dense(3)), 2) + data("y", Dense(3))


def no_item():
    with Tape():
        fc(torch.zeros(2, 3), 2)


def truth():
    with Tape():
        if data("x", Dense(3)) > 0:
            pass


def in_place():
    with Tape():
        data("x", Dense(3)).add_(1)


def dotted():
    with Tape():
        data("a.b", Dense(3))


def not_a_layer():
    Tape().append(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_tape, "fc (test_tape.py, line {}: fc(x, 2)): its input 'x' is an item of another tape"),
        (duplicate, "fc 'h' (test_tape.py, line {}: fc(x, 2, name=\"h\")): the name 'h' is taken"),
        (wrong_size, "does not fit its inputs: The size of tensor a (2) must match"),
        (no_item, "fc (test_tape.py, line {}: fc(torch.zeros(2, 3), 2)): its input is no item of a tape"),
        (truth, "its truth needs a value"),
        (in_place, ".add_() writes in place"),
        (dotted, "without dots"),
        (not_a_layer, "a tape holds creations, or what can be called"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_errors_when_a_layer_is_made(make, message):
    with pytest.raises(TapeError) as caught:
        make()
    code = make.__code__
    lines = [line for *_, line in code.co_lines() if line is not None]
    assert any(message.format(line) in str(caught.value) for line in lines)
