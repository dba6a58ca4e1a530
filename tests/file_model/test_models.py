"""What models read from files share: copies with weights of their own, and plans that are found again."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest
import torch

import stepnet
from saved_modules import plain_loops
from stepnet import cells
from stepnet.compiler.trace import record

pytest.importorskip("onnx_ir")
import stepnet.onnx
import stepnet.openvino

FORMATS = {"onnx": (stepnet.onnx, "m.onnx"), "openvino": (stepnet.openvino, "m.xml")}
each_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture
def written(name, tmp_path):
    """Loads a model anew at each call."""
    form, file = FORMATS[name]
    form.save(stepnet.Recurrent(cells.PeepholeLSTM(3, 4)), tmp_path / file, (torch.randn(4, 2, 3),))
    return lambda: form.load(tmp_path / file)


def compiled(model, *inputs):
    out = model(*inputs)
    assert all(report.compiled for report in model.loops)
    return out


def plainly(model, *inputs):
    with plain_loops():
        return model(*inputs)


@each_format
def test_a_copy_has_weights_of_its_own(written):
    model, x = written(), torch.randn(5, 3, 3)
    before = compiled(model, x)[0]
    twin = copy.deepcopy(model)
    for number in twin.buffers():
        if number.is_floating_point():
            number.mul_(0.5)
    found = compiled(twin, x)[0]
    torch.testing.assert_close(found, plainly(twin, x)[0])
    assert not torch.allclose(found, before)
    torch.testing.assert_close(compiled(model, x)[0], before)
    del model
    gc.collect()
    twin.double()  # which compiles anew
    torch.testing.assert_close(compiled(twin, x.double())[0].float(), found)


@each_format
def test_a_loop_is_known_again(written, monkeypatch):
    """Its body is all in the file: nothing of it is run on sample rows at a call, nor for the same file."""
    x = torch.randn(5, 3, 3)
    first = compiled(written(), x)[0]
    monkeypatch.setattr(record, "record", None)
    monkeypatch.setattr("stepnet.engine.plans.make", None)
    again = written()
    torch.testing.assert_close(compiled(again, x)[0], first)
    torch.testing.assert_close(compiled(again, x[:4])[0], first[:4])


SHAPES = {  # of a state, and of a row that is cut, from a batch
    "all led": (lambda b: (1, b, 2), lambda b: (1, b, 2)),
    "states are not": (lambda b: (b, 2), lambda b: (1, b, 2)),
    "only states are": (lambda b: (1, b, 2), lambda b: (b, 2)),
    "none": (lambda b: (b, 2), lambda b: (b, 2)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_where_the_batch_stands(shapes, batch, tmp_path):
    """An axis of one element may stand before it, in some of what a Scan is fed and gives."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    state, row = shapes
    at = {s: len(s(batch)) for s in (state, row)}
    nodes = [helper.make_node("Mul", ["h", "half"], ["m"])]
    led_row, led_state = at[row] == 3, at[state] == 3
    first = "x" if led_row == led_state else "x_fit"
    if led_row != led_state:
        nodes.append(helper.make_node("Squeeze" if led_row else "Unsqueeze", ["x", "zero"], ["x_fit"]))
    nodes += [helper.make_node("Add", ["m", first], ["h_new"]), helper.make_node("Tanh", ["h_new"], ["y"])]
    numbers = TensorProto.FLOAT

    half = helper.make_tensor("half", numbers, [], [0.5])
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])

    def tell(name, rank):
        return helper.make_tensor_value_info(name, numbers, [None] * rank)

    body = helper.make_graph(
        nodes,
        "body",
        [tell("h", at[state]), tell("x", at[row])],
        [tell("h_new", at[state]), tell("y", at[state])],
    )
    scan = helper.make_node("Scan", ["h0", "xs"], ["last", "ys"], body=body, num_scan_inputs=1)
    graph = helper.make_graph(
        [scan], "g", [tell("h0", at[state]), tell("xs", at[row] + 1)],
        [tell("last", at[state]), tell("ys", at[state] + 1)],
        [half, zero],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9),
        tmp_path / "m.onnx",
    )
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for steps in (4, 1, 4):
        h0, xs = torch.randn(state(batch)), torch.randn(steps, *row(batch))
        h, ys = h0.numpy(), []
        for x in xs.numpy():
            h = h / 2 + (x if led_row == led_state else x[0] if led_row else x[None])
            ys.append(np.tanh(h))
        last, joined = compiled(model, h0, xs)
        np.testing.assert_allclose(last, h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(joined, np.stack(ys), rtol=1e-5, atol=1e-6)
