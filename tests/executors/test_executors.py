"""Every executor and every cell against the oracle: ragged and dense, both ways, in float64 and float32."""

from __future__ import annotations

import contextlib
import functools
import itertools

import pytest
import torch
from torch import nn

from covering import every, few
from hurry import in_a_hurry
from numpy_executor import Numpy
from plans import entry_of
from stepnet import cells
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import by_leaf
from stepnet.executors.naive import PLAIN
from stepnet.executors.registry import AUTO, register, tried, unregister
from stepnet.testing import FLOAT32, FLOAT64, LENGTHS, check_step, poisoned

pytestmark = pytest.mark.usefixtures("verified_plans")

# Those that the package brings, and one from outside, which is held to the same.
EXECUTORS = [*(executor.name for executor in tried(AUTO)), Numpy.name]
DTYPE = torch.float64
FEATURES, HIDDEN = 2, 3  # as in other files, which then find the same plans and libraries
MAKERS = {
    "RNN tanh": cells.RNN,
    "RNN relu": functools.partial(cells.RNN, nonlinearity="relu"),
    "LSTM": cells.LSTM,
    "GRU": cells.GRU,
    "PeepholeLSTM": cells.PeepholeLSTM,
    "LayerNormLSTM": cells.LayerNormLSTM,
    "SLSTM": cells.SLSTM,
    "MinGRU": cells.MinGRU,
    "torch LSTMCell": nn.LSTMCell,
    "torch GRUCell": nn.GRUCell,
    "torch RNNCell": nn.RNNCell,
    "all states of an LSTM": lambda *a, **k: cells.AllStates(cells.LSTM(*a, **k)),
    "GRU with dropout masks": lambda *a, **k: cells.VariationalDropout(cells.GRU(*a, **k), 0.5, 0.5),
    "LSTM zoned out, evaluated": lambda *a, **k: cells.Zoneout(cells.LSTM(*a, **k), (0.25, 0.5)).eval(),
    "GRU from a learned state": lambda *a, **k: cells.LearnedInitialState(cells.GRU(*a, **k)),
}


@pytest.fixture(autouse=True, scope="module")
def _one_from_outside():
    register(Numpy())
    yield
    unregister(Numpy.name)


