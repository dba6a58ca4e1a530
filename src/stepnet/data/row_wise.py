"""Torch functions, methods of Tensor and operators on a LoDTensor: row by row, or not at all."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from torch import Tensor

from stepnet.data.arguments import brief
from stepnet.data.row_functions import ATTRIBUTES, call_by_rows
from stepnet.errors import RowMixError

if TYPE_CHECKING:
    from typing_extensions import Self

Rows = TypeVar("Rows", bound="RowWise")

# What modules ask of a tensor before they use it.
ABOUT_ATTRIBUTES = frozenset(
    {"is_nested", "is_cuda", "is_cpu", "is_meta", "is_leaf", "is_sparse", "is_quantized"}
    | {"layout", "itemsize", "nbytes", "grad_fn"}
)


def _operator(name: str) -> Callable[[Rows, Any], Rows]:
    method = getattr(Tensor, name)

    def call(self: RowWise, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            raise _meets_an_array(other)
        return call_by_rows(type(self), method, (self, other), {})

    call.__name__ = name
    return call


def _meets_an_array(array: Any) -> RowMixError:
    return RowMixError(
        "a LoDTensor meets tensors, not numpy arrays", got=brief(array), remedy="torch.as_tensor(array)"
    )


# numpy's names for operators
_OF_NUMPY: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "true_divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "power": operator.pow, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne, "matmul": operator.matmul,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "left_shift": operator.lshift, "right_shift": operator.rshift,
}  # fmt: skip


def _unary(name: str) -> Callable[[Rows], Rows]:
    method = getattr(Tensor, name)

    def call(self: RowWise) -> Any:
        return call_by_rows(type(self), method, (self,), {})

    call.__name__ = name
    return call


def _no_array(x: RowWise, /, *_: Any, **__: Any) -> NoReturn:
    """What numpy, `torch.tensor` and Python's numbers ask for: raises RowMixError. Without it they go through
    the sequences one by one, or answer for what could not be made an array (`numpy.array_equal`)."""
    raise RowMixError(
        "a LoDTensor is no array, and no number: its sequences have lengths of their own",
        got=repr(x),
        remedy="torch's functions take it; x.values.numpy() has the rows, list(x) the sequences, "
        "x.to_padded() a table of them; what holds tensors, as a TensorDict, takes x.values and x.lod",
    )


class RowWise:
    """Torch functions, methods and operators on `values`, by the table of row_functions.py."""

    __slots__ = ()
    _values: Tensor

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **how: Any) -> Any:
        """What numpy's functions ask first: an operator with a number of numpy's is one of Python's."""
        call = _OF_NUMPY.get(ufunc.__name__)
        numbers = [v if isinstance(v, RowWise) or np.ndim(v) else np.asarray(v).item() for v in inputs]
        if call is None or method != "__call__" or how:
            _no_array(self)
        if any(isinstance(v, np.ndarray) for v in numbers):
            raise _meets_an_array(next(v for v in numbers if isinstance(v, np.ndarray)))
        return call(*numbers)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return call_by_rows(cls, func, args, kwargs or {})

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self))  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]

    def __getattr__(self, name: str) -> Any:
        """The methods of Tensor, by the same rules as torch functions."""
        if name in ABOUT_ATTRIBUTES:
            return getattr(self._values, name)
        if name in ATTRIBUTES:
            return call_by_rows(type(self), ATTRIBUTES[name][0], (self,), {})
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(
                f"'LoDTensor' object has no attribute '{name}'; its rows are a tensor, x.values"
            )
        return partial(_method, method, self)

    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
    __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
    __floordiv__, __rfloordiv__ = _operator("__floordiv__"), _operator("__rfloordiv__")
    __mod__, __rmod__ = _operator("__mod__"), _operator("__rmod__")
    __pow__, __rpow__ = _operator("__pow__"), _operator("__rpow__")
    __matmul__, __rmatmul__ = _operator("__matmul__"), _operator("__rmatmul__")
    __and__, __rand__ = _operator("__and__"), _operator("__rand__")
    __or__, __ror__ = _operator("__or__"), _operator("__ror__")
    __xor__, __rxor__ = _operator("__xor__"), _operator("__rxor__")
    __lshift__, __rlshift__ = _operator("__lshift__"), _operator("__rlshift__")
    __rshift__, __rrshift__ = _operator("__rshift__"), _operator("__rrshift__")
    __lt__, __le__ = _operator("__lt__"), _operator("__le__")
    __gt__, __ge__ = _operator("__gt__"), _operator("__ge__")
    __neg__, __pos__ = _unary("__neg__"), _unary("__pos__")
    __abs__, __invert__ = _unary("__abs__"), _unary("__invert__")
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        def _rows(self, *args: Any, **kwargs: Any) -> Self: ...

        clone = contiguous = requires_grad_ = cpu = cuda = double = float = half = bfloat16 = long = _rows
        abs = exp = log = sqrt = square = sin = cos = tanh = relu = sigmoid = softmax = log_softmax = _rows
        add = sub = mul = div = pow = matmul = clamp = masked_fill = sum = mean = amax = argmax = _rows
        reshape = view = flatten = squeeze = unsqueeze = _rows

        def __eq__(self, other: Any) -> Self: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: Any) -> Self: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
    else:  # whoever checks types refuses these, for there are none
        __array__ = __array_function__ = __dlpack_device__ = __dlpack__ = _no_array
        __float__ = __int__ = __complex__ = numpy = _no_array
        __eq__, __ne__ = _operator("__eq__"), _operator("__ne__")


def _method(method: Callable[..., Any], x: RowWise, *args: Any, **kwargs: Any) -> Any:
    return call_by_rows(type(x), method, (x, *args), kwargs)
