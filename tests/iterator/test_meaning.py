"""What a TensorIterator means: the document's examples, and its rules held against a loop written by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covering import examples
from loop_reference import Misfit, run
from stepnet import BackEdge, InputPort, OutputPort, TensorArray, TensorIterator, create_whileloop, recurrent
from stepnet.errors import LoopError
from stepnet.executors.setting import set_backend

BACKWARDS = {"axis": 1, "start": -1, "end": 0, "stride": -1}
BUILDS = False
WHOLE = torch.float64


def mixed(x, h):
    """A body of which every result depends on order: h_new, and rows of what it saw."""
    new = torch.tanh(0.5 * h + x.sum(1))
    return new, x * new.unsqueeze(1)


def assert_same(loop, given, steps=None):
    expected = run(lambda **p: loop.body(**p), loop.port_map, loop.back_edges, given)
    found = loop(**given)
    assert list(found.keys()) == list(expected)
    for name, value in expected.items():
        if value is None:
            axis = next(p.axis for p in loop.port_map if p.external == name)
            assert found[name].shape[axis] == 0
        else:
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def test_a_loop_inside_a_loop(backend, recwarn):
    """Under "auto" compiled as part of the outer body, whose batch size is open while it is recorded."""
    inner = TensorIterator(
        lambda x, h: torch.tanh(h + x.squeeze(1)),
        [InputPort("x", "x", axis=1), InputPort("h0", "h"), OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )

    def body(x, h):
        h = inner(x.squeeze(1), h)["h"]
        return h, h.unsqueeze(1)

    ports = [InputPort("x", "x", axis=1), InputPort("h0", "h"), OutputPort("y", 1, axis=1)]
    outer = TensorIterator(body, ports, [BackEdge(0, "h")])
    x = torch.randn(3, 2, 4, 5, dtype=WHOLE, requires_grad=True)
    h, rows = x.new_zeros(3, 5), []
    for i in range(2):
        for j in range(4):
            h = torch.tanh(h + x[:, i, j])
        rows.append(h)
    y, expected = outer(x, x.new_zeros(3, 5))["y"], torch.stack(rows, 1)
    torch.testing.assert_close(y, expected)
    for got, want in zip(*(torch.autograd.grad(t.square().sum(), x) for t in (y, expected)), strict=True):
        torch.testing.assert_close(got, want)
    assert not [str(w.message) for w in recwarn if "plain loop" in str(w.message)]


def test_a_loop_inside_a_frame():
    cell = torch.nn.GRUCell(3, 4)
    loop = TensorIterator(
        lambda x, h: cell(x.squeeze(0), h),
        [InputPort("x", "x", axis=0), InputPort("h0", "h"), OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )
    x = torch.randn(4, 3, 2, 3)
    xs, ends = TensorArray(unstack_from=x), TensorArray()
    frame = create_whileloop(loop_vars=[torch.tensor(0)])
    with frame.frame() as (s,):
        frame.break_if(s == xs.size())
        ends.write(s, loop(xs.read(s), ends.read(s - 1, torch.zeros(2, 4)))["h"])
        frame.update(s, s + 1)
    expected, _ = recurrent(cell, x.flatten(0, 1), torch.zeros(2, 4))
    torch.testing.assert_close(ends.stack(), expected[2::3])
    got, want = (torch.autograd.grad(y.sum(), cell.weight_hh)[0] for y in (ends.stack(), expected[2::3]))
    torch.testing.assert_close(got, want)


def test_shapes_are_given_by_position_too():
    loop = TensorIterator(mixed, [InputPort("x", "x", axis=1), InputPort("h0", "h"), OutputPort("h", 0)])
    assert loop.infer_shape((2, 4, 3), h0=(2, 3)) == loop.infer_shape(x=(2, 4, 3), h0=(2, 3))
    with pytest.raises(LoopError, match="'x' is given by position and by name"):
        loop.infer_shape((2, 4, 3), x=(2, 4, 3))


def test_the_first_example_of_the_document(backend):
    """Slices backwards, joined backwards: the inputs' own order comes back."""
    ports = [
        InputPort("x", "x", **BACKWARDS),
        InputPort("h0", "h"),
        OutputPort("y", 1, **BACKWARDS),
        OutputPort("h", 0),
    ]
    loop = TensorIterator(mixed, ports, [BackEdge(0, "h")])
    x, h = torch.randn(2, 5, 3, dtype=WHOLE), torch.randn(2, 3, dtype=WHOLE)
    y, last = loop(x, h)
    rows, state = [], h
    for t in (4, 3, 2, 1, 0):
        state = torch.tanh(0.5 * state + x[:, t])
        rows.insert(0, x[:, t] * state)
    torch.testing.assert_close(y, torch.stack(rows, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, state, rtol=1e-12, atol=1e-12)


class FusedCell(nn.Module):
    """The second example's body: Reshape, LSTMCell of fused weights [1024, 768], Reshape."""

    def __init__(self, inputs=512, hidden=256):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4 * hidden, inputs + hidden) * 0.05)
        self.b = nn.Parameter(torch.randn(4 * hidden) * 0.05)

    def forward(self, x, h, c):
        f, i, g, o = (torch.cat([x.reshape(x.shape[0], -1), h], 1) @ self.w.T + self.b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return c, h, h.unsqueeze(1)


def test_the_second_example_of_the_document(backend):
    loop = TensorIterator(
        FusedCell(),
        port_map=[
            InputPort("0", "x", axis=1, start=0),
            InputPort("1", "h"),
            InputPort("2", "c"),
            OutputPort("3", 2, axis=1),
        ],
        back_edges=[BackEdge(0, "c"), BackEdge(1, "h")],
    )
    assert loop.infer_shape(**{"0": (1, 25, 512), "1": (1, 256), "2": (1, 256)}) == {"3": (1, 25, 256)}
    x = torch.randn(1, 25, 512)
    (y,) = loop(x, torch.zeros(1, 256), torch.zeros(1, 256))
    cell = nn.LSTM(512, 256, batch_first=True)
    order = [1, 0, 2, 3]  # f, i, c, o in the document; i, f, g, o in torch
    with torch.no_grad():
        blocks = loop.body.w.chunk(4)
        both = torch.cat([blocks[k] for k in order])
        cell.weight_ih_l0.copy_(both[:, :512])
        cell.weight_hh_l0.copy_(both[:, 512:])
        cell.bias_ih_l0.copy_(torch.cat([loop.body.b.chunk(4)[k] for k in order]))
        cell.bias_hh_l0.zero_()
    torch.testing.assert_close(y, cell(x)[0], rtol=1e-4, atol=1e-5)


numbers = st.integers(-9, 9)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 8), numbers, numbers, st.sampled_from([-3, -2, -1, 1, 2, 3]), st.sampled_from([1, 1, -1]),
    st.sampled_from([0, 1, -2]), st.sampled_from(["naive", "auto"]),
)  # fmt: skip
def test_every_cut_is_the_documents(length, start, end, stride, joined, axis, way):
    """Any length, start, end, stride and part_size: the same numbers as by hand, or both refuse."""
    part = abs(stride)

    def body(x, h):
        rows = x.movedim(axis, 1)  # [2, part, 3]
        new = torch.tanh(0.5 * h + (rows * torch.arange(1.0, part + 1).to(x).unsqueeze(1)).sum(1))
        return new, (rows + new.unsqueeze(1)).movedim(1, axis)

    ends = {} if joined > 0 else {"start": -1, "end": 0}
    loop = TensorIterator(
        body,
        [
            InputPort("x", "x", axis=axis, start=start, end=end, stride=stride, part_size=part),
            InputPort("h0", "h"),
            OutputPort("y", 1, axis=axis, stride=joined * part, part_size=part, **ends),
            OutputPort("h", 0),
        ],
        [BackEdge(0, "h")],
    )
    x = torch.randn(2, length, 3, dtype=WHOLE).movedim(1, axis)
    feeds = {"x": x, "h0": torch.randn(2, 3, dtype=WHOLE)}
    set_backend(way)
    try:
        run(body, loop.port_map, loop.back_edges, feeds)
    except Misfit:
        for call in (loop, loop.infer_shape):
            with pytest.raises(LoopError, match=r"InputPort\('x', 'x', axis="):
                call(**feeds)
        return
    assert_same(loop, feeds)
    assert loop.infer_shape(**feeds) == {name: value.shape for name, value in loop(**feeds).items()}


