"""Inside torch.func's transforms: the numbers of the plain loop, by plans where plans take part."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_map

from covering import few
from stepnet import LoDTensor, Recurrent, recurrent
from stepnet.data.modes import is_wrapped
from stepnet.engine.transforms import Further
from stepnet.errors import StepError, Unsupported
from stepnet.executors import naive, transformed

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, of vmap

DTYPE = torch.float64
T, B, F_IN, H = 2, 2, 3, 4
torch.manual_seed(5)
CELL = nn.GRUCell(F_IN, H, dtype=DTYPE)
WEIGHTS = {f"step.cell.{name}": p.detach() for name, p in CELL.named_parameters()}
X, STATE = torch.randn(T, B, F_IN, dtype=DTYPE), torch.randn(B, H, dtype=DTYPE)
MIX, SCALE = torch.randn(F_IN, H, dtype=DTYPE), torch.tensor(0.7, dtype=DTYPE)
RAGGED = LoDTensor.from_lengths(torch.randn(6, F_IN, dtype=DTYPE), [[2, 0, 3, 1]])


def loss(backend, weights, x=X, state=STATE):
    y, final = functional_call(Recurrent(CELL, backend=backend), weights, (x, state))
    return y.square().sum() + final.sin().sum()


def run(backend, x=X, state=STATE):
    return recurrent(CELL, x, state, backend=backend)[0]


def ragged(backend, values):
    y, final = recurrent(CELL, RAGGED.with_values(values), torch.zeros(4, H, dtype=DTYPE), backend=backend)
    return y.values.square().sum() + final.sum()


def scaled(backend, scale):
    """A weight that is one number."""

    def step(x, h):
        h = torch.tanh(x @ MIX * scale + h)
        return h, h

    return recurrent(step, X, STATE, backend=backend)[0].square().sum()


def several(tensor):
    return torch.stack([tensor, tensor * 2, -tensor])


def sines(backend, values):
    def step(x, h):
        h = x * h.sin()
        return h, h

    h0 = STATE[:, :F_IN].repeat(2, 1)
    y, final = recurrent(step, RAGGED.with_values(values), h0, backend=backend)
    return y.values.square().sum() + final.sum()


def twice(function, at):
    """A second derivative in forward mode."""
    return jvp(lambda p: jvp(function, (p,), (at * 2,))[1], (at,), (at.sin(),))


def carried(function, at, differentiate=False):
    """A value and its derivative along a direction, by a level of autograd's own; of the gradient, too."""
    points = [t.clone().requires_grad_(differentiate) for t in at]
    with forward_ad.dual_level():
        value = function(*(forward_ad.make_dual(t, t.detach().sin()) for t in points))
        if differentiate:
            (pulled,) = torch.autograd.grad(value, points[:1], create_graph=True)
            both = [t for dual in (value, pulled) for t in forward_ad.unpack_dual(dual) if t is not None]
            return torch.autograd.grad(torch.stack([t.sin().sum() for t in both]).sum(), points)
        return tuple(forward_ad.unpack_dual(value))


HIDDEN = "step.cell.weight_hh"
MODELS = {name: several(p) for name, p in WEIGHTS.items()}
ONES = torch.ones(T, B, H, dtype=DTYPE)

