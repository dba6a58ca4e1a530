/* scan of forward
 *   carry state <- v15
 *   v9: row[3] float32 = matmul(x, v8) {}  # rnn.py:35
 *   w1_s28: shared[3] float32 = add(w1, w3) {}
 *   v12: row[3] float32 = matmul(state, v11) {}  # rnn.py:35
 *   v14_s29: row[3] float32 = add(v9, w1_s28) {}  # rnn.py:35
 *   v14: row[3] float32 = add(v14_s29, v12) {}  # rnn.py:35
 *   v15: row[3] float32 = tanh(v14) {}  # rnn.py:34
 *   out v15
 */
typedef struct {
    SN_SCAN;
    const float *x;
    const float *w1;
    const float *w3;
    sn_matrix v8;
    sn_matrix v11_p0;
    SN_STATE(float, state);
    float *v15;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    float *state = SN_TAKE(float, count * 3), *state_next = SN_TAKE(float, count * 3);
    int64_t *chunk_row = SN_TAKE(int64_t, count * a->chunk * members) + member * count * a->chunk;
    float *v9_rows = SN_TAKE(float, count * a->chunk * 3);
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    sn_boot(&of, member, members, state, a->state_boot, a->state_final, 3 * sizeof(float));
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    const int64_t rows = sn_chunk(&of, t0, t1, active, chunk_row, 0);
    int64_t before = 0; /* of these, those of steps before t */
    SN_MEET;
    /* v9 = matmul(x, v8)  [2] x [2, 3], rows of these steps */
    sn_columns_split((sn_rows_f32){v9_rows, 3, 0}, (sn_rows_f32){(float *)a->x, 2, chunk_row}, &a->v8, a->few, rows, 2, 3, member, members, a->split, sn_room);
    SN_MEET;
    for (int64_t t = t0; t < t1; ++t) {
        if ((active = sn_reach(&of, t, active)) == 0) break;
        const int64_t *row = chunk_row + before;
        /* row by row: w1_s28, v12_p2, v12_p3, v14_s29, v14, v15 */
        for (int64_t i = member; i < active; i += members) {
            float v12_p3_line[3] __attribute__((aligned(64)));
            const float *restrict state_at = state + i * 3;
            const float *restrict v11_p0_at = (const float *)a->v11_p0.packed;
            const float *restrict w1_at = a->w1;
            const float *restrict w3_at = a->w3;
            const float *restrict v9_at = v9_rows + (before + i) * 3;
            float *restrict v15_at = a->v15 + row[i] * 3;
            float *restrict state_new = state_next + i * 3;
            if (sn_is_far(&of, a->steps, active, 12)) {
                sn_bring_to_write(a->v15, row[i] + of.stride, 12);
            }
            for (int64_t j = 0; j < 3; ++j)
                v12_p3_line[j] = 0;
            for (int64_t j0 = 0; j0 < 3; ++j0) {
                #pragma omp simd
                for (int64_t j1 = 0; j1 < 3; ++j1) {
                    const float v12_p2 = state_at[j0] * v11_p0_at[j0 * 3 + j1];
                    v12_p3_line[j1] += v12_p2;
                }
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float w1_s28 = w1_at[j] + w3_at[j];
                const float v14_s29 = v9_at[j] + w1_s28;
                const float v14 = v14_s29 + v12_p3_line[j];
                const float v15 = sn_tanh_f32(v14);
                v15_at[j] = v15;
                state_new[j] = v15;
            }
        }
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, state_next, a->state_final, 3 * sizeof(float), 3 * sizeof(float));
        { float *now = state; state = state_next; state_next = now; }
        before += active;
    }
    }
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->v8, a->few)) sn_pack_split(a->v8.packed, a->v8.lying, a->v8.stride_k, a->v8.stride_n, 2, 3, a->split);
    if (index == 1) sn_lines_f32(&a->v11_p0, 1, 3, 3);
}

SN_RUN(run, pack, 2, 0)

/* scan of backward
 *   carry d_1 <- v21
 *   v16: row[3] float32 = add(d_1, d_0) {}  # rnn.py:37
 *   v17: row[3] float32 = mul(v15, v15) {}  # rnn.py:34
 *   v19: row[3] float32 = sub(v18, v17) {}  # rnn.py:34
 *   v20: row[3] float32 = mul(v16, v19) {}  # rnn.py:34
 *   v21: row[3] float32 = matmul(v20, w2) {}  # rnn.py:35
 *   v24: sum[3] float32 = sum_rows(v20) {}  # rnn.py:35
 *   out v20, v24
 */
typedef struct {
    SN_SCAN;
    const float *d_0;
    const float *v15;
    sn_matrix w2_p0;
    SN_STATE(float, d_1);
    float *v20;
    float *v24;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *d_1 = SN_TAKE(float, count * 3), *d_1_next = SN_TAKE(float, count * 3);
    float v24_part[3] = {0}, *v24_sum = a->v24 + (slot * members + member) * 3;
    sn_boot(&of, member, members, d_1, a->d_1_boot, a->d_1_final, 3 * sizeof(float));
    for (int64_t t = 0; t < a->steps; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
        /* row by row: v16, v17, v19, v20, v21_p2, v21_p3, v24, v21_copy0 */
        for (int64_t i = member; i < active; i += members) {
            float v21_p3_line[3] __attribute__((aligned(64)));
            const float *restrict d_1_at = d_1 + i * 3;
            const float *restrict d_0_at = a->d_0 + row[i] * 3;
            const float *restrict v15_at = a->v15 + row[i] * 3;
            float *restrict v20_at = a->v20 + row[i] * 3;
            const float *restrict w2_p0_at = (const float *)a->w2_p0.packed;
            float *restrict d_1_new = d_1_next + i * 3;
            if (sn_is_far(&of, a->steps, active, 36)) {
                sn_bring(a->d_0, row[i] + of.stride, 12);
                sn_bring(a->v15, row[i] + of.stride, 12);
                sn_bring_to_write(a->v20, row[i] + of.stride, 12);
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v16 = d_1_at[j] + d_0_at[j];
                const float v17 = v15_at[j] * v15_at[j];
                const float v19 = 1.0f - v17;
                const float v20 = v16 * v19;
                v20_at[j] = v20;
                v24_part[j] += v20;
            }
            for (int64_t j = 0; j < 3; ++j)
                v21_p3_line[j] = 0;
            for (int64_t j0 = 0; j0 < 3; ++j0) {
                #pragma omp simd
                for (int64_t j1 = 0; j1 < 3; ++j1) {
                    const float v21_p2 = v20_at[j0] * w2_p0_at[j0 * 3 + j1];
                    v21_p3_line[j1] += v21_p2;
                }
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v21_copy0 = v21_p3_line[j];
                d_1_new[j] = v21_copy0;
            }
        }
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, d_1_next, a->d_1_final, 3 * sizeof(float), 3 * sizeof(float));
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) {
            SN_ADD_UP(v24_sum, v24_part, 3)
        }
    }
    SN_ADD_UP(v24_sum, v24_part, 3)
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0) sn_lines_f32(&a->w2_p0, 1, 3, 3);
}

SN_RUN(run, pack, 1, 0)
