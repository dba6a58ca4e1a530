/* Factors, solutions and exponentials of the small dense matrices of a row, `count` of them one after the other.
 *
 * A type template: define SN_REAL (float or double) and SN_(name) (its suffix) first; both are undefined at the
 * end. A matrix that has no inverse, or no Cholesky factor, sets *wrong to 2 where it is asked for.
 */
#ifndef SN_FACTORS_H
#define SN_FACTORS_H
#define SN_FACTOR static inline __attribute__((unused))
#define SN_SINGULAR 2
#endif

/* y [n + 1, n] = L and U of x [n, n] in one, then the row that each row was swapped with, from 1 on. */
SN_FACTOR void SN_(sn_lu)(SN_REAL *restrict y, const SN_REAL *restrict x, int64_t count, int64_t n, int64_t check,
                          int64_t *wrong) {
    for (; count-- > 0; x += n * n, y += (n + 1) * n) {
        memcpy(y, x, n * n * sizeof *y);
        for (int64_t k = 0; k < n; ++k) {
            int64_t best = k;
            for (int64_t i = k + 1; i < n; ++i)
                if (fabs(y[i * n + k]) > fabs(y[best * n + k])) best = i;
            y[n * n + k] = (SN_REAL)(best + 1);
            if (y[best * n + k] == 0) {
                if (check) *wrong = SN_SINGULAR;
                continue;
            }
            for (int64_t j = 0; best != k && j < n; ++j) {
                const SN_REAL held = y[k * n + j];
                y[k * n + j] = y[best * n + j];
                y[best * n + j] = held;
            }
            const SN_REAL *const top = y + k * n;
            for (int64_t i = k + 1; i < n; ++i) {
                SN_REAL *const row = y + i * n;
                const SN_REAL by = row[k] /= top[k];
                for (int64_t j = k + 1; j < n; ++j) row[j] -= by * top[j];
            }
        }
    }
}

/* x -= by * y, of m numbers */
SN_INLINE void SN_(sn_less)(SN_REAL *restrict x, const SN_REAL *restrict y, SN_REAL by, int64_t m) {
    for (int64_t j = 0; j < m; ++j) x[j] -= by * y[j];
}

/* b [n, m] in place: solve a x = b, element (i, k) of the triangle at a[i * down + k * along]. */
SN_FACTOR void SN_(sn_triangle)(const SN_REAL *a, int64_t down, int64_t along, SN_REAL *b, int64_t n, int64_t m,
                                int64_t upper, int64_t unit) {
    for (int64_t s = 0; s < n; ++s) {
        const int64_t i = upper ? n - 1 - s : s;
        SN_REAL *const row = b + i * m;
        for (int64_t k = upper ? i + 1 : 0; k < (upper ? n : i); ++k)
            SN_(sn_less)(row, b + k * m, a[i * down + k * along], m);
        if (!unit)
            for (int64_t j = 0; j < m; ++j) row[j] /= a[i * (down + along)];
    }
}

SN_FACTOR void SN_(sn_solve_triangular)(SN_REAL *x, const SN_REAL *a, const SN_REAL *b, int64_t count, int64_t n,
                                        int64_t m, int64_t upper, int64_t unit) {
    memcpy(x, b, count * n * m * sizeof *x);
    for (; count-- > 0; a += n * n, x += n * m) SN_(sn_triangle)(a, n, 1, x, n, m, upper, unit);
}

SN_INLINE void SN_(sn_swap_rows)(SN_REAL *x, const SN_REAL *swaps, int64_t i, int64_t n, int64_t m) {
    const SN_REAL with = swaps[i] - 1;
    if (!(with >= 0 && with < n) || (int64_t)with == i) return;
    SN_REAL *const a = x + i * m, *const b = x + (int64_t)with * m;
    for (int64_t j = 0; j < m; ++j) {
        const SN_REAL held = a[j];
        a[j] = b[j];
        b[j] = held;
    }
}

/* x [n, m] with A x = b, or A^T x = b, by what sn_lu made of A. */
SN_FACTOR void SN_(sn_lu_solve)(SN_REAL *x, const SN_REAL *lu, const SN_REAL *b, int64_t count, int64_t n,
                                int64_t m, int64_t transposed) {
    memcpy(x, b, count * n * m * sizeof *x);
    for (; count-- > 0; lu += (n + 1) * n, x += n * m) {
        const SN_REAL *const swaps = lu + n * n;
        if (transposed) {
            SN_(sn_triangle)(lu, 1, n, x, n, m, 0, 0);
            SN_(sn_triangle)(lu, 1, n, x, n, m, 1, 1);
            for (int64_t i = n; i-- > 0;) SN_(sn_swap_rows)(x, swaps, i, n, m);
        } else {
            for (int64_t i = 0; i < n; ++i) SN_(sn_swap_rows)(x, swaps, i, n, m);
            SN_(sn_triangle)(lu, n, 1, x, n, m, 0, 1);
            SN_(sn_triangle)(lu, n, 1, x, n, m, 1, 0);
        }
    }
}

