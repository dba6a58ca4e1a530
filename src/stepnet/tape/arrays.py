"""TensorArrays on a tape: one that holds items, or that a recorded loop fills, is the value of an item."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from stepnet.data.array import TensorArray, written

Record = Callable[..., Any]


def record_array_call(
    record: Record, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record the call of a TensorArray's method.

    What changes the array is recorded as a function that gives a changed one.
    """
    array, *others = args
    name = method.__name__
    if name == "__init__":
        array.deferred = record("tensor_array", TensorArray, others, kwargs)
        return None
    before = array.deferred if array.deferred is not None else copy.copy(array)
    if name == "write":
        array.deferred = record("write", written, (before, *others), kwargs)
        return None
    if name == "unstack":
        array.deferred = record("unstack", TensorArray.unstack, others, kwargs)
        return array
    if name == "unpack":
        both = record("unpack", TensorArray.unpack, others, kwargs)
        array.deferred, indices_map = both
        return array, indices_map
    return record(name, Method(name), (before, *others), kwargs)


class Method:
    """A method by name, so that it is that of a LoDTensor where the value is one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, self.name)(*args, **kwargs)
