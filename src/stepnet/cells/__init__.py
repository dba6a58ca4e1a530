"""Recurrent cells: each a step `(x, state) -> (y, new_state)` with its parameters and its paper."""

from __future__ import annotations

from .all_states import AllStates as AllStates
from .cell import Cell as Cell
from .gru import GRU as GRU
from .layer_norm_lstm import LayerNormLSTM as LayerNormLSTM
from .learned_state import LearnedInitialState as LearnedInitialState
from .lstm import LSTM as LSTM
from .min_gru import MinGRU as MinGRU
from .peephole_lstm import PeepholeLSTM as PeepholeLSTM
from .rnn import RNN as RNN
from .slstm import SLSTM as SLSTM
from .variational_dropout import VariationalDropout as VariationalDropout
from .zoneout import Zoneout as Zoneout
