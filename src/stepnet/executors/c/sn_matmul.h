/* C = A B, or C = addend + A B, for a B that is packed once and used many times.
 *
 * A type template: define SN_REAL (float or double) and SN_(name) (its suffix) first; both are undefined at the end.
 *
 *     rows      A, C and the addend are tables of rows, each row contiguous. `sn_rows` says where row r lies.
 *     panel     B is cut in panels of `nv` vectors of columns, each stored K-major and padded with zeros, so
 *               the inner loop reads memory in one straight line. The last panel may have fewer vectors.
 *     tile      rows x (nv vectors) accumulators that stay in registers while K is walked.
 *
 * Every element is summed over k in order 0, 1, .. K-1 by one accumulator, whatever the number of rows: the
 * result for a row does not depend on which other rows are computed with it. Nothing outside the named rows and
 * columns is ever read or written.
 */
#ifndef SN_MATMUL_H
#define SN_MATMUL_H

#ifndef SN_INLINE
#define SN_INLINE static inline __attribute__((always_inline, unused))
#endif
/* The larger functions: in place, or SN_BUILT_ONCE into an object file that code with SN_LINKED is linked with. What
 * turns matrices itself says SN_TURNS, too. */
#if defined(SN_LINKED) || defined(SN_BUILT_ONCE)
#define SN_SHARED __attribute__((noinline, visibility("hidden")))
#else
#define SN_SHARED static __attribute__((noinline, unused))
#endif

/* Vectors that are wider than those of the CPU, which who defines this asks for, are made of several. */
#if defined(SN_VECTOR_BYTES)
#define SN_REGISTERS 32
#elif defined(__AVX512F__)
#define SN_VECTOR_BYTES 64
#define SN_REGISTERS 32
#elif defined(__AVX__)
#define SN_VECTOR_BYTES 32
#define SN_REGISTERS 16
#elif defined(__aarch64__)
#define SN_VECTOR_BYTES 16
#define SN_REGISTERS 32
#else
#define SN_VECTOR_BYTES 16
#define SN_REGISTERS 16
#endif

#if defined(__clang__)
#define SN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SN_UNROLL _Pragma("GCC unroll 16")
#endif

/* Keeps a vector in a register. Left alone, gcc makes it a memory operand of every multiply, and loads bound. */
#if defined(__AVX512F__)
#define SN_KEEP(x) __asm__("" : "+v"(x))
#elif SN_VECTOR_BYTES > 32
#define SN_KEEP(x) (void)0
#elif defined(__SSE2__)
#define SN_KEEP(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define SN_KEEP(x) __asm__("" : "+w"(x))
#else
#define SN_KEEP(x) (void)0
#endif

/* Vectors of a panel, and panels that m rows go by at a time. */
#if SN_REGISTERS == 16
#define SN_WIDTH 2
#define SN_PANELS(m) ((m) == 1 ? 4 : (m) <= 3 ? 2 : 1)
#else
#define SN_WIDTH 4
#define SN_PANELS(m) ((m) == 1 ? 2 : 1)
#endif

/* The most rows a tile of nv vectors may have: accumulators, plus what the inner loop holds. */
#define SN_ROWS_FIT(m, nv) ((m) * (nv) + ((m) < (nv) ? (m) : (nv)) + 1 <= SN_REGISTERS)
#define SN_MAX_ROWS(nv)                                                                                               \
    (SN_ROWS_FIT(12, nv) ? 12 : SN_ROWS_FIT(9, nv) ? 9 : SN_ROWS_FIT(6, nv) ? 6 : SN_ROWS_FIT(5, nv) ? 5              \
     : SN_ROWS_FIT(4, nv) ? 4 : SN_ROWS_FIT(3, nv) ? 3 : SN_ROWS_FIT(2, nv) ? 2 : 1)

/* Whether the panels of this product go by from the last one on: every other time, for a cache still holds those that
 * came last, where it cannot hold all. */
static __thread unsigned sn_products __attribute__((unused));
SN_INLINE int sn_from_last(int64_t panels) { return panels > 1 && (sn_products++ & 1); }

