"""Aten calls that make values from nothing, and the one rule for all the rest."""

from __future__ import annotations

from typing import Any

import torch

from stepnet.data.dtypes import dtype_name
from stepnet.errors import Unsupported
from stepnet.ir.graph import Node

from .builder import BATCH, Builder, Ref, RowNumbers, rule, rules


def _constant(number: Any, b: Builder, *_: Any, **__: Any) -> Any:
    return b.widened(number)


def _filled(place: int, b: Builder, *args: Any, **_: Any) -> Any:
    """Full of the argument at a place."""
    return b.widened(args[place])


_EMPTY = "empty empty_like new_empty empty_strided new_empty_strided empty_permuted"
rules(_constant, dict.fromkeys(("zeros_like", "new_zeros", "zeros", *_EMPTY.split()), 0))
rules(_constant, dict.fromkeys(("ones_like", "new_ones", "ones"), 1))
rules(_filled, {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0})


@rule("arange.start_step")
def _arange_step(b: Builder, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    at, _times, shape = b.shown()
    if at is not None:
        if (start, step) != (0, 1) or end is not BATCH:
            raise Unsupported("the step numbers its rows (arange over the batch)", line=b.line)
        return RowNumbers()
    return b.result(b.emit("iota", (), shape, b.meta_dtype(), "shared", start=start, step=step), None)


@rule("opaque")
def _opaque(b: Builder, node: Any, args: Any, kwargs: Any) -> Any:
    """Any other call: one op that calls torch, if rows come first in all it takes and gives."""
    target = str(node.target)
    if _may_draw(node.target, args, kwargs):
        raise Unsupported(
            f"{target} draws noise in a way that is not compiled",
            line=b.line,
            remedy="draw it from torch.rand_like or torch.randn_like, a number for each row; "
            "or before the recurrence, as an input of the step",
        )
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Unsupported(f"'{target}' is no plain torch call", line=b.line)
    metas = node.meta.get("val")
    if metas is None:  # no result: an assertion, or a note of the profiler
        return None
    many = isinstance(metas, (tuple, list))
    inputs: list[str] = []
    template = tuple(_as_plain(b, target, a, inputs) for a in args)
    named = tuple((k, _as_plain(b, target, v, inputs)) for k, v in kwargs.items())
    kind = b.kind(*inputs) if inputs else None  # a call on sums is proved to be linear later
    if getattr(node.target, "_schema", None) is not None and node.target._schema.is_mutable:
        raise Unsupported(f"{target} changes a tensor in place", line=b.line)
    refs = [
        _made_opaque(b, target, meta, kind) if hasattr(meta, "shape") else None
        for meta in (metas if many else [metas])
    ]
    attrs = (("target", target), ("args", template), ("kwargs", named))
    outputs = tuple("" if ref is None else ref.name for ref in refs)
    b.nodes.append(Node("opaque", tuple(inputs), outputs, attrs, b.line))
    return refs if many else refs[0]


def _may_draw(target: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws noise by its tags. Attention does where it drops something."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    named = zip((argument.name for argument in target._schema.arguments), args, strict=False)
    given = {**dict(named), **kwargs}
    drops = [argument.default_value for argument in target._schema.arguments if argument.name == "dropout_p"]
    return not drops or bool(given.get("dropout_p", drops[0]))


def _as_plain(b: Builder, target: str, arg: Any, inputs: list[str]) -> Any:
    """An argument of a call as plain values, which are all that a graph holds. `inputs` gets the values it
    reads."""
    if isinstance(arg, Ref):
        if arg.fold or arg.bdim not in (None, 0):
            raise Unsupported(f"{target} on values whose rows are not first", line=b.line)
        inputs.append(arg.name)
        return ("input", len(inputs) - 1)
    if isinstance(arg, list):
        return ("list", tuple(_as_plain(b, target, a, inputs) for a in arg))
    if arg is BATCH or hasattr(arg, "node"):
        raise Unsupported(f"{target} is given the number of rows", line=b.line)
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return ("torch", str(arg).removeprefix("torch."))
    if isinstance(arg, torch.device):
        return ("device", str(arg))
    return ("value", arg)


def _made_opaque(b: Builder, target: str, meta: Any, kind: str | None) -> Ref:
    """A result of a call. `kind`: of the values that it reads, if it reads any."""
    at, times = b.batch_at(meta.shape)
    if at not in (None, 0) or times != 1:
        raise Unsupported(f"{target} does not give its rows first", line=b.line)
    is_row = at is not None
    if kind is not None and (kind == "row") != is_row:
        raise Unsupported(f"{target} makes one value of all rows: the step mixes rows", line=b.line)
    made = "row" if is_row else ("sum" if kind == "sum" else "shared")
    return Ref(b.fresh(made, b.row_shape(meta.shape, at), dtype_name(meta.dtype)), at)
