"""Steps that ask a logger whether it would log, as a first call imports what torch traces with."""

from __future__ import annotations

import subprocess
import sys

FIRST_CALL = """
import logging
import torch
import stepnet

log = logging.getLogger("steps")

def step(x, h):
    if log.isEnabledFor(logging.DEBUG) or log.getChild("h").isEnabledFor(logging.DEBUG):
        log.debug("h")
    h = torch.tanh(x) + h
    return h, h

found = stepnet.explain(step, torch.randn(5, 3, 4), torch.zeros(3, 4), backend="eager")
print(found.executor, *found.refusals)
"""


def test_loggers_that_imports_make_are_no_change_of_the_step():
    run = [sys.executable, "-c", FIRST_CALL]
    out = subprocess.run(run, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "eager", out.stdout + out.stderr
