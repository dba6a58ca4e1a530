"""What makes or reads a matrix of each row, on the border of a scan, taken into it.

The plan says: outer products of all rows, then the loop; the loop, then products of all rows with their
matrices. Made once on all rows, such matrices fill memory and leave every cache: taken into the loop, they
are made and read a row at a time, most often in the pass over the state that is one of them.

    S[t] = a S[t-1] + outer(k, v);  Y = Q S     ->     S[t] = a S[t-1] + k v';  y[t] = q[t] S[t]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from stepnet.ir.graph import Node, in_order
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import LoopPlan, Region

from .views import VIEWS

_LEAST = 128  # numbers of a matrix that is better made where it is read


def gather_wide(loop: LoopPlan, fits: Callable[[Region, Node], bool]) -> LoopPlan:
    """The loop with such ops moved into the scans they border on, as far as `fits` lets them stand there."""
    regions = list(loop.regions)
    at = 0
    while at < len(regions):
        if regions[at].kind == "scan":
            before = regions[at - 1] if at and regions[at - 1].kind == "map" else None
            after = regions[at + 1] if at + 1 < len(regions) and regions[at + 1].kind == "map" else None
            moved = _Move(loop, regions[at], fits).run(before, after)
            if moved is not None:
                first, last = at - (before is not None), at + 1 + (after is not None)
                regions[first:last] = moved
                at = first + [region.kind for region in moved].index("scan")
        at += 1
    return replace(loop, regions=tuple(regions))


class _Move:
    def __init__(self, loop: LoopPlan, scan: Region, fits: Callable[[Region, Node], bool]) -> None:
        self.body, self.scan, self.fits = loop.body, scan, fits

    def run(self, before: Region | None, after: Region | None) -> list[Region] | None:
        """The map before, the scan and the map after with nodes moved; None: none is."""
        early = list(before.nodes) if before is not None else []
        late = list(after.nodes) if after is not None else []
        sunk = self._sunk(early)
        left = [node for node in early if id(node) not in sunk]
        behind = _reading(left, {n for node in early if id(node) in sunk for n in node.outputs})
        first = [node for node in left if id(node) not in behind]
        late = [*(node for node in left if id(node) in behind), *late]
        taken = self._taken(late)
        if not sunk and not taken:
            return None
        nodes = [
            *(node for node in early if id(node) in sunk),
            *self.scan.nodes,
            *(node for node in late if id(node) in taken),
        ]
        last = [node for node in late if id(node) not in taken]
        out = [replace(self.scan, nodes=in_order(nodes))]
        if first:
            out.insert(0, Region("map", tuple(first)))
        if last:
            out.append(Region("map", in_order(last)))
        return out

    def _sunk(self, nodes: list[Node]) -> set[int]:
        """Those of the map before that move: nothing that the scan waits for may wait for them elsewhere."""
        sunk = {id(node) for node in nodes if self._wide(node)}
        turned = {carry.result for carry in self.scan.carries}
        while True:
            wanted = {n for node in self.scan.nodes for n in node.inputs} | turned
            wanted |= {n for node in nodes if id(node) in sunk for n in node.inputs}
            stay: set[str] = set()
            for node in reversed(nodes):
                if id(node) not in sunk and not wanted.isdisjoint(node.outputs):
                    wanted.update(node.inputs)
                    stay.update(node.inputs)
            blocked = {id(n) for n in nodes if id(n) in sunk and not stay.isdisjoint(n.outputs)}
            if not blocked:
                return sunk
            sunk -= blocked

    def _taken(self, nodes: list[Node]) -> set[int]:
        """Those of the map after that move: all that they read is at hand in the scan."""
        taken: set[int] = set()
        away: set[str] = set()
        for node in nodes:
            if away.isdisjoint(node.inputs) and self._wide(node):
                taken.add(id(node))
            else:
                away.update(node.outputs)
        return taken

    def _wide(self, node: Node) -> bool:
        op, values = OPS[node.op], self.body.values
        names = (*node.inputs, *node.outputs)
        looped = op.stage in (Stage.POINTWISE, Stage.REDUCE) or node.op in (*VIEWS, "cat", "sum_rows")
        product = node.op == "matmul" and values[node.inputs[1]].kind == "row"
        if not (looped or product) or not any(map(self._is_matrix, names)):
            return False
        return self.fits(self.scan, node)

    def _is_matrix(self, name: str) -> bool:
        value = self.body.values[name]
        return value.kind == "row" and value.size >= _LEAST and sum(n > 1 for n in value.shape) > 1


def _reading(nodes: Iterable[Node], values: set[str]) -> set[int]:
    """The nodes that depend on values, directly or not."""
    known, found = set(values), set()
    for node in nodes:
        if not known.isdisjoint(node.inputs):
            found.add(id(node))
            known.update(node.outputs)
    return found
