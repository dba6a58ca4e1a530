/* Picks, running totals and orders along a dimension of a row: [outer, n, inner], contiguous.
 *
 * A type template: define SN_T (the type of the elements), SN_LEAST (its least), SN_TOTAL (the type of
 * running totals) and SN_P(name) (its suffix) first; all are undefined at the end. A NaN counts as larger than all numbers, as torch has it. An index that names nothing sets *wrong, and
 * is read as 0.
 */
#ifndef SN_PICKS_H
#define SN_PICKS_H
SN_INLINE int64_t sn_place(int64_t at, int64_t n, int64_t *wrong) {
    if (at >= 0 && at < n) return at;
    *wrong = 1;
    return 0;
}
#define SN_PICK static inline __attribute__((unused))
#define SN_STACKED 512 /* items of a row on the stack; where they are more, the caller has room for them */
#endif

/* y[a, b, ..] = x[.., index[a, b, ..] along dim, ..]. sizes: those of the index, then that of x along dim; strides:
 * those of x. */
SN_PICK void SN_P(sn_gather)(SN_T *y, const SN_T *x, const int64_t *index, const int64_t *sizes, int64_t rank,
                             int64_t dim, const int64_t *strides, int64_t *wrong) {
    int64_t at[16] = {0}, size = 1, base = 0;
    for (int64_t d = 0; d < rank; ++d) size *= sizes[d];
    const int64_t n = sizes[rank], step = strides[dim], last = rank - 1;
    const int64_t line = rank > 0 ? sizes[last] : 1, next = rank > 0 && last != dim ? strides[last] : 0;
    for (int64_t e = 0; e < size; e += line) {
        int64_t other = line < 8 || next != 1 || n <= 0 || index[e] != index[e + line - 1], apart[8] = {0};
        for (int64_t j = 0; !other && j + 8 <= line; j += 8)
            for (int64_t lane = 0; lane < 8; ++lane) apart[lane] |= index[e + j + lane] ^ index[e];
        for (int64_t lane = 0; lane < 8; ++lane) other |= apart[lane];
        for (int64_t j = line / 8 * 8; !other && j < line; ++j) other |= index[e + j] ^ index[e];
        if (!other) /* one place for all of the line: so rows of a table are picked */
            memcpy(y + e, x + base + sn_place(index[e], n, wrong) * step, line * sizeof(SN_T));
        else for (int64_t j = 0; j < line; ++j)
            y[e + j] = n > 0 ? x[base + j * next + sn_place(index[e + j], n, wrong) * step] : (SN_T)(*wrong = 1, 0);
        for (int64_t d = last; d-- > 0;) {
            if (d != dim) base += strides[d];
            if (++at[d] < sizes[d]) break;
            if (d != dim) base -= strides[d] * sizes[d];
            at[d] = 0;
        }
    }
}

/* What is left where `source` meets `there`: the new one, their sum, the larger, the smaller, their product. */
SN_PICK SN_T SN_P(sn_met)(SN_T there, SN_T source, int64_t how) {
    switch (how) {
    case 1: return (SN_T)(there + source);
    case 2: return source > there || source != source ? source : there;
    case 3: return source < there || source != source ? source : there;
    case 4: return (SN_T)(there * source);
    default: return source;
    }
}

/* y = x, of `whole` elements; then source[a, b, ..] meets y[.., index[a, b, ..] along dim, ..], in their order. */
SN_PICK void SN_P(sn_scatter)(SN_T *y, const SN_T *x, const int64_t *index, const SN_T *source, int64_t whole,
                              const int64_t *sizes, int64_t rank, int64_t dim, const int64_t *strides,
                              int64_t how, int64_t *wrong) {
    int64_t at[16] = {0}, size = 1, base = 0;
    memcpy(y, x, whole * sizeof(SN_T));
    for (int64_t d = 0; d < rank; ++d) size *= sizes[d];
    const int64_t n = sizes[rank], step = strides[dim], last = rank - 1;
    const int64_t line = rank > 0 ? sizes[last] : 1, next = rank > 0 && last != dim ? strides[last] : 0;
    for (int64_t e = 0; e < size; e += line) {
        for (int64_t j = 0; j < line; ++j) {
            const int64_t place = sn_place(index[e + j], n, wrong);
            if (n <= 0) continue;
            SN_T *to = y + base + j * next + place * step;
            *to = SN_P(sn_met)(*to, source[e + j], how);
        }
        for (int64_t d = last; d-- > 0;) {
            if (d != dim) base += strides[d];
            if (++at[d] < sizes[d]) break;
            if (d != dim) base -= strides[d] * sizes[d];
            at[d] = 0;
        }
    }
}

