"""Gradients are gradients: of one's own memory, of any order, of any graph of recurrences and torch ops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad

import stepnet
from covering import examples, few
from outcomes import tensors
from stepnet import cells, recurrent
from stepnet.data.lod import LoDTensor

OPTIMISED = False
DTYPE = torch.float64
D = 3
BACKENDS = ("naive", "eager", "c")


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


# ---- memory of one's own


class Steps:
    """Steps whose results or gradients are one value in several places."""

    w = torch.randn(D, D, dtype=DTYPE, requires_grad=True)
    b = torch.randn(D, dtype=DTYPE, requires_grad=True)
    c = torch.randn(D, dtype=DTYPE, requires_grad=True)

    def two_biases(x, h):
        h = torch.tanh(x @ Steps.w + Steps.b + h + Steps.c)
        return h, h

    def identity(x, h):
        return x, h

    def same_result_twice(x, h):
        h = x + h
        return {"a": h, "b": h}, h

    def sum_of_all(x, h):
        return x + h + Steps.b, x + h + Steps.c

    def state_is_the_input(x, h):
        return h, x

    def constant(x, h):
        return torch.ones(len(x), D, dtype=DTYPE) if False else x * 0 + 1, h

    def views(x, h):
        return (x[:, :2], x[:, 1:], x.unsqueeze(1)), h.view_as(h)


STEPS = {k: v for k, v in vars(Steps).items() if callable(v) and not isinstance(v, torch.Tensor)}


def inputs(kind):
    if kind == "ragged":
        x = torch.randn(5, D, dtype=DTYPE, requires_grad=True)
        return x, LoDTensor.from_lengths(x, [[2, 0, 3]]), torch.randn(3, D, dtype=DTYPE, requires_grad=True)
    if kind == "none":
        x = torch.randn(0, D, dtype=DTYPE, requires_grad=True)
        return x, LoDTensor.from_lengths(x, [[0, 0]]), torch.randn(2, D, dtype=DTYPE, requires_grad=True)
    steps = {"dense": 4, "one step": 1}[kind]
    x = torch.randn(steps, 3, D, dtype=DTYPE, requires_grad=True)
    return x, x, torch.randn(3, D, dtype=DTYPE, requires_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["ragged", "dense", "one step", "none"])
def test_nothing_shares_memory(backend, kind):
    """Results are nobody else's, nor are gradients: of each other, of the caller's, of what was handed in."""
    for step in STEPS.values():
        x, given, h = inputs(kind)
        y, final = recurrent(step, given, h, backend=backend)
        results = [*tensors(y), final]
        taken = {storage(t) for t in (x, h, Steps.w, Steps.b, Steps.c) if t.numel()}
        for result in results:
            if result.numel():
                assert storage(result) not in taken, step.__name__
                taken.add(storage(result))
        results = [t for t in results if t.requires_grad]
        seeds = [torch.randn_like(t) for t in results]
        wanted = [x, h, Steps.w, Steps.b, Steps.c]
        taken |= {storage(t) for t in seeds if t.numel()}
        if not results or backend == "naive":  # torch's own operations hand a seed on, and views of it
            continue
        grads = torch.autograd.grad(results, wanted, seeds, allow_unused=True)
        for grad in grads:
            if grad is not None and grad.numel():
                assert storage(grad) not in taken, step.__name__
                taken.add(storage(grad))
                grad.add_(1.0)  # each element is its own


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_may_be_written_to(backend):
    """What a caller does to results in place changes no input, no other result and no later call."""
    for step in STEPS.values():
        x, given, h = inputs("ragged")
        before = [t.detach().clone() for t in (x, h)]
        with torch.no_grad():
            first = recurrent(step, given, h, backend=backend)
            kept = [t.clone() for t in (*tensors(first[0]), first[1])]
            for result in (*tensors(first[0]), first[1]):
                result.mul_(7.0)
            second = recurrent(step, given, h, backend=backend)
        torch.testing.assert_close([x.detach(), h.detach()], before, rtol=0, atol=0)
        torch.testing.assert_close([*tensors(second[0]), second[1]], kept, rtol=0, atol=0)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.3, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.02),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.02, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}


@pytest.mark.parametrize("kind", few(["LSTM", "GRU", "RNN"], ["RNN"]))
def test_training_is_that_of_torch(kind):
    """4 steps of each optimizer, with gradients accumulated, clipped, scaled, and zeroed in place."""
    ours = getattr(stepnet.nn, kind)(D, 4, num_layers=2, dtype=DTYPE)
    for make in OPTIMIZERS.values():
        theirs = getattr(nn, kind)(D, 4, num_layers=2, dtype=DTYPE)
        ours.load_state_dict(theirs.state_dict())
        pairs = [(m, make(m.parameters())) for m in (ours, theirs)]
        for model, optimizer in pairs:
            torch.manual_seed(3)
            for i in range(4):
                optimizer.zero_grad(set_to_none=bool(i % 2))
                for _ in range(2):
                    y, _ = model(torch.randn(4, 2, D, dtype=DTYPE))
                    (y.square().mean() * 50).backward()
                for parameter in model.parameters():
                    parameter.grad.div_(2.0)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
                optimizer.step()
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-6, atol=1e-7)


# ---- derivatives of any order, of any graph


def rnn(w, u):
    def step(x, h):
        h = torch.tanh(x @ w + h * u)
        return h * x, h

    return step


@st.composite
def programs(draw):
    """Lines of a program over sequences and states: recurrences that share weights, states and inputs."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["recur", "recur", "recur", "mix", "from weight", "state from weight"]))
        lines.append((kind, *(draw(st.integers(0, 5)) for _ in range(4)), draw(st.booleans())))
    return lines


