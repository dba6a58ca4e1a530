"""Compiled recurrences in modes, with weights that change, and as operators by torch's own checks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from covering import few
from stepnet import LoDTensor, Recurrent, cells, explain, recurrent, sequence_concat
from stepnet import nn as snn
from stepnet.errors import StepError, WrittenError
from stepnet.graph import ops
from tables import holds

from .models import assert_alike, dense, gradients, ragged


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = Recurrent(cells.GRU(3, 4))

    def forward(self, x: LoDTensor) -> Any:
        y, h = self.rnn(x)
        return y * 2, h


def compiled_of(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", few(MODES, ["autocast"]))
def test_in_a_mode_and_after_it(mode: str) -> None:
    torch.manual_seed(0)
    model = Small()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([2, 4], [3, 0, 1]):
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), 3), [lengths])
        with MODES[mode]():
            expected, found = model(x), compiled(x)
        for a, b in zip((expected[0].values, expected[1]), (found[0].values, found[1]), strict=True):
            assert (a.dtype, a.requires_grad, a.is_inference()) == (
                b.dtype,
                b.requires_grad,
                b.is_inference(),
            )
            torch.testing.assert_close(a, b)
    assert_alike(model.double(), compiled, (ragged([2, 3]),))


class Overwritten(nn.Module):
    """Results that backward reads, written to in place."""

    def __init__(self, *, draws: bool = False) -> None:
        super().__init__()
        self.rnn, self.draws = snn.GRU(3, 4), draws

    def forward(self, x: Tensor) -> Tensor:
        def noisy(x: Tensor, h: Tensor) -> Any:
            h = torch.tanh(h + x + torch.rand_like(x))
            return h, h

        y, _ = recurrent(noisy, x, x.new_zeros(2, 3)) if self.draws else self.rnn(x)
        y[0].zero_()
        return y.relu_()


@pytest.mark.parametrize("backend", few(["eager", "aot_eager"], ["aot_eager"]))
def test_results_are_written_to_in_place(backend: str) -> None:
    torch.manual_seed(0)
    model = Overwritten().double()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):  # at length, by names, by places
        assert_alike(model, compiled, (dense(4, 2),))


def test_results_that_drew_noise_are_not_made_once_more() -> None:
    compiled = torch.compile(Overwritten(draws=True), backend="eager", fullgraph=True)
    with pytest.raises(WrittenError, match="draws noise was written to in place"):
        compiled(dense(3, 2)).sum().backward()


class Drawing(nn.Module):
    """A step with a function of its state that may draw noise."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3), function

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.layer(x) + self.function(h))
        return h, h

    def forward(self, x: Tensor) -> Any:
        return recurrent(self.step, x, x.new_zeros(x.shape[1], 3))


class Branded(nn.Module):
    """Parameters whose names are those of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.normal, self.dropped = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.normal + self.dropped


def attended(h: Tensor, p: float) -> Tensor:
    """A row that attends to itself and to its double."""
    both = torch.stack((h, h * 2), 1)
    return nn.functional.scaled_dot_product_attention(both, both, both, dropout_p=p)[:, 0]


def inside(h: Tensor, p: float) -> Tensor:
    """What a recurrence in the step gives that drops."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = nn.functional.dropout(x + h, p)
        return h, h

    return recurrent(step, torch.stack((h, h * 2)), h)[1]


