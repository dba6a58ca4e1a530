/* Products over rows, C[k, n] = A[rows, k]' B[rows, n], by vectors: what gradients of weights are, of one table B or of two
 * that multiply the same A. Numbers are floats or, with SN_OVER_BF16, of bfloat16; sums are floats.
 *
 *     word      a float; or, where an instruction multiplies those, a pair, the numbers of bfloat16 of two rows in one column:
 *               zero stands behind the last row
 *     strip     SN_OVER_TALL columns of A, word after word
 *     panel     two vectors of columns of B, word after word
 *     near      so many rows go by all strips before the next ones do: caches still have those of B
 *
 * Of a strip and a panel, the sums over SN_OVER_SUMMED words stay in registers, and are then added to C. Threads take strips
 * of A, or parts of many rows, each with a C of its own: so that each element is summed in the same order whatever their
 * number. Stands on sn_matmul.h, sn_parallel.h and, of bfloat16, sn_add_pairs.h.
 */
#ifndef SN_OVER_VECTORS_H
#define SN_OVER_VECTORS_H

#if SN_OVER_BF16
typedef uint16_t sn_over_number;
#else
typedef float sn_over_number;
#endif
#if SN_OVER_BF16 && SN_HAS_PAIRS
typedef uint32_t sn_over_word;
typedef sn_words sn_over_words;
typedef sn_words_u sn_over_words_u;
enum { SN_OVER_DEEP = 2, SN_OVER_TALL = SN_VECTOR_BYTES == 64 ? 12 : 6 }; /* rows of a word; columns of a strip */
/* Of columns that follow one another, the words of a row and, if there is one, of the next. */
SN_INLINE sn_over_words sn_over_load(const sn_over_number *a, int64_t stride, int has_next) {
    const sn_over_words even = __builtin_convertvector(*(const sn_narrow *)a, sn_over_words);
    if (!has_next) return even;
    return even | __builtin_convertvector(*(const sn_narrow *)(a + stride), sn_over_words) << 16;
}
SN_INLINE sn_over_word sn_over_one_of(const sn_over_number *a, int64_t stride, int has_next) {
    return *a | (has_next ? (sn_over_word)a[stride] << 16 : 0);
}
SN_INLINE sn_vec_f32 sn_over_add(sn_vec_f32 sum, sn_over_word a, sn_over_words b) {
    return sn_add_pairs(sum, (sn_over_words){0} + a, b);
}
#else
typedef float sn_over_word;
typedef sn_vec_f32 sn_over_words;
typedef sn_vec_u_f32 sn_over_words_u;
enum { SN_OVER_DEEP = 1, SN_OVER_TALL = 6 };
SN_INLINE sn_over_words sn_over_load(const sn_over_number *a, int64_t stride, int has_next) {
    (void)stride, (void)has_next;
#if SN_OVER_BF16
    return sn_widen(a);
#else
    return *(const sn_over_words_u *)a;
#endif
}
SN_INLINE sn_over_word sn_over_one_of(const sn_over_number *a, int64_t stride, int has_next) {
    (void)stride, (void)has_next;
#if SN_OVER_BF16
    return sn_load_bf16(*a);
#else
    return *a;
#endif
}
SN_INLINE sn_vec_f32 sn_over_add(sn_vec_f32 sum, sn_over_word a, sn_over_words b) { return sum + a * b; }
#endif

typedef struct {
    float *sums; /* C, of each part; NULL: no second table */
    const sn_over_number *rows; /* B */
    int64_t stride, n;
} sn_over_table;

typedef struct {
    const sn_over_number *a;
    int64_t stride, rows, k;
    sn_over_table tables[2];
    sn_over_word *room; /* SN_OVER_ROOM of them for each thread or part, for the stack of a thread may be small */
    int64_t parts; /* of rows; 1: threads take strips */
} sn_over_vectors;

/* Strips and panels of SN_OVER_AT_ONCE words stay in the second cache, a strip and a panel in the first one. */
enum { SN_OVER_WIDE = 2 * sn_lanes_f32, SN_OVER_SUMMED = 128, SN_OVER_AT_ONCE = 256, SN_OVER_NEAR = 512 };
enum { SN_OVER_STRIPS = 384 / SN_OVER_TALL, SN_OVER_COLUMNS = 256, SN_OVER_STRIP = SN_OVER_AT_ONCE * SN_OVER_TALL + sn_lanes_f32 };
enum { SN_OVER_PACKED = SN_OVER_STRIPS * SN_OVER_STRIP };
_Static_assert(SN_OVER_PACKED + SN_OVER_AT_ONCE * SN_OVER_COLUMNS <= SN_OVER_ROOM, "room for strips and panels");

