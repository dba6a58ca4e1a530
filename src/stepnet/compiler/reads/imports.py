"""What a step imports inside itself, imported before the step is tried: what a module registers as it is
imported would be undone with what the trial changed, and no import comes again."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import TypeVar

from stepnet.interrupts import let_through

from .trust import is_installed, is_of_python, is_trusted_code

_T = TypeVar("_T")


class ImportsInside(BaseException):
    """A step that is tried imports a module; no step is to catch it."""


def after_imports(attempt: Callable[[], _T]) -> _T:
    """What an attempt gives that tries a step. It is stopped at each module of a user's that is not imported
    yet, and made again when that is: by then a walk sees what the module holds."""
    if _FINDER not in sys.meta_path:  # there to stay: other threads may be going through the list
        sys.meta_path.insert(0, _FINDER)
    before, tried = getattr(_here, "watch", None), set[str]()
    while True:
        watch = _here.watch = _Watch(tried)
        try:
            made = attempt()
        except (Exception, ImportsInside) as error:
            let_through(error)
            if watch.met is None:
                raise
        else:
            if watch.met is None:
                return made
        finally:
            _here.watch = before
        tried.add(watch.met)
        try:
            importlib.import_module(watch.met)
        except Exception as error:  # the step meets it, too
            let_through(error)


class _Watch:
    """`met`: the module that an attempt was stopped at; `tried`: those that it is not stopped at."""

    def __init__(self, tried: set[str]) -> None:
        self.tried = tried
        self.met: str | None = None


class _Finder:
    """Finds no module, and stops attempts of its thread at those that others find."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        watch: _Watch | None = getattr(_here, "watch", None)
        if watch is None or name in watch.tried or name in sys.modules:
            return None
        _here.watch = None  # finders may import
        try:
            spec = _spec_of(name, path, target)
        finally:
            _here.watch = watch
        if spec is not None and spec.loader is not None and _may_register(name, spec.origin):
            watch.met = name
            raise ImportsInside(name)
        return spec


def _spec_of(
    name: str, path: Sequence[str] | None, target: types.ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not _FINDER and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _may_register(name: str, origin: str | None) -> bool:
    """Whether the step asks for a module, or its libraries for one of the user's."""
    if name.partition(".")[0] in sys.stdlib_module_names or (origin and is_trusted_code(origin)):
        return False
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.f_back
    file = frame.f_code.co_filename
    by_library = is_trusted_code(file) or is_of_python(file) or is_installed("", file)
    return not (by_library and is_installed(name, origin))


_MACHINERY = ("<frozen importlib", importlib.__file__)
_here = threading.local()
_FINDER = _Finder()
