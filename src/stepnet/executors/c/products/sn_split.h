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
    sn_pack_f32(packed, source, stride_k, stride_n, K, n);
}
SN_INLINE void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows,
                               int64_t K, int64_t N, int64_t split, char *room) {
    (void)split, (void)room;
    sn_matmul_f32(C, addend, A, packed, rows, K, N);
}
SN_INLINE void sn_columns_split(sn_rows_f32 C, sn_rows_f32 A, const sn_matrix *B, int64_t few, int64_t rows, int64_t K,
                                int64_t N, int64_t member, int64_t members, int64_t split, char *room) {
    (void)split, (void)room;
    sn_columns_f32(C, A, B, few, rows, K, N, member, members);
}
#else

SN_SHARED void sn_pack_split(float *restrict packed, const float *restrict source, int64_t stride_k, int64_t stride_n,
                             int64_t K, int64_t n, int64_t split);
/* `room`: as sn_matmul_bf16 has it. */
SN_SHARED void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows,
                               int64_t K, int64_t N, int64_t split, char *room);
SN_SHARED void sn_columns_split(sn_rows_f32 C, sn_rows_f32 A, const sn_matrix *B, int64_t few, int64_t rows, int64_t K,
                                int64_t N, int64_t member, int64_t members, int64_t split, char *room);
#ifndef SN_LINKED

#if defined(__AVX512BF16__) && SN_VECTOR_BYTES == 64
#include <immintrin.h>
#define SN_FAST_SPLIT 1
/* The floats that the halves of a vector of bfloat16 stand for. */
SN_INLINE __m512 sn_low_half(__m512i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16));
}
SN_INLINE __m512 sn_high_half(__m512i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16));
}
/* The order that brings elements i and i + 16 side by side. */
SN_INLINE __m512i sn_side_by_side(void) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
}
#else
#define SN_FAST_SPLIT 0
#endif

/* Rows below which a tile would be too empty. */
SN_INLINE int64_t sn_few_split(int64_t parts) { return parts == 1 ? 1 : parts == 2 ? 6 : 12; }
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
SN_INLINE sn_sizes sn_of_both(sn_sizes a, sn_sizes b) {
    return (sn_sizes){a.least < b.least ? a.least : b.least, a.most > b.most ? a.most : b.most};
}
#if SN_FAST_SPLIT
/* The same of two vectors at a time. Less one, the least of zeros is the greatest. */
typedef struct {
    __m512i less, most;
} sn_seen;

static const sn_seen sn_none_seen = {{-1, -1, -1, -1, -1, -1, -1, -1}, {0}};

SN_INLINE sn_seen sn_see(sn_seen known, __m512 a, __m512 b) {
    const __m512i all = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
    const __m512i x = _mm512_and_si512(_mm512_castps_si512(a), all), y = _mm512_and_si512(_mm512_castps_si512(b), all);
    const __m512i less = _mm512_min_epu32(_mm512_sub_epi32(x, one), _mm512_sub_epi32(y, one));
    return (sn_seen){_mm512_min_epu32(known.less, less), _mm512_max_epu32(known.most, _mm512_max_epu32(x, y))};
}
SN_INLINE sn_sizes sn_sizes_seen(sn_seen all) {
    return (sn_sizes){_mm512_reduce_min_epu32(all.less) + 1u, _mm512_reduce_max_epu32(all.most)};
}
#endif

/* Whether all numbers, their parts, and all products of those to the last digit of a float, are normal; K of the
 * greatest add up to a float. */
SN_INLINE int sn_in_range(sn_sizes a, sn_sizes b, int64_t K) {
    const int a0 = (int)(a.least >> 23) - 127, b0 = (int)(b.least >> 23) - 127;
    const int a1 = (int)(a.most >> 23) - 127, b1 = (int)(b.most >> 23) - 127;
    int sums = 2;
    while (K >> sums) ++sums;
    return a0 >= -100 && b0 >= -100 && a0 + b0 >= -98 && a1 < 120 && b1 < 120 && a1 + b1 + sums < 124;
}

