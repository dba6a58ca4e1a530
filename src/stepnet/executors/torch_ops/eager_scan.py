"""A scan step by step in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.executors.layout import Layout
from stepnet.executors.loop import bound, run_nodes, take
from stepnet.ir.plan import LoopPlan, Region


class EagerScan:
    """A scan step by step in torch, over rows gathered once into the order of steps."""

    def __init__(self, plan: LoopPlan, region: Region) -> None:
        body = plan.body
        self.nodes = bound(body, region.nodes)
        self.outputs = plan.outputs(region)
        self.rows_in = [n for n in region.read if body.values[n].kind == "row"]
        self.whole_in = [n for n in region.read if body.values[n].kind == "sequence"]
        self.shared_in = [n for n in region.read if body.values[n].kind not in ("row", "sequence")]
        self.shapes = {n: body.values[n] for n in self.outputs}

    def __call__(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        steps = layout.active
        plain = layout.is_packed
        pieces: dict[str, Any] = {}
        for name in self.rows_in:
            table = values[name] if plain else take(values[name], layout, "packed")
            pieces[name] = table.split(steps) if steps else ()
        current = {
            c.parameter: states[c.parameter] if plain else take(states[c.parameter], layout, "order")
            for c in region.carries
        }
        whole = {
            name: values[name] if plain else take(values[name], layout, "order") for name in self.whole_in
        }
        ended: dict[str, list[Tensor]] = {name: [] for name in current}
        kept: dict[str, list[Tensor]] = {name: [] for name in self.outputs}
        shared = {name: values[name] for name in self.shared_in}
        for t, active in enumerate(steps):
            for name, state in current.items():
                if state.shape[0] > active:
                    ended[name].append(state[active:])
                    current[name] = state[:active]
            at_hand = {**shared, **current, **{name: table[:active] for name, table in whole.items()}}
            for name, parts in pieces.items():
                at_hand[name] = parts[t]
            run_nodes(self.nodes, at_hand, active)
            for name, out in kept.items():
                out.append(at_hand[name])
            current = {c.parameter: at_hand[c.result] for c in region.carries}
        for name, out in kept.items():
            value = self.shapes[name]
            if out:
                table = torch.cat(out)
                values[name] = table if plain else take(table, layout, "unpacked")
            else:
                values[name] = torch.empty((0, *value.shape), dtype=dtype_of(value.dtype))
        finals = {}
        for name, state in current.items():
            ranked = torch.cat([state, *reversed(ended[name])])
            finals[name] = ranked if plain else take(ranked, layout, "rank")
        return finals
