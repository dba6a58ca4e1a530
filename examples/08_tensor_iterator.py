"""A TensorIterator, written as OpenVINO's document writes it: a peephole LSTM that reads its input backwards.

    python examples/08_tensor_iterator.py

The body is a torch module. The port map says how the loop's inputs and outputs meet its parameters and
results, the back edges what one iteration hands to the next. The same loop by hand gives the same numbers,
and the same gradients; `explain` says what was taken out of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepnet
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator

BATCH, STEPS, FEATURES, UNITS = 4, 25, 16, 32


class Body(nn.Module):
    """One iteration: [B, 1, FEATURES] and two states in, two states and a row [B, 1, UNITS] out."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(FEATURES, 4 * UNITS)
        self.r = nn.Linear(UNITS, 4 * UNITS, bias=False)
        self.peephole = nn.Parameter(torch.randn(3, UNITS) * 0.1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, i, g, o = (self.w(x.squeeze(1)) + self.r(h)).chunk(4, 1)
        p_f, p_i, p_o = self.peephole
        c_new = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
        h_new = torch.sigmoid(o + p_o * c_new) * torch.tanh(c_new)
        return h_new, c_new, h_new.unsqueeze(1)


def main() -> None:
    torch.manual_seed(0)
    loop = TensorIterator(
        Body(),
        port_map=[
            InputPort("x", "x", axis=1, start=-1, end=0, stride=-1),
            InputPort("h0", "h"),
            InputPort("c0", "c"),
            OutputPort("y", 2, axis=1, start=-1, end=0, stride=-1),
            OutputPort("h", 0),
        ],
        back_edges=[BackEdge(0, "h"), BackEdge(1, "c")],
    ).double()
    inputs = {"x": (BATCH, STEPS, FEATURES), "h0": (BATCH, UNITS), "c0": (BATCH, UNITS)}
    print("shapes, before anything runs:")
    for name, shape in loop.infer_shape(**inputs).items():
        print(f"    {name} {list(shape)}")

    given = {name: torch.randn(shape, dtype=torch.float64) for name, shape in inputs.items()}
    y, h = loop(**given)
    h_by_hand, c, rows = given["h0"], given["c0"], []
    for t in reversed(range(STEPS)):
        h_by_hand, c, row = loop.body(given["x"][:, t : t + 1], h_by_hand, c)
        rows.insert(0, row)
    print(f"apart from the loop by hand: {(y - torch.cat(rows, 1)).abs().max().item():.1e}")

    weights = list(loop.parameters())
    ours = torch.autograd.grad(h.square().sum(), weights)
    theirs = torch.autograd.grad(h_by_hand.square().sum(), weights)
    apart = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    print(f"its gradients, apart from those: {apart:.1e}")

    (told,) = stepnet.explain(loop, given).recurrences
    print(f"runs by {told.executor}:")
    for region in told.regions:
        print(f"    {region.direction:9} {region.kind:9} {region.flops:>9,} FLOP")


if __name__ == "__main__":
    main()
