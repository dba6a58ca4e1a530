"""When does a torch function treat every row alike? The kinds of rule, and the checks they make.

A rule looks at one call and raises RowMixError unless row i of the result depends on row i of the operands
alone, and sits at place i. The table of who obeys which rule is row_functions.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import resolve_name

from stepnet.data.in_graph import CAN_CAPTURE, differ, leave_to_python, tell_products_apart
from stepnet.errors import LoDError, RowMixError

REQUIRED: Any = object()
ALL = 1 << 30  # operands with rows, where every operand has them
JOINS = (torch.cat, torch.concat, torch.concatenate)  # who gives them other batches means to join batches


class FunctionCall:
    """One call of a torch function with LoDTensors among its arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kind: type[Any],
        remedy: str = "",
    ) -> None:
        # The rules go by the order of operands, so the first one comes first however it was spelled.
        first = {"input": kwargs["input"]} if "input" in kwargs else {}
        self.function, self.args, self.kwargs = function, args, {**first, **kwargs}
        self.kind = kind  # the class of LoDTensor
        self.remedy = remedy
        self.ragged: list[Any] = [a for a in self.operands() if isinstance(a, kind)]

    def operands(self) -> Iterator[Any]:
        """Tensors and LoDTensors of the call in order, those in lists too."""
        for given in (*self.args, *self.kwargs.values()):
            if isinstance(given, (self.kind, Tensor)):
                yield given
            elif isinstance(given, (list, tuple)):
                yield from (a for a in given if isinstance(a, (self.kind, Tensor)))

    def on_values(self) -> Any:
        """Call the function with values in the place of LoDTensors."""
        kwargs = {name: self._bare(given) for name, given in self.kwargs.items()}
        return self.function(*map(self._bare, self.args), **kwargs)

    def _bare(self, given: Any) -> Any:
        if isinstance(given, self.kind):
            return given.values
        if type(given) in (list, tuple):
            return type(given)(a.values if isinstance(a, self.kind) else a for a in given)
        return given

    @property
    def name(self) -> str:
        """The function as a user writes it: ``torch.sum``."""
        short = getattr(self.function, "__name__", "")
        if getattr(torch, short, None) is self.function:  # which has other names, too
            return f"torch.{short}"
        found = resolve_name(self.function) or getattr(self.function, "__qualname__", repr(self.function))
        return found.replace("_TensorBase", "Tensor")

    @property
    def rows(self) -> int:
        return self.ragged[0].structure.rows

    @property
    def shape(self) -> Sequence[int]:
        return self.ragged[0].values.shape

    @property
    def ndim(self) -> int:
        return self.ragged[0].values.ndim

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """The argument at place ``at``, or called ``name``."""
        if len(self.args) > at:
            return self.args[at]
        return self.kwargs.get(name, default)

    def sizes(self, at: int, name: str) -> tuple[Any, ...]:
        """A list of sizes, given as one list or spelled out as in ``x.reshape(9, 2)``."""
        given = self.argument(at, name, ())
        return tuple(given) if isinstance(given, (list, tuple)) else self.args[at:]

    def refuse(self, why: str, *, expected: str | None = None, remedy: str | None = None) -> NoReturn:
        """Raise the RowMixError of this call."""
        raise RowMixError(
            f"{self.name} would mix rows of a LoDTensor",
            got=f"{why}; values have shape {list(self.shape)}, dimension 0 is rows",
            expected=expected,
            remedy=remedy or self.remedy,
        )


Rule = Callable[[FunctionCall], None]


def check_same_lod(call: FunctionCall) -> None:
    """All LoDTensors of a call must have one LoD, and as many rows as it says."""
    first = call.ragged[0]
    for other in call.ragged[1:]:
        if other.structure is not first.structure and other.structure != first.structure:
            raise LoDError(
                f"{call.name}: two LoDTensors must have the same LoD",
                got=f"lengths {first.structure.show()} and {other.structure.show()}; "
                f"first difference at {first.structure.difference(other.structure)}",
                remedy="stepnet.sequence_expand(t, x) repeats one entry per sequence to the rows of x"
                + (f"; {call.remedy}" if call.function in JOINS else ""),
            )
    for x in call.ragged:
        if x.values.ndim == 0 or differ(x.values.shape[0], x.structure.rows):
            raise LoDError(
                f"{call.name}: the values of a LoDTensor no longer fit its LoD",
                got=f"values of shape {list(x.values.shape)} for {x.structure.rows} rows",
                remedy="keep dimension 0 in tree_map; give vmap in_dims and out_dims other than 0",
            )


