"""A cell over a few steps of a few sequences as part of a line of small calls: to call a plan takes longer
than to compute that, and it packs weights anew, which are read here as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stepnet.executors.line import Op, Place

from .call_lowering import Lowering, Unfit

_MOST_WORK, _MOST_OF_ONE = 2**23, 2**25  # multiplications of one direction; of one step
_MOST_BATCH, _MOST_STEPS = 4, 64  # rows that a matrix is read once for, and how often
_MOST_ROWS = 64  # of one step
_MOST_BY_PARTS = 8  # rows that go by a matrix in several places: more by what these are put together to


class FewSteps(NamedTuple):
    """An LSTM, a GRU or an RNN with the usual functions, over whole sequences.

    Attributes:
        kind: lstm, gru or rnn.
        order: which block of rows of the weights is each gate of torch's.
        backwards: of each direction, whether the last step comes first.
        states: how many are carried; the initial ones are arguments 5 and 6, weights and biases 1 to 3.
        batch_first: whether the batch comes before the steps, and before the directions of states.
    """

    kind: str
    order: Sequence[int]
    backwards: Sequence[bool]
    states: int
    batch_first: bool

    def fits(self, steps: int, batch: int, weights: int) -> bool:
        """Whether it is so little, of so many weights in each direction."""
        if steps == 1:
            return 0 < batch <= _MOST_ROWS and batch * weights <= _MOST_OF_ONE
        few = 0 < steps <= _MOST_STEPS and 0 < batch <= _MOST_BATCH
        return few and steps * batch * weights <= _MOST_WORK

    def lower(self, lo: Lowering, to: Sequence[Place], arguments: Sequence[Any]) -> None:
        """Add it to a line.

        Raises:
            Unfit: it does not lie as a line needs it.
        """
        x, w, r, b, _, *first = (*arguments, None, None, None, None)[: 5 + self.states]
        turned = {3: (1, 0, 2), 4: (1, 2, 0, 3)} if self.batch_first else {}
        y, *lasts = (_turned(place, turned) for place in to)
        x = _turned(x, turned)
        steps, batch, _ = x.shape
        rows = lo.straight(x)
        for d, backwards in enumerate(self.backwards):
            of_x, matrix = _transposed(_part(w, d)), _transposed(_part(r, d))
            hidden, size = matrix.shape
            made = lo.new((steps * batch, size))
            lo.rows_by(made, rows, of_x)
            more = []
            if b is not None:
                both = _part(b, d)
                parts = [both._replace(shape=(size,), begin=both.begin + k * size) for k in (0, 1)]
                lo.each("add", made, made, parts[0])
                if self.kind == "gru":
                    more = [parts[1]]
                else:
                    lo.each("add", made, made, parts[1])
            states = []
            for state in first:
                states.append(lo.new((batch, hidden)))
                lo.copy_or_zeros(states[-1], None if state is None else _part(_turned(state, turned), d))
            ys, room = lo.new((steps, batch, hidden)), lo.new((batch, size))
            whole = steps * batch > _MOST_BY_PARTS
            parts = (matrix,) if whole else tuple(part for _, part in lo.columns(matrix))
            given = (made, states[0], parts, room, tuple(self.order), *states[1:], *more)
            lo.ops.append(Op(self.kind, ys, given, int(backwards)))
            lo.copy(_part(y, d, 1), ys)
            last = _part(ys, 0 if backwards else steps - 1)
            for place, value in zip(lasts, (last, *states[1:]), strict=False):
                lo.copy(_part(place, d), value)


def _turned(place: Any, orders: dict[int, tuple[int, ...]]) -> Place:
    if not isinstance(place, Place) or place.kind != "float32" or 0 in place.shape:
        raise Unfit
    order = orders.get(len(place.shape), range(len(place.shape)))
    shape, strides = (tuple(part[k] for k in order) for part in (place.shape, place.strides))
    return place._replace(shape=shape, strides=strides)


def _transposed(place: Place) -> Place:
    """A matrix the other way round."""
    if 1 not in place.strides:
        raise Unfit
    return place._replace(shape=place.shape[::-1], strides=place.strides[::-1])


def _part(place: Any, at: int, axis: int = 0) -> Place:
    """One element along an axis."""
    place = _turned(place, {})
    shape, strides = list(place.shape), list(place.strides)
    del shape[axis]
    step = strides.pop(axis)
    return place._replace(shape=tuple(shape), strides=tuple(strides), begin=place.begin + at * step)
