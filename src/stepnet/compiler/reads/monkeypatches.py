"""What of torch and stepnet somebody put something else in the place of, however deep: their own modules,
classes and functions find it there, whose code no walk reads."""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributions
from torch.fx import _symbolic_trace

from .code_facts import MAKES, facts
from .dict_changes import changes_at, counts_changes
from .function_parts import LOOKED_AT, has_parts, parts, with_inner, words_of_parts
from .kinds import MISSING, UNREAD
from .trust import COMPUTING, is_foreign, is_trusted_code, is_trusted_module, words

_FAMILIES = (
    "torch.nn.", "torch.functional", "torch._tensor", "torch.distributions.", "torch.linalg", "torch.fft",
    "torch.special", "torch.autograd.function",
)  # fmt: skip
# What steps call.
_OURS = ("stepnet.cells.", "stepnet.nn.", "stepnet.layers.", "stepnet.data.", "stepnet.ops")
_AROUND = ("stepnet.data.heap", "stepnet.data.windows")  # they do not call these
# What lists all that torch has, compiles steps, or runs them on tensors that the plain loop is for.
_NOT_OF_STEPS = (
    *_AROUND,
    "torch.overrides",
    "torch._dynamo.",
    "torch._inductor.",
    "torch.distributed.tensor.",
)
OF_DISTRIBUTIONS = "torch.distributions"
DISTRIBUTIONS = frozenset({"distributions", *distributions.__all__})  # names by which code comes by them
# In the place of which torch puts others itself; and what computes nothing: Lightning has a `torch.compile`.
_OF_TORCH = {
    "torch": words("manual_seed Storage compile load save"),
    "torch.nn.modules.module": words("_global_is_full_backward_hook"),  # with which the hooks are looked at
    "torch.nn.modules.module.Module": words("__init__ __setstate__ ___needs_generation_tag_patch"),
    "torch.distributions.distribution.Distribution": words("_validate_args"),
    "torch.nn.parallel.distributed.DistributedDataParallel": words(
        "_active_ddp_module"
    ),  # during its forward
    "torch.nn.parallel._functions": words("_streams"),
    "torch.nn.utils.parametrize": words("_cache _cache_enabled"),  # a walk takes what they are of
}
_SWAPPED = {Tensor, torch.autograd.Function}  # the one has a place of its own, in the other we swap `apply`
_TRACES = _symbolic_trace.__file__
_VF: Any = torch._VF  # pyright: ignore[reportAttributeAccessIssue]
_NN: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]


KERNEL: Any = object()


class Patch(NamedTuple):
    """`held` is there now, MISSING for nothing, KERNEL for an operator's; `names` may be looked up in it.
    `by`: the names without which no code comes by it; None where code may without."""

    name: str
    held: Any
    names: frozenset[str] = frozenset()
    by: frozenset[str] | None = None


class _Space:
    """The dict of a module or class, and what was in it."""

    __slots__ = ("_empty", "_first", "_is_over", "held", "is_class", "name")

    def __init__(self, name: str, held: Any, beneath: Any = None, *, is_class: bool) -> None:
        self.name, self.held, self.is_class, self._is_over = name, held, is_class, beneath is not None
        self._first = {key: getattr(beneath, key, MISSING) for key in dir(beneath)} if beneath else {}
        self._first |= {key: MISSING if is_foreign(item) else item for key, item in held.items()}
        self._empty = {key for key, item in held.items() if type(item) is dict and not item}

    def replaced(self) -> Iterator[Patch]:
        first, held, own = self._first, self.held, _OF_TORCH.get(self.name, frozenset())
        for key, item in list(held.items()):
            before = first.get(key, MISSING)
            if item is before or key in own or not (key in first or self._finds(key)):
                continue
            if type(item) is dict and not item and key in self._empty:  # a cache that torch begins anew
                continue
            if isinstance(item, types.FunctionType) and item.__code__.co_filename == _TRACES:
                continue  # while it traces, and then it calls what it found when it was imported
            names = frozenset[str]() if isinstance(item, _TELLS_ALL) else self._read(key)
            yield Patch(f"{self.name}.{key}", item, names, self._by(key))
        if not self._is_over:
            for key in first.keys() - held.keys() - own:
                yield Patch(f"{self.name}.{key}", MISSING, by=self._by(key))

    def _by(self, key: str) -> frozenset[str] | None:
        if self.is_class and key in UNREAD:
            return frozenset((key,))
        if self.name.startswith(OF_DISTRIBUTIONS):
            return DISTRIBUTIONS
        return _who_asks(key, len(sys.modules)) if self.held is vars(torch) else None

    def _finds(self, key: str) -> bool:
        """Whether a name that was not there may be found, in the place of one beneath."""
        return key not in UNREAD if self.is_class else key in vars(builtins)

    def _read(self, key: str) -> frozenset[str]:
        """The names looked up by functions that find this one."""
        items = list(self.held.values())
        for kind in [] if self.is_class else list(items):
            if isinstance(kind, type) and kind.__module__ == self.name:
                items += vars(kind).values()
        known = [facts(item.__code__) for item in items if isinstance(item, types.FunctionType)]
        found = (code.names for code in known if key in code.names or key in code.globals)
        return frozenset().union(*found) - MAKES  # torch makes objects of its own classes


