/* scan of forward
 *   carry state <- v15
 *   v9: row[9] float32 = matmul(x, v8) {}  # rnn.py:35
 *   w1_s28: shared[9] float32 = add(w1, w3) {}
 *   v12: row[9] float32 = matmul(state, v11) {}  # rnn.py:35
 *   v14_s29: row[9] float32 = add(v9, w1_s28) {}  # rnn.py:35
 *   v14: row[9] float32 = add(v14_s29, v12) {}  # rnn.py:35
 *   v15: row[9] float32 = tanh(v14) {}  # rnn.py:34
 *   out v15
 */
typedef struct {
    SN_SCAN;
    const float *x;
    const float *w1;
    const float *w3;
    sn_matrix v8;
    sn_matrix v11;
    SN_STATE(float, state);
    float *v15;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    float *state = SN_TAKE(float, count * 9), *state_next = SN_TAKE(float, count * 9);
    int64_t *chunk_row = SN_TAKE(int64_t, count * a->chunk * members) + member * count * a->chunk;
    float *v9_rows = SN_TAKE(float, count * a->chunk * 9);
    float *v12_rows = SN_TAKE(float, count * 9);
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    sn_boot(&of, member, members, state, a->state_boot, a->state_final, 9 * sizeof(float));
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    const int64_t rows = sn_chunk(&of, t0, t1, active, chunk_row, 0);
    int64_t before = 0; /* of these, those of steps before t */
    SN_MEET;
    /* v9 = matmul(x, v8)  [2] x [2, 9], rows of these steps */
    sn_columns_split((sn_rows_f32){v9_rows, 9, 0}, (sn_rows_f32){(float *)a->x, 2, chunk_row}, &a->v8, a->few, rows, 2, 9, member, members, a->split, sn_room);
    SN_MEET;
    for (int64_t t = t0; t < t1; ++t) {
        if ((active = sn_reach(&of, t, active)) == 0) break;
        const int64_t *row = chunk_row + before;
        SN_MEET;
        /* v12 = matmul(state, v11)  [9] x [9, 9] */
        sn_columns_split((sn_rows_f32){(float *)v12_rows, 9, 0}, (sn_rows_f32){(float *)state, 9, 0}, &a->v11, a->few, active, 9, 9, member, members, a->split, sn_room);
        SN_MEET;
        /* row by row: w1_s28, v14_s29, v14, v15 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict w1_at = a->w1;
            const float *restrict w3_at = a->w3;
            const float *restrict v9_at = v9_rows + (before + i) * 9;
            float *restrict v12_at = v12_rows + i * 9;
            float *restrict v15_at = a->v15 + row[i] * 9;
            float *restrict state_new = state_next + i * 9;
            if (sn_is_far(&of, a->steps, active, 36)) {
                sn_bring_to_write(a->v15, row[i] + of.stride, 36);
            }
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float w1_s28 = w1_at[j] + w3_at[j];
                const float v14_s29 = v9_at[j] + w1_s28;
                const float v14 = v14_s29 + v12_at[j];
                const float v15 = sn_tanh_f32(v14);
                v15_at[j] = v15;
                state_new[j] = v15;
            }
        }
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, state_next, a->state_final, 9 * sizeof(float), 9 * sizeof(float));
        { float *now = state; state = state_next; state_next = now; }
        before += active;
    }
    }
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->v8, a->few)) sn_pack_split(a->v8.packed, a->v8.lying, a->v8.stride_k, a->v8.stride_n, 2, 9, a->split);
    if (index == 1 && !sn_lies(&a->v11, a->few)) sn_pack_split(a->v11.packed, a->v11.lying, a->v11.stride_k, a->v11.stride_n, 9, 9, a->split);
}

SN_RUN(run, pack, 2, 0)

/* scan of backward
 *   carry d_1 <- v21
 *   v16: row[9] float32 = add(d_1, d_0) {}  # rnn.py:37
 *   v17: row[9] float32 = mul(v15, v15) {}  # rnn.py:34
 *   v19: row[9] float32 = sub(v18, v17) {}  # rnn.py:34
 *   v20: row[9] float32 = mul(v16, v19) {}  # rnn.py:34
 *   v21: row[9] float32 = matmul(v20, w2) {}  # rnn.py:35
 *   v24: sum[9] float32 = sum_rows(v20) {}  # rnn.py:35
 *   out v20, v24
 */
typedef struct {
    SN_SCAN;
    const float *d_0;
    const float *v15;
    sn_matrix w2;
    SN_STATE(float, d_1);
    float *v20;
    float *v24;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *d_1 = SN_TAKE(float, count * 9), *d_1_next = SN_TAKE(float, count * 9);
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    float v24_part[9] = {0}, *v24_sum = a->v24 + (slot * members + member) * 9;
    sn_boot(&of, member, members, d_1, a->d_1_boot, a->d_1_final, 9 * sizeof(float));
    for (int64_t t = 0; t < a->steps; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
        /* row by row: v16, v17, v19, v20, v24 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict d_1_at = d_1 + i * 9;
            const float *restrict d_0_at = a->d_0 + row[i] * 9;
            const float *restrict v15_at = a->v15 + row[i] * 9;
            float *restrict v20_at = a->v20 + row[i] * 9;
            if (sn_is_far(&of, a->steps, active, 108)) {
                sn_bring(a->d_0, row[i] + of.stride, 36);
                sn_bring(a->v15, row[i] + of.stride, 36);
                sn_bring_to_write(a->v20, row[i] + of.stride, 36);
            }
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float v16 = d_1_at[j] + d_0_at[j];
                const float v17 = v15_at[j] * v15_at[j];
                const float v19 = 1.0f - v17;
                const float v20 = v16 * v19;
                v20_at[j] = v20;
                v24_part[j] += v20;
            }
        }
        SN_MEET;
        /* v21 = matmul(v20, w2)  [9] x [9, 9] */
        sn_columns_split((sn_rows_f32){(float *)d_1_next, 9, 0}, (sn_rows_f32){(float *)a->v20, 9, row}, &a->w2, a->few, active, 9, 9, member, members, a->split, sn_room);
        SN_MEET;
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, d_1_next, a->d_1_final, 9 * sizeof(float), 9 * sizeof(float));
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) {
            SN_ADD_UP(v24_sum, v24_part, 9)
        }
    }
    SN_ADD_UP(v24_sum, v24_part, 9)
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->w2, a->few)) sn_pack_split(a->w2.packed, a->w2.lying, a->w2.stride_k, a->w2.stride_n, 9, 9, a->split);
}

SN_RUN(run, pack, 1, 0)
