"""The recorder of steps records what torch's own tracers record."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from covering import every, few
from stepnet import explain, recurrent
from stepnet.compiler import pipeline
from stepnet.compiler.trace import joint
from stepnet.compiler.trace import torch_tracers as torchs
from stepnet.compiler.trace.recorder import recorded
from stepnet.compiler.trace.row_count import Unusual
from stepnet.compiler.trace.symbolic_rows import blank
from stepnet.engine import plans

PLANS_ON_DISK = False  # what is recorded is looked at

D = 4


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = torch.nn.LSTMCell(D, D), torch.nn.Linear(2 * D, D)
        self.norm, self.words = torch.nn.LayerNorm(D), torch.nn.Embedding(7, D)


CELL = Cell()


def gates(x, h):
    i, f, g = F.linear(torch.cat([x, h], 1), torch.cat([CELL.gru.weight] * 3)).chunk(3, 1)
    h = torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(g)
    return h, h


def three_gradients_meet(x, h):
    y = torch.tanh(CELL.gru(torch.cat([x, h], 1)))
    return y * y + y.exp() - y.cos(), (y * h).relu() + y.sum(-1, keepdim=True)


def made_of_numbers(x, h):
    h = h * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=h.dtype) + torch.tensor(0.5)
    return h, h.detach() + x


def sizes(x, h):
    rows = x.shape[0]
    h = h + x.new_zeros(rows, D) + torch.ones(rows, 2, 2, dtype=x.dtype).reshape(rows, D)
    return h.reshape(rows * 2, 2).cos().view(rows, D), h


def numbers_pick(x, h):
    h = CELL.norm(h)[:, torch.tensor([3, 0, 1, 1])] + CELL.words(h.argmax(-1))
    return h.t().sin().t() + x, h.squeeze(1) + x.unsqueeze(1)[:, 0]


def written_alone(x, h):
    y = x * 2
    y += h
    y.mul_(h).clamp_(-1, 1)
    return y, y.sin()


def without_gradient(x, h):
    with torch.no_grad():
        a = x.tanh()
    return torch.where(a > 0, h, -h), (h + a).softmax(-1)


def a_cell_of_torch(x, h):
    h, c = CELL.lstm(x, (h, h))
    return c, h


def a_number_less_a_tensor(x, h):
    h = torch.lerp(h, x.tanh(), torch.sigmoid(CELL.gru(torch.cat([x, h], 1))))
    return h, 1 - h


def written_pieces(x, h):
    with torch.no_grad():
        a, b = (x * 3).split(2, 1)
        a.add_(b).mul_(2)
        b.sub_(a)
    return torch.cat([a, b], 1) * h + x, h


def draws(x, h):
    h = h * torch.empty_like(h).bernoulli_(0.7) * torch.empty_like(x).uniform_(-1, 1)
    h = h * torch.empty_like(h).bernoulli_()
    return h, h + torch.empty_like(x).normal_(0, 2) + x.new_empty(x.shape).exponential_(3.0)


PLAIN = [
    draws, gates, three_gradients_meet, made_of_numbers, sizes, numbers_pick, written_alone, without_gradient,
    a_cell_of_torch, a_number_less_a_tensor,
]  # fmt: skip


def written_part(x, h):
    y = x * 2
    y[:, 0] += 1
    y.view(-1, 2, 2).mul_(h.view(-1, 2, 2))
    return y, y + h


def written_as_a_view(x, h):
    y = x * 2
    z = y.detach()
    y += 1  # z, too
    return y, z + h


def a_whole_after_its_piece(x, h):
    with torch.no_grad():
        whole = x * 3
        whole.split(2, 1)[1].add_(1)
    return whole * h, h


def a_piece_after_its_whole(x, h):
    with torch.no_grad():
        whole = x * 3
        a, b = whole.split(2, 1)
        whole.mul_(2)
    return torch.cat([b, a], 1) * h, h


def a_piece_of_a_piece(x, h):
    with torch.no_grad():
        a, b = (x * 3).split(2, 1)
        first = a[:, :1]
        a.mul_(2)
    return torch.cat([b, a], 1) * first, h


def pieces_that_overlap(x, h):
    with torch.no_grad():
        a, b, c, d = (x[:, :1] * 3).expand(-1, D).split(1, 1)
        a.mul_(2)
    return torch.cat([b, a, d, c], 1) * h, h


def a_part_of_one_that_is_repeated(x, h):
    with torch.no_grad():
        wide = (x[:, :1] * 3).expand(-1, D)
        wide[:, 0].mul_(2)  # all of it
    return wide * h, h


def a_number_of_a_tensor(x, h):
    h = h * CELL.gru.bias.detach()[0].item()
    return h, h + x


# What records a step that the recorder leaves to torch; make_fx comes first where only values tell.
LEFT = {
    a_part_of_one_that_is_repeated: ["aot_export_joint_simple"],
    a_whole_after_its_piece: ["aot_export_joint_simple"],
    a_piece_after_its_whole: ["aot_export_joint_simple"],
    pieces_that_overlap: ["aot_export_joint_simple"],
    a_number_of_a_tensor: ["make_fx"],
}
TORCHS = ("make_fx", "aot_export_joint_simple")


def left_to_torch(*_):
    raise Unusual("for the sake of the test")


def graph_of(step, monkeypatch, *, by_torch, gradients):
    """The normal form, with names by order; which of torch's tracers recorded it."""
    graphs, used = [], []

    def kept(*args):
        graphs.append(normalise(*args))
        return graphs[-1]

    def noted(name, tracer):
        return lambda *args, **kwargs: (used.append(name), tracer(*args, **kwargs))[1]

    normalise = pipeline.normalise
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "normalise", kept)
        for name in TORCHS:
            patch.setattr(torchs, name, noted(name, getattr(torchs, name)))
        if by_torch:
            patch.setattr(joint, "recorded", left_to_torch)
        plans.forget()
        torch.manual_seed(0)
        x = torch.randn(3, 5, D, requires_grad=gradients)
        with torch.set_grad_enabled(gradients):
            recurrent(step, x, torch.randn(5, D), backend="eager")
    (made,) = graphs
    return text(made), used


