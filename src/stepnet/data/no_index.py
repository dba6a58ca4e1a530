"""What looks like a sequence to C is an index of a tensor: how a class stops to be one."""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_void_p, sizeof
from typing import Any


class _Plain:
    pass


class _Subscripted:
    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError


def _item_slot(kind: type) -> c_void_p | None:
    """`tp_as_sequence->sq_item` of a class: what `PySequence_Check` asks."""
    word = sizeof(c_void_p)
    # after the head of an object with a size: name, two sizes, dealloc, vectorcall, getattr, setattr, async,
    # repr, as_number, as_sequence; in there: length, concat, repeat, item
    of_sequence = c_void_p.from_address(id(kind) + object.__basicsize__ + 11 * word).value
    return None if of_sequence is None else c_void_p.from_address(of_sequence + 3 * word)


def no_index(kind: type) -> None:
    """Instances of ``kind`` are subscripted as before, and are no sequence to C.

    Of `weight[x]` torch asks but the class of weight; an x that C takes for a sequence of up to 31 is a tuple
    of its parts then: `weight[x[0], x[1]]`, in silence. Any other x has its `__torch_function__` called.
    A class of Python that has `__getitem__` cannot say so; where it stands in memory is the same in every
    CPython from 3.10 on, and held against two classes of which it is known.
    """
    if sys.implementation.name != "cpython":
        return
    empty, full, slot = _item_slot(_Plain), _item_slot(_Subscripted), _item_slot(kind)
    if empty is None or full is None or slot is None:
        return
    if empty.value is None and full.value is not None and full.value == slot.value:
        slot.value = None
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
