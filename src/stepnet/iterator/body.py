"""A torch callable as the body of a loop: parameters by name, results by position or by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stepnet.data.lod import LoDTensor
from stepnet.errors import LoopError
from stepnet.front.step import describe_leaf, describe_leaves, step_name


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable by name; those without a default must be fed."""

    names: tuple[str, ...]
    needed: tuple[str, ...]
    positional: tuple[str, ...]  # those that have no name at a call


def signature_of(function: Any) -> Signature:
    """The parameters that a body has for ports to feed.

    Raises:
        LoopError: it is no callable, or its parameters have no names.

    >>> signature_of(lambda x, h, scale=2.0: x).needed
    ('x', 'h')
    """
    if not callable(function):
        raise LoopError(
            "the body of a TensorIterator must be callable",
            got=type(function).__name__,
            expected="a function or an nn.Module, tensors in and tensors out",
        )
    name = step_name(function)
    try:
        found = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):
        raise LoopError(
            f"TensorIterator over '{name}': its parameters are not known, and ports feed them by name",
            remedy=f"wrap it: lambda x_t: {name}(x_t)",
        ) from None
    parameters = list(found.parameters.values())
    many = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if many:
        raise LoopError(
            f"TensorIterator over '{name}': ports feed parameters by name",
            got=f"{name}{found}",
            expected="a name for each parameter, no *args or **kwargs",
            remedy="wrap it in a function that names them",
        )
    return Signature(
        tuple(p.name for p in parameters),
        tuple(p.name for p in parameters if p.default is p.empty or p.kind is p.POSITIONAL_ONLY),
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
    )


def result_name(key: int | str) -> str:
    """What the record of the loop calls a result."""
    return key if isinstance(key, str) else f"result {key}"


class CallBody:
    """A callable as a loop's body.

    Args:
        function: called with tensors; returns a tensor, a tuple or list of them, or a dict.
        parameters: those that ports feed, in the order of the signature.
        keys: the results that ports and back edges read.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Sequence[str], positional: Sequence[str],
        keys: Sequence[int | str],
    ) -> None:  # fmt: skip
        self.function = function
        self.name = step_name(function)
        self.parameters = tuple(parameters)
        self.positional = len(positional)  # the first parameters of a signature
        self.keys = tuple(keys)
        self.results = tuple(result_name(key) for key in keys)
        self.form = (self.parameters, self.positional, self.keys)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        try:
            found, missing = self.pick(self.call(values))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # out of memory, and the like
                raise
            raise LoopError(
                f"the body '{self.name}' fails: {str(error).splitlines()[0]}",
                got=describe_leaves(self.parameters, values),
                remedy="these are the shapes of one step: part_size along the axis of a sliced input",
            ) from error
        if missing:
            raise LoopError(
                f"the body '{self.name}': {'; '.join(missing.values())}",
                remedy="ports and back edges name tensors by place, from 0, or by the key of a dict",
            )
        return tuple(found[key] for key in self.keys)

    def over(self, function: Callable[..., Any]) -> CallBody:
        """The body of another function that takes and returns the same."""
        twin = copy.copy(self)
        twin.function = function
        return twin

    def call(self, values: Sequence[Any]) -> Any:
        """Call the function; what it returns, as it is."""
        named = dict(zip(self.parameters[self.positional :], values[self.positional :], strict=True))
        return self.function(*values[: self.positional], **named)

    def pick(self, returned: Any) -> tuple[dict[int | str, Tensor], dict[int | str, str]]:
        """The results that are read, and for each that is not there what is wrong."""
        found: dict[int | str, Tensor] = {}
        missing: dict[int | str, str] = {}
        for key in self.keys:
            try:
                value = _item(returned, key)
            except (KeyError, IndexError):
                missing[key] = f"it returns {_kind(returned)}: there is no result {key!r}"
                continue
            if isinstance(value, Tensor) and not isinstance(value, LoDTensor):
                found[key] = value
            else:
                missing[key] = f"result {key!r} is no tensor but {describe_leaf(value)}"
        return found, missing


def _item(returned: Any, key: int | str) -> Any:
    if isinstance(returned, Mapping):
        return returned[key]
    if isinstance(key, str):
        if key in getattr(returned, "_fields", ()):
            return getattr(returned, key)
        raise KeyError(key)
    return (returned if isinstance(returned, (tuple, list)) else (returned,))[key]


def _kind(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(map(repr, returned))}"
    if isinstance(returned, (tuple, list)):
        return f"{len(returned)} results by position"
    return f"one result, {describe_leaf(returned)}"
