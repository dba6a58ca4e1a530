"""Recurrences by the plain loop, whatever backend they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepnet.api import recurrent
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.ir.loop import Loop
from stepnet.watchers import Instead, replaced


class Plainly(Instead):
    """Answers for recurrences by the plain loop: nothing is compiled, and each operation can be seen."""

    def __call__(self, step: Any, x: Any, state: Any, **how: Any) -> Any:
        with replaced(None):
            return recurrent(step, x, state, **how, backend=PLAIN.name)

    def loop(self, loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with replaced(None):
            return naive.run(loop, feeds)
