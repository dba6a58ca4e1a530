"""sn_matmul.h against numpy in float64: all tails, all ways to address rows, nothing touched outside."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from stepnet.executors.c import build as c_build

pytestmark = pytest.mark.skipif(
    c_build.available() is not None, reason=f"no C compiler: {c_build.available()}"
)

OPTIMISED = False
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
CTYPES = {"f32": "float", "f64": "double"}
SHAPES = [  # rows, K, N
    (0, 3, 5),
    (1, 1, 1),
    (1, 64, 256),
    (2, 7, 16),
    (2, 9, 300),
    (3, 17, 31),
    (5, 64, 64),
    (6, 5, 65),
    (7, 33, 48),
    (13, 20, 127),
    (16, 64, 100),
    (97, 3, 17),
    (200, 11, 80),
]

ENTRY = """
int64_t packed_T(int64_t K, int64_t n) { return sn_packed_T(K, n); }
void pack_T(REAL *to, const REAL *from, int64_t stride_k, int64_t stride_n, int64_t K, int64_t n) {
    sn_pack_T(to, from, stride_k, stride_n, K, n);
}
void matmul_T(sn_rows_T C, sn_rows_T addend, sn_rows_T A, const REAL *packed, int64_t rows, int64_t K,
              int64_t N) {
    sn_matmul_T(C, addend, A, packed, rows, K, N);
}
void few_T(sn_rows_T C, sn_rows_T A, const REAL *source, int64_t stride_k, int64_t stride_n, int64_t rows,
           int64_t K, int64_t N) {
    sn_few_T(C, A, source, stride_k, stride_n, rows, K, N);
}
void turned_T(sn_rows_T C, sn_rows_T A, const REAL *source, int64_t stride_n, int64_t rows, int64_t K,
              int64_t N, REAL *room) {
    sn_by_turned_T(C, A, source, stride_n, rows, K, N, room);
}
void over_T(REAL *C, int64_t c_next, const REAL *A, int64_t a_next, int64_t a_apart, const REAL *B,
            int64_t b_next, int64_t steps, int64_t m, int64_t n) {
    sn_over_steps_T(C, c_next, A, a_next, a_apart, B, b_next, steps, m, n);
}
"""


def _entries() -> str:
    text = (ENTRY.replace("_T", f"_{suffix}").replace("REAL", CTYPES[suffix]) for suffix in CTYPES)
    return c_build.preamble("f32", "f64") + "".join(text)


@pytest.fixture(scope="module")
def library() -> c_build.Library:
    return c_build.build(_entries())


class Rows(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("stride", ctypes.c_int64), ("index", ctypes.c_void_p))


def _call(library: c_build.Library, name: str, *arguments: object) -> int:
    function = library.handle[name]
    function.restype = ctypes.c_int64
    passed = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            passed.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            passed.append(argument if isinstance(argument, Rows) else ctypes.c_int64(argument))
    return function(*passed)


class Table:
    """rows x width values inside a larger buffer of NaN, addressed by a stride or by an index per row."""

    def __init__(self, rows: int, width: int, layout: str, dtype: np.dtype, rng: np.random.Generator) -> None:
        stride = {"dense": width, "strided": width + 3, "indexed": width + 5}[layout]
        places = rng.permutation(3 * rows)[:rows] if layout == "indexed" else np.arange(rows)
        self.index = places.astype(np.int64)
        self.buffer = np.full(64 + (3 * rows + 1) * stride + 64, np.nan, dtype)
        self.places = 64 + self.index[:, None] * stride + np.arange(width)
        self.fill(rng.standard_normal((rows, width)))
        address = self.buffer.ctypes.data + 64 * self.buffer.itemsize
        self.c = Rows(address, stride, self.index.ctypes.data if layout == "indexed" else None)

    def fill(self, values: np.ndarray | float) -> None:
        self.buffer[self.places] = values

    @property
    def values(self) -> np.ndarray:
        return self.buffer[self.places].astype(np.float64)

    def outside_is_poison(self) -> bool:
        outside = np.ones(self.buffer.size, bool)
        outside[self.places] = False
        return bool(np.isnan(self.buffer[outside]).all())


NOTHING = Rows(None, 0, None)


def _pack(library, suffix, B, transposed=False) -> np.ndarray:
    K, columns = B.shape
    source = np.ascontiguousarray((B.T if transposed else B).astype(DTYPES[suffix]))
    strides = (1, K) if transposed else (columns, 1)
    size = _call(library, f"packed_{suffix}", K, columns)
    packed = np.full(size + 32, np.nan, DTYPES[suffix])
    packed = packed[16:]
    _call(library, f"pack_{suffix}", packed, source, *strides, K, columns)
    assert not np.isnan(packed[:size]).any()
    assert np.isnan(packed[size:]).all()
    return packed


def _tolerance(dtype: np.dtype, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return (A.shape[1] + 2) * np.finfo(dtype).eps * (np.abs(A) @ np.abs(B) + 1)


@pytest.mark.covering(2)
@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("layout", ["dense", "strided", "indexed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul(library, shape, layout, suffix):
    rows, K, N = shape
    rng = np.random.default_rng(rows * 1000 + K + N)
    dtype = DTYPES[suffix]
    A, addend, C = (Table(rows, width, layout, dtype, rng) for width in (K, N, N))
    B = rng.standard_normal((K, N)).astype(dtype).astype(np.float64)
    packed = _pack(library, suffix, B, transposed=bool(rows % 2))
    tolerance = _tolerance(dtype, A.values, B)

    C.fill(np.nan)
    _call(library, f"matmul_{suffix}", C.c, NOTHING, A.c, packed, rows, K, N)
    assert (np.abs(C.values - A.values @ B) <= tolerance).all()

    C.fill(np.nan)
    _call(library, f"matmul_{suffix}", C.c, addend.c, A.c, packed, rows, K, N)
    assert (
        np.abs(C.values - (addend.values + A.values @ B)) <= tolerance + np.abs(addend.values) * 1e-6
    ).all()

    before = C.values
    _call(library, f"matmul_{suffix}", C.c, C.c, A.c, packed, rows, K, N)
    assert (np.abs(C.values - (before + A.values @ B)) <= tolerance + np.abs(before) * 1e-6).all()
    assert C.outside_is_poison()


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("layout", ["strided", "indexed"])
@pytest.mark.parametrize("turned", [False, True], ids=["rows of B lie", "columns of B lie"])
def test_few_rows_by_a_matrix_as_it_lies(library, turned, layout, suffix):
    dtype, rng = DTYPES[suffix], np.random.default_rng(3)
    small = itertools.product((0, 1, 2, 3, 4, 7, 8), (0, 1, 7, 16, 37), (1, 2, 7, 16, 31, 83))
    large = itertools.product((1, 2, 5), (64, 128, 203), (15, 130, 256, 391))
    for rows, K, N in [*small, *large]:
        A, C = Table(rows, K, layout, dtype, rng), Table(rows, N, layout, dtype, rng)
        first, second = (N, K) if turned else (K, N)
        matrix = np.full((first + 1, second + 3), np.nan, dtype)  # poison around it
        matrix[:first, :second] = rng.standard_normal((first, second))
        source = matrix[:first, :second]
        B = (source.T if turned else source).astype(np.float64)
        strides = (1, second + 3) if turned else (second + 3, 1)
        C.fill(np.nan)
        _call(library, f"few_{suffix}", C.c, A.c, source, *strides, rows, K, N)
        assert (np.abs(C.values - A.values @ B) <= _tolerance(dtype, A.values, B)).all(), (rows, K, N)
        assert C.outside_is_poison()


@pytest.mark.parametrize("suffix", DTYPES)
def test_rows_that_are_turned_in_place_of_a_matrix(library, suffix):
    """As by the matrix packed, to the bit."""
    dtype, rng = DTYPES[suffix], np.random.default_rng(5)
    for rows, K, N in itertools.product((1, 15, 16, 32, 41), (1, 7, 16, 37), (1, 16, 31, 97, 200)):
        A, C = (Table(rows, width, "strided", dtype, rng) for width in (K, N))
        matrix = np.full((N + 1, K + 3), np.nan, dtype)  # poison around it
        matrix[:N, :K] = rng.standard_normal((N, K))
        room = np.full((K + 96) * (rows + 16) + 64, np.nan, dtype)
        begin = -room.ctypes.data % 64 // dtype.itemsize
        C.fill(np.nan)
        _call(library, f"turned_{suffix}", C.c, A.c, matrix, K + 3, rows, K, N, room[begin:])
        found = C.values
        assert C.outside_is_poison()
        packed = _pack(library, suffix, matrix[:N, :K].T.astype(np.float64), transposed=True)
        _call(library, f"matmul_{suffix}", C.c, NOTHING, A.c, packed, rows, K, N)
        np.testing.assert_array_equal(found, C.values)


@pytest.mark.parametrize("suffix", DTYPES)
def test_a_row_does_not_depend_on_the_others(library, suffix):
    rng = np.random.default_rng(1)
    dtype = DTYPES[suffix]
    K, N, rows = 37, 83, 40
    A, C = Table(rows, K, "dense", dtype, rng), Table(rows, N, "dense", dtype, rng)
    packed = _pack(library, suffix, rng.standard_normal((K, N)))
    _call(library, f"matmul_{suffix}", C.c, NOTHING, A.c, packed, rows, K, N)
    together = C.values
    for count in range(1, 14):
        C.fill(np.nan)
        _call(library, f"matmul_{suffix}", C.c, NOTHING, A.c, packed, count, K, N)
        np.testing.assert_array_equal(C.values[:count], together[:count])


def test_split_is_even_and_complete():
    source = c_build.preamble("f32", linked=True) + (
        "int64_t split(int64_t rows, int64_t most) { return sn_split(rows, most); }"
    )
    split = c_build.build(source, "f32").handle.split
    split.restype = ctypes.c_int64
    for most in (1, 3, 6, 9):
        for rows in range(1, 40):
            left, sizes = rows, []
            while left:
                sizes.append(split(ctypes.c_int64(left), ctypes.c_int64(most)))
                left -= sizes[-1]
            assert len(sizes) == -(-rows // most)
            assert max(sizes) <= most
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("suffix", DTYPES)
def test_products_over_steps_are_added(library, suffix):
    rng = np.random.default_rng(0)
    for steps, m, n in ((0, 2, 3), (1, 1, 1), (5, 7, 19), (130, 13, 64), (300, 6, 33)):
        A, B = (rng.standard_normal((steps, 2, size)).astype(DTYPES[suffix]) for size in (m, n))
        C = rng.standard_normal((m, n + 2)).astype(DTYPES[suffix])
        expected, product = C.astype(np.float64), A[:, 1].T.astype(np.float64) @ B[:, 1]
        expected[:, :n] += product
        _call(library, f"over_{suffix}", C, n + 2, A[:, 1], 2 * m, 1, B[:, 1], 2 * n, steps, m, n)
        limit = 1e-4 if suffix == "f32" else 1e-12
        np.testing.assert_allclose(C, expected, rtol=limit, atol=limit)
        # backwards from the last step, columns of A that are apart
        backwards, turned = A[::-1, 1], np.ascontiguousarray(A[:, 1].T)
        D = np.zeros((m, n), DTYPES[suffix])
        if steps:
            _call(library, f"over_{suffix}", D, n, backwards, -2 * m, 1, B[::-1, 1], -2 * n, steps, m, n)
            _call(library, f"over_{suffix}", D, n, turned, 1, steps, B[:, 1], 2 * n, steps, m, n)
            np.testing.assert_allclose(D, 2 * product, rtol=limit, atol=limit)
