"""Rows of port maps and back edges that break a rule, each told with the layer and the row."""

from __future__ import annotations

import numpy as np
import pytest

from ir_files import Net, edge, sliced
from stepnet.errors import IRError
from stepnet.openvino import load

X, H, Y = sliced("input", 0, 0, axis=1), sliced("input", 1, 1), sliced("output", 2, 3, axis=1)
ROWS = {  # of a TensorIterator over x [2, 5, 3] along axis 1
    r"internal_layer_id=0: internal_port_id belongs to IR version 7 and older\n.*\n.*\n.*convert": (
        sliced("input", 0, 0, axis=1, internal_port_id=0) + H + Y
    ),
    r"Parameter layer 1 'hi': no port_map input feeds.*\n.*\[0\]\n.*internal_layer_id=1": X + Y,
    r"internal_layer_id=0: the Parameter is fed twice\n.*ports 0 and 1": X + H + sliced("input", 1, 0) + Y,
    r"output port 2 has two port_map entries\n.*2 entries": X + H + Y + sliced("output", 2, 3),
    r"external_port_id=9 names no input port\n.*9\n.*\[0, 1\]": X + sliced("input", 9, 1) + Y,
    r"external_port_id=7 names no output port\n.*7\n.*\[2\]": X + H + sliced("output", 7, 3),
    r"external_port_id=-1 .*: names no port": X + sliced("input", -1, 1) + Y,
    r"input external_port_id=0: has no internal_layer_id": '<input external_port_id="0"/>' + H + Y,
    r"the slice of 'xi': axis 3 lies outside an input of 3 dim.*\n.*\n.*-3 to 2": (
        sliced("input", 0, 0, axis=3) + H + Y
    ),
    r"output port 2: axis 5 lies outside a result of 3 dim": X + H + sliced("output", 2, 3, axis=5),
    r"the slice of 'xi' along axis 1 does not divide into steps\n.*5 elem.*\n.*of 2.*\n.*end=4": (
        sliced("input", 0, 0, axis=1, stride=2, part_size=2) + H + Y
    ),
    r"the slice of 'xi' along axis 1 lies outside the tensor\n.*start=4, end=2": (
        sliced("input", 0, 0, axis=1, start=4, end=2) + H + Y
    ),
    r"part_size is 2, but the result has 1 elements": (
        X + H + sliced("output", 2, 3, axis=1, stride=2, part_size=2)
    ),
    r"stride is no whole number\n.*\n.*64 bits": sliced("input", 0, 0, axis=1, stride=2**70) + H + Y,
}  # fmt: skip


@pytest.mark.parametrize("says", ROWS)
def test_a_row(says, tmp_path):
    net = Net()
    x, h, body = net.parameter("x", "2,5,3"), net.parameter("h", "2,1,3"), net.body()
    total = body.add("Add", [body.parameter("xi", "2,1,3"), body.parameter("hi", "2,1,3")])
    net.result(net.loop(body, [x, h], ROWS[says], edge(body.result(total), 1)))
    with pytest.raises(IRError, match=rf"layer 2.*{says}"):
        load(net.write(tmp_path))


NUMBER, GOES_ON = sliced("input", -1, 0, purpose="current_iteration"), sliced(
    "output", -1, 5, purpose="execution_condition"
)  # fmt: skip
STATE = NUMBER + sliced("input", 2, 1) + sliced("output", 3, 3)
LOOPS = {
    r"Parameter 0 gets the iteration number from its port_map and cannot be carried": (
        STATE + GOES_ON, edge(3, 0), True, True
    ),
    r"input internal_layer_id=0: execution_condition is the purpose of an output": (
        STATE.replace("current_iteration", "execution_condition") + GOES_ON, "", True, True
    ),
    r"the execution condition must be one value\n.*\[2\]": (STATE + GOES_ON, edge(3, 1), True, [True, False]),
    r"the condition must be one value\n.*\[2\]": (STATE + GOES_ON, edge(3, 1), [True, True], True),
}  # fmt: skip


@pytest.mark.parametrize("says", LOOPS)
def test_a_row_of_a_loop(says, tmp_path):
    ports, edges, begins, goes_on = LOOPS[says]
    net = Net()
    sources = [net.const(4), net.const(np.array(begins)), net.parameter("h", "2,3")]
    body = net.body()
    body.parameter("i", "", "int64")
    body.result(body.add("Tanh", [body.parameter("hi", "2,3")]))
    body.result(body.const(np.array(goes_on)))
    net.result(net.loop(body, sources, ports, edges, kind="Loop", version="opset5"))
    with pytest.raises(IRError, match=rf"Loop layer 3 '\w+': .*{says}"):
        load(net.write(tmp_path))


@pytest.mark.parametrize(("inputs", "axis", "says"), [
    (["c"], {}, "external_port_id=1 names no input port"),
    (["c", "x"], {"axis": 0}, "a branch of If is not sliced\n.*axis=0\n.*no axis"),
])  # fmt: skip
def test_a_row_of_a_branch(inputs, axis, says, tmp_path):
    net, inner = Net(), ""
    sources = {"c": net.parameter("c", "", "bool"), "x": net.parameter("x", "2,3")}
    for prefix in ("then", "else"):
        body = net.body()
        last = body.result(body.add("Abs", [body.parameter("a", "2,3")]))
        ports = sliced("input", 1, 0, **axis) + sliced("output", len(inputs), last)
        inner += (
            f"<{prefix}_port_map>{ports}</{prefix}_port_map><{prefix}_body>{body.content()}</{prefix}_body>"
        )
    net.result(net.add("If", [sources[name] for name in inputs], version="opset8", inner=inner))
    with pytest.raises(IRError, match=rf"If layer 2 '\w+': port_map .*{says}"):
        load(net.write(tmp_path))


def test_the_body_of_a_loop_whose_range_is_none_in_the_sizes_that_are_tried(tmp_path):
    net = Net()
    x, h, body = net.parameter("x", "2,?,3"), net.parameter("h", "2,1,3"), net.body()
    both = [body.parameter("xi", "2,1,3"), body.parameter("hi", "2,1,3")]
    total = body.add("Add", [both[1], body.add("MatMul", [both[0], body.const(np.ones((4, 3), "f4"))])])
    ranges = sliced("input", 0, 0, axis=1, start=-5, end=3)
    net.result(
        net.loop(body, [x, h], ranges + H + sliced("output", 2, 5, axis=1), edge(body.result(total), 1))
    )
    with pytest.raises(
        IRError, match=r"body of TensorIterator 'Ten\w+' \(layer 2\): MatMul layer 3 .* do not"
    ):
        load(net.write(tmp_path))
