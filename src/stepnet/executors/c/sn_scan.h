/* What is the same in every scan: the members that its arguments begin with, which sequences and rows a share has, and
 * how shares are dealt out. It stands on sn_parallel.h; generated code defines `arguments` and `run_share`, in that
 * order. What is called once a step or less is a function of its own, compiled once as sn_parallel.h is: in place it
 * was most of what there is to compile of a small step. */
#ifndef SN_SCAN_H
#define SN_SCAN_H

#ifndef SN_INLINE
#define SN_INLINE static inline __attribute__((always_inline, unused))
#endif

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

typedef struct {
    SN_SCAN;
} sn_scan;

/* A state: members of the arguments. */
#define SN_STATE(type, name) const type *name##_boot; type *name##_final

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
    const void *given, int64_t index, int64_t slot, int64_t member, int64_t members, sn_barrier *barrier
typedef void (*sn_share)(SN_SHARE);

/* What run_share begins with: its arguments, the sequences `of` its share, how many there are and how many of those
 * reach the step at hand, and its workspace, of which SN_TAKE takes lines of the cache. */
#define SN_BEGIN                                                                              \
    const arguments *a = (const arguments *)given;                                            \
    const sn_sequences of = {a->start, a->length, a->order + index, a->shares, a->stride,     \
                             (a->sequences - index + a->shares - 1) / a->shares};             \
    const int64_t count = of.count;                                                           \
    int64_t active = count, sense = 0;                                                        \
    char *space = a->space + slot * a->space_bytes
#define SN_TAKE(type, n) (type *)sn_take(&space, (n) * (int64_t)sizeof(type))
#define SN_MEET if (members > 1) sn_meet(barrier, &sense, members)

/* How many of `active` sequences reach step t. */
SN_INLINE int64_t sn_reach(const sn_sequences *of, int64_t t, int64_t active) {
    while (active > 0 && of->length[sn_number(of, active - 1)] <= t) --active;
    return active;
}

/* Whether one of them ends with step t. */
SN_INLINE int sn_ends(const sn_sequences *of, int64_t t, int64_t active) {
    return of->length[sn_number(of, active - 1)] <= t + 1;
}

/* Whether the rows of the next step are to be brought to the cache while this one is computed: steps are too far apart,
 * in too many tables, for the machine to foresee. `bytes`: of tables, for each row. Where those of all steps are few, a
 * cache has them anyway; where those of one step are many, they would be gone again by then. */
enum { SN_FAR = 1 << 22, SN_BROUGHT = 1 << 18 }; /* bytes: of all steps of a share, and of one step (measured) */
SN_INLINE int sn_is_far(const sn_sequences *of, int64_t steps, int64_t active, int64_t bytes) {
    return steps * of->count * bytes > SN_FAR && active * bytes <= SN_BROUGHT;
}

/* A row of a table, which may be none, brought to the cache. */
SN_INLINE void sn_bring(const void *table, int64_t row, int64_t bytes) {
    for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch((const char *)((uintptr_t)table + row * bytes + j), 0, 2);
}
SN_INLINE void sn_bring_to_write(void *table, int64_t row, int64_t bytes) {
    for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch((const char *)((uintptr_t)table + row * bytes + j), 1, 2);
}

SN_THREADS char *sn_take(char **space, int64_t bytes);
/* States begin as they are given; those of sequences without steps end so. Without `last` nobody asks for that. */
SN_THREADS void sn_boot(const sn_sequences *of, int64_t member, int64_t members, void *state, const void *boot,
                        void *last, int64_t bytes);
/* States of the sequences that end with step t are their last ones: the first `own` bytes of each. */
SN_THREADS void sn_end(const sn_sequences *of, int64_t t, int64_t active, int64_t member, int64_t members,
                       const void *state, void *last, int64_t bytes, int64_t own);
/* The rows of step t, and how many. */
SN_THREADS int64_t sn_step(const sn_sequences *of, int64_t t, int64_t active, int64_t *row);
/* The rows of steps t0 to t1, and how many; if it is asked for, where each stands among the steps' rows. */
SN_THREADS int64_t sn_chunk(const sn_sequences *of, int64_t t0, int64_t t1, int64_t active, int64_t *row,
                            int64_t *place);
/* Rows that this thread is to read, or to write, when its turn comes: brought to its cache while it waits. */
SN_THREADS void sn_ahead(const void *table, const int64_t *row, int64_t rows, int64_t bytes);
SN_THREADS void sn_ahead_to_write(void *table, const int64_t *row, int64_t rows, int64_t bytes);
/* The first of the lines at the end of a memory that are alike, bit by bit. */
SN_THREADS int64_t sn_alike(const void *memory, int64_t lines, int64_t bytes);
/* Makes matrices ready, which may have changed since the last call, by all threads or by one; then does `share` for
 * every share, by a thread each, or by all threads. */
