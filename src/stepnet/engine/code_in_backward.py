"""What custom Functions of a step read in backward, where they find what holds by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stepnet.compiler.reads.reach import Reach, reach


class InBackward(NamedTuple):
    """What custom Functions read in backward, as it was when their gradient was traced."""

    functions: Sequence[Any]
    keys: Sequence[tuple[Any, ...]]

    @classmethod
    def of(cls, functions: Sequence[Any] | None) -> InBackward | None:
        """None where that is not told: of hooks, and where it reads tensors, say."""
        found = [] if functions is None else [_read(function) for function in functions]
        keys = [reads.key for reads in found if _is_told(reads)]
        return cls(functions, keys) if functions and len(keys) == len(functions) else None

    def is_as_it_was(self) -> bool:
        """Whether they read the same now."""
        found = map(_read, self.functions)
        return all(_is_told(reads) and reads.key == key for reads, key in zip(found, self.keys, strict=True))


def _read(function: Any) -> Reach:
    return reach(function.backward)


def _is_told(found: Reach) -> bool:
    return found.complete and found.open is None and found.refused is None and not found.tensors


def check_backward(known: InBackward | None, check: Callable[[], None]) -> None:
    """Nothing, where such code reads what it read; otherwise what `check` says, which looks at all that the
    step reads."""
    if known is None or not known.is_as_it_was():
        check()
