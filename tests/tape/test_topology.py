"""Topologies: the three problems of the paper, branches, sharing of parameters, values in and out."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    apply,
    classification_cost,
    classification_error,
    concat,
    data,
    dropout,
    fc,
    memory,
    recurrent_group,
)
from stepnet.tape import Tape


def test_values_are_given_by_name():
    with Tape() as tape:
        net = tape.topology(fc(data("x", Dense(2)), 2))
    with pytest.raises(TapeError, match=r"by name(.|\n)*1 without a name(.|\n)*\['x'\]"):
        net(torch.zeros(1, 2))


def names(topology):
    return list(dict.fromkeys(key.split(".")[0] for key in topology.state_dict()))


def test_problem_evaluator_hangs_on_no_output_and_is_not_lost():
    with Tape() as tape:
        scores = fc(data("x", Dense(3)), 2, name="scores")
        label = data("label", Integer(2))
        classification_error(scores, label, name="error")
        cost = classification_cost(scores, label)
    train, infer = tape.topology(cost), tape.topology(scores)
    x, right = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    loss, metrics = train(x=x, label=right)
    out, none = infer(x=x)
    assert dict(none) == {}
    assert metrics["error"] == (out.argmax(1) != right).double().mean().item()
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(out, right))


def test_problem_memory_that_no_layer_uses_is_not_lost():
    def step(x):
        memory("h", size=4)
        return fc(x, 4, name="h")

    with Tape() as tape:
        out = recurrent_group(step, data("x", Sequence(Dense(3))), name="group")
    assert [c.kind for c in tape] == ["data", "step_input", "memory", "fc", "recurrent_group"]
    x = LoDTensor.from_lengths(torch.randn(5, 3), [[3, 0, 2]])
    y, _ = tape.topology(out)(x=x)
    linear = tape["h"].creation.function
    torch.testing.assert_close(y.values, linear(x.values))


def group_with_a_loose_end(name="group"):
    def step(x):
        before = memory(f"h_{name}", size=4)
        fc(x, 2, name=f"loose_{name}")
        return fc([x, before], 4, act="tanh", name=f"h_{name}")

    return recurrent_group(step, data(f"x_{name}", Sequence(Dense(3))), name=name)


@pytest.mark.parametrize("prune", [False, True])
def test_problem_recurrent_group_is_in_or_out_as_a_whole(prune):
    with Tape() as tape:
        first, second = group_with_a_loose_end("one"), group_with_a_loose_end("two")
    assert names(tape.topology(first, prune=prune)) == ["loose_one", "h_one"]
    both = tape.topology(second, prune=prune)
    assert names(both) == (["loose_two", "h_two"] if prune else ["loose_one", "h_one", "loose_two", "h_two"])
    assert names(tape.topology(second, skip=["one"])) == ["loose_two", "h_two"]
    for bad in ({"outputs": tape["h_one"]}, {"outputs": second, "skip": ["loose_one"]}):
        with pytest.raises(TapeError, match="inside the recurrent group 'one': a group is in or"):
            tape.topology(**bad)


def a_to_g():
    items = {"a": data("a", Dense(2))}
    for name, before in ("ba", "cb", "dc", "ed", "fc", "gf"):
        items[name] = fc(items[before], 2, name=name)
    return items


def by_hand(tape, x, path):
    for name in path:
        x = tape[name].creation.function(x)
    return x


def test_branches_by_skipping():
    with Tape() as tape:
        items = a_to_g()
    x = torch.randn(3, 2)
    down = tape.topology(items["g"], skip=[items["d"], items["e"]])
    assert names(down) == ["b", "c", "f", "g"]
    torch.testing.assert_close(down(a=x)[0], by_hand(tape, x, "bcfg"))
    assert names(tape.topology(items["g"])) == ["b", "c", "d", "e", "f", "g"]
    assert names(tape.topology(items["e"])) == ["b", "c", "d", "e"]
    assert list(tape.call(end="g", skip=["d", "e"], feeds={"a": x})) == [0, 1, 2, 5, 6]


def test_branches_by_two_tapes():
    def topology(up_branch):
        c = fc(fc(data("a", Dense(2)), 2, name="b"), 2, name="c")
        if up_branch:
            return fc(fc(c, 2, name="d"), 2, name="e")
        return fc(fc(c, 2, name="f"), 2, name="g")

    found = []
    for up in (True, False):
        with Tape() as tape:
            found.append(names(tape.topology(topology(up))))
    assert found == [["b", "c", "d", "e"], ["b", "c", "f", "g"]]


def test_branches_by_pruning():
    with Tape() as tape:
        items = a_to_g()
    assert names(tape.topology(items["g"], prune=True)) == ["b", "c", "f", "g"]
    assert names(tape.topology([items["g"], items["d"]], prune=True)) == ["b", "c", "d", "f", "g"]


def test_what_is_skipped_may_be_one():
    with Tape() as tape:
        x = data("x", Dense(2))
        fc(x, 2, name="aside")
        end = fc(x, 2, name="end")
    for skip in (["aside"], "aside", tape["aside"], tape["aside"].index, {"aside"}):
        assert names(tape.topology(end, skip=skip)) == ["end"], skip
    for skip in ("side", 2.5, None):
        with pytest.raises(TapeError, match=r"'skip' names no layer of this tape"):
            tape.topology(end, skip=skip)


def test_what_stays_cannot_need_what_is_skipped():
    with Tape() as tape:
        items = a_to_g()
    with pytest.raises(TapeError, match=r"fc 'f' \(test_topology.py, line .*needs 'c', which is skipped"):
        tape.topology(items["g"], skip=["c", "d", "e"])
    with pytest.raises(TapeError, match="output cannot be skipped"):
        tape.topology(items["g"], skip=["g"])


def test_topologies_of_one_tape_share_parameters():
    with Tape() as tape:
        hidden = fc(data("x", Dense(3)), 4, name="hidden")
        out = fc(hidden, 2, name="out")
    whole, part = tape.topology(out), tape.topology(hidden)
    assert list(part.state_dict()) == ["hidden.weight", "hidden.bias"]
    x = torch.randn(5, 3)
    before = part(x=x)[0].detach()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    whole(x=x)[0].square().sum().backward()
    optimizer.step()
    assert not torch.equal(part(x=x)[0], before)
    torch.testing.assert_close(part(x=x)[0], torch.nn.functional.linear(x, *whole.hidden.parameters()))


def test_a_topology_runs_in_its_own_mode():
    with Tape() as tape:
        out = dropout(data("x", Dense(50)))
    train, infer = tape.topology(out), tape.topology(out)
    train.train()
    infer.eval()
    x = torch.ones(4, 50)
    assert torch.equal(infer(x=x)[0], x)
    assert (train(x=x)[0] == 0).any()
    assert torch.equal(infer(x=x)[0], x)


def test_evaluators_accumulate_reset_and_are_each_topologys_own():
    with Tape() as tape:
        scores, label = data("x", Dense(2)), data("label", Integer(2))
        error = classification_error(scores, label, name="error")
    train, test = tape.topology(error), tape.topology(error)
    x = torch.eye(2)
    assert train(x=x, label=torch.tensor([0, 1]))[0] == 0.0
    assert train(x=x, label=torch.tensor([1, 0]))[0] == 0.5
    assert test(x=x, label=torch.tensor([1, 0]))[1]["error"] == 1.0
    assert train.metrics()["error"] == 0.5
    train.reset()
    assert train(x=x, label=torch.tensor([1, 1]))[1]["error"] == 0.5
    assert list(train.state_dict()) == []


def test_playing_a_tape_evaluates_this_batch_alone():
    with Tape() as tape:
        scores, label = data("x", Dense(2)), data("label", Integer(2))
        error = classification_error(scores, label)
    for right, value in (([0, 1], 0.0), ([1, 0], 1.0), ([0, 0], 0.5)):
        values = tape.call(feeds={"x": torch.eye(2), "label": torch.tensor(right)})
        assert values[error.index] == value


class Pair(NamedTuple):
    first: Any
    second: Any


def test_outputs_in_a_tuple_with_names():
    with Tape() as tape:
        x = data("x", Dense(2))
        pair = Pair(x + 1, x * 3)
    out, _ = tape.topology(pair)(x=torch.ones(1, 2))
    assert type(out) is Pair
    assert out.first.tolist() == [[2.0, 2.0]]
    assert out.second.tolist() == [[3.0, 3.0]]


def test_outputs_are_nested_as_they_were_asked_for():
    with Tape() as tape:
        x = data("x", Dense(2))
        items = {"both": (x + 1, [x * 2]), "x": x}
    out, _ = tape.topology(items)(x=torch.ones(1, 2))
    assert out["both"][0].tolist() == [[2.0, 2.0]]
    assert out["both"][1][0].tolist() == [[2.0, 2.0]]
    assert out["x"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["forward", "training", "inputs", "_played", "_modules", "a b"])
def test_a_layer_may_be_called_as_what_a_module_has(name):
    with Tape() as tape:
        out = fc(data("x", Dense(2)), 2, name=name)
    net = copy.deepcopy(tape.topology(out).eval().train().double())
    assert list(net.state_dict()) == [f"{name}.weight", f"{name}.bias"]
    net.load_state_dict(net.state_dict())
    assert net.inputs == ("x",)
    assert net(x=torch.ones(1, 2).double())[0].shape == (1, 2)


def test_data_cannot_be_called_self():
    with Tape(), pytest.raises(TapeError, match="a call cannot have an argument of this name"):
        data("self", Dense(2))


def test_a_topology_outlives_its_tape_and_is_copied_whole():
    with Tape() as tape:
        out = fc(data("x", Dense(2)), 2, name="h")
    net = tape.topology(out)
    tape.clear()
    twin = copy.deepcopy(net)
    x = torch.ones(1, 2)
    torch.testing.assert_close(twin(x=x)[0], net(x=x)[0])
    with torch.no_grad():
        net.h.weight.zero_()
    assert not torch.equal(twin(x=x)[0], net(x=x)[0])


LEVEL = LoDTensor(torch.zeros(2, 3), [[0, 2]])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"none for \['x', 'y'\]"),
        ({"x": torch.zeros(2, 3), "y": torch.tensor([0, 1]), "z": 1}, r"values for \['z'\]"),
        ({"x": torch.zeros(2, 4), "y": torch.tensor([0, 1])}, r"'x' is Dense.*float32 \[\*?2?, 4\]"),
        ({"x": LEVEL, "y": torch.tensor([0, 1])}, "a tensor, without levels"),
        ({"x": [1], "y": torch.tensor([0, 1])}, "a tensor"),
        ({"x": torch.zeros(2, 3), "y": torch.tensor([0.0, 1.0])}, "int64 rows"),
        ({"x": torch.zeros(2, 3), "y": torch.tensor([0, 2])}, "'y' has an integer out of range"),
        ({"x": torch.zeros(2, 3), "y": torch.tensor([-1, 1])}, "0 to 1"),
        (
            {"x": torch.zeros(3, 3), "y": torch.tensor([0, 1])},
            r"add 'sum' \(test_topology.py.* failed",
        ),
    ],
    ids=["missing", "unknown", "size", "levels", "no tensor", "dtype", "range", "negative", "play"],
)
def test_values_that_do_not_fit(feeds, message):
    with Tape() as tape:
        x, y = data("x", Dense(3)), data("y", Integer(2))
        out = Tape.current().record("add", torch.add, (x.sum(1), y), name="sum")
    with pytest.raises(TapeError, match=f"(?s){message}"):
        tape.topology(out)(**feeds)


def test_data_that_nothing_reads_needs_no_value():
    with Tape() as tape:
        x, _ = data("x", Dense(3)), data("label", Integer(2))
        out = concat([x, x])
    net = tape.topology(out)
    assert net.inputs == ("x",)
    assert net(x=torch.zeros(2, 3))[0].shape == (2, 6)
    assert net(x=torch.zeros(2, 3), label=torch.tensor([0, 1]))[0].shape == (2, 6)


def test_one_module_applied_twice_is_one_set_of_parameters():
    linear = torch.nn.Linear(3, 3)
    with Tape() as tape:
        out = apply(linear, apply(linear, data("x", Dense(3))))
    net = tape.topology(out)
    assert len(list(net.parameters())) == 2
    x = torch.randn(2, 3)
    torch.testing.assert_close(net(x=x)[0], linear(linear(x)))


def test_results_are_no_names_for_what_was_fed():
    with Tape() as tape:
        x, words = data("x", Dense(2)), data("words", Sequence(Dense(2)))
        net = tape.topology([x, dropout(x, 0.5), words, apply(torch.t, x)]).eval()
    fed, said = torch.randn(2, 2), LoDTensor.from_lengths(torch.randn(3, 2), [[1, 2]])
    kept = fed.clone(), said.values.clone()
    out = net(x=fed, words=said)[0]
    torch.testing.assert_close(
        [out[0], out[1], out[2].values, out[3].T], [kept[0], kept[0], kept[1], kept[0]]
    )
    for result in out:
        (result.values if isinstance(result, LoDTensor) else result).zero_()
    torch.testing.assert_close((fed, said.values), kept)
