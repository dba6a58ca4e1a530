"""Tools of torch that write a graph by running Python: a loop would be in it with the steps of an example."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stepnet.errors import StepError
from stepnet.watchers import instead


def no_graph_of(tool: str) -> StepError:
    """What those tools of torch are told that unroll loops."""
    return StepError(
        f"{tool} cannot follow a recurrence of any length",
        remedy="torch.export.export(model, args, dynamic_shapes=...) gives a graph with the recurrence in it",
    )


def refuse_proxies(values: Iterable[Any]) -> None:
    """Raise StepError for what torch.fx.symbolic_trace hands in."""
    if any(isinstance(value, torch.fx.Proxy) for value in values):
        raise no_graph_of("torch.fx.symbolic_trace")


def refuse_traces() -> None:
    """Raise StepError where torch.jit.trace, or an export that goes by it, would write down each step."""
    if torch._C._get_tracing_state() is not None and instead() is None:
        raise no_graph_of("torch.jit.trace")
