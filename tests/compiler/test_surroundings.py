"""A recurrence among what else torch does: autocast, double backward, transforms, compile, threads, fork."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from covering import few
from forks import in_a_fork
from plans import BACKENDS
from stepnet import cells
from stepnet.api import Recurrent, recurrent
from stepnet.data.lod import LoDTensor
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from stepnet.testing import check_step
from threads import at_once

DTYPE = torch.float64
F_IN, H = 2, 3
COMPILED = ["eager", "c"]


def cell_of(name="GRU", dtype=DTYPE):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return getattr(cells, name)(F_IN, H, dtype=dtype)


def rows(sizes=(2, 0, 3), dtype=DTYPE, grad=True):
    return LoDTensor.from_lengths(
        torch.randn(sum(sizes), F_IN, dtype=dtype, requires_grad=grad), [list(sizes)]
    )


TWICE = [f"{name} {backend}" for name in ("RNN", "GRU", "LSTM") for backend in BACKENDS]


@pytest.mark.parametrize("case", few(TWICE, ["RNN naive"]))
def test_double_backward(case):
    name, backend = case.split()
    cell = getattr(cells, name)(1, 2, dtype=DTYPE)
    x = torch.randn(3, 1, dtype=DTYPE, requires_grad=True)

    def run(values, *weights):
        parameters = dict(zip(dict(cell.named_parameters()), weights, strict=True))

        def step(x, h):
            return torch.func.functional_call(cell, parameters, (x, h))

        h0 = cell.initial_state(3)
        y, final = recurrent(step, LoDTensor.from_lengths(values, [[2, 0, 1]]), h0, backend=backend)
        return y.values, *(final if isinstance(final, tuple) else (final,))

    inputs = (x, *(p.detach().clone().requires_grad_() for p in cell.parameters()))
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    # which of the gradients come in makes a plan each: for the smallest cell
    some = case == "RNN eager"
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True, check_undefined_grad=some)


@pytest.mark.exhaustive  # more of them: tests/engine/test_penalties.py
@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_a_gradient_penalty(backend):
    cell, x = cell_of(), rows()
    results = []
    for chosen in ("naive", backend):
        y, h = recurrent(cell, x, backend=chosen)
        (grad,) = torch.autograd.grad(y.values.square().sum() + h.sum(), x.values, create_graph=True)
        loss = (grad.norm(dim=1) - 1).square().sum() + y.values.sum()
        results.append(torch.autograd.grad(loss, [x.values, *cell.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_func_grad(backend):
    """torch.func sees through it: the plain loop runs where a transform is active."""
    cell = cell_of("RNN")
    weights = {k: v.detach() for k, v in cell.named_parameters()}
    x = torch.randn(3, 2, F_IN, dtype=DTYPE)

    def loss(weights, x):
        def step(x, h):
            return torch.func.functional_call(cell, weights, (x, h))

        y, h = recurrent(step, x, torch.zeros(2, H, dtype=DTYPE), backend=backend)
        return (y.sin() + h).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        found = torch.func.grad(loss, argnums=(0, 1))(weights, x)
    wanted = [x.requires_grad_(), *cell.parameters()]
    y, h = recurrent(cell, x, torch.zeros(2, H, dtype=DTYPE), backend="naive")
    expected = torch.autograd.grad((y.sin() + h).sum(), wanted)
    torch.testing.assert_close((found[1], *found[0].values()), expected, rtol=0, atol=1e-10)


@pytest.mark.exhaustive  # ensembles: tests/engine/test_transforms.py
@pytest.mark.parametrize("backend", few(["auto", "naive"], ["auto"]))
def test_func_vmap(backend):
    """An ensemble of weights over one input."""
    cell = cell_of("RNN")
    weights = {k: torch.randn(4, *v.shape, dtype=DTYPE) for k, v in cell.named_parameters()}
    x = torch.randn(3, 2, F_IN, dtype=DTYPE)

    def run(weights):
        def step(x, h):
            return torch.func.functional_call(cell, weights, (x, h))

        return recurrent(step, x, torch.zeros(2, H, dtype=DTYPE), backend=backend)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        y, h = torch.func.vmap(run)(weights)
    for i in range(4):
        one = run({k: v[i] for k, v in weights.items()})
        torch.testing.assert_close((y[i], h[i]), one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", COMPILED)
def test_a_transform_is_refused_by_name(backend):
    """Most are part of plans; a plan asked for by name does not run where writes are made functional."""
    x = torch.randn(3, 2, F_IN, dtype=DTYPE)
    cell = cell_of()

    def run(x, backend=backend):
        return recurrent(cell, x, torch.zeros(2, H, dtype=DTYPE), backend=backend)[0]

    with pytest.raises(Unsupported, match=r"torch\.func transform \(functionalize\)"):
        torch.func.functionalize(run)(x)
    torch.testing.assert_close(torch.func.functionalize(partial(run, backend="naive"))(x), run(x))


@pytest.mark.exhaustive  # graphs around a recurrence: tests/graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own, at any graph break
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_inside_a_compiled_region(backend):
    """Dynamo breaks its graph around the loop, and goes on after it."""
    rnn = Recurrent(cell_of(), backend=backend)
    head = nn.Linear(H, 1, dtype=DTYPE)

    def model(x):
        y, h = rnn(torch.tanh(x))
        return head(y) * 2 + h.sum()

    x = torch.randn(3, 2, F_IN, dtype=DTYPE, requires_grad=True)
    inputs = [x, *rnn.parameters(), *head.parameters()]
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        found, expected = compiled(x), model(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected)]
        torch.testing.assert_close(*grads, rtol=0, atol=1e-10)


@pytest.mark.exhaustive  # test_autocast.py
def test_autocast():
    cell, x = cell_of("LSTM", torch.float32), rows((4, 0, 6), torch.float32)
    parts = [x.values, *cell.parameters()]
    results = {}
    for backend in ("naive", "eager", "auto"):
        with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
            warnings.simplefilter("error")
            y, (h, c) = recurrent(cell, x, backend=backend)
        loss = y.values.float().sum() + h.float().sum() + c.float().square().sum()
        results[backend] = (y.values, h, c, *torch.autograd.grad(loss, parts))
    plain, _ = recurrent(cell, x, backend="naive")
    for backend in ("eager", "auto"):
        for got, expected in zip(results[backend], results["naive"], strict=True):
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got.float(), expected.float(), rtol=0.05, atol=0.05)
    assert not torch.equal(results["eager"][0].float(), plain.values), "autocast had no effect"
    torch.testing.assert_close(results["eager"][0].float(), plain.values, rtol=0.05, atol=0.05)


def test_generated_c_takes_autocast_with_the_dtypes_of_the_plain_loop():
    cell, x = cell_of("LSTM", torch.float32), rows((4, 0, 6), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, final = recurrent(cell, x, backend="c")
        expected, expected_final = recurrent(cell, x, backend="naive")
    torch.testing.assert_close((y.values, *final), (expected.values, *expected_final), rtol=0.02, atol=0.02)


@pytest.mark.exhaustive  # test_precision.py
@pytest.mark.parametrize("dtype", few([torch.float16, torch.bfloat16], [torch.float16]), ids=str)
def test_half_precision(dtype):
    cell, x = cell_of("GRU", dtype), rows((3, 0, 2), dtype)
    expected, _ = recurrent(cell, x, backend="naive")
    for backend in ("eager", "auto", "c"):
        y, h = recurrent(cell, x, backend=backend)
        assert y.values.dtype == h.dtype == dtype
        torch.testing.assert_close(y.values.float(), expected.values.float(), rtol=0.02, atol=0.02)


@pytest.mark.exhaustive  # test_complex.py
@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype, backend):
    u = torch.randn(H, H, dtype=dtype) / 3

    def step(x, h):
        h = h @ u + x * h
        return h, h.conj().resolve_conj()

    x, h0 = torch.randn(3, 2, H, dtype=dtype), torch.randn(2, H, dtype=dtype)
    expected = recurrent(step, x, h0, backend="naive")
    found = recurrent(step, x, h0, backend=backend)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", few(COMPILED, ["c"]))
def test_four_threads_at_once(backend):
    """First calls of a new step among them: one capture, one build, the same numbers."""
    cell = cells.PeepholeLSTM(F_IN, 4, dtype=DTYPE)
    inputs = [rows((3, 1 + i, 0, 2)) for i in range(4)]
    state = [torch.randn(4, 4, dtype=DTYPE) for _ in range(2)]
    expected = [recurrent(cell, x, tuple(state), backend="naive")[0].values for x in inputs]
    grads = [torch.autograd.grad(y.sum(), x.values)[0] for y, x in zip(expected, inputs, strict=True)]

    def work(i):
        for _ in range(10):
            y, _ = recurrent(cell, inputs[i], tuple(state), backend=backend)
            torch.testing.assert_close(y.values, expected[i], rtol=0, atol=1e-12)
            (grad,) = torch.autograd.grad(y.values.sum(), inputs[i].values)
            torch.testing.assert_close(grad, grads[i], rtol=0, atol=1e-10)

    at_once(work)


def _waves(x, s):
    return torch.sin(x) + s, torch.cos(s + x)


def _in_child(cell, values, backend):
    x = LoDTensor.from_lengths(values.requires_grad_(), [[2, 0, 3]])
    y, h = recurrent(cell, x, backend=backend)
    (grad,) = torch.autograd.grad(y.values.sum() + h.sum(), x.values)
    fresh, _ = recurrent(_waves, x, values[:3] * 0, backend=backend)
    return [t.detach().numpy() for t in (y.values, h, grad, fresh.values)]


@pytest.mark.parametrize("backend", few(COMPILED, ["c"]))
def test_fork_after_use(backend):
    """A child of a process that has run recurrences, as of a DataLoader, runs them too: old plans and new."""
    cell, x = cell_of(), rows()
    y, h = recurrent(cell, x, backend=backend)
    (grad,) = torch.autograd.grad(y.values.sum() + h.sum(), x.values)
    torch.set_num_threads(1)  # torch's own operators do not survive a fork with threads
    found = in_a_fork(_in_child, cell, x.values.detach(), backend)
    values = x.values.detach()
    fresh, _ = recurrent(_waves, x, values[:3] * 0, backend="naive")
    for got, expected in zip(found, (y.values, h, grad, fresh.values), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_a_step_that_raises(backend):
    """The user's own error comes through as it is, and the next call works."""
    broken = True

    def step(x, h):
        if broken:
            raise KeyError("no such gate")
        return x + h, h

    x, h = torch.randn(3, 2, H, dtype=DTYPE), torch.zeros(2, H, dtype=DTYPE)
    with pytest.raises(KeyError, match="no such gate"):
        recurrent(step, x, h, backend=backend)
    broken = False
    check_step(step, x, h, backend=backend)


