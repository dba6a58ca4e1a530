/* Blocks of rows times panels by tiles: `sn_tiles_block`.
 *
 * A number is the sum of `parts` numbers of bfloat16 in A and in B: 1, 2 or 3. Of three, those six products are added
 * that say something a float can hold; of two, three. Small ones come first, and a sum begins at zero for each few blocks
 * (SN_NEAR_BLOCKS): so few additions round at the size of the whole that no chain of floats is more exact, not even one
 * of a few numbers among zeros. Of up to 16 rows six tiles are in use, of which two are loaded again and again: where
 * another thread is on the same core few registers are left beside those of tiles in use, and with eight of them loads and
 * products wait for each other.
 *
 *     A    [m / sn_tiled_high(m)][blocks of 32 columns][parts][sn_tiled_high(m)][32]: what two tiles of rows are multiplied
 *          from lies in one row, as it is read; or rows of one part as they lie
 *     B    [blocks of 32 rows][parts][nv][16 pairs][16 columns], so too
 *     C    two by two tiles of sums; of up to 16 rows one by four, because a sum that waits for itself is slow
 */
#ifndef SN_BLOCKS_H
#define SN_BLOCKS_H

/* A thread's tiles for m rows, 1 to SN_BLOCK_ROWS; SN_TILE_END() when they are done. */
SN_SHARED void sn_tiles_begin(int64_t m);
SN_SHARED void sn_tiles_end(void);
/* Rows as tiles take them: elements from one to the next, from a block of columns, and from the rows of two tiles. */
typedef struct {
    const uint16_t *base;
    int64_t row, block, two;
} sn_tiled;

SN_INLINE sn_tiled sn_tiled_of(const uint16_t *rows, int64_t m, int64_t blocks, int64_t parts) {
    const int64_t block = parts * sn_tiled_high(m) * SN_DEPTH_BF16;
    return (sn_tiled){rows, SN_DEPTH_BF16, block, blocks * block};
}
/* C[m, n] = A B, or plus (not where base is NULL) + A B, of `blocks` blocks. plus may be C.
 * n columns, nv vectors of them, 1 to 4. */
SN_SHARED void sn_tiles_block(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, const uint16_t *panel,
                              int64_t blocks, int64_t n, int64_t nv, int64_t parts);
#ifndef SN_LINKED

enum { SN_NEAR_BLOCKS = 24 }; /* of all parts together: more are no faster, and round more often */

void sn_tiles_begin(int64_t m) {
    const int64_t high = sn_tiled_high(m);
    const uint8_t low = high > 16 ? 16 : (uint8_t)high, rest = (uint8_t)(high - 16);
    if (high > 16) SN_TILE_BEGIN(((const uint8_t[8]){low, low, rest, rest, low, rest, 16, 16}));
    else SN_TILE_BEGIN(((const uint8_t[8]){low, low, low, low, low, low, low, 16}));
}
void sn_tiles_end(void) { SN_TILE_END(); }

/* Where sums go: rows of C, n columns, and what is added to them. */
typedef struct {
    sn_rows_f32 C, plus;
    int64_t n;
} sn_sums;

/* The sums of tile t, which has `high` rows, to `rows` of C from r on, and to 16 columns or what is left of them. */
SN_INLINE void sn_put_tile(const sn_sums *to, const float (*sums)[16], int64_t r, int64_t rows, int64_t column) {
    const int64_t left = to->n - column < 16 ? to->n - column : 16;
    for (int64_t i = 0; i < rows; ++i)
        sn_put_f32(sn_row_f32(to->C, r + i) + column, sums[i],
                   to->plus.base ? sn_row_f32(to->plus, r + i) + column : 0, left);
}
/* Whether rows from r on are one behind the other. */
SN_INLINE int sn_in_a_row(sn_rows_f32 C, int64_t r, int64_t rows) {
    int64_t apart = 0;
    for (int64_t i = 1; C.index && i < rows; ++i) apart |= C.index[r + i] - C.index[r] - i;
    return apart == 0;
}
#define SN_PUT_TILE(t, r, rows, high, column)                                                                         \
    do {                                                                                                              \
        if (!to.plus.base && (rows) == (high) && (column) + 16 <= to.n && sn_in_a_row(to.C, r, rows)) {                            \
            SN_TILE_STORE(t, sn_row_f32(to.C, r) + (column), to.C.stride * (int64_t)sizeof(float));                   \
        } else {                                                                                                      \
            float sums[16][16] __attribute__((aligned(64)));                                                          \
            SN_TILE_STORE(t, sums, 64);                                                                               \
            sn_put_tile(&to, (const float(*)[16])sums, r, rows, column);                                              \
        }                                                                                                             \
    } while (0)

