"""LSTMCells of old files are written in today's form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepnet.openvino import load
from stepnet.openvino.writing.builder import NetBuilder
from stepnet.openvino.writing.xml_writer import write

F32 = torch.float32
HIDDEN, WIDTH = 4, 3
ORDERS = ["fico", "icof", "ofci"]


def written(path, order, *, joined, constant):
    b = NetBuilder("cell")
    ins = [b.parameter("x", F32, (-1, WIDTH)), *(b.parameter(n, F32, (-1, HIDDEN)) for n in "hc")]
    w, r, bias = weights()
    given = {"W": w, "R": r, "B": bias} if not joined else {"W": torch.cat([w, r], 1), "B": bias}
    for name, value in given.items():
        ins.append(b.constant(value) if constant else b.parameter(name, F32, value.shape))
    attributes = {"hidden_size": HIDDEN, "weights_format": order}
    for k, out in enumerate(b.layer("LSTMCell", ins, attributes, outputs=2)):
        b.result(out, (f"y{k}",))
    write(b.net(), path)
    return [] if constant else list(given.values())


def weights():
    generator = torch.Generator().manual_seed(0)
    shapes = ((4 * HIDDEN, WIDTH), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def right(order, x, h, c):
    w, r, bias = weights()
    gates: dict[str, Tensor] = dict(zip(order, (x @ w.t() + h @ r.t() + bias).chunk(4, 1), strict=True))
    new = torch.sigmoid(gates["f"]) * c + torch.sigmoid(gates["i"]) * torch.tanh(gates["c"])
    return torch.sigmoid(gates["o"]) * torch.tanh(new), new


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_old_cells(order, joined, constant, tmp_path):
    more = written(tmp_path / "m.xml", order, joined=joined, constant=constant)
    (cell,) = (v for v in load(tmp_path / "m.xml").graph.net.layers.values() if v.type == "LSTMCell")
    assert cell.attributes["weights_format"] == "fico"
    assert len(cell.inputs) == 6
    values = [torch.randn(2, WIDTH), torch.randn(2, HIDDEN), torch.randn(2, HIDDEN)]
    for found, expected in zip(load(tmp_path / "m.xml")(*values, *more), right(order, *values), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("constant", [True, False])
def test_openvino_runs_old_cells_right(constant, tmp_path):
    openvino = pytest.importorskip("openvino")
    more = written(tmp_path / "m.xml", "ofci", joined=True, constant=constant)
    values = [torch.randn(2, WIDTH), torch.randn(2, HIDDEN), torch.randn(2, HIDDEN)]
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU", options)
    found = compiled([v.numpy() for v in (*values, *more)])
    for k, expected in enumerate(right("ofci", *values)):
        torch.testing.assert_close(torch.from_numpy(found[k]), expected, rtol=1e-4, atol=1e-5)
