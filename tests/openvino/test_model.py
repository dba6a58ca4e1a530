"""A read model as a torch module: inputs, outputs, weights, training, spellings of both versions."""

from __future__ import annotations

import builtins
import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from ir_files import Net
from stepnet.errors import IRError, MissingExtraError
from stepnet.openvino import load

CASES = Path(__file__).parent / "cases" / "corpus"


def affine(folder, dtype="float32", **how):
    """y = x W + b, W shared by two layers."""
    net = Net()
    x = net.parameter("x", "?,3", dtype)
    w = np.arange(9, dtype=dtype).reshape(3, 3) / 10
    first, b = net.const(w), net.const(np.ones(3, dtype))
    net.layers.append(net.layers[first[0]].replace('id="1"', 'id="3"').replace("Const_1", "again"))
    y = net.add("MatMul", [net.add("MatMul", [x, first]), (3, 0)])
    net.result(net.add("Add", [y, b]), name="y")
    return load(net.write(folder), **how)


def test_inputs_and_outputs():
    model = load(CASES / "dynamic_batch_time" / "model.xml")
    assert [(s.name, s.shape, s.dtype) for s in model.inputs] == [
        ("X", (-1, -1, 2), torch.float32),
        ("a0", (-1, 1, 2), torch.float32),
    ]
    assert [s.shape for s in model.outputs] == [(-1, -1, 2), (-1, 1, 2)]
    x, a = torch.randn(2, 3, 2), torch.randn(2, 1, 2)
    by_name, by_position = model(a0=a, X=x), model(x, a)
    whole, last = by_position
    assert torch.equal(by_name[0], whole)
    assert list(by_name.keys()) == [s.name for s in model.outputs]
    assert torch.equal(by_name[model.outputs[1].name], last)
    assert by_name.tuple()[1] is by_name[1]
    assert dict(by_name.items()).keys() == by_name.keys()


WRONG = [
    (lambda m: m(torch.zeros(2, 3)[0]), r"input 'x' does not fit\n.*float32\[3\]\n.*x: float32\[\?, 3\]"),
    (lambda m: m(torch.zeros(2, 4)), r"input 'x' does not fit"),
    (lambda m: m(torch.zeros(2, 3).double()), r"float64\[2, 3\]"),
    (lambda m: m(), "is not given input 'x'"),
    (lambda m: m(z=torch.zeros(2, 3)), "has no input 'z'"),
    (lambda m: m(torch.zeros(2, 3), x=torch.zeros(2, 3)), "given input 'x' twice"),
    (lambda m: m(1, 2), "has 1 inputs"),
    (lambda m: m("x"), "must be a tensor or an array"),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says[:30] for _, says in WRONG])
def test_wrong_calls(tmp_path, call, says):
    with pytest.raises(IRError, match=says):
        call(affine(tmp_path))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_unaligned_constants(tmp_path, dtype):
    x = np.random.default_rng(0).random((4, 3)).astype(dtype)
    w = np.arange(9, dtype=dtype).reshape(3, 3) / 10
    (found,) = affine(tmp_path, dtype)(x)
    np.testing.assert_allclose(found.numpy(), x @ w @ w + 1, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_aligned_constants_are_not_copied(tmp_path):
    net = Net(bytearray())
    x = net.parameter("x", "1024")
    net.result(net.add("Add", [x, net.const(np.arange(1024, dtype=np.float32))]))
    net.result(net.add("Add", [x, net.const(np.arange(1024, dtype=np.float32))]))
    model = load(net.write(tmp_path))
    one, two = model.buffers()
    assert two.data_ptr() - one.data_ptr() == 4096
    assert one.data_ptr() % 4096 == 0


def test_shared_constants_are_one_parameter(tmp_path):
    assert len(list(affine(tmp_path).parameters())) == 0
    model = affine(tmp_path, trainable=True)
    assert sorted(tuple(p.shape) for p in model.parameters()) == [(3,), (3, 3)]


def test_training_changes_the_model_and_not_the_file(tmp_path):
    folder = CASES / "lstmcell_v4"
    before = (folder / "model.bin").read_bytes()
    model = load(folder / "model.xml", trainable=True)
    with np.load(folder / "inputs.npz") as inputs:
        given = [torch.from_numpy(inputs[s.name]) for s in model.inputs]
    target = torch.full((2, 5, 4), 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(*given)[0] - target).square().mean()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 20
    assert len(list(model.parameters())) == 3
    assert (folder / "model.bin").read_bytes() == before
    again = load(folder / "model.xml", trainable=True)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(*given).tuple(), model(*given).tuple())


