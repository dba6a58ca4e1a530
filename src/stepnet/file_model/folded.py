"""Constants that are part of a function of a graph, and whether they still hold what it read."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from ctypes import string_at
from itertools import starmap

from torch import Tensor

from stepnet.data.storage import differ
from stepnet.data.unpatched_torch import data_ptr

_FEW = 256  # bytes, of fewer a copy is made faster than two addresses are compared at


class Folded:
    """Constants that are part of a function: where they are, and of those that it has read the numbers of,
    every one. No count of changes tells what is written by `.data`, or by another library.

    Args:
        constants: those, by their keys.
        numbers: of some, copies of what the function read.
    """

    __slots__ = ("_bits", "_few", "_lie", "_many", "_places", "_tensors", "keys")

    def __init__(self, constants: Mapping[Hashable, Tensor], numbers: Mapping[Hashable, Tensor]) -> None:
        self.keys, self._tensors = list(constants), list(constants.values())
        self._places = [*map(data_ptr, self._tensors)]
        few = [key for key, copy in numbers.items() if copy.nbytes <= _FEW]
        self._lie = [(data_ptr(constants[key]), numbers[key].nbytes) for key in few]
        self._few = [string_at(data_ptr(numbers[key]), numbers[key].nbytes) for key in few]
        self._bits = [copy for key, copy in numbers.items() if key not in few]
        self._many = [
            (data_ptr(constants[key]), data_ptr(copy), copy.nbytes)
            for key, copy in numbers.items()
            if key not in few
        ]

    def are_still(self, now: Sequence[Tensor]) -> bool:
        """Whether they are what they were; `now`: the constants of its `keys`."""
        return not self.keys or (
            all(map(operator.is_, now, self._tensors))
            and [*map(data_ptr, now)] == self._places
            and [*starmap(string_at, self._lie)] == self._few
            and not any(starmap(differ, self._many))
        )
