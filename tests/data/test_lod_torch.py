"""LoDTensor among torch's own machinery: files, copies, pytrees, compile, func transforms."""

from __future__ import annotations

import copy
import io
import operator
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.utils import _pytree as pytree

from covering import few
from stepnet import recurrent
from stepnet.data import in_graph
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.sequence import sequence_pool, sequence_reverse, sequence_softmax
from stepnet.errors import LoDError
from strategies import lod_tensors
from torch_since import torch_since

TWO = [[0, 2, 3], [0, 3, 5, 9]]


def two_levels(*features: int) -> LoDTensor:
    return LoDTensor(torch.randn(9, *features), TWO)


def assert_same(a: LoDTensor, b: LoDTensor) -> None:
    assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
    torch.testing.assert_close(a.values, b.values, rtol=0, atol=0)


def through_file(x: object, weights_only: bool) -> object:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)["x"]


COPIES = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.load weights_only": lambda x: through_file(x, True),
    "torch.load": lambda x: through_file(x, False),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES.keys())
@given(x=lod_tensors())
def test_copies_are_equal(way, x: LoDTensor) -> None:
    assert_same(way(x), x)


@pytest.mark.parametrize(("name", "shares"), [("copy", True), ("deepcopy", False), ("pickle", False)])
def test_copies_share_rows_as_copies_of_tensors_do(name: str, shares: bool) -> None:
    x = two_levels(4)
    assert (COPIES[name](x).values.data_ptr() == x.values.data_ptr()) == shares


def test_deepcopy_keeps_one_structure_for_those_that_shared_it() -> None:
    x = two_levels(4)
    a, b, a_again = copy.deepcopy([x, x * 2, x])
    assert a is a_again
    assert a.structure is b.structure


def test_grad_survives_a_file() -> None:
    x = LoDTensor(torch.ones(9, requires_grad=True), TWO)
    assert pickle.loads(pickle.dumps(x)).requires_grad


def test_a_file_is_checked_like_anything_else() -> None:
    x = two_levels()
    make, (values, levels) = x.__reduce__()
    assert make is LoDTensor
    with pytest.raises(LoDError, match="number of rows"):
        make(values[:8], levels)
    with pytest.raises(LoDError, match="must start at 0"):
        pickle.loads(pickle.dumps(LoD.trusted((torch.tensor([1, 2]),))))


def test_a_pytree_has_one_leaf() -> None:
    x = two_levels(4)
    leaves, spec = pytree.tree_flatten({"a": x, "b": 1})
    assert leaves[0] is x.values
    assert leaves[1:] == [1]
    assert_same(pytree.tree_unflatten(leaves, spec)["a"], x)
    mapped = pytree.tree_map(lambda t: t + 1, x)
    assert_same(mapped, x + 1)
    assert mapped.structure is x.structure


@torch_since("2.10", "its specs of trees have no hash")
def test_tree_specs_compare_by_lod() -> None:
    def spec(lod: list[list[int]]) -> pytree.TreeSpec:
        return pytree.tree_structure([LoDTensor(torch.zeros(9), lod)])

    assert spec(TWO) == spec(TWO)
    assert hash(spec(TWO)) == hash(spec(TWO))
    assert spec(TWO) != spec([[0, 1, 3], [0, 3, 5, 9]])
    assert spec(TWO) != spec([[0, 9]])
    assert pytree.treespec_loads(pytree.treespec_dumps(spec(TWO))) == spec(TWO)


def test_a_path_names_the_leaf() -> None:
    ((path, leaf),), _ = pytree.tree_flatten_with_path({"a": two_levels()})
    assert pytree.keystr(path) == "['a'].values"
    assert leaf.shape == (9,)


def test_a_tree_around_no_tensors_is_rebuilt_unchecked() -> None:
    x = two_levels(4)
    axes = pytree.tree_map(lambda t: 0, x)
    assert axes.values == 0
    assert "int 0" in repr(axes)


def test_vmap_over_features_and_over_weights() -> None:
    x, scales = two_levels(5), torch.randn(7)
    assert_same(torch.vmap(lambda s: torch.relu(s) * 2, in_dims=1, out_dims=1)(x), torch.relu(x) * 2)
    y = torch.vmap(lambda s, c: s * c, in_dims=(None, 0), out_dims=1)(x, scales)
    assert_same(y, x.map(lambda v: v[:, None] * scales[:, None]))


