"""A loop as one operator of a program that torch.export makes, as a call of `recurrent` is.

The body is traced on a number of rows of which nobody knows anything: one that asks for it, or is made for
one number, is refused. The program runs it by the law of `recurrent`, whose plain loop hands it all rows of
the batch in their order, as the loop of the file does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from torch import Tensor

from stepnet.data.in_graph import CAN_CAPTURE, is_exporting
from stepnet.errors import Unsupported
from stepnet.graph.whole_body import as_operator
from stepnet.ir.loop import Concat, Iteration, Loop
from stepnet.watchers import instead, watching

from .leading_axes import Leads
from .row_body import RowBody, RowLayout, new_name, y_name
from .rows import RowCall, RowLoop

WAYS = {(0, -1, 1): False, (-1, 0, -1): True}  # cuts of a whole input, and whether they go backwards
Body = Callable[[Sequence[Tensor]], Callable[..., Any]]


def for_program() -> bool:
    """Whether what runs becomes part of a program."""
    return CAN_CAPTURE and is_exporting() and instead() is watching() is None


def in_program(
    rows: RowLoop, feeds: Mapping[str, Any], steps: int | None, constants: Sequence[Tensor], body: Body
) -> dict[str, Any]:  # fmt: skip
    """The outputs of a loop by name, each row of the batch alike.

    Args:
        rows: the loop.
        feeds: its inputs by name.
        steps: how many; None: as many as its slices say.
        constants: what its body reads besides its parameters.
        body: `body(constants)` is the body on others of their kind.

    Raises:
        Unsupported: it is no loop over rows, or not for any number of them.
    """
    loop = rows.loop
    cuts = [*loop.slices, *(port for port in loop.outputs if isinstance(port, Concat))]
    ways = {WAYS.get((port.start, port.end, port.stride)) for port in cuts}
    whole = len(ways) == 1 and None not in ways and all((port.part_size or 1) == 1 for port in cuts)
    counts = any(isinstance(port, Iteration) for port in loop.inputs)
    if not loop.slices or not whole or counts or not loop.carried or steps is not None:
        raise Unsupported("a program takes loops that cut their inputs into all of their steps")
    refusal = Unsupported("a state does not have one row for each of the batch")
    for layout in _layouts(loop, feeds, bool(*ways)):
        try:
            return _run(rows, layout, feeds, constants, body)
        except Unsupported as error:
            refusal = error.fresh()
    raise refusal.fresh()


def _layouts(loop: Loop, feeds: Mapping[str, Tensor], reverse: bool) -> Iterator[RowLayout]:
    """How the values of a loop may lie in rows: what one of them fits is found out by running the body."""
    axes = tuple(port.axis % feeds[port.source].dim() for port in loop.slices)
    x = [feeds[port.source] for port in loop.slices]
    states = {port.parameter: feeds[port.source] for port in loop.merged}
    invariants = {port.parameter: feeds[port.source] for port in loop.invariants}
    time = 0 if axes[0] == 0 else 1
    joined = tuple(port.output for port in loop.outputs)
    for cut in (False, True):
        if cut and (any(axes) or any(t.dim() < 3 or not _is(t.shape[1], 1) for t in x)):
            continue
        batches = [t.shape[2 if cut else 0 if axis else 1] for t, axis in zip(x, axes, strict=True)]
        counts = [t.shape[axis] for t, axis in zip(x, axes, strict=True)]
        batch = batches[0]
        if not all(_is(n, batch) for n in batches) or not all(_is(n, counts[0]) for n in counts):
            continue
        led = tuple(
            n for n, t in states.items() if t.dim() > 1 and _is(t.shape[0], 1) and _is(t.shape[1], batch)
        )
        own = tuple(n for n, t in states.items() if t.dim() and _is(t.shape[0], batch))
        alike = tuple(n for n, t in invariants.items() if t.dim() and _is(t.shape[0], batch))
        for before in dict.fromkeys(((), led)):
            if {*before, *own} != {*states}:
                continue
            leads = [Leads(before, cut), Leads(before, cut, joined)] if cut or before else [Leads()]
            for lead, rows in product(leads, dict.fromkeys(((), alike))):
                yield RowLayout(axes, rows, (), 1, False, time, reverse, lead)


def _run(
    whole: RowLoop, layout: RowLayout, feeds: Mapping[str, Tensor], constants: Sequence[Tensor], body: Body
) -> dict[str, Any]:  # fmt: skip
    loop, time, leads = whole.loop, layout.time, layout.leads
    form = RowBody(loop, loop.body, layout)
    x = [
        (feeds[p.source].squeeze(1) if leads.cut else feeds[p.source]).movedim(
            (axis, 0 if axis else 1), (time, 1 - time)
        )
        for p, axis in zip(loop.slices, layout.axes, strict=True)
    ]
    sources = {port.parameter: port.source for port in (*loop.merged, *loop.invariants)}
    states = [feeds[sources[name]] for name in form.states]
    states = [t.squeeze(0) if n in leads.states else t for n, t in zip(form.states, states, strict=True)]
    shared = [feeds[sources[name]] for name in form.shared]

    def step(*values: Tensor) -> tuple[Tensor, ...]:
        given = len(x) + len(states) + len(shared)
        return form.around(body(values[given:]))(*values[:given])

    y, final = as_operator(
        step, form.name, x, states, [*shared, *constants], len(form.joined), axis=time,
        reverse=layout.reverse,
    )  # fmt: skip
    out = dict(zip((y_name(port.output) for port in form.joined), y, strict=True))
    out |= zip(map(new_name, form.states), final, strict=True)
    return whole.outputs(RowCall(loop, form, {}, {}, {}, {}, exact=True), out)


def _is(size: Any, wanted: Any) -> bool:
    """Whether two sizes are one for all inputs of the program; nothing is fixed by asking."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    return bool(statically_known_true(size == wanted))
