"""What an executor is.

An executor runs the scans of a plan: what goes step after step. Everything else is the same for all of them:
the plan, what runs once on all rows, gradients, and the check against the plain loop at the first call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NewType

from stepnet.errors import Unsupported
from stepnet.ir.agreement import INTEGERS
from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import LoopPlan, Plan, Region

from .line import Line
from .line import Run as RunLine
from .loop import Bound, Scan
from .torch_ops.ops import Run

Form = Literal["fused", "hoisted"]
BackendName = NewType("BackendName", str)  # what an executor of one's own is called
Backend = Literal["auto", "c", "eager", "naive"] | BackendName


class Executor(ABC):
    """What runs the scans of a plan.

    Attributes:
        name: what `backend=` takes.
        label: what `explain` calls it.
        form: which plan it takes: "fused", with cheap ops on the border of a loop moved into it, for what
            makes a pass over memory dear; "hoisted", where every op of a step costs a dispatch.
        devices: the types of devices whose rows it takes; None: any.
        dtypes: the floating point types that its scans compute in; None: any.
        in_torch: True if its scans are torch's ops, as maps are.

    >>> class Counting(Executor):
    ...     name, label, form, dtypes = "counting", "one that counts", "hoisted", ("float64",)
    ...     def scan(self, loop, region):
    ...         raise Unsupported("it counts, and runs nothing")
    >>> Counting().devices, Counting().dtypes
    (None, ('float64',))
    """

    name: ClassVar[Backend]
    label: ClassVar[str]
    form: ClassVar[Form]
    devices: ClassVar[tuple[str, ...] | None] = None
    dtypes: ClassVar[tuple[str, ...] | None] = None
    in_torch: ClassVar[bool] = False

    def check_device(self, device: str) -> None:
        """Decline rows on a type of device that is not its own.

        Raises:
            Unsupported: it is not.
        """
        if self.devices is not None and device not in self.devices:
            homes = ", ".join("the CPU" if name == "cpu" else name for name in self.devices)
            raise Unsupported(f"the rows are on {device}; {self.label} runs on {homes}")

    def check(self, loop: LoopPlan, region: Region) -> None:
        """Decline a scan that holds what the executor does not do. Here: types that are not its own.

        Raises:
            Unsupported: it does; with the user's line, where one is to blame.
        """
        own, found = self.dtypes, floating_types(loop, region)
        if own is not None and not found <= set(own):
            others = ", ".join(sorted(found.difference(own)))
            raise Unsupported(f"the loop computes in {others}; {self.label} does {', '.join(own)}")

    def is_surely_faster(self, plan: Plan, sequences: int) -> bool:
        """True if its scans need not be timed to know that torch, op by op, takes longer."""
        return False

    def prepare(self, loop: LoopPlan) -> LoopPlan:
        """The loop as the executor wants it cut; it may move ops between regions."""
        return loop

    def for_one_step(self, loop: LoopPlan) -> LoopPlan | None:
        """The loop as it is best cut where each of few sequences has one row; None: as ever."""
        return None

    @abstractmethod
    def scan(self, loop: LoopPlan, region: Region) -> Scan:
        """Make a scan of a prepared loop ready to run.

        What is returned gets the region, the values at hand, the boot values of carries, and the layout; it
        adds the values that are read after the region (`loop.outputs`) to those at hand, and returns the
        last value of each carry.

        Raises:
            Unsupported: it cannot be made.
        """

    def build(self, scans: Sequence[Scan]) -> None:
        """Build what the scans of a plan, forward and backward, need together before they run.

        Raises:
            Unsupported: it cannot be built.
        """
        return

    def on_all_rows(self, graph: Graph, node: Node, by_torch: Run) -> Run:
        """What computes a node that runs once on all rows: torch's way, unless it has a better one."""
        return by_torch

    def joined(self, graph: Graph, nodes: Sequence[Bound]) -> list[Bound]:
        """The nodes that run one after the other on all rows, some perhaps as one."""
        return [*nodes]

    def line(self, line: Line) -> RunLine | None:
        """A function of the tensors that a line of small calls is given, which gives what it makes; None: it
        has no way to run one that is better than torch's.

        Raises:
            Unsupported: it cannot be made.
        """
        return None

    def source(self, scan: Scan) -> str | None:
        """The code that was generated for a scan, for `explain` to show; None: none was."""
        return None

    def for_few(self, scan: Scan) -> Literal["turns", "features"] | None:
        """How threads share a scan over sequences that cannot be dealt evenly: they take turns at its steps,
        or some features each; None: they do not."""
        return None

    def passes(self, scan: Scan, device: str, steps: int, sequences: int) -> int:
        """How many passes over all rows a scan makes in place of steps; 0: it goes step by step."""
        return 0


def floating_types(loop: LoopPlan, region: Region) -> set[str]:
    """The types of numbers that a scan computes with, those that count or choose left out."""
    names = {n for node in region.nodes for n in (*node.inputs, *node.outputs) if n}
    names |= {n for c in region.carries for n in (c.parameter, c.result)} | set(loop.outputs(region))
    return {loop.body.values[name].dtype for name in names} - {"bool", *INTEGERS}