def pointwise(call: FunctionCall) -> None:
    """Operands broadcast, but never along dimension 0.

    LoDTensors must have equally many dimensions. A plain tensor broadcasts over features when it has fewer
    dimensions, and must have one row or as many as the LoDTensor when it has as many.
    """
    _one_ndim(call)
    for plain in call.operands():
        if isinstance(plain, Tensor):
            _meets_features(call, plain)


def _meets_features(call: FunctionCall, plain: Tensor) -> None:
    """A plain tensor broadcasts, but not along dimension 0 of the values."""
    if plain.ndim > call.ndim:
        call.refuse(
            f"a plain tensor of shape {list(plain.shape)} has more dimensions than the values",
            remedy="give it at most as many dimensions as the values",
        )
    if plain.ndim == call.ndim and plain.shape[0] not in (1, call.rows):
        call.refuse(
            f"a plain tensor of shape {list(plain.shape)}",
            expected=f"1 or {call.rows} in its dimension 0, or fewer dimensions (then it meets features)",
            remedy="stepnet.sequence_expand(t, x) repeats one entry per sequence to the rows of x",
        )


def in_place(call: FunctionCall) -> None:
    """Pointwise, and what is written to is a LoDTensor."""
    pointwise(call)
    writes(call)


def writes(call: FunctionCall) -> None:
    """What is written to, the first operand, is a LoDTensor."""
    if not isinstance(next(call.operands()), call.kind):
        call.refuse("writes rows into a plain tensor", remedy="write to a LoDTensor, or use x.values")


def by_first(call: FunctionCall) -> None:
    """The first operand, whose numbers the result has, is a LoDTensor."""
    if not isinstance(next(call.operands()), call.kind):
        call.refuse("the numbers are those of a plain tensor", remedy="give it x.values")


def all_of(*several: Rule) -> Rule:
    """Every one of these rules."""

    def rule(call: FunctionCall) -> None:
        for one in several:
            one(call)

    return rule


def feature_dims(
    at: int,
    name: str = "dim",
    default: Any = REQUIRED,
    *,
    new: int = 0,
    by_rows: int = 1,
    shared: int = 0,
    also: str = "",
) -> Rule:
    """The dims named by an argument must not hold dimension 0; without that argument the call is refused.

    ``new``: dims are counted after this many are added (unsqueeze, stack). ``by_rows`` and
    ``shared``: see `_check_operands`. ``also``: the name of a second such argument, one place later, whose
    default is the dim after.
    """

    def rule(call: FunctionCall) -> None:
        _check_operands(call, by_rows, shared)
        asked = [(at, name, default)]
        if also:
            asked.append((at + 1, also, default if default is REQUIRED else default + 1))
        for place, key, fallback in asked:
            given = call.argument(place, key, call.kwargs.get("axis", fallback))
            dims = call.args[place:] if len(call.args) > place + 1 and name == "dims" else given
            for dim in _dims(call, dims, key):
                _feature_dim(call, dim, key, call.ndim + new)

    return rule


def reduces(call: FunctionCall) -> None:
    """``max`` and its like: pointwise with a second tensor, a reduction with a dim."""
    second = call.argument(1, "other")
    if isinstance(second, (call.kind, Tensor)):
        pointwise(call)
    else:
        feature_dims(1)(call)


def leading(least: int, exactly: bool = False, *, by_rows: int = 1) -> Rule:
    """Dimension 0 of the first operand is a batch, if it has ``least`` dimensions (or exactly so many).

    The first ``by_rows`` tensors of the call have rows; the others are shared by all rows (weights).
    """

    def rule(call: FunctionCall) -> None:
        _check_operands(call, by_rows)
        main = next(call.operands())
        ndim = main.ndim
        if ndim < least or (exactly and ndim != least):
            call.refuse(
                f"values of {ndim} dimensions",
                expected=f"{'exactly' if exactly else 'at least'} {least}, so that dimension 0 is the batch",
            )

    return rule


def alone(least: int) -> Rule:
    """Dimension 0 of the only tensor of the call is a batch, if it has ``least`` dimensions."""
    first = leading(least)

    def rule(call: FunctionCall) -> None:
        first(call)
        if len(list(call.operands())) > 1:
            call.refuse("a second tensor", expected="one")

    return rule


def batches(least: int, by_rows: int = ALL) -> Rule:
    """Dimension 0 of the first ``by_rows`` operands is one batch; they have ``least`` dimensions or more.
    Other plain tensors broadcast over features."""

    def rule(call: FunctionCall) -> None:
        _check_operands(call, by_rows)
        for i, operand in enumerate(call.operands()):
            if i >= by_rows:
                _meets_features(call, operand)
            elif operand.ndim < least or operand.ndim != call.ndim:
                call.refuse(
                    f"an operand of {operand.ndim} dimensions",
                    expected=f"{least} or more, and equally many of all, so that dimension 0 is the batch",
                )

    return rule


