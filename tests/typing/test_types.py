"""Programs that use stepnet, which a strict type checker reads: as `make lint` finds them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from stepnet.executors import setting

CLIENT = Path(__file__).parent / "client.py"


def test_the_program_has_no_cast() -> None:
    source = CLIENT.read_text()
    assert "cast(" not in source
    assert "ignore" not in source


def test_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "_default", "naive")
    runpy.run_path(str(CLIENT))
