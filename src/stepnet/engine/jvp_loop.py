"""The directional derivative of a loop, as a loop of its own.

    h[t] = f(x[t], h[t-1])    ->    h[t], dh[t] = f(x[t], h[t-1]), f'(x[t], h[t-1]) (dx[t], dh[t-1])

It is compiled as any other loop. Second derivatives are its gradient: for results F and numbers g and v,

    d/dx <v, d/dx <g, F(x)>>  =  d/dx <g, F'(x) v>         (second derivatives do not depend on their order)
    d/dg <v, d/dx <g, F(x)>>  =  F'(x) v

Source: B. Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6, 1994.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from stepnet.compiler.trace.capture import Replaced
from stepnet.data.autograd_history import history
from stepnet.data.modes import transforms_active
from stepnet.data.tree import flatten, unflatten
from stepnet.ir.loop import BackEdge, Code, Concat, Last, Loop, Merged, Slice

from .norms import by_small_steps


class Along:
    """A body beside its derivative along directions of some of its parameters and of tensors that it reads.

    Args:
        body: the body.
        moved: the parameters that have a direction, each a further parameter.
        joined: its results that are joined. In their place are the derivatives of their leaves.
        carried: for each carried parameter its result.
        weights, directions: tensors that the body reads, and where they move.
        noisy: whether the body draws noise. All of it is kept then, also what no derivative depends on.
        whole: whether what is joined stays beside its derivatives.
    """

    def __init__(
        self, body: Code, moved: tuple[str, ...], joined: tuple[str, ...], carried: dict[str, str],
        weights: Sequence[Tensor], directions: Sequence[Tensor], noisy: bool = False, whole: bool = False,
    ) -> None:  # fmt: skip
        self.body, self.moved, self.joined, self.carried = body, moved, joined, carried
        self.weights, self.directions, self.noisy = tuple(weights), tuple(directions), noisy
        self.whole = whole
        self.name = f"derivative of {body.name}"
        names = {*body.parameters, *body.results}
        self.order = next(k for k in count(1) if names.isdisjoint(f"{name}'{k}" for name in names))
        self.parameters = (*body.parameters, *map(self.along, moved))
        self.states = tuple(name for name in moved if name in carried)
        new = [carried[name] for name in self.states]
        self.beside = tuple(name for name in joined if whole and name not in carried.values())
        self.results = (*carried.values(), *map(self.along, (*joined, *new)), *self.beside)

    def along(self, name: str) -> str:
        """What the derivative of a value is called."""
        return f"{name}'{self.order}"

    @property
    def function(self) -> Any:
        """Whatever is read: by the body, and the directions."""
        return partial(self.body.function, self.weights, self.directions)

    @property
    def form(self) -> Any:
        return "along", self.moved, len(self.weights), self.noisy, self.whole, self.body.form

    def fresh(self) -> Along:
        body: Any = self.body.fresh()
        how = self.moved, self.joined, self.carried, self.weights, self.directions, self.noisy
        return Along(body, *how, self.whole)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        n = len(self.body.parameters)
        given = dict(zip(self.body.parameters, values[:n], strict=True))
        recorded = torch.is_grad_enabled()
        # through operations, so that whoever watches or replaces tensors sees them
        directions = (*values[n:], *(d.view_as(d) for d in self.directions))
        own, transformed = {}, transforms_active()
        with torch.enable_grad():
            if not transformed:
                own = {name: _alias(given[name]) for name in self.moved}
            weights = [w.view_as(w) if transformed else _alias(w) for w in self.weights]
            named = self._results(given | own, weights)
            parts = [flatten(named[name])[0] for name in self.joined]
            if transformed:
                found = iter(self._transformed(given, weights, directions))
            else:
                points = (*own.values(), *weights)
                found = iter(_derivative(self._moving(named), points, directions, recorded))
        joined = [[next(found) for t in part if differs(t)] for part in parts]
        if self.noisy:  # each derivative reads its result, so that nothing of the noise is left out
            moving = [[t for t in part if differs(t)] for part in parts]
            joined = [
                [torch.where(t.isnan(), d, d) for t, d in zip(*both, strict=True)]
                for both in zip(moving, joined, strict=True)
            ]
        back = {id(own[name]): given[name] for name in own}
        asked = [t for t in (*flatten(values)[0], *self.weights, *directions) if isinstance(t, Tensor)]
        with torch._C.DisableTorchFunction():  # it is not the step that asks
            leaves = () if transformed or not recorded else (*own.values(), *weights)
            made = {id(t) for t in leaves if t.is_leaf}
            begins = {t.grad_fn for t in asked if t.requires_grad}

        def given_on(tensor: Tensor) -> Tensor:
            """Without a gradient if nothing asks for one but the leaves that are made here."""
            return tensor.detach() if made and _leads_to_these_alone(tensor, made, begins) else tensor

        def given_back(value: Any) -> Any:
            found, form = flatten(value)
            found = [back.get(id(t), t) for t in found]
            return unflatten(form, [given_on(t) if recorded else t.detach() for t in found])

        new, beside = ([given_back(named[n]) for n in of] for of in (self.carried.values(), self.beside))
        joined = [[given_on(t) for t in part] for part in joined]
        return (*new, *joined, *map(given_on, found), *beside)

    def _results(self, at: dict[str, Any], weights: Sequence[Tensor]) -> dict[str, Any]:
        """What the body gives, by name."""
        with Replaced.by(self.weights, weights), by_small_steps():
            results = self.body(*(at[name] for name in self.body.parameters))
        return dict(zip(self.body.results, results, strict=True))

    def _moving(self, named: dict[str, Any]) -> list[Tensor]:
        """The results that have derivatives: leaves of what is joined, then of what is carried."""
        moving = [t for name in self.joined for t in flatten(named[name])[0] if differs(t)]
        return moving + [named[self.carried[name]] for name in self.states]

    def _transformed(
        self, given: dict[str, Any], weights: Sequence[Tensor], directions: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `_derivative`, where transforms of torch.func are around, which know no other gradient than
        their own."""
        points = (*(given[name] for name in self.moved), *weights)

        def moving(*points: Tensor) -> tuple[Tensor, ...]:
            own = dict(zip(self.moved, points, strict=False))
            return tuple(self._moving(self._results(given | own, points[len(own) :])))

        def pulled(*u: Tensor) -> Any:
            pull: Any = vjp(moving, *points)[1]
            return pull(u)

        zeros: Any = [torch.zeros_like(t) for t in moving(*points)]
        push: Any = vjp(pulled, *zeros)[1]
        return push(tuple(directions))


