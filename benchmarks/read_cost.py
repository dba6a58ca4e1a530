"""Reading every step of a tensor, forward and backward: through a TensorArray, and by indexing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from stepnet.data.array import TensorArray

from .harness import Case, Contender, Row, Topic
from .stats import growth_exponent

ROW = (16, 64)


def cases(quick: bool) -> Iterator[Case]:
    """A row of fixed size per step, summed step after step; only the way of reading differs."""
    for steps in (50, 100) if quick else (250, 500, 1000, 2000, 4000):
        x = torch.randn(steps, *ROW, generator=torch.Generator().manual_seed(steps), requires_grad=True)
        yield Case(
            name=f"T={steps}",
            contenders={
                "stepnet": Contender(_reader(x, _through_array)),
                "unbind": Contender(_reader(x, lambda x: x.unbind())),
                "x[t]": Contender(_reader(x, lambda x: (x[t] for t in range(len(x))))),
            },
            reference="unbind",
            facts={"T": steps, "row": ROW[0] * ROW[1]},
        )


def _through_array(x: Tensor) -> Iterator[Tensor]:
    array = TensorArray(unstack_from=x)
    return (array.read(step) for step in range(array.size()))


def _reader(x: Tensor, read: Callable[[Tensor], Iterator[Tensor] | tuple[Tensor, ...]]) -> Callable:
    def run() -> Mapping[str, Tensor]:
        total = torch.zeros(ROW)
        for value in read(x):
            total = total * 0.5 + value
        (grad,) = torch.autograd.grad(total.sum(), x)
        return {"total": total, "gradient of x": grad}

    return run


def findings(rows: Sequence[Row]) -> Mapping[str, float]:
    """How time grows with the number of steps: 1 is linear, 2 is quadratic."""
    if len(rows) < 2:
        return {}
    steps = [float(row.facts["T"]) for row in rows]
    return {
        f"growth exponent of {name}": growth_exponent(steps, [row.times[name].median for row in rows])
        for name in rows[0].times
    }


TOPIC = Topic(
    name="read_cost",
    claim="reading T steps costs O(T) forward and backward; indexing costs O(T^2)",
    cases=cases,
    findings=findings,
)
