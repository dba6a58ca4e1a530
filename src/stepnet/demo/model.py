"""A classifier of ragged sequences, with its recurrent cell written by hand.

The cell is `LayerNormGRU.step`: what happens at one time step, in plain PyTorch. `stepnet.recurrent` runs
it over utterances of any lengths. There is no padding, no mask, and no loop over time in this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor


class LayerNormGRU(nn.Module):
    """Reads every sequence from one end to the other.

    A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078) with layer normalisation of what comes from
    the input and from the state (Ba et al. 2016, arXiv:1607.06450).
    """

    def __init__(self, features: int, hidden: int, *, reverse: bool = False) -> None:
        super().__init__()
        self.hidden, self.reverse = hidden, reverse
        self.from_input = nn.Sequential(nn.Linear(features, 3 * hidden), nn.LayerNorm(3 * hidden))
        self.from_state = nn.Sequential(nn.Linear(hidden, 3 * hidden), nn.LayerNorm(3 * hidden))

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One time step: n frames x [n, features] and states h [n, hidden] -> (output, new state)."""
        x_reset, x_update, x_new = self.from_input(x).chunk(3, dim=1)
        h_reset, h_update, h_new = self.from_state(h).chunk(3, dim=1)
        reset = torch.sigmoid(x_reset + h_reset)
        update = torch.sigmoid(x_update + h_update)
        candidate = torch.tanh(x_new + reset * h_new)
        h = update * h + (1 - update) * candidate
        return h, h

    def forward(self, sequences: LoDTensor) -> LoDTensor:
        """The output at every frame, [frames, hidden], with the LoD of the sequences."""
        start = sequences.values.new_zeros(len(sequences), self.hidden)
        outputs, _last_state = stepnet.recurrent(self.step, sequences, start, reverse=self.reverse)
        return outputs


class SpeakerNet(nn.Module):
    """Two readers, one from each end; their outputs, averaged over each utterance, name the speaker."""

    def __init__(self, features: int, hidden: int, speakers: int, *, noise: float, dropout: float) -> None:
        super().__init__()
        self.forwards = LayerNormGRU(features, hidden)
        self.backwards = LayerNormGRU(features, hidden, reverse=True)
        self.to_speakers = nn.Linear(2 * hidden, speakers)
        self.noise, self.dropout = noise, dropout

    def forward(self, utterances: LoDTensor) -> Tensor:
        """The score of each speaker for each utterance, [utterances, speakers]."""
        if self.training:
            utterances = utterances.map(lambda frames: frames + self.noise * torch.randn_like(frames))
        readings = [reader(utterances) for reader in (self.forwards, self.backwards)]
        summary = torch.cat([stepnet.sequence_pool(reading, "mean") for reading in readings], dim=1)
        return self.to_speakers(F.dropout(summary, self.dropout, self.training))