/* Columns 0 .. m of A in strips; it has k of them. A vector that is put down for six numbers ends in the place of those
 * that follow. */
static void sn_pack_strips(sn_over_word *restrict to, const sn_over_number *restrict a, int64_t stride, int64_t depth,
                           int64_t m, int64_t k) {
    for (int64_t t = 0; t < depth; t += SN_OVER_DEEP, a += SN_OVER_DEEP * stride, to += SN_OVER_TALL) {
        const int has_next = t + 1 < depth;
        sn_over_word *at = to;
        int64_t i = 0;
        if (SN_VECTOR_BYTES > SN_OVER_TALL * (int)sizeof *at)
            for (; i < m && i + sn_lanes_f32 <= k; i += SN_OVER_TALL, at += SN_OVER_STRIP) {
                SN_UNROLL for (int d = 0; d < SN_OVER_DEEP; ++d) __builtin_prefetch(a + i + (8 + d) * stride);
                *(sn_over_words_u *)at = sn_over_load(a + i, stride, has_next);
            }
        for (; i < m; i += SN_OVER_TALL, at += SN_OVER_STRIP)
            for (int64_t u = 0; u < SN_OVER_TALL && i + u < k; ++u) at[u] = sn_over_one_of(a + i + u, stride, has_next);
    }
}

/* Columns 0 .. n of B in panels, and zeros beyond. */
static void sn_pack_panels(sn_over_word *restrict to, const sn_over_number *restrict b, int64_t stride, int64_t depth,
                           int64_t n) {
    for (int64_t t = 0; t < depth; t += SN_OVER_DEEP, b += SN_OVER_DEEP * stride, to += SN_OVER_WIDE) {
        const int has_next = t + 1 < depth;
        sn_over_word *at = to;
        int64_t j = 0;
        for (; j + SN_OVER_WIDE <= n; j += SN_OVER_WIDE, at += SN_OVER_AT_ONCE * SN_OVER_WIDE) {
            SN_UNROLL for (int d = 0; d < SN_OVER_DEEP; ++d) __builtin_prefetch(b + j + (8 + d) * stride);
            SN_UNROLL for (int v = 0; v < 2 * sn_lanes_f32; v += sn_lanes_f32)
                *(sn_over_words_u *)(at + v) = sn_over_load(b + j + v, stride, has_next);
        }
        if (j < n)
            for (int64_t u = 0; u < SN_OVER_WIDE; ++u)
                at[u] = j + u < n ? sn_over_one_of(b + j + u, stride, has_next) : 0;
    }
}

/* C = a strip times a panel, or C += that. Rows of C are `next` apart. */
SN_INLINE void sn_over_strip(float *C, int64_t next, const sn_over_word *a, const sn_over_word *b, int64_t words,
                             int is_first, const int rows) {
    sn_vec_f32 sum[SN_OVER_TALL][2];
    SN_UNROLL for (int i = 0; i < rows; ++i) {
        __builtin_prefetch(C + i * next, 1);
        sum[i][0] = sum[i][1] = (sn_vec_f32){0};
    }
    for (int64_t t = 0; t < words; ++t, a += SN_OVER_TALL, b += SN_OVER_WIDE) {
        sn_over_words x = *(const sn_over_words_u *)b, y = *(const sn_over_words_u *)(b + sn_lanes_f32);
        SN_KEEP(x);
        SN_KEEP(y);
        SN_UNROLL for (int i = 0; i < rows; ++i) {
            sum[i][0] = sn_over_add(sum[i][0], a[i], x);
            sum[i][1] = sn_over_add(sum[i][1], a[i], y);
        }
    }
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < 2; ++v) {
            sn_vec_u_f32 *to = (sn_vec_u_f32 *)(C + i * next + v * sn_lanes_f32);
            if (!is_first) sum[i][v] += *to;
            *to = sum[i][v];
        }
}

static __attribute__((noinline)) void sn_over_strips(float *C, int64_t next, const sn_over_word *a, const sn_over_word *b,
                                                     int64_t words, int is_first, int64_t rows) {
    for (int64_t t = 0; t < words; t += SN_OVER_SUMMED, a += SN_OVER_SUMMED * SN_OVER_TALL, b += SN_OVER_SUMMED * SN_OVER_WIDE) {
        const int64_t some = words - t < SN_OVER_SUMMED ? words - t : SN_OVER_SUMMED;
        const int is_new = is_first && t == 0;
        switch (rows < SN_OVER_TALL ? rows : 0) {
#define SN_CASE(m) \
    case m: if (m < SN_OVER_TALL) sn_over_strip(C, next, a, b, some, is_new, m); break
            SN_CASE(1); SN_CASE(2); SN_CASE(3); SN_CASE(4); SN_CASE(5); SN_CASE(6);
            SN_CASE(7); SN_CASE(8); SN_CASE(9); SN_CASE(10); SN_CASE(11);
#undef SN_CASE
            default: sn_over_strip(C, next, a, b, some, is_new, SN_OVER_TALL);
        }
    }
}

