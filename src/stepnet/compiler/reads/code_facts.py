"""What a code object can read besides its arguments and cells: names of globals, attributes, and how it looks
things up. Known from its instructions alone, once for each code object."""

from __future__ import annotations

import builtins
import dis
import itertools
import types
from collections.abc import Container
from typing import Any

from torch import Tensor

from .lookups import fills_in, is_of_self, loads_self, lookups, only_for_checks, operator_of
from .trust import AMBIENT_NAMES, is_trusted_code, tells_settings_by_name, words

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "STORE_ATTR", "DELETE_ATTR"}
)


# Names that read what no walk over objects sees: everything an object has, or a name made at run time.
REFLECTION = words(
    """__dict__ __getattr__ __getattribute__ __globals__ __closure__ __subclasses__ f_locals f_globals format
    format_map attrgetter methodcaller"""
)

# What Python calls, or looks up, where code makes a text of an object, an object of a class that it does not
# name, or holds one against a pattern.
TEXTS = frozenset({"__str__", "__repr__", "__format__", "extra_repr"})
MAKES = frozenset({"__init__", "__new__", "__post_init__"})
# What stands for `is`, and the functions that are the same: whether two objects of one value are one object.
BY_IDENTITY = words("is_ is_not")
_SINGLE = (type(None), bool, type(Ellipsis))  # of which there is one object for each value
_PATTERNS = {"MATCH_CLASS": frozenset({"__match_args__"}), "MATCH_KEYS": frozenset({"get"})}
# Or where it makes a class.
MAKES_CLASSES = MAKES | words("__init_subclass__ __set_name__ __prepare__ __mro_entries__")

