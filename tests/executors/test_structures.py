"""Steps of every form: nested inputs, states and outputs, states that hardly are any, odd shapes."""

from __future__ import annotations

import inspect
from collections import namedtuple

import pytest
import torch

from covering import every, few
from plans import BACKENDS, ops, plan_of
from stepnet.data.lod import LoDTensor
from stepnet.testing import LENGTHS, check_step

pytestmark = pytest.mark.usefixtures("verified_plans")

OPTIMISED = False
DTYPE = torch.float64
FEATURES, HIDDEN = 3, 5
PATTERNS = ["unsorted, an empty one in the middle", "one row", "all empty", "batch of none"]
Pair = namedtuple("Pair", "left right")


def leaf(*shape):
    return torch.randn(shape, dtype=DTYPE, requires_grad=True)


class Case:
    """A step with its inputs for given lengths; `state` maps the number of sequences to a state."""

    def __init__(self, step, state, features=(FEATURES,), x=None):
        self.step, self.state = step, state
        self.x = x or (lambda rows: leaf(rows, *features))


def weights(*shapes):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(s, generator=generator, dtype=DTYPE).requires_grad_() for s in shapes]


def _tuple_of_three():
    w, u = weights((FEATURES, HIDDEN), (HIDDEN, HIDDEN))

    def step(x, state):
        a, b, c = state
        new = torch.tanh(x @ w + a @ u)
        return (new, b), (new, b + new, c * 0.5)

    return Case(step, lambda n: (leaf(n, HIDDEN), leaf(n, HIDDEN), leaf(n, HIDDEN)))


def _dicts():
    w, u = weights((FEATURES, HIDDEN), (HIDDEN, HIDDEN))

    def step(x, state):
        h = torch.tanh(x["a"] @ w + x["b"] + state["h"] @ u)
        return {"out": h, "sum": x["b"].sum(-1)}, {"c": state["c"] + h, "h": h}

    return Case(
        step,
        lambda n: {"c": leaf(n, HIDDEN), "h": leaf(n, HIDDEN)},
        x=lambda rows: {"a": leaf(rows, FEATURES), "b": leaf(rows, HIDDEN)},
    )


def _namedtuples():
    (u,) = weights((HIDDEN, HIDDEN))

    def step(x, state):
        new = torch.tanh(x.left[0] + state.left @ u)
        return Pair(new, [state.right]), Pair(new, state.right + x.right)

    return Case(
        step,
        lambda n: Pair(leaf(n, HIDDEN), leaf(n, 2)),
        x=lambda rows: Pair([leaf(rows, HIDDEN)], leaf(rows, 2)),
    )


def _nested_deep():
    def step(x, state):
        new = [{"h": torch.sin(state[0]["h"] + x)}, (state[1][0] * x,)]
        return {"y": (new[0]["h"], [new[1][0]])}, new

    return Case(step, lambda n: [{"h": leaf(n, FEATURES)}, (leaf(n, FEATURES),)])


def _swap():
    def step(x, state):
        a, b = state
        return a - b + x, (b, a)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, FEATURES)))


def _swap_alone():
    def step(x, state):
        a, b = state
        return x * 2, (b, a)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, FEATURES)))


def _rotation_of_three():
    def step(x, state):
        a, b, c = state
        return a * x, (b, torch.tanh(c), a)

    return Case(step, lambda n: tuple(leaf(n, FEATURES) for _ in range(3)))


def _passed_through():
    w = weights((FEATURES, HIDDEN))[0]

    def step(x, state):
        h, key = state
        h = torch.tanh(x @ w + h * key)
        return h + key, (h, key)

    return Case(step, lambda n: (leaf(n, HIDDEN), leaf(n, HIDDEN)))


def _only_passed_through():
    return Case(lambda x, s: (x * s, s), lambda n: leaf(n, FEATURES))


def _never_read():
    return Case(lambda x, s: (torch.exp(x), s), lambda n: leaf(n, FEATURES))


def _shifted_input():
    return Case(lambda x, before: (x - before, x), lambda n: leaf(n, FEATURES))


def _shifted_twice():
    def step(x, state):
        one, two = state
        return torch.stack([x, one, two], -1), (x, one)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, FEATURES)))


def _delay_line_never_read():
    return Case(lambda x, s: (x * 2, (x, s[0], s[2])), lambda n: tuple(leaf(n, FEATURES) for _ in range(3)))


