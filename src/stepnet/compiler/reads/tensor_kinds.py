"""Classes of tensors that users make: some add a name, others change what calls mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .trust import is_trusted_class

# What a class may say anew, and its tensors are computed with as others are.
_BESIDE = {
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__",
    "__annotations__", "__new__", "__init__", "__del__", "__init_subclass__", "__class_getitem__",
    "__repr__", "__str__", "__format__", "__dir__", "__reduce__", "__reduce_ex__", "__getstate__",
    "__setstate__", "__deepcopy__",
}  # fmt: skip
_TENSORS = frozenset(dir(Tensor))
_DISABLED = torch._C._disabled_torch_function_impl


def rules_of(kind: type) -> str | None:
    """The first name by which a class of tensors gives something that a tensor does another meaning, if it
    does.

    >>> rules_of(nn.Parameter), rules_of(type("Turned", (nn.Parameter,), {"__module__": "mine", "t": None}))
    (None, 't')
    """
    for own in kind.__mro__:
        if own is Tensor or is_trusted_class(own):
            return None
        for name, value in vars(own).items():
            if name in _TENSORS and name not in _BESIDE and value is not _DISABLED:
                return name
    return None


def is_named_only(kind: type) -> bool:
    """Whether tensors of a class are computed with as a parameter is, and give what it gives."""
    return issubclass(kind, nn.Parameter) and not is_trusted_class(kind) and rules_of(kind) is None