/* A matrix that rows are multiplied by, as it lies, and where it is packed. */
typedef struct {
    const void *lying;
    int64_t stride_k, stride_n, stride_h;
    void *packed;
} sn_matrix;

/* Whether a matrix is read as it lies, by sn_few_*, and is not packed: of few rows. */
SN_INLINE int sn_lies(const sn_matrix *B, int64_t few) { return few && (B->stride_k == 1 || B->stride_n == 1); }

/* Where a member's columns of a product begin: whole panels. */
SN_INLINE int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    if (members == 1) return member ? n : 0;
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}

/* The size of the next tile when `rows` are left: as equal as can be, because thin tiles are slow. */
SN_INLINE int64_t sn_split(int64_t rows, int64_t most) {
    int64_t tiles = (rows + most - 1) / most;
    return (rows + tiles - 1) / tiles;
}

#include "sn_turn.h"
#endif

typedef SN_REAL SN_(sn_vec) __attribute__((vector_size(SN_VECTOR_BYTES)));
typedef SN_REAL SN_(sn_vec_u) __attribute__((vector_size(SN_VECTOR_BYTES), aligned(sizeof(SN_REAL)), may_alias));

/* Row r starts at base + (index ? index[r] : r) * stride; stride in elements. */
typedef struct {
    SN_REAL *base;
    int64_t stride;
    const int64_t *index;
} SN_(sn_rows);

enum { SN_(sn_lanes) = SN_VECTOR_BYTES / sizeof(SN_REAL) };

/* Vectors that hold n columns; elements of a packed B[K, n]. */
SN_INLINE int64_t SN_(sn_blocks)(int64_t n) { return (n + SN_(sn_lanes) - 1) / SN_(sn_lanes); }
SN_INLINE int64_t SN_(sn_packed)(int64_t K, int64_t n) { return K * SN_(sn_blocks)(n) * SN_(sn_lanes); }

SN_INLINE SN_REAL *SN_(sn_row)(SN_(sn_rows) rows, int64_t r) {
    return rows.base + (rows.index ? rows.index[r] : r) * rows.stride;
}

#if defined(__GNUC__) && !defined(__clang__)
/* to[k * stride_to + u] = from[u * stride_from + k], lanes x lanes elements, in registers: blocks of 1, 2, 4 .. lanes
 * change places. clang has no shuffle by a mask that is computed. */
SN_INLINE void SN_(sn_turn)(SN_REAL *to, int64_t stride_to, const SN_REAL *from, int64_t stride_from) {
#if SN_TURN_WORDS
    if (sizeof(SN_REAL) == 4) {
        sn_turn_words((float *)to, stride_to, (const float *)from, stride_from);
        return;
    }
#endif
    typedef __typeof__((SN_(sn_vec)){0} == (SN_(sn_vec)){0}) lane_mask;
    enum { L = SN_(sn_lanes) };
    SN_(sn_vec) row[L];
    SN_UNROLL for (int i = 0; i < L; ++i) row[i] = *(const SN_(sn_vec_u) *)(from + i * stride_from);
    SN_UNROLL for (int s = 1; s < L; s *= 2) {
        lane_mask low, high;
        SN_UNROLL for (int j = 0; j < L; ++j) {
            low[j] = j & s ? j - s + L : j;
            high[j] = j & s ? j + L : j + s;
        }
        SN_UNROLL for (int i = 0; i < L; ++i) {
            if (i & s) continue;
            SN_(sn_vec) a = row[i], b = row[i + s];
            row[i] = __builtin_shuffle(a, b, low);
            row[i + s] = __builtin_shuffle(a, b, high);
        }
    }
    SN_UNROLL for (int i = 0; i < L; ++i) *(SN_(sn_vec_u) *)(to + i * stride_to) = row[i];
}
#define SN_TURN 1
#else
#define SN_TURN 0
#endif

/* Pack B[k, u] = source[k * stride_k + u * stride_n], k < K, u < n, in panels of SN_WIDTH vectors of columns (the last one
 * of what is left). Stride arguments let B and its transpose be packed without a copy. `packed` holds
 * SN_(sn_packed)(K, n) elements. */
