/* C = A B, or C = addend + A B, with A and B in bfloat16 and sums in float: `sn_matmul_bf16`, as `sn_matmul_f32`.
 *
 *     pairs     B is packed in panels as sn_matmul.h has it, of pairs: elements k and k + 1 of a column side by side, K
 *               filled up with zeros to whole tiles. Where there are tiles a panel is made of those, each 1 KB in a row:
 *               [blocks of 32 rows][vectors][16 pairs][16 columns]; else [pairs][columns]. That form serves rows of all
 *               numbers, by
 *     tiles     AMX, where SN_TILES says so and rows are not few
 *     vdpbf16   AVX512-BF16: an instruction adds two products of pairs to each of 16 sums
 *     floats    elsewhere: numbers are widened, and multiplied as floats, by panels without pairs (sn_widened.h)
 *
 * Products are exact in each; the orders of their sums differ. As in sn_matmul.h the result for a row does not depend on
 * which other rows are computed with it, but for the choice of tiles, which depends on their number.
 */
#ifndef SN_PAIRS_H
#define SN_PAIRS_H

#if SN_TILES == 1 && !defined(__AMX_BF16__) /* the CPU has them, the compiler does not know them */
#undef SN_TILES
#define SN_TILES 0
#endif

/* Whether panels are of numbers, not of pairs. */
#if !SN_TILES && !(defined(__AVX512BF16__) && SN_VECTOR_BYTES == 64)
#define SN_WIDENS 1
#else
#define SN_WIDENS 0
#endif

typedef struct {
    uint16_t *base;
    int64_t stride; /* in elements */
    const int64_t *index;
} sn_rows_bf16;

enum { sn_lanes_bf16 = sn_lanes_f32, SN_DEPTH_BF16 = 32, SN_TILE_SIZE = 512, SN_FEW_ROWS = 4 };

SN_INLINE int64_t sn_depth_bf16(int64_t K) { return (K + SN_DEPTH_BF16 - 1) / SN_DEPTH_BF16 * SN_DEPTH_BF16; }
/* The rows of a packed matrix. */
SN_INLINE int64_t sn_deep_bf16(int64_t K) { return SN_WIDENS ? K : sn_depth_bf16(K); }
SN_INLINE int64_t sn_packed_bf16(int64_t K, int64_t n) { return sn_packed_f32(sn_deep_bf16(K), n); }
SN_INLINE const uint16_t *sn_row_bf16(sn_rows_bf16 rows, int64_t r) {
    return rows.base + (rows.index ? rows.index[r] : r) * rows.stride;
}

/* Pack B[k, u] = source[k * stride_k + u * stride_n], k < K, u < n, in panels of SN_WIDTH vectors of columns. `packed`
 * holds sn_packed_bf16(K, n) elements. */
SN_SHARED void sn_pack_bf16(uint16_t *restrict packed, const uint16_t *restrict source, int64_t stride_k,
                            int64_t stride_n, int64_t K, int64_t n);
/* `room`: SN_ROOM bytes of this thread, whose stack may be small; they begin a line of the cache. */
SN_SHARED void sn_matmul_bf16(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *packed, int64_t rows,
                              int64_t K, int64_t N, char *room);
/* A member's columns of a product. */
SN_SHARED void sn_columns_bf16(sn_rows_f32 C, sn_rows_bf16 A, const sn_matrix *B, int64_t rows, int64_t K, int64_t N,
                               int64_t member, int64_t members, char *room);
/* Rows r0 .. r1 of C in one panel of nv vectors, from `column` on: n columns, by vectors. */
SN_SHARED void sn_panel_bf16(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *panel, int64_t r0,
                             int64_t r1, int64_t K, int64_t column, int64_t n, int64_t nv);
/* The table from row r and from a column on. */
SN_INLINE sn_rows_f32 sn_part_f32(sn_rows_f32 rows, int64_t r, int64_t column) {
    if (!rows.base) return rows;
    if (rows.index) rows.index += r;
    else rows.base += r * rows.stride;
    rows.base += column;
    return rows;
}

/* Rows that are multiplied together, as numbers of bfloat16: as many of them, and as many of their columns at a time, where
 * each is `parts` numbers, as there is room for. Many rows read a matrix that no cache near a core holds less often. */
