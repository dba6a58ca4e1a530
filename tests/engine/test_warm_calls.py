"""Calls like one before take a short way to their plan: whatever changed meanwhile, they give what the plain
loop gives."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import every, few
from stepnet import LoDTensor, cells, recurrent
from stepnet.data import tensor_guards
from stepnet.engine import plans, warm_calls
from stepnet.engine.walked_steps import unchanged_step
from stepnet.errors import StepError
from stepnet.executors.direct import Direct
from stepnet.nested import recreated_steps
from threads import at_once
from torch_since import TOLD

F, H, B = 3, 4, 2
D = torch.float64


class Cell(nn.Module):
    """A step of two weights and a number."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.into = nn.Parameter(torch.randn(H, F, generator=draw, dtype=D))
        self.back = nn.Parameter(torch.randn(H, H, generator=draw, dtype=D) / 2)
        self.scale = 0.5
        self.boots = 0

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ self.into.T + self.scale * (h @ self.back.T))
        return h, h

    def initial_state(self, n: int) -> Tensor:
        self.boots += 1
        return torch.zeros(n, H, dtype=D)


def inputs(ragged: bool = False):
    draw = torch.Generator().manual_seed(2)
    if ragged:
        return LoDTensor.from_lengths(torch.randn(5, F, generator=draw, dtype=D), [[3, 0, 1, 1]])
    return torch.randn(3, B, F, generator=draw, dtype=D)


def outcome(cell, x, h0, backend, **how):
    y, h = recurrent(cell, x, h0, backend=backend, **how)
    rows = y.values if isinstance(y, LoDTensor) else y
    if not rows.requires_grad:
        return [rows, h]
    weight = torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).reshape(rows.shape)
    first, *others = h if isinstance(h, tuple) else (h,)
    given = h0[:1] if isinstance(h0, tuple) else (h0,)
    wanted = [p for p in (*cell.parameters(), *given) if p is not None and p.requires_grad]
    total = (rows * weight).sum() + sum(t.square().sum() for t in (first, *others))
    return [rows, first, *others, *torch.autograd.grad(total, wanted)]


def same(cell, x, h0, backend, **how):
    ours, plain = (outcome(cell, x, h0, name, **how) for name in (backend, "naive"))
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert a.dtype == b.dtype
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def replaced(cell):
    cell.into.data = torch.randn(F, H, dtype=D).T  # its columns one after the other


def swapped(cell):
    cell.back = nn.Parameter(torch.randn(H, H, dtype=D))


CHANGES = {
    "nothing": lambda cell: None,
    "a weight in place": lambda cell: cell.back.data.mul_(2),
    "a weight's memory": replaced,
    "another weight": swapped,
    "a number": lambda cell: setattr(cell, "scale", 0.25),
    "a weight that is frozen": lambda cell: cell.into.requires_grad_(False),
    "a hook": lambda cell: cell.register_forward_hook(lambda *a: (a[-1][0] * 2, a[-1][1])),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["c", "eager"])
@pytest.mark.parametrize("change", every(2, CHANGES))
def test_a_call_after_something_changed(change, backend):
    cell = Cell()
    for x in (inputs(), inputs(ragged=True)):
        h0 = torch.ones(4 if isinstance(x, LoDTensor) else B, H, dtype=D, requires_grad=True)
        same(cell, x, h0, backend)
        same(cell, x, h0, backend)
    CHANGES[change](cell)
    same(cell, inputs(), None, backend)
    same(cell, inputs(), None, backend)
    same(cell, inputs(ragged=True), None, backend, reverse=True)
    same(cell, inputs().transpose(0, 1), None, backend, axis=1)


@pytest.fixture(params=["torch's guards", "one by one"])
def compared(request, monkeypatch):
    """Either way to tell whether tensors look alike."""
    if request.param == "one by one":
        monkeypatch.setattr(tensor_guards, "TensorGuards", None)
    elif tensor_guards.TensorGuards is None:
        pytest.skip("this torch has none")


def called(x=None, h0=None, mode: Any = contextlib.nullcontext, **how):
    def run(cell, backend):
        with mode():
            same(cell, inputs() if x is None else x, h0, backend, **how)

    return run


def wanting(x):
    return x.clone().requires_grad_()