SN_SHARED void SN_(sn_pack)(SN_REAL *restrict packed, const SN_REAL *restrict source, int64_t stride_k,
                            int64_t stride_n, int64_t K, int64_t n);
#ifndef SN_LINKED
void SN_(sn_pack)(SN_REAL *restrict packed, const SN_REAL *restrict source, int64_t stride_k, int64_t stride_n,
                  int64_t K, int64_t n) {
    const int64_t L = SN_(sn_lanes);
    for (int64_t first = 0; first < SN_(sn_blocks)(n); first += SN_WIDTH) {
        const int64_t blocks = SN_(sn_blocks)(n) - first < SN_WIDTH ? SN_(sn_blocks)(n) - first : SN_WIDTH;
        const int64_t W = blocks * L, units = n - first * L < W ? n - first * L : W;
        const SN_REAL *from = source + first * L * stride_n;
        SN_REAL *panel = packed + first * L * K;
        if (units < W) memset(panel, 0, (size_t)(K * W) * sizeof(SN_REAL));
        if (stride_n == 1 && units == SN_WIDTH * L) { /* a call for each of so few bytes takes longer than they do */
            for (int64_t k = 0; k < K; ++k)
                SN_UNROLL for (int v = 0; v < SN_WIDTH; ++v)
                    *(SN_(sn_vec_u) *)(panel + k * W + v * L) = *(const SN_(sn_vec_u) *)(from + k * stride_k + v * L);
            continue;
        }
        if (stride_n == 1) {
            for (int64_t k = 0; k < K; ++k) memcpy(panel + k * W, from + k * stride_k, (size_t)units * sizeof(SN_REAL));
            continue;
        }
        int64_t k0 = 0;
#if SN_TURN
        const int64_t turned = stride_k == 1 ? units / L * L : 0;
        if (stride_k == 1) k0 = K / L * L;
        for (int64_t u = 0; u < turned; u += L) /* along what is contiguous: caches see it come */
            for (int64_t k = 0; k < k0; k += L)
                SN_(sn_turn)(panel + k * W + u, W, from + k + u * stride_n, stride_n);
        for (int64_t u = turned; u < units; ++u)
            for (int64_t k = 0; k < k0; ++k) panel[k * W + u] = from[k * stride_k + u * stride_n];
#endif
        for (; k0 < K; k0 += 16) {
            const int64_t k1 = k0 + 16 < K ? k0 + 16 : K;
            for (int64_t u = 0; u < units; ++u)
                for (int64_t k = k0; k < k1; ++k) panel[k * W + u] = from[k * stride_k + u * stride_n];
        }
    }
}
#endif

/* to[0 .. n] = from[0 .. n] (+ plus[0 .. n]): whole vectors, then the tail one by one. */
SN_INLINE void SN_(sn_put)(SN_REAL *to, const SN_REAL *from, const SN_REAL *plus, int64_t n) {
    int64_t j = 0;
    for (; j + SN_(sn_lanes) <= n; j += SN_(sn_lanes)) {
        SN_(sn_vec) x = *(const SN_(sn_vec_u) *)(from + j);
        if (plus) x += *(const SN_(sn_vec_u) *)(plus + j);
        *(SN_(sn_vec_u) *)(to + j) = x;
    }
    for (; j < n; ++j) to[j] = plus ? from[j] + plus[j] : from[j];
}

/* The micro-kernel: nv vectors of each of `rows` rows: to[i] = from[i] B (+ plus[i], where there are some). Of B, those of
 * row k lie at B + k * step, `wide` of them side by side, the next ones `apart`. The caller finds where the rows lie: found
 * here, for each number of rows anew, it would be half of what a compiler has to do. */
