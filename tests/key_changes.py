"""Whether a change is seen in the key of a step, and in the words that tell that a key is what it was."""

from __future__ import annotations

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.unchanged import words
from stepnet.executors.c.memory import unchanged


def changes_are_seen(step, change):
    """A change after which a step gives something else, made between two walks."""
    before, again = reach(step), reach(step)
    if before.open is None and before.refused is None:
        assert before.key == again.key
        told = words(again)
        ask = None if told is None else unchanged(told.checks, told.tensors)
        assert ask is None or ask() == again.tensors
        change()
        assert ask is None or ask() is None
        after = reach(step)
        assert after.open is not None or after.refused is not None or after.key != before.key
