"""Every form in which a loop runs by rows: values and gradients are those of the document's loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from covering import every
from loop_reference import run
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator
from stepnet.errors import SlowPathWarning

WHOLE = torch.float64
BACK = {"start": -1, "end": 0}


class Body(nn.Module):
    """h = tanh(U h + W x), where `rows` sees a slice as [B, 3], and `joined` makes a result fit its port."""

    def __init__(self, rows, joined):
        super().__init__()
        self.w = nn.Linear(3, 4, dtype=WHOLE)
        self.u = nn.Linear(4, 4, dtype=WHOLE)
        self.rows, self.joined = rows, joined

    def forward(self, x, h, scale):
        h = torch.tanh(self.w(self.rows(x)) * scale + self.u(h))
        return h, self.joined(h, x)


def ends(x):
    return x[..., 0] - 0.5 * x[..., -1]


def port(axis, part, backwards=False, **more):
    stride = -part if backwards else part
    return {"axis": axis, "stride": stride, "part_size": part} | (BACK if backwards else {}) | more


FORMS = {
    "axis 1": ((2, 5, 3), port(1, 1), port(1, 1), lambda x: x.squeeze(1), lambda h, x: h.unsqueeze(1)),
    "axis 1, backwards, joined forwards": (
        (2, 5, 3), port(1, 1, True), port(1, 1), lambda x: x.squeeze(1), lambda h, x: h.unsqueeze(1)),
    "axis 1 from the end": ((2, 5, 3), port(-2, 1), port(-2, 1), lambda x: x.squeeze(1),
                            lambda h, x: h.unsqueeze(1)),
    "axis 0": ((5, 2, 3), port(0, 1), port(0, 1), lambda x: x.squeeze(0), lambda h, x: h.unsqueeze(0)),
    "axis 0, joined along axis 1": (
        (5, 2, 3), port(0, 1), port(1, 1, True), lambda x: x.squeeze(0), lambda h, x: h.unsqueeze(1)),
    "last axis": ((2, 3, 5), port(2, 1), port(2, 1), lambda x: x.squeeze(2), lambda h, x: h.unsqueeze(2)),
    "a window": ((2, 9, 3), port(1, 1, start=2, end=-3), port(1, 1), lambda x: x.squeeze(1),
                 lambda h, x: h.unsqueeze(1)),
    "blocks along axis 1": ((2, 6, 3), port(1, 2), port(1, 2, True), lambda x: ends(x.movedim(1, 2)),
                            lambda h, x: h.unsqueeze(1) * x[:, :, :1]),
    "blocks along axis 0": ((6, 2, 3), port(0, 3, True), port(0, 3), lambda x: ends(x.movedim(0, 2)),
                            lambda h, x: h.unsqueeze(0) * x[:, :, :1]),
    "blocks along the last axis": ((2, 3, 6), port(2, 2, True), port(1, 1), ends,
                                   lambda h, x: h.unsqueeze(1)),
    "blocks that are the batch": ((10, 3), port(0, 2), port(0, 2, True), lambda x: x, lambda h, x: h),
    "no batch, along axis 0": ((5, 3), port(0, 1, True), port(0, 1, True), lambda x: x, lambda h, x: h),
}  # fmt: skip


IN_C = ("axis 1", "axis 0, joined along axis 1", "blocks along the last axis", "blocks that are the batch")


@pytest.mark.parametrize(
    ("form", "backend"),
    every(2, [(f, b) for f in FORMS for b in ("naive", "eager")] + [(f, "c") for f in IN_C]),
)
def test_values_and_gradients(form, backend):
    shape, cut, joined, rows, join = FORMS[form]
    torch.manual_seed(4)
    loop = TensorIterator(
        Body(rows, join),
        [
            InputPort("x", "x", **cut),
            InputPort("h0", "h"),
            InputPort("scale", "scale"),
            OutputPort("y", 1, **joined),
            OutputPort("h", 0),
        ],
        [BackEdge(0, "h")],
        backend=backend,  # by name: what is not compiled is refused
    )
    batch = 1 if form.startswith("no batch") else 2
    shapes = {"x": shape, "h0": (batch, 4), "scale": (4,)}
    given = {name: torch.randn(s, dtype=WHOLE, requires_grad=True) for name, s in shapes.items()}
    ours = loop(**given).tuple()
    theirs = tuple(run(lambda **p: loop.body(**p), loop.port_map, loop.back_edges, given).values())
    seeds = [torch.randn_like(value) for value in theirs]
    wanted = [*given.values(), *loop.parameters()]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    both = (torch.autograd.grad(values, wanted, seeds) for values in (ours, theirs))
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)
    assert loop.infer_shape(**given) == {"y": theirs[0].shape, "h": theirs[1].shape}


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", ["naive", "eager", "c"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_state_of_one_element_for_all_rows(batch, shape, backend):
    """A count of the steps and a sum that decays, carried beside states of rows."""

    def body(x, h, count, decay):
        h = torch.tanh(h + x.squeeze(1) * decay) + count
        return h, count + 1, decay * 0.5

    loop = TensorIterator(
        body,
        [
            InputPort("x", "x", axis=1),
            InputPort("count", "count"),
            InputPort("h", "h"),
            InputPort("decay", "decay"),
            OutputPort("count", 1),
            OutputPort("h", 0),
            OutputPort("decay", 2),
        ],
        [BackEdge(0, "h"), BackEdge(1, "count"), BackEdge(2, "decay")],
        backend=backend,
    )
    given = {"x": torch.randn(batch, 4, 3, dtype=WHOLE), "h": torch.randn(batch, 3, dtype=WHOLE)}
    given |= {"count": torch.zeros(shape, dtype=torch.int64), "decay": torch.ones(shape, dtype=WHOLE)}
    for name in ("x", "h", "decay"):
        given[name].requires_grad_()
    ours, theirs = loop(**given), run(body, loop.port_map, loop.back_edges, given)
    assert list(ours.keys()) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12)
    wanted = [given[name] for name in ("x", "h", "decay")]
    both = (
        torch.autograd.grad(out["h"].square().sum() + 3 * out["decay"].sum(), wanted)
        for out in (ours, theirs)
    )
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)


def test_a_state_of_one_element_that_is_joined_or_mixes_rows_runs_plainly():
    def joined(x, h, count):
        return h + x.squeeze(1), count + 1

    def mixed(x, h, count):
        return h + x.squeeze(1) * count, count + x.sum()

    ports = [
        InputPort("x", "x", axis=1),
        InputPort("h", "h"),
        InputPort("count", "count"),
        OutputPort("h", 0),
    ]
    edges = [BackEdge(0, "h"), BackEdge(1, "count")]
    given = {"x": torch.ones(2, 3, 1), "h": torch.zeros(2, 1), "count": torch.zeros(1)}
    counts = TensorIterator(joined, [*ports, OutputPort("counts", 1, axis=0)], edges)
    assert counts(**given)["counts"].tolist() == [1.0, 2.0, 3.0]
    sums = TensorIterator(mixed, ports, edges)
    with pytest.warns(SlowPathWarning, match="mixes rows"):
        assert sums(**given)["h"].tolist() == [[6.0], [6.0]]
