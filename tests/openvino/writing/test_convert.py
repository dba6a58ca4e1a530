"""Version 11, sequences as cells with and without lengths, f16 weights."""

from __future__ import annotations

import re

import pytest
import torch

from covering import few
from ir_cases import CASES, GOOD, case, check
from stepnet.errors import IRError
from stepnet.openvino import convert, load
from stepnet.openvino.writing.builder import NetBuilder
from stepnet.openvino.writing.xml_writer import write

SEQUENCES = [
    p for p in GOOD if re.search('type="(LSTM|GRU|RNN)Sequence"', (p / "model.xml").read_text()) is not None
]
KINDS = {"LSTM": (4, 4, 2), "GRU": (3, 3, 1), "GRU-lbr": (3, 4, 1), "RNN": (1, 1, 1)}  # gates, of B, states


BACKEND = "naive"


def types(path):
    """The types of all layers, those of bodies with their depth in front."""

    def walk(net, depth):
        for layer in net.layers.values():
            yield f"{depth * '>'}{layer.type}"
            for body in layer.bodies.values():
                yield from walk(body, depth + 1)

    return list(walk(load(path).graph.net, 0))


@pytest.mark.parametrize("folder", few(SEQUENCES, [*SEQUENCES][::3]), ids=lambda p: p.name)
def test_sequences_as_cells_give_the_same_answers(folder, tmp_path):
    convert(folder / "model.xml", tmp_path / "m.xml", unfuse=True)
    found = types(tmp_path / "m.xml")
    assert not [t for t in found if t in ("LSTMSequence", "GRUSequence", "RNNSequence")]
    assert [t for t in found if t.endswith("Cell")]
    check(folder, load(tmp_path / "m.xml"))


@pytest.mark.parametrize("name", ["torch_lstm_bi2_sequence", "onnx_rnn_bi_seq", "torch_gru_sequence"])
def test_full_sequences_need_no_mask(name, tmp_path):
    convert(case(name) / "model.xml", tmp_path / "m.xml", unfuse=True)
    assert not {">Select", "Range"} & set(types(tmp_path / "m.xml"))


def sequence(path, kind, direction, *, weights="constants"):
    """One sequence layer with lengths as an input; weights are inputs if they are not constants."""
    gates, bias, states = KINDS[kind]
    directions = 2 if direction == "bidirectional" else 1
    generator = torch.Generator().manual_seed(0)
    b = NetBuilder("sequence")
    ins = [b.parameter("x", torch.float32, (-1, -1, 3))]
    ins += [b.parameter(f"s{k}", torch.float32, (-1, directions, 4)) for k in range(states)]
    ins.append(b.parameter("lengths", torch.int32, (-1,)))
    for name, shape in zip("WRB", ((gates * 4, 3), (gates * 4, 4), (bias * 4,)), strict=True):
        value = torch.randn((directions, *shape), generator=generator)
        if weights == "constants":
            ins.append(b.constant(value))
        elif weights == "compressed":
            ins.append(b.layer("Convert", [b.constant(value.half())], {"destination_type": torch.float32}))
        else:
            ins.append(b.parameter(name, torch.float32, value.shape))
    attributes = {"hidden_size": 4, "direction": direction, "clip": 0.7}
    if kind == "GRU-lbr":
        attributes["linear_before_reset"] = True
    name = f"{kind.removesuffix('-lbr')}Sequence"
    outs = b.layer(name, ins, attributes, version="opset5", outputs=states + 1)
    for k, out in enumerate(outs):
        b.result(out, (f"y{k}",))
    write(b.net(), path)


@pytest.mark.covering(1)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_sequence_lengths_are_kept(kind, direction, tmp_path):
    sequence(tmp_path / "m.xml", kind, direction)
    convert(tmp_path / "m.xml", tmp_path / "n.xml", unfuse=True)
    assert ">Select" in types(tmp_path / "n.xml")
    ours, cells = load(tmp_path / "m.xml"), load(tmp_path / "n.xml")
    directions = 2 if direction == "bidirectional" else 1
    for lengths in ([5, 2, 0, 3], [5, 5, 5, 5], [0, 0, 0, 0], [1, 4, 4, 2]):
        states = [torch.randn(4, directions, 4) for _ in range(KINDS[kind][2])]
        given = [torch.randn(4, 5, 3), *states, torch.tensor(lengths, dtype=torch.int32)]
        for right, found in zip(ours(*given), cells(*given), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_openvino_keeps_lengths_of_cells(direction, tmp_path):
    openvino = pytest.importorskip("openvino")
    sequence(tmp_path / "m.xml", "LSTM", direction)
    convert(tmp_path / "m.xml", tmp_path / "n.xml", unfuse=True)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "n.xml"), "CPU", options)
    states = [torch.randn(4, 2 if direction == "bidirectional" else 1, 4) for _ in range(2)]
    given = [torch.randn(4, 6, 3), *states, torch.tensor([6, 2, 1, 4], dtype=torch.int32)]
    there = compiled([g.numpy() for g in given])
    for k, right in enumerate(load(tmp_path / "m.xml")(*given)):
        torch.testing.assert_close(torch.from_numpy(there[k]), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["compressed", "inputs"])