def run_program(lines, leaf, backend):
    """A loss, from leaves: a table of rows, a state, two matrices and two vectors."""
    values, state, *weights = leaf
    rows, states = [values], [state]
    lengths = [[2, 0, 1]]
    for kind, a, b, c, d, reverse in lines:
        x, h = rows[a % len(rows)], states[b % len(states)]
        w, u = weights[c % 2], weights[2 + d % 2]
        if kind == "recur":
            y, final = recurrent(
                rnn(w, u), LoDTensor.from_lengths(x, lengths), h, reverse=reverse, backend=backend
            )
            rows.append(y.values)
            states.append(final)
        elif kind == "mix":
            rows.append(torch.sin(x @ w) + rows[c % len(rows)])
            states.append(torch.sin(h) * states[d % len(states)])
        elif kind == "from weight":
            rows.append(torch.outer(x.sum(1), u).tanh())
        else:
            states.append(h * u + w.sum(0).tanh())
    return sum((r.sin().sum() for r in rows[1:]), rows[0].sum()) + sum(s.square().sum() for s in states)


@settings(max_examples=examples(60))
@given(programs(), st.sampled_from([(), (1,), (0,), (2, 4)]))
def test_every_derivative_of_every_graph(lines, frozen):
    """First, second and mixed derivatives of a graph of recurrences and torch ops are the plain loop's."""
    shapes = [(3, D), (3, D), (D, D), (D, D), (D,), (D,)]
    data = [torch.randn(shape, dtype=DTYPE) / 2 for shape in shapes]
    found = {}
    for backend in ("naive", "eager"):
        leaf = [t.clone().requires_grad_(i not in frozen) for i, t in enumerate(data)]
        wanted = [t for t in leaf if t.requires_grad]
        loss = run_program(lines, leaf, backend)
        plain = torch.autograd.grad(
            loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        first = torch.autograd.grad(
            loss, wanted, create_graph=True, allow_unused=True, materialize_grads=True
        )
        mixed = sum((g * torch.cos(torch.arange(g.numel()).reshape(g.shape))).sum() for g in first) + loss
        second = torch.autograd.grad(mixed, wanted, allow_unused=True, materialize_grads=True)
        found[backend] = [loss.detach(), *plain, *(g.detach() for g in first), *second]
    torch.testing.assert_close(found["eager"], found["naive"], rtol=1e-9, atol=1e-10)


POLES = {
    "log": lambda v: (v * 0).log(),
    "sqrt": lambda v: (v * 0).sqrt(),
    "norm of nothing": lambda v: torch.linalg.vector_norm(v * 0, dim=-1, keepdim=True) ** 0.5,
    "quotient": lambda v: v / (v * 0),
    "power": lambda v: (v * 0) ** 0.5,
    "exponential": lambda v: (v.abs() * 1e4 + 1e3).exp(),
    "softmax of nothing": lambda v: (v * 0 - torch.inf).softmax(-1),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("second", [False, True], ids=["", "second"])
def test_results_that_nothing_comes_in_for(backend, second):
    """They are no part of the gradient, where zero times infinity would be NaN: y leaves, and last states."""

    def step(x, h):
        last = torch.tanh(x @ Steps.w + h[0])
        return {"y": last} | {name: pole(x) for name, pole in POLES.items()}, (last, (last * 0).sqrt())

    def found(backend):
        _, x, h = inputs("ragged")
        rows = x.values.detach().requires_grad_()
        y, _ = recurrent(step, x.with_values(rows), (h, torch.zeros_like(h)), backend=backend)
        leaves = (rows, h, Steps.w)
        grads = torch.autograd.grad(y["y"].values.sin().sum(), leaves, create_graph=second)
        if not second:
            return grads
        return *grads, *torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)

    state = torch.get_rng_state()
    ours = found(backend)
    torch.set_rng_state(state)
    plain = found("naive")
    assert all(g.isfinite().all() for g in plain)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_zeros_of_earlier_steps_and_of_empty_sequences(backend):
    """A new state that no step reads has a gradient at the last step alone; a sequence without steps has none
    of what is computed once per sequence."""

    def step(x, h):
        state, context, _ = h
        state = torch.tanh(x @ Steps.w + state + context @ Steps.w)
        return state, (state, context, x.abs().sqrt())

    def found(backend, first, context):
        torch.manual_seed(3)
        rows, h = (torch.randn(n, D, dtype=DTYPE) for n in (6, 3))
        rows[0] = first
        held = torch.ones_like(h)
        held[1] = context
        rows.requires_grad_()
        x = LoDTensor.from_lengths(rows, [[4, 0, 2]])
        y, final = recurrent(step, x, (h, held, torch.zeros_like(h)), backend=backend)
        return torch.autograd.grad(y.values.sin().sum() + final[2].sum(), (rows, Steps.w))

    for first, context in ((0.0, 1.0), (1.0, torch.nan), (1.0, torch.inf)):
        plain = found("naive", first, context)
        assert all(g.isfinite().all() for g in plain)
        torch.testing.assert_close(found(backend, first, context), plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", few(BACKENDS[1:], ["eager"]))
def test_third_derivatives(backend):
    w = torch.full((1,), 0.3, dtype=DTYPE, requires_grad=True)

    def step(x, h):
        h = torch.sin(x * w + h * w)
        return h, h

    x = torch.ones(3, 1, 1, dtype=DTYPE) * 0.5
    results = []
    for chosen in ("naive", backend):
        y, _ = recurrent(step, x, torch.zeros(1, 1, dtype=DTYPE), backend=chosen)
        value, kept = y.sum(), []
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sum(), w, create_graph=True)
            kept.append(value.detach())
        results.append(torch.stack(kept))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def model_of(backend):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return stepnet.Recurrent(cells.GRU(D, D, dtype=DTYPE), backend=backend)


class LookedUp(nn.Module):
    """A step that no walk closes: it finds its weights by names that are made as it runs."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, D, dtype=DTYPE) / 3)

    def forward(self, x, h):
        h = torch.tanh(x + h @ getattr(self, "w".lower()))
        return h, h


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.covering(1)
@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("backend", few(BACKENDS[1:], ["eager"]))
def test_functional_call_and_backward_with_a_graph(backend, looked_up):
    """The weights of the call are those it was given, though the module has its own again by then, which are
    parameters."""
    x, h, grads = torch.randn(4, 2, D, dtype=DTYPE), torch.zeros(2, D, dtype=DTYPE), []
    step = LookedUp()
    for chosen in ("naive", backend):
        model = stepnet.Recurrent(step, backend=chosen) if looked_up else model_of(chosen)
        scale = torch.tensor(1.5, dtype=DTYPE, requires_grad=True)
        fast = {k: v * scale for k, v in model.named_parameters()}
        y, _ = torch.func.functional_call(model, fast, (x, h))
        y.square().sum().backward(create_graph=True)
        first = [p.grad for p in (scale, *model.parameters())]
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [scale, *model.parameters()])
        grads.append([*(g.detach() for g in first), *second])
        for parameter in (scale, *model.parameters()):
            parameter.grad = None  # a graph holds itself through it
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", few(BACKENDS[1:], ["eager"]))
def test_a_step_of_maml(backend):
    x, target = torch.randn(4, 2, D, dtype=DTYPE), torch.randn(4, 2, D, dtype=DTYPE)
    results = []
    for chosen in ("naive", backend):
        model = model_of(chosen)
        weights, h = dict(model.named_parameters()), torch.zeros(2, D, dtype=DTYPE)
        for _ in range(2):
            y, _ = torch.func.functional_call(model, weights, (x, h))
            inner = torch.autograd.grad(
                (y - target).square().mean(), list(weights.values()), create_graph=True
            )
            weights = {k: v - 0.5 * g for (k, v), g in zip(weights.items(), inner, strict=True)}
        y, _ = torch.func.functional_call(model, weights, (x * 2, h))
        results.append(torch.autograd.grad((y - target).square().mean(), list(model.parameters())))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", few(BACKENDS[1:], ["eager"]))
@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_and_hessians(backend, vectorize):
    x = torch.randn(2, 1, D, dtype=DTYPE)
    results = []
    for chosen in ("naive", backend):
        model = model_of(chosen)

        def loss(x, model=model):
            y, h = model(x, torch.zeros(1, D, dtype=DTYPE))
            return (y.sin().sum() + h.prod()) ** 2

        def rows(x, model=model):
            return model(x, torch.zeros(1, D, dtype=DTYPE))[0]

        results.append(
            [
                torch.autograd.functional.jacobian(rows, x, vectorize=vectorize),
                torch.autograd.functional.hessian(loss, x, vectorize=vectorize),
            ]
        )
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", few(BACKENDS[1:], ["eager"]))
def test_a_gradient_inside_of_a_checkpoint(backend):
    """What the first call tries to find its derivatives is nothing that a checkpoint keeps."""

    def step(x, h):
        h = torch.tanh(x * Steps.b + h @ Steps.w)
        return h, h

    def length(x, chosen):
        y, _ = recurrent(step, x, torch.zeros(2, D, dtype=DTYPE), backend=chosen)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return g.square().sum()

    x = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True)
    kept = torch.utils.checkpoint.checkpoint(length, x, backend, use_reentrant=False)
    found, expected = (
        torch.autograd.grad(value, [x, Steps.w, Steps.b]) for value in (kept, length(x, "naive"))
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_gradients(backend):
    model = model_of(backend)
    x = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True)
    seeds = torch.randn(4, 3, 2, D, dtype=DTYPE)
    wanted = [x, *model.parameters()]
    y, _ = model(x, torch.zeros(2, D, dtype=DTYPE))
    many = torch.autograd.grad(y, wanted, seeds, is_grads_batched=True, retain_graph=True)
    for i, seed in enumerate(seeds):
        one = torch.autograd.grad(y, wanted, seed, retain_graph=True)
        torch.testing.assert_close([m[i] for m in many], list(one), rtol=1e-9, atol=1e-10)


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", [[2, 1], [0, 0], [1, 0]])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_second_gradients_of_states_apart(backend, batched, lengths):
    """The gradient by one state depends on what it is made of alone: None by the others, as torch has it."""

    def step(x, h):
        return x.detach(), (torch.tanh(h[0]), torch.sin(h[1] * h[0].detach()), h[2] * h[1])

    def there(backend, at):
        h = [torch.linspace(0.1, 1, 2 * D, dtype=DTYPE).reshape(2, D).requires_grad_() for _ in range(3)]
        x = LoDTensor.from_lengths(torch.ones(sum(lengths), D, dtype=DTYPE), [lengths])
        final = recurrent(step, x, tuple(h), backend=backend)[1]
        loss = sum((f.pow(3).sum() for f in final), torch.zeros((), dtype=DTYPE))
        seeds = torch.tensor([0.5, -1.0], dtype=DTYPE) if batched else None
        how = {"create_graph": True, "is_grads_batched": batched}
        (g,) = torch.autograd.grad(loss, h[at], seeds, **how)
        return [t is not None for t in torch.autograd.grad(g.square().sum(), h, allow_unused=True)]

    for at in range(3):
        assert there(backend, at) == there("naive", at)


@pytest.mark.parametrize("features", [(), (D,)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_of_no_sequences_has_a_history(backend, features):
    h = torch.ones(0, *features, dtype=DTYPE, requires_grad=True)
    x = LoDTensor.from_lengths(torch.ones(0, D, dtype=DTYPE), [[]])
    _, final = recurrent(lambda x, h: (h, torch.sin(h)), x, h, backend=backend)
    (g,) = torch.autograd.grad(final.sin().sum(), h, create_graph=True)
    assert g.requires_grad


def test_forward_mode_tangents():
    """Of rows, a state and a weight; never dropped."""
    model = model_of("eager")
    weights = {k: v.detach() for k, v in model.named_parameters()}
    at = {"x": torch.randn(3, 2, D, dtype=DTYPE), "state": torch.randn(2, D, dtype=DTYPE), "weight_hh": None}
    at["weight_hh"] = weights["step.weight_hh"]

    def run(which, value):
        x, h, weight = (at | {which: value}).values()
        return torch.func.functional_call(model, weights | {"step.weight_hh": weight}, (x, h))[0]

    for which, value in at.items():
        direction = torch.randn_like(value)
        run(which, value)  # by a plan
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(run(which, forward_ad.make_dual(value, direction))).tangent
        moved = [run(which, value + 1e-6 * sign * direction) for sign in (1, -1)]
        assert found is not None
        torch.testing.assert_close(found, (moved[0] - moved[1]) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_a_tangent_of_a_gradient(backend):
    """What comes in for a result may have one: the gradient is linear in it."""
    x, h = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True), torch.zeros(2, D, dtype=DTYPE)
    y, _ = model_of(backend)(x, h)
    direction = torch.randn_like(y)
    with forward_ad.dual_level():
        seed = forward_ad.make_dual(torch.ones_like(y), direction)
        (found,) = torch.autograd.grad(y, x, seed, retain_graph=True)
        tangent = forward_ad.unpack_dual(found).tangent
    (expected,) = torch.autograd.grad(y, x, direction)
    torch.testing.assert_close(tangent, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
@pytest.mark.parametrize("which", ["x", "state"])
def test_a_tangent_of_a_gradient_along_what_has_none(backend, which):
    """What moves needs no gradient of its own: that of a weight moves with it."""

    def step(x, h):
        h = torch.tanh(x @ Steps.w + h)
        return h, h

    x, h = torch.randn(3, 2, D, dtype=DTYPE), torch.randn(2, D, dtype=DTYPE)

    def found(backend):
        with forward_ad.dual_level():
            given = [x, h]
            at = ["x", "state"].index(which)
            given[at] = forward_ad.make_dual(given[at], given[at].cos())
            y, final = recurrent(step, *given, backend=backend)
            (grad,) = torch.autograd.grad(y.sin().sum() + final.sum(), Steps.w)
            return forward_ad.unpack_dual(grad).tangent

    assert found("naive").count_nonzero()
    torch.testing.assert_close(found(backend), found("naive"), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_no_gradient_flows_where_a_tangent_does(backend):
    """At a level of autograd's own a result that is cut off requires no gradient, as without one."""
    x, h = torch.randn(3, 2, D, dtype=DTYPE), torch.zeros(2, D, dtype=DTYPE)

    def step(x, h):
        with torch.no_grad():
            inner = torch.sin(x @ Steps.w)
        return (inner, inner.detach(), torch.tanh(x @ Steps.w)), h.detach()

    with forward_ad.dual_level():
        y, final = recurrent(step, forward_ad.make_dual(x, x.cos()), h, backend=backend)
        assert [t.requires_grad for t in (*y, final)] == [False, False, True, False]
        assert forward_ad.unpack_dual(y[2]).tangent.requires_grad
        assert forward_ad.unpack_dual(y[0]).tangent.count_nonzero()
        assert all(forward_ad.unpack_dual(t).tangent is None for t in (y[1], final))


# ---- what needs no gradient gets none

NONE = {
    "ignores x": lambda x, h: (torch.ones_like(x), h * 1),
    "detaches": lambda x, h: ((x + h).detach(), (x + h).detach()),
    "thresholds": lambda x, h: ((x > 0).to(DTYPE), h),
    "indexes": lambda x, h: ((x + h).argmax(1), h.detach()),
}


@pytest.mark.parametrize("backend", ["auto", "eager", "c"])
@pytest.mark.parametrize("name", NONE)
def test_results_that_need_no_gradient(backend, name):
    for lengths in ([2, 0, 3], [0, 0], [1]):
        x = torch.randn(sum(lengths), D, dtype=DTYPE, requires_grad=True)
        h = torch.randn(len(lengths), D, dtype=DTYPE, requires_grad=True)
        results = []
        for chosen in ("naive", backend):
            y, final = recurrent(NONE[name], LoDTensor.from_lengths(x, [lengths]), h, backend=chosen)
            results.append((y.values, final))
        for found, expected in zip(*results[::-1], strict=True):
            torch.testing.assert_close(found, expected)
        assert results[1][0].requires_grad == results[0][0].requires_grad
        if results[0][1].requires_grad:
            grads = [torch.autograd.grad(r[1].sum(), [h], allow_unused=True)[0] for r in results]
            torch.testing.assert_close(grads[1], grads[0])
