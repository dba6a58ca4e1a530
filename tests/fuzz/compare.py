"""A random step by an executor and by the plain loop: results, which of them carry a gradient, gradients.

Numbers may differ as far as rounding goes: the plain loop is run again on inputs changed in their last
digits, weights too, and what that changes by much (a threshold met exactly, a difference of equals) is not
compared closer.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import SlowPathWarning, Unsupported

from .steps import Case

LENGTHS = ([3, 0, 1, 4], [1], [2], [5], [], [0, 0], [2, 5, 1], [3, 3], [0], [1, 0, 1], [0, 4], [1, 1, 2, 6])


@dataclass
class Outcome:
    """What one run gave: results, their last digits aside, and the gradient of each tensor by name."""

    results: list[Tensor]
    flags: list[bool]
    gradients: dict[str, Tensor | None]


class Declined(Exception):
    """The executor asked for takes no such step."""


def run(
    case: Case, lengths: list[int], backend: str, choose: int, *, nudge: float = 0.0, mode: str = "ragged",
    reverse: bool = False,
) -> Outcome:  # fmt: skip
    """Run a step on fresh inputs and differentiate a choice of its results."""
    rows, states = case.inputs(lengths)
    if nudge:
        with torch.no_grad():
            for t in (*rows, *states):
                if t.is_floating_point():
                    t.mul_(1 + nudge)
    if mode == "ragged":
        xs: list[Any] = [LoDTensor.from_lengths(t, [lengths]) for t in rows]
    else:  # all sequences of one length, steps along axis 0 or 1
        n = len(lengths)
        steps = lengths[0] if lengths else 3
        axis = int(mode == "axis 1")
        lead = (n, steps) if axis else (steps, n)
        xs = [t.reshape(*lead, *t.shape[1:]) for t in rows]
    x = tuple(xs) if case.x_is_tuple else xs[0]
    h = tuple(states) if case.states != 1 else states[0]
    axis = int(mode == "axis 1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", SlowPathWarning)
        try:
            y, finals = recurrent(case.space["step"], x, h, backend=backend, reverse=reverse, axis=axis)
        except SlowPathWarning as warning:
            raise Declined(str(warning)) from warning
        except Unsupported as refusal:
            raise Declined(str(refusal)) from refusal
        leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
        results = [*leaves, *flatten(finals)[0]]
        flags = [t.requires_grad for t in results]
        inputs = {f"x{i}": t for i, t in enumerate(rows)} | {f"h{i}": t for i, t in enumerate(states)}
        named = inputs | case.weights
        wanted = {k: t for k, t in named.items() if t.requires_grad}
        pick = random.Random(choose)
        asked = [t for t in results if t.requires_grad and t.is_floating_point()]
        if len(asked) > 1 and choose % 3 == 0:
            asked = pick.sample(asked, pick.randrange(1, len(asked)))
        gradients: dict[str, Tensor | None] = {}
        if asked and wanted:
            seed = torch.Generator().manual_seed(choose)
            seeds = [torch.randn(t.shape, generator=seed, dtype=torch.float64) for t in asked]
            loss = torch.stack([(t.double() * s).sum() for t, s in zip(asked, seeds, strict=True)]).sum()
            found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
            gradients = dict(zip(wanted, found, strict=True))
    return Outcome([t.detach() for t in results], flags, gradients)


def differences(
    case: Case, backend: str, choose: int, lengths: list[int], mode: str, reverse: bool
) -> list[str]:
    """How an executor differs from the plain loop on one table; empty: not at all.

    Raises:
        Declined: the executor takes no such step.
    """
    how: dict[str, Any] = {"mode": mode, "reverse": reverse}
    try:
        plain = run(case, lengths, "naive", choose, **how)
    except Exception as error:  # a step that fails fails in both
        try:
            run(case, lengths, backend, choose, **how)
        except Declined:
            raise
        except type(error):
            return []
        except Exception as other:
            return [f"fails otherwise: {type(other).__name__}: {other}; the plain loop: {error}"]
        return [f"the plain loop fails: {type(error).__name__}: {error}"]
    try:
        ours = run(case, lengths, backend, choose, **how)
    except Declined:
        raise
    except Exception as error:
        return [f"raises {type(error).__name__}: {str(error).splitlines()[0]}"]
    found = []
    if plain.flags != ours.flags:
        found.append(f"requires_grad {ours.flags}, not {plain.flags}")
    pairs: list[tuple[str, Tensor | None, Tensor | None]] = [
        (f"result {i}", a, b) for i, (a, b) in enumerate(zip(ours.results, plain.results, strict=True))
    ]
    if plain.gradients.keys() == ours.gradients.keys():
        pairs += [(f"gradient of {k}", ours.gradients[k], g) for k, g in plain.gradients.items()]
    elif not found:
        found.append("other gradients are asked for")
    far = [name for name, a, b in pairs if not _close(a, b, 1e-9 if case.is_double else 1e-4)]
    if far:  # as far as rounding alone takes the plain loop?
        nudged = []
        for e in case.nudges:
            with _nudged(case.weights.values(), e):
                nudged.append(run(case, lengths, "naive", choose, nudge=e, **how))
        for name, a, b in pairs:
            if name in far:
                others = [_named(other)[name] for other in nudged]
                if not _explained(a, b, others):
                    found.append(f"{name}: {_short(a)}, not {_short(b)}")
    return found


@contextlib.contextmanager
def _nudged(weights: Iterable[Tensor], by: float) -> Iterator[None]:
    floats = [t for t in weights if t.is_floating_point()]
    before = [t.detach().clone() for t in floats]
    with torch.no_grad():
        for t in floats:
            t.mul_(1 + by)
    try:
        yield
    finally:
        with torch.no_grad():
            for t, value in zip(floats, before, strict=True):
                t.copy_(value)


def _named(out: Outcome) -> dict[str, Tensor | None]:
    return {f"result {i}": t for i, t in enumerate(out.results)} | {
        f"gradient of {k}": g for k, g in out.gradients.items()
    }


def _close(a: Tensor | None, b: Tensor | None, loose: float) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=loose, atol=loose * max(scale, 1e-2), equal_nan=True)


def _explained(a: Tensor | None, b: Tensor | None, others: Sequence[Tensor | None]) -> bool:
    """True if the plain loop's own rounding reaches as far as the difference."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    reach = torch.zeros(b.shape, dtype=torch.float64)
    for other in others:
        if other is None:
            return False
        reach = torch.maximum(reach, (other.double() - b.double()).abs().nan_to_num(float("inf")))
    far = (a.double() - b.double()).abs().nan_to_num(float("inf"))
    same = (a == b) | (a.isnan() & b.isnan())
    return bool((same | (far <= 1000 * reach.max())).all())


