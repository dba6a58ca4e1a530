"""Which tensors a call changes, and which calls let others change them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line

# What gives a tensor's memory to code that may write into it, of which no mode is told.
SHOWS_MEMORY = frozenset({Tensor.numpy, Tensor.__array__, Tensor.__dlpack__})
# What has a tensor's gradient handed to other code from then on.
HOOKS_ON = frozenset({Tensor.register_hook, Tensor.register_post_accumulate_grad_hook})
# What gives a tensor other memory, after which neither what it is nor its version tells of another value.
_GIVES_MEMORY: frozenset[Any] = frozenset({vars(torch._C.TensorBase)["data"].__set__, torch.ops.aten.set_})
_READ_ONLY = frozenset({"__invert__", "__int__", "__index__", "__iter__"})  # they begin like __iadd__


def hooks_on_others() -> Unsupported:
    """Why a step is refused that hooks onto what it is given or reads: of a state, that may be y, too."""
    return Unsupported(
        "the step registers a hook on the gradient of a tensor that it did not make, at every step",
        remedy="register it on what the step makes; or, before the call, on x, the first state or a weight",
        line=user_line().short,
    )


def refuse_other_memory(func: Any) -> None:
    """Raises Unsupported: a call, of a function or of an operator, gives a tensor other memory."""
    if (func.overloadpacket if isinstance(func, OpOverload) else func) in _GIVES_MEMORY:
        raise Unsupported(
            "the step gives a tensor other memory, by `.data =` or `set_`",
            remedy="make a new tensor, or write into this one by copy_",
            line=user_line().short,
        )


def written_over(error: BaseException, line: str | None) -> Unsupported | None:
    """Why a step is refused for which torch raised this as it computed gradients: None for other errors.

    Args:
        error: what torch raised.
        line: that of the call whose gradient it was.
    """
    if "modified by an inplace operation" not in str(error):
        return None
    return Unsupported(
        "torch has no gradient of the step: a value that this line's gradient needs is written into later",
        remedy="write into a clone() of it, or make a new tensor, as x = x + 1 does for x += 1; or run "
        "the step under torch.no_grad()",
        line=line,
    )


def writes(name: str) -> bool:
    """True for torch functions that change their first argument.

    >>> [writes(name) for name in ("add_", "__iadd__", "__setitem__", "add", "__add__")]
    [True, True, True, False, False]
    """
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place or name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in _READ_ONLY)
    )


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that a call changes."""
    name = getattr(func, "__name__", "").partition(".")[0]
    if args and (writes(name) or kwargs.get("inplace")):
        yield from leaves(args[0], Tensor)
    if "out" in kwargs:
        yield from leaves(kwargs["out"], Tensor)
    if name in _STATISTICS:  # they keep those of what they are given, and say so in no schema
        flag, default = ("use_input_stats", True) if name == "instance_norm" else ("training", False)
        if kwargs.get(flag, args[5] if len(args) > 5 else default):
            first = 1 if isinstance(func, types.FunctionType) else 3
            yield from leaves([*args[first : first + 2], kwargs.get("running_mean")], Tensor)
    if kwargs.get("max_norm") is not None:  # of an embedding, whose table is renormed
        yield from leaves([*args[1:2], kwargs.get("weight")], Tensor)
    for place, named, many in _by_schema(func):
        given = kwargs.get(named) if place is None else next(iter(args[place : place + 1]), kwargs.get(named))
        if isinstance(given, (list, tuple)) is many:
            yield from leaves(given, Tensor)


_STATISTICS = frozenset({"batch_norm", "instance_norm", "native_batch_norm"})


@functools.lru_cache(4096)
def _by_schema(func: Any) -> tuple[tuple[int | None, str, bool], ...]:
    """Which arguments an operator's schemas say that it changes: place, name, and whether it is a list."""
    if isinstance(func, OpOverload):
        schemas = [func._schema]
    elif isinstance(func, OpOverloadPacket):
        schemas = [getattr(func, overload)._schema for overload in func.overloads()]
    elif isinstance(func, types.BuiltinFunctionType):
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{func.__name__}")
    else:
        return ()
    return tuple(
        {
            (None if argument.kwarg_only else place, argument.name, str(argument.type).startswith("List"))
            for schema in schemas
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
    )
