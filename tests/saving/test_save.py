"""Saved topologies give the same numbers when they are loaded, and in OpenVINO, at other lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepnet
from covering import few
from saved_modules import plain_loops
from stepnet import LoDTensor, Recurrent, cells, sequence_softmax
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    StaticInput,
    addto,
    apply,
    concat,
    data,
    dropout,
    embedding,
    expand,
    fc,
    first,
    gru,
    last,
    lstm,
    memory,
    pooling,
    recurrent_group,
    rnn,
)
from stepnet.saving.dense import Leaf
from stepnet.saving.padded import PaddedLoD
from stepnet.tape import Tape

BATCHES = {
    0: [4, 1],
    1: [[[2, 5, 1]], [[3]], [[1, 0, 7, 2]]],
    2: [[[2, 0, 3], [1, 4, 2, 6, 3]], [[1], [6]], [[2, 1], [0, 3, 1]]],
}


def draw(type, lengths):
    rows = lengths if type.level == 0 else sum(lengths[-1])
    values = (
        torch.randint(type.classes, (rows,)) if isinstance(type, Integer) else torch.randn(rows, type.size)
    )
    return LoDTensor.from_lengths(values, lengths) if type.level else values


def in_openvino(path, types, outputs):
    """What runs the file by OpenVINO itself, called with LoDTensors and tensors by name."""
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return elsewhere(compiled, types, outputs)


def in_onnx_runtime(path, types, outputs):
    """The same by ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # others spin while they wait
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return elsewhere(
        lambda tensors: dict(zip(names, session.run(None, tensors), strict=True)), types, outputs
    )


def elsewhere(compiled, types, outputs):
    """A runtime of padded arrays by name, called with LoDTensors and tensors by name."""

    def run(**feeds):
        tensors = {}
        for name, type in types.items():
            padded = PaddedLoD.of(feeds[name], 1) if type.level else None
            parts = (padded.grid, *padded.lengths) if padded else (feeds[name],)
            tensors |= zip(Leaf(name, type.level).tensors, (p.numpy() for p in parts), strict=True)
        found = compiled(tensors)
        values = []
        for leaf in outputs:
            grid, *lengths = (torch.from_numpy(np.array(found[text])) for text in leaf.tensors)
            values.append(PaddedLoD(grid, tuple(lengths)).ragged() if lengths else grid)
        return values

    return run


def simple(x):
    return fc([x, memory("h", 4)], 4, act="tanh", name="h")


def documents():
    words = embedding(data("words", Sequence(Sequence(Integer(9)))), 4)
    sentences = pooling(lstm(words, 5), "max")
    scores = fc(concat([pooling(gru(sentences, 4, reverse=True), "mean"), last(sentences)]), 3)
    return torch.softmax(scores, -1)


def static():
    x, topic = data("x", Sequence(Dense(3))), data("topic", Dense(2))

    def step(row, topic):
        h = fc([row, topic, memory("h", 4, boot=start)], 4, act="tanh", name="h")
        return h, fc(h, 2)

    start = fc(topic, 4)
    return tuple(recurrent_group(step, [x, StaticInput(topic)], name="group"))


def attention():
    """Two inputs with sequences of their own, one seen whole at every step of the other."""
    x, notes = data("x", Sequence(Dense(3))), data("notes", Sequence(Dense(2)))

    def step(row, notes):
        before = memory("h", 4)
        seen = addto([notes, expand(fc(before, 2), notes)], act="tanh")
        weights = apply(sequence_softmax, fc(seen, 1))
        return fc([row, pooling(notes * weights, "sum")], 4, act="tanh", name="h")

    return recurrent_group(step, [x, StaticInput(notes)], name="group")


def sentences():
    """A group over sentences whose step runs over words."""
    return recurrent_group(
        lambda words: fc([last(lstm(words, 3)), memory("end", 4)], 4, act="tanh", name="end"),
        data("x", Sequence(Sequence(Dense(3)))),
    )


def layer_norm_lstm(x):
    y, (h, _) = apply(Recurrent(cells.LayerNormLSTM(3, 4), reverse=True), x)
    return [y, h]


def poolings():
    x = data("x", Sequence(Dense(3)))
    return [pooling(x, how) for how in ("sum", "mean", "sqrt", "max")]


class Blend(torch.nn.Module):
    """A step of two inputs."""

    def initial_state(self, n):
        return torch.zeros(n, 3)

    def forward(self, x, h):
        h = torch.tanh(x[0] + 0.5 * h)
        return h * x[1], h


