"""Named results that also unpack like a tuple."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from stepnet.data import pytree
from stepnet.errors import OutputError


class Outputs(Mapping[Any, Tensor]):
    """What a model or a loop returns: a mapping by name that unpacks like a tuple, in the order of outputs.

    >>> import torch
    >>> out = Outputs(("y", "h"), (torch.ones(1), torch.zeros(1)))
    >>> y, h = out
    >>> out["h"] is h, out[0] is y
    (True, True)
    >>> list(out.keys())
    ['y', 'h']
    """

    def __init__(self, names: tuple[str, ...], values: tuple[Tensor, ...]) -> None:
        self._names = names
        self._values = values

    def __getitem__(self, key: str | int) -> Tensor:
        try:
            return self._values[self._names.index(key) if isinstance(key, str) else key]
        except (ValueError, IndexError, TypeError):
            raise OutputError(
                "there is no output of this name or number",
                got=repr(key),
                expected=", ".join(map(repr, self._names)) + f"; or 0 to {len(self) - 1}",
                remedy="out.keys() are the names, in order",
            ) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def keys(self) -> Any:
        """The names, in order."""
        return dict.fromkeys(self._names).keys()

    def values(self) -> Any:
        """The tensors, in order."""
        return dict(zip(self._names, self._values, strict=True)).values()

    def items(self) -> Any:
        """Pairs of name and tensor, in order."""
        return dict(zip(self._names, self._values, strict=True)).items()

    def tuple(self) -> tuple[Tensor, ...]:
        """The tensors as a plain tuple."""
        return self._values

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}={list(v.shape)}" for n, v in zip(self._names, self._values, strict=True))
        return f"Outputs({shown})"


pytree.register_node(
    Outputs,
    name="stepnet.Outputs",
    leaves=lambda out: out._names,
    flatten=lambda out: (list(out.tuple()), out._names),
    unflatten=lambda values, names: Outputs(tuple(names), tuple(values)),
    dump=list,
    load=tuple,
)
