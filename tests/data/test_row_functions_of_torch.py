"""Every function of torch's own database of ops on LoDTensors: row by row, or refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from stepnet.data import row_functions
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError, RowMixError

pytest.importorskip("expecttest", reason="torch's database of ops needs it; it is in the extra dev")

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of the samples

REFUSALS = (RowMixError, LoDError)
# Methods of Tensor that are called as functions of the class: Python itself refuses what is no Tensor.
UNBOUND = "item __getitem__ __radd__ __rmul__ __rand__ __ror__ __rxor__ __rmatmul__ cfloat cdouble"
UNBOUND += " cauchy exponential geometric log_normal normal uniform"
OF_TENSORS = {*UNBOUND.split(), "T", "H"}  # what a LoDTensor has not
# About the values as a whole.
ABOUT = {"equal", "allclose", "new_zeros", "new_ones", "new_empty", "new_full"}
NUMBERS_BY_CHANCE = {"empty_like"}  # what is in fresh memory
SAMPLES = 2  # of each op, and 5 by `make fuzz`


@cache
def database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db  # four seconds

    return op_db


def ragged(tensor: Tensor) -> LoDTensor:
    n = len(tensor)
    return LoDTensor(tensor, [[0, n // 2, n // 2, n]])


def with_rows(given: Any) -> bool:
    return isinstance(given, Tensor) and given.ndim > 0 and given.layout is torch.strided


def calls(sample: Any) -> Iterator[tuple[Any, ...]]:
    """The arguments with the first one ragged, and with all that have as many rows."""
    first, rest = sample.input, tuple(sample.args)
    listed = isinstance(first, list | tuple)
    heads = list(first) if listed else [first]
    if not heads or not all(with_rows(head) and len(head) == len(heads[0]) for head in heads):
        return
    head = [ragged(each) for each in heads] if listed else ragged(first)
    n = len(heads[0])
    also = tuple(ragged(a) if with_rows(a) and len(a) == n else a for a in rest)
    yield (head, *rest)
    if any(isinstance(a, LoDTensor) for a in also):
        yield (head, *also)


def changed(given: Any, row: int) -> Any:
    """The same with other numbers in one row."""
    if isinstance(given, list):
        return [changed(each, row) for each in given]
    if not isinstance(given, LoDTensor):
        return given
    values = given.values.detach().clone()
    values[row] = values[row].logical_not() if values.dtype == torch.bool else values[row].flip(-1)
    if values.is_floating_point() and values[row].numel():
        values[row] = values[row] * 0.5 + 0.125
    return given.with_values(values)


def bare(given: Any) -> Any:
    if isinstance(given, list):
        return [bare(each) for each in given]
    return given.values.detach().clone() if isinstance(given, LoDTensor) else given


def leaves(result: Any) -> list[Any]:
    return (
        [leaf for part in result for leaf in leaves(part)] if isinstance(result, list | tuple) else [result]
    )


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for other devices
    return leaves(op(*args, **kwargs))


def fresh(given: Any) -> Any:
    if isinstance(given, list):
        return [fresh(each) for each in given]
    return given.with_values(given.values.detach().clone()) if isinstance(given, LoDTensor) else given


def verdict(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What became of one call; an assertion where a row saw another one."""
    try:
        expected: Any = run(op.op, tuple(map(bare, args)), kwargs)
    except Exception:  # torch refuses it: any error will do
        expected = None
    try:
        results = run(op.op, tuple(map(fresh, args)), kwargs)
    except REFUSALS:
        return "refused"
    except Exception:
        if expected is None or op.name in OF_TENSORS:
            return "no such call"
        raise
    if op.name in ABOUT or NotImplemented in results:
        return "about the whole"
    assert all(isinstance(result, LoDTensor) for result in results), f"{op.name} gave {results}"
    if op.name in NUMBERS_BY_CHANCE:
        return "row by row"
    torch.testing.assert_close([r.values for r in results], expected, equal_nan=True, rtol=0, atol=0)
    rows = len(results[0].values)
    for row in range(min(rows, 3)):
        try:
            others = run(op.op, tuple(changed(fresh(a), row) for a in args), kwargs)
        except Exception:  # numbers that the function does not take
            continue
        kept = [i for i in range(rows) if i != row]
        for a, b in zip(results, others, strict=True):
            torch.testing.assert_close(a.values[kept], b.values[kept], equal_nan=True, rtol=1e-4, atol=1e-4)
    return "row by row"


def samples(op: Any, most: int = SAMPLES) -> list[Any]:
    dtype = torch.float64 if torch.float64 in op.dtypes else min(op.dtypes, key=str, default=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.default_generator.manual_seed(0)
            # the public way looks for the test that asks, among all modules of the process, each time
            return list(islice(op.sample_inputs_func(op, "cpu", dtype, False), most))
        except Exception:  # ops of other devices
            return []


PARTS = 4


@pytest.mark.exhaustive  # torch's database; of each rule: test_row_functions_table.py
@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_of_torch_keeps_rows_apart_or_is_refused(part: int, request: pytest.FixtureRequest) -> None:
    most = 5 if request.config.getoption("exhaustive") else SAMPLES
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for op in database()[part::PARTS]:
        for sample in samples(op, most):
            for args in calls(sample):
                try:
                    seen[verdict(op, args, sample.kwargs)] += 1
                except Exception as error:
                    wrong.append(f"{op.name} {args} {sample.kwargs}: {type(error).__name__} {error}"[:600])
    assert not wrong, "\n".join(wrong)
    assert seen["row by row"] > 50 * most
    assert seen["refused"] > 50 * most


@pytest.mark.exhaustive  # as all of torch's database
@pytest.mark.parametrize("name", ["softmax", "cumsum", "sort", "linalg.inv"])
def test_one_that_mixes_rows_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (op,) = [op for op in database() if op.name == name and not op.variant_test_name][:1]
    function = op.op
    monkeypatch.setitem(row_functions.RULES, function, row_functions.pointwise)
    every = [(args, sample.kwargs) for sample in samples(op) for args in calls(sample)]

    def judge() -> None:
        for args, kwargs in every:
            verdict(op, args, kwargs)

    with pytest.raises(AssertionError, match=r"not close|not equal"):
        judge()


def test_rows_made_in_inference_mode_are_told_in_training():
    with torch.inference_mode():
        x = LoDTensor.from_lengths(torch.randn(5, 3), [[3, 2]])
    linear = torch.nn.Linear(3, 4)
    for call in (lambda: linear(x), lambda: x.add_(1)):
        with pytest.raises(LoDError, match=r"made in inference mode(.|\n)*x.clone\(\)"):
            call()
    linear(x.clone()).values.sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.values.sum(0).expand(4, 3))