/* A panel of floats [K, W] as pairs, of one number as sn_pairs.h has them; of more as sn_tiles_block does. */
static void sn_split_panel(uint32_t *restrict pairs, const float *restrict panel, int64_t K, int64_t W, int64_t parts) {
    const int64_t depth = sn_depth_bf16(K), L = sn_lanes_f32, half = SN_DEPTH_BF16 / 2;
    float even[SN_WIDTH * sn_lanes_f32], odd[SN_WIDTH * sn_lanes_f32];
#if SN_FAST_SPLIT
    const __m512i side_by_side = sn_side_by_side();
#endif
    for (int64_t k = 0; k < depth; k += 2) {
        if (k < K) memcpy(even, panel + k * W, (size_t)W * sizeof *even);
        else memset(even, 0, sizeof even);
        if (k + 1 < K) memcpy(odd, panel + (k + 1) * W, (size_t)W * sizeof *odd);
        else memset(odd, 0, sizeof odd);
        for (int64_t p = 0; p < parts; ++p)
            for (int64_t u0 = 0; u0 < W; u0 += L) {
                const int64_t block = k / SN_DEPTH_BF16, v = u0 / L;
                const int64_t tile = parts == 1 ? block * (W / L) + v : (v * (depth / SN_DEPTH_BF16) + block) * parts + p;
                uint32_t *to = pairs + (SN_TILES ? (tile * half + k / 2 % half) * L : k / 2 * W + u0);
#if SN_FAST_SPLIT
                const __m512i near = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(odd + u0), _mm512_loadu_ps(even + u0));
                _mm512_storeu_si512(to, _mm512_permutexvar_epi16(side_by_side, near));
                _mm512_storeu_ps(even + u0, _mm512_sub_ps(_mm512_loadu_ps(even + u0), sn_low_half(near)));
                _mm512_storeu_ps(odd + u0, _mm512_sub_ps(_mm512_loadu_ps(odd + u0), sn_high_half(near)));
#else
                _Pragma("omp simd") for (int64_t u = 0; u < L; ++u) {
                    const float first = sn_round_bf16(even[u0 + u]), second = sn_round_bf16(odd[u0 + u]);
                    to[u] = (sn_bits_f32(first) >> 16) | sn_bits_f32(second); /* the rounded have no lower half */
                    even[u0 + u] -= first;
                    odd[u0 + u] -= second;
                }
#endif
            }
    }
}

void sn_pack_split(float *restrict packed, const float *restrict source, int64_t stride_k, int64_t stride_n, int64_t K,
                   int64_t n, int64_t split) {
    const int64_t parts = sn_parts(K, split), L = sn_lanes_f32;
    if (!parts) {
        sn_pack_f32(packed, source, stride_k, stride_n, K, n);
        return;
    }
    for (int64_t first = 0; first < sn_blocks_f32(n); first += SN_WIDTH) {
        const int64_t nv = sn_blocks_f32(n) - first < SN_WIDTH ? sn_blocks_f32(n) - first : SN_WIDTH, W = nv * L;
        const int64_t units = n - first * L < W ? n - first * L : W;
        float *panel = packed + first * L * sn_deep_split(K, split);
        sn_pack_f32(panel, source + first * L * stride_n, stride_k, stride_n, K, units);
        sn_split_panel((uint32_t *)(panel + K * W), panel, K, W, parts);
        const sn_sizes sizes = sn_sizes_of(sn_no_sizes, panel, K * W);
        memcpy(panel + (sn_deep_split(K, split) - 1) * W, &sizes, sizeof sizes);
    }
}

/* A function for each number of parts: what depends on one number after the other is done side by side. */
#define SN_EACH_PARTS(kind, name, parameters, ...)                                                                    \
    static kind name parameters {                                                                                     \
        if (parts == 1) return name##_in(__VA_ARGS__, 1);                                                             \
        if (parts == 2) return name##_in(__VA_ARGS__, 2);                                                             \
        return name##_in(__VA_ARGS__, 3);                                                                             \
    }