def test_vmap_over_rows_is_refused_not_wrong() -> None:
    x, scales = two_levels(5), torch.randn(7)
    with pytest.raises(LoDError, match="no longer fit its LoD"):
        torch.vmap(lambda s: s * 2)(x)
    stacked_in_front = torch.vmap(lambda s, c: s * c, in_dims=(None, 0))(x, scales)
    with pytest.raises(LoDError, match="no longer fit its LoD"):
        stacked_in_front + 1


def test_func_transforms_take_it_as_an_argument() -> None:
    x = two_levels(2)
    assert_same(torch.func.grad(lambda s: (s * s).values.sum())(x), 2 * x)
    assert torch.func.jacrev(lambda s: (s * s).values[:2])(x).values.shape == (2, 2, 9, 2)
    _, pullback = torch.func.vjp(lambda s: s * 3, x)
    assert_same(pullback(x)[0], 3 * x)


def test_checkpoint_and_autocast() -> None:
    x, linear = two_levels(4), torch.nn.Linear(4, 3)
    y = torch.utils.checkpoint.checkpoint(lambda s: torch.relu(linear(s)), x, use_reentrant=False)
    assert_same(y, torch.relu(linear(x)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16


@pytest.fixture
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.exhaustive  # of rows in a graph: tests/graph, too
@torch_since("2.10", "Dynamo breaks the graph at __torch_function__")
@pytest.mark.usefixtures("_fresh_dynamo")
def test_compile_takes_row_wise_code_in_one_graph() -> None:
    linear = torch.nn.Linear(4, 3)
    w = torch.randn(3)

    def block(x: LoDTensor) -> LoDTensor:
        y = torch.relu(linear(x)) * 2 + w
        return y.with_values(y.values + 1).tanh()

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    for x in (two_levels(4), LoDTensor(torch.randn(5, 4), [[0, 1], [0, 5]])):
        values = x.values.requires_grad_()
        got = compiled(x)
        torch.testing.assert_close(got.values, block(x).values)
        assert got.recursive_sequence_lengths() == x.recursive_sequence_lengths()
        (grad,) = torch.autograd.grad(got.values.sum(), values)
        torch.testing.assert_close(grad, torch.autograd.grad(block(x).values.sum(), values)[0])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_fresh_dynamo")
@torch_since("2.13", "it follows no offsets")
def test_compile_takes_operators_of_what_it_makes() -> None:
    def block(rows: Tensor) -> Tensor:
        x = LoDTensor.from_lengths(rows, [[2, 3]])
        y = (1 - x) ** 2 // 2 + 2 % (x + 3) + 1 / (x + 3) + 2**x
        y -= rows
        outer = torch.stack((x, y), 1).unsqueeze(-1)
        y = torch.where(~(x > 0.5), y, (outer @ outer.mT).sum((1, 2, 3)).unsqueeze(-1))
        return (y + (x + 1) ** rows + rows // (x + 1) + rows ** (x % (rows + 1))).values

    rows = torch.rand(5, 3)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows), block(rows))


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize(
    "product", few([operator.matmul, operator.imatmul, torch.matmul], [operator.imatmul])
)
def test_compile_multiplies_in_the_order_that_is_written(
    product: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(x: LoDTensor, w: torch.Tensor) -> Any:
        y = x
        if product is operator.matmul:
            y, _ = recurrent(lambda x, s: (product(sequence_reverse(x), w), s), x, (), level=0)
        return (product(w, product(y, w)) + 1).values

    monkeypatch.delitem(in_graph.twins(), operator.matmul, raising=False)  # as in a new process
    x, w = LoDTensor(torch.randn(5, 3, 3), [[0, 1, 2], [0, 2, 5]]), torch.randn(3, 3)
    compiled = torch.compile(both, backend="eager", fullgraph=in_graph.CAN_CAPTURE)
    torch.testing.assert_close(compiled(x, w), both(x, w))


FUNCTIONS: dict[str, Any] = {
    "softmax": lambda x: sequence_softmax(x).values,
    "reverse": lambda x: sequence_reverse(x).values,
    "item and pool": lambda x: sequence_pool(x[0], "max"),
    "padded": lambda x: x.to_padded()[0],
}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", few(FUNCTIONS, ["item and pool"]))  # tests/graph has the others
def test_compile_does_not_break_sequence_code(name: str) -> None:
    x, fn = two_levels(4), FUNCTIONS[name]
    torch.testing.assert_close(torch.compile(fn, backend="aot_eager")(x), fn(x))


@torch_since("2.10", "Dynamo breaks the graph at __torch_function__")
def test_export_takes_it_as_an_input() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: LoDTensor) -> LoDTensor:
            return torch.relu(x) * 2

    x = two_levels(4)
    assert_same(torch.export.export(Block(), (x,)).module()(x), torch.relu(x) * 2)
