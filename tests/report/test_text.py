"""The text, held against files that `STEPNET_UPDATE_GOLDEN=1 pytest tests/report` writes anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import stepnet
from report import steps
from stepnet.cells import GRU
from stepnet.executors.c import build as c_build
from stepnet.report import explain
from stepnet.report.text import WIDTH

GOLDEN = Path(__file__).parent / "golden"
X = stepnet.LoDTensor.from_lengths(torch.zeros(6, 3), [[2, 0, 3, 1]])


def gated(backend):
    return explain(steps.gated, X, torch.zeros(4, 5), backend=backend)


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_golden_text(backend):
    if backend == "c" and c_build.available() is not None:
        pytest.skip("no C compiler")
    path, text = GOLDEN / f"gated_{backend}.txt", f"{gated(backend)}\n"
    if os.environ.get("STEPNET_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.covering(1)
@pytest.mark.parametrize("cell", [GRU(3, 5), torch.nn.LSTMCell(3, 5)], ids=["lines", "no lines"])
@pytest.mark.parametrize("backend", ["auto", "eager", "naive"])
def test_every_matmul_is_named_and_no_line_is_too_long(cell, backend):
    told = explain(cell, torch.zeros(4, 2, 3), backend=backend)
    text = str(told)
    assert max(map(len, text.splitlines())) <= WIDTH
    for loop in told.loops:
        for op in (op for region in loop.regions for op in region.matmuls):
            for name in filter(None, map(loop.origin, op.inputs[:2])):
                assert name in text


def test_the_share_of_work_on_many_rows_at_once():
    told = explain(steps.gated, X, torch.zeros(4, 5), backend="eager")
    once = sum(region.flops for region in told.regions if region.kind not in ("scan", "loop"))
    assert f"{round(100 * once / told.flops)} % of that" in str(told).replace("\n", " ")


def test_repr_is_the_text():
    told = gated("eager")
    assert repr(told) == str(told)


@pytest.mark.usefixtures("_compiler")
def test_source_is_the_generated_c():
    told = explain(steps.gated, X, torch.zeros(4, 5), source=True)
    assert told.source is not None
    scans = [region for region in told.regions if region.kind == "scan"]
    assert told.source.count("/* scan of ") == len(scans) == 2
    assert told.source.rstrip() in str(told)
    assert gated("c").source is None
    assert explain(steps.gated, X, torch.zeros(4, 5), source=True, backend="eager").source is None
