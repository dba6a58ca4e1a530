/* What is the same in every scan: the members that its arguments begin with, which sequences and rows a share has, and
 * how shares are dealt out. It stands on sn_math.h and sn_parallel.h; generated code defines `arguments` and
 * `run_share`, in that order. */
#ifndef SN_SCAN_H
#define SN_SCAN_H

/* Row of sequence b at step t: start[b] + t * stride. Threads deal the shares out, `slots` at a time; each has a
 * workspace of space_bytes. `chunk` steps are made ready at a time. together: how many threads are to be on one share,
 * if all are; else 0.
 * split: the numbers of bfloat16 that a float is split in for products (sn_split.h), 0 for none.
 * few: 1 if there are so few rows that matrices are read as they lie, where they can be.
 * order: as the shares have them, each its own from the longest on. */
#define SN_SCAN                                 \
    int64_t sequences, shares, steps, stride;   \
    int64_t slots;                              \
    int64_t chunk;                              \
    int64_t together;                           \
    int64_t split, few;                         \
    const int64_t *start, *length, *order;      \
    char *space;                                \
    int64_t space_bytes

/* A matrix that rows are multiplied by, and a state: members of the arguments. */
#define SN_MATRIX(type, name)                                             \
    const type *name;                                                     \
    int64_t name##_stride_k, name##_stride_n, name##_stride_h;            \
    type *name##_packed
#define SN_STATE(type, name) const type *name##_boot; type *name##_final

/* Whether a matrix is read as it lies, by sn_few_*, and is not packed. */
#define SN_LIES(name) (a->few && (a->name##_stride_k == 1 || a->name##_stride_n == 1))

/* The sequences of a share: every shares-th one of `order`. */
typedef struct {
    const int64_t *start, *length, *order;
    int64_t shares, stride, count;
} sn_sequences;

/* The number of the i-th sequence of a share. */
SN_INLINE int64_t sn_number(const sn_sequences *of, int64_t i) { return of->order[i * of->shares]; }

/* What run_share is given: all steps of a share run by one thread, or by `members` that split the rows of a step and
 * the columns of its products, and meet in between. */
#define SN_SHARE \
    const arguments *a, int64_t index, int64_t slot, int64_t member, int64_t members, sn_barrier *barrier

/* What run_share begins with: the sequences `of` its share, how many there are and how many of those reach the step at
 * hand, and its workspace, of which SN_TAKE takes lines of the cache. */
#define SN_BEGIN                                                                              \
    const sn_sequences of = {a->start, a->length, a->order + index, a->shares, a->stride,     \
                             (a->sequences - index + a->shares - 1) / a->shares};             \
    const int64_t count = of.count;                                                           \
    int64_t active = count, sense = 0;                                                        \
    char *space = a->space + slot * a->space_bytes
#define SN_TAKE(type, n) (type *)sn_take(&space, (n) * (int64_t)sizeof(type))
#define SN_MEET if (members > 1) sn_meet(barrier, &sense, members)

SN_INLINE char *sn_take(char **space, int64_t bytes) {
    char *taken = *space;
    *space += (bytes + 63) / 64 * 64;
    return taken;
}

/* States begin as they are given; those of sequences without steps end so. Without `last` nobody asks for that. */
SN_INLINE void sn_boot(const sn_sequences *of, int64_t member, int64_t members, void *state, const void *boot,
                       void *last, int64_t bytes) {
    for (int64_t i = member; i < of->count; i += members) {
        const int64_t b = sn_number(of, i);
        memcpy((char *)state + i * bytes, (const char *)boot + b * bytes, (size_t)bytes);
        if (last && of->length[b] == 0) memcpy((char *)last + b * bytes, (char *)state + i * bytes, (size_t)bytes);
    }
}

/* States of the sequences that end with step t are their last ones: the first `own` bytes of each. */
SN_INLINE void sn_end(const sn_sequences *of, int64_t t, int64_t active, int64_t member, int64_t members,
                      const void *state, void *last, int64_t bytes, int64_t own) {
    for (int64_t i = active; i-- > 0;) {
        const int64_t b = sn_number(of, i);
        if (of->length[b] > t + 1) break;
        if (i % members == member)
            memcpy((char *)last + b * bytes, (const char *)state + i * bytes, (size_t)own);
    }
}

/* How many of `active` sequences reach step t. */
SN_INLINE int64_t sn_reach(const sn_sequences *of, int64_t t, int64_t active) {
    while (active > 0 && of->length[sn_number(of, active - 1)] <= t) --active;
    return active;
}

/* The rows of step t, and how many. */
SN_INLINE int64_t sn_step(const sn_sequences *of, int64_t t, int64_t active, int64_t *row) {
    active = sn_reach(of, t, active);
    for (int64_t i = 0; i < active; ++i) row[i] = of->start[sn_number(of, i)] + t * of->stride;
    return active;
}

/* The rows of steps t0 to t1, and how many; if it is asked for, where each stands among the steps' rows. */
SN_INLINE int64_t sn_chunk(const sn_sequences *of, int64_t t0, int64_t t1, int64_t active, int64_t *row,
                           int64_t *place) {
    int64_t rows = 0;
    for (int64_t t = t0; t < t1; ++t) {
        active = sn_reach(of, t, active);
        for (int64_t i = 0; i < active; ++i) {
            if (place) place[rows] = (t - t0) * of->count + i;
            row[rows++] = of->start[sn_number(of, i)] + t * of->stride;
        }
    }
    return rows;
}

/* Where a member's columns of a product begin: whole panels. */
SN_INLINE int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}

/* A product of the columns from c0 to c1 of n, which are this member's. */
#define SN_COLUMNS(n, panel, ...)                                          \
    do {                                                                   \
        const int64_t c0 = first_column(n, member, members, panel);        \
        const int64_t c1 = first_column(n, member + 1, members, panel);    \
        if (c1 > c0) __VA_ARGS__;                                          \
    } while (0)

/* A product of this member's rows, from r0 to r1. */
#define SN_SOME_ROWS(...)                                                  \
    do {                                                                   \
        const int64_t r0 = rows * member / members;                        \
        const int64_t r1 = rows * (member + 1) / members;                  \
        if (r1 > r0) __VA_ARGS__;                                          \
    } while (0)

/* Short sums of short sums lose fewer digits: what the last steps gave is added up now and then. */
#define SN_ADD_UP(sum, part, n) \
    for (int64_t j = 0; j < (n); ++j) { (sum)[j] += (part)[j]; (part)[j] = 0; }

/* A row of a table; notes an index that names none. */
SN_INLINE int64_t sn_lookup(int64_t at, int64_t rows, int64_t *wrong) {
    if (at >= 0 && at < rows) return at;
    *wrong = 1;
    return 0;
}

/* Matrices are packed anew at every call: they may have changed. A few small ones by one thread. */
static __attribute__((unused)) void sn_pack_all(const sn_pool *pool, sn_work pack, const void *a, int64_t count,
                                                int by_all) {
    if (by_all) {
        sn_parallel(pool, count, pack, (void *)a);
        return;
    }
    for (int64_t i = 0; i < count; ++i) pack((void *)a, i, count);
}

/* name(pool, a): makes matrices ready, then does run_share for every share, by a thread each, or by all threads. */
#define SN_RUN(name, ready)                                                                             \
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
    void name(const sn_pool *pool, const arguments *a) {                                                \
        team everyone = {a, {0, 0, 0}};                                                                 \
        ready;                                                                                          \
        if (a->together) sn_together(pool, member_of, &everyone);                                       \
        else sn_parallel(pool, a->slots, share, &everyone);                                             \
    }

#endif
