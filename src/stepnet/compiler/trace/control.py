"""`torch.cond` and torch's `while_loop` in a step that is tried or traced: as Python's `if` and `while`.

torch compiles each such call by itself, which it cannot do for what is traced. The predicate is then asked
for its truth value like any other (see `data_dependent`). As torch has it, a gradient of zeros flows to what
the branch that is not taken would have read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import utils as _torch_control
from torch._higher_order_ops.while_loop import while_loop_dense
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.swapped import Swapped
from stepnet.data.autograd_history import history
from stepnet.data.modes import is_wrapped
from stepnet.data.tree import by_leaf, leaves, map_leaves
from stepnet.watchers import during

_plain: ContextVar[bool] = ContextVar("stepnet_plain_control", default=False)
_both: ContextVar[bool] = ContextVar("stepnet_both_branches", default=False)


@contextlib.contextmanager
def plain_control() -> Iterator[None]:
    """Let torch's control flow be Python's in here, in this thread."""
    with during(_plain, True), _CALL.inside() if hasattr(_torch_control, _NAME) else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def both_branches() -> Iterator[None]:
    """Let torch.cond be a choice among what both branches give, in here: for a graph that has no branches."""
    with during(_both, True), plain_control():
        yield


def _called(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    """What torch calls to compile its control flow: a wrapper of the operator, and what that takes."""
    meaning = _MEANINGS.get(getattr(function, "__name__", "")) if _plain.get() else None
    return _CALL.original(function, args, kwargs) if meaning is None else meaning(*args)


def _cond(predicate: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any) -> Any:
    if isinstance(predicate, Tensor) and (_both.get() or is_wrapped(predicate)):
        chosen = predicate.reshape(())
        return by_leaf(lambda a, b: torch.where(chosen, a, b), if_true(*operands), if_false(*operands))
    taken, other = (if_true, if_false) if predicate else (if_false, if_true)
    with _Met() as met:
        result = taken(*operands)
        with torch.no_grad():
            other(*operands)
    return _with_zeros(result, [*leaves(operands, Tensor), *met.tensors])


def _while(cond: Callable[..., Any], body: Callable[..., Any], carried: Any, more: Any) -> Any:
    with _Met() as met:
        result = while_loop_dense(cond, body, tuple(carried), tuple(more))
    return _with_zeros(result, [*leaves(carried, Tensor), *met.tensors])


_NAME = "_hop_compile_and_call"  # of newer torch; with others such steps run by the plain loop
_CALL = Swapped(_torch_control, _NAME, _called)
_MEANINGS = {"_cond_op_wrapper": _cond, "_while_loop_op_wrapper": _while}


class _Met(TorchFunctionMode):
    """Notes the tensors that a piece of code reads and did not make."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []
        self._seen: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in leaves((args, kwargs), Tensor):
            if id(tensor) not in self._seen:
                self.tensors.append(tensor)
                self._seen[id(tensor)] = tensor
        result = func(*args, **kwargs)
        self._seen |= {id(t): t for t in leaves(result, Tensor)}
        return result


class _Zeros(torch.autograd.Function):
    """A value as it is, with a gradient of zeros for what else is read."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor) -> Tensor:  # pyright: ignore
        ctx.others = [(t.shape, t.dtype, t.device) for t in others]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return (grad, *(torch.zeros(s, dtype=d, device=at) for s, d, at in ctx.others))


def _with_zeros(result: Any, read: Sequence[Tensor]) -> Any:
    """A result with a gradient of zeros for those of the tensors read that it does not follow from."""
    read = list({id(t): t for t in read if t.requires_grad and t.is_floating_point()}.values())
    if not read or not torch.is_grad_enabled():
        return result
    aliases = [t.view_as(t) for t in read]  # of the traced tensors, where others stand for those read
    native: Any = torch._C
    with native.DisableTorchFunction():  # it is not the step that asks
        made = [(t.grad_fn, t.output_nr) for t in leaves(result, Tensor)]
        nodes = history(node for node, _ in made)
        reached = {*made, *(edge for node in nodes for edge in node.next_functions)}
        others = [t for t in aliases if t.grad_fn is not None and t.grad_fn.next_functions[0] not in reached]

    def reaches_all(tensor: Tensor) -> Any:
        return _Zeros.apply(tensor, *others) if others and tensor.is_floating_point() else tensor

    return map_leaves(result, Tensor, reaches_all)