enum { SN_BLOCK_SIZE = 196608, SN_BLOCK_ROWS = 256, SN_BLOCK_COLUMNS = 3072 };
/* And the bytes of their sums, two vectors of columns at a time, which follow them in a thread's room. */
enum { SN_BLOCK_BYTES = 2 * SN_BLOCK_SIZE, SN_BLOCK_SUMS = SN_BLOCK_ROWS * 32 * 4 };
_Static_assert(SN_BLOCK_BYTES + SN_BLOCK_SUMS <= SN_ROOM, "room for rows and sums");
SN_INLINE int64_t sn_block_depth(int64_t parts) { return SN_BLOCK_COLUMNS / parts; }
SN_INLINE int64_t sn_block_rows(int64_t K, int64_t parts) {
    const int64_t rows = SN_BLOCK_SIZE / (sn_depth_bf16(K) * parts) / 32 * 32;
    return rows > SN_BLOCK_ROWS ? SN_BLOCK_ROWS : rows < 64 ? 64 : rows;
}
/* Rows of a tile: all m, or an equal share of them. */
SN_INLINE int64_t sn_tiled_high(int64_t m) { return sn_split(m, 16); }

/* Elements between the vectors of a pair of rows, of nv; and where such a pair is in its panel. */
SN_INLINE int64_t sn_pairs_apart(void) { return (SN_TILES ? SN_DEPTH_BF16 : 2) * sn_lanes_bf16; }
SN_INLINE int64_t sn_pairs_at(int64_t pair, int64_t nv) {
    const int64_t half = SN_DEPTH_BF16 / 2;
    return SN_TILES ? (pair / half * nv * half + pair % half) * 2 * sn_lanes_bf16 : pair * nv * 2 * sn_lanes_bf16;
}

#if SN_TILES
#ifndef SN_LINKED /* whose headers of instructions take longer to read than a step takes to compile */
#include "sn_tiles.h"
#endif
#include "sn_blocks.h"
#endif
#ifndef SN_LINKED

#include "sn_add_pairs.h"
#if SN_WIDENS
#include "sn_widened.h"
#endif

void sn_pack_bf16(uint16_t *restrict packed, const uint16_t *restrict source, int64_t stride_k, int64_t stride_n,
                  int64_t K, int64_t n) {
#if SN_WIDENS
    sn_pack_narrow(packed, source, stride_k, stride_n, K, n);
    return;
#endif
    const int64_t L = sn_lanes_bf16, depth = sn_depth_bf16(K);
    for (int64_t first = 0; first < sn_blocks_f32(n); first += SN_WIDTH) {
        const int64_t blocks = sn_blocks_f32(n) - first < SN_WIDTH ? sn_blocks_f32(n) - first : SN_WIDTH;
        const int64_t W = blocks * L, units = n - first * L < W ? n - first * L : W;
        uint16_t *panel = packed + first * L * depth;
        const uint16_t *from = source + first * L * stride_n;
        if (units < W || K < depth) memset(panel, 0, (size_t)(depth * W) * sizeof(uint16_t));
        int64_t pairs = K / 2, k0 = 0, turned = 0;
#if SN_TURN
        if (stride_k == 1 && stride_n % 2 == 0 && (uintptr_t)from % 4 == 0) { /* pairs are side by side: words change places */
            k0 = pairs / L * L;
            turned = units / L;
        }
        for (int64_t v = 0; v < turned; ++v)
            for (int64_t k = 0; k < k0; k += L)
                sn_turn_f32((float *)(panel + sn_pairs_at(k, blocks) + v * sn_pairs_apart()), SN_TILES ? L : W,
                            (const float *)(from + 2 * k + v * L * stride_n), stride_n / 2);
#endif
        for (int64_t k = 0; k < (K + 1) / 2; ++k)
            for (int64_t v = k < k0 ? turned : 0; v < blocks; ++v) {
                const int64_t some = units - v * L < L ? units - v * L : L;
                const uint16_t *even = from + 2 * k * stride_k + v * L * stride_n, *odd = even + stride_k;
                uint16_t *to = panel + sn_pairs_at(k, blocks) + v * sn_pairs_apart();
                if (k == pairs) {
                    for (int64_t u = 0; u < some; ++u) to[2 * u] = even[u * stride_n];
                } else if (stride_n == 1) {
                    _Pragma("omp simd") for (int64_t u = 0; u < some; ++u) {
                        to[2 * u] = even[u];
                        to[2 * u + 1] = odd[u];
                    }
                } else {
                    for (int64_t u = 0; u < some; ++u) {
                        to[2 * u] = even[u * stride_n];
                        to[2 * u + 1] = odd[u * stride_n];
                    }
                }
            }
    }
}

typedef struct {
    uint32_t pair;
} __attribute__((packed, may_alias)) sn_pair;