def text(made):
    graph, names = made.graph, {}

    def name(value):
        return names.setdefault(value, f"n{len(names)}")

    lines = [*map(name, graph.parameters)]
    for node in graph.nodes:
        shapes = [(graph.values[n].kind, graph.values[n].shape, graph.values[n].dtype) for n in node.outputs]
        ends = [*map(name, node.inputs), *map(name, node.outputs)]
        lines.append((node.op, ends, node.attrs, node.line, shapes))
    results = [None if r is None else name(r) for r in made.results]
    return [*lines, results, made.flow, made.requires, [c.tolist() for c in made.constants.values()]]


@pytest.mark.parametrize("gradients", few([True, False], [True]))
def test_the_graph_is_that_of_torchs_tracers(gradients, monkeypatch, request):
    """Each step with gradients or without, in turn; `make fuzz` has both."""
    every = PLAIN if request.config.getoption("exhaustive") else PLAIN[gradients::8]
    for step in every:
        ours, used = graph_of(step, monkeypatch, by_torch=False, gradients=gradients)
        theirs, _ = graph_of(step, monkeypatch, by_torch=True, gradients=gradients)
        assert ours == theirs, step.__name__
        assert used == [], step.__name__


@pytest.mark.parametrize("step", every(2, LEFT), ids=lambda step: step.__name__)
def test_what_is_left_to_torch(step, monkeypatch):
    assert graph_of(step, monkeypatch, by_torch=False, gradients=False)[1] == LEFT[step]


def test_a_write_into_what_is_given_is_refused_at_once():
    """Torch's tracers, a second of imports, refuse it too, and name the last line."""

    def step(x, h):
        h[:, 0] += x[:, 0]
        return h * 2, h

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchs, "by_torch", None)
        refusal = explain(step, torch.randn(3, 5, D), torch.randn(5, D)).refusals[0]
    assert "changes one of its inputs" in refusal.reason
    assert refusal.code == "h[:, 0] += x[:, 0]"


def test_dropout_is_recorded(monkeypatch):
    """By torch's tracers it goes by other ops, which round otherwise than torch."""
    _, used = graph_of(lambda x, h: (h, F.dropout(h, 0.3) + x), monkeypatch, by_torch=False, gradients=True)
    assert used == []


def outlines(*sizes):
    return [blank(size, torch.float32, rows=False) for size in sizes]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x * float(x.sum()),
        lambda x: x + torch.ones(2).share_memory_(),
        lambda x: x.mul(2).random_(),
        lambda x: x.mul(2).t_(),
    ],
    ids=["an input", "a mask", "places", "a number", "from outside", "noise", "a view of itself"],
)
def test_what_is_not_plain_is_left_to_torch(function):
    with pytest.raises((Unusual, RuntimeError)):
        recorded(lambda x: [function(x)], outlines((2,)), {})


def test_an_error_of_the_function_comes_through():
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        recorded(function, outlines((2,)), {})


def test_a_write_is_a_new_value():
    def function(x):
        y = x.sin()
        before = y.cos()
        y.add_(before)
        return [y.exp(), before]

    graph, constants = recorded(function, outlines((2, 3)), {})
    calls = [(n.target, n.args) for n in graph.nodes if n.op == "call_function"]
    sin, cos, add, exp = [n for n in graph.nodes if n.op == "call_function"]
    assert [str(target).split(".")[1] for target, _ in calls] == ["sin", "cos", "add", "exp"]
    assert [args for _, args in calls[1:]] == [(sin,), (sin, cos), (add,)]
    assert graph.find_nodes(op="output")[0].args == ((exp, cos),)
    assert constants == {}


@pytest.mark.parametrize("gradients", [True, False])
def test_pieces_that_are_written_into(gradients, monkeypatch):
    assert graph_of(written_pieces, monkeypatch, by_torch=False, gradients=gradients)[1] == []
    x, h = torch.randn(3, 5, D, requires_grad=gradients), torch.randn(5, D)
    found, wanted = (recurrent(written_pieces, x, h, backend=b) for b in ("eager", "naive"))
    torch.testing.assert_close(found, wanted)
    if gradients:
        (a,), (b,) = (torch.autograd.grad(y.sum() + last.sum(), [x]) for y, last in (found, wanted))
        torch.testing.assert_close(a, b)