WRONG = {
    "feature size": (
        lambda x, h: (h, torch.tanh(x @ torch.ones(H, H, dtype=DTYPE) + h)),
        torch.zeros(2, H, dtype=DTYPE),
        ["mat1 and mat2 shapes", "failed at step 0", "x float64[2, 4], state float64[2, 3]"],
    ),
    "state's shape": (
        lambda x, h: (x, h + x),
        torch.zeros(2, 1, dtype=DTYPE),
        [
            "changed the state's shape or dtype",
            "state was float64[2, 1], became float64[2, 4]",
            "a state that grows",
        ],
    ),
    "state's dtype": (
        lambda x, h: (x, h + x),
        torch.zeros(2, H + 1),
        ["changed the state's shape or dtype", "state was float32[2, 4], became float64[2, 4]"],
    ),
    "result": (lambda x, h: x + h, torch.zeros(2, H + 1), ["must return a pair", "got:      float64[2, 4]"]),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_a_wrong_step_is_told_in_the_users_words(backend, name):
    """A backend asked for by name refuses with the first line; the others tell all, in the caller's rows."""
    step, h, words = WRONG[name]
    x = torch.randn(3, 2, H + 1, dtype=DTYPE)
    with pytest.raises(Unsupported if backend in COMPILED else StepError) as caught:
        recurrent(step, x, h, backend=backend)
    for part in words[:1] if backend in COMPILED else words:
        assert part in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_anomaly_detection_and_hooks(backend):
    cell, x = cell_of(), rows()
    seen = []
    x.values.register_hook(lambda grad: seen.append(grad.shape))
    with torch.autograd.set_detect_anomaly(True, check_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        y, _ = recurrent(cell, x, backend=backend)
        y.values.sum().backward()
    assert seen == [x.values.shape]
    assert all(parameter.grad is not None for parameter in cell.parameters())


@pytest.mark.parametrize("backend", COMPILED)
def test_checkpointing(backend):
    cell, x = cell_of(), rows()

    def run(values):
        return recurrent(cell, x.with_values(values), backend=backend)[0].values

    y = torch.utils.checkpoint.checkpoint(run, x.values, use_reentrant=False)
    found = torch.autograd.grad(y.sin().sum(), [x.values, *cell.parameters()])
    expected = torch.autograd.grad(run(x.values).sin().sum(), [x.values, *cell.parameters()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
