/* Blocks of rows times panels by tiles: `sn_tiles_block`.
 *
 * A number is the sum of `parts` numbers of bfloat16 in A and in B: 1, 2 or 3. Of three, those six products are added
 * that say something a float can hold; of two, three. Small ones come first, and a sum begins at zero for each few blocks
 * (SN_NEAR_BLOCKS): so few additions round at the size of the whole that no chain of floats is more exact, not even one
 * of a few numbers among zeros.
 *
 * Sums are made in one of two ways, which add the same numbers in the same order:
 *
 *     wide       two by two tiles of sums at a time, of eight tiles in all: the fewest loads for each product
 *     narrow     one tile of sums, three in use (of one part two, and four). Where another thread is on the same core it
 *                takes registers that tiles would be renamed to: about ten are left (measured), so with eight in use each
 *                load and product waits for the one before the last
 *
 * Up to 16 rows are narrow (of one part by four vectors). Of more, which is faster depends on what else runs on the core, by
 * 1.3 each way and more, and changes within seconds: now and then one panel is timed each way (sn_ways).
 *
 *     A    [tiles of rows][blocks of 32 columns][parts][sn_tiled_high(m)][32]; or rows of one part as they lie
 *     B    [vectors of 16 columns][blocks of 32 rows][parts][16 pairs][16 columns]: what a tile of sums needs lies in a
 *          row; of one part as sn_pairs.h has it
 */
#ifndef SN_BLOCKS_H
#define SN_BLOCKS_H

/* A thread's tiles for m rows, 1 to SN_BLOCK_ROWS; SN_TILE_END() when they are done. */
SN_SHARED void sn_tiles_begin(int64_t m);
SN_SHARED void sn_tiles_end(void);
/* Rows as tiles take them: elements from one to the next, from a block of columns, and from the rows of a tile. */
typedef struct {
    const uint16_t *base;
    int64_t row, block, tile;
} sn_tiled;

SN_INLINE sn_tiled sn_tiled_of(const uint16_t *rows, int64_t m, int64_t blocks, int64_t parts) {
    const int64_t block = parts * sn_tiled_high(m) * SN_DEPTH_BF16;
    return (sn_tiled){rows, SN_DEPTH_BF16, block, blocks * block};
}
/* Columns as tiles take them: elements from one vector to the next, and from a block of rows. */
typedef struct {
    const uint16_t *base;
    int64_t vector, block;
} sn_paneled;
/* C[m, n] = A B, or plus (not where base is NULL) + A B, of `blocks` blocks. plus may be C. `here`: room for
 * SN_BLOCK_SUMS bytes. */
SN_SHARED void sn_tiles_block(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, sn_paneled B, int64_t blocks,
                              int64_t n, int64_t parts, float *here);
#ifndef SN_LINKED

enum { SN_NEAR_BLOCKS = 24 }; /* of all parts together: more are no faster, and round more often */

void sn_tiles_begin(int64_t m) {
    const uint8_t high = (uint8_t)sn_tiled_high(m);
    SN_TILE_BEGIN(((const uint8_t[8]){high, high, high, high, high, high, 16, 16}));
}
void sn_tiles_end(void) { SN_TILE_END(); }

/* Where sums go: rows of C, n columns, and what is added to them. */
typedef struct {
    sn_rows_f32 C, plus;
    int64_t n;
} sn_sums;

/* The sums of a tile, to `rows` of C from r on, and to 16 columns or what is left of them. */
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
#define SN_PUT_TILE(t, r, rows, column)                                                                               \
    do {                                                                                                              \
        if (!to.plus.base && (rows) == high && (column) + 16 <= to.n && sn_in_a_row(to.C, r, rows)) {                 \
            SN_TILE_STORE(t, sn_row_f32(to.C, r) + (column), to.C.stride * (int64_t)sizeof(float));                   \
        } else {                                                                                                      \
            float sums[16][16] __attribute__((aligned(64)));                                                          \
            SN_TILE_STORE(t, sums, 64);                                                                               \
            sn_put_tile(&to, (const float(*)[16])sums, r, rows, column);                                              \
        }                                                                                                             \
    } while (0)

