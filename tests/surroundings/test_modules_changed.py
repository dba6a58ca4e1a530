"""Steps whose modules torch's own tools changed: parametrized, hooked, pruned, replaced, quantised."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from beside_plain import LENGTHS, Cell, by_hand, cell, check, executor_of, ours, results, rows
from covering import few
from stepnet import LoDTensor, Recurrent, cells, explain


class OwnParameter(nn.Parameter):
    pass


class RuledParameter(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


CHANGES_OBJECTS = "changes Python objects as it runs"


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.linspace(-1, 1, 2 * base.in_features).reshape(2, -1).double())
        self.b = nn.Parameter(torch.linspace(1, 0, 2 * base.out_features).reshape(-1, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class WeightOnly(nn.Module):
    """An int8 weight with a scale for each output."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", torch.round(base.weight.detach() / scale).to(torch.int8))
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


class LowRank(nn.Module):
    """LoRA as a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.linspace(-1, 1, 8).reshape(4, 2).double()) for _ in range(2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.a @ self.b.T


def replaced(by: Callable[[nn.Linear], nn.Module]) -> Callable[[Cell], None]:
    def change(step: Cell) -> None:
        step.inp, step.rec = by(step.inp), by(step.rec)  # pyright: ignore[reportAttributeAccessIssue]

    return change


def spectral(step: Cell) -> None:
    parametrizations.spectral_norm(step.rec)
    step.eval()


def pruned(step: Cell) -> None:
    prune.l1_unstructured(step.rec, "weight", 0.5)


def pruned_for_good(step: Cell) -> None:
    pruned(step)
    prune.remove(step.rec, "weight")


def before_and_after(step: Cell) -> None:
    step.rec.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    step.inp.register_forward_hook(lambda module, args, result: result + args[0].sum(-1, keepdim=True))


def counted(step: Cell) -> None:
    calls: list[int] = []
    step.rec.register_forward_hook(lambda module, args, result: calls.append(len(result)))


# The change, the executor that runs the step then, and why no faster one.
CHANGES: dict[str, tuple[Callable[[Cell], Any], str, str]] = {
    "weight_norm": (lambda s: [parametrizations.weight_norm(m) for m in (s.inp, s.rec)], "c", ""),
    "weight_norm of one": (lambda s: parametrizations.weight_norm(s.rec), "c", ""),
    "spectral_norm, eval": (spectral, "c", ""),
    "orthogonal": (lambda s: parametrizations.orthogonal(s.rec), "c", ""),
    "orthogonal by Cayley": (lambda s: parametrizations.orthogonal(s.rec, orthogonal_map="cayley"), "c", ""),
    "hooks before and after": (before_and_after, "c", ""),
    "a hook that counts": (counted, "naive", CHANGES_OBJECTS),
    "a gradient hook": (lambda s: s.rec.weight.register_hook(lambda grad: grad * 2), "c", ""),
    "pruning": (pruned, "naive", CHANGES_OBJECTS),
    "pruning, removed": (pruned_for_good, "c", ""),
    "LoRA": (replaced(LoRA), "c", ""),
    "LoRA as a parametrization": (
        lambda s: parametrize.register_parametrization(s.rec, "weight", LowRank()),
        "c",
        "",
    ),
    "a Parameter of one's own class": (
        lambda s: setattr(s.rec, "weight", OwnParameter(s.rec.weight.detach())),
        "c",
        "",
    ),
    "one with rules of its own": (
        lambda s: setattr(s.rec, "weight", RuledParameter(s.rec.weight.detach())),
        "naive",
        "rules of its own",
    ),
    "weight-only int8": (replaced(WeightOnly), "c", ""),
}


@pytest.mark.parametrize(
    "name",
    few(
        CHANGES,
        [
            "weight_norm",
            "hooks before and after",
            "a hook that counts",
            "pruning, removed",
            "one with rules of its own",
        ],
    ),
)
def test_a_changed_step_after_a_plain_one(name: str) -> None:
    change, executor, reason = CHANGES[name]
    step, twin = cell(), cell()
    check(step, twin)
    for each in (step, twin):
        torch.manual_seed(5)
        change(each)
    check(step, twin)
    found, why = executor_of(step)
    assert (found, reason in why) == (executor, True), why


def test_and_back_again() -> None:
    step, twin = cell(), cell()
    handles = [step.rec.register_forward_hook(lambda module, args, result: result * 2)]
    ours_with, theirs = results(step, ours), results(twin, ours)
    assert not torch.allclose(ours_with[0], theirs[0])
    handles[0].remove()
    check(step, twin)
    for each in (step, twin):
        parametrizations.weight_norm(each.rec)
    check(step, twin)
    for each in (step, twin):
        parametrize.remove_parametrizations(each.rec, "weight")
    check(step, twin)


def test_a_hook_of_all_modules() -> None:
    step, twin = cell(), cell()
    check(step, twin)

    def halve(module: nn.Module, args: Any, result: Any) -> Any:
        return result * 0.5 if isinstance(module, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_hook(halve)
    try:
        changed = results(step, ours)
        check(step, twin)
    finally:
        handle.remove()
    assert not torch.allclose(changed[0], results(step, ours)[0])
    check(step, twin)


def test_spectral_norm_in_training_iterates_at_every_step() -> None:
    """A power iteration at each step changes a buffer: the plain loop runs it."""
    step, twin = cell(), cell()
    for each in (step, twin):
        torch.manual_seed(5)
        parametrizations.spectral_norm(each.rec)
    for _ in range(2):
        plain = results(twin, lambda *a: ours(*a, backend="naive"))
        torch.testing.assert_close(results(step, ours), plain, rtol=0, atol=0)
    executor, why = executor_of(step)
    assert executor == "naive"
    assert "in place" in why
    with parametrize.cached():  # one iteration for the whole loop
        cached = [results(each, ours)[:2] for each in (step, twin)]
    torch.testing.assert_close(cached[0], cached[1])


def test_what_a_block_has_cached_is_what_steps_read() -> None:
    """Whatever its parameters are changed to meanwhile; and backward goes through what made it once."""
    step, twin = cell(), cell()
    for each in (step, twin):
        torch.manual_seed(5)
        parametrizations.weight_norm(each.rec)
    for _ in range(2):
        found = []
        for each, run in ((step, ours), (twin, lambda *a: ours(*a, backend="naive"))):
            with parametrize.cached():
                before = results(each, run)
                with torch.no_grad():
                    each.get_parameter("rec.parametrizations.weight.original0").mul_(2)
                after, _ = run(each, *rows())
                assert torch.equal(after, before[0])
                with pytest.raises(RuntimeError, match=r"second time|modified by an inplace"):
                    after.sum().backward()
            found.append(before)
        torch.testing.assert_close(*found)
    with parametrize.cached():
        assert executor_of(step)[0] == "c"


@pytest.mark.exhaustive
def test_backward_hooks_run_at_every_step() -> None:
    seen: list[int] = []
    step, twin = cell(), cell()
    for each in (step, twin):
        each.rec.register_full_backward_hook(lambda module, grads, of: seen.append(len(of[0])))
    check(step, twin)
    seen.clear()
    results(step, ours)
    assert sorted(seen, reverse=True) == [3, 2, 1, 1]  # as many sequences as run at each step
    assert executor_of(step)[0] == "naive"


class OnlyRows(nn.Module):
    """Gives the rows of y as they are, or as a LoDTensor."""

    def __init__(self, ragged: bool) -> None:
        super().__init__()
        self.rec, self.ragged = Recurrent(cells.GRU(3, 4)), ragged

    def forward(self, x: LoDTensor) -> Any:
        y, _ = self.rec(x)
        return y if self.ragged else y.values


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # none of its inputs is a tensor
def test_backward_hooks_around_a_recurrence_see_tensors_and_no_lod_tensors() -> None:
    x, seen = LoDTensor.from_lengths(torch.randn(6, 3), [[2, 0, 4]]), []
    for module in OnlyRows(ragged=True), OnlyRows(ragged=False):
        module.register_full_backward_hook(lambda module, grads, of: seen.append(of[0].shape))
        if module.ragged:
            with pytest.warns(UserWarning, match="backward hooks"):
                rows_of_y = module(x).values
        else:
            rows_of_y = module(x)
        rows_of_y.register_hook(lambda grad: seen.append("rows"))
        rows_of_y.sum().backward()
    assert seen == ["rows", "rows", (6, 4)]


@pytest.mark.filterwarnings("ignore")  # torch's own: it moves to another package
def test_observers_see_the_rows_of_each_step_and_no_others() -> None:
    step, twin = (cell(torch.float32) for _ in range(2))
    for each in (step, twin):
        each.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
        torch.ao.quantization.prepare_qat(each, inplace=True)
    for _ in range(2):
        plain = results(twin, lambda *a: ours(*a, backend="naive"))
        torch.testing.assert_close(results(step, ours), plain, rtol=0, atol=0)
        torch.testing.assert_close([*step.buffers()], [*twin.buffers()], rtol=0, atol=0)
    told = explain(step, *rows(torch.float32))
    assert (told.executor, "in place" in told.refusals[0].reason) == ("naive", True)


def test_an_optimizer_in_the_backward_pass() -> None:
    """It steps once for each weight, by the sum over all time steps."""
    step, twin = cell(), cell()

    def descend(weight: Tensor) -> None:
        with torch.no_grad():
            weight -= 0.1 * weight.grad  # pyright: ignore[reportOperatorIssue]

    for weight in step.parameters():
        weight.register_post_accumulate_grad_hook(descend)
    for _ in range(3):
        results(step, ours)
        results(twin, by_hand)
        for weight in twin.parameters():
            descend(weight)
        torch.testing.assert_close([*step.parameters()], [*twin.parameters()])


@pytest.mark.filterwarnings("ignore")  # torch's own: it moves to another package
def test_a_linear_quantised_dynamically() -> None:
    """Its scale is that of all rows of a call, so each sequence alone gives other numbers: the plain loop."""
    steps = [torch.ao.quantization.quantize_dynamic(cell(torch.float32), {nn.Linear}) for _ in range(2)]
    x, h0 = rows(torch.float32)
    with torch.no_grad():
        found, plain = (ours(step, x, h0, how) for step, how in zip(steps, (None, "naive"), strict=True))
        torch.testing.assert_close(found, plain, rtol=0, atol=0)
        torch.testing.assert_close(found, ours(cell(torch.float32), x, h0), rtol=0.05, atol=0.05)
    told = explain(steps[0], x, h0)
    assert told.executor == "naive"
    assert "ScriptObject" in told.refusals[0].reason


def test_weights_that_are_loaded_or_swapped_in_between() -> None:
    step, twin = cell(), cell()
    check(step, twin)
    other = {name: value + 0.25 for name, value in cell().state_dict().items()}
    for each in (step, twin):
        each.load_state_dict(copy.deepcopy(other))
    check(step, twin)
    for each in (step, twin):
        each.load_state_dict({name: value - 0.5 for name, value in other.items()}, assign=True)
    check(step, twin)
    for each in (step, twin):
        each.rec = nn.Linear(4, 4, bias=False).double()
        nn.init.constant_(each.rec.weight, 0.1)
    check(step, twin)


@pytest.mark.parametrize("runs", few([1, 2, 4], [2]))
def test_parameters_are_swapped_as_torch_does(runs: int) -> None:
    """torch swaps no tensor that has a weak reference, or one that something else holds."""
    step, twin = cell(), cell()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for dtype in (torch.float32, torch.float64):
            for _ in range(runs):
                check(step, twin)
            for each in (step, twin):
                each.zero_grad()
                each.to(dtype).to(torch.float64)
        for each in (step, twin):
            each.load_state_dict({name: value + 0.25 for name, value in each.state_dict().items()})
        check(step, twin)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_one_that_counts_leaves_others_of_its_class_compiled() -> None:
    """Nor does it take back what is known of one: its gradients are differentiated again."""

    class Counts(Cell):
        def __init__(self, every: int) -> None:
            super().__init__()
            self.every, self.calls = every, 0

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            if self.every:
                self.calls += 1
            return super().forward(x, h)

    counts, plain = Counts(2).double(), Counts(0).double()
    for _ in range(5):
        ours(counts, *rows())
    assert counts.calls == 5 * max(LENGTHS)
    y, _ = ours(plain, *rows(), backend="eager")
    ours(counts, *rows())
    weight = plain.rec.weight
    (grad,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
    torch.autograd.grad(grad.sum(), weight)
    ours(plain, *rows(), backend="eager")
