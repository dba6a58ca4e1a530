"""What does not fit a node of a file; whoever runs the node names it."""

from __future__ import annotations


class Misfit(Exception):
    """An attribute or an input does not fit.

    `dims` are the sizes in conflict: they tell whether the conflict holds for every size of the dynamic
    dimensions or only for the one that was tried.
    """

    def __init__(
        self, what: str, got: object = None, expected: object = None, *, dims: object = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.got = got
        self.expected = expected
        self.dims = dims