/* The products of a block: ROWS(part) and COLUMNS(part) load, ADD() multiplies. */
#define SN_SMALL_PRODUCTS(ROWS, COLUMNS, ADD)                                                                         \
    do {                                                                                                              \
        ROWS(0);                                                                                                      \
        if (parts > 2) {                                                                                              \
            COLUMNS(2);                                                                                               \
            ADD();                                                                                                    \
        }                                                                                                             \
        COLUMNS(1);                                                                                                   \
        ADD();                                                                                                        \
        ROWS(1);                                                                                                      \
        if (parts > 2) ADD();                                                                                         \
        COLUMNS(0);                                                                                                   \
        ADD();                                                                                                        \
        if (parts > 2) {                                                                                              \
            ROWS(2);                                                                                                  \
            ADD();                                                                                                    \
        }                                                                                                             \
    } while (0)
#define SN_BLOCKS_OF(ROWS, COLUMNS, ADD)                                                                              \
    do {                                                                                                              \
        const uint16_t *a = A.base, *b = B.base;                                                                      \
        for (int64_t k = 0; parts > 1 && k < blocks; ++k, a += block, b += next)                                      \
            SN_SMALL_PRODUCTS(ROWS, COLUMNS, ADD);                                                                    \
        a = A.base, b = B.base;                                                                                       \
        for (int64_t k = 0; k < blocks; ++k, a += block, b += next) {                                                 \
            ROWS(0);                                                                                                  \
            COLUMNS(0);                                                                                               \
            ADD();                                                                                                    \
        }                                                                                                             \
    } while (0)
#define SN_TILE_OF_ROWS(t, part, tile) SN_TILE_LOAD(t, a + (part) * high * SN_DEPTH_BF16 + (tile), 2 * row)
#define SN_TILE_OF_PANEL(t, part, vector) SN_TILE_LOAD(t, b + (part) * SN_TILE_SIZE + (vector), 2 * SN_DEPTH_BF16)

/* Rows r .. r + m, of two tiles, and two vectors of columns from `column` on. */
SN_INLINE void sn_two_by_two(const sn_sums to, sn_tiled A, int64_t r, int64_t m, int64_t high, sn_paneled B,
                             int64_t blocks, int64_t column, const int parts) {
    const int64_t row = parts == 1 ? A.row : SN_DEPTH_BF16;
    const int64_t block = parts == 1 ? A.block : parts * high * SN_DEPTH_BF16;
    const int64_t next = parts == 1 ? B.block : parts * SN_TILE_SIZE, apart = parts == 1 ? SN_TILE_SIZE : B.vector;
    SN_TILE_ZERO(0);
    SN_TILE_ZERO(1);
    SN_TILE_ZERO(2);
    SN_TILE_ZERO(3);
#define SN_ROWS(part)                                                                                                 \
    do {                                                                                                              \
        SN_TILE_OF_ROWS(4, part, 0);                                                                                  \
        SN_TILE_OF_ROWS(5, part, A.tile);                                                                             \
    } while (0)
#define SN_COLUMNS_OF(part)                                                                                           \
    do {                                                                                                              \
        SN_TILE_OF_PANEL(6, part, 0);                                                                                 \
        SN_TILE_OF_PANEL(7, part, apart);                                                                             \
    } while (0)
#define SN_ADD()                                                                                                      \
    do {                                                                                                              \
        SN_TILE_MULTIPLY(0, 4, 6);                                                                                    \
        SN_TILE_MULTIPLY(2, 5, 6);                                                                                    \
        SN_TILE_MULTIPLY(1, 4, 7);                                                                                    \
        SN_TILE_MULTIPLY(3, 5, 7);                                                                                    \
    } while (0)
    SN_BLOCKS_OF(SN_ROWS, SN_COLUMNS_OF, SN_ADD);
#undef SN_ROWS
#undef SN_COLUMNS_OF
#undef SN_ADD
    SN_PUT_TILE(0, r, high, column);
    SN_PUT_TILE(1, r, high, column + 16);
    SN_PUT_TILE(2, r + high, m - high, column);
    SN_PUT_TILE(3, r + high, m - high, column + 16);
}