BY_PLANS = {
    "grad": lambda b: grad(lambda w, x, h: loss(b, w, x, h), (0, 1, 2))(WEIGHTS, X, STATE),
    "grad, ragged": lambda b: grad(lambda v: ragged(b, v))(RAGGED.values),
    "vjp": lambda b: vjp(lambda x: run(b, x), X)[1](ONES),
    "vmap over x": lambda b: vmap(lambda x: run(b, x))(several(X)),
    "vmap over the second dimension": lambda b: vmap(lambda x: run(b, x), 1, 1)(several(X).transpose(0, 1)),
    "vmap over x and state": lambda b: vmap(lambda x, h: run(b, x, h))(several(X), several(STATE)),
    "vmap twice": lambda b: vmap(vmap(lambda x: run(b, x)))(several(several(X))),
    "vmap over ragged rows": lambda b: vmap(lambda v: ragged(b, v))(several(RAGGED.values)),
    "gradients of samples": lambda b: vmap(
        grad(lambda w, x, h: loss(b, w, x[:, None], h[None])), (None, 1, 0)
    )(WEIGHTS, X, STATE),
    "an ensemble": lambda b: vmap(lambda w: loss(b, w))(MODELS),
    "an ensemble by one weight, of samples": lambda b: vmap(
        lambda x: vmap(lambda w: loss(b, WEIGHTS | {"step.cell.weight_hh": w}, x))(
            MODELS["step.cell.weight_hh"]
        )
    )(several(X)),
    "jvp over an ensemble": lambda b: jvp(
        lambda m: vmap(lambda w: loss(b, w))(m), (MODELS,), (tree_map(torch.sin, MODELS),)
    ),
    "grad of grad of an ensemble": lambda b: vmap(
        grad(lambda w: grad(lambda u: loss(b, u))(w)["step.cell.bias_hh"].square().sum())
    )(MODELS),
    "gradients of an ensemble": lambda b: vmap(grad(lambda w: loss(b, w)))(MODELS),
    "gradient over an ensemble": lambda b: grad(lambda m: vmap(lambda w: loss(b, w))(m).sum())(MODELS),
    "jacrev": lambda b: jacrev(lambda h: recurrent(CELL, X, h, backend=b)[1])(STATE),
    "jacrev in chunks": lambda b: jacrev(lambda h: run(b, X, h), chunk_size=5)(STATE),
    "jvp": lambda b: jvp(lambda h: run(b, X, h), (STATE,), (STATE * 2,)),
    "jvp of one number": lambda b: jvp(lambda s: scaled(b, s), (SCALE,), (SCALE * 2,)),
    "jacfwd": lambda b: jacfwd(lambda h: recurrent(CELL, X, h, backend=b)[1])(STATE),
    "hessian": lambda b: hessian(lambda h: loss(b, WEIGHTS, X, h))(STATE),
    "grad of grad": lambda b: grad(lambda h: grad(lambda h: loss(b, WEIGHTS, X, h))(h).square().sum())(STATE),
    "jvp of a pull-back": lambda b: jvp(lambda v: vjp(lambda x: run(b, x), X)[1](v)[0], (ONES,), (ONES * 2,)),
    "tangents": lambda b: carried(lambda x, h: run(b, x, h), (X, STATE)),
    "tangents of some": lambda b: carried(lambda v: run(b, v, STATE), (X,)),
    "tangents of weights": lambda b: carried(
        lambda *w: loss(b, dict(zip(WEIGHTS, w, strict=True))), tuple(WEIGHTS.values())
    ),
    "tangents, ragged": lambda b: carried(lambda v: ragged(b, v), (RAGGED.values,)),
    "grad of a pull-back": lambda b: grad(lambda v: vjp(lambda x: run(b, x), X)[1](v)[0].square().sum())(
        ONES
    ),
}


@pytest.fixture
def plain_runs(monkeypatch):
    runs = []
    plain = naive.run

    def counted(*args, **kwargs):
        runs.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(naive, "run", counted)
    return runs


# What they show is in others: another dimension or more inputs, pieces of a whole, a number as a tensor, what
# others are made of; a Hessian is a jacfwd of a jacrev.
LIKE_OTHERS = {
    "jacrev", "jacfwd",
    "vmap over the second dimension", "vmap over x and state", "jacrev in chunks", "tangents of some",
    "jvp of one number", "vjp", "tangents", "vmap twice",
}  # fmt: skip


ASKED = [(name, backend) for name in BY_PLANS for backend in ("c", "eager", "auto")]
IN_TURN = [(n, "eager" if i % 3 else "c") for i, n in enumerate(n for n in BY_PLANS if n not in LIKE_OTHERS)]


@pytest.mark.parametrize(("name", "backend"), few(ASKED, IN_TURN[::5]))
def test_by_plans(name, backend, plain_runs):
    of = BY_PLANS[name]
    torch.testing.assert_close(of(backend), expected := of("naive"), rtol=1e-9, atol=1e-10)
    plain_runs.clear()
    again = of(backend)
    torch.testing.assert_close(again, expected, rtol=1e-9, atol=1e-10)
    assert not plain_runs


