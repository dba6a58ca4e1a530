"""A compiled loop as one node of the autograd graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.heap import new_table
from stepnet.data.in_graph import end_compiled_backward, not_followed
from stepnet.data.modes import is_recorded, sees_saved_tensors
from stepnet.data.storage import distinct, no_view
from stepnet.data.windows import Copied, Standing, rows_in
from stepnet.errors import StepError
from stepnet.ir.plan import Plan
from stepnet.watchers import during

from .call import Call, KeptRows
from .direct import Direct
from .gradient_flow import carry_gradients
from .gradients import gradients
from .higher_order import (
    Moves,
    again,
    asked_again,
    differentiable,
    is_plain,
    is_run,
    of_plain_tensors,
    one_by_one,
    total,
)
from .hooks import guard_inputs, guarded_results
from .layout import Layout
from .memory import Memory, are_written, counters
from .noise import generator_of, noise_of
from .ready import Ready
from .recompute_check import checkpointed
from .replaced_memory import Moved
from .saved_tensors import as_saved
from .tables import EARLIER, into

WORTH_ASKING = 1 << 24  # multiplications that take longer than to ask whether anybody wants what they make


def run_plan(
    call: Call, x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Run a plan. Returns the rows of each y leaf, then the last value of each state."""
    tensors = (*x, *states, *weights)
    paired = call.ready.plan.paired
    if paired or any(t.is_complex() for t in tensors):
        of_pairs = [t.is_complex() for t in tensors]
        tensors = tuple(torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors)
        of_numbers = call._replace(plain=_of_pairs(call.plain, of_pairs), along=None)
        out = run_real(of_numbers, tensors, len(x), len(states))
        return [no_view(torch.view_as_complex(t)) if i in paired else t for i, t in enumerate(out)]
    return run_real(call, tensors, len(x), len(states))


