"""`while_loop`: a condition and a body, as a loop that carries tensors, arrays and nestings."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from typing_extensions import TypeVarTuple, Unpack

from stepnet.compiler.rewritten.inner_loops import inner, is_row
from stepnet.data.arguments import brief
from stepnet.data.array import TensorArray
from stepnet.data.in_graph import by_python, is_exporting
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import transformed
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import AS_A_LAYER, StandIn, recorded_in_frames
from stepnet.data.tree import Spec, flatten, flatten_as, names, unflatten
from stepnet.errors import StepError
from stepnet.executors import naive
from stepnet.executors.naive import PlainRun, State
from stepnet.executors.recompute_check import checkpointed
from stepnet.executors.rows import RowArray
from stepnet.front.step import describe_leaf, kept_dtypes, signature_of, step_name
from stepnet.ir.loop import BackEdge, Concat, Iteration, Last, Loop, Merged
from stepnet.watchers import WHILE_LOOPS

from .data.arguments import function, whole

Variables = TypeVarTuple("Variables")
Variable = TypeVar("Variable")


def _like(cond: Any, body: Any, loop_vars: Any, **_: Any) -> Any:
    """What `while_loop` gives: loop variables as they came."""
    return loop_vars


@overload
def while_loop(
    cond: Callable[[Unpack[Variables]], bool | Tensor],
    body: Callable[[Unpack[Variables]], tuple[Unpack[Variables]]],
    loop_vars: tuple[Unpack[Variables]],
    *,
    max_steps: int | None = None,
    checkpoint: int | bool | None = None,
) -> tuple[Unpack[Variables]]: ...


@overload
def while_loop(
    cond: Callable[..., bool | Tensor],
    body: Callable[..., Sequence[Variable]],
    loop_vars: list[Variable],
    *,
    max_steps: int | None = None,
    checkpoint: int | bool | None = None,
) -> list[Variable]: ...


@recorded_in_frames(_like)
@by_python("a while loop runs until its numbers say so")
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    *,
    max_steps: int | None = None,
    checkpoint: int | bool | None = None,
) -> Any:
    """Repeat `body` while `cond` holds.

    Means::

        while cond(*loop_vars):
            loop_vars = body(*loop_vars)
        return loop_vars

    Gradients flow through every step that was run, to the first loop variables and to all that `body`
    refers to. The number of steps may depend on the data.

    With a condition per row (a boolean tensor [B], B not 1) every row of the loop variables runs until its
    own condition is False: `cond` and `body` then see the rows [n, ...] that are still running, and nothing
    is computed for the others. Every tensor must have B rows; scalars are shared. A TensorArray is read and
    written at the rows that run; where a row was done, the array that comes back holds zeros.

    Args:
        cond: `cond(*loop_vars)`: one boolean, or one per row. No gradient flows through it.
        body: `body(*loop_vars) -> loop_vars`, nested as they came, each leaf of the same shape and dtype.
        loop_vars: a tuple or list of tensors, LoDTensors, TensorArrays, numbers, or nestings of them. A
            TensorArray that is passed in stays as it is; the one that comes back holds what was written.
        max_steps: an error, if the condition still holds after so many steps. None: no limit.
        checkpoint: how training keeps memory small. None keeps all that backward needs. k keeps every k-th
            state and computes the steps between again in backward. True needs no k: it keeps states at
            distances 1, 2, 3, ..., so that after T steps, T not known before, there are about sqrt(2 T)
            states and as many steps between two of them.

    Returns:
        The loop variables after the last step, nested as `loop_vars`. Tensors have memory of their
        own, also where no step was run.

    Raises:
        StepError: the condition is no boolean, the body changes the structure, shape or dtype of a loop
            variable, or `max_steps` was reached; the text names the variable as the body does.

    Source: Paddle's while_op and TensorFlow's while_loop; for checkpoints, Griewank and Walther, Evaluating
    Derivatives (2008), chapter 12.

    >>> double = lambda x: (2 * x,)
    >>> while_loop(lambda x: x < 100, double, (torch.tensor(3),))
    (tensor(192),)
    >>> while_loop(lambda x: x < 100, double, [torch.tensor([3, 300, 99])])
    [tensor([192, 300, 198])]
    """
    if type(loop_vars) not in (tuple, list):
        raise StepError(
            "while_loop: loop_vars must be a tuple or a list, a place for each parameter of the body",
            got=describe_leaf(loop_vars),
            remedy="loop_vars=(x,) for one variable",
        )
    function("while_loop: 'cond'", cond, "cond(*loop_vars)")
    function("while_loop: 'body'", body, "body(*loop_vars)")
    if max_steps is not None:
        max_steps = whole("while_loop: 'max_steps'", max_steps, 0)
    instead = WHILE_LOOPS.get()
    if instead is not None:
        return instead(cond, body, loop_vars, max_steps)
    leaves, spec = flatten(tuple(loop_vars))
    code = WhileBody(cond, body, spec, max_steps)
    try:
        found = _run(code, code.begin(leaves), checkpoint)
    except RuntimeError as error:
        if not is_exporting() or "data-dependent" not in str(error):
            raise
        raise StepError(
            f"while_loop: a program cannot hold '{code.name}', as its numbers say how many steps there are",
            got=str(error).splitlines()[0],
            remedy="number the steps; stepnet.onnx.save and stepnet.openvino.save write it as it is",
        ) from error
    return list(found) if isinstance(loop_vars, list) else found


def _run(code: WhileBody, leaves: list[Any], checkpoint: int | bool | None) -> Any:
    """The loop variables after the last step."""
    going, within = code.going(leaves, 0), inner()
    if within is not None and within.most is not None and code.by_row:
        return unflatten(code.spec, within.unrolled(leaves, going, code.advance, code.holds, code.limit))
    loop = Loop(
        code,
        inputs=(Iteration(STEP), *(Merged(name, name) for name in code.results)),
        outputs=[Last(name, name) for name in code.names],
        back_edges=[BackEdge(name, name) for name in code.results],
        condition=GOING,
    )
    run = PlainRun(loop, dict(zip(code.results, (going, *leaves), strict=True)))
    lengths = _segments(checkpoint)
    if lengths is not None and (transformed() or not torch.is_grad_enabled()):
        lengths = None
    state = run.begin()
    if lengths is None:
        state = run.advance(state)
    else:
        while state.going:
            state = _checkpointed(run, state, next(lengths))
    if within is not None and code.by_row:
        within.longest = max(within.longest, state.step)
    out = run.outputs(state)
    found = [out[name] for name in code.names]
    if within is None:
        found = [*map(_own, found)]
    return unflatten(code.spec, found)


def _own(result: Any) -> Any:
    """A result to write to, however many steps were run: a body may give what it was given, or refers to."""
    if isinstance(result, LoDTensor):
        return result.with_values(result.values.clone())
    return result.clone() if type(result) in (Tensor, torch.nn.Parameter) else result


def while_joined(
    cond: Callable[..., Any], body: Callable[..., Sequence[Tensor]], loop_vars: Sequence[Tensor], joined: int,
    changes: Sequence[frozenset[int]] | None = None, *, max_steps: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A loop of a file, over tensors: its body gives, after the loop variables, which may change their sizes,
    values that are joined, [steps, ...] of each. It runs as it is written: for what writes the model.

    `changes` are the dimensions of each loop variable that change; None: those that do as it runs.
    """
    instead = WHILE_LOOPS.get()
    if instead is not None:
        return instead(cond, body, loop_vars, max_steps, joined, changes)
    code = JoinedBody(cond, body, len(loop_vars), joined, max_steps)
    carried = GOING, *code.variables
    loop = Loop(
        code,
        inputs=[Iteration(STEP), *(Merged(name, name) for name in carried)],
        outputs=[*(Last(n, n) for n in code.variables), *(Concat(n, n) for n in code.rows)],
        back_edges=[BackEdge(name, name) for name in carried],
        condition=GOING,
    )
    out = naive.run(loop, dict(zip(carried, (bool(cond(*loop_vars)), *loop_vars), strict=True)))
    return tuple(out[port.output] for port in loop.outputs)


