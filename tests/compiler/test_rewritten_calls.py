"""Functions that are traced as simpler ones: torch's numbers and gradients in generated C, torch's errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from covering import few
from outcomes import as_the_plain_loop
from stepnet import recurrent

T, B = 3, 4
D = torch.float64
W = {
    name: torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(3), requires_grad=True)
    for name, shape in {
        "conv1": (3, 2, 3), "conv2": (2, 3, 2, 3), "conv3": (2, 1, 2, 2, 1), "bias3": (3,), "bias2": (2,),
        "scale": (6,), "shift": (6,), "table": (5, 4), "numbers": (5,), "images": (5, 2, 3),
    }.items()
}  # fmt: skip
MEAN, VAR = torch.linspace(-1, 1, 6, dtype=D), torch.linspace(0.5, 2, 6, dtype=D)
_both_ways, _layers = (
    torch.nn.LSTM(3, 2, batch_first=True, bidirectional=True, dtype=D),
    torch.nn.LSTM(3, 2, num_layers=2, bias=False, dtype=D),
)
INDEX = torch.tensor([[0, 4, 2, 2], [1, 0, 3, 4], [4, 4, 0, 1]])

# what is done to x, and the shape of a row of x
FUNCTIONS = {
    "conv1d": (lambda x: F.conv1d(x, W["conv1"], W["bias3"], padding=1), (2, 7)),
    "conv1d, strides": (lambda x: F.conv1d(x, W["conv1"], stride=2, dilation=2), (2, 9)),
    "conv2d": (lambda x: F.conv2d(x, W["conv2"], W["bias2"], padding=(1, 2)), (3, 4, 5)),
    "conv2d, dilation": (lambda x: torch.conv2d(x, W["conv2"], dilation=(2, 1)), (3, 5, 4)),
    "transposed conv2d": (
        lambda x: F.conv_transpose2d(x, W["conv2"], W["bias3"], (2, 1), (0, 2), (1, 0), dilation=(1, 2)),
        (2, 3, 4),
    ),
    "conv3d": (lambda x: F.conv3d(x, W["conv3"]), (1, 3, 3, 2)),
    "batch norm that is kept": (lambda x: F.batch_norm(x, MEAN, VAR, W["scale"], W["shift"]), (6,)),
    "batch norm of images": (lambda x: F.batch_norm(x, MEAN, VAR, W["scale"], None, eps=0.1), (6, 2, 3)),
    **{
        f"bags, {mode}{', padded' if padding else ''}": (
            lambda x, mode=mode, padding=padding: F.embedding_bag(
                (x > 0).long() * 2, W["table"], mode=mode, padding_idx=padding
            ),
            (3,),
        )
        for mode in ("sum", "mean", "max")
        for padding in (None, -3)
    },
    "bags, weighed": (
        lambda x: F.embedding_bag((x > 0).long(), W["table"], mode="sum", per_sample_weights=x), (3,)
    ),
    "group norm": (lambda x: F.group_norm(x, 3, W["scale"], W["shift"]), (6,)),
    "group norm of images": (lambda x: F.group_norm(x, 2), (6, 2, 3)),
    "roll": (lambda x: torch.roll(x, 2, 1) + x.roll((-1, 3), (1, 1)), (5,)),
    "roll of two dimensions": (lambda x: x.roll(shifts=(1, -2), dims=(-1, 1)), (3, 4)),
    "remainder": (lambda x: torch.remainder(x, 0.7) + x % -0.4, (5,)),
    "sum over the first": (lambda x: x.exp().sum(1) * x.amax(1), (3, 4)),
    "sums over single numbers": (lambda x: x.exp().sum(1, True).amax((1, 2), True) * x, (1, 1)),
    "a product of two rows": (lambda x: x @ x.mT, (3, 4)),
    "copies for each row": (lambda x: x * _copies_for(x.shape[0]), (4,)),
    "copies of features": (lambda x: x.repeat(1, 2, 2) * x.tile((1, 2)).repeat_interleave(2, 1), (1, 3)),
    "arguments by name": (
        lambda x: torch.matmul(input=x, other=x.mT) * torch.linalg.det(A=x @ x.mT + x.tanh())[..., None, None]
        + torch.fft.fft(input=x, dim=1).real * torch.tile(x, dims=(1, 1)).repeat(repeats=(1, 1, 1))
        + torch.linalg.matrix_exp(input=0.1 * x) * torch.matmul(x1=x, x2=x),
        (3, 3),
    ),
    "derivatives": (lambda x: torch.vmap(torch.func.jacrev(_bent))(x)[..., 0] * _forward(x), (4,)),
    "an outer product": (lambda x: torch.einsum("bi,bj->bij", x, x.sin()).sum(1), (4,)),
    "nn.LSTM, both ways": (lambda x: _both_ways(x.mT)[0][:, -1], (3, 2)),
    "nn.LSTM, layers": (lambda x: torch.cat(_layers(x.permute(2, 0, 1))[1], -1)[0], (3, 1)),
    "a matrix and a vector": (lambda x: torch.einsum("bij,bj->bi", x, x[:, 0]), (3, 3)),
    "conv1d, filters of each row": (
        lambda x: F.conv1d(
            x[..., :7].reshape(1, -1, 7),
            x[..., 7:].reshape(-1, 2, 3),
            x[:, 0, :2].reshape(-1),
            2,
            1,
            groups=len(x),
        ).reshape(len(x), 2, -1),
        (2, 13),
    ),
    "conv2d, filters of each row and channel": (
        lambda x: F.conv2d(
            x[:, :, 2:].reshape(1, -1, 3, 4),
            x[:, :, :2].reshape(-1, 1, 2, 4),
            None,
            1,
            (1, 2),
            groups=2 * len(x),
        ).reshape(len(x), 2, 4, 5),
        (2, 5, 4),
    ),
    "transposed conv1d, filters of each row": (
        lambda x: F.conv_transpose1d(
            x[..., :4].reshape(1, -1, 4),
            x[..., 4:].reshape(-1, 3, 2),
            x[:, 0, :3].reshape(-1),
            2,
            groups=len(x),
        ).reshape(len(x), 3, -1),
        (2, 10),
    ),
}  # fmt: skip
LOOKUPS = {
    "rows of a weight": lambda i: W["table"][i],
    "rows counted from the end": lambda i: W["table"][i - 5],
    "numbers of a vector": lambda i: W["numbers"][i][:, None],
    "places of 32 bits": lambda i: W["table"][i.int()] * W["images"][i.int() - 5, 0, i % 3][:, None],
    "images": lambda i: W["images"][i].flatten(1),
    "index_select": lambda i: torch.index_select(W["table"], 0, i),
    "columns": lambda i: W["table"][:, i % 4].t() * W["table"].index_select(1, i % 4).mT,
    "one index beside another": lambda i: (
        W["images"][i, i % 2] * W["images"][i, None, :, i % 3 - 3][:, 0, :1]
    ),
    "indices apart": lambda i: W["images"][i, :, i % 3] * W["images"][1:, 0, i % 3].mT[:, :2],
}


def _copies_for(rows: Any) -> Tensor:
    """Weights as often as there are rows, in the ways that people write it."""
    w = W["table"]
    each = w[0].repeat(rows, 1) + torch.tile(w[1], (rows, 1)) * w[2:3].repeat_interleave(rows, 0)
    return torch.bmm(w.repeat(rows, 1, 1), each.unsqueeze(2)).sum(1)


def _bent(x: Tensor) -> Tensor:
    return F.linear(torch.tanh(F.linear(x, W["table"], W["numbers"])), W["table"].T) + torch.sigmoid(x)


def _forward(x: Tensor) -> Tensor:
    """In forward mode: of a vector and of one of two arguments, with something beside."""
    y, along, _ = torch.func.jvp(lambda a: (torch.tanh(a), a), (x,), (x.square(),), has_aux=True)
    return torch.vmap(torch.func.jacfwd(lambda a, b: a * b.sum(), argnums=1))(x, y).sum(1) + along


def check(step, x: Any, backend: str = "c", states: Any = None) -> None:
    weights = [t for t in W.values() if t.requires_grad]
    states = torch.zeros(B, 1, dtype=D) if states is None else states
    as_the_plain_loop(step, x, states, backend, weights=weights, rtol=1e-10, atol=1e-12)


NAMES = list(FUNCTIONS)
GROUPS = [NAMES[first : first + 8] for first in range(0, len(NAMES), 8)]


@pytest.mark.parametrize("names", few(GROUPS, GROUPS[1::3]), ids=", ".join)
def test_functions_side_by_side(names):
    """Some at a time in one step: then they are one build."""

    def step(x, states):
        y = {}
        for name, h in states.items():
            function, shape = FUNCTIONS[name]
            y[name] = function(x[name] * (1 + h.reshape(-1, *(1,) * len(shape))))
        return y, {n: torch.tanh(h + y[n].flatten(1).mean(1, keepdim=True)) for n, h in states.items()}

    x = {name: torch.randn(T, B, *FUNCTIONS[name][1], dtype=D, requires_grad=True) for name in names}
    check(step, x, states={name: torch.zeros(B, 1, dtype=D) for name in names})


def test_lookups_side_by_side():
    def step(i, h):
        y = {name: look(i) for name, look in LOOKUPS.items()}
        return y, torch.tanh(h + sum(rows.sum(1, keepdim=True) for rows in y.values()))

    check(step, INDEX)


def test_one_hot():
    table = torch.randn(5, dtype=torch.float32)

    def step(i, h):
        y = F.one_hot(i, 5).to(torch.float32) * table
        return y, h + y.sum(1, keepdim=True)

    def run(index, backend):
        return recurrent(step, index, torch.zeros(B, 1), backend=backend)

    for ours, plain in zip(run(INDEX, "c"), run(INDEX, "naive"), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("backend", ["c", "eager", "naive"])
@pytest.mark.parametrize(
    "look",
    [
        lambda i: W["table"][i],
        lambda i: F.one_hot(i, 5).double(),
        lambda i: W["images"][0 * i, 0 * i, i - 2][:, None],
    ],
    ids=["row", "hot", "of two"],
)
def test_an_index_that_is_none_is_an_error(look, backend):
    def step(i, h):
        y = look(i)
        return y, h + y.sum(1, keepdim=True)

    recurrent(step, INDEX, torch.zeros(B, 1, dtype=D), backend="eager")  # it compiles
    with pytest.raises(Exception, match=r"(?i)index|class|range"):
        recurrent(step, INDEX + 1, torch.zeros(B, 1, dtype=D), backend=backend)


def test_nn_lstm_without_gradients():
    """torch has a kernel of its own for it there, of float32."""
    inner = torch.nn.LSTM(3, 4)

    def step(x, h):
        y, (h, c) = inner(x[None], tuple(t.transpose(0, 1).contiguous() for t in h))
        return y[0], (h.transpose(0, 1), c.transpose(0, 1))

    x, h = torch.randn(T, B, 3), tuple(torch.randn(2, B, 1, 4).unbind(0))
    with torch.no_grad():
        ours, plain = (recurrent(step, x, h, backend=name) for name in ("eager", "naive"))
    torch.testing.assert_close(ours, plain)