#define SN_TILE_OF_ROWS(t, part, from)                                                                                \
    SN_TILE_LOAD(t, a + (part) * high * SN_DEPTH_BF16 + (from) * apart, 2 * apart)
#define SN_TILE_OF_PANEL(t, part, v) SN_TILE_LOAD(t, b + ((part) * nv + (v)) * SN_TILE_SIZE, 2 * SN_DEPTH_BF16)

/* Up to `high` rows from r on, and two vectors of columns. */
SN_INLINE void sn_two_by_two(const sn_sums to, sn_tiled A, int64_t r, int64_t m, const uint16_t *panel,
                             int64_t blocks, int64_t nv, int64_t v, const int wide, int64_t high, const int parts) {
    const int64_t upper = m < 16 ? m : 16, lower = m - upper, rest = high - 16, at = v * 16;
    const int64_t apart = parts == 1 ? A.row : SN_DEPTH_BF16;
    const int64_t block = parts == 1 ? A.block : parts * high * SN_DEPTH_BF16;
    SN_TILE_ZERO(0);
    SN_TILE_ZERO(1);
    SN_TILE_ZERO(2);
    SN_TILE_ZERO(3);
#define SN_AT(k)                                                                                                      \
    const uint16_t *a = A.base + (k) * block, *b = panel + (k) * parts * nv * SN_TILE_SIZE
#define SN_ROWS(part)                                                                                                 \
    do {                                                                                                              \
        SN_TILE_OF_ROWS(4, part, 0);                                                                                  \
        SN_TILE_OF_ROWS(5, part, 16);                                                                                 \
    } while (0)
#define SN_COLUMNS_OF(part)                                                                                           \
    do {                                                                                                              \
        SN_TILE_OF_PANEL(6, part, v);                                                                                 \
        if (wide) SN_TILE_OF_PANEL(7, part, v + 1);                                                                   \
    } while (0)
#define SN_ADD_FOUR()                                                                                                 \
    do {                                                                                                              \
        SN_TILE_MULTIPLY(0, 4, 6);                                                                                    \
        SN_TILE_MULTIPLY(2, 5, 6);                                                                                    \
        if (wide) SN_TILE_MULTIPLY(1, 4, 7);                                                                          \
        if (wide) SN_TILE_MULTIPLY(3, 5, 7);                                                                          \
    } while (0)
    for (int64_t k = 0; parts > 1 && k < blocks; ++k) {
        SN_AT(k);
        SN_ROWS(0);
        if (parts > 2) {
            SN_COLUMNS_OF(2);
            SN_ADD_FOUR();
        }
        SN_COLUMNS_OF(1);
        SN_ADD_FOUR();
        SN_ROWS(1);
        if (parts > 2) SN_ADD_FOUR();
        SN_COLUMNS_OF(0);
        SN_ADD_FOUR();
        if (parts > 2) {
            SN_ROWS(2);
            SN_ADD_FOUR();
        }
    }
    for (int64_t k = 0; k < blocks; ++k) {
        SN_AT(k);
        SN_ROWS(0);
        SN_COLUMNS_OF(0);
        SN_ADD_FOUR();
    }
#undef SN_AT
#undef SN_ROWS
#undef SN_COLUMNS_OF
#undef SN_ADD_FOUR
    SN_PUT_TILE(0, r, upper, 16, at);
    if (wide) SN_PUT_TILE(1, r, upper, 16, at + 16);
    SN_PUT_TILE(2, r + 16, lower, rest, at);
    if (wide) SN_PUT_TILE(3, r + 16, lower, rest, at + 16);
}

