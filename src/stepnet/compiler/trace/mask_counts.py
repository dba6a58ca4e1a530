"""How many values a mask picks, of which Python may ask whether there are any."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.reads.trust import is_trusted_code
from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line

SHAPE: Any = Tensor.shape
SIZES = frozenset({
    SHAPE.__get__, Tensor.size, Tensor.numel, Tensor.nelement, torch.numel, Tensor.__len__
})  # fmt: skip
_OF_NUMBERS = frozenset({
    torch.where, torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere
})  # fmt: skip
_BY_INDEX = frozenset({
    Tensor.__getitem__, Tensor.__setitem__, torch.index_put, Tensor.index_put, Tensor.index_put_
})  # fmt: skip
SHAPED = frozenset({"squeeze", "flatten", "view", "reshape", "getitem", "long", "detach"})
_ON_THE_WAY = ("call", "counted", "__torch_function__")


def counts() -> Unsupported:
    """What to raise where more is asked."""
    return Unsupported(
        "the step asks how many values a mask picks",
        line=user_line().short,
        remedy="-1 in their place, as in view(-1, ...); or torch.where(mask, a, b) on whole rows",
    )


class Count:
    """In the place of how many values a mask picks: it is known whether there are any, and nothing else.

    >>> Count(True) > 0, Count(False) == 0, bool(Count(False))
    (True, True, False)
    """

    def __init__(self, some: bool) -> None:
        self._some = some

    def __bool__(self) -> bool:
        return self._some

    def __gt__(self, other: Any) -> bool:
        return self._is(other, 0)

    def __ge__(self, other: Any) -> bool:
        return self._is(other, 1)

    def __lt__(self, other: Any) -> bool:
        return not self._is(other, 1)

    def __le__(self, other: Any) -> bool:
        return not self._is(other, 0)

    def __eq__(self, other: object) -> bool:
        return not self._is(other, 0)

    def __ne__(self, other: object) -> bool:
        return self._is(other, 0)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _is(self, other: Any, known: int) -> bool:
        if type(other) is not int or other != known:
            raise counts()
        return self._some

    def _more(self, *_: Any) -> Any:
        raise counts()

    __index__ = __int__ = __float__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = _more
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = _more


class Numbers:
    """Which tensors are, in a run, numbers of what masks of rows pick."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Tensor, Tensor]] = {}

    def follow(self, func: Any, args: Any, result: Any) -> None:
        """Note a call of torch."""
        mask = args[0] if func in _OF_NUMBERS and len(args) == 1 and isinstance(args[0], Tensor) else None
        if func is Tensor.__getitem__:
            index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            _, mask = self._of.get(id(index), (None, None))
            mask = index if masks_in(func, (args[0], index)) else mask
        if mask is None and self._of and getattr(func, "__name__", "").strip("_") in SHAPED:
            _, mask = self._of.get(id(args[0]), (None, None))
        if mask is not None:
            self._of |= {id(t): (t, mask) for t in leaves(result, Tensor)}

    def counted(self, func: Any, args: Any) -> Tensor | None:
        """The mask of which a call of the step's asks how many values it picks."""
        if not self._of or func not in SIZES or (len(args) > 1 and args[1] != 0):
            return None
        _, mask = self._of.get(id(args[0]), (None, None))
        return mask if mask is not None and is_asked_by_the_step() else None


def is_asked_by_the_step() -> bool:
    """Whether a call comes from its code, and not from what stepnet or torch makes of a call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name in _ON_THE_WAY:
        frame = frame.f_back
    return not is_trusted_code(frame.f_code.co_filename)


def masks_in(func: Any, args: Any) -> list[Tensor]:
    """The masks by which a call of torch picks, or puts."""
    if func not in _BY_INDEX or len(args) < 2:
        return []
    items = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
    return [item for item in items if isinstance(item, Tensor) and item.dtype == torch.bool and item.dim()]
