"""Loops without a trip count whose condition no step changes are refused where it is true."""

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import stepnet.onnx
import stepnet.openvino
from stepnet.errors import IRError

BACKEND = "naive"
node = helper.make_node
LIMIT = torch.tensor(10.0)


def value(name, kind=TensorProto.FLOAT, shape=()):
    return helper.make_tensor_value_info(name, kind, shape)


OUTSIDE = [node("Less", ["h", "limit"], ["go"])]
BODIES = {  # the nodes that make `go` of: what is outside (h, limit), the states a and b, the iteration i
    "outer values": OUTSIDE,
    "its own condition, too": [node("Less", ["h", "limit"], ["l"]), node("And", ["l", "c"], ["go"])],
    "a state that is the same from a step on": [node("Less", ["b", "limit"], ["go"])],
    "a state": [node("Less", ["a", "limit"], ["go"])],
    "the iteration": [node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), node("Less", ["f", "limit"], ["go"])],
}
ENDLESS = list(BODIES)[:3]


def loop(nodes):
    """h -> a: a = a + 1, b = h while go."""
    return helper.make_graph(
        [node("Add", ["a", "one"], ["a2"]), node("Identity", ["h"], ["b2"]), *nodes],
        "body", [value("i", TensorProto.INT64), value("c", TensorProto.BOOL), value("a"), value("b")],
        [value("go", TensorProto.BOOL), value("a2"), value("b2")],
    )  # fmt: skip


def written(folder, nodes, *, nested=False):
    inner = node("Loop", ["", "", "h", "h"], ["y", "z"], name="repeat", body=loop(nodes))
    outer = helper.make_graph(
        [inner, node("Identity", ["c0"], ["c1"])], "once",
        [value("i0", TensorProto.INT64), value("c0", TensorProto.BOOL)],
        [value("c1", TensorProto.BOOL), value("y")],
    )  # fmt: skip
    made = node("Loop", ["once", ""], ["out"], name="around", body=outer) if nested else inner
    one = [helper.make_tensor("one", 1, (), [1.0]), helper.make_tensor("once", 7, (), [1])]
    shown = value("out", shape=(None,)) if nested else value("y")
    graph = helper.make_graph([made], "g", [value("h"), value("limit")], [shown], one)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def refused(run, named=""):
    with pytest.raises(IRError, match=rf"(?s){named}.*never ends\n.*condition.*\n.*a trip count.*\n.*remedy"):
        run()


@pytest.mark.parametrize("name", BODIES)
def test_what_no_step_changes(name, tmp_path):
    path, xml = written(tmp_path, BODIES[name]), tmp_path / "m.xml"
    model, over = stepnet.onnx.load(path), torch.tensor(20.0)  # a loop of one step, if its body reads that
    stepnet.openvino.save(model, xml, (over, LIMIT))
    again = stepnet.openvino.load(xml)
    for read in (model, again):
        few = 21.0 if name != "the iteration" else 31.0
        ended = read(over, LIMIT)[0]
        assert ended.item() == few
    h = torch.tensor(3.0)
    if name not in ENDLESS:
        wanted = 11.0 if name == "a state" else 14.0
        assert [model(h, LIMIT)[0].item(), again(h, LIMIT)[0].item()] == [wanted, wanted]
        return
    refused(lambda: model(h, LIMIT), r"'repeat' \(Loop\)")
    refused(lambda: stepnet.openvino.save(model, tmp_path / "n.xml", (h, LIMIT)))
    refused(lambda: again(h, LIMIT), "Loop layer")
    if "condition" not in name:  # which IR carries as a state of its own
        refused(lambda: stepnet.onnx.save(again, tmp_path / "n.onnx", (h, LIMIT)))


def test_states_that_come_again(tmp_path):
    """One and a number of ten digits are that number: what decides is what it was, after many steps."""
    model, few = stepnet.onnx.load(written(tmp_path, BODIES["a state"])), torch.tensor(-40.0)
    stepnet.openvino.save(model, tmp_path / "m.xml", (few, LIMIT))
    for read in (model, stepnet.openvino.load(tmp_path / "m.xml")):
        refused(lambda read=read: read(torch.tensor(1e10), torch.tensor(1e20)))
        assert read(few, LIMIT)[0].item() == 11.0  # from then on by blocks of steps
        refused(lambda read=read: read(torch.tensor(1e10), torch.tensor(1e20)))
        assert read(torch.tensor(-3000.0), LIMIT)[0].item() == 11.0


def test_inside_a_loop(tmp_path):
    model = stepnet.onnx.load(written(tmp_path, OUTSIDE, nested=True))
    assert model(torch.tensor(20.0), LIMIT)[0].tolist() == [21.0]
    refused(lambda: model(torch.tensor(3.0), LIMIT), r"'repeat' \(Loop\)")