SN_INLINE void SN_(sn_kernel)(SN_REAL *const *to, const SN_REAL *const *plus, const SN_REAL *const *from, const int rows,
                              const int nv, const int wide, const SN_REAL *B, int64_t step, int64_t apart, int64_t K) {
    SN_(sn_vec) sum[12][16];
    const SN_REAL *a[12];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        a[i] = from[i];
        SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] = (SN_(sn_vec)){0};
    }
    for (int64_t k = 0; k < K; ++k) {
        /* Of a row of B and a column of A the shorter one is held in registers; the other passes through one. */
        SN_(sn_vec) b[16];
        SN_UNROLL for (int v = 0; v < nv; ++v) {
            b[v] = *(const SN_(sn_vec_u) *)(B + k * step + v / wide * apart + v % wide * SN_(sn_lanes));
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
            SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] += *(const SN_(sn_vec_u) *)(plus[i] + v * SN_(sn_lanes));
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v) *(SN_(sn_vec_u) *)(to[i] + v * SN_(sn_lanes)) = sum[i][v];
}

/* C[rows, N] = A[rows, K] B (+ addend[rows, N] where addend.base is not NULL; it may be C itself).
 * `packed` is B by sn_pack. */
SN_SHARED void SN_(sn_matmul)(SN_(sn_rows) C, SN_(sn_rows) addend, SN_(sn_rows) A, const SN_REAL *packed,
                              int64_t rows, int64_t K, int64_t N);
#ifndef SN_LINKED
/* `side` panels of `wide` vectors, for rows r0 to r1: one loop over k for each number of rows that a tile may have.
 * What is not whole vectors goes by way of a tile. */
#define SN_CASE(m)                                                                                                    \
    case m:                                                                                                           \
        if (m <= most) SN_(sn_kernel)(to, adds, a, m, vectors, width, panel, width * L, width * L * K, K);            \
        break;
#define SN_STRIP(name, side, wide, few)                                                                               \
    static __attribute__((noinline)) void SN_(name)(SN_(sn_rows) C, SN_(sn_rows) addend, SN_(sn_rows) A, int64_t r0,  \
                                                    int64_t r1, const SN_REAL *panel, int64_t K, int64_t n) {         \
        enum { L = SN_(sn_lanes), width = wide, vectors = side * wide, fit = SN_MAX_ROWS(vectors) };                  \
        enum { most = fit < few ? fit : few };                                                                        \
        SN_REAL tile[most * vectors * L] __attribute__((aligned(64)));                                                \
        const int whole = n == vectors * L;                                                                           \
        const SN_REAL *a[most], *plus[most];                                                                          \
        SN_REAL *to[most];                                                                                            \
        for (int64_t r = r0, m; r < r1; r += m) {                                                                     \
            m = sn_split(r1 - r, most);                                                                               \
            for (int64_t i = 0; i < m; ++i) a[i] = SN_(sn_row)(A, r + i);                                             \
            for (int64_t i = 0; i < m; ++i) to[i] = whole ? SN_(sn_row)(C, r + i) : tile + i * vectors * L;           \
            if (addend.base) for (int64_t i = 0; i < m; ++i) plus[i] = SN_(sn_row)(addend, r + i);                    \
            const SN_REAL *const *adds = whole && addend.base ? plus : 0;                                             \
            switch (m) {                                                                                              \
                SN_CASE(1) SN_CASE(2) SN_CASE(3) SN_CASE(4) SN_CASE(5) SN_CASE(6)                                     \
                SN_CASE(7) SN_CASE(8) SN_CASE(9) SN_CASE(10) SN_CASE(11) SN_CASE(12)                                  \
            }                                                                                                         \
            if (whole) continue;                                                                                      \
            for (int64_t i = 0; i < m; ++i) SN_(sn_put)(SN_(sn_row)(C, r + i), to[i], addend.base ? plus[i] : 0, n);  \
        }                                                                                                             \
    }
SN_STRIP(sn_strip1, 1, 1, 12)
SN_STRIP(sn_strip2, 1, 2, 12)
#if SN_WIDTH == 2
SN_STRIP(sn_pair, 2, 2, 3)
SN_STRIP(sn_four, 4, 2, 1)
#else
SN_STRIP(sn_strip3, 1, 3, 12)
SN_STRIP(sn_strip4, 1, 4, 12)
SN_STRIP(sn_pair, 2, 4, 1)
#endif
#undef SN_CASE
#undef SN_STRIP