def _short(t: Tensor | None) -> str:
    if t is None:
        return "None"
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} {t.flatten()[:12].tolist()}"


def same(a: Tensor | None, b: Tensor | None, loose: float) -> bool:
    """Whether both are there or not, and as close as rounding takes numbers of about one or more."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    scale = max(1.0, float(b.double().abs().nan_to_num(0, 0, 0).max())) if b.numel() else 1.0
    return torch.allclose(a.double(), b.double(), rtol=loose, atol=loose * scale, equal_nan=True)


def check(case: Case, backend: str, tables: int = 2) -> list[str]:
    """Run a step on some tables of sequences; every difference from the plain loop, as text.

    Raises:
        Declined: the executor takes no such step.
    """
    pick = random.Random(case.seed * 7 + 1)
    found = []
    for k in range(tables):
        lengths = pick.choice(LENGTHS)
        mode = pick.choice(["ragged"] * 4 + ["axis 0", "axis 1"])
        if mode != "ragged":
            lengths = pick.choice([[3, 3], [2], [1, 1, 1], [], [0, 0], [4, 4, 4]])
        reverse = pick.random() < 0.3
        choose = case.seed * 3 + k
        try:
            different = differences(case, backend, choose, lengths, mode, reverse)
        except Declined as reason:  # a plan was made, and the check found it wrong
            if "self-check" not in str(reason) and "could not be tried" not in str(reason):
                raise
            different = [str(reason)]
        for text in different:
            found.append(f"{text}   ({backend}, lengths {lengths}, {mode}{', reverse' if reverse else ''})")
    return found
