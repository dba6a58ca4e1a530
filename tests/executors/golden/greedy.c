/* scan of forward
 *   carry state <- v20
 *   w2_s35: shared[3] float32 = add(w2, w4) {}
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
    const float *w2;
    const float *w4;
    const float *w0;
    sn_matrix v13;
    sn_matrix v16;
    SN_STATE(float, state);
    float *v12;
    float *v20;
    int64_t *wrong;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *state = SN_TAKE(float, count * 3), *state_next = SN_TAKE(float, count * 3);
    float *v14_rows = SN_TAKE(float, count * 3);
    float *v17_rows = SN_TAKE(float, count * 3);
    sn_boot(&of, member, members, state, a->state_boot, a->state_final, 3 * sizeof(float));
    int64_t wrong = 0;
    for (int64_t t = 0; t < a->steps; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
        /* row by row: v9_p0, v9, v11, v12 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict state_at = state + i * 3;
            const float *restrict w0_at = a->w0;
            const float *restrict x_at = a->x + row[i] * 2;
            float *restrict v12_at = a->v12 + row[i] * 2;
            float v9_p0 = -INFINITY;
            for (int64_t j = 0; j < 3; ++j) {
                v9_p0 = sn_maximum_f32(v9_p0, state_at[j]);
            }
            int32_t v9_first = INT32_MAX;
            for (int64_t j = 0; j < 3; ++j) {
                const float v9_now = state_at[j];
                const int32_t v9_place = (v9_now == v9_p0) | (v9_now != v9_now) ? (int32_t)(j) : INT32_MAX;
                v9_first = v9_first < v9_place ? v9_first : v9_place;
            }
            const int64_t v9 = v9_first;
            const int64_t v11_row = sn_lookup(v9, 3, &wrong);
            #pragma omp simd
            for (int64_t j = 0; j < 2; ++j) {
                const float v11 = w0_at[v11_row * 2 + j];
                const float v12 = x_at[j] + v11;
                v12_at[j] = v12;
            }
        }
        SN_MEET;
        /* v14 = matmul(v12, v13)  [2] x [2, 3] */
        sn_columns_split((sn_rows_f32){(float *)v14_rows, 3, 0}, (sn_rows_f32){(float *)a->v12, 2, row}, &a->v13, a->few, active, 2, 3, member, members, a->split);
        /* v17 = matmul(state, v16)  [3] x [3, 3] */
        sn_columns_split((sn_rows_f32){(float *)v17_rows, 3, 0}, (sn_rows_f32){(float *)state, 3, 0}, &a->v16, a->few, active, 3, 3, member, members, a->split);
        SN_MEET;
        /* row by row: w2_s35, v19_s36, v19, v20 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict w2_at = a->w2;
            const float *restrict w4_at = a->w4;
            float *restrict v14_at = v14_rows + i * 3;
            float *restrict v17_at = v17_rows + i * 3;
            float *restrict v20_at = a->v20 + row[i] * 3;
            float *restrict state_new = state_next + i * 3;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float w2_s35 = w2_at[j] + w4_at[j];
                const float v19_s36 = v14_at[j] + w2_s35;
                const float v19 = v19_s36 + v17_at[j];
                const float v20 = sn_tanh_f32(v19);
                v20_at[j] = v20;
                state_new[j] = v20;
            }
        }
        sn_end(&of, t, active, member, members, state_next, a->state_final, 3 * sizeof(float), 3 * sizeof(float));
        { float *now = state; state = state_next; state_next = now; }
    }
    if (wrong) __atomic_store_n(a->wrong, wrong, __ATOMIC_RELAXED);
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->v13, a->few)) sn_pack_split(a->v13.packed, a->v13.lying, a->v13.stride_k, a->v13.stride_n, 2, 3, a->split);
    if (index == 1 && !sn_lies(&a->v16, a->few)) sn_pack_split(a->v16.packed, a->v16.lying, a->v16.stride_k, a->v16.stride_n, 3, 3, a->split);
}

SN_RUN(run, pack, 2, 0)

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
    sn_matrix w3;
    sn_matrix w1;
    SN_STATE(float, d_1);
    float *v25;
    float *v31;
    float *v29;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *d_1 = SN_TAKE(float, count * 3), *d_1_next = SN_TAKE(float, count * 3);
    int64_t *chunk_row = SN_TAKE(int64_t, count * a->chunk * members) + member * count * a->chunk;
    float v29_part[3] = {0}, *v29_sum = a->v29 + (slot * members + member) * 3;
    sn_boot(&of, member, members, d_1, a->d_1_boot, a->d_1_final, 3 * sizeof(float));
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    const int64_t rows = sn_chunk(&of, t0, t1, active, chunk_row, 0);
    for (int64_t t = t0; t < t1; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
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
        SN_MEET;
        /* v26 = matmul(v25, w3)  [3] x [3, 3] */
        sn_columns_split((sn_rows_f32){(float *)d_1_next, 3, 0}, (sn_rows_f32){(float *)a->v25, 3, row}, &a->w3, a->few, active, 3, 3, member, members, a->split);
        SN_MEET;
        sn_end(&of, t, active, member, members, d_1_next, a->d_1_final, 3 * sizeof(float), 3 * sizeof(float));
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) {
            SN_ADD_UP(v29_sum, v29_part, 3)
        }
    }
    SN_MEET;
    /* v31 = matmul(v25, w1)  [3] x [3, 2], rows of these steps */
    sn_columns_split((sn_rows_f32){a->v31, 2, chunk_row}, (sn_rows_f32){(float *)a->v25, 3, chunk_row}, &a->w1, a->few, rows, 3, 2, member, members, a->split);
    }
    SN_ADD_UP(v29_sum, v29_part, 3)
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->w3, a->few)) sn_pack_split(a->w3.packed, a->w3.lying, a->w3.stride_k, a->w3.stride_n, 3, 3, a->split);
    if (index == 1 && !sn_lies(&a->w1, a->few)) sn_pack_split(a->w1.packed, a->w1.lying, a->w1.stride_k, a->w1.stride_n, 3, 2, a->split);
}

SN_RUN(run, pack, 2, 0)
