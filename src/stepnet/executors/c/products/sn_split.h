/* C = A B, or C = addend + A B, in floats: `sn_matmul_split`, as `sn_matmul_f32`, by products of bfloat16 where those are
 * faster. A float is the sum of up to three numbers of bfloat16, each the nearest to what the ones before it leave.
 *
 *     split 0    products of floats
 *     split 1    of the first: a1 b1
 *     split 2    of two: a1 b1 + a1 b2 + a2 b1, right to about 2^-17
 *     split 3    of three: a1 b1 + a1 b2 + a2 b1 + a1 b3 + a2 b2 + a3 b1. What is left out is smaller than what rounding
 *                a product to a float leaves out
 *
 * All are summed in floats. Packed, a panel of B is one of floats, as sn_matmul.h has it, then one of pairs for each
 * number, as sn_pairs.h has it, then the range of its sizes. The instructions take numbers too small to be normal for
 * zeros; and what is not finite has no second number. So where the sizes in rows and panel, or those of their
 * products, come near the ends of the range, and where rows, K or N are few, products are of floats whatever `split` says.
 */
#ifndef SN_SPLIT_H
#define SN_SPLIT_H

/* What of `split` this machine does, and K pays for. */
SN_INLINE int64_t sn_parts(int64_t K, int64_t split) {
#if SN_SPLIT && SN_TILES
    return K >= (split == 1 ? 32 : 64) ? split : 0;
#elif SN_SPLIT
    return K >= 32 && split == 1;
#else
    (void)K, (void)split;
    return 0;
#endif
}
/* Floats of a packed panel for each of its columns. */
SN_INLINE int64_t sn_deep_split(int64_t K, int64_t split) {
#if SN_SPLIT
    if (sn_parts(K, split)) return K + sn_parts(K, split) * (sn_depth_bf16(K) / 2) + 1;
#endif
    (void)split;
    return K;
}
SN_INLINE int64_t sn_packed_split(int64_t K, int64_t n, int64_t split) {
    return sn_deep_split(K, split) * sn_blocks_f32(n) * sn_lanes_f32;
}

#if !SN_SPLIT
SN_INLINE void sn_pack_split(float *restrict packed, const float *restrict source, int64_t stride_k, int64_t stride_n,
                             int64_t K, int64_t n, int64_t split) {
    (void)split;
    sn_pack_f32(packed, source, stride_k, stride_n, K, n, 1, SN_WIDTH);
}
SN_INLINE void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows,
                               int64_t K, int64_t N, int64_t split) {
    (void)split;
    sn_matmul_f32(C, addend, A, packed, rows, K, N);
}
#else

SN_SHARED void sn_pack_split(float *restrict packed, const float *restrict source, int64_t stride_k, int64_t stride_n,
                             int64_t K, int64_t n, int64_t split);
SN_SHARED void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows,
                               int64_t K, int64_t N, int64_t split);
#ifndef SN_LINKED

enum { SN_SPLIT_ROWS = 64, SN_SPLIT_DEPTH = 256 }; /* of A, split at a time */

/* The least and the greatest size of numbers that are not zero, as bits: those of sizes are ordered as sizes are. */
typedef struct {
    uint32_t least, most;
} sn_sizes;

SN_INLINE sn_sizes sn_sizes_of(sn_sizes known, const float *x, int64_t n) {
    uint32_t least = known.least - 1u, most = known.most;
    _Pragma("omp simd reduction(min : least) reduction(max : most)") for (int64_t i = 0; i < n; ++i) {
        const uint32_t size = sn_bits_f32(x[i]) & 0x7fffffffu;
        least = size - 1u < least ? size - 1u : least; /* that of zero is the greatest */
        most = size > most ? size : most;
    }
    return (sn_sizes){least + 1u, most};
}
static const sn_sizes sn_no_sizes = {0x7fffffffu, 0};

/* Whether all numbers, their parts, and all products of those to the last digit of a float, are normal; K of the
 * greatest add up to a float. */
