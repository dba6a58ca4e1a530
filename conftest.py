"""What the suite builds and plans is kept in a folder that its processes share, never in the user's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile

import pytest
from _pytest.doctest import DoctestModule

_made: list[str] = []

# What an extra brings is not tested without it.
collect_ignore_glob = [] if importlib.util.find_spec("onnx_ir") else ["src/stepnet/onnx/*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "every test, also those that an ordinary run leaves out (tests/covering.py)"
    parser.addoption("--exhaustive", action="store_true", help=text)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Examples are looked for where there are some: to look is to import a file and go through all of it."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule) or _has_examples(file_path)]


def _has_examples(path):
    return not path.name.startswith("test_") and ">>>" in path.read_text(encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are collected, and before the processes that run them are started."""
    if not hasattr(config, "workerinput"):
        _made.append(tempfile.mkdtemp(prefix="stepnet-tests-"))
        os.environ["STEPNET_CACHE_DIR"] = _made[0]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The process that made the folder removes it."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
