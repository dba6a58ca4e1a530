"""A compiled loop inside torch.func's transforms.

Each transform calls what is below it with its own wrappers taken off, and at the bottom the plan runs on
plain tensors. What a node keeps for its gradient is among its results, so that transforms see it. Derivatives
along directions, and those of gradients, are runs of the loop's derivative, which is a plan, too; so they
have all derivatives again. A batch of calls is a call with more sequences; where each has weights of its own,
one of the step of them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stepnet.data.in_graph import end_compiled_backward, not_followed
from stepnet.data.modes import (
    as_one_node,
    autocast_dtype,
    has_tangent,
    needs_gradient,
    nothing_around,
    transforms,
)
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import StepError, Unsupported

from . import batched, gradient_flow, transformed_plainly
from .autograd import forward, is_computed_again
from .call import Call
from .direct import Lately
from .gradients import gradients, has_gradient
from .higher_order import again, asked_again, at_places, is_plain, second_by_plain_loop, total
from .nodes import applied, one_level_down
from .ready import Ready
from .saved_tensors import as_saved, save

NEAR = 1 << 24  # bytes of weights, a copy for each call: with more, copies cost more than calls (measured)
LARGE = 1 << 22  # multiplications of a call, which then take longer in products of all at once (measured)


class Further(Protocol):
    """What gives the loop of a derivative."""

    def __call__(self, moves: Sequence[bool], *, forward_mode: bool) -> Derivative:
        """That along directions of some inputs (x, states, weights). `forward_mode`: as forward mode has it,
        which goes through what no gradient does. Raises Unsupported where no plan runs it."""
        ...

    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> Sequence[bool]:
        """Which gradients can be differentiated again; see `twice.Along`."""
        ...

    def times(self, k: int) -> Further:
        """The same for k times as many sequences."""
        ...

    def members(self, k: int) -> tuple[Run, Sequence[int | Tensor]]:
        """The run of k calls, each with weights of its own: what has rows has the calls as second dimension,
        weights have them as first one. And what it takes: places among the inputs, or constants. Raises
        Unsupported where no plan runs it."""
        ...


@dataclass(frozen=True, eq=False)
class _Asked:
    """What a gradient is asked of: a run, and how many inputs it has.

    Attributes:
        needed: which of them get a gradient.
        given: for each result, whether something comes in for it.
    """

    run: Run
    count: int
    needed: tuple[bool, ...]
    given: tuple[bool, ...]

    @cached_property
    def has(self) -> list[bool]:
        """Which inputs get one of these results."""
        return has_gradient(self.run.call, self.given, self.needed)

    def by_input(self, inputs: Sequence[Any], gradients: Sequence[Tensor]) -> dict[Any, Tensor]:
        """The gradients that there are, by what the inputs are."""
        return dict(zip((i for i, one in zip(inputs, self.has, strict=True) if one), gradients, strict=True))


@dataclass(frozen=True, eq=False)
class Run:
    """A call, and what gives its derivatives. No tuple: torch.func looks into those, and would take the
    constants of the plan for its own."""

    call: Call
    further: Callable[[], Further]  # made where it is asked for
    still: list[int] = field(default_factory=list)  # the results that got zeros for no tangent
    of_members: dict[int, AllMembers | None] = field(default_factory=dict)

    def times(self, k: int) -> Run:
        """The call with k times as many sequences, on rows one call after the other."""
        call = self.call

        def plain(x: Sequence[Tensor], states: Sequence[Tensor], *weights: Any) -> Any:
            parts = [batched.split(t, k).unbind(0) for t in (*x, *states)]
            runs = [call.plain(each[: len(x)], each[len(x) :], *weights) for each in zip(*parts, strict=True)]
            y, finals = zip(*runs, strict=True)
            return [[torch.cat(of) for of in zip(*each, strict=True)] for each in (y, finals)]

        wide = call._replace(layout=call.layout.times(k), plain=plain)
        return Run(wide, cache(lambda: self.further().times(k)))

    def members(self, k: int) -> AllMembers | None:
        """The run of k calls with weights of their own; None: each is run alone."""
        plan = self.call.ready.plan
        shapes = (plan.forward.body.values[name].shape for name in plan.weights)
        if self.call.layout.rows * sum(map(math.prod, shapes)) >= LARGE:
            return None
        if k not in self.of_members:
            try:
                self.of_members[k] = AllMembers(*self.further().members(k))
            except Unsupported:
                self.of_members[k] = None
        return self.of_members[k]


class AllMembers(NamedTuple):
    """The run of calls with weights of their own, and what it takes; see `Further.members`."""

    run: Run
    inputs: Sequence[int | Tensor]

    def taken(self, wide: Sequence[Tensor]) -> list[Tensor]:
        """What it takes, of the inputs of all calls."""
        return [wide[i] if isinstance(i, int) else i for i in self.inputs]


class Derivative(NamedTuple):
    """The loop of a derivative.

    Attributes:
        run: its run.
        inputs: what it takes: places among the inputs of the first loop and their directions, or constants.
        results: of what it gives, the derivative of each result of the first loop; None for what has none.
    """

    run: Run
    inputs: Sequence[int | Tensor]
    results: Callable[[Sequence[Tensor]], list[Tensor | None]]


def run_transformed(
    run: Run, x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Run a plan. Returns the rows of each y leaf, then the last value of each state."""
    # a leaf by a name of its own: it may get other memory before what is made here is called
    tensors = [t.view_as(t) if t.is_leaf else t for t in (*x, *states, *weights)]
    plan = run.call.ready.plan
    out: Any = applied(_PlanCall, run, *tensors)
    out = [*out[: len(plan.y) + len(states)]]
    if any(map(needs_gradient, tensors)):
        # backward has its own: these may be written to
        out = [*(t.clone() for t in out[: len(plan.y)]), *out[len(plan.y) :]]
    inside = bool(transforms())
    if not inside:
        for k in run.still:  # a Function has a tangent for all that differs
            out[k] = forward_ad.unpack_dual(out[k]).primal.clone()
    if inside and forward_ad._current_level >= 0:  # .detach() drops tangents, which go where no gradient does
        return out
    carry = gradient_flow.carry_gradients(plan, run.call.layout, [needs_gradient(t) for t in tensors])
    if inside:  # which leave what needs a gradient around them needing one
        return [t if carries else t.detach() for t, carries in zip(out, carry, strict=True)]
    return [t if carries else _without_gradient(t) for t, carries in zip(out, carry, strict=True)]


