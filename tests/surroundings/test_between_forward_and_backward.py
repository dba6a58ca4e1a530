"""What is done to weights and results after the forward pass: gradients are those of a loop in torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from beside_plain import CLOSE
from stepnet import LoDTensor, recurrent
from stepnet.errors import LoDError, StepError, WrittenError
from tables import holds

BACKEND = "eager"
Change = Callable[..., Any]


def _numbers(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()


def _other(t: Tensor) -> None:
    t.data = t.data.flip(0) * 2


def test_weights_that_get_other_memory_are_read_as_torch_saved_them() -> None:
    """An op saves a leaf itself, and its backward reads what that has by then; views keep what they see."""

    def loop(step: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        ys = []
        for row in x:
            y, h = step(row, h)
            ys.append(y)
        return torch.stack(ys), h

    def law(turned: bool, change: Change, calls: int) -> None:
        found = []
        for run in (loop, lambda *a: recurrent(*a, backend=BACKEND)):
            weight, bias, x, h0 = _numbers(3, 3), _numbers(3), _numbers(4, 2, 3), _numbers(2, 3)

            def step(x: Tensor, h: Tensor, weight: Tensor = weight, bias: Tensor = bias) -> Any:
                h = torch.tanh(x + (F.linear(h, weight) if turned else h @ weight) * bias)
                return h, h

            y, h = [run(step, x, h0) for _ in range(calls)][-1]
            change(weight)
            found.append(torch.autograd.grad(y.square().sum() + h.sum(), [weight, bias, x, h0]))
        torch.testing.assert_close(*found, **CLOSE)

    cases = ((False, _other, 1), (False, _other, 6), (True, _other, 1))
    holds(law, {f"{case}": case for case in cases})


def test_what_stands_for_other_numbers_has_not_moved() -> None:
    """Of the imaginary part of a conjugate torch notes the sign; it says that it is not set to itself."""
    numbers: dict[str, Callable[[Tensor], Tensor]] = {
        "negative": torch._neg_view,
        "zeros": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    }

    def law(of: str, name: str, trains: bool) -> None:
        found = []
        for backend in ("naive", BACKEND):
            given = {"x": _numbers(4, 2, 3), "h0": _numbers(2, 3), "weight": _numbers(3, 3)}
            given[name] = numbers[of](given[name].detach()).requires_grad_(trains)
            x, h0, weight = given.values()
            y, h = recurrent(lambda x, h: (h := torch.tanh(x + h @ weight), h), x, h0, backend=backend)  # noqa: B023
            wanted = [t for t in given.values() if t.requires_grad]
            first = torch.autograd.grad(y.square().sum() + h.sum(), wanted, create_graph=True)
            second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), wanted)
            found.append((*first, *second))
        torch.testing.assert_close(*found, **CLOSE)

    roles = [(name, trains) for name in ("x", "h0", "weight") for trains in (False, True)]
    holds(law, {f"{of}, {role}": (of, *role) for of in numbers for role in roles})


@pytest.mark.exhaustive
def test_gradients_of_weights_that_got_other_memory_are_differentiated() -> None:
    """Of what torch saved views of. A leaf that is saved itself has other numbers at each derivative."""

    def law(lengths: list[int], changed: str, batched: bool, saves: bool) -> None:
        found = []
        for backend in ("naive", BACKEND):
            given = {"weight": _numbers(3, 3), "bias": _numbers(3), "x": _numbers(sum(lengths), 3)}
            given["h0"] = _numbers(len(lengths), 3)
            weight, bias, x, h0 = given.values()

            def step(x: Tensor, h: Tensor, weight: Tensor = weight, bias: Tensor = bias) -> Any:
                h = torch.tanh(x + F.linear(h, weight, None if saves else bias) * (bias if saves else 1))
                return h, h

            y, h = recurrent(step, LoDTensor.from_lengths(x, [lengths]), h0, backend=backend)
            for name in changed.split():
                _other(given[name])
            inputs, loss = [*given.values()], y.values.square().sum() + h.sum()
            with pytest.raises(WrittenError, match="other memory") if saves and found else nullcontext():
                first = torch.autograd.grad(loss, inputs, create_graph=True)
                of: Any = sum(g.square().sum() for g in first) + y.values.sin().sum()
                seeds = torch.tensor([1.0, 2.0], dtype=of.dtype) if batched else None
                how: Any = {"grad_outputs": seeds, "is_grads_batched": batched, "retain_graph": True}
                second = torch.autograd.grad(of, inputs, **how)
                third = torch.autograd.grad(of, inputs, create_graph=True)
                of = sum(g.square().sum() for g in third)
                found.append([*first, *second, *torch.autograd.grad(of, inputs)])
        if not saves:
            torch.testing.assert_close(*found, **CLOSE)

    changes = ("weight", "weight bias", "x", "weight x h0")
    cases = [(lengths, c, batched, False) for lengths in ([1, 3, 0], [2, 1]) for c in changes
             for batched in (False, True)]  # fmt: skip
    holds(law, {f"{case}": case for case in [*cases, ([2, 1], "bias", False, True)]})


def test_what_is_saved_depends_on_the_call() -> None:
    """In one step from a state without a gradient nothing reads the weight again; in two the second does."""
    weight = _numbers(3, 3)

    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x + h @ weight)
        return h, h

    for lengths in ([1], [2, 2]):
        found, before = [], weight.data
        for backend in ("naive", BACKEND):
            x = _numbers(sum(lengths), 3)
            start = torch.ones(len(lengths), 3, dtype=torch.float64)
            y, _ = recurrent(step, LoDTensor.from_lengths(x, [lengths]), start, backend=backend)
            _other(weight)
            found.append(torch.autograd.grad(y.values.square().sum(), [weight, x]))
            weight.data = before
        torch.testing.assert_close(*found, **CLOSE)


def test_results_may_be_written_to() -> None:
    """The plain loop joins what its steps gave, so nobody needs the result as it was."""

    def law(ragged: bool, calls: int, how: Change) -> None:
        found = []
        hows: Any = ({"backend": "naive"}, {"backend": BACKEND})
        for how_run in hows:
            weight, x, h0 = _numbers(3, 3), _numbers(8, 3), _numbers(2, 3)

            def step(x: Tensor, h: Tensor, weight: Tensor = weight) -> Any:
                h = torch.tanh(x + h @ weight)
                return h, h

            rows = LoDTensor.from_lengths(x, [[3, 5]]) if ragged else x.view(4, 2, 3)
            y, _ = [recurrent(step, rows, h0, **how_run) for _ in range(calls)][-1]
            y = y.values if isinstance(y, LoDTensor) else y
            how(y)
            found.append(torch.autograd.grad(y.square().sum(), [weight, x, h0]))
        torch.testing.assert_close(*found, **CLOSE)

    ways: dict[str, Change] = {"all": lambda y: y.mul_(2), "some": lambda y: y[1:2].zero_()}
    kinds = ((True, 1), (False, 1), (False, 6))
    holds(law, {f"{kind} {way}": (*kind, how) for kind in kinds for way, how in ways.items()})


def test_what_is_computed_again_was_not_written_to() -> None:
    """A bias that backward has no need of, where backward makes y again."""
    weight, bias, x, h0 = _numbers(3, 3), _numbers(3), _numbers(4, 2, 3), _numbers(2, 3)

    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x + h @ weight + bias)
        return h, h

    y, _ = recurrent(step, x, h0, backend=BACKEND)
    y.mul_(2)
    with torch.no_grad():
        bias.add_(1)
    with pytest.raises(StepError, match="a weight or x was written to"):
        y.sum().backward()


def test_a_weight_that_no_derivative_depends_on_may_be_written_to() -> None:
    """A term of a sum may change, as in torch, before a gradient that is differentiated."""
    found = []
    hows: Any = ({"backend": "naive"}, {"backend": BACKEND})
    for how in hows:
        weight, x, h0 = _numbers(3, 3), _numbers(4, 2, 3).detach(), _numbers(2, 3)
        _, h = recurrent(lambda x, h, w=weight: (x, h * 0.5 + x @ w), x, h0, **how)
        weight.detach().add_(1)
        first = torch.autograd.grad(h.square().sum(), [weight, h0], create_graph=True)
        found.append([*first, *torch.autograd.grad(first[0].sum() + first[1].sum(), [weight, h0])])
    torch.testing.assert_close(*found, **CLOSE)


def test_x_that_backward_does_not_read_may_change() -> None:
    """A term of a sum, which no gradient needs: in place, or with other memory."""

    def law(change: Change, ragged: bool) -> None:
        found = []
        hows: Any = ({"backend": "naive"}, {"backend": BACKEND})
        for how in hows:
            weight, x = _numbers(3, 3), _numbers(8, 3).detach()

            def step(x: Tensor, h: Tensor, weight: Tensor = weight) -> Any:
                h = torch.tanh(x + h @ weight)
                return h, h

            rows = LoDTensor.from_lengths(x, [[3, 5]]) if ragged else x.view(4, 2, 3)
            _, h = recurrent(step, rows, x.new_zeros(2, 3), **how)
            change(x)
            found.append(torch.autograd.grad(h.square().sum(), [weight]))
        torch.testing.assert_close(*found, **CLOSE)

    ways: dict[str, Change] = {"in place": lambda x: x.mul_(2), "other memory": _other}
    holds(law, {f"{way} {ragged}": (how, ragged) for way, how in ways.items() for ragged in (True, False)})


def test_a_tensor_that_is_read_as_a_number_may_be_written_to() -> None:
    """What `.item()` gave is no tensor's any more."""
    found = []
    hows: Any = ({"backend": "naive"}, {"backend": BACKEND})
    for how in hows:
        weight, scale, x = _numbers(3, 3), _numbers(1), _numbers(4, 2, 3)

        def step(x: Tensor, h: Tensor, weight: Tensor = weight, scale: Tensor = scale) -> Any:
            h = torch.tanh(x @ weight * scale.item() + h)
            return h, h

        for times in (2, 3, 4):  # the last one is a warm call
            scale.detach().fill_(times)
            y, _ = recurrent(step, x, torch.zeros(2, 3, dtype=torch.float64), **how)
            scale.detach().fill_(9)
            found.append(torch.autograd.grad(y.square().sum(), [weight, x]))
    n = len(found) // 2
    torch.testing.assert_close(*(found[:n], found[n:]), **CLOSE)


