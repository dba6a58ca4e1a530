"""Truncated back-propagation: long sequences trained piece by piece, gradients cut between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.arguments import check_dense, whole
from stepnet.data.in_graph import by_python, not_followed
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside
from stepnet.data.tree import Spec, flatten, flatten_as, rows_at, unflatten
from stepnet.data.windows import part
from stepnet.errors import LoDError, StepError
from stepnet.front.step import describe_leaf

X = TypeVar("X")
State = TypeVar("State")


@dataclass
class Piece(Generic[X, State]):
    """Some steps of some sequences.

    Attributes:
        x: the steps, cut as x is: a LoDTensor of the sequences here, or a tensor of all.
        state: what they start from, a row per sequence here. Set it to the state that they end with.
        sequences: which sequences of the batch they are.
        starts: at which step each is.

    >>> x = LoDTensor.from_lengths(torch.arange(5.0), [[2, 3]])
    >>> for piece in truncated(x, torch.zeros(2), rows=2):
    ...     print(piece.sequences.tolist(), piece.starts.tolist(), piece.x.values.tolist())
    ...     piece.state = piece.state + 1
    [0, 1] [0, 0] [0.0, 1.0, 2.0, 3.0]
    [1] [2] [4.0]
    """

    x: X
    state: State
    sequences: Tensor
    starts: Tensor


class Truncated(Generic[X, State]):
    """The pieces of a batch, in turn; made by `truncated`."""

    def __init__(self, x: X, state: State, rows: int, at_once: int | None, axis: int) -> None:
        rows, axis = whole("truncated: 'rows'", rows, 1), whole("truncated: 'axis'", axis)
        if at_once is not None:
            at_once = whole("truncated: 'at_once'", at_once, 1)
        self._leaves, self._spec, self._lengths = _checked(x, axis)
        self._places = [_places(leaf) if isinstance(leaf, PackedSequence) else None for leaf in self._leaves]
        self._rows, self._axis = rows, axis
        self._at_once = len(self._lengths) if at_once is None else at_once
        if state is None and self._at_once < len(self._lengths):
            raise StepError(
                "truncated: at_once= needs the state that sequences enter with",
                got="state=None",
                remedy="state=cell.initial_state(n), a row for each sequence of x",
            )
        self._state = state
        self._last: list[Tensor] | None = None
        self._state_spec: Spec | None = None
        if state is not None:
            self._keep(torch.arange(len(self._lengths)), state)

    @property
    def state(self) -> State:
        """The last state of every sequence that a piece held, in the order of x, without a gradient."""
        if self._last is None or self._state_spec is None:
            return None  # pyright: ignore[reportReturnType]  # where none was given, it is Any
        return unflatten(self._state_spec, [leaf.clone() for leaf in self._last])

    @not_followed
    def __iter__(self) -> Iterator[Piece[X, State]]:
        lengths, n = self._lengths, len(self._lengths)
        at = torch.zeros(n, dtype=torch.int64)
        entered = min(self._at_once, n)
        running = torch.arange(entered)
        fresh = running
        while len(running):
            starts = at[running]
            counts = (lengths[running] - starts).clamp(max=self._rows)
            if counts.any():
                yield from self._piece(running, fresh, starts, counts)
            at[running] = starts + counts
            running = running[at[running] < lengths[running]]
            fresh = torch.arange(entered, min(n, entered + self._at_once - len(running)))
            entered += len(fresh)
            running = torch.cat([running, fresh])

    @not_followed
    def _piece(
        self, running: Tensor, fresh: Tensor, starts: Tensor, counts: Tensor
    ) -> Iterator[Piece[X, State]]:
        x, state = self._cut(running, starts, counts), self._start(running, fresh)
        piece = Piece(x, state, running.clone(), starts.clone())  # the caller's own, to write to
        before = piece.state
        yield piece
        if piece.state is before and (before is None or flatten(before)[0]):
            raise StepError(
                "truncated: the state that a piece ends with was not handed on",
                remedy="for piece in ...: y, piece.state = recurrent(step, piece.x, piece.state)",
            )
        self._keep(running, piece.state)

    def _start(self, running: Tensor, fresh: Tensor) -> Any:
        """States that go on, without their gradient, and those that begin, with it."""
        first = self._state
        if len(fresh) == len(running):
            if first is None or len(running) == len(self._lengths):
                return first
            return rows_at(first, running)
        carried = rows_at(self.state, running)
        if not len(fresh):
            return carried
        (old, spec), (new, _) = flatten(carried), flatten(rows_at(first, fresh))
        kept = len(running) - len(fresh)
        return unflatten(spec, [torch.cat([a[:kept], b]) for a, b in zip(old, new, strict=True)])

    def _keep(self, sequences: Tensor, state: Any) -> None:
        like = self._state_spec
        leaves, spec = flatten(state) if like is None else flatten_as(like, state)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                check_dense("truncated: a state", leaf)
            if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != len(sequences):
                raise StepError(
                    "truncated: a state must have one row per sequence",
                    got=describe_leaf(leaf),
                    expected=f"{len(sequences)} rows",
                    remedy="of states [layers, sequences, ...], as torch.nn has them, piece.state = "
                    "h.transpose(0, 1), and back where a piece starts from it",
                )
        if like is not None and spec != like:
            raise StepError(
                "truncated: the state that is handed on is nested in another way",
                got=str(spec),
                expected=str(like),
                remedy="hand on the same parts of the state after each piece",
            )
        if self._last is None or len(sequences) == len(self._lengths):  # of any type or shape, as by hand
            self._last, self._state_spec = [leaf.detach().clone() for leaf in leaves], spec
        else:
            self._last = [_put(old, sequences, leaf) for old, leaf in zip(self._last, leaves, strict=True)]

    def _cut(self, sequences: Tensor, starts: Tensor, counts: Tensor) -> Any:
        cut = []
        for leaf, places in zip(self._leaves, self._places, strict=True):
            if isinstance(leaf, Tensor):  # whose sequences are at one step, being of one length
                steps = leaf.narrow(self._axis, int(starts[0]), int(counts[0]))
                whole = len(sequences) == len(self._lengths)
                batch = _batch_axis(leaf, self._axis)
                cut.append(steps if whole else steps.index_select(batch, beside(sequences, steps)))
            elif places is not None:
                own = part(places, sequences, starts, counts)
                rows = leaf.data.index_select(0, beside(own.values, leaf.data))
                cut.append(LoDTensor.of(rows, own.structure).to_packed())
            else:
                cut.append(part(leaf, sequences, starts, counts))
        return unflatten(self._spec, cut)


@overload
def truncated(
    x: X, state: None = None, *, rows: int, at_once: int | None = None, axis: int = 0
) -> Truncated[X, Any]: ...


@overload
def truncated(
    x: X, state: State, *, rows: int, at_once: int | None = None, axis: int = 0
) -> Truncated[X, State]: ...


@by_python("how many pieces there are is known from the lengths")
def truncated(
    x: Any, state: Any = None, *, rows: int, at_once: int | None = None, axis: int = 0
) -> Truncated[Any, Any]:
    """Cut a batch into pieces of at most so many steps of each sequence, for training step by step.

    Means, for each sequence::

        for start in range(0, len(x), rows):
            y, state = model(x[start : start + rows], state)
            state = state.detach()

    The loop sets `piece.state` to the state that the piece ended with; the next piece starts from it, without
    its gradient. Sequences that have ended are in no further piece, and each piece holds a row at least.

    Args:
        x: LoDTensors, PackedSequences, or tensors of equal lengths; or a nesting of them. Of LoDTensors,
            the outermost sequences are cut.
        state: the initial state, a row per sequence in the order of x; None: that of the model, whose first
            piece gets None.
        rows: how many steps of a sequence a piece holds.
        at_once: how many sequences a piece holds; when one has ended, the next of x enters in its place, from
            its initial state. None: all.
        axis: the time axis of tensors.

    Raises:
        StepError: an argument does not fit; the state of a piece was not handed on.
        LoDError: two inputs have different lengths.

    >>> from stepnet import recurrent
    >>> x = LoDTensor.from_lengths(torch.ones(7, 1), [[5, 2]])
    >>> pieces = truncated(x, torch.zeros(2, 1), rows=2)
    >>> for piece in pieces:
    ...     y, piece.state = recurrent(lambda x, s: (s + x, s + x), piece.x, piece.state)
    ...     print(piece.sequences.tolist(), y.values.flatten().tolist())
    [0, 1] [1.0, 2.0, 1.0, 2.0]
    [0] [3.0, 4.0]
    [0] [5.0]
    >>> pieces.state
    tensor([[5.],
            [2.]])
    """
    return Truncated(x, state, rows, at_once, axis)


def _checked(x: Any, axis: int) -> tuple[list[Any], Spec, Tensor]:
    """The leaves of x, their nesting, and how many steps each sequence has."""
    leaves, spec = flatten(x)
    if not leaves or any(not isinstance(leaf, (Tensor, LoDTensor, PackedSequence)) for leaf in leaves):
        raise StepError(
            "truncated cuts tensors, LoDTensors and PackedSequences",
            got=describe_leaf(x),
            remedy="torch.as_tensor(x); LoDTensor.from_sequences(sequences) of a list",
        )
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            check_dense("truncated: x", leaf)
    lengths = [_lengths(leaf, axis) for leaf in leaves]
    if any(not torch.equal(each, lengths[0]) for each in lengths[1:]):
        raise LoDError(
            "two inputs of truncated must have sequences of the same lengths",
            got=" and ".join(str(each.tolist()) for each in lengths),
            remedy="read in the loop what does not change from step to step, and cut the rest",
        )
    return leaves, spec, lengths[0]


def _lengths(leaf: Any, axis: int) -> Tensor:
    if isinstance(leaf, PackedSequence):
        leaf = _places(leaf)
    if isinstance(leaf, LoDTensor):
        return leaf.lengths(0)
    if leaf.dim() < 2 or not -leaf.dim() <= axis < leaf.dim():
        raise StepError(
            "truncated: x has no dimensions of time and sequences",
            got=describe_leaf(leaf),
            expected=f"[time, batch, ...], cut along axis {axis}",
        )
    return torch.full((leaf.shape[_batch_axis(leaf, axis)],), leaf.shape[axis])


def _put(old: Tensor, sequences: Tensor, leaf: Tensor) -> Tensor:
    """States with those of some sequences anew, of a type that holds both."""
    if leaf.shape[1:] != old.shape[1:]:
        raise StepError(
            "truncated: the state of some sequences has another shape than that of the others",
            got=describe_leaf(leaf),
            expected=f"rows like {describe_leaf(old)}",
            remedy="a state that grows goes from piece to piece where all sequences are of one length, "
            "without at_once=",
        )
    both = torch.promote_types(old.dtype, leaf.dtype)
    return old.to(both).index_copy(0, beside(sequences, old), leaf.detach().to(both))


def _places(packed: PackedSequence) -> LoDTensor:
    """Where in a PackedSequence the rows of each sequence stand."""
    return LoDTensor.from_packed(packed._replace(data=torch.arange(len(packed.data))))


def _batch_axis(leaf: Tensor, axis: int) -> int:
    """The axis of sequences, beside that of time."""
    return 1 if axis % leaf.dim() == 0 else 0
