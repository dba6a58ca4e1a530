"""What stands for values while a frame is written: tensors without data, and what is known of them."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from stepnet.data.array import TensorArray, contents_of
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import unrecorded
from stepnet.data.recording import UNKNOWN, StandIn
from stepnet.data.values import rows_of
from stepnet.errors import StepError, StepnetError
from stepnet.user_line import Line

from .meta import without_data
from .step import describe_leaf
from .symbolic import Symbolic


@unrecorded
def like_values_of(array: TensorArray) -> Any:
    """A value like those in an array, None if it holds none."""
    if array.deferred is not None:
        waits: Any = array.deferred
        array = waits.example if isinstance(waits, Symbolic) else waits.stand_in_example()
        if array is None:
            return None
    contents = contents_of(array)
    if contents.whole is not None:
        return contents.whole[0]
    found = next(iter(contents.values.values()), contents.pattern)
    if isinstance(found, Tensor) and found.dim() and not contents.values and not found.shape[0]:
        return found.new_empty((1, *found.shape[1:]))  # of the rows of no sequences: as if there were one
    return found


def packed(array: TensorArray, *args: Any, **kwargs: Any) -> LoDTensor:
    """`array.pack(level, indices_map, lod)` of an array in a frame."""
    return array.pack(*args, **kwargs)


def _packed_like(array: TensorArray, level: Any, indices_map: Any, lod: Any = None) -> Any:
    """What that gives without data: a value like those in the array as one sequence, at every level."""
    value = like_values_of(array) if isinstance(array, TensorArray) else None
    if value is None or not rows_of(value).dim():
        return UNKNOWN
    below = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    return LoDTensor.from_lengths(rows_of(value), [*([1] for _ in lod or ()), [len(value)], *below])


def read_of(array: TensorArray, *args: Any, **kwargs: Any) -> Any:
    """`array.read(index, default)` of an array in a frame."""
    return array.read(*args, **kwargs)


def _read_like(array: Any, index: Any, default: Any = None) -> Any:
    """What that gives without data: how many values there are is not known."""
    value = like_values_of(array) if isinstance(array, TensorArray) else None
    return UNKNOWN if value is None else value


read_of.like = _read_like  # pyright: ignore[reportFunctionMemberAccess]
packed.like = _packed_like  # pyright: ignore[reportFunctionMemberAccess]


def first_place(index: Symbolic) -> Any:
    """An index without data: 0 for one that is a single integer; of uint8 it is a mask."""
    example = index.example
    single = isinstance(example, Tensor) and not example.dim()
    return 0 if single and example.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else index


def bare_leaf(leaf: Any) -> Any:
    """What stands for a result: without data, None where it is not known."""
    if isinstance(leaf, LoDTensor):
        return LoDTensor.of(without_data(leaf.values), leaf.structure)
    if isinstance(leaf, Tensor):
        return without_data(leaf)
    return None if leaf is UNKNOWN else leaf


def on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a function that makes tensors, so that it makes them without data."""
    return {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs


_BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul"
_IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in _BINARY.split())}


def in_place(function: Any, name: str) -> bool:
    """Whether a function changes what it is given."""
    ours = getattr(function, "__module__", None) == "_operator"  # and_, or_
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and not ours)


_PLAIN = Tensor, torch.nn.Parameter


def changing(told: Any, found: Any, line: str) -> StepError:
    """The error of a number that Python was told once, and that is another at another step."""
    return StepError(
        "Python needs one number for all steps of a frame, and this one changes from step to step",
        got=f"{told} at the first step, {found} ({line})",
        remedy=SYMBOLIC_SIZES,
    )


SYMBOLIC_SIZES = (
    "value.size(0), value.shape[0] and array.size() in place of len(): they are symbolic numbers, which "
    "torch functions, arithmetic and slices take"
)


def no_number(what: str, line: str) -> StepError:
    """The error of a number that Python needs while a frame is written."""
    return StepError(
        f"Python needs the number in a symbolic value ({what}), and it has none yet",
        got=line,
        remedy="loop.break_if(condition) ends the loop, torch.where(condition, a, b) chooses, "
        "~condition and torch.logical_not(condition) are its opposite",
    )


def meets_symbolic(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether an error in a frame is of what takes tensors alone, and says so of a symbolic value."""
    if isinstance(error, StepnetError) or not isinstance(error, (TypeError, ValueError, RuntimeError)):
        return False
    return "symbolic" in str(error).lower()


def no_tensor(error: Exception) -> StepError:
    """The error of a frame that hands a symbolic value to what takes tensors alone."""
    at = error.__traceback__  # of the frame's own lines
    reason = str(error).splitlines()[0]
    return StepError(
        f"a symbolic value is no tensor, and what the frame calls takes tensors alone: {reason}",
        got=None if at is None else Line(at.tb_frame.f_code.co_filename, at.tb_lineno).short,
        remedy="stepnet.map_fn(function, value) calls a function with tensors, for each row: torch.func's "
        "transforms, vmap, custom Functions",
    )


def does_not_fit(name: str, error: Exception, given: Iterable[Any], line: str, at: str = "") -> StepError:
    """The error of a call in a frame that does not take the values that it is given."""
    return StepError(
        f"in the frame, '{name}' fails{at}: {str(error).splitlines()[0]}",
        got=f"{', '.join(describe_leaf(v) for v in given)} ({line})",
        remedy="in a frame a loop variable has the shape of its first value, a step that of its array's",
    )


def key_of(value: Any) -> Any:
    """What decides on the shape and dtype of results, hashable; None: nothing known does."""
    if isinstance(value, StandIn):
        like = key_of(value.stand_in_example())
        return None if like is None else (StandIn, like)
    if isinstance(value, Symbolic):
        return key_of(value.example)
    if isinstance(value, Tensor):
        if type(value) not in _PLAIN:  # what a fake tensor gives, or a subclass, says nothing of plain ones
            return None
        with torch._C.DisableTorchFunction():  # a trace of a step around is not asked how its rows lie
            return value.shape, value.stride(), value.dtype
    if isinstance(value, TensorArray) and value.deferred is None:
        contents = contents_of(value)  # of one that is made at each step and not filled yet
        empty = contents.whole is None and contents.pattern is None and not contents.values
        return (TensorArray, contents.size) if empty else None
    return (int, value) if type(value) is int else None


def named(result: Any) -> Any:
    """torch's named results (of `max`, `sort`) as namedtuples, which hold symbolic values too; a size as a
    tuple."""
    if isinstance(result, torch.Size):
        return tuple(result)
    if isinstance(result, tuple) and hasattr(result, "n_fields"):
        kind: Any = type(result)
        return _named_kind(kind.__name__, kind.__match_args__)(*result)
    return result


@functools.cache
def _named_kind(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, fields)
