"""What is made beside a scan of few rows: products over them, as gradients of weights are, and tables moved
by a step. Of torch's own the calls take longer than the work."""

from __future__ import annotations

import ctypes
import functools
import math
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from stepnet.data.unpatched_torch import data_ptr, empty
from stepnet.executors.layout import Layout
from stepnet.ir.plan import LoopPlan, Region

from .build import build
from .products.cpu import are_slow_in_torch, has_wide_vectors

MOST = 256  # rows, which are added up one after the other
# multiplications, for more of which others are faster (measured): torch's with AVX-512; torch's without, and
# those of `over_rows` in floats
WORK = 1 << 21, 1 << 22
_LANES = 16

_TEXT = """
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

struct move {
    char *to;
    const char *from, *boot;
    int64_t bytes;
};

/* So many columns in one register, or several: wherever floats lie. */
typedef float sixteen __attribute__((vector_size(64), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef float one __attribute__((vector_size(4), aligned(4), may_alias));

struct product {
    float *sums;
    const float *a, *b;
    int64_t k, n;
};

struct earlier {
    struct move table;
    int64_t sequences, stride;
    const int64_t *start, *length;
};

struct served {
    void (*run)(const void *pool, const void *arguments);
    const void *pool, *arguments;
    int64_t sequences, stride;
    const int64_t *start, *length;
    int64_t rows, moves, products;
};

/* The sums of TALL rows and of the columns of some registers, which stay there while rows go by one after the
   other. A vector wider than the machine's would be one in memory. */
#define EACH(COUNT, AT) UNROLL for (int AT = 0; AT < COUNT; ++AT)
#define BLOCK(TYPE, TALL, WIDE) {                                                    \\
    TYPE sums[TALL][WIDE], own[WIDE];                                                \\
    const float *a = p->a + i, *b = p->b + j;                                        \\
    float *to = p->sums + i * p->n + j;                                              \\
    EACH(TALL, t) EACH(WIDE, w) sums[t][w] = (TYPE){0};                              \\
    for (int64_t row = 0; row < rows; ++row, a += p->k, b += p->n) {                 \\
        EACH(WIDE, w) own[w] = ((const TYPE *)b)[w];                                 \\
        EACH(TALL, t) EACH(WIDE, w) sums[t][w] += a[t] * own[w];                     \\
    }                                                                                \\
    EACH(TALL, t) EACH(WIDE, w) ((TYPE *)(to + t * p->n))[w] = sums[t][w];           \\
}
#define COLUMNS(TYPE, TALL, WIDE)                                                    \\
    for (const int64_t wide = WIDE * sizeof(TYPE) / sizeof(float); j + wide <= p->n; j += wide) { \\
        int64_t i = 0;                                                               \\
        for (; i + TALL <= p->k; i += TALL) BLOCK(TYPE, TALL, WIDE)                  \\
        for (; i < p->k; ++i) BLOCK(TYPE, 1, WIDE)                                   \\
    }

static void product(const struct product *p, int64_t rows) {
    int64_t j = 0;
#if defined(__AVX512F__)
    COLUMNS(sixteen, 8, 1)
    COLUMNS(eight, 8, 1)
    COLUMNS(four, 8, 1)
#elif defined(__AVX__)
    COLUMNS(eight, 6, 2)
    COLUMNS(eight, 8, 1)
    COLUMNS(four, 8, 1)
#else
    COLUMNS(four, 6, 2)
    COLUMNS(four, 8, 1)
#endif
    COLUMNS(one, 8, 1)
}

/* A table of the rows one step earlier, with a boot where sequences begin. */
void sn_earlier(const struct earlier *e) {
    for (int64_t q = 0; q < e->sequences; ++q) {
        int64_t row = e->start[q];
        for (int64_t t = 0; t < e->length[q]; ++t, row += e->stride) {
            const char *before = t ? e->table.from + (row - e->stride) * e->table.bytes
                                   : e->table.boot + q * e->table.bytes;
            memcpy(e->table.to + row * e->table.bytes, before, (size_t)e->table.bytes);
        }
    }
}

/* Tables of the rows one step on, with a boot where sequences end; then a scan; then sums[k, n] = the sum of
   a[row, k] b[row, n] over rows. */
void sn_served(const struct served *s) {
    const struct move *moves = (const void *)(s + 1);
    const struct product *products = (const void *)(moves + s->moves);
    for (const struct move *m = moves; m < moves + s->moves; ++m)
        for (int64_t q = 0; q < s->sequences; ++q) {
            int64_t row = s->start[q];
            for (int64_t left = s->length[q]; left > 0; --left, row += s->stride) {
                const char *next = left > 1 ? m->from + (row + s->stride) * m->bytes : m->boot + q * m->bytes;
                memcpy(m->to + row * m->bytes, next, (size_t)m->bytes);
            }
        }
    s->run(s->pool, s->arguments);
    for (const struct product *p = products; p < products + s->products; ++p) product(p, s->rows);
}

/* A scan whose arguments are so many bytes after some addresses, which come last. Before it the rows of some
   tables are filled with a number that lies elsewhere, or some with zeros, and after it some are copied. Sums
   that have a part for each thread, one after the other where an argument says, begin as zeros, and are added
   up to where they belong. */
struct addressed {
    int64_t *arguments;
    const struct served *served;
    void (*run)(const void *pool, const void *arguments);
    const void *pool;
    int64_t rows, places, fills, zeros, sums, copies;
};

#define ADD_UP(TYPE) {                                                               \\
    const TYPE *part = (const void *)a->arguments[p[0]];                             \\
    TYPE *to = (void *)(at[p[1]] + p[2]);                                            \\
    for (int64_t i = 0; i < p[3]; ++i) to[i] = 0 + part[i];                          \\
    for (int64_t k = 1; k < p[4]; ++k)                                               \\
        for (int64_t i = 0; i < p[3]; ++i) to[i] += part[k * p[3] + i];              \\
}

void sn_addressed(const struct addressed *a) {
    const int64_t *p = (const void *)(a + 1);
    const int64_t *at = p + 3 * (a->places + a->copies) + 4 * a->fills + 2 * a->zeros + 6 * a->sums;
    for (int64_t n = a->places; n > 0; --n, p += 3)
        a->arguments[p[0]] = at[p[1]] + p[2];
    for (int64_t n = a->fills; n > 0; --n, p += 4) {
        char *to = (char *)at[p[0]];
        if (at[p[0]] == at[p[1]])
            continue;
        const size_t size = (size_t)p[2], all = size * (size_t)(p[3] * a->rows);
        memcpy(to, (const void *)at[p[1]], size);
        for (size_t done = size; done < all; done *= 2)
            memcpy(to + done, to, done < all - done ? done : all - done);
    }
    for (int64_t n = a->zeros; n > 0; --n, p += 2)
        memset((void *)at[p[0]], 0, (size_t)p[1]);
    const int64_t *sums = p;
    for (int64_t n = a->sums; n > 0; --n, p += 6)
        memset((void *)a->arguments[p[0]], 0, (size_t)(p[3] * p[4] * p[5]));
    if (a->served)
        sn_served(a->served);
    else
        a->run(a->pool, a->arguments);
    p = sums;
    for (int64_t n = a->sums; n > 0; --n, p += 6)
        if (p[5] == sizeof(float)) ADD_UP(float)
        else ADD_UP(double)
    for (int64_t n = a->copies; n > 0; --n, p += 3)
        memcpy((void *)at[p[0]], (const void *)at[p[1]], (size_t)p[2]);
}
"""


