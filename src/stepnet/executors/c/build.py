"""C source to a loaded library: finds the compiler, compiles, keeps results in a private cache on disk.

What is built is kept under the hash of its source, the flags and everything the compiler says about itself
and this CPU (`cache_folder`). Any number of processes may build one source at once. Each build trims the
folder (`cache_trim`).

The products (`products/`) and how threads share work are most of what there is to compile, and the same for
all steps: they are compiled once into an object file for each type, which every library is linked with. Math
stays a header, because its functions are vectorised inside the loops that call them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeVar

from stepnet.errors import BuildError
from stepnet.executors import cache_folder, cache_trim
from stepnet.interrupts import let_through
from stepnet.locks import Lock

from .products import Product, common, with_needs
from .text import without_comments

# -ffp-contract=fast: multiply-add as one instruction. Never -ffast-math, which a CC may hold: it would break
# sn_math.h.
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-pthread", "-fopenmp-simd")
_FLAGS += ("-fno-fast-math", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
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

# What a library is linked with, beside libm where it is asked for. The process that loads it has C's own
# library open, which a linker takes longer to read than all else; nothing is to be done as it is loaded. Code
# of compilers that count or check needs more, and does not load.
_FEW = ("-nostdlib", "-lgcc")
_LIBM = ("-lm",)

_Made = TypeVar("_Made")
_REMEDY = "install gcc or clang, or pip install 'stepnet[compiler]', or set CC to a C compiler"
_PROBE = """#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
"""
_TIMEOUT = 300.0  # seconds; a build takes about one
_MOST_WAIT = 60.0  # for another process that builds the same
_MOST_BYTES = 64 << 20  # of one file that is read back


@dataclass(frozen=True)
class Compiler:
    """A C compiler that works here, the flags it accepts, and all it says about itself and the target."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True)
class Library:
    """A loaded library. It is never unloaded, because threads may still be inside it.

    `seconds` is the time the build took, 0.0 when it came from the cache. `suffix` ends the names of its
    functions, where it holds those of several sources.
    """

    path: Path
    seconds: float
    handle: ctypes.CDLL = field(repr=False)
    suffix: str = ""

    @property
    def under_lock(self) -> ctypes.PyDLL:
        """Its functions, while which run the interpreter's lock is kept."""
        return ctypes.PyDLL(str(self.path), handle=self.handle._handle)

    def function(self, name: str, *argtypes: type) -> ctypes._NamedFuncPointer:
        """The `void` function `name`. The interpreter's lock is released while it runs."""
        found = self.handle[name + self.suffix]
        found.argtypes = list(argtypes)
        found.restype = None
        return found


class Part(NamedTuple):
    """What `build` is given of one source."""

    source: str
    linked: tuple[str, ...] = ()
    libm: bool = True


@functools.cache
def preamble(*dtypes: str, linked: bool = False) -> str:
    """The text generated code starts with: math, matmul of each dtype ("f32", "f64", "bf16"), threads, scans.

    With `linked` the larger functions are declared only, and `build` is told the types of the products.

    >>> "sn_tanh_f32" in preamble("f32")
    True
    """
    parts = ["#define SN_LINKED"] if linked else []
    parts.append(common())
    parts += [product.text for product in with_needs(dtypes)]
    parts += [header("sn_parallel.h"), header("sn_scan.h")]
    return without_comments("\n".join(parts))


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


def build(source: str, *linked: str, libm: bool = True) -> Library:
    """Compile C source to a shared library and load it; from memory or from the disk cache where possible.

    `linked` are the types ("f32", "f64", "bf16") whose products the source declares only. `libm`: it may call
    functions of C's library of mathematics, which takes a linker a third of its time to read.

    Raises BuildError when there is no compiler, when it rejects the source, or when nothing can be written.

    >>> lib = build("void twice(double *x) { *x *= 2; }")
    >>> x = ctypes.c_double(21.0)
    >>> lib.function("twice", ctypes.c_void_p)(ctypes.byref(x))
    >>> x.value
    42.0
    """
    return _built(compiler(), [Part(source, linked, libm)], None)[0]