def test_half_precision_weights(tmp_path):
    net = Net()
    x = net.parameter("x", "2,3")
    half = net.const(np.array([0.5, 1 / 3, 2], np.float16))
    wide = net.add(
        "Convert",
        [half],
        destination_type="f32",
        inner='<rt_info><attribute name="decompression"/></rt_info>',
    )
    net.result(net.add("Multiply", [x, wide]))
    path = net.write(tmp_path)
    given = torch.ones(2, 3)
    expected = torch.tensor([0.5, 1 / 3, 2]).half().float().expand(2, 3)
    torch.testing.assert_close(load(path)(given)[0], expected)
    (weight,) = load(path, trainable=True).parameters()
    assert weight.dtype == torch.float32


def test_a_model_moves_to_another_type_and_is_copied(tmp_path):
    model = affine(tmp_path)
    x = torch.rand(2, 3)
    expected = model(x)[0].double()
    wide = copy.deepcopy(model).double()
    torch.testing.assert_close(wide(x.double())[0], expected, rtol=1e-5, atol=1e-6)
    assert model(x)[0].dtype == torch.float32


def test_layers_in_any_order(tmp_path):
    net = Net()
    x = net.parameter("x", "2")
    net.result(net.add("Exp", [net.add("Negative", [x])]), name="y")
    net.layers.reverse()
    net.edges.reverse()
    given = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(load(net.write(tmp_path, version=10))(given)[0], torch.exp(-given))


def test_a_model_without_constants_needs_no_bin(tmp_path):
    net = Net()
    net.result(net.add("Exp", [net.parameter("x", "2")]))
    path = net.write(tmp_path)
    path.with_suffix(".bin").unlink()
    assert load(path)(torch.zeros(2))[0].tolist() == [1, 1]
    net.result(net.const(np.ones(2, np.float32)))
    path = net.write(tmp_path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(IRError, match=r"model.bin: cannot be read: No such file"):
        load(path)
    with pytest.raises(IRError, match=r"none.xml: cannot be read: No such file"):
        load(tmp_path / "none.xml")


def test_names_of_outputs_and_inputs_are_unique(tmp_path):
    net = Net()
    x = net.parameter("x", "2")
    net.result(x, name="y")
    net.result(net.add("Exp", [x]), name="y")
    model = load(net.write(tmp_path))
    assert [o.name for o in model.outputs] == ["y", "y#3"]
    assert torch.equal(model(torch.zeros(2))["y#3"], torch.ones(2))
    net.result(net.parameter("x", "2"))
    with pytest.raises(IRError, match="two inputs have the name 'x'"):
        load(net.write(tmp_path))


REFUSED = [
    ('version="11"', 'version="7"', "IR version 7 is not read"),
    ('version="11"', 'version="9999999999999999999999"', "version is no whole number"),
    ('type="Exp"', "", "has no type"),
    ('version="opset1"', 'version="opsetx"', "version is not known"),
    ('name="Exp_1"', "", "layer 1: has no name"),
    ('precision="FP32"', "", "output port 0: has no precision"),
    ('precision="FP32"', 'precision="BOOLEAN"', "precision BOOLEAN is unknown"),
    ('shape="2"', 'shape="-3"', "dim -3 is not allowed"),
    ('shape="2"', 'shape="1_0"', "dim 1_0 is not allowed"),
    ('shape="2"', f'shape="{"1," * 70}1"', "has 71 dimensions"),
    ('to-layer="1"', "", "<edge>: has no to-layer"),
    ("<net", "<nett", "not XML|not an OpenVINO IR"),
    ("<?xml", '<!DOCTYPE n SYSTEM "other.dtd"><?xml', "not XML|DTD"),
]


@pytest.mark.parametrize(("old", "new", "says"), REFUSED, ids=[says[:30] for *_, says in REFUSED])
def test_broken_files(tmp_path, old, new, says):
    net = Net()
    net.result(net.add("Exp", [net.parameter("x", "2")]))
    path = net.write(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1) if old != "<?xml" else new + text.removeprefix("<?xml"))
    with pytest.raises(IRError, match=says):
        load(path)


SPELLED = [
    ('<?xml version="1.0"', ' \n<?xml version="1.0"'),
    ("<net", '<net xmlns="http://ir"'),
    ('precision="FP32"', 'precision="f32"'),
    ('shape="2"', 'shape="[ 1..9 ]"'),
    ("<layers>", "<layers><!-- Exp --><?by hand?>"),
]


def test_other_spellings(tmp_path):
    net = Net()
    net.result(net.add("Exp", [net.parameter("x", "2")]))
    path = net.write(tmp_path)
    text = path.read_text()
    for old, new in SPELLED:
        assert old in text
        path.write_text(text.replace(old, new, 1))
        assert torch.equal(load(path)(torch.zeros(2))[0], torch.ones(2))


def test_without_defusedxml(tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    path.write_text("<net/>")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "defusedxml":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"stepnet\[openvino\]"):
        load(path)
