"""Functions that generated C has as they are."""

from __future__ import annotations

COLUMNS = """/* Where a member's columns of a product begin: whole panels. */
static inline int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}
"""

LOOKUP = """/* A row of a table; notes an index that names none. */
static inline int64_t sn_lookup(int64_t at, int64_t rows, int64_t *wrong) {
    if (at >= 0 && at < rows) return at;
    *wrong = 1;
    return 0;
}
"""

TEAM = """typedef struct {
    const arguments *a;
    sn_barrier barrier;
} team;

static void share(void *data, int64_t index, int64_t shares) {
    run_share(((team *)data)->a, index, shares, 0, 1, 0);
}

static void member_of(void *data, int64_t index, int64_t count) {
    run_share(((team *)data)->a, 0, 1, index, count, &((team *)data)->barrier);
}
"""
