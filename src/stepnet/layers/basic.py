"""Layers of single rows: fully connected, embedding, concat, addto, dropout; and any module at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn

from stepnet.data.arguments import brief, truth
from stepnet.errors import TapeError
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape
from stepnet.user_line import user_line

from .act import Act, as_activation
from .check import check_callable, check_item, check_rows, check_size, describe_item, features, unfit
from .sharing import Weights, shared


def apply(function: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any) -> TapeItem:
    """Any module or function as a layer. A module applied twice shares its parameters.

    Args:
        function: called with the values of the items among the arguments.
        *args: items and other values, nested in tuples, lists and dicts as the function wants them.
        **kwargs: the same, by name.

    Raises:
        TapeError: it fails on a small example batch, or is a class of modules.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     apply(nn.LayerNorm(3), data("x", Dense(3)), name="norm")
    TapeItem(1, 'norm', float32 [*, 3])
    """
    for x in args[:1]:
        check_item("apply", x)
    kind = getattr(check_callable("apply: 'function'", function), "__name__", type(function).__name__)
    return Tape.current().record(kind.strip("_<>"), function, args, kwargs, name=name)


def fc(
    x: TapeItem | Sequence[TapeItem],
    size: int,
    *,
    act: Act = None,
    bias: bool = True,
    weights: Weights = None,
    name: str | None = None,
) -> TapeItem:
    """Fully connected: torch.nn.Linear on every row, and an activation. Several inputs lie side by side.

    Args:
        x: floating point rows [*, n], or sequences of them.
        size: features of the result, [*, size].
        act: a name of `ACTIVATIONS`, a function, or None.
        bias: whether it has one.
        weights: the layer whose weights these are, too: an item of any tape, or a name. None: this layer's
            own; on a `Tape(weights=other)`, those of the layer of the same name there, if there is one.

    Raises:
        TapeError: x has no rows of features, the size or the activation is none, or the weights do not fit.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     fc(data("x", Dense(3)), 5, act="tanh")
    TapeItem(1, 'fc_0', float32 [*, 5])
    """
    x = concat(x) if isinstance(x, (list, tuple)) else x
    check_rows("fc", x)
    function = as_activation(act)
    linear = nn.Linear(features("fc", x), check_size("fc", size), truth("fc: 'bias'", bias, error=TapeError))
    linear = shared("fc", linear, name, weights)
    return Tape.current().record("fc", linear, (x,), name=name, act=function)


def embedding(
    x: TapeItem, size: int, *, classes: int | None = None, weights: Weights = None, name: str | None = None
) -> TapeItem:
    """A row of `size` numbers for each integer: torch.nn.Embedding.

    Args:
        x: ids [*], or sequences of them.
        size: features of the result, [*, size].
        classes: how many ids there are; None: as many as the data layer says.
        weights: as of `fc`.

    Raises:
        TapeError: x holds no ids, nothing says how many there are, or the weights do not fit.

    >>> from stepnet.layers import Integer, Sequence, data
    >>> with Tape():
    ...     embedding(data("words", Sequence(Integer(1000))), 16)
    TapeItem(1, 'embedding_0', float32 [*, 16], 1 level)
    """
    check_item("embedding", x)
    if x.dtype not in (torch.int64, torch.int32):
        raise unfit(
            "embedding",
            "its input must be integers",
            x,
            remedy="data(name, Integer(classes)), or Sequence of it",
        )
    classes = x.creation.classes if classes is None else classes
    if classes is None:
        got = f"'{x.name}', which is no data layer"
        raise unfit("embedding", "how many ids are there?", got, remedy="pass classes=...")
    table = nn.Embedding(check_size("embedding", classes, "classes"), check_size("embedding", size))
    table = shared("embedding", table, name, weights)
    return Tape.current().record("embedding", table, (x,), name=name)


def concat(xs: Sequence[TapeItem], *, name: str | None = None) -> TapeItem:
    """Features side by side: torch.cat along the last dimension.

    Raises:
        TapeError: xs is no list of items that lie side by side.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     concat([data("a", Dense(2)), data("b", Dense(3))])
    TapeItem(2, 'concat_0', float32 [*, 5])
    """
    return Tape.current().record("concat", torch.cat, (_several("concat", xs),), {"dim": -1}, name=name)


def addto(xs: Sequence[TapeItem], *, act: Act = None, name: str | None = None) -> TapeItem:
    """The sum of several inputs of one shape, and an activation.

    Raises:
        TapeError: xs is no list of items of one size.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     addto([data("a", Dense(2)), data("b", Dense(2))], act="relu")
    TapeItem(2, 'addto_0', float32 [*, 2])
    """
    items = _several("addto", xs)
    sizes = {features("addto", x) for x in items}
    if len(sizes) > 1:
        got = ", ".join(f"'{x.name}' {describe_item(x)}" for x in items)
        raise unfit("addto", "its inputs must have one size", got, remedy="fc(x, size) brings one to a size")
    return Tape.current().record("addto", total, items, name=name, act=as_activation(act))


def dropout(x: TapeItem, p: float = 0.5, *, name: str | None = None) -> TapeItem:
    """torch.nn.Dropout: in training each number is 0 with probability p, the others grow by 1 / (1 - p).

    Raises:
        TapeError: p is no probability.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     dropout(data("x", Dense(3)), 0.1)
    TapeItem(1, 'dropout_0', float32 [*, 3])
    """
    check_rows("dropout", x)
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise unfit("dropout", "'p' must lie in 0 to 1", brief(p))
    return Tape.current().record("dropout", nn.Dropout(p), (x,), name=name)


def total(*xs: Any) -> Any:
    """The sum of several tensors."""
    return reduce(torch.add, xs)


def _several(kind: str, xs: Any) -> list[TapeItem]:
    if not isinstance(xs, (list, tuple)) or not xs:
        raise TapeError(
            f"{kind} ({user_line()}) takes a list of items",
            got=type(xs).__name__,
            remedy=f"{kind}([a, b])",
        )
    return [check_item(kind, x) for x in xs]
