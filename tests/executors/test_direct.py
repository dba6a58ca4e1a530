"""Calls like one before go by places, others by names: both give the same bits, and memory of one's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from covering import few
from outcomes import tensors
from stepnet import LoDTensor, recurrent
from stepnet.cells import LSTM
from stepnet.data import heap
from stepnet.errors import StepError
from stepnet.executors import addresses, autograd
from stepnet.executors.c import placement
from stepnet.executors.direct import Direct, Lately
from threads import at_once

BACKEND = "c"
OPTIMISED = False  # both ways run the same code
D = 4
ROWS = {"dense": torch.randn(5, 3, D), "batch first": torch.randn(3, 5, D), "ragged": torch.randn(7, D)}


class TwoResults(nn.Module):
    """Two results, two biases with one gradient, and a weight that needs none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)
        self.a.weight.requires_grad_(False)

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, D, dtype=self.b.weight.dtype)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(self.a(x) + self.b(h))
        return {"twice": new * 2, "new": new}, new


class Beside(TwoResults):
    """A product with x beside the state: of doubles, its gradient is a map after the scan, and what it reads
    one before."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(2 * D, D)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        gate = torch.sigmoid(self.both(torch.cat([x, h], -1)))
        new = gate * h + (1 - gate) * torch.tanh(self.b(h))
        return {"twice": new * 2, "new": new}, new


class Kept(TwoResults):
    """A product with x that is a result, and kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        gate = self.a(x)
        new = torch.tanh(nn.functional.gelu(gate) + self.b(h))
        return {"gate": gate, "new": new}, new


