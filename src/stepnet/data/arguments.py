"""Arguments of simple kinds, checked by name: numbers, truth values, functions, paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.errors import LoDError, StepError, StepnetError
from stepnet.interrupts import let_through

_BEYOND = 1 << 63
_MOST = 1 << 31  # of what is made: a matrix of so many rows takes more memory than machines have


def brief(given: Any) -> str:
    """What was given, in one short line.

    >>> brief(torch.zeros(2, 3)), brief("left")
    ('a tensor of shape [2, 3], float32', "str 'left'")
    """
    try:
        if isinstance(given, Tensor):
            return f"a tensor of shape {list(given.shape)}, {dtype_name(given.dtype)}"
        text = repr(given)
    except Exception as error:  # of the value's own: a parameter that has no shape yet, a broken __repr__
        let_through(error)
        return f"{type(given).__name__}, which cannot be shown"
    return f"{type(given).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def check_unmasked(array: Any) -> None:
    """Refuse an array of numpy some of whose numbers are masked: torch would take what lies under the mask.

    Raises:
        LoDError: there are such.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise LoDError(
            "an array holds masked numbers, for which there is no tensor",
            got=brief(array),
            remedy="array.filled(0); array.compressed() leaves them out",
        )


def check_dense(what: str, tensor: Tensor, error: type[StepnetError] = StepError) -> None:
    """Refuse a tensor whose rows have no places in memory.

    Raises:
        StepnetError: it is sparse, nested or of a library's own layout; an `error` that begins with `what`.
    """
    if tensor.is_nested:
        raise error(
            f"{what} is a NestedTensor",
            got=brief(tensor),
            remedy="LoDTensor.from_nested(x), of jagged layout",
        )
    if tensor.layout is not torch.strided:
        raise error(f"{what} must be dense", got=f"a tensor of layout {tensor.layout}", remedy="x.to_dense()")


def whole(
    what: str, value: Any, least: int | None = None, *,
    error: type[StepnetError] = StepError, remedy: str | None = None,
) -> int:  # fmt: skip
    """A whole number of Python, of numpy, or of a graph with sizes left open; from `least` on.

    Raises:
        StepnetError: it is none; an `error` that begins with `what`.

    >>> whole("stack: 'layers'", 2, least=1)
    2
    """
    if isinstance(value, torch.SymInt):
        return value  # pyright: ignore[reportReturnType]
    if isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least):
        if -_BEYOND <= int(value) < _BEYOND:  # a comparison, which leaves sizes of a graph open
            return int(value)
        raise error(f"{what} is beyond 64 bits", got=brief(value), expected="a number of torch.int64")
    kind = {None: "a whole number", 1: "a positive whole number"}.get(least, f"a whole number from {least}")
    raise error(f"{what} must be {kind}", got=brief(value), remedy=remedy)


def size(what: str, value: Any, least: int = 1, *, error: type[StepnetError] = StepError) -> int:
    """How many there are of something that is made in memory.

    Raises:
        StepnetError: no whole number from `least` on, or too large; an `error` that begins with `what`.

    >>> size("GRU: 'hidden_size'", 4)
    4
    """
    found = whole(what, value, least, error=error)
    if isinstance(found, int) and found >= _MOST:
        raise error(f"{what} is more than fits in memory", got=found, expected=f"less than {_MOST}")
    return found


def number(
    what: str, value: Any, least: float | None = None, most: float | None = None, *,
    kind: str = "a number", error: type[StepnetError] = StepError,
) -> float:  # fmt: skip
    """A number of Python or numpy, `least` to `most`; `kind` is what they are called.

    Raises:
        StepnetError: it is none; an `error` that begins with `what`.

    >>> number("'dropout'", 0.5, least=0, most=1)
    0.5
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            own = float(value)
        except OverflowError:
            raise error(f"{what} is beyond what a float holds", got=brief(value)) from None
        if not (least is not None and not own >= least) and not (most is not None and not own <= most):
            return own
    bounds = None if least is None else f"{least} or more" if most is None else f"{least} to {most}"
    raise error(f"{what} must be {kind}", got=brief(value), expected=bounds)


def truth(what: str, value: Any, *, error: type[StepnetError] = StepError, remedy: str | None = None) -> bool:
    """True or False, of Python or numpy.

    Raises:
        StepnetError: it is neither; an `error` that begins with `what`.

    >>> truth("'reverse'", True)
    True
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise error(f"{what} must be True or False", got=brief(value), remedy=remedy)


def function(what: str, value: Any, example: str, *, error: type[StepnetError] = StepError) -> Any:
    """What can be called.

    Raises:
        StepnetError: it cannot; an `error` that begins with `what`, and how it is called.

    >>> function("map_fn: 'fn'", abs, "fn(row)")
    <built-in function abs>
    """
    if callable(value):
        return value
    raise error(f"{what} must be a function", got=brief(value), expected=example)


def path_of(what: str, value: Any, *, error: type[StepnetError] = StepError) -> str:
    """The path of a file, as text.

    Raises:
        StepnetError: it is none; an `error` that begins with `what`.

    >>> path_of("load: 'path'", "model.onnx")
    'model.onnx'
    """
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    raise error(f"{what} must be the path of a file", got=brief(value), expected="a str or a pathlib.Path")


def name_of(what: str, value: Any, *, error: type[StepnetError] = StepError) -> str:
    """A name.

    Raises:
        StepnetError: it is none; an `error` that begins with `what`.

    >>> name_of("Memory: 'name'", "h")
    'h'
    """
    if isinstance(value, str):
        return value
    raise error(f"{what} must be a name", got=brief(value), expected="a str")


def choice(
    what: str, value: Any, known: Iterable[str], *,
    error: type[StepnetError] = StepError, remedy: str | None = None,
) -> Any:  # fmt: skip
    """One of some names.

    Raises:
        StepnetError: it is none of them; an `error` that begins with `what`.

    >>> choice("'nonlinearity'", "relu", ("tanh", "relu"))
    'relu'
    """
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    expected = f"one of {', '.join(map(repr, known))}"
    raise error(f"{what} is not known", got=brief(value), expected=expected, remedy=remedy)


def listed(what: str, value: Any, of: type, *, error: type[StepnetError] = StepError) -> tuple[Any, ...]:
    """A list or a tuple of things of one kind.

    Raises:
        StepnetError: it is none; an `error` that begins with `what`.

    >>> listed("RecurrentOp: 'inputs'", ["x"], str)
    ('x',)
    """
    if isinstance(value, (list, tuple)):
        wrong = next((one for one in value if not isinstance(one, of)), None)
        if wrong is None and not any(one is None for one in value):
            return tuple(value)
        value = wrong
    raise error(
        f"{what} must be a list",
        got=brief(value),
        expected="a list" if of is object else f"a list of {of.__name__}",
    )
