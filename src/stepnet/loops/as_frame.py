"""A while loop over TensorArrays as a frame, for what saves a module: there it is seen how it uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stepnet.data.array import TensorArray
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import StepError
from stepnet.front.frame import WhileLoop
from stepnet.front.step import step_name
from stepnet.repeat import own_of

from .create import frame_of


def run_as_frame(
    cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Sequence[Any], max_steps: int | None
) -> Any:
    """What `while_loop` gives.

    Raises:
        StepError: the body gives another array than it is given, or Python needs the number in a value.
        IRError: the frame has no form that is saved.
    """
    leaves, spec = flatten(tuple(loop_vars))
    arrays = [isinstance(leaf, TensorArray) for leaf in leaves]
    values = own_of(leaves)
    first = [torch.as_tensor(leaf) for leaf, at in zip(values, arrays, strict=True) if not at]
    loop: WhileLoop = frame_of(body, first, max_steps)
    with loop.frame() as symbols:
        inside = _filled(values, arrays, symbols)
        loop.break_if(torch.logical_not(cond(*unflatten(spec, inside))))
        made, _ = flatten(tuple(body(*unflatten(spec, inside))))
        for old, new in zip(inside, made, strict=True):
            if not isinstance(old, TensorArray):
                loop.update(old, new)
            elif new is not old:
                raise StepError(
                    f"while_loop: body '{step_name(body)}' gives another TensorArray than it was given, "
                    "which is not saved",
                    remedy="write to the array, and give it back",
                )
    found = unflatten(spec, _filled(values, arrays, loop.results))
    return list(found) if isinstance(loop_vars, list) else found


def _filled(values: Sequence[Any], arrays: Sequence[bool], others: Sequence[Any]) -> list[Any]:
    rest = iter(others)
    return [value if at else next(rest) for value, at in zip(values, arrays, strict=True)]
