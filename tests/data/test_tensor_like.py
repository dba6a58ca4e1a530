"""LoDTensor where a tensor is expected: collated, copied field by field, shown, asked for attributes."""

from __future__ import annotations

import copy
import dataclasses
import operator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch.utils.data import DataLoader, default_collate, default_convert

from stepnet.data import collate
from stepnet.data.lod import LoDTensor
from stepnet.errors import FrozenError, LoDError, RowMixError
from strategies import lod_tensors


def ragged(*features: int, dtype: torch.dtype = torch.float64) -> LoDTensor:
    return LoDTensor.from_lengths(torch.randn(6, *features, dtype=dtype), [[2, 0, 4]])


def assert_same(a: LoDTensor, b: LoDTensor) -> None:
    assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
    torch.testing.assert_close(a.values, b.values, rtol=0, atol=0)


# Batches of batches


@given(x=lod_tensors(max_levels=2), y=lod_tensors(min_levels=1, max_levels=2))
def test_default_collate_gives_what_collate_gives(x: LoDTensor, y: LoDTensor) -> None:
    if x.lod_level != y.lod_level:
        with pytest.raises(LoDError, match="does not fit batch 0"):
            default_collate([x, y])
        return
    batch = default_collate([{"x": x, "n": 1}, {"x": y, "n": 2}])
    assert_same(batch["x"], collate([x, y]))
    assert batch["n"].tolist() == [1, 2]
    assert_same(batch["x"][0], x)
    assert_same(batch["x"][1], y)


def test_a_data_loader_with_no_collate_function() -> None:
    data = [ragged(3) for _ in range(5)]
    batches = list(DataLoader(data, batch_size=2))  # pyright: ignore[reportArgumentType]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert_same(batches[1][0], data[2])
    assert default_convert(data[0]) is data[0]


# Copies made field by field


def by_fields(x: LoDTensor, function: Any) -> LoDTensor:
    """As lightning_utilities.apply_to_collection treats a dataclass."""
    fields = {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
    twin = copy.deepcopy(x, {id(value): value for value in fields.values()})
    for name, value in fields.items():
        parts = tuple(map(function, value)) if isinstance(value, tuple) else function(value)
        setattr(twin, name, parts)
    return twin


def test_a_copy_without_its_fields_takes_them_once() -> None:
    x = ragged(3)
    halved = by_fields(x, lambda t: t.half() if t.is_floating_point() else t)
    assert_same(halved, x.half())
    assert x.dtype == torch.float64
    for name in ("values", "lod"):
        for frozen in (halved, x, copy.deepcopy(x)):
            with pytest.raises(FrozenError, match=f"cannot set '{name}'"):
                setattr(frozen, name, getattr(x, name))


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LoDError, match="number of rows"):
        by_fields(ragged(3), lambda t: t[1:] if t.is_floating_point() else t)
    with pytest.raises(LoDError, match="must start at 0"):
        by_fields(ragged(3), lambda t: t if t.is_floating_point() else t + 1)


# What is shown


def test_html_has_the_lengths_and_the_first_rows() -> None:
    x = LoDTensor.from_lengths(torch.arange(48.0).reshape(24, 2), [[1, 2], [20, 0, 4]])
    page = x._repr_html_()
    assert "LoDTensor(2 sequences, lengths [[1, 2], [20, 0, 4]]" in page
    assert page.count("<tr>") == 4
    assert "<td>0</td><td>20</td><td><pre>0 1<br>2 3<br>" in page
    assert "<td>1</td><td>0</td><td><pre></pre>" in page
    assert "<td>2</td><td>4</td><td><pre>40 41<br>" in page
    assert "&hellip;" in page


@pytest.mark.parametrize(
    "x",
    [
        LoDTensor(torch.zeros(0, 3), [[0]]),
        LoDTensor(torch.zeros(2, 0), [[0, 2]]),
        LoDTensor(torch.ones(3, dtype=torch.bool), [[0, 3]]),
        LoDTensor(torch.zeros(3, 2, 20), [[0, 1, 3]]),
        LoDTensor(torch.zeros(3, device="meta"), [[0, 3]]),
        LoDTensor(torch.zeros(90, requires_grad=True), [list(range(91))]),
        LoDTensor(torch.zeros(2, dtype=torch.complex64), [[0, 2]]),
        LoDTensor(torch.zeros(2, dtype=torch.bfloat16), [[0, 2]]),
    ],
    ids=repr,
)
def test_html_of_anything(x: LoDTensor) -> None:
    page = x._repr_html_()
    assert page.startswith("<code>LoDTensor(")
    assert len(page) < 5000


