"""Files of models, and what is told where one cannot be read or written."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stepnet.errors import IRError

from .file_errors import Unreadable


@contextmanager
def opened(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file to read; no pipe and no device: one may be waited for, or read, without end.

    Raises:
        IRError: it cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable(
            f"{path.name or path}: cannot be read: {reason}", got=str(path), expected=what
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """In here files are written.

    Raises:
        IRError: one cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise IRError(
            f"{path.name}: cannot be written: {error.strerror or error}",
            got=str(path),
            expected="a folder that is there and can be written to",
            remedy="another path, or the rights to write there",
        ) from error
