"""Which executor is asked for: per call, or one setting for the process."""

from __future__ import annotations

from typing import Literal

import torch

from stepnet.errors import StepError

Backend = Literal["auto", "c", "eager", "naive"]
BACKENDS = ("auto", "c", "eager", "naive")
_default: Backend = "auto"


def set_backend(backend: Backend) -> None:
    """Choose the executor of every recurrence that does not name one.

    Args:
        backend: `"auto"` takes the first that accepts the step, of generated C, torch ops and the plain
            loop; each of these can be asked for by name.

    Raises:
        StepError: there is no such backend.

    >>> set_backend("auto")
    """
    global _default
    _default = check_backend(backend)


def get_backend() -> Backend:
    """The process-wide setting.

    >>> get_backend()
    'auto'
    """
    return _default


def check_backend(backend: str | None) -> Backend:
    """A backend by name; None is the process-wide setting."""
    if backend is None:
        return _default
    if backend not in BACKENDS:
        raise StepError("no such backend", got=repr(backend), expected=f"one of {', '.join(BACKENDS)}")
    return backend  # pyright: ignore[reportReturnType]


def transforms_active() -> bool:
    """True inside torch.func's vmap, grad or jvp, which a compiled loop cannot take part in."""
    return torch._C._are_functorch_transforms_active()
