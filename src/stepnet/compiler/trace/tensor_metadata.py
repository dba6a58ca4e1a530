"""What a tensor tells of itself besides its values: its gradient, where it lies, its version.

Of a tensor that the step reads, the trace and the check hold another one in its place: they ask the tensor
itself. Of rows, each way to run them has its own answer, so a step that asks for it has no plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.reads.code_facts import TENSOR_STATE

# As a TorchFunctionMode is told of them.
OWN_STATE = frozenset(
    item.__get__ if hasattr(type(item), "__set__") else item
    for item in (getattr(Tensor, name) for name in TENSOR_STATE)
)
# Not among them: it is the same for all rows of most calls.
ASKS_FOR_GRADIENT = vars(torch._C.TensorBase)["requires_grad"].__get__


def asks_for_own_gradient(func: Any, args: Any) -> bool:
    """Whether a call asks a tensor whether it requires a gradient, and it is the tensor that tells: along one
    that torch.func differentiates, the derivative does."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return func == ASKS_FOR_GRADIENT and not functorch.is_gradtrackingtensor(args[0])
