/* Products over rows, C[k, n] = A[rows, k]' B[rows, n], in floats: what gradients of weights are, of one table B or of two
 * that multiply the same A.
 *
 *     strip     SN_OVER_TALL columns of A, row after row
 *     panel     two vectors of columns of B, row after row
 *     near      so many rows go by all strips before the next ones do: caches still have those of B
 *
 * Of a strip and a panel, the sums over SN_OVER_SUMMED rows stay in registers, and are then added to C. Threads take strips
 * of A, or parts of many rows, each with a C of its own: so that each element is summed in the same order whatever their
 * number. Stands on sn_matmul.h and sn_parallel.h.
 */
#ifndef SN_OVER_FLOATS_H
#define SN_OVER_FLOATS_H

typedef struct {
    float *sums; /* C, of each part; NULL: no second table */
    const float *rows; /* B */
    int64_t stride, n;
} sn_over_table;

typedef struct {
    const float *a;
    int64_t stride, rows, k;
    sn_over_table tables[2];
    float *room; /* SN_OVER_ROOM numbers for each thread or part, for the stack of a thread may be small */
    int64_t parts; /* of rows; 1: threads take strips */
} sn_over_floats;

/* Strips and panels of SN_OVER_AT_ONCE rows stay in the second cache, a strip and a panel in the first one. */
enum { SN_OVER_TALL = 6, SN_OVER_WIDE = 2 * sn_lanes_f32, SN_OVER_SUMMED = 128, SN_OVER_AT_ONCE = 256, SN_OVER_NEAR = 512 };
enum { SN_OVER_STRIPS = 64, SN_OVER_COLUMNS = 256, SN_OVER_STRIP = SN_OVER_AT_ONCE * SN_OVER_TALL + sn_lanes_f32 };
enum { SN_OVER_PACKED = SN_OVER_STRIPS * SN_OVER_STRIP };
_Static_assert(SN_OVER_PACKED + SN_OVER_AT_ONCE * SN_OVER_COLUMNS <= SN_OVER_ROOM, "room for strips and panels");

/* Columns 0 .. m of A in strips; it has k of them. A vector that is put down for six numbers ends in the place of those
 * that follow. */
static void sn_pack_strips(float *restrict to, const float *restrict a, int64_t stride, int64_t depth, int64_t m, int64_t k) {
    for (int64_t t = 0; t < depth; ++t, a += stride) {
        float *at = to + t * SN_OVER_TALL;
        int64_t i = 0;
        if (SN_VECTOR_BYTES > SN_OVER_TALL * (int)sizeof *a)
            for (; i < m && i + sn_lanes_f32 <= k; i += SN_OVER_TALL, at += SN_OVER_STRIP) {
                __builtin_prefetch(a + i + 8 * stride);
                *(sn_vec_u_f32 *)at = *(const sn_vec_u_f32 *)(a + i);
            }
        for (; i < m; i += SN_OVER_TALL, at += SN_OVER_STRIP)
            for (int64_t u = 0; u < SN_OVER_TALL && i + u < k; ++u) at[u] = a[i + u];
    }
}

/* Columns 0 .. n of B in panels, and zeros beyond. */
static void sn_pack_panels(float *restrict to, const float *restrict b, int64_t stride, int64_t depth, int64_t n) {
    for (int64_t t = 0; t < depth; ++t, b += stride) {
        float *at = to + t * SN_OVER_WIDE;
        int64_t j = 0;
        for (; j + SN_OVER_WIDE <= n; j += SN_OVER_WIDE, at += SN_OVER_AT_ONCE * SN_OVER_WIDE) {
            __builtin_prefetch(b + j + 8 * stride);
            SN_UNROLL for (int v = 0; v < 2 * sn_lanes_f32; v += sn_lanes_f32)
                *(sn_vec_u_f32 *)(at + v) = *(const sn_vec_u_f32 *)(b + j + v);
        }
        if (j < n) for (int64_t u = 0; u < SN_OVER_WIDE; ++u) at[u] = j + u < n ? b[j + u] : 0;
    }
}

/* C = a strip times a panel, or C += that. Rows of C are `next` apart. */
SN_INLINE void sn_over_strip(float *C, int64_t next, const float *a, const float *b, int64_t depth, int is_first,
                             const int rows) {
    sn_vec_f32 sum[SN_OVER_TALL][2];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        __builtin_prefetch(C + i * next, 1);
        sum[i][0] = sum[i][1] = (sn_vec_f32){0};
    }
    for (int64_t t = 0; t < depth; ++t, a += SN_OVER_TALL, b += SN_OVER_WIDE) {
        sn_vec_f32 x = *(const sn_vec_u_f32 *)b, y = *(const sn_vec_u_f32 *)(b + sn_lanes_f32);
        SN_KEEP(x);
        SN_KEEP(y);
        SN_UNROLL for (int i = 0; i < rows; ++i) {
            sum[i][0] += a[i] * x;
            sum[i][1] += a[i] * y;
        }
    }
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < 2; ++v) {
            sn_vec_u_f32 *to = (sn_vec_u_f32 *)(C + i * next + v * sn_lanes_f32);
            if (!is_first) sum[i][v] += *to;
            *to = sum[i][v];
        }
}

