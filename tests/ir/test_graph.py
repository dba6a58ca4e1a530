from __future__ import annotations

import pytest

from stepnet.ir.graph import Node, in_order


def test_a_value_that_follows_from_itself_is_told():
    nodes = [
        Node("tanh", ("x",), ("a",)),
        Node("add", ("a", "c"), ("b",)),
        Node("exp", ("b",), ("c",)),
    ]
    with pytest.raises(ValueError, match="follows from itself"):
        in_order(nodes)


def test_operands_that_meet_again():
    a, b, c = Node("tanh", ("x",), ("a",)), Node("exp", ("a",), ("b",)), Node("mul", ("a", "b"), ("c",))
    d = Node("add", ("c", "a"), ("d",))
    assert in_order([d, c, a, b]) == (a, b, c, d)