SN_THREADS void sn_run(const sn_pool *pool, const void *arguments, sn_share share, sn_work pack, int64_t matrices,
                       int by_all);
#define SN_RUN(name, pack, matrices, by_all) \
    void name(const sn_pool *pool, const void *a) { sn_run(pool, a, run_share, pack, matrices, by_all); }

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
/* So are those of rows that went abreast. */
#define SN_ADD_SIDES(part, side, n, lanes)                                     \
    for (int64_t j = 0; j < (n); ++j)                                          \
        for (int64_t l = 0; l < (lanes); ++l) {                                \
            (part)[j] += (side)[j * (lanes) + l];                              \
            (side)[j * (lanes) + l] = 0;                                       \
        }

/* Of the rows of a member, the first so many go abreast, `lanes` at a time; fewer than `least` that are left do not. */
SN_INLINE int64_t sn_abreast(int64_t active, int64_t member, int64_t members, int64_t lanes, int64_t least) {
    const int64_t own = (active - member + members - 1) / members, whole = own / lanes * lanes;
    return own - whole < least ? whole : own;
}

/* A row of a table; notes an index that names none. */
SN_INLINE int64_t sn_lookup(int64_t at, int64_t rows, int64_t *wrong) {
    if (at >= 0 && at < rows) return at;
    *wrong = 1;
    return 0;
}

#ifndef SN_LINKED
char *sn_take(char **space, int64_t bytes) {
    char *taken = *space;
    *space += (bytes + 63) / 64 * 64;
    return taken;
}

void sn_boot(const sn_sequences *of, int64_t member, int64_t members, void *state, const void *boot, void *last,
             int64_t bytes) {
    for (int64_t i = member; i < of->count; i += members) {
        const int64_t b = sn_number(of, i);
        memcpy((char *)state + i * bytes, (const char *)boot + b * bytes, (size_t)bytes);
        if (last && of->length[b] == 0) memcpy((char *)last + b * bytes, (char *)state + i * bytes, (size_t)bytes);
    }
}

void sn_end(const sn_sequences *of, int64_t t, int64_t active, int64_t member, int64_t members, const void *state,
            void *last, int64_t bytes, int64_t own) {
    for (int64_t i = active; i-- > 0;) {
        const int64_t b = sn_number(of, i);
        if (of->length[b] > t + 1) break;
        if (i % members == member)
            memcpy((char *)last + b * bytes, (const char *)state + i * bytes, (size_t)own);
    }
}

int64_t sn_step(const sn_sequences *of, int64_t t, int64_t active, int64_t *row) {
    active = sn_reach(of, t, active);
    for (int64_t i = 0; i < active; ++i) row[i] = of->start[sn_number(of, i)] + t * of->stride;
    return active;
}

int64_t sn_chunk(const sn_sequences *of, int64_t t0, int64_t t1, int64_t active, int64_t *row, int64_t *place) {
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

void sn_ahead(const void *table, const int64_t *row, int64_t rows, int64_t bytes) {
    for (int64_t r = 0; r < rows; ++r) sn_bring(table, row[r], bytes);
}

void sn_ahead_to_write(void *table, const int64_t *row, int64_t rows, int64_t bytes) {
    for (int64_t r = 0; r < rows; ++r) sn_bring_to_write(table, row[r], bytes);
}

int64_t sn_alike(const void *memory, int64_t lines, int64_t bytes) {
    int64_t first = lines - 1;
    const char *at = (const char *)memory + first * bytes;
    for (; first > 0 && memcmp(at - bytes, at, (size_t)bytes) == 0; at -= bytes) --first;
    return first;
}

typedef struct {
    const void *arguments;
    sn_share share;
    sn_barrier barrier;
} sn_everyone;

static void sn_each_alone(void *data, int64_t slot, int64_t slots) {
    const sn_everyone *all = (const sn_everyone *)data;
    const int64_t shares = ((const sn_scan *)all->arguments)->shares;
    for (int64_t index = slot; index < shares; index += slots) all->share(all->arguments, index, slot, 0, 1, 0);
}

static void sn_all_at_one(void *data, int64_t index, int64_t count) {
    sn_everyone *all = (sn_everyone *)data;
    all->share(all->arguments, 0, 0, index, count, &all->barrier);
}

void sn_run(const sn_pool *pool, const void *arguments, sn_share share, sn_work pack, int64_t matrices, int by_all) {
    const sn_scan *a = (const sn_scan *)arguments;
    sn_everyone all = {arguments, share, {0, 0, 0}};
    if (by_all) sn_parallel(pool, matrices, pack, (void *)arguments);
    else for (int64_t i = 0; i < matrices; ++i) pack((void *)arguments, i, matrices);
    if (a->together) sn_together(pool, sn_all_at_one, &all);
    else sn_parallel(pool, a->slots, sn_each_alone, &all);
}
#endif
#endif
