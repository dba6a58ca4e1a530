"""The operations that a frame records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .template import Ref


@dataclass(frozen=True)
class Call:
    """`values[out:] = leaves of function(*args, **kwargs)`, templates; `line` is where the user wrote it."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    out: int
    count: int
    nested: bool  # whether the result is taken apart; else it is one value, whatever it is
    line: str


@dataclass(frozen=True)
class Read:
    """`values[out] = arrays[array].read(index, default)`."""

    array: int
    index: Any
    default: Any
    out: int
    line: str


@dataclass(frozen=True)
class Write:
    """`arrays[array].write(index, value, data_shared)`."""

    array: int
    index: Any
    value: Any
    data_shared: bool
    line: str


@dataclass(frozen=True)
class Count:
    """`values[out] = arrays[array].size()`."""

    array: int
    out: int
    line: str


@dataclass(frozen=True)
class Guard:
    """What Python was told while the frame was written, `values[of] == told`, must hold at every step."""

    of: Ref
    told: Any
    line: str


@dataclass(frozen=True)
class Break:
    """Leave the loop if the condition holds."""

    condition: Ref
    line: str


Op = Call | Read | Write | Count | Guard | Break
