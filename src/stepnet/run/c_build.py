"""C source to a loaded library: finds the compiler, compiles, keeps results in a private cache on disk.

A cached library is named `KEY-DIGEST.so`. KEY is the hash of the source, the flags and everything the
compiler says about itself and this CPU. DIGEST is the hash of the file's own bytes and is checked before
loading, so a damaged file is rebuilt, never run. Files appear by atomic rename: any number of processes may
build one source at once. Each build trims the folder (`c_trim`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from stepnet.errors import BuildError

from . import c_trim

_CTYPE = {"f32": "float", "f64": "double"}

# -ffp-contract=fast: multiply-add as one instruction. Never -ffast-math: it would break sn_math.h.
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-pthread", "-fopenmp-simd")
_FLAGS += ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# The first set a compiler accepts is used. The width asks for 512-bit code where the CPU has it. The
# parameter stops gcc from splitting chains of multiply-add, of which matmul is made, on CPUs where it thinks
# them slow.
_MACHINE_FLAGS = (
    ("-march=native", "-mprefer-vector-width=512", "--param=avoid-fma-max-bits=0"),
    ("-march=native", "-mprefer-vector-width=512"),
    ("-march=native",),
    ("-mcpu=native",),
    (),
)

_REMEDY = "install gcc or clang, or pip install 'stepnet[compiler]', or set CC to a C compiler"
_PROBE = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
_TIMEOUT = 300.0  # seconds; a build takes about one


@dataclass(frozen=True)
class Compiler:
    """A C compiler that works here, the flags it accepts, and all it says about itself and the target."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True)
class Library:
    """A loaded library. It is never unloaded, because threads may still be inside it.

    `seconds` is the time the build took, 0.0 when it came from the cache.
    """

    path: Path
    seconds: float
    handle: ctypes.CDLL = field(repr=False)

    def function(self, name: str, *argtypes: type) -> ctypes._NamedFuncPointer:
        """The `void` function `name`. The interpreter's lock is released while it runs."""
        found = self.handle[name]
        found.argtypes = list(argtypes)
        found.restype = None
        return found


def preamble(*dtypes: str) -> str:
    """The text generated code starts with: math, matmul for each dtype ("f32", "f64"), and threads.

    >>> "sn_tanh_f32" in preamble("f32")
    True
    """
    parts = [_header("sn_math.h")]
    for dtype in dtypes:
        parts.append(f"#define SN_REAL {_CTYPE[dtype]}\n#define SN_(name) name##_{dtype}\n")
        parts.append(_header("sn_matmul.h"))
    parts.append(_header("sn_parallel.h"))
    return "\n".join(parts)


def available() -> str | None:
    """Why no C compiler can be used, or None when one can."""
    found = _find_compiler(os.environ.get("CC"), os.environ.get("PATH"))
    return None if isinstance(found, Compiler) else found


def compiler() -> Compiler:
    """The compiler in use: CC, cc, gcc, clang or the ziglang wheel, whichever works first.

    Raises BuildError when there is none.
    """
    found = _find_compiler(os.environ.get("CC"), os.environ.get("PATH"))
    if isinstance(found, Compiler):
        return found
    raise BuildError("no C compiler can be used", got=found, remedy=_REMEDY)


def build(source: str) -> Library:
    """Compile C source to a shared library and load it; from memory or from the disk cache where possible.

    Raises BuildError when there is no compiler, when it rejects the source, or when nothing can be written.

    >>> lib = build("void twice(double *x) { *x *= 2; }")
    >>> x = ctypes.c_double(21.0)
    >>> lib.function("twice", ctypes.c_void_p)(ctypes.byref(x))
    >>> x.value
    42.0
    """
    cc = compiler()
    text = "\0".join((source, *cc.command, *cc.flags, cc.fingerprint))
    key = hashlib.sha256(text.encode()).hexdigest()[:40]
    with _lock:
        slot = _loaded.setdefault(key, _Slot())
    with slot.lock:
        if slot.library is None:
            slot.library = _from_disk(key) or _compile(cc, key, source)
        return slot.library