def test_several_sliced_inputs_each_its_own_way(backend):
    def body(a, b, c, h):
        h = torch.tanh(h + a.squeeze(1) * b.squeeze(0) - c.sum(1))
        return {"h": h, "row": h.unsqueeze(1), "plane": h.unsqueeze(0)}

    loop = TensorIterator(
        body,
        [
            InputPort("x", "a", axis=1),
            InputPort("y", "b", axis=0, start=-1, end=0, stride=-1),
            InputPort("z", "c", axis=1, start=1, end=-2, stride=2, part_size=2),
            InputPort("h0", "h"),
            OutputPort("rows", "row", axis=1),
            OutputPort("planes", "plane", axis=0, start=-1, end=0, stride=-1),
            OutputPort("last", "h"),
        ],
        [BackEdge("h", "h")],
    )
    given = {"x": torch.randn(2, 4, 3, dtype=WHOLE), "y": torch.randn(4, 2, 3, dtype=WHOLE)}
    given |= {"z": torch.randn(2, 10, 3, dtype=WHOLE), "h0": torch.randn(2, 3, dtype=WHOLE)}
    assert_same(loop, given)
    assert loop.infer_shape(**given) == {"rows": (2, 4, 3), "planes": (4, 2, 3), "last": (2, 3)}


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_back_edges_act_at_once(backend, steps):
    """A pure swap, and one input cut twice and passed on whole."""
    loop = TensorIterator(
        lambda x, z, all, a, b: (a, b + 0 * x.squeeze(1), x + z + all.sum(1, keepdim=True)),
        [
            InputPort("x", "x", axis=1),
            InputPort("x", "z", **BACKWARDS),
            InputPort("x", "all"),
            InputPort("a", "a"),
            InputPort("b", "b"),
            OutputPort("first", 0),
            OutputPort("second", 1),
            OutputPort("seen", 2, axis=1),
        ],
        [BackEdge(0, "b"), BackEdge(1, "a")],
    )
    given = {"x": torch.randn(2, steps, 1, dtype=WHOLE)}
    given |= {name: torch.full((2, 1), value, dtype=WHOLE) for name, value in (("a", 1.0), ("b", 2.0))}
    assert_same(loop, given)
    if steps:
        first, second, _ = loop(**given)
        assert (first[0].item(), second[0].item()) == ((1.0, 2.0) if steps % 2 else (2.0, 1.0))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_loop_without_slices_counts_by_its_joined_output(backend, steps):
    loop = TensorIterator(
        lambda h: (h * 2, h.unsqueeze(1)),
        [InputPort("h0", "h"), OutputPort("powers", 1, axis=1, start=0, end=steps), OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )
    powers, last = loop(torch.ones(2, 1))
    assert powers[:, :, 0].tolist() == [[2.0**i for i in range(steps)]] * 2
    assert last.tolist() == [[2.0**steps]] * 2
    assert loop.infer_shape(h0=(2, 1)) == {"powers": (2, steps, 1), "h": (2, 1)}


def test_one_iteration_where_nothing_counts(backend):
    loop = TensorIterator(lambda x: x + 1, [InputPort("x", "x"), OutputPort("y", 0)])
    assert loop(torch.zeros(2))["y"].tolist() == [1.0, 1.0]


def test_a_state_may_grow_by_the_plain_loop():
    set_backend("auto")
    loop = TensorIterator(
        lambda x, seen: torch.cat([seen, x]),
        [InputPort("x", "x", axis=0), InputPort("seen0", "seen"), OutputPort("seen", 0)],
        [BackEdge(0, "seen")],
        backend="naive",
    )
    x, start = torch.randn(4, 3), torch.randn(2, 3)
    assert torch.equal(loop(x, start)[0], torch.cat([start, x]))


def test_a_loop_in_a_loop(backend):
    """Sums along the last axis, one row after another."""
    inner = TensorIterator(
        lambda x, s: s + x,
        [InputPort("x", "x", axis=2), InputPort("s", "s"), OutputPort("sums", 0, axis=2)],
        [BackEdge(0, "s")],
    )
    outer = TensorIterator(
        lambda row: inner(row, row[:, :, :1] * 0)["sums"],
        [InputPort("x", "row", axis=1), OutputPort("sums", 0, axis=1)],
        backend="naive",
    )
    x = torch.randn(2, 3, 4, dtype=WHOLE)
    torch.testing.assert_close(outer(x)["sums"], x.cumsum(2))
