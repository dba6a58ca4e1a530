"""What the user's Python asks of open sizes while a module is traced: the answer is that of the example.

torch notes the answer as a condition on what the program is given, which no file states: another size would
go the way of the example, in silence. So a size whose answer could be another is fixed to that of the
example, and so is one of which Python wants the number. What decides only whether an error is raised leaves
it open.
"""

from __future__ import annotations

import bisect
import builtins
import contextlib
import dis
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stepnet.compiler.reads.swapped import Swapped
from stepnet.user_line import Line, is_users
from stepnet.watchers import during

from .math_of_sizes import note_imports, open_math
from .open_sizes import settle, settled

_NEAR = 4  # instructions from a comparison to the jump by its truth value
_MOST = 500  # instructions that make the text of an error
_OF_SIZES = (torch.__file__, sym_node.__file__)
# What follows from sizes and is an argument of the call at hand.
_PASSED: ContextVar[tuple[Any, ...]] = ContextVar("numbers of sizes that torch is given", default=())
# The numbers that sizes were fixed to, and the lines of the user's code that did so.
_FIXED: ContextVar[dict[int, Line] | None] = ContextVar("sizes that Python fixed", default=None)
_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT")


def _asked(self: Any) -> bool:
    """The truth value of something about sizes."""
    expression: Any = getattr(self.node, "expr", None)
    symbols = getattr(expression, "free_symbols", ())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == torch.__file__:  # a size as a truth value
        frame = frame.f_back
    if not symbols or frame is None or not is_users(frame.f_code.co_filename) or _only_raises(frame):
        return self.node.bool_()
    known = statically_known_true(self) or statically_known_true(torch.sym_not(self))
    answer = self.node.bool_()
    # of a size torch takes for granted that it is not one
    if known and expression.subs(dict.fromkeys(symbols, 1)) == answer:
        return answer
    _note(self.node, frame)
    return settled(self)


def _note(number: Any, frame: FrameType) -> None:
    """Note which line of the user's code fixes the sizes that a number follows from."""
    found, environment = _FIXED.get(), number.shape_env
    if found is None:
        return
    for symbol in number.expr.free_symbols:
        if not environment.is_unbacked_symint(symbol):
            line = Line(frame.f_code.co_filename, frame.f_lineno)
            found.setdefault(int(environment.evaluate_expr(symbol)), line)


def _only_raises(frame: FrameType) -> bool:
    """Whether the truth value at hand decides whether an error is raised, and nothing else."""
    code = {i.offset: i for i in dis.get_instructions(frame.f_code) if i.opname != "CACHE"}
    offsets = sorted(code)
    begin = bisect.bisect_left(offsets, frame.f_lasti)
    for at, after in zip(offsets[begin : begin + _NEAR], offsets[begin + 1 :], strict=False):
        if "JUMP" in code[at].opname and "_IF_" in code[at].opname:
            return any(_raises(code, offsets, side) for side in (after, code[at].argval))
    return False


def _raises(code: Mapping[int, dis.Instruction], offsets: Sequence[int], start: int) -> bool:
    """Whether every way from an instruction leads to an error; asserts as pytest writes them have several."""
    todo, seen = [start], set[int]()
    while todo:
        at = todo.pop()
        name = code[at].opname
        if len(seen) > _MOST or name.startswith(("RETURN", "YIELD")):
            return False
        seen.add(at)
        ways = [code[at].argval] if "JUMP" in name or name == "FOR_ITER" else []
        if name not in ("RAISE_VARARGS", "RERAISE", *_ALWAYS):
            ways.append(offsets[bisect.bisect(offsets, at)])
        todo += (way for way in ways if way not in seen)
    return True


def _guard_int(self: SymNode, file: str, line: int) -> int:
    """What a number that follows from sizes is for the example, where Python wants one: `range(n // 2)`."""
    _settle_for_user(self)
    return _INT.original(self, file, line)


def _as_number(self: Any) -> int:
    """A truth about sizes as a number, as in `n // 2 + (n % 2 > 0)`."""
    _settle_for_user(self.node)
    return int(self.node.bool_())


def _guard_float(self: SymNode, file: str, line: int) -> float:
    _settle_for_user(self)
    return _FLOAT.original(self, file, line)


def _settle_for_user(number: SymNode) -> None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _OF_SIZES:
        frame = frame.f_back
    passed = any(number.expr == expression for expression in _PASSED.get())
    if not passed and (frame is None or not is_users(frame.f_code.co_filename)):
        return
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        _note(number, frame)
        note_imports(frame)
    settle(number)


def passing(args: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """In here, torch is called with these arguments."""
    return during(_PASSED, tuple(arg.node.expr for arg in args if isinstance(arg, torch.SymInt)))


def _isinstance(of: Any, kinds: Any, /) -> bool:
    """What kind of number the user's code takes one for."""
    plain = _EXAMPLES.get(type(of))
    if plain is None or not is_users(sys._getframe(1).f_code.co_filename):
        return _ISINSTANCE.original(of, kinds)
    return _ISINSTANCE.original(plain, kinds) or _ISINSTANCE.original(of, kinds)


_EXAMPLES = {torch.SymInt: 2, torch.SymFloat: 0.5, torch.SymBool: True}
_ISINSTANCE = Swapped(builtins, "isinstance", _isinstance)
_BOOL = Swapped(torch.SymBool, "__bool__", _asked)
_NUMBER = Swapped(torch.SymBool, "__int__", _as_number)
_INT, _FLOAT = Swapped(SymNode, "guard_int", _guard_int), Swapped(SymNode, "guard_float", _guard_float)


@contextlib.contextmanager
def answered(fixed: dict[int, Line]) -> Iterator[None]:
    """Fix the sizes that the user's Python decides or counts by in here; `fixed` gets the line of each."""
    with (
        _BOOL.inside(), _NUMBER.inside(), _INT.inside(), _FLOAT.inside(), _ISINSTANCE.inside(), open_math(),
        during(_FIXED, fixed),
    ):  # fmt: skip
        yield