def test_x_that_backward_reads_may_not_be_written_to() -> None:
    """The error names the step and says what to do; it is a RuntimeError, as torch's own is."""
    weight, x = _numbers(3, 3), _numbers(4, 2, 3).detach()

    def smoothed(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x @ weight + h)
        return h, h

    for order in (1, 2):
        y, _ = recurrent(smoothed, x, torch.zeros(2, 3, dtype=torch.float64), backend=BACKEND)
        grads = [y.square().sum()]
        if order == 2:
            grads = torch.autograd.grad(grads, weight, create_graph=True)
        x.mul_(2)
        with pytest.raises(
            WrittenError, match="step 'smoothed' has been modified by an inplace operation"
        ) as caught:
            torch.autograd.backward([g.sum() for g in grads])
        assert isinstance(caught.value, RuntimeError)
        assert "call backward first" in str(caught.value)


def test_hooks_give_back_what_was_saved() -> None:
    """Another type or shape would be read as if it were the one that was saved."""
    cases: dict[str, Any] = {
        "another type": (Tensor.float, False, BACKEND, StepError),
        "a part": (lambda t: t[:1], False, BACKEND, StepError),
        "an order of rows as floats": (lambda t: t * 1.0, True, "naive", LoDError),
    }
    holds(_a_hook_that_is_refused, cases)


