/* scan of forward
 *   carry state <- v29
 *   v9: row[9] float32 = matmul(x, v8) {}  # test_golden.py:33
 *   w1_s51: shared[9] float32 = add(w1, w3) {}
 *   v12: row[9] float32 = matmul(state, v11) {}  # test_golden.py:33
 *   v14_s52: row[9] float32 = add(v9, w1_s51) {}  # test_golden.py:33
 *   v14: row[9] float32 = add(v14_s52, v12) {}  # test_golden.py:33
 *   v15: row[9] float32 = tanh(v14) {}  # test_golden.py:33
 *   v16: row[1] float32 = slice(v15) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # test_golden.py:34
 *   v17: row[9] float32 = sub(v15, v16) {}  # test_golden.py:34
 *   v18: row[1] float32 = sum(v17) {'dims': (0,)}  # test_golden.py:34
 *   v20: row[1] float32 = div(v18, v19) {}  # test_golden.py:34
 *   v21: row[1] float32 = add(v16, v20) {}  # test_golden.py:34
 *   v22: row[9] float32 = sub(v15, v21) {}  # test_golden.py:34
 *   v23: row[9] float32 = mul(v22, v22) {}  # test_golden.py:34
 *   v24: row[1] float32 = sum(v23) {'dims': (0,)}  # test_golden.py:34
 *   v25: row[1] float32 = div(v24, v19) {}  # test_golden.py:34
 *   v27: row[1] float32 = add(v25, v26) {}  # test_golden.py:34
 *   v28: row[1] float32 = rsqrt(v27) {}  # test_golden.py:34
 *   v29: row[9] float32 = mul(v22, v28) {}  # test_golden.py:34
 *   out v15, v29
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
    float *v29;
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
        /* row by row: w1_s51, v14_s52, v14, v15, v17, v18, v20, v21, v22, v23, v24, v25, v27, v28, v29 */
        for (int64_t i = member; i < active; i += members) {
            float v22_line[9] __attribute__((aligned(64)));
            const float *restrict w1_at = a->w1;
            const float *restrict w3_at = a->w3;
            const float *restrict v9_at = v9_rows + (before + i) * 9;
            float *restrict v12_at = v12_rows + i * 9;
            float *restrict v15_at = a->v15 + row[i] * 9;
            float *restrict v29_at = a->v29 + row[i] * 9;
            float *restrict state_new = state_next + i * 9;
            if (sn_is_far(&of, a->steps, active, 72)) {
                sn_bring_to_write(a->v15, row[i] + of.stride, 36);
                sn_bring_to_write(a->v29, row[i] + of.stride, 36);
            }
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float w1_s51 = w1_at[j] + w3_at[j];
                const float v14_s52 = v9_at[j] + w1_s51;
                const float v14 = v14_s52 + v12_at[j];
                const float v15 = sn_tanh_f32(v14);
                v15_at[j] = v15;
            }
            float v18 = 0;
            #pragma omp simd reduction(+ : v18)
            for (int64_t j = 0; j < 9; ++j) {
                const float v17 = v15_at[j] - v15_at[0];
                v18 += v17;
            }
            const float v20 = v18 / 9.0f;
            const float v21 = v15_at[0] + v20;
            float v24 = 0;
            #pragma omp simd reduction(+ : v24)
            for (int64_t j = 0; j < 9; ++j) {
                const float v22 = v15_at[j] - v21;
                v22_line[j] = v22;
                const float v23 = v22 * v22;
                v24 += v23;
            }
            const float v25 = v24 / 9.0f;
            const float v27 = v25 + 1e-05f;
            const float v28 = sn_rsqrt_f32(v27);
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float v29 = v22_line[j] * v28;
                v29_at[j] = v29;
                state_new[j] = v29;
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
 *   carry d_1 <- v44
 *   v30: row[9] float32 = add(d_1, d_0) {}  # test_golden.py:34
 *   v31: row[1] float32 = sum(v30) {'dims': (0,)}  # test_golden.py:34
 *   v16: row[1] float32 = slice(v15) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # test_golden.py:34
 *   v17: row[9] float32 = sub(v15, v16) {}  # test_golden.py:34
 *   v18: row[1] float32 = sum(v17) {'dims': (0,)}  # test_golden.py:34
 *   v20: row[1] float32 = div(v18, v19) {}  # test_golden.py:34
 *   v21: row[1] float32 = add(v16, v20) {}  # test_golden.py:34
 *   v22: row[9] float32 = sub(v15, v21) {}  # test_golden.py:34
 *   v23: row[9] float32 = mul(v22, v22) {}  # test_golden.py:34
 *   v24: row[1] float32 = sum(v23) {'dims': (0,)}  # test_golden.py:34
 *   v25: row[1] float32 = div(v24, v19) {}  # test_golden.py:34
 *   v27: row[1] float32 = add(v25, v26) {}  # test_golden.py:34
 *   v28: row[1] float32 = rsqrt(v27) {}  # test_golden.py:34
 *   v29: row[9] float32 = mul(v22, v28) {}  # test_golden.py:34
 *   v32: row[9] float32 = mul(v30, v29) {}  # test_golden.py:34
 *   v33: row[1] float32 = sum(v32) {'dims': (0,)}  # test_golden.py:34
 *   v35: row[9] float32 = mul(v30, v19) {}  # test_golden.py:34
 *   v36: row[9] float32 = sub(v35, v31) {}  # test_golden.py:34
 *   v37: row[9] float32 = mul(v29, v33) {}  # test_golden.py:34
 *   v38: row[9] float32 = sub(v36, v37) {}  # test_golden.py:34
 *   v34: row[1] float32 = div(v28, v19) {}  # test_golden.py:34
 *   v39: row[9] float32 = mul(v34, v38) {}  # test_golden.py:34
 *   v40: row[9] float32 = mul(v15, v15) {}  # test_golden.py:33
 *   v42: row[9] float32 = sub(v41, v40) {}  # test_golden.py:33
 *   v43: row[9] float32 = mul(v39, v42) {}  # test_golden.py:33
 *   v44: row[9] float32 = matmul(v43, w2) {}  # test_golden.py:33
 *   v47: sum[9] float32 = sum_rows(v43) {}  # test_golden.py:33
 *   out v43, v47
 */
