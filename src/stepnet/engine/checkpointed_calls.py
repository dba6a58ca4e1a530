"""Calls in a region of `torch.utils.checkpoint`, which runs it once more for its gradient, and holds what
that saves against what the first run saved.

A step that changes objects as it runs may do so at its first call alone, as `functools.cached_property` does:
that call goes by the plain loop, and the same one in the second run by a plan, which saves other tensors. So
the n-th call of the second run goes by the plain loop if that of the first did.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from stepnet.data.modes import packs_saved_tensors, sees_saved_tensors
from stepnet.executors.naive import PLAIN


class _Call:
    """A call in a first run: of which step, and whether it went by the plain loop."""

    def __init__(self, step: Any) -> None:
        self.step, self.plain = id(step), False


class _Region:
    """The calls of a first run, and how many there were of each second one so far, by its number."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.again: dict[Any, int] = {}


_regions: WeakKeyDictionary[Any, _Region] = WeakKeyDictionary()  # by torch's records of them


def as_at_first(step: Any, backend: Any) -> Any:
    """The backend of a call: the plain loop, if the call that it repeats went by that."""
    pack = packs_saved_tensors()
    if pack is None:
        return backend
    frame, run = _around(pack)
    if frame is None:
        return backend
    region = _regions.get(frame)
    if run is None:
        if region is None:
            region = _regions[frame] = _Region()
        region.calls.append(_Call(step))
        return backend
    if region is None:
        return backend
    n = region.again[run] = region.again.get(run, -1) + 1
    return PLAIN.name if n < len(region.calls) and region.calls[n].plain else backend


def note_plain(step: Any) -> None:
    """The call that began last goes by the plain loop."""
    pack = packs_saved_tensors()
    frame, run = (None, None) if pack is None else _around(pack)
    region = None if frame is None or run is not None else _regions.get(frame)
    if region is not None and region.calls and region.calls[-1].step == id(step):
        region.calls[-1].plain = True


def is_second_run() -> bool:
    """Whether this is in a second run of such a region, or may be, where torch does not tell."""
    pack = packs_saved_tensors()
    return sees_saved_tensors() if pack is None else _around(pack)[1] is not None


def saved_since() -> Callable[[], None]:
    """What takes what is saved from here on out of a first run, to whose gradient it is nothing: the second
    goes without the plan that did not hold.

    >>> saved_since()()
    """
    pack = packs_saved_tensors()
    frame, run = (None, None) if pack is None else _around(pack)
    if frame is None or run is not None:
        return lambda: None
    records = frame.weak_holders, frame.x_metadatas
    before = [*map(len, records)]

    def take_out() -> None:
        for record, n in zip(records, before, strict=True):
            del record[n:]

    return take_out


def is_of_checkpoint(error: Exception) -> bool:
    """Whether a checkpoint of torch's raised an error, by which it ends a second run that saved enough.

    >>> is_of_checkpoint(ValueError("of the step"))
    False
    """
    return type(error).__module__ == "torch.utils.checkpoint"


def _around(pack: Any) -> tuple[Any, Any]:
    """torch's record of the checkpointed region that this is in, and the number of its second run; None for
    a first one, and where this is in none."""
    if type(pack) is not FunctionType or pack.__module__ != "torch.utils.checkpoint":
        return None, None
    pack = inspect.unwrap(pack)  # Dynamo is told to leave it out
    cells = zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells}
    if "target_frame_ref" in held:
        return held["target_frame_ref"](), held.get("gid")
    return held.get("frame"), None
