/* The tile instructions of AMX, or a plain C twin of them.
 *
 * SN_TILES is 1 for the instructions, 2 for the twin, which every machine can run. A tile holds up to 16 rows of 64 bytes.
 *
 *     SN_TILE_BEGIN(rows)              before the first of them: tile t has rows[t] rows, 1 to 16; SN_TILE_END() after the last
 *     SN_TILE_ZERO(t)                  t, a constant from 0 to 7, is all zeros
 *     SN_TILE_LOAD(t, base, bytes)     row i of t is the 64 bytes at base + i * bytes
 *     SN_TILE_STORE(t, base, bytes)    the way back
 *     SN_TILE_MULTIPLY(c, a, b)        c[i][j] += a[i][2k] b[k][2j] + a[i][2k+1] b[k][2j+1], summed over k = 0 .. 15:
 *                                      floats in c, bfloat16 in a and b
 *     SN_TILE_CLOCK()                  now, in units of its own
 */
#ifndef SN_TILES_H
#define SN_TILES_H

#if SN_TILES == 1
#include <immintrin.h>

/* Compilers do not know how much memory these instructions read and write: all of it, as far as they can tell. */
#define SN_TILE_SEEN(p) __asm__ volatile("" : : "r"(p) : "memory")
SN_INLINE void sn_tile_begin(const uint8_t rows[8]) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape __attribute__((aligned(64))) = {1, 0, {0}, {0}, {0}};
    for (int t = 0; t < 8; ++t) {
        shape.bytes[t] = 64;
        shape.rows[t] = rows[t];
    }
    SN_TILE_SEEN(&shape);
    _tile_loadconfig(&shape);
}
#define SN_TILE_BEGIN(rows) sn_tile_begin(rows)
#define SN_TILE_END() _tile_release()
#define SN_TILE_ZERO(t) _tile_zero(t)
#define SN_TILE_LOAD(t, base, bytes)                                                                                  \
    do {                                                                                                              \
        SN_TILE_SEEN(base);                                                                                           \
        _tile_loadd(t, base, bytes);                                                                                  \
    } while (0)
#define SN_TILE_STORE(t, base, bytes)                                                                                 \
    do {                                                                                                              \
        _tile_stored(t, base, bytes);                                                                                 \
        SN_TILE_SEEN(base);                                                                                           \
    } while (0)
#define SN_TILE_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)
#define SN_TILE_CLOCK() __builtin_ia32_rdtsc()
#else

typedef struct {
    int rows;
    union {
        float sums[16][16];
        uint16_t halves[16][32];
    };
} sn_tile_twin;

SN_INLINE void sn_tile_copy(char *to, const char *from, int rows, int64_t bytes_to, int64_t bytes_from) {
    for (int i = 0; i < rows; ++i) memcpy(to + i * bytes_to, from + i * bytes_from, 64);
}
/* Numbers too small to be normal count as zero, before and after each operation; multiply and add round once. */
SN_INLINE float sn_tile_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
SN_INLINE float sn_tile_number(uint16_t x) { return sn_tile_flushed(sn_load_bf16(x)); }
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O2"))) /* tests have little else optimised */
#endif
static __attribute__((noinline, unused)) void sn_tile_multiply(sn_tile_twin *c, const sn_tile_twin *a,
                                                               const sn_tile_twin *b) {
    for (int i = 0; i < c->rows; ++i) {
        float even[16] = {0}, odd[16] = {0};
        for (int k = 0; k < 16; ++k)
            for (int j = 0; j < 16; ++j) {
                const uint16_t *x = &a->halves[i][2 * k], *y = &b->halves[k][2 * j];
                even[j] = sn_tile_flushed(fmaf(sn_tile_number(x[0]), sn_tile_number(y[0]), even[j]));
                odd[j] = sn_tile_flushed(fmaf(sn_tile_number(x[1]), sn_tile_number(y[1]), odd[j]));
            }
        for (int j = 0; j < 16; ++j)
            c->sums[i][j] = sn_tile_flushed(sn_tile_flushed(c->sums[i][j]) + sn_tile_flushed(even[j] + odd[j]));
    }
}
/* The tiles of a thread, for each file that holds this. */
static __thread sn_tile_twin sn_twins[8] __attribute__((unused));
#define SN_TILE_BEGIN(of)                                                                                             \
    do {                                                                                                              \
        for (int t_ = 0; t_ < 8; ++t_) sn_twins[t_].rows = (of)[t_];                                                  \
    } while (0)
#define SN_TILE_END() (void)sn_twins
#define SN_TILE_ZERO(t) memset(sn_twins[t].sums, 0, sizeof sn_twins[t].sums)
#define SN_TILE_LOAD(t, base, bytes)                                                                                  \
    sn_tile_copy((char *)sn_twins[t].sums, (const char *)(base), sn_twins[t].rows, 64, bytes)
#define SN_TILE_STORE(t, base, bytes)                                                                                 \
    sn_tile_copy((char *)(base), (const char *)sn_twins[t].sums, sn_twins[t].rows, bytes, 64)
#define SN_TILE_MULTIPLY(c, a, b) sn_tile_multiply(&sn_twins[c], &sn_twins[a], &sn_twins[b])
#define SN_TILE_CLOCK() (uint64_t)0
#endif
#endif
