"""A call of `recurrent` in a graph: a step as a function of tensors, and how it is run."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype
from stepnet.data.offsets import LoD
from stepnet.data.tensor_guards import alike
from stepnet.data.tree import flatten
from stepnet.data.unpatched_torch import contiguous
from stepnet.executors.base import Executor
from stepnet.executors.direct import Lately
from stepnet.executors.layout import Layout
from stepnet.executors.registry import tried
from stepnet.executors.setting import check_backend

from .dispatch import from_the_top
from .flow import Flow, Way, flow_of, no_rows, numbers
from .noise import Drawn
from .planned import Known, Like, Planned, Shape, all_on_cpu, is_watched, needed_of
from .sizes import for_open_sizes, row_shape

_dtype, _size = operator.attrgetter("dtype"), operator.attrgetter("shape")
_ANSWER: list[Callable[..., Any]] = []
_MOST_PLANS = 64


def answer_with(
    recurrent: Callable[..., Any], plan_of: Callable[..., Any], plainly: Callable[..., Any]
) -> None:
    """Let `recurrent` run what graphs hold, `plan_of` say by which plan it does, and `plainly` run the plain
    loop over tensors without numbers."""
    _ANSWER[:] = [recurrent, plan_of, plainly]


@dataclass(frozen=True)
class Leaf:
    """One leaf of y: what it is for one row. `whole`: of steps that are sequences, it holds their entries."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: bool = False


