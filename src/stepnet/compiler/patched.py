"""Functions of torch that somebody put others in the place of: torch's own modules and operators call them,
whose code no walk reads."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .kinds import MISSING

_VERSION = 24  # bytes from the start of a dict to the number of its changes: of CPython 3.10 to 3.12


def _counter(space: dict[str, Any]) -> Callable[[], Any]:
    """Tells what is another value after a dict was changed."""
    if _has_versions():
        return partial(getattr, ctypes.c_int64.from_address(id(space) + _VERSION), "value")
    return lambda: tuple(space.values())


def _has_versions() -> bool:
    """Whether this Python counts the changes of a dict there, as one that is changed shows."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13) or sys.maxsize < 1 << 32:
        return False
    trial = {"name": 0}
    count = ctypes.c_int64.from_address(id(trial) + _VERSION)
    before = count.value
    trial["name"] = 1
    return count.value != before


_VF: Any = torch._VF  # pyright: ignore[reportAttributeAccessIssue]
_NN: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
_OF_TENSORS: Any = gc.get_referents(vars(Tensor))[0]
SPACES: Mapping[str, Any] = {
    "torch": vars(torch), "F": vars(F), "_VF": vars(_VF), "_nn": vars(_NN), "Tensor": _OF_TENSORS,
}  # fmt: skip
_OF_TORCH = frozenset({"manual_seed", "Storage"})  # which torch itself puts others in the place of


def _at_first(owner: str) -> dict[str, Any]:
    """What is found by each name of a space; some of it beneath, made by C."""
    beneath: Any = {"Tensor": Tensor.__mro__[1], "_VF": _VF.vf}.get(owner)
    names = () if beneath is None else dir(beneath)
    own = {name: held for name, held in SPACES[owner].items() if name not in _OF_TORCH}
    return {name: getattr(beneath, name, MISSING) for name in names} | own


_FIRST = {owner: _at_first(owner) for owner in SPACES}
_COUNTERS = [_counter(space) for space in SPACES.values()]
_known: tuple[list[Any], Sequence[tuple[str, Any]]] = [], ()


def patched() -> Sequence[tuple[str, Any]]:
    """(name, what is there now) of each that is another one than when stepnet was imported.

    >>> patched()
    ()
    >>> relu, F.relu = F.relu, torch.tanh
    >>> [name for name, _ in patched()]
    ['F.relu']
    >>> F.relu = relu
    """
    global _known
    now = [count() for count in _COUNTERS]
    before, found = _known
    if now != before:
        found = tuple(_others())
        _known = now, found
    return found


def _others() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for owner, space in SPACES.items():
        first = _FIRST[owner]
        for name, held in list(space.items()):
            if name in first and held is not first[name]:
                found.append((f"{owner}.{name}", held))
    return found
