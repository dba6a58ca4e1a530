"""While loops in a module that is traced: one node each, and a loop whose body computes its condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode
from torch.overrides import TorchFunctionMode

from stepnet.compiler.inner_loops import chosen, is_row
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import IRError, StepnetError
from stepnet.front.step import describe_leaf, step_name
from stepnet.repeat import INSTEAD, while_loop
from stepnet.user_line import user_line
from stepnet.watchers import during

from .aten import AtenNet, rule
from .body_trace import BodyTrace, inside
from .calls import (
    KINDS,
    Calls,
    Kind,
    Recorder,
    Tracer,
    at_places,
    call_of,
    inner_calls,
    places_of,
    traced_op,
    unanswered,
)
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Value
from .reads import tensors_read
from .referred_sizes import Path, as_tensors, with_sizes

_ENDLESS = -1


@dataclass
class WhileCall:
    """A while loop as it was run for real."""

    cond: Callable[..., Any]
    body: Callable[..., Any]
    spec: Spec
    first: list[Tensor]  # what the loop variables start with
    places: list[int]  # of the tensors that condition and body use, among those they reach
    weights: list[Tensor]
    max_steps: int | None
    by_row: bool  # whether the first loop variable says which rows go on
    where: str
    sizes: list[Path]  # where condition and body refer to sizes that are left open
    inner: tuple[Calls | None, Calls | None] = (None, None)  # those of the condition, of a turn

    def functions(self, sizes: Sequence[Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Condition and body with tensors in place of the sizes that they refer to."""
        cond, body = with_sizes([self.cond, self.body], dict(zip(self.sizes, sizes, strict=True)))
        return cond, body


@traced_op("(int call, Tensor[] state, Tensor[] weights, Tensor[] sizes) -> Tensor[]")
def while_node(call: int, state: list[Tensor], weights: list[Tensor], sizes: list[Tensor]) -> list[Tensor]:
    return [value.new_empty(value.shape) for value in state]


class WhileRecorder(Recorder):
    """Answers for a while loop by running it, and keeps what it was given."""

    def __call__(self, cond: Any, body: Any, loop_vars: Any, max_steps: int | None) -> Any:
        where = f"the while loop over '{step_name(body)}' ({user_line().short})"
        leaves, spec = flatten(tuple(loop_vars))
        for leaf in leaves:
            if type(leaf) not in (int, float) and type(leaf) is not Tensor:
                raise IRError(
                    f"{where} cannot be written: a loop variable is no tensor",
                    got=describe_leaf(leaf),
                    remedy="create_whileloop writes loops over TensorArrays, recurrent those over LoDTensors",
                )
        loop = cond, body, loop_vars
        with unanswered():
            going = cond(*loop_vars)
            by_row = isinstance(going, Tensor) and going.dim() == 1 and len(going) != 1
            if by_row:
                _check_rows(cond, body, loop_vars, where)
                cond, body = _each_row(cond, body)
                leaves, spec = flatten((going, *loop_vars))
            first = [torch.as_tensor(leaf) for leaf in leaves]
            given = [v.detach().clone() for v in first]
            used = tensors_read(lambda: _both(cond, body)(*unflatten(spec, given)), given)
            out = while_loop(*loop, max_steps=max_steps)
        inner = (
            inner_calls(self.target, lambda: cond(*unflatten(spec, given))),
            inner_calls(self.target, lambda: cond(*_tuple(body(*unflatten(spec, given))))),
        )
        places = places_of(used, _both(cond, body), where)
        self.keep(WhileCall(cond, body, spec, first, places, used, max_steps, by_row, where, [], inner))
        return out


class WhileTracer(Tracer):
    """Answers for a while loop by one node of the graph that is being traced."""

    what = "runs another number of while loops"

    def __call__(self, cond: Any, body: Any, loop_vars: Any, max_steps: int | None) -> Any:
        number, call = self.next()
        kind = type(loop_vars)
        if call.by_row:
            loop_vars = (cond(*loop_vars), *loop_vars)
            cond, body = _each_row(cond, body)
        leaves, spec = flatten(tuple(loop_vars))
        weights = at_places(call.places, call.weights, _both(cond, body), call.where)
        call.sizes, sizes = as_tensors([cond, body], call.where)
        state = [
            leaf if isinstance(leaf, Tensor) else torch.scalar_tensor(leaf, dtype=like.dtype)
            for leaf, like in zip(leaves, call.first, strict=True)
        ]
        out = torch.ops.stepnet.while_node(number, state, weights, sizes)
        return kind(unflatten(spec, list(out))[call.by_row :])


def _answered(instead: Any) -> Any:
    return during(INSTEAD, instead)


KINDS.append(Kind(_answered, WhileRecorder, lambda calls, _: WhileTracer(calls)))