def called():
    """Recurrences that a function of the user's calls: backwards, of two inputs, without a state."""
    x = data("x", Sequence(Dense(3)))
    y = apply(lambda a, b: stepnet.recurrent(Blend(), (a, b), reverse=True)[0] * 2, x, torch.sin(x))
    cell = torch.nn.GRUCell(3, 4)
    return apply(lambda a: stepnet.recurrent(cell, a)[0], y), stepnet.map_fn(lambda v: v.softmax(-1), y)


TAPES = {
    "rows": lambda: fc(fc(data("x", Dense(3)), 4, act="relu"), 2, act="softmax"),
    "functions": lambda: torch.relu(data("x", Sequence(Dense(3))) * 2 - 1).sum(-1) ** 2,
    "documents": documents,
    "lstm": lambda: lstm(data("x", Sequence(Dense(3))), 4),
    "lstm, reverse": lambda: lstm(data("x", Sequence(Sequence(Dense(3)))), 4, reverse=True),
    "gru": lambda: last(gru(data("x", Sequence(Dense(3))), 4)),
    "rnn": lambda: first(rnn(data("x", Sequence(Dense(3))), 4, reverse=True)),
    "pooling": poolings,
    "group": lambda: recurrent_group(simple, data("x", Sequence(Dense(3)))),
    "group, reverse": lambda: recurrent_group(simple, data("x", Sequence(Dense(3))), reverse=True),
    "static": static,
    "expand": lambda: (lambda x: fc([x, expand(pooling(x, "max"), x)], 2))(data("x", Sequence(Dense(3)))),
    "dropout": lambda: dropout(fc(data("x", Dense(3)), 2), 0.5),
    "cell": lambda: layer_norm_lstm(data("x", Sequence(Dense(3)))),
    "attention": attention,
    "sentences": sentences,
    "called": called,
}


def flat(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def feeds_for(types, number):
    level = max(type.level for type in types.values())
    lengths = BATCHES[level][number]
    n = lengths if level == 0 else len(lengths[0])
    own = {"notes": [[(3, 1, 4, 2)[i % 4] for i in range(n)]]}
    return {
        name: draw(type, own.get(name, lengths if type.level == level else n)) for name, type in types.items()
    }


# What the others show is in these: an LSTM, a GRU and last rows in documents, a group in static.
ALONE = ["documents", "rnn", "pooling", "static", "dropout", "cell"]
# What ONNX has otherwise than OpenVINO are loops, rows of sequences and lengths.
IN_ONNX = ["cell"]


@pytest.fixture(scope="module", params=few(TAPES, ALONE))
def saved(request, tmp_path_factory):
    """A topology, what it is when it is loaded, where it was saved, and batches with what it gives for them:
    once for all tests."""
    torch.manual_seed(1)
    with Tape() as tape:
        out = TAPES[request.param]()
    net = tape.topology(out).eval()
    path = tmp_path_factory.mktemp("saved") / "net.xml"
    net.save(path)
    loaded = stepnet.load(path)
    batches = []
    for number in range(len(BATCHES[max(t.level for t in loaded.types.values())])):
        feeds = feeds_for(loaded.types, number)
        with torch.no_grad(), plain_loops():
            batches.append((feeds, flat(net(**feeds)[0])))
    return net, loaded, path, [Leaf(item.name, item.lod_level) for item in flat(out)], batches


def check(batches, run):
    for feeds, expected in batches:
        with torch.no_grad(), plain_loops():
            got = run(**feeds)
        for ours, theirs in zip(got, expected, strict=True):
            if isinstance(theirs, LoDTensor):
                assert ours.recursive_sequence_lengths() == theirs.recursive_sequence_lengths()
                ours, theirs = ours.values, theirs.values
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_same_numbers_at_other_lengths_when_it_is_loaded(saved):
    net, loaded, _, _, batches = saved
    assert set(loaded.inputs) == set(net.inputs)
    check(batches, lambda **feeds: flat(loaded(**feeds)[0]))


def test_the_same_numbers_at_other_lengths_in_openvino(saved):
    _, loaded, path, outputs, batches = saved
    check(batches, in_openvino(path, loaded.types, outputs))


@pytest.mark.parametrize("saved", few(TAPES, IN_ONNX), indirect=True, scope="module")
def test_the_same_numbers_at_other_lengths_in_onnx_runtime(saved, tmp_path):
    pytest.importorskip("onnx_ir")
    net, loaded, _, outputs, batches = saved
    net.save(tmp_path / "net.onnx")
    check(batches, in_onnx_runtime(tmp_path / "net.onnx", loaded.types, outputs))
