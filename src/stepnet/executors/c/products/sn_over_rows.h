/* Products over rows, C[k, n] = A[rows, k]' B[rows, n], of floats by tiles: what gradients of weights are.
 *
 * Rows are the depth of such a product. Threads take some of them each, and their sums are added at the end. Where tiles
 * do not reach (sn_in_range), a piece is multiplied as floats. Stands on sn_split.h with tiles and on sn_parallel.h.
 */
#ifndef SN_OVER_ROWS_H
#define SN_OVER_ROWS_H

typedef struct {
    float *sums; /* C */
    float *more; /* of threads but the first, k * n each */
    const float *a, *b;
    int64_t a_stride, b_stride, rows, k, n, parts;
    const float *a2; /* features of A from k1 on, k and k1 multiples of 16; k1 = k where one table has all */
    int64_t a2_stride, k1;
    float *turned, *turned2; /* C', of the features of either table; none is asked for: turned = 0 */
    char *room;              /* SN_OVER_ROOM bytes for each thread, whose stack may be small */
} sn_over;

/* 16 features of A from m on, of rows r on. */
SN_INLINE sn_rows_f32 sn_over_features(const sn_over *o, int64_t r, int64_t m) {
    const float *base = m < o->k1 ? o->a + r * o->a_stride + m : o->a2 + r * o->a2_stride + m - o->k1;
    return (sn_rows_f32){(float *)base, m < o->k1 ? o->a_stride : o->a2_stride, 0};
}

enum { SN_OVER_DEPTH = 256, SN_OVER_FEATURES = 256 };
/* In that room: rows, pairs, and a panel of floats or the sums of a block. */
enum {
    SN_OVER_ROWS = SN_OVER_FEATURES * SN_OVER_DEPTH * 3 * 2,
    SN_OVER_PAIRS = SN_OVER_DEPTH * 3 * SN_WIDTH * sn_lanes_f32 * 2,
    SN_OVER_PANEL = SN_OVER_DEPTH * SN_WIDTH * sn_lanes_f32 * 4
};
_Static_assert(SN_BLOCK_SUMS <= SN_OVER_PANEL, "room for sums");
_Static_assert(SN_OVER_ROWS + SN_OVER_PAIRS + SN_OVER_PANEL <= SN_OVER_ROOM, "room for rows, pairs and a panel");

/* Features m0 .. m0 + 16 of rows r .. r + 32, one after the other: to[16][32], zeros where there are none. */
static void sn_turn_some(float *to, const float *a, int64_t stride, int64_t rows, int64_t features) {
#if SN_TURN
    if (rows == 32 && features == 16) {
        sn_turn_f32(to, 32, a, stride);
        sn_turn_f32(to + 16, 32, a + 16 * stride, stride);
        return;
    }
#endif
    memset(to, 0, 16 * 32 * sizeof *to);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t f = 0; f < features; ++f) to[f * 32 + i] = a[i * stride + f];
}

/* `depth` rows, up to SN_OVER_DEPTH, of n columns as tiles of pairs, as sn_tiles_block takes them, and their sizes. */
SN_INLINE sn_sizes sn_pair_rows_in(uint16_t *restrict to, const float *b, int64_t stride, int64_t depth, int64_t n,
                                   float *panel, const int parts) {
    const int64_t nv = sn_blocks_f32(n);
#if SN_FAST_SPLIT
    (void)panel;
    const int64_t apart = parts * sn_depth_bf16(depth) * sn_lanes_f32;
    sn_seen seen = sn_none_seen;
    const __m512i side_by_side = sn_side_by_side();
    for (int64_t k = 0; k < sn_depth_bf16(depth); k += 2)
        for (int64_t v = 0; v < nv; ++v) {
            const int64_t left = n - v * 16;
            const __mmask16 some = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
            const float *from = b + k * stride + v * 16;
            __builtin_prefetch(from + 12 * stride);
            __builtin_prefetch(from + 13 * stride);
            uint16_t *at = to + v * apart + k / SN_DEPTH_BF16 * parts * SN_TILE_SIZE + k % SN_DEPTH_BF16 * sn_lanes_f32;
            __m512 x = _mm512_maskz_loadu_ps(k < depth ? some : 0, from);
            __m512 y = _mm512_maskz_loadu_ps(k + 1 < depth ? some : 0, from + stride);
            seen = sn_see(seen, x, y);
            SN_UNROLL for (int p = 0; p < parts; ++p) {
                const __m512i near = (__m512i)_mm512_cvtne2ps_pbh(y, x);
                _mm512_storeu_si512(at + p * SN_TILE_SIZE, _mm512_permutexvar_epi16(side_by_side, near));
                x = _mm512_sub_ps(x, sn_low_half(near));
                y = _mm512_sub_ps(y, sn_high_half(near));
            }
        }
    return sn_sizes_seen(seen);
#else
    sn_pack_f32(panel, b, stride, 1, depth, n);
    sn_split_panel((uint32_t *)to, panel, depth, nv * sn_lanes_f32, parts);
    return sn_sizes_of(sn_no_sizes, panel, depth * nv * sn_lanes_f32);
#endif
}
SN_EACH_PARTS(sn_sizes, sn_pair_rows,
              (uint16_t *restrict to, const float *b, int64_t stride, int64_t depth, int64_t n, float *panel,
               int64_t parts),
              to, b, stride, depth, n, panel)

