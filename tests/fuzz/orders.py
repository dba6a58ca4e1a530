"""Derivatives of derivatives of random models and steps, up to third order: by plans and by the plain loop.

What is differentiated is a number made of all results. It is differentiated by some of its inputs, or along
directions of them, by a way of torch's; a number is made of what comes out, and so on. Whatever torch nests,
nests; what it does not, fails in both.

`python -m fuzz.orders [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import stepnet
from stepnet import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import StepError, Unsupported
from stepnet.executors import autograd

from . import seeds
from .compare import LENGTHS, same
from .models import World
from .steps import Case, make_case

Points = tuple[Tensor, ...]
Function = Callable[[Points], Tensor]

# ---- what is differentiated


def number(found: Sequence[Tensor | None], seed: int) -> Tensor:
    """A number that all of these have a part in, linear and not."""
    total = torch.zeros((), dtype=torch.float64)
    for k, t in enumerate(found):
        if t is not None and t.is_floating_point():
            total = total + (t.double() * _spread(t.shape, seed + k)).sum() + 0.1 * t.double().sin().sum()
    return total


def _spread(shape: Sequence[int], seed: int) -> Tensor:
    """Numbers between -1 and 1, of no generator: vmap has rules for those."""
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float64).mul(1.7).add(seed).sin().reshape(shape)


def of_model(world: World, swapped: bool) -> tuple[Function, Points]:
    """The results of a model, by its weights and its inputs."""
    named = dict(world.model.named_parameters())

    def results(points: Points) -> Tensor:
        rows, state = points[-2:]
        given = world.arguments(rows, state)
        weights = dict(zip(named, points, strict=False))
        out = torch.func.functional_call(world.model, weights, given) if swapped else world.model(*given)
        return number(out, 5)

    return results, (*named.values(), world.rows, world.state)


def of_step(case: Case, pick: random.Random, swapped: bool) -> tuple[Function, Points]:
    """The results of a step over some sequences, by its inputs; its weights are what it reads."""
    lengths = list(pick.choice(LENGTHS))
    rows, states = case.inputs(lengths)
    reverse = pick.random() < 0.3
    floats = [t.is_floating_point() for t in (*rows, *states)]
    weights = [] if swapped else [t for t in case.weights.values() if t.is_leaf and t.requires_grad]

    def results(points: Points) -> Tensor:
        moving = iter(points)
        given = [next(moving) if f else t for f, t in zip(floats, (*rows, *states), strict=True)]
        xs = [LoDTensor.from_lengths(t, [lengths]) for t in given[: len(rows)]]
        own = given[len(rows) :]
        y, finals = stepnet.recurrent(
            case.space["step"], tuple(xs) if case.x_is_tuple else xs[0],
            tuple(own) if case.states != 1 else own[0], reverse=reverse,
        )  # fmt: skip
        leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
        return number([*leaves, *flatten(finals)[0]], 6)

    return results, (*(t for t, f in zip((*rows, *states), floats, strict=True) if f), *weights)


# ---- ways to differentiate: of a number of points, another one

Way = Callable[[Function, Sequence[int], int], Function]


def _moved(points: Points, at: Sequence[int], own: Sequence[Tensor]) -> Points:
    found = list(points)
    for i, t in zip(at, own, strict=True):
        found[i] = t
    return tuple(found)


def _directions(points: Points, at: Sequence[int], seed: int) -> Points:
    return tuple(_spread(points[i].shape, seed + i).to(points[i].dtype) for i in at)


def grad(f: Function, at: Sequence[int], seed: int) -> Function:
    """By torch.func."""

    def found(points: Points) -> Tensor:
        of = torch.func.grad(lambda own: f(_moved(points, at, own)))
        return number(of(tuple(points[i] for i in at)), seed)

    return found


def vjp(f: Function, at: Sequence[int], seed: int) -> Function:
    def found(points: Points) -> Tensor:
        value, pull, *_ = torch.func.vjp(lambda *own: f(_moved(points, at, own)), *(points[i] for i in at))
        return number([value, *pull(torch.ones_like(value) * 0.5)], seed)

    return found


def jvp(f: Function, at: Sequence[int], seed: int) -> Function:
    def found(points: Points) -> Tensor:
        own = tuple(points[i] for i in at)
        pushed = torch.func.jvp(lambda *own: f(_moved(points, at, own)), own, _directions(points, at, seed))
        return number(pushed, seed)

    return found


def linearized(f: Function, at: Sequence[int], seed: int) -> Function:
    def found(points: Points) -> Tensor:
        own = tuple(points[i] for i in at)
        value, push = torch.func.linearize(lambda *own: f(_moved(points, at, own)), *own)
        return number([value, push(*_directions(points, at, seed))], seed)

    return found


def vmapped(f: Function, at: Sequence[int], seed: int) -> Function:
    """Along some directions at once."""

    def found(points: Points) -> Tensor:
        own = tuple(points[i] for i in at)

        def along(*v: Tensor) -> Any:
            return torch.func.jvp(lambda *own: f(_moved(points, at, own)), own, v)[1]

        both = zip(_directions(points, at, seed), _directions(points, at, seed + 1), strict=True)
        return number([torch.func.vmap(along)(*(torch.stack(pair) for pair in both))], seed)

    return found


def many(f: Function, at: Sequence[int], seed: int) -> Function:
    """Of some points at once."""

    def found(points: Points) -> Tensor:
        own = [torch.stack([points[i], points[i] * 0.7]) for i in at]
        each: Any = torch.func.vmap(lambda *own: f(_moved(points, at, own)))  # pyright: ignore
        return number([each(*own)], seed)

    return found


def backwards(f: Function, at: Sequence[int], seed: int) -> Function:
    """By autograd, to be differentiated again."""

    def found(points: Points) -> Tensor:
        value = f(points)
        own = [points[i] for i in at if points[i].requires_grad and value.requires_grad]
        got = torch.autograd.grad(value, own, create_graph=True, allow_unused=True) if own else ()
        return number([value * 0.1, *got], seed)

    return found


def batched(f: Function, at: Sequence[int], seed: int) -> Function:
    """By autograd, some gradients at once."""

    def found(points: Points) -> Tensor:
        value = f(points)
        own = [points[i] for i in at if points[i].requires_grad]
        if not value.requires_grad or not own:
            return value
        sent = torch.tensor([0.5, -1.0], dtype=torch.float64)
        how: Any = {"create_graph": True, "allow_unused": True, "is_grads_batched": True}
        return number(torch.autograd.grad(value, own, sent, **how), seed)

    return found


def dual(f: Function, at: Sequence[int], seed: int) -> Function:
    """Forward, by autograd."""

    def found(points: Points) -> Tensor:
        with forward_ad.dual_level():
            own = [
                forward_ad.make_dual(points[i], v)
                for i, v in zip(at, _directions(points, at, seed), strict=True)
            ]
            value = forward_ad.unpack_dual(f(_moved(points, at, own)))
            return number([value.primal, value.tangent], seed)

    return found


def checkpointed(f: Function, at: Sequence[int], seed: int) -> Function:
    def found(points: Points) -> Any:
        return checkpoint(lambda *own: f(own), *points, use_reentrant=False)

    return found


def penalty(f: Function, at: Sequence[int], seed: int) -> Function:
    """The length of the gradient by all that has one."""

    def found(points: Points) -> Tensor:
        value = f(points)
        own = [p for p in points if p.requires_grad]
        if not value.requires_grad or not own:
            return value
        got = torch.autograd.grad(value, own, create_graph=True, allow_unused=True)
        lengths = [g.double().square().sum() for g in got if g is not None]
        return value + sum(lengths) if lengths else value

    return found


INSIDE: tuple[Way, ...] = (grad, vjp, jvp, linearized, vmapped, many)
OUTSIDE: tuple[Way, ...] = (backwards, backwards, penalty, batched, dual, checkpointed)
FORWARD: tuple[Way, ...] = (jvp, linearized, vmapped, dual)

# ---- both ways


class Program:
    """What is differentiated, and how."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed * 11 + 3)
        inside = pick.choice([0, 0, 0, 1, 1, 2])
        ways = [pick.choice(INSIDE) for _ in range(inside)]
        ways += [pick.choice(OUTSIDE) for _ in range(pick.randrange(0 if inside else 1, 4 - inside))]
        self.transformed = inside > 0
        swapped = self.transformed or pick.random() < 0.3
        self.loose = 1e-7
        if pick.random() < 0.5:
            world = World(seed)
            self.what = str(world.model.how)
            self.function, points = of_model(world, swapped)
            if not swapped and pick.random() < 0.3:
                points = points[-2:]
        else:
            case = make_case(seed, 6)
            self.what = case.body
            self.function, points = of_step(case, pick, swapped)
            self.loose = self.loose if case.is_double else 2e-2
        # torch 2.13's own layer norm: the gradient of its forward derivative is wrong, and the third one
        third = sum(way not in (many, checkpointed) for way in ways) > 1
        self.compared = not ("orm" in self.what and (third or any(way in FORWARD for way in ways)))
        # and its own solve: the gradient of its forward derivative is wrong
        self.compared &= not ("linalg.solve(" in self.what and any(way in FORWARD for way in ways))
        # and torch 2.13 itself dies of torch.add(..., alpha=2) in a `linearize` inside another transform
        others = {*INSIDE} & {*ways} - {linearized}
        self.compared &= not (linearized in ways and others and "alpha=" in self.what)
        # and its `linearize` loses what is written into a tensor
        self.compared &= not (linearized in ways and "written" in self.what)
        # and its checkpoint computes again without the tangents of a level that is over, or enters it twice
        self.compared &= not {dual, checkpointed} <= {*ways}
        # and its `vmap` of select_scatter has a wrong gradient: what is put in gets several times its own
        self.compared &= not ({many, vmapped} & {*ways} and "select_scatter" in self.what)
        for way in ways:
            at = (
                sorted(pick.sample(range(len(points)), pick.randint(1, min(3, len(points)))))
                if points
                else []
            )
            self.function = way(self.function, at, pick.randrange(1000))
        self.points = points
        self.has_zeros = self.transformed or dual in ways
        self.name = " of ".join(way.__name__ for way in reversed(ways))

    def run(self) -> list[Tensor | None]:
        """The number, and its gradient by each point."""
        value = self.function(self.points)
        own = [p for p in self.points if p.requires_grad]
        got = torch.autograd.grad(value, own, allow_unused=True) if value.requires_grad and own else ()
        return [value.detach(), *got]


