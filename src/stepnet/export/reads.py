"""The tensors that the body of a loop reads, the bodies of loops inside it among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.compiler.record import tensors_used
from stepnet.executors import naive
from stepnet.ir.loop import Loop
from stepnet.iterator.tensor_iterator import INSTEAD
from stepnet.plainly import Plainly
from stepnet.watchers import replaced

from .calls import answered


def tensors_read(run: Callable[[], Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a body for real, loops inside it plainly, and report the tensors it read besides `inputs`."""
    with replaced(Plainly()), answered(INSTEAD, _iterator):
        return tensors_used(run, inputs)


def _iterator(loop: Loop, feeds: Mapping[str, Tensor], _: Any) -> dict[str, Any]:
    return naive.run(loop, feeds)
