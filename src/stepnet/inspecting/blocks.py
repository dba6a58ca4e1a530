"""The boxes of the picture: what stands in them, in which colours, and how large they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from stepnet.explaining import look as looks
from stepnet.explaining.draw import Canvas, corners, cut, text_width
from stepnet.explaining.titles import short

from .flops import PRODUCTS, VIEWS
from .folding import Box
from .records import Cost, Layer, Port, Value
from .words import amount, number, plain, shape_text, steps_text, value_text, way_text

TITLE, SMALL = 12.0, 10.5
_WIDEST = 210.0
_ARC = 24.0  # room for the edge that goes round


@dataclass(frozen=True)
class Block:
    """A box with lines of text. `heavy`: filled; `round`: the end of a net; `small`: it only moves data;
    `turns`: a recurrence in one layer."""

    title: str
    lines: tuple[str, ...]
    tip: str
    colours: looks.Look
    heavy: bool = False
    round: bool = False
    small: bool = False
    turns: bool = False

    @property
    def width(self) -> float:
        """Wide enough for its lines, up to a limit at which they are cut."""
        wide = max(
            text_width(self.title, TITLE) * 1.08, *(text_width(line, SMALL) for line in self.lines), 44.0
        )
        return min(wide + 22, _WIDEST) + (2 * _ARC if self.turns else 0)

    @property
    def height(self) -> float:
        """High enough for its lines."""
        return (21.0 if self.small else 25.0) + 14.0 * len(self.lines)

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw it around a centre."""
        w, h = self.width - (2 * _ARC if self.turns else 0), self.height
        canvas.open("g")
        canvas.element("title", escape(self.tip))
        fill = self.colours.ink if self.heavy else self.colours.paper if self.round else "#ffffff"
        canvas.box(x - w / 2, y - h / 2, w, h, rx=min(h / 2, 13) if self.round else 5, fill=fill,
                   stroke=self.colours.ink, stroke_width=1.6 if self.heavy else 1)  # fmt: skip
        ink, faint = ("#ffffff", "#ffffff") if self.heavy else (looks.TEXT, looks.FAINT)
        at = y - h / 2 + (14.5 if self.small else 17)
        bold = {} if self.small else {"font_weight": "bold"}
        canvas.text(
            x, at, cut(self.title, TITLE * 1.08, w - 12), TITLE, fill=ink, text_anchor="middle", **bold
        )
        for line in self.lines:
            at += 14
            canvas.text(x, at, cut(line, SMALL, w - 10), SMALL, fill=faint, text_anchor="middle")
        if self.turns:
            a, b, c, d = x + w / 4, x + w / 2 + _ARC - 8, y + h / 2, y - h / 2
            points = [(a, c), (a, c + 9), (b, c + 9), (b, d - 9), (a, d - 9), (a, d - 2)]
            canvas.path(
                corners(points, 6.0), stroke=looks.STEP.ink, stroke_width=2.4, marker_end="url(#to-step)",
                **{"class": "back-edge"},
            )  # fmt: skip
        canvas.close("g")


def block(box: Box, ports: Mapping[int, Sequence[Port]], next_of: Mapping[int, Sequence[str]]) -> Block:
    """What a box looks like.

    Args:
        ports: of the ends of a body, by their ids.
        next_of: the states that a Result of a body is at the next step, by its id.
    """
    if len(box.layers) > 1:
        return _stretch(box.layers)
    layer = box.first
    if not layer.computes:
        return _end(layer, ports.get(layer.id, ()), next_of.get(layer.id, ()))
    colours = _colours(layer)
    name, kind = plain(layer.name), plain(layer.type)
    told = name.lower().startswith(kind.lower())
    shapes = _shapes(layer.outputs)
    small = layer.type.lower() in VIEWS
    lines = () if told else (name,)
    if layer.loop is not None:
        steps = plain(steps_text(layer.loop)).split(":")[0]
        lines = (*lines, f"{steps}, compiled" if layer.loop.compiled else steps)
    return Block(
        name if told else kind,
        lines if small and told else (*lines, shapes),
        _tip(layer),
        colours,
        heavy=layer.type.lower() in PRODUCTS,
        small=small,
        turns=layer.loop is not None,
    )


def _colours(layer: Layer) -> looks.Look:
    if layer.when == "step" or layer.loop is not None:
        return looks.STEP
    return looks.ONCE if layer.when else looks.AROUND


def _end(layer: Layer, ports: Sequence[Port], states: Sequence[str]) -> Block:
    lines = [way_text(port) for port in ports]
    lines += [f"next {plain(state)}" for state in states]
    turning = bool(states) or any(port.way == "state" for port in ports)
    cut_up = any(port.way in ("slice", "joined") for port in ports)
    colours = looks.STEP if turning else looks.ONCE if cut_up else looks.AROUND
    if not ports and layer.outputs:
        lines.append(_shapes(layer.outputs))
    return Block(plain(layer.name), tuple(lines), _tip(layer), colours, round=True)


def _stretch(layers: Sequence[Layer]) -> Block:
    cost = sum((layer.cost for layer in layers), Cost())
    kinds = Counter(plain(layer.type) for layer in layers).most_common()
    shown = [f"{count} {kind}" for kind, count in kinds[:4]]
    if len(kinds) > 4:
        shown.append(f"{sum(count for _, count in kinds[4:])} others")
    lines = [", ".join(shown[:2])]
    if shown[2:]:
        lines.append(", ".join(shown[2:]))
    parameters = sum(layer.parameters for layer in layers)
    if parameters or cost.flops:
        told = (amount(parameters, "parameter") if parameters else "", number(cost.flops, "FLOP"))
        lines.append(", ".join(part for part in told if part))
    heavy = any(layer.type.lower() in PRODUCTS for layer in layers)
    tip = "\n".join(f"{plain(layer.type)} {plain(layer.name)}" for layer in layers)
    return Block(f"{len(layers)} layers", tuple(lines), tip, _colours(layers[0]), heavy=heavy)


def _shapes(values: Sequence[Value]) -> str:
    shown = [f"[{shape_text(value.shape)}]" for value in values]
    return ", ".join(dict.fromkeys(shown))


def _tip(layer: Layer) -> str:
    lines = [f"{plain(layer.type)} {plain(layer.name)}", *(value_text(value) for value in layer.outputs)]
    if layer.constants:
        lines.append(f"constants: {', '.join(map(plain, layer.constants))}")
    if layer.parameters:
        lines.append(amount(layer.parameters, "parameter"))
    if layer.cost.flops:
        lines.append(short(layer.cost.flops, "FLOP"))
    return "\n".join(lines)