SN_INLINE int sn_in_range(sn_sizes a, sn_sizes b, int64_t K) {
    const int a0 = (int)(a.least >> 23) - 127, b0 = (int)(b.least >> 23) - 127;
    const int a1 = (int)(a.most >> 23) - 127, b1 = (int)(b.most >> 23) - 127;
    int sums = 2;
    while (K >> sums) ++sums;
    return a0 >= -100 && b0 >= -100 && a0 + b0 >= -98 && a1 < 120 && b1 < 120 && a1 + b1 + sums < 124;
}

/* The `parts` numbers whose sum n floats are, n even: those of x[i] at to[part * apart + i * every]. */
SN_INLINE void sn_split_floats(uint16_t *restrict to, int64_t apart, const float *restrict x, int64_t n,
                               int64_t parts) {
    float rest[SN_DEPTH_BF16];
    for (int64_t at = 0; at < n; at += SN_DEPTH_BF16) {
        const int64_t m = n - at < SN_DEPTH_BF16 ? n - at : SN_DEPTH_BF16;
        memcpy(rest, x + at, (size_t)m * sizeof *rest);
        for (int64_t p = 0; p < parts; ++p) {
            uint16_t *part = to + p * apart + at;
            _Pragma("omp simd") for (int64_t i = 0; i < m; ++i) {
                const float near = sn_round_bf16(rest[i]);
                part[i] = sn_store_bf16(near);
                rest[i] -= near;
            }
        }
    }
}

/* A panel of floats [K, W] as panels of pairs [depth / 2, W, 2]. */
static void sn_split_panel(uint32_t *restrict pairs, const float *restrict panel, int64_t K, int64_t W, int64_t parts) {
    const int64_t words = sn_depth_bf16(K) / 2 * W; /* of one part */
    float even[SN_WIDTH * sn_lanes_f32], odd[SN_WIDTH * sn_lanes_f32];
    for (int64_t p = 0; p < parts; ++p) memset(pairs + p * words + K / 2 * W, 0, (size_t)(words - K / 2 * W) * 4);
    for (int64_t k = 0; k < K; k += 2) {
        memcpy(even, panel + k * W, (size_t)W * sizeof *even);
        if (k + 1 < K) memcpy(odd, panel + (k + 1) * W, (size_t)W * sizeof *odd);
        else memset(odd, 0, sizeof odd);
        for (int64_t p = 0; p < parts; ++p) {
            uint32_t *to = pairs + p * words + k / 2 * W;
            _Pragma("omp simd") for (int64_t u = 0; u < W; ++u) {
                const float first = sn_round_bf16(even[u]), second = sn_round_bf16(odd[u]);
                to[u] = (sn_bits_f32(first) >> 16) | sn_bits_f32(second); /* the rounded have no lower half */
                even[u] -= first;
                odd[u] -= second;
            }
        }
    }
}

void sn_pack_split(float *restrict packed, const float *restrict source, int64_t stride_k, int64_t stride_n, int64_t K,
                   int64_t n, int64_t split) {
    const int64_t parts = sn_parts(K, split), L = sn_lanes_f32;
    if (!parts) {
        sn_pack_f32(packed, source, stride_k, stride_n, K, n, 1, SN_WIDTH);
        return;
    }
    for (int64_t first = 0; first < sn_blocks_f32(n); first += SN_WIDTH) {
        const int64_t nv = sn_blocks_f32(n) - first < SN_WIDTH ? sn_blocks_f32(n) - first : SN_WIDTH, W = nv * L;
        const int64_t units = n - first * L < W ? n - first * L : W;
        float *panel = packed + first * L * sn_deep_split(K, split);
        sn_pack_f32(panel, source + first * L * stride_n, stride_k, stride_n, K, units, 1, SN_WIDTH);
        sn_split_panel((uint32_t *)(panel + K * W), panel, K, W, parts);
        const sn_sizes sizes = sn_sizes_of(sn_no_sizes, panel, K * W);
        memcpy(panel + (sn_deep_split(K, split) - 1) * W, &sizes, sizeof sizes);
    }
}

