"""Convolutions, pools, norms, edges and windows over time and space: at any length of both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from file_formats import FORMATS, IN_PARTS, Applied, in_part


class Grids(nn.Module):
    """x [batch, 4, time], image [batch, 2, height, 6]: the sizes that are words are open."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)
        self.batch = nn.BatchNorm1d(4)
        self.wider = nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.alone, self.space = nn.ConvTranspose2d(2, 3, 3, dilation=2), nn.Conv3d(2, 1, 3, padding=1)
        self.mixed, self.bags = nn.Bilinear(6, 6, 3), nn.EmbeddingBag(4, 3, padding_idx=2)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1)

    def calls(self, x, image):
        time = x.shape[-1]
        rows, place = torch.arange(x.shape[0]), x.argmax(1)
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        most, at = x.cummax(-1)
        return {
            "norms": lambda: self.group(x) + self.instance(x) + F.instance_norm(x) * self.batch(x),
            "transposed": lambda: self.wider(x),
            "of one": lambda: self.alone(image[0]),
            "space": lambda: self.space(image[:, :, None]),
            "edges": lambda: torch.cat(
                [F.pad(x, (2, 1), mode=m) for m in ("reflect", "replicate", "circular")]
            ),
            "windows": lambda: x.unfold(-1, 4, 3).mean(-1) + x.unfold(2, 4, 3).amax(-1),
            "blocks": lambda: F.unfold(image, 3, padding=1),
            "ceilings": lambda: F.max_pool1d(x, 3, 2, ceil_mode=True) + F.avg_pool1d(x, 3, 2, ceil_mode=True),
            "of images": lambda: F.max_pool2d(image, (3, 2), 2, ceil_mode=True),
            "parts": lambda: F.adaptive_avg_pool1d(x, 3) - F.adaptive_max_pool1d(x, 3),
            "parts of images": lambda: (
                F.adaptive_avg_pool2d(image, (2, None)) + F.adaptive_max_pool2d(image, (2, 1))
            ),
            "resized": lambda: (
                F.interpolate(image, scale_factor=2)
                + F.interpolate(image, (2 * image.shape[2], 12))
                + F.interpolate(image, scale_factor=2, mode="bilinear")
            ),
            "half": lambda: F.interpolate(x, scale_factor=0.5, mode="linear"),
            "steps": lambda: (
                x + torch.arange(0, time * 0.5, 0.5) + torch.arange(1.0, time + 1)[: time // 2 + 1].sum()
            ),
            "diagonals": lambda: torch.diagonal(x.mT @ x, 1, 1, 2),
            "masked": lambda: self.encoder(x.mT, mask=mask),
            "shared": lambda: F.scaled_dot_product_attention(
                image.repeat(1, 2, 1, 1), image, image, enable_gqa=True, is_causal=True
            ),
            "ends": lambda: most * at - x.cummin(-1)[0],
            "kth": lambda: torch.cat(x.kthvalue(2, 1)),
            "beside": lambda: x[:, torch.tensor([0, 2]), torch.tensor([1, 0])],
            "apart": lambda: x[rows, :, place[:, 0] % 2],
            "filled": lambda: x.index_fill(1, torch.tensor([0, 3]), 0.5),
            "added": lambda: x.index_add(1, torch.tensor([0, 0]), x[:, :2]),
            "rounded": lambda: torch.round(x, decimals=1) + torch.round(x * 90, decimals=-1),
            "bags": lambda: self.bags(place),
            "distances": lambda: torch.cdist(x, x) + torch.cdist(x, x, 1.0),
            "mixed": lambda: self.mixed(image, image.flip(-1)),
            "place": lambda: x.argmax(),
            "softplus": lambda: F.softplus(x, 2.0) + F.softplus(x, 2.0, 0.5) + F.softplus(x, 1.0, -1),
        }

    def forward(self, x, image):
        return {**in_part(self.calls(x, image), self.part), "top": x.topk(2, 1)}


@pytest.mark.parametrize(("name", "part"), IN_PARTS)
@pytest.mark.usefixtures("one_trace")
def test_written_and_read_back(name, part, tmp_path):
    form, runtime, file = FORMATS[name]
    torch.manual_seed(0)
    module, path = Grids(part).eval(), tmp_path / file
    form.save(
        module, path, (torch.randn(2, 4, 9), torch.randn(2, 2, 5, 6)), dynamic={"x": (0, 2), "image": (0, 2)}
    )
    read = form.load(path)
    for batch, time, height in ((2, 9, 5), (3, 14, 8), (1, 7, 4)):
        given = torch.randn(batch, 4, time), torch.randn(batch, 2, height, 6)
        with torch.no_grad():
            wanted = {
                **in_part(module.calls(*given), part),
                "top": given[0].topk(2, 1)[0],
                "": given[0].topk(2, 1)[1],
            }
            ours = read(*given).tuple()
        run = [torch.from_numpy(np.asarray(t)) for t in runtime(path, [t.numpy() for t in given])]
        for found in (run, ours):
            for (what, want), got in zip(wanted.items(), found, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.parametrize("name", FORMATS)
def test_means_of_windows_that_end_beyond_the_input(name, tmp_path):
    """Zeros beside the input count; those behind them, which only make a last window whole, do not."""
    form, runtime, file = FORMATS[name]

    def means(x):
        return [F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=own) for own in (True, False)]

    path = tmp_path / file
    form.save(Applied(means), path, (torch.randn(2, 4, 9),), dynamic={"x": (0, 2)})
    for time in (8, 9, 10):
        x = torch.randn(1, 4, time)
        for found in (runtime(path, [x.numpy()]), form.load(path)(x).tuple()):
            torch.testing.assert_close([torch.as_tensor(np.asarray(t)) for t in found], means(x))