@pytest.mark.parametrize("name", ["gradients of an ensemble", "gradient over an ensemble"])
def test_members_run_at_once(name, monkeypatch):
    """Weights of their own: one run for all members, one backward; the next one walks for no derivatives."""
    runs = []

    def counted(part):
        of = getattr(transformed, part)
        return lambda *args: runs.append(part) or of(*args)

    for part in ("forward", "gradients"):
        monkeypatch.setattr(transformed, part, counted(part))
    BY_PLANS[name]("c")
    assert len(runs) == len(set(runs)) == 2
    monkeypatch.setattr(Further, "has_history", None)
    BY_PLANS[name]("c")


@pytest.mark.parametrize("name", [name for name in BY_PLANS if "ensemble" in name or "samples" in name])
def test_members_that_are_large_run_alone(name, monkeypatch, plain_runs):
    expected = BY_PLANS[name]("naive")
    monkeypatch.setattr(transformed, "LARGE", 0)
    monkeypatch.setattr(Further, "members", None)
    for _ in range(2):
        plain_runs.clear()
        torch.testing.assert_close(BY_PLANS[name]("c"), expected, rtol=1e-9, atol=1e-10)
    assert not plain_runs


@pytest.mark.exhaustive
def test_forward_mode_twice_over_a_gradient(plain_runs):
    def of(backend):
        return twice(grad(lambda v: sines(backend, v)), RAGGED.values)

    torch.testing.assert_close(of("eager"), expected := of("naive"), rtol=1e-9, atol=1e-10)
    plain_runs.clear()
    torch.testing.assert_close(of("eager"), expected, rtol=1e-9, atol=1e-10)
    assert not plain_runs


def test_weights_that_want_a_gradient_beside_a_transform():
    """vmap, then backward: nothing of torch.func takes the gradient."""
    weights = {name: p.clone().requires_grad_() for name, p in WEIGHTS.items()}

    def derivatives(backend):
        total = vmap(lambda x: loss(backend, weights, x))(several(X)).sum()
        grads = torch.autograd.grad(total, list(weights.values()), create_graph=True)
        square = torch.stack([g.square().sum() for g in grads]).sum()
        return [*grads, *torch.autograd.grad(square, list(weights.values()))]

    found = [derivatives(backend) for backend in ("naive", "auto", "auto")]
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[2], found[0], rtol=1e-9, atol=1e-9)


