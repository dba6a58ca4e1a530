"""A whole model, run once to explain each call of `recurrent` in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stepnet.api import Recurrent
from stepnet.compiler.trace.endless import EndsOnExample
from stepnet.data.attributes import attribute, begins_by_itself
from stepnet.data.dtypes import dtype_name
from stepnet.data.modes import draws_put_back
from stepnet.errors import StepError, Unsupported
from stepnet.executors.naive import PLAIN
from stepnet.front.step import signature_of, step_name
from stepnet.watchers import tried, watched

from .explanation import Explanation, ModelExplanation
from .records import Refused


def is_model(step: Any, state: Any) -> bool:
    """True for what is called with whole sequences, not with one step of them.

    >>> is_model(nn.Sequential(nn.Linear(2, 2)), None), is_model(nn.LSTMCell(2, 2), None)
    (True, False)
    >>> is_model(lambda x, h: (h, h), None)
    False
    """
    if isinstance(step, Recurrent) or begins_by_itself(step) or not callable(step):
        return False
    if attribute(step, "takes_sequences"):  # stepnet.nn
        return True
    if isinstance(step, nn.RNNCellBase):
        return False
    called = step.forward if isinstance(step, nn.Module) else step
    alone = _takes(called, None)
    return alone and (state is None if isinstance(step, nn.Module) else not _takes(called, None, None))


def _takes(called: Any, *arguments: Any) -> bool:
    try:
        signature_of(called).bind(*arguments)
    except (TypeError, ValueError):  # they do not fit; or it has no signature
        return False
    return True


def explain_model(model: Any, x: Any, state: Any, explain: Callable[..., Explanation]) -> ModelExplanation:
    """Run a model and explain its recurrences.

    Args:
        model: called as model(x), with a state as model(x, state). With named `inputs` x may be a dict or a
            tuple of them.
        explain: explains one loop by its record and what it is fed.

    Raises:
        StepError: it met no recurrence.
    """
    recurrences: list[Explanation] = []
    paths = {id(m): path for path, m in model.named_modules()} if isinstance(model, nn.Module) else {}

    def watch(loop: Any, *feeds: Any, **settings: Any) -> None:
        it = _declined(loop, **settings) if isinstance(loop, str) else explain(loop, *feeds, **settings)
        path = _innermost(paths)
        recurrences.append(replace(it, name=f"{path}: {it.name}") if path else it)

    with draws_put_back(), watched(watch), tried(), EndsOnExample():
        _call(model, x, state)
    if not recurrences:
        raise StepError(
            f"{step_name(model)} ran, but met no recurrence to explain",
            remedy="a step is explained with its state: explain(step, x, state), or explain(step, x, ()) "
            "if it has none; a model must call stepnet.recurrent, stepnet.Recurrent or stepnet.nn",
        )
    return ModelExplanation(step_name(model), tuple(recurrences))


def _call(model: Any, x: Any, state: Any) -> None:
    if state is not None:
        model(x, state)
    elif hasattr(model, "inputs") and isinstance(x, dict):
        model(**x)
    elif hasattr(model, "inputs") and isinstance(x, tuple):
        model(*x)
    else:
        model(x)


def _declined(name: str, *, steps: int | None, dtype: torch.dtype, refusal: Unsupported) -> Explanation:
    """A loop that cannot be written as a step over rows: it runs on the whole batch as one row."""
    steps = steps or 0
    kind = dtype_name(dtype)
    refused = Refused("compiler", "the compiler", refusal.reason, refusal.remedy, refusal.line, None)
    grad = torch.is_grad_enabled()
    return Explanation(name, PLAIN.name, PLAIN.label, steps, 1, steps, steps, kind, grad, refusals=(refused,))


def _innermost(paths: dict[int, str]) -> str:
    """The path of the innermost module of a model that is being called; '' outside of them."""
    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        if id(owner) in paths:
            return paths[id(owner)]
        frame = frame.f_back
    return ""
