"""The private folder of built libraries and plans. What lies in it is input from outside until it is checked.

A file is named `KE/KEY-DIGEST.ending`. KEY is the hash of all that the content depends on; DIGEST is that of
the file's own bytes; KE, the first letters of KEY, is a folder of few files, so that one among thousands is
found as soon. A file is opened once: owner, mode and size are those of what was opened, and the bytes that
were hashed are those that are used. A library can be loaded by its path alone, so the folder, those inside,
and every folder on the way to it, must be ones in which no other user can put another file at that path.
Files appear by atomic rename, which replaces what is there and follows no link.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from stepnet.errors import BuildError
from stepnet.user_line import user_level

from . import cache_trim

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe must not hang
_UNKNOWN_OWNER = 65534  # what a container shows for root outside it


def cache_folder() -> Path:
    """The folder that STEPNET_CACHE_DIR names, or the user's; private, or one of this process alone.

    Raises:
        BuildError: no folder can be made.
    """
    if not hasattr(os, "geteuid"):
        raise BuildError(
            "nothing is kept on disk",
            got="a system whose files have no owners to check",
            remedy="backend='eager' keeps nothing",
        )
    wanted = os.environ.get("STEPNET_CACHE_DIR")
    folder = Path(os.path.expanduser(wanted)) if wanted else _user_cache() / "stepnet"
    try:
        folder = folder.absolute() if wanted else folder
    except FileNotFoundError:
        found, reason = folder, "the working directory that it is in was removed"
    else:
        found, reason = _looked_at(folder)
    if reason is None:
        return found
    reason = f"{folder} cannot be the cache of built libraries: {reason}"
    found, unfit = _looked_at(_private_folder(reason))  # as strictly: its folder may be one that all change
    if unfit is not None:
        raise BuildError(
            reason,
            got=f"{found} instead, but {unfit}",
            remedy="set STEPNET_CACHE_DIR to a folder of your own",
        )
    return found


def read(key: str, ending: str, most: int) -> Iterator[tuple[Path, bytes]]:
    """The files of a key, each with the bytes that its name promises; what else has such a name is removed.

    Raises:
        BuildError: no folder can be made.
    """
    for path in files(cache_folder(), key, ending):
        data = _trusted(path, most)
        if data is not None:
            yield path, data
        else:
            remove(path)


def files(folder: Path, key: str, ending: str) -> list[Path]:
    """What has the name of a file of this key."""
    part = folder / key[: cache_trim.PART]
    try:
        if _can_be_changed(part.lstat()) is not None:
            return []
        names = os.listdir(part)
    except OSError:  # none yet, or removed meanwhile
        return []
    mine = [name for name in names if name.startswith(f"{key}-") and name.endswith(f".{ending}")]
    return [part / name for name in sorted(mine)]


def workplace(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A private folder inside `folder` for what is made in a block."""
    return tempfile.TemporaryDirectory(prefix=cache_trim.WORK, dir=folder, ignore_cleanup_errors=True)


def keep(folder: Path, key: str, made: Path) -> Path:
    """Move a file that was made in a private folder inside `folder` to its name there; returns the path.

    Raises:
        OSError: it cannot be moved.
    """
    made.chmod(0o700 if made.suffix == ".so" else 0o600)  # a umask of 0 would let others write
    part = folder / key[: cache_trim.PART]
    part.mkdir(mode=0o700, exist_ok=True)
    reason = _can_be_changed(part.lstat())
    if reason is not None:
        raise OSError(f"nothing can be kept in {part}: {reason}")
    path = part / f"{key}-{hashlib.sha256(made.read_bytes()).hexdigest()}{made.suffix}"
    os.replace(made, path)
    return path