@functools.lru_cache
def _who_asks(key: str, modules: int) -> frozenset[str] | None:
    """The names by which code comes to what it asks torch itself for; None if torch's own code, of which no
    walk reads the names, may. An operator that takes functions is in a module of its name."""
    if gc.get_freeze_count():  # functions are among what is not listed then
        return None
    by = {key}
    for function in gc.get_objects():
        if type(function) is not types.FunctionType or not is_trusted_code(function.__code__.co_filename):
            continue
        module = str(function.__module__)
        if not _mentions(function.__code__, key) or module.startswith(_NOT_OF_STEPS):
            continue
        known = facts(function.__code__)
        asked = known.asked.get("torch", ())
        if asked is None or key in asked or "torch" in known.imports:
            package, _, name = module.rpartition(".")
            if package != "torch._higher_order_ops":
                return None
            by.add(name)
    return frozenset(by)


def _mentions(code: types.CodeType, name: str) -> bool:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return name in code.co_names or any(_mentions(part, name) for part in inner)


_TELLS_ALL = (
    types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property, type, int, str,
    NoneType,
)  # fmt: skip


def _of_torch() -> Iterator[_Space]:
    yield _Space("torch", vars(torch), is_class=False)
    yield _Space("_VF", vars(_VF), _VF.vf, is_class=False)
    yield _Space("_nn", vars(_NN), is_class=False)
    yield _Space("Tensor", _behind(Tensor), Tensor.__mro__[1], is_class=False)
    yield from _of_families(_FAMILIES)


def _of_families(families: tuple[str, ...]) -> Iterator[_Space]:
    return _of_modules(
        [
            (name, module)
            for name, module in list(sys.modules.items())
            if name.startswith(families) and name not in _AROUND
        ]
    )


def _of_modules(modules: Iterable[tuple[str, types.ModuleType]]) -> Iterator[_Space]:
    classes: dict[type, None] = {}
    for name, module in modules:
        yield _Space(name, vars(module), is_class=False)
        classes |= {
            item: None
            for item in vars(module).values()
            if isinstance(item, type) and item.__module__ == name and item not in _SWAPPED
        }
    for kind in classes:
        yield _Space(f"{kind.__module__}.{kind.__qualname__}", _behind(kind), is_class=True)
        CLASSES.add(kind)


def registries(modules: Iterable[tuple[str, types.ModuleType]]) -> Iterator[_Space]:
    """Tables of functions or classes by name, as a library has of its solvers."""
    for name, module in modules:
        for key, held in list(vars(module).items()):
            named = type(held) is dict and held and all(type(item) is str for item in held)
            if named and key[:2] != "__" and all(isinstance(item, _CALLED) for item in held.values()):
                yield _Space(f"{name}.{key}", held, is_class=False)


_CALLED = (types.FunctionType, type)


def _behind(kind: type) -> Any:
    return gc.get_referents(vars(kind))[0]


CLASSES: set[type] = set()  # in which nothing is replaced unseen
TORCH = list(_of_torch())


class Written(NamedTuple):
    """A function of torch in Python, and what it was: somebody may set its code and its defaults."""

    patch: Patch
    function: Any
    first: tuple[Any, ...]


def written_in(name: str, items: Iterable[tuple[str, Any]]) -> Iterator[Written]:
    """The functions among what a module or class of this name holds."""
    for key, item in items:
        for function in with_inner(item) if isinstance(item, types.FunctionType) else ():
            yield Written(Patch(f"{name}.{key}", function), function, parts(function))


def _functions() -> Iterator[Written]:
    for space in TORCH:
        if space.is_class and space.name.startswith("torch.nn.modules."):
            yield from written_in(space.name, [("forward", space.held.get("forward"))])
        elif space.name in ("torch.nn.functional", "torch.functional", "torch._tensor", "Tensor"):
            yield from written_in(space.name, space.held.items())


_FUNCTIONS = list(_functions())
LOOKED_AT.update(id(one.function) for one in _FUNCTIONS)


def words_of_functions(functions: Iterable[Written]) -> list[int]:
    """Words of memory one of which is another after somebody set a part of one of these functions; none where
    Python has no such."""
    return words_of_parts(one.function for one in functions)


@functools.cache
def _spaces() -> list[_Space]:
    """Those of torch as when stepnet was imported, ours, all of which are imported by the first call, and
    those of libraries as when they were first seen."""
    return [*TORCH, *_of_families(_OURS)]


