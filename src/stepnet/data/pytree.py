"""The one place that touches torch's pytree registry, which has no public name up to torch 2.13."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree
from torch.utils.checkpoint import CheckpointFunction

_REENTRANT = CheckpointFunction.forward.__code__
_ASKING = (_pytree.__file__, _REENTRANT.co_filename)


def register_node(
    cls: type[Any],
    *,
    name: str,
    leaves: Callable[[Any], Sequence[str]],
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Any, Any], Any],
    dump: Callable[[Any], Any],
    load: Callable[[Any], Any],
) -> None:
    """Make ``cls`` a node; ``leaves`` names its leaves, ``dump`` and ``load`` turn its context to JSON."""

    def flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
        values, context = flatten(node)
        return [(_pytree.GetAttrKey(n), v) for n, v in zip(leaves(node), values, strict=True)], context

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=dump,
        from_dumpable_context=load,
        flatten_with_keys_fn=flatten_with_keys,
    )


def is_frozen_by_checkpoint(values: Any) -> bool:
    """Whether who asks for the leaves of a node with these values is a reentrant checkpoint of torch's whose
    results need gradients: it takes and gives those of tensors alone, and of nodes none, without a word."""
    if torch.compiler.is_dynamo_compiling() or torch.is_grad_enabled():
        return False
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _ASKING:
        if frame.f_code is _REENTRANT:
            return values.requires_grad or any(frame.f_locals["ctx"].needs_input_grad)
        frame = frame.f_back
    return False


def name_packed_sequences() -> None:
    """Let torch.export save programs that take or give PackedSequences: to torch they are tuples without a
    name for it to write down."""
    if PackedSequence not in _pytree.SUPPORTED_SERIALIZED_TYPES:
        name = f"{PackedSequence.__module__}.{PackedSequence.__qualname__}"
        _pytree._register_namedtuple(PackedSequence, serialized_type_name=name)
    torch.serialization.add_safe_globals([PackedSequence])  # a program holds its example
