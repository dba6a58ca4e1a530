"""Evaluators against definitions worked out from all rows at once; batches must not matter."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    auc,
    chunk,
    classification_error,
    concat,
    data,
    edit_distance,
    fc,
    perplexity,
    precision_recall,
    recurrent_group,
)
from stepnet.layers.accumulators import edit_steps
from stepnet.layers.chunks import chunks
from stepnet.tape import Tape

SCORES = torch.randn(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))  # class 3 is never right


def evaluated(evaluator, scores, labels, cuts, *, sequences=False, **kinds):
    """The value after all batches, which `cuts` cut from the rows."""
    x, y = Dense(scores.shape[1]), Integer(scores.shape[1] if scores.shape[1] > 1 else 2)
    with Tape() as tape:
        if sequences:
            x, y = Sequence(x), Sequence(y)
        out = evaluator(data("x", x), data("label", y))
    net = tape.topology(out)
    value = None
    for a, b in zip(scores.split(cuts), labels.split(cuts), strict=True):
        if sequences:
            half = len(a) // 2
            a, b = (LoDTensor(v, [[0, half, half, len(v)]]) for v in (a, b))
        value, _ = net(x=a, label=b)
    return value


@pytest.mark.parametrize("cuts", [[40], [7, 0, 33]], ids=["one batch", "three"])
@pytest.mark.parametrize("sequences", [False, True], ids=["rows", "sequences"])
class TestBatches:
    def test_classification_error(self, cuts, sequences):
        got = evaluated(classification_error, SCORES, LABELS, cuts, sequences=sequences)
        assert got == pytest.approx((SCORES.argmax(1) != LABELS).double().mean().item())

    @pytest.mark.parametrize("how", ["macro", "micro", 0, 3])
    def test_precision_recall(self, cuts, sequences, how):
        choice = {"average": how} if isinstance(how, str) else {"positive": how}
        got = evaluated(
            lambda x, y: precision_recall(x, y, **choice), SCORES, LABELS, cuts, sequences=sequences
        )
        said, right = SCORES.argmax(1).tolist(), LABELS.tolist()
        rows = []
        for k in range(4) if how in ("macro", "micro") else [how]:
            hits = sum(a == b == k for a, b in zip(said, right, strict=True))
            precision = hits / said.count(k) if k in said else 0.0
            recall = hits / right.count(k) if k in right else 0.0
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            rows.append((precision, recall, f1))
        if how == "micro":
            rows = [(sum(a == b for a, b in zip(said, right, strict=True)) / 40,) * 3]
        expected = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        assert [got["precision"], got["recall"], got["f1"]] == pytest.approx(expected)

    @pytest.mark.parametrize("columns", [1, 2])
    def test_auc_counts_ties_by_half(self, cuts, sequences, columns):
        scores, labels = (SCORES[:, :columns] * 2).round(), (LABELS > 0).long()
        got = evaluated(auc, scores, labels, cuts, sequences=sequences)
        positive, negative = scores[labels == 1, -1].tolist(), scores[labels == 0, -1].tolist()
        wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p, n in product(positive, negative)]
        assert any(w == 0.5 for w in wins)
        assert got == pytest.approx(sum(wins) / len(wins))

    def test_perplexity(self, cuts, sequences):
        got = evaluated(perplexity, SCORES, LABELS, cuts, sequences=sequences)
        assert got == pytest.approx(F.cross_entropy(SCORES, LABELS).exp().item())


def test_macro_counts_only_classes_that_occur():
    got = evaluated(precision_recall, torch.eye(4)[:2], torch.tensor([0, 1]), [2])
    assert got == {"precision": 1.0, "recall": 1.0, "f1": 1.0}


@pytest.mark.parametrize("evaluator", [classification_error, perplexity, auc], ids=lambda e: e.__name__)
def test_no_rows_have_no_value(evaluator):
    assert math.isnan(evaluated(evaluator, SCORES[:0, :2], LABELS[:0], [0]))


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("IOB", [0, 1, 4, 2, 3, 3], {(0, 1, 0), (3, 5, 1)}),
        ("IOB", [0, 0, 1], {(0, 0, 0), (1, 2, 0)}),
        ("IOB", [1, 1, 3], {(0, 1, 0), (2, 2, 1)}),  # no B: read leniently
        ("IOE", [0, 1, 0, 1], {(0, 1, 0), (2, 3, 0)}),
        ("IOE", [0, 2, 3, 4], {(0, 0, 0), (1, 2, 1)}),
        ("IOBES", [0, 1, 2, 3, 8, 7], {(0, 2, 0), (3, 3, 0), (5, 5, 1)}),
        ("IOBES", [3, 3], {(0, 0, 0), (1, 1, 0)}),
        ("plain", [0, 0, 1, 2, 1], {(0, 1, 0), (2, 2, 1), (4, 4, 1)}),
        ("IOB", [], set()),
        ("IOB", [4, 4], set()),
    ],
)
def test_chunks(scheme, tags, expected):
    assert chunks(tags, scheme, 2) == expected


def ids(*sequences):
    return LoDTensor.from_sequences([torch.tensor(s, dtype=torch.int64) for s in sequences])


def two_ids(evaluator, classes=5):
    with Tape() as tape:
        kind = Sequence(Integer(classes))
        out = evaluator(data("x", kind), data("label", kind))
    return tape.topology(out)


def test_chunk_counts_over_batches():
    net = two_ids(lambda x, y: chunk(x, y, types=2))
    net(x=ids([0, 1, 4], []), label=ids([0, 1, 2], []))  # one of one, of two
    got, _ = net(x=ids([0, 4, 2]), label=ids([0, 1, 2]))  # one of two, of two
    assert got["precision"] == pytest.approx(2 / 3)
    assert got["recall"] == pytest.approx(2 / 4)
    assert got["f1"] == pytest.approx(2 * 2 / 7)


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("", "", 0),
        ("flaw", "lawn", 2),
        ("ab", "ba", 2),
    ],
)
def test_edit_steps(a, b, steps):
    assert edit_steps([ord(c) for c in a], [ord(c) for c in b]) == steps


@pytest.mark.parametrize(("normalized", "expected"), [(False, 4 / 3), (True, 4 / 5)])
def test_edit_distance_counts_over_batches(normalized, expected):
    net = two_ids(lambda x, y: edit_distance(x, y, normalized=normalized))
    net(x=ids([1, 2, 3], [4]), label=ids([1, 3], [4, 4]))  # 1 and 1
    got, _ = net(x=ids([1, 2, 3]), label=ids([3]))  # 2
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, s, y: classification_error(x, x), "'label' must be ids"),
        (lambda x, s, y: classification_error(s, y), "must have the same levels"),
        (lambda x, s, y: auc(x, y), "one or two scores"),
        (lambda x, s, y: auc(x[:, :2], y), "'y' has 3 classes"),
        (lambda x, s, y: classification_error(x[:, :2], y), "more classes than there are scores"),
        (lambda x, s, y: perplexity(x, y, ignore="pad"), "'ignore' must be a label"),
        (lambda x, s, y: precision_recall(x, y, average="all"), "'average' is not known"),
        (lambda x, s, y: precision_recall(x, y, positive=3), "is no class"),
        (lambda x, s, y: chunk(y, y, types=1), "must be sequences"),
        (lambda x, s, y: edit_distance(s, s), "must be ids"),
    ],
    ids=[
        "label",
        "levels",
        "auc",
        "auc labels",
        "scores",
        "ignore",
        "average",
        "positive",
        "chunk",
        "edit distance",
    ],
)
def test_evaluators_refuse_what_does_not_fit(make, message):
    with Tape():
        items = data("x", Dense(3)), data("s", Sequence(Dense(3))), data("y", Integer(3))
        with pytest.raises(TapeError, match=message):
            make(*items)


def test_an_evaluator_is_no_layer_of_a_step():
    def step(row):
        classification_error(row, label)
        return row

    with Tape():
        x, label = data("x", Sequence(Dense(3))), data("label", Sequence(Integer(3)))
        with pytest.raises(TapeError, match="classification_error"):
            recurrent_group(step, x)


def test_no_layer_takes_an_evaluator():
    with Tape():
        wrong = classification_error(data("x", Dense(3)), data("label", Integer(3)), name="wrong")
        for layer in (lambda: fc(wrong, 4), lambda: concat([wrong, wrong]), lambda: wrong + 1):
            with pytest.raises(TapeError, match=r"'wrong',? (is )?an evaluator, whose value no layer takes"):
                layer()


def test_an_evaluator_and_its_labels_must_have_the_same_lengths():
    net = two_ids(lambda x, y: chunk(x, y, types=2))
    with pytest.raises(
        TapeError, match=r"chunk 'chunk_0' .*failed: chunk: x and label must have the same len"
    ):
        net(x=ids([0, 1]), label=ids([0], [1]))
