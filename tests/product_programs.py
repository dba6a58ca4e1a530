"""Programs around the products in C, and one library with all that a twin of tiles does."""

from __future__ import annotations

import contextlib
import ctypes

import pytest

from c_programs import WIDE
from hurry import in_a_hurry
from stepnet.executors.c import build as c_build
from stepnet.executors.c.products import BY_SUFFIX, common, over_rows, paired, split

TABLE = """typedef struct { void *base; int64_t stride; const int64_t *index; } table;
static char room[SN_ROOM] __attribute__((aligned(64)));
"""
SPLIT = """
int64_t panel_columns(void) { return SN_WIDTH * sn_lanes_f32; }
int64_t split_size(int64_t K, int64_t n, int64_t split) { return sn_packed_split(K, n, split); }
void split_pack(float *to, const float *from, int64_t stride_k, int64_t stride_n, int64_t K, int64_t n,
                int64_t split) {
    sn_pack_split(to, from, stride_k, stride_n, K, n, split);
}
void split_matmul(const table *c, const table *d, const table *a, const float *packed, int64_t rows,
                  int64_t K, int64_t N, int64_t split) {
    sn_matmul_split((sn_rows_f32){c->base, c->stride, c->index}, (sn_rows_f32){d->base, d->stride, d->index},
                    (sn_rows_f32){a->base, a->stride, a->index}, packed, rows, K, N, split, room);
}
"""
PAIRS = """
int64_t pairs_size(int64_t K, int64_t n) { return sn_packed_bf16(K, n); }
void pairs_pack(uint16_t *to, const uint16_t *from, int64_t stride_k, int64_t stride_n, int64_t K,
                int64_t n) {
    sn_pack_bf16(to, from, stride_k, stride_n, K, n);
}
void pairs_matmul(const table *c, const table *d, const table *a, const uint16_t *packed, int64_t rows,
                  int64_t K, int64_t N) {
    sn_matmul_bf16((sn_rows_f32){c->base, c->stride, c->index}, (sn_rows_f32){d->base, d->stride, d->index},
                   (sn_rows_bf16){a->base, a->stride, a->index}, packed, rows, K, N, room);
}
#define EACH for (int64_t i = 0; i < n; ++i)
void round_bf16(float *x, int64_t n) { EACH x[i] = sn_round_bf16(x[i]); }
void round_f16(float *x, int64_t n) { EACH x[i] = sn_round_f16(x[i]); }
void load_bf16(float *x, const uint16_t *u, int64_t n) { EACH x[i] = sn_load_bf16(u[i]); }
void load_f16(float *x, const uint16_t *u, int64_t n) { EACH x[i] = sn_load_f16(u[i]); }
void store_bf16(uint16_t *u, const float *x, int64_t n) { EACH u[i] = sn_store_bf16(x[i]); }
void store_f16(uint16_t *u, const float *x, int64_t n) { EACH u[i] = sn_store_f16(x[i]); }
"""
OVER = "void run_over(const sn_pool *pool, sn_over *over) { sn_over_rows(pool, over); }\n"


def twin(request: pytest.FixtureRequest, head: str = "") -> ctypes.CDLL:
    """All products by the twin of tiles, which only tests run: `make fuzz` alone has it optimised."""
    parts = [common(), BY_SUFFIX["f32"].text, paired(2), split(True), c_build.header("sn_parallel.h")]
    with contextlib.nullcontext() if request.config.getoption("exhaustive") else in_a_hurry():
        text = "\n".join((WIDE + head, *parts, over_rows(), TABLE, SPLIT, PAIRS, OVER))
        return c_build.build(text).handle