class Few(NamedTuple):
    """A product over rows: its value, and those of its rows."""

    made: str
    a: str
    b: str
    k: int
    n: int


def few(loop: LoopPlan, region: Region) -> list[Few]:
    """The products over rows that follow a scan, of tables that are there after it."""
    at, kinds = loop.regions.index(region), loop.body.values
    before = {name for other in loop.regions[: at + 1] for name in other.made} | {*loop.body.parameters}
    found: list[Few] = []
    for other in loop.regions[at + 1 :]:
        for node in other.nodes:
            if node.op != "matmul_tn" or node.attr("batch") or not before.issuperset(node.inputs):
                continue
            left, right = node.inputs
            a, b, out = kinds[left], kinds[right], kinds[node.output]
            flat = (a.kind, b.kind, len(a.shape), len(b.shape)) == ("row", "row", 1, 1)
            if flat and {a.dtype, b.dtype, out.dtype} == {"float32"}:
                found.append(Few(node.output, left, right, a.shape[0], b.shape[0]))
    return found


def most_rows(products: list[Few]) -> int:
    """Of how many rows all of these are made sooner here."""
    work = sum(each.k * -(-each.n // _LANES) * _LANES for each in products)
    slow = not has_wide_vectors() or are_slow_in_torch()
    return min(MOST, WORK[slow] // max(work, 1))


def served(
    run: int, pool: int, arguments: int, layout: Layout, moves: Sequence[tuple[int, int, int, int]],
    products: Sequence[tuple[int, int, int, int, int]],
) -> None:  # fmt: skip
    """Run the function of a scan on its arguments, between moves and products.

    Args:
        run, pool, arguments: their addresses.
        layout: where rows stand, in the order that the scan runs.
        moves: of tables whose rows are to be those of the next step: the address of the new table, of the old
            one, and of the rows that follow the last ones; and the bytes of a row.
        products: the addresses of the sums, and of both rows; and how many numbers these have.
    """
    numbers = array("q", (run, pool, arguments, *rows_of(layout), layout.rows, len(moves), len(products)))
    for places in (*moves, *products):
        numbers.extend(places)
    library()(numbers.buffer_info()[0])


def rows_of(layout: Layout) -> tuple[int, int, int, int]:
    """The members of `served` that say where rows stand."""
    return layout.sequences, layout.stride, data_ptr(layout.starts), data_ptr(layout.lengths)


def earlier(rows: Tensor, shape: Sequence[int], boot: Tensor, layout: Layout) -> Tensor:
    """The rows one step earlier; boot values where a sequence begins. Both are in one piece on the CPU, and
    of one type.

    >>> import torch
    >>> layout = Layout.dense(2, 2, True, False)
    >>> earlier(torch.arange(4), (4,), torch.tensor([8, 9]), layout).tolist()
    [8, 9, 0, 1]
    """
    table = empty(shape, dtype=rows.dtype, device="cpu")
    size = math.prod(shape[1:]) * rows.dtype.itemsize
    numbers = array("q", (data_ptr(table), data_ptr(rows), data_ptr(boot), size, *rows_of(layout)))
    _functions()[1](numbers.buffer_info()[0])
    return table


def library() -> Callable[[int], None]:
    """The function in C that serves a scan."""
    return _functions()[0]


def by_addresses() -> Callable[[int], None]:
    """The function in C that runs a scan on what lies at some addresses."""
    return _functions()[2]


@functools.cache
def _functions() -> tuple[Callable[[int], None], ...]:
    """Those in C.

    Raises:
        BuildError: they cannot be built.
    """
    built = build(_TEXT)
    names = "sn_served", "sn_earlier", "sn_addressed"
    return tuple(built.function(name, ctypes.c_void_p) for name in names)
