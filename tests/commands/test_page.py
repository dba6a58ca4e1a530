"""The commands on the page about them run, and say what the page shows."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

from test_docs import run_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "command_line.md"


def test_the_page(stepnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE, PAGE.name)
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^stepnet (.+)$", text, re.MULTILINE)
    assert len(commands) == 7
    told = ""
    for command in commands:
        if command.startswith("compare") and find_spec("openvino") is None:
            continue
        code, out, err = stepnet(*shlex.split(command))
        assert (code, err) == (0, ""), command
        told += out
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = {line.rstrip() for line in told.splitlines()}
    assert [line for line in shown.splitlines() if line not in lines] == ["  ..."]
    assert (tmp_path / "tags.npz").exists()
