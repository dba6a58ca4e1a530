"""Symbolic values: what is done to them is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepnet.data.recording import InFrame
from stepnet.errors import StepError

from .step import describe_leaf
from .template import Ref

if TYPE_CHECKING:
    from .program import Program


class Symbolic(InFrame):
    """A value inside a frame: it has no numbers yet, and what is done to it is recorded.

    Any torch function, method or operator takes it. Its `shape`, `dtype` and `device` are those that the
    first step will see.
    """

    __slots__ = ("_example", "_program", "_ref")
    __hash__ = object.__hash__

    def __init__(self, program: Program, ref: Ref, example: Any) -> None:
        self._program, self._ref, self._example = program, ref, example

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves = flatten_call((args, kwargs or {}))
        first = next(leaf for leaf in leaves if isinstance(leaf, Symbolic))
        return first._program.call(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(Tensor, name, None)
        if attribute is None or name.startswith("__"):
            raise AttributeError(f"a symbolic value has no attribute '{name}'")
        if name == "device":
            return self._program.device
        if callable(attribute):
            return lambda *args, **kwargs: self._program.call(attribute, (self, *args), kwargs)
        return self._program.call(getattr, (self, name), {}, name)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise StepError(
            "a symbolic value is not changed in place",
            got=f"value[{key}] = ...",
            remedy="torch.where, index_copy or scatter make a new one",
        )

    def __len__(self) -> int:
        if self._example is None:
            raise StepError(
                "this symbolic value's length is not known, so it cannot be taken apart",
                remedy="index it",
            )
        return self._program.known_size(self, 0)

    def __iter__(self) -> Any:
        len(self)
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        kind = "?" if self._example is None else describe_leaf(self._example)
        return f"<symbolic {self._ref} {kind}>"


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def call(self: Symbolic, *others: Any) -> Any:
        return self._program.call(function, (self, *others), {}, name)

    call.__name__ = name
    return call


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_OTHER = "eq ne lt le gt ge neg pos abs invert getitem bool int float index"
for _name in [*_BINARY.split(), *_OTHER.split(), *(f"r{n}" for n in _BINARY.split())]:
    if hasattr(Tensor, f"__{_name}__"):
        setattr(Symbolic, f"__{_name}__", _operator(f"__{_name}__"))


def replaced(tree: Any, kind: Any, new: Callable[[Any], Any]) -> Any:
    """The tree of arguments with every value of `kind` replaced."""
    if isinstance(tree, kind):
        return new(tree)
    if type(tree) in (tuple, list):
        return type(tree)(replaced(item, kind, new) for item in tree)
    if type(tree) is dict:
        return {key: replaced(item, kind, new) for key, item in tree.items()}
    if type(tree) is slice:
        return slice(*(replaced(item, kind, new) for item in (tree.start, tree.stop, tree.step)))
    return tree


def flatten_call(tree: Any) -> list[Any]:
    """All leaves of a tree of arguments."""
    if type(tree) in (tuple, list):
        parts = tree
    elif type(tree) is dict:
        parts = tree.values()
    elif type(tree) is slice:
        parts = (tree.start, tree.stop, tree.step)
    else:
        return [tree]
    return [leaf for part in parts for leaf in flatten_call(part)]
