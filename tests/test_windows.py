"""`checkpoint=` and `detach_every=`: values and gradients of the loop by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import pack_sequence

import stepnet
from covering import examples, few
from outcomes import gradients
from stepnet import LoDTensor, Recurrent, Resets, cells, recurrent
from stepnet import windows as file
from stepnet.data import windows as data_windows
from stepnet.data.windows import Joined
from stepnet.errors import LoDError, StepError

DTYPE = torch.float64
F, H = 2, 3
CLOSE = {"rtol": 0, "atol": 1e-10}
CELL = cells.LSTM(F, H, dtype=DTYPE)
BACKENDS = ["naive", "eager", "c"]


def by_hand(sequences, state, every, reverse):
    """Cut states every so many steps, a sequence at a time; None cuts none."""
    ys, finals = [], []
    for b, rows in enumerate(sequences):
        s, y = tuple(leaf[b : b + 1] for leaf in state), [None] * len(rows)
        for k, t in enumerate(reversed(range(len(rows))) if reverse else range(len(rows))):
            if every and k and k % every == 0:
                s = tuple(leaf.detach() for leaf in s)
            y[t], s = CELL(rows[t : t + 1], s)
        ys += y
        finals.append(s)
    empty = torch.zeros(0, H, dtype=DTYPE)
    return torch.cat([empty, *ys]), *(torch.cat([empty, *leaves]) for leaves in zip(*finals, strict=True))


def inputs(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape):
        return torch.randn(*shape, dtype=DTYPE, generator=generator).requires_grad_()

    return leaf(sum(lengths), F), (leaf(len(lengths), H), leaf(len(lengths), H))


def check(out, expected, leaves):
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(
        gradients(out, leaves, retain_graph=True), gradients(expected, leaves), **CLOSE
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_law(backend):
    @settings(max_examples=examples(25))
    @given(
        st.lists(st.integers(0, 7), min_size=1, max_size=4),
        st.integers(1, 8),
        st.sampled_from(["checkpoint", "detach_every", "both"]),
        st.booleans(),
    )
    def law(lengths, size, how, reverse):
        rows, state = inputs(lengths)
        x = LoDTensor.from_lengths(rows, [lengths])
        asked = {"checkpoint": size, "detach_every": size} if how == "both" else {how: size}
        if how == "both":
            asked["checkpoint"] = 2
        y, final = recurrent(CELL, x, state, reverse=reverse, backend=backend, **asked)
        expected = by_hand(list(x), state, asked.get("detach_every"), reverse)
        check((y.values, *final), expected, [rows, *state, *CELL.parameters()])

    law()


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "asked", [{"checkpoint": 2}, {"detach_every": 2}, {"checkpoint": 1, "detach_every": 2}]
)
@pytest.mark.parametrize("backend", few(["naive", "eager", "c"], ["naive"]))
def test_tangents(backend, asked):
    """Those of the loop by hand, along the rows and the states: what is detached has none."""
    lengths = [5, 0, 3]
    rows, state = (leaf for leaf in inputs(lengths))
    with forward_ad.dual_level():
        given, *h = (forward_ad.make_dual(leaf.detach(), torch.ones_like(leaf)) for leaf in (rows, *state))
        x, h = LoDTensor.from_lengths(given, [lengths]), tuple(h)
        y, final = recurrent(CELL, x, h, backend=backend, **asked)
        expected = by_hand(list(x), h, asked.get("detach_every"), False)
        for found, wanted in zip((y.values, *final), expected, strict=True):
            found, wanted = (forward_ad.unpack_dual(t).tangent for t in (found, wanted))
            torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("how", ["checkpoint", "detach_every"])
@pytest.mark.parametrize("kind", ["tensor", "axis 1", "packed", "reset", "inner level", "outer level"])
def test_all_that_a_recurrence_takes(kind, how):
    """In one window, and in several: the same values, and for a checkpoint the same gradients."""
    rows, state = inputs([12])
    options = {"state": tuple(leaf.expand(4, H) for leaf in state)}
    if kind == "tensor":
        x = rows.view(3, 4, F)
    elif kind == "axis 1":
        x, options["axis"] = rows.view(4, 3, F), 1
    elif kind == "packed":
        x = pack_sequence(list(rows.split([4, 1, 5, 2])), enforce_sorted=False)
    elif kind == "reset":
        x = LoDTensor(rows, [[0, 5, 5, 6, 12]])
        options["resets"] = Resets(done=torch.arange(12) % 5 == 3)
    elif kind == "inner level":
        x = LoDTensor(rows, [[0, 2, 4], [0, 5, 5, 6, 12]])
    else:
        x = LoDTensor(rows, [[0, 3, 3, 4, 6], [0, 2, 5, 5, 6, 10, 12]])
        options["level"] = 0

    def step(x_t, s):
        return CELL(stepnet.sequence_pool(x_t, "sum"), s)

    run = step if kind == "outer level" else CELL
    plain, cut = (recurrent(run, x, **options, **more) for more in ({}, {how: 2}))
    outs = [[y if isinstance(y, torch.Tensor) else (y.data if kind == "packed" else y.values), *s]
            for y, s in (plain, cut)]  # fmt: skip
    assert type(plain[0]) is type(cut[0])
    if isinstance(plain[0], LoDTensor):
        assert plain[0].recursive_sequence_lengths() == cut[0].recursive_sequence_lengths()
    if how == "checkpoint":
        check(outs[1], outs[0], [rows, *state, *CELL.parameters()])
    else:
        torch.testing.assert_close(*outs, **CLOSE)


@pytest.mark.parametrize("how", ["checkpoint", "detach_every"])
def test_what_all_steps_see_and_steps_without_input(how):
    memory = torch.randn(2, H, dtype=DTYPE, requires_grad=True)
    h = torch.randn(2, H, dtype=DTYPE, requires_grad=True)

    def step(x, h, m):
        h = torch.tanh(h + m + (0 if x is None else x))
        return h, h

    x = LoDTensor(torch.randn(7, H, dtype=DTYPE), [[0, 5, 7]])
    for asked in ({"x": x}, {"steps": 5}, {"steps": [5, 2]}):
        plain, cut = (recurrent(step, state=h, static=memory, **asked, **more) for more in ({}, {how: 2}))
        values = [[getattr(y, "values", y) if isinstance(y, LoDTensor) else y, s] for y, s in (plain, cut)]
        if how == "checkpoint":
            check(values[1], values[0], [h, memory])
        else:
            torch.testing.assert_close(*values, **CLOSE)
            assert (
                gradients(values[1], [memory], retain_graph=True)[0].abs().sum() > 0
            )  # a memory is no state


def test_the_first_call_of_a_cell():
    """It checks its plan against the plain loop, inside what is computed again."""
    cell = cells.GRU(F, 5, dtype=DTYPE)
    x = torch.randn(9, 2, F, dtype=DTYPE, requires_grad=True)
    y, _ = recurrent(cell, x, checkpoint=4, backend="c")
    expected, _ = recurrent(cell, x, backend="naive")
    check([y], [expected], [x, *cell.parameters()])


def test_noise_is_drawn_once():
    """Backward computes with the noise that forward drew."""

    def step(x, s):
        s = torch.dropout(s + x, 0.5, True)
        return s, s

    x = torch.rand(20, 3, 4, dtype=DTYPE).add(0.5).requires_grad_()
    y, _ = recurrent(step, x, torch.zeros(3, 4, dtype=DTYPE), checkpoint=4)
    (grad,) = torch.autograd.grad(y[-1].sum(), x)
    kept = (y != 0).flip(0).cumprod(0).flip(0).bool()  # until the end, from here on
    powers = 2.0 ** torch.arange(20, 0, -1, dtype=DTYPE)[:, None, None]
    torch.testing.assert_close(grad, torch.where(kept, powers, 0.0))


def test_a_weight_changed_before_backward_is_an_error():
    cell, x = cells.GRU(F, H, dtype=DTYPE), torch.randn(9, 2, F, dtype=DTYPE)
    y, _ = recurrent(cell, x, checkpoint=4)
    with torch.no_grad():
        cell.weight_ih.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_twice_and_of_a_gradient():
    rows, state = inputs([6, 3])
    x = LoDTensor.from_lengths(rows, [[6, 3]])
    grads = []
    for more in ({}, {"checkpoint": 2}):
        y, _ = recurrent(CELL, x, state, backend="naive", **more)
        loss = (y.values**2).sum()
        first = torch.autograd.grad(loss, rows, retain_graph=True)[0]
        again = torch.autograd.grad(loss, rows, create_graph=True)[0]
        second = torch.autograd.grad(again.square().sum(), [rows, *CELL.parameters()])
        grads.append([first, again, *second])
    torch.testing.assert_close(*grads, **CLOSE)


def test_what_is_kept():
    """Forward keeps the inputs, the states between windows, and results; not the gates."""
    cell, x = cells.LSTM(4, 8), torch.randn(600, 2, 4)

    def kept(**more):
        numbers = []

        def keep(tensor):
            numbers.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            recurrent(cell, x, **more)
        return sum(numbers)

    assert kept(checkpoint=50) < kept() / 4


def test_copies_of_rows_are_let_go(monkeypatch):
    """The windows of several sequences are copies of x: backward copies them again, from x as it was."""
    copies, rows_in = [], data_windows.rows_in

    def noted(*how):
        part = rows_in(*how)
        copies.append(weakref.ref(part))
        return part

    monkeypatch.setattr(data_windows, "rows_in", noted)
    rows = torch.randn(90, F, dtype=DTYPE)
    for _ in range(6):  # the first calls go the long way
        copies.clear()
        y, _ = recurrent(CELL, LoDTensor(rows, [[0, 50, 90]]), checkpoint=5)
    gc.collect()
    assert len(copies) == 10
    assert sum(copy() is not None for copy in copies) == 1  # that of the last window
    rows.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.values.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("after", ["nothing", "y.mul_(3)", "y[4:6] = 0", "final", "twice"])
def test_outputs_that_are_there_are_states(monkeypatch, after, backend):
    """The second run takes rows of y for the states that they are, unless somebody wrote to them by then, or
    no gradient comes in for them."""
    found, rows = [], data_windows.Standing.rows

    def noted(self):
        found.append(rows(self))
        return found[-1]

    monkeypatch.setattr(data_windows.Standing, "rows", noted)
    x, state = inputs([9])
    state = tuple(state)

    def grads(**more):
        y, final = recurrent(CELL, x[:, None], state, backend=backend, **more)
        loss = final[1].sum() if after == "final" else (y * 1).sin().sum()
        if after == "twice":
            loss.backward(retain_graph=True)
            loss, y = final[1].sum(), y.detach().mul_(2)
        elif "y" in after:
            with torch.no_grad():
                exec(after)
        return gradients([loss], [x, *state, *CELL.parameters()])

    torch.testing.assert_close(grads(checkpoint=2), grads(), **CLOSE)
    known = [each is not None for each in found]
    assert (
        known
        == {"nothing": [True] * 4, "twice": [True] * 4 + [False] * 4}.get(after, [False] * 4)[-len(known) :]
    )
    assert len(known) == (8 if after == "twice" else 4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_last_window_is_run_once(ragged, reverse):
    ran = []

    def step(x, s):
        ran.append(len(x))
        return x * s, torch.sin(s + x)

    x = torch.randn(10, 2, dtype=DTYPE)
    x = LoDTensor(x, [[0, 7, 10]]) if ragged else x[:, None]
    state = torch.ones(2 if ragged else 1, 2, dtype=DTYPE, requires_grad=True)
    y, _ = recurrent(step, x, state, checkpoint=3, reverse=reverse, backend="naive")
    steps = len(ran)
    (y.values if ragged else y).sum().backward()
    assert steps == (7 if ragged else 10)
    assert len(ran) == steps + (4 if ragged else 7)  # windows of 1, 3 and 3 steps; of 1, 3, 3 and 3


@pytest.mark.exhaustive
def test_a_number_of_steps_near_the_root(monkeypatch):
    sizes, windows = [], file.windows

    def noted(offsets, size, *how, **more):
        sizes.append(size)
        return windows(offsets, size, *how, **more)

    monkeypatch.setattr(file, "windows", noted)
    large, small = torch.zeros(1, 1 << 16), torch.zeros(1, 16)
    for state, rows in ((large, 2500), (small, 2500), (small, 20_000), (small, 2_400_000)):
        x = LoDTensor(torch.zeros(rows, 1), [[0, rows]])
        recurrent(lambda x, s: (x, s * 2), x, state.requires_grad_(), checkpoint=True)
    assert sizes == [25, 1 << 14, 2_400_000 // 128]  # half the root; 16384 rows, or a 128th, of few numbers


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_results_of_windows_are_let_go(monkeypatch, ragged, reverse):
    """Only the table that they are joined to stays: a million rows are there once. Memory that windows of
    another size were made in is forgotten, both ways."""
    parts, add, turns = [], file.Joined.add, []
    monkeypatch.setattr(data_windows, "forget_older", lambda: turns.append(1))
    monkeypatch.setattr(data_windows, "_LARGE", 0)

    def noted(self, part, place, made):
        parts.append(weakref.ref(part))
        add(self, part, place, made)

    monkeypatch.setattr(file.Joined, "add", noted)
    x = torch.randn(20, F, dtype=DTYPE)
    x = LoDTensor(x, [[0, 13, 13, 20]]) if ragged else x[:, None]
    y, _ = recurrent(CELL, x, checkpoint=3, reverse=reverse)
    gc.collect()
    assert len(parts) == len(turns) == (5 if ragged else 7)
    assert not any(part() is not None for part in parts)
    plain, _ = recurrent(CELL, x, reverse=reverse)
    y, plain = (y.values, plain.values) if ragged else (y, plain)
    check([y], [plain], list(CELL.parameters()))
    assert len(turns) == 2 * len(parts)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("indices", [False, True], ids=["slices", "indices"])
def test_joined_is_cat(axis, indices):
    """Values, gradients and their gradients."""
    sizes = [2, 0, 3]
    spans = [(0, 2), (2, 0), (2, 3)]
    places = torch.tensor([3, 0, 4, 1, 2]).split(sizes) if indices else spans
    order = torch.tensor([3, 0, 4, 1, 2]).argsort() if indices else torch.arange(5)

    def joined(*parts):
        whole = Joined(5, axis)
        for part, place in zip(parts, places, strict=True):
            whole.add(part * part, place)
        return whole.whole()

    def cat(*parts):
        return torch.cat([part * part for part in parts], axis).index_select(axis, order)

    shapes = [(n, 2) if axis == 0 else (2, n) for n in sizes]
    parts = [torch.randn(*shape, dtype=DTYPE, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(joined(*parts), cat(*parts), rtol=0, atol=0)
    found = []
    for join in (joined, cat):
        first = torch.autograd.grad(join(*parts).pow(3).sum(), parts, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.sin().sum() for g in first), parts)])
    torch.testing.assert_close(*found, **CLOSE)


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["checkpoint", "detach_every"])
def test_modes(mode, how):
    cell, x = cells.GRU(F, H), torch.randn(7, 2, F)
    with MODES[mode]():
        plain, cut = recurrent(cell, x)[0], recurrent(cell, x, **{how: 3})[0]
    torch.testing.assert_close(cut, plain)
    if mode == "autocast":
        if how == "checkpoint":
            grads = [torch.autograd.grad(y.sum(), list(cell.parameters())) for y in (plain, cut)]
            torch.testing.assert_close(*grads, rtol=0.05, atol=0.05)
    else:
        assert not cut.requires_grad


@pytest.mark.parametrize("how", ["checkpoint", "detach_every"])
def test_functional_gradients(how):
    x = torch.randn(5, 2, F, dtype=DTYPE)

    def loss(x, **more):
        return (recurrent(CELL, x, backend="naive", **more)[0] ** 2).sum()

    if how == "checkpoint":
        got = torch.func.grad(lambda x: loss(x, checkpoint=2))(x)
        torch.testing.assert_close(got, torch.func.grad(loss)(x), **CLOSE)
    else:
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf, detach_every=2), leaf)
        torch.testing.assert_close(torch.func.grad(lambda x: loss(x, detach_every=2))(x), expected, **CLOSE)


@pytest.mark.parametrize("how", ["checkpoint", "detach_every"])
def test_no_sequences_and_no_rows(how):
    none = torch.zeros(0, F, dtype=DTYPE)
    for x in (LoDTensor(none, [[0]]), LoDTensor(none, [[0, 0]])):
        y, (h, _) = recurrent(CELL, x, **{how: 2})
        assert y.values.shape == (0, H)
        assert h.shape == (len(x), H)
    y, _ = recurrent(CELL, torch.zeros(0, 2, F, dtype=DTYPE), **{how: 2})
    assert y.shape == (0, 2, H)


def test_as_a_module():
    module = Recurrent(nn.GRUCell(F, H), checkpoint=3, detach_every=6).to(DTYPE)
    assert "checkpoint=3, detach_every=6" in repr(module)
    x = torch.randn(14, 2, F, dtype=DTYPE, requires_grad=True)
    (grad,) = torch.autograd.grad(module(x)[0][-1].sum(), x)
    assert grad[:12].abs().sum() == 0
    assert grad[12:].abs().sum() > 0


WRONG = {
    "checkpoint": ({"checkpoint": 0}, StepError, "'checkpoint' must be None, True, or a number"),
    "detach_every": ({"detach_every": True}, StepError, "'detach_every' must be None or a number"),
    "scopes": ({"checkpoint": 2, "scopes": True}, StepError, "scopes=True cannot be joined"),
    "lengths": ({"x": 1, "checkpoint": 2}, LoDError, "lengths"),
    "mixed": ({"x": 2, "checkpoint": 2}, StepError, "x must be tensors, or all LoDTensors"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name):
    more, kind, text = WRONG[name]
    a, b = (LoDTensor.from_lengths(torch.zeros(4, 1), [n]) for n in ([3, 1], [2, 2]))
    x = {1: (a, b), 2: (a, torch.zeros(4, 1))}.get(more.get("x"), a)
    more = {k: v for k, v in more.items() if k != "x"}
    with pytest.raises(kind, match=text):
        recurrent(lambda x, s: (s, s), x, torch.zeros(2, 1, requires_grad=True), **more)


def test_a_generator_of_the_step_draws_the_same_again():
    generator = torch.Generator()

    def step(x, s):
        s = torch.tanh(s + x) * torch.rand(x.shape[0], H, dtype=DTYPE, generator=generator)
        return s, s

    x = torch.randn(7, 2, H, dtype=DTYPE, requires_grad=True)
    for backend in ("naive", "c"):
        found = []
        for more in ({}, {"checkpoint": 7}, {"checkpoint": 3}):
            generator.manual_seed(1)
            y, _ = recurrent(step, x, torch.zeros(2, H, dtype=DTYPE), backend=backend, **more)
            after = generator.get_state()
            found += [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)]
            assert torch.equal(generator.get_state(), after)
        torch.testing.assert_close(found[1], found[3], **CLOSE)
        torch.testing.assert_close(found[4], found[5], **CLOSE)
        with torch.no_grad():  # of the noise that was drawn, by small steps
            near = [x + sign * 1e-6 for sign in (1, -1)]
            ends = []
            for rows in near:
                generator.manual_seed(1)
                parts, s = [], torch.zeros(2, H, dtype=DTYPE)
                for part in rows.split(3):
                    y, s = recurrent(step, part, s, backend=backend)
                    parts.append(y.sum())
                ends.append(sum(parts))
        torch.testing.assert_close(found[4].sum(), (ends[0] - ends[1]) / 2e-6, rtol=0, atol=1e-6)


def test_a_recurrence_inside_a_step_over_an_outer_level():
    """It runs once for all steps of a window, also when the window is computed again."""

    def inner(x, h):
        h = torch.tanh(x + h)
        return h, h

    def outer(x, s):
        y, _ = recurrent(inner, x, torch.zeros(len(x), F, dtype=DTYPE))
        s = torch.tanh(s + stepnet.sequence_pool(y, "sum"))
        return s, s

    rows = torch.randn(12, F, dtype=DTYPE, requires_grad=True)
    x = LoDTensor(rows, [[0, 3, 3, 4, 6], [0, 2, 5, 5, 6, 10, 12]])
    outs = []
    for more in ({}, {"checkpoint": 2}):
        y, final = recurrent(outer, x, torch.zeros(4, F, dtype=DTYPE), level=0, **more)
        outs.append([y.values, final])
    check(outs[1], outs[0], [rows])


class Mixed(nn.Module):
    """Results of one shape: from the loop, from all rows at once, and a state of two rows' size."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = cells.GRU(F, H, dtype=DTYPE), nn.Linear(H, H, dtype=DTYPE)

    def forward(self, x, h):
        y, h = self.cell(x, h)
        return {"head": torch.tanh(self.head(y)), "y": y, "wide": torch.cat([y, y * y], -1)}, h

    def initial_state(self, n):
        return self.cell.initial_state(n)


