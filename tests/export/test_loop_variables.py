"""What while loops that are saved begin with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepnet
from stepnet.openvino import load, save


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        def going(h: Tensor, n: Tensor) -> Tensor:
            return (h.abs().sum() < 30) & (n < 9)

        return stepnet.while_loop(
            going, lambda h, n: (h * 1.5 + x.sum(0), n + 1), (self.first, torch.tensor(0))
        )[0]


def test_a_parameter_is_a_loop_variable(tmp_path):
    """Of a module, and of a model that is read to be trained and written again."""
    net, x = Grows().eval(), torch.rand(4, 3)
    save(net, tmp_path / "net.xml", (x,))
    model = load(tmp_path / "net.xml", trainable=True)
    assert (3,) in [weight.shape for weight in model.parameters()]
    save(model, tmp_path / "again.xml")
    for x in (torch.rand(2, 3), torch.zeros(7, 3)):
        for path in ("net.xml", "again.xml"):
            torch.testing.assert_close(load(tmp_path / path)(x)[0], net(x))