def _without_gradient(tensor: Tensor) -> Tensor:
    """A result through which no gradient flows, with its tangent at a level of autograd's own: what marks the
    one in a Function drops the other."""
    if not tensor.requires_grad:
        return tensor
    parts = forward_ad.unpack_dual(tensor)
    if parts.tangent is None:
        return tensor.detach()
    return forward_ad.make_dual(parts.primal.detach(), parts.tangent.detach())


class _PlanCall(torch.autograd.Function):
    @staticmethod
    @not_followed
    def forward(run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
            out, values = forward(run.call, _in_memory(tensors))
            return (*out, *(values[name].detach() for name in run.call.ready.extra))

        def recurrence(*tensors: Tensor) -> tuple[Tensor, ...]:
            return applied(_PlanCall, run, *tensors)  # pyright: ignore[reportReturnType]

        return as_one_node(compute, recurrence, tensors)

    @staticmethod
    @not_followed
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        run, *tensors = inputs
        call, plan = run.call, run.call.ready.plan
        results = output[: len(plan.y) + len(plan.states)]
        ctx.run, ctx.count, ctx.kept = run, len(tensors), len(output) - len(results)
        ctx.set_materialize_grads(False)
        save(ctx, (*tensors, *output[: len(plan.y)], *output[len(results) :]))
        ctx.save_for_forward(*tensors)
        if _in_forward_mode(tensors):  # which goes where no gradient flows
            carry = tuple(t.is_floating_point() for t in results)
        else:
            carry = gradient_flow.carry_gradients(plan, call.layout, ctx.needs_input_grad[1:])
        ctx.carry = carry
        still = (t for t, carries in zip(results, carry, strict=True) if not carries)
        ctx.mark_non_differentiable(*still, *output[len(results) :])

    @staticmethod
    @not_followed
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        end_compiled_backward()
        call = ctx.run.call
        needed = tuple(ctx.needs_input_grad[1:])
        plan = call.ready.plan
        grads = grads[: len(plan.y) + len(plan.states)]
        saved = as_saved(ctx, call.ready)
        if _of_no_transform(grads):
            return (None, *again(call, saved[: ctx.count], grads, needed))
        asked = _Asked(ctx.run, ctx.count, needed, tuple(grad is not None for grad in grads))
        parts: Any = ()
        if any(asked.has):
            parts = applied(_Gradient, asked, *saved, *(g for g in grads if g is not None))
        return (None, *at_places(parts, asked.has))

    @staticmethod
    @one_level_down
    @not_followed
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        run: Run = ctx.run
        moved = _along(run, as_saved(ctx, run.call.ready)[: ctx.count], tangents)
        moved = [m if carries else None for m, carries in zip(moved, ctx.carry, strict=True)]
        return (*moved, *(None,) * ctx.kept)

    @staticmethod
    @not_followed
    def vmap(info: Any, in_dims: Any, run: Run, *tensors: Tensor) -> Any:  # pyright: ignore
        ready, plan, k = run.call.ready, run.call.ready.plan, info.batch_size
        if k == 0:
            return batched.of_none(_PlanCall, in_dims[1:], (run,), tensors)
        kinds = _kinds(run, len(tensors))
        if batched.of_members(kinds, in_dims[1:]):
            if ready.backward is None:  # nothing is kept: copies of x cost more than calls
                each = each_by_places(run.call, k, in_dims[1:], tensors)
                if each is not None:
                    return each
            members = None if ready.backward is None else run.members(k)
            if members is None:
                return batched.one_by_one(partial(applied, _PlanCall, run), k, in_dims[1:], tensors)
            wide = [
                batched.beside(t, d, k, kind) for t, d, kind in zip(tensors, in_dims[1:], kinds, strict=True)
            ]
            out = applied(_PlanCall, members.run, *members.taken(wide))
            n = len(plan.y) + len(plan.states)
            return out, (*(1,) * n, *(None,) * (len(out) - n))
        wide = [batched.wide(t, d, k, kind) for t, d, kind in zip(tensors, in_dims[1:], kinds, strict=True)]
        out = applied(_PlanCall, run.times(k), *wide)
        n = len(plan.y) + len(plan.states)
        if "Vmap" in transforms():  # what members of a batch around this one keep is no table of this run
            out = out[:n]
        return batched.narrow(out, k, (["row"] * n + _of_extra(ready))[: len(out)])


class _Gradient(torch.autograd.Function):
    """The gradients that there are, of (tensors, what was kept, gradients of results)."""

    @staticmethod
    @not_followed
    def forward(asked: _Asked, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
            call, ready, needed = asked.run.call, asked.run.call.ready, asked.needed
            inputs, kept, grads = _Gradient._parts(asked, _in_memory(tensors))
            if len(kept) < len(ready.plan.y) + len(ready.extra):  # a batch around others kept nothing
                values = forward(call, inputs)[1]
                kept = [*kept, *(values[name].detach() for name in ready.extra)]
            found = asked_again(call, gradients(call, inputs, kept, grads, needed), inputs, grads, needed)
            return tuple(g for g in found if g is not None)

        def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
            return applied(_Gradient, asked, *tensors)  # pyright: ignore[reportReturnType]

        return as_one_node(compute, gradient, tensors)

    @staticmethod
    @not_followed
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        asked, *tensors = inputs
        ctx.asked = asked
        ctx.set_materialize_grads(False)
        save(ctx, tensors)
        ctx.save_for_forward(*tensors)
        moves = ctx.needs_input_grad[1:]
        if any(moves) and not _in_forward_mode(tensors):
            own, _, after = _Gradient._parts(asked, moves)
            call, how = asked.run.call, (asked.given, asked.needed, [*own, *map(bool, after)])
            history = call.ready.histories.get(call.ready.history_key(call.layout, *how))
            try:  # what gives derivatives walks the step anew
                history = asked.run.further().has_history(*how) if history is None else history
            except StepError:  # the step is another by now, which whoever differentiates this is told
                return
            found = [one for one, is_there in zip(history, asked.has, strict=True) if is_there]
            ctx.mark_non_differentiable(*(g for g, one in zip(output, found, strict=True) if not one))

    @staticmethod
    @not_followed
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        end_compiled_backward()
        asked: _Asked = ctx.asked
        run, n = asked.run, asked.count
        tensors, kept, grads = _Gradient._parts(asked, as_saved(ctx, run.call.ready))
        along = at_places(directions, asked.has)
        own, _, more = _Gradient._parts(asked, ctx.needs_input_grad[1:])
        wanted = [*own, *map(bool, more)]
        try:
            if _of_no_transform(along):
                raise Unsupported("autograd's own batches and tangents")
            found, moved = _second(run, tensors, grads, along, own, forward_mode=False)
            of_grads = [m if want else None for m, want in zip(moved, wanted[n:], strict=True)]
        except Unsupported:
            how = run.call, tensors, grads, asked.needed, along, wanted
            both = second_by_plain_loop(*how) if _of_no_transform(along) else transformed_plainly.second(*how)
            found, of_grads = both[:n], both[n:]
        last = [m for m, g in zip(of_grads, asked.given, strict=True) if g]
        return (None, *found, *(None,) * len(kept), *last)

    @staticmethod
    @one_level_down
    @not_followed
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """Of what came in they are linear; along inputs, the second derivative."""
        asked: _Asked = ctx.asked
        run, has = asked.run, asked.has
        tensors, kept, grads = _Gradient._parts(asked, as_saved(ctx, run.call.ready))
        along, _, of_grads = _Gradient._parts(asked, tangents[1:])
        parts: list[Sequence[Tensor | None]] = []
        if any(w is not None for w in of_grads):
            own = [
                torch.zeros_like(g) if w is None else w
                for g, w in zip(grads, of_grads, strict=True)
                if g is not None
            ]
            linear: Any = applied(_Gradient, asked, *tensors, *kept, *own)
            parts.append(at_places(linear, has))
        if any(v is not None for v in along):
            try:
                parts.append(_second(run, tensors, grads, along, has, forward_mode=True)[0])
            except Unsupported:
                parts.append(transformed_plainly.moved_gradient(run.call, tensors, grads, has, along))
        sums = [total(part[i] for part in parts) for i in range(asked.count)]
        both = zip(sums, tensors, has, strict=True)
        return tuple(torch.zeros_like(t) if term is None else term for term, t, one in both if one)

    @staticmethod
    @not_followed
    def _parts(asked: _Asked, of: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], list[Any]]:
        """What there is for the inputs, for what the run kept, and for each result; None for one that nothing
        comes in for."""
        n = len(of) - sum(asked.given)
        return of[: asked.count], of[asked.count : n], at_places(of[n:], asked.given)

    @staticmethod
    @not_followed
    def vmap(info: Any, in_dims: Any, asked: _Asked, *tensors: Tensor) -> Any:  # pyright: ignore
        run, count, given = asked.run, asked.count, asked.given
        ready, k, plan = run.call.ready, info.batch_size, run.call.ready.plan
        if k == 0:
            return batched.of_none(_Gradient, in_dims[1:], (asked,), tensors)
        dims, inputs, n_y = in_dims[1:], _kinds(run, count), len(plan.y)
        places = [i for i, one in enumerate(asked.has) if one]
        own = [inputs[i] for i in places]
        first, last = count + n_y, len(tensors) - sum(given)  # between them is what the run kept
        of_members = batched.of_members(inputs, dims[:count])
        if of_members or "shared" in own:
            near = of_members or k * _bytes(tensors[:count], inputs) <= NEAR
            members = run.members(k) if near else None
            if members is None:
                return batched.one_by_one(partial(applied, _Gradient, asked), k, dims, tensors)
            rows = zip(tensors[:count], dims, inputs, strict=False)
            wide = [batched.beside(t, d, k, kind) for t, d, kind in rows]
            taken = members.taken(wide)
            if of_members and last - first == len(members.run.call.ready.extra):
                y = [
                    batched.beside(t, d, k, "row")
                    for t, d in zip(tensors[count:first], dims[count:], strict=False)
                ]
                kept = tensors[first:last]
            else:  # what ran was a call with more sequences, or a batch around it kept nothing
                out = applied(_PlanCall, members.run, *taken)
                y, kept = out[:n_y], out[n_y + len(plan.states) :]
            grads = [batched.beside(t, d, k, "row") for t, d in zip(tensors[last:], dims[last:], strict=True)]
            needed = tuple(isinstance(i, int) and asked.needed[i] for i in members.inputs)
            of_all = _Asked(members.run, len(taken), needed, given)
            parts: Any = applied(_Gradient, of_all, *taken, *y, *kept, *grads)
            found = of_all.by_input(members.inputs, parts)
            out = tuple(found[i] if i in found else torch.zeros_like(wide[i]) for i in places)
            return out, tuple(0 if kind == "shared" else 1 for kind in own)
        kinds = [*inputs, *["row"] * n_y, *_of_extra(ready), *["row"] * sum(given)]
        if "Vmap" in transforms() or first == last:  # see `_PlanCall.vmap`
            tensors, dims = (*tensors[:first], *tensors[last:]), (*dims[:first], *dims[last:])
            kinds = [*kinds[:first], *["row"] * sum(given)]
        wide = [batched.wide(t, d, k, kind) for t, d, kind in zip(tensors, dims, kinds, strict=True)]
        return batched.narrow(applied(_Gradient, replace(asked, run=run.times(k)), *wide), k, own)


def _bytes(tensors: Sequence[Tensor], kinds: Sequence[str]) -> int:
    """Of what is shared."""
    shared = (t for t, kind in zip(tensors, kinds, strict=True) if kind == "shared")
    return sum(t.numel() * t.dtype.itemsize for t in shared)


def _of_no_transform(grads: Sequence[Tensor | None]) -> bool:
    """Whether these are many gradients at once, or have tangents, by what autograd has for that: it knows no
    rules but those of torch's operators."""
    return not transforms() and not all(map(is_plain, grads))


def _in_forward_mode(tensors: Sequence[Tensor]) -> bool:
    """Whether directions of these are carried along, by a transform or by a level of autograd's own, which
    `torch.func.linearize` opens inside of transforms."""
    return transforms()[-1:] == ["Jvp"] or _of_no_transform(tensors) or any(map(has_tangent, tensors))


def each_by_places(
    call: Call, k: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]] | None:
    """What k runs give that keep nothing, one after the other by places; None: it is to go by names."""
    odd = call.constants or autocast_dtype("cpu") is not None
    if odd or not nothing_around() or not all(t.is_cpu and not t.is_neg() for t in tensors):
        return None
    whole = _in_memory([t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)])
    parts = [[t] * k if d is None else t.unbind(0) for t, d in zip(whole, in_dims, strict=True)]
    runs = [*zip(*parts, strict=True)]
    lately = call.ready.lately or [Lately()]
    call.ready.lately[:] = lately
    direct = lately[0].direct(call.ready, call.layout, runs[0], (), trains=False, needs=())
    out = None if direct is None or is_computed_again() else direct.each(runs, call.layout)
    return None if out is None else (tuple(out), (0,) * len(out))


