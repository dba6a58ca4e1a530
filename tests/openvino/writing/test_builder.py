"""Nets built layer by layer: what they compute, what is inferred, what is refused."""

from __future__ import annotations

import pytest
import torch

from stepnet.errors import IRError
from stepnet.openvino import load
from stepnet.openvino.records import Port, PortMap, PortRow
from stepnet.openvino.writing.builder import In, NetBuilder, Out, To
from stepnet.openvino.writing.xml_writer import write

F32 = torch.float32
PRODUCT = {"transpose_a": False, "transpose_b": True}


def saved(b, path):
    write(b.net(), path)
    return load(path)


def test_a_tensor_iterator(tmp_path):
    weight = torch.randn(4, 4)
    b = NetBuilder("rnn")
    x, h = b.parameter("x", F32, (-1, -1, 4)), b.parameter("h", F32, (-1, 4))
    body = b.body()
    x_t, state = body.parameter("x_t", F32, (-1, 2, 4)), body.parameter("h", F32, (-1, 4))
    axis = body.constant(torch.tensor([1]))
    both = body.layer("ReduceSum", [x_t, axis], {"keep_dims": False})
    total = body.layer("Add", [body.layer("MatMul", [state, body.constant(weight)], PRODUCT), both])
    new = body.layer("Tanh", [total])
    y = body.result(body.layer("Unsqueeze", [new, axis]))
    last = body.result(new)
    outs = b.tensor_iterator(
        body, [In(x, x_t, 1, start=-1, end=0, stride=-2), In(h, state)],
        [To(y, 1, start=-1, end=0, stride=-1), To(last)], [(last, state)],
    )  # fmt: skip
    for out, name in zip(outs, ("y", "last"), strict=True):
        b.result(out, (name,))
    model = saved(b, tmp_path / "m.xml")
    assert [str(o) for o in model.outputs] == ["y: float32[?, ?, 4]", "last: float32[?, 4]"]
    x_value, h_value = torch.randn(3, 6, 4), torch.randn(3, 4)
    found = model(x_value, h_value)
    for t in (2, 1, 0):
        h_value = torch.tanh(h_value @ weight.t() + x_value[:, 2 * t : 2 * t + 2].sum(1))
        torch.testing.assert_close(found["y"][:, t], h_value)
    torch.testing.assert_close(found["last"], h_value)


def test_a_loop(tmp_path):
    b = NetBuilder("powers")
    x = b.parameter("x", F32, (1,))
    trips, go = b.parameter("trips", torch.int64, ()), b.constant(torch.tensor(True))
    body = b.body()
    value, step = body.parameter("value", F32, (1,)), body.parameter("step", torch.int64, ())
    counted = body.layer("Convert", [step], {"destination_type": F32})
    new = body.result(body.layer("Add", [body.layer("Add", [value, value]), counted]))
    small = body.layer("Less", [value, body.constant(torch.tensor([10.0]))], {"auto_broadcast": "numpy"})
    goes_on = body.result(small)
    outs = b.loop(
        body, trips, go, [In(x, value)], [To(new), To(new, 0)], [(new, value)],
        current_iteration=step, execution_condition=goes_on,
    )  # fmt: skip
    for out, name in zip(outs, ("last", "all"), strict=True):
        b.result(out, (name,))
    model = saved(b, tmp_path / "m.xml")
    found = model(torch.ones(1), torch.tensor(10))
    assert found["all"].tolist() == [2.0, 5.0, 12.0, 27.0]
    assert model(torch.ones(1), torch.tensor(2))["last"].tolist() == [5.0]


def choice(b, condition, x, then, otherwise):
    """An If-8 over one value, with (body, its Parameter or None, its Result) for either case."""
    layer = b._add("If_1", "If", "opset8", {}, [condition, x], [Port(2, None, None)])
    for prefix, (body, parameter, result) in (("then_", then), ("else_", otherwise)):
        rows = [] if parameter is None else [PortRow(1, parameter.layer, None, 0, -1, 1, 1, None)]
        layer.bodies[prefix] = body.records()
        layer.maps[prefix] = PortMap(tuple(rows), (PortRow(2, result, None, 0, -1, 1, 1, None),))
    return Out(b, layer.id, 0)


