"""A module as a graph of aten calls in which each recurrence is one node. The only file here that touches
torch's tracing.

The module is run once for real, and its recurrences are noted with their plans; then it is exported with
symbolic sizes, and every recurrence becomes one call of an operator of its own.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node as FxNode
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from stepnet.api import checked, recurrent, replaced
from stepnet.compiler.capture import Replaced
from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.reach import reach
from stepnet.compiler.record import tensors_used
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.data.values import SIZE
from stepnet.engine import find_plan
from stepnet.errors import IRError, Unsupported
from stepnet.executors.naive import PLAIN
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.front.step import StepBody, as_loop
from stepnet.user_line import line_run_by, user_line

from .places import places_of


@dataclass
class Call:
    """A call of `recurrent`, as it was made for real: what it was given, what it gave, and its plan."""

    body: StepBody
    x: list[Any]
    state: list[Tensor]
    reverse: bool
    axis: int
    places: list[int]  # of the tensors the step uses, among those it reaches
    weights: list[Tensor]
    compiled: Compiled | None
    refusal: Unsupported | None
    y: list[Any]
    y_spec: Spec
    line: str
    alone: bool = False  # whether its one row is all there ever is

    @property
    def ragged(self) -> bool:
        """Whether it runs over sequences of different lengths."""
        return isinstance(self.x[0], LoDTensor)


_CALLS: dict[int, Call] = {}
_numbers = itertools.count()


@torch.library.custom_op("stepnet::recurrence", mutates_args=())
def _recurrence(
    call: int, x: list[Tensor], state: list[Tensor], weights: list[Tensor], lengths: list[Tensor]
) -> list[Tensor]:
    raise RuntimeError("a recurrence of a traced module is written, not run")


@_recurrence.register_fake
def _(
    call: int, x: list[Tensor], state: list[Tensor], weights: list[Tensor], lengths: list[Tensor]
) -> list[Tensor]:
    made = _CALLS[call]
    first = x[0]
    if made.ragged:
        lead, batch = [first.shape[0]], state[0].shape[0] if state else 0
    else:
        lead, batch = list(first.shape[:2]), first.shape[int(made.axis != 1)]
    for leaf in state if not made.ragged else ():
        torch._check(leaf.shape[0] == batch)
    for leaf in x[1:]:
        for own, other in zip(leaf.shape, lead, strict=False):
            torch._check(own == other)
    rows = _row_shapes(made, x, state, weights)
    out = [first.new_empty([*lead, *shape], dtype=dtype) for shape, dtype in rows]
    return out + [s.new_empty([batch, *s.shape[1:]]) for s in state]


def _row_shapes(
    made: Call, x: list[Tensor], state: list[Tensor], weights: list[Tensor]
) -> list[tuple[Any, torch.dtype]]:
    """Shape of one row and dtype of each leaf of y."""
    known = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in made.y]
    if made.axis > 1 and not made.ragged:
        known = [leaf.movedim(made.axis, 0) for leaf in known]
    skip = 1 if made.ragged else 2
    fixed = [*(t.shape[skip:] for t in x), *(s.shape[1:] for s in state), *(w.shape for w in weights)]
    if made.ragged or all(isinstance(size, int) for shape in fixed for size in shape):
        return [(t.shape[skip:], t.dtype) for t in known]
    swap = {id(t): fake for t, fake in zip(made.weights, weights, strict=True)}
    with Replaced(swap):
        y, _ = StepBody(made.body.step, made.body.x_spec, made.body.state_spec).call(
            [t.select(int(made.axis == 1), 0) for t in x], state
        )
    return [(t.shape[1:], t.dtype) for t in flatten(y)[0]]


@torch.library.custom_op("stepnet::sequences", mutates_args=())
def _sequences(kind: str, rows: Tensor, x: Tensor, lengths: Tensor, pad: float) -> Tensor:
    raise RuntimeError("an operation on the sequences of a traced module is written, not run")


@_sequences.register_fake
def _(kind: str, rows: Tensor, x: Tensor, lengths: Tensor, pad: float) -> Tensor:
    if kind == "softmax":
        return torch.empty_like(x)
    return x.new_empty([(rows if kind == "expand" else lengths).shape[0], *x.shape[1:]])


class Recorder:
    """Answers `recurrent` by running it, and keeps what was asked."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self._alone = False

    def alone(self, decide: Callable[[], bool]) -> bool:
        """Whether the next recurrence runs over values that are no batches."""
        self._alone = decide()
        return self._alone

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        line = user_line().short
        if scopes:
            raise IRError(
                f"the recurrence at {line} cannot be written: it keeps scopes", remedy="scopes=False"
            )
        with replaced(None):
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
            first = x_leaves[0]
            ragged = isinstance(first, LoDTensor)
            if ragged and level % first.lod_level != first.lod_level - 1:
                raise IRError(
                    f"the recurrence of step '{body.name}' ({line}) cannot be written: "
                    "its steps are whole sequences",
                    got=f"level={level} of {first.lod_level}",
                    expected="a recurrence over the rows of each sequence",
                )
            compiled = refusal = None
            found = reach(body.step, everything=True)
            places: list[int] = []
            try:
                loop, feeds = as_loop(body, x_leaves, state_leaves, reverse=reverse, level=level, axis=axis)
                entry, reads, _ = find_plan(loop, feeds, backend=TORCH_OPS.name)
                compiled = entry.compiled
                read = [reads.tensors[p] for p in entry.weights] if compiled is not None else []
                places = places_of(read, body.step, f"step '{body.name}' ({line})", owner="step")
                if entry.ready is None:
                    compiled, refusal = None, entry.refusals[-1][1]
            except Unsupported as error:
                refusal = error
            if compiled is None:
                places = _used(body, x_leaves, state_leaves, axis, line)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y, final = recurrent(
                    step, x, state, reverse=reverse, level=level, axis=axis,
                    backend=TORCH_OPS.name if compiled is not None else PLAIN.name,
                )  # fmt: skip
        y_leaves, y_spec = flatten(y)
        number = next(_numbers)
        _CALLS[number] = Call(
            body, x_leaves, state_leaves, reverse, axis if ragged else axis % first.dim(), places,
            [found.tensors[p] for p in places], compiled, refusal, y_leaves, y_spec, line, self._alone,
        )  # fmt: skip
        self._alone = False
        self.calls.append(number)
        return y, final

    def forget(self) -> None:
        """Let go of what was kept."""
        for number in self.calls:
            _CALLS.pop(number, None)


