"""LoDTensors into and out of DistributedDataParallel and fully_shard, in one process and in two."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stepnet
from covering import every, few
from stepnet import LoDTensor, Recurrent, TensorArray, cells, create_whileloop, recurrent
from stepnet.errors import LoDError, StepError

F_IN, H = 3, 4


@pytest.fixture(scope="module", autouse=True)
def _one_process():
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(H, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, unused=False):
        y, h = self.rnn(x)
        return y.map(self.head), {"h": self.unused(h[..., :2]) if unused else h}


def twins(make):
    torch.manual_seed(2)
    net, twin = Net(make()), Net(make())
    twin.load_state_dict(net.state_dict())
    return net, twin


def train(net, x, unused=False):
    y, others = net(x, unused)
    (y.values.square().sum() + others["h"].sum()).backward()


def check_gradients(net, twin):
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        if b.grad is not None:
            grad = a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad
            torch.testing.assert_close(grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)
        a.grad = b.grad = None


RNNS = {
    "module": lambda: stepnet.nn.GRU(F_IN, H),
    "cell": lambda: Recurrent(nn.GRUCell(F_IN, H)),
    "generated": lambda: Recurrent(nn.GRUCell(F_IN, H), backend="c"),
    "plain loop": lambda: Recurrent(nn.GRUCell(F_IN, H), backend="naive"),
}


def rows():
    return LoDTensor.from_lengths(torch.randn(6, F_IN), [[2, 0, 4]])


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own
@pytest.mark.covering(1)
@pytest.mark.parametrize("rnn", ["module", "generated", "plain loop"])
@pytest.mark.parametrize("how", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_data_parallel(rnn, how):
    net, twin = twins(RNNS[rnn])
    parallel = DistributedDataParallel(net, **how)
    for unused in (False, False, "find_unused_parameters" in how):
        x = rows()
        train(parallel, x, unused)
        train(twin, x, unused)
        check_gradients(net, twin)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("rnn", few(RNNS, ["cell"]))
def test_fully_shard(rnn):
    """It frees the weights after forward, and gathers them again for the results that it finds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, twin = twins(RNNS[rnn])
    mesh = init_device_mesh("cpu", (1,))
    for part in (net.rnn, net.head, net):
        fully_shard(part, mesh=mesh)
    for _ in range(2):
        x = rows()
        train(net, x)
        train(twin, x)
        check_gradients(net, twin)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", every(2, [lambda: nn.LSTMCell(F_IN, H), lambda: cells.GRU(F_IN, H)]))
def test_fully_shard_of_a_cell(make):
    """Its weights are whole only while a step runs; it begins with zeros like a part of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, twin = twins(lambda: Recurrent(make()))
    mesh = init_device_mesh("cpu", (1,))
    cell = next(m for m in net.rnn.modules() if isinstance(m, (nn.LSTMCell, cells.GRU)))
    for part in (cell, net):
        fully_shard(part, mesh=mesh)
    for _ in range(2):
        y, twin_y = net.rnn(x := rows())[0], twin.rnn(x)[0]
        torch.testing.assert_close(y.values, twin_y.values)
        for each in (y, twin_y):
            each.values.square().sum().backward()
        check_gradients(net, twin)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_fully_shard_of_a_cell_that_a_function_calls():
    """What casts is the call of the cell, not that of the loop; weights are spread after an error."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    cell, twin = nn.GRUCell(F_IN, H), nn.GRUCell(F_IN, H, dtype=torch.bfloat16)
    twin.load_state_dict(cell.state_dict())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(cell, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy, reshard_after_forward=True)

    def step(x, h):
        h = cell(x, h)
        return h + x.sum(-1, keepdim=True), h

    def by_twin(x, h):
        h = twin(x.bfloat16(), h.bfloat16()).float()
        return h + x.sum(-1, keepdim=True), h

    x = rows()
    first = torch.zeros(len(x), H)
    with pytest.raises(StepError):
        recurrent(lambda x, h: step(x, h[:, :1]), x, first)
    assert all(hasattr(p, "full_tensor") for p in cell.parameters())
    for _ in range(2):
        y, wanted = recurrent(step, x, first)[0], recurrent(by_twin, x, first)[0]
        torch.testing.assert_close(y.values, wanted.values, rtol=0, atol=0.01)
        for each in (y, wanted):
            each.values.square().sum().backward()
        for p, q in zip(cell.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad.float(), rtol=0.05, atol=0.05)
            p.grad = q.grad = None


class ByFrame(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(F_IN, H)

    def forward(self, x):
        n = torch.tensor(len(x))
        states, rows = TensorArray(size=n), TensorArray(unstack_from=x)
        loop = create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == n)
            states.write(s, self.cell(rows.read(s), states.read(s - 1, torch.zeros(2, H))))
            loop.update(s, s + 1)
        return states.stack()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("freed", [True, False])
