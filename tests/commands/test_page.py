"""The commands on the page about them run, and say what the page shows, but for the numbers in names."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from test_docs import run_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "command_line.md"
TITLE = "{http://www.w3.org/2000/svg}title"


def rough(line: str) -> str:
    """A line without its numbers and widths, which are the writer's to choose."""
    return re.sub(r"─+", "─", " ".join(re.sub(r"\d+", "0", line).split()))


def test_the_page(stepnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE, PAGE.name)
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^stepnet (.+)$", text, re.MULTILINE)
    assert len(commands) == 8
    told = ""
    for command in commands:
        if command.startswith("compare") and find_spec("openvino") is None:
            continue
        code, out, err = stepnet(*shlex.split(command))
        assert (code, err) == (0, ""), command
        told += out
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = {rough(line) for line in told.splitlines()}
    assert [line for line in map(rough, shown.splitlines()) if line not in lines] == ["..."]
    assert (tmp_path / "tags.npz").exists()
    assert titles(PAGE.parent / "images" / "tagger.svg") == titles(tmp_path / "tagger.svg")


def titles(picture: Path) -> list[str]:
    """What the boxes of a picture are called."""
    return sorted(
        rough((title.text or "").splitlines()[0]) for title in ElementTree.parse(picture).iter(TITLE)
    )