_modules: Any = None  # how many were imported when it was looked for libraries, and which of those
_seen: set[int] = set()  # what their modules hold, by id


def _see_libraries() -> None:
    """Add the modules of libraries that were imported since."""
    global _known
    known = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(COMPUTING)]
    new = [(name, it) for name, it in known if is_trusted_module(it) and id(vars(it)) not in _seen]
    if new:
        _seen.update(id(vars(module)) for _, module in new)
        _spaces().extend(_of_modules(new))
        _spaces().extend(registries(new))
        places.cache_clear()
        _counter.cache_clear()
        _known = None, [], ()


_KERNELS: set[str] = torch.library._impls  # "aten/tanh/CPU", of whoever registered one
_SIZE = 24  # bytes from the start of a set to the number of its items
_WHERE_NOT = words("Meta Python Functionalize FuncTorchBatched MPS CUDA XPU HPU MTIA PrivateUse1")
_KERNELS_FIRST = frozenset(_KERNELS)


@functools.cache
def places() -> list[int]:
    """Words of memory one of which is another after something was replaced; none where Python has no such."""
    if not counts_changes():
        return []
    dicts = (changes_at(space.held) for space in _spaces())
    return [*dicts, id(_KERNELS) + _SIZE, *words_of_functions(_FUNCTIONS)]


@functools.cache
def _counter() -> Callable[[], Any]:
    """Tells what is another value, for each of the dicts and for the kernels, after one was changed."""
    if not places():
        return lambda: [
            *(tuple(map(id, space.held.values())) for space in _spaces()),
            len(_KERNELS),
            *parts_of(_FUNCTIONS),
        ]
    return reader(places())


def parts_of(functions: Iterable[Written]) -> list[tuple[int, ...]]:
    """What is another value after somebody set a part of one of these functions."""
    return [tuple(map(id, parts(one.function))) for one in functions]


def reader(places: Sequence[int]) -> Callable[[], bytes]:
    """Reads the words of memory at these places, all at once."""
    start = min(places)
    first = np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(start))
    memory = np.lib.stride_tricks.as_strided(first, shape=((max(places) - start) // 8 + 1,), strides=(8,))
    at = np.array([(place - start) // 8 for place in places])
    return lambda: memory.take(at).tobytes()


def _kernels() -> Iterator[Patch]:
    """Operators of torch that compute by what somebody registered, which no Python shows."""
    for name in sorted(_KERNELS - _KERNELS_FIRST):
        space, _, key = name.split("/")
        if space == "aten" and key not in _WHERE_NOT:
            yield Patch(name, KERNEL)


def is_as_it_was(one: Written) -> bool:
    """Whether nobody set a part of a function."""
    return has_parts(one.function, one.first)


def _changed(now: Any, before: Any) -> set[int]:
    """Which of what the counter counts differ."""
    if isinstance(now, bytes):
        now, before = (np.frombuffer(counts, np.int64).tolist() for counts in (now, before))
    return {i for i, (a, b) in enumerate(zip(now, before, strict=True)) if a != b}


# The counter's last value; what was found in each space, and in all of them.
_known: tuple[Any, list[tuple[Patch, ...]], Sequence[Patch]] = None, [], ()


def patched() -> Sequence[Patch]:
    """What is there now, wherever it is another thing than when stepnet was imported.

    >>> import torch.nn.functional as F
    >>> patched()
    ()
    >>> relu, F.relu = F.relu, torch.tanh
    >>> [patch.name for patch in patched()]
    ['torch.nn.functional.relu']
    >>> F.relu = relu
    """
    global _known, _modules
    modules = (len(sys.modules), *map(sys.modules.get, COMPUTING))
    if modules != _modules:
        _see_libraries()
        _modules = modules
    now = _counter()()
    before, of_each, found = _known
    if now != before:
        spaces = list(_spaces())  # to which another thread may add meanwhile
        known = before is not None and len(before) == len(now) and len(of_each) == len(spaces)
        changed = _changed(now, before) if known else None
        of_each = [
            tuple(space.replaced()) if changed is None or i in changed or of_each[i] else ()
            for i, space in enumerate(spaces)
        ]
        written = (one.patch for one in _FUNCTIONS if not is_as_it_was(one))
        found = (*itertools.chain(*of_each), *_kernels(), *written)
        _known = now, of_each, found
    return found


def replaced_by(function: Any) -> str | None:
    """The name of what of torch's this function stands in the place of; None for torch's own.

    >>> replaced_by(torch.tanh), replaced_by(torch.norm)
    (None, None)
    """
    if type(function) is not types.FunctionType or not is_foreign(function):
        return None
    return next((patch.name for patch in patched() if patch.held is function), None)
