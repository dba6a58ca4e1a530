"""Which inputs of a step autograd's graph of its results leads back to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.autograd_history import gradients_from
from stepnet.errors import Unsupported

THROUGH_STEPS = Unsupported(
    "torch.autograd.grad(...) by a state, of what depends on another state, which the step before made of "
    "that one: its gradient goes through the step before, too",
    remedy="w = w.detach().requires_grad_() before it, or torch.func.grad: this step alone",
)
THROUGH_CALLER = Unsupported(
    "torch.autograd.grad(...) by a state, of what its caller made of that state as it begins: at the first "
    "row its gradient goes through that, too",
    remedy="hand it state.clone(), or take w = w.detach().requires_grad_() in the step",
)


def is_cut_view(tensor: Tensor) -> bool:
    """Whether a tensor is a view made under no_grad: without a history, though it may require a gradient."""
    return tensor.requires_grad and tensor.grad_fn is None and tensor._is_view()


def leads_to(
    result: Tensor, inputs: Sequence[Tensor], bases: Mapping[Any, list[Tensor]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which inputs autograd's graph of a result leads back to, whatever gradient flows there; and which make
    it require a gradient. Those are more: a view made under no_grad asks for one if its base does, and passes
    none on; `bases` holds those of such views, by the node of autograd's graph that used them."""
    leaves = {id(t): i for i, t in enumerate(inputs) if t.grad_fn is None}
    made = {(t.grad_fn, t.output_nr): i for i, t in enumerate(inputs) if t.grad_fn is not None}

    def back(tensor: Tensor) -> tuple[set[int], list[Tensor], bool]:
        """The inputs that a tensor leads to, the bases of views without a history on the way, and whether a
        Function of the user's is among it."""
        reached: set[int] = set()
        cut: list[Tensor] = []
        custom = False
        seen: set[Any] = set()
        todo: list[Any] = [(tensor.grad_fn, tensor.output_nr)]

        if tensor.grad_fn is None:
            reached |= {leaves[id(tensor)]} if id(tensor) in leaves else set()
            cut += [tensor._base] if tensor._base is not None and is_cut_view(tensor) else []
            todo = []
        while todo:
            node, number = todo.pop()
            if (node, number) in made:
                reached.add(made[node, number])
            elif node not in seen:
                seen.add(node)
                custom |= isinstance(node, torch.autograd.function.BackwardCFunction)
                if id(getattr(node, "variable", None)) in leaves:
                    reached.add(leaves[id(node.variable)])
                cut += bases.get(node, [])
                todo.extend(edge for edge in node.next_functions if edge[0] is not None)
        return reached, cut, custom

    if not result.requires_grad:
        return (), ()
    reached, cut, custom = back(result)
    requires = set(reached)
    if custom:  # its backward may return None for an input: only asking tells
        wanted = [i for i, t in enumerate(inputs) if t.requires_grad]
        seed = torch.ones_like(result)
        given = [inputs[i] for i in wanted]
        grads = gradients_from([result], [seed], given, again=True)
        reached = {i for i, grad in zip(wanted, grads, strict=True) if grad is not None}
    while cut:
        base = cut.pop()
        if base.requires_grad:
            more, others, _ = back(base)
            requires |= more
            cut += others
    return tuple(sorted(reached)), tuple(sorted(requires))


def by_states(
    asked: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
    inputs: Sequence[Tensor],
    states: range,
    new: Sequence[Tensor],
    bases: Mapping[Any, list[Tensor]],
) -> tuple[tuple[int, ...], ...]:
    """The states by which `torch.autograd.grad` is asked of what depends on other inputs, each with those.

    Raises:
        Unsupported: one of these is a state that the step makes of the first: at the next step autograd goes
            that way, too, which is behind what a trace of one step shows.
    """
    found = dict[int, set[int]]()
    for outputs, by in asked:
        first = [i for i in states if any(inputs[i] is other for other in by)]
        reached = {j for t in outputs if first for j in leads_to(t, inputs, bases)[0]}
        for i, j in itertools.product(first, reached & {*states}):
            last, other = new[i - states.start], new[j - states.start]
            kept = any(last is inputs[k] for k in states) and other is not inputs[j]
            if i in reached and i != j and (kept or leads_to(other, [last], bases)[0]):
                raise THROUGH_STEPS.fresh()
        for i in first:
            found.setdefault(i, set()).update(reached - {i})
    return tuple((i, *sorted(others)) for i, others in sorted(found.items()) if others)


class _Nothing(torch.autograd.Function):
    """Hands on no gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        return None


def check_nothing_becomes_zeros(
    results: Sequence[Tensor],
    ways: Sequence[tuple[Any, Any]],
    inputs: Sequence[Tensor],
    states: range,
    n_y: int,
) -> None:
    """Refuse a step where a Function gives a state None for a gradient, and another one, in the step before,
    makes zeros of that: which inputs get a gradient is told step by step of gradients alone."""
    without = {i for reached, requires in ways for i in set(requires) - set(reached) if i in states}
    todo = list(without)
    for i in todo:
        result = results[n_y + i - states.start]
        if not result.requires_grad:
            continue
        wanted = [t for t in inputs if t.requires_grad]
        nothing, seed = _Nothing.apply(result), torch.ones_like(result)
        grads = gradients_from([nothing], [seed], wanted, again=True)
        if any(grad is not None for grad in grads):
            raise Unsupported(
                "an autograd Function of the step returns None as a gradient, which another one would get as "
                "zeros",
                remedy="return torch.zeros_like(input) in place of None from its backward",
            )
        more = {k for k in ways[n_y + i - states.start][1] if k in states} - without
        without |= more
        todo += more
