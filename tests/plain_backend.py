"""A fixture for tests of what is run, not of what runs it: the plain loop and one thread.

A test may ask for another backend. Threads that wait for each other over tiny matrices
cost more than they save.
"""

from __future__ import annotations

import pytest
import torch

from stepnet.executors.setting import get_backend, set_backend


@pytest.fixture(autouse=True)
def backend(request):
    """The backend of every recurrence in a test: the test's own parameter, or the plain loop."""
    before, threads = get_backend(), torch.get_num_threads()
    set_backend(getattr(request, "param", "naive"))
    torch.set_num_threads(1)
    yield get_backend()
    torch.set_num_threads(threads)
    set_backend(before)
