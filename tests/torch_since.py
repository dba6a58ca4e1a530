"""Tests of what some versions of torch or Python cannot do, or do otherwise; `make matrix` runs them under
several."""

from __future__ import annotations

import pytest
import torch

from stepnet.compiler.reads.unchanged import tells

TOLD = pytest.mark.skipif(not tells(), reason="this Python does not tell of all changes")


def torch_since(version: str, why: str) -> pytest.MarkDecorator:
    """Leave a test out under an older torch: the earliest of those tried that passes is `version`."""
    return pytest.mark.skipif(torch.__version__ < version, reason=f"torch before {version}: {why}")
