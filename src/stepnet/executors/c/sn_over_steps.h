/* C[m, n] += the sum over t of A[t, m] B[t, n]: rows of A are `a_next` apart and its columns `a_apart`, rows of B are
 * `b_next` apart, rows of C `c_next`. */
SN_SHARED void SN_(sn_over_steps)(SN_REAL *C, int64_t c_next, const SN_REAL *A, int64_t a_next, int64_t a_apart,
                                  const SN_REAL *B, int64_t b_next, int64_t steps, int64_t m, int64_t n);
#ifndef SN_LINKED
/* The same for `rows` of C, nv vectors of each. */
SN_INLINE void SN_(sn_over_tile)(SN_REAL *C, int64_t c_next, const SN_REAL *A, int64_t a_next, int64_t a_apart,
                                 const SN_REAL *B, int64_t b_next, int64_t steps, const int rows, const int nv) {
    SN_(sn_vec) sum[6][2];
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] = (SN_(sn_vec)){0};
    for (int64_t t = 0; t < steps; ++t, A += a_next, B += b_next) {
        SN_(sn_vec) b[2];
        SN_UNROLL for (int v = 0; v < nv; ++v) {
            b[v] = *(const SN_(sn_vec_u) *)(B + v * SN_(sn_lanes));
            if (rows > 1) SN_KEEP(b[v]);
        }
        SN_UNROLL for (int i = 0; i < rows; ++i)
            SN_UNROLL for (int v = 0; v < nv; ++v) sum[i][v] += A[i * a_apart] * b[v];
    }
    SN_UNROLL for (int i = 0; i < rows; ++i)
        SN_UNROLL for (int v = 0; v < nv; ++v)
            *(SN_(sn_vec_u) *)(C + i * c_next + v * SN_(sn_lanes)) += sum[i][v];
}

void SN_(sn_over_steps)(SN_REAL *C, int64_t c_next, const SN_REAL *A, int64_t a_next, int64_t a_apart, const SN_REAL *B,
                        int64_t b_next, int64_t steps, int64_t m, int64_t n) {
    enum { L = SN_(sn_lanes), MOST = 128 }; /* steps of which B's vectors stay in the first cache */
    for (int64_t t = 0; t < steps; t += MOST, A += MOST * a_next, B += MOST * b_next) {
        const int64_t some = steps - t < MOST ? steps - t : MOST;
        int64_t u = 0;
        for (int64_t nv; (nv = (n - u) / L) > 0; u += nv * L) {
            nv = nv < 2 ? 1 : 2;
            for (int64_t r = 0, rows; r < m; r += rows) {
                SN_REAL *to = C + r * c_next + u;
                const SN_REAL *a = A + r * a_apart;
                rows = sn_split(m - r, 6);
                switch (rows * 2 + nv) {
#define SN_CASE(rows, nv) \
    case rows * 2 + nv: SN_(sn_over_tile)(to, c_next, a, a_next, a_apart, B + u, b_next, some, rows, nv); break
                    SN_CASE(1, 1); SN_CASE(2, 1); SN_CASE(3, 1); SN_CASE(4, 1); SN_CASE(5, 1); SN_CASE(6, 1);
                    SN_CASE(1, 2); SN_CASE(2, 2); SN_CASE(3, 2); SN_CASE(4, 2); SN_CASE(5, 2); SN_CASE(6, 2);
#undef SN_CASE
                }
            }
        }
        for (; u < n; ++u)
            for (int64_t r = 0; r < m; ++r) {
                SN_REAL sum = 0;
                for (int64_t k = 0; k < some; ++k) sum += A[k * a_next + r * a_apart] * B[k * b_next + u];
                C[r * c_next + u] += sum;
            }
    }
}
#endif
