"""Frames under a tape: the loop is a layer, which topologies play; its arrays and results are items."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from stepnet import InputPort, LoDTensor, OutputPort, RecurrentOp, Scope, TensorArray, TensorIterator, layers
from stepnet.errors import ArrayError, StepError, StepnetError, TapeError
from stepnet.layers import Dense, Integer, Sequence, data
from stepnet.tape import Tape, TapeItem
from torch_since import torch_since

BUILDS = False


def rnn(x: Any, n: Any, U: Tensor, W: Tensor, boot: Any) -> tuple[Any, Any]:
    """The loop of the paper."""
    states = TensorArray(size=n)
    outputs = TensorArray(size=n)
    inputs = TensorArray(unstack_from=x)
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == n)
        state = torch.sigmoid(states.read(s - 1, boot) @ U + inputs.read(s) @ W)
        states.write(s, state)
        outputs.write(s, state)
        loop.update(s, s + 1)
    return outputs.stack(), loop


def weights() -> tuple[nn.Parameter, nn.Parameter]:
    return nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4))


def test_the_loop_of_the_paper_is_a_layer_of_the_tape():
    U, W = weights()
    with Tape() as tape:
        x = data("x", Dense(3))
        h, loop = rnn(x, TensorArray(unstack_from=x).size(), U, W, torch.zeros(4))
        scores = layers.fc(h, 2, name="scores")
        cost = layers.classification_cost(scores, data("label", Integer(2)))
    assert isinstance(h, TapeItem)
    assert h.shape == (None, 4)
    assert isinstance(loop.results[0], TapeItem)
    assert "recorded on a tape as while_loop_0, and not played yet" in loop.explain()
    train, infer = tape.topology(cost), tape.topology([h, loop.results[0]])
    for steps in (9, 4):
        rows = torch.randn(steps, 3)
        (found, count), _ = infer(x=rows)
        expected, _ = rnn(rows, steps, U, W, torch.zeros(4))
        torch.testing.assert_close(found, expected)
        assert count == steps
    assert "raised to a scan" in loop.explain()
    rows, label = torch.randn(6, 3), torch.randint(2, (6,))
    loss, _ = train(x=rows, label=label)
    linear = dict(tape.topology(scores).named_modules())["scores"]
    by_hand = nn.functional.cross_entropy(linear(rnn(rows, 6, U, W, torch.zeros(4))[0]), label)
    torch.testing.assert_close(torch.autograd.grad(loss, (U, W)), torch.autograd.grad(by_hand, (U, W)))
    assert {id(p) for p in train.parameters()} >= {id(U), id(W)}  # so an optimizer finds them


def test_a_loop_over_plain_tensors_is_recorded_while_a_tape_is_open():
    U, W = weights()
    x = torch.randn(5, 2, 3)
    with Tape() as tape:
        h, loop = rnn(x, 5, U, W, torch.zeros(2, 4))
    assert isinstance(h, TapeItem)
    (found,), _ = tape.topology([h])()
    torch.testing.assert_close(found, rnn(x, 5, U, W, torch.zeros(2, 4))[0])
    assert tape[loop.place].kind == "while_loop"


def test_items_bring_their_tape_with_them():
    """Without `with`, layers are on the global tape; so is a loop that reads them."""
    Tape.current().clear()
    boot = layers.fc(data("b", Dense(2)), 4)
    x = torch.randn(3, 5, 3)  # as many rows as an example
    h, _ = rnn(x, 3, *weights(), boot)
    assert h.tape is Tape.current()
    (found,), _ = h.tape.topology([h])(b=torch.randn(5, 2))
    assert found.shape == (3, 5, 4)
    Tape.current().clear()


def ended_by_the_data(x: Any, seen: Any, W: Tensor) -> tuple[Any, Any, Any]:
    """Not a scan: two loop variables, an array begun outside, one that is only read."""
    inputs = TensorArray(unstack_from=x)
    seen.write(0, x[0])
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(1), x[0] * 0])
    with loop.frame() as (s, total):
        loop.break_if(
            (total.abs().sum() > 9) | (s == inputs.size() if not isinstance(x, TapeItem) else s < 0)
        )
        new = total + x[0] * inputs.read(s) @ W + x.mean(0)
        seen.write(s, new)
        loop.update(s, s + 1)
        loop.update(total, new)
    return seen.stack(), loop.results[1], seen.size()


def test_a_loop_that_is_no_scan_is_played_as_recorded():
    W = torch.eye(3)
    with Tape() as tape:
        x = data("x", Dense(3))
        ones = x + 1 - x  # so that the example ends
        outputs = ended_by_the_data(ones + x, TensorArray(), W)
    assert all(isinstance(item, TapeItem) for item in outputs)
    rows = torch.rand(20, 3) + 0.2
    found, _ = tape.topology(list(outputs))(x=rows)
    inputs, total, expected = rows + 1, torch.zeros(3), [rows[0] + 1]
    while total.abs().sum() <= 9:
        total = total + inputs[0] * inputs[len(expected)] + inputs.mean(0)
        expected.append(total)
    torch.testing.assert_close(found[0], torch.stack(expected))
    torch.testing.assert_close(found[1], total)
    assert found[2] == len(expected)


def test_what_is_on_either_side_of_a_value_in_a_frame():
    with Tape() as tape:
        x = data("x", Dense(3))
        a = TensorArray(unstack_from=torch.arange(4.0))
        out = TensorArray()
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(x.sum() * 0 + 4 <= s)
            v = a.read(s)
            out.write(s, x * v + v * x - torch.add(x, v) + x.sub(v) + torch.stack([x[0] * v]) + x[s])
            loop.update(s, s + 1)
        y = out.stack()
    rows = torch.randn(7, 3)
    (found,), _ = tape.topology([y])(x=rows)
    torch.testing.assert_close(
        found,
        torch.stack([2 * v * rows - 2 * v + rows[0] * v + rows[i] for i, v in enumerate(torch.arange(4.0))]),
    )


def test_a_layer_that_runs_a_loop_by_itself_runs_it():
    def total(x: Tensor) -> Tensor:
        sums, inputs = TensorArray(), TensorArray(unstack_from=x)
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == len(x))
            sums.write(s, sums.read(s - 1, x[0] * 0) + inputs.read(s))
            loop.update(s, s + 1)
        return sums.stack()

    with Tape() as tape:
        y = layers.apply(total, data("x", Dense(3)))
        rows = torch.randn(4, 3)
        (found,), _ = tape.topology([y])(x=rows)  # while the tape is open
    assert len(tape) == 2
    torch.testing.assert_close(found, rows.cumsum(0))


def test_a_loop_inside_a_recurrent_group():
    """Each step of the group runs Newton's method, as often as it takes."""

    def step(x: TapeItem) -> TapeItem:
        loop = stepnet.create_whileloop(loop_vars=[x])
        with loop.frame() as (root,):
            new = (root + x / root) / 2
            loop.break_if((new - root).abs().max() < 1e-6)
            loop.update(root, new)
        return loop.results[0]

    with Tape() as tape:
        x = data("x", layers.Sequence(Dense(1)))
        y = layers.recurrent_group(step, layers.apply(lambda x: x + 1, x))
    rows = stepnet.LoDTensor.from_lengths(torch.rand(6, 1) * 50, [[2, 0, 4]])
    with pytest.warns(stepnet.errors.SlowPathWarning):  # how often depends on the numbers
        (found,), _ = tape.topology([y])(x=rows)
    torch.testing.assert_close(found.values, (rows.values + 1).sqrt(), rtol=1e-5, atol=0)


