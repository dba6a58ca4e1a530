"""`torch.export.draft_export`: numbers beside what is traced, on which torch runs each operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config
from torch.export import Dim, export

from stepnet import LoDTensor, Recurrent, cells, recurrent, sequence_pool, sequence_reverse, sequence_softmax

BACKEND = "eager"


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.cell = Recurrent(cells.LSTM(3, 4), reverse=True), nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x)
        return recurrent(self.cell, y, y.new_zeros(y.shape[1:]), resets=y[..., 0] > 0)[0]


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = Recurrent(cells.GRU(3, 4))

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return sequence_pool(self.rnn(LoDTensor(rows, [offsets]))[0], "mean")


class Sequences(nn.Module):
    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return sequence_pool(sequence_reverse(sequence_softmax(LoDTensor(rows, [offsets]))), "max")


def dense(steps: int, n: int) -> tuple[Tensor]:
    return (torch.randn(steps, n, 3),)


def ragged(*lengths: int) -> tuple[Tensor, Tensor]:
    return torch.randn(sum(lengths), 3), torch.tensor([0, *lengths]).cumsum(0)


MODELS: dict[str, tuple[type[nn.Module], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "dense": (Dense, dense(5, 3), dense(4, 2)),
    "ragged": (Ragged, ragged(2, 5), ragged(3, 0, 6)),
    "sequences": (Sequences, ragged(2, 5), ragged(3, 0, 6)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_program_of_export(kind: str) -> None:
    """What an operator runs on those numbers is no part of the program."""
    make, given, later = MODELS[kind]
    model = make()
    sizes = tuple([dict.fromkeys(range(2 if kind == "dense" else 1), Dim.AUTO)] * len(given))
    drafting: Any = config.patch(fake_tensor_propagate_real_tensors=True)  # the tool itself leaves files open
    with drafting:
        drafted = export(model, given, dynamic_shapes=sizes)
    names = [[str(node.target) for node in p.graph.nodes if node.op == "call_function"]
             for p in (drafted, export(model, given, dynamic_shapes=sizes))]  # fmt: skip
    assert names[0].count("stepnet.run.default") == names[1].count("stepnet.run.default") > 0
    for args in (given, later):
        torch.testing.assert_close(drafted.module()(*args), model(*args))