class Picked(TorchFunctionMode):
    """`x[i]` with a tensor that holds one integer, which torch would ask for its number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            x, at = args
            if not at.dim() and not at.is_floating_point() and at.dtype != torch.bool:
                return x.index_select(0, at.reshape(1)).squeeze(0)
        return func(*args, **(kwargs or {}))


def _each_row(
    cond: Callable[..., Any], body: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A loop with a condition for each row as one over all rows: those that are done keep their values."""

    def whether(going: Tensor, *_: Any) -> Tensor:
        return going.any()

    def turn(going: Tensor, *values: Any) -> tuple[Any, ...]:
        before, spec = flatten(values)
        after = flatten(_tuple(body(*values)))[0]
        values = unflatten(spec, [chosen(going, a, b) for a, b in zip(after, before, strict=True)])
        return going & cond(*values), *values

    return whether, turn


def _check_rows(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any, where: str) -> None:
    """Hold what a loop makes of some rows against what it makes of them among others.

    Raises:
        IRError: it is not the same.
    """
    leaves, spec = flatten(tuple(loop_vars))
    rows = next((len(leaf) for leaf in leaves if is_row(leaf)), 0)
    some = torch.arange(0, rows, 2)
    with torch.random.fork_rng(devices=[]):
        own = [
            leaf + 0.1 * torch.randn_like(leaf) if is_row(leaf) and leaf.is_floating_point() else leaf
            for leaf in leaves
        ]
    few = [leaf[some] if is_row(leaf) else leaf for leaf in own]
    try:
        together, apart = (flatten(_both(cond, body)(*unflatten(spec, part)))[0] for part in (own, few))
        alike = all(
            torch.allclose(a[some].double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in zip(together, apart, strict=True)
            if is_row(a)
        )
    except (RuntimeError, StepnetError):
        alike = False
    if not rows or not alike:
        raise IRError(
            f"{where} cannot be written: it has a condition for each row, and a row is computed otherwise "
            "among others than among those that go on",
            remedy="(...).any() in the condition, and torch.where in the body",
        )


def _both(cond: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    def run(*values: Any) -> Any:
        return cond(*values), body(*values)

    return run


@rule("stepnet.while_node")
def _written(
    b: AtenNet, number: int, state: Sequence[FxNode], weights: Sequence[FxNode], sizes: Sequence[FxNode]
) -> tuple[Value, ...]:
    call: WhileCall = call_of(number)
    two = [torch.tensor(2) for _ in sizes]
    trace = BodyTrace(
        b, call.where, [b.shape(node) for node in state], call.first, weights, call.weights, sizes, two
    )

    def run(leaves: Sequence[Tensor], sizes: Sequence[Tensor], *, first: bool) -> list[Tensor]:
        cond, body = call.functions(sizes)
        values, inner = list(leaves), call.inner[not first]
        with (
            Picked(),
            inside(b, call.where, inner),
        ):
            if not first:
                values = _same(call, _tuple(body(*unflatten(call.spec, values))))
            going = _condition(call, cond(*unflatten(call.spec, values)))
        return [going] if first else [going, *values]

    begin = trace.traced(lambda values, sizes: run(values, sizes, first=True))
    turn = trace.traced(lambda values, sizes: run(values, sizes, first=False))
    inputs = [b.out(node) for node in (*state, *trace.more)]
    (goes,) = AtenNet(b.emit, call.where).run(begin, inputs)
    body = b.emit.graph.body("while_loop body")
    inner = AtenNet(Emit(body), call.where)
    parameters = [trace.parameter(body, i, f"value_{i}") for i in range(len(inputs))]
    out = inner.run(turn, parameters)
    new = [inner.emit.copied(value) for value in out[1:]]
    results = [body.result(value) for value in new]
    goes_on = body.result(inner.emit.copied(out[0]))
    ins = tuple(LoopInput(value, parameter) for value, parameter in zip(inputs, parameters, strict=True))
    edges = tuple(zip(results, parameters, strict=False))
    trips = b.emit.scalar(_ENDLESS if call.max_steps is None else call.max_steps)
    loop = LoopOp(
        body, ins, tuple(map(LoopOutput, results)), edges, trips=trips, condition=goes, goes_on=goes_on
    )
    return b.emit.graph.loop(loop, "while_loop")


def _tuple(made: Any) -> Any:
    return tuple(made) if type(made) is list else made


def _condition(call: WhileCall, going: Any) -> Tensor:
    if not isinstance(going, Tensor) or going.dtype != torch.bool:
        raise IRError(
            f"{call.where} cannot be written: its condition is no tensor",
            got=type(going).__name__,
            remedy="compare a loop variable, or what was computed from one",
        )
    return going.reshape(())


def _same(call: WhileCall, made: Any) -> list[Tensor]:
    leaves, _ = flatten(made)
    return [
        leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf, dtype=like.dtype)
        for leaf, like in zip(leaves, call.first, strict=True)
    ]