class WithoutNoise(nn.Module):
    """Side by side what draws nothing, though some of it might."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Dropout(0.0), nn.Dropout(0.5).eval(), Branded()])

    def forward(self, h: Tensor) -> Tensor:
        others = inside(h, 0.0) + attended(h, 0.0) + nn.functional.normalize(h)
        return torch.stack([part(h) for part in self.parts]).sum(0) + others


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "dropout": (nn.Dropout(0.5), True),
    "rand_like": (lambda h: h * torch.rand_like(h), True),
    "attention that drops": (lambda h: attended(h, 0.5), True),
    "a recurrence that drops": (lambda h: inside(h, 0.5), True),
    "none of them": (WithoutNoise(), False),
}


def lost(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    """A call under hooks that keep copies of what is saved, at a time when nobody holds what was."""
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        results = call(x)
    ops._TICKETS.clear()  # a garbage cycle may hold one
    return results


def assert_made_once_more(model: nn.Module, compiled: Any, x: Tensor, *, draws: bool) -> None:
    """What hooks lost is made again, unless the model draws noise."""
    if not draws:
        assert_alike(model, lambda x: lost(compiled, x), (x,))
        return
    with pytest.raises(StepError, match="draws noise has lost what forward kept"):
        torch.autograd.grad(lost(compiled, x)[0].sum(), x)


def test_a_run_that_hooks_lost_is_made_once_more_unless_it_draws_noise() -> None:
    def law(function: Callable[[Tensor], Tensor], draws: bool) -> None:
        model = Drawing(function).double()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_made_once_more(model, compiled, dense(3, 2), draws=draws)

    holds(law, DRAWS)


def test_whether_a_run_that_hooks_lost_draws_noise_may_hang_on_a_number_that_changes() -> None:
    dropout = nn.Dropout(0.5)
    model = Drawing(dropout).double()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for p in (0.5, 0.0, 0.25, 0.0):  # the graph takes it as a tensor from the second on
        dropout.p = p
        assert_made_once_more(model, compiled, dense(3, 2), draws=p > 0)


def test_weights_that_change_between_calls() -> None:
    torch.manual_seed(0)
    model = Small().double()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = ragged([2, 4])
    assert_alike(model, compiled, (x,))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
            p.data.add_(0.1)
    assert_alike(model, compiled, (x,))
    cell: Any = model.rnn.step
    cell.weight_hh = nn.Parameter(torch.randn(12, 4, dtype=torch.float64))
    assert_alike(model, compiled, (x,))
    assert counter.frame_count == 1
    cell.weight_ih.requires_grad_(False)
    assert_alike(model, compiled, (x,))


def test_a_batch_without_steps_reaches_no_weight() -> None:
    model = Small().double()
    for call in (model, compiled_of(model)):
        y, h = call(ragged([0, 0]))
        assert not y.requires_grad
        assert not h.requires_grad


def test_a_training_loop_compiled_as_a_whole_and_backward_by_compiled_autograd() -> None:
    torch.manual_seed(0)
    model, twin = Small().double(), Small().double()
    twin.load_state_dict(model.state_dict())
    compiled = compiled_of(twin)
    batches = [ragged([2, 4]), ragged([3, 0, 1]), ragged([5])]
    for x in batches:
        for each, call, how in ((model, model, False), (twin, compiled, True)):
            with torch._dynamo.config.patch(compiled_autograd=how):
                y, h = call(x)
                (y.values.sin().sum() + h.sum()).backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            with torch.no_grad():
                for p in each.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
                    p.grad = None
        torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-9, atol=1e-9)


def test_a_step_is_recorded_while_compiled_autograd_is_in_force() -> None:
    cell, x = nn.RNNCell(3, 4).double(), ragged([2, 3])

    def step(v: Tensor, h: Tensor) -> Any:
        h = cell(v, h) * 0.8125
        return h, h

    with compiled_autograd._enable(torch.compile(backend="eager")):
        y, _ = recurrent(step, x, x.values.new_zeros(2, 4))  # a SlowPathWarning is an error
    expected, _ = recurrent(step, x, x.values.new_zeros(2, 4), backend="naive")
    for a, b in zip(
        *(torch.autograd.grad(t.values.sin().sum(), x.values) for t in (y, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks for it
def test_a_backward_that_no_graph_of_compiled_autograd_holds() -> None:
    weight, x = torch.full((1, 1), 0.5, requires_grad=True), torch.ones(2, 1, 1)

    def step(v: Tensor, h: Tensor) -> Any:
        h = torch.tanh(v + h @ weight)
        return h, h

    y, _ = recurrent(step, x, torch.zeros(1, 1))
    whole = torch.compile(backend="eager", fullgraph=True)
    refused = pytest.raises(torch._dynamo.exc.Unsupported, match="compile the module that calls it")
    with compiled_autograd._enable(whole), refused:
        torch.autograd.grad(y.sum(), weight)


@pytest.mark.exhaustive  # seconds of Dynamo
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks for it
@pytest.mark.parametrize("windows", [{"checkpoint": 2}, {"detach_every": 2}])
def test_windows_go_backward_again_by_compiled_autograd(windows: dict[str, Any]) -> None:
    cell, x = cells.GRU(3, 4).double(), ragged([4, 0, 3])

    def found() -> tuple[Tensor, ...]:
        y, h = recurrent(cell, x, **windows)
        leaves = (x.values, *cell.parameters())
        for leaf in leaves:
            leaf.grad = None
        (y.values.sin().sum() + h.square().sum()).backward()  # torch asks what is around this, not `grad`
        return tuple(leaf.grad for leaf in leaves if leaf.grad is not None)

    expected = found()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(3):
            torch.testing.assert_close(found(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.exhaustive  # seconds of Dynamo
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks for it
def test_gradients_are_differentiated_again_by_compiled_autograd() -> None:
    cell, x = nn.RNNCell(3, 4).double(), ragged([2, 3])

    def penalty(backend: Any) -> Tensor:
        def step(v: Tensor, h: Tensor) -> Any:
            h = cell(v, h) * 0.8125
            return h, h

        y, _ = recurrent(step, x, x.values.new_zeros(2, 4), backend=backend)
        (g,) = torch.autograd.grad(y.values.sin().sum(), x.values, create_graph=True)
        return torch.autograd.grad(g.square().sum(), cell.weight_hh)[0]

    with compiled_autograd._enable(torch.compile(backend="eager")):
        found = penalty("eager")
    torch.testing.assert_close(found, penalty("naive"), rtol=1e-9, atol=1e-9)


def test_backward_twice_and_accumulated() -> None:
    torch._dynamo.reset()  # graphs of one backward are for that
    model = Small().double()
    x = ragged([2, 4])
    for call in (model, compiled_of(model)):
        y, h = call(x)
        loss = y.values.square().sum() + h.sum()
        loss.backward(retain_graph=True)
        loss.backward()
    grads = [p.grad for p in model.parameters()]
    expected = gradients(model, lambda x: (model(x)[0].values.square().sum() + model(x)[1].sum(),), (x,))[2:]
    for a, b in zip(grads, expected, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, b * 4 / 0.5, rtol=1e-9, atol=1e-9)


@pytest.mark.exhaustive  # of a LoDTensor that is an argument, too: below
def test_checkpointed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = Small()

        def forward(self, x: LoDTensor) -> Any:
            return checkpoint(lambda v: self.small(x.with_values(v))[0].values, x.values, use_reentrant=False)

    model = Model().double()
    assert_alike(model, compiled_of(model), (ragged([2, 4]),))


@pytest.mark.exhaustive  # seconds of Dynamo
def test_the_first_call_of_a_graph_is_checkpointed_or_packed() -> None:
    model, x = Small().double(), ragged([2, 4])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_alike(model, lambda x: checkpoint(compiled, x, use_reentrant=False), (x,))
    counts: list[int] = []
    compiled = torch.compile(Small().double(), backend="eager", fullgraph=True)
    for _ in range(2):
        packed: list[Tensor] = []

        def pack(tensor: Tensor, packed: list[Tensor] = packed) -> Tensor:
            packed.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(x)
        counts.append(len(packed))
    assert counts[0] == counts[1]


def test_noise_is_that_of_forward_and_differs_between_calls() -> None:
    class Model(nn.Module):
        def forward(self, x: LoDTensor, h: Tensor) -> Any:
            def step(x: Tensor, h: Tensor) -> Any:
                h = nn.functional.dropout(x + h, 0.5)
                return h, h

            return recurrent(step, x, h)[0].values, recurrent(step, x, h)[0].values

    x, h = ragged([3, 2]), torch.zeros(2, 3, dtype=torch.float64)
    first, second = compiled_of(Model())(x, h)
    assert not torch.equal(first, second)  # two calls stay two
    (grad,) = torch.autograd.grad(first[0].sum(), x.values)
    kept = first[0] != 0
    torch.testing.assert_close(grad[0], kept * 2.0, check_dtype=False)


def test_results_are_the_callers_own() -> None:
    def identity(x: LoDTensor, h: Tensor) -> Any:
        return recurrent(lambda x, h: (x, h), x, h)

    for lengths in ([2, 3], [0, 0]):
        x, h = ragged(lengths), torch.randn(2, 3, dtype=torch.float64)
        with torch.no_grad():
            y, last = torch.compile(identity, backend="aot_eager", fullgraph=True)(x, h)
            before = x.values.clone(), h.clone()
            y.values.add_(1)
            last.add_(1)
        assert torch.equal(x.values, before[0])
        assert torch.equal(h, before[1])


@pytest.mark.parametrize("backend", few([None, "naive"], [None]))
def test_a_final_state_is_changed_in_place(backend: Any) -> None:
    """As in code that is not compiled, where backward reads y and not it."""

    class Last(Small):
        def forward(self, x: LoDTensor) -> Any:
            y, h = recurrent(self.rnn.step, x, x.values.new_zeros(len(x.lengths()), 4), backend=backend)
            h.mul_(2).sin_()
            return y * 2, h

    model = Last().double()
    compiled = compiled_of(model)
    for _ in range(3):
        assert_alike(model, compiled, (ragged([2, 0, 4]),))


def test_nothing_is_kept_after_backward_or_without_it() -> None:
    model = Small().double()
    compiled = compiled_of(model)
    gc.collect()
    before = len(ops._TICKETS)
    y, _ = compiled(ragged([2, 4]))
    assert len(ops._TICKETS) == before + 1
    y.values.sum().backward()
    del y
    compiled(ragged([2, 4]))
    gc.collect()
    assert len(ops._TICKETS) == before


@pytest.mark.exhaustive  # others break one, too
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own
def test_a_step_that_dynamo_cannot_follow_breaks_the_graph() -> None:
    seen: list[int] = []

    def step(x: Tensor, h: Tensor) -> Any:
        seen.append(len(seen))
        h = torch.tanh(x + h)
        return h, h

    def model(x: LoDTensor, h: Tensor) -> Any:
        y, h = recurrent(step, x * 2, h, backend="naive")
        return y * 3, h

    x, h = ragged([2, 4]), torch.zeros(2, 3, dtype=torch.float64)
    y, last = torch.compile(model, backend="eager")(x, h)
    assert seen == [0, 1, 2, 3]
    torch.testing.assert_close((y.values, last), (model(x, h)[0].values, model(x, h)[1]))
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        torch.compile(model, backend="eager", fullgraph=True)(x, h)


class Caught(TorchDispatchMode):
    """Keeps the arguments of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.stepnet.run.default:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))


