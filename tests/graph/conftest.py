"""Dynamo starts anew in each of these tests."""

from __future__ import annotations

import pytest
import torch

from stepnet.graph import CAN_CAPTURE

collect_ignore_glob = [] if CAN_CAPTURE else ["test_*.py"]  # older torch breaks the graph, and is right


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