/* C += A' B of `depth` rows, some features of A, all columns. */
static void sn_over_some(const sn_over *o, float *C, int64_t r, int64_t depth, int64_t m0, int64_t m, char *room) {
    uint16_t *const rows = (uint16_t *)room, *const pairs = (uint16_t *)(room + SN_OVER_ROWS);
    float *const panel = (float *)(room + SN_OVER_ROWS + SN_OVER_PAIRS);
    float turned[16 * 32] __attribute__((aligned(64)));
    const int64_t high = sn_tiled_high(m), next = high * SN_DEPTH_BF16, blocks = sn_depth_bf16(depth) / SN_DEPTH_BF16;
    const float *b = o->b + r * o->b_stride;
    sn_sizes sizes = sn_no_sizes;
    for (int64_t k = 0; k < blocks; ++k)
        for (int64_t f = 0, some; f < m; f += some) { /* features of one tile */
            const int64_t i = f % high, left = m - f < 16 ? m - f : 16;
            const sn_rows_f32 a = sn_over_features(o, r + 32 * k, m0 + f);
            some = high - i < left ? high - i : left;
            sn_turn_some(turned, a.base, a.stride, depth - 32 * k < 32 ? depth - 32 * k : 32, left);
            sizes = sn_of_both(sizes, sn_split_rows(rows + (f / high * blocks + k) * o->parts * next + i * SN_DEPTH_BF16,
                                                    SN_DEPTH_BF16, 0, next, (sn_rows_f32){turned, 32, 0}, some, 0, 32,
                                                    o->parts));
        }
    sn_tiles_begin(m);
    for (int64_t c0 = 0; c0 < o->n; c0 += SN_WIDTH * sn_lanes_f32) {
        const int64_t n = o->n - c0 < SN_WIDTH * sn_lanes_f32 ? o->n - c0 : SN_WIDTH * sn_lanes_f32;
        const sn_rows_f32 to = {C + m0 * o->n + c0, o->n, 0};
        if (sn_in_range(sizes, sn_pair_rows(pairs, b + c0, o->b_stride, depth, n, panel, o->parts), depth)) {
            const int64_t block = o->parts * SN_TILE_SIZE;
            sn_tiles_block(to, to, sn_tiled_of(rows, m, blocks, o->parts), m, (sn_paneled){pairs, blocks * block, block},
                           blocks, n, o->parts, panel);
            continue;
        }
        for (int64_t k = 0; k < depth; k += 32) {
            const int64_t some = depth - k < 32 ? depth - k : 32;
            sn_pack_f32(panel, b + k * o->b_stride + c0, o->b_stride, 1, some, n);
            for (int64_t f = 0; f < m; f += 16) {
                const int64_t features = m - f < 16 ? m - f : 16;
                const sn_rows_f32 part = sn_part_f32(to, f, 0), a = sn_over_features(o, r + k, m0 + f);
                sn_turn_some(turned, a.base, a.stride, some, features);
                sn_matmul_f32(part, part, (sn_rows_f32){turned, 32, 0}, panel, features, some, n);
            }
        }
    }
    sn_tiles_end();
}

/* The rows of one share. */
static void sn_over_share(void *data, int64_t share, int64_t shares) {
    const sn_over *o = (const sn_over *)data;
    float *C = share ? o->more + (share - 1) * o->k * o->n : o->sums;
    const int64_t blocks = (o->rows + 31) / 32, first = blocks * share / shares * 32;
    const int64_t last = share + 1 == shares ? o->rows : blocks * (share + 1) / shares * 32;
    memset(C, 0, (size_t)(o->k * o->n) * sizeof *C);
    for (int64_t r = first, depth; r < last; r += depth) {
        /* few rows at the end go with those before them: K of a product by tiles is not small */
        depth = last - r <= SN_OVER_DEPTH ? last - r : last - r < SN_OVER_DEPTH + 64 ? SN_OVER_DEPTH / 2 : SN_OVER_DEPTH;
        for (int64_t m0 = 0; m0 < o->k; m0 += SN_OVER_FEATURES)
            sn_over_some(o, C, r, depth, m0, o->k - m0 < SN_OVER_FEATURES ? o->k - m0 : SN_OVER_FEATURES,
                         o->room + share * SN_OVER_ROOM);
    }
}

static void sn_over_add(void *data, int64_t share, int64_t shares) {
    const sn_over *o = (const sn_over *)data;
    const int64_t size = o->k * o->n, first = size * share / shares, last = size * (share + 1) / shares;
    for (int64_t t = 0; t + 1 < shares; ++t)
        for (int64_t i = first; i < last; ++i) o->sums[i] += o->more[t * size + i];
}

/* Columns of C as rows, a few at a time: a cache line of each is read once, and one is written. */
static void sn_over_turn(void *data, int64_t share, int64_t shares) {
    const sn_over *o = (const sn_over *)data;
    const int64_t k = o->k, n = o->n, blocks = (n + 15) / 16;
    const int64_t first = blocks * share / shares * 16, last = share + 1 == shares ? n : blocks * (share + 1) / shares * 16;
    for (int64_t j0 = first; j0 < last; j0 += 16)
        for (int64_t i0 = 0; i0 < k; i0 += 16) {
            const int64_t j1 = j0 + 16 < last ? j0 + 16 : last, i1 = i0 + 16 < k ? i0 + 16 : k;
            const int64_t width = i0 < o->k1 ? o->k1 : k - o->k1;
            float *to = i0 < o->k1 ? o->turned : o->turned2 - o->k1;
            for (int64_t j = j0; j < j1; ++j)
                for (int64_t i = i0; i < i1; ++i) to[j * width + i] = o->sums[i * n + j];
        }
}

/* As many shares as the pool has threads, each of at least 64 rows. */
static __attribute__((unused)) void sn_over_rows(const sn_pool *pool, sn_over *o) {
    sn_parallel(pool, pool->threads, sn_over_share, o);
    if (pool->threads > 1) sn_parallel(pool, pool->threads, sn_over_add, o);
    if (o->turned) sn_parallel(pool, pool->threads, sn_over_turn, o);
}
#endif