def _used(body: StepBody, x: list[Any], state: list[Tensor], axis: int, line: str) -> list[int]:
    """Places of the tensors that a step without a plan reads."""
    if isinstance(x[0], LoDTensor):
        return []
    first = [leaf.select(axis, 0) for leaf in x]
    clone = StepBody(body.step, body.x_spec, body.state_spec)
    used = tensors_used(lambda: clone.call(first, state), [*first, *state])
    return places_of(used, body.step, f"step '{body.name}' ({line})", owner="step")


class Tracer:
    """Answers `recurrent` by one node of the graph that is being traced."""

    def __init__(self, calls: Sequence[int], lengths: Callable[[LoDTensor], Tensor]) -> None:
        self.calls = list(calls)
        self.lengths = lengths
        self.at = 0

    def alone(self, decide: Callable[[], bool]) -> bool:
        """What was decided when the next recurrence was made for real."""
        return self.at < len(self.calls) and _CALLS[self.calls[self.at]].alone

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        with replaced(None):
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
        if self.at == len(self.calls):
            raise IRError("the module makes another number of recurrences when it is traced")
        number = self.calls[self.at]
        self.at += 1
        made = _CALLS[number]
        tensors = reach(body.step, everything=True).tensors
        weights = [tensors[p] for p in made.places]
        lengths: list[Tensor] = []
        given = x_leaves
        if made.ragged:
            given, lengths = [leaf.values for leaf in x_leaves], [self.lengths(x_leaves[0])]
        else:
            given = [leaf if made.axis <= 1 else leaf.movedim(made.axis, 0) for leaf in given]
        out = torch.ops.stepnet.recurrence(number, list(given), list(state_leaves), weights, lengths)
        y = list(out[: len(made.y)])
        if made.ragged:
            y = [LoDTensor._make(leaf, x_leaves[0]._lod) for leaf in y]
        elif made.axis > 1:
            y = [leaf.movedim(0, made.axis) for leaf in y]
        return unflatten(made.y_spec, y), unflatten(body.state_spec, list(out[len(made.y) :]))

    def sequences(self, kind: str, of: LoDTensor, x: Tensor, pad: float) -> Tensor:
        """An operation on whole sequences as one node."""
        return torch.ops.stepnet.sequences(kind, of.values, x, self.lengths(of), float(pad))


