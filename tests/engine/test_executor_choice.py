"""Which executor runs where none is named: by count, by time, from disk; and what is told of it."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from covering import few
from stepnet import explain, recurrent
from stepnet.cells import RNN
from stepnet.engine import executor_choice, plans
from stepnet.errors import SlowPathWarning, StepError, TorchOpsWarning
from stepnet.executors.c import scan
from stepnet.executors.naive import PLAIN
from stepnet.report.explanation import Explanation

TIMED = True  # by the clock that each test sets
BACKEND = "auto"
H = 64


class Vanilla(nn.Module):
    """A step with so much arithmetic that counting does not tell what is faster."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(H, H)

    def forward(self, x, h):
        h = torch.tanh(x + self.w(h))
        return h, h


class Bessel(Vanilla):
    """One that generated C declines in training."""

    def forward(self, x, h):
        h = torch.special.i0(torch.tanh(x + self.w(h)))  # the line to blame
        return h, h


class Clock:
    """Times of ways to run, by the name of the executor that is at it; counts what was timed."""

    def __init__(self, **seconds: float):
        self.seconds, self.calls = seconds, 0
        self.at = PLAIN.name

    def __call__(self, call):
        self.calls += 1
        return self.seconds[self.at]


@pytest.fixture
def clock(monkeypatch):
    def set_to(**seconds):
        made = Clock(**seconds)
        go = executor_choice.Race.go

        def told(race, rounds, of=()):
            for name in of or race.ways:
                made.at = name
                go(race, rounds, [name])

        monkeypatch.setattr(executor_choice.Race, "go", told)
        monkeypatch.setattr(executor_choice, "stopwatch", made)
        return made

    plans.forget()
    yield set_to
    plans.forget()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Plans kept by the test alone."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr("stepnet.executors.plan_files.read", kept.get)
    monkeypatch.setattr("stepnet.executors.plan_files.write", kept.__setitem__)
    return kept


def rows(sequences=32, size=H, steps=5):
    return torch.randn(steps, sequences, size, requires_grad=True), torch.zeros(sequences, size)


def told_of(step, *given, **settings) -> Explanation:
    told = explain(step, *given, **settings)
    assert isinstance(told, Explanation)
    return told


def executor(step, *given, **settings):
    return told_of(step, *given, **settings).executor


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({"c": 1.0, "naive": 5.0}, "c"),
        ({"c": 1.0, "naive": 1.5, "eager": 2.0}, "c"),
        ({"c": 3.0, "naive": 5.0, "eager": 2.0}, "eager"),
        ({"c": 3.0, "naive": 2.0, "eager": 4.0}, "naive"),
        ({"c": 1.05, "naive": 1.0, "eager": 1.0}, "c"),  # as good as equal
    ],
)
def test_the_fastest_of_those_that_accept_a_step_runs_it(clock, disk, seconds, wanted):
    watch = clock(**seconds)
    step, given = Vanilla(), rows()
    assert executor(step, *given) == wanted
    timed = watch.calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that runs as fast as it can is not told of
        y, h = recurrent(step, *given)
    plain = recurrent(step, *given, backend="naive")
    torch.testing.assert_close((y, h), plain)
    assert watch.calls == timed, "timed once"


def test_generated_code_is_not_left_for_a_slow_moment(clock, disk, monkeypatch):
    """Of what takes long one round is timed; then what seems faster once more beside it."""
    watch, slow = clock(naive=5.0, eager=4.0), iter([9.0, 9.0])
    monkeypatch.setattr(
        executor_choice, "stopwatch", lambda call: next(slow, 1.0) if watch.at == "c" else watch(call)
    )
    assert executor(Vanilla(), *rows()) == "c"
    assert next(slow, None) is None


def test_each_size_of_batch_has_a_choice_of_its_own(clock, disk):
    """What is right for one sequence need not be for many; about as many are one size."""
    step, few_, many = Vanilla(), rows(1), rows(40)
    clock(c=1.0, naive=5.0, eager=2.0)
    assert executor(step, *few_) == "c"
    slow = clock(c=3.0, naive=5.0, eager=2.0)
    assert executor(step, *many) == "eager"
    timed = slow.calls
    for _ in range(3):  # the way of a call like one before, too
        assert executor(step, *few_) == "c"
        assert executor(step, *rows(50)) == "eager"
        for given in (few_, many):
            torch.testing.assert_close(recurrent(step, *given), recurrent(step, *given, backend="naive"))
    assert slow.calls == timed, "timed once"


