"""What the tests of explain share."""

from __future__ import annotations

import pytest
import torch

from stepnet.executors.c import build as c_build


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _compiler():
    if c_build.available() is not None:
        pytest.skip("no C compiler")
