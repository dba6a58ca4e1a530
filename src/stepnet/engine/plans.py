"""The plan of a call: looked up by what the call depends on, made at its first use, and run."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype, default_device
from stepnet.data.tree import unflatten
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from stepnet.executors.autograd import Call, run
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.setting import only_plain
from stepnet.front.step import StepBody

from .check import plain_loop
from .make import Entry, make
from .reads import CHANGES, FailsOnSamples, Reads, read
from .rows import Sequences, as_rows

_entries: OrderedDict[Any, Entry] = OrderedDict()
_told: set[Any] = set()  # steps and reasons that were warned of
_misses: dict[
    Any, int
] = {}  # plans made one after the other for one piece of source, none of them used again
_LIMIT = 512
_MOST_MISSES = 12
_lock = threading.RLock()


def run_compiled(
    body: StepBody, x_leaves: Sequence[Any], state_leaves: Sequence[Tensor], *,
    reverse: bool, level: int, axis: int, backend: str, warn: int = 4,
) -> tuple[Any, list[Tensor]]:  # fmt: skip
    """Run a step by a plan. Without one, a step is warned of once, `warn` frames up; 0: not at all.

    Raises:
        Unsupported: no plan can be made, or no executor of `backend` takes it.
    """
    entry, reads, sequences = find_plan(
        body, x_leaves, state_leaves, reverse=reverse, level=level, axis=axis, backend=backend
    )
    if entry.ready is None or entry.compiled is None or entry.y_spec is None:
        refusal = entry.refusals[-1][1]
        if isinstance(refusal, FailsOnSamples):
            if backend != AUTO and not isinstance(refusal.error, StepError):
                raise refusal.error
            told = (reads.root, body.name, "static")
            if warn and backend == AUTO and told not in _told and _one_per_sequence(reads, sequences):
                _told.add(told)
                warnings.warn(SlowPathWarning(body.name, _ONE_PER_SEQUENCE), stacklevel=warn)
            raise refusal.fresh()  # not told otherwise: the plain loop meets it, too
        told = (reads.root, body.name, refusal.reason)
        if warn and backend == AUTO and told not in _told:
            if len(_told) > _LIMIT:
                _told.clear()
            _told.add(told)
            warnings.warn(SlowPathWarning(body.name, refusal), stacklevel=warn)
        raise refusal.fresh()
    weights = [reads.tensors[place] for place in entry.weights]
    x_rows = [rows.contiguous() for rows in sequences.x_rows]
    states = [state.contiguous() for state in state_leaves]
    plain = plain_loop(body, sequences.layout, reads, entry.weights)
    call = Call(entry.ready, sequences.layout, entry.compiled.constants, plain)
    out = run(call, x_rows, states, weights)
    n_y = len(entry.ready.plan.y)
    y = unflatten(entry.y_spec, [sequences.restore(rows) for rows in out[:n_y]])
    return y, out[n_y:]


def find_plan(
    body: StepBody, x_leaves: Sequence[Any], state_leaves: Sequence[Tensor], *,
    reverse: bool, level: int, axis: int, backend: str,
) -> tuple[Entry, Reads, Sequences]:  # fmt: skip
    """The plan that a call runs by, what its step reads, and x as a table of rows.

    Raises:
        Unsupported: x or the state is not a table of rows. That no plan can be made is in the entry.
    """
    reason = only_plain([*(x.values if isinstance(x, LoDTensor) else x for x in x_leaves), *state_leaves])
    if reason is not None:
        raise Unsupported(reason)
    sequences = as_rows(x_leaves, reverse=reverse, level=level, axis=axis)
    for name, state in zip(body.state_names, state_leaves, strict=True):
        if state.dim() == 0 or state.shape[0] != sequences.layout.sequences:
            raise Unsupported(f"{name} does not have one row per sequence")
    reads = read(body, sequences.x_rows, state_leaves)
    if forward_ad._current_level >= 0:
        for tensor in (*sequences.x_rows, *state_leaves, *reads.tensors):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise Unsupported("a forward-mode tangent is carried along, which the plain loop does")
    return lookup(body, reads, sequences, state_leaves, backend), reads, sequences


def lookup(
    body: StepBody, reads: Reads, sequences: Sequences, states: Sequence[Tensor], backend: str
) -> Entry:
    """The plan of a call's signature, made at its first use."""
    if reads.refusal is not None:
        return _refused(reads, reads.refusal)
    signature = (
        body.x_spec,
        body.state_spec,
        tuple([(t.shape[1:], t.dtype, t.requires_grad, t.device) for t in sequences.x_rows]),
        tuple([(t.shape[1:], t.dtype, t.requires_grad, t.device) for t in states]),
        torch.is_grad_enabled(),
        autocast_dtype("cpu"),
        torch.get_default_dtype(),
        default_device(),
        tried(backend),
    )
    key = (
        reads.key,
        tuple([(type(t), t.shape, t.dtype, t.requires_grad, t.device) for t in reads.tensors]),
        signature,
    )
    entry = _entries.get(key)
    if entry is not None:
        _misses.pop(entry.family, None)
        return entry
    with _lock:
        entry = _entries.get(key)
        if entry is not None:
            return entry
        family = (reads.code, signature)
        missed = _misses.get(family, 0)
        if missed >= _MOST_MISSES:
            return _refused(reads, _UNSTEADY)
        entry = make(body, reads, sequences, states, backend)
        if entry.changes:  # what it changed is in the key: the entry would not be met again
            return _refused(reads, CHANGES)
        if len(_misses) > _LIMIT:
            _misses.clear()
        entry.family = family
        _misses[family] = missed + 1
        _keep(key, entry)
    return entry


_ONE_PER_SEQUENCE = Unsupported(
    "the step reads a tensor that has one row for each sequence, so it runs on no other number of rows",
    remedy="recurrent(step, x, state, static=tensor) hands it to the step, as step(x_t, state, tensor)",
)


def _one_per_sequence(reads: Reads, sequences: Sequences) -> bool:
    """Whether a step that fails on a few rows may do so for a tensor with a row for each sequence."""
    layout = sequences.layout
    weights = (t for t in reads.tensors if not isinstance(t, nn.Parameter))
    return len(layout.ends) == 1 and any(t.dim() > 1 and t.shape[0] == layout.sequences for t in weights)


_UNSTEADY = Unsupported(
    f"the step was compiled {_MOST_MISSES} times in a row and read something else at the next call each time",
    remedy="make the number that changes a tensor, or an input of the step; or backend='naive'",
)


def _refused(reads: Reads, refusal: Unsupported) -> Entry:
    """What is known of a step that is refused whatever else it reads: one entry, so that it is told once."""
    key = ("refused", reads.root, refusal.reason)
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            entry = Entry()
            entry.refusals.append(("capture", refusal.fresh()))
            _keep(key, entry)
    return entry


def forget() -> None:
    """Forget every plan of this process, and what was warned of."""
    with _lock:
        for kept in (_entries, _misses, _told):
            kept.clear()


def _keep(key: Any, entry: Entry) -> None:
    _entries[key] = entry
    while len(_entries) > _LIMIT:
        _entries.popitem(last=False)
