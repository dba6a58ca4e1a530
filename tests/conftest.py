"""What every test starts from."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# No deadline: the first call of anything in torch is slow. In CI the same examples every time.
settings.register_profile("stepnet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("stepnet")

# Two processes run the tests on two cores; tests of shared work set threads of their own.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _plans_are_made_anew(request, monkeypatch):
    """Plans of earlier runs lie on disk; only tests of that read them."""
    if not getattr(request.module, "PLANS_ON_DISK", False):
        from stepnet.executors import plan_files

        monkeypatch.setattr(plan_files, "read", lambda key: None)
        monkeypatch.setattr(plan_files, "write", lambda key, data: None)