def build_together(parts: Sequence[Part], joined: Callable[[list[int]], Part]) -> list[Library]:
    """`build` of several sources by one run of the compiler, whose start takes as long as a small step.

    `joined` makes one source of those of these parts that are nowhere yet: the names of its functions end in
    `_` and the number of their part.
    """
    return _built(compiler(), parts, joined)


def _built(cc: Compiler, parts: Sequence[Part], joined: Callable[[list[int]], Part] | None) -> list[Library]:
    keys = [_key(cc, part.source) for part in parts]  # the text holds the products, too
    with _lock:
        slots = {key: _loaded.setdefault(key, _Slot()) for key in sorted(keys)}
    with contextlib.ExitStack() as held:
        for slot in slots.values():  # in one order, so that no two threads wait for each other
            held.enter_context(slot.lock)
        missing: dict[str, int] = {}
        for at, key in enumerate(keys):
            if slots[key].library is None:
                slots[key].library = _from_disk(key)
            if slots[key].library is None:
                missing[key] = at
        if joined is not None and len(missing) > 1:
            one = joined([*missing.values()])
            key = _key(cc, one.source)
            library = _from_disk(key) or _built_once(cc, key, one)
            for key, at in missing.items():
                slots[key].library = replace(library, suffix=f"_{at}")
        else:
            for key, at in missing.items():
                slots[key].library = _built_once(cc, key, parts[at])
        found = [slots[key].library for key in keys]
    return [library for library in found if library is not None]


def until_built(make: Callable[[], _Made]) -> Callable[[], _Made | None]:
    """What `make` builds, once; None while it cannot be built, which is tried again at the second call after
    the first, the fourth, and so on: a full disk may have space by then."""
    made: list[_Made] = []
    calls = 0

    @functools.wraps(make)
    def built() -> _Made | None:
        nonlocal calls
        if made:
            return made[0]
        calls += 1
        if calls & (calls - 1):
            return None
        try:
            made.append(make())
        except BuildError:
            return None
        return made[0]

    return built


