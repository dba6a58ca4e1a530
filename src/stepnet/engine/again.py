"""A run like one before: its plan without the record of its loop, which takes as long to make and
to look through as a step of a small cell.

What tells two calls apart is what tells two plans apart (`plans.lookup`): all that the body's Python reads,
walked anew at every call, and what its inputs look like. Whatever is out of the ordinary (modes, transforms,
traces, several inputs) goes the long way, and so does the first call of each kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stepnet.compiler.reach import reach
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.executors.autograd import Call
from stepnet.executors.autograd import run as run_plan
from stepnet.executors.layout import Layout
from stepnet.executors.registry import tried
from stepnet.executors.setting import only_plain
from stepnet.ir.loop import Loop

from .check import plain_loop
from .directions import Find, MadeLater, RunsAlong
from .make import Entry
from .reads import Reads
from .rows import as_rows

_known: OrderedDict[Any, Entry] = OrderedDict()
_LIMIT = 512


class Way(NamedTuple):
    """How a call goes over its rows, and by which backend."""

    reverse: bool
    level: int
    axis: int
    backend: str


# of a body's function, its x, what is carried, how both are nested, and the way: the loop and what it is fed
Record = Callable[..., tuple[Loop, Mapping[str, Any]]]


class Asked(NamedTuple):
    """A run that may be like one before: what it goes by, and what it is found by."""

    function: Callable[..., Any]
    x: Tensor | LoDTensor
    states: list[Tensor]
    form: tuple[Spec, Spec]
    way: Way
    record: Record
    reads: Reads
    rows: Tensor
    layout: Layout
    key: Any

    def loop(self) -> tuple[Loop, Mapping[str, Any]]:
        """The record of the loop, and what it is fed."""
        reverse, level, axis, _ = self.way
        of = (self.function, self.x, self.states, self.form)
        return self.record(*of, reverse=reverse, level=level, axis=axis)

    def known(self) -> Entry | None:
        """The plan of a call like this one."""
        return _known.get(self.key)

    def keep(self, entry: Entry) -> None:
        """Note the plan that this call went by, if it has one."""
        if entry.ready is not None and entry.compiled is not None and entry.y_spec is not None:
            _known[self.key] = entry
            while len(_known) > _LIMIT:
                _known.popitem(last=False)

    def run(self, entry: Entry, find: Find) -> tuple[Any, Any]:
        """y and the final state, by a plan. `find`: see `RunsAlong`."""
        assert entry.ready is not None
        assert entry.compiled is not None
        assert entry.y_spec is not None
        tensors = self.reads.tensors
        weights = [tensors[place] for place in entry.weights]
        ready, plain = entry.ready, self._plain(entry.weights)

        def along() -> RunsAlong:
            loop, feeds = self.loop()
            return RunsAlong(loop, ready, as_rows(loop, feeds), self.reads, entry.weights, find)

        call = Call(ready, self.layout, entry.compiled.constants, plain, MadeLater(along))
        out = run_plan(call, [self.rows.contiguous()], [s.contiguous() for s in self.states], weights)
        n_y = len(out) - len(self.states)
        x = self.x
        if isinstance(x, Tensor):
            y = [rows.reshape(*x.shape[:2], *rows.shape[1:]) for rows in out[:n_y]]
        else:
            y = [x.with_values(rows) for rows in out[:n_y]]
        spec = entry.y_spec
        whole = y[0] if spec.children == (LEAF,) else unflatten(spec, y)[spec.keys[0]]
        return whole, unflatten(self.form[1], out[n_y:])

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


def asked(
    function: Callable[..., Any], x: Any, state: Any, way: Way, boot: Callable[..., Any], record: Record
) -> tuple[Any, Asked | None]:
    """The initial state, and what a run is found by; None if it is to go the long way.

    Args:
        function: what the body reads by.
        x: what is cut into steps.
        state: what is carried; None: what `boot` gives for the function and a number of sequences, if the run
            is of the kind that may be found.
        way: how it goes over its rows.
        boot: see state.
        record: makes the loop and what it is fed, where they are needed after all.
    """
    table = _table(x, way) if tried(way.backend) else None
    if table is None:
        return state, None
    rows, layout = table
    if state is None:
        state = boot(function, layout.sequences)
    states, spec = flatten(state)
    for leaf in states:
        if type(leaf) is not Tensor or not leaf.is_cpu or not leaf.dim() or leaf.shape[0] != layout.sequences:
            return state, None
    found = reach(function)
    if found.refused is not None or found.open is not None or found.generators or not found.complete:
        return state, None
    key = (
        found.key,
        tuple([(type(t), t.shape, t.dtype, t.requires_grad, t.device) for t in found.tensors]),
        spec,
        tuple([(t.shape[1:], t.dtype, t.requires_grad) for t in states]),
        (rows.shape[1:], rows.dtype, rows.requires_grad, type(x)),
        torch.is_grad_enabled(),
        autocast_dtype("cpu"),
        torch.get_default_dtype(),
        tried(way.backend),
    )
    reads = Reads(found, ("reach", *found.key), found.tensors)
    return state, Asked(function, x, states, (LEAF, spec), way, record, reads, rows, layout, key)


def forget() -> None:
    """Forget every call."""
    _known.clear()