SN_PICK void SN_P(sn_cumsum)(SN_T *y, const SN_T *x, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            SN_TOTAL total = 0;
            for (int64_t j = 0, e = o * n * inner + i; j < n; ++j, e += inner) y[e] = (SN_T)(total += x[e]);
        }
}
SN_PICK void SN_P(sn_cumprod)(SN_T *y, const SN_T *x, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            SN_TOTAL total = 1;
            for (int64_t j = 0, e = o * n * inner + i; j < n; ++j, e += inner) y[e] = (SN_T)(total *= x[e]);
        }
}
/* The last of equals, and from a NaN on the last NaN. */
SN_PICK void SN_P(sn_cumarg)(int64_t *y, const SN_T *x, int64_t outer, int64_t n, int64_t inner, int64_t most) {
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            int64_t best = 0;
            SN_T held = n > 0 ? x[o * n * inner + i] : 0;
            for (int64_t j = 0, e = o * n * inner + i; j < n; ++j, e += inner) {
                const SN_T v = x[e];
                if (v != v || (held == held && (most ? v >= held : v <= held))) held = v, best = j;
                y[e] = best;
            }
        }
}

/* ---- orders ------------------------------------------------------------------------------------------------------
 * Equals come out as torch's do: its kernels are std::sort, std::stable_sort, std::partial_sort and
 * std::nth_element of libstdc++, whose steps these follow. */
typedef struct {
    SN_T value;
    int64_t at;
} SN_P(sn_item);

#define SN_ITEM SN_P(sn_item)
SN_INLINE int SN_P(sn_before)(SN_ITEM a, SN_ITEM b, int64_t down) {
    const SN_T x = a.value, y = b.value;
    return down ? ((x != x) & (y == y)) | (x > y) : ((x == x) & (y != y)) | (x < y);
}
#define SN_LESS(a, b) SN_P(sn_before)(a, b, down)
#define SN_SWAP(a, b) do { SN_ITEM held_ = a; a = b; b = held_; } while (0)

