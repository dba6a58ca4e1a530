"""All rows times a matrix in floats against float64, and where they stand in for torch's."""

import pytest
import torch

import stepnet
from stepnet.executors.c import on_rows as c_on_rows
from stepnet.executors.c import over_rows as c_over_rows
from stepnet.executors.c import threads as c_threads

OPTIMISED = False
# Rows, depth, columns: of whole panels and cut ones, of one block of rows and many.
SIZES = [(64, 1, 1), (70, 33, 17), (100, 64, 64), (205, 40, 130), (640, 300, 48)]


def _matrix(layout, k, n):
    if layout == "turned":
        return torch.randn(n, k).t()
    return torch.randn(k, n) if layout == "dense" else torch.randn(2 * k, 3 * n)[::2, ::3]


@pytest.mark.parametrize("layout", ["dense", "turned", "with gaps"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_times_a_matrix(sizes, layout, monkeypatch):
    monkeypatch.setattr(c_threads, "_MULTIPLIED", 1)
    monkeypatch.setattr(c_on_rows, "_WORK", 1)
    torch.manual_seed(0)
    rows, k, n = sizes
    a, b = torch.randn(rows, k + 3)[:, 1 : k + 1], _matrix(layout, k, n)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(c_on_rows.in_floats(a, b))
    exact, of_sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((found[0] - exact).abs() <= 2.0**-20 * of_sizes).all()
    assert all(torch.equal(found[0], other) for other in found)  # whatever the number of threads
    assert found[0].untyped_storage().nbytes() == rows * n * 4


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e-42, 3e38])
def test_numbers_that_are_not_ordinary(number):
    torch.manual_seed(0)
    a, b = torch.randn(200, 40), torch.randn(40, 70)
    a[7, 39], b[3, 69] = number, number
    found = c_on_rows.in_floats(a, b)
    torch.testing.assert_close(found, a @ b, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_what_is_left_to_torch(monkeypatch):
    """Few rows, little work, rows with gaps, and what torch may round."""
    a, b = torch.randn(200, 40), torch.randn(40, 70)
    assert c_on_rows.in_floats(a, b) is not None
    assert c_on_rows.in_floats(a[:15].repeat(1, 50), b.repeat(50, 1)) is None
    assert c_on_rows.in_floats(a[:100], b) is None
    assert c_on_rows.in_floats(torch.randn(40, 200).t(), b) is None
    monkeypatch.setattr(c_on_rows, "float_parts", lambda: 1)
    assert c_on_rows.in_floats(a, b) is None


class Layered(torch.nn.Module):
    """Layers before a recurrence and after it."""

    def __init__(self):
        super().__init__()
        sizes = (40, 48), (48, 32), (32, 32), (32, 36), (36, 33)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*each) for each in sizes])

    def forward(self, x, h):
        before, into, of_h, after, last = self.layers
        h = torch.tanh(into(torch.relu(before(x))) + of_h(h))
        return last(torch.relu(after(h))), h


def test_layers_around_a_recurrence(monkeypatch):
    """Outputs, gradients, and gradients of those are near the plain loop's in float64."""
    made, in_floats = [], c_on_rows.in_floats

    def noted(a, b):
        made.append(found := in_floats(a, b))
        return found

    monkeypatch.setattr(c_on_rows, "in_floats", noted)
    for module in (c_on_rows, c_over_rows):
        monkeypatch.setattr(module, "are_slow_in_torch", lambda dtype="float32": True)
    torch.manual_seed(0)
    ours, x = Layered(), torch.randn(60, 8, 40)
    plain = Layered().double()
    plain.load_state_dict(ours.state_dict())

    def outcome(module, backend, dtype):
        given = x.to(dtype).requires_grad_()
        y, h = stepnet.recurrent(module, given, torch.zeros(8, 32, dtype=dtype), backend=backend)
        total, read = y.square().sum() + h.sum(), [given, *module.parameters()]
        first = torch.autograd.grad(total, read, create_graph=True)
        again = torch.stack([grad.square().sum() for grad in first]).sum()
        second = torch.autograd.grad(again, read)
        return [y, h, *first, *second]

    found, wanted = outcome(ours, "c", torch.float32), outcome(plain, "naive", torch.float64)
    assert sum(product is not None for product in made) >= 4
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("loops", [True, False])
def test_layers_under_autocast(loops, monkeypatch):
    """Where torch multiplies numbers of bfloat16 by loops, floats are multiplied, exactly those numbers."""
    types, in_wider = [], c_on_rows.in_wider

    def noted(graph, node, product):
        def each(a, b, rows):
            types.append((a.dtype, b.dtype))
            return product(a, b, rows=rows)

        return in_wider(graph, node, each)

    for module in (c_on_rows, c_over_rows):
        monkeypatch.setattr(module, "in_wider", noted)
        monkeypatch.setattr(module, "are_loops_of_torch", lambda: loops)
        monkeypatch.setattr(module, "are_slow_in_torch", lambda dtype="float32": False)
    torch.manual_seed(0)
    ours, x = Layered(), torch.randn(60, 8, 40)
    plain = Layered().double()
    plain.load_state_dict(ours.state_dict())

    def outcome(module, backend, x, **autocast):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, **autocast):
            y, h = stepnet.recurrent(module, given, x.new_zeros(8, 32), backend=backend)
        total = y.double().square().sum() + h.double().sum()
        return [y, h, *torch.autograd.grad(total, [given, *module.parameters()])]

    first = outcome(ours, "c", x)  # with the self-check, whose plain loop is torch's
    types.clear()
    found, wanted = outcome(ours, "c", x), outcome(plain, "naive", x.double(), enabled=False)
    assert set(types) == ({(torch.float32, torch.float32)} if loops else set())
    for mine, again, exact in zip(found, first, wanted, strict=True):
        assert mine.dtype == again.dtype
        assert torch.equal(mine, again)
        assert (mine - exact).norm() <= 5e-2 * exact.norm()
