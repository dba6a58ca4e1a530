"""What a step does, recorded call by call on a few rows, where no walk tells all that it reads.

Every call of torch that the step makes is noted with its arguments: tensors by where they came from, all else
by value. What Python read on the way matters only as far as it shows in these calls, so two records that are
equal mean the same plan, whatever was looked up and however. The tensors that the step did not make are its
weights, in the order of their first use. It costs about as much as one more time step at every call.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules._functions import BackwardHookFunction
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.code_facts import CALLS_BACKWARD
from stepnet.compiler.reads.followed_numbers import Uses
from stepnet.compiler.reads.monkeypatches import replaced_by
from stepnet.compiler.reads.numbers import Number, numbers_in
from stepnet.compiler.reads.ranges import RANGES
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.survey import Same
from stepnet.compiler.reads.trust import BY_VALUE, is_trusted_class, is_trusted_code
from stepnet.data.autograd_history import history
from stepnet.data.modes import autocast_dtype, is_wrapped, unwrapped
from stepnet.data.storage import memory_of
from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line

from .data_dependent import (
    AS_CLAIMED,
    ASKS,
    BY_VALUES,
    CHECKED,
    NONE,
    NOT_ALL,
    OF_ROWS,
    PICKS,
    SOME,
    Claims,
    Followers,
    is_check,
)
from .draws import Draw, draw_of, generator_of
from .library_ops import is_made_of_others
from .mask_counts import Numbers, masks_in
from .tensor_metadata import ASKS_FOR_GRADIENT, OWN_STATE
from .unseen_calls import applied, unbatched
from .writes import HOOKS_ON, SHOWS_MEMORY, hooks_on_others, refuse_other_memory, written

_MOST_BYTES = 4096
BACKWARD = "backward"  # in a record: what follows is code that runs there
_DISPATCH = "__torch_dispatch__"
_PLAIN = frozenset({int, bool, str, type(None)})


_MOST_ASKED = 1000  # times that a step asks something on sample rows


class Record(NamedTuple):
    """`key` holds the calls, but for `numbers` of Python's among their arguments; `tensors` are those that
    the step read and did not make; `answers`, what its Python asked of tensors (see `data_dependent`)."""

    key: tuple[Any, ...]
    tensors: list[Tensor]
    answers: list[Any]
    numbers: list[Number]


class Trial(NamedTuple):
    """What a step gave, the tensors that it read and did not make, and what its Python asked of tensors;
    `asks_captured`: whether an answer follows from tensors that it reads. `draws`: from generators of its
    own. `strides_matter`: whether it wrote into tensors or cut some off, so that it may matter which two are
    one, or drew from a generator of its own, which may go by the order of memory. `own_backward`: if code
    of its own runs in backward: hooks, custom Functions. `functions`: these, if that is all and each is found
    by its name, so that it is one and the same at every call. `wanted`: the answers to its Python's
    questions whether rows require a gradient."""

    result: Any
    tensors: list[Tensor]
    answers: list[Any]
    asks_captured: bool
    draws: list[tuple[Draw, Tensor]]
    strides_matter: bool
    own_backward: bool
    functions: tuple[Any, ...] | None
    wanted: list[bool]


def record(
    run: Callable[[], tuple[Any, list[Any]]], given: Sequence[Tensor], uses: Uses | None = None
) -> Record:
    """Run a step once on sample rows and note what it does.

    Args:
        run: runs it; gives the structure of its results and their leaves.
        given: the sample rows.
        uses: gets what it does with numbers that are followed.

    Raises:
        Unsupported: it does what no record holds: writes to a tensor it did not make, or hands torch an
            object that nothing is known of.
    """
    mode = _Recorder(given, uses)
    with mode, applied(mode.met), unbatched(mode.add):
        spec, results = run()
    mode.key.append(("gives", spec, tuple(mode.coded(result) for result in results)))
    for function, own in _functions(results).items():
        mode.key.append((BACKWARD if own else "function", _code_of(function)))
    return Record(tuple(mode.key), mode.tensors, mode.answers, mode.handed)


def _functions(results: Any) -> dict[Any, bool]:
    """The Functions that gradients of results go by; whether each is the user's, or calls hooks of modules,
    which are."""
    nodes = history(t.grad_fn for t in leaves(results, Tensor))
    kinds: Any = [node._forward_cls for node in nodes if isinstance(node, BackwardCFunction)]  # pyright: ignore
    return {k: k is BackwardHookFunction or k.__module__.split(".")[0] not in _OTHERS for k in kinds}


def _is_found_by_name(function: Any) -> bool:
    """Whether a Function of the user's stands in a module."""
    space = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else {}
    return function is not BackwardHookFunction and space.get(function.__qualname__) is function


