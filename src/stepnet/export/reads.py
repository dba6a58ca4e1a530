"""The tensors that the body of a loop reads, the bodies of loops inside it among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.api import recurrent
from stepnet.compiler.record import tensors_used
from stepnet.data.outputs import Outputs
from stepnet.executors import naive
from stepnet.executors.naive import PLAIN
from stepnet.iterator.tensor_iterator import INSTEAD, TensorIterator
from stepnet.watchers import replaced

from .calls import answered


def tensors_read(run: Callable[[], Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a body for real, loops inside it plainly, and report the tensors it read besides `inputs`."""
    with replaced(_recurrent), answered(INSTEAD, _iterator):
        return tensors_used(run, inputs)


def _recurrent(step: Any, x: Any, state: Any, **how: Any) -> Any:
    with replaced(None):
        return recurrent(step, x, state, **how, backend=PLAIN.name)


def _iterator(loop: TensorIterator, feeds: Mapping[str, Tensor]) -> Outputs:
    found = naive.run(loop.loop, feeds)
    return Outputs(loop.outputs, tuple(found[name] for name in loop.outputs))