def test_explain_tells_the_times_and_who_was_slower(clock, disk):
    clock(c=3.0, naive=5.0, eager=2.0)
    told = told_of(Vanilla(), *rows())
    assert "timed on 16 steps of 32 sequences: generated C 3e+03 ms" in "".join(told.notes)
    (slower,) = told.refusals
    assert slower.executor == "c"
    assert slower.reason == "it took 3e+03 ms for 16 steps of 32 sequences, torch ops 2e+03 ms"
    assert slower.remedy == "backend='c' takes it all the same"


def test_what_is_timed_is_about_as_long_as_the_call(clock, disk, monkeypatch):
    """What is done once a call weighs too much in fewer steps; what takes long is timed once, not thrice."""
    watch = clock(c=0.1, naive=5.0)
    told = told_of(RNN(H, H), *rows(200, steps=40))
    assert "timed on 40 steps of 128 sequences" in "".join(told.notes)
    assert watch.calls == 3, "C twice, the plain loop once"
    plans.forget()
    clock(c=0.1, naive=5.0)
    assert "timed on 40 steps of 128 sequences" in "".join(told_of(RNN(H, H), *rows(130, steps=3)).notes)
    plans.forget()
    disk.clear()
    monkeypatch.setattr(executor_choice, "_MOST_KEPT", 1 << 20)  # a plain loop of all that may not fit
    assert "timed on 16 steps of 64 sequences" in "".join(told_of(RNN(H, H), *rows(200, steps=40)).notes)


def test_a_backend_by_name_is_taken_and_not_timed(clock, disk):
    watch = clock(c=3.0, naive=1.0, eager=2.0)
    assert executor(Vanilla(), *rows(), backend="c") == "c"
    assert watch.calls == 0


def test_small_steps_are_counted_and_not_timed(clock, disk):
    watch = clock()
    step = lambda x, h: (torch.tanh(x + h), torch.tanh(x + h))  # noqa: E731
    assert executor(step, *rows(2, 4)) == "c"
    assert watch.calls == 0


def test_times_are_read_from_disk_with_the_plan(clock, disk):
    first = clock(c=3.0, naive=5.0, eager=2.0)
    step, given = RNN(H, H), rows()
    assert executor(step, *given) == "eager"
    assert first.calls > 0
    plans.forget()
    again = clock(c=1.0, naive=5.0, eager=2.0)
    assert executor(step, *given) == "eager"
    assert again.calls == 0
    plans.forget()
    for key in disk:  # what lies there is not trusted
        if disk[key].startswith(b'{"c"'):
            disk[key] = b'{"c": "fast", "naive": 1, "steps": 16, "sequences": 32}'
    assert executor(step, *given) == "c"
    assert again.calls > 0


DAMAGED = [
    b"",
    b"no json",
    b"[1]",
    b'{"naive": 1}',
    b'{"c": 1, "naive": 5}',
    b'{"c": 1, "naive": 5, "steps": "x", "sequences": 1}',
    b'{"c": NaN, "naive": 1, "steps": 16, "sequences": 1}',
    b'{"c": 1, "x": 0, "naive": 1, "steps": 16, "sequences": 1}',
    pytest.param(b'{"c": 1%b, "naive": 1, "steps": 16, "sequences": 1}' % (b"0" * 400), id="too large"),
    pytest.param(b"[" * 100_000, id="too deep"),
]


@pytest.mark.parametrize("damage", [*few(DAMAGED, DAMAGED[:2]), b"\xff"])
def test_damaged_times_are_taken_anew(clock, disk, damage):
    watch = clock(c=1.0, naive=5.0)
    step, given = RNN(H, H), rows()
    executor(step, *given)
    for key in [key for key, data in disk.items() if data.startswith(b'{"c"')]:
        disk[key] = damage
    plans.forget()
    before = watch.calls
    assert executor(step, *given) == "c"
    assert watch.calls > before


