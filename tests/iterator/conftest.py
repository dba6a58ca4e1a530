"""Both ways to run: the plain loop, and what the compiler makes of it."""

from __future__ import annotations

import pytest

from stepnet.executors.setting import set_backend


@pytest.fixture(params=["naive", "auto"])
def backend(request):
    set_backend(request.param)
    return request.param
