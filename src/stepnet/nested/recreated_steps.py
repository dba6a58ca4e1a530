"""A step that is made anew at each call, found again by a function of its code that reads what it reads.

What was found out of a step is kept for as long as the step is alive, and told by addresses: that of a cell,
and of what it holds. A function of ours lives on. While a call is looked up its cells hold what those of the
step hold, so whatever else stands there than before is seen; else they are empty, and keep nothing alive.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, TypeVar

from torch import nn

from stepnet.data.bounded_cache import Bounded
from stepnet.engine.kept_by_step import KeptByStep
from stepnet.engine.walked_steps import is_known
from stepnet.engine.warm_calls import Steps
from stepnet.locks import Lock

_MOST = 256
_STAYS = 4  # calls of one step that found nothing by a function of ours: others are called in turns with it
_CONSTANT = frozenset({int, float, bool, str, type(None)})
T = TypeVar("T", bound=tuple[Any, ...])


class _Twin:
    """Another function of the code of a step. Its calls are for one thread at a time."""

    def __init__(self, step: FunctionType) -> None:
        self.cells = tuple(CellType() for _ in step.__closure__ or ())
        names = step.__code__, step.__globals__, step.__name__
        self.function = FunctionType(*names, step.__defaults__, self.cells)
        self.function.__qualname__ = step.__qualname__
        self.lock = Lock()
        self.user: int | None = None  # the thread that is in a call


_twins = Bounded[Any, _Twin](_MOST)
_firsts = Bounded[Any, "weakref.ref[FunctionType]"](_MOST)
_missed = KeptByStep[int]()


def by_twin(of: Steps, step: Any, run: Callable[[Steps], T]) -> T:
    """What `run` gives, told what steps are found by: one like a step that is gone, by a function of ours.
    The last that it gives is None where it found nothing."""
    if type(step) is not FunctionType or is_known(step) or not _is_made_anew(step):
        return run(of)
    missed = _missed.of(step) or 0
    if missed >= _STAYS:
        return run(of)
    with found_by(step) as own:
        out = run(of._replace(found_by=lambda _: own))
    if out[-1] is None:
        _missed.note(step, missed + 1)
    return out


def _is_made_anew(step: FunctionType) -> bool:
    key = _key(step)
    if key is None:
        return False
    first = _firsts.get(key)
    if first is None:
        _firsts[key] = weakref.ref(step)
    return first is not None and first() is None


@contextlib.contextmanager
def found_by(step: Any) -> Iterator[Any]:
    """What a step is found by in here: a function that reads what it reads, or the step itself.

    >>> def made(x):
    ...     return lambda: x
    >>> with found_by(made(1)) as one:
    ...     one()
    1
    >>> with found_by(made(2)) as two:
    ...     two(), one is two
    (2, True)
    """
    twin = _twin_of(step)
    if twin is None or not twin.lock.acquire(blocking=False):
        yield step
        return
    own = threading.get_ident()
    if twin.user == own:  # a call inside that call
        twin.lock.release()
        yield step
        return
    twin.user = own
    try:
        for cell, held in zip(twin.cells, step.__closure__ or (), strict=True):
            cell.cell_contents = held.cell_contents
        yield twin.function
    finally:
        for cell in twin.cells:
            with contextlib.suppress(ValueError):  # it is empty
                del cell.cell_contents
        twin.user = None
        twin.lock.release()


def _twin_of(step: Any) -> _Twin | None:
    key = _key(step)
    if key is None:
        return None
    twin = _twins.get(key)
    if twin is None or twin.function.__globals__ is not step.__globals__:
        twin = _twins[key] = _Twin(step)
    return twin


def _key(step: Any) -> Any:
    """What tells steps apart that are each made anew: their code, their defaults, and the modules that they
    belong to."""
    if type(step) is not FunctionType or step.__kwdefaults__ or step.__dict__:
        return None
    closure, defaults = step.__closure__ or (), step.__defaults__ or ()
    if CellType() in closure or not _CONSTANT.issuperset(map(type, defaults)):
        return None
    held = [cell.cell_contents for cell in closure]
    return (
        step.__code__,
        id(step.__globals__),
        *map(repr, defaults),
        *[id(part) for part in held if issubclass(type(part), nn.Module)],
    )