NOT_AS_IN_MEMORY = {
    "negative": lambda t: torch.complex(t, t).conj().imag,
    "zeros": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
}
STATE = torch.ones(B, H, dtype=D)
CALLS = {
    "as it is": called(),
    "with a state": called(h0=STATE),
    "a state that wants a gradient": called(h0=wanting(STATE)),
    "a state without one": called(h0=STATE, mode=torch.no_grad),
    "one that would want it": called(h0=wanting(STATE), mode=torch.no_grad),
    "rows apart": called(torch.randn(3, B, 2 * F, dtype=D)[..., ::2], STATE),
    "one row for all": called(torch.randn(F, dtype=D).expand(3, B, F), STATE),
    "another length": called(torch.randn(5, B, F, dtype=D)),
    "batch first": called(torch.randn(B, 3, F, dtype=D), STATE, axis=1),
    "from the end": called(inputs(), STATE, reverse=True),
    "negated": called(NOT_AS_IN_MEMORY["negative"](inputs()), STATE),
    "inferred": called(mode=torch.inference_mode),
    "ragged": called(inputs(ragged=True)),
    "other sequences": called(LoDTensor.from_lengths(torch.randn(4, F, dtype=D), [[1, 1, 0, 2]])),
    "more of them": called(LoDTensor.from_lengths(torch.randn(4, F, dtype=D), [[1, 1, 0, 1, 1]])),
    "none": called(torch.zeros(3, 0, F, dtype=D)),
    "of no steps": called(torch.zeros(0, B, F, dtype=D)),
}


@TOLD
@pytest.mark.parametrize("backend", few(["c", "eager"], ["eager"]))
def test_calls_in_any_order(backend, compared):
    cell, order = Cell(), random.Random(5)
    cell.initial_state = zeros  # which counts no calls: words tell that the cell reads what it read
    names = [*CALLS] * 4
    order.shuffle(names)
    seen = []
    for name in names:
        CALLS[name](cell, backend)
        found = unchanged_step(cell)
        seen.append(found is not None and len(found[0].likes))
        if order.random() < 0.1:
            cell.back.data.mul_(-1)
    assert max(seen) > 6  # so many kinds of calls were warm, before the plain loop was asked of no steps


def zeros(n: int) -> Tensor:
    return torch.zeros(n, H, dtype=D)


UNLIKE = {
    "another dtype": lambda t: t.float(),
    "more rows": lambda t: torch.cat((t, t)),
    "more features": lambda t: torch.cat((t, t), -1),
    "apart": lambda t: torch.cat((t, t), -1)[:, ::2],
    "transposed": lambda t: t.T.contiguous().T,
    **NOT_AS_IN_MEMORY,
    "sparse": lambda t: t.to_sparse(),
    "without numbers": lambda t: t.to("meta"),
    "a gradient": lambda t: t.clone().requires_grad_(),
    "a parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "complex": lambda t: t.to(torch.complex128),
    "inferred": lambda t: inferred(t),
    "no tensor": lambda t: t.tolist(),
}


@torch.inference_mode()
def inferred(t):
    return t + 0


@pytest.mark.parametrize("any_rows", [False, True])
def test_what_does_not_look_alike(any_rows, compared):
    one, two = torch.randn(2, F, dtype=D), torch.randn(F, 2, dtype=D)
    same = tensor_guards.alike([one, two], any_rows=any_rows)
    assert same(one.clone(), two.clone())
    for name, change in UNLIKE.items():
        assert not same(one, change(two)), name
        assert same(change(one), two) == (any_rows and name == "more rows"), name
    met = []
    torch.func.vmap(lambda t: met.append(same(one, two)) or t)(one)
    torch.func.grad(lambda t: met.append(same(one, two)) or t.sum())(one)
    with torch.autocast("cpu", torch.bfloat16):
        met.append(same(one, two))
    assert met == [False] * 3
    assert same(one, two)


def test_one_tensor_in_two_places(compared):
    one, two = torch.randn(2, F, dtype=D), torch.randn(2, F, dtype=D)
    same = tensor_guards.alike([one, two, one])
    assert same(one, two, one)
    assert same(two, one, two)
    assert not same(one, two, one.clone())
    assert not same(one, two, two)
    assert not same(one, two.float(), one)


@TOLD
def test_epochs_of_training_and_eval_are_warm_again_soon():
    cell, x, h0 = Cell(), inputs(), torch.ones(B, H, dtype=D)
    for epoch in range(24):
        cell.train(epoch % 2 == 0)
        for _ in range(20):
            recurrent(cell, x, h0, backend="eager")
        assert unchanged_step(cell) is not None, epoch
    for epoch in range(24):  # one that changes at each call is not written down each time
        cell.train(epoch % 2 == 0)
        for _ in range(2):
            recurrent(cell, x, h0, backend="eager")
    assert unchanged_step(cell) is None