@contextlib.contextmanager
def alone(name: str, most_seconds: float) -> Iterator[None]:
    """Wait for whoever is in a block of this name, in any other process; not longer than so many seconds.

    Who gets in looks again whether what it wants is there by now. The lock of a process that dies is free.
    On a disk that has no locks nobody waits: what is made twice is the same, and each is kept whole.
    """
    path = cache_folder() / f"lock-{name}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError:
        yield
        return
    try:
        last = time.monotonic() + most_seconds
        while not _is_locked(file) and time.monotonic() < last:
            time.sleep(0.01)
        yield
    finally:
        remove(path)
        os.close(file)


def _is_locked(file: int) -> bool:
    """Whether the lock of a file could be had; also where there are no locks."""
    import fcntl  # which Windows lacks

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no child that is forked meanwhile has it, too
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True


def remove(path: Path) -> None:
    """Remove a file, or a link itself; not a folder."""
    with contextlib.suppress(OSError):
        path.unlink()


def _trusted(path: Path, most: int) -> bytes | None:
    """The bytes of a file of this user that nobody else could write, of at most `most` bytes."""
    try:
        at = os.open(path, _OPEN)
    except OSError:  # gone, or a link
        return None
    try:
        known = os.fstat(at)
        ours = known.st_uid == os.geteuid() and not known.st_mode & _OTHERS_WRITE and known.st_nlink == 1
        if not stat.S_ISREG(known.st_mode) or not ours or known.st_size > most:
            return None
        with os.fdopen(at, "rb", closefd=False) as file:
            data = file.read(known.st_size + 1)
        if hashlib.sha256(data).hexdigest() != path.stem.partition("-")[2]:
            return None
        cache_trim.used(at)
        return data
    except OSError:
        return None
    finally:
        os.close(at)


def _user_cache() -> Path:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if os.path.isabs(given) else home / ".cache"


def _looked_at(folder: Path) -> tuple[Path, str | None]:
    """A folder, made where there is none, by a path that no link is part of: one may lead elsewhere after it
    was looked at. And why nothing must be loaded from it, or None."""
    if not folder.is_absolute():
        return folder, "there is no home folder"
    try:
        for at in (*reversed(folder.parents), folder):
            if not os.path.lexists(at):
                at.mkdir(mode=0o700, exist_ok=True)  # exist_ok: another process makes it now
        folder = folder.parent.resolve(strict=True) / folder.name
        return folder, _unfit(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        return folder, str(error)


def _unfit(folder: Path) -> str | None:
    """Why nothing must be loaded from a folder, or None."""
    reason = _can_be_changed(folder.lstat())
    if reason is not None:
        return reason
    for at in folder.parents:
        known = at.lstat()
        if known.st_uid not in (0, os.geteuid(), _UNKNOWN_OWNER):
            return f"another user may replace it ({at} belongs to them)"
        # By custom a group of its owner's number has no other members.
        others = stat.S_IWOTH if known.st_gid == known.st_uid else _OTHERS_WRITE
        if known.st_mode & others and not known.st_mode & stat.S_ISVTX:
            return f"other users may replace it (they may write in {at})"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it is not writable"
    if "$" in str(folder):
        return "the system's loader of libraries reads a $ in a path as something else"
    return None


def _can_be_changed(found: os.stat_result) -> str | None:
    """Why another user may put something else in the place of what lies in a folder, or None."""
    if stat.S_ISLNK(found.st_mode):
        return "it is a link (name the folder it leads to)"
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder"
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if found.st_mode & _OTHERS_WRITE:
        return "other users may write in it (chmod 700 it)"
    return None


@functools.lru_cache(maxsize=1)
def _private_folder(reason: str) -> Path:
    """A folder of this process alone, removed at its end."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="stepnet-"))
    except OSError as error:
        raise BuildError(
            reason, got=str(error), remedy="set STEPNET_CACHE_DIR to a folder you may write in"
        ) from error
    warnings.warn(
        f"{reason}; building again in every process, in {folder}", RuntimeWarning, stacklevel=user_level()
    )
    owner = os.getpid()

    def discard() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(discard)
    return folder
