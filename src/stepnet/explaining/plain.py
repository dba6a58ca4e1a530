"""The plain loop as records: the whole step, at every step, op by op in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.data.lod import LoDTensor
from stepnet.front.step import StepBody

from .names import SourceLines
from .recording import record
from .records import Loop, Port, Region, Role, by_line


def describe_plain_loop(
    body: StepBody, leaves: Sequence[Any], here: Callable[[], str | None], counts: Sequence[int],
    cut: dict[str, Any], code: SourceLines,
) -> tuple[Loop, str]:  # fmt: skip
    """Describe the plain loop of a step; also gives a remark on what is listed.

    Args:
        body: the step.
        leaves: its x, then its initial states.
        here: tells the user's line being run.
        counts: how many steps each sequence takes.
        cut: how x is cut into steps, as `loop_over` takes it.
        code: the text of the user's lines.
    """
    feeds = dict(zip(body.parameters, leaves, strict=True))
    begun = max(sum(count > 0 for count in counts), 1)
    found = record(body, feeds, here, sum(counts) / begun, **cut)
    note = "the ops are those of the first step; a step that branches may run others"
    if not found.tried:
        note = "its ops are not listed: to try the step would use up, or write out, what it reads"
    elif not found.y:
        note = "its ops are listed up to a call that changes a tensor of yours, which is left alone here"
    count = len(body.x_names)
    enters = [
        *(_port(name, "x", leaf, cut) for name, leaf in zip(body.x_names, leaves, strict=False)),
        *(_port(name, "state", leaf) for name, leaf in zip(body.state_names, leaves[count:], strict=True)),
        *(_port(name, "weight", tensor) for name, tensor in found.outside.items()),
    ]
    y_names = ["y"] if len(found.y) == 1 else [f"y[{i}]" for i in range(len(found.y))]
    written = sum(_bytes(tensor) for _, tensor in found.y) * sum(counts) // begun
    region = Region(
        direction="forward",
        kind="loop",
        executor="torch",
        label="torch",
        runs=max(counts, default=0),
        ops=tuple(found.ops),
        lines=by_line(found.ops, {op.line: code.at(op.line) for op in found.ops}),
        reads=tuple(port.name for port in enters if port.role != "state"),
        writes=tuple(dict.fromkeys(name for name, _ in found.y)),
        bytes_read=sum(map(_bytes, (*leaves, *found.outside.values()))),
        bytes_written=written + sum(map(_bytes, leaves[count:])),
        carries=tuple(zip(body.state_names, found.states, strict=False)),
    )
    leaving = [_port(label, "y", tensor) for label, (_, tensor) in zip(y_names, found.y, strict=True)]
    inside = {label: name for label, (name, _) in zip(y_names, found.y, strict=True)}
    return Loop("forward", tuple(enters), (region,), tuple(leaving), inside), note


def _port(name: str, role: Role, leaf: Any, cut: dict[str, Any] | None = None) -> Port:
    values = leaf.values if isinstance(leaf, LoDTensor) else leaf
    sizes = list(values.shape)
    if cut is not None and values is leaf and sizes:
        del sizes[cut["axis"]]
    rows = role != "weight" and bool(sizes)
    return Port(name, role, "row" if rows else "shared", tuple(sizes[rows:]), str(values.dtype).split(".")[1])


def _bytes(leaf: Any) -> int:
    values = leaf.values if isinstance(leaf, LoDTensor) else leaf
    return values.numel() * values.element_size()