def _key(cc: Compiler, source: str) -> str:
    text = "\0".join((source, *cc.command, *cc.flags, cc.fingerprint))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class _Slot:
    """One source of this process: its lock, and its library once loaded."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.library: Library | None = None


_lock = Lock()
_loaded: dict[str, _Slot] = {}
_object_lock = Lock()  # one thread of a process builds products, others wait
_objects: dict[tuple[Compiler, Product], bytes] = {}
_need_all: set[Compiler] = set()
_hung: set[Compiler] = set()  # not run again: later calls, which try what failed, would each wait


@functools.cache
def header(name: str) -> str:
    """The text of one of the files that generated code stands on."""
    return resources.files("stepnet.executors.c").joinpath(name).read_text("utf-8")


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
            let_through(error)
            return error.strerror or str(error)
        except subprocess.TimeoutExpired:
            return f"no answer in {_TIMEOUT:.0f} s"
        if done.returncode == 0 and "__STDC__" in done.stdout:
            if "__SANITIZE_ADDRESS__" in done.stdout and not hasattr(ctypes.CDLL(None), "__asan_init"):
                return "AddressSanitizer ends a process that was not started with LD_PRELOAD=libasan.so"
            return Compiler(command, flags, hashlib.sha256(done.stdout.encode()).hexdigest())
        reason = reason or _first_lines(done.stderr, 3) or f"exit status {done.returncode}"
    return reason


def _run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    # gcc finds its own parts by PATH, which a service may be started without.
    environment = {"PATH": os.defpath, **os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_TIMEOUT,
        env=environment,
    )


def _first_lines(text: str, count: int) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][:count])


def _built_once(cc: Compiler, key: str, part: Part) -> Library:
    """Of processes that start together, as those of a training, one compiles and the others wait."""
    with cache_folder.alone(f"{key}.so", _MOST_WAIT):
        return _from_disk(key) or _compile(cc, key, part)


def _compile(cc: Compiler, key: str, part: Part) -> Library:
    started = time.perf_counter()
    objects = _objects_of(cc, with_needs(part.linked))

    def made(libraries: tuple[str, ...]) -> Library:
        path, _ = _made(cc, key, "step.so", part.source, objects, ("-shared",), libraries)
        try:
            handle = ctypes.CDLL(str(path))
        except OSError as error:
            cache_folder.remove(path)
            raise _not_kept(error) from error
        return Library(path, time.perf_counter() - started, handle)

    if sys.platform == "linux" and cc not in _need_all:
        try:
            return made((*_FEW, *_LIBM) if part.libm else _FEW)
        except BuildError:
            library = made(_LIBM)
            _need_all.add(cc)
            return library
    return made(_LIBM)


def _objects_of(cc: Compiler, products: Sequence[Product]) -> list[bytes]:
    """The products of types as object files, built at one time; once a machine and compiler."""
    with _object_lock:
        missing = [product for product in products if (cc, product) not in _objects]
        if missing:
            with ThreadPoolExecutor(len(missing)) as pool:
                made = pool.map(functools.partial(_object, cc), missing)
                _objects.update(zip([(cc, product) for product in missing], made, strict=True))
        return [_objects[cc, product] for product in products]


def _object(cc: Compiler, product: Product) -> bytes:
    source = product.object_text
    key = _key(cc, source)
    with cache_folder.alone(f"{key}.o", _MOST_WAIT):
        kept = next((data for _, data in cache_folder.read(key, "o", _MOST_BYTES)), None)
        return kept or _made(cc, key, "products.o", source, [], ("-c",), ())[1]


def _made(
    cc: Compiler, key: str, name: str, source: str, objects: list[bytes], before: tuple[str, ...],
    after: tuple[str, ...],
) -> tuple[Path, bytes]:  # fmt: skip
    """Compile a source, and keep what comes of it: where it is, and its bytes."""
    if cc in _hung:
        raise _did_not_finish(cc)
    folder = cache_folder.cache_folder()
    try:
        with cache_folder.workplace(folder) as work:
            text, binary = Path(work, name).with_suffix(".c"), Path(work, name)
            text.write_text(source, "utf-8")
            inputs = [text]
            for at, data in enumerate(objects):
                inputs.append(Path(work, f"linked{at}.o"))
                inputs[-1].write_bytes(data)
            command = [*cc.command, *cc.flags, *before, "-o", str(binary), *map(str, inputs), *after]
            done = _run(command)
            if done.returncode != 0 or not binary.is_file():
                message = _first_lines(done.stderr, 12) or f"exit status {done.returncode}, and no message"
                remedy = "the generated source or the compiler is at fault: set CC to another compiler"
                if "No space left" in done.stderr:
                    remedy = "free some disk space, or set STEPNET_CACHE_DIR to a folder that has some"
                raise BuildError(f"the C compiler failed: {shlex.join(command)}", got=message, remedy=remedy)
            data = binary.read_bytes()
            path = cache_folder.keep(folder, key, binary)
            cache_trim.added(folder, len(data))
    except subprocess.TimeoutExpired as error:
        _hung.add(cc)
        raise _did_not_finish(cc) from error
    except OSError as error:
        let_through(error)
        raise _not_kept(error) from error
    return path, data


def _did_not_finish(cc: Compiler) -> BuildError:
    return BuildError(
        f"the C compiler did not finish in {_TIMEOUT:.0f} s: {shlex.join(cc.command)}",
        remedy="set CC to another compiler; this process does not run that one again",
    )


def _not_kept(error: OSError) -> BuildError:
    return BuildError(
        f"a built library could not be kept or loaded in {cache_folder.cache_folder()}",
        got=str(error),
        remedy="set STEPNET_CACHE_DIR to a folder you may write in, on a disk with space",
    )


def _from_disk(key: str) -> Library | None:
    """The cached library of this key; one that does not load is removed."""
    for path, _ in cache_folder.read(key, "so", _MOST_BYTES):
        try:
            return Library(path, 0.0, ctypes.CDLL(str(path)))
        except OSError:  # not for this system
            cache_folder.remove(path)
    return None