@TOLD
def test_a_step_whose_tensors_changed_at_each_call_is_warm_once_they_stay():
    cell, x, h0 = Cell(), inputs(), torch.ones(B, H, dtype=D)
    for call in range(40):
        if call < 36:
            swapped(cell)
        recurrent(cell, x, h0, backend="eager")
    assert unchanged_step(cell) is not None


@TOLD
def test_backward_from_an_initial_state_of_one_row_for_all_goes_by_places(monkeypatch):
    by_places, found = Direct.gradients, []

    def gradients(self, *given):
        found.append(by_places(self, *given))
        return found[-1]

    monkeypatch.setattr(Direct, "gradients", gradients)
    cell, learned = Cell(), torch.full((1, H), 0.5, dtype=D, requires_grad=True)
    for _ in range(6):
        same(cell, inputs(), learned.expand(B, H), "c")
    assert found
    assert all(made is not None for made in found)


@TOLD
def test_a_warm_call_of_one_tensor_for_two_states():
    cell, x, h0 = cells.LSTM(F, H).double(), inputs(), torch.ones(B, H, dtype=D, requires_grad=True)
    for states in ((h0, h0), (h0, h0), (h0, h0), (h0, h0.clone()), (h0, h0)):
        same(cell, x, states, "c")
    found = unchanged_step(cell)
    assert found is not None
    assert len(found[0].likes) == 1


def test_a_warm_call_gives_tensors_of_their_own():
    cell, h0 = Cell(), torch.ones(B, H, dtype=D, requires_grad=True)
    for _ in range(4):
        y, h = recurrent(cell, inputs(), h0, backend="c")
        assert not any(t._is_view() for t in (y, h))
        y.sum().backward()
        found = [y, h, h0, h0.grad, *cell.parameters(), *(p.grad for p in cell.parameters())]
        assert len({t.untyped_storage().data_ptr() for t in found}) == len(found)
        y.detach().zero_()
        assert h.ne(0).all()


@pytest.fixture
def short(monkeypatch):
    """Calls from here on must take the short way."""

    def start():
        monkeypatch.setattr(plans, "find_plan", lambda *a, **k: pytest.fail("it went the long way"))

    return start


@pytest.mark.parametrize("x", [inputs(), inputs(ragged=True)], ids=["dense", "ragged"])
def test_other_lengths_and_batches_find_the_same_plan(x, short):
    cell = Cell()
    with torch.no_grad():
        recurrent(cell, x, backend="c")
        short()
        if isinstance(x, LoDTensor):
            others = [[[2, 3]], [[0, 0, 5]], [[]]]
            shapes = [LoDTensor.from_lengths(torch.randn(sum(n[0]), F, dtype=D), n) for n in others]
        else:
            shapes = [torch.randn(t, b, F, dtype=D) for t, b in ((1, 1), (5, 2), (0, 2), (2, 0))]
        for other in shapes:
            same(cell, other, None, "c")


def test_the_modes_have_plans_of_their_own():
    cell, x = Cell(), inputs()
    for _ in range(2):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                same(cell, x, None, "c")
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = recurrent(cell, x, backend="c")
            assert y.dtype == recurrent(cell, x, backend="naive")[0].dtype
    with torch.device("meta"):
        assert recurrent(cell, torch.zeros(2, B, F), torch.zeros(B, H))[0].is_meta


def test_results_have_memory_of_their_own():
    cell, x, h0 = Cell(), inputs(), torch.ones(B, H, dtype=D)
    with torch.no_grad():
        first = recurrent(cell, x, h0, backend="c")
        kept = [t.clone() for t in first]
        second = recurrent(cell, x, h0, backend="c")
        for t in second:
            t.zero_()
        for got, expected in zip((*first, h0), (*kept, torch.ones_like(h0)), strict=True):
            assert torch.equal(got, expected)
        third = recurrent(cell, x, h0, backend="c")
    assert all(torch.equal(a, b) for a, b in zip(third, kept, strict=True))


def test_the_initial_state_is_made_once_a_call():
    cell = Cell()
    for calls in (1, 2, 3):
        recurrent(cell, inputs(), backend="c")
        assert cell.boots == calls


@pytest.mark.exhaustive  # more of them: test_directions.py
def test_a_gradient_of_a_gradient():
    cell, x = Cell(), inputs()
    found = []
    for backend in ("c", "c", "naive"):
        h0 = torch.ones(B, H, dtype=D, requires_grad=True)
        y, _ = recurrent(cell, x, h0, backend=backend)
        (first,) = torch.autograd.grad(y.square().sum(), h0, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [h0, cell.back]))
    for got in found[:2]:
        torch.testing.assert_close(got, found[2])


