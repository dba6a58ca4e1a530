/* What is the same in every scan: the members that its arguments begin with, and how its shares are dealt out.
 * Generated code defines `arguments` and `run_share`, in that order. */
#ifndef SN_SCAN_H
#define SN_SCAN_H

/* Row of sequence b at step t: start[b] + t * stride. Threads deal the shares out, `slots` at a time; each has a
 * workspace of space_bytes. `chunk` steps are made ready at a time. together: 1 if all threads are on one share.
 * split: the numbers of bfloat16 that a float is split in for products (sn_split.h), 0 for none.
 * order: longest first. */
#define SN_SCAN                                 \
    int64_t sequences, shares, steps, stride;   \
    int64_t slots;                              \
    int64_t chunk;                              \
    int64_t together;                           \
    int64_t split;                              \
    const int64_t *start, *length, *order;      \
    char *space;                                \
    int64_t space_bytes

/* Where a member's columns of a product begin: whole panels. */
static inline __attribute__((unused)) int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}

/* A row of a table; notes an index that names none. */
static inline __attribute__((unused)) int64_t sn_lookup(int64_t at, int64_t rows, int64_t *wrong) {
    if (at >= 0 && at < rows) return at;
    *wrong = 1;
    return 0;
}

/* sn_deal(pool, a): run_share for every share, by a thread each, or by all threads. */
#define SN_DEAL                                                                                         \
    typedef struct {                                                                                    \
        const arguments *a;                                                                             \
        sn_barrier barrier;                                                                             \
    } team;                                                                                             \
    static void share(void *data, int64_t slot, int64_t slots) {                                        \
        const arguments *a = ((team *)data)->a;                                                         \
        for (int64_t index = slot; index < a->shares; index += slots) run_share(a, index, slot, 0, 1, 0); \
    }                                                                                                   \
    static void member_of(void *data, int64_t index, int64_t count) {                                   \
        run_share(((team *)data)->a, 0, 0, index, count, &((team *)data)->barrier);                     \
    }                                                                                                   \
    static void sn_deal(const sn_pool *pool, const arguments *a) {                                      \
        team everyone = {a, {0, 0}};                                                                    \
        if (a->together) sn_together(pool, member_of, &everyone);                                       \
        else sn_parallel(pool, a->slots, share, &everyone);                                             \
    }                                                                                                   \
    typedef int sn_dealt /* takes the semicolon */

#endif
