"""A step that Dynamo need not follow, as an operator of a program: torch's tracer sees what it calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import IRError, LoopError, StepError, Unsupported

from .flow import Way
from .recurrence import Leaf, Recurrence, autocast_as, autocast_now
from .recurrence_text import text_of
from .sizes import for_open_sizes, row_shape

# What stepnet's and torch's operators raise of what they cannot do without numbers.
_REFUSALS = (StepError, IRError, LoopError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError,
             AttributeError, AssertionError)  # fmt: skip


def as_operator(
    step: Callable[..., Sequence[Tensor]], name: str, x: Sequence[Tensor], states: Sequence[Tensor],
    reads: Sequence[Tensor], count: int, *, axis: int, reverse: bool,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Run a step over tensors of equal lengths as one operator of the program that is made.

    Args:
        step: takes rows of x, of the states, and all that it reads, of which it reads nothing else; gives the
            rows of y, `count` of them, and the new states.
        name: what errors call it.
        x, states, reads: what it is run on.

    Returns:
        The tables of y, and the last states.

    Raises:
        Unsupported: the step is not for any number of rows, or cannot be written down.
    """
    way = Way(name, reverse, axis, autocast=None)
    counts = len(x), len(states), 0, 0
    try:
        graph = _on_any_rows(step, way, x, states, reads)
        (out,) = next(node for node in graph.graph.nodes if node.op == "output").args
        made = [node.meta["val"] for node in out]
        for new, old in zip(made[count:], states, strict=True):
            if new.dtype != old.dtype or new.shape[1:] != old.shape[1:]:
                raise Unsupported("a state changes its shape or type")
        y = tuple(Leaf(tuple(t.shape[1:]), t.dtype) for t in made[:count])
        tensors = [*x, *states, *reads]
        text = text_of(Recurrence(way, graph, counts, y), tensors, reads)
    except _REFUSALS as error:
        said = str(error) or type(error).__name__
        raise Unsupported(said.splitlines()[0]) from error
    found = torch.ops.stepnet.run.default(tensors, [], text)
    return found[:count], found[count:]


def _on_any_rows(
    step: Callable[..., Sequence[Tensor]], way: Way, x: Sequence[Tensor], states: Sequence[Tensor],
    reads: Sequence[Tensor],
) -> torch.fx.GraphModule:  # fmt: skip
    """What a step calls on rows whose number torch's tracer cannot be asked for."""
    from torch.fx.experimental.proxy_tensor import make_fx

    shapes = [(row_shape(t, way.axis, 0), t) for t in x] + [(tuple(t.shape[1:]), t) for t in states]
    fixed = [(tuple(t.shape), t) for t in reads]
    around = autocast_now()
    if any(type(size) is not int for shape, _ in (*shapes, *fixed) for size in shape):
        raise Unsupported("the program leaves a size open besides those of steps and rows")
    with for_open_sizes() as (env, fake):
        with env.ignore_fresh_unbacked_symbols():
            n = env.create_unbacked_symint()
        torch._check(n >= 1)
        known = _asked(env)
        with fake:
            inputs = [torch.empty((n, *shape), dtype=t.dtype, device=t.device) for shape, t in shapes]
            inputs += [torch.empty(shape, dtype=t.dtype, device=t.device) for shape, t in fixed]
            with autocast_as(around), torch.enable_grad():
                graph = make_fx(step, pre_dispatch=True)(*inputs)
        (out,) = next(node for node in graph.graph.nodes if node.op == "output").args
        if any(not _is(node.meta["val"].shape[:1], n) for node in out) or _asked(env) > known:
            raise Unsupported("its body is not one for any number of rows")
    graph.graph.eliminate_dead_code()
    return graph


def _is(lead: Sequence[Any], n: Any) -> bool:
    return len(lead) == 1 and type(lead[0]) is type(n) and lead[0].node.expr == n.node.expr


def _asked(env: Any) -> int:
    """How much is to hold of the sizes that what was traced for."""
    return sum(map(len, env.deferred_runtime_asserts.values()))
