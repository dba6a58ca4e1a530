"""Threads may have small stacks: what is large stands in the memory of a call."""

import ctypes
import platform
import subprocess
import threading

import pytest
import torch

import stepnet
from c_programs import NOTHING, WIDE, Rows
from forks import in_a_fork
from product_programs import OVER, PAIRS, SPLIT, TABLE, twin
from stepnet import nn
from stepnet.executors.c import build as c_build
from stepnet.executors.c import over_rows as c_over_rows
from stepnet.executors.c import threads as c_threads
from stepnet.executors.c.products import BY_SUFFIX, common, on_rows, over_rows, over_vectors, paired, split

OPTIMISED = False
STACK = 1 << 18  # bytes of a small one
FRAME = 33_000  # of one function at most


def on_a_small_stack(work):
    """What `work` gives in a thread of a process of its own, which would end if its stack were too small."""

    def alone():
        torch.set_num_threads(1)
        found = []
        before = threading.stack_size(STACK)
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        threading.stack_size(before)
        thread.join()
        return found[0]

    return in_a_fork(alone)


def _shipped(tiles: int) -> str:
    """All that is written by hand, of products and what they stand on."""
    parts = [
        WIDE, common(), BY_SUFFIX["f64"].text, BY_SUFFIX["f32"].text, paired(tiles), split(True),
        c_build.header("sn_parallel.h"), c_build.header("sn_scan.h"), TABLE, SPLIT, PAIRS,
    ]  # fmt: skip
    if tiles:
        return "\n".join((*parts, over_rows(), OVER))
    over = "void over(const sn_pool *pool, sn_over_vectors *o) { sn_over_by_vectors(pool, o); }\n"
    on = "void on(const sn_pool *pool, sn_on *o) { sn_on_rows(pool, o); }\n"
    parts += [f"#define SN_OVER_ROOM {c_over_rows._ROOM}\n", over_vectors("bfloat16"), over, on_rows(), on]
    return "\n".join(parts)


@pytest.mark.parametrize("tiles", [0, 2])
def test_no_function_takes_much_of_it(tiles, tmp_path):
    cc = c_build.compiler()
    flags = [flag for flag in cc.flags if flag != "-O2"]
    if platform.machine() == "x86_64":  # vectors of 64 bytes in halves take more, and no library has such
        flags.append("-mavx512f")
    command = [*cc.command, *flags, f"-Werror=frame-larger-than={FRAME}", "-c"]
    text = tmp_path / "products.c"
    text.write_text(_shipped(tiles))
    told = subprocess.run(
        [*command, "-o", str(tmp_path / "products.o"), str(text)], capture_output=True, text=True, check=False
    )
    assert not told.returncode, told.stderr


def _product(library, kind, rows, k, n, dtype, *parts):
    """Whether a product by `library` is near the exact one."""
    a, c = Rows(rows, k, "dense", dtype), Rows(rows, n, "dense", torch.float32)
    matrix = torch.randn(k, n).to(dtype)
    numbers = [ctypes.c_int64(number) for number in (k, n, *parts)]
    library[f"{kind}_size"].restype = ctypes.c_int64
    packed = torch.empty(library[f"{kind}_size"](*numbers) + 32, dtype=dtype)
    to = ctypes.c_void_p(packed.data_ptr())
    strides = (ctypes.c_int64(stride) for stride in matrix.stride())
    library[f"{kind}_pack"](to, ctypes.c_void_p(matrix.data_ptr()), *strides, *numbers)
    tables = (ctypes.byref(table) for table in (c.c, NOTHING, a.c))
    library[f"{kind}_matmul"](*tables, to, ctypes.c_int64(rows), *numbers)
    return float((c.values - a.values @ matrix.double()).abs().max()) < 1e-4 * k


def test_products_by_tiles(request):
    library = twin(request)
    run = library.run_over
    run.restype, run.argtypes = None, [ctypes.POINTER(c_threads.Pool), ctypes.POINTER(c_over_rows._Over)]

    def over():
        a, b = torch.randn(300, 40), torch.randn(300, 70)
        return float((c_over_rows._by_tiles(run, a, b, 300, 3) - a.t() @ b).abs().max()) < 1e-3

    def all_of_them():
        split = _product(library, "split", 40, 96, 70, torch.float32, 3)
        return over(), split, _product(library, "pairs", 40, 96, 70, torch.bfloat16)

    assert on_a_small_stack(all_of_them) == (True, True, True)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_an_lstm(precision):
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(0)
    model, x = nn.LSTM(64, 64), torch.randn(20, 32, 64)

    def trained():
        model.zero_grad()
        model(x)[0].square().sum().backward()
        return [p.grad.tolist() for p in model.parameters() if p.grad is not None]

    torch.set_num_threads(1)
    wanted = trained()  # it is built
    assert on_a_small_stack(trained) == wanted


def test_sums_of_many_features():
    """What a share adds up of the gradients of vectors, before they are the gradients."""
    w, b = (torch.randn(50_000, requires_grad=True) for _ in range(2))
    x = torch.randn(3, 2, 50_000)

    def step(x, h):
        h = torch.tanh(x + w * h + b)
        return h, h

    def gradients():
        y, _ = stepnet.recurrent(step, x, torch.zeros(2, 50_000), backend="c")
        return [grad.sum(dtype=torch.float64).item() for grad in torch.autograd.grad(y.sum(), (w, b))]

    torch.set_num_threads(1)
    wanted = gradients()
    assert on_a_small_stack(gradients) == wanted