def test_the_first_loop_inside_a_recurrent_group_is_compiled_with_it():
    """What a program that was not met before asks for its shapes is nothing that the step does."""

    def step(word: TapeItem) -> TapeItem:
        start = layers.fc([word, layers.memory("kept", size=4)], 4, act="tanh", name="start")
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0), start])
        with loop.frame() as (s, h):
            loop.break_if(s == 3)
            loop.update(h, torch.tanh(h) * 0.59375 + h)  # as no other test does
            loop.update(s, s + 1)
        return layers.activation(loop.results[1], "tanh", name="kept")

    with Tape() as tape:
        y = layers.recurrent_group(step, data("words", layers.Sequence(Dense(3))))
    words = stepnet.LoDTensor.from_lengths(torch.randn(9, 3), [[2, 0, 4, 3]])
    net = tape.topology(y)
    stepnet.set_backend("eager")
    found, _ = net(words=words)  # no warning
    stepnet.set_backend("naive")
    plain, _ = net(words=words)
    torch.testing.assert_close(found.values, plain.values)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_topology_with_a_loop_is_copied_whole(copied):
    U, W = weights()
    with Tape() as tape:
        h, _ = rnn(data("x", Dense(3)), 3, U, W, torch.zeros(4))
    net = tape.topology([h])
    twin = copied(net)
    rows = torch.randn(3, 3)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        assert torch.equal(twin(x=rows)[0][0], torch.full((3, 4), 0.5))
        assert not torch.equal(net(x=rows)[0][0], torch.full((3, 4), 0.5))