/* Insertion: equals keep their order. */
SN_PICK void SN_P(sn_insert)(SN_ITEM *q, int64_t first, int64_t last, int64_t down) {
    for (int64_t i = first + 1; i < last; ++i) {
        const SN_ITEM v = q[i];
        int64_t j = i;
        for (; j > first && SN_LESS(v, q[j - 1]); --j) q[j] = q[j - 1];
        q[j] = v;
    }
}
/* The first before which v does not come is on the way: no check of the end. */
SN_PICK void SN_P(sn_insert_rest)(SN_ITEM *q, int64_t first, int64_t last, int64_t down) {
    for (int64_t i = first; i < last; ++i) {
        const SN_ITEM v = q[i];
        int64_t j = i;
        for (; j > 0 && SN_LESS(v, q[j - 1]); --j) q[j] = q[j - 1];
        q[j] = v;
    }
}
SN_PICK void SN_P(sn_sift)(SN_ITEM *q, int64_t hole, int64_t n, SN_ITEM v, int64_t down) {
    const int64_t top = hole;
    int64_t child = hole;
    while (child < (n - 1) / 2) {
        child = 2 * (child + 1);
        if (SN_LESS(q[child], q[child - 1])) --child;
        q[hole] = q[child];
        hole = child;
    }
    if (n % 2 == 0 && child == (n - 2) / 2) {
        child = 2 * (child + 1);
        q[hole] = q[child - 1];
        hole = child - 1;
    }
    for (int64_t parent = (hole - 1) / 2; hole > top && SN_LESS(q[parent], v); parent = (hole - 1) / 2) {
        q[hole] = q[parent];
        hole = parent;
    }
    q[hole] = v;
}
SN_PICK void SN_P(sn_heap_select)(SN_ITEM *q, int64_t middle, int64_t last, int64_t down) {
    for (int64_t parent = (middle - 2) / 2; middle >= 2 && parent >= 0; --parent)
        SN_P(sn_sift)(q, parent, middle, q[parent], down);
    for (int64_t i = middle; i < last; ++i)
        if (SN_LESS(q[i], q[0])) {
            const SN_ITEM v = q[i];
            q[i] = q[0];
            SN_P(sn_sift)(q, 0, middle, v, down);
        }
}
SN_PICK void SN_P(sn_partial_sort)(SN_ITEM *q, int64_t middle, int64_t last, int64_t down) {
    SN_P(sn_heap_select)(q, middle, last, down);
    for (int64_t n = middle; n > 1; --n) {
        const SN_ITEM v = q[n - 1];
        q[n - 1] = q[0];
        SN_P(sn_sift)(q, 0, n - 1, v, down);
    }
}
/* The median of three goes first; what comes before it, then the rest. */
SN_PICK int64_t SN_P(sn_partition)(SN_ITEM *q, int64_t first, int64_t last, int64_t down) {
    SN_ITEM *r = q + first, *a = r + 1, *b = r + (last - first) / 2, *c = q + last - 1;
    if (SN_LESS(*a, *b)) {
        if (SN_LESS(*b, *c)) SN_SWAP(*r, *b);
        else if (SN_LESS(*a, *c)) SN_SWAP(*r, *c);
        else SN_SWAP(*r, *a);
    } else if (SN_LESS(*a, *c)) SN_SWAP(*r, *a);
    else if (SN_LESS(*b, *c)) SN_SWAP(*r, *c);
    else SN_SWAP(*r, *b);
    int64_t i = first + 1, j = last;
    for (;;) {
        while (SN_LESS(q[i], *r)) ++i;
        --j;
        while (SN_LESS(*r, q[j])) --j;
        if (i >= j) return i;
        SN_SWAP(q[i], q[j]);
        ++i;
    }
}
SN_INLINE int64_t SN_P(sn_depth)(int64_t n) {
    int64_t depth = 0;
    while (n >>= 1) depth += 2;
    return depth;
}
SN_PICK void SN_P(sn_sort_loop)(SN_ITEM *q, int64_t first, int64_t last, int64_t depth, int64_t down) {
    while (last - first > 16) {
        if (depth-- == 0) {
            SN_P(sn_partial_sort)(q + first, last - first, last - first, down);
            return;
        }
        const int64_t cut = SN_P(sn_partition)(q, first, last, down);
        SN_P(sn_sort_loop)(q, cut, last, depth, down);
        last = cut;
    }
}
SN_PICK void SN_P(sn_sort)(SN_ITEM *q, int64_t n, int64_t down) {
    SN_P(sn_sort_loop)(q, 0, n, SN_P(sn_depth)(n), down);
    SN_P(sn_insert)(q, 0, n < 16 ? n : 16, down);
    SN_P(sn_insert_rest)(q, 16, n, down);
}
SN_PICK void SN_P(sn_nth)(SN_ITEM *q, int64_t nth, int64_t n, int64_t down) {
    int64_t first = 0, last = n, depth = SN_P(sn_depth)(n);
    while (last - first > 3) {
        if (depth-- == 0) {
            SN_P(sn_heap_select)(q + first, nth + 1 - first, last - first, down);
            SN_SWAP(q[first], q[nth]);
            return;
        }
        const int64_t cut = SN_P(sn_partition)(q, first, last, down);
        if (cut <= nth) first = cut;
        else last = cut;
    }
    SN_P(sn_insert)(q, first, last, down);
}
/* Merges: equals keep their order. */
SN_PICK void SN_P(sn_stable)(SN_ITEM *q, SN_ITEM *spare, int64_t n, int64_t down) {
    for (int64_t at = 0; at < n; at += 16) SN_P(sn_insert)(q, at, at + 16 < n ? at + 16 : n, down);
    for (int64_t width = 16; width < n; width *= 2) {
        for (int64_t at = 0; at < n; at += 2 * width) {
            const int64_t middle = at + width < n ? at + width : n, end = at + 2 * width < n ? at + 2 * width : n;
            int64_t a = at, b = middle;
            for (int64_t to = at; to < end; ++to)
                spare[to] = b >= end || (a < middle && !SN_LESS(q[b], q[a])) ? q[a++] : q[b++];
        }
        memcpy(q, spare, n * sizeof *q);
    }
}

