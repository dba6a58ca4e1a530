"""Products over few rows, made in the call that runs the scan before them: what gradients of weights are. Of
torch's own the call takes longer than the product."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stepnet.data.as_imported import data_ptr
from stepnet.executors.layout import Layout
from stepnet.ir.plan import LoopPlan, Region

from .build import build

MOST = 256  # rows, which are added up one after the other
WORK = 1 << 17  # multiplications, for more of which torch's are faster (measured)
_LANES = 16

_TEXT = """
#include <stdint.h>
#include <string.h>

struct product {
    float *restrict sums;
    const float *a, *b, *boot; /* boot: what follows the last row of each sequence in b */
    int64_t k, n;
};

struct served {
    void (*run)(const void *pool, const void *arguments);
    const void *pool, *arguments;
    int64_t sequences, stride;
    const int64_t *start, *length;
    int64_t count;
    struct product products[];
};

/* Run a scan; then sums[k, n] = the sum of a[row, k] b[row, n] over rows; with a boot, b's next row. */
void sn_served(const struct served *s) {
    s->run(s->pool, s->arguments);
    for (const struct product *p = s->products, *end = p + s->count; p < end; ++p) {
        memset(p->sums, 0, (size_t)(p->k * p->n) * sizeof(float));
        for (int64_t q = 0; q < s->sequences; ++q) {
            int64_t row = s->start[q];
            for (int64_t left = s->length[q]; left > 0; --left, row += s->stride) {
                const float *a = p->a + row * p->k, *b = p->b + row * p->n;
                if (p->boot) b = left > 1 ? b + s->stride * p->n : p->boot + q * p->n;
                for (int64_t i = 0; i < p->k; ++i)
                    for (int64_t j = 0; j < p->n; ++j) p->sums[i * p->n + j] += a[i] * b[j];
            }
        }
    }
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
            a, b, out = (kinds[name] for name in (*node.inputs, node.output))
            if len(a.shape) == len(b.shape) == 1 and {a.dtype, b.dtype, out.dtype} == {"float32"}:
                found.append(Few(node.output, *node.inputs, *a.shape, *b.shape))
    return found


def most_rows(products: list[Few]) -> int:
    """Of how many rows all of these are made sooner here."""
    work = sum(each.k * -(-each.n // _LANES) * _LANES for each in products)
    return min(MOST, WORK // max(work, 1))


def served(
    run: int, pool: int, arguments: int, layout: Layout, products: Sequence[tuple[Few, int, int, int, int]]
) -> None:
    """Run the function of a scan on its arguments, and make products: each with the addresses of its sums, of
    its rows, and of what b has after the last row of each sequence, if its rows are to be the next ones."""
    numbers = array("q", (run, pool, arguments, layout.sequences, layout.stride))
    numbers.extend((data_ptr(layout.starts), data_ptr(layout.lengths), len(products)))
    for of, *places in products:
        numbers.extend((*places, of.k, of.n))
    library()(numbers.buffer_info()[0])


@functools.cache
def library() -> Callable[[int], None]:
    """The function in C.

    Raises:
        BuildError: it cannot be built.
    """
    return build(_TEXT).function("sn_served", ctypes.c_void_p)