#if !SN_FAST_SPLIT
/* The `parts` numbers whose sum each of n floats is, n no more than a block's; zeros behind them. */
SN_INLINE void sn_split_floats(uint16_t *restrict to, int64_t apart, const float *restrict x, int64_t n, int parts) {
    float rest[SN_DEPTH_BF16] = {0};
    memcpy(rest, x, (size_t)n * sizeof *rest);
    for (int p = 0; p < parts; ++p)
        _Pragma("omp simd") for (int64_t i = 0; i < SN_DEPTH_BF16; ++i) {
            const float near = sn_round_bf16(rest[i]);
            to[p * apart + i] = sn_store_bf16(near);
            rest[i] -= near;
        }
}
#endif

/* Columns k0 .. k0 + depth of m rows of A as `parts` numbers each: the first of row i at to[i * stride], each next block of
 * 32 columns `next` further on, each next part `apart`. Zeros behind the last column. */
SN_INLINE sn_sizes sn_split_rows_in(uint16_t *restrict to, int64_t stride, int64_t next, int64_t apart, sn_rows_f32 A,
                                    int64_t m, int64_t k0, int64_t depth, const int parts) {
#if SN_FAST_SPLIT
    sn_seen seen = sn_none_seen;
    for (int64_t i = 0; i < m; ++i) {
        const float *x = sn_row_f32(A, i) + k0;
        uint16_t *row = to + i * stride;
        for (int64_t at = 0; at < depth; at += SN_DEPTH_BF16, row += next) {
            const int64_t n = depth - at;
            const __mmask16 first = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
            const __mmask16 second = n >= 32 ? 0xffff : n <= 16 ? 0 : (__mmask16)((1u << (n - 16)) - 1);
            __m512 a = _mm512_maskz_loadu_ps(first, x + at), b = _mm512_maskz_loadu_ps(second, x + at + 16);
            seen = sn_see(seen, a, b);
            SN_UNROLL for (int p = 0; p < parts; ++p) {
                const __m512i near = (__m512i)_mm512_cvtne2ps_pbh(b, a);
                _mm512_storeu_si512(row + p * apart, near);
                a = _mm512_sub_ps(a, sn_low_half(near));
                b = _mm512_sub_ps(b, sn_high_half(near));
            }
        }
    }
    return sn_sizes_seen(seen);
#else
    sn_sizes sizes = sn_no_sizes;
    for (int64_t i = 0; i < m; ++i) {
        const float *x = sn_row_f32(A, i) + k0;
        sizes = sn_sizes_of(sizes, x, depth);
        for (int64_t at = 0; at < depth; at += SN_DEPTH_BF16)
            sn_split_floats(to + i * stride + at / SN_DEPTH_BF16 * next, apart, x + at,
                            depth - at < SN_DEPTH_BF16 ? depth - at : SN_DEPTH_BF16, parts);
    }
    return sizes;
#endif
}
SN_EACH_PARTS(sn_sizes, sn_split_rows,
              (uint16_t *restrict to, int64_t stride, int64_t next, int64_t apart, sn_rows_f32 A, int64_t m, int64_t k0,
               int64_t depth, int64_t parts),
              to, stride, next, apart, A, m, k0, depth)

/* The same as sn_tiles_block takes them. */
SN_INLINE sn_sizes sn_split_tiles(uint16_t *to, sn_rows_f32 A, int64_t m, int64_t k0, int64_t depth, int64_t parts) {
    const int64_t high = sn_tiled_high(m), next = high * SN_DEPTH_BF16;
    sn_sizes sizes = sn_no_sizes;
    for (int64_t r = 0; r < m; r += high, to += parts * high * sn_depth_bf16(depth))
        sizes = sn_of_both(sizes, sn_split_rows(to, SN_DEPTH_BF16, parts * next, next, sn_part_f32(A, r, 0),
                                                m - r < high ? m - r : high, k0, depth, parts));
    return sizes;
}

