"""Modules over sequences: drop-in LSTM, GRU and RNN with torch.nn's parameters; layers of any cells."""

from __future__ import annotations

from .base import RNNBase as RNNBase
from .gru import GRU as GRU
from .lstm import LSTM as LSTM
from .rnn import RNN as RNN
from .stack import Stack as Stack
