"""What this CPU has, and the system lets a process use, that a compiler cannot know."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from pathlib import Path

_TILES = {"amx_tile", "amx_bf16", "avx512f"}
_PAIRS = {"avx512f", "avx512_bf16"}
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # asks for the large state of tiles, once a process


@functools.cache
def has_tiles() -> bool:
    """Whether tile instructions may be run: the CPU has AMX, and the system gave permission.

    Threads of this process share the permission, and a forked process keeps it.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if not set(_flags()) >= _TILES:
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


@functools.cache
def has_pairs() -> bool:
    """Whether an instruction multiplies pairs of bfloat16, faster than others multiply floats."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and set(_flags()) >= _PAIRS


@functools.cache
def has_wide_vectors() -> bool:
    """Whether the CPU has AVX-512."""
    return "avx512f" in _flags()


def _flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return next((line.split() for line in lines if line.startswith("flags")), [])