def test_weights_that_are_no_constants(weights, tmp_path):
    sequence(tmp_path / "m.xml", "GRU-lbr", "bidirectional", weights=weights)
    convert(tmp_path / "m.xml", tmp_path / "n.xml", unfuse=True)
    ours, cells = load(tmp_path / "m.xml"), load(tmp_path / "n.xml")
    given = [torch.randn(3, 5, 3), torch.randn(3, 2, 4), torch.tensor([5, 1, 3], dtype=torch.int32)]
    given += [torch.randn(s.shape or ()) for s in ours.inputs[3:]]
    for right, found in zip(ours(*given), cells(*given), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lstmcell_v4", "torch_crnn_seq", "attention_decoder", "lstm_projection"])
def test_f16_weights(name, tmp_path):
    folder = case(name)
    convert(load(folder / "model.xml"), tmp_path / "m.xml", f16=True)
    model = load(tmp_path / "m.xml")
    assert 'name="decompression"' in (tmp_path / "m.xml").read_text()
    assert all(t.dtype is not torch.float16 for t in model.graph.tensors())
    check(folder, model, tolerance=1e-2)


def test_f16_halves_the_weights_and_leaves_what_it_does_not_hold(tmp_path):
    b = NetBuilder("weights")
    x = b.parameter("x", torch.float32, (100,))
    large = torch.ones(100)
    large[3] = 1e6
    shared = torch.rand(100)
    values = [shared, shared, large, torch.tensor(1e-12), torch.rand(100).double()]
    for i, value in enumerate(values[:4]):
        b.result(b.layer("Multiply", [x, b.constant(value, name=f"w{i}")]), (f"y{i}",))
    b.result(b.constant(values[4]), ("y4",))
    write(b.net(), tmp_path / "m.xml")
    convert(tmp_path / "m.xml", tmp_path / "n.xml", f16=True)
    found = load(tmp_path / "n.xml")(torch.ones(100))
    assert torch.equal(found["y0"], shared.half().float())
    assert torch.equal(found["y2"], large)
    assert torch.equal(found["y3"], torch.full((100,), 1e-12))
    assert torch.equal(found["y4"], values[4])
    kept = [layer for layer in load(tmp_path / "n.xml").graph.net.layers.values() if layer.type == "Const"]
    assert sorted(int(layer.attributes["size"]) for layer in kept) == [4, 200, 200, 400, 800]
    assert len({int(layer.attributes["offset"]) for layer in kept}) == 4


def test_version_10_becomes_11_in_place(tmp_path):
    folder = case("loop_trip_count_v10")
    for suffix in ("xml", "bin"):
        (tmp_path / f"model.{suffix}").write_bytes((folder / f"model.{suffix}").read_bytes())
    before = load(tmp_path / "model.xml")
    assert before.graph.net.version == 10
    convert(tmp_path / "model.xml", tmp_path / "model.xml")
    after = load(tmp_path / "model.xml")
    assert after.graph.net.version == 11
    assert [o.name for o in after.outputs] == [o.name for o in before.outputs]
    check(folder, after)


def test_a_model_that_cannot_be_read_leaves_the_output_alone(tmp_path):
    (tmp_path / "out.xml").write_text("mine")
    with pytest.raises(IRError, match=r"model\.xml: "):
        convert(
            CASES / "bad" / "dangling_edge_layer" / "model.xml",
            tmp_path / "out.xml",
        )
    assert (tmp_path / "out.xml").read_text() == "mine"


def test_cells_with_f16_weights(tmp_path):
    folder = case("torch_lstm_bi2_sequence")
    convert(folder / "model.xml", tmp_path / "m.xml", unfuse=True, f16=True)
    assert ">Convert" in types(tmp_path / "m.xml")
    check(folder, load(tmp_path / "m.xml"), tolerance=1e-2)
    convert(tmp_path / "m.xml", tmp_path / "n.xml", f16=True)
    assert (tmp_path / "n.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()
