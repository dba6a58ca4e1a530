/* Products over rows, C[k, n] = A[rows, k]' B[rows, n], of floats: what gradients of weights are.
 *
 * Threads take some features of A each. Of a block of rows, strips of features of A, as many as a tile has rows, and a
 * panel of B are packed row after row. Every element is summed in the order of rows, whatever the number of threads.
 * Stands on sn_matmul.h and sn_parallel.h.
 */
#ifndef SN_OVER_FLOATS_H
#define SN_OVER_FLOATS_H

typedef struct {
    float *sums; /* C */
    float *more; /* by tiles (sn_over_tiles.h): of threads but the first, k * n each */
    const float *a, *b;
    int64_t a_stride, b_stride, rows, k, n;
    int64_t parts; /* by tiles: numbers of bfloat16 that a float is split in */
} sn_over;

_Static_assert(SN_MAX_ROWS(SN_WIDTH) == 6, "rows of a tile");
enum { SN_TALL = 6, SN_WIDE = SN_WIDTH * sn_lanes_f32, SN_DEEP = 128, SN_STRIPS = 64,
       SN_APART = SN_TALL * SN_DEEP + 16 /* an odd number of lines: strips are written side by side */ };

/* Columns of a panel, features of a strip: the sums over a block of rows, and over those before it. */
#define SN_CASE(m)                                                                                                    \
    case m:                                                                                                           \
        if (m <= SN_TALL) sn_kernel_f32(to, plus, 0, A, 0, m, SN_WIDTH, SN_WIDTH, panel, SN_WIDE, 0, SN_TALL, depth); \
        break;
static __attribute__((noinline)) void sn_over_tile(sn_rows_f32 C, int more, const float *strip, const float *panel,
                                                   int64_t depth, int64_t m, int64_t n) {
    float tile[SN_TALL * SN_WIDE] __attribute__((aligned(64)));
    const int whole = n == SN_WIDE;
    const sn_rows_f32 to = whole ? C : (sn_rows_f32){tile, SN_WIDE, 0}, A = {(float *)strip, 1, 0};
    const sn_rows_f32 plus = whole && more ? C : (sn_rows_f32){0, 0, 0};
    switch (m) { SN_CASE(1) SN_CASE(2) SN_CASE(3) SN_CASE(4) SN_CASE(5) SN_CASE(6) }
    for (int64_t i = 0; i < m && !whole; ++i)
        sn_put_f32(sn_row_f32(C, i), tile + i * SN_WIDE, more ? sn_row_f32(C, i) : 0, n);
}
#undef SN_CASE

/* Features m0 .. m0 + m. */
static void sn_over_features(const sn_over *o, int64_t m0, int64_t m) {
    float strips[SN_STRIPS * SN_APART] __attribute__((aligned(64)));
    float panel[SN_WIDE * SN_DEEP] __attribute__((aligned(64)));
    for (int64_t r = 0, depth; r < o->rows; r += depth) {
        depth = sn_split(o->rows - r, SN_DEEP);
        for (int64_t k = 0; k < depth; ++k) {
            const float *from = o->a + (r + k) * o->a_stride + m0;
            float *to = strips + k * SN_TALL;
            int64_t f = 0;
            for (; f + SN_TALL <= m; f += SN_TALL, to += SN_APART) memcpy(to, from + f, SN_TALL * sizeof *to);
            if (f < m) memcpy(to, from + f, (size_t)(m - f) * sizeof *to);
        }
        for (int64_t c = 0; c < o->n; c += SN_WIDE) {
            const int64_t n = o->n - c < SN_WIDE ? o->n - c : SN_WIDE;
            for (int64_t k = 0; k < depth; ++k) {
                const float *from = o->b + (r + k) * o->b_stride + c;
                __builtin_prefetch(from + depth * o->b_stride, 0, 2); /* the next block comes meanwhile */
                if (n == SN_WIDE) memcpy(panel + k * SN_WIDE, from, SN_WIDE * sizeof *panel);
                else memcpy(panel + k * SN_WIDE, from, (size_t)n * sizeof *panel);
            }
            const int64_t k0 = depth * c / o->n, k1 = depth * (c + n) / o->n;
            for (int64_t f = 0; f < m; f += SN_TALL) {
                const float *next = o->a + (r + depth) * o->a_stride + m0 + f;
                for (int64_t k = k0; k < k1; ++k) __builtin_prefetch(next + k * o->a_stride, 0, 2);
                const sn_rows_f32 to = {o->sums + (m0 + f) * o->n + c, o->n, 0};
                sn_over_tile(to, r > 0, strips + f / SN_TALL * SN_APART, panel, depth, m - f < SN_TALL ? m - f : SN_TALL, n);
            }
        }
    }
}

static void sn_over_share(void *data, int64_t share, int64_t shares) {
    const sn_over *o = (const sn_over *)data;
    const int64_t last = first_column(o->k, share + 1, shares, SN_TALL);
    for (int64_t m0 = first_column(o->k, share, shares, SN_TALL), m; m0 < last; m0 += m) {
        m = sn_split(last - m0, SN_STRIPS * SN_TALL) + SN_TALL - 1;
        m = last - m0 < m ? last - m0 : m / SN_TALL * SN_TALL;
        sn_over_features(o, m0, m);
    }
}

static __attribute__((unused)) void sn_over_floats(const sn_pool *pool, sn_over *o) {
    sn_parallel(pool, pool->threads, sn_over_share, o);
}
#endif
