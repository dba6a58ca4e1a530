"""Control flow in a step: what Python asks tensors for, torch.cond, while loops; against the plain loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outcomes import as_the_plain_loop
from plans import entry_of
from stepnet import LoDTensor, TensorArray, create_whileloop, explain, recurrent, while_loop
from stepnet.engine import plans
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from torch_since import torch_since

try:
    from torch import while_loop as torch_while  # pyright: ignore
except ImportError:
    from torch._higher_order_ops.while_loop import while_loop as torch_while

# torch's own, from the compiler that it runs its control flow by in the plain loop
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

DTYPE = torch.float64
D = 3
LENGTHS = [2, 0, 1, 3]
GENERATOR = torch.Generator().manual_seed(2)
W, V = ((torch.randn(D, D, generator=GENERATOR, dtype=DTYPE) / 2).requires_grad_() for _ in range(2))
GATE = torch.tensor(1.0, dtype=DTYPE)
STEPS = torch.tensor(2)


@pytest.fixture(autouse=True)
def _as_before():
    yield
    GATE.fill_(1.0)
    STEPS.fill_(2)


def asked(x: Tensor, h: Tensor) -> Any:
    """By an item, by a truth value, by a list, and by one that is the same for all rows of a constant."""
    scale = GATE.item()
    h = torch.tanh(x @ W * scale + h) if GATE > 0 else h * 0.5 + x @ V
    for _ in range(int(STEPS)):
        h = torch.sin(h) + float(STEPS)
    return h + torch.tensor(3.0, dtype=DTYPE).item(), h


def branched(x: Tensor, h: Tensor) -> Any:
    def one(x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(x @ W + h)

    def other(x: Tensor, h: Tensor) -> Tensor:
        return (x @ V).abs().sqrt() - h

    h = torch.cond(GATE > 0, one, other, (x, h))
    return h, h


def counted(x: Tensor, h: Tensor) -> Any:
    """A number of inner steps that a captured tensor tells, by torch's loop and by this package's."""

    def body(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(h @ W + x)

    zero = torch.zeros((), dtype=torch.int64)
    _, h = torch_while(lambda i, h: i < STEPS, body, (zero, h))
    _, h = while_loop(lambda i, h: i < STEPS + 1, body, (zero, h))
    return h, h


def relaxed(x: Tensor, h: Tensor) -> Any:
    """A number of inner steps for each row, with a count; and one with a number that all rows share."""

    def body(h: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return 0.7 * torch.tanh(h @ W) + 0.1 * x, x, n + 1

    counts = torch.zeros(h.shape[0], dtype=torch.int64)
    h, x, counts = while_loop(lambda h, x, n: (h.abs().sum(1) > 1) & (n < 4), body, (h + x, x, counts))
    _, h = while_loop(lambda i, h: h[:, 0] > 0.2 * i, lambda i, h: (i + 1, h - 0.2), (0, h), max_steps=5)
    return (h, counts), h


def row_by_row(x: Tensor, h: Tensor) -> Any:
    """A branch for each row, by torch.vmap."""

    def row(x: Tensor, h: Tensor) -> Tensor:
        return torch.cond(h.sum() > 0, lambda x, h: torch.tanh(x + h), lambda x, h: h.cos() * x, (x, h))

    h = torch.vmap(row)(x, h)
    return h, h


def given(spread: float = 1.0) -> tuple[LoDTensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(LENGTHS), D, dtype=DTYPE, generator=generator).mul_(spread).requires_grad_()
    h = torch.randn(len(LENGTHS), D, dtype=DTYPE, generator=generator).requires_grad_()
    return LoDTensor.from_lengths(x, [LENGTHS]), h


def same(step: Callable[..., Any], backend: str = "c", spread: float = 1.0, ragged: bool = True) -> None:
    x, h = given(spread)
    if not ragged:
        x, h = x.values.view(2, -1, D), h[: len(x.values) // 2]
    as_the_plain_loop(step, x, h, backend, weights=[W, V])


needs_torch = torch_since("2.13", "its cond and while_loop are compiled anew inside what records them")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(asked, marks=pytest.mark.exhaustive),
        pytest.param(branched, marks=needs_torch),
        pytest.param(counted, marks=[needs_torch, pytest.mark.exhaustive]),
    ],
    ids=["asked", "branched", "counted"],
)
def test_what_python_asks_is_asked_anew(step):
    ragged = step is asked  # in the plain loop torch compiles its control flow for each number of rows
    same(step, ragged=ragged)
    GATE.fill_(-1.0)
    STEPS.fill_(3)
    same(step, ragged=ragged)
    if step is not asked:  # 0 times 0: the plan of before, and a loop that runs once less
        return
    same(step, "eager")
    with torch.no_grad():
        x, h = torch.ones(2, 2, D, dtype=DTYPE), torch.ones(2, D, dtype=DTYPE)
        torch.testing.assert_close(recurrent(step, x, h, backend="c"), recurrent(step, x, h, backend="naive"))


@pytest.mark.parametrize(
    "step",
    [pytest.param(relaxed, marks=pytest.mark.exhaustive), pytest.param(row_by_row, marks=needs_torch)],
    ids=["relaxed", "row_by_row"],
)
def test_each_row_by_itself(step):
    same(step)


def shrunk(x: Tensor, h: Tensor) -> Any:
    def body(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return h / 2, x

    h, _ = while_loop(lambda h, x: h.abs().amax(1) > 1, body, (h + x, x), max_steps=6)
    return h, h


def test_rows_that_take_longer_than_those_before():
    """Of few steps, of many (compiled with more), of too many (the error of the plain loop), of few again."""
    for spread in (1.0, 20.0):
        same(shrunk, spread=spread)
    assert entry_of(shrunk, *inputs(), backend="c").ready is not None
    with pytest.raises(StepError, match="still holds after max_steps=6"):
        recurrent(shrunk, *given(spread=1e4))
    same(shrunk)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.ones(2, 2, D, dtype=DTYPE, requires_grad=True), torch.ones(2, D, dtype=DTYPE)


def rooted(x: Tensor, h: Tensor) -> Any:
    """Whose derivative is infinite at 0, where no row with a 0 goes."""
    h, x = while_loop(lambda h, x: h.amin(1) > 1, lambda h, x: (h.sqrt() * 0.9, x), (h, x))
    return h + x, h + x


def test_a_row_that_does_not_run_has_no_gradient_there():
    values = {}
    for backend in ("c", "naive"):
        h = torch.tensor([[0.0, 2.0, 3.0], [1.5, 2.0, 3.0]], dtype=DTYPE, requires_grad=True)
        y, _ = recurrent(rooted, torch.ones(1, 2, D, dtype=DTYPE), h, backend=backend)
        (values[backend],) = torch.autograd.grad(y.sum(), h)
    assert values["naive"].isfinite().all()
    torch.testing.assert_close(values["c"], values["naive"])


def refused(step: Callable[..., Any]) -> str:
    """The reason and the remedy; and `auto` runs it by the plain loop."""
    with pytest.raises(Unsupported) as caught:
        recurrent(step, *inputs(), backend="c")
    torch.manual_seed(3)
    with pytest.warns(SlowPathWarning):
        found = recurrent(step, *inputs())
    torch.manual_seed(3)
    torch.testing.assert_close(found, recurrent(step, *inputs(), backend="naive"))
    return str(caught.value)


def of_noise(x: Tensor, h: Tensor) -> Any:
    return (h + x if torch.rand(()) > 0.5 else h - x), h


def of_sizes(x: Tensor, h: Tensor) -> Any:
    return (h + x if torch.ones(x.shape[0]).sum() > 100 else h - x), h


def of_what_was_written(x: Tensor, h: Tensor) -> Any:
    kept = torch.zeros(2, dtype=DTYPE)
    kept[0] = x[0, 0]
    return (h + x if kept.sum() > 0 else h - x), h


def of_all_rows(x: Tensor, h: Tensor) -> Any:
    i, h = while_loop(
        lambda i, h: h[:, 0] > 0.5, lambda i, h: (i + torch.ones(()), h - 0.3), (torch.zeros(()), h)
    )
    return h * i, h


def at_the_first_step(x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
    """What is asked of all rows holds on sample rows at the first step, and not at the next, in more ways
    than are compiled."""
    h, n = state
    for i in range(3):
        if not (n == i).all():
            h = h * (1.5 - i)
    h = torch.tanh(h @ W + x)
    return h, (h, n + 1)


def test_what_holds_at_the_first_step_alone():
    x, h = given()
    state = (h, torch.zeros(len(LENGTHS), dtype=torch.int64))
    with pytest.warns(SlowPathWarning):
        as_the_plain_loop(at_the_first_step, x, state, "auto", weights=[W])
    with pytest.raises(Unsupported, match="holds for all rows, and at some step it does not"):
        recurrent(at_the_first_step, x, state, backend="c")


def of_one_row(x: Tensor, h: Tensor) -> Any:
    h = torch.tanh(h @ W + x) * (2 if x.shape[0] == 1 else 1)
    return h, h


def test_one_row_is_made_something_else_of():
    assert "for one it gives other results than for several" in refused(of_one_row)


def of_columns(x: Tensor, h: Tensor) -> Any:
    def inner(v: Tensor, h: Tensor) -> Any:
        h = torch.tanh(h @ W + v)
        return h, h

    y, h = recurrent(inner, x.t()[:, :, None], h)
    return y.sum(0), h


def framed(x: Tensor, h: Tensor) -> Any:
    columns, states = TensorArray(unstack_from=x.t()[:, :, None]), TensorArray()
    loop = create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == columns.size())
        states.write(s, torch.tanh(states.read(s - 1, h) @ W + columns.read(s)))
        loop.update(s, s + 1)
    return states.stack().sum(0), states.read(2)


@pytest.mark.parametrize("step", [of_columns, framed])
def test_a_recurrence_inside_is_a_part_of_the_step(step):
    for backend in ("c", "auto"):  # the inner one has a plan of its own by then
        same(step, backend)
        step(*(t[0] if t.dim() > 2 else t for t in inputs()))
    assert entry_of(step, *inputs(), backend="c").ready is not None


def ended_by_rows(x: Tensor, h: Tensor) -> Any:
    loop = create_whileloop([torch.tensor(0), h])
    with loop.frame() as (s, g):
        loop.break_if((g.abs().max() < 0.5) | (s == 3))
        loop.update(g, g * 0.7 + x)
        loop.update(s, s + 1)
    return loop.results[1], h


def test_a_frame_inside_that_rows_end_is_told_by_its_line():
    assert "depends on the values of a tensor (test_control.py:" in refused(ended_by_rows)


def of_many_columns(x: Tensor, h: Tensor) -> Any:
    _, h = recurrent(lambda v, h: (v, h + v), x.unsqueeze(0).expand(40, -1, -1), h)
    return h, h


def test_a_long_recurrence_inside_runs_by_its_own_plan():
    told = refused(of_many_columns)
    assert "recurrences inside the step take more than 32 steps" in told
    assert "test_control.py:" in told


class Ended(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Ended])
def test_what_ends_the_program_is_raised_on_rows_of_the_caller_alone(kind):
    """And not in a branch that is traced, nor on as many rows as a step is tried on."""

    def on_branch(x: Tensor, h: Tensor) -> Any:
        try:
            if torch.isnan(x).any():
                raise kind
        finally:
            h = h + x
        return h, h

    def on_samples(x: Tensor, h: Tensor) -> Any:
        if x.shape[0] != 2:
            raise kind
        return h + x, h

    x, h = inputs()
    for step in (on_branch, on_samples):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowPathWarning)
            torch.testing.assert_close(recurrent(step, x, h), recurrent(step, x, h, backend="naive"))
    with pytest.raises(kind):
        recurrent(on_branch, x * torch.nan, h)


@pytest.mark.parametrize("step", [of_sizes, of_what_was_written, of_noise], ids=lambda s: s.__name__)
def test_what_is_not_the_same_at_every_step_has_no_answer(step):
    assert "depends on the values of a tensor" in refused(step)


def test_a_number_of_all_rows():
    text = refused(of_all_rows)
    assert "follows from the row that takes longest" in text
    assert "carry a count for each row" in text


def test_explain_tells_of_them():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert explain(relaxed, *inputs(), backend="c").executor == "c"  # pyright: ignore[reportAttributeAccessIssue]


def test_plans_are_found_again():
    def gated(x: Tensor, h: Tensor) -> Any:
        return (h + x if GATE > 0 else h - x), h

    for gate in (1.0, -1.0, 2.0, -3.0, 1.0):
        GATE.fill_(gate)
        y, _ = recurrent(gated, *inputs(), backend="c")
        assert y[0, 0, 0] == (2.0 if gate > 0 else 0.0)
    made = [entry for entry in plans._entries.values() if entry.ready and entry.ready.plan.name == "gated"]
    assert len(made) == 2  # one for each way, whatever the number


def asserted(x: Tensor, h: Tensor) -> Any:
    """What holds of all rows, or of none, in the ways in which people ask."""
    if not torch.isfinite(x).all():  # an assert, which pytest would write anew
        raise AssertionError("not finite")
    if torch.any(x.abs() > 50):
        x = x.clamp(-50, 50)
    if (h != h).any().item() or not (h.abs() < 1e3).all():
        raise ValueError("the state is lost")
    h = torch.tanh(h @ W + x)
    return h, h


def test_what_holds_of_each_row_is_taken_for_granted():
    for backend in ("c", "auto"):
        same(asserted, backend)
    assert entry_of(asserted, *inputs(), backend="c").ready is not None
    x, h = inputs()
    recurrent(asserted, x, h)
    same_as_plain = [recurrent(asserted, x * 60, h, backend=backend) for backend in (None, "naive")]
    torch.testing.assert_close(*same_as_plain)  # the branch is taken
    for backend in ("c", None):
        with pytest.raises(ValueError, match="the state is lost"):
            recurrent(asserted, x, h * torch.nan, backend=backend)
        with pytest.raises(AssertionError, match="not finite"):
            recurrent(asserted, x * torch.inf, h, backend=backend)
    same(asserted)


def test_a_plan_whose_checks_do_not_hold_is_left_out_for_some_calls(monkeypatch):
    runs, run_plan = [], plans.run_plan

    def counted(*args, **how):
        runs.append(1)
        return run_plan(*args, **how)

    monkeypatch.setattr(plans, "run_plan", counted)
    x, h = inputs()
    apart = x * torch.tensor([60.0, 1.0])[:, None]  # not all rows go the same way
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SlowPathWarning)
        for _ in range(40):
            recurrent(asserted, apart, h)
    assert ["rows disagree" in str(one.message) for one in told] == [True]
    assert 1 <= len(runs) <= 6
    for _ in range(80):
        recurrent(asserted, x, h)
    before = len(runs)
    recurrent(asserted, x, h)
    assert len(runs) == before + 1


@torch_since("2.7", "its distributions ask for values that a trace does not have")
def test_a_distribution_of_captured_parameters_is_checked(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=DTYPE, requires_grad=True)

    def scored(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(h @ W + x)
        return torch.distributions.Normal(0.0, scale).log_prob(h), h

    same(scored)
    assert entry_of(scored, *inputs(), backend="c").ready is not None
    with torch.no_grad():
        scale[1] = -1.0
    for backend in ("c", None):
        with pytest.raises(ValueError, match="scale"):
            recurrent(scored, *inputs(), backend=backend)