def _in_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What generated code may read; zeros that torch only notes have no memory."""
    return [t.clone() if t._is_zerotensor() else contiguous(t.detach()) for t in tensors]


def _derivative(
    run: Run, tensors: Sequence[Tensor], directions: Sequence[Tensor | None], *, forward_mode: bool
) -> tuple[Derivative, list[Tensor]]:
    """The loop of a derivative, and what it takes.

    Raises:
        Unsupported: no plan runs it.
    """
    of = run.further()([v is not None for v in directions], forward_mode=forward_mode)
    given: Any = (*tensors, *directions)
    return of, [given[i] if isinstance(i, int) else i for i in of.inputs]


def _second(
    run: Run, tensors: Sequence[Tensor], grads: Sequence[Tensor | None],
    directions: Sequence[Tensor | None], wanted: Sequence[bool], *, forward_mode: bool,
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The derivative of the gradient along directions: for `<grads, F' v>`, its gradient of each wanted
    tensor; and `F' v`, the derivative of each result.

    Raises:
        Unsupported: no plan runs it.
    """
    of, inputs = _derivative(run, tensors, directions, forward_mode=forward_mode)
    plan = of.run.call.ready.plan
    out: Any = applied(_PlanCall, of.run, *inputs)
    n_y, n = len(plan.y), len(plan.y) + len(plan.states)
    moved = of.results(out[:n])
    seeds = {id(m): g for m, g in zip(moved, grads, strict=True) if m is not None and g is not None}
    given = tuple(id(t) in seeds for t in out[:n])
    needed = tuple(isinstance(i, int) and i < len(tensors) and wanted[i] for i in of.inputs)
    asked, parts = _Asked(of.run, len(inputs), needed, given), ()
    if any(asked.has):
        own = [seeds[id(t)] for t in out[:n] if id(t) in seeds]
        parts: Any = applied(_Gradient, asked, *inputs, *out[:n_y], *out[n:], *own)
    found = asked.by_input(of.inputs, parts)
    return [found.get(i) for i in range(len(tensors))], moved


