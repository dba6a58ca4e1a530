"""Where results are compared, products are as exact as they can be, whatever torch's switch allows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Here(threading.local):
    exact = False


_here = _Here()


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """In this thread, products in the block are exact.

    >>> with exact_products():
    ...     are_exact()
    True
    >>> are_exact()
    False
    """
    before, _here.exact = _here.exact, True
    try:
        yield
    finally:
        _here.exact = before


def are_exact() -> bool:
    """Whether products in this thread have to be exact."""
    return _here.exact
