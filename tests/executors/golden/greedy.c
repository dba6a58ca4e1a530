/* scan of forward
 *   carry state <- v20
 *   w2_s35: shared[9] float32 = add(w2, w4) {}
 *   v9: row[1] int64 = argmax(state) {'dim': 0}  # test_golden.py:26
 *   v10: row[] int64 = reshape(v9) {}  # test_golden.py:26
 *   v11: row[2] float32 = embed(w0, v10) {}  # test_golden.py:26
 *   v12: row[2] float32 = add(x, v11) {}  # test_golden.py:26
 *   v14: row[9] float32 = matmul(v12, v13) {}  # test_golden.py:26
 *   v17: row[9] float32 = matmul(state, v16) {}  # test_golden.py:26
 *   v19_s36: row[9] float32 = add(v14, w2_s35) {}  # test_golden.py:26
 *   v19: row[9] float32 = add(v19_s36, v17) {}  # test_golden.py:26
 *   v20: row[9] float32 = tanh(v19) {}  # test_golden.py:26
 *   out v10, v12, v20
 */
typedef struct {
    SN_SCAN;
    const float *x;
    const float *w2;
    const float *w4;
    const float *w0;
    sn_matrix v16;
    sn_matrix v13_p0;
    SN_STATE(float, state);
    int64_t *v10_copy0;
    float *v12;
    float *v20;
    int64_t *wrong;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *state = SN_TAKE(float, count * 9), *state_next = SN_TAKE(float, count * 9);
    float *v17_rows = SN_TAKE(float, count * 9);
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    sn_boot(&of, member, members, state, a->state_boot, a->state_final, 9 * sizeof(float));
    int64_t wrong = 0;
    for (int64_t t = 0; t < a->steps; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
        /* row by row: v9_p0, v9, v11, v12, v10_copy0 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict state_at = state + i * 9;
            int64_t *restrict v10_copy0_at = a->v10_copy0 + row[i] * 1;
            const float *restrict w0_at = a->w0;
            const float *restrict x_at = a->x + row[i] * 2;
            float *restrict v12_at = a->v12 + row[i] * 2;
            if (sn_is_far(&of, a->steps, active, 24)) {
                sn_bring_to_write(a->v10_copy0, row[i] + of.stride, 8);
                sn_bring(a->x, row[i] + of.stride, 8);
                sn_bring_to_write(a->v12, row[i] + of.stride, 8);
            }
            float v9_p0 = -INFINITY;
            for (int64_t j = 0; j < 9; ++j) {
                v9_p0 = sn_maximum_f32(v9_p0, state_at[j]);
            }
            int32_t v9_first = INT32_MAX;
            for (int64_t j = 0; j < 9; ++j) {
                const float v9_now = state_at[j];
                const int32_t v9_place = (v9_now == v9_p0) | (v9_now != v9_now) ? (int32_t)(j) : INT32_MAX;
                v9_first = v9_first < v9_place ? v9_first : v9_place;
            }
            const int64_t v9 = v9_first;
            const int64_t v10_copy0 = v9;
            v10_copy0_at[0] = v10_copy0;
            const int64_t v11_row = sn_lookup(v9, 9, &wrong);
            #pragma omp simd
            for (int64_t j = 0; j < 2; ++j) {
                const float v11 = w0_at[v11_row * 2 + j];
                const float v12 = x_at[j] + v11;
                v12_at[j] = v12;
            }
        }
        SN_MEET;
        /* v17 = matmul(state, v16)  [9] x [9, 9] */
        sn_columns_split((sn_rows_f32){(float *)v17_rows, 9, 0}, (sn_rows_f32){(float *)state, 9, 0}, &a->v16, a->few, active, 9, 9, member, members, a->split, sn_room);
        SN_MEET;
        /* row by row: w2_s35, v14_p2, v14_p3, v19_s36, v19, v20 */
        for (int64_t i = member; i < active; i += members) {
            float v14_p3_line[9] __attribute__((aligned(64)));
            float *restrict v12_at = a->v12 + row[i] * 2;
            const float *restrict v13_p0_at = (const float *)a->v13_p0.packed;
            const float *restrict w2_at = a->w2;
            const float *restrict w4_at = a->w4;
            float *restrict v17_at = v17_rows + i * 9;
            float *restrict v20_at = a->v20 + row[i] * 9;
            float *restrict state_new = state_next + i * 9;
            if (sn_is_far(&of, a->steps, active, 44)) {
                sn_bring_to_write(a->v12, row[i] + of.stride, 8);
                sn_bring_to_write(a->v20, row[i] + of.stride, 36);
            }
            for (int64_t j = 0; j < 9; ++j)
                v14_p3_line[j] = 0;
            for (int64_t j0 = 0; j0 < 2; ++j0) {
                #pragma omp simd
                for (int64_t j1 = 0; j1 < 9; ++j1) {
                    const float v14_p2 = v12_at[j0] * v13_p0_at[j0 * 9 + j1];
                    v14_p3_line[j1] += v14_p2;
                }
            }
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float w2_s35 = w2_at[j] + w4_at[j];
                const float v19_s36 = v14_p3_line[j] + w2_s35;
                const float v19 = v19_s36 + v17_at[j];
                const float v20 = sn_tanh_f32(v19);
                v20_at[j] = v20;
                state_new[j] = v20;
            }
        }
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, state_next, a->state_final, 9 * sizeof(float), 9 * sizeof(float));
        { float *now = state; state = state_next; state_next = now; }
    }
    if (wrong) __atomic_store_n(a->wrong, wrong, __ATOMIC_RELAXED);
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->v16, a->few)) sn_pack_split(a->v16.packed, a->v16.lying, a->v16.stride_k, a->v16.stride_n, 9, 9, a->split);
    if (index == 1) sn_lines_f32(&a->v13_p0, 1, 2, 9);
}

