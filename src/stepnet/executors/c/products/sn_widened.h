/* Rows of bfloat16 times a matrix of it, in floats: where no instruction multiplies pairs.
 *
 *     rows      are widened once for all panels, to memory of the thread
 *     panel     as sn_matmul.h has it, of numbers of 16 bits: half as many bytes, which counts where a matrix comes from far
 *     tile      as in sn_matmul.h: a vector of the panel is widened as it is read
 *
 * Sums are as there, over SN_WIDENED_DEPTH rows of the matrix at a time.
 */
#ifndef SN_WIDENED_H
#define SN_WIDENED_H

/* Numbers between rows, beside those of a row: rows a power of two apart would push each other out of the first cache. */
enum { SN_WIDENED_DEPTH = 1024, SN_WIDENED_ROWS = 96, SN_WIDENED_APART = 16 };
_Static_assert(SN_WIDENED_ROWS * (SN_WIDENED_DEPTH + SN_WIDENED_APART) * 4 <= SN_ROOM, "room for rows of floats");

/* As sn_pack_f32. */
static void sn_pack_narrow(uint16_t *restrict packed, const uint16_t *restrict source, int64_t stride_k, int64_t stride_n,
                           int64_t K, int64_t n) {
    enum { L = sn_lanes_f32 };
    for (int64_t first = 0; first < sn_blocks_f32(n); first += SN_WIDTH) {
        const int64_t blocks = sn_blocks_f32(n) - first < SN_WIDTH ? sn_blocks_f32(n) - first : SN_WIDTH;
        const int64_t W = blocks * L, units = n - first * L < W ? n - first * L : W;
        const uint16_t *from = source + first * L * stride_n;
        uint16_t *panel = packed + first * L * K;
        if (units < W) memset(panel, 0, (size_t)(K * W) * sizeof *panel);
        if (stride_n == 1) {
            for (int64_t k = 0; k < K; ++k) memcpy(panel + k * W, from + k * stride_k, (size_t)units * sizeof *panel);
            continue;
        }
        int64_t k0 = 0, turned = 0;
#if SN_TURN
        if (stride_k == 1) k0 = K / L * L, turned = units / L * L;
        float block[L * L] __attribute__((aligned(64))), other[L * L] __attribute__((aligned(64)));
        for (int64_t u = 0; u < turned; u += L)
            for (int64_t k = 0; k < k0; k += L) {
                for (int64_t i = 0; i < L; ++i) *(sn_vec_f32 *)(block + i * L) = sn_widen(from + (u + i) * stride_n + k);
                sn_turn_f32(other, L, block, L);
                for (int64_t i = 0; i < L; ++i)
                    *(sn_narrow *)(panel + (k + i) * W + u) =
                        __builtin_convertvector((sn_words)*(sn_vec_f32 *)(other + i * L) >> 16, sn_narrow);
            }
#endif
        for (int64_t u = 0; u < units; ++u)
            for (int64_t k = u < turned ? k0 : 0; k < K; ++k) panel[k * W + u] = from[k * stride_k + u * stride_n];
    }
}

/* The micro-kernel, as sn_kernel_f32 is: of B, the vectors of row k lie at B + k * wide * lanes, the next `wide` of them
 * `apart`. */
SN_INLINE void sn_kernel_widened(float *const *to, const float *const *plus, const float *const *from, const int rows,
                                 const int nv, const int wide, const uint16_t *B, int64_t apart, int64_t K) {
    enum { L = sn_lanes_f32 };
    sn_vec_f32 sum[12][16];
    const float *a[12];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        a[i] = from[i];
        SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] = (sn_vec_f32){0};
    }
    for (int64_t k = 0; k < K; ++k) {
        sn_vec_f32 b[16];
        SN_UNROLL for (int v = 0; v < nv; ++v) {
            b[v] = sn_widen(B + k * wide * L + v / wide * apart + v % wide * L);
            if (rows > 1) SN_KEEP(b[v]);
            if (nv > rows) {
                SN_UNROLL for (int i = 0; i < rows; ++i) sum[i][v] += a[i][k] * b[v];
            }
        }
        if (nv <= rows) {
            SN_UNROLL for (int i = 0; i < rows; ++i)
                SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] += a[i][k] * b[v];
        }
    }
    if (plus)
        SN_UNROLL for (int i = 0; i < rows; ++i)
            SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] += *(const sn_vec_u_f32 *)(plus[i] + v * L);
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v) *(sn_vec_u_f32 *)(to[i] + v * L) = sum[i][v];
}

/* Rows r0 to r1 of C, n columns in `side` panels of `wide` vectors; A begins with row r0. */
#define SN_CASE(m)                                                                                                    \
    case m:                                                                                                           \
        if (m <= most) sn_kernel_widened(to, adds, a, m, vectors, width, panel, apart, K);                            \
        break;
