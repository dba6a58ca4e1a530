"""Products as torch ops: by heads, of vectors and over rows, each against torch.matmul."""

from __future__ import annotations

import pytest
import torch

from stepnet.executors.torch_ops.ops import bind
from stepnet.ir.graph import Graph, Kind, Node, Value

ROWS = (0, 1, 5)
# the shape of one row of a, that of b, and what b is
PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Kind]] = {
    "a weight": ((3,), (3, 4), "shared"),
    "places and a weight": ((2, 3), (3, 4), "shared"),
    "heads": ((2, 1, 3), (2, 3, 4), "shared"),
    "heads, several places": ((2, 5, 3), (2, 3, 4), "shared"),
    "two dimensions of heads": ((2, 3, 1, 4), (2, 3, 4, 5), "shared"),
    "heads, one column": ((2, 5, 3), (2, 3, 1), "shared"),
    "an outer product": ((2, 3, 1), (2, 1, 4), "row"),
    "an outer product with a weight": ((3, 1), (1, 4), "shared"),
    "a matrix and a vector": ((2, 3, 4), (2, 4, 1), "row"),
    "a vector and a matrix": ((1, 4), (4, 3), "row"),
    "a large matrix and a vector": ((40, 30), (30, 1), "row"),
    "two matrices": ((2, 3, 4), (2, 4, 5), "row"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product(name, dtype):
    a, b, kind = PRODUCTS[name]
    out = torch.matmul(torch.empty(1, *a), torch.empty(*((1,) * (kind == "row")), *b)).shape[1:]
    values = {"a": Value("a", "row", a, dtype), "b": Value("b", kind, b, dtype)}
    values["out"] = Value("out", "row", tuple(out), dtype)
    node = Node("matmul", ("a", "b"), ("out",))
    run = bind(Graph("product", ("a", "b"), (node,), ("out",), values), node)
    generator = torch.Generator().manual_seed(1)
    for rows in ROWS:
        x = torch.randn(rows, *a, generator=generator).to(getattr(torch, dtype))
        w = torch.randn(*((rows,) if kind == "row" else ()), *b, generator=generator).to(x)
        found = run(x, w, rows=rows)
        torch.testing.assert_close(found, torch.matmul(x, w))
        assert found.data_ptr() not in (x.data_ptr(), w.data_ptr()) or not found.numel()


@pytest.mark.parametrize("heads", [0, 1])
@pytest.mark.parametrize(("k", "n"), [(5, 3), (3, 5), (40, 1), (1, 40), (40, 20)])
def test_a_product_over_rows(k, n, heads):
    values = {
        "a": Value("a", "row", (2, k), "float64"),
        "b": Value("b", "row", (2, n), "float64"),
        "out": Value("out", "sum", (2, k, n) if heads else (k, n), "float64"),
    }
    node = Node("matmul_tn", ("a", "b"), ("out",), (("batch", heads),))
    run = bind(Graph("product", ("a", "b"), (node,), ("out",), values), node)
    for rows in ROWS:
        a, b = torch.randn(rows, 2, k, dtype=torch.float64), torch.randn(rows, 2, n, dtype=torch.float64)
        found = run(a, b, rows=rows)
        torch.testing.assert_close(found, torch.einsum("rik,rin->ikn" if heads else "rik,rin->kn", a, b))
        assert found.is_contiguous()
