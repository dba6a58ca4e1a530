"""Sequence operations against a plain loop over sequences: values, gradients, errors, cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from covering import every, examples
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import (
    sequence_concat,
    sequence_expand,
    sequence_mask,
    sequence_pool,
    sequence_reverse,
    sequence_slice,
    sequence_softmax,
)
from stepnet.errors import LoDError
from strategies import last_sequences, lod_tensors, ragged_lengths
from tables import holds

POOLINGS = ["sum", "mean", "sqrt", "max", "first", "last"]
LAYOUTS = {
    "one sequence": [[4]],
    "batch of none": [[]],
    "one empty sequence": [[0]],
    "length one": [[1]],
    "unsorted with empties": [[0, 3, 1, 0, 5, 2, 0]],
    "two levels": [[2, 0, 3], [3, 0, 2, 1, 4]],
    "three levels": [[1, 2], [0, 2, 1], [3, 0, 2]],
}


def rows(lengths: list[list[int]], *features: int) -> LoDTensor:
    n = sum(lengths[-1])
    return LoDTensor.from_lengths(torch.randn(n, *features, dtype=torch.float64, requires_grad=True), lengths)


def joined(pieces: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(pieces) if pieces else like.new_zeros(0, *like.shape[1:])


# The meaning: a plain loop over the sequences of the last level.


def loop_pool(x: LoDTensor, pooling: str, pad_value: float) -> Tensor:
    def pool(s: Tensor) -> Tensor:
        if len(s) == 0:
            return s.new_full(s.shape[1:], pad_value)
        return {
            "sum": lambda: s.sum(0),
            "mean": lambda: s.mean(0),
            "sqrt": lambda: s.sum(0) / len(s) ** 0.5,
            "max": lambda: s.amax(0),
            "first": lambda: s[0],
            "last": lambda: s[-1],
        }[pooling]()

    return joined([pool(s)[None] for s in last_sequences(x)], x.values)


def loop_softmax(x: LoDTensor) -> Tensor:
    return joined([torch.softmax(s, 0) for s in last_sequences(x)], x.values)


def loop_reverse(x: LoDTensor) -> Tensor:
    return joined([s.flip(0) for s in last_sequences(x)], x.values)


def loop_slice(x: LoDTensor) -> Tensor:
    return joined([s[len(s) // 3 : len(s) // 3 + len(s) // 2] for s in last_sequences(x)], x.values)


def ours_slice(x: LoDTensor) -> LoDTensor:
    return sequence_slice(x, x.lengths() // 3, x.lengths() // 2)


def loop_concat(x: LoDTensor) -> Tensor:
    first, second = last_sequences(x), last_sequences(ours_slice(x))
    return joined([torch.cat([a, b, a]) for a, b in zip(first, second, strict=True)], x.values)


def loop_expand(x: LoDTensor) -> Tensor:
    firsts = loop_pool(x, "last", 0.0)
    return joined(
        [f.expand(len(s), *f.shape) for f, s in zip(firsts, last_sequences(x), strict=True)], x.values
    )


def ours_expand(x: LoDTensor) -> LoDTensor:
    lasts = sequence_pool(x, "last")
    return sequence_expand(lasts.values if isinstance(lasts, LoDTensor) else lasts, x)


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    **{
        f"pool {p} pad {pad}": (
            lambda x, p=p, pad=pad: sequence_pool(x, p, pad),
            lambda x, p=p, pad=pad: loop_pool(x, p, pad),
        )
        for p in POOLINGS
        for pad in (0.0, -2.5)
    },
    "softmax": (sequence_softmax, loop_softmax),
    "reverse": (sequence_reverse, loop_reverse),
    "slice": (ours_slice, loop_slice),
    "concat": (lambda x: sequence_concat([x, ours_slice(x), x]), loop_concat),
    "expand": (ours_expand, loop_expand),
}


def bare(y: LoDTensor | Tensor) -> Tensor:
    return y.values if isinstance(y, LoDTensor) else y


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_those_of_the_loop(name: str) -> None:
    cases = itertools.product(LAYOUTS, [(), (3,), (2, 5), (0,)])
    holds(check, {f"{layout}, {features}": (name, LAYOUTS[layout], features) for layout, features in cases})


def check(name: str, lengths: list[list[int]], features: tuple) -> None:
    ours, loop = OPERATIONS[name]
    x = rows(lengths, *features)
    got, expected = bare(ours(x)), loop(x)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    weight = torch.randn_like(expected)
    (grad,) = torch.autograd.grad((got * weight).sum(), x.values, allow_unused=True)
    (expected_grad,) = torch.autograd.grad(
        (expected * weight).sum() + 0 * x.values.sum(), x.values, allow_unused=True
    )
    torch.testing.assert_close(grad, expected_grad, rtol=1e-13, atol=1e-13)


@settings(max_examples=examples(40))
@given(lod_tensors(features=(2,)))
def test_values_are_those_of_the_loop_for_any_lod(x: LoDTensor) -> None:
    x = x.map(torch.sin)
    for name, (ours, loop) in OPERATIONS.items():
        torch.testing.assert_close(
            bare(ours(x)), loop(x), rtol=1e-13, atol=1e-13, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", every(2, OPERATIONS))
def test_gradcheck(name: str) -> None:
    x = rows([[0, 3, 1, 2]], 2)

    def run(v: Tensor) -> Tensor:
        return bare(OPERATIONS[name][0](x.with_values(v)))

    assert torch.autograd.gradcheck(run, (x.values,))
    assert torch.autograd.gradgradcheck(run, (x.values,))


# What the results are


@given(ragged_lengths())
def test_pooling_takes_the_last_level_away(lengths: list[list[int]]) -> None:
    x = LoDTensor.from_lengths(torch.ones(sum(lengths[-1]), 3), lengths)
    y = sequence_pool(x, "sum")
    if len(lengths) == 1:
        assert isinstance(y, Tensor)
    else:
        assert isinstance(y, LoDTensor)
        assert y.recursive_sequence_lengths() == lengths[:-1]
    assert bare(y).tolist() == [[float(n)] * 3 for n in lengths[-1]]


@given(ragged_lengths())
def test_the_lod_of_every_result(lengths: list[list[int]]) -> None:
    x = LoDTensor.from_lengths(torch.ones(sum(lengths[-1]), 3), lengths)
    assert sequence_softmax(x).structure is x.structure
    assert sequence_reverse(x).structure is x.structure
    assert ours_expand(x).structure is x.structure
    above, last = lengths[:-1], lengths[-1]
    assert ours_slice(x).recursive_sequence_lengths() == [*above, [n // 2 for n in last]]
    assert sequence_concat([x, x, x]).recursive_sequence_lengths() == [*above, [3 * n for n in last]]


def test_the_gradient_of_ties_is_shared_equally() -> None:
    values = torch.tensor([2.0, 1.0, 2.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    x = LoDTensor(values, [[0, 4, 4, 5]])
    (grad,) = torch.autograd.grad(sequence_pool(x, "max") @ values.new_tensor([3.0, 7.0, 11.0]), values)
    assert grad.tolist() == [1, 0, 1, 1, 11]


def test_pooling_below_the_padding() -> None:
    x = LoDTensor(torch.tensor([-3.0, -2.0]), [[0, 2, 2]])
    assert sequence_pool(x, "max").tolist() == [-2, 0]
    assert sequence_pool(x, "max", pad_value=-torch.inf).tolist() == [-2, -torch.inf]
    assert sequence_pool(x, "mean", pad_value=torch.nan).isnan().tolist() == [False, True]


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_nan_stays_in_its_sequence(pooling: str) -> None:
    x = LoDTensor(torch.tensor([1.0, torch.nan, 2.0]), [[0, 2, 3]])
    assert sequence_pool(x, pooling).isnan().tolist() == [True, False]
    assert sequence_softmax(x).values.isnan().tolist() == [True, True, False]


def test_softmax_of_huge_numbers() -> None:
    x = LoDTensor(torch.tensor([1e4, 1e4, -1e4, 3e38, -torch.inf]), [[0, 3, 5]])
    assert sequence_softmax(x).values.tolist() == [0.5, 0.5, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("features", [(), (3,)], ids=str)
@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrt"])
def test_long_sums_of_short_floats_are_carried_in_float32(
    pooling: str, features: tuple, dtype: torch.dtype
) -> None:
    x = LoDTensor.from_lengths(torch.ones(5000, *features, dtype=dtype), [[4096, 904]])
    got = sequence_pool(x, pooling)
    expected = loop_pool(x.to(torch.float64), pooling, 0.0)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=0)
    assert sequence_softmax(x).dtype == dtype


def test_a_mean_does_not_overflow_on_the_way() -> None:
    x = LoDTensor.from_lengths(torch.full((2000, 2), 100.0, dtype=torch.float16), [[2000]])
    assert sequence_pool(x, "mean").tolist() == [[100.0, 100.0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_integers(dtype: torch.dtype) -> None:
    x = LoDTensor(torch.tensor([1, 1, 0]).to(dtype), [[0, 2, 2, 3]])
    assert sequence_pool(x, "sum").dtype == torch.int64
    assert sequence_pool(x, "sum").tolist() == [2, 0, 0]
    for pooling, expected in (("max", [1, 1, 0]), ("first", [1, 1, 0]), ("last", [1, 1, 0])):
        got = sequence_pool(x, pooling, pad_value=1)
        assert got.dtype == dtype
        assert got.tolist() == expected
    assert sequence_reverse(x).values.tolist() == [1, 1, 0]
    for function in (lambda: sequence_pool(x, "mean"), lambda: sequence_softmax(x)):
        with pytest.raises(LoDError, match="floating point"):
            function()


# Expand


def test_expand_as_paddle_does() -> None:
    y = LoDTensor.from_lengths(torch.zeros(8), [[2, 2], [3, 3, 1, 1]])
    x = LoDTensor.from_lengths(torch.tensor([1, 2, 3, 4]), [[2, 2]])
    got = sequence_expand(x, y, ref_level=0)
    assert got.values.tolist() == [1, 2, 1, 2, 3, 4, 3, 4]
    assert got.recursive_sequence_lengths() == [[2, 2, 2, 2]]
    x = LoDTensor.from_lengths(torch.tensor([1, 2, 3]), [[2, 1]])
    got = sequence_expand(x, LoDTensor.from_lengths(torch.zeros(2), [[0, 2]]))
    assert got.values.tolist() == [3, 3]
    assert got.recursive_sequence_lengths() == [[1, 1]]


@pytest.mark.parametrize("level", [0, 1, 2, -1, -2, -3])
def test_expand_a_tensor_to_any_level(level: int) -> None:
    y = LoDTensor.from_lengths(torch.zeros(6), [[1, 0, 2], [2, 0, 1], [3, 2, 1]])
    lengths = y.lengths(level).tolist()
    x = torch.arange(len(lengths)).requires_grad_(False)
    got = sequence_expand(x, y, level)
    assert got.values.tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]
    assert got.recursive_sequence_lengths() == y.recursive_sequence_lengths()[: level % 3 + 1]


def test_expand_a_lod_tensor_passes_gradients() -> None:
    x = rows([[2, 1]], 2)
    y = LoDTensor.from_lengths(torch.zeros(3), [[0, 3]])
    (grad,) = torch.autograd.grad(sequence_expand(x, y).values.sum(), x.values)
    assert grad.tolist() == [[0, 0], [0, 0], [3, 3]]


# Mask


@given(st.lists(st.integers(0, 6)), st.none() | st.integers(0, 8))
def test_mask(lengths: list[int], maxlen: int | None) -> None:
    width = max(lengths, default=0) if maxlen is None else maxlen
    mask = sequence_mask(torch.tensor(lengths, dtype=torch.int32), maxlen)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(lengths), width)
    assert mask.tolist() == [[t < n for t in range(width)] for n in lengths]


# Errors

ONE = LoDTensor.from_lengths(torch.zeros(5, 2), [[2, 3]])
TWO = LoDTensor.from_lengths(torch.zeros(5, 2), [[1, 1], [2, 3]])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sequence_pool(torch.zeros(3), "sum"), ["'x' must be a LoDTensor", "shape [3]"]),
        (lambda: sequence_pool(ONE, "median"), ["no such pooling", "'median'", "sum, mean, sqrt"]),
        (
            lambda: sequence_pool(ONE.long(), "sum", 0.5),
            ["'pad_value' must be a value of torch.int64"],
        ),
        (lambda: sequence_softmax([ONE]), ["sequence_softmax: 'x' must be a LoDTensor"]),
        (lambda: sequence_expand(torch.zeros(3), ONE), ["one entry per sequence", "3 rows", "2"]),
        (lambda: sequence_expand(torch.zeros(()), ONE), ["[sequences, ...]"]),
        (lambda: sequence_expand(ONE, torch.zeros(2)), ["'y' must be a LoDTensor"]),
        (lambda: sequence_expand(torch.zeros(2), ONE, 1), ["no such level"]),
        (
            lambda: sequence_expand(LoDTensor.from_lengths(torch.zeros(2), [[2]]), ONE),
            ["1 sequences", "pass x.values"],
        ),
        (lambda: sequence_concat(ONE), ["takes a list of LoDTensors"]),
        (lambda: sequence_concat([]), ["takes a list of LoDTensors"]),
        (lambda: sequence_concat([ONE, torch.zeros(5, 2)]), ["'[1]' must be a LoDTensor"]),
        (lambda: sequence_concat([ONE, TWO]), ["[0] and [1]", "1 levels against 2"]),
        (lambda: sequence_concat([ONE, ONE, ONE[:1]]), ["[0] and [2]", "level 0: 2 sequences against 1"]),
        (
            lambda: sequence_concat([TWO, LoDTensor.from_lengths(torch.zeros(5, 2), [[2, 0], [2, 3]])]),
            ["level 0, sequence 0: length 1 against 2"],
        ),
        (lambda: sequence_concat([ONE, ONE.map(lambda v: v[:, :1])]), ["rows of one shape", "[2] and [1]"]),
        (lambda: sequence_slice(ONE, [0], [1]), ["'offset' must have one entry per sequence", "1", "2"]),
        (lambda: sequence_slice(ONE, [0, 0], [1]), ["'length' must have one entry per sequence"]),
        (
            lambda: sequence_slice(ONE, [0, 2], [2, 2]),
            ["sequence 1 does not", "offset 2, length 2", "3"],
        ),
        (lambda: sequence_slice(ONE, [-1, 0], [1, 1]), ["sequence 0 does not", "offset -1"]),
        (lambda: sequence_slice(ONE, [0, 1], [1, -1]), ["sequence 1 does not", "length -1"]),
        (lambda: sequence_slice(ONE, [0, 1], [1, 2**63 - 1]), ["sequence 1 does not"]),
        (
            lambda: sequence_slice(ONE, [0.0, 1.0], [1, 1]),
            ["'offset' must be a 1-D list"],
        ),
        (lambda: sequence_mask([1, -2]), ["must not be negative", "-2 at index 1"]),
        (lambda: sequence_mask([[1, 2]]), ["1-D list or tensor of integers"]),
        (lambda: sequence_mask([1, 2], -1), ["'maxlen' must be a whole number from 0"]),
        (lambda: sequence_mask([1, 2], 1.5), ["'maxlen' must be"]),
    ],
)
def test_errors(call: Callable[[], object], says: list[str]) -> None:
    with pytest.raises(LoDError) as error:
        call()
    for text in says:
        assert text in str(error.value)


# Cost


class Operators(TorchDispatchMode):
    """How many operators run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_loop_over_sequences(name: str) -> None:
    def count(n: int) -> int:
        x = LoDTensor.from_lengths(torch.ones(sum(range(n)), 2), [list(range(n))])
        with Operators() as operators:
            OPERATIONS[name][0](x)
        return operators.count

    assert count(5) == count(50)


@pytest.mark.parametrize("name", OPERATIONS)
def test_indices_go_to_the_device_of_the_values(name: str) -> None:
    x = rows([[2, 0], [3, 1]], 2).detach()
    on_meta = bare(OPERATIONS[name][0](x.to("meta")))
    assert on_meta.device.type == "meta"
    assert on_meta.shape == bare(OPERATIONS[name][0](x)).shape


def test_sequences_do_not_see_each_other() -> None:
    x = rows([[0, 3, 1, 4]], 2)
    bounds = x.lod[-1].tolist()
    for name, (ours, _) in OPERATIONS.items():
        y = ours(x)
        out_bounds = y.lod[-1].tolist() if isinstance(y, LoDTensor) else list(range(5))
        for (a, b), (start, stop) in zip(pairwise(bounds), pairwise(out_bounds), strict=True):
            (grad,) = torch.autograd.grad(bare(y)[start:stop].sum(), x.values, retain_graph=True)
            outside = grad.abs().sum() - grad[a:b].abs().sum()
            assert outside == 0, name
