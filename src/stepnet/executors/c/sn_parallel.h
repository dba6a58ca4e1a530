/* Work shared out to threads, on the OpenMP runtime that torch already runs.
 *
 * Using torch's own pool matters: its idle workers spin, so a second pool would fight them for the cores. The runtime
 * comes as function pointers, so no OpenMP compiler is needed. Where there is none, or where it must not be used
 * (in a child after fork, libgomp waits for threads that are gone), threads are made for each call.
 *
 *     sn_parallel    calls share(data, i, shares) once for each i: for work that is independent
 *     sn_together    calls member(data, i, count) on `count` threads at once: they may wait for each other
 *     sn_barrier     lets those `count` threads meet, or take turns, from 0 on
 *
 * The number of threads granted may be lower than asked for, down to one inside another parallel region.
 */
#ifndef SN_PARALLEL_H
#define SN_PARALLEL_H

typedef struct {
    void (*parallel)(void (*run)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel or NULL */
    int (*team_size)(void);                                                              /* omp_get_num_threads */
    int64_t threads;                                                                     /* the most to use */
} sn_pool;

typedef void (*sn_work)(void *data, int64_t index, int64_t count);

/* Starts as zeros. Each member keeps a `sense`, 0 at first. What members wrote before it, all can read after it; what
 * was written in earlier turns, whoever has waited for its own. */
typedef struct {
    int64_t arrived, sense, turn;
} sn_barrier;

/* In place, or SN_BUILT_ONCE into object files that code with SN_LINKED is linked with: one of them is taken. */
#if defined(SN_LINKED)
#define SN_THREADS __attribute__((visibility("hidden")))
#elif defined(SN_BUILT_ONCE)
#define SN_THREADS __attribute__((visibility("hidden"), weak))
#else
#define SN_THREADS static __attribute__((unused))
#endif
SN_THREADS void sn_together(const sn_pool *pool, sn_work member, void *data);
SN_THREADS void sn_parallel(const sn_pool *pool, int64_t shares, sn_work share, void *data);
SN_THREADS void sn_meet(sn_barrier *barrier, int64_t *sense, int64_t count);
SN_THREADS void sn_await(sn_barrier *barrier, int64_t turn);
SN_THREADS void sn_pass(sn_barrier *barrier, int64_t turn);
#ifndef SN_LINKED
#include <pthread.h>
#include <sched.h>

typedef struct {
    sn_work member;
    void *data;
    int (*team_size)(void);
    int64_t next, count;
} sn_team;

static inline __attribute__((always_inline, unused)) void sn_wait_a_moment(int64_t spins) {
    if (spins > 300) {
        sched_yield(); /* more threads than cores: the one waited for may need this core */
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sn_enter_openmp(void *p) {
    sn_team *team = (sn_team *)p;
    team->member(team->data, __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED), team->team_size());
}

static void *sn_enter_thread(void *p) {
    sn_team *team = (sn_team *)p;
    int64_t count;
    for (int64_t spins = 0; (count = __atomic_load_n(&team->count, __ATOMIC_ACQUIRE)) == 0; ++spins)
        sn_wait_a_moment(spins);
    team->member(team->data, __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED), count);
    return 0;
}

void sn_together(const sn_pool *pool, sn_work member, void *data) {
    sn_team team = {member, data, pool->team_size, 0, 0};
    int64_t threads = pool->threads, made = 0;
    pthread_t others[63];
    if (threads <= 1) {
        member(data, 0, 1);
    } else if (pool->parallel) {
        pool->parallel(sn_enter_openmp, &team, (unsigned)threads, 0);
    } else {
        while (made < threads - 1 && made < 63 && pthread_create(&others[made], 0, sn_enter_thread, &team) == 0) ++made;
        __atomic_store_n(&team.count, made + 1, __ATOMIC_RELEASE);
        sn_enter_thread(&team);
        while (made > 0) pthread_join(others[--made], 0);
    }
}

typedef struct {
    sn_work share;
    void *data;
    int64_t shares, next;
} sn_queue;

static void sn_take_shares(void *p, int64_t index, int64_t count) {
    sn_queue *queue = (sn_queue *)p;
    int64_t i;
    (void)index, (void)count;
    while ((i = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED)) < queue->shares)
        queue->share(queue->data, i, queue->shares);
}

void sn_parallel(const sn_pool *pool, int64_t shares, sn_work share, void *data) {
    sn_queue queue = {share, data, shares, 0};
    sn_pool some = *pool;
    if (some.threads > shares) some.threads = shares;
    sn_together(&some, sn_take_shares, &queue);
}

void sn_meet(sn_barrier *barrier, int64_t *sense, int64_t count) {
    int64_t mine = *sense = !*sense;
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == count) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->sense, mine, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t spins = 0; __atomic_load_n(&barrier->sense, __ATOMIC_ACQUIRE) != mine; ++spins)
        sn_wait_a_moment(spins);
}

void sn_await(sn_barrier *barrier, int64_t turn) {
    for (int64_t spins = 0; __atomic_load_n(&barrier->turn, __ATOMIC_ACQUIRE) != turn; ++spins)
        sn_wait_a_moment(spins);
}

void sn_pass(sn_barrier *barrier, int64_t turn) { __atomic_store_n(&barrier->turn, turn + 1, __ATOMIC_RELEASE); }

#endif
#endif