/* Up to 16 rows and nv vectors of columns. */
SN_INLINE void sn_one_by_four(const sn_sums to, sn_tiled A, int64_t m, const uint16_t *panel,
                              int64_t blocks, const int nv, const int parts) {
    const int64_t high = m, apart = parts == 1 ? A.row : SN_DEPTH_BF16;
    const int64_t block = parts == 1 ? A.block : parts * high * SN_DEPTH_BF16;
#define SN_EACH(what)                                                                                                 \
    do {                                                                                                              \
        what(0);                                                                                                      \
        if (nv > 1) what(1);                                                                                          \
        if (nv > 2) what(2);                                                                                          \
        if (nv > 3) what(3);                                                                                          \
    } while (0)
#define SN_BEGIN_ONE(v) SN_TILE_ZERO(v)
#define SN_END_ONE(v) SN_PUT_TILE(v, 0, m, m, (v) * 16)
    SN_EACH(SN_BEGIN_ONE);
#define SN_AT(k)                                                                                                      \
    const uint16_t *a = A.base + (k) * block, *b = panel + (k) * parts * nv * SN_TILE_SIZE
#define SN_TIMES(v)                                                                                                   \
    do {                                                                                                              \
        SN_TILE_OF_PANEL(7, part, v);                                                                                 \
        SN_TILE_MULTIPLY(v, 4, 7);                                                                                    \
    } while (0)
#define SN_TIMES_PART(of)                                                                                             \
    do {                                                                                                              \
        enum { part = of };                                                                                           \
        SN_EACH(SN_TIMES);                                                                                            \
    } while (0)
    for (int64_t k = 0; parts > 1 && k < blocks; ++k) {
        SN_AT(k);
        SN_TILE_OF_ROWS(4, 0, 0);
        if (parts > 2) SN_TIMES_PART(2);
        SN_TIMES_PART(1);
        SN_TILE_OF_ROWS(4, 1, 0);
        if (parts > 2) SN_TIMES_PART(1);
        SN_TIMES_PART(0);
        if (parts > 2) {
            SN_TILE_OF_ROWS(4, 2, 0);
            SN_TIMES_PART(0);
        }
    }
    for (int64_t k = 0; k < blocks; ++k) {
        SN_AT(k);
        SN_TILE_OF_ROWS(4, 0, 0);
        SN_TIMES_PART(0);
    }
    SN_EACH(SN_END_ONE);
#undef SN_EACH
#undef SN_BEGIN_ONE
#undef SN_END_ONE
#undef SN_AT
#undef SN_TIMES
#undef SN_TIMES_PART
}
#undef SN_TILE_OF_ROWS
#undef SN_TILE_OF_PANEL
#undef SN_PUT_TILE

/* The same for each number of parts. */
#define SN_BLOCK(parts)                                                                                               \
    static __attribute__((noinline)) void sn_block##parts(const sn_sums to, sn_tiled A, int64_t m,                    \
                                                          const uint16_t *panel, int64_t blocks, int64_t nv) {        \
        const int64_t high = sn_tiled_high(m);                                                                        \
        if (high <= 16 && m == high) {                                                                                \
            switch (nv) {                                                                                             \
                case 1: sn_one_by_four(to, A, m, panel, blocks, 1, parts); return;                                    \
                case 2: sn_one_by_four(to, A, m, panel, blocks, 2, parts); return;                                    \
                case 3: sn_one_by_four(to, A, m, panel, blocks, 3, parts); return;                                    \
                case 4: sn_one_by_four(to, A, m, panel, blocks, 4, parts); return;                                    \
            }                                                                                                         \
        }                                                                                                             \
        for (int64_t v = 0; v < nv; v += 2) {                                                                         \
            sn_tiled two = A;                                                                                         \
            for (int64_t r = 0; r < m; r += high, two.base += A.two) {                                                \
                const int64_t some = m - r < high ? m - r : high;                                                     \
                if (v + 1 < nv) sn_two_by_two(to, two, r, some, panel, blocks, nv, v, 1, high, parts);                \
                else sn_two_by_two(to, two, r, some, panel, blocks, nv, v, 0, high, parts);                           \
            }                                                                                                         \
        }                                                                                                             \
    }
SN_BLOCK(1)
SN_BLOCK(2)
SN_BLOCK(3)
#undef SN_BLOCK

void sn_tiles_block(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, const uint16_t *panel, int64_t blocks,
                    int64_t n, int64_t nv, int64_t parts) {
    if (parts == 1) {
        sn_block1((sn_sums){C, plus, n}, A, m, panel, blocks, nv);
        return;
    }
    float here[SN_BLOCK_ROWS][4 * 16] __attribute__((aligned(64)));
    const sn_rows_f32 kept = {here[0], 4 * 16, 0};
    const int64_t some = SN_NEAR_BLOCKS / parts;
    for (int64_t k = 0; k < blocks; k += some, A.base += some * A.block, panel += some * parts * nv * SN_TILE_SIZE) {
        const int64_t left = blocks - k < some ? blocks - k : some;
        const sn_sums to = {k + some < blocks ? kept : C, k == 0 ? plus : kept, n};
        if (parts == 2) sn_block2(to, A, m, panel, left, nv);
        else sn_block3(to, A, m, panel, left, nv);
    }
}
_Static_assert(sn_lanes_f32 == 16, "a tile holds 16 sums in a row");
#endif
#endif