# Attributes and protocols of Python


def test_attributes_that_keep_rows() -> None:
    x = ragged(3, 4)
    assert_same(x.mT, x.transpose(1, 2))
    z = x + 1j * x
    assert_same(z.imag, x)
    assert_same(z.real, x)
    assert_same(z.mH, z.conj().transpose(1, 2))
    assert x.grad_fn is None
    assert (x.itemsize, x.nbytes) == (8, 576)
    assert not x.is_meta
    with pytest.raises(RowMixError, match="mT"):
        _ = ragged(3).mT
    assert not hasattr(x, "T")


def test_to_takes_another_one() -> None:
    x = ragged(3)
    assert x.to(x.float()).dtype == torch.float32
    assert x.to(torch.zeros(1, dtype=torch.int32)).dtype == torch.int32
    assert_same(x.type_as(x.half()), x.half())
    assert x.type(torch.float32).dtype == torch.float32
    with pytest.raises(RowMixError, match="plain tensor"):
        torch.Tensor.type_as(torch.zeros(6), x)


def test_membership_is_ambiguous() -> None:
    with pytest.raises(LoDError, match="ambiguous"):
        _ = 1.0 in ragged(3)


def test_a_tensor_is_not_indexed_by_the_sequences() -> None:
    table, x = torch.arange(25.0).view(5, 5), LoDTensor.from_lengths(torch.tensor([0, 1, 2, 3]), [[2, 2]])
    for call in (
        lambda: table[x],
        lambda: operator.getitem(table, x),
        lambda: operator.setitem(table, x, 0.0),
    ):
        with pytest.raises(RowMixError, match=r"(get|set)item(.|\n)*embedding"):
            call()
    assert [s.tolist() for s in reversed(x)] == [[2, 3], [0, 1]]
    assert x[1].tolist() == [2, 3]


def test_requires_grad_in_place() -> None:
    x = ragged(3)
    assert x.requires_grad_() is x
    x.square().values.sum().backward()
    torch.testing.assert_close(x.values.grad, 2 * x.values.detach())


# Functions with a rule of their own


EINSUM = {
    "a weight": ("nf,fg->ng", lambda x: (x, torch.ones(3, 5, dtype=torch.float64))),
    "row by row": ("nf,nf->n", lambda x: (x, x * 2)),
    "outer": ("nf,ng->nfg", lambda x: (x, x)),
    "a plain tensor with rows": ("nf,ng->nfg", lambda x: (x, torch.ones(6, 2, dtype=torch.float64))),
    "no arrow": ("nf, fp", lambda x: (x, torch.ones(3, 5, dtype=torch.float64))),
    "dots": ("...f,fg->...g", lambda x: (x, torch.ones(3, 5, dtype=torch.float64))),
    "dots that are features": ("n...,...->n", lambda x: (x, torch.ones(3, dtype=torch.float64))),
    "dots and no arrow": ("...f,f", lambda x: (x, torch.ones(3, dtype=torch.float64))),
}
MIXED = {
    "sum over rows": ("nf,ng->fg", lambda x: (x, x)),
    "rows of two letters": ("nf,mf->nm", lambda x: (x, x)),
    "rows last": ("nf->fn", lambda x: (x,)),
    "no arrow": ("nf,nf", lambda x: (x, x)),
    "no arrow, rows last": ("nf,fg", lambda x: (x, torch.ones(3, 5, dtype=torch.float64))),
    "dots before rows": ("...,n...->...n", lambda x: (torch.ones(2, 3, dtype=torch.float64), x)),
    "rows of dots that meet more": ("...f,...f->...f", lambda x: (torch.ones(2, 6, 3), x)),
    "a letter twice": ("nn->n", lambda x: (x,)),
    "too few rows": ("nf,nf->n", lambda x: (x, torch.ones(1, 3, dtype=torch.float64))),
}


@pytest.mark.parametrize(("equation", "operands"), EINSUM.values(), ids=EINSUM)
def test_einsum_row_by_row(equation: str, operands: Any) -> None:
    x = ragged(3)
    got = torch.einsum(equation, *operands(x))
    assert got.structure is x.structure
    torch.testing.assert_close(got.values, torch.einsum(equation, *operands(x.values)))


