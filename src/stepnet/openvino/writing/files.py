"""Two files that belong together, put in place together."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from stepnet.file_model import writing


def replace_pair(first: Path, text: bytes, second: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write two files, or neither.

    Both are complete under temporary names before an older pair is touched. A pair that is half old and
    half new cannot be seen: the old first file is away before the second is replaced.

    Raises:
        IRError: the folder or a file cannot be written. An older pair is as it was.
    """
    mark = f".{secrets.token_hex(8)}.tmp"
    new = [path.with_name(f".{path.name[:100]}{mark}") for path in (first, second)]
    old = [path.with_name(f".{path.name[:100]}.old{mark}") for path in (first, second)]
    try:
        with writing(first):
            _write(new[0], [text])
            _write(new[1], chunks)
            _swap([first, second], new, old)
    finally:
        for path in (*new, *old):
            with contextlib.suppress(OSError):  # what could not be made need not go
                path.unlink()


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _swap(places: list[Path], new: list[Path], old: list[Path]) -> None:
    moved: list[tuple[Path, Path]] = []  # (where it is, where it was)
    try:
        for place, away in zip(places, old, strict=True):
            if place.is_dir():
                raise IsADirectoryError(21, "is a folder", str(place))
            if place.exists():
                os.replace(place, away)
                moved.append((away, place))
        for place, made in reversed(list(zip(places, new, strict=True))):
            os.replace(made, place)
            moved.append((place, made))
    except BaseException:
        for now, before in reversed(moved):
            os.replace(now, before)
        raise
