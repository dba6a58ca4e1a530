"""While loops in a module that is traced: one node each, and a loop whose body computes its condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node as FxNode
from torch.overrides import TorchFunctionMode

from stepnet.compiler.rewritten.inner_loops import chosen, is_row
from stepnet.compiler.trace.capture import Replaced
from stepnet.data.array import TensorArray
from stepnet.data.modes import draws_put_back
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import IRError, StepnetError
from stepnet.front.step import describe_leaf, step_name
from stepnet.loops.as_frame import run_as_frame
from stepnet.repeat import while_joined, while_loop
from stepnet.user_line import user_line
from stepnet.watchers import WHILE_LOOPS, during

from .aten import AtenNet, rule
from .body_trace import BodyTrace, no_lengths
from .calls import (
    KINDS,
    Calls,
    Kind,
    Places,
    Recorder,
    Tracer,
    at_places,
    call_of,
    noted_calls,
    places_of,
    traced_op,
    unanswered,
)
from .captured_state import AsCalled, as_called
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Target, Value
from .keeping_sizes import KeepingSizes
from .size_inputs import Referred, as_tensors, plain_values, with_sizes
from .tensors_read import tensors_read
from .trace import AnyNumber

_ENDLESS = -1
GROWS = AnyNumber("grows")


@dataclass
class WhileCall:
    """A while loop as it was run for real."""

    cond: Callable[..., Any]
    body: Callable[..., Any]
    spec: Spec
    first: list[Tensor]  # what the loop variables start with, or are in a turn if they grow
    places: Places  # of the tensors that condition and body use, among those they reach
    weights: list[Tensor]
    max_steps: int | None
    by_row: bool  # whether the first loop variable says which rows go on
    where: str
    then: AsCalled  # what condition and body read
    sizes: Referred  # that are left open, and condition and body refer to
    joined: int | None = None  # of a loop of a file: how many values the body gives besides, to join
    grows: tuple[frozenset[int], ...] = ()  # dimensions of each loop variable that its turns change
    once: bool = False  # whether there is one turn, or none
    inner: tuple[Calls, ...] = ()  # those of the condition, of a turn
    again: tuple[Calls, ...] = ()  # the same with tensors in place of sizes
    read: list[Any] = field(default_factory=list)  # the plain values that it reads, when it was traced

    def functions(self, sizes: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Condition and body with these in place of the sizes that they refer to."""
        cond, body = with_sizes([self.cond, self.body], dict(zip(self.sizes, sizes, strict=True)))
        return cond, body

    def noted(self, target: Target, given: Sequence[Tensor], sizes: Sequence[Any]) -> tuple[Calls, Calls]:
        """The calls of the condition and of a turn, with these in place of sizes."""
        cond, body = self.functions(sizes)
        return (
            noted_calls(target, lambda: cond(*unflatten(self.spec, list(given)))),
            noted_calls(target, lambda: cond(*self.turn(body, given)[0])),
        )

    def turn(self, body: Callable[..., Any], values: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """The loop variables after a turn, nested as the body gives them, and what is joined."""
        made = _tuple(body(*unflatten(self.spec, list(values))))
        return (made[: -self.joined], list(made[-self.joined :])) if self.joined else (made, [])


@traced_op("(int call, Tensor[] state, Tensor[] weights, Tensor[] sizes) -> Tensor[]")
def while_node(call: int, state: list[Tensor], weights: list[Tensor], sizes: list[Tensor]) -> list[Tensor]:
    made: WhileCall = call_of(call)
    out = []
    for value, dims in zip(state, made.grows, strict=True):
        shape: list[Any] = list(value.shape)
        for d in dims:
            shape[d] = torch.library.get_ctx().new_dynamic_size()
        out.append(value.new_empty(shape))
    if made.joined:
        replaced, traced = Replaced.by(made.weights, weights), made.inner[1].traced(no_lengths)
        with replaced as fed, KeepingSizes(), traced, Picked():
            rows = fed.results(made.turn(made.functions(sizes)[1], state)[1])
        steps = torch.library.get_ctx().new_dynamic_size()
        out += [row.new_empty((steps, *row.shape)) for row in rows]
    return out


class WhileRecorder(Recorder):
    """Answers for a while loop by running it, and keeps what it was given."""

    def __call__(
        self, cond: Any, body: Any, loop_vars: Any, max_steps: int | None, joined: int | None = None,
        changes: Sequence[frozenset[int]] | None = None,
    ) -> Any:  # fmt: skip
        leaves, spec = flatten(tuple(loop_vars))
        if joined is None and _are_filled(leaves):
            return run_as_frame(cond, body, loop_vars, max_steps)
        where = f"the while loop over '{step_name(body)}' ({user_line().short})"
        for leaf in leaves:
            if type(leaf) not in (int, float, Tensor, nn.Parameter):
                raise IRError(
                    f"{where} cannot be written: a loop variable is no tensor",
                    got=describe_leaf(leaf),
                    remedy="recurrent writes loops over LoDTensors",
                    expected="tensors as loop variables",
                )
        loop = cond, body, loop_vars
        with unanswered():
            going = cond(*loop_vars)
            by_row = isinstance(going, Tensor) and going.dim() == 1 and len(going) != 1
            if by_row:
                _check_rows(cond, body, loop_vars, where)
                cond, body = _each_row(cond, body)
                leaves, spec = flatten((going, *loop_vars))
            cond, body = as_called((cond, body))
            then = AsCalled(_both(cond, body))
            first = [torch.as_tensor(leaf) for leaf in leaves]
            given = [v.detach().clone() for v in first]
            used = tensors_read(lambda: _both(cond, body)(*unflatten(spec, given)), given)
            values, grows = first, (frozenset[int](),) * len(first)
            if joined is None:
                out = while_loop(*loop, max_steps=max_steps)
            else:
                seen = [first]

                def turn(*state: Tensor) -> Sequence[Tensor]:
                    made = body(*state)
                    seen.append(list(made[: len(state)]))
                    return made

                # of one tensor for two a trace would find two
                made = while_joined(cond, turn, loop_vars, joined, max_steps=max_steps)
                out = tuple(value.clone() for value in made)
                values, grows = _grown(seen, where) if changes is None else _changed(first, changes)
        places = places_of(used, _both(cond, body), where)
        call = WhileCall(
            cond, body, spec, values, places, used, max_steps, by_row, where, then, {}, joined, grows,
            changes is not None,
        )  # fmt: skip
        call.inner = call.noted(self.target, given, ())
        self.keep(call)
        return out


def _changed(
    first: Sequence[Tensor], changes: Sequence[frozenset[int]]
) -> tuple[list[Tensor], tuple[frozenset[int], ...]]:
    """As `_grown`, of dimensions that are known to change."""
    sizes = (
        [2 if d in dims else n for d, n in enumerate(v.shape)] for v, dims in zip(first, changes, strict=True)
    )
    return [v.new_zeros(s) if dims else v for v, s, dims in zip(first, sizes, changes, strict=True)], tuple(
        changes
    )


def _grown(seen: Sequence[list[Tensor]], where: str) -> tuple[list[Tensor], tuple[frozenset[int], ...]]:
    """The loop variables in the turn that tells most of their sizes, and which of these change.

    Raises:
        IRError: one changes its rank, or no turn had two of what grows.
    """
    shapes = [[value.shape for value in state] for state in seen]
    if any(len(a) != len(b) for state in shapes for a, b in zip(state, shapes[0], strict=True)):
        raise IRError(
            f"{where} cannot be written: a loop variable changes its number of dimensions",
            got=f"{sorted({len(shape) for of in shapes for shape in of})} dimensions",
            expected="the same number in each turn",
            remedy="reshape it at the end of the body",
        )
    grows = tuple(
        frozenset(d for d in range(len(of[0])) if len({shape[d] for shape in of}) > 1)
        for of in zip(*shapes, strict=True)
    )

    def least(state: Sequence[Tensor]) -> int:
        return min((v.shape[d] for v, dims in zip(state, grows, strict=True) for d in dims), default=2)

    best = max(seen, key=least)
    if least(best) < 2:
        raise IRError(
            f"{where} cannot be written: a loop variable changes its sizes, which takes more turns to tell",
            got=[list(value.shape) for value in best],
            remedy="an example in which it has more turns",
            expected="sizes that stay, or that grow in the example",
        )
    return (best if any(grows) else seen[0]), grows


class WhileTracer(Tracer):
    """Answers for a while loop by one node of the graph that is being traced."""

    what = "runs another number of while loops"

    def __call__(
        self, cond: Any, body: Any, loop_vars: Any, max_steps: int | None, joined: int | None = None,
        changes: Sequence[frozenset[int]] | None = None,
    ) -> Any:  # fmt: skip
        if joined is None and _are_filled(flatten(tuple(loop_vars))[0]):
            return run_as_frame(cond, body, loop_vars, max_steps)
        number, call = self.next()
        kind = type(loop_vars)
        if call.by_row:
            loop_vars = (cond(*loop_vars), *loop_vars)
            cond, body = _each_row(cond, body)
        leaves, spec = flatten(tuple(loop_vars))
        weights = at_places(call.places, _both(cond, body), call.where)
        call.sizes, sizes = as_tensors([cond, body], call.where, call.first)
        call.read = plain_values([max_steps, cond, body])
        state = [
            leaf if isinstance(leaf, Tensor) else torch.scalar_tensor(leaf, dtype=like.dtype)
            for leaf, like in zip(leaves, call.first, strict=True)
        ]
        out = torch.ops.stepnet.while_node(number, state, weights, sizes)
        if joined is not None:
            return tuple(out)
        return kind(unflatten(spec, list(out))[call.by_row :])


def _are_filled(leaves: Sequence[Any]) -> bool:
    """Whether loop variables are TensorArrays, which a frame tells how a loop uses."""
    return any(isinstance(leaf, TensorArray) for leaf in leaves)


KINDS.append(Kind(partial(during, WHILE_LOOPS), WhileRecorder, lambda calls, _: WhileTracer(calls)))


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
    with draws_put_back():
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
            got="a body that mixes rows",
            expected="rows that are computed each by itself",
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
    call.then.check(call.where)
    b.refuse_rows([*state, *weights], call.where)
    shapes = [
        [GROWS if d in dims else size for d, size in enumerate(b.shape(node))]
        for node, dims in zip(state, call.grows, strict=True)
    ]
    trace = BodyTrace(b, call.where, shapes, call.first, weights, call.weights, sizes, call.sizes)
    calls = call.inner
    if sizes and any(part.numbers() for part in calls):
        calls = call.noted(b.emit.graph.target, [value.clone() for value in call.first], trace.numbers)
        call.again += calls

    def run(leaves: Sequence[Tensor], sizes: Sequence[Any], *, first: bool) -> list[Tensor]:
        cond, body = call.functions(sizes)
        values, rows = list(leaves), []
        with Picked(), calls[not first].traced(no_lengths):
            if not first:
                new, rows = call.turn(body, values)
                values = _same(call, new)
            going = _condition(call, cond(*unflatten(call.spec, values)))
        return [going] if first else [going, *values, *rows]

    begin = trace.traced(lambda values, sizes: run(values, sizes, first=True))
    turn = trace.traced(lambda values, sizes: run(values, sizes, first=False))
    inputs = [b.out(node) for node in (*state, *trace.more)]
    (goes,) = AtenNet(b.emit, call.where).run(begin, inputs)
    body = b.emit.graph.body("while_loop body")
    inner = AtenNet(Emit(body), call.where)
    parameters = [trace.parameter(body, i, f"value_{i}") for i in range(len(inputs))]
    out = inner.run(turn, parameters)
    new = [inner.emit.copied(value) for value in out[1 : 1 + len(state)]]
    results = [body.result(value) for value in new]
    rows = []
    for value, node in zip(out[1 + len(state) :], turn.outputs[1 + len(state) :], strict=True):
        rows.append(body.result(inner.emit.unsqueeze(value, 0), shape=[1, *inner.open_shape(node)]))
    goes_on = body.result(inner.emit.copied(out[0]))
    ins = tuple(LoopInput(value, parameter) for value, parameter in zip(inputs, parameters, strict=True))
    edges = tuple(zip(results, parameters, strict=False))
    trips = b.emit.scalar(_ENDLESS if call.max_steps is None else call.max_steps)
    loop = LoopOp(
        body, ins, (*map(LoopOutput, results), *(LoopOutput(row, axis=0) for row in rows)), edges,
        trips=trips, condition=goes, goes_on=goes_on, once=call.once,
    )  # fmt: skip
    return b.emit.graph.loop(loop, "while_loop")


def _tuple(made: Any) -> Any:
    return tuple(made) if type(made) is list else made


def _condition(call: WhileCall, going: Any) -> Tensor:
    if not isinstance(going, Tensor) or going.dtype != torch.bool:
        raise IRError(
            f"{call.where} cannot be written: its condition is no tensor",
            got=type(going).__name__,
            remedy="compare a loop variable, or what was computed from one",
            expected="a tensor of one truth value",
        )
    return going.reshape(())


def _same(call: WhileCall, made: Any) -> list[Tensor]:
    leaves, _ = flatten(made)
    return [
        leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf, dtype=like.dtype)
        for leaf, like in zip(leaves, call.first, strict=True)
    ]
