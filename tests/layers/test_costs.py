"""Costs against torch, one sequence at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    activation,
    classification_cost,
    ctc_cost,
    data,
    fc,
    regression_cost,
    sequence_cross_entropy,
)
from stepnet.tape import Tape

LENGTHS = {"unsorted": [2, 0, 5, 1], "one": [3], "none": [], "all empty": [0, 0]}


def scored(lengths, classes=4):
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), classes, dtype=torch.float64), [lengths])
    label = LoDTensor.from_lengths(torch.randint(classes, (sum(lengths),)), [lengths])
    return x, label


def play(cost, kinds, **feeds):
    with Tape() as tape:
        out = cost(*(data(name, kind) for name, kind in kinds.items()))
    return tape.topology(out)(**feeds)[0]


SEQUENCES = {"x": Sequence(Dense(4)), "label": Sequence(Integer(4))}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_classification_over_rows_and_over_sequences(lengths):
    x, label = scored(lengths)
    losses = [F.cross_entropy(a, b, reduction="sum") for a, b in zip(x, label, strict=True)]
    total = torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64)
    by_row = play(classification_cost, SEQUENCES, x=x, label=label)
    torch.testing.assert_close(by_row, total / max(sum(lengths), 1))
    by_sequence = play(sequence_cross_entropy, SEQUENCES, x=x, label=label)
    torch.testing.assert_close(by_sequence, total / max(len(lengths), 1))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_rows_whose_label_is_ignored_cost_nothing_and_count_nothing(lengths):
    x, label = scored(lengths)
    kept = [(a[b != 2], b[b != 2]) for a, b in zip(x, label, strict=True)]
    total = sum((F.cross_entropy(a, b, reduction="sum") for a, b in kept), torch.tensor(0.0).double())
    by_row = play(lambda x, y: classification_cost(x, y, ignore=2), SEQUENCES, x=x, label=label)
    torch.testing.assert_close(by_row, total / max(sum(len(b) for _, b in kept), 1))
    by_sequence = play(lambda x, y: sequence_cross_entropy(x, y, ignore=2), SEQUENCES, x=x, label=label)
    torch.testing.assert_close(by_sequence, total / max(len(lengths), 1))


def test_the_label_that_is_ignored_needs_no_score():
    kinds = {"x": Dense(4), "label": Integer(5)}
    x, label = torch.randn(3, 4), torch.tensor([1, 4, 0])
    got = play(lambda x, y: classification_cost(x, y, ignore=4), kinds, x=x, label=label)
    torch.testing.assert_close(got, F.cross_entropy(x[[0, 2]], label[[0, 2]]))


def test_regression():
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    got = play(regression_cost, {"x": Dense(4), "y": Dense(4)}, x=x, y=y)
    torch.testing.assert_close(got, F.mse_loss(x, y))


def all_alignments(log_probabilities, label, blank=0):
    """Minus the log of the summed probability of every path that reads as the label."""
    paths = torch.cartesian_prod(*[torch.arange(log_probabilities.shape[1])] * len(log_probabilities))
    total = 0.0
    for path in paths.view(-1, len(log_probabilities)).tolist():
        merged = [k for i, k in enumerate(path) if i == 0 or path[i - 1] != k]
        if [k for k in merged if k != blank] == label:
            total += math.exp(sum(float(log_probabilities[t, k]) for t, k in enumerate(path)))
    return -math.log(total)


def test_ctc_sums_over_all_alignments():
    x = LoDTensor(torch.randn(9, 3, dtype=torch.float64), [[0, 4, 5, 9]])
    label = LoDTensor(torch.tensor([1, 1, 2, 2, 1]), [[0, 2, 3, 5]])
    kinds = {"x": Sequence(Dense(3)), "label": Sequence(Integer(3))}
    got = play(ctc_cost, kinds, x=x, label=label)
    by_hand = [all_alignments(a.log_softmax(-1), b.tolist()) for a, b in zip(x, label, strict=True)]
    assert float(got) == pytest.approx(sum(by_hand) / 3)


@pytest.mark.parametrize(("lengths", "cost"), [([0, 0], 0.0), ([], 0.0)], ids=["empty", "none"])
def test_ctc_of_nothing(lengths, cost):
    x, label = scored(lengths)
    assert float(play(ctc_cost, SEQUENCES, x=x, label=label)) == cost


def test_ctc_where_the_label_does_not_fit():
    x, _ = scored([1])
    label = LoDTensor(torch.tensor([1, 2]), [[0, 2]])
    assert float(play(ctc_cost, SEQUENCES, x=x, label=label)) == math.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, s, y: classification_cost(fc(x, 3, act="softmax"), y), "takes scores before softmax"),
        (lambda x, s, y: classification_cost(activation(x, "softmax"), y), "takes scores before softmax"),
        (lambda x, s, y: classification_cost(x, x), "'label' must be ids"),
        (lambda x, s, y: classification_cost(s, y), "must have the same levels"),
        (lambda x, s, y: classification_cost(fc(x, 2), y), "more classes than there are scores"),
        (lambda x, s, y: regression_cost(x, fc(x, 2)), "must have one size"),
        (lambda x, s, y: sequence_cross_entropy(x, y), "must be sequences"),
        (lambda x, s, y: ctc_cost(s, y), "'label' must be sequences"),
    ],
    ids=["act", "layer", "label", "levels", "classes", "sizes", "rows", "ctc"],
)
def test_costs_refuse_what_does_not_fit(make, message):
    with Tape():
        items = data("x", Dense(3)), data("s", Sequence(Dense(3))), data("y", Integer(3))
        with pytest.raises(TapeError, match=message):
            make(*items)


OF_NOTHING = {
    "classes": (classification_cost, Dense(4), Integer(4)),
    "classes of sequences": (classification_cost, Sequence(Dense(4)), Sequence(Integer(4))),
    "whole sequences": (sequence_cross_entropy, Sequence(Dense(4)), Sequence(Integer(4))),
    "numbers": (regression_cost, Dense(4), Dense(4)),
    "numbers of sequences": (regression_cost, Sequence(Dense(4)), Sequence(Dense(4))),
    "connectionist": (ctc_cost, Sequence(Dense(4)), Sequence(Integer(4))),
}


@pytest.mark.parametrize(("cost", "rows", "labels"), OF_NOTHING.values(), ids=OF_NOTHING)
@pytest.mark.parametrize("as_lists", [True, False])
def test_a_batch_of_nothing_costs_0_and_leaves_the_weights(cost, rows, labels, as_lists):
    """Where torch's mean is NaN, in the cost and then in all weights."""
    with Tape() as tape:
        out = cost(fc(data("x", rows), 4), data("y", labels))
    topology = tape.topology(out)
    feeds = {"x": [], "y": []}
    if not as_lists:
        x, y = (
            torch.zeros(0, 4),
            torch.zeros((0, 4) if cost is regression_cost else 0).to(
                torch.float32 if cost is regression_cost else torch.int64
            ),
        )
        ragged = isinstance(rows, type(Sequence(Dense(4)))) and rows.level
        feeds = {k: LoDTensor.from_lengths(v, [[]]) if ragged else v for k, v in {"x": x, "y": y}.items()}
    found = topology(**feeds)[0]
    found.backward()
    assert found.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in topology.parameters())