def _segments(checkpoint: int | bool | None) -> Iterator[int] | None:
    """How many steps lie between two kept states; None keeps everything."""
    if checkpoint is None or checkpoint is False:
        return None
    if checkpoint is True:
        return count(1)
    if not isinstance(checkpoint, int) or checkpoint < 1:
        raise StepError(
            "while_loop: checkpoint must be None, True, or a number of steps from 1", got=brief(checkpoint)
        )
    return repeat(checkpoint)


_WRITTEN_OUT = 10_000  # steps in a program, unless `max_steps` says more: each takes memory until all is used
STEP, GOING = "the step", "it goes on"  # no names of a user's variables


def _check_limit(cond: Callable[..., Any], step: int, limit: int | None) -> None:
    if step == limit:
        raise StepError(
            f"while_loop: condition '{step_name(cond)}' still holds after max_steps={step}",
            remedy="a larger max_steps, or a condition that comes to an end",
        )


class JoinedBody:
    """A condition and a body of a loop of a file as one: whether it goes on, the loop variables, and rows."""

    def __init__(
        self, cond: Callable[..., Any], body: Callable[..., Any], count: int, joined: int, limit: int | None
    ) -> None:
        self.cond, self.body, self.count, self.limit = cond, body, count, limit
        self.name = step_name(body)
        self.variables = tuple(f"variable {i}" for i in range(count))
        self.rows = tuple(f"row {i}" for i in range(joined))
        self.parameters = (STEP, GOING, *self.variables)
        self.results = (GOING, *self.variables, *self.rows)

    def __call__(self, step: int, going: Any, *values: Tensor) -> tuple[Any, ...]:
        _check_limit(self.cond, step, self.limit)
        made = self.body(*values)
        return bool(self.cond(*made[: self.count])), *made


