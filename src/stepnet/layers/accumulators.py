"""What evaluators keep from batch to batch, and the value they have for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.errors import TapeError
from stepnet.tape.evaluator import Evaluator

from .check import check_lengths
from .chunks import Scheme, chunks


class _OfRows(Evaluator):
    """An evaluator that leaves out rows with a label."""

    def __init__(self, ignore: int | None = None) -> None:
        self.ignore = ignore
        super().__init__()


class ClassificationError(_OfRows):
    """See `stepnet.layers.classification_error`."""

    def reset(self) -> None:
        self.wrong: Any = 0
        self.rows = 0

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label, self.ignore)
        self.wrong = self.wrong + (scores.argmax(-1) != right).sum()
        self.rows += len(right)

    def compute(self) -> float:
        return float(self.wrong) / self.rows if self.rows else math.nan


class PrecisionRecall(_OfRows):
    """See `stepnet.layers.precision_recall`."""

    def __init__(
        self, classes: int, average: str, positive: int | None = None, ignore: int | None = None
    ) -> None:
        self.classes, self.average, self.positive = classes, average, positive
        super().__init__(ignore)

    def reset(self) -> None:
        self.table = torch.zeros(self.classes, self.classes, dtype=torch.int64)  # [right, predicted]

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label, self.ignore)
        cells = right.to(torch.int64) * self.classes + scores.argmax(-1)
        table = torch.bincount(cells, minlength=self.classes**2)
        self.table = self.table + table.view(self.classes, self.classes).cpu()

    def compute(self) -> dict[str, float]:
        if not self.table.any():
            return dict.fromkeys(("precision", "recall", "f1"), math.nan)
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
        means = [sum(column) / len(column) for column in zip(*scores, strict=True)]
        return dict(zip(("precision", "recall", "f1"), means, strict=True))


class AUC(Evaluator):
    """See `stepnet.layers.auc`."""

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
        scores = torch.cat(self.scores)
        if scores.isnan().any():  # these have no place in an order
            return math.nan
        _, rank, counts = scores.unique(return_inverse=True, return_counts=True)
        below = counts.cumsum(0) - counts  # how many rows have a lower score
        middle = below.double() + (counts.double() + 1) / 2
        total = float(middle[rank][labels].sum())
        return (total - positive * (positive + 1) / 2) / (positive * negative)


class Chunk(Evaluator):
    """See `stepnet.layers.chunk`."""

    def __init__(self, scheme: Scheme, types: int) -> None:
        self.scheme: Scheme = scheme
        self.types = types
        super().__init__()

    def reset(self) -> None:
        self.hits = self.predicted = self.right = self.rows = 0

    def update(self, x: LoDTensor, label: LoDTensor) -> None:
        check_lengths("chunk", x, label)
        self.rows += len(x.values)
        for ours, theirs in zip(_sequences(x), _sequences(label), strict=True):
            found, right = (chunks(tags, self.scheme, self.types) for tags in (ours, theirs))
            self.hits += len(found & right)
            self.predicted += len(found)
            self.right += len(right)

    def compute(self) -> dict[str, float]:
        scores = _scores(self.hits, self.predicted, self.right) if self.rows else [math.nan] * 3
        return dict(zip(("precision", "recall", "f1"), scores, strict=True))


def edit_steps(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein, 1966), in
    O(len(a) len(b)) time.

    >>> edit_steps([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


class EditDistance(Evaluator):
    """See `stepnet.layers.edit_distance`."""

    def __init__(self, normalized: bool) -> None:
        self.normalized = normalized
        super().__init__()

    def reset(self) -> None:
        self.edits = self.sequences = self.ids = 0

    def update(self, x: LoDTensor, label: LoDTensor) -> None:
        ours, theirs = _sequences(x), _sequences(label)
        if len(ours) != len(theirs):
            raise TapeError(
                "edit_distance: x and label must have as many sequences",
                got=f"{len(ours)} and {len(theirs)}",
                remedy="feed both from one batch",
            )
        for a, b in zip(ours, theirs, strict=True):
            self.edits += edit_steps(a, b)
            self.ids += len(b)
        self.sequences += len(ours)

    def compute(self) -> float:
        per = self.ids if self.normalized else self.sequences
        return self.edits / per if per else math.nan


class Perplexity(_OfRows):
    """See `stepnet.layers.perplexity`."""

    def reset(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.rows = 0

    def update(self, x: Any, label: Any) -> None:
        scores, right = _rows(x, label, self.ignore)
        self.total += F.cross_entropy(scores.double(), right.to(torch.int64), reduction="sum").cpu()
        self.rows += len(right)

    def compute(self) -> float:
        return float((self.total / self.rows).exp()) if self.rows else math.nan


def _scores(hits: int, predicted: int, right: int) -> tuple[float, float, float]:
    precision = hits / predicted if predicted else 0.0
    recall = hits / right if right else 0.0
    return precision, recall, 2 * hits / (predicted + right) if predicted + right else 0.0


def _rows(x: Any, label: Any, ignore: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows that count, and their labels."""
    if isinstance(x, LoDTensor):
        check_lengths("an evaluator", x, label)
        x, label = x.values, label.values
    if len(x) != len(label):
        raise TapeError(
            "an evaluator: x and label must have as many rows",
            got=f"{len(x)} and {len(label)}",
            remedy="feed both from one batch",
        )
    if ignore is None:
        return x, label
    kept = label != ignore
    return x[kept], label[kept]


def _sequences(x: LoDTensor) -> list[list[int]]:
    rows, lengths = x.values.tolist(), x.lengths().tolist()
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return [rows[a:b] for a, b in pairwise(ends)]