typedef struct {
    SN_SCAN;
    const float *d_0;
    const float *v15;
    sn_matrix w2;
    SN_STATE(float, d_1);
    float *v43;
    float *v47;
} arguments;

static void run_share(SN_SHARE) {
    SN_BEGIN;
    int64_t *row = SN_TAKE(int64_t, count * members) + member * count;
    float *d_1 = SN_TAKE(float, count * 9), *d_1_next = SN_TAKE(float, count * 9);
    char *const sn_room = SN_TAKE(char, 425984 * members) + member * 425984;
    float v47_part[9] = {0}, *v47_sum = a->v47 + (slot * members + member) * 9;
    sn_boot(&of, member, members, d_1, a->d_1_boot, a->d_1_final, 9 * sizeof(float));
    for (int64_t t = 0; t < a->steps; ++t) {
        if ((active = sn_step(&of, t, active, row)) == 0) break;
        /* row by row: v30, v31, v17, v18, v20, v21, v22, v23, v24, v25, v27, v28, v29, v32, v33, v35, v36, v37, v38, v34, v39, v40, v42, v43, v47 */
        for (int64_t i = member; i < active; i += members) {
            float v30_line[9] __attribute__((aligned(64)));
            float v22_line[9] __attribute__((aligned(64)));
            float v29_line[9] __attribute__((aligned(64)));
            const float *restrict d_1_at = d_1 + i * 9;
            const float *restrict d_0_at = a->d_0 + row[i] * 9;
            const float *restrict v15_at = a->v15 + row[i] * 9;
            float *restrict v43_at = a->v43 + row[i] * 9;
            if (sn_is_far(&of, a->steps, active, 108)) {
                sn_bring(a->d_0, row[i] + of.stride, 36);
                sn_bring(a->v15, row[i] + of.stride, 36);
                sn_bring_to_write(a->v43, row[i] + of.stride, 36);
            }
            float v31 = 0;
            float v18 = 0;
            #pragma omp simd reduction(+ : v31, v18)
            for (int64_t j = 0; j < 9; ++j) {
                const float v30 = d_1_at[j] + d_0_at[j];
                v30_line[j] = v30;
                v31 += v30;
                const float v17 = v15_at[j] - v15_at[0];
                v18 += v17;
            }
            const float v20 = v18 / 9.0f;
            const float v21 = v15_at[0] + v20;
            float v24 = 0;
            #pragma omp simd reduction(+ : v24)
            for (int64_t j = 0; j < 9; ++j) {
                const float v22 = v15_at[j] - v21;
                v22_line[j] = v22;
                const float v23 = v22 * v22;
                v24 += v23;
            }
            const float v25 = v24 / 9.0f;
            const float v27 = v25 + 1e-05f;
            const float v28 = sn_rsqrt_f32(v27);
            float v33 = 0;
            #pragma omp simd reduction(+ : v33)
            for (int64_t j = 0; j < 9; ++j) {
                const float v29 = v22_line[j] * v28;
                v29_line[j] = v29;
                const float v32 = v30_line[j] * v29;
                v33 += v32;
            }
            const float v34 = v28 / 9.0f;
            #pragma omp simd
            for (int64_t j = 0; j < 9; ++j) {
                const float v35 = v30_line[j] * 9.0f;
                const float v36 = v35 - v31;
                const float v37 = v29_line[j] * v33;
                const float v38 = v36 - v37;
                const float v39 = v34 * v38;
                const float v40 = v15_at[j] * v15_at[j];
                const float v42 = 1.0f - v40;
                const float v43 = v39 * v42;
                v43_at[j] = v43;
                v47_part[j] += v43;
            }
        }
        SN_MEET;
        /* v44 = matmul(v43, w2)  [9] x [9, 9] */
        sn_columns_split((sn_rows_f32){(float *)d_1_next, 9, 0}, (sn_rows_f32){(float *)a->v43, 9, row}, &a->w2, a->few, active, 9, 9, member, members, a->split, sn_room);
        SN_MEET;
        if (sn_ends(&of, t, active)) sn_end(&of, t, active, member, members, d_1_next, a->d_1_final, 9 * sizeof(float), 9 * sizeof(float));
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) {
            SN_ADD_UP(v47_sum, v47_part, 9)
        }
    }
    SN_ADD_UP(v47_sum, v47_part, 9)
}

static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    if (index == 0 && !sn_lies(&a->w2, a->few)) sn_pack_split(a->w2.packed, a->w2.lying, a->w2.stride_k, a->w2.stride_n, 9, 9, a->split);
}

SN_RUN(run, pack, 1, 0)