/* Rows r .. r + m, of `tiles` tiles, and `vectors` vectors of columns from `column` on: one by one, or of one part two by
 * one or one by four. */
SN_INLINE void sn_one_by_one(const sn_sums to, sn_tiled A, int64_t r, int64_t m, int64_t high, sn_paneled B,
                             int64_t blocks, int64_t column, const int tiles, const int vectors, const int parts) {
    const int64_t row = parts == 1 ? A.row : SN_DEPTH_BF16;
    const int64_t block = parts == 1 ? A.block : parts * high * SN_DEPTH_BF16;
    const int64_t next = parts == 1 ? B.block : parts * SN_TILE_SIZE, apart = parts == 1 ? SN_TILE_SIZE : B.vector;
    SN_TILE_ZERO(0);
    if (tiles > 1 || vectors > 1) SN_TILE_ZERO(1);
    if (vectors > 2) SN_TILE_ZERO(2);
    if (vectors > 2) SN_TILE_ZERO(3);
#define SN_ROWS(part) SN_TILE_OF_ROWS(4, part, 0)
#define SN_COLUMNS_OF(part) SN_TILE_OF_PANEL(6, part, 0)
#define SN_ADD()                                                                                                      \
    do {                                                                                                              \
        SN_TILE_MULTIPLY(0, 4, 6);                                                                                    \
        if (tiles > 1) SN_TILE_OF_ROWS(4, 0, A.tile);                                                                 \
        if (vectors > 1) SN_TILE_OF_PANEL(6, 0, apart);                                                               \
        if (tiles > 1 || vectors > 1) SN_TILE_MULTIPLY(1, 4, 6);                                                      \
        if (vectors > 2) SN_TILE_OF_PANEL(6, 0, 2 * apart);                                                           \
        if (vectors > 2) SN_TILE_MULTIPLY(2, 4, 6);                                                                   \
        if (vectors > 2) SN_TILE_OF_PANEL(6, 0, 3 * apart);                                                           \
        if (vectors > 2) SN_TILE_MULTIPLY(3, 4, 6);                                                                   \
    } while (0)
    SN_BLOCKS_OF(SN_ROWS, SN_COLUMNS_OF, SN_ADD);
#undef SN_ROWS
#undef SN_COLUMNS_OF
#undef SN_ADD
    const int64_t upper = tiles > 1 ? high : m;
    SN_PUT_TILE(0, r, upper, column);
    if (tiles > 1) SN_PUT_TILE(1, r + high, m - high, column);
    if (vectors > 1) SN_PUT_TILE(1, r, m, column + 16);
    if (vectors > 2) SN_PUT_TILE(2, r, m, column + 32);
    if (vectors > 2) SN_PUT_TILE(3, r, m, column + 48);
}
#undef SN_TILE_OF_ROWS
#undef SN_TILE_OF_PANEL
#undef SN_BLOCKS_OF
#undef SN_SMALL_PRODUCTS
#undef SN_PUT_TILE