void SN_(sn_matmul)(SN_(sn_rows) C, SN_(sn_rows) addend, SN_(sn_rows) A, const SN_REAL *packed,
                              int64_t rows, int64_t K, int64_t N) {
    const int64_t most_rows = 96; /* so that A stays in the first cache while the panels go by */
    const int64_t L = SN_(sn_lanes), whole = N / (SN_WIDTH * L);
    for (int64_t r0 = 0; r0 < rows; r0 += most_rows) {
        const int64_t r1 = r0 + most_rows < rows ? r0 + most_rows : rows, m = r1 - r0;
        const int64_t panels = (SN_(sn_blocks)(N) + SN_WIDTH - 1) / SN_WIDTH, back = sn_from_last(panels);
        for (int64_t p = 0, some; p < panels; p += some) {
            /* few rows times one panel would wait for their sums */
            some = back ? panels - p <= whole ? panels - p : 1 : whole - p;
            some = some >= SN_PANELS(m) ? SN_PANELS(m) : some >= 2 && SN_PANELS(m) >= 2 ? 2 : 1;
            const int64_t first = (back ? panels - p - some : p) * SN_WIDTH, column = first * L;
            const int64_t nv = some > 1 ? SN_WIDTH : SN_(sn_blocks)(N) - first < SN_WIDTH ? SN_(sn_blocks)(N) - first : SN_WIDTH;
            const int64_t n = N - column < some * nv * L ? N - column : some * nv * L;
            const SN_REAL *panel = packed + column * K;
            const SN_(sn_rows) to = {C.base + column, C.stride, C.index};
            const SN_(sn_rows) plus = {addend.base ? addend.base + column : 0, addend.stride, addend.index};
            switch (some * 8 + nv) {
                case 9: SN_(sn_strip1)(to, plus, A, r0, r1, panel, K, n); break;
                case 10: SN_(sn_strip2)(to, plus, A, r0, r1, panel, K, n); break;
#if SN_WIDTH == 2
                case 34: SN_(sn_four)(to, plus, A, r0, r1, panel, K, n); break;
#else
                case 11: SN_(sn_strip3)(to, plus, A, r0, r1, panel, K, n); break;
                case 12: SN_(sn_strip4)(to, plus, A, r0, r1, panel, K, n); break;
#endif
                default: SN_(sn_pair)(to, plus, A, r0, r1, panel, K, n);
            }
        }
    }
}
#endif

/* Few rows, by B[k, u] = source[k * stride_k + u * stride_n] as it lies, if one of the strides is 1: to pack it takes as
 * long as the products of ten rows. Where its columns are contiguous the lanes of a sum are added up at its end. */
SN_SHARED void SN_(sn_few)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_k, int64_t stride_n,
                           int64_t rows, int64_t K, int64_t N);
#ifndef SN_LINKED
/* to[i] = the sum of the lanes of sum[i]. */
SN_INLINE void SN_(sn_lane_sums)(SN_REAL *to, SN_(sn_vec) *sum) {
    enum { L = SN_(sn_lanes) };
#if SN_TURN
#if SN_EIGHT_SUMS
    if (sizeof(SN_REAL) == 4) {
        sn_eight_sums((float *)to, (const float *)sum);
        return;
    }
#endif
    typedef __typeof__((SN_(sn_vec)){0} == (SN_(sn_vec)){0}) lane_mask;
    lane_mask even, odd;
    SN_UNROLL for (int j = 0; j < L; ++j) {
        even[j] = 2 * j;
        odd[j] = 2 * j + 1;
    }
    SN_UNROLL for (int s = L / 2; s > 0; s /= 2)
        SN_UNROLL for (int i = 0; i < s; ++i)
            sum[i] = __builtin_shuffle(sum[2 * i], sum[2 * i + 1], even) + __builtin_shuffle(sum[2 * i], sum[2 * i + 1], odd);
    *(SN_(sn_vec_u) *)to = sum[0];
#else
    for (int i = 0; i < L; ++i) {
        to[i] = 0;
        for (int j = 0; j < L; ++j) to[i] += sum[i][j];
    }
#endif
}

