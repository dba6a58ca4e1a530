"""What a call of a graph asks torch for, noted, and made a function.

A tensor is either the same in all calls of a kind, or has a slot, which is a variable of the function. What
reads numbers of slots stays a call of its node; what reads their sizes does so where the kind says them.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.data.storage import memory_of, overlap, same_bits
from stepnet.data.tensor_guards import alike
from stepnet.data.tree import leaves
from stepnet.executors.line import Place
from stepnet.iterator.replay import Noting
from stepnet.watchers import during, noted_by

from .call_lowering import place_of
from .calls import Call, Slot, slots_in
from .folded import Folded
from .fused_calls import Lined, Stepping, decides, expect
from .rearranged import Rearranged, just_before, rearranges
from .replayed_nodes import Ran, replayed
from .short_cells import FewSteps

_RECORDER: ContextVar[Recorder | None] = ContextVar("what records the node that runs", default=None)
# What is read of a tensor besides its numbers: by the sizes alone, or by neither.
_OF_SIZES = {"dim", "size", "numel", "nelement", "ndimension", "__len__", "shape", "ndim"}
_OF_TYPES = {"is_floating_point", "is_complex", "element_size", "dtype", "device", "requires_grad", "is_cpu",
             "is_meta", "is_cuda", "is_sparse", "is_nested", "itemsize"}  # fmt: skip
# What gives as much as the numbers of its inputs say.
_OF_NUMBERS = {"nonzero", "masked_select", "argwhere", "unique", "unique_consecutive", "bincount",
               "repeat_interleave"}  # fmt: skip


class Opaque(Exception):
    """A node reads numbers of its inputs, and is called as a whole.

    Args:
        sized: whether the sizes of its inputs say those of what it gives.
        settled, steps: see `not_in_recordings`.
    """

    def __init__(
        self, sized: bool = False, settled: Sequence[Ran] | None = None, steps: FewSteps | None = None
    ) -> None:
        super().__init__()
        self.sized, self.settled, self.steps = sized, settled, steps


class Unprepared(Exception):
    """A graph gives what no function of it would."""


def is_recorded() -> bool:
    """Whether what is called here is noted, for calls of these sizes alone."""
    return _RECORDER.get() is not None


def is_recorded_with(inputs: Sequence[Any]) -> bool:
    """Whether the node that is noted is given these: not one that is in another, as of a branch."""
    recorder = _RECORDER.get()
    return recorder is not None and recorder.gave(inputs)


def has_one(values: Iterable[Tensor], axes: Iterable[int]) -> bool:
    """Whether each value has one element along its axis, in all calls that what is being recorded is for."""
    recorder = _RECORDER.get()
    return recorder is not None and recorder.has_one(values, axes)


def unlike(value: Tensor, others: Iterable[Tensor]) -> Tensor:
    """A value in memory that none of the others lies in."""
    with torch._C.DisableTorchFunction():
        memory = value.untyped_storage().data_ptr()
        shared = any(other.untyped_storage().data_ptr() == memory for other in others)
    return value.clone() if shared else value


def stays(values: Iterable[Tensor]) -> bool:
    """Whether what is computed from these alone is part of the function that is being recorded."""
    recorder = _RECORDER.get()
    return recorder is not None and all(recorder.folds(value) for value in values)


def decided(value: Tensor) -> Any:
    """The number in a tensor of one element, by which a graph takes a branch."""
    recorder = _RECORDER.get()
    return value.item() if recorder is None else recorder.decided(value)


def not_in_recordings(
    sized: bool = False, settled: Sequence[Ran] | None = None, steps: FewSteps | None = None
) -> None:
    """To be called by what must not be taken apart: loops, which have functions of their own.

    Args:
        sized: whether the sizes of the inputs say those of what it gives.
        settled: of a loop that no number of its inputs steers, the reports of how it runs: where it is one
            run of a plan, later calls are that.
        steps: what it does, where a line of small calls may do that.

    Raises:
        Opaque: a node is being recorded.
    """
    if is_recorded():
        raise Opaque(sized, settled, steps)


def picked(around: Mapping[Any, Tensor], keys: Sequence[Hashable]) -> list[Tensor]:
    """Some of what a graph captures."""
    pick = getattr(around, "picked", None)
    return [around[key] for key in keys] if pick is None else pick(keys)


@dataclass
class Function:
    """A graph in a call of one kind.

    Attributes:
        run: of the inputs, and of the constants that it reads.
        constants: those.
        alike: whether they look as they did.
        folded: constants whose numbers are part of the function.
        twins: pairs of constants that are one tensor.
        again: the same for calls like one before.
    """

    run: Lined
    constants: Sequence[Hashable]
    alike: Callable[..., bool]
    folded: Folded
    twins: Sequence[tuple[Hashable, Hashable]]
    again: Any = None

    def constants_of(self, around: Mapping[Any, Any]) -> list[Tensor] | None:
        """The constants that it reads; None: they are no longer such as it was made for."""
        if not self.folded.are_still(picked(around, self.folded.keys)):
            return None
        if not all(around[one] is around[two] for one, two in self.twins):
            return None
        found = picked(around, self.constants)
        return found if self.alike(*found) else None


class Recorder(TorchFunctionMode):
    """Notes what a call of a graph asks torch for.

    Args:
        arguments: the inputs of the call.
        around: what the graph captures.
        constants: of that, what stays: what is computed from it alone is part of the function, unless it is
            a parameter, or counts no changes.
        copies: of constants, by their keys: what functions of this graph read, to be shared by all.
    """

    def __init__(
        self, arguments: Sequence[Tensor], around: Mapping[Any, Tensor], constants: Collection[Any],
        copies: dict[Any, Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._calls: list[Call] = []
        self._numbers = itertools.count()
        self._places: dict[int, Place] = {}  # of slots, where that is the same in all calls of the kind
        self._slots: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._sized: set[int] = set()  # slots of tensors whose sizes the kind of the call says
        self._laid: set[int] = set()  # and of those whose strides it says, too
        self._tensors: dict[int, weakref.ref[Tensor]] = {}  # of slots
        self._views: dict[int, tuple[Slot, Any, Any, int]] = {}  # of slots, what makes them
        given = (*arguments, *around.values())
        self._given = {value.untyped_storage().data_ptr() for value in given}
        self._begins: dict[int, int] = {}  # of slots, where they begin in memory that nothing given lies in
        self._met: set[int] = set()  # slots whose numbers, sizes or types were asked for
        self._fails = self._deciding = False
        self._count = len(arguments)
        self._last_given: Sequence[Any] = ()
        for value in arguments:
            self._sized.add(self._slot(value))
        self._around: dict[int, tuple[Hashable, Tensor]] = {}
        self._twins: list[tuple[Hashable, Hashable]] = []  # constants that are one tensor
        for key, value in around.items():
            same = self._known(value)
            if same is None:
                self._around[self._slot(value)] = key, value
            elif same in self._around and key in constants and self._around[same][0] in constants:
                self._twins.append((self._around[same][0], key))
            else:
                self._fails = True
        self._sized.update(self._around)
        self._laid.update(self._sized)
        for slot in self._laid:
            self._place(slot)
        self._foldable = {
            slot
            for slot, (key, value) in self._around.items()
            if key in constants
            and type(value) is Tensor
            and not value.requires_grad
            and not value.is_inference()
            and value.layout is torch.strided
            and value.is_contiguous()
            and not (value.is_conj() or value.is_neg())
        }
        self._folded: set[int] = set()
        self._copies = {} if copies is None else copies
        self._read: dict[int, Tensor] = {}  # by their slots, copies of constants whose numbers were read
        self._rearranged: dict[int, Rearranged] = {}  # by memory
        self._first: list[Call] = []  # of constants alone, for the calls that read what these give
        self._lies: dict[int, list[int]] = {}  # by memory, the constants that lie in it
        for slot in self._foldable:
            memory = self._around[slot][1].untyped_storage().data_ptr()
            self._lies.setdefault(memory, []).append(slot)

    def _slot(self, value: Tensor) -> int:
        number = next(self._numbers)
        self._tensors[number] = weakref.ref(value)
        self._slots[id(value)] = self._tensors[number], number
        return number

    def _known(self, value: Tensor) -> int | None:
        """The slot of a tensor; None: it is the same in all calls of the kind."""
        found = self._slots.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def _noted(self, value: Any) -> Any:
        """A structure with slots in the place of tensors that the function computes."""
        if isinstance(value, Tensor):
            slot = self._known(value)
            return value if slot is None else Slot(slot)
        if type(value) in (tuple, list):
            return type(value)(self._noted(item) for item in value)
        if type(value) is dict:
            return {name: self._noted(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._noted(part) for part in (value.start, value.stop, value.step)))
        return value

    def call(self, function: Callable[[Sequence[Any]], Sequence[Any]], arguments: Sequence[Any]) -> Any:
        """What a node gives; what it asks torch for is noted, or itself where that says not all."""
        before, self._last_given = len(self._calls), arguments
        folded, read = set(self._folded), dict(self._read)
        try:
            with during(_RECORDER, self), self:
                return function(arguments)
        except Opaque as opaque:
            sized, settled, steps = opaque.sized, opaque.settled, opaque.steps
            if steps is not None:
                self._folded, self._read = folded, read  # nothing that it computed is part of the function
            if any(map(decides, self._calls[before:])):
                sized, settled = False, None  # what is in a branch says nothing of the node that takes it
            del self._calls[before:]
        if self._folds(slots_in(self._noted(list(arguments)))):
            self._read_numbers(leaves(arguments, Tensor))
            return function(arguments)
        noted = self._made_anew(list(arguments))
        slots = {*slots_in(noted)}
        noting = None if settled is None else Noting()
        with noted_by(noting):
            results = function(arguments)
        if not all(isinstance(result, Tensor) for result in results):
            self._fails = True
            return results
        if noting is not None and settled is not None:
            always = [v for v in arguments if isinstance(v, Tensor) and self._known(v) is None]
            ran = replayed(function, noting, arguments, results, settled, always)
            sized, function = sized or ran is not function, ran  # a plan gives as much as sizes say
        # a loop without a step gives what it was given, which is not the same in all calls
        given = {id(value) for value in arguments}
        results = [value.view_as(value) if id(value) in given else value for value in results]
        found = [*map(self._slot, results)]
        plain = not any(v.requires_grad or v.storage_offset() for v in results)
        if steps is not None and plain and self._laid.issuperset(slots):
            function = Stepping(function, steps, results)
            for slot in found:
                self._begins[slot] = 0
                self._place(slot)
            self._laid.update(found)
        self._calls.append(Call(function, ((noted,), {}), found, True, False))
        if sized and self._sized.issuperset(slots):
            self._sized.update(found)
        return results

    def gave(self, inputs: Sequence[Any]) -> bool:
        """Whether these are what the node that it calls is given."""
        given = self._last_given
        return len(given) == len(inputs) and all(map(operator.is_, given, inputs))

    def folds(self, value: Tensor) -> bool:
        """Whether a tensor is the same in all calls of the kind."""
        slot = self._known(value)
        return slot is None or self._folds([slot])

    def has_one(self, values: Iterable[Tensor], axes: Iterable[int]) -> bool:
        """See the function of this name."""
        with torch._C.DisableTorchFunction():
            return all(
                ((slot := self._known(value)) is None or slot in self._sized)
                and -value.dim() <= axis < value.dim()
                and value.shape[axis] == 1
                for value, axis in zip(values, axes, strict=True)
            )

    def decided(self, value: Tensor) -> Any:
        """The number in a tensor; the function is for this one."""
        self._deciding = True
        try:
            return value.item()
        finally:
            self._deciding = False

    def forget(self) -> None:
        """Begin anew."""
        self._calls.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        iterated = func is Tensor.__iter__
        if iterated:
            func = Tensor.unbind
        if self._folds(slots_in((self._noted(args), self._noted(kwargs)))):
            result = self._folded_call(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
            noted = self._made_anew(args), self._made_anew(kwargs)
            self._note(func, noted, [*slots_in(noted)], result)
        return iter(result) if iterated else result

    def _folded_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function of constants gives. A view of one follows what is written to it later; anything
        else stands for its numbers as they are."""
        name, given = _name_of(func), [*leaves((args, kwargs), Tensor)]
        if name in _OF_SIZES or name in _OF_TYPES:
            return func(*args, **kwargs)
        writes = _is_in_place(name) or "out" in kwargs or "inplace" in kwargs
        if writes and any(memory_of(value) in self._rearranged for value in given):
            self._fails = True
        read = dict(self._read)
        if not writes and rearranges(name, given) and any(self._unread(given)):
            result = func(*args, **kwargs)
            if memory_of(result) not in {*map(memory_of, given)}:
                self._rearranged[memory_of(result)] = Rearranged(func, (args, kwargs), result)
                return result
        self._read_numbers(given)  # before it does: who writes meanwhile is seen at the next call
        result = func(*args, **kwargs)
        found = [result] if isinstance(result, Tensor) else result
        if len(given) == 1 and not writes:
            memory, several = given[0].untyped_storage().data_ptr(), isinstance(found, (tuple, list))
            if several and all(
                isinstance(t, Tensor) and t.untyped_storage().data_ptr() == memory for t in found
            ):
                self._read = read
                apart = [t if t is given[0] else t.data for t in found]  # a view would refer to its base
                return apart[0] if isinstance(result, Tensor) else type(found)(apart)
        return result

    def _read_numbers(self, given: Iterable[Tensor]) -> None:
        """Note what constants hold that these are, lie in, or are made of."""
        given = [*given]
        unread = [*self._unread(given)]
        for slot in unread:
            key, constant = self._around[slot]
            self._folds([slot])
            copy = self._copies.get(key)
            if copy is None or not same_bits(constant, copy):
                copy = self._copies[key] = constant.detach().clone()
            self._read[slot] = copy
        for value in given if unread else ():
            made = self._rearranged.get(memory_of(value))
            if made is not None and not made.is_still():  # somebody wrote to a constant after it was made
                self._fails = True

    def _unread(self, given: Iterable[Tensor]) -> Iterator[int]:
        """The constants that these are, lie in, or are made of, and of which no copy is known."""
        for value in given:
            for slot in self._lies.get(value.untyped_storage().data_ptr(), ()):
                if slot not in self._read and overlap(value, self._around[slot][1]):
                    yield slot
            made = self._rearranged.get(memory_of(value))
            if made is not None:
                yield from self._unread(leaves(made.arguments, Tensor))

    def _made_anew(self, value: Any) -> Any:
        """The same as `_noted`; what constants are put together to has slots, and is made in each call."""
        for tensor in leaves(value, Tensor) if self._rearranged else ():
            self._make(tensor)
        return self._noted(value)

    def _make(self, value: Tensor) -> None:
        """Have what is put together of constants made by the function."""
        made = self._rearranged.get(memory_of(value))
        if made is None or self._known(value) is not None:
            return
        if made.slot is None:
            positional, named = map(self._made_anew, made.arguments)
            made.slot = self._slot(made.result)
            self._first.append(Call(made.function, (positional, named), [made.slot], False, False))
            self._begins[made.slot] = 0
            self._place(made.slot)
            self._sized.add(made.slot)
            self._laid.add(made.slot)
        if value is made.result:
            return
        view = self._view_of(value, [made.slot])
        if view is None:
            self._fails = True
            return
        slot = self._slot(value)
        self._first.append(Call(*self._placed(view), [slot], False, False, True))
        self._views[slot] = view
        self._place(slot, view)
        self._sized.add(slot)
        self._laid.add(slot)

    def _folds(self, slots: Iterable[int]) -> bool:
        """Whether what is computed from these is the same in all calls of the kind."""
        slots = {*slots}
        self._met |= slots
        if not self._foldable.issuperset(slots):
            return False
        self._folded |= slots
        return True

    def _note(self, func: Any, noted: Any, slots: Sequence[int], result: Any) -> None:
        name = _name_of(func)
        several = isinstance(result, (tuple, list)) and bool(result)
        results: list[Any] = list(result) if several else [result]
        if self._deciding:
            self._calls.append(Call(partial(expect, result), noted, [], False, True))
            return
        if not all(isinstance(value, Tensor) for value in results):
            sized = name in _OF_SIZES and self._sized.issuperset(slots)
            if not sized and name not in _OF_TYPES:
                raise Opaque
            return
        if _is_in_place(name) or "out" in noted[1]:
            raise Opaque
        if not several and self._known(results[0]) is not None:  # it is of that type, or contiguous, already
            return
        kept = any(value.requires_grad for value in results)  # checkpoints count what is saved for gradients
        index = noted[0][1] if name == "__getitem__" else None
        parts = index if isinstance(index, tuple) else (index,)
        masks = any(isinstance(part, (Slot, Tensor, list)) for part in parts)
        sized = self._sized.issuperset(slots) and name not in _OF_NUMBERS and not masks
        laid = sized and not kept and self._laid.issuperset(slots)
        views = [self._view_of(value, slots) if laid else None for value in results]
        found = [*map(self._slot, results)]
        if all(views):  # each by one call: views that led to it are left out where nothing else reads them
            made = zip(views, found, strict=True)
            self._calls += [
                Call(*self._placed(view), [slot], False, False, True) for view, slot in made if view
            ]
        else:
            self._calls.append(Call(func, noted, found, several, kept))
            for value, slot in zip(results, found, strict=True):
                if value.untyped_storage().data_ptr() not in self._given:
                    self._begins[slot] = value.storage_offset()
        self._sized.update(found if sized else ())
        self._laid.update(found if laid else ())
        for slot, value, view in zip(found, results, views, strict=True):
            if laid and (view is not None or not value.storage_offset()):
                self._place(slot, view)
        self._views |= {slot: view for slot, view in zip(found, views, strict=True) if view}

    def _place(self, slot: int, view: tuple[Slot, Any, Any, int] | None = None) -> None:
        """Note where the numbers of a slot stand, if in a way that lines of calls know."""
        tensor = self._tensors[slot]()
        assert tensor is not None
        root, begin = (slot, 0) if view is None else (view[0].number, view[3])
        place = place_of(tensor, root, begin)
        if place is not None:
            self._places[slot] = place

    def _view_of(self, value: Tensor, slots: Sequence[int]) -> tuple[Slot, Any, Any, int] | None:
        """A view as one of a tensor that is none: that, sizes, strides, where it begins; None: it is none."""
        memory, of = value.untyped_storage().data_ptr(), []
        for slot in {*slots}:
            tensor = self._tensors[slot]()
            if tensor is not None and tensor.untyped_storage().data_ptr() == memory:
                of.append((slot, tensor))
        if len(of) != 1 or not memory or self._known(value) in slots:
            return None
        ((slot, tensor),) = of
        if value.dtype != tensor.dtype or value.is_conj() or value.is_neg():
            return None
        root, *_, before = self._views.get(slot, (Slot(slot), 0))
        begin = before + int(value.storage_offset()) - int(tensor.storage_offset())
        return root, tuple(value.shape), value.stride(), begin

    def _placed(self, view: tuple[Slot, Any, Any, int]) -> tuple[Any, Any]:
        """What makes a view, and its arguments; memory that the function asks for itself begins at no other
        place in another call."""
        root, shape, strides, begin = view
        first = self._begins.get(root.number)
        if first is None:
            return _view, (view, {})
        return Tensor.as_strided, ((root, shape, strides, begin + first), {})

    def handed(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs that a caller may change: what is part of the function is not among them."""
        lies = {value.untyped_storage().data_ptr() for _, value in self._around.values()}
        return tuple(
            value.clone()
            if isinstance(value, Tensor)
            and self._known(value) is None
            and value.untyped_storage().data_ptr() not in lies
            else value
            for value in outputs
        )

    def function(self, outputs: Sequence[Any], after: int = 1) -> Function:
        """The function of what was noted.

        Args:
            outputs: of the graph.
            after: after how many calls it is worth to build something for it.

        Raises:
            Unprepared: an output is no tensor, or lies in a constant of whole numbers.
        """
        for value in outputs:
            self._made_anew(value)
        if self._fails:
            raise Unprepared
        lies = {t.untyped_storage().data_ptr() for _, t in self._around.values()}
        found = [value if isinstance(value, Tensor) else None for value in outputs]
        results: list[int | Tensor] = []
        for value in found:
            slot = None if value is None else self._known(value)
            if value is None or (slot is None and value.untyped_storage().data_ptr() in lies):
                raise Unprepared
            results.append(value if slot is None else slot)
        wanted = {slot for slot in results if isinstance(slot, int)}
        calls: list[Call] = []
        for call in reversed(just_before(self._first, self._calls, wanted)):
            if call.kept or not wanted.isdisjoint(call.results):
                calls.append(call)
                wanted.update(slots_in(call.arguments))
        calls.reverse()
        read = {slot: self._around[slot] for slot in self._around if slot in self._met | wanted}
        names = [*range(self._count), *read]
        run = Lined(calls, names, results, dict(self._places), after)
        numbers = {self._around[slot][0]: copy for slot, copy in self._read.items()}
        folded = Folded(dict(map(self._around.__getitem__, self._folded)), numbers)
        values = [value for _, value in read.values()]
        same = alike(values) if values else lambda: True
        return Function(run, [key for key, _ in read.values()], same, folded, self._twins)


def _name_of(func: Any) -> str:
    return func.__self__.__name__ if func.__name__ == "__get__" else func.__name__


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def _view(value: Tensor, shape: Sequence[int], strides: Sequence[int], begin: int) -> Tensor:
    return value.as_strided(shape, strides, begin + value.storage_offset())