class Small(nn.Module):
    """A step with two weights of one shape."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor(t, dtype=DTYPE)) for t in ([0.5, -0.4], [0.3, 0.8]))

    def forward(self, x, h):
        h = torch.tanh(x * self.a + h.flip(-1) * self.b)
        return h, h


def by_one(of, function, name):
    """A derivative of a function of weights by one of them."""

    def moved(weights):
        def inner(weight):
            return function(weights | {name: weight})

        at = weights[name]
        return jvp(inner, (at,), (ONES[0, 0, :2],))[1] if of is jvp else grad(inner)(at).sin().sum()

    return moved


@pytest.mark.parametrize(("outer", "inner"), few([(jvp, jvp), (jvp, grad), (grad, jvp)], [(grad, jvp)]))
def test_derivatives_of_derivatives_by_one_weight_after_another(outer, inner):
    """Weights of one shape, each moved alone; then autograd differentiates, when functional_call is over."""
    found = {}
    for backend in ("naive", "eager"):
        model = Recurrent(Small(), backend=backend)
        found[backend] = []

        def squares(weights, model=model):
            return functional_call(model, weights, (X[..., :2], STATE[:, :2]))[0].square().sum()

        weights = dict(model.named_parameters())
        for name in weights:
            value = by_one(outer, by_one(inner, squares, name), name)(weights)
            found[backend] += [value, *torch.autograd.grad(value, [*weights.values()])]
    torch.testing.assert_close(found["eager"], found["naive"], rtol=1e-9, atol=1e-10)


def test_batches_of_gradients_of_what_a_transform_gave():
    """autograd has vmap rules of its own for those, and none for what torch.func wraps."""

    def many(backend):
        x = X.clone().requires_grad_()
        y = vmap(lambda k: run(backend, x * k))(torch.tensor([1.0, 0.5], dtype=DTYPE))
        sent = several(torch.ones_like(y))
        (g,) = torch.autograd.grad(y, x, sent, is_grads_batched=True, create_graph=True)
        return g, *torch.autograd.grad(g.sin().sum(), x, torch.ones(2, dtype=DTYPE), is_grads_batched=True)

    torch.testing.assert_close(many("eager"), many("naive"), rtol=1e-9, atol=1e-10)


def kept(x, h, w):
    h = torch.tanh(x @ w + h)
    return h, h


def cut(x, h, w):
    """What a call keeps for its gradient is not what one of all members keeps."""
    with torch.no_grad():
        gate = torch.tanh(x @ w + h)
    return h * gate, h


def detached(x, h, w):
    h = torch.tanh(x @ w + h)
    return h * (h > 0), h.detach()


def of_step(backend, step, w, x=X, h=STATE):
    return recurrent(lambda x, h: step(x, h, w), x, h, backend=backend)


def summed(backend, step, w, x=X, h=STATE):
    y, final = of_step(backend, step, w, x, h)
    return y.sin().sum() + final.square().sum()


def linearized(backend, step, w):
    y, moved = linearize(lambda x: of_step(backend, step, w, x), X)
    return sum(t.sin().sum() for t in (*y, *moved(X.cos())))


NESTED = {
    "rows of members": lambda f, w: vmap(lambda w: vmap(lambda x: f(w, x))(several(X)))(several(w)),
    "jacobians of rows of members": lambda f, w: vmap(
        lambda w: vmap(lambda x: jacrev(lambda h: f(w, x, h))(STATE))(several(X))
    )(several(w)),
    "jacobians of members": lambda f, w: vmap(lambda w: jacrev(lambda h: f(w, X, h))(STATE))(several(w)),
    "gradients of rows of members": lambda f, w: vmap(
        lambda w: vmap(grad(lambda w, x: f(w, x)[0].sin().sum(), (0, 1)), (None, 0))(w, several(X))
    )(several(w)),
    "curvature of rows of members": lambda f, w: vmap(
        lambda w: vmap(lambda x: hessian(lambda s: f(w * s, x)[1].sin().sum())(SCALE))(several(X))
    )(several(w)),
}


STEPPED = [(name, step) for name in NESTED for step in (kept, cut, detached)]


@pytest.mark.parametrize(
    ("name", "step"),
    few(STEPPED, [STEPPED[4], STEPPED[8]]),
    ids=[f"{n}-{s.__name__}" for n, s in STEPPED],
)
def test_batches_in_batches(name, step):
    found = [
        NESTED[name](lambda w, x, h=STATE, b=b: of_step(b, step, w, x, h), MIX) for b in ("eager", "naive")
    ]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's own
@pytest.mark.parametrize("step", few([kept, cut, detached], [cut]))
def test_gradients_through_what_is_linearized(step):
    found = [grad(lambda w, b=b: linearized(b, step, w))(MIX) for b in ("eager", "naive")]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("padding", few([None, 0, -1], [-1]))
def test_members_that_look_rows_up(padding, monkeypatch):
    """At once, by indices that their rows share or not; torch's rule leaves out one member's padding."""
    table = torch.randn(3, H, dtype=DTYPE)

    def step(x, h, table):
        own = nn.functional.embedding(x.argmax(-1), table, padding)
        h = torch.tanh(own + h)
        return h, h

    def of(table, x):
        return summed("c", lambda x, h, _: step(x, h, table), None, x)

    both = several(table)
    expected = torch.stack(
        [grad(lambda t: summed("naive", lambda x, h, _: step(x, h, t), None))(t) for t in both]
    )
    with monkeypatch.context() as patched:
        patched.setattr(transformed.batched, "one_by_one", None)
        for x, dim in ((X, None), (torch.stack([X] * 3), 0)):
            found = vmap(grad(of), (0, dim))(both, x)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dim", few([0, -1], [0]))
def test_members_whose_weight_is_normed(dim, monkeypatch):
    """At once, though `vmap` takes the norms of one after the other."""
    scale = torch.full((F_IN, 1) if dim == 0 else (), 0.7, dtype=DTYPE)

    def step(x, h, v):
        h = torch.tanh(x @ torch._weight_norm(v, scale, dim) + h)
        return h, h

    both = several(MIX)
    expected = torch.stack([grad(lambda v: summed("naive", step, v))(v) for v in both])
    with monkeypatch.context() as patched:
        patched.setattr(transformed.batched, "one_by_one", None)
        found = vmap(grad(lambda v: summed("c", step, v)))(both)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


LINEARIZED = {
    "x": (lambda b, x: run(b, x), X),
    "weights": (lambda b, w: loss(b, w), WEIGHTS),
    "ragged": (ragged, RAGGED.values),
    "a gradient": (lambda b, x: grad(lambda x: loss(b, WEIGHTS, x))(x), X),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's own
@pytest.mark.parametrize("name", few(LINEARIZED, ["ragged"]))
def test_linearized_by_plans(name, plain_runs):
    """Each time it is applied: torch keeps what it changes in place of an nn.GRUCell of the plain loop."""
    of, at = LINEARIZED[name]
    direction = tree_map(torch.cos, at)
    expected = jvp(lambda p: of("naive", p), (at,), (direction,))[1]
    for _ in range(2):
        plain_runs.clear()
        moved = linearize(lambda p: of("auto", p), at)[1]
        for _ in range(2):
            torch.testing.assert_close(moved(direction), expected, rtol=1e-9, atol=1e-10)
    assert not plain_runs
    both = vmap(moved)(tree_map(lambda t: torch.stack([t, t * 2]), direction))
    torch.testing.assert_close(tree_map(lambda t: t[1] / 2, both), expected, rtol=1e-9, atol=1e-10)


def test_batches_of_no_calls():
    """They have the shapes of a call's results, and of gradients."""
    none = torch.zeros(0, *X.shape, dtype=X.dtype)
    assert vmap(lambda x: run("auto", x))(none).shape == (0, *run("auto").shape)
    assert vmap(grad(lambda x: run("auto", x).sum()))(none).shape == none.shape


