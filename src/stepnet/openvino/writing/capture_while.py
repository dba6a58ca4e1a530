"""While loops in a module that is traced: each is one node, and a Loop whose body computes its condition."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.api import replaced
from stepnet.compiler.reach import reach
from stepnet.compiler.record import tensors_used
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import IRError
from stepnet.front.step import describe_leaf, step_name
from stepnet.repeat import INSTEAD, while_loop
from stepnet.user_line import user_line

from .places import places_of

Path = tuple[int, ...]


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
    where: str
    sizes: list[Path]  # where condition and body refer to sizes that are left open

    def functions(self, sizes: Sequence[Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Condition and body with tensors in place of the sizes that they refer to."""
        cond, body = _with([self.cond, self.body], dict(zip(self.sizes, sizes, strict=True)))
        return cond, body


_CALLS: dict[int, WhileCall] = {}
_numbers = itertools.count()


def while_call(number: int) -> WhileCall:
    """The recorded loop that a node of the graph stands for."""
    return _CALLS[number]


@contextlib.contextmanager
def whiles(instead: Callable[..., Any] | None) -> Iterator[None]:
    """Let `instead` answer for the while loops that are called in here."""
    token = INSTEAD.set(instead)
    try:
        yield
    finally:
        INSTEAD.reset(token)


@torch.library.custom_op("stepnet::while_loop", mutates_args=())
def _while(call: int, state: list[Tensor], weights: list[Tensor], sizes: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("a while loop of a traced module is written, not run")


@_while.register_fake
def _(call: int, state: list[Tensor], weights: list[Tensor], sizes: list[Tensor]) -> list[Tensor]:
    return [value.new_empty(value.shape) for value in state]


class WhileRecorder:
    """Answers for a while loop by running it, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[int] = []

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
        first = [torch.as_tensor(leaf) for leaf in leaves]
        with whiles(None), replaced(None):
            going = cond(*unflatten(spec, leaves))
            if isinstance(going, Tensor) and going.numel() != 1:
                raise IRError(
                    f"{where} cannot be written: it has a condition per row",
                    got=describe_leaf(going),
                    remedy="(...).any() in the condition, and torch.where in the body",
                )
            given = [v.detach().clone() for v in first]
            used = tensors_used(lambda: _both(cond, body)(*unflatten(spec, given)), given)
            out = while_loop(cond, body, loop_vars, max_steps=max_steps)
        places = places_of(used, _both(cond, body), where)
        number = next(_numbers)
        _CALLS[number] = WhileCall(cond, body, spec, first, places, used, max_steps, where, [])
        self.calls.append(number)
        return out

    def forget(self) -> None:
        """Let go of what was kept."""
        for number in self.calls:
            _CALLS.pop(number, None)


class WhileTracer:
    """Answers for a while loop by one node of the graph that is being traced."""

    def __init__(self, calls: Sequence[int]) -> None:
        self.calls = iter(calls)

    def __call__(self, cond: Any, body: Any, loop_vars: Any, max_steps: int | None) -> Any:
        number = next(self.calls, None)
        if number is None:
            raise IRError("the module runs another number of while loops when it is traced")
        call = _CALLS[number]
        leaves, spec = flatten(tuple(loop_vars))
        tensors = reach(_both(cond, body), everything=True).tensors
        open_sizes = dict(_sizes([cond, body], ()))
        call.sizes = list(open_sizes)
        sizes = [torch.scalar_tensor(size, dtype=torch.int64) for size in open_sizes.values()]
        state = [
            leaf if isinstance(leaf, Tensor) else torch.scalar_tensor(leaf, dtype=like.dtype)
            for leaf, like in zip(leaves, call.first, strict=True)
        ]
        out = torch.ops.stepnet.while_loop(number, state, [tensors[p] for p in call.places], sizes)
        result = unflatten(spec, list(out))
        return list(result) if isinstance(loop_vars, list) else result


def refused(where: str) -> Callable[..., Any]:
    """What answers for a while loop inside a body: an error."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise IRError(f"{where} cannot be written: it runs a while loop inside")

    return refuse


class Picked(TorchFunctionMode):
    """`x[i]` with a tensor that holds one integer, which torch would ask for its number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            x, at = args
            if not at.dim() and not at.is_floating_point() and at.dtype != torch.bool:
                return x.index_select(0, at.reshape(1)).squeeze(0)
        return func(*args, **(kwargs or {}))


def _both(cond: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    def run(*values: Any) -> Any:
        return cond(*values), body(*values)

    return run


def _parts(value: Any) -> list[Any]:
    if type(value) is FunctionType:
        return [cell.cell_contents if _full(cell) else None for cell in value.__closure__ or ()]
    return list(value) if type(value) in (list, tuple) else []


def _full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _sizes(value: Any, path: Path, depth: int = 0) -> Iterator[tuple[Path, Any]]:
    """The sizes that are left open among what functions refer to."""
    if isinstance(value, torch.SymInt):
        yield path, value
    elif depth < 8:
        for i, part in enumerate(_parts(value)):
            yield from _sizes(part, (*path, i), depth + 1)


def _with(value: Any, new: dict[Path, Tensor]) -> Any:
    """A value with others in some places of what it refers to."""
    if () in new:
        return new[()]
    if not new:
        return value
    parts = [
        _with(part, {path[1:]: tensor for path, tensor in new.items() if path[0] == i})
        for i, part in enumerate(_parts(value))
    ]
    if type(value) is not FunctionType:
        return type(value)(parts)
    cells = tuple(
        CellType(part) if _full(cell) else cell
        for cell, part in zip(value.__closure__ or (), parts, strict=True)
    )
    twin = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    twin.__kwdefaults__ = value.__kwdefaults__
    return twin
