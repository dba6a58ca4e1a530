"""The one place that touches torch's pytree registry, which has no public name up to torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def register_node(
    cls: type[Any],
    *,
    name: str,
    leaf: str,
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Any, Any], Any],
    dump: Callable[[Any], Any],
    load: Callable[[Any], Any],
) -> None:
    """Make ``cls`` a node with one leaf, named ``leaf``; ``dump`` and ``load`` turn its context to JSON."""

    def flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
        leaves, context = flatten(node)
        return [(_pytree.GetAttrKey(leaf), leaves[0])], context

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=dump,
        from_dumpable_context=load,
        flatten_with_keys_fn=flatten_with_keys,
    )