class WhileBody:
    """A condition and a body as one: the next loop variables, and whether the loop goes on from them."""

    def __init__(
        self, cond: Callable[..., Any], body: Callable[..., Any], spec: Spec, limit: int | None
    ) -> None:
        self.cond, self.body, self.spec, self.limit = cond, body, spec, limit
        self.name = step_name(body)
        self.names = tuple(_names(body, spec))
        self.parameters = (STEP, GOING, *self.names)
        self.results = (GOING, *self.names)
        self.by_row = False  # whether there is a condition for each row

    def begin(self, leaves: Sequence[Any]) -> list[Any]:
        """The first loop variables, as the loop's own."""
        for name, leaf in zip(self.names, leaves, strict=True):
            if not isinstance(leaf, (Tensor, LoDTensor, TensorArray, int, float)):
                refuse_proxies(leaves)
                raise StepError(
                    f"while_loop: loop variable '{name}' cannot be carried",
                    got=type(leaf).__name__,
                    expected="a tensor, a LoDTensor, a TensorArray, a number, or a nesting of them",
                    remedy=AS_A_LAYER
                    if isinstance(leaf, StandIn)
                    else "let the body refer to it, if it stays the same",
                )
        return own_of(leaves)

    def going(self, leaves: list[Any], step: int, rows: int | None = None) -> Any:
        """The condition at a step, checked; for each of `rows`."""
        with torch.no_grad() if torch.is_grad_enabled() else contextlib.nullcontext():
            going = self._called("condition", self.cond, leaves)
        with torch._C.DisableTorchFunction():  # what watches the step need not see the checks
            return self._checked(going, step, rows)

    def _called(self, kind: str, function: Callable[..., Any], leaves: list[Any]) -> Any:
        values = unflatten(self.spec, leaves)
        try:
            return function(*values)
        except TypeError:
            _check_parameters(kind, function, len(values))
            raise

    def _checked(self, going: Any, step: int, rows: int | None) -> Any:
        if step == 0:
            self.by_row = isinstance(going, Tensor) and going.dim() == 1 and going.shape[0] != 1
            rows = going.shape[0] if self.by_row else None
        if isinstance(going, torch.SymBool):  # of an export, which knows it or asks for it
            going = bool(going)
        if isinstance(going, bool) and rows is None:
            return going
        kind = (going.dtype, going.numel()) if isinstance(going, Tensor) else None
        flat = isinstance(going, Tensor) and going.dim() == 1
        if kind != (torch.bool, 1 if rows is None else rows) or not (rows is None or flat):
            raise StepError(
                f"while_loop: condition '{step_name(self.cond)}' must be "
                + ("one boolean" if rows is None else "one boolean per row that is still running"),
                got=f"{describe_leaf(going)} at step {step}",
                expected="bool[]" if rows is None else f"bool[{rows}]",
                remedy="compare, and take .all() or .any() of many; a bool[B] at the first step "
                "stops each of B rows for itself",
            )
        return going

    def __call__(self, step: int, going: Any, *leaves: Any) -> tuple[Any, ...]:
        _check_limit(self.cond, step, self.limit)
        if step == _WRITTEN_OUT and self.limit is None and is_exporting():
            raise StepError(
                f"while_loop: a program holds each step of '{self.name}' by itself, and condition "
                f"'{step_name(self.cond)}' still holds after {step}",
                expected="a condition that comes to an end, or max_steps= for more",
                remedy="stepnet.onnx.save and stepnet.openvino.save write a while loop as one",
            )
        new = self.advance(list(leaves), step)
        return self.going(new, step + 1, len(going) if self.by_row else None), *new

    def holds(self, leaves: list[Any], step: int) -> Tensor:
        """The condition at a step, for each of the rows that there were at the first one."""
        return self.going(leaves, step, next(leaf.shape[0] for leaf in leaves if is_row(leaf)))

    def advance(self, leaves: list[Any], step: int) -> list[Any]:
        """The loop variables after a step, checked."""
        result = self._called("body", self.body, leaves)
        if type(result) is list:
            result = tuple(result)
        new, spec = flatten_as(self.spec, result)
        if spec != self.spec:
            raise StepError(
                f"while_loop: body '{self.name}' changed the structure of the loop variables at step {step}",
                got=spec,
                expected=f"{self.spec} for ({', '.join(self.names)})",
                remedy="return all loop variables, nested as they came, (x,) for one",
            )
        new = kept_dtypes(leaves, new)
        with torch._C.DisableTorchFunction():  # as above
            changed = [
                f"{name} was {describe_leaf(a)}, became {describe_leaf(b)}"
                for name, a, b in zip(self.names, leaves, new, strict=True)
                if not _same(a, b)
            ]
        if changed:
            raise StepError(
                f"while_loop: body '{self.name}' changed a loop variable at step {step}",
                got="; ".join(changed),
                expected="the kind, shape and dtype that came in",
                remedy="start with the final shape and dtype, or collect what grows in a TensorArray",
            )
        return new


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, LoDTensor):
        return isinstance(b, LoDTensor) and (a.lod_level, a.dtype) == (b.lod_level, b.dtype)
    if isinstance(a, Tensor):
        plain = isinstance(b, Tensor) and not isinstance(b, LoDTensor)
        return plain and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    if isinstance(a, TensorArray):
        return isinstance(b, RowArray) == isinstance(a, RowArray) and isinstance(b, TensorArray)
    return type(a) is type(b)


