"""Plans made by a test are verified after it; every step compiles anew only where it is new."""

from __future__ import annotations

import pytest

from plans import verify_new_entries


@pytest.fixture(autouse=True)
def verified_plans():
    """Every graph and plan that the test made keeps the rules of its stage."""
    yield
    verify_new_entries()
