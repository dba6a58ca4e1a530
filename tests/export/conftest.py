"""Fixtures of the tests of what is written."""

from __future__ import annotations

import pytest

from file_formats import share_traces


@pytest.fixture(scope="module")
def _programs():
    return {}


@pytest.fixture
def one_trace(_programs, monkeypatch):
    """All formats that a file writes its one module in share the trace."""
    share_traces(monkeypatch, _programs)