def _of_pairs(plain: Callable[..., Any], of_pairs: Sequence[bool]) -> Callable[..., Any]:
    """The plain loop on pairs of real numbers in place of complex ones."""

    def run(*groups: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        told = iter(of_pairs)
        given = [[torch.view_as_complex(t) if next(told) else t for t in group] for group in groups]
        y, finals = plain(*given)
        return _as_pairs(y), _as_pairs(finals)

    return run


def _as_pairs(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]


def run_real(call: Call, tensors: Sequence[Tensor], n_x: int, n_states: int) -> list[Tensor]:
    """`run_plan`, of x, states and weights that are no complex numbers."""
    if not (is_recorded() and any(t.requires_grad for t in tensors)):
        out = forward(call, tensors)[0]
        _as_steps(call, out)
    elif call.ready.backward is None and not any(t.requires_grad for t in tensors[n_x : n_x + n_states]):
        with torch.no_grad():  # nothing gets a gradient, whatever its inputs need
            out = forward(call, tensors)[0]
            _as_steps(call, out)
    else:
        tensors = [t.clone() if t.is_inference() else t for t in tensors]  # which is never saved for backward
        tensors = _reached(call.ready, call.layout, tensors)
        out = list((_apply if call.as_it_is else _PlanCall.apply)(None, call, *tensors))
    return out


def run_direct(
    direct: Direct, call: Callable[[], Call], inputs: Sequence[Tensor], layout: Layout
) -> list[Tensor] | None:
    """`run_real` of a call like one before, by places; None: not this time. `call`: the same by names."""
    if is_computed_again():
        return None
    if direct.trains:
        return list(_apply((direct, layout), call, *_reached(direct.ready, layout, inputs)))
    found = direct.forward(inputs, layout)
    return None if found is None else found[0]


def _reached(ready: Ready, layout: Layout, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inputs, cut off where no result needs a gradient for them: their hooks are not to be called. Of
    those that are read as numbers, the numbers."""
    if numbers := ready.plan.as_numbers:
        tensors = [t.detach().clone() if k in numbers else t for k, t in enumerate(tensors)]
    n = len(tensors)
    places = ready.cut_off if layout.turns else range(n)
    for k in places:
        if k < n and tensors[k].requires_grad:
            break
    else:
        return tensors
    cut = {k for k in places if k < n and tensors[k].requires_grad}
    if cut and (0 in layout.ends or not layout.turns):  # a sequence of no steps gives its initial state
        cut.difference_update(ready.state_places)
    return [t.detach() if k in cut else t for k, t in enumerate(tensors)] if cut else tensors


def _as_steps(call: Call, out: list[Tensor], kept: Sequence[Tensor] | None = None) -> None:
    """Give y its shape with a dimension of steps: as it is, or where others see it as rows, beside it.
    `kept`: what the node of this run keeps; None where nothing is recorded."""
    if not call.steps:
        return
    for k in range(len(call.ready.plan.y)):
        rows = out[k]
        shape = *call.steps, *rows.shape[1:]
        if call.ready.owned and not any(rows is other for other in kept or ()):
            rows.resize_(shape)
        else:  # no view: torch loses hooks of one that is written to. The node hears of what is written
            out[k] = rows.reshape(shape).data if kept is None else rows.reshape(shape).detach()


def forward(call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The results of a plan, and all values that it keeps, by name."""
    ready, plan = call.ready, call.ready.plan
    _, given, _ = plan.parted(tensors)
    values, states = inputs_of(call, tensors)
    values, finals = ready.forward.run(values, states, call.layout, as_it_is=call.as_it_is)
    out = [values[name] for name in plan.y]
    for name, t in zip(plan.states, given, strict=True):
        final = finals[name]
        out.append(final if final.dtype is t.dtype else final.to(t.dtype))
    return out if ready.owned else distinct(out, tensors), values


def inputs_of(call: Call, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the forward loop reads, and the boot values of its states, by name."""
    ready, plan = call.ready, call.ready.plan
    x, boots, weights = plan.parted(tensors)
    values = dict(zip(ready.rows_and_weights, (*x, *weights), strict=False))
    if call.constants:
        values |= call.constants
    if call.noise is not None:
        values |= dict(zip(ready.forward.noise, call.noise, strict=True))
    states = {
        name: t if t.dtype is dtype else t.to(dtype)  # which takes a microsecond to find out
        for (name, dtype), t in zip(ready.carried_as.items(), boots, strict=False)
    }
    return values, states


class _Again(NamedTuple):
    """A run that backward computes again: memory that it may give y in, leaf by leaf, and for what it makes
    and lets go, by name; inputs that it may copy again, too; and where to note results that it would know."""

    places: list[Tensor | None]
    spare: dict[str, Tensor]
    copied: Sequence[Copied]
    made: list[Standing]


_again: ContextVar[_Again | None] = ContextVar("stepnet_computed_again", default=None)


def computed_again(
    places: Sequence[Tensor | None], spare: dict[str, Tensor], copied: Sequence[Copied], made: list[Standing]
) -> AbstractContextManager[None]:
    """In here, runs keep for backward what they are given and no more: it computes the rest once more.

    Args:
        places: memory that the first run may give y in, leaf by leaf.
        spare: memory for what runs make beside y, kept here from run to run.
        copied: of what tables the rows that runs are given are copies, if they are.
        made: takes results that need not be computed again, if they are there.
    """
    return during(_again, _Again([*places], spare, copied, made))


def is_computed_again() -> bool:
    """Whether this is in `computed_again`."""
    return _again.get() is not None


def is_copied(rows: Tensor) -> bool:
    """Whether backward copies these rows again."""
    again = _again.get()
    return again is not None and any(each.part is rows for each in again.copied)


def _in_places(again: _Again, ready: Ready, layout: Layout) -> AbstractContextManager[None]:
    """Let a run write where it may, what is like the rows that it makes. Places serve once."""
    found: dict[str, Tensor] = {}
    kinds = ready.plan.forward.body.values

    def put(name: str, memory: Tensor | None) -> None:
        shape, dtype = (layout.rows, *kinds[name].shape), dtype_of(kinds[name].dtype)
        size = math.prod(shape)
        if memory is None:
            memory = again.spare.get(name)
            if memory is None or memory.dtype is not dtype or memory.numel() < size:
                memory = again.spare[name] = new_table((size,), dtype)
            found[name] = memory[:size].view(shape)
        elif memory.dtype is dtype and memory.numel() == size:
            found[name] = memory.resize_(shape)

    if layout.rows and ready.owned:
        for name, place in zip(ready.plan.y, again.places, strict=False):
            if place is not None:
                put(name, place)
        for name in ready.extra:
            if kinds[name].kind == "row" and (name in ready.forward.fresh or name in ready.plan.states):
                put(name, None)
    again.places.clear()
    return during(into, found)


def plainly(
    name: str, run: Callable[[Any], Any], inputs: Any, generators: Callable[[], Sequence[torch.Generator]]
) -> Any:
    """What a run of a step gives that autograd records op by op; in `computed_again`, recorded in backward,
    with the noise that it drew from torch's generator and these.

    Raises:
        StepError: in backward: it gives other numbers then.
    """
    if _again.get() is None or not torch.is_grad_enabled():
        return run(inputs)
    before, drawn = [(each, each.get_state()) for each in generators()], False

    def with_its_noise(inputs: Any) -> Any:
        nonlocal drawn
        if not drawn:
            drawn = True
            return run(inputs)
        after = [each.get_state() for each, _ in before]
        try:
            for each, state in before:
                each.set_state(state)
            return run(inputs)
        finally:
            for (each, _), state in zip(before, after, strict=True):
                each.set_state(state)

    with during(_again, None):
        return checkpointed(f"step '{name}'", with_its_noise, inputs)


def _led(plan: Plan, values: Mapping[str, Tensor]) -> list[str]:
    """The states before whose rows their boot values lie."""
    return [name for name in plan.shifted if EARLIER + name in values]


class _PlanCall(torch.autograd.Function):
    @staticmethod
    @not_followed
    def forward(  # pyright: ignore
        ctx: Any, by_places: tuple[Direct, Layout] | None, call: Any, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """`call`: a Call; with `by_places`, what makes one."""
        direct, layout = by_places or (None, None)
        found = None if direct is None or layout is None else direct.forward(tensors, layout)
        ctx.by_places, ctx.call, ctx.later, ctx.copied = None if found is None else by_places, call, {}, {}
        ctx.stands, ctx.ran = {}, -1
        ctx.set_materialize_grads(False)
        if direct is None or found is None:
            return _forward(ctx, call if direct is None else call(), tensors)
        out, kept = found
        _save(ctx, direct.ready, tensors, kept)
        if direct.still:
            ctx.mark_non_differentiable(*[out[k] for k in direct.still])
        return tuple(out)

    @staticmethod
    @not_followed
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        end_compiled_backward()
        by_places, needed = ctx.by_places, ctx.needs_input_grad[2:]
        ready: Ready = (ctx.call if by_places is None else by_places[0]).ready
        if ready.plan.own_backward:
            _check_own_backward(ctx.call)
        saved = as_saved(ctx, ready)
        ctx.ran = torch._C._current_graph_task_id()
        later = ctx.later.pop(ctx.ran, ()) if ctx.later else ()
        inputs, saved, moved = ctx.memory.found(saved, torch.is_grad_enabled())
        if moved:
            run = _of_moved(ctx, saved, inputs, grads, needed, moved)
            if torch.is_grad_enabled():
                found, saved = None, [*run.as_they_were(), *saved[len(needed) :]]
            else:
                found = run.by_saved_leaves()
            if found is not None:
                guard_inputs(ctx, inputs, found, needed)
                return (None, None, *found)
        again, by_address, by_names = are_written(ctx.results), None, None
        if by_places is not None:
            direct, layout = by_places
            once = not later and not torch.is_grad_enabled() and not again
            asked = needed
            if layout.rows * direct.widest >= WORTH_ASKING:
                asked = _asked_for(ctx, direct.ready, layout, saved[: len(needed)], needed)
            found = direct.gradients(saved, grads, asked, layout) if once else None
            if found is not None:
                guard_inputs(ctx, inputs, found, needed)
                return (None, None, *found)
            if not (later or again):
                by_names = partial(direct.by_names, saved, layout)
                if not once:
                    by_address = partial(direct.gradients, saved, layout=layout)
            if not isinstance(ctx.call, Call):
                _note(ctx, ctx.call(), [], len(needed))
        if again:
            saved = saved[: len(needed)]
        found = _backward(ctx, saved, grads, needed, later, by_address, by_names)
        guard_inputs(ctx, inputs, found, needed)
        return (None, None, *found)


def _check_own_backward(made: Call | Callable[[], Call]) -> None:
    call = made if isinstance(made, Call) else made()
    if call.same_backward is not None:
        call.same_backward()


guarded_results(_PlanCall)


def _note(ctx: Any, call: Call, led: list[str], count: int) -> None:
    """Note what backward is to know of a run by names."""
    ctx.call, ctx.led, ctx.count = call, led, count


def _save(ctx: Any, ready: Ready, tensors: Sequence[Tensor], kept: Sequence[Tensor] | None) -> None:
    """Save what backward reads. `kept`: besides the inputs; None: it computes all again."""
    rows = ready.state_places.stop
    of = ((), (), ()) if kept is None else (ready.unread, ready.inert, ready.read_results)
    unread, inert, read = of
    kept, n = kept or (), len(ready.plan.y)
    ctx.results = counters(kept, read)
    Memory.of(tensors, rows, unread, inert).save(ctx, tensors, [*[t.data for t in kept[:n]], *kept[n:]])


def _written(*_: Any) -> Any:
    raise StepError(
        "a gradient computes the recurrence again, but a weight or x was written to after it ran",
        remedy="call backward first",
    )


def _forward(ctx: Any, call: Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    plan = call.ready.plan
    if plan.random and call.noise is None:
        device = tensors[0].device
        call = call._replace(before=(device, generator_of(device).get_state()))
    lone = _again.get()
    with nullcontext() if lone is None else _in_places(lone, call.ready, call.layout):
        out, values = forward(call, tensors)
    extra = [values[name] for name in call.ready.extra]
    _as_steps(call, out, extra)
    _note(ctx, call, _led(plan, values), len(tensors))
    if lone is None:
        _save(ctx, call.ready, tensors, (*out[: len(plan.y)], *extra))
    else:
        copied = {id(each.part): each for each in lone.copied}
        of = [copied.get(id(t)) for t in tensors]
        ctx.copied = {k: each.place for k, each in enumerate(of) if each is not None}
        if call.ready.knows(call.layout):
            ctx.stands = {name: Standing(out[k]) for name, k in call.ready.known.items()}
            lone.made.extend(ctx.stands.values())
        tables = [t if each is None else each.table for t, each in zip(tensors, of, strict=True)]
        _save(ctx, call.ready, tables, None)
    carry = carry_gradients(plan, call.layout, ctx.needs_input_grad[2:])
    if not all(carry):
        ctx.mark_non_differentiable(*(t for t, carries in zip(out, carry, strict=True) if not carries))
    return tuple(out)


def _of_moved(
    ctx: Any, were: Sequence[Tensor], now: Sequence[Tensor], grads: Sequence[Tensor | None],
    needed: Sequence[bool], places: Sequence[int],
) -> Moved:  # fmt: skip
    """A run whose inputs at these places are in other memory by now."""
    call = ctx.call if isinstance(ctx.call, Call) else ctx.call()
    n, n_y = len(needed), len(call.ready.plan.y)
    were = [rows_in(t, 0, ctx.copied[k]) if k in ctx.copied else t for k, t in enumerate(were[:n])]
    if call.steps:
        grads = (*(g if g is None else _rows(g) for g in grads[:n_y]), *grads[n_y:])
    return Moved(call, were, now[:n], grads, needed, places)


def _backward(
    ctx: Any, saved: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    later: Sequence[Moves], by_address: Callable[..., list[Tensor | None] | None] | None,
    by_names: Callable[[], Sequence[Tensor]] | None,
) -> Sequence[Tensor | None]:  # fmt: skip
    """What `_PlanCall.backward` gives, of a run by names.

    Args:
        ctx, saved, grads, needed: of the node.
        later: see `higher_order.Node`; then nothing is read of what is kept.
        by_address: of what comes in and which are needed, the gradients or None; they may be differentiated
            again.
        by_names: what is saved, as runs by names save it; None: it is so.
    """
    call: Call = ctx.call
    if ctx.memory.written:
        call = call._replace(plain=_written)
    tensors = saved[: ctx.count]
    if ctx.copied:
        tensors = [rows_in(t, 0, ctx.copied[k]) if k in ctx.copied else t for k, t in enumerate(tensors)]
    needed = _asked_for(ctx, call.ready, call.layout, tensors, needed)
    plain = all(map(is_plain, grads))
    only_once = plain and not later and not torch.is_grad_enabled()
    n_y, as_rows = len(call.ready.plan.y), False
    if call.steps and not (only_once and call.ready.takes_steps(call.layout)):
        as_rows = True
        grads = (*(g if g is None else _rows(g) for g in grads[:n_y]), *grads[n_y:])
    if later:
        with of_plain_tensors():
            parts = [moves.gradients(needed) for moves in later[1:]]
            parts.append(later[0].gradients(needed, grads if plain else ()))
        if not plain:
            parts.append(again(call, tensors, grads, needed))
        return [*map(total, zip(*parts, strict=True))]

    def kept() -> Sequence[Tensor]:
        found = (saved if by_names is None else by_names())[ctx.count :]
        return (*map(_rows, found[:n_y]), *found[n_y:]) if as_rows else found

    def once(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        def first() -> list[Tensor | None]:
            found = None if by_address is None else by_address(grads, tuple(needed))
            if found is not None:
                return found
            found = _gradients(ctx, tensors, kept(), grads, needed)
            return asked_again(call, found, tensors, grads, needed)

        with of_plain_tensors():
            if torch.is_grad_enabled():
                # of few rows nobody reads it, and hooks would be given it once more
                unread = call.ready.is_few(call.layout) or sees_saved_tensors()
                rows = KeptRows() if unread else KeptRows(kept(), ctx.results, ctx.led)
                return differentiable(call, first, tensors, grads, needed, ctx, rows)
            return first()

    many = None if plain else one_by_one(once, grads)
    if many is None:
        many = once(grads) if plain else again(call, tensors, grads, needed)
    return many


# Without a look for transforms of torch, which are not around what is as it is.
_apply: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _PlanCall).apply  # pyright: ignore


def _rows(tensor: Tensor) -> Tensor:
    """The steps of all sequences as rows."""
    return tensor.reshape(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])


def _gradients(
    ctx: Any, tensors: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    call: Call = ctx.call
    led = ctx.led
    if not kept:
        if ctx.memory.written:
            _written()
        kept, led = _made_again(ctx, call._replace(noise=noise_of(call), as_it_is=False), tensors)
    return gradients(call, tensors, kept, grads, needed, led)


def _made_again(ctx: Any, call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[str]]:
    """The rows of y and what a run keeps, computed from its inputs, and from those of y that are there."""
    plan, extra = call.ready.plan, call.ready.extra
    stands: dict[str, Standing] = ctx.stands
    rows = {name: found for name, each in stands.items() if (found := each.rows()) is not None}
    if rows and len(rows) == len(stands) and call.ready.again is not None:
        values, states = inputs_of(call, tensors)
        kinds = plan.forward.body.values
        rows = {name: found.view(call.layout.rows, *kinds[name].shape) for name, found in rows.items()}
        values, _ = call.ready.again.run(values | rows, states, call.layout)
        return [rows[name] if name in rows else values[name] for name in (*plan.y, *extra)], []
    out, values = forward(call, tensors)
    return [*out[: len(plan.y)], *(values[name] for name in extra)], _led(plan, values)


def _asked_for(
    ctx: Any, ready: Ready, layout: Layout, tensors: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[bool]:
    """Which gradients this backward is to give: `autograd.grad(y, x)` leaves those of the weights to nobody.
    It takes up to 30 microseconds for each to find out, so it is only asked where products take longer."""
    rows = layout.rows
    if ready.is_few(layout) or rows * max(map(Tensor.numel, tensors)) < WORTH_ASKING:
        return needed
    return tuple(
        need and (rows * tensor.numel() < WORTH_ASKING or is_run(edge[0], True))
        for need, tensor, edge in zip(needed, tensors, ctx.next_functions, strict=True)
    )
