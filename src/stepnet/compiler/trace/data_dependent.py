"""What a step's Python asks tensors for: `.item()`, a truth value, `torch.equal`.

What is asked of tensors that are the same at every step has one answer for the whole run. Where these are
captured, the step is recorded anew at each call: what follows from an answer is in that record, and the trace
is given it. What follows from rows, from how many there are, or from noise has no such answer: torch's trace
says so. But whether something is true of all rows, or of none, as an assertion asks, is taken for granted
where it is so on sample rows: the plan then holds only where it is.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.reads.trust import is_machinery
from stepnet.compiler.rewritten.inner_loops import inner
from stepnet.data.modes import is_wrapped
from stepnet.data.storage import memory_of
from stepnet.data.tree import leaves
from stepnet.errors import Unsupported

ASKS = frozenset({
    Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__,
    Tensor.__complex__, Tensor.__contains__, Tensor.is_nonzero, torch.is_nonzero, Tensor.equal, torch.equal,
    Tensor.allclose, torch.allclose,
})  # fmt: skip
BY_VALUES = "Python control flow or .item() depends on the values of a tensor"
OF_ROWS = object()  # in the place of an answer that is another one at each step
AS_CLAIMED = object()  # and of one that each row gives alone, if it is the one that claims expect
SOME, NONE = object(), object()  # and of one whether there is any row of which something holds
NOT_ALL = object()  # and of one that does not hold of all rows, though it may of some
CHECKED = object()  # and of a check of torch.distributions
CLAIMED = (AS_CLAIMED, SOME, NONE, NOT_ALL)
PICKS = object()  # and of what a mask of rows picks

# What they make depends on the shape of what they are given, not on its numbers.
_OF_SHAPES = frozenset({
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor,
    torch.zeros_like, torch.ones_like, torch.full_like,
})  # fmt: skip

_PRODUCTS = frozenset({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply})
_SUMS = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__})
_SAME_NUMBERS = frozenset({
    "to", "float", "double", "type_as", "type", "unsqueeze", "view", "reshape", "__getitem__", "expand",
    "clone",
})  # fmt: skip

_ALL_TRUE = getattr(torch, "_is_all_true")  # noqa: B009
_COUNTS = frozenset({torch.sum, Tensor.sum, torch.count_nonzero, Tensor.count_nonzero})
_MORE = frozenset({torch.gt, Tensor.gt, Tensor.__gt__, torch.ne, Tensor.ne, Tensor.__ne__})
_EQUAL = frozenset({torch.eq, Tensor.eq, Tensor.__eq__})
_OF_ALL, _OF_NONE = frozenset({torch.all, Tensor.all, _ALL_TRUE}), frozenset({torch.any, Tensor.any})
_CONDITION_AT = {torch.where: 0, Tensor.where: 1}
_DISTRIBUTION = torch.distributions.Distribution.__init__.__code__.co_filename
_MOST = 8  # questions of a step that are taken for yes


class AsksCaptured(Unsupported):
    """A step asks for the numbers of a captured tensor: its key must tell the answers."""


class Followers:
    """The tensors that follow from others, by the memory that they stand in.

    >>> a, b = torch.ones(2), torch.ones(2)
    >>> of_a = Followers([a])
    >>> of_a.follow(torch.add, (a, b), {}, c := a + b)
    >>> of_a.has([b]), of_a.has([c[0]])
    (False, True)
    """

    def __init__(self, sources: Iterable[Tensor] = ()) -> None:
        self._memory: set[Any] = set()
        self._held: list[Tensor] = []  # their memory stays taken
        self.add(sources)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors among them."""
        for tensor in tensors:
            self._memory.add(_memory(tensor))
            self._held.append(tensor)

    def has(self, values: Any) -> bool:
        """Whether one of the tensors in arguments of a call is one of them, or may be."""
        places = map(_memory, leaves(values, Tensor))
        return any(place is None or place in self._memory for place in places)

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any, sized: bool = False) -> None:
        """Note a call of torch. `sized`: what has a symbolic size, or is made from one, is one of them."""
        made = list(leaves(result, Tensor))
        if func is Tensor.__setitem__:
            made.append(args[0])
        of_size = sized and (_has_symbol((args, kwargs)) or any(_is_symbolic(t.shape) for t in made))
        if of_size or (func not in _OF_SHAPES and self.has((args, kwargs))):
            self.add(made)


