"""What the schedule of a scan tells of the range of a value."""

from __future__ import annotations

from stepnet.executors.schedule.views import Access, broadcast, contiguous

from .places import Places


def is_below_the_largest(w: Places, name: str) -> bool:
    """Whether a value is `x - amax(x)`, each number beside the largest of those it was among, as in softmax:
    zero, below it, or NaN."""
    made = w.made.get(name)
    if made is None or made.op != "sub":
        return False
    x, most = (_seen(w, operand) for operand in made.inputs)
    largest = w.made.get(most.base)
    if largest is None or largest.op != "amax":
        return False
    among, over = _seen(w, largest.inputs[0]), largest.attr("dims")
    kept = tuple(1 if dim in over else size for dim, size in enumerate(among.shape))
    beside = broadcast(Access(most.base, 0, kept, contiguous(kept)), among.shape)
    return x == among and broadcast(most, among.shape) == beside


def _seen(w: Places, name: str) -> Access:
    shape = w.p.value(name).shape
    return w.p.access.get(name) or Access(name, 0, shape, contiguous(shape))
