"""What training on several processes needs besides torch.distributed: means over the rows of all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import LoDError


def row_mean(loss_sum: Tensor, rows: Any, group: Any = None) -> Tensor:
    """The part that this process has in the mean over all rows of all processes.

    DistributedDataParallel and fully_shard take the mean of the gradients of all processes. Where they hold
    unequal numbers of rows, the mean of their means is not the mean over rows; of these parts it is::

        sum(row_mean(...) of every process) / processes == sum of all losses / number of all rows

    Args:
        loss_sum: the sum of the losses of the rows here; 0 where there are none.
        rows: how many rows there are here, or the sum of their weights: a number or a tensor of one.
        group: the processes; None: all. Every one of them must call, as often as the others.

    Returns:
        `loss_sum * processes / rows of all`, nan where nobody has a row. One process, or none that was
        initialised, has the plain mean.

    Raises:
        LoDError: `rows` is negative, or not one number.

    >>> row_mean(torch.tensor(6.0), 4)
    tensor(1.5000)
    """
    total = torch.as_tensor(rows, dtype=torch.float64).detach().reshape(-1)
    if len(total) != 1 or not bool((total >= 0).all()):
        raise LoDError("row_mean: 'rows' must be one number, not negative", got=rows)
    processes = 1
    if dist.is_available() and dist.is_initialized():
        processes = dist.get_world_size(group)
        total = total.to(loss_sum.device, copy=True)
        dist.all_reduce(total, group=group)
    return loss_sum * (processes / total[0]).to(loss_sum.dtype).to(loss_sum.device)
