"""The modes of torch that a line of a frame stands in, which hold where it is recorded and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_DEVICES = ("cpu", "cuda")
Modes = tuple[Any, ...]


def modes() -> Modes:
    """Whether gradients are kept here, and how autocast is set."""
    casts = tuple([(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES])
    return torch.is_grad_enabled(), casts


@dataclass(frozen=True)
class UnderModes:
    """A function that is called in other modes than those of its frame; None for a mode that is as there."""

    function: Callable[..., Any]
    gradients: bool | None
    casts: tuple[tuple[str, bool, torch.dtype], ...]

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return getattr(self.function, "__name__", repr(self.function))

    def __getattr__(self, name: str) -> Any:
        if name not in ("like", "parts"):  # what a frame is told of its function's result
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._under_casts(len(self.casts), args, kwargs)

    def _under_casts(self, left: int, args: Any, kwargs: Any) -> Any:
        """One `with` for each mode: Dynamo, which follows this into an exported step, knows no ExitStack."""
        if left:
            device, enabled, dtype = self.casts[left - 1]
            with torch.autocast(device, dtype=dtype, enabled=enabled):
                return self._under_casts(left - 1, args, kwargs)
        if self.gradients is None:
            return self.function(*args, **kwargs)
        with torch.set_grad_enabled(self.gradients):
            return self.function(*args, **kwargs)


def under(function: Callable[..., Any], around: Modes) -> Callable[..., Any]:
    """The function in the modes that are set here, where they are not those around the frame."""
    here = modes()
    if here == around or isinstance(function, UnderModes):
        return function
    casts = [
        (device, *new) for device, new, old in zip(_DEVICES, here[1], around[1], strict=True) if new != old
    ]
    return UnderModes(function, here[0] if here[0] != around[0] else None, tuple(casts))
