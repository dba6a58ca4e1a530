"""Layers that share weights, on one tape and across tapes."""

from __future__ import annotations

import pytest
import torch

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    data,
    embedding,
    fc,
    gru,
    last,
    lstm,
    memory,
    recurrent_group,
    rnn,
)
from stepnet.tape import Tape

IDS, ROWS = Sequence(Integer(9)), Sequence(Dense(3))
LAYERS = {
    "fc": (ROWS, lambda x, **kw: fc(x, 4, **kw)),
    "fc with act": (ROWS, lambda x, **kw: fc(x, 4, act="tanh", **kw)),
    "fc without bias": (ROWS, lambda x, **kw: fc(x, 4, bias=False, **kw)),
    "embedding": (IDS, lambda x, **kw: embedding(x, 4, **kw)),
    "lstm": (ROWS, lambda x, **kw: lstm(x, 4, **kw)),
    "gru": (ROWS, lambda x, **kw: gru(x, 4, **kw)),
    "rnn": (ROWS, lambda x, **kw: rnn(x, 4, **kw)),
}


def value(kind):
    lengths = [[2, 0, 3]]
    rows = torch.randint(9, (5,)) if kind is IDS else torch.randn(5, 3)
    return LoDTensor.from_lengths(rows, lengths)


@pytest.mark.parametrize(("kind", "make"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("how", ["name", "item"])
def test_two_layers_of_a_tape(kind, make, how):
    with Tape() as tape:
        one = make(data("a", kind), name="first")
        two = make(data("b", kind), weights="first" if how == "name" else one)
    both, alone = tape.topology([one, two]), tape.topology(one, prune=True)
    assert len(list(both.parameters())) == len(list(alone.parameters()))
    x = value(kind)
    a, b = both(a=x, b=x)[0]
    assert torch.equal(a.values, b.values)
    (a.values.sum() + b.values.sum()).backward()
    grads = [p.grad.clone() for p in both.parameters()]
    both.zero_grad()
    alone(a=x)[0].values.sum().backward()
    for double, single in zip(grads, alone.parameters(), strict=True):
        torch.testing.assert_close(double, 2 * single.grad)


@pytest.mark.parametrize(("kind", "make"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("how", ["tape", "item", "name"])
def test_layers_of_two_tapes(kind, make, how):
    with Tape() as first:
        one = make(data("x", kind), name="layer")
    with Tape(weights=None if how == "item" else first) as second:
        named = {"tape": {"name": "layer"}, "item": {"weights": one}, "name": {"weights": "layer"}}[how]
        two = make(data("x", kind), **named)
    a, b = first.topology(one), second.topology(two)
    assert [p.data_ptr() for p in a.parameters()] == [p.data_ptr() for p in b.parameters()]
    with torch.no_grad():
        for p in a.parameters():
            p.add_(0.5)
    x = value(kind)
    assert torch.equal(a(x=x)[0].values, b(x=x)[0].values)


def test_names_that_a_tape_made_up_share_nothing():
    with Tape() as first:
        fc(data("x", Dense(3)), 4)
    with Tape(weights=first) as second:
        fc(data("x", Dense(3)), 4)
    assert first["fc_0"].creation.function is not second["fc_0"].creation.function


def test_directions_share_a_cell_and_stay_directions():
    with Tape() as tape:
        x = data("x", ROWS)
        there = lstm(x, 4, name="there")
        back = lstm(x, 4, reverse=True, weights=there)
    x = value(ROWS)
    a, b = tape.topology([there, back])(x=x)[0]
    turned = LoDTensor.from_sequences([s.flip(0) for s in x])
    again, _ = tape.topology(there)(x=turned)
    for s, t in zip(again, b, strict=True):
        torch.testing.assert_close(s.flip(0), t)
    assert not torch.equal(a.values, b.values)


def test_a_network_that_is_made_again_under_another_tape_is_the_same():
    def network():
        def step(word):
            return fc([word, memory("h", 4)], 4, act="tanh", name="h")

        words = embedding(data("words", IDS), 4, name="table")
        return fc(last(recurrent_group(step, words, name="group")), 2, name="scores")

    with Tape() as first:
        one = network()
    with Tape(weights=first) as second:
        two = network()
    x = value(IDS)
    assert torch.equal(first.topology(one)(words=x)[0], second.topology(two)(words=x)[0])
    assert set(first.topology(one).state_dict()) == set(second.topology(two).state_dict())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fc(data("x", Dense(3)), 5, weights="layer"),
            r"weights of 'layer' do not fit(?s:.)*\[5, 3\]",
        ),
        (lambda: fc(data("x", Dense(3)), 5, name="layer"), "weights of 'layer' do not fit"),
        (lambda: fc(data("x", Dense(3)), 4, bias=False, weights="layer"), "weights of 'layer' do not fit"),
        (lambda: embedding(data("x", Integer(3)), 4, weights="layer"), "weights of 'layer' do not fit"),
        (lambda: gru(data("x", ROWS), 4, weights="reader"), "weights of 'reader' do not fit"),
        (lambda: fc(data("x", Dense(3)), 4, weights="rows"), "weights of 'rows' do not fit"),
        (lambda: fc(data("x", Dense(3)), 4, weights="none"), "'weights' names no layer"),
        (lambda: fc(data("x", Dense(3)), 4, weights=3), "'weights' names no layer"),
        (lambda: Tape(weights="layer"), "'weights' is another tape"),
    ],
    ids=["size", "by name", "bias", "kind", "cell", "no weights", "missing", "number", "tape"],
)
def test_weights_that_do_not_fit(make, message):
    with Tape() as first:
        fc(data("rows", Dense(3)), 4, name="layer")
        lstm(data("sequences", ROWS), 4, name="reader")
    with Tape(weights=first), pytest.raises(TapeError, match=message):
        make()