/* Up to sn_block_rows(K, parts) rows of C. */
static void sn_block_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t m, int64_t K,
                           int64_t N, int64_t parts, char *room) {
    uint16_t *const rows = (uint16_t *)room;
    const int few = m < sn_few_split(parts), tiled = SN_TILES && (parts > 1 || m >= SN_FEW_ROWS) && !few;
    const int64_t most = few ? K : sn_block_depth(parts), deep = sn_deep_split(K, parts);
    const int64_t wide = sn_depth_bf16(K < most ? K : most);
#if SN_TILES
    if (tiled) sn_tiles_begin(m);
#endif
    for (int64_t k0 = 0; k0 < K; k0 += most) {
        const int64_t depth = K - k0 < most ? K - k0 : most;
        sn_sizes sizes = sn_no_sizes;
        if (tiled) sizes = sn_split_tiles(rows, A, m, k0, depth, parts);
        else if (!few) sizes = sn_split_rows(rows, wide, SN_DEPTH_BF16, 0, A, m, k0, depth, 1);
        const int64_t panels = (sn_blocks_f32(N) + SN_WIDTH - 1) / SN_WIDTH, back = sn_from_last(panels);
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t first = (back ? panels - 1 - p : p) * SN_WIDTH;
            const int64_t nv = sn_blocks_f32(N) - first < SN_WIDTH ? sn_blocks_f32(N) - first : SN_WIDTH;
            const int64_t column = first * sn_lanes_f32, W = nv * sn_lanes_f32, n = N - column < W ? N - column : W;
            const float *panel = packed + column * deep;
            const uint16_t *pairs = (const uint16_t *)(panel + K * W);
            const sn_rows_f32 to = sn_part_f32(C, 0, column), sum = k0 == 0 ? sn_part_f32(addend, 0, column) : to;
            sn_sizes of_panel;
            memcpy(&of_panel, panel + (deep - 1) * W, sizeof of_panel);
            if (few || !sn_in_range(sizes, of_panel, K)) {
                sn_matmul_f32(to, sum, sn_part_f32(A, 0, k0), panel + k0 * W, m, depth, n);
                continue;
            }
#if SN_TILES
            if (tiled) {
                const int64_t blocks = sn_depth_bf16(depth) / SN_DEPTH_BF16;
                const int64_t apart = parts * sn_depth_bf16(K) * sn_lanes_f32, block = parts * SN_TILE_SIZE;
                const sn_paneled B = parts == 1 ? (sn_paneled){pairs + k0 * W, SN_TILE_SIZE, nv * SN_TILE_SIZE}
                                                : (sn_paneled){pairs + k0 * parts * sn_lanes_f32, apart, block};
                sn_tiles_block(to, sum, sn_tiled_of(rows, m, blocks, parts), m, B, blocks, n, parts,
                               (float *)(room + SN_BLOCK_BYTES));
                continue;
            }
#endif
            sn_panel_bf16(to, sum, (sn_rows_bf16){rows, wide, 0}, pairs + k0 * W, 0, m, depth, 0, n, nv);
        }
    }
#if SN_TILES
    if (tiled) sn_tiles_end();
#endif
}

void sn_matmul_split(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_f32 A, const float *packed, int64_t rows, int64_t K,
                     int64_t N, int64_t split, char *room) {
    const int64_t parts = sn_parts(K, split);
    if (!parts) {
        sn_matmul_f32(C, addend, A, packed, rows, K, N);
        return;
    }
    for (int64_t r = 0, m; r < rows; r += m) {
        m = sn_split(rows - r, sn_block_rows(K, parts));
        sn_block_split(sn_part_f32(C, r, 0), sn_part_f32(addend, r, 0), sn_part_f32(A, r, 0), packed, m, K, N, parts,
                       room);
    }
}

void sn_columns_split(sn_rows_f32 C, sn_rows_f32 A, const sn_matrix *B, int64_t few, int64_t rows, int64_t K, int64_t N,
                      int64_t member, int64_t members, int64_t split, char *room) {
    if (!sn_parts(K, split) || sn_lies(B, few)) {
        sn_columns_f32(C, A, B, few, rows, K, N, member, members);
        return;
    }
    const int64_t c0 = first_column(N, member, members, SN_WIDTH * sn_lanes_f32);
    const int64_t c1 = first_column(N, member + 1, members, SN_WIDTH * sn_lanes_f32);
    const float *packed = (const float *)B->packed + c0 * sn_deep_split(K, split);
    C.base += c0;
    if (c1 > c0) sn_matmul_split(C, (sn_rows_f32){0, 0, 0}, A, packed, rows, K, c1 - c0, split, room);
}
#endif
#endif
#endif
