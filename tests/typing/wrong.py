"""Mistakes that a type checker is to find: each line that is marked, and no other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Recurrent, recurrent, set_backend, while_loop

x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
h0 = torch.zeros(2, 1)


def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h


def no_pair(x: Tensor, h: Tensor) -> Tensor:
    return h


recurrent(step, x, h0, backend="cuda")  # wrong
recurrent(42, x, h0)  # wrong
recurrent(no_pair, x, h0)  # wrong
recurrent(step, x, (h0, h0))  # wrong
recurrent(step, x, h0, reverse="yes")  # wrong
recurrent(step, x, h0, revers=True)  # wrong
recurrent(nn.LSTMCell(1, 2), x, h0)[1][0].nonsense()  # wrong
recurrent(stepnet.cells.LSTM(1, 2), x)[1].sum()  # wrong
Recurrent(42)  # wrong
Recurrent(step, backend="cuda")  # wrong
Recurrent(nn.GRUCell(1, 2))(x, (h0, h0))  # wrong
Recurrent(nn.LSTMCell(1, 2))(x)[1].sum()  # wrong
stepnet.nn.LSTM(1, 2)(x, h0)  # wrong
stepnet.nn.GRU(1, 2)(x)[1][0].nonsense()  # wrong
set_backend("cuda")  # wrong
while_loop(lambda i: i < 3, lambda i: (i + 1, i), (torch.tensor(0),))  # wrong
while_loop(42, lambda i: (i,), (torch.tensor(0),))  # wrong
LoDTensor.from_lengths([1.0], [[1]])  # wrong
x.values = torch.zeros(4, 1)  # wrong
print(x.values.nonsense)  # wrong
