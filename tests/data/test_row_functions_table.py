"""The table of row-wise functions as a whole: every name is real, and no entry lets a row see another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import MethodDescriptorType
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import few
from stepnet.data import row_functions
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError, RowMixError


def test_every_name_of_the_table_is_a_torch_function() -> None:
    rows = [(place, name) for place, name, _ in row_functions._rows()]
    by_name = row_functions._SPACES_BY_NAME
    spaces_of = [((by_name[place],) if place else row_functions._SPACES, name) for place, name in rows]
    assert [name for spaces, name in spaces_of if not any(hasattr(s, name) for s in spaces)] == []
    assert len(rows) == len(set(rows))
    remedied = {name for names in row_functions.REMEDIES.values() for name in names.split()}
    spaces = (*row_functions._SPACES, torch._VF)
    assert [n for n in remedied if not any(hasattr(s, n) for s in spaces)] == []


def test_a_wrong_entry_of_the_table_is_caught_by_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(row_functions.RULES, torch.nonzero, row_functions.pointwise)
    monkeypatch.setitem(row_functions.RULES, torch.trace, row_functions.pointwise)
    for function, shape in ((torch.nonzero, r"\[77, 2\]"), (torch.trace, r"\[\]")):
        with pytest.raises(RowMixError, match=f"a result of shape {shape}"):
            function(LoDTensor(torch.rand(11, 7), [[0, 11]]))


def test_copies_of_views_and_what_torch_makes_of_norms_and_softmax_are_row_wise() -> None:
    x = LoDTensor(torch.rand(4, 3, 2), [[0, 1, 4]])
    functions: Any = torch
    calls: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [  # by features, and by rows
        ("_safe_softmax", (-1,), (0,)),
        ("native_layer_norm", ([3, 2], None, None, 1e-5), ([4, 3, 2], None, None, 1e-5)),
        ("squeeze_copy", (1,), (0,)),
        ("select_copy", (1, 0), (0, 0)),
        ("unsqueeze_copy", (1,), (0,)),
        ("transpose_copy", (1, 2), (0, 1)),
        ("diagonal_copy", (0, 1, 2), (0, 0, 1)),
        ("unfold_copy", (1, 2, 1), (0, 2, 1)),
    ]
    for name, by_features, by_rows in calls:
        function = getattr(functions, name)
        found, plain = function(x, *by_features), function(x.values, *by_features)
        pairs = zip(found, plain, strict=True) if isinstance(plain, tuple) else [(found, plain)]
        for ours, theirs in pairs:
            assert torch.equal(ours.values, theirs)
            assert ours.structure == x.structure
        with pytest.raises(RowMixError):
            function(x, *by_rows)


def test_a_term_of_rows_does_not_meet_the_features_of_a_product() -> None:
    rows: Any = LoDTensor(torch.rand(3), [[0, 1, 3]])
    with pytest.raises(RowMixError, match="its rows meet features"):
        torch.addmm(rows, torch.rand(3, 3), torch.rand(3, 3))
    assert torch.addmv(rows, torch.rand(3, 3), torch.rand(3)).shape == (3,)


def guesses(x: LoDTensor) -> Iterator[tuple[Any, ...]]:
    """Arguments that a function may be called with, of sizes that all coincide."""
    n = x.shape[0]
    plain = [torch.rand([n] * k, dtype=torch.float64) for k in range(4)]
    index = torch.arange(n)
    yield from [(x,), (x, x), (x, x, x), ([x, x],)]
    numbers = [-2, -1, 0, 1]
    yield from ((x, k) for k in (-3, *numbers, 2))
    yield from (([x, x], k) for k in numbers)
    yield from ((x, a, b) for a, b in itertools.product(numbers, numbers))
    yield from ((x, p) for p in plain)
    yield from ((p, x) for p in plain)
    yield from ((x, p, q) for p, q in itertools.product(plain, plain))
    yield from ((p, x, x) for p in plain)
    yield from ((x, k, index) for k in numbers)
    ids = LoDTensor((x.values * 3).long(), x.lod)
    square = index.repeat(n, 1)
    yield from ((x, i) for i in (index, square, ids))
    yield from ((i, x) for i in (index, square, ids))
    yield from [(ids,), (ids, plain[2]), (plain[2], ids), (ids, 3), (x, 1, ids), (x, -1, ids)]
    yield from (
        (x, s) for s in ([n], [n, n], [n, n, n], [-1, n], [n, -1], [1, n], [1, 1], [0, 1], [1, 0], [0, 2, 1])
    )


def permuted(given: Any, order: Tensor, plain_too: bool) -> Any:
    if isinstance(given, LoDTensor):
        return LoDTensor(given.values[order], given.lod)
    if isinstance(given, list):
        return [permuted(g, order, plain_too) for g in given]
    return given[order] if plain_too and isinstance(given, Tensor) else given


def other_row(given: Any) -> Any:
    """The same with other numbers in row 0."""
    if isinstance(given, list):
        return [other_row(g) for g in given]
    if not isinstance(given, LoDTensor):
        return given
    values = given.values.clone()
    values[0] = 1 - values[0] if values.is_floating_point() else 2 - values[0]
    return given.with_values(values)


def readings(args: tuple[Any, ...], order: Tensor, ndim: int) -> Iterator[tuple[Any, ...]]:
    """The arguments with rows reordered; a plain tensor of as many dimensions or more: rows, or weights."""
    choices = [
        (False, True) if isinstance(a, Tensor) and a.ndim >= ndim and len(a) == len(order) else (False,)
        for a in args
    ]
    for chosen in itertools.product(*choices):
        yield tuple(permuted(a, order, rows) for a, rows in zip(args, chosen, strict=True))


DECLINES = (RowMixError, LoDError, TypeError, RuntimeError, IndexError, ValueError, AttributeError)


def attempt(function: Callable, args: tuple[Any, ...]) -> list[Any] | None:
    """The results, or None where the function does not take these arguments, or refuses them."""
    try:
        return list(result) if isinstance(result := function(*args), tuple | list) else [result]
    except (*DECLINES, ZeroDivisionError):
        return None


BY_CHANCE = {
    "poisson",
    "binomial",
    "feature_dropout",
    "feature_alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
}
BY_CHANCE |= {"cauchy_", "geometric_", "log_normal_"}
BY_CHANCE |= {"bernoulli", "dropout", "alpha_dropout", "rrelu", "multinomial", "gumbel_softmax", "empty_like"}
BY_CHANCE |= {"rand_like", "randn_like", "randint_like", "normal_", "uniform_", "exponential_", "random_"}


@pytest.mark.exhaustive  # seconds; of each kind of function: test_row_functions.py
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ndim", few([1, 2, 3], [2]))
def test_no_function_of_the_table_gives_a_row_that_saw_another(ndim: int) -> None:
    """Whatever is accepted commutes with any order of the rows, on tensors where every size is 3."""
    order = torch.tensor([2, 0, 1])
    x = LoDTensor(torch.rand([3] * ndim, dtype=torch.float64) + 0.1, [[0, 1, 2, 3]])
    kept, checked = x.values.clone(), set()
    for function in row_functions.RULES:
        name = function.__name__
        if isinstance(function, MethodDescriptorType):  # Python takes nothing but tensors for `self` of these
            continue
        if name in BY_CHANCE or name.rstrip("_") in BY_CHANCE:
            continue
        for args in guesses(x):
            version = x.values._version
            accepted = attempt(function, args) is not None
            if x.values._version != version:
                x.values.copy_(kept)
            if not accepted:  # as most are
                continue
            results = attempt(function, tuple(a.clone() if isinstance(a, LoDTensor) else a for a in args))
            if results is None or not all(isinstance(r, LoDTensor) for r in results):
                continue
            checked.add(function)
            answers = [attempt(function, reading) for reading in readings(args, order, ndim)]
            for k, result in enumerate(results):
                moved = result.values[order]
                fits = [a is not None and torch.allclose(a[k].values, moved, equal_nan=True) for a in answers]
                assert any(fits), f"{name} of {args}"
    assert len(checked) > 250
