"""Whether code behind `if mask.any():` does nothing where the mask picks nothing.

Then a step that runs it at every step is the same step: what it does to a row depends on that row's own mask.
Both ways of the question are traced, and the graph of the one where there are some is folded as if there were
none; where what is left is the graph of the other, the question needs no answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepnet.compiler.rules.normal import Joint
from stepnet.compiler.trace.data_dependent import CLAIMED, PICKS, Guards
from stepnet.errors import Unsupported
from stepnet.ir.graph import Node
from stepnet.ir.ops import RANDOM

_FEW = 4  # questions of which each two are traced both ways, too

_MOVED = frozenset({"reshape", "expand", "permute", "slice", "flip", "copy"})
_EXACT = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "ne": lambda a, b: a != b, "eq": lambda a, b: a == b,
}  # fmt: skip
# a op n -> a, and n op a -> a where both sides are alike
_NEUTRAL = {"add": (0, True), "sub": (0, False), "mul": (1, True), "and": (True, True), "or": (False, True)}


def are_guards(answers: Sequence[Any]) -> bool:
    """Whether nothing is asked of tensors but whether something holds of any row, or of all. What follows
    from no row, as the first turn of a `while` may ask, is a question like the others to the trace."""
    asked = [answer for answer in answers if answer is not PICKS and type(answer) is not bool]
    return bool(asked) and all(any(answer is claim for claim in CLAIMED) for answer in asked)


@dataclass(frozen=True)
class Idle:
    """What a step is whose questions need no answer. `finite`: if no number that a truth value makes 0 is
    infinite or NaN."""

    finite: bool = False


def found_idle(trace: Callable[[Guards], Joint]) -> Idle | None:
    """Whether a step that takes every such question for yes is the same step.

    Args:
        trace: the step with these answers; its results, and behind them the masks of the questions, and what
            truth values are multiplied by.
    """
    finite = False
    try:
        whole, count, factors = _traced(trace, Guards())
        if not count:
            return None
        places = range(len(count))
        both = itertools.combinations(places, 2) if len(count) <= _FEW else ()
        for without in (*((i,) for i in places), *both, None):
            guards = Guards(without)
            bare, masks, _ = _traced(trace, guards)
            none = [name for i, name in enumerate(masks) if not guards.is_some(i)]
            forms = _Forms()
            if forms.of(bare, none) == forms.of(whole):
                continue
            if not factors:
                return None
            folded = forms.of(whole, finite=factors)
            if forms.of(bare, none) != folded:
                return None
            finite = True
    except Unsupported:
        return None
    return Idle(finite)


Names = Sequence["str | None"]


def _traced(trace: Callable[[Guards], Joint], guards: Guards) -> tuple[Joint, Names, Names]:
    """A step, what its questions asked of, and its factors."""
    joint = trace(guards)
    end = len(joint.results) - len(guards.factors)
    start = end - len(guards.masks)
    return replace(joint, results=joint.results[:start]), joint.results[start:end], joint.results[end:]


class _Forms:
    """Values of graphs as numbers: of two that are equal, the same. Masks of the first graph are taken to be
    false, and all that is equal to them."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._full: dict[int, Any] = {}  # by number, what all elements of a value are
        self._none: Names = ()
        self._taken: dict[int, Any] = {}  # what is taken to be one number everywhere: false, or 0
        self._truths: dict[int, int] = {}  # by the number of a cast truth value, that of the truth value
        self._nots: dict[int, int] = {}
        self._not_0: dict[int, int] = {}  # by the number of whether a value is not 0, that of the value
        self._finite: set[int] = set()

    def of(self, joint: Joint, none: Names = (), finite: Names = ()) -> list[int]:
        """The results of a graph. `none`: truth values of it that are false; `finite`: values that are, of
        which 0 times is 0 from now on."""
        graph, draws, self._none = joint.graph, 0, none
        found: dict[str, int] = {}
        for name in graph.parameters:
            constant = joint.constants.get(name)
            content = name if constant is None else (str(constant.dtype), *constant.flatten().tolist())
            found[name] = self._known(name, self._number(("input", graph.values[name].shape, content)))
        for node in graph.nodes:
            inputs = [found[name] for name in node.inputs]
            for place, name in enumerate(node.outputs):
                if not name:
                    continue
                value = graph.values[name]
                like = [found[i] for i in node.inputs if graph.values[i].shape == value.shape]
                is_truth = bool(node.inputs) and graph.values[node.inputs[0]].dtype == "bool"
                form = self._folded(node, inputs, like, is_truth)
                if form is None:
                    draws += node.op in RANDOM
                    own = draws if node.op in RANDOM else repr(node.attrs)
                    form = self._number((node.op, place, own, value.shape, value.dtype, *inputs))
                    if node.op == "cast" and is_truth:
                        self._truths[form] = inputs[0]
                found[name] = self._known(name, form)
                if name in finite:
                    self._finite.add(found[name])
        return [-1 if name is None else found[name] for name in joint.results]

    def _known(self, name: str, form: int) -> int:
        """The form of a value, false if it is to be."""
        if name in self._none:
            self._taken |= {form: False, self._not(form): True}
            if form in self._not_0:
                self._taken[self._not_0[form]] = 0
        return self._constant(self._taken[form]) if form in self._taken else form

    def _number(self, form: Any) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _constant(self, number: Any) -> int:
        form = self._number(("full", float(number)))
        self._full[form] = number
        return form

    def _not(self, form: int) -> int:
        if form not in self._nots:
            self._nots[form] = self._number(("not", form))
            self._nots[self._nots[form]] = form
        return self._nots[form]

    def _folded(self, node: Node, inputs: list[int], like: list[int], is_truth: bool) -> int | None:
        """What a node gives, where that is one of its inputs, the same number everywhere, or what is not so.
        `is_truth`: whether its first input is a truth value."""
        op, known = node.op, [self._full.get(n) for n in inputs]
        if op == "full":
            return self._constant(node.attr("value"))
        if known and all(n is not None for n in known):
            found = self._of_numbers(op, inputs[0], known)
            if found is not None:
                return found
        if op == "where" and known[0] is not None:
            chosen = inputs[1 if known[0] else 2]
            return chosen if chosen in like or chosen in self._full else None
        if op == "and" and False in known:
            return self._constant(False)
        if op == "not":
            return self._not(inputs[0])
        if op in ("ne", "eq") and known[1] == 0:
            some = self._some(inputs[0], is_truth)
            return some if op == "ne" else self._not(some)
        if op == "mul" and any(
            number == 0 and (other in self._finite or other in self._truths)
            for number, other in zip(known, reversed(inputs), strict=True)
        ):
            return self._constant(0)
        if op in _NEUTRAL:
            number, both = _NEUTRAL[op]
            for at in (1, 0) if both else (1,):
                if known[at] == number and inputs[1 - at] in like:
                    return inputs[1 - at]
        return None

    def _of_numbers(self, op: str, first: int, known: Sequence[Any]) -> int | None:
        """What a node gives whose inputs, of which this is the first, are the same numbers everywhere."""
        if op in _MOVED or (op == "cast" and known[0] in (0, 1)):
            return first
        if op == "not":
            return self._constant(not known[0])
        return self._constant(_EXACT[op](*known)) if op in _EXACT else None

    def _some(self, form: int, is_truth: bool) -> int:
        """Where a value is not 0."""
        some = form if is_truth else self._truths.get(form)
        if some is None:
            some = self._number(("not 0", form))
            self._not_0[some] = form
        return some
