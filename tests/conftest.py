"""Which tests are run, and with what around them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from hypothesis import settings
from hypothesis.internal.conjecture import providers

from covering import left_out

LONG = Path(__file__).parent / "test_docs.py"

# Torch would look for garbage after each compilation, among what all tests have made.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# No deadline: the first call of anything in torch is slow. An ordinary run has the same examples every time.
settings.register_profile("exhaustive", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("ordinary", settings.get_profile("exhaustive"), max_examples=10, derandomize=True)


def pytest_configure(config):
    settings.load_profile("exhaustive" if config.getoption("exhaustive") else "ordinary")
    if not config.getoption("exhaustive") and hasattr(providers, "_get_local_constants"):
        # Numbers and words of the source are tried as examples, too: to look for them is to parse all that is
        # imported, in each process, and examples would depend on which tests a process has run before.
        none = providers.Constants()  # pyright: ignore[reportPrivateImportUsage]
        providers._get_local_constants = lambda: none
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # not in the process that only hands out tests, which others wait for: it needs no torch
        config.pluginmanager.register(importlib.import_module("around_tests"))


def pytest_collection_modifyitems(config, items):
    """An ordinary run leaves out what `make fuzz` runs; a test whose id is written out runs in any case."""
    items.sort(key=lambda item: item.path != LONG)  # of the last files, the long one
    if config.getoption("exhaustive") or any("[" in arg for arg in config.args):
        return
    out = left_out(items)
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
