"""Every ```python block of the README and of the docs runs, one namespace a page; so does every example."""

from __future__ import annotations

import re
import runpy
import traceback
from importlib.util import find_spec
from pathlib import Path

import pytest

import stepnet
from covering import few

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "command_line.md")  # which tests/commands/test_page.py runs, with its commands
WHEELS = {"10_letters_to_sounds.py": ["g2p_en"], "11_speech_or_not.py": ["silero_vad", "onnx_ir"]}
OF_OTHERS = {  # who runs recurrences is for other pages
    "cells.md", "compile_and_export.md", "nn.md", "onnx.md", "openvino.md", "precision.md",
    "several_machines.md", "streams.md", "tape.md", "tensor_iterator.md",
}  # fmt: skip
FENCE = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """(line of its first statement, code) of each python block; an indented one is moved to the left."""
    found = []
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start("code")) + 1
        code = re.sub(f"^{fence['indent']}", "", fence["code"], flags=re.MULTILINE)
        found.append((line, code))
    return found


def run_page(page: Path, name: str) -> None:
    """Run a page's blocks; a failure says the page's file and line, not that of a string."""
    namespace = {"__name__": "__docs__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        padded = "\n" * (line - 1) + code  # so that line numbers are those of the page
        try:
            exec(compile(padded, str(page), "exec"), namespace)
        except Exception as error:
            where = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(page)
            ]
            at = where[-1] if where else getattr(error, "lineno", None) or line
            pytest.fail(f"{name}, line {at}: {type(error).__name__}: {error}", pytrace=False)


@pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec:FutureWarning"
)  # torch's own, at decompositions
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page, tmp_path, monkeypatch, request):
    if page.name in OF_OTHERS and not request.config.getoption("exhaustive"):
        stepnet.set_backend("eager")
    if page.name == "onnx.md":
        pytest.importorskip("onnx_ir")
    monkeypatch.chdir(tmp_path)
    run_page(page, str(page.relative_to(ROOT)))


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAIN = ("06_", "07_", "09_", "13_")  # which train, for seconds each


@pytest.mark.parametrize(
    "path",
    few(EXAMPLES, [path for path in EXAMPLES if not path.name.startswith(TRAIN)]),
    ids=lambda path: path.name,
)
def test_example_runs(path, capsys):
    for package in WHEELS.get(path.name, ()):
        if find_spec(package) is None:
            pytest.skip(f"the extra `examples` is not installed: no {package}")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_docstring_examples_become_code_on_the_api_page():
    as_code = runpy.run_path(str(ROOT / "docs" / "extensions" / "doctests.py"))["as_code"]
    docstring = "What it does::\n\n    a = b\n\n>>> for i in [1]:\n...     i\n1\n\nMore.\n"
    fenced = "What it does:\n\n    a = b\n\n```pycon\n>>> for i in [1]:\n...     i\n1\n```\n\nMore.\n"
    assert as_code(docstring) == fenced


def test_readme_has_code():
    assert blocks((ROOT / "README.md").read_text(encoding="utf-8"))


PAGE = """# A page

```python
a = 1
```

```
not python
```

- a list

    ```python
    def f():
        return a
    assert f() == {expected}
    ```
"""


def test_blocks_share_a_namespace(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(expected=1))
    assert [line for line, _ in blocks(page.read_text())] == [4, 14]
    run_page(page, "page.md")


@pytest.mark.parametrize(
    ("expected", "message"),
    [("2", "page.md, line 16: AssertionError"), ("(", "page.md, line 16: SyntaxError")],
)
def test_a_failing_block_says_where(tmp_path, expected, message):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(expected=expected))
    with pytest.raises(pytest.fail.Exception, match=re.escape(message)):
        run_page(page, "page.md")