def test_the_sizes_that_follow_from_rows_are_open():
    """Also rows and some more, and what data chooses; asking changes no statistics."""
    with Tape() as tape:
        x, s = data("x", Dense(2)), data("s", Sequence(Dense(3)))
        loop = stepnet.create_whileloop([torch.tensor(0), x])
        with loop.frame() as (i, h):
            loop.break_if(i == 1)
            loop.update(i, i + 1)
            loop.update(h, torch.cat([h / h.shape[0], x[:1]]))
        shapes = [
            (loop.results[1], (None, 2)),
            (torch.cat([x, x[:1]]), (None, 2)),
            (x.t(), (2, None)),
            (x @ torch.cat([x, x]).t(), (None, None)),
            (x.reshape(-1), (None,)),
            (x[x.sum(1) > 0], (None, 2)),
            (torch.cat([x.sum(0), x[0]]), (4,)),
            (s, (None, 3)),
            (layers.fc(s, 4), (None, 4)),
            (layers.apply(nn.BatchNorm1d(2), x), (None, 2)),
        ]
    assert [item.shape for item, _ in shapes] == [shape for _, shape in shapes]
    assert "float32 [*, *]" in str(tape)
    assert "int64 []; float32 [*, 2]" in repr(tape[loop.place])
    assert "not played yet" in loop.explain()
    norm = tape["BatchNorm1d_0"].creation.module
    assert norm.training
    assert not norm.num_batches_tracked
    (out,), _ = tape.topology([loop.results[1]])(x=torch.ones(4, 2), s=LoDTensor(torch.ones(4, 3), [[0, 4]]))
    assert out.shape == (5, 2)


def backwards(x: Any) -> Any:
    """Counts down from the size of its array, which is a number when the tape is played."""
    sums, inputs = TensorArray(), TensorArray(unstack_from=x)
    loop = stepnet.create_whileloop(loop_vars=[inputs.size() - 1])
    with loop.frame() as (s,):
        loop.break_if(s < 0)
        sums.write(s, torch.tanh(sums.read(s + 1, torch.zeros(3)) + inputs.read(s)))
        loop.update(s, s - 1)
    return sums.stack()


@pytest.mark.exhaustive
@torch_since("2.10", "its export takes the number of rows for a constant")
def test_frames_of_a_topology_are_saved_for_any_number_of_rows(tmp_path):
    U, W = weights()
    with Tape() as tape:
        x = data("x", Dense(3))
        h, _ = rnn(x, TensorArray(unstack_from=x).size(), U, W, torch.zeros(4))
        net = tape.topology((backwards(x), h))
    net.save(tmp_path / "net.xml")
    loaded = stepnet.load(tmp_path / "net.xml")
    for count in (2, 7):
        rows = torch.randn(count, 3)
        before, expected = torch.zeros(3), []
        for row in reversed(rows):
            before = torch.tanh(before + row)
            expected.insert(0, before)
        (found, h), _ = net(x=rows)
        torch.testing.assert_close(found, torch.stack(expected))
        torch.testing.assert_close(tuple(loaded(x=rows)[0]), (found, h))


def wrong(kind: str) -> None:
    with Tape():
        x = data("x", Dense(3))
        array = TensorArray(unstack_from=x)
        if kind == "length":
            len(array)
        if kind == "index":
            array.read(99)
        if kind == "other tape":
            with Tape():
                rnn(x, 3, *weights(), torch.zeros(4))
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            if kind == "shape":
                array.read(s) @ torch.zeros(4, 4)
            if kind == "rows":
                len(torch.relu(x * s))
            assert (x * s).shape == (None, 3)
            loop.break_if(s == 2)
            loop.update(s, s + 1)


ONLY_VALUES: dict[str, Any] = {
    "recurrent": lambda x: stepnet.recurrent(torch.nn.GRUCell(3, 3), x),
    "while_loop": lambda x: stepnet.while_loop(lambda v: v.sum() > 1, lambda v: (v / 2,), (x,)),
    "RecurrentOp": lambda x: RecurrentOp(lambda s: None, ["x"], []).run(Scope({"x": x})),
    "TensorIterator": lambda x: TensorIterator(lambda x: x, [InputPort("x", "x"), OutputPort("y", 0)])(x),
    "nn": lambda x: stepnet.nn.GRU(3, 3)(x),
    "sequence_pool": lambda x: stepnet.sequence_pool(x, "max"),
    "dynamic_recurrent": lambda x: stepnet.dynamic_recurrent(lambda s: None, Scope({"x": x}), ["x"], []),
}


@pytest.mark.parametrize("call", ONLY_VALUES.values(), ids=ONLY_VALUES)
def test_what_needs_values_names_the_layer_that_has_them(call):
    with Tape(), pytest.raises(StepnetError, match=r"layers.apply\(function, item\)"):
        call(layers.data("x", Sequence(Dense(3))))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("length", ArrayError, "when the tape is played"),
        ("index", TapeError, "index 99 is out of range"),
        ("other tape", TapeError, "another tape"),
        ("shape", StepError, "test_while_tape.py:"),
        ("rows", StepError, "known only when the tape is played"),
    ],
)
def test_errors(kind, error, words):
    with pytest.raises(error) as caught:
        wrong(kind)
    assert words in str(caught.value)
