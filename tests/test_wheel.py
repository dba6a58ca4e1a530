"""What `pip install` puts on a machine: the wheel has the code, the data and the command."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built offline, with the build backend of this environment."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("stepnet-*-py3-none-any.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


def metadata(wheel, name):
    archive = zipfile.ZipFile(wheel)
    (path,) = [path for path in archive.namelist() if path.endswith(f".dist-info/{name}")]
    return archive.read(path).decode()


def test_holds_every_file_of_the_package(names):
    package = ROOT / "src" / "stepnet"
    here = {
        f"stepnet/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here - names == set()
    assert {name for name in names if name.startswith("stepnet/")} - here == set()


@pytest.mark.parametrize(
    "name",
    [
        "stepnet/py.typed",
        "stepnet/datasets/japanese_vowels.npz",
        "stepnet/datasets/README.md",
        "stepnet/datasets/LICENSE",
        "stepnet/executors/c/scan.c.in",
        "stepnet/executors/c/sn_math.h",
        "stepnet/executors/c/sn_matmul.h",
        "stepnet/executors/c/sn_turn.h",
        "stepnet/executors/c/sn_parallel.h",
    ],
)
def test_holds(names, name):
    assert name in names


def test_holds_nothing_but_the_package(names):
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"stepnet"}


def test_metadata(wheel):
    fields = Parser().parsestr(metadata(wheel, "METADATA"))
    assert fields["Name"] == "stepnet"
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.10"
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")
    needed = {line for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {line.split(">")[0] for line in needed} == {
        "torch", "networkx", "numpy", "typer", "rich", "typing-extensions"
    }  # fmt: skip


def test_command(wheel):
    scripts = configparser.ConfigParser()
    scripts.read_string(metadata(wheel, "entry_points.txt"))
    assert dict(scripts["console_scripts"]) == {"stepnet": "stepnet.cli:main"}


STEP = """
import sys, stepnet
print(*{name.split('.')[0] for name in sys.modules})
import torch
x, h = torch.randn(3, 2, 4), torch.zeros(2, 4)
y, _ = stepnet.recurrent(torch.nn.GRUCell(4, 4), x, h, backend="eager")
y.sum().backward()
print(*sys.modules)
import stepnet.cli
from stepnet.datasets import japanese_vowels
print(stepnet.__file__, len(japanese_vowels().test.x))
"""


@pytest.mark.exhaustive  # a process that imports torch anew
def test_the_installed_wheel_is_light_and_has_its_data(wheel, tmp_path):
    """Unpacked alone into a folder that goes before the checkout, it runs from there, and imports little."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", STEP]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    assert run.returncode == 0, run.stderr
    loaded, trained, (place, count) = (line.split() for line in run.stdout.splitlines())
    assert "torch" in loaded
    assert not {"typer", "click", "rich", "matplotlib", "networkx"} & {*loaded}
    assert not {"torch._dynamo", "sympy"} & {*trained}  # a second to import
    assert Path(place).is_relative_to(tmp_path)
    assert count == "370"
