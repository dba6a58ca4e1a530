"""The laws that the design stands on, for random bodies and for known cells.

fission     post(core(pre(x))) == body(x), for every body
layout      a batch of sequences == each sequence alone (the oracle of every other test)
order       sequences in another order give the same results in that order
parts       a sequence in two parts, the state handed on == the whole
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import examples, few
from plans import BACKENDS, entry_of
from stepnet import cells
from stepnet.api import recurrent
from stepnet.compiler.passes.fission import components, fission
from stepnet.data.lod import LoDTensor
from stepnet.executors.autograd import run_plan
from stepnet.executors.c.scan import CScan, build_all
from stepnet.executors.call import Call
from stepnet.executors.layout import Layout
from stepnet.executors.loop import PreparedLoop
from stepnet.executors.ready import Ready
from stepnet.executors.schedule.adopt import adopt
from stepnet.executors.torch_ops.eager_scan import EagerScan
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.executors.torch_ops.ops import bind
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import Carry, LoopPlan, Region
from stepnet.ir.verify import verify
from stepnet.testing import assert_close

DTYPE = torch.float64
H = 3
UNARY = ["tanh", "sigmoid", "neg", "sin"]
BINARY = ["add", "sub", "mul", "maximum"]


@st.composite
def bodies(draw, sums=False):
    """A random body on rows of 3 numbers (or 1), its carries, and what is wanted of it."""
    values = {}

    def value(name, kind, shape=(H,)):
        values[name] = Value(name, kind, shape, "float64")
        return name

    states = [value(f"s{i}", "row") for i in range(draw(st.sampled_from([1, 2, 3, 0, 4])))]
    rows = [value("x0", "row"), value("x1", "row"), *states]
    shared = [value("w0", "shared", (H, H)), value("b0", "shared")]
    parameters = (*rows, *shared)
    nodes, summed = [], []

    def emit(op, inputs, kind, shape, **attrs):
        name = value(f"v{len(values)}", kind, shape)
        nodes.append(Node(op, tuple(inputs), (name,), tuple(attrs.items())))
        {"row": rows, "shared": shared, "sum": summed}[kind].append(name)
        return name

    kinds = ["unary", "binary", "binary", "with shared", "matmul", "reduce", "flip", "slice", "shared"]
    kinds += ["sum_rows", "matmul_tn", "of sums"] if sums else []
    states_seen = iter(states)
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=4, max_size=16)):
        # the values made last, and every state once, so that little is left over
        a, b = draw(st.sampled_from(rows[-3:])), next(states_seen, None) or draw(st.sampled_from(rows))
        shape, other = values[a].shape, values[b].shape
        wide = max(shape, other)
        vectors = [n for n in shared if values[n].shape == (H,)]
        if kind == "unary":
            emit(draw(st.sampled_from(UNARY)), [a], "row", shape)
        elif kind == "binary":
            emit(draw(st.sampled_from(BINARY)), [a, b], "row", wide)
        elif kind == "with shared":
            emit(draw(st.sampled_from(BINARY)), [a, draw(st.sampled_from(vectors))], "row", (H,))
        elif kind == "shared":
            emit("tanh", [draw(st.sampled_from(vectors))], "shared", (H,))
        elif kind == "sum_rows":
            emit("sum_rows", [a], "sum", shape)
        elif kind == "matmul_tn":
            emit("matmul_tn", [a, b], "sum", (*shape, *other), batch=0)
        elif kind == "of sums" and summed:
            one = draw(st.sampled_from(summed))
            emit("neg", [one], "sum", values[one].shape)
        elif shape == (H,) and kind == "matmul":
            emit("matmul", [a, "w0"], "row", (H,))
        elif shape == (H,) and kind == "reduce":
            emit(draw(st.sampled_from(["sum", "amax"])), [a], "row", (1,), dims=(0,))
        elif shape == (H,) and kind == "flip":
            emit("flip", [a], "row", (H,), dims=(0,))
        elif shape == (H,) and kind == "slice":
            emit("slice", [a], "row", (1,), dim=0, start=1, end=2, step=1)
    whole = [n for n in rows if values[n].shape == (H,)]
    results = tuple(draw(st.sampled_from(whole[-5:])) for _ in states)
    y = tuple(dict.fromkeys([rows[-1], *draw(st.lists(st.sampled_from(rows), max_size=2))]))
    body = Graph("body", parameters, tuple(nodes), (*y, *results), values)
    needed = body.needed([*y, *results, *summed])
    body = body.with_nodes(needed)
    carries = tuple(Carry(s, r) for s, r in zip(states, results, strict=True))
    # what a region makes is wanted; a parameter that is asked for is at hand anyway
    return body, carries, (*(n for n in y if n not in ("x0", "x1")), *summed)


def by_definition(body, carries, wanted, values, states, lengths):
    """One sequence after the other, one step after the other, every node of the body."""
    shared = {n: values[n] for n in body.parameters if body.values[n].kind == "shared"}
    joins = {n.output for n in body.nodes if OPS[n.op].stage is Stage.ROWS}
    sums, last = {}, {c.parameter: [] for c in carries}
    rows = {name: [] for name in body.values if body.values[name].kind == "row"}
    runs = [(node, bind(body, node)) for node in body.nodes]
    start = 0
    for b, length in enumerate(lengths):
        carried = {c.parameter: states[c.parameter][b : b + 1] for c in carries}
        for t in range(start, start + length):
            at = {**shared, **carried}
            at |= {n: values[n][t : t + 1] for n in ("x0", "x1")}
            for node, call in runs:
                if body.values[node.output].kind != "sum" or node.output in joins:
                    at[node.output] = call(*(at[n] for n in node.inputs), rows=1)
            for name in joins:
                sums[name] = sums.get(name, 0) + at[name]
            for name, found in rows.items():
                if name in at:
                    found.append(at[name])
            carried = {c.parameter: at[c.result] for c in carries}
        start += length
        for name, value in carried.items():
            last[name].append(value)
    for node, call in runs:
        kind = body.values[node.output].kind
        if node.output in joins:
            sums.setdefault(node.output, torch.zeros(body.values[node.output].shape, dtype=DTYPE))
        elif kind == "sum":
            sums[node.output] = call(*(sums[n] for n in node.inputs), rows=0)
    empty = {n: torch.zeros(0, *body.values[n].shape, dtype=DTYPE) for n in rows}
    made = {n: torch.cat(v) if v else empty[n] for n, v in rows.items()} | sums
    return {n: made[n] for n in wanted}, {n: torch.cat(v) for n, v in last.items()}


LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def check_fission(case, lengths, fuse, executor):
    body, carries, wanted = case
    plan = fission(body, carries, wanted, fuse=fuse)
    verify(plan, "plan")
    generator = torch.Generator().manual_seed(1)
    rows = sum(lengths)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=DTYPE)

    values = {"x0": random(rows, H), "x1": random(rows, H), "w0": random(H, H) / 2, "b0": random(H)}
    states = {c.parameter: random(len(lengths), H) for c in carries}
    expected, finals = by_definition(body, carries, wanted, values, states, lengths)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    made, last = executor(plan).run(dict(values), states, Layout.ragged(offsets, False))
    for what, found, theirs in (("rows", made, expected), ("last", last, finals)):
        for name, value in theirs.items():
            assert_close(f"{what} of {name}", found[name], value, 1e-9)


@given(bodies(sums=True), LENGTHS)
@settings(max_examples=examples(150))
def test_fission_of_random_bodies(case, lengths):
    check_fission(case, lengths, False, lambda plan: PreparedLoop(plan, EagerScan))


@given(bodies(), LENGTHS)
@settings(max_examples=examples(100))
def test_fission_of_random_bodies_with_cheap_ops_in_the_scan(case, lengths):
    check_fission(case, lengths, True, lambda plan: PreparedLoop(plan, EagerScan))


@given(bodies(sums=True), LENGTHS)
@settings(max_examples=10)
def test_random_bodies_in_generated_c(case, lengths):
    def in_c(plan):
        scans = []
        loop = PreparedLoop(adopt(plan), lambda *region: scans.append(CScan(*region)) or scans[-1])
        build_all(scans)
        return loop

    check_fission(case, lengths, True, in_c)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_components_are_those_of_mutual_reach(edges):
    before = {str(k): [str(v) for v in vs if v in edges] for k, vs in edges.items()}

    def reach(name):
        seen, todo = set(), list(before[name])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += before[at]
        return seen

    reached = {name: reach(name) for name in before}
    found = components(before)
    assert sorted(n for component in found for n in component) == sorted(before)
    place = {name: i for i, component in enumerate(found) for name in component}
    for a, b in itertools.product(before, before):
        together = a == b or (a in reached[b] and b in reached[a])
        assert (place[a] == place[b]) == together
        if b in reached[a] and not together:
            assert place[b] < place[a], "what a component depends on comes first"


def whole(plan):
    """The loop without fission: everything that is not shared is one scan."""
    body = plan.body
    shared = [n for n in body.nodes if body.values[n.outputs[0]].kind == "shared"]
    core = tuple(n for n in body.nodes if n not in shared)
    regions = (Region("prologue", tuple(shared)), Region("scan", core, plan.carries))
    return LoopPlan(body, plan.carries, regions[0 if shared else 1 :], plan.wanted)


CELLS = ["RNN", "LSTM", "GRU", "PeepholeLSTM", "LayerNormLSTM", "SLSTM", "MinGRU"]


@pytest.mark.parametrize("name", CELLS)
def test_fission_of_cells(name):
    """The uncut body, the cut one and the one with cheap ops in its scans, all by torch ops."""
    cell = getattr(cells, name)(2, H, dtype=DTYPE)
    lengths = [2, 0, 3]
    values = torch.randn(5, 2, dtype=DTYPE)
    x = LoDTensor.from_lengths(values, [lengths])
    with torch.no_grad():
        compiled = entry_of(cell, x).compiled
    state = cell.initial_state(3)
    boots = [torch.rand_like(s) + 0.5 for s in (state if isinstance(state, tuple) else (state,))]
    weights = dict(enumerate(cell.parameters()))
    used = [weights[i].detach() for i in compiled.weights]
    layout = Layout.ragged(torch.tensor([0, 2, 2, 5]), False)
    results = []
    for plan in (whole(compiled.hoisted.forward), compiled.hoisted.forward, compiled.fused.forward):
        ready = Ready(replace(compiled.hoisted, forward=plan), PreparedLoop(plan, EagerScan), None, TORCH_OPS)
        results.append(run_plan(Call(ready, layout, compiled.constants, None), [values], boots, used))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=1e-12)
    cut = [n for r in compiled.hoisted.forward.regions if r.kind == "map" for n in r.nodes]
    assert any(n.op == "matmul" for n in cut), "nothing was taken out of the loop"


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_order(backend, reverse):
    cell = cells.LSTM(2, H, dtype=DTYPE)
    lengths = [3, 0, 5, 1, 3]
    order = [4, 2, 0, 3, 1]
    sequences = [torch.randn(n, 2, dtype=DTYPE) for n in lengths]
    state = [torch.randn(5, H, dtype=DTYPE) for _ in range(2)]
    y, final = recurrent(
        cell, LoDTensor.from_sequences(sequences), tuple(state), backend=backend, reverse=reverse
    )
    shuffled = LoDTensor.from_sequences([sequences[i] for i in order])
    y2, final2 = recurrent(cell, shuffled, tuple(s[order] for s in state), backend=backend, reverse=reverse)
    for place, i in enumerate(order):
        torch.testing.assert_close(y2[place], y[i], rtol=0, atol=1e-12)
        for a, b in zip(final2, final, strict=True):
            torch.testing.assert_close(a[place], b[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_parts(backend):
    cell = cells.GRU(2, H, dtype=DTYPE)
    x = torch.randn(7, 3, 2, dtype=DTYPE, requires_grad=True)
    y, h = recurrent(cell, x, backend=backend)
    first, middle = recurrent(cell, x[:4], backend=backend)
    second, last = recurrent(cell, x[4:], middle, backend=backend)
    torch.testing.assert_close(torch.cat([first, second]), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(last, h, rtol=0, atol=1e-12)
    inputs = [x, *cell.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(last.sin().sum(), inputs),
        torch.autograd.grad(h.sin().sum(), inputs),
        rtol=0,
        atol=1e-11,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_reverse_is_a_run_over_flipped_steps(backend):
    cell = cells.GRU(2, H, dtype=DTYPE)
    x = torch.randn(5, 3, 2, dtype=DTYPE)
    y, h = recurrent(cell, x, reverse=True, backend=backend)
    flipped, last = recurrent(cell, x.flip(0), backend=backend)
    torch.testing.assert_close(y, flipped.flip(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(h, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_first_and_batch_first_and_ragged_are_one(backend):
    cell = cells.LSTM(2, H, dtype=DTYPE)
    x = torch.randn(4, 3, 2, dtype=DTYPE)
    y, final = recurrent(cell, x, backend=backend)
    by_batch, final_by_batch = recurrent(cell, x.transpose(0, 1), axis=1, backend=backend)
    ragged, final_ragged = recurrent(cell, LoDTensor.from_sequences(list(x.unbind(1))), backend=backend)
    torch.testing.assert_close(by_batch.transpose(0, 1), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(ragged.values.unflatten(0, (3, 4)).transpose(0, 1), y, rtol=0, atol=1e-12)
    for other in (final_by_batch, final_ragged):
        torch.testing.assert_close(other, final, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_nesting(backend):
    """An inner recurrence that boots from the outer state == one recurrence over all its rows."""
    cell = cells.GRU(2, H, dtype=DTYPE)
    values = torch.randn(9, 2, dtype=DTYPE, requires_grad=True)
    nested = LoDTensor.from_lengths(values, [[2, 0, 3], [3, 0, 2, 1, 3]])
    flat = LoDTensor.from_lengths(values, [[3, 0, 6]])

    def outer(part, h):
        y, h = recurrent(cell, part, h, backend=backend)
        return y, h

    h0 = torch.randn(3, H, dtype=DTYPE)
    y, h = recurrent(outer, nested, h0, level=0, backend="naive")
    expected, last = recurrent(cell, flat, h0, backend="naive")
    assert [v.tolist() for v in y.lod] == [v.tolist() for v in nested.lod]
    torch.testing.assert_close(y.values, expected.values, rtol=0, atol=1e-12)
    torch.testing.assert_close(h, last, rtol=0, atol=1e-12)
    inputs = [values, *cell.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(h.sin().sum(), inputs),
        torch.autograd.grad(last.sin().sum(), inputs),
        rtol=0,
        atol=1e-11,
    )
