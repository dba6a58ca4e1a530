/* All rows times a matrix, C[rows, n] = A[rows, k] B[k, n], in floats. Stands on sn_matmul.h and sn_parallel.h.
 */
#ifndef SN_ON_ROWS_H
#define SN_ON_ROWS_H

typedef struct {
    float *to; /* C, whose rows follow one another */
    const float *a, *b;
    int64_t stride, stride_k, stride_n, rows, k, n;
    float *packed; /* B: sn_packed_f32(k, n) numbers */
} sn_on;

static void sn_on_pack(void *data, int64_t share, int64_t shares) {
    const sn_on *o = (const sn_on *)data;
    const int64_t panel = SN_WIDTH * sn_lanes_f32;
    const int64_t first = first_column(o->n, share, shares, panel), last = first_column(o->n, share + 1, shares, panel);
    if (last > first)
        sn_pack_f32(o->packed + first * o->k, o->b + first * o->stride_n, o->stride_k, o->stride_n, o->k, last - first);
}

static void sn_on_share(void *data, int64_t share, int64_t shares) {
    const sn_on *o = (const sn_on *)data;
    const int64_t first = o->rows * share / shares, last = o->rows * (share + 1) / shares;
    const sn_rows_f32 to = {o->to + first * o->n, o->n, 0}, none = {0, 0, 0};
    const sn_rows_f32 a = {(float *)o->a + first * o->stride, o->stride, 0};
    sn_matmul_f32(to, none, a, o->packed, last - first, o->k, o->n);
}

/* As many shares as the pool has threads. */
static __attribute__((unused)) void sn_on_rows(const sn_pool *pool, sn_on *o) {
    sn_parallel(pool, pool->threads, sn_on_pack, o);
    sn_parallel(pool, pool->threads, sn_on_share, o);
}
#endif
