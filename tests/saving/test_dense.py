"""Topologies on padded sequences give the numbers of those on ragged ones, whatever the padding."""

from __future__ import annotations

import pytest
import torch

from stepnet import (
    LoDTensor,
    Memory,
    Recurrent,
    Scope,
    cells,
    dynamic_recurrent,
    sequence_reverse,
    sequence_softmax,
)
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    GeneratedInput,
    Integer,
    Sequence,
    StaticInput,
    addto,
    apply,
    beam_search,
    classification_cost,
    classification_error,
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
    memory,
    pooling,
    recurrent_group,
    regression_cost,
    rnn,
    sequence_cross_entropy,
)
from stepnet.saving.dense import DenseTopology
from stepnet.saving.padded import PaddedLoD
from stepnet.tape import Tape

LENGTHS = {
    1: [[[2, 0, 5, 1]], [[3]], [[0, 0]], [[4, 4]]],
    2: [[[2, 0, 3], [1, 4, 2, 0, 3]], [[1], [6]], [[2, 1], [0, 0, 0]]],
    3: [[[2, 1], [2, 0, 3], [1, 4, 2, 0, 3]]],
}


def nested(level, kind):
    for _ in range(level):
        kind = Sequence(kind)
    return kind


def filled(padded, draw):
    """The same sequences with noise for padding."""
    inside = PaddedLoD(torch.ones_like(padded.grid, dtype=torch.bool), padded.lengths)
    mask = torch.zeros_like(padded.grid, dtype=torch.bool)
    mask_of_rows = PaddedLoD.of(inside.ragged()).grid
    mask[tuple(slice(0, n) for n in mask_of_rows.shape)] = mask_of_rows
    return PaddedLoD(torch.where(mask, padded.grid, draw(padded.grid.shape)), padded.lengths)


def check(make, level, kind=None, **more):
    """Hold a topology on padded sequences against itself on ragged ones, for many lengths."""
    kind = kind or Dense(3)
    with Tape() as tape:
        out = make(data("x", nested(level, kind)), **{k: data(k, v[0]) for k, v in more.items()})
    net = tape.topology(out).double().eval()
    dense = DenseTopology(net)
    for lengths in LENGTHS.get(level, [[[4]], [[1]]]):
        rows = sum(lengths[-1])
        draw = (
            (lambda shape: torch.randint(kind.classes, shape))
            if isinstance(kind, Integer)
            else lambda shape: torch.randn(shape, dtype=torch.float64) * 9
        )
        shape = (rows,) if isinstance(kind, Integer) else (rows, 3)
        values = draw(shape)
        x = LoDTensor.from_lengths(values, lengths) if level else values
        feeds = {"x": x} | {k: v[1](len(x)) for k, v in more.items()}
        expected = net(**feeds)[0]
        for least in (1, 7):
            tensors = []
            for leaf in dense.inputs:
                value = feeds[leaf.name]
                if leaf.level:
                    padded = PaddedLoD.of(value, least)
                    padded = filled(padded, draw if leaf.name == "x" else torch.randn)
                    tensors += [padded.grid, *padded.lengths]
                else:
                    tensors.append(value)
            found = list(dense(*tensors))
            for leaf, value in zip(
                dense.outputs, expected if isinstance(expected, tuple) else [expected], strict=True
            ):
                grid, *tables = (found.pop(0) for _ in leaf.tensors)
                if leaf.level:
                    got = PaddedLoD(grid, tuple(tables)).ragged()
                    assert got.recursive_sequence_lengths() == value.recursive_sequence_lengths()
                    grid, value = got.values, value.values
                torch.testing.assert_close(grid, value, rtol=1e-12, atol=1e-12)


