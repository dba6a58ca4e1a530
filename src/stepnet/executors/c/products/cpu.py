"""What this CPU has, and the system lets a process use, that a compiler cannot know."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from pathlib import Path

import torch

_TILES = {"amx_tile", "amx_bf16", "avx512f"}
_PAIRS = {"avx512f", "avx512_bf16"}
_WIDENS = {"avx512f", "avx_ne_convert"}  # with one of these oneDNN has code for bfloat16
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


@functools.cache
def are_slow_in_torch(dtype: str = "float32") -> bool:
    """Whether products of floats, or of bfloat16, are faster by generated C's own code than by torch's.

    Torch's of floats are MKL's, which does not take its code for AVX2 or AVX-512 where another than Intel
    made the CPU (measured: ours are 1.1 to 1.2 times as fast with AVX2, 2.1 to 2.9 times with AVX-512 of full
    width). Those of bfloat16 are oneDNN's, which rounds their sums to bfloat16 (measured, by AVX512-BF16
    without tiles: ours are 1.0 to 1.8 times as fast, of few rows most), or loops of torch's own. Told by the
    CPU, not by the clock: a product that is made again is to have the same bits.
    """
    if dtype == "bfloat16":
        return (has_pairs() and not has_tiles()) or are_loops_of_torch()
    if sys.platform != "linux" or platform.machine() != "x86_64" or not torch.backends.mkl.is_available():
        return False
    return dtype == "float32" and _maker() == "AuthenticAMD" and set(_flags()) >= {"avx2", "fma"}


@functools.cache
def are_loops_of_torch() -> bool:
    """Whether products of bfloat16 are loops of torch's own, for oneDNN has no code for them on this CPU.

    One core with AVX2 does about 1 gflop/s by these, and 90 of floats.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return "avx2" in _flags() and set(_flags()).isdisjoint(_WIDENS)


def _flags() -> list[str]:
    return _said("flags").split()


def _maker() -> str:
    return _said("vendor_id")


def _said(name: str) -> str:
    """What the system says of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    told = (line.partition(":") for line in lines)
    return next((what.strip() for key, _, what in told if key.strip() == name), "")
