"""ONNX files: weights in half the bytes or in a file of their own, and what cannot be written."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import stepnet
from file_formats import Applied
from stepnet import LoDTensor, cells
from stepnet.errors import IRError, MissingExtraError

pytest.importorskip("onnx_ir")


def steps(t, b):
    return (torch.randn(t, b, 3),)


def test_weights_in_half_the_bytes(check, tmp_path):
    module = stepnet.Recurrent(cells.PeepholeLSTM(3, 64))
    check(module, steps)
    whole = (tmp_path / "m.onnx").stat().st_size
    check(module, steps, f16=True, tolerance=5e-3)
    assert (tmp_path / "m.onnx").stat().st_size < 0.6 * whole


def test_a_weight_that_float16_does_not_hold_stays(check):
    weight = torch.full((20, 3), 1e5)
    check(_Times(weight), steps, f16=True)


def test_what_is_computed_in_bfloat16(check):
    """ONNX Runtime has neither its products nor most else: these are float32, each result rounded."""
    check(_Rounds(), steps, tolerance=3e-2)


class _Rounds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4).bfloat16()
        self.rnn = stepnet.Recurrent(nn.GRUCell(4, 4).bfloat16())

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.tanh(self.layer(x)) + 1
            y = torch.softmax(y @ y.mT, -1) @ y
        return self.rnn(self.norm(y.bfloat16()))[0].float()


class _Times(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return x @ self.weight.t()


def test_large_weights_have_a_file_of_their_own(check, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["stepnet.onnx.save"], "LARGE", 1000)
    check(stepnet.Recurrent(cells.LSTM(3, 64)), steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 5000 < (tmp_path / "m.onnx.data").stat().st_size


def test_names_are_taken_once(check):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = stepnet.Recurrent(lambda x, y: (x + torch.sin(y), torch.sin(y) + x))

        def forward(self, x, add):
            y, h = self.rnn(x, add)
            return {"x": y + 1, "add": h * 2, "sin": y, "x_out": y * 3, "scan": h}

    written = check(Named(), lambda t, b: (torch.randn(t, b, 3), torch.randn(b, 3)))
    assert written.inputs == ["x", "add"]
    assert written.outputs == ["x_out", "add_out_out", "sin", "x_out_out", "add_out"]


def test_an_older_file_stays_if_the_new_one_cannot_be_written(check, tmp_path):
    check(nn.Linear(3, 2), steps)
    before = (tmp_path / "m.onnx").read_bytes()
    with pytest.raises(IRError, match="linalg_qr"):
        check(Applied(lambda x: torch.linalg.qr(x).R), steps)
    assert (tmp_path / "m.onnx").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_errors_are_in_the_words_of_onnx(tmp_path):
    ragged = LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])
    module = stepnet.Recurrent(lambda x, s: (torch.lgamma(s), s + x))
    with pytest.raises(
        IRError, match=r"'aten.lgamma.default' \(test_files.py:\d+\) has no ONNX op here: ONNX has no op"
    ):
        stepnet.onnx.save(module, tmp_path / "m.onnx", (ragged, torch.randn(2, 3)))
    with pytest.raises(IRError, match=r"m.xml: the name must end in .onnx"):
        stepnet.onnx.save(module, tmp_path / "m.xml", ragged)
    with pytest.raises(IRError, match="'example_inputs' is missing"):
        stepnet.onnx.save(module, tmp_path / "m.onnx", None)
    with pytest.raises(IRError, match=r"m.onnx: cannot be written: No such file"):
        stepnet.onnx.save(nn.Linear(3, 2), tmp_path / "none" / "m.onnx", torch.randn(2, 3))


def test_without_the_extra_the_error_says_what_brings_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("stepnet.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(MissingExtraError, match=r"(?s)ONNX needs.*stepnet\[onnx\]"):
        __import__("stepnet.onnx")