def own_of(leaves: Sequence[Any]) -> list[Any]:
    """The leaves with arrays that can be written without the caller's, or an earlier state's, changing."""
    return [copy.copy(leaf) if isinstance(leaf, TensorArray) else leaf for leaf in leaves]


def _checkpointed(run: PlainRun, state: State, most: int) -> State:
    """`most` steps of which only the first state is kept; backward computes the rest again."""

    def segment(*values: Any) -> State:
        own = own_of(values)
        if state.rows is not None:
            state.rows.seen_by(own)
        return run.advance(replace(state, values=dict(zip(state.values, own, strict=True))), most)

    what = f"while_loop: body '{run.loop.body.name}'"
    values = state.values.values()
    return checkpointed(what, segment, *values, results=lambda state: list(state.values.values()))


def _check_parameters(kind: str, function: Callable[..., Any], count: int) -> None:
    """Refuse a function that does not take a value for each loop variable."""
    try:
        parameters = signature_of(function)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        parameters.bind(*range(count))
    except TypeError as error:
        name = step_name(function)
        raise StepError(
            f"while_loop: {kind} '{name}' does not take what it is called with: {error}",
            got=f"{name}{parameters}",
            expected=f"a parameter for each of the {count} loop variables",
            remedy="condition and body take all loop variables; what stays the same is closed over",
        ) from None


def _names(body: Callable[..., Any], spec: Spec) -> list[str]:
    """What the body calls each leaf."""
    try:
        parameters = list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found: list[str] = []
    for i, child in enumerate(spec.children):
        found += names(child, plain[i] if i < len(plain) else f"loop_vars[{i}]")
    return found
