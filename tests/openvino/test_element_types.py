"""Element types that torch has not, or hardly computes with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ir_files import Net, edge, sliced
from stepnet.errors import IRError
from stepnet.openvino import convert, load, save

# What the bytes mean: of i4 and u4 the first number lies in the low bits, of u1 in the high one.
CONSTANTS = {
    "u4": ("U4", [0x21, 0xF3, 0x04], [1, 2, 3, 15, 4]),
    "i4": ("I4", [0x21, 0xF3, 0x08], [1, 2, 3, -1, -8]),
    "u2": ("U2", [0b11100100, 0b01], [0, 1, 2, 3, 1]),
    "u1": ("BIN", [0b10110000], [1, 0, 1, 1, 0]),
    "nf4": ("NF4", [0x70, 0x8F, 0x0F], [-1, 0, 1, np.float32(0.07958029955625534), 1]),
    "f4e2m1": ("F4E2M1", [0x21, 0xF3, 0x08], [0.5, 1, 1.5, -6, 0]),
    "u16": ("U16", [1, 0, 0, 1, 255, 255, 0, 0, 2, 0], [1, 256, 65535, 0, 2]),
    "u32": ("U32", [1, 0, 0, 0, 0, 0, 1, 0] + [0, 0, 0, 128] + [0] * 8, [1, 65536, 2**31, 0, 0]),
    "u64": ("U64", [1, 0, 0, 0, 0, 0, 0, 0] * 5, [1] * 5),
    "f8e8m0": ("F8E8M0", [127, 128, 126, 137, 1], [1, 2, 0.5, 1024, 2.0**-126]),
    "f8e4m3": ("F8E4M3", [0x38, 0xB8, 0x40, 0x00, 0x30], [1, -1, 2, 0, 0.5]),
    "f8e5m2": ("F8E5M2", [0x3C, 0xBC, 0x40, 0x00, 0x38], [1, -1, 2, 0, 0.5]),
}


def constant(net, name, precision, content):
    offset = len(net.weights)
    net.weights += bytes(content)
    return net.add(
        "Const",
        outputs=[precision],
        dims=[(5,)],
        element_type=name,
        shape="5",
        offset=offset,
        size=len(content),
    )


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(tmp_path, name):
    precision, content, numbers = CONSTANTS[name]
    net = Net()
    number = net.add("Convert", [constant(net, name, precision, content)], destination_type="f32")
    net.result(net.add("Add", [net.parameter("x", "5"), number]))
    model, x = load(net.write(tmp_path)), torch.zeros(5)
    assert model(x)[0].tolist() == numbers
    save(model, tmp_path / "again.xml")  # what is narrower than a byte is one there
    assert load(tmp_path / "again.xml")(x)[0].tolist() == numbers


@pytest.mark.parametrize("name", ["u16", "u32", "u64"])
def test_unsigned_numbers_are_computed_with(tmp_path, name):
    kind, precision = getattr(np, f"uint{name[1:]}"), name.upper()
    net = Net()
    x = net.add("Parameter", outputs=[precision], dims=[(3,)], name="x", element_type=name, shape="3")
    axis = net.const(np.array([0]))
    net.result(net.add("Add", [x, x], [precision]))
    net.result(net.add("Greater", [x, x], ["BOOL"]))
    net.result(net.add("ReduceMax", [x, axis], [precision]))
    most = np.iinfo(kind).max if name != "u64" else 2**62
    total, greater, largest = load(net.write(tmp_path))(np.array([1, 2, most], kind))
    assert total.numpy().dtype == largest.numpy().dtype == kind
    assert total.tolist() == np.array([2, 4, (2 * int(most)) % 2 ** int(name[1:])], kind).tolist()
    assert greater.tolist() == [False] * 3
    assert largest.item() == most


def test_refused(tmp_path):
    net = Net()
    net.result(net.add("Parameter", outputs=["U4"], name="x", element_type="u4", shape="3"))
    with pytest.raises(IRError, match=r"Parameter layer 0 'x': only constants are of u4"):
        load(net.write(tmp_path))
    net = Net()
    net.result(constant(net, "u3", "U3", [0, 0]))
    with pytest.raises(IRError, match=r"Const layer 0 .*precision U3 is not supported"):
        load(net.write(tmp_path))
    net = Net()
    net.result(constant(net, "u4", "U4", [0, 0]))
    with pytest.raises(
        IRError, match=r"size 2 does not match element_type x shape\n.*\n.*3 bytes for u4 \[5\]"
    ):
        load(net.write(tmp_path))
    net = Net()
    net.result(net.add("Convert", [net.parameter("x", "3")], ["I4"], destination_type="i4"))
    with pytest.raises(IRError, match=r"Convert layer 1 .*only constants are of i4"):
        load(net.write(tmp_path))


def test_ports_of_no_precision_are_of_what_their_layers_give(tmp_path):
    net = Net()
    net.result(net.add("Abs", [net.parameter("x", "2")]))
    path = net.write(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('precision="FP32"', 'precision="UNSPECIFIED"'))
    assert path.read_text() != text
    assert load(path)(torch.tensor([-1.0, 2.0]))[0].tolist() == [1, 2]


def test_parameters_of_bodies_are_of_the_type_that_they_are_fed(tmp_path):
    """OpenVINO writes so what was made without a type; its CPU plugin does not run it."""
    net = Net()
    x, h = (net.parameter(name, shape, "float64") for name, shape in (("x", "2,5,3"), ("h", "2,1,3")))
    body = net.body()
    fed = [body.parameter(name, "2,1,3") for name in ("xi", "hi")]
    total = body.result(body.add("Add", fed))
    ports = [sliced("input", 0, 0, axis=1), sliced("input", 1, 1), sliced("output", 2, total)]
    net.result(net.loop(body, [x, h], "".join(ports), edge(total, 1)), "y")
    path = net.write(tmp_path)
    text = path.read_text().replace('"f32"', '"dynamic"').replace('"FP32"', '"UNSPECIFIED"')
    path.write_text(text)
    x, h = torch.rand(2, 5, 3, dtype=torch.float64), torch.rand(2, 1, 3, dtype=torch.float64)
    convert(path, tmp_path / "again.xml")
    for name in ("model.xml", "again.xml"):
        torch.testing.assert_close(load(tmp_path / name)(x, h)[0], x.sum(1, keepdim=True) + h)
    assert (tmp_path / "again.xml").read_text().count('element_type="f64"') == 4
    path.write_text(text.replace('"f64"', '"dynamic"').replace('"FP64"', '"UNSPECIFIED"'))
    with pytest.raises(IRError, match=r"Parameter layer 0 'x': element_type dynamic is not supported"):
        load(path)
