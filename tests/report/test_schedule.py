"""What runs once and what runs at every step, of every cell: as told, and as the profiler counts it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import stepnet
from covering import every, few
from stepnet import Recurrent, cells
from stepnet.cells import GRU, LSTM, RNN, LayerNormLSTM, MinGRU, PeepholeLSTM
from stepnet.engine import plans, warm_calls
from stepnet.errors import StepError
from stepnet.executors.schedule import adopt
from stepnet.report import explain
from stepnet.resets import Resets

I, H, T, B = 3, 5, 7, 2

# cell -> (matrices that meet x, matrices that meet the state, linear states)
CELLS = {
    "RNN": (lambda: RNN(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "LSTM": (lambda: LSTM(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "GRU": (lambda: GRU(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "PeepholeLSTM": (lambda: PeepholeLSTM(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "LayerNormLSTM": (lambda: LayerNormLSTM(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "SLSTM": (lambda: cells.SLSTM(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "MinGRU": (lambda: MinGRU(I, H), {"weight_ih"}, set(), ("state",)),
    "MinLSTM": (lambda: cells.MinLSTM(I, H), {"weight_ih"}, set(), ("state",)),
    "torch.nn.LSTMCell": (lambda: nn.LSTMCell(I, H), {"weight_ih"}, {"weight_hh"}, ()),
    "torch.nn.GRUCell": (lambda: nn.GRUCell(I, H), {"weight_ih"}, {"weight_hh"}, ()),
}
BACKENDS = ("c", "eager")


def test_every_cell_is_here():
    concrete = {
        name
        for name, kind in vars(cells).items()
        if isinstance(kind, type) and issubclass(kind, cells.Cell) and kind is not cells.Cell
    }
    assert concrete <= set(CELLS)


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "c":
        request.getfixturevalue("_compiler")
    return request.param


@pytest.fixture
def adopting(request, monkeypatch):
    """Whether generated C takes small matmuls in (the default); plans of the other kind are forgotten."""
    adopts = getattr(request, "param", True)
    monkeypatch.setattr(plans, "_entries", OrderedDict())
    monkeypatch.setattr(warm_calls, "_known", OrderedDict())
    if not adopts:
        monkeypatch.setattr(adopt, "MOST_BYTES", 0)
    return adopts


def read_by_matmuls(told, direction, kind):
    """The named values that matmuls read in regions of a kind."""
    loop = next(loop for loop in told.loops if loop.direction == direction)
    ops = [op for region in loop.regions if region.kind == kind for op in region.matmuls]
    return {name for op in ops for value in op.inputs[:2] if (name := loop.origin(value))}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", CELLS)
def test_the_schedule_of_a_cell(name, backend):
    make, of_x, of_state, linear = CELLS[name]
    told = explain(make(), torch.randn(T, B, I), backend=backend)
    assert told.executor == backend
    assert told.refusals == ()
    # forward: the input's matmul once on all rows, the state's at every step
    assert read_by_matmuls(told, "forward", "map") & (of_x | of_state) == of_x
    assert read_by_matmuls(told, "forward", "scan") & (of_x | of_state) == of_state
    # backward: gradients of all matrices once, the state's gradient at every step
    backward = told.loops[1]
    makers = backward.makers
    for weight in of_x | of_state:
        op = makers[backward.sources[f"gradient of {weight}"]]
        assert (op.name, op.kind) == ("matmul_tn", "sum")
        (region,) = [region for region in backward.regions if op in region.ops]
        assert not region.per_step
        assert region.runs == 1
    assert read_by_matmuls(told, "backward", "scan") & (of_x | of_state) == of_state
    assert told.linear == linear
    for region in told.regions:
        assert region.runs == (T if region.kind == "scan" else 1)
        in_c = region.kind == "scan" or region.in_blocks
        assert region.executor == ("c" if in_c and backend == "c" else "torch")


def turned(x, state):
    """A complex number in two states, and a sum of one of them."""
    re, im, total = state
    re, im = 0.6 * re - 0.8 * im + x[:, :H], 0.8 * re + 0.6 * im
    return re, (re, im, total * x[:, :1] + re)


def halves(x, h):
    first, second = h.chunk(2, -1)
    h = torch.cat([torch.lerp(first, x[:, :1], x[:, 1:2]), first - second / 2], -1)
    return h.exp(), h


def gated(x, state):
    h, c, held = state
    h = torch.tanh(h + c)
    return c, (h, h * c + x[:, :1], held)


def after(x, state):
    """Steps of c are run when all of h are there."""
    h, c = state
    h = torch.tanh(h + x[:, :1])
    return c, (h, h * c + x[:, :1])


TURN = torch.tensor([[0.6, -0.8], [0.8, 0.6]])


def delta(x, h):
    """A diagonal, and a product of two vectors, as a matrix."""
    key = x[:, :H] / 4
    return h, h * 0.9 - key * (key * h).sum(1, keepdim=True) + x[:, :1]


JOINTLY = {
    "matrix": (
        lambda x, h: (h, torch.einsum("ij,bhj->bhi", TURN, h) + x[:, :1, None]),
        torch.zeros(B, H, 2),
        ("state",),
    ),
    "product of states": (lambda x, h: (h, h @ h.mT + x[:, :1, None]), torch.zeros(B, 2, 2), ()),
    "delta": (delta, torch.zeros(B, H), ("state",)),
    "turned": (turned, (torch.zeros(B, H),) * 3, ("state[0]", "state[1]", "state[2]")),
    "complex": (lambda x, z: (z.real, (0.5 + 0.5j) * z + x[:, :1]), torch.zeros(B, H) * 1j, ("state",)),
    "halves": (halves, torch.zeros(B, 4), ("state",)),
    "gated": (gated, (torch.zeros(B, H),) * 3, ()),
    "after": (after, (torch.zeros(B, H),) * 2, ("state[1]",)),
    "squared": (lambda x, h: (h, h * h + x[:, :1]), torch.zeros(B, H), ()),
    "clamped": (lambda x, h: (h, (h + x[:, :1]).clamp(-1, 1)), torch.zeros(B, H), ()),
    "chosen by the state": (lambda x, h: (h, torch.where(h > 0, h, x[:, :1])), torch.zeros(B, H), ()),
}


@pytest.mark.parametrize("name", every(2, JOINTLY))
def test_states_that_are_linear_together(name):
    step, state, linear = JOINTLY[name]
    assert explain(step, torch.randn(T, B, H), state, backend="eager").linear == linear


def matmuls_run(call):
    """How many matrix products torch runs."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return sum(e.count for e in profiler.key_averages() if e.key in ("aten::mm", "aten::bmm"))


