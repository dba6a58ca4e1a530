"""Tables that C works on, and programs in C: under the sanitizers, with tile instructions on any x86 CPU."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from stepnet.executors.c import build as c_build
from stepnet.executors.c.products import cpu

WIDE = "#define SN_VECTOR_BYTES 64\n"  # as wide as tiles, on any CPU
_HERE = Path(__file__).parent
TILE_FLAGS = ("-mamx-tile", "-mamx-bf16", "-include", str(_HERE / "tile_traps.h"))
# What is undefined is a trap: to have it told in words takes half as long again to compile.
_SANITIZE = ("-O0", "-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error")
_SANITIZE += (
    "-fno-sanitize=null,object-size,pointer-overflow",
)  # what they see of these programs, address sees
_EMULATOR = _HERE / "tile_emulator.c"


class Table(ctypes.Structure):
    """`sn_rows_*`."""

    _fields_ = (("base", ctypes.c_void_p), ("stride", ctypes.c_int64), ("index", ctypes.c_void_p))


NOTHING = Table(None, 0, None)


class Rows:
    """rows x width numbers in a larger buffer of NaN, addressed by a stride or by an index per row."""

    def __init__(self, rows: int, width: int, layout: str, dtype: torch.dtype) -> None:
        stride = {"dense": width, "strided": width + 3, "indexed": width + 5}[layout]
        self.index = torch.randperm(3 * rows)[:rows] if layout == "indexed" else torch.arange(rows)
        self.buffer = torch.full((64 + (3 * rows + 1) * stride + 64,), float("nan"), dtype=dtype)
        self.places = 64 + self.index[:, None] * stride + torch.arange(width)
        self.buffer[self.places] = torch.randn(rows, width).to(dtype)
        address = self.buffer.data_ptr() + 64 * self.buffer.itemsize
        self.c = Table(address, stride, self.index.data_ptr() if layout == "indexed" else None)

    @property
    def values(self) -> torch.Tensor:
        return self.buffer[self.places].double()

    def outside_is_poison(self) -> bool:
        outside = torch.ones(self.buffer.shape, dtype=torch.bool)
        outside[self.places.flatten()] = False
        return bool(self.buffer[outside].isnan().all())


@functools.cache
def can_emulate_tiles() -> bool:
    """Whether a trap can be compiled before each tile instruction, and the CPU knows those around them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or "avx512f" not in cpu._flags():
        return False
    text = "#include <immintrin.h>\nint main(void) { _tile_release(); return 0; }"
    return _status(text, TILE_FLAGS) == -signal.SIGILL


@functools.cache
def _sanitizers() -> tuple[str, ...] | None:
    """Their flags: where gcc takes it, by calls, which it compiles in two thirds of the time."""
    by_calls = (*_SANITIZE, "--param=asan-instrumentation-with-call-threshold=0")
    found = [flags for flags in (by_calls, _SANITIZE) if _status("int main(void) { return 0; }", flags) == 0]
    return found[0] if found else None


def _status(text: str, flags: tuple[str, ...]) -> int | None:
    """How a program that is built with these flags ends; None if it cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        cc, program = c_build.compiler(), f"{folder}/probe"
        command = [*cc.command, *cc.flags, *flags, "-x", "c", "-", "-o", program]
        if subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode:
            return None
        return subprocess.run([program], capture_output=True, check=False).returncode


def emulator_library(folder: Path) -> Path:
    """What a process preloads to have tiles."""
    cc, library = c_build.compiler(), folder / "tiles.so"
    command = [*cc.command, *cc.flags, "-shared", "-o", str(library), str(_EMULATOR), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def run_sanitized(folder: Path, text: str, has_tiles: bool = False) -> str:
    """Build and run a program under the address and undefined-behaviour sanitizers; what it says at its end.

    With `has_tiles` it is compiled for AMX, and each of those instructions is checked as it runs.
    """
    flags = _sanitizers()
    if flags is None:
        pytest.skip("the sanitizers' runtime does not work here")
    source, program = folder / "main.c", folder / "main"
    source.write_text("#include <stdlib.h>\n" + text)
    cc = c_build.compiler()
    extra = [*TILE_FLAGS, str(_EMULATOR)] if has_tiles else []
    command = [*cc.command, *cc.flags, *flags, str(source), *extra, "-o", str(program), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "EMULATED_TILES_COUNT": "1"}
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stderr
