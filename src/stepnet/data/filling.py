"""Ways to call a TensorArray's methods: on the array or on the class, with an index or without one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from stepnet.data.recording import recorded_in_frames
from stepnet.errors import StepError

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class Filling(Generic[Rest, Result]):
    """What `fills` makes of a method."""

    def __init__(
        self, method: Callable[Concatenate[Any, Rest], Result], like: Callable[..., Any] | None
    ) -> None:
        self._method = method
        self._like = like
        functools.update_wrapper(self, method)  # pyright: ignore[reportArgumentType]

    def __set_name__(self, owner: type, name: str) -> None:
        @functools.wraps(self._method)
        def on_a_new_one(*args: Rest.args, **kwargs: Rest.kwargs) -> Result:
            return self._method(owner(), *args, **kwargs)

        signature = inspect.signature(self._method)
        made: Any = on_a_new_one
        made.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        self._on_a_new_one: Callable[Rest, Result] = recorded_in_frames(self._like)(made)

    def __get__(self, array: Any, kind: Any = None) -> Callable[Rest, Result]:
        return MethodType(self._method, array) if array is not None else self._on_a_new_one


def fills(
    like: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Any, Rest], Result]], Filling[Rest, Result]]:
    """A method that fills the array it is called on; called on the class, it fills a new one.

    Args:
        like: what it gives for values without data, as `recorded_in_frames` takes it.

    >>> class Bag(list):
    ...     @fills()
    ...     def fill(self, n):
    ...         self[:] = range(n)
    ...         return self
    >>> bag = Bag([7, 8])
    >>> bag.fill(3) is bag, bag, Bag.fill(2)
    (True, [0, 1, 2], [0, 1])
    """
    return lambda method: Filling(method, like)


def indexed(write: Callable[..., None]) -> Callable[..., None]:
    """`write(index, value, data_shared)` that may be called without an index: it is then the array's size.

    The call that follows has an index, so what records it need not know of the other form.
    """

    @functools.wraps(write)
    def call(array: Any, *args: Any, **kwargs: Any) -> None:
        if "index" in kwargs or len(args) > 2:
            return write(array, *args, **kwargs)
        alone = len(args) == 1 and "value" not in kwargs
        shared = len(args) == 2 and isinstance(args[1], bool)  # write(value, data_shared), as Paddle has it
        if alone or shared or (not args and kwargs):
            return write(array, _end_of(array), *args, **kwargs)
        return write(array, *args, **kwargs)

    return call


def _end_of(array: Any) -> Any:
    try:
        return array.size()
    except StepError as error:
        raise StepError(
            "TensorArray.write without an index: here the size of an array is not known",
            remedy="write(step, value), step the loop variable that counts",
        ) from error
