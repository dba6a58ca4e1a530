"""Keeps the folder of what was built and planned small: what was used longest ago goes first.

Safe among processes. A library in use stays mapped after its file is gone; a file that another process is
about to load was used moments ago and is left; and a load that finds its file gone builds it again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

MOST_BYTES = 200 << 20
YOUNG = 600.0  # seconds in which a library that was used may be about to be loaded
ABANDONED = 86400.0  # seconds after which the workplace of a build that never ended is removed
WORK = "stepnet-build-"  # what the workplace of a build is called, and letters that tempfile adds
PART = 2  # letters that the files of one folder inside begin with
_FEW = 64  # a process looks again when it has added this part of what the folder may hold

_PART = re.compile(rf"[0-9a-f]{{{PART}}}")
_BUILT = re.compile(r"[0-9a-f]{40}-[0-9a-f]{64}\.(so|o|plan)")
_WORK = re.compile(rf"{WORK}[a-z0-9_]{{8}}")  # a folder of the user's own may be called build-something
_LOCK = re.compile(r"lock-[0-9a-f]{40}\.(so|o)")
_added: dict[Path, int] = {}  # bytes since this process last looked into a folder


def used(path: Path | int) -> None:
    """Note that a file, by its path or as it was opened, is used now."""
    with contextlib.suppress(OSError):  # removed by another process, or the folder cannot be written
        os.utime(path)


def added(folder: Path, size: int) -> None:
    """Note a file that was put there. Looking at thousands of files takes as long as a small build, so a
    process looks when it first adds one, then after each 64th of what the folder may hold."""
    _added[folder] = size = _added.get(folder, MOST_BYTES) + size
    if size >= MOST_BYTES // _FEW:
        trim(folder)
        _added[folder] = 0


def trim(folder: Path, most_bytes: int | None = None) -> None:
    """Remove what has not been used for longest, until the rest fits; and what dead builds left.

    Files of other names stay.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    now = time.time()
    found = list[tuple[float, int, str]]()
    for part in _look_into(folder, found, now):
        _look_into(part, found, now)
    total = sum(size for _, size, _ in found)
    for when, size, path in sorted(found):
        if total <= most_bytes or now - when < YOUNG:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


def _look_into(folder: str | Path, found: list[tuple[float, int, str]], now: float) -> list[str]:
    """Add what was built, by when it was used; remove what dead builds left. The folders that hold more."""
    parts = list[str]()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                if _PART.fullmatch(entry.name):
                    if entry.is_dir(follow_symlinks=False):
                        parts.append(entry.path)
                    continue
                known = entry.stat(follow_symlinks=False)
                if _BUILT.fullmatch(entry.name):
                    found.append((known.st_mtime, known.st_size, entry.path))
                elif _WORK.fullmatch(entry.name) and now - known.st_mtime > ABANDONED:
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif _LOCK.fullmatch(entry.name) and now - known.st_mtime > ABANDONED:
                    os.unlink(entry.path)
    return parts
