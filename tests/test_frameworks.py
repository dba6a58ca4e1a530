"""A ragged model in training frameworks, unchanged: what each trains is what a loop by hand trains."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import stepnet
from forks import Fork
from stepnet import LoDTensor
from stepnet.data import RowBudgetSampler, collate

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
WHY = "the extra frameworks brings it"
LENGTHS = (7, 2, 9, 4, 1, 12, 0, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = stepnet.nn.GRU(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: LoDTensor) -> Tensor:
        return self.head(self.rnn(x)[1][0])


def net() -> Net:
    torch.manual_seed(1)
    return Net()


def samples() -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(n, 3, generator=generator), n % 2) for n in LENGTHS]


def loader() -> DataLoader[Any]:
    return DataLoader(samples(), batch_size=2, collate_fn=collate)  # pyright: ignore[reportArgumentType]


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: Callable[..., Tensor], x: LoDTensor, label: Tensor) -> Tensor:
    assert isinstance(x, LoDTensor)
    return nn.functional.cross_entropy(model(x), label)


def by_hand(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    model = net().to(dtype)
    descent = optimizer(model)
    for x, label in loader():
        descent.zero_grad()
        loss_of(model, x.to(dtype), label).backward()
        descent.step()
    return [p.detach() for p in model.parameters()]


def check(model: nn.Module, dtype: torch.dtype = torch.float32, close: float = 1e-5) -> None:
    found = [p.detach() for p in model.parameters()]
    torch.testing.assert_close(found, by_hand(dtype), rtol=close, atol=close)


# "64-true" and "bf16-true" cast what the model is given, LoDTensors too; Fabric casts its results back.
PRECISIONS = {"32-true": (torch.float32, 1e-5), "64-true": (torch.float64, 1e-6)}
PRECISIONS |= {"bf16-true": (torch.bfloat16, 0.02)}


SILENT: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, label = batch
            loss = loss_of(self.net, x, label)
            self.log("loss", loss, batch_size=len(x))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self)

    return Module()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_lightning(precision: Any) -> None:
    lightning = pytest.importorskip("lightning", reason=WHY)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    module = lightning_module(lightning)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", precision=precision, **SILENT)
    trainer.fit(module, loader())
    check(module.net, *PRECISIONS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fabric(precision: Any) -> None:
    lightning = pytest.importorskip("lightning", reason=WHY)
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
    bare = net()
    model, descent = fabric.setup(bare, optimizer(bare))
    for x, label in fabric.setup_dataloaders(loader()):
        descent.zero_grad()
        fabric.backward(loss_of(model, x, label))
        descent.step()
    check(bare, *PRECISIONS[precision])


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_lightning_sets_the_epoch_of_a_batch_sampler(kind: str) -> None:
    lightning = pytest.importorskip("lightning", reason=WHY)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    sampler, same = (RowBudgetSampler(LENGTHS, rows=12, seed=1) for _ in range(2))
    batches: Any = DataLoader(samples(), batch_sampler=sampler, collate_fn=collate)  # pyright: ignore[reportArgumentType]
    seen: list[list[int]] = []
    if kind == "trainer":
        module = lightning_module(lightning)
        module.on_train_batch_start = lambda batch, index: seen.append(batch[0].lengths().tolist())
        lightning.Trainer(max_epochs=3, accelerator="cpu", **SILENT).fit(module, batches)
    else:
        loader = lightning.Fabric(accelerator="cpu", devices=1).setup_dataloaders(batches)
        seen = [x.lengths().tolist() for _ in range(3) for x, _ in loader]
    expected = []
    most = len(same) if kind == "trainer" else sum(LENGTHS)  # it asks for the number of batches once
    for epoch in range(3):
        same.set_epoch(epoch)
        expected += [[LENGTHS[i] for i in batch] for batch in same][:most]
    assert seen == expected


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate", reason=WHY)
    accelerator = accelerate.Accelerator(cpu=True)
    bare = net()
    model, descent, batches = accelerator.prepare(bare, optimizer(bare), loader())
    for x, label in batches:
        descent.zero_grad()
        accelerator.backward(loss_of(model, x, label))
        descent.step()
    check(bare)


def shard(rank: int) -> DataLoader[Any]:
    """The batches of one process of two."""
    own = DistributedSampler(samples(), 2, rank, shuffle=False)  # pyright: ignore[reportArgumentType]
    return DataLoader(samples(), batch_size=2, collate_fn=collate, sampler=own)  # pyright: ignore[reportArgumentType]


def in_two_processes(kind: str, rank: int, port: int) -> list[Any]:
    """The weights that one process of two ends with, in the environment that torchrun makes."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    os.environ |= {"TORCHELASTIC_RUN_ID": "one", "ACCELERATE_USE_CPU": "true"}
    bare = net()
    if kind == "lightning":
        import lightning  # pyright: ignore[reportMissingImports]

        module = lightning_module(lightning)
        how = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
        lightning.Trainer(max_epochs=1, **how, **SILENT).fit(module, shard(rank))
        return [p.tolist() for p in module.net.parameters()]
    if kind == "fabric":
        import lightning  # pyright: ignore[reportMissingImports]

        fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        model, descent = fabric.setup(bare, optimizer(bare))
        backward = fabric.backward
    elif kind == "ignite":
        return ignite_in_a_process(rank)
    else:
        import accelerate  # pyright: ignore[reportMissingImports]

        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # that of who forked it
        accelerator = accelerate.Accelerator(cpu=True)
        model, descent = accelerator.prepare(bare, optimizer(bare))
        backward = accelerator.backward
    assert torch.distributed.get_world_size() == 2
    for x, label in shard(rank):
        descent.zero_grad()
        backward(loss_of(model, x, label))
        descent.step()
    return [p.tolist() for p in bare.parameters()]