@pytest.mark.covering(2)
@pytest.mark.parametrize("name", few(["LSTM", "LayerNormLSTM", "MinGRU"], ["LSTM"]))
@pytest.mark.parametrize(
    ("backend", "adopting"),
    [("c", True), ("c", False), ("eager", True)],
    ids=["c", "c alone", "eager"],
    indirect=True,
)
@pytest.mark.usefixtures("adopting")
def test_torch_runs_as_many_matmuls_as_told(name, backend):
    steps = 300 if backend == "c" else 30  # of few rows C makes gradients of weights
    cell, x = CELLS[name][0](), torch.randn(steps, B, I)
    told = explain(cell, x, backend=backend)
    expected = [
        sum(len(region.matmuls) * region.runs for region in loop.regions if region.executor == "torch")
        for loop in told.loops
    ]
    y, _ = stepnet.recurrent(cell, x, backend=backend)
    forward = matmuls_run(lambda: stepnet.recurrent(cell, x, backend=backend))
    backward = matmuls_run(lambda: y.sum().backward())
    assert [forward, backward] == expected


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("adopting", [True, False], indirect=True)
def test_matmuls_that_c_takes_in_are_told_as_the_maps_they_are(adopting):
    x = torch.randn(T, B, I, requires_grad=True)
    told = explain(LSTM(I, H), x)
    blocks = {r.direction: (r.kind, r.executor, r.runs, len(r.matmuls)) for r in told.regions if r.in_blocks}
    if adopting:  # x @ weight_ih before the forward scan, the gradient of x after the backward one
        assert blocks == {"forward": ("map", "c", 1, 1), "backward": ("map", "c", 1, 1)}
        (early,) = [r for r in told.loops[0].regions if r.in_blocks]
        assert (early.bytes_read, early.bytes_written) == (4 * (T * B * I + I * 4 * H), 0)
        (late,) = [r for r in told.loops[1].regions if r.in_blocks]
        assert (late.bytes_read, late.bytes_written) == (4 * 4 * H * I, 4 * T * B * I)
    else:
        assert blocks == {}
    once = sum(r.flops for r in told.regions if r.matmuls and not r.per_step)
    assert once == T * B * 2 * 4 * H * (I + I + I + H)  # x, its gradient, and both weights' gradients


@pytest.mark.usefixtures("_compiler")
def test_two_cells_in_one_step_give_two_scans_with_one_matmul_between():
    first, second = GRU(I, H), GRU(H, H)

    def step(x, state):
        y, a = first(x, state[0])
        y, b = second(y, state[1])
        return y, (a, b)

    told = explain(step, torch.randn(T, B, I), (torch.zeros(B, H), torch.zeros(B, H)))
    kinds = [region.kind for region in told.loops[0].regions if region.kind in ("map", "scan")]
    assert kinds == ["map", "scan", "map", "scan"]
    reads = [
        [told.loops[0].origin(op.inputs[1]) for op in region.matmuls]
        for region in told.loops[0].regions
        if region.matmuls
    ]
    assert reads == [["first.weight_ih"], ["first.weight_hh"], ["second.weight_ih"], ["second.weight_hh"]]


