"""Branches, loops and operators of files as exporters of many kinds write them: read, run and written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import openvino_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
import stepnet.onnx  # noqa: E402
import stepnet.openvino  # noqa: E402

STEP = """Scan<num_scan_inputs=1, body=b(float[B,4] h, float[B,4] t) => (float[B,4] n, float[B,4] o) {
    n = Add(h, t)
    o = Tanh(n) }>"""
BRANCH = f"""<ir_version: 8, opset_import: ["": 17]> g (float[T,B,4] x, float[B,4] h0) => (float[B,4] y) {{
    s = ReduceSum<keepdims=0>(x)
    z = Constant<value_float=0.0>()
    k = Greater(s, z)
    y = If<then_branch=a() => (float[B,4] q) {{ q, u = {STEP}(h0, x) }},
           else_branch=e() => (float[B,4] p) {{ w = Tanh(x)
    p, v = {STEP}(h0, w) }}>(k)
}}"""
NESTED = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,S,B,4] x, float[B,4] h0) => (float[B,4] y, float[T,S,B,4] z) {
    y, z = Scan<num_scan_inputs=1, body=a(float[B,4] h, float[S,B,4] t) => (float[B,4] n, float[S,B,4] o) {
        n, o = STEP(h, t) }>(h0, x)
}""".replace("STEP", STEP)
# What older and other exporters write, and what it computes.
FORMS = {
    "whole numbers of old sets": (7, "s = Constant<value=int64[2] {0,-1}>()\ny = Reshape(x, s)", "reshape"),
    "a number as a list": (
        13,
        "p = Constant<value=int64[4] {0,1,0,0}>()\nc = Constant<value=float[1] {2.0}>()\ny = Pad(x, p, c)",
        "pad",
    ),
    "over no axis": (18, "y = ReduceSumSquare<noop_with_empty_axes=1>(x)", "square"),
    "a mask of numbers": (7, "z, y = Dropout(x)", "ones"),
}
MEANT = {
    "reshape": lambda x: x,
    "pad": lambda x: nn.functional.pad(x, [1, 0], value=2.0),
    "square": lambda x: x * x,
    "ones": torch.ones_like,
}


def read(text, tmp_path):
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    return stepnet.onnx.load(tmp_path / "m.onnx")


def test_branches_with_loops_are_written(tmp_path):
    model = read(BRANCH, tmp_path)
    x, h = torch.randn(3, 2, 4).abs(), torch.randn(2, 4)
    stepnet.onnx.save(model, tmp_path / "again.onnx", (x, h))
    session = onnxruntime.InferenceSession(tmp_path / "again.onnx")
    names = [i.name for i in session.get_inputs()]
    for given in (x, -x, torch.randn(7, 2, 4)):
        found = session.run(None, dict(zip(names, (given.numpy(), h.numpy()), strict=True)))
        np.testing.assert_allclose(found[0], model(given, h)[0].numpy(), atol=1e-5)


HEAD = """<ir_version: 8, opset_import: ["": 17]> g (float[T,B,1] x, float[1,B,1] h, int32[B] lengths)
=> (float[N,B,1] y) <float[1,1,1] w = {0.5}, float[1,1,1] r = {-0.7}, int64[1] b = {1}, int64[1] c = {2}> {
    s = Shape(x)  n = Slice(s, b, c)  m = Concat<axis=0>(b, n, b)"""
OF_T = """s2 = ReduceSum<keepdims=0>(t)  zero = Constant<value_float=0.0>()  k = Greater(s2, zero)"""
IN_LOOPS = {
    "lengths in a branch of a Scan": f"""f = Squeeze(h, z)
    l, y = Scan<num_scan_inputs=1, body=a(float[B,1] i, float[B,1] t) => (float[B,1] j, float[B,1] o) {{
        {OF_T}
        o = If<then_branch=i() => (float[B,1] q) {{
            all, last = RNN<hidden_size=1>(x, w, r, , lengths)
            q = Squeeze(last, z) }}, else_branch=e() => (float[B,1] p) {{ p = Neg(t) }}>(k)
        j = Add(i, o) }}>(f, x)""",
    "zeros of the batch in a branch": f"""t = Identity(x)  {OF_T}
    v = If<then_branch=i() => (float[1,B,1] q) {{ q = ConstantOfShape(m) }},
           else_branch=e() => (float[1,B,1] p) {{ p = Expand(h, m) }}>(k)
    a, y = RNN<hidden_size=1>(x, w, r, , , v)""",
    "zeros of the batch in a branch of two sizes": f"""t = Identity(x)  {OF_T}
    y = If<then_branch=i() => (float[1,B,1] q) {{ q = ConstantOfShape(m) }},
           else_branch=e() => (float[2,B,1] p) {{ p = Concat<axis=0>(h, h) }}>(k)""",
    "zeros like the state of a Scan": """f = Squeeze(h, z)
    l, y = Scan<num_scan_inputs=1, body=a(float[B,1] i, float[B,1] t) => (float[B,1] j, float[B,1] o) {
        u = Shape(i)  v = ConstantOfShape<value=float[1] {0.5}>(u)  o = Sum(i, v, t)
        j = Tanh(o) }>(f, x)""",
}


