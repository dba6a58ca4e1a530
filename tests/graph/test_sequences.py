"""Functions of sequences in one graph of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from covering import few
from stepnet import (
    LoDTensor,
    sequence_concat,
    sequence_expand,
    sequence_mask,
    sequence_pool,
    sequence_reverse,
    sequence_slice,
    sequence_softmax,
)
from stepnet.errors import LoDError

from .models import LENGTHS, assert_alike, ragged, state

CASES: dict[str, Callable[..., Any]] = {
    "sum": lambda x, _: sequence_pool(x * 2, "sum"),
    "max": lambda x, _: sequence_pool(x, "max", -1.0),
    "last, mean": lambda x, _: (sequence_pool(x, "last"), sequence_pool(x, "mean")),
    "softmax": lambda x, _: sequence_softmax(x),
    "reverse": lambda x, _: sequence_reverse(x).tanh(),
    "expand": lambda x, h: sequence_expand(h, x) * 2,
    "expand sequences": lambda x, _: sequence_expand(x, x).sin(),
    "concat": lambda x, _: sequence_concat([x, x * 2]),
    "slice": lambda x, _: sequence_slice(x, x.lengths() // 2, (x.lengths() + 1) // 2).exp(),
    "mask": lambda x, _: (
        x.to_padded()[0] * sequence_mask(x.lengths())[..., None],
        sequence_mask(x.lengths(), x.shape[0]) * 0.5,
    ),
    "padded": lambda x, _: LoDTensor.from_padded(*x.to_padded(-1e300, batch_first=False), batch_first=False),
    "listed": lambda x, h: LoDTensor.from_sequences([x.values, h, h * 2]),
    "attention": lambda x, h: sequence_pool(sequence_softmax(x * sequence_expand(h, x)) * x, "sum"),
}
CASES["all"] = lambda x, h: [f(x, h) for name, f in CASES.items() if name not in ("all", "some", "attention")]
CASES["some"] = lambda x, h: [CASES[name](x, h) for name in ("max", "softmax", "padded")]


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3)

    def forward(self, x: LoDTensor, h: torch.Tensor) -> Any:
        return self.function(self.linear(x), h)


@pytest.mark.parametrize("case", few(CASES, ["some"]))
def test_one_graph_with_the_same_values_and_gradients(case: str) -> None:
    torch.manual_seed(0)
    model = Model(CASES[case]).double()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for lengths in ([2, 4, 1, 5, 3, 2, 6], *LENGTHS[:2]):
        assert_alike(model, compiled, (ragged(lengths), state(len(lengths), 3)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("ref_level", few([0, 1], [0]))
def test_two_levels(ref_level: int) -> None:
    def function(x: LoDTensor, h: torch.Tensor) -> Any:
        wide = sequence_expand(h, x, ref_level)
        return wide, sequence_pool(x, "sum")

    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    for inner in ([[2, 1], [3, 0, 4]], [[1, 2, 1], [2, 2, 1, 5]]):
        x = LoDTensor.from_lengths(torch.randn(sum(inner[1]), 2), inner)
        h = torch.randn(len(inner[ref_level]), 3)
        for a, b in zip(function(x, h), compiled(x, h), strict=True):
            assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
            torch.testing.assert_close(a.values, b.values)


WRITTEN = {
    "offsets": lambda rows: LoDTensor(rows, [[0, 2], [0, 3, 5]]),
    "lengths": lambda rows: LoDTensor.from_lengths(rows, [[3, 0, 2]]),
    "both": lambda rows: LoDTensor(rows, [torch.tensor([0, 1, 2]), (0, 3, 5)]),
    "padded": lambda rows: LoDTensor.from_padded(rows[None], [4]),
    "one": lambda rows: LoDTensor.from_lengths(rows, [[5]]),  # a number, which torch folds
}


@pytest.mark.parametrize(
    ("cases", "transformed"),
    few([([*WRITTEN], False), (["offsets", "lengths"], True)], [([*WRITTEN], False)]),
)
def test_offsets_that_are_written_down(cases: list[str], transformed: bool) -> None:
    def total(rows: torch.Tensor) -> torch.Tensor:
        total = rows.new_zeros(())
        for case in cases:
            x = WRITTEN[case](rows)
            owners = torch.bucketize(torch.arange(len(x.values)), x.lod[-1], right=True)
            total = total * 3 + (x.values * owners[:, None]).sum()
        return total

    function = torch.func.grad(total) if transformed else total
    rows = torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows), function(rows))


def test_wrong_offsets_that_are_written_down() -> None:
    compiled = torch.compile(
        lambda rows: LoDTensor(rows, [[0, 3, 1, 5]]).lengths(), backend="aot_eager", fullgraph=True
    )
    with pytest.raises(LoDError, match="must never fall"):
        compiled(torch.randn(5, 3))


def test_wrong_slices_are_told_as_they_run() -> None:
    compiled = torch.compile(
        lambda x: sequence_slice(x, [0, 0], [2, 1]).values, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(x := ragged([2, 3])), x.values[[0, 1, 2]])
    with pytest.raises(LoDError, match="slice of sequence 0 does not lie in it"):
        compiled(ragged([1, 4]))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo looks at it
def test_nested_tensors_there_and_back() -> None:
    def there(x: LoDTensor) -> Tensor:
        return x.to_nested() * 2

    def back(x: Tensor) -> LoDTensor:
        return LoDTensor.from_nested(x * 0.5)

    x = ragged([2, 0, 4])
    nested = torch.compile(there, backend="aot_eager", fullgraph=True)(x)
    y = torch.compile(back, backend="aot_eager", fullgraph=True)(nested)
    assert y.recursive_sequence_lengths() == [[2, 0, 4]]
    y.values.square().sum().backward()
    torch.testing.assert_close((y.values, x.values.grad), (x.values, 2 * x.values))
    rows_alone = torch.compile(lambda x: back(x).values, backend="aot_eager", fullgraph=True)
    assert torch.equal(rows_alone(nested.detach()), x.values)
    for offsets in ([1, 3, 6], [0, 3, 5]):
        holes = torch.nested.nested_tensor_from_jagged(x.values.detach(), offsets=torch.tensor(offsets))
        with pytest.raises(RuntimeError, match="from_nested in a graph takes NestedTensors without holes"):
            rows_alone(holes)