/* to[m][lanes / m]: rows from r on times some contiguous columns; of what is no row, or beyond `units`, anything. `ahead`:
 * where what is read next lies, from these; 0: nowhere. */
SN_INLINE void SN_(sn_dots)(SN_REAL *to, const int m, SN_(sn_rows) A, int64_t r, int64_t rows, const SN_REAL *source,
                            int64_t stride_n, int64_t units, int64_t K, int64_t ahead) {
    enum { L = SN_(sn_lanes) };
    const int columns = L / m;
    SN_(sn_vec) sum[L];
    const SN_REAL *a[4], *b[L];
    SN_UNROLL for (int i = 0; i < m; ++i) a[i] = SN_(sn_row)(A, r + i < rows ? r + i : r);
    SN_UNROLL for (int j = 0; j < columns; ++j) b[j] = source + (j < units ? j : 0) * stride_n;
    SN_UNROLL for (int i = 0; i < L; ++i) sum[i] = (SN_(sn_vec)){0};
    int64_t k = 0;
    for (; k + L <= K; k += L) {
        SN_(sn_vec) row[4];
        SN_UNROLL for (int i = 0; i < m; ++i) row[i] = *(const SN_(sn_vec_u) *)(a[i] + k);
        SN_UNROLL for (int j = 0; j < columns; ++j) {
            if (ahead) __builtin_prefetch(b[j] + k + ahead);
            SN_(sn_vec) column = *(const SN_(sn_vec_u) *)(b[j] + k);
            if (m > 1) SN_KEEP(column);
            SN_UNROLL for (int i = 0; i < m; ++i) sum[i * columns + j] += row[i] * column;
        }
    }
    SN_(sn_lane_sums)(to, sum);
    for (; k < K; ++k)
        SN_UNROLL for (int i = 0; i < m; ++i)
            SN_UNROLL for (int j = 0; j < columns; ++j) to[i * columns + j] += a[i][k] * b[j][k];
}

/* Those from column u to `end`. */
SN_INLINE void SN_(sn_few_columns)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_k, int64_t stride_n,
                                   int64_t rows, int64_t K, int64_t first, int64_t end) {
    enum { L = SN_(sn_lanes), MOST = L < 4 ? L : 4 };
    SN_REAL tile[L] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r += MOST) {
        const int64_t m = rows - r < MOST ? rows - r : MOST;
        int64_t u = first;
        if (stride_k == 1) {
            for (const int64_t columns = L / (m == 3 ? MOST : m); u < end; u += columns) {
                const SN_REAL *from = source + u * stride_n;
                const int64_t ahead = r == MOST ? L * stride_n : 0; /* the next ones come while these are at hand */
                if (m == 1) SN_(sn_dots)(tile, 1, A, r, rows, from, stride_n, end - u, K, ahead);
                else if (m == 2) SN_(sn_dots)(tile, 2, A, r, rows, from, stride_n, end - u, K, ahead);
                else SN_(sn_dots)(tile, MOST, A, r, rows, from, stride_n, end - u, K, ahead);
                for (int64_t i = 0; i < m; ++i)
                    SN_(sn_put)(SN_(sn_row)(C, r + i) + u, tile + i * columns, 0, end - u < columns ? end - u : columns);
            }
            continue;
        }
        for (int64_t nv; (nv = (end - u) / L) > 0; u += nv * L) {
            const SN_REAL *a[MOST];
            SN_REAL *to[MOST];
            for (int64_t i = 0; i < m; ++i) {
                a[i] = SN_(sn_row)(A, r + i);
                to[i] = SN_(sn_row)(C, r + i) + u;
            }
            const int64_t most = m <= 2 ? SN_REGISTERS / 2 / m : 4; /* of one row of B, which may be far from the next */
            nv = nv < 4 ? 1 : nv < 8 || most < 8 ? 4 : nv < 16 || most < 16 ? 8 : 16;
            switch (m * 32 + nv) {
#define SN_CASE(m, nv) \
    case m * 32 + nv: SN_(sn_kernel)(to, 0, a, m, nv, nv, source + u, stride_k, 0, K); break
                SN_CASE(1, 1); SN_CASE(2, 1); SN_CASE(3, 1); SN_CASE(4, 1);
                SN_CASE(1, 4); SN_CASE(2, 4); SN_CASE(3, 4); SN_CASE(4, 4);
                SN_CASE(1, 8);
#if SN_REGISTERS == 32
                SN_CASE(2, 8); SN_CASE(1, 16);
#endif
#undef SN_CASE
            }
        }
        for (; u < end; ++u)
            for (int64_t i = 0; i < m; ++i) {
                const SN_REAL *a = SN_(sn_row)(A, r + i);
                SN_REAL sum = 0;
                for (int64_t k = 0; k < K; ++k) sum += a[k] * source[k * stride_k + u];
                SN_(sn_row)(C, r + i)[u] = sum;
            }
    }
}

