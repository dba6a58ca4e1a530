"""Run a scan by generated C."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from stepnet.errors import BuildError, Refusal
from stepnet.ir.plan import LoopPlan, Region

from . import c_build, c_threads
from .c_source import FIXED, Source, write
from .layout import Layout

TOGETHER = 1 << 19  # bytes of weights a step reads: below, meeting costs more than it saves (measured)
CHUNK = 1 << 18  # bytes of rows made ahead of the steps that read them; they should stay in the second cache


class CScan:
    """A scan compiled to C; called like every scan executor (see `loop.Loop`).

    Raises:
        Refusal: the scan holds what generated C does not do, or there is no compiler.
    """

    def __init__(self, loop: LoopPlan, region: Region) -> None:
        self.source: Source = write(loop, region, "run")
        suffix = {"float32": "f32", "float64": "f64"}[self.source.program.real]
        reason = c_build.available()
        if reason is not None:
            raise Refusal(reason, remedy="install a C compiler, or stepnet[compiler]")
        try:
            library = c_build.build(c_build.preamble(suffix) + self.source.text)
        except BuildError as error:
            raise Refusal(str(error)) from error
        self.run = library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.c_void_p)
        self.dtype = getattr(torch, self.source.program.real)
        self.spaces: list[Tensor] = []  # workspaces at rest; list.pop and append are atomic
        item = self.dtype.itemsize
        early = {node.inputs[1] for node in (*self.source.program.early, *self.source.program.late)}
        self.step_bytes = [h * k * n * item for name, h, k, n in self.source.packed if name not in early]
        self.packed_sizes = [heads * _packed_elements(k, n, item) for _, heads, k, n in self.source.packed]

    def __call__(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        source, p = self.source, self.source.program
        pool = c_threads.pool()
        together = self._together(pool.threads, layout.sequences)
        shares = 1 if together else max(1, min(pool.threads, layout.sequences))
        members = pool.threads if together else 1
        count = -(-layout.sequences // shares)
        row_bytes = source.chunk_bytes + members * source.index_bytes
        chunk = max(1, min(layout.steps, CHUNK // max(count * row_bytes, 1)))
        share_bytes = source.space[0] + count * (8 * members + source.space[1] + chunk * row_bytes)
        share_bytes = (share_bytes + 63) // 64 * 64
        packed_bytes = [(n * self.dtype.itemsize + 63) // 64 * 64 for n in self.packed_sizes]
        space = self._take(share_bytes * shares + sum(packed_bytes) + 64)
        base = (space.data_ptr() + 63) // 64 * 64
        packed_at, at = {}, base + share_bytes * shares
        for (name, *_), size in zip(source.packed, packed_bytes, strict=True):
            packed_at[name] = at
            at += size
        finals: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        alive: list[Tensor] = []
        numbers = [
            layout.sequences, shares, layout.steps, layout.stride, chunk, together, layout.starts.data_ptr(),
            layout.lengths.data_ptr(), layout.order.data_ptr(), base, share_bytes,
        ]  # fmt: skip
        assert len(numbers) == len(FIXED)
        for entry in source.fields:
            name, role = entry.value, entry.role
            if role in ("row", "shared"):
                numbers.append(self._pointer(values[name], alive))
            elif role == "matrix":
                numbers.append(values[name].data_ptr())
            elif role in ("stride_k", "stride_n", "stride_h"):
                numbers.append(_stride(values[name], role))
            elif role == "packed":
                numbers.append(packed_at[name])
            elif role == "boot":
                numbers.append(self._pointer(states[name], alive))
            elif role == "final":
                finals[name] = torch.empty_like(states[name], memory_format=torch.contiguous_format)
                numbers.append(finals[name].data_ptr())
            elif role == "out":
                value = p.value(name)
                made[name] = torch.empty((layout.rows, *value.shape), dtype=getattr(torch, value.dtype))
                numbers.append(made[name].data_ptr())
            else:
                sums[name] = torch.zeros((shares * members, *p.value(name).shape), dtype=self.dtype)
                numbers.append(sums[name].data_ptr())
        arguments = (ctypes.c_int64 * len(numbers))(*numbers)
        self.run(ctypes.byref(pool), ctypes.addressof(arguments))
        self.spaces.append(space)
        for name, kept in p.renamed.items():
            values[name] = made[kept]
        for name, parts in sums.items():
            values[name] = parts[0] if len(parts) == 1 else parts.sum(0)
        for name in p.held:
            finals[name] = states[name]
        return finals

    def _together(self, threads: int, sequences: int) -> bool:
        """Whether all threads work on one step at a time: where sequences do not fill the threads, and a
        step is long enough to pay for the meetings."""
        return 0 < sequences < threads and sum(self.step_bytes) >= TOGETHER

    def _take(self, size: int) -> Tensor:
        try:
            space = self.spaces.pop()
        except IndexError:
            space = torch.empty(0, dtype=torch.uint8)
        return space if space.numel() >= size else torch.empty(size, dtype=torch.uint8)

    @staticmethod
    def _pointer(tensor: Tensor, alive: list[Tensor]) -> int:
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            alive.append(tensor)
        return tensor.data_ptr()


def _packed_elements(k: int, n: int, item: int) -> int:
    lanes = 64 // item  # the widest vectors; narrower ones need no more
    return k * -(-n // lanes) * lanes


def _stride(tensor: Tensor, role: str) -> int:
    if role == "stride_k":
        return tensor.stride(-2)
    if role == "stride_n":
        return tensor.stride(-1)
    return tensor.stride(-3) if tensor.dim() > 2 else 0
