"""Shares on threads: each done once, whoever calls, from wherever, before and after a fork."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
import pytest
import torch

from forks import Fork
from stepnet.executors.c import build as c_build
from stepnet.executors.c import threads as c_threads
from threads import at_once

pytestmark = pytest.mark.skipif(
    c_build.available() is not None, reason=f"no C compiler: {c_build.available()}"
)

SOURCE = """
typedef struct { int64_t *counts; int64_t spins; const sn_pool *inner; } work;
static void one(void *data, int64_t i, int64_t shares) {
    work *w = data;
    volatile int64_t x = 0;
    for (int64_t k = 0; k < w->spins; ++k) x += k;
    w->counts[i] += 1 + 0 * shares;
}
void count(const sn_pool *pool, int64_t shares, int64_t *counts, int64_t spins) {
    work w = {counts, spins, 0};
    sn_parallel(pool, shares, one, &w);
}
static void outer(void *data, int64_t i, int64_t shares) {
    work *w = data;
    work inside = {w->counts + 8 * i, 100, 0};
    (void)shares;
    sn_parallel(w->inner, 8, one, &inside);
}
void nested(const sn_pool *pool, int64_t *counts) {
    work w = {counts, 0, pool};
    sn_parallel(pool, 4, outer, &w);
}
typedef struct { int64_t *values; int64_t steps, *size; sn_barrier barrier; } relay;
static void member(void *data, int64_t i, int64_t count) {
    relay *r = data;
    int64_t sense = 0;
    if (i == 0) *r->size = count;
    r->values[i] = i;
    sn_meet(&r->barrier, &sense, count);
    for (int64_t t = 0; t < r->steps; ++t) {  /* each reads its neighbour's last value */
        int64_t next = r->values[(t % 2) * 64 + (i + 1) % count] + 1;
        r->values[((t + 1) % 2) * 64 + i] = next;
        sn_meet(&r->barrier, &sense, count);
    }
}
void pass_round(const sn_pool *pool, int64_t *values, int64_t steps, int64_t *size) {
    relay r = {values, steps, size, {0, 0, 0}};
    sn_together(pool, member, &r);
}
"""

KINDS = ["openmp", "own"]


@pytest.fixture(scope="module")
def library() -> c_build.Library:
    return c_build.build(c_build.preamble() + SOURCE)


def _pool(kind: str, threads: int) -> c_threads.Pool:
    pool = c_threads.pool(threads)
    if kind == "openmp":
        if not pool.parallel:
            pytest.skip("torch has no runtime with GOMP_parallel here")
        return pool
    return c_threads.Pool(None, None, threads)


def _call(library: c_build.Library, name: str, pool: c_threads.Pool, *arguments: int | np.ndarray) -> None:
    passed = [
        ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments
    ]
    library.handle[name](ctypes.byref(pool), *passed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [0, 1, 2, 5, 200])
@pytest.mark.parametrize("shares", [0, 1, 2, 7, 64])
def test_each_share_is_done_once(library, shares, threads, kind):
    counts = np.zeros(shares + 1, np.int64)
    for _ in range(5):
        _call(library, "count", _pool(kind, threads), shares, counts, 50)
    assert counts.tolist() == [5] * shares + [0]


@pytest.mark.parametrize("kind", KINDS)
def test_from_inside_another_parallel_region(library, kind):
    counts = np.zeros(32, np.int64)
    _call(library, "nested", _pool(kind, 2), counts)
    assert counts.tolist() == [1] * 32


@pytest.mark.parametrize("kind", KINDS)
def test_from_four_python_threads_at_once(library, kind):
    tables = [np.zeros(16, np.int64) for _ in range(4)]
    pool = _pool(kind, 2)

    def work(k: int) -> None:
        for _ in range(200):
            _call(library, "count", pool, 16, tables[k], 20)

    at_once(work)
    assert [counts.tolist() for counts in tables] == [[200] * 16] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_barrier_keeps_steps_apart_even_with_more_threads_than_cores(library, threads, kind):
    values, size, steps = np.zeros(128, np.int64), np.zeros(1, np.int64), 101
    _call(library, "pass_round", _pool(kind, threads), values, steps, size)
    count = int(size[0])
    assert 1 <= count <= threads
    got = values[(steps % 2) * 64 :][:count]
    assert got.tolist() == [(i + steps) % count + steps for i in range(count)]


def test_the_runtime_is_the_one_torch_uses():
    pool = c_threads.pool()
    assert pool.threads == torch.get_num_threads()
    if sys.platform == "linux":
        assert pool.parallel
        assert pool.team_size


def _shares(library: c_build.Library) -> bool:
    counts = np.zeros(16, np.int64)
    _call(library, "count", c_threads.pool(2), 16, counts, 2000)
    return counts.tolist() == [1] * 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_a_fork(library):
    torch.set_num_threads(2)
    torch.ones(1 << 20).exp_()  # torch's workers exist
    assert _shares(library)
    children = [Fork(_shares, library) for _ in range(4)]
    assert _shares(library)
    assert all(child.result() for child in children)
    assert _shares(library)
