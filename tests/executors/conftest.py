"""Plans made by a test are verified after it."""

from __future__ import annotations

import pytest

from plans import verify_new_entries


@pytest.fixture
def verified_plans():
    """Every graph and plan that the test made keeps the rules of its stage."""
    yield
    verify_new_entries()
