"""Mistakes that a type checker is to find: each line that is marked, and no other. It tells of marks where it
finds nothing."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Recurrent, recurrent, set_backend, truncated, while_loop

x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
h0 = torch.zeros(2, 1)


def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h


def no_pair(x: Tensor, h: Tensor) -> Tensor:
    return h


def ticking(_: None, h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h


recurrent(step, x, h0, backend="cuda")  # pyright: ignore
recurrent(42, x, h0)  # pyright: ignore
recurrent(no_pair, x, h0)  # pyright: ignore
recurrent(step, x, (h0, h0))  # pyright: ignore
recurrent(step, x, h0, reverse="yes")  # pyright: ignore
recurrent(step, x, h0, revers=True)  # pyright: ignore
recurrent(nn.LSTMCell(1, 2), x, h0)[1][0].nonsense()  # pyright: ignore
recurrent(stepnet.cells.LSTM(1, 2), x)[1].sum()  # pyright: ignore
recurrent(step, x, h0, resets="yes")  # pyright: ignore
recurrent(step, x, h0, checkpoint="some")  # pyright: ignore
print(recurrent(step, x, h0, scopes=True)[2].nonsense)  # pyright: ignore
recurrent(ticking, None, h0, steps="3")  # pyright: ignore
print(recurrent(ticking, None, h0, steps=3)[0].lod)  # pyright: ignore
Recurrent(42)  # pyright: ignore
Recurrent(step, backend="cuda")  # pyright: ignore
Recurrent(nn.GRUCell(1, 2))(x, (h0, h0))  # pyright: ignore
Recurrent(nn.LSTMCell(1, 2))(x)[1].sum()  # pyright: ignore
Recurrent(step)(x, h0)[2]  # pyright: ignore
print(Recurrent(step, scopes=True)(x, h0)[2].nonsense)  # pyright: ignore
stepnet.nn.LSTM(1, 2)(x, h0)  # pyright: ignore
stepnet.nn.GRU(1, 2)(x)[1][0].nonsense()  # pyright: ignore
stepnet.nn.GRU(1, 2)(x, resets=3)  # pyright: ignore
stepnet.nn.RNN(1, 2, nonlinearity="sigmoid")  # pyright: ignore
stepnet.nn.Stack([42])  # pyright: ignore
stepnet.explain(42, x)  # pyright: ignore
print(stepnet.onnx.nonsense)  # pyright: ignore
set_backend("cuda")  # pyright: ignore
while_loop(lambda i: i < 3, lambda i: (i + 1, i), (torch.tensor(0),))  # pyright: ignore
while_loop(42, lambda i: (i,), (torch.tensor(0),))  # pyright: ignore
LoDTensor.from_lengths([1.0], [[1]])  # pyright: ignore
LoDTensor.from_sequences(3)  # pyright: ignore
stepnet.data.RowBudgetSampler("abc", rows=3)  # pyright: ignore
stepnet.data.RowBudgetSampler([3, 1], row=3)  # pyright: ignore
print(stepnet.errors.StepErr)  # pyright: ignore
stepnet.recurent(step, x, h0)  # pyright: ignore
x.values = torch.zeros(4, 1)  # pyright: ignore
print(x.values.nonsense)  # pyright: ignore
for piece in truncated(x, h0, rows=2):
    piece.state = 3  # pyright: ignore
