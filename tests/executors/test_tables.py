"""Tables of rows: those one step earlier, and room for them before a table."""

import pytest
import torch

from stepnet import cells, recurrent
from stepnet.data import heap
from stepnet.executors import gradients, tables
from stepnet.executors.c import new_tables
from stepnet.executors.layout import Layout
from stepnet.executors.loop import shift

OPTIMISED = False
LAYOUTS = {
    "ragged": Layout.ragged(torch.tensor([0, 2, 2, 3, 7]), False),
    "ragged, backwards": Layout.ragged(torch.tensor([0, 2, 2, 3, 7]), True),
    "time first": Layout.dense(3, 2, True, False),
    "time first, backwards": Layout.dense(3, 2, True, True),
    "batch first": Layout.dense(3, 2, False, False),
    "one sequence": Layout.dense(4, 1, True, False),
    "no sequence": Layout.dense(4, 0, True, False),
    "no step": Layout.dense(0, 2, True, False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_one_step_earlier(name):
    layout = LAYOUTS[name]
    rows, boot = torch.randn(layout.rows, 3), torch.randn(layout.sequences, 3, dtype=torch.float64)
    expected = torch.full((layout.rows, 3), torch.nan, dtype=torch.float64)
    for b, (start, length) in enumerate(zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)):
        for t in range(length):
            at = start + t * layout.stride
            expected[at] = rows[at - layout.stride] if t else boot[b]
    assert torch.equal(shift(rows, boot, layout), expected)


@pytest.mark.parametrize("shape", [(11, 2, 3), (13, 1, 3)], ids=["two sequences", "one"])
def test_a_large_result_has_its_earlier_rows_in_memory(monkeypatch, shape):
    monkeypatch.setattr(heap, "LARGE", 1)
    monkeypatch.setattr(new_tables, "LED", 1)
    found, earlier = [], tables.earlier
    monkeypatch.setattr(gradients, "earlier", lambda *of: found.append(earlier(*of)) or found[-1])
    cell = cells.GRU(3, 4, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    h = torch.randn(shape[1], 4, dtype=torch.float64, requires_grad=True)
    leaves = (x, h, *cell.parameters())
    grads = []
    for backend in ("c", "naive"):
        y, final = recurrent(cell, x, h, backend=backend)
        for _ in range(2):  # the earlier rows are read, not used up
            grads.append(torch.autograd.grad([y, final], leaves, [y.sin(), final.cos()], retain_graph=True))
    for got in grads[:3]:
        for a, b in zip(got, grads[3], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert found
    assert all(rows is not None for rows in found)
    assert torch.equal(found[-1][: shape[1]], h)

    y, _ = recurrent(cell, x, h, backend="c")
    expected = torch.autograd.grad((y * 2).sum(), leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.mul_(2).sum(), leaves), expected, rtol=0, atol=1e-12)
