"""Configurations hold paths, times, decimals, patterns: a step that reads one has a plan, and another plan
where it is another value."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import stepnet
from stepnet.compiler.reads.reach import reach

UTC = datetime.timezone.utc


class Asked(NamedTuple):
    values: tuple[Any, ...]
    ask: Callable[[Any], float]


def decimals(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)


ASKED = {
    "date": Asked((datetime.date(2020, 1, 2), datetime.date(2021, 1, 2)), lambda v: v.year / 1e3),
    "time": Asked((datetime.time(1, 2), datetime.time(2, 2), datetime.time(3, fold=1)), lambda v: v.hour),
    "datetime": Asked(
        (datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, tzinfo=UTC)),
        lambda v: 1.0 if v.tzinfo is None else 2.0,
    ),
    "timezone": Asked((UTC, datetime.timezone(datetime.timedelta(hours=2))), lambda v: len(v.tzname(None))),
    "decimal": Asked(
        (decimals("1.5"), decimals("2.5"), decimals("2.50")),
        lambda v: float(v) * len(v.as_tuple().digits),
    ),
    "path": Asked((pathlib.Path("a.gru"), pathlib.Path("b.lstm")), lambda v: float(len(v.suffix))),
    "pure_path": Asked((pathlib.PurePosixPath("a"), pathlib.PurePosixPath("a/b")), lambda v: len(v.parts)),
    "pattern": Asked((re.compile("a+"), re.compile("a*")), lambda v: 2.0 if v.match("b") else 3.0),
    "dtype": Asked((np.dtype("f4"), np.dtype("f8")), lambda v: v.itemsize),
    "finfo": Asked((torch.finfo(torch.float32), torch.finfo(torch.float16)), lambda v: v.eps * 1e3),
}  # fmt: skip
X, H = (
    torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 2, 2) / 10,
    torch.zeros(2, 2, dtype=torch.float64),
)


def run(step: Any, backend: Any) -> list[Any]:
    return stepnet.recurrent(step, X, H, backend=backend)[1].round(decimals=10).flatten().tolist()


def reading(config: dict[str, Any], ask: Callable[[Any], float]) -> Callable[[Tensor, Tensor], Any]:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h) * ask(config["value"])
        return h, h

    return step


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_step_has_a_plan_for_each_value(asked: Asked) -> None:
    config = {"value": asked.values[0], "gain": 2.0}
    step = reading(config, asked.ask)
    for value in (*asked.values, *asked.values):
        config["value"] = value
        found = reach(step)
        assert (found.open, found.refused) == (None, None)
        for _ in range(2):
            assert run(step, "eager") == run(step, "naive")


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_value_that_nobody_asks_for_is_no_hindrance(asked: Asked) -> None:
    config = {"value": asked.values[0], "gain": 2.0}

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h) * config["gain"]
        return h, h

    assert run(step, "eager") == run(step, "naive")


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_what_lies_elsewhere_is_asked_for_at_each_call(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "there"
    step = reading({"value": file}, lambda path: 2.0 if path.exists() else 1.0)
    before = run(step, "auto")
    file.touch()
    assert run(step, "auto") == run(step, "naive") != before


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_decimals_are_computed_as_is_set_around(backend: Any) -> None:
    step = reading({"value": decimals("2")}, lambda value: float(value / 3))
    seen = set[float]()
    for digits in (28, 2, 28, 1):
        with decimal.localcontext() as around:
            around.prec = digits
            for _ in range(2):
                assert run(step, backend) == run(step, "naive")
            seen.add(run(step, backend)[0])
    assert len(seen) == 3


def test_a_class_of_paths_that_somebody_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = reading({"value": pathlib.Path("a.gru")}, lambda path: float(len(path.suffix)))
    before = [run(step, "auto") for _ in range(3)]
    monkeypatch.setattr(pathlib.PurePath, "suffix", "long")
    assert run(step, "naive") == run(step, "auto") == before[0]
    monkeypatch.setattr(pathlib.PurePath, "suffix", "longer")
    assert run(step, "auto") == run(step, "naive") != before[0]