def _terms(equation: Any, ndims: Sequence[int]) -> list[str]:
    """The letters of each operand and of the result, written out: '...' stands for letters of its own, and a
    result that is left away has those that occur once, in alphabetical order."""
    inputs, arrow, out = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("",) * 3
    terms = inputs.split(",")
    covered = [ndim + 3 - len(term) for term, ndim in zip(terms, ndims, strict=False) if "..." in term]
    if not arrow:
        out = "..." * ("..." in inputs) + "".join(
            sorted(c for c in inputs if c.isalpha() and inputs.count(c) == 1)
        )
    dots = "".join(chr(0x100 + i) for i in range(max(covered, default=0)))  # aligned by the last of them
    each = iter(covered)
    return [
        *(t.replace("...", dots[len(dots) - next(each) :]) if "..." in t else t for t in terms),
        out.replace("...", dots),
    ]


def einsum(call: FunctionCall) -> None:
    """Row-wise where one letter counts the rows of every LoDTensor and of the result, always as the first."""
    equation = call.argument(0, "equation")
    given = list(call.operands())
    *terms, out = _terms(equation, [operand.ndim for operand in given])
    if len(terms) != len(given):
        call.refuse(f"equation {equation!r}", expected="a term for each operand, of letters and '...'")
    row = {term[:1] for term, operand in zip(terms, given, strict=True) if isinstance(operand, call.kind)}
    first = "".join(row)
    if row != {out[:1]} or not first or any(first in term[1:] for term in (*terms, out)):
        call.refuse(
            f"equation {equation!r}", expected="one first letter of every LoDTensor and of the result"
        )
    for term, operand in zip(terms, given, strict=True):
        if term.startswith(first) and operand.shape[0] != call.rows:
            call.refuse(f"a plain tensor of shape {list(operand.shape)}", expected=f"{call.rows} rows")


def matmul(call: FunctionCall) -> None:
    """Rows are the free dimension of the left operand, or a batch dimension of either."""
    a, b = call.operands()
    if call.function is Tensor.__rmatmul__:
        a, b = b, a
    elif torch.compiler.is_dynamo_compiling() and not isinstance(a, call.kind):
        if not CAN_CAPTURE:
            leave_to_python("stepnet: older torch takes x @ w for w @ x")
        tell_products_apart()
    both = isinstance(a, call.kind) and isinstance(b, call.kind)
    na, nb = a.ndim, b.ndim
    if both:
        if na != nb or na < 3:
            call.refuse(f"values of {na} and {nb} dimensions", expected="equally many, at least 3")
        return
    plain, rows_in = (b, na) if isinstance(a, call.kind) else (a, nb)
    free = isinstance(a, call.kind) and na == 2 and nb <= 2
    if not (free or rows_in >= 3):
        call.refuse(
            f"operands of {na} and {nb} dimensions: rows are summed over",
            expected="values [rows, features] on the left, or rows as a batch dimension",
        )
    if plain.ndim > rows_in or (plain.ndim == rows_in >= 3 and plain.shape[0] not in (1, call.rows)):
        call.refuse(f"a plain tensor of shape {list(plain.shape)} brings a batch of its own")


def added(call: FunctionCall) -> None:
    """Row-wise for a product of rows by what all rows share, and a term that meets its rows."""
    term, rows, shared = call.operands()
    if isinstance(shared, call.kind) or rows.shape[0] != call.rows:
        call.refuse("a product in which rows are summed over", expected="rows by a matrix or a vector")
    if isinstance(term, call.kind) and term.ndim != shared.ndim:
        call.refuse(f"a term of {term.ndim} dimensions: its rows meet features", expected=f"{shared.ndim}")
    if term.ndim > shared.ndim or (term.ndim == shared.ndim and term.shape[0] not in (1, call.rows)):
        call.refuse(f"a term of shape {list(term.shape)}", expected=f"1 or {call.rows} in its dimension 0")


def loss(rule: Rule) -> Rule:
    """A loss per row: ``reduction='none'``, and then another rule."""

    def checked(call: FunctionCall) -> None:
        reduction = call.kwargs.get("reduction", "mean")
        if reduction != "none" or any(call.kwargs.get(k) is not None for k in ("reduce", "size_average")):
            call.refuse(f"reduction='{reduction}'")
        rule(call)

    return checked