static __attribute__((noinline)) void sn_over_strips(float *C, int64_t next, const float *a, const float *b, int64_t depth,
                                                     int is_first, int64_t rows) {
    for (int64_t t = 0; t < depth; t += SN_OVER_SUMMED, a += SN_OVER_SUMMED * SN_OVER_TALL, b += SN_OVER_SUMMED * SN_OVER_WIDE) {
        const int64_t some = depth - t < SN_OVER_SUMMED ? depth - t : SN_OVER_SUMMED;
        const int is_new = is_first && t == 0;
        switch (rows) {
#define SN_CASE(m) \
    case m: sn_over_strip(C, next, a, b, some, is_new, m); break
            SN_CASE(1); SN_CASE(2); SN_CASE(3); SN_CASE(4); SN_CASE(5);
#undef SN_CASE
            default: sn_over_strip(C, next, a, b, some, is_new, SN_OVER_TALL);
        }
    }
}

/* Columns m0 .. m0 + m of A, in strips, by all of a table. */
static void sn_over_one(const sn_over_table *table, float *panels, const float *strips, int64_t r, int64_t depth, int64_t m0,
                        int64_t m) {
    float edge[SN_OVER_TALL * SN_OVER_WIDE] __attribute__((aligned(64)));
    for (int64_t c = 0; c < table->n; c += SN_OVER_COLUMNS) {
        const int64_t n = table->n - c < SN_OVER_COLUMNS ? table->n - c : SN_OVER_COLUMNS;
        sn_pack_panels(panels, table->rows + r * table->stride + c, table->stride, depth, n);
        for (int64_t j = 0; j < n; j += SN_OVER_WIDE)
            for (int64_t i = 0; i < m; i += SN_OVER_TALL) {
                const float *a = strips + i / SN_OVER_TALL * SN_OVER_STRIP, *b = panels + j * SN_OVER_AT_ONCE;
                const int64_t tall = m - i < SN_OVER_TALL ? m - i : SN_OVER_TALL;
                float *C = table->sums + (m0 + i) * table->n + c + j;
                if (n - j >= SN_OVER_WIDE) {
                    sn_over_strips(C, table->n, a, b, depth, r == 0, tall);
                    continue;
                }
                sn_over_strips(edge, SN_OVER_WIDE, a, b, depth, 1, tall);
                for (int64_t u = 0; u < tall; ++u)
                    for (int64_t v = 0; v < n - j; ++v)
                        C[u * table->n + v] = edge[u * SN_OVER_WIDE + v] + (r ? C[u * table->n + v] : 0);
            }
    }
}

static void sn_over_floats_share(void *data, int64_t share, int64_t shares) {
    const sn_over_floats *o = (const sn_over_floats *)data;
    float *strips = o->room + share * SN_OVER_ROOM, *panels = strips + SN_OVER_PACKED;
    const int64_t all = (o->k + SN_OVER_TALL - 1) / SN_OVER_TALL, most = SN_OVER_STRIPS * SN_OVER_TALL;
    const int64_t first = all * share / shares * SN_OVER_TALL;
    const int64_t end = share + 1 == shares ? o->k : all * (share + 1) / shares * SN_OVER_TALL;
    for (int64_t near = 0; near < o->rows; near += SN_OVER_NEAR) {
        const int64_t last = o->rows - near < SN_OVER_NEAR ? o->rows : near + SN_OVER_NEAR;
        for (int64_t m0 = first; m0 < end; m0 += most) {
            const int64_t m = end - m0 < most ? end - m0 : most;
            for (int64_t r = near; r < last; r += SN_OVER_AT_ONCE) {
                const int64_t depth = last - r < SN_OVER_AT_ONCE ? last - r : SN_OVER_AT_ONCE;
                sn_pack_strips(strips, o->a + r * o->stride + m0, o->stride, depth, m, o->k - m0);
                for (int w = 0; w < 2; ++w)
                    if (o->tables[w].sums) sn_over_one(&o->tables[w], panels, strips, r, depth, m0, m);
            }
        }
    }
}

static void sn_over_floats_part(void *data, int64_t part, int64_t parts) {
    sn_over_floats o = *(const sn_over_floats *)data;
    const int64_t first = o.rows * part / parts;
    o.rows = o.rows * (part + 1) / parts - first;
    o.a += first * o.stride;
    o.room += part * SN_OVER_ROOM;
    for (int w = 0; w < 2; ++w)
        if (o.tables[w].sums) {
            o.tables[w].rows += first * o.tables[w].stride;
            o.tables[w].sums += part * o.k * o.tables[w].n;
        }
    sn_over_floats_share(&o, 0, 1);
}

static __attribute__((unused)) void sn_over_in_floats(const sn_pool *pool, sn_over_floats *o) {
    if (o->parts > 1) sn_parallel(pool, o->parts, sn_over_floats_part, o);
    else sn_parallel(pool, pool->threads, sn_over_floats_share, o);
}
#endif