/* All rows and columns, for each number of parts. */
#define SN_BLOCK(parts)                                                                                               \
    static __attribute__((noinline)) void sn_block##parts(const sn_sums to,  sn_tiled A, int64_t m,                   \
                                                          sn_paneled B, int64_t blocks, int narrow) {                 \
        const int64_t high = sn_tiled_high(m), n = to.n;                                                              \
        const int wide = !narrow && n > 16;                                                                           \
        for (int64_t c = 0, columns; c < n; c += columns, B.base += columns / 16 * B.vector) {                        \
            columns = parts == 1 && m <= high && n - c > 48 ? 64 : wide && n - c > 16 ? 32 : 16;                      \
            sn_tiled rows = A;                                                                                        \
            for (int64_t r = 0, some; r < m; r += some, rows.base += some / high * A.tile) {                          \
                some = m - r > high && (columns > 16 || parts == 1) ? 2 * high : high;                                \
                const int64_t left = m - r < some ? m - r : some;                                                     \
                if (some > high && columns > 16) {                                                                    \
                    sn_two_by_two(to, rows, r, left, high, B, blocks, c, parts);                                      \
                } else if (some > high) {                                                                             \
                    sn_one_by_one(to, rows, r, left, high, B, blocks, c, parts == 1 ? 2 : 1, 1, parts);               \
                } else if (columns > 32) {                                                                            \
                    sn_one_by_one(to, rows, r, left, high, B, blocks, c, 1, parts == 1 ? 4 : 1, parts);               \
                } else {                                                                                              \
                    sn_paneled of = B;                                                                                \
                    for (int64_t v = c; v < c + columns; v += 16, of.base += B.vector)                                \
                        sn_one_by_one(to, rows, r, left, high, of, blocks, v, 1, 1, parts);                           \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }
SN_BLOCK(1)
SN_BLOCK(2)
SN_BLOCK(3)
#undef SN_BLOCK

static void sn_panel_by_tiles(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, sn_paneled B,
                              int64_t blocks, int64_t n, int64_t parts, float *here, int narrow) {
    if (parts == 1) {
        sn_block1((sn_sums){C, plus, n}, A, m, B, blocks, narrow);
        return;
    }
    const sn_rows_f32 kept = {here, 32, 0};
    const int64_t some = SN_NEAR_BLOCKS / parts;
    for (int64_t c = 0; c < n; c += 32, B.base += 2 * B.vector)
        for (int64_t k = 0; k < blocks; k += some) {
            const int64_t left = blocks - k < some ? blocks - k : some;
            const sn_sums to = {k + some < blocks ? kept : sn_part_f32(C, 0, c), k ? kept : sn_part_f32(plus, 0, c),
                                n - c < 32 ? n - c : 32};
            const sn_paneled panel = {B.base + k * B.block, B.vector, B.block};
            const sn_tiled rows = {A.base + k * A.block, A.row, A.block, A.tile};
            if (parts == 2) sn_block2(to, rows, m, panel, left, narrow);
            else sn_block3(to, rows, m, panel, left, narrow);
        }
}

/* What a thread knows of both ways: of panels of one size one after the other, one is timed each way, one time in so many. */
enum { SN_NARROW_BLOCKS = 2 }; /* of so few, tiles of a panel are all near */
enum { SN_TIMED = SN_TILES == 1 ? 64 : 3, SN_SURE = 2 }; /* tests of the twin are to meet both */
static __thread struct {
    uint64_t panels, took;
    int64_t size;
    int narrower; /* by how many trials, up to SN_SURE */
} sn_ways;

void sn_tiles_block(sn_rows_f32 C, sn_rows_f32 plus, sn_tiled A, int64_t m, sn_paneled B, int64_t blocks,
                    int64_t n, int64_t parts, float *here) {
    if (m <= 16 || (parts > 1 && blocks <= SN_NARROW_BLOCKS)) {
        sn_panel_by_tiles(C, plus, A, m, B, blocks, n, parts, here, 1);
        return;
    }
    const uint64_t turn = sn_ways.panels++ % SN_TIMED;
    const int narrow = turn < 2 ? (int)turn : sn_ways.narrower > 0;
    if (turn < 3) { /* tiles that were in use are in use no more */
        SN_TILE_END();
        sn_tiles_begin(m);
    }
    const uint64_t began = turn < 2 ? SN_TILE_CLOCK() : 0;
    sn_panel_by_tiles(C, plus, A, m, B, blocks, n, parts, here, narrow);
    if (turn >= 2) return;
    const uint64_t took = SN_TILE_CLOCK() - began;
    const int64_t size = m * blocks * n * 4 + parts;
    if (turn == 1 && size == sn_ways.size) {
        sn_ways.narrower += took < sn_ways.took ? 1 : -1;
        if (sn_ways.narrower > SN_SURE) sn_ways.narrower = SN_SURE;
        if (sn_ways.narrower < -SN_SURE) sn_ways.narrower = -SN_SURE;
    }
    sn_ways.took = took, sn_ways.size = size;
}
_Static_assert(sn_lanes_f32 == 16, "a tile holds 16 sums in a row");
#endif
#endif