class Head(TwoResults):
    """Results by maps after the scan: one is that of a layer, one is read by backward and one is a part of
    what is kept for it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(D, 2 * D), nn.Linear(2 * D, 3)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(self.a(x) + self.b(h))
        wide = nn.functional.gelu(self.inner(new))
        return {"out": self.out(wide), "gate": torch.sigmoid(self.out(wide)), "x": x.flip(-1)}, new


class Counter(TwoResults):
    """A scan of its own, which another one reads."""

    def initial_state(self, n: int) -> Any:
        return super().initial_state(n), torch.zeros(n, 1, dtype=self.b.weight.dtype)

    def forward(self, x: Tensor, h: Any) -> Any:
        h, steps = h
        h = torch.tanh(self.a(x) + self.b(h) + 0.1 * steps)
        return torch.log_softmax(self.a(h), -1), (h, steps + 1)


STEPS: dict[str, Callable[[], Any]] = {
    "head": Head,
    "counter": Counter,
    "lstm": lambda: LSTM(D, D),
    "two": TwoResults,
    "frozen": lambda: TwoResults().requires_grad_(False),
    "maps": lambda: Beside().double(),
    "kept": Kept,
}


CASES = [
    ("lstm", "dense", True),
    ("lstm", "ragged", False),
    ("two", "batch first", True),
    ("frozen", "dense", True),
    ("maps", "ragged", True),
    ("maps", "batch first", False),
    ("kept", "dense", True),
    ("head", "dense", True),
    ("head", "ragged", True),
    ("counter", "batch first", True),
]


class Called:
    """A step, called until its calls go by places."""

    def __init__(self, step: str, form: str, moving: bool) -> None:
        self.step = STEPS[step]()
        rows = ROWS[form].to(next(self.step.parameters()).dtype, copy=True).requires_grad_(moving)
        self.x = LoDTensor.from_lengths(rows, [[3, 0, 4]]) if form == "ragged" else rows
        self.how = {"axis": int(form == "batch first"), "backend": BACKEND}
        self.wanted = [t for t in (*self.step.parameters(), rows) if t.requires_grad]
        for _ in range(8):
            gradients(self, self())

    def __call__(self) -> list[Tensor]:
        return tensors(recurrent(self.step, self.x, **self.how))


def gradients(call: Called, results: list[Tensor], seeds: Any = torch.clone, **how: Any) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    given = [seeds(torch.randn(t.shape, generator=draw, dtype=t.dtype)) for t in results]
    pairs = [(t, s) for t, s in zip(results, given, strict=True) if t.requires_grad]
    if not pairs or not call.wanted:
        return []
    of, given = [t for t, _ in pairs], [s for _, s in pairs]
    return list(torch.autograd.grad(of, call.wanted, given, allow_unused=True, **how))


def once(call: Called) -> list[Any]:
    results = call()
    return results + gradients(call, results)


def one_result(call: Called) -> list[Any]:
    return gradients(call, call()[:1])


def last_state(call: Called) -> list[Any]:
    return gradients(call, call()[-1:])


def without_gradients(call: Called) -> list[Any]:
    with torch.no_grad():
        return [t for _ in range(8) for t in call()]


def in_inference_mode(call: Called) -> list[Any]:
    with torch.inference_mode():
        return [t.clone() for _ in range(8) for t in call()]


def retained(call: Called) -> list[Any]:
    results = call()
    return gradients(call, results, retain_graph=True) + gradients(call, results)


def two_at_once(call: Called) -> list[Any]:
    one, two = call(), call()
    return gradients(call, one) + gradients(call, two)


def differentiated_again(call: Called) -> list[Any]:
    found = gradients(call, call(), create_graph=True)
    moving = [t for t in found if t is not None and t.requires_grad]
    total = sum((t * t).sum() for t in moving)
    again = torch.autograd.grad(total, call.wanted, allow_unused=True) if moving else ()
    return found + list(again)


def differentiated_again_often(call: Called) -> list[Any]:
    return [differentiated_again(call) for _ in range(7)][-1]


def penalised_often(call: Called) -> list[Any]:
    """A loss of the gradient and of the results, whose backward comes by the loop twice."""
    for _ in range(7):
        results = call()
        found = gradients(call, results, create_graph=True)
        moving = [t for t in (*found, *results) if t is not None and t.requires_grad]
        total = sum((t * t).sum() for t in moving)
        again = torch.autograd.grad(total, call.wanted, allow_unused=True) if moving else ()
    return list(again)


def many_at_once(call: Called) -> list[Any]:
    return gradients(call, call(), lambda s: torch.stack([s, 2 * s]), is_grads_batched=True)


def expanded(call: Called) -> list[Any]:
    return gradients(call, call(), lambda s: s.flatten()[:1].expand(s.shape))


def negated(call: Called) -> list[Any]:
    return gradients(call, call(), torch._neg_view)


def turned(call: Called) -> list[Any]:
    return gradients(call, call(), lambda s: s.transpose(0, 1).contiguous().transpose(0, 1))


def not_a_number(call: Called) -> list[Any]:
    return gradients(call, call(), lambda s: s.log())


def saved_elsewhere(call: Called) -> list[Any]:
    def turned(t):
        return t.transpose(0, -1) if t.dim() > 1 else t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: turned(t).contiguous(), turned):
        results = call()
    return gradients(call, results)


def from_threads(call: Called) -> list[Any]:
    found: list[list[Tensor]] = []
    threads = [threading.Thread(target=lambda: found.append(once(call))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [t for each in found for t in each]


def under_autocast(call: Called) -> list[Any]:
    results = call()
    with torch.autocast("cpu", torch.bfloat16):
        return gradients(call, results)


def outside_autocast(call: Called) -> list[Any]:
    results = call()
    with torch.autocast("cpu", enabled=False):
        return results + gradients(call, results)


def changed_in_place(call: Called) -> list[Any]:
    with torch.no_grad():
        for t in call.step.parameters():
            t.mul_(0.5)
    return once(call)


def changed_data(call: Called) -> list[Any]:
    for t in call.step.parameters():
        t.data = t.data.t().contiguous().t() * 0.5
    return once(call)


WAYS = [
    once, one_result, last_state, without_gradients, in_inference_mode, retained, two_at_once,
    differentiated_again, differentiated_again_often, penalised_often, many_at_once, expanded, negated,
    turned, not_a_number, saved_elsewhere,
    from_threads, under_autocast, outside_autocast, changed_in_place, changed_data,
]  # fmt: skip


def outcome(way: Any, step: str, form: str, moving: bool, direct: bool) -> tuple[list[Any], int]:
    """What comes of it, and how many runs went by places; storages as numbers in the order they come."""
    ran, seen = [0], {}
    forward = Direct.forward

    def counted(self, *given):
        ran[0] += 1
        return forward(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        patch.setattr(Direct, "forward", counted)
        if not direct:
            patch.setattr(Lately, "direct", lambda *_: None)
        found = way(Called(step, form, moving))
    told: list[Any] = []
    for t in found:
        told.append(None)
        if t is not None:
            place = seen.setdefault(t.untyped_storage().data_ptr(), len(seen))
            told[-1] = t.detach(), t.shape, t.stride(), t.requires_grad, t.is_leaf, place
    return told, ran[0]


BOTH = [(way, *case) for way in WAYS for case in CASES]
IN_TURN = [(way, *CASES[i % len(CASES)]) for i, way in enumerate(WAYS)]


@pytest.mark.parametrize(
    ("way", "step", "form", "moving"),
    few(BOTH, IN_TURN[::7]),
    ids=[f"{way.__name__}-{step}-{form}" for way, step, form, _ in BOTH],
)
def test_as_by_names(way, step, form, moving):
    assert runs_as_by_names(way, step, form, moving) > 1


def runs_as_by_names(way: Any, step: str, form: str, moving: bool) -> int:
    """How many runs went by places; what comes of them is as by names."""
    (by_places, ran), (by_names, _) = (outcome(way, step, form, moving, direct) for direct in (True, False))
    assert len(by_places) == len(by_names)
    for one, other in zip(by_places, by_names, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one[0], other[0], rtol=0, atol=0, equal_nan=True)
            assert one[1:] == other[1:]
    return ran


@pytest.mark.parametrize(
    ("way", "step", "form", "moving"),
    few(BOTH, [(once, *CASES[1]), (outside_autocast, *CASES[0]), (without_gradients, *CASES[2])]),
    ids=[f"{way.__name__}-{step}-{form}" for way, step, form, _ in BOTH],
)
def test_under_autocast_as_by_names(way, step, form, moving):
    """Casts are maps before the scan, and what is kept for backward is of two types."""
    with torch.autocast("cpu", torch.bfloat16):
        ran = runs_as_by_names(way, step, form, moving)
        assert torch.is_autocast_enabled("cpu")
    assert ran > 1


@pytest.mark.parametrize("way", few(WAYS, WAYS[:1]), ids=lambda way: way.__name__)
def test_tables_in_memory_of_earlier_ones(monkeypatch, way):
    """As those of more than a MiB are."""
    monkeypatch.setattr(addresses, "_FOUND", 0)
    monkeypatch.setattr(heap, "KEPT", 1)
    for _ in range(2):
        test_as_by_names(way, "lstm", "dense", True)


class Unused(TwoResults):
    """A result whose derivative is infinite where y is 0."""

    def forward(self, x: Tensor, h: Tensor) -> Any:
        new = torch.sigmoid(self.b(h)) * torch.relu(x)
        return {"twice": new.sqrt(), "new": new}, new


def test_what_has_no_part_in_the_results_in_use(monkeypatch):
    """Zeros stand for its gradient, and times infinity are none."""
    monkeypatch.setitem(STEPS, "unused", Unused)
    call = Called("unused", "ragged", True)
    found = [gradients(call, call()[1:]) for _ in range(3)]
    call.how["backend"] = "naive"
    expected = gradients(call, call()[1:])
    for each in found:
        torch.testing.assert_close(each, expected)
    assert all(t is None or t.isfinite().all() for t in expected)


def test_memory_that_is_gone():
    call = Called("lstm", "dense", True)
    call.step.weight_ih.untyped_storage().resize_(0)
    with pytest.raises(StepError, match="memory"):
        call()


def test_written_before_backward():
    """A result is computed once more."""
    call = Called("lstm", "dense", True)
    y, *last = call()
    expected = gradients(call, [y * 2, *last])
    y, *last = call()
    torch.testing.assert_close(gradients(call, [y.mul_(2), *last]), expected)


def test_without_a_backward_sequences_may_be_others(monkeypatch):
    forward, found = Direct.forward, []

    def noted(self, inputs, layout):
        out = forward(self, inputs, layout)
        found.append(out is not None and layout is not self.layout)
        return out

    monkeypatch.setattr(Direct, "forward", noted)
    step = LSTM(D, D)
    others = [[2, 5], [1, 6], [5, 2], [7, 0], [1, 3], [4, 2], [0, 5], [4, 4], [2, 2, 3], [3, 4]]
    for lengths in [*[[3, 4]] * 7, *others]:
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), D), [lengths])
        with torch.no_grad():
            (y, final), (expected, last) = (recurrent(step, x, backend=b) for b in (BACKEND, "naive"))
        torch.testing.assert_close((y.values, *final), (expected.values, *last))
    assert found[-9:] == [True] * 8 + [False], found  # of [4, 4] by names: more rows; [3, 4] is the first


@pytest.mark.parametrize(("name", "size"), few([*((name, D) for name in STEPS), ("lstm", 32)], [("lstm", D)]))
def test_pieces_may_be_others(monkeypatch, name, size):
    """Of 32 features no rows are few: products over them are torch's."""
    backward, moved = Direct.gradients, []

    def noted(self, saved, grads, needed, layout):
        out = backward(self, saved, grads, needed, layout)
        moved.append(out is not None and layout is not self.layout)
        return out

    monkeypatch.setattr(Direct, "gradients", noted)
    step = LSTM(size, size) if size > D else STEPS[name]()
    dtype = next(step.parameters()).dtype
    draw = torch.Generator().manual_seed(0)
    x, *seeds = (torch.randn(9, 3, size, generator=draw, dtype=dtype) for _ in range(3))
    state = step.initial_state(3)
    states = [t for t in tensors((state, ())) if t.shape[-1] == size]  # a counter is not learned
    leaves = [t.copy_(torch.randn(t.shape, generator=draw)).requires_grad_() for t in states]
    wanted = [t for t in (*step.parameters(), *leaves, x.requires_grad_()) if t.requires_grad]
    for i in range(18):
        marks = torch.rand(9, 3, generator=draw) < 0.2
        ran = []
        for backend in (BACKEND, "naive"):
            results = tensors(recurrent(step, x, state, resets=marks, backend=backend))
            used = [t for t in (results if i % 2 else results[:1]) if t.requires_grad]
            of = [seeds[0][0, 0, 0] * t.square().sum() for t in used]
            again = name in ("two", "maps") and i in (13, 17)
            found = torch.autograd.grad(of, wanted, allow_unused=True, create_graph=again)
            if again and any(g is not None and g.requires_grad for g in found):
                twice = sum(g.square().sum() for g in found if g is not None)
                found += torch.autograd.grad(twice, wanted, allow_unused=True)
            ran.append([*results, *found])
        torch.testing.assert_close(*ran, rtol=1e-3, atol=1e-4)
    assert sum(moved) > 2, moved