@pytest.mark.exhaustive  # its derivative is recorded, too
def test_hooks_give_back_what_was_saved_at_a_level_of_forward_mode() -> None:
    """There another node keeps it."""
    _a_hook_that_is_refused(Tensor.float, False, BACKEND, StepError, level=True)


def _a_hook_that_is_refused(
    pack: Change, ragged: bool, backend: Any, error: Any, level: bool = False
) -> None:
    weight, x = _numbers(3, 3), _numbers(8, 3)
    rows, start = LoDTensor.from_lengths(x, [[3, 5]]) if ragged else x.view(4, 2, 3), x.new_zeros(2, 3)

    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x @ weight + h)
        return h, h

    with forward_ad.dual_level() if level else nullcontext():
        start = forward_ad.make_dual(start, start + 1) if level else start
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y, _ = recurrent(step, rows, start, backend=backend)
    with pytest.raises(error, match="a hook for saved tensors gave back something else"):
        (y.values if isinstance(y, LoDTensor) else y).sum().backward()


def test_what_a_hook_of_the_step_reads_in_backward_is_what_it_read() -> None:
    """The gradient was traced; a hook that finds another number in backward is told of."""
    _a_gradient_that_is_scaled_in_backward("hook", opened=False)


@pytest.mark.exhaustive  # five plans
def test_what_code_of_the_step_reads_in_backward_is_what_it_read() -> None:
    """The same of Functions, of hooks of modules, and of steps that are recorded at each call."""
    cases: dict[str, Any] = {f"{how} {opened}": (how, opened) for how in _SCALED for opened in (False, True)}
    del cases["module True"]  # which has no plan
    holds(_a_gradient_that_is_scaled_in_backward, cases)