LAYERS = {
    "fc": lambda x: fc(x, 4, act="tanh"),
    "dropout": lambda x: dropout(x * 2 + 1, 0.5),
    "operators": lambda x: (1 - x) / (x**2 + 1) @ torch.ones(3, 2),
    "methods": lambda x: x.clamp(min=0).sum(-1),
    "softmax": lambda x: torch.softmax(x, 1),
    "narrow": lambda x: concat([x.narrow(1, 1, 2), x.narrow(1, 0, 1)]),
    "where": lambda x: torch.where(x > 0, x, torch.exp(x)),
    "tuple": lambda x: torch.max(x, dim=1)[0],
    "norm": lambda x: apply(torch.nn.LayerNorm(3), x),
    "a function": lambda x: apply(lambda rows: torch.tanh(rows).to(rows.dtype), x),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_functions_of_rows(layer, level):
    check(layer, level)


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("how", ["sum", "mean", "sqrt", "max", "first", "last"])
def test_pooling(how, level):
    check({"first": first, "last": last}.get(how, lambda x: pooling(x, how)), level)


@pytest.mark.covering(2)
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("layer", [lstm, gru, rnn], ids=lambda f: f.__name__)
def test_recurrent_layers(layer, reverse, level):
    check(lambda x: layer(x, 4, reverse=reverse), level)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", [cells.LSTM, cells.GRU, cells.LayerNormLSTM, cells.MinGRU])
def test_recurrences_and_their_final_states(cell, reverse):
    def make(x):
        y, state = apply(Recurrent(cell(3, 4), reverse=reverse), x)
        return (y, *state) if "LSTM" in cell.__name__ else (y, state)

    check(make, 1)


def by_scope(x, level=-1, static=()):
    def faded(step):
        step["h"] = step["h_before"] * 0.5 + step["x"]
        step["y"] = step["h"].tanh()

    scope = Scope({"x": x, "seen": x})
    memories = [Memory("h", "h_before", shape=(3,))]
    dynamic_recurrent(faded, scope, ["x"], ["y"], memories, level=level, static_inputs=static)
    return scope["y"]


def test_a_stepnet_in_a_function():
    check(lambda x: apply(by_scope, x), 1)


def test_recurrences_that_start_from_an_item():
    start = (Dense(4), lambda n: torch.randn(n, 4, dtype=torch.float64))
    check(lambda x, start: tuple(apply(Recurrent(cells.GRU(3, 4)), x, start)), 1, start=start)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("function", [sequence_softmax, sequence_reverse], ids=lambda f: f.__name__)
def test_functions_of_sequences(function, level):
    check(lambda x: apply(function, x), level)


def test_rows_are_repeated_over_their_sequences():
    topic = (Dense(2), lambda n: torch.randn(n, 2, dtype=torch.float64))
    check(lambda x, topic: concat([x, expand(topic, x)]), 1, topic=topic)

    def over_two_levels(x, topic):
        sentences = fc([expand(topic, x, level=0), pooling(x, "max")], 2)
        return concat([x, expand(sentences, x)])

    check(over_two_levels, 2, topic=topic)


@pytest.mark.parametrize("level", [1, 2])
def test_embedding(level):
    check(lambda x: pooling(lstm(embedding(x, 3), 4)), level, Integer(9))


def best(x):
    return apply(lambda rows: rows.argmax(-1), x)


COSTS = {
    "of rows": lambda x: classification_cost(fc(x, 3), best(x)),
    "of rows, some ignored": lambda x: classification_cost(fc(x, 3), best(x), ignore=1),
    "of sequences": lambda x: sequence_cross_entropy(fc(x, 3), best(x)),
    "of numbers": lambda x: regression_cost(fc(x, 3), x),
}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_padding_costs_nothing(cost, level):
    check(cost, level)


def test_labels_of_padding_need_be_no_classes():
    with Tape() as tape:
        cost = classification_cost(data("x", Sequence(Dense(3))), data("label", Sequence(Integer(3))))
    dense = DenseTopology(tape.topology(cost))
    x, lengths = torch.randn(2, 2, 3), torch.tensor([2, 1])
    (found,) = dense(x, lengths, torch.tensor([[1, 2], [0, -1]]), lengths)
    wanted = torch.nn.functional.cross_entropy(x.flatten(0, 1)[:3], torch.tensor([1, 2, 0]))
    torch.testing.assert_close(found, wanted)


def simple(x):
    return fc([x, memory("h", 4)], 4, act="tanh", name="h")


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_groups(reverse):
    check(lambda x: recurrent_group(simple, x, reverse=reverse), 1)


def counted(x):
    return apply(lambda count: count * 2 + 1, memory("count", 2, boot=0.5), name="count")


def delayed(x):
    before, _ = memory("now", 2), fc(x, 2, name="now")
    return before, x


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("step", [counted, delayed], ids=["reads no input", "gives a memory"])
def test_groups_that_read_little(step, reverse):
    check(lambda x: recurrent_group(step, x, reverse=reverse), 1)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_group_over_sequences_of_sequences_has_inner_sequences(reverse):
    def sentence(words):
        inside = recurrent_group(simple, words, name="inner", reverse=reverse)
        end = fc([pooling(inside, "max"), memory("end", 3, boot=1.0)], 3, act="tanh", name="end")
        return concat([inside, expand(end, inside)]), end

    check(lambda x: tuple(recurrent_group(sentence, x, name="outer", reverse=reverse)), 2)


def test_static_inputs_and_boots():
    def step(x, topic, words, boot_is_outside=None):
        a = addto([x, memory("a", 3, boot=GIVEN[0])], name="a")
        seen = pooling(addto([words, expand(topic, words)]), "mean")
        return concat([a, seen]), fc([a, memory("b", 2), topic], 2, name="b")

    GIVEN = []

    def make(x, start, topic, words):
        GIVEN[:] = [start]
        return tuple(recurrent_group(step, [x, StaticInput(topic), StaticInput(words)]))

    def words(n):
        lengths = [[(3, 0, 2, 1)[i % 4] for i in range(n)]]
        return LoDTensor.from_lengths(torch.randn(sum(lengths[0]), 2, dtype=torch.float64), lengths)

    check(
        make,
        1,
        start=(Dense(3), lambda n: torch.randn(n, 3, dtype=torch.float64)),
        topic=(Dense(2), lambda n: torch.randn(n, 2, dtype=torch.float64)),
        words=(Sequence(Dense(2)), words),
    )


def test_padding_and_back():
    for level, all_lengths in LENGTHS.items():
        for lengths in all_lengths:
            x = LoDTensor.from_lengths(torch.randn(sum(lengths[-1]), 3), lengths)
            for least in (0, 8):
                padded = PaddedLoD.of(x, least)
                assert padded.level == level
                again = padded.ragged()
                assert again.recursive_sequence_lengths() == lengths
                assert torch.equal(again.values, x.values)


def test_final_states_of_nested_sequences_are_refused():
    with Tape() as tape:
        y = apply(Recurrent(cells.GRU(3, 4)), data("x", nested(2, Dense(3))))[0]
    dense = DenseTopology(tape.topology(y))
    with pytest.raises(TapeError, match="final state of nested sequences has no place"):
        dense(torch.zeros(1, 1, 1, 3), torch.tensor([1]), torch.tensor([[1]]))


def only_what_is_needed():
    with Tape() as tape:
        scores = fc(data("x", Dense(3)), 2, name="scores")
        label = data("label", Integer(2))
        classification_error(scores, label, name="error")
        cost = classification_cost(scores, label, name="cost")
    return tape, scores, cost


def test_only_what_the_outputs_need_is_played():
    tape, scores, cost = only_what_is_needed()
    dense = DenseTopology(tape.topology([scores, cost]))
    assert [leaf.name for leaf in dense.inputs] == ["x", "label"]
    assert [c.name for _, c in dense.played] == ["x", "scores", "label", "cost"]
    assert [leaf.name for leaf in DenseTopology(tape.topology(scores)).inputs] == ["x"]


def searched(x, words):
    scores = recurrent_group(
        lambda w, b: fc([embedding(w, 3), b], 5), [GeneratedInput(words), StaticInput(pooling(x))]
    )
    return beam_search(scores, bos=3, eos=4, beam_size=2, max_length=3)[0]


REFUSED = {
    "an evaluator": (
        lambda x, w: classification_error(fc(x, 5), w, name="error"),
        r"'error' \(test_dense.py, line .*cannot be saved: an evaluator",
    ),
    "a mean of all": (lambda x, w: x.values.mean(), "more than one thing to each row"),
    "a search": (searched, "what a beam search generates has no length"),
    "some sequences": (lambda x, w: x[1:], "picks some of the sequences"),
    "an outer level": (
        lambda x, w: apply(by_scope, x, level=0, name="n"),
        "does not run over the rows of its inputs, side by side",
    ),
    "rows that each step sees": (
        lambda x, w: apply(by_scope, x, static=["seen"]),
        "does not run on padded sequences",
    ),
    "a tuple": (lambda x, w: torch.max(x, dim=1), "cannot be an output of a saved topology"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_meaning_on_padded_sequences_is_refused(make, message):
    with Tape() as tape:
        out = make(data("x", Sequence(Dense(3))), data("w", Sequence(Integer(5))))
    zeros = {"x": torch.zeros(2, 3, 3), "w": torch.zeros(2, 3, dtype=torch.int64)}

    def play():
        dense = DenseTopology(tape.topology(out, prune=True))
        names = [name for leaf in dense.inputs for name in leaf.tensors]
        return dense(*(zeros.get(name, torch.tensor([1, 3])) for name in names))

    with pytest.raises(TapeError, match=message):
        play()
