"""Evaluators: what a topology reports beside its outputs, over all batches since the last reset.

Each is a layer function that records an `Evaluator`; nothing can take its item as an input but a topology.
"""

from __future__ import annotations

from typing import Literal

from stepnet.data.arguments import choice, name_of, truth
from stepnet.errors import TapeError
from stepnet.tape.evaluator import Evaluator
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape
from stepnet.user_line import user_line

from .accumulators import AUC, Chunk, ClassificationError, EditDistance, Perplexity, PrecisionRecall
from .check import check_ids, check_labels, check_rows, check_same_levels, check_sequences, features, unfit
from .chunks import Scheme, tags_of
from .probabilities import refuse_probabilities


def evaluator(function: Evaluator, *xs: TapeItem, kind: str, name: str | None = None) -> TapeItem:
    """Record an evaluator of one's own.

    Args:
        function: its `update` is called with the values of `xs`, detached, at every batch.
        kind: what the tape calls it.

    Raises:
        TapeError: it stands inside a recurrent group.

    >>> from stepnet.layers import Integer, data, embedding, fc
    >>> from stepnet.layers.accumulators import ClassificationError
    >>> with Tape():
    ...     ids = data("ids", Integer(3))
    ...     evaluator(ClassificationError(), fc(embedding(ids, 4), 3), ids, kind="wrong")
    TapeItem(3, 'wrong_0')
    """
    name_of("evaluator: 'kind'", kind, error=TapeError)
    tape = Tape.current()
    if tape.group is not None:
        raise TapeError(
            f"{kind} ({user_line()}) is inside the recurrent group '{tape.group.name}'",
            remedy="evaluate what the group returns",
        )
    return tape.record(kind, function, xs, name=name, example=None)


def classification_error(
    x: TapeItem, label: TapeItem, *, ignore: int | None = None, name: str | None = None
) -> TapeItem:
    """The share of rows whose largest score is not at the label: one minus the accuracy.

    Args:
        x: scores or probabilities [*, classes], rows or sequences of them.
        label: ids [*].
        ignore: rows with this label are left out.

    Raises:
        TapeError: x are no scores, the labels do not stand one for one with them, or have more classes.

    One minus scikit-learn's accuracy_score; nan while there are no rows.

    >>> import torch
    >>> from stepnet.layers.accumulators import ClassificationError
    >>> count = ClassificationError()
    >>> count.update(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> round(count.compute(), 3)
    0.333
    """
    check_labels("classification_error", x, label, ignore)
    return evaluator(ClassificationError(ignore), x, label, kind="classification_error", name=name)


def precision_recall(
    x: TapeItem,
    label: TapeItem,
    *,
    average: Literal["macro", "micro"] = "macro",
    positive: int | None = None,
    ignore: int | None = None,
    name: str | None = None,
) -> TapeItem:
    """Precision, recall and F1, as a dict of "precision", "recall" and "f1".

    Other arguments and errors as `classification_error`.

    Args:
        average: "macro", the mean over the classes that occur in labels or predictions; "micro", over rows.
        positive: the one class that is meant, instead of an average.

    The numbers are those of scikit-learn's precision_recall_fscore_support with zero_division=0: what divides
    by 0 is 0. They are nan while there are no rows.

    >>> import torch
    >>> from stepnet.layers.accumulators import PrecisionRecall
    >>> count = PrecisionRecall(3, "macro", positive=0)
    >>> count.update(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> count.compute()["recall"]
    0.5
    """
    check_labels("precision_recall", x, label, ignore)
    classes = features("precision_recall", x)
    choice("precision_recall: 'average'", average, ("macro", "micro"), error=TapeError)
    if positive is not None and not (isinstance(positive, int) and 0 <= positive < classes):
        raise TapeError(
            f"precision_recall: 'positive' is no class: {positive!r}", expected=f"below {classes}"
        )
    counts = PrecisionRecall(classes, average, positive, ignore)
    return evaluator(counts, x, label, kind="precision_recall", name=name)


def auc(x: TapeItem, label: TapeItem, *, name: str | None = None) -> TapeItem:
    """The area under the receiver operating characteristic: how often a positive row scores above a negative
    one, ties by half. Exact, so it keeps all scores until it is reset. The number is that of scikit-learn's
    roc_auc_score; nan while a class is missing, or if a score is nan.

    Args:
        x: [*, 1] scores, or [*, 2], of which the second counts; rows or sequences of them.
        label: ids [*], 0 or 1.

    Raises:
        TapeError: x has more scores in a row, or the labels more classes, or they do not stand one for one.

    >>> import torch
    >>> from stepnet.layers.accumulators import AUC
    >>> area = AUC()
    >>> area.update(torch.tensor([[0.1], [0.7], [0.4]]), torch.tensor([0, 1, 1]))
    >>> area.compute()
    1.0
    """
    check_rows("auc", x)
    check_ids("auc", label, "'label'")
    check_same_levels("auc", x, label)
    if features("auc", x) > 2:
        raise unfit(
            "auc",
            "its input must have one or two scores in a row",
            repr(x),
            remedy="precision_recall counts more classes",
        )
    if label.creation.classes not in (None, 2):
        got = f"'{label.name}' has {label.creation.classes} classes"
        raise unfit("auc", "its labels must be 0 or 1", got, remedy="data(name, Integer(2))")
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

    Raises:
        TapeError: they are no sequences of ids, or there is no such scheme.

    Source: the chunk evaluator of Paddle, which reads tags as the CoNLL 2000 evaluation does, and so does
    seqeval, whose numbers these are. They are nan while there are no rows.

    >>> import torch
    >>> from stepnet import LoDTensor
    >>> from stepnet.layers.accumulators import Chunk
    >>> count = Chunk("IOB", types=1)  # 0 begins a chunk, 1 goes on, 2 is outside
    >>> tags = LoDTensor.from_sequences([[0, 1, 2], [2, 0]])
    >>> count.update(tags, tags)
    >>> count.compute()["f1"]
    1.0
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

    Raises:
        TapeError: they are no sequences of ids.

    The numbers are those of torchmetrics' EditDistance and WordErrorRate; nan while
    there is nothing to divide by.

    >>> from stepnet import LoDTensor
    >>> from stepnet.layers.accumulators import EditDistance
    >>> count = EditDistance(normalized=False)
    >>> count.update(LoDTensor.from_sequences([[1, 2, 3]]), LoDTensor.from_sequences([[1, 3]]))
    >>> count.compute()
    1.0
    """
    for item, what in ((x, "its input"), (label, "'label'")):
        check_sequences("edit_distance", item, what)
        check_ids("edit_distance", item, what)
    truth("edit_distance: 'normalized'", normalized, error=TapeError)
    return evaluator(EditDistance(normalized), x, label, kind="edit_distance", name=name)


def perplexity(
    x: TapeItem, label: TapeItem, *, ignore: int | None = None, name: str | None = None
) -> TapeItem:
    """The exponential of the mean cross entropy over rows; arguments and errors as `classification_cost`.

    The number is that of torchmetrics' Perplexity; nan while there are no rows.

    >>> import torch
    >>> from stepnet.layers.accumulators import Perplexity
    >>> uniform = Perplexity()
    >>> uniform.update(torch.zeros(2, 4), torch.tensor([0, 3]))
    >>> uniform.compute()
    4.0
    """
    check_labels("perplexity", x, label, ignore)
    refuse_probabilities("perplexity", x)
    return evaluator(Perplexity(ignore), x, label, kind="perplexity", name=name)
