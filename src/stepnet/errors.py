"""Every exception stepnet raises, and the one formatter of their text.

An error says where (in the user's own words), what was given, what was expected, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import Self

OF_A_NAME = "backend='auto' runs it by what can"


def describe(where: str, *, got: object = None, expected: object = None, remedy: str | None = None) -> str:
    """Lay out an error's text: `where` it is first, then got, expected and remedy on lines of their own.

    >>> print(describe("LoDTensor 'lod' level 0 must start at 0", got="[1, 3]", remedy="prepend a 0"))
    LoDTensor 'lod' level 0 must start at 0
      got:      [1, 3]
      remedy:   prepend a 0
    """
    lines = [where]
    if got is not None:
        lines.append(f"  got:      {got if str(got).strip() else 'nothing'}")
    if expected is not None:
        lines.append(f"  expected: {expected}")
    if remedy is not None:
        lines.append(f"  remedy:   {remedy}")
    return "\n".join(lines)


class StepnetError(Exception):
    """Base of every error of stepnet. The texts that its own is laid out of are at hand, too.

    >>> error = LoDError("offsets must rise", got=[2, 1])
    >>> error.where, error.got, error.expected
    ('offsets must rise', '[2, 1]', None)
    """

    def __init__(
        self, where: str, *, got: object = None, expected: object = None, remedy: str | None = None
    ) -> None:
        super().__init__(describe(where, got=got, expected=expected, remedy=remedy))
        self.where, self.remedy = where, remedy
        self.got, self.expected = (None if part is None else str(part) for part in (got, expected))

    def fresh(self) -> Self:
        """The same error, to be kept or raised again: without the frames, and so the tensors, it came by.
        A frame that keeps what it raises is a cycle: all that it holds stays until garbage is collected.

        >>> Unsupported("it mixes rows").fresh().reason
        'it mixes rows'
        """
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made


class LoDError(StepnetError, ValueError):
    """Offsets, lengths or shapes that do not describe the rows they come with."""


class LoDIndexError(LoDError, IndexError):
    """A sequence was asked for that the batch does not have."""


class FrozenError(StepnetError, AttributeError):
    """An attribute of an immutable value was set or deleted."""


class RowMixError(StepnetError, TypeError):
    """A torch function that would mix rows of different sequences was called on a LoDTensor."""


class ArrayError(StepnetError, IndexError):
    """A TensorArray was read out of range or where nothing was written, or its values do not fit together."""


class StepError(StepnetError, ValueError):
    """A step function, or what it was given or returned, does not fit the recurrence it runs in."""


class StepIndexError(StepError, IndexError):
    """A step looked up a row that is not there."""


class StepAttributeError(StepError, AttributeError):
    """A value of a step was asked for as an attribute."""


class WrittenError(StepError, RuntimeError):
    """What a gradient reads was changed after the recurrence ran; torch has a RuntimeError there."""


class StreamError(StepnetError, ValueError):
    """A stream that cannot be opened, or a module or chunk that cannot be run chunk by chunk; says why."""


class UnknownStream(StreamError, KeyError):
    """No stream of that id is open."""

    __str__ = Exception.__str__  # a KeyError's own is a repr, all on one line


class LoopError(StepnetError, ValueError):
    """A loop (TensorIterator) whose ports, back edges or body do not fit together."""


class OutputError(StepnetError, KeyError, IndexError):
    """A loop or a model gives no output of that name or number."""

    __str__ = Exception.__str__  # a KeyError's own is a repr, all on one line


class GraphError(StepnetError, ValueError):
    """A graph of the intermediate representation breaks a rule of its stage."""


class IRError(StepnetError, ValueError):
    """A model that cannot be read, run or written: where in its file, what was found and expected."""


class TapeError(StepnetError, ValueError):
    """A layer that cannot be recorded, or a topology that cannot be taken, played or saved; says which layer,
    and the line that made it."""


class TapeKeyError(TapeError, KeyError):
    """A topology has no evaluator of that name."""

    __str__ = Exception.__str__  # a KeyError's own is a repr, all on one line


class Unsupported(StepnetError):
    """A compiler pass, an executor or a writer declines what it is given: says why and what would help.

    Never reaches a user unless that executor was asked for by name; `explain` shows it otherwise.

    Attributes:
        ran: tells the user, where the plain loop did run after all.
    """

    ran: Callable[[], object] | None = None

    def __init__(self, reason: str, *, remedy: str | None = None, line: str | None = None) -> None:
        super().__init__(reason if line is None else f"{reason} ({line})", remedy=remedy)
        self.reason = reason
        self.remedy = remedy
        self.line = line

    def by_name(self) -> Unsupported:
        """The same refusal of a backend that was asked for by name, with a remedy if it has none.

        >>> print(Unsupported("it mixes rows").by_name())
        it mixes rows
          remedy:   backend='auto' runs it by what can
        """
        if self.remedy:
            return self
        made = self.fresh().with_traceback(self.__traceback__)
        made.remedy, made.args = OF_A_NAME, (describe(*self.args, remedy=OF_A_NAME),)
        return made


class SlowPathWarning(UserWarning):
    """A step cannot be compiled and runs by the plain loop: right, but slow. Given once for each step."""

    def __init__(self, name: str, refusal: Unsupported) -> None:
        super().__init__(
            describe(
                f"step '{name}' runs by the plain loop: {refusal.args[0].splitlines()[0]}",
                remedy=refusal.remedy or "backend='naive' accepts that, without a warning",
            )
        )


class NotBuilt(Unsupported):
    """The C that was generated of a step could not be compiled or loaded."""


class NoCompiler(NotBuilt):
    """Generated C declines every step on this machine: no compiler, or no folder for what is built."""


class TorchOpsWarning(SlowPathWarning):
    """A step runs by torch ops, because generated C declines it. Given once for each step, or once for all of
    them where there is no compiler."""

    def __init__(self, name: str, refusal: Unsupported) -> None:
        if isinstance(refusal, NoCompiler):
            what = "steps run by torch ops, which in training takes 2 to 10 times as long as generated C"
        else:
            what = f"step '{name}' runs by torch ops, not by generated C"
        UserWarning.__init__(
            self,
            describe(
                f"{what}: {refusal.args[0].splitlines()[0]}",
                remedy=refusal.remedy or "backend='eager' accepts that, without a warning",
            ),
        )


class StreamWarning(UserWarning):
    """A module gives other results for streams in pieces than for each of them whole. Given once for each
    `stepnet.stream`."""

    def __init__(self, what: str, *, got: str, expected: str, remedy: str) -> None:
        super().__init__(describe(what, got=got, expected=expected, remedy=remedy))


class BuildError(StepnetError, RuntimeError):
    """Generated source could not be compiled or loaded."""


class MissingExtraError(StepnetError, ImportError):
    """An optional dependency is not installed; the text names the extra that brings it."""

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package '{package}', which is not installed",
            remedy=f"pip install 'stepnet[{extra}]'",
        )
