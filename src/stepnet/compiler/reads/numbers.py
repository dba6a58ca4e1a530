"""Python's numbers that a step hands to torch, as inputs of a trace: what a schedule changes.

Which number is meant is told by the call of torch it is an argument of, counted as the step runs. What Python
does with numbers before that (an `if`, `math.exp`) it does at each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.data.row_functions import functions_named
from stepnet.errors import Unsupported

from .ranges import RANGES

_FLOATS = (float, np.float64)


# Whose result depends on a whole number as on any other; elsewhere it may be a size or a place.
_ARITHMETIC = functions_named(
    "add sub subtract mul multiply div divide true_divide rsub pow eq ne lt le gt ge __add__ __radd__ "
    "__iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ "
    "__div__ __rdiv__ __pow__ __rpow__ __ipow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ add_ sub_ mul_ "
    "div_ pow_"
)
_PROMOTING = _ARITHMETIC | functions_named("where remainder fmod __mod__ maximum minimum")
_SUMS = functions_named("add sub subtract add_ sub_")
_LERP = functions_named("lerp lerp_")
_OF_TENSORS = functions_named("clamp clip masked_fill")  # which take tensors of a number in their place
WITH_ANY_NUMBER = _PROMOTING | _LERP | _OF_TENSORS  # which refuse none, and mean the same by each
# Numbers are in torch as they are in tensors of these; with sixteen bits it computes in more.
_AS_TENSORS = frozenset({torch.float32, torch.float64, torch.int64})


class Number(NamedTuple):
    """A number among the arguments of a call: of which function, where, and what it is."""

    func: Any
    place: int | str
    value: Any

    @property
    def coded(self) -> Any:
        """The number as part of a key."""
        return repr(self.value)  # tells -0.0 from 0.0

    @property
    def kind(self) -> Any:
        """What numbers have in common that may stand in each other's place."""
        return self.func, self.place, type(self.value)


def numbers_in(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Number]:
    """The numbers that a call is given, but for those that may be sizes, places or flags."""
    kinds = (*_FLOATS, int) if func in _ARITHMETIC else _FLOATS
    for place, value in (*enumerate(args), *kwargs.items()):
        if type(value) in kinds:
            yield Number(func, place, value)


def but_for_numbers(key: Iterable[Any]) -> tuple[Any, ...]:
    """The key of a walk without the numbers in it."""
    return tuple([_blank(item) for item in key])


def _blank(item: Any) -> Any:
    kind = type(item)
    if kind is int:
        return int
    return item[0] if kind is tuple and item and item[0] in _CODED else item


_CODED = (float, np.dtype(np.float64).str)  # numpy's have a shape besides


class Lifted(NamedTuple):
    """Numbers that a trace is to leave open.

    Attributes:
        numbers: all that the step hands to torch, in the order of its calls.
        tensors: what stands for some of them, by their places in that order.
    """

    numbers: Sequence[Number]
    tensors: Mapping[int, Tensor]


def as_tensor(number: Number, device: torch.device) -> Tensor:
    """The input that stands for a number."""
    dtype = torch.int64 if type(number.value) is int else torch.float64
    return torch.tensor(number.value, dtype=dtype, device=device)


class InTheirPlace(TorchFunctionMode):
    """Hands torch what a trace may leave open in the place of numbers.

    Args:
        lifted: the numbers.
        traced: gives what the trace has for a tensor.
        followed: gets the tensors that the trace meets.
    """

    def __init__(self, lifted: Lifted, traced: Mapping[int, Tensor], followed: set[int]) -> None:
        super().__init__()
        self._lifted, self._traced, self._followed = lifted, traced, followed
        self._met = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RANGES:
            return func(*args, **kwargs)
        instead: dict[int | str, Tensor] = {}
        for number in numbers_in(func, args, kwargs):
            known = self._lifted.numbers[self._met : self._met + 1]
            if [(k.kind, k.coded) for k in known] != [(number.kind, number.coded)]:
                raise _NOT_THE_SAME.fresh()
            tensor = self._lifted.tensors.get(self._met)
            self._met += 1
            if tensor is not None:
                self._followed.add(id(tensor))
                instead[number.place] = self._traced[id(tensor)]
        return _called(func, args, kwargs, instead) if instead else func(*args, **kwargs)

    def check(self) -> None:
        """Whether all were met.

        Raises:
            Unsupported: the step called torch otherwise than when it was recorded.
        """
        if self._met != len(self._lifted.numbers):
            raise _NOT_THE_SAME.fresh()


def _called(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], instead: Mapping[int | str, Tensor]
) -> Any:
    """A call with tensors in the place of numbers, of the dtype that torch computes with these in; where it
    takes none, with numbers that follow from them, which torch's own tracer knows."""

    def call(by: Mapping[int | str, Any], func: Any = func) -> Any:
        placed = tuple(by.get(place, arg) for place, arg in enumerate(args))
        return func(*placed, **{name: by.get(name, value) for name, value in kwargs.items()})

    if func is F.dropout:
        return call(instead, _dropout)
    if func in (torch.tensor, torch.as_tensor) and kwargs.keys() <= {"dtype", "device"}:
        return instead[0].to(kwargs.get("dtype") or torch.get_default_dtype(), copy=True)
    if (func in _PROMOTING or func in _LERP) and not kwargs and len(args) > 1:
        a, b = args[-2:]
        dtype = args[0].dtype if func in _LERP else torch.result_type(a, b)
        if dtype in _AS_TENSORS:
            by = {place: tensor.to(dtype) for place, tensor in instead.items()}
            return torch.pow(by[1], a) if func is Tensor.__rpow__ else call(by)
    if func in _OF_TENSORS and not kwargs and (dtype := args[0].dtype) in _AS_TENSORS - {torch.int64}:
        numbers = {**{k: v for k, v in enumerate(args) if isinstance(v, (int, float))}, **instead}
        return call({k: torch.as_tensor(v, dtype=dtype) for k, v in numbers.items()})
    if func in _SUMS and kwargs.keys() == instead.keys() == {"alpha"}:
        a, b = args
        dtype = torch.result_type(a, b)
        if dtype in _AS_TENSORS:
            return func(a, torch.mul(b, instead["alpha"].to(dtype)))
    if any(not tensor.dtype.is_floating_point for tensor in instead.values()):
        raise Unsupported("torch computes with a whole number that changes in fewer bits")
    with torch._C.DisableTorchFunction():
        numbers = {place: tensor.item() for place, tensor in instead.items()}
    return call(numbers)


def _dropout(input: Tensor, p: Tensor, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or inplace or not input.is_floating_point():
        raise Unsupported("a dropout whose probability changes is traced as one of floats, not in place")
    kept = torch.rand_like(input) >= p.to(torch.float32)  # none of them is 1, but some are 0
    scale = torch.where(p < 1, 1 / (1 - p), 0.0).to(input.dtype)
    return torch.where(kept, input * scale, 0.0)


_NOT_THE_SAME = Unsupported("the step hands torch other numbers when it is traced than on sample rows")
