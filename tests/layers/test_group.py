"""Recurrent groups against plain loops; nesting; what is refused."""

from __future__ import annotations

import pytest
import torch

from stepnet import LoDTensor, set_backend
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    StaticInput,
    addto,
    concat,
    data,
    embedding,
    fc,
    last,
    memory,
    pooling,
    recurrent_group,
)
from stepnet.tape import Tape

LENGTHS = {"unsorted": [2, 0, 5, 1], "one": [3], "none": [], "all empty": [0, 0]}


def rows(lengths, size=3):
    values = torch.randn(sum(lengths), size, dtype=torch.float64, requires_grad=True)
    return LoDTensor.from_lengths(values, [lengths])


def simple(x):
    return fc([x, memory("h", 4)], 4, act="tanh", name="h")


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_group_is_a_plain_loop_over_each_sequence(lengths, reverse):
    with Tape() as tape:
        out = recurrent_group(simple, data("x", Sequence(Dense(3))), reverse=reverse)
    net = tape.topology(out).double()
    x = rows(lengths)
    y, _ = net(x=x)
    linear, expected = tape["h"].creation.function, []
    for sequence in x:
        h, found = torch.zeros(4, dtype=torch.float64), []
        for row in sequence.flip(0) if reverse else sequence:
            h = torch.tanh(linear(torch.cat([row, h])))
            found.append(h)
        expected += found[::-1] if reverse else found
    expected = torch.stack(expected) if expected else torch.zeros(0, 4, dtype=torch.float64)
    torch.testing.assert_close(y.values, expected)
    if len(expected):
        leaves = [x.values, *linear.parameters()]
        ours = torch.autograd.grad(y.values.square().sum(), leaves)
        torch.testing.assert_close(ours, torch.autograd.grad(expected.square().sum(), leaves))


def test_a_group_compiles_without_a_warning():
    set_backend("auto")
    with Tape() as tape:
        out = recurrent_group(simple, data("x", Sequence(Dense(3))))
    net = tape.topology(out).double()
    x = rows([2, 0, 5, 1])
    got = net(x=x)[0].values
    h, linear = torch.zeros(4, dtype=torch.float64), tape["h"].creation.function
    for row in x[2]:
        h = torch.tanh(linear(torch.cat([row, h])))
    torch.testing.assert_close(got[6], h)


def test_memories_boot_from_items_and_numbers_and_static_inputs_are_seen_whole():
    def step(x, topic, words):
        a = addto([x, memory("a", 2, boot=start)], name="a")
        b = addto([memory("b", 2, boot=10.0), topic], name="b")
        return a, b, concat([a, pooling(words, "sum")])

    with Tape() as tape:
        x, start, topic = data("x", Sequence(Dense(2))), data("start", Dense(2)), data("topic", Dense(2))
        words = data("words", Sequence(Dense(1)))
        outs = recurrent_group(step, [x, StaticInput(topic), StaticInput(words)])
    assert isinstance(outs, tuple)
    feeds = {
        "x": LoDTensor(torch.ones(4, 2), [[0, 1, 1, 4]]),
        "start": torch.tensor([[5.0, 5], [6, 6], [7, 7]]),
        "topic": torch.tensor([[1.0, 1], [2, 2], [3, 3]]),
        "words": LoDTensor(torch.tensor([[1.0], [2], [4]]), [[0, 2, 2, 3]]),
    }
    (a, b, c), _ = tape.topology(outs)(**feeds)
    assert a.values[:, 0].tolist() == [6, 8, 9, 10]
    assert b.values[:, 0].tolist() == [11, 13, 16, 19]
    assert c.values[:, 2].tolist() == [3, 4, 4, 4]