/* sum[rows][nv] += pairs[rows] panel[nv], one pair of each row. */
SN_INLINE void sn_one_pair(sn_vec_f32 (*sum)[SN_WIDTH], const int rows, const int nv, const uint32_t *pair,
                           const uint16_t *panel) {
    sn_words b[SN_WIDTH];
    SN_UNROLL for (int v = 0; v < nv; ++v) {
        b[v] = *(const sn_words_u *)(panel + v * sn_pairs_apart());
        if (rows > 1) SN_KEEP(b[v]);
    }
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] = sn_add_pairs(sum[i][v], (sn_words){0} + pair[i], b[v]);
}

/* The micro-kernel: tile[rows][nv][lanes] = A[r .. r+rows, K] panel. */
SN_INLINE void sn_kernel_bf16(float *tile, const int rows, const int nv, sn_rows_bf16 A, int64_t r,
                              const uint16_t *panel, int64_t K) {
    sn_vec_f32 sum[12][SN_WIDTH];
    const uint16_t *a[12];
    uint32_t pair[12];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        a[i] = sn_row_bf16(A, r + i);
        SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] = (sn_vec_f32){0};
    }
    const int64_t many = SN_TILES ? SN_DEPTH_BF16 / 2 : K / 2, next = sn_pairs_at(1, nv);
    for (int64_t first = 0; first < K / 2; first += many) {
        const int64_t last = first + many < K / 2 ? first + many : K / 2;
        const uint16_t *b = panel + sn_pairs_at(first, nv);
        for (int64_t k = first; k < last; ++k, b += next) {
            SN_UNROLL for (int i = 0; i < rows; ++i) pair[i] = ((const sn_pair *)(a[i] + 2 * k))->pair;
            sn_one_pair(sum, rows, nv, pair, b);
        }
    }
    if (K & 1) {
        SN_UNROLL for (int i = 0; i < rows; ++i) pair[i] = a[i][K - 1];
        sn_one_pair(sum, rows, nv, pair, panel + sn_pairs_at(K / 2, nv));
    }
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v) *(sn_vec_u_f32 *)(tile + (i * nv + v) * sn_lanes_f32) = sum[i][v];
}

#define SN_CASE(m, nv)                                                                                                \
    case m:                                                                                                           \
        if (m <= SN_MAX_ROWS(nv)) sn_kernel_bf16(tile, m, nv, A, r, panel, K);                                        \
        return;
#define SN_STRIP(nv)                                                                                                  \
    static __attribute__((noinline)) void sn_strip##nv##_bf16(float *tile, int64_t rows, sn_rows_bf16 A, int64_t r,   \
                                                              const uint16_t *panel, int64_t K) {                     \
        switch (rows) {                                                                                               \
            SN_CASE(1, nv) SN_CASE(2, nv) SN_CASE(3, nv) SN_CASE(4, nv) SN_CASE(5, nv) SN_CASE(6, nv)                 \
            SN_CASE(7, nv) SN_CASE(8, nv) SN_CASE(9, nv) SN_CASE(10, nv) SN_CASE(11, nv) SN_CASE(12, nv)              \
        }                                                                                                             \
    }
SN_STRIP(1)
SN_STRIP(2)
#if SN_WIDTH == 4
SN_STRIP(3)
SN_STRIP(4)
#endif
#undef SN_CASE
#undef SN_STRIP

void sn_panel_bf16(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *panel, int64_t r0, int64_t r1,
                   int64_t K, int64_t column, int64_t n, int64_t nv) {
    float tile[12 * SN_WIDTH * sn_lanes_f32] __attribute__((aligned(64)));
    const int64_t most = nv == 4 ? SN_MAX_ROWS(4) : nv == 3 ? SN_MAX_ROWS(3) : nv == 2 ? SN_MAX_ROWS(2) : SN_MAX_ROWS(1);
    for (int64_t r = r0, m; r < r1; r += m) {
        m = sn_split(r1 - r, most);
        switch (nv) {
            case 1: sn_strip1_bf16(tile, m, A, r, panel, K); break;
            case 2: sn_strip2_bf16(tile, m, A, r, panel, K); break;
#if SN_WIDTH == 4
            case 3: sn_strip3_bf16(tile, m, A, r, panel, K); break;
            case 4: sn_strip4_bf16(tile, m, A, r, panel, K); break;
#endif
        }
        for (int64_t i = 0; i < m; ++i)
            sn_put_f32(sn_row_f32(C, r + i) + column, tile + i * nv * sn_lanes_f32,
                       addend.base ? sn_row_f32(addend, r + i) + column : 0, n);
    }
}

