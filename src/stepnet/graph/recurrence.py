"""A call of `recurrent` in a graph: a step as a function of tensors, and how it is run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype
from stepnet.data.offsets import LoD
from stepnet.data.tree import flatten

_ANSWER: list[Callable[..., Any]] = []


def answer_with(recurrent: Callable[..., Any]) -> None:
    """Let `recurrent` run what graphs hold."""
    _ANSWER[:] = [recurrent]


@dataclass(frozen=True)
class Leaf:
    """One leaf of y: what it is for one row."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Way:
    """How a recurrence runs: the arguments of `recurrent`, and what was around its call.

    Attributes:
        levels: how many levels of offsets x has; 0 for tensors of equal lengths.
        autocast: the type that autocast gives on each kind of device, where it is on.
        resets: which marks restart it, and whether a reset state is handed in: "", "is_init", "done".
    """

    name: str
    reverse: bool = False
    axis: int = 0
    levels: int = 0
    backend: str | None = None
    autocast: tuple[tuple[str, str], ...] = ()
    resets: str = ""


def row_shape(x: Tensor, axis: int, levels: int) -> tuple[int, ...]:
    """The shape of one row of a leaf of x.

    >>> row_shape(torch.zeros(5, 2, 3), 0, 0), row_shape(torch.zeros(5, 3), 0, 1)
    ((3,), (3,))
    """
    shape = [*x.shape]
    if not levels:
        del shape[axis]
    return tuple(shape[1:])


@dataclass(frozen=True)
class Recurrence:
    """A step that was captured, and how to run it.

    Its inputs are, in this order: the leaves of x; those of the state; what is static; the offsets of each
    leaf of x; marks of resets, and the reset state; then whatever the step reads besides.

    Args:
        step: takes the rows of the leaves of x, of the state and of what is static, then what it reads;
            gives the leaves of y and those of the new state.
        counts: how many of each kind there are.
        y: the leaves of y.
    """

    way: Way
    step: Callable[..., Sequence[Tensor]]
    counts: tuple[int, int, int, int]  # leaves of x, of the state, static, of the reset state
    y: tuple[Leaf, ...]
    random: bool = False

    def empty(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Tensors of the shapes of y and the final state."""
        x, n_x, n_state = tensors[0], self.counts[0], self.counts[1]
        if self.way.levels:
            lead: tuple[Any, ...] = (x.shape[0],)
            y = [x.new_empty((*lead, *leaf.shape), dtype=leaf.dtype) for leaf in self.y]
        else:
            axis = self.way.axis % x.dim()
            time, batch = x.shape[axis], x.shape[1 if axis == 0 else 0]
            y = []
            for leaf in self.y:
                shape = [batch, *leaf.shape]
                shape.insert(axis, time)
                y.append(x.new_empty(shape, dtype=leaf.dtype))
        return [*y, *(t.new_empty(t.shape) for t in tensors[n_x : n_x + n_state])]

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """The leaves of y and of the final state."""
        way, rest = self.way, iter(tensors)
        n_x, n_state, n_static, n_fresh = self.counts

        def take(count: int) -> tuple[Any, ...]:
            return tuple(next(rest) for _ in range(count))

        x, state, static = take(n_x), take(n_state), take(n_static)
        if way.levels:
            x = tuple(_ragged(rows, take(way.levels)) for rows in x)
        how: dict[str, Any] = {}
        if way.resets:
            (marks,) = take(1)
            how["resets"] = {way.resets: marks, "state": take(n_fresh) if n_fresh else None}
        return self.on(x, (*state, *static), (*rest, *sizes), **how)

    def on(
        self, x: Sequence[Any], states: Sequence[Tensor], reads: Sequence[Any], **how: Any
    ) -> list[Tensor]:
        """The same for leaves of x as they are cut; the states, then what is static; what the step reads."""
        way, n_x, n_state = self.way, *self.counts[:2]
        state, static = tuple(states[:n_state]), tuple(states[n_state:])
        if static:
            how["static"] = static
        step = _bound(self.step, n_x, n_state, reads, way.name)
        with _autocast(way.autocast):
            y, final = _ANSWER[0](
                step, tuple(x), state, reverse=way.reverse, axis=way.axis, backend=way.backend, **how
            )
        leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
        return [t if t.is_contiguous() else t.contiguous() for t in (*leaves, *final)]


def _bound(
    function: Callable[..., Sequence[Tensor]], n_x: int, n_state: int, reads: Sequence[Any], name: str
) -> Callable[..., Any]:
    """A step over flat tuples of leaves."""

    def step(x: Any, state: Any, static: Any = ()) -> Any:
        results = function(*x, *state, *static, *reads)
        return tuple(results[: len(results) - n_state]), tuple(results[len(results) - n_state :])

    step.__name__ = name
    return step


def _ragged(rows: Tensor, levels: tuple[Tensor, ...]) -> LoDTensor:
    return LoDTensor._make(rows, LoD.trusted(levels, rows.shape[0]))


def autocast_now() -> tuple[tuple[str, str], ...]:
    """What autocast is on for, as `Way` holds it."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple((k, str(autocast_dtype(k)).removeprefix("torch.")) for k in kinds if autocast_dtype(k))


@contextlib.contextmanager
def _autocast(wanted: tuple[tuple[str, str], ...]) -> Iterator[None]:
    """Autocast as it was around a call."""
    kinds = dict(wanted)
    with contextlib.ExitStack() as stack:
        if wanted != autocast_now():
            for kind in {"cpu", *kinds}:
                dtype = getattr(torch, kinds[kind]) if kind in kinds else None
                stack.enter_context(torch.autocast(kind, dtype, enabled=kind in kinds))
        yield