def outcome(seed: int, backend: Any) -> list[Tensor | None] | Exception:
    """What the derivatives of a seed are, or what fails. Even of small tables nothing else is made."""
    stepnet.set_backend(backend)
    try:
        with warnings.catch_warnings(), patch.object(autograd, "WORTH_ASKING", 0):
            warnings.simplefilter("ignore")
            return Program(seed).run()
    except Exception as error:
        return error
    finally:
        stepnet.set_backend("auto")


def difference(seed: int, backend: str = "auto") -> str | None:
    """How plans and the plain loop differ."""
    if not Program(seed).compared:
        return None
    plain, ours = outcome(seed, "naive"), outcome(seed, backend)
    if isinstance(ours, Unsupported) and backend != "auto":
        return None
    if isinstance(plain, (StepError, NotImplementedError)) and not isinstance(ours, Exception):
        return None  # a plan does what torch has no rule for
    if isinstance(plain, StepError) and isinstance(ours, NotImplementedError):
        return None  # nor for the inner one of two ways, which a plan comes to by itself
    if "modified by an inplace operation" in str(plain) and not isinstance(ours, Exception):
        return None  # under vmap torch writes into what it kept; a plan keeps nothing that is written
    if "a leaf Variable that requires grad is being used" in str(plain) and not isinstance(ours, Exception):
        return None  # torch's `linearize` inside a checkpoint writes into what needs a gradient
    if isinstance(plain, Exception) or isinstance(ours, Exception):
        return None if type(plain) is type(ours) else f"{ours!r}, not {plain!r}"[:1500]
    program = Program(seed)
    if program.has_zeros:  # where forward mode or torch.func has them, autograd may have None, or no history
        most = max(len(plain), len(ours))
        plain, ours = ([*found, *[None] * (most - len(found))] for found in (plain, ours))
        plain, ours = ([*map(_none_of_zeros, found)] for found in (plain, ours))
    if len(plain) != len(ours):
        return f"{len(ours) - 1} gradients, not {len(plain) - 1}"
    loose = program.loose
    far = [k for k, (a, b) in enumerate(zip(ours, plain, strict=True)) if not same(a, b, loose)]
    return f"{far} of {len(plain)} differ: {ours[far[0]]}, not {plain[far[0]]}" if far else None


def _none_of_zeros(t: Tensor | None) -> Tensor | None:
    return None if t is None or not t.count_nonzero() else t


def told(seed: int, backend: str = "auto") -> str | None:
    """The same, with the program."""
    found = difference(seed, backend)
    program = Program(seed)
    return None if found is None else f"---- seed {seed}: {program.name}\n{program.what}\n{found}"


if __name__ == "__main__":
    seeds.main(told, "derivatives")
