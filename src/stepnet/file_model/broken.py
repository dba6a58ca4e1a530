"""Errors of files and of calls of what was read: a class for each kind of fault, which knows its remedy."""

from __future__ import annotations

from stepnet.errors import IRError


class Broken(IRError):
    """A file breaks a rule of its format."""

    advice = "correct this in the file, or write the file anew from the model that it was made of"

    def __init__(
        self, where: str, *, got: object = None, expected: object = None, remedy: str | None = None
    ) -> None:
        if "\n  remedy: " not in where:  # it is there where the text of an error is told on
            remedy = remedy or self.advice
        super().__init__(where, got=got, expected=expected, remedy=remedy)


class Unreadable(Broken):
    """A file that cannot be opened, or that holds something else."""

    advice = "check the path, and that the file was copied whole; or write it anew from its model"


class CutOff(Broken):
    """Numbers beside a file do not lie where it says."""

    advice = "copy both files anew from one save: the numbers belong to the file that was written with them"


class NotRead(Broken):
    """What the format has, but no reader here."""

    advice = "write the model for a set of operators and types that are read, or this part of it with others"


class TooLarge(Broken):
    """Sizes that no machine holds."""

    advice = "correct the sizes that the file declares, or that the model is given"


class Misgiven(Broken):
    """A call does not fit the inputs that a model has."""

    advice = "`model.inputs` lists what it takes: names, shapes and types, in the order of the file"


class Misfitting(Broken):
    """What a node is given does not fit it, by the file or by what the model was given."""

    advice = "correct the node, or what feeds it, in the file; or give the model inputs that fit"
