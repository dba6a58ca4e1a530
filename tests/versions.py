"""Tests under other versions of Python and torch, an environment of its own for each.

    python tests/versions.py FOLDER [PYTHON-TORCH ...]      3.10-2.6, for example

An environment is made once, in FOLDER, if this machine has the Python and its package index the torch. What
cannot be had is named; what can be is tested, and a failure ends in exit status 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ("3.10-2.6", "3.11-2.8", "3.12-2.10", "3.13-2.14")
TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "expecttest>=0.3", "scipy", "setuptools")
TOOLS += ("openvino>=2024.4", "onnxruntime>=1.18", "pandas>=2.2")
# Of which other versions warn is not what is tested.
QUIET = [
    part
    for kind in ("FutureWarning", "DeprecationWarning", "RuntimeWarning")
    for part in ("-W", f"ignore::{kind}")
]
QUIET += ["-W", "ignore:The .grad attribute:UserWarning"]  # of opcheck itself, in torch 2.14
TESTS = (
    *(
        f"tests/{name}"
        for name in [
            "cells",
            "data",
            "decode",
            "engine",
            "export",
            "file_model",
            "front",
            "iterator",
            "nested",
            "nn",
        ]
    ),
    *(f"tests/{name}" for name in ["onnx", "openvino", "saving", "streams", "surroundings", "tape"]),
    *(
        f"tests/compiler/test_{name}.py"
        for name in ["autocast", "changes", "control", "keys", "odd_steps", "reads"]
    ),
    "tests/executors/test_executors.py",
    "tests/graph",
    "tests/test_recurrent.py",
    "tests/test_modes.py",
)


class Missing(Exception):
    """A version that cannot be had here; says why."""


def interpreter(version: str) -> str:
    """A Python of this version: on the path, or one of pyenv's.

    Raises:
        Missing: there is none.
    """
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = [sys.executable] if version == f"{sys.version_info.major}.{sys.version_info.minor}" else []
    named = [shutil.which(f"python{version}") or "", *map(str, folder.glob(f"{version}.*/bin/python"))]
    for path in (*own, *named):
        if (
            path
            and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
        ):
            return path
    raise Missing(f"there is no Python {version}")


def environment(folder: Path, python: str, torch: str) -> Path:
    """The Python of an environment with this torch, made if there is none yet.

    Raises:
        Missing: torch cannot be installed.
    """
    home = folder / f"{python}-{torch}"
    own, stamp = home / "bin" / "python", home / ".made"
    if stamp.exists():
        return own
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter(python), "-m", "venv", home], check=True)
    pip = [own, "-m", "pip", "install", "-qq", "--no-cache-dir"]
    for what in ([f"torch=={torch}.*"], ["--editable", f"{ROOT}[openvino,onnx]", *TOOLS]):
        made = subprocess.run([*pip, *what], capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(home)
            lines = [line for line in made.stderr.splitlines() if line.startswith("ERROR")]
            raise Missing((lines or made.stderr.splitlines() or ["pip failed"])[-1])
    stamp.touch()
    return own


def main(folder: str, *pairs: str) -> int:
    """Test each pair of versions; the number that failed, at most 1."""
    results = {}
    for pair in pairs or PAIRS:
        python, torch = pair.split("-")
        print(f"Python {python}, torch {torch}", flush=True)
        try:
            own = environment(Path(folder).resolve(), python, torch)
        except Missing as why:
            results[pair] = f"not to be had here: {why}"
            continue
        run = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUIET, *TESTS]
        results[pair] = "FAILED" if subprocess.run(run, cwd=ROOT).returncode else "passed"
    for pair, result in results.items():
        print(f"{pair:>10}  {result}")
    return int("FAILED" in results.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
