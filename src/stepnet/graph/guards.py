"""Which of Dynamo's guards on a call are kept.

Dynamo asks at every call whether each function, class and module that it looked at is what it was. Of those
that make a call of `recurrent` a node there are hundreds, and to ask takes as long as the recurrence of a
small model: what stands in the modules of this package, or in torch's pytrees, is taken to stay.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch._guards import Guard, TracingContext
from torch.utils import _pytree

_OURS = re.compile(r"G\['__import_(stepnet(?:_dot_\w+)?|torch_dot_utils_dot__pytree)'\](?:\.(\w+))?")

_OWN_CALLS = re.compile(r"\.(ops|compiler|cuda|is_autocast_enabled|get_autocast_dtype|Module|RNNCellBase)\b")
# what only code looks up, in the modules of whoever calls this package
_LOOKED_UP = re.compile(
    r"G\['(__builtins_dict___|___unnamed_scope_|__import_typing)|"
    r"G\['\w+'\](\.torch)?\.(_C|ops|compiler|cuda|is_autocast_enabled|get_autocast_dtype|SymInt|SymFloat|b?float16)\b|"
    r"type\(.*\)\.__name__$"
)
_FUNCTION = re.compile(r"G\['(\w+)'\].*\.__(?:(?:kw)?defaults|closure)__")
_FOLDER = str(Path(__file__).parent.parent)


def forget_ours() -> None:
    """Drop the guards on this package from those of the graph that is being compiled, if one is."""
    context = TracingContext.try_get()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        guards.inner -= {guard for guard in guards if _is_ours(guard.name) or _is_of_our_code(guard)}


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


def _is_of_our_code(guard: Guard) -> bool:
    """Whether code of ours made a guard as it was followed, and on nothing of its caller's."""
    frames = [frame for frame in guard.user_stack or () if frame.filename != "<string>"]  # of a NamedTuple
    if not frames or not frames[-1].filename.startswith(_FOLDER):
        return False
    if _LOOKED_UP.match(guard.name):
        return True
    root = _FUNCTION.search(guard.name)
    return root is not None and _module_of(_globals().get(root[1])).startswith("stepnet")


def _globals() -> dict[str, Any]:
    """Those of the function that is being compiled."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return InstructionTranslator.current_tx().f_globals


def _module_of(value: Any) -> str:
    return str(value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", ""))
