"""What a strict type checker says of programs that use stepnet."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepnet.executors import setting

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def lines() -> dict[str, set[int]]:
    """The lines with errors of each program, as pyright in its strict mode finds them."""
    how = ["-p", str(HERE), "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run([sys.executable, "-m", "pyright", *how], capture_output=True, text=True, timeout=240)
    told: dict[str, Any] = json.loads(run.stdout)
    assert told["summary"]["filesAnalyzed"] == 2
    found: dict[str, set[int]] = {"client.py": set(), "wrong.py": set()}
    for each in told["generalDiagnostics"]:
        found[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return found


def test_a_program_without_a_cast(lines: dict[str, set[int]]) -> None:
    source = (HERE / "client.py").read_text()
    assert "cast(" not in source
    assert "ignore" not in source
    assert lines["client.py"] == set()


def test_each_mistake_is_found(lines: dict[str, set[int]]) -> None:
    source = (HERE / "wrong.py").read_text().splitlines()
    marked = {i for i, line in enumerate(source, 1) if line.endswith("# wrong")}
    assert len(marked) > 15
    assert lines["wrong.py"] == marked


def test_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "_default", "naive")
    runpy.run_path(str(HERE / "client.py"))
