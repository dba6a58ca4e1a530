"""Operators that somebody registered with torch.library, and made of others by Python of their own.

A trace goes into them, and no walk sees what their Python reads. One with a kernel alone stands in the trace
as it is, and is called at each run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._library import custom_ops
from torch._ops import OpOverload, OpOverloadPacket

from stepnet.compiler.reads.code_facts import words
from stepnet.data.tree import leaves

# Registered by torch itself and by stepnet: what they do follows from their arguments.
_KNOWN = words(
    """aten prim prims c10d_functional _c10d_functional _c10d_functional_autograd streams onnx onnx_symbolic
    debug_mode_ops export flex_lib rngprims stepnet"""
)


def is_made_of_others(func: Any, given: Any) -> bool:
    """Whether a call is of an operator of a library that Python makes of others, or differentiates.

    >>> is_made_of_others(torch.ops.aten.mul, (torch.ones(1), 2))
    False
    """
    if not isinstance(func, (OpOverload, OpOverloadPacket)):
        return False
    packet = func.overloadpacket if isinstance(func, OpOverload) else func
    space, name = packet._qualified_op_name.split("::")
    if space in _KNOWN:
        return False
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in leaves(given, Tensor))
    kernel_alone = f"{space}::{name}" in custom_ops.OPDEFS and not wanted  # beneath what differentiates it
    python = ("CompositeImplicit",) if kernel_alone else ("CompositeImplicit", "Autograd")
    return any(
        key.startswith((f"{space}/{name}/", f"{space}/{name}.")) and key.rpartition("/")[2].startswith(python)
        for key in list(torch.library._impls)
    )
