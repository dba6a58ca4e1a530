"""Sizes that follow from how many sequences there are, as twice as many: of any number in what is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from covering import few
from file_formats import FORMATS
from stepnet import LoDTensor, sequence_pool
from stepnet.errors import IRError
from torch_since import torch_since

BACKEND = "naive"

pytestmark = torch_since("2.13", "its export fixes sizes that are computed with")
TOKEN = torch.randn(1, 12)
ATTENDS = nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)


def right(h):
    """What has one row for each sequence, in shapes that follow from how many there are."""
    n = h.shape[0]
    parts, twice = h.reshape(-1, 3, 2), torch.cat([h, h * 2])
    products = h @ h.T
    folded = h.view(n, 3, 4)
    return {
        "flat": h.flatten(),
        "heads": torch.bmm(parts, parts.transpose(1, 2)).reshape(n, -1),
        "heads by number": h.reshape(n * 2, 3, 2).sum(1),
        "attended": ATTENDS(folded, folded, folded)[0],
        "steps": h[1:] - h[:-1],
        "every other": h[::2],
        "halves": twice.chunk(2)[1] + twice.split([n, n])[0],
        "folded": twice.reshape(2, n, -1).sum(0),
        "interleaved": torch.repeat_interleave(h, 3, 0).view(n, 3, -1).mean(1),
        "tokens": TOKEN.repeat(n, 1) + h,
        "turns": torch.eye(12).repeat(n, 1, 1) @ h[:, :, None],
        "tiled": TOKEN.tile(n, 1) * h,
        "pairs": products.flatten().topk(1)[0],
        "own": products.diagonal(),
        "middle": h.median(0)[0],
    }


class Pooled(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, x):
        return self.run(sequence_pool(x, "sum"))


def given(*lengths):
    return LoDTensor.from_lengths(torch.randn(sum(lengths), 12), [lengths])


@pytest.mark.parametrize("format", few(FORMATS, ["onnx"]))
def test_of_any_number_of_sequences(format, tmp_path):
    package, runtime, name = FORMATS[format]
    module = Pooled(right).eval()
    package.save(module, tmp_path / name, given(4, 2, 3))
    declared = package.load(tmp_path / name).outputs
    assert not [o for o in declared if any(size >= 50 for size in o.shape)]
    for x in (given(1), given(2, 0, 5, 1, 1)):
        with torch.no_grad():
            wanted = list(module(x).values())
        found = runtime(tmp_path / name, [x.to_padded(float("nan"))[0].numpy(), x.lengths().numpy()])
        torch.testing.assert_close([torch.tensor(t) for t in found], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "run",
    [
        lambda h: F.pad(h, (0, 0, h.shape[0], 0)),
        lambda h: h.split(2)[0],
        lambda h: h.chunk(2)[0],
        lambda h: h.tensor_split(3)[0],
        lambda h: F.layer_norm(h, (h.shape[0], 12)),
        lambda h: F.avg_pool1d(h.T[None], h.shape[0]),
        lambda h: torch.zeros(2 * h.shape[0], 12),
    ],
    ids=["padded", "by two", "halves", "thirds", "normed", "averaged", "twice as many"],
)
def test_what_has_the_number_itself_is_refused(run, tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match=r"number of sequences|that of sequences"):
        package.save(Pooled(run), tmp_path / name, given(4, 2, 3))


@pytest.mark.filterwarnings("ignore:Using torch.cross without specifying")
def test_a_dimension_that_another_number_of_sequences_would_choose_is_refused(tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match="cannot be written"):
        package.save(Pooled(lambda h: torch.cross(h[:, :3], h[:, 3:6])), tmp_path / name, given(4, 2, 3))


def test_a_size_of_its_own_that_is_as_large_as_the_number_of_sequences_in_the_trace(tmp_path):
    package, runtime, name = FORMATS["onnx"]
    module = Pooled(lambda h: torch.arange(101.0).view(1, 101) * h[:, :1] + torch.zeros(101)).eval()
    package.save(module, tmp_path / name, given(4, 2, 3))
    x = given(2, 1)
    (found,) = runtime(tmp_path / name, [x.to_padded()[0].numpy(), x.lengths().numpy()])
    torch.testing.assert_close(torch.tensor(found), module(x))
