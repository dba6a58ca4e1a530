"""Work in a process of its own, and on so many threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def last_line(module: str, *arguments: str, environment: Mapping[str, str]) -> str:
    """What a module of this folder prints last.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process failed: {(done.stderr.splitlines() or [''])[-1]}")
    return done.stdout.splitlines()[-1]


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Torch and generated C take so many threads in a block of code."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