def test_torchs_own_checks_of_operators() -> None:
    torch.manual_seed(0)
    run = torch.ops.stepnet.run.default

    def attend(x: LoDTensor, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            h = torch.tanh(x + h)
            return h, h

        y, _ = recurrent(step, x, h)
        return sequence_concat([y, y]).values, y.to_padded()[0]

    caught = Caught()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        def call(*args: Any) -> Any:
            with caught:
                return graph(*args)

        return call

    with torch.no_grad():
        torch.compile(attend, backend=backend, fullgraph=True)(ragged([2, 4]), torch.zeros(2, 3).double())
    assert len(caught.calls) == 3
    for tensors, sizes, what in caught.calls:
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
        torch.library.opcheck(run, (leaves, sizes, what))
        floats = [t for t in leaves if t.requires_grad]

        def call(*given: Tensor, leaves: Any = leaves, sizes: Any = sizes, what: str = what) -> Any:
            values = iter(given)
            return tuple(run([next(values) if t.requires_grad else t for t in leaves], sizes, what))

        assert torch.autograd.gradcheck(call, floats)


@pytest.mark.exhaustive
def test_a_module_that_is_gone_when_another_is_compiled() -> None:
    """What Dynamo guards on is looked up when the graph is made."""
    others = [snn.GRU(3, 4).double()]
    others[0](ragged([2]))

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        others.clear()
        gc.collect()
        return graph

    model = snn.GRU(3, 4).double()
    model(ragged([2]))
    assert_alike(model, torch.compile(model, backend=backend, fullgraph=True), (ragged([2, 4]),))


@pytest.mark.exhaustive
def test_a_checkpoint_inside_takes_lod_tensors() -> None:
    class Model(Small):
        def forward(self, x: LoDTensor) -> Any:
            again = checkpoint(lambda x: torch.tanh(self.rnn(x)[0] * 2).values, x, use_reentrant=False)
            return x.with_values(again * 2)

    model = Model().double()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([2, 4], [3, 0, 1]):
        assert_alike(model, compiled, (ragged(lengths),))


@pytest.mark.exhaustive
def test_a_step_that_torch_compiled_is_run_as_what_it_was() -> None:
    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x + h)
        return h, h

    x = ragged([2, 0, 4])
    for of, n in ((cells.GRU(3, 4).double(), 4), (step, 3)):
        compiled, h = torch.compile(of, backend="aot_eager"), torch.zeros(3, n, dtype=torch.float64)
        assert explain(compiled, x, h).executor == explain(of, x, h).executor != "naive"
        for a, b in zip(recurrent(compiled, x, h), recurrent(of, x, h), strict=True):
            torch.testing.assert_close(*(t.values if isinstance(t, LoDTensor) else t for t in (a, b)))
        whole = torch.compile(recurrent, backend="eager", fullgraph=True)
        torch.testing.assert_close(whole(compiled, x, h)[1], recurrent(of, x, h)[1])


def test_a_gradient_is_not_differentiated_again() -> None:
    x = ragged([2, 4])
    (y,) = torch.ops.stepnet.run([x.values, x.lod[0]], [], "sequence softmax (1,) ()")
    (grad,) = torch.autograd.grad(y.square().sum(), x.values, create_graph=True)
    with pytest.raises(Exception, match="cannot be differentiated again"):
        grad.sum().backward()


@pytest.mark.parametrize("compiled", few(["all of it", "the model"], ["the model"]))
def test_torch_func_breaks_the_graph_and_is_right(compiled: str) -> None:
    model = Small().double()
    x = LoDTensor.from_lengths(torch.randn(6, 3, dtype=torch.float64), [[2, 4]])
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def gradient(call: Any) -> Any:
        def loss(weights: Any) -> Tensor:
            return torch.func.functional_call(call, weights, (x,))[1].sin().sum()

        return torch.func.grad(loss)(weights)

    expected = gradient(model)
    if compiled == "all of it":
        found = torch.compile(lambda: gradient(model), backend="aot_eager")()
    else:
        model.compile(backend="aot_eager")
        found = gradient(model)
    torch.testing.assert_close(found, expected)
