"""Functions of sequences in a graph: what runs, and the shapes of what it gives."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data import sequence
from stepnet.data.convert import pack_like
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.errors import LoDError
from stepnet.front.static import padded

from .calls import add_kind, unreadable
from .sizes import open_size

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class SequenceCall:
    """A call of a function of sequences; see `data.in_graph.call` for what it is given."""

    function: Function
    levels: tuple[int, ...]
    options: tuple[Any, ...]
    transforms: bool = False

    @property
    def read_back(self) -> int:
        """None of its results is read by backward."""
        return 0

    def run(self, tensors: Tensors, sizes: Sequence[int]) -> list[Tensor]:
        """The rows of the result, then its offsets if they are new ones."""
        values, lods = self._parts(tensors)
        plain = values[: len(values) - len(lods)]
        ragged = [
            LoDTensor.of(v, LoD.handed(tuple(levels), v.shape[0]))
            for v, levels in zip(values[len(plain) :], lods, strict=True)
        ]
        return self.function.run(plain, ragged, *self.options, *sizes)

    def by_plan(self, tensors: Tensors, sizes: Sequence[int], needs: Sequence[bool] | None) -> None:
        """There is no shorter way."""

    def flow(self, tensors: Tensors, sizes: Sequence[int], needs: Sequence[bool]) -> None:
        """Any result may carry a gradient of any input."""

    def draws(self, tensors: Tensors, sizes: Sequence[int], needs: Sequence[bool]) -> bool:
        """None of them draws noise."""
        return False

    def empty(self, tensors: Tensors, sizes: Sequence[int]) -> list[Tensor]:
        """Tensors of the shapes of those."""
        return self.function.empty(*self._parts(tensors), *self.options, *sizes)

    def _parts(self, tensors: Tensors) -> tuple[list[Tensor], list[list[Tensor]]]:
        rest = iter(tensors[len(tensors) - sum(self.levels) :])
        values = [*tensors[: len(tensors) - sum(self.levels)]]
        return values, [[next(rest) for _ in range(count)] for count in self.levels]


@dataclass(frozen=True)
class Function:
    """`run(tensors, lodtensors, *options)`, and `empty(values, offsets, *options)` for the shapes."""

    run: Callable[..., list[Tensor]]
    empty: Callable[..., list[Tensor]]


def _rows_of(result: Any) -> Tensor:
    return result.values if isinstance(result, LoDTensor) else result


def _whole(result: LoDTensor) -> list[Tensor]:
    return [result.values, *result.lod]


def _pooled(values: Tensors, lods: Sequence[Tensors], pooling: str, pad_value: float) -> list[Tensor]:
    x = values[0]
    whole = pooling == "sum" and not (x.is_floating_point() or x.is_complex())
    return [x.new_empty((lods[0][-1].shape[0] - 1, *x.shape[1:]), dtype=torch.int64 if whole else x.dtype)]


def _alike(values: Tensors, lods: Sequence[Tensors]) -> list[Tensor]:
    return [values[0].new_empty(values[0].shape)]


def _expanded(values: Tensors, lods: Sequence[Tensors], ref_level: int) -> list[Tensor]:
    x, y = values
    below = lods[0][ref_level % len(lods[0]) + 1 :]
    rows = below[0].shape[0] - 1 if below else y.shape[0]
    return [x.new_empty((rows, *x.shape[1:]))]


def _repeated(values: Tensors, lods: Sequence[Tensors], ref_level: int) -> list[Tensor]:
    x = values[0]
    return [x.new_empty((open_size(), *x.shape[1:])), *(level.new_empty((open_size(),)) for level in lods[0])]


def _joined(values: Tensors, lods: Sequence[Tensors]) -> list[Tensor]:
    rows = sum([v.shape[0] for v in values[1:]], values[0].shape[0])
    return [values[0].new_empty((rows, *values[0].shape[1:])), lods[0][-1].new_empty(lods[0][-1].shape)]


def _slice_shapes(values: Tensors, lods: Sequence[Tensors]) -> list[Tensor]:
    x, last = values[-1], lods[0][-1]
    return [x.new_empty((open_size(), *x.shape[1:])), last.new_empty(last.shape)]


def _mask_shapes(values: Tensors, _: Any, *known: int) -> list[Tensor]:
    (lengths,) = values
    return [lengths.new_empty((lengths.shape[0], *(known or (open_size(),))), dtype=torch.bool)]


def _packed(data: Tensor, sizes: Tensor, order: Tensor | None = None) -> PackedSequence:
    return PackedSequence(data, sizes, None, order)


def _unpack_shapes(values: Tensors, _: Any) -> list[Tensor]:
    data, sizes, *order = values
    ends: Any = order[0].shape[0] + 1 if order else open_size()
    return [data.new_empty(data.shape), sizes.new_empty((ends,), dtype=torch.int64, device="cpu")]


def _beside_shapes(values: Tensors, lods: Sequence[Tensors]) -> list[Tensor]:
    n, size = lods[0][-1].shape[0] - 1, open_size()
    x: Any = values[0]
    return [x.new_empty((n, size, *x.shape[1:])), x.new_empty((n, size), dtype=torch.bool)]


def _padded_shapes(values: Tensors, lods: Sequence[Tensors], value: float, batch_first: bool) -> list[Tensor]:
    n, longest = lods[0][-1].shape[0] - 1, open_size()
    lead = (n, longest) if batch_first else (longest, n)
    return [values[0].new_empty((*lead, *values[0].shape[1:]))]


def _unpadded_shapes(values: Tensors, _: Any, batch_first: bool) -> list[Tensor]:
    x, lengths = values
    ends = lengths.new_empty((lengths.shape[0] + 1,), dtype=torch.int64, device="cpu")
    return [x.new_empty((open_size(), *x.shape[2:])), ends]


def _ends_shapes(values: Tensors, _: Any, *sizes: int) -> list[Tensor]:
    return [values[0].new_empty((len(sizes) + 1,), dtype=torch.int64, device="cpu")]


def _of_lengths(lengths: Tensor, known: Sequence[int]) -> list[Tensor]:
    (offsets,) = LoD.from_lengths([known or lengths]).levels
    return [torch.zeros(int(offsets[-1]), 1), offsets]


def _of_lengths_shapes(values: Tensors, _: Any, *known: int) -> list[Tensor]:
    ends = values[0].new_empty((values[0].shape[0] + 1,), dtype=torch.int64, device="cpu")
    return [torch.empty((sum(known) if known else open_size(), 1), device="cpu"), ends]


def _own(lod: LoD, rows: int, counts: Sequence[int]) -> list[Tensor]:
    if lod.rows != rows:
        raise LoDError(
            "the offsets of a graph must end at the number of rows",
            got=lod.rows,
            expected=rows,
            remedy="the offsets and the values of one LoDTensor go in together",
        )
    return [*lod.levels] if counts else [*lod.levels, *map(lod.lengths, range(len(lod.levels)))]


def _levels(values: Tensors, more: int, counts: Sequence[int]) -> list[Tensor]:
    """The offsets of each level; of open sizes, which are those of its lengths, that come with them."""
    sizes: list[Any] = [n + more for n in counts]
    if not counts:
        sizes = [open_size() for _ in values]
        sizes = [*(n + 1 for n in sizes), *sizes]
    return [values[0].new_empty((n,), dtype=torch.int64, device="cpu") for n in sizes]


FUNCTIONS: dict[str, Function] = {
    "offsets": Function(
        lambda t, _, rows, *counts: _own(LoD(t), rows, counts),
        lambda t, _, __, *counts: _levels(t, 0, counts),
    ),
    "lengths": Function(
        lambda t, _, rows, *counts: _own(LoD.from_lengths(t), rows, counts),
        lambda t, _, __, *counts: _levels(t, 1, counts),
    ),
    "ends": Function(lambda _, __, *sizes: [*LoD.from_lengths([sizes]).levels], _ends_shapes),
    "rows": Function(lambda t, _, *known: _of_lengths(t[0], known), _of_lengths_shapes),
    "pad": Function(lambda _, xs, *how: [xs[0].to_padded(*how)[0]], _padded_shapes),
    "unpad": Function(lambda t, _, how: _whole(LoDTensor.from_padded(t[0], t[1], how)), _unpadded_shapes),
    "unpack": Function(lambda t, _: _whole(LoDTensor.from_packed(_packed(*t))), _unpack_shapes),
    "pack": Function(lambda t, _: [pack_like(_packed(*t), t[0]).data], _alike),
    "beside": Function(lambda _, xs: [*padded(xs[0])], _beside_shapes),
    "pool": Function(lambda _, xs, *how: [_rows_of(sequence.sequence_pool(xs[0], *how))], _pooled),
    "softmax": Function(lambda _, xs: [sequence.sequence_softmax(xs[0]).values], _alike),
    "reverse": Function(lambda _, xs: [sequence.sequence_reverse(xs[0]).values], _alike),
    "slice": Function(
        lambda t, xs: [(part := sequence.sequence_slice(xs[0], *t)).values, part.lod[-1]], _slice_shapes
    ),
    "mask": Function(lambda t, _, *known: [sequence.sequence_mask(t[0], *known)], _mask_shapes),
    "expand": Function(lambda t, ys, level: [sequence.sequence_expand(t[0], ys[0], level).values], _expanded),
    "repeat": Function(lambda _, xs, level: _whole(sequence.sequence_expand(xs[0], xs[1], level)), _repeated),
    "concat": Function(
        lambda _, xs: [(joined := sequence.sequence_concat(xs)).values, joined.lod[-1]], _joined
    ),
}


def _load(text: str) -> SequenceCall:
    try:
        name, rest = text.split(" ", 1)
        levels, options = ast.literal_eval(f"({rest.replace(') (', '), (')})")
        numbers = tuple(float(o) if o in ("inf", "-inf", "nan") else o for o in options)
        if not all(type(level) is int for level in levels):
            raise ValueError(f"levels {levels}")
        return SequenceCall(FUNCTIONS[name], levels, numbers)
    except (ValueError, LookupError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise unreadable(str(error)) from error


add_kind("sequence", _load)