def _alias(tensor: Tensor) -> Tensor:
    """A tensor to be differentiated by: what is done with it here, and not what others do."""
    view = tensor.view_as(tensor)  # it is the view that tells: of a weight that is replaced, of the other
    return view if _asks(view) else view.detach().requires_grad_()


def _leads_to_these_alone(tensor: Tensor, leaves: Collection[int], begins: Collection[Any]) -> bool:
    """Whether a tensor requires a gradient for some leaves, told by their numbers, and for nothing else;
    where the history of what a body is given begins is known."""
    with torch._C.DisableTorchFunction():
        node = tensor.grad_fn
    if not _asks(tensor) or node is None:
        return id(tensor) in leaves
    nodes = history([node], begins)
    others = (n for n in nodes if n in begins or (hasattr(n, "variable") and id(n.variable) not in leaves))
    return next(others, None) is None


def _asks(tensor: Tensor) -> bool:
    """Whether a tensor requires a gradient; it is not the step that wants to know."""
    with torch._C.DisableTorchFunction():
        return tensor.requires_grad


def differs(value: Any) -> bool:
    """Whether a value has derivatives."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _derivative(
    results: Sequence[Tensor], points: Sequence[Tensor], directions: Sequence[Tensor], recorded: bool
) -> list[Tensor]:
    """The derivative of results by points along directions, by the gradient of the gradient: the gradient
    `J' u` is linear in u, and its own gradient is J. So it is what autograd says, of a detached value as of
    a Function of the user's."""
    zeros = [torch.zeros_like(t) for t in results]
    follow = [i for i, t in enumerate(results) if _asks(t)]
    if not follow:
        return zeros
    u = [torch.zeros_like(results[i], requires_grad=True) for i in follow]
    pulled = torch.autograd.grad(
        [results[i] for i in follow], points, u, create_graph=True, allow_unused=True
    )
    pairs = [(p, v) for p, v in zip(pulled, directions, strict=True) if p is not None and _asks(p)]
    if pairs:
        found = torch.autograd.grad(
            [p for p, _ in pairs], u, [v for _, v in pairs], create_graph=recorded, allow_unused=True
        )
        for i, derivative in zip(follow, found, strict=True):
            zeros[i] = zeros[i] if derivative is None else derivative
    return zeros


def loop_along(
    loop: Loop, moved: Sequence[str], weights: Sequence[Tensor], directions: Sequence[Tensor],
    noisy: bool = False, whole: bool = False,
) -> Loop:  # fmt: skip
    """The loop of `Along`: beside what a loop carries, the derivatives of its results.

    Args:
        loop: a sweep.
        moved: those of its cut and carried parameters that have a direction.
        weights, directions: tensors that its body reads, and where they move.
        noisy: whether its body draws noise.
        whole: whether it also joins what the loop joins, after the derivatives.
    """
    body: Any = loop.body
    joined = tuple(p.result for p in loop.joined)
    inner = Along(body, tuple(moved), joined, loop.carried, weights, directions, noisy, whole)
    along = inner.along
    inputs = [*loop.inputs]
    for port in loop.inputs:
        if isinstance(port, Slice) and port.parameter in moved:
            cut = (port.axis, port.level, port.start, port.end, port.stride, port.part_size)
            inputs.append(Slice(along(port.parameter), along(port.parameter), *cut))
    inputs += [Merged(along(name), along(name)) for name in inner.states]
    outputs: list[Any] = []
    for port in loop.joined:
        cut = (port.axis, port.level, port.start, port.end, port.stride, port.part_size)
        outputs.append(Concat(along(port.result), along(port.output), *cut))
    outputs += loop.joined if whole else ()
    outputs += [Last(along(loop.carried[name]), along(f"last {name}")) for name in inner.states]
    edges = [BackEdge(along(loop.carried[name]), along(name)) for name in inner.states]
    return Loop(inner, inputs, outputs, (*loop.back_edges, *edges))
