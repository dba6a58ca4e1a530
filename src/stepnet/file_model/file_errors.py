"""Errors of files and of calls of what was read: one for each kind of fault, which knows its remedy."""

from __future__ import annotations

from typing import Protocol

from stepnet.errors import IRError


class Fault(Protocol):
    """Makes the error of a fault; `remedy`: where a better one is known."""

    def __call__(
        self, where: str, *, got: object = None, expected: object = None, remedy: str | None = None
    ) -> IRError: ...


def _fault(advice: str) -> Fault:
    def error(
        where: str, *, got: object = None, expected: object = None, remedy: str | None = None
    ) -> IRError:
        if "\n  remedy: " not in where:  # it is there where the text of an error is told on
            remedy = remedy or advice
        return IRError(where, got=got, expected=expected, remedy=remedy)

    return error


# A file breaks a rule of its format.
Broken = _fault("correct this in the file, or write the file anew from the model that it was made of")
# A file that cannot be opened, or that holds something else.
Unreadable = _fault("check the path, and that the file was copied whole; or write it anew from its model")
# Numbers beside a file do not lie where it says.
CutOff = _fault(
    "copy both files anew from one save: the numbers belong to the file that was written with them"
)
# What the format has, but no reader here.
NotRead = _fault(
    "write the model for a set of operators and types that are read, or this part of it with others"
)
# Sizes that no machine holds.
TooLarge = _fault("correct the sizes that the file declares, or that the model is given")
# A call does not fit the inputs that a model has.
Misgiven = _fault("`model.inputs` lists what it takes: names, shapes and types, in the order of the file")
# What a node is given does not fit it, by the file or by what the model was given.
Misfitting = _fault("correct the node, or what feeds it, in the file; or give the model inputs that fit")
