"""OpenVINO's own second example of a TensorIterator, whose Parameters have no `<data>`: read, and written so
that OpenVINO reads it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from covering import few
from stepnet.cli import app
from stepnet.openvino import convert, load, save

TIME, WIDTH, HIDDEN = 5, 6, 4


def ports(*shapes, first=0, precision=""):
    dims = ("".join(f"<dim>{size}</dim>" for size in shape) for shape in shapes)
    return "".join(f'<port id="{first + i}"{precision}>{text}</port>' for i, text in enumerate(dims))


def layer(number, kind, *, inputs=(), outputs=(), data="", dtype="FP32", version="opset1", more=""):
    """A layer as the example writes it: ports count on from the inputs, types are those of ports."""
    ins = f"<input>{ports(*inputs)}</input>" if inputs else ""
    first = len(inputs) if kind != "Const" else 1
    outs = ports(*outputs, first=first, precision=f' precision="{dtype}"')
    outs = f"<output>{outs}</output>" if outputs else ""
    head = f'<layer id="{number}" name="{kind} {number}" type="{kind}" version="{version}">'
    return f"{head}{data}{ins}{outs}{more}</layer>"


def edges(*ends):
    rows = (f'from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"' for a, b, c, d in ends)
    return "<edges>" + "".join(f"<edge {row}/>" for row in rows) + "</edges>"


def example(path, *, dynamic=False):
    """The example with smaller sizes, in a model of its own; returns its weights and bias."""
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(4 * HIDDEN, WIDTH + HIDDEN, generator=generator)
    bias = torch.randn(4 * HIDDEN, generator=generator)
    rows = -1 if dynamic else 1
    blobs = [np.array([rows, WIDTH]), both.numpy(), bias.numpy(), np.array([rows, 1, HIDDEN])]
    offsets, at = [], 0
    for blob in blobs:
        offsets.append(f'<data offset="{at}" size="{blob.nbytes}"/>')
        at += blob.nbytes
    batch, time = (-1, -1) if dynamic else (1, TIME)
    part, x, h = (batch, 1, WIDTH), (batch, WIDTH), (batch, HIDDEN)
    table, y = (4 * HIDDEN, WIDTH + HIDDEN), (batch, 1, HIDDEN)
    body = (
        layer(0, "Parameter", outputs=[part]),
        layer(1, "Const", outputs=[(2,)], data=offsets[0], dtype="I64"),
        layer(2, "Reshape", inputs=[part, (2,)], outputs=[x], data='<data special_zero="true"/>'),
        layer(3, "Parameter", outputs=[h]),
        layer(4, "Parameter", outputs=[h]),
        layer(5, "Const", outputs=[table], data=offsets[1]),
        layer(6, "Const", outputs=[(4 * HIDDEN,)], data=offsets[2]),
        layer(7, "LSTMCell", inputs=[x, h, h, table, (4 * HIDDEN,)], outputs=[h, h],
              data=f'<data hidden_size="{HIDDEN}"/>'),
        layer(8, "Result", inputs=[h]),
        layer(9, "Result", inputs=[h]),
        layer(10, "Const", outputs=[(3,)], data=offsets[3], dtype="I64"),
        layer(11, "Reshape", inputs=[h, (3,)], outputs=[y], data='<data special_zero="true"/>'),
        layer(12, "Result", inputs=[y]),
    )  # fmt: skip
    inner = edges(
        (0, 0, 2, 0), (1, 1, 2, 1), (2, 2, 7, 0), (3, 0, 7, 1), (4, 0, 7, 2), (5, 1, 7, 3), (6, 1, 7, 4),
        (7, 6, 8, 0), (7, 5, 9, 0), (7, 5, 11, 0), (10, 1, 11, 1), (11, 2, 12, 0),
    )  # fmt: skip
    loop = (
        '<port_map><input axis="1" external_port_id="0" internal_layer_id="0" start="0"/>'
        '<input external_port_id="1" internal_layer_id="3"/>'
        '<input external_port_id="2" internal_layer_id="4"/>'
        '<output axis="1" external_port_id="3" internal_layer_id="12"/></port_map>'
        '<back_edges><edge from-layer="8" to-layer="4"/><edge from-layer="9" to-layer="3"/></back_edges>'
        f"<body><layers>{''.join(body)}</layers>{inner}</body>"
    )
    whole = (batch, time, WIDTH)
    outer = (
        layer(0, "Parameter", outputs=[whole]),
        layer(1, "Parameter", outputs=[h]),
        layer(2, "Parameter", outputs=[h]),
        layer(3, "TensorIterator", inputs=[whole, h, h], outputs=[(batch, time, HIDDEN)], more=loop),
        layer(4, "Result", inputs=[(batch, time, HIDDEN)]),
    )
    ends = edges((0, 0, 3, 0), (1, 0, 3, 1), (2, 0, 3, 2), (3, 3, 4, 0))
    path.write_text(f'<net name="example" version="11"><layers>{"".join(outer)}</layers>{ends}</net>')
    path.with_suffix(".bin").write_bytes(b"".join(blob.tobytes() for blob in blobs))
    return both, bias


def by_hand(both, bias, x, h, c):
    """Gates in the order f, i, c, o."""
    out = []
    for t in range(x.shape[1]):
        f, i, g, o = (torch.cat([x[:, t], h], 1) @ both.t() + bias).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1)


def values(batch=1):
    return [torch.randn(batch, TIME, WIDTH), torch.randn(batch, HIDDEN), torch.randn(batch, HIDDEN)]


WRITERS = {
    "save": lambda old, new: save(load(old), new),
    "convert": convert,
    "stepnet convert": lambda old, new: CliRunner().invoke(app, ["convert", str(old), str(new)]),
}


def test_it_is_read(tmp_path):
    made = example(tmp_path / "m.xml")
    given = values()
    torch.testing.assert_close(load(tmp_path / "m.xml")(*given)[0], by_hand(*made, *given))


@pytest.mark.parametrize("writer", few(WRITERS, ["save"]))
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_written_so_that_openvino_reads_it(writer, dynamic, tmp_path):
    openvino = pytest.importorskip("openvino")
    made = example(tmp_path / "m.xml", dynamic=dynamic)
    WRITERS[writer](tmp_path / "m.xml", tmp_path / "new.xml")
    given = values(batch=3 if dynamic else 1)
    expected = by_hand(*made, *given)
    torch.testing.assert_close(load(tmp_path / "new.xml")(*given)[0], expected)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "new.xml"), "CPU", options)
    found = torch.from_numpy(compiled([v.numpy() for v in given])[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_each_parameter_says_its_type_and_shape(tmp_path):
    example(tmp_path / "m.xml", dynamic=True)
    save(load(tmp_path / "m.xml"), tmp_path / "new.xml")
    text = (tmp_path / "new.xml").read_text()
    found = re.findall(r'type="Parameter"[^>]*>\s*<data shape="([^"]*)" element_type="([^"]*)"', text)
    assert found == [(shape, "f32") for shape in ("?,?,6", "?,4", "?,4", "?,1,6", "?,4", "?,4")]
    save(load(tmp_path / "new.xml"), tmp_path / "again.xml")
    assert (tmp_path / "again.xml").read_text() == text