SN_PICK void SN_P(sn_argsort)(int64_t *y, const SN_T *x, int64_t outer, int64_t n, int64_t inner, int64_t down,
                              int64_t stable, void *spare) {
    SN_ITEM small[2 * SN_STACKED], *q = n > SN_STACKED ? spare : small;
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            const int64_t e = o * n * inner + i;
            for (int64_t j = 0; j < n; ++j) q[j] = (SN_ITEM){x[e + j * inner], j};
            if (stable) SN_P(sn_stable)(q, q + n, n, down);
            else SN_P(sn_sort)(q, n, down);
            for (int64_t j = 0; j < n; ++j) y[e + j * inner] = q[j].at;
        }
}
/* The first k of n, if no two of them, nor the one behind them, are equal, so that all ways to order find the same.
 * Of the best in each lane the k + 1st is a bound that more than k reach: what does not is passed by. */
enum { SN_P(sn_most_first) = 16, SN_P(sn_pick_lanes) = 32 };
SN_INLINE int SN_P(sn_first)(int64_t *y, const SN_T *x, int64_t n, int64_t k, const int down) {
    SN_ITEM first[SN_P(sn_most_first) + 1];
    enum { L = SN_P(sn_pick_lanes) };
    int64_t held = 0, next = 0;
    SN_T least = 0, top[L];
    const int bound = n >= 4 * L;
    if (bound) {
        memcpy(top, x, sizeof top);
        for (int64_t at = L; at + L <= n; at += L)
            _Pragma("omp simd") for (int64_t j = 0; j < L; ++j)
                top[j] = (down ? x[at + j] > top[j] : x[at + j] < top[j]) ? x[at + j] : top[j];
        for (int64_t i = 1; i < L; ++i) {
            const SN_T v = top[i];
            int64_t j = i < k + 1 ? i : k + 1;
            for (; j > 0 && (down ? v > top[j - 1] : v < top[j - 1]); --j) top[j] = top[j - 1];
            top[j] = v;
        }
        least = top[k];
    }
    for (; next < n; next += L) {
        const int64_t end = next + L < n ? next + L : n;
        const int bounded = bound || held > k;
        if (bounded && end == next + L) {
            int some = 0; /* left to the compiler: as OpenMP has it, gcc adds lanes up one by one */
            for (int64_t j = 0; j < L; ++j)
                some |= down ? !(x[next + j] < least) : !(x[next + j] > least);
            if (!some) continue;
        }
        for (int64_t at = next; at < end; ++at) {
            if (bounded && (down ? x[at] < least : x[at] > least)) continue;
            const SN_ITEM v = {x[at], at};
            if (v.value != v.value) return 0;
            if (held > k && !SN_LESS(v, first[k])) continue;
            int64_t j = held > k ? k : held++;
            for (; j > 0 && SN_LESS(v, first[j - 1]); --j) first[j] = first[j - 1];
            first[j] = v;
        }
        if (held > k) least = first[k].value;
    }
    for (int64_t j = 1; j < held; ++j)
        if (first[j].value == first[j - 1].value) return 0;
    for (int64_t j = 0; j < k; ++j) y[j] = first[j].at;
    return 1;
}
/* The first k of a few, by counting: as many as come before one, so far behind is its place. Counted are all of up to
 * 32; of more, those that reach the k + 1st of the best in each lane, as more than k do. Equal ones, NaNs and more than
 * 32 that reach it are left to the others. NaNs are in no lane's best, and reach any bound. */
