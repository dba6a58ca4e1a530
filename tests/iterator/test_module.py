"""A TensorIterator as an nn.Module: weights, gradients, copies, calls."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import stepnet
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator, explain
from stepnet.compiler.reads.unchanged import tells
from stepnet.errors import LoopError, SlowPathWarning, Unsupported
from stepnet.report import ModelExplanation

BACKEND = "auto"


class Recall(nn.Module):
    """A GRU cell that also looks at a memory, over blocks of its input."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4, dtype=torch.float64)
        self.key = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x, h, memory, scale):
        h = self.cell(x.mean(1) * scale, h)
        h = h + torch.sigmoid(self.key(h)) * memory
        return h, h.unsqueeze(1)


def recall(**settings):
    return TensorIterator(
        Recall(),
        [
            InputPort("x", "x", axis=1, start=-1, end=0, stride=-2, part_size=2),
            InputPort("h0", "h"),
            InputPort("memory", "memory"),
            InputPort("scale", "scale"),
            OutputPort("y", 1, axis=1, start=-1, end=0, stride=-1),
            OutputPort("h", 0),
        ],
        [BackEdge(0, "h")],
        **settings,
    )


def feeds(batch=3, steps=4):
    generator = torch.Generator().manual_seed(3)
    shapes = {"x": (batch, 2 * steps, 3), "h0": (batch, 4), "memory": (batch, 4), "scale": (3,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def by_hand(body, x, h0, memory, scale):
    h, rows = h0, []
    for t in range(x.shape[1] - 2, -1, -2):
        h, row = body(x[:, t : t + 2], h, memory, scale)
        rows.insert(0, row)
    return torch.cat(rows, 1), h


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["naive", "c", "eager"])
@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_gradients_are_those_of_the_loop_by_hand(backend, batch):
    loop, given = recall(backend=backend), feeds(batch)
    ours = loop(**given).tuple()
    theirs = by_hand(loop.body, **given)
    wanted = [*given.values(), *loop.parameters()]
    seeds = [torch.randn_like(value) for value in theirs]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(values, wanted, seeds) for values in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_calls_like_one_before_are_of_what_the_body_reads_now():
    loop, given = recall(backend="c"), feeds()
    key = loop.body.key
    changes = [
        *[lambda: None] * 4,
        lambda: key.weight.mul_(2.0),
        lambda: setattr(key, "weight", nn.Parameter(torch.ones(4, 4, dtype=torch.float64))),
        lambda: key.register_forward_hook(lambda _, inputs, out: out * 2),
        lambda: given.update(feeds(batch=1)),
    ]
    with torch.no_grad():
        for k, change in enumerate(changes):
            change()
            ours, theirs = loop(**given).tuple(), by_hand(loop.body, **given)
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            assert k != 3 or loop._rows()._replays or not tells()


def test_it_is_a_module():
    loop = recall()
    assert set(dict(loop.named_parameters())) == {f"body.{n}" for n, _ in loop.body.named_parameters()}
    other = recall()
    other.load_state_dict(loop.state_dict())
    for twin in (copy.deepcopy(loop), pickle.loads(pickle.dumps(loop)), other):
        assert all(torch.equal(a, b) for a, b in zip(twin(**feeds()), loop(**feeds()), strict=True))
    moved = copy.deepcopy(loop)
    with torch.no_grad():
        moved.body.key.bias.add_(1.0)
    assert not torch.equal(moved(**feeds())["h"], loop(**feeds())["h"])
    assert "InputPort('x', 'x', axis=1, start=-1, end=0, stride=-2, part_size=2)" in repr(loop)


@pytest.mark.parametrize("steps", [0, 1])
def test_results_share_no_memory(steps):
    loop = TensorIterator(
        lambda x, s: (s, x),
        [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("y", 1, axis=1), OutputPort("last", 0),
         OutputPort("again", 0)],
        [BackEdge(0, "s")],
        backend="naive",
    )  # fmt: skip
    x, s = torch.zeros(2, steps, 3), torch.zeros(2, 3)
    y, last, again = loop(x, s)
    for result in (y, last, again):
        result += 1
    assert not x.any()
    assert not s.any()
    assert (last == 1).all()


def test_it_trains():
    loop, given = recall(), {name: value.detach() for name, value in feeds().items()}
    optimizer = torch.optim.SGD(loop.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = (loop(**given)["h"] - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_inputs_and_outputs_by_position_and_by_name():
    loop, given = recall(), feeds()
    assert (loop.inputs, loop.outputs) == (("x", "h0", "memory", "scale"), ("y", "h"))
    x, *others = given.values()
    y, h = loop(x, *others)
    out = loop(x, scale=given["scale"], h0=given["h0"], memory=given["memory"])
    assert torch.equal(out["y"], y)
    assert torch.equal(out[1], h)


def test_defaults_and_parameters_without_names_and_positional_results():
    def body(x, /, s, *, gain=2.0):
        return [s + gain * x]

    loop = TensorIterator(
        body,
        [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("s", 0)],
        [BackEdge(0, "s")],
    )
    assert loop(torch.ones(2, 3), torch.zeros(2, 1))["s"].tolist() == [[6.0], [6.0]]


def test_the_record_is_the_library_s_own():
    loop = recall()
    assert isinstance(loop.loop, stepnet.ir.loop.Loop)
    assert loop.loop.carried == {"h": "result 0"}
    assert [port.axis for port in loop.loop.slices] == [1]


def test_what_cannot_be_compiled_runs_plainly_with_one_warning():
    def body(x, s):
        return s + (x if float(x.sum()) > 0 else -x)

    ports = [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("s", 0)]
    loop = TensorIterator(body, ports, [BackEdge(0, "s")])
    x = torch.tensor([[1.0, -2.0, 3.0]])
    with pytest.warns(SlowPathWarning, match="step 'body' runs by the plain loop") as seen:
        assert loop(x, torch.zeros(1, 1))["s"].item() == 6.0
    assert len(seen) == 1
    assert loop(x, torch.zeros(1, 1))["s"].item() == 6.0  # silent
    with pytest.raises(Unsupported):
        TensorIterator(body, ports, [BackEdge(0, "s")], backend="c")(x, torch.zeros(1, 1))


def test_a_body_for_one_size_of_batch_is_not_run_on_another():
    loop = TensorIterator(
        lambda x, s: s + x.reshape(2, 3) * torch.tensor([[1.0], [10.0]]),
        [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("s", 0)],
        [BackEdge(0, "s")],
    )
    with pytest.warns(SlowPathWarning, match="does not run on another number of rows"):
        found = loop(torch.ones(2, 4, 3), torch.zeros(2, 3))["s"]
    assert found.tolist() == [[4.0] * 3, [40.0] * 3]


def test_a_body_that_mixes_rows_runs_plainly():
    loop = TensorIterator(
        lambda x, s: s + x.squeeze(1).flip(0),
        [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("s", 0)],
        [BackEdge(0, "s")],
        backend="naive",
    )
    auto = TensorIterator(loop.body, loop.port_map, loop.back_edges)
    x = torch.randn(3, 4, 2)
    with pytest.warns(SlowPathWarning):
        assert torch.equal(auto(x, torch.zeros(3, 2))["s"], loop(x, torch.zeros(3, 2))["s"])


@pytest.mark.exhaustive  # in a graph: tests/graph
def test_torch_compile_calls_it_from_outside():
    loop = recall()
    given = {name: value.detach() for name, value in feeds().items()}

    def model(x, h0, memory, scale):
        return loop(x, h0, memory, scale)["h"] * 2

    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():  # with gradients, torch's tracer warns of the tensors that come back
        torch.testing.assert_close(compiled(**given), model(**given), rtol=1e-12, atol=1e-12)


def test_transforms_run_it_plainly():
    loop, given = recall(), {name: value.detach() for name, value in feeds().items()}

    def total(h0):
        return loop(**(given | {"h0": h0}))["h"].sum()

    h0 = given["h0"].clone().requires_grad_()
    total(h0).backward()
    torch.testing.assert_close(torch.func.grad(total)(given["h0"]), h0.grad, rtol=1e-10, atol=1e-10)


def test_explain_shows_its_regions():
    told = explain(recall(), feeds())
    assert isinstance(told, ModelExplanation)
    (it,) = told.recurrences
    assert (it.name, it.executor, it.reverse, it.steps, it.sequences) == ("Recall", "c", True, 4, 3)
    assert {region.kind for region in it.regions} >= {"scan", "map"}
    weights = {port.name for port in it.loops[0].enters if port.role == "weight"}
    assert {"cell.weight_hh", "cell.weight_ih", "key.weight"} <= weights
    assert "Recall: 4 steps of 3 sequences" in str(told)


def test_explain_says_why_a_loop_is_not_compiled():
    loop = TensorIterator(lambda x: x, [InputPort("x", "x", axis=0), OutputPort("y", 0, axis=0)])
    (it,) = explain(loop, torch.zeros(0, 2)).recurrences
    assert (it.executor, it.steps, it.refusals[0].reason) == ("naive", 0, "it has no steps")
    plain = recall(backend="naive")
    (it,) = explain(plain, tuple(feeds().values())).recurrences
    assert "naive" in it.refusals[0].reason
    assert "asks for the plain loop" in str(it)


def test_a_fault_of_the_body_names_it_and_what_it_was_given():
    loop = TensorIterator(
        lambda x, s: s @ x,
        [InputPort("x", "x", axis=1), InputPort("s", "s"), OutputPort("s", 0)],
        [BackEdge(0, "s")],
    )
    with pytest.raises(LoopError, match=r"(?s)the body '<lambda>' fails: .*x float32\[2, 1, 3\], s float32"):
        loop(torch.ones(2, 4, 3), torch.ones(2, 5))
