"""The joint graph of a function and of its gradients.

Most functions are recorded by `recorder`, others by torch's tracers (`torch_tracers`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import traceback as fx_traceback

from stepnet.data.autograd_history import gradients_from, history
from stepnet.errors import Unsupported
from stepnet.user_line import raised_at

from .logs_and_prints import no_remarks
from .recorder import Writes, WritesIntoGiven, recorded
from .row_count import NAME, AsNumber, Unusual
from .symbolic_rows import blank
from .traces import Decompositions, Flat, Input, Recorded, finished, recording
from .writes import written_over

_LIBRARY = torch.library.Library("stepnet_joint", "DEF")
_LIBRARY.define("tangent(Tensor result) -> Tensor")


_LIBRARY.define("matrix_exp_grad(Tensor matrix, Tensor direction) -> Tensor")


@torch.library.impl(_LIBRARY, "matrix_exp_grad", "CompositeExplicitAutograd")
def _matrix_exp_grad(matrix: Tensor, direction: Tensor) -> Tensor:
    return torch.empty_like(direction)


@torch.library.impl(_LIBRARY, "tangent", "CompositeExplicitAutograd")
def _tangent(result: Tensor) -> Tensor:
    return torch.empty_like(result)


@no_remarks()  # what runs as gradients are traced may print, too: hooks, and custom Functions in backward
def joint_graph(
    run: Flat, inputs: Sequence[Input], with_gradients: bool, decompositions: Decompositions
) -> Recorded:
    """The joint graph of a function of tensors, whose results share no memory with its inputs.

    Args:
        run: the function.
        inputs: what it is given.
        with_gradients: whether there are tangents and gradients at all.
        decompositions: what each op is replaced with.

    Raises:
        Unsupported: it depends on the number of rows. Whatever `run` raises comes through.
    """
    function = _joint(run) if with_gradients else run
    outlines = [blank(i.shape, i.dtype, rows=i.rows).requires_grad_(i.grad) for i in inputs]
    made, writes, numbered_at = None, False, None
    with _dispatch_kept():
        try:
            with recording(with_gradients):
                graph, constants = recorded(function, outlines, decompositions)
            made = Recorded(finished(graph), constants, NAME)
        except (Unusual, Exception) as error:  # torch's tracer knows, or tells it in its own words
            numbered_at = raised_at(error) if isinstance(error, AsNumber) else None
            if isinstance(error, Unsupported) and not _asked_for_numbers(error):
                raise
            if isinstance(error, WritesIntoGiven):
                raise RuntimeError("it mutates what it is given") from error
            writes = isinstance(error, Writes)
    if made is None:
        from .torch_tracers import by_torch  # a second of imports

        return by_torch(function, run, inputs, with_gradients, decompositions, writes=writes,
                        numbered_at=None if numbered_at is None else numbered_at.short)  # fmt: skip
    return made


def _asked_for_numbers(error: BaseException | None) -> bool:
    """Whether an error comes of a function in torch's C++ that wants each size as a number, as matmul does up
    to torch 2.6; its tracer has those in Python."""
    while error is not None:
        if isinstance(error, RuntimeError) and "symbolic sizes/strides" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _dispatch_kept() -> contextlib.AbstractContextManager[None]:
    """What torch dispatches to is as before in the end. Frames of torch's that an error ended in may hold
    guards, which put back what was in force in them as they are freed."""
    now = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(*now)


def _joint(run: Flat) -> Callable[..., tuple[Tensor | None, ...]]:
    """A function that gives the results of another one and the gradients of its inputs."""

    def joint(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        results = run(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        follow = [t for t in results if t.requires_grad]
        with torch.no_grad():
            tangents = [torch.ops.stepnet_joint.tangent(t) for t in follow]
        parts: Any = ()
        if follow and wanted:
            _keep_lines([t.grad_fn for t in follow if t.grad_fn is not None])
            with torch.autocast("cpu", enabled=False):  # a loss is differentiated outside of it
                try:
                    parts = gradients_from(follow, tangents, wanted)
                except RuntimeError as error:
                    if (refusal := written_over(error, _forward_line())) is None:
                        raise
                    raise refusal from error
        gradients = iter(parts)
        return (*results, *(next(gradients, None) if t.requires_grad else None for t in inputs))

    return joint


def _forward_line() -> str | None:
    """The line of the forward call whose gradient was being computed."""
    return (fx_traceback.current_meta.get("stack_trace") or "").strip() or None


def _keep_lines(roots: Sequence[Any]) -> None:
    """Have calls of a backward pass noted with the line and the number of their forward call."""

    def before(stack: list[str], number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            fx_traceback.set_stack_trace(stack)
            fx_traceback.set_grad_fn_seq_nr(number)

        return note

    def after(*_: Any) -> None:  # gradients that meet are added up behind it, in its line
        fx_traceback.reset_grad_fn_seq_nr()

    for node in history(roots):
        node.register_prehook(before(node.metadata.get("traceback_", []), node._sequence_nr()))
        node.register_hook(after)
