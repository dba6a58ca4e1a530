"""Run a loop plan: maps on all rows by torch, scans by whichever executor was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.heap import new_table
from stepnet.data.modes import as_written, is_as_written
from stepnet.data.unpatched_torch import data_ptr
from stepnet.errors import StepError
from stepnet.ir.graph import Graph, Node
from stepnet.ir.last_uses import last_uses
from stepnet.ir.ops import RANDOM
from stepnet.ir.plan import LoopPlan, Region

from .layout import Index, Layout
from .torch_ops.ops import Run, bind

_CPU = torch.device("cpu")
_BY_COPY = 1 << 20  # bytes of a table, of which one copy is faster than two that need fewer calls (measured)
_BY_LAYOUT = frozenset({"shift", "spread", "sum_steps"})
Own = Callable[[Graph, Node, Run], Run]
Joined = Callable[[Graph, Sequence["Bound"]], list["Bound"]]
Scan = Callable[..., dict[str, Tensor]]  # see `PreparedLoop`


@dataclass(frozen=True)
class Bound:
    """A node with what computes it; or some as one."""

    run: Run | None  # None: what needs the layout
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Turn(NamedTuple):
    """What runs of a region: its scan, of few rows with products, or nodes; and what is let go then."""

    region: Region
    scan: Scan | None
    nodes: list[Bound]
    dead: tuple[str, ...]
    products: tuple[str, ...] | None = None


class Lone(NamedTuple):
    """A scan, the products that it makes (None: that is not asked of it), and the maps around it."""

    scan: Scan | None
    products: tuple[str, ...] | None
    before: list[Bound]
    after: list[Bound]


class PreparedLoop:
    """A loop plan made ready to run; `scan` runs its scans.

    A scan executor gets the region, the values at hand, the boot values of carries, and the layout; it
    adds the values the region gives to those at hand and returns the last value of each carry. One that can
    make products over rows beside them says which (`products`) and of how many rows (`few_rows`); then it is
    also given those that are asked for, and moves the rows that have a boot by a step. One that can be a
    function of addresses says how (`addressed`, see `direct`). `own` is an executor's way to compute a node
    on all rows, where it has one; `joined`, to compute some as one.
    """

    def __init__(
        self,
        plan: LoopPlan,
        scan: Callable[[LoopPlan, Region], Scan],
        own: Own = lambda graph, node, by_torch: by_torch,
        joined: Joined = lambda graph, nodes: [*nodes],
    ) -> None:
        self.plan, self._joined = plan, joined
        scans = [scan(plan, region) if region.kind == "scan" else None for region in plan.regions]
        spared = _spared(plan, scans)
        self.regions = [
            (
                region,
                scan,
                bound(plan.body, tuple(n for n in region.nodes if not spared.issuperset(n.outputs)), own),
            )
            for region, scan in zip(plan.regions, scans, strict=True)
        ]
        uses = [
            (*(plan.outputs(region) if region.kind == "scan" else region.made), *region.read, *_sources(scan))
            for region, scan in zip(plan.regions, scans, strict=True)
        ]
        kinds = plan.body.values
        self.noise = [node.outputs[0] for node in plan.body.nodes if node.op in RANDOM]
        self._whole = [c.parameter for c in plan.carries if kinds[c.parameter].kind == "sequence"]
        fresh = [name for scan in scans for name in getattr(scan, "fresh", ())]
        maps = [node for region in plan.regions if region.kind != "scan" for node in region.nodes]
        fresh += [node.output for node in maps if node.op == "matmul_tn"]
        self.fresh = frozenset(name for name in fresh if fresh.count(name) == 1)
        # big row tables are let go early
        dies = last_uses(uses, {*plan.wanted, *plan.rows_of_carries()})
        dies[-1:] = [()] * len(dies[-1:])  # the caller lets go of all
        self._turns: list[Turn] = [
            Turn(*region, dead)
            for region, dead in zip(self.regions, dies, strict=True)
            if any(region[1:]) or dead
        ]
        whole = [turn._replace(nodes=joined(plan.body, turn.nodes)) for turn in self._turns]
        self._asked: dict[tuple[frozenset[str] | None, bool], list[Turn]] = {(None, False): whole}
        scanned = {carry.parameter for region in plan.regions for carry in region.carries}
        self._rest = [c for c in plan.carries if c.parameter == c.result or c.parameter not in scanned]
        alone = [(turn.region, turn.scan) for turn in self._turns if turn.scan is not None]
        others = len(self._turns) > 1 or self._whole or self._rest
        self._alone = None if others or not alone else alone[0]  # all that there is to do, if it is one scan
        self._set_few(scans, maps)

    def _set_few(self, scans: Sequence[Scan | None], maps: Sequence[Node]) -> None:
        """`few_rows`: of how many rows at most scans make products over rows, too. `moved`: the parameters
        that one scan then takes from one step to the other. `few_by_address`: whether nothing asks for the
        shape of a parameter then."""
        self._makes: dict[str, Scan] = {}
        for scan in scans:
            if scan is not None:
                self._makes = dict.fromkeys(getattr(scan, "products", ()), scan) | self._makes
        self.few_rows = min((getattr(scan, "few_rows", 0) for scan in self._makes.values()), default=0)
        rows = {name for name in self.plan.body.parameters if self.plan.body.values[name].kind == "row"}
        beside = {name for node in maps if node.outputs[0] not in self._makes for name in node.inputs}
        beside.update(self.plan.wanted, self.plan.rows_of_carries())
        alone = sum(scan is not None for scan in scans) == 1 and bool(self._makes)
        self.moved = frozenset(rows - beside if alone else ())
        self.few_by_address = rows.isdisjoint(beside) and all(
            scan is None or hasattr(scan, "by_address") for scan in scans
        )

    def run(
        self, values: dict[str, Tensor], states: dict[str, Tensor], layout: Layout,
        wanted: frozenset[str] | None = None, as_it_is: bool = False,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
        """Run the loop.

        Args:
            values: parameters by name, row values as [rows, ...].
            states: boot values of the carries by parameter name, in the caller's order of sequences; of no
                more than `few_rows` those of `moved`, too, which stand one step too early in `values`.
            layout: where the rows stand.
            wanted: those of the plan's wanted values that are asked for this time; None: all.
            as_it_is: no value only notes what it stands for, and no mode is around.

        Returns:
            The wanted values by name, and the last value of each carry by parameter name.
        """
        for inputs in (states, values):
            noted = () if as_it_is else map(Tensor.is_neg, inputs.values())
            if not all(map(data_ptr, inputs.values())) or any(noted):
                for name, tensor in inputs.items():
                    inputs[name] = in_memory(name, tensor)
        tensor = next(iter((values or states).values()), None)
        device = _CPU if as_it_is or tensor is None else tensor.device
        if as_it_is or is_as_written(device):
            return self._run(values, states, layout, wanted)
        with as_written(device):  # the plan says what is cast, and constants are made where the rows are
            return self._run(values, states, layout, wanted)

    def lone(self, wanted: frozenset[str] | None, few: bool) -> Lone | None:
        """The scan, if there is one, and the maps around it that take no layout. `few`: see `few_rows`."""
        turns = self.turns(wanted, few)
        at = [k for k, turn in enumerate(turns) if turn.scan is not None]
        if len(at) != 1:
            return None
        parts = turns[: at[0]], turns[at[0] + 1 :]
        before, after = ([node for turn in part for node in turn.nodes] for part in parts)
        return Lone(turns[at[0]].scan, turns[at[0]].products, before, after)

    def turns(self, wanted: frozenset[str] | None = None, few: bool = False) -> list[Turn]:
        """The scans and maps in their order, if no map takes a layout; else none. `few`: see `few_rows`."""
        turns = [turn for turn in self._turns_for(wanted, few) if turn.scan is not None or turn.nodes]
        maps = [turn for turn in turns if turn.scan is None]
        beside = any(turn.region.kind == "sequences" for turn in maps)
        if self._whole or self._rest or beside:
            return []
        by_layout = any(node.run is None or node.op in RANDOM for turn in maps for node in turn.nodes)
        return [] if by_layout else turns

    def hide(self, names: Sequence[str]) -> None:
        """Say that no caller gets hold of some of the values asked for."""
        for _, scan, _ in self.regions:
            if scan is not None and hasattr(scan, "hidden"):
                scan.hidden.update(names)  # pyright: ignore[reportFunctionMemberAccess]

    def reads_rows(self, names: Sequence[str]) -> bool:
        """Whether some tables are read as rows: not only by code that takes the address of their numbers."""
        for _, scan, nodes, *_ in self._turns:
            if scan is not None:
                if not getattr(scan, "by_address", False):
                    return True
            elif any(name in node.inputs for node in nodes for name in names):
                return True
        return any(name in self.plan.wanted for name in names) or any(c.result in names for c in self._rest)

    def draw(self, layout: Layout, device: torch.device) -> list[Tensor]:
        """The noise that a run on these rows draws, in the order of the step: `noise` names it."""
        values: dict[str, Tensor] = {}
        with as_written(device):
            for region, _, nodes in self.regions:
                run_nodes([n for n in nodes if n.op in RANDOM], values, _rows_of(region, layout))
        return [values[name] for name in self.noise]

    def _turns_for(self, wanted: frozenset[str] | None, few: bool) -> list[Turn]:
        """What runs where only some of the wanted values are asked for: the rest of the maps is left out.
        `few`: scans make what products they can."""
        if (wanted, few) not in self._asked:
            asked = {*self.plan.wanted} if wanted is None else wanted
            live = {*asked, *self.plan.rows_of_carries()}
            turns: list[Turn] = []
            for turn in reversed(self._turns):
                made: tuple[str, ...] | None = None
                if turn.scan is not None:
                    if few and turn.scan in self._makes.values():
                        made = tuple(n for n, scan in self._makes.items() if scan is turn.scan and n in live)
                    live.update((*turn.region.read, *_sources(turn.scan)))
                kept: list[Bound] = []
                for node in reversed(turn.nodes):
                    if live.isdisjoint(node.outputs) and node.op not in RANDOM:
                        continue
                    live.update(node.inputs)
                    if not (few and node.outputs[0] in self._makes):
                        kept.insert(0, node)
                kept = self._joined(self.plan.body, kept)
                turns.insert(0, turn._replace(nodes=kept, dead=() if few else turn.dead, products=made))
            self._asked[wanted, few] = turns
        return self._asked[wanted, few]

    def _run(
        self, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout,
        wanted: frozenset[str] | None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
        if self._alone is not None and wanted is None:
            region, scan = self._alone
            return values, scan(region, values, states, layout)
        finals: dict[str, Tensor] = {}
        for name in self._whole:
            values[name] = states[name]
        few = 0 < layout.rows <= self.few_rows
        turns = self._turns_for(wanted, few)
        for region, scan, nodes, dead, products in turns:
            if products is not None:
                assert scan is not None
                finals |= scan(region, values, states, layout, products)
            elif scan is not None:
                finals |= scan(region, values, states, layout)
            elif nodes:
                if self.noise and self.noise[0] in values:  # it is that of another run
                    nodes = [node for node in nodes if node.op not in RANDOM]
                run_nodes(nodes, values, _rows_of(region, layout), states, layout)
            for name in dead:
                values.pop(name, None)
        for carry in self._rest:
            if carry.parameter == carry.result:
                finals[carry.parameter] = states[carry.parameter]
            elif carry.parameter not in finals:
                finals[carry.parameter] = last(values[carry.result], states[carry.parameter], layout)
        return values, finals


def _rows_of(region: Region, layout: Layout) -> int:
    """How many rows the values of a region have."""
    return layout.sequences if region.kind == "sequences" else layout.rows


def _sources(scan: Scan | None) -> tuple[str, ...]:
    """What a scan reads in place of values that it spares."""
    return tuple(name for name in getattr(scan, "spared", {}).values() if name is not None)


def _spared(plan: LoopPlan, scans: Sequence[Scan | None]) -> set[str]:
    """The values that nobody needs, since each scan that reads one has its own way to it: `spared` of a scan
    names, for each, the value that it reads instead, None for a constant."""
    named = {name for scan in scans for name, of in getattr(scan, "spared", {}).items() if of != name}
    for region, scan in zip(plan.regions, scans, strict=True):
        named -= set(region.read) - set(getattr(scan, "spared", {}))
    named -= {*plan.wanted, *plan.rows_of_carries()}
    beside = [region.nodes for region, scan in zip(plan.regions, scans, strict=True) if scan is None]
    for node in reversed([node for nodes in beside for node in nodes]):
        if not named.issuperset(node.outputs):
            named.difference_update(node.inputs)
    return named


def in_memory(name: str, tensor: Tensor) -> Tensor:
    """What torch only notes to stand for zeros, or for the negative of its numbers, written out.

    Raises:
        StepError: its memory is gone.
    """
    if tensor.is_neg():
        return tensor.resolve_neg()
    if data_ptr(tensor) or not tensor.numel():
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros_like(tensor)
    raise StepError(
        "the memory of a tensor that a loop reads was freed before the loop ran",
        got=f"'{name}', {list(tensor.shape)}",
        remedy="with fully_shard, return tensors, LoDTensors, or tuples, lists, dicts, dataclasses of them: "
        "it gathers the weights for backward only where it finds those",
    )


def shift(rows: Tensor, boot: Tensor, layout: Layout) -> Tensor:
    """The rows one step earlier; boot values where a sequence begins."""
    dtype, by = torch.promote_types(rows.dtype, boot.dtype), layout.stride
    if rows.is_cpu and rows.numel() * dtype.itemsize < _BY_COPY:
        return torch.cat((rows, boot)).index_select(0, layout.before)
    table, count = new_table(rows.shape, dtype, rows.device), max(rows.shape[0] - abs(by), 0)
    if not rows.shape[0]:
        return table
    table.narrow(0, max(by, 0), count).copy_(rows.narrow(0, max(-by, 0), count))
    first = take(boot, layout, "some").to(dtype)
    return table.index_copy_(0, layout.beside("begins", rows), first)


def sum_steps(rows: Tensor, layout: Layout) -> Tensor:
    """The sum of the rows of each sequence."""
    sums = rows.new_zeros((layout.sequences, *rows.shape[1:]))
    return sums.index_add_(0, layout.beside("sequence_of", rows), rows)


def last(rows: Tensor, boot: Tensor, layout: Layout) -> Tensor:
    """The last row of each sequence; the boot value where a sequence has no steps."""
    whole = layout.turns and 0 not in layout.ends and rows.dtype is boot.dtype
    return take(rows if whole else torch.cat([rows, boot]), layout, "last")


def run_nodes(
    nodes: list[Bound],
    values: dict[str, Tensor],
    rows: int,
    states: Mapping[str, Tensor] | None = None,
    layout: Layout | None = None,
) -> None:
    """Run nodes one after the other on the values at hand."""
    for node in nodes:
        if node.run is None:
            assert states is not None
            assert layout is not None
            (name,) = node.outputs
            if node.op == "shift":
                values[name] = shift(values[node.inputs[0]], states[name], layout)
            elif node.op == "sum_steps":
                values[name] = sum_steps(values[node.inputs[0]], layout)
            else:
                source = values[node.inputs[0]] if node.inputs else states[name]
                values[name] = take(source, layout, "sequence_of")
            continue
        out = node.run(*[values[name] for name in node.inputs], rows=rows)
        if len(node.outputs) == 1:
            values[node.outputs[0]] = out
        else:
            values.update((n, o) for n, o in zip(node.outputs, out, strict=True) if n)


def run_nodes_as_written(nodes: list[Bound], values: dict[str, Tensor], rows: int) -> None:
    """`run_nodes` of tensors on the CPU, whatever autocast is around: the plan says what is cast."""
    if not torch.is_autocast_enabled("cpu"):
        run_nodes(nodes, values, rows)
        return
    torch.set_autocast_enabled("cpu", False)
    try:
        run_nodes(nodes, values, rows)
    finally:
        torch.set_autocast_enabled("cpu", True)


def bound(
    graph: Graph,
    nodes: tuple[Node, ...],
    own: Own = lambda graph, node, by_torch: by_torch,
) -> list[Bound]:
    """Nodes with what computes each of them: an executor's own way, or torch."""
    return [
        Bound(
            None if node.op in _BY_LAYOUT else own(graph, node, bind(graph, node)),
            node.op, node.inputs, node.outputs,
        )
        for node in nodes
    ]  # fmt: skip


def take(table: Tensor, layout: Layout, name: Index) -> Tensor:
    """Rows of a table by an index of a layout."""
    return table.index_select(0, layout.beside(name, table))