def test_what_is_drawn_differs_as_vmap_is_told():
    def noisy(x, h):
        h = torch.tanh(x + h) + torch.randn_like(h)
        return h, h

    def many(randomness):
        return vmap(
            lambda x: recurrent(noisy, x, torch.zeros(B, F_IN, dtype=DTYPE))[0], randomness=randomness
        )(torch.stack([X, X]))

    with pytest.raises(StepError, match="randomness"):
        many("error")
    same, different = many("same"), many("different")
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])


def test_the_next_ordinary_call_is_as_ever():
    grad(lambda h: loss("auto", WEIGHTS, X, h))(STATE)
    torch.testing.assert_close(run("c"), run("naive"), rtol=1e-12, atol=1e-12)
    y = run("c", X.clone().requires_grad_())
    y.sum().backward()
    assert not is_wrapped(y)


@pytest.mark.exhaustive
def test_forward_mode_of_autograd_around_transforms():
    """torch.func knows nothing of a level of autograd's own, and opens no other one inside of it."""

    def many(backend, values):
        return vmap(lambda v: ragged(backend, v).sin())(torch.stack([values, values * 0.5])).sum()

    def pulled(backend, values):
        value, pull = vjp(lambda v: ragged(backend, v), values)
        return pull(value)[0].sin().sum()

    def detached(backend, values):
        def step(x, h):
            return h.detach(), torch.tanh(x + h)

        def one(v):
            zeros = torch.zeros(4, F_IN, dtype=DTYPE)
            return recurrent(step, RAGGED.with_values(v), zeros, backend=backend)[0].values.square().sum()

        return vmap(one)(torch.stack([values, values * 0.5])).sum() + values.sum()

    direction = torch.randn_like(RAGGED.values)
    for of in (many, pulled, detached):
        found = []
        for backend in ("c", "naive"):
            values = RAGGED.values.clone().requires_grad_()
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(values, direction)
                value = torch.autograd.forward_ad.unpack_dual(of(backend, dual))
            found.append([*value, torch.autograd.grad(value.primal + value.tangent, values)[0]])
        torch.testing.assert_close(*found)


