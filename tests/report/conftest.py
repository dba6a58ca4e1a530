"""What the tests of explain share."""

from __future__ import annotations

import pytest

from stepnet.executors.c import build as c_build


@pytest.fixture
def _compiler():
    if c_build.available() is not None:
        pytest.skip("no C compiler")
