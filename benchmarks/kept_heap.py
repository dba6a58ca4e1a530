"""LSTM and GRU against torch.nn once more, in a process that keeps the memory it frees.

glibc gives freed memory back, and the kernel fills it with zeros when it is asked for again: thousands of
page faults in a training step. How many depends on the program around, so both are measured: as it is by
default in the topics of recurrences, and without these faults here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

from .harness import Case, Topic
from .recurrences import EFFORTS, case_of, findings, settings, table
from .work import WORKS

# mallopt parameters, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_heap() -> None:
    """From now on this process keeps what it frees.

    Raises:
        RuntimeError: the C library has no such setting.
    """
    if sys.platform != "linux":
        raise RuntimeError("only glibc can be told to keep freed memory")
    mallopt = ctypes.CDLL(None).mallopt
    if not (mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1)):
        raise RuntimeError("mallopt refused")


def cases(quick: bool) -> Iterator[Case]:
    """Training, of everyone who has the operator fused."""
    keep_heap()
    for name in ("lstm", "gru"):
        for setting in settings(WORKS[name], quick):
            yield case_of(setting, True, ("torch_nn", "ours"))


TOPIC = Topic(
    name="kept_heap",
    claim="training of LSTM and GRU where freed memory is kept, which spares page faults",
    cases=cases,
    findings=findings,
    table=table,
    efforts=EFFORTS,
)
