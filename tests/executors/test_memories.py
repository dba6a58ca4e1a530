"""Attention by generated C over memories whose last lines are alike; gradients of memories as products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import few
from outcomes import outcome, wanting
from stepnet import LoDTensor, explain

OPTIMISED = False
F64 = torch.float64
H = L = 24  # enough lines and numbers for both
STEPS = [5, 0, 3, 4]


def attention(kind: str, behind: float = -1e9) -> tuple[Callable[..., Any], list[Tensor]]:
    """A step, and its weights. `behind`: the score of what is masked."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(H, n, dtype=F64, generator=draw).div_(5).requires_grad_() for n in (H, H, 1)]
    to_key, to_query, v = weights

    def step(x: Tensor, h: Tensor, static: Any) -> tuple[Any, Tensor]:
        rows, mask = (static, None) if isinstance(static, Tensor) else static
        query = h @ to_query
        if kind == "additive":
            scores = (torch.tanh(rows @ to_key + query[:, None]) @ v)[..., 0]
        elif kind == "projected":
            scores = (rows @ to_key * query[:, None]).sum(2)
        elif kind == "heads":
            heads = (rows @ to_key).unflatten(2, (3, 8))
            scores = torch.einsum("nlhd,nhd->nhl", heads, query.unflatten(1, (3, 8)))
        else:
            scores = torch.bmm(query[:, None], rows.transpose(1, 2))[:, 0]
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None] if kind == "heads" else ~mask, behind)
        parts = scores.softmax(-1)
        if kind == "heads":
            context = torch.einsum("nhl,nlhd->nhd", parts, rows.unflatten(2, (3, 8))).flatten(1)
        else:
            context = torch.bmm(parts[:, None], rows)[:, 0]
        h = torch.tanh(x + context + 0.5 * h)
        return {"h": h, "parts": parts}, h

    return step, weights


def memories(name: str) -> LoDTensor | Any:
    """Of four sequences."""
    draw = torch.Generator().manual_seed(1)
    dense = torch.randn(4, L, H, dtype=F64, generator=draw)
    sizes = torch.tensor([3, L, 0, 11])
    mask = torch.arange(L) < sizes[:, None]
    if name == "ragged":
        return LoDTensor.from_lengths(torch.randn(38, H, dtype=F64, generator=draw), [sizes.tolist()])
    if name == "dense":
        return dense
    padded = dense * mask[..., None]
    if name == "padded, no mask":
        return padded
    if name == "alike":
        return torch.where(mask[..., None], dense, dense[:, -1:])
    if name == "no numbers":
        return torch.where(mask[..., None], dense, torch.nan), mask
    return padded, mask


def compared(attending: tuple[Callable[..., Any], list[Tensor]], lengths: list[int], memory: Any) -> None:
    step, weights = attending
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(sum(lengths), H, dtype=F64, generator=draw)
    x, h = LoDTensor.from_lengths(x, [lengths]), torch.randn(len(lengths), H, dtype=F64, generator=draw)
    x, h, memory = wanting((x, h, memory))
    ours, plain = (outcome(step, x, h, backend, weights=weights, static=memory) for backend in ("c", "naive"))
    for mine, other in zip((*ours[0], *ours[1]), (*plain[0], *plain[1]), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10, equal_nan=True)


KINDS = {"dot": -1.0, "additive": 1e9, "projected": -1.0, "heads": float("-inf")}
SUMS = {"dot": 2, "additive": 1, "projected": 2, "heads": 0}  # over steps; heads are small


@pytest.mark.parametrize("kind", few([*KINDS], ["additive", "projected"]))
def test_lines_that_are_alike_are_gone_over_once(kind):
    step, ragged = attention(kind), memories("ragged")
    others = [] if kind == "projected" else ["dense", "padded, no mask", "alike"]
    with_masks = ["padded", "no numbers"] if kind == "additive" else []
    for name in ["ragged", *others, *with_masks]:
        compared(step, STEPS, memories(name))
    compared(step, [2], LoDTensor.from_lengths(ragged.values[:5], [[5]]))
    compared(step, [], LoDTensor.from_lengths(ragged.values[:0], [[]]))
    x = LoDTensor.from_lengths(torch.randn(12, H, dtype=F64), [STEPS])
    source = explain(step[0], x, torch.zeros(4, H, dtype=F64), static=wanting(ragged), source=True).source
    assert source is not None
    assert ("sn_alike" in source) == (kind != "heads")
    assert source.count("sn_over_steps_f64(") == SUMS[kind]


@pytest.mark.parametrize(("kind", "behind"), few([*KINDS.items()], [("additive", 1e9)]))
def test_what_is_behind_the_end_may_count(kind, behind):
    compared(attention(kind, behind), STEPS, memories("padded"))