SN_INLINE sn_rows_f32 sn_from_row(sn_rows_f32 rows, int64_t r) {
    if (rows.index) rows.index += r;
    else if (rows.base) rows.base += r * rows.stride;
    return rows;
}
SN_INLINE sn_rows_f32 sn_from_column(sn_rows_f32 rows, int64_t n) {
    if (rows.base) rows.base += n;
    return rows;
}

#if SN_TILES
/* m rows of C in one panel by tiles. A: [K / 32][parts][SN_SPLIT_ROWS][32], zeros where there are none. */
#define SN_TILE_ROWS(p)                                                                                               \
    do {                                                                                                              \
        const uint16_t *a = rows + ((k / SN_DEPTH_BF16 * parts + (p)) * SN_SPLIT_ROWS + r) * SN_DEPTH_BF16;           \
        SN_TILE_LOAD(4, a, 64);                                                                                       \
        if (tall) SN_TILE_LOAD(5, a + 16 * SN_DEPTH_BF16, 64);                                                        \
    } while (0)
#define SN_TILE_COLUMNS(p)                                                                                            \
    do {                                                                                                              \
        const uint16_t *b = pairs + (p) * apart + (k * nv / 2 + v) * 2 * sn_lanes_f32;                                \
        SN_TILE_LOAD(6, b, nv * 64);                                                                                  \
        if (wide) SN_TILE_LOAD(7, b + 2 * sn_lanes_f32, nv * 64);                                                     \
    } while (0)
#define SN_TILE_ADD()                                                                                                 \
    do {                                                                                                              \
        SN_TILE_MULTIPLY(0, 4, 6);                                                                                    \
        if (wide) SN_TILE_MULTIPLY(1, 4, 7);                                                                          \
        if (tall) SN_TILE_MULTIPLY(2, 5, 6);                                                                          \
        if (tall && wide) SN_TILE_MULTIPLY(3, 5, 7);                                                                  \
    } while (0)
static __attribute__((noinline)) void sn_tiles_split(sn_rows_f32 C, sn_rows_f32 addend, const uint16_t *rows, int64_t m,
                                                     const uint16_t *pairs, int64_t apart, int64_t K, int64_t n,
                                                     int64_t nv, int64_t parts) {
    float sums[32][32] __attribute__((aligned(64)));
    SN_TILE_BEGIN();
    for (int64_t v = 0; v < nv; v += 2)
        for (int64_t r = 0; r < m; r += 32) {
            const int64_t high = m - r < 32 ? m - r : 32, at = v * sn_lanes_f32, left = n - at < 32 ? n - at : 32;
            const int tall = high > 16, wide = v + 1 < nv;
            SN_TILE_ZERO(0);
            SN_TILE_ZERO(1);
            SN_TILE_ZERO(2);
            SN_TILE_ZERO(3);
            for (int64_t k = 0; k < K; k += SN_DEPTH_BF16) { /* what is small, first of all */
                SN_TILE_ROWS(0);
                if (parts == 3) {
                    SN_TILE_COLUMNS(2);
                    SN_TILE_ADD();
                }
                SN_TILE_COLUMNS(1);
                SN_TILE_ADD();
                SN_TILE_ROWS(1);
                if (parts == 3) SN_TILE_ADD();
                SN_TILE_COLUMNS(0);
                SN_TILE_ADD();
                if (parts == 3) {
                    SN_TILE_ROWS(2);
                    SN_TILE_ADD();
                }
            }
            for (int64_t k = 0; k < K; k += SN_DEPTH_BF16) {
                SN_TILE_ROWS(0);
                SN_TILE_COLUMNS(0);
                SN_TILE_ADD();
            }
            SN_TILE_STORE(0, &sums[0][0], sizeof *sums);
            SN_TILE_STORE(1, &sums[0][16], sizeof *sums);
            SN_TILE_STORE(2, &sums[16][0], sizeof *sums);
            SN_TILE_STORE(3, &sums[16][16], sizeof *sums);
            for (int64_t i = 0; i < high; ++i)
                sn_put_f32(sn_row_f32(C, r + i) + at, sums[i], addend.base ? sn_row_f32(addend, r + i) + at : 0, left);
        }
    SN_TILE_END();
}
#undef SN_TILE_ROWS
#undef SN_TILE_COLUMNS
#undef SN_TILE_ADD
#endif

