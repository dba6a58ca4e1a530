"""Variables, which a model keeps from one inference to the next, as inputs and outputs."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

from ir_files import Net, sliced
from stepnet.errors import IRError
from stepnet.openvino import convert, load, save


def variable(net, start, value=None, *, name="h", dtype="f32", shape="?,2", version="opset6"):
    """A ReadValue; an Assign of `value(state)`, if there is one."""
    how = {"variable_id": name}
    if version == "opset6":
        how |= {"variable_type": dtype, "variable_shape": shape}
    read = net.add("ReadValue", [] if start is None else [start], version=version, dims=[(-1, 2)], **how)
    if value is not None:
        net.add("Assign", [value(read)], version=version, dims=[(-1, 2)], **how)
    return read


def summing(version="opset6", started=True):
    """y = x + h, which is the next h; it begins as `ones + ones`, of the size of x."""
    net = Net()
    x = net.parameter("x", "?,2")
    one = net.const(np.ones((1, 2), np.float32))
    begin = net.add("Add", [one, one]) if started else None
    new = []

    def value(read):
        new.append(net.add("Add", [x, read], dims=[(-1, 2)]))
        return new[0]

    variable(net, begin, value, version=version, shape="?,2" if started else "1,2")
    net.result(new[0], "y")
    return net


@pytest.mark.parametrize("version", ["opset3", "opset6"])
def test_state_by_state(tmp_path, version):
    model = load(summing(version).write(tmp_path))
    assert model.states == {"h": "h_out"}
    assert [s.name for s in model.inputs] == ["x", "h"]
    assert [s.name for s in model.outputs][1:] == ["h_out"]
    x, state, total = torch.tensor([[1.0, 2.0]]), {}, torch.full((1, 2), 2.0)
    for _ in range(4):
        y, after = model(x=x, **state)
        total = total + x
        assert torch.equal(y, total)
        assert torch.equal(after, total)
        state = {"h": after}
    assert torch.equal(model(x)[0], x + 2)  # nothing was kept
    assert torch.equal(pickle.loads(pickle.dumps(model))(x, state["h"])[0], total + x)
    given = state["h"].clone().requires_grad_()
    model(x, given)[0].sum().backward()
    assert torch.equal(given.grad, torch.ones(1, 2))


def test_what_a_file_does_not_begin_is_zero(tmp_path):
    model = load(summing(started=False).write(tmp_path))
    x = torch.ones(1, 2)
    assert torch.equal(model(x)[0], x)
    assert torch.equal(model(x, x)[0], x + 1)


def test_of_open_size_with_no_beginning_is_an_input(tmp_path):
    net = Net()
    x = net.parameter("x", "?,2")
    net.result(net.add("Add", [x, variable(net, None)]), "y")
    model = load(net.write(tmp_path))
    with pytest.raises(IRError, match=r"ReadValue layer 1 .*says nothing of what it begins with"):
        model(torch.ones(1, 2))
    y, after = model(torch.ones(1, 2), torch.ones(1, 2))  # nothing writes it: it stays
    assert y.tolist() == [[2, 2]]
    assert after.tolist() == [[1, 1]]


OTHERS = {  # what a file says elsewhere, and what is told of it
    'variable_id="h"': ('variable_id=""', "its variable_id is empty"),
    'Assign" version="opset6"><data variable_id="h" variable_type="f32"': (
        'Assign" version="opset6"><data variable_id="h" variable_type="f16"',
        r"Assign layer \d+ .*says another variable_type of the .*\n.*f16\n.*f32, as layer 3 says",
    ),
    'variable_shape="?,2"': (
        'variable_shape="?,3"',
        r"Assign layer \d+ .*says another variable_shape of the variable 'h' .*\n.*\?,2\n.*\?,3, as layer 3",
    ),
    'variable_id="h" variable_type="f32" variable_shape="?,2"': (
        'variable_id="h" variable_type="f32" variable_shape="?,2,1"', "as layer 3 says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("old", OTHERS)
def test_variables_that_two_layers_see_differently(old, tmp_path):
    path = summing().write(tmp_path)
    text, (new, says) = path.read_text(), OTHERS[old]
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(IRError, match=says):
        load(path)


@pytest.mark.parametrize(("begin", "says"), [
    (np.ones((1, 3), np.float32), r"float32\[1, 3\]\n.*float32\[\?,2\]"),
    (np.ones((1, 2), np.int64), r"int64\[1, 2\]\n.*float32\[\?,2\]"),
])  # fmt: skip
def test_what_a_variable_cannot_begin_with(begin, says, tmp_path):
    net = Net()
    net.result(net.add("Add", [net.parameter("x", "?,2"), variable(net, net.const(begin))]), "y")
    with pytest.raises(IRError, match=r"ReadValue layer 2 .*begins with does not fit it\n.*" + says):
        load(net.write(tmp_path))


def test_saved_as_it_was(tmp_path):
    model = load(summing().write(tmp_path))
    save(model, tmp_path / "again.xml")
    convert(model, tmp_path / "small.xml", f16=True)
    for name in ("again.xml", "small.xml"):
        text = (tmp_path / name).read_text()
        assert [text.count(f'type="{kind}"') for kind in ("Parameter", "ReadValue", "Assign", "Result")] == [
            1, 1, 1, 1,
        ]  # fmt: skip
        again = load(tmp_path / name)
        assert again.states == {"h": "h_out"}
        assert again(torch.ones(1, 2))[0].tolist() == [[3, 3]]


def test_what_openvino_keeps(tmp_path):
    runtime = pytest.importorskip("openvino")
    save(load(summing().write(tmp_path)), tmp_path / "m.xml")
    model = load(tmp_path / "m.xml")
    core = runtime.Core()
    request = core.compile_model(core.read_model(tmp_path / "m.xml"), "CPU").create_infer_request()
    state = {}
    for k in range(3):
        x = torch.full((1, 2), float(k))
        y, after = model(x=x, **state)
        np.testing.assert_array_equal(request.infer([x.numpy()])[0], y)
        np.testing.assert_array_equal(request.query_state()[0].state.data, after)
        state = {"h": after}


def test_written_as_onnx(tmp_path):
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    model = load(summing().write(tmp_path)).eval()
    x, h = torch.ones(3, 2), torch.ones(3, 2)
    stepnet.onnx.save(model, tmp_path / "m.onnx", (x, h))
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    assert read.states == {"h": "h_out"}
    assert json.loads(read.metadata["stepnet.states"]) == read.states
    torch.testing.assert_close(read(x, h)["h_out"], x + 1)


def in_a_body():
    net = Net()
    x = net.parameter("x", "2,2")
    body = net.body()
    part = body.parameter("part", "1,2")
    result = body.result(body.add("Add", [part, variable(body, None, shape="1,2")]))
    rows = sliced("input", 0, 0, axis=0) + sliced("output", 1, result, axis=0)
    net.result(net.loop(body, [x], rows))
    return net


def twice():
    net = summing()
    variable(net, None)
    return net


def unread():
    net = Net()
    net.add("Assign", [net.parameter("x", "2")], version="opset6", variable_id="other")
    return net


def unnamed():
    net = Net()
    net.result(net.add("ReadValue", [net.parameter("x", "2")], version="opset6"))
    return net


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            in_a_body,
            r"(?s)body of TensorIterator .*ReadValue layer 1 .*a variable in a body is not read.*a back edge",
        ),
        (twice, r"ReadValue layer \d .*the variable 'h' has two layers of this type"),
        (unread, r"Assign layer 1 .*nothing reads the variable 'other'"),
        (unnamed, r"ReadValue layer 1 .*has no variable_id"),
    ],
)
def test_refused(tmp_path, make, says):
    with pytest.raises(IRError, match=says):
        load(make().write(tmp_path))