def test_fully_shard_around_a_frame_and_not_inside(freed):
    """A frame is run when it is left; weights of what it calls were let go by then, or get no gradient."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    how = {"mesh": init_device_mesh("cpu", (1,)), "reshard_after_forward": freed}
    x = torch.randn(3, 2, F_IN)
    alone, net = ByFrame(), ByFrame()
    net.load_state_dict(alone.state_dict())
    fully_shard(net, **how)
    for each in (alone, net):
        each(x).square().sum().backward()
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad)
    fully_shard(alone.cell, **how)
    with pytest.raises(StepError, match=r"weights `fully_shard` spreads(.|\n)*GRUCell"):
        alone(x)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.covering(1)
@pytest.mark.parametrize("rnn", few(RNNS, ["cell", "plain loop"]))
@pytest.mark.parametrize("output", [None, torch.float32], ids=["bfloat16 out", "float32 out"])
def test_fully_shard_with_mixed_precision(rnn, output):
    """It casts weights and inputs to bfloat16; beside a model whose weights and inputs are bfloat16."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    net, twin = twins(RNNS[rnn])
    twin = twin.to(torch.bfloat16)
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=output)
    for part in (net.rnn, net.head, net):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    for _ in range(2):
        x = rows()
        (y, others), (y_twin, others_twin) = net(x), twin(x.bfloat16())
        assert y.dtype == others["h"].dtype == (output or torch.bfloat16)
        torch.testing.assert_close(y.values.float(), y_twin.values.float(), rtol=0.02, atol=0.02)
        (y.values.float().square().sum() + others["h"].float().sum()).backward()
        (y_twin.values.float().square().sum() + others_twin["h"].float().sum()).backward()
        for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
            if b.grad is not None:
                grad = a.grad.full_tensor()
                assert grad.dtype == torch.float32
                torch.testing.assert_close(grad, b.grad.float(), rtol=0.1, atol=0.1, msg=name)
            a.grad = b.grad = None


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("at", [None, 0, 1, 2])
@pytest.mark.parametrize("given", ["ragged", "ragged, reverse", "time first", "time second", "array"])
def test_tensors_that_are_spread_over_processes(given, at):
    """Replicated, or spread along any axis, that of time, too: torch takes none apart along such a one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    ragged = given.startswith("ragged")
    mesh, table = init_device_mesh("cpu", (1,)), torch.randn((6, F_IN) if ragged else (3, 3, F_IN))
    where = Replicate() if at is None else Shard(min(at, table.dim() - 1))
    weight = torch.randn(F_IN, F_IN)

    def found(spread):
        x, w = (spread(t, to).requires_grad_() for t, to in ((table, where), (weight, Replicate())))
        boot = spread(torch.zeros(3, F_IN), Replicate())

        def step(x, h):
            h = torch.tanh(x @ w + h)
            return h, h

        if ragged:
            y, h = recurrent(
                step, LoDTensor.from_lengths(x, [[2, 0, 4]]), boot, reverse=given == "ragged, reverse"
            )
            y = y.values
        elif given == "array":
            steps = stepnet.TensorArray.unstack(x)
            y, h = steps.stack(), torch.stack([steps.read(t) for t in range(3)])
        else:
            y, h = recurrent(step, x, boot, axis=int(given == "time second"))
        return [y, h, *torch.autograd.grad(y.sin().sum() + h.sum(), [x, w], allow_unused=True)]

    ours = found(lambda t, to: distribute_tensor(t, mesh, [to]))
    for a, b in zip(ours, found(lambda t, to: t.clone()), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert isinstance(a, DTensor)
            torch.testing.assert_close(a.full_tensor(), b)


def test_memory_that_was_freed_is_told():
    """As fully_shard does where it does not find the results."""
    w = nn.Parameter(torch.randn(H, H))
    y, _ = recurrent(lambda x, h: (torch.tanh(x + h @ w),) * 2, torch.randn(3, 2, H), torch.zeros(2, H))
    w.untyped_storage().resize_(0)
    with pytest.raises(StepError, match="was freed before the loop ran"):
        y.sum().backward()


def test_a_dataclass_to_those_who_ask():
    from dataclasses import fields, is_dataclass, replace

    x = LoDTensor(torch.arange(3.0), [[0, 1, 1], [0, 3]][1:])
    assert is_dataclass(x)
    assert [field.name for field in fields(x)] == ["values", "lod"]
    doubled = replace(x, values=x.values * 2)
    assert isinstance(doubled, LoDTensor)
    assert doubled.values.tolist() == [0.0, 2.0, 4.0]
    assert doubled.recursive_sequence_lengths() == x.recursive_sequence_lengths()


def test_row_mean_of_one_process():
    assert stepnet.distributed.row_mean(torch.tensor(6.0), torch.tensor(4)).item() == 1.5
    assert stepnet.distributed.row_mean(torch.tensor(0.0), 0).isnan()
    loss = torch.tensor(3.0, dtype=torch.bfloat16, requires_grad=True)
    mean = stepnet.distributed.row_mean(loss, 2.0)
    assert mean.dtype == torch.bfloat16
    mean.backward()
    assert loss.grad is not None
    assert loss.grad.item() == 0.5
    right = stepnet.distributed.row_mean(torch.tensor(3), 4)  # as of a count of right answers
    assert right.dtype == torch.float32
    assert right.item() == 0.75
    half = stepnet.distributed.row_mean(torch.tensor(6e4, dtype=torch.float16), 3 * 10**8)
    assert half.item() == pytest.approx(2e-4, rel=1e-3)
    with torch.device("meta"):
        assert stepnet.distributed.row_mean(torch.tensor(6.0, device="cpu"), 4).item() == 1.5
    for rows in (-1, [1, 2], [], float("nan")):
        with pytest.raises(LoDError, match="'rows' must be one number"):
            stepnet.distributed.row_mean(torch.tensor(1.0), rows)
