"""Two processes that train together, with the environment that torchrun gives them."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stepnet
from forks import Fork
from stepnet import LoDTensor, Recurrent
from stepnet.errors import LoDError, SlowPathWarning

F_IN, H, WORLD = 3, 4, 2
# What each rank is given, batch by batch: other lengths, empty sequences, and at last no sequence at all. Who
# has none runs no step: no weight is used, which torch asks to be told by find_unused_parameters.
LENGTHS = (([2, 0, 4], [5]), ([1], [3, 3]), ([2, 2], [0, 1]), ([1], []))


class Net(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(H, 2)

    def forward(self, x: LoDTensor) -> LoDTensor:
        return self.rnn(x)[0].map(self.head)


class ByFunction(nn.Module):
    """A recurrence whose step is no module, but calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(F_IN, H)

    def step(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.cell(x, h)
        return h, h

    def forward(self, x: LoDTensor) -> Any:
        return stepnet.recurrent(self.step, x, torch.zeros(len(x), H), backend="c")


def batch(step: int, rank: int) -> LoDTensor:
    lengths = LENGTHS[step][rank]
    generator = torch.Generator().manual_seed(10 * step + rank)
    return LoDTensor.from_lengths(torch.randn(sum(lengths), F_IN, generator=generator), [lengths])


def made(kind: str) -> Net:
    torch.manual_seed(5)
    if kind == "function":
        return Net(ByFunction())
    return Net(stepnet.nn.LSTM(F_IN, H) if kind == "module" else Recurrent(nn.GRUCell(F_IN, H), backend="c"))


def loss(net: nn.Module, step: int, rank: int) -> torch.Tensor:
    return net(batch(step, rank)).values.square().sum()


def expected(kind: str, steps: tuple[int, ...]) -> list[torch.Tensor]:
    """The mean over ranks of the gradients of one process, summed over batches."""
    net = made(kind)
    total = sum(loss(net, step, rank) for step in steps for rank in range(WORLD)) / WORLD
    grads = torch.autograd.grad(total, list(net.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(net.parameters(), grads, strict=True)]


def whole_of(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check(net: nn.Module, kind: str, steps: tuple[int, ...]) -> None:
    for p, wanted in zip(net.parameters(), expected(kind, steps), strict=True):
        torch.testing.assert_close(whole_of(p.grad), wanted, rtol=1e-4, atol=1e-6)
        p.grad = None


def sharded(net: Net) -> Any:
    from torch.distributed.fsdp import fully_shard  # which takes seconds to import

    fully_shard(net.rnn)
    return fully_shard(net)


def cell_sharded(net: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    fully_shard(net.rnn.cell if isinstance(net.rnn, ByFunction) else net.rnn.step.cell)
    return fully_shard(net)


def check_row_mean(rank: int, parallel: Callable[[Net], Any]) -> None:
    """Ten steps of training on unequal rows, as one process takes them on all rows. Who has no rows runs one
    that counts nothing: every rank takes part in every exchange of weights."""
    net, alone = made("module"), made("module")
    run = parallel(net)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (net, alone)]
    for step in range(10):
        x = batch(step % 4, rank)
        count = len(x.values)
        rows = x if count else LoDTensor.from_lengths(torch.zeros(1, F_IN), [[1]])
        own = stepnet.distributed.row_mean(run(rows).values.square().sum() * min(count, 1), count)
        whole = LoDTensor.cat([batch(step % 4, each) for each in range(WORLD)])
        mean = alone(whole).values.square().mean(-1).mean() * 2
        parts = own.detach().clone()
        dist.all_reduce(parts)
        torch.testing.assert_close(parts / WORLD, mean.detach())
        for optimizer, value in zip(optimizers, (own, mean), strict=True):
            optimizer.zero_grad()
            value.backward()
        for p, q in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(whole_of(p.grad), q.grad, rtol=1e-4, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(whole_of(p), q, rtol=1e-4, atol=1e-6)


def check_accumulated(rank: int, parallel: Callable[[Net], Any]) -> None:
    """Two batches for one step, as one batch of the rows of both."""
    net, alone = made("module"), made("module")
    run, steps = parallel(net), (0, 1)
    count = sum(len(batch(step, rank).values) for step in steps)
    for step in steps:
        stepnet.distributed.row_mean(run(batch(step, rank)).values.square().sum(), count).backward()
    whole = LoDTensor.cat([batch(step, each) for step in steps for each in range(WORLD)])
    (alone(whole).values.square().sum() / len(whole.values)).backward()
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole_of(p.grad), q.grad, rtol=1e-4, atol=1e-6)


def check_mistakes(rank: int) -> None:
    """Who makes one is told, and nobody waits for him."""
    for loss, rows, what in (
        (torch.tensor(1.0), -1, "'rows' must be one number"),
        (torch.tensor(1.0), None, "'rows' must be one number"),
        (1.0, 2, "'loss_sum' must be a tensor"),
    ):
        if rank == 0:
            with pytest.raises(LoDError, match=what):
                stepnet.distributed.row_mean(loss, rows)
        else:
            assert stepnet.distributed.row_mean(torch.tensor(1.0), 2).isnan()
    first = dist.new_group([0])
    if rank == 0:
        assert stepnet.distributed.row_mean(torch.tensor(6.0), 4, group=first) == 1.5
    else:
        with pytest.raises(LoDError, match="not in the group"):
            stepnet.distributed.row_mean(torch.tensor(6.0), 4, group=first)


def main(rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in ("module", "cell"):
        for options in ({}, {"find_unused_parameters": True})[: 2 if kind == "module" else 1]:
            net = DistributedDataParallel(made(kind), **options)
            for step in range(4 if options else 3):
                loss(net, step, rank).backward()
                check(net, kind, (step,))
            with net.no_sync():
                loss(net, 0, rank).backward()
            loss(net, 1, rank).backward()
            check(net, kind, (0, 1))
        # A cell gathers its weights once for all steps, of which there are not as many in each process.
        spread = [sharded(made(kind)), *([cell_sharded(made(kind))] if kind == "cell" else [])]
        for parts in spread:
            for step in range(3):
                loss(parts, step, rank).backward()
                check(parts, kind, (step,))
        # Who has no rows runs one that counts nothing: every rank takes part in every exchange.
        x = batch(3, rank)
        rows = x if len(x.values) else LoDTensor.from_lengths(torch.zeros(1, F_IN), [[1]])
        (spread[0](rows).values.square().sum() * min(len(x.values), 1)).backward()
        check(spread[0], kind, (3,))
    spread = cell_sharded(made("function"))
    for step in range(2):
        loss(spread, step, rank).backward()
        check(spread, "function", (step,))
    ways: tuple[Callable[[Net], Any], ...] = (DistributedDataParallel, sharded)
    for parallel in ways:
        check_row_mean(rank, parallel)
        check_accumulated(rank, parallel)
    check_mistakes(rank)
    dist.destroy_process_group()


def ranked(rank: int, port: int) -> bool:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", SlowPathWarning)
    main(rank)
    return True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_they_train_as_one() -> None:
    import torch.distributed.fsdp  # noqa: F401 - once, not in each of them

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for kind in ("module", "cell"):  # what is recorded here, neither of them records
        loss(made(kind), 0, 0).backward()
    ranks = [Fork(ranked, rank, port) for rank in range(WORLD)]
    assert all(rank.result() for rank in ranks)
