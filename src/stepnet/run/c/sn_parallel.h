/* Shares of work on the threads of the OpenMP runtime that torch already runs.
 *
 * The entry function of generated code takes the address of that runtime's GOMP_parallel (NULL where there is none)
 * and the number of threads. `sn_parallel` then calls share(i, data) once for each i in 0 .. shares-1. Shares are handed
 * out by a counter, so the work is done in full whatever number of threads the runtime grants: fewer when the call
 * comes from inside another parallel region, one when there is no runtime.
 */
#ifndef SN_PARALLEL_H
#define SN_PARALLEL_H

#include <stdint.h>

typedef void (*sn_team)(void (*run)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel */
typedef void (*sn_share)(int64_t share, void *data);

typedef struct {
    sn_share share;
    void *data;
    int64_t shares, next;
} sn_work;

static void sn_take_shares(void *p) {
    sn_work *work = (sn_work *)p;
    int64_t i;
    while ((i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->shares) work->share(i, work->data);
}

static __attribute__((unused)) void sn_parallel(sn_team team, int64_t threads, int64_t shares, sn_share share,
                                                void *data) {
    sn_work work = {share, data, shares, 0};
    if (threads > shares) threads = shares;
    if (team && threads > 1)
        team(sn_take_shares, &work, (unsigned)threads, 0);
    else
        sn_take_shares(&work);
}

/* A barrier for threads that split the units of one step. Waits by spinning, and yields after a while: with more
 * threads than free cores the one waited for may not be running. Only for a team whose size is known: call
 * sn_barrier_wait from every one of `count` running threads, each with its own `sense`, 0 at first. */
typedef struct {
    int64_t count, waiting, sense;
} sn_barrier;

#include <sched.h>

static inline __attribute__((always_inline, unused)) void sn_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static __attribute__((unused)) void sn_barrier_wait(sn_barrier *barrier, int64_t *sense) {
    int64_t mine = *sense = !*sense;
    if (__atomic_add_fetch(&barrier->waiting, 1, __ATOMIC_ACQ_REL) == barrier->count) {
        __atomic_store_n(&barrier->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->sense, mine, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&barrier->sense, __ATOMIC_ACQUIRE) != mine; ++spins) {
        if (spins < 2000)
            sn_pause();
        else
            sched_yield();
    }
}

#endif
