/* scan of forward
 *   carry state <- v20
 *   v9: row[1] int64 = argmax(state) {'dim': 0}  # test_golden.py:26
 *   v10: row[] int64 = reshape(v9) {}  # test_golden.py:26
 *   v11: row[2] float32 = embed(w0, v10) {}  # test_golden.py:26
 *   v12: row[2] float32 = add(x, v11) {}  # test_golden.py:26
 *   v14: row[3] float32 = matmul(v12, v13) {}  # test_golden.py:26
 *   v17: row[3] float32 = matmul(state, v16) {}  # test_golden.py:26
 *   v19_s36: row[3] float32 = add(v14, w2_s35) {}  # test_golden.py:26
 *   v19: row[3] float32 = add(v19_s36, v17) {}  # test_golden.py:26
 *   v20: row[3] float32 = tanh(v19) {}  # test_golden.py:26
 *   out v12, v20
 */
typedef struct {
    SN_SCAN;
    const float *x;
    const float *w0;
    const float *w2_s35;
    const float *v13;
    int64_t v13_stride_k;
    int64_t v13_stride_n;
    int64_t v13_stride_h;
    float *v13_packed;
    const float *v16;
    int64_t v16_stride_k;
    int64_t v16_stride_n;
    int64_t v16_stride_h;
    float *v16_packed;
    const float *state_boot;
    float *state_final;
    float *v12;
    float *v20;
    int64_t *wrong;
} arguments;

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t slot, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t shares = a->shares, count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + slot * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *state = TAKE(float, count * 3);
    float *state_next = TAKE(float, count * 3);
    float *v14_rows = TAKE(float, count * 3);
    float *v17_rows = TAKE(float, count * 3);
#undef TAKE
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(state + i * 3, a->state_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->state_final + b * 3, state + i * 3, 3 * sizeof(float));
    }
    int64_t wrong = 0;
    int64_t active = count;
    for (int64_t t = 0; t < a->steps; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        /* row by row: v9, v11, v12 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict state_at = state + i * 3;
            const float *restrict w0_at = a->w0;
            const float *restrict x_at = a->x + row[i] * 2;
            float *restrict v12_at = a->v12 + row[i] * 2;
            float v9_best = -INFINITY; int64_t v9 = 0;
            for (int64_t j = 0; j < 3; ++j) {
                const float v9_now = state_at[j];
                if (!(v9_now <= v9_best) && v9_best == v9_best) {
                    v9_best = v9_now;
                    v9 = j;
                }
            }
            const int64_t v11_row = sn_lookup(v9, 3, &wrong);
            #pragma omp simd
            for (int64_t j = 0; j < 2; ++j) {
                const float v11 = w0_at[v11_row * 2 + j];
                const float v12 = x_at[j] + v11;
                v12_at[j] = v12;
            }
        }
        MEET;
        /* v14 = matmul(v12, v13)  [2] x [2, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_split((sn_rows_f32){(float *)v14_rows + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v12, 2, row}, a->v13_packed + c0 * sn_deep_split(2, a->split), active, 2, c1 - c0, a->split);
        }
        /* v17 = matmul(state, v16)  [3] x [3, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_split((sn_rows_f32){(float *)v17_rows + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)state, 3, 0}, a->v16_packed + c0 * sn_deep_split(3, a->split), active, 3, c1 - c0, a->split);
        }
        MEET;
        /* row by row: v19_s36, v19, v20 */
        for (int64_t i = member; i < active; i += members) {
            float *restrict v14_at = v14_rows + i * 3;
            const float *restrict w2_s35_at = a->w2_s35;
            float *restrict v17_at = v17_rows + i * 3;
            float *restrict v20_at = a->v20 + row[i] * 3;
            float *restrict state_new = state_next + i * 3;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v19_s36 = v14_at[j] + w2_s35_at[j];
                const float v19 = v19_s36 + v17_at[j];
                const float v20 = sn_tanh_f32(v19);
                v20_at[j] = v20;
                state_new[j] = v20;
            }
        }
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->state_final + b * 3, state_next + i * 3, 3 * sizeof(float));
        }
        { float *now = state; state = state_next; state_next = now; }
    }
    if (wrong) __atomic_store_n(a->wrong, wrong, __ATOMIC_RELAXED);
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_split(a->v13_packed, a->v13, a->v13_stride_k, a->v13_stride_n, 2, 3, a->split);
    if (index == 1) sn_pack_split(a->v16_packed, a->v16, a->v16_stride_k, a->v16_stride_n, 3, 3, a->split);
}