@torch.no_grad()
def test_calls_of_other_rows_at_once():
    step = LSTM(D, D)
    batches = [LoDTensor.from_lengths(torch.randn(20 * k * k, D), [[20 * k * k]]) for k in (1, 2, 3, 4)]
    expected = [recurrent(step, x, backend="naive")[0].values for x in batches]

    def run(k: int) -> None:
        with torch.no_grad():
            for i in range(60):
                y = recurrent(step, batches[i * k % 4], backend=BACKEND)[0].values
                torch.testing.assert_close(y, expected[i * k % 4])

    at_once(run)


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0]])
@pytest.mark.parametrize("backend", ["naive", "eager", "c"])
def test_no_hook_is_called_where_no_gradient_comes(backend, lengths):
    rows, h, w = (torch.randn(n, 3, requires_grad=True) for n in (sum(lengths), len(lengths), 3))
    for t in (rows, h, w):
        t.register_hook(lambda g: g * 0.5)  # which fails of None
    for _ in range(6):  # the last by places
        x = LoDTensor.from_lengths(rows, [lengths])
        y, final = recurrent(lambda x, h: (h, (x @ w).detach() + 0.5 * h), x, h, backend=backend)
        (y.values.sum() + final.sum()).backward()
    assert (rows.grad, w.grad) == (None, None)
    assert h.grad is not None


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["naive", "eager", "c"])
@pytest.mark.parametrize("used", [0, 1])
def test_no_hook_is_called_where_the_results_in_use_bring_no_gradient(backend, used):
    """Of either result: y reaches the rows and v, the final state the initial one and w."""
    rows, h, v, w = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (5, 3, 3, 3))
    inputs, called, counted = (rows * 1, h * 1, v, w), [], []
    for t in inputs:
        t.register_hook(lambda g: g * 0.5)  # which fails of None
    for k in range(6):  # the last by places
        x = LoDTensor.from_lengths(inputs[0], [[2, 0, 3]])
        y, final = recurrent(lambda x, h: (x @ v, torch.tanh(h @ w)), x, inputs[1], backend=backend)
        results = y.values, final
        for j, t in enumerate(results):
            t.register_hook(lambda g, j=j: called.append(j) or g * 2)
        register_multi_grad_hook(results, lambda grads: counted.append([g is not None for g in grads]))
        results[used].sum().backward(retain_graph=True)
        assert called == [used] * (k + 1)
        assert counted == [[j == used for j in range(2)]] * (k + 1)
    reached = ((rows, v), (h, w))
    assert all(t.grad is not None for t in reached[used])
    assert all(t.grad is None for t in reached[1 - used])


