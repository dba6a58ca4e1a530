"""Products over rows by vectors against float64, and where they stand in for torch's."""

import threading

import pytest
import torch

from forks import in_a_fork
from stepnet import nn
from stepnet.executors.c import over_rows as c_over_rows
from stepnet.executors.c import threads as c_threads
from stepnet.executors.c.products import cpu

OPTIMISED = False
# Rows, features, columns of each table: of one strip and many, of one panel and many, whole and cut ones.
SIZES = {
    "one feature": (256, 1, (1,)),
    "few rows": (17, 70, (40,)),
    "less than a panel": (300, 7, (5, 17)),
    "whole panels": (1100, 48, (64, 32)),
    "more strips than are packed at once": (530, 389, (33, 3)),
    "more panels than are packed at once": (260, 12, (530,)),
    "parts of rows": (16400, 20, (33, 7)),
    "an odd number of rows": (513, 50, (33, 64)),
    "one row": (1, 37, (70,)),
}


DTYPES = torch.float32, torch.bfloat16


def _rows(rows, k, columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, k + 3, generator=generator).to(dtype)[:, 1 : k + 1]
    return a, [torch.randn(rows, n + 2, generator=generator).to(dtype)[:, :n] for n in columns]


@pytest.fixture(params=["as this CPU does", "floats"])
def of_pairs(request, monkeypatch):
    """How pairs of bfloat16 are multiplied: by the CPU's instruction, if it has one, and without."""
    text = c_over_rows.over_vectors
    if request.param == "floats":
        monkeypatch.setattr(
            c_over_rows, "over_vectors", lambda dtype: f"#undef __AVX512BF16__\n{text(dtype)}"
        )
    made = c_over_rows._library_of_vectors("bfloat16")
    monkeypatch.setattr(c_over_rows, "library_of_pairs", lambda: made)


@pytest.mark.usefixtures("of_pairs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIZES)
def test_sums_over_rows(name, dtype, monkeypatch):
    monkeypatch.setattr(c_threads, "_MULTIPLIED", 1)
    monkeypatch.setattr(c_over_rows, "_WORK", 1)
    monkeypatch.setattr(c_over_rows, "_FEW_ROWS", 1)
    monkeypatch.setattr(c_over_rows, "_PART", 2048)
    rows, k, columns = SIZES[name]
    a, tables = _rows(rows, k, columns, dtype)
    by_threads = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        by_threads.append(c_over_rows.by_vectors(a, tables, rows))
    for b, found, *others in zip(tables, *by_threads, strict=True):
        exact, sizes = a.double().t() @ b.double(), a.double().abs().t() @ b.double().abs()
        assert ((found - exact).abs() <= 2.0**-20 * sizes).all()
        assert all(torch.equal(found, other) for other in others)  # whatever the number of threads
        assert found.untyped_storage().nbytes() == found.numel() * 4  # a gradient keeps nothing else alive


@pytest.mark.usefixtures("of_pairs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [300, 301])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e-42, 3e38])
def test_numbers_that_are_not_ordinary(number, rows, dtype):
    a, (b,) = _rows(rows, 40, (70,), dtype)
    a[7, 39], b[270, 69] = number, number
    a[-1, 3], b[-1, 3] = number, number
    found = c_over_rows.by_vectors(a, [b], rows)
    assert found is not None
    torch.testing.assert_close(found[0], a.float().t() @ b.float(), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_a_thread_with_a_small_stack():
    """What is packed does not lie on it: a process with such a thread ended."""
    a, (b,) = _rows(300, 40, (70,))
    assert c_over_rows.by_vectors(a, [b], 300) is not None  # it is built

    def summed():
        torch.set_num_threads(1)
        found = []
        before = threading.stack_size(1 << 18)
        thread = threading.Thread(target=lambda: found.extend(c_over_rows.by_vectors(a, [b], 300)))
        thread.start()
        threading.stack_size(before)
        thread.join()
        return float((found[0] - a.t() @ b).abs().max())

    assert in_a_fork(summed) < 1e-4


def test_few_rows_little_work_and_turned_tables_are_left_to_torch():
    a, (b,) = _rows(300, 40, (50,))
    assert c_over_rows.by_vectors(a, [b], 300) is not None
    assert c_over_rows.by_vectors(a[:255], [b[:255]], 255) is None
    assert c_over_rows.by_vectors(a[:15].repeat(1, 50), [b[:15]], 15) is None
    assert c_over_rows.by_vectors(a, [b.t().contiguous().t()], 300) is None


@pytest.mark.parametrize(("autocast", "limit"), [(False, 2e-6), (True, 2e-2)])
def test_gradients_of_weights(autocast, limit, monkeypatch):
    together, made = [], c_over_rows.by_vectors

    def noted(a, tables, rows):
        found = made(a, tables, rows)
        together.append((a.shape[1], [table.shape[1] for table in tables], found is not None))
        return found

    monkeypatch.setattr(c_over_rows, "by_vectors", noted)
    monkeypatch.setattr(c_over_rows, "are_slow_in_torch", lambda dtype="float32": True)
    torch.manual_seed(0)
    wanted, found = torch.nn.LSTM(36, 32), nn.LSTM(36, 32)
    found.load_state_dict(wanted.state_dict())
    x = torch.randn(33, 8, 36)
    wanted.double()(x.double())[0].square().sum().backward()
    for frozen in (False, True):
        found.zero_grad()
        found.weight_ih_l0.requires_grad_(not frozen)
        together.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = found(x)[0]
        y.float().square().sum().backward()
        assert together[-1] == (128, [32] if frozen else [32, 36], True)  # those before are of the self-check
        for (name, mine), theirs in zip(found.named_parameters(), wanted.parameters(), strict=True):
            if mine.grad is not None and theirs.grad is not None:
                off = (mine.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
                assert off < limit, name
                assert mine.grad.untyped_storage().nbytes() == mine.numel() * 4


AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 fma\n\nvendor_id\t: GenuineIntel\nflags\t: none\n"


@pytest.mark.parametrize(
    ("told", "slow"),
    [
        (AMD, True),
        (AMD.replace("AuthenticAMD", "GenuineIntel"), False),
        (AMD.replace("avx2", "avx2 avx512f"), True),
        (AMD.replace("fma", "sse"), False),
        ("", False),
    ],
)
def test_whose_products_are_slow(told, slow, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(cpu, "Path", lambda name: tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda dtype="float32": True)
    assert cpu.are_slow_in_torch.__wrapped__() is slow
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert cpu.are_slow_in_torch.__wrapped__() is False


@pytest.mark.parametrize(
    ("flags", "slow", "loops"),
    [
        ("avx2 avx512f avx512_bf16", True, False),
        ("avx2 avx512f", False, False),
        ("avx2 avx512f avx512_bf16 amx_tile amx_bf16", False, False),
        ("avx2 fma", True, True),
        ("avx2 fma avx_ne_convert", False, False),
        ("", False, False),
    ],
)
def test_whose_products_of_bfloat16_are_slow(flags, slow, loops, monkeypatch):
    monkeypatch.setattr(cpu, "_flags", flags.split)
    monkeypatch.setattr(cpu, "sys", type("system", (), {"platform": "linux"}))
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu, "has_pairs", cpu.has_pairs.__wrapped__)
    monkeypatch.setattr(cpu, "has_tiles", lambda: set(flags.split()) >= cpu._TILES)
    monkeypatch.setattr(cpu, "are_loops_of_torch", cpu.are_loops_of_torch.__wrapped__)
    assert cpu.are_slow_in_torch.__wrapped__("bfloat16") is slow
    assert cpu.are_loops_of_torch() is loops