SN_DEAL;

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 2; ++i) pack((void *)a, i, 2);
    sn_deal(pool, a);
}

/* scan of backward
 *   carry d_1 <- v26
 *   v21: row[3] float32 = add(d_1, d_0) {}  # test_golden.py:26
 *   v22: row[3] float32 = mul(v20, v20) {}  # test_golden.py:26
 *   v24: row[3] float32 = sub(v23, v22) {}  # test_golden.py:26
 *   v25: row[3] float32 = mul(v21, v24) {}  # test_golden.py:26
 *   v26: row[3] float32 = matmul(v25, w3) {}  # test_golden.py:26
 *   v29: sum[3] float32 = sum_rows(v25) {}  # test_golden.py:26
 *   v31: row[2] float32 = matmul(v25, w1) {}  # test_golden.py:26
 *   out v25, v29, v31
 */
typedef struct {
    SN_SCAN;
    const float *d_0;
    const float *v20;
    const float *w3;
    int64_t w3_stride_k;
    int64_t w3_stride_n;
    int64_t w3_stride_h;
    float *w3_packed;
    const float *w1;
    int64_t w1_stride_k;
    int64_t w1_stride_n;
    int64_t w1_stride_h;
    float *w1_packed;
    const float *d_1_boot;
    float *d_1_final;
    float *v25;
    float *v31;
    float *v29;
} arguments;

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t slot, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t shares = a->shares, count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + slot * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *d_1 = TAKE(float, count * 3);
    float *d_1_next = TAKE(float, count * 3);
    int64_t *chunk_row = TAKE(int64_t, count * a->chunk * members);
    chunk_row += member * count * a->chunk;
#undef TAKE
    float v29_part[3], *v29_sum = a->v29 + (slot * members + member) * 3;
    memset(v29_part, 0, sizeof v29_part);
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(d_1 + i * 3, a->d_1_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->d_1_final + b * 3, d_1 + i * 3, 3 * sizeof(float));
    }
    int64_t active = count;
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    int64_t rows = 0;
    for (int64_t t = t0, left = active; t < t1; ++t) {
        while (left > 0 && a->length[a->order[index + (left - 1) * shares]] <= t) --left;
        for (int64_t i = 0; i < left; ++i) {
            chunk_row[rows++] = a->start[a->order[index + i * shares]] + t * a->stride;
        }
    }
    for (int64_t t = t0; t < t1; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        /* row by row: v21, v22, v24, v25, v29 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict d_1_at = d_1 + i * 3;
            const float *restrict d_0_at = a->d_0 + row[i] * 3;
            const float *restrict v20_at = a->v20 + row[i] * 3;
            float *restrict v25_at = a->v25 + row[i] * 3;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v21 = d_1_at[j] + d_0_at[j];
                const float v22 = v20_at[j] * v20_at[j];
                const float v24 = 1.0f - v22;
                const float v25 = v21 * v24;
                v25_at[j] = v25;
                v29_part[j] += v25;
            }
        }
        MEET;
        /* v26 = matmul(v25, w3)  [3] x [3, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_split((sn_rows_f32){(float *)d_1_next + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v25, 3, row}, a->w3_packed + c0 * sn_deep_split(3, a->split), active, 3, c1 - c0, a->split);
        }
        MEET;
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->d_1_final + b * 3, d_1_next + i * 3, 3 * sizeof(float));
        }
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) { /* short sums of short sums lose fewer digits */
            for (int64_t j = 0; j < 3; ++j) { v29_sum[j] += v29_part[j]; v29_part[j] = 0; }
        }
    }
    MEET;
    /* v31 = matmul(v25, w1)  [3] x [3, 2], rows of these steps */
    {
        const int64_t c0 = first_column(2, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(2, member + 1, members, SN_WIDTH * sn_lanes_f32);
        if (c1 > c0) sn_matmul_split((sn_rows_f32){a->v31 + c0, 2, chunk_row}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v25, 3, chunk_row}, a->w1_packed + c0 * sn_deep_split(3, a->split), rows, 3, c1 - c0, a->split);
    }
    }
    for (int64_t j = 0; j < 3; ++j) { v29_sum[j] += v29_part[j]; v29_part[j] = 0; }
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_split(a->w3_packed, a->w3, a->w3_stride_k, a->w3_stride_n, 3, 3, a->split);
    if (index == 1) sn_pack_split(a->w1_packed, a->w1, a->w1_stride_k, a->w1_stride_n, 3, 2, a->split);
}

SN_DEAL;

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 2; ++i) pack((void *)a, i, 2);
    sn_deal(pool, a);
}