/* Columns m0 .. m0 + m of A, in strips, by all of a table. */
static void sn_over_one(const sn_over_table *table, sn_over_word *panels, const sn_over_word *strips, int64_t r,
                        int64_t depth, int64_t m0, int64_t m) {
    const int64_t words = (depth + SN_OVER_DEEP - 1) / SN_OVER_DEEP;
    float edge[SN_OVER_TALL * SN_OVER_WIDE] __attribute__((aligned(64)));
    for (int64_t c = 0; c < table->n; c += SN_OVER_COLUMNS) {
        const int64_t n = table->n - c < SN_OVER_COLUMNS ? table->n - c : SN_OVER_COLUMNS;
        sn_pack_panels(panels, table->rows + r * table->stride + c, table->stride, depth, n);
        for (int64_t j = 0; j < n; j += SN_OVER_WIDE)
            for (int64_t i = 0; i < m; i += SN_OVER_TALL) {
                const sn_over_word *a = strips + i / SN_OVER_TALL * SN_OVER_STRIP, *b = panels + j * SN_OVER_AT_ONCE;
                const int64_t tall = m - i < SN_OVER_TALL ? m - i : SN_OVER_TALL;
                float *C = table->sums + (m0 + i) * table->n + c + j;
                if (n - j >= SN_OVER_WIDE) {
                    sn_over_strips(C, table->n, a, b, words, r == 0, tall);
                    continue;
                }
                sn_over_strips(edge, SN_OVER_WIDE, a, b, words, 1, tall);
                for (int64_t u = 0; u < tall; ++u)
                    for (int64_t v = 0; v < n - j; ++v)
                        C[u * table->n + v] = edge[u * SN_OVER_WIDE + v] + (r ? C[u * table->n + v] : 0);
            }
    }
}

static void sn_over_vectors_share(void *data, int64_t share, int64_t shares) {
    const sn_over_vectors *o = (const sn_over_vectors *)data;
    const int64_t far = SN_OVER_NEAR * SN_OVER_DEEP, next = SN_OVER_AT_ONCE * SN_OVER_DEEP;
    sn_over_word *strips = o->room + share * SN_OVER_ROOM, *panels = strips + SN_OVER_PACKED;
    const int64_t all = (o->k + SN_OVER_TALL - 1) / SN_OVER_TALL, most = SN_OVER_STRIPS * SN_OVER_TALL;
    const int64_t first = all * share / shares * SN_OVER_TALL;
    const int64_t end = share + 1 == shares ? o->k : all * (share + 1) / shares * SN_OVER_TALL;
    for (int64_t near = 0; near < o->rows; near += far) {
        const int64_t last = o->rows - near < far ? o->rows : near + far;
        for (int64_t m0 = first; m0 < end; m0 += most) {
            const int64_t m = end - m0 < most ? end - m0 : most;
            for (int64_t r = near; r < last; r += next) {
                const int64_t depth = last - r < next ? last - r : next;
                sn_pack_strips(strips, o->a + r * o->stride + m0, o->stride, depth, m, o->k - m0);
                for (int w = 0; w < 2; ++w)
                    if (o->tables[w].sums) sn_over_one(&o->tables[w], panels, strips, r, depth, m0, m);
            }
        }
    }
}

static void sn_over_vectors_part(void *data, int64_t part, int64_t parts) {
    sn_over_vectors o = *(const sn_over_vectors *)data;
    const int64_t first = o.rows * part / parts;
    o.rows = o.rows * (part + 1) / parts - first;
    o.a += first * o.stride;
    o.room += part * SN_OVER_ROOM;
    for (int w = 0; w < 2; ++w)
        if (o.tables[w].sums) {
            o.tables[w].rows += first * o.tables[w].stride;
            o.tables[w].sums += part * o.k * o.tables[w].n;
        }
    sn_over_vectors_share(&o, 0, 1);
}

static __attribute__((unused)) void sn_over_by_vectors(const sn_pool *pool, sn_over_vectors *o) {
    if (o->parts > 1) sn_parallel(pool, o->parts, sn_over_vectors_part, o);
    else sn_parallel(pool, pool->threads, sn_over_vectors_share, o);
}
#endif