# What a tensor tells of itself besides its shape and dtype: a plan is not made for it.
TENSOR_STATE = words(
    """grad grad_fn is_leaf _version data_ptr storage untyped_storage is_contiguous stride storage_offset
    is_non_overlapping_and_dense dim_order is_set_to
    retains_grad output_nr is_pinned is_shared is_view _is_view _base _backward_hooks layout names
    is_inference"""
) & frozenset(dir(Tensor))
# Of which a trace tells others than a run does.
BITS = words("is_conj is_neg _is_zerotensor")
# Builtins whose results follow from their arguments.
PURE = words(
    """abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float format
    frozenset hash hex int isinstance issubclass len list map max min object oct ord pow property range repr
    reversed round set slice sorted staticmethod classmethod str sum super tuple type zip NotImplemented
    Ellipsis __debug__ __name__"""
) | {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
# Whose effect no compiled loop repeats: those that are stopped when they are called (see `logs_and_prints`).
EFFECTS = words("print input breakpoint exit quit")
SETTINGS = words(
    """manual_seed manual_seed_all set_rng_state set_default_dtype set_default_device set_default_tensor_type
    set_printoptions set_num_threads set_flush_denormal set_float32_matmul_precision
    use_deterministic_algorithms"""
)  # functions that set what holds for all of torch
AROUND = words(
    """is_inference_mode_enabled is_anomaly_enabled is_anomaly_check_nan_enabled is_autocast_cache_enabled
    _is_multithreading_enabled is_multithreading_enabled _saved_tensors_hooks_is_enabled
    check_sparse_tensor_invariants _check_sparse_tensor_invariants _cache_enabled
    _len_torch_function_stack _len_torch_dispatch_stack _get_current_function_mode_stack
    _get_current_dispatch_mode_stack is_in_torch_dispatch_mode _is_fwd_grad_enabled isenabled"""
)  # that tell of modes and hooks which steps are traced without; the last of Python's collector of garbage


# What no name that is made as code runs may stand for.
_ELSEWHERE = frozenset(
    {*REFLECTION, *TENSOR_STATE, *SETTINGS, *AROUND, *AMBIENT_NAMES, *MAKES, *TEXTS, "backward"}
)

CALLS_BACKWARD = "it calls backward(), which adds to gradients of others; torch.autograd.grad(...) does not"


class Facts:
    """One code object; equal code has the same facts, so they stand for it in a key.

    `globals`, `names` and `imports` are the names of globals, of attributes (those in patterns, and methods
    that no name mentions, too), and of modules imported inside, with a dot before it for each package to go
    up; `stores`, of globals that it binds, and `sets`, of attributes. `around`: those that
    ask for what is around a call. `reads_class`: it reads `__class__` itself, not only by super().
    `of_self`: of attributes, those that are asked of its first argument alone, which it calls `self`.
    `prefixes`: what names of attributes begin with that are made as it runs; `held`: the attributes of self
    that hold names which it looks up. `asked`: of globals that code
    does nothing with but ask them for attributes, on the spot, the names of these. `told`: builtins of which
    each use is known, though what they give is not their arguments' alone; `checks`: those of them that only
    typeguard is given.
    """

    __slots__ = (
        "around", "asked", "checks", "code", "globals", "held", "imports", "names", "of_self",
        "prefixes", "reads_class", "sets", "stores", "told", "trusted",
    )  # fmt: skip

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.trusted = is_trusted_code(code.co_filename)
        found: dict[str, None] = {}
        names: dict[str, None] = {}
        imports: dict[str, None] = {}
        self.reads_class = False
        stores: dict[str, None] = {}
        self.sets: set[str] = set()
        self.prefixes: frozenset[str] = frozenset()
        self.held: frozenset[str] = frozenset()
        self.told: set[str] = set()
        self.checks: set[str] = set()
        untold: set[str] = set()
        self.asked: dict[str, set[str] | None] = {}
        self._scan(code, found, names, imports, stores, untold)
        self.of_self = self._of_self()
        self.told -= untold
        self.checks -= untold
        self.stores = tuple(stores)
        self.globals, self.names, self.imports = tuple(found), frozenset(names), tuple(imports)
        self.around = AROUND.intersection((*found, *names))

    def _scan(
        self, code: types.CodeType, found: Any, names: Any, imports: Any, stores: Any, untold: set[str]
    ) -> None:
        before: Any = ""
        steps = list(dis.get_instructions(code))
        looked, checks = lookups(code, steps, _ELSEWHERE), only_for_checks(steps)
        names.update(dict.fromkeys(looked.names))
        self.prefixes |= looked.prefixes
        self.held |= looked.held
        for place, step in enumerate(steps):
            kind, value = step.opname, step.argval
            names.update(dict.fromkeys(_unnamed(steps, place)))
            if kind in _GLOBALS:
                if value[:1] != "@":  # by which pytest tells what failed, behind each assert
                    found[value] = None
                    self._asks(value, steps[place + 1 : place + 2])
                if place in looked.at:
                    self.told.add(value)
                elif place in checks:
                    self.checks.add(value)
                else:
                    untold.add(value)
            elif kind in _ATTRIBUTES:
                if fills_in(steps, place - 1):
                    names.update(dict.fromkeys(TEXTS))
                else:
                    names[value] = None
                if kind in ("STORE_ATTR", "DELETE_ATTR"):
                    self.sets.add(value)
            elif kind == "IMPORT_NAME":
                level = steps[place - 2].argval  # before the names that it imports
                imports["." * (level if isinstance(level, int) else 0) + value] = None
            elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                stores[value] = None
            elif kind == "LOAD_DEREF" and value == "__class__" and before != "super":
                self.reads_class = True
            elif kind == "MATCH_CLASS":  # keyword patterns, which are attributes
                names.update(dict.fromkeys(before))
            before = value
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._scan(constant, found, names, imports, stores, untold)

    def _of_self(self) -> frozenset[str]:
        steps = list(dis.get_instructions(self.code))
        if not is_of_self(self.code, steps):
            return frozenset()
        own, others = set[str](), set[str]()
        for before, step in itertools.pairwise(steps):
            if step.opname in _ATTRIBUTES:
                (own if loads_self(before) and not step.is_jump_target else others).add(step.argval)
        inside = [facts(c).names for c in self.code.co_consts if isinstance(c, types.CodeType)]
        return frozenset(own.difference(others, *inside))

    def _asks(self, name: str, then: list[dis.Instruction]) -> None:
        """Note what is done with a global that was loaded."""
        asked = self.asked.setdefault(name, set())
        if asked is None:
            return
        if then and then[0].opname in _ATTRIBUTES:
            asked.add(then[0].argval)
        else:
            self.asked[name] = None


def _unnamed(steps: list[dis.Instruction], place: int) -> frozenset[str]:
    """The methods that an instruction may call, or attributes that it may read, without a name."""
    kind, value = steps[place].opname, steps[place].argval
    if kind in _FORMATS or (kind in _GLOBALS and value in _MAKE_TEXTS):
        return TEXTS
    if operator_of(steps[place]) in ("%", "%="):
        number = steps[place - 1].opname == "LOAD_CONST" and isinstance(steps[place - 1].argval, (int, float))
        return frozenset() if number else TEXTS
    if kind == "IS_OP":
        before = steps[place - 1]
        single = before.opname == "LOAD_CONST" and type(before.argval) in _SINGLE
        return frozenset() if single else BY_IDENTITY
    if kind == "LOAD_BUILD_CLASS" or value == "new_class":
        return MAKES_CLASSES
    of_type = kind in _GLOBALS and value == "type"
    if of_type or (kind in _ATTRIBUTES and value == "__class__"):
        return frozenset() if _is_only_asked(steps[place + 1 :], of_type) else MAKES_CLASSES
    return _PATTERNS.get(kind, frozenset())


def _is_only_asked(steps: list[dis.Instruction], of_type: bool) -> bool:
    """Whether a class is only asked for what it holds, or whether it is another one. `of_type`: `type`, which
    is on the stack before these instructions, gives it; else the class itself is. What `type` gives may be
    called where Python 3.10 makes calls."""
    above = 0  # how many are above it on the stack
    for step in steps:
        kind = step.opname
        if kind in ("IS_OP", "COMPARE_OP") or (kind in _ATTRIBUTES and not above):
            return not of_type and above <= 1
        if not kind.startswith("LOAD_") and kind not in ("PRECALL", "CALL"):
            return False
        above += dis.stack_effect(step.opcode, step.arg)
        if above < 0:  # a call took it
            if not of_type or (kind, step.arg, above) != ("CALL", 1, -1):
                return False
            of_type, above = False, 0
    return False


_FORMATS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"})
_MAKE_TEXTS = frozenset({"str", "repr", "ascii", "format"})
_MOST = 20_000  # of code objects; only code made at run time comes near
_BY_ID: dict[int, Facts] = {}  # of code objects that are the `code` of some facts, or stand beside one
_ALIVE: list[types.CodeType] = []
_EQUAL: dict[tuple[types.CodeType, bool], Facts] = {}  # a copy of torch's code is equal, and not trusted


def facts(code: types.CodeType) -> Facts:
    """The facts of a code object.

    >>> found = facts((lambda x: x.sum() * SCALE).__code__)
    >>> found.globals, sorted(found.names)
    (('SCALE',), ['sum'])
    """
    known = _BY_ID.get(id(code))
    if known is None:
        if len(_ALIVE) >= _MOST:
            for kept in (_BY_ID, _ALIVE, _EQUAL):
                kept.clear()
        equal = code, is_trusted_code(code.co_filename)
        known = _EQUAL.get(equal)
        if known is None:
            known = _EQUAL[equal] = Facts(code)
        _ALIVE.append(code)  # its id stays taken
        _BY_ID[id(code)] = known
    return known


def may_be_looked_up(name: str) -> bool:
    """Whether what code looks up by a name is seen by who looks for names."""
    return name not in _ELSEWHERE and not tells_settings_by_name(name)


def line_that_sets(code: types.CodeType, names: Container[str]) -> tuple[str, int] | None:
    """The first attribute of these names that code sets, and the number of the line where it does."""
    lines, number = dict(dis.findlinestarts(code)), 0
    for step in dis.get_instructions(code):
        number = lines.get(step.offset) or number
        if step.opname == "STORE_ATTR" and step.argval in names:
            return step.argval, number
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return next(filter(None, (line_that_sets(c, names) for c in inner)), None)


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Every global or attribute name that a code object and those inside it mention."""
    found = facts(code)
    return (*found.globals, *found.imports, *found.names)
