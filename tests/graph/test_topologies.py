"""A topology of a tape in the graphs of `torch.compile` and `torch.export`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from stepnet import LoDTensor, layers
from stepnet.errors import TapeError
from stepnet.layers import Integer, Sequence
from stepnet.tape import Tape


def classifier():
    with Tape() as tape:
        words = layers.data("words", Sequence(Integer(9)))
        read = layers.gru(layers.embedding(words, 3), 3)
        scores = layers.fc(layers.pooling(read, "max"), 2)
        cost = layers.classification_cost(scores, layers.data("label", Integer(2)))
    return tape.topology((cost, scores))


class Costs(nn.Module):
    def __init__(self):
        super().__init__()
        self.topology = classifier()

    def forward(self, values, offsets, label):
        (cost, scores), _ = self.topology(words=LoDTensor(values, [offsets]), label=label)
        return cost, scores


def batch(*lengths):
    words = LoDTensor.from_lengths(torch.randint(9, (sum(lengths),)), [[*lengths]])
    return words.values, words.lod[0], torch.randint(2, (len(lengths),))


def found(call, model, given):
    model.zero_grad()
    cost, scores = call(*given)
    cost.backward()
    return cost.detach(), scores.detach(), *(p.grad for p in model.parameters())


def test_compiled():
    model = Costs()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for given in (batch(4, 0, 3), batch(2, 5)):
        torch.testing.assert_close(found(compiled, model, given), found(model, model, given))
    values, offsets, label = batch(4, 3)
    with pytest.raises(RuntimeError, match="data 'words' has an integer out of range, which is 0 to 8"):
        compiled(values + 9, offsets, label)


def test_exported():
    model = Costs()
    n, b = Dim("n"), Dim("b")
    sizes = {"values": {0: n}, "offsets": {0: b + 1}, "label": {0: b}}
    program = export(model, batch(4, 0, 3), dynamic_shapes=sizes).module()
    for given in (batch(4, 0, 3), batch(2, 5)):
        torch.testing.assert_close(program(*given), model(*given))


def test_evaluators_are_no_part_of_what_is_exported():
    with Tape() as tape:
        scores, label = layers.data("x", layers.Dense(2)) * 2, layers.data("label", Integer(2))
        layers.classification_error(scores, label, name="error")
        topology = tape.topology(cost := layers.classification_cost(scores, label))
    given = {"x": torch.randn(3, 2), "label": torch.tensor([0, 1, 1])}
    expected, metrics = topology(**given)
    error = metrics["error"]
    value, none = export(topology, (), given).module()(**given)
    torch.testing.assert_close(value, expected)
    assert (none, topology.metrics()["error"]) == ({}, error)
    with pytest.raises(TapeError, match=r"evaluators are not exported, and \['error'\] are outputs"):
        export(tape.topology([cost, "error"]), (), given)
