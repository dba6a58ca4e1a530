"""Where an exported step has gradients off, by `torch.set_grad_enabled` alone, which a program notes."""

from __future__ import annotations

import torch
from torch import fx
from torch.autograd import grad_mode

_SET = torch._C._set_grad_enabled
_ENTERS, _EXITS = grad_mode._enter_inference_mode, grad_mode._exit_inference_mode


def sets(node: fx.Node) -> bool:
    """Whether a node of Dynamo's sets them on or off."""
    return node.target in (_SET, _ENTERS, _EXITS)


class GradModes:
    """Those of one step, which is traced where they are on."""

    def __init__(self) -> None:
        self._on = True
        self._before: dict[object, bool] = {}  # by the node that entered inference mode

    def copy(self, node: fx.Node, graph: fx.Graph) -> None:
        """Add what a node `sets` to a graph, if it changes anything."""
        on = self._on
        if node.target is _SET:
            self._on = bool(node.args[0])
        elif node.target is _ENTERS:
            self._before[node], self._on = on, not node.args[0]
        else:
            self._on = self._before[node.args[0]]
        if self._on is not on:
            graph.call_function(_SET, (self._on,))