def test_a_static_row_is_seen_by_every_step_of_its_own_sequence():
    with Tape() as tape:
        x, topic = data("x", Sequence(Dense(2))), data("topic", Dense(2))
        out = recurrent_group(lambda x, t: x * t, [x, StaticInput(topic)])
    ragged = LoDTensor(torch.ones(4, 2), [[0, 1, 1, 4]])
    y, _ = tape.topology(out)(x=ragged, topic=torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
    assert y.values[:, 0].tolist() == [1, 3, 3, 3]


def test_nested_groups_whose_memory_boots_from_the_outer_are_one_flat_group():
    def inner(word):
        return fc([word, memory("h", 4, boot=outer_memory)], 4, act="tanh", name="h")

    def sentence(words):
        global outer_memory
        outer_memory = memory("end", 4)
        inside = recurrent_group(inner, words, name="inner")
        last(inside, name="end")
        return inside

    with Tape() as tape:
        nested = recurrent_group(sentence, data("x", Sequence(Sequence(Dense(3)))), name="outer")
    with Tape() as other:
        flat = recurrent_group(simple, data("x", Sequence(Dense(3))))
    one, two = tape.topology(nested).double(), other.topology(flat).double()
    two.load_state_dict(one.state_dict())
    values = torch.randn(9, 3, dtype=torch.float64)
    y, _ = one(x=LoDTensor.from_lengths(values, [[2, 0, 3], [1, 2, 1, 3, 2]]))
    z, _ = two(x=LoDTensor.from_lengths(values, [[3, 0, 6]]))
    assert y.recursive_sequence_lengths() == [[2, 0, 3], [1, 2, 1, 3, 2]]
    torch.testing.assert_close(y.values, z.values)


def test_the_table_shows_groups_indented():
    with Tape() as tape:
        recurrent_group(simple, data("x", Sequence(Dense(3))), name="group")
    lines = str(tape).splitlines()
    assert lines[0].split() == ["#", "name", "kind", "inputs", "value"]
    assert lines[5].startswith("4    h ")
    assert lines[6].split() == ["5", "group", "recurrent_group", "x", "float32", "[*,", "4],", "1", "level"]


def test_a_group_over_ids():
    with Tape() as tape:
        words = data("words", Sequence(Integer(9)))
        out = recurrent_group(lambda w: simple(embedding(w, 3)), words)
    y, _ = tape.topology(out)(words=LoDTensor(torch.tensor([1, 8, 0]), [[0, 2, 3]]))
    assert y.values.shape == (3, 4)


def outside(x, y):
    memory("h", 3)


def never_made(x, y):
    recurrent_group(lambda x: memory("h", 3) + x, x)


def wrong_size(x, y):
    recurrent_group(lambda x: (memory("h", 3), fc(x, 4, name="h"))[1], x)


def wrong_size_made_before(x, y):
    recurrent_group(lambda x: (fc(x, 4, name="h"), memory("h", 3))[0], x)


def reads_outside(x, y):
    recurrent_group(lambda x: fc(y, 2), x)


def used_outside(x, y):
    kept = []
    recurrent_group(lambda x: kept.append(x) or fc(x, 2), x)
    fc(kept[0], 2)


def no_item(x, y):
    recurrent_group(lambda x: 3, x)


def returns_outer(x, y):
    recurrent_group(lambda x: y, x)


def rows_alone(x, y):
    recurrent_group(lambda y: y, y)


def all_static(x, y):
    recurrent_group(lambda y: y, StaticInput(y))


def boot_inside(x, y):
    recurrent_group(lambda x: memory("h", 3, boot=x), x)


def boot_size(x, y):
    recurrent_group(lambda x: memory("h", 4, boot=y), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (outside, r"memory 'h' \(test_group.py, line .*is outside a recurrent group"),
        (never_made, r"the memory of 'h' has no layer(?s:.)*test_group.py, line"),
        (wrong_size, r"fc 'h' \(test_group.py.*the memory of 'h' has another size"),
        (wrong_size_made_before, "the memory of 'h' has another size"),
        (reads_outside, r"its input 'y' is outside the recurrent group 'recurrent_group_0'"),
        (used_outside, r"is inside the recurrent group 'recurrent_group_0'"),
        (no_item, "must return an item"),
        (returns_outer, "'y' is outside the recurrent group"),
        (rows_alone, "must be sequences"),
        (all_static, "has no sequence to run over"),
        (boot_inside, "its boot: its input 'step_input_0' is inside the recurrent group"),
        (boot_size, "'boot' has another size"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_errors_when_a_group_is_made_take_back_what_it_recorded(make, message):
    with Tape() as tape:
        x, y = data("x", Sequence(Dense(3))), data("y", Dense(3))
        with pytest.raises(TapeError, match=message):
            make(x, y)
        assert tape.group is None
        if make is not used_outside:
            assert len(tape) == 2
            recurrent_group(lambda x: fc([x, memory("h", 3)], 3, name="h"), x)
