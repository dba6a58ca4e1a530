"""Steps that import modules inside themselves: what these do as they are imported is done once, and stays."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet

State = tuple[Tensor, Tensor]
MODULES = {
    "hub_of_plugins": "FOUND, CALLS = {}, []\ndef __getattr__(name):\n"
    "    import importlib\n    return importlib.import_module('plugin_of_hub').GAIN\n",
    "plugin_of_hub": "import hub_of_plugins\nhub_of_plugins.FOUND['gain'] = GAIN = 2.0\n"
    "hub_of_plugins.CALLS.append(0)\n",
    "counts_calls": "count, calls = 0, []\n",
    "fails_inside": "raise ImportError('of something else')\n",
}


def registers(x: Tensor, h: Tensor) -> State:
    import plugin_of_hub  # pyright: ignore[reportMissingImports]  # noqa: F401

    h = h + x * sys_hub().FOUND["gain"]
    return h, h


def by_name(x: Tensor, h: Tensor) -> State:
    hub = sys_hub()
    if "gain" not in hub.FOUND:
        importlib.import_module("plugin_of_hub")
    hub.CALLS.append(1)
    h = h + x * len(hub.CALLS)
    return h, h


def by_an_attribute(x: Tensor, h: Tensor) -> State:
    h = h + x * sys_hub().made_when_asked * len(sys_hub().CALLS)
    return h, h


def changes_what_it_imports(x: Tensor, h: Tensor) -> State:
    import counts_calls  # pyright: ignore[reportMissingImports]

    counts_calls.count += 1
    h = h + x * counts_calls.count
    return h, h


def catches_everything(x: Tensor, h: Tensor) -> State:
    try:
        import counts_calls  # pyright: ignore[reportMissingImports]
    except BaseException:
        return h, h
    counts_calls.calls.append(1)
    h = h + x * len(counts_calls.calls)
    return h, h


def not_to_be_had(x: Tensor, h: Tensor) -> State:
    try:
        import fails_inside  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError:
        h = h - x
    try:
        import there_is_no_such_module  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError:
        h = h + 3.0 * x
    return h, h


def sys_hub() -> Any:
    return HUB[0]


HUB: list[Any] = []
STEPS = [registers, by_name, by_an_attribute, changes_what_it_imports, catches_everything, not_to_be_had]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget()


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


def results(step: Callable[..., Any], steps: int, backend: Any) -> list[Any]:
    forget()
    HUB[:] = [importlib.import_module("hub_of_plugins")]
    x, h = torch.arange(1.0, 1.0 + 2 * steps).reshape(steps, 2, 1), torch.zeros(2, 1)
    found: list[Any] = [stepnet.recurrent(step, x, h, backend=backend)[1].tolist() for _ in range(2)]
    return [*found, len(HUB[0].CALLS), sys.modules.keys() & MODULES.keys()]


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_a_module_is_imported_once_and_all_that_it_does_stays(step: Callable[..., Any], steps: int) -> None:
    assert results(step, steps, "auto") == results(step, steps, "naive")


def test_a_first_look_at_features_imports_once() -> None:
    HUB[:] = [importlib.import_module("hub_of_plugins")]
    stepnet.recurrent(registers, torch.ones(5, 2), torch.zeros(2, 2), backend="naive")
    assert (HUB[0].FOUND, HUB[0].CALLS) == ({"gain": 2.0}, [0])


def test_a_module_that_registers_leaves_the_step_its_plan() -> None:
    HUB[:] = [importlib.import_module("hub_of_plugins")]
    out = stepnet.recurrent(registers, torch.ones(3, 2, 1), torch.zeros(2, 1), backend="eager")
    assert out[1].tolist() == [[6.0], [6.0]]