@dataclass(frozen=True)
class Recurrence:
    """A step that was captured, and how to run it.

    Its inputs are, in this order: the leaves of x; those of the state; what is static; the offsets of each
    leaf of x; marks of resets, and the reset state; then whatever the step reads besides.

    Args:
        step: takes the rows of the leaves of x, of the state and of what is static, the offsets that its x
            has, which all leaves share, then what it reads; gives the leaves of y and those of the new state.
        counts: how many of each kind there are.
        y: the leaves of y.
        transforms: whether the step calls transforms of torch.func.
    """

    way: Way
    step: Callable[..., Sequence[Tensor]]
    counts: tuple[int, int, int, int]  # leaves of x, of the state, static, of the reset state
    y: tuple[Leaf, ...]
    transforms: bool = False
    plans: dict[Any, Planned | None] = field(default_factory=dict, compare=False, repr=False)
    likes: dict[Any, _Looks] = field(default_factory=dict, compare=False, repr=False)
    flows: dict[Any, Flow | None] = field(default_factory=dict, compare=False, repr=False)
    texts: dict[Any, str] = field(default_factory=dict, compare=False, repr=False)  # under each autocast
    types: dict[Any, list[torch.dtype]] = field(default_factory=dict, compare=False, repr=False)

    def empty(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Tensors of the shapes of y and the final state."""
        x, n_x, n_state = tensors[0], self.counts[0], self.counts[1]
        types = self.types_of(tensors)
        if self.way.levels:
            rows: Any = x.shape[0]
            steps = rows
            if self.way.inside:
                steps = tensors[sum(self.counts[:3]) + self.way.levels - self.way.inside].shape[0] - 1
            y = [
                x.new_empty((rows if leaf.whole else steps, *leaf.shape), dtype=dtype)
                for leaf, dtype in zip(self.y, types, strict=True)
            ]
        else:
            axis = self.way.axis % x.dim()
            time, batch = x.shape[axis], x.shape[1 if axis == 0 else 0]
            y = []
            for leaf, dtype in zip(self.y, types, strict=True):
                shape = [batch, *leaf.shape]
                shape.insert(axis, time)
                y.append(x.new_empty(shape, dtype=dtype))
        return [*y, *(t.new_empty(t.shape) for t in tensors[n_x : n_x + n_state])]

    def types_of(self, tensors: Sequence[Tensor]) -> list[torch.dtype]:
        """The types of the leaves of y: under the autocast that is around, where none is recorded."""
        if self.way.autocast is not None:
            return [leaf.dtype for leaf in self.y]
        around = autocast_now()
        key = (around, *map(_dtype, tensors))
        if key not in self.types:
            way, (n_x, n_state, n_static, n_fresh) = self.way, self.counts
            begin = n_x + n_state + n_static
            reads = begin + n_x * way.levels + bool(way.resets) + n_fresh
            n, pieces = 2, 4
            rows = pieces if way.inside else n
            shapes = [(rows, *row_shape(t, way.axis, way.levels)) for t in tensors[:n_x]]
            shapes += [(n, *t.shape[1:]) for t in tensors[n_x:begin]]
            ends = [torch.arange(0, pieces + 1, 1 if k else n) for k in range(way.inside)]
            of_rows = [*tensors[:begin], *tensors[reads:]]
            with for_open_sizes() as (_, fake), fake, autocast_as(around), torch.no_grad():
                made = [
                    torch.empty(numbers(shape), dtype=t.dtype, device=t.device)
                    for shape, t in zip([*shapes, *(t.shape for t in tensors[reads:])], of_rows, strict=True)
                ]
                results = self.step(*made[:begin], *ends, *made[begin:])
            self.types[key] = [t.dtype for t in results[: len(self.y)]]
        return self.types[key]

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """The leaves of y and of the final state."""
        return self.asked_of(_ANSWER[0], tensors, sizes)

    def asked_of(
        self, ask: Callable[..., Any], tensors: Sequence[Tensor], sizes: Sequence[int]
    ) -> list[Tensor]:
        """As `run`, by somebody who takes what `recurrent` does."""
        with autocast_as(self.way.autocast):
            found = _leaves(*self._asked(ask, tensors, sizes))
            return found if self.way.autocast is not None else rounded(self.way, found)

    def flow(self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]) -> Flow | None:
        """How gradients flow where these inputs need one."""
        key = (*needs, no_rows(self.way, tensors[0]))
        if key not in self.flows:
            self.flows[key] = self._flow(tensors, sizes, needs)
        return self.flows[key]

    def draws(self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]) -> bool:
        """Whether its step draws noise; a step of which nobody knows may."""
        flow = self.flow(tensors, sizes, needs) or self._flow(tensors, sizes, needs, read=True)
        return flow is None or flow.draws

    def _flow(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool], *, read: bool = False
    ) -> Flow | None:
        def plainly(way: Way, counts: tuple[int, int, int, int], *given: Any) -> list[Tensor]:
            return replace(self, way=way, counts=counts).asked_of(_ANSWER[2], *given)

        return flow_of(self.way, self.counts, plainly, Drawn(), tensors, sizes, needs, read=read)

    def _asked(self, ask: Callable[..., Any], tensors: Sequence[Tensor], sizes: Sequence[int]) -> Any:
        """What `recurrent`, or who takes the same, answers for these tensors."""
        way, rest = self.way, iter(tensors)
        n_x, n_state, n_static, n_fresh = self.counts

        def take(count: int) -> tuple[Any, ...]:
            return tuple(next(rest) for _ in range(count))

        x, state, static = take(n_x), take(n_state), take(n_static)
        if way.levels:
            x = tuple(_ragged(rows, take(way.levels)) for rows in x)
            if way.inside:  # all leaves share one
                x = tuple(LoDTensor.of(leaf.values, x[0].structure) for leaf in x)
        how: dict[str, Any] = {}
        if way.in_windows:
            how |= {"checkpoint": way.checkpoint, "detach_every": way.detach_every}
        if way.resets:
            (marks,) = take(1)
            how["resets"] = {way.resets: marks, "state": take(n_fresh) if n_fresh else None}
        return self._of_leaves(ask, x, (*state, *static), (*rest, *sizes), how)

    def _of_leaves(
        self, ask: Callable[..., Any], x: Sequence[Any], states: Sequence[Tensor], reads: Sequence[Any],
        how: dict[str, Any],
    ) -> Any:  # fmt: skip
        way, n_x, n_state = self.way, *self.counts[:2]
        if len(states) > n_state:
            how["static"] = tuple(states[n_state:])
        if way.inside:
            how["level"] = way.levels - 1 - way.inside
            step = _bound_to_pieces(self, reads)
        else:
            step = _bound(self.step, n_x, n_state, reads, way.name)
        return ask(
            step, tuple(x), tuple(states[:n_state]), reverse=way.reverse, axis=way.axis, backend=way.backend,
            **how,
        )  # fmt: skip

    def on(self, x: Sequence[Any], states: Sequence[Tensor], reads: Sequence[Any]) -> list[Tensor]:
        """As `run`, of leaves of x as they are cut; the states, then what is static; what the step reads."""
        with autocast_as(self.way.autocast):
            return _leaves(*self._of_leaves(_ANSWER[0], x, states, reads, {}))

    def by_plan(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool] | None
    ) -> Known | None:
        """By which plan this runs, that of an earlier one like it; None if there was none, or it had no plan.

        Args:
            tensors, sizes: as for `run`.
            needs: which tensors need a gradient; None where nobody asks for gradients.
        """
        way, shape = self.way, self._shape
        windows = way.in_windows and needs is not None
        if way.inside or way.resets or windows or way.axis not in (0, 1) or is_watched():
            return None
        looks = (tensors[self._counted].shape, None if needs is None else tuple(needs), *sizes)
        executors, dtype = tried(check_backend(way.backend)), torch.get_default_dtype()
        known = self.likes.get(looks)
        if (
            known is not None
            and known.alike(*tensors)
            and known.tried is executors
            and known.dtype is dtype
            and (layout := self._layout(tensors)) is not None
        ):
            return Known(known.like, layout)
        layout = self._layout(tensors) if all_on_cpu(tensors) else None
        if layout is None:
            return None
        key = (
            *map(_dtype, tensors),
            *[t.shape[shape.lead :] for t in tensors[: shape.x]],
            *[t.shape[1:] for t in tensors[shape.x : shape.begin]],
            *map(_size, tensors[self._reads :]),
            *looks[1:],
            executors,
            dtype,
        )
        planned = self.plans.get(key, _NEW)
        if planned is _NEW:
            if len(self.plans) >= _MOST_PLANS:
                self.plans.clear()
            self.plans[key] = _MADE
            return None
        if planned is _MADE:
            planned = self.plans[key] = self._find(tensors, sizes, needs)
        if planned is None:
            return None
        if len(self.likes) >= _MOST_PLANS:
            self.likes.clear()
        noted = any(t.is_neg() or t._is_zerotensor() for t in tensors)
        as_it_is = autocast_dtype("cpu") is None and not noted
        needed = () if needs is None else needed_of(shape, planned.weights, needs)
        like, of_rows = Like(planned, shape, needed, as_it_is, Lately()), shape.x if way.levels else 0
        self.likes[looks] = _Looks(alike(tensors, any_rows=of_rows), executors, dtype, like)
        return Known(like._replace(as_it_is=False), layout)

    @property
    def read_back(self) -> int:
        """The leaves of y, of its results."""
        return len(self.y)

    @cached_property
    def _shape(self) -> Shape:
        n_x, n_state, n_static, _ = self.counts
        return Shape(n_x, n_state, n_x + n_state + n_static, 1 if self.way.levels else 2)

    @cached_property
    def _reads(self) -> int:
        """Where what the step reads begins."""
        return self._shape.begin + self._shape.x * self.way.levels

    @cached_property
    def _counted(self) -> int:
        """The tensor whose shape tells how many sequences there are."""
        return self._shape.begin + self.way.levels - 1 if self.way.levels else 0

    def _layout(self, tensors: Sequence[Tensor]) -> Layout | None:
        """Where the rows stand; None where leaves differ, which the long way tells."""
        way, (n_x, _, begin, _) = self.way, self._shape
        if way.levels:
            ends = tensors[begin + way.levels - 1 : self._reads : way.levels]
            if len(ends) > 1 and any(end is not ends[0] and not torch.equal(end, ends[0]) for end in ends):
                return None
            layout = Layout.ragged(ends[0], way.reverse)
            fits = all(t.shape[0] == layout.rows for t in tensors[:n_x])
        else:
            lead = tensors[0].shape[:2]
            steps, n = reversed(lead) if way.axis else lead
            layout = Layout.dense(steps, n, not way.axis, way.reverse)
            fits = all(t.shape[:2] == lead for t in tensors[1:n_x])
        n = layout.sequences
        return layout if fits and all(t.shape[:1] == (n,) for t in tensors[n_x:begin]) else None

    @from_the_top
    def _find(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool] | None
    ) -> Planned | None:
        flags = [False] * len(tensors) if needs is None else needs
        own = [t.detach().requires_grad_(need) for t, need in zip(tensors, flags, strict=True)]
        with autocast_as(self.way.autocast), torch.set_grad_enabled(needs is not None):
            found = self._asked(_ANSWER[1], own, sizes)
        if found is None or found[0].plan.paired or any(t.is_complex() for t in tensors):
            return None
        ready, constants, weights = found
        at: dict[int, int | Tensor] = {id(t): i for i, t in enumerate(own)}
        apart = ready.forward.fresh.issuperset(ready.extra)
        return Planned(ready, constants, [at[id(w)] if id(w) in at else w.detach() for w in weights], apart)


class _Looks(NamedTuple):
    """How the tensors of calls look that have this in common."""

    alike: Callable[..., bool]
    tried: tuple[Executor, ...]
    dtype: torch.dtype  # torch's default
    like: Like


_NEW: Any = object()
_MADE: Any = object()  # by a call that went the long way, if there can be one


def _leaves(y: Any, final: Sequence[Tensor]) -> list[Tensor]:
    leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
    return [contiguous(t) for t in (*leaves, *final)]


def _bound(
    function: Callable[..., Sequence[Tensor]], n_x: int, n_state: int, reads: Sequence[Any], name: str
) -> Callable[..., Any]:
    """A step over flat tuples of leaves."""

    def step(x: Any, state: Any, static: Any = ()) -> Any:
        results = function(*x, *state, *static, *reads)
        return tuple(results[: len(results) - n_state]), tuple(results[len(results) - n_state :])

    step.__name__ = name
    return step


def _bound_to_pieces(call: Recurrence, reads: Sequence[Any]) -> Callable[..., Any]:
    """`_bound` of a step whose x are sequences."""

    def step(x: Any, state: Any) -> Any:
        lod = x[0].structure
        results = call.step(*(leaf.values for leaf in x), *state, *lod.levels, *reads)
        n_y = len(call.y)
        y = zip(call.y, results[:n_y], strict=True)
        return tuple(LoDTensor.of(t, lod) if leaf.whole else t for leaf, t in y), tuple(results[n_y:])

    step.__name__ = call.way.name
    return step


def _ragged(rows: Tensor, levels: tuple[Tensor, ...]) -> LoDTensor:
    return LoDTensor.of(rows, LoD.handed(levels, rows.shape[0]))


def rounded(way: Way, results: Sequence[Tensor]) -> list[Tensor]:
    """Results in the types that the autocast around gives them."""
    low = autocast_dtype(results[0].device.type) if way.rounded else None
    if low is None:
        return [*results]
    return [
        t.to(low) if of and t.dtype != torch.float64 else t  # which autocast leaves as it is
        for t, of in zip(results, way.rounded, strict=True)
    ]


def autocast_now() -> tuple[tuple[str, str], ...]:
    """What autocast is on for, as `Way` holds it."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple((k, str(autocast_dtype(k)).removeprefix("torch.")) for k in kinds if autocast_dtype(k))


@contextlib.contextmanager
def autocast_as(wanted: tuple[tuple[str, str], ...] | None) -> Iterator[None]:
    """Autocast as it was around a call; None: as it is."""
    kinds = dict(wanted or ())
    with contextlib.ExitStack() as stack:
        if wanted is not None and wanted != autocast_now():
            for kind in {"cpu", *kinds}:
                dtype = getattr(torch, kinds[kind]) if kind in kinds else None
                stack.enter_context(torch.autocast(kind, dtype, enabled=kind in kinds))
        yield
