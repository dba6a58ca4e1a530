/* Blocks of rows times panels by tiles: `sn_tiles_block`.
 *
 * A number is the sum of `parts` numbers of bfloat16 in A and in B: 1, 2 or 3. Of three, those six products are added
 * that say something a float can hold; of two, three. In each block of 32 columns small ones come first, and a sum begins
 * at zero for each few blocks (SN_NEAR_BLOCKS): so few additions round at the size of the whole that no chain of floats is
 * more exact.
 *
 *     A    [m / sn_tiled_high(m)][blocks of 32 columns][parts][sn_tiled_high(m)][32]: what a tile of rows is multiplied
 *          from lies in one row, as it is read; or rows of one part as they lie
 *     B    [blocks of 32 rows][parts][nv][16 pairs][16 columns], so too
 *     C    one by four tiles of sums: a sum that waits for itself is slow
 *
 * Six tiles are in use, of which two are loaded, again and again. Where another thread is on the same core a tile has few
 * registers beside those that hold tiles in use: with two tiles more, which would be loaded half as often, loads and
 * products wait for each other, and all takes a quarter longer.
 */
#ifndef SN_BLOCKS_H
#define SN_BLOCKS_H

/* A thread's tiles for m rows, 1 to SN_BLOCK_ROWS; SN_TILE_END() when they are done. */
SN_SHARED void sn_tiles_begin(int64_t m);
SN_SHARED void sn_tiles_end(void);
/* Rows as tiles take them: elements from one to the next, from a block of columns, and from the rows of a tile. */
typedef struct {
    const uint16_t *base;
    int64_t row, block, high;
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
    const uint8_t high = (uint8_t)sn_tiled_high(m);
    SN_TILE_BEGIN(((const uint8_t[8]){high, high, high, high, high, high, high, 16}));
}
void sn_tiles_end(void) { SN_TILE_END(); }

/* Where sums go: rows of C, n columns, and what is added to them. */
typedef struct {
    sn_rows_f32 C, plus;
    int64_t n;
} sn_sums;

/* The sums of a tile to `rows` of C from r on, and to 16 columns or what is left of them. */
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

/* m rows from r on and nv vectors of columns. */
SN_INLINE void sn_one_by_four(const sn_sums *to, sn_tiled A, int64_t r, int64_t m, int64_t high, const uint16_t *panel,
                              int64_t blocks, const int nv, const int parts) {
    const int64_t apart = parts == 1 ? A.row : SN_DEPTH_BF16;
    const int64_t block = parts == 1 ? A.block : parts * high * SN_DEPTH_BF16;
    const int direct = !to->plus.base && m == high && sn_in_a_row(to->C, r, m);
#define SN_EACH(what)                                                                                                 \
    do {                                                                                                              \
        what(0);                                                                                                      \
        if (nv > 1) what(1);                                                                                          \
        if (nv > 2) what(2);                                                                                          \
        if (nv > 3) what(3);                                                                                          \
    } while (0)
#define SN_BEGIN_ONE(v) SN_TILE_ZERO(v)
#define SN_END_ONE(v)                                                                                                 \
    do {                                                                                                              \
        if (direct && (v) * 16 + 16 <= to->n) {                                                                       \
            SN_TILE_STORE(v, sn_row_f32(to->C, r) + (v) * 16, to->C.stride * (int64_t)sizeof(float));                 \
        } else {                                                                                                      \
            float sums[16][16] __attribute__((aligned(64)));                                                          \
            SN_TILE_STORE(v, sums, 64);                                                                               \
            sn_put_tile(to, (const float(*)[16])sums, r, m, (v) * 16);                                                \
        }                                                                                                             \
    } while (0)
#define SN_ROWS(part) SN_TILE_LOAD(4, a + (part) * high * SN_DEPTH_BF16, 2 * apart)
#define SN_TIMES(v)                                                                                                   \
    do {                                                                                                              \
        SN_TILE_LOAD(7, b + (v) * SN_TILE_SIZE, 2 * SN_DEPTH_BF16);                                                   \
        SN_TILE_MULTIPLY(v, 4, 7);                                                                                    \
    } while (0)
#define SN_TIMES_PART(part)                                                                                           \
    do {                                                                                                              \
        const uint16_t *b = panel + (k * parts + (part)) * nv * SN_TILE_SIZE;                                         \
        SN_EACH(SN_TIMES);                                                                                            \
    } while (0)
    SN_EACH(SN_BEGIN_ONE);
    for (int64_t k = 0; k < blocks; ++k) {
        const uint16_t *a = A.base + k * block;
        SN_ROWS(0);
        if (parts > 2) SN_TIMES_PART(2);
        if (parts > 1) {
            SN_TIMES_PART(1);
            SN_ROWS(1);
            if (parts > 2) SN_TIMES_PART(1);
            SN_TIMES_PART(0);
            if (parts > 2) {
                SN_ROWS(2);
                SN_TIMES_PART(0);
            }
            SN_ROWS(0);
        }
        SN_TIMES_PART(0);
    }
    SN_EACH(SN_END_ONE);
#undef SN_EACH
#undef SN_BEGIN_ONE
#undef SN_END_ONE
#undef SN_ROWS
#undef SN_TIMES
#undef SN_TIMES_PART
}

/* The same for each number of parts. */
#define SN_BLOCK(parts)                                                                                               \
    static __attribute__((noinline)) void sn_block##parts(const sn_sums *to, sn_tiled A, int64_t r, int64_t m,        \
                                                          int64_t high, const uint16_t *panel, int64_t blocks,        \
                                                          int64_t nv) {                                               \
        switch (nv) {                                                                                                 \
            case 1: sn_one_by_four(to, A, r, m, high, panel, blocks, 1, parts); return;                               \
            case 2: sn_one_by_four(to, A, r, m, high, panel, blocks, 2, parts); return;                               \
            case 3: sn_one_by_four(to, A, r, m, high, panel, blocks, 3, parts); return;                               \
            case 4: sn_one_by_four(to, A, r, m, high, panel, blocks, 4, parts); return;                               \
        }                                                                                                             \
    }
SN_BLOCK(1)
SN_BLOCK(2)
SN_BLOCK(3)
#undef SN_BLOCK

void sn_tiles_block(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, const uint16_t *panel, int64_t blocks,
                    int64_t n, int64_t nv, int64_t parts) {
    const int64_t high = sn_tiled_high(m), near = parts == 1 ? blocks : SN_NEAR_BLOCKS / parts;
    for (int64_t r = 0; r < m; r += high, A.base += A.high) {
        const int64_t some = m - r < high ? m - r : high;
        sn_tiled rows = A;
        for (int64_t k = 0; k < blocks; k += near, rows.base += near * rows.block) {
            const sn_sums to = {C, k == 0 ? plus : C, n};
            const int64_t left = blocks - k < near ? blocks - k : near;
            const uint16_t *from = panel + k * parts * nv * SN_TILE_SIZE;
            if (parts == 1) sn_block1(&to, rows, r, some, high, from, left, nv);
            else if (parts == 2) sn_block2(&to, rows, r, some, high, from, left, nv);
            else sn_block3(&to, rows, r, some, high, from, left, nv);
        }
    }
}
_Static_assert(sn_lanes_f32 == 16, "a tile holds 16 sums in a row");
#endif
#endif
