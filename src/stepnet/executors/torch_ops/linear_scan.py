"""A linear recurrence over all rows at once, in log2(T) passes instead of T steps.

    h[t] = a[t] * h[t-1] + b[t]

Two neighbouring steps are one step of the same form, (a2, b2) after (a1, b1) = (a2 * a1, a2 * b1 + b2), and
that joining is associative: pass k joins each step with the 2^k steps before it (Hillis and Steele, 1986,
"Data parallel algorithms"). The boot value is taken into the first b, and the first a becomes 0, which keeps
sequences apart: the step d before is d strides above in the table, whoever stands there. A backward loop of a
linear recurrence is one too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.executors.layout import Layout
from stepnet.executors.loop import last, run_nodes, shift, take
from stepnet.ir.ops import RANDOM
from stepnet.ir.plan import LoopPlan, Region

from .eager_scan import EagerScan

FEWEST_STEPS = 8
MOST_BYTES = 1 << 22  # of a step's states times the passes: above it a step is no longer all launch


def passes(steps: int) -> int:
    """How many passes join all steps.

    >>> [passes(steps) for steps in (1, 2, 3, 500)]
    [0, 1, 2, 9]
    """
    return max(steps - 1, 0).bit_length()


def pays(device: str, steps: int, state_bytes: int) -> bool:
    """Whether passes over all rows are faster than steps.

    A step on a GPU costs its launches unless it is large; passes launch log2(T) times a few ops. On the CPU
    passes gain nothing: measured at T=500, B=32, H=64 both take as long, and generated C a fraction.
    """
    return device != "cpu" and steps >= FEWEST_STEPS and state_bytes * passes(steps) <= MOST_BYTES


def is_linear(plan: LoopPlan, region: Region) -> bool:
    """True if every state of a scan is a linear recurrence."""
    carried = {c.parameter for c in region.carries}
    made = [plan.body.values[name] for name in region.made]
    made += [plan.body.values[name] for name in region.read if plan.body.values[name].kind == "sequence"]
    rows = all(value.kind == "row" for value in made) and not RANDOM & {n.op for n in region.nodes}
    return bool(carried) and rows and carried <= set(region.linear)


class LinearScan(EagerScan):
    """A scan whose every state is a linear recurrence; step by step where passes do not pay."""

    def __init__(self, plan: LoopPlan, region: Region) -> None:
        super().__init__(plan, region)
        self.body = plan.body
        self.steps = region.nodes  # each follows from a state: what does not is of a map
        self.state_bytes = sum(plan.body.values[c.parameter].bytes for c in region.carries)

    def in_passes(self, device: str, steps: int, sequences: int) -> bool:
        """Whether a run of this many steps goes by passes."""
        return pays(device, steps, self.state_bytes * sequences)

    def __call__(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        device = states[region.carries[0].parameter].device.type
        if self.in_passes(device, layout.steps, layout.sequences):
            finals = self._passes(region, values, states, layout)
            if finals is not None:
                return finals
        return super().__call__(region, values, states, layout)

    def _passes(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout
    ) -> dict[str, Tensor] | None:
        """The final states; None where numbers are not finite, or a product of a's left their range: steps
        give what is right then."""
        at_hand = dict(values)
        for carry in region.carries:
            boot = states[carry.parameter]
            a, b = self._coefficients(carry.parameter, carry.result, at_hand, layout.rows)
            h = join(a, b, boot, layout)
            if not bool(torch.isfinite(h).all()):
                return None
            at_hand[carry.parameter] = shift(h, boot, layout)
        run_nodes(self.nodes, at_hand, layout.rows)  # each row rounds as its own step does
        values.update((name, at_hand[name]) for name in self.outputs)
        return {c.parameter: last(at_hand[c.result], states[c.parameter], layout) for c in region.carries}

    def _coefficients(
        self, parameter: str, result: str, values: Mapping[str, Tensor], rows: int
    ) -> tuple[Tensor, Tensor]:
        """a and b of `result = a * parameter + b`, as tables of rows.

        The nodes between the parameter and the result are followed, with the pair (a, b) of each value on the
        way; the other operands are `free` of the parameter, that is, (0, their value).
        """
        shape = self.body.values[parameter].shape
        dtype = dtype_of(self.body.values[parameter].dtype)
        one, zero = (make((rows, *shape), dtype=dtype) for make in (torch.ones, torch.zeros))
        found: dict[str, tuple[Tensor, Tensor]] = {parameter: (one, zero)}

        def free(name: str) -> Tensor:
            value = self.body.values[name]
            if value.kind != "row":
                return values[name]
            return values[name].reshape(rows, *(1,) * (len(shape) - len(value.shape)), *value.shape)

        for node in self.steps:
            inputs, on_way = node.inputs, [found.get(name) for name in node.inputs]
            if not any(on_way):
                continue  # on the way of another state
            if node.op in ("add", "sub"):
                sign = -1 if node.op == "sub" else 1
                first, second = on_way
                if first is not None and second is not None:
                    pair = first[0] + sign * second[0], first[1] + sign * second[1]
                elif first is not None:
                    pair = first[0], first[1] + sign * free(inputs[1])
                else:
                    assert second is not None
                    pair = second[0] * sign, free(inputs[0]) + sign * second[1]
            elif node.op in ("mul", "div"):
                at = 0 if on_way[0] is not None else 1
                scaled, factor = on_way[at], free(inputs[1 - at])
                assert scaled is not None
                a, b = scaled
                pair = (a / factor, b / factor) if node.op == "div" else (a * factor, b * factor)
            elif node.op == "where":
                nothing = torch.zeros((), dtype=dtype)
                (a1, b1), (a2, b2) = (
                    known or (nothing, free(name)) for known, name in zip(on_way[1:], inputs[1:], strict=True)
                )
                chosen = free(inputs[0])
                pair = torch.where(chosen, a1, a2), torch.where(chosen, b1, b2)
            else:  # neg, or what only hands it on
                (only,) = on_way
                assert only is not None
                pair = (-only[0], -only[1]) if node.op == "neg" else only
            found[node.output] = pair
        return found[result]


def join(a: Tensor, b: Tensor, boot: Tensor, layout: Layout) -> Tensor:
    """h[t] = a[t] * h[t-1] + b[t] over the rows of every sequence, from its boot value.

    Args:
        a, b: [rows, ...].
        boot: [sequences, ...], a row for each sequence.
        layout: where the rows of each sequence stand.
    """
    starts, boot = layout.beside("begins", a), take(boot, layout, "some")
    b = b.index_put((starts,), a.index_select(0, starts) * boot + b.index_select(0, starts))
    a = a.index_fill(0, starts, 0.0)
    distance, forward = abs(layout.stride), layout.stride > 0
    for k in range(passes(layout.steps)):
        by = distance << k
        here, there = (slice(by, None), slice(None, -by)) if forward else (slice(None, -by), slice(by, None))
        joined = b.clone()
        joined[here].addcmul_(a[here], b[there])
        if k + 1 < passes(layout.steps):
            product = torch.zeros_like(a)
            torch.mul(a[here], a[there], out=product[here])
            a = product
        b = joined
    return b