def keeps_rows(name: str, how: str) -> Rule:
    """A list of sizes that leaves dimension 0 alone: ``reshape``, ``expand``, ``repeat``, ``tile``,
    ``permute``."""

    def rule(call: FunctionCall) -> None:
        _check_operands(call, 1)
        sizes = call.sizes(1, name)
        rows, features = call.rows, call.shape[1:]
        first = sizes[0] if sizes else None
        fits = {
            # -1 means all that is left, which is the rows only if the other sizes hold just the features.
            "reshape": first == rows or (first == -1 and prod(sizes[1:]) == prod(features)),
            "expand": len(sizes) == call.ndim and first in (-1, rows),
            "repeat": len(sizes) == call.ndim and first == 1,
            "tile": len(sizes) < call.ndim or (len(sizes) == call.ndim and first == 1),
            "permute": first in (0, -call.ndim),
        }[how]
        if not fits:
            call.refuse(f"sizes {list(sizes)}", expected="dimension 0 left as it is")

    return rule


def last_dims(name: str, per_dim: int = 1) -> Rule:
    """An argument whose length says how many of the last dims are meant: layer_norm, pad."""

    def rule(call: FunctionCall) -> None:
        _check_operands(call, 1)
        given = call.argument(1, name, ())
        if len(given) // per_dim >= call.ndim:
            call.refuse(f"{name} {list(given)} reaches dimension 0")

    return rule


def linear(call: FunctionCall) -> None:
    """Row-wise with a weight and a bias that all rows share."""
    leading(2)(call)
    bias = call.argument(2, "bias")
    if bias is not None and bias.ndim > 1:
        call.refuse(f"a bias of shape {list(bias.shape)}", remedy="add it to the result")


def batch_norm(call: FunctionCall) -> None:
    """Row-wise in evaluation, where the statistics are fixed."""
    leading(2)(call)
    if call.argument(5, "training", False):
        call.refuse("training=True takes the statistics of all rows")


def instance_norm(call: FunctionCall) -> None:
    """Row-wise, where it does not also keep statistics of all rows."""
    leading(3)(call)
    if call.argument(1, "running_mean") is not None and call.argument(5, "use_input_stats", True):
        call.refuse("running statistics are taken from all rows")


def quantile(call: FunctionCall) -> None:
    """Row-wise for one quantile; several would be a dimension before the rows."""
    feature_dims(2)(call)
    q = call.argument(1, "q")
    if isinstance(q, Tensor) and q.ndim:
        call.refuse(f"q of shape {list(q.shape)}", expected="one number")


def one_hot(call: FunctionCall) -> None:
    """Row-wise once the number of classes does not depend on the rows."""
    leading(1)(call)
    if call.argument(1, "num_classes", -1) < 0:
        call.refuse("num_classes=-1 is found from all rows", remedy="give num_classes")


def where(call: FunctionCall) -> None:
    """Pointwise with three operands; with one it lists places."""
    if len(call.args) + len(call.kwargs) < 3:
        call.refuse("only a condition: the result has a row per place, not per row")
    pointwise(call)


def _one_ndim(call: FunctionCall) -> None:
    for x in call.ragged:
        if x.values.ndim != call.ndim:
            call.refuse(
                f"LoDTensors with values of {call.ndim} and {x.values.ndim} dimensions",
                expected="equally many, so that rows meet rows",
                remedy="x.unsqueeze(-1) adds a feature dimension",
            )


def _check_operands(call: FunctionCall, by_rows: int, shared: int = 0) -> None:
    """The first ``by_rows`` operands have rows, but for the one at ``shared``, if that is not 0; the others
    must not be LoDTensors."""
    for i, operand in enumerate(call.operands()):
        is_ragged = isinstance(operand, call.kind)
        has_rows = i < by_rows and not (i and i == shared)
        if not has_rows and is_ragged:
            call.refuse("a LoDTensor in the place of a tensor that all rows share")
        if has_rows and not is_ragged and (operand.ndim == 0 or operand.shape[0] != call.rows):
            call.refuse(
                f"a plain tensor of shape {list(operand.shape)}",
                expected=f"{call.rows} rows, as in the values",
            )


def _dims(call: FunctionCall, given: Any, name: str) -> list[int]:
    if given is REQUIRED or given is None or isinstance(given, bool):
        call.refuse(
            f"no {name}: it acts on all dimensions, or on dimension 0", expected=_feature_range(call.ndim)
        )
    dims = list(given) if isinstance(given, (list, tuple)) else [given]
    if not dims:
        call.refuse(f"{name}={given!r} means all dimensions", expected=_feature_range(call.ndim))
    return [operator.index(dim) for dim in dims]


def _feature_dim(call: FunctionCall, dim: int, name: str, ndim: int) -> None:
    if dim % ndim == 0 and -ndim <= dim < ndim:
        call.refuse(f"{name}={dim}", expected=_feature_range(ndim))


def _feature_range(ndim: int) -> str:
    if ndim <= 2:
        return "a feature dimension: 1 or -1" if ndim == 2 else "a feature dimension; there is none"
    return f"feature dimensions: 1 to {ndim - 1}, or {1 - ndim} to -1"
