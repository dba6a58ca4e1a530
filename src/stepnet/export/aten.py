"""Traced aten calls as nodes of a graph: a table with a row for each call, and what its rows work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode
from torch.fx import map_arg
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from stepnet.errors import IRError
from stepnet.user_line import Line

from .emit import Emit
from .graph import Value
from .size_expressions import in_sizes
from .trace import AnyNumber, Numbers, Program, line_of, sizes_of

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat)
_TAKEN = ("aten.item.default", "aten._local_scalar_dense.default")
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the meaning of aten calls, named `op` or `op.overload`."""

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        return fn

    return register


def find(node: FxNode) -> Rule | None:
    """The row of the table for a traced call."""
    name = str(node.target).removeprefix("aten.")
    return RULES.get(name) or RULES.get(name.rpartition(".")[0])


def is_size(node: Any) -> bool:
    """Whether a traced value is a size, not a tensor."""
    return isinstance(node, FxNode) and isinstance(node.meta.get("val"), _NUMBERS)


def _draws(node: FxNode) -> bool:
    """Whether a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_known(node: FxNode) -> bool:
    """Whether a call can be written as it is."""
    name = str(node.target)
    return "getitem" in name or name.startswith("stepnet.") or is_size(node) or find(node) is not None


def _ones(source: Sequence[Any], target: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The axes of one element that a shape loses, and those of another that it gains to become that; none if
    more is changed."""
    dropped, added, i, j = [], [], 0, 0
    while i < len(source) or j < len(target):
        if i < len(source) and j < len(target) and str(source[i]) == str(target[j]):
            i, j = i + 1, j + 1
        elif i < len(source) and str(source[i]) == "1":
            dropped.append(i)
            i += 1
        elif j < len(target) and str(target[j]) == "1":
            added.append(j)
            j += 1
        else:
            return [], []
    return dropped, added


