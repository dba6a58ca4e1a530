"""Recurrent cells: each a step `(x, state) -> (y, new_state)` with its parameters and its paper."""

from __future__ import annotations

from .all_states import AllStates as AllStates
from .cell import Cell as Cell
from .delta_net import DeltaNet as DeltaNet
from .delta_net import GatedDeltaNet as GatedDeltaNet
from .gla import GLA as GLA
from .gru import GRU as GRU
from .layer_norm_lstm import LayerNormLSTM as LayerNormLSTM
from .learned_state import LearnedInitialState as LearnedInitialState
from .lstm import LSTM as LSTM
from .min_gru import MinGRU as MinGRU
from .min_lstm import MinLSTM as MinLSTM
from .mlstm import MLSTM as MLSTM
from .peephole_lstm import PeepholeLSTM as PeepholeLSTM
from .rg_lru import RGLRU as RGLRU
from .rnn import RNN as RNN
from .rwkv import RWKVTimeMix as RWKVTimeMix
from .selective_ssm import SelectiveSSM as SelectiveSSM
from .slstm import SLSTM as SLSTM
from .variational_dropout import VariationalDropout as VariationalDropout
from .zoneout import Zoneout as Zoneout
