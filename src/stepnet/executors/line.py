"""A line of small calls on tensors whose sizes are known: what an executor may run as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

Memory = Hashable
Run = Callable[..., Sequence[Tensor]]


class Place(NamedTuple):
    """Where numbers stand: `begin` and `strides` count elements."""

    memory: Memory
    kind: str  # float32, int64, bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int = 0


class Op(NamedTuple):
    """One operation.

    Attributes:
        name: `"product"`: rows and a matrix [K, N]; `"sum"`, `"most"`: to the axes of size 1; `"pick"`:
            along the axis of which the number says, at places that fit; `"lstm"`, `"gru"` or `"rnn"`: all
            steps of a cell, from the last one where the number says so, `to` its states [steps, batch,
            hidden], given what of x comes [steps * batch, gates * hidden], the first state, a matrix
            [hidden, gates * hidden] as the places of its columns, room for the product of one step, which
            block of the gates is each of torch's, and of an lstm its other state, which becomes the last, of
            a gru perhaps what is added to that product; `"expect"`: the line ends where a value is another
            than the number; else a function of each number.
        to: where its result goes; it may be part of a memory. None: nowhere.
        given: places, and numbers. Places of a function of each number may have less axes, and sizes of 1.
        number: see `name`.
    """

    name: str
    to: Place | None
    given: tuple[Any, ...]
    number: int = 0


def places_in(op: Op) -> Iterator[Place]:
    """What an operation is given of memory."""
    for value in op.given:
        if isinstance(value, Place):
            yield value
        elif isinstance(value, tuple):
            yield from (part for part in value if isinstance(part, Place))


class Line(NamedTuple):
    """Operations, one after the other.

    Attributes:
        ops: those.
        given: memories that a call gives, as tensors.
        made: memories that are results, each in one piece, and where all of it stands.
        held: memories that stay, and what they hold.
        counts: how many elements a memory has that is made.
    """

    ops: tuple[Op, ...]
    given: tuple[Memory, ...]
    made: tuple[Place, ...]
    held: Mapping[Memory, Tensor]
    counts: Mapping[Memory, int]


class Otherwise(Exception):
    """A value is another than the line was made for."""


def in_one_piece(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of numbers that stand one after the other.

    >>> in_one_piece((2, 3))
    (3, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
