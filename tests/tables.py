"""A law of many small cases in one test: a test for each would take several times as long as the case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch


def holds(law: Callable[..., Any], table: Mapping[str, tuple[Any, ...]]) -> None:
    """Run a law on each case of a table, each from the same seed; those that fail are named.

    >>> holds(lambda a, b: a + b == 3 or 1 / 0, {"fits": (1, 2), "fails": (1, 1)})
    Traceback (most recent call last):
    AssertionError: 1 of 2 cases fail:
    fails: ZeroDivisionError: division by zero
    """
    assert table
    failed: dict[str, BaseException] = {}
    for name, case in table.items():
        torch.default_generator.manual_seed(0)
        try:
            law(*case)
        except (Exception, pytest.fail.Exception) as error:
            failed[name] = error
    if failed:
        told = "\n".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed.items())
        first = next(iter(failed.values()))
        raise AssertionError(f"{len(failed)} of {len(table)} cases fail:\n{told}") from first
