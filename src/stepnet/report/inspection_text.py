"""A model as text: tables for a terminal, or plain columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .inspection import Inspection, Layer, LayerLoop, Net
from .records import Cost
from .text import UNFOLDED, add_row, print_parts, table, to_text
from .words import (
    WHEN,
    count,
    parameter_count,
    printable,
    short,
    sizes_by_name,
    steps_text,
    typed,
    verdict,
    way_text,
)  # fmt: skip

MOST_LAYERS = 40  # of a net; more are listed by type
_COUNTS = (
    "FLOP: 2 K for each element of a product over K, 10 for exp, tanh and the like, 1 for other arithmetic. "
    "Bytes: what is read and written, by each layer or by what a compiled loop does in one go."
)


def text(it: Inspection) -> str:
    """The whole text, in lines that are not folded."""
    return to_text(_parts(it, every=False), UNFOLDED)


def show(it: Inspection, console: Console, *, every: bool = False) -> None:
    """Print it; with `every` each layer, however many there are."""
    print_parts(_parts(it, every), console)


def _parts(it: Inspection, every: bool) -> Iterator[RenderableType]:
    yield _head(it)
    ends = table("", "name", "type and shape")
    for kind, sockets in (("input", it.inputs), ("default", it.defaults), ("output", it.outputs)):
        for socket in sockets:
            add_row(ends, kind, socket.name, typed(socket.value))
    yield ends
    if any(layer.computes for layer in it.net.layers):
        yield Group(Text("LAYERS", style="bold"), _layers(it.net, every))
    for _, loop in it.loops():
        yield from _loop(loop, every)
    yield _cost(it)


def _head(it: Inspection) -> Text:
    title = Text(printable(it.file), style="bold")
    parts = (
        f"{'operator set' if it.file.lower().endswith('.onnx') else 'IR version'} {it.version}",
        count(sum(layer.computes for layer in it.net.all_layers()), "layer"),
        count(len(it.loops()), "loop"),
        parameter_count(it.parameters),
        f"{short(it.weight_bytes, 'B')} of constants",
    )
    name = f" '{printable(it.name)}'" if it.name else ""
    return title.append(f"{name}  {', '.join(parts)}", style="not bold")


def _layers(net: Net, every: bool) -> Table:
    layers = [layer for layer in net.layers if layer.computes]
    if len(layers) > MOST_LAYERS and not every:
        return _types(layers)
    inside = any(layer.when for layer in layers)
    names = ("layer", "type", "gives", "parameters", "FLOP", *(("runs",) if inside else ()))
    it = table(*names, right=("parameters", "FLOP"))
    for layer in layers:
        results = ", ".join(map(typed, layer.outputs))
        cells = [layer.name, layer.type, results, _number(layer.parameters), _flops(layer.cost)]
        _layer_row(it, layer, cells)
    return it


def _types(layers: list[Layer]) -> Table:
    """A row for each type of layer, the most expensive first."""
    kinds: dict[tuple[str, str | None], list[Layer]] = {}
    for layer in layers:
        kinds.setdefault((layer.type, layer.when), []).append(layer)
    inside = any(layer.when for layer in layers)
    names = ("type", "layers", "parameters", "FLOP", *(("run",) if inside else ()))
    it = table(*names, right=("layers", "parameters", "FLOP"))
    for group in sorted(kinds.values(), key=lambda group: (-_sum(group).flops, -len(group))):
        parameters = _number(sum(layer.parameters for layer in group))
        cells = [group[0].type, f"{len(group):,}", parameters, _flops(_sum(group))]
        _layer_row(it, group[0], cells)
    it.caption = Text("--all lists each layer", style="dim")
    return it


def _layer_row(it: Table, layer: Layer, cells: list[str]) -> None:
    """A row that ends in how often the layer runs, if it is in a loop."""
    runs = [WHEN[layer.when]] if layer.when else []
    add_row(it, *cells, *runs, style="yellow" if layer.when == "step" else None)


def _loop(loop: LayerLoop, every: bool) -> Iterator[RenderableType]:
    title = Text("LOOP ", style="bold").append(printable(" / ".join(loop.path)))
    title.append(f"  {loop.kind}, {printable(steps_text(loop))}", style="not bold")
    how = [] if loop.kind == "If" else [Text(f"  {printable(_frequency(loop))}")]
    yield Group(title, *how, *_ports(loop))
    for name, body in loop.bodies.items():
        heading = "layers of the body" if name == "body" else f"layers of the body '{name}'"
        if any(inner.computes for inner in body.layers):
            yield Group(Text(f"  {heading}", style="dim"), _layers(body, every))


def _frequency(loop: LayerLoop) -> str:
    """What runs at each step, and what once."""
    if not loop.compiled:
        return verdict(loop)
    if not loop.bodies:
        return "compiled: the product with the input runs once, for all steps; the rest at each step"
    layers = [inner for inner in loop.bodies["body"].layers if inner.computes]
    each = sum(inner.when == "step" for inner in layers)
    all_layers = count(len(layers), "layer")
    if not each:
        words = f"compiled: {all_layers}, once for all steps"
    elif each == len(layers):
        words = f"compiled: {all_layers}, at each step"
    else:
        words = f"compiled: {each} of {all_layers} at each step, the others once for all steps"
    return f"{words}; of {', '.join(loop.hoisted)} the product with the input, too" if loop.hoisted else words


def _ports(loop: LayerLoop) -> Iterator[RenderableType]:
    for name in loop.takes:
        it = table("", "outside", "", "inside", "how")
        body = "" if name == "body" else f"{name}: "
        for port in loop.takes[name]:
            add_row(it, f"  {body}in", port.outer or "-", "->", port.inner, way_text(port))
        for port in loop.gives[name]:
            add_row(it, f"  {body}out", port.outer or "-", "<-", port.inner, way_text(port))
        for edge in loop.back_edges:
            add_row(it, "  back edge", "", "", f"{edge.result} -> {edge.parameter}", "to the next step")
        yield it


def _cost(it: Inspection) -> RenderableType:
    figures = ("parameters", "FLOP", "bytes")
    costs = table("cost", *figures, right=figures)

    def row(name: str, parameters: int | None, cost: Cost) -> None:
        add_row(costs, name, _number(parameters or 0), _flops(cost), _number(cost.bytes, "B"))

    outside = [layer for layer in it.net.layers if layer.loop is None or layer.loop.kind == "If"]
    if len(outside) < len(it.net.layers) and any(layer.computes for layer in outside):
        row("outside of loops", sum(layer.parameters for layer in outside), _sum(outside))
    for layer, loop in it.loops():
        if loop.kind == "If":
            continue
        name = " / ".join(loop.path)
        steps = "an unknown number of steps" if loop.steps is None else count(loop.steps, "step")
        if loop.once.flops or loop.once.bytes:
            row(f"{name}: once, for all steps", None, loop.once)
        row(f"{name}: each of {steps}", layer.parameters, loop.step)
    row("a run", it.parameters, it.cost)
    notes = []
    if any(socket.value.shape is None or -1 in socket.value.shape for socket in it.inputs):
        notes.append(f"Counted at {sizes_by_name(it.counted_at)}; --shape NAME=2,100,64 counts at others.")
    if it.cost.unknown:
        layers = count(it.cost.unknown, "layer")
        notes.append(f"Not counted: {layers} of which the shapes are not known. --shape may help.")
    return Group(costs, *(Text(note, style="dim") for note in (*notes, _COUNTS)))


def _sum(layers: Sequence[Layer]) -> Cost:
    return sum((layer.cost for layer in layers), Cost())


def _flops(cost: Cost) -> str:
    return "?" if cost.unknown and not cost.flops else _number(cost.flops)


def _number(number: int, unit: str = "") -> str:
    """A number in three digits; nothing for 0."""
    return short(number, unit) if number else ""
