"""A graph in normal form, being made; and the table of rules by which traced calls become ops of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.data.dtypes import dtype_name
from stepnet.errors import Unsupported
from stepnet.ir.graph import Kind, Node, Value
from stepnet.ir.op_rules import broadcast
from stepnet.ir.ops import OPS, ROUNDED, Stage


class Fold(int):
    """How many leading row dimensions are merged into the batch, `ahead` of them ahead of the rows."""

    ahead: int

    def __new__(cls, dims: int, ahead: int) -> Fold:
        made = super().__new__(cls, dims)
        made.ahead = ahead
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        return int(self) == int(other) and self.ahead == getattr(other, "ahead", 0)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self)


@dataclass(frozen=True)
class Ref:
    """A traced tensor: the graph value it is, and where its batch dimension stands (None: it has none).

    `fold` leading row dimensions are merged into the batch dimension, as F.linear does with [B, n, f]; a
    `Fold` where some of them come first, as in [n, B * f].
    """

    name: str
    bdim: int | None = None
    fold: int = 0


class _Batch:
    """The batch size where a trace passes it as a number."""


BATCH = _Batch()


@dataclass(frozen=True)
class RowNumbers:
    """The numbers of the rows, 0 to the batch size less one: only to pick something of each row by. Where
    they stand, and how often in a row each of them, as with several of a row in one dimension [B * n]."""

    bdim: int = 0
    times: int = 1


def row_numbers(arguments: Sequence[Any]) -> RowNumbers | None:
    """The first numbers of rows among arguments."""
    return next((one for one in arguments if isinstance(one, RowNumbers)), None)


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# Every op that no rule makes, and why.
NOT_CAPTURED = {
    **dict.fromkeys(("shift", "spread"), "fission makes it, where a value of an earlier step is read"),
    "sum_steps": "a gradient of what no step changes is made so, after the trace",
    "copy": "the writer of C makes it, of a value that is needed in a second place",
}


def rule(*targets: str) -> Callable[[Rule], Rule]:
    """Register the meaning of aten targets, named `op` or `op.overload`."""

    def register(fn: Rule) -> Rule:
        for target in targets:
            assert target not in RULES, f"two rules for {target}"
            RULES[target] = fn
        return fn

    return register


def rules(meaning: Rule, table: Mapping[str, Any]) -> None:
    """Register a meaning that several targets share; it is told first what the table says of its target."""
    for target, own in table.items():
        rule(target)(partial(meaning, own))


class Builder:
    """A graph being made."""

    def __init__(self, batch: str) -> None:
        self.batch = batch
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, Tensor] = {}
        self.line: str | None = None
        self.meta: Any = None  # the traced result of the node at hand
        self.node: FxNode | None = None  # which is that one
        self.checked = False  # whether the step asks that the call at hand does not fail
        self.written = False  # whether the node at hand is a cast that the step writes
        self._known: dict[Any, str] = {}
        self._made: dict[str, Node] = {}
        self._alike: dict[tuple[str, int], bool] = {}

    # -- values ------------------------------------------------------------------------------------

    def value(self, name: str, kind: Kind, shape: Sequence[int], dtype: str) -> str:
        """Declare a value."""
        self.values[name] = Value(name, kind, tuple(int(s) for s in shape), dtype)
        return name

    def fresh(self, kind: Kind, shape: Sequence[int], dtype: str) -> str:
        """Declare a value with a name of its own."""
        return self.value(f"v{len(self.values)}", kind, shape, dtype)

    def kind(self, *names: str) -> Kind:
        """What a value computed from others is."""
        kinds = {self.values[n].kind for n in names}
        if "sum" in kinds:
            if "row" in kinds:
                raise self._mixes_rows()
            return "sum"
        return "row" if "row" in kinds else "shared"

    def _mixes_rows(self) -> Unsupported:
        return Unsupported("a sum over rows meets a row value: the step mixes rows", line=self.line)

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: str,
        kind: Kind | None = None,
        **attrs: Any,
    ) -> str:
        """Add a node of one result, or find the same one made before."""
        if kind == "row" and any(self.values[n].kind == "sum" for n in inputs):
            raise self._mixes_rows()
        kind = self.kind(*inputs) if kind is None else kind
        inputs, attrs = self._through(op, tuple(inputs), attrs)
        if same := self._identity(op, inputs, shape, attrs):
            return same
        told = repr(attrs) if op == "full" else tuple(attrs.items())  # 0.0 is not -0.0, and NaN is NaN
        key = (op, inputs, tuple(shape), dtype, kind, told)
        if op not in ("rand", "randn", "opaque"):
            try:
                if key in self._known:
                    return self._known[key]
            except TypeError:
                pass
        if kind == "sum" and OPS[op].stage is not Stage.ROWS:
            self._check_linear(op, inputs)
        out = self.fresh(kind, shape, dtype)
        node = Node(op, inputs, (out,), tuple(attrs.items()), self.line)
        self.nodes.append(node)
        self._made[out] = node
        self._known[key] = out
        return out

    def like(self, name: str, op: str, *operands: Any, dtype: str | None = None, **attrs: Any) -> str:
        """Add a node whose result has the shape, and the dtype if no other is named, of a value. Operands are
        names of values, and numbers."""
        value = self.values[name]
        inputs = [o if isinstance(o, str) else self.full(o, (), value.dtype) for o in operands]
        return self.emit(op, inputs, value.shape, dtype or value.dtype, **attrs)

    def _through(
        self, op: str, inputs: tuple[str, ...], attrs: dict[str, Any]
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """reshape(reshape(a)) -> reshape(a); permute(permute(a)) -> permute(a)."""
        made = self._made.get(inputs[0]) if inputs and op in ("reshape", "permute") else None
        if made is None or made.op != op:
            return inputs, attrs
        if op == "permute":
            first = made.attr("dims")
            attrs = {"dims": tuple(first[d] for d in attrs["dims"])}
        return made.inputs, attrs

    def _identity(
        self, op: str, inputs: tuple[str, ...], shape: Sequence[int], attrs: dict[str, Any]
    ) -> str | None:
        """a * 1 -> a; a / 1 -> a; sum + 0 -> sum; reshapes and permutes that change nothing, or move one
        number."""
        if not inputs:
            return None
        first = self.values[inputs[0]]
        if op == "reshape" and first.shape == tuple(shape):
            return first.name
        if op == "permute" and attrs["dims"] == tuple(range(len(first.shape))):
            return first.name
        made = self._made.get(first.name)
        if op in ("reshape", "permute") and made is not None and made.op == "full":
            return self.full(made.attr("value"), shape, first.dtype, first.kind)
        kind, neutral = self.kind(*inputs), {"mul": 1, "div": 1}.get(op)
        if op in ("add", "sub") and kind == "sum":  # of other values 0.0 is not neutral to -0.0
            neutral = 0
        if neutral is not None:
            for kept, other in (inputs, inputs[::-1])[: 2 if op in ("mul", "add") else 1]:
                value = self.values[kept]
                if self.is_full(other, neutral) and (value.kind, value.shape) == (kind, tuple(shape)):
                    return kept
        return None

    def _check_linear(self, op: str, inputs: Sequence[str]) -> None:
        sums = [n for n in inputs if self.values[n].kind == "sum"]
        linear = op in ("reshape", "permute", "expand", "slice", "flip", "cat", "neg", "sum", "copy", "cast")
        linear |= op in ("add", "sub") and len(sums) == 2
        linear |= op in ("mul", "matmul") and len(sums) == 1
        linear |= op in ("div", "gather", "cumsum") and sums == [inputs[0]]
        if op == "where" and inputs[0] not in sums:
            linear = all(n in sums or self.is_full(n, 0) for n in inputs[1:])
        if op in ("lu_solve", "solve_triangular", "matrix_exp_grad"):
            linear = sums == [inputs[1]]
        if op in ("scatter", "scatter_add"):
            linear = inputs[1] not in sums and all(n in sums or self.is_full(n, 0) for n in inputs[::2])
        if op == "cat":
            linear = all(n in sums or self.is_full(n, 0) for n in inputs)
        if not linear:
            raise Unsupported(
                f"'{op}' is applied to a sum over rows of each step: the step mixes rows", line=self.line
            )

    def maker(self, name: str) -> Node | None:
        """The node that makes a value; None of a parameter."""
        return self._made.get(name)

    def is_full(self, name: str, number: float) -> bool:
        """True if a value is known to hold one number everywhere."""
        return self.number_of(name) == number

    def number_of(self, name: str) -> Any:
        """The one number that a value is known to hold everywhere, if it is."""
        node = self._made.get(name)
        while node is not None and node.op in ("reshape", "permute", "expand", "slice", "flip", "copy"):
            node = self._made.get(node.inputs[0])
        return node.attr("value") if node is not None and node.op == "full" else None

    def full(self, number: Any, shape: Sequence[int], dtype: str, kind: Kind = "shared") -> str:
        """A value that holds one number."""
        if number is BATCH:
            raise Unsupported("the step computes with the number of rows", line=self.line)
        if not _is_number(number):
            raise Unsupported("the step computes with a number that .item() gives", line=self.line)
        if dtype == "bool":
            number = bool(number)
        elif dtype.startswith("float") or dtype == "bfloat16":
            number = float(number)
        elif dtype.startswith(("int", "uint")):
            number = int(number)
        return self.emit("full", (), shape, dtype, kind, value=number)

    # -- shapes ------------------------------------------------------------------------------------

    def batch_at(self, shape: Sequence[Any]) -> tuple[int | None, int]:
        """Which dimension of a traced shape holds the batch, and how many rows are folded into it."""
        found = [(i, s) for i, s in enumerate(shape) if not isinstance(s, int)]
        if not found:
            return None, 1
        if len(found) > 1:
            raise Unsupported("the batch size appears in two dimensions: the step pairs rows", line=self.line)
        at, size = found[0]
        text = str(size.node.expr) if hasattr(size, "node") else str(size)
        if text == self.batch:
            return at, 1
        number, star, symbol = text.partition("*")
        if star and symbol == self.batch and number.isdigit():
            return at, int(number)
        if text.isdigit() or re.search(r"\bu\d", text):  # that torch's trace could not know, or not at first
            raise Unsupported("an op makes a result whose shape depends on values", line=self.line)
        raise Unsupported(f"the batch dimension became {text}: the step mixes rows", line=self.line)

    def row_shape(self, shape: Sequence[Any], bdim: int | None) -> tuple[int, ...]:
        """A traced shape without its batch dimension."""
        return tuple(int(s) for i, s in enumerate(shape) if i != bdim)

    def rank(self, ref: Ref) -> int:
        """How many dimensions a traced tensor has."""
        return len(self.values[ref.name].shape) - ref.fold + (ref.bdim is not None)

    def shown(self) -> tuple[int | None, int, tuple[int, ...]]:
        """Of the traced result at hand: where the batch is, how many rows are folded into it, and the shape
        without it."""
        at, times = self.batch_at(self.meta.shape)
        return at, times, self.row_shape(self.meta.shape, at)

    def meta_dtype(self) -> str:
        """The dtype of the traced result at hand."""
        return dtype_name(self.meta.dtype)

    def result(self, name: str, bdim: int | None, fold: int = 0) -> Ref:
        """A reference, checked against what was traced."""
        at, times, expected = self.shown()
        value = self.values[name]
        row = value.kind == "row"
        if (at is not None) != row or (row and at != bdim):
            raise Unsupported("the batch dimension could not be followed", line=self.line)
        shape = value.shape
        if fold:
            if prod(shape[:fold]) != times:
                raise Unsupported("the batch dimension could not be followed", line=self.line)
            shape = shape[fold:]
        elif times != 1:
            raise Unsupported("the batch dimension could not be followed", line=self.line)
        if shape != expected:
            raise Unsupported("the shape of a row could not be followed", line=self.line)
        return Ref(name, bdim, fold)

    # -- helpers of the rules ------------------------------------------------------------------------

    def cast(self, ref: Ref, dtype: str) -> Ref:
        """The same value in another dtype."""
        value = self.values[ref.name]
        if value.dtype == dtype:
            return ref
        made = self._made.get(ref.name)
        if made is not None and made.op == "cast" and self.values[made.inputs[0]].dtype == "bool":
            # a spike, `(u > 0).float().to(u.dtype)`: every type holds truth values
            name = self.emit("cast", (made.inputs[0],), value.shape, dtype, value.kind)
            return replace(ref, name=name)
        if made is not None and made.op == "where":  # a choice of two integers, on its way to a float
            sides = [self._made.get(n) for n in made.inputs[1:]]
            if all(side is not None and side.op == "full" for side in sides):
                both = [self.full(side.attr("value"), (), dtype) for side in sides if side is not None]
                name = self.emit("where", (made.inputs[0], *both), value.shape, dtype, value.kind)
                return replace(ref, name=name)
        written = self.written and bool(ROUNDED.intersection((value.dtype, dtype)))
        how: dict[str, Any] = {"written": 1} if written else {}
        return replace(ref, name=self.emit("cast", (ref.name,), value.shape, dtype, **how))

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Reshape a row (or shared) value."""
        value = self.values[name]
        if value.shape == tuple(shape):
            return name
        return self.emit("reshape", (name,), shape, value.dtype)

    def permute(self, name: str, dims: Sequence[int]) -> str:
        """Permute the dimensions of a row (or shared) value: a reshape where only dimensions of one move. An
        outer product is one of its vectors the other way round."""
        value = self.values[name]
        shape, wide = [value.shape[d] for d in dims], [d for d in dims if value.shape[d] != 1]
        if wide == sorted(wide):
            return self.reshape(name, shape)
        made, last = self._made.get(name), len(dims) - 2
        if made is not None and made.op == "matmul" and [*dims] == [*range(last), last + 1, last]:
            column, row = (self.values[n] for n in made.inputs)
            alike = column.kind == row.kind and len(column.shape) == len(row.shape) == len(dims)
            if alike and column.shape[-1] == 1:
                vectors = [self.permute(n, dims) for n in reversed(made.inputs)]
                return self.emit("matmul", vectors, shape, value.dtype)
        if (back := self._permuted_back(name, dims)) is not None:
            return back
        return self.emit("permute", (name,), shape, value.dtype, dims=tuple(dims))

    def _permuted_back(self, name: str, dims: Sequence[int]) -> str | None:
        """permute(permute(a) + permute(b)) -> a + b, of sums over rows, as a weight's second derivative is.
        None of others."""
        node, value = self._made.get(name), self.values[name]
        if node is None or value.kind != "sum":
            return None
        if node.op == "permute":
            first = node.attr("dims")
            return node.inputs[0] if [first[d] for d in dims] == [*range(len(dims))] else None
        if node.op != "add" or any(self.values[n].shape != value.shape for n in node.inputs):
            return None
        terms = [self._permuted_back(n, dims) for n in node.inputs]
        if any(n is None for n in terms):
            return None
        return self.emit("add", [n for n in terms if n], [value.shape[d] for d in dims], value.dtype)

    def pointwise(self, op: str, operands: Sequence[Any], dtype: str | None = None) -> Ref:
        """A pointwise op over traced tensors and numbers, with torch's broadcasting."""
        out_dtype = self.meta_dtype()
        bdim, times, own = self.shown()
        fold, lead = self.folded([o for o in operands if isinstance(o, Ref)], times)
        compute = dtype or out_dtype
        names, shape = [self.operand(o, compute, bdim) for o in operands], lead + own
        if broadcast([self.values[name].shape for name in names]) != shape:  # a step of a wider call
            names[0] = self.emit("expand", (names[0],), shape, compute)
        return self.result(self.emit(op, names, shape, out_dtype), bdim, fold)

    def operand(self, operand: Any, dtype: str, bdim: int | None) -> str:
        """A traced tensor, or a number, of this dtype, whose dimensions line up with those of the result."""
        if isinstance(operand, Ref):
            return self.aligned(self.cast(operand, dtype), len(self.meta.shape), bdim)
        return self.full(operand, (), dtype)

    def folded(self, refs: Sequence[Ref], times: int) -> tuple[int, tuple[int, ...]]:
        """How rows of a row are merged into the batch in all operands of a result of `times` rows a row, and
        how many there are."""
        found = {(r.fold, self.values[r.name].shape[: r.fold]) for r in refs if r.bdim is not None}
        if len(found) > 1 or (times != 1 and found == {(0, ())}):
            raise Unsupported("rows of different kinds meet in one op", line=self.line)
        return next(iter(found), (0, ()))

    def is_alike(self, ref: Ref) -> bool:
        """True if what is merged into the batch is the same for all rows, as a constant is."""
        return self._is_alike(ref.name, ref.fold)

    def _is_alike(self, name: str, fold: int) -> bool:
        if (name, fold) not in self._alike:
            made, rank = self._made.get(name), len(self.values[name].shape)
            alike = made is not None and (
                made.op in ("full", "expand") or OPS[made.op].stage is Stage.POINTWISE
            )
            for source in made.inputs if made is not None and alike else ():
                value = self.values[source]
                if value.kind == "row":
                    alike &= len(value.shape) == rank and self._is_alike(source, fold)
                else:  # lined up from the right
                    alike &= all(n == 1 for n in value.shape[: max(fold - rank + len(value.shape), 0)])
            self._alike[name, fold] = alike
        return self._alike[name, fold]

    def as_folded(self, arguments: Sequence[Any]) -> list[Any]:
        """Arguments, of which those that are the same in all rows of a row are merged as the others are."""
        refs = [o for arg in arguments for o in (arg if isinstance(arg, list) else (arg,))]
        folded = [ref for ref in refs if isinstance(ref, Ref) and ref.fold]
        like = next((ref for ref in folded if not self.is_alike(ref)), None) if len(folded) > 1 else None
        if like is None:
            return list(arguments)
        lead = self.values[like.name].shape[: like.fold]

        def merged(arg: Any) -> Any:
            if isinstance(arg, list):
                return [merged(one) for one in arg]
            if not isinstance(arg, Ref) or not arg.fold or not self.is_alike(arg):
                return arg
            shape = self.values[arg.name].shape
            if prod(shape[: arg.fold]) != prod(lead):
                return arg
            return Ref(self.reshape(arg.name, (*lead, *shape[arg.fold :])), arg.bdim, like.fold)

        return [merged(arg) for arg in arguments]

    def constant(self, number: Any) -> Ref:
        """A number everywhere in the result at hand."""
        bdim, times, shape = self.shown()
        kind = "shared" if bdim is None else "row"
        if times == 1:
            return self.result(self.full(number, shape, self.meta_dtype(), kind), bdim)
        if bdim != 0:
            raise Unsupported("a constant on folded rows", line=self.line)
        return self.result(self.full(number, (times, *shape), self.meta_dtype(), kind), 0, 1)

    def widened(self, operand: Any) -> Ref:
        """A traced tensor or a number as large as the result at hand."""
        if not isinstance(operand, Ref):
            return self.constant(operand)
        (bdim, _, shape), dtype = self.shown(), self.meta_dtype()
        ref = self.cast(operand, dtype)
        name = self.aligned(ref, len(self.meta.shape), bdim)
        whole = (*self.values[name].shape[: ref.fold], *shape)
        kind: Kind = "row" if bdim is not None else self.values[name].kind
        if self.values[name].shape != whole or (kind == "row") != (self.values[name].kind == "row"):
            name = self.emit("expand", (name,), whole, dtype, kind)
        return Ref(name, bdim, ref.fold)

    def aligned(self, ref: Ref, ndim: int, bdim: int | None) -> str:
        """An operand whose dimensions line up with those of the result once the batch is left out."""
        value = self.values[ref.name]
        if ref.bdim is None:
            if bdim is None:
                return ref.name
            at = bdim - (ndim - len(value.shape))
            if at < 0:
                return ref.name
            if value.shape[at] != 1:
                raise Unsupported(
                    "a shared value is as long as the batch: the step names rows", line=self.line
                )
            return self.reshape(ref.name, value.shape[:at] + value.shape[at + 1 :])
        own = self.rank(ref)
        if bdim is None or ref.bdim + ndim - own != bdim:
            raise Unsupported("rows meet with their batch in different dimensions", line=self.line)
        if ref.fold and ndim > own:  # torch would line them up from the right, past those that were folded
            shape = value.shape[: ref.fold] + (1,) * (ndim - own) + value.shape[ref.fold :]
            return self.reshape(ref.name, shape)
        return ref.name


def _is_number(number: Any) -> bool:
    return isinstance(number, (bool, int, float, complex))