class _Number:
    """A size that is any number in what is written, though it was one number in the trace."""

    class _Expression:
        def __init__(self, expr: Any) -> None:
            self.expr = expr

    def __init__(self, name: str) -> None:
        self.node = self._Expression(sympy.Symbol(name, integer=True))

    def __str__(self) -> str:
        return str(self.node.expr)


BATCH = _Number("sequences")


def call_of(number: int) -> Call:
    """The recorded call that a node of the graph stands for."""
    return _CALLS[number]


class _Lines(TorchFunctionMode):
    """Tells torch's tracing which line of the user's code each call is in."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = line_run_by(__file__)
        fx_traceback.set_stack_trace([line.short] if line else [])
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and isinstance(args[0], torch.SymInt):
            setattr(result, SIZE, args[0])  # else a number that the trace knows nothing of
        return result


class _Traced(nn.Module):
    """A function of tensors as a module, with `owner` (if it is one) among its own."""

    def __init__(self, run: Callable[..., Sequence[Tensor]], owner: Any) -> None:
        super().__init__()
        self.run = run
        if isinstance(owner, nn.Module):
            self.owner = owner

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        with _Lines():
            return tuple(self.run(*leaves))


def traced(
    run: Callable[..., Sequence[Tensor]], owner: Any, leaves: Sequence[Tensor],
    dynamic: Sequence[dict[int, bool]], where: str,
) -> ExportedProgram:  # fmt: skip
    """Export a function of tensors.

    Args:
        run: the function.
        owner: the module whose parameters it reads, if it reads any.
        leaves: examples of its arguments.
        dynamic: for each the dynamic dimensions; True: must be, False: where nothing speaks against it.
        where: what is traced, for errors.

    Raises:
        IRError: it cannot be traced, or a dimension that must be dynamic is not.
    """
    shapes = tuple({d: Dim.DYNAMIC if must else Dim.AUTO for d, must in dims.items()} for dims in dynamic)
    try:
        with warnings.catch_warnings(), torch.no_grad(), fx_traceback.preserve_node_meta():
            warnings.simplefilter("ignore")
            return export(
                _Traced(run, owner), tuple(leaves), dynamic_shapes=(shapes,) if leaves else None, strict=False
            )
    except (IRError, Unsupported):
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # torch wraps what the module raised
            if isinstance(cause, IRError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        text = str(error).strip().splitlines()
        raise IRError(
            f"{where} cannot be written: it could not be traced with sizes left open",
            got=f"{type(error).__name__}: {text[0] if text else ''}",
            remedy="let sizes come from tensors (x.shape[0]), and use no Python control flow on values",
        ) from error


def lowered(program: ExportedProgram, known: Callable[[FxNode], bool]) -> ExportedProgram:
    """The program with calls that are not `known` taken apart into simpler ones."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    if all(known(n) for n in calls):
        return program
    table = torch.export.default_decompositions()
    kept = {n.target for n in calls if known(n)}
    for overload in [o for o in table if o in kept]:
        del table[overload]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return program.run_decompositions(table)


def sizes_of(value: Tensor, batch: int = 0) -> list[Any]:
    """The shape of a traced tensor. A size that the trace found to be fixed is an int; `batch` is the number
    that stands for any number of sequences."""
    sizes = [
        int(size.node.expr) if isinstance(size, torch.SymInt) and size.node.expr.is_Integer else size
        for size in value.shape
    ]
    return [BATCH if batch and isinstance(size, int) and size == batch else size for size in sizes]


def line_of(node: FxNode) -> str | None:
    """The line of the user's code that a traced call came from, as file:line."""
    found = (node.meta.get("stack_trace") or "").strip()
    return found if found and "\n" not in found else None
