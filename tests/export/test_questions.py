"""Files of steps that ask all rows of a step in Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from stepnet.errors import IRError

pytest.importorskip("onnx")
pytest.importorskip("openvino")
import stepnet.onnx
import stepnet.openvino


def first_or_most(x, state):
    """As the sLSTM of the xLSTM paper's code has it."""
    h, n = state
    i = torch.sigmoid(x + h)
    n = i if torch.all(n == 0) else torch.maximum(n, i)
    return h, (torch.tanh(x + h) / n, n)


def of_all_rows(x, state):
    """Rows disagree, ways are within ways, and one writes what it was given."""
    h, n = state
    h = h + x
    if (h > 1).sum() > 0:
        h = h * 0.5
        if x.mean() > 0:
            n *= 3.0
    else:
        h = h - 1
    return h + n, (h, n + 1)


class Over(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x):
        zeros = x.new_zeros(x.shape[1], x.shape[2])
        return stepnet.recurrent(self.step, x, (zeros, zeros + 0), backend="naive")[0]


@pytest.mark.parametrize(
    ("step", "kind"),
    few([(first_or_most, "onnx"), (of_all_rows, "openvino"), (of_all_rows, "onnx")], [(of_all_rows, "onnx")]),
)
def test_a_file_asks_all_rows_of_a_step(step, kind, tmp_path):
    torch.manual_seed(0)
    files, path = getattr(stepnet, kind), tmp_path / f"m.{'onnx' if kind == 'onnx' else 'xml'}"
    model = Over(step)
    files.save(model, path, torch.randn(3, 5, 2))
    loaded = files.load(path)
    for x in (
        torch.randn(7, 3, 2),
        torch.randn(4, 1, 2),
        torch.full((2, 3, 2), torch.nan),
        torch.zeros(4, 2, 2),
    ):
        torch.testing.assert_close(loaded(x)[0], model(x), equal_nan=True)


def raises(x, state):
    if (x > 9).any():
        raise ValueError("too large")
    return x, state


def asks_on_and_on(x, state):
    while (x > 1).any():
        x = x / 2
    return x, state


@pytest.mark.parametrize(("step", "why"), [(raises, "too large"), (asks_on_and_on, "more than 6 ways")])
def test_what_a_file_cannot_say_is_told(step, why, tmp_path, capfd):
    with pytest.raises(IRError, match=why) as told:
        stepnet.openvino.save(Over(step), tmp_path / "m.xml", torch.randn(3, 2, 2))
    assert "torch.where" in str(told.value)
    assert "aten" not in "".join(capfd.readouterr())


def surprised(x, state):
    """As torch's own, distributions check their arguments unless they are told not to."""
    h, n = state
    of = torch.distributions.Normal(h, n.exp())
    return of.log_prob(x), (torch.tanh(of.mean + x), n)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ragged", [False, True])
def test_what_distributions_ask_only_to_raise_is_left_out(ragged, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # Dynamo switches it off

    class Model(nn.Module):
        def forward(self, x):
            zeros = torch.zeros(len(x.lengths()) if ragged else x.shape[1], 2)
            return stepnet.recurrent(surprised, x, (zeros, zeros + 0), backend="naive")[0]

    def some(*lengths):
        if ragged:
            return stepnet.LoDTensor.from_lengths(torch.randn(sum(lengths), 2), [list(lengths)])
        return torch.randn(lengths[0], len(lengths), 2)

    stepnet.onnx.save(Model(), tmp_path / "m.onnx", some(2, 4))
    loaded, x = stepnet.onnx.load(tmp_path / "m.onnx"), some(5, 1, 3)
    want = Model()(x)
    found = loaded(x.to_padded(batch_first=True)[0], x.lengths())[0] if ragged else loaded(x)[0]
    torch.testing.assert_close(found, want.to_padded(batch_first=True)[0] if ragged else want)
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))
