"""What torch does with the graph of a recurrence: checkpoints, saved-tensor hooks, modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode

from beside_plain import CLOSE, Cell, H, by_hand, cell, check, executor_of, ours, results, rows
from covering import few
from stepnet import LoDTensor, Recurrent, explain, recurrent
from stepnet.data import modes
from stepnet.engine import warm_calls
from stepnet.errors import StepError, Unsupported
from tables import holds
from torch_since import torch_since

BACKENDS = [None, "naive", "eager", "c"]


def by_checkpoint(backend: str | None, **how: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(step: nn.Module, x: LoDTensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        def call(values: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
            return ours(step, x.with_values(values), h0, backend)

        return checkpoint(call, x.values, h0, **how)  # pyright: ignore[reportReturnType]

    return run


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [{"use_reentrant": True}, {"use_reentrant": False}], ids=str)
def test_checkpoint(backend: str | None, how: dict[str, Any]) -> None:
    check(cell(), cell(), by_checkpoint(backend, **how))


def test_a_checkpoint_takes_a_lod_tensor_and_stops_early() -> None:
    """Without reentrance torch stops computing again where the last saved tensor was made."""
    step = cell()
    x, h0 = rows()
    with set_checkpoint_early_stop(True):
        y, h = checkpoint(lambda x, h: recurrent(step, x, h), x, h0, use_reentrant=False)
    (y.values.sin().sum() + h.square().sum()).backward()
    expected = results(cell(), by_hand)
    torch.testing.assert_close([y.values.detach(), h.detach(), x.values.grad, h0.grad], expected[:4], **CLOSE)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("kind", ["ragged", "dense", "resets"])
def test_each_run_under_hooks_saves_tensors_like_those_of_another(
    kind: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint's second run may come after any number of others, which go by shorter ways."""
    model, rows = Recurrent(nn.GRUCell(3, 4), reverse=True, backend=backend), torch.randn(4, 2, 3)
    x = LoDTensor.from_lengths(rows[:3].flatten(0, 1), [[3, 1, 2]]) if kind == "ragged" else rows
    resets = torch.arange(8).reshape(4, 2) == 3 if kind == "resets" else None

    def call() -> Tensor:
        y, h = model(x, resets=resets)
        return h.sum() + (y.values if isinstance(y, LoDTensor) else y).square().sum()

    seen: list[list[Any]] = []
    for k in range(8):
        if k == 4:
            monkeypatch.setattr(modes, "_saving", None)  # as before torch 2.8
        seen.append([])
        with saved_tensors_hooks(lambda t: (seen[-1].append((t.shape, t.dtype)), t)[1], lambda t: t):
            loss = call()
        loss.backward()
        call().backward()
        checkpoint(call, use_reentrant=False).backward()  # pyright: ignore
    assert all(saved == seen[0] for saved in seen[1:])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [Tensor, nn.Parameter])