#define SN_STRIP(name, side, wide, few)                                                                               \
    static __attribute__((noinline)) void name(sn_rows_f32 C, sn_rows_f32 addend, const float *A, int64_t stride,     \
                                               int64_t r0, int64_t r1, const uint16_t *panel, int64_t apart,          \
                                               int64_t K, int64_t n) {                                                \
        enum { L = sn_lanes_f32, width = wide, vectors = side * wide, fit = SN_MAX_ROWS(vectors) };                   \
        enum { most = fit < few ? fit : few };                                                                        \
        float tile[most * vectors * L] __attribute__((aligned(64)));                                                  \
        const int whole = n == vectors * L;                                                                           \
        const float *a[most], *plus[most];                                                                            \
        float *to[most];                                                                                              \
        for (int64_t r = r0, m; r < r1; r += m, A += m * stride) {                                                    \
            m = sn_split(r1 - r, most);                                                                               \
            for (int64_t i = 0; i < m; ++i) {                                                                         \
                a[i] = A + i * stride;                                                                                \
                to[i] = whole ? sn_row_f32(C, r + i) : tile + i * vectors * L;                                        \
                plus[i] = addend.base ? sn_row_f32(addend, r + i) : 0;                                                \
            }                                                                                                         \
            const float *const *adds = whole && addend.base ? plus : 0;                                               \
            switch (m) {                                                                                              \
                SN_CASE(1) SN_CASE(2) SN_CASE(3) SN_CASE(4) SN_CASE(5) SN_CASE(6)                                     \
                SN_CASE(7) SN_CASE(8) SN_CASE(9) SN_CASE(10) SN_CASE(11) SN_CASE(12)                                  \
            }                                                                                                         \
            if (whole) continue;                                                                                      \
            for (int64_t i = 0; i < m; ++i) sn_put_f32(sn_row_f32(C, r + i), to[i], plus[i], n);                      \
        }                                                                                                             \
    }
SN_STRIP(sn_widened1, 1, 1, 12)
SN_STRIP(sn_widened2, 1, 2, 12)
#if SN_WIDTH == 2
SN_STRIP(sn_widened_pair, 2, 2, 3)
SN_STRIP(sn_widened_four, 4, 2, 1)
#else
SN_STRIP(sn_widened3, 1, 3, 12)
SN_STRIP(sn_widened4, 1, 4, 12)
SN_STRIP(sn_widened_pair, 2, 4, 1)
#endif
#undef SN_CASE
#undef SN_STRIP

/* Rows r0 to r1 of C (+ addend): rows of floats, `stride` numbers apart, times `depth` rows of B from `first` on. */
static void sn_widened_rows(sn_rows_f32 C, sn_rows_f32 addend, const float *A, int64_t stride, int64_t r0, int64_t r1,
                            const uint16_t *packed, int64_t first, int64_t depth, int64_t K, int64_t N) {
    const int64_t L = sn_lanes_f32, whole = N / (SN_WIDTH * L), m = r1 - r0, apart = SN_WIDTH * L * K;
    const int64_t panels = (sn_blocks_f32(N) + SN_WIDTH - 1) / SN_WIDTH, back = sn_from_last(panels);
    for (int64_t p = 0, some; p < panels; p += some) {
        some = back ? panels - p <= whole ? panels - p : 1 : whole - p; /* as in sn_matmul.h */
        some = some >= SN_PANELS(m) ? SN_PANELS(m) : some >= 2 && SN_PANELS(m) >= 2 ? 2 : 1;
        const int64_t block = (back ? panels - p - some : p) * SN_WIDTH, column = block * L;
        const int64_t nv = some > 1 || sn_blocks_f32(N) - block > SN_WIDTH ? SN_WIDTH : sn_blocks_f32(N) - block;
        const int64_t n = N - column < some * nv * L ? N - column : some * nv * L;
        const uint16_t *panel = packed + column * K + first * nv * L;
        const sn_rows_f32 to = sn_part_f32(C, 0, column), plus = sn_part_f32(addend, 0, column);
        switch (some * 8 + nv) {
            case 9: sn_widened1(to, plus, A, stride, r0, r1, panel, apart, depth, n); break;
            case 10: sn_widened2(to, plus, A, stride, r0, r1, panel, apart, depth, n); break;
#if SN_WIDTH == 2
            case 34: sn_widened_four(to, plus, A, stride, r0, r1, panel, apart, depth, n); break;
#else
            case 11: sn_widened3(to, plus, A, stride, r0, r1, panel, apart, depth, n); break;
            case 12: sn_widened4(to, plus, A, stride, r0, r1, panel, apart, depth, n); break;
#endif
            default: sn_widened_pair(to, plus, A, stride, r0, r1, panel, apart, depth, n);
        }
    }
}

static void sn_widened(sn_rows_f32 C, sn_rows_f32 addend, sn_rows_bf16 A, const uint16_t *packed, int64_t rows, int64_t K,
                       int64_t N, float *room) {
    for (int64_t r0 = 0, m; r0 < rows; r0 += m) {
        m = rows - r0 < SN_WIDENED_ROWS ? rows - r0 : SN_WIDENED_ROWS;
        int64_t k0 = 0, depth;
        do {
            depth = K - k0 < SN_WIDENED_DEPTH ? K - k0 : SN_WIDENED_DEPTH;
            const int64_t stride = depth + SN_WIDENED_APART;
            for (int64_t i = 0; i < m; ++i) {
                const uint16_t *from = sn_row_bf16(A, r0 + i) + k0;
                float *to = room + i * stride;
                _Pragma("omp simd") for (int64_t k = 0; k < depth; ++k) to[k] = sn_load_bf16(from[k]);
            }
            sn_widened_rows(C, k0 ? C : addend, room, stride, r0, r0 + m, packed, k0, depth, K, N);
        } while ((k0 += depth) < K);
    }
}
#endif
