"""Functions of Python's `math`, and of numpy, of open sizes, as what a file computes: as they are they would
want the number, and fix the size to that of the example."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType, FunctionType
from typing import Any

import torch
from torch._export.verifier import Verifier

from stepnet.compiler.reads.swapped import Swapped
from stepnet.watchers import during

_OPEN = (torch.SymInt, torch.SymFloat)


def _log(x: Any, base: Any = math.e) -> Any:
    over: Any = torch._sym_log2(x) * math.log(2)  # pyright: ignore[reportAttributeAccessIssue]
    return over if base == math.e else over / math.log(base)


def _isqrt(n: Any) -> Any:
    return math.floor(torch.sym_sqrt(n))  # pyright: ignore[reportAttributeAccessIssue]


_OF_SIZES: dict[str, Callable[..., Any]] = {
    "sqrt": lambda x: torch.sym_sqrt(x),  # pyright: ignore[reportAttributeAccessIssue]
    "isqrt": _isqrt,
    "log": _log,
    "log2": lambda x: torch._sym_log2(x),  # pyright: ignore[reportAttributeAccessIssue]
    "log10": lambda x: _log(x, 10),
    "log1p": lambda x: _log(1 + x),
    "exp": lambda x: math.e ** torch.sym_float(x),
    "pow": lambda x, y: torch.sym_float(x) ** torch.sym_float(y),
    "fabs": lambda x: torch.sym_float(abs(x)),
}


def _swapped(name: str, of_sizes: Callable[..., Any]) -> Swapped:
    def function(*args: Any) -> Any:
        if any(isinstance(arg, _OPEN) for arg in args):
            return of_sizes(*args)
        return original(*args)

    original = getattr(math, name)
    return Swapped(math, name, function)


def _allowed_types(verifier: Any) -> tuple[type, ...]:
    """Of what a trace may be made: also of the logarithm of a size, which torch has as a function."""
    return (*_TYPES.original(verifier), *((FunctionType,) if _traced.get() else ()))


_traced = ContextVar("stepnet_traced_sizes", default=False)
_TYPES = Swapped(Verifier, "allowed_op_types", _allowed_types)
_FUNCTIONS = [_swapped(name, of_sizes) for name, of_sizes in _OF_SIZES.items()]
# Of what is no number of its own, numpy's function asks the method of its name.
_METHODS = [
    Swapped(kind, name, lambda self, of_sizes=of_sizes: of_sizes(self))
    for name, of_sizes in _OF_SIZES.items()
    for kind in _OPEN
    if name in ("sqrt", "log", "log2", "log10", "log1p", "exp")
]
# The names that modules have them by which were met in a trace: `from math import sqrt`.
_IMPORTED: dict[tuple[str, str], tuple[Swapped, Callable[..., Any]]] = {}


def note_imports(frame: FrameType) -> None:
    """Note by which names of its module the code of a frame may have called functions of `math`."""
    module: Any = sys.modules.get(frame.f_globals.get("__name__", ""))
    if module is None or vars(module) is not frame.f_globals:
        return
    known = {id(function.original): function for function in _FUNCTIONS}
    for name in frame.f_code.co_names:
        function = known.get(id(frame.f_globals.get(name)))
        if function is not None:
            named = Swapped(module, name, function.other), function.original
            _IMPORTED.setdefault((module.__name__, name), named)


def imports_noted() -> int:
    """How many such names there are."""
    return len(_IMPORTED)


@contextlib.contextmanager
def open_math() -> Iterator[None]:
    """Let functions of `math` leave the sizes open that they are given in here."""
    with contextlib.ExitStack() as stack, _TYPES.inside(), during(_traced, True):
        for function in (*_FUNCTIONS, *_METHODS):
            stack.enter_context(function.inside())
        for name, original in list(_IMPORTED.values()):
            if vars(name.owner).get(name.name) in (original, name.other):  # it may be another one by now
                stack.enter_context(name.inside())
        yield
