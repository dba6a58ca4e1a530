"""What training on several processes needs besides torch.distributed: means over the rows of all of them."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .data.arguments import brief
from .data.in_graph import by_python
from .errors import LoDError


@by_python("processes tell each other numbers")
def row_mean(loss_sum: Tensor, rows: Any, group: Any = None) -> Tensor:
    """The part that this process has in the mean over all rows of all processes.

    DistributedDataParallel and fully_shard take the mean of the gradients of all processes. Where they hold
    unequal numbers of rows, the mean of their means is not the mean over rows; of these parts it is::

        sum(row_mean(...) of every process) / processes == sum of all losses / number of all rows

    Where gradients of several batches add up to one step of the optimizer, `rows` is how many all of those
    batches have here: a mean for each of them would weigh the rows of small batches more.

    Args:
        loss_sum: the sum of the losses of the rows here; 0 where there are none.
        rows: how many rows there are here, or the sum of their weights: a number or a tensor of one.
        group: the processes; None: all. Every one of them must call, as often as the others.

    Returns:
        `loss_sum * processes / rows of all`, nan where nobody has a row. One process, or none that was
        initialised, has the plain mean.

    Raises:
        LoDError: `loss_sum` is no tensor, or `rows` negative or not one number, after the others got nan and
            wait for nobody; or this process is not in the group.

    >>> row_mean(torch.tensor(6.0), 4)
    tensor(1.5000)
    """
    is_tensor = isinstance(loss_sum, Tensor)
    if isinstance(rows, Tensor) and _is_number(rows):
        total = rows.detach().to(torch.float64).reshape(-1)
    else:
        try:
            number = float(rows) if isinstance(rows, Real) else torch.nan
        except OverflowError:
            number = torch.nan
        device = rows.device if isinstance(rows, Tensor) and not rows.is_meta else "cpu"
        total = torch.tensor([number], dtype=torch.float64, device=device)
    wrong = not is_tensor or not bool((total >= 0).all())
    processes = 1
    if dist.is_available() and dist.is_initialized():
        processes = dist.get_world_size(group)
        if processes < 1:
            raise LoDError("row_mean: this process is not in the group", remedy="call it in those that are")
        total = torch.full((1,), torch.nan, dtype=torch.float64, device=total.device) if wrong else total
        total = total.to(loss_sum.device if is_tensor else total.device, copy=True)
        dist.all_reduce(total, group=group)
    if not is_tensor:
        raise LoDError(
            "row_mean: 'loss_sum' must be a tensor", got=brief(loss_sum), remedy="loss.sum(), without .item()"
        )
    if wrong:
        raise LoDError(
            "row_mean: 'rows' must be one number, not negative",
            got=brief(rows),
            remedy="len(x.values) of a LoDTensor",
        )
    scale = (processes / total[0]).to(loss_sum.device)
    if loss_sum.dtype in (torch.float16, torch.bfloat16):  # which have no such small numbers
        return (loss_sum.float() * scale.float()).to(loss_sum.dtype)
    exact = loss_sum.is_floating_point() or loss_sum.is_complex()
    return loss_sum * scale.to(loss_sum.dtype if exact else torch.get_default_dtype())


def _is_number(rows: Tensor) -> bool:
    return not rows.is_nested and rows.layout is torch.strided and not rows.is_meta and rows.numel() == 1
