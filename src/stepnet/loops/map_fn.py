"""`map_fn`: a function of one step, called at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from stepnet.api import recurrent
from stepnet.data.arguments import function
from stepnet.data.array import TensorArray, contents_of
from stepnet.data.tree import by_leaf, flatten, unflatten
from stepnet.errors import StepError
from stepnet.executors.base import Backend
from stepnet.front.step import describe_leaf, step_name
from stepnet.tape.item import TapeItem
from stepnet.watchers import instead


def map_fn(
    fn: Callable[[Any], Any], elems: Any, *, axis: int = 0, level: int = -1, backend: Backend | None = None
) -> Any:
    """Call a function at every step, and join what it gives: `y[t] = fn(elems[t])` for every t.

    Means, for a tensor::

        torch.stack([fn(x) for x in elems.unbind(axis)], axis)

    It is `recurrent` with a step that has no state: what `fn` does to each row alike runs once for all steps.

    Args:
        fn: a function or a module, from one step to a tensor or a nesting of tensors.
        elems: tensors of equal lengths (cut along `axis`), LoDTensors (cut by LoD `level`: at step t, row or
            element t of every sequence longer than t), PackedSequences, or TensorArrays of equal sizes, whose
            values are the steps; one of them, or nested tuples, lists or dicts of one kind. Or items of a
            tape, of which the call is then a layer.
        axis: the time axis of tensors.
        level: the LoD level whose elements are the steps.
        backend: as in `recurrent`.

    Returns:
        What `fn` gives, nested as it gives it: a tensor, a LoDTensor or a TensorArray in the place of each
        tensor, as `elems` is. `fn` is called for each value of a TensorArray by itself, and these may differ
        in shape.

    Raises:
        StepError: TensorArrays are mixed with others or are of different sizes, or as `recurrent`.
        ArrayError: a place of a TensorArray was never written, or `fn` gives no tensor for it.
        LoDError: two inputs have different lengths.

    Source: TensorFlow's map_fn, one of the "dynamic iteration primitives" of Paddle's "Design for
    TensorArray" (2017).

    >>> import torch
    >>> map_fn(lambda x: x * x, torch.arange(4))
    tensor([0, 1, 4, 9])
    >>> from stepnet import LoDTensor
    >>> map_fn(torch.sum, TensorArray.unpack(LoDTensor.from_lengths(torch.ones(4), [[3, 1]]))[0]).stack()
    tensor([2., 1., 1.])
    """
    function("map_fn: 'fn'", fn, "fn(rows)")
    leaves, spec = flatten(elems)
    items = [leaf.deferred if isinstance(leaf, TensorArray) else leaf for leaf in leaves]
    on_tape = [item for item in items if isinstance(item, TapeItem)]
    options = {"axis": axis, "level": level, "backend": backend}
    if on_tape:
        given = [leaf if item is None else item for leaf, item in zip(leaves, items, strict=True)]
        return on_tape[0].tape.record("map_fn", Mapped(fn, options), (unflatten(spec, given),))
    if any(isinstance(leaf, TensorArray) for leaf in leaves):
        return _over_arrays(fn, leaves, spec)
    return recurrent(_stateless(fn), elems, (), **options)[0]


class Mapped(nn.Module):
    """`map_fn` of a function as a layer; a module's parameters are the layer's."""

    def __init__(self, fn: Callable[[Any], Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.fn = fn
        self.options = options

    def forward(self, elems: Any) -> Any:
        return map_fn(self.fn, elems, **self.options)


def _stateless(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    def step(x: Any, state: tuple[()]) -> tuple[Any, tuple[()]]:
        return fn(x), state

    step.__name__ = step_name(fn)
    return step


def _over_arrays(fn: Callable[[Any], Any], leaves: list[Any], spec: Any) -> Any:
    kinds = [describe_leaf(leaf) for leaf in leaves if not isinstance(leaf, TensorArray)]
    sizes = [leaf.size() for leaf in leaves if isinstance(leaf, TensorArray)]
    if kinds or any(size != sizes[0] for size in sizes):
        raise StepError(
            "map_fn: TensorArrays are mapped beside TensorArrays of the same size",
            got=", ".join(kinds) or f"sizes {sorted(set(sizes))}",
            remedy="TensorArray.unstack(tensor) makes an array of a tensor",
        )
    size = sizes[0]
    held = [contents_of(leaf) for leaf in leaves]
    values = [contents.whole for contents in held]
    if instead() is not None and all(isinstance(value, Tensor) for value in values):
        made = map_fn(fn, unflatten(spec, values))  # a loop of the file
        return by_leaf(lambda value: TensorArray(unstack_from=value), made)
    steps = range(size) if size or any(contents.pattern is None for contents in held) else (None,)
    filled: list[TensorArray] = []
    kind: Any = None
    for step in steps:
        values = [
            contents.pattern if step is None else leaf.read(step)
            for leaf, contents in zip(leaves, held, strict=True)
        ]
        found, now = flatten(fn(unflatten(spec, values)))
        if not step:
            kind, filled = now, [TensorArray() for _ in found]
        elif now != kind:
            what = f"map_fn: '{step_name(fn)}' returned another structure at step {step}"
            raise StepError(
                what, got=str(now), expected=str(kind), remedy="return the same structure at every step"
            )
        for array, value in zip(filled, found, strict=True):
            if step is None:  # no steps: what is known is what one would look like
                contents_of(array).pattern = value
            else:
                array.write(step, value)
    return TensorArray() if kind is None else unflatten(kind, filled)