def test_a_checkpoint_in_a_checkpoint_over_one_step(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parameter comes back as a plain tensor when it is computed again, and the step alone is faster."""
    monkeypatch.setattr(warm_calls, "is_faster", lambda *_: "")
    model = Recurrent(nn.GRUCell(3, 4))
    x, h0 = kind(torch.ones(1, 2, 3)).requires_grad_(), kind(torch.ones(2, 4)).requires_grad_()
    for _ in range(3):
        y, h = checkpoint(
            lambda x, h: checkpoint(model, x, h, use_reentrant=False), x, h0, use_reentrant=False
        )  # pyright: ignore
        found = torch.autograd.grad(y.sin().sum() + h.square().sum(), [x, h0, *model.parameters()])
        y, h = recurrent(model.step, x, h0, backend="naive")
        expected = torch.autograd.grad(y.sin().sum() + h.square().sum(), [x, h0, *model.parameters()])
        torch.testing.assert_close(found, expected)


class Packed:
    """Saved tensors leave torch and come back, counted."""

    def __init__(self) -> None:
        self.packed = self.unpacked = 0

    def pack(self, tensor: Tensor) -> Any:
        self.packed += 1
        return tensor.detach().numpy().copy()

    def unpack(self, array: Any) -> Tensor:
        self.unpacked += 1
        return torch.from_numpy(array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_tensors_are_packed(backend: str | None) -> None:
    hooks = Packed()
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        found = results(cell(), lambda *a: ours(*a, backend=backend))
    torch.testing.assert_close(found, results(cell(), by_hand), **CLOSE)
    assert hooks.packed >= hooks.unpacked > 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "hooks", [save_on_cpu, lambda: disable_saved_tensors_hooks("none here")], ids=["save_on_cpu", "disabled"]
)
def test_other_hooks_of_saved_tensors(hooks: Callable[[], Any], backend: str | None) -> None:
    with hooks():
        found = results(cell(), lambda *a: ours(*a, backend=backend))
    torch.testing.assert_close(found, results(cell(), by_hand), **CLOSE)


class Root(nn.Module):
    """The gradient of the root of 0 is infinite; times 0 it is NaN."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x.sum(-1, keepdim=True) + h)
        root = (h * 0).sqrt()  # here
        h = h + root * 0
        return h, h


def line_of_root() -> int:
    with open(__file__) as source:
        return next(i for i, line in enumerate(source, 1) if "# here" in line)


@pytest.mark.parametrize("used", [False, True], ids=["at first", "after a plan was made"])
def test_anomaly_mode_names_the_line_of_the_step(used: bool) -> None:
    step = Root()
    x, h0 = rows()
    if used:
        ours(step, x, h0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            y, _ = recurrent(step, x, h0)
            with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
                y.values.sum().backward()
    traces = [str(each.message) for each in seen if "SqrtBackward0" in str(each.message)]
    assert len(traces) == 1
    assert f'test_memory_and_modes.py", line {line_of_root()}, in forward' in traces[0]
    assert "root = (h * 0).sqrt()" in traces[0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_runs_the_plain_loop_and_leaves_nothing() -> None:
    step, twin = cell(), cell()
    with torch.autograd.detect_anomaly():
        check(step, twin)
        told = explain(step, *rows())
        assert told.executor == "naive"
        assert "anomaly mode" in told.refusals[0].reason
    assert explain(step, *rows()).executor == "c"
    check(step, twin)
    with torch.autograd.detect_anomaly(check_nan=False):
        assert explain(step, *rows()).executor == "c"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_a_plan_made_under_anomaly_mode_outlives_it(backend: str | None) -> None:
    """The rows that a plan is tried on may give NaN: that is no error of the caller's."""
    step, (x, h0) = Root(), rows()
    with torch.autograd.detect_anomaly():
        y, h = ours(step, x, h0, backend)
    with torch.no_grad():
        torch.testing.assert_close([y, h], list(by_hand(Root(), x, h0)), **CLOSE)
    assert explain(step, x, h0, backend=backend).executor == (backend or "c")


class Noted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_every_operation_of_the_plain_loop() -> None:
    step, seen = cell(), []
    check(step, cell())
    for backend in (None, "naive"):
        with Noted() as mode, FlopCounterMode(display=False) as flops:
            found = results(step, lambda *a, by=backend: ours(*a, backend=by))
        torch.testing.assert_close(found, results(cell(), by_hand), **CLOSE)
        seen.append((mode.calls, flops.get_total_flops()))
    assert seen[0] == seen[1]
    with Noted(), pytest.raises(Unsupported, match="a TorchDispatchMode is active"):
        ours(step, *rows(), backend="c")
    check(step, cell())


@pytest.mark.parametrize("backend", [None, "naive"])
def test_a_checkpoint_that_keeps_products(backend: str | None) -> None:
    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE

    how = {"context_fn": lambda: create_selective_checkpoint_contexts(policy)}
    check(cell(), cell(), by_checkpoint(backend, use_reentrant=False, **how))


def test_ragged_rows_under_fake_tensors_have_gradients_without_numbers() -> None:
    with FakeTensorMode():
        x = LoDTensor.from_lengths(torch.randn(3, 3), [[2, 0, 1]])
        step = Cell()
        y, _ = recurrent(step, x, torch.zeros(3, H))
        y.values.sum().backward()
        assert step.rec.weight.grad is not None
    check(cell(), cell())


class Scaled(TorchFunctionMode):
    """Multiplies what tanh gives, and counts its calls."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.calls = by, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.tanh:
            return result
        self.calls += 1
        return result if self.by == 1 else result * self.by


@pytest.mark.parametrize("by", [1.0, 2.0])
def test_a_function_mode_is_told_of_each_call(by: float) -> None:
    step = cell()
    with Scaled(by) as mode:
        expected = results(step, by_hand)
        mode.calls = 0
        results(step, lambda *given: ours(*given, "naive"))
        calls = mode.calls
        found = results(step, ours)
        assert mode.calls == 2 * calls > 0
        told = explain(step, *rows())
        with pytest.raises(Unsupported, match="TorchFunctionMode"):
            ours(step, *rows(), "eager")
    torch.testing.assert_close(found, expected, **CLOSE)
    assert told.executor == "naive"
    assert "TorchFunctionMode" in told.refusals[0].reason
    check(step, cell())


def test_a_function_mode_changes_a_step_that_draws_its_noise() -> None:
    generator = torch.Generator()

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.rand(x.shape[0], H, generator=generator, dtype=torch.float64)
        h = torch.tanh(h + noise + x.sum(-1, keepdim=True))
        return h, h

    def drawn(backend: str | None) -> list[Tensor]:
        generator.manual_seed(3)
        return [*ours(step, *rows(), backend)]

    for by in (1.0, 2.0):
        with Scaled(by):
            found, expected = drawn(None), drawn("naive")
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_and_training_after_it(backend: str | None) -> None:
    step, twin = cell(), cell()
    x, h0 = rows()
    with torch.inference_mode():
        y, h = ours(step, x, h0, backend)
        assert y.is_inference()
        assert h.is_inference()
        wanted, final = by_hand(twin, x, h0)
        torch.testing.assert_close(y, wanted, **CLOSE)
        torch.testing.assert_close(h, final, **CLOSE)
        again, _ = ours(step, LoDTensor(torch.ones(2, 3).double(), [[0, 2]]), h[:1], backend)
        assert again.shape == (2, H)
    check(step, twin, lambda *a: ours(*a, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dense", [False, True], ids=["ragged", "dense"])
def test_gradients_enabled_in_inference_mode(dense: bool, backend: str | None) -> None:
    """There autograd records nothing all the same. Runs take turns, for they are found by what is around."""
    step, (x, h0) = cell(), rows()
    given: Any = x.values.view(1, -1, x.values.shape[1]) if dense else x
    h0 = h0[:1].expand(given.shape[1], -1) if dense else h0
    expected = recurrent(step, given, h0, backend="naive")[1]
    for _ in range(6):
        last = recurrent(step, given, h0, backend=backend)[1]
        last.sum().backward()
        with torch.inference_mode(), torch.enable_grad():
            inside = recurrent(step, given, h0, backend=backend)[1]
        assert last.requires_grad
        assert inside.is_inference()
        assert not inside.requires_grad
        torch.testing.assert_close((last, inside.clone()), (expected, expected.detach()), **CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_on_rows_and_states_made_in_inference_mode(backend: str | None) -> None:
    """Their rows are copied to be saved, as the plain loop does where it cuts sequences into steps."""
    step, twin = cell(), cell()
    x, h0 = (given.detach() for given in rows())
    with torch.inference_mode():
        made, booted = x.clone(), h0.clone()
    expected = [sum(r.sin().sum() for r in by_hand(twin, x, h0))]
    for given in ((made, h0), (x, booted), (made, booted)):
        loss = sum(r.sin().sum() for r in ours(step, *given, backend))
        found = torch.autograd.grad(loss, [*step.parameters()])
        wanted = torch.autograd.grad(expected, [*twin.parameters()], retain_graph=True)
        torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.10's own
@pytest.mark.parametrize("profiled", [False, True])
def test_ranges_for_a_profiler(profiled: bool) -> None:
    class Ranged(Cell):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            with torch.profiler.record_function("step"):
                h = torch.tanh(self.inp(x) + self.rec(h))
            return h, h

    step, twin = Ranged().double(), cell()
    step.load_state_dict(twin.state_dict())
    with torch.profiler.profile() if profiled else nullcontext():
        check(step, twin)
    assert executor_of(step) == ("c", "")


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_grad_around_and_inside(backend: str | None) -> None:
    step, twin = cell(), cell()
    with torch.no_grad():
        y, _ = ours(step, *rows(), backend=backend)
    assert not y.requires_grad
    with torch.no_grad(), torch.enable_grad():
        check(step, twin, lambda *a: ours(*a, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_hook_on_a_result_sees_what_comes_in_for_it(ragged: bool, backend: str | None) -> None:
    """Also where the last state is a row of y: each of them is clipped by itself, by any executor."""
    step, given = cell(torch.float32), torch.randn(4, 3, 3)
    x: Any = LoDTensor.from_lengths(given.flatten(0, 1), [[4, 0, 8]]) if ragged else given
    y, h = recurrent(step, x, torch.zeros(3, H, requires_grad=True), backend=backend)
    y = y.values if ragged else y
    seen: list[Tensor] = []
    for result in (y, h):
        result.register_hook(seen.append)
    (y.sum() * 2 + h.sum() * 3).backward()
    assert sorted([(grad.shape, grad.unique().tolist()) for grad in seen]) == sorted(
        [(y.shape, [2.0]), (h.shape, [3.0])]
    )
    y, h = recurrent(step, x, torch.zeros(3, H, requires_grad=True), backend=backend)
    h.detach_()  # it is no view


def _pulled(run: Callable[..., Any], step: nn.Module, x: LoDTensor, h0: Tensor) -> Callable[[], Any]:
    rows, states = x.values.detach(), h0.detach()
    _, pull = torch.func.vjp(
        lambda rows, states: run(step, x.with_values(rows), states)[0].sin().sum(), rows, states
    )
    return lambda: pull(torch.ones((), dtype=rows.dtype))


def _of_a_tangent(run: Callable[..., Any], step: nn.Module, x: LoDTensor, h0: Tensor) -> Callable[[], Any]:
    moving = forward_ad.make_dual(x.values, x.values.detach().cos())
    along = forward_ad.unpack_dual(run(step, x.with_values(moving), h0)[0]).tangent
    return lambda: torch.autograd.grad(along.square().sum(), [x.values, h0])


def _of_parameters(run: Callable[..., Any], step: nn.Module, x: LoDTensor, h0: Tensor) -> Callable[[], Any]:
    step.extra = nn.ParameterList([x.values.detach(), h0.detach()])
    rows, state = step.extra
    y, h = run(step, x.with_values(rows), state)
    return lambda: torch.autograd.grad(y.sin().sum() + h.sum(), [rows, state])


@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
def test_weights_that_get_other_memory_before_backward(backend: str) -> None:
    """`.data = ` and `.to()` replace the memory of a parameter, unseen by what autograd saves."""

    def swapped(step: nn.Module) -> None:
        step.float()

    def emptied(step: nn.Module) -> None:
        for p in step.parameters():
            p.data = torch.empty(0, dtype=p.dtype)

    def others(step: nn.Module) -> None:
        for p in step.parameters():
            p.data = p.data.t().flip(0).contiguous().reshape(p.shape)

    def turned(step: nn.Module) -> None:
        step.rec.weight.data = step.rec.weight.data.t()

    def backward(run: Callable[..., Any], step: nn.Module, x: LoDTensor, h0: Tensor) -> Callable[[], Any]:
        y, _ = run(step, x, h0)
        return lambda: torch.autograd.grad(y.sin().sum(), [x.values, h0])

    def law(way: Callable[..., Any], change: Callable[[nn.Module], None]) -> None:
        found = []
        for run in (by_hand, lambda *a: ours(*a, backend)):
            step = cell()
            with forward_ad.dual_level():
                later = way(run, step, *rows())
                change(step)
                found.append(later())
        torch.testing.assert_close(*found, **CLOSE)

    ways = {backward: (swapped, emptied, turned), _pulled: (swapped, others), _of_a_tangent: (others, turned)}
    ways[_of_parameters] = (emptied,)
    holds(law, {f"{w.__name__} {c.__name__}": (w, c) for w, changes in ways.items() for c in changes})
    step, (x, h0) = cell(), rows()
    (g,) = torch.autograd.grad(ours(step, x, h0, backend)[0].sin().sum(), x.values, create_graph=True)
    swapped(step)
    with pytest.raises(StepError, match="other memory"):
        g.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_weights_that_are_written_to_before_backward(backend: str) -> None:
    """A bias is read by no backward: as in torch it may be written to, if nobody differentiates once more."""
    step, (x, h0) = cell(), rows()
    before = results(step, by_hand)
    y, h = ours(step, x, h0, backend)
    with torch.no_grad():
        step.rec.bias.add_(1)
    found = torch.autograd.grad(y.sin().sum() + h.square().sum(), [x.values, h0, *step.parameters()])
    torch.testing.assert_close([*found], before[2:], **CLOSE)
    y, _ = ours(step, x, h0, backend)
    with torch.no_grad():
        step.rec.bias.add_(1)
    with pytest.raises(StepError, match="was written to"):
        torch.autograd.grad(y.sin().sum(), x.values, create_graph=True)
    y, _ = ours(step, x, h0, backend)
    with torch.no_grad():
        step.rec.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sin().sum().backward()


@torch_since("2.10", "a leaf that a custom Function saves under hooks for saved tensors loses its own hooks")
def test_hooks_of_what_gets_no_gradient_are_not_called() -> None:
    """Of a state that no step reads; and of x, where the loss needs the last state alone. One for accumulated
    gradients would see that of an earlier backward; it is called where one comes by another way."""

    def seen(step: Callable[..., Any], used: int, backend: str) -> list[str]:
        given = [torch.ones(2, 3, H, requires_grad=True), torch.ones(3, H, requires_grad=True)]
        called: list[str] = []
        for name, t in zip("xh", given, strict=True):
            t.register_hook(lambda g, name=name: called.append(name))
            t.register_post_accumulate_grad_hook(
                lambda t, name=name: called.append(f"after {name}: {t.grad.sum()}")
            )
        others = (0.0, given[used].cos().sum(), given[1 - used].cos().sum(), 0.0, 0.0)
        for k, other in enumerate(others):
            with nullcontext() if k < 4 else saved_tensors_hooks(Tensor.clone, Tensor.clone):
                result = recurrent(step, *(t * t if k % 2 else t for t in given), backend=backend)[used]
            (result.sum() + other).backward()
            called.append("next")
        return called

    for step, used in ((lambda x, h: (x, x * 2), 0), (lambda x, h: (x * 2, h * 2), 1)):
        assert seen(step, used, "eager") == seen(step, used, "naive")
