"""What stands in the padding of ragged inputs does not matter, also where whole numbers are indices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from covering import few
from file_formats import FORMATS
from stepnet import LoDTensor, recurrent
from torch_since import torch_since

BACKEND = "naive"

pytestmark = torch_since("2.13", "its export fixes sizes that are computed with")


class Reads(nn.Module):
    """Tokens as indices of a table, outside of a step and in it, of classes, and as what is divided by."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(4, 3), nn.GRUCell(3, 3)

    def step(self, token, h):
        h = self.cell(self.table(token), h)
        return h, h

    def forward(self, x):
        y, h = recurrent(self.step, x, torch.zeros(len(x), 3))
        loss = F.cross_entropy(self.table(x.values), x.values - 1, reduction="none")
        return y, h, LoDTensor.of(loss + 100 // x.values, x.structure)


@pytest.mark.parametrize("fill", [0, -100, 77])
@pytest.mark.parametrize("format", few(FORMATS, ["onnx"]))
def test_tokens(format, fill, tmp_path):
    package, runtime, name = FORMATS[format]
    module = Reads().eval()

    def given(*lengths):
        return LoDTensor.from_lengths(torch.randint(1, 4, (sum(lengths),)), [lengths])

    package.save(module, tmp_path / name, given(4, 2, 3))
    x = given(2, 0, 5)
    arrays = x.to_padded(fill)[0], x.lengths()
    with torch.no_grad():
        y, h, loss = module(x)
        wanted = [y.to_padded()[0], h, loss.to_padded()[0]]
        read = list(package.load(tmp_path / name)(*arrays).tuple())
    found = [torch.tensor(t) for t in runtime(tmp_path / name, [t.numpy() for t in arrays])]
    torch.testing.assert_close([found, read], [wanted, wanted], rtol=1e-5, atol=1e-5)