#if SN_WIDTH == 4
/* Up to three rows times two whole panels at a time, in the same order: by one, each sum waits for itself. */
enum { SN_WAITING = 3 };
SN_INLINE void sn_kernel_two_bf16(float (*tile)[SN_WAITING * SN_WIDTH * sn_lanes_f32], const int rows, sn_rows_bf16 A,
                                  int64_t r, const uint16_t *left, const uint16_t *right, int64_t K) {
    sn_vec_f32 sum[2][SN_WAITING][SN_WIDTH];
    const uint16_t *a[SN_WAITING];
    uint32_t pair[SN_WAITING];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        a[i] = sn_row_bf16(A, r + i);
        SN_UNROLL for (int v = 0; v < SN_WIDTH; ++v) sum[0][i][v] = sum[1][i][v] = (sn_vec_f32){0};
    }
    for (int64_t k = 0; k < K / 2; ++k) {
        const int64_t at = sn_pairs_at(k, SN_WIDTH);
        SN_UNROLL for (int i = 0; i < rows; ++i) pair[i] = ((const sn_pair *)(a[i] + 2 * k))->pair;
        sn_one_pair(sum[0], rows, SN_WIDTH, pair, left + at);
        sn_one_pair(sum[1], rows, SN_WIDTH, pair, right + at);
    }
    if (K & 1) {
        const int64_t at = sn_pairs_at(K / 2, SN_WIDTH);
        SN_UNROLL for (int i = 0; i < rows; ++i) pair[i] = a[i][K - 1];
        sn_one_pair(sum[0], rows, SN_WIDTH, pair, left + at);
        sn_one_pair(sum[1], rows, SN_WIDTH, pair, right + at);
    }
    SN_UNROLL for (int p = 0; p < 2; ++p)
        SN_UNROLL for (int i = 0; i < rows; ++i)
            SN_UNROLL for (int v = 0; v < SN_WIDTH; ++v)
                *(sn_vec_u_f32 *)(tile[p] + (i * SN_WIDTH + v) * sn_lanes_f32) = sum[p][i][v];
}

static __attribute__((noinline)) void sn_two_panels_bf16(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A,
                                                         const uint16_t *panel, int64_t r, int64_t rows, int64_t K,
                                                         int64_t column) {
    const int64_t W = SN_WIDTH * sn_lanes_f32;
    float tile[2][SN_WAITING * SN_WIDTH * sn_lanes_f32] __attribute__((aligned(64)));
    const uint16_t *right = panel + W * sn_depth_bf16(K);
    switch (rows) {
        case 1: sn_kernel_two_bf16(tile, 1, A, r, panel, right, K); break;
        case 2: sn_kernel_two_bf16(tile, 2, A, r, panel, right, K); break;
        case 3: sn_kernel_two_bf16(tile, 3, A, r, panel, right, K); break;
    }
    for (int64_t p = 0; p < 2; ++p)
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t at = column + p * W;
            sn_put_f32(sn_row_f32(C, r + i) + at, tile[p] + i * W,
                       addend.base ? sn_row_f32(addend, r + i) + at : 0, W);
        }
}
#endif

#if SN_TILES
/* Columns k .. k + depth of m rows of A, as sn_tiles_block takes them; zeros behind the last. */
static void sn_gather_tiles(uint16_t *to, sn_rows_bf16 A, int64_t r, int64_t m, int64_t k, int64_t depth) {
    const int64_t high = sn_tiled_high(m), next = high * SN_DEPTH_BF16;
    for (int64_t r0 = 0; r0 < m; r0 += high, to += sn_depth_bf16(depth) * high)
        for (int64_t i = r0; i < m && i < r0 + high; ++i) {
            const uint16_t *from = sn_row_bf16(A, r + i) + k;
            uint16_t *row = to + (i - r0) * SN_DEPTH_BF16;
            int64_t at = 0;
            for (; at + SN_DEPTH_BF16 <= depth; at += SN_DEPTH_BF16, row += next) memcpy(row, from + at, 2 * SN_DEPTH_BF16);
            if (at < depth) {
                memset(row, 0, 2 * SN_DEPTH_BF16);
                memcpy(row, from + at, (size_t)(depth - at) * sizeof *row);
            }
        }
}

/* Few rows are multiplied as they lie, where whole tiles of them do: to copy them would take longer. */
SN_INLINE int sn_tiled_as_they_lie(sn_rows_bf16 A, int64_t m, int64_t K) {
    return !A.index && m <= 32 && m % sn_tiled_high(m) == 0 && K % SN_DEPTH_BF16 == 0 && K <= 512;
}