_OTHERS = ("torch", "stepnet")


def has_own_backward(key: Sequence[Any]) -> bool:
    """Whether code of the step's own runs in backward, by its record, and reads things then."""
    calls = (call[0] for call in key if type(call) is tuple and call)
    return any(call == BACKWARD or call in HOOKS_ON for call in calls)


def asks_for_gradient(key: Sequence[Any]) -> bool:
    """Whether a step asks a tensor whether it requires a gradient, by its record."""
    return any(type(call) is tuple and call and call[0] == ASKS_FOR_GRADIENT for call in key)


def tensors_used(run: Callable[[], Any], given: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a step reads besides `given`; see `tried`."""
    return tried(run, given).tensors


def tried(
    run: Callable[[], Any], given: Sequence[Tensor], generators: Sequence[torch.Generator] = ()
) -> Trial:
    """Run a step for real and report what it read besides `given`.

    Raises:
        Unsupported: the step changes a tensor that it read, in place; it is stopped before it does.
    """
    mode = _Reader(given, generators)
    with mode, applied(mode.met), unbatched(mode.add):
        result = run()
    used = [tensor for tensor in mode.tensors if not tensor.is_meta]  # frames inside are recorded on those
    own = tuple([function for function, is_own in _functions(result).items() if is_own])
    closed = not mode.hooks and all(map(_is_found_by_name, own))
    return Trial(
        result, used, mode.answers, mode.asks_captured, mode.draws, mode.strides_matter,
        own_backward=mode.hooks or bool(own), functions=own if closed else None,
        wanted=mode.wanted,
    )  # fmt: skip


class _Reader(TorchFunctionMode):
    """Tells the tensors that are read but were not made, and stops what would write to them."""

    def __init__(self, given: Sequence[Tensor], generators: Sequence[torch.Generator] = ()) -> None:
        super().__init__()
        self.generators = [id(generator) for generator in generators]
        self.draws: list[tuple[Draw, Tensor]] = []
        self.tensors: list[Tensor] = []
        self.numbers: dict[int, int] = {}
        self.read: set[int] = set()
        self.memory: set[int] = set()  # of what is read; a view or an alias of it counts as made
        self.made: set[int] = set()  # of whatever is in `numbers`
        self.given: frozenset[int] = frozenset()  # of what is given, which may be a captured tensor's, too
        self.alive: list[Tensor] = []  # ids in `numbers` stay taken
        self.of_rows, self.of_captured = Followers(given), Followers()
        self.claims = Claims(self.of_rows)
        self.picked = Numbers()
        self.checks: list[Tensor] = []  # truth values that are checked by torch.distributions
        self.answers: list[Any] = []
        self.asks_captured = False
        self.strides_matter = False
        self.hooks = False  # whether it registers any
        self.wanted: list[bool] = []  # whether rows require a gradient, where that is asked
        self._grad = torch.is_grad_enabled()
        self._noise = torch.get_rng_state()
        self.add(given)
        self.given = frozenset(self.made)

    def add(self, tensors: Any) -> None:
        for tensor in leaves(tensors, Tensor):
            if id(tensor) not in self.numbers:
                self.numbers[id(tensor)] = len(self.numbers)
                self.alive.append(tensor)
                if is_wrapped(tensor):
                    self.add(unwrapped(tensor))
                else:
                    self.made.add(unseen_memory_of(tensor))

    def meet(self, tensor: Tensor) -> None:
        if is_wrapped(tensor):  # by a transform inside the step
            tensor = unwrapped(tensor)
        if id(tensor) not in self.numbers:
            kind, memory = type(tensor), unseen_memory_of(tensor)
            if memory in self.made and memory not in self.memory and memory not in self.given:
                self.add(tensor)  # by an alias that torch tells no mode of, as Variable(x)
                return
            if getattr(kind, _DISPATCH, None) is not getattr(Tensor, _DISPATCH, None):  # torch compiles
                raise Unsupported(f"it meets a {kind.__name__}, which has dispatch rules of its own")
            self.add(tensor)
            self.read.add(id(tensor))
            self.of_captured.add([tensor])
            self.memory.add(memory)
            self.tensors.append(tensor)

    def met(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a custom Function, as they are."""
        _Reader.note(self, None, args, kwargs)
        return args, kwargs

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        for tensor in leaves((args, kwargs), Tensor):
            self.meet(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RANGES:
            return func(*args, **kwargs)
        if is_made_of_others(func, (args, kwargs)):
            raise Unsupported(f"it calls {func}, an operator made in Python, which no walk sees into")
        if func is Tensor.backward:
            raise Unsupported(CALLS_BACKWARD, line=user_line().short)
        if (name := replaced_by(func)) is not None:  # under a mode torch's own asks for itself by its name
            raise Unsupported(f"it calls torch's own {name}, in the place of which somebody put another one")
        self.note(func, args, kwargs)
        changed = list(written(func, args, kwargs))
        self.strides_matter |= bool(changed) or torch.is_grad_enabled() != self._grad
        if any(unseen_memory_of(tensor) in self.memory for tensor in changed):
            # stopped before the write: the plain loop makes it, once for each step
            raise Unsupported("the step changes a tensor it did not make, in place")
        refuse_other_memory(func)
        generator, draw = generator_of(args, kwargs), None
        if generator is not None:
            draw = draw_of(func, args, kwargs, self._place(generator))[0]
        for mask in masks_in(func, args):
            self.pick(mask)
        if func in SHOWS_MEMORY and unseen_memory_of(args[0]) in self.memory:
            raise Unsupported(
                "the step hands the memory of a tensor it did not make to numpy, which may write into it"
            )
        if func in HOOKS_ON:
            self.hooks = True
            if id(args[0]) in self.read:
                raise hooks_on_others()
        out = func(*args, **kwargs)
        if (at := self.claims.chosen_by(func, args)) is not None:
            self.claims.decided(args[at], lambda: self.asked(bool(args[at]), args[at:], {}))
        if func in OWN_STATE:
            self.told(args, out)
        if func == ASKS_FOR_GRADIENT and self.of_rows.has(args):
            self.wanted.append(out)
        self.add(out)
        if draw is not None:
            self.draws.append((draw, out.clone()))
            self.strides_matter = True
        for followers in (self.of_rows, self.of_captured):
            followers.follow(func, args, kwargs, out)
        self.claims.follow(func, args, kwargs, out)
        self.picked.follow(func, args, out)
        mask = self.picked.counted(func, args)
        if mask is not None and self.of_rows.has(mask):
            self.answers.append(SOME if mask.any() else NONE)
        if is_check(func):
            self.checks.append(out)
        if func in ASKS:
            self.asked(out, args, kwargs)
        return out

    def pick(self, mask: Tensor) -> None:
        """Note which places a mask picks: a mask that is the same at every step is asked for them."""
        if id(mask) in self.read:
            self.answers.append(mask.tolist())
            self.asks_captured = True
        else:
            self.asked(mask.tolist(), (mask,), {})
            self.answers[-1] = PICKS if self.of_rows.has(mask) else self.answers[-1]

    def numbers_of(self, tensor: Tensor) -> Any:
        """The numbers of a tensor, for what reads them outside of modes."""
        return self.__torch_function__(Tensor.tolist, (), (tensor,))

    def told(self, args: Any, out: Any) -> None:
        """A tensor told of itself: what it holds beside its numbers is read, too."""
        for tensor in leaves(out, Tensor):
            self.meet(tensor)

    def _place(self, generator: torch.Generator) -> int:
        if id(generator) not in self.generators:
            raise Unsupported(
                "the step draws from a generator that could not be found again from the step",
                remedy="keep it in a closure or an attribute that the step refers to",
            )
        return self.generators.index(id(generator))

    def asked(self, answer: Any, args: Any, kwargs: Any) -> None:
        """Note what the step's Python asked of tensors.

        Raises:
            Unsupported: it asked very often: a while loop, which may never end on these rows, but on others.
        """
        if len(self.answers) == _MOST_ASKED:
            raise Unsupported(
                f"{BY_VALUES}, more than {_MOST_ASKED} times",
                remedy="a stepnet.while_loop with a condition for each row",
                line=user_line().short,
            )
        of, claim = (args, kwargs), self.claims.of(args)
        if any(args[0] is check for check in self.checks):
            answer = CHECKED
        elif claim is not None and self.of_rows.has(claim[0]):
            of_some = SOME if answer else NONE
            answer = of_some if not claim[1] else AS_CLAIMED if answer else NOT_ALL
        elif self.of_rows.has(of) or self.draws or not torch.equal(torch.get_rng_state(), self._noise):
            answer = OF_ROWS
        else:
            self.asks_captured |= self.of_captured.has(of)
        self.answers.append(answer)


def unseen_memory_of(tensor: Tensor) -> int:
    """`memory_of`, of which no mode or class of tensors is told."""
    with torch._C.DisableTorchFunction():
        return memory_of(tensor)


class _Recorder(_Reader):
    """Notes each call besides."""

    def __init__(self, given: Sequence[Tensor], uses: Uses | None) -> None:
        super().__init__(given)
        self.key: list[Any] = []
        self.handed: list[Number] = []
        self._uses = uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._uses is not None:
            args, kwargs = self._uses.told(func, args, kwargs or {}, len(self.handed))
        return super().__torch_function__(func, types, args, kwargs)

    def met(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The same, and notes the call."""
        self.key.append(("apply", tuple(map(self.coded, args))))
        return args, kwargs

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        if func is Tensor.__deepcopy__:
            args = args[:1]  # not what else was copied
        numbers = {number.place: number for number in numbers_in(func, args, kwargs)}
        self.handed += numbers.values()
        self.key.append(
            (
                func,
                tuple(self.coded(value) for at, value in enumerate(args) if at not in numbers),
                tuple((name, self.coded(value)) for name, value in kwargs.items() if name not in numbers),
                tuple((number.place, type(number.value)) for number in numbers.values()),
                torch.is_grad_enabled(),
                autocast_dtype("cpu"),
            )
        )

    def pick(self, mask: Tensor) -> None:
        """The same, and notes the places."""
        super().pick(mask)
        self.key.append(("picks", None if self.answers[-1] is PICKS else repr(self.answers[-1])))

    def told(self, args: Any, out: Any) -> None:
        """The same, of a tensor that is no row."""
        if self.of_rows.has(args):
            raise Unsupported("the step asks how its rows lie in memory, or about their autograd state")
        super().told(args, out)

    def coded(self, value: Any) -> Any:
        """An argument as part of the key."""
        kind = type(value)
        if kind in _PLAIN:
            return value, kind
        if isinstance(value, Tensor):
            number = self.numbers.get(id(value))
            if number is not None:
                return number
            self.meet(value)
            if kind is nn.Parameter:  # what `functional_call` puts in its place may be none
                kind = Tensor
            return "new", kind, value.shape, value.dtype, value.requires_grad, value.device
        if kind in BY_VALUE:
            return kind, repr(value)
        if kind is slice:
            return slice, self.coded(value.start), self.coded(value.stop), self.coded(value.step)
        if kind is list or isinstance(value, tuple):
            return kind, tuple(map(self.coded, value))
        if kind is dict:
            return dict, tuple((self.coded(k), self.coded(v)) for k, v in value.items())
        return _coded_object(value)


def _coded_object(value: Any) -> Any:
    kind = type(value)
    if kind is torch.Generator:
        raise Unsupported(
            "the step draws from a generator of its own, and what else it does is not known beforehand",
            remedy="seed the generator outside of the step",
        )
    if (
        isinstance(value, (np.ndarray, np.generic))
        and value.nbytes <= _MOST_BYTES
        and not value.dtype.hasobject
    ):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, enum.Enum) or (isinstance(value, type) and is_trusted_class(value)):
        return Same(value)
    if isinstance(value, types.FunctionType) and is_trusted_code(value.__code__.co_filename):
        return Same(value)
    if callable(value) and not isinstance(value, (nn.Module, torch.ScriptObject)):
        return _code_of(value)
    raise Unsupported(f"the step hands torch a {kind.__qualname__}, of which nothing is known")


def _code_of(value: Any) -> Any:
    """Code that torch runs later, in a backward pass: it is not in the record, so it must be known whole."""
    found = reach(value)
    reason = found.refused or found.open
    if reason is not None or not found.complete or found.tensors:
        name = getattr(value, "__name__", type(value).__name__)
        raise Unsupported(
            f"what {name} reads in the backward pass could not be told: {reason or 'it has tensors'}"
        )
    return found.key