def test_a_step_that_falls_to_torch_ops_is_told_once_with_its_line(clock, disk):
    clock(eager=1.0, naive=5.0)
    step, given = Bessel(), rows()
    with pytest.warns(TorchOpsWarning, match="step 'Bessel' runs by torch ops, not by generated C") as told:
        recurrent(step, *given)
    (warned,) = told
    assert "aten" in str(warned.message)
    assert "test_executor_choice.py:" in str(warned.message)
    assert warned.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recurrent(step, *given)
        recurrent(Bessel(), *given)  # another module of the same code
        recurrent(step, *given, backend="eager")


def test_a_slow_step_that_torch_ops_do_not_speed_up_is_told_why(clock, disk):
    clock(eager=5.0, naive=1.0)
    with pytest.warns(SlowPathWarning, match="runs by the plain loop: the loop holds the torch call aten"):
        recurrent(Bessel(), *rows())


def test_a_missing_compiler_is_told_once_for_all_steps(clock, disk, monkeypatch):
    clock(eager=1.0, naive=5.0)
    monkeypatch.setenv("CC", "/no/such/compiler")
    given = rows()
    with pytest.warns(TorchOpsWarning, match="2 to 10 times as long as generated C"):
        recurrent(Vanilla(), *given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recurrent(lambda x, h: (x * h + 1, x * h + 1), *given)


def test_code_that_does_not_compile_is_told(clock, disk, monkeypatch):
    clock(eager=1.0, naive=5.0)
    written = scan.write
    spoilt = {"text": "no C at all"}
    monkeypatch.setattr(scan, "write", lambda *of, **how: dataclasses.replace(written(*of, **how), **spoilt))
    with pytest.warns(TorchOpsWarning, match="step 'Vanilla' runs by torch ops(.|\n)*the C compiler failed"):
        recurrent(Vanilla(), *rows())


def test_a_step_that_cannot_be_timed_runs_by_the_first_executor(clock, disk, monkeypatch):
    clock()

    def fail(call):
        raise RuntimeError("no clock")

    monkeypatch.setattr(executor_choice, "stopwatch", fail)
    told = told_of(Vanilla(), *rows())
    assert told.executor == "c"
    assert "not timed: RuntimeError: no clock" in told.notes


class Derived(Vanilla):
    """Reads a weight, and what is made of it outside."""

    def __init__(self):
        super().__init__()
        self.gate = self.w.weight * 2
        self.gate.retain_grad()

    def forward(self, x, h):
        h = torch.tanh(x + self.w(h) @ self.gate)
        return h, h


def test_histories_and_hooks_of_weights_are_left_alone_by_timing(clock, disk, monkeypatch):
    watch = clock(c=2.0, naive=3.0, eager=2.5)
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: (call(), watch(call))[1])
    step, (x, h) = Derived(), rows()
    told = []
    step.w.weight.register_hook(told.append)
    step.gate.register_hook(told.append)
    y, _ = recurrent(step, x, h)
    assert watch.calls > 4
    assert told == []
    assert step.gate.grad is None
    plain, _ = recurrent(step, x, h, backend="naive")
    (expected,) = torch.autograd.grad(plain.sum(), step.w.weight, retain_graph=True)
    told.clear()
    y.sum().backward()
    assert len(told) == 2
    sums = {"rtol": 0, "atol": 1e-6 * float(expected.abs().max())}  # of 96 rows, in another order
    torch.testing.assert_close(step.w.weight.grad, expected, **sums)


def test_what_fails_on_sample_rows_alone_is_told_after_it_ran():
    def heads_of_three(x, h):
        h = torch.tanh(x.view(3, 1, H).sum(1) + h)
        return h, h

    x = torch.randn(4, 3, H)
    with pytest.warns(SlowPathWarning, match=r"(?s)fails on sample rows: .*choice.py:.*x_t.shape\[0\]"):
        y, _ = recurrent(heads_of_three, x, torch.zeros(3, H))
    torch.testing.assert_close(y, recurrent(heads_of_three, x, torch.zeros(3, H), backend="naive")[0])
    recurrent(heads_of_three, x, torch.zeros(3, H))  # once a step
    with pytest.raises(StepError, match="failed at step 0"):  # and not where it fails
        recurrent(lambda x, h: heads_of_three(x, h), x[:, :2], torch.zeros(2, H))
