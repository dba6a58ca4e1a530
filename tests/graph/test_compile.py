"""`torch.compile` of models with recurrences: one graph, the same values, no new graph for new lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import stepnet
from covering import few
from stepnet import LoDTensor, Recurrent, cells, explain, map_fn, recurrent, sequence_concat, sequence_pool
from stepnet.errors import SlowPathWarning, StepError
from stepnet.graph.recurrence import Recurrence

from .models import LENGTHS, assert_alike, dense, leaves_of, packed, ragged, state


class Closure(nn.Module):
    """A step that is a closure over parameters, writes in place, and cuts a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Any, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            h = self.cell(x, h)
            h *= self.scale
            h.add_(torch.zeros(x.shape[0], 4, dtype=x.dtype))
            torch.tanh_(h)
            with torch.no_grad():
                cut = torch.empty_like(h)
                torch.mul(h, 2, out=cut)
            return {"y": cut + h, "z": x.detach()}, h

        return recurrent(step, x, h)


class Modules(nn.Module):
    """Cells of both kinds, one after the other and backwards, state handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Recurrent(cells.GRU(3, 4))
        self.second = Recurrent(nn.LSTMCell(4, 4), reverse=True)

    def forward(self, x: Any) -> Any:
        y, h = self.first(x)
        return self.second(y, (h, torch.tanh(h)))


class Layers(nn.Module):
    """The drop-in layers."""

    def __init__(self, kind: str, layers: int = 2) -> None:
        super().__init__()
        self.rnn = getattr(stepnet.nn, kind)(3, 4, num_layers=layers, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)


class Static(nn.Module):
    """A step that sees a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: LoDTensor, h: Tensor, memory: Tensor) -> Any:
        def step(x: Tensor, h: Tensor, memory: Tensor) -> Any:
            h = self.cell(x, h)
            return h * memory.mean(1), h

        return recurrent(step, x, h, static=memory)


class Attends(nn.Module):
    """A step that attends to a sequence of another length for each sequence, and sees a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: LoDTensor, h: Tensor, memory: LoDTensor, plain: Tensor) -> Any:
        def step(x: Tensor, h: Tensor, static: Any) -> Any:
            memory, plain = static
            scores = (memory.rows * h[:, None]).sum(-1).masked_fill(~memory.mask, -1e9)
            h = self.cell(x, h) + (torch.softmax(scores, 1)[..., None] * memory.rows).sum(1)
            return h * plain.mean(1), h

        return recurrent(step, x, h, static=(memory, plain))


class Restarted(nn.Module):
    """Episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: LoDTensor, h: Tensor, marks: Tensor) -> Any:
        return recurrent(self.cell, x, h, resets=marks)


class InWindows(nn.Module):
    """Steps computed again in backward, and steps cut off from gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Recurrent(nn.GRUCell(3, 4), checkpoint=2)
        self.second = nn.GRUCell(4, 4)

    def forward(self, x: LoDTensor, h: Tensor) -> Any:
        y, h = self.first(x, h)
        return recurrent(self.second, y, h, detach_every=3, checkpoint=True)


class Counted(nn.Module):
    """Steps without an input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, h: Tensor, steps: Tensor) -> Any:
        def step(x: None, h: Tensor) -> Any:
            h = torch.tanh(self.cell(h))
            return h, h

        y, h = recurrent(step, steps=5, state=h)
        return y, recurrent(step, steps=steps, state=h), recurrent(step, steps=[3, 1], state=h[:2])


class Nested(nn.Module):
    """A recurrence in the step of another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.GRUCell(3, 4), nn.GRUCell(4, 4)

    def forward(self, x: LoDTensor, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            parts = torch.stack([x, x * 2, x.sin()])
            _, last = recurrent(self.inner, parts, h)
            h = self.outer(last, h)
            return h, h

        return recurrent(step, x, h)


class Documents(nn.Module):
    """A recurrence whose steps are sequences, with recurrences and functions of sequences inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sentences = Recurrent(cells.GRU(3, 4), reverse=True), nn.GRUCell(7, 4)

    def forward(self, x: LoDTensor, h: Tensor) -> Any:
        def step(x: LoDTensor, h: Tensor) -> Any:
            words, _ = self.words(x, h)
            pooled = torch.cat([sequence_pool(words, "max"), sequence_pool(x, "sum")], 1)
            h = self.sentences(pooled, h)
            return {"words": words, "sentence": (h, pooled)}, h

        return recurrent(step, x, h, level=0, reverse=True)