def _constant_handed_to_another():
    return Case(lambda x, s: (x * 2, (s[0], s[0])), lambda n: tuple(leaf(n, FEATURES) for _ in range(2)))


def _shift_of_a_map():
    (w,) = weights((FEATURES, HIDDEN))

    def step(x, before):
        now = torch.tanh(x @ w)
        return now * before, now

    return Case(step, lambda n: leaf(n, HIDDEN))


def _shift_into_a_scan():
    """A convolution of the last two inputs feeds a recurrence: its state of inputs turns in no loop."""
    w, u = weights((2 * FEATURES, HIDDEN), (HIDDEN, HIDDEN))

    def step(x, state):
        h, before = state
        h = torch.tanh(torch.cat([x, before], -1) @ w + h @ u)
        return h, (h, x)

    return Case(step, lambda n: (leaf(n, HIDDEN), leaf(n, FEATURES)))


def _memories_of_nothing():
    """Products with no rows, no columns and nothing to sum over."""

    def step(x, state):
        h, rows, columns = state  # [0, F], [F, 0]
        h = torch.tanh(h + x)
        scores = torch.einsum("nmf,nf->nm", rows, h).softmax(1)
        read = torch.einsum("nm,nmf->nf", scores, rows) + torch.bmm(columns, rows).sum(1)
        return h + read + torch.bmm(rows, columns).sum((1, 2))[:, None], (h, rows, columns * 2)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, 0, FEATURES), leaf(n, FEATURES, 0)))


def _state_is_y():
    return Case(lambda x, s: (s, s + x), lambda n: leaf(n, FEATURES))


def _new_state_is_y():
    def step(x, s):
        s = torch.tanh(s + x)
        return s, s

    return Case(step, lambda n: leaf(n, FEATURES))


def _y_twice():
    def step(x, s):
        s = torch.tanh(s + x)
        return (s, s, x), s

    return Case(step, lambda n: leaf(n, FEATURES))


def _two_states_one_tensor():
    def step(x, state):
        new = torch.tanh(x + state[0] * state[1])
        return new, (new, new)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, FEATURES)))


def _two_states_one_product():
    (w,) = weights((FEATURES, FEATURES))

    def step(x, state):
        new = (state[0] * state[1]) @ w
        return x + new, (new, new, torch.sin(state[2]) + new)

    return Case(step, lambda n: (leaf(n, FEATURES), leaf(n, FEATURES), leaf(n, FEATURES)))


def _boot_shared_by_two():
    def shared(n):
        h = leaf(n, FEATURES)
        return h, h

    def step(x, state):
        a, b = state
        return a + b, (torch.tanh(a + x), b * 0.9)

    return Case(step, shared)


def _without_a_state():
    w = weights((FEATURES, HIDDEN))[0]
    return Case(lambda x, s: (torch.relu(x @ w), ()), lambda n: ())


def _without_a_y():
    return Case(lambda x, s: ((), torch.tanh(s + x)), lambda n: leaf(n, FEATURES))


def _y_free_of_the_state():
    (w,) = weights((FEATURES, HIDDEN))
    return Case(lambda x, s: (x @ w, s * 0.5 + x.sum(-1, keepdim=True)), lambda n: leaf(n, HIDDEN))


def _y_is_x():
    return Case(lambda x, s: (x, s + 1), lambda n: leaf(n, 2))


def _state_is_reset():
    return Case(lambda x, s: (s + x, torch.zeros_like(s)), lambda n: leaf(n, FEATURES))


def _state_is_constant():
    return Case(lambda x, s: (s * x, torch.full_like(s, 0.5)), lambda n: leaf(n, FEATURES))


def _one_number_a_row():
    def step(x, s):
        s = s * 0.9 + x.sum(-1)
        return s, s

    return Case(step, lambda n: leaf(n))


def _one_column():
    def step(x, s):
        s = torch.tanh(s + x.mean(-1, keepdim=True))
        return s, s

    return Case(step, lambda n: leaf(n, 1))


def _one_number_and_a_column():
    def step(x, state):
        a, b = state
        a = torch.sigmoid(a + b[:, 0] * x)
        return a, (a, b * 0.5 + a[:, None])

    return Case(step, lambda n: (leaf(n), leaf(n, 1)), features=())


def _matrix_state():
    w = weights((4, 4))[0]

    def step(x, s):
        s = torch.tanh(s @ w + x[:, None, :])
        return s.sum(1), s

    return Case(step, lambda n: leaf(n, 3, 4), features=(4,))


