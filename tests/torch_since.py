"""Tests of what older versions of torch cannot do, or do otherwise; `make matrix` runs them under several."""

from __future__ import annotations

import pytest
import torch


def torch_since(version: str, why: str) -> pytest.MarkDecorator:
    """Leave a test out under an older torch: the earliest of those tried that passes is `version`."""
    return pytest.mark.skipif(torch.__version__ < version, reason=f"torch before {version}: {why}")
