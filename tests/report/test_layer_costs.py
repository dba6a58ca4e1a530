"""Costs and steps against what else knows them: torch's counter of products, shapes of right answers."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ir_files import Net
from stepnet.openvino import load, supported_types
from stepnet.report import cost as flops
from stepnet.report.inspect import inspect_model
from stepnet.report.loop_layers import steps
from stepnet.report.sizes import sizes

CASES = Path(__file__).parent.parent / "openvino" / "cases"
GOOD = [p for kind in ("corpus", "legacy") for p in sorted((CASES / kind).iterdir())]

MOVES = """
    batchtospace broadcast concat convert convertlike convertpromotetypes depthtospace eye gather
    gatherelements gathernd gathertree nonzero onehot pad range reverse reversesequence roll
    scatterelementsupdate scatterndupdate scatterupdate select shufflechannels slice slicescatter
    spacetobatch spacetodepth split stridedslice tile topk transpose unique variadicsplit
"""


def test_every_type_of_layer_has_one_cost():
    groups = [
        flops.VIEWS, set(MOVES.split()), flops.COSTLY, flops.CHEAP, flops.READS, set(flops.SEVERAL),
        flops.PRODUCTS, {"tensoriterator", "loop", "if"},
    ]  # fmt: skip
    assert {name.lower() for name in supported_types()} == set().union(*groups)
    assert not any(a & b for a, b in combinations(groups, 2))


def products(folder):
    net = Net()
    x = net.parameter("x", "2,6,7,5")
    pads = {"strides": "2,1", "dilations": "1,1", "pads_begin": "1,0", "pads_end": "1,0"}
    a = net.add("Convolution", [x, net.const(np.ones((4, 6, 3, 2), np.float32))], **pads)
    b = net.add("GroupConvolution", [x, net.const(np.ones((3, 2, 2, 1, 1), np.float32))], **pads)
    c = net.add("MatMul", [x, net.const(np.ones((7, 3), np.float32))], transpose_a="true")
    d = net.add("MatMul", [x, net.const(np.ones((9, 5), np.float32))], transpose_b="true")
    e = net.add(
        "Einsum", [x, net.const(np.ones((5, 9), np.float32))], version="opset7", equation="...ij, jk -> ...ik"
    )
    for source in (a, b, c, d, e):
        net.result(source)
    return net.write(folder)


def test_products_cost_what_torch_counts(tmp_path):
    path = products(tmp_path)
    model, counter = load(path), FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.ones(2, 6, 7, 5))
    assert inspect_model(path).cost.flops == counter.get_total_flops() > 0


def test_an_lstm():
    """T=5, B=2, I=3, H=4: two products, five activations and sums for each number of the state."""
    it = inspect_model(CASES / "corpus" / "lstmcell_v4" / "model.xml")
    ((layer, loop),) = it.loops()
    assert loop.once.flops >= 5 * 2 * 2 * 3 * 16
    assert loop.once.flops < 1.2 * 5 * 2 * 2 * 3 * 16
    assert loop.step.flops >= 2 * 2 * 4 * 16 + 5 * 10 * 2 * 4
    assert loop.step.flops < 1.2 * (2 * 2 * 4 * 16 + 5 * 10 * 2 * 4)
    assert it.cost.flops == loop.once.flops + 5 * loop.step.flops
    assert (layer.parameters, it.parameters, it.weight_bytes) == (128, 128, 520)


def test_the_cost_is_the_plan_s(tmp_path):
    """Of (h W + x) + exp(x) the compiler makes h W + (x + exp(x)), and adds but once at each step."""
    net = Net()
    x, h0 = net.parameter("x", "2,5,4"), net.parameter("h0", "2,1,4")
    body = net.body()
    x_t, h = body.parameter("x_t", "2,1,4"), body.parameter("h", "2,1,4")
    product = body.add("MatMul", [h, body.const(np.ones((4, 4), np.float32))])
    total = body.add("Add", [body.add("Add", [product, x_t]), body.add("Exp", [x_t])])
    result = body.result(body.add("Tanh", [total]))
    rows = (
        f'<input external_port_id="0" internal_layer_id="{x_t[0]}" axis="1"/>'
        f'<input external_port_id="1" internal_layer_id="{h[0]}"/>'
        f'<output external_port_id="2" internal_layer_id="{result}" axis="1"/>'
    )
    net.result(net.loop(body, [x, h0], rows, f'<edge from-layer="{result}" to-layer="{h[0]}"/>'))
    it = inspect_model(net.write(tmp_path))
    ((_, loop),) = it.loops()
    assert loop.compiled
    assert loop.step.flops == 2 * 2 * 4 * 4 + 8 + 80
    assert loop.once.flops == 5 * (80 + 8)
    assert sum(inner.when == "step" for inner in loop.bodies["body"].layers if inner.computes) == 4


def joined():
    """Loops whose joined output is an output of the model: the folder, and the layer's row for it."""
    for folder in GOOD:
        model = load(folder / "model.xml")
        net = model.graph.net
        for place, i in enumerate(net.results):
            source, index = net.layers[i].sources[0]
            layer = net.layers[source]
            for row in layer.maps[""].outputs if layer.type in ("TensorIterator", "Loop") else ():
                if row.axis is not None and row.external == layer.outputs[index].id:
                    yield folder, model, layer, place, row


def test_steps_are_those_of_the_right_answers():
    seen = 0
    for folder, model, layer, place, row in joined():
        with np.load(folder / "inputs.npz") as inputs, np.load(folder / "outputs.npz") as outputs:
            at = sizes(model, {name: inputs[name].shape for name in inputs.files})
            expected = outputs[f"out{place}"].shape[row.axis] // row.part_size
        node = next(node for node in model.graph.nodes if node.layer is layer)
        found = steps(node, model.graph.net, at)
        if layer.type == "Loop" and found.count is None:
            continue  # its condition ends it
        assert found.count == expected, folder.name
        seen += 1
    assert seen > 40


@pytest.mark.parametrize("case", ["ti_then_classifier", "lstmcell_v4_nonconst_weights", "torch_gru_sequence"])
def test_parameters_are_those_that_are_trained(case):
    """But for scalars and states that are no weights."""
    model = load(CASES / "corpus" / case / "model.xml", trainable=True)
    floating = sum(p.numel() for p in model.parameters())
    it = inspect_model(CASES / "corpus" / case / "model.xml")
    assert floating <= it.parameters <= floating + 8
