"""Layers of rows and sequences against torch, for ragged batches with empty sequences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepnet import LoDTensor, sequence_expand, sequence_pool
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    activation,
    addto,
    apply,
    concat,
    data,
    dropout,
    embedding,
    expand,
    fc,
    first,
    gru,
    last,
    lstm,
    pooling,
    rnn,
)
from stepnet.tape import Tape

LENGTHS = {
    "unsorted": [[2, 0, 5, 1]],
    "one": [[3]],
    "none": [[]],
    "all empty": [[0, 0]],
    "nested": [[2, 0, 1], [3, 0, 4]],
}


def batch(lengths, size=3):
    rows = sum(lengths[-1])
    return LoDTensor.from_lengths(torch.randn(rows, size, dtype=torch.float64), lengths)


def played(make, level, *, size=3, **more):
    kind = Dense(size)
    for _ in range(level):
        kind = Sequence(kind)
    with Tape() as tape:
        out = make(data("x", kind))
    return tape, tape.topology(out).double()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    ("layer", "module"), [(lstm, "LSTM"), (gru, "GRU"), (rnn, "RNN")], ids=["lstm", "gru", "rnn"]
)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_recurrent_layers_are_those_of_torch_on_each_sequence(layer, module, lengths, reverse):
    _, net = played(lambda x: layer(x, 4, reverse=reverse, name="r"), len(lengths))
    theirs = getattr(torch.nn, module)(3, 4).double()
    ours = dict(net.r.step.named_parameters())
    theirs.load_state_dict({f"{name}_l0": value for name, value in ours.items()})
    x = batch(lengths)
    y, _ = net(x=x)
    assert y.recursive_sequence_lengths() == x.recursive_sequence_lengths()
    flat = LoDTensor.from_lengths(x.values, [x.lengths().tolist()])
    for got, rows in zip(LoDTensor.from_lengths(y.values, [y.lengths().tolist()]), flat, strict=True):
        if len(rows):
            expected = theirs(rows.flip(0) if reverse else rows)[0]
            torch.testing.assert_close(got, expected.flip(0) if reverse else expected)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("how", ["sum", "mean", "sqrt", "max", "first", "last"])
def test_pooling(how, lengths):
    layer = {"first": first, "last": last}.get(how, lambda x: pooling(x, how))
    _, net = played(layer, len(lengths))
    x = batch(lengths)
    got, expected = net(x=x)[0], sequence_pool(x, how)
    if len(lengths) > 1:
        assert got.recursive_sequence_lengths() == expected.recursive_sequence_lengths()
        got, expected = got.values, expected.values
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_fc_acts_on_every_row_and_trains(lengths):
    tape, net = played(lambda x: fc([x, x], 4, act="tanh", name="h"), len(lengths))
    x = batch(lengths)
    y, _ = net(x=x)
    linear = tape["h"].creation.function
    expected = torch.tanh(linear(torch.cat([x.values, x.values], -1)))
    torch.testing.assert_close(y.values, expected)
    got = torch.autograd.grad(y.values.square().sum(), linear.weight)
    torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), linear.weight))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_embedding(lengths):
    kind = Integer(7)
    for _ in lengths:
        kind = Sequence(kind)
    with Tape() as tape:
        out = embedding(data("x", kind), 5, name="table")
    x = LoDTensor.from_lengths(torch.randint(7, (sum(lengths[-1]),)), lengths)
    y, _ = tape.topology(out)(x=x)
    torch.testing.assert_close(y.values, tape["table"].creation.function.weight[x.values])


def test_rows_side_by_side_summed_and_repeated():
    with Tape() as tape:
        x, topic = data("x", Sequence(Dense(2))), data("topic", Dense(2))
        repeated = expand(topic, x)
        outs = [concat([x, repeated]), addto([x, repeated], act="relu"), expand(topic, x)]
    rows, one = LoDTensor(torch.randn(5, 2), [[0, 2, 2, 5]]), torch.randn(3, 2)
    (side, total, again), _ = tape.topology(outs)(x=rows, topic=one)
    spread = sequence_expand(one, rows)
    torch.testing.assert_close(again.values, spread.values)
    torch.testing.assert_close(side.values, torch.cat([rows.values, spread.values], -1))
    torch.testing.assert_close(total.values, torch.relu(rows.values + spread.values))


def test_rows_are_repeated_at_every_level():
    """Documents over their sentences, sentences over their words."""
    with Tape() as tape:
        words, topics = data("words", Sequence(Sequence(Dense(1)))), data("topics", Dense(1))
        by_sentence = expand(topics, words, level=0)
        outs = [by_sentence, expand(by_sentence, words), expand(pooling(words, "sum"), words)]
    lengths = [[2, 0, 1], [1, 0, 3]]
    feeds = {
        "words": LoDTensor.from_lengths(torch.tensor([[1.0], [2], [3], [4]]), lengths),
        "topics": torch.tensor([[10.0], [20], [30]]),
    }
    (sentences, each, sums), _ = tape.topology(outs)(**feeds)
    assert sentences.recursive_sequence_lengths() == [[2, 0, 1]]
    assert sentences.values.flatten().tolist() == [10, 10, 30]
    assert each.recursive_sequence_lengths() == sums.recursive_sequence_lengths() == lengths
    assert each.values.flatten().tolist() == [10, 30, 30, 30]
    assert sums.values.flatten().tolist() == [1, 9, 9, 9]


def test_rows_of_other_sequences_are_not_repeated():
    with Tape() as tape:
        words = data("words", Sequence(Sequence(Dense(1))))
        out = expand(data("topics", Sequence(Dense(1))), words)
    feeds = {
        "words": LoDTensor.from_lengths(torch.zeros(3, 1), [[2, 0], [1, 2]]),
        "topics": LoDTensor.from_lengths(torch.zeros(2, 1), [[1, 1]]),
    }
    with pytest.raises(TapeError, match=r"expand_0(?s:.)*a row for each sequence of 'like'"):
        tape.topology(out)(**feeds)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("relu", F.relu),
        ("softmax", lambda v: v.softmax(-1)),
        ("log_softmax", lambda v: v.log_softmax(-1)),
        (torch.sin, torch.sin),
        ("leaky_relu", F.leaky_relu),
    ],
    ids=["relu", "softmax", "log_softmax", "a function", "leaky_relu"],
)
def test_activations_as_arguments_and_as_layers(act, expected):
    x = torch.randn(4, 3, dtype=torch.float64)
    _, layer = played(lambda x: activation(x, act), 0)
    torch.testing.assert_close(layer(x=x)[0], expected(x))
    tape, argument = played(lambda x: fc(x, 5, act=act, name="h"), 0)
    torch.testing.assert_close(argument(x=x)[0], expected(tape["h"].creation.function(x)))


REFUSED = {
    "fc size": (lambda x, s, i: fc(x, 0), "'size' must be a positive whole number"),
    "fc ids": (lambda x, s, i: fc(i, 3), "must be rows of features"),
    "embedding floats": (lambda x, s, i: embedding(x, 3), "must be integers"),
    "embedding of what": (lambda x, s, i: embedding(i + 1, 3), "how many ids are there"),
    "pooling rows": (lambda x, s, i: pooling(x), "must be sequences"),
    "no such pooling": (lambda x, s, i: pooling(s, "median"), "no such pooling"),
    "lstm rows": (lambda x, s, i: lstm(x, 3), "must be sequences"),
    "expand": (lambda x, s, i: expand(x, x), "'like' must be sequences"),
    "addto sizes": (lambda x, s, i: addto([x, fc(x, 2)]), "must have one size"),
    "concat nothing": (lambda x, s, i: concat([]), "takes a list of items"),
    "concat rows to sequences": (lambda x, s, i: concat([x, s]), "does not fit its inputs"),
    "dropout": (lambda x, s, i: dropout(x, 2), "'p' must lie in 0 to 1"),
    "act": (lambda x, s, i: fc(x, 2, act="swoosh"), "no such activation"),
    "act, a class": (lambda x, s, i: fc(x, 2, act=torch.nn.Softmax), r"Softmax(?s:.)*Softmax\(...\) makes"),
    "apply, a class": (lambda x, s, i: apply(torch.nn.ReLU, x), r"'function' is a class(?s:.)*ReLU\(...\)"),
    "act with parameters": (lambda x, s, i: fc(x, 2, act=torch.nn.PReLU()), "so it is a layer"),
    "data type": (lambda x, s, i: data("z", int), "has no type that is known"),
    "data size": (lambda x, s, i: data("z", Dense(0)), "'size' must be a positive whole number"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_layers_refuse_what_does_not_fit(make, message):
    with Tape():
        x, s, i = data("x", Dense(3)), data("s", Sequence(Dense(3))), data("i", Integer(4))
        with pytest.raises(TapeError, match=message):
            make(x, s, i)
