"""Plans on disk, beside the libraries built from them: `KEY-DIGEST.plan`, DIGEST the hash of its bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from stepnet.errors import BuildError

from . import c_trim
from .c_build import cache_folder


def read(key: str) -> bytes | None:
    """What is kept under a key; a file with other bytes than its name promises is removed, not read."""
    for path in _files(key):
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == path.stem.partition("-")[2]:
                c_trim.used(path)
                return data
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def write(key: str, data: bytes) -> None:
    """Keep bytes under a key, in place of what is there. A disk that takes none costs time only."""
    with contextlib.suppress(OSError, BuildError):
        folder = cache_folder()
        final = folder / f"{key}-{hashlib.sha256(data).hexdigest()}.plan"
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder, ignore_cleanup_errors=True) as work:
            made = Path(work, "plan")
            made.write_bytes(data)
            os.replace(made, final)
        for path in _files(key):
            if path != final:
                path.unlink(missing_ok=True)
        c_trim.trim(folder)


def _files(key: str) -> list[Path]:
    try:
        return sorted(cache_folder().glob(f"{key}-*.plan"))
    except (OSError, BuildError):
        return []
