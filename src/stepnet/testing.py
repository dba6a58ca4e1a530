"""For tests of steps: the oracle (one sequence at a time, in plain Python), ragged cases, and comparisons
that say what differs.

The oracle shares nothing with what runs a recurrence but the checks of its arguments, so it can be held
against any backend.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stepnet.executors.base import Backend

from .api import recurrent
from .data.arguments import brief, choice, function, listed, number, truth, whole
from .data.lod import LoDTensor
from .data.tree import Spec, flatten, names, unflatten
from .data.values import rows_of
from .errors import StepError
from .front.step import as_step, boot_state

LENGTHS: dict[str, tuple[int, ...]] = {
    "unsorted, an empty one in the middle": (2, 0, 5, 1, 3),
    "longest first": (4, 2, 2, 1),
    "shortest first": (1, 2, 4),
    "all of length 1": (1, 1, 1),
    "equal": (3, 3),
    "batch of one": (4,),
    "one row": (1,),
    "empty ones around": (0, 3, 0),
    "all empty": (0, 0),
    "batch of none": (),
}
"""Lengths that every ragged test should meet, by a readable name."""


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may be apart, relative to the largest expected one (at least 1)."""

    values: float
    gradients: float


FLOAT64 = Tolerance(values=1e-12, gradients=1e-10)
FLOAT32 = Tolerance(values=2e-5, gradients=2e-4)


@dataclass(frozen=True)
class Oracle:
    """What a recurrence means: for each sequence the leaves of y (rows first) and of its final state.

    `sample` holds the leaves of y for no rows: what a sequence of no steps gives.
    """

    y: list[list[Tensor]]
    final: list[list[Tensor]]
    sample: list[Tensor]
    y_spec: Spec
    state_spec: Spec


def oracle(step: Any, x: Any, state: Any = None, *, reverse: bool = False, axis: int = 0) -> Oracle:
    """Run a step over one sequence at a time, a batch of one, row after row.

    Args:
        step: as `recurrent` takes it. It must treat rows alike.
        x: LoDTensors (cut by the last level) or tensors (cut along `axis`), or a nesting of them.
        state: the initial state; None: as `recurrent`.
        reverse: run every sequence from its end.
        axis: the time axis of tensors.

    Raises:
        StepError: x or the state is no such thing.

    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
    >>> out = oracle(lambda x, s: (s + x, s + x), x, torch.zeros(2, 1))
    >>> out.y[0][0].flatten().tolist(), out.final[1][0].tolist()
    ([1.0, 2.0, 3.0], [[1.0]])
    """
    function = as_step(step)
    x_leaves, x_spec = flatten(x)
    axis, reverse = _checked("oracle", x_leaves, axis), truth("oracle: 'reverse'", reverse)
    tables = [sequences_of(leaf, axis) for leaf in x_leaves]
    count = len(tables[0])
    state_leaves, state_spec = flatten(boot_state(function, count) if state is None else state)
    if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in state_leaves):
        raise StepError(
            "oracle: the state must be tensors with a row for each sequence",
            got=brief(state),
            remedy="tensors [sequences, ...], nested as the step takes them",
        )

    def call(rows: list[Tensor], state: list[Tensor]) -> tuple[list[Tensor], Spec, list[Tensor]]:
        y, new = function(unflatten(x_spec, rows), unflatten(state_spec, state))
        y_leaves, y_spec = flatten(y)
        return y_leaves, y_spec, flatten(new)[0]

    with torch.no_grad():
        one = [torch.zeros((1, *_row_shape(leaf, axis)), dtype=rows_of(leaf).dtype) for leaf in x_leaves]
        sample, y_spec, _ = call(one, [torch.zeros((1, *s.shape[1:]), dtype=s.dtype) for s in state_leaves])
    y, final = [], []
    for b in range(count):
        own = [leaf[b : b + 1] for leaf in state_leaves]
        sequence = [table[b] for table in tables]
        steps: list[Any] = [None] * len(sequence[0])
        for t in reversed(range(len(steps))) if reverse else range(len(steps)):
            steps[t], _, own = call([rows[t : t + 1] for rows in sequence], own)
        y.append([torch.cat(parts) for parts in zip(*steps, strict=True)] or [s[:0] for s in sample])
        final.append(own)
    return Oracle(y, final, [s[:0] for s in sample], y_spec, state_spec)