MIXED = Mixed()


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["dense", "batch first", "one sequence", "ragged"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_are_written_where_they_lie(kind, backend):
    """Whatever makes a result; callers may write to it, and go back twice."""

    @settings(max_examples=examples(6))
    @given(st.integers(1, 5), st.integers(1, 4), st.booleans())
    @example(5, 1, False)  # one window of ragged ones
    def law(size, n, reverse):
        rows = torch.randn(7 * n, F, dtype=DTYPE, requires_grad=True)
        options = {"reverse": reverse, "backend": backend}
        longest = 7
        if kind == "ragged":
            lengths = [7] * (n - 1) + [0, 5, 2]
            x, longest = LoDTensor.from_lengths(rows, [lengths]), max(lengths)
        else:
            n = 1 if kind == "one sequence" else n
            options["axis"] = int(kind == "batch first")
            x = rows[: 7 * n].view(n, 7, F) if kind == "batch first" else rows[: 7 * n].view(7, n, F)
        found = []
        for checkpoint in (size, None):
            y, h = recurrent(MIXED, x, checkpoint=checkpoint, **options)
            leaves = [leaf.values if kind == "ragged" else leaf for leaf in y.values()]
            kept = [leaf.detach().clone() for leaf in (*leaves, h)]
            seeds = [leaf.cos() for leaf in kept]
            if checkpoint and size < longest:  # else backward reads them, which torch tells
                with torch.no_grad():
                    for leaf in leaves:
                        leaf.fill_(9)
            for again in (True, False):
                grads = torch.autograd.grad(
                    [*leaves, h], [rows, *MIXED.parameters()], seeds, retain_graph=again
                )
                found.append([*kept, *grads])
        for other in found[1:]:
            torch.testing.assert_close(found[0], other, **CLOSE)

    law()


def test_a_window_is_made_in_the_table(monkeypatch):
    """From the second on, and all that it lets go in memory of the one before."""
    made, add = [], file.Joined.add

    def noted(self, part, place, rows):
        made.append(part.data_ptr() == self.lent != 0)
        add(self, part, place, rows)

    x = torch.randn(20, 1, F, dtype=DTYPE)
    recurrent(CELL, x, checkpoint=6, backend="c")  # the first call is checked on a few rows
    monkeypatch.setattr(file.Joined, "add", noted)
    recurrent(CELL, x, checkpoint=6, backend="c")
    assert made == [False, True, True, False]  # backward begins with the last one, and keeps it
    recurrent(CELL, LoDTensor(x[:, 0], [[0, 7, 20]]), checkpoint=6, backend="c")
    assert made[4:] == [False, True, False]


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("backend", ["naive", "auto"])
def test_a_step_that_gives_other_numbers_when_it_is_computed_again(backend):
    """Of what it keeps no gradient is asked, so torch's own check sees nothing; counting alone is right."""
    kept = [torch.zeros(2, dtype=DTYPE)]

    def step(x, s):
        kept.append((kept[-1] + x).detach())
        return x * (kept[-1] if keeps else 1), s

    x, s = torch.randn(10, 2, dtype=DTYPE, requires_grad=True), torch.zeros(1, 2, dtype=DTYPE)
    keeps = False
    recurrent(step, x[:, None], s, checkpoint=3, backend=backend)[0].sum().backward()
    keeps = True
    y, _ = recurrent(step, x[:, None], s, checkpoint=3, backend=backend)
    with pytest.raises(StepError, match="other numbers when it is computed again"):
        y.sum().backward()
