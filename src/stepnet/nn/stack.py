"""Layers of any cells: what torch.nn's LSTM, GRU and RNN do with `num_layers`, for cells of one's own."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from stepnet.api import Recurrent
from stepnet.cells.wrapper import Wrapper, check_probability
from stepnet.data.arguments import brief, truth
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import UNKNOWN, recorded_in_frames
from stepnet.data.tree import by_leaf, flatten
from stepnet.data.values import rows_of, without_packed
from stepnet.errors import StepError
from stepnet.front.step import TorchCell, as_step, describe_leaf, step_name
from stepnet.resets import as_resets
from stepnet.typed import Marks, Rows

from .batch import dropped, side_by_side


class Stack(nn.Module):
    """Cells in layers, each over the output of the one before; `stepnet.nn.LSTM` and the like for any cells.

        for each layer:
            y = forwards(x)              bidirectional: forwards(x) and backwards(x) side by side
            y = dropout(y)               in training, in all layers but the last
            x = x + y if residual else y
        return x

    Args:
        cells: a layer each, the first one over the input: a cell of `stepnet.cells` or of torch.nn, or any
            step that `recurrent` takes; or a pair of them, for the directions of a bidirectional layer.
        dropout: probability of dropout between layers.
        residual: whether the input of a layer is added to its output; one for all layers or one for each. The
            widths of such a layer must agree.
        bidirectional: give each single cell a second one, which runs from the end of each sequence: a copy
            whose parameters are drawn anew by the `reset_parameters` of its modules.
        batch_first: dense tensors are [batch, time, ...] instead of [time, batch, ...].

    The call `(input, hx=None) -> (output, h_n)` takes a LoDTensor, a PackedSequence or a dense tensor, and
    the output is of the same kind. h_n is a tuple of final states, in the order of torch.nn's: layer by
    layer, in a bidirectional one the forward direction first. Each is what its cell carries, so h_n[-1] is
    (h, c) where the last cell is an LSTM. hx is such a tuple; None for it, or in it, is `initial_state(n)`.

    Raises:
        StepError: no cells; an argument, the input or hx does not fit, the text says which layer.

    >>> import torch
    >>> from stepnet import cells
    >>> stack = Stack([cells.GRU(3, 4), cells.LSTM(4, 4)], residual=(False, True))
    >>> y, (h, (h2, c2)) = stack(torch.zeros(5, 2, 3))
    >>> y.shape, h.shape, c2.shape
    (torch.Size([5, 2, 4]), torch.Size([2, 4]), torch.Size([2, 4]))
    """

    takes_sequences: ClassVar[bool] = True  # for `explain`: not a step, although it takes x and a state

    def __init__(
        self,
        cells: Iterable[Callable[..., Any]],
        *,
        dropout: float = 0.0,
        residual: bool | Sequence[bool] = False,
        bidirectional: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        bidirectional = truth("Stack 'bidirectional'", bidirectional)
        self.batch_first = truth("Stack 'batch_first'", batch_first)
        layers = [_directions(cell, k, bidirectional) for k, cell in enumerate(_listed(cells))]
        self.layers = nn.ModuleList(
            nn.ModuleList(
                Recurrent(cell, reverse=bool(backwards), axis=int(batch_first))
                for backwards, cell in enumerate(directions)
            )
            for directions in layers
        )
        self.dropout = check_probability("Stack", "dropout", dropout)
        if dropout and len(layers) == 1:
            warnings.warn(
                f"Stack(dropout={dropout}) drops nothing: it lies between layers, and there is one",
                stacklevel=2,
            )
        self.residual = _flags(residual, len(layers))

    @recorded_in_frames(lambda *_, **__: UNKNOWN, parts=2)
    def forward(self, input: Any, hx: Any = None, resets: Any = None) -> tuple[Any, tuple[Any, ...]]:
        """Run all layers; see the class. `resets` is as in `recurrent`, with states as in hx."""
        refuse_proxies([input])
        x, pack = without_packed(input)
        start = iter(self._states("hx", hx))
        asked = None if resets is None else as_resets(resets)
        fresh = [] if asked is None else self._states("resets.state", asked.state)
        finals: list[Any] = []
        for k, (directions, residual) in enumerate(zip(self.layers, self.residual, strict=True)):
            ys = []
            for recurrence in directions:  # pyright: ignore[reportGeneralTypeIssues]
                _check_features(recurrence.step, x, k)
                again = None if asked is None else replace(asked, state=fresh[len(finals)])
                y, final = recurrence(x, next(start), again)
                ys.append(y)
                finals.append(final)
            y = ys[0] if len(ys) == 1 else by_leaf(side_by_side, *ys)
            if self.dropout and k + 1 < len(self.layers):
                y = by_leaf(dropped(self.dropout, self.training), y)
            x = _sum(x, y, k) if residual else y
        return x if pack is None else by_leaf(pack, x), tuple(finals)

    if TYPE_CHECKING:

        def __call__(
            self, input: Rows, hx: Sequence[Any] | None = None, resets: Marks = None
        ) -> tuple[Rows, tuple[Any, ...]]: ...

    def _states(self, name: str, hx: Any) -> list[Any]:
        """The initial state of each direction of each layer."""
        count = sum(len(directions) for directions in self.layers)  # pyright: ignore[reportArgumentType]
        if hx is None:
            return [None] * count
        if not isinstance(hx, (tuple, list, Tensor)) or (isinstance(hx, Tensor) and hx.dim() == 0):
            got = type(hx).__name__
        elif len(hx) == count:
            return list(hx)
        else:
            got = describe_leaf(hx) if isinstance(hx, Tensor) else f"a {type(hx).__name__} of {len(hx)}"
        raise StepError(
            f"Stack '{name}' must hold a state for each direction of each layer",
            got=got,
            expected=f"{count}, each as its cell carries it, or None",
            remedy="the h_n of another call has this form; None starts all cells from their initial states",
        )

    def extra_repr(self) -> str:
        residual = self.residual[0] if len(set(self.residual)) == 1 else self.residual
        shown = {"dropout": (self.dropout, 0.0), "residual": (residual, False)}
        shown["batch_first"] = (self.batch_first, False)
        return ", ".join(f"{name}={value}" for name, (value, default) in shown.items() if value != default)


def _listed(cells: Any) -> list[Any]:
    listed = list(cells) if isinstance(cells, Iterable) and not hasattr(cells, "ndim") else []
    if not listed:
        raise StepError(
            "Stack needs a list of cells, one or more", got=type(cells).__name__, remedy="Stack([cell])"
        )
    return listed


def _directions(cell: Any, layer: int, bidirectional: bool) -> list[Callable[..., Any]]:
    """The cells of one layer: one, or two for the two directions."""
    pair = isinstance(cell, (tuple, list, nn.ModuleList))
    if pair and len(cell) != 2:
        raise StepError(
            f"Stack layer {layer} must be a cell, or a pair of them for two directions",
            got=f"a {type(cell).__name__} of {len(cell)}",
            remedy="Stack([a, b, c]) runs one after the other",
        )
    cells = list(cell) if pair else [cell]
    for one in cells:
        if isinstance(one, (nn.RNNBase, Recurrent)) or getattr(one, "takes_sequences", False):
            raise StepError(
                f"Stack layer {layer} must be a cell, which runs one step",
                got=f"a {type(one).__name__}, which runs over sequences",
                remedy="pass the cell, as stepnet.cells.LSTM or torch.nn.LSTMCell; nn.Sequential-like "
                "chains of modules over sequences need no Stack",
            )
    return [as_step(one) for one in (cells if pair or not bidirectional else [cell, _drawn_anew(cell)])]


def _drawn_anew(cell: Any) -> Any:
    """A copy of a cell with parameters of its own; a function has none, and is taken as it is."""
    if not isinstance(cell, nn.Module):
        return cell
    twin = copy.deepcopy(cell)
    for module in reversed(list(twin.modules())):  # a cell after its parts, which it may draw in its own way
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return twin


def _flags(residual: Any, layers: int) -> tuple[bool, ...]:
    flags = (residual,) * layers if isinstance(residual, bool) else residual
    if not isinstance(flags, Sequence) or len(flags) != layers or any(not isinstance(f, bool) for f in flags):
        raise StepError(
            "Stack 'residual' must be True or False, for all layers or for each",
            got=brief(residual),
            expected=f"one, or {layers}",
        )
    return tuple(flags)


def _check_features(step: Any, x: Any, layer: int) -> None:
    """Refuse what a cell was not built for, where it says what that is."""
    while isinstance(step, (Wrapper, TorchCell)):
        step = step.cell
    size = getattr(step, "input_size", None)
    rows = rows_of(x)
    if isinstance(size, int) and isinstance(rows, Tensor) and rows.dim() > 1 and rows.shape[-1] != size:
        raise StepError(
            f"Stack layer {layer}, a {step_name(step)}, was built for other features than it gets",
            got=f"{rows.shape[-1]} features, {describe_leaf(x)}",
            expected=f"input_size={size}",
            remedy="the input's features for the first layer; after a bidirectional one, those of both cells",
        )


def _sum(x: Any, y: Any, layer: int) -> Any:
    """x + y, or an error where they are not alike."""
    (x_leaves, x_spec), (y_leaves, y_spec) = flatten(x), flatten(y)
    if x_spec == y_spec and all(a.shape == b.shape for a, b in zip(x_leaves, y_leaves, strict=True)):
        return by_leaf(operator.add, x, y)
    widths = [", ".join(map(describe_leaf, leaves)) for leaves in (x_leaves, y_leaves)]
    raise StepError(
        f"Stack layer {layer} cannot be residual: its output is not as wide as its input",
        got=f"input {widths[0]}; output {widths[1]}",
        remedy="give it a cell of the same width, or leave it out: residual=(False, True, ...), one a layer",
    )
