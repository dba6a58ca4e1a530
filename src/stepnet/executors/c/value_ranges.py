"""What the schedule of a scan tells of the range of a value."""

from __future__ import annotations

from stepnet.executors.schedule.views import Access, broadcast

from .places import Places


def is_below_the_largest(w: Places, name: str) -> bool:
    """Whether a value is `x - amax(x)`, each number beside the largest of those it was among, as in softmax:
    zero, below it, or NaN."""
    made = w.made.get(name)
    if made is None or made.op != "sub":
        return False
    x, most = map(w.p.seen, made.inputs)
    largest = w.made.get(most.base)
    if largest is None or largest.op != "amax":
        return False
    among, over = w.p.seen(largest.inputs[0]), largest.attr("dims")
    kept = tuple(1 if dim in over else size for dim, size in enumerate(among.shape))
    beside = broadcast(Access.of(most.base, kept), among.shape)
    return x == among and broadcast(most, among.shape) == beside