/* Rows r .. r + m of C, m up to sn_block_rows(K, 1), by tiles. */
static void sn_rows_by_tiles(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *packed, int64_t r,
                             int64_t m, int64_t K, int64_t N, char *room) {
    uint16_t *const rows = (uint16_t *)room;
    sn_tiles_begin(m);
    for (int64_t k0 = 0; k0 < K; k0 += sn_block_depth(1)) {
        const int64_t depth = K - k0 < sn_block_depth(1) ? K - k0 : sn_block_depth(1);
        const int64_t blocks = sn_depth_bf16(depth) / SN_DEPTH_BF16;
        sn_tiled of = {sn_row_bf16(A, r), A.stride, SN_DEPTH_BF16, sn_tiled_high(m) * A.stride};
        if (!sn_tiled_as_they_lie(A, m, K)) {
            sn_gather_tiles(rows, A, r, m, k0, depth);
            of = sn_tiled_of(rows, m, blocks, 1);
        }
        const int64_t panels = (sn_blocks_f32(N) + SN_WIDTH - 1) / SN_WIDTH, back = sn_from_last(panels);
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t first = (back ? panels - 1 - p : p) * SN_WIDTH;
            const int64_t nv = sn_blocks_f32(N) - first < SN_WIDTH ? sn_blocks_f32(N) - first : SN_WIDTH;
            const int64_t column = first * sn_lanes_f32, W = nv * sn_lanes_f32, n = N - column < W ? N - column : W;
            const sn_rows_f32 to = sn_part_f32(C, r, column);
            sn_tiles_block(to, k0 == 0 ? sn_part_f32(addend, r, column) : to, of, m,
                           (sn_paneled){packed + column * sn_depth_bf16(K) + k0 * W, SN_TILE_SIZE, nv * SN_TILE_SIZE},
                           blocks, n, 1, (float *)(room + SN_BLOCK_BYTES));
        }
    }
    sn_tiles_end();
}
#endif

void sn_matmul_bf16(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *packed, int64_t rows,
                    int64_t K, int64_t N, char *room) {
#if SN_TILES
    if (rows >= SN_FEW_ROWS && K > 0) {
        for (int64_t r = 0, m; r < rows; r += m) {
            m = sn_split(rows - r, sn_block_rows(K, 1));
            sn_rows_by_tiles(C, addend, A, packed, r, m, K, N, room);
        }
        return;
    }
#endif
#if SN_WIDENS
    sn_widened(C, addend, A, packed, rows, K, N, (float *)room);
    return;
#endif
    (void)room;
    const int64_t most_rows = 96; /* so that A stays in the first cache while the panels go by */
    for (int64_t r0 = 0; r0 < rows; r0 += most_rows) {
        const int64_t r1 = r0 + most_rows < rows ? r0 + most_rows : rows;
        const int64_t panels = (sn_blocks_f32(N) + SN_WIDTH - 1) / SN_WIDTH, back = sn_from_last(panels);
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t first = (back ? panels - 1 - p : p) * SN_WIDTH;
            const int64_t nv = sn_blocks_f32(N) - first < SN_WIDTH ? sn_blocks_f32(N) - first : SN_WIDTH;
            const int64_t column = first * sn_lanes_f32;
#if SN_WIDTH == 4
            const int64_t other = back ? column - SN_WIDTH * sn_lanes_f32 : column;
            if (r1 - r0 <= SN_WAITING && other >= 0 && other + 2 * SN_WIDTH * sn_lanes_f32 <= N) {
                sn_two_panels_bf16(C, addend, A, packed + other * sn_depth_bf16(K), r0, r1 - r0, K, other);
                ++p;
                continue;
            }
#endif
            const int64_t n = N - column < nv * sn_lanes_f32 ? N - column : nv * sn_lanes_f32;
            sn_panel_bf16(C, addend, A, packed + column * sn_depth_bf16(K), r0, r1, K, column, n, nv);
        }
    }
}

void sn_columns_bf16(sn_rows_f32 C, sn_rows_bf16 A, const sn_matrix *B, int64_t rows, int64_t K, int64_t N,
                     int64_t member, int64_t members, char *room) {
    const int64_t c0 = first_column(N, member, members, SN_WIDTH * sn_lanes_f32);
    const int64_t c1 = first_column(N, member + 1, members, SN_WIDTH * sn_lanes_f32);
    const uint16_t *packed = (const uint16_t *)B->packed + c0 * sn_deep_bf16(K);
    C.base += c0;
    if (c1 > c0) sn_matmul_bf16(C, (sn_rows_f32){0, 0, 0}, A, packed, rows, K, c1 - c0, room);
}
#endif
#endif
