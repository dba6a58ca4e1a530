"""What a step asks its rows in Python, `if torch.all(n == 0):`, in a file: both ways, and the answer chooses.

The loop asks all rows of a step at once, and so does the file: each way is traced whole, and one truth value
takes the results of one. A way that raises cannot be written: a file that is run raises nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.compiler.trace.data_dependent import Followers
from stepnet.data.tree import Spec
from stepnet.errors import IRError, Unsupported
from stepnet.interrupts import let_through
from stepnet.user_line import user_line

MOST = 6  # ways through a step, each of which is traced whole

_TRUTHS = frozenset({Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero})
_REMEDY = "choose by torch.where, row by row, in place of Python's if"

Iteration = tuple[Spec, list[Any], list[Any]]


class _TooMany(Exception):
    """More is asked than ways are traced: a while loop asks until it is told no."""


class _Questions(TorchFunctionMode):
    """Notes what is asked of what follows from `rows`, each with its line; gives the answers that are known
    and then yes. Without answers, torch gives its own."""

    def __init__(self, rows: Sequence[Tensor], given: Sequence[bool] | None = None) -> None:
        super().__init__()
        self.given, self.asked = given, list[tuple[Tensor, str]]()
        self._followers = Followers(rows)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_truth = func in _TRUTHS or (func is Tensor.item and args[0].dtype == torch.bool)
        if is_truth and self._followers.has(args):
            self.asked.append((args[0], user_line().short))
            if self.given is not None:
                at = len(self.asked) - 1
                if at == MOST:
                    raise _TooMany
                return self.given[at] if at < len(self.given) else True
        result = func(*args, **kwargs)
        self._followers.follow(func, args, kwargs, result)
        return result


@contextlib.contextmanager
def questions_of(rows: Sequence[Any]) -> Iterator[Callable[[], bool]]:
    """Tells whether code in here asks what follows from these tensors."""
    questions = _Questions([row for row in rows if isinstance(row, Tensor)])
    with questions:
        yield lambda: bool(questions.asked)


class Ways:
    """A step that asks its rows, as one trace.

    Args:
        call: the step, of its x and states.
        where: its name in errors.
    """

    def __init__(self, call: Callable[[Sequence[Tensor]], Iteration], where: str) -> None:
        self._call, self._where = call, where
        self._left = MOST

    def run(self, leaves: Sequence[Tensor], given: tuple[bool, ...] = ()) -> Iteration:
        """What it gives; `given`: answers that are known.

        Raises:
            IRError: it cannot be written.
        """
        self._left -= 1
        if self._left < 0:
            raise self._too_many()
        own = [leaf.clone() for leaf in leaves]  # a way may change them
        questions = _Questions(own, given)
        try:
            with questions:
                result = self._call(own)
        except _TooMany:
            raise self._too_many() from None
        except (IRError, Unsupported):
            raise
        except Exception as error:
            let_through(error)
            if not questions.asked:
                raise
            raise self._raises(questions.asked[-1][1], error) from error
        asked = questions.asked[len(given) :]
        for at in reversed(range(len(asked))):
            truth, line = asked[at]
            says = truth if truth.dtype == torch.bool else truth != 0
            other = self.run(leaves, (*given, *(True for _ in asked[:at]), False))
            result = self._chosen(says, result, other, line)
        return result

    def _chosen(self, says: Tensor, first: Iteration, second: Iteration, line: str) -> Iteration:
        if first[0] != second[0]:
            raise self._refused(f"its results are nested otherwise by the answer of {line}", "other results")
        y, new = (
            [self._one(says, a, b, line) for a, b in zip(*both, strict=True)]
            for both in zip(first[1:], second[1:], strict=True)
        )
        return first[0], y, new

    def _one(self, says: Tensor, first: Any, second: Any, line: str) -> Any:
        if not isinstance(first, Tensor) and not isinstance(second, Tensor) and first == second:
            return first
        of = [(v.dtype, str(v.shape)) if isinstance(v, Tensor) else (type(v), "") for v in (first, second)]
        if of[0] != of[1] or not isinstance(first, Tensor):
            raise self._refused(
                f"a result is of another kind by the answer of {line}", f"{of[0]} and {of[1]}"
            )
        return torch.where(says.reshape(()), first, second)

    def _too_many(self) -> IRError:
        return self._refused(
            f"it asks its rows in more than {MOST} ways", "another question after each answer"
        )

    def _raises(self, line: str, error: Exception) -> IRError:
        said = str(error).strip().splitlines()
        return self._refused(
            f"one answer to what {line} asks its rows leads to an error, which a file cannot raise",
            f"{type(error).__name__}: {said[0] if said else ''}",
        )

    def _refused(self, why: str, got: str) -> IRError:
        return IRError(
            f"{self._where} cannot be written: {why}",
            got=got,
            expected="one result of the same kind, whatever rows answer",
            remedy=_REMEDY,
        )