CARRIED = {
    "dense": lambda b: carried(lambda x, h: loss(b, WEIGHTS, x, h), (X, STATE), differentiate=True),
    "ragged": lambda b: carried(lambda v: sines(b, v), (RAGGED.values,), differentiate=True),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", few(CARRIED, ["ragged"]))
def test_tangents_of_gradients_and_their_gradients(name):
    for _ in range(2):
        torch.testing.assert_close(CARRIED[name]("c"), CARRIED[name]("naive"), rtol=1e-9, atol=1e-10)


def test_many_tangents_at_once():
    def of(backend):
        how = {"strategy": "forward-mode", "vectorize": True}
        return torch.autograd.functional.jacobian(lambda v: sines(backend, v), RAGGED.values, **how)

    torch.testing.assert_close(of("auto"), of("naive"), rtol=1e-9, atol=1e-10)
    with pytest.raises(Unsupported, match="several tangents at once"):
        of("c")


def test_constants_of_a_plan_are_no_business_of_a_transform():
    def step(x, h):
        h = nn.functional.prelu(h + x, torch.tensor([0.2], dtype=DTYPE))
        return h, h

    def value(backend, values):
        y, _ = recurrent(step, RAGGED.with_values(values), torch.zeros(4, F_IN, dtype=DTYPE), backend=backend)
        return y.values.square().sum()

    def found(backend):
        both = torch.stack([RAGGED.values, RAGGED.values * 0.5])
        _, pull = vjp(lambda v: vmap(lambda own: value(backend, own))(v), both)
        return pull(torch.tensor([1.0, 2.0], dtype=DTYPE))

    torch.testing.assert_close(found("c"), found("naive"))


class Pair(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


def test_a_state_with_names_has_a_plan():
    """What Python makes for such a class reads nothing that is not known."""

    def step(x, s, weight):
        c = torch.tanh(s.c * weight + x[:, :1])
        return s.h, Pair(c, s.h)

    def loss(weight, backend):
        first = Pair(torch.ones(B, 1, dtype=DTYPE), torch.ones(B, 1, dtype=DTYPE))
        return recurrent(lambda x, s: step(x, s, weight), X, first, backend=backend)[0].sum()

    found, expected = (grad(loss)(SCALE, backend) for backend in ("eager", "naive"))
    torch.testing.assert_close(found, expected)


def test_what_carries_no_gradient_needs_none_after_a_batch_but_has_tangents():
    """As in the plain loop: weights outside of the transform need gradients, what `no_grad` made does not."""
    w = torch.randn(3, 3, requires_grad=True)
    x, h = torch.randn(4, 2, 3), torch.zeros(2, 3)

    def step(x, h):
        with torch.no_grad():
            y = torch.tanh(x @ w + h)
        return (y, x), torch.tanh(x @ w + y)

    def loop(x, backend="eager"):
        return recurrent(step, x, h, backend=backend)

    y, last = torch.func.vmap(loop)(x[None])
    assert [t.requires_grad for t in (*y, last)] == [False, False, True]
    (_, (y, last)), (_, (expected, after)) = (
        torch.func.jvp(lambda x, by=by: loop(x, by), (x,), (x,)) for by in ("eager", "naive")
    )
    torch.testing.assert_close((*y, last), (*expected, after))


@pytest.mark.exhaustive
def test_gradients_of_gradients_of_a_batch():
    """What needs a gradient outside of a batch needs it in the run of all of its calls."""

    def found(backend):
        x, h = (torch.full((*n, 2), 0.7, dtype=torch.float64, requires_grad=True) for n in ((3, 1), (1,)))

        def number(x):
            return recurrent(lambda x, h: (x * x * h, h), x, h, backend=backend)[0].sin().sum()

        batch = vmap(grad(number))(torch.stack([x, x * 0.7]))
        first = torch.autograd.grad(batch.sum(), [x, h], create_graph=True)
        return [*first, *torch.autograd.grad(sum(t.square().sum() for t in first), [x, h])]

    torch.testing.assert_close(found("eager"), found("naive"), rtol=1e-9, atol=1e-12)


def test_results_written_to_in_place():
    """Backward has its own."""

    def written(backend, x):
        y = run(backend, x)
        y[1].mul_(3)
        return y.square().sum()

    def carried_on(backend):
        x = X.clone().requires_grad_()
        with forward_ad.dual_level():
            loss: Any = written(backend, forward_ad.make_dual(x, X.cos()))
            return forward_ad.unpack_dual(loss).tangent, torch.autograd.grad(loss, x)[0]

    for of in (lambda b: (grad(lambda x: written(b, x))(X),), carried_on):
        torch.testing.assert_close(of("eager"), of("naive"))
