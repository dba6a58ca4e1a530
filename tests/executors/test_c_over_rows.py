"""Products over rows by tiles against float64: gradients of weights are as exact as torch's."""

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import examples
from product_programs import twin
from stepnet import nn
from stepnet.executors.c import over_rows as c_over_rows
from stepnet.executors.c import threads as c_threads
from stepnet.executors.c.products.cpu import has_tiles

OPTIMISED = False


@pytest.fixture(scope="module")
def run(request):
    """By a twin of the tile instructions, which any CPU has."""
    function = twin(request).run_over
    function.restype = None
    function.argtypes = [ctypes.POINTER(c_threads.Pool), ctypes.POINTER(c_over_rows._Over)]
    return function


@pytest.mark.exhaustive  # gradients made of them: below
@settings(max_examples=examples(80), deadline=None)
@given(
    rows=st.integers(256, 500), k=st.integers(1, 140), n=st.integers(1, 100), parts=st.sampled_from([2, 3]),
    threads=st.integers(1, 2), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_sums_over_rows(run, rows, k, n, parts, threads, seed):
    torch.manual_seed(seed)
    a, b = torch.randn(rows, k + 3)[:, 2 : k + 2], torch.randn(rows, n + 1)[:, :n]
    torch.set_num_threads(threads)
    found = c_over_rows._by_tiles(run, a, b, rows, parts)
    assert found.untyped_storage().nbytes() == k * n * 4  # a gradient keeps nothing else alive
    exact, sizes = a.double().t() @ b.double(), a.double().abs().t() @ b.double().abs()
    assert ((found - exact).abs() <= {2: 2.0**-15.9, 3: 2.0**-20}[parts] * sizes).all()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e-42, 3e38, 0.0, -0.0])
def test_numbers_that_tiles_do_not_know(run, number):
    torch.manual_seed(0)
    a, b = torch.randn(300, 40), torch.randn(300, 70)
    a[7, 3], b[270, 60] = number, number
    found, wanted = c_over_rows._by_tiles(run, a, b, 300, 3), a.t() @ b
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", [1.0, float("nan"), 1e-42])
def test_two_tables_are_as_one(run, number):
    torch.manual_seed(0)
    a, b = torch.randn(300, 128), torch.randn(300, 70)
    a[7, 3] = number
    parts = a[:, :48].clone(), a[:, 48:].clone()
    (wanted,) = c_over_rows._run(run, (a,), b, 300, 3)
    (found,) = c_over_rows._run(run, parts, b, 300, 3)
    assert torch.equal(found.nan_to_num(9), wanted.nan_to_num(9))
    turned = c_over_rows._run(run, parts, b, 300, 3, turned=True)
    assert torch.equal(torch.cat(turned, 1).nan_to_num(9), wanted.t().nan_to_num(9))
    assert all(t.is_contiguous() for t in turned)


def test_weights_that_share_rows_get_one_product(run, monkeypatch):
    features, made = [], c_over_rows._run

    def noted(run, a, *others, **more):
        features.append([t.shape[1] for t in a])
        return made(run, a, *others, **more)

    monkeypatch.setattr(c_over_rows, "_run", noted)
    monkeypatch.setattr(c_over_rows, "library", lambda: run)
    monkeypatch.setattr(c_over_rows, "float_parts", lambda: 3)
    monkeypatch.setattr(c_over_rows, "are_slow_in_torch", lambda dtype: False)
    monkeypatch.setattr(c_over_rows, "_SHARE", 64)
    torch.manual_seed(0)
    wanted, found = torch.nn.LSTM(80, 48), nn.LSTM(80, 48)
    found.load_state_dict(wanted.state_dict())
    x = torch.randn(32, 8, 80)  # more than are made in the call of the loop
    wanted.double()(x.double())[0].square().sum().backward()
    for frozen in (False, True):
        found.zero_grad()
        found.weight_ih_l0.requires_grad_(not frozen)
        features.clear()
        found(x)[0].square().sum().backward()
        assert features == ([] if frozen else [[48, 80]])
        for (name, mine), theirs in zip(found.named_parameters(), wanted.parameters(), strict=True):
            if mine.grad is not None:
                off = (mine.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
                assert off < 2e-6, name
                assert mine.grad.untyped_storage().nbytes() == mine.numel() * 4
        assert (found.weight_ih_l0.grad is None) == frozen


@pytest.mark.skipif(not has_tiles(), reason="the CPU has no tiles")
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_gradients_of_weights(precision):
    torch.manual_seed(0)
    wanted, found = nn.LSTM(128, 128), nn.LSTM(128, 128)
    found.load_state_dict(wanted.state_dict())
    x = torch.randn(40, 20, 128)
    wanted.double()(x.double())[0].square().sum().backward()
    torch.set_float32_matmul_precision(precision)
    for _ in range(2):  # gradients accumulate
        found(x)[0].square().sum().backward()
    near = {"highest": 1e-6, "high": 1e-4, "medium": 3e-2}[precision]
    for (name, mine), theirs in zip(found.named_parameters(), wanted.parameters(), strict=True):
        off = (mine.grad.double() - 2 * theirs.grad).abs().max() / theirs.grad.abs().max()
        assert off < 4 * near, name
    storages = {p.grad.untyped_storage().data_ptr() for p in found.parameters()}
    assert len(storages) == len(list(found.parameters()))
