/* Tile instructions of AMX on any CPU of x86: the trap that is before each of them (tile_traps.h) is answered here.
 *
 * Linked with a program, or preloaded, code that was compiled for AMX runs as it is, instruction by instruction; all
 * others the CPU does itself. Written from Intel's manual, and stricter: what the manual calls a fault ends the
 * program with a message, and so does what no code of ours should do. Each thread has its own tiles, as it has there.
 *
 *     EMULATED_TILES_COUNT=1    at the end of the program, prints how many products ran
 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

typedef struct {
    int configured;
    uint16_t bytes[8]; /* of a row */
    uint8_t rows[8];
    int written[8]; /* since the configuration, which makes them zeros */
    uint8_t data[8][16][64];
} tiles;
static __thread tiles mine;
static int64_t products, configurations, releases;

static void fail(const char *what) {
    fprintf(stderr, "tile emulator: %s\n", what);
    _exit(97);
}
#define NEED(condition)                                                                                               \
    do {                                                                                                              \
        if (!(condition)) fail(#condition);                                                                           \
    } while (0)

static void configure(const uint8_t *from) {
    const uint8_t palette = from[0], start_row = from[1];
    NEED((uintptr_t)from % 64 == 0); /* the CPU takes any; a line of the cache is what ours is */
    NEED(palette == 1);
    NEED(start_row == 0);
    for (int i = 2; i < 16; ++i) NEED(from[i] == 0);
    for (int i = 32; i < 48; ++i) NEED(from[i] == 0); /* tiles 8 to 15 */
    for (int i = 56; i < 64; ++i) NEED(from[i] == 0);
    NEED(!mine.configured);
    memset(&mine, 0, sizeof mine);
    for (int t = 0; t < 8; ++t) {
        memcpy(&mine.bytes[t], from + 16 + 2 * t, 2);
        mine.rows[t] = from[48 + t];
        NEED(mine.bytes[t] <= 64 && mine.rows[t] <= 16);
        NEED((mine.bytes[t] == 0) == (mine.rows[t] == 0));
    }
    mine.configured = 1;
    __atomic_add_fetch(&configurations, 1, __ATOMIC_RELAXED);
}

static void need_tile(int t) {
    NEED(mine.configured);
    NEED(t < 8);
    NEED(mine.rows[t] > 0);
}

/* Denormals in and out are zeros. */
static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x; }
static float widened(const uint8_t *at) {
    uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return flushed(x);
}

static void multiply(int to, int a, int b) {
    need_tile(to), need_tile(a), need_tile(b);
    NEED(to != a && to != b && a != b);
    NEED(mine.rows[to] == mine.rows[a] && mine.bytes[to] == mine.bytes[b]);
    NEED(mine.bytes[a] % 4 == 0 && mine.bytes[b] % 4 == 0 && mine.bytes[a] / 4 == mine.rows[b]);
    NEED(mine.written[to] && mine.written[a] && mine.written[b]);
    for (int m = 0; m < mine.rows[to]; ++m) {
        float sums[32] = {0};
        for (int k = 0; k < mine.bytes[a] / 4; ++k)
            for (int n = 0; n < mine.bytes[to] / 4; ++n)
                for (int half = 0; half < 2; ++half)
                    sums[2 * n + half] = flushed(fmaf(widened(&mine.data[a][m][4 * k + 2 * half]),
                                                      widened(&mine.data[b][k][4 * n + 2 * half]), sums[2 * n + half]));
        for (int n = 0; n < mine.bytes[to] / 4; ++n) {
            float sum;
            memcpy(&sum, &mine.data[to][m][4 * n], 4);
            sum = flushed(flushed(sum) + flushed(sums[2 * n] + sums[2 * n + 1]));
            memcpy(&mine.data[to][m][4 * n], &sum, 4);
        }
    }
    __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
}

