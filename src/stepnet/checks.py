"""A call of `recurrent`, checked in the user's words."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .compiler.reads.imports import after_imports
from .compiler.reads.undo import undone
from .compiler.trace.iteration import reached
from .data.arguments import check_dense
from .data.attributes import attribute
from .data.lod import LoDTensor
from .data.modes import draws_put_back
from .data.no_graph import no_graph_of, refuse_proxies
from .data.recording import AS_A_LAYER, StandIn
from .data.tree import flatten
from .data.values import rows_of, unpacked
from .errors import StepError
from .executors.setting import only_plain
from .front.static import with_static
from .front.step import StepBody, WithStatic, as_step, boot_state, check_rows_of, describe_leaf, step_name
from .interrupts import let_through
from .ir.loop import Loop


def checked(
    step: Any, x: Any, state: Any = None, *, level: int = -1, axis: int = 0
) -> tuple[StepBody, list[Any], list[Tensor]]:
    """A call of `recurrent`, checked: the step as a loop body, the leaves of x and those of the state.

    Raises:
        StepError: as `recurrent`.
    """
    function = as_step(step)
    x_leaves, x_spec = unpacked(x)
    check_inputs(x_leaves)
    check_features(function, x_leaves, level)
    ragged = any(isinstance(leaf, LoDTensor) for leaf in x_leaves)
    n = sequences_of(x_leaves[0], level, axis)
    if state is None:
        state = boot_state(function, n)
    state_leaves, state_spec = flatten(state)
    if not any(map(_is_distributed, map(rows_of, x_leaves))):
        state_leaves = [leaf.full_tensor() if _is_distributed(leaf) else leaf for leaf in state_leaves]
    body = StepBody(function, x_spec, state_spec)
    check_state(body, state_leaves, n if ragged else None)
    return body, x_leaves, state_leaves


def state_with_static(step: Any, x: Any, state: Any, static: Any, level: int, axis: int) -> WithStatic:
    """The state of a call and what its step sees at every step."""
    function = as_step(step)
    leaves, _ = unpacked(x)
    check_inputs(leaves)
    n = sequences_of(leaves[0], level, axis)
    return with_static(boot_state(function, n) if state is None else state, static, n, step_name(function))


def _is_distributed(leaf: Any) -> bool:
    """Whether a tensor is a DTensor: what a cell of sharded weights begins with is one."""
    return type(leaf) is not Tensor and hasattr(leaf, "full_tensor")


_TAKES = "tensors, LoDTensors or PackedSequences"
_SEVERAL = "several are a tuple, list, dict, NamedTuple or dataclass of such"


def check_inputs(leaves: list[Any]) -> None:
    if not leaves:
        raise StepError(
            "x holds no tensor, so there are no steps", remedy="pass a tensor or a LoDTensor as x, or steps="
        )
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            check_dense("x", leaf)
        if not isinstance(leaf, (Tensor, LoDTensor)):
            refuse_proxies(leaves)
            raise StepError(
                f"x must be {_TAKES}",
                got=type(leaf).__name__,
                remedy=AS_A_LAYER
                if isinstance(leaf, StandIn)
                else f"torch.as_tensor(...) or LoDTensor.from_sequences(...) makes one; {_SEVERAL}",
            )


def check_features(step: Any, leaves: list[Any], level: int) -> None:
    """Refuse rows without features for a step that says how many it takes: it would see rows as features."""
    cell = step
    while not isinstance(attribute(cell, "input_size"), int):
        of_ours = type(cell).__module__.startswith("stepnet.")  # else it may be a part of the step
        cell = getattr(cell, "cell", None) if of_ours else None
        if not isinstance(cell, nn.Module):
            return
    for leaf in leaves:
        above = isinstance(leaf, LoDTensor) and (level + 1) % leaf.lod_level
        values = rows_of(leaf)
        if not above and values.dim() - (not isinstance(leaf, LoDTensor)) < 2:
            raise StepError(
                f"x has no dimension of features for step '{step_name(step)}'",
                got=describe_leaf(leaf),
                expected=f"[time, batch, {cell.input_size}], a LoDTensor of rows [rows, {cell.input_size}]",
                remedy="x.unsqueeze(1) is one sequence as a batch, x.unsqueeze(-1) one feature"
                + (len(leaves) > 1) * "; LoDTensor.from_sequences(x) makes one x of a list of sequences",
            )


def check_batch(loop: Loop, body: StepBody, x: list[Any], state: list[Tensor], booted: bool) -> None:
    """Refuse [time, features] for a step that would take the features of one sequence for a batch, or give
    each row of a state all of them. `booted`: the step gave the initial state."""
    axis = loop.slices[0].axis
    lone = [leaf for leaf in x if leaf.dim() == 2 and leaf.is_floating_point() and leaf.shape[axis]]
    if len(lone) < len(x) or only_plain([*x, *state]) is not None or not state:
        return
    first = [leaf.select(axis, 0) for leaf in x]
    sizes = {len(leaf) if leaf.dim() > 1 else 1 for leaf in state}
    check = _check_booted if booted else _check_given
    if len(state[0]) > 1 if booted else len(sizes) == 1 and 1 not in sizes:
        reads = functools.partial(reached, loop, everything=True)
        after_imports(lambda: undone(reads().holders, loop, lambda _: check(body, x, first, state)))


def _run_once(body: StepBody, rows: list[Tensor], carried: list[Tensor]) -> list[Any]:
    y, new = StepBody(body.step, body.x_spec, body.state_spec).call(rows, carried)
    return [*flatten(y)[0], *new]


def _check_given(body: StepBody, x: list[Any], first: list[Tensor], state: list[Tensor]) -> None:
    """It gives each row of a state the same features if it runs on some rows as on all, and on no fewer
    features."""
    some = [leaf[1:] for leaf in state]
    with torch.no_grad(), draws_put_back():
        try:
            ours, fewer = _run_once(body, first, state), _run_once(body, first, some)
        except Exception as error:  # the step is the user's; the loop meets it, and tells it
            let_through(error)
            return
        with contextlib.suppress(Exception):
            _run_once(body, [rows[1:] for rows in first], some)
            return
    n = len(state[0])
    if all(t.dim() and len(t) == n and torch.equal(t[1:], rest) for t, rest in zip(ours, fewer, strict=True)):
        raise StepError(
            f"x has no batch, but the state of step '{body.name}' has {n} rows: each would see the same x_t",
            got=f"x {describe_leaf(x[0])}, state {describe_leaf(state[0])}",
            expected="x [time, batch, features], a state with a row for each sequence",
            remedy=f"x.unsqueeze(1).expand(-1, {n}, -1) gives all rows the same x; x[None] is one step",
        )


def _check_booted(body: StepBody, x: list[Any], first: list[Tensor], state: list[Tensor]) -> None:
    """It takes what it is given at a step as the features of one row if it runs on no other number of rows,
    and each of its results depends on all of them."""
    run = functools.partial(_run_once, body)
    with torch.no_grad(), draws_put_back():
        try:
            run([rows[1:] for rows in first], [leaf[1:] for leaf in state])
            return
        except Exception as error:  # of other kinds, too: the step is the user's
            let_through(error)
            moved = [torch.cat([rows[:1] + 1, rows[1:]]) for rows in first]
        try:
            ours, theirs = run(first, state), run(moved, state)
        except Exception as error:  # the loop meets it, and tells it
            let_through(error)
            return
    if not all(torch.equal(a[1:], b[1:]) for a, b in zip(ours, theirs, strict=True)):
        raise StepError(
            f"step '{body.name}' takes each x_t as the features of one sequence, but x has no batch",
            got=f"{describe_leaf(x[0])}, read as {len(state[0])} sequences of single numbers",
            expected="[time, batch, features]",
            remedy="x.unsqueeze(1) is one sequence as a batch",
        )


def sequences_of(x: Any, level: int, axis: int) -> int:
    """How many sequences x holds: entries of the LoD level, or the batch dimension beside `axis`."""
    if isinstance(x, LoDTensor):
        x.check_level(level, "recurrent: 'level'")
        return x.structure.count(level)
    shape = list(x.shape)
    if not -len(shape) <= axis < len(shape):
        raise StepError(
            f"x has no dimension {axis} to step along",
            got=describe_leaf(x),
            expected=f"axis={-len(shape)} to {len(shape) - 1}" if shape else "[time, batch, ...]",
        )
    del shape[axis]
    return shape[0] if shape else 1


def check_state(body: StepBody, leaves: list[Any], n: int | None) -> None:
    for name, leaf in zip(body.state_names, leaves, strict=True):
        if not isinstance(leaf, Tensor) or isinstance(leaf, LoDTensor):
            raise StepError(
                f"the initial {name} of step '{body.name}' must be a tensor",
                got=describe_leaf(leaf),
                remedy=f"pass one row per sequence, [n, ...]; {_SEVERAL}",
            )
        if n is not None:
            check_rows_of(f"{name} of step '{body.name}'", leaf, n)


def unscripted() -> NoReturn:
    """What torch.jit.script asks first, of a module and of a function that one calls."""
    raise no_graph_of("torch.jit.script")
