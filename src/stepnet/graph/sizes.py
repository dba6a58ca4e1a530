"""Sizes that a graph does not know, and those of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._library.fake_impl import allocate_size

from stepnet.data.modes import as_written, without_any_mode


def open_size(least: int = 0) -> Any:
    """A size of a result of an operator that is known as it runs.

    Torch's own way breaks graphs unless `fullgraph=True`, since what comes later may ask for the number. What
    does breaks the graph there.
    """
    context: Any = torch.library.get_ctx()
    return allocate_size(context._shape_env, least)


@contextlib.contextmanager
def for_open_sizes() -> Iterator[tuple[Any, Any]]:
    """Trace a step in here, apart from what is around: what tells of sizes that stay open, and the mode in
    which tensors have such."""
    from torch._guards import tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    fake = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)  # constants of the step
    fake.cache_enabled = False  # as in `compiler.trace.torch_tracers`
    with without_any_mode(), as_written(torch.device("cpu")), tracing(None):
        yield env, fake


def row_shape(x: Tensor, axis: int, levels: int) -> tuple[int, ...]:
    """The shape of one row of a leaf of x.

    >>> row_shape(torch.zeros(5, 2, 3), 0, 0), row_shape(torch.zeros(5, 3), 0, 1)
    ((3,), (3,))
    """
    shape = [*x.shape]
    if not levels:
        del shape[axis]
    return tuple(shape[1:])
