"""The tensors that the body of a loop reads, the bodies of loops inside it among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.compiler.trace.record import tensors_used
from stepnet.data.tree import leaves
from stepnet.executors import naive
from stepnet.ir.loop import Loop
from stepnet.watchers import ITERATORS, during, replaced

from .calls import AsLoop


def tensors_read(run: Callable[[], Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a body for real, loops inside it plainly, and report the tensors it read besides `inputs`, those
    that it gives as they are among them."""

    def run_and_take() -> list[Tensor]:
        return [leaf.clone() for leaf in leaves(run(), Tensor)]

    with replaced(_Plainly()), during(ITERATORS, _iterator):
        return tensors_used(run_and_take, inputs)


class _Plainly(AsLoop):
    """Answers for recurrences, and for those of their steps, by the plain loop."""

    keeps = False

    def loop(self, loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return naive.run(loop, feeds)


def _iterator(loop: Loop, feeds: Mapping[str, Tensor], _: Any) -> dict[str, Any]:
    return naive.run(loop, feeds)
