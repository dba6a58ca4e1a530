"""Noise that a step draws from a `torch.Generator` of its own: drawn before the loop, in the same order.

A plan is given it as further inputs, a row for each row of x. Where that is not the same, as for noise whose
law follows from rows, the step is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line
from stepnet.watchers import during

_MADE = {torch.rand: "rand", torch.randn: "randn"}
_LIKE = {torch.rand_like: "rand", torch.randn_like: "randn"}
_FILLED = {
    Tensor.normal_: "normal_", Tensor.uniform_: "uniform_", Tensor.exponential_: "exponential_",
    Tensor.log_normal_: "log_normal_", Tensor.cauchy_: "cauchy_", Tensor.random_: "random_",
    Tensor.geometric_: "geometric_", Tensor.bernoulli_: "bernoulli_",
}  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """One draw of a step: by which function of torch, with which numbers, what for each row.

    >>> Draw("rand", (), (2,), torch.float32, 0).of(3, torch.Generator()).shape
    torch.Size([3, 2])
    """

    name: str
    numbers: tuple[tuple[str, Any], ...]  # by name; those without one are positional
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int  # of the generator

    def of(self, rows: int, generator: torch.Generator) -> Tensor:
        """Noise for so many rows."""
        size = (rows, *self.shape)
        numbers = [v for k, v in self.numbers if not k]
        named = {k: v for k, v in self.numbers if k}
        if self.name.endswith("_"):
            blank = torch.empty(size, dtype=self.dtype, device="cpu")
            return getattr(blank, self.name)(*numbers, **named, generator=generator)
        function = getattr(torch, self.name)
        return function(*numbers, size, **named, dtype=self.dtype, device="cpu", generator=generator)


def generator_of(args: Any, kwargs: Any) -> torch.Generator | None:
    """The generator that a call of torch is given."""
    found = kwargs.get("generator") if kwargs else None
    if found is None and args and type(args[-1]) is torch.Generator:
        found = args[-1]
    return found


def draw_of(func: Any, args: Any, kwargs: Any, place: int) -> tuple[Draw, Any]:
    """What a call draws, and how many rows of it.

    Raises:
        Unsupported: its law follows from tensors, or it gives no row for each sequence.
    """
    named = {k: v for k, v in kwargs.items() if k not in ("generator", "dtype", "device", "requires_grad")}
    args = tuple(a for a in args if type(a) is not torch.Generator)
    like: Tensor | None = None
    if func in _MADE:
        like = torch.empty(*args, **named, dtype=kwargs.get("dtype"), device="cpu")
        name, numbers, named = _MADE[func], (), {}
    elif func in _LIKE and len(args) == 1:
        like = torch.empty_like(args[0], dtype=kwargs.get("dtype"))
        name, numbers, named = _LIKE[func], (), {}
    elif func is torch.randint and args:
        size = named.pop("size", args[-1])
        numbers = args if "size" in kwargs else args[:-1]
        name, like = "randint", torch.empty(size, dtype=kwargs.get("dtype") or torch.int64, device="cpu")
    elif func in _FILLED:
        name, numbers, like = _FILLED[func], args[1:], args[0]
    else:
        name, numbers = getattr(func, "__name__", str(func)), ()
    if like is None or next(leaves((numbers, named), Tensor), None) is not None:
        raise Unsupported(
            f"{name} draws from the step's own generator in a way that cannot be drawn before the loop",
            line=user_line().short,
            remedy="draw by torch.rand or torch.randn(..., generator=g), and compute from that",
        )
    if not like.dim() or not like.is_contiguous() or not like.device.type == "cpu":
        raise _not_rows()
    values = (*(("", n) for n in numbers), *named.items())
    return Draw(name, values, tuple(like.shape[1:]), like.dtype, place), like.shape[0]


def _not_rows() -> Unsupported:
    return Unsupported(
        "what the step draws from its own generator does not have a row for each sequence",
        line=user_line().short,
        remedy="torch.rand(x.shape[0], ..., generator=g)",
    )


class Drawn:
    """The noise that a trace is given, in the order of the draws."""

    def __init__(self, draws: Sequence[Draw], noise: Sequence[Tensor]) -> None:
        self._left = iter(zip(draws, noise, strict=True))

    def next(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """What a call of torch gives: the next noise, if it is the next draw."""
        wanted, noise = next(self._left, (None, None))
        draw, rows = draw_of(func, args, kwargs, -1 if wanted is None else wanted.place)
        if noise is None or draw != wanted or not isinstance(rows, torch.SymInt):
            raise _not_rows()
        return args[0].copy_(noise) if draw.name.endswith("_") else noise.clone()


_drawn: ContextVar[Drawn | None] = ContextVar("stepnet_drawn", default=None)


def drawn(noise: Drawn) -> contextlib.AbstractContextManager[None]:
    """Let the step that is traced in here draw this noise."""
    return during(_drawn, noise)


def noise_of(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The noise that a call gives in a trace; None for a call that draws none from a generator of its own."""
    if generator_of(args, kwargs) is None:
        return None
    known = _drawn.get()
    if known is None:
        raise _not_rows()
    return known.next(func, args, kwargs)


@contextlib.contextmanager
def kept(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Leave generators as they are."""
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def drawn_in_order(
    draws: Sequence[Draw], generators: Sequence[torch.Generator], active: Sequence[int]
) -> list[Tensor]:
    """For each draw its noise step after step, of so many rows at each step: as the plain loop draws."""
    parts: list[list[Tensor]] = [[] for _ in draws]
    for rows in active:
        for part, draw in zip(parts, draws, strict=True):
            part.append(draw.of(rows, generators[draw.place]))
    empty = [torch.empty((0, *draw.shape), dtype=draw.dtype) for draw in draws]
    return [torch.cat([none, *part]) for none, part in zip(empty, parts, strict=True)]
