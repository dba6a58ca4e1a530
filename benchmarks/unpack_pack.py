"""Cutting a ragged batch into steps and joining it again, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import rnn

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor

from .harness import Case, Contender, Topic


def cases(quick: bool) -> Iterator[Case]:
    """Lengths uniform from T/10 to T; in the end, every row and its gradient is where it was."""
    sizes = [(8, 20, 16)]
    if not quick:
        sizes += [(32, 100, 64), (32, 500, 64), (128, 100, 256), (8, 1000, 128)]
    for batch, longest, features in sizes:
        draw = torch.Generator().manual_seed(batch * longest)
        lengths = torch.randint(longest // 10, longest + 1, (batch,), generator=draw)
        lengths[0] = longest
        rows = torch.randn(int(lengths.sum()), features, generator=draw)
        grads = torch.randn(rows.shape, generator=draw)
        yield Case(
            name=f"B={batch} T={longest} F={features}",
            contenders={
                "stepnet": _through_array(rows, grads, lengths),
                "torch, padded": _through_padded(rows, grads, lengths),
                "torch, list": _through_list(rows, grads, lengths),
            },
            reference="torch, padded",
            facts={"B": batch, "T": longest, "F": features, "rows": len(rows)},
            rtol=0.0,
            atol=0.0,
        )


def _contender(
    inputs: Tensor, grads: Tensor, trip: Callable[[Tensor], Tensor], to_rows: Callable[[Tensor], Tensor]
) -> Contender:
    leaf = inputs.clone().requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        result = trip(leaf)
        return result, torch.autograd.grad(result, leaf, grads)[0]

    def values(done: Any) -> Mapping[str, Tensor]:
        return {"rows": to_rows(done[0]), "gradient of rows": to_rows(done[1])}

    return Contender(run, values)


def _through_array(rows: Tensor, grads: Tensor, lengths: Tensor) -> Contender:
    """From rows to a tensor per step, and back to rows."""
    lod = LoDTensor.from_lengths(rows, [lengths]).lod

    def trip(values: Tensor) -> Tensor:
        array, indices_map = TensorArray.unpack(LoDTensor(values, lod))
        return array.pack(0, indices_map).values

    return _contender(rows, grads, trip, lambda rows: rows)


def _through_padded(rows: Tensor, grads: Tensor, lengths: Tensor) -> Contender:
    """From a padded tensor to a PackedSequence, and back; it has all steps in one tensor, not cut yet."""
    valid = torch.arange(int(lengths.max())) < lengths[:, None]
    padded, padded_grads = torch.zeros(2, *valid.shape, rows.shape[1])
    padded[valid], padded_grads[valid] = rows, grads

    def trip(padded: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(packed, batch_first=True)[0]

    return _contender(padded, padded_grads, trip, lambda padded: padded[valid])


def _through_list(rows: Tensor, grads: Tensor, lengths: Tensor) -> Contender:
    """From rows to a list of sequences to a PackedSequence, and back to rows."""
    counts = lengths.tolist()

    def trip(rows: Tensor) -> Tensor:
        packed = rnn.pack_sequence(list(rows.split(counts)), enforce_sorted=False)
        return torch.cat(rnn.unpack_sequence(packed))

    return _contender(rows, grads, trip, lambda rows: rows)


TOPIC = Topic(
    name="unpack_pack",
    claim="unpack and pack of a ragged batch, against torch's PackedSequence",
    cases=cases,
)
