"""The picture as a reader of XML sees it: everything named, nothing over another, back edges there."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from covering import every
from ir_files import Net
from stepnet.report.fold_layers import FEW, MOST, groups
from stepnet.report.inspect import inspect_model
from stepnet.report.inspection_picture import NetDrawing, picture
from stepnet.report.words import printable

CASES = Path(__file__).parent.parent / "openvino" / "cases" / "corpus"
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [
    "attention_decoder", "bidirectional_two_ti", "ti_in_loop", "loop_while", "torch_crnn_seq",
    "one_result_two_back_edges", "onnx_lstm_reverse_ti", "unused_body_parameter",
]  # fmt: skip


@pytest.fixture(params=every(2, DRAWN), scope="module")
def drawn(request):
    it = inspect_model(CASES / request.param / "model.xml")
    return it, ElementTree.fromstring(picture(it))


def texts(root):
    return "\n".join(
        element.text or "" for element in root.iter() if element.tag in (f"{SVG}text", f"{SVG}title")
    )


def test_every_layer_is_named(drawn):
    it, root = drawn
    shown = texts(root).splitlines()
    for layer in it.net.all_layers():
        named = any(printable(layer.name) in line for line in shown)
        assert named or (layer.loop is not None and layer.loop.kind in shown), layer.name


def test_every_back_edge_is_drawn(drawn):
    it, root = drawn
    lines = [path for path in root.iter(f"{SVG}path") if path.get("class") == "back-edge"]
    loops = [loop for _, loop in it.loops()]
    assert len(lines) == sum(len(loop.back_edges) if loop.bodies else 1 for loop in loops)


def test_everything_lies_inside(drawn):
    _, root = drawn
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert x >= 0 <= y
        assert x + w <= width
        assert y + h <= height


def test_boxes_lie_apart(drawn):
    it, _ = drawn
    nets = [it.net, *(net for _, loop in it.loops() for net in loop.bodies.values())]
    for net in nets:
        drawing = NetDrawing(net)
        places = [
            (x, y, part.width, part.height)
            for (x, y), part in zip(drawing.placed.centres, drawing.parts, strict=True)
        ]
        for (x, y, w, h), (u, v, p, q) in combinations(places, 2):
            assert abs(x - u) >= (w + p) / 2 - 0.1 or abs(y - v) >= (h + q) / 2 - 0.1


def test_values_go_down(drawn):
    """A layer stands below all that it reads."""
    it, _ = drawn
    drawing = NetDrawing(it.net)
    for a, b in drawing.edges:
        assert drawing.placed.centres[a][1] < drawing.placed.centres[b][1]


@pytest.fixture
def large(tmp_path):
    """Sixty residual blocks of five layers."""
    net = Net()
    at = net.parameter("x", "4")
    for i in range(60):
        one = net.add("Tanh", [net.add("Exp", [at], name=f"e{i}")], name=f"t{i}")
        two = net.add("Add", [net.add("Negative", [one], name=f"n{i}"), at], name=f"a{i}")
        at = net.add("ReLU", [two], name=f"r{i}")
    net.result(at, name="y")
    return inspect_model(net.write(tmp_path))


def test_a_large_model_is_folded(large):
    root = ElementTree.fromstring(picture(large))
    assert float(root.get("height", 0)) < 2500
    shown = texts(root)
    assert all(f"{name}{i}" in shown for name in "etnar" for i in range(60))
    folded = groups(large.net)
    assert 6 <= len(folded) <= 2 * FEW
    inner = [group for group in folded if group[0].computes]
    assert sum(map(len, inner)) == 300
    assert all(group[-1].name.startswith("r") for group in inner)  # where one value crosses


def test_folds_run_one_after_another(large):
    """No box reads what comes of it."""
    drawing = NetDrawing(large.net)
    assert all(a < b for a, b in drawing.edges)


def test_a_small_model_is_not(tmp_path):
    net = Net()
    at = net.parameter("x", "4")
    for _ in range(MOST):
        at = net.add("Exp", [at])
    net.result(at)
    assert len(groups(inspect_model(net.write(tmp_path)).net)) == MOST + 2


def test_branches(tmp_path):
    """Both bodies of an If stand side by side, and the condition goes in."""
    net = Net()
    which, v = net.parameter("which", "", "bool"), net.parameter("v", "2")
    inner, parts = "", []
    for prefix, kind in (("then_", "Exp"), ("else_", "Tanh")):
        body = net.body()
        p = body.parameter(f"{prefix}in", "2")
        r = body.result(body.add(kind, [p], name=f"{prefix}{kind}"), name=f"{prefix}out")
        inner += f'<{prefix}port_map><input external_port_id="1" internal_layer_id="{p[0]}"/>'
        inner += f'<output external_port_id="2" internal_layer_id="{r}"/></{prefix}port_map>'
        inner += f"<{prefix}body>{body.content()}</{prefix}body>"
        parts += [f"{prefix}in", f"{prefix}{kind}", f"{prefix}out"]
    net.result(net.add("If", [which, v], inner=inner, version="opset8", name="choose"), name="y")
    it = inspect_model(net.write(tmp_path))
    ((_, loop),) = it.loops()
    assert {name: [layer.type for layer in body.layers][1] for name, body in loop.bodies.items()} == {
        "then": "Exp",
        "else": "Tanh",
    }
    shown = texts(ElementTree.fromstring(picture(it))).splitlines()
    assert all(name in shown for name in ("choose", "then", "else", "which"))
    assert all(any(name in line for line in shown) for name in parts)