@functools.cache
def cell_of(name, dtype=DTYPE):
    """One instance for all tests, so that its plans and builds are made once."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return MAKERS[name](FEATURES, HIDDEN, dtype=dtype)


def rows_of(lengths, dtype=DTYPE):
    values = torch.randn(sum(lengths), FEATURES, dtype=dtype, requires_grad=True)
    return LoDTensor.from_lengths(values, [list(lengths)])


def boot(cell, n, dtype=DTYPE):
    """An initial state a run could have, every leaf wanting its gradient."""

    def leaf(t):
        return (0.5 + torch.rand(t.shape, dtype=dtype)).requires_grad_() if t.is_floating_point() else t

    zeros = cell.initial_state(n) if hasattr(cell, "initial_state") else nested_zeros(cell, n, dtype)
    return by_leaf(leaf, zeros)


def nested_zeros(cell, n, dtype):
    zeros = torch.zeros(n, HIDDEN, dtype=dtype)
    return (zeros, zeros) if isinstance(cell, nn.LSTMCell) else zeros


# Cells that are made of others, or wrapped, meet the lengths that differ most.
FEW = ["unsorted, an empty one in the middle", "one row", "batch of none"]
PATTERNS = {name: list(LENGTHS) if name in cells.__dict__ else FEW for name in MAKERS}
RAGGED = [
    (backend, name, pattern, reverse)
    for backend, name in itertools.product(EXECUTORS, MAKERS)
    for pattern in PATTERNS[name]
    for reverse in (False, True)
]
IN_TURN = [  # each cell by each executor, and each executor meets the lengths in turn
    (backend, name, PATTERNS[name][(i + j) % len(PATTERNS[name])], bool(j % 2))
    for i, backend in enumerate(EXECUTORS)
    for j, name in enumerate(MAKERS)
    if name in cells.__dict__ or backend == "c" or j % 2 == i % 2
]


@pytest.fixture(autouse=True)
def _flags(request):
    """`make fuzz` has C optimised of all cells; else of those with most kinds of ops, and of any size."""
    given = getattr(request.node, "callspec", None)
    params = given.params if given else {}
    optimised = params.get("name") in ("GRU", "LayerNormLSTM", "SLSTM") or "sizes" in params
    with contextlib.nullcontext() if optimised or request.config.getoption("exhaustive") else in_a_hurry():
        yield


@pytest.mark.parametrize(
    ("backend", "name", "pattern", "reverse"),
    few(RAGGED, IN_TURN[::3]),
    ids=[f"{backend}-{name}-{pattern}{', reverse' * reverse}" for backend, name, pattern, reverse in RAGGED],
)
def test_ragged(backend, name, pattern, reverse):
    cell, lengths = cell_of(name), LENGTHS[pattern]
    check_step(cell, rows_of(lengths), boot(cell, len(lengths)), backend=backend, reverse=reverse)


@pytest.mark.parametrize("pattern", LENGTHS)
def test_ragged_by_the_plain_loop(pattern):
    """The other cells meet it in their own tests."""
    lengths = LENGTHS[pattern]
    for name in ("LSTM", "all states of an LSTM"):
        cell = cell_of(name)
        for reverse in (False, True):
            check_step(cell, rows_of(lengths), boot(cell, len(lengths)), backend="naive", reverse=reverse)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", [PLAIN.name, *EXECUTORS])
@pytest.mark.parametrize("name", ["LSTM", "torch GRUCell", "SLSTM", "GRU from a learned state"])
def test_the_cell_says_the_initial_state(backend, name):
    check_step(cell_of(name), rows_of((2, 0, 3)), backend=backend)


DENSE = [
    *((steps, batch, 0) for steps, batch in [(4, 3), (4, 1), (1, 3), (1, 1), (0, 3), (4, 0), (0, 0), (2, 7)]),
    *((steps, batch, 1) for steps, batch in [(4, 3), (4, 1), (1, 3), (0, 3), (4, 0)]),
    *((4, 3, axis) for axis in (2, -1, -2, -3)),
    (4, 1, 2),
    (0, 3, 2),
]


@pytest.mark.covering(2)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("steps", "batch", "axis"), DENSE, ids=[f"{t} steps of {n}, axis {axis}" for t, n, axis in DENSE]
)
@pytest.mark.parametrize("backend", [PLAIN.name, *EXECUTORS])
def test_dense(backend, steps, batch, axis, reverse):
    cell = cell_of("LSTM")
    shape = [batch, FEATURES]
    shape.insert(axis % 3, steps)
    x = torch.randn(shape, dtype=DTYPE, requires_grad=True)
    check_step(cell, x, boot(cell, batch), backend=backend, axis=axis, reverse=reverse)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["GRU", "LayerNormLSTM", "SLSTM", "MinGRU"])
@pytest.mark.parametrize("backend", EXECUTORS)
def test_dense_cells(backend, name, axis):
    cell = cell_of(name)
    shape = (3, 4, FEATURES)
    x = torch.randn(shape, dtype=DTYPE, requires_grad=True)
    check_step(cell, x, boot(cell, shape[1 - axis]), backend=backend, axis=axis)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LayerNormLSTM", "SLSTM"])
@pytest.mark.parametrize("backend", [PLAIN.name, *EXECUTORS])
def test_float32(backend, name):
    cell = cell_of(name, torch.float32)
    for pattern in FEW:
        lengths = LENGTHS[pattern]
        x, state = rows_of(lengths, torch.float32), boot(cell, len(lengths), torch.float32)
        check_step(cell, x, state, backend=backend, tolerance=FLOAT32)


class SideBySide(nn.Module):
    """Cells of several sizes in one step, so that they are recorded once and are one build."""

    def __init__(self, kind, sizes, dtype):
        super().__init__()
        self.cells = nn.ModuleDict({str(n): kind(n + 2, n, dtype=dtype) for n in sizes})

    def forward(self, x, state):
        new = {name: cell(x[name], state[name])[1] for name, cell in self.cells.items()}
        return new, new


@pytest.mark.parametrize(
    ("dtype", "kind", "sizes"),
    few(
        [(torch.float64, cells.GRU, (1, 7, 13, 33)), (torch.float32, cells.RNN, (1, 7, 17, 33, 49, 65))],
        [(torch.float32, cells.RNN, (1, 7, 17, 33, 49, 65))],
    ),
    ids=["float64 GRU", "float32 RNN"],
)
def test_any_hidden_size(dtype, kind, sizes):
    """Generated C has tails for every width of vectors: less than one, one to four and a part, a whole panel
    and a part. Of 64 bytes 33 doubles and 65 floats are a panel and one more."""
    step = SideBySide(kind, sizes, dtype)
    x = {str(n): torch.randn(9, n + 2, dtype=dtype, requires_grad=True) for n in sizes}
    x = {name: LoDTensor.from_lengths(rows, [[2, 0, 1, 6]]) for name, rows in x.items()}
    state = {str(n): torch.randn(4, n, dtype=dtype, requires_grad=True) for n in sizes}
    check_step(step, x, state, backend="c", tolerance=FLOAT32 if dtype is torch.float32 else FLOAT64)


@pytest.mark.parametrize("count", every(2, [1, 2, 3, 4, 5, 8, 9, 17, 33]))
def test_any_number_of_sequences(count):
    """Sequences are dealt out to threads, and rows to blocks of the matrix product."""
    cell = cell_of("GRU")
    lengths = [(7 * i + 3) % 5 for i in range(count)]
    check_step(cell, rows_of(lengths), boot(cell, count), backend="c")
    x = torch.randn(2, count, FEATURES, dtype=DTYPE, requires_grad=True)
    check_step(cell, x, boot(cell, count), backend="c")


def test_long_sequences_and_short_ones():
    """More steps than the blocks in which generated C adds up sums over rows."""
    cell = cell_of("LayerNormLSTM")
    check_step(cell, rows_of([150, 1, 0, 70]), boot(cell, 4), backend="c")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    cell = cell_of("LSTM")
    torch.set_num_threads(threads)
    for lengths in ((4, 0, 2, 5), (3,), (2, 2)):
        check_step(cell, rows_of(lengths), boot(cell, len(lengths)), backend="c")


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["LSTM", "LayerNormLSTM", "GRU with dropout masks"])
@pytest.mark.parametrize("backend", EXECUTORS)
def test_no_result_holds_memory_that_was_never_set(backend, name):
    cell = cell_of(name)
    check_step(cell, rows_of((1, 2)), boot(cell, 2), backend=backend)  # the plan is made outside the poison
    with poisoned():
        for pattern in FEW:
            lengths = LENGTHS[pattern]
            check_step(cell, rows_of(lengths), boot(cell, len(lengths)), backend=backend)
        x = torch.randn(3, 40, FEATURES, dtype=DTYPE, requires_grad=True)
        check_step(cell, x, boot(cell, 40), backend=backend)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("backend", EXECUTORS)
def test_the_executor_asked_for_is_the_one_that_runs(backend, name):
    cell = cell_of(name)
    entry = entry_of(cell, rows_of((1, 2)), boot(cell, 2), backend=backend)
    assert entry.ready is not None, entry.refusals
    assert entry.ready.executor.name == backend
    forms = {"c": entry.compiled.fused, "eager": entry.compiled.hoisted, "numpy": entry.compiled.hoisted}
    assert entry.ready.plan is forms[backend]


@pytest.mark.parametrize("name", every(2, MAKERS))
def test_auto_takes_generated_c(name):
    cell = cell_of(name)
    entry = entry_of(cell, rows_of((1, 2)), boot(cell, 2), backend="auto")
    assert entry.ready is not None, entry.refusals
    assert entry.ready.executor.name == "c", entry.refusals
