"""Layers of sequences: pooling, first and last, expand, and the known recurrent layers."""

from __future__ import annotations

from typing import Any

import torch

from stepnet import cells
from stepnet.api import Recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import Pooling, sequence_expand, sequence_pool
from stepnet.errors import TapeError
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .check import check_item, check_rows, check_sequences, check_size, features
from .sharing import Weights, shared


def pooling(x: TapeItem, how: Pooling = "mean", *, name: str | None = None) -> TapeItem:
    """One row for each sequence of the last level, which goes: `stepnet.sequence_pool`.

    Args:
        x: sequences.
        how: "sum", "mean", "sqrt", "max", "first" or "last". An empty sequence gives zeros.

    Raises:
        TapeError: x holds no sequences, or there is no such pooling.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     pooling(data("x", Sequence(Sequence(Dense(3)))), "max")
    TapeItem(1, 'pooling_0', float32 [*, 3], 1 level)
    """
    check_sequences("pooling", x)
    return Tape.current().record("pooling", sequence_pool, (x, how), name=name)


def first(x: TapeItem, *, name: str | None = None) -> TapeItem:
    """The first row of each sequence of the last level; TapeError if x has none.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     first(data("x", Sequence(Dense(3))))
    TapeItem(1, 'first_0', float32 [*, 3])
    """
    check_sequences("first", x)
    return Tape.current().record("first", sequence_pool, (x, "first"), name=name)


def last(x: TapeItem, *, name: str | None = None) -> TapeItem:
    """The last row of each sequence of the last level; TapeError if x has none.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     last(data("x", Sequence(Dense(3))))
    TapeItem(1, 'last_0', float32 [*, 3])
    """
    check_sequences("last", x)
    return Tape.current().record("last", sequence_pool, (x, "last"), name=name)


def expand(x: TapeItem, like: TapeItem, *, level: int = -1, name: str | None = None) -> TapeItem:
    """Repeat row i of x for each element of sequence i of `like`: `stepnet.sequence_expand`.

    Args:
        x: a row for each sequence of that level; below the outermost level these rows are in sequences.
        like: sequences.
        level: of `like`, whose sequences are meant.

    Raises:
        TapeError: `like` holds no sequences, or not as many as x has rows.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     expand(data("topic", Dense(2)), data("words", Sequence(Dense(3))))
    TapeItem(2, 'expand_0', float32 [*, 2], 1 level)
    """
    check_item("expand", x)
    check_sequences("expand", like, "'like'")
    return Tape.current().record("expand", expand_rows, (x, like, level), name=name)


def expand_rows(x: Any, like: LoDTensor, level: int) -> LoDTensor:
    """`sequence_expand` of rows, also where these are themselves elements of sequences."""
    if isinstance(x, LoDTensor) and -like.lod_level <= level and x.lod_level == level % like.lod_level:
        lengths = like.recursive_sequence_lengths()[: x.lod_level]
        if x.recursive_sequence_lengths() != lengths:
            raise TapeError(
                "expand: x must have a row for each sequence of 'like'",
                got=f"lengths {x.recursive_sequence_lengths()}",
                expected=f"{lengths}",
                remedy="feed both from one batch",
            )
        x = x.values
    return sequence_expand(x, like, level)


class Layer(Recurrent):
    """A cell over the sequences of the last level, of which a layer keeps the outputs alone."""

    def forward(self, *args: Any, **how: Any) -> Any:
        return super().forward(*args, **how)[0]


def lstm(
    x: TapeItem, size: int, *, reverse: bool = False, weights: Weights = None, name: str | None = None
) -> TapeItem:
    """`stepnet.cells.LSTM` over each sequence of the last level; the result has its h at every step.

    Args:
        x: sequences of floating point rows.
        size: features of the result.
        reverse: from the end of each sequence to its beginning.
        weights: as of `fc`.

    Raises:
        TapeError: x holds no sequences of rows, size is none, or the weights do not fit.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     lstm(data("x", Sequence(Dense(3))), 5)
    TapeItem(1, 'lstm_0', float32 [*, 5], 1 level)
    """
    return _recurrent("lstm", cells.LSTM, x, size, reverse, weights, name)


def gru(
    x: TapeItem, size: int, *, reverse: bool = False, weights: Weights = None, name: str | None = None
) -> TapeItem:
    """`stepnet.cells.GRU` over each sequence of the last level; arguments and errors as `lstm`.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     gru(data("x", Sequence(Dense(3))), 5)
    TapeItem(1, 'gru_0', float32 [*, 5], 1 level)
    """
    return _recurrent("gru", cells.GRU, x, size, reverse, weights, name)


def rnn(
    x: TapeItem, size: int, *, reverse: bool = False, weights: Weights = None, name: str | None = None
) -> TapeItem:
    """`stepnet.cells.RNN`, the simple recurrent network with tanh; arguments and errors as `lstm`.

    >>> from stepnet.layers import Dense, Sequence, data
    >>> with Tape():
    ...     rnn(data("x", Sequence(Dense(3))), 5)
    TapeItem(1, 'rnn_0', float32 [*, 5], 1 level)
    """
    return _recurrent("rnn", cells.RNN, x, size, reverse, weights, name)


def _recurrent(
    kind: str, cell: Any, x: TapeItem, size: int, reverse: bool, weights: Weights, name: str | None
) -> TapeItem:
    example: LoDTensor = check_sequences(kind, x)
    check_rows(kind, x)
    made = cell(features(kind, x), check_size(kind, size))
    layer = Layer(shared(kind, made, name, weights, of=lambda other: other.step), reverse=reverse)
    known = example.with_values(torch.zeros(len(example.values), size, dtype=example.dtype))
    return Tape.current().record(kind, layer, (x,), name=name, example=known)