/* Up to SN_SPLIT_ROWS rows of C. */
static void sn_block_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t m, int64_t K,
                           int64_t N, int64_t parts) {
    uint16_t rows[SN_SPLIT_ROWS * SN_SPLIT_DEPTH * 3] __attribute__((aligned(64)));
    const int64_t most = parts == 1 ? 3 * SN_SPLIT_DEPTH : SN_SPLIT_DEPTH, deep = sn_deep_split(K, parts);
    const int64_t few = parts == 1 ? 1 : parts == 2 ? 6 : 12; /* below which a tile would be too empty */
    sn_sizes sizes = sn_no_sizes;
    if (m >= few)
        for (int64_t i = 0; i < m; ++i) sizes = sn_sizes_of(sizes, sn_row_f32(A, i), K);
    for (int64_t k0 = 0; k0 < K; k0 += most) {
        const int64_t deepest = K - k0 < most ? K - k0 : most;
        int split = 0;
        for (int64_t first = 0; first < sn_blocks_f32(N); first += SN_WIDTH) {
            const int64_t nv = sn_blocks_f32(N) - first < SN_WIDTH ? sn_blocks_f32(N) - first : SN_WIDTH;
            const int64_t column = first * sn_lanes_f32, W = nv * sn_lanes_f32, n = N - column < W ? N - column : W;
            const float *panel = packed + column * deep;
            const sn_rows_f32 to = sn_from_column(C, column), plus = sn_from_column(addend, column);
            sn_sizes of_panel;
            memcpy(&of_panel, panel + (deep - 1) * W, sizeof of_panel);
            if (m < few || !sn_in_range(sizes, of_panel, K)) {
                if (k0 == 0) sn_matmul_f32(to, plus, A, panel, m, K, n);
                continue;
            }
            if (!split) { /* these columns of A, once for all panels */
                split = 1;
                if (parts == 1)
                    for (int64_t i = 0; i < m; ++i) sn_split_floats(rows + i * most, 0, sn_row_f32(A, i) + k0, deepest, 1);
                else
                    for (int64_t k = 0; k < deepest; k += SN_DEPTH_BF16) {
                        const int64_t some = deepest - k < SN_DEPTH_BF16 ? deepest - k : SN_DEPTH_BF16;
                        uint16_t *block = rows + k * parts * SN_SPLIT_ROWS;
                        if (some < SN_DEPTH_BF16 || m % 16)
                            memset(block, 0, (size_t)(parts * SN_SPLIT_ROWS * SN_DEPTH_BF16) * sizeof *block);
                        for (int64_t i = 0; i < m; ++i)
                            sn_split_floats(block + i * SN_DEPTH_BF16, SN_SPLIT_ROWS * SN_DEPTH_BF16,
                                            sn_row_f32(A, i) + k0 + k, some, parts);
                    }
            }
            const uint16_t *pairs = (const uint16_t *)(panel + K * W) + k0 * W;
            const sn_rows_f32 sum = k0 == 0 ? plus : to;
#if SN_TILES
            if (parts > 1) {
                sn_tiles_split(to, sum, rows, m, pairs, sn_depth_bf16(K) * W, deepest, n, nv, parts);
                continue;
            }
#endif
            sn_columns_bf16(to, sum, (sn_rows_bf16){rows, most, 0}, pairs, 0, m, deepest, 0, n, nv);
        }
    }
}

void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows, int64_t K,
                     int64_t N, int64_t split) {
    const int64_t parts = sn_parts(K, split);
    if (!parts) {
        sn_matmul_f32(C, addend, A, packed, rows, K, N);
        return;
    }
    for (int64_t r = 0, m; r < rows; r += m) {
        m = sn_split(rows - r, SN_SPLIT_ROWS);
        sn_block_split(sn_from_row(C, r), sn_from_row(addend, r), sn_from_row(A, r), packed, m, K, N, parts);
    }
}
#endif
#endif
#endif
