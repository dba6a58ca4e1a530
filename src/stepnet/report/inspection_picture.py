"""A model as a picture: its graph from top to bottom, loops as panels around their bodies."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from . import svg
from .boxes import Box
from .cost import PRODUCTS, VIEWS, kind_of
from .fold_layers import Group, groups
from .graph import Graph
from .inspection import BackEdge, Inspection, Layer, LayerLoop, Net, PortMapping
from .records import Cost, Value
from .words import (
    count,
    parameter_count,
    printable,
    shape,
    short,
    sizes_by_name,
    steps_text,
    typed,
    verdict,
    way_text,
)  # fmt: skip

_GROUND = "#fffaf5"
_PAD = 16.0
_SIDE = 172.0  # the column of words beside a body
_COLUMNS = 29  # of characters in it


def picture(it: Inspection) -> str:
    """The picture of a model."""
    canvas, drawing = svg.Canvas(), NetDrawing(it.net)
    heading = list(_heading(it))
    wide = max(drawing.width, *(svg.text_width(line, size) * 1.05 for line, size, _ in heading), 560.0)
    y = canvas.heading(10.0, heading)
    y = canvas.legend(y + 26, wide + 2 * svg.LEFT, _marks(it))
    drawing.draw(canvas, svg.LEFT + (wide - drawing.width) / 2, y)
    return canvas.svg(
        wide + 2 * svg.LEFT, y + drawing.height + svg.LEFT, f"The model {printable(it.name or it.file)}"
    )


def _heading(it: Inspection) -> Iterator[tuple[str, float, str]]:
    yield printable(it.name or it.file), 20.0, svg.TEXT
    layers = sum(layer.computes for layer in it.net.all_layers())
    cost = "" if it.cost.unknown else f", {short(it.cost.flops, 'FLOP')} a run"
    parts = (count(layers, "layer"), count(len(it.loops()), "loop"), parameter_count(it.parameters))
    yield f"{', '.join(parts)}{cost}", 13.0, svg.TEXT
    yield f"counted at {sizes_by_name(it.counted_at)}", 11.0, svg.FAINT


def _marks(it: Inspection) -> Iterator[svg.Mark]:
    layers = list(it.net.all_layers())
    frequencies = {layer.when for layer in layers}
    if "step" in frequencies:
        yield svg.Mark("box", "runs at each step", svg.STEP.ink)
    if frequencies & {"rows", "once"}:
        yield svg.Mark("box", "runs once, for all steps", svg.ONCE.ink)
    if any(kind_of(layer.type) in PRODUCTS for layer in layers):
        yield svg.Mark("box", "filled: products", svg.AROUND.ink, svg.AROUND.ink)
    if any(loop.kind != "If" for _, loop in it.loops()):
        yield svg.Mark("arrow", "back edge: to the next step")


class NetDrawing(Graph):
    """The graph of the model or of a body; `ports` are the loop's, by the ids of Parameters and Results."""

    def __init__(
        self,
        net: Net,
        ports: Mapping[int, Sequence[PortMapping]] | None = None,
        back_edges: Sequence[BackEdge] = (),
    ) -> None:
        self.groups = groups(net)
        self.place = {layer.id: i for i, group in enumerate(self.groups) for layer in group}
        next_states: dict[int, list[str]] = {}
        for edge in back_edges:
            next_states.setdefault(edge.result_id, []).append(edge.parameter)
        self.edges = sorted(
            {
                (self.place[source], i)
                for i, group in enumerate(self.groups)
                for layer in group
                for source, _ in layer.reads
                if self.place[source] != i
            }
        )
        super().__init__(
            [_part(group, ports or {}, next_states) for group in self.groups],
            self.edges,
            [{"Parameter": -1, "Result": 1}.get(group[0].type, 0) for group in self.groups],
            back_edges=[(self.place[e.result_id], self.place[e.parameter_id]) for e in back_edges],
            aside=12.0,
            drop=30.0,
        )

    def draw(self, canvas: svg.Canvas, left: float, top: float) -> None:
        """Draw it with its corner at a point."""
        self.move(left, top)
        parts = list(enumerate(self.parts))
        for i, part in parts:  # panels first: edges end inside of them
            if isinstance(part, LoopPanel):
                (x, _), (_, y) = self.centre(i), self.top_of(i)
                part.draw(canvas, x - part.width / 2, y)
        paths = dict.fromkeys(tuple(path) for path in self._paths())
        for path in paths:
            canvas.arrow(svg.down(path), width=1.3)
        for i, part in parts:
            if isinstance(part, Box):
                part.draw(canvas, *self.centre(i))
        self.draw_back_edges(canvas)

    def _paths(self) -> Iterator[list[svg.Point]]:
        for i, group in enumerate(self.groups):
            for layer in group:
                for source, index in layer.reads:
                    j = self.place[source]
                    for start in self._starts(j, index) if j != i else ():
                        for end in self._ends(i, (source, index)):
                            *path, (x, y) = [*start, *self.bends(j, i), *end]
                            yield [*path, (x, y - 2)]

    def _starts(self, i: int, output: int) -> list[list[svg.Point]]:
        """Where the edges of an output begin; in a panel at Results of its bodies."""
        part, (x, low) = self.parts[i], self.bottom_of(i)
        if isinstance(part, LoopPanel):
            return [[point, (point[0], low)] for point in part.ports_of_output(output)]
        return [[(x, low)]]

    def _ends(self, i: int, read: tuple[int, int]) -> list[list[svg.Point]]:
        """Where the edges of an input end; in a panel at Parameters of its bodies."""
        part, (x, high) = self.parts[i], self.top_of(i)
        if isinstance(part, LoopPanel):
            aside = x - part.width / 2 + _PAD + _SIDE / 2
            return [[(at[0], high), at] for at in part.ports_of_input(read)] or [[(aside, high)]]
        return [[(x, high)]]


