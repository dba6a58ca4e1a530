"""Plans of steps that ask whether two objects are one, and of those whose objects torch takes apart as their
class registered: held against the plain loop after each change, by every way in that makes plans."""

from __future__ import annotations

import dataclasses
import datetime
import operator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from stepnet import LoDTensor, Memory, Scope, dynamic_recurrent, map_fn, recurrent, stream

DTYPE, D = torch.float64, 3
PLANS_ON_DISK = False  # keys tell steps apart
BIG, TEXT, GAIN = 12345, "a b", 1.0


class Held:
    """An object with attributes."""

    number: int
    text: str
    first: list[int]
    second: dict[str, int]
    span: datetime.timedelta

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Node:
    scale = 1.0

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


def put_together(parts: Any, _: Any) -> Node:
    return Node(parts[0] * GAIN)


pytree.register_pytree_node(Node, lambda node: ([node.value * Node.scale], None), put_together)
if hasattr(pytree, "register_dataclass"):
    pytree.register_dataclass(Pair)
else:  # in older torch
    pytree.register_pytree_node(Pair, lambda pair: ([pair.a, pair.b], None), lambda parts, _: Pair(*parts))


def ones():
    return torch.ones(2, dtype=DTYPE)


def a_number(monkeypatch):
    held = Held(number=BIG)
    return lambda: 2.0 if held.number is BIG else 1.0, [
        lambda: setattr(held, "number", int("12345")),
        lambda: setattr(held, "number", BIG),
    ]


def a_text_of_the_code(monkeypatch):
    space: dict[str, Any] = {"held": (held := Held(text="".join(["a", " b"])))}
    exec("def read(): return 1.0 if held.text is not 'a b' else 2.0", space)  # with a warning of Python's
    own = space["read"].__code__.co_consts
    return space["read"], [
        lambda: setattr(held, "text", next(part for part in own if part == TEXT)),
        lambda: setattr(held, "text", "".join(["a", " b"])),
    ]


def two_items(monkeypatch):
    held = Held(first=[BIG], second={"b": BIG})
    return lambda: 2.0 if operator.is_(held.first[0], held.second["b"]) else 1.0, [
        lambda: held.first.__setitem__(0, int("12345")),
        lambda: held.second.update(b=held.first[0]),
    ]


def a_node_that_is_made(monkeypatch):
    return lambda: torch.vmap(lambda node: node.value)(Node(ones()))[0], [
        lambda: monkeypatch.setattr(Node, "scale", 2.0)
    ]


def a_node_that_is_given_back(monkeypatch):
    node = Node(ones())
    return lambda: pytree.tree_map(lambda part: part * 1, node).value[0], [
        lambda: monkeypatch.setitem(globals(), "GAIN", 3.0),
        lambda: node.value.mul_(2),
        lambda: setattr(node, "value", 5 * ones()),
    ]


def another_way_to_take_apart(monkeypatch):
    node = Node(ones())

    def register():
        known = pytree.SUPPORTED_NODES[Node]
        monkeypatch.setitem(
            pytree.SUPPORTED_NODES, Node, known._replace(flatten_fn=lambda node: ([9 * node.value], None))
        )

    return lambda: pytree.tree_leaves([node])[0][0], [register]


def a_dataclass(monkeypatch):
    pair = Pair(ones(), ones())
    return lambda: torch.stack(pytree.tree_leaves(pair)).sum(), [
        lambda: setattr(pair, "b", 3 * ones()),
        lambda: pair.a.mul_(2),
    ]


def a_time_span(monkeypatch):
    held = Held(span=datetime.timedelta(seconds=1))
    return lambda: held.span.total_seconds(), [lambda: setattr(held, "span", datetime.timedelta(seconds=3))]


READS = [
    a_number, a_text_of_the_code, two_items, a_node_that_is_made, a_node_that_is_given_back,
    another_way_to_take_apart, a_dataclass, a_time_span,
]  # fmt: skip
X, H = torch.randn(4, 2, D, dtype=DTYPE), torch.randn(2, D, dtype=DTYPE)
RAGGED = LoDTensor.from_lengths(torch.randn(6, D, dtype=DTYPE), [[2, 4]])


def a_recurrence(read):
    def step(x, h):
        return (h := torch.tanh(x + h) * read()), h

    return lambda backend: recurrent(step, X, H, backend=backend)


def a_tangent(read):
    def step(x, h):
        return (h := torch.tanh(x + h) * read()), h

    return lambda backend: torch.func.jvp(lambda x: recurrent(step, x, H, backend=backend), (X,), (X.cos(),))


def a_map(read):
    return lambda backend, f=lambda x: torch.tanh(x) * read(): map_fn(f, X, backend=backend)


def a_dynamic_rnn(read):
    def net(scope):
        scope["h"] = torch.tanh(scope["x"] + scope["before"]) * read()

    def run(backend):
        scope = Scope({"x": RAGGED})
        memory = Memory("h", "before", shape=(D,))
        last = dynamic_recurrent(net, scope, ["x"], ["h"], [memory], backend=backend)
        return scope["h"].values, last["h"]

    return run


def a_stream(read):
    def step(x, h):
        return (h := torch.tanh(x + h) * read()), h

    def run(backend):
        live = stream(lambda x: recurrent(step, x, torch.zeros(len(x), D, dtype=DTYPE), backend=backend)[0])
        live.open("a")
        return [live.push({"a": X[:2, 0]})["a"], live.push({"a": X[2:, 0]})["a"]]

    return run


WAYS = [a_recurrence, a_tangent, a_map, a_dynamic_rnn, a_stream]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reads", READS)
def test_after_each_change_it_is_the_plain_loop(reads, way, monkeypatch):
    read, changes = reads(monkeypatch)
    run, before = way(read), None
    for change in (lambda: None, *changes):
        change()
        expected = run("naive")
        if before is not None:
            assert not torch.allclose(pytree.tree_leaves(expected)[0], pytree.tree_leaves(before)[0])
        for _ in range(3):
            torch.testing.assert_close(run("eager"), expected)
        before = expected
