"""The code of a graph of Dynamo's as a function by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

TRANSFORMS = "_functorch"
_PRIVATE = re.compile(r"torch\._C\._nn\.(\w+)")


def function_of(code: Any, held: dict[str, Any]) -> Callable[..., Any]:
    """The code of a graph as a function by itself. `held`: what it calls its own."""
    space = {**code.globals, "self": SimpleNamespace(**held)}
    source = _PRIVATE.sub(_public, code.src).replace("def forward(self, ", "def forward(", 1)
    exec(compile(source, "<step in a graph>", "exec"), space)
    step = space["forward"]
    return _closing_transforms(step) if TRANSFORMS in source else step


def _closing_transforms(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of Dynamo's, which opens and closes transforms of torch.func by hand: an error in between would
    leave them open for all that the process does next."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]

    def closing(*rows: Any) -> Any:
        depth = functorch.get_dynamic_layer_stack_depth()
        refused = autograd._saved_tensors_hooks_get_disabled_error_message()
        try:
            return step(*rows)
        except BaseException:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            if refused is None:
                autograd._saved_tensors_hooks_enable()
            raise

    return closing


def _public(match: re.Match[str]) -> str:
    """A function by the name that users know, which tells what is run."""
    name = match[1]
    private: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
    known = getattr(torch.nn.functional, name, None) is getattr(private, name)
    return f"torch.nn.functional.{name}" if known else match[0]
