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


CELLS = {
    "LSTMCell": ("opset4", 4, 4, {}),
    "GRUCell": ("opset3", 3, 3, {}),
    "GRUCell, reset after": ("opset3", 3, 4, {"linear_before_reset": "true"}),
    "RNNCell": ("opset1", 1, 1, {}),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_without_bias_are_given_one(name, tmp_path):
    openvino = pytest.importorskip("openvino")
    version, gates, biases, attributes = CELLS[name]
    kind, count = name.split(",")[0], 2 if name == "LSTMCell" else 1
    weights = [torch.randn(gates * HIDDEN, size) for size in (WIDTH, HIDDEN)]
    for path, more in (("plain.xml", []), ("biased.xml", [torch.zeros(biases * HIDDEN)])):
        b = NetBuilder("cell")
        ins = [
            b.parameter("x", F32, (-1, WIDTH)),
            *(b.parameter(f"h{k}", F32, (-1, HIDDEN)) for k in range(count)),
        ]
        ins += [b.constant(value) for value in (*weights, *more)]
        outs = b.layer(kind, ins, {"hidden_size": HIDDEN, **attributes}, version=version, outputs=count)
        b.result(outs[0] if count > 1 else outs, ("y",))
        write(b.net(), tmp_path / path)
    values = [torch.randn(2, WIDTH), *(torch.randn(2, HIDDEN) for _ in range(count))]
    wanted = load(tmp_path / "biased.xml")(*values)["y"]
    torch.testing.assert_close(load(tmp_path / "plain.xml")(*values)["y"], wanted)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "plain.xml"), "CPU", options)
    found = torch.from_numpy(compiled([value.numpy() for value in values])[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