/* One row by deep columns, one after the other: as they lie they come from the second cache at twice the speed. What that
 * still holds comes first every other time. */
static void SN_(sn_one)(SN_REAL *to, const SN_REAL *a, const SN_REAL *source, int64_t stride_n, int64_t K, int64_t N) {
    enum { L = SN_(sn_lanes), some = 4 * L };
    const int64_t blocks = SN_(sn_blocks)(N), back = sn_from_last(blocks), deep = K / L * L;
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t u = L * (back ? blocks - 1 - i : i), units = N - u < L ? N - u : L;
        SN_(sn_vec) sum[L] = {{0}};
        SN_REAL tile[L] __attribute__((aligned(64)));
        for (int64_t j = 0; j < units; ++j) {
            const SN_REAL *b = source + (u + j) * stride_n;
            SN_(sn_vec) one = {0};
            int64_t k = 0;
#define SN_TERM(k) one += *(const SN_(sn_vec_u) *)(a + (k)) * *(const SN_(sn_vec_u) *)(b + (k))
            for (; k + some <= K; k += some) SN_UNROLL for (int v = 0; v < 4; ++v) SN_TERM(k + v * L);
            for (; k < deep; k += L) SN_TERM(k);
#undef SN_TERM
            sum[j] = one;
        }
        SN_(sn_lane_sums)(tile, sum);
        for (int64_t k = deep; k < K; ++k)
            for (int64_t j = 0; j < units; ++j) tile[j] += a[k] * source[k + (u + j) * stride_n];
        SN_(sn_put)(to + u, tile, 0, units);
    }
}

void SN_(sn_few)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_k, int64_t stride_n, int64_t rows,
                 int64_t K, int64_t N) {
    /* all rows go by some columns while the first cache has these */
    const int64_t L = SN_(sn_lanes), some = rows <= 4 ? N : stride_k == 1 ? L : 4 * L;
    const int one = rows == 1 && stride_k == 1 && K >= 8 * L;
    if (one) SN_(sn_one)(SN_(sn_row)(C, 0), SN_(sn_row)(A, 0), source, stride_n, K, N);
    for (int64_t u = one ? N : 0; u < N; u += some)
        SN_(sn_few_columns)(C, A, source, stride_k, stride_n, rows, K, u, N - u < some ? N : u + some);
}
#endif

/* Rows by B as it lies, of which one panel at a time is packed. `panel`: room for SN_WIDTH vectors of columns. */
SN_INLINE void SN_(sn_by_panels)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_k, int64_t stride_n,
                                 int64_t rows, int64_t K, int64_t N, SN_REAL *panel) {
    const int64_t W = SN_WIDTH * SN_(sn_lanes);
    for (int64_t u = 0; u < N; u += W, C.base += W) {
        const int64_t n = N - u < W ? N - u : W;
        SN_(sn_pack)(panel, source + u * stride_n, stride_k, stride_n, K, n);
        SN_(sn_matmul)(C, (SN_(sn_rows)){0, 0, 0}, A, panel, rows, K, n);
    }
}

