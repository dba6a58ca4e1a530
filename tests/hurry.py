"""C that is built without optimising, which is two thirds of what a C compiler does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest


@functools.cache
def _compilers():
    """Each is asked for what it is once."""
    from stepnet.executors.c import build

    return functools.lru_cache(build._find_compiler.__wrapped__)


@contextlib.contextmanager
def in_a_hurry() -> Iterator[None]:
    from stepnet.executors.c import build

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "_FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build._FLAGS))
        patched.setattr(build, "_find_compiler", _compilers())
        yield