class Guards:
    """The questions of a trace whether something holds of any row: all are answered with yes, but those of
    some places (None: of all). Whether it holds of all rows is whether there is any of which it does not.

    Attributes:
        masks: what they asked of.
        factors: what is multiplied by truth values as numbers, or by what those make 0.
    """

    def __init__(self, without: Iterable[int] | None = ()) -> None:
        self._without = None if without is None else frozenset(without)
        self.begin()

    def begin(self) -> None:
        """Forget the last trace."""
        self.masks: list[Tensor] = []
        self.factors: list[Tensor] = []
        self._zeros: dict[int, Tensor] = {}

    def answer(self, values: Tensor, of_all: bool) -> bool:
        """Whether it holds of all, or else of any.

        Raises:
            Unsupported: there are too many questions: a while loop may ask until it is told no.
        """
        if len(self.masks) == _MOST:
            raise Unsupported(f"the step asks its rows for one answer more than {_MOST} times")
        self.masks.append(values == 0 if of_all else values if values.dtype == torch.bool else values != 0)
        return self.is_some(len(self.masks) - 1) != of_all

    def is_some(self, place: int) -> bool:
        """The answer to one of the questions."""
        return self._without is not None and place not in self._without

    def follow(self, func: Any, args: Any, result: Any) -> None:
        """Note a call of torch: what is 0 for rows of which nothing holds."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        tensors = [a for a in args if isinstance(a, Tensor)]
        zero = [id(t) in self._zeros for t in tensors]
        if func in _PRODUCTS and any(zero):
            self.factors += (t for t, is_zero in zip(tensors, zero, strict=True) if not is_zero)
        elif not (func in _SUMS and all(zero) and len(zero) == 2):
            moved = getattr(func, "__name__", "") in _SAME_NUMBERS
            if not (moved and tensors and (zero[0] or tensors[0].dtype == torch.bool)):
                return
        self._zeros[id(result)] = result


class Choices:
    """The answers to such questions, and whether something holds of all rows, where each row chooses."""

    def answer(self, values: Tensor, of_all: bool) -> Any:
        """Whether it holds of all rows, or else of any; `OF_ROWS` if no row has an answer of its own."""
        raise NotImplementedError

    def by_row(self, values: Tensor, of_all: bool) -> Tensor | None:
        """What each row alone says, for a choice by torch.where; None if no row has an answer of its own."""
        raise NotImplementedError


class Claims:
    """Truth values of all rows in one: that something holds of each, or of none of them.

    >>> claims = Claims(Followers())
    >>> claims.follow(torch.any, (x := torch.tensor([2.0, 0.0]),), {}, found := torch.any(x))
    >>> claims.of((found,))
    (tensor([2., 0.]), False)
    """

    def __init__(self, of_rows: Followers) -> None:
        self._followers = of_rows
        self._made: dict[int, tuple[Tensor, Tensor, bool]] = {}  # the first keeps its id taken
        self._counts: dict[int, tuple[Tensor, Tensor, bool]] = {}  # what is summed up, or counted
        self._counted: dict[int, Tensor] = {}
        self._decided: dict[int, Any] = {}

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note a call of torch."""
        if (func in _OF_ALL or func in _OF_NONE) and len(args) == 1 and not kwargs:
            self._made[id(result)] = (result, args[0], func in _OF_ALL)
        elif func in _COUNTS and len(args) == 1 and not kwargs:
            self._counts[id(result)] = (result, args[0], func is torch.sum or func is Tensor.sum)
        elif len(args) == 2 and id(args[0]) in self._counts and type(args[1]) in (int, float) and not args[1]:
            _, values, is_sum = self._counts[id(args[0])]
            if func in _MORE:
                self._made[id(result)] = (result, values, False)
            elif func in _EQUAL:
                none = values == 0
                self._followers.add([none] if self._followers.has([values]) else [])
                self._made[id(result)] = (result, none, True)
            if id(result) in self._made and values.dtype != torch.bool and is_sum:
                self._counted[id(result)] = values

    def of(self, args: Any) -> tuple[Tensor, bool] | None:
        """The values that a truth value is of, and the one of it that each row can give alone; None where no
        claim is asked for."""
        _, values, answer = self._made.get(id(args[0]), (None, None, False)) if args else (None, None, False)
        return None if values is None else (values, answer)

    def chosen_by(self, func: Any, args: Any) -> int | None:
        """Where in the arguments of a choice stands such a truth value of rows, as in
        `torch.where(torch.all(n == 0), a, b)`: a question as `if` asks it."""
        at = _CONDITION_AT.get(func)
        claim = None if at is None or len(args) != 3 or is_wrapped(args[at]) else self.of(args[at:])
        return None if claim is None or not self._followers.has(claim[0]) else at

    def decided(self, truth: Tensor, ask: Callable[[], Any]) -> Any:
        """What such a question is answered with, which is asked once for each truth value."""
        if id(truth) not in self._decided:
            self._decided[id(truth)] = ask()
        return self._decided[id(truth)]

    def counted(self, args: Any) -> Tensor | None:
        """What none may be below 0 of, for such a truth value of their sum to be one of them."""
        return self._counted.get(id(args[0])) if args else None


