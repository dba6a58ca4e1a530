"""Values of a body that must not share memory.

OpenVINO (2026.4, CPU) lets an elementwise layer write its result over its first operand, and a Squeeze or
Reshape return the memory that it was given. In a body that can reach the memory of a Parameter: an invariant
changes after the first step, a slice is replaced before a state is copied from it, and of two states that
change places one is lost. What lies in between can be told apart by layers whose result is new memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stepnet.openvino.layers import activations, elementwise
from stepnet.openvino.reader import fits
from stepnet.openvino.records import Layer, Net
from stepnet.openvino.table import is_constant
from stepnet.openvino.writing.edit import Editor, Source

_FEW = 16  # numbers of a constant that is compared by value
_COMPARE = {"equal", "notequal", "greater", "greaterequal", "less", "lessequal", "select"}
_OVER_FIRST = {row.type.lower() for module in (activations, elementwise) for row in module.ROWS} - _COMPARE
_OVER_FIRST |= {"softmax", "logsoftmax", "mvn", "normalizel2", "batchnorminference", "fakequantize"}
_SAME = {"squeeze", "unsqueeze", "reshape", "split", "variadicsplit", "transpose", "slice", "stridedslice"}
_EITHER_WAY = {"add", "multiply", "maximum", "minimum", "logicaland", "logicalor", "logicalxor"}


def keep_apart(loop: Layer) -> None:
    """Change the body of a TensorIterator or Loop, in place, until nothing writes where it must not."""
    _Body(loop).run()


class _Body:
    """`readers` counts who reads an output: what two read is not written over.

    Layers that compute the same count as one, and those that no Result needs as none: OpenVINO merges the
    ones and drops the others before it shares memory.
    """

    def __init__(self, loop: Layer) -> None:
        self.loop = loop
        self.net: Net = loop.bodies[""]
        self.edit = Editor(self.net)
        self.edit.drop_dead()
        self.edit.done()
        carried = {to for _, to in loop.back_edges}
        self.invariant = {
            row.internal
            for row in loop.maps[""].inputs
            if row.axis is None and row.purpose is None and row.internal not in carried
        }
        self._first = first_of_equals(self.net)
        reads = {
            (self._first[layer.id], operand, self._equal(source))
            for layer in self.net.layers.values()
            for operand, source in enumerate(layer.sources)
        }
        self._readers = Counter(source for _, _, source in reads)
        self._copies: dict[Source, Source] = {}

    def run(self) -> None:
        for i in self.net.order:
            layer = self.net.layers[i]
            for operand in self._written_over(layer):
                if self._harmful(layer, operand):
                    self._spare(layer, operand)
        for result, target in self.loop.back_edges:
            self._own_memory(result, target)
        self.edit.done()

    def _harmful(self, layer: Layer, operand: int) -> bool:
        """Whether a layer may write over what is read again."""
        source = layer.sources[operand]
        if not self._fits(layer, operand) or self._read_twice(source):
            return False
        paths = self._paths(source)
        return any(path[-1][0] in self.invariant or any(map(self._read_twice, path[1:])) for path in paths)

    def _equal(self, source: Source) -> Source:
        return self._first[source[0]], source[1]

    def _read_twice(self, source: Source) -> bool:
        return self._readers[self._equal(source)] > 1

    def _spare(self, layer: Layer, operand: int) -> None:
        if self._turned(layer, operand) and not self._harmful(layer, 0):
            return
        self._turned(layer, operand)  # back
        self._copy_into(layer, operand)

    def _own_memory(self, result: int, target: int) -> None:
        """A Result that is carried lies in no memory but that of its own Parameter."""
        layer = self.net.layers[result]

        def elsewhere() -> list[Source] | None:
            paths = self._paths(layer.sources[0])
            return next((path for path in paths if path[-1] != (target, 0)), None)

        path = elsewhere()
        if path is None:
            return
        for source in path:
            writer = self.net.layers[source[0]]
            if self._turned(writer, 0):
                if elsewhere() is None and not self._harmful(writer, 0):
                    return
                self._turned(writer, 0)
        self._copy_into(layer, 0)

    def _paths(self, source: Source) -> Iterator[list[Source]]:
        """Outputs that may lie in one memory, from one back to each Parameter that it may be of."""
        came: dict[Source, Source | None] = {source: None}
        waiting = [source]
        while waiting:
            at = waiting.pop()
            layer = self.net.layers[at[0]]
            kind = layer.type.lower()
            if kind == "parameter":
                path: list[Source] = []
                back: Source | None = at
                while back is not None:
                    path.append(back)
                    back = came[back]
                yield path[::-1]
                continue
            if kind in _SAME or self._is_squeeze(layer):
                operands = (0,)
            else:
                over = (*self._written_over(layer), *self._computed_with(layer))
                operands = tuple(i for i in over if self._fits(layer, i))
            for i in reversed(operands):
                if layer.sources[i] not in came:
                    came[layer.sources[i]] = at
                    waiting.append(layer.sources[i])

    def _is_squeeze(self, layer: Layer) -> bool:
        """A Gather of one entry, which OpenVINO makes a Squeeze where the axis has one."""
        if layer.type.lower() != "gather":
            return False
        index = self.net.layers[layer.sources[1][0]]
        return is_constant(index) and index.value is not None and index.value.numel() == 1

    def _fits(self, layer: Layer, operand: int) -> bool:
        """Whether an operand can have the shape of the result."""
        given, made = self.edit.port(layer.sources[operand]).shape, layer.outputs[0].shape
        return given is None or made is None or fits(given, made)

    def _written_over(self, layer: Layer) -> tuple[int, ...]:
        """The operands that a layer may write its result over. OpenVINO puts a constant behind."""
        kind = layer.type.lower()
        if kind == "select":
            return (1, 2)
        if kind in _EITHER_WAY and is_constant(self.net.layers[layer.sources[0][0]]):
            return (1,)
        return (0,) if kind in _OVER_FIRST and layer.sources else ()

    def _computed_with(self, layer: Layer) -> tuple[int, ...]:
        """The second operand, where for this layer alone two values are added or such, and more done to
        the result: OpenVINO may make one layer of all, which writes over the first of the two."""
        if layer.type.lower() not in _OVER_FIRST or len(layer.sources) != 2:
            return ()
        sources = [layer.sources[1]]
        while len(sources) == 1 and not self._read_twice(sources[0]):
            inner = self.net.layers[sources[0][0]]
            if inner.type.lower() not in _OVER_FIRST:
                return ()
            sources = [s for s in inner.sources if not is_constant(self.net.layers[s[0]])]
        return (1,) if len(sources) > 1 else ()

    def _turned(self, layer: Layer, operand: int) -> bool:
        """Swap the operands of an addition and its like."""
        if operand != 0 or layer.type.lower() not in _EITHER_WAY:
            return False
        first, second = layer.sources
        if is_constant(self.net.layers[second[0]]):
            return False
        self.edit.rewire(layer, 0, second)
        self.edit.rewire(layer, 1, first)
        return True

    def _copy_into(self, layer: Layer, operand: int) -> None:
        """Feed a layer a copy: the larger of a value and itself, which OpenVINO neither drops nor writes
        over its operand, as that has two readers."""
        source = layer.sources[operand]
        if source not in self._copies:
            port = self.edit.port(source)
            truth = port.type is not None and port.type.name == "boolean"
            made = self.edit.add(
                "LogicalOr" if truth else "Maximum", [source, source], [(port.type, port.shape)],
                {"auto_broadcast": "numpy"}, near=self.net.layers[source[0]],
            )  # fmt: skip
            self._copies[source] = made.id, 0
            self._first[made.id] = made.id
            self._readers[self._equal(source)] += 2
        copy = self._copies[source]
        self.edit.rewire(layer, operand, copy)
        self._readers[self._equal(source)] -= 1
        self._readers[copy] += 1


def first_of_equals(net: Net) -> dict[int, int]:
    """For each layer the first that computes the same: of one type, with equal attributes and inputs."""
    first: dict[int, int] = {}
    seen: dict[object, int] = {}
    for i in net.order:
        layer = net.layers[i]
        key: object = i
        if is_constant(layer) and layer.value is not None and layer.value.numel() <= _FEW:
            key = str(layer.value.dtype), tuple(layer.value.shape), str(layer.value.tolist())
        elif layer.sources and layer.type != "Result" and not layer.bodies:
            inputs = tuple((first[source], index) for source, index in layer.sources)
            key = layer.type.lower(), layer.version, tuple(sorted(layer.attributes.items())), inputs
        first[i] = seen.setdefault(key, i)
    return first