# DistributedDataParallel that outlives its processes' group may wait for ever as it goes: torch's own.
KEPT: list[Any] = []


def ignite_in_a_process(rank: int) -> list[Any]:
    import ignite.distributed as idist  # pyright: ignore[reportMissingImports]
    from ignite.engine import create_supervised_trainer  # pyright: ignore[reportMissingImports]

    bare = net()
    with idist.Parallel(backend="gloo"):  # skorch has nothing of this kind: it leaves processes to accelerate
        assert idist.get_world_size() == 2
        model = idist.auto_model(bare)
        trainer = create_supervised_trainer(
            model, idist.auto_optim(optimizer(model)), nn.functional.cross_entropy,
            prepare_batch=lambda batch, device, non_blocking: batch,
        )  # fmt: skip
        trainer.run(shard(rank), max_epochs=1)
        KEPT.append(model)
        return [p.tolist() for p in bare.parameters()]


@pytest.mark.parametrize("kind", ["lightning", "fabric", "accelerate", "ignite"])
def test_in_two_processes(kind: str) -> None:
    pytest.importorskip("lightning" if kind == "fabric" else kind, reason=WHY)
    alone = net()
    descent = optimizer(alone)
    for both in zip(shard(0), shard(1), strict=True):
        descent.zero_grad()
        sum(loss_of(alone, x, label) / 2 for x, label in both).backward()  # pyright: ignore
        descent.step()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [Fork(in_two_processes, kind, rank, port) for rank in range(2)]
    for rank in ranks:
        found = [torch.tensor(values) for values in rank.result()]
        torch.testing.assert_close(found, [p.detach() for p in alone.parameters()])


def test_ignite() -> None:
    engine = pytest.importorskip("ignite.engine", reason=WHY)
    model = net()
    trainer = engine.create_supervised_trainer(
        model,
        optimizer(model),
        nn.functional.cross_entropy,
        prepare_batch=lambda batch, device, non_blocking: batch,
    )
    trainer.run(loader(), max_epochs=1)
    check(model)


def test_skorch() -> None:
    skorch = pytest.importorskip("skorch", reason=WHY)

    class Classifier(skorch.NeuralNetClassifier):
        def infer(self, x: LoDTensor, **_: Any) -> Tensor:
            return self.module_(x)

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(LENGTHS)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return samples()[index]

    classifier = Classifier(
        net, criterion=nn.CrossEntropyLoss, max_epochs=1, lr=0.1, batch_size=2, train_split=None, verbose=0,
        iterator_train__collate_fn=collate, iterator_valid__collate_fn=collate,
    )  # fmt: skip
    classifier.fit(Samples(), None)
    check(classifier.module_)
    assert classifier.predict_proba(Samples()).shape == (len(LENGTHS), 2)
