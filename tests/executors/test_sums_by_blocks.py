"""Sums over rows of arithmetic, by blocks of rows: as those of all rows at once."""

import pytest
import torch

from stepnet import LoDTensor, recurrent
from stepnet.executors.c import sums_by_blocks
from stepnet.executors.loop import bound, run_nodes
from stepnet.ir.graph import Graph, Node, Value

# lengths, and what the last row has of special values
ROWS = [([7, 0, 1, 12], 0.0), ([20], 0.0), ([0, 0], 0.0), ([1], 0.0), ([], 0.0)]
ROWS += [([3, 14], value) for value in (torch.inf, -torch.inf, torch.nan)]


@pytest.fixture
def groups(monkeypatch):
    """How many nodes were made one, blocks being of three rows of four numbers in float64."""
    found, as_one = [], sums_by_blocks._as_one
    monkeypatch.setattr(sums_by_blocks, "_BLOCK", 3 * 4 * 8)
    monkeypatch.setattr(sums_by_blocks, "_as_one", lambda *a: found.append(len(a[1])) or as_one(*a))
    return found


def decay(x, h, a, b, c, d):
    h = a * h + b * torch.tanh(x)
    return c * h * d, h


def another_reads(x, h, a, b, c, d):
    h = a * h + b * torch.tanh(x)
    y = c * h
    return (y, d * h.exp(), h * torch.where(x > 0, d, b)), h


def normed(x, h, a, b, c, d):
    h = a * h + b * x
    centered = h - h.mean(-1, keepdim=True)
    return d + c * centered * (centered.square().mean(-1, keepdim=True) + 1e-3).rsqrt(), h


def of_parts(x, h, a, b, c, d):
    h = a[:2].repeat(2) * h + torch.cat([x[..., :2] * b[:2], d[2:].exp() * x[..., 2:]], -1)
    return (h.unflatten(-1, (2, 2)) * c.unflatten(-1, (2, 2))).flatten(-2), h


@pytest.mark.parametrize("kept", ["", "a", "b"])
def test_what_else_reads_is_made_of_all_rows(kept, groups):
    """And what a sum is of whose rounding blocks would change."""
    rows = dict.fromkeys("xab", "float64") | dict.fromkeys("cde", "float32")
    values = {name: Value(name, "row", (4,), dtype) for name, dtype in rows.items()}
    values |= {name: Value(name, "sum", (4,), dtype) for name, dtype in (("s", "float64"), ("r", "bfloat16"))}
    told = ("tanh x a", "mul a,a b", "sum_rows b s", "cast x c", "exp c d", "exp d e", "sum_rows e r")
    words = [line.split() for line in told]
    nodes = tuple(Node(op, (*ins.split(","),), (out,)) for op, ins, out in words)
    graph = Graph("g", ("x",), nodes, ("s", "r"), values)
    found = sums_by_blocks.summed_by_blocks(graph, bound(graph, nodes), {kept, "s", "r"})
    apart = ["cast", "exp", "exp", "sum_rows"]
    first = {"": ["sum_rows"], "a": ["tanh", "sum_rows"], "b": ["tanh", "mul", "sum_rows"]}[kept]
    assert [node.op for node in found] == first + apart
    assert groups == {"": [3], "a": [2], "b": []}[kept]
    for count in (0, 1, 11, 12, 13):
        values_of = {"x": torch.randn(count, 4, dtype=torch.float64)}
        run_nodes(found[: len(first)], values_of, count)
        total = values_of["x"].tanh().square().sum(0)
        torch.testing.assert_close(values_of["s"], total, rtol=1e-14, atol=1e-14)


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [decay, another_reads, normed, of_parts], ids=lambda step: step.__name__)
def test_gradients_are_those_of_the_plain_loop(step, groups):
    torch.manual_seed(0)
    weights = [torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    for lengths, special in ROWS:
        x = torch.randn(sum(lengths), 4, dtype=torch.float64)
        x[-1:, 2] += special
        expected, found = (_gradients(step, weights, x, lengths, backend) for backend in ("naive", "c"))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert max(groups) > 1


def _gradients(step, weights, values, lengths, backend):
    x = values.clone().requires_grad_()
    start = torch.ones(len(lengths), 4, dtype=torch.float64, requires_grad=True)
    rows = LoDTensor.from_lengths(x, [lengths])
    y, last = recurrent(lambda x, h: step(x, h, *weights), rows, start, backend=backend)
    leaves = y if isinstance(y, tuple) else (y,)
    loss = sum(leaf.values.square().sum() for leaf in leaves) + last.sin().sum()
    return torch.autograd.grad(loss, [*weights, x, start], allow_unused=True)
