"""Which of Dynamo's guards on a call are kept.

Dynamo asks at every call whether each function, class and module that it looked at is what it was. Of those
that make a call of `recurrent` a node there are hundreds, and to ask takes as long as the recurrence of a
small model: what stands in the modules of this package, or in torch's pytrees, is taken to stay.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

from torch._guards import TracingContext
from torch.utils import _pytree

_OURS = re.compile(r"G\['__import_(stepnet(?:_dot_\w+)?|torch_dot_utils_dot__pytree)'\](?:\.(\w+))?")

_OWN_CALLS = re.compile(r"\.(ops|compiler|cuda|is_autocast_enabled|get_autocast_dtype|Module|RNNCellBase)\b")


def forget_ours() -> None:
    """Drop the guards on this package from those of the graph that is being compiled, if one is."""
    context = TracingContext.try_get()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        guards.inner -= {guard for guard in guards if _is_ours(guard.name)}


def _is_ours(name: str) -> bool:
    """Whether what a guard asks for stands in a module of ours, and is no function of torch that a step
    calls."""
    root = _OURS.search(name)
    if root is None:
        return name.startswith("__import__('torch')")
    alias, attribute = root.groups()
    value = getattr(sys.modules[alias.replace("_dot_", ".")], attribute or "", None)
    imported = isinstance(value, ModuleType) and value is not _pytree
    return not imported or name == root[0] or _OWN_CALLS.match(name, root.end()) is not None
