"""From a loop to a plan, pass after pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph
from stepnet.ir.loop import Loop
from stepnet.ir.ops import RANDOM
from stepnet.ir.plan import LoopPlan, Plan

from .passes.column_products import without_idle_columns
from .passes.early_columns import early_columns
from .passes.fission import fission
from .passes.if_conversion import BothWays, asks_of_all
from .passes.mask_guards import are_guards, found_idle
from .passes.matrix_vector_products import narrow
from .passes.padded_sums import join_paddings
from .passes.per_sequence import per_sequence
from .passes.precision import holds_rounded, widened
from .passes.products_of_joined_rows import without_joined_rows
from .passes.reassociate import reassociate
from .passes.rerun_for_backward import known_results
from .passes.rowwise_probe import ROWS, check_opaque
from .passes.split import Halves, split
from .passes.sure_picks import say_inside
from .passes.table_products import multiply_tables
from .reads.numbers import Lifted
from .rewritten.inner_loops import MOST, inner_loops
from .rules.normal import Joint, normalise
from .trace.capture import Example, trace
from .trace.data_dependent import Guards, unmerged
from .trace.draws import Draw, Drawn, drawn
from .trace.iteration import iteration


@dataclass(frozen=True)
class Signature:
    """What one call of a step looks like: its inputs, and which gradients are wanted.

    Gradients pass through every state from step to step; `boots` says whether that of each initial state
    is wanted after the first.
    """

    name: str
    x: tuple[Example, ...]
    states: tuple[Example, ...]
    boots: tuple[bool, ...]
    x_names: tuple[str, ...]
    state_names: tuple[str, ...]


@dataclass(frozen=True)
class Compiled:
    """Plans of one step: `fused` for generated code, `hoisted` for torch ops, made where it is asked for.

    `y_spec` is the structure of y; `weights` are the places of the weights among what the step reaches;
    `followed`, those of weights that the trace met. `draws`: noise of generators of the step's own, the last
    inputs of the plans.
    """

    fused: Plan
    hoist: Callable[[], Plan]
    joint: Joint
    constants: dict[str, Tensor]
    y_spec: Any
    weights: list[int]
    followed: list[int] = field(default_factory=list)
    draws: tuple[Draw, ...] = ()

    @cached_property
    def hoisted(self) -> Plan:
        """Raises Unsupported: a pass declines the step."""
        return replace(self.hoist(), random=self.fused.random, own_backward=self.fused.own_backward)

    @property
    def is_compared(self) -> bool:
        """Whether the plain loop gives the same numbers: not where both draw noise."""
        return not any(node.op in RANDOM for node in self.joint.graph.nodes)


def compile_loop(
    loop: Loop,
    signature: Signature,
    weights: Sequence[tuple[int, Tensor, bool]],
    here: Callable[[], str | None],
    bind: Callable[..., Any],
    sample: Sequence[Tensor],
    shared: Sequence[Tensor],
    answers: Sequence[Any] = (),
    most: int = MOST,
    draws: Sequence[Draw] = (),
    lifted: Lifted | None = None,
) -> Compiled:
    """Capture the body of a loop, which is a sweep, and cut it.

        trace      body                      -> one joint aten graph
        normalise  aten graph                -> ops of the closed list, rows proved
        join_paddings  sums of padded parts  -> the parts side by side
        multiply_tables  rows looked up and multiplied -> rows of a product
        reassociate sums                     -> ordered by what they depend on
        early_columns  products of parts     -> those that wait for no state apart
        per_sequence  states that never change -> what follows from them, once per sequence
        split      joint graph               -> forward body, backward body, what is kept between
        fission    body                      -> prologue, maps, scans, epilogue

    Args:
        loop: the loop.
        signature: its inputs.
        weights: (place among the reached tensors, the tensor, whether its gradient is wanted).
        here: tells the user's line being run.
        bind: makes a node callable, to probe torch calls that no rule knows.
        sample: `rowwise_probe.ROWS` rows of each x leaf and state.
        shared: the values of its invariants, which are among the weights.
        answers: what the body's Python asks of tensors, in that order.
        most: the steps to unroll of a while loop in the body with a condition for each row.
        draws: what the body draws from generators of its own, which are the last inputs of the signature.
        lifted: numbers of Python's that are among the weights.

    Raises:
        Unsupported: a pass declines the body.
    """

    ways, choosing, finite = BothWays(), False, False
    known: Sequence[Any] | Guards = answers

    def call(x: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Any, list[Any], list[Any]]:
        own = len(x) - len(draws)
        once = partial(iteration, loop, x[:own], states, shared)
        with inner_loops(most) as inner, drawn(Drawn(draws, x[own:])):
            spec, y, new = ways.run(once, inner) if choosing else once()
            for factor in known.factors if finite and isinstance(known, Guards) else ():
                inner.must_hold(of_rows(factor.isfinite(), (*x, *states)[0]))
        return *inner.beside(spec, y), new

    states = tuple(
        replace(e, grad=e.grad and (e.dtype.is_floating_point or e.dtype.is_complex))
        for e in signature.states
    )

    def asked(guards: Guards) -> Joint:
        def beside(x: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Any, list[Any], list[Any]]:
            spec, y, new = call(x, states)
            rows = (*x, *states)[0]
            return spec, y, [*new, *guards.masks, *(unmerged(factor, rows) for factor in guards.factors)]

        x, carried = ([replace(e, grad=False) for e in examples] for examples in (signature.x, states))
        fixed = [(place, tensor, False) for place, tensor, _ in weights]
        return normalise(trace(beside, x, carried, fixed, here=here, answers=guards, lifted=lifted), names)

    names = parameter_names(signature, weights)
    idle = found_idle(asked) if not draws and are_guards(answers) else None
    finite, known = idle is not None and idle.finite, answers if idle is None else Guards()
    traced = partial(trace, call, signature.x, states, weights, here=here, lifted=lifted)
    captured = None
    if known is answers and not draws and lifted is None and asks_of_all(answers):
        choosing = True
        with contextlib.suppress(Unsupported):
            captured = traced(answers=ways)
        choosing = False
    captured = traced(answers=known) if captured is None else captured
    joint = normalise(captured, names)
    check_opaque(joint.graph, bind, samples(joint, weights, sample))
    graph = multiply_tables(join_paddings(joint.graph), signature.x_names)
    joint = replace(joint, graph=reassociate(graph, signature.state_names))
    made = finish(joint, signature, weights, captured.y_spec)
    if draws:
        made = replace(made, fused=replace(made.fused, random=True))
    return replace(made, followed=captured.followed, draws=tuple(draws))


def of_rows(valid: Tensor, rows: Tensor) -> Tensor:
    """Truth values, for each row."""
    valid = unmerged(valid, rows)
    if valid.dim() and str(valid.shape[0]) == str(rows.shape[0]):
        return valid
    return valid.all().expand(rows.shape[0])


def parameter_names(signature: Signature, weights: Sequence[Any]) -> tuple[str, ...]:
    """What the joint graph calls its inputs, before tangents and constants."""
    return (*signature.x_names, *signature.state_names, *(f"w{i}" for i in range(len(weights))))


def samples(
    joint: Joint, weights: Sequence[tuple[int, Tensor, bool]], sample: Sequence[Tensor]
) -> dict[str, Tensor]:
    """A value of a few rows for each parameter of the joint graph."""
    inputs = (*sample, *(tensor.detach() for _, tensor, _ in weights))
    inputs = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in inputs]
    given = dict(zip(joint.graph.parameters, inputs, strict=False)) | joint.constants
    with sample[0].device:
        for name in joint.graph.parameters:
            if name not in given:  # a tangent
                value = joint.graph.values[name]
                given[name] = torch.ones((ROWS, *value.shape), dtype=dtype_of(value.dtype))
    return given


def finish(
    joint: Joint, signature: Signature, weights: Sequence[tuple[int, Tensor, bool]], y_spec: Any
) -> Compiled:
    """All that follows from the joint graph.

    Raises:
        Unsupported: a pass declines the step.
    """
    names = parameter_names(signature, weights)
    weight_names = names[len(names) - len(weights) :]
    tangents = joint.graph.parameters[len(names) : len(joint.graph.parameters) - len(joint.constants)]
    tangent_of = [int(name.removeprefix("d_")) for name in tangents]
    wanted = [*(e.grad for e in signature.x), *signature.boots, *(grad for _, _, grad in weights)]

    def halves_of(joint: Joint) -> tuple[Joint, Halves]:
        whole = per_sequence(joint, signature.state_names, len(signature.x), y_spec.count, tangent_of)
        return whole, split(
            whole, signature.x_names, signature.state_names, weight_names, y_spec.count, tangent_of, wanted
        )

    def regrouped(whole: Joint, graph: Graph) -> Joint:
        return replace(whole, graph=reassociate(graph, signature.state_names))

    sure = say_inside(joint.graph)
    known = joint if sure is joint.graph else replace(joint, graph=sure)

    def apart(*, fuse: bool) -> Joint:
        graph = early_columns(known.graph, signature.state_names, fuse=fuse)
        return known if graph is known.graph else regrouped(known, graph)

    of_torch, of_c = apart(fuse=False), apart(fuse=True)
    if holds_rounded(of_c.graph):  # for torch ops it stays as traced: each cast of a step costs a dispatch
        wide = widened(of_c, signature.state_names, y_spec.count)
        of_c = regrouped(wide, wide.graph)
    elif not any(wanted):  # of weights that do not train: generated C keeps products of them
        graph = multiply_tables(of_c.graph, signature.x_names, kept=True)
        of_c = of_c if graph.nodes == of_c.graph.nodes else regrouped(of_c, graph)
    mixed = halves_of(of_c)
    traced = mixed if of_c is of_torch else halves_of(of_torch)
    return Compiled(
        fused=_plan(signature, weight_names, *mixed, y_spec.count, fuse=True),
        hoist=partial(_plan, signature, weight_names, *traced, y_spec.count, fuse=False),
        joint=joint,
        constants=joint.constants,
        y_spec=y_spec,
        weights=[place for place, _, _ in weights],
    )


def _plan(
    signature: Signature, weights: tuple[str, ...], joint: Joint, halves: Halves, n_y: int, *, fuse: bool
) -> Plan:  # fmt: skip
    whole = {n for n in signature.state_names if joint.graph.values[n].kind == "sequence"}
    direct = tuple(n for n in halves.kept if n not in halves.shifted and n not in whole)
    results = halves.forward.results
    y = results[:n_y]
    first, second = halves.forward, halves.backward
    if fuse:
        first = narrow(first)
        if second is not None:
            second = without_joined_rows(without_idle_columns(narrow(second), halves.backward_carries))
    forward = fission(first, halves.forward_carries, tuple(dict.fromkeys((*y, *direct))), fuse=fuse)
    backward: LoopPlan | None = None
    again: LoopPlan | None = None
    if second is not None:
        again = known_results(forward, halves.forward_carries, y, direct, fuse=fuse)
        backward = fission(second, halves.backward_carries, halves.wanted, fuse=fuse)
    return Plan(
        name=signature.name,
        forward=forward,
        backward=backward,
        again=again,
        x=signature.x_names,
        states=signature.state_names,
        weights=(*weights, *joint.constants),
        y=y,
        new_states=results[n_y:],
        kept=halves.kept,
        shifted=halves.shifted,
        tangents=halves.tangents,
        gradients=halves.gradients,
        random=any(node.op in RANDOM for node in joint.graph.nodes),
        flow=joint.flow,
        requires=joint.requires,
        paired=joint.paired,
        as_numbers=joint.as_numbers,
    )
