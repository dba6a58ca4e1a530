"""Functions in processes of their own: forks of this one, which has imported torch already."""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Fork:
    """A function that runs."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(theirs, function, arguments), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
            self.process.start()
        theirs.close()

    def result(self, seconds: float = 120.0) -> Any:
        """What the function returns; fails with its traceback if it raises."""
        assert self._ours.poll(seconds), "the child did not answer"
        returned, value = self._ours.recv()
        self.process.join(seconds)
        assert returned, value
        assert self.process.exitcode == 0
        return value

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _run(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((True, function(*arguments)))
    except BaseException:
        connection.send((False, traceback.format_exc()))
    connection.close()


def in_a_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own; it must be plain enough to be pickled.

    >>> in_a_fork(divmod, 7, 2)
    (3, 1)
    """
    return Fork(function, *arguments).result()
