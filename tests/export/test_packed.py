"""pack_padded_sequence and pad_packed_sequence in a module: of any lengths in what is written."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import stepnet
from covering import few
from file_formats import FORMATS
from stepnet.errors import IRError
from torch_since import torch_since

BACKEND = "naive"

pytestmark = torch_since("2.13", "its export fixes sizes that are computed with")


class Packs(nn.Module):
    """A layer in both directions, rows that change while they are packed, and a state of one's own."""

    def __init__(self, of=nn):
        super().__init__()
        self.first = of.RNN(3, 4, bidirectional=True, batch_first=True)
        self.between, self.second = nn.Linear(8, 3), of.LSTM(3, 4)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, h = self.first(packed)
        inner = y._replace(data=torch.tanh(self.between(y.data)) + packed.data)
        z, (last, c) = self.second(inner, (h[:1], h[1:] * 0.5))
        z, counts = pad_packed_sequence(z, padding_value=-1.0)
        whole, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return z, counts, whole, last, c, h


class Own(nn.Module):
    """A step of one's own, backwards, from a state in the order of the batch, and one without a state."""

    def __init__(self):
        super().__init__()
        self.cell, self.whole = nn.GRUCell(3, 4), nn.Linear(4, 4)

    def step(self, x, state):
        h, n = state
        h = self.cell(x, h) + n
        return {"y": self.whole(h), "n": n}, (h, n + 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        state = x[:, 0, :1].expand(-1, 4), lengths[:, None] * 0.1
        y, (h, n) = stepnet.recurrent(self.step, packed, state, reverse=True)
        z, _ = stepnet.recurrent(lambda y, s: (y * 2, s), y["y"], ())
        more, counts = pad_packed_sequence(z._replace(data=z.data + y["n"].data), batch_first=True)
        return more, counts, h, n


def given(*lengths, longer=2):
    return torch.randn(len(lengths), max(lengths) + longer, 3), torch.tensor(lengths)


def same(found, wanted):
    tensors = [torch.as_tensor(np.asarray(t)) for t in found]
    torch.testing.assert_close(tensors, list(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make", [partial(Packs, nn), partial(Packs, stepnet.nn), Own], ids=["torch", "stepnet", "own"]
)
@pytest.mark.parametrize("format", few(FORMATS, ["openvino"]))
def test_of_any_lengths(format, make, tmp_path):
    package, runtime, name = FORMATS[format]
    module = make().eval()
    package.save(module, tmp_path / name, given(3, 1, 4))
    read = package.load(tmp_path / name)
    for args in (given(1, longer=0), given(1, 7, 3, 7)):
        with torch.no_grad():
            wanted = module(*args)
            same(read(*args).tuple(), wanted)
        same(runtime(tmp_path / name, [t.numpy() for t in args]), wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("format", FORMATS)
def test_written_again_in_the_other_format(format, tmp_path):
    package, _, name = FORMATS[format]
    module = Packs().eval()
    package.save(module, tmp_path / name, given(3, 1, 4))
    other, runtime, twice = next(FORMATS[f] for f in FORMATS if f != format)
    other.save(package.load(tmp_path / name), tmp_path / twice, given(3, 1, 4))
    for args in (given(1, longer=0), given(1, 7, 3, 7)):
        with torch.no_grad():
            same(runtime(tmp_path / twice, [t.numpy() for t in args]), module(*args))


def numbers(rnn, x, lengths):
    return rnn(pack_padded_sequence(x, lengths.tolist(), True, False))[1]


def among_rows(rnn, x, lengths):
    return rnn(pack_padded_sequence(x, lengths, True, False))[0].data.mean(0)


@pytest.mark.parametrize("function", [numbers, among_rows])
def test_lengths_as_numbers_of_python_and_what_mixes_rows_are_refused(function, tmp_path):
    class Refused(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4)

        def forward(self, *args):
            return function(self.rnn, *args)

    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match="cannot be written"):
        package.save(Refused(), tmp_path / name, given(3, 1, 4))