static const int general[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* An operand in memory: its address, and the stride in `index` where there is one; moves `at` behind it. */
static uint8_t *address(const uint8_t **at, int modrm, int x, int b, const greg_t *regs, int64_t *index) {
    const int mode = modrm >> 6, low = modrm & 7;
    int64_t where = 0;
    *index = 0;
    if (low == 4) {
        const int sib = *(*at)++, scaled = (sib >> 3 & 7) | x << 3, base = (sib & 7) | b << 3;
        if (scaled != 4) *index = (int64_t)((uint64_t)regs[general[scaled]] << (sib >> 6));
        NEED(!((sib & 7) == 5 && mode == 0)); /* no base: not of this code */
        where = regs[general[base]];
    } else {
        NEED(!(low == 5 && mode == 0)); /* relative to the instruction: not of this code */
        where = regs[general[low | b << 3]];
    }
    if (mode == 1) where += (int8_t)*(*at)++;
    if (mode == 2) {
        int32_t far;
        memcpy(&far, *at, 4);
        where += far, *at += 4;
    }
    return (uint8_t *)where;
}

static void trap(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)regs[REG_RIP];
    (void)number, (void)info;
    if (at[0] != 0x0f || at[1] != 0x0b) fail("an instruction that the CPU does not know, with no trap before it");
    at += 2;
    if (at[0] != 0xc4 || (at[1] & 31) != 2 || (at[2] & 0x84) != 0) fail("an instruction that is not one of tiles");
    const int r = !(at[1] >> 7 & 1), x = !(at[1] >> 6 & 1), b = !(at[1] >> 5 & 1);
    const int third = ~(at[2] >> 3) & 15, prefix = at[2] & 3, code = at[3], modrm = at[4];
    const int tile = (modrm >> 3 & 7) | r << 3, registers = modrm >> 6 == 3;
    int64_t stride;
    at += 5;
    if (code == 0x49 && registers && prefix == 0 && modrm == 0xc0) { /* tilerelease */
        NEED(third == 0);
        NEED(mine.configured);
        memset(&mine, 0, sizeof mine);
        __atomic_add_fetch(&releases, 1, __ATOMIC_RELAXED);
    } else if (code == 0x49 && !registers && prefix == 0 && tile == 0) { /* ldtilecfg */
        NEED(third == 0);
        const uint8_t *from = address(&at, modrm, x, b, regs, &stride);
        configure(from + stride);
    } else if (code == 0x49 && registers && prefix == 3) { /* tilezero */
        NEED(third == 0 && (modrm & 7) == 0);
        need_tile(tile);
        memset(mine.data[tile], 0, sizeof mine.data[tile]);
        mine.written[tile] = 1;
    } else if (code == 0x4b && !registers && (prefix == 3 || prefix == 1)) { /* tileloadd, tileloaddt1 */
        NEED(third == 0 && (modrm & 7) == 4);
        const uint8_t *from = address(&at, modrm, x, b, regs, &stride);
        need_tile(tile);
        memset(mine.data[tile], 0, sizeof mine.data[tile]);
        for (int i = 0; i < mine.rows[tile]; ++i) memcpy(mine.data[tile][i], from + i * stride, mine.bytes[tile]);
        mine.written[tile] = 1;
    } else if (code == 0x4b && !registers && prefix == 2) { /* tilestored */
        NEED(third == 0 && (modrm & 7) == 4);
        uint8_t *to = address(&at, modrm, x, b, regs, &stride);
        need_tile(tile);
        NEED(mine.written[tile]);
        NEED(stride >= mine.bytes[tile]); /* rows that do not overlap */
        for (int i = 0; i < mine.rows[tile]; ++i) memcpy(to + i * stride, mine.data[tile][i], mine.bytes[tile]);
    } else if (code == 0x5c && registers && prefix == 2) { /* tdpbf16ps */
        multiply(tile, (modrm & 7) | b << 3, third);
    } else {
        fail("an instruction of tiles that is not known here");
    }
    regs[REG_RIP] = (greg_t)at;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {0};
    action.sa_sigaction = trap;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, 0);
}

__attribute__((destructor)) static void end(void) {
    if (configurations != releases) fail("tiles are not released");
    if (getenv("EMULATED_TILES_COUNT")) fprintf(stderr, "%lld products of tiles\n", (long long)products);
}