def test_what_does_not_fit_is_told_as_at_the_first_call():
    cell = Cell()
    texts = []
    for _ in range(2):
        with pytest.raises(StepError, match="one row per sequence") as raised:
            recurrent(cell, inputs(ragged=True), torch.zeros(3, H, dtype=D), backend="c")
        texts.append(str(raised.value))
        recurrent(cell, inputs(ragged=True), backend="c")
    assert texts[0] == texts[1]


def test_transforms_go_the_long_way():
    cell, x = Cell(), inputs()
    h0 = torch.ones(B, H, dtype=D)
    recurrent(cell, x, h0)

    def total(h):
        return recurrent(cell, x, h)[1].sum()

    expected = torch.autograd.grad(total(h := h0.clone().requires_grad_()), h)[0]
    torch.testing.assert_close(torch.func.grad(total)(h0), expected)


def test_from_threads():
    cell, x = Cell(), inputs(ragged=True)
    with torch.no_grad():
        expected = recurrent(cell, x, backend="naive")[0].values

    def work(_):
        with torch.no_grad():
            for _ in range(50):
                assert torch.allclose(recurrent(cell, x, backend="c")[0].values, expected)

    at_once(work)


def test_no_step_is_kept_alive():
    def run(cell: nn.Module) -> weakref.ref[nn.Module]:
        for _ in range(2):
            recurrent(cell, torch.zeros(2, B, F))
        return weakref.ref(cell)

    kept = cells.GRU(F, H)  # the first of a kind makes the plan
    run(kept)
    gone = run(cells.GRU(F, H))
    gc.collect()
    assert gone() is None
    assert warm_calls._known


@TOLD
@pytest.mark.parametrize("backend", few(["c", "eager"], ["eager"]))
def test_the_third_call_looks_at_words_of_memory(backend, monkeypatch):
    class Holder:
        def __init__(self) -> None:
            self.cell = Cell()

        def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return self.cell(x, h)

    holder, torch_cell, scale = Holder(), nn.GRUCell(F, H, dtype=D), 0.5
    monkeypatch.setattr(recreated_steps, "_firsts", {})  # no twin of a step of another test

    def closure(x, h):
        h = torch.tanh(h * scale + x.sum(-1, keepdim=True))
        return h, h

    steps = {"bound": lambda: holder.step, "torch": lambda: torch_cell, "closure": lambda: closure}
    x, h0 = inputs(), torch.ones(B, H, dtype=D)
    for _ in range(2):
        for step in steps.values():
            recurrent(step(), x, h0, backend=backend)
    expected = [recurrent(step(), x, h0, backend="naive") for step in steps.values()]
    with monkeypatch.context() as patched:
        patched.setattr(warm_calls, "reach", lambda *_: pytest.fail("it was walked"))
        found = [recurrent(step(), x, h0, backend=backend) for step in steps.values()]
    torch.testing.assert_close(found, expected)  # its first call in a process imports: then steps are walked
    scale, holder.cell = 0.25, Cell()
    torch_cell.weight_hh = nn.Parameter(torch.zeros(3 * H, H, dtype=D))
    holder.cell.scale = 2.0
    for step in steps.values():
        expected = recurrent(step(), x, h0, backend="naive")
        torch.testing.assert_close(recurrent(step(), x, h0, backend=backend), expected)


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(H, H, generator=torch.Generator().manual_seed(3), dtype=D))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + torch.mm(self.weight, h.T).T)
        return h, h


@pytest.mark.parametrize("kind", NOT_AS_IN_MEMORY)
def test_tensors_whose_memory_does_not_hold_their_numbers(kind):
    form, step, h0 = NOT_AS_IN_MEMORY[kind], Weighed(), torch.ones(B, H, dtype=D, requires_grad=True)
    x = torch.randn(3, B, H, dtype=D)
    for _ in range(4):
        same(step, x, h0, "c")
    same(step, form(x), h0, "c")
    same(step, x, form(h0), "c")
    step.weight = form(step.weight)
    same(step, x, h0, "c")


def test_a_weight_that_becomes_sparse():
    step, h0 = Weighed(), torch.ones(B, H, dtype=D, requires_grad=True)
    x = torch.randn(3, B, H, dtype=D)
    for _ in range(4):
        same(step, x, h0, None)
    step.weight = step.weight.to_sparse()
    for _ in range(3):
        same(step, x, h0, None)
        step.weight.values().mul_(0.9)
    step.weight = step.weight.to_dense()
    same(step, x, h0, None)
