"""A ragged model in training frameworks, unchanged: what each trains is what a loop by hand trains."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stepnet
from stepnet import LoDTensor
from stepnet.data import collate

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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_lightning(precision: Any) -> None:
    lightning = pytest.importorskip("lightning", reason=WHY)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

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

    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    how: dict[str, Any] = dict.fromkeys(silent, False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", precision=precision, **how)
    module = Module()
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
