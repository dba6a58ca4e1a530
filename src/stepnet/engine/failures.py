"""What is told of a failure that nothing expected: whose code it is in, and what to do."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

import torch

from stepnet.errors import StepnetError, Unsupported
from stepnet.user_line import raised_at

_PACKAGE = Path(__file__).parents[1]
# What code raises that is wrong in itself. A full memory, a call that torch lacks here are no such thing.
_DEFECTS = (LookupError, AssertionError, AttributeError, TypeError, NameError, ValueError, ArithmeticError)


def told(error: BaseException) -> str:
    """An error in one line: a KeyError's own text is the key alone, an assertion's is none.

    >>> told(KeyError("v11")), told(AssertionError())
    ("KeyError: 'v11'", 'AssertionError')
    """
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def failure(what: str, error: Exception) -> Unsupported:
    """Why there is no plan where something failed; a defect of stepnet's own is told as one.

    >>> failure("compiling it fails", MemoryError("full")).reason
    'compiling it fails: MemoryError: full'
    """
    line = raised_at(error)  # of the step, or of an executor from outside
    if line is not None:
        return Unsupported(f"{what}: {told(error)}", line=line.short)
    frames = extract_tb(error.__traceback__)
    is_defect = isinstance(error, _DEFECTS) and not isinstance(error, StepnetError)
    if frames and is_defect and _PACKAGE in (at := Path(frames[-1].filename)).parents:
        place = f"{at.relative_to(_PACKAGE.parent).as_posix()}:{frames[-1].lineno}"
        return Unsupported(
            f"{what}, a defect of stepnet: {told(error)} ({place})",
            remedy=f"please report this line, with the step and torch {torch.__version__}; until then "
            "backend='naive' runs it",
        )
    return Unsupported(f"{what}: {told(error)}")