class AtenNet:
    """The nodes of one traced graph.

    A tensor whose first dimension counts the rows of ragged sequences is written as [batch, time, ...]. If
    its sequences are those of sequences, they are in one batch.

    Args:
        emit: the graph that they are added to.
        where: what is written, for errors.

    Attributes:
        ragged: by symbol of a number of rows, the lengths [batch] of the sequences.
        grids: by symbol of a number of sequences of sequences, or of their rows, the lengths [batch, time].
    """

    def __init__(self, emit: Emit, where: str) -> None:
        self.emit = emit
        self.where = where
        self.ragged: dict[str, Value] = {}
        self.grids: dict[str, Value] = {}
        self.env: dict[FxNode, Any] = {}
        self.sources: dict[str, tuple[Value, int]] = {}  # where the size that a symbol stands for is found
        self.numbers: Numbers = {}  # that stand for any number of sequences
        self.following: Numbers = {}  # that follow from those in the program itself, not in the steps in it
        self.not_open: set[int] = set()  # sizes of inputs that became fixed without anyone asking for it
        self.fixed: Mapping[int, Line] = {}  # by which lines of the user's code, where it was one of these
        self.node: FxNode | None = None
        self._sizes: dict[object, Value] = {}

    # running

    def run(self, program: Program, inputs: Sequence[Value]) -> list[Value]:
        """The nodes of a program; its results."""
        for node, tensor in program.constants.items():
            self.give(node, tensor.detach() if tensor.is_meta else tensor.detach().cpu())
        for node, value in zip(program.inputs, inputs, strict=True):
            self.give(node, value)
        self._run(program.nodes, program.outputs)
        return [self.out(node) for node in program.outputs]

    def give(self, node: FxNode, value: Any) -> None:
        """The value of an input of the graph; sizes of an Value become known."""
        self.env[node] = value
        if isinstance(value, Value):
            lead = int(self.is_ragged(node))
            for i, size in enumerate(self.shape(node)):
                text = str(size)
                if not isinstance(size, int) and text.isidentifier() and text not in self.ragged:
                    self.sources.setdefault(text, (value, i + lead))

    def _run(self, nodes: Sequence[FxNode], outputs: Sequence[FxNode]) -> None:
        """Make the nodes that outputs need."""
        live = set(outputs)
        for node in reversed(nodes):
            if node in live:
                live.update(node.all_input_nodes)
        for node in nodes:
            if node not in live or node in self.env:
                continue
            self.node = node
            if not is_size(node):
                self.env[node] = self._made(node)
                self._note_sizes(node)
            elif str(node.target) in _TAKEN:
                self._note_number(node)

    def _note_number(self, node: FxNode) -> None:
        """Let a number that Python took from a tensor be the one that the tensor holds."""
        number: Any = node.meta["val"]
        if isinstance(number, (torch.SymInt, torch.SymFloat)):
            dtype = torch.int64 if isinstance(number, torch.SymInt) else torch.float64
            value = self.emit.reshape(self.out(node.args[0], dtype), [1])
            self._sizes.setdefault(str(number.node.expr), value)

    def _note_sizes(self, node: FxNode) -> None:
        """Let sizes be found that nothing but this result says."""
        made, value = self.env[node], node.meta.get("val")
        if isinstance(made, Value) and isinstance(value, Tensor):
            lead = int(self.is_ragged(node))
            for axis, size in enumerate(self.shape(node)):
                if isinstance(size, int) or str(size) in self.ragged:
                    continue
                if isinstance(size, AnyNumber) or free_unbacked_symbols(size) == {size.node.expr}:
                    self.sources.setdefault(str(size), (made, axis + lead))

    def _made(self, node: FxNode) -> Any:
        if getattr(node.target, "__name__", "") == "getitem":
            source: Any = node.args[0]
            return self.env[source][node.args[1]]
        folded = self._folded(node)
        if folded is not None:
            return folded
        found = find(node)
        made = NotImplemented if found is None else found(self, *node.args, **node.kwargs)
        if made is NotImplemented:
            raise self.refuse("it draws random numbers, which a file does not" if _draws(node) else None)
        return made

    def _folded(self, node: FxNode) -> Any:
        """The result of a call on constants alone."""
        if not all(isinstance(self.env.get(n), Tensor) for n in node.all_input_nodes):
            return None
        if str(node.target).startswith("stepnet.") or _draws(node):
            return None
        meta = node.meta.get("val")
        if isinstance(meta, Tensor) and any(isinstance(size, AnyNumber) for size in self.shape(node)):
            return None
        with torch.no_grad():
            args = map_arg(node.args, lambda n: self.env[n])
            kwargs = map_arg(node.kwargs, lambda n: self.env[n])
            if "device" in kwargs:  # where the module is; weights are on the CPU here
                kwargs = {**kwargs, "device": torch.device("cpu")}
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    def refuse(self, why: str | None = None) -> IRError:
        """The error for the call at hand, with the line of the user's code that it came from."""
        assert self.node is not None
        line, op, target = line_of(self.node), str(self.node.target), self.emit.graph.target
        none = f" has no {target.name} {target.unit} here" if why is None else ""
        why = why or target.refused.get(self.name)
        return IRError(
            f"{self.where} cannot be written: '{op}'" + ("" if line is None else f" ({line})")
            + none + ("" if why is None else f": {why}"),
            got=op,
            expected=f"calls that have an {target.name} {target.unit}",
            remedy="write this part with other torch calls, or leave it out of the saved module",
        )  # fmt: skip

    # values

    @property
    def name(self) -> str:
        """The name of the call at hand."""
        assert self.node is not None
        return str(self.node.target).removeprefix("aten.").rpartition(".")[0]

    @property
    def meta(self) -> Any:
        """What the trace knows of the result at hand."""
        assert self.node is not None
        return self.node.meta["val"]

    def is_ragged(self, node: Any) -> bool:
        """Whether a tensor holds the rows of ragged sequences."""
        return str((self.shape(node) or [None])[0]) in self.ragged

    def refuse_rows(self, nodes: Sequence[Any], where: str) -> None:
        """Refuse rows of ragged sequences in the body of a loop, which knows nothing of their padding."""
        if any(map(self.is_ragged, nodes)):
            raise IRError(
                f"{where} cannot be written: rows of ragged sequences go into it as a tensor",
                got="x.values, or what is computed of it",
                expected="a LoDTensor as x of recurrent",
                remedy="recurrent over the LoDTensor; sequence_pool and the like outside of the loop",
            )

    def is_constant(self, value: Any) -> bool:
        """Whether a value is known when the file is written."""
        return not isinstance(value, FxNode) or isinstance(self.env.get(value), Tensor)

    def constant(self, value: Any) -> Tensor:
        """The tensor of a constant."""
        found = self.env.get(value)
        if not isinstance(found, Tensor):
            raise self.refuse("it takes a weight that is computed")
        return found

    def dtype(self, value: Any = None) -> torch.dtype:
        """The dtype of a traced tensor; None: of the result at hand."""
        node: Any = self.node if value is None else value
        return node.meta["val"].dtype

    def shape(self, value: Any = None) -> list[Any]:
        """The traced shape of a tensor, rows of ragged sequences as one dimension."""
        node: Any = self.node if value is None else value
        return self.open_sizes(node.meta["val"])

    def open_sizes(self, value: Tensor) -> list[Any]:
        """The shape of a traced tensor, as `shape`."""
        return [self.open_size(size) for size in sizes_of(value)]

    def open_size(self, size: Any) -> Any:
        """A size, with what stands for any number in the place of what it was in the trace."""
        if not isinstance(size, int):
            return size
        return self.numbers.get(size) or self.following.get(size, size)

    def open_shape(self, value: Any) -> list[int]:
        """The shape of a traced tensor, -1 where it is open."""
        return [size if isinstance(size, int) else -1 for size in self.shape(value)]

    def out(self, value: Any, dtype: torch.dtype | None = None) -> Value:
        """A value of the graph, in a dtype."""
        if not isinstance(value, FxNode):
            return self.emit.number(value, dtype or self.dtype())
        if is_size(value):
            return self.number(value.meta["val"], dtype)
        made = self.env[value]
        if isinstance(made, Tensor):
            return self.emit.tensor(made if dtype is None or made.dtype == dtype else made.to(dtype))
        return made if dtype is None else self.emit.cast(made, dtype)

    def number(self, size: Any, dtype: torch.dtype | None = None) -> Value:
        """A number that follows from sizes as a scalar, in a dtype."""
        found = self.emit.squeeze(self.size(size), 0)
        return found if dtype is None else self.emit.cast(found, dtype)

    def flat(self, value: Any) -> Value:
        """What has an entry for each sequence: for all sequences of sequences in one batch."""
        out = self.out(value)
        return join_lead(self.emit, out) if self.is_ragged(value) else out

    def table(self, value: Value, like: Any) -> Value:
        """What has an entry for each sequence as `like`, a traced tensor, is written."""
        grid = self.grids.get(str((self.shape(like) or [None])[0]))
        return value if grid is None else split_lead(self.emit, value, grid)

    def axis(self, value: Any, dim: int) -> int:
        """A dimension of a traced tensor as one of its value in the graph."""
        rank = len(self.shape(value))
        at = dim % max(rank, 1)
        if not self.is_ragged(value):
            return at
        if at == 0:
            raise self.refuse("it mixes rows of ragged sequences")
        return at + 1

    # sizes

    def size(self, value: Any) -> Value:
        """A size as an int64 list of one; what follows from sizes and is not whole, as a float64 one."""
        if isinstance(value, FxNode):
            value = value.meta["val"]
        if isinstance(value, int):
            return self.emit.ints([value])
        if isinstance(value, float):
            return self.emit.tensor(torch.tensor([value], dtype=torch.float64))
        return self._expression(value.node.expr)

    def count(self, size: Any) -> int | Value:
        """A size as a number, or as a scalar of the graph."""
        return size if isinstance(size, int) else self.emit.squeeze(self.size(size), 0)

    def _expression(self, expr: Any) -> Value:
        key = str(expr)
        if key not in self._sizes:
            self._sizes[key] = self._computed(expr)
        return self._sizes[key]

    def _computed(self, expr: Any) -> Value:
        if expr.is_Integer:
            return self.emit.ints([int(expr)])
        if expr.is_number:
            return self.emit.tensor(torch.tensor([float(expr)], dtype=torch.float64))
        if expr.is_Symbol:
            if str(expr) not in self.sources:
                what = "the number of rows of ragged sequences" if self.ragged else "a size that numbers say"
                if expr in {number.node.expr for number in self.following.values()}:
                    what = "a number that follows from that of sequences"
                raise self.refuse(f"it computes with {what}")
            return self.emit.size(*self.sources[str(expr)])
        made = in_sizes(self.emit, expr, self._expression)
        if made is None:
            raise self.refuse(f"it computes the size {expr}")
        return made

    def sizes(self, shape: Sequence[Any]) -> Value:
        """A shape as an int64 list."""
        values = [s.meta["val"] if isinstance(s, FxNode) else s for s in shape]
        if all(isinstance(s, int) for s in values):
            return self.emit.ints(values)
        if values and str(values[0]) in self.grids:
            lead = self.emit.shape(self.grids[str(values[0])])
            return self.emit.concat([lead, self.sizes(values[1:])], 0) if values[1:] else lead
        return self.emit.concat([self.size(s) for s in values], 0)

    def reshape(self, value: Any, target: Sequence[Any]) -> Value:
        """A tensor in another shape, given as the trace knows it."""
        source, x = self.shape(value), self.out(value)
        if self.is_ragged(value):
            if not target or str(target[0]) != str(source[0]):
                raise self.refuse("it mixes rows of ragged sequences")
            source, target, pattern = source[1:], target[1:], [0, 0]
        else:
            pattern = []
            dropped, added = _ones(source, target)
            if dropped or added:  # whatever the other sizes are: a body may run on other rows than here
                x = self.emit.squeeze(x, *dropped) if dropped else x
                return self.emit.unsqueeze(x, *added) if added else x
        lead, free = len(pattern), 0
        for i, size in enumerate(target):
            if isinstance(size, int):
                pattern.append(size)
            elif not lead and i < len(source) and str(source[i]) == str(size):
                pattern.append(0)
            else:
                free += 1
                pattern.append(-1)
        if free <= 1:
            if not pattern:
                return self.emit.reshape_to(x, self.emit.ints([]))
            return self.emit.reshape(x, pattern)
        return self.emit.reshape_to(x, self.sizes(target))

    def broadcast(self, value: Any, target: Sequence[Any]) -> Value:
        """A tensor repeated to a shape, given as the trace knows it."""
        source, x = self.shape(value), self.out(value)
        if self.is_ragged(value) or (target and str(target[0]) in self.ragged):
            if not self.is_ragged(value):
                raise self.refuse("it makes rows of ragged sequences from something else")
            return self.emit.broadcast(x, self.sizes([1, 1, *target[1:]]))
        same = [str(a) == str(b) for a, b in zip(source[::-1], list(target)[::-1], strict=False)][::-1]
        if len(source) == len(target) and all(same):
            return x
        ones = len(target) - len(source)
        wanted = [t if i < ones or not same[i - ones] else 1 for i, t in enumerate(target)]
        return self.emit.broadcast(x, self.sizes(wanted))


def join_lead(emit: Emit, x: Value) -> Value:
    """[batch, time, ...] as [batch * time, ...]."""
    shape = emit.shape(x)
    count = emit.call("mul", emit.slice(shape, 0, 0, 1), emit.slice(shape, 0, 1, 2))
    return emit.reshape_to(x, emit.concat([count, emit.slice(shape, 0, 2)], 0))


def split_lead(emit: Emit, x: Value, grid: Value) -> Value:
    """[batch * time, ...] as [batch, time, ...], as long as a grid."""
    return emit.reshape_to(x, emit.concat([emit.shape(grid), emit.slice(emit.shape(x), 0, 1)], 0))