/* The lower factor; of x its lower triangle is read. */
SN_FACTOR void SN_(sn_cholesky)(SN_REAL *restrict y, const SN_REAL *restrict x, int64_t count, int64_t n,
                                int64_t check, int64_t *wrong) {
    for (; count-- > 0; x += n * n, y += n * n) {
        for (int64_t i = 0; i < n; ++i) {
            SN_REAL *const row = y + i * n;
            for (int64_t k = 0; k < n; ++k) {
                if (k > i) {
                    row[k] = 0;
                    continue;
                }
                SN_REAL left = x[i * n + k];
                for (int64_t j = 0; j < k; ++j) left -= row[j] * y[k * n + j];
                if (k == i && !(left > 0) && check) *wrong = SN_SINGULAR;
                row[k] = k < i ? left / y[k * n + k] : (SN_REAL)sqrt(left);
            }
        }
    }
}

SN_FACTOR void SN_(sn_times)(SN_REAL *restrict c, const SN_REAL *restrict a, const SN_REAL *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        SN_REAL *const row = c + i * n;
        for (int64_t j = 0; j < n; ++j) row[j] = 0;
        for (int64_t k = 0; k < n; ++k)
            for (int64_t j = 0; j < n; ++j) row[j] += a[i * n + k] * b[k * n + j];
    }
}

/* y = exp x of one matrix, by Taylor's series of x / 2^s, squared s times; space for 3 n n numbers. */
SN_FACTOR void SN_(sn_exp_of)(SN_REAL *y, const SN_REAL *x, int64_t n, SN_REAL *space) {
    SN_REAL *const small = space, *const other = space + n * n, *sum = space + 2 * n * n, norm = 0;
    for (int64_t j = 0; j < n; ++j) {
        SN_REAL column = 0;
        for (int64_t i = 0; i < n; ++i) column += fabs(x[i * n + j]);
        norm = column > norm || column != column ? column : norm;
    }
    int64_t squares = 0;
    SN_REAL scale = 1;
    for (; norm * scale > (SN_REAL)0.5 && squares < 1100; ++squares) scale *= (SN_REAL)0.5;
    for (int64_t e = 0; e < n * n; ++e) small[e] = x[e] * scale, sum[e] = 0;
    for (int64_t i = 0; i < n; ++i) sum[i * (n + 1)] = 1;
    for (int64_t k = sizeof(SN_REAL) == 8 ? 15 : 9; k > 0; --k) {
        SN_(sn_times)(other, small, sum, n);
        for (int64_t e = 0; e < n * n; ++e) sum[e] = other[e] / (SN_REAL)k;
        for (int64_t i = 0; i < n; ++i) sum[i * (n + 1)] += 1;
    }
    memcpy(y, sum, n * n * sizeof *y);
    while (squares-- > 0) {
        SN_(sn_times)(other, y, y, n);
        memcpy(y, other, n * n * sizeof *y);
    }
}
SN_FACTOR void SN_(sn_matrix_exp)(SN_REAL *y, const SN_REAL *x, int64_t count, int64_t n, void *spare) {
    SN_REAL few[3 * 256], *space = n * n > 256 ? spare : few;
    for (; count-- > 0; x += n * n, y += n * n) SN_(sn_exp_of)(y, x, n, space);
}
/* The derivative of exp at a, in the direction b: a block of exp [[a, b], [0, a]]. */
SN_FACTOR void SN_(sn_matrix_exp_grad)(SN_REAL *y, const SN_REAL *a, const SN_REAL *b, int64_t count, int64_t n,
                                       void *spare) {
    const int64_t two = 2 * n, whole = two * two;
    SN_REAL few[5 * 256], *space = whole > 256 ? spare : few;
    SN_REAL *const both = space + 3 * whole, *const made = space + 4 * whole;
    for (; count-- > 0; a += n * n, b += n * n, y += n * n) {
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j) {
                both[i * two + j] = both[(n + i) * two + n + j] = a[i * n + j];
                both[i * two + n + j] = b[i * n + j];
                both[(n + i) * two + j] = 0;
            }
        SN_(sn_exp_of)(made, both, two, space);
        for (int64_t i = 0; i < n; ++i) memcpy(y + i * n, made + i * two + n, n * sizeof *y);
    }
}

/* log of the sum of exp of all so far, as torch adds one to it. */
SN_FACTOR void SN_(sn_logcumsumexp)(SN_REAL *y, const SN_REAL *x, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            SN_REAL held = -INFINITY;
            for (int64_t j = 0, e = o * n * inner + i; j < n; ++j, e += inner) {
                const SN_REAL v = x[e];
                const SN_REAL least = held != held ? held : held < v ? held : v;
                const SN_REAL most = held != held ? held : v < held ? held : v;
                if (least != most || isfinite(least)) held = SN_(sn_log1p)(SN_(sn_exp)(least - most)) + most;
                else held = v;
                y[e] = held;
            }
        }
}
#undef SN_REAL
#undef SN_
