"""Code that is traced after it was called, as it was then.

for k in (1, 2): step = lambda x, s: (k * x, s); recurrent(step, ...)   ->   a trace of the first is of k = 1

What a function refers to may be bound to something else by the time that its trace is made. So functions are
taken with the variables that they refer to as they were; what else has changed by then is refused.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

from stepnet.compiler.reads.reach import Reach, reach
from stepnet.errors import IRError
from stepnet.ir.loop import Loop
from stepnet.user_line import is_users


def as_called(code: Any) -> Any:
    """The user's functions, with all those of the user's that they refer to, with variables of their own.

    >>> def later():
    ...     k = 1
    ...     step = lambda x: k * x
    ...     twin, k = as_called(step), 2
    ...     return twin(3), step(3)
    >>> later()
    (3, 6)
    """
    return _taken(code, {})


def loop_as_called(loop: Loop) -> Loop:
    """A loop whose body is as it was."""
    body: Any = loop.body
    function = as_called(body.function)
    return loop if function is body.function else replace(loop, body=body.over(function))


def _taken(value: Any, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    if type(value) in (tuple, dict, functools.partial):
        return _with_parts(value, known)
    if type(value) is not FunctionType or not is_users(value.__code__.co_filename):
        return value
    if not value.__closure__ and not value.__defaults__ and not value.__kwdefaults__:
        return value
    cells = [CellType() for _ in value.__closure__ or ()]
    twin = FunctionType(value.__code__, value.__globals__, value.__name__, None, tuple(cells))
    known[id(value)] = twin  # which may refer to itself
    for cell, old in zip(cells, value.__closure__ or (), strict=True):
        if not _is_empty(old):
            cell.cell_contents = _taken(old.cell_contents, known)
    twin.__defaults__ = _taken(value.__defaults__, known)
    twin.__kwdefaults__ = value.__kwdefaults__ and _taken(value.__kwdefaults__, known)
    for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(twin, name, getattr(value, name))
    vars(twin).update(vars(value))
    return twin


def _with_parts(value: Any, known: dict[int, Any]) -> Any:
    """What holds code, with that as it was; itself where there is none."""
    if type(value) is functools.partial:
        parts = value.func, value.args, value.keywords
        func, args, by_name = taken = [_taken(part, known) for part in parts]
        return value if all(map(operator.is_, parts, taken)) else functools.partial(func, *args, **by_name)
    parts = value.values() if type(value) is dict else value
    taken = [_taken(part, known) for part in parts]
    if all(map(operator.is_, parts, taken)):
        return value
    return dict(zip(value, taken, strict=True)) if type(value) is dict else tuple(taken)


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


class AsCalled:
    """What code read when it was called, to be held against what it reads when it is traced."""

    def __init__(self, code: Any) -> None:
        self._code = code
        self._found = self._read()

    def _read(self) -> tuple[Any, list[int]]:
        found: Reach = reach(self._code)
        return found.key, [id(tensor) for tensor in found.tensors]

    def check(self, where: str) -> None:
        """Refuse code that reads something else by now.

        Raises:
            IRError: it does.
        """
        if self._read() != self._found:
            raise IRError(
                f"{where} cannot be written: what it refers to was changed after it ran",
                got="an attribute, an item or a global variable that is another one by now",
                expected="what stays as it is",
                remedy="a variable of its own for each call, or a value that the loop is given",
            )