enum { SN_P(sn_pick_few) = 1024, SN_P(sn_counted) = 32 };
/* How many of L, 16 or 32, are larger than each. */
SN_PICK void SN_P(sn_places)(uint32_t *place, const SN_T *x, int64_t L) {
#define SN_COUNT(n)                                                                            \
    {                                                                                          \
        uint32_t larger[n] = {0};                                                              \
        for (int32_t j = 0; j < n; ++j)                                                        \
            _Pragma("omp simd") for (int32_t i = 0; i < n; ++i) larger[i] += x[j] > x[i];      \
        memcpy(place, larger, sizeof larger);                                                  \
    }
    if (L == 16) SN_COUNT(16) else SN_COUNT(32)
#undef SN_COUNT
}
/* Of m, behind which up to 32 lie the least there are. */
SN_PICK int SN_P(sn_first_counted)(int64_t *y, const SN_T *x, const uint32_t *at, int64_t m, int64_t k) {
    enum { L = 32 };
    uint32_t place[L] __attribute__((aligned(64))) = {0}, met = 0;
    int64_t order[L];
    const int64_t whole = m <= L / 2 ? L / 2 : L;
    SN_P(sn_places)(place, x, whole);
    for (int32_t i = whole; i < L; ++i) place[i] = L - 1;
    /* k powers of two have the sum of the first k only where each is there once: no two are equal */
    for (int32_t i = 0; i < L; ++i) met += place[i] < k ? (1u << 24) + (1u << place[i]) : 0;
    if (met != ((uint32_t)k << 24) + (1u << k) - 1) return 0;
    for (int64_t i = 0; i < m; ++i) order[place[i]] = at[i];
    for (int64_t r = 0; r < k; ++r) y[r] = order[r];
    return 1;
}
/* Which of 64 are not below the bound, as bits: NaNs are among them. */
SN_INLINE uint64_t SN_P(sn_reaching)(const SN_T *from, SN_T least) {
#if defined(__AVX512F__)
    if (sizeof(SN_T) == 4 && (SN_T)0.5 != 0) { /* which compilers do not make one comparison of */
        typedef float floats __attribute__((vector_size(64)));
        const floats bound = (floats){0} + (float)least;
        floats x[4];
        memcpy(x, from, sizeof x);
#define SN_REACH(b) ((uint64_t)(uint16_t)__builtin_ia32_cmpps512_mask(x[b], bound, 5, -1, 4) << 16 * b) /* not less */
        return SN_REACH(0) | SN_REACH(1) | SN_REACH(2) | SN_REACH(3);
#undef SN_REACH
    }
#endif
    uint32_t low = 0, high = 0;
    for (int32_t j = 0; j < 32; ++j) low |= from[j] < least ? 0 : 1u << j;
    for (int32_t j = 0; j < 32; ++j) high |= from[j + 32] < least ? 0 : 1u << j;
    return low | (uint64_t)high << 32;
}
SN_PICK int SN_P(sn_first_of_few)(int64_t *y, const SN_T *x, int64_t n, int64_t k, int64_t down) {
    enum { L = SN_P(sn_counted) };
    SN_T in[SN_P(sn_pick_few)] __attribute__((aligned(64))), top[L] __attribute__((aligned(64)));
    SN_T best[L] __attribute__((aligned(64)));
    uint32_t place[L] __attribute__((aligned(64))), at[L] __attribute__((aligned(64))), some = 0, is = 0;
    const int64_t whole = (n + 63) / 64 * 64, lanes = k <= 6 ? L / 2 : L;
    const int64_t in_place = down ? whole - 64 : 0; /* so many are read where they are */
    _Pragma("omp simd") for (int32_t j = 0; j < 64; ++j) in[whole - 64 + j] = SN_LEAST;
    if (down) memcpy(in + in_place, x + in_place, (n - in_place) * sizeof *x);
    else _Pragma("omp simd") for (int64_t j = 0; j < n; ++j) in[j] = (SN_T)0.5 != 0 ? -x[j] : (SN_T)(-1 - x[j]);
    _Pragma("omp simd") for (int32_t j = 0; j < L; ++j) top[j] = best[j] = SN_LEAST, at[j] = j;
    for (int64_t b = 0; b < whole; b += L) {
        const SN_T *from = b < in_place ? x + b : in + b;
        for (int32_t j = 0; j < L; ++j) {
            const SN_T v = from[j];
            top[j] = v > top[j] ? v : top[j];
        }
    }
    if (n <= L) {
        int odd = 0;
        for (int32_t j = 0; j < L; ++j) odd |= in[j] != in[j];
        return odd ? 0 : SN_P(sn_first_counted)(y, in, at, n, k);
    }
    _Pragma("omp simd") for (int32_t j = 0; j < L / 2; ++j)
        top[j] = lanes < L && top[j + L / 2] > top[j] ? top[j + L / 2] : top[j];
    SN_P(sn_places)(place, top, lanes);
    if (lanes < L) _Pragma("omp simd") for (int32_t j = 0; j < L / 2; ++j) place[j + L / 2] = L;
    for (int32_t j = 0; j < L; ++j) some |= place[j] <= k ? 1u << place[j] : 0;
    const uint32_t last = 31 - __builtin_clz(some);
    for (int32_t j = 0; j < L; ++j) is |= place[j] == last ? 1u << j : 0;
    const SN_T least = top[__builtin_ctz(is)];
    int64_t m = 0;
    for (int64_t b = 0; b < whole; b += 64) {
        const SN_T *from = b < in_place ? x + b : in + b;
        for (uint64_t reach = SN_P(sn_reaching)(from, least); reach; reach &= reach - 1, ++m) {
            const SN_T v = from[__builtin_ctzll(reach)];
            if (m == L || v != v) return 0;
            at[m] = (uint32_t)(b + __builtin_ctzll(reach));
            best[m] = v;
        }
    }
    return SN_P(sn_first_counted)(y, best, at, m, k);
}
SN_INLINE int SN_P(sn_first_of)(int64_t *y, const SN_T *x, int64_t n, int64_t k, const int down) {
    return n <= SN_P(sn_pick_few) ? SN_P(sn_first_of_few)(y, x, n, k, down) : SN_P(sn_first)(y, x, n, k, down);
}
SN_PICK void SN_P(sn_topk)(int64_t *y, const SN_T *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                           int64_t down, int64_t sorted, void *spare) {
    SN_ITEM small[SN_STACKED], *q = n > SN_STACKED ? spare : small;
    const int quick = inner == 1 && k <= SN_P(sn_most_first) && (2 * k < n || n <= SN_P(sn_counted)) && (sorted || k * 64 <= n);
    for (int64_t o = 0; k > 0 && o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            const int64_t e = o * n * inner + i, to = o * k * inner + i;
            if (quick && (down ? SN_P(sn_first_of)(y + to, x + e, n, k, 1) : SN_P(sn_first_of)(y + to, x + e, n, k, 0)))
                continue;
            for (int64_t j = 0; j < n; ++j) q[j] = (SN_ITEM){x[e + j * inner], j};
            if (k * 64 <= n) SN_P(sn_partial_sort)(q, k, n, down);
            else {
                SN_P(sn_nth)(q, k - 1, n, down);
                if (sorted) SN_P(sn_sort)(q, k - 1, down);
            }
            for (int64_t j = 0; j < k; ++j) y[to + j * inner] = q[j].at;
        }
}
#undef SN_LESS
#undef SN_SWAP
#undef SN_LEAST
#undef SN_ITEM
#undef SN_T
#undef SN_TOTAL
#undef SN_P