def _checked(where: str, x_leaves: Sequence[Any], axis: Any) -> int:
    """The axis of inputs that have it.

    Raises:
        StepError: they are no sequences, or have not.
    """
    axis = whole(f"{where}: 'axis'", axis)
    for leaf in x_leaves or [None]:
        ragged = isinstance(leaf, LoDTensor)
        if not ragged and not (
            isinstance(leaf, Tensor) and leaf.dim() > 1 and -leaf.dim() <= axis < leaf.dim()
        ):
            raise StepError(
                f"{where}: x must be LoDTensors or tensors with sequences beside axis {axis}",
                got=brief(leaf),
                remedy="x of [time, sequences, ...], or axis=1 of [sequences, time, ...]",
            )
    return axis


def sequences_of(x: Any, axis: int = 0) -> list[Tensor]:
    """The rows of every sequence of a LoDTensor (last level) or of a tensor cut along `axis`.

    >>> [len(rows) for rows in sequences_of(torch.zeros(5, 2, 3), axis=1)]
    [2, 2, 2, 2, 2]
    """
    if isinstance(x, LoDTensor):
        return list(x.values.split(x.lengths().tolist())) if len(x.lengths()) else []
    major = x.movedim(axis, 0)
    return [major[:, b] for b in range(major.shape[1])]


def _row_shape(x: Any, axis: int) -> tuple[int, ...]:
    return tuple(x.values.shape[1:] if isinstance(x, LoDTensor) else x.movedim(axis, 0).shape[2:])


