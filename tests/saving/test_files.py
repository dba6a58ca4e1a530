"""What a saved topology's file says besides its layers; loading; what cannot be saved or loaded."""

from __future__ import annotations

import json

import pytest
import torch

import stepnet
from covering import few
from stepnet import LoDTensor
from stepnet.errors import IRError, TapeError
from stepnet.layers import (
    Dense,
    GeneratedInput,
    Integer,
    Sequence,
    StaticInput,
    apply,
    auc,
    beam_search,
    classification_cost,
    classification_error,
    data,
    dropout,
    embedding,
    fc,
    pooling,
    recurrent_group,
)
from stepnet.openvino.writing.builder import NetBuilder
from stepnet.openvino.writing.xml_writer import write
from stepnet.tape import Tape

X = LoDTensor(torch.tensor([3, 1, 4, 1, 5]), [[0, 2, 5]])


def tape_of_a_classifier():
    torch.manual_seed(0)
    with Tape() as tape:
        words = data("words", Sequence(Integer(9)))
        scores = fc(dropout(pooling(embedding(words, 4), "mean")), 2, name="scores")
        label = data("label", Integer(2))
        classification_error(scores, label, name="error")
        auc(scores, label, name="area")
        classification_cost(scores, label, name="cost")
        torch.softmax(scores, -1)
    return tape


@pytest.fixture
def classifier():
    return tape_of_a_classifier()


def test_the_file_tells_data_types_outputs_and_evaluators(classifier, tmp_path):
    path = tmp_path / "net.xml"
    net = classifier.topology({"liked": "softmax_0", "both": ("scores", ["embedding_0"])})
    net.save(path)
    model = stepnet.openvino.load(path)
    notes = model.rt_info["stepnet"]
    assert json.loads(notes["data"]["words"]) == {"kind": "integer", "size": 9, "level": 1}
    assert list(notes["data"]) == ["words"]  # the label is needed by no output
    assert json.loads(notes["evaluators"]["error"]) == {
        "kind": "classification_error",
        "inputs": ["scores", "label"],
    }
    assert [s.name for s in model.inputs] == ["words", "words.lengths_0"]
    assert [s.shape for s in model.inputs] == [(-1, -1), (-1,)]
    loaded = stepnet.load(path)
    assert loaded.types == {"words": Sequence(Integer(9))}
    assert loaded.evaluators["area"]["kind"] == "auc"
    out, metrics = loaded(words=X)
    assert (list(out), dict(metrics)) == (["liked", "both"], {})
    assert isinstance(out["both"], tuple)
    assert isinstance(out["both"][1], list)
    assert out["both"][1][0].recursive_sequence_lengths() == [[2, 3]]


def test_openvino_reads_the_notes_and_ir_in_memory(classifier, tmp_path):
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    ir = classifier["softmax_0"].to_ir()
    model = openvino.Core().read_model(ir.xml, ir.weights)
    assert model.has_rt_info(["stepnet", "evaluators", "error"])
    assert json.loads(model.get_rt_info(["stepnet", "outputs"]).astype(str)) == "softmax_0"
    assert {name for i in model.inputs for name in i.names} == {"words", "words.lengths_0"}
    assert {name for o in model.outputs for name in o.names} == {"softmax_0"}


def test_what_was_trained_is_saved_in_the_mode_of_inference(classifier, tmp_path):
    train, infer = classifier.topology("cost"), classifier.topology("softmax_0")
    before = infer.eval()(words=X, label=torch.tensor([0, 1]))[0].detach()
    train.train()
    optimizer = torch.optim.SGD(train.parameters(), lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        train(words=X, label=torch.tensor([0, 1]))[0].backward()
        optimizer.step()
    infer.train()
    infer.save(tmp_path / "net.xml")
    assert all(module.training for module in infer.modules())
    loaded = stepnet.load(tmp_path / "net.xml", trainable=True)
    got = loaded(words=X)[0]
    torch.testing.assert_close(got, infer.eval()(words=X, label=torch.tensor([0, 1]))[0])
    assert not torch.allclose(got, before)
    got[:, 0].sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in loaded.parameters())
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.mul_(1.5)
    loaded.save(tmp_path / "trained.xml")
    again = stepnet.load(tmp_path / "trained.xml")
    torch.testing.assert_close(again(words=X)[0], loaded(words=X)[0])
    with pytest.raises(TapeError, match="by name"):
        again(X)


