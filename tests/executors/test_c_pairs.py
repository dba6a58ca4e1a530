"""Products of bfloat16 against float64, by every set of instructions: all tails, all ways to address rows.
Numbers of 16 bits against torch's. Nothing is touched outside: tests/executors/test_c_split.py."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from c_programs import NOTHING, WIDE, Rows
from covering import few
from product_programs import PAIRS, TABLE, twin
from stepnet.executors.c import build as c_build
from stepnet.executors.c.products import BY_DTYPE, BY_SUFFIX, common, cpu, paired

OPTIMISED = False
BF16 = BY_DTYPE["bfloat16"]
NO_PAIRS = "#undef __AVX512BF16__\n"
WAYS = {  # what the text begins with, and its tiles
    "of this CPU": ("", 0),
    "floats": (NO_PAIRS, 0),
    "floats, wide vectors": (WIDE + NO_PAIRS, 0),
    "twin of tiles": (WIDE, 2),
    "twin of tiles, few rows by floats": (WIDE + NO_PAIRS, 2),
}
APART = [
    "floats",
    "floats, wide vectors",
    "twin of tiles",
    *(["of this CPU"] if cpu.has_pairs() else []),
]
SHAPES = [  # rows, K, N
    (0, 3, 5), (1, 1, 1), (1, 64, 256), (2, 7, 16), (3, 17, 31), (4, 32, 32), (5, 64, 64), (6, 5, 65),
    (7, 33, 48), (16, 64, 100), (17, 95, 17), (31, 2, 130), (32, 96, 64), (33, 31, 80), (97, 3, 17),
    (200, 11, 80), (2, 31, 300), (3, 64, 640), (3, 95, 129), (98, 1025, 33), (2, 2051, 70),
]  # fmt: skip


def text(way: str) -> str:
    head, tiles = WAYS[way]
    return "\n".join((head, common(), BY_SUFFIX["f32"].text, paired(tiles)))


@pytest.fixture(scope="module", params=few(WAYS, APART))
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    head, tiles = WAYS[request.param]
    if tiles:
        return twin(request, head.removeprefix(WIDE))
    return c_build.build(text(request.param) + TABLE + PAIRS).handle


def packed_of(library: ctypes.CDLL, matrix: torch.Tensor) -> torch.Tensor:
    """A matrix packed, in a buffer of NaN that is a little too long."""
    K, N = matrix.shape
    library.pairs_size.restype = ctypes.c_int64
    size = library.pairs_size(ctypes.c_int64(K), ctypes.c_int64(N))
    assert size * 2 <= BF16.packed_bytes(K, N)
    packed = torch.full((size + 32,), float("nan"), dtype=torch.bfloat16)
    strides = map(ctypes.c_int64, (*matrix.stride(), K, N))
    library.pairs_pack(ctypes.c_void_p(packed.data_ptr()), ctypes.c_void_p(matrix.data_ptr()), *strides)
    assert not packed[:size].isnan().any()
    assert packed[size:].isnan().all()
    return packed


def multiply(library, c, d, a, matrix) -> None:
    packed = packed_of(library, matrix)
    sizes = map(ctypes.c_int64, (a.places.shape[0], *matrix.shape))
    library.pairs_matmul(
        *(ctypes.byref(t) for t in (c.c, d, a.c)), ctypes.c_void_p(packed.data_ptr()), *sizes
    )


@pytest.mark.covering(2)
@pytest.mark.parametrize("layout", ["dense", "strided", "indexed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul(library, shape, layout):
    rows, K, N = shape
    a, c = Rows(rows, K, layout, torch.bfloat16), Rows(rows, N, layout, torch.float32)
    d = Rows(rows, N, "strided", torch.float32)
    turned = torch.randn(N, K).bfloat16().t()
    odd = torch.randn(N, K + 1).bfloat16()[:, 1:].t()  # pairs that do not stand on words
    for matrix in (torch.randn(K, N).bfloat16(), turned, odd):
        exact = a.values @ matrix.double()
        close = (K + 2) * np.finfo(np.float32).eps * (a.values.abs() @ matrix.double().abs() + 3)
        for addend in (None, d):
            multiply(library, c, NOTHING if addend is None else addend.c, a, matrix)
            wanted = exact if addend is None else exact + addend.values
            assert ((c.values - wanted).abs() <= close).all()
    before = c.values
    multiply(library, c, c.c, a, turned)  # the addend may be the result itself
    torch.testing.assert_close(c.values, before + a.values @ turned.double(), rtol=1e-4, atol=1e-3)
    assert c.outside_is_poison()


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e-38, -0.0, 3e38])
def test_special_values_stay_in_their_rows_and_columns(library, number):
    a, c = Rows(18, 40, "dense", torch.bfloat16), Rows(18, 40, "dense", torch.float32)
    a.buffer[a.places[7, 3]] = number
    matrix = torch.randn(40, 40).bfloat16()
    multiply(library, c, NOTHING, a, matrix)
    wanted = (a.values @ matrix.double()).float().double()
    other = torch.arange(18) != 7
    torch.testing.assert_close(c.values[other], wanted[other], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(c.values[7], wanted[7], rtol=1e-2, atol=1e-4, equal_nan=True)


def test_a_row_does_not_depend_on_other_rows(library, request):
    """But where few rows are multiplied by other instructions than many."""
    tiles = "twin" in request.node.callspec.params["library"]
    a, c = Rows(40, 70, "dense", torch.bfloat16), Rows(40, 150, "dense", torch.float32)
    matrix = torch.randn(70, 150).bfloat16()
    multiply(library, c, NOTHING, a, matrix)
    whole = c.values
    for rows in (4, 7, 16, 23) if tiles else (1, 2, 3, 7, 16):
        a.places, c.places = a.places[:rows], c.places[:rows]
        multiply(library, c, NOTHING, a, matrix)
        assert torch.equal(c.values, whole[:rows])
        a.places = 64 + torch.arange(40)[:, None] * 70 + torch.arange(70)
        c.places = 64 + torch.arange(40)[:, None] * 150 + torch.arange(150)


# --- numbers of 16 bits


def _floats() -> torch.Tensor:
    every = torch.arange(1 << 16, dtype=torch.int32) << 16
    near = torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 18,), dtype=torch.int64).to(torch.int32)
    ties = torch.cat([every + at for at in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFF, 0x1000, 0x1001, 0x3000)])
    subnormal = torch.randn(1 << 16) * 2.0 ** torch.randint(-30, -12, (1 << 16,)).float()
    return torch.cat([near.view(torch.float32), ties.view(torch.float32), subnormal])


@pytest.mark.parametrize(("suffix", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_numbers_of_16_bits(library, suffix, dtype):
    def call(name: str, *tensors: torch.Tensor) -> None:
        size = ctypes.c_int64(tensors[0].numel())
        library[f"{name}_{suffix}"](*(ctypes.c_void_p(t.data_ptr()) for t in tensors), size)

    x = _floats()
    rounded = x.clone()
    call("round", rounded)
    wanted = x.to(dtype)
    assert_same_numbers(rounded, wanted.float())
    stored = torch.empty(x.shape, dtype=dtype)
    call("store", stored, rounded)
    assert_same_numbers(stored.float(), wanted.float())
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    loaded = torch.empty(every.shape)
    call("load", loaded, every)
    assert_same_numbers(loaded, every.float())


def assert_same_numbers(a: torch.Tensor, b: torch.Tensor) -> None:
    """Bit for bit, but that one NaN is as good as another."""
    nan = b.isnan()
    assert torch.equal(a.isnan(), nan)
    assert torch.equal(a[~nan].view(torch.int32), b[~nan].view(torch.int32))


# --- which instructions


def test_tiles_are_not_asked_for_where_there_are_none(monkeypatch):
    monkeypatch.setattr(cpu, "_flags", lambda: ["avx512f", "amx_tile"])
    assert not cpu.has_tiles.__wrapped__()


def test_tiles_need_the_permission_of_the_system(monkeypatch):
    asked = []

    class System:
        def syscall(self, *numbers: int) -> int:
            asked.append(numbers)
            return answer

    monkeypatch.setattr(cpu, "_flags", lambda: ["avx512f", "amx_tile", "amx_bf16"])
    monkeypatch.setattr(cpu, "sys", type("system", (), {"platform": "linux"}))
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda *_, **__: System())
    for answer in (0, -1):
        assert cpu.has_tiles.__wrapped__() is (answer == 0)
    assert asked == [(158, 0x1023, 18)] * 2


def test_a_library_says_by_what_it_multiplies():
    """Its key is the hash of its text, so that a machine with tiles has libraries of its own."""
    assert len({paired(tiles) for tiles in (0, 1, 2)}) == 3


@pytest.mark.exhaustive
def test_a_compiler_that_does_not_know_tiles_builds_the_rest(tmp_path: Path):
    source = tmp_path / "tiles.c"
    source.write_text(
        "\n".join(("#undef __AMX_BF16__", common(), BY_SUFFIX["f32"].text, paired(1), TABLE, PAIRS))
    )
    cc = c_build.compiler()
    plain = [*cc.command, *cc.flags, "-O0", "-S", str(source), "-o", str(tmp_path / "tiles.s")]
    subprocess.run(plain, check=True, capture_output=True)
    assert "tdpbf16ps" not in (tmp_path / "tiles.s").read_text()
