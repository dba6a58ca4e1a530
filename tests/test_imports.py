"""The layout that docs/layout.md describes is the layout that the imports have."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "stepnet"
LAYOUT = ROOT / "docs" / "layout.md"
MODULES = sorted(PACKAGE.rglob("*.py"))


def ranks(page: str) -> dict[str, int]:
    """The rank of each top module, from the rows `| 1 | `data`, `ir` | ... |` of the page's table."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)
    return {name: int(rank) for rank, names in rows for name in re.findall(r"`(\w+)`", names)}


RANKS = ranks(LAYOUT.read_text(encoding="utf-8"))


def top(dotted: str) -> str:
    """The part that a dotted name belongs to: stepnet.data.lod -> data, stepnet -> __init__."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All of a file, at any depth, but for what is in expressions: nothing is imported there."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def imports(source: str, package: str, is_part=lambda dotted: True) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file of `package` imports, at any depth of its code.

    `from stepnet import data` imports the part `data` if `is_part("stepnet.data")`, else a name of `stepnet`;
    `from stepnet.data import lod` imports the file.
    """
    found = []
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" for alias in node.names]
            is_file = is_part if base == "stepnet" else FILES.__contains__
            found += [(node.lineno, name if is_file(name) else base) for name in names]
    return sorted(set(found))


def broken_rules(unit: str, imported: list[tuple[int, str]], ranks: dict[str, int]) -> list[str]:
    """What the imports of a file of the part `unit` do against the ranks, a sentence each."""
    broken = []
    for line, name in imported:
        if name.split(".")[0] == "torch" and unit == "ir":
            broken.append(f"line {line}: ir imports {name}; ir holds no torch")
        if name.split(".")[0] != "stepnet" or top(name) == unit:
            continue
        mine, theirs = ranks.get(unit), ranks.get(top(name))
        if mine is None or theirs is None:
            broken.append(f"line {line}: {unit} imports {name}; give both a row in the table of ranks")
        elif theirs >= mine:
            broken.append(
                f"line {line}: {unit} (rank {mine}) imports {name} ({top(name)} has rank {theirs});"
                " import from lower ranks only"
            )
    return broken


def module_of(path: Path) -> str:
    parts = ("stepnet", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in MODULES}


def package_of(path: Path) -> str:
    return ".".join(("stepnet", *path.relative_to(PACKAGE).parent.parts))


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_part(dotted: str) -> bool:
    return top(dotted) in RANKS


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_part_has_a_rank():
    parts = {unit_of(path) for path in MODULES}
    assert parts == set(RANKS), "the rank table of docs/layout.md must list exactly the parts of src/stepnet"


def listed(page: str, folder: str) -> list[str]:
    """The names in the first column of the table `In `folder/``, in order; a star is several files."""
    table = re.search(rf"^\| In `{folder}/` \|[^\n]*\n(?:\|[^\n]*\n)+", page, re.MULTILINE)
    assert table is not None, folder
    columns = [row.split("|")[1] for row in table.group().splitlines()[2:]]
    return [name.removesuffix("/") for column in columns for name in re.findall(r"`([^`]+)`", column)]


@pytest.mark.parametrize("folder", ["compiler", "engine", "executors", "export", "file_model"])
def test_tables_of_files_list_what_there_is(folder: str):
    names = listed(LAYOUT.read_text(encoding="utf-8"), folder)
    files = {path.stem for path in (PACKAGE / folder).glob("*") if not path.name.startswith("__")}
    assert [file for file in sorted(files) if not any(fnmatch(file, name) for name in names)] == []
    assert [name for name in sorted(names) if not any(fnmatch(file, name) for file in files)] == []


def test_folders_of_the_compiler_import_those_above_them_in_the_table():
    order = listed(LAYOUT.read_text(encoding="utf-8"), "compiler")
    broken = []
    for path, here in all_imports().items():
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "compiler" or len(parts) < 3:
            continue
        allowed = order[: order.index(parts[1]) + 1]
        below = [name for _, name in here if name.startswith("stepnet.compiler.")]
        broken += [f"{relative(path)}: {name}" for name in below if name.split(".")[2] not in allowed]
    assert broken == []