SN_RUN(run, pack, 2, 0)

/* scan of backward
 *   carry d_1 <- v26
 *   v21: row[9] float32 = add(d_1, d_0) {}  # test_golden.py:26
 *   v22: row[9] float32 = mul(v20, v20) {}  # test_golden.py:26
 *   v24: row[9] float32 = sub(v23, v22) {}  # test_golden.py:26
 *   v25: row[9] float32 = mul(v21, v24) {}  # test_golden.py:26
 *   v26: row[9] float32 = matmul(v25, w3) {}  # test_golden.py:26
 *   v29: sum[9] float32 = sum_rows(v25) {}  # test_golden.py:26
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
    float *d_1 = SN_TAKE(float, count * 9), *d_1_next = SN_TAKE(float, count * 9);
    int64_t *chunk_row = SN_TAKE(int64_t, count * a->chunk * members) + member * count * a->chunk;
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    float v29_part[9] = {0}, *v29_sum = a->v29 + (slot * members + member) * 9;
    sn_boot(&of, member, members, d_1, a->d_1_boot, a->d_1_final, 9 * sizeof(float));
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    const int64_t rows = sn_chunk(&of, t0, t1, active, chunk_row, 0);
    int64_t before = 0; /* of these, those of steps before t */
    for (int64_t t = t0; t < t1; ++t) {
        if ((active = sn_reach(&of, t, active)) == 0) break;
        const int64_t *row = chunk_row + before;
        /* row by row: v21, v22, v24, v25, v29 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict d_1_at = d_1 + i * 9;
            const float *restrict d_0_at = a->d_0 + row[i] * 9;
            const float *restrict v20_at = a->v20 + row[i] * 9;
            float *restrict v25_at = a->v25 + row[i] * 9;
            if (sn_is_far(&of, a->steps, active, 108)) {
                sn_bring(a->d_0, row[i] + of.stride, 36);
                sn_bring(a->v20, row[i] + of.stride, 36);
                sn_bring_to_write(a->v25, row[i] + of.stride, 36);
            }
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float v21 = d_1_at[j] + d_0_at[j];
                const float v22 = v20_at[j] * v20_at[j];
                const float v24 = 1.0f - v22;
                const float v25 = v21 * v24;
                v25_at[j] = v25;
                v29_part[j] += v25;
            }
        }
        SN_MEET;
        /* v26 = matmul(v25, w3)  [9] x [9, 9] */
        sn_columns_split((sn_rows_f32){(float *)d_1_next, 9, 0}, (sn_rows_f32){(float *)a->v25, 9, row}, &a->w3, a->few, active, 9, 9, member, members, a->split, sn_room);
        SN_MEET;
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, d_1_next, a->d_1_final, 9 * sizeof(float), 9 * sizeof(float));
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        before += active;
        if (t % 64 == 63) {
            SN_ADD_UP(v29_sum, v29_part, 9)
        }
    }
    SN_MEET;
    /* v31 = matmul(v25, w1)  [9] x [9, 2], rows of these steps */
    sn_columns_split((sn_rows_f32){a->v31, 2, chunk_row}, (sn_rows_f32){(float *)a->v25, 9, chunk_row}, &a->w1, a->few, rows, 9, 2, member, members, a->split, sn_room);
    }
    SN_ADD_UP(v29_sum, v29_part, 9)
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->w3, a->few)) sn_pack_split(a->w3.packed, a->w3.lying, a->w3.stride_k, a->w3.stride_n, 9, 9, a->split);
    if (index == 1 && !sn_lies(&a->w1, a->few)) sn_pack_split(a->w1.packed, a->w1.lying, a->w1.stride_k, a->w1.stride_n, 9, 2, a->split);
}

SN_RUN(run, pack, 2, 0)