class LoopPanel:
    """A loop: words beside its body; an If has two bodies side by side."""

    def __init__(self, name: str, loop: LayerLoop) -> None:
        self.loop = loop
        self.bodies: dict[str, NetDrawing] = {}
        for body, net in loop.bodies.items():
            ports: dict[int, list[PortMapping]] = {}
            for port in (*loop.takes[body], *loop.gives[body]):
                ports.setdefault(port.inner_id, []).append(port)
            self.bodies[body] = NetDrawing(net, ports, loop.back_edges)
        self.words = list(_loop_words(name, loop))
        self.caption = 20.0 if len(self.bodies) > 1 else 0.0

    @property
    def width(self) -> float:
        """With the words."""
        return 2 * _PAD + _SIDE + sum(d.width for d in self.bodies.values()) + 28.0 * (len(self.bodies) - 1)

    @property
    def height(self) -> float:
        """Enough for the words and for each body."""
        tall = max((d.height for d in self.bodies.values()), default=0.0)
        return 2 * _PAD + max(tall + self.caption, 22 + 15.0 * len(self.words))

    def draw(self, canvas: svg.Canvas, left: float, top: float) -> None:
        """Draw it with its corner at a point."""
        with canvas.group(**{"class": "loop"}):
            canvas.box(left, top, self.width, self.height, rx=12, fill=_GROUND, stroke=svg.STEP.ink)
            y = top + _PAD + 12
            for i, (words, size, colour) in enumerate(self.words):
                canvas.text(left + _PAD, y, words, size, fill=colour, **({} if i else svg.BOLD))
                y += 15 if i else 18
            x = left + _PAD + _SIDE
            for name, drawing in self.bodies.items():
                if self.caption:
                    canvas.text(x, top + _PAD + 8, name, 12, fill=svg.STEP.ink)
                drawing.draw(canvas, x, top + _PAD + self.caption)
                x += drawing.width + 28

    def ports_of_input(self, read: tuple[int, int]) -> list[svg.Point]:
        """The Parameters that a value enters by."""
        return [
            drawing.top_of(drawing.place[port.inner_id])
            for body, drawing in self.bodies.items()
            for port in self.loop.takes[body]
            if port.source == read
        ]

    def ports_of_output(self, output: int) -> list[svg.Point]:
        """The Results that an output of the loop comes from."""
        return [
            drawing.bottom_of(drawing.place[port.inner_id])
            for body, drawing in self.bodies.items()
            for port in self.loop.gives[body]
            if port.output == output
        ]


