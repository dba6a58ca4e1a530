"""The gradients of the inputs of a plan, by its backward loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from stepnet.data.storage import distinct
from stepnet.ir.plan import Plan

from .call import Call
from .gradient_flow import reached
from .layout import Layout
from .loop import in_memory, last, shift
from .ready import Asked, Ready, Sources
from .tables import as_table, earlier

_NONE: Mapping[str, Tensor] = MappingProxyType({})


def gradients(
    call: Call, tensors: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None],
    needed: Sequence[bool], led: Sequence[str] = (), known: Mapping[str, Tensor] = _NONE,
) -> list[Tensor | None]:  # fmt: skip
    """The gradient of each tensor, by the plan. `kept`: the rows of y, then the plan's `extra`. `led`: the
    states before whose rows their boot values lie. `known`: rows of states that are at hand one step earlier,
    by name."""
    ready, layout = call.ready, call.layout
    plan = ready.plan
    values, states = _read(call, (*tensors, *kept), ready.sources(len(tensors)), grads, led, known)
    done, finals = {}, {}
    has, wanted = asked_of(ready, layout, tuple([grad is not None for grad in grads]), tuple(needed))
    if ready.backward is not None:  # else initial states alone get one, of sequences of no steps
        done, finals = ready.backward.run(values, states, layout.backward, wanted)
    out: list[Tensor | None] = []
    own, loose = set[str](), dict[int, Tensor]()  # made for them once; to be held against others
    for k, name in enumerate(plan.gradients):
        if not has[k]:
            out.append(None)
        elif k in ready.state_places:
            place = k - len(plan.x)
            of_final = grads[len(plan.y) + place]
            loose[k] = _state_gradient(plan, place, done, finals, layout, tensors[k], of_final)
            out.append(loose[k])
        else:
            assert name is not None
            gradient, shape = done[name], tensors[k].shape
            if name in ready.own_gradients and gradient.shape == shape:
                out.append(gradient.clone() if name in own else gradient)
                own.add(name)
            else:  # a view would be copied below
                loose[k] = gradient if gradient.shape == shape else gradient.reshape(shape)
                out.append(loose[k])
    if loose:
        others = (g for k, g in enumerate(out) if g is not None and k not in loose)
        taken = (*tensors, *kept, *(g for g in grads if g is not None), *others)
        for k, gradient in zip(loose, distinct([*loose.values()], taken), strict=True):
            out[k] = gradient
    return out + [None] * (len(tensors) - len(out))


def _read(
    call: Call, at_hand: Sequence[Tensor], sources: Sources, grads: Sequence[Tensor | None],
    led: Sequence[str], known: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    """What the backward loop reads by name, and its initial states."""
    ready, layout = call.ready, call.layout
    values = {name: at_hand[k] for name, k in sources.values} | call.constants
    for name, dtype in sources.held:
        if values[name].dtype is not dtype:  # the caller's has fewer bits
            values[name] = values[name].to(dtype)
    states = {}
    moved = ready.backward.moved if ready.backward is not None and ready.is_few(layout) else ()
    for name, k, of in sources.shifted:
        rows, boot = in_memory(name, at_hand[k]), in_memory(name, at_hand[of])
        if name in moved and rows.dtype is boot.dtype:
            values[name], states[name] = rows, boot
            continue
        if name in known:
            values[name] = known[name]
            continue
        rows = rows.reshape(layout.rows, *boot.shape[1:])
        before = earlier(rows, layout.stride) if name in led else None
        values[name] = shift(rows, boot, layout) if before is None else before
    for name, k, like, dtype in sources.tangents:
        grad = grads[k]
        tangent = torch.zeros_like(at_hand[like]) if grad is None else as_table(grad)
        if dtype is None:
            values[name] = tangent
        else:
            states[name] = tangent if tangent.dtype is dtype else tangent.to(dtype)
    return values, states


def asked_of(ready: Ready, layout: Layout, given: tuple[bool, ...], needed: tuple[bool, ...]) -> Asked:
    """What a backward asks for, by which results something comes in for and which inputs need a gradient."""
    asked = ready.asked
    kind = layout.turns, layout.ends, given, needed
    if kind not in asked:
        has = _has_gradient(ready, layout, given, needed)
        some = None if all(has) else {n for n, h in zip(ready.plan.gradients, has, strict=False) if h and n}
        asked[kind] = Asked(has, None if some is None else frozenset(some))
    return asked[kind]


def has_gradient(call: Call, given: Sequence[bool], needed: Sequence[bool]) -> list[bool]:
    """For each input (x, states, weights), whether it gets a gradient of the results that are given one."""
    return _has_gradient(call.ready, call.layout, given, needed)


def _has_gradient(ready: Ready, layout: Layout, given: Sequence[bool], needed: Sequence[bool]) -> list[bool]:
    plan = ready.plan
    got = reached(plan, layout, given)
    has = [
        needed[k] and got[k] and (k in ready.state_places or name is not None)
        for k, name in enumerate(plan.gradients)
    ]
    return has + [False] * (len(needed) - len(has))


def _state_gradient(
    plan: Plan, place: int, done: dict[str, Tensor], finals: dict[str, Tensor], layout: Layout,
    like: Tensor, of_final: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of a boot state: what the backward loop carries past the first step; or, where the step
    cuts the gradient between steps, what the first step alone gives. Of one that no step changes: the sum of
    what all steps give, and what comes in."""
    tangent = plan.tangents[len(plan.y) + place]
    if plan.forward.body.values[plan.states[place]].kind == "sequence":
        own = plan.gradients[len(plan.x) + place]
        parts = [part for part in (of_final, None if own is None else done[own]) if part is not None]
        return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)
    if tangent is not None:
        return finals[tangent].to(like.dtype)
    passed = torch.zeros_like(like) if of_final is None else of_final
    name = plan.gradients[len(plan.x) + place]
    rows = done[name] if name is not None else like.new_zeros((layout.rows, *like.shape[1:]))
    return last(rows, passed, layout.backward).to(like.dtype)
