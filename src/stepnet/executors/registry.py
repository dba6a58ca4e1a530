"""The executors there are, and which of them a backend tries."""

from __future__ import annotations

from typing import Final

from stepnet.data.arguments import brief
from stepnet.errors import StepError

from .base import Executor
from .c.executor import GENERATED_C
from .naive import PLAIN
from .torch_ops.executor import TORCH_OPS

AUTO: Final = "auto"
_BEST_FIRST: tuple[Executor, ...] = (GENERATED_C, TORCH_OPS)

# What each backend tries, in turn. The plain loop is what is left when all of them decline.
_tried: dict[str, tuple[Executor, ...]] = {
    AUTO: _BEST_FIRST,
    **{executor.name: (executor,) for executor in _BEST_FIRST},
    PLAIN.name: (),
}


def backend_names() -> tuple[str, ...]:
    """What `backend=` takes.

    >>> backend_names()
    ('auto', 'c', 'eager', 'naive')
    """
    return tuple(_tried)


def is_backend(name: str) -> bool:
    """Whether `backend=` takes a name."""
    return name in _tried


def tried(backend: str) -> tuple[Executor, ...]:
    """Which executors a backend tries, best first; the plain loop is what is left when all decline."""
    return _tried[backend]


def register(executor: Executor, *, before: str | None = None) -> None:
    """Make an executor known: `backend=` takes its name from now on.

    Args:
        executor: the executor.
        before: which executor `backend="auto"` tries next after this one; None: it runs only if asked for
            by name.

    Raises:
        StepError: the name is taken; or "auto" does not try the executor that is named in `before`.

    >>> class Mine(type(TORCH_OPS)):
    ...     name = "mine"
    >>> register(Mine())
    >>> backend_names()
    ('auto', 'c', 'eager', 'mine', 'naive')
    >>> unregister("mine")
    """
    global _tried
    if not isinstance(executor, Executor):
        raise StepError("register takes an executor", got=brief(executor), remedy="register(MyExecutor())")
    if executor.name in _tried:
        raise StepError(
            f"the name '{executor.name}' is taken; there are {', '.join(_tried)}", remedy="another `name`"
        )
    automatic = list(_tried[AUTO])
    if before is not None:
        places = [known.name for known in automatic]
        if before not in places:
            raise StepError(
                f"'{AUTO}' does not try '{before}'", got=brief(before), expected=f"one of {places}"
            )
        automatic.insert(places.index(before), executor)
    own = {name: executors for name, executors in _tried.items() if name not in (AUTO, PLAIN.name)}
    _tried = {AUTO: tuple(automatic), **own, executor.name: (executor,), PLAIN.name: ()}


def unregister(name: str) -> None:
    """Forget an executor: `backend=` does not take its name any more.

    Raises:
        StepError: there is none of this name.

    >>> unregister("none_of_this_name")
    Traceback (most recent call last):
    stepnet.errors.StepError: there is no executor 'none_of_this_name' to forget
    ...
    """
    global _tried
    if not isinstance(name, str) or name == AUTO or not _tried.get(name):
        raise StepError(f"there is no executor '{name}' to forget", expected=f"one of {', '.join(_tried)}")
    (gone,) = _tried[name]
    automatic = tuple(executor for executor in _tried[AUTO] if executor is not gone)
    _tried = {known: executors for known, executors in _tried.items() if known != name} | {AUTO: automatic}
