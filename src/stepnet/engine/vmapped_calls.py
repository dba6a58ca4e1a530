"""A batch of calls inside one `torch.func.vmap`, by the plan that each of them has outside of it.

Where they differ in x and states alone, the rows of all stand side by side: the plan shows that a step treats
each row by itself. Where they differ in weights, and nothing is kept for gradients, or they are few or large,
they run one after the other. Neither looks at what the transform made of each tensor, which takes longer than
a small step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from stepnet.compiler.trace.iteration import code_of, reached
from stepnet.data.attributes import begins_by_itself
from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import autocast_dtype, is_wrapped, nothing_around, sees_saved_tensors
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import Unsupported
from stepnet.executors.autograd import is_computed_again, run_direct, run_real
from stepnet.executors.call import Call, goes_by_places, not_asked_for
from stepnet.executors.direct import Lately
from stepnet.executors.transformed import each_by_places
from stepnet.watchers import note_run

from .entries import Entry
from .plans import find_plan, finding, is_as_ever, run_warm
from .reads import asks_for_gradients, closed, looks
from .transforms import Swapped
from .walked_steps import unchanged_step
from .warm_calls import Asked, Steps, Way, asked, joined

Batched = tuple[Tensor, "int | None"]  # a tensor, and where its batch is
_FEW = 4  # calls
_LARGE = 1 << 21  # multiplications of a call, which then take longer in products of all at once (measured)
_lately = Bounded[Any, Lately](512)


def run_folded(
    of: Steps, step: Any, x: Any, state: Any, way: Way
) -> tuple[Any, tuple[Any, Any] | None]:  # fmt: skip
    """The initial state; y and the final state of a call. None where it is to go the long way: no batch or
    another transform around, noise, no plan, many small calls with weights of their own that may need
    gradients."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    around = functorch.peek_interpreter_stack()
    if around is None or around.key() != functorch.TransformType.Vmap:
        return state, None
    if type(x) is not Tensor or x.dim() < 3 or way.axis not in (0, 1):
        return state, None
    begun, n = state, x.shape[1 - way.axis]
    if state is None:
        function = of.wrap(step)
        if not begins_by_itself(function):
            return None, None
        begun = of.boot(function, n)
    leaves, spec = flatten(begun)
    if any(type(t) is not Tensor or not t.dim() or t.shape[0] != n for t in leaves):
        return state, None  # the long way tells what is wrong with it
    return begun, _folded(of, step, x, leaves, spec, way)


