"""A loop over arrays as a frame and as the same Python written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import stepnet
from stepnet import LoDTensor, TensorArray

Body = Callable[[Any, Any, Any], Any]  # (what is read, the step, what was written before) -> what is written


def by_hand(body: Body, arrays: Sequence[TensorArray], steps: int) -> TensorArray:
    """What a frame means."""
    out = TensorArray()
    for t in range(steps):
        out.write(t, body([array.read(t) for array in arrays], torch.tensor(t), out))
    return out


def as_frame(body: Body, arrays: Sequence[TensorArray], steps: int) -> TensorArray:
    """The same as a frame."""
    out = TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= steps)
        out.write(s, body([array.read(s) for array in arrays], s, out))
        loop.update(s, s + 1)
    assert int(loop.results[0]) == max(steps, 0)
    return out


def same(body: Body, arrays: Sequence[TensorArray], steps: int, wanted: Sequence[Tensor]) -> None:
    """Hold a frame against the loop by hand, values and gradients."""
    results = [list(run(body, arrays, steps)) for run in (as_frame, by_hand)]
    found, expected = ([v.values if isinstance(v, LoDTensor) else v for v in made] for made in results)
    assert len(found) == len(expected) == steps
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = []
    for values in (found, expected):
        total = sum((v.pow(2).sum() for v in values if v.requires_grad), torch.zeros(()))
        if total.requires_grad:
            gradients.append(torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True))
    for a, b in zip(*gradients, strict=True) if gradients else ():
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
