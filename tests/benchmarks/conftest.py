"""`benchmarks` is no part of the package: it is found in the root of the repository."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

# What peers give is looked at here, not how fast: XLA leaves out most of what it does to its code.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """Runs take the one thread that tests have: more would wait for each other in turns."""
    from benchmarks import __main__ as command

    monkeypatch.setattr(command, "THREADS", 1)


@pytest.fixture(autouse=True)
def _turns_are_cheap(monkeypatch):
    """No pauses, whose times nobody reads; and what all tests hold stays frozen after a run."""
    from benchmarks import harness

    monkeypatch.setattr(harness, "PAUSE", 0.0)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