/* Rows by B[k, u] = source[k + u * stride_n] as it lies: the rows are packed in its place, and what is made is turned.
 * For as many rows as fill vectors: all of a vector are computed. C and A have no index. `room`: for K + SN_(sn_some)
 * numbers of each. */
enum { SN_(sn_some) = 96 };
SN_SHARED void SN_(sn_by_turned)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_n, int64_t rows,
                                 int64_t K, int64_t N, SN_REAL *room);
#ifndef SN_LINKED
void SN_(sn_by_turned)(SN_(sn_rows) C, SN_(sn_rows) A, const SN_REAL *source, int64_t stride_n, int64_t rows, int64_t K,
                       int64_t N, SN_REAL *room) {
    const int64_t L = SN_(sn_lanes), wide = SN_(sn_blocks)(rows) * L;
    SN_REAL *made = room + K * wide;
    SN_(sn_pack)(room, A.base, 1, A.stride, K, rows);
    for (int64_t u = 0; u < N; u += SN_(sn_some)) {
        const int64_t some = N - u < SN_(sn_some) ? N - u : SN_(sn_some);
        const SN_(sn_rows) columns = {(SN_REAL *)source + u * stride_n, stride_n, 0};
        SN_(sn_matmul)((SN_(sn_rows)){made, wide, 0}, (SN_(sn_rows)){0, 0, 0}, columns, room, some, K, wide);
        int64_t whole = 0;
#if SN_TURN
        whole = some / L * L;
        for (int64_t r = 0; r < rows / L * L; r += L)
            for (int64_t j = 0; j < whole; j += L)
                SN_(sn_turn)(SN_(sn_row)(C, r) + u + j, C.stride, made + j * wide + r, wide);
#endif
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = r < rows / L * L ? whole : 0; j < some; ++j) SN_(sn_row)(C, r)[u + j] = made[j * wide + r];
    }
}
#endif

/* Whether one of n numbers is none. */
SN_INLINE int SN_(sn_any_nan)(const SN_REAL *x, int64_t n) {
    int found = 0;
    for (int64_t j = 0; j < n; ++j) found |= x[j] != x[j];
    return found;
}

#include "sn_over_steps.h"

/* A small matrix, or one of each head, packed line after line, for products that are made element by element. */
SN_INLINE void SN_(sn_lines)(const sn_matrix *B, int64_t heads, int64_t K, int64_t N) {
    SN_REAL *to = (SN_REAL *)B->packed;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t k = 0; k < K; ++k)
            for (int64_t n = 0; n < N; ++n)
                *to++ = ((const SN_REAL *)B->lying)[h * B->stride_h + k * B->stride_k + n * B->stride_n];
}

/* A member's columns of a product with a matrix that is packed, or, of few rows, may be read as it lies. */
SN_SHARED void SN_(sn_columns)(SN_(sn_rows) C, SN_(sn_rows) A, const sn_matrix *B, int64_t few, int64_t rows, int64_t K,
                               int64_t N, int64_t member, int64_t members);
#ifndef SN_LINKED
void SN_(sn_columns)(SN_(sn_rows) C, SN_(sn_rows) A, const sn_matrix *B, int64_t few, int64_t rows, int64_t K, int64_t N,
                     int64_t member, int64_t members) {
    const int64_t c0 = first_column(N, member, members, SN_WIDTH * SN_(sn_lanes));
    const int64_t c1 = first_column(N, member + 1, members, SN_WIDTH * SN_(sn_lanes));
    const SN_REAL *lying = (const SN_REAL *)B->lying, *packed = (const SN_REAL *)B->packed;
    if (c1 == c0) return;
    C.base += c0;
    if (sn_lies(B, few)) SN_(sn_few)(C, A, lying + c0 * B->stride_n, B->stride_k, B->stride_n, rows, K, c1 - c0);
    else SN_(sn_matmul)(C, (SN_(sn_rows)){0, 0, 0}, A, packed + c0 * K, rows, K, c1 - c0);
}
#endif

#undef SN_REAL
#undef SN_