@pytest.mark.parametrize("threads", few([2, 3], [2]))
@pytest.mark.parametrize(
    ("step", "form"), few([(s, f) for s in ("lstm", "maps") for f in ROWS], [("lstm", "ragged")])
)
def test_threads_that_sum_some_rows_each(monkeypatch, step, form, threads):
    """The parts of a sum, one of each thread, are added up by places too."""
    backward, went = Direct.gradients, []

    def noted(self, *given):
        out = backward(self, *given)
        went.append(out is not None)
        return out

    monkeypatch.setattr(Direct, "gradients", noted)
    monkeypatch.setattr(placement, "ALONE", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (by_places, _), (by_names, _) = (outcome(once, step, form, True, direct) for direct in (True, False))
    finally:
        torch.set_num_threads(before)
    assert went[-1]
    assert [t and t[1:] for t in by_places] == [t and t[1:] for t in by_names]
    values = ([t and t[0] for t in found] for found in (by_places, by_names))
    torch.testing.assert_close(*values, rtol=0, atol=0)


def test_gradients_that_are_differentiated_again_go_by_places(monkeypatch: pytest.MonkeyPatch) -> None:
    step, x = LSTM(D, D), ROWS["dense"]
    weights, state = [*step.parameters()], step.initial_state(3)

    def found(backend: str) -> Any:
        y, _ = recurrent(step, x, state, backend=backend)  # pyright: ignore[reportArgumentType]
        return torch.autograd.grad(y.square().sum(), weights, create_graph=True)

    def again(grads: Any) -> Any:
        return torch.autograd.grad([g.sum() for g in grads], weights)

    for _ in range(8):
        found(BACKEND)
    by_names: Any = []
    monkeypatch.setattr(autograd, "gradients", lambda *call: by_names.append(call))
    ours, expected = found(BACKEND), found("naive")
    monkeypatch.undo()
    assert not by_names
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(again(ours), again(expected), rtol=1e-4, atol=1e-5)