def documents(lengths: list[int]) -> Sequence[Any]:
    """Sentences of so many words, in documents of some sentences or none."""
    words = LoDTensor.from_lengths(ragged(lengths).values, [[len(lengths) - 1, 0, 1], lengths])
    return words, state(3)


class Spike(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        (v,) = ctx.saved_tensors
        return grad / (v.abs() + 1) ** 2


@dataclass
class Pair:
    h: Tensor
    m: tuple[Tensor]


class Views(nn.Module):
    """A dataclass as state, one tensor in it twice; a weight and its transpose; sums of exponentials: torch
    asks if there are any; what torch computes by sizes that are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.input = nn.Parameter(torch.randn(4, 4) / 4), nn.Linear(3, 4)

    def forward(self, x: LoDTensor, h: Tensor) -> Any:
        def step(x: Tensor, state: Pair) -> Any:
            h, (m,) = state.h, state.m
            h = torch.tensordot(h, self.weight - self.weight.T, 1) + torch.inner(h, self.weight)
            h = h + torch.einsum("ni,ij,nj->nj", m, self.weight, h)
            h = torch.take_along_dim(torch.tanh(h + self.input(x) + m), m.argsort(1), 1)
            return Spike.apply(h), Pair(h, (h - h.logsumexp(1, keepdim=True),))

        return recurrent(step, x, Pair(h, (h,)))


def _marks(rows: Tensor) -> Tensor:
    return rows.detach()[:, 0] > 0.4


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[list[int]], Sequence[Any]]]] = {
    "closure": (Closure, lambda n: (ragged(n), state(len(n)))),
    "closure, dense": (Closure, lambda n: (dense(sum(n), len(n)), state(len(n)))),
    "modules": (Modules, lambda n: (ragged(n),)),
    "modules, dense": (Modules, lambda n: (dense(sum(n), len(n)),)),
    "LSTM": (lambda: Layers("LSTM", 1), lambda n: (ragged(n),)),
    "GRU": (lambda: Layers("GRU"), lambda n: (ragged(n),)),
    "RNN, dense": (lambda: Layers("RNN"), lambda n: (dense(sum(n), len(n)),)),
    "packed": (lambda: Recurrent(cells.GRU(3, 4), reverse=True), lambda n: (packed(n),)),
    "packed, sorted": (lambda: stepnet.nn.GRU(3, 4), lambda n: (packed(n, sort=True),)),
    "static": (Static, lambda n: (ragged(n), state(len(n)), state(len(n), 3, 4))),
    "ragged static": (
        Attends,
        lambda n: (ragged(n), state(len(n)), ragged([k + 1 for k in n], 4), state(len(n), 3, 4)),
    ),
    "views": (Views, lambda n: (ragged(n), state(len(n)))),
    "resets": (Restarted, lambda n: (ragged(n), state(len(n)), torch.rand(sum(n)) < 0.3)),
    "packed resets": (
        Restarted,
        lambda n: (packed(n), state(len(n)), LoDTensor.to_packed(ragged([max(k, 1) for k in n]).map(_marks))),
    ),
    "windows": (InWindows, lambda n: (ragged(n), state(len(n)))),
    "steps": (Counted, lambda n: (state(len(n)), torch.tensor(n))),
    "documents": (Documents, documents),
    "nested": (Nested, lambda n: (ragged(n), state(len(n)))),
}


LIKE_OTHERS = {
    "packed resets",
    "modules",
    "modules, dense",
    "closure, dense",
    "packed",
    "RNN, dense",
    "GRU",
    "LSTM",
    "static",
    "nested",
}
# A third graph is made of all others by `make fuzz` alone: there each way to give rows, states and sizes, a
# cell's gates and a memory are the same to a plan that keeps nothing.
WITHOUT_GRADIENTS = {"closure"}
TWO_GRAPHS = {"documents"}  # which finds out what is open
UNLIKE = [2, 4, 1, 5, 3, 2, 6]  # the others are told, and their first sizes are no others'


@pytest.mark.filterwarnings("ignore:.*Function.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("case", few(CASES, ["closure", "ragged static", "resets", "windows", "steps"]))
def test_one_graph_with_the_same_values_and_gradients(
    case: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    torch.manual_seed(0)
    if case == "documents":
        stepnet.set_backend("auto")
    make, arguments = CASES[case]
    model = make().double()
    counter = CompileCounterWithBackend("aot_eager")
    exhaustive = request.config.getoption("exhaustive")
    known = case not in TWO_GRAPHS and not exhaustive
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True if known else None)
    for lengths in ([2, 4, 1, 5, 3, 2, 6], *LENGTHS[:2]) if known else LENGTHS:
        assert_alike(model, compiled, arguments(lengths))
    assert counter.frame_count <= 2 - known
    if case not in WITHOUT_GRADIENTS and not exhaustive:
        return
    # what keeps nothing for a gradient goes another way, and by a plan from the third on
    with torch.no_grad():
        args = arguments(LENGTHS[0])
        for _ in range(3):
            assert_alike(model, compiled, args)
    if case not in (
        "resets",
        "packed resets",
        "nested",
        "documents",
        "windows",
        "views",
    ):  # a plan alone runs what ran before
        monkeypatch.setattr(Recurrence, "run", None)
        assert_alike(model, compiled, arguments(LENGTHS[-1]))


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # rows meet in a step
def test_a_sum_over_the_rows_of_a_step_is_no_part_of_a_graph() -> None:
    stepnet.set_backend("auto")
    x = torch.randn(3, 4)
    compiled = torch.compile(lambda x: map_fn(lambda row: row.sum(), x) * 2, backend="eager")
    torch.testing.assert_close(compiled(x), x.sum(1) * 2)


def test_what_explain_looks_at_is_not_followed() -> None:
    stepnet.set_backend("eager")
    compiled = torch.compile(lambda x, h: h * len(explain(cells.GRU(3, 4), x, h).executor), backend="eager")
    for lengths in LENGTHS[:2]:
        h = torch.ones(len(lengths), 4)
        assert compiled(ragged(lengths).to(torch.float32), h).ge(1).all()


def test_a_map_over_sequences_without_a_state() -> None:
    stepnet.set_backend("auto")
    x = LoDTensor(ragged([2, 0, 3]).values, [[0, 1, 3], [0, 2, 2, 5]])
    compiled = torch.compile(
        lambda x: map_fn(lambda part: sequence_pool(part, "sum"), x, level=0), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x).values, sequence_pool(x, "sum").values)


@pytest.mark.exhaustive  # a graph breaks there, as for rows that meet
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo looks at it between two graphs
def test_steps_that_give_sequences_of_other_lengths() -> None:
    """No graph holds them; they are what Python makes of them."""
    stepnet.set_backend("auto")

    class Doubled(nn.Module):
        def forward(self, x: LoDTensor, h: Tensor) -> Any:
            def step(x: LoDTensor, h: Tensor) -> Any:
                return sequence_concat([x, x]), h + sequence_pool(x, "sum").sum(1, keepdim=True)

            return recurrent(step, x, h, level=0)

    words, h = documents([2, 5, 1])
    model = Doubled()
    (y, last), (expected, expected_last) = torch.compile(model, backend="eager")(words, h), model(words, h)
    assert y.recursive_sequence_lengths() == [[2, 0, 1], [4, 10, 2]]
    assert torch.equal(y.values, expected.values)
    assert torch.equal(last, expected_last)


@pytest.mark.exhaustive  # what is compiled with fullgraph=True breaks nowhere
@pytest.mark.parametrize("case", ["closure", "ragged static"])
def test_one_graph_without_asking_for_it(case: str) -> None:
    torch.manual_seed(0)
    make, arguments = CASES[case]
    model = make().double()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter)
    with torch.no_grad():
        for lengths in LENGTHS[:2]:
            assert_alike(model, compiled, arguments(lengths))
    assert counter.frame_count <= 2


@pytest.mark.exhaustive  # as with the transform outside: test_surroundings.py
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_what_is_made_inside_a_transform() -> None:
    """Such a call is no part of a graph; Dynamo follows what is around it."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = Recurrent(cells.GRU(3, 4)), nn.Linear(4, 2)

        def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
            y, _ = self.rnn(LoDTensor(rows, [offsets]))
            return self.head(y.values), sequence_pool(y, "mean")

    model = Scores().double()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rows = ragged([2, 0, 3]).values.detach()

    def loss(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        given = rows, torch.tensor([0, 2, 2, 5])
        return torch.func.functional_call(model, weights, given)[0].square().sum()

    of = torch.func.grad(loss)
    torch.testing.assert_close(torch.compile(of, backend="aot_eager")(weights, rows), of(weights, rows))


def test_transforms_in_a_step_that_the_plain_loop_runs() -> None:
    """Torch lets nobody take what they save; an error in them leaves the next backward as it was."""
    stepnet.set_backend("auto")

    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, h: Tensor, at: Tensor) -> Any:
            def step(x: Tensor, h: Tensor) -> Any:
                def energy(h: Tensor) -> Tensor:
                    return torch.tanh(self.layer(h) * x).index_select(1, at).sum()  # over all rows

                force, total = torch.func.grad_and_value(energy)(h)
                h = torch.tanh(force + total)
                return h, h

            return recurrent(step, x, h)

    model = Mixes().double()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x, h = dense(3, 2, 4), state(2)
    with pytest.warns(SlowPathWarning, match="mixes rows"):
        assert_alike(model, compiled, (x, h, torch.tensor([0, 2])))
    with pytest.raises(StepError, match="out of"):
        compiled(x, h, torch.tensor([0, 4]))
    with torch.autograd.graph.save_on_cpu():
        (h * h).sum().backward()


def _negated(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return x.conj().imag, h + x.conj().imag


def _conjugate(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return x.conj(), (h + x.real) * 0.5


def _without_gradient(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    most = x.real.amax(-1, keepdim=True)
    return most.sgn(), torch.tanh(most + h)  # a gradient of zeros that is no memory is added to another


def _conjugate_at_last(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = h + 0j
    return (x * h.conj()).real, h.conj().real + (x * h).conj().imag


def test_first_run_in_a_graph_reads_what_tensors_stand_for(request: pytest.FixtureRequest) -> None:
    x, h = torch.randn(4, 2, 3, dtype=torch.complex128, requires_grad=True), torch.zeros(2, 3).double()

    def results(y: Tensor, final: Tensor) -> list[Tensor]:
        value = (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).square().sum() + final.sum()
        return [y, final, *torch.autograd.grad(value, x, retain_graph=True)]

    every = request.config.getoption("exhaustive")
    steps = (_conjugate, *((_negated, _without_gradient, _conjugate_at_last) if every else ()))
    expected = {step: results(*recurrent(step, x, h, backend="naive")) for step in steps}
    naive: list[Any] = [(step, "naive") for step in (_conjugate, _conjugate_at_last) if step in steps]
    ways = [*naive, *((step, "auto") for step in steps)]

    def all_of_them(x: Tensor, h: Tensor) -> list[Any]:
        return [recurrent(step, x, h, backend=backend) for step, backend in ways]

    compiled = torch.compile(all_of_them, backend="aot_eager", fullgraph=True)
    for (step, _), found in zip(ways, compiled(x, h), strict=True):
        torch.testing.assert_close(
            results(*found), expected[step], msg=lambda m, step=step: f"{step.__name__}: {m}"
        )
    ways = [naive[0], (_conjugate, "auto")]
    with torch.no_grad():
        for found in compiled(x, h):
            torch.testing.assert_close([*found], expected[_conjugate][:2])


@pytest.mark.exhaustive  # open sizes that steps read: tests/export, too
def test_a_step_reads_an_open_size_besides_its_weights() -> None:
    """Words of any number, of which a step makes a sentence: their count is no weight."""
    stepnet.set_backend("eager")

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.text = cells.RNN(3, 4).double(), cells.RNN(4, 4).double()

        def forward(self, x: Tensor, h: Tensor) -> Any:
            def step(x: Tensor, h: Tensor) -> Any:
                y, last = recurrent(self.words, x, h, axis=1)
                return self.text(y.sum(1) / x.shape[1] + last, h)

            return recurrent(step, x, h)

    model = Sentences()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for t, n, words in ((3, 2, 5), (2, 3, 4)):
        x = torch.randn(t, n, words, 3, dtype=torch.float64, requires_grad=True)
        assert_alike(model, compiled, (x, state(n, 4)))


def test_a_step_reads_the_numbers_of_a_tensor() -> None:
    """Which places a mask picks is asked anew at each call."""
    mask = torch.tensor([True, False, False])

    def step(x: Tensor, h: Tensor) -> Any:
        h = h.clone()
        h[:, mask] = torch.tanh(x[:, mask])
        return h + x, h

    def model(x: Tensor, h: Tensor) -> Any:
        return recurrent(step, x, h)

    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    x, h = dense(3, 2), state(2, 3)
    for _ in range(4):
        y, final = recurrent(step, x, h, backend="naive")
        torch.testing.assert_close([*compiled(x, h)], [y, final])
        mask.copy_(mask.roll(1))


@pytest.mark.exhaustive  # a gradient that is cut: a closure, above
@pytest.mark.parametrize("equal", few([False, True], [False]))
def test_a_gradient_is_there_where_the_plain_loop_has_one(equal: bool) -> None:
    """Of results that are cut off, no gradient is asked; what they alone depend on gets none."""
    w = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def step(x: Tensor, state: Any) -> Any:
        a, b, c = state
        cut = (torch.tanh(x) * w).detach()
        return {"cut": cut, "late": b * 1, "first": x * 2}, (c.sin(), a * 1, cut)

    def model(x: Any, *state: Tensor) -> Any:
        y, (a, b, c) = recurrent(step, x, state)
        return y["cut"], y["late"], y["first"], a, b, c

    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([5, 4], [2, 0, 4]):
        x: Any = dense(3, 2) if equal else ragged(lengths)
        n = 2 if equal else len(lengths)
        h = [state(n, 3), state(n, 3).detach(), state(n, 3).detach()]
        found, expected = leaves_of(compiled(x, *h)), leaves_of(model(x, *h))
        # one graph is for all lengths: a final state that some lengths alone leave as it was carries one
        assert [t.requires_grad for t in found] == [False, True, True, not equal, True, False]
        wanted = [*leaves_of(x), h[0], w]
        for results in (found, expected):
            asked = [a.sum() for a, b in zip(results, expected, strict=True) if b.requires_grad]
            grads = torch.autograd.grad(asked, wanted, allow_unused=True)
            assert [g is None for g in grads] == [False, False, True]


def test_results_lie_as_a_graph_was_told() -> None:
    """In one piece, whatever the inputs do; a gradient of zeros, too."""
    rows = torch.randn(5, 3, 2).permute(1, 2, 0).requires_grad_()
    h = torch.randn(5, 2).t().requires_grad_()
    fakes = torch.compile(
        lambda *of: recurrent(lambda x, h: (h.sgn(), x.sum(-1, keepdim=True).expand_as(h)), *of),
        backend="aot_eager",
    )
    seen: list[Any] = []
    backward = torch.ops.stepnet.run_backward.default

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is backward:
                seen.extend(found)
            return found

    for _ in range(3):
        y, final = fakes(rows, h)
        with Seen():
            torch.autograd.grad(y.sum() + final.sum(), [rows, h])
    assert seen
    assert all(t.is_contiguous() for t in seen)
