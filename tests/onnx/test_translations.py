"""Modules with recurrences in them by torch's own exporter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from covering import few
from stepnet import LoDTensor, cells

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxscript")
import stepnet.onnx

OPEN = torch.export.Dim.DYNAMIC
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def export(module, path, *args, dims):
    program = torch.onnx.export(
        module.eval(), args, dynamo=True, custom_translation_table=stepnet.onnx.translations(),
        dynamic_shapes=dims, verbose=False,
    )  # fmt: skip
    program.save(path)


def same(module, written, *args):
    with torch.no_grad():
        expected = module(*args)
    for a, b in zip(written(*args), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Tagger(nn.Module):
    """An own cell and a known one, torch's layers around them, a state that comes in."""

    def __init__(self):
        super().__init__()
        self.own = stepnet.Recurrent(cells.MinGRU(3, 4))
        self.known = stepnet.nn.GRU(4, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x, h):
        y, h = self.own(x, h * 2)
        z, _ = self.known(y)
        return self.out(z), h


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = stepnet.Recurrent(cells.MinGRU(3, 4), reverse=True)

    def forward(self, rows, offsets):
        y, h = self.rnn(LoDTensor(rows, [offsets]))
        return y.values, h


def steps(t, b):
    return torch.randn(t, b, 3), torch.randn(b, 4)


def rows(*lengths):
    return torch.randn(sum(lengths), 3), torch.tensor([0, *np.cumsum(lengths)])


KINDS = {  # loops, sizes that are open, what makes inputs, and of which sizes
    "steps": (Tagger, 2, ({0: OPEN, 1: OPEN}, {0: OPEN}), steps, ((4, 2), (1, 1), (9, 2))),
    "rows": (Rows, 1, ({0: OPEN}, {0: OPEN}), rows, ((4, 0, 5), (1,), (5, 0, 1, 7))),
}


@pytest.mark.parametrize("kind", few(KINDS, ["rows"]))
def test_any_number_of_steps_and_sequences(kind, tmp_path, opened):
    make, loops, dims, inputs, (example, *others) = KINDS[kind]
    module = make()
    export(module, tmp_path / "m.onnx", *inputs(*example), dims=dims)
    written = opened(tmp_path / "m.onnx")
    assert written.types.count("Scan") == loops
    for sizes in others:
        same(module, written, *inputs(*sizes))


@pytest.mark.exhaustive  # torch tries in several ways
def test_without_translations_the_remedy_is_told(tmp_path):
    with pytest.raises(torch.onnx.OnnxExporterError) as error:
        torch.onnx.export(Tagger().eval(), steps(4, 2), tmp_path / "m.onnx", dynamo=True, verbose=False)
    assert "custom_translation_table=stepnet.onnx.translations()" in str(error.value.__cause__)
