"""Plans on disk, beside the libraries built from them: `KEY-DIGEST.plan`, DIGEST the hash of its bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from stepnet.errors import BuildError

from . import cache_folder, cache_trim

MOST_BYTES = 16 << 20  # of one plan


def read(key: str) -> bytes | None:
    """What is kept under a key; a file that others could have written, or with other bytes than its name
    promises, is removed, not read."""
    with contextlib.suppress(OSError, BuildError):
        for _, data in cache_folder.read(key, "plan", MOST_BYTES):
            return data
    return None


def write(key: str, data: bytes) -> None:
    """Keep bytes under a key, in place of what is there. A disk that takes none costs time only."""
    with contextlib.suppress(OSError, BuildError):
        folder = cache_folder.cache_folder()
        with cache_folder.workplace(folder) as work:
            made = Path(work, "made.plan")
            made.write_bytes(data)
            final = cache_folder.keep(folder, key, made)
        for path in cache_folder.files(folder, key, "plan"):
            if path != final:
                cache_folder.remove(path)
        cache_trim.added(folder, len(data))