def _loop_words(name: str, loop: LayerLoop) -> Iterator[tuple[str, float, str]]:
    """Lines of text beside a body: words, size and colour."""
    yield svg.cut(printable(loop.kind), 14, _SIDE - 10), 14.0, svg.STEP.ink
    for line in textwrap.wrap(printable(name), _COLUMNS)[:3]:
        yield line, 11.0, svg.TEXT
    facts = [steps_text(loop), verdict(loop)]
    if loop.compiled and loop.once.flops:
        facts.append(f"{short(loop.once.flops, 'FLOP')} once, for all steps")
    if loop.compiled and loop.hoisted:
        facts.append(f"with the product of {', '.join(loop.hoisted)} with its input")
    if loop.step.flops and loop.kind != "If":
        facts.append(f"{short(loop.step.flops, 'FLOP')} at each step")
    for text in facts:
        lines = textwrap.wrap(printable(text), _COLUMNS)
        for i, line in enumerate(lines[:5]):
            yield (line if i < 4 or len(lines) == 5 else f"{line[:-2]}…"), 10.5, svg.FAINT


def _part(
    group: Group, ports: Mapping[int, Sequence[PortMapping]], next_states: Mapping[int, Sequence[str]]
) -> Box | LoopPanel:
    """What one layer, or some that share a box, look like."""
    layer = group[0]
    if len(group) > 1:
        return _shared_box(group)
    if layer.loop is not None and layer.loop.bodies:
        return LoopPanel(layer.name, layer.loop)
    if not layer.computes:
        return _end_box(layer, ports.get(layer.id, ()), next_states.get(layer.id, ()))
    name, kind = printable(layer.name), printable(layer.type)
    named = name.lower().startswith(kind.lower())
    lines = [] if named else [name]
    if layer.loop is not None:
        steps = printable(steps_text(layer.loop)).split(":")[0]
        lines.append(f"{steps}, compiled" if layer.loop.compiled else steps)
    small = kind_of(layer.type) in VIEWS
    if not (small and named):
        lines.append(_shapes(layer.outputs))
    fill = "ink" if kind_of(layer.type) in PRODUCTS else "white"
    return Box(
        name if named else kind, tuple(lines), _tip(layer), _theme(layer),
        fill=fill, small=small, recurrent=layer.loop is not None,
    )  # fmt: skip


def _theme(layer: Layer) -> svg.Theme:
    if layer.when == "step" or layer.loop is not None:
        return svg.STEP
    return svg.ONCE if layer.when else svg.AROUND


def _end_box(layer: Layer, ports: Sequence[PortMapping], states: Sequence[str]) -> Box:
    """A Parameter or Result, with how its value crosses the border of the loop."""
    lines = [*map(way_text, ports), *(f"next {printable(state)}" for state in states)]
    ways = {port.way for port in ports}
    colours = (
        svg.STEP if states or "state" in ways else svg.ONCE if ways & {"slice", "joined"} else svg.AROUND
    )
    if not ports and layer.outputs:
        lines.append(_shapes(layer.outputs))
    return Box(printable(layer.name), tuple(lines), _tip(layer), colours, fill="paper", round=True)


def _shared_box(layers: Group) -> Box:
    cost = sum((layer.cost for layer in layers), Cost())
    kinds = Counter(printable(layer.type) for layer in layers).most_common()
    shown = [f"{number} {kind}" for kind, number in kinds[:4]]
    if len(kinds) > 4:
        shown.append(f"{sum(number for _, number in kinds[4:])} others")
    parameters = sum(layer.parameters for layer in layers)
    figures = [parameter_count(parameters)] if parameters else []
    figures += [short(cost.flops, "FLOP")] if cost.flops else []
    lines = (", ".join(part) for part in (shown[:2], shown[2:], figures) if part)
    heavy = any(kind_of(layer.type) in PRODUCTS for layer in layers)
    tip = "\n".join(f"{printable(layer.type)} {printable(layer.name)}" for layer in layers)
    fill = "ink" if heavy else "white"
    return Box(f"{len(layers)} layers", tuple(lines), tip, _theme(layers[0]), fill=fill)


def _shapes(values: Sequence[Value]) -> str:
    return ", ".join(dict.fromkeys(shape(value.shape) for value in values))


def _tip(layer: Layer) -> str:
    lines = [f"{printable(layer.type)} {printable(layer.name)}", *map(typed, layer.outputs)]
    if layer.constants:
        lines.append(f"constants: {', '.join(map(printable, layer.constants))}")
    if layer.parameters:
        lines.append(parameter_count(layer.parameters))
    if layer.cost.flops:
        lines.append(short(layer.cost.flops, "FLOP"))
    return "\n".join(lines)
