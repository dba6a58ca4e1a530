"""Evaluators against the libraries whose numbers they promise.

scikit-learn is run. The numbers of torchmetrics 1.9.0 and seqeval 1.2.2 were taken from these libraries once,
for the same inputs, and stand here as they came.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from covering import examples, few
from stepnet import LoDTensor
from stepnet.layers.accumulators import (
    AUC,
    Chunk,
    ClassificationError,
    EditDistance,
    Perplexity,
    PrecisionRecall,
)

KEYS = ("precision", "recall", "f1")


@pytest.fixture(scope="module")
def sklearn_metrics():
    return pytest.importorskip("sklearn.metrics")


def batches(evaluator, x, y, cut):
    evaluator.update(x[:cut], y[:cut])
    evaluator.update(x[cut:], y[cut:])
    return evaluator.compute()


def cases():
    """Scores, labels and a place to cut: few rows and many, classes that never occur, one class only."""
    generator = torch.Generator().manual_seed(7)
    for n in (1, 2, 3, 10, 60):
        for classes in (2, 3, 6):
            for known in (1, classes - 1, classes):
                for _ in range(examples(3)):
                    x = torch.randn(n, classes, generator=generator, dtype=torch.float64)
                    y = torch.randint(known, (n,), generator=generator)
                    yield x, y, int(torch.randint(n + 1, (), generator=generator))


def averages(right, said):
    """Precision, recall and F1 of each class that occurs; their means."""
    rows = []
    for k in {*right, *said}:
        hits = sum(a == b == k for a, b in zip(said, right, strict=True))
        rows.append((hits / max(said.count(k), 1), hits / max(right.count(k), 1)))
    f1 = [2 * p * r / (p + r) if p + r else 0.0 for p, r in rows]
    return [sum(p for p, _ in rows) / len(rows), sum(r for _, r in rows) / len(rows), sum(f1) / len(f1)]


@pytest.mark.exhaustive
def test_classification_error_is_one_minus_accuracy_score(sklearn_metrics):
    for x, y, cut in cases():
        expected = 1 - sklearn_metrics.accuracy_score(y, x.argmax(1))
        assert batches(ClassificationError(), x, y, cut) == pytest.approx(expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_precision_recall_averages_as_precision_recall_fscore_support(sklearn_metrics, average):
    for x, y, cut in cases():
        expected = sklearn_metrics.precision_recall_fscore_support(
            y, x.argmax(1), average=average, zero_division=0
        )
        got = batches(PrecisionRecall(x.shape[1], average), x, y, cut)
        assert [got[k] for k in KEYS] == pytest.approx(expected[:3])


@pytest.mark.exhaustive  # scikit-learn takes seconds to import; by hand in test_evaluators.py
def test_precision_recall_of_one_class(sklearn_metrics):
    for x, y, cut in cases():
        positive = x.shape[1] - 1  # which often occurs nowhere
        expected = sklearn_metrics.precision_recall_fscore_support(
            y, x.argmax(1), labels=[positive], average="macro", zero_division=0
        )
        got = batches(PrecisionRecall(x.shape[1], "macro", positive), x, y, cut)
        assert [got[k] for k in KEYS] == pytest.approx(expected[:3])


@pytest.mark.parametrize("reference", few(["by hand", "scikit-learn"], ["by hand"]))
def test_labels_that_are_ignored_are_as_if_their_rows_were_not_there(reference, request):
    metrics = request.getfixturevalue("sklearn_metrics") if reference == "scikit-learn" else None
    for x, y, cut in cases():
        kept = y != 0
        got = batches(PrecisionRecall(x.shape[1], "macro", ignore=0), x, y, cut)
        error = batches(ClassificationError(ignore=0), x, y, cut)
        if not kept.any():
            assert all(math.isnan(v) for v in (error, *got.values()))
            continue
        right, said = y[kept], x.argmax(1)[kept]
        if metrics is None:
            expected = averages(right.tolist(), said.tolist())
            accuracy = (right == said).double().mean().item()
        else:
            how = {"average": "macro", "zero_division": 0}
            expected = metrics.precision_recall_fscore_support(right, said, **how)
            accuracy = metrics.accuracy_score(right, said)
        assert [got[k] for k in KEYS] == pytest.approx(expected[:3])
        assert error == pytest.approx(1 - accuracy)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
def test_auc_is_roc_auc_score(sklearn_metrics, ties):
    for x, y, cut in cases():
        scores, labels = (x[:, :1].round() if ties else x[:, :1]), y.clamp(max=1)
        got = batches(AUC(), scores, labels, cut)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns of one class only, and says nan
            expected = sklearn_metrics.roc_auc_score(labels, scores[:, 0])
        assert got == pytest.approx(expected, nan_ok=True)


def test_auc_where_there_is_none():
    area = AUC()
    area.update(torch.tensor([[0.5], [0.25]]), torch.tensor([1, 1]))
    assert math.isnan(area.compute())
    area.update(torch.tensor([[0.125]]), torch.tensor([0]))
    assert area.compute() == 1.0
    area.update(torch.tensor([[math.nan]]), torch.tensor([0]))
    assert math.isnan(area.compute())


def words(*texts):
    return LoDTensor.from_sequences([torch.tensor([ord(c) for c in t], dtype=torch.int64) for t in texts])


def test_edit_distance_is_that_of_torchmetrics():
    said = words("kitten", "", "flaw", "abc", "saturday", "aaaa")
    right = words("sitting", "ab", "lawn", "", "sunday", "aaaa")
    for normalized, expected in ((False, 2.1666667461395264), (True, 0.5652173757553101)):
        distance = EditDistance(normalized)
        distance.update(said, right)
        assert distance.compute() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("ignore", "expected"), [(None, 6.2412214279174805), (2, 6.469846725463867)])
def test_perplexity_is_that_of_torchmetrics(ignore, expected):
    x = ((torch.arange(24).reshape(8, 3) * 7) % 11).double() / 4
    y = torch.tensor([0, 1, 2, 2, 1, 0, 1, 2])
    assert batches(Perplexity(ignore), x, y, 3) == pytest.approx(expected, rel=1e-6)


def test_perplexity_of_what_was_held_impossible_is_infinite():
    surprised = Perplexity()
    surprised.update(torch.tensor([[0.0, -1000.0]]), torch.tensor([1]))
    assert surprised.compute() == math.inf


def tags(texts, scheme, types):
    parts = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES"}[scheme]
    number = {f"{p}-{t}": i * len(parts) + k for i, t in enumerate(types) for k, p in enumerate(parts)}
    number["O"] = len(number)
    return LoDTensor.from_sequences([torch.tensor([number[w] for w in text.split()]) for text in texts])


@pytest.mark.parametrize(
    ("scheme", "right", "said", "expected"),
    [
        (
            "IOB",
            ["B-x I-x O B-y I-y", "B-y O B-x", "O O", "I-x I-x B-x"],
            ["B-x I-x O B-y O", "B-y B-x I-x", "B-y O", "I-x I-y B-x"],
            [0.375, 0.5, 0.42857142857142855],
        ),
        (
            "IOBES",
            ["B-x E-x O S-y", "S-x B-y I-y E-y"],
            ["B-x I-x O S-y", "S-x S-x B-y E-y"],
            [0.6, 0.75, 0.6666666666666665],
        ),
    ],
    ids=["IOB", "IOBES"],
)
def test_chunks_are_counted_as_by_seqeval(scheme, right, said, expected):
    count = Chunk(scheme, 2)
    count.update(tags(said, scheme, "xy"), tags(right, scheme, "xy"))
    got = count.compute()
    assert [got[k] for k in KEYS] == pytest.approx(expected)


MAKE = {
    "classification error": ClassificationError,
    "macro": lambda: PrecisionRecall(2, "macro"),
    "micro": lambda: PrecisionRecall(2, "micro"),
    "auc": AUC,
    "perplexity": Perplexity,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_no_rows_have_no_value_and_an_empty_batch_changes_nothing(make):
    x, y = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([1, 1, 0])
    nothing = batches(make(), x[:0], y[:0], 0)
    assert all(math.isnan(v) for v in (nothing.values() if isinstance(nothing, dict) else [nothing]))
    alone = make()
    alone.update(x, y)
    assert batches(make(), x, y, 0) == batches(make(), x, y, 3) == alone.compute()
