"""What is told of a model as text: tables for a terminal, or plain columns for a file."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepnet.explaining.titles import count, short

from .records import Cost, Inspection, Layer, Loop, Net
from .words import WHEN, amount, number, plain, shape_text, steps_text, value_text, verdict, way_text

MOST_LAYERS = 40  # of a net; more are told by type
_COUNTS = (
    "FLOP: 2 K for each element of a product over K, 10 for exp, tanh and the like, 1 for other arithmetic. "
    "Bytes: what is read and written, by each layer or by what a compiled loop does in one go."
)


def show(it: Inspection, console: Console, *, every: bool = False) -> None:
    """Print it; `every`: each layer, however many there are."""
    for i, part in enumerate(_parts(it, every)):
        if i:
            console.print()
        console.print(part)


def _parts(it: Inspection, every: bool) -> Iterator[RenderableType]:
    yield _head(it)
    yield _ends(it)
    if any(layer.computes for layer in it.net.layers):
        yield Group(Text("LAYERS", style="bold"), _layers(it.net, every))
    for layer, loop in it.loops():
        yield from _loop(layer, loop, every)
    yield _cost(it)


def _head(it: Inspection) -> Text:
    layers = sum(layer.computes for layer in it.net.all_layers())
    title = Text(plain(it.file), style="bold")
    named = f" '{plain(it.name)}'" if it.name else ""
    title.append(
        f"{named}  IR version {it.version}, {count(layers, 'layer')}, {count(len(it.loops()), 'loop')},"
        f" {amount(it.parameters, 'parameter')}, {short(it.weight_bytes, 'B')} of constants",
        style="not bold",
    )
    return title


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    return table


def _row(table: Table, *cells: str, style: str | None = None) -> None:
    table.add_row(*(Text(plain(cell)) for cell in cells), style=style)


def _ends(it: Inspection) -> Table:
    table = _table("", "name", "type and shape")
    for kind, sockets in (("input", it.inputs), ("output", it.outputs)):
        for socket in sockets:
            _row(table, kind, socket.name, value_text(socket.value))
    return table


def _layers(net: Net, every: bool) -> Table:
    layers = [layer for layer in net.layers if layer.computes]
    if len(layers) > MOST_LAYERS and not every:
        return _types(layers)
    inside = any(layer.when for layer in layers)
    columns = ("layer", "type", "gives", "parameters", "FLOP", *(("runs",) if inside else ()))
    table = _table(*columns, right=("parameters", "FLOP"))
    for layer in layers:
        gives = ", ".join(value_text(value) for value in layer.outputs)
        cells = [layer.name, layer.type, gives, number(layer.parameters), _flop(layer.cost)]
        if layer.when:
            cells.append(WHEN[layer.when])
        _row(table, *cells, style="yellow" if layer.when == "step" else None)
    return table


def _types(layers: list[Layer]) -> Table:
    """So many layers that only types are told."""
    kinds: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        kinds.setdefault((layer.type, WHEN[layer.when] if layer.when else ""), []).append(layer)
    inside = any(layer.when for layer in layers)
    table = _table("type", "layers", "parameters", "FLOP", *(("run",) if inside else ()),
                   right=("layers", "parameters", "FLOP"))  # fmt: skip
    ranked = sorted(kinds.items(), key=lambda item: (-_sum(item[1]).flops, -len(item[1])))
    for (kind, runs), group in ranked:
        cost = _sum(group)
        cells = [kind, f"{len(group):,}", number(sum(layer.parameters for layer in group)), _flop(cost)]
        _row(table, *cells, *((runs,) if inside else ()), style="yellow" if runs == WHEN["step"] else None)
    table.caption = Text("--all lists each layer", style="dim")
    return table


def _flop(cost: Cost) -> str:
    return "?" if cost.unknown and not cost.flops else number(cost.flops)


def _loop(layer: Layer, loop: Loop, every: bool) -> Iterator[RenderableType]:
    title = Text("LOOP ", style="bold")
    title.append(plain(" / ".join(loop.path)))
    title.append(f"  {loop.kind}, {plain(steps_text(loop))}", style="not bold")
    lines = [title]
    if loop.kind != "If":
        lines.append(Text(f"  {plain(_turning(layer, loop))}"))
    yield Group(*lines, *_ports(loop))
    for name, body in loop.bodies.items():
        heading = "layers of the body" if name == "body" else f"layers of the body '{name}'"
        if any(inner.computes for inner in body.layers):
            yield Group(Text(f"  {heading}", style="dim"), _layers(body, every))


def _turning(layer: Layer, loop: Loop) -> str:
    """What runs how often."""
    if not loop.compiled:
        return verdict(loop)
    if not loop.bodies:
        return "compiled: the product with the input runs once, for all steps; the rest at each step"
    layers = [inner for inner in loop.bodies["body"].layers if inner.computes]
    each = sum(inner.when == "step" for inner in layers)
    if not each:
        words = f"compiled: {count(len(layers), 'layer')}, once for all steps"
    elif each == len(layers):
        words = f"compiled: {count(each, 'layer')}, at each step"
    else:
        words = (
            f"compiled: {each} of {count(len(layers), 'layer')} at each step, the others once for all steps"
        )
    if loop.hoisted:
        words += f"; of {', '.join(loop.hoisted)} the product with the input, too"
    return words


def _ports(loop: Loop) -> Iterator[RenderableType]:
    for name in loop.takes:
        table = _table("", "outside", "", "inside", "how")
        body = "" if name == "body" else f"{name}: "
        for port in loop.takes[name]:
            _row(table, f"  {body}in", port.outer or "-", "->", port.inner, way_text(port))
        for port in loop.gives[name]:
            _row(table, f"  {body}out", port.outer or "-", "<-", port.inner, way_text(port))
        for edge in loop.back_edges:
            _row(table, "  back edge", "", "", f"{edge.result} -> {edge.parameter}", "to the next step")
        yield table


def _cost(it: Inspection) -> RenderableType:
    table = _table("cost", "parameters", "FLOP", "bytes", right=("parameters", "FLOP", "bytes"))
    looped = [layer for layer in it.net.layers if layer.loop is not None and layer.loop.kind != "If"]
    outside = [layer for layer in it.net.layers if layer not in looped]
    if looped and any(layer.computes for layer in outside):
        _cost_row(table, "outside of loops", sum(layer.parameters for layer in outside), _sum(outside))
    for layer, loop in it.loops():
        if loop.kind == "If":
            continue
        name = " / ".join(loop.path)
        steps = "an unknown number of steps" if loop.steps is None else count(loop.steps, "step")
        if loop.once.flops or loop.once.bytes:
            _cost_row(table, f"{name}: once, for all steps", None, loop.once)
        _cost_row(table, f"{name}: each of {steps}", layer.parameters, loop.step)
    _cost_row(table, "a run", it.parameters, it.cost)
    lines: list[RenderableType] = [table]
    at = ", ".join(f"{plain(name)} [{shape_text(shape)}]" for name, shape in it.counted_at.items())
    if any(socket.value.shape is None or -1 in socket.value.shape for socket in it.inputs):
        lines.append(Text(f"Counted at {at}; --shape NAME=2,100,64 counts at others.", style="dim"))
    if it.cost.unknown:
        told = f"Not counted: {count(it.cost.unknown, 'layer')} of which the shapes are not known."
        lines.append(Text(f"{told} --shape may help.", style="dim"))
    lines.append(Text(_COUNTS, style="dim"))
    return Group(*lines)


def _sum(layers: list[Layer]) -> Cost:
    return sum((layer.cost for layer in layers), Cost())


def _cost_row(table: Table, name: str, parameters: int | None, cost: Cost) -> None:
    known = "" if parameters is None else number(parameters)
    _row(table, name, known, _flop(cost), number(cost.bytes, "B"))
