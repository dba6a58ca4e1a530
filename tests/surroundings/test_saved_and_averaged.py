"""Cells and modules saved, copied, averaged: state dicts, pickles, safetensors, deep copies, EMA."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import stepnet
from beside_plain import CLOSE, F_IN, H, by_hand, cell, check, executor_of, ours, results, rows
from stepnet import LoDTensor, Recurrent


def through_file(thing: object, **how: bool) -> object:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **how)


def through_safetensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    safetensors = pytest.importorskip("safetensors.torch", reason="the extra dev brings safetensors")
    return safetensors.load(safetensors.save(state))


FILES: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "torch.save": lambda state: through_file(state, weights_only=True),
    "torch.save, mapped": lambda state: through_file(state, weights_only=True, mmap=False),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "safetensors": through_safetensors,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("way", FILES)
def test_state_dicts_into_a_step_that_has_run(way: str, assign: bool) -> None:
    step, twin = cell(), cell()
    check(step, twin)
    state = {name: value * 1.5 - 0.1 for name, value in cell().state_dict().items()}
    for each in (step, twin):
        loaded = FILES[way](state)
        each.load_state_dict(loaded, assign=assign)  # pyright: ignore[reportArgumentType]
    check(step, twin)
    torch.testing.assert_close(dict(step.state_dict()), state, rtol=0, atol=0)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "stepnet.nn.LSTM": lambda: stepnet.nn.LSTM(F_IN, H, num_layers=2, bidirectional=True).double(),
    "stepnet.nn.GRU": lambda: stepnet.nn.GRU(F_IN, H).double(),
    "Recurrent of torch's cell": lambda: Recurrent(nn.GRUCell(F_IN, H)).double(),
    "Recurrent of a module": lambda: Recurrent(cell()),
}
COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: through_file(module, weights_only=False),  # type: ignore[dict-item]
}


def run(module: nn.Module) -> Tensor:
    x, h0 = rows()
    with_state = isinstance(module, Recurrent)
    y, _ = module(x, h0) if with_state else module(x)
    return y.values


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", MODULES)
def test_copies_after_use_are_modules_of_their_own(name: str, way: str) -> None:
    module = MODULES[name]()
    before = run(module)
    twin = COPIES[way](module)
    torch.testing.assert_close(run(twin), before, rtol=0, atol=0)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(0.5)
    assert not torch.allclose(run(twin), before)
    torch.testing.assert_close(run(module), before, rtol=0, atol=0)
    run(twin).sum().backward()
    assert all(p.grad is None for p in module.parameters())
    assert all(p.grad is not None for p in twin.parameters())


@pytest.mark.parametrize(
    "averaged",
    [AveragedModel, lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))],
    ids=["SWA", "EMA"],
)
def test_averages_while_training(averaged: Callable[[nn.Module], AveragedModel]) -> None:
    """The average changes in place under a step that has run; by hand and by stepnet it is the same."""
    step, twin = cell(), cell()
    ours_averaged, theirs = averaged(step), averaged(twin)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (step, twin)]
    for _ in range(3):
        for each, average, optimizer, how in (
            (step, ours_averaged, optimizers[0], ours),
            (twin, theirs, optimizers[1], by_hand),
        ):
            results(each, how)
            optimizer.step()
            average.update_parameters(each)
        x, h0 = rows()
        torch.testing.assert_close(ours(ours_averaged.module, x, h0), by_hand(theirs.module, x, h0), **CLOSE)
    assert executor_of(ours_averaged.module)[0] == "c"
    assert not torch.allclose(ours(ours_averaged.module, x, h0)[0], ours(step, x, h0)[0])


def test_an_averaged_model_over_lod_tensors() -> None:
    model = Recurrent(cell())
    average = AveragedModel(model)
    average.update_parameters(model)
    x, h0 = rows()
    y, _ = average(x, h0)
    assert isinstance(y, LoDTensor)
    torch.testing.assert_close(y.values, model(x, h0)[0].values)
