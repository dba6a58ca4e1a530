"""Which line of the user's code is being run: for messages and ops that tell where they are from."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch

_PACKAGE = str(Path(__file__).parent) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = os.sep + "site-packages" + os.sep  # may lie among Python's own files
_AT_RUN_TIME = ("<frozen ", "<eval_with_key>")  # Python's importer, torch.fx


@dataclass(frozen=True)
class Line:
    """A line of a file.

    >>> Line("/home/ann/loss.py", 12).short
    'loss.py:12'
    """

    file: str
    number: int

    @property
    def short(self) -> str:
        """The file's name and the number."""
        return f"{os.path.basename(self.file)}:{self.number}"

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.number).strip()
        return f"{os.path.basename(self.file)}, line {self.number}" + (f": {source}" if source else "")


@functools.cache
def is_users(file: str) -> bool:
    """Whether code of a file is the user's: not this package's, torch's or Python's, nor written by these.

    >>> is_users("/home/ann/loss.py"), is_users(torch.__file__), is_users(functools.__file__)
    (True, False, False)
    """
    python = file.startswith(_PYTHON) and _INSTALLED not in file
    return not (python or file.startswith((_PACKAGE, _TORCH, *_AT_RUN_TIME)))


def user_line() -> Line:
    """The innermost line of the user's code; the outermost line of all if none is."""
    frame, _ = _users_frame(sys._getframe(1))
    return Line(frame.f_code.co_filename, frame.f_lineno)


def raised_at(error: BaseException) -> Line | None:
    """The innermost line of the user's code that an error came by."""
    lines = [Line(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    return next((line for line in reversed(lines) if is_users(line.file)), None)


def user_level() -> int:
    """How far above its caller that line is: the `stacklevel` of a warning that names it."""
    return _users_frame(sys._getframe(1))[1]


def _users_frame(frame: FrameType) -> tuple[FrameType, int]:
    level = 1
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def run_by(file: str) -> tuple[Line, int] | None:
    """The innermost line of the user's code among what a file runs, and which instruction is run there; where
    there is none, of the package's."""
    frame, own = sys._getframe(1), None
    while frame is not None and frame.f_code.co_filename == file:  # the caller itself
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename != file:
        line = Line(frame.f_code.co_filename, frame.f_lineno)
        if is_users(line.file):
            return line, frame.f_lasti
        if own is None and line.file.startswith(_PACKAGE):
            own = line, frame.f_lasti
        frame = frame.f_back
    return own


def line_in(files: frozenset[str]) -> Callable[[], str | None]:
    """A function that tells the innermost line being run in one of a step's files, known cells among them."""
    outside = sys._getframe(1).f_code  # what will run the step: lines from there on are not the step's

    def here() -> str | None:
        frame = sys._getframe(2)
        while frame is not None and frame.f_code is not outside:
            if frame.f_code.co_filename in files:
                return Line(frame.f_code.co_filename, frame.f_lineno).short
            frame = frame.f_back
        return None

    return here
