"""LSTM and GRU under autocast to bfloat16: torch.nn and stepnet, both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from . import peers
from .goals import goal
from .harness import Case, Contender, Topic
from .peak import matmul_peak
from .recurrences import EFFORTS, facts_of, findings, settings, table
from .work import WORKS, Setting, Work

TOLERANCE = 0.1  # of the largest value of a tensor: what 8 bits of a number leave after hundreds of steps


def cases(work: Work, quick: bool) -> Iterator[Case]:
    """Each setting, forward alone and with all gradients."""
    for setting in settings(work, quick):
        for training in (False, True):
            yield case_of(setting, training)


def case_of(setting: Setting, training: bool) -> Case:
    found, absent = peers.contenders(setting, training, ("torch_nn", "ours"))
    plain = () if torch_has_bfloat16() else [name for name in found if name.startswith("nn")]
    if plain:
        absent = [*absent, "torch.nn has no bfloat16 on this CPU: what is timed of it is float32"]
    threads = torch.get_num_threads()
    wanted = goal(setting.work.name, setting.size, setting.ragged, training, "bfloat16")
    peaks = {"sgemm": torch.float32, "bfloat16": torch.bfloat16}  # a CPU without bfloat16 computes in floats
    return Case(
        name=f"{setting.name} {'train' if training else 'forward'}, bfloat16",
        contenders={
            name: who if name in plain else Contender(under_autocast(who.run), who.values)
            for name, who in found.items()
        },
        reference=lambda: setting.target(training),
        facts=facts_of(setting, training, absent, wanted)
        | {
            f"{name} peak, {threads} threads, gflop/s": matmul_peak(threads, dtype=dtype) * 1e-9
            for name, dtype in peaks.items()
        },
        rtol=0.0,
        atol=TOLERANCE,
    )


@functools.cache
def torch_has_bfloat16() -> bool:
    """Whether torch.nn.LSTM runs under autocast here: its kernel is oneDNN's, and some CPUs have none."""
    try:
        under_autocast(lambda: torch.nn.LSTM(4, 4)(torch.zeros(2, 1, 4)))()
    except RuntimeError:
        return False
    return True


def under_autocast(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same with its products in bfloat16."""

    def inside() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return run()

    return inside


TOPICS = tuple(
    Topic(
        name=f"{name}_bf16",
        claim=f"{WORKS[name].title} under autocast to bfloat16: time over ours of torch.nn",
        cases=partial(cases, WORKS[name]),
        findings=findings,
        table=table,
        efforts=EFFORTS,
    )
    for name in ("lstm", "gru")
)
