"""A while loop of the user's own Python that does not end on an example: told by what it asks of tensors."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.trust import is_machinery
from stepnet.errors import StepError
from stepnet.user_line import Line, is_users
from stepnet.watchers import most_steps

from .data_dependent import ASKS

_MORE = 10  # times what loops of stepnet's may take: a function may ask several things at each turn


class EndsOnExample(TorchFunctionMode):
    """In here, one run of a function asks no more of tensors than a loop that ends may.

    The functions that call it are counted for, too, as far as they are the user's: a step that is called
    anew at each time asks anew.
    """

    def __enter__(self) -> Any:
        few = most_steps()
        self._most = None if few is None else few * _MORE
        self._running: list[tuple[FrameType, int]] = []  # the outermost first, and how often each has asked
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._running.clear()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in ASKS and self._most is not None and not torch.compiler.is_compiling():
            self._count(self._most)
        return out

    def _count(self, most: int) -> None:
        frames = _users(sys._getframe(2))
        before = [count for (known, count), now in zip(self._running, frames, strict=False) if known is now]
        counts = [*before, *[0] * (len(frames) - len(before))]
        self._running = [(frame, count + 1) for frame, count in zip(frames, counts, strict=True)]
        for frame, count in reversed(self._running):
            if count > most:
                self._running = []
                raise StepError(
                    f"{Line(frame.f_code.co_filename, frame.f_lineno)}: it has asked tensors {most} times "
                    "whether to go on, and has not ended, on an example",
                    got="a loop of Python that is run once, to be saved or explained",
                    remedy="an example for which it ends; or stepnet.while_loop, which is saved as a loop",
                )


def _users(frame: FrameType | None) -> list[FrameType]:
    """The running functions of the user's without any of stepnet's between, the outermost first; none where
    it is stepnet that asks."""
    found: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            found.append(frame)
        elif is_machinery(code.co_filename) and code.co_name != "__torch_function__":
            break
        frame = frame.f_back
    return found[::-1]