class Answers:
    """The answers of one run, given out in their order."""

    def __init__(self, answers: Sequence[Any] | Guards | Choices, rows: Sequence[Tensor]) -> None:
        self._guards = answers if isinstance(answers, Guards) else None
        self._choices = answers if isinstance(answers, Choices) else None
        if self._guards is not None:
            self._guards.begin()
        self._left = iter(() if isinstance(answers, (Guards, Choices)) else answers)
        self._rows = rows
        self.of_rows = Followers(rows)
        self.claims = Claims(self.of_rows)
        self._said: dict[int, Tensor | None] = {}  # by truth values, which `claims` keeps

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note a call of torch."""
        self.of_rows.follow(func, args, kwargs, result, sized=True)
        self.claims.follow(func, args, kwargs, result)
        if self._guards is not None:
            self._guards.follow(func, args, result)

    def passes(self, func: Any, args: Any) -> bool:
        """Whether a call is a check of torch.distributions, which from now on must hold."""
        if not is_check(func) or (loops := inner()) is None:
            return False
        valid = unmerged(args[0], self._rows[0])
        if not self.of_rows.has(args):
            valid = valid.all().expand(self._rows[0].shape[0])
        elif not valid.dim():
            return False
        loops.must_hold(valid)
        next(self._left, None)  # of its truth value, which is not asked for
        return True

    def decided(self, func: Any, args: Any) -> Any:
        """The arguments of a call, with the answer in the place of the truth value that it chooses by."""
        at = self.claims.chosen_by(func, args)
        if at is None:
            return args
        if (said := self._by_row(args, at)) is not None:
            return *args[:at], said, *args[at + 1 :]
        answer = self.claims.decided(args[at], lambda: self.answer(args[at:], {}))
        if answer is OF_ROWS:
            return args
        said = torch.full((), answer, dtype=torch.bool, device=args[at].device)
        return *args[:at], said, *args[at + 1 :]

    def _by_row(self, args: Any, at: int) -> Tensor | None:
        """What each row says, laid out for a choice between values with the rows first."""
        given = [a for i, a in enumerate(args) if i != at and isinstance(a, Tensor)]
        dims, rows = max((a.dim() for a in given), default=0), str(self._rows[0].shape[0])
        fits = dims and any(a.dim() == dims and str(a.shape[0]) == rows for a in given)
        if self._choices is None or not fits:
            return None
        if (key := id(args[at])) not in self._said:
            claim = self.claims.of(args[at:])
            assert claim is not None
            self._said[key] = self._choices.by_row(unmerged(claim[0], self._rows[0]), claim[1])
        said = self._said[key]
        return None if said is None else said.reshape(-1, *[1] * (dims - 1))

    def answer(self, args: Any, kwargs: Any, claim: tuple[Tensor, bool] | None = None) -> Any:
        """The next one; `OF_ROWS` if there is none for these arguments. `claim`: of what is no truth value,
        what `Claims.of` would say of one."""
        known = next(self._left, OF_ROWS)
        claim, counted, loops = claim or self.claims.of(args), self.claims.counted(args), inner()
        if claim is not None:
            claim = unmerged(claim[0], self._rows[0]), claim[1]
        if counted is not None and loops is not None and counted.dim() and type(counted.shape[0]) is not int:
            loops.must_hold(unmerged(counted, self._rows[0]) >= 0)
        if claim is not None and self._choices is not None and self.of_rows.has(claim[0]):
            return self._choices.answer(*claim)
        if claim is not None and self._guards is not None:
            return self._guards.answer(*claim) if self.of_rows.has(claim[0]) else OF_ROWS
        if claim is not None and loops is not None and known in (AS_CLAIMED, CHECKED, NONE):
            values, expected = claim
            if not values.dim() or type(values.shape[0]) is int:  # not a row for each sequence
                return OF_ROWS
            loops.must_hold((values != 0) == expected)
            return expected
        if known in (OF_ROWS, CHECKED, PICKS, *CLAIMED):
            return OF_ROWS
        return OF_ROWS if self.of_rows.has((args, kwargs)) else copy.deepcopy(known)


def unmerged(value: Tensor, rows: Tensor) -> Tensor:
    """A value with its rows first, where others are merged with them, as in [B * k, n]."""
    if not value.dim() or type(value.shape[0]) is int or str(value.shape[0]) == str(rows.shape[0]):
        return value
    return value.reshape(rows.shape[0], -1)


def is_check(func: Any) -> bool:
    """Whether a call asks what must be true: the checks of torch.distributions."""
    if func is not _ALL_TRUE:
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None and is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename == _DISTRIBUTION


def _memory(tensor: Tensor) -> int | None:
    """What tensors over the same memory have in common; None where that is not told."""
    if is_wrapped(tensor) or not torch._C._has_storage(tensor):
        return None
    with torch._C.DisableTorchFunction():  # no mode around is told
        return memory_of(tensor)


def _has_symbol(values: Any) -> bool:
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    sizes = leaves(values, torch.Size)
    return next(leaves(values, numbers), None) is not None or any(map(_is_symbolic, sizes))


def _is_symbolic(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)