def _matrix_memory():
    """A linear attention: an outer product is added to the state, and read by a product of rows."""
    q, k = weights((FEATURES, 4), (FEATURES, 4))

    def step(x, s):
        s = s + (x @ k)[:, :, None] * x[:, None, :]
        return torch.einsum("nkd,nk->nd", s, x @ q), s

    return Case(step, lambda n: leaf(n, 4, FEATURES))


def _states_of_several_ranks():
    def step(x, state):
        a, b, c = state
        a = a + x.sum((-1, -2))
        b = torch.tanh(b + x.sum(-1) * a[:, None])
        c = c * 0.5 + x * b[..., None]
        return c, (a, b, c)

    return Case(step, lambda n: (leaf(n), leaf(n, 2), leaf(n, 2, 3)), features=(2, 3))


def _embedding():
    table, u = weights((7, HIDDEN), (HIDDEN, HIDDEN))

    def step(x, h):
        h = torch.tanh(torch.nn.functional.embedding(x, table) + h @ u)
        return h, h

    return Case(step, lambda n: leaf(n, HIDDEN), x=lambda rows: torch.randint(7, (rows,)))


def _embedding_and_numbers():
    table, u = weights((7, HIDDEN), (HIDDEN, HIDDEN))

    def step(x, h):
        word, number = x
        h = torch.tanh(torch.nn.functional.embedding(word, table, padding_idx=2) + number * (h @ u))
        return h, h

    return Case(
        step, lambda n: leaf(n, HIDDEN), x=lambda rows: (torch.randint(7, (rows,)), leaf(rows, HIDDEN))
    )


def _int_state():
    """A count beside a float state; it has no gradient."""

    def step(x, state):
        h, count = state
        count = count + 1
        h = torch.tanh(h + x / count[:, None])
        return h, (h, count)

    return Case(step, lambda n: (leaf(n, FEATURES), torch.zeros(n, dtype=torch.int64)))


def _bool_state():
    def step(x, state):
        h, seen = state
        seen = seen | (x > 1)
        h = torch.where(seen, h, h + x)
        return h, (h, seen)

    return Case(step, lambda n: (leaf(n, FEATURES), torch.zeros(n, FEATURES, dtype=torch.bool)))


def _no_features():
    def step(x, s):
        s = torch.tanh(s + x)
        return s, s

    return Case(step, lambda n: leaf(n), features=())


def _wide_and_narrow():
    wide, narrow, back = weights((1, 9), (9, 1), (9, 9))

    def step(x, h):
        h = torch.tanh(x @ wide + h @ back)
        return h @ narrow, h

    return Case(step, lambda n: leaf(n, 9), features=(1,))


MAKERS = {
    name[1:].replace("_", " "): make
    for name, make in list(globals().items())
    if name.startswith("_") and not name.startswith("__") and callable(make)
}
# Steps that generated C has to write in a way of its own; the others are like one of these.
WRITTEN = {
    "tuple of three", "dicts", "swap", "rotation of three", "passed through", "shift into a scan",
    "state is y", "y twice", "two states one tensor", "boot shared by two", "without a y",
    "two states one product",
    "one number a row", "one column", "one number and a column", "states of several ranks", "embedding",
    "bool state", "int state", "wide and narrow", "shifted input", "without a state", "state is reset",
    "matrix state", "matrix memory", "memories of nothing",
}  # fmt: skip
# Those whose loop as a whole has an odd form; for C the others stand side by side in one step: one build.
ALONE = {"state is y", "without a y", "without a state"}
CASES = [(backend, name) for name in MAKERS for backend in BACKENDS if backend != "c" or name in ALONE]
TOGETHER = sorted(WRITTEN - ALONE)
_cases = {}


def case_of(name):
    return _cases.setdefault(name, MAKERS[name]())


def cut(rows, lengths):
    """A nesting of tables of rows as one of LoDTensors."""
    if isinstance(rows, dict):
        return {k: cut(v, lengths) for k, v in rows.items()}
    if isinstance(rows, (list, tuple)):
        parts = [cut(v, lengths) for v in rows]
        return type(rows)(*parts) if hasattr(rows, "_fields") else type(rows)(parts)
    return LoDTensor.from_lengths(rows, [list(lengths)])