def assert_close(what: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare two tensors number by number; nan and infinities must be in the same places.

    They may be `tolerance` apart, or as many times the largest number expected, where that is above 1.

    Raises:
        StepError: what is compared are no tensors.
        AssertionError: names `what`, the worst place, both numbers and how far they are apart.

    >>> assert_close("y", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 1e-6)
    Traceback (most recent call last):
    AssertionError: y differs by 0.5 at [1]: got 2.0, expected 2.5 (allowed: 2.5e-06)
    """
    for name, value in (("got", got), ("expected", expected)):
        if not isinstance(value, Tensor):
            raise StepError(f"assert_close: '{name}' must be a tensor", got=brief(value), expected="a tensor")
    tolerance = number("assert_close: 'tolerance'", tolerance, 0)
    if got.shape != expected.shape:
        raise AssertionError(f"{what} has shape {list(got.shape)}, expected {list(expected.shape)}")
    if got.dtype != expected.dtype:
        raise AssertionError(f"{what} has dtype {got.dtype}, expected {expected.dtype}")
    if not expected.numel():
        return
    got, expected = got.detach(), expected.detach()
    if not (expected.is_floating_point() or expected.is_complex()):
        got, expected = got.double(), expected.double()
    odd = ~torch.isfinite(expected)
    same = (got == expected) | (torch.isnan(got) & torch.isnan(expected))
    apart = torch.where(same, 0.0, (got - expected).abs().nan_to_num(torch.inf, torch.inf))
    apart = torch.where(odd & ~same, torch.inf, apart)
    allowed = tolerance * max(1.0, float(torch.where(odd, 0.0, expected.abs()).max()))
    if float(apart.max()) > allowed:
        at = [int(i) for i in torch.unravel_index(apart.argmax(), apart.shape)]
        raise AssertionError(
            f"{what} differs by {float(apart.max()):.3g} at {at}: got {got[tuple(at)].item()}, "
            f"expected {expected[tuple(at)].item()} (allowed: {allowed:.3g})"
        )


def check_step(
    step: Any,
    x: Any,
    state: Any = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
    run: Callable[[], tuple[Any, Any]] | None = None,
    backend: Backend | None = None,
    reverse: bool = False,
    axis: int = 0,
    through: Sequence[str] = ("y", "final"),
    tolerance: Tolerance = FLOAT64,
) -> None:
    """Hold a recurrence against the oracle: y, final state and every gradient, sequence by sequence.

    Args:
        step: as for `recurrent`.
        x: as for `recurrent`; the last LoD level is cut.
        state: as for `recurrent`.
        weights: what else gets gradients, by name; None: the parameters of a module, the tensors and
            modules in the closure and the globals of a function.
        run: gives `(y, final_state)`; None: `recurrent` with these arguments.
        backend: as for `recurrent`.
        reverse: as for `recurrent`.
        axis: as for `recurrent`.
        through: the loss is made of "y", of "final" or of both.
        tolerance: how far numbers may be apart.

    Raises:
        StepError: an argument is no such thing.
        AssertionError: names what differs, of which sequence, where and by how much.

    >>> x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    >>> check_step(nn.GRUCell(3, 4, dtype=torch.float64), x, backend="naive")
    """
    if not isinstance(tolerance, Tolerance):
        raise StepError("check_step: 'tolerance' must be a Tolerance", got=brief(tolerance), expected=FLOAT64)
    for part in listed("check_step: 'through'", through, str):
        choice("check_step: a part of 'through'", part, ("y", "final"))
    if not isinstance(weights, Mapping | None):
        raise StepError("check_step: 'weights' must be a dict", got=brief(weights), remedy="{'w': w}")
    if run is not None:
        function("check_step: 'run'", run, "run() -> (y, final_state)")
    x_leaves, x_spec = flatten(x)
    expected = oracle(step, x, state, reverse=reverse, axis=axis)
    if run is None:
        y, final = recurrent(step, x, state, reverse=reverse, axis=axis, backend=backend)
    else:
        y, final = run()
    y_leaves, y_spec = flatten(y)
    final_leaves, final_spec = flatten(final)
    if y_spec != expected.y_spec:
        raise AssertionError(f"y is nested as {y_spec}, expected {expected.y_spec}")
    if final_spec != expected.state_spec:
        raise AssertionError(f"the final state is nested as {final_spec}, expected {expected.state_spec}")

    pairs, count = _Pairs(through, tolerance), len(expected.y)
    if not count:
        leaves = map(rows_of, (*y_leaves, *final_leaves))
        pairs.ours += [(t, torch.ones_like(t)) for t in leaves if t.requires_grad]
    for k, (name, leaf) in enumerate(zip(names(y_spec, "y"), y_leaves, strict=True)):
        _check_kind(name, leaf, x_leaves[0], expected.sample[k], axis)
        for b, rows in enumerate(sequences_of(leaf, axis)):
            pairs.compare(name, b, len(rows), rows, expected.y[b][k], "y")
    for k, (name, leaf) in enumerate(zip(names(final_spec, "final state"), final_leaves, strict=True)):
        if len(leaf) != count:
            raise AssertionError(f"{name} has {len(leaf)} rows, expected one for each of {count} sequences")
        for b in range(count):
            length = len(expected.y[b][0]) if expected.y[b] else 0
            pairs.compare(name, b, length, leaf[b : b + 1], expected.final[b][k], "final")

    state_leaves, state_spec = flatten(() if state is None else state)
    values = [rows_of(leaf) for leaf in x_leaves]
    given = [
        *zip(names(x_spec, "x"), values, strict=True),
        *zip(names(state_spec, "state"), state_leaves, strict=True),
        *(_weights(step) if weights is None else weights).items(),
    ]
    for (name, tensor), a, b in pairs.gradients([pair for pair in given if pair[1].requires_grad]):
        _compare_gradient(name, a, b, tensor, x_leaves, tolerance, axis)


class _Pairs:
    """Results compared so far, each with its part of the loss: of ours, and of the oracle."""

    def __init__(self, through: Sequence[str], tolerance: Tolerance) -> None:
        self._through, self._tolerance = through, tolerance
        self._generator = torch.Generator().manual_seed(11)
        self.ours: list[tuple[Tensor, Tensor]] = []
        self._theirs: list[tuple[Tensor, Tensor]] = []

    def compare(self, name: str, b: int, rows: int, got: Tensor, wanted: Tensor, part: str) -> None:
        """Raises AssertionError: a result of sequence b, which has so many rows, is another."""
        assert_close(f"{name} of sequence {b} (length {rows})", got, wanted, self._tolerance.values)
        seed = torch.randn(wanted.shape, generator=self._generator, dtype=torch.float64).to(wanted.dtype)
        if part not in self._through:
            return
        if wanted.requires_grad:
            if not got.requires_grad:
                raise AssertionError(f"{name} of sequence {b} has no gradient, expected one")
            self._theirs.append((wanted, seed))
        if got.requires_grad:  # where the oracle has no gradient, ours must come to zero
            self.ours.append((got, seed))

    def gradients(
        self, wanted: Sequence[tuple[str, Tensor]]
    ) -> Iterator[tuple[tuple[str, Tensor], Tensor, Tensor]]:
        """What gets a gradient, with ours and that of the oracle."""
        if wanted and self.ours:
            tensors = [tensor for _, tensor in wanted]
            both = (_gradients(pairs, tensors) for pairs in (self.ours, self._theirs))
            yield from zip(wanted, *both, strict=True)


def _check_kind(name: str, y: Any, x: Any, sample: Tensor, axis: int) -> None:
    """y is cut as x is: the same LoD, or the same steps and batch; and a row of it is a row of the step."""
    if isinstance(x, LoDTensor):
        if not isinstance(y, LoDTensor) or [v.tolist() for v in y.lod] != [v.tolist() for v in x.lod]:
            raise AssertionError(f"{name} does not have the LoD of x")
    elif isinstance(y, LoDTensor) or y.movedim(axis, 0).shape[:2] != x.movedim(axis, 0).shape[:2]:
        raise AssertionError(f"{name} does not have the steps and the batch of x")
    if _row_shape(y, axis) != tuple(sample.shape[1:]) or rows_of(y).dtype != sample.dtype:
        raise AssertionError(
            f"a row of {name} is {rows_of(y).dtype}{list(_row_shape(y, axis))}, "
            f"expected {sample.dtype}{list(sample.shape[1:])}"
        )


def _compare_gradient(
    name: str, got: Tensor, expected: Tensor, tensor: Tensor, x_leaves: list[Any],
    tolerance: Tolerance, axis: int,
) -> None:  # fmt: skip
    for leaf in x_leaves:
        if tensor is rows_of(leaf):
            like = (leaf.with_values(g) if isinstance(leaf, LoDTensor) else g for g in (got, expected))
            pairs = zip(*(sequences_of(g, axis) for g in like), strict=True)
            for b, (a, e) in enumerate(pairs):
                what = f"the gradient of {name} in sequence {b} (length {len(a)})"
                assert_close(what, a, e, tolerance.gradients)
            return
    assert_close(f"the gradient of {name}", got, expected, tolerance.gradients)


def _gradients(pairs: list[tuple[Tensor, Tensor]], tensors: list[Tensor]) -> list[Tensor]:
    if not pairs:
        return [torch.zeros_like(tensor) for tensor in tensors]
    return list(
        torch.autograd.grad(
            [result for result, _ in pairs],
            tensors,
            [seed for _, seed in pairs],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
    )


def _weights(step: Any) -> dict[str, Tensor]:
    if isinstance(step, nn.Module):
        return dict(step.named_parameters())
    function = inspect.unwrap(step)
    if not inspect.isfunction(function):
        return {}
    seen = inspect.getclosurevars(function)
    found: dict[str, Tensor] = {}
    for name, value in {**seen.globals, **seen.nonlocals}.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, nn.Module):
            found |= {f"{name}.{k}": v for k, v in value.named_parameters()}
    return found


class _Poison(TorchFunctionMode):
    _makers = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self._makers:
            with torch.no_grad():
                if out.dtype.is_floating_point or out.dtype.is_complex:
                    out.fill_(torch.nan)
                elif out.dtype is torch.bool:
                    out.fill_(True)
                else:
                    out.fill_(torch.iinfo(out.dtype).max)  # bytes of all ones are a nan to generated code
        return out


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch hands out unset is full of nan (or of the largest whole number) inside this.

    >>> with poisoned():
    ...     bool(torch.empty(3).isnan().all())
    True
    """
    with _Poison():
        yield
