"""The pieces of generated C on one thread: matmul tiles and math functions, against torch's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from stepnet.executors.c import build as c_build

from .child import on_threads
from .harness import Case, Contender, Row, Topic

FUNCTIONS = {"exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "log1p": torch.log1p}

SOURCE = """
int64_t packed_size(int64_t K, int64_t N) { return sn_packed_f32(K, N); }
void pack(float *packed, const float *B, int64_t K, int64_t N) {
    sn_pack_f32(packed, B, N, 1, K, N);
}
void matmul(float *C, float *D, float *A, const float *packed, int64_t rows, int64_t K, int64_t N) {
    sn_matmul_f32((sn_rows_f32){C, N, 0}, (sn_rows_f32){D, N, 0}, (sn_rows_f32){A, K, 0}, packed, rows, K, N);
}
""" + "".join(
    f"void every_{name}(const float *restrict x, float *restrict y, int64_t n) {{\n"
    f'_Pragma("omp simd") for (int64_t i = 0; i < n; ++i) y[i] = sn_{name}_f32(x[i]);\n}}\n'
    for name in FUNCTIONS
)


def cases(quick: bool) -> Iterator[Case]:
    """Shapes of one step of a recurrent cell: few rows, a weight that stays in the second cache."""
    library = c_build.build(c_build.preamble("f32") + SOURCE)
    with on_threads(1):
        for H in (64,) if quick else (64, 128, 256):
            for rows in (1, 16) if quick else (1, 2, 4, 16, 64):
                yield _matmul(library, rows, H, 4 * H)
        if not quick:
            yield _matmul(library, 2048, 2048, 2048)
        for name in FUNCTIONS:
            yield _pointwise(library, name, 512 if quick else 16384)


def _matmul(library: c_build.Library, rows: int, K: int, N: int) -> Case:
    draw = torch.Generator().manual_seed(rows + K)
    A, B = torch.randn(rows, K, generator=draw), torch.randn(K, N, generator=draw) / K**0.5
    addend, ours, theirs = torch.randn(rows, N, generator=draw), torch.empty(rows, N), torch.empty(rows, N)
    size = library.handle.packed_size
    size.restype = ctypes.c_int64
    packed = torch.empty(size(ctypes.c_int64(K), ctypes.c_int64(N)))
    _bind(library, "pack", packed, B, K, N)()
    call = _bind(library, "matmul", ours, addend, A, packed, rows, K, N)

    def run() -> Tensor:
        call()
        return ours

    return Case(
        name=f"addmm {rows} x {K} x {N}",
        contenders={
            "stepnet": Contender(run, lambda C: {"C": C}),
            "torch": Contender(lambda: torch.addmm(addend, A, B, out=theirs), lambda C: {"C": C}),
        },
        reference="torch",
        facts={"rows": rows, "K": K, "N": N, "gflop": 2e-9 * rows * K * N},
        rtol=1e-4,
        atol=1e-4,
    )


def _pointwise(library: c_build.Library, name: str, count: int) -> Case:
    x = torch.rand(count, generator=torch.Generator().manual_seed(0)) * 8
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    call = _bind(library, f"every_{name}", x, ours, count)

    def run() -> Tensor:
        call()
        return ours

    return Case(
        name=name,
        contenders={
            "stepnet": Contender(run, lambda y: {"y": y}),
            "torch": Contender(lambda: FUNCTIONS[name](x, out=theirs), lambda y: {"y": y}),
        },
        reference="torch",
        facts={"elements": count},
    )


def _bind(library: c_build.Library, name: str, *arguments: Tensor | int) -> Callable[[], None]:
    """A call without arguments; it keeps the tensors alive."""
    kinds = [ctypes.c_void_p if isinstance(a, Tensor) else ctypes.c_int64 for a in arguments]
    function = library.function(name, *kinds)
    return lambda: function(*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """Speed of each kernel, and torch's on the largest matmul: the machine's practical limit."""
    found = {}
    for row in rows:
        ours, theirs = row.times["stepnet"].median, row.times["torch"].median
        if "gflop" in row.facts:
            found[f"{row.case}: GFLOP/s"] = float(row.facts["gflop"]) / ours
            if row.facts["rows"] == 2048:
                found["torch's matmul of 2048: GFLOP/s"] = float(row.facts["gflop"]) / theirs
        else:
            found[f"{row.case}: elements per ns"] = float(row.facts["elements"]) / ours * 1e-9
    return found


TOPIC = Topic(
    name="kernels",
    claim="one thread of generated C runs a step's matmul near the machine's peak, math at vector speed",
    cases=cases,
    findings=findings,
)
