"""Drop-in LSTM, GRU and RNN: torch.nn's parameters and calls, and sequences of any length, none included."""

from __future__ import annotations

from .base import RNNBase as RNNBase
from .gru import GRU as GRU
from .lstm import LSTM as LSTM
from .rnn import RNN as RNN
