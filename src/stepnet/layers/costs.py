"""Costs: a single number to make small, a mean over rows or over sequences.

Of a batch without rows, or whose labels are all ignored, each is 0, and so are its gradients: torch's mean of
nothing is NaN, which one such batch would leave in all weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.arguments import brief
from stepnet.data.lod import LoDTensor
from stepnet.errors import TapeError
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .check import check_ids, check_labels, check_lengths, check_same_levels, check_sequences, features, unfit
from .probabilities import refuse_probabilities


def classification_cost(
    x: TapeItem, label: TapeItem, *, ignore: int | None = None, name: str | None = None
) -> TapeItem:
    """The mean cross entropy over rows, of scores before softmax: torch's cross_entropy.

    Probabilities would give the cost of something else, in silence, so they are refused, whatever made them:
    an activation by name, a module, a function, a layer, and also with dropout behind. That is tried on a
    small example, with modules in the mode of inference. Logarithms of probabilities are scores.

    Args:
        x: scores [*, classes], rows or sequences of them.
        label: ids [*], with the LoD of x.
        ignore: rows with this label are left out.

    Raises:
        TapeError: x went through softmax already, or x and label do not fit.

    >>> from stepnet.layers import Dense, Integer, data, fc
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     classification_cost(fc(data("x", Dense(4)), 3), data("label", Integer(3)))
    TapeItem(3, 'classification_cost_0', float32 [])
    """
    _check_scores("classification_cost", x, label, ignore)
    return _record("classification_cost", mean_cross_entropy, (x, label, ignore), name)


def sequence_cross_entropy(
    x: TapeItem, label: TapeItem, *, ignore: int | None = None, name: str | None = None
) -> TapeItem:
    """The cross entropy of whole sequences: summed over the rows of each, and their mean.

    The sequences are those of the last level; arguments and errors as `classification_cost`.

    >>> from stepnet.layers import Dense, Integer, Sequence, data, fc
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     scores = fc(data("x", Sequence(Dense(4))), 3)
    ...     sequence_cross_entropy(scores, data("label", Sequence(Integer(3))))
    TapeItem(3, 'sequence_cross_entropy_0', float32 [])
    """
    check_sequences("sequence_cross_entropy", x)
    _check_scores("sequence_cross_entropy", x, label, ignore)
    return _record("sequence_cross_entropy", cross_entropy_of_sequences, (x, label, ignore), name)


def regression_cost(x: TapeItem, target: TapeItem, *, name: str | None = None) -> TapeItem:
    """The mean square error over all numbers: torch's mse_loss.

    Raises:
        TapeError: x and target have not one size.

    >>> from stepnet.layers import Dense, data, fc
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     regression_cost(fc(data("x", Dense(4)), 1), data("y", Dense(1)))
    TapeItem(3, 'regression_cost_0', float32 [])
    """
    sizes = features("regression_cost", x), features("regression_cost", target, "'target'")
    check_same_levels("regression_cost", x, target)
    if sizes[0] != sizes[1]:
        raise unfit(
            "regression_cost",
            "x and target must have one size",
            f"{sizes[0]} and {sizes[1]}",
            remedy=f"fc(x, {sizes[1]})",
        )
    return _record("regression_cost", mean_square, (x, target), name)


def ctc_cost(x: TapeItem, label: TapeItem, *, blank: int = 0, name: str | None = None) -> TapeItem:
    """Connectionist temporal classification: the mean over sequences of minus the log probability of the
    labels, over all their alignments with the steps (Graves et al., 2006); torch's ctc_loss.

    Args:
        x: sequences of scores [*, classes] before softmax, one level.
        label: sequences of ids, one level, as many; none of them is `blank`.
        blank: the class that stands for no label.

    A label sequence that does not fit into its steps costs infinity.

    Raises:
        TapeError: x or label are no sequences, or there is no such class.

    >>> from stepnet.layers import Dense, Integer, Sequence, data, fc
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     scores = fc(data("x", Sequence(Dense(4))), 3)
    ...     ctc_cost(scores, data("label", Sequence(Integer(3))))
    TapeItem(3, 'ctc_cost_0', float32 [])
    """
    for item, what in ((x, "its input"), (label, "'label'")):
        if check_sequences("ctc_cost", item, what).lod_level != 1:
            raise unfit(
                "ctc_cost",
                f"{what} must have one level",
                repr(item),
                expected="Sequence(...), not of sequences",
            )
    refuse_probabilities("ctc_cost", x)
    check_ids("ctc_cost", label, "'label'")
    if not isinstance(blank, int) or not 0 <= blank < features("ctc_cost", x):
        raise unfit("ctc_cost", "'blank' must be a class", brief(blank), expected="0 to classes - 1")
    return _record("ctc_cost", _ctc, (x, label, blank), name)


def _record(kind: str, function: Any, args: Any, name: str | None) -> TapeItem:
    # A cost of example labels need not be defined, so it is not tried.
    example = torch.zeros((), dtype=args[0].dtype)
    return Tape.current().record(kind, function, args, name=name, example=example)


def _check_scores(kind: str, x: TapeItem, label: TapeItem, ignore: int | None) -> None:
    check_labels(kind, x, label, ignore)
    refuse_probabilities(kind, x)


def _losses(x: Any, label: Any, ignore: int | None) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row, 0 where the label is ignored, and how many are not, 1 at least.

    The count is a tensor, so that a topology can be traced with any number of rows.
    """
    if isinstance(x, LoDTensor):
        check_lengths("a cost", x, label)
        x, label = x.values, label.values
    label = label.to(torch.int64)
    if ignore is None:
        return F.cross_entropy(x, label, reduction="none"), torch.ones_like(label).sum().clamp(min=1)
    losses = F.cross_entropy(x, label, reduction="none", ignore_index=ignore)
    return losses, (label != ignore).sum().clamp(min=1)


def mean_cross_entropy(x: Any, label: Any, ignore: int | None) -> Tensor:
    """What `classification_cost` records."""
    losses, count = _losses(x, label, ignore)
    return losses.sum() / count


def cross_entropy_of_sequences(x: LoDTensor, label: LoDTensor, ignore: int | None) -> Tensor:
    """What `sequence_cross_entropy` records."""
    return _losses(x, label, ignore)[0].sum() / max(len(x.lengths()), 1)


def mean_square(x: Any, target: Any) -> Tensor:
    """What `regression_cost` records."""
    squares = (x - target).square()
    rows = squares.values if isinstance(squares, LoDTensor) else squares
    return rows.sum() / max(rows.numel(), 1)


def _ctc(x: LoDTensor, label: LoDTensor, blank: int) -> Tensor:
    if len(x) != len(label):
        raise TapeError(
            "ctc_cost: x and label must have as many sequences",
            got=f"{len(x)} and {len(label)}",
            remedy="feed both from one batch",
        )
    if not len(x):
        return x.values.sum()
    padded, lengths = torch.log_softmax(x, -1).to_padded(batch_first=False)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    if not len(padded):
        padded = padded.new_zeros(1, len(x), x.shape[-1])
    losses = F.ctc_loss(
        padded, label.values.to(torch.int64), lengths, label.lengths(), blank=blank, reduction="none"
    )
    return losses.mean()
