"""Evaluators: what a topology reports beside its outputs, over all batches since the last reset.

Each is a layer function that records an `Evaluator`; nothing can take its item as an input but a topology.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.errors import TapeError
from stepnet.tape.creation import user_line
from stepnet.tape.evaluator import Evaluator
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .check import check_ids, check_rows, check_same_levels, check_sequences, features
from .chunks import Scheme, chunks, tags_of
from .distance import edit_steps


def evaluator(function: Evaluator, *xs: TapeItem, kind: str, name: str | None = None) -> TapeItem:
    """Record an evaluator of one's own.

    Args:
        function: its `update` is called with the values of `xs`, detached, at every batch.
        kind: what the tape calls it.

    Raises:
        TapeError: it stands inside a recurrent group.
    """
    tape = Tape.current()
    if tape.group is not None:
        raise TapeError(
            f"{kind} ({user_line()}) is inside the recurrent group '{tape.group.name}'",
            remedy="evaluate what the group returns",
        )
    return tape.record(kind, function, xs, name=name, example=None)


def classification_error(x: TapeItem, label: TapeItem, *, name: str | None = None) -> TapeItem:
    """The share of rows whose largest score is not at the label: one minus the accuracy.

    Args:
        x: scores or probabilities [*, classes], rows or sequences of them.
        label: ids [*].

    >>> count = ClassificationError()
    >>> count.update(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> round(count.compute(), 3)
    0.333
    """
    _check("classification_error", x, label)
    return evaluator(ClassificationError(), x, label, kind="classification_error", name=name)


def precision_recall(
    x: TapeItem,
    label: TapeItem,
    *,
    average: Literal["macro", "micro"] = "macro",
    positive: int | None = None,
    name: str | None = None,
) -> TapeItem:
    """Precision, recall and F1, as a dict of "precision", "recall" and "f1".

    Args:
        x: scores or probabilities [*, classes], rows or sequences of them.
        label: ids [*].
        average: "macro", the mean over the classes that occur in labels or predictions; "micro", over rows.
        positive: the one class that is meant, instead of an average.

    What divides by 0 is 0, as in scikit-learn with zero_division=0.

    >>> count = PrecisionRecall(3, "macro", positive=0)
    >>> count.update(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> count.compute()["recall"]
    0.5
    """
    _check("precision_recall", x, label)
    classes = features("precision_recall", x)
    if average not in ("macro", "micro"):
        raise TapeError(f"precision_recall: no such average: {average!r}", expected="'macro' or 'micro'")
    if positive is not None and not 0 <= positive < classes:
        raise TapeError(
            f"precision_recall: 'positive' is no class: {positive!r}", expected=f"below {classes}"
        )
    counts = PrecisionRecall(classes, average, positive)
    return evaluator(counts, x, label, kind="precision_recall", name=name)


def auc(x: TapeItem, label: TapeItem, *, name: str | None = None) -> TapeItem:
    """The area under the receiver operating characteristic: how often a positive row scores above a negative
    one, ties by half. Exact, so it keeps all scores until it is reset. nan while a class is missing.

    Args:
        x: [*, 1] scores, or [*, 2], of which the second counts; rows or sequences of them.
        label: ids [*], 0 or 1.

    >>> area = AUC()
    >>> area.update(torch.tensor([[0.1], [0.7], [0.4]]), torch.tensor([0, 1, 1]))
    >>> area.compute()
    1.0
    """
    _check("auc", x, label)
    if features("auc", x) > 2:
        raise TapeError(f"auc ({user_line()}): its input must have one or two scores in a row", got=repr(x))
    return evaluator(AUC(), x, label, kind="auc", name=name)


def chunk(
    x: TapeItem, label: TapeItem, *, types: int, scheme: Scheme = "IOB", name: str | None = None
) -> TapeItem:
    """Precision, recall and F1 of chunks (named entities, say), as a dict. A chunk counts if its beginning,
    end and type are right.

    Args:
        x: tags that were predicted, sequences of ids.
        label: the right tags.
        types: how many types of chunks. A tag is `type * parts + part`, and `types * parts` is outside.
        scheme: the parts: "IOB" (B, I), "IOE" (I, E), "IOBES" (B, I, E, S), or "plain" (one).

    Source: the chunk evaluator of Paddle, which reads tags as the CoNLL 2000 evaluation does.
    """
    check_sequences("chunk", x)
    check_ids("chunk", x)
    check_ids("chunk", label, "'label'")
    check_same_levels("chunk", x, label)
    tags_of(scheme, types)
    return evaluator(Chunk(scheme, types), x, label, kind="chunk", name=name)


def edit_distance(
    x: TapeItem, label: TapeItem, *, normalized: bool = False, name: str | None = None
) -> TapeItem:
    """The mean over sequences of the edit distance (Levenshtein's): insertions, deletions, substitutions.

    Args:
        x: sequences of ids; of the last level, where there are several.
        label: the right ones, as many.
        normalized: all edits over all ids of the labels instead: the word error rate.
    """
    for item, what in ((x, "its input"), (label, "'label'")):
        check_sequences("edit_distance", item, what)
        check_ids("edit_distance", item, what)
    return evaluator(EditDistance(normalized), x, label, kind="edit_distance", name=name)


def perplexity(x: TapeItem, label: TapeItem, *, name: str | None = None) -> TapeItem:
    """The exponential of the mean cross entropy over rows.

    Args:
        x: scores before softmax [*, classes], rows or sequences of them.
        label: ids [*].

    >>> uniform = Perplexity()
    >>> uniform.update(torch.zeros(2, 4), torch.tensor([0, 3]))
    >>> uniform.compute()
    4.0
    """
    _check("perplexity", x, label)
    return evaluator(Perplexity(), x, label, kind="perplexity", name=name)


class ClassificationError(Evaluator):
    """See `classification_error`."""

    def reset(self) -> None:
        self.wrong: Any = 0
        self.rows = 0

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label)
        self.wrong = self.wrong + (scores.argmax(-1) != right).sum()
        self.rows += len(right)

    def compute(self) -> float:
        return float(self.wrong) / self.rows if self.rows else math.nan


class PrecisionRecall(Evaluator):
    """See `precision_recall`."""

    def __init__(self, classes: int, average: str, positive: int | None = None) -> None:
        self.classes, self.average, self.positive = classes, average, positive
        super().__init__()

    def reset(self) -> None:
        self.table: Any = 0  # [right, predicted]

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label)
        cells = right.to(torch.int64) * self.classes + scores.argmax(-1)
        table = torch.bincount(cells, minlength=self.classes**2)
        self.table = self.table + table.view(self.classes, self.classes).cpu()

    def compute(self) -> dict[str, float]:
        if not isinstance(self.table, Tensor):
            return {"precision": math.nan, "recall": math.nan, "f1": math.nan}
        hits, predicted, right = self.table.diag(), self.table.sum(0), self.table.sum(1)
        if self.positive is not None:
            kept = slice(self.positive, self.positive + 1)
        elif self.average == "micro":
            hits, predicted, right = (v.sum().view(1) for v in (hits, predicted, right))
            kept = slice(None)
        else:
            kept = (predicted + right) > 0
        scores = [
            _scores(*map(int, row)) for row in zip(hits[kept], predicted[kept], right[kept], strict=True)
        ]
        means = [sum(column) / len(column) for column in zip(*scores, strict=True)] if scores else [0.0] * 3
        return dict(zip(("precision", "recall", "f1"), means, strict=True))


class AUC(Evaluator):
    """See `auc`."""

    def reset(self) -> None:
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label)
        self.scores.append(scores[:, -1].cpu())
        self.labels.append(right.cpu() != 0)

    def compute(self) -> float:
        labels = torch.cat([torch.zeros(0, dtype=torch.bool), *self.labels])
        positive, negative = int(labels.sum()), int((~labels).sum())
        if not positive or not negative:
            return math.nan
        _, rank, counts = torch.cat(self.scores).unique(return_inverse=True, return_counts=True)
        below = counts.cumsum(0) - counts  # how many rows have a lower score
        middle = below.double() + (counts.double() + 1) / 2
        total = float(middle[rank][labels].sum())
        return (total - positive * (positive + 1) / 2) / (positive * negative)


class Chunk(Evaluator):
    """See `chunk`."""

    def __init__(self, scheme: Scheme, types: int) -> None:
        self.scheme: Scheme = scheme
        self.types = types
        super().__init__()

    def reset(self) -> None:
        self.hits = self.predicted = self.right = 0

    def update(self, x: LoDTensor, label: LoDTensor) -> None:
        _check_lengths("chunk", x, label)
        for ours, theirs in zip(_sequences(x), _sequences(label), strict=True):
            found, right = (chunks(tags, self.scheme, self.types) for tags in (ours, theirs))
            self.hits += len(found & right)
            self.predicted += len(found)
            self.right += len(right)

    def compute(self) -> dict[str, float]:
        scores = _scores(self.hits, self.predicted, self.right)
        return dict(zip(("precision", "recall", "f1"), scores, strict=True))


class EditDistance(Evaluator):
    """See `edit_distance`."""

    def __init__(self, normalized: bool) -> None:
        self.normalized = normalized
        super().__init__()

    def reset(self) -> None:
        self.edits = self.sequences = self.ids = 0

    def update(self, x: LoDTensor, label: LoDTensor) -> None:
        ours, theirs = _sequences(x), _sequences(label)
        if len(ours) != len(theirs):
            raise TapeError(
                "edit_distance: x and label must have as many sequences", got=f"{len(ours)} and {len(theirs)}"
            )
        for a, b in zip(ours, theirs, strict=True):
            self.edits += edit_steps(a, b)
            self.ids += len(b)
        self.sequences += len(ours)

    def compute(self) -> float:
        per = self.ids if self.normalized else self.sequences
        return self.edits / per if per else math.nan


class Perplexity(Evaluator):
    """See `perplexity`."""

    def reset(self) -> None:
        self.total: Any = 0.0
        self.rows = 0

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label)
        self.total = self.total + F.cross_entropy(scores.double(), right.to(torch.int64), reduction="sum")
        self.rows += len(right)

    def compute(self) -> float:
        return math.exp(float(self.total) / self.rows) if self.rows else math.nan


def _scores(hits: int, predicted: int, right: int) -> tuple[float, float, float]:
    precision = hits / predicted if predicted else 0.0
    recall = hits / right if right else 0.0
    return precision, recall, 2 * hits / (predicted + right) if predicted + right else 0.0


def _check(kind: str, x: TapeItem, label: TapeItem) -> None:
    check_rows(kind, x)
    check_ids(kind, label, "'label'")
    check_same_levels(kind, x, label)


def _check_lengths(kind: str, x: LoDTensor, label: LoDTensor) -> None:
    if x.recursive_sequence_lengths() != label.recursive_sequence_lengths():
        raise TapeError(f"{kind}: x and label must have the same lengths")


def _rows(x: Any, label: Any) -> tuple[Tensor, Tensor]:
    if isinstance(x, LoDTensor):
        _check_lengths("an evaluator", x, label)
        return x.values, label.values
    if len(x) != len(label):
        raise TapeError("an evaluator: x and label must have as many rows", got=f"{len(x)} and {len(label)}")
    return x, label


def _sequences(x: LoDTensor) -> list[list[int]]:
    rows, lengths = x.values.tolist(), x.lengths().tolist()
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return [rows[a:b] for a, b in pairwise(ends)]