@pytest.mark.parametrize(("equation", "operands"), MIXED.values(), ids=MIXED)
def test_einsum_that_mixes_rows(equation: str, operands: Any) -> None:
    with pytest.raises(RowMixError, match="einsum"):
        torch.einsum(equation, *operands(ragged(3)))


def test_attention_within_each_row() -> None:
    q = ragged(2, 5, 4)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    got = F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=mask)
    want = F.scaled_dot_product_attention(q.values, q.values * 2, q.values + 1, attn_mask=mask)
    torch.testing.assert_close(got.values, want)
    with pytest.raises(RowMixError, match="would mix rows"):
        F.scaled_dot_product_attention(ragged(4), ragged(4), ragged(4))


def test_instance_norm_without_running_statistics() -> None:
    x = ragged(3, 5)
    torch.testing.assert_close(torch.nn.InstanceNorm1d(3)(x).values, torch.nn.InstanceNorm1d(3)(x.values))
    tracked = torch.nn.InstanceNorm1d(3, track_running_stats=True).double()
    with pytest.raises(RowMixError, match="running statistics"):
        tracked(x)
    assert tracked.eval()(x).structure is x.structure


LOSSES = {
    "gaussian": lambda **how: (torch.nn.GaussianNLLLoss(**how), lambda x: (x, x * 2, x.exp())),
    "poisson": lambda **how: (torch.nn.PoissonNLLLoss(**how), lambda x: (x, x.exp())),
    "hinge": lambda **how: (torch.nn.HingeEmbeddingLoss(**how), lambda x: (x, x.sign())),
    "soft margin": lambda **how: (torch.nn.SoftMarginLoss(**how), lambda x: (x, x.sign())),
    "ranking": lambda **how: (torch.nn.MarginRankingLoss(**how), lambda x: (x, x * 2, x.sign())),
    "triplet": lambda **how: (torch.nn.TripletMarginLoss(**how), lambda x: (x, x * 2, x + 1)),
    "multi margin": lambda **how: (torch.nn.MultiMarginLoss(**how), lambda x: (x, x.argmax(-1))),
    "many labels": lambda **how: (torch.nn.MultiLabelSoftMarginLoss(**how), lambda x: (x, (x > 0).double())),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_per_row(loss: str) -> None:
    x = ragged(3)
    function, operands = LOSSES[loss](reduction="none")
    got = function(*operands(x))
    assert got.structure is x.structure
    torch.testing.assert_close(got.values, function(*operands(x.values)))
    mean, _ = LOSSES[loss]()
    with pytest.raises(RowMixError, match="reduction='none' gives a loss per row"):
        mean(*operands(x))


def test_a_cosine_loss_per_row() -> None:
    x = ragged(3)
    side = x.select(1, 0).sign()
    got = F.cosine_embedding_loss(x, x * x, side, reduction="none")
    want = F.cosine_embedding_loss(x.values, x.values.square(), side.values, reduction="none")
    torch.testing.assert_close(got.values, want)


NO_ARRAYS = {
    "asarray": np.asarray,
    "numpy()": lambda x: x.numpy(),
    "array": lambda x: np.array(x, np.float32),
    "array_equal": lambda x: np.array_equal(x, x),
    "stack": lambda x: np.stack([x, x]),
    "isclose": lambda x: np.isclose(x, x),
    "exp": np.exp,
    "sum": np.add.reduce,
    "float64": np.float64,
    "as_tensor": torch.as_tensor,
    "tensor": torch.tensor,
    "from_dlpack": torch.from_dlpack,
    "float": float,
    "int": int,
    "complex": complex,
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_it_is_no_array_and_no_number(name: str) -> None:
    """Sequences of one length neither, which numpy and torch would make a table of."""
    of: Any = NO_ARRAYS[name]
    for x in (ragged(3), LoDTensor(torch.ones(3), [[0, 1, 2, 3]])):
        with pytest.raises(RowMixError, match=r"no array, and no number(.|\n)*remedy"):
            of(x)


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.truediv, operator.lt, operator.ne])
@pytest.mark.parametrize("number", [np.float64(2), np.int64(2), np.array(2.0)], ids=repr)
def test_numbers_of_numpy_are_numbers(number: Any, op: Any) -> None:
    x = ragged(3)
    torch.testing.assert_close(op(number, x).values, op(2.0, x.values))
    with pytest.raises(RowMixError, match="meets tensors, not numpy arrays"):
        op(np.ones(3), x)