def test_what_functions_do_not_read_in_backward_may_change() -> None:
    """Spikes whose threshold is another at each call, say."""
    weight, x, kept = _numbers(3, 3), _numbers(4, 2, 3), {"gain": 1.0}

    def step(x: Tensor, h: Tensor) -> Any:
        h = _Scaled.apply(torch.tanh(x + kept["gain"] * h @ weight))
        return h, h

    def gradients(backend: Any) -> tuple[Tensor, ...]:
        total = weight.new_zeros(())
        for gain in (1.0, 1.0, 0.5):
            kept["gain"] = gain
            y, _ = recurrent(step, x, x.new_zeros(2, 3), backend=backend)
            total = total + y.square().sum()
        kept["gain"] = 3.0
        return torch.autograd.grad(total, [weight, x])

    _Scale.by = 1.0
    torch.testing.assert_close(gradients(BACKEND), gradients("naive"), **CLOSE)


class _Scale:
    by = 1.0


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Any:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * _Scale.by


def _hooked(h: Tensor) -> Tensor:
    h.register_hook(lambda grad: grad * _Scale.by)
    return h


def _in_module() -> torch.nn.Module:
    module = torch.nn.Tanh()
    module.register_full_backward_hook(lambda module, of_inputs, grads: (of_inputs[0] * _Scale.by,))
    return module


_SCALED: dict[str, Callable[[], Change]] = {
    "function": lambda: _Scaled.apply, "hook": lambda: _hooked, "module": _in_module
}  # fmt: skip


def _a_gradient_that_is_scaled_in_backward(how: str, opened: bool) -> None:
    scaled, weight, x = _SCALED[how](), _numbers(3, 3), _numbers(4, 2, 3)

    def closed(x: Tensor, h: Tensor) -> Any:
        h = scaled(x + h @ weight)
        return h.tanh(), h

    def looks_up(x: Tensor, h: Tensor) -> Any:
        h = scaled(x + h @ weight)
        return getattr(h, "".join(("ta", "nh")))(), h

    step = looks_up if opened else closed

    def gradients(backend: Any, before: float, after: float) -> tuple[Tensor, ...]:
        _Scale.by = before
        y, _ = recurrent(step, x, x.new_zeros(2, 3), backend=backend)
        _Scale.by = after
        return torch.autograd.grad(y.square().sum(), [weight, x])

    for by in (1.0, 1.0, 0.5, 0.5):  # changed before the call
        torch.testing.assert_close(gradients(BACKEND, by, by), gradients("naive", by, by), **CLOSE)
    with pytest.raises(StepError, match="hooks or custom Functions may read it in backward"):
        gradients(BACKEND, 0.5, 2.0)


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("how", _SCALED)
def test_a_second_derivative_by_what_backward_reads_later(how: str, linear: bool) -> None:
    """A gradient differentiated runs backward's code once more, which finds what holds by then."""
    scaled, weight, x = _SCALED[how](), _numbers(3, 3), _numbers(4, 2, 3)

    def step(x: Tensor, h: Tensor) -> Any:
        h = scaled((x + h @ weight).sin())
        return h.tanh(), h

    def gradients(backend: Any, later: float) -> tuple[Tensor, ...]:
        _Scale.by = 1.0
        y, _ = recurrent(step, x, x.new_zeros(2, 3), backend=backend)
        loss = y.sum() if linear else y.square().sum()
        first = torch.autograd.grad(loss, [weight, x], create_graph=True)
        _Scale.by = later
        return torch.autograd.grad(torch.cat(first[:1]).square().sum(), [weight, x])

    for _ in range(2):  # by a plan that is made, and by one that is there
        torch.testing.assert_close(gradients(BACKEND, 1.0), gradients("naive", 1.0), **CLOSE)
    with pytest.raises(StepError, match="no longer reads what it read"):
        gradients(BACKEND, 2.0)
