"""The arguments that calls of generated C leave to the next one."""

from hypothesis import given
from hypothesis import strategies as st

from stepnet.executors.c.call_arguments import Desk, Desks, Placed
from stepnet.executors.c.source import FIXED, Field
from stepnet.executors.layout import Layout

LAYOUT = Layout.dense(1, 1, True, False)
CALLS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=2, max_size=6)


def placed(slots: int, lines: int, matrices: int) -> Placed:
    """So many threads, each with so many lines of memory; and matrices, packed behind those."""
    each = 64 * lines
    packed_at = tuple(slots * each + 64 * k for k in range(matrices))
    head = (slots, lines) + (0,) * (len(FIXED) - 4)
    size = slots * each + 64 * matrices + 64
    return Placed(LAYOUT, LAYOUT.order, (slots, 0), slots, None, head, each, packed_at, size, slots, ())


def within(desks: Desks, desk: Desk, at: Placed) -> tuple[object, ...]:
    """What its numbers say, places counted from where the workspace begins."""
    n = len(at.head)
    base = desk.numbers[n]
    begin = base - desk.space.data_ptr()
    assert 0 <= begin < 64
    assert begin + at.size - 64 <= desk.space.numel()
    packed = [desk.numbers[place + 4] - base for place, _ in desks.places("matrix")]
    return tuple(desk.numbers[:n]), desk.numbers[n + 1], packed


@given(CALLS, st.integers(0, 2))
def test_a_call_finds_its_workspace_as_the_first_call_would(calls, matrices):
    desks = Desks([Field("matrix", f"w{k}", "") for k in range(matrices)], {})
    for slots, lines in calls:
        at = placed(slots, lines, matrices)
        desk = desks.take(at)
        assert within(desks, desk, at) == within(desks, desks.laid(at), at)
        desks.give_back(desk)