@pytest.mark.parametrize(
    "name", few(IN_LOOPS, ["lengths in a branch of a Scan", "zeros of the batch in a branch"])
)
def test_what_branches_and_loops_refer_to_is_found_again(name, tmp_path):
    """The example takes one branch, what follows takes both."""
    text = f"{HEAD}  z = Constant<value=int64[1] {{0}}>() {IN_LOOPS[name]} }}"
    model = read(text, tmp_path)
    lengths = torch.tensor([3, 1], dtype=torch.int32)
    stepnet.onnx.save(model, tmp_path / "again.onnx", (torch.rand(3, 2, 1), torch.rand(1, 2, 1), lengths))
    first, again = (onnxruntime.InferenceSession(tmp_path / f"{of}.onnx") for of in ("m", "again"))
    lengths = torch.tensor([2, 5, 1], dtype=torch.int32)
    for x in (torch.rand(5, 3, 1), -torch.rand(5, 3, 1)):
        given = {"x": x.numpy(), "h": torch.randn(1, 3, 1).numpy(), "lengths": lengths.numpy()}
        (wanted,) = first.run(None, given)
        (found,) = again.run(None, {i.name: given[i.name] for i in again.get_inputs()})
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        own = model(*map(torch.from_numpy, given.values()))[0]
        np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-5, atol=1e-6)


OF_TWO_SHAPES = {
    "by what is computed": ("float[B,4] h0", "c = Concat<axis=0>(x, x)\np = Neg(c)", "q = Tanh(x)"),
    "as it came": ("float[B,4] h0", "n, o = STEP(h0, x)\np = Concat<axis=0>(o, o)", "q = Identity(x)"),
    "by a weight": ("float[4,4] w", "m = MatMul(x, w)\np = Concat<axis=0>(m, x)", "q = MatMul(x, w)"),
}


def of_two_shapes(name, tmp_path):
    given, more, less = OF_TWO_SHAPES[name]
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[T,B,4] x, {given}) => (float[U,B,4] y) {{
        s = ReduceSum<keepdims=0>(x)
        z = Constant<value_float=0.0>()
        k = Greater(s, z)
        v = If<then_branch=a() => (p) {{ {more} }}, else_branch=e() => (q) {{ {less} }}>(k)
        y = Mul(v, v)
    }}"""
    model = read(text.replace("STEP", STEP), tmp_path)
    return model, torch.randn(4, 4) if "w" in given else torch.randn(2, 4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sign", few([1, -1], [1]))
@pytest.mark.parametrize("name", few(OF_TWO_SHAPES, ["by what is computed"]))
def test_branches_of_two_shapes_are_written(name, sign, tmp_path):
    """Each example takes one of them; what is written takes either, at other sizes."""
    model, h = of_two_shapes(name, tmp_path)
    stepnet.onnx.save(model, tmp_path / "again.onnx", (sign * torch.rand(3, 2, 4), h))
    session, again = (
        kind(tmp_path / "again.onnx") for kind in (onnxruntime.InferenceSession, stepnet.onnx.load)
    )
    names = [i.name for i in session.get_inputs()]
    for x in (torch.rand(3, 2, 4), -torch.rand(2, 2, 4), torch.rand(7, 2, 4), -torch.rand(1, 2, 4)):
        expected = model(x, h)[0]
        (found,) = session.run(None, dict(zip(names, (x.numpy(), h.numpy()), strict=True)))
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(again(x, h)[0], expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sign", few([1, -1], [-1]))
@pytest.mark.parametrize("name", few(OF_TWO_SHAPES, ["by what is computed"]))
def test_branches_of_two_shapes_are_an_if_of_openvino(name, sign, tmp_path):
    model, h = of_two_shapes(name, tmp_path)
    stepnet.openvino.save(model, tmp_path / "m.xml", (sign * torch.rand(3, 2, 4), h))
    again, run = stepnet.openvino.load(tmp_path / "m.xml"), openvino_model(tmp_path / "m.xml")
    assert run is not None
    for x in (torch.rand(3, 2, 4), -torch.rand(2, 2, 4), torch.rand(7, 2, 4), -torch.rand(1, 2, 4)):
        expected = model(x, h)[0]
        for found in (run([x, h][: len(again.inputs)])[0], again(*[x, h][: len(again.inputs)])[0]):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_loop_in_a_loop_is_written_for_openvino(tmp_path):
    model = read(NESTED, tmp_path)
    stepnet.openvino.save(model, tmp_path / "m.xml", (torch.randn(3, 2, 2, 4), torch.randn(2, 4)))
    x, h = torch.randn(3, 2, 2, 4), torch.randn(2, 4)
    again = stepnet.openvino.load(tmp_path / "m.xml")(x, h)
    for a, b in zip(again, model(x, h), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, tmp_path):
    opset, body, meant = FORMS[name]
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[A,B] x) => (float y) {{ {body} }}'
    x = torch.randn(3, 4)
    torch.testing.assert_close(read(text, tmp_path)(x)[0], MEANT[meant](x))


class OneSequence(nn.Module):
    """Rows as one sequence: its batch of one is of the module, not of an input."""

    def __init__(self):
        super().__init__()
        self.rnn = stepnet.nn.LSTM(4, 4)

    def forward(self, x):
        return self.rnn(x.unsqueeze(1))[0].squeeze(1)


def test_a_batch_that_a_module_makes(tmp_path):
    model = OneSequence()
    stepnet.onnx.save(model, tmp_path / "m.onnx", (torch.randn(3, 4),))
    read = stepnet.onnx.load(tmp_path / "m.onnx")
    x = torch.randn(7, 4)
    torch.testing.assert_close(read(x)[0], model(x))
