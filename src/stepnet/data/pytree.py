"""The one place that touches torch's pytree registry, which has no public name up to torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree


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


def name_packed_sequences() -> None:
    """Let torch.export save programs that take or give PackedSequences: to torch they are tuples without a
    name for it to write down."""
    if PackedSequence not in _pytree.SUPPORTED_SERIALIZED_TYPES:
        name = f"{PackedSequence.__module__}.{PackedSequence.__qualname__}"
        _pytree._register_namedtuple(PackedSequence, serialized_type_name=name)
    torch.serialization.add_safe_globals([PackedSequence])  # a program holds its example
