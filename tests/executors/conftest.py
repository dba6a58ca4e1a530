"""Plans made by a test are verified after it."""

from __future__ import annotations

import pytest

from plans import verify_new_entries


@pytest.fixture
def verified_plans(request):
    """The graphs and plans that the test made keep the rules of their stages: one in ten of those of an
    ordinary run."""
    yield
    verify_new_entries(1 if request.config.getoption("exhaustive") else 10)
