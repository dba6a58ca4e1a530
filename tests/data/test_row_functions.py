"""Torch functions on LoDTensors: those that keep rows apart work, those that would mix them are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError, RowMixError
from tables import holds

LENGTHS = [[2, 0, 2], [3, 0, 5, 3]]


def ragged(*features: int, positive: bool = False) -> LoDTensor:
    values = torch.rand(11, *features, dtype=torch.float64) * 0.8 + 0.1
    return LoDTensor.from_lengths(values if positive else values - 0.5, LENGTHS)


def pieces(x: LoDTensor) -> list[LoDTensor]:
    return [x[i : i + 1] for i in range(len(x))]


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


# What keeps rows apart. Run on a batch, it must give what it gives on each sequence alone.

V = torch.randn(7, dtype=torch.float64)
W = torch.randn(7, 5, dtype=torch.float64)
KEPT: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "F.gelu": F.gelu,
    "F.silu": F.silu,
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "F.softplus": F.softplus,
    "F.prelu": lambda x: F.prelu(x, torch.tensor([0.1], dtype=torch.float64)),
    "torch.special.expit": torch.special.expit,
    "clamp": lambda x: x.clamp(-0.1, 0.1),
    "clamp by a tensor": lambda x: torch.clamp(x, min=V),
    "where": lambda x: torch.where(x > 0, x, V),
    "method where": lambda x: x.where(x > 0, 0.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 7.0),
    "lerp": lambda x: torch.lerp(x, x * 2, V),
    "addcmul": lambda x: torch.addcmul(x, x, V, value=2),
    "maximum": lambda x: torch.maximum(x, V),
    "max of two": lambda x: torch.max(x, V),
    "isfinite": torch.isfinite,
    "nan_to_num": torch.nan_to_num,
    "cast": lambda x: x.float().double(),
    "ones_like": torch.ones_like,
    "clone": lambda x: x.clone().contiguous(),
    "linear": lambda x: F.linear(x, W.T, W[0]),
    "matmul": lambda x: torch.matmul(x, W),
    "mm": lambda x: x.mm(W),
    "mv": lambda x: x.mv(V),
    "addmm": lambda x: torch.addmm(W[0], x, W, beta=2) + x.relu().mm(W).addmm(x, W, alpha=3),
    "addmv": lambda x: torch.addmv(x.sum(-1), x, V),
    "inner": lambda x: torch.inner(x, W.T),
    "diag_embed": lambda x: x.diag_embed(1) - torch.diag_embed(x, 1, 2, 1),
    "@": lambda x: x @ W,
    "matmul by keywords": lambda x: torch.matmul(other=W, input=x),
    "sum by keywords": lambda x: torch.sum(dim=-1, input=x),
    "@ vector": lambda x: x @ V,
    "layer_norm": lambda x: F.layer_norm(x, (7,)),
    "rms_norm": lambda x: F.rms_norm(x, (7,)),
    "group_norm": lambda x: F.group_norm(x, 1),
    "batch_norm in evaluation": lambda x: F.batch_norm(x, V, V.abs() + 1),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, 7, 7, dtype=torch.float64)),
    "softmax": lambda x: torch.softmax(x, -1),
    "F.softmax": lambda x: F.softmax(x, dim=1),
    "F.log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "F.normalize": F.normalize,
    "F.glu": lambda x: F.glu(torch.cat([x, x], 1)),
    "sum": lambda x: x.sum(-1),
    "sum keepdim": lambda x: torch.sum(x, dim=1, keepdim=True),
    "sum axis": lambda x: torch.sum(x, axis=-1),
    "sum of a tuple of dims": lambda x: x.sum((1,)),
    "mean": lambda x: torch.mean(x, [-1]),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "norm": lambda x: x.norm(2, -1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "max over features": lambda x: x.max(-1),
    "argmax": lambda x: x.argmax(-1),
    "any": lambda x: (x > 0).any(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sort": torch.sort,
    "topk": lambda x: x.topk(3),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(2, 1),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "cat of one": lambda x: torch.cat((x,), dim=1),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "stack last": lambda x: torch.stack([x, x * 2], -1),
    "gather": lambda x: x.gather(1, x.argsort(-1)[:]),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "split": lambda x: x.split(3, -1),
    "chunk": lambda x: x.chunk(2, dim=1),
    "unbind": lambda x: x.unbind(-1),
    "narrow": lambda x: x.narrow(-1, 2, 3),
    "select": lambda x: x.select(1, 2),
    "index_select": lambda x: x.index_select(-1, torch.tensor([2, 0, 2])),
    "flatten": lambda x: x.unsqueeze(1).flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (7, 1)),
    "reshape": lambda x: x.reshape(-1, 7, 1),
    "view": lambda x: x.view(-1, 1, 7),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1),
    "repeat": lambda x: x.repeat(1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=-1),
    "transpose": lambda x: x.unsqueeze(1).transpose(1, 2),
    "permute": lambda x: x.unsqueeze(1).permute(0, 2, 1),
    "movedim": lambda x: x.unsqueeze(1).movedim(1, 2),
    "pad": lambda x: F.pad(x, (1, 2)),
    "one_hot": lambda x: F.one_hot((x > 0).long(), 2),
    "embedding": lambda x: F.embedding((x > 0).long(), W),
    "conv1d": lambda x: F.conv1d(x.unsqueeze(1), torch.ones(2, 1, 3, dtype=torch.float64)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1, dim=-1),
    "mse_loss per element": lambda x: F.mse_loss(x, x * 2, reduction="none"),
    "cross_entropy per row": lambda x: F.cross_entropy(x, x.argmax(-1), reduction="none"),
    "multinomial": lambda x: (x > -9).double().multinomial(7).sort(-1)[0],
    "+": lambda x: 1 + x + 1 + V + (V + x),
    "-": lambda x: 1 - x - 1 - (V - x),
    "*": lambda x: 2 * x * 2 * V * (V * x),
    "/": lambda x: (2 / (x + 3)) / 2,
    "//": lambda x: 2 // (x + 3) + x // 0.1,
    "%": lambda x: x % 0.3 + 2 % (x + 3),
    "**": lambda x: (x + 3) ** 2 + 2**x,
    "minus, plus, abs": lambda x: -x + abs(x) + (+x),
    "compare": lambda x: ((x > 0) & (x <= 0.3)) | (x == 0.4) | (x != x) ^ (x < V) | ~(x >= 0),
    "shift": lambda x: ((x > 0).long() << 2) >> 1,
    "frexp": torch.frexp,
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")  # of no rows
def test_row_wise_functions_work_as_on_each_sequence_alone() -> None:
    holds(works_as_on_each_sequence_alone, {name: (function,) for name, function in KEPT.items()})


def works_as_on_each_sequence_alone(function: Callable[[Any], Any]) -> None:
    x = ragged(7)
    results = leaves(function(x))
    alone = [leaves(function(piece)) for piece in pieces(x)]
    for k, result in enumerate(results):
        assert isinstance(result, LoDTensor)
        assert result.structure is x.structure
        torch.testing.assert_close(result.values, torch.cat([parts[k].values for parts in alone]))
    for result, expected in zip(results, leaves(function(x.values)), strict=True):
        torch.testing.assert_close(result.values, expected)


DEEP: dict[str, Callable[[Any], Any]] = {
    "matmul of two": lambda x: x @ x.transpose(1, 2),
    "bmm": lambda x: torch.bmm(x, x.transpose(-1, -2)),
    "matmul from the left": lambda x: torch.ones(2, 5, dtype=torch.float64) @ x,
    "matmul by a batch of one": lambda x: x @ torch.ones(1, 7, 3, dtype=torch.float64),
    "vector from the left": lambda x: torch.ones(5, dtype=torch.float64) @ x,
    "sum of two dims": lambda x: x.sum((-2, -1)),
    "layer_norm of two dims": lambda x: F.layer_norm(x, (5, 7)),
    "pad of two dims": lambda x: F.pad(x, (1, 0, 0, 2)),
    "transpose": lambda x: x.transpose(-1, -2),
    "permute": lambda x: x.permute(-3, 2, 1),
    "reshape": lambda x: x.reshape(-1, 35),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "batch_norm in evaluation": lambda x: F.batch_norm(x, torch.zeros(5).double(), torch.ones(5).double()),
    "flip": lambda x: torch.flip(x, [1, 2]) + x.flip(1, 2),
    "plain with fewer dimensions": lambda x: x + torch.ones(5, 7) + torch.ones(7) + torch.ones(()),
}


@pytest.mark.parametrize("function", DEEP.values(), ids=DEEP.keys())
def test_row_wise_functions_of_more_feature_dimensions(function: Callable[[Any], Any]) -> None:
    x = ragged(5, 7)
    result = function(x)
    assert result.structure is x.structure
    torch.testing.assert_close(result.values, torch.cat([function(piece).values for piece in pieces(x)]))
    torch.testing.assert_close(result.values, function(x.values))


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(7, 3),
        nn.LayerNorm(7),
        nn.RMSNorm(7),
        nn.GroupNorm(1, 7),
        nn.PReLU(),
        nn.ReLU(inplace=False),
        nn.GELU(),
        nn.Softmax(-1),
        nn.BatchNorm1d(7).eval(),
        nn.Dropout(0.5).eval(),
        nn.Identity(),
        nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_modules(module: nn.Module) -> None:
    module, x = module.double(), ragged(7)
    result = module(x)
    assert result.structure is x.structure
    torch.testing.assert_close(result.values, torch.cat([module(piece).values for piece in pieces(x)]))


def test_modules_of_integers_and_of_chance() -> None:
    ids = LoDTensor.from_lengths(torch.randint(0, 9, (11,)), LENGTHS)
    embedded = nn.Embedding(9, 4)(ids)
    assert embedded.structure is ids.structure
    assert embedded.shape == (11, 4)
    dropped = nn.Dropout(0.5)(torch.ones_like(ragged(50)))
    assert dropped.structure is not None
    assert set(dropped.values.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped.values[0], dropped.values[1])


def test_gradients_pass() -> None:
    x, linear = ragged(7), nn.Linear(7, 3).double()
    values = x.values.requires_grad_()
    torch.tanh(linear(x) * 2).values.sum().backward()
    grad, values.grad = values.grad, None
    torch.tanh(linear(values) * 2).sum().backward()
    assert grad is not None
    assert values.grad is not None
    torch.testing.assert_close(grad, values.grad)


# What would mix rows.

REFUSED: dict[str, tuple[Callable[[LoDTensor], Any], str, str]] = {
    "sum": (torch.sum, "torch.sum", "sequence_pool"),
    "method sum": (lambda x: x.sum(), "torch.Tensor.sum", "sequence_pool"),
    "sum 0": (lambda x: x.sum(0), "dim=0", "sequence_pool"),
    "sum -2": (lambda x: x.sum(-2), "dim=-2", "sequence_pool"),
    "sum 0 and 1": (lambda x: x.sum((1, 0)), "dim=0", "sequence_pool"),
    "sum of no dims": (lambda x: x.sum(()), "all dimensions", "sequence_pool"),
    "sum axis 0": (lambda x: torch.sum(x, axis=0), "dim=0", "sequence_pool"),
    "mean": (lambda x: x.mean(), "no dim", "sequence_pool"),
    "std of all": (lambda x: x.std(True), "no dim", "sequence_pool"),
    "max": (torch.max, "torch.max", "sequence_pool"),
    "max 0": (lambda x: x.max(0), "dim=0", "sequence_pool"),
    "norm": (lambda x: x.norm(), "no dim", "sequence_pool"),
    "argmax": (torch.argmax, "no dim", "sequence_pool"),
    "softmax 0": (lambda x: torch.softmax(x, 0), "dim=0", "sequence_softmax"),
    "F.softmax with no dim": (lambda x: F.softmax(x), "no dim", "sequence_softmax"),
    "module softmax": (nn.Softmax(0), "dim=0", "sequence_softmax"),
    "F.normalize 0": (lambda x: F.normalize(x, dim=0), "dim=0", "x.map"),
    "batch_norm in training": (nn.BatchNorm1d(7).double(), "batch_norm", "layer_norm"),
    "cat 0": (lambda x: torch.cat([x, x]), "no dim|dim=0", "sequence_concat"),
    "cat -2": (lambda x: torch.cat([x, x], dim=-2), "dim=-2", "sequence_concat"),
    "stack 0": (lambda x: torch.stack([x, x]), "dim=0", "x.map"),
    "stack -3": (lambda x: torch.stack([x, x], -3), "dim=-3", "x.map"),
    "vstack": (lambda x: torch.vstack([x, x]), "torch.vstack", "sequence_concat"),
    "sort 0": (lambda x: x.sort(0), "dim=0", "to_padded"),
    "topk 0": (lambda x: x.topk(2, 0), "dim=0", "to_padded"),
    "flip 0": (lambda x: x.flip(0), "dims=0", "sequence_reverse"),
    "flip 1 and 0": (lambda x: x.flip(1, 0), "dims=0", "sequence_reverse"),
    "roll": (lambda x: x.roll(1), "no dims", "sequence_reverse"),
    "roll 0": (lambda x: torch.roll(x, 1, 0), "dims=0", "sequence_reverse"),
    "cumsum 0": (lambda x: x.cumsum(0), "dim=0", "recurrent"),
    "diff 0": (lambda x: x.diff(dim=0), "dim=0", "recurrent"),
    "matmul from the left": (lambda x: torch.ones(3, 11).double() @ x, "summed over", "x.map"),
    "mm from the left": (lambda x: torch.mm(torch.ones(3, 11).double(), x), r"^torch\.mm would", "x.map"),
    "matmul of two": (lambda x: x @ x, "equally many, at least 3", "x.map"),
    "addmm from the left": (lambda x: torch.addmm(V, torch.ones(3, 11).double(), x), "summed over", "x.map"),
    "addmm of one row": (lambda x: torch.addmm(torch.ones(2, 5).double(), x, W), "a term of", "x.map"),
    "diag_embed of rows": (lambda x: x.diag_embed(0, 0, 1), "dim1=0", "x.map"),
    "x.T": (lambda x: x.t(), "Tensor.t", "x.map"),
    "transpose": (lambda x: x.transpose(0, 1), "dim0=0", "x.map"),
    "permute": (lambda x: x.permute(1, 0), "left as it is", "x.map"),
    "movedim": (lambda x: x.movedim(1, 0), "destination=0", "x.map"),
    "reshape": (lambda x: x.reshape(7, 11), "left as it is", "x.map"),
    "reshape to -1": (lambda x: x.reshape(-1), "left as it is", "x.map"),
    "view": (lambda x: x.view(77), "left as it is", "x.map"),
    "flatten": (lambda x: x.flatten(), "start_dim=0", "x.map"),
    "squeeze": (lambda x: x.squeeze(), "no dim", "x.map"),
    "unsqueeze 0": (lambda x: x.unsqueeze(0), "dim=0", "x.map"),
    "unsqueeze -3": (lambda x: x.unsqueeze(-3), "dim=-3", "x.map"),
    "expand in front": (lambda x: x.expand(2, 11, 7), "left as it is", "sequence_expand"),
    "repeat rows": (lambda x: x.repeat(2, 1), "left as it is", "sequence_expand"),
    "repeat in front": (lambda x: x.repeat(2, 1, 1), "left as it is", "sequence_expand"),
    "repeat_interleave": (lambda x: x.repeat_interleave(2), "no dim", "sequence_expand"),
    "repeat_interleave 0": (lambda x: x.repeat_interleave(2, 0), "dim=0", "sequence_expand"),
    "split": (lambda x: x.split(3), "dim=0", "sequence_slice"),
    "unbind": (lambda x: x.unbind(), "dim=0", "sequence_slice"),
    "narrow 0": (lambda x: x.narrow(0, 1, 2), "dim=0", "sequence_slice"),
    "index_select 0": (lambda x: x.index_select(0, torch.tensor([1])), "dim=0", "sequence_slice"),
    "gather 0": (lambda x: x.gather(0, (x > 0).long()), "dim=0", "sequence_slice"),
    "masked_select": (lambda x: x.masked_select(x > 0), "masked_select", "sequence_slice"),
    "nonzero": (torch.nonzero, "nonzero", "x.map"),
    "where of one": (torch.where, "only a condition", "x.map"),
    "layer_norm of rows": (lambda x: F.layer_norm(x, (11, 7)), "normalized_shape", "x.map"),
    "pad of rows": (lambda x: F.pad(x, (0, 0, 1, 1)), "reaches dimension 0", "x.map"),
    "conv1d over rows": (lambda x: F.conv1d(x, torch.ones(2, 11, 3).double()), "exactly 3", "to_padded"),
    "module conv1d": (nn.Conv1d(11, 2, 3).double(), "exactly 3", "to_padded"),
    "max_pool1d over rows": (lambda x: F.max_pool1d(x, 2), "exactly 3", "sequence_pool"),
    "one_hot of all": (lambda x: F.one_hot((x > 0).long()), "num_classes=-1", "give num_classes"),
    "mse_loss": (lambda x: F.mse_loss(x, x), "reduction='mean'", "reduction='none'"),
    "cross_entropy": (lambda x: F.cross_entropy(x, x.argmax(-1)), "reduction='mean'", "reduction='none'"),
    "module cross_entropy": (lambda x: nn.CrossEntropyLoss()(x, x), "reduction='mean'", "reduction='none'"),
    "a class a row": (
        lambda x: F.multilabel_soft_margin_loss(x, x.sum(-1), reduction="none"),
        "1 dimensions",
        "sequence_pool",
    ),
    "einsum": (lambda x: torch.einsum("rf,rg->fg", x, x), "einsum", "to_padded"),
    "LSTM": (nn.LSTM(7, 3).double(), "lstm", "stepnet.nn.LSTM"),
    "LSTMCell": (nn.LSTMCell(7, 3).double(), "lstm_cell", "recurrent"),
    "attention": (
        lambda x: nn.MultiheadAttention(7, 1).double()(x, x, x),
        "multi_head_attention",
        "to_padded",
    ),
    "indexing by it": (lambda x: W[(x > 0).long()], "__getitem__", "embedding"),
    "weights are not rows": (lambda x: F.linear(W.T, x), "all rows share|11 rows", "x.map"),
    "keywords in another order": (
        lambda x: torch.matmul(other=x, input=torch.ones(11, 11).double()),
        "summed over",
        "x.map",
    ),
    "values as a table of embeddings": (
        lambda x: torch.embedding(x, torch.zeros(11).long()),
        "torch.embedding",
        "embedding",
    ),
    "a bias per row": (lambda x: F.linear(x, W.T, torch.ones(11, 5)), "a bias of shape", "add it"),
    "a LoDTensor as a weight": (lambda x: F.linear(x, x), "all rows share", "x.map"),
    "item": (lambda x: x.item(), "item", "x.values"),
    "numpy": (lambda x: x.numpy(), "numpy", "x.values"),
    "backward": (lambda x: x.backward(), "backward", "x.values"),
}


def test_functions_that_mix_rows_are_refused() -> None:
    holds(refused, REFUSED)


def refused(function: Callable, says: str, remedy: str) -> None:
    with pytest.raises(RowMixError, match=says) as error:
        function(ragged(7))
    assert remedy in str(error.value).split("remedy:")[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1),
        lambda x: torch.softmax(x, -1),
        torch.sort,
        lambda x: x.cumsum(-1),
        lambda x: F.linear(x, torch.ones(2, 11)),
        lambda x: x @ torch.ones(11),
        lambda x: F.layer_norm(x, (11,)),
        lambda x: F.pad(x, (1, 1)),
        lambda x: x.unsqueeze(0),
        lambda x: x.unsqueeze(-2),
        lambda x: x.reshape(11, -1).reshape(-1, 1).permute(1, 0),
        lambda x: F.cross_entropy(x, torch.tensor(3), reduction="none"),
    ],
)
def test_the_last_dimension_of_bare_rows_is_rows(function: Callable) -> None:
    with pytest.raises(RowMixError):
        function(ragged())


# LoDTensors and tensors meeting.


def test_two_lod_tensors_of_one_lod() -> None:
    x = ragged(7)
    same = LoDTensor(torch.ones(11, 1), x.lod)
    assert same.structure is not x.structure
    torch.testing.assert_close((x + same).values, x.values + 1)
    assert (x + same).structure is x.structure


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([[2, 0, 2], [3, 1, 4, 3]], "level 1, sequence 1: length 0 against 1"),
        ([[1, 1, 2], [3, 0, 5, 3]], "level 0, sequence 0: length 2 against 1"),
        ([[2, 2], [3, 0, 5, 3]], "level 0: 3 sequences against 2"),
        ([[3, 0, 5, 3]], "2 levels against 1"),
        ([[2, 0, 2], [3, 0, 5, 4]], "level 1, sequence 3: length 3 against 4"),
    ],
)
@pytest.mark.parametrize("meet", [torch.add, lambda a, b: torch.cat([a, b], -1), lambda a, b: a * b])
def test_two_lod_tensors_of_different_lods(meet: Callable, lengths: list[list[int]], says: str) -> None:
    x, other = ragged(7), LoDTensor.from_lengths(torch.ones(sum(lengths[-1]), 7), lengths)
    with pytest.raises(LoDError) as error:
        meet(x, other)
    assert says in str(error.value)
    assert str(LENGTHS) in str(error.value)
    assert str(lengths) in str(error.value)
    assert "sequence_expand" in str(error.value)


def test_lod_tensors_of_different_dimensions_do_not_broadcast() -> None:
    square = LoDTensor(torch.ones(3, 3), [[0, 3]])
    rows = LoDTensor(torch.arange(3.0), [[0, 3]])
    with pytest.raises(RowMixError, match=r"x\.unsqueeze\(-1\)"):
        square * rows
    assert (square * rows.unsqueeze(-1)).values.tolist() == [[0.0] * 3, [1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("rows", [0, 1, 3, 7])
@pytest.mark.parametrize(
    ("shape", "works"),
    [
        ((), True),
        ((1,), True),
        ((7,), True),
        ((1, 7), True),
        ((1, 1), True),
        (("rows", 7), True),
        (("rows", 1), True),
        ((2, 7), False),
        ((5, 1), False),
        ((1, 1, 7), False),
        (("rows", 1, 1), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("left", [True, False])
def test_plain_tensors_meet_features_or_all_rows(rows: int, shape: tuple, works: bool, left: bool) -> None:
    x = LoDTensor.from_lengths(torch.randn(rows, 7), [[rows]])
    plain = torch.randn([rows if n == "rows" else n for n in shape])

    def meet() -> Any:
        return plain * x if left else x * plain

    if works:
        assert torch.equal(meet().values, x.values * plain)
        assert meet().structure is x.structure
    else:
        with pytest.raises(RowMixError, match="a plain tensor of shape"):
            meet()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", [(2,), (5,), (1, 3), (1, 1)], ids=str)
def test_bare_rows_meet_as_many_rows_or_one(rows: int, shape: tuple) -> None:
    x = LoDTensor.from_lengths(torch.randn(rows), [[rows]])
    with pytest.raises(RowMixError):
        x + torch.ones(shape)
    assert (x + torch.ones(1)).shape == (x + torch.ones(rows)).shape == (rows,)


def test_one_row_does_not_spread() -> None:
    x = LoDTensor(torch.ones(1, 4), [[0, 1]])
    for spread in (
        lambda: x + torch.ones(3, 4),
        lambda: torch.where(torch.ones(3, 4, dtype=torch.bool), x, x),
        lambda: torch.cat([x, torch.ones(3, 4)], -1),
        lambda: x.expand(3, 4),
        lambda: x @ torch.ones(3, 4, 2),
        lambda: F.mse_loss(x, torch.ones(3, 4), reduction="none"),
        lambda: x.squeeze(),
        lambda: x.reshape(4),
    ):
        with pytest.raises(RowMixError):
            spread()


@pytest.mark.parametrize("rows", [1, 11])
def test_cat_with_plain_rows(rows: int) -> None:
    x = LoDTensor.from_lengths(torch.randn(rows, 7), [[rows]])
    extra = torch.randn(rows, 2)
    assert torch.equal(torch.cat([extra, x], -1).values, torch.cat([extra, x.values], -1))
    with pytest.raises(RowMixError, match=f"{rows} rows"):
        torch.cat([x, torch.randn(rows + 1, 2)], 1)


def test_numpy_arrays_are_refused() -> None:
    x = ragged(7)
    for meet in (lambda: x + torch.ones(7).numpy(), lambda: torch.ones(7).numpy() * x):
        with pytest.raises(RowMixError, match="as_tensor"):
            meet()


# In place.


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1),
        lambda x: x.mul_(x.clone()),
        lambda x: torch.relu_(x),
        lambda x: F.relu(x, inplace=True),
        nn.ReLU(inplace=True),
        lambda x: x.zero_(),
        lambda x: x.clamp_(0, 1),
        lambda x: x.masked_fill_(x > 0, 0.0),
        lambda x: x.copy_(torch.ones(7)),
    ],
)
def test_in_place_functions_change_the_values_and_give_back_the_same(function: Callable) -> None:
    x = ragged(7)
    before, values = x.values.clone(), x.values
    result = function(x)
    assert result is x
    assert x.values is values
    assert not torch.equal(before, values)
    expected = before.clone()
    function(expected)
    assert torch.equal(values, expected)


def test_augmented_assignment_makes_a_new_one() -> None:
    x = ragged(7)
    before, old = x.values.clone(), x
    x += 1
    assert x is not old
    assert torch.equal(old.values, before)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(11, 7).double().add_(x),
        lambda x: torch.add(x, 1, out=torch.zeros(11, 7).double()),
        lambda x: torch.add(torch.ones(7), 1, out=x),
        lambda x: torch.zeros(11, 7).double().copy_(x),
        lambda x: torch.zeros(11, 7).double().__setitem__(0, x),
    ],
)
def test_rows_are_not_written_into_plain_tensors(function: Callable) -> None:
    with pytest.raises(RowMixError):
        function(ragged(7))


# What is asked about them.


def test_questions_get_plain_answers() -> None:
    x = ragged(7)
    assert (x.dim(), x.ndim, x.size(1), tuple(x.shape), x.numel()) == (2, 2, 7, (11, 7), 77)
    assert torch.is_floating_point(x)
    made = x.new_zeros(2, 3), x.new_full((1,), 2), x.new_tensor([1])
    assert [(type(t), t.dtype) for t in made] == [(torch.Tensor, x.dtype)] * 3
    assert not x.is_complex()
    assert x.is_nested is False
    assert torch.equal(x, x.clone())
    assert torch.allclose(x, x + 1e-12)
    assert not torch.equal(x, LoDTensor(x.values, [[0, 11]]))


def test_unknown_attributes() -> None:
    x = ragged(7)
    assert not hasattr(x, "nonsense")
    assert not hasattr(x, "__array_interface__")
    with pytest.raises(AttributeError, match=r"no attribute 'grad'; its rows are a tensor, x\.values"):
        x.grad  # noqa: B018


def test_named_results_keep_their_names() -> None:
    x = ragged(7)
    best = x.max(-1)
    assert type(best) is torch.return_types.max
    assert torch.equal(best.values.values, x.values.max(-1).values)
    assert best.indices.structure is x.structure
