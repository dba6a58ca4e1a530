"""What the user's Python asks of open sizes while a module is traced: the answer is that of the example.

torch notes the answer as a condition on what the program is given, which no file states: another size would
go the way of the example, in silence. So a size whose answer could be another is fixed to that of the
example. What decides only whether an error is raised leaves it open.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stepnet.compiler.swapped import Swapped
from stepnet.user_line import is_users

_NEAR = 3  # instructions from a comparison to the jump by its truth value
_MOST = 64  # instructions that make the text of an error


def _asked(self: Any) -> bool:
    """The truth value of something about sizes."""
    expression = getattr(self.node, "expr", None)
    symbols = getattr(expression, "free_symbols", ())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == torch.__file__:  # a size as a truth value
        frame = frame.f_back
    if not symbols or frame is None or not is_users(frame.f_code.co_filename) or _only_raises(frame):
        return self.node.bool_()
    known = statically_known_true(self) or statically_known_true(torch.sym_not(self))
    answer = self.node.bool_()
    environment: Any = self.node.shape_env
    # of a size torch takes for granted that it is not one
    if not known or expression.subs(dict.fromkeys(symbols, 1)) != answer:
        for symbol in symbols:
            if not environment.is_unbacked_symint(symbol):
                environment.evaluate_expr(symbol)
    return answer


def _only_raises(frame: FrameType) -> bool:
    """Whether the truth value at hand decides whether an error is raised, and nothing else."""
    code, at = frame.f_code, frame.f_lasti
    after = [i for i in dis.get_instructions(code) if i.offset >= at and i.opname != "CACHE"]
    for i, instruction in enumerate(after[: _NEAR + 1]):
        if "JUMP_IF_" in instruction.opname:
            sides = after[i + 1].offset if i + 1 < len(after) else -1, instruction.argval
            return any(_raises(code, offset) for offset in sides)
    return False


def _raises(code: CodeType, start: int) -> bool:
    """Whether what begins at an instruction leads straight to an error."""
    following = [i for i in dis.get_instructions(code) if i.offset >= start][:_MOST]
    for instruction in following:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in instruction.opname or instruction.opname.startswith(("RETURN", "STORE", "FOR", "YIELD")):
            return False
    return False


_BOOL = Swapped(torch.SymBool, "__bool__", _asked)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Fix the sizes that the user's Python decides by in here."""
    with _BOOL.inside():
        yield