def _folded(
    of: Steps, step: Any, x: Tensor, leaves: Sequence[Tensor], spec: Spec, way: Way
) -> tuple[Any, Any] | None:
    """y and the final state. `leaves`, `spec`: the state that it begins with."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    batch: Any = retrieve_current_functorch_interpreter()
    level, k = batch.level(), batch.batch_size()
    if k == 0:
        return None

    def plain(t: Tensor) -> Batched:
        return functorch._unwrap_batched(t, level)

    def wrapped(t: Tensor, at: int) -> Tensor:
        return functorch._add_batch_dim(t, at, level)

    tables = [*map(plain, (x, *leaves))]
    with batch.lower():
        if not nothing_around() or any(is_wrapped(t) for t, _ in tables):
            return None
        try:
            known = unchanged_step(step)
            if known is not None:
                call, names = None, known[0].names
            else:
                firsts = [t if d is None else t.select(d, 0) for t, d in tables]
                call = asked(of, step, firsts[0], unflatten(spec, firsts[1:]), way)[1]
                if call is None:
                    return None
                names = call.names
            if asks_for_gradients(names, batched=True):
                return None
            if call is not None and any(map(is_wrapped, call.tensors)):
                weights = [*map(plain, call.tensors)]
                return _of_members(call, tables, weights, k, wrapped)
            if all(d is None for _, d in tables):  # nothing of it is in the batch
                return _run(of, step, x, unflatten(spec, leaves), way)
            at = 1 - way.axis  # where x has its sequences
            (rows, d), *more = tables
            wide = unflatten(spec, [_side_by_side(t, d, k, 0) for t, d in more])
            found = _run(of, step, _side_by_side(rows, d, k, at), wide, way)
        except Unsupported:
            return None
    if found is None:
        return None

    def parted(table: Tensor, at: int) -> Tensor:
        return wrapped(table.unflatten(at, (k, table.shape[at] // k)), at)

    y, y_spec = flatten(found[0])
    finals, _ = flatten(found[1])
    return unflatten(y_spec, [parted(t, at) for t in y]), unflatten(spec, [parted(t, 0) for t in finals])


def _side_by_side(tensor: Tensor, dim: int | None, k: int, at: int) -> Tensor:
    """A batch of tables as one, the sequences of one after those of the other along dimension `at`."""
    if dim is None:
        tensor = tensor.unsqueeze(at).expand(*tensor.shape[:at], k, *tensor.shape[at:])
    else:
        tensor = tensor.movedim(dim, at)
    return tensor.flatten(at, at + 1)


def _run(of: Steps, step: Any, x: Tensor, state: Any, way: Way) -> tuple[Any, Any] | None:
    """y and the final state of a call on plain tensors, by a plan without noise."""
    out = run_warm(of, step, x, state, way, draws=False)[1]
    if out is not None:
        return out
    _, call = asked(of, step, x, state, way)
    if call is None or any(map(is_wrapped, call.tensors)):
        return None
    entry = call.known()
    if entry is None:
        entry, reads, _ = find_plan(*call.record(), backend=way.backend)
        if entry.ready is None or not (is_as_ever(entry, reads) and call.is_of(reads)):
            return None
        call.keep(entry)
    return call.run(entry, finding(way.backend)) if _is_usual(entry) else None


def _is_usual(entry: Entry) -> bool:
    """Whether a plan is the first choice, so that nobody is to be told of it, and draws no noise."""
    return entry.ready is not None and not entry.refusals and not entry.ready.plan.random


def _of_members(
    call: Asked, tables: Sequence[Batched], weights: Sequence[Batched], k: int, wrapped: Callable[..., Tensor]
) -> tuple[Any, Any] | None:
    """y and the final state of calls with weights of their own, one after the other.

    Args:
        call: one of them, but for its weights.
        tables, weights: x and the states of all, and the tensors that their step reads.
        k: how many they are.
        wrapped: gives a tensor back as a batch.
    """
    firsts = [t if d is None else t.select(d, 0) for t, d in weights]
    if any(map(is_wrapped, firsts)):
        return None
    recorded = torch.is_grad_enabled()
    if recorded and k > _FEW and call.layout.rows * sum(t.numel() for t in firsts) < _LARGE:
        return None  # products of all at once are faster
    first = call._replace(tensors=firsts, looks=(looks(firsts), *call.looks[1:]))
    entry = first.known()
    if entry is None:
        loop = call.loop()
        body: Any = Swapped(code_of(loop), {id(t): own for t, own in zip(call.tensors, firsts, strict=True)})
        reads = closed(reached(loop), firsts)
        entry = finding(call.way.backend)(loop.around(body), reads, call.sequences)
        if not is_as_ever(entry, reads):
            return None
        first.keep(entry)
    if not _is_usual(entry) or entry.ready is None or entry.compiled is None:
        return None
    if recorded:
        return _each_recorded(first, entry, tables, weights, k, wrapped)
    (x, d), *states = tables
    lead = call.steps
    rows = call.rows[0] if d is None else x.movedim(d, 0).flatten(1, 2)
    given = [(rows, None if d is None else 0), *states, *(weights[place] for place in entry.weights)]
    run = Call(entry.ready, call.layout, entry.compiled.constants, not_asked_for)
    found = each_by_places(run, k, [d for _, d in given], [t for t, _ in given])
    if found is None:
        return None
    out, n_y = found[0], len(found[0]) - len(states)
    whole = [t.unflatten(1, lead) if i < n_y else t for i, t in enumerate(out)]
    return joined([wrapped(t, 0) for t in whole], n_y, entry.y_spec, call.x[0], call.form[1])


def _each_recorded(
    first: Asked, entry: Entry, tables: Sequence[Batched], weights: Sequence[Batched], k: int,
    wrapped: Callable[..., Tensor],
) -> tuple[Any, Any] | None:  # fmt: skip
    """The same of calls that backward may follow, each a run of its own; see `_of_members`. `first`: what the
    first of them goes by."""
    assert entry.compiled is not None
    ready, layout, steps = first.ready(entry), first.layout, first.steps
    given = [t for t, _ in (*tables, *weights)]
    odd = is_computed_again() or autocast_dtype("cpu") is not None or any(map(Tensor.is_inference, given))
    if odd or not goes_by_places(ready, entry.compiled.constants, given):
        return None
    kind = first.key, first.looks, first.way, steps
    lately = _lately[kind] = _lately.get(kind) or Lately()
    find, n, found = finding(first.way.backend), len(tables), list[list[Tensor]]()
    parts = [[t] * k if d is None else t.unbind(d) for t, d in (*tables, *weights)]
    for x, *own in zip(*parts, strict=True):
        rows, states, tensors = x.reshape(-1, *x.shape[2:]), own[: n - 1], own[n - 1 :]
        one = first._replace(rows=[rows], states=states, tensors=tensors)
        read = [tensors[place] for place in entry.weights]
        inputs = [contiguous(t) for t in (rows, *states, *read)]
        by_names = partial(one.call, entry, ready, find, steps)
        direct = None if sees_saved_tensors() else lately.direct(ready, layout, inputs, steps, trains=True)
        out = None if direct is None else run_direct(direct, by_names, inputs, layout)
        out = run_real(by_names(), inputs, 1, n - 1) if out is None else out
        note_run(entry, layout, ([rows], states, read), out, steps)
        found.append(out)
    whole = [wrapped(torch.stack(each), 0) for each in zip(*found, strict=True)]
    return joined(whole, len(whole) - n + 1, entry.y_spec, first.x[0], first.form[1])
