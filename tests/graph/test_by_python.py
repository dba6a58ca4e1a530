"""What is no part of a graph of Dynamo is one call between two graphs, is right, and says why."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

import stepnet
from covering import few
from stepnet import BackEdge, InputPort, LoDTensor, OutputPort, TensorArray, TensorIterator, cells, decode
from stepnet.data import in_graph

cell = cells.GRU(3, 3)


def while_loop(x):
    return stepnet.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.tanh(x)), (torch.tensor(0), x))[
        1
    ]


def frame(x):
    states, inputs = TensorArray(size=len(x)), TensorArray(unstack_from=x)
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == len(x))
        states.write(s, torch.tanh(states.read(s - 1, torch.zeros(2, 3)) + inputs.read(s)))
        loop.update(s, s + 1)
    return states.stack()


ports = [InputPort("x", "x"), InputPort("h0", "h"), OutputPort("y", 1, axis=0), OutputPort("h", 0)]
ports[0] = InputPort("x", "x", axis=0)
iterator = TensorIterator(lambda x, h: (h + x[0], (h + x[0])[None]), ports, [BackEdge(0, "h")])


def ported(x):
    return iterator(x, torch.zeros(2, 3))["y"]


def next_word(word, h):
    h = torch.tanh(h + word.to(h.dtype).unsqueeze(1))
    return h, h


def greedy(x):
    return decode.greedy(next_word, x[0], bos=0, eos=2, max_length=5)[1]


def beam_search(x):
    return decode.beam_search(next_word, x[0], bos=0, eos=2, beam_size=2, max_length=5)[1].values


def truncated(x):
    found = []
    for piece in stepnet.truncated(x, torch.zeros(2, 3), rows=2):
        y, piece.state = stepnet.recurrent(cell, piece.x, piece.state)
        found.append(y)
    return torch.cat(found)


stream = stepnet.stream(stepnet.Recurrent(cell))


def pushed(x):
    own = stream.open()
    y = stream.push({own: x[:, 0]})[own]
    stream.close(own)
    return y


def row_mean(x):
    return stepnet.distributed.row_mean(x.sum(), x.shape[0])


CALLS = [while_loop, frame, ported, greedy, beam_search, truncated, pushed, row_mean]


def held_against_python(call, *inputs):
    with pytest.raises(Unsupported, match="stepnet: "):
        torch.compile(call, fullgraph=True, backend="eager")(*inputs[0])
    counters.clear()
    compiled = torch.compile(call, backend="eager")
    for given in inputs:
        torch.testing.assert_close(compiled(*given), call(*given))


@pytest.mark.parametrize("call", few(CALLS, [frame, pushed, row_mean]), ids=lambda call: call.__name__)
def test_a_call_between_graphs(call):
    held_against_python(call, (torch.randn(4, 2, 3),), (torch.randn(5, 2, 3),))
    if call is not truncated:  # its recurrences are in graphs of their own
        assert counters["frames"]["total"] <= 8  # the call and what is left of it, for two lengths


@pytest.mark.parametrize("ending", few(["xml", "onnx"], ["onnx"]))
def test_a_model_from_a_file(ending, tmp_path):
    path = tmp_path / f"model.{ending}"
    library = stepnet.openvino if ending == "xml" else pytest.importorskip("stepnet.onnx")
    library.save(stepnet.Recurrent(cell), path, (torch.randn(4, 2, 3),))
    model = library.load(path)

    def call(x):
        return tuple(model(x))

    held_against_python(call, (torch.randn(4, 2, 3),), (torch.randn(5, 1, 3),))
    assert counters["frames"]["total"] <= 8
    if in_graph.CAN_CAPTURE:
        with pytest.raises(RuntimeError, match="stepnet: a model from a file computes sizes in Python"):
            torch.compile(model, backend="eager", fullgraph=True)(torch.randn(4, 2, 3))


class _Numbers(nn.Module):
    def forward(self, x, level, axis, rows, cut):
        y, _ = stepnet.recurrent(cell, x, level=level, checkpoint=rows)
        grid, _ = stepnet.recurrent(cell, x.values.view(3, 2, 3), axis=axis, detach_every=cut)
        return y.values, grid


def test_numbers_that_dynamo_leaves_open():
    x = LoDTensor.from_lengths(torch.randn(6, 3, requires_grad=True), [[4, 0, 2]])
    compiled = torch.compile(_Numbers(), backend="eager", dynamic=True, fullgraph=True)
    for numbers in ((-1, 0, 1, 2), (0, 1, 2, 1)):
        found = []
        for call in (compiled, _Numbers()):
            out = call(x, *numbers)
            (gradient,) = torch.autograd.grad(sum(t.square().sum() for t in out), x.values)
            found.append((*out, gradient))
        torch.testing.assert_close(found[0], found[1])


def test_floats_that_dynamo_leaves_open_are_computed_with():
    """They are tensors of the graph, of which the step asks `.item()`."""

    def mixed(x, rate):
        def step(x, h):
            h = (1 - rate) * h + rate * torch.tanh(x)
            return h, h

        return stepnet.recurrent(step, x, torch.zeros(2, 3), backend="c")[0]

    compiled, x = torch.compile(mixed, backend="eager", fullgraph=True), torch.randn(4, 2, 3)
    for rate in (0.5, 0.25, 0.75):
        torch.testing.assert_close(compiled(x, rate), mixed(x, rate))


def test_padding_by_numbers_that_change():
    x = LoDTensor.from_lengths(torch.randn(6, 3), [[4, 0, 2]])
    compiled = torch.compile(lambda x, value: x.to_padded(value)[0], backend="eager", dynamic=True)
    for value in (0.5, 1.5, float("inf")):
        torch.testing.assert_close(compiled(x, value), x.to_padded(value)[0])


@pytest.mark.exhaustive
def test_a_stepnet_over_sequences_is_part_of_a_graph():
    def read(scope):
        scope["y"], scope["h"] = cell(scope["x"], scope["before"])

    def call(x):
        scope = stepnet.Scope({"x": x})
        memory = stepnet.Memory("h", pre_name="before", shape=(3,))
        last = stepnet.dynamic_recurrent(read, scope, ["x"], ["y"], [memory])
        return scope["y"].values, last["h"]

    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
    for lengths in ([2, 3], [0, 4, 2]):
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), 3), [lengths])
        torch.testing.assert_close(compiled(x), call(x))