def test_a_choice(tmp_path):
    b = NetBuilder("choice")
    x, flag = b.parameter("x", F32, (-1,)), b.parameter("flag", torch.bool, ())
    then, otherwise = b.body("then"), b.body("otherwise")
    inner = then.parameter("x", F32, (-1,))
    yes = then.result(then.layer("Negative", [inner]))
    no = otherwise.result(otherwise.constant(torch.zeros(2)))
    out = choice(b, flag, x, (then, inner, yes), (otherwise, None, no))
    b.result(out, ("y",))
    model = saved(b, tmp_path / "m.xml")
    assert model(torch.ones(3), torch.tensor(True))["y"].tolist() == [-1.0] * 3
    assert model(torch.ones(3), torch.tensor(False))["y"].tolist() == [0.0] * 2


def test_names_that_are_taken_get_a_number():
    b = NetBuilder("net")
    x = b.parameter("x", F32, (2,))
    for _ in range(3):
        x = b.layer("ReLU", [x], name="x")
    b.result(x)
    assert [layer.name for layer in b.net().layers.values()] == ["x", "x_1", "x_2", "x_3", "Result_4"]


def test_two_results_of_one_tensor_keep_their_names(tmp_path):
    b = NetBuilder("net")
    y = b.layer("ReLU", [b.parameter("x", F32, (2,))])
    b.result(y, ("one",))
    b.result(y, ("two",))
    model = saved(b, tmp_path / "m.xml")
    assert [o.name for o in model.outputs] == ["one", "two"]
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(str(tmp_path / "m.xml"), "CPU")
    found = compiled([torch.tensor([-1.0, 2.0]).numpy()])
    assert found["one"].tolist() == found["two"].tolist() == [0.0, 2.0]


def test_what_does_not_fit_is_refused():
    b, other = NetBuilder("net"), NetBuilder("other")
    x = b.parameter("x", F32, (2, 3))
    with pytest.raises(IRError, match=r"net: Parameter 'x': the name is taken"):
        b.parameter("x", F32, (2,))
    with pytest.raises(IRError, match=r"net: 'c': IR has no element type for torch\.complex64"):
        b.constant(torch.ones(2, dtype=torch.complex64), name="c")
    with pytest.raises(IRError, match=r"input 1 is of another net"):
        b.layer("Add", [x, other.parameter("y", F32, (2,))])
    with pytest.raises(IRError, match=r"the Parameter of input 0 is of another net"):
        b.tensor_iterator(other, [In(x, x)], [], [])
    with pytest.raises(IRError, match=r"axis: cannot be written as an attribute"):
        b.layer("Concat", [x, x], {"axis": None})


def test_layers_that_do_not_fit_are_named_when_the_net_is_done():
    b = NetBuilder("net")
    x = b.parameter("x", F32, (2, 3))
    b.result(b.layer("MatMul", [x, x], {"transpose_a": False, "transpose_b": False}, name="product"))
    with pytest.raises(IRError, match=r"net: MatMul layer 1 'product'"):
        b.net()
    b = NetBuilder("net")
    b.result(b.layer("Sorcery", [b.parameter("x", F32, (2,))]))
    with pytest.raises(IRError, match=r"1 unsupported layer\(s\), of type Sorcery@opset1"):
        b.net()


def test_a_body_is_known_where_the_number_of_steps_is_not(tmp_path):
    b = NetBuilder("blocks")
    x, h = b.parameter("x", F32, (-1, 2)), b.parameter("h", F32, (2,))
    body = b.body()
    block, state = body.parameter("block", F32, (5, 2)), body.parameter("h", F32, (2,))
    total = body.layer("ReduceSum", [block, body.constant(torch.tensor([0]))], {"keep_dims": False})
    new = body.result(body.layer("Add", [state, total]))
    (out,) = b.tensor_iterator(body, [In(x, block, 0, stride=5), In(h, state)], [To(new)], [(new, state)])
    b.result(out, ("y",))
    model = saved(b, tmp_path / "m.xml")
    assert model.outputs[0].dtype is F32
    torch.testing.assert_close(model(torch.ones(15, 2), torch.zeros(2))["y"], torch.full((2,), 15.0))