def test_float64_stays_float64(tmp_path):
    with Tape() as tape:
        net = tape.topology(fc(data("x", Dense(3)), 2)).double()
    net.save(tmp_path / "net.xml")
    x = torch.randn(4, 3, dtype=torch.float64)
    got = stepnet.load(tmp_path / "net.xml")(x=x)[0]
    torch.testing.assert_close(got, net(x=x)[0], rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """Loaded from a file, which is written once."""
    path = tmp_path_factory.mktemp("saved") / "net.xml"
    tape_of_a_classifier().topology("scores").save(path)
    return stepnet.load(path)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"values for \['words'\]"),
        ({"words": X, "label": 1}, r"values for \['label', 'words'\]"),
        ({"words": X.values}, "a LoDTensor of 1 levels"),
        ({"words": LoDTensor(torch.tensor([9]), [[0, 1]])}, "out of range"),
    ],
    ids=["missing", "unknown", "levels", "range"],
)
def test_a_loaded_topology_checks_its_data(scores, feeds, message):
    with pytest.raises(TapeError, match=message):
        scores(**feeds)


def searched(x, words):
    rows = pooling(x)
    scores = recurrent_group(
        lambda w, b: fc([embedding(w, 3), b], 5), [GeneratedInput(words), StaticInput(rows)]
    )
    return beam_search(scores, bos=3, eos=4, beam_size=2, max_length=3)[0]


REFUSED = {
    "a search": (searched, TapeError, "what a beam search generates has no length"),
    "an evaluator": (
        lambda x, w: classification_error(fc(x, 5), w),
        TapeError,
        r"test_files.py, line .*cannot be saved: an evaluator is no output",
    ),
    "a call without a layer": (
        lambda x, w: torch.special.i0(pooling(x, "sum")),
        IRError,
        r"module Topology cannot be written: 'aten.*i0.* has no OpenVINO layer",
    ),
    "rows that differ": (
        lambda x, w: torch.unique(pooling(x, "sum"), dim=0),
        IRError,
        r"'aten.unique_dim.*: OpenVINO .* takes what it gives for as long as the axis",
    ),
    "a step that mixes rows": (
        lambda x, w: recurrent_group(lambda row: row - row.mean(), x, name="mixing"),
        TapeError,
        r"'mixing' \(test_files.py, line .*(has other numbers among padding|does not run on padded)",
    ),
    "noise": (lambda x, w: pooling(torch.nn.functional.dropout(x, 0.5)), TapeError, "is random"),
    "len of rows": (
        lambda x, w: apply(lambda v: v / len(v), x),
        TapeError,
        "does not run on padded sequences",
    ),
}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.exhaustive if name == "rows that differ" else ())
        for name, case in REFUSED.items()
    ],
)
def test_what_cannot_be_saved_says_which_layer(make, error, message, tmp_path):
    with Tape() as tape:
        out = make(data("x", Sequence(Dense(3))), data("w", Sequence(Integer(5))))
    with pytest.raises(error, match=message):
        tape.topology(out, prune=True).save(tmp_path / "net.xml")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_holds_no_topology(tmp_path):
    b = NetBuilder("plain")
    b.result(b.parameter("x", torch.float32, (-1, 3)), ("y",))
    write(b.net(), tmp_path / "plain.xml")
    with pytest.raises(TapeError, match=r"plain.xml holds no topology(?s:.)*stepnet.openvino.load reads any"):
        stepnet.load(tmp_path / "plain.xml")


@pytest.mark.parametrize(
    ("old", "new"),
    few(
        [
            ('"level": 1', '"level": 1000000000'),
            ('"level": 1', '"level": 0'),
            ('"total": 0', '"total": 1000000000'),
            ('"total": 0', '"total": 0, "more": 0'),
            ('{"list": ["total"]}', '{"list": ["other"]}'),
            ('{"list": ["total"]}', '{"list": ["total"], "tuple": []}'),
            ('{"list": ["total"]}', "[" * 5000),
        ],
        [('"total": 0', '"total": 1000000000'), ('{"list": ["total"]}', "[" * 5000)],
    ),
)
def test_what_a_file_says_of_a_topology_fits_its_model(old, new, tmp_path):
    path = tmp_path / "net.xml"
    with Tape() as tape:
        total = pooling(data("x", Sequence(Dense(3))), "sum", name="total")
    tape.topology([total]).save(path)
    text, (old, new) = path.read_text(), (part.replace('"', "&quot;") for part in (old, new))
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(TapeError, match="holds no topology"):
        stepnet.load(path)


def test_without_data_there_is_nothing_to_save(tmp_path):
    tape = Tape()
    tape.append(lambda: torch.zeros(2))
    with pytest.raises(TapeError, match="it is no tensor"):
        tape.topology(tape[0]).save(tmp_path / "net.xml")