def test_pages_name_files_that_are_there():
    """As `compiler/reads/walk.py`: below the root, the package, or a folder of the package."""
    files = {f"/{path.relative_to(ROOT)}" for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]}
    missing = [
        f"{page.name}: {name}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", page.read_text(encoding="utf-8"))
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []


@functools.cache
def all_imports() -> dict[Path, list[tuple[int, str]]]:
    return {path: imports(path.read_text(encoding="utf-8"), package_of(path), is_part) for path in MODULES}


def test_imports_keep_the_ranks():
    broken = {
        relative(path): broken_rules(unit_of(path), here, RANKS) for path, here in all_imports().items()
    }
    assert {path: rules for path, rules in broken.items() if rules} == {}


def circles(found: dict[Path, list[tuple[int, str]]]) -> list[list[str]]:
    """Files that import each other, by way of others too; for types alone counts as well."""
    pairs = [(path, FILES.get(name)) for path, here in found.items() for _, name in here]
    graph = nx.DiGraph([(one, other) for one, other in pairs if other is not None and one != other])
    return [sorted(map(relative, part)) for part in nx.strongly_connected_components(graph) if len(part) > 1]


def test_no_file_imports_itself_by_way_of_others():
    assert circles(all_imports()) == []


def test_circles_are_seen():
    one, other = FILES["stepnet.data.lod"], FILES["stepnet.data.tables"]
    found = {one: [(1, "stepnet.data.tables")], other: imports("from .lod import LoDTensor", "stepnet.data")}
    assert circles(found) == [[relative(one), relative(other)]]


@pytest.mark.parametrize(
    ("unit", "source", "verdict"),
    [
        ("data", "from ..errors import LoDError", None),
        ("data", "from .array import TensorArray", None),
        ("data", "import torch", None),
        ("data", "from ..executors.naive import run", "data (rank 1) imports stepnet.executors.naive"),
        ("front", "from ..executors import naive", "front (rank 2) imports stepnet.executors"),
        ("front", "def f():\n    from ..compiler import pipeline", "line 2: front (rank 2) imports"),
        ("ir", "import torch.fx", "ir imports torch.fx; ir holds no torch"),
        ("ir", "from torch import Tensor", "ir imports torch; ir holds no torch"),
        ("executors", "import stepnet", "executors (rank 2) imports stepnet"),
        ("executors", "from stepnet import recurrent", "executors (rank 2) imports stepnet"),
        ("executors", "from .. import api", "executors (rank 2) imports stepnet.api"),
        ("executors", "from .. import errors", None),
    ],
)
def test_the_reader_of_imports_sees(unit, source, verdict):
    found = broken_rules(unit, imports(source, f"stepnet.{unit}", is_part), RANKS)
    if verdict is None:
        assert found == []
    else:
        assert len(found) == 1
        assert verdict in found[0]


def test_no_file_is_too_long():
    folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "benchmarks")]
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in folder.rglob(kind)]
    lines = {relative(path): path.read_text(encoding="utf-8").count("\n") for path in files}
    assert len(lines) > 20
    assert {name: count for name, count in lines.items() if count > 600} == {}


def test_the_functions_that_a_call_goes_through_stand_where_the_page_says():
    page = LAYOUT.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|", page.partition("## One call, file by file")[2], re.MULTILINE
    )
    rows = rows[1 : rows.index(next(row for row in rows if row[0].startswith("In `")))]
    assert rows[0][0].startswith("`recurrent`")
    for names, files in rows:
        text = "".join(
            (PACKAGE / file).read_text(encoding="utf-8") for file in re.findall(r"`([^`]+)`", files)
        )
        for name in re.findall(r"`(?:\w+\.)*(\w+)`", names):
            assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), (name, files)
