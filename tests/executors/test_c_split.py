"""Products of floats by way of bfloat16 against float64: no less exact than torch's own, unless asked for."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stepnet
from c_programs import NOTHING, WIDE, Rows, can_emulate_tiles, run_sanitized
from covering import examples, few
from product_programs import SPLIT, TABLE, twin
from stepnet.executors.c import build as c_build
from stepnet.executors.c import scan
from stepnet.executors.c.products import BY_DTYPE, BY_SUFFIX, common, cpu, paired, precision, split
from stepnet.executors.c.products import product as product_module
from stepnet.executors.exactness import exact_products
from threads import at_once

OPTIMISED = False
FLOAT = BY_DTYPE["float32"]
UNIT = 2.0**-24  # what rounding to a float may lose
EXACT = {0: 40 * UNIT, 1: 2.0**-7.9, 2: 2.0**-15.9, 3: 40 * UNIT}  # of the sum of sizes of products
WAYS = {"floats": (0, 0), "pairs of this CPU": (0, 1), "twin of tiles": (2, 1)}  # tiles, split
SHAPES = [  # rows, K, N
    (0, 64, 5), (1, 32, 33), (5, 31, 31), (6, 64, 64), (12, 63, 65), (16, 64, 100), (17, 257, 17),
    (33, 65, 130), (70, 129, 70), (13, 800, 20),
]  # fmt: skip


def text(tiles: int, is_fast: bool) -> str:
    pairs = [paired(tiles)] if is_fast else []
    return "\n".join((WIDE if tiles else "", common(), BY_SUFFIX["f32"].text, *pairs, split(is_fast)))


@pytest.fixture(scope="module", params=WAYS)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    tiles, is_fast = WAYS[request.param]
    return twin(request) if tiles else c_build.build(text(tiles, bool(is_fast)) + TABLE + SPLIT).handle


@pytest.fixture(scope="module")
def tiles(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return twin(request)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
@pytest.mark.parametrize(
    ("cpu", "tiles"),
    few([("x86-64-v3", 2), ("cooperlake", 2), ("sapphirerapids", 1)], [("sapphirerapids", 1)]),
)
def test_it_is_whole_on_other_cpus(cpu: str, tiles: int):
    cc = c_build.compiler()
    flags = [flag for flag in cc.flags if not flag.startswith("-march")]
    command = [*cc.command, *flags, f"-march={cpu}", "-Werror=implicit", "-fsyntax-only", "-x", "c", "-"]
    told = subprocess.run(command, input=text(tiles, True) + TABLE + SPLIT, text=True, capture_output=True)
    assert not told.returncode, told.stderr


def multiply(library, c, d, a, matrix, parts: int) -> None:
    rows, (K, N) = a.places.shape[0], matrix.shape
    library.split_size.restype = ctypes.c_int64
    size = library.split_size(*map(ctypes.c_int64, (K, N, parts)))
    assert size * 4 <= FLOAT.packed_bytes(K, N, parts)
    packed = torch.full((size + 32,), float("nan"))
    strides = map(ctypes.c_int64, (*matrix.stride(), K, N, parts))
    library.split_pack(ctypes.c_void_p(packed.data_ptr()), ctypes.c_void_p(matrix.data_ptr()), *strides)
    assert packed[size:].isnan().all()
    tables = (ctypes.byref(t) for t in (c.c, d, a.c))
    library.split_matmul(
        *tables, ctypes.c_void_p(packed.data_ptr()), *map(ctypes.c_int64, (rows, K, N, parts))
    )


def product(library, rows: torch.Tensor, matrix: torch.Tensor, parts: int) -> torch.Tensor:
    a, c = (Rows(len(rows), width, "dense", torch.float32) for width in matrix.shape)
    a.buffer[a.places] = rows
    multiply(library, c, NOTHING, a, matrix, parts)
    assert c.outside_is_poison()
    return c.buffer[c.places]


@pytest.mark.covering(2)
@pytest.mark.parametrize("parts", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ["dense", "strided", "indexed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul(library, shape, layout, parts):
    rows, K, N = shape
    a, c = Rows(rows, K, layout, torch.float32), Rows(rows, N, layout, torch.float32)
    d = Rows(rows, N, "strided", torch.float32)
    for matrix in (torch.randn(K, N), torch.randn(N, K).t()):
        exact, sizes = a.values @ matrix.double(), a.values.abs() @ matrix.double().abs()
        for addend in (None, d):
            multiply(library, c, NOTHING if addend is None else addend.c, a, matrix, parts)
            wanted = exact if addend is None else exact + addend.values
            assert ((c.values - wanted).abs() <= EXACT[parts] * (sizes + 3)).all()
        before = c.values
        multiply(library, c, c.c, a, matrix, parts)  # the addend may be the result itself
        assert ((c.values - before - exact).abs() <= EXACT[parts] * (sizes + before.abs())).all()
    assert c.outside_is_poison()


def scaled(kind: str, shape: tuple[int, int]) -> torch.Tensor:
    x = torch.randn(shape)
    if kind == "of many sizes":
        x *= 2.0 ** torch.randint(-20, 20, shape)
    elif kind == "rows of many sizes":
        x *= 2.0 ** torch.randint(-40, 40, (shape[0], 1))
    elif kind == "sparse":
        x *= torch.rand(shape) < 0.1
    elif kind == "of few columns":
        x *= torch.rand(shape[1]) < 16 / shape[1]
    elif kind == "of few digits":
        x = x.bfloat16().float()
    elif kind == "positive":
        x = x.abs()
    elif kind in ("tiny", "huge", "subnormal"):
        x *= {"tiny": 1e-30, "huge": 1e30, "subnormal": 1e-40}[kind]
    return x


KINDS = (
    "plain", "of many sizes", "rows of many sizes", "sparse", "of few columns", "of few digits", "positive",
    "tiny", "huge", "subnormal",
)  # fmt: skip


@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.integers(12, 70), K=st.integers(64, 300), N=st.integers(16, 100),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 2),
    cancels=st.booleans(), seed=st.integers(0, 1 << 30),
)  # fmt: skip
@example(rows=12, K=200, N=64, kinds=("of few columns", "plain"), cancels=False, seed=0)
def test_three_parts_are_as_exact_as_floats(tiles, rows, K, N, kinds, cancels, seed):
    """Errors of all elements together, each counted in what its products add up to in size; of few elements,
    or of few terms that count, they are a matter of luck."""
    torch.manual_seed(seed)
    a, b = scaled(kinds[0], (rows, K)), scaled(kinds[1], (K, N))
    if cancels:  # the second half takes away what the first one adds, but for one term
        half = K // 2
        a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
        a[:, half] *= 1 + 2.0**-20
        order = torch.randperm(K)
        a, b = a[:, order].contiguous(), b[order].contiguous()
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ours, floats = product(tiles, a, b, 3), product(tiles, a, b, 0)
    some = (sizes > 2.0**-100) & (
        sizes < 2.0**126
    )  # below, a float has fewer digits, and above there are none

    def off(found: torch.Tensor) -> float:
        return float(((found.double() - exact)[some] / sizes[some]).pow(2).mean().sqrt())

    if some.any():
        terms = float((sizes.square() / (a.double().square() @ b.double().square()))[some].median())
        luck = UNIT / (20 if terms > 4 else 5)  # one term alone is rounded as floats are
        assert off(ours) <= 1.1 * off(floats) + luck
    if (sizes < 2.0**126).all():
        assert ours.isfinite().all()


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(
    "number", [float("inf"), float("-inf"), float("nan"), 1e-40, -1e-36, 3.4e38, -0.0, 1e19]
)
def test_special_numbers_are_those_of_products_of_floats(library, number, parts):
    a, b = torch.randn(20, 96), torch.randn(96, 130)
    row, column, panel = a[7], b[:, 70], slice(64, 64 + library.panel_columns())
    for place in (row, column):
        place[5] = number
        found, floats = product(library, a, b, parts), product(library, a, b, 0)
        if number != number or number in (1e-40, -1e-36, 3.4e38) or abs(number) == float("inf"):
            some = slice(None) if place is row else panel  # what meets it
            torch.testing.assert_close(found[:, some], floats[:, some], rtol=0, atol=0, equal_nan=True)
        others = torch.arange(20) != 7 if place is row else slice(None), slice(None, 64)
        assert found[others].isfinite().all()
        place[5] = 1.0


@pytest.mark.parametrize(
    ("rows", "K", "N"), few([(16, 64, 33), (32, 128, 512), (64, 1024, 64)], [(16, 64, 33)])
)
def test_three_parts_are_more_exact_than_torch(tiles, rows, K, N):
    a, b = torch.randn(rows, K), torch.randn(K, N)
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ours, theirs = (((c.double() - exact).abs() / sizes) for c in (product(tiles, a, b, 3), a @ b))
    assert ours.max() < theirs.max()
    assert ours.mean() < 0.8 * theirs.mean()


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_both_ways_over_tiles_give_the_same_bits(tiles, parts):
    a, b = torch.randn(37, 64), torch.randn(64, 290)  # five panels: their turns are others from call to call
    first = product(tiles, a, b, parts)
    for _ in range(3):
        assert torch.equal(product(tiles, a, b, parts), first)


def test_all_zeros(library):
    zeros = torch.zeros(20, 64)
    for parts in (1, 2, 3):
        assert not product(library, zeros, torch.randn(64, 40), parts).any()
        assert not product(library, zeros, torch.zeros(64, 40), parts).any()


# --- who asks for what


@pytest.fixture
def machine(monkeypatch):
    def has(tiles: bool, pairs: bool) -> None:
        monkeypatch.setattr(precision, "has_tiles", lambda: tiles)
        monkeypatch.setattr(precision, "has_pairs", lambda: pairs)

    return has


@pytest.mark.parametrize(
    ("tiles", "pairs", "wanted"),
    [(True, True, [3, 2, 1]), (True, False, [3, 2, 1]), (False, True, [0, 0, 1]), (False, False, [0, 0, 0])],
)
def test_the_switch_of_torch(machine, tiles, pairs, wanted):
    machine(tiles, pairs)
    for name, parts in zip(("highest", "high", "medium"), wanted, strict=True):
        torch.set_float32_matmul_precision(name)
        assert precision.float_parts() == parts


def test_an_lstm_obeys_the_switch_from_call_to_call(machine, monkeypatch):
    """A plan made where little is asked for is right, too: the check of a new plan asks for all."""
    monkeypatch.setattr(scan, "WORTH_SPLITTING", 64)
    cell = stepnet.nn.LSTM(64, 64)
    x = stepnet.LoDTensor.from_lengths(torch.randn(84, 64), [[45, 0, 39]])

    def outputs(backend: str = "c") -> torch.Tensor:
        stepnet.set_backend(backend)
        rows = x.values.clone().requires_grad_()
        y, _ = cell(x.with_values(rows))
        y.values.square().sum().backward()
        assert rows.grad is not None
        return torch.cat([y.values.detach(), rows.grad])

    found = {}
    for name in ("medium", "highest", "medium", "highest"):
        torch.set_float32_matmul_precision(name)
        found.setdefault(name, []).append(outputs())
    wanted = outputs("naive")
    torch.testing.assert_close(found["highest"][0], wanted)
    torch.testing.assert_close(found["medium"][0], wanted, rtol=0.1, atol=0.1)
    for first, second in found.values():
        assert torch.equal(first, second)
    is_fast = cpu.has_tiles() or cpu.has_pairs()
    assert torch.equal(found["medium"][0], found["highest"][0]) is not is_fast


def test_where_results_are_compared_all_is_asked_for(machine):
    machine(True, True)
    torch.set_float32_matmul_precision("medium")
    with exact_products():
        assert precision.float_parts() == 3
        assert at_once(lambda _: precision.float_parts(), 1) == [1]
    assert precision.float_parts() == 1


# --- memory

CHECK = """
static int check_floats(int64_t rows, int64_t K, int64_t N) {
    float *A = malloc((size_t)(rows * K) * 4), *B = malloc((size_t)(K * N) * 4);
    float *C = malloc((size_t)(rows * N) * 4), *D = malloc((size_t)(rows * N) * 4);
    float *packed = malloc((size_t)sn_packed_f32(K, N) * 4);
    int bad = 0;
    for (int64_t i = 0; i < rows * K; ++i) A[i] = (float)((i * 7) % 11 - 5);
    for (int64_t i = 0; i < K * N; ++i) B[i] = (float)((i * 5) % 13 - 6);
    for (int64_t i = 0; i < rows * N; ++i) D[i] = (float)(i % 3);
    for (int turned = -1; turned < 2; ++turned) { /* a packed matrix, then as it lies */
        const int64_t stride_k = turned > 0 ? 1 : N, stride_n = turned > 0 ? K : 1;
        const sn_rows_f32 c = {C, N, 0}, a = {A, K, 0};
        if (turned < 0) sn_pack_f32(packed, B, N, 1, K, N);
        if (turned < 0) sn_matmul_f32(c, (sn_rows_f32){D, N, 0}, a, packed, rows, K, N);
        else sn_few_f32(c, a, B, stride_k, stride_n, rows, K, N);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t n = 0; n < N; ++n) {
                float want = turned < 0 ? D[r * N + n] : 0;
                for (int64_t k = 0; k < K; ++k) want += A[r * K + k] * B[k * stride_k + n * stride_n];
                bad += C[r * N + n] != want;
            }
    }
    free(A), free(B), free(C), free(D), free(packed);
    return bad;
}
static int check_pairs(int64_t rows, int64_t K, int64_t N, int turned) {
    uint16_t *A = malloc((size_t)(rows * K) * 2), *B = malloc((size_t)(K * N) * 2);
    float *C = malloc((size_t)(rows * N) * 4), *D = malloc((size_t)(rows * N) * 4);
    uint16_t *packed = malloc((size_t)sn_packed_bf16(K, N) * 2);
    int bad = 0;
    for (int64_t i = 0; i < rows * K; ++i) A[i] = sn_store_bf16((float)((i * 7) % 11 - 5));
    for (int64_t i = 0; i < K * N; ++i) B[i] = sn_store_bf16((float)((i * 5) % 13 - 6));
    for (int64_t i = 0; i < rows * N; ++i) D[i] = (float)(i % 3);
    const int64_t stride_k = turned ? 1 : N, stride_n = turned ? K : 1;
    sn_pack_bf16(packed, B, stride_k, stride_n, K, N);
    char *room = aligned_alloc(64, SN_ROOM);
    sn_matmul_bf16((sn_rows_f32){C, N, 0}, (sn_rows_f32){D, N, 0}, (sn_rows_bf16){A, K, 0}, packed, rows, K,
                   N, room);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t n = 0; n < N; ++n) {
            float want = D[r * N + n];
            for (int64_t k = 0; k < K; ++k)
                want += sn_load_bf16(A[r * K + k]) * sn_load_bf16(B[k * stride_k + n * stride_n]);
            bad += C[r * N + n] != want;
        }
    free(A), free(B), free(C), free(D), free(packed), free(room);
    return bad;
}
static int check(int64_t rows, int64_t K, int64_t N, int turned, int64_t split) {
    float *A = malloc((size_t)(rows * K) * 4), *B = malloc((size_t)(K * N) * 4);
    float *C = malloc((size_t)(rows * N) * 4), *D = malloc((size_t)(rows * N) * 4);
    float *packed = aligned_alloc(64, (size_t)sn_packed_split(K, N, split) * 4);
    int bad = 0;
    for (int64_t i = 0; i < rows * K; ++i) A[i] = (float)((i * 7) % 11 - 5) + (i % 5 == 0 ? 0x1p-10f : 0.0f);
    for (int64_t i = 0; i < K * N; ++i) B[i] = (float)((i * 5) % 13 - 6);
    for (int64_t i = 0; i < rows * N; ++i) D[i] = (float)(i % 3);
    const int64_t stride_k = turned ? 1 : N, stride_n = turned ? K : 1;
    sn_pack_split(packed, B, stride_k, stride_n, K, N, split);
    char *room = aligned_alloc(64, SN_ROOM);
    sn_matmul_split((sn_rows_f32){C, N, 0}, (sn_rows_f32){D, N, 0}, (sn_rows_f32){A, K, 0}, packed, rows, K,
                    N, split, room);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t n = 0; n < N; ++n) {
            float want = D[r * N + n]; /* all of it is exact in a float */
            for (int64_t k = 0; k < K; ++k)
                want += (split == 1 ? sn_round_bf16(A[r * K + k]) : A[r * K + k]) *
                        B[k * stride_k + n * stride_n];
            bad += C[r * N + n] != want;
        }
    free(A), free(B), free(C), free(D), free(packed), free(room);
    return bad;
}
int main(void) {
    int64_t rows[] = {1, 12, 33}, K[] = {64, 77}, N[] = {33, 100};
    int bad = 0;
    for (int split = 1; split < 4; ++split) {
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 2; ++j)
                for (int l = 0; l < 2; ++l) bad += check(rows[i], K[j], N[l], (i + j + l) & 1, split);
        bad += check(70, 290, 16, 0, split);
    }
    int64_t few_rows[] = {1, 2, 3, 4, 24, 33}, short_K[] = {1, 17, 32, 65}, some_N[] = {1, 33, 64, 300};
    for (int i = 0; i < 6; ++i)
        for (int j = 0; j < 4; ++j)
            for (int l = 0; l < 4; ++l)
                bad += check_pairs(few_rows[i], short_K[j], some_N[l], (i + j + l) & 1);
    int64_t any_rows[] = {1, 2, 5, 6, 7, 12, 13, 100}, any_K[] = {1, 3, 16, 19};
    int64_t any_N[] = {1, 7, 16, 33, 64, 65, 100};
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 4; ++j)
            for (int l = 0; l < 7; ++l) bad += check_floats(any_rows[i], any_K[j], any_N[l]);
    return bad != 0;
}
"""


@pytest.mark.exhaustive  # a sanitizer; bytes around are looked at above
def test_no_byte_outside_is_read_or_written(tmp_path: Path):
    """Of floats, as they are or split, and of bfloat16, under the sanitizers, as compiled for AMX, each of
    its instructions checked; else by their twin."""
    if can_emulate_tiles():
        assert " products of tiles" in run_sanitized(tmp_path, text(1, True) + CHECK, has_tiles=True)
    else:
        run_sanitized(tmp_path, text(2, True) + CHECK)


CPUS = [("haswell", 0, 0), ("skylake-avx512", 0, 0), ("cooperlake", 1, 0), ("sapphirerapids", 1, 1)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
@pytest.mark.parametrize(
    ("march", "pairs", "tiles"),
    few(CPUS, [CPUS[0]]),
)
def test_what_is_built_once_compiles_for_every_cpu(march, pairs, tiles, monkeypatch):
    monkeypatch.setattr(product_module, "has_pairs", lambda: bool(pairs))
    monkeypatch.setattr(product_module, "has_tiles", lambda: bool(tiles))
    cc = c_build.compiler()
    command = [*cc.command, *cc.flags, f"-march={march}", "-fsyntax-only", "-x", "c", "-"]
    for each in BY_SUFFIX.values():
        done = subprocess.run(command, input=each.object_text, text=True, capture_output=True, check=False)
        if "-march" in done.stderr:
            pytest.skip(f"the compiler does not know {march}")
        assert not done.returncode, done.stderr