def _along(
    run: Run, tensors: Sequence[Tensor], directions: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """The derivative of each result along directions; notes which get none."""
    call, moving = run.call, [v is not None for v in directions]
    ready, recorded = call.ready, torch.is_grad_enabled() or bool(transforms())
    like = ready.history_key(call.layout, moving, (), ())
    # without gradients the step was recorded without what autograd leads to
    moves = gradient_flow.moved(ready.plan, call.layout, moving) if recorded else ready.histories.get(like)
    try:
        of, inputs = _derivative(run, tensors, directions, forward_mode=True)
    except Unsupported:
        moves = None
    else:
        if moves is not None:
            run.still[:] = [k for k, each in enumerate(moves) if not each]
            return of.results(run_transformed(of.run, *of.run.call.ready.plan.parted(inputs)))
    moved = transformed_plainly.along(call, tensors, directions, run.still)
    if not recorded:
        ready.histories[like] = tuple(k not in run.still for k in range(len(moved)))
    return moved


def _kinds(run: Run, count: int) -> list[str]:
    """For each input whether it has rows (of steps, or of sequences), or is shared by them."""
    rows = run.call.ready.state_places.stop
    return ["row"] * rows + ["shared"] * (count - rows)


def _of_extra(ready: Ready) -> list[str]:
    """The same for each kept value."""
    values = ready.plan.forward.body.values
    return ["shared" if values[name].kind == "shared" else "row" for name in ready.extra]