def test_nothing_is_told_of_gradients_nobody_wants():
    cell = GRU(I, H).requires_grad_(False)
    x = torch.randn(T, B, I)
    told = explain(cell, x)
    assert [loop.direction for loop in told.loops] == ["forward"]
    assert not told.training
    assert told.saved == ()
    cell.weight_hh.requires_grad_(True)
    told = explain(cell, x)
    assert told.training
    assert "gradient of weight_hh" in told.loops[1].sources
    assert "gradient of weight_ih" not in told.loops[1].sources
    with torch.no_grad():
        assert [loop.direction for loop in explain(cell, x).loops] == ["forward"]


def test_explaining_runs_no_loop_and_leaves_the_plan_ready(monkeypatch):
    cell, x = GRU(I, H), torch.randn(T, B, I)

    def fail(*_):
        raise AssertionError("the loop ran")

    with monkeypatch.context() as patch:
        patch.setattr(plans, "run", fail)
        told = explain(cell, x)
    compiled = []
    monkeypatch.setattr(plans, "make", lambda *args: compiled.append(args))
    y, _ = stepnet.recurrent(cell, x)
    assert told.executor in BACKENDS
    assert compiled == []
    assert y.shape == (T, B, H)


@pytest.mark.parametrize(
    ("x", "steps", "sequences", "rows", "shortest"),
    every(
        2,
        [
            (torch.randn(T, B, I), T, B, T * B, T),
            (torch.randn(1, B, I), 1, B, B, 1),
            (torch.randn(T, 1, I), T, 1, T, T),
            (torch.randn(0, B, I), 0, B, 0, 0),
            (torch.randn(T, 0, I), 0, 0, 0, 0),
            (stepnet.LoDTensor.from_lengths(torch.randn(6, I), [[2, 0, 3, 1]]), 3, 4, 6, 0),
            (stepnet.LoDTensor.from_lengths(torch.randn(0, I), [[]]), 0, 0, 0, 0),
            (nn.utils.rnn.pack_sequence([torch.randn(3, I), torch.randn(2, I)]), 3, 2, 5, 2),
        ],
    ),
    ids=["dense", "one step", "one sequence", "no steps", "no sequences", "ragged", "nothing", "packed"],
)
def test_counts(x, steps, sequences, rows, shortest):
    told = explain(GRU(I, H), x)
    assert (told.steps, told.sequences, told.rows, told.shortest) == (steps, sequences, rows, shortest)
    assert [r.runs for r in told.regions if r.kind == "scan"] == [steps, steps]
    assert str(told)
    assert told.to_svg()


def test_a_recurrent_module_is_explained_with_its_own_settings():
    module = stepnet.Recurrent(GRU(I, H), axis=1, reverse=True, backend="eager")
    told = explain(module, torch.randn(B, T, I))
    assert (told.steps, told.sequences, told.executor) == (T, B, "eager")
    assert explain(module, torch.randn(B, T, I), backend="naive").executor == "naive"


def test_what_recurrent_takes_besides():
    """Steps without an input, marks where sequences start anew, and both kinds of settings together."""

    def step(x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h if x is None else h + x)
        return h, h

    h = torch.zeros(2, 4)
    told: Any = explain(step, steps=5, state=h)
    assert (told.executor, told.steps, told.sequences, told.rows) == ("c", 5, 2, 10)
    told = explain(step, steps=[3, 1], state=h, reverse=True)
    assert (told.steps, told.rows, told.reverse) == (3, 4, True)
    marks = torch.tensor([[False, False], [False, False], [False, True], [True, False]])
    told = explain(step, torch.ones(4, 2, 4), h, resets=marks)
    assert (told.executor, told.sequences, told.rows) == ("c", 4, 8)  # 3 + 1 and 2 + 2 steps
    assert (told.shortest, told.steps) == (1, 3)
    told = explain(step, torch.ones(4, 2, 4), h, resets=Resets(done=marks, state=h))
    assert (told.shortest, told.steps) == (0, 4)  # the last row of one is marked: a next call starts anew
    told = explain(
        lambda x, h, m: (h + x * m, h), torch.ones(4, 2, 4), h, static=torch.ones(2, 4), resets=marks, axis=0
    )
    assert told.sequences == 4
    assert explain(Recurrent(step, axis=1), torch.ones(2, 3, 4), h, resets=torch.zeros(2, 3)).steps == 3  # pyright: ignore
    with pytest.raises(StepError, match="x besides"):
        explain(step, torch.ones(4, 2, 4), h, steps=3)
