"""An executor is a folder: what others know of it, and what it knows of others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stepnet
from stepnet.executors import backend_names, tried
from stepnet.executors.registry import AUTO

PACKAGE = Path(stepnet.__file__).parent
EXECUTORS = PACKAGE / "executors"
NAMES = {name for name in backend_names() if name != AUTO}


def names_in(source: str) -> list[int]:
    """The lines where the name of an executor stands in code; `gates["c"]` is another thing, and so is a type
    that lists them, `Literal["c", "eager"]`."""
    tree = ast.parse(source)
    subscripts = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    items = {id(node.slice) for node in subscripts}
    for node in subscripts:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            items |= {id(part) for part in ast.walk(node.slice)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in items]
    return [node.lineno for node in constants if node.value in NAMES]


OWN = {EXECUTORS / "naive.py", *(EXECUTORS / "c").rglob("*.py"), *(EXECUTORS / "torch_ops").rglob("*.py")}


def test_a_name_stands_in_the_executors_own_files_alone():
    files = [path for path in PACKAGE.rglob("*.py") if path not in OWN]
    assert len(files) > 100
    sources = {str(path): path.read_text(encoding="utf-8") for path in files}
    quoted = [f"{mark}{name}{mark}" for name in NAMES for mark in "\"'"]
    found = {at: names_in(text) for at, text in sources.items() if any(name in text for name in quoted)}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""c"""\nif backend == "c": pass', [1, 2]),
        ('run(backend="eager")', [1]),
        ('{"naive": 1}', [1]),
        ('gates["c"]', []),
        ("'the eager one'", []),
        ('Backend = Literal["auto", "c"]', []),
    ],
)
def test_the_reader_of_names_sees(source, lines):
    assert sorted(names_in(source)) == lines


def imported(path: Path) -> set[str]:
    """What a file imports of the executors: 'c', 'schedule', 'loop'; '.' is its own folder."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                found.add(".")
            elif (node.module or "").startswith("stepnet.executors"):
                found |= set((node.module or "").split(".")[2:3]) or {alias.name for alias in node.names}
    return found


def test_the_schedule_knows_no_target():
    files = sorted((EXECUTORS / "schedule").glob("*.py"))
    assert len(files) > 4
    assert {str(path): imported(path) - {"."} for path in files if imported(path) - {"."}} == {}


def test_executors_do_not_know_each_other():
    for folder, others in (("c", {"torch_ops", "registry"}), ("torch_ops", {"c", "schedule", "registry"})):
        for path in (EXECUTORS / folder).glob("*.py"):
            assert not imported(path) & others, path


def test_each_says_what_it_is():
    for executor in tried(AUTO):
        assert executor.name in backend_names()
        assert executor.label
        assert executor.form in ("fused", "hoisted")
        assert tried(executor.name) == (executor,)
