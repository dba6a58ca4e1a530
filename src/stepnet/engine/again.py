"""A run like one before: its plan without the record of its loop, which takes as long to make and
to look through as a step of a small cell.

What tells two calls apart is what tells two plans apart (`plans.lookup`): all that the body's Python reads,
and what its inputs look like. The step is walked anew, unless it is known to read what it read (`walked`); of
such a step calls on equal shapes are found at once (`warm`). Whatever is out of the ordinary (modes,
transforms, traces, several inputs) goes the long way, and so does the first call of each kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stepnet.compiler.reach import Reach, reach
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype, traced
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.executors.autograd import Call
from stepnet.executors.autograd import run as run_plan
from stepnet.executors.layout import Layout
from stepnet.executors.registry import tried
from stepnet.executors.setting import only_plain, transforms_active
from stepnet.ir.loop import Loop

from .check import plain_loop
from .choice import about_as_many
from .directions import Find, MadeLater, RunsAlong
from .make import Entry
from .reads import Reads
from .rows import as_rows
from .walked import forget_steps, note, unchanged_step

_known: OrderedDict[Any, Entry] = OrderedDict()
_LIMIT = 512


class Way(NamedTuple):
    """How a call goes over its rows, and by which backend."""

    reverse: bool
    level: int
    axis: int
    backend: str


class Steps(NamedTuple):
    """What steps are, of which the engine knows nothing.

    `wrap`: a step as a function of its parameters. `boot`: what it begins with for a number of sequences.
    `record`: of a function, its x, what is carried, how both are nested, and the way: the loop and what it
    is fed.
    """

    wrap: Callable[[Any], Callable[..., Any]]
    boot: Callable[[Callable[..., Any], int], Any]
    record: Callable[..., tuple[Loop, Mapping[str, Any]]]


class Asked(NamedTuple):
    """A run that may be like one before: what it goes by, and what it is found by."""

    of: Steps
    step: Callable[..., Any]
    x: Tensor | LoDTensor
    states: list[Tensor]
    form: tuple[Spec, Spec]
    way: Way
    key: tuple[Any, ...]  # of what the step reads
    tensors: list[Tensor]
    rows: Tensor
    layout: Layout
    looks: Any  # what tells its inputs apart from others

    def loop(self) -> tuple[Loop, Mapping[str, Any]]:
        """The record of the loop, and what it is fed."""
        reverse, level, axis, _ = self.way
        of = (self.of.wrap(self.step), self.x, self.states, self.form)
        return self.of.record(*of, reverse=reverse, level=level, axis=axis)

    @property
    def reads(self) -> Reads:
        """What its step reads."""
        return Reads(Reach(self.key, self.tensors, True, None, None, []), ("reach", *self.key), self.tensors)

    def known(self) -> Entry | None:
        """The plan of a call like this one."""
        return _known.get((self.key, self.looks)) or _known.get(self._of_size())

    def keep(self, entry: Entry) -> None:
        """Note the plan that this call went by, if it has one."""
        if entry.ready is not None and entry.compiled is not None and entry.y_spec is not None:
            _known[(self.key, self.looks) if entry.accepted is None else self._of_size()] = entry
            while len(_known) > _LIMIT:
                _known.popitem(last=False)

    def _of_size(self) -> Any:
        """What a plan is found by that is for about as many sequences."""
        return self.key, self.looks, about_as_many(self.layout.sequences)

    def run(self, entry: Entry, find: Find) -> tuple[Any, Any]:
        """y and the final state, by a plan. `find`: see `RunsAlong`."""
        assert entry.ready is not None
        assert entry.compiled is not None
        assert entry.y_spec is not None
        tensors = self.tensors
        weights = [tensors[place] for place in entry.weights]
        ready, plain = entry.ready, self._plain(entry.weights)

        def along() -> RunsAlong:
            loop, feeds = self.loop()
            return RunsAlong(loop, ready, as_rows(loop, feeds), self.reads, entry.weights, find)

        call = Call(ready, self.layout, entry.compiled.constants, plain, MadeLater(along))
        out = run_plan(call, [self.rows.contiguous()], [s.contiguous() for s in self.states], weights)
        n_y, x, spec = len(out) - len(self.states), self.x, entry.y_spec
        if isinstance(x, Tensor):
            steps = x.shape[:2]
            y = [rows.reshape(steps + rows.shape[1:]) for rows in out[:n_y]]
        else:
            y = [x.with_values(rows) for rows in out[:n_y]]
        whole = y[0] if spec.children == (LEAF,) else unflatten(spec, y)[spec.keys[0]]
        return whole, out[n_y] if self.form[1] is LEAF else unflatten(self.form[1], out[n_y:])

    def _plain(self, places: Sequence[int]) -> Callable[..., Any]:
        """The plain loop on the inputs of this call, made when it is asked for."""

        def plain(*tables: Any) -> Any:
            loop, feeds = self.loop()
            return plain_loop(loop, as_rows(loop, feeds), self.reads, places)(*tables)

        return plain


def _table(x: Any, way: Way) -> tuple[Tensor, Layout] | None:
    """The rows of an input and where they stand, if it is as simple as most are: one tensor of rows of
    numbers on the CPU, or one LoDTensor of them, and no mode around."""
    if torch._C._len_torch_function_stack() or forward_ad._current_level >= 0 or torch.is_anomaly_enabled():
        return None
    if type(x) is Tensor:
        if way.axis not in (0, 1) or x.dim() < 3 or only_plain([x]) is not None or not x.is_cpu:
            return None
        one, two = x.shape[:2]
        first = way.axis == 0
        layout = Layout.dense(one if first else two, two if first else one, first, way.reverse)
        return x.reshape(one * two, *x.shape[2:]), layout
    if type(x) is not LoDTensor or way.level != -1:
        return None
    rows = x.values
    if type(rows) is not Tensor or rows.dim() < 2 or only_plain([rows]) is not None or not rows.is_cpu:
        return None
    return rows, Layout.of(x._lod, way.reverse)


def asked(of: Steps, step: Any, x: Any, state: Any, way: Way) -> tuple[Any, Asked | None]:
    """The initial state, and what a run is found by; None if it is to go the long way.

    Args:
        of: what steps are.
        step: the step, as the caller has it.
        x: what is cut into steps.
        state: what is carried; None: what the step begins with, if the run is of the kind that may be found.
        way: how it goes over its rows.
    """
    table = _table(x, way) if tried(way.backend) else None
    if table is None:
        return state, None
    rows, layout = table
    if state is None:
        state = of.boot(of.wrap(step), layout.sequences)
    states, spec = flatten(state)
    for leaf in states:
        if type(leaf) is not Tensor or leaf.layout is not torch.strided or not leaf.is_cpu:
            return state, None
        if not leaf.dim() or leaf.shape[0] != layout.sequences:
            return state, None
    unchanged = unchanged_step(step)
    if unchanged is not None:
        key, tensors = unchanged[0].key, unchanged[1]
    else:
        function = of.wrap(step)
        walked = reach(function)
        closed = walked.refused is None and walked.open is None
        if not closed or walked.generators or not walked.complete:
            return state, None
        note(step, function, walked)
        key, tensors = walked.key, walked.tensors
    looks = (
        tuple([(type(t), t.shape, t.dtype, t.requires_grad, t.device) for t in tensors]),
        spec,
        tuple([(t.shape[1:], t.dtype, t.requires_grad) for t in states]),
        (rows.shape[1:], rows.dtype, rows.requires_grad, type(x)),
        torch.is_grad_enabled(),
        autocast_dtype("cpu"),
        torch.get_default_dtype(),
        tried(way.backend),
    )
    return state, Asked(of, step, x, states, (LEAF, spec), way, key, tensors, rows, layout, looks)


class _Like(NamedTuple):
    """What calls have in common that look alike."""

    entry: Entry
    form: tuple[Spec, Spec]
    way: Way
    layout: Layout
    find: Find


def nothing_around() -> bool:
    """Whether no mode, transform or trace is around a call."""
    return not (
        torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
        or torch.is_anomaly_enabled()
        or torch._C._len_torch_dispatch_stack()
        or transforms_active()
        or traced()
    )


def warm(
    of: Steps, step: Any, x: Tensor | LoDTensor, state: Any, way: tuple[bool, int, int, str],
    find: Callable[[str], Find],
) -> tuple[Any, Any] | None:  # fmt: skip
    """y and the final state of a call with the shapes of one before, of a step that reads what it read; None
    where it is not known to be one. `find`: for a backend, see `RunsAlong`.

    Raises:
        Unsupported: the plan declines.
    """
    unchanged = unchanged_step(step)
    if unchanged is None or not nothing_around():
        return None
    states, spec = ([state], LEAF) if type(state) is Tensor else flatten(state)
    for tensor in (x, *states):
        if type(tensor) is not Tensor or tensor.layout is not torch.strided:
            return None
    found, tensors = unchanged
    ragged = isinstance(x, LoDTensor)
    rows = x._values if ragged else x
    seen = rows.shape[1:] if ragged else rows.shape  # of ragged ones there may be any number
    looks = (
        (type(x), seen, rows.dtype, rows.requires_grad, rows.device, type(rows)),
        tuple([(t.shape, t.dtype, t.requires_grad, t.device, type(t)) for t in (*states, *tensors)]),
        spec,
        way,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        tried(way[3]),
    )
    like: _Like | None = found.likes.get(looks)
    if like is not None:
        layout = like.layout
        if not ragged:
            rows = rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
        elif (layout := Layout.of(x._lod, like.way.reverse)).sequences != like.layout.sequences:
            return None
        call = Asked(of, step, x, states, like.form, like.way, found.key, tensors, rows, layout, looks)
        return call.run(like.entry, like.find)
    _, call = asked(of, step, x, state, Way(*way))
    entry = None if call is None else call.known()
    if call is None or entry is None:
        return None
    if len(found.likes) >= _LIMIT:
        found.likes.clear()
    found.likes[looks] = like = _Like(entry, call.form, call.way, call.layout, find(way[3]))
    return call.run(entry, like.find)


def forget() -> None:
    """Forget every call."""
    _known.clear()
    forget_steps()
