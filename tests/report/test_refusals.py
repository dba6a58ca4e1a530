"""Who declined, why, at which line, and what would change it; and the plain loop that runs then."""

from __future__ import annotations

import inspect
import sys
import warnings

import pytest
import torch
from torch import nn

import stepnet
from covering import every
from report import steps
from stepnet.errors import StepError, Unsupported
from stepnet.executors.c import build as c_build
from stepnet.report import explain

T, B = 4, 2


def line_of(function, text):
    """'steps.py:12' for the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(function).rsplit('/', 1)[-1]}:{number}"


def batch_dependent(x, h):
    if x.shape[0] > 3:
        h = h * 2
    return h + x, h + x


def mixes(x, h):
    h = h + x - x.mean(0)
    return h, h


counter = torch.zeros(())


def counts(x, h):
    counter.add_(1)
    h = torch.tanh(x + h)
    return h, h


def masked(x, h):
    h = h + x[x[:, 0] > 0].sum()
    return h, h


def looks_itself_up(x, h):
    h = h + x * len(inspect.signature(masked).parameters)
    return h, h


def ends_the_process(x, h):
    if x.isnan().any():  # a trace that takes this way would do it
        sys.exit("x has no numbers")
    return h + x, h + x


CASES = {
    # step: (executor, who declines, part of the reason, part of the line or None)
    "branching": (steps.branching, "naive", "compiler", "control flow", "h.sum() > 1.0"),
    "masked": (masked, "naive", "compiler", "mixes rows", "x[x[:, 0] > 0]"),
    "batch_dependent": (batch_dependent, "naive", "compiler", "depends on how many rows", None),
    "counts": (counts, "naive", "compiler", "in place", None),
    "everything": (
        looks_itself_up,
        "naive",
        "compiler",
        "by inspect.signature it may read sys.modules",
        None,
    ),
    "exit": (ends_the_process, "naive", "compiler", "it calls sys.exit, once for each step", None),
    "mixes": (mixes, "naive", "compiler", "row", "x.mean(0)"),
    "least squares": (steps.least_squares, "eager", "c", "torch call", "linalg.pinv"),
}


def features(step):
    return 5 if step is steps.branching else 3


@pytest.mark.parametrize("name", every(2, CASES))
def test_the_reason_the_line_and_the_remedy(name):
    step, executor, who, reason, line = CASES[name]
    if who == "c" and c_build.available() is not None:
        pytest.skip("no C compiler")
    told = explain(step, torch.randn(T, B, 3), torch.zeros(B, features(step)))
    assert told.executor == executor
    refused = told.refusals[0]
    assert refused.executor == who
    assert reason in refused.reason
    if line is not None:
        assert refused.line == line_of(step, line)
        assert line in refused.code
        assert f"{refused.line}  {refused.code}" in str(told)
    assert " ".join(refused.reason.split()[:4]) in str(told)
    if refused.remedy:
        assert f"remedy  {refused.remedy.split()[0]}" in str(told)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1] == "naive"])
def test_the_plain_loop_runs_what_is_told_to_run_by_it(name):
    step = CASES[name][0]
    x, state = torch.randn(T, B, 3), torch.zeros(B, features(step))
    told = explain(step, x, state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, _ = stepnet.recurrent(step, x, state)
    expected, _ = stepnet.recurrent(step, x, state, backend="naive")
    assert torch.equal(y, expected)
    (region,) = told.regions
    assert (region.kind, region.executor, region.runs) == ("loop", "torch", T)


def test_the_ops_of_the_plain_loop_are_the_users_calls_with_their_lines():
    told = explain(steps.branching, torch.randn(T, B, 3), torch.zeros(B, 5))
    (loop,) = told.loops
    (region,) = loop.regions
    assert [(op.name, op.line) for op in region.ops] == [
        ("sum", line_of(steps.branching, "h.sum()")),
        ("gt", line_of(steps.branching, "h.sum()")),
        ("bool", line_of(steps.branching, "h.sum()")),
        ("getitem", line_of(steps.branching, "tanh")),
        ("matmul", line_of(steps.branching, "tanh")),
        ("add", line_of(steps.branching, "tanh")),
        ("tanh", line_of(steps.branching, "tanh")),
    ]
    (matmul,) = region.matmuls
    assert [loop.origin(name) for name in matmul.inputs] == ["x", "W"]
    assert region.carries == (("state", region.ops[-1].outputs[0]),)


def test_a_tensor_of_the_users_is_left_alone():
    explain(counts, torch.randn(T, B, 3), torch.zeros(B, 3))  # the search for a plan may change it
    before = counter.clone()
    told = explain(counts, torch.randn(T, B, 3), torch.zeros(B, 3), backend="naive")
    assert torch.equal(counter, before)
    assert "changes something of yours" in told.notes[0]


def test_random_numbers_are_left_alone():
    dropout = nn.Dropout(0.5)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    for backend in ("naive", "auto"):
        explain(lambda x, h: (dropout(x + h),) * 2, torch.zeros(T, B, 3), torch.zeros(B, 3), backend=backend)
    assert torch.equal(torch.rand(3), expected)


def test_a_backend_asked_for_by_name_that_declines():
    x, state = torch.randn(T, B, 3), torch.zeros(B, 3)
    told = explain(steps.least_squares, x, state, backend="c")
    assert (told.executor, told.loops) == ("refused", ())
    assert "raises Unsupported" in str(told)
    with pytest.raises(Unsupported, match="torch call"):
        stepnet.recurrent(steps.least_squares, x, state, backend="c")


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"backend": "naive"}, "backend='naive'"), ({"scopes": True}, "scopes=True")],
    ids=["naive", "scopes"],
)
def test_the_plain_loop_asked_for(given, reason):
    told = explain(stepnet.Recurrent(steps.gated, **given), torch.randn(T, B, 3), torch.zeros(B, 5))
    assert told.executor == "naive"
    assert told.refusals[0].reason == f"{reason} asks for the plain loop"


def test_steps_over_whole_sequences():
    x = stepnet.LoDTensor.from_lengths(torch.arange(9.0)[:, None], [[2, 1], [3, 2, 4]])

    def longest(sentences, so_far):
        so_far = torch.maximum(so_far, sentences.lengths()[:, None].float())
        return so_far, so_far

    told = explain(longest, x, torch.zeros(2, 1), level=0)
    assert (told.executor, told.steps, told.rows) == ("naive", 2, 3)
    assert "whole sequences" in told.refusals[0].reason
    assert "maximum" in [op.name for op in told.regions[0].ops]


@pytest.mark.parametrize("backend", ["auto", "naive"])
@pytest.mark.parametrize(
    ("step", "x", "state", "message"),
    [
        (nn.GRUCell(3, 5), torch.zeros(T, B, 7), None, "failed at step 0"),
        (lambda x, h: x, torch.zeros(T, B, 3), torch.zeros(B, 3), "must return a pair"),
        (lambda x, h: (x, h), torch.zeros(T, B, 3), None, "has no initial state"),
        (lambda x, h: (x, h), "text", None, "must be tensors"),
        ("text", torch.zeros(T, B, 3), None, "a step must be callable"),
    ],
    ids=["features", "no pair", "no state", "no tensor", "no step"],
)
def test_what_does_not_fit_is_said_as_recurrent_says_it(step, x, state, message, backend):
    with pytest.raises(StepError, match=message):
        explain(step, x, state, backend=backend)


@pytest.mark.parametrize("catches", [(), Exception])
def test_a_printing_step_prints_at_every_step(capsys, catches):
    """A step that could print, and does not, compiles."""
    x, h = torch.randn(T, B, 3), torch.zeros(B, 3)
    says = True

    def step(x, h):
        try:
            if says:
                print("step")
        except catches:
            pass
        return x, h + x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepnet.errors.SlowPathWarning)
        stepnet.recurrent(step, x, h)
    assert capsys.readouterr().out == "step\n" * T
    capsys.readouterr()
    assert explain(step, x, h).refusals[0].reason == "it calls print(), once for each step"
    assert capsys.readouterr().out == ""
    capsys.readouterr()
    says = False
    assert explain(step, x, h).executor != "naive"
    assert capsys.readouterr().out == ""
