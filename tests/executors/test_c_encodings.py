"""Texts of C are read and written as UTF-8, whatever the locale: Python can make each that is not an
error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepnet.executors.c import build

BUILDS = """
import torch
import stepnet

def step(x, h):
    h = torch.tanh(x) + h
    return h, h

print(stepnet.explain(step, torch.randn(5, 3, 4), torch.zeros(3, 4), backend="c").executor)
"""


@pytest.mark.exhaustive  # a process that imports torch anew
@pytest.mark.skipif(build.available() is not None, reason="no C compiler")
def test_no_text_is_in_the_encoding_of_the_locale(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    strict = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning")
    done = subprocess.run(
        [sys.executable, *strict, "-c", BUILDS], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "c", done.stdout + done.stderr