RAGGED = [(*case, pattern) for case in CASES for pattern in PATTERNS]
IN_TURN = [(*case, PATTERNS[(i + i // 4) % 4]) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(
    ("backend", "name", "pattern"),
    few(RAGGED, [*((*case, PATTERNS[0]) for case in CASES if case[0] != "naive"), *IN_TURN]),
    ids=["-".join(case) for case in RAGGED],
)
def test_ragged(backend, name, pattern):
    case, lengths = case_of(name), LENGTHS[pattern]
    x, state = cut(case.x(sum(lengths)), lengths), case.state(len(lengths))
    check_step(case.step, x, state, backend=backend, reverse=pattern == "one row")


@pytest.mark.covering(1)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("names", [TOGETHER[at::3] for at in range(3)], ids=", ".join)
def test_ragged_side_by_side_in_c(names, pattern):
    cases, lengths = {name: case_of(name) for name in names}, LENGTHS[pattern]
    steps = {name: case.step for name, case in cases.items()}

    def side_by_side(x, states):
        pairs = {name: step(x[name], states[name]) for name, step in steps.items()}
        return {name: y for name, (y, _) in pairs.items()}, {name: new for name, (_, new) in pairs.items()}

    x = cut({name: case.x(sum(lengths)) for name, case in cases.items()}, lengths)
    state = {name: case.state(len(lengths)) for name, case in cases.items()}
    weights = {f"{n} {k}": w for n, step in steps.items() for k, w in closed_over(step).items()}
    check_step(side_by_side, x, state, weights=weights, backend="c", reverse=pattern == "one row")


def closed_over(step):
    """The weights in a step's closure, by name."""
    found = inspect.getclosurevars(step).nonlocals
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["dicts", "matrix state", "one number a row", "swap", "shifted input"])
def test_dense(backend, name):
    case = case_of(name)
    x = case.x(6)

    def steps(rows):
        return {k: steps(v) for k, v in rows.items()} if isinstance(rows, dict) else rows.unflatten(0, (3, 2))

    check_step(case.step, steps(x), case.state(2), backend=backend, reverse=True)


def test_regions_of_a_state_that_turns_in_no_loop():
    """What only looks like a recurrence runs once, on all rows."""
    for name in ("shifted input", "shifted twice", "shift of a map", "only passed through", "never read"):
        case = case_of(name)
        plan = plan_of(case.step, cut(case.x(3), [1, 2]), case.state(2))
        assert not ops(plan.forward, "scan"), name
        assert not ops(plan.backward, "scan"), name
        # what is the same at every step gets a gradient from every step
        assert ("sum_steps" in ops(plan.backward, "map")) == (name == "only passed through"), name
    case = case_of("shift into a scan")
    plan = plan_of(case.step, cut(case.x(3), [1, 2]), case.state(2))
    assert ops(plan.forward, "scan").count("matmul") == 1
    assert "shift" in ops(plan.forward, "map")


def test_cheap_ops_that_two_scans_read_run_in_the_first():
    u, v = weights((4, 4), (4, 4))

    def step(x, state):
        g, h = state
        of_x = x * x - x
        g = torch.tanh(g @ u + of_x)
        h = torch.tanh(h @ v + g * of_x)
        return h, (g, h)

    x, state = cut(torch.randn(3, 4).to(u), [1, 2]), (u.new_zeros(2, 4), u.new_zeros(2, 4))
    forward = plan_of(step, x, state, backend="c").forward
    first, second = [region for region in forward.regions if region.kind == "scan"]
    assert not ops(forward, "map")
    assert "sub" in [node.op for node in first.nodes]
    assert "sub" not in [node.op for node in second.nodes]


@pytest.mark.parametrize(
    "keys",
    every(
        2,
        [
            ["h", "h_next", "h_boot", "h_final", "h_rows", "h_line", "h_at", "h_copy0"],
            ["a b", "a_b", "a-b", "a*/b", "ü", '"x"', "'q'", "a\nb", "int", "t"],
        ],
    ),
    ids=["like those of generated code", "odd characters"],
)
def test_names_of_any_kind(keys):
    """Keys of a user's dict become names in printed graphs and in C; no two of them may meet there."""
    w = dict(zip(keys, weights(*[(4, 4)] * len(keys)), strict=True))

    def step(x, state):
        new = {}
        for before, key in zip((keys[-1], *keys), keys, strict=False):
            z = state[key] @ w[key] + x + state[before]
            new[key] = torch.tanh(z - z.mean(-1, keepdim=True))
        return {key: value * 2 for key, value in new.items()}, new

    lengths = [2, 0, 3]
    x = LoDTensor.from_lengths(leaf(5, 4), [lengths])
    check_step(step, x, {key: leaf(3, 4) for key in keys}, weights=w, backend="c")