class _Slot:
    """One source of this process: its lock, and its library once loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Library | None = None


_lock = threading.Lock()
_loaded: dict[str, _Slot] = {}


def _after_fork() -> None:
    # A lock held by another thread at the fork would stay held in the child for ever.
    global _lock
    _lock = threading.Lock()
    for slot in _loaded.values():
        slot.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _header(name: str) -> str:
    return resources.files("stepnet.run").joinpath("c").joinpath(name).read_text()


# ---- the compiler


@functools.lru_cache(maxsize=16)
def _find_compiler(cc: str | None, path: str | None) -> Compiler | str:
    """The first compiler that can preprocess C here, or the reasons why none can, joined by semicolons."""
    if sys.platform == "win32":
        return "generated C is not supported on Windows"
    try:
        chosen = shlex.split(cc or "")
    except ValueError as error:
        return f"CC={cc!r} cannot be split into words: {error}"
    if chosen:
        found = _try_compiler(tuple(chosen))
        return found if isinstance(found, Compiler) else f"CC={cc!r}: {found}"
    reasons = []
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name, path=path) is None:
            reasons.append(f"{name} not found")
            continue
        found = _try_compiler((name,))
        if isinstance(found, Compiler):
            return found
        reasons.append(f"{name}: {found}")
    if importlib.util.find_spec("ziglang") is None:
        reasons.append("ziglang not installed")
    else:
        found = _try_compiler((sys.executable, "-m", "ziglang", "cc"))
        if isinstance(found, Compiler):
            return found
        reasons.append(f"ziglang: {found}")
    return "; ".join(reasons)


def _try_compiler(command: tuple[str, ...]) -> Compiler | str:
    reason = ""
    for machine in _MACHINE_FLAGS:
        flags = _FLAGS + machine
        try:
            # The macros the compiler defines tell its version, the target and every CPU feature it will use.
            done = _run([*command, *flags, "-E", "-dM", "-x", "c", "-"], stdin=_PROBE)
        except OSError as error:
            return error.strerror or str(error)
        except subprocess.TimeoutExpired:
            return f"no answer in {_TIMEOUT:.0f} s"
        if done.returncode == 0 and "__STDC__" in done.stdout:
            return Compiler(command, flags, hashlib.sha256(done.stdout.encode()).hexdigest())
        reason = reason or _first_lines(done.stderr, 3) or f"exit status {done.returncode}"
    return reason


def _run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT,
        env=environment,
    )


def _first_lines(text: str, count: int) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][:count])


def _compile(cc: Compiler, key: str, source: str) -> Library:
    started = time.perf_counter()
    folder = cache_folder()
    try:
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder, ignore_cleanup_errors=True) as work:
            text, binary = Path(work, "step.c"), Path(work, "step.so")
            text.write_text(source)
            command = [*cc.command, *cc.flags, "-shared", "-o", str(binary), str(text), "-lm"]
            done = _run(command)
            if done.returncode != 0 or not binary.is_file():
                message = _first_lines(done.stderr, 12) or f"exit status {done.returncode}, and no message"
                remedy = "this is a fault of the generated source or of the compiler: try another one by CC"
                if "No space left" in done.stderr:
                    remedy = "free some disk space, or set STEPNET_CACHE_DIR to a folder that has some"
                raise BuildError(f"the C compiler failed: {shlex.join(command)}", got=message, remedy=remedy)
            digest = hashlib.sha256(binary.read_bytes()).hexdigest()
            final = folder / f"{key}-{digest}.so"
            os.replace(binary, final)
            c_trim.trim(folder)
        handle = ctypes.CDLL(str(final))
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"the C compiler gave no answer in {_TIMEOUT:.0f} s", remedy="try another one by CC"
        ) from error
    except OSError as error:
        raise BuildError(
            f"a built library could not be kept or loaded in {folder}",
            got=str(error),
            remedy="set STEPNET_CACHE_DIR to a folder you may write in, on a disk with space",
        ) from error
    return Library(final, time.perf_counter() - started, handle)


# ---- the cache on disk


def _from_disk(key: str) -> Library | None:
    """The cached library of this key whose bytes are those its name promises; others are removed."""
    for path in sorted(cache_folder().glob(f"{key}-*.so")):
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() == path.stem.partition("-")[2]:
                library = Library(path, 0.0, ctypes.CDLL(str(path)))
                c_trim.used(path)
                return library
        except OSError:
            pass  # unreadable, or not for this system: as good as absent
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def cache_folder() -> Path:
    """The folder that STEPNET_CACHE_DIR names, or the user's; private, or one of this process alone.

    Raises:
        BuildError: no folder can be made.
    """
    wanted = os.environ.get("STEPNET_CACHE_DIR")
    folder = Path(wanted).absolute() if wanted else _user_cache() / "stepnet"
    reason = _unfit(folder)
    return (
        folder
        if reason is None
        else _private_folder(f"{folder} cannot be the cache of built libraries: {reason}")
    )


def _user_cache() -> Path:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if os.path.isabs(given) else home / ".cache"


def _unfit(folder: Path) -> str | None:
    """Why code must not be loaded from this folder, or None. Makes it, private, when it is not there."""
    if not folder.is_absolute():
        return "there is no home folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found, parent = folder.stat(), folder.parent.stat()
    except OSError as error:
        return str(error)
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write in it (chmod 700 it)"
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return "other users may replace it (its parent folder is writable by all)"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it is not writable"
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
    warnings.warn(f"{reason}; building again in every process, in {folder}", RuntimeWarning, stacklevel=2)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
