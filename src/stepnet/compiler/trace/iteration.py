"""One iteration of a loop's body by itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from stepnet.compiler.reads.imports import ImportsInside
from stepnet.compiler.reads.reach import Reach, reach
from stepnet.compiler.reads.trust import is_trusted_class
from stepnet.data.tree import Spec, flatten
from stepnet.errors import Unsupported
from stepnet.interrupts import let_through
from stepnet.ir.loop import Code, Loop

from .row_count import Unusual


def code_of(loop: Loop) -> Code:
    """The body of a loop that is to be compiled."""
    body: Any = loop.body
    return body


def reached(loop: Loop, *, everything: bool = False) -> Reach:
    """What the body of a loop reads, see `reach`."""
    code = code_of(loop)
    return reach(code.function, own_classes(code.form), everything=everything)


def own_classes(form: Any) -> list[type]:
    """The classes of the user's among the nestings of what a body is given."""
    specs = [part for part in form if isinstance(part, Spec)] if isinstance(form, tuple) else []
    return [kind for spec in specs for kind in _own(spec)]


@functools.lru_cache(maxsize=1024)
def _own(spec: Spec) -> tuple[type, ...]:
    own = () if spec.kind is None or is_trusted_class(spec.kind) else (spec.kind,)
    return (*own, *(kind for child in spec.children for kind in _own(child)))


def iteration(
    loop: Loop, x: Sequence[Any], states: Sequence[Tensor], shared: Sequence[Tensor]
) -> tuple[Spec, list[Any], list[Any]]:
    """Run a body once, as before its first iteration.

    Args:
        loop: the loop, a sweep.
        x, states, shared: what is cut, carried and the same at every iteration, in the order of their ports.

    Returns:
        The structure of what is joined, by output, its leaves, and what is carried on.

    Raises:
        Unsupported: the body raises what is to end the program, which is said of the caller's rows alone.
    """
    ports = (*loop.slices, *loop.merged, *loop.invariants)
    values = dict(zip((port.parameter for port in ports), (*x, *states, *shared), strict=True))
    try:
        results = code_of(loop).fresh()(*(values[name] for name in loop.body.parameters))
    except (Exception, Unusual, ImportsInside):
        raise
    except BaseException as error:
        let_through(error)
        raise Unsupported(f"it raises {type(error).__name__} on rows that are not the caller's") from error
    named = dict(zip(loop.body.results, results, strict=True))
    leaves, spec = flatten({port.output: named[port.result] for port in loop.joined})
    return spec, leaves, [named[loop.carried[port.parameter]] for port in loop.merged]
